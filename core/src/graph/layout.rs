//! How a model is dealt to devices beyond the number of pipeline ranks.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::fields::Fault;
use crate::base::units::Bytes;
use crate::graph::form::{Form, MAX_DEGREE, Recompute};
use crate::graph::passes::recompute::Choices;
use crate::model::{Dtype, ModelConfig};

/// How layers are dealt to stages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Partition {
    /// So that the slowest stage is as fast as it can be.
    #[default]
    Balanced,
    /// Equal numbers of layers, as near as may be.
    Layers,
    /// The same, with the embedding and the head counted as one layer each.
    LayersAndEnds,
    /// As balanced, among the deals that fit the memory limit with as many microbatches in flight as the usual schedule of
    /// the placement has ([`in_flight`](crate::estimate::partition::in_flight)). The best there is; where there are too
    /// many deals to find it among, a good one, and [`Dealt`](crate::estimate::derive::Dealt) says how far it may be from the best.
    WithinLimit,
    /// The number of layers of each stage.
    ByHand(Vec<u32>),
}

impl Partition {
    /// The name in a spec; a list has none.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Partition::Balanced => Some("balanced"),
            Partition::Layers => Some("layers"),
            Partition::LayersAndEnds => Some("layers-and-ends"),
            Partition::WithinLimit => Some("within-limit"),
            Partition::ByHand(_) => None,
        }
    }
}

/// Which decoder layers compute something again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum RecomputeLayers {
    /// All of them, as [`Form::recompute`] says.
    #[default]
    All,
    /// So many at the start of each stage (Megatron-LM's `block` method). A stage's first layers come last in the
    /// backward, when the others have given their bytes back, so what they make again is held beside the least.
    First(u32),
    /// All of them, in groups of so many of which only the input is kept (Megatron-LM's `uniform` method, of Chen et
    /// al., arXiv:1604.06174). Only with whole layers computed again.
    Groups(u32),
    /// A choice for each layer of the model.
    Each(Vec<Recompute>),
    /// The least time with which every rank fits its limit ([`fit`](crate::estimate::fit)).
    Fit,
}

impl RecomputeLayers {
    /// A choice for each layer as it stands in a spec: `3 full, 5 none`.
    pub fn text_of(choices: &[Recompute]) -> String {
        let runs = choices.chunk_by(|a, b| a == b).filter_map(|run| Some((run.len(), run.first()?.name())));
        runs.map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }

    /// The other way round; none for any other text, or for more than `most` layers.
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

    /// What is computed again in a stage that holds the layers `layers` of the model.
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

/// When gradients are reduced over the copies of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceGradients {
    /// Once a step, when the last microbatch has added its own. Each device keeps the sum of all gradients until then.
    AfterAccumulation,
    /// After each microbatch, so that where copies share gradients out, none keeps more than its share.
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

/// How copies of tokens come to their experts and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// Each copy by itself, from the device of its token to that of its expert: an all-to-all.
    EachCopy,
    /// Once to each node that has an expert of its token, and there from device to device; on the way back they are added up
    /// in the node (DeepSeek-AI, arXiv:2412.19437 §3.2.2).
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

/// How a model is dealt to devices beyond the number of pipeline ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How a stage's operators are written and split over the devices of a rank.
    pub form: Form,
    /// Copies of the whole pipeline, each with microbatches of its own.
    pub data: u32,
    /// What the copies share out among themselves: nothing (0), optimizer states (1), gradients too (2), weights too (3)
    /// (ZeRO, arXiv:1910.02054).
    pub zero: u32,
    /// Among how many neighbours they do so, where not among all: groups of so many hold the same shares, and sum their
    /// gradients over groups besides (MiCS, arXiv:2205.00119; hybrid sharding, arXiv:2304.11277 §3.2.2; Megatron-LM's instances
    /// of the distributed optimizer).
    pub shard: Option<u32>,
    /// When gradients are reduced over the copies, where that is said; see [`Layout::reduces_gradients`].
    pub reduce_gradients: Option<ReduceGradients>,
    /// How copies of tokens come to experts that are dealt to devices.
    pub dispatch: Dispatch,
    /// Whether the other op of a pair computes while one exchanges tokens with experts.
    pub overlap_exchanges: bool,
    /// Whether the optimizer keeps both moments of bf16 weights in bf16.
    pub bf16_moments: bool,
    /// Whether what the optimizer keeps, moments and master weights, lies in the host's memory: its step reads and writes it
    /// there, from the device (as paged optimizers do; beside ZeRO-Offload, arXiv:2101.06840, whose step is the host's own).
    pub offload_optimizer: bool,
    /// How layers are dealt to stages.
    pub partition: Partition,
    /// Which layers compute something again.
    pub recompute_layers: RecomputeLayers,
    /// Whether the limit says how many layers of each stage keep what they keep in the host's memory
    /// ([`fit`](crate::estimate::fit)), and not the form.
    pub offload_fits: bool,
    /// What the framework holds on each device besides: contexts, communicators, fragmentation.
    pub overhead_bytes: Bytes,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            form: Form::default(),
            data: 1,
            zero: 0,
            shard: None,
            reduce_gradients: None,
            dispatch: Dispatch::EachCopy,
            overlap_exchanges: false,
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
    /// Whether something is left to the memory limit to say ([`fit`](crate::estimate::fit)).
    pub fn fits(&self) -> bool {
        self.offload_fits || self.recompute_layers == RecomputeLayers::Fit
    }

    /// What is wrong with it for `model` and `sequence` tokens; fields are named as in a spec.
    pub fn find_faults(&self, model: &ModelConfig, sequence: u32, faults: &mut Vec<Fault>) {
        self.form.find_faults(model, sequence, "parallel", faults);
        self.find_recompute_faults(model, faults);
        let copies = self.expert_copies_of().filter(|_| model.variant.experts.is_some());
        if let Some((devices, works)) = copies {
            let tensor = if self.form.whole_experts { " × tensor" } else { "" };
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

    /// When gradients are reduced over the copies. Where nothing says it: after each microbatch where copies share
    /// gradients out (ZeRO 2 and 3), since only then is what they keep a share; else after accumulation.
    pub fn reduces_gradients(&self) -> ReduceGradients {
        let usual = if self.zero >= 2 { ReduceGradients::EachMicrobatch } else { ReduceGradients::AfterAccumulation };
        self.reduce_gradients.unwrap_or(usual)
    }

    /// The number format of the optimizer's moments of bf16 weights.
    pub const fn moments(&self) -> Dtype {
        if self.bf16_moments { Dtype::Bf16 } else { Dtype::F32 }
    }

    /// Devices of one pipeline rank. They are next to each other: tensor parallelism innermost, then the parts of a
    /// sequence, then the copies.
    pub fn devices_per_rank(&self) -> u64 {
        u64::from(self.form.tensor.max(1)).saturating_mul(self.copies())
    }

    /// Devices that hold the same weights of a stage, but for experts: what ZeRO shares out over.
    pub fn copies(&self) -> u64 {
        u64::from(self.data.max(1)) * u64::from(self.form.context.max(1))
    }

    /// Whether copies come out even in groups of [`Layout::shard`], those of experts, too.
    pub fn shards_evenly(&self, has_experts: bool) -> bool {
        let shard = self.shard.map_or(1, u64::from).max(1);
        let is_even = |copies: u64| copies.is_multiple_of(shard.min(copies).max(1));
        is_even(self.copies()) && (!has_experts || is_even(self.expert_copies()))
    }

    /// Of so many `copies` of weights, those that share out what [`Layout::zero`] says, each group among itself: all where
    /// nothing is shared out.
    pub fn sharers(&self, copies: u64) -> u64 {
        let shard = self.shard.filter(|_| self.zero > 0);
        shard.map_or(copies, |shard| copies.min(shard.into())).max(1)
    }

    /// Devices that hold other tokens, over which experts may be dealt.
    fn token_devices(&self) -> u64 {
        let whole = if self.form.whole_experts { self.form.tensor.max(1) } else { 1 };
        self.copies().saturating_mul(whole.into())
    }

    /// Devices that hold the same experts.
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
