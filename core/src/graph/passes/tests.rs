//! Small lists before and after, and what every list keeps.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;

use super::recompute::Choices;
use super::{PassReport, offload_activations, overlap_all_reduce, quantize, split_backward};
use crate::graph::build::{forward_graph, stage_graph, stage_graph_with};
use crate::graph::builder::operator;
use crate::graph::form::StageShape;
use crate::graph::form::{AttentionForm, Form, Offload, Recompute};
use crate::graph::liveness::Lifetimes;
use crate::graph::{Graph, Init, Job, Kernel, Role, Stream, TensorId, backward};
use crate::hardware::cost::Load;
use crate::model::{Dtype, catalog};

/// As [`listing_from`] the backward.
fn listing(graph: &Graph) -> String {
    listing_from(graph, graph.forward_len())
}

/// One line an operator, from the one at `first` on: `job kernel(inputs) → outputs`, with `~` for what only starts.
fn listing_from(graph: &Graph, first: usize) -> String {
    let mut text = String::new();
    let names = |ids: &mut dyn Iterator<Item = TensorId>| {
        ids.map(|id| graph[id].name.as_str()).collect::<Vec<_>>().join(", ")
    };
    for operator in &graph.operators[first..] {
        let inputs = names(&mut operator.inputs.iter().map(|input| input.tensor));
        let outputs = names(&mut operator.outputs.iter().copied());
        let mark = if operator.stream == Stream::Compute { "" } else { "~" };
        let arrow = if operator.outputs.is_empty() { "" } else { " → " };
        writeln!(text, "{:?} {mark}{}({inputs}){arrow}{outputs}", operator.job, operator.kernel.name()).unwrap();
    }
    text
}

fn lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| line.to_string() + "\n").collect()
}

struct Hand(Graph);

impl Hand {
    fn new() -> Hand {
        Hand(Graph::default())
    }

    fn tensor(&mut self, name: &str, shape: &[u64], dtype: Dtype, role: Role) -> TensorId {
        self.0.add(name.to_string(), shape.to_vec(), dtype, role)
    }

    fn weight(&mut self, name: &str, shape: &[u64]) -> TensorId {
        let (init, split) = (Init::Normal, None);
        let role =
            Role::Weight { init, decay: true, shared: false, experts: None, split, partial: false, frozen: false };
        self.tensor(name, shape, Dtype::Bf16, role)
    }

    fn push(&mut self, job: Job, kernel: Kernel, inputs: &[TensorId], outputs: &[TensorId]) {
        self.0.operators.push(operator(kernel, job, None, inputs, outputs));
    }
}

const DX: Kernel = Kernel::MatMul { transpose_a: false, transpose_b: false, accumulate: false };
const DW: Kernel = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: false };
const LINEAR: Kernel = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
const REDUCE: Kernel = Kernel::AllReduce { ways: 2 };

/// A column-parallel linear layer: x → replicated → y, by two weights that read the same x where `both`.
fn column_parallel(both: bool) -> Graph {
    let mut hand = Hand::new();
    let x = hand.tensor("x", &[4, 8], Dtype::Bf16, Role::ActivationIn);
    let all = hand.tensor("x of all", &[4, 8], Dtype::Bf16, Role::Intermediate);
    hand.push(Job::F, Kernel::Replicate { ways: 2 }, &[x], &[all]);
    let mut outs = Vec::new();
    for name in if both { &["gate", "up"][..] } else { &["gate"] } {
        let weight = hand.weight(name, &[6, 8]);
        outs.push(hand.tensor(&("y ".to_string() + name), &[4, 6], Dtype::Bf16, Role::Intermediate));
        hand.push(Job::F, LINEAR, &[all, weight], &outs[outs.len() - 1..]);
    }
    if both {
        let sum = hand.tensor("y", &[4, 6], Dtype::Bf16, Role::ActivationOut);
        hand.push(Job::F, Kernel::SwiGlu, &outs, &[sum]);
    } else {
        hand.0.tensors[outs[0].index()].role = Role::ActivationOut;
    }
    backward::derive(&mut hand.0, true);
    hand.0
}

#[test]
fn the_sum_of_dx_starts_before_dw_and_ends_after_it() {
    let mut graph = column_parallel(false);
    let before = "B matmul(gradient_in, x of all, gate.gradient) → gate.gradient
        B matmul(gradient_in, gate) → gradient of x of all
        B all_reduce(gradient of x of all) → gradient of x";
    assert_eq!(listing(&graph), lines(before));
    let account = overlap_all_reduce::run(&mut graph);
    split_backward::run(&mut graph);
    let after = "B matmul(gradient_in, gate) → gradient of x of all
        B ~all_reduce_start(gradient of x of all) → gradient of x under way
        W matmul(gradient_in, x of all, gate.gradient) → gate.gradient
        B all_reduce_wait(gradient of x under way) → gradient of x";
    assert_eq!(listing(&graph), lines(after));
    assert_eq!((account.done.len(), account.skipped.len()), (1, 0));
    assert_eq!(account.bytes(), 4 * 8 * 2, "what is summed");
    assert_eq!(
        account.to_string(),
        "overlap of the all-reduce of dX with the dW matmul: 1 done, 0 skipped\n  + gradient of x: overlaps dW of gate (64 bytes)\n"
    );
}

#[test]
fn all_matmuls_that_add_up_to_dx_have_their_dw_beside_its_sum() {
    let mut graph = column_parallel(true);
    let account = overlap_all_reduce::run(&mut graph);
    let after = "B swiglu_grad(gradient_in, y gate, y up) → gradient of y gate, gradient of y up
        B matmul(gradient of y up, up) → gradient of x of all
        B matmul(gradient of y gate, gate, gradient of x of all) → gradient of x of all
        B ~all_reduce_start(gradient of x of all) → gradient of x under way
        B matmul(gradient of y up, x of all, up.gradient) → up.gradient
        B matmul(gradient of y gate, x of all, gate.gradient) → gate.gradient
        B all_reduce_wait(gradient of x under way) → gradient of x";
    assert_eq!(listing(&graph), lines(after));
    assert_eq!(account.done[0].why, "overlaps dW of up, gate");
}

/// dW in 16 bits, cast to f32 between the matmul and the reduction, as with master gradients; then `more`.
fn with_cast(more: &[&str]) -> Hand {
    let mut hand = Hand::new();
    let x = hand.tensor("x", &[4, 8], Dtype::Bf16, Role::ActivationIn);
    let dy = hand.tensor("dy", &[4, 6], Dtype::Bf16, Role::GradientIn);
    let w = hand.weight("w", &[6, 8]);
    let total = hand.tensor("w.gradient", &[6, 8], Dtype::F32, Role::WeightGradient { of: w });
    let dw = hand.tensor("dw", &[6, 8], Dtype::Bf16, Role::Intermediate);
    let wide = hand.tensor("dw in f32", &[6, 8], Dtype::F32, Role::Intermediate);
    let dx = hand.tensor("dx", &[4, 8], Dtype::Bf16, Role::Intermediate);
    hand.push(Job::B, DW, &[dy, x], &[dw]);
    hand.push(Job::B, DX, &[dy, w], &[dx]);
    hand.push(Job::B, Kernel::Cast, &[dw], &[wide]);
    if more.contains(&"added early") {
        hand.push(Job::B, Kernel::Add, &[wide, total], &[total]);
    }
    if more.contains(&"read early") {
        let norm = hand.tensor("squared", &[6, 8], Dtype::F32, Role::Intermediate);
        hand.push(Job::B, Kernel::Gelu, &[wide], &[norm]);
    }
    // Nothing of it: the sum starts right after the matmul, wherever it stood.
    let other = hand.tensor("other", &[4, 6], Dtype::Bf16, Role::Intermediate);
    hand.push(Job::B, Kernel::Gelu, &[dy], &[other]);
    let sum = hand.tensor("sum", &[4, 8], Dtype::Bf16, Role::GradientOut);
    hand.push(Job::B, REDUCE, &[dx], &[sum]);
    if !more.contains(&"added early") {
        hand.push(Job::B, Kernel::Add, &[wide, total], &[total]);
    }
    hand
}

/// The cast is a reader of dW between it and the sum: it comes after dW, and the sum into the accumulator where it was.
#[test]
fn a_cast_of_dw_comes_after_it() {
    let mut hand = with_cast(&[]);
    let account = overlap_all_reduce::run(&mut hand.0);
    let after = "B matmul(dy, w) → dx
        B ~all_reduce_start(dx) → sum under way
        B matmul(dy, x) → dw
        B cast(dw) → dw in f32
        B gelu(dy) → other
        B all_reduce_wait(sum under way) → sum
        B add(dw in f32, w.gradient) → w.gradient";
    assert_eq!(listing(&hand.0), lines(after));
    assert_eq!((account.done.len(), account.skipped.len()), (1, 0));
    split_backward::run(&mut hand.0);
    let jobs: Vec<Job> = hand.0.operators.iter().map(|operator| operator.job).collect();
    use Job::{B, W};
    assert_eq!(jobs, [B, B, W, W, B, B, W], "dW, its cast and its sum are W's");
}

/// The cast of dW, and what reads it, before the matmul that makes dX: where `accumulates`, the sum into the accumulator.
fn cast_before_dx(reader: &str) -> Hand {
    let mut hand = with_cast(&[reader]);
    // dW, cast, its reader, dX, …
    let dx = hand.0.operators.remove(1);
    hand.0.operators.insert(3, dx);
    if reader.is_empty() {
        hand.0.operators.swap(2, 3);
    }
    hand
}

#[test]
fn readers_of_dw_before_dx_move_with_it() {
    let mut hand = cast_before_dx("added early");
    let account = overlap_all_reduce::run(&mut hand.0);
    let after = "B matmul(dy, w) → dx
        B ~all_reduce_start(dx) → sum under way
        B matmul(dy, x) → dw
        B cast(dw) → dw in f32
        B add(dw in f32, w.gradient) → w.gradient
        B gelu(dy) → other
        B all_reduce_wait(sum under way) → sum";
    assert_eq!(listing(&hand.0), lines(after));
    assert_eq!(account.done.len(), 1);
}

#[test]
fn a_reader_of_the_cast_in_between_is_a_reason_to_skip() {
    let mut hand = cast_before_dx("read early");
    let before = listing(&hand.0);
    let account = overlap_all_reduce::run(&mut hand.0);
    assert_eq!(listing(&hand.0), before);
    assert_eq!((account.done.len(), account.skipped.len()), (0, 1));
    assert_eq!(account.skipped[0].why, "gelu reads what cast makes of dW before the reduction");
}

#[test]
fn of_two_reductions_of_one_dx_the_last_is_taken() {
    let mut graph = column_parallel(false);
    let dx = graph.operators.last().unwrap().inputs[0].tensor;
    let again = graph.add("again".to_string(), vec![4, 8], Dtype::Bf16, Role::Intermediate);
    graph.operators.push(operator(REDUCE, Job::B, None, &[dx], &[again]));
    let account = overlap_all_reduce::run(&mut graph);
    assert_eq!((account.done[0].what.as_str(), account.skipped[0].what.as_str()), ("again", "gradient of x"));
    assert_eq!(account.skipped[0].why, "a later reduction of the same dX overlaps its dW");
}

#[test]
fn what_no_matmul_makes_is_skipped() {
    let mut hand = Hand::new();
    let dy = hand.tensor("dy", &[4, 6], Dtype::Bf16, Role::GradientIn);
    let dx = hand.tensor("dx", &[4, 6], Dtype::Bf16, Role::Intermediate);
    let sum = hand.tensor("sum", &[4, 6], Dtype::Bf16, Role::GradientOut);
    hand.push(Job::B, Kernel::Gelu, &[dy], &[dx]);
    hand.push(Job::B, REDUCE, &[dx], &[sum]);
    let account = overlap_all_reduce::run(&mut hand.0);
    assert_eq!(account.skipped[0].why, "its input comes from gelu, not from a matmul");
}

fn shape(layers: u32, form: Form) -> StageShape {
    StageShape {
        layers: 1..1 + layers,
        has_embedding: false,
        has_head: false,
        modules: crate::model::Modules::default(),
        microbatch_size: 1,
        sequence: 64,
        dtype: Dtype::Bf16,
        form,
    }
}

/// Two reductions a layer, of attention's and of the feed-forward part's input; nothing else changes, and each layer's
/// dW of the matrices that read these inputs run beside them.
#[test]
fn every_reduction_of_a_layer_is_covered() {
    for name in ["llama-2-7b", "gpt-3-175b", "qwen-2.5-7b"] {
        let model = catalog::find(name).map(|entry| entry.config).unwrap();
        for sequence_parallel in [false, true] {
            let form = Form { tensor: 4, sequence_parallel, ..Form::default() };
            let mut graph = forward_graph(&model, &shape(3, form), 1);
            backward::derive(&mut graph, true);
            let before: Vec<_> = graph.operators.clone();
            let account = overlap_all_reduce::run(&mut graph);
            assert_eq!((account.done.len(), account.skipped.len()), (6, 0), "{name}");
            assert_eq!(graph.operators.len(), before.len() + 6);
            let is_reduction =
                |kernel: &Kernel| matches!(kernel, Kernel::AllReduce { .. } | Kernel::ReduceScatter { .. });
            let kept = |operators: &[crate::graph::Operator]| {
                let mut kept: Vec<String> = operators
                    .iter()
                    .filter(|operator| operator.job == Job::F || !is_reduction(&operator.kernel))
                    .filter(|operator| !operator.kernel.starts() && !operator.kernel.waits())
                    .map(|operator| std::format!("{operator:?}"))
                    .collect();
                kept.sort_unstable();
                kept
            };
            assert_eq!(kept(&before), kept(&graph.operators), "{name}");
        }
    }
}

/// A list of a quarter of a million operators, which anything but a walk over it would take very long for.
#[test]
fn the_passes_take_time_in_proportion_to_the_list() {
    let model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
    let form = Form { tensor: 2, async_reduce: true, recompute: Recompute::Cheap, ..Form::default() };
    let graph = stage_graph(&model, &shape(5000, form), 1);
    assert!(graph.operators.len() > 240_000, "{}", graph.operators.len());
    assert_eq!(graph.operators.iter().filter(|operator| operator.kernel.starts()).count(), 2 * 5000);
}

/// The bytes of the split's account are all that is held after B.
#[test]
fn the_split_says_what_it_keeps() {
    for name in ["llama-2-7b", "gpt-3-175b", "mixtral-8x7b", "deepseek-v3"] {
        let model = catalog::find(name).map(|entry| entry.config).unwrap();
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
            for (tensor, async_reduce) in [(1, false), (4, true)] {
                let form = Form { tensor, async_reduce, recompute, ..Form::default() };
                let graph = stage_graph(&model, &shape(2, form), 1);
                let [f, b, _] = Lifetimes::of(&graph).memory(&graph);
                let account = split_backward::account(&graph);
                assert_eq!(account.bytes() as i64, f.net + b.net, "{name} {recompute:?}");
                let gains = graph.weights().filter(|(_, weight)| weight.shape.len() == 1).count();
                assert_eq!(account.skipped.len(), gains, "{name}");
            }
        }
    }
}

#[test]
fn an_account_says_once_what_is_alike() {
    let model = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
    let form = Form { tensor: 2, ..Form::default() };
    let mut graph = forward_graph(&model, &shape(5, form), 1);
    backward::derive(&mut graph, true);
    let account = overlap_all_reduce::run(&mut graph);
    let text = account.to_string();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("in layers 1-5: overlaps dW of "), "{text}");
    let value = serde_json::to_value(&account).unwrap();
    assert_eq!(value["done"].as_array().map(Vec::len), Some(10));
    let mut all = PassReport::new("x");
    all.extend(account);
    assert_eq!(all.done.len(), 10);
}

/// One linear layer and a norm before it: `x` is quantized behind the norm, and what the backward needs of it is the one
/// along its columns; its gradient by B, for both products.
#[test]
fn operands_are_quantized_once_for_all_their_products() {
    let mut hand = Hand::new();
    let x = hand.tensor("x", &[4, 32], Dtype::Bf16, Role::ActivationIn);
    let mut outs = Vec::new();
    for name in ["gate", "up"] {
        let weight = hand.weight(name, &[16, 32]);
        outs.push(hand.tensor(&("y ".to_string() + name), &[4, 16], Dtype::Bf16, Role::Intermediate));
        hand.push(Job::F, LINEAR, &[x, weight], &outs[outs.len() - 1..]);
    }
    let narrow = hand.weight("narrow", &[6, 16]);
    let product = hand.tensor("product", &[4, 16], Dtype::Bf16, Role::Intermediate);
    let y = hand.tensor("y", &[4, 6], Dtype::Bf16, Role::ActivationOut);
    hand.push(Job::F, Kernel::SwiGlu, &outs, &[product]);
    hand.push(Job::F, LINEAR, &[product, narrow], &[y]);
    let mut graph = hand.0;
    graph.operators.iter_mut().for_each(|operator| operator.layer = Some(0));
    backward::derive(&mut graph, true);
    split_backward::run(&mut graph);
    let account = quantize::run(&mut graph, Dtype::Fp8);
    let forward: Vec<&str> = graph.job(Job::F).map(|operator| operator.kernel.name()).collect();
    assert_eq!(forward, ["quantize", "matmul", "matmul", "swiglu", "matmul"]);
    let after = "W matmul(gradient_in, product, narrow.gradient) → narrow.gradient
        B matmul(gradient_in, narrow) → gradient of product
        B swiglu_grad(gradient of product, y gate, y up) → gradient of y gate, gradient of y up
        B quantize(gradient of y up) → gradient of y up in fp8, rows, gradient of y up in fp8, columns
        W matmul(gradient of y up in fp8, columns, x in fp8, columns, up.gradient) → up.gradient
        B matmul(gradient of y up in fp8, rows, up in fp8, columns) → gradient of x
        B quantize(gradient of y gate) → gradient of y gate in fp8, rows, gradient of y gate in fp8, columns
        W matmul(gradient of y gate in fp8, columns, x in fp8, columns, gate.gradient) → gate.gradient
        B matmul(gradient of y gate in fp8, rows, gate in fp8, columns, gradient of x) → gradient of x";
    assert_eq!(listing(&graph), lines(after));
    let said = account.to_string();
    assert!(said.starts_with("FP8 matmuls: 3 done, 1 skipped"), "{said}");
    assert!(said.contains("- narrow in layers 0: stays: a size is not a multiple of 16"), "{said}");
    // Two copies of each of the two weights, one byte an element.
    let copies = graph.tensors().filter(|(_, tensor)| matches!(tensor.role, Role::WeightCopy { .. }));
    assert_eq!(copies.map(|(_, tensor)| tensor.bytes()).sum::<u64>(), 2 * 2 * 16 * 32);
}

/// What a Llama layer keeps from F to W of the inputs and output gradients of its matrices is one byte an element instead
/// of two; attention keeps its output beside that, for its own gradient.
#[test]
fn fp8_halves_what_products_keep() {
    let model = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
    let memory = |matmul_dtype: Option<Dtype>| {
        let shape = StageShape {
            layers: 1..2,
            has_embedding: false,
            has_head: false,
            modules: crate::model::Modules::default(),
            microbatch_size: 1,
            sequence: 4096,
            dtype: Dtype::Bf16,
            form: Form { matmul_dtype, ..Form::default() },
        };
        let graph = stage_graph(&model, &shape, 1);
        Lifetimes::of(&graph).memory(&graph).map(|job| job.net)
    };
    let ([f, _, w], [narrow_f, _, narrow_w]) = (memory(None), memory(Some(Dtype::Fp8)));
    let [tokens, hidden, ffn] = [4096, model.hidden.into(), model.ffn.into()];
    // Inputs of q, k, v; of the output's matrix, which is new; of gate and up; of down.
    assert_eq!(f - narrow_f, tokens * (hidden - hidden + hidden + ffn));
    // W frees the same inputs, and the gradients of q, k, v, the output, gate, up and down.
    let inputs = tokens * (hidden + hidden + hidden + ffn);
    let gradients = tokens * (3 * hidden + hidden + 2 * ffn + hidden);
    assert_eq!((-w, -narrow_w), (2 * (inputs + gradients), inputs + gradients));
    // Of 32 elements: 32 bytes and one of their scale; 16 and one; 16 and two.
    for (dtype, bytes) in [(Dtype::MxFp8, 33), (Dtype::MxFp4, 17), (Dtype::NvFp4, 18)] {
        let [.., w] = memory(Some(dtype));
        assert_eq!(-w, (inputs + gradients) / 32 * bytes, "{}", dtype.name());
    }
}

/// Of DeepSeek-V3's attention the latents and the shared key are kept, and not the queries, keys and values that are expanded from them; the
/// fused backward makes one layer's again at a time.
#[test]
fn what_latents_expand_to_is_made_again() {
    let model = catalog::find("deepseek-v3").map(|entry| entry.config).unwrap();
    let latent = model.variant.latent.unwrap();
    let kept = |recompute, layers| {
        let shape = StageShape {
            layers: 0..layers,
            has_embedding: false,
            has_head: false,
            modules: crate::model::Modules::default(),
            microbatch_size: 1,
            sequence: 4096,
            dtype: Dtype::Bf16,
            form: Form { recompute, ..Form::default() },
        };
        let graph = stage_graph(&model, &shape, 1);
        let [forward, ..] = Lifetimes::of(&graph).memory(&graph);
        let fused = Lifetimes::fused(&graph).memory_fused(&graph);
        (forward.net, fused.workspace() as i64)
    };
    let [heads, width, value, rope] =
        [model.heads, model.head_dim, latent.value_width, latent.rope_width].map(i64::from);
    // Instead, the part of the keys that all heads share.
    let expanded = 2 * 4096 * (heads * (2 * width + value) - rope);
    for layers in [1, 3] {
        let ((cheap, _), (latents, workspace)) = (kept(Recompute::Cheap, layers), kept(Recompute::Latents, layers));
        assert_eq!(cheap - latents, i64::from(layers) * expanded);
        // One layer's, not all of them.
        assert!(workspace < kept(Recompute::Cheap, layers).1 + 2 * expanded, "{workspace} with {layers}");
    }
    let llama = catalog::find("llama-2-7b").map(|entry| entry.config).unwrap();
    let graph = |recompute| {
        let shape = StageShape {
            layers: 0..2,
            has_embedding: true,
            has_head: true,
            modules: crate::model::Modules::default(),
            microbatch_size: 1,
            sequence: 128,
            dtype: Dtype::Bf16,
            form: Form { recompute, ..Form::default() },
        };
        stage_graph(&llama, &shape, 1)
    };
    assert_eq!(graph(Recompute::Latents), graph(Recompute::Cheap), "nothing of the kind");
}

/// What a GPT's layers keep where norms and activations are made again is 20 bytes an element of the stream (input, q, k, v,
/// what attends, the stream between, four of the feed-forward part). Taking that to the host and back takes
/// `10 / (3 (6h + s))` of the time of its products, times the rate of these over that of copies: equation 1 of
/// arXiv:2503.01328, which counts all positions of attention; the causal mask leaves half of them.
#[test]
fn what_goes_to_the_host_is_what_pipeoffload_counts() {
    let model = catalog::find("gpt-3-175b").map(|entry| entry.config).unwrap();
    let (layers, sequence) = (4u64, 2048u64);
    let form = Form {
        attention: AttentionForm::Flash,
        recompute: Recompute::Cheap,
        offload: Offload::All,
        ..Form::default()
    };
    let shape = StageShape {
        layers: 8..8 + layers as u32,
        has_embedding: false,
        has_head: false,
        modules: crate::model::Modules::default(),
        microbatch_size: 1,
        sequence: sequence as u32,
        dtype: Dtype::Bf16,
        form,
    };
    let (graph, reports) = stage_graph_with(&model, &shape, 1, &Choices::same(form.recompute));
    let account = reports.iter().find(|account| account.pass == offload_activations::NAME).unwrap();
    let h = u64::from(model.hidden);
    assert_eq!(account.bytes(), layers * 20 * sequence * h);
    let copied: u64 = graph.operators.iter().map(|operator| Load::of(&graph, operator).copied).sum();
    assert_eq!(copied, 2 * account.bytes(), "there and back");
    // Over each other's rates: bytes for an operation. F, B and W of the products, without what is made again, which no
    // product is.
    let flops = 3 * layers * sequence * (24 * h * h + 2 * sequence * h);
    let ours = copied as f64 / flops as f64;
    let published = 10.0 / (3.0 * (6.0 * h as f64 + sequence as f64 / 2.0));
    assert!((ours / published - 1.0).abs() < 1e-12, "{ours} {published}");
    // Of the operators, flash attention's backward makes scores again, and each token sees itself in all seven products.
    let by_operator: u128 = crate::hardware::cost::job_flops(&graph).iter().sum();
    assert_eq!(by_operator, u128::from(flops + layers * (sequence * sequence * h + 7 * sequence * h)));
    // What stays on the device are the statistics of rows.
    let [f, ..] = Lifetimes::of(&graph).memory(&graph);
    let stays: u64 = account.skipped.iter().map(|entry| entry.bytes).sum();
    assert_eq!(f.net, stays as i64);
    assert!(stays * 100 < account.bytes(), "{stays}");
}

/// A layer's copies have until the end of the next one to arrive, and come back during the one before it in the backward;
/// what W alone needs comes back for W.
#[test]
fn copies_go_while_the_next_layer_computes() {
    let mut hand = Hand::new();
    let mut x = hand.tensor("x", &[4, 8], Dtype::Bf16, Role::ActivationIn);
    for layer in 0..3 {
        let weight = hand.weight(&format!("w{layer}"), &[8, 8]);
        let made = hand.tensor(&format!("made {layer}"), &[4, 8], Dtype::Bf16, Role::Intermediate);
        let role = if layer == 2 { Role::ActivationOut } else { Role::Intermediate };
        let out = hand.tensor(&format!("out {layer}"), &[4, 8], Dtype::Bf16, role);
        hand.push(Job::F, Kernel::Gelu, &[x], &[made]);
        hand.push(Job::F, LINEAR, &[made, weight], &[out]);
        hand.0.operators.iter_mut().rev().take(2).for_each(|operator| operator.layer = Some(layer));
        x = out;
    }
    backward::derive(&mut hand.0, true);
    split_backward::run(&mut hand.0);
    let account = offload_activations::run(&mut hand.0, 0..3, 2);
    let forward = "F ~offload(x) → x on the host
        F gelu(x) → made 0
        F ~offload(made 0) → made 0 on the host
        F matmul(made 0, w0) → out 0
        F ~offload(out 0) → out 0 on the host
        F gelu(out 0) → made 1
        F ~offload(made 1) → made 1 on the host
        F matmul(made 1, w1) → out 1
        F offload_wait(made 0 on the host, made 0)
        F offload_wait(x on the host, x)
        F gelu(out 1) → made 2
        F matmul(made 2, w2) → out 2
        F offload_wait(made 1 on the host, made 1)
        F offload_wait(out 0 on the host, out 0)";
    let backward = "W ~reload(made 1 on the host) → made 1 back
        B ~reload(out 0 on the host) → out 0 back
        W matmul(gradient_in, made 2, w2.gradient) → w2.gradient
        B matmul(gradient_in, w2) → gradient of made 2
        B gelu_grad(gradient of made 2, out 1) → gradient of out 1
        W reload_wait(made 1 back, made 1 on the host)
        W ~reload(made 0 on the host) → made 0 back
        B ~reload(x on the host) → x back
        W matmul(gradient of out 1, made 1 back, w1.gradient) → w1.gradient
        B matmul(gradient of out 1, w1) → gradient of made 1
        B reload_wait(out 0 back, out 0 on the host)
        B gelu_grad(gradient of made 1, out 0 back) → gradient of out 0
        W reload_wait(made 0 back, made 0 on the host)
        W matmul(gradient of out 0, made 0 back, w0.gradient) → w0.gradient
        B matmul(gradient of out 0, w0) → gradient of made 0
        B reload_wait(x back, x on the host)
        B gelu_grad(gradient of made 0, x back) → gradient of x";
    let text = listing_from(&hand.0, 0);
    assert_eq!(text, lines(forward) + &lines(backward));
    assert_eq!((account.done.len(), account.skipped.len()), (4, 0));
}
