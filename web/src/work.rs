//! What the worker does about a question: small pieces, so that a newer question can come between any two.

use std::collections::VecDeque;
use std::sync::Arc;

use pipeplan_core::advise::sensitivity::Sensitivity;
use pipeplan_core::advise::suggest::{Finder, Shortener, Suggestions};
use pipeplan_core::advise::tune::{self, Tuner};
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::estimate::derive::coverage;
use pipeplan_core::estimate::pass_reports::Accounts;
use pipeplan_core::formats::torch_profile::{self, Recording};
use pipeplan_core::hardware::profile::{Profile, ProfileError};
use pipeplan_core::notation::order;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, Answer, BEST, Best, Case, PlanError};
use pipeplan_core::plan::verdict::{self, RankMemory};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::schedule;
use pipeplan_core::search::{Effort, Flow};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Spec, Work as SpecWork};
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::calibrate;

use crate::draw::chart::OF_POINT;
use crate::frontier::{Chart, FROM_CHART};
use crate::message::{
    Ask, FieldFault, Measured, Order, Picture, Purpose, Question, Reply, Row, Said, Sensed, Shorter, Timed,
    TraceSummary, Unfit,
};
use crate::{text, wire};

/// An answer that is better than what is known so far is waited for this long before the page shows what is
/// known: short enough to follow a hand, long enough that small plans appear once and not in stages.
const SHOW_WITHIN_MS: f64 = 50.0;
/// All published schedules are looked at before anything is shown where that takes no longer than this. Else they come one
/// after the other, and looking at them can be ended.
const LOOK_WITHIN_MS: f64 = 1000.0;
/// How often the page is told of layouts that are being looked for.
const TOLD_EVERY_MS: f64 = 200.0;
/// How long nothing has to be asked before the chart of time against memory begins: while a hand drags, every moment
/// is for plans.
const REST_MS: i32 = 200;

/// Who watches the search for the best: is told the question, the cost of the best so far and the bound, and answers
/// whether it goes on.
pub type Watch = Box<dyn FnMut(u32, u64, u64) -> Flow>;

/// The worker's memory between questions.
pub struct Work {
    /// Milliseconds since any moment.
    clock: fn() -> f64,
    watch: Watch,
    questions: VecDeque<Question>,
    comparison: Option<Comparison>,
    explanation: Option<Explanation>,
    chart: Option<Chart>,
    sensing: Option<Sensing>,
    tuning: Option<Tuning>,
    trace: Option<Trace>,
    recorded: Recorded,
    /// Measured times, which all is planned with.
    profile: Option<Arc<Profile>>,
}

/// The search for the fastest layouts under way.
struct Tuning {
    id: u32,
    tuner: Tuner,
    /// When the page was last told.
    said_ms: f64,
}

/// Why a schedule does not fit in memory, as far as it is known.
struct Explanation {
    id: u32,
    spec: Spec,
    /// Schedules whose bytes are still to be looked at.
    names: Vec<String>,
    /// The one that needs least: its bytes, and its name.
    nearest: Option<(u64, String)>,
    /// What the nearest holds, and who looks for what would help.
    suggestion: Option<(Unfit, Finder)>,
}

/// What torch recorded of single ranks, in files that were opened together.
#[derive(Default)]
struct Recorded {
    batch: u32,
    /// By name: what was recorded, or why that is not known.
    files: Vec<(String, Result<Recording, Fault>)>,
}

/// What the time of an order hangs on, as far as it is known.
struct Sensing {
    id: u32,
    problem: Problem,
    schedule: Schedule,
    found: Sensitivity,
}

/// How much longer, and how much less, in thousandths.
const SENSED_PERMILLE: u32 = 100;

/// A comparison under way, or finished and kept: another schedule of the same spec does not start it anew.
struct Comparison {
    id: u32,
    spec: Spec,
    begun_ms: f64,
    /// Whether the best is what the page shows, so that every better one is sent.
    shows_best: bool,
    /// The next published schedule.
    next: usize,
    best: Best,
    /// What the best that the page has is judged by.
    shown_ns: Option<u64>,
    finished: bool,
    /// Whether it is to end, or has ended, with the best so far.
    stops: bool,
    shortening: Shortening,
}

/// The look for what the memory limit costs the best.
enum Shortening {
    NotBegun,
    Begun {
        step_ns: u64,
        shortener: Box<Shortener>,
    },
    /// Found, and to be said, perhaps again.
    Found(Box<Shorter>),
    /// Said, where there was anything to say.
    Done(Option<Box<Shorter>>),
}

impl Work {
    /// A worker that knows nothing yet. `clock` tells milliseconds.
    pub fn new(clock: fn() -> f64, watch: Watch) -> Work {
        Work {
            clock,
            watch,
            questions: VecDeque::new(),
            comparison: None,
            explanation: None,
            chart: None,
            tuning: None,
            sensing: None,
            trace: None,
            recorded: Recorded::default(),
            profile: None,
        }
    }

    /// Takes a question. Those that it makes pointless are forgotten.
    pub fn take(&mut self, question: Question) {
        self.questions.retain(|older| !question.ask.supersedes(&older.ask));
        self.questions.push_back(question);
    }

    /// Does the next piece of work. Empty when there is none, or when it has led to nothing new.
    pub fn step(&mut self) -> Vec<Reply> {
        let (id, mut said) = match self.questions.pop_front() {
            Some(Question { id, ask }) => (id, self.answer(id, ask)),
            None => self.go_on(),
        };
        self.explain_later(id, &said);
        let last = said.pop_if(|said| *said == Said::Done);
        said.extend(self.chart.as_mut().and_then(Chart::take_news).map(Said::Charted));
        said.extend(last);
        said.into_iter().map(|said| Reply { id, said }).collect()
    }

    /// The next piece of what has been begun, the most wanted first.
    fn go_on(&mut self) -> (u32, Vec<Said>) {
        let id = self.comparison.as_ref().map_or(0, |comparison| comparison.id);
        if let Some(running) = self.comparison.as_mut().filter(|comparison| !comparison.finished) {
            let mut said = running.step(&mut self.chart, &mut self.watch);
            said.extend(running.looks_long((self.clock)()));
            return (id, said);
        }
        if let Some(explanation) = &mut self.explanation {
            let (id, step) = (explanation.id, explanation.step());
            if step.is_some() {
                self.explanation = None;
            }
            return (id, step.flatten().into_iter().collect());
        }
        if let Some(tuning) = &mut self.tuning {
            let (id, said) = (tuning.id, tuning.step((self.clock)()));
            if matches!(&said, Some(Said::Tuned(layouts)) if layouts.finished) {
                self.tuning = None;
            }
            return (id, said.into_iter().collect());
        }
        if let Some(Sensing { id, problem, schedule, found }) = &mut self.sensing {
            let (id, goes_on) = (*id, found.step(problem, schedule));
            let sensed = (!goes_on).then(|| Said::Sensed(wire::sensed(problem, found)));
            if sensed.is_some() {
                self.sensing = None;
            }
            return (id, sensed.into_iter().collect());
        }
        if let Some(running) = self.comparison.as_mut().filter(|comparison| comparison.may_shorten()) {
            return (id, running.shorten().into_iter().collect());
        }
        if let Some(chart) = self.chart.as_mut().filter(|chart| !chart.is_finished()) {
            chart.step();
        }
        (id, Vec::new())
    }

    /// Whether [`Work::step`] has anything to do.
    pub fn is_idle(&self) -> bool {
        let shortens = self.comparison.as_ref().is_some_and(Comparison::may_shorten);
        self.is_answered() && !shortens && self.chart.as_ref().is_none_or(Chart::is_finished)
    }

    /// Whether nothing is left but the chart of time against memory.
    fn is_answered(&self) -> bool {
        let compared = self.comparison.as_ref().is_none_or(|comparison| comparison.finished);
        let begun = self.explanation.is_some() || self.tuning.is_some() || self.sensing.is_some();
        self.questions.is_empty() && compared && !begun
    }

    /// How long to wait for a question before the next step.
    pub fn rest_ms(&self) -> i32 {
        let begins = self.is_answered() && self.chart.as_ref().is_some_and(|chart| !chart.has_begun());
        // What has begun goes on in small pieces.
        let goes_on = self
            .comparison
            .as_ref()
            .is_some_and(|running| running.may_shorten() && !matches!(running.shortening, Shortening::NotBegun));
        if begins && !goes_on { REST_MS } else { 0 }
    }

    /// A model that has no plan may lack memory: what it needs is worked out after the comparison.
    fn explain_later(&mut self, id: u32, said: &[Said]) {
        let Some(spec) = self.comparison.as_ref().map(|comparison| &comparison.spec) else { return };
        for said in said {
            if let (Said::NoPlan { schedule, .. }, SpecWork::Model(_)) = (said, &spec.work)
                && !schedule.is_empty()
            {
                let all = || schedule::published().iter().map(|published| published.name.to_owned()).collect();
                let names = if schedule == BEST { all() } else { vec![schedule.clone()] };
                self.explanation =
                    Some(Explanation { id, spec: spec.clone(), names, nearest: None, suggestion: None });
            }
        }
    }

    fn answer(&mut self, id: u32, ask: Ask) -> Vec<Said> {
        match ask {
            Ask::Plan { spec } => match self.read(&spec) {
                Ok(spec) => {
                    let mut said: Vec<Said> =
                        self.timed(&spec).map(|timed| Said::Timed(Some(timed))).into_iter().collect();
                    said.extend(self.plan(id, spec));
                    said
                }
                Err(faults) => {
                    self.comparison = None;
                    vec![Said::Refused(faults), Said::Done]
                }
            },
            Ask::Stop => self.stop(),
            // Heard before it comes here.
            Ask::GoOnWhile { .. } => Vec::new(),
            Ask::Tune { spec, devices } => self.tune(id, spec, devices).into_iter().collect(),
            Ask::Passes { spec } => vec![Said::Passes(self.passes(&spec).unwrap_or_default())],
            Ask::Export { spec, purpose } => vec![self.export(&spec, purpose)],
            Ask::OpenKept { text } => self.open_kept(&text).into_iter().collect(),
            Ask::OpenPlan { text } => self.open_plan(id, &text),
            Ask::Measure { profile } => vec![self.measure(profile.as_deref())],
            Ask::OpenOrder { spec, text } => vec![self.open_order(&spec, &text)],
            Ask::OpenPoint { spec, bytes, below_ns } => self.open_point(&spec, bytes, below_ns),
            Ask::OpenTrace { text } => self.open_trace(&text),
            Ask::TraceStep { index } => self.trace_step(index).into_iter().collect(),
            Ask::Sense(order) => self.sense(id, order.as_ref()).into_iter().collect(),
            Ask::Calibrate(order) => self.calibrate(&order).into_iter().collect(),
            Ask::Record { batch, name, text } => {
                if self.recorded.batch != batch {
                    self.recorded = Recorded { batch, files: Vec::new() };
                }
                self.recorded.files.push((name, torch_profile::read(&text)));
                Vec::new()
            }
            Ask::Trace { batch, order } => self.trace_recorded(batch, &order).into_iter().collect(),
        }
    }

    /// Ends the search for the best, where there is one to end. Its answer stays that of the question before.
    fn stop(&mut self) -> Vec<Said> {
        if let Some(running) = self.comparison.as_mut().filter(|running| !running.finished) {
            running.stops = true;
        }
        Vec::new()
    }

    fn tune(&mut self, id: u32, spec: Option<String>, devices: Option<u64>) -> Option<Said> {
        let ended = self.tuning.take();
        let Some(spec) = spec else {
            return ended.map(|tuning| Said::Tuned(Box::new(wire::layouts(&tuning.tuner, true))));
        };
        let question = tune::Question { devices, ..tune::Question::default() };
        let tuner =
            self.read(&spec).and_then(|spec| Tuner::new(&spec, &question).map_err(|faults| wire::faults(&faults)));
        match tuner {
            Ok(tuner) => {
                let begun = Said::Tuned(Box::new(wire::layouts(&tuner, false)));
                self.tuning = Some(Tuning { id, tuner, said_ms: (self.clock)() });
                Some(begun)
            }
            Err(faults) => Some(Said::NotTuned(faults)),
        }
    }

    /// What the passes did to the stages of the plan that `spec` has got.
    fn passes(&self, spec: &str) -> Option<String> {
        let spec = self.read(spec).ok()?;
        let SpecWork::Model(work) = &spec.work else { return None };
        let case = if spec.schedule == BEST {
            let running = self.comparison.as_ref().filter(|running| same_work(&running.spec, &spec))?;
            running.best.so_far()?.case.clone()
        } else {
            planner::case(&spec, &schedule::find(&spec.schedule)?).ok()?
        };
        let accounts = Accounts::of(work, case.derived.as_ref()?, case.fitted.as_ref(), |_| true);
        Some(text::humanised(&accounts.text()))
    }

    fn plan(&mut self, id: u32, spec: Spec) -> Vec<Said> {
        let name = spec.schedule.clone();
        self.explanation = None;
        if name == BEST {
            let mut said = self.start_comparison(id, spec, true);
            let begun_ms = (self.clock)();
            if let Some(running) = &mut self.comparison {
                // A hand that drags on would see nothing of less than all published schedules.
                let waits = |running: &Comparison, now_ms: f64| match running.has_offered_all() {
                    true => now_ms < begun_ms + SHOW_WITHIN_MS,
                    false => now_ms < begun_ms + LOOK_WITHIN_MS,
                };
                while !running.finished && waits(running, (self.clock)()) {
                    said.extend(running.step_quietly(&mut self.chart, &mut self.watch));
                }
                said.extend(running.show());
                said.extend(running.looks_long((self.clock)()));
            }
            said.extend(self.done());
            return said;
        }
        let mut said = vec![match solve(&spec, &name) {
            Ok(answer) => Said::Planned(Box::new(wire::picture_of(&spec, &answer))),
            Err(error) => {
                let fault = match &error {
                    PlanError::Absent { reason, .. } => text::fault_of(reason),
                    _ => None,
                };
                Said::NoPlan { schedule: name, reason: text::sentence(&no_plan(&spec, &error.to_string())), fault }
            }
        }];
        said.extend(self.start_comparison(id, spec, false));
        said.extend(self.done());
        said
    }

    /// The end of an answer whose comparison was finished before.
    fn done(&self) -> Option<Said> {
        self.comparison.as_ref().filter(|comparison| comparison.finished).map(|_| Said::Done)
    }

    fn start_comparison(&mut self, id: u32, spec: Spec, shows_best: bool) -> Vec<Said> {
        if self.chart.as_ref().is_none_or(|chart| !chart.is_of(&spec)) {
            self.chart = Some(Chart::new(&spec));
        }
        match &mut self.comparison {
            // Who asks for the best again wants what a search that was ended has left.
            Some(running) if same_work(&running.spec, &spec) && !(shows_best && running.stops) => {
                running.id = id;
                running.shows_best = shows_best;
                running.shown_ns = None;
                // The page has forgotten it with the plan before.
                if let Shortening::Done(found) = &mut running.shortening
                    && let Some(found) = found.take()
                {
                    running.shortening = Shortening::Found(found);
                }
                Vec::new()
            }
            _ => {
                self.comparison = Some(Comparison {
                    id,
                    begun_ms: (self.clock)(),
                    shows_best,
                    next: 0,
                    best: Best::new(&spec),
                    shown_ns: None,
                    finished: false,
                    stops: false,
                    shortening: Shortening::NotBegun,
                    spec,
                });
                vec![Said::Comparing { rows: schedule::published().len() as u32 + 1 }]
            }
        }
    }

    /// The plan file of a spec: of what the comparison has found, where it has ended, else planned again.
    fn export(&self, spec: &str, purpose: Purpose) -> Said {
        let text = || -> Result<String, String> {
            let spec = self.with_profile(Spec::read(spec).map_err(|error| error.to_string())?);
            let finished = |running: &&Comparison| running.finished && same_work(&running.spec, &spec);
            let found = self.comparison.as_ref().filter(finished).filter(|_| spec.schedule == BEST);
            let plan = match found.and_then(|running| running.best.so_far()) {
                Some(answer) => planner::plan_of(&spec, answer.clone()),
                None => planner::plan(&spec, &spec.schedule),
            };
            Ok(plan.map_err(|error| error.to_string())?.to_json())
        };
        match text() {
            Ok(text) => Said::Exported { text, purpose },
            Err(reason) => Said::NoPlan { schedule: String::new(), reason: text::worded(&reason), fault: None },
        }
    }

    /// The spec that a text says, with measured times where there are some.
    fn read(&self, text: &str) -> Result<Spec, Vec<FieldFault>> {
        read_spec(text).map(|spec| self.with_profile(spec))
    }

    fn with_profile(&self, mut spec: Spec) -> Spec {
        if let SpecWork::Model(work) = &mut spec.work {
            work.profile.clone_from(&self.profile);
        }
        spec
    }

    /// What of `spec` has measured times, where any are open.
    fn timed(&self, spec: &Spec) -> Option<Timed> {
        let profile = self.profile.as_ref()?;
        let covers = match &spec.work {
            SpecWork::Typed(_) => "typed costs need none".to_owned(),
            SpecWork::Model(work) => match coverage(work) {
                Some(coverage) if coverage.is_any() => coverage.to_string(),
                _ => "it has none of this model's kinds of operators in its number format: all are estimated"
                    .to_owned(),
            },
        };
        Some(Timed { device: profile.device.clone(), covers })
    }

    fn measure(&mut self, profile: Option<&str>) -> Said {
        let read = profile.map(Profile::of_json).transpose();
        match read {
            Ok(profile) => {
                self.profile = profile.map(Arc::new);
                let timed = self.profile.as_ref();
                Said::Timed(timed.map(|profile| Timed { device: profile.device.clone(), covers: String::new() }))
            }
            Err(ProfileError::Faults(faults)) => {
                Said::Unreadable { what: "profile".to_owned(), faults: wire::faults(&faults) }
            }
            Err(ProfileError::Syntax(error)) => unreadable("profile", error.to_string()),
        }
    }

    /// A plan file, and how the page shows it.
    ///
    /// # Errors
    /// Why it is none, in words.
    fn read_plan(&self, text: &str) -> Result<(Plan, Picture), String> {
        let plan = Plan::from_json(text).map_err(|error| error.to_string())?;
        let timeline = simulate(&plan.problem, &plan.schedule).map_err(|deadlock| deadlock.to_string())?;
        let mut picture = wire::picture(&plan.schedule_name, &plan.problem, &timeline);
        picture.figures.step = plan.step().map(|found| wire::step(&plan.spec, found));
        picture.figures.late_ns = plan.outcomes().map(|outcomes| outcomes.late_ns);
        let carried = {
            let carrier = Carrier::of(plan.spec.messages.transport);
            execute(&plan.problem, &plan.program, &plan.schedule.pairs, carrier)
        };
        picture.figures.carried_ns = carried.map(|carried| carried.cost_ns(plan.problem.objective()));
        picture.figures.judged_ns = wire::plan_judged_ns(&plan, &timeline);
        // A plan of ours follows from its spec, with measured times or without; what its bytes are for is not in the file.
        let case = case_of(&plan, &plan.spec).or_else(|| case_of(&plan, &self.with_profile(plan.spec.clone())));
        if let Some(derived) = case.and_then(|case| case.derived) {
            picture.memory = wire::ranks_bytes(&verdict::by_rank(&derived, &plan.problem, &timeline));
        }
        Ok((plan, picture))
    }

    /// A plan that this page kept. One that another version of the page left, and that cannot be read, is forgotten.
    fn open_kept(&self, text: &str) -> Option<Said> {
        let (_, picture) = self.read_plan(text).ok()?;
        Some(Said::KeptOpened { picture: Box::new(picture) })
    }

    /// The plan of an order from elsewhere, as a file, so that what is shown is what can be exported.
    fn open_order(&self, spec: &str, text: &str) -> Said {
        let plan = || -> Result<Plan, String> {
            let spec = self.with_profile(Spec::read(spec).map_err(|error| error.to_string())?);
            let order = order::read(text).map_err(|error| error.to_string())?;
            planner::plan_order(&spec, "Own order", order).map_err(|error| error.to_string())
        };
        match plan() {
            Ok(plan) => Said::Ordered { plan: plan.to_json() },
            Err(reason) => unreadable("order", text::worded(&reason)),
        }
    }

    /// The plan of the chart's order that holds at most `bytes`, as a file; why there is none, or none that is judged by less
    /// than `below_ns`, and the end of the answer.
    fn open_point(&self, spec: &str, bytes: u64, below_ns: u64) -> Vec<Said> {
        let plan = || -> Result<Plan, String> {
            let spec = self.read(spec).map_err(|_| "is of another form".to_owned())?;
            let chart = self.chart.as_ref().filter(|chart| chart.is_of(&spec));
            let order =
                chart.and_then(|chart| chart.order_within(bytes)).ok_or("has no order of ops that was kept")?;
            let plan = planner::plan_order(&spec, FROM_CHART, order.clone())
                .map_err(|error| format!("is no plan under this limit: {}", no_plan(&spec, &error.to_string())))?;
            let timeline = plan.timeline().map_err(|deadlock| format!("is no plan: {deadlock}"))?;
            let judged_ns = wire::plan_judged_ns(&plan, &timeline);
            if judged_ns < below_ns {
                return Ok(plan);
            }
            let [there, here] = [judged_ns, below_ns].map(|ns| text::duration(ns as f64));
            Err(format!("takes {there} as a whole step under this limit, and this plan {here}"))
        };
        match plan() {
            Ok(plan) => vec![Said::Ordered { plan: plan.to_json() }],
            Err(reason) => {
                let reason = text::sentence(&format!("{OF_POINT} {reason}"));
                vec![Said::NoPoint { reason }, Said::Done]
            }
        }
    }

    fn open_plan(&mut self, id: u32, text: &str) -> Vec<Said> {
        let (plan, picture) = match self.read_plan(text) {
            Ok(read) => read,
            Err(reason) => return vec![unreadable("plan", reason)],
        };
        let mut said = vec![Said::Opened { spec: plan.spec.to_json(), picture: Box::new(picture) }];
        let spec = self.with_profile(plan.spec.clone());
        said.extend(self.timed(&spec).map(|timed| {
            // The times of a plan stand in its file, whatever has been measured since.
            let covers = match (&spec.work, case_of(&plan, &spec)) {
                (SpecWork::Model(_), None) => {
                    "not in the plan file that is open, which has times of its own; the comparison is planned with them"
                        .to_owned()
                }
                _ => timed.covers,
            };
            Said::Timed(Some(Timed { covers, ..timed }))
        }));
        said.extend(self.start_comparison(id, spec, false));
        said.extend(self.done());
        said
    }

    fn open_trace(&mut self, text: &str) -> Vec<Said> {
        match Trace::from_json(text) {
            Ok(trace) => {
                let summary = TraceSummary {
                    backend: trace.backend.clone(),
                    transport: trace.transport.clone(),
                    plan_digest: trace.plan_digest.clone(),
                    steps: trace.steps.iter().map(|step| (step.step, step.loss)).collect(),
                    peak_bytes: trace.peak_bytes.clone(),
                    shared_processors: trace.shared_processors,
                };
                let last = trace.steps.len().saturating_sub(1) as u32;
                self.trace = Some(trace);
                let mut said = vec![Said::TraceOpened(summary)];
                said.extend(self.trace_step(last));
                said
            }
            Err(faults) => vec![Said::Unreadable { what: "trace".to_owned(), faults: wire::faults(&faults) }],
        }
    }

    /// The open trace against the plan of these rows; nothing where none is open, or what the page sent is no plan.
    /// Begins to find what the time of `order` hangs on, where its times can be longer.
    fn sense(&mut self, id: u32, order: Option<&Order>) -> Option<Said> {
        self.sensing = None;
        let (problem, schedule) = read_order(order?)?;
        match Sensitivity::new(&problem, &schedule, SENSED_PERMILLE) {
            Ok(found) => self.sensing = Some(Sensing { id, problem, schedule, found }),
            Err(_) => return Some(Said::Sensed(Sensed::default())),
        }
        None
    }

    fn calibrate(&self, order: &Order) -> Option<Said> {
        let trace = self.trace.as_ref()?;
        let (problem, schedule) = read_order(order)?;
        Some(match calibrate::calibrate(&problem, &schedule, trace) {
            Ok(calibration) => Said::Calibrated(Box::new(wire::calibrated(&calibration))),
            Err(faults) => Said::NotCalibrated(wire::faults(&faults)),
        })
    }

    /// The trace of what was recorded in a batch, which is forgotten then.
    fn trace_recorded(&mut self, batch: u32, order: &Order) -> Option<Said> {
        let recorded = core::mem::take(&mut self.recorded);
        let (problem, schedule) = read_order(order)?;
        let mut faults = Vec::new();
        let mut files = Vec::new();
        for (name, recording) in Some(recorded).filter(|recorded| recorded.batch == batch).unwrap_or_default().files {
            match recording {
                Ok(recording) => files.push((name, recording)),
                Err(fault) => faults.push(Fault { field: format!("{name}, {}", fault.field), ..fault }),
            }
        }
        let trace = match faults.is_empty() {
            true => torch_profile::trace(&problem, &schedule, "", &files),
            false => Err(Faults(faults)),
        };
        Some(match trace {
            Ok(trace) => Said::Traced { trace: trace.to_json() },
            Err(faults) => Said::NotTraced(wire::faults(&faults)),
        })
    }

    fn trace_step(&self, index: u32) -> Option<Said> {
        let step = self.trace.as_ref()?.steps.get(index as usize)?;
        let timeline = step.timeline();
        Some(Said::TraceShown(Box::new(Measured {
            index,
            rows: timeline.rows.iter().map(|row| wire::pack(row)).collect(),
            makespan_ns: timeline.makespan_ns(),
            bubble_ratio: timeline.bubble_ratio(pipeplan_core::problem::Objective::Makespan),
            tokens: step.tokens,
            duration_ns: step.duration_ns(),
        })))
    }
}

impl Tuning {
    /// The next piece, and from time to time what is known.
    fn step(&mut self, now_ms: f64) -> Option<Said> {
        let finished = !self.tuner.step(Effort::default(), &mut |_| Flow::Continue);
        if !finished && now_ms - self.said_ms < TOLD_EVERY_MS {
            return None;
        }
        self.said_ms = now_ms;
        Some(Said::Tuned(Box::new(wire::layouts(&self.tuner, finished))))
    }
}

impl Comparison {
    fn has_offered_all(&self) -> bool {
        self.next >= schedule::published().len()
    }

    /// Whether there is anything to find out about what the memory limit costs.
    fn may_shorten(&self) -> bool {
        let is_model = matches!(self.spec.work, SpecWork::Model(_));
        is_model && self.finished && self.shows_best && !matches!(self.shortening, Shortening::Done(_))
    }

    /// The next piece of that. Said at its end, where the limit costs anything.
    fn shorten(&mut self) -> Option<Said> {
        let (next, said) = match core::mem::replace(&mut self.shortening, Shortening::Done(None)) {
            Shortening::NotBegun => (self.begin_shortening().unwrap_or(Shortening::Done(None)), None),
            Shortening::Begun { step_ns, mut shortener } => match shortener.step() {
                true => (Shortening::Begun { step_ns, shortener }, None),
                false => {
                    let found = shortener.finish().map(|found| Box::new(wire::shorter(step_ns, found)));
                    (found.map_or(Shortening::Done(None), Shortening::Found), None)
                }
            },
            Shortening::Found(found) => (Shortening::Done(Some(found.clone())), Some(Said::Shorter(found))),
            done @ Shortening::Done(_) => (done, None),
        };
        self.shortening = next;
        said
    }

    fn begin_shortening(&self) -> Option<Shortening> {
        let best = self.best.so_far()?;
        let shortener = Box::new(Shortener::new(&self.spec, best)?);
        Some(Shortening::Begun { step_ns: best.step(&self.spec)?.step_ns, shortener })
    }

    /// The next row or the next search, and the plan on screen where it has become better.
    fn step(&mut self, chart: &mut Option<Chart>, watch: &mut Watch) -> Vec<Said> {
        let mut said = self.step_quietly(chart, watch);
        said.extend(self.show());
        if self.finished {
            said.push(Said::Done);
        }
        said
    }

    /// That published schedules have been looked at for long and still are, which can be ended. Nothing is known of what is
    /// still to gain.
    fn looks_long(&self, now_ms: f64) -> Option<Said> {
        let cost_ns = self.best.so_far().map_or(u64::MAX, Answer::cost_ns);
        let is_long = !self.has_offered_all() && now_ms >= self.begun_ms + LOOK_WITHIN_MS;
        is_long.then_some(Said::Searching { cost_ns, bound_ns: 0 })
    }

    fn step_quietly(&mut self, chart: &mut Option<Chart>, watch: &mut Watch) -> Vec<Said> {
        if self.finished {
            return Vec::new();
        }
        if let Some(published) = schedule::published().get(self.next) {
            self.next += 1;
            if self.stops && self.best.so_far().is_some() {
                let reason = "not looked at: the search was ended before".to_owned();
                return vec![Said::Compared(wire::absent_row(published.name, Some(reason)))];
            }
            let answer = planner::answer(&self.spec, published);
            if let (Some(chart), Ok(answer)) = (chart, &answer) {
                chart.offer(answer);
            }
            let row = match &answer {
                Ok(answer) => wire::row(&self.spec, published.name, answer),
                Err(absent) => wire::absent_row(published.name, Some(absent.reason.clone())),
            };
            self.best.offer(published.name, answer);
            return vec![Said::Compared(row)];
        }
        let (id, known_ns) = (self.id, self.best.so_far().map_or(u64::MAX, Answer::cost_ns));
        let mut stopped = false;
        let searched = match self.stops && self.best.so_far().is_some() {
            true => Ok(false),
            false => self.best.search_next(Effort::default(), &mut |progress| {
                stopped = stopped || watch(id, progress.cost_ns.min(known_ns), progress.bound_ns) == Flow::Stop;
                if stopped { Flow::Stop } else { Flow::Continue }
            }),
        };
        self.stops |= stopped;
        match searched {
            Ok(true) => Vec::new(),
            Ok(false) => {
                self.finished = true;
                if let (Some(chart), Some(best)) = (chart, self.best.so_far()) {
                    chart.offer(best);
                }
                vec![Said::Compared(self.best_row())]
            }
            Err(error) => {
                self.finished = true;
                vec![Said::Compared(wire::absent_row(BEST, Some(error.to_string())))]
            }
        }
    }

    fn best_row(&self) -> Row {
        match self.best.so_far() {
            // A published schedule that nothing beats is named; what the search found has no name.
            Some(answer) => {
                let won = match (answer.name == BEST, self.stops) {
                    (true, false) => "found by search".to_owned(),
                    (true, true) => "found by search, ended early".to_owned(),
                    (false, false) => wire::title(&answer.name),
                    (false, true) => format!("{}, search ended early", wire::title(&answer.name)),
                };
                Row { reason: Some(won), ..wire::row(&self.spec, BEST, answer) }
            }
            None => wire::absent_row(BEST, Some(self.why_none().0)),
        }
    }

    /// Why nothing fits. What each published schedule lacks stands in its row; here it is what the search says,
    /// of the placement that comes nearest, or the field that is wrong for each of them.
    fn why_none(&self) -> (String, Option<FieldFault>) {
        let (reason, fault) = match self.best.clone().finish() {
            Err(PlanError::NoSchedule { nearest: Some(infeasible), .. }) => (infeasible.to_string(), None),
            Err(PlanError::NoSchedule { reasons, .. }) => match one_fault(&reasons) {
                Some((reason, fault)) => (reason.to_owned(), Some(fault)),
                None => ("every schedule breaks a limit or lacks its shape".to_owned(), None),
            },
            Err(error) => (error.to_string(), None),
            Ok(_) => (String::new(), None),
        };
        (text::sentence(&format!("No schedule fits: {}", no_plan(&self.spec, &reason))), fault)
    }

    /// The best so far, where the page shows the best and has another one.
    fn show(&mut self) -> Option<Said> {
        // A plan before all published schedules have been looked at would only flicker.
        if !self.shows_best || !self.has_offered_all() {
            return None;
        }
        match self.best.so_far() {
            Some(answer) if self.shown_ns != Some(self.best.least_ns()) => {
                self.shown_ns = Some(self.best.least_ns());
                Some(Said::Planned(Box::new(wire::picture_of(&self.spec, answer))))
            }
            None if self.finished => {
                let (reason, fault) = self.why_none();
                Some(Said::NoPlan { schedule: BEST.to_owned(), reason, fault })
            }
            _ => None,
        }
    }
}

impl Explanation {
    /// Looks at the next schedule. `Some` at the end, with what is to be said where memory is what lacks.
    fn step(&mut self) -> Option<Option<Said>> {
        let most = |ranks: &[RankMemory]| ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
        if let Some(name) = self.names.pop() {
            let verdict = schedule::find(&name).and_then(|published| verdict::verdict(&self.spec, &published).ok());
            if let Some((_, ranks)) = verdict
                && self.nearest.as_ref().is_none_or(|(least, _)| most(&ranks) < *least)
            {
                self.nearest = Some((most(&ranks), name));
            }
            return None;
        }
        if self.suggestion.is_none() {
            self.suggestion = self.unfit();
        }
        let Some((_, finder)) = &mut self.suggestion else { return Some(None) };
        if finder.step() {
            return None;
        }
        let said = self.suggestion.take().map(|(mut unfit, finder)| {
            let found = finder.finish();
            let cheapest = found.cheapest().cloned();
            let Suggestions { single, combined, all } = found;
            let row = |suggestion| {
                let is_cheapest = cheapest.as_ref() == Some(&suggestion);
                wire::suggestion(suggestion, is_cheapest)
            };
            unfit.suggestions = combined.into_iter().chain(all).chain(single).map(row).collect();
            unfit.suggestions.sort_by_key(|suggestion| !suggestion.cheapest);
            Said::Unfit(Box::new(unfit))
        });
        Some(said)
    }

    /// What the nearest schedule holds, where that is too much, and who looks for what would help.
    fn unfit(&self) -> Option<(Unfit, Finder)> {
        let (_, name) = self.nearest.as_ref()?;
        let published = schedule::find(name)?;
        let (_, ranks) = verdict::verdict(&self.spec, &published).ok()?;
        if ranks.iter().all(RankMemory::fits) {
            return None;
        }
        let unfit = Unfit { schedule: name.clone(), memory: wire::ranks_bytes(&ranks), suggestions: Vec::new() };
        Some((unfit, Finder::new(&self.spec, &published).ok()?))
    }
}

/// The first of these reasons and the fault that it tells of, where all of them blame one field: each schedule does it in
/// numbers of its own.
fn one_fault(reasons: &[(String, String)]) -> Option<(&str, FieldFault)> {
    let mut faults = reasons.iter().map(|(_, reason)| text::fault_of(reason));
    let first = faults.next()??;
    let same = |fault: Option<FieldFault>| fault.is_some_and(|fault| fault.field == first.field);
    faults.all(same).then(|| (reasons[0].1.as_str(), first))
}

/// What the page sent of a plan; none where that is none.
fn read_order(order: &Order) -> Option<(Problem, Schedule)> {
    let statement = Statement::read(&serde_json::from_str(&order.problem).ok()?).ok()?;
    let problem = statement.problem(statement.placements().first()?.clone()).ok()?;
    let schedule = Schedule { pairs: order.pairs.clone(), ..Schedule::from_text_rows(&order.rows).ok()? };
    Some((problem, schedule))
}

/// The plan file of a spec with the schedule that it names, byte for byte what the command line writes.
///
/// # Errors
/// What is wrong with the spec, or why there is no plan, in words.
pub fn plan_file(spec: &str, schedule: Option<&str>) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    let name = schedule.unwrap_or(&spec.schedule);
    let plan = planner::plan(&spec, name).map_err(|error| error.to_string())?;
    Ok(plan.to_json())
}

/// `pipeplan compare --json` of a spec.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn comparison(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    serde_json::to_string(&planner::compare(&spec)).map_err(|error| error.to_string())
}

/// The link of a spec: what stands after `#` in the page's address.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn link(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    Ok(pipeplan_core::spec::link::write(&spec))
}

fn solve(spec: &Spec, name: &str) -> Result<Answer, PlanError> {
    let published = schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_owned() })?;
    // With the size of its groups, which the published schedule does not know as a part of its name.
    planner::answer(spec, &published)
        .map(|answer| Answer { name: name.to_owned(), ..answer })
        .map_err(|absent| PlanError::Absent { schedule: wire::title(name), reason: absent.reason })
}

/// What `plan` was made of where it follows from `spec`.
fn case_of(plan: &Plan, spec: &Spec) -> Option<Case> {
    planner::open_cases(spec).unwrap_or_default().into_iter().find(|case| case.problem == plan.problem)
}

fn read_spec(text: &str) -> Result<Spec, Vec<FieldFault>> {
    Spec::read(text).map_err(|error| match error {
        pipeplan_core::spec::SpecError::Faults(faults) => wire::faults(&faults),
        other => vec![whole_fault(other.to_string())],
    })
}

/// Whether two specs differ at most in name and schedule.
pub(crate) fn same_work(one: &Spec, other: &Spec) -> bool {
    *one == Spec { name: one.name.clone(), schedule: one.schedule.clone(), ..other.clone() }
}

/// Why `spec` has no plan, for those who have its form before them.
fn no_plan(spec: &Spec, reason: &str) -> String {
    match &spec.work {
        SpecWork::Model(work) => text::worded(&text::within_device(reason, work.device.memory_bytes)),
        SpecWork::Typed(_) => text::worded(reason),
    }
}

fn unreadable(what: &str, reason: String) -> Said {
    Said::Unreadable { what: what.to_owned(), faults: vec![whole_fault(reason)] }
}

/// A fault that no field is to blame for: its sentence alone.
fn whole_fault(sentence: String) -> FieldFault {
    FieldFault { field: String::new(), found: sentence, accepted: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Layouts;

    const SPEC: &str = r#"{ "ranks": 4, "microbatches": 8, "chunks": 1, "placement": "linear",
        "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 } }"#;

    fn plan(id: u32, spec: &str) -> Question {
        Question { id, ask: Ask::Plan { spec: spec.to_owned() } }
    }

    fn unwatched() -> Watch {
        Box::new(|_, _, _| Flow::Continue)
    }

    /// What a search has found by then is shown, compared and exported; who asks for the best again has it searched on.
    #[test]
    fn a_search_ends_early_with_the_best_so_far() {
        let spec =
            r#"{ "ranks": 6, "microbatches": 12, "chunks": 2, "placement": "v", "limit_bytes": 70, "transfer_ns": 3,
            "stages": { "forward_ns": 9, "backward_input_ns": 11, "backward_weight_ns": 7,
            "forward_bytes": 10, "backward_input_bytes": -4, "backward_weight_bytes": -6 } }"#
                .to_owned();
        let best = |replies: &[Reply]| {
            let row = replies.iter().rev().find_map(|reply| match &reply.said {
                Said::Compared(row) if row.schedule == BEST => Some(row.clone()),
                _ => None,
            });
            let row = row.expect("a row of the best");
            (row.costs.expect("a plan").makespan_ns, row.reason.unwrap_or_default())
        };
        let mut whole = Work::new(|| 0.0, unwatched());
        whole.take(plan(1, &spec));
        let (least_ns, by) = best(&finish(&mut whole));
        assert!(!by.contains("early"), "{by}");

        // By the watch, from within a search.
        let mut work = Work::new(
            || 0.0,
            Box::new(|id, cost_ns, bound_ns| {
                assert!(id == 1 && bound_ns > 0 && bound_ns <= cost_ns);
                Flow::Stop
            }),
        );
        work.take(plan(1, &spec));
        let replies = finish(&mut work);
        let (stopped_ns, by) = best(&replies);
        assert!(by.ends_with(" ended early") && stopped_ns >= least_ns, "{by} {stopped_ns} {least_ns}");
        assert_eq!(replies.last().map(|reply| &reply.said), Some(&Said::Done));
        work.take(Question { id: 2, ask: Ask::Export { spec: spec.clone(), purpose: Purpose::Download } });
        let Said::Exported { text, .. } = finish(&mut work).remove(0).said else { panic!("no file") };
        assert_eq!(Plan::from_json(&text).unwrap().prediction.makespan_ns, stopped_ns);

        // By a question that comes between two pieces, and then searched on.
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, &spec));
        work.take(Question { id: 2, ask: Ask::Stop });
        let (_, by) = best(&finish(&mut work));
        let early = by.contains("early");
        work.take(plan(3, &spec));
        let replies = finish(&mut work);
        assert_eq!(replies.iter().any(|reply| matches!(reply.said, Said::Comparing { .. })), early);
        if early {
            assert_eq!(best(&replies).0, least_ns);
        }
        work.take(Question { id: 4, ask: Ask::Stop });
        assert_eq!(finish(&mut work), []);
    }

    /// Where looking at each schedule takes long, they come one by one, and looking at them can be ended.
    #[test]
    fn schedules_that_take_long_come_one_by_one() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NOW: AtomicU32 = AtomicU32::new(0);
        let mut work = Work::new(|| f64::from(NOW.fetch_add(400, Ordering::Relaxed)), unwatched());
        work.take(plan(1, SPEC));
        let rows = |replies: &[Reply]| replies.iter().filter(|reply| matches!(reply.said, Said::Compared(_))).count();
        let first = work.step();
        assert!((1..4).contains(&rows(&first)), "{first:?}");
        assert!(
            matches!(first.last().unwrap().said, Said::Searching { bound_ns: 0, .. } | Said::Charted(_)),
            "{first:?}"
        );
        let next = work.step();
        assert_eq!(rows(&next), 1);
        assert!(next.iter().any(|reply| matches!(reply.said, Said::Searching { bound_ns: 0, .. })), "{next:?}");
        assert!(!next.iter().any(|reply| matches!(reply.said, Said::Planned(_))));
        work.take(Question { id: 2, ask: Ask::Stop });
        let last = finish(&mut work);
        assert_eq!(rows(&first) + rows(&next) + rows(&last), schedule::published().len() + 1);
        let skipped = last.iter().filter(|reply| {
            matches!(&reply.said, Said::Compared(Row { reason: Some(reason), .. }) if reason.starts_with("not looked at"))
        });
        assert_eq!(skipped.count(), rows(&last) - 1, "{last:?}");
        assert!(last.iter().any(|reply| matches!(reply.said, Said::Planned(_))));
        assert_eq!(last.last().map(|reply| &reply.said), Some(&Said::Done));
    }

    fn finish(work: &mut Work) -> Vec<Reply> {
        let mut replies = Vec::new();
        while !work.is_answered() {
            replies.extend(work.step());
        }
        // The chart is a matter of its own.
        replies.retain(|reply| !matches!(reply.said, Said::Charted(_)));
        replies
    }

    /// Layouts come while they are found; a plan that is asked for meanwhile comes first, and ending leaves what there is.
    #[test]
    fn layouts_are_found_beside_plans_and_can_be_ended() {
        let model = r#"{ "model": { "name": "tiny-llama", "layers": 2 }, "cluster": { "device": "cpu" },
            "parallel": { "pipeline": 2 }, "training": { "microbatches": 4, "sequence": 16 } }"#;
        let tune = |spec: Option<&str>| Ask::Tune { spec: spec.map(str::to_owned), devices: None };
        let layouts = |replies: &[Reply]| -> Vec<Layouts> {
            let of = |reply: &Reply| match &reply.said {
                Said::Tuned(layouts) => Some((**layouts).clone()),
                _ => None,
            };
            replies.iter().filter_map(of).collect()
        };
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(Question { id: 1, ask: tune(Some(model)) });
        assert_eq!(layouts(&work.step()).len(), 1, "it says at once how many there are");
        work.take(plan(2, SPEC));
        assert!(work.step().iter().any(|reply| matches!(reply.said, Said::Planned(_))));
        let told = layouts(&finish(&mut work));
        let last = told.last().unwrap();
        assert!(last.finished && last.settled == last.all && last.given.is_some(), "{last:?}");
        assert!(last.rows.is_sorted_by_key(|row| row.step.step_ns) && !last.rows.is_empty());
        for row in &last.rows {
            assert!(Spec::read(&row.spec).is_ok());
        }

        work.take(Question { id: 3, ask: tune(Some(model)) });
        work.step();
        work.take(Question { id: 4, ask: tune(None) });
        let ended = layouts(&work.step());
        assert!(ended[0].finished && ended[0].settled < ended[0].all, "{ended:?}");
        work.take(Question { id: 5, ask: tune(Some(SPEC)) });
        assert!(work.step().iter().any(|reply| matches!(&reply.said, Said::NotTuned(faults) if !faults.is_empty())));
        assert!(work.is_answered());
    }

    /// What the page makes of everything that is said of the chart, until there is nothing left to say.
    fn charted(work: &mut Work) -> crate::draw::chart::Chart {
        let mut chart = crate::draw::chart::Chart::default();
        while !work.is_idle() {
            for reply in work.step() {
                if let Said::Charted(news) = reply.said {
                    chart.hear(news);
                }
            }
        }
        chart
    }

    #[test]
    fn the_chart_reaches_from_the_least_memory_to_the_best_of_all() {
        let mut work = Work::new(|| 0.0, unwatched());
        let small = SPEC.replace("\"microbatches\": 8", "\"microbatches\": 4");
        work.take(plan(1, &small));
        let chart = charted(&mut work);
        assert!(chart.finished && !chart.stale);
        // One microbatch at a time: a forward's bytes on every rank, and no overlap of ranks at all.
        assert_eq!((chart.least_bytes, chart.curve[0].bytes), (Some(2), 2));
        let free = planner::plan(&Spec::read(&small).unwrap(), BEST).unwrap();
        assert_eq!(chart.curve.last().map(|point| point.judged_ns), Some(free.prediction.makespan_ns));
        // Another limit is another place on the same chart.
        work.take(plan(2, &small.replace("\"ranks\": 4,", "\"ranks\": 4, \"limit_bytes\": 4,")));
        finish(&mut work);
        assert!(work.is_idle());
    }

    /// Each point of the curve can be had as a plan: what it holds, and what it costs.
    #[test]
    fn a_point_of_the_chart_is_a_plan_where_it_is_better_than_what_is_shown() {
        let small = SPEC.replace("\"microbatches\": 8", "\"microbatches\": 4");
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, &small));
        let chart = charted(&mut work);
        assert!(chart.curve.len() > 2, "{chart:?}");
        for point in &chart.curve {
            let limited = format!("\"ranks\": 4, \"limit_bytes\": {},", point.bytes);
            let mut asked = |below_ns: u64| {
                let spec = small.replace("\"ranks\": 4,", &limited);
                work.take(Question { id: 2, ask: Ask::OpenPoint { spec, bytes: point.bytes, below_ns } });
                finish(&mut work).remove(0).said
            };
            let Said::Ordered { plan } = asked(point.judged_ns + 1) else { panic!("{point:?} is no plan") };
            let plan = Plan::from_json(&plan).expect("a plan");
            assert_eq!(plan.schedule_name, FROM_CHART);
            assert_eq!(plan.prediction.makespan_ns, point.judged_ns);
            assert_eq!(plan.prediction.peak_bytes.iter().max(), Some(&point.bytes));
            let said = asked(point.judged_ns);
            assert!(matches!(&said, Said::NoPoint { reason } if reason.contains("under this limit")), "{said:?}");
        }
        let other = small.replace("\"forward_ns\": 10", "\"forward_ns\": 11");
        work.take(Question { id: 3, ask: Ask::OpenPoint { spec: other, bytes: u64::MAX, below_ns: u64::MAX } });
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].said, Said::NoPoint { reason } if reason.contains("no order")), "{replies:?}");
        assert_eq!(replies[1].said, Said::Done);
    }

    /// What is promised is what the best is chosen by: with waits at transfers, the end of a step and jitter.
    #[test]
    fn points_of_the_chart_are_judged_as_the_best_is() {
        let typed = |more: &str| {
            format!(
                r#"{{ {more} "problem": {{ "ranks": 3, "microbatches": 4, "placement": "any", "transfer_ns": 9,
                "stages": {{ "forward_ns": 10, "backward_input_ns": 12, "backward_weight_ns": 8,
                "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 }} }} }}"#
            )
        };
        let model = |more: &str| {
            format!(
                r#"{{ "model": {{ "name": "tiny-llama" }}, "cluster": {{ "device": "cpu" }}, "parallel": {{ "pipeline": 2, "data": 2 }},
                {more} "training": {{ "microbatches": 4 }} }}"#
            )
        };
        let in_pieces = r#""messages": { "lowering": "in-pieces", "transport": "buffered:4" },"#;
        for text in [
            typed(""),
            typed(in_pieces),
            typed(r#""messages": { "lowering": "grouped" }, "jitter_permille": 100,"#),
            model(""),
            model(in_pieces),
            model(r#""objective": "longest_span","#),
        ] {
            let spec = Spec::read(&text).unwrap();
            for published in schedule::published() {
                let Ok(answer) = planner::answer(&spec, published) else { continue };
                let mut best = Best::new(&spec);
                best.offer(published.name, Ok(answer.clone()));
                assert_eq!(answer.judged_ns(), best.least_ns(), "{} of {text}", published.name);
                let (case, ends) = (&answer.case, answer.case.derived.as_ref().map(|derived| &derived.ends));
                let judged_ns = planner::judged_ns(&spec, &case.problem, ends, &answer.schedule, &answer.timeline);
                assert_eq!(judged_ns, best.least_ns(), "{} of {text}", published.name);
            }
            let mut work = Work::new(|| 0.0, unwatched());
            work.take(plan(1, &text));
            let mut shown_ns = None;
            while !work.is_answered() {
                shown_ns = work.step().into_iter().rev().fold(shown_ns, |shown_ns, reply| match reply.said {
                    Said::Planned(picture) => Some(picture.figures.judged_ns),
                    _ => shown_ns,
                });
            }
            assert_eq!(shown_ns, work.comparison.as_ref().map(|running| running.best.least_ns()), "{text}");
        }
    }

    #[test]
    fn a_model_that_does_not_fit_is_told_what_would() {
        let spec = r#"{ "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" }, "schedule": "1f1b",
            "parallel": { "pipeline": 2 }, "training": { "microbatches": 4, "microbatch_size": 2 }, "memory": { "limit_bytes": 1000 } }"#;
        for (schedule, explained) in [("1f1b", "1f1b"), ("best", "")] {
            let mut work = Work::new(|| 0.0, unwatched());
            work.take(plan(1, &spec.replace("1f1b", schedule)));
            let replies = finish(&mut work);
            let Some(Said::Unfit(unfit)) = replies.last().map(|reply| &reply.said) else { panic!("{replies:?}") };
            assert!(explained.is_empty() || unfit.schedule == explained);
            assert_eq!(unfit.memory.len(), 2);
            for rank in &unfit.memory {
                assert_eq!(rank.fixed.iter().sum::<u64>() + rank.activations, rank.peak);
                assert_eq!(rank.fixed.len(), wire::kinds_of_bytes().len());
            }
            assert!(unfit.suggestions.iter().any(|suggestion| suggestion.changes[0][0] == "training.recompute"));
            assert!(unfit.suggestions.iter().all(|suggestion| !suggestion.cheapest && !suggestion.fits), "{unfit:?}");
        }
        // The cheapest of what fits comes first, as the command names it.
        let fits = spec.replace("\"limit_bytes\": 1000", "\"limit_bytes\": 6300000");
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, &fits));
        let Some(Said::Unfit(unfit)) = finish(&mut work).pop().map(|reply| reply.said) else { panic!("it fits") };
        let found = pipeplan_core::advise::suggest::suggestions(
            &Spec::read(&fits).unwrap(),
            &schedule::find("1f1b").unwrap(),
        )
        .unwrap();
        assert_eq!(
            Some(&unfit.suggestions[0]),
            found.cheapest().map(|suggestion| wire::suggestion(suggestion.clone(), true)).as_ref()
        );
        assert_eq!(unfit.suggestions.len(), found.combined.len() + found.single.len());
    }

    /// Where the best fits, and waits for memory; whoever asks for it again is told again.
    #[test]
    fn a_limit_that_costs_time_is_told_once_the_best_is_known() {
        let spec = |limit: &str, schedule: &str| {
            format!(
                r#"{{ "model": {{ "name": "llama-2-13b" }}, "cluster": {{ "device": "a100-80" }}, "schedule": "{schedule}",
                "parallel": {{ "pipeline": 4 }}, "training": {{ "microbatches": 4 }},
                "memory": {{ "limit_bytes": "{limit}" }} }}"#
            )
        };
        let told = |work: &mut Work, id: u32, limit: &str, schedule: &str| {
            work.take(plan(id, &spec(limit, schedule)));
            let mut told = Vec::new();
            let mut done = false;
            while !work.is_idle() {
                if let Some(Shortening::Begun { .. }) = work.comparison.as_ref().map(|running| &running.shortening) {
                    assert_eq!(work.rest_ms(), 0, "its pieces are small, and many");
                }
                for Reply { id: of, said } in work.step() {
                    done |= said == Said::Done;
                    if let Said::Shorter(shorter) = said {
                        assert!(done && of == id, "it comes once all else is said");
                        told.push(*shorter);
                    }
                }
            }
            told
        };
        let mut work = Work::new(|| 0.0, unwatched());
        let first = told(&mut work, 1, "66 GiB", "best");
        let [shorter] = &first[..] else { panic!("{first:?}") };
        assert!(shorter.without_limit_ns < shorter.step_ns / 10 * 9, "{shorter:?}");
        assert!(
            shorter.suggestions.iter().all(|suggestion| suggestion.fits && suggestion.step_ns < shorter.step_ns),
            "{shorter:?}"
        );
        assert!(
            shorter.suggestions.iter().any(|suggestion| suggestion.changes[0][0] == "training.recompute"),
            "{shorter:?}"
        );
        assert_eq!(told(&mut work, 2, "66 GiB", "1f1b"), []);
        assert_eq!(told(&mut work, 3, "66 GiB", "best"), first);
        assert_eq!(told(&mut work, 4, "300 GiB", "best"), []);
    }

    /// The passes of the plan on screen, for a published schedule and for the best.
    #[test]
    fn what_the_passes_did_is_said_when_asked() {
        for schedule in ["1f1b", "best"] {
            let spec = format!(
                r#"{{ "model": {{ "name": "tiny-llama" }}, "cluster": {{ "device": "cpu" }}, "schedule": "{schedule}",
                "parallel": {{ "pipeline": 2 }}, "training": {{ "microbatches": 4, "recompute": "full" }} }}"#
            );
            let mut work = Work::new(|| 0.0, unwatched());
            work.take(plan(1, &spec));
            finish(&mut work);
            work.take(Question { id: 2, ask: Ask::Passes { spec } });
            let replies = finish(&mut work);
            let Some(Said::Passes(text)) = replies.last().map(|reply| &reply.said) else { panic!("{replies:?}") };
            // Weights by their own names, which are like those of fields.
            for part in ["stage", "split of the backward into B and W: ", "recompute: ", "model.layers.*.mlp"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn a_plan_is_shown_and_compared_with_every_schedule() {
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(7, SPEC));
        let replies = finish(&mut work);
        let plans: Vec<&Reply> = replies.iter().filter(|reply| matches!(reply.said, Said::Planned(_))).collect();
        assert_eq!(plans.len(), 1, "nothing is shown twice while the clock stands still");
        let rows = replies.iter().filter(|reply| matches!(reply.said, Said::Compared(_))).count();
        assert_eq!(rows, schedule::published().len() + 1);
        assert!(replies.iter().all(|reply| reply.id == 7));
        assert_eq!(replies.last().map(|reply| &reply.said), Some(&Said::Done));
    }

    #[test]
    fn another_schedule_of_the_same_spec_is_not_compared_again() {
        let mut work = Work::new(|| 0.0, unwatched());
        let spec = |schedule: &str| format!(r#"{{ "schedule": "{schedule}", "problem": {SPEC} }}"#);
        work.take(plan(1, &spec("1f1b")));
        finish(&mut work);
        work.take(plan(2, &spec("gpipe")));
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].said, Said::Planned(picture) if picture.schedule == "gpipe"));
        assert_eq!(replies[1].said, Said::Done);
        assert_eq!(replies.len(), 2);
    }

    #[test]
    fn the_best_is_the_best_of_the_rows_and_the_same_as_in_the_plan_file() {
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, SPEC));
        let replies = finish(&mut work);
        let makespans = replies.iter().filter_map(|reply| match &reply.said {
            Said::Compared(row) => row.costs.map(|costs| costs.makespan_ns),
            _ => None,
        });
        let shown = replies.iter().find_map(|reply| match &reply.said {
            Said::Planned(picture) => Some(picture.figures.makespan_ns),
            _ => None,
        });
        assert_eq!(makespans.min(), shown);
        let plan = Plan::from_json(&plan_file(SPEC, None).unwrap()).unwrap();
        assert_eq!(Some(plan.prediction.makespan_ns), shown);
    }

    /// Of the order that is asked about, one kind after the other; a newer question ends an older one.
    #[test]
    fn what_a_plan_hangs_on_is_said_when_asked() {
        let mut work = Work::new(|| 0.0, unwatched());
        let plan = Plan::from_json(&plan_file(SPEC, Some("1f1b")).unwrap()).unwrap();
        let order = Order {
            problem: plan.problem.statement().to_value().to_string(),
            rows: plan.schedule.text_rows(),
            pairs: Vec::new(),
        };
        work.take(Question { id: 1, ask: Ask::Sense(Some(order.clone())) });
        work.step();
        assert!(!work.is_idle());
        work.take(Question { id: 2, ask: Ask::Sense(Some(order)) });
        let replies = finish(&mut work);
        let [Reply { id: 2, said: Said::Sensed(sensed) }] = &replies[..] else { panic!("{replies:?}") };
        assert_eq!(sensed.cost_ns, plan.prediction.makespan_ns);
        let names: Vec<&str> = sensed.rows.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names[..3], ["every op", "all BW", "all F"]);
        assert_eq!(names.iter().filter(|name| name.starts_with("rank ")).count(), plan.problem.ranks());
        assert!(sensed.rows.iter().all(|(_, longer, less)| less <= &sensed.cost_ns && &sensed.cost_ns <= longer));
        work.take(Question { id: 3, ask: Ask::Sense(None) });
        assert_eq!(finish(&mut work), []);
    }

    #[test]
    fn a_plan_keeps_the_size_of_its_groups() {
        let mut work = Work::new(|| 0.0, unwatched());
        let spec = SPEC.replace("\"chunks\": 1, \"placement\": \"linear\"", "\"chunks\": 2");
        work.take(plan(1, &format!(r#"{{ "schedule": "interleaved-1f1b:8", "problem": {spec} }}"#)));
        let first = work.step().remove(0).said;
        assert!(matches!(&first, Said::Planned(picture) if picture.schedule == "interleaved-1f1b:8"), "{first:?}");
        assert_eq!(wire::title("interleaved-1f1b:8"), "Interleaved 1F1B, groups of 8");
    }

    #[test]
    fn an_exported_plan_opens_as_the_same_plan() {
        let mut work = Work::new(|| 0.0, unwatched());
        let text = plan_file(SPEC, Some("1f1b")).unwrap();
        work.take(Question { id: 1, ask: Ask::OpenPlan { text } });
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].said, Said::Opened { picture, .. } if picture.schedule == "1f1b"));
    }

    /// What was compared is not searched again, and the file is the same.
    #[test]
    fn what_is_exported_after_a_comparison_is_what_the_command_writes() {
        for schedule in [BEST, "zb-h1"] {
            let spec = format!(r#"{{ "schedule": "{schedule}", "problem": {SPEC} }}"#);
            let mut work = Work::new(|| 0.0, unwatched());
            work.take(plan(1, &spec));
            finish(&mut work);
            work.take(Question { id: 2, ask: Ask::Export { spec: spec.clone(), purpose: Purpose::Keep } });
            let Said::Exported { text, purpose } = finish(&mut work).remove(0).said else { panic!("no file") };
            assert_eq!((purpose, Ok(text.clone())), (Purpose::Keep, plan_file(&spec, None)));
            work.take(Question { id: 3, ask: Ask::OpenKept { text } });
            let again = finish(&mut work).remove(0).said;
            assert!(matches!(&again, Said::KeptOpened { picture } if !picture.rows.is_empty()), "{again:?}");
        }
    }

    /// With measured times the plan on screen and its file are those of `plan --profile`; it is said how much is measured;
    /// without them it is estimates again.
    #[test]
    fn measured_times_are_planned_with_until_they_are_closed() {
        use pipeplan_core::estimate::derive::graph_of;
        use pipeplan_core::hardware::cost::Load;
        use pipeplan_core::hardware::profile::Signature;
        use pipeplan_core::model::StageLayout;
        let text = r#"{ "schedule": "1f1b", "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" },
            "parallel": { "pipeline": 2 }, "training": { "microbatches": 4 } }"#;
        let mut spec = Spec::read(text).unwrap();
        let SpecWork::Model(model) = &mut spec.work else { panic!("a model") };
        let graph = graph_of(model, &StageLayout { layers: 0..model.model.layers, embedding: true, head: true });
        let mut profile = Profile::new("a test's device");
        for operator in &graph.operators {
            profile.insert(Signature::of(&graph, operator), Load::of(&graph, operator), 1000);
        }
        let file = profile.to_json();
        model.profile = Some(Arc::new(profile));
        let expected = planner::plan(&spec, "1f1b").unwrap().to_json();
        let mut work = Work::new(|| 0.0, unwatched());
        let exported = |work: &mut Work| {
            work.take(plan(2, text));
            let told = finish(work).into_iter().find_map(|reply| match reply.said {
                Said::Timed(timed) => timed,
                _ => None,
            });
            work.take(Question { id: 3, ask: Ask::Export { spec: text.to_owned(), purpose: Purpose::Download } });
            let Said::Exported { text, .. } = finish(work).remove(0).said else { panic!("no file") };
            (told, text)
        };
        let estimated = exported(&mut work);
        assert_eq!((estimated.0.as_ref(), Ok(&estimated.1)), (None, plan_file(text, None).as_ref()));
        work.take(Question { id: 1, ask: Ask::Measure { profile: Some(file.clone()) } });
        assert!(matches!(&finish(&mut work)[0].said, Said::Timed(Some(timed)) if timed.device == "a test's device"));
        let (told, plan_file) = exported(&mut work);
        assert_eq!(told.unwrap().covers, "all operators are measured");
        assert!(plan_file == expected && plan_file != estimated.1);
        // A plan that was made without them has its own times, and it is not said to have these.
        let mut covers = |text: &str| {
            work.take(Question { id: 3, ask: Ask::OpenPlan { text: text.to_owned() } });
            finish(&mut work).into_iter().find_map(|reply| match reply.said {
                Said::Timed(timed) => timed.map(|timed| timed.covers),
                _ => None,
            })
        };
        assert_eq!(covers(&expected).as_deref(), Some("all operators are measured"));
        assert!(covers(&estimated.1).is_some_and(|covers| covers.starts_with("not in the plan file")));
        // A file that is none leaves what is there.
        work.take(Question { id: 4, ask: Ask::Measure { profile: Some(file.replace("1000", "-1")) } });
        let said = finish(&mut work).remove(0).said;
        assert!(
            matches!(&said, Said::Unreadable { what, faults } if what == "profile" && !faults.is_empty()),
            "{said:?}"
        );
        assert!(exported(&mut work).1 == expected);
        work.take(Question { id: 5, ask: Ask::Measure { profile: None } });
        assert_eq!(finish(&mut work)[0].said, Said::Timed(None));
        assert_eq!(exported(&mut work), estimated);
    }

    #[test]
    fn where_nothing_fits_the_least_memory_is_named() {
        let mut work = Work::new(|| 0.0, unwatched());
        let spec = SPEC.replace("\"ranks\": 4,", "\"ranks\": 4, \"limit_bytes\": 1,");
        work.take(plan(1, &spec));
        let replies = finish(&mut work);
        let reason = replies.iter().find_map(|reply| match &reply.said {
            Said::NoPlan { reason, .. } => Some(reason.as_str()),
            _ => None,
        });
        assert!(reason.is_some_and(|reason| reason.contains("needs at least 2 B")), "{reason:?}");
    }

    /// A list of layers that is of another model, or of too few stages, is told at its field, whatever the schedule.
    #[test]
    fn a_field_that_no_schedule_can_have_is_named() {
        for (schedule, partition, found, says) in [
            ("best", "[8, 8, 8, 9]", "33 layers in all", "“Layers”: found 33 layers in all, accepted is 32"),
            ("1f1b", "[8, 8, 8, 9]", "33 layers in all", "“Layers”: found 33 layers in all, accepted is 32"),
            ("best", "[32]", "1 entry", "found 1 entry, accepted is 4 entries, one for each stage of 4 ranks."),
        ] {
            let spec = format!(
                r#"{{ "model": {{ "name": "llama-2-7b" }}, "cluster": {{ "device": "h100" }}, "schedule": "{schedule}",
                "parallel": {{ "pipeline": 4, "partition": {partition} }}, "training": {{ "microbatches": 8 }} }}"#
            );
            let mut work = Work::new(|| 0.0, unwatched());
            work.take(plan(1, &spec));
            let said = finish(&mut work).into_iter().find_map(|reply| match reply.said {
                Said::NoPlan { reason, fault, .. } => Some((reason, fault)),
                _ => None,
            });
            let Some((reason, Some(fault))) = said else { panic!("{said:?}") };
            assert_eq!((fault.field.as_str(), fault.found.as_str()), ("parallel.partition", found), "{fault:?}");
            assert!(reason.contains(says), "{reason}");
        }
    }

    /// What torch wrote of the ranks is gathered until its trace is asked for, and forgotten then.
    #[test]
    fn what_was_recorded_becomes_a_trace_or_is_told_by_file() {
        let problem = r#"{ "ranks": 1, "microbatches": 1, "stages": { "forward_ns": 2, "backward_input_ns": 2 } }"#;
        let order =
            || Order { problem: problem.to_owned(), rows: vec!["0F0 0BW0".to_owned()], pairs: vec![Vec::new()] };
        let range = |name: &str, ts: u32| {
            format!(
                r#"{{ "ph": "X", "cat": "user_annotation", "name": "PP:{name}", "ts": {ts}, "dur": 5, "tid": 1 }},
                {{ "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": {ts}, "dur": 5, "tid": 1 }}"#
            )
        };
        let file = format!(r#"{{ "traceEvents": [{}, {}] }}"#, range("0F0", 10), range("0B0", 20));
        let record = |text: &str| Question {
            id: 1,
            ask: Ask::Record { batch: 1, name: "rank0.json".to_owned(), text: text.to_owned() },
        };
        let mut work = Work::new(|| 0.0, unwatched());
        let mut asked = |records: &[&str]| {
            records.iter().for_each(|text| work.take(record(text)));
            work.take(Question { id: 2, ask: Ask::Trace { batch: 1, order: order() } });
            finish(&mut work).remove(0).said
        };
        let Said::Traced { trace } = asked(&[&file]) else { panic!("it is a run of the order") };
        let trace = Trace::from_json(&trace).expect("a trace");
        assert_eq!(trace.steps[0].timeline().makespan_ns(), 15_000);
        // Those of files that were opened before are no part of it.
        let mut before = record(&file);
        before.ask = match before.ask {
            Ask::Record { name, text, .. } => Ask::Record { batch: 7, name, text },
            other => other,
        };
        work.take(before);
        let mut asked = |records: &[&str]| {
            records.iter().for_each(|text| work.take(record(text)));
            work.take(Question { id: 2, ask: Ask::Trace { batch: 1, order: order() } });
            finish(&mut work).remove(0).said
        };
        assert!(matches!(asked(&[&file]), Said::Traced { .. }));
        for (records, says) in [
            (&[][..], "rank 0 of the plan"),
            (&["{}"][..], "rank0.json, traceEvents"),
            (&[file.as_str(), "{}"][..], "rank0.json, traceEvents"),
        ] {
            match asked(records) {
                Said::NotTraced(faults) => assert_eq!((faults.len(), faults[0].field.as_str()), (1, says)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_newer_plan_makes_the_older_one_pointless() {
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, SPEC));
        work.take(plan(2, "{}"));
        let replies = finish(&mut work);
        assert!(replies.iter().all(|reply| reply.id == 2));
        assert!(matches!(&replies[0].said, Said::Refused(faults) if !faults.is_empty()));
    }

    #[test]
    fn a_newer_spec_stops_the_comparison_of_the_older_one() {
        let mut work = Work::new(|| 0.0, unwatched());
        work.take(plan(1, &format!(r#"{{ "schedule": "1f1b", "problem": {SPEC} }}"#)));
        work.step();
        work.step();
        work.take(plan(2, &SPEC.replace("\"microbatches\": 8", "\"microbatches\": 9")));
        let replies = finish(&mut work);
        assert!(replies.iter().all(|reply| reply.id == 2), "{replies:?}");
    }

    #[test]
    fn a_file_that_is_none_is_refused_in_words() {
        let mut work = Work::new(|| 0.0, unwatched());
        for ask in [Ask::OpenPlan { text: "{}".to_owned() }, Ask::OpenTrace { text: "nonsense".to_owned() }] {
            work.take(Question { id: 1, ask });
            let replies = finish(&mut work);
            assert!(matches!(&replies[0].said, Said::Unreadable { faults, .. } if !faults.is_empty()));
        }
        work.take(Question { id: 2, ask: Ask::TraceStep { index: 9 } });
        assert!(finish(&mut work).is_empty(), "there is no trace to show a step of");
    }

    /// A run by hand: F takes 3 instead of 2, one after the other.
    #[test]
    fn a_trace_is_held_against_the_plan_on_screen() {
        let problem = r#"{ "ranks": 1, "microbatches": 2, "placement": "linear",
            "stages": { "forward_ns": 2, "backward_input_ns": 4, "backward_weight_ns": 0 } }"#;
        let trace = r#"{ "format": "pipeplan-trace", "version": 1, "plan_digest": "", "backend": "cpu",
            "transport": "threads", "peak_bytes": [0], "steps": [{ "step": 0, "loss": null, "tokens": 0, "rows": [
            { "steps": "0F0 0BW0 0F1 0BW1", "start_ns": [0, 3, 7, 10], "end_ns": [3, 7, 10, 14] }] }] }"#;
        let mut work = Work::new(|| 0.0, unwatched());
        let calibrate = |row: &str| {
            let (problem, rows) = (problem.to_owned(), vec![row.to_owned()]);
            Question { id: 1, ask: Ask::Calibrate(Order { problem, rows, pairs: vec![Vec::new()] }) }
        };
        work.take(calibrate("0F0 0BW0 0F1 0BW1"));
        assert!(finish(&mut work).is_empty(), "there is no trace");
        work.take(Question { id: 1, ask: Ask::OpenTrace { text: trace.to_owned() } });
        finish(&mut work);
        work.take(calibrate("0F0 0BW0 0F1 0BW1"));
        let replies = finish(&mut work);
        let Said::Calibrated(found) = &replies[0].said else { panic!("{replies:?}") };
        assert_eq!((found.planned_ns, found.causes_ns, found.measured_ns), (12, [2, 0, 0, 0], 14));
        assert_eq!(found.deciding[0].0, "0BW");
        assert!(read_spec(&found.problem).is_ok(), "{}", found.problem);
        work.take(calibrate("0F0 0F1 0BW0 0BW1"));
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].said, Said::NotCalibrated(faults) if faults.len() == 1), "{replies:?}");
    }
}
