//! Specs for tests: valid ones of every kind.

use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Spec;

/// A model on a cluster with nothing said that has a default.
pub fn model_spec() -> Spec {
    Spec::read(
        "[model]\nname = \"llama-2-7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 8\n[training]\nmicrobatches = 32\n",
    )
    .unwrap()
}

/// Any valid spec: a model or typed costs.
pub fn spec() -> impl Strategy<Value = Spec> {
    let value = prop_oneof![model(), problem().prop_map(|problem| json!({ "problem": problem }))];
    let lowering = prop::sample::select(vec!["in-pieces", "receive-first", "grouped", "overlapped", "overlapped:3"]);
    let transport =
        prop::sample::select(vec!["rendezvous", "buffered", "buffered:4", "grouped", "pair-ordered", "streams"]);
    let messages = prop::option::of((prop::option::of(lowering), prop::option::of(transport)));
    let jitter = prop::option::of(0u16..=1000);
    let target = prop::option::of(prop::sample::select(vec!["megatron", "torch"]));
    ("[a-z \"\\\\é]{0,12}", value, messages, jitter, target).prop_map(
        |(name, mut value, messages, jitter, target)| {
            value["name"] = json!(name);
            value["target"] = json!(target);
            value["jitter_permille"] = json!(jitter);
            if let Some((lowering, transport)) = messages {
                value["messages"] = json!({ "lowering": lowering, "transport": transport });
            }
            Spec::from_value(&value).unwrap_or_else(|faults| panic!("{value}: {faults}"))
        },
    )
}

fn model() -> impl Strategy<Value = Value> {
    let names = ["llama-2-7b", "llama-3-70b", "gpt-3-175b", "tiny-llama"];
    let devices = ["a100-40", "h100", "b200", "cpu"];
    (
        prop::sample::select(names.to_vec()),
        prop::sample::select(devices.to_vec()),
        (1u32..=8, 1u32..=64, 1u32..=100_000, 1u32..=16),
        prop::option::of(1u32..=64),
        prop::option::of(prop::sample::select(["bf16", "f32", "f64"].to_vec())),
        prop::option::of(1u64..1 << 53),
        prop::option::of(8u32..=200),
        prop::option::of((1u64..1_000_000_000_000_000_000, 0u64..10_000_000_000)),
        prop::option::of(layout()),
    )
        .prop_map(
            |(name, device, (pipeline, chunks, microbatches, size), sequence, dtype, limit, layers, link, layout)| {
                let link = link
                    .map(|(bytes_per_s, latency_ns)| json!({ "bytes_per_s": bytes_per_s, "latency_ns": latency_ns }));
                let mut value = json!({
                    "model": { "name": name, "layers": layers, "norm_eps": layers.map(|layers| f64::from(layers) * 1e-12) },
                    "cluster": { "device": device, "link": link },
                    "parallel": { "pipeline": pipeline, "chunks": chunks },
                    "training": {
                        "microbatches": microbatches, "microbatch_size": size, "sequence": sequence, "dtype": dtype,
                    },
                    "memory": { "limit_bytes": limit },
                });
                for (section, key, said) in layout.into_iter().flatten() {
                    value[section][key] = said;
                }
                value
            },
        )
}

/// What may be said of how a model is dealt to devices, by section and field.
fn layout() -> impl Strategy<Value = Vec<(&'static str, &'static str, Value)>> {
    let name = |names: &[&'static str]| prop::sample::select(names.to_vec());
    let partition = prop_oneof![
        name(&["balanced", "layers", "layers-and-ends"]).prop_map(Value::from),
        prop::collection::vec(0u32..100, 0..20).prop_map(Value::from),
    ];
    let recompute = name(&["none", "selective", "cheap", "full", "fit"]);
    // Both divide every named model's heads and feed-forward width.
    let tensor = prop::sample::select(vec![1u32, 2]);
    (partition, recompute, name(&["flash", "materialised"]), any::<bool>(), tensor, 1u32..=8, 0u32..=3, 0u64..1 << 50)
        .prop_map(|(partition, recompute, attention, dropout, tensor, data, zero, overhead)| {
            vec![
                ("parallel", "partition", partition),
                ("parallel", "tensor", json!(tensor)),
                ("parallel", "async_reduce", json!(dropout)),
                ("parallel", "data", json!(data)),
                ("parallel", "zero", json!(zero)),
                ("parallel", "shard", if data % 2 == 0 { json!([2, data][zero as usize % 2]) } else { json!("all") }),
                (
                    "parallel",
                    "reduce_gradients",
                    json!(if dropout { "each-microbatch" } else { "after-accumulation" }),
                ),
                ("training", "recompute", json!(recompute)),
                (
                    "training",
                    "offload",
                    // Copies of the schedule do not go with recomputation that the limit decides.
                    match (u64::from(zero) + overhead) % 5 {
                        0 => json!("none"),
                        1 => json!("all"),
                        2 => json!("fit"),
                        3 if recompute != "fit" => json!("scheduled"),
                        _ => json!(1 + overhead % 9),
                    },
                ),
                ("training", "offload_optimizer", json!(overhead % 2 == 1)),
                (
                    "training",
                    "frozen",
                    [json!([]), json!(["norms", "layers.0"]), json!(["embedding", "head"]), json!([])]
                        [zero as usize % 4]
                        .clone(),
                ),
                (
                    "training",
                    "lora",
                    if zero == 3 { json!({ "rank": data, "alpha": 1 + overhead % 99 }) } else { json!("none") },
                ),
                ("training", "attention", json!(attention)),
                ("training", "dropout", json!(dropout)),
                ("memory", "overhead_bytes", json!(overhead)),
                ("training", "elastic", json!(data % 2 == 0)),
                ("training", "mtbf_hours", if zero > 1 { json!(1 + overhead % 100_000) } else { Value::Null }),
                ("training", "tokens", if dropout { json!(1 + overhead) } else { Value::Null }),
            ]
        })
}

/// Any valid problem file.
pub fn problem() -> impl Strategy<Value = Value> {
    let shape = (1usize..=5, 1usize..=3, 1usize..=9);
    shape.prop_flat_map(|(ranks, chunks, microbatches)| {
        let mut placements: Vec<Value> = ["looped", "wave", "any"].map(Value::from).to_vec();
        if chunks == 1 {
            placements.push(json!("linear"));
        }
        if chunks == 2 {
            placements.push(json!("v"));
        }
        placements.push((0..ranks * chunks).map(|stage| json!(stage / chunks)).collect());
        let stage =
            (0u64..1000, 0u64..1000, 0u64..1000, 0i64..100, 0u64..5).prop_flat_map(|(f, b, w, taken, work)| {
                (0..=taken).prop_map(move |given| {
                json!({
                    "forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w,
                    "forward_bytes": taken, "backward_input_bytes": -given, "backward_weight_bytes": given - taken,
                    "forward_workspace_bytes": work, "backward_ns": b + w / 2,
                })
            })
            });
        let limit = prop_oneof![Just(Value::Null), (0u64..1 << 50).prop_map(Value::from)];
        (
            prop::sample::select(placements),
            prop_oneof![stage.clone(), prop::collection::vec(stage, ranks * chunks).prop_map(Value::from)],
            prop_oneof![
                (0u64..100).prop_map(Value::from),
                prop::collection::vec(prop::collection::vec(0u64..100, ranks), ranks).prop_map(|links| json!(links))
            ],
            prop_oneof![limit.clone(), prop::collection::vec(limit, ranks).prop_map(Value::from)],
            prop::sample::select(["makespan", "longest_span"].to_vec()),
            prop::sample::select(["split", "fused"].to_vec()),
        )
            .prop_map(move |(placement, stages, transfer, limit, objective, backward)| {
                json!({
                    "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
                    "stages": stages, "transfer_ns": transfer, "static_bytes": 7, "limit_bytes": limit,
                    "objective": objective, "backward": backward,
                })
            })
    })
}

/// A valid spec's text with one byte of it changed, or any text at all.
pub fn damaged_text() -> impl Strategy<Value = String> {
    let damaged = (spec(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(spec, at, to)| {
        let mut bytes = spec.to_json().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = to;
        String::from_utf8_lossy(&bytes).into_owned()
    });
    prop_oneof![damaged, ".{0,200}", "[a-z]{1,8}( = |\\.)[0-9\"a-z\\[\\]]{0,20}".prop_map(|line| format!("{line}\n"))]
}
