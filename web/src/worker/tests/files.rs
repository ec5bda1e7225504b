//! Files: plans, traces, profiles.

use std::sync::Arc;

use pipeplan_core::hardware::profile::Profile;
use pipeplan_core::plan::planner;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::{Spec, Work};

use super::{SPEC, finish, plan, unwatched};
use crate::protocol::{Ask, Purpose, Question, Response};
use crate::script_api::plan_file;
use crate::worker::Worker;

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

#[test]
fn a_file_that_is_none_is_refused_in_words() {
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(Question { id: 1, ask: Ask::OpenPlan { text: "{}".to_owned() } });
    let replies = finish(&mut work);
    assert!(matches!(&replies[0].response, Response::Unreadable { faults, .. } if !faults.is_empty()));
}
