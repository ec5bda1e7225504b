//! Results of the planner as they travel.

use pipeplan_core::advise::sensitivity::{Effect, Sensitivity, What};
use pipeplan_core::advise::suggest::{self, Suggestion};
use pipeplan_core::advise::tune::{Degrees, Tuned, Tuner};
use pipeplan_core::estimate::derive::Derived;
use pipeplan_core::estimate::memory::StaticBytes;
use pipeplan_core::estimate::published::PUBLISHED_STEPS;
use pipeplan_core::estimate::step::{Step, StepEpilogue, Training};
use pipeplan_core::formats::frameworks::Shown;
use pipeplan_core::plan::planner::{self, Answer, PlanSearch, gap};
use pipeplan_core::plan::verdict::{self, RankMemory};
use pipeplan_core::plan::{Fill, Microbatch, PackingFigures, Plan, holders, holding_of_rank};
use pipeplan_core::problem::Problem;
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::spec::{self, Spec};
use pipeplan_core::trace::calibrate::{Calibration, Causes, JobTimes};
use pipeplan_core::{bounds, schedule};

use super::spans;
use crate::form::with_labels;
use crate::protocol::{
    Calibrated, ChartPoint, DocumentFigures, FieldFault, Figures, LayoutRow, Layouts, PackingTimes, Picture,
    RankBytes, Row, RowCosts, SensitivityRows, Shorter, StepFigures, SuggestionRow, Width, Widths,
};
use crate::text;

/// A plan as the page shows it.
pub fn picture(name: &str, problem: &Problem, timeline: &Timeline) -> Picture {
    Picture {
        schedule: name.to_owned(),
        problem: problem.statement().to_value().to_string(),
        rows: timeline.rows.iter().map(|row| spans::pack(row)).collect(),
        copies: spans::pack_copies(&timeline.copies),
        figures: figures(problem, timeline),
        memory: Vec::new(),
        widths: Widths::default(),
    }
}

/// An answer to `spec` as the page shows it.
pub fn picture_of(spec: &Spec, answer: &Answer) -> Picture {
    let (problem, timeline) = (&answer.case.problem, &answer.timeline);
    let mut picture = picture(&answer.name, problem, timeline);
    if let Some(derived) = &answer.case.derived {
        picture.memory = ranks_bytes((spec, derived, problem), &verdict::by_rank(derived, problem, timeline));
    }
    picture.figures.step = answer.step(spec).map(|found| step(spec, found));
    picture.figures.tails_ns = tails_ns(answer.case.derived.as_ref().map(|derived| &derived.epilogue));
    let shown = Shown { spec, problem, schedule_name: &answer.name, schedule: &answer.schedule };
    picture.figures.refusals = shown.told();
    picture.figures.late_ns = answer.outcomes.map(|outcomes| outcomes.late_ns);
    picture.figures.carried_ns = answer.carried.map(|carried| carried.cost_ns);
    picture.figures.judged_ns = answer.judged_ns();
    picture.widths = widths(spec, problem, answer.case.derived.as_ref(), None);
    picture
}

/// The best that a search for the plan of `spec` has found, if there is any.
pub fn picture_found(spec: &Spec, search: &PlanSearch) -> Option<Picture> {
    let Some(packed) = search.packed() else { return search.so_far().map(|answer| picture_of(spec, answer)) };
    let mut picture = picture_of(&packed.spec, &packed.answer);
    picture.widths.packing = packed.figures.map(packing);
    Some(picture)
}

/// The microbatches of `problem`, if they differ.
pub fn widths(spec: &Spec, problem: &Problem, derived: Option<&Derived>, figures: Option<PackingFigures>) -> Widths {
    let stages = derived.map(|derived| derived.stages.as_slice()).unwrap_or_default();
    let width = |of: Microbatch| {
        let Microbatch { documents, tokens, longest, time_ns, attention_ns } = of;
        Width { documents, tokens, longest, time_ns, attention_ns }
    };
    let documents = |fill: Fill| {
        let Fill { documents, tokens, replicas, microbatches, .. } = fill;
        DocumentFigures { documents, tokens, replicas, microbatches, fill: fill.share() }
    };
    Widths {
        documents: Fill::of(spec).map(documents),
        packing: figures.map(packing),
        microbatches: Microbatch::all(spec, problem, stages).into_iter().map(width).collect(),
    }
}

fn packing(figures: PackingFigures) -> PackingTimes {
    let PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns } = figures;
    PackingTimes { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns }
}

/// The criterion of `best`, for a plan.
pub fn plan_judged_ns(plan: &Plan, timeline: &Timeline) -> u64 {
    planner::judged_ns(&plan.spec, &plan.problem, plan.epilogue.as_ref(), &plan.schedule, timeline)
}

/// A whole training step of `spec` as it travels.
pub fn step(spec: &Spec, step: Step) -> StepFigures {
    let Step { step_ns, tokens_per_s, mfu } = step;
    let (training, published_ns) = match &spec.work {
        spec::Work::Model(work) => (Training::of(work, step_ns), PUBLISHED_STEPS.of(work, step_ns)),
        spec::Work::Typed(_) => (None, None),
    };
    StepFigures { step_ns, tokens_per_s, mfu, published_ns, training }
}

/// The kinds of bytes that a rank holds throughout, in the order in which they travel.
pub fn kinds_of_bytes() -> Vec<&'static str> {
    StaticBytes::default().kinds().iter().map(|(name, _)| *name).collect()
}

/// Bytes by rank and kind as they travel, with what each rank holds of the model.
pub fn ranks_bytes(whose: (&Spec, &Derived, &Problem), ranks: &[RankMemory]) -> Vec<RankBytes> {
    let (spec, derived, problem) = whose;
    let holders = holders(derived, problem);
    let layers = |rank: usize| {
        let spec::Work::Model(work) = &spec.work else { return String::new() };
        holding_of_rank(&holders, rank, &work.model)
    };
    let wire = |rank: &RankMemory| RankBytes {
        layers: layers(rank.rank),
        fixed: rank.fixed.kinds().iter().map(|(_, bytes)| *bytes).collect(),
        activations: rank.activations,
        at: rank.at.map(|op| op.to_string()).unwrap_or_default(),
        on_host: rank.on_host,
        peak: rank.peak,
        limit: rank.limit,
    };
    ranks.iter().map(wire).collect()
}

/// Changes that help, as they travel.
pub fn suggestion(suggestion: Suggestion, cheapest: bool) -> SuggestionRow {
    let Suggestion { changes, devices, peak, fits, step_ns } = suggestion;
    let changes = changes.into_iter().map(|change| [change.field.to_owned(), change.from, change.to]).collect();
    SuggestionRow { changes, devices, peak, fits, cheapest, step_ns, mfu_e4: None }
}

/// The cost of the memory limit for a step of `step_ns`.
pub fn shorter(step_ns: u64, found: suggest::Shorter) -> Shorter {
    let suggestions = found.together.into_iter().chain(found.single).map(|found| suggestion(found, false)).collect();
    Shorter { step_ns, without_limit_ns: found.without_limit_ns, suggestions }
}

/// The fastest layouts so far, as they travel.
pub fn layouts(tuner: &Tuner, finished: bool) -> Layouts {
    let tally = tuner.tally();
    let given = tuner.given();
    Layouts {
        given: given.and_then(|given| given.as_ref().ok()).map(layout),
        reason: given.and_then(|given| given.as_ref().err()).map(|reason| with_labels(reason)),
        rows: tuner.rows().iter().map(layout).collect(),
        settled: tally.settled() as u64,
        all: tally.layouts as u64,
        searched: tally.searched as u64,
        finished,
    }
}

fn layout(row: &Tuned) -> LayoutRow {
    let Degrees { pipeline, tensor, context, data, expert, microbatch_size, microbatches, .. } = row.degrees;
    let schedule = match row.chunks {
        1 => text::schedule_title(&row.spec.schedule),
        chunks => format!("{}, {chunks} chunks", text::schedule_title(&row.spec.schedule)),
    };
    LayoutRow {
        spec: row.spec.to_json(),
        degrees: [pipeline, tensor, context, data, expert],
        microbatches: [microbatches, microbatch_size],
        schedule,
        recompute: row.saved(),
        step: step(&row.spec, row.step),
        peak: row.peak,
    }
}

/// A schedule as a point of time against memory.
pub fn chart_point(problem: &Problem, timeline: &Timeline, judged_ns: u64, by: String) -> ChartPoint {
    ChartPoint {
        judged_ns,
        bytes: (0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).max().unwrap_or(0),
        bubble_ratio: timeline.bubble_ratio(problem.objective()),
        by,
    }
}

/// The largest number of rows of each kind.
const MOST_OF_A_KIND: usize = 6;

/// The sensitivity of a schedule of `problem`, without memory: a schedule has no effect on that.
pub fn sensed(problem: &Problem, found: &Sensitivity) -> SensitivityRows {
    let of_orders = |kind: &&[Effect]| kind.iter().all(|effect| effect.what != What::Memory);
    let row = |effect: &Effect| (effect.what.name_on(problem), effect.longer_ns, effect.less_ns);
    let (mut rows, mut others) = (Vec::new(), 0);
    for kind in found.kinds().filter(of_orders) {
        rows.extend(kind.iter().take(MOST_OF_A_KIND).map(row));
        others += kind.len().saturating_sub(MOST_OF_A_KIND);
    }
    SensitivityRows { cost_ns: found.cost_ns, permille: found.permille, rows, others }
}

fn figures(problem: &Problem, timeline: &Timeline) -> Figures {
    let bound = bounds::lower_bound(problem);
    let ranks = 0..problem.ranks();
    Figures {
        objective: problem.objective().name().to_owned(),
        makespan_ns: timeline.makespan_ns(),
        longest_span_ns: timeline.longest_span_ns(),
        bubble_ratio: timeline.bubble_ratio(problem.objective()),
        peak_bytes: ranks.clone().map(|rank| timeline.peak_bytes(problem, rank)).collect(),
        limit_bytes: ranks.map(|rank| problem.limit_bytes(rank)).collect(),
        bound_ns: bound.value_ns,
        gap: gap(timeline.cost_ns(problem.objective()), bound.value_ns),
        late_ns: None,
        refusals: Vec::new(),
        carried_ns: None,
        judged_ns: timeline.cost_ns(problem.objective()),
        binding: text::sentence(&text::readable(&bound.binding.to_string())),
        step: None,
        tails_ns: Vec::new(),
    }
}

/// Gradient sync and optimizer of each rank as they travel.
pub fn tails_ns(epilogue: Option<&StepEpilogue>) -> Vec<[u64; 2]> {
    let tails = epilogue.map(|epilogue| epilogue.tails.iter());
    tails.into_iter().flatten().map(|tail| [tail.reduce_ns, tail.optimizer_ns]).collect()
}

/// The row of a comparison for an answer to `spec`.
pub fn row(spec: &Spec, name: &str, answer: &Answer) -> Row {
    let (problem, timeline) = (&answer.case.problem, &answer.timeline);
    let bound_ns = bounds::lower_bound(problem).value_ns;
    let costs = RowCosts {
        makespan_ns: timeline.makespan_ns(),
        longest_span_ns: timeline.longest_span_ns(),
        bubble_ratio: timeline.bubble_ratio(problem.objective()),
        peak_bytes: (0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).max().unwrap_or(0),
        gap: gap(answer.cost_ns(), bound_ns),
        late_ns: answer.outcomes.map(|outcomes| outcomes.late_ns),
        carried_ns: answer.carried.map(|carried| carried.cost_ns),
        judged_ns: answer.judged_ns(),
        step: answer.step(spec).map(|found| step(spec, found)),
    };
    Row { costs: Some(costs), ..absent_row(name, None) }
}

/// The row of a comparison for a schedule that does not exist here.
pub fn absent_row(name: &str, reason: Option<String>) -> Row {
    let published = schedule::find(name);
    Row {
        schedule: name.to_owned(),
        title: text::schedule_title(name),
        source: published.map(|published| published.source.to_owned()).unwrap_or_default(),
        reason: reason.map(|reason| with_labels(&reason)),
        costs: None,
    }
}

/// Where a run lost time.
pub fn calibrated(calibration: &Calibration) -> Calibrated {
    // As many as a person takes in.
    const DECIDING: usize = 5;
    let Causes { planned_ns, ops_ns, hops_ns, spread_ns, rest_ns, measured_ns } = calibration.causes;
    let mut jobs: Vec<&JobTimes> = calibration.jobs.iter().filter(|job| job.path_ns > 0).collect();
    jobs.sort_by_key(|job| core::cmp::Reverse(job.path_ns));
    let path_ns = jobs.iter().map(|job| job.path_ns as f64).sum::<f64>() + calibration.path_hops_ns as f64;
    let deciding = jobs.into_iter().take(DECIDING).map(|job| (job.name(), job.path_ns as f64 / path_ns)).collect();
    Calibrated {
        steps: calibration.steps,
        planned_ns,
        causes_ns: [ops_ns, hops_ns, spread_ns, rest_ns],
        measured_ns,
        deciding,
        jitter_permille: calibration.jitter_permille,
        problem: calibration.statement.to_value().to_string(),
    }
}

/// Faults of the planner as they travel.
pub fn faults(faults: &pipeplan_core::base::fields::Faults) -> Vec<FieldFault> {
    faults.0.iter().map(FieldFault::from).collect()
}
