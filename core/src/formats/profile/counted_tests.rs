//! Recordings whose ranges say neither stage nor microbatch, of runs with a known order.

use alloc::vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{event, plan};
use super::*;
use crate::formats::torch_profile::read;
use crate::plan::Plan;

const STEP_NS: Nanos = 5_000_000;

/// What a file says beside its ranges.
#[derive(Clone, Copy)]
struct Says {
    /// The pipeline's group.
    group: bool,
    /// The peers of sends and receives.
    peers: bool,
    /// Modules, and the numbers of autograd's nodes.
    modules: bool,
    /// Marks of steps.
    steps: bool,
}

const ALL: Says = Says { group: true, peers: true, modules: true, steps: true };

/// What a profiler records of one card.
#[derive(Default)]
struct Card {
    events: Vec<Value>,
    correlation: u64,
    /// The number of autograd's next node, and those of the first node of each op that ran forward.
    node: u64,
    nodes: BTreeMap<(usize, usize), u64>,
}

impl Card {
    fn launch(&mut self, name: &str, at: Nanos, start_ns: Nanos, end_ns: Nanos) {
        self.correlation += 1;
        let args = json!({ "correlation": self.correlation });
        self.events.push(event("cuda_runtime", "cudaLaunchKernel", 1, at, at + 50, args.clone()));
        self.events.push(event("kernel", name, 7, start_ns, end_ns, args));
    }

    /// The functions of an op that the host began at a time.
    fn functions(&mut self, op: Op, host: Nanos) {
        let function = if op.kind() == OpKind::F { "forward_step" } else { "backward_step" };
        let name = format!("megatron/core/pipeline_parallel/schedules.py(311): {function}");
        // The user's function has the same name.
        let users = "pretrain_gpt.py(212): forward_step";
        for (name, from, to) in [(name.as_str(), 0, 900), (users, 5, 300)] {
            self.events.push(event("python_function", name, 1, host + from, host + to, json!({})));
        }
    }

    /// The module that a forward calls, and the nodes that it makes or a backward runs.
    fn modules(&mut self, op: Op, ranks: usize, host: Nanos) {
        let key = (op.stage(), op.microbatch());
        let is_forward = op.kind() == OpKind::F;
        if is_forward {
            let module = format!("nn.Module: GPTModel_{}", 3 + op.stage() / ranks);
            self.events.push(event("python_function", &module, 1, host + 10, host + 290, json!({})));
            self.events.push(event("python_function", "nn.Module: Linear_0", 1, host + 20, host + 100, json!({})));
            self.nodes.insert(key, self.node);
            self.node += 3;
        }
        let first = self.nodes[&key];
        for place in 0..3 {
            let at = host + 30 + 10 * place;
            let (name, thread, node) = match is_forward {
                true => ("aten::addmm", 1, first + place),
                false => ("autograd::engine::evaluate_function: AddmmBackward0", 2, first + 2 - place),
            };
            let args = json!({ "Sequence number": node, "Fwd thread id": u64::from(!is_forward) });
            self.events.push(event("cpu_op", name, thread, at, at + 5, args));
        }
    }

    /// What Kineto writes of it.
    fn file(mut self, rank: usize, ranks: usize, says: Says) -> (String, Recording) {
        // As they are written, events are in no order.
        self.events.reverse();
        let all: Vec<usize> = (0..ranks).collect();
        let groups = json!([
            { "pg_desc": "default_pg", "ranks": all, "pg_size": ranks },
            { "pg_desc": if says.group { "PIPELINE_MODEL_PARALLEL_GROUP" } else { "undefined" }, "ranks": all },
        ]);
        let info = json!({ "backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": groups });
        let file = json!({ "distributedInfo": info, "traceEvents": self.events });
        (format!("rank{rank}.json"), read(&file.to_string()).unwrap_or_else(|fault| panic!("{fault}")))
    }
}

/// What torch.profiler would write of cards that run `plan` by functions that say no stage: a host that is a step ahead launches an
/// op every 1.5 microseconds, two kernels each, and before it the receive of its input.
fn by_functions(plan: &Plan, count: u64, says: Says) -> Vec<(String, Recording)> {
    let timeline = plan.timeline().expect("runs");
    let ranks = plan.problem.ranks();
    let end_of = |message: P2pOp| {
        let is_activation = message.payload == Payload::Activation;
        let is = |op: Op| {
            (op.kind() == OpKind::F) == is_activation
                && (op.stage(), op.microbatch()) == (message.peer_stage(), message.microbatch as usize)
        };
        timeline.rows.iter().flatten().find(|span| is(span.op)).expect("who sends").end_ns
    };
    let mut files = Vec::new();
    for (rank, row) in timeline.rows.iter().enumerate() {
        let mut card = Card::default();
        for number in 0..count {
            let from = 1_000_000 + number * STEP_NS;
            if says.steps {
                let name = format!("ProfilerStep#{number}");
                card.events.push(event("user_annotation", &name, 1, from, from + STEP_NS - 1, json!({})));
            }
            let on_card = from + STEP_NS;
            let mut before_ns = on_card;
            for (place, span) in row.iter().enumerate() {
                let host = from + 1500 * place as u64 + 3000;
                if let Some(message) = received(&plan.problem, span.op) {
                    let peer = plan.problem.rank_of(message.peer_stage(), 0);
                    let args = if says.peers { json!({ "Src Rank": peer }) } else { json!({}) };
                    card.events.push(event("cpu_op", "record_param_comms", 1, host - 500, host - 480, args));
                    let arrived = on_card + end_of(message) + plan.problem.hop(peer, rank);
                    card.launch("ncclDevKernel_SendRecv(args)", host - 450, before_ns.min(arrived), arrived);
                }
                card.functions(span.op, host);
                if says.modules {
                    card.modules(span.op, ranks, host);
                }
                let middle = (span.start_ns + span.end_ns) / 2;
                card.launch("gemm", host + 100, on_card + span.start_ns, on_card + middle);
                card.launch("gelu", host + 700, on_card + middle, on_card + span.end_ns);
                before_ns = on_card + span.end_ns;
            }
        }
        files.push(card.file(rank, ranks, says));
    }
    files
}

fn spans(trace: &Trace, plan: &Plan) {
    let planned = plan.timeline().expect("runs");
    assert!(trace.steps.iter().all(|step| step.timeline().rows == planned.rows));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Order and times of a run are found, whichever of the things that say a rank's place and a step's end is there.
    #[test]
    fn functions_that_say_no_stage_give_the_order_that_ran(
        which in prop::sample::select(vec![("1f1b", "linear", 1), ("gpipe", "linear", 1), ("interleaved-1f1b", "looped", 2)]),
        ranks in 2u64..5, hop in 0u64..20_000, steps in 1u64..4, group: bool, marks: bool, turn in 0usize..4,
    ) {
        let (schedule, placement, chunks) = which;
        let plan = plan(schedule, ranks, placement, chunks, hop);
        let says = Says { group, peers: !group, modules: true, steps: marks };
        let mut files = by_functions(&plan, steps, says);
        files.rotate_left(turn % ranks as usize);
        let (problem, order) = found(&files).expect("whole files");
        prop_assert_eq!(&order.rows, &plan.schedule.rows);
        prop_assert_eq!(told(&files).len(), 2);
        let trace = aligned(&problem, &order, "", &files).expect("its own order").0;
        spans(&trace, &plan);
        prop_assert_eq!(trace.steps.len() as u64, steps);
        let known = trace_of(&plan, &files).expect("the plan's order");
        prop_assert_eq!(&known.steps, &trace.steps);
    }
}

fn trace_of(plan: &Plan, files: &[(String, Recording)]) -> Result<Trace, Faults> {
    trace(&plan.problem, &plan.schedule, &plan.digest(), files)
}

/// Kernels of NCCL between and behind ops are collectives of the step in which they began.
#[test]
fn kernels_of_nccl_are_collectives() {
    let events = |rank: u64| {
        let mut events = Vec::new();
        for step in 0..2 {
            let from = 1_000_000 * (step + 1);
            for (place, function) in ["forward_step", "backward_step"].into_iter().enumerate() {
                let host = from + 1000 * place as u64;
                let name = format!("megatron/core/pipeline_parallel/schedules.py(311): {function}");
                let correlation = 10 * step + place as u64;
                events.push(event("python_function", &name, 1, host, host + 900, json!({})));
                events.push(event(
                    "cuda_runtime",
                    "cudaLaunchKernel",
                    1,
                    host + 5,
                    host + 6,
                    json!({ "correlation": correlation }),
                ));
                let start = from + 5000 * (place as u64 + 1);
                events.push(event("kernel", "gemm", 7, start, start + 4000, json!({ "correlation": correlation })));
            }
            let args = json!({ "correlation": 1000 + step, "In msg nelems": 512, "dtype": "BFloat16", "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP" });
            events.push(event(
                "kernel",
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)",
                20,
                from + 12_000,
                from + 20_000,
                args,
            ));
            let sent = json!({ "correlation": 2000 + step });
            events.push(event("kernel", "ncclDevKernel_SendRecv(args)", 20, from + 12_000, from + 13_000, sent));
            events.push(event(
                "user_annotation",
                &format!("ProfilerStep#{step}"),
                1,
                from - 10,
                from + 30_000,
                json!({}),
            ));
        }
        let group = json!([{ "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [rank], "pg_size": 1 }]);
        let file = json!({ "distributedInfo": { "backend": "nccl", "rank": rank, "pg_config": group }, "traceEvents": events });
        (format!("rank{rank}.json"), read(&file.to_string()).expect("a profile"))
    };
    let files = [events(0)];
    let (problem, order) = found(&files).expect("a step of one microbatch");
    let trace = trace(&problem, &order, "", &files).expect("its own order");
    for step in &trace.steps {
        let [one] = &step.collectives[0][..] else { panic!("{:?}", step.collectives) };
        assert_eq!(one.name.to_string(), "dp reduce-scatter");
        // The first op starts at 5,000.
        assert_eq!((one.start_ns, one.end_ns, one.bytes), (7_000, 15_000, Some(1024)));
    }
    assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace));
}

/// With a plan, its ranks are known by their order alone where that differs, and chunks by the plan.
#[test]
fn a_plan_says_what_files_do_not() {
    let nothing = Says { group: false, peers: false, modules: false, steps: true };
    let one = plan("1f1b", 4, "linear", 1, 500);
    spans(&trace_of(&one, &by_functions(&one, 2, nothing)).expect("the plan's order"), &one);
    let two = plan("interleaved-1f1b", 2, "looped", 2, 500);
    let files = by_functions(&two, 2, Says { group: true, ..nothing });
    // Without modules, chunks look like one.
    let fault = trace_of(&two, &files).expect_err("chunks are not told").to_string();
    assert!(fault.contains("rank0.json"), "{fault}");
}

#[test]
fn what_cannot_be_told_apart_is_named() {
    let plan = plan("gpipe", 3, "linear", 1, 500);
    let told = |says| found(&by_functions(&plan, 2, says)).expect_err("unknown").to_string();
    let nothing = told(Says { group: false, peers: false, ..ALL });
    assert!(nothing.contains("sends and receives with their peers"), "{nothing}");
    // Another order than the plan's: the first op that differs.
    let other = self::plan("1f1b", 3, "linear", 1, 500);
    let fault = trace_of(&other, &by_functions(&plan, 2, ALL)).expect_err("another order").to_string();
    assert!(fault.contains("rank2.json: found a forward of microbatch 1 as op 2"), "{fault}");
    // A rank without a file, and one with a file of another runtime.
    let mut fewer = by_functions(&plan, 2, ALL);
    fewer.remove(1);
    let fault = found(&fewer).expect_err("two of three").to_string();
    assert!(fault.contains("no file of the pipeline's place 1, rank 1"), "{fault}");
    let mut mixed = by_functions(&plan, 2, ALL);
    let (_, mut named) = mixed[0].clone();
    named.counted.clear();
    mixed.push(("named.json".to_string(), named));
    let fault = found(&mixed).expect_err("two runtimes").to_string();
    assert!(fault.contains("named.json: found ranges with stages, accepted is ranges without"), "{fault}");
    // A file that ends within a step.
    let mut cut = by_functions(&plan, 2, ALL);
    cut[1].1.ops.pop();
    cut[1].1.counted.pop();
    let fault = found(&cut).expect_err("half a step").to_string();
    assert!(fault.contains("rank1.json: found 6 forwards and 5 backwards in step 2"), "{fault}");
    // A rank alone whose backwards follow their forwards.
    let single = self::plan("1f1b", 1, "linear", 1, 0);
    let fault = found(&by_functions(&single, 2, Says { steps: false, ..ALL })).expect_err("no end").to_string();
    assert!(fault.contains("no mark of a step"), "{fault}");
}

/// On one clock the first microbatch says the order of ranks.
#[test]
fn times_of_one_clock_say_the_order() {
    let plan = plan("1f1b", 4, "linear", 1, 500);
    let mut files = by_functions(&plan, 2, Says { group: false, peers: false, modules: true, steps: false });
    for (_, recording) in &mut files {
        recording.clock = Some("report.sqlite".to_string());
        recording.rank = None;
    }
    files.reverse();
    assert_eq!(found(&files).expect("an order").1.rows, plan.schedule.rows);
    assert_eq!(vec![told(&files)[1].as_str()], vec!["ranks in the order in which the first microbatch passes them"]);
    // Two pipelines at once are no order.
    files.extend(files.clone());
    let fault = found(&files).expect_err("two pipelines").to_string();
    assert!(fault.contains("first microbatches that overlap"), "{fault}");
}
