//! What a card or a CPU would have recorded of a plan, and what is no such thing.

use alloc::vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::formats::torch_profile::{Reader, read};
use crate::plan::Plan;
use crate::plan::planner;
use crate::spec::Spec;
use crate::trace::calibrate::calibrate;

const STEP_NS: Nanos = 5_000_000;
const BASE_NS: Nanos = 1_790_857_026_000_000_000;

pub(super) fn plan(schedule: &str, ranks: u64, placement: &str, chunks: u64, hop: u64) -> Plan {
    let spec = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": 2 * ranks, "placement": placement, "transfer_ns": hop,
        "stages": { "forward_ns": 9_001, "backward_input_ns": 11_003, "backward_weight_ns": 7_005 },
    });
    let spec = Spec::read(&spec.to_string()).unwrap_or_else(|error| panic!("{error}"));
    planner::plan(&spec, schedule).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn event(cat: &str, name: &str, tid: u64, start_ns: Nanos, end_ns: Nanos, args: Value) -> Value {
    let us = |ns: Nanos| ns as f64 / 1e3;
    json!({ "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": us(start_ns), "dur": us(end_ns - start_ns), "args": args })
}

fn file(rank: usize, backend: &str, events: Vec<Value>) -> (String, String) {
    let file = json!({
        "schemaVersion": 1, "deviceProperties": [{ "id": 0, "name": "a card" }], "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": { "backend": backend, "rank": rank, "world_size": 8 }, "traceEvents": events,
    });
    (format!("rank{rank}.json"), file.to_string())
}

/// A run to be recorded.
#[derive(Clone, Copy)]
struct Run {
    steps: u64,
    /// The number of its first step.
    first_step: u64,
    /// The rank of its first one among all.
    first_rank: usize,
    /// Whether the first stage's `I` launches nothing, as torch's.
    silent: bool,
}

const RUN: Run = Run { steps: 2, first_step: 7, first_rank: 0, silent: false };

/// What Kineto writes of cards that run `plan` as it was planned, on each rank. The host is a step ahead: it launches an op
/// every microsecond. Two kernels an op, those of backwards launched by another thread; a receive is NCCL's, waits for
/// its message from its launch on, and is launched two ops ahead. Where an op waits, one of its kernels does not, as a
/// sharded stage's.
fn on_cards(plan: &Plan, run: Run) -> Vec<(String, String)> {
    let timeline = plan.timeline().expect("runs");
    let made = |message: P2pOp| {
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
        for number in run.first_step..run.first_step + run.steps {
            let from = 1_000_000 + number * STEP_NS;
            let step = format!("ProfilerStep#{number}");
            events.push(event("user_annotation", &step, 1, from, from + STEP_NS - 1, json!({})));
            let launch = |events: &mut Vec<Value>, correlation: &mut u64, kernel: &str, tid, at, start_ns, end_ns| {
                *correlation += 1;
                let args = json!({ "correlation": *correlation, "External id": 3 });
                events.push(event("cuda_runtime", "cudaLaunchKernel", tid, at, at + 50, args.clone()));
                events.push(event("kernel", kernel, 7, start_ns, end_ns, args));
            };
            let on_card = from + STEP_NS;
            let mut before_ns = on_card;
            for (place, span) in row.iter().enumerate() {
                let host = from + 1000 * place as u64 + 3000;
                let (start_ns, end_ns) = (on_card + span.start_ns, on_card + span.end_ns);
                let name = format!("PP:{}", torch_csv::action(span.op));
                if let Some(message) = received(&plan.problem, span.op) {
                    let from_rank = plan.problem.rank_of(message.peer_stage(), 0);
                    let arrived = on_card + made(message) + plan.problem.hop(from_rank, rank);
                    let posted = host - 2500;
                    events.push(event(
                        "user_annotation",
                        &format!("PP:{message}"),
                        1,
                        posted,
                        posted + 90,
                        json!({}),
                    ));
                    launch(&mut events, &mut correlation, "ncclDevKernel", 1, posted + 10, on_card, arrived);
                    // As clocks are taken to tell it.
                    if arrived > before_ns + 1_010 {
                        launch(&mut events, &mut correlation, "copy", 1, host + 20, before_ns, before_ns + 5);
                    }
                }
                events.push(event("user_annotation", &name, 1, host, host + 800, json!({})));
                let thread = if span.op.kind() == OpKind::F { 1 } else { 2 };
                let middle = (start_ns + end_ns) / 2;
                if !(run.silent && span.op.stage() == 0 && span.op.kind() == OpKind::B) {
                    launch(&mut events, &mut correlation, "gemm", thread, host + 100, start_ns, middle - 100);
                    launch(&mut events, &mut correlation, "gelu", thread, host + 700, middle, end_ns);
                }
                // Of the op's range the card shows less than it took, and of others there are events too.
                events.push(event("gpu_user_annotation", &name, 7, start_ns, middle, json!({})));
                let dims = json!({ "Input Dims": [[1, 2], []] });
                events.push(event("cpu_op", "aten::linear", thread, host + 90, host + 120, dims));
                events.push(json!({ "ph": "f", "id": 3, "tid": "stream 7", "ts": 5.5, "cat": "ac2g", "bp": "e" }));
                before_ns = end_ns;
            }
        }
        let held = |bytes: usize, device: u64| {
            let args = json!({ "Total Allocated": bytes, "Device Type": device });
            json!({ "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1.0, "tid": 1, "args": args })
        };
        events.extend([held(1000 + rank, 1), held(9000, 0)]);
        // What other programs might add.
        events.extend([Value::Null, json!({ "name": null, "args": [1, 2] }), json!({ "args": "none", "ts": {} })]);
        // As they are written, events are in no order.
        events.reverse();
        files.push(file(run.first_rank + rank, "nccl", events));
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
        which in prop::sample::select(vec![
            ("1f1b", "linear", 1), ("zb-h1", "linear", 1), ("zb-v", "v", 2), ("interleaved-1f1b", "looped", 2),
        ]),
        ranks in 2u64..5, hop in 0u64..20_000, steps in 1u64..4, copies in 1usize..3, turn in 0usize..4,
    ) {
        let (schedule, placement, chunks) = which;
        let plan = plan(schedule, ranks, placement, chunks, hop);
        let run = |copy: usize| Run { steps, first_rank: copy * ranks as usize, ..RUN };
        let mut files: Vec<_> = (0..copies).flat_map(|copy| on_cards(&plan, run(copy))).collect();
        let turns = turn % files.len();
        files.rotate_left(turns);
        let trace = traced(&plan, &read_all(&files)).expect("the plan's own run");
        prop_assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace.clone()));
        prop_assert_eq!((trace.replicas, trace.transport.as_str()), (copies, "nccl"));
        let peaks: Vec<u64> = (0..copies * ranks as usize).map(|row| 1000 + (row % ranks as usize) as u64).collect();
        prop_assert_eq!(&trace.peak_bytes, &peaks);
        let numbers: Vec<u64> = trace.steps.iter().map(|step| step.step).collect();
        prop_assert_eq!(numbers, (7..7 + steps).collect::<Vec<_>>());
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
        prop_assert_eq!(skew(&plan.problem, &trace), None);
    }
}

/// What takes no time stands where its input is there, and its rank has waited for that.
#[test]
fn an_op_without_kernels_waits_for_its_input() {
    let plan = plan("zb-h1", 2, "linear", 1, 500);
    let trace = traced(&plan, &read_all(&on_cards(&plan, Run { silent: true, ..RUN }))).expect("the plan's order");
    let row: Vec<String> = trace.steps[0].rows[0]
        .iter()
        .map(|span| format!("{} {}-{}", span.step, span.start_ns, span.end_ns))
        .collect();
    // F of 9,001 ns and B of 11,003 ns: the first gradient is there after three of them and two hops.
    let first = 2 * (9_001 + 500) + 11_003;
    assert_eq!(row[2..4], [format!("wait(0RECV_B0) 18002-{first}"), format!("0B0 {first}-{first}")], "{row:#?}");
    let calibration = calibrate(&plan.problem, &plan.schedule, &trace).expect("the plan's order");
    assert!(calibration.hops.iter().any(|hop| (hop.from, hop.to) == (1, 0)), "{:?}", calibration.hops);
}

/// Steps that were recorded in turn, a file each, are those of one file.
#[test]
fn files_of_the_same_rank_follow_each_other() {
    let plan = plan("zb-v", 2, "v", 2, 500);
    let [first, second, all] = [(2, 7), (1, 9), (3, 7)]
        .map(|(steps, first_step)| read_all(&on_cards(&plan, Run { steps, first_step, ..RUN })));
    let apart = [second, first].concat();
    assert_eq!(traced(&plan, &apart), traced(&plan, &all));
}

/// Where a clock is 50 ms ahead or behind, the trace is that of right clocks: messages take as long there as back.
#[test]
fn clocks_that_differ_are_put_right() {
    let plan = plan("1f1b", 4, "linear", 1, 500);
    let planned = plan.timeline().expect("runs").makespan_ns();
    for (rank, shifted) in [(1, BASE_NS - 50_000_000), (2, BASE_NS + 50_000_000), (0, BASE_NS - 4_000)] {
        let mut files = on_cards(&plan, RUN);
        files[rank].1 = files[rank].1.replace(&BASE_NS.to_string(), &shifted.to_string());
        let (trace, clocks) =
            aligned(&plan.problem, &plan.schedule, "", &read_all(&files)).expect("the plan's order");
        assert!(clocks.broken > 0 && clocks.moved == 0, "{clocks:?}");
        assert_eq!(skew(&plan.problem, &trace), None);
        for step in &trace.steps {
            assert!(
                step.timeline().makespan_ns().abs_diff(planned) <= 2,
                "{} for {planned}",
                step.timeline().makespan_ns()
            );
        }
    }
}

/// A file that comes in pieces of any size is the file.
#[test]
fn a_file_in_pieces_is_the_file() {
    let plan = plan("zb-v", 2, "v", 2, 500);
    for (name, text) in on_cards(&plan, RUN) {
        let text = text.replacen('{', "{ \"with \\\"quotes\\\"\": [\"]}\\\"\", {}], ", 1).replacen(
            "\"traceEvents\":[",
            "\"traceEvents\": [ null , ",
            1,
        );
        // As Kineto writes them: with a blank behind each colon, the kind first, and what is of no use.
        let text = text.replacen("\"traceEvents\": [", concat!(
            "\"traceEvents\": [ { \"ph\": \"s\", \"id\": 5, \"cat\": \"ac2g\" }, { \"ph\": \"X\", \"cat\": \"python_function\", ",
            "\"name\": \"train.py(4): }{\\\\\", \"ts\": 5.0, \"dur\": 1.0 }, { \"ph\": \"X\", \"cat\": \"python_function\", ",
            "\"name\": \"megatron/core/pipeline_parallel/schedules.py(1): forward_step\", \"ts\": 5.0, \"dur\": 1.0 }, "), 1);
        let whole = read(&text);
        for size in [1, 7, 100, 1 << 20] {
            let mut reader = Reader::new();
            text.as_bytes()
                .chunks(size)
                .for_each(|piece| reader.push(piece).unwrap_or_else(|fault| panic!("{name}: {fault}")));
            assert_eq!(reader.finish(), whole, "{name} in pieces of {size}");
        }
        let mut cut = Reader::new();
        cut.push(&text.as_bytes()[..text.len() - 3]).expect("so far");
        assert!(cut.finish().unwrap_err().to_string().contains("the end of the file"));
        let told = Reader::new().push(b"{\"traceEvents\": [{\"ts\": }").unwrap_err().to_string();
        assert!(told.starts_with("byte 18: found expected value"), "{told}");
    }
}

/// Without a plan, stages and order are those of the ranges.
#[test]
fn the_order_is_found_without_a_plan() {
    for (schedule, placement, chunks) in [("1f1b", "linear", 1), ("zb-v", "v", 2), ("interleaved-1f1b", "looped", 2)]
    {
        let plan = plan(schedule, 4, placement, chunks, 500);
        let files = read_all(&on_cards(&plan, RUN));
        let (problem, order) = found(&files).expect("whole files");
        assert_eq!(order.rows, plan.schedule.rows, "{schedule}");
        let without = aligned(&problem, &order, "", &files).expect("its own order").0;
        assert_eq!(without.steps, traced(&plan, &files).expect("the plan's order").steps);
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
            // Rank 1 comes a slot later, and rank 0's backwards behind its.
            let later = if rank == 1 { 1 } else { 2 * (place as u64 / 4) };
            let from = 100_000 * (place as u64 + 1 + later);
            events.push(event(
                "user_annotation",
                &format!("PP:{}", torch_csv::action(*op)),
                1,
                if (rank, place) == (1, 0) { 50_000 } else { from },
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
        files.push(file(rank, "gloo", events));
    }
    let trace = traced(&plan, &read_all(&files)).expect("the plan's order");
    let row = |rank: usize| {
        let texts =
            trace.steps[0].rows[rank].iter().map(|span| format!("{} {}-{}", span.step, span.start_ns, span.end_ns));
        texts.collect::<Vec<_>>()
    };
    assert_eq!(row(0)[..2], ["0F0 0-60000", "0F1 100000-160000"]);
    // The first op's wait began before the step's first op did.
    assert_eq!(row(1)[..3], ["wait(1RECV_F0) 0-100000", "1F0 100000-160000", "wait(1RECV_F1) 170000-200000"]);
    assert_eq!(row(1).last().map(String::as_str), Some("1BW3 860000-860000"));
    assert_eq!((trace.peak_bytes.len(), trace.steps[0].step), (0, 0));
}

#[test]
fn what_is_no_run_of_the_plan_is_told() {
    let zb_v = plan("zb-v", 2, "v", 2, 0);
    let files = read_all(&on_cards(&zb_v, RUN));
    let refused = |plan: &Plan, files: &[(String, Recording)]| traced(plan, files).unwrap_err().to_string();
    let told = refused(&plan("v-half", 2, "v", 2, 0), &files);
    assert!(told.contains("rank0.json: found ") && told.contains("rank 0 of the plan has that there"), "{told}");
    let with = |run: Run| {
        let mut other = read_all(&on_cards(&zb_v, run)).remove(1);
        other.0 = "other.json".to_string();
        other
    };
    let changed = |change: fn(&mut Recording)| {
        let mut files = files.clone();
        change(&mut files[1].1);
        files
    };
    for (files, says) in [
        (vec![], "rank 0 of the plan: found no file with its ops"),
        (files[..1].to_vec(), "rank 1 of the plan: found no file with its ops"),
        ([&files[..], &[with(RUN)]].concat(), "other.json: found steps of rank 1, accepted is each step once"),
        (
            [&files[..], &[with(Run { first_rank: 2, ..RUN })]].concat(),
            "rank 0 of the plan: found 1 of the files with its ops, accepted is 2",
        ),
        (
            vec![files[0].clone(), with(Run { steps: 1, ..RUN })],
            "other.json: found 1 step, accepted is 2, as many as rank0.json has",
        ),
        (
            vec![files[0].clone(), with(Run { first_step: 8, ..RUN })],
            "other.json: found step 8, accepted is step 7, which rank0.json has there",
        ),
        (changed(|file| file.ops.truncate(47)), "rank1.json: found an end after op 47"),
        (changed(|file| file.ops.rotate_left(1)), "rank1.json: found 2F0 as op 1"),
        (changed(|file| file.on_gpu = false), "rank1.json: found no kernel of a GPU, accepted is kernels of a GPU"),
    ] {
        let told = refused(&zb_v, &files);
        assert!(told.contains(says), "{told} should say {says}");
    }
    let many: Vec<_> = (0..513)
        .flat_map(|copy| {
            let mut files = files.clone();
            files.iter_mut().for_each(|(_, file)| file.rank = file.rank.map(|rank| rank + 2 * copy));
            files
        })
        .collect();
    assert!(
        refused(&zb_v, &many).contains("the files: found those of 1026 ranks, accepted is those of at most 1024")
    );
}

/// Where kernels were lost, an op would look as if it took no time.
#[test]
fn lost_kernels_are_told() {
    let plan = plan("zb-v", 2, "v", 2, 0);
    let (_, text) = on_cards(&plan, RUN).remove(1);
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let without = |is: &dyn Fn(&Value) -> bool| {
        let mut file = whole.clone();
        file["traceEvents"].as_array_mut().expect("events").retain(|event| !is(event));
        read(&file.to_string()).unwrap_err().to_string()
    };
    let kernel = |event: &Value| event["cat"] == "kernel";
    // Those of the second half of the run: of some ops there are none.
    let late = |event: &Value| kernel(event) && event["ts"].as_f64() > Some(4.61e4);
    let told = without(&late);
    assert!(told.contains("no kernel of ") && told.contains("record fewer steps"), "{told}");
    let told = without(&|event| event["cat"] == "cuda_runtime");
    assert!(told.contains("no kernel of "), "{told}");
    let told = without(&kernel);
    assert!(told.contains("a run on GPUs without any, accepted is kernels of a GPU"), "{told}");
}

/// Ranges that lie over each other, with as many launches, would take hours if each looked at all of them.
#[test]
fn each_launch_is_looked_at_once() {
    let events = (0..30_000u64).flat_map(|number| {
        let index = 1000 + number;
        let args = json!({ "correlation": index });
        [
            event("user_annotation", &format!("PP:0F{number}"), 1, index, 1_000_000, json!({})),
            event("user_annotation", &format!("PP:0RECV_B{number}"), 1, index, 1_000_000, json!({})),
            event("cuda_runtime", "cudaLaunchKernel", 1, index, index, args.clone()),
            event("kernel", "gemm", 7, index, index + 1, args),
        ]
    });
    let (_, text) = file(0, "nccl", events.collect());
    let ops = read(&text).expect("a profile").ops;
    assert_eq!(ops.len(), 30_000);
    // Its own kernel is an op's, and none of those of the ranges that begin within its own.
    assert!(ops.iter().all(|ran| ran.end_ns - ran.start_ns == 1), "{:?}", ops[0]);
}

#[test]
fn what_is_no_profile_is_told() {
    let annotated = |name: &str| file(0, "gloo", vec![event("user_annotation", name, 1, 0, 9, json!({}))]).1;
    for (text, says) in [
        ("0F0,0F1".to_string(), "expected an object"),
        ("{\"traceEvents\": [".to_string(), "EOF while parsing a list"),
        ("{\"steps\": []}".to_string(), "traceEvents: found nothing"),
        ("{\"traceEvents\": 3}".to_string(), "expected a list of events"),
        (annotated("forward"), "1 events and no such range, accepted is ranges of a pipeline: `PP:0F0`"),
        (annotated("PP:(0F7;7B3)OVERLAP_F_B"), "the pair (0F7;7B3)OVERLAP_F_B"),
    ] {
        let told = read(&text).unwrap_err().to_string();
        assert!(told.contains(says), "{told} should say {says}");
    }
}
