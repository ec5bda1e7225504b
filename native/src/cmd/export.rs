//! `pipeplan export`

use clap::ValueEnum;
use pipeplan_core::base::json::format_of;
use pipeplan_core::formats::export;

use super::custom_schedule::Order;
use super::failure::Failure;
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format chrome-trace -o events.json    open it in ui.perfetto.dev
  pipeplan export trace.json --format chrome-trace -o events.json
  pipeplan export plan.json --format torch-csv -o order.csv         for torch.distributed.pipelining
  pipeplan export plan.json --format megatron                       for --pipeline-model-parallel-layout
  pipeplan export plan.json --format megatron-args                  all arguments that a 1f1b plan determines
  pipeplan export plan.json --format svg -o plan.svg";

/// Write a plan, or a measured trace, in another program's format.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, a trace, or a spec that is planned first; - for standard input
    plan: String,
    /// The format
    #[arg(long)]
    format: Format,
    #[command(flatten)]
    order: Order,
    /// Write here; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Events for ui.perfetto.dev and chrome://tracing
    ChromeTrace,
    /// The compute-only order that torch.distributed.pipelining loads
    TorchCsv,
    /// The layers of each stage in Megatron's form, which a spec's `parallel.partition` reads too
    Megatron,
    /// What the plan decides, as arguments of Megatron-LM in a Bash array; of 1f1b and interleaved-1f1b
    MegatronArgs,
    /// A drawing for papers and slides
    Svg,
    /// A drawing in characters
    Text,
}

impl Format {
    fn of_core(self) -> export::Format {
        match self {
            Format::ChromeTrace => export::Format::ChromeTrace,
            Format::TorchCsv => export::Format::TorchCsv,
            Format::Megatron => export::Format::Megatron,
            Format::MegatronArgs => export::Format::MegatronArgs,
            Format::Svg => export::Format::Svg,
            Format::Text => export::Format::Text,
        }
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    let format = args.format.of_core();
    let text = if format_of(&source.text) == Some("pipeplan-trace") {
        if args.order.is_given() {
            return Err(Failure::input("--order applies to plans; this file is a trace"));
        }
        export::of_trace(&input::trace_of(&source)?, format)
    } else {
        export::of_plan(&args.order.plan_of(&source)?, format)
    };
    output::write(&args.output, text.map_err(Failure::input)?.as_bytes())
}
