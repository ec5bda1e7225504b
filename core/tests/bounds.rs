//! Bounds against closed forms that papers and exact solvers give.

use pipeplan_core::bounds::{Binding, feasible, least_memory, lower_bound};
use pipeplan_core::problem::{Objective, PlacementChoice, Problem, Statement};
use pipeplan_core::schedule;
use pipeplan_core::simulate::simulate;
use serde_json::{Value, json};

fn problem(value: Value) -> Problem {
    let statement = Statement::read(&value).unwrap_or_else(|faults| panic!("{faults}"));
    let PlacementChoice::Fixed(placement) = statement.placement.clone() else { panic!("no placement") };
    statement.problem(placement).unwrap_or_else(|fault| panic!("{fault}"))
}

fn stages(times: [u64; 3], bytes: [i64; 3]) -> Value {
    json!({ "forward_ns": times[0], "backward_input_ns": times[1], "backward_weight_ns": times[2],
            "forward_bytes": bytes[0], "backward_input_bytes": bytes[1], "backward_weight_bytes": bytes[2] })
}

/// Unit times on a linear pipeline: with room for k of p to 2p − 1 microbatches a rank the least bubble is
/// 2p − 1 − k (proved with CP-SAT for p = 4, m = 8); the zero-bubble paper's scheduler reaches it.
#[test]
fn unit_times_meet_the_known_optimum() {
    for (ranks, microbatches) in [(2, 4), (4, 8), (4, 13), (8, 16), (32, 64)] {
        for room in ranks..2 * ranks {
            let problem = problem(json!({
                "ranks": ranks, "microbatches": microbatches, "objective": "longest_span",
                "stages": stages([1, 1, 1], [1, 0, -1]), "limit_bytes": room,
            }));
            let bound = lower_bound(&problem).value_ns;
            assert_eq!(
                bound,
                (3 * microbatches + 2 * ranks - 1 - room) as u64,
                "P={ranks} M={microbatches} k={room}"
            );
        }
    }
}

/// With room for one or two of four microbatches CP-SAT proves 72 and 41 (`own_exact_frontier` of the reference
/// tables): one at a time; and the backward of each passing the forward of the next.
#[test]
fn room_for_one_or_two_microbatches_meets_the_known_optimum() {
    for (room, best) in [(1, 72), (2, 41)] {
        for objective in ["longest_span", "makespan"] {
            let problem = problem(json!({
                "ranks": 4, "microbatches": 8, "objective": objective, "placement": "linear",
                "stages": stages([1, 1, 1], [1, 0, -1]), "limit_bytes": room,
            }));
            assert_eq!(lower_bound(&problem).value_ns, best, "room for {room}, {objective}");
        }
    }
}

/// `max(m (F + B + W), (m + p − 1)(F + B) + 2 (p − 1) c + W)` where memory is free: SCHEDULES' bound 2.
#[test]
fn free_memory_leaves_the_way_and_the_work() {
    for (p, m, [f, b, w], c) in
        [(8u64, 24u64, [18_522, 18_086, 9_337], 601), (4, 4, [5, 6, 2], 1), (16, 48, [3, 3, 2], 0)]
    {
        let problem = problem(json!({
            "ranks": p, "microbatches": m, "objective": "longest_span",
            "stages": stages([f, b, w], [1, 0, -1]), "transfer_ns": c,
        }));
        let way = (m + p - 1) * (f + b) + 2 * (p - 1) * c + w;
        assert_eq!(lower_bound(&problem).value_ns, way.max(m * (f + b + w)));
    }
}

/// Chunks of 1.441, 1.438, 0.968 ms and hops of 0.161 ms on a V with room for 2p chunks: 66.311 ms is the best,
/// as the exact solver proves in seconds; fill and drain of the last rank are all of the bubble.
#[test]
fn fill_and_drain_close_the_gap_of_a_v() {
    let problem = problem(json!({
        "ranks": 4, "chunks": 2, "placement": "v", "microbatches": 8, "objective": "longest_span",
        "stages": stages([1441, 1438, 968], [1, 0, -1]), "transfer_ns": 161, "limit_bytes": 8,
    }));
    let bound = lower_bound(&problem);
    assert_eq!(bound.value_ns, 66_311);
    let fill = 3 * (1438 + 2 * 161 - 1441);
    let drain = 6 * (1441 - 968 + 2 * 161) - 968;
    assert_eq!(
        bound.binding,
        Binding::Memory { rank: 3, load_ns: 8 * 2 * (1441 + 1438 + 968), fill_ns: fill, drain_ns: drain }
    );
}

/// The last rank of a V runs two stages one after the other. With room for `n` microbatches on both, F of the later one
/// waits for B of the `n`-th before it, `2 (P − 1)` ops later; and between them the rank runs W, B and W, to make room,
/// and F of the stage before, for which there was none. No schedule for one microbatch after the other that repeats is
/// faster either (CP-SAT, P = 8 with room for 4 and P = 4 with room for 2).
#[test]
fn the_last_rank_of_a_v_makes_room_and_fills_it_between_two_of_its_ops() {
    for (ranks, at_once) in [(4, 1), (8, 2), (8, 3)] {
        let bound = |microbatches: usize| {
            let problem = problem(json!({
                "ranks": ranks, "chunks": 2, "placement": "v", "microbatches": microbatches,
                "objective": "makespan", "stages": stages([1, 1, 1], [1, 0, -1]), "limit_bytes": 2 * at_once,
            }));
            lower_bound(&problem).value_ns
        };
        let round = 2 * (ranks as u64 - 1) + 6;
        assert_eq!(bound(30 + at_once) - bound(30), round, "P={ranks} room for {at_once}");
    }
}

/// No published schedule is below the bound of its problem under the memory that it takes.
#[test]
fn no_published_schedule_is_below_the_bound() {
    for (ranks, microbatches) in [(1, 3), (2, 4), (4, 6), (4, 16), (6, 12)] {
        for published in schedule::published() {
            for chunks in 1..4 {
                let (placement, chunks) = (published.shape)(chunks);
                let mut statement = Statement::read(&json!({
                    "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": "any",
                    "stages": stages([100, 110, 70], [20, -9, -11]), "transfer_ns": 7,
                    "backward": if published.splits_backward { "split" } else { "fused" },
                }))
                .unwrap_or_else(|faults| panic!("{faults}"));
                statement.placement = PlacementChoice::Any;
                let Ok(problem) = statement.problem(placement) else { continue };
                let Ok(schedule) = published.build(&problem) else { continue };
                let timeline = simulate(&problem, &schedule).unwrap_or_else(|deadlock| panic!("{deadlock}"));
                let peaks = (0..ranks).map(|rank| Some(timeline.peak_bytes(&problem, rank))).collect();
                let problem = problem.with_limits(peaks);
                assert!(feasible(&problem).is_ok(), "{}", published.name);
                for objective in [Objective::Makespan, Objective::LongestSpan] {
                    let bound = lower_bound(&problem.with_objective(objective));
                    let cost = timeline.cost_ns(objective);
                    assert!(bound.value_ns <= cost, "{} {cost} below {bound:?}", published.name);
                }
            }
        }
    }
}

#[test]
fn least_memory_names_rank_and_op() {
    let problem = problem(json!({
        "ranks": 2, "chunks": 2, "placement": "v", "microbatches": 3, "static_bytes": [100, 0],
        "stages": [stages([1, 1, 1], [4, -1, -3]), stages([1, 1, 1], [5, 0, -5]),
                   stages([1, 1, 1], [6, 2, -8]), stages([1, 1, 1], [7, -7, 0])],
        "limit_bytes": [111, 12],
    }));
    let least = least_memory(&problem);
    // Rank 0 holds stages 0 and 3: 4 + 7 while F of stage 3 runs. Rank 1 holds 1 and 2: 5 + 6 + 2 in B of 2.
    assert_eq!((least[0].needed_bytes, least[0].serial_bytes, least[0].op.to_string().as_str()), (111, 111, "3F2"));
    assert_eq!((least[1].needed_bytes, least[1].serial_bytes, least[1].op.to_string().as_str()), (13, 13, "2B2"));
    let infeasible = feasible(&problem).expect_err("12 is less than 13");
    assert_eq!((infeasible.rank, infeasible.needed_bytes, infeasible.limit_bytes), (1, 13, 12));
}
