//! Plans and the comparison.

use pipeplan_core::plan::Plan;
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::search::Flow;

use super::{SPEC, finish, plan, unwatched};
use crate::protocol::{Ask, Purpose, Question, Reply, Response, Row};
use crate::script_api::plan_file;
use crate::text;
use crate::worker::Worker;

/// What a search has found by then is shown, compared and exported; who asks for the best again has it searched on.
#[test]
fn a_search_ends_early_with_the_best_so_far() {
    let spec =
        r#"{ "ranks": 6, "microbatches": 12, "chunks": 2, "placement": "v", "limit_bytes": 70, "transfer_ns": 3,
        "stages": { "forward_ns": 9, "backward_input_ns": 11, "backward_weight_ns": 7,
        "forward_bytes": 10, "backward_input_bytes": -4, "backward_weight_bytes": -6 } }"#
            .to_owned();
    let best = |replies: &[Reply]| {
        let row = replies.iter().rev().find_map(|reply| match &reply.response {
            Response::Compared(row) if row.schedule == BEST => Some(row.clone()),
            _ => None,
        });
        let row = row.expect("a row of the best");
        (row.costs.expect("a plan").makespan_ns, row.reason.unwrap_or_default())
    };
    let mut whole = Worker::new(|| 0.0, unwatched());
    whole.receive(plan(1, &spec));
    let (least_ns, by) = best(&finish(&mut whole));
    assert!(!by.contains("early"), "{by}");

    // By the watch, from within a search.
    let mut work = Worker::new(
        || 0.0,
        Box::new(|id, cost_ns, bound_ns| {
            assert!(id == 1 && bound_ns > 0 && bound_ns <= cost_ns);
            Flow::Stop
        }),
    );
    work.receive(plan(1, &spec));
    let replies = finish(&mut work);
    let (stopped_ns, by) = best(&replies);
    assert!(by.ends_with(" stopped early") && stopped_ns >= least_ns, "{by} {stopped_ns} {least_ns}");
    assert_eq!(replies.last().map(|reply| &reply.response), Some(&Response::Done));
    work.receive(Question { id: 2, ask: Ask::Export { spec: spec.clone(), purpose: Purpose::Download } });
    let Response::Exported { text, .. } = finish(&mut work).remove(0).response else { panic!("no file") };
    assert_eq!(Plan::from_json(&text).unwrap().prediction.makespan_ns, stopped_ns);

    // By a question that comes between two pieces, and then searched on.
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, &spec));
    work.receive(Question { id: 2, ask: Ask::Stop });
    let (_, by) = best(&finish(&mut work));
    let early = by.contains("early");
    work.receive(plan(3, &spec));
    let replies = finish(&mut work);
    assert_eq!(replies.iter().any(|reply| matches!(reply.response, Response::Comparing { .. })), early);
    if early {
        assert_eq!(best(&replies).0, least_ns);
    }
    work.receive(Question { id: 4, ask: Ask::Stop });
    assert_eq!(finish(&mut work), []);
}

/// Where looking at each schedule takes long, they come one by one, and looking at them can be ended.
#[test]
fn schedules_that_take_long_come_one_by_one() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NOW: AtomicU32 = AtomicU32::new(0);
    let mut work = Worker::new(|| f64::from(NOW.fetch_add(400, Ordering::Relaxed)), unwatched());
    work.receive(plan(1, SPEC));
    let rows =
        |replies: &[Reply]| replies.iter().filter(|reply| matches!(reply.response, Response::Compared(_))).count();
    let first = work.step();
    assert!((1..4).contains(&rows(&first)), "{first:?}");
    assert!(
        matches!(first.last().unwrap().response, Response::Searching { bound_ns: 0, .. } | Response::Charted(_)),
        "{first:?}"
    );
    let next = work.step();
    assert_eq!(rows(&next), 1);
    assert!(next.iter().any(|reply| matches!(reply.response, Response::Searching { bound_ns: 0, .. })), "{next:?}");
    assert!(!next.iter().any(|reply| matches!(reply.response, Response::Planned(_))));
    work.receive(Question { id: 2, ask: Ask::Stop });
    let last = finish(&mut work);
    assert_eq!(rows(&first) + rows(&next) + rows(&last), schedule::published().len() + 1);
    let skipped = last.iter().filter(|reply| {
        matches!(&reply.response, Response::Compared(Row { reason: Some(reason), .. }) if reason.starts_with("not evaluated"))
    });
    assert_eq!(skipped.count(), rows(&last) - 1, "{last:?}");
    assert!(last.iter().any(|reply| matches!(reply.response, Response::Planned(_))));
    assert_eq!(last.last().map(|reply| &reply.response), Some(&Response::Done));
}

#[test]
fn a_plan_is_shown_and_compared_with_every_schedule() {
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(7, SPEC));
    let replies = finish(&mut work);
    let plans: Vec<&Reply> = replies.iter().filter(|reply| matches!(reply.response, Response::Planned(_))).collect();
    assert_eq!(plans.len(), 1, "nothing is shown twice while the clock stands still");
    let rows = replies.iter().filter(|reply| matches!(reply.response, Response::Compared(_))).count();
    assert_eq!(rows, schedule::published().len() + 1);
    assert!(replies.iter().all(|reply| reply.id == 7));
    assert_eq!(replies.last().map(|reply| &reply.response), Some(&Response::Done));
}

#[test]
fn another_schedule_of_the_same_spec_is_not_compared_again() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let spec = |schedule: &str| format!(r#"{{ "schedule": "{schedule}", "problem": {SPEC} }}"#);
    work.receive(plan(1, &spec("1f1b")));
    finish(&mut work);
    work.receive(plan(2, &spec("gpipe")));
    let replies = finish(&mut work);
    assert!(matches!(&replies[0].response, Response::Planned(picture) if picture.schedule == "gpipe"));
    assert_eq!(replies[1].response, Response::Done);
    assert_eq!(replies.len(), 2);
}

#[test]
fn the_best_is_the_best_of_the_rows_and_the_same_as_in_the_plan_file() {
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, SPEC));
    let replies = finish(&mut work);
    let makespans = replies.iter().filter_map(|reply| match &reply.response {
        Response::Compared(row) => row.costs.map(|costs| costs.makespan_ns),
        _ => None,
    });
    let shown = replies.iter().find_map(|reply| match &reply.response {
        Response::Planned(picture) => Some(picture.figures.makespan_ns),
        _ => None,
    });
    assert_eq!(makespans.min(), shown);
    let plan = Plan::from_json(&plan_file(SPEC, None).unwrap()).unwrap();
    assert_eq!(Some(plan.prediction.makespan_ns), shown);
}

#[test]
fn a_plan_keeps_the_size_of_its_groups() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let spec = SPEC.replace("\"chunks\": 1, \"placement\": \"linear\"", "\"chunks\": 2");
    work.receive(plan(1, &format!(r#"{{ "schedule": "interleaved-1f1b:8", "problem": {spec} }}"#)));
    let first = work.step().remove(0).response;
    assert!(matches!(&first, Response::Planned(picture) if picture.schedule == "interleaved-1f1b:8"), "{first:?}");
    assert_eq!(text::schedule_title("interleaved-1f1b:8"), "Interleaved 1F1B, groups of 8");
}

#[test]
fn where_nothing_fits_the_least_memory_is_named() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let spec = SPEC.replace("\"ranks\": 4,", "\"ranks\": 4, \"limit_bytes\": 1,");
    work.receive(plan(1, &spec));
    let replies = finish(&mut work);
    let reason = replies.iter().find_map(|reply| match &reply.response {
        Response::NoPlan { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    assert!(reason.is_some_and(|reason| reason.contains("needs at least 2 B")), "{reason:?}");
}

/// A list of layers that is of another model, or of too few stages, is told at its field, whatever the schedule.
#[test]
fn a_field_that_no_schedule_can_have_is_named() {
    for (schedule, partition, found, says) in [
        ("best", "[8, 8, 8, 9]", "33 layers in all", "“Layers per stage”: found 33 layers in all, accepted is 32"),
        ("1f1b", "[8, 8, 8, 9]", "33 layers in all", "“Layers per stage”: found 33 layers in all, accepted is 32"),
        ("best", "[32]", "1 entry", "found 1 entry, accepted is 4 entries, one for each stage of 4 ranks."),
    ] {
        let spec = format!(
            r#"{{ "model": {{ "name": "llama-2-7b" }}, "cluster": {{ "device": "h100" }}, "schedule": "{schedule}",
            "parallel": {{ "pipeline": 4, "partition": {partition} }}, "training": {{ "microbatches": 8 }} }}"#
        );
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec));
        let response = finish(&mut work).into_iter().find_map(|reply| match reply.response {
            Response::NoPlan { reason, fault, .. } => Some((reason, fault)),
            _ => None,
        });
        let Some((reason, Some(fault))) = response else { panic!("{response:?}") };
        assert_eq!((fault.field.as_str(), fault.found.as_str()), ("parallel.partition", found), "{fault:?}");
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn a_newer_plan_makes_the_older_one_pointless() {
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, SPEC));
    work.receive(plan(2, "{}"));
    let replies = finish(&mut work);
    assert!(replies.iter().all(|reply| reply.id == 2));
    assert!(matches!(&replies[0].response, Response::Refused(faults) if !faults.is_empty()));
}

#[test]
fn a_newer_spec_stops_the_comparison_of_the_older_one() {
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, &format!(r#"{{ "schedule": "1f1b", "problem": {SPEC} }}"#)));
    work.step();
    work.step();
    work.receive(plan(2, &SPEC.replace("\"microbatches\": 8", "\"microbatches\": 9")));
    let replies = finish(&mut work);
    assert!(replies.iter().all(|reply| reply.id == 2), "{replies:?}");
}
