//! Time against memory.

use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner::{self, Best};
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::Spec;

use super::{SPEC, charted, finish, plan, unwatched};
use crate::protocol::frontier::FROM_CHART;
use crate::protocol::{Ask, Question, Response};
use crate::worker::Worker;

#[test]
fn the_chart_reaches_from_the_least_memory_to_the_best_of_all() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let small = SPEC.replace("\"microbatches\": 8", "\"microbatches\": 4");
    work.receive(plan(1, &small));
    let chart = charted(&mut work);
    assert!(chart.finished && !chart.stale);
    // One microbatch at a time: a forward's bytes on every rank, and no overlap of ranks at all.
    assert_eq!((chart.least_bytes, chart.curve[0].bytes), (Some(2), 2));
    let free = planner::plan(&Spec::read(&small).unwrap(), BEST).unwrap();
    assert_eq!(chart.curve.last().map(|point| point.judged_ns), Some(free.prediction.makespan_ns));
    // Another limit is another place on the same chart.
    work.receive(plan(2, &small.replace("\"ranks\": 4,", "\"ranks\": 4, \"limit_bytes\": 4,")));
    finish(&mut work);
    assert!(work.is_idle());
}

/// Each point of the curve can be had as a plan: what it holds, and what it costs.
#[test]
fn a_point_of_the_chart_is_a_plan_where_it_is_better_than_what_is_shown() {
    let small = SPEC.replace("\"microbatches\": 8", "\"microbatches\": 4");
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, &small));
    let chart = charted(&mut work);
    assert!(chart.curve.len() > 2, "{chart:?}");
    for point in &chart.curve {
        let limited = format!("\"ranks\": 4, \"limit_bytes\": {},", point.bytes);
        let mut asked = |below_ns: u64| {
            let spec = small.replace("\"ranks\": 4,", &limited);
            work.receive(Question { id: 2, ask: Ask::OpenPoint { spec, bytes: point.bytes, below_ns } });
            finish(&mut work).remove(0).response
        };
        let Response::Ordered { plan } = asked(point.judged_ns + 1) else { panic!("{point:?} is no plan") };
        let plan = Plan::from_json(&plan).expect("a plan");
        assert_eq!(plan.schedule_name, FROM_CHART);
        assert_eq!(plan.prediction.makespan_ns, point.judged_ns);
        assert_eq!(plan.prediction.peak_bytes.iter().max(), Some(&point.bytes));
        let response = asked(point.judged_ns);
        assert!(
            matches!(&response, Response::NoPoint { reason } if reason.contains("under this limit")),
            "{response:?}"
        );
    }
    let other = small.replace("\"forward_ns\": 10", "\"forward_ns\": 11");
    work.receive(Question { id: 3, ask: Ask::OpenPoint { spec: other, bytes: u64::MAX, below_ns: u64::MAX } });
    let replies = finish(&mut work);
    assert!(
        matches!(&replies[0].response, Response::NoPoint { reason } if reason.contains("no stored schedule")),
        "{replies:?}"
    );
    assert_eq!(replies[1].response, Response::Done);
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
            let (case, epilogue) = (&answer.case, answer.case.derived.as_ref().map(|derived| &derived.epilogue));
            let judged_ns = planner::judged_ns(&spec, &case.problem, epilogue, &answer.schedule, &answer.timeline);
            assert_eq!(judged_ns, best.least_ns(), "{} of {text}", published.name);
        }
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &text));
        let mut shown_ns = None;
        while !work.is_answered() {
            shown_ns = work.step().into_iter().rev().fold(shown_ns, |shown_ns, reply| match reply.response {
                Response::Planned(picture) => Some(picture.figures.judged_ns),
                _ => shown_ns,
            });
        }
        assert_eq!(shown_ns, work.comparison.as_ref().map(|running| running.best.least_ns()), "{text}");
    }
}
