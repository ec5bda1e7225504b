//! Specs read back, every fault is named, and no text makes the reader panic.

mod model;
mod parallel;

use std::format;
use std::string::{String, ToString};
use std::sync::LazyLock;
use std::vec::Vec;

use proptest::prelude::*;
use serde_json::json;

use crate::base::json::Syntax;
use crate::graph::form::Recompute;
use crate::model::MAX_LAYERS;
use crate::problem::PlacementChoice;
use crate::spec::arbitrary::{damaged_text, model_spec, problem, spec};
use crate::spec::*;

fn faults(text: &str) -> Vec<String> {
    match Spec::read(text) {
        Err(SpecError::Faults(faults)) => faults.0.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

fn model_work(text: &str) -> ModelWork {
    match Spec::read(text).map(|spec| spec.work) {
        Ok(Work::Model(work)) => work,
        other => panic!("{other:?}"),
    }
}

const SHORT: &str = "[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 4\n[training]\nmicrobatches = 8\n";

/// The same training, said by a person and by a program.
#[test]
fn tokens_of_the_training_may_be_said_as_people_say_them() {
    let with = |tokens: &str| format!("{SHORT}tokens = {tokens}\n");
    assert_eq!(model_work(&with("\"14.8T\"")).tokens, Some(14_800_000_000_000));
    assert_eq!(Spec::read(&with("14_800_000_000_000")), Spec::read(&with("\"14.8 trillion\"")));
    assert_eq!(model_work(SHORT).tokens, None);
    for refused in ["0", "-1", "\"many\"", "1.5", "\"15 GB\""] {
        let faults = faults(&with(refused));
        assert!(faults[0].starts_with("training.tokens: found ") && faults[0].contains("`15T`"), "{faults:?}");
    }
}

#[test]
fn four_words_are_enough_and_the_rest_is_the_catalogs() {
    let work = model_work(SHORT);
    // Llama 3 8B: arXiv:2407.21783, Table 3; A100: NVIDIA's data sheet.
    assert_eq!((work.model.layers, work.model.hidden, work.model.ffn), (32, 4096, 14336));
    assert_eq!((work.model.heads, work.model.kv_heads, work.model.head_dim), (32, 8, 128));
    assert_eq!((work.device.matmul_flops, work.dtype), (312_000_000_000_000, Dtype::Bf16));
    assert_eq!((work.sequence, work.microbatch_size, work.chunks, work.limit_bytes), (8192, 1, 2, None));
}

#[test]
fn any_size_and_figure_can_be_typed_over() {
    let text = SHORT
        .replace("[cluster]\ndevice = \"a100-80\"", "layers = 12\n[memory]\nlimit_bytes = \"1.5 GiB\"\n[cluster]\nlink = { latency_ns = 7 }\ndevice = { name = \"a100-80\", matmul_flops = 200e12 }")
        .replace("microbatches = 8", "microbatches = 8\ndtype = \"f32\"");
    let work = model_work(&text);
    assert_eq!((work.model.layers, work.model.hidden), (12, 4096));
    let catalog = crate::hardware::cluster::find("a100-80").expect("in the catalog");
    assert_eq!((work.device.matmul_flops, work.device.memory_bytes), (200_000_000_000_000, catalog.memory_bytes));
    assert_eq!((work.link.latency_ns, work.link.bytes_per_s), (7, 300_000_000_000));
    assert_eq!((work.limit_bytes, work.dtype), (Some(3 << 29), Dtype::F32));
}

#[test]
fn sizes_by_hand_need_no_catalog() {
    let text = "[model]\nlayers = 4\nhidden = 64\nheads = 4\nffn = 128\nvocab = 256\n[cluster]\ndevice = { matmul_flops = 1, memory_bytes_per_s = 2, memory_bytes = 3 }\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 3\nsequence = 5\n";
    let work = model_work(text);
    assert_eq!((work.model.kv_heads, work.model.head_dim, work.model.family), (4, 16, crate::model::Family::Llama));
    assert_eq!((work.device.matmul_flops, work.sequence, work.model_name.as_str()), (1, 5, ""));
}

#[test]
fn every_fault_is_said_at_once() {
    let text = "schedule = \"2f2b\"\nshedule = 1\n[model]\nname = \"llama-9\"\nheads = 0\n[cluster]\ndevice = \"v100\"\nnodes = 2\n[parallel]\npipeline = 2000\n[training]\nmicrobatches = 1.5\ndtype = \"fp8\"\n[memory]\nlimit_bytes = \"a lot\"\n";
    let faults = faults(text);
    for expected in [
        "schedule: found \"2f2b\", accepted is one of best",
        "model.heads: found 0, accepted is a whole number from 1",
        "model.name: found \"llama-9\", accepted is one of tiny-llama, llama-2-7b",
        "training.microbatches: found 1.5, accepted is a whole number from 1 to 1000000",
        "training.dtype: found \"fp8\", accepted is one of bf16, f32, f64",
        "cluster.device: found \"v100\", accepted is one of a100-40",
        "cluster.nodes: found an unknown field, accepted is one of device, devices_per_node, link, node_link",
        "parallel.pipeline: found 2000, accepted is a whole number from 1 to 1024",
        "memory.limit_bytes: found \"a lot\", accepted is bytes from 1",
        "shedule: found an unknown field, accepted is one of name, schedule, messages, jitter_permille, target, problem",
    ] {
        assert!(faults.iter().any(|fault| fault.starts_with(expected)), "{expected} in {faults:#?}");
    }
    assert!(
        !faults.iter().any(|fault| fault.starts_with("training.sequence")),
        "the right name says it: {faults:#?}"
    );
}

/// 96 sequences over 4 copies of microbatches of 3 are 8 microbatches each.
#[test]
fn the_sequences_of_a_step_say_its_microbatches() {
    let text = SHORT.replace("pipeline = 4", "pipeline = 4\ndata = 4");
    let with = |said: &str| text.replace("microbatches = 8", &format!("microbatch_size = 3\n{said}"));
    assert_eq!(Spec::read(&with("global_batch_size = 96")), Spec::read(&with("microbatches = 8")));
    for (said, fault) in [
        (
            "global_batch_size = 97",
            "training.global_batch_size: found 97, accepted is a multiple of 12 (parallel.data",
        ),
        (
            "global_batch_size = 96\nmicrobatches = 8",
            "training.global_batch_size: found it together with `microbatches`",
        ),
        ("global_batch_size = 0", "training.global_batch_size: found 0, accepted is a whole number from 1"),
        ("global_batch_size = 12000012", "training.global_batch_size: found 12000012"),
    ] {
        let faults = faults(&with(said));
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{said}: {faults:?}");
    }
}

/// What is computed again is read as it is written, whatever the number of runs, up to each layer of the most by itself.
#[test]
fn what_each_layer_computes_again_is_read_back() {
    for layers in [126, MAX_LAYERS] {
        let text = SHORT.replace("name = \"llama-3-8b\"", &format!("name = \"llama-3-8b\"\nlayers = {layers}"));
        let mut spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
        let Work::Model(work) = &mut spec.work else { panic!("a model") };
        let choices = (0..layers).map(|layer| if layer % 2 == 0 { Recompute::Selective } else { Recompute::Latents });
        work.layout.recompute_layers = RecomputeLayers::Each(choices.collect());
        let written = spec.to_value().to_string();
        assert_eq!(Spec::read(&written).unwrap_or_else(|error| panic!("{error}")), spec);
    }
}

/// What does not suit the model is told whatever is wrong with the cluster and the ranks.
#[test]
fn what_does_not_suit_the_model_is_said_beside_the_rest() {
    let text = "[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"h1000\"\n[parallel]\npipeline = 0\ntensor = 7\ncontext = 3\n\
                [training]\nmicrobatches = 8\nsequence = 8193\n";
    let faults = faults(text);
    for field in ["cluster.device", "parallel.pipeline", "parallel.tensor", "parallel.context", "training.sequence"] {
        assert!(faults.iter().any(|fault| fault.starts_with(&format!("{field}: "))), "{field} in {faults:#?}");
    }
}

#[test]
fn what_cannot_go_together_is_a_fault() {
    for (from, to, expected) in [
        (
            "name = \"llama-3-8b\"",
            "name = \"llama-3-8b\"\nkv_heads = 5",
            "model.kv_heads: found 5, accepted is a divisor of heads (32), such as 4",
        ),
        ("name = \"llama-3-8b\"", "name = \"llama-3-8b\"\nheads = 24", "model.head_dim: found nothing"),
        (
            "name = \"llama-3-8b\"",
            "name = \"llama-3-8b\"\nhead_dim = 33",
            "model.head_dim: found 33, accepted is an even number",
        ),
        ("pipeline = 4", "pipeline = 33", "parallel.pipeline: found 33, accepted is at most 32, the layers"),
        (
            "microbatches = 8",
            "microbatches = 8\nmicrobatch_size = 60000\nsequence = 60000",
            "training.microbatch_size: found 3600000000 tokens in a microbatch",
        ),
        (
            "microbatches = 8",
            "microbatches = 8\nsequence = 8193",
            "training.sequence: found 8193, accepted is at most 8192",
        ),
        (
            "device = \"a100-80\"",
            "device = \"a100-80\"\nlink = \"wire\"",
            "cluster.link: found \"wire\", accepted is one of shared-memory",
        ),
        ("[model]", "[problem]\nranks = 1\n[model]", "model: found it together with `problem`"),
        ("[parallel]\npipeline = 4\n", "", "parallel: found nothing, accepted is a table with at least `pipeline`"),
        (
            "device = \"a100-80\"",
            "device = { name = \"mine\", memory_bytes = \"1 GB\" }",
            "cluster.device.name: found \"mine\"",
        ),
        ("microbatches = 8", "microbatches = nan", "training.microbatches: found \"NaN\""),
    ] {
        let text = SHORT.replace(from, to);
        let faults = faults(&text);
        assert!(faults.iter().any(|fault| fault.starts_with(expected)), "{expected} in {faults:#?}");
    }
}

#[test]
fn a_bare_problem_is_a_spec_of_typed_costs() {
    let text = r#"{ "ranks": 4, "chunks": 2, "microbatches": 8, "placement": "v",
        "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
        "transfer_ns": 5, "static_bytes": 0, "limit_bytes": 16, "objective": "longest_span" }"#;
    let spec = Spec::read(text).unwrap();
    let Work::Typed(statement) = &spec.work else { panic!("{spec:?}") };
    assert_eq!(statement.placement, PlacementChoice::Fixed(crate::problem::placement::Placement::V));
    assert_eq!((spec.schedule.as_str(), spec.objective()), ("best", Objective::LongestSpan));
    // Bytes may be text, by rank, too, as the schema says.
    let with_text = text
        .replace("\"static_bytes\": 0, \"limit_bytes\": 16", "\"static_bytes\": \"0 B\", \"limit_bytes\": \"16 B\"");
    assert_eq!(Spec::read(&with_text).as_ref(), Ok(&spec));
    let by_rank = text.replace("\"limit_bytes\": 16", "\"limit_bytes\": [16, \"1 KiB\", null, \"0.5 KiB\"]");
    let Ok(Spec { work: Work::Typed(statement), .. }) = Spec::read(&by_rank) else { panic!("{by_rank}") };
    assert_eq!(statement.limit_bytes, [Some(16), Some(1024), None, Some(512)]);
    assert!(faults(&text.replace("16,", "\"16 apples\","))[0].contains("limit_bytes: found \"16 apples\""));
    // The same costs in a spec, in TOML.
    let toml = "schedule = \"best\"\n[problem]\nranks = 4\nchunks = 2\nmicrobatches = 8\nplacement = \"v\"\ntransfer_ns = 5\nlimit_bytes = 16\nobjective = \"longest_span\"\n[problem.stages]\nforward_ns = 50\nbackward_input_ns = 55\nbackward_weight_ns = 45\nforward_bytes = 2\nbackward_input_bytes = -1\nbackward_weight_bytes = -1\n";
    assert_eq!(Spec::read(toml), Ok(spec));
}

#[test]
fn broken_text_is_shown_with_line_and_column() {
    for (text, format, line, column) in [
        ("name = \"x\"\n[model\n", "TOML", 2, 7),
        ("name = \"é\" é", "TOML", 1, 12),
        ("{\n  \"name\": \"x\",\n}", "JSON", 3, 1),
        ("{", "JSON", 1, 1),
    ] {
        match Spec::read(text) {
            Err(SpecError::Syntax(syntax)) => {
                assert_eq!((syntax.format, syntax.line, syntax.column), (format, line, column), "{syntax}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn an_empty_text_asks_for_what_is_needed() {
    assert_eq!(faults("").len(), 4);
}

#[test]
fn a_list_is_named_as_one() {
    assert_eq!(faults("[1, 2]"), ["the whole input: found a list, accepted is an object of JSON or tables of TOML"]);
    // An empty list, as TOML, would be a table without a name.
    assert_eq!(faults("[]").len(), 1);
    assert!(matches!(Spec::read("[model"), Err(SpecError::Syntax(Syntax { format: "TOML", .. }))));
}

/// Words that Python writes for numbers may stand in a spec, as in a `config.json` within it, and are no numbers.
#[test]
fn words_of_python_are_no_numbers() {
    let read = crate::spec::text::parse(r#"{"model": {"config": {"limits": [0.0, Infinity]}}}"#).unwrap();
    assert_eq!(read["model"]["config"]["limits"], json!([0.0, "Infinity"]));
    let found =
        faults(r#"{"model": {"name": "llama-2-7b"}, "cluster": {"device": "h100"}, "training": {"sequence": NaN}}"#);
    assert!(found.iter().any(|fault| fault.starts_with("training.sequence: found \"NaN\"")), "{found:?}");
}

#[test]
fn the_canonical_text_says_every_default() {
    let value = model_spec().to_value();
    assert_eq!(value["training"]["sequence"], json!(4096));
    let catalog = crate::hardware::cluster::find("h100").expect("in the catalog");
    assert_eq!(value["cluster"]["device"]["memory_bytes"], json!(catalog.memory_bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_spec_reads_back(spec in spec()) {
        let text = spec.to_json();
        let read = Spec::read(&text).map_err(|error| error.to_string());
        prop_assert_eq!(read.as_ref().map(Spec::to_json), Ok(text));
    }

    /// Whatever a plan says of its spec, editors and validators take.
    #[test]
    fn the_schema_has_all_that_is_written(spec in spec()) {
        static VALIDATOR: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
            let mut schema: Value = serde_json::from_str(crate::plan::SCHEMA).unwrap();
            schema = json!({ "$ref": "#/$defs/spec", "$defs": schema["$defs"].take() });
            jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"))
        });
        let faults: Vec<String> = VALIDATOR.iter_errors(&spec.to_value()).map(|error| error.to_string()).collect();
        prop_assert!(faults.is_empty(), "{:?} in {}", faults, spec.to_json());
    }

    #[test]
    fn a_bare_problem_and_one_in_a_spec_are_the_same(problem in problem()) {
        let bare = Spec::read(&problem.to_string());
        let inside = Spec::read(&json!({ "problem": problem }).to_string());
        prop_assert!(bare.is_ok());
        prop_assert_eq!(bare, inside);
    }

    #[test]
    fn no_text_makes_it_panic(text in damaged_text()) {
        if let Ok(spec) = Spec::read(&text) {
            prop_assert_eq!(Spec::read(&spec.to_json()).map(|again| again.to_json()), Ok(spec.to_json()));
        }
    }
}

/// Which of two values was meant nobody can say, in JSON as in TOML.
#[test]
fn a_field_that_stands_twice_is_refused_with_its_place() {
    let stage = "\"forward_ns\": 1, \"backward_input_ns\": 2";
    for (text, field) in [
        (format!("{{\"ranks\": 2, \"ranks\": 3, \"microbatches\": 4, \"stages\": {{{stage}}}}}"), "\"ranks\""),
        (
            format!("{{\"ranks\": 2, \"microbatches\": 4, \"stages\": {{{stage}, \"forward_ns\": 5}}}}"),
            "\"forward_ns\"",
        ),
    ] {
        let error = Spec::read(&text).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains("twice") && error.contains("line 1, column"), "{error}");
    }
    let error = Spec::read("model.name = \"llama-2-7b\"\nmodel.name = \"llama-2-13b\"").unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("duplicate"), "{error}");
}

/// The field that has most of what is too much is the one that is named.
#[test]
fn times_that_overflow_name_hops_or_stages() {
    for (forward, hop, field) in [(1u64 << 53, 0, "stages: found"), (1, 1u64 << 53, "transfer_ns: found")] {
        let text = format!(
            "{{\"ranks\": 2, \"microbatches\": 1000, \"transfer_ns\": {hop}, \
             \"stages\": {{\"forward_ns\": {forward}, \"backward_input_ns\": 2}}}}"
        );
        let error = Spec::read(&text).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// Formats of products, gradients and moments go beside bf16 weights, on devices that have them.
#[test]
fn number_formats_are_written_linked_and_held_against_each_other() {
    let text = |device: &str, parallel: &str, training: &str| {
        format!(
            "[model]\nname = \"llama-2-7b\"\n[cluster]\n{device}\n[parallel]\npipeline = 4\n{parallel}\n\
             [training]\nmicrobatches = 8\n{training}"
        )
    };
    let all = "matmul_dtype = \"fp8\"\ngradients_dtype = \"bf16\"\nmoments_dtype = \"bf16\"";
    let own = "device = { name = \"own\", matmul_flops = 1000000000000000, fp8_flops = 1900000000000000, \
               memory_bytes_per_s = 3000000000000, memory_bytes = 80000000000 }";
    for device in ["device = \"h100\"", "device = \"b200\"", own] {
        let text = text(device, "zero = 1", all);
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
        let work = model_work(&text);
        assert!(
            work.layout.form.matmul_dtype == Some(Dtype::Fp8)
                && work.layout.form.bf16_gradients
                && work.layout.bf16_moments
        );
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    }
    for dtype in Dtype::OF_MATMULS {
        let own = own.replace("fp8_flops", "fp4_flops = 3700000000000000, fp8_flops");
        for device in ["device = \"gb300\"", "device = \"mi355x\"", &own] {
            let text = text(device, "zero = 1", &format!("matmul_dtype = \"{}\"", dtype.name()));
            let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(model_work(&text).layout.form.matmul_dtype, Some(dtype));
            assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
            assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
        }
    }
    for optimizer in crate::graph::optimizer::Optimizer::ALL {
        let text = text("device = \"h100\"", "zero = 1", &format!("optimizer = \"{}\"", optimizer.name()));
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model_work(&text).layout.optimizer, optimizer);
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    }
    for (device, parallel, training, told) in [
        (
            "h100",
            "",
            "optimizer = \"sgd\"\nmoments_dtype = \"bf16\"",
            "training.moments_dtype: found bf16, accepted is nothing, because training.optimizer is sgd",
        ),
        ("h100", "", "optimizer = \"lion\"", "training.optimizer: found \"lion\", accepted is one of adamw"),
        ("a100-80", "", all, "cluster.device.fp8_flops: found 0, accepted is a rate"),
        (
            "h100",
            "zero = 3\ndata = 2",
            all,
            "parallel.zero: found 3, accepted is 0 to 2, because training.matmul_dtype is fp8",
        ),
        ("h100", "", "dtype = \"f32\"\nmoments_dtype = \"bf16\"", "training.moments_dtype: found bf16"),
        ("h100", "", "dtype = \"f32\"\nmatmul_dtype = \"fp8\"", "training.matmul_dtype: found fp8"),
        ("h100", "", "matmul_dtype = \"fp4\"", "training.matmul_dtype: found \"fp4\", accepted is"),
        ("h100", "", "matmul_dtype = \"nvfp4\"", "cluster.device.fp4_flops: found 0, accepted is a rate"),
        ("h200", "", "matmul_dtype = \"mxfp8\"", "cluster.device.fp4_flops: found 0, accepted is a rate"),
        ("tpu-v5p", "", "dtype = \"f64\"", "training.dtype: found f64, accepted is another format"),
    ] {
        let found = faults(&text(&format!("device = \"{device}\""), parallel, training));
        assert!(found.iter().any(|fault| fault.contains(told)), "{told}: {found:?}");
    }
}

/// Frozen weights and adapters, by the names that others have, with their defaults; and what does not suit the model.
#[test]
fn post_training_is_read_written_and_linked() {
    let text = |training: &str| {
        format!(
            "[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n[training]\n\
             microbatches = 8\n{training}\n"
        )
    };
    let plain = Spec::read(&text("")).unwrap();
    assert!(!plain.to_json().contains("frozen") && !plain.to_json().contains("lora"));
    for (training, said) in [
        ("frozen = [\"layers.3-5\", \"norms\", \"layers.0-2\"]", "all but norms, layers.0-5"),
        ("frozen = \"embedding, layers.7\"", "all but embedding, layers.7"),
        ("lora = { rank = 16 }", "LoRA of rank 16, alpha 16, on all-linear"),
        (
            "lora = { r = 8, lora_alpha = 32, target_modules = [\"v_proj\", \"q_proj\"] }",
            "LoRA of rank 8, alpha 32, on q, v",
        ),
        (
            "lora = { dim = 32, targets = [\"linear_qkv\", \"linear_fc2\"] }",
            "LoRA of rank 32, alpha 32, on q, k, v, down",
        ),
    ] {
        let spec = Spec::read(&text(training)).unwrap_or_else(|error| panic!("{error}"));
        let form = model_work(&text(training)).layout.form;
        assert_eq!(crate::graph::post_training::text(&form.frozen, form.lora.as_ref()).as_deref(), Some(said));
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    }
    assert_eq!(Spec::read(&text("lora = \"none\"\nfrozen = []")).as_ref(), Ok(&plain));
    for (training, told) in [
        ("frozen = [\"lm_head\"]", "training.frozen[0]: found \"lm_head\", accepted is one of embedding"),
        ("frozen = [\"layers.30-40\"]", "training.frozen: found layer 40, accepted is layers from 0 to 31"),
        ("frozen = [\"experts\"]", "training.frozen: found experts, accepted is a module that the model has"),
        (
            "frozen = [\"embedding\", \"head\", \"norms\", \"layers.0-31\"]",
            "training.frozen: found every weight, accepted is a list that leaves something to train",
        ),
        ("frozen = [\"norms\"]\nlora = { rank = 8 }", "training.frozen: found norms, accepted is nothing, because"),
        ("lora = { alpha = 8 }", "training.lora.rank: found nothing"),
        ("lora = { rank = 0 }", "training.lora.rank: found 0"),
        (
            "lora = { rank = 8, targets = [\"lm_head\"] }",
            "training.lora.targets[0]: found \"lm_head\", accepted is q, k",
        ),
        ("lora = { rank = 8, targets = [\"kv_a\"] }", "training.lora.targets: found kv_a, accepted is matrices that"),
        ("lora = { rank = 8, targets = [] }", "training.lora.targets: found no target"),
        ("lora = { rank = 8, dropout = 0.1 }", "training.lora.dropout: found an unknown field"),
        ("lora = { rank = 8, use_dora = true }", "training.lora.use_dora: found an unknown field"),
    ] {
        let found = faults(&text(training));
        assert!(found.iter().any(|fault| fault.contains(told)), "{told}: {found:?}");
    }
    let tied = text("frozen = [\"head\"]").replace("name =", "tied = true\nname =");
    assert!(faults(&tied)[0].contains("embedding and head together"), "{:?}", faults(&tied));
}

/// Layers that keep what they keep in the host's memory: none, some at the start of each stage, or all; and how fast that is
/// reached, which the catalog knows of its devices, and is an A100's of others.
#[test]
fn what_is_kept_on_the_host_is_written_and_linked() {
    let text = |device: &str, training: &str| {
        format!(
            "[model]\nname = \"llama-2-7b\"\n[cluster]\n{device}\n[parallel]\npipeline = 4\n[training]\nmicrobatches = 8\n{training}"
        )
    };
    let own = "device = { name = \"own\", matmul_flops = 1000000000000000, memory_bytes_per_s = 3000000000000, memory_bytes = 80000000000";
    for (said, offload) in [
        ("", Offload::None),
        ("offload = \"none\"", Offload::None),
        ("offload = 3", Offload::First(3)),
        ("offload = \"3\"", Offload::First(3)),
        ("offload = \"all\"", Offload::All),
        ("offload = \"scheduled\"", Offload::Scheduled),
        ("offload_optimizer = true", Offload::None),
    ] {
        for (device, rate) in [
            ("device = \"h100\"".to_string(), 52_000_000_000),
            (format!("{own} }}"), 25_000_000_000),
            (format!("{own}, host_bytes_per_s = \"100 GB\" }}"), 100_000_000_000),
        ] {
            let text = text(&device, said);
            let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
            let work = model_work(&text);
            assert_eq!((work.layout.form.offload, work.device.host_bytes_per_s), (offload, rate), "{text}");
            assert_eq!(work.layout.offload_optimizer, said.contains("optimizer"));
            assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
            assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
        }
    }
    for said in [
        "offload = 0",
        "offload = \"some\"",
        "offload = 1.5",
        "offload = true",
        "offload = \"-1\"",
        "offload = 99999",
    ] {
        let found = faults(&text("device = \"h100\"", said));
        let told = "accepted is none, all, fit, scheduled, or the number of first layers of each stage, from 1 to";
        let here = found.iter().any(|fault| fault.starts_with("training.offload: found") && fault.contains(told));
        assert!(here, "{said}: {found:?}");
    }
    let found = faults(&text("device = \"h100\"", "offload_optimizer = 1"));
    assert!(found.iter().any(|fault| fault.starts_with("training.offload_optimizer: found 1")), "{found:?}");
    let found = faults(&text(&format!("{own}, host_bytes_per_s = 0 }}"), ""));
    assert!(found.iter().any(|fault| fault.starts_with("cluster.device.host_bytes_per_s: found 0")), "{found:?}");
}

/// A limit beyond the device's memory, and rates written in billions as if in single ones, are told with their fields; the
/// catalog's own figures never are.
#[test]
fn what_is_probably_not_meant_is_told() {
    let unlikely = |text: &str| Spec::read(text).unwrap().unlikely();
    assert!(unlikely(SHORT).is_empty());
    let text = SHORT.replace(
        "device = \"a100-80\"",
        "device = { name = \"a100-80\", memory_bytes_per_s = 2039 }\nnode_link = { bytes_per_s = 50 }\n[memory]\nlimit_bytes = \"100 GiB\"",
    );
    let told = unlikely(&text);
    let fields: Vec<&str> = told.iter().filter_map(|said| said.split(':').next()).collect();
    assert_eq!(
        fields,
        ["memory.limit_bytes", "cluster.device.memory_bytes_per_s", "cluster.node_link.bytes_per_s"],
        "{told:?}"
    );
    for device in crate::hardware::cluster::catalog() {
        let told = unlikely(&SHORT.replace("a100-80", device.name));
        assert!(told.is_empty(), "{}: {told:?}", device.name);
    }
    // Schedules of several chunks have no fewer.
    for (schedule, tells) in [("interleaved-1f1b", true), ("zb-v", true), ("1f1b", false), ("best", false)] {
        let one = SHORT.replace("pipeline = 4", "pipeline = 4\nchunks = 1");
        let one = format!("schedule = \"{schedule}\"\n{one}");
        assert_eq!(unlikely(&one).len(), usize::from(tells), "{schedule}");
    }
}

/// A tower of a `config.json`, or by hand: read, written, linked, and refused where it does not suit.
#[test]
fn a_vision_tower_is_read_written_and_linked() {
    let by_hand = "encoder = \"siglip\", layers = 27, hidden = 1152, heads = 16, ffn = 4304, patch = 14, merge = 16, \
                   tokens = 256";
    let text = |vision: &str, training: &str| {
        format!(
            "[model]\nname = \"gemma-2-9b\"\n{vision}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n[training]\n\
             microbatches = 8\nsequence = 4096\n{training}\n"
        )
    };
    let plain = Spec::read(&text("", "")).unwrap();
    assert!(!plain.to_json().contains("vision"));
    assert_eq!(Spec::read(&text("vision = \"none\"", "")).as_ref(), Ok(&plain));
    let said = format!("vision = {{ images = 2, {by_hand} }}");
    let spec = Spec::read(&text(&said, "frozen = [\"vision\"]")).unwrap_or_else(|faults| panic!("{faults}"));
    let Work::Model(work) = &spec.work else { panic!("a model") };
    let vision = work.model.variant.vision.unwrap();
    assert_eq!((vision.positions, vision.patches(), vision.images), (4096, 4096, 2));
    assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
    assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    for (vision, training, told) in [
        ("vision = { images = 2 }".to_string(), "", "model.vision.encoder: found nothing"),
        (
            format!("vision = {{ images = 17, {by_hand} }}"),
            "",
            "model.vision.images: found 17, accepted is at most 16",
        ),
        (format!("vision = {{ {by_hand} }}"), "", "model.vision.images: found nothing"),
        (said.replace("heads = 16", "heads = 7"), "", "model.vision.heads: found 7"),
        (
            String::new(),
            "frozen = [\"vision\"]",
            "training.frozen: found vision, accepted is a module that the model has",
        ),
    ] {
        let found = Spec::read(&text(&vision, training)).map(|_| ()).unwrap_err().to_string();
        assert!(found.contains(told), "{told}: {found}");
    }
    let read = |vision: &str| {
        let config = include_str!("../../../../tests/reference/vision_towers.json");
        let config: serde_json::Value = serde_json::from_str(config).unwrap();
        let rows = config["towers"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == "qwen2.5-vl-7b").unwrap();
        let vision: serde_json::Value = serde_json::from_str(vision).unwrap();
        Spec::from_value(&serde_json::json!({
            "model": { "config": row["config"], "vision": vision }, "cluster": { "device": "h100" },
            "parallel": { "pipeline": 4 }, "training": { "microbatches": 8, "sequence": 4096 },
        }))
    };
    let Ok(Spec { work: Work::Model(work), .. }) = read("{ \"images\": 1, \"tokens\": 1296 }") else {
        panic!("a model")
    };
    assert_eq!(work.model.vision_parameters(), 676_550_144);
    let error = read("{ \"images\": 1 }").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("model.vision.tokens: found nothing"), "{error}");
}
