//! Times the lower bound: `cargo run --release -p pipeplan-exact --example time_bound`.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::problem::{Objective, PlacementChoice, Statement};

fn main() {
    for (ranks, chunks, microbatches, placement) in [
        (8, 1, 24, "linear"),
        (8, 2, 24, "v"),
        (32, 1, 256, "linear"),
        (32, 2, 256, "v"),
        (32, 4, 256, "looped"),
        (64, 1, 1024, "linear"),
        (1024, 1, 1024, "linear"),
        (16, 64, 256, "wave"),
    ] {
        let statement = Statement::read(&serde_json::json!({
            "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
            "stages": { "forward_ns": 18_522, "backward_input_ns": 18_086, "backward_weight_ns": 9_337,
                        "forward_bytes": 201_216, "backward_input_bytes": -127_488, "backward_weight_bytes": -73_728 },
            "transfer_ns": 601, "limit_bytes": 201_216u64 * ranks as u64 * chunks as u64,
        }))
        .expect("a problem");
        let PlacementChoice::Fixed(placement) = statement.placement.clone() else { continue };
        let problem = statement.problem(placement).expect("fits");
        for objective in [Objective::LongestSpan, Objective::Makespan] {
            let problem = problem.with_objective(objective);
            let start = std::time::Instant::now();
            let bound = lower_bound(&problem);
            println!(
                "{ranks:5} x {chunks:2} x {microbatches:5} {:12} {:8.3} ms  {}: {}",
                objective.name(),
                start.elapsed().as_secs_f64() * 1e3,
                bound.value_ns,
                bound.binding
            );
        }
    }
}
