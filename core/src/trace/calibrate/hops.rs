//! Times of P2P transfers, from the receives that were waited for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;
use crate::program::{P2pOp, Payload, Step, Way};
use crate::trace::{StepTrace, TraceSpan};

/// Measured times of P2P transfers from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopTimes {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Transfers that a rank waited for. Only their times are known.
    pub messages: usize,
    /// The planned time.
    pub planned_ns: Nanos,
    /// The median: a few transfers that met late say nothing about the link.
    pub median_ns: Nanos,
}

/// The times of each link, from receives that started before their data was made: from the end of the op that made
/// it. Where several transfers are received together, the one that was made last counts.
pub(in crate::trace) fn hops_of(problem: &Problem, steps: &[StepTrace]) -> Vec<HopTimes> {
    let mut samples: BTreeMap<(usize, usize), Vec<Nanos>> = BTreeMap::new();
    let ranks = problem.ranks();
    for step in steps {
        for rows in step.rows.chunks(ranks) {
            let mut made: BTreeMap<(bool, usize, usize), Nanos> = BTreeMap::new();
            for span in rows.iter().flatten() {
                if let Step::Compute(op) = span.step
                    && op.kind() != OpKind::W
                {
                    made.insert((op.kind() != OpKind::F, op.stage(), op.microbatch()), span.end_ns);
                }
            }
            for (rank, row) in rows.iter().enumerate() {
                for span in row {
                    let Some((from, made_ns)) = last_made(problem, span, &made) else { continue };
                    if from != rank && span.start_ns <= made_ns {
                        samples.entry((from, rank)).or_default().push(span.end_ns.saturating_sub(made_ns));
                    }
                }
            }
        }
    }
    let median = |((from, to), mut samples): ((usize, usize), Vec<Nanos>)| {
        samples.sort_unstable();
        let median_ns = samples[samples.len() / 2];
        HopTimes { from, to, messages: samples.len(), planned_ns: problem.hop(from, to), median_ns }
    };
    samples.into_iter().map(median).collect()
}

/// If `span` waits for transfers: the rank that made the last one, and when.
fn last_made(
    problem: &Problem,
    span: &TraceSpan,
    made: &BTreeMap<(bool, usize, usize), Nanos>,
) -> Option<(usize, Nanos)> {
    let (Step::Transfer(messages) | Step::Wait(messages)) = &span.step else { return None };
    let received = messages.iter().filter(|message| message.way == Way::Receive);
    let made_at = |message: &P2pOp| {
        let (stage, microbatch) = (message.peer_stage(), message.microbatch as usize);
        let key = (message.payload == Payload::Gradient, stage, microbatch);
        // Only a stage of the problem has an op that was measured.
        made.get(&key).map(|ns| (problem.rank_of(stage, microbatch), *ns))
    };
    received.filter_map(made_at).max_by_key(|(_, ns)| *ns)
}
