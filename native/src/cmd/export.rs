//! `pipeplan export`

use clap::ValueEnum;
use pipeplan_core::format;

use super::fail::Failure;
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format chrome-trace -o trace.json    open in ui.perfetto.dev or chrome://tracing
  pipeplan export plan.json --format text";

/// Write a plan in another program's format.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    /// The format
    #[arg(long)]
    format: Format,
    /// Write here; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A drawing in characters
    Text,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let plan = input::plan(&args.plan)?;
    let timeline = plan.timeline().map_err(Failure::input)?;
    let text = match args.format {
        Format::Text => format!("{}\n", format::text::draw(&timeline, 200)),
    };
    output::write(&args.output, text.as_bytes())
}
