//! Advice: memory, layouts, sensitivity, passes.

use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;

use super::{SPEC, finish, plan, unwatched};
use crate::form::LayoutQuestion;
use crate::protocol::{Ask, Layouts, Order, Question, Reply, Response, SuggestionRow, from_core};
use crate::script_api::plan_file;
use crate::worker::Worker;
use crate::worker::limit_price::LimitPrice;

/// Layouts come while they are found; a plan that is asked for meanwhile comes first, and ending leaves what there is.
#[test]
fn layouts_are_found_beside_plans_and_can_be_ended() {
    let model = r#"{ "model": { "name": "tiny-llama", "layers": 2 }, "cluster": { "device": "cpu" },
        "parallel": { "pipeline": 2 }, "training": { "microbatches": 4, "sequence": 16 } }"#;
    let tune = |spec: Option<&str>| Ask::Tune { spec: spec.map(str::to_owned), devices: None };
    let layouts = |replies: &[Reply]| -> Vec<Layouts> {
        let of = |reply: &Reply| match &reply.response {
            Response::Tuned(layouts) => Some((**layouts).clone()),
            _ => None,
        };
        replies.iter().filter_map(of).collect()
    };
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(Question { id: 1, ask: tune(Some(model)) });
    assert_eq!(layouts(&work.step()).len(), 1, "it says at once how many there are");
    work.receive(plan(2, SPEC));
    assert!(work.step().iter().any(|reply| matches!(reply.response, Response::Planned(_))));
    let told = layouts(&finish(&mut work));
    let last = told.last().unwrap();
    assert!(last.finished && last.settled == last.all && last.given.is_some(), "{last:?}");
    assert!(last.rows.is_sorted_by_key(|row| row.step.step_ns) && !last.rows.is_empty());
    for row in &last.rows {
        assert!(Spec::read(&row.spec).is_ok());
    }

    work.receive(Question { id: 3, ask: tune(Some(model)) });
    work.step();
    work.receive(Question { id: 4, ask: tune(None) });
    let ended = layouts(&work.step());
    assert!(ended[0].finished && ended[0].settled < ended[0].all, "{ended:?}");
    work.receive(Question { id: 5, ask: tune(Some(SPEC)) });
    assert!(
        work.step().iter().any(|reply| matches!(&reply.response, Response::NotTuned(faults) if !faults.is_empty()))
    );
    assert!(work.is_answered());
}

#[test]
fn a_model_that_does_not_fit_is_told_what_would() {
    let spec = r#"{ "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" }, "schedule": "1f1b",
        "parallel": { "pipeline": 2 }, "training": { "microbatches": 4, "microbatch_size": 2 }, "memory": { "limit_bytes": 1000 } }"#;
    for (schedule, explained) in [("1f1b", "1f1b"), ("best", "")] {
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec.replace("1f1b", schedule)));
        let replies = finish(&mut work);
        let Some(Response::Unfit(unfit)) = replies.last().map(|reply| &reply.response) else { panic!("{replies:?}") };
        assert!(explained.is_empty() || unfit.schedule == explained);
        assert_eq!(unfit.memory.len(), 2);
        for rank in &unfit.memory {
            assert_eq!(rank.fixed.iter().sum::<u64>() + rank.activations, rank.peak);
            assert_eq!(rank.fixed.len(), from_core::kinds_of_bytes().len());
        }
        assert!(unfit.suggestions.iter().any(|suggestion| suggestion.changes[0][0] == "training.recompute"));
        assert!(unfit.suggestions.iter().all(|suggestion| !suggestion.cheapest && !suggestion.fits), "{unfit:?}");
    }
    // The cheapest of what fits comes first, as the command names it.
    let fits = spec.replace("\"limit_bytes\": 1000", "\"limit_bytes\": 6300000");
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(plan(1, &fits));
    let Some(Response::Unfit(unfit)) = finish(&mut work).pop().map(|reply| reply.response) else { panic!("it fits") };
    let found =
        pipeplan_core::advise::suggest::suggestions(&Spec::read(&fits).unwrap(), &schedule::find("1f1b").unwrap())
            .unwrap();
    // Its MFU is that of the plan with its changes.
    let first = &unfit.suggestions[0];
    let changes = [["microbatch_size", "2", "1"], ["microbatches", "4", "8"]];
    let changed = changes.iter().fold(fits.clone(), |spec, [key, from, to]| {
        spec.replace(&format!("\"{key}\": {from}"), &format!("\"{key}\": {to}"))
    });
    let changed = Spec::read(&changed).unwrap();
    let answer = planner::answer(&changed, &schedule::find("1f1b").unwrap()).unwrap();
    let mfu = answer.step(&changed).unwrap().mfu;
    assert_eq!(first.mfu_e4, Some((mfu * 1e4).round() as u32), "{first:?}");
    assert_eq!(
        Some(&SuggestionRow { mfu_e4: None, ..first.clone() }),
        found.cheapest().map(|suggestion| from_core::suggestion(suggestion.clone(), true)).as_ref()
    );
    assert_eq!(unfit.suggestions.len(), found.combined.len() + found.single.len());
}

/// Where the best fits, and waits for memory; whoever asks for it again is told again.
#[test]
fn a_limit_that_costs_time_is_told_once_the_best_is_known() {
    let spec = |limit: &str, schedule: &str| {
        format!(
            r#"{{ "model": {{ "name": "llama-2-13b" }}, "cluster": {{ "device": "a100-80" }}, "schedule": "{schedule}",
            "parallel": {{ "pipeline": 4 }}, "training": {{ "microbatches": 4 }},
            "memory": {{ "limit_bytes": "{limit}" }} }}"#
        )
    };
    let told = |work: &mut Worker, id: u32, limit: &str, schedule: &str| {
        work.receive(plan(id, &spec(limit, schedule)));
        let mut told = Vec::new();
        let mut done = false;
        while !work.is_idle() {
            if let Some(LimitPrice::Begun { .. }) = work.comparison.as_ref().map(|running| &running.shortening) {
                assert_eq!(work.rest_ms(), 0, "its pieces are small, and many");
            }
            for Reply { id: of, response } in work.step() {
                done |= response == Response::Done;
                if let Response::Shorter(shorter) = response {
                    assert!(done && of == id, "it comes once all else is said");
                    told.push(*shorter);
                }
            }
        }
        told
    };
    let mut work = Worker::new(|| 0.0, unwatched());
    let first = told(&mut work, 1, "66 GiB", "best");
    let [shorter] = &first[..] else { panic!("{first:?}") };
    assert!(shorter.without_limit_ns < shorter.step_ns / 10 * 9, "{shorter:?}");
    assert!(
        shorter.suggestions.iter().all(|suggestion| suggestion.fits && suggestion.step_ns < shorter.step_ns),
        "{shorter:?}"
    );
    assert!(
        shorter.suggestions.iter().any(|suggestion| suggestion.changes[0][0] == "training.recompute"),
        "{shorter:?}"
    );
    assert_eq!(told(&mut work, 2, "66 GiB", "1f1b"), []);
    assert_eq!(told(&mut work, 3, "66 GiB", "best"), first);
    assert_eq!(told(&mut work, 4, "300 GiB", "best"), []);
}

/// The passes of the plan on screen, for a published schedule and for the best.
#[test]
fn what_the_passes_did_is_said_when_asked() {
    for schedule in ["1f1b", "best"] {
        let spec = format!(
            r#"{{ "model": {{ "name": "tiny-llama" }}, "cluster": {{ "device": "cpu" }}, "schedule": "{schedule}",
            "parallel": {{ "pipeline": 2 }}, "training": {{ "microbatches": 4, "recompute": "full" }} }}"#
        );
        let mut work = Worker::new(|| 0.0, unwatched());
        work.receive(plan(1, &spec));
        finish(&mut work);
        work.receive(Question { id: 2, ask: Ask::Passes { spec } });
        let replies = finish(&mut work);
        let Some(Response::Passes(text)) = replies.last().map(|reply| &reply.response) else { panic!("{replies:?}") };
        // Weights by their own names, which are like those of fields.
        for part in ["stage", "split of the backward into B and W: ", "recompute: ", "model.layers.*.mlp"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// Of the order that is asked about, one kind after the other; a newer question ends an older one.
#[test]
fn what_a_plan_hangs_on_is_said_when_asked() {
    let mut work = Worker::new(|| 0.0, unwatched());
    let plan = Plan::from_json(&plan_file(SPEC, Some("1f1b")).unwrap()).unwrap();
    let order = Order {
        problem: plan.problem.statement().to_value().to_string(),
        rows: plan.schedule.text_rows(),
        pairs: Vec::new(),
        copies: Vec::new(),
    };
    work.receive(Question { id: 1, ask: Ask::Sensitivity(Some(order.clone())) });
    work.step();
    assert!(!work.is_idle());
    work.receive(Question { id: 2, ask: Ask::Sensitivity(Some(order)) });
    let replies = finish(&mut work);
    let [Reply { id: 2, response: Response::Sensitivity(sensed) }] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(sensed.cost_ns, plan.prediction.makespan_ns);
    let names: Vec<&str> = sensed.rows.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names[..3], ["every op", "all BW", "all F"]);
    assert_eq!(names.iter().filter(|name| name.starts_with("rank ")).count(), plan.problem.ranks());
    assert!(sensed.rows.iter().all(|(_, longer, less)| less <= &sensed.cost_ns && &sensed.cost_ns <= longer));
    work.receive(Question { id: 3, ask: Ask::Sensitivity(None) });
    assert_eq!(finish(&mut work), []);
}

/// The layout of a form whose degrees follow, and what leads on where there is none.
#[test]
fn a_layout_is_found_for_what_is_pinned() {
    let ask = |id: u32, devices: Option<u64>, limit: &str| {
        let spec = format!(
            r#"{{ "model": {{ "name": "tiny-llama" }}, "cluster": {{ "device": "cpu" }}, "parallel": {{ "pipeline": 2 }},
            "training": {{ "microbatches": 1 }}, "memory": {{ "limit_bytes": "{limit}" }} }}"#
        );
        let pins = vec!["parallel.pipeline".to_owned()];
        Question { id, ask: Ask::FindLayout(Some(LayoutQuestion { spec, devices, batch: Some(8), pins })) }
    };
    let found = |work: &mut Worker| match finish(work).pop().map(|reply| (reply.id, reply.response)) {
        Some((id, Response::LayoutFound(found))) if found.finished => (id, found),
        other => panic!("{other:?}"),
    };
    let mut work = Worker::new(|| 0.0, unwatched());
    work.receive(ask(1, Some(4), "1 GiB"));
    let (id, layout) = found(&mut work);
    let spec = Spec::read(&layout.spec.unwrap()).unwrap();
    let pipeplan_core::spec::Work::Model(model) = &spec.work else { panic!("a model") };
    assert_eq!((id, model.devices(), model.pipeline), (1, 4, 2));
    // 3 devices are no multiple of two ranks.
    work.receive(ask(2, Some(3), "1 GiB"));
    let (_, none) = found(&mut work);
    assert!(none.spec.is_none() && none.reason.contains('3') && none.next.is_some(), "{none:?}");
    // A newer question ends the older one.
    work.receive(ask(3, Some(4), "1 GiB"));
    work.step();
    work.receive(Question { id: 4, ask: Ask::FindLayout(None) });
    work.step();
    assert!(work.is_answered());
}
