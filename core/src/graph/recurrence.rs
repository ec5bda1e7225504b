//! A recurrence in the place of attention: a gated delta net, or Mamba 2.
//!
//! Devices that share matrices split heads; heads of keys of which there are fewer are held by several. What other programs
//! join in one product is one for each part here, so that each is split by its own heads.
//!
//! Its products are those of the form in chunks, which the public kernels have: within a chunk, every token with those
//! before it; between chunks, a state for each head. The gradient computes the forward's products again and makes two of
//! each. States between chunks are there while an operator runs, in 32 bits, and are not kept.
//!
//! Sources: arXiv:2412.06464 (gated delta net), arXiv:2405.21060 (Mamba 2). Names of weights follow Qwen3-Next's and
//! Granite 4's checkpoints.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::builder::Builder;
use super::parts::{group_norm, whole_norm};
use super::{Init, Kernel, Recurring, Role, Split, TensorId};
use crate::model::{Recurrence, RecurrenceKind};

/// A recurrence of this device's heads with its last matrix, summed over devices.
pub(super) fn mixed(
    build: &mut Builder,
    normed: TensorId,
    of: Recurrence,
    weight: &dyn Fn(&str) -> String,
) -> TensorId {
    let part = match of.kind {
        RecurrenceKind::DeltaNet => "linear_attn",
        RecurrenceKind::Mamba2 => "mamba",
    };
    let weight = |name: &str| weight(&format!("{part}.{name}"));
    let entered = build.enter_split(normed, "recurrence input of all devices");
    let recurring = Recurring {
        kind: of.kind,
        sequence: build.sequence,
        key_heads: build.share(of.key_heads),
        key_width: of.key_dim.into(),
        heads: build.share(of.heads),
        width: of.head_dim.into(),
    };
    let (keys, values) = (recurring.key_heads * recurring.key_width, recurring.heads * recurring.width);
    let of_keys = build.split_heads(of.key_heads, of.key_dim.into());
    let of_values = build.split_heads(of.heads, of.head_dim.into());
    let by_head = build.split_heads(of.heads, 1);
    let streams =
        [("q", keys, of_keys), ("k", keys, of_keys), ("v", values, of_values)].map(|(name, width, split)| {
            let x = build.linear(entered, &weight(&format!("in_proj_{name}")), width, "before convolution", split);
            convolved(build, x, of, &weight(&format!("conv1d_{name}")), split)
        });
    let gate = build.linear(entered, &weight("in_proj_z"), values, "recurrence gate", of_values);
    let mut inputs = streams.to_vec();
    let steps: &[&str] = match of.kind {
        RecurrenceKind::DeltaNet => &["in_proj_a", "in_proj_b"],
        RecurrenceKind::Mamba2 => &["in_proj_dt"],
    };
    for name in steps {
        inputs.push(build.linear(entered, &weight(name), recurring.heads, "steps", by_head));
    }
    let numbers: &[(&str, Init)] = match of.kind {
        RecurrenceKind::DeltaNet => &[("A_log", Init::Zeros), ("dt_bias", Init::Ones)],
        RecurrenceKind::Mamba2 => &[("A_log", Init::Zeros), ("dt_bias", Init::Ones), ("D", Init::Ones)],
    };
    for (name, init) in numbers {
        inputs.push(build.weight_of(weight(name), vec![recurring.heads], *init, false, by_head));
    }
    let output = recurred(build, &inputs, recurring);
    let normed = match of.kind {
        RecurrenceKind::DeltaNet => {
            let normed = own_norm(build, output, recurring, weight("norm.weight"));
            build.apply(Kernel::SwiGlu, &[gate, normed], "recurrence output gated", values)
        }
        RecurrenceKind::Mamba2 => {
            let gated = build.apply(Kernel::SwiGlu, &[gate, output], "recurrence output gated", values);
            match recurring.key_heads {
                1 if of.key_heads == 1 => whole_norm(build, gated, [of.heads, of.head_dim], weight("norm.weight")),
                groups => group_norm(build, gated, groups, (weight("norm.weight"), of_values)),
            }
        }
    };
    let (hidden, split) = (build.hidden(), build.split(1, of.heads.saturating_mul(of.head_dim)));
    let projected = build.linear(normed, &weight("out_proj"), hidden, "recurrence projected", split);
    build.leave_split(projected, "recurrence of all devices")
}

/// The convolution of a stream.
fn convolved(build: &mut Builder, x: TensorId, of: Recurrence, weight: &str, split: Option<Split>) -> TensorId {
    let width = build.width_of(x);
    let shape = vec![width, of.convolution.into()];
    let mut inputs: Vec<TensorId> =
        vec![x, build.weight_of(format!("{weight}.weight"), shape, Init::Normal, false, split)];
    if of.convolution_bias {
        inputs.push(build.weight_of(format!("{weight}.bias"), vec![width], Init::Zeros, false, split));
    }
    build.apply(Kernel::Convolution { sequence: build.sequence }, &inputs, "convolved", width)
}

/// The recurrence itself.
fn recurred(build: &mut Builder, inputs: &[TensorId], recurring: Recurring) -> TensorId {
    let rows = recurring.chunks(build.tokens) * recurring.heads * recurring.key_width;
    let dtype = build.statistics();
    let states = build.tensor("states between chunks", vec![rows, recurring.width], dtype, Role::Intermediate);
    let width = recurring.heads * recurring.width;
    let output = build.apply(Kernel::Recurrence(recurring), inputs, "recurrence output", width);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(states);
    }
    output
}

/// The norm of each head of a gated delta net, which has weights of its own form.
fn own_norm(build: &mut Builder, x: TensorId, recurring: Recurring, weight: String) -> TensorId {
    let gain = build.new_weight(weight, vec![recurring.width], Init::Ones, false);
    let inverse = build.statistic("inverse rms of heads", Some(recurring.heads));
    let kernel = Kernel::HeadNorm { eps_e12: build.model.norm_eps_e12, width: recurring.width, offset: false };
    let normed = build.apply(kernel, &[x, gain], "recurrence output normed", recurring.heads * recurring.width);
    if let Some(operator) = build.graph.operators.last_mut() {
        operator.outputs.push(inverse);
    }
    normed
}
