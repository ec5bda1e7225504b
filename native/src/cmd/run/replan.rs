//! Planning inside a run: where a rank or a link is slower than planned, plan anew with what the last steps took, and go on
//! with the new plan from the next checkpoint.

use std::sync::Arc;

use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::{Ending, Observer, Precision, Restart, RunOptions, StepReport, StopFlag, Workload};
use pipeplan_core::api::measured_profile;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::{Spec, Work};
use pipeplan_core::trace::analysis::Slow;
use pipeplan_core::trace::{StepTrace, Trace};
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::processes::Engine;
use super::super::search::{self, Effort};
use super::super::{format, output};
use super::stragglers::{Straggler, Watched, shape};
use super::{Args, Backend, elastic, execute};

/// What a round of planning found.
pub struct Round {
    /// Who was slow.
    stragglers: Vec<Straggler>,
    /// Steps of the whole run before it.
    after: u32,
    /// The mean makespan of the steps that it measured.
    measured_ns: Nanos,
    /// Planned with the measured times: of the order in use, and of the best one found.
    in_use_ns: Nanos,
    found_ns: Nanos,
    /// The new plan, where it is shorter.
    plan: Option<Box<Plan>>,
    /// The step with which it begins; none where the run ended before.
    from: Option<u32>,
}

/// Plans whose makespans differ by less than this, in thousandths, are equally good: measured times differ by more.
const EQUAL_PERMILLE: u64 = 20;

impl Round {
    /// Plans `spec` anew after `trace`, which `plan` had as its order.
    fn new(
        spec: &Spec,
        plan: &Plan,
        trace: &Trace,
        after: u32,
        stragglers: Vec<Straggler>,
    ) -> Result<Round, Failure> {
        let (calibration, profile) = measured_profile(plan, trace).map_err(Failure::input)?;
        let mut spec = spec.clone();
        if let Work::Model(work) = &mut spec.work {
            work.profile = Some(Arc::new(profile));
        }
        let schedule = spec.schedule.clone();
        let found = search::plan(&spec, &schedule, Effort::default())?;
        let causes = &calibration.causes;
        let in_use_ns = causes.planned_ns.saturating_add_signed(causes.ops_ns).saturating_add_signed(causes.hops_ns);
        let found_ns = found.prediction.makespan_ns;
        let is_shorter = found_ns < in_use_ns.saturating_sub(in_use_ns / 1000 * EQUAL_PERMILLE);
        let plan = is_shorter.then(|| Box::new(found));
        Ok(Round { stragglers, after, measured_ns: causes.measured_ns, in_use_ns, found_ns, plan, from: None })
    }

    /// For a person.
    fn told(&self) -> String {
        let [measured, in_use, found] = [self.measured_ns, self.in_use_ns, self.found_ns].map(format::duration);
        let begin = format!("planned anew after step {}, with a measured makespan of {measured}:", self.after - 1);
        match &self.plan {
            Some(plan) => {
                let saved = format::percent(1.0 - self.found_ns as f64 / self.in_use_ns.max(1) as f64);
                let layers = layers(plan).map_or_else(String::new, |layers| format!("; layers by stage: {layers}"));
                format!("{begin} {found} planned, {in_use} for the plan in use, {saved} saved{layers}")
            }
            None => format!("{begin} the plan stays, {in_use} planned; the best one found takes {found}"),
        }
    }

    pub fn to_value(&self) -> Value {
        json!({
            "after": self.after,
            "stragglers": self.stragglers.iter().map(Straggler::to_value).collect::<Vec<_>>(),
            "measured_makespan_ns": self.measured_ns,
            "plan_in_use_makespan_ns": self.in_use_ns,
            "found_makespan_ns": self.found_ns,
            "shorter": self.plan.is_some(),
            "from_step": self.from,
            "layers_by_stage": self.plan.as_deref().and_then(layers),
        })
    }
}

/// The number of layers of each stage, with slashes between.
fn layers(plan: &Plan) -> Option<String> {
    let Work::Model(work) = &plan.spec.work else { return None };
    let derived = derive(work, plan.problem.placement().clone(), plan.problem.chunks()).ok()?;
    Some(derived.stages.iter().map(|stage| stage.layers.len().to_string()).collect::<Vec<_>>().join("/"))
}

/// Refuses rounds that this run cannot make.
pub fn expect_possible(args: &Args, engine: Engine, plan: &Plan) -> Result<(), Failure> {
    if args.replan.is_none() {
        return Ok(());
    }
    if args.backend == Backend::Modelled {
        return Err(Failure::input(
            "--replan applies to training, but the modelled backend only waits for planned times",
        )
        .with_help("Leave it out, or train with --backend cpu or cuda."));
    }
    if engine != Engine::Threads {
        return Err(Failure::input("--replan needs the ranks in one process: --transport threads").with_help(
            "With several processes make the round by hand: `run --trace --checkpoint-dir`, `calibrate --write-profile`, \
             `plan --profile`, `run --resume`.",
        ));
    }
    if elastic::is_elastic(plan) {
        return Err(Failure::input(
            "--replan plans for the replicas of the spec, but training.elastic may leave fewer of them",
        )
        .with_help("Leave out --replan, or training.elastic in the spec."));
    }
    if !matches!(plan.spec.work, Work::Model(_)) {
        return Err(Failure::input("--replan plans a model anew, but this plan was made from typed costs"));
    }
    Ok(())
}

/// Trains with `plan`, and with others once it is worth while. Returns how the run ended, and the rounds of planning.
pub fn run(
    args: &Args,
    window: u32,
    (plan, precision): (&Plan, Option<Precision>),
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<(Ending, Vec<Round>), Failure> {
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::work(format!("there is no room for what goes from plan to plan: {error}")))?;
    // That of the first plan: later ones hold the layers that were chosen for them.
    let spec = &plan.spec;
    let (mut plan, mut workload) = (plan.clone(), workload.clone());
    let mut options = options.clone();
    let saving = options.saving.clone();
    options.saving = saving.or_else(|| Some(Saving { folder: scratch.path().join("state"), every: 0 }));
    let (mut rounds, mut steps, mut duration_ns) = (Vec::new(), Vec::new(), 0);
    loop {
        let pausing = StopFlag::default();
        let part = RunOptions { pausing: pausing.clone(), ..options.clone() };
        let shape = shape(&workload);
        let watched = Watched::new(&plan.problem, &shape, window);
        let mut planning = Planning {
            spec,
            plan: &plan,
            shape: &shape,
            watched,
            pausing,
            rounds: Vec::new(),
            args,
            other: &mut *observer,
        };
        let ended = execute(Engine::Threads, &workload, &part, &mut planning)?;
        rounds.append(&mut planning.rounds);
        let Ending::First(mut report) = ended else { return Ok((ended, rounds)) };
        // One run, for whoever reads its report; makespan, memory and trace are those of the last plan.
        steps.append(&mut report.steps);
        duration_ns += report.duration_ns;
        let goes_on = report.stopped && !options.stop.is_raised();
        let next = rounds.last_mut().filter(|_| goes_on).and_then(|round: &mut Round| {
            round.from = steps.last().map(|step| step.step + 1);
            round.plan.as_deref().cloned()
        });
        let Some(next) = next else {
            if args.saving_folder().is_none() {
                // The scratch folder goes with this run.
                report.checkpoint = None;
            }
            (report.steps, report.duration_ns) = (steps, duration_ns);
            return Ok((Ending::First(report), rounds));
        };
        let state = report.checkpoint.unwrap_or_default();
        (options.resume, options.weights) = (Some(Checkpoint::open(&state).map_err(Failure::input)?), None);
        workload = Workload::of_plan(&next, precision).map_err(Failure::input)?;
        plan = next;
        if let Some(path) = &args.replanned {
            output::write(path, output::plan_file(&plan)?.as_bytes())?;
        }
        if !args.is_quiet() {
            let from = options.first_step();
            output::tell(&format!("the new plan begins with step {from}, from the checkpoint before it"));
        }
    }
}

/// Watches a part of a run, and plans anew while it goes on.
struct Planning<'a> {
    spec: &'a Spec,
    plan: &'a Plan,
    shape: &'a Trace,
    watched: Watched<'a>,
    /// Raised where another plan is to go on.
    pausing: StopFlag,
    rounds: Vec<Round>,
    args: &'a Args,
    other: &'a mut dyn Observer,
}

impl Planning<'_> {
    /// What the watched steps measured; of a slow rank, the pipeline that has it: the slowest replica decides the step.
    fn trace(&self, stragglers: &[Straggler]) -> Trace {
        let ranks = self.plan.problem.ranks();
        let slow = stragglers.iter().find_map(|straggler| match straggler.late.slow {
            Slow::Rank(row, _) => Some(row / ranks),
            _ => None,
        });
        let steps = self.watched.steps().cloned();
        let Some(pipeline) = slow else { return Trace { steps: steps.collect(), ..self.shape.clone() } };
        let only = |step: StepTrace| {
            let rows = step.rows.into_iter().skip(pipeline * ranks).take(ranks).collect();
            // These tell of rows of the whole run.
            StepTrace { rows, collectives: Vec::new(), ..step }
        };
        Trace { steps: steps.map(only).collect(), replicas: 1, context: 1, tensor: 1, ..self.shape.clone() }
    }
}

impl Observer for Planning<'_> {
    fn step_ended(&mut self, step: &StepReport) {
        self.other.step_ended(step);
    }

    fn measured(&mut self, step: &StepTrace) {
        self.other.measured(step);
        let found = self.watched.add(step);
        if found.is_empty() || self.pausing.is_raised() {
            return;
        }
        let is_quiet = self.args.is_quiet();
        if !is_quiet {
            found.iter().for_each(|straggler| output::tell(&straggler.told()));
        }
        let trace = self.trace(&found);
        match Round::new(self.spec, self.plan, &trace, step.step as u32 + 1, found) {
            Ok(round) => {
                if !is_quiet {
                    output::tell(&round.told());
                }
                if round.plan.is_some() {
                    self.pausing.raise();
                }
                self.rounds.push(round);
            }
            // The run is worth more than its next plan.
            Err(failure) => output::tell(&format!("the plan stays, since none was found: {failure}")),
        }
    }

    fn recorded(&mut self, trace: &Trace) {
        self.other.recorded(trace);
    }

    fn restarted(&mut self, restart: &Restart) {
        self.other.restarted(restart);
    }
}
