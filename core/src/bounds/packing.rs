//! The bound where documents may form any microbatches of any data parallel replica.
//!
//! The step is as long as that of the slowest replica. Three bounds hold for every packing, assignment, order and schedule:
//!
//! - **Work.** No op is shorter than without documents, so heads and tails are those of a microbatch without. What the ops of
//!   one kind and stage take in all follows from the sum of all loads, whatever the packing. The ops of a kind and stage are one
//!   job of their rank, which may be cut. For a replica with the work vector w, Jackson's preemptive schedule of these jobs takes
//!   V(w), the greatest of head + work + tail over sets of jobs. V is convex and grows with w, so some replica has at least V of
//!   the average of w over all replicas.
//! - **The largest document.** Some replica has it. Its other microbatches take at least what they take without documents.
//! - **No documents.** Every replica takes at least what microbatches without documents take, under the memory limit.
//!
//! A whole BW takes a share φ of B and W; it counts as φB and then φW, where W may begin with B.

use alloc::vec;
use alloc::vec::Vec;

use super::differing::{Job, chain, preemptive};
use super::lower_bound;
use crate::base::units::Nanos;
use crate::problem::factors::{Factors, MicrobatchFactors};
use crate::problem::op::OpKind;
use crate::problem::packing::{Bins, Document, DocumentTimes, load_of};
use crate::problem::placement::Placement;
use crate::problem::{Backward, Objective, Problem};

/// A lower bound on the objective of the slowest replica, where `documents` may be packed into `bins` in any way and each replica
/// runs any schedule of `problem`, whose own factors do not count.
pub fn packing_bound(problem: &Problem, bins: Bins, documents: &[Document], times: &DocumentTimes) -> Nanos {
    let microbatches = problem.microbatches();
    let empty: Vec<Factors> = times.factors([0; 2]).collect();
    let all_empty: Vec<Factors> = (0..microbatches).flat_map(|_| empty.iter().copied()).collect();
    let Some(without) = with_factors(problem, all_empty.clone()) else { return 0 };
    let largest = documents.iter().map(|document| document.loads).max_by_key(|loads| times.weight(*loads));
    let with_largest = |place: usize, loads| {
        let mut factors = all_empty.clone();
        factors.splice(place * empty.len()..(place + 1) * empty.len(), times.factors(loads));
        with_factors(problem, factors).map(value)
    };
    // It may go either way.
    let last = if *problem.placement() == Placement::Bidirectional { microbatches - 1 } else { 0 };
    let of_largest = largest.and_then(|loads| with_largest(0, loads).min(with_largest(last, loads)));
    let alike = without.with_alike_microbatches(false).map(value);
    let of_work = work(problem, &without, bins, documents, times);
    of_work.max(alike.unwrap_or(0)).max(of_largest.unwrap_or(0))
}

fn value(problem: Problem) -> Nanos {
    lower_bound(&problem).value_ns
}

/// `problem` with these factors, by microbatch and stage.
fn with_factors(problem: &Problem, factors: Vec<Factors>) -> Option<Problem> {
    let factors = MicrobatchFactors::of_stages(problem.stage_count(), factors)?;
    problem.with_factors(Some(factors)).ok()
}

/// The bound of the work; `without` is the problem without documents.
fn work(problem: &Problem, without: &Problem, bins: Bins, documents: &[Document], times: &DocumentTimes) -> Nanos {
    let all = load_of(documents.iter().map(|document| document.loads));
    let mean = times.least_factors(all, bins.count() as u64);
    let [_, heads, tails] = chain(without, 0);
    let is_open = *problem.placement() == Placement::Bidirectional || problem.objective() == Objective::LongestSpan;
    let mut jobs: Vec<Vec<Job>> = vec![Vec::new(); problem.ranks()];
    let mut sum = 0;
    for (stage, factors) in mean.iter().enumerate() {
        let rank = problem.rank_of(stage, 0);
        let takes = work_of(problem, stage, *factors);
        let heads = heads[stage];
        let may_be_whole = problem.cost(stage).backward_ns.is_some();
        for (kind, takes) in takes.into_iter().enumerate().filter(|(_, takes)| *takes > 0) {
            let head = if kind == 2 && may_be_whole { heads[1] } else { heads[kind] };
            let tail = tails[stage][kind];
            let [head, tail] = if is_open { [0; 2] } else { [head, tail] };
            sum += takes;
            jobs[rank].push(Job { head, takes, tail });
        }
    }
    if *problem.placement() == Placement::Bidirectional {
        // Documents decide how much goes each way, so only what all ranks do together is known.
        return sum / problem.ranks() as Nanos;
    }
    jobs.iter_mut().map(|jobs| preemptive(jobs).into_iter().sum()).max().unwrap_or(0)
}

/// What F, B and W of all microbatches of `stage` take at least on average over replicas, where one takes `mean` on average.
fn work_of(problem: &Problem, stage: usize, mean: Factors) -> [Nanos; 3] {
    let cost = problem.cost(stage);
    let apart = u128::from(cost.backward_input_ns) + u128::from(cost.backward_weight_ns);
    let whole = u128::from(cost.duration(OpKind::BW));
    let halves = if problem.pairs_gain() { 2 } else { 1 };
    let all = |ns: Nanos, permille: u32| {
        u128::from(ns) * u128::from(permille) * problem.microbatches() as u128 / (1000 * halves)
    };
    let share = |work: u128| work.saturating_mul(whole) / apart.max(1);
    let [f, b, w] = [
        all(cost.forward_ns, mean.forward),
        share(all(cost.backward_input_ns, mean.backward_input)),
        share(all(cost.backward_weight_ns, mean.backward_weight)),
    ];
    let [b, w] = if problem.backward() == Backward::Fused { [b + w, 0] } else { [b, w] };
    [f, b, w].map(|work| Nanos::try_from(work).unwrap_or(Nanos::MAX))
}
