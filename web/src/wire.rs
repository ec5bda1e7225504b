//! Spans and figures on their way from the worker to the page.

use pipeplan_core::advise::sensitivity::{Effect, Sensitivity, What};
use pipeplan_core::advise::suggest::{self, Suggestion};
use pipeplan_core::advise::tune::{Degrees, Tuned, Tuner};
use pipeplan_core::bounds;
use pipeplan_core::estimate::memory::StaticBytes;
use pipeplan_core::estimate::step::{Step, Training};
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, Answer, gap};
use pipeplan_core::plan::verdict::{self, RankMemory};
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::schedule;
use pipeplan_core::simulate::timeline::{Span, Timeline};
use pipeplan_core::spec::{self, Spec};
use pipeplan_core::trace::calibrate::{Calibration, Causes, JobTimes};

use crate::message::{
    Calibrated, ChartPoint, FieldFault, Figures, LayoutRow, Layouts, Picture, RankBytes, Reply, Row, RowCosts, Said,
    Sensed, Shorter, StepFigures, SuggestionRow, WireSpan,
};
use crate::text;

const KINDS: [OpKind; 4] = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW];

/// The spans of a row as they travel.
pub fn pack(row: &[Span]) -> Vec<WireSpan> {
    let mut free_ns = 0;
    let mut packed = Vec::with_capacity(row.len());
    for span in row {
        packed.push(WireSpan {
            stage: span.op.stage() as u16,
            kind: KINDS.iter().position(|kind| *kind == span.op.kind()).unwrap_or(0) as u8,
            microbatch: span.op.microbatch() as u32,
            gap_ns: span.start_ns.saturating_sub(free_ns),
            duration_ns: span.end_ns.saturating_sub(span.start_ns.max(free_ns)),
        });
        free_ns = span.end_ns.max(free_ns);
    }
    packed
}

/// The spans of a row that has travelled.
pub fn unpack(row: &[WireSpan]) -> Vec<Span> {
    let mut free_ns: u64 = 0;
    row.iter()
        .map(|span| {
            let start_ns = free_ns.saturating_add(span.gap_ns);
            free_ns = start_ns.saturating_add(span.duration_ns);
            let kind = KINDS.get(usize::from(span.kind)).copied().unwrap_or(OpKind::F);
            Span { op: Op::new(usize::from(span.stage), kind, span.microbatch as usize), start_ns, end_ns: free_ns }
        })
        .collect()
}

/// Spans of one message, unless a single rank has more: some milliseconds of the page's time.
const SPANS_A_MESSAGE: usize = 30_000;

/// A reply in messages that the page reads quickly: rows ahead, and what they belong to last.
pub fn in_parts(reply: Reply) -> Vec<Reply> {
    let Reply { id, mut said } = reply;
    let rows = match &mut said {
        Said::Planned(picture) | Said::Opened { picture, .. } | Said::KeptOpened { picture } => {
            core::mem::take(&mut picture.rows)
        }
        Said::TraceShown(measured) => core::mem::take(&mut measured.rows),
        _ => Vec::new(),
    };
    let mut parts = Vec::new();
    let mut part: Vec<Vec<WireSpan>> = Vec::new();
    let mut spans = 0;
    for row in rows {
        if spans > 0 && spans + row.len() > SPANS_A_MESSAGE {
            parts.push(Reply { id, said: Said::Rows(core::mem::take(&mut part)) });
            spans = 0;
        }
        spans += row.len();
        part.push(row);
    }
    match &mut said {
        Said::Planned(picture) | Said::Opened { picture, .. } | Said::KeptOpened { picture } => picture.rows = part,
        Said::TraceShown(measured) => measured.rows = part,
        _ => {}
    }
    parts.push(Reply { id, said });
    parts
}

/// A plan as the page shows it.
pub fn picture(name: &str, problem: &Problem, timeline: &Timeline) -> Picture {
    Picture {
        schedule: name.to_owned(),
        problem: problem.statement().to_value().to_string(),
        rows: timeline.rows.iter().map(|row| pack(row)).collect(),
        figures: figures(problem, timeline),
        memory: Vec::new(),
    }
}

/// An answer to `spec` as the page shows it.
pub fn picture_of(spec: &Spec, answer: &Answer) -> Picture {
    let (problem, timeline) = (&answer.case.problem, &answer.timeline);
    let memory = answer.case.derived.as_ref().map(|derived| verdict::by_rank(derived, problem, timeline));
    let mut picture = picture(&answer.name, problem, timeline);
    picture.memory = ranks_bytes(&memory.unwrap_or_default());
    picture.figures.step = answer.step(spec).map(|found| step(spec, found));
    picture.figures.late_ns = answer.outcomes.map(|outcomes| outcomes.late_ns);
    picture.figures.carried_ns = answer.carried.map(|carried| carried.cost_ns);
    picture.figures.judged_ns = answer.judged_ns();
    picture
}

/// What the best is chosen by, of a plan.
pub fn plan_judged_ns(plan: &Plan, timeline: &Timeline) -> u64 {
    planner::judged_ns(&plan.spec, &plan.problem, plan.ends.as_ref(), &plan.schedule, timeline)
}

/// A whole training step of `spec` as it travels.
pub fn step(spec: &Spec, step: Step) -> StepFigures {
    let Step { step_ns, tokens_per_s, mfu } = step;
    let training = match &spec.work {
        spec::Work::Model(work) => Training::of(work, step_ns),
        spec::Work::Typed(_) => None,
    };
    StepFigures { step_ns, tokens_per_s, mfu, training }
}

/// The kinds of bytes that a rank holds throughout, in the order in which they travel.
pub fn kinds_of_bytes() -> Vec<&'static str> {
    StaticBytes::default().kinds().iter().map(|(name, _)| *name).collect()
}

/// Bytes by rank and kind as they travel.
pub fn ranks_bytes(ranks: &[RankMemory]) -> Vec<RankBytes> {
    let wire = |rank: &RankMemory| RankBytes {
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
    SuggestionRow { changes, devices, peak, fits, cheapest, step_ns }
}

/// What the memory limit costs a step of `step_ns`, as it travels.
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
        reason: given.and_then(|given| given.as_ref().err()).map(|reason| text::worded(reason)),
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
        1 => title(&row.spec.schedule),
        chunks => format!("{}, {chunks} chunks", title(&row.spec.schedule)),
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

/// Of each kind of change so many are shown.
const MOST_OF_A_KIND: usize = 6;

/// What the time of an order of `problem` hangs on. Of memory an order says nothing.
pub fn sensed(problem: &Problem, found: &Sensitivity) -> Sensed {
    let of_orders = |kind: &&[Effect]| kind.iter().all(|effect| effect.what != What::Memory);
    let row = |effect: &Effect| (effect.what.name_on(problem), effect.longer_ns, effect.less_ns);
    let (mut rows, mut others) = (Vec::new(), 0);
    for kind in found.kinds().filter(of_orders) {
        rows.extend(kind.iter().take(MOST_OF_A_KIND).map(row));
        others += kind.len().saturating_sub(MOST_OF_A_KIND);
    }
    Sensed { cost_ns: found.cost_ns, permille: found.permille, rows, others }
}

/// Where a problem's stages are, in words.
pub fn placement(problem: &Problem) -> String {
    let placement = problem.placement().name().unwrap_or("stages placed by a list");
    match problem.chunks() {
        1 => placement.to_owned(),
        chunks => format!("{placement}, {chunks} chunks a rank"),
    }
}

/// What that placement means, in a sentence.
pub fn placement_meaning(problem: &Problem) -> String {
    let meaning = match problem.placement() {
        Placement::Linear => "one stage a rank, in the order of the ranks",
        Placement::Looped => "stages go round the ranks, from the last back to the first",
        Placement::V => "stages go down the ranks and back up, so that the first rank has the last stage too",
        Placement::Wave => "stages go down the ranks and back up, again and again",
        Placement::List(_) => "the problem says which rank has which stage",
        Placement::TwoWay => {
            "each rank has a stage of two copies of the model: half of the microbatches go down the ranks, half up"
        }
    };
    text::sentence(meaning)
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
        carried_ns: None,
        judged_ns: timeline.cost_ns(problem.objective()),
        binding: text::sentence(&text::humanised(&bound.binding.to_string())),
        step: None,
    }
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
        title: title(name),
        source: published.map(|published| published.source.to_owned()).unwrap_or_default(),
        reason: reason.map(|reason| text::worded(&reason)),
        costs: None,
    }
}

/// The name a person reads.
pub fn title(name: &str) -> String {
    match (schedule::find(name), name.split_once(':')) {
        (Some(published), Some((_, group))) => format!("{}, groups of {group}", published.title),
        (Some(published), None) => published.title.to_owned(),
        (None, _) if name == planner::BEST => "Best".to_owned(),
        (None, _) => name.to_owned(),
    }
}

/// Where a run lost time, as the page says it.
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

/// Core's faults as they travel.
pub fn faults(faults: &pipeplan_core::base::fields::Faults) -> Vec<FieldFault> {
    let wire = |fault: &pipeplan_core::base::fields::Fault| FieldFault {
        field: fault.field.clone(),
        found: fault.found.clone(),
        accepted: fault.accepted.clone(),
    };
    faults.0.iter().map(wire).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_sent_ahead_are_the_same_rows_in_the_same_order(lengths in prop::collection::vec(0usize..40_000, 0..6)) {
            let span = WireSpan { stage: 0, kind: 0, microbatch: 0, gap_ns: 0, duration_ns: 1 };
            let rows: Vec<Vec<WireSpan>> = lengths.iter().map(|length| vec![span; *length]).collect();
            let measured = crate::message::Measured {
                index: 0, rows, makespan_ns: 0, bubble_ratio: 0.0, tokens: 0, duration_ns: 0,
            };
            let mut seen = Vec::new();
            for part in in_parts(Reply { id: 3, said: Said::TraceShown(Box::new(measured)) }) {
                let rows = match part.said {
                    Said::Rows(rows) => rows,
                    Said::TraceShown(measured) => measured.rows,
                    other => panic!("{other:?}"),
                };
                let spans: usize = rows.iter().map(Vec::len).sum();
                let filled = rows.iter().filter(|row| !row.is_empty()).count();
                prop_assert!(spans <= SPANS_A_MESSAGE || filled == 1);
                seen.extend(rows.iter().map(Vec::len));
            }
            prop_assert_eq!(seen, lengths);
        }

        #[test]
        fn spans_travel_unchanged(pieces in prop::collection::vec((0u64..1 << 50, 0u64..1 << 50, 0usize..4, 0usize..65536, 0usize..1 << 20), 0..50)) {
            let mut now = 0;
            let row: Vec<Span> = pieces.into_iter().map(|(wait, work, kind, stage, microbatch)| {
                let start_ns = now + wait;
                now = start_ns + work;
                Span { op: Op::new(stage, KINDS[kind], microbatch), start_ns, end_ns: now }
            }).collect();
            prop_assert_eq!(unpack(&pack(&row)), row);
        }
    }
}
