//! The bound of memory and of the link to the host, where activations may go there.
//!
//! Let T be the time from the first start to the last end on a rank. Take one stage of the rank, and what F keeps of one
//! microbatch. If it stays, it is held at least from the start of F to the end of B: through the shortest way to the last stage
//! and back. If it is copied, the part that may go is held during F, both copies and B at least, and the link is busy for two
//! copies. Bytes times time of all microbatches fit into the rank's room for T, and all copies of the link into T. So T is at
//! least the smallest for which some share of each stage's microbatches can be copied such that both fit. The most that copies
//! save within T is a fractional knapsack (Dantzig, "Discrete-variable extremum problems", Operations Research 5, 1957): the
//! stages that save most for each nanosecond of the link come first.
//!
//! With pairs, an op has no time by itself, and this says nothing.

use alloc::vec;
use alloc::vec::Vec;

use super::{Best, Binding};
use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::placement::Placement;

/// Longer windows and copies, of four years, are not looked at.
const MOST_NS: u128 = 1 << 57;

/// Microbatches of one stage on one rank.
struct Lane {
    /// Bytes times nanoseconds of one microbatch that stays.
    stays: u128,
    /// What a copy there and back saves of it.
    saves: u128,
    /// How long both copies take.
    copies_ns: u128,
    microbatches: u128,
}

/// Raises `best` to what the memory and the link of any rank ask for.
pub(super) fn bound(problem: &Problem, best: &mut Best) {
    if problem.pairs_gain() {
        return;
    }
    for (rank, lanes) in lanes(problem).iter_mut().enumerate() {
        let Some(room) = problem.limit_bytes(rank).and_then(|limit| limit.checked_sub(problem.static_bytes(rank)))
        else {
            continue;
        };
        // By what a nanosecond of the link saves: the most first. Copies that take no time come before all.
        lanes.sort_by(|a, b| {
            let [left, right] =
                [[b.saves, a.copies_ns], [a.saves, b.copies_ns]].map(|[of, by]| of.saturating_mul(by));
            left.cmp(&right)
        });
        let stays: u128 = lanes.iter().map(|lane| lane.stays * lane.microbatches).sum();
        let fits = |window: Nanos| {
            let mut left = u128::from(window);
            let mut area = stays;
            for lane in lanes.iter() {
                let all = lane.copies_ns * lane.microbatches;
                // The part of the last lane is rounded up: the bound stays below.
                let (saved, used) = match all <= left {
                    true => (lane.saves * lane.microbatches, all),
                    false => (lane.saves.saturating_mul(left).div_ceil(lane.copies_ns), left),
                };
                area -= saved.min(area);
                left -= used;
            }
            area <= u128::from(room) * u128::from(window)
        };
        // A window in which all fits without a copy.
        let horizon = stays.div_ceil(u128::from(room.max(1)));
        // So that products of bytes and two times stay within their type. More than years says nothing.
        let is_small = |lane: &Lane| lane.saves < 1 << 70 && lane.copies_ns < MOST_NS;
        if room == 0 || horizon >= MOST_NS || !lanes.iter().all(is_small) || fits(best.value) {
            continue;
        }
        let (mut below, mut least) = (best.value, horizon as Nanos);
        while least - below > 1 {
            let middle = below + (least - below) / 2;
            if fits(middle) { least = middle } else { below = middle }
        }
        let copies_ns = lanes.iter().map(|lane| lane.copies_ns * lane.microbatches).sum::<u128>().min(least.into());
        best.take(least, || Binding::HostLink { rank, copies_ns: copies_ns as Nanos, room_bytes: room });
    }
}

/// By rank, its stages.
fn lanes(problem: &Problem) -> Vec<Vec<Lane>> {
    let mut lanes: Vec<Vec<Lane>> = (0..problem.ranks()).map(|_| Vec::new()).collect();
    let halves = if *problem.placement() == Placement::Bidirectional { 2 } else { 1 };
    let stages = problem.stage_count();
    // A microbatch of each direction stands for all of that direction.
    for first in (0..halves).map(|half| half * problem.microbatches() / 2) {
        let backward = |stage: usize| problem.cost(stage).least_backward()[0];
        // From the end of F of a stage to the start of its B.
        let mut behind = vec![0; stages];
        for stage in (0..stages - 1).rev() {
            let next = problem.cost(stage + 1).forward_ns + backward(stage + 1);
            let hops = problem.hop_of(stage, stage + 1, first) + problem.hop_of(stage + 1, stage, first);
            behind[stage] = behind[stage + 1] + next + hops;
        }
        for (stage, behind) in behind.into_iter().enumerate() {
            let cost = problem.cost(stage);
            let ops = u128::from(cost.forward_ns + backward(stage));
            let copies_ns = 2 * u128::from(cost.offload_ns);
            lanes[problem.rank_of(stage, first)].push(Lane {
                stays: u128::from(cost.forward_bytes.max(0) as u64) * (ops + u128::from(behind)),
                saves: u128::from(cost.offload_bytes) * u128::from(behind).saturating_sub(copies_ns),
                copies_ns,
                microbatches: (problem.microbatches() / halves) as u128,
            });
        }
    }
    lanes
}
