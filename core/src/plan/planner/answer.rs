//! A valid schedule of a problem with its times: what it costs, alone and where ranks wait for their transfers.

use alloc::format;
use alloc::string::{String, ToString};

use super::case::{Case, case};
use super::slowest::of_slowest;
use crate::base::units::Nanos;
use crate::check::{Violation, check_schedule};
use crate::estimate::step::Step;
use crate::plan::judged::{WithCommunication, judged};
use crate::problem::{Problem, Schedule};
use crate::schedule::{Absent, Published};
use crate::search::within_limits;
use crate::simulate::jitter::{self, Outcomes};
use crate::simulate::simulate;
use crate::simulate::timeline::{Timeline, schedule_peak_bytes};
use crate::spec::{Spec, Work};

/// A valid schedule of a problem with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the published schedule that made it.
    pub name: String,
    /// The problem that it solves: of data parallel replicas with different documents, that of the slowest.
    pub case: Case,
    /// The order.
    pub schedule: Schedule,
    /// When each op runs.
    pub timeline: Timeline,
    /// The cost with the jitter of its spec, see [`jitter::outcomes`].
    pub outcomes: Option<Outcomes>,
    /// The cost with communication: ranks wait for their transfers, which are placed and carried as the spec says
    /// ([`Messages`](crate::spec::Messages)). None where that could hang.
    pub carried: Option<WithCommunication>,
}

impl Answer {
    /// The figure that the problem's objective asks to be small.
    pub fn cost_ns(&self) -> Nanos {
        self.timeline.cost_ns(self.case.problem.objective())
    }

    /// The figure that `best` minimises: the cost with communication and with the step epilogue (gradient sync and
    /// optimizer), which takes longer on ranks that hold more weights. With jitter, the excess of the 95th percentile
    /// is added. An answer that could hang comes last.
    pub fn judged_ns(&self) -> Nanos {
        judged(self.cost_ns(), self.carried, self.outcomes)
    }

    /// The whole training step with communication, where `spec`, which this answers, is of a model. Where transfers
    /// could hang, the step without them.
    pub fn step(&self, spec: &Spec) -> Option<Step> {
        let (Work::Model(work), Some(derived)) = (&spec.work, &self.case.derived) else { return None };
        let step_ns =
            self.carried.map_or_else(|| derived.epilogue.step_ns(&self.timeline), |carried| carried.step_ns);
        Some(Step::taking(work, derived.step_flops, self.timeline.rows.len(), step_ns))
    }
}

/// The answer of the schedule `published` to `spec`.
///
/// # Errors
/// [`Absent`] where the schedule does not exist for this shape, or where it breaks the memory limit.
pub fn answer(spec: &Spec, published: &Published) -> Result<Answer, Absent> {
    let case = case(spec, published)?;
    let schedule = case.build(published)?;
    judge(spec, case, published.name, schedule)
}

/// `schedule` with its times, with jitter and with communication, where `check` accepts it; of data parallel replicas with
/// different documents, those of the slowest.
pub(super) fn judge(spec: &Spec, case: Case, name: &str, schedule: Schedule) -> Result<Answer, Absent> {
    // A schedule that holds more than the limit gets copies to the host, where the problem allows them.
    let schedule = if schedule.has_copies() { schedule } else { within_limits(&case.problem, schedule) };
    check_schedule(&case.problem, &schedule).map_err(|violations| refusal(&case.problem, &schedule, &violations))?;
    let case = of_slowest(spec, case, &schedule)?;
    let timeline = simulate(&case.problem, &schedule).map_err(|deadlock| Absent::because(deadlock.to_string()))?;
    Ok(timed(spec, case, name, schedule, timeline))
}

/// A valid schedule whose times are known.
pub(super) fn timed(spec: &Spec, case: Case, name: &str, schedule: Schedule, timeline: Timeline) -> Answer {
    let outcomes = jitter::outcomes(&case.problem, &schedule, spec.jitter_permille);
    let epilogue = case.derived.as_ref().map(|derived| &derived.epilogue);
    let carried = WithCommunication::of(spec, &case.problem, epilogue, &schedule);
    Answer { name: name.to_string(), case, schedule, timeline, outcomes, carried }
}

/// Why `check` refuses a schedule, for people: for a memory limit, the rank that exceeds it most.
fn refusal(problem: &Problem, schedule: &Schedule, violations: &[Violation]) -> Absent {
    let over = violations.iter().any(|violation| matches!(violation, Violation::OverLimit { .. }));
    let missed = |rank: usize| {
        let peak = schedule_peak_bytes(problem, schedule, rank);
        let limit = problem.limit_bytes(rank)?;
        (peak > limit).then(|| (peak - limit, rank, peak, limit))
    };
    match (0..problem.ranks()).filter_map(missed).max() {
        Some((_, rank, peak, limit)) if over => {
            // The bytes are those of the order without copies.
            let with_copies = if problem.offloads() { ", and copies to the host do not suffice" } else { "" };
            Absent::because(format!("rank {rank} needs {peak} bytes; the limit is {limit}{with_copies}"))
        }
        _ => Absent::because(violations.first().map_or_else(String::new, ToString::to_string)),
    }
}
