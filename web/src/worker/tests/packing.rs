//! Documents that the planner packs.

use pipeplan_core::plan::Plan;
use pipeplan_core::schedule::BEST;
use pipeplan_core::search::Flow;
use serde_json::{Value, json};

use super::{finish, plan, unwatched};
use crate::protocol::{Ask, Picture, Purpose, Question, Reply, Response};
use crate::script_api::plan_file;
use crate::worker::Worker;

fn spec(schedule: &str, documents: Value) -> String {
    json!({
        "schedule": schedule, "model": { "name": "tiny-llama" }, "cluster": { "device": "h100" },
        "parallel": { "pipeline": 2, "data": 2 },
        "training": { "microbatches": 4, "sequence": 512, "documents": documents },
    })
    .to_string()
}

fn step() -> Value {
    json!([512, 300, 40, 150, 20, 500, 380, 120, 256, 256, 75, 50])
}

fn pictures(replies: &[Reply]) -> Vec<&Picture> {
    let picture = |reply: &'_ Reply| matches!(&reply.response, Response::Planned(_) | Response::Opened { .. });
    let planned = replies.iter().filter(|reply| picture(reply));
    planned
        .filter_map(|reply| match &reply.response {
            Response::Planned(picture) | Response::Opened { picture, .. } => Some(&**picture),
            _ => None,
        })
        .collect()
}

/// The plan of the page is that of the command, with its documents where the command has them; so is what packings cost, also
/// where the file is opened again.
#[test]
fn documents_are_packed_as_the_command_packs_them() {
    for schedule in [BEST, "1f1b", "interleaved-1f1b:2"] {
        let spec = spec(schedule, step());
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec));
        let replies = finish(&mut work);
        let last = pictures(&replies).pop().expect("a plan").clone();
        assert_eq!(replies.last().map(|reply| &reply.response), Some(&Response::Done));
        work.receive(Question { id: 2, ask: Ask::Export { spec: spec.clone(), purpose: Purpose::Download } });
        let Response::Exported { text, .. } = finish(&mut work).remove(0).response else { panic!("no file") };
        assert_eq!(Ok(&text), plan_file(&spec, None).as_ref());
        let file = Plan::from_json(&text).expect("a plan");
        assert_eq!((last.figures.makespan_ns, &last.schedule), (file.prediction.makespan_ns, &file.schedule_name));
        let (times, figures) = (last.widths.packing.expect("packed"), file.packing.expect("packed"));
        assert_eq!((times.found_ns, times.bound_ns), (figures.found_ns, figures.bound_ns));
        assert_eq!(
            [times.given_ns, times.sorted_ns, times.dealt_ns],
            [figures.given_ns, figures.sorted_ns, figures.dealt_ns]
        );
        let documents = last.widths.documents.expect("documents");
        assert_eq!((documents.documents, documents.tokens, documents.replicas), (12, 2659, 2));
        assert_eq!(last.widths.microbatches.len(), 4);
        work.receive(Question { id: 3, ask: Ask::OpenPlan { text } });
        let replies = finish(&mut work);
        let opened = pictures(&replies).remove(0);
        assert_eq!((&opened.widths, opened.figures.makespan_ns), (&last.widths, last.figures.makespan_ns));
    }
}

/// A named schedule is shown at once, then with documents in better places; the answer ends after both. Asked for again, it is
/// not searched again.
#[test]
fn a_schedule_is_shown_before_its_documents_are_searched() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let spec = spec("1f1b", step());
    work.receive(plan(1, &spec));
    let first = work.step();
    let before = pictures(&first).remove(0).figures.judged_ns;
    assert!(!first.iter().any(|reply| reply.response == Response::Done));
    let rest = finish(&mut work);
    assert!(pictures(&rest).pop().expect("the packed plan").figures.judged_ns <= before);
    work.receive(plan(2, &spec));
    let again = work.step();
    assert_eq!(pictures(&again), pictures(&rest)[pictures(&rest).len() - 1..]);
    assert_eq!(again.last().map(|reply| &reply.response), Some(&Response::Done));
}

/// A search of packings is stopped like any other, with the best so far.
#[test]
fn the_search_of_packings_can_be_stopped() {
    for schedule in [BEST, "1f1b"] {
        let mut work = Worker::new(|| 0.0, Box::new(|_, _, _| Flow::Stop));
        work.receive(plan(1, &spec(schedule, step())));
        let replies = finish(&mut work);
        assert!(!pictures(&replies).is_empty());
        assert_eq!(replies.last().map(|reply| &reply.response), Some(&Response::Done), "{schedule}");
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec(schedule, step())));
        work.step();
        work.receive(Question { id: 2, ask: Ask::Stop });
        let replies = finish(&mut work);
        assert!(work.is_answered());
        assert!(schedule == BEST || replies.iter().any(|reply| reply.response == Response::Done));
    }
}

/// All replicas with the same documents have no packing, and whole sequences no widths.
#[test]
fn only_microbatches_that_differ_have_widths() {
    let of = |documents: Value| {
        let mut work = Worker::new(|| 0.0, unwatched());
        let mut spec: Value = serde_json::from_str(&spec("1f1b", documents)).unwrap();
        if spec["training"]["documents"].is_null() {
            spec["training"].as_object_mut().unwrap().remove("documents");
        }
        work.receive(plan(1, &spec.to_string()));
        pictures(&finish(&mut work)).remove(0).widths.clone()
    };
    assert_eq!(of(Value::Null), crate::protocol::Widths::default());
    let alike = of(json!([[512], [100, 100], [300], [40]]));
    assert!(alike.packing.is_none() && alike.microbatches.len() == 4);
    assert_eq!(alike.documents.map(|of| (of.documents, of.tokens)), Some((10, 2104)));
}
