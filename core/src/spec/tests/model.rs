//! The table `model`: read, written and linked.

use std::format;
use std::string::ToString;

use super::{faults, model_work};
use crate::model::{Arrangement, Routing, Scores};
use crate::spec::{Spec, Work};

#[test]
fn routing_is_read_written_and_linked() {
    let spec = |model: &str| {
        let text = format!(
            "[model]\n{model}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n[training]\nmicrobatches = 8"
        );
        Spec::read(&text)
    };
    let routing = |spec: &Spec| {
        let Work::Model(work) = &spec.work else { panic!("a model") };
        work.model.variant.experts.map(|experts| experts.routing)
    };
    let known = spec("name = \"deepseek-v3\"").unwrap();
    let v3 = Routing {
        scores: Scores::Sigmoid,
        normed: true,
        factor: Some(2_500_000_000_000),
        groups: 8,
        active_groups: 4,
    };
    assert_eq!(routing(&known), Some(v3));
    let changed = spec(
        "name = \"deepseek-v3\"\nexperts = { scores = \"softmax\", factor = 1, groups = 16, active_groups = 2 }",
    );
    let changed = changed.unwrap();
    let softmax = Routing { scores: Scores::Softmax, normed: true, factor: None, groups: 16, active_groups: 2 };
    assert_eq!(routing(&changed), Some(softmax));
    for spec in [known, changed] {
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec));
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec));
    }
    for (model, field) in [
        ("groups = 3", "model.experts.groups"),
        ("groups = 65", "model.experts.groups"),
        ("groups = 64, active_groups = 1", "model.experts.active_groups"),
        ("active_groups = 9", "model.experts.active_groups"),
        ("factor = 1e9", "model.experts.factor"),
        ("scores = \"tanh\"", "model.experts.scores"),
    ] {
        let error = spec(&format!("name = \"deepseek-v3\"\nexperts = {{ {model} }}")).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn windows_are_read_written_and_linked() {
    let spec = |model: &str| {
        let text = format!(
            "[model]\n{model}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n[training]\nmicrobatches = 8"
        );
        Spec::read(&text).unwrap_or_else(|error| panic!("{error}"))
    };
    let window = |spec: &Spec| match &spec.work {
        Work::Model(work) => work.model.variant.window.map(|window| (window.tokens, window.full_every)),
        Work::Typed(_) => None,
    };
    for (model, expected) in [
        ("name = \"mistral-7b\"", Some((4096, 0))),
        ("name = \"gemma-2-9b\"", Some((4096, 2))),
        ("name = \"gemma-2-9b\"\nwindow = { tokens = 512 }", Some((512, 2))),
        ("name = \"gemma-2-9b\"\nwindow = \"none\"", None),
        ("name = \"llama-3-8b\"\nwindow = { tokens = 1024, full_every = 6 }", Some((1024, 6))),
    ] {
        let spec = spec(model);
        assert_eq!(window(&spec), expected, "{model}");
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec), "{model}");
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec), "{model}");
    }
}

#[test]
fn layers_with_experts_are_read_written_and_linked() {
    let spec = |model: &str| {
        let text = format!(
            "[model]\n{model}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\n[training]\nmicrobatches = 8"
        );
        Spec::read(&text)
    };
    let layers = |spec: &Spec| match &spec.work {
        Work::Model(work) => (0..work.model.layers).filter(|layer| work.model.has_experts(*layer)).count(),
        Work::Typed(_) => 0,
    };
    let of = |experts: &str| format!("name = \"deepseek-v3\"\nexperts = {{ {experts} }}");
    for (experts, count) in [
        ("", 58),
        ("layers = \"(01)\"", 30),
        ("layers = \"(0101)\"", 30),
        ("layers = \"none\"", 58),
        ("layers = \"000(1)\"", 58),
        ("dense_layers = 5", 56),
        ("layers = \"1(0001)\", dense_layers = 0", 16),
    ] {
        let spec = spec(&of(experts)).unwrap();
        assert_eq!(layers(&spec), count, "{experts}");
        assert_eq!(Spec::read(&spec.to_json()).as_ref(), Ok(&spec), "{experts}");
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).as_ref(), Ok(&spec), "{experts}");
    }
    assert_eq!(spec(&of("layers = \"000(1)\"")), spec(&of("")), "what one number says has one form");
    for (experts, field) in [
        ("layers = \"01\"", "model.experts.layers: found \"01\""),
        ("layers = \"(01)\", dense_layers = 3", "model.experts.dense_layers: found 3"),
    ] {
        let error = spec(&of(experts)).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn experts_and_latents_are_written_and_read() {
    for name in ["mixtral-8x7b", "deepseek-v3", "qwen-3-30b-a3b", "gemma-2-27b", "qwen-2.5-7b"] {
        for more in ["", "experts = \"none\"\nlatent = \"none\"\n", "qk_norm = false\nactivation = \"silu\"\n"] {
            let text = format!(
                "[model]\nname = \"{name}\"\n{more}[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ncontext = 2\n\
                 [training]\nmicrobatches = 8\nf32_logits = true\n"
            );
            let uneven = format!("{text}expert_imbalance = 1.25\nmoe_aux_loss = 0.01\nmoe_z_loss_coeff = 0.001");
            let is_dense = name.starts_with("gemma") || name.starts_with("qwen-2.5") || more.starts_with("experts");
            let spec = match Spec::read(&uneven) {
                Ok(spec) => spec,
                Err(error) => {
                    for told in ["training.expert_imbalance: found 1.25", "training.moe_aux_loss: found 0.01"] {
                        let told = format!("{told}, accepted is nothing: the model has no experts");
                        assert!(is_dense && error.to_string().contains(&told), "{name}: {error}");
                    }
                    Spec::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
                }
            };
            assert_eq!(Spec::read(&spec.to_json()).unwrap(), spec, "{name}");
            let link = crate::spec::link::write(&spec);
            assert_eq!(crate::spec::link::read(&link).unwrap(), spec, "{name}");
        }
    }
}

/// What a spec says twice is refused, and what is missing is asked for as it must be.
#[test]
fn a_model_has_one_source() {
    let refused = |model: &str| {
        let text = format!("cluster.device = \"h100\"\ntraining.microbatches = 8\n[model]\n{model}\n");
        let text = if model.contains("[parallel]") { text } else { text + "[parallel]\n" } + "pipeline = 4\n";
        Spec::read(&text).unwrap_err().to_string()
    };
    let twice = refused("name = \"llama-2-7b\"\nconfig = { model_type = \"gpt2\" }");
    assert!(
        twice.contains("model.name: found \"llama-2-7b\", accepted is nothing, or a name that is not in the catalog"),
        "{twice}"
    );
    let experts = refused("name = \"llama-2-7b\"\nexperts = { count = 8, ffn = 100 }");
    assert!(
        experts.contains("model.experts.active: found nothing, accepted is") && experts.contains("from 1 to 8"),
        "{experts}"
    );
    let gpt = refused("name = \"llama-2-7b\"\nfamily = \"gpt\"\npositions = 4096\nqk_norm = true");
    assert!(gpt.contains("accepted is llama: only this family has qk_norm"), "{gpt}");
    let partition = refused("name = \"llama-2-7b\"\n[parallel]\npartition = \"4,4\"");
    assert!(partition.contains("a layout in Megatron-LM's form, such as Et*3|t*4|t*3L"), "{partition}");
}

/// Norms, biases and what else such families have, each by itself and all together.
#[test]
fn norms_and_biases_are_written_and_linked() {
    let lines = [
        "norm = \"layer\"",
        "norm = \"rms-without-weights\"",
        "norm = \"layer-without-bias\"\narrangement = \"beside-one-norm\"",
        "window = { tokens = 512, full_every = 6, rope_base = 10000 }",
        "qk_norm = true\nqk_norm_of = \"shared-layer-heads\"",
        "post_norms = true\nmlp_beside_experts = true\nexperts = { count = 8, active = 2, ffn = 512 }",
        "experts = { count = 8, active = 2, ffn = 512, scores = \"sparse-mixer\" }",
        "qk_norm = true\nqk_norm_of = \"layer-heads\"",
        "embedding_norm = true",
        "mlp_bias = true\nactivation = \"plain-gelu-tanh\"",
        "head_bias = true\nactivation = \"plain-gelu\"",
        "qkv_clip = 8.0",
        "value_norm = true\nlayer_scale = true",
        "window = { tokens = 512, full_every = 6 }\nglobal = { head_dim = 256, kv_heads = 4, rotary = 64, keys_are_values = true }",
    ];
    let all = lines[7..].join("\n").replacen("\nactivation = \"plain-gelu\"", "", 1);
    let mut seen = std::vec![model_work(&of_llama("")).model];
    for line in lines.into_iter().chain([all.as_str()]) {
        let text = of_llama(line);
        let spec = Spec::read(&text).unwrap();
        let model = model_work(&text).model;
        assert!(!seen.contains(&model), "{line} says something");
        seen.push(model);
        assert_eq!(Spec::read(&spec.to_json()).unwrap(), spec, "{line}");
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec, "{line}");
    }
}

fn of_llama(line: &str) -> std::string::String {
    format!(
        "[model]\nname = \"llama-3-8b\"\n{line}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 8\n\
         [training]\nmicrobatches = 32\n"
    )
}

#[test]
fn parallel_residuals_and_partial_rotary_dims_are_written_and_linked() {
    let text = "[model]\nname = \"gpt-3-175b\"\nrotary = 32\narrangement = \"beside\"\nno_bias = true\n[cluster]\n\
                device = \"h100\"\n[parallel]\npipeline = 8\n[training]\nmicrobatches = 32\n";
    let spec = Spec::read(text).unwrap();
    let variant = model_work(text).model.variant;
    assert_eq!((variant.rotary, variant.arrangement, variant.no_bias), (Some(32), Arrangement::Beside, true));
    assert_eq!(Spec::read(&spec.to_json()).unwrap(), spec);
    assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec);
    for (line, field) in [
        ("rotary = 33", "model.rotary: found 33, accepted is an even number from 2 to 128 (head_dim), such as 34"),
        ("rotary = 0", "such as 2"),
        ("rotary = 4000", "such as 128"),
        ("family = \"llama\"\nno_bias = true", "model.no_bias: found true"),
        (
            "family = \"llama\"\narrangement = \"beside\"\npost_norms = true",
            "model.arrangement: found beside, accepted is in-turn with post_norms",
        ),
        (
            "family = \"llama\"\nnorm = \"layer-without-weights\"\nnorm_offset = true",
            "model.norm_offset: found true, accepted is false with norm layer-without-weights",
        ),
        ("norm = \"layer\"", "only this family has norm"),
        ("qk_norm = true", "model.family: found gpt"),
        (
            "hidden = 4097\nheads = 32",
            "found nothing, accepted is a head dim such as 128, because hidden (4097) is not a multiple of 32 heads; or 17 heads",
        ),
    ] {
        let text = format!(
            "[model]\nname = \"gpt-3-175b\"\n{line}\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 8\n\
             [training]\nmicrobatches = 32\n"
        );
        let found = faults(&text);
        assert!(found.iter().any(|fault| fault.contains(field)), "{line}: {found:?}");
    }
}
