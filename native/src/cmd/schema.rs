//! `pipeplan schema`

use pipeplan_core::hardware::profile;
use pipeplan_core::{plan, trace};
use serde_json::{Value, json};

use super::failure::Failure;
use super::{exact_search, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan schema > plan.schema.json
  pipeplan schema problem > problem.schema.json";

/// Print the JSON Schema of a file.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The kind of file
    #[arg(default_value = "plan")]
    file: File,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum File {
    /// What `pipeplan plan` writes
    Plan,
    /// What it reads, as JSON or TOML
    Spec,
    /// Typed costs alone
    Problem,
    /// What `pipeplan run --trace` writes
    Trace,
    /// What `pipeplan profile -o` writes, and `--profile` reads
    Profile,
    /// What `pipeplan plan --prove --proof` writes
    Proof,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let part = match args.file {
        File::Plan => return output::print_bytes(plan::SCHEMA.as_bytes()),
        File::Trace => return output::print_bytes(trace::SCHEMA.as_bytes()),
        File::Profile => return output::print_bytes(profile::SCHEMA.as_bytes()),
        File::Proof => return output::print_bytes(exact_search::SCHEMA.as_bytes()),
        File::Spec => "spec",
        File::Problem => "problem",
    };
    let mut plan: Value = serde_json::from_str(plan::SCHEMA).map_err(Failure::work)?;
    output::print_json(&json!({
        "$schema": plan["$schema"].take(),
        "$id": format!("urn:pipeplan:schema:{part}:1"),
        "title": format!("pipeplan {part}"),
        "$ref": format!("#/$defs/{part}"),
        "$defs": plan["$defs"].take(),
    }))
}
