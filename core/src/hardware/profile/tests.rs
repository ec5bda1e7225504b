//! Files read back, and operators of other sizes follow from measured ones.

use super::*;
use crate::graph::build::stage_graph;
use crate::graph::form::Form;
use crate::graph::form::StageShape;
use crate::hardware::cluster;
use crate::hardware::cost::{self, JobTimes};
use crate::model::{Dtype, Family, catalog};
use std::format;

fn shape() -> StageShape {
    StageShape {
        layers: 0..2,
        has_embedding: true,
        has_head: true,
        modules: crate::model::Modules::default(),
        microbatch_size: 1,
        sequence: 32,
        dtype: Dtype::F32,
        form: Form::default(),
    }
}

fn graph() -> Graph {
    let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
    stage_graph(&model, &shape(), 1)
}

fn insert(profile: &mut Profile, graph: &Graph, operator: &Operator, time: Nanos) {
    profile.insert(Signature::of(graph, operator), Load::of(graph, operator), time);
}

/// A bias or a residual that comes right behind a product is part of it where the device has been measured so: in each
/// layer of a Llama two residuals, in one of a GPT the biases of all six products, whose residuals come behind those.
#[test]
fn what_a_device_does_in_one_go_takes_one_time() {
    for (name, family, each_layer) in [("llama", Family::Llama, 2), ("gpt", Family::Gpt, 6)] {
        let mut model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        (model.family, model.kv_heads) = (family, model.heads);
        let layers = 2;
        let shape = StageShape { layers: 0..layers, ..shape() };
        let graph = stage_graph(&model, &shape, 1);
        let takes = takes_sum(&graph);
        let forward = graph.forward_len();
        let of_layers = (0..forward).filter(|at| takes[*at] && graph.operators[*at].layer.is_some());
        assert_eq!(of_layers.count(), each_layer * layers as usize, "{name}");
        let mut profile = Profile::new("test");
        let mut all = |time| graph.operators.iter().for_each(|operator| insert(&mut profile, &graph, operator, time));
        all(7);
        let apart = profile.times(&graph);
        assert!(apart.iter().all(|time| *time == Some(7)));
        for at in (0..takes.len()).filter(|at| takes[*at]) {
            let both = Signature::of_both(&graph, &graph.operators[at], &graph.operators[at + 1]);
            assert!(both.kernel.contains(" & add") && !both.operands.contains("  "), "{both:?}");
            profile.insert(both, Load::of(&graph, &graph.operators[at]), 8);
        }
        let together = profile.times(&graph);
        for at in 0..takes.len() {
            let expected = if takes[at] {
                8
            } else if at > 0 && takes[at - 1] {
                0
            } else {
                7
            };
            assert_eq!(together[at], Some(expected), "{name}: {}", graph.operators[at].kernel.name());
        }
    }
}

/// Without measurements the times are the roofline's; with all of them, their sums.
#[test]
fn measured_times_replace_estimates() {
    let graph = graph();
    let device = cluster::find("h100").map(|entry| entry.device(Dtype::F32)).unwrap();
    let peers = Peers::all(cluster::Link { bytes_per_s: 1, latency_ns: 0 });
    let mut profile = Profile::new("test");
    assert_eq!(profile.operator_times(&graph, &device, &peers), cost::operator_times(&graph, &device, &peers));
    graph.operators.iter().for_each(|operator| insert(&mut profile, &graph, operator, 7));
    let counts = crate::graph::Job::ALL.map(|job| 7 * graph.job(job).count() as Nanos);
    let times = profile.operator_times(&graph, &device, &peers);
    assert_eq!(JobTimes::of_times(&graph, &times).jobs, counts);
    // Layers are alike: fewer signatures than operators.
    assert!(profile.len() < graph.operators.len());
    assert!(!profile.to_json().contains("workspace_bytes"));
    profile.workspace_bytes = 32 << 20;
    assert_eq!(Profile::of_json(&profile.to_json()), Ok(profile));
}

/// A device that takes three times its roofline for what was measured is taken to do so for all sizes; what has no
/// kind there, or talks with others, keeps its estimate. Between two sizes the nearer one counts.
#[test]
fn other_sizes_follow_the_nearest_of_their_kind() {
    let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
    let device = cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap();
    let peers = Peers::all(cluster::Link { bytes_per_s: 1 << 30, latency_ns: 5 });
    let of = |sequence: u32, tensor: u32| {
        let form = Form { tensor, ..Form::default() };
        stage_graph(&model, &StageShape { sequence, form, dtype: Dtype::Bf16, ..shape() }, 1)
    };
    let roofline =
        |graph: &Graph, operator: &Operator| Load::of(graph, operator).time(&operator.kernel, &device, &peers);
    let (small, large) = (of(1 << 12, 1), of(1 << 16, 1));
    let mut profile = Profile::new("test");
    for (graph, times) in [(&small, 3), (&large, 5)] {
        for operator in &graph.operators {
            insert(&mut profile, graph, operator, times * roofline(graph, operator));
        }
    }
    assert_eq!(Profile::of_json(&profile.to_json()).as_ref(), Ok(&profile));
    for (sequence, expected) in [(1 << 10, 3), (1 << 12, 3), (1 << 13, 3), (1 << 15, 5), (1 << 16, 5), (1 << 17, 5)] {
        let graph = of(sequence, 1);
        let times = profile.operator_times(&graph, &device, &peers);
        for (operator, time) in graph.operators.iter().zip(times) {
            // Where a launch takes longest, small and large are alike. Rounded up.
            let estimated = roofline(&graph, operator);
            let is = |times: Nanos| time.abs_diff(times * estimated) <= 1;
            let name = operator.kernel.name();
            // Products have many sizes: a long one of few tokens may be near a short one of many.
            let is_between =
                (1 << 12..1 << 16).contains(&sequence) && matches!(operator.kernel, Kernel::MatMul { .. });
            let holds = is(expected) || is_between && (is(3) || is(5)) || estimated == device.launch_ns;
            assert!(holds, "{name}, {sequence}: {time}, {expected} times {estimated}");
        }
        let coverage = profile.covers(&graph, &device, &peers);
        assert_eq!(coverage.measured + coverage.scaled, coverage.all);
    }
    let cut = of(1 << 12, 2);
    let times = profile.operator_times(&cut, &device, &peers);
    for (operator, time) in cut.operators.iter().zip(times).filter(|(operator, _)| operator.kernel.axis().is_some()) {
        assert_eq!(time, roofline(&cut, operator), "{}", operator.kernel.name());
    }
    assert!(cut.operators.iter().any(|operator| operator.kernel.axis().is_some()));
    // Another format is another kind.
    let single = stage_graph(&model, &shape(), 1);
    assert_eq!(profile.covers(&single, &device, &peers).measured, 0);
    let times = profile.operator_times(&single, &device, &peers);
    let products =
        single.operators.iter().zip(times).filter(|(operator, _)| matches!(operator.kernel, Kernel::MatMul { .. }));
    products.for_each(|(operator, time)| assert_eq!(time, roofline(&single, operator)));
}

/// A file is sorted, and what was measured was not: both say the same of other sizes.
/// Attention in a ring takes as many times its arithmetic's estimate as attention on one device, or as long as its blocks
/// travel: the same on a slow link as without a profile.
#[test]
fn rings_follow_attention_on_one_device() {
    let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
    let device = cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap();
    let of = |context: u32| {
        let form = Form { context, ..Form::default() };
        stage_graph(&model, &StageShape { sequence: 1 << 14, form, dtype: Dtype::Bf16, ..shape() }, 1)
    };
    let fast = Peers::all(cluster::Link { bytes_per_s: 1 << 50, latency_ns: 0 });
    let slow = Peers::all(cluster::Link { bytes_per_s: 1 << 20, latency_ns: 5 });
    let roofline = |operator: &Operator, load: Load, peers: &Peers| load.time(&operator.kernel, &device, peers);
    let (alone, ring) = (of(1), of(2));
    let mut profile = Profile::new("test");
    for operator in &alone.operators {
        insert(&mut profile, &alone, operator, 3 * roofline(operator, Load::of(&alone, operator), &fast));
    }
    let is_ring =
        |operator: &&Operator| matches!(operator.kernel, Kernel::SpreadAttention(_) | Kernel::SpreadAttentionGrad(_));
    assert_eq!(ring.operators.iter().filter(is_ring).count(), 4, "two layers, both ways");
    for (peers, of_arithmetic) in [(&fast, true), (&slow, false)] {
        let times = profile.operator_times(&ring, &device, peers);
        for (operator, time) in ring.operators.iter().zip(times).filter(|(operator, _)| is_ring(operator)) {
            let load = Load::of(&ring, operator);
            let expected = match of_arithmetic {
                true => 3 * roofline(operator, Load { sent: 0, ..load }, peers),
                false => roofline(operator, load, peers),
            };
            assert!(time.abs_diff(expected) <= 3, "{:?}: {time}, expected {expected}", operator.kernel);
        }
    }
}

#[test]
fn it_does_not_matter_what_was_measured_first() {
    let signature = |rows: u64| Signature {
        kernel: "add".to_string(),
        operands: format!("f32[{rows},{}] -> f32[{rows},{}]", 64 / rows, 64 / rows),
    };
    let load = Load { bytes: 512, ..Load::default() };
    let of = |order: [u64; 3]| {
        let mut profile = Profile::new("test");
        order.into_iter().for_each(|rows| profile.insert(signature(rows), load, 10 * rows));
        profile
    };
    let one = of([2, 8, 4]);
    assert_eq!((&one, Ok(&one)), (&of([8, 4, 2]), Profile::of_json(&one.to_json()).as_ref()));
}

#[test]
fn other_files_are_refused_by_field() {
    assert!(matches!(Profile::of_json("{"), Err(ProfileError::Syntax(_))));
    let good = r#"{"kernel": "add", "operands": "f32[2] f32[2] -> f32[2]", "ns": 7}"#;
    let file = |operators: &str| format!(r#"{{"version": 1, "device": "x", "operators": {operators}}}"#);
    assert!(Profile::of_json(&file(&format!("[{good}]"))).is_ok());
    for (text, says) in [
        (r#"[]"#.to_string(), "the whole input: found a list of 0"),
        (r#"{"version": 2}"#.to_string(), "version: found 2, accepted is 1"),
        (r#"{"operators": []}"#.to_string(), "version: found nothing"),
        (r#"{"version": 1, "operators": 3}"#.to_string(), "operators: found 3"),
        (r#"{"version": 1}"#.to_string(), "operators: found nothing"),
        (file(&format!("[{good}, {}]", good.replace("7", "-7"))), "operators[1].ns: found -7"),
        (file(&format!("[{}]", good.replace("\"ns\"", "\"us\""))), "operators[0].ns: found nothing"),
        (file(&format!("[{}]", good.replace("\"add\"", "3"))), "operators[0].kernel: found 3"),
        (file(&format!("[{}]", good.replace("operands", "operand"))), "operators[0].operands: found nothing"),
        (file("[3]"), "operators[0]: found 3, accepted is a table"),
        (file("[]").replace("\"operators\"", "\"workspace_bytes\": -1, \"operators\""), "workspace_bytes: found -1"),
    ] {
        let error = Profile::of_json(&text).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(says), "{error} should say {says}");
    }
}
