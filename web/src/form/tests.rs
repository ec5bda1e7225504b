use pipeplan_core::model::catalog;
use pipeplan_core::problem::Statement;
use proptest::prelude::*;

use super::*;

fn read(form: &Form) -> Result<Spec, pipeplan_core::base::fields::Faults> {
    form.read().map_err(pipeplan_core::base::fields::Faults)
}

#[test]
fn the_page_opens_with_valid_forms() {
    let mut form = Form::default();
    assert!(read(&form).is_ok(), "{:?}", read(&form));
    form.kind = Kind::Typed;
    assert!(read(&form).is_ok(), "{:?}", read(&form));
}

#[test]
fn every_spec_of_the_catalog_opens_as_a_form_that_means_it() {
    for model in catalog::catalog() {
        for device in cluster::catalog() {
            let value = json!({
                "model": { "name": model.name }, "cluster": { "device": device.name, "devices_per_node": 4 },
                "parallel": { "pipeline": 2, "chunks": 3 }, "training": { "microbatches": 7, "dtype": "f32" },
                "memory": { "limit_bytes": 12_345_678_901u64 }, "objective": "longest_span", "schedule": "1f1b",
            });
            let spec = Spec::from_value(&value).unwrap();
            let form = Form::of(&spec);
            assert_eq!(read(&form), Ok(spec), "{form:?}");
            assert_eq!(form.text("model.layers"), "", "the catalog's own sizes stay out");
            assert_eq!(form.text("cluster.device"), device.name);
        }
    }
}

/// Every path of `value` at which no table stands.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                leaves(value, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn every_field_of_a_spec_is_in_the_form() {
    for value in [
        json!({
            "name": "all of it", "schedule": "interleaved-1f1b:6", "objective": "longest_span",
            "model": { "name": "llama-2-7b", "layers": 30 },
            "cluster": { "device": "h100", "devices_per_node": 4, "link": "pcie-4" },
            "parallel": { "pipeline": 2, "chunks": 3, "partition": [4, 5, 5, 5, 5, 6], "tensor": 4, "sequence_parallel": true, "async_reduce": true, "data": 2, "zero": 3, "reduce_gradients": "after-accumulation" },
            "training": {
                "microbatches": 12, "microbatch_size": 3, "sequence": 512, "dtype": "f32",
                "attention": "materialised", "dropout": true, "recompute": "selective", "recompute_first": 3,
            },
            "memory": { "limit_bytes": 12_345_678_901u64, "overhead_bytes": 987_654_321u64 },
            "messages": { "lowering": "overlapped:2", "transport": "streams" }, "jitter_permille": 25, "target": "megatron",
        }),
        json!({
            "name": "experts and latents",
            "model": {
                "name": "deepseek-v3", "qkv_bias": false, "activation": "gelu", "post_norms": true, "multi_token": 2,
                "experts": {
                    "count": 128, "active": 4, "ffn": 1024, "shared_ffn": 512, "dense_layers": 1, "shared_gate": true,
                    "scores": "softmax", "normed": false, "factor": 1.5, "groups": 4, "active_groups": 2,
                },
                "latent": { "query_rank": 768, "key_value_rank": 256, "rope_width": 32, "value_width": 64 },
                "window": { "tokens": 1024, "full_every": 6 }, "norm_offset": true,
                "factors": { "embedding": 7.5, "attention": 0.0625 }, "caps": { "logits": 30 },
            },
            "cluster": { "device": { "name": "h100", "fp8_flops": 1_234_000_000_000_000u64, "host_bytes_per_s": 21_000_000_000u64 } },
            "parallel": {
                "pipeline": 4, "partition": "within-limit", "tensor": 2, "sequence_parallel": true, "data": 8, "zero": 1,
                "context": 2, "expert": 4, "whole_experts": true, "dispatch": "once-per-node",
                "overlap_exchanges": true,
            },
            "training": {
                "microbatches": 12, "f32_logits": true, "expert_imbalance": 1.25, "offload": 3,
                "offload_optimizer": true, "elastic": true, "mtbf_hours": 50_000,
                "matmul_dtype": "fp8", "gradients_dtype": "bf16", "moments_dtype": "bf16",
                "lora": { "rank": 16, "alpha": 32, "targets": ["q_b", "kv_b", "down"] },
            },
        }),
        json!({
            "name": "none of them",
            "model": { "name": "deepseek-v3", "experts": "none", "latent": "none", "window": "none", "multi_token": 0, "kv_heads": 64 },
            "cluster": { "device": "h100" }, "parallel": { "pipeline": 4 }, "training": { "microbatches": 12 },
        }),
        json!({ "name": "typed", "schedule": "interleaved-zb:4", "messages": { "transport": "buffered:4" }, "problem": {
            "ranks": 2, "chunks": 2, "microbatches": 8, "placement": "any", "backward": "split", "objective": "longest_span",
            "slices": 4, "overlap_permille": 350, "microbatch_factors": [1380, 900, 820, 1100, 700, 1000, 1000, { "bytes": 1200 }], "transfer_ns": 9, "static_bytes": 4, "limit_bytes": 99,
            "stages": {
                "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7,
                "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1,
                "forward_workspace_bytes": 1, "backward_input_workspace_bytes": 2, "backward_weight_workspace_bytes": 3,
                "backward_workspace_bytes": 6, "backward_ns": 11,
                "forward_exchange_ns": 2, "backward_exchange_ns": 3, "slice_gradient_bytes": 2,
            },
        } }),
        json!({ "name": "copies", "problem": {
            "ranks": 2, "microbatches": 8, "limit_bytes": 8,
            "stages": {
                "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 4,
                "backward_input_bytes": -1, "backward_weight_bytes": -3, "offload_bytes": 3, "offload_ns": 2,
            },
        } }),
        json!({
            "name": "offload", "model": { "name": "llama-3-8b" }, "cluster": { "device": "h100" },
            "parallel": { "pipeline": 4 }, "training": { "microbatches": 8, "offload": "scheduled" },
        }),
        json!({
            "name": "slices", "model": { "name": "llama-3-8b" }, "cluster": { "device": "h100" },
            "parallel": { "pipeline": 4, "sequence_slices": 4 }, "training": { "microbatches": 8 },
        }),
    ] {
        let spec = Spec::from_value(&value).unwrap();
        let mut paths = Vec::new();
        leaves(&spec.to_value(), "", &mut paths);
        for path in paths {
            assert!(field(&path).is_some(), "{path} has no field");
        }
        let form = Form::of(&spec);
        assert_eq!(form.text("schedule"), spec.schedule);
        assert_eq!(read(&form), Ok(spec.clone()), "{form:?}");
        // And through a link.
        let linked = pipeplan_core::spec::link::read(&pipeplan_core::spec::link::write(&spec)).unwrap();
        assert_eq!(read(&Form::of(&linked)), Ok(spec));
    }
}

/// The device's memory is no round number of bytes, and is shown as one of GiB.
#[test]
fn a_device_by_hand_has_figures_that_a_person_reads() {
    let mut form = Form::default();
    form.choose_device("");
    assert_eq!(form.text("cluster.device.memory_bytes"), "79.1");
    let by_name = read(&Form::default()).unwrap();
    let (Work::Model(by_hand), Work::Model(by_name)) = (read(&form).unwrap().work, by_name.work) else { panic!() };
    assert_eq!(by_hand.device.memory_bytes, by_name.device.memory_bytes);
    // What has no short text keeps all it needs.
    let unit = field("memory.limit_bytes").unwrap().unit;
    let text = unit.text_of(&json!(12_345_678_901u64));
    assert_eq!(unit.value_of(&text), json!(12_345_678_901u64));
}

#[test]
fn a_name_may_be_any_text() {
    for name in ["4, 8", "[1]", "{}", "7"] {
        let mut form = Form::default();
        form.set("name", name);
        assert_eq!(read(&form).map(|spec| spec.name), Ok(name.to_owned()));
    }
}

#[test]
fn groups_are_a_part_of_the_schedule_s_name() {
    let mut form = Form::default();
    form.set("schedule", "interleaved-1f1b");
    assert!(form.takes_groups());
    form.set_group("6");
    assert_eq!((form.text("schedule"), form.schedule_and_group()), ("interleaved-1f1b:6", ("interleaved-1f1b", "6")));
    assert!(form.takes_groups());
    form.set_group("");
    assert_eq!(form.text("schedule"), "interleaved-1f1b");
    form.set("schedule", "zb-v");
    assert!(!form.takes_groups());
}

#[test]
fn a_limit_is_short_and_never_below_its_bytes() {
    for (bytes, text) in
        [(80u64 << 30, "80"), (22_922_039_296, "21.35"), (1 << 20, "0.000977"), (12_345_678, "0.0115")]
    {
        let limit = limit_text("memory.limit_bytes", bytes);
        assert_eq!(limit, text);
        let read = Unit::Of((1u64 << 30) as f64, "").value_of(&limit).as_u64().unwrap();
        assert!(read >= bytes);
    }
    assert_eq!(limit_text("problem.limit_bytes", 17), "17");
}

#[test]
fn a_short_spec_is_a_short_form() {
    for model in ["gpt-3-175b", "mixtral-8x7b"] {
        let value = json!({
            "model": { "name": model }, "cluster": { "device": "a100-80" },
            "parallel": { "pipeline": 8 }, "training": { "microbatches": 24 },
        });
        let form = Form::of(&Spec::from_value(&value).unwrap());
        let said: Vec<&str> = FIELDS
            .iter()
            .map(|field| field.path)
            .filter(|path| !path.starts_with("problem") && !form.text(path).is_empty())
            .collect();
        assert_eq!(said, ["schedule", "model.name", "cluster.device", "parallel.pipeline", "training.microbatches"]);
    }
}

#[test]
fn sizes_and_figures_by_hand_survive() {
    let mut form = Form::default();
    form.choose_model("");
    form.choose_device("");
    assert_ne!(form.text("model.layers"), "", "sizes by hand start from the model before");
    form.set("model.layers", "13");
    form.set("cluster.device.matmul_flops", "123.4");
    form.set("cluster.link.latency_ns", "1.5");
    let spec = read(&form).unwrap();
    let Work::Model(work) = &spec.work else { panic!("a model") };
    assert_eq!((work.model.layers, work.device.matmul_flops, work.link.latency_ns), (13, 123_400_000_000_000, 1500));
    assert_eq!(read(&Form::of(&spec)), Ok(spec));
}

#[test]
fn sizes_by_hand_start_as_the_model_before() {
    for entry in catalog::catalog() {
        let mut form = Form::default();
        form.choose_model(entry.name);
        let Work::Model(named) = read(&form).unwrap().work else { panic!("a model") };
        form.choose_model("");
        let Work::Model(by_hand) = read(&form).unwrap().work else { panic!("a model") };
        assert_eq!((by_hand.model, by_hand.sequence), (named.model, named.sequence), "{}", entry.name);
    }
}

#[test]
fn another_model_keeps_nothing_of_the_one_before() {
    let mut form = Form::default();
    form.choose_model("mixtral-8x7b");
    form.set("model.experts.count", "4");
    form.set("model.window.tokens", "128");
    form.set("model.layers", "30");
    form.set("model.latent", "none");
    form.set("training.sequence", "512");
    form.choose_model("llama-3-8b");
    let mut fresh = Form::default();
    fresh.choose_model("llama-3-8b");
    assert_eq!(form.text("training.sequence"), "512", "what is trained is no part of the model");
    fresh.set("training.sequence", "512");
    assert_eq!(form, fresh);
    // What is said to be there not at all is not filled in.
    form.choose_model("mixtral-8x7b");
    form.set("model.experts", "none");
    form.choose_model("");
    let Work::Model(work) = read(&form).unwrap().work else { panic!("a model") };
    assert_eq!(work.model.variant.experts, None);
}

#[test]
fn a_limit_goes_with_its_device() {
    let mut form = Form::default();
    form.set("memory.limit_bytes", "40");
    form.choose_device("");
    assert_eq!(form.text("memory.limit_bytes"), "40", "the same figures, by hand");
    form.choose_device("a100-40");
    assert_eq!(form.text("memory.limit_bytes"), "");
}

/// An emptied field that has to say something is told so itself, also where it was the last one of its table.
#[test]
fn what_is_missing_is_named_at_its_field() {
    for (kind, path) in [
        (Kind::Model, "training.microbatches"),
        (Kind::Model, "parallel.pipeline"),
        (Kind::Model, "cluster.device"),
        (Kind::Model, "model.name"),
        (Kind::Typed, "problem.ranks"),
        (Kind::Typed, "problem.microbatches"),
    ] {
        let mut form = Form { kind, ..Form::default() };
        if path == "model.name" {
            form.set("training.sequence", "4096");
        }
        form.set(path, "");
        let faults = read(&form).unwrap_err().0;
        let told: Vec<_> = faults.iter().map(|fault| Form::field_of(fault).map(|field| field.path)).collect();
        assert_eq!(told, [Some(path)], "{faults:?}");
        assert_eq!(faults[0].found, "nothing");
    }
}

#[test]
fn typed_costs_survive_also_as_lists() {
    for value in [
        json!({ "ranks": 2, "chunks": 2, "microbatches": 3, "placement": [0, 1, 1, 0],
            "stages": { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 2, "backward_input_bytes": -2, "forward_workspace_bytes": 3 },
            "transfer_ns": [[0, 5], [6, 0]] }),
        json!({ "ranks": 2, "chunks": 1, "microbatches": 3, "placement": "linear", "limit_bytes": [7, null], "static_bytes": [1, 2],
            "backward": "fused", "objective": "longest_span", "transfer_ns": 9,
            "stages": [
                { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
                { "forward_ns": 8, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2, "backward_weight_workspace_bytes": 4, "backward_workspace_bytes": 0 },
            ] }),
        json!({ "ranks": 1, "chunks": 2, "microbatches": 3, "placement": "looped",
            "stages": [
                { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "backward_ns": 12 },
                { "forward_ns": 8, "backward_input_ns": 6, "backward_weight_ns": 7, "backward_workspace_bytes": 3, "backward_ns": 13 },
            ] }),
        json!({ "ranks": 1, "chunks": 2, "microbatches": 3, "placement": "looped",
            "stages": [
                { "forward_ns": 5, "backward_input_ns": 6, "backward_weight_ns": 7, "forward_bytes": 2, "backward_input_bytes": -2, "offload_bytes": 2, "offload_ns": 9 },
                { "forward_ns": 8, "backward_input_ns": 6, "backward_weight_ns": 7 },
            ] }),
    ] {
        let spec = Spec::typed(Statement::read(&value).unwrap());
        let form = Form::of(&spec);
        assert_eq!(read(&form), Ok(spec), "{form:?}");
    }
}

#[test]
fn what_cannot_be_read_is_named_at_its_field() {
    for (path, text, found) in [
        ("training.microbatches", "many", "\"many\""),
        ("training.microbatches", "-1", "-1"),
        ("training.microbatches", "2.5", "2.5"),
        ("memory.limit_bytes", "lots", "\"lots\""),
        ("cluster.link.latency_ns", "x", "\"x\""),
        ("cluster.device", "abacus", "\"abacus\""),
        ("parallel.tensor", "3", "3"),
        ("parallel.zero", "4", "4"),
        ("parallel.partition", "most", "\"most\""),
        ("parallel.partition", "4, x", "\"4, x\""),
        ("training.recompute", "some", "\"some\""),
        ("training.expert_imbalance", "0.5", "0.5"),
        ("training.f32_logits", "maybe", "\"maybe\""),
        ("parallel.context", "3", "3"),
        ("model.window.tokens", "-1", "-1"),
        ("model.experts", "many", "\"many\""),
        ("model.multi_token", "99", "99"),
        ("training.dropout", "perhaps", "\"perhaps\""),
        ("memory.overhead_bytes", "-1", "-1"),
        ("schedule", "interleaved-1f1b:0", "\"interleaved-1f1b:0\""),
    ] {
        let mut form = Form::default();
        form.set(path, text);
        let faults = read(&form).unwrap_err().0;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(Form::field_of(&faults[0]).map(|field| field.path), Some(path), "{faults:?}");
        assert!(faults[0].found.contains(found.trim_matches('"')), "{faults:?}");
    }
    let mut form = Form { kind: Kind::Typed, ..Form::default() };
    form.set("problem.placement", "linear");
    form.set("problem.ranks", "2");
    form.set(STAGE_LIST, "1 2 3 4 -2 -2\n1 2 three");
    let faults = read(&form).unwrap_err().0;
    assert_eq!(faults[0].field, "problem.stages[1].backward_weight_ns");
    assert_eq!(Form::field_of(&faults[0]).map(|field| field.path), Some(STAGE_LIST));
}

/// A field of a model's spec with a few values that it may have beside its default.
fn choices() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let all = [
        ("/model/layers", vec![json!(30), json!(64)]),
        ("/model/tied", vec![json!(true)]),
        ("/cluster/device", vec![json!("cpu"), json!({ "name": "h100", "launch_ns": 77 })]),
        ("/cluster/devices_per_node", vec![json!(3)]),
        ("/cluster/node_link", vec![json!({ "latency_ns": 1234 })]),
        ("/parallel/chunks", vec![json!(1), json!(5)]),
        ("/parallel/partition", vec![json!("layers"), json!("layers-and-ends"), json!([7, 8, 7, 8]), json!([31, 1])]),
        ("/parallel/tensor", vec![json!(2), json!(8)]),
        ("/parallel/sequence_parallel", vec![json!(true)]),
        ("/parallel/data", vec![json!(2), json!(7)]),
        ("/parallel/zero", vec![json!(1), json!(2), json!(3)]),
        ("/training/microbatch_size", vec![json!(1), json!(4)]),
        ("/training/sequence", vec![json!(128)]),
        ("/training/dtype", vec![json!("f32"), json!("f64"), json!("bf16")]),
        ("/training/attention", vec![json!("materialised")]),
        ("/training/dropout", vec![json!(true)]),
        ("/training/recompute", vec![json!("selective"), json!("cheap"), json!("full")]),
        ("/memory/limit_bytes", vec![json!(1), json!(80u64 << 30)]),
        ("/memory/overhead_bytes", vec![json!(1), json!(3u64 << 30)]),
        ("/objective", vec![json!("longest_span")]),
        ("/schedule", vec![json!("interleaved-zb:6"), json!("zb-v")]),
    ];
    let chosen = all.map(|(path, values)| {
        prop::option::of(prop::sample::select(values)).prop_map(move |value| Some((path, value?)))
    });
    chosen.to_vec().prop_map(|chosen| chosen.into_iter().flatten().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_spec_of_a_model_survives_the_form(choices in choices()) {
        let mut value = json!({
            "model": { "name": "llama-2-7b" }, "cluster": { "device": "a100-80" },
            "parallel": { "pipeline": 2 }, "training": { "microbatches": 6 }, "memory": {}, "objective": "makespan", "schedule": "best",
        });
        for (path, chosen) in choices {
            let (table, key) = path.rsplit_once('/').unwrap();
            value.pointer_mut(table).unwrap()[key] = chosen;
        }
        let spec = Spec::from_value(&value).unwrap();
        prop_assert_eq!(read(&Form::of(&spec)), Ok(spec));
    }

    #[test]
    fn numbers_with_units_survive_exactly(number in 0u64..1 << 50) {
        for factor in [(1u64 << 30) as f64, 1e12, 1e9, 1e3] {
            let unit = Unit::Of(factor, "");
            // Beyond 2^50 two roundings may add up to one.
            prop_assert_eq!(unit.value_of(&unit.text_of(&json!(number))), json!(number));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,60}", at in 0usize..FIELDS.len(), typed in any::<bool>()) {
        let mut form = Form { kind: if typed { Kind::Typed } else { Kind::Model }, ..Form::default() };
        form.set(FIELDS[at].path, text);
        let _ = read(&form);
    }
}

#[test]
fn faults_are_told_in_the_unit_of_their_field() {
    let gib = Unit::Of((1u64 << 30) as f64, "GiB");
    let permille = "a whole number from 0 to 1000";
    let bytes = "bytes from 0 to 1125899906842624, or text such as `80 GiB`";
    for (unit, typed, found, accepted, told) in [
        (Unit::Of(10.0, "%"), "101", "1010", permille, "found 101; accepted is a number from 0 to 100, in %"),
        (Unit::Of(10.0, "%"), "-1", "-10.0", permille, "found -1; accepted is a number from 0 to 100, in %"),
        (
            Unit::Of(10.0, "%"),
            "much",
            "\"much\"",
            permille,
            "found \"much\"; accepted is a number from 0 to 100, in %",
        ),
        (Unit::Of(10.0, "%"), "", "nothing", permille, "found nothing; accepted is a number from 0 to 100, in %"),
        (Unit::Of(1e3, "µs"), "2.5", "2500", "1", "found 2.5; accepted is 0.001, in µs"),
        (Unit::Of(1e9, "GB/s"), "0", "0", "at least 1", "found 0; accepted is at least 0.000000001, in GB/s"),
        (
            Unit::Of(1e9, "GB/s"),
            "-1",
            "-1000000000.0",
            bytes,
            "found -1; accepted is a number from 0 to 1125899.906842624, in GB/s",
        ),
        (Unit::Whole, "1e20", "1e+20", "1 to 1024", "found 1e20; accepted is 1 to 1024"),
        (Unit::Real, "-1", "-1.0", "1 to 1024", "found -1; accepted is 1 to 1024"),
        (gib, "-1", "-1073741824.0", bytes, "found -1 GiB; accepted is 0 B to 1 PiB, or text such as `80 GiB`"),
        (gib, "1e9", "1.073741824e+18", bytes, "found 1e9 GiB; accepted is 0 B to 1 PiB, or text such as `80 GiB`"),
        (gib, "all", "\"all\"", "bytes from 1", "found \"all\"; accepted is 1 B"),
        (Unit::Whole, "0", "0", "1 to 1024", "found 0; accepted is 1 to 1024"),
    ] {
        assert_eq!(unit.explain_fault(typed, found, accepted), told);
    }
}

/// Words with a comma between are no list where no list is ever meant.
#[test]
fn what_has_choices_is_told_its_choices() {
    for (path, choice) in
        [("training.recompute", "selective"), ("messages.lowering", "grouped"), ("messages.transport", "rendezvous")]
    {
        let mut form = Form::default();
        form.set(path, "1,2");
        let faults = Spec::from_value(&form.to_value()).unwrap_err().0;
        let fault = faults.iter().find(|fault| fault.field == path).unwrap();
        assert!(fault.found.contains("1,2") && fault.accepted.contains(choice), "{fault}");
    }
}

/// A degree of experts is at fault once where there are none.
#[test]
fn a_dense_model_has_no_experts_to_deal() {
    let mut form = Form::default();
    form.set("parallel.expert", "7");
    let faults = Spec::from_value(&form.to_value()).unwrap_err();
    assert_eq!(faults.to_string(), "parallel.expert: found 7, accepted is nothing: the model has no experts");
}

/// A model has as many tokens in a sequence as it has positions, whatever its file calls them.
#[test]
fn the_model_of_a_config_has_the_sequences_that_it_takes() {
    let gpt2 = json!({ "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new" });
    let falcon = json!({ "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "vocab_size": 65024, "layer_norm_epsilon": 1e-5, "multi_query": true, "new_decoder_architecture": false,
        "parallel_attn": true, "bias": false, "alibi": false });
    let llama = json!({ "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "vocab_size": 128_256 });
    for (config, sequence) in [(&gpt2, 1024), (&falcon, 2048), (&llama, 4096)] {
        for kind in [Kind::Model, Kind::Typed] {
            let form = Form { kind, ..Form::default() };
            let spec = Spec::from_value(&form.value_with(config.clone(), 4096)).unwrap();
            let Work::Model(work) = spec.work else { panic!("a model") };
            assert_eq!(work.sequence, sequence, "{config}");
        }
    }
    // What is typed is what is trained, or at fault.
    let mut form = Form::default();
    form.set("training.sequence", "512");
    assert_eq!(form.value_with(gpt2.clone(), 4096)["training"]["sequence"], 512);
    form.set("training.sequence", "4096");
    let faults = Spec::from_value(&form.value_with(gpt2, 4096)).unwrap_err().to_string();
    assert!(faults.starts_with("training.sequence: found 4096"), "{faults}");
}

/// What is opened says one half of the form; the other one is as it was, also after the page is loaded anew.
#[test]
fn the_half_that_is_not_shown_stays() {
    let mut form = Form::default();
    assert_eq!(form.unlinked(), None, "the example's");
    form.set("parallel.pipeline", "8");
    form.kind = Kind::Typed;
    form.set("problem.ranks", "6");
    let remembered = form.unlinked().unwrap();
    let typed = form.read().unwrap();
    form.open(&typed);
    assert_eq!((form.text("parallel.pipeline"), form.text("problem.ranks")), ("8", "6"));

    // Anew: the address says what was shown.
    let mut anew = Form::default();
    anew.open(&typed);
    anew.recall_unlinked(&remembered);
    anew.kind = Kind::Model;
    form.kind = Kind::Model;
    assert_eq!((read(&anew), anew.text("parallel.pipeline")), (read(&form), "8"));
    // Of the half that is shown, and of no form at all, nothing is taken.
    let before = anew.clone();
    for text in [remembered.as_str(), "{\"problem.colour\": \"red\"}", "[]", "nonsense", "{}"] {
        anew.recall_unlinked(text);
        assert_eq!(anew, before, "{text}");
    }
}

/// Lines are told as lines, and each by itself also where there are too few.
#[test]
fn costs_of_each_stage_are_told_in_lines() {
    let mut form = Form { kind: Kind::Typed, ..Form::default() };
    form.set("problem.placement", "linear");
    let told = |form: &Form| -> Vec<String> {
        let faults = form.read().unwrap_err();
        faults.iter().map(|fault| field(STAGE_LIST).unwrap().explain_fault(form.text(STAGE_LIST), fault)).collect()
    };
    form.set(STAGE_LIST, "a b c");
    let faults = told(&form);
    assert_eq!(
        faults[0],
        "found 1 line; accepted is 4 lines, one for each stage, or none: all stages then have the costs above"
    );
    assert!(faults[1].starts_with("line 1, ns of F: found \"a\"; accepted is "), "{faults:?}");
    assert_eq!(faults.len(), 4);
    form.set(STAGE_LIST, "1 2 3 4 -2 -2\n1 2 3\n1 2 3\n1 2 three");
    let faults = told(&form);
    assert!(faults.len() == 1 && faults[0].starts_with("line 4, ns of W: found \"three\""), "{faults:?}");
}

/// Those who hear the page tell its fields apart by their names alone.
#[test]
fn no_two_fields_of_a_half_have_one_name() {
    for kind in [Kind::Model, Kind::Typed] {
        let shown = FIELDS.iter().filter(|field| !kind.other().has(field.path));
        let mut names: Vec<String> =
            shown.map(|field| field.accessible_name().unwrap_or_else(|| field.label.to_owned())).collect();
        names.sort();
        let twice: Vec<&[String]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}

/// The global batch says the microbatches, and goes where these are said; copies share it out.
#[test]
fn a_global_batch_stands_in_for_microbatches() {
    let mut form = Form::default();
    form.set("parallel.data", "4");
    form.set("training.global_batch_size", "64");
    assert_eq!(form.text("training.microbatches"), "", "each says the other");
    let microbatches = |form: &Form| match Spec::from_value(&form.to_value()).map(|spec| spec.work) {
        Ok(Work::Model(work)) => Ok(work.microbatches),
        Ok(Work::Typed(_)) => panic!("a model"),
        Err(faults) => Err(faults.0[0].field.clone()),
    };
    assert_eq!(microbatches(&form), Ok(16));
    form.set("parallel.data", "8");
    assert_eq!(microbatches(&form), Ok(8));
    form.set("parallel.data", "3");
    assert_eq!(microbatches(&form), Err("training.global_batch_size".to_owned()));
    form.set("training.microbatches", "5");
    assert_eq!((form.text("training.global_batch_size"), microbatches(&form)), ("", Ok(5)));
    // Emptying one says nothing of the other.
    form.set("training.global_batch_size", "");
    assert_eq!(form.text("training.microbatches"), "5");
}

/// Files, layouts, advice and a page that is loaded anew leave the batch said as it was.
#[test]
fn who_says_the_global_batch_goes_on_saying_it() {
    let said = |form: &Form| BATCH.map(|path| form.text(path).to_owned());
    let open = |form: &mut Form, text: &str| form.open_value(&pipeplan_core::spec::parse(text).unwrap()).unwrap();
    let text = "model.name = \"llama-2-7b\"\ncluster.device = \"h100\"\nparallel.pipeline = 4\nparallel.data = 2\n[training]\n";
    let mut form = Form::default();
    open(&mut form, &format!("{text}global_batch_size = 32"));
    assert_eq!(said(&form), ["", "32"]);

    let layout = Spec::read(&format!("{text}microbatches = 8\nmicrobatch_size = 2")).unwrap();
    form.open(&layout);
    assert_eq!((said(&form), form.read()), (["", "32"].map(str::to_owned), Ok(layout)));
    let change = |path: &str, to: &str| [path.to_owned(), String::new(), to.to_owned()];
    form.change_all(&[change("parallel.data", "4"), change("training.microbatches", "4")]);
    assert_eq!((said(&form), form.text("parallel.data")), (["", "32"].map(str::to_owned), "4"));

    // A link says the microbatches alone.
    let mut anew = Form::default();
    anew.open(&form.read().unwrap());
    assert_eq!(said(&anew), ["4", ""]);
    anew.recall_unlinked(&form.unlinked().unwrap());
    assert_eq!((said(&anew), anew.unlinked()), (said(&form), form.unlinked()));

    open(&mut form, &format!("{text}microbatches = 8"));
    assert_eq!(said(&form), ["8", ""]);
    assert!(form.open_value(&json!({ "problem": {} })).is_err() && said(&form) == ["8", ""]);
}
