//! `pipeplan schema`

use super::fail::Failure;
use super::output;

/// Print the JSON Schema of a plan file.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  pipeplan schema > plan.schema.json")]
pub struct Args {}

pub fn run(_: Args) -> Result<(), Failure> {
    output::print_bytes(pipeplan_core::plan::SCHEMA.as_bytes())
}
