//! What a person does with the command, wrong input included.

use command::printed;

#[path = "../command/mod.rs"]
mod command;
mod compare;
mod export;
mod input;
mod link;
mod memory;
mod nsight;
mod output;
mod plan;
mod profile;
mod run;
mod schema;
mod search;
mod serve;

const PROBLEM: &str = r#"{ "ranks": 4, "chunks": 2, "microbatches": 8, "placement": "v",
  "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
              "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
  "transfer_ns": 5, "static_bytes": 0, "limit_bytes": 16, "objective": "longest_span" }"#;

const TINY: &str = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 2\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 2\nsequence = 16\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"))
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_string_lossy().into_owned()
}

fn write(path: &str, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// A checkpoint of the tiny model in `folder`, after six steps.
fn trained(folder: &tempfile::TempDir) -> String {
    let checkpoint = path(folder, "run");
    printed(&["run", "-", "--steps", "6", "--json", "--checkpoint-dir", &checkpoint], TINY);
    checkpoint
}
