//! Walk-through: add a schedule.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::check_schedule;
use pipeplan_core::problem::op::OpKind;
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::schedule::Row;
use pipeplan_core::simulate::simulate;
use serde_json::json;

// ANCHOR: rule
/// 1F1B with a split backward, whose W all run after the last B: close to 2BP (arXiv:2405.18047). A rank sends each
/// input gradient as early as it can. It keeps what W needs of all microbatches.
///
/// Makespan with equal stages and free transfers: `(M + P − 1)(F + B) + M·W`.
pub fn late_weights(problem: &Problem) -> Schedule {
    let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
    let rows = (0..stages).map(|stage| {
        let mut row = Row::new(stages);
        let warm_up = (stages - 1 - stage).min(microbatches);
        row.repeat(warm_up, stage, OpKind::F); // fill the pipe
        for _ in warm_up..microbatches {
            row.push(stage, OpKind::F); // one in, one out
            row.push(stage, OpKind::B);
        }
        row.repeat(warm_up, stage, OpKind::B); // drain
        row.repeat(microbatches, stage, OpKind::W);
        row.into_ops()
    });
    Schedule::of(rows.collect())
}
// ANCHOR_END: rule

// ANCHOR: judge
/// A pipeline of equal stages, one on each rank, with the costs of F, B and W.
fn problem(ranks: usize, microbatches: usize, [f, b, w]: [u64; 3]) -> Problem {
    let statement = Statement::read(&json!({
        "ranks": ranks, "microbatches": microbatches, "placement": "linear",
        "stages": {
            "forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w,
            "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1,
        },
    }));
    let statement = statement.expect("a problem without faults");
    statement.problem(pipeplan_core::problem::placement::Placement::Linear).expect("the placement of the problem")
}

#[test]
fn it_is_valid_and_takes_the_time_of_its_formula() {
    for (ranks, microbatches) in [(1, 1), (2, 2), (4, 8), (8, 24)] {
        for costs in [[1, 1, 1], [18, 19, 9], [50, 55, 45]] {
            let problem = problem(ranks, microbatches, costs);
            let schedule = late_weights(&problem);
            // The checker shares no code with schedules: it decides whether the order is valid.
            assert_eq!(check_schedule(&problem, &schedule), Ok(()));
            let timeline = simulate(&problem, &schedule).expect("a valid order ends");
            let (p, m, [f, b, w]) = (ranks as u64, microbatches as u64, costs);
            assert_eq!(timeline.makespan_ns(), (m + p - 1) * (f + b) + m * w);
            // No valid schedule is faster than the bound.
            assert!(lower_bound(&problem).value_ns <= timeline.makespan_ns());
        }
    }
}
// ANCHOR_END: judge

// ANCHOR: memory
#[test]
fn it_keeps_what_w_needs_of_all_microbatches() {
    let problem = problem(4, 8, [1, 1, 1]);
    let timeline = simulate(&problem, &late_weights(&problem)).expect("a valid order ends");
    // F takes 2 bytes, B gives 1 back, W the other: the last rank holds one byte of each microbatch, and one more in F.
    assert_eq!(timeline.peak_bytes(&problem, 3), 8 + 1);
}
// ANCHOR_END: memory
