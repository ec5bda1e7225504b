//! The pictures of schedules, drawn by `pipeplan export --format svg`.

use std::process::{Command, Stdio};

use pipeplan_core::schedule::published;
use serde_json::{Value, json};

use crate::commands::programs;
use crate::pages::{book, write_or_compare};

/// Four ranks, eight microbatches, or four sequences of four slices. F, B and W of a rank's layers take 2 µs each, however many
/// stages it holds; of F and of B, a share may be exchanges of experts.
fn problem(placement: &str, chunks: usize, [microbatches, slices]: [usize; 2], exchanged: usize) -> Value {
    let (ns, bytes) = (2000 / chunks, 4 / chunks);
    json!({
        "ranks": 4, "chunks": chunks, "microbatches": microbatches, "slices": slices, "placement": placement,
        "stages": {
            "forward_ns": ns, "backward_input_ns": ns, "backward_weight_ns": ns,
            "forward_bytes": bytes, "backward_input_bytes": 0, "backward_weight_bytes": -(bytes as i64),
            "forward_exchange_ns": ns * exchanged / 10, "backward_exchange_ns": ns * exchanged / 10,
        },
    })
}

#[test]
fn the_pictures_of_schedules_are_drawn_by_the_program() {
    for schedule in published() {
        let (placement, chunks) = (schedule.shape)(2);
        let count = if schedule.is_of_slices() { [16, 4] } else { [8, 1] };
        // It has pairs alone, which hide exchanges.
        let exchanged = if schedule.name == "combined-1f1b" { 4 } else { 0 };
        let problem = problem(placement.name().expect("a placement with a name"), chunks, count, exchanged);
        let plan = piped(&["plan", "-", "--schedule", schedule.name, "--json"], &problem.to_string());
        let drawing = piped(&["export", "-", "--format", "svg"], &plan);
        write_or_compare(&book().join(format!("pictures/{}.svg", schedule.name)), &drawing);
    }
}

/// What `pipeplan` prints with `input` on its standard input.
fn piped(arguments: &[&str], input: &str) -> String {
    use std::io::Write;
    let mut command = Command::new(programs().join("pipeplan"));
    let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
