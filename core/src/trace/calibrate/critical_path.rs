//! The critical path through a step.

use alloc::collections::BTreeMap;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;
use crate::simulate::needs;
use crate::simulate::timeline::{Span, Timeline};

/// The time of each stage and job on the critical path through `timeline` (which was simulated from `problem`), and
/// the time of hops. Together they are the makespan.
pub(super) fn critical_path(problem: &Problem, timeline: &Timeline) -> (BTreeMap<(usize, OpKind), Nanos>, Nanos) {
    let mut places = BTreeMap::new();
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (place, span) in row.iter().enumerate() {
            let op = span.op;
            if op.kind() != OpKind::W {
                places.insert((op.kind() != OpKind::F, op.stage(), op.microbatch()), (rank, place));
            }
        }
    }
    let (mut paths, mut hops) = (BTreeMap::new(), 0);
    let last = timeline.rows.iter().enumerate().filter(|(_, row)| !row.is_empty());
    let last = last.max_by_key(|(_, row)| row[row.len() - 1].end_ns);
    let mut at = last.map(|(rank, row)| (rank, row.len() - 1));
    while let Some((rank, place)) = at {
        let Span { op, start_ns, end_ns } = timeline.rows[rank][place];
        *paths.entry((op.stage(), op.kind())).or_default() += end_ns - start_ns;
        let before = place.checked_sub(1).filter(|before| timeline.rows[rank][*before].end_ns == start_ns);
        at = before.map(|before| (rank, before));
        if at.is_none() && start_ns > 0 {
            needs(problem, op, |needed, hop| {
                let key = (needed.kind() != OpKind::F, needed.stage(), needed.microbatch());
                let Some(&(rank, place)) = places.get(&key) else { return };
                if at.is_none() && timeline.rows[rank][place].end_ns + hop == start_ns {
                    at = Some((rank, place));
                    hops += hop;
                }
            });
        }
    }
    (paths, hops)
}
