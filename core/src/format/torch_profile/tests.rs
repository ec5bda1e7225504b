//! What a card or a CPU would have recorded of a plan, and what is no such thing.

use alloc::vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::calibrate::calibrate;
use crate::plan::Plan;
use crate::planner;
use crate::spec::Spec;

const STEP_NS: Nanos = 5_000_000;
const BASE_NS: Nanos = 1_790_857_026_000_000_000;

fn plan(schedule: &str, ranks: u64, placement: &str, chunks: u64, hop: u64) -> Plan {
    let spec = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": 2 * ranks, "placement": placement, "transfer_ns": hop,
        "stages": { "forward_ns": 9_001, "backward_input_ns": 11_003, "backward_weight_ns": 7_005 },
    });
    let spec = Spec::read(&spec.to_string()).unwrap_or_else(|error| panic!("{error}"));
    planner::plan(&spec, schedule).unwrap_or_else(|error| panic!("{error}"))
}

fn event(cat: &str, name: &str, tid: u64, start_ns: Nanos, end_ns: Nanos, args: Value) -> Value {
    let us = |ns: Nanos| ns as f64 / 1e3;
    json!({ "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": us(start_ns), "dur": us(end_ns - start_ns), "args": args })
}

fn file(rank: usize, events: Vec<Value>) -> (String, String) {
    let file = json!({
        "schemaVersion": 1, "deviceProperties": [{ "id": 0, "name": "a card" }], "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": { "backend": "nccl", "rank": rank, "world_size": 8 }, "traceEvents": events,
    });
    (format!("rank{rank}.json"), file.to_string())
}

/// What Kineto writes of a card that runs `plan` as it was planned, `steps` times, on each rank. The host is ahead: it
/// launches an op every microsecond. Two kernels an op, those of backwards launched by another thread; a receive is
/// NCCL's, waits for its message from its launch on, and is launched two ops ahead.
fn on_cards(plan: &Plan, steps: u64, first_rank: usize) -> Vec<(String, String)> {
    let timeline = plan.timeline().expect("runs");
    let made = |message: Message| {
        let kind = |op: Op| match message.payload {
            Payload::Activation => op.kind() == OpKind::F,
            Payload::Gradient => matches!(op.kind(), OpKind::B | OpKind::BW),
        };
        let is = |op: Op| (op.stage(), op.microbatch()) == (message.peer_stage(), message.microbatch as usize);
        timeline.rows.iter().flatten().find(|span| kind(span.op) && is(span.op)).expect("who sends").end_ns
    };
    let mut files = Vec::new();
    for (rank, row) in timeline.rows.iter().enumerate() {
        let mut events = vec![json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": "python" } })];
        let mut correlation = 0;
        for step in 0..steps {
            let from = 1_000_000 + step * STEP_NS;
            events.push(event(
                "user_annotation",
                &format!("ProfilerStep#{}", step + 7),
                1,
                from,
                from + STEP_NS - 1,
                json!({}),
            ));
            let launch = |events: &mut Vec<Value>, correlation: &mut u64, kernel: &str, tid, at, start_ns, end_ns| {
                *correlation += 1;
                let args = json!({ "correlation": *correlation, "External id": 3 });
                events.push(event("cuda_runtime", "cudaLaunchKernel", tid, at, at + 50, args.clone()));
                events.push(event("kernel", kernel, 7, start_ns, end_ns, args));
            };
            for (place, span) in row.iter().enumerate() {
                let host = from + 1000 * place as u64 + 100;
                let (start_ns, end_ns) = (from + span.start_ns, from + span.end_ns);
                if let Some(message) = received(&plan.problem, span.op) {
                    let (from_rank, posted) =
                        (plan.problem.rank_of(message.peer_stage(), 0), host.saturating_sub(2500));
                    let arrived = from + made(message) + plan.problem.hop(from_rank, rank);
                    events.push(event(
                        "user_annotation",
                        &format!("PP:{message}"),
                        1,
                        posted,
                        posted + 90,
                        json!({}),
                    ));
                    launch(&mut events, &mut correlation, "ncclDevKernel_SendRecv", 1, posted + 10, from, arrived);
                }
                events.push(event(
                    "user_annotation",
                    &format!("PP:{}", torch_csv::action(span.op)),
                    1,
                    host,
                    host + 800,
                    json!({}),
                ));
                let thread = if span.op.kind() == OpKind::F { 1 } else { 2 };
                let middle = (start_ns + end_ns) / 2;
                launch(&mut events, &mut correlation, "gemm", thread, host + 100, start_ns, middle - 100);
                launch(&mut events, &mut correlation, "gelu", thread, host + 700, middle, end_ns);
                // Of the op's range the card shows less than it took, and of others there are events too.
                events.push(event(
                    "gpu_user_annotation",
                    &format!("PP:{}", torch_csv::action(span.op)),
                    7,
                    start_ns,
                    middle,
                    json!({}),
                ));
                events.push(event(
                    "cpu_op",
                    "aten::linear",
                    thread,
                    host + 90,
                    host + 120,
                    json!({ "Input Dims": [[1, 2], []] }),
                ));
                events.push(
                    json!({ "ph": "f", "id": 3, "pid": 1, "tid": "stream 7", "ts": 5.5, "cat": "ac2g", "bp": "e" }),
                );
            }
        }
        events.push(json!({ "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1.0, "tid": 1,
            "args": { "Total Allocated": 1000 + rank, "Device Type": 1 } }));
        events.push(json!({ "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1.0, "tid": 1,
            "args": { "Total Allocated": 9000, "Device Type": 0 } }));
        // As they are written, events are in no order.
        events.reverse();
        files.push(file(first_rank + rank, events));
    }
    files
}

/// The trace of a run of `plan`.
fn traced(plan: &Plan, files: &[(String, Recording)]) -> Result<Trace, Faults> {
    trace(&plan.problem, &plan.schedule, &plan.digest(), files)
}

fn read_all(files: &[(String, String)]) -> Vec<(String, Recording)> {
    let read = |(name, text): &(String, String)| {
        (name.clone(), read(text).unwrap_or_else(|fault| panic!("{name}: {fault}")))
    };
    files.iter().map(read).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// What ran as it was planned is traced as it was planned, in whatever order its files come.
    #[test]
    fn cards_that_run_a_plan_give_its_timeline(
        which in prop::sample::select(vec![("1f1b", "linear", 1), ("zb-h1", "linear", 1), ("zb-v", "v", 2), ("interleaved-1f1b", "looped", 2)]),
        ranks in 2u64..5, hop in 0u64..20_000, steps in 1u64..4, copies in 1usize..3, turn in 0usize..4,
    ) {
        let (schedule, placement, chunks) = which;
        let plan = plan(schedule, ranks, placement, chunks, hop);
        let mut files: Vec<_> = (0..copies).flat_map(|copy| on_cards(&plan, steps, copy * ranks as usize)).collect();
        let turns = turn % files.len();
        files.rotate_left(turns);
        let trace = traced(&plan, &read_all(&files)).expect("the plan's own run");
        prop_assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace.clone()));
        prop_assert_eq!((trace.replicas, trace.transport.as_str()), (copies, "nccl"));
        let peaks: Vec<u64> = (0..copies * ranks as usize).map(|row| 1000 + (row % ranks as usize) as u64).collect();
        prop_assert_eq!(&trace.peak_bytes, &peaks);
        prop_assert_eq!(trace.steps.iter().map(|step| step.step).collect::<Vec<_>>(), (7..7 + steps).collect::<Vec<_>>());
        let planned = plan.timeline().expect("runs");
        for step in &trace.steps {
            for copy in step.timeline().rows.chunks(ranks as usize) {
                prop_assert_eq!(copy, &planned.rows[..]);
            }
        }
        // Messages took what they were planned to take, where a rank waited for one.
        let calibration = calibrate(&plan.problem, &plan.schedule, &trace).expect("the plan's own run");
        prop_assert!(calibration.hops.iter().all(|link| link.median_ns == hop), "{:?}", calibration.hops);
        prop_assert_eq!(calibration.hops.is_empty(), false);
    }
}

/// A rank of a CPU, whose second op waits for another rank within its range.
#[test]
fn on_a_cpu_an_op_begins_with_its_first_operator() {
    let plan = plan("gpipe", 2, "linear", 1, 0);
    let mut files = Vec::new();
    for rank in 0..2 {
        let mut events = Vec::new();
        for (place, op) in plan.schedule.rows[rank].iter().enumerate() {
            let from = 100_000 * (place as u64 + 1);
            events.push(event(
                "user_annotation",
                &format!("PP:{}", torch_csv::action(*op)),
                1,
                from,
                from + 90_000,
                json!({}),
            ));
            events.push(event("cpu_op", "aten::rand", 2, from + 5_000, from + 6_000, json!({})));
            // The last one's does nothing.
            if (rank, place) != (1, 7) {
                events.push(event("cpu_op", "aten::linear", 1, from + 30_000, from + 50_000, json!({})));
                events.push(event("cpu_op", "aten::t", 1, from + 31_000, from + 32_000, json!({})));
            }
        }
        files.push(file(rank, events));
    }
    let trace = traced(&plan, &read_all(&files)).expect("the plan's order");
    let row = |rank: usize| {
        let texts =
            trace.steps[0].rows[rank].iter().map(|span| format!("{} {}-{}", span.step, span.start_ns, span.end_ns));
        texts.collect::<Vec<_>>()
    };
    assert_eq!(row(0)[..2], ["0F0 0-60000", "0F1 100000-160000"]);
    // The first op's wait began before the step's first op did.
    assert_eq!(row(1)[..3], ["1F0 0-60000", "wait(1RECV_F1) 70000-100000", "1F1 100000-160000"]);
    assert_eq!(row(1).last().map(String::as_str), Some("1BW3 760000-760000"));
    assert_eq!((trace.peak_bytes.len(), trace.steps[0].step), (0, 0));
}

#[test]
fn what_is_no_run_of_the_plan_is_told() {
    let zb_v = plan("zb-v", 2, "v", 2, 0);
    let files = read_all(&on_cards(&zb_v, 2, 0));
    let refused = |plan: &Plan, files: &[(String, Recording)]| traced(plan, files).unwrap_err().to_string();
    let other = plan("v-half", 2, "v", 2, 0);
    let told = refused(&other, &files);
    assert!(told.contains("rank0.json: found ") && told.contains("rank 0 of the plan has that there"), "{told}");
    let told = refused(&zb_v, &files[..1]);
    assert!(told.contains("rank 1 of the plan: found no file with its ops"), "{told}");
    let told = refused(&zb_v, &[&files[..], &files[..1]].concat());
    assert!(told.contains("rank 1 of the plan: found 1 of the files with its ops, accepted is 2"), "{told}");
    let told = refused(&zb_v, &[files[0].clone(), read_all(&on_cards(&zb_v, 1, 0)).remove(1)]);
    assert!(told.contains("rank1.json: found 1 step, accepted is 2, as many as rank0.json has"), "{told}");
    let mut cut = files.clone();
    cut[0].1.ops.pop();
    assert!(refused(&zb_v, &cut).contains("rank0.json: found an end after op 47"), "{}", refused(&zb_v, &cut));
    cut[0].1.ops.remove(0);
    assert!(refused(&zb_v, &cut).contains("found 0F1 as op 1, accepted is an order that a rank of the plan has"));
    assert!(refused(&zb_v, &[]).contains("no file with its ops"));
}

#[test]
fn what_is_no_profile_is_told() {
    let annotated = |name: &str| file(0, vec![event("user_annotation", name, 1, 0, 9, json!({}))]).1;
    for (text, says) in [
        ("0F0,0F1".to_string(), "expected an object"),
        ("{\"traceEvents\": [".to_string(), "EOF while parsing a list"),
        ("{\"steps\": []}".to_string(), "traceEvents: found nothing"),
        ("{\"traceEvents\": 3}".to_string(), "expected a list of events"),
        (annotated("forward"), "1 events and no such range, accepted is ranges such as `PP:0F0`"),
        (annotated("PP:(0F7;7B3)OVERLAP_F_B"), "the pair (0F7;7B3)OVERLAP_F_B"),
    ] {
        let told = read(&text).unwrap_err().to_string();
        assert!(told.contains(says), "{told} should say {says}");
    }
}
