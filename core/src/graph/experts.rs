//! A feed-forward part of many experts: a router, copies of tokens on their way to the experts' devices, the experts'
//! matrices, and the way back.
//!
//! Devices that share matrices (tensor parallelism) either split each expert's too, or hold whole experts and each route
//! their own tokens ([`Form::whole_experts`](super::form::Form::whole_experts)). What auxiliary losses need is left out:
//! a few numbers for each expert.
//!
//! What an expert makes is weighted before its last product, which is linear, and not behind it: then nothing that experts
//! give is kept for the gradient of the weights. Megatron-LM does so; frameworks that weight what experts give, such as
//! torchtitan (its pull request 4095), hold as many numbers more in each layer as copies of tokens have.
//!
//! Source: arXiv:2101.03961 (routing), arXiv:2401.04088 §2.1 (gated experts), arXiv:2401.06066 (shared experts).

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::builder::Builder;
use super::parts::{gate_kernel, mlp};
use super::{Init, Kernel, Role, Split, TensorId};
use crate::model::{Dtype, Experts, Scores};

/// The feed-forward part of one layer, on this device's tokens. The router reads `normed` too, or another norm of the stream.
pub(super) fn feed_forward(
    build: &mut Builder,
    normed: TensorId,
    router: Option<TensorId>,
    part: Experts,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let hidden = build.hidden();
    let over = u64::from(build.form.expert_ways());
    if over != build.ways() {
        // Each device routes the tokens that it holds between the matrices, or those of the devices with its experts.
        let routed = match over {
            1 => routed(build, [normed, router.unwrap_or(normed)], part, 1, weight),
            over => {
                let gathered = build.enter_experts(normed, over);
                let router = router.map_or(gathered, |router| build.enter_experts(router, over));
                let sum = routed(build, [gathered, router], part, over, weight);
                build.leave_experts(sum, over)
            }
        };
        if part.shared_ffn == 0 {
            return routed;
        }
        let entered = build.enter_split(normed, "shared experts' input of all devices");
        let shared = mlp(build, entered, part.shared_ffn, &weight("mlp.shared_experts"));
        let shared = build.leave_split(shared, "shared experts of all devices");
        let shared = own_gate(build, normed, shared, part, weight);
        return build.apply(Kernel::Add, &[shared, routed], "all experts", hidden);
    }
    let entered = build.enter_split(normed, "experts' input of all devices");
    let router = router.map_or(entered, |router| build.enter_split(router, "router's input of all devices"));
    let mut sum = routed(build, [entered, router], part, over, weight);
    if part.shared_ffn > 0 {
        let shared = mlp(build, entered, part.shared_ffn, &weight("mlp.shared_experts"));
        let shared = own_gate(build, entered, shared, part, weight);
        sum = build.apply(Kernel::Add, &[shared, sum], "all experts", hidden);
    }
    build.leave_split(sum, "experts of all devices")
}

/// What the shared experts make of `x`, weighted where they have a gate. It is linear, so that devices may each weight
/// their part of a sum.
fn own_gate(
    build: &mut Builder,
    x: TensorId,
    shared: TensorId,
    part: Experts,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    if !part.shared_gate {
        return shared;
    }
    let hidden = build.hidden();
    let gate = build.linear(x, &weight("mlp.shared_expert_gate"), 1, "shared experts' gate", None);
    build.apply(Kernel::RowGate, &[shared, gate], "shared experts weighted", hidden)
}

/// The experts that a router picks, on `x`, where the router reads the second; this device has a share of each one's inner
/// width, which is split `over` so many.
fn routed(
    build: &mut Builder,
    [x, router]: [TensorId; 2],
    part: Experts,
    over: u64,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let ffn = u64::from(part.ffn).div_ceil(over);
    let split =
        |dimension| (over > 1).then_some(Split { dimension, whole: part.ffn.into(), ways: over, pieces: over });
    let [rows, columns] = [1, 2].map(split);
    let (hidden, active) = (build.hidden(), u64::from(part.active));
    let ways = u64::from(build.form.expert.max(1));
    let mut logits = build.linear(router, &weight("mlp.gate"), part.count.into(), "router", None);
    if part.biases {
        let bias = build.new_weight(weight("mlp.gate.bias"), vec![part.count.into()], Init::Zeros, false);
        logits = build.apply(Kernel::AddBias, &[logits, bias], "router with bias", part.count.into());
    }
    let mut weights =
        build.apply(Kernel::Route { active, routing: part.routing }, &[logits], "weights of experts", active);
    let chosen = build.tensor("chosen experts", vec![build.tokens, active], Dtype::I32, Role::Intermediate);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(chosen);
    }
    build.router_loss(logits, chosen, part.routing.scores, over);
    if build.model.variant.mlp_beside_experts {
        let count = vec![u64::from(part.count)];
        let scales = build.new_weight(weight("router.per_expert_scale"), count, Init::Ones, false);
        weights = build.apply(Kernel::ExpertScale, &[weights, chosen, scales], "weights of experts, scaled", active);
    }

    let copies = copies(build.tokens, active, build.form.imbalance_permille);
    let [dispatched, shares] =
        [("dispatched", hidden), ("shares of copies", 1)].map(|(name, width)| build.rows(name, copies, width));
    let local = u64::from(part.count).div_ceil(ways);
    let arrivals = build.tensor("arrivals", vec![ways, local], Dtype::I32, Role::Intermediate);
    build.operator(Kernel::Dispatch { ways }, &[x, chosen, weights], &[dispatched, arrivals, shares]);
    let scales_input = part.routing.scores == Scores::InputSigmoid;
    let mut entering = dispatched;
    if scales_input {
        entering = build.rows("dispatched, weighted", copies, hidden);
        build.operator(Kernel::RowGate, &[dispatched, shares], &[entering]);
    }
    if !build.model.variant.activation.is_gated() {
        let up_proj = weight("mlp.experts.up_proj");
        let up = times(build, [entering, arrivals], up_proj, [local, ffn, hidden], "experts' up", rows);
        let product = build.rows("experts' activated", copies, ffn);
        build.operator(Kernel::WeightedSquaredRelu, &[up, shares], &[product]);
        let down_proj = weight("mlp.experts.down_proj");
        let down = times(build, [product, arrivals], down_proj, [local, hidden, ffn], "experts' projected", columns);
        return build.apply(Kernel::Combine { ways }, &[down, chosen, arrivals], "experts combined", hidden);
    }
    let [gate_proj, up_proj] = ["gate", "up"].map(|part| weight(&format!("mlp.experts.{part}_proj")));
    let biases = [&gate_proj, &up_proj].map(|name| format!("{name}.bias"));
    let mut gate = times(build, [entering, arrivals], gate_proj, [local, ffn, hidden], "experts' gate", rows);
    let mut up = times(build, [entering, arrivals], up_proj, [local, ffn, hidden], "experts' up", rows);
    if part.biases {
        let [of_gate, of_up] = biases;
        gate = biased(build, gate, [arrivals, arrivals], of_gate, [local, ffn], rows, 1);
        up = biased(build, up, [arrivals, arrivals], of_up, [local, ffn], rows, 1);
    }
    let product = build.rows("experts' gated", copies, ffn);
    let activation = build.model.variant.activation;
    match scales_input {
        true => build.operator(gate_kernel(activation), &[gate, up], &[product]),
        false => build.operator(Kernel::WeightedGlu { activation }, &[gate, up, shares], &[product]),
    }
    let down_proj = weight("mlp.experts.down_proj");
    let bias = format!("{down_proj}.bias");
    let mut down = times(build, [product, arrivals], down_proj, [local, hidden, ffn], "experts' projected", columns);
    if part.biases {
        let rows = if scales_input { arrivals } else { shares };
        // Devices that share an expert each add a part of its bias: what they make is summed.
        down = biased(build, down, [arrivals, rows], bias, [local, hidden], None, over);
    }
    build.apply(Kernel::Combine { ways }, &[down, chosen, arrivals], "experts combined", hidden)
}

/// Rows of `x` with the bias of their expert, `[experts, out]`, times their shares where they are not `arrivals`.
fn biased(
    build: &mut Builder,
    x: TensorId,
    [arrivals, shares]: [TensorId; 2],
    name: String,
    shape: [u64; 2],
    split: Option<Split>,
    ways: u64,
) -> TensorId {
    let bias = build.expert_bias(name, shape, split);
    let rows = build.graph[x].shape.first().copied().unwrap_or(0);
    let output = build.rows("experts' biased", rows, shape[1]);
    let shared = shares != arrivals;
    let inputs = [x, bias, arrivals, shares];
    build.operator(Kernel::ExpertBias { ways, shared }, &inputs[..if shared { 4 } else { 3 }], &[output]);
    output
}

/// Copies of tokens that reach one device: the average, times the imbalance.
fn copies(tokens: u64, active: u64, imbalance_permille: u32) -> u64 {
    tokens.saturating_mul(active).saturating_mul(imbalance_permille.into()).div_ceil(1000)
}

/// Each row of `x`, which `arrivals` says whose it is, times its expert's matrix of `[experts, out, in]`.
fn times(
    build: &mut Builder,
    [x, arrivals]: [TensorId; 2],
    weight: String,
    shape: [u64; 3],
    name: &str,
    split: Option<Split>,
) -> TensorId {
    let rows = build.graph[x].shape.first().copied().unwrap_or(0);
    let matrix = build.weight_of(format!("{weight}.weight"), shape.to_vec(), Init::Normal, false, split);
    let product = |build: &mut Builder, x: TensorId, matrix: TensorId, name: &str| {
        let width = build.graph[matrix].shape[1];
        let output = build.rows(name, rows, width);
        build.operator(Kernel::ExpertMatMul { transpose_b: true }, &[x, matrix, arrivals], &[output]);
        output
    };
    let y = product(build, x, matrix, name);
    let Some(([a, b], factor)) = build.adapter(&weight, &shape, split) else { return y };
    let mut narrow = product(build, x, a, &format!("{name}, adapter"));
    if let Some(factor_e12) = factor {
        let rank = build.width_of(narrow);
        let scaled = build.rows(&format!("{name}, adapter scaled"), rows, rank);
        build.operator(Kernel::Scale { factor_e12 }, &[narrow], &[scaled]);
        narrow = scaled;
    }
    let more = product(build, narrow, b, &format!("{name}, of the adapter"));
    let output = build.rows(name, rows, shape[1]);
    build.operator(Kernel::Add, &[y, more], &[output]);
    output
}
