//! A measured step that can be run again with other times.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::pace::Pace;
use super::{PathOp, RowTime, StepTimes};
use crate::base::units::Nanos;
use crate::problem::op::Op;
use crate::simulate::timeline::Span;
use crate::trace::Trace;
use crate::trace::waits::{Place, Waits};

/// One step: what it did, and why each op started when it did.
pub(super) struct Replay {
    pub(super) waits: Waits,
    order: Vec<Place>,
    /// By row and place: the time on the link before the op, 0 where it has no input from another row.
    hops: Vec<Vec<Nanos>>,
    /// By row and place: how much later it started than it could.
    late: Vec<Vec<Nanos>>,
}

/// Something of each link, by row to, and then by row from, of which a row has few.
pub(super) struct Links<T>(Vec<Vec<(usize, T)>>);

impl<T> Links<T> {
    pub(super) fn new() -> Links<T> {
        Links(Vec::new())
    }

    pub(super) fn get(&self, from: usize, to: usize) -> Option<&T> {
        self.0.get(to)?.iter().find(|(known, _)| *known == from).map(|(_, of)| of)
    }

    /// That of a link; `first` where there is none yet.
    pub(super) fn entry(&mut self, from: usize, to: usize, first: impl FnOnce() -> T) -> &mut T {
        if self.0.len() <= to {
            self.0.resize_with(to + 1, Vec::new);
        }
        let of_row = &mut self.0[to];
        let at = of_row.iter().position(|(known, _)| *known == from).unwrap_or_else(|| {
            of_row.push((from, first()));
            of_row.len() - 1
        });
        &mut of_row[at].1
    }

    /// All of them, in order of the rows from, and then to.
    pub(super) fn into_sorted(self) -> Vec<((usize, usize), T)> {
        let of_row =
            |(to, of_row): (usize, Vec<(usize, T)>)| of_row.into_iter().map(move |(from, of)| ((from, to), of));
        let mut all: Vec<((usize, usize), T)> = self.0.into_iter().enumerate().flat_map(of_row).collect();
        all.sort_by_key(|(link, _)| *link);
        all
    }
}

/// The least time from the end of an op to the start of what waits for it.
pub(super) fn links(all: &[Waits]) -> Links<Nanos> {
    let mut links = Links::new();
    for waits in all {
        for (input, op) in waits.edges() {
            let there = waits.received[op.0][op.1].map_or(waits.at(op).start_ns, |received| received[1]);
            let took = there.saturating_sub(waits.at(input).end_ns);
            let least: &mut Nanos = links.entry(input.0, op.0, || took);
            *least = took.min(*least);
        }
    }
    links
}

impl Replay {
    /// The steps of `trace` that have ops; none where the analysis is ended.
    pub(super) fn of_all(trace: &Trace, pace: &Pace<'_>) -> Option<Vec<Replay>> {
        let mut all = Vec::new();
        for step in &trace.steps {
            let waits = Waits::of(step, trace.ranks_of(step.rows.len()));
            if waits.ops.iter().any(|row| !row.is_empty()) {
                all.push(waits);
            }
            pace.counts().then_some(())?;
        }
        let links = links(&all);
        let one = |waits| {
            let replay = Replay::of(waits, &links);
            pace.counts().then_some(replay)
        };
        all.into_iter().map(one).collect()
    }

    fn of(mut waits: Waits, links: &Links<Nanos>) -> Replay {
        let first = waits.ops.iter().flatten().map(|span| span.start_ns).min().unwrap_or(0);
        for span in waits.ops.iter_mut().flatten() {
            (span.start_ns, span.end_ns) = (span.start_ns - first, span.end_ns.max(span.start_ns) - first);
        }
        for at in waits.received.iter_mut().flatten().flatten().flatten() {
            *at = at.saturating_sub(first);
        }
        let order = waits.in_order();
        let (mut hops, mut late): (Vec<Vec<Nanos>>, Vec<Vec<Nanos>>) =
            (Vec::with_capacity(waits.ops.len()), Vec::with_capacity(waits.ops.len()));
        for (row, ops) in waits.ops.iter().enumerate() {
            let (mut of_row, mut late_of_row) = (vec![0; ops.len()], vec![0; ops.len()]);
            let mut before = 0;
            for (place, span) in ops.iter().enumerate() {
                let mut ready = before;
                if let Some(input) = waits.inputs[row][place] {
                    let made = waits.at(input).end_ns;
                    let most = span.start_ns.saturating_sub(made);
                    let usual = links.get(input.0, row).copied().unwrap_or(0);
                    // A rank that asks after the message was made, and then hardly waits, does not see when it arrived.
                    let saw = waits.received[row][place]
                        .filter(|[asked, ended]| *asked <= made || ended.saturating_sub(*asked) > usual);
                    of_row[place] = saw.map_or(usual, |[_, ended]| ended.saturating_sub(made)).min(most);
                    ready = ready.max(made + of_row[place]);
                }
                late_of_row[place] = span.start_ns.saturating_sub(ready);
                before = span.end_ns;
            }
            hops.push(of_row);
            late.push(late_of_row);
        }
        Replay { waits, order, hops, late }
    }

    /// The ops of a row.
    pub(super) fn row(&self, row: usize) -> &[Span] {
        self.waits.ops.get(row).map_or(&[], Vec::as_slice)
    }

    pub(super) fn op(&self, place: Place) -> Op {
        self.waits.at(place).op
    }

    pub(super) fn took(&self, place: Place) -> Nanos {
        let span = self.waits.at(place);
        span.end_ns - span.start_ns
    }

    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.order.iter().copied()
    }

    /// The time on the link before an op, where the link of `changed` takes the given time.
    pub(super) fn hop_as(&self, place: Place, changed: Option<((usize, usize), Nanos)>) -> Nanos {
        let hop = self.hops[place.0][place.1];
        match (changed, self.waits.inputs[place.0][place.1]) {
            (Some((link, ns)), Some(input)) if (input.0, place.0) == link => hop.min(ns),
            _ => hop,
        }
    }

    pub(super) fn makespan_ns(&self) -> Nanos {
        self.waits.ops.iter().flatten().map(|span| span.end_ns).max().unwrap_or(0)
    }

    /// The makespan with other times of ops, and with links as they are or instant.
    pub(super) fn replayed(&self, took: &dyn Fn(Place) -> Nanos, hops: bool) -> Nanos {
        self.replayed_with(took, &|place| if hops { self.hops[place.0][place.1] } else { 0 })
    }

    /// The makespan with other times of ops and links.
    pub(super) fn replayed_with(&self, took: &dyn Fn(Place) -> Nanos, hop: &dyn Fn(Place) -> Nanos) -> Nanos {
        let mut ends: Vec<Vec<Nanos>> = self.waits.ops.iter().map(|row| vec![0; row.len()]).collect();
        let (mut first, mut last) = (Nanos::MAX, 0);
        for place in self.places() {
            let (row, index) = place;
            let before = index.checked_sub(1).map_or(0, |index| ends[row][index]);
            let arrives =
                self.waits.inputs[row][index].map_or(0, |input| ends[input.0][input.1].saturating_add(hop(place)));
            let start = before.max(arrives).saturating_add(self.late[row][index]);
            let end = start.saturating_add(took(place));
            ends[row][index] = end;
            (first, last) = (first.min(start), last.max(end));
        }
        last.saturating_sub(first.min(last))
    }

    /// Where the time of each row went, and the critical path.
    pub(super) fn times(&self, step: u64) -> StepTimes {
        let makespan_ns = self.makespan_ns();
        let mut microbatches: BTreeMap<usize, Nanos> = BTreeMap::new();
        for place in self.places() {
            *microbatches.entry(self.op(place).microbatch()).or_default() += self.took(place);
        }
        let rows = (0..self.waits.ops.len()).map(|row| self.time_of(row, makespan_ns)).collect();
        StepTimes { step, makespan_ns, rows, microbatches: microbatches.into_iter().collect(), path: self.path() }
    }

    fn time_of(&self, row: usize, makespan_ns: Nanos) -> RowTime {
        let mut time = RowTime::default();
        let mut before = 0;
        for (place, span) in self.waits.ops[row].iter().enumerate() {
            let gap = span.start_ns.saturating_sub(before);
            let made = self.waits.inputs[row][place].map_or(0, |input| self.waits.at(input).end_ns);
            let waits = made.saturating_sub(before).min(gap);
            let late = self.late[row][place].min(gap - waits);
            *(if place == 0 { &mut time.fill_ns } else { &mut time.input_ns }) += waits;
            time.late_ns += late;
            time.communication_ns += gap - waits - late;
            time.busy_ns += span.end_ns - span.start_ns;
            before = span.end_ns;
        }
        time.drain_ns = makespan_ns.saturating_sub(before);
        time
    }

    /// From the last op back to the first, over whatever each waited for last.
    fn path(&self) -> Vec<PathOp> {
        let ends =
            self.waits.ops.iter().enumerate().filter_map(|(row, ops)| Some((ops.last()?.end_ns, row, ops.len() - 1)));
        let mut at =
            ends.max_by_key(|(end, row, _)| (*end, core::cmp::Reverse(*row))).map(|(_, row, place)| (row, place));
        let mut path = Vec::new();
        // Where an op stands twice in a step, as in damaged logs, what made an input may come after it: a circle ends.
        let mut seen: BTreeSet<Place> = BTreeSet::new();
        while let Some(place) = at.filter(|place| seen.insert(*place)) {
            let (row, index) = place;
            let before = index.checked_sub(1).map(|index| (row, index));
            let free = before.map_or(0, |before| self.waits.at(before).end_ns);
            let input = self.waits.inputs[row][index];
            let hop = self.hops[row][index];
            let arrives = input.map_or(0, |input| self.waits.at(input).end_ns + hop);
            let by_message = input.is_some() && (arrives > free || before.is_none());
            path.push(PathOp {
                row,
                op: self.op(place),
                took_ns: self.took(place),
                message_ns: if by_message { hop } else { 0 },
                late_ns: self.late[row][index],
            });
            at = if by_message { input } else { before };
        }
        path.reverse();
        path
    }
}
