//! `pipeplan export`

use clap::ValueEnum;
use pipeplan_core::derive::derive;
use pipeplan_core::format::chrome_trace::ChromeTrace;
use pipeplan_core::format::{megatron_layout, svg, text, torch_csv};
use pipeplan_core::placement::Placement;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::Work;
use pipeplan_core::trace::Trace;

use super::fail::Failure;
use super::order::Order;
use super::{input, output};

/// Pixels of a drawing, and characters of a line: a page of paper.
const SVG_WIDTH: u32 = 1200;
const TEXT_WIDTH: usize = 200;

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format chrome-trace -o events.json    open it in ui.perfetto.dev
  pipeplan export trace.json --format chrome-trace -o events.json
  pipeplan export plan.json --format torch-csv -o order.csv         for torch.distributed.pipelining
  pipeplan export plan.json --format megatron                       for --pipeline-model-parallel-layout
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
    /// A drawing for papers and slides
    Svg,
    /// A drawing in characters
    Text,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    let text = if input::format_of(&source.text) == Some("pipeplan-trace") {
        of_trace(&input::trace_of(&source)?, args.format)?
    } else {
        of_plan(&args.order.plan_of(&source)?, args.format)?
    };
    output::write(&args.output, text.as_bytes())
}

fn of_plan(plan: &Plan, wanted: Format) -> Result<String, Failure> {
    let timeline = plan.timeline().map_err(Failure::input)?;
    Ok(match wanted {
        Format::ChromeTrace => {
            let mut trace = ChromeTrace::new();
            trace.plan(&format!("planned: {}", plan.schedule_name), &plan.problem, &timeline);
            trace.finish()
        }
        Format::TorchCsv => torch_csv::write(&plan.problem, &plan.schedule)
            .map_err(|absent| Failure::input(format!("torch cannot run this plan: {}", absent.reason)))?,
        Format::Megatron => layout(plan)?,
        Format::Svg => svg::draw(&timeline, &title(plan), SVG_WIDTH),
        Format::Text => format!("{}\n", text::draw(&timeline, TEXT_WIDTH)),
    })
}

/// Which parts of the model each stage holds, where Megatron would place them so.
fn layout(plan: &Plan) -> Result<String, Failure> {
    let Work::Model(work) = &plan.spec.work else {
        return Err(Failure::input("a layout is of a model's layers, and these costs are typed"));
    };
    let (placement, chunks) = (plan.problem.placement(), plan.problem.chunks());
    if !placement.same_as(&Placement::Looped, plan.problem.ranks(), chunks) {
        let name = placement.name().unwrap_or("a list");
        let text =
            format!("Megatron puts stage s on rank s mod P, and {} places stages as {name}", plan.schedule_name);
        return Err(Failure::input(text).with_help("plan it as 1f1b or interleaved-1f1b"));
    }
    let derived = derive(work, placement.clone(), chunks).map_err(Failure::input)?;
    let stages = megatron_layout::of_stages(&derived.stages, work.model.variant.multi_token);
    Ok(format!("{}\n", megatron_layout::write(&stages)))
}

fn title(plan: &Plan) -> String {
    let name = if plan.spec.name.is_empty() { String::new() } else { format!("{}: ", plan.spec.name) };
    let problem = &plan.problem;
    format!("{name}{}, {} ranks, {} microbatches", plan.schedule_name, problem.ranks(), problem.microbatches())
}

/// Of the steps of a trace all become events, and the last one is drawn.
fn of_trace(trace: &Trace, wanted: Format) -> Result<String, Failure> {
    if wanted == Format::ChromeTrace {
        let mut events = ChromeTrace::new();
        events.trace(&format!("measured on {} over {}", trace.backend, trace.transport), trace);
        return Ok(events.finish());
    }
    let Some(step) = trace.steps.last() else { return Err(Failure::input("the trace holds no steps")) };
    match wanted {
        Format::Svg => Ok(svg::draw(&step.timeline(), &format!("measured step {}", step.step), SVG_WIDTH)),
        Format::Text => Ok(format!("{}\n", text::draw(&step.timeline(), TEXT_WIDTH))),
        Format::ChromeTrace | Format::TorchCsv | Format::Megatron => {
            Err(Failure::input("a trace has no order of its own: export the plan that it was measured from"))
        }
    }
}
