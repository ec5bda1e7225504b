//! Files: plans, traces, profiles.

use std::sync::Arc;

use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::plan::planner;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::{Spec, Work};
use pipeplan_core::trace::Trace;

use super::{SPEC, finish, plan, unwatched};
use crate::protocol::{Ask, Order, Purpose, Question, Response};
use crate::script_api::plan_file;
use crate::worker::Worker;
use crate::worker::specs::read_spec;

#[test]
fn an_exported_plan_opens_as_the_same_plan() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let text = plan_file(SPEC, Some("1f1b")).unwrap();
    work.receive(Question { id: 1, ask: Ask::OpenPlan { text } });
    let replies = finish(&mut work);
    assert!(matches!(&replies[0].response, Response::Opened { picture, .. } if picture.schedule == "1f1b"));
}

/// What was compared is not searched again, and the file is the same.
#[test]
fn what_is_exported_after_a_comparison_is_what_the_command_writes() {
    for schedule in [BEST, "zb-h1"] {
        let spec = format!(r#"{{ "schedule": "{schedule}", "problem": {SPEC} }}"#);
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec));
        finish(&mut work);
        work.receive(Question { id: 2, ask: Ask::Export { spec: spec.clone(), purpose: Purpose::Keep } });
        let Response::Exported { text, purpose } = finish(&mut work).remove(0).response else { panic!("no file") };
        assert_eq!((purpose, Ok(text.clone())), (Purpose::Keep, plan_file(&spec, None)));
        work.receive(Question { id: 3, ask: Ask::OpenKept { text } });
        let again = finish(&mut work).remove(0).response;
        assert!(matches!(&again, Response::KeptOpened { picture } if !picture.rows.is_empty()), "{again:?}");
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
    let Work::Model(model) = &mut spec.work else { panic!("a model") };
    let graph = graph_of(
        model,
        &StageLayout { layers: 0..model.model.layers, embedding: true, head: true, ..StageLayout::default() },
    );
    let mut profile = Profile::new("a test's device");
    for operator in &graph.operators {
        profile.insert(Signature::of(&graph, operator), Load::of(&graph, operator), 1000);
    }
    let file = profile.to_json();
    model.profile = Some(Arc::new(profile));
    let expected = planner::plan(&spec, "1f1b").unwrap().to_json();
    let mut work = Worker::new(|| 0.0, unwatched());
    let exported = |work: &mut Worker| {
        work.receive(plan(2, text));
        let told = finish(work).into_iter().find_map(|reply| match reply.response {
            Response::Timed(timed) => timed,
            _ => None,
        });
        work.receive(Question { id: 3, ask: Ask::Export { spec: text.to_owned(), purpose: Purpose::Download } });
        let Response::Exported { text, .. } = finish(work).remove(0).response else { panic!("no file") };
        (told, text)
    };
    let estimated = exported(&mut work);
    assert_eq!((estimated.0.as_ref(), Ok(&estimated.1)), (None, plan_file(text, None).as_ref()));
    work.receive(Question { id: 1, ask: Ask::Measure { profile: Some(file.clone()) } });
    assert!(
        matches!(&finish(&mut work)[0].response, Response::Timed(Some(timed)) if timed.device == "a test's device")
    );
    let (told, plan_file) = exported(&mut work);
    assert_eq!(told.unwrap().covers, "all operators are measured");
    assert!(plan_file == expected && plan_file != estimated.1);
    // A plan that was made without them has its own times, and it is not said to have these.
    let mut covers = |text: &str| {
        work.receive(Question { id: 3, ask: Ask::OpenPlan { text: text.to_owned() } });
        finish(&mut work).into_iter().find_map(|reply| match reply.response {
            Response::Timed(timed) => timed.map(|timed| timed.covers),
            _ => None,
        })
    };
    assert_eq!(covers(&expected).as_deref(), Some("all operators are measured"));
    assert!(covers(&estimated.1).is_some_and(|covers| covers.starts_with("not in the open plan file")));
    // A file that is none leaves what is there.
    work.receive(Question { id: 4, ask: Ask::Measure { profile: Some(file.replace("1000", "-1")) } });
    let response = finish(&mut work).remove(0).response;
    assert!(
        matches!(&response, Response::Unreadable { what, faults } if what == "profile" && !faults.is_empty()),
        "{response:?}"
    );
    assert!(exported(&mut work).1 == expected);
    work.receive(Question { id: 5, ask: Ask::Measure { profile: None } });
    assert_eq!(finish(&mut work)[0].response, Response::Timed(None));
    assert_eq!(exported(&mut work), estimated);
}

/// What torch wrote of the ranks is gathered until its trace is asked for, and forgotten then.
#[test]
fn what_was_recorded_becomes_a_trace_or_is_told_by_file() {
    let problem = r#"{ "ranks": 1, "microbatches": 1, "stages": { "forward_ns": 2, "backward_input_ns": 2 } }"#;
    let order = || Order { problem: problem.to_owned(), rows: vec!["0F0 0BW0".to_owned()], pairs: vec![Vec::new()] };
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
    let mut work = Worker::new(|| 0.0, unwatched());
    let mut asked = |records: &[&str]| {
        records.iter().for_each(|text| work.receive(record(text)));
        work.receive(Question { id: 2, ask: Ask::Trace { batch: 1, order: order() } });
        finish(&mut work).remove(0).response
    };
    let Response::Traced { trace } = asked(&[&file]) else { panic!("it is a run of the order") };
    let trace = Trace::from_json(&trace).expect("a trace");
    assert_eq!(trace.steps[0].timeline().makespan_ns(), 15_000);
    // Those of files that were opened before are no part of it.
    let mut before = record(&file);
    before.ask = match before.ask {
        Ask::Record { name, text, .. } => Ask::Record { batch: 7, name, text },
        other => other,
    };
    work.receive(before);
    let mut asked = |records: &[&str]| {
        records.iter().for_each(|text| work.receive(record(text)));
        work.receive(Question { id: 2, ask: Ask::Trace { batch: 1, order: order() } });
        finish(&mut work).remove(0).response
    };
    assert!(matches!(asked(&[&file]), Response::Traced { .. }));
    for (records, says) in [
        (&[][..], "rank 0 of the plan"),
        (&["{}"][..], "rank0.json, traceEvents"),
        (&[file.as_str(), "{}"][..], "rank0.json, traceEvents"),
    ] {
        match asked(records) {
            Response::NotTraced(faults) => assert_eq!((faults.len(), faults[0].field.as_str()), (1, says)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_file_that_is_none_is_refused_in_words() {
    let mut work = Worker::new(|| 0.0, unwatched());
    for ask in [Ask::OpenPlan { text: "{}".to_owned() }, Ask::OpenTrace { text: "nonsense".to_owned() }] {
        work.receive(Question { id: 1, ask });
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].response, Response::Unreadable { faults, .. } if !faults.is_empty()));
    }
    work.receive(Question { id: 2, ask: Ask::TraceStep { index: 9 } });
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
    let mut work = Worker::new(|| 0.0, unwatched());
    let calibrate = |row: &str| {
        let (problem, rows) = (problem.to_owned(), vec![row.to_owned()]);
        Question { id: 1, ask: Ask::Calibrate(Order { problem, rows, pairs: vec![Vec::new()] }) }
    };
    work.receive(calibrate("0F0 0BW0 0F1 0BW1"));
    assert!(finish(&mut work).is_empty(), "there is no trace");
    work.receive(Question { id: 1, ask: Ask::OpenTrace { text: trace.to_owned() } });
    finish(&mut work);
    work.receive(calibrate("0F0 0BW0 0F1 0BW1"));
    let replies = finish(&mut work);
    let Response::Calibrated(found) = &replies[0].response else { panic!("{replies:?}") };
    assert_eq!((found.planned_ns, found.causes_ns, found.measured_ns), (12, [2, 0, 0, 0], 14));
    assert_eq!(found.deciding[0].0, "0BW");
    assert!(read_spec(&found.problem).is_ok(), "{}", found.problem);
    work.receive(calibrate("0F0 0F1 0BW0 0BW1"));
    let replies = finish(&mut work);
    assert!(matches!(&replies[0].response, Response::NotCalibrated(faults) if faults.len() == 1), "{replies:?}");
}
