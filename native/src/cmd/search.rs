//! Planning with progress on standard error; Ctrl-C keeps the best so far.

use std::ops::RangeInclusive;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use pipeplan::runner::StopFlag;
use pipeplan_core::advise::explanation::{self, Explanation, Unexplained};
use pipeplan_core::advise::suggest::without_limit;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::estimate::derive::coverage;
use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, Answer, Case, Comparison, PlanError};
use pipeplan_core::problem::Schedule;
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::Lowering;
use pipeplan_core::schedule;
use pipeplan_core::search::{Flow, Progress};
use pipeplan_core::simulate::jitter::MAX_PERMILLE;
use pipeplan_core::spec::{self, Spec, Work};

use super::failure::Failure;
use super::{format, input, interrupt, output};

/// The effort of the search for `best`.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct Effort {
    /// Effort of the search for `best` on each placement, in simulated ops; Ctrl-C ends it and keeps the best so far
    #[arg(long, value_name = "OPS")]
    effort: Option<u64>,
}

impl Effort {
    /// Whether none was asked for.
    pub fn is_usual(self) -> bool {
        self.effort.is_none()
    }

    /// As the planner counts it.
    pub fn ops(self) -> pipeplan_core::search::Effort {
        self.effort.map_or_else(Default::default, pipeplan_core::search::Effort)
    }
}

/// Measured times of operators.
#[derive(clap::Args, Clone)]
pub struct Measured {
    /// Measured times of operators, from `pipeplan profile`, instead of estimates
    ///
    /// For an operator of a size that was not measured, its estimate is scaled by measured over estimated time of the
    /// nearest size with the same kind and dtype.
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,
}

impl Measured {
    /// `spec` with these times.
    pub fn apply(&self, mut spec: Spec) -> Result<Spec, Failure> {
        let Some(path) = &self.profile else { return Ok(spec) };
        let Work::Model(work) = &mut spec.work else {
            return Err(Failure::input("--profile applies to models, but this spec has typed costs"));
        };
        let profile = read_profile(path)?;
        let of_run = profile.run.as_ref().filter(|_| profile.is_empty()).map(|run| run.jitter_permille);
        work.profile = Some(Arc::new(profile));
        if let Some(jitter) = of_run {
            // More is too much for a plan.
            if (10..=1000).contains(&jitter) {
                let percent = jitter as f64 / 10.0;
                output::tell(&format!(
                    "note: ops of the run in {path} vary by {percent} %: `--jitter {percent}` plans for it"
                ));
            }
            return Ok(spec);
        }
        let Some(coverage) = coverage(work) else { return Ok(spec) };
        if !coverage.is_any() {
            let text = format!("{path}: the profile has no operator of this model in its precision");
            return Err(Failure::input(text).with_help("`pipeplan profile SPEC` measures the operators of this spec"));
        }
        if coverage.measured < coverage.all {
            output::tell(&format!("{path}: {coverage}"));
        }
        Ok(spec)
    }
}

/// The profile in the file `path`.
pub fn read_profile(path: &str) -> Result<Profile, Failure> {
    let source = input::read(path)?;
    Profile::of_json(&source.text).map_err(|error| Failure::input(format!("{}: {error}", source.name)))
}

/// How transfers go.
#[derive(clap::Args, Clone)]
pub struct Messages {
    /// Where transfers go among the ops: overlapped, overlapped:2 (two received ahead), grouped, receive-first or
    /// in-pieces; default: that of the spec
    #[arg(long, value_name = "HOW", value_parser = lowering)]
    lowering: Option<Lowering>,
    /// Semantics of the transport: grouped, rendezvous, buffered, buffered:4 (slots per channel), pair-ordered or
    /// streams; default: that of the spec. A plan that can hang on it is refused
    #[arg(long, value_name = "PROMISE", value_parser = transport)]
    transport: Option<Transport>,
}

impl Messages {
    /// `spec` with these options.
    pub fn apply(&self, mut spec: Spec) -> Spec {
        let spec::Messages { lowering, transport } = spec.messages;
        let transport = self.transport.unwrap_or(transport);
        let says_nothing = spec.messages == spec::Messages::default();
        let lowering = if says_nothing { Lowering::usual_on(transport) } else { lowering };
        spec.messages = spec::Messages { lowering: self.lowering.unwrap_or(lowering), transport };
        spec
    }
}

/// Jitter of op times.
#[derive(clap::Args, Clone, Copy)]
pub struct Jitter {
    /// Jitter: standard deviation of the time of an op, in percent of the planned time. Shows the median step time,
    /// and the time that 1 in 20 steps exceeds; default: that of the spec
    #[arg(long, value_name = "PERCENT", value_parser = jitter)]
    jitter: Option<u16>,
}

impl Jitter {
    /// `spec` with this option.
    pub fn apply(self, mut spec: Spec) -> Spec {
        spec.jitter_permille = self.jitter.unwrap_or(spec.jitter_permille);
        spec
    }
}

/// For arguments.
fn jitter(text: &str) -> Result<u16, String> {
    permille(text, 0..=MAX_PERMILLE.into()).map(|permille| permille as u16)
}

/// For arguments: percent, kept in thousandths, of which those are accepted.
pub fn permille(text: &str, accepted: RangeInclusive<u32>) -> Result<u32, String> {
    let percent = text.trim_end_matches('%').trim_end().parse::<f64>().ok();
    let permille = percent.map(|percent| (10.0 * percent).round());
    let [least, most] = [accepted.start(), accepted.end()].map(|permille| f64::from(*permille));
    match permille.filter(|permille| (least..=most).contains(permille)) {
        Some(permille) => Ok(permille as u32),
        None => Err(format!("give a percentage from {} to {}", least / 10.0, most / 10.0)),
    }
}

/// For arguments.
pub fn lowering(text: &str) -> Result<Lowering, String> {
    Lowering::read(text).ok_or_else(|| format!("accepted is {}", Lowering::ACCEPTED))
}

/// For arguments.
pub fn transport(text: &str) -> Result<Transport, String> {
    Transport::read(text).ok_or_else(|| format!("accepted is {}", Transport::ACCEPTED))
}

/// Plans `spec`.
pub fn plan(spec: &Spec, schedule: &str, effort: Effort) -> Result<Plan, Failure> {
    let mut watch = Watch::new(effort);
    let plan = planner::plan_with(spec, schedule, effort.ops(), &mut |progress| watch.see(progress));
    watch.finish();
    plan.map_err(|error| match &error {
        PlanError::NoSchedule { .. } => {
            Failure::input(format::spelled(&error.to_string())).with_help(match spec.work {
                Work::Model(_) => {
                    "`pipeplan compare` gives the reason for every schedule, `pipeplan memory` suggests changes \
                     that save memory, `pipeplan tune` tries other layouts"
                }
                Work::Typed(_) => "`pipeplan compare` gives the reason for every schedule",
            })
        }
        PlanError::Absent { .. } if matches!(spec.work, Work::Model(_)) => {
            Failure::input(format::spelled(&error.to_string()))
                .with_help("`pipeplan memory` suggests changes that save memory, `pipeplan tune` tries other layouts")
        }
        _ => Failure::input(format::spelled(&error.to_string())),
    })
}

/// `plan` with the best order of its microbatches.
pub fn reorder(plan: &Plan, effort: Effort) -> Result<Plan, Failure> {
    let found = watched(effort, |observer| planner::reorder(plan, effort.ops(), observer));
    found.map_err(|error| {
        Failure::input(format::spelled(&error.to_string())).with_help(
            "`microbatch_factors` of a problem says how microbatches differ; without it leave --reorder out",
        )
    })
}

/// The best schedule for `spec`, with the stages of the model that it uses.
pub fn best(spec: &Spec, effort: Effort) -> Result<Answer, PlanError> {
    let mut watch = Watch::new(effort);
    let answer = planner::best(spec, effort.ops(), &mut |progress| watch.see(progress));
    watch.finish();
    answer
}

/// The spec's work as the schedule `name` places it.
pub fn case(spec: &Spec, name: &str, effort: Effort) -> Result<Case, Failure> {
    if name == schedule::BEST {
        return best(spec, effort).map(|answer| answer.case).map_err(Failure::input);
    }
    let Some(published) = schedule::find(name) else {
        return Err(Failure::input(PlanError::UnknownSchedule { name: name.to_owned() }));
    };
    planner::case(spec, &published)
        .map_err(|absent| Failure::input(PlanError::Absent { schedule: name.to_owned(), reason: absent.reason }))
}

/// What `search` finds, with progress on standard error and Ctrl-C for the best so far.
pub fn watched<T>(effort: Effort, search: impl FnOnce(&mut dyn FnMut(Progress) -> Flow) -> T) -> T {
    let mut watch = Watch::new(effort);
    let found = search(&mut |progress| watch.see(progress));
    watch.finish();
    found
}

/// What each rank of `spec` holds under `schedule`.
pub fn explain(spec: &Spec, schedule: &str, effort: Effort) -> Result<Explanation, Failure> {
    let mut watch = Watch::new(effort);
    let explanation = explanation::explain(spec, schedule, effort.ops(), &mut |progress| watch.see(progress));
    watch.finish();
    let shortened = explanation.map(|mut explanation| {
        if !watch.stopped {
            shorten(&mut explanation, spec);
        }
        explanation
    });
    shortened.map_err(|error| match &error {
        Unexplained::Typed => {
            Failure::input(&error).with_help("`pipeplan show` gives the peak memory of each rank of such a plan")
        }
        Unexplained::Plan(_) => Failure::input(&error),
    })
}

/// Searches for changes that make the limit cost less, with progress on standard error. Ctrl-C keeps those so far.
fn shorten(explanation: &mut Explanation, spec: &Spec) {
    let (bar, stop) = (
        progress_bar("{spinner} planning changes {bar:30} {pos} of {len}; Ctrl-C keeps those so far"),
        interrupt::flag(),
    );
    let started = std::time::Instant::now();
    explanation.shorten(spec, &mut |planned, most| {
        show_late(&bar, started);
        bar.set_length(most as u64);
        bar.set_position(planned as u64);
        if stop.is_raised() { Flow::Stop } else { Flow::Continue }
    });
    bar.finish_and_clear();
}

/// Says what the memory limit costs the best schedule of `spec`, whose step takes `step_ns`, where that is worth a word;
/// and whether it was.
pub fn tell_price_of_limit(spec: &Spec, step_ns: Option<Nanos>) -> bool {
    let Some(step_ns) = step_ns else { return false };
    let Some(without_ns) = without_limit(spec, step_ns) else { return false };
    output::tell(&format!(
        "{}; `pipeplan memory` suggests changes that make it shorter",
        price_of_limit(step_ns, without_ns)
    ));
    true
}

/// In words.
pub fn price_of_limit(step_ns: Nanos, without_ns: Nanos) -> String {
    format!(
        "the memory limit makes the step {:.2} times as long: {} instead of {}",
        step_ns as f64 / without_ns.max(1) as f64,
        format::duration(step_ns),
        format::duration(without_ns)
    )
}

/// Hidden, until [`show_late`].
fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Shows `bar`, unless the work is short.
fn show_late(bar: &ProgressBar, started: std::time::Instant) {
    if bar.is_hidden() && started.elapsed().as_millis() > 300 {
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
    }
}

/// Compares all schedules for `spec`, and these orders.
pub fn compare(spec: &Spec, orders: Vec<(String, Schedule)>, effort: Effort) -> Comparison {
    let mut watch = Watch::new(effort);
    let comparison = planner::compare_with(spec, orders, effort.ops(), &mut |progress| watch.see(progress));
    watch.finish();
    comparison
}

struct Watch {
    bar: ProgressBar,
    stop: StopFlag,
    stopped: bool,
    started: std::time::Instant,
}

impl Watch {
    fn new(effort: Effort) -> Watch {
        let bar = progress_bar("{spinner} searching {bar:30} {msg}");
        bar.set_length(effort.ops().0);
        Watch { bar, stop: interrupt::flag(), stopped: false, started: std::time::Instant::now() }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
        if self.stopped {
            output::tell("the search ended early: a better schedule may exist");
        }
    }

    fn see(&mut self, progress: Progress) -> Flow {
        show_late(&self.bar, self.started);
        self.bar.set_position(progress.ops);
        self.bar.set_message(format!(
            "best {}, bound {}; Ctrl-C keeps the best so far",
            format::duration(progress.cost_ns),
            format::duration(progress.bound_ns)
        ));
        self.stopped |= self.stop.is_raised();
        if self.stopped { Flow::Stop } else { Flow::Continue }
    }
}
