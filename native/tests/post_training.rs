//! Frozen weights and LoRA: whether ranks train as one does, what stays as it was, and what checkpoints hold.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Expected, options, published, resumes_on_any, train, trains_as_one_rank, work};
use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::evaluate::evaluate;
use pipeplan::runner::{Device, Precision, RunError, RunOptions, Silent, Workload, run};
use pipeplan::transport::Buffer;
use pipeplan_core::graph::form::{Form, Recompute};
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::post_training::{Frozen, Lora, Targets};
use pipeplan_core::model::{Experts, Family, Latent, Routing, Variant};
use pipeplan_core::spec::ModelWork;
use safetensors::SafeTensors;

fn frozen(texts: &[&str]) -> Form {
    let mut frozen = Frozen::NONE;
    texts.iter().for_each(|text| frozen.add(text).expect("a module or layers"));
    Form { frozen, ..Form::default() }
}

fn lora(rank: u32, alpha: u32, targets: &[&str]) -> Form {
    let mut of = Targets::NONE;
    targets.iter().for_each(|name| of.add(name).expect("a target"));
    Form { lora: Some(Lora { rank, alpha, targets: of }), ..Form::default() }
}

/// `work` on so many ranks, with what `form` trains, and a rate at which adapters leave 0.
fn training(ranks: usize, form: Form) -> ModelWork {
    let mut work = work(ranks, 8);
    (work.layout.form.frozen, work.layout.form.lora) = (form.frozen, form.lora);
    work
}

fn experts() -> Experts {
    Experts {
        count: 4,
        active: 2,
        ffn: 12,
        shared_ffn: 8,
        shared_gate: false,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    }
}

/// Stages that train nothing, or whose input has no gradient, in schedules of every kind: B and W apart and fused, one way
/// and two, with one stage a rank and several.
#[test]
fn stages_with_frozen_weights_train_as_one_rank() {
    let mut expected = Expected::default();
    let lists: [&[&str]; 5] = [
        &["embedding", "layers.0-3"],
        &["embedding", "layers.0-6", "head"],
        &["layers.2-5"],
        &["attention", "norms"],
        &["embedding", "attention", "mlp", "norms", "layers.3"],
    ];
    let names = ["1f1b", "zb-v", "interleaved-1f1b", "dualpipe", "zb-h1", "chimera", "gpipe"];
    for (at, texts) in lists.into_iter().enumerate() {
        for ranks in [2, 4] {
            let name = names[(2 * at + ranks / 4) % names.len()];
            let work = training(ranks, frozen(texts));
            assert!(trains_as_one_rank(&work, name, &options(8), &mut expected), "{name}, {texts:?}");
        }
    }
}

/// Tensor parallel with and without sequence parallel, replicas with and without a shard of the states, context parallel,
/// recomputation, clipping, and reductions that overlap compute.
#[test]
fn layouts_of_adapters_train_as_one_rank() {
    let mut expected = Expected::default();
    let all = lora(4, 8, &["all-linear"]);
    type Change = fn(&mut ModelWork, &mut RunOptions);
    let cases: [(&str, usize, Form, Change); 9] = [
        ("1f1b", 2, all, |_, _| {}),
        ("zb-v", 2, lora(3, 3, &["q_proj", "v_proj"]), |_, _| {}),
        ("1f1b", 1, all, |work, _| work.layout.form.tensor = 2),
        ("zb-h1", 2, all, |work, options| {
            (work.layout.form.tensor, work.layout.form.sequence_parallel) = (2, true);
            options.clip_norm = Some(0.05);
        }),
        ("1f1b", 1, all, |work, _| {
            // Two devices hold each head of keys.
            (work.layout.form.tensor, work.layout.form.async_reduce) = (4, true);
            work.layout.form.recompute = Recompute::Full;
        }),
        ("interleaved-1f1b", 2, all, |work, options| {
            (work.layout.data, work.layout.zero, work.microbatches) = (2, 1, 4);
            work.layout.form.recompute = Recompute::Cheap;
            options.clip_norm = Some(0.05);
        }),
        ("1f1b", 2, all, |work, _| (work.layout.data, work.microbatches) = (2, 4)),
        ("zb-h1", 2, all, |work, _| work.layout.form.context = 2),
        ("dualpipe", 2, lora(2, 4, &["linear_qkv", "linear_fc2"]), |work, _| work.model.tied = true),
    ];
    for (name, ranks, form, change) in cases {
        let (mut work, mut options) = (training(ranks, form), options(8));
        change(&mut work, &mut options);
        assert!(trains_as_one_rank(&work, name, &options, &mut expected), "{name}, {:?}", work.layout.form);
    }
}

/// Adapters of experts lie where their experts do; those of latents, of a GPT and of a tied model train too, and other
/// optimizers update them.
#[test]
fn adapters_of_other_families_train_as_one_rank() {
    let mut expected = Expected::default();
    let all = lora(3, 6, &["all-linear"]);
    let mixture = Variant { experts: Some(experts()), ..Variant::USUAL };
    let mut of_experts = training(2, all);
    of_experts.model.variant = mixture;
    (of_experts.layout.data, of_experts.microbatches) = (2, 4);
    (of_experts.layout.form.expert, of_experts.layout.form.imbalance_permille) = (2, 2000);
    let mut of_shares = training(1, all);
    of_shares.model.variant = mixture;
    of_shares.layout.form.tensor = 2;
    let mut of_whole = of_experts.clone();
    of_whole.layout.data = 1;
    of_whole.microbatches = 8;
    (of_whole.layout.form.tensor, of_whole.layout.form.sequence_parallel) = (2, true);
    of_whole.layout.form.whole_experts = true;
    let mut of_latents = training(2, all);
    (of_latents.model.kv_heads, of_latents.model.head_dim) = (4, 10);
    of_latents.model.variant.latent =
        Some(Latent { query_rank: 12, key_value_rank: 10, rope_width: 4, value_width: 6 });
    of_latents.layout.form.tensor = 2;
    let mut of_gpt = training(2, all);
    (of_gpt.model.family, of_gpt.model.kv_heads, of_gpt.model.tied) = (Family::Gpt, 4, true);
    let mut frozen_experts = training(2, frozen(&["experts", "router", "embedding"]));
    frozen_experts.model.variant = mixture;
    (frozen_experts.layout.data, frozen_experts.microbatches) = (2, 4);
    (frozen_experts.layout.form.expert, frozen_experts.layout.form.imbalance_permille) = (2, 2000);
    let mut by_sgd = training(2, all);
    by_sgd.layout.optimizer = Optimizer::SgdMomentum;
    let mut tied = training(2, frozen(&["embedding", "head"]));
    tied.model.tied = true;
    for (what, work) in [
        ("experts", of_experts),
        ("shares of experts", of_shares),
        ("whole experts", of_whole),
        ("latents", of_latents),
        ("GPT", of_gpt),
        ("frozen experts", frozen_experts),
        ("SGD", by_sgd),
        ("tied", tied),
    ] {
        let clipped = RunOptions { clip_norm: Some(0.05), ..options(6) };
        assert!(trains_as_one_rank(&work, "zb-h1", &clipped, &mut expected), "{what}");
    }
}

fn weights(workload: &Workload, steps: u32) -> BTreeMap<String, Buffer> {
    train(workload, &options(steps)).weights
}

/// All frozen weights are, bit for bit, what a run starts with, which does not hang on what trains; all others are not.
#[test]
fn frozen_weights_keep_every_bit() {
    // With a rate of 0 and no decay nothing changes: these are the weights that a run starts with.
    let mut still = options(1);
    (still.optimizer.learning_rate, still.optimizer.weight_decay) = (1e-300, 0.0);
    let start = train(&published(&work(2, 8), "1f1b", Precision::Double).expect("it exists"), &still).weights;
    for form in [frozen(&["embedding", "layers.0-3", "norms"]), lora(4, 4, &["all-linear"])] {
        let work = training(2, form);
        let workload = published(&work, "1f1b", Precision::Double).expect("it exists");
        let end = weights(&workload, 6);
        let mut counts = [0, 0];
        for (name, values) in &end {
            let adapter = name.contains(".lora_");
            let is_frozen = !adapter && work.layout.form.is_frozen(name, layer_of(name));
            counts[usize::from(is_frozen)] += 1;
            match start.get(name) {
                Some(first) => assert_eq!(values == first, is_frozen, "{name}"),
                None => assert!(adapter && values != &Buffer::F64(vec![0.0; values.values()]), "{name}"),
            }
        }
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    }
}

fn layer_of(name: &str) -> Option<u32> {
    name.split_once(".layers.").and_then(|(_, rest)| rest.split('.').next()?.parse().ok())
}

/// Adapters start as nothing: the first loss is that of the model without them. Then they learn.
#[test]
fn adapters_start_from_the_base_model_and_learn() {
    let plain = published(&work(2, 8), "1f1b", Precision::Double).expect("it exists");
    let with = published(&training(2, lora(8, 16, &["all-linear"])), "1f1b", Precision::Double).expect("it exists");
    let mut options = options(20);
    options.optimizer.learning_rate = 1e-2;
    let (plain, with) = (train(&plain, &options), train(&with, &options));
    let (plain, with) = (plain.losses(), with.losses());
    assert!((plain[0] - with[0]).abs() < 1e-12, "{} {}", plain[0], with[0]);
    assert!(with[19] < with[0] - 0.05, "{with:?}");
}

#[test]
fn runs_with_adapters_and_frozen_weights_resume_on_any_layout() {
    for form in [lora(4, 8, &["q", "v", "down"]), frozen(&["embedding", "layers.0-1", "norms"])] {
        let planned = |(ranks, data, tensor, name): (usize, u32, u32, &str)| {
            let mut work = training(ranks, form);
            (work.layout.data, work.microbatches) = (data, 8 / data);
            (work.layout.zero, work.layout.form.tensor) = (u32::from(data > 1), tensor);
            published(&work, name, Precision::Double).unwrap_or_else(|| panic!("{name} exists"))
        };
        resumes_on_any(&[(2, 1, 1, "1f1b"), (1, 2, 2, "gpipe"), (2, 2, 1, "zb-h1")], planned, 5);
    }
}

/// Experts that a checkpoint has one by one, as Mixtral's.
#[test]
fn adapters_of_experts_resume_on_any_layout() {
    let planned = |(data, expert, tensor): (u32, u32, u32)| {
        let mut work = training(2, lora(2, 4, &["all-linear"]));
        let experts = Experts { shared_ffn: 0, dense_layers: 0, ..experts() };
        work.model.variant.experts = Some(experts);
        (work.layout.data, work.microbatches) = (data, 8 / data);
        (work.layout.form.expert, work.layout.form.imbalance_permille) = (expert, 2000);
        (work.layout.form.tensor, work.layout.zero) = (tensor, u32::from(data > 1));
        published(&work, "1f1b", Precision::Double).expect("it exists")
    };
    resumes_on_any(&[(1, 1, 1), (2, 2, 1), (2, 2, 2)], planned, 5);
}

fn saved(workload: &Workload, steps: u32, folder: &Path) -> Checkpoint {
    let saving = Some(Saving { folder: folder.to_path_buf(), every: 0 });
    train(workload, &RunOptions { saving, ..options(steps) });
    Checkpoint::open(folder).expect("a checkpoint")
}

/// A checkpoint has the base model and its adapters; a run that trains something else does not go on from it. What is
/// evaluated is the model with its adapters: the loss of a text is the same whatever the layout that wrote it, and another
/// one than without the steps.
#[test]
fn checkpoints_hold_adapters_and_say_what_trained() {
    let form = lora(4, 16, &["all-linear"]);
    let planned =
        |ranks: usize, form: Form| published(&training(ranks, form), "1f1b", Precision::Double).expect("it exists");
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let [one, two] = [1, 2].map(|ranks| saved(&planned(ranks, form), 4, folders[ranks - 1].path()));
    let adapters = one.manifest.lora.clone().expect("it has some");
    assert_eq!((adapters.rank, adapters.alpha, &adapters.targets[..]), (4, 16, &["all-linear".to_string()][..]));
    assert_eq!(one.manifest.version, 2);
    let names = one.manifest.weights.keys().filter(|name| name.contains(".lora_"));
    assert_eq!(names.count(), 8 * 7 * 2, "A and B of seven matrices in eight layers");
    // PEFT's files have the same numbers, by its names.
    let peft = one.folder.join("adapter");
    let about: serde_json::Value =
        serde_json::from_slice(&std::fs::read(peft.join("adapter_config.json")).expect("it is there")).expect("JSON");
    assert_eq!((&about["peft_type"], &about["r"], &about["lora_alpha"]), (&"LORA".into(), &4.into(), &16.into()));
    let modules = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(about["target_modules"], serde_json::json!(modules));
    let bytes = [peft.join("adapter_model.safetensors"), one.folder.join("model.safetensors")]
        .map(|path| std::fs::read(path).expect("it is there"));
    let [adapter, model] = [&bytes[0], &bytes[1]].map(|bytes| SafeTensors::deserialize(bytes).expect("tensors"));
    assert_eq!(adapter.len(), 8 * 7 * 2);
    for (name, tensor) in adapter.tensors() {
        let own = name.strip_prefix("base_model.model.").expect("PEFT's prefix");
        let of_model = model.tensor(own).expect("the model has it");
        assert_eq!((tensor.shape(), tensor.data()), (of_model.shape(), of_model.data()), "{name}");
    }
    let loss = |checkpoint: &Checkpoint| evaluate::<f64>(checkpoint, &common::text(), 3).expect("it computes").loss;
    assert!((loss(&one) - loss(&two)).abs() < 1e-10);
    let mut without = one.clone();
    without.manifest.lora = None;
    assert!((loss(&one) - loss(&without)).abs() > 1e-9, "adapters count");

    let refused = |form: Form| {
        let options = RunOptions { resume: Some(one.clone()), ..options(6) };
        match run(&planned(1, form), &options, &mut Silent) {
            Err(RunError::Refused(refusal)) => refusal.to_string(),
            other => panic!("it is refused: {:?}", other.map(|_| ())),
        }
    };
    for (form, said) in [
        (
            lora(4, 8, &["all-linear"]),
            "its training.lora is rank 4, alpha 16, all-linear, but this run's is rank 4, alpha 8",
        ),
        (Form::default(), "but this run's is none"),
        (frozen(&["norms"]), "its list of frozen weights (training.frozen) is none, but this run's is norms"),
    ] {
        let found = refused(form);
        assert!(found.contains(said), "{said}: {found}");
    }
}

/// GPUs refuse it by name, before anything starts.
#[test]
fn cards_refuse_what_does_not_train() {
    for form in [lora(4, 8, &["q"]), frozen(&["norms"])] {
        let workload = published(&training(2, form), "1f1b", Precision::Single).expect("it exists");
        let options = RunOptions { device: Device::Emulated, ..options(1) };
        match run(&workload, &options, &mut Silent) {
            Err(RunError::Refused(refusal)) => {
                assert!(refusal.to_string().contains("frozen weights (training.frozen, training.lora)"), "{refusal}");
            }
            other => panic!("it is refused: {:?}", other.map(|_| ())),
        }
    }
}
