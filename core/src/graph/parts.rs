//! Parts of a layer that several families have: norms, gated feed-forward parts, rotary positions.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::builder::Builder;
use super::gpt::layer_norm;
use super::{Init, Kernel, Split, TensorId};
use crate::model::{Activation, Norm};

/// The norm of each head.
pub(super) fn head_norm(build: &mut Builder, x: TensorId, heads: u64, weight: String) -> TensorId {
    let width = u64::from(build.model.head_dim);
    let (gain, offset) = gain(build, weight, width);
    let inverse = build.statistic("inverse rms of heads", Some(heads));
    let kernel = Kernel::HeadNorm { eps_e12: build.model.norm_eps_e12, width, offset };
    let normed = build.apply(kernel, &[x, gain], "normed heads", heads * width);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

/// The norm of the columns of each of `groups`, with a gain for each column; devices each have some whole groups.
pub(super) fn group_norm(build: &mut Builder, x: TensorId, groups: u64, weight: (String, Option<Split>)) -> TensorId {
    let (columns, offset) = (build.width_of(x), build.model.variant.norm_offset);
    let init = if offset { Init::Zeros } else { Init::Ones };
    let gain = build.weight_of(weight.0, vec![columns], init, false, weight.1);
    let inverse = build.statistic("inverse rms of groups", Some(groups));
    let width = columns / groups.max(1);
    let kernel = Kernel::HeadNorm { eps_e12: build.model.norm_eps_e12, width, offset };
    let normed = build.apply(kernel, &[x, gain], "normed groups", columns);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

/// The norm of all `whole` heads of width `head` together, of which each device has some.
pub(super) fn whole_norm(build: &mut Builder, x: TensorId, [whole, head]: [u32; 2], weight: String) -> TensorId {
    let ways = build.ways();
    if ways == 1 {
        return rms_norm(build, x, weight, "normed heads");
    }
    let (width, offset) = (build.width_of(x), build.model.variant.norm_offset);
    let init = if offset { Init::Zeros } else { Init::Ones };
    let split = build.split_heads(whole, head.into());
    let gain = build.weight_of(weight, vec![width], init, false, split);
    let [own, sum, all] =
        ["squares of heads", "squares of all devices", "squares"].map(|name| build.statistic(name, Some(1)));
    build.operator(Kernel::RowSquares, &[x], &[own]);
    build.operator(Kernel::AllReduce { ways }, &[own], &[sum]);
    // Each device uses them for its own columns, so that their gradient is a sum over devices.
    build.operator(Kernel::Replicate { ways }, &[sum], &[all]);
    let inverse = build.statistic("inverse rms of all heads", None);
    // Heads that several devices hold count as often in the sum as in the columns.
    let kernel = Kernel::SharedRmsNorm { eps_e12: build.model.norm_eps_e12, columns: ways * width, offset };
    let normed = build.apply(kernel, &[x, gain, all], "normed heads", width);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

/// RMSNorm without weights of each `width` columns.
pub(super) fn length(build: &mut Builder, x: TensorId, width: u64, name: &str) -> TensorId {
    let columns = build.width_of(x);
    let inverse = build.statistic("inverse rms", Some(columns / width.max(1)));
    let kernel = Kernel::HeadLength { eps_e12: build.model.norm_eps_e12, width };
    let normed = build.apply(kernel, &[x], name, columns);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

/// LayerNorm without biases of each of `whole` heads over all devices, with a gain for each column.
pub(super) fn layer_norm_of_heads(build: &mut Builder, x: TensorId, whole: u32, weight: String) -> TensorId {
    let (columns, width) = (build.width_of(x), u64::from(build.model.head_dim));
    let init = if build.model.variant.norm_offset { Init::Zeros } else { Init::Ones };
    let split = build.split_heads(whole, width);
    let gain = build.weight_of(weight, vec![columns], init, false, split);
    parts_layer_norm(build, &[x, gain], width, "normed heads")
}

/// LayerNorm of each head, with the gain `weight` and a bias of the same name that all heads share.
pub(super) fn shared_layer_norm_of_heads(build: &mut Builder, x: TensorId, weight: String) -> TensorId {
    let width = u64::from(build.model.head_dim);
    let bias = weight.replacen(".weight", ".bias", 1);
    let gain = gain(build, weight, width).0;
    let bias = build.new_weight(bias, vec![width], Init::Zeros, false);
    parts_layer_norm(build, &[x, gain, bias], width, "normed heads")
}

/// LayerNorm of each `width` columns of the first of `inputs`, with the gain and the bias behind it, or without.
fn parts_layer_norm(build: &mut Builder, inputs: &[TensorId], width: u64, name: &str) -> TensorId {
    let columns = build.width_of(inputs[0]);
    let parts = columns / width.max(1);
    let [mean, inverse] = ["mean", "inverse deviation"].map(|name| build.statistic(name, Some(parts)));
    let (eps_e12, offset) = (build.model.norm_eps_e12, build.model.variant.norm_offset);
    let normed = build.apply(Kernel::HeadLayerNorm { eps_e12, width, offset }, inputs, name, columns);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.extend([mean, inverse]);
    }
    normed
}

/// The norm of the residual stream `x`, with the weights `{weight}.weight` and `{weight}.bias`, where it has some.
pub(super) fn stream_norm(build: &mut Builder, x: TensorId, weight: &str, name: &str) -> TensorId {
    let (hidden, norm) = (build.width_of(x), build.model.variant.norm);
    match norm {
        Norm::Rms => rms_norm(build, x, format!("{weight}.weight"), name),
        Norm::RmsWithoutWeights => length(build, x, hidden, name),
        Norm::Layer if !build.model.variant.norm_offset => layer_norm(build, x, weight.into(), name),
        Norm::Layer | Norm::LayerWithoutBias | Norm::LayerWithoutWeights => {
            let mut inputs = vec![x];
            if norm.weights() > 0 {
                inputs.push(gain(build, format!("{weight}.weight"), hidden).0);
            }
            if norm == Norm::Layer {
                inputs.push(build.new_weight(format!("{weight}.bias"), vec![hidden], Init::Zeros, false));
            }
            parts_layer_norm(build, &inputs, hidden, name)
        }
    }
}

/// The gain of a norm, and whether it is one more than what is held; it starts as 1 either way.
fn gain(build: &mut Builder, weight: String, width: u64) -> (TensorId, bool) {
    let offset = build.model.variant.norm_offset;
    let init = if offset { Init::Zeros } else { Init::Ones };
    (build.new_weight(weight, vec![width], init, false), offset)
}

/// A gated feed-forward part of inner width `whole` over all devices, its result not yet summed over them.
pub(super) fn gated(build: &mut Builder, x: TensorId, whole: u32, weight: &str) -> TensorId {
    let hidden = build.hidden();
    let ffn = build.share(whole);
    let gate = inner(build, x, whole, &format!("{weight}.gate_proj"), "gate");
    let up = inner(build, x, whole, &format!("{weight}.up_proj"), "up");
    let product = build.apply(gate_kernel(build.model.variant.activation), &[gate, up], "gated", ffn);
    let columns = build.split(1, whole);
    build.linear(product, &format!("{weight}.down_proj"), hidden, "feed-forward projected", columns)
}

/// A matrix of the MLP with `whole` rows over all devices, and its bias where it has one.
fn inner(build: &mut Builder, x: TensorId, whole: u32, weight: &str, name: &str) -> TensorId {
    let (ffn, rows) = (build.share(whole), build.split(0, whole));
    let product = build.linear(x, weight, ffn, name, rows);
    if !build.model.variant.mlp_bias {
        return product;
    }
    let bias = build.weight_of(format!("{weight}.bias"), vec![ffn], Init::Zeros, false, rows);
    build.apply(Kernel::AddBias, &[product, bias], name, ffn)
}

/// The MLP of inner width `whole` over all devices, with a gate or without one, its result not yet summed over them and
/// without the bias behind that.
pub(super) fn mlp(build: &mut Builder, x: TensorId, whole: u32, weight: &str) -> TensorId {
    let activation = build.model.variant.activation;
    if activation.is_gated() {
        return gated(build, x, whole, weight);
    }
    let (hidden, ffn) = (build.hidden(), build.share(whole));
    let up = inner(build, x, whole, &format!("{weight}.up_proj"), "feed-forward inner");
    let product = match activation {
        Activation::PlainGelu => build.apply(Kernel::Gelu, &[up], "activated", ffn),
        Activation::PlainGeluTanh => build.apply(Kernel::GeluTanh, &[up], "activated", ffn),
        Activation::Xielu => {
            let mut number =
                |name: &str| build.new_weight(format!("{weight}.act_fn.{name}"), vec![1], Init::Zeros, false);
            let (above, below) = (number("alpha_p"), number("alpha_n"));
            build.apply(Kernel::Xielu, &[up, above, below], "activated", ffn)
        }
        _ => build.apply(Kernel::SquaredRelu, &[up], "activated", ffn),
    };
    let columns = build.split(1, whole);
    build.linear(product, &format!("{weight}.down_proj"), hidden, "feed-forward projected", columns)
}

/// What joins the gate and the other half.
pub(super) const fn gate_kernel(activation: Activation) -> Kernel {
    match activation {
        Activation::Gelu => Kernel::GeGlu,
        Activation::ClampedSilu => Kernel::ClampedGlu,
        // Those without a gate are not asked for here.
        Activation::Silu
        | Activation::SquaredRelu
        | Activation::Xielu
        | Activation::PlainGelu
        | Activation::PlainGeluTanh => Kernel::SwiGlu,
    }
}

/// RMSNorm of the rows of `x`.
pub(super) fn rms_norm(build: &mut Builder, x: TensorId, weight: String, name: &str) -> TensorId {
    let hidden = build.width_of(x);
    let (gain, offset) = gain(build, weight, hidden);
    let inverse = build.statistic("inverse rms", None);
    let kernel = Kernel::RmsNorm { eps_e12: build.model.norm_eps_e12, offset };
    let normed = build.apply(kernel, &[x, gain], name, hidden);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}

/// Rotary positions of `heads`. Where only some columns of a head are turned, they are its last ones: which ones they are
/// is a matter of the order of a matrix's rows.
pub(super) fn rotate(build: &mut Builder, x: TensorId, heads: u64, name: &str) -> TensorId {
    let width = u64::from(build.model.head_dim);
    let angles = build.angles();
    let sequence = build.sequence;
    let kernel = match build.model.variant.rotary.map(u64::from).filter(|tail| *tail < width) {
        Some(tail) => Kernel::RopeTail { sequence, heads, width, tail, angles, inverse: false },
        None => Kernel::Rope { sequence, heads, width, angles, inverse: false },
    };
    build.apply(kernel, &[x], name, heads * width)
}
