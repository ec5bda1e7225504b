//! Writes the trace of a made-up cluster, to try programs on large ones: 64 pipelines of 16 ranks, with some 1,000 spans a rank and
//! step, is `cargo run --release -p pipeplan-core --example cluster_trace -- FOLDER 16 64 166 10`.
//!
//! `FOLDER/problem.json` is the problem that ran: `pipeplan plan problem.json --schedule 1f1b` makes its plan.

use std::path::PathBuf;

#[path = "../benches/common/mod.rs"]
mod common;
#[path = "../benches/common/trace.rs"]
mod made;

use common::problem;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, ranks, copies, microbatches, steps] = &arguments[..] else {
        return Err("give FOLDER RANKS COPIES MICROBATCHES STEPS".into());
    };
    let folder = PathBuf::from(folder);
    let (problem, _, trace) = made::made(ranks.parse()?, copies.parse()?, microbatches.parse()?, steps.parse()?);
    println!("{} spans", made::spans(&trace));
    std::fs::write(folder.join("problem.json"), format!("{{\"problem\":{}}}", problem.statement().to_value()))?;
    std::fs::write(folder.join("trace.json"), trace.to_json())?;
    Ok(())
}
