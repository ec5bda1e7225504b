//! A plan, or a measured trace, in another program's format.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::ops::ControlFlow;

use crate::base::fields::Faults;
use crate::base::units::Nanos;
use crate::estimate::derive::derive;
use crate::formats::events::{self, Chrome, Events, Perfetto, Sink};
use crate::formats::frameworks::Shown;
use crate::formats::{megatron_args, paddle_log, svg, text};
use crate::model::StageLayout;
use crate::notation::{megatron_layout, torch_csv};
use crate::plan::{Plan, holding_of_rank};
use crate::problem::placement::Placement;
use crate::schedule::Absent;
use crate::simulate::Deadlock;
use crate::simulate::timeline::Timeline;
use crate::spec::{Spec, Target, Work};
use crate::trace::Trace;

/// Pixels of a drawing, and characters of a line: a page of paper.
const SVG_WIDTH: u32 = 1200;
const TEXT_WIDTH: usize = 200;

/// Another program's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Events for ui.perfetto.dev and chrome://tracing.
    ChromeTrace,
    /// The same events in Perfetto's own format, protobuf.
    Perfetto,
    /// The compute-only order that torch.distributed.pipelining loads.
    TorchCsv,
    /// The layers of each stage in Megatron's form, which a spec's `parallel.partition` reads too.
    Megatron,
    /// What the plan decides, as arguments of Megatron-LM.
    MegatronArgs,
    /// A drawing for papers and slides.
    Svg,
    /// A drawing in characters.
    Text,
    /// The job log of PaddlePaddle's workers.
    PaddleLog,
    /// A table: a line for each op, transfer, optimizer step and collective.
    Csv,
}

impl Format {
    /// Every format with its name.
    pub const NAMED: [(&'static str, Format); 9] = [
        ("chrome-trace", Format::ChromeTrace),
        ("perfetto", Format::Perfetto),
        ("torch-csv", Format::TorchCsv),
        ("megatron", Format::Megatron),
        ("megatron-args", Format::MegatronArgs),
        ("svg", Format::Svg),
        ("text", Format::Text),
        ("paddle-log", Format::PaddleLog),
        ("csv", Format::Csv),
    ];

    /// The format of this name.
    pub fn named(name: &str) -> Option<Format> {
        Format::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }

    /// What the format is for, for people.
    pub const fn about(self) -> &'static str {
        match self {
            Format::ChromeTrace => "Events for ui.perfetto.dev and chrome://tracing",
            Format::Perfetto => "The same events in Perfetto's protobuf, a third of the size: for long traces",
            Format::TorchCsv => "The compute-only order that torch.distributed.pipelining loads",
            Format::Megatron => {
                "The layers of each stage in Megatron's form, which a spec's `parallel.partition` reads too"
            }
            Format::MegatronArgs => {
                "What the plan decides, as arguments of Megatron-LM in a Bash array; of 1f1b, interleaved-1f1b \
                 and combined-1f1b"
            }
            Format::Svg => "A drawing for papers and slides",
            Format::Text => "A drawing in characters",
            Format::PaddleLog => "The job log of PaddlePaddle's workers, of a trace: with -o a folder of workerlog.N",
            Format::Csv => "A table: a line for each op, transfer, optimizer step and collective, with start and end",
        }
    }
}

/// Why there is no such export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The plan's order cannot run. This never happens to a plan that the planner made or that was read.
    Deadlock(Deadlock),
    /// torch cannot run the plan.
    Torch(Absent),
    /// A layout needs a model's layers; the costs are typed.
    Typed,
    /// Megatron has no such placement.
    Placement {
        /// The schedule.
        schedule: String,
        /// How it places stages.
        placement: &'static str,
    },
    /// Megatron-LM has no such schedule.
    Schedule(String),
    /// Megatron-LM refuses such a run, for these reasons.
    Megatron(Vec<String>),
    /// The model's stages do not follow from the plan's spec.
    Spec(Faults),
    /// The trace holds no training step.
    NoSteps,
    /// The format is no text.
    Binary,
    /// A trace holds no order.
    OfTrace,
    /// A plan has no log: only what ran has.
    OfPlan,
    /// The trace's steps could not be told apart in a log.
    Log(Faults),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Deadlock(deadlock) => fmt::Display::fmt(deadlock, f),
            ExportError::Torch(absent) => write!(f, "torch cannot run this plan: {}", absent.reason),
            ExportError::Typed => f.write_str("a layout needs a model's layers; these costs are typed"),
            ExportError::Placement { schedule, placement } => write!(
                f,
                "Megatron puts stage s on rank s mod P; the placement of {schedule} is {placement}: plan it as \
                 1f1b, interleaved-1f1b or combined-1f1b"
            ),
            ExportError::Schedule(schedule) => write!(
                f,
                "Megatron-LM runs {}; this plan's schedule is {schedule}: plan it with one of them",
                megatron_args::SCHEDULES.join(", ")
            ),
            ExportError::Megatron(reasons) => write!(f, "Megatron-LM refuses this plan: {}", reasons.join("; ")),
            ExportError::Spec(faults) => fmt::Display::fmt(faults, f),
            ExportError::NoSteps => f.write_str("the trace holds no steps"),
            ExportError::OfPlan => f.write_str("a plan has no log: export the trace of its run"),
            ExportError::Log(faults) => fmt::Display::fmt(faults, f),
            ExportError::Binary => f.write_str("this format is binary, not text: ask for its bytes"),
            ExportError::OfTrace => f.write_str("a trace holds no order: export the plan that it was measured from"),
        }
    }
}

impl core::error::Error for ExportError {}

/// Whether a plan of `spec` can be in this format, as far as its spec alone says: so that nobody searches for a plan that
/// cannot be written.
///
/// # Errors
/// [`ExportError`] where no plan of it can.
pub fn check_spec(spec: &Spec, format: Format) -> Result<(), ExportError> {
    let is_typed = !matches!(spec.work, Work::Model(_));
    match format {
        Format::PaddleLog => Err(ExportError::OfPlan),
        Format::Megatron | Format::MegatronArgs if is_typed => Err(ExportError::Typed),
        // The best schedule may be one of them, but a search is no way to find that out.
        Format::MegatronArgs if !megatron_args::has(&spec.schedule) => {
            Err(ExportError::Schedule(spec.schedule.clone()))
        }
        _ => Ok(()),
    }
}

/// The text of `plan` in this format.
///
/// # Errors
/// As [`write_plan`]; [`ExportError::Binary`] where the format is no text.
pub fn of_plan(plan: &Plan, format: Format) -> Result<String, ExportError> {
    text_of(|sink| write_plan(plan, format, sink))
}

/// The text of `trace` in this format.
///
/// # Errors
/// As [`write_trace`]; [`ExportError::Binary`] where the format is no text.
pub fn of_trace(trace: &Trace, format: Format) -> Result<String, ExportError> {
    text_of(|sink| write_trace(trace, format, sink))
}

fn text_of(write: impl FnOnce(Sink<'_>) -> Result<(), ExportError>) -> Result<String, ExportError> {
    let mut bytes = Vec::new();
    write(&mut |piece| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    })?;
    String::from_utf8(bytes).map_err(|_| ExportError::Binary)
}

/// What each rank of `plan` holds of its model; nothing where costs are typed.
fn holds(plan: &Plan) -> Vec<String> {
    let (Work::Model(work), Some(holders)) = (&plan.spec.work, plan.holders()) else { return Vec::new() };
    (0..plan.problem.ranks()).map(|rank| holding_of_rank(&holders, rank, &work.model)).collect()
}

/// Writes `plan` in this format to `sink`, piece by piece.
///
/// # Errors
/// [`ExportError`] where the format cannot express the plan.
pub fn write_plan(plan: &Plan, format: Format, sink: Sink<'_>) -> Result<(), ExportError> {
    let timeline = plan.timeline().map_err(ExportError::Deadlock)?;
    let text = match format {
        Format::ChromeTrace | Format::Perfetto => {
            let holds = holds(plan);
            with_events(format, sink, |to| {
                events::write_plan(to, &plan.schedule_name, &plan.problem, &timeline, &holds);
            });
            return Ok(());
        }
        Format::TorchCsv => torch_csv::write(&plan.problem, &plan.schedule).map_err(ExportError::Torch)?,
        Format::Megatron => format!("{}\n", layout(plan)?.1),
        Format::MegatronArgs => arguments(plan)?,
        Format::Svg => svg::draw(&timeline, &title(plan), SVG_WIDTH),
        Format::Text => format!("{}\n", text::draw(&timeline, TEXT_WIDTH)),
        Format::PaddleLog => return Err(ExportError::OfPlan),
        Format::Csv => ops_csv(&timeline),
    };
    let _ = sink(text.as_bytes());
    Ok(())
}

/// Gives the encoding of events that `format` has: Perfetto's protobuf, or else JSON.
fn with_events(format: Format, sink: Sink<'_>, write: impl FnOnce(&mut dyn Events)) {
    match format {
        Format::Perfetto => write(&mut Perfetto::new(sink)),
        _ => write(&mut Chrome::new(sink)),
    }
}

/// A line for each op of a timeline, and for each copy to and from the host, as [`Format::Csv`] of its plan has it.
pub fn ops_csv(timeline: &Timeline) -> String {
    let rows = timeline.rows.iter().enumerate();
    let spans = rows.flat_map(|(rank, row)| {
        let ops = row.iter().map(move |span| (0, rank, span.op.to_string(), [span.start_ns, span.end_ns]));
        let copies = timeline.copies_of(rank).iter();
        ops.chain(copies.map(move |span| (0, rank, span.copy.moved.to_string(), [span.start_ns, span.end_ns])))
    });
    let mut text = Vec::new();
    write_csv(spans, &mut |piece| {
        text.extend_from_slice(piece);
        ControlFlow::Continue(())
    });
    String::from_utf8(text).unwrap_or_default()
}

/// Bytes of a table that are gathered before they are handed on.
const PIECE: usize = 1 << 20;

/// Writes a line for each span: its step, its rank (copies of the pipeline one after the other), what was done, when.
fn write_csv<W: fmt::Display>(spans: impl Iterator<Item = (u64, usize, W, [Nanos; 2])>, sink: Sink<'_>) {
    let mut text = String::from("step,rank,what,start_ns,end_ns\n");
    for (step, rank, what, [start_ns, end_ns]) in spans {
        if text.len() >= PIECE {
            if sink(text.as_bytes()).is_break() {
                return;
            }
            text.clear();
        }
        let _ = writeln!(text, "{step},{rank},{what},{start_ns},{end_ns}");
    }
    let _ = sink(text.as_bytes());
}

/// A field of such a table: in quotes where it has signs of the table in it (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

/// What the plan decides, where Megatron-LM can do so.
fn arguments(plan: &Plan) -> Result<String, ExportError> {
    let Work::Model(work) = &plan.spec.work else { return Err(ExportError::Typed) };
    if !megatron_args::has(&plan.schedule_name) {
        return Err(ExportError::Schedule(plan.schedule_name.clone()));
    }
    let refusals = Shown::of(plan).refusals(Target::Megatron);
    if !refusals.is_empty() {
        return Err(ExportError::Megatron(refusals));
    }
    let (stages, layout) = layout(plan)?;
    Ok(megatron_args::write(work, &plan.schedule_name, &stages, &layout))
}

/// The stages, and the parts of the model that each holds, where Megatron has this placement.
fn layout(plan: &Plan) -> Result<(Vec<StageLayout>, String), ExportError> {
    let Work::Model(work) = &plan.spec.work else { return Err(ExportError::Typed) };
    let (placement, chunks) = (plan.problem.placement(), plan.problem.chunks());
    if !placement.same_as(&Placement::Looped, plan.problem.ranks(), chunks) {
        let placement = placement.name().unwrap_or("a list");
        return Err(ExportError::Placement { schedule: plan.schedule_name.clone(), placement });
    }
    let derived = derive(work, placement.clone(), chunks).map_err(ExportError::Spec)?;
    let parts = megatron_layout::of_stages(&derived.stages, work.model.variant.multi_token);
    Ok((derived.stages, megatron_layout::write(&parts)))
}

fn title(plan: &Plan) -> String {
    let name = if plan.spec.name.is_empty() { String::new() } else { format!("{}: ", plan.spec.name) };
    let problem = &plan.problem;
    format!("{name}{}, {} ranks, {} microbatches", plan.schedule_name, problem.ranks(), problem.microbatches())
}

/// Writes `trace` in this format to `sink`, piece by piece. All of its steps become events, and the last one is drawn.
///
/// # Errors
/// [`ExportError`] where the format is one of plans, or there is nothing to draw.
pub fn write_trace(trace: &Trace, format: Format, sink: Sink<'_>) -> Result<(), ExportError> {
    if matches!(format, Format::ChromeTrace | Format::Perfetto) {
        with_events(format, sink, |to| events::write_trace(to, "measured", trace));
        return Ok(());
    }
    let step = trace.steps.last().ok_or(ExportError::NoSteps)?;
    let text = match format {
        Format::Csv => {
            let rows =
                trace.steps.iter().flat_map(|step| step.rows.iter().enumerate().map(move |row| (step.step, row)));
            let spans = rows.flat_map(|(step, (row, spans))| {
                spans.iter().map(move |span| (step, row, span.step.to_string(), [span.start_ns, span.end_ns]))
            });
            let of_steps = trace.steps.iter();
            let together =
                of_steps.flat_map(|step| step.collectives.iter().enumerate().map(move |row| (step.step, row)));
            let together = together.flat_map(|(step, (row, all))| {
                all.iter().map(move |one| (step, row, field(&one.name.to_string()), [one.start_ns, one.end_ns]))
            });
            write_csv(spans.chain(together), sink);
            return Ok(());
        }
        Format::PaddleLog => {
            let logs = paddle_log::write(trace).map_err(ExportError::Log)?;
            // One text for all ranks, in the form of `tail -n +1 workerlog.*`.
            let logs = logs.iter().enumerate().map(|(rank, log)| format!("==> workerlog.{rank} <==\n{log}\n"));
            logs.collect()
        }
        Format::Svg => svg::draw(&step.timeline(), &format!("measured step {}", step.step), SVG_WIDTH),
        Format::Text => format!("{}\n", text::draw(&step.timeline(), TEXT_WIDTH)),
        // Events are written above.
        Format::TorchCsv | Format::Megatron | Format::MegatronArgs | Format::ChromeTrace | Format::Perfetto => {
            return Err(ExportError::OfTrace);
        }
    };
    let _ = sink(text.as_bytes());
    Ok(())
}
