//! Every published schedule from 1 to 1024 ranks, with uneven costs: built, checked, simulated, and compared with the bounds
//! under the memory that it needs.

use pipeplan_core::bounds::{feasible, least_memory, lower_bound};
use pipeplan_core::check::check_schedule;
use pipeplan_core::problem::{Objective, PlacementChoice, Problem, StageCost, Statement};
use pipeplan_core::schedule::{Published, published};
use pipeplan_core::simulate::simulate;
use serde_json::json;

/// Ops, counting F, B and W apart, up to which a case is tried: together some seconds unoptimised.
const MOST_OPS: usize = 13_000;

fn problem(published: &Published, ranks: usize, chunks: usize, microbatches: usize) -> Option<Problem> {
    let (placement, chunks) = (published.shape)(chunks);
    if 3 * ranks * chunks * microbatches > MOST_OPS {
        return None;
    }
    let slices = if published.is_of_slices() { 2 } else { 1 };
    if !microbatches.is_multiple_of(slices) {
        return None;
    }
    // It has pairs alone, which hide exchanges.
    let exchanged = if published.name == "combined-1f1b" { 40 } else { 0 };
    let mut statement = Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "slices": slices, "placement": "any",
        "stages": { "forward_ns": 100, "backward_input_ns": 110, "backward_weight_ns": 70,
                    "forward_bytes": 20, "backward_input_bytes": -9, "backward_weight_bytes": -11,
                    "forward_exchange_ns": exchanged, "backward_exchange_ns": exchanged },
        "transfer_ns": 7, "backward": if published.splits_backward { "split" } else { "fused" },
    }))
    .unwrap_or_else(|faults| panic!("{faults}"));
    statement.placement = PlacementChoice::Any;
    // No two neighbours alike.
    let first = statement.stages[0];
    let uneven = |stage: usize| {
        let more = (stage * 7 % 11) as u64;
        StageCost {
            forward_ns: first.forward_ns + more,
            backward_weight_ns: first.backward_weight_ns - 3 * more,
            forward_bytes: first.forward_bytes + more as i64,
            backward_weight_bytes: first.backward_weight_bytes - more as i64,
            ..first
        }
    };
    statement.stages = (0..ranks * chunks).map(uneven).collect();
    statement.problem(placement).ok()
}

#[test]
fn every_schedule_keeps_the_rules_and_the_bounds_up_to_1024_ranks() {
    let mut widest = 0;
    for published in published() {
        let mut built = 0;
        for ranks in [1, 2, 3, 8, 33, 64, 127, 256, 1000, 1024] {
            for (chunks, microbatches) in [(1, 1), (2, 2), (2, 4), (1, ranks), (3, 2 * ranks + 2)] {
                let Some(problem) = problem(published, ranks, chunks, microbatches) else { continue };
                let Ok(schedule) = published.build(&problem) else { continue };
                built += 1;
                widest = widest.max(ranks);
                let shape = format!("{} P={ranks} V={chunks} M={microbatches}", published.name);
                if let Err(violations) = check_schedule(&problem, &schedule) {
                    panic!("{shape}: {}", violations[0]);
                }
                let timeline = simulate(&problem, &schedule).unwrap_or_else(|deadlock| panic!("{shape}: {deadlock}"));
                let peaks: Vec<u64> = (0..ranks).map(|rank| timeline.peak_bytes(&problem, rank)).collect();
                for least in least_memory(&problem) {
                    assert!(least.needed_bytes <= peaks[least.rank], "{shape}: {least:?}");
                }
                let limited = problem.with_limits(peaks.into_iter().map(Some).collect());
                assert_eq!(feasible(&limited), Ok(()), "{shape}");
                for objective in [Objective::Makespan, Objective::LongestSpan] {
                    let cost = timeline.cost_ns(objective);
                    for problem in [&problem, &limited] {
                        let bound = lower_bound(&problem.with_objective(objective));
                        assert!(bound.value_ns <= cost, "{shape}: {cost} below {bound:?}");
                    }
                }
            }
        }
        assert!(built > 0, "{} exists for no shape", published.name);
    }
    assert_eq!(widest, 1024);
}
