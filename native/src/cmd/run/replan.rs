//! A round of planning inside a run: train some steps, measure them, plan anew with what was measured, and go on.

use std::sync::Arc;

use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::{Ending, Observer, Precision, RunOptions, StepReport, Workload};
use pipeplan_core::api::measured_profile;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::Work;
use pipeplan_core::trace::Trace;
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::processes::Engine;
use super::super::search::{self, Effort};
use super::super::{format, output};
use super::{Args, Backend, Range, execute};

/// What a round of planning found.
pub struct Round {
    /// Steps that were made before it, of the whole run.
    after: u32,
    /// The mean makespan of the steps before.
    measured_ns: Nanos,
    /// Planned with the measured times: of the order in use, and of the best one found.
    in_use_ns: Nanos,
    found_ns: Nanos,
    /// The plan that the rest of the run takes.
    plan: Option<Box<Plan>>,
}

/// Plans whose makespans differ by less than this, in thousandths, are equally good: measured times differ by more.
const EQUAL_PERMILLE: u64 = 20;

impl Round {
    /// Plans anew after `trace`, which `plan` had as its order.
    fn new(plan: &Plan, trace: &Trace, after: u32) -> Result<Round, Failure> {
        let (calibration, profile) = measured_profile(plan, trace).map_err(Failure::input)?;
        let mut spec = plan.spec.clone();
        if let Work::Model(work) = &mut spec.work {
            work.profile = Some(Arc::new(profile));
        }
        let schedule = spec.schedule.clone();
        let found = search::plan(&spec, &schedule, Effort::default())?;
        let causes = &calibration.causes;
        let in_use_ns = causes.planned_ns.saturating_add_signed(causes.ops_ns).saturating_add_signed(causes.hops_ns);
        let found_ns = found.prediction.makespan_ns;
        // Of equally good plans the new one: it knows the times of this run.
        let plan = (found_ns <= in_use_ns.saturating_add(margin(in_use_ns))).then(|| Box::new(found));
        Ok(Round { after, measured_ns: causes.measured_ns, in_use_ns, found_ns, plan })
    }

    /// For a person.
    pub fn told(&self) -> String {
        let [measured, in_use, found] = [self.measured_ns, self.in_use_ns, self.found_ns].map(format::duration);
        let begin = format!("replanned after step {}, with a measured makespan of {measured}:", self.after);
        match &self.plan {
            Some(plan) if self.is_shorter() => {
                let saved = format::percent(1.0 - self.found_ns as f64 / self.in_use_ns.max(1) as f64);
                let layers = layers(plan).map_or_else(String::new, |layers| format!("; layers by stage: {layers}"));
                format!("{begin} {found} planned, {in_use} for the plan before, {saved} saved{layers}")
            }
            Some(_) => format!("{begin} no shorter plan is found; {found} planned"),
            None => format!("{begin} the plan stays, {in_use} planned; the best one found takes {found}"),
        }
    }

    /// Whether the new plan is shorter by more than measured times differ.
    fn is_shorter(&self) -> bool {
        self.found_ns < self.in_use_ns.saturating_sub(margin(self.in_use_ns))
    }

    pub fn to_value(&self) -> Value {
        json!({
            "after": self.after,
            "measured_makespan_ns": self.measured_ns,
            "plan_in_use_makespan_ns": self.in_use_ns,
            "found_makespan_ns": self.found_ns,
            "shorter": self.is_shorter(),
        })
    }

    /// The plan that the rest of the run takes, where it is another one.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }
}

/// By how much plans of about so many nanoseconds may differ and be equally good.
fn margin(ns: Nanos) -> Nanos {
    ns / 1000 * EQUAL_PERMILLE
}

/// The number of layers of each stage, with slashes between.
fn layers(plan: &Plan) -> Option<String> {
    let Work::Model(work) = &plan.spec.work else { return None };
    let derived = derive(work, plan.problem.placement().clone(), plan.problem.chunks()).ok()?;
    Some(derived.stages.iter().map(|stage| stage.layers.len().to_string()).collect::<Vec<_>>().join("/"))
}

/// Refuses a round that this run cannot make.
pub fn expect_possible(args: &Args, engine: Engine, plan: &Plan, options: &RunOptions) -> Result<(), Failure> {
    let Some(after) = args.replan_after else { return Ok(()) };
    if args.backend == Backend::Modelled {
        return Err(Failure::input(
            "--replan-after applies to training, but the modelled backend only waits for planned times",
        )
        .with_help("Leave it out, or train with --backend cpu or cuda."));
    }
    if engine != Engine::Threads {
        return Err(Failure::input("--replan-after needs the ranks in one process: --transport threads").with_help(
            "With several processes make the round by hand: `run --trace --checkpoint-dir`, `calibrate --write-profile`, \
             `plan --profile`, `run --resume`.",
        ));
    }
    if !matches!(plan.spec.work, Work::Model(_)) {
        return Err(Failure::input("--replan-after plans a model anew, but this plan was made from typed costs"));
    }
    let (first, last) = (options.first_step(), args.steps);
    if first.saturating_add(after) >= last {
        let what = format!(
            "--replan-after {after} leaves no step to the new plan: the run has steps {first} to {}",
            last - 1
        );
        return Err(Failure::input(what).with_help("Give fewer, or more --steps."));
    }
    match &args.trace_steps {
        Some(Range { end, .. }) if *end <= first + after => {
            let what = format!("--trace-steps end at {end}, before the new plan starts with step {}", first + after);
            Err(Failure::input(what).with_help("The trace of a run with --replan-after is of the new plan."))
        }
        _ => Ok(()),
    }
}

/// Trains with `plan`, then with a plan from what that took. Returns how the run ended, and the round, where it came to one.
pub fn run(
    args: &Args,
    after: u32,
    (plan, precision): (&Plan, Option<Precision>),
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<(Ending, Option<Round>), Failure> {
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::work(format!("there is no room for what goes from plan to plan: {error}")))?;
    let until = options.first_step() + after;
    // The first part traces what it can: the first step fills caches.
    let part = RunOptions {
        steps: until,
        traced_steps: after.min(TRACED),
        trace_window: None,
        saving: options.saving.clone().or_else(|| Some(Saving { folder: scratch.path().join("state"), every: 0 })),
        ..options.clone()
    };
    let ending = execute(Engine::Threads, workload, &part, &mut Whole(observer, options.steps))?;
    let before = match ending {
        Ending::First(report) if !report.stopped && !has_failed(&part) => report,
        ended => return Ok((ended, None)),
    };
    let round = Round::new(plan, &before.trace, until)?;
    let state = before.checkpoint.unwrap_or_default();
    let resume = Some(Checkpoint::open(&state).map_err(Failure::input)?);
    let rest = RunOptions { resume, weights: None, ..options.clone() };
    let next = match round.plan() {
        Some(plan) => {
            let next = Workload::of_plan(plan, precision).map_err(Failure::input)?;
            if let Some(path) = &args.replanned {
                output::write(path, output::plan_file(plan)?.as_bytes())?;
            }
            Some(next)
        }
        None => None,
    };
    if !args.is_quiet() {
        output::tell(&round.told());
    }
    let mut ending = execute(Engine::Threads, next.as_ref().unwrap_or(workload), &rest, observer)?;
    // One run, for whoever reads its report; makespan, memory and trace are those of the new plan.
    if let Ending::First(report) = &mut ending {
        report.steps.splice(..0, before.steps);
        report.duration_ns += before.duration_ns;
    }
    Ok((ending, Some(round)))
}

/// Whether the data ended a run early.
fn has_failed(options: &RunOptions) -> bool {
    options.data.as_ref().and_then(|data| data.failure()).is_some()
}

/// Most steps of the first part that are measured.
const TRACED: u32 = 20;

/// Tells an observer of one part how many steps the whole run has.
struct Whole<'a>(&'a mut dyn Observer, u32);

impl Observer for Whole<'_> {
    fn step_ended(&mut self, report: &StepReport) {
        self.0.step_ended(&StepReport { steps: self.1, ..report.clone() });
    }
}
