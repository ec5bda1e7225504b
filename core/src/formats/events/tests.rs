use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::Value;

use super::*;
use crate::plan::{Plan, planner};
use crate::spec::Spec;
use crate::trace::TraceSpan;
use crate::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind};

fn plan(schedule: &str) -> Plan {
    let spec = Spec::read(
        "ranks = 2\nmicrobatches = 3\nstages = { forward_ns = 1500, backward_input_ns = 1, forward_bytes = 1, \
         backward_input_bytes = -1 }\n",
    )
    .unwrap();
    planner::plan(&spec, schedule).unwrap()
}

/// The events in JSON of what `write` writes.
fn events(write: impl FnOnce(&mut dyn Events)) -> Vec<Value> {
    let mut text = Vec::new();
    let mut sink = |piece: &[u8]| {
        text.extend_from_slice(piece);
        ControlFlow::Continue(())
    };
    write(&mut Chrome::new(&mut sink));
    let value: Value = serde_json::from_slice(&text).unwrap();
    value["traceEvents"].as_array().unwrap().clone()
}

fn of<'a>(events: &'a [Value], phase: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["ph"] == phase).collect()
}

/// A trace with `rows` rows of these spans in each of two steps.
fn trace(rows: usize, spans: &[TraceSpan]) -> Trace {
    let step = |number| StepTrace {
        step: number,
        loss: None,
        tokens: 0,
        began_ns: None,
        rows: alloc::vec![spans.to_vec(); rows],
        collectives: Vec::new(),
    };
    Trace {
        backend: "cpu".into(),
        transport: "threads".into(),
        replicas: 1,
        context: 1,
        tensor: 1,
        steps: alloc::vec![step(0), step(1)],
        ..Trace::default()
    }
}

const fn optimizer(start_ns: Nanos, end_ns: Nanos) -> TraceSpan {
    TraceSpan { step: Step::Optimizer, start_ns, end_ns }
}

#[test]
fn every_op_every_byte_and_every_message_is_an_event() {
    let plan = plan("1f1b");
    let timeline = plan.timeline().unwrap();
    let events = events(|to| write_plan(to, "\"1f1b\"", &plan.problem, &timeline, &[]));
    // 2 ranks of 3 F and 3 BW; a process and a track of ops for each rank, each with a name and a place.
    assert_eq!((of(&events, "X").len(), of(&events, "M").len()), (12, 8));
    assert_eq!(of(&events, "M")[0]["args"]["name"], "\"1f1b\": rank 0");
    let holds = ["0-3, embedding".to_string(), "4-7, head".to_string()];
    let with_layers = super::tests::events(|to| write_plan(to, "1f1b", &plan.problem, &timeline, &holds));
    let labels = of(&with_layers, "M").into_iter().filter(|event| event["name"] == "process_labels");
    let labels: Vec<(&Value, &Value)> = labels.map(|event| (&event["pid"], &event["args"]["labels"])).collect();
    assert_eq!(labels, [(&0.into(), &"layers 0-3, embedding".into()), (&1.into(), &"layers 4-7, head".into())]);
    let first = of(&events, "X")[0];
    assert_eq!((&first["name"], &first["ts"], &first["dur"]), (&"0F0".into(), &0.into(), &1.5.into()));
    assert_eq!(
        of(&events, "C").iter().map(|event| event["args"]["bytes"].as_u64()).max(),
        Some(Some(2)),
        "1F1B of two ranks has two microbatches in flight on the first"
    );
    // Each microbatch's output goes down once, and its gradient up once.
    let ids = |phase| -> Vec<u64> { of(&events, phase).iter().filter_map(|event| event["id"].as_u64()).collect() };
    let (mut sent, mut received) = (ids("s"), ids("f"));
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(sent.len(), 6);
    assert_eq!(sent, received);
    let down = of(&events, "s").into_iter().filter(|event| event["pid"] == 0).count();
    assert_eq!(down, 3, "rank 0 sends what its forwards make, and receives gradients");
}

#[test]
fn steps_follow_each_other_or_stand_where_they_were() {
    let starts = |trace: &Trace| -> Vec<f64> {
        let events = events(|to| write_trace(to, "measured", trace));
        of(&events, "X").iter().filter_map(|event| event["ts"].as_f64()).collect()
    };
    let mut trace = trace(1, &[optimizer(10, 30)]);
    // The steps, then what is in them.
    assert_eq!(starts(&trace), [0.0, 0.03, 0.01, 0.04]);
    for (step, began) in trace.steps.iter_mut().zip([1000, 1100]) {
        step.began_ns = Some(began);
    }
    assert_eq!(starts(&trace), [0.0, 0.1, 0.01, 0.11]);
    // Steps that overlap on such a clock cannot be shown there.
    trace.steps[1].began_ns = Some(1020);
    assert_eq!(starts(&trace), [0.0, 0.03, 0.01, 0.04]);
}

#[test]
fn every_row_of_every_replica_is_a_process_with_a_name_of_its_own() {
    let mut trace = trace(4, &[optimizer(0, 1)]);
    trace.replicas = 2;
    let events = events(|to| write_trace(to, "measured", &trace));
    let named = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = named.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "measured: steps on cpu over threads",
            "measured: replica 0, rank 0",
            "measured: replica 0, rank 1",
            "measured: replica 1, rank 0",
            "measured: replica 1, rank 1"
        ]
    );
    trace.set_hosts(&[7, 7, 3, 3]);
    let on_hosts = super::tests::events(|to| write_trace(to, "measured", &trace));
    let named = on_hosts.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&str> = named.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names[1], "measured: host 1, replica 0, rank 0");
    assert_eq!(names[3], "measured: host 0, replica 1, rank 0");
    let processes: alloc::collections::BTreeSet<u64> =
        of(&events, "X").iter().filter_map(|event| event["pid"].as_u64()).collect();
    assert_eq!(processes.len(), 5);
}

/// chrome://tracing draws spans that overlap on one track as one, and Perfetto drops them.
#[test]
fn spans_that_overlap_stand_on_tracks_of_their_own() {
    let trace = trace(1, &[optimizer(0, 10), optimizer(5, 8), optimizer(10, 12)]);
    let events = events(|to| write_trace(to, "measured", &trace));
    let tracks: Vec<u64> =
        of(&events, "X").iter().filter(|event| event["pid"] == 1).filter_map(|event| event["tid"].as_u64()).collect();
    assert_eq!(tracks[..3], [0, 1, 0]);
    let names: Vec<&Value> =
        events.iter().filter(|event| event["name"] == "thread_name").map(|event| &event["args"]["name"]).collect();
    assert!(names.contains(&&Value::from("ops (2)")), "{names:?}");
}

#[test]
fn ranks_sort_by_name_as_by_number() {
    let names: Vec<String> = (0..12).map(|rank| padded(rank, 12)).collect();
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn collectives_stand_beside_the_ops_that_they_overlap() {
    let name = CollectiveName {
        kind: CollectiveKind::ReduceScatter,
        group: Some(GroupKind::Data),
        label: "gradients of stage 0".into(),
        ranks: alloc::vec![0],
    };
    let collective =
        |start_ns| Collective { name: Arc::new(name.clone()), start_ns, end_ns: 30, bytes: None, exposed_ns: None };
    let mut trace = trace(1, &[optimizer(10, 30)]);
    trace.steps[0].collectives = alloc::vec![alloc::vec![collective(12), collective(20)]];
    let events = events(|to| write_trace(to, "measured", &trace));
    let name_of = |track: &Value| {
        let named = |event: &&Value| event["name"] == "thread_name" && event["pid"] == 1 && event["tid"] == *track;
        events.iter().find(named).map(|event| event["args"]["name"].clone())
    };
    let shown: Vec<(Value, f64)> = of(&events, "X")
        .into_iter()
        .filter(|event| event["cat"] == "collective")
        .map(|event| (name_of(&event["tid"]).unwrap(), event["ts"].as_f64().unwrap()))
        .collect();
    assert_eq!(shown, [("gradient sync".into(), 0.012), ("gradient sync (2)".into(), 0.02)]);
    let what: Vec<&Value> =
        of(&events, "X").iter().filter(|event| event["cat"] == "collective").map(|event| &event["name"]).collect();
    assert_eq!(what[0], "dp reduce-scatter gradients of stage 0");
}

/// Arrows have the same numbers however many steps a trace has: those of a step follow those of the one before.
#[test]
fn arrows_of_steps_stay_apart() {
    let plan = plan("1f1b");
    let row = |row: &Vec<crate::simulate::timeline::Span>| {
        let span = |span: &crate::simulate::timeline::Span| TraceSpan {
            step: Step::Compute(span.op),
            start_ns: span.start_ns,
            end_ns: span.end_ns,
        };
        row.iter().map(span).collect::<Vec<_>>()
    };
    let mut trace = trace(2, &[]);
    trace.steps.iter_mut().for_each(|step| step.rows = plan.timeline().unwrap().rows.iter().map(row).collect());
    let events = events(|to| write_trace(to, "measured", &trace));
    let ids = |phase| -> Vec<u64> { of(&events, phase).iter().filter_map(|event| event["id"].as_u64()).collect() };
    let (mut sent, mut received) = (ids("s"), ids("f"));
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!((&sent, sent.len()), (&received, 12));
    assert_eq!(sent, (1..=12).collect::<Vec<_>>());
    // The first step comes whole before the second.
    let half = of(&events, "s").len() / 2;
    assert!(of(&events, "s")[..half].iter().all(|event| event["id"].as_u64() <= Some(6)));
}

/// Whoever takes no more gets no more, in either encoding.
#[test]
fn a_file_ends_where_nobody_takes_more_of_it() {
    let mut trace = trace(64, &(0..2000).map(|at| optimizer(at, at + 1)).collect::<Vec<_>>());
    trace.steps.truncate(1);
    for encoding in ["json", "protobuf"] {
        let pieces_of = |most: usize| {
            let mut pieces = 0;
            let mut sink = |_: &[u8]| {
                pieces += 1;
                if pieces == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            match encoding {
                "json" => write_trace(&mut Chrome::new(&mut sink), "measured", &trace),
                _ => write_trace(&mut Perfetto::new(&mut sink), "measured", &trace),
            }
            pieces
        };
        assert!(pieces_of(usize::MAX) > 3, "{encoding}");
        assert_eq!((pieces_of(1), pieces_of(2)), (1, 2), "{encoding}");
    }
}
