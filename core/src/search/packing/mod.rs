//! Documents that may form any microbatches: which of them form which microbatch, which data parallel replica runs it, and in
//! which place of the schedule.
//!
//! All replicas run the same op lists. The place of a microbatch is its number in the schedule; documents in it give its times.
//! The step waits for the slowest replica. All microbatches hold the same bytes, so memory decides the schedule alone.
//!
//! - `balance` evens out what microbatches take, whatever the schedule.
//! - Each replica's microbatches get the best of a few sorted orders.
//! - `local` moves documents and microbatches, and looks at the time of the very schedule.

use alloc::vec;
use alloc::vec::Vec;

use super::orders::fixed::{Fixed, KINDS, Tables};
use super::orders::sorted_orders;
use super::{Effort, Flow, Progress};
use crate::base::units::Nanos;
use crate::bounds::packing_bound;
use crate::problem::packing::{Bins, Document, DocumentTimes, Load, Packing, load_of, longest_first};
use crate::problem::placement::Placement;
use crate::problem::{Problem, Schedule};

mod balance;
mod local;

/// Documents of a step, and the problem of one replica.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The problem; its own factors do not count.
    pub problem: &'a Problem,
    /// Where documents go.
    pub bins: Bins,
    /// The documents.
    pub documents: &'a [Document],
    /// What they take.
    pub times: &'a DocumentTimes,
}

/// Documents as a search has packed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The documents by replica and place.
    pub packing: Packing,
    /// The objective of the slowest replica.
    pub cost_ns: Nanos,
    /// Ops run for it.
    pub ops: u64,
}

impl Batch<'_> {
    /// The objective of the slowest replica with the microbatches of `packing` in their places. None where the op lists cannot
    /// be run, or run pairs of ops.
    pub fn cost_ns(&self, schedule: &Schedule, packing: &Packing) -> Option<Nanos> {
        let tables = Tables::of(self.problem);
        let mut run = Run::new(self, &tables, schedule)?;
        packing.iter().map(|of| run.replica(of, Nanos::MAX)).try_fold(0, |most, cost| Some(most.max(cost?)))
    }

    /// `packing` with the microbatches of each replica in the best of a few sorted orders for `schedule`. None as in
    /// [`Batch::cost_ns`].
    pub fn sorted(&self, schedule: &Schedule, packing: &Packing) -> Option<Packing> {
        let tables = Tables::of(self.problem);
        let mut run = Run::new(self, &tables, schedule)?;
        Some(packing.iter().map(|of| run.sorted(of)).collect())
    }

    /// The microbatches of `packing` assigned to replicas by longest processing time first.
    pub fn dealt(&self, packing: &Packing) -> Packing {
        longest_first(packing, |documents| self.times.weight(self.load(documents)))
    }

    /// `packing` with microbatches that take about as long, as far as a share of `effort` allows, assigned to replicas.
    pub fn evened_out(&self, packing: &Packing, effort: Effort) -> Packing {
        self.dealt(&balance::balanced(self, packing, effort.0 / BALANCING).0)
    }

    /// The best packing found for `schedule` within `effort`, never worse than `packing` as it is, with its microbatches sorted,
    /// or dealt and sorted. None as in [`Batch::cost_ns`].
    ///
    /// `observer` is called after improvements and sometimes in between; it may stop the search.
    pub fn search(
        &self,
        schedule: &Schedule,
        packing: &Packing,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Option<Packed> {
        let tables = Tables::of(self.problem);
        let mut run = Run::new(self, &tables, schedule)?;
        let (balanced, balancing) = balance::balanced(self, packing, effort.0 / BALANCING);
        run.ops += balancing;
        let starts = [packing.clone(), packing.clone(), self.dealt(packing), self.dealt(&balanced)];
        let mut best: Option<(Nanos, Packing)> = None;
        for (index, start) in starts.into_iter().enumerate() {
            let start: Packing = if index == 0 { start } else { start.iter().map(|of| run.sorted(of)).collect() };
            let mut costs = start.iter().map(|of| run.replica(of, Nanos::MAX));
            let Some(cost) = costs.try_fold(0, |most, cost| Some(most.max(cost?))) else { continue };
            if best.as_ref().is_none_or(|(known, _)| cost < *known) {
                best = Some((cost, start));
            }
        }
        let (_, start) = best?;
        let bound_ns = packing_bound(self.problem, self.bins, self.documents, self.times);
        Some(local::search(&mut run, start, bound_ns, effort, observer))
    }

    fn load(&self, documents: &[u32]) -> Load {
        load_of(documents.iter().map(|document| self.documents[*document as usize].loads))
    }

    fn tokens(&self, documents: &[u32]) -> u64 {
        documents.iter().map(|document| u64::from(self.documents[*document as usize].tokens)).sum()
    }
}

/// The share of the effort that evens out microbatches.
const BALANCING: u64 = 8;

/// A schedule that runs with the microbatches of any replica.
struct Run<'a> {
    batch: &'a Batch<'a>,
    fixed: Fixed<'a>,
    places: Vec<u32>,
    /// By job and microbatch, of the replica that was run last.
    times: Vec<Nanos>,
    ops: u64,
}

impl<'a> Run<'a> {
    fn new(batch: &'a Batch<'a>, tables: &'a Tables, schedule: &Schedule) -> Option<Run<'a>> {
        let fixed = Fixed::new(batch.problem, tables, schedule.clone()).filter(|fixed| !fixed.has_pairs())?;
        let places = (0..batch.bins.microbatches as u32).collect();
        let times = vec![0; batch.problem.stage_count() * KINDS.len() * batch.bins.microbatches];
        Some(Run { batch, fixed, places, times, ops: 0 })
    }

    /// Writes the times of a microbatch of this load in `place` to `times`.
    fn write(&self, times: &mut [Nanos], place: usize, load: Load) {
        let Bins { microbatches, .. } = self.batch.bins;
        for (stage, factors) in self.batch.times.factors(load).enumerate() {
            let cost = factors.applied_to(self.batch.problem.cost(stage));
            for (kind, of) in KINDS.iter().enumerate() {
                times[(KINDS.len() * stage + kind) * microbatches + place] = cost.duration(*of);
            }
        }
    }

    /// The objective with these times; none where it would be `below` or more.
    fn cost(&mut self, times: &[Nanos], below: Nanos) -> Option<Nanos> {
        self.ops += self.fixed.ops();
        self.fixed.cost_with(times, &self.places, below)
    }

    /// The objective of a replica with these microbatches.
    fn replica(&mut self, microbatches: &[Vec<u32>], below: Nanos) -> Option<Nanos> {
        let mut times = core::mem::take(&mut self.times);
        for (place, documents) in microbatches.iter().enumerate() {
            self.write(&mut times, place, self.batch.load(documents));
        }
        let cost = self.cost(&times, below);
        self.times = times;
        cost
    }

    /// The microbatches of a replica in the best of the sorted orders.
    fn sorted(&mut self, microbatches: &[Vec<u32>]) -> Vec<Vec<u32>> {
        let weights: Vec<Nanos> =
            microbatches.iter().map(|of| self.batch.times.weight(self.batch.load(of))).collect();
        let all = microbatches.len();
        let directions: Vec<core::ops::Range<usize>> = match self.batch.problem.placement() {
            Placement::Bidirectional => vec![0..all / 2, all / 2..all],
            _ => core::iter::once(0..all).collect(),
        };
        let mut best: Option<(Nanos, Vec<Vec<u32>>)> = None;
        for order in sorted_orders(&weights, &directions) {
            let ordered: Vec<Vec<u32>> = order.iter().map(|of| microbatches[*of as usize].clone()).collect();
            let below = best.as_ref().map_or(Nanos::MAX, |(known, _)| *known);
            if let Some(cost) = self.replica(&ordered, below) {
                best = Some((cost, ordered));
            }
        }
        best.map_or_else(|| microbatches.to_vec(), |(_, ordered)| ordered)
    }
}
