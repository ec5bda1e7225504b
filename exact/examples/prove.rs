//! Proves the best schedule of each problem in the files given, and prints it beside the bound.
//!
//! `cargo run --release -p pipeplan-exact --example prove -- SECONDS FILE...`; a file holds one problem or a
//! list of them.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::placement::Placement;
use pipeplan_core::problem::{PlacementChoice, Statement};
use pipeplan_exact::{Budget, solve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().ok_or("seconds for each problem")?.parse()?;
    for path in arguments {
        let value: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        for value in value.as_array().cloned().unwrap_or_else(|| vec![value]) {
            let statement = Statement::read(&value).map_err(|faults| format!("{faults:?}"))?;
            let placement = match &statement.placement {
                PlacementChoice::Fixed(placement) => placement.clone(),
                PlacementChoice::Any => Placement::Wave,
            };
            let problem = statement.problem(placement).map_err(|fault| format!("{fault:?}"))?;
            let bound = lower_bound(&problem);
            let start = std::time::Instant::now();
            match solve(&problem, None, &Budget::seconds(seconds)) {
                Ok(exact) => println!(
                    "{} found, {} proved, {} bound ({:.2} %), {:.2} s: {}",
                    exact.value_ns,
                    exact.lower_ns,
                    bound.value_ns,
                    100.0 * (exact.value_ns as f64 / bound.value_ns as f64 - 1.0),
                    start.elapsed().as_secs_f64(),
                    bound.binding
                ),
                Err(error) => println!("{error}"),
            }
        }
    }
    Ok(())
}
