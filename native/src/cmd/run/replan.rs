//! Planning inside a run: where a rank or a link is slower than planned, plan anew with what the last steps took, and
//! go on with the new plan from the next checkpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::{
    Ending, Observer, Precision, Refusal, Restart, RunOptions, StepReport, StopFlag, Workload, hand_on, refuse,
    run_part,
};
use pipeplan::transport::processes::{Link, Processes};
use pipeplan_core::api::measured_profile;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::plan::{MAX_FILE_BYTES, Plan};
use pipeplan_core::spec::{Documents, Spec, Work};
use pipeplan_core::trace::analysis::Slow;
use pipeplan_core::trace::clocks::align;
use pipeplan_core::trace::{StepTrace, Trace};
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::processes::{self, Engine};
use super::super::search::{self, Effort};
use super::super::{format, output};
use super::stragglers::{Straggler, Watched, shape};
use super::{Args, Backend, elastic, execute, failed};

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

/// Refuses rounds that no plan could have in such a run.
pub fn expect_room(args: &Args, engine: Engine) -> Result<(), Failure> {
    if args.replan.is_none() {
        return Ok(());
    }
    if args.backend == Backend::Modelled {
        return Err(Failure::input(
            "--replan applies to training, but the modelled backend only waits for planned times",
        )
        .with_help("Leave it out, or train with --backend cpu or cuda."));
    }
    if engine != Engine::Threads && args.saving_folder().is_none() {
        return Err(Failure::input(
            "with a process for each rank, --replan goes on from a checkpoint that all of them read",
        )
        .with_help("Give --checkpoint-dir FOLDER; on several hosts, a folder that they share."));
    }
    Ok(())
}

/// Refuses rounds that a run of `plan` cannot make.
pub fn expect_possible(args: &Args, plan: &Plan) -> Result<(), Failure> {
    if args.replan.is_none() {
        return Ok(());
    }
    if elastic::is_elastic(plan) {
        return Err(Failure::input(
            "--replan plans for the replicas of the spec, but training.elastic may leave fewer of them",
        )
        .with_help("Leave out --replan, or training.elastic in the spec."));
    }
    let Work::Model(work) = &plan.spec.work else {
        return Err(Failure::input("--replan plans a model anew, but this plan was made from typed costs"));
    };
    if work.batch.documents != Documents::Sequences {
        return Err(Failure::input(
            "--replan measures one time for each stage and job, but the plan's microbatches differ (training.documents)",
        )
        .with_help("Leave out --replan, or training.documents in the spec."));
    }
    if plan.problem.slices() > 1 {
        return Err(Failure::input(
            "--replan measures one time for each stage and job, but slices of a sequence differ (parallel.sequence_slices)",
        )
        .with_help("Leave out --replan, or parallel.sequence_slices in the spec."));
    }
    Ok(())
}

/// How the parts of a run are executed that follow each other.
trait Parts {
    fn train(
        &mut self,
        workload: &Workload,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Failure>;

    /// What rank 0 gives, on every rank; only rank 0 has it before.
    fn hand_on(&mut self, next: Option<Next>) -> Result<Next, Failure>;

    /// Tells other ranks why this one does not take the next part.
    fn refuse(&mut self, refusal: &Refusal);

    /// The run is over.
    fn leave(&mut self);
}

/// All ranks are threads of this process.
struct Threads;

impl Parts for Threads {
    fn train(
        &mut self,
        workload: &Workload,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Failure> {
        execute(Engine::Threads, workload, options, observer)
    }

    fn hand_on(&mut self, next: Option<Next>) -> Result<Next, Failure> {
        next.ok_or_else(|| Failure::work("the run paused without a new plan"))
    }

    fn refuse(&mut self, _: &Refusal) {}

    fn leave(&mut self) {}
}

/// This process is one rank; its connections outlive a part.
impl<L: Link + 'static> Parts for Processes<L> {
    fn train(
        &mut self,
        workload: &Workload,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Ending, Failure> {
        run_part(workload, options, self.again(), observer).map_err(failed)
    }

    fn hand_on(&mut self, next: Option<Next>) -> Result<Next, Failure> {
        let lost = |error| Failure::work(format!("the new plan did not reach every rank: {error}"));
        let (plan, state) = next
            .as_ref()
            .map_or_else(Default::default, |next| (next.plan.to_json(), next.state.to_string_lossy().into_owned()));
        let state = hand_on(self, state.as_bytes(), MAX_FILE_BYTES).map_err(lost)?;
        let plan = hand_on(self, plan.as_bytes(), MAX_FILE_BYTES).map_err(lost)?;
        if let Some(next) = next {
            return Ok(next);
        }
        let plan = Plan::from_json(&String::from_utf8_lossy(&plan)).map_err(|error| {
            let refusal = Refusal::HandedOn(error);
            refuse(self, &refusal);
            Failure::input(refusal)
        })?;
        Ok(Next { plan, state: PathBuf::from(String::from_utf8_lossy(&state).into_owned()) })
    }

    fn refuse(&mut self, refusal: &Refusal) {
        refuse(self, refusal);
    }

    fn leave(&mut self) {
        self.control().leave();
    }
}

fn parts(engine: Engine, workload: &Workload, options: &RunOptions) -> Result<Box<dyn Parts>, Failure> {
    let patience = options.transport.patience;
    Ok(match engine {
        Engine::Threads => Box::new(Threads),
        Engine::Tcp | Engine::Nccl => Box::new(processes::tcp_for_plans(workload, patience)?),
        Engine::Mpi => Box::new(Processes::new(processes::mpi_link()?, patience)),
    })
}

/// With what a run goes on.
struct Next {
    plan: Plan,
    /// The folder of the checkpoint.
    state: PathBuf,
}

impl Next {
    /// What this rank runs then.
    fn taken(self, precision: Option<Precision>) -> Result<(Checkpoint, Plan, Workload), Refusal> {
        let state = Checkpoint::open(&self.state)?;
        let workload = Workload::of_plan(&self.plan, precision)?;
        Ok((state, self.plan, workload))
    }
}

/// Trains with `plan`, and with others once it is worth while. Returns how the run ended, and the rounds of planning.
pub fn run(
    args: &Args,
    (engine, window): (Engine, u32),
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
    let mut parts = parts(engine, &workload, &options)?;
    let mut whole = Whole::default();
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
            under_way: None,
            rounds: Vec::new(),
            args,
            other: &mut *observer,
        };
        let ended = parts.train(&workload, &part, &mut planning)?;
        planning.take(true);
        whole.rounds.append(&mut planning.rounds);
        let next = match whole.add(ended) {
            Part::Last(mut ending) => {
                parts.leave();
                if let Ending::First(report) = &mut ending
                    && args.saving_folder().is_none()
                {
                    // The scratch folder goes with this run.
                    report.checkpoint = None;
                }
                return Ok((ending, whole.rounds));
            }
            Part::Before(next) => parts.hand_on(next.map(|next| *next))?,
        };
        let taken = next.taken(precision);
        if let Err(refusal) = &taken {
            parts.refuse(refusal);
        }
        let (state, next, its_workload) = taken.map_err(Failure::input)?;
        (options.resume, options.weights) = (Some(state), None);
        (plan, workload) = (next, its_workload);
        if let Some(path) = args.replanned.as_ref().filter(|_| !processes::is_silent()) {
            // The run is worth more than the file of its plan, and other ranks go on.
            let written = output::plan_file(&plan).and_then(|file| output::write(path, file.as_bytes()));
            if let Err(failure) = written {
                output::tell(&format!("the new plan is not written: {failure}"));
            }
        }
        if !args.is_quiet() {
            let from = options.first_step();
            output::tell(&format!("the new plan begins with step {from}, from the checkpoint before it"));
        }
    }
}

/// A run of several parts, for whoever reads its report.
#[derive(Default)]
struct Whole {
    steps: Vec<StepReport>,
    duration_ns: Nanos,
    rounds: Vec<Round>,
}

/// What a part was for the run.
enum Part {
    /// Its last one.
    Last(Ending),
    /// Another one comes, with this, which rank 0 has.
    Before(Option<Box<Next>>),
}

impl Whole {
    fn add(&mut self, ended: Ending) -> Part {
        let mut report = match ended {
            Ending::First(report) => report,
            Ending::Other { paused: true, .. } => return Part::Before(None),
            ended @ Ending::Other { .. } => return Part::Last(ended),
        };
        // One run; makespan, memory and trace are those of the last plan.
        self.steps.append(&mut report.steps);
        self.duration_ns += report.duration_ns;
        if !report.paused {
            (report.steps, report.duration_ns) = (std::mem::take(&mut self.steps), self.duration_ns);
            return Part::Last(Ending::First(report));
        }
        // A run pauses for a plan alone.
        let round = self.rounds.iter_mut().rfind(|round| round.plan.is_some());
        let plan = round.and_then(|round| {
            round.from = self.steps.last().map(|step| step.step + 1);
            round.plan.as_deref().cloned()
        });
        Part::Before(plan.zip(report.checkpoint).map(|(plan, state)| Box::new(Next { plan, state })))
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
    /// A round that is being planned while training goes on.
    under_way: Option<JoinHandle<Result<Round, Failure>>>,
    rounds: Vec<Round>,
    args: &'a Args,
    other: &'a mut dyn Observer,
}

impl Planning<'_> {
    /// What the watched steps measured, with clocks put right; of a slow rank, the pipeline that has it: the slowest
    /// replica decides the step.
    fn trace(&self, stragglers: &[Straggler], clocks: &[usize]) -> Trace {
        let ranks = self.plan.problem.ranks();
        let mut trace = Trace { steps: self.watched.steps().cloned().collect(), ..self.shape.clone() };
        align(&mut trace, clocks);
        let slow = stragglers.iter().find_map(|straggler| match straggler.late.slow {
            Slow::Rank(row, _) => Some(row / ranks),
            _ => None,
        });
        let Some(pipeline) = slow else { return trace };
        let only = |step: StepTrace| {
            let rows = step.rows.into_iter().skip(pipeline * ranks).take(ranks).collect();
            // These tell of rows of the whole run.
            StepTrace { rows, collectives: Vec::new(), ..step }
        };
        let steps = trace.steps.into_iter().map(only).collect();
        Trace { steps, replicas: 1, context: 1, tensor: 1, ..self.shape.clone() }
    }

    /// Begins a round while training goes on.
    fn begin(&mut self, trace: Trace, after: u32, stragglers: Vec<Straggler>) {
        let (spec, plan) = (self.spec.clone(), self.plan.clone());
        let planned = move || Round::new(&spec, &plan, &trace, after, stragglers);
        match thread::Builder::new().name("plan".to_string()).spawn(planned) {
            Ok(round) => self.under_way = Some(round),
            Err(error) => output::tell(&format!("the plan stays, since there is no thread to plan in: {error}")),
        }
    }

    /// Takes a round that has ended, or, `at_the_end` of a run, waits for it.
    fn take(&mut self, at_the_end: bool) {
        let Some(round) = self.under_way.take_if(|round| at_the_end || round.is_finished()) else { return };
        match round.join() {
            Ok(Ok(round)) => {
                if !self.args.is_quiet() {
                    output::tell(&round.told());
                }
                if round.plan.is_some() {
                    self.pausing.raise();
                }
                self.rounds.push(round);
            }
            // The run is worth more than its next plan.
            Ok(Err(failure)) => output::tell(&format!("the plan stays, since none was found: {failure}")),
            Err(_) => output::tell("the plan stays, since planning failed"),
        }
    }
}

impl Observer for Planning<'_> {
    fn step_ended(&mut self, step: &StepReport) {
        self.other.step_ended(step);
    }

    fn measured(&mut self, step: &StepTrace, clocks: &[usize]) {
        self.other.measured(step, clocks);
        self.take(false);
        let found = self.watched.add(step);
        if found.is_empty() || self.pausing.is_raised() || self.under_way.is_some() {
            return;
        }
        if !self.args.is_quiet() {
            found.iter().for_each(|straggler| output::tell(&straggler.told()));
        }
        self.begin(self.trace(&found, clocks), step.step as u32 + 1, found);
    }

    fn recorded(&mut self, trace: &Trace) {
        self.other.recorded(trace);
    }

    fn restarted(&mut self, restart: &Restart) {
        self.other.restarted(restart);
    }
}
