use alloc::sync::Arc;

use super::*;
use crate::base::units::Nanos;
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
        let known: Vec<&str> = schedule::published().iter().map(|published| published.name).chain([BEST]).collect();
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
        modules: crate::model::Modules::default(),
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
        (too_little, "1f1b", "rank 0 needs 8 bytes; the limit is 3"),
        (too_little, "zb-v", "it has 2 chunks per rank; the problem fixes 1"),
        (too_little, "2f2b", "no schedule is called `2f2b`; accepted is one of best, gpipe"),
    ] {
        let error = plan(&spec(text), name).unwrap_err().to_string();
        assert!(error.contains(says), "{error} should say {says}");
    }
}
