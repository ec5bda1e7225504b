//! The gradients of a whole stage against the slope of its loss, in `f64`.

mod common;

use std::sync::Arc;

use pipeplan::backend::cpu::Cpu;
use pipeplan::backend::peers::Alone;
use pipeplan::backend::{Backend, Parcel, Part, Store, Values};
use pipeplan::runner::data::Batches;
use pipeplan::runner::optimizer::AdamW;
use pipeplan::transport::Buffer;
use pipeplan_core::graph::Role;
use pipeplan_core::graph::build::stage_graph;
use pipeplan_core::graph::form::{Form, StageShape};
use pipeplan_core::graph::post_training::{Frozen, Lora, Targets};
use pipeplan_core::model::{Dtype, Experts, Family, Latent, ModelConfig, Routing, Variant};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Payload;

fn model(family: Family, tied: bool) -> ModelConfig {
    let mut model = common::work(1, 1).model;
    model.family = family;
    model.layers = 2;
    model.tied = tied;
    model
}

/// One stage, its microbatches, and what arrives from stages around it.
struct Case {
    cpu: Cpu<f64>,
    store: Store,
    stage: u16,
    shape: StageShape,
    hidden: usize,
}

impl Case {
    fn new(model: &ModelConfig, stage: u16, shape: StageShape) -> Case {
        let graph = stage_graph(model, &shape, 2);
        let text = common::text();
        let batches =
            Batches::new(text, [shape.sequence as usize, 1], shape.microbatch_size as usize, 2, 9).expect("text");
        let mut store = Store::default();
        let optimizer = AdamW { learning_rate: 0.0, ..AdamW::default() };
        let mut cpu = Cpu::new([(stage, graph)], 3, 5, optimizer, Arc::new(batches), &mut store);
        cpu.begin(0);
        Case { cpu, store, stage, shape, hidden: model.hidden as usize }
    }

    fn boundary(&self, phase: f64) -> Vec<f64> {
        let elements = self.shape.tokens() as usize * self.hidden;
        (0..elements).map(|at| (at as f64 * 0.7 + phase).sin()).collect()
    }

    fn op(&mut self, kind: OpKind, microbatch: usize) {
        let op = Op::new(self.stage.into(), kind, microbatch);
        self.cpu.compute(op, &mut self.store, &mut Alone::default()).expect("it runs");
    }

    /// F of `microbatch` with `input` from the stage before. The score is the loss, or the output weighted
    /// with what [`Case::backward`] takes for its gradient.
    fn forward(&mut self, microbatch: u32, input: &[f64]) -> f64 {
        if !self.shape.has_embedding {
            let parcel = Parcel { payload: Payload::Activation, stage: self.stage, microbatch };
            self.store.put(parcel, Buffer::F64(input.to_vec()));
        }
        self.op(OpKind::F, microbatch as usize);
        if self.shape.has_head {
            return self.cpu.take_losses()[0].1;
        }
        let parcel = Parcel { payload: Payload::Activation, stage: self.stage + 1, microbatch };
        let Ok(Buffer::F64(output)) = self.store.take(parcel) else { panic!("no output") };
        output.iter().zip(self.boundary(2.0)).map(|(output, weight)| output * weight).sum()
    }

    /// B and W of `microbatch`, and the gradient for the stage before.
    fn backward(&mut self, microbatch: u32, split: bool) -> Vec<f64> {
        if !self.shape.has_head {
            let parcel = Parcel { payload: Payload::Gradient, stage: self.stage, microbatch };
            let gradient = self.boundary(2.0);
            self.store.put(parcel, Buffer::F64(gradient));
        }
        if split {
            self.op(OpKind::B, microbatch as usize);
            self.op(OpKind::W, microbatch as usize);
        } else {
            self.op(OpKind::BW, microbatch as usize);
        }
        if self.shape.has_embedding {
            return Vec::new();
        }
        let parcel = Parcel { payload: Payload::Gradient, stage: self.stage - 1, microbatch };
        match self.store.take(parcel) {
            Ok(Buffer::F64(gradient)) => gradient,
            // Nothing before trains.
            Ok(Buffer::Nothing) => Vec::new(),
            other => panic!("no gradient: {other:?}"),
        }
    }
}

/// Holds the gradients of one stage, gathered over two microbatches, against differences.
fn check(model: &ModelConfig, stage: u16, (has_embedding, has_head): (bool, bool), what: &str) {
    let gradients = check_form(model, stage, (has_embedding, has_head), Form::default(), what);
    assert!(gradients >= 16, "{what}");
}

/// The same with what `form` trains, and how many weights have a gradient. Weights start as they are and then, where all
/// that starts as 0 gets another value, there.
fn check_form(
    model: &ModelConfig,
    stage: u16,
    (has_embedding, has_head): (bool, bool),
    form: Form,
    what: &str,
) -> usize {
    let shape = StageShape {
        layers: 0..2,
        has_embedding,
        has_head,
        modules: pipeplan_core::model::Modules::default(),
        microbatch_size: 2,
        sequence: 6,
        dtype: Dtype::F64,
        form,
    };
    let graph = stage_graph(model, &shape, 2);
    let sends = graph.with_role(Role::GradientOut).is_some();
    // B of an adapter starts as 0, and so A has no gradient at first.
    let adapters: Vec<(String, u64)> = graph
        .weights()
        .filter(|(_, weight)| weight.name.ends_with("lora_B.weight"))
        .map(|(_, weight)| (weight.name.clone(), weight.elements()))
        .collect();
    let started = || {
        let mut case = Case::new(model, stage, shape.clone());
        for (name, elements) in &adapters {
            let value = |index: u64| 0.1 * (index as f64 * 1.3 + name.len() as f64).sin();
            (0..*elements).for_each(|index| case.cpu.set_weight(name, index as usize, value(index)));
        }
        case
    };
    let mut case = started();
    let input = case.boundary(0.0);
    // Two microbatches, one with B and W apart, one fused: gradients add up.
    case.forward(0, &input);
    case.forward(1, &input);
    let d_input = case.backward(1, true);
    case.backward(0, false);
    let gradients = case.cpu.gradients();
    let score = |microbatches: &[u32], change: &dyn Fn(&mut Case, &mut Vec<f64>)| -> f64 {
        let mut case = started();
        let mut input = input.clone();
        change(&mut case, &mut input);
        microbatches.iter().map(|microbatch| case.forward(*microbatch, &input)).sum()
    };
    const H: f64 = 1e-5;
    let close = |slope: f64, gradient: f64, of: &str| {
        let error = (slope - gradient).abs() / (1e-3 + slope.abs());
        assert!(error < 1e-5, "{of} ({what}): slope {slope}, gradient {gradient}");
    };
    let start = case.cpu.weights();
    for (name, gradient) in &gradients {
        let Some(Buffer::F64(weight)) = start.get(name) else { panic!("{name} has no weight") };
        let Buffer::F64(gradient) = gradient else { panic!("{name} ({what}) has another format") };
        // The largest element and two others.
        let largest = (0..gradient.len()).max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()));
        assert!(gradient[largest.expect("not empty")] != 0.0, "{name} ({what}) gets no gradient");
        for index in [largest.expect("not empty"), gradient.len() / 3, gradient.len() - 1] {
            let at =
                |offset: f64| score(&[0, 1], &|case, _| case.cpu.set_weight(name, index, weight[index] + offset));
            close((at(H) - at(-H)) / (2.0 * H), gradient[index], &format!("{name}[{index}]"));
        }
    }
    assert_eq!(d_input.is_empty(), !sends, "{what}");
    for index in (0..d_input.len()).step_by(37) {
        let at = |offset: f64| score(&[1], &|_, input| input[index] += offset);
        close((at(H) - at(-H)) / (2.0 * H), d_input[index], &format!("input {index}"));
    }
    gradients.len()
}

/// Gradients that pass through frozen matrices, that end at the first weight that trains, and those of adapters.
#[test]
fn so_are_those_of_what_trains_beside_frozen_weights() {
    let frozen = |texts: &[&str]| {
        let mut frozen = Frozen::NONE;
        texts.iter().for_each(|text| frozen.add(text).expect("a module or layers"));
        Form { frozen, ..Form::default() }
    };
    let mut targets = Targets::NONE;
    ["q", "v", "down"].iter().for_each(|name| targets.add(name).expect("a target"));
    let of_some = Form { lora: Some(Lora { rank: 3, alpha: 6, targets }), ..Form::default() };
    let of_all = Form { lora: Some(Lora { rank: 2, alpha: 2, targets: Targets::ALL }), ..Form::default() };
    let usual = model(Family::Llama, false);
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 10,
        shared_ffn: 7,
        shared_gate: true,
        dense_layers: 1,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 4, value_width: 6 };
    let deepseek = ModelConfig {
        kv_heads: usual.heads,
        head_dim: 10,
        variant: Variant { experts: Some(experts), latent: Some(latent), ..Variant::USUAL },
        ..usual
    };
    let models = [("Llama", usual), ("GPT", model(Family::Gpt, false)), ("DeepSeek", deepseek)];
    for (name, model) in models {
        for (form, train) in [
            (frozen(&["attention"]), None),
            (frozen(&["mlp", "norms"]), None),
            (frozen(&["embedding", "layers.0"]), None),
            (of_all, None),
            (of_some, (name != "DeepSeek").then_some(2 * 2 * 3)),
        ] {
            if form == of_some && name == "DeepSeek" {
                continue;
            }
            for (stage, ends) in [(0, (true, true)), (0, (true, false)), (1, (false, false)), (2, (false, true))] {
                let what = format!("{name}, {ends:?}, {:?}, {:?}", form.frozen, form.lora);
                let found = check_form(&model, stage, ends, form, &what);
                assert!(train.is_none_or(|train| found == train), "{what}: {found}");
            }
        }
    }
}

/// The first product of a step that makes the gradient of a matrix writes it, whatever the step before has left there. All
/// others add, and find zeros.
#[test]
fn a_step_reads_no_gradient_of_the_one_before() {
    for family in [Family::Llama, Family::Gpt] {
        let shape = StageShape {
            layers: 0..2,
            has_embedding: false,
            has_head: false,
            modules: pipeplan_core::model::Modules::default(),
            microbatch_size: 2,
            sequence: 6,
            dtype: Dtype::F64,
            form: Default::default(),
        };
        let mut case = Case::new(&model(family, false), 1, shape);
        let input = case.boundary(0.0);
        let step = |case: &mut Case, cut_first: bool| {
            case.forward(0, &input);
            case.forward(1, &input);
            case.backward(1, cut_first);
            case.backward(0, !cut_first);
            case.cpu.gradients()
        };
        let first = step(&mut case, true);
        case.cpu.optimize(&mut case.store).expect("it updates");
        let (mut written, mut added) = (0, 0);
        for name in first.keys() {
            let mut spoil = |values: Values<'_>| {
                let Values::F64(gradient) = values else { panic!("{name} has another format") };
                if gradient.iter().all(|value| *value == 0.0) {
                    added += 1;
                } else {
                    gradient.fill(f64::NAN);
                    written += 1;
                }
            };
            case.cpu.lend(1, name, Part::Gradient, &mut spoil).expect("it is there");
        }
        // Of a Llama layer q, k, v, o, gate, up and down are matrices, of a GPT's q, k, v, o, up and down.
        let matrices = if family == Family::Llama { 14 } else { 12 };
        assert_eq!((written, written + added), (matrices, first.len()), "{family:?}");
        case.cpu.begin(1);
        assert_eq!(step(&mut case, true), first, "{family:?}");
    }
}

#[test]
fn gradients_of_stages_are_the_slope_of_the_score() {
    for family in [Family::Llama, Family::Gpt] {
        for (stage, has_embedding, has_head, tied) in [
            (0, true, true, false),
            (0, true, true, true),
            (0, true, false, false),
            (1, false, false, false),
            (2, false, true, false),
        ] {
            let what = format!("{family:?}, embedding {has_embedding}, head {has_head}, tied {tied}");
            check(&model(family, tied), stage, (has_embedding, has_head), &what);
        }
    }
}

/// Parts of a layer beside each other, heads turned in part, and no biases.
#[test]
fn so_are_those_of_newer_gpts() {
    use pipeplan_core::model::Arrangement::{Beside, BesideOneNorm};
    let usual = model(Family::Gpt, false);
    for (what, variant, kv_heads) in [
        ("GPT-NeoX", Variant { rotary: Some(2), arrangement: Beside, ..Variant::USUAL }, usual.kv_heads),
        ("Falcon", Variant { rotary: Some(4), arrangement: BesideOneNorm, no_bias: true, ..Variant::USUAL }, 1),
    ] {
        let model = ModelConfig { variant, kv_heads, ..usual };
        check(&model, 0, (true, true), what);
        check(&model, 1, (false, false), what);
    }
}

/// Norms of heads, norms behind, GELU gates, windows, experts and latent attention.
#[test]
fn so_are_those_of_newer_families() {
    let usual = model(Family::Llama, false);
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 10,
        shared_ffn: 0,
        shared_gate: false,
        dense_layers: 0,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 4, value_width: 6 };
    let variants = [
        ("Qwen 3", Variant { qk_norm: true, ..Variant::USUAL }),
        ("Gemma 2", common::gemma_2(2)),
        ("Granite", common::granite()),
        (
            "Qwen 2 MoE",
            Variant { experts: Some(Experts { shared_ffn: 7, shared_gate: true, ..experts }), ..Variant::USUAL },
        ),
        ("Mixtral", Variant { experts: Some(experts), ..Variant::USUAL }),
        (
            "DeepSeek",
            Variant {
                experts: Some(Experts { shared_ffn: 7, dense_layers: 1, layers: None, biases: false, ..experts }),
                latent: Some(latent),
                ..Variant::USUAL
            },
        ),
    ];
    for (what, variant) in variants {
        let (kv_heads, head_dim) =
            if variant.latent.is_some() { (usual.heads, 10) } else { (usual.kv_heads, usual.head_dim) };
        let model = ModelConfig { variant, kv_heads, head_dim, ..usual };
        check(&model, 0, (true, true), what);
        check(&model, 1, (false, false), what);
    }
}
