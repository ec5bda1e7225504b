//! The planner as other languages call it: each function is a function of their packages, and answers as the command
//! does with `--json`.
//!
//! - In: a spec, the text of a plan or trace, and [`Options`] by name.
//! - Out: the text of a file, or a value that becomes an object of the language; else a [`Refusal`].
//! - Knows: every room.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::ControlFlow;

use serde_json::{Value, json};

mod imported;
mod measured;
mod options;
mod refusal;

pub use imported::{AgainstPlan, refused_run};
pub use measured::{best_order, measured_order, measured_profile, measured_profile_watched};
pub use options::Options;
pub use refusal::Refusal;

use crate::advise::explanation;
use crate::advise::sensitivity::Sensitivity;
use crate::base::fields::{Fault, Faults, one_of_like};
use crate::base::json::format_of;
use crate::bounds::lower_bound;
use crate::check::Violation;
use crate::estimate::derive::derive;
use crate::estimate::published::PUBLISHED_STEPS;
use crate::formats::export::{self, Format};
use crate::formats::training_run::{self, Given, TrainingRun};
use crate::formats::{profile, torch_profile};
use crate::plan::planner::{self, Case};
use crate::plan::{Plan, PlanFileError, TRANSPORTS};
use crate::schedule::{self, Published};
use crate::search::{Flow, Progress};
use crate::simulate::timeline::Timeline;
use crate::spec::{Spec, Work, link};
use crate::trace::Trace;
use crate::trace::calibrate;

/// Hears of a search, and may end it.
pub type Observer<'o> = &'o mut dyn FnMut(Progress) -> Flow;

/// The spec in `text`: a spec or a bare problem in TOML or JSON, a link, or a plan file, whose spec is meant.
///
/// # Errors
/// [`Refusal`] with all that is wrong.
pub fn spec(text: &str) -> Result<Spec, Refusal> {
    match format_of(text) {
        Some("pipeplan-plan") => Ok(Plan::from_json(text)?.spec),
        _ => Ok(Spec::read(text)?),
    }
}

/// The plan of `spec` by the schedule or the custom order of `options`: `pipeplan plan`.
///
/// # Errors
/// [`Refusal`] where there is no plan.
pub fn plan(spec: &Spec, options: &Options, observer: Observer) -> Result<Plan, Refusal> {
    if let Some((name, order)) = &options.order {
        return Ok(planner::plan_order(spec, name, order.clone())?);
    }
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    Ok(planner::plan_with(spec, schedule, options.effort, observer)?)
}

/// Every published schedule, the custom order of `options` and the best for `spec`: `pipeplan compare --json`.
pub fn compare(spec: &Spec, options: &Options, observer: Observer) -> Value {
    let orders = options.order.iter().cloned().collect();
    json!(planner::compare_with(spec, orders, options.effort, observer))
}

/// The memory of each rank, by kind, and what to change where it does not fit: `pipeplan memory --json`.
///
/// # Errors
/// [`Refusal`] where there is no plan, or where costs are typed: then nothing says what bytes are for.
pub fn memory(spec: &Spec, options: &Options, observer: Observer) -> Result<Value, Refusal> {
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    let mut last = None;
    let mut explained = explanation::explain(spec, schedule, options.effort, &mut |progress| {
        last = Some(progress);
        observer(progress)
    })?;
    // Changes are planned without a search: its figures stand, and the observer can end this, too.
    explained.shorten(spec, &mut |_, _| last.map_or(Flow::Continue, &mut *observer));
    Ok(explained.to_value())
}

/// What no valid schedule costs less than, on each placement that `spec` leaves open.
///
/// # Errors
/// [`Refusal`] where no problem follows from the spec.
pub fn bound(spec: &Spec) -> Result<Value, Refusal> {
    let cases = planner::open_cases(spec)?;
    let of_case = |Case { problem, .. }: &Case| {
        let bound = lower_bound(problem);
        let row = json!({
            "placement": problem.placement().name().unwrap_or("list"), "chunks": problem.chunks(),
            "bound_ns": bound.value_ns, "because": bound.binding.to_string(),
        });
        (bound.value_ns, row)
    };
    let (bounds, rows): (Vec<_>, Vec<_>) = cases.iter().map(of_case).unzip();
    Ok(json!({ "objective": spec.objective().name(), "bound_ns": bounds.iter().min(), "placements": rows }))
}

/// Whether the text of a plan file is valid, and which transports complete it: `pipeplan check --json`. Of a plan that is
/// not valid the value says all that is wrong.
pub fn check(plan: &str) -> Value {
    match Plan::from_json(plan).map(|plan| plan.checked(None, &TRANSPORTS)) {
        Ok(Ok(checked)) => checked.to_value(),
        Ok(Err(deadlock)) => not_valid(&deadlock, &[]),
        Err(error) => match &error {
            PlanFileError::Schedule(found) | PlanFileError::Program(found) => not_valid(&error, found),
            _ => not_valid(&error, &[]),
        },
    }
}

fn not_valid(error: &dyn core::fmt::Display, violations: &[Violation]) -> Value {
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    json!({ "valid": false, "error": error.to_string(), "violations": violations })
}

/// Where a run lost time against its plan, and the problem with measured times: `pipeplan calibrate --json`.
///
/// # Errors
/// [`Refusal`] where a text is no plan or no trace, or where the trace is of another order.
pub fn calibrate(plan: &str, trace: &str) -> Result<Value, Refusal> {
    let plan = Plan::from_json(plan)?;
    let trace = Trace::from_json(trace)?;
    Ok(calibrate::calibrate(&plan.problem, &plan.schedule, &trace)?.to_value())
}

/// What a plan's time hangs on: `pipeplan sensitivity --json`.
///
/// # Errors
/// [`Refusal`] where `plan` is the text of none.
pub fn sensitivity(plan: &str, options: &Options, observer: Observer) -> Result<Value, Refusal> {
    let plan = Plan::from_json(plan)?;
    let found = Sensitivity::new(&plan.problem, &plan.schedule, options.permille);
    let mut found = found.map_err(Faults::from)?;
    while found.step(&plan.problem, &plan.schedule) {}
    for at in found.most_first().into_iter().take(options.anew) {
        found.plan_anew((&plan.problem, &plan.schedule), at, options.effort, observer)?;
    }
    Ok(found.to_value())
}

/// A trace of what torch.profiler recorded of each rank, by the names and texts of its files: `pipeplan trace`. Each text is
/// dropped when it is read.
///
/// # Errors
/// [`Refusal`] where a text is none of torch's, or of another order.
pub fn trace(
    plan: &str,
    profiles: impl Iterator<Item = Result<(String, String), Refusal>>,
) -> Result<String, Refusal> {
    let plan = Plan::from_json(plan)?;
    let mut files = Vec::new();
    for profile in profiles {
        let (name, text) = profile?;
        let recording = torch_profile::read(&text).map_err(|fault| {
            let field = format!("{name}, {}", fault.field);
            Faults::from(Fault { field, ..fault })
        })?;
        files.push((name, recording));
    }
    Ok(profile::trace(&plan.problem, &plan.schedule, &plan.digest(), &files)?.to_json())
}

/// The text of a plan or of a trace in another program's format: `pipeplan export`.
///
/// # Errors
/// [`Refusal`] where `text` is none, or where the format has no words for it.
pub fn export(text: &str, format: &str) -> Result<String, Refusal> {
    let known = format_named(format)?;
    Ok(if format_of(text) == Some("pipeplan-trace") {
        export::of_trace(&Trace::from_json(text)?, known)
    } else {
        export::of_plan(&Plan::from_json(text)?, known)
    }?)
}

/// As [`export`], for formats that are no text, too.
///
/// # Errors
/// As [`export`].
pub fn export_bytes(text: &str, format: &str) -> Result<Vec<u8>, Refusal> {
    let known = format_named(format)?;
    let mut bytes = Vec::new();
    let sink = &mut |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    };
    if format_of(text) == Some("pipeplan-trace") {
        export::write_trace(&Trace::from_json(text)?, known, sink)?;
    } else {
        export::write_plan(&Plan::from_json(text)?, known, sink)?;
    }
    Ok(bytes)
}

fn format_named(format: &str) -> Result<Format, Refusal> {
    let names = Format::NAMED.map(|(name, _)| name);
    Format::named(format).ok_or_else(|| Refusal::of_field("format", format, &one_of_like(format, &names)))
}

/// The link of a spec, which the planner's page at the address `page` opens.
pub fn link(spec: &Spec, page: &str) -> String {
    let page = page.split('#').next().unwrap_or_default();
    format!("{page}{}", link::write(spec))
}

/// The published schedules, in the order in which comparisons show them.
pub fn schedules() -> Value {
    let row = |published: &Published| {
        json!({
            "name": published.name, "title": published.title, "idea": published.idea, "source": published.source,
        })
    };
    schedule::published().iter().map(row).collect()
}

/// A run as a spec, and its figures against the plan: `pipeplan import --json`. `text` is a log, a command line, a launch
/// script or a config; `given` has what a person adds to it.
///
/// # Errors
/// [`Refusal`] where the text has no run, lacks something, or has no plan.
pub fn import_run(
    text: &str,
    device: &str,
    devices: Option<u64>,
    given: &Given,
    observer: Observer,
) -> Result<Value, Refusal> {
    let run = TrainingRun::read_with(text, given);
    if !run.is_any() {
        if let Some((found, advice)) = training_run::likely(text) {
            return Err(Refusal::of_field("the run", found, &alloc::format!("a run: {advice}")));
        }
        let accepted = "a log, a command line or a launch script of Megatron-LM, with --num-layers and --hidden-size, or a job \
                        config of torchtitan";
        return Err(Refusal::of_field("the run", "no arguments of a run", accepted));
    }
    let imported = run.spec(device, devices)?;
    Ok(AgainstPlan::of(&run, &imported, observer)?.to_value(&imported))
}

/// What a plan's file does not say itself: the start and end of each op by rank, as in `pipeplan show --json`, the rank and
/// the layers of each stage, and figures of the whole step.
///
/// # Errors
/// [`Refusal`] where `plan` is the text of none.
pub fn details(plan: &str) -> Result<Value, Refusal> {
    let plan = Plan::from_json(plan)?;
    let timeline = plan.timeline().map_err(Refusal::said)?;
    let problem = &plan.problem;
    let layouts = match &plan.spec.work {
        Work::Model(work) => {
            derive(work, problem.placement().clone(), problem.chunks()).ok().map(|derived| derived.stages)
        }
        Work::Typed(_) => None,
    };
    // A bidirectional placement holds each stage on two ranks: one for either half of the microbatches.
    let last = problem.microbatches().saturating_sub(1);
    let stages = (0..problem.stage_count()).map(|stage| {
        let layout = layouts.as_ref().and_then(|layouts| layouts.get(stage));
        json!({
            "rank": problem.rank_of(stage, 0), "rank_of_last_microbatch": problem.rank_of(stage, last),
            "layers": layout.map(|layout| [layout.layers.start, layout.layers.end]),
            "embedding": layout.map(|layout| layout.embedding), "head": layout.map(|layout| layout.head),
        })
    });
    let (step, objective) = (plan.step(), problem.objective());
    let published = match &plan.spec.work {
        Work::Model(work) => step.as_ref().and_then(|step| PUBLISHED_STEPS.of(work, step.step_ns)),
        Work::Typed(_) => None,
    };
    Ok(json!({
        "digest": plan.digest(), "schedule": plan.schedule_name, "objective": objective.name(),
        "bubble_ratio": timeline.bubble_ratio(objective),
        "gap": planner::gap(plan.prediction.cost_ns(objective), plan.prediction.bound_ns),
        "placement": problem.placement().name().unwrap_or("list"), "chunks": problem.chunks(),
        "microbatches": problem.microbatches(), "stages": stages.collect::<Vec<_>>(), "rows": rows_of(&timeline),
        "step_ns": step.as_ref().map(|step| step.step_ns), "tokens_per_s": step.as_ref().map(|step| step.tokens_per_s),
        "mfu": step.as_ref().map(|step| step.mfu),
        "published_step_ns": published,
    }))
}

/// The op, start and end of every op, by rank.
pub fn rows_of(timeline: &Timeline) -> Vec<Vec<Value>> {
    let span = |span: &crate::simulate::timeline::Span| json!({ "op": span.op.to_string(), "start_ns": span.start_ns, "end_ns": span.end_ns });
    timeline.rows.iter().map(|row| row.iter().map(span).collect()).collect()
}
