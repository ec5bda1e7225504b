//! `pipeplan show`

use pipeplan_core::api::rows_of;
use pipeplan_core::base::json::format_of;
use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::check_program;
use pipeplan_core::plan::{Plan, TRANSPORTS};
use pipeplan_core::program::Transport;
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::lower::{self, Lowering};
use pipeplan_core::program::{Program, Step};
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::trace::Trace;
use serde_json::{Map, Value, json};

use super::custom_schedule::Order;
use super::failure::Failure;
use super::selection::Parts;
use super::{analysis, exact_search, format, input, output, plan_summary, search};
use pipeplan_exact::Proof;

const EXAMPLES: &str = "\
Examples:
  pipeplan show plan.json
  pipeplan show trace.json --step 3
  pipeplan show trace.json --analysis                 where the time went, and who is slow
  pipeplan show trace.json --analysis --plan plan.json --steps 5..8
  pipeplan show problem.json --order mine.txt
  pipeplan show plan.json --passes --lowering overlapped:1
  pipeplan show plan.json --json | jq '.rows[0][:3]'";

/// Show a plan or a measured trace: the timeline of each rank, and its figures.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, a trace, or a spec that is planned first; - for standard input
    plan: String,
    /// For a trace: the training step; default: the last one
    #[arg(long)]
    step: Option<u64>,
    /// Show the op list of each rank instead, after each pass that adds transfers, and the predicted makespan on each
    /// transport that completes it
    #[arg(long)]
    passes: bool,
    /// With --passes: lower the plan's order to transfers in this way: in-pieces, receive-first, grouped, overlapped
    /// or overlapped:2; default: that of the plan
    #[arg(long, value_name = "HOW", value_parser = search::lowering, requires = "passes")]
    lowering: Option<Lowering>,
    /// For a trace: show instead where the time of each rank went, what a step would take otherwise, and who is slow
    #[arg(long)]
    analysis: bool,
    /// With --analysis: the plan that ran; ranks that were planned to do more are then not taken for slow ones
    #[arg(long = "plan", value_name = "PLAN", requires = "analysis")]
    ran: Option<String>,
    #[command(flatten)]
    parts: Parts,
    #[command(flatten)]
    order: Order,
    /// Print JSON: start and end of every op
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    if format_of(&source.text) == Some("pipeplan-trace") {
        if args.passes || args.order.is_given() {
            return Err(Failure::input("--order and --passes apply to plans; this file is a trace"));
        }
        let trace = args.parts.of(input::trace_of(&source)?)?;
        if args.analysis {
            return analysis::show(&trace, args.ran.as_deref(), args.json);
        }
        return show_trace(&trace, &args);
    }
    if args.parts.is_given() || args.analysis {
        return Err(Failure::input("--steps, --ranks, --jobs and --analysis apply to traces"));
    }
    if args.step.is_some() {
        return Err(Failure::input("--step applies to traces; a plan has one step"));
    }
    let plan = args.order.plan_of(&source)?;
    if args.passes {
        return show_passes(&plan, &args);
    }
    if !args.json {
        return print_plan(&plan, None);
    }
    let timeline = timeline(&plan)?;
    let mut value = json!({ "schedule": plan.schedule_name, "digest": plan.digest(), "rows": rows_of(&timeline) });
    value["prediction"] = plan.to_value()["prediction"].take();
    output::print_json(&value)
}

/// Prints a plan for a person, with what was proved of it.
pub fn print_plan(plan: &Plan, proved: Option<&Proof>) -> Result<(), Failure> {
    let timeline = timeline(plan)?;
    let mut shown = format::drawing(&timeline);
    shown.push('\n');
    let proved_ns = proved.map(|proved| proved.lower_ns);
    shown.push_str(&plan_summary::summary(plan, proved_ns));
    let bound = lower_bound(&plan.problem);
    // An exact search has no reason that a line could give.
    if proved_ns.is_none_or(|proved_ns| proved_ns <= bound.value_ns) {
        shown.push_str(&format!("because       {}\n", format::spelled(&bound.binding.to_string())));
    }
    if let Some(proved) = proved {
        shown.push_str(&exact_search::sentence(proved, plan));
    }
    output::print(&shown)
}

/// The program after each pass; of a rank only what a pass has changed.
fn show_passes(plan: &Plan, args: &Args) -> Result<(), Failure> {
    let lowering = args.lowering.unwrap_or(plan.spec.messages.lowering);
    let passes = lower::passes(&plan.problem, &plan.schedule, lowering).map_err(Failure::input)?;
    if args.json {
        let passes = passes.iter().map(|pass| {
            let makespans: Map<String, Value> = makespans(plan, &pass.program)
                .map(|(transport, makespan)| (transport.to_string(), json!(makespan)))
                .collect();
            json!({
                "name": pass.name, "does": pass.does, "rows": pass.program.text_rows(), "makespan_ns": makespans,
            })
        });
        return output::print_json(
            &json!({ "lowering": lowering.to_string(), "passes": passes.collect::<Vec<_>>() }),
        );
    }
    let mut shown = String::from("schedule: the order of compute\n");
    let mut before = plan.schedule.text_rows();
    for (rank, row) in before.iter().enumerate() {
        shown.push_str(&format!("  {rank} | {row}\n"));
    }
    for pass in passes {
        shown.push_str(&format!("{}: {}\n", pass.name, pass.does));
        let rows = pass.program.text_rows();
        for (rank, (row, before)) in rows.iter().zip(&before).enumerate() {
            let row = if row == before { "unchanged" } else { row };
            shown.push_str(&format!("  {rank} | {row}\n"));
        }
        let times: Vec<String> = makespans(plan, &pass.program)
            .map(|(transport, makespan)| match makespan {
                Some(makespan) => format!("{} {transport}", format::duration(makespan)),
                None => format!("hangs {transport}"),
            })
            .collect();
        shown.push_str(&format!("  makespan: {}\n", times.join(", ")));
        before = rows;
    }
    output::print(&shown)
}

/// The predicted makespan of `program`, which may lack its optimizer's steps, on each transport; nothing where it hangs.
fn makespans<'a>(plan: &'a Plan, program: &Program) -> impl Iterator<Item = (Transport, Option<Nanos>)> + use<'a> {
    let mut program = program.clone();
    for row in program.rows.iter_mut().filter(|row| row.last() != Some(&Step::Optimizer)) {
        row.push(Step::Optimizer);
    }
    TRANSPORTS.into_iter().map(move |transport| {
        let completes = check_program(&plan.problem, &program, transport).is_ok();
        let run = || execute(&plan.problem, &program, &plan.schedule.pairs, Carrier::of(transport));
        let timeline = completes.then(run).flatten();
        (transport, timeline.map(|timeline| timeline.makespan_ns()))
    })
}

fn timeline(plan: &Plan) -> Result<Timeline, Failure> {
    plan.timeline().map_err(Failure::input)
}

fn show_trace(trace: &Trace, args: &Args) -> Result<(), Failure> {
    let step = match args.step {
        Some(number) => trace.steps.iter().find(|step| step.step == number),
        None => trace.steps.last(),
    };
    let Some(step) = step else {
        let known = match (trace.steps.first(), trace.steps.last()) {
            (Some(first), Some(last)) => format!("steps {} to {}", first.step, last.step),
            _ => "no steps".to_owned(),
        };
        return Err(Failure::input(format!("the trace does not have this step; it has {known}")));
    };
    let timeline = step.timeline();
    if args.json {
        return output::print_json(&json!({
            "step": step.step, "loss": step.loss, "tokens": step.tokens, "rows": rows_of(&timeline),
            "makespan_ns": timeline.makespan_ns(), "peak_bytes": trace.peak_bytes,
        }));
    }
    let mut shown = format::drawing(&timeline);
    shown.push('\n');
    let loss = step.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
    let tokens = if step.tokens > 0 { format!(", {} tokens", step.tokens) } else { String::new() };
    shown.push_str(&format!("step {} of {} recorded{tokens}{loss}\n", step.step, trace.steps.len()));
    shown.push_str(&format!(
        "makespan      {}, measured on {} over {}\n",
        format::duration(timeline.makespan_ns()),
        trace.backend,
        trace.transport
    ));
    if let Some(overhead_ns) = trace.overhead_ns {
        shown.push_str(&format!(
            "overhead      {:.1} us per op: from the earliest possible start to its start\n",
            overhead_ns as f64 / 1e3
        ));
    }
    shown.push_str(&peak_memory(&trace.peak_bytes));
    output::print(&shown)
}

/// The peak of each rank; of more than a line holds, the least and the most.
fn peak_memory(peaks: &[Bytes]) -> String {
    const SHOWN: usize = 16;
    let most = peaks.iter().enumerate().max_by_key(|(rank, bytes)| (**bytes, core::cmp::Reverse(*rank)));
    let (Some(least), Some((rank, most))) = (peaks.iter().min(), most) else { return String::new() };
    if peaks.len() > SHOWN {
        let (least, most) = (format::bytes(*least), format::bytes(*most));
        return format!("peak memory   {least} to {most}, the most on rank {rank}\n");
    }
    let peaks: Vec<String> = peaks.iter().map(|bytes| format::bytes(*bytes)).collect();
    format!("peak memory   {} by rank\n", peaks.join(", "))
}
