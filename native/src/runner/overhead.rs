//! The runner's own time: how long after it could have started an op starts.
//!
//! An op can start when its rank has ended the op before and what it needs has arrived. All that lies between that moment
//! and its start is the runner's, or the machine's where it has fewer cores than ranks: the note of where a rank is,
//! hand-overs, wake-ups. Where ops only wait for their planned time, what they take beyond it counts as well.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Step;

use super::rank_executor::StepRecord;
use super::workload::Workload;

/// How late ops started, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// Ops counted.
    pub ops: usize,
    /// The mean over them.
    pub mean_ns: f64,
    /// Half of them were no later than this.
    pub median_ns: Nanos,
    /// 99 of 100 were no later than this.
    pub most_ns: Nanos,
}

impl Overhead {
    /// The figures of `late`; none where there is no op.
    pub(super) fn of(mut late: Vec<Nanos>) -> Option<Overhead> {
        late.sort_unstable();
        let last = late.len().checked_sub(1)?;
        let mean_ns = late.iter().map(|ns| *ns as f64).sum::<f64>() / late.len() as f64;
        Some(Overhead { ops: late.len(), mean_ns, median_ns: late[last / 2], most_ns: late[last * 99 / 100] })
    }
}

/// By op of one training step that all ranks have ended: how late it started.
pub(super) fn lateness(workload: &Workload, records: &[StepRecord]) -> Vec<Nanos> {
    let (waits, slowdown) = (workload.only_waits(), workload.slowdown());
    let computes = |record: &StepRecord| {
        let steps = workload.row(record.rank).iter().zip(&record.spans);
        let compute = |(step, span): (&Step, &(Nanos, Nanos))| match step {
            Step::Compute(op) => Some((*op, *span)),
            _ => None,
        };
        steps.filter_map(compute).collect::<Vec<_>>()
    };
    // Ends of what neighbours need, by pipeline, and by whether it is a backward.
    let mut ends: BTreeMap<(usize, bool, usize, usize), Nanos> = BTreeMap::new();
    for record in records {
        let pipeline = workload.position(record.rank).pipeline();
        for (op, (_, end)) in computes(record) {
            if op.kind() != OpKind::W {
                ends.insert((pipeline, op.kind() != OpKind::F, op.stage(), op.microbatch()), end);
            }
        }
    }
    let mut late = Vec::new();
    for record in records {
        let position = workload.position(record.rank);
        let problem = workload.problem_of(position.replica);
        let arrives = |op: Op| {
            let backward = match op.kind() {
                OpKind::F => false,
                OpKind::B | OpKind::BW => true,
                OpKind::W => return None,
            };
            let from = if backward { op.stage() + 1 } else { op.stage().checked_sub(1)? };
            let end = ends.get(&(position.pipeline(), backward, from, op.microbatch()))?;
            let hop = match problem.rank_of(from, op.microbatch()) {
                // Nothing travels that only exists in memory, or through it.
                rank if waits && rank != position.rank => problem.hop_of(from, op.stage(), op.microbatch()),
                _ => 0,
            };
            Some(end.saturating_add(hop.saturating_mul(slowdown)))
        };
        let mut free = None;
        for (op, (start, end)) in computes(record) {
            // The first op of a rank waits for whatever comes first: for all ranks, or for its input.
            let could = free.into_iter().chain(arrives(op)).max();
            let beyond = match waits {
                true => (end - start).saturating_sub(problem.duration(op).saturating_mul(slowdown)),
                false => 0,
            };
            if let Some(could) = could {
                late.push(start.saturating_sub(could).saturating_add(beyond));
            }
            free = Some(end);
        }
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_ops() {
        assert_eq!(Overhead::of(Vec::new()), None);
        let overhead = Overhead::of((1..=200).rev().collect()).expect("ops");
        assert_eq!((overhead.ops, overhead.median_ns, overhead.most_ns), (200, 100, 198));
        assert!((overhead.mean_ns - 100.5).abs() < 1e-9);
    }
}
