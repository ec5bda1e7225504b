//! The planner as the page and the command line see it: a spec in, a comparison or a plan out.
//!
//! The same schedule may stand on different problems: for a model each schedule deals layers into as many
//! stages as it wants, while typed costs fix the stages. [`case`] makes that choice in one place, and `best`
//! searches over every problem that it leaves open.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::base::fields::{Faults, one_of_like};
use crate::base::units::Nanos;
use crate::check::{Violation, check_program, check_schedule};
use crate::estimate::fit::{self, Fitted};
use crate::estimate::step::{Ends, Step};
use crate::graph::layout::Partition;
use crate::plan::{Plan, Prediction};
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::placement::Placement;
use crate::program::execute::{Carrier, execute};
use crate::program::lower::{Lowering, lower_as};
use crate::schedule::{self, Absent, Published};
use crate::search::{Effort, Flow, Infeasible, Progress};
use crate::simulate::jitter::{self, Outcomes};
use crate::simulate::timeline::{Timeline, schedule_peak_bytes};
use crate::simulate::{Deadlock, simulate};
use crate::spec::{Messages, Spec, Work};

mod best;
mod order;

pub use best::Best;
pub use order::plan_order;

pub use crate::schedule::{BEST, schedule_names};

mod comparison;
pub use comparison::{Comparison, Row, Status, compare, compare_with, gap};

mod case;
pub(crate) use case::derived_case;
pub use case::{Case, case};

/// A valid schedule of a problem with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who made it: a published schedule's name.
    pub name: String,
    /// What it solves.
    pub case: Case,
    /// The order.
    pub schedule: Schedule,
    /// When each op runs.
    pub timeline: Timeline,
    /// What it costs with the jitter of its spec, see [`jitter::outcomes`].
    pub outcomes: Option<Outcomes>,
    /// The same where ranks wait for their transfers, placed and carried as the spec says ([`Messages`]); none where that
    /// could hang.
    pub carried: Option<Carried>,
}

/// What a schedule takes where ranks wait for transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The figure that the problem's objective asks to be small.
    pub cost_ns: Nanos,
    /// The same with the end of the step, where there is one.
    with_end_ns: Nanos,
    /// The whole step: from the first op to the end of the last rank's optimizer.
    step_ns: Nanos,
}

impl Carried {
    fn of(spec: &Spec, problem: &Problem, ends: Option<&Ends>, schedule: &Schedule) -> Option<Carried> {
        let Messages { lowering, transport } = spec.messages;
        let program = lower_as(problem, schedule, lowering).ok()?;
        let timeline = execute(problem, &program, &schedule.pairs, Carrier::of(transport))?;
        let cost_ns = timeline.cost_ns(problem.objective());
        Some(Carried {
            cost_ns,
            with_end_ns: ends.map_or(cost_ns, |ends| ends.cost_ns(&timeline, problem.objective())),
            step_ns: ends.map_or_else(|| timeline.makespan_ns(), |ends| ends.step_ns(&timeline)),
        })
    }
}

impl Answer {
    /// The figure that the problem's objective asks to be small.
    pub fn cost_ns(&self) -> Nanos {
        self.timeline.cost_ns(self.case.problem.objective())
    }

    /// What the best is chosen by: the cost where ranks wait for their transfers, with the end of the step, which ranks that
    /// hold more weights, or more copies of them, take longer for; with jitter, as much more as one step in twenty takes
    /// more than. What could hang comes behind all else.
    pub fn judged_ns(&self) -> Nanos {
        judged(self.cost_ns(), self.carried, self.outcomes)
    }

    /// The whole training step with its transfers, where `spec`, which this answers, is of a model; where they could hang, as
    /// if they did not.
    pub fn step(&self, spec: &Spec) -> Option<Step> {
        let (Work::Model(work), Some(derived)) = (&spec.work, &self.case.derived) else { return None };
        let step_ns = self.carried.map_or_else(|| derived.ends.step_ns(&self.timeline), |carried| carried.step_ns);
        Some(Step::taking(work, derived, self.timeline.rows.len(), step_ns))
    }
}

/// As [`Answer::judged_ns`], of an order of `problem` that is no answer: `timeline` is when its ops run, `ends` what ends its
/// steps, where there is such.
pub fn judged_ns(
    spec: &Spec,
    problem: &Problem,
    ends: Option<&Ends>,
    schedule: &Schedule,
    timeline: &Timeline,
) -> Nanos {
    let carried = Carried::of(spec, problem, ends, schedule);
    let outcomes = jitter::outcomes(problem, schedule, spec.jitter_permille);
    judged(timeline.cost_ns(problem.objective()), carried, outcomes)
}

fn judged(cost_ns: Nanos, carried: Option<Carried>, outcomes: Option<Outcomes>) -> Nanos {
    let late_ns = outcomes.map_or(0, |outcomes| outcomes.late_ns.saturating_sub(cost_ns));
    match carried {
        Some(carried) => carried.with_end_ns.saturating_add(late_ns),
        None => (Nanos::MAX / 2).saturating_add(cost_ns),
    }
}

/// What `published` does for `spec`.
///
/// # Errors
/// [`Absent`] where the schedule does not exist for this shape, or where it breaks the memory limit.
pub fn answer(spec: &Spec, published: &Published) -> Result<Answer, Absent> {
    let case = case(spec, published)?;
    let schedule = case.build(published)?;
    judge(spec, case, published.name, schedule)
}

/// `schedule` with its times and what jitter and transfers do to it, where `check` accepts it.
fn judge(spec: &Spec, case: Case, name: &str, schedule: Schedule) -> Result<Answer, Absent> {
    check_schedule(&case.problem, &schedule).map_err(|violations| refusal(&case.problem, &schedule, &violations))?;
    let timeline = simulate(&case.problem, &schedule).map_err(|deadlock| Absent::because(deadlock.to_string()))?;
    Ok(timed(spec, case, name, schedule, timeline))
}

/// A valid schedule whose times are known.
fn timed(spec: &Spec, case: Case, name: &str, schedule: Schedule, timeline: Timeline) -> Answer {
    let outcomes = jitter::outcomes(&case.problem, &schedule, spec.jitter_permille);
    let ends = case.derived.as_ref().map(|derived| &derived.ends);
    let carried = Carried::of(spec, &case.problem, ends, &schedule);
    Answer { name: name.to_string(), case, schedule, timeline, outcomes, carried }
}

/// What a person needs to know of a schedule that `check` refuses: for a limit, by how much it is missed.
fn refusal(problem: &Problem, schedule: &Schedule, violations: &[Violation]) -> Absent {
    let over = violations.iter().any(|violation| matches!(violation, Violation::OverLimit { .. }));
    let missed = |rank: usize| {
        let peak = schedule_peak_bytes(problem, schedule, rank);
        let limit = problem.limit_bytes(rank)?;
        (peak > limit).then(|| (peak - limit, rank, peak, limit))
    };
    match (0..problem.ranks()).filter_map(missed).max() {
        Some((_, rank, peak, limit)) if over => {
            Absent::because(format!("rank {rank} would hold {peak} bytes, and its limit is {limit}"))
        }
        _ => Absent::because(violations.first().map_or_else(String::new, ToString::to_string)),
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// No schedule has this name.
    UnknownSchedule {
        /// What was asked for.
        name: String,
    },
    /// The schedule does not exist for this spec, or breaks its memory limit.
    Absent {
        /// The schedule.
        schedule: String,
        /// Why.
        reason: String,
    },
    /// No schedule is valid for this spec.
    NoSchedule {
        /// What is lacking on the placement that needs least, where the search got to look.
        nearest: Option<Infeasible>,
        /// Each published schedule with its reason.
        reasons: Vec<(String, String)>,
    },
    /// The spec itself is at fault.
    Spec(Faults),
    /// The order cannot be run: nothing that `check` accepts.
    Deadlock(Deadlock),
    /// The transport that the spec names could not complete the program.
    Hangs {
        /// How transfers were to be placed.
        lowering: Lowering,
        /// What is wrong, such as the circle in which ranks wait.
        violations: Vec<Violation>,
        /// Ways to place them that complete there.
        completing: Vec<Lowering>,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::UnknownSchedule { name } => {
                write!(f, "no schedule is called `{name}`; accepted is {}", one_of_like(name, &schedule_names()))
            }
            PlanError::Absent { schedule, reason } => write!(f, "{schedule} has no plan here: {reason}"),
            PlanError::NoSchedule { nearest, reasons } => {
                f.write_str("no schedule is valid here")?;
                // What the search says comes first: it tried everything. The rest shares lines where it can.
                nearest.iter().try_for_each(|infeasible| write!(f, ": {infeasible}"))?;
                let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
                for (name, reason) in reasons {
                    match lines.iter_mut().find(|(known, _)| *known == reason.as_str()) {
                        Some((_, names)) => names.push(name),
                        None => lines.push((reason, Vec::from([name.as_str()]))),
                    }
                }
                lines.iter().try_for_each(|(reason, names)| write!(f, "\n  {}: {reason}", names.join(", ")))
            }
            PlanError::Spec(faults) => fmt::Display::fmt(faults, f),
            PlanError::Deadlock(deadlock) => fmt::Display::fmt(deadlock, f),
            PlanError::Hangs { lowering, violations, completing } => {
                write!(f, "with {lowering} transfers this plan could hang, so it is not written:")?;
                violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))?;
                let names: Vec<String> = completing.iter().map(|lowering| format!("`{lowering}`")).collect();
                match names.split_last() {
                    Some((last, [])) => write!(f, "\nsay {last}, which completes there")?,
                    Some((last, others)) => write!(f, "\nsay {} or {last}, which complete there", others.join(", "))?,
                    None => f.write_str("\nname another transport")?,
                }
                // Room for messages cures a wait, and none that meet out of order.
                let waits = violations.iter().all(|violation| matches!(violation, Violation::Circle { .. }));
                f.write_str(if waits { ", or name a transport with buffers, or with more of them" } else { "" })
            }
        }
    }
}

impl core::error::Error for PlanError {}

/// The plan for `spec` with the schedule `name`, or with the best of all for [`BEST`].
///
/// # Errors
/// [`PlanError`] where no schedule has that name or none is valid.
pub fn plan(spec: &Spec, name: &str) -> Result<Plan, PlanError> {
    plan_with(spec, name, Effort::default(), &mut |_| Flow::Continue)
}

/// As [`plan`], with the effort of the search for `best` and an observer that may stop it: what was the best
/// until then is the answer.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    spec: &Spec,
    name: &str,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Plan, PlanError> {
    let answer = if name == BEST {
        best_with(spec, published_answers(spec), effort, observer)?
    } else {
        let Some(published) = schedule::find(name) else {
            return Err(PlanError::UnknownSchedule { name: name.to_string() });
        };
        answer(spec, &published)
            .map(|answer| Answer { name: name.to_string(), ..answer })
            .map_err(|absent| PlanError::Absent { schedule: name.to_string(), reason: absent.reason })?
    };
    plan_of(spec, answer)
}

/// The best schedule for `spec`, with what it stands on.
///
/// # Errors
/// [`PlanError`] where none is valid.
pub fn best(spec: &Spec, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> Result<Answer, PlanError> {
    best_with(spec, published_answers(spec), effort, observer)
}

type Named = (&'static str, Result<Answer, Absent>);

fn published_answers(spec: &Spec) -> Vec<Named> {
    schedule::published().iter().map(|published| (published.name, answer(spec, published))).collect()
}

fn best_with(
    spec: &Spec,
    answers: Vec<Named>,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Answer, PlanError> {
    let mut best = Best::new(spec);
    for (name, answer) in answers {
        best.offer(name, answer);
    }
    while best.search_next(effort, observer)? {}
    best.finish()
}

/// Every problem that `spec` leaves open: a typed one for each placement, a model's for each way in which
/// published schedules deal stages. Never empty.
///
/// # Errors
/// [`PlanError::Spec`] where no problem follows from the spec.
pub fn open_cases(spec: &Spec) -> Result<Vec<Case>, PlanError> {
    match &spec.work {
        Work::Typed(statement) => {
            let place = |placement| statement.problem(placement).map(Case::typed);
            statement
                .placements()
                .into_iter()
                .map(place)
                .collect::<Result<_, _>>()
                .map_err(|fault| PlanError::Spec(fault.into()))
        }
        Work::Model(work) => {
            let mut shapes: Vec<(Placement, usize)> = Vec::new();
            for published in schedule::published() {
                let shape = (published.shape)(work.chunks as usize);
                if !shapes.contains(&shape) {
                    shapes.push(shape);
                }
            }
            let mut first_faults = None;
            let mut cases = Vec::new();
            for (placement, chunks) in shapes {
                // What is left to the limit is what the first schedule that fits chose; else all gives way.
                let fits = work.layout.fits();
                let shaped = |published: &&Published| {
                    fits && (published.shape)(work.chunks as usize) == (placement.clone(), chunks)
                };
                let fitting =
                    schedule::published().iter().filter(shaped).find_map(|published| case(spec, published).ok());
                if let Some(case) = fitting {
                    let is_last_resort = case.fitted.as_ref().is_some_and(Fitted::is_last_resort);
                    cases.push(case);
                    // Orders that hold more at a time may be worth more than what did not give way.
                    let full = fit::full(work);
                    if !is_last_resort && let Ok(case) = derived_case(spec, &full.applied_to(work), placement, chunks)
                    {
                        cases.push(Case { fitted: Some(full), ..case });
                    }
                    continue;
                }
                let full = fits.then(|| fit::full(work).applied_to(work));
                match derived_case(spec, full.as_ref().unwrap_or(work), placement, chunks) {
                    Ok(case) => cases.push(case),
                    // Too many chunks for the layers, say: another shape may do.
                    Err(faults) => {
                        first_faults.get_or_insert(faults);
                    }
                }
            }
            match first_faults {
                Some(faults) if cases.is_empty() => Err(PlanError::Spec(faults)),
                _ => Ok(cases),
            }
        }
    }
}

/// The plan for the same spec and problem with another schedule, such as one that an exact search found.
///
/// # Errors
/// [`PlanError::Absent`] where `check` refuses the schedule.
pub fn replan(plan: &Plan, name: &str, schedule: Schedule) -> Result<Plan, PlanError> {
    let case = Case::typed(plan.problem.clone());
    let answer = judge(&plan.spec, case, name, schedule)
        .map_err(|absent| PlanError::Absent { schedule: name.to_string(), reason: absent.reason })?;
    // The stages are the same, and so is what ends their steps.
    Ok(Plan { ends: plan.ends.clone(), ..plan_of(&plan.spec, answer)? })
}

/// The plan of an answer to `spec`: its transfers placed as the spec asks, and checked on the transport that it names.
///
/// # Errors
/// [`PlanError::Deadlock`] and [`PlanError::Hangs`].
pub fn plan_of(spec: &Spec, answer: Answer) -> Result<Plan, PlanError> {
    let problem = answer.case.problem;
    let Messages { lowering, transport } = spec.messages;
    let program = lower_as(&problem, &answer.schedule, lowering).map_err(PlanError::Deadlock)?;
    check_program(&problem, &program, transport).map_err(|violations| {
        let completes = |lowering: &Lowering| {
            lower_as(&problem, &answer.schedule, *lowering)
                .is_ok_and(|program| check_program(&problem, &program, transport).is_ok())
        };
        let ways =
            [Lowering::Grouped, Lowering::Overlapped { prefetch: 0 }, Lowering::ReceiveFirst, Lowering::InPieces];
        PlanError::Hangs { lowering, violations, completing: ways.into_iter().filter(completes).collect() }
    })?;
    let prediction = Prediction::of(&problem, &answer.timeline);
    let mut spec = spec.clone();
    // A plan says what was chosen, so that whoever derives its problem again, or runs it, has the same.
    if let (Work::Model(work), Some(fitted)) = (&mut spec.work, &answer.case.fitted) {
        *work = fitted.applied_to(work);
    }
    // Measured times do not travel with it: without them layers would be dealt otherwise.
    if let (Work::Model(work), Some(derived)) = (&mut spec.work, &answer.case.derived)
        && work.profile.is_some()
    {
        let counts = derived.stages.iter().map(|stage| stage.layers.len() as u32).collect();
        work.layout.partition = Partition::ByHand(counts);
    }
    let ends = answer.case.derived.map(|derived| derived.ends);
    Ok(Plan { spec, problem, schedule_name: answer.name, schedule: answer.schedule, program, ends, prediction })
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::bounds;
    use crate::estimate::derive::derive;
    use crate::graph::build::stage_graph;
    use crate::graph::form::Form;
    use crate::graph::form::StageShape;
    use crate::hardware::cost::Load;
    use crate::hardware::profile::{Profile, Signature};
    use crate::program::Transport;
    use crate::spec::ModelWork;

    fn spec(text: &str) -> Spec {
        Spec::read(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn tiny() -> Spec {
        spec(
            "[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"cpu\"\n[parallel]\npipeline = 4\n[training]\n\
             microbatches = 8\nsequence = 64\n",
        )
    }

    #[test]
    fn every_schedule_has_a_row_and_best_is_the_last_and_the_least() {
        for spec in [
            tiny(),
            spec(
                r#"{ "ranks": 4, "microbatches": 8, "stages": { "forward_ns": 3, "backward_input_ns": 3, "backward_weight_ns": 3 } }"#,
            ),
        ] {
            let comparison = compare(&spec);
            let names: Vec<&str> = comparison.rows.iter().map(|row| row.schedule.as_str()).collect();
            let known: Vec<&str> =
                schedule::published().iter().map(|published| published.name).chain([BEST]).collect();
            assert_eq!(names, known);
            let best = comparison.rows.last().and_then(|row| row.makespan_ns);
            for row in &comparison.rows {
                assert!(row.status == Status::Ok || row.reason.as_ref().is_some_and(|reason| !reason.is_empty()));
                assert!(row.makespan_ns.is_none() || best <= row.makespan_ns, "{row:?}");
            }
        }
    }

    /// A schedule of another placement may cost less than the bound of the winner's: what holds for all is the least.
    #[test]
    fn the_best_is_bounded_on_every_placement_that_it_may_choose() {
        let open = r#"{ "ranks": 3, "chunks": 2, "microbatches": 5, "placement": "any", "limit_bytes": 6,
            "stages": { "forward_ns": 3, "backward_input_ns": 4, "backward_weight_ns": 2,
                "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 }, "transfer_ns": 1 }"#;
        let spec = spec(open);
        let best = compare(&spec).rows.pop().unwrap();
        let bounds: Vec<Nanos> =
            open_cases(&spec).unwrap().iter().map(|case| bounds::lower_bound(&case.problem).value_ns).collect();
        assert!(bounds.len() > 1);
        assert_eq!(best.bound_of_all_ns, bounds.iter().min().copied());
        assert!(best.bound_of_all_ns <= best.bound_ns && best.bound_ns <= best.makespan_ns, "{best:?}");
        assert!(best.placement.is_some());
    }

    /// Who runs a plan has its spec and not what was measured: layers lie where the plan has them all the same.
    #[test]
    fn a_plan_with_measured_times_says_how_it_dealt_the_layers() {
        let Spec { work: Work::Model(work), .. } = tiny() else { panic!("a model") };
        let shape = StageShape {
            layers: 0..work.model.layers,
            has_embedding: true,
            has_head: true,
            microbatch_size: work.microbatch_size,
            sequence: work.sequence,
            dtype: work.dtype,
            form: Form::default(),
        };
        let graph = stage_graph(&work.model, &shape, 1);
        // On this device what is of no layer, the head most of all, takes as long as many layers.
        let mut profile = Profile::new("test");
        for operator in &graph.operators {
            let time = if operator.layer.is_some() { 100 } else { 2000 };
            profile.insert(Signature::of(&graph, operator), Load::of(&graph, operator), time);
        }
        let measured = ModelWork { profile: Some(Arc::new(profile)), ..work.clone() };
        let plan = plan(&Spec { work: Work::Model(measured), ..tiny() }, "1f1b").expect("it fits");
        let read = Plan::from_json(&plan.to_json()).expect("it is a plan");
        let Work::Model(planned) = &read.spec.work else { panic!("a model") };
        assert!(planned.profile.is_none());
        let of = |work| derive(work, Placement::Linear, 1).expect("it is a problem");
        assert_ne!(of(planned).stages, of(&work).stages, "the times change nothing");
        assert_eq!(read.problem.static_bytes(0), of(planned).static_bytes[0].total());
        assert_eq!(read.problem.static_bytes(3), of(planned).static_bytes[3].total());
    }

    #[test]
    fn a_model_deals_its_layers_as_each_schedule_wants() {
        for (name, chunks) in [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-v", 2)] {
            let plan = plan(&tiny(), name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((plan.problem.ranks(), plan.problem.chunks()), (4, chunks), "{name}");
        }
    }

    #[test]
    fn a_plan_that_could_hang_is_not_written() {
        let mut spec = tiny();
        spec.messages.lowering = Lowering::InPieces;
        for transport in [Transport::Grouped, Transport::Rendezvous, Transport::PairOrdered] {
            spec.messages.transport = transport;
            let error = plan(&spec, "1f1b").unwrap_err().to_string();
            assert!(error.contains("in a circle: rank 2 at 2SEND_F1 → rank 3 at 3SEND_B0 → rank 2"), "{error}");
            assert!(error.contains("3BW0 [(3SEND_B0)] (3RECV_F1)"), "the steps around are shown: {error}");
        }
        // With one place a channel nobody waits for a receive.
        spec.messages.transport = Transport::Buffered { slots: 1 };
        let plan = plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));
        assert!(plan.program.text_rows()[0].starts_with("0F0 (0SEND_F0) 0F1 (0SEND_F1)"), "{:?}", plan.program);
    }

    /// An inner rank receives activations from one side and gradients from the other, an end of the pipe on one link.
    #[test]
    fn messages_that_are_received_ahead_take_their_buffers() {
        let static_bytes = |lowering| {
            let mut spec = tiny();
            spec.messages.lowering = lowering;
            let plan = plan(&spec, "1f1b").unwrap_or_else(|error| panic!("{error}"));
            (0..4).map(|rank| plan.problem.static_bytes(rank)).collect::<Vec<_>>()
        };
        let usual = static_bytes(Lowering::Grouped);
        assert_eq!(static_bytes(Lowering::Overlapped { prefetch: 0 }), usual);
        // 64 tokens of 64 values in f32; no link carries more than the 8 microbatches of a step.
        let boundary = 64 * 64 * 4;
        for (prefetch, buffers) in [(1, 1), (3, 3), (1000, 8)] {
            let more: Vec<u64> = static_bytes(Lowering::Overlapped { prefetch })
                .iter()
                .zip(&usual)
                .map(|(ahead, usual)| (ahead - usual) / boundary)
                .collect();
            assert_eq!(more, [buffers, 2 * buffers, 2 * buffers, buffers], "{prefetch} ahead");
        }
    }

    #[test]
    fn a_plan_keeps_the_name_that_makes_it_again() {
        for name in ["1f1b", "interleaved-1f1b:8"] {
            let plan = plan(&tiny(), name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(plan.schedule_name, name);
        }
    }

    #[test]
    fn what_cannot_be_planned_says_why() {
        let too_little = "ranks = 2\nmicrobatches = 2\nlimit_bytes = 3\n[stages]\nforward_ns = 1\nbackward_input_ns = 1\nforward_bytes = 4\nbackward_input_bytes = -4\n";
        for (text, name, says) in [
            (too_little, "best", "needs at least 4 bytes"),
            (too_little, "1f1b", "rank 0 would hold 8 bytes, and its limit is 3"),
            (too_little, "zb-v", "it holds 2 chunks a rank, and the problem fixes 1"),
            (too_little, "2f2b", "no schedule is called `2f2b`; accepted is one of best, gpipe"),
        ] {
            let error = plan(&spec(text), name).unwrap_err().to_string();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }
}
