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
        let stays: u128 = lanes.iter().map(|lane| lane.stays * lane.microbatches).sum();
        // A lane that copies save nothing of leaves the link to others, and would have no place in the order below.
        lanes.retain(|lane| lane.saves > 0);
        // By what a nanosecond of the link saves: the most first. Copies that take no time come before all.
        lanes.sort_by(|a, b| {
            let [left, right] =
                [[b.saves, a.copies_ns], [a.saves, b.copies_ns]].map(|[of, by]| of.saturating_mul(by));
            left.cmp(&right)
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Statement;
    use alloc::vec;
    use serde_json::json;

    /// A rank with many stages, some of which copy nothing, or in no time: what the stages say is sorted in one order, and the
    /// bound is that of the best share, worked out by hand. Two stages on one rank, one microbatch each way of 100: without
    /// pairs the first saves 10 bytes a nanosecond, and the second 1.
    #[test]
    fn stages_that_copy_nothing_leave_the_link_to_others() {
        for seed in 0..50u64 {
            let stage = |at: u64| {
                let bytes = [0, 1, 50, 100][((seed + at * 7) % 4) as usize];
                let ns = if (seed + at).is_multiple_of(3) { 0 } else { (seed * 31 + at * 17) % 400 };
                json!({ "forward_ns": 10, "backward_input_ns": 10, "forward_bytes": 100, "backward_input_bytes": -100,
                        "offload_bytes": bytes, "offload_ns": if bytes > 0 { ns } else { 0 } })
            };
            let stages: alloc::vec::Vec<_> = (0..60).map(stage).collect();
            let file =
                json!({ "ranks": 2, "chunks": 30, "microbatches": 2, "placement": "looped", "stages": stages });
            let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}"));
            let problem = statement.problem(statement.placements()[0].clone()).unwrap();
            let limited = problem.with_limits(vec![Some(900); 2]);
            let mut best = Best { value: 0, binding: Binding::Work { rank: 0, load_ns: 0 } };
            bound(&limited, &mut best);
            // The same by trying lanes in every order of two keys, each as a fraction.
            for (rank, lanes) in super::lanes(&limited).into_iter().enumerate() {
                let mut sorted: alloc::vec::Vec<&Lane> = lanes.iter().filter(|lane| lane.saves > 0).collect();
                let ratio = |lane: &&Lane| lane.saves as f64 / (lane.copies_ns as f64).max(1e-9);
                sorted.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
                let window = best.value as f64 - 1.0;
                let (mut left, mut area) = (window, 0.0);
                lanes.iter().for_each(|lane| area += (lane.stays * lane.microbatches) as f64);
                for lane in sorted {
                    let all = (lane.copies_ns * lane.microbatches) as f64;
                    let used = all.min(left);
                    let share = if all > 0.0 { used / all } else { 1.0 };
                    area -= share * (lane.saves * lane.microbatches) as f64;
                    left -= used;
                }
                // A window that is a nanosecond shorter is too short for one rank at least; no rank needs a longer one.
                let fits_more = area <= 900.0 * (window + 2.0) + 1e-3 * area.abs().max(1.0);
                assert!(fits_more || window < 0.0, "rank {rank}, seed {seed}: {} of {}", area, 900.0 * window);
            }
        }
    }
}
