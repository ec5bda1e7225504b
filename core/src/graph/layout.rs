//! Degrees of parallelism beyond the pipeline's ranks, and what belongs to them: partition, recomputation, offload,
//! ZeRO.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::fields::Fault;
use crate::base::units::Bytes;
use crate::graph::form::{Form, MAX_DEGREE, Recompute};
use crate::graph::optimizer::Optimizer;
use crate::graph::passes::recompute::Choices;
use crate::model::{Dtype, ModelConfig};

/// How layers are assigned to stages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Partition {
    /// The slowest stage is as fast as possible.
    #[default]
    Balanced,
    /// Equal numbers of layers, as far as possible.
    Layers,
    /// The same, with the embedding and the head counted as one layer each.
    LayersAndEnds,
    /// Balanced, among the partitions that fit the memory limit with the microbatches in flight of the placement's
    /// usual schedule ([`in_flight`](crate::estimate::partition::in_flight)). The best one; where there are too many
    /// to find the best, a good one, and [`PartitionQuality`](crate::estimate::derive::PartitionQuality) tells how far
    /// it may be from the best.
    WithinLimit,
    /// The number of layers of each stage.
    ByHand(Vec<u32>),
    /// The number of layers, and of modules of multi-token prediction (MTP), of each stage, where modules are on other
    /// stages than the last.
    WithModules(Vec<[u32; 2]>),
}

impl Partition {
    /// The name in a spec; lists have none.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Partition::Balanced => Some("balanced"),
            Partition::Layers => Some("layers"),
            Partition::LayersAndEnds => Some("layers-and-ends"),
            Partition::WithinLimit => Some("within-limit"),
            Partition::ByHand(_) | Partition::WithModules(_) => None,
        }
    }
}

/// The layers that recompute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum RecomputeLayers {
    /// All of them, as [`Form::recompute`] says.
    #[default]
    All,
    /// This many first layers of each stage (Megatron-LM's `block` method). Their backward comes last, after the
    /// other layers have freed their bytes.
    First(u32),
    /// All layers, in groups of this many that keep only the input of the group (Megatron-LM's `uniform` method,
    /// after Chen et al., arXiv:1604.06174). Only with full recomputation.
    Groups(u32),
    /// A choice for each layer of the model.
    Each(Vec<Recompute>),
    /// The least time with which every rank fits its limit ([`fit`](crate::estimate::fit)).
    Fit,
}

impl RecomputeLayers {
    /// The text in a spec of a choice for each layer: `3 full, 5 none`.
    pub fn text_of(choices: &[Recompute]) -> String {
        let runs = choices.chunk_by(|a, b| a == b).filter_map(|run| Some((run.len(), run.first()?.name())));
        runs.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }

    /// Reads such a text; none for any other text, or for more than `most` layers.
    pub fn read_text(text: &str, most: usize) -> Option<Vec<Recompute>> {
        let mut choices: Vec<Recompute> = Vec::new();
        for run in text.split(',') {
            let (count, name) = run.trim().split_once(' ')?;
            let count: usize = count.parse().ok().filter(|count| (1..=most).contains(count))?;
            let choice = Recompute::named(name.trim())?;
            choices.extend(core::iter::repeat_n(choice, count));
            if choices.len() > most {
                return None;
            }
        }
        Some(choices)
    }

    /// The recomputation of a stage that holds the layers `layers` of the model.
    pub fn of_stage(&self, usual: Recompute, layers: core::ops::Range<u32>) -> Choices {
        let first = layers.start;
        match self {
            RecomputeLayers::All => Choices::same(usual),
            RecomputeLayers::Fit => Choices::same(Recompute::None),
            RecomputeLayers::Groups(size) => Choices { group: (*size).max(1), first, ..Choices::same(usual) },
            RecomputeLayers::First(count) => {
                let again = layers.len().min(*count as usize);
                let mut by_layer = alloc::vec![Recompute::None; layers.len()];
                by_layer[..again].fill(usual);
                Choices { by_layer, first, ..Choices::same(Recompute::None) }
            }
            RecomputeLayers::Each(choices) => {
                let of = |layer: u32| choices.get(layer as usize).copied().unwrap_or_default();
                Choices { by_layer: layers.map(of).collect(), first, ..Choices::same(Recompute::None) }
            }
        }
    }
}

/// When gradients are reduced over data-parallel replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceGradients {
    /// Once per step, after the last microbatch. Each device keeps all accumulated gradients until then.
    AfterAccumulation,
    /// After each microbatch. With sharded gradients each device then keeps only its shard.
    EachMicrobatch,
}

impl ReduceGradients {
    /// All of them.
    pub const ALL: [ReduceGradients; 2] = [ReduceGradients::AfterAccumulation, ReduceGradients::EachMicrobatch];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceGradients::AfterAccumulation => "after-accumulation",
            ReduceGradients::EachMicrobatch => "each-microbatch",
        }
    }

    /// How often each gradient is reduced in a step of `microbatches`.
    pub const fn times(self, microbatches: u64) -> u64 {
        match self {
            ReduceGradients::AfterAccumulation => 1,
            ReduceGradients::EachMicrobatch => microbatches,
        }
    }
}

/// How tokens reach their experts and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// An all-to-all: a token is sent once for each of its experts.
    EachCopy,
    /// A token is sent once to each node with experts of it, and from device to device there. On the way back the
    /// copies are summed in the node (DeepSeek-AI, arXiv:2412.19437 §3.2.2).
    OncePerNode,
}

impl Dispatch {
    /// All of them.
    pub const ALL: [Dispatch; 2] = [Dispatch::EachCopy, Dispatch::OncePerNode];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Dispatch::EachCopy => "each-copy",
            Dispatch::OncePerNode => "once-per-node",
        }
    }
}

/// Most sequence slices.
pub const MAX_SLICES: u32 = 1024;

/// Degrees of parallelism beyond the pipeline's ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How a stage's operators are written and split over the devices of a rank.
    pub form: Form,
    /// Data parallel (DP) degree: replicas of the whole pipeline, each with different microbatches.
    pub data: u32,
    /// ZeRO stage: what replicas shard: nothing (0), optimizer states (1), gradients too (2), weights too (3)
    /// (arXiv:1910.02054).
    pub zero: u32,
    /// Sequence slices: every sequence is cut along its tokens into so many parts, which go through the pipeline one after
    /// the other ([`Problem::slices`](crate::problem::Problem::slices)).
    pub slices: u32,
    /// Sharding group size, where not all replicas shard together: groups of this many neighbours have the same
    /// shards and also sum their gradients between groups (MiCS, arXiv:2205.00119; hybrid sharding, arXiv:2304.11277
    /// §3.2.2; Megatron-LM's instances of the distributed optimizer).
    pub shard: Option<u32>,
    /// When gradients are reduced, where the spec gives it; see [`Layout::reduces_gradients`].
    pub reduce_gradients: Option<ReduceGradients>,
    /// How tokens reach experts on other devices.
    pub dispatch: Dispatch,
    /// Whether the all-to-all of one op of a pair overlaps with compute of the other.
    pub overlap_exchanges: bool,
    /// Whether the gradients of a stage are reduced beside its last backward and what follows it, not after the last op.
    pub overlap_grad_reduce: bool,
    /// Whether weights that are updated in shards (ZeRO 1 and 2) are gathered beside the forward of the next step, not
    /// at the end of this one.
    pub overlap_param_gather: bool,
    /// Which optimizer updates the weights.
    pub optimizer: Optimizer,
    /// Whether the moments of bf16 weights are bf16.
    pub bf16_moments: bool,
    /// Optimizer offload: moments and master weights lie in host memory, where the device's optimizer step reads and
    /// writes them (as paged optimizers do; in ZeRO-Offload, arXiv:2101.06840, the host computes the step).
    pub offload_optimizer: bool,
    /// How layers are assigned to stages.
    pub partition: Partition,
    /// The layers that recompute.
    pub recompute_layers: RecomputeLayers,
    /// Whether activation offload is fitted to the limit ([`fit`](crate::estimate::fit)) and not given by the form.
    pub offload_fits: bool,
    /// Reserved memory of the framework on each device: contexts, communicators, fragmentation.
    pub overhead_bytes: Bytes,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            form: Form::default(),
            data: 1,
            slices: 1,
            zero: 0,
            shard: None,
            reduce_gradients: None,
            dispatch: Dispatch::EachCopy,
            overlap_exchanges: false,
            overlap_grad_reduce: false,
            overlap_param_gather: false,
            optimizer: Optimizer::AdamW,
            bf16_moments: false,
            offload_optimizer: false,
            partition: Partition::Balanced,
            recompute_layers: RecomputeLayers::All,
            offload_fits: false,
            overhead_bytes: 0,
        }
    }
}

impl Layout {
    /// Sets the ZeRO stage. Where it leaves no weights to gather at the end of a step, none are gathered beside the
    /// next forward either.
    pub fn set_zero(&mut self, zero: u32) {
        self.zero = zero;
        self.overlap_param_gather &= matches!(zero, 1 | 2);
    }

    /// Whether the memory limit decides something ([`fit`](crate::estimate::fit)).
    pub fn fits(&self) -> bool {
        self.offload_fits || self.recompute_layers == RecomputeLayers::Fit
    }

    /// Faults of the layout for `model` and `sequence` tokens; fields are named as in a spec.
    pub fn find_faults(&self, model: &ModelConfig, sequence: u32, faults: &mut Vec<Fault>) {
        if self.slices == 0 || self.slices > MAX_SLICES || !sequence.is_multiple_of(self.slices) {
            let accepted = format!("from 1 to {MAX_SLICES}, a divisor of the {sequence} tokens of a sequence");
            faults.push(Fault::new("parallel.sequence_slices", self.slices, accepted));
        }
        // Operators work on the tokens of a slice.
        self.form.find_faults(model, sequence / self.slices.max(1), "parallel", faults);
        self.find_recompute_faults(model, faults);
        let copies = self.expert_copies_of().filter(|_| model.variant.experts.is_some());
        if let Some((devices, works)) = copies {
            let tensor = if self.spread() > 1 { " × tensor / ETP" } else { "" };
            let accepted = format!(
                "a number that divides the {devices} devices with different tokens (data × context{tensor}), such as {works}"
            );
            faults.push(Fault::new("parallel.expert", self.form.expert, accepted));
        }
        if self.dispatch != Dispatch::EachCopy && model.variant.experts.is_none() {
            let accepted = format!("{}, because the model has no experts", Dispatch::EachCopy.name());
            faults.push(Fault::new("parallel.dispatch", self.dispatch.name(), accepted));
        }
        if self.overlap_exchanges && model.variant.experts.is_none() {
            let accepted = "false, because the model has no experts";
            faults.push(Fault::new("parallel.overlap_exchanges", "true", accepted));
        }
        if self.overlap_param_gather && !matches!(self.zero, 1 | 2) {
            let accepted = match self.zero {
                0 => "false: with parallel.zero = 0 every replica updates all weights and gathers none",
                _ => {
                    "false: with parallel.zero = 3 weights are gathered for each microbatch, beside the layer before"
                }
            };
            faults.push(Fault::new("parallel.overlap_param_gather", "true", accepted));
        }
        let mut whole = |field: &str, value: u32, least: u32, most: u32| {
            if !(least..=most).contains(&value) {
                faults.push(Fault::new(field, value, format!("a whole number from {least} to {most}")));
            }
        };
        whole("parallel.data", self.data, 1, MAX_DEGREE);
        whole("parallel.zero", self.zero, 0, 3);
        if let Some(shard) = self.shard {
            let has_experts = model.variant.experts.is_some();
            if shard < 2 || !self.shards_evenly(has_experts) {
                let experts = match has_experts {
                    true => {
                        format!(", and the {} replicas of experts, if that is a larger number", self.expert_copies())
                    }
                    false => String::new(),
                };
                let accepted = format!(
                    "all, or at least 2 and a divisor of the {} data-parallel replicas (data × context){experts}",
                    self.copies()
                );
                faults.push(Fault::new("parallel.shard", shard, accepted));
            }
        }
        if self.overhead_bytes > 1 << 50 {
            let accepted = String::from("at most 1 PiB");
            faults.push(Fault::new("memory.overhead_bytes", self.overhead_bytes, accepted));
        }
    }

    fn find_recompute_faults(&self, model: &ModelConfig, faults: &mut Vec<Fault>) {
        let (layers, chosen) = (model.layers, self.form.recompute);
        let some = chosen != Recompute::None;
        match &self.recompute_layers {
            RecomputeLayers::Fit if self.partition == Partition::WithinLimit => {
                let accepted = "only one of the two: partition within-limit, or recompute fit";
                faults.push(Fault::new("parallel.partition", "within-limit with recompute fit", accepted));
            }
            RecomputeLayers::All | RecomputeLayers::Fit => {}
            RecomputeLayers::First(count) => {
                if !some || *count == 0 || *count > layers {
                    let accepted = format!("from 1 to {layers}, with recompute selective, cheap, latents or full");
                    faults.push(Fault::new("training.recompute_first", count, accepted));
                }
            }
            RecomputeLayers::Groups(size) => {
                if chosen != Recompute::Full || *size == 0 || *size > layers {
                    let accepted = format!("from 1 to {layers}, with recompute full");
                    faults.push(Fault::new("training.recompute_group", size, accepted));
                }
            }
            RecomputeLayers::Each(choices) => {
                if choices.len() != layers as usize {
                    let found = format!("choices for {} layers", choices.len());
                    faults.push(Fault::new(
                        "training.recompute",
                        found,
                        format!("one for each of the {layers} layers"),
                    ));
                }
            }
        }
    }

    /// When gradients are reduced. Without a choice in the spec: after each microbatch with ZeRO 2 and 3, because
    /// only then is the kept part a shard; else after accumulation.
    pub fn reduces_gradients(&self) -> ReduceGradients {
        let usual = if self.zero >= 2 { ReduceGradients::EachMicrobatch } else { ReduceGradients::AfterAccumulation };
        self.reduce_gradients.unwrap_or(usual)
    }

    /// The number format of what the optimizer keeps of weights in `dtype`.
    pub const fn state_dtype(&self, dtype: Dtype) -> Dtype {
        match dtype {
            Dtype::Bf16 if self.bf16_moments => Dtype::Bf16,
            Dtype::Bf16 => Dtype::F32,
            _ => dtype,
        }
    }

    /// Devices of one pipeline rank. They are neighbours: TP innermost, then CP, then DP.
    pub fn devices_per_rank(&self) -> u64 {
        u64::from(self.form.tensor.max(1)).saturating_mul(self.copies())
    }

    /// Devices with the same weights of a stage, without experts: those that ZeRO shards over.
    pub fn copies(&self) -> u64 {
        u64::from(self.data.max(1)) * u64::from(self.form.context.max(1))
    }

    /// Whether the group size divides the replicas, and the replicas of experts.
    pub fn shards_evenly(&self, has_experts: bool) -> bool {
        let shard = self.shard.map_or(1, u64::from).max(1);
        let is_even = |copies: u64| copies.is_multiple_of(shard.min(copies).max(1));
        is_even(self.copies()) && (!has_experts || is_even(self.expert_copies()))
    }

    /// The group size among `copies` replicas: all of them without a group size.
    pub fn sharers(&self, copies: u64) -> u64 {
        let shard = self.shard.filter(|_| self.zero > 0);
        shard.map_or(copies, |shard| copies.min(shard.into())).max(1)
    }

    /// TP devices that route different tokens: tensor / ETP.
    fn spread(&self) -> u64 {
        (u64::from(self.form.tensor.max(1)) / u64::from(self.form.expert_ways().max(1))).max(1)
    }

    /// Devices with different tokens, over which experts may be spread.
    fn token_devices(&self) -> u64 {
        self.copies().saturating_mul(self.spread())
    }

    /// Devices with the same experts.
    pub fn expert_copies(&self) -> u64 {
        (self.token_devices() / u64::from(self.form.expert.max(1))).max(1)
    }

    /// Where experts cannot be dealt evenly: the devices there are, and the nearest degree that works.
    fn expert_copies_of(&self) -> Option<(u64, u64)> {
        let devices = self.token_devices();
        let expert = u64::from(self.form.expert.max(1));
        if devices.is_multiple_of(expert) {
            return None;
        }
        let divisors = (1..=devices.min(MAX_DEGREE.into())).filter(|degree| devices.is_multiple_of(*degree));
        Some((devices, divisors.min_by_key(|degree| (degree.abs_diff(expert), *degree)).unwrap_or(1)))
    }
}
