//! `pipeplan export`

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pipeplan_core::base::json::format_of;
use pipeplan_core::formats::export::{self, Format};

use super::custom_schedule::Order;
use pipeplan_core::formats::paddle_log;
use pipeplan_core::trace::Trace;

use super::failure::Failure;
use super::{format, input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format chrome-trace -o events.json    open it in ui.perfetto.dev
  pipeplan export trace.json --format perfetto -o events.pftrace     the same, smaller
  pipeplan export trace.json --format paddle-log -o log             a folder of workerlog.N
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
    #[arg(long, value_parser = formats())]
    format: Format,
    #[command(flatten)]
    order: Order,
    /// Write here; - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: String,
}

/// The formats of the planner, with what each is for.
fn formats() -> impl TypedValueParser<Value = Format> {
    let named = Format::NAMED.map(|(name, format)| PossibleValue::new(name).help(format.about()));
    PossibleValuesParser::new(named).try_map(|name| Format::named(&name).ok_or("no such format"))
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    let format = args.format;
    if format == Format::PaddleLog && args.output != "-" && format_of(&source.text) == Some("pipeplan-trace") {
        return write_logs(&input::trace_of(&source)?, &args.output);
    }
    if format_of(&source.text) == Some("pipeplan-trace") {
        if args.order.is_given() {
            return Err(Failure::input("--order applies to plans; this file is a trace"));
        }
        let trace = input::trace_of(&source)?;
        return output::write_pieces(&args.output, |sink| {
            export::write_trace(&trace, format, sink).map_err(Failure::input)
        });
    }
    let plan = if args.order.is_given() {
        args.order.plan_of(&source)?
    } else {
        input::plan_if(&source, |spec| export::check_spec(spec, format).map_err(Failure::input))?
    };
    output::write_pieces(&args.output, |sink| export::write_plan(&plan, format, sink).map_err(Failure::input))
}

/// A file for each rank, as Paddle's launcher names them.
fn write_logs(trace: &Trace, folder: &str) -> Result<(), Failure> {
    let logs = paddle_log::write(trace).map_err(Failure::input)?;
    std::fs::create_dir_all(folder).map_err(|error| Failure::work(format!("{folder} cannot be written: {error}")))?;
    for (rank, log) in logs.iter().enumerate() {
        output::write(&format!("{folder}/workerlog.{rank}"), log.as_bytes())?;
    }
    output::print(&format!("logs          {} in {folder}\n", format::count(logs.len(), "file")))
}
