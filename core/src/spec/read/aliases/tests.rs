//! Each alias sets what its field sets.

use std::string::ToString;
use std::vec;

use super::*;
use crate::plan::planner;
use crate::spec::{Spec, read_model_table};

/// Specs in which every field with an alias has a value: a model with MLA and experts, and one of family `gpt`.
fn specs() -> [Value; 2] {
    let cluster = json!({
        "device": {
            "name": "h100", "matmul_flops": 989e12 as u64, "memory_bytes_per_s": 3350e9 as u64,
            "memory_bytes": 80e9 as u64, "matmul_permille": 800, "launch_ns": 4000,
        },
        "devices_per_node": 4, "link": { "bytes_per_s": 450e9 as u64, "latency_ns": 1 },
        "node_link": { "bytes_per_s": 50e9 as u64, "latency_ns": 2 },
    });
    let with_experts = json!({
        "schedule": "1f1b", "cluster": cluster,
        "model": {
            "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 96, "ffn": 1024, "vocab": 1000,
            "positions": 4096, "rope_base": 20000, "norm_eps": 1e-6, "tied": true, "post_norms": true,
            "qkv_bias": false, "qk_norm": false,
            "norm_offset": true, "multi_token": 1, "caps": { "attention": 50, "logits": 30 },
            "latent": { "query_rank": 128, "key_value_rank": 64, "rope_width": 32, "value_width": 64 },
            "experts": {
                "count": 16, "active": 4, "ffn": 256, "shared_ffn": 128, "shared_gate": true, "dense_layers": 1,
                "scores": "sigmoid", "normed": true, "factor": 2.5, "groups": 4, "active_groups": 2,
            },
        },
        "parallel": {
            "pipeline": 2, "chunks": 3, "partition": "layers", "tensor": 2, "sequence_parallel": true, "async_reduce": true, "context": 2,
            "data": 4, "zero": 1, "shard": 2, "reduce_gradients": "each-microbatch", "expert": 4,
            "expert_tensor": 1, "dispatch": "once-per-node", "overlap_exchanges": true,
        },
        "training": {
            "microbatches": 4, "microbatch_size": 2, "sequence": 256, "tokens": 1_000_000, "dtype": "bf16",
            "matmul_dtype": "fp8", "gradients_dtype": "bf16", "moments_dtype": "bf16", "expert_imbalance": 1.5,
            "moe_aux_loss": 0.01, "moe_z_loss": 0.001,
            "recompute": "full", "recompute_first": 2, "offload": "all", "offload_optimizer": true,
            "elastic": true, "mtbf_hours": 50_000,
            "lora": { "rank": 8, "alpha": 16, "targets": ["o", "down"] },
        },
        "memory": { "limit_bytes": 70e9 as u64, "overhead_bytes": 1_000_000 },
    });
    let gpt = json!({
        "schedule": "1f1b", "cluster": cluster,
        "model": {
            "family": "gpt", "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab": 1000,
            "rotary": 32, "arrangement": "beside", "no_bias": true,
        },
        "parallel": { "pipeline": 2 },
        "training": { "microbatches": 4, "sequence": 256 },
    });
    [with_experts, gpt]
}

/// What an alias with values of its own says of its field's value in [`specs`].
fn value_of(alias: &Alias, own: &Value) -> Value {
    match alias.values {
        Values::Same => own.clone(),
        Values::Words(words) => {
            let word = words.iter().find(|(_, word)| own == word).unwrap_or_else(|| panic!("{own}"));
            json!(word.0)
        }
        Values::ParallelResidual => json!(true),
    }
}

fn read(value: &Value) -> Spec {
    Spec::from_value(value).unwrap_or_else(|faults| panic!("{faults}\n{value}"))
}

#[test]
fn each_alias_sets_what_its_field_sets() {
    let mut used = 0;
    for spec in specs() {
        let plain = read(&spec);
        let mut all = spec.clone();
        for alias in ALIASES {
            let mut with_alias = spec.clone();
            let table = table_at_mut(&mut with_alias, alias.table);
            let Some(own) = table.and_then(|table| table.remove(alias.field)) else { continue };
            used += 1;
            let value = value_of(alias, &own);
            table_at_mut(&mut with_alias, alias.table).unwrap().insert(alias.name.to_string(), value.clone());
            let found = read(&with_alias);
            assert_eq!(found, plain, "{}.{}", alias.table, alias.name);
            assert_eq!(found.to_json(), plain.to_json(), "what is written has the field's own name");

            table_at_mut(&mut with_alias, alias.table).unwrap().insert(alias.field.to_string(), own);
            let [fault] = &Spec::from_value(&with_alias).unwrap_err().0[..] else { panic!("one fault") };
            assert_eq!(fault.field, format!("{}.{}", alias.table, alias.name));
            assert_eq!(fault.found, format!("it together with {}.{}", alias.table, alias.field));

            // All of them at once, tables last so that their fields are still there.
            let outer = table_at_mut(&mut all, alias.table)
                .filter(|table| table.get(alias.field).is_some_and(|value| !value.is_object()));
            if let Some(table) = outer
                && table.remove(alias.field).is_some()
            {
                table.insert(alias.name.to_string(), value);
            }
        }
        assert_eq!(read(&all), plain);
    }
    // `kv_heads` has two aliases, and some fields are in both specs.
    assert!(used > ALIASES.len(), "{used} of {}", ALIASES.len());
}

/// Every alias is tried above.
#[test]
fn no_alias_is_left_out() {
    for alias in ALIASES {
        let has = |spec: &Value| table_at(spec, alias.table).is_some_and(|table| table.contains_key(alias.field));
        assert!(specs().iter().any(has), "{}.{}", alias.table, alias.field);
    }
}

#[test]
fn a_spec_with_aliases_gives_the_same_plan() {
    let text = |parallel: &str, training: &str| {
        format!(
            "[model]\nname = \"llama-2-7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\n{parallel}\n[training]\n{training}\n"
        )
    };
    let own = text("pipeline = 4\ntensor = 2\nasync_reduce = true", "microbatches = 8\nmicrobatch_size = 2");
    let other = text(
        "pipeline_model_parallel_size = 4\ntensor_model_parallel_size = 2\nasync_tensor_model_parallel_allreduce = true",
        "gradient_accumulation_steps = 8\nmicro_batch_size = 2",
    );
    let plan = |text: &str| planner::plan(&Spec::read(text).unwrap(), "1f1b").unwrap().to_json();
    assert_eq!(plan(&own), plan(&other));
}

/// The alias in a fault's field, also of a table, of a list and of a value that only the model refuses.
#[test]
fn faults_name_what_the_input_has() {
    let [with_experts, gpt] = specs();
    for (spec, table, field, name, value, at) in [
        (
            &gpt,
            "parallel",
            "pipeline",
            "pipeline_model_parallel_size",
            json!(0),
            "parallel.pipeline_model_parallel_size",
        ),
        (
            &gpt,
            "parallel",
            "pipeline",
            "pipeline_model_parallel_size",
            json!(5),
            "parallel.pipeline_model_parallel_size",
        ),
        (
            &with_experts,
            "model",
            "latent",
            "mla",
            json!({ "kv_lora_rank": 0, "qk_rope_head_dim": 2, "v_head_dim": 2 }),
            "model.mla.kv_lora_rank",
        ),
        (
            &with_experts,
            "parallel",
            "expert_tensor",
            "expert_tensor_parallel_size",
            json!(3),
            "parallel.expert_tensor_parallel_size",
        ),
        (&with_experts, "parallel", "dispatch", "moe_dispatch", json!("each-copy"), "parallel.moe_dispatch"),
        (&gpt, "model", "arrangement", "parallel_residual", json!("no"), "model.parallel_residual"),
        (&gpt, "training", "tokens", "trian_tokens", json!(1), "training.trian_tokens"),
    ] {
        let mut spec = spec.clone();
        let table = table_at_mut(&mut spec, table).unwrap();
        table.remove(field);
        table.insert(name.to_string(), value);
        let faults = Spec::from_value(&spec).unwrap_err().0;
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, [at], "{faults:?}");
    }
}

#[test]
fn two_aliases_of_one_field_are_both_named() {
    let [mut spec, _] = specs();
    let model = table_at_mut(&mut spec, "model").unwrap();
    model.remove("kv_heads");
    model.insert("num_query_groups".to_string(), json!(8));
    model.insert("num_key_value_heads".to_string(), json!(8));
    let faults = Spec::from_value(&spec).unwrap_err().0;
    let told: Vec<[&str; 2]> = faults.iter().map(|fault| [fault.field.as_str(), fault.found.as_str()]).collect();
    assert_eq!(told, [["model.num_key_value_heads", "it together with model.num_query_groups"]]);
}

/// A table of a model alone, as checkpoints have it.
#[test]
fn a_model_s_table_may_have_aliases() {
    let [spec, _] = specs();
    let own = read_model_table(&spec["model"], "model", &mut Vec::new()).unwrap();
    let mut other = spec["model"].clone();
    let layers = other.as_object_mut().unwrap().remove("layers").unwrap();
    other["num_layers"] = layers;
    assert_eq!(read_model_table(&other, "model", &mut Vec::new()), Some(own));
    other["num_layers"] = json!(0);
    let mut faults = vec![];
    assert!(read_model_table(&other, "", &mut faults).is_none());
    assert_eq!(faults[0].field, "num_layers");
}

#[test]
fn the_schema_has_every_alias() {
    let schema: Value = serde_json::from_str(crate::plan::SCHEMA).unwrap();
    let spec = &schema["$defs"]["spec"];
    for alias in ALIASES {
        let mut at = spec;
        for key in keys(alias.table) {
            let table = &at["properties"][key];
            at = if table["properties"].is_object() { table } else { &table["oneOf"][1] };
        }
        let described = at["properties"][alias.name]["description"].as_str();
        let of_field = format!("An alias of `{}`", alias.field);
        assert!(described.is_some_and(|text| text.starts_with(&of_field)), "{}.{}", alias.table, alias.name);
    }
    let schema = json!({ "$ref": "#/$defs/spec", "$defs": schema["$defs"] });
    let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"));
    for spec in specs() {
        let mut aliased = spec.clone();
        for alias in ALIASES.iter().rev() {
            let Some(table) = table_at_mut(&mut aliased, alias.table) else { continue };
            if let Some(own) = table.remove(alias.field) {
                table.insert(alias.name.to_string(), value_of(alias, &own));
            }
        }
        let faults: Vec<String> = validator.iter_errors(&aliased).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(read(&aliased), read(&spec));
    }
}
