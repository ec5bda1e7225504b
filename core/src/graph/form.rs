//! How the operators of a model are written and split over devices. These choices change bytes and time, not results.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::of_e12;
use super::post_training::{Frozen, Lora, Module, Target, Targets};
use super::sequence_part::SequencePart;
use crate::base::fields::Fault;
use crate::model::{Dtype, Family, ModelConfig, Modules, RecurrenceKind, Scores, Window};

/// The largest degree of parallelism.
pub const MAX_DEGREE: u32 = 65_536;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AttentionForm {
    /// Scores are never all held; the log-sum-exp is kept (arXiv:2205.14135).
    #[default]
    Flash,
    /// Scores, their softmax and its dropout are tensors that are kept.
    Materialised,
}

impl AttentionForm {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            AttentionForm::Flash => "flash",
            AttentionForm::Materialised => "materialised",
        }
    }
}

/// Activation recomputation: what the forward does not keep and the backward computes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Recompute {
    /// Everything is kept.
    #[default]
    None,
    /// The core of attention where scores are materialised: from scores to the dropped-out softmax
    /// (arXiv:2205.05198 §5). With flash attention this recomputes nothing.
    Selective,
    /// The same, and the outputs of norms and activations: everything but matmuls.
    Cheap,
    /// The same, and the queries, keys and values of MLA: only the latents are kept (arXiv:2412.19437 §3.2.3).
    /// Without MLA this adds nothing.
    Latents,
    /// The same, and the whole MLP: a layer keeps only its input, and the inputs and outputs of its attention. With
    /// attention and MLP in parallel this adds nothing.
    FeedForward,
    /// All but each layer's input.
    Full,
}

impl Recompute {
    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Recompute::None => "none",
            Recompute::Selective => "selective",
            Recompute::Cheap => "cheap",
            Recompute::Latents => "latents",
            Recompute::FeedForward => "feed-forward",
            Recompute::Full => "full",
        }
    }
}

impl Recompute {
    /// All choices, by rising time and by falling kept bytes. Full recomputation holds a layer's attention meanwhile:
    /// with one microbatch in flight a rank may hold a little more with the last choice than with the one before.
    pub const ALL: [Recompute; 6] = [
        Recompute::None,
        Recompute::Selective,
        Recompute::Cheap,
        Recompute::Latents,
        Recompute::FeedForward,
        Recompute::Full,
    ];

    /// The choice of a name.
    pub fn named(name: &str) -> Option<Recompute> {
        Recompute::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// Activation offload: the layers of each stage that keep what the backward needs in host memory
/// ([`passes::offload_activations`](super::passes::offload_activations)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Offload {
    /// None.
    #[default]
    None,
    /// This many first layers of each stage, at least one. Their backward comes last, so they are needed last.
    First(u32),
    /// All.
    All,
    /// What the schedule says: copies of whole stages' activations for single microbatches
    /// ([`HostCopy`](crate::problem::copies::HostCopy)), which may last over several ops.
    Scheduled,
}

impl Offload {
    /// The number of first layers of a stage that a pass over its operators copies.
    pub const fn layers(self) -> Option<u32> {
        match self {
            Offload::None | Offload::Scheduled => None,
            Offload::First(layers) => Some(layers),
            Offload::All => Some(u32::MAX),
        }
    }

    /// As it stands in a spec: `none`, `all`, `scheduled`, or the number.
    pub fn text(self) -> String {
        match self {
            Offload::None => String::from("none"),
            Offload::First(layers) => format!("{layers}"),
            Offload::All => String::from("all"),
            Offload::Scheduled => String::from("scheduled"),
        }
    }
}

/// The greatest coefficient of a loss of routers: published ones are 0.01 and less.
pub const MAX_ROUTER_LOSS: f64 = 1000.0;

/// What routers are trained on besides the loss of their tokens
/// ([`Kernel::RouterLoss`](super::Kernel::RouterLoss)); coefficients in units of 10⁻¹².
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RouterLosses {
    /// Of the load balancing loss.
    pub balance_e12: u64,
    /// Of the router z-loss.
    pub z_e12: u64,
}

impl RouterLosses {
    /// None.
    pub const NONE: RouterLosses = RouterLosses { balance_e12: 0, z_e12: 0 };

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self == RouterLosses::NONE
    }

    fn check(self, model: &ModelConfig, faults: &mut Vec<Fault>) {
        for (field, coefficient) in [("training.moe_aux_loss", self.balance_e12), ("training.moe_z_loss", self.z_e12)]
        {
            let accepted = match &model.variant.experts {
                None => "nothing: the model has no experts",
                Some(experts) if experts.routing.scores == Scores::InputSigmoid => {
                    "nothing: this router weights what experts take in, and no published run balances it by a loss"
                }
                Some(_) => continue,
            };
            if coefficient > 0 {
                faults.push(Fault::new(field, of_e12(coefficient), accepted));
            }
        }
    }
}

/// How the operators of a stage are written and split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// How attention is computed.
    pub attention: AttentionForm,
    /// Whether there is dropout: after the embedding, on the softmax (where it is materialised) and before each
    /// residual sum.
    pub dropout: bool,
    /// Activation recomputation.
    pub recompute: Recompute,
    /// Activation offload.
    pub offload: Offload,
    /// Tensor parallel (TP) degree, t (arXiv:1909.08053).
    pub tensor: u32,
    /// Sequence parallel: whether the TP devices also share the tokens between the matrices (arXiv:2205.05198 §4.2.2).
    pub sequence_parallel: bool,
    /// Whether the TP all-reduce of dX overlaps the dW matmul
    /// ([`passes::overlap_all_reduce`](super::passes::overlap_all_reduce)).
    pub async_reduce: bool,
    /// Context parallel (CP) degree, c: devices that each hold a part of every sequence (arXiv:2310.01889).
    pub context: u32,
    /// Expert parallel (EP) degree, among the devices with different tokens.
    pub expert: u32,
    /// Whether an expert's matrices stay whole on one device where TP splits the others (expert tensor parallel = 1).
    pub whole_experts: bool,
    /// Expert tensor parallel (ETP) degree between 1 and that of TP: each expert's matrices are split over so many devices,
    /// which share the tokens of their slices; 0: [`Form::whole_experts`] says it.
    pub expert_tensor: u32,
    /// Expert load imbalance: tokens on the fullest device over the average, in thousandths.
    pub imbalance_permille: u32,
    /// The losses of routers.
    pub router_losses: RouterLosses,
    /// Whether bf16 logits are cast to an f32 tensor for the loss.
    pub f32_logits: bool,
    /// The format of the operands of layers' matmuls, one of [`Dtype::OF_MATMULS`], where it is not that of the tensors
    /// ([`passes::quantize`](super::passes::quantize)).
    pub matmul_dtype: Option<Dtype>,
    /// Whether gradients of bf16 weights are accumulated in bf16.
    pub bf16_gradients: bool,
    /// The weights that do not train.
    pub frozen: Frozen,
    /// Adapters that train in the place of all weights.
    pub lora: Option<Lora>,
}

/// The most that one device may see over the average, in thousandths.
pub const MAX_IMBALANCE_PERMILLE: u32 = 1_000_000;

impl Default for Form {
    fn default() -> Form {
        Form {
            attention: AttentionForm::Flash,
            dropout: false,
            recompute: Recompute::None,
            offload: Offload::None,
            tensor: 1,
            sequence_parallel: false,
            async_reduce: false,
            context: 1,
            expert: 1,
            whole_experts: false,
            expert_tensor: 0,
            imbalance_permille: 1000,
            router_losses: RouterLosses::NONE,
            f32_logits: false,
            matmul_dtype: None,
            bf16_gradients: false,
            frozen: Frozen::NONE,
            lora: None,
        }
    }
}

impl Form {
    /// Devices that an expert's matrices are split over: the ETP degree.
    pub const fn expert_ways(&self) -> u32 {
        let tensor = if self.tensor == 0 { 1 } else { self.tensor };
        match (self.expert_tensor, self.whole_experts) {
            (0, true) => 1,
            (0, false) => tensor,
            (ways, _) => ways,
        }
    }

    /// The same with another recomputation.
    pub const fn recomputing(self, recompute: Recompute) -> Form {
        Form { recompute, ..self }
    }

    /// Whether every weight trains, and nothing else does.
    pub fn trains_all(&self) -> bool {
        self.lora.is_none() && self.frozen.is_none()
    }

    /// Whether the weight `name` of `layer` does not train, where it is no adapter's.
    pub fn is_frozen(&self, name: &str, layer: Option<u32>) -> bool {
        self.lora.is_some() || self.frozen.covers(name, layer)
    }

    /// What of [`Form::frozen`] and [`Form::lora`] does not suit `model`.
    fn find_post_training_faults(&self, model: &ModelConfig, faults: &mut Vec<Fault>) {
        let frozen = &self.frozen;
        if let Some(lora) = &self.lora {
            if !frozen.is_none() {
                let accepted = "nothing, because training.lora freezes all weights of the model";
                faults.push(Fault::new("training.frozen", frozen.texts().join(", "), accepted));
            }
            find_target_faults(lora, model, faults);
            return;
        }
        let mut refuse = |found: &str, accepted: String| faults.push(Fault::new("training.frozen", found, accepted));
        if model.tied && frozen.has(Module::Embedding) != frozen.has(Module::Head) {
            let accepted = "embedding and head together: the model is tied, so they are one matrix";
            refuse(if frozen.has(Module::Head) { "head alone" } else { "embedding alone" }, String::from(accepted));
        }
        for module in [Module::Vision, Module::Projector] {
            if frozen.has(module) && model.variant.vision.is_none() {
                refuse(
                    module.name(),
                    String::from("a module that the model has: model.vision gives it a vision tower"),
                );
            }
        }
        for module in [Module::Experts, Module::SharedExperts, Module::Router] {
            let has = model
                .variant
                .experts
                .is_some_and(|experts| module != Module::SharedExperts || experts.shared_ffn > 0);
            if frozen.has(module) && !has {
                refuse(module.name(), String::from("a module that the model has"));
            }
        }
        if let Some(last) = frozen.last_layer().filter(|last| *last >= model.layers) {
            refuse(&format!("layer {last}"), format!("layers from 0 to {}", model.layers.saturating_sub(1)));
        }
        if !frozen.is_none() && !self.trains_any(model) {
            refuse("every weight", String::from("a list that leaves something to train"));
        }
    }

    /// Whether a weight trains, without adapters.
    fn trains_any(&self, model: &ModelConfig) -> bool {
        let frozen = &self.frozen;
        let layer_trains = |layer: u32| {
            let parts = match model.variant.experts.filter(|_| model.has_experts(layer)) {
                None => frozen.has(Module::Mlp),
                Some(experts) => {
                    let shared = experts.shared_ffn == 0 || frozen.has(Module::SharedExperts);
                    frozen.has(Module::Mlp) || shared && frozen.has(Module::Experts) && frozen.has(Module::Router)
                }
            };
            let modules = frozen.has(Module::Attention) && frozen.has(Module::Norms) && parts;
            !modules && !frozen.has_layer(layer)
        };
        let ends = [Module::Embedding, Module::Head, Module::Norms];
        // The projection of multi-token prediction is in no module.
        let multi_token = model.variant.multi_token > 0;
        let sees = model.variant.vision.is_some();
        let of_images = sees && !(frozen.has(Module::Vision) && frozen.has(Module::Projector));
        multi_token
            || of_images
            || !ends.into_iter().all(|module| frozen.has(module))
            || (0..model.layers).any(layer_trains)
    }

    /// What keeps `model` with `sequence` tokens from being split so, each with its field below `path` and the
    /// nearest degree that works.
    pub fn find_faults(&self, model: &ModelConfig, sequence: u32, path: &str, faults: &mut Vec<Fault>) {
        let field = if path.is_empty() { String::from("tensor") } else { format!("{path}.tensor") };
        let tensor = self.tensor;
        self.find_spread_faults(model, sequence, path, faults);
        self.find_post_training_faults(model, faults);
        self.find_vision_faults(model, sequence, path, faults);
        let is_apart = self.whole_experts || self.expert_tensor > 0;
        let expert_ffn = model.variant.experts.map_or(0, |experts| if is_apart { 0 } else { experts.ffn });
        let shared_ffn = model.variant.experts.map_or(0, |experts| experts.shared_ffn);
        let part = sequence / self.context.max(1);
        let divides = |tensor: u32| {
            let shares = |kv_heads: u32| kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(kv_heads.max(1));
            let heads = model.heads.is_multiple_of(tensor)
                && shares(model.kv_heads)
                && model.variant.global.is_none_or(|global| shares(global.kv_heads));
            let widths = [model.ffn, expert_ffn, shared_ffn].iter().all(|width| width.is_multiple_of(tensor));
            let recurs = model.variant.recurrence.is_none_or(|of| {
                let keys = of.key_heads.max(1);
                // The norm behind Mamba 2 is of whole groups, or of all of one group.
                let shares_keys = of.kind == RecurrenceKind::DeltaNet || keys == 1;
                let of_keys = keys.is_multiple_of(tensor) || shares_keys && tensor.is_multiple_of(keys);
                of.heads.is_multiple_of(tensor) && of_keys
            });
            heads && widths && recurs && (!self.sequence_parallel || part.is_multiple_of(tensor))
        };
        if tensor == 0 || tensor > MAX_DEGREE || !divides(tensor) {
            let nearest = (1..=model.heads.min(MAX_DEGREE))
                .filter(|degree| divides(*degree))
                .min_by_key(|degree| (degree.abs_diff(tensor), *degree))
                .unwrap_or(1);
            let with = if self.sequence_parallel { ", and divides ffn and sequence" } else { ", and divides ffn" };
            faults.push(Fault::new(
                field,
                tensor,
                format!(
                    "a number that divides heads ({}), kv_heads or is a multiple of them ({}){with}, such as {nearest}",
                    model.heads, model.kv_heads
                ),
            ));
        }
    }

    /// What of a vision tower does not suit its sequences or its devices.
    fn find_vision_faults(&self, model: &ModelConfig, sequence: u32, path: &str, faults: &mut Vec<Fault>) {
        let Some(vision) = model.variant.vision else { return };
        let tokens = u64::from(vision.tokens) * u64::from(vision.images);
        if tokens > sequence.into() {
            let accepted =
                format!("at most {} for images of {} tokens", sequence / vision.tokens.max(1), vision.tokens);
            faults.push(Fault::new(
                "model.vision.images",
                vision.images,
                format!("{accepted}: a sequence has {sequence}"),
            ));
        }
        let divides = |degree: u32| vision.heads.is_multiple_of(degree) && vision.ffn.is_multiple_of(degree);
        if self.tensor > 0 && !divides(self.tensor) {
            let field = if path.is_empty() { String::from("tensor") } else { format!("{path}.tensor") };
            let works = (1..=self.tensor.min(MAX_DEGREE)).rev().find(|degree| divides(*degree)).unwrap_or(1);
            let accepted = format!(
                "a number that divides heads ({}) and ffn ({}) of the vision tower, such as {works}",
                vision.heads, vision.ffn
            );
            faults.push(Fault::new(field, self.tensor, accepted));
        }
    }

    /// Parts of the model that take whole sequences, or whole chunks.
    fn find_sequence_faults(
        &self,
        model: &ModelConfig,
        sequence: u32,
        field: &dyn Fn(&str) -> String,
        faults: &mut Vec<Fault>,
    ) {
        let variant = &model.variant;
        let chunk = variant.window.filter(|window| window.chunked && window.tokens < sequence);
        if let Some(chunk) = chunk.filter(|chunk| !sequence.is_multiple_of(chunk.tokens)) {
            let accepted = format!("a multiple of the {} tokens of an attention chunk, or fewer", chunk.tokens);
            faults.push(Fault::new("training.sequence", sequence, accepted));
        }
        let whole = [
            (chunk.is_some(), "attention in chunks"),
            (variant.sinks, "attention sinks"),
            (variant.indexer.is_some(), "an indexer"),
            (variant.recurrence.is_some(), "a recurrence"),
        ];
        if let Some((_, part)) = whole.into_iter().find(|(has, _)| *has && self.context > 1) {
            faults.push(Fault::new(field("context"), self.context, format!("1: the model has {part}")));
        }
    }

    /// What keeps sequences and experts from being dealt out so.
    fn find_spread_faults(&self, model: &ModelConfig, sequence: u32, path: &str, faults: &mut Vec<Fault>) {
        let field = |name: &str| if path.is_empty() { String::from(name) } else { format!("{path}.{name}") };
        let nearest = |wanted: u32, of: u32| {
            let divisors = (1..=of.min(MAX_DEGREE)).filter(|degree| of.is_multiple_of(*degree));
            divisors.min_by_key(|degree| (degree.abs_diff(wanted), *degree)).unwrap_or(1)
        };
        let deals = |context: u32| SequencePart::divides(sequence.into(), context.into());
        if self.context == 0 || self.context > MAX_DEGREE || !deals(self.context) {
            let degrees = (1..=MAX_DEGREE).filter(|degree| deals(*degree));
            let works = degrees.min_by_key(|degree| (degree.abs_diff(self.context), *degree)).unwrap_or(1);
            let accepted =
                format!("1, or a number whose double divides training.sequence ({sequence}), such as {works}");
            faults.push(Fault::new(field("context"), self.context, accepted));
        }
        let hides = |window: Window| window.tokens < sequence && window.full_every != 1;
        let windowed = model.variant.window.is_some_and(hides);
        let spread = self.context > 1 || model.variant.latent.is_some() || windowed || model.variant.sinks;
        if spread && self.attention == AttentionForm::Materialised {
            let accepted = match model.variant.sinks {
                true => "flash, because of attention sinks",
                false => "flash, because of context parallelism, MLA or a sliding window",
            };
            faults.push(Fault::new("training.attention", self.attention.name(), accepted));
        }
        self.find_sequence_faults(model, sequence, &field, faults);
        match model.variant.experts {
            None => {
                let accepted = "nothing: the model has no experts";
                if self.expert != 1 {
                    faults.push(Fault::new(field("expert"), self.expert, accepted));
                }
                if self.whole_experts {
                    faults.push(Fault::new(field("whole_experts"), "true", accepted));
                }
                if self.expert_tensor > 0 {
                    faults.push(Fault::new(field("expert_tensor"), self.expert_tensor, accepted));
                }
            }
            Some(experts) => {
                if self.expert == 0 || !experts.count.is_multiple_of(self.expert) {
                    let works = nearest(self.expert, experts.count);
                    let accepted = format!("a number that divides the experts ({}), such as {works}", experts.count);
                    faults.push(Fault::new(field("expert"), self.expert, accepted));
                }
                let ways = self.expert_tensor;
                let divides = ways > 1 && ways < self.tensor && self.tensor.is_multiple_of(ways);
                if ways > 0 && !(divides && experts.ffn.is_multiple_of(ways)) {
                    let accepted =
                        format!("a number that divides tensor ({}) and experts.ffn ({})", self.tensor, experts.ffn);
                    faults.push(Fault::new(field("expert_tensor"), ways, accepted));
                }
                if ways > 0 && self.whole_experts {
                    faults.push(Fault::new(field("expert_tensor"), ways, "nothing beside whole_experts"));
                }
                if ways > 0 && !self.sequence_parallel {
                    let accepted = "1 or tensor without sequence_parallel: then each device routes the same tokens";
                    faults.push(Fault::new(field("expert_tensor"), ways, accepted));
                }
                if self.whole_experts && self.tensor > 1 && !self.sequence_parallel {
                    let accepted = "true only with sequence_parallel: then each device routes different tokens";
                    faults.push(Fault::new(field("whole_experts"), "true", accepted));
                }
            }
        }
        if !(1000..=MAX_IMBALANCE_PERMILLE).contains(&self.imbalance_permille) {
            let found = f64::from(self.imbalance_permille) / 1000.0;
            let accepted = format!("a number from 1 (none) to {}", MAX_IMBALANCE_PERMILLE / 1000);
            faults.push(Fault::new("training.expert_imbalance", found, accepted));
        } else if self.imbalance_permille != 1000 && model.variant.experts.is_none() {
            let found = f64::from(self.imbalance_permille) / 1000.0;
            faults.push(Fault::new("training.expert_imbalance", found, "nothing: the model has no experts"));
        }
        self.router_losses.check(model, faults);
    }
}

/// The part of a model that a stage holds, and the size of its microbatches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageShape {
    /// Its decoder layers, counted over the whole model.
    pub layers: Range<u32>,
    /// Whether it starts with the embedding: the first stage does.
    pub has_embedding: bool,
    /// Whether it ends with the final norm, the head and the loss: the last stage does.
    pub has_head: bool,
    /// Its modules of multi-token prediction.
    pub modules: Modules,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Number format of weights and activations.
    pub dtype: Dtype,
    /// How its operators are written and split. With more than one device a stage, the graph has one device's sizes.
    pub form: Form,
}

impl StageShape {
    /// Tokens of one microbatch.
    pub fn tokens(&self) -> u64 {
        u64::from(self.microbatch_size) * u64::from(self.sequence)
    }
}
/// Targets of `lora` that `model` has no matrix for.
fn find_target_faults(lora: &Lora, model: &ModelConfig, faults: &mut Vec<Fault>) {
    if lora.targets == Targets::ALL {
        return;
    }
    let variant = &model.variant;
    let attends = (0..model.layers).any(|layer| model.recurrence(layer).is_none());
    let latent = variant.latent.filter(|_| attends);
    let narrow = latent.is_some_and(|latent| latent.query_rank > 0);
    let is_gated = model.family == Family::Llama && variant.activation.is_gated();
    for target in Target::ALL.into_iter().filter(|target| lora.targets.has(*target)) {
        let has = match target {
            Target::Q => attends && !narrow,
            Target::K | Target::V => attends && latent.is_none(),
            Target::O => attends,
            Target::Gate => is_gated || variant.experts.is_some() || variant.attention_gate,
            Target::Up | Target::Down => true,
            Target::QA | Target::QB => narrow,
            Target::KvA | Target::KvB => latent.is_some(),
            Target::In | Target::Out => variant.recurrence.is_some(),
        };
        if !has {
            let accepted = "matrices that the model has; all-linear means all of them";
            faults.push(Fault::new("training.lora.targets", target.name(), accepted));
        }
    }
}
