//! Post-training: which weights a run trains. Frozen weights have no gradient, no optimizer states and no W op; LoRA
//! freezes all weights and trains two narrow matrices beside those that it targets.
//!
//! - In: names and layers of weights, as the graph has them.
//! - Out: whether each is frozen, and whether it has an adapter.
//! - Knows: models. What follows for operators is the [`backward`](super::backward)'s: it writes no operator that only
//!   frozen weights would read, so that nothing is kept for one either.
//!
//! Source: arXiv:2106.09685 (LoRA).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::model::{E12, MAX_LAYERS};

/// A module of a model whose weights may be frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// The table of token embeddings, and learned positions.
    Embedding,
    /// The matrix that gives logits.
    Head,
    /// Attention, and what stands in its place: all of `self_attn`, `linear_attn` and `mamba`.
    Attention,
    /// All of the feed-forward part, with its experts.
    Mlp,
    /// Routed experts.
    Experts,
    /// Experts that see every token, and their gate.
    SharedExperts,
    /// What chooses experts.
    Router,
    /// Norms of the decoder, wherever they are.
    Norms,
    /// A vision tower.
    Vision,
    /// What joins a vision tower to the decoder.
    Projector,
}

impl Module {
    /// Every module.
    pub const ALL: [Module; 10] = [
        Module::Embedding,
        Module::Head,
        Module::Attention,
        Module::Mlp,
        Module::Experts,
        Module::SharedExperts,
        Module::Router,
        Module::Norms,
        Module::Vision,
        Module::Projector,
    ];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Module::Embedding => "embedding",
            Module::Head => "head",
            Module::Attention => "attention",
            Module::Mlp => "mlp",
            Module::Experts => "experts",
            Module::SharedExperts => "shared-experts",
            Module::Router => "router",
            Module::Norms => "norms",
            Module::Vision => "vision",
            Module::Projector => "projector",
        }
    }

    /// Whether the weight `name` is one of the module's.
    fn has(self, name: &str) -> bool {
        let has = |part: &str| name.contains(part);
        // Names of other modules' parts are in a tower, too.
        if let Some(of_images) = of_images(name) {
            return self == of_images;
        }
        match self {
            Module::Vision | Module::Projector => false,
            Module::Embedding => has(".embed_tokens.") || has(".embed_positions."),
            Module::Head => name.starts_with("lm_head."),
            Module::Attention => has(".self_attn.") || has(".linear_attn.") || has(".mamba."),
            Module::Mlp => has(".mlp.") || has(".fc1.") || has(".fc2."),
            Module::Experts => has(".mlp.experts."),
            Module::SharedExperts => has(".mlp.shared_expert"),
            Module::Router => has(".mlp.gate."),
            Module::Norms => has("norm"),
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// The module of a weight that only images go through.
fn of_images(name: &str) -> Option<Module> {
    let named = [(TOWER, Module::Vision), (PROJECTOR, Module::Projector)];
    named.into_iter().find(|(start, _)| name.starts_with(start)).map(|(_, module)| module)
}

/// How names of a vision tower's weights begin.
pub(super) const TOWER: &str = "vision_tower.";
/// How names of its projector's weights begin.
pub(super) const PROJECTOR: &str = "vision_projector.";

/// Most ranges of frozen layers.
pub const MAX_RANGES: usize = 8;

/// The weights that do not train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frozen {
    modules: u16,
    /// First and last layer of each range, in order and apart from each other.
    layers: [Option<(u32, u32)>; MAX_RANGES],
}

/// Why a list of frozen weights cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotFrozen {
    /// No module, and no range of layers.
    Unknown,
    /// More ranges than [`MAX_RANGES`].
    TooMany,
}

impl Frozen {
    /// None.
    pub const NONE: Frozen = Frozen { modules: 0, layers: [None; MAX_RANGES] };

    /// Whether all weights train.
    pub fn is_none(&self) -> bool {
        *self == Frozen::NONE
    }

    /// Adds what `text` says: a module, `layers.3`, or `layers.0-15`.
    ///
    /// # Errors
    /// Where it is neither, or one range too many.
    pub fn add(&mut self, text: &str) -> Result<(), NotFrozen> {
        if let Some(module) = Module::ALL.into_iter().find(|module| module.name() == text) {
            self.modules |= module.bit();
            return Ok(());
        }
        let range = text.strip_prefix("layers.").ok_or(NotFrozen::Unknown)?;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse().ok().filter(|layer| *layer < MAX_LAYERS).ok_or(NotFrozen::Unknown);
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(NotFrozen::Unknown);
        }
        let mut ranges: Vec<(u32, u32)> = self.layers.iter().flatten().copied().chain([(first, last)]).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match apart.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => apart.push((first, last)),
            }
        }
        if apart.len() > MAX_RANGES {
            return Err(NotFrozen::TooMany);
        }
        self.layers = [None; MAX_RANGES];
        self.layers.iter_mut().zip(apart).for_each(|(range, of)| *range = Some(of));
        Ok(())
    }

    /// The list that [`Frozen::add`] reads: modules, then ranges.
    pub fn texts(&self) -> Vec<String> {
        let modules = Module::ALL.into_iter().filter(|module| self.has(*module));
        let ranges = self.layers.iter().flatten().map(|(first, last)| match first == last {
            true => format!("layers.{first}"),
            false => format!("layers.{first}-{last}"),
        });
        modules.map(|module| module.name().to_string()).chain(ranges).collect()
    }

    /// Whether `module` is frozen wherever it is.
    pub const fn has(&self, module: Module) -> bool {
        self.modules & module.bit() != 0
    }

    /// Whether all of `layer` is frozen.
    pub fn has_layer(&self, layer: u32) -> bool {
        self.layers.iter().flatten().any(|(first, last)| (*first..=*last).contains(&layer))
    }

    /// The last layer that a range names.
    pub fn last_layer(&self) -> Option<u32> {
        self.layers.iter().flatten().map(|(_, last)| *last).max()
    }

    /// Whether the weight `name` of `layer` is frozen.
    pub fn covers(&self, name: &str, layer: Option<u32>) -> bool {
        let of_layer = layer.is_some_and(|layer| self.has_layer(layer));
        of_layer || Module::ALL.into_iter().any(|module| self.has(module) && module.has(name))
    }

    /// As two numbers and pairs, for a link.
    pub fn parts(&self) -> (u16, Vec<(u32, u32)>) {
        (self.modules, self.layers.iter().flatten().copied().collect())
    }

    /// The reverse of [`Frozen::parts`]; none for what no spec could say.
    pub fn of_parts(modules: u16, ranges: &[(u32, u32)]) -> Option<Frozen> {
        let mut frozen = Frozen { modules, ..Frozen::NONE };
        if modules >= 1 << Module::ALL.len() {
            return None;
        }
        for (first, last) in ranges {
            frozen.add(&format!("layers.{first}-{last}")).ok()?;
        }
        Some(frozen)
    }
}

/// A matrix of a layer that may have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// The last matrix of attention.
    O,
    /// The gate of a feed-forward part, of each expert too; and that of attention.
    Gate,
    /// The other half of it, or the first matrix where there is no gate.
    Up,
    /// The last matrix of a feed-forward part.
    Down,
    /// The latent of queries (MLA).
    QA,
    /// Queries from their latent.
    QB,
    /// The latent of keys and values (MLA).
    KvA,
    /// Keys and values from their latent.
    KvB,
    /// What enters a recurrence.
    In,
    /// The last matrix of a recurrence.
    Out,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 13] = [
        Target::Q,
        Target::K,
        Target::V,
        Target::O,
        Target::Gate,
        Target::Up,
        Target::Down,
        Target::QA,
        Target::QB,
        Target::KvA,
        Target::KvB,
        Target::In,
        Target::Out,
    ];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Q => "q",
            Target::K => "k",
            Target::V => "v",
            Target::O => "o",
            Target::Gate => "gate",
            Target::Up => "up",
            Target::Down => "down",
            Target::QA => "q_a",
            Target::QB => "q_b",
            Target::KvA => "kv_a",
            Target::KvB => "kv_b",
            Target::In => "in",
            Target::Out => "out",
        }
    }

    /// The last part of the names of its matrices, as Hugging Face's checkpoints have it and PEFT names targets.
    const fn modules(self) -> &'static [&'static str] {
        match self {
            Target::Q => &["q_proj"],
            Target::K => &["k_proj"],
            Target::V => &["v_proj"],
            Target::O => &["o_proj", "out_proj"],
            Target::Gate => &["gate_proj"],
            Target::Up => &["up_proj", "fc1"],
            Target::Down => &["down_proj", "fc2"],
            Target::QA => &["q_a_proj"],
            Target::QB => &["q_b_proj"],
            Target::KvA => &["kv_a_proj_with_mqa", "kv_a_proj"],
            Target::KvB => &["kv_b_proj"],
            Target::In => &[
                "in_proj",
                "in_proj_q",
                "in_proj_k",
                "in_proj_v",
                "in_proj_z",
                "in_proj_a",
                "in_proj_b",
                "in_proj_dt",
            ],
            Target::Out => &["out_proj"],
        }
    }

    /// The targets that Megatron Core's name of a module means: of a matrix that it holds joined, the parts that this
    /// program holds apart.
    const MEGATRON: [(&'static str, &'static [Target]); 9] = [
        ("linear_qkv", &[Target::Q, Target::K, Target::V]),
        ("linear_proj", &[Target::O]),
        ("linear_fc1", &[Target::Gate, Target::Up]),
        ("linear_fc2", &[Target::Down]),
        ("linear_q_proj", &[Target::Q]),
        ("linear_q_down_proj", &[Target::QA]),
        ("linear_q_up_proj", &[Target::QB]),
        ("linear_kv_down_proj", &[Target::KvA]),
        ("linear_kv_up_proj", &[Target::KvB]),
    ];

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Every matrix of a layer that can have an adapter, as PEFT and Megatron Bridge name the choice.
pub const ALL_LINEAR: &str = "all-linear";

/// The matrices that have adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Targets(u16);

impl Targets {
    /// None.
    pub const NONE: Targets = Targets(0);
    /// All of them.
    pub const ALL: Targets = Targets((1 << Target::ALL.len()) - 1);

    /// Adds what `name` means: a target's name, PEFT's or Megatron Core's name of it, or [`ALL_LINEAR`]. None for another.
    pub fn add(&mut self, name: &str) -> Option<()> {
        let megatron = Target::MEGATRON.into_iter().find(|(theirs, _)| *theirs == name);
        let own = |target: &Target| target.name() == name || target.modules().contains(&name);
        let named: Vec<Target> = match megatron {
            Some((_, targets)) => targets.to_vec(),
            None if name == ALL_LINEAR => Target::ALL.to_vec(),
            None => Target::ALL.into_iter().filter(own).collect(),
        };
        named.iter().for_each(|target| self.0 |= target.bit());
        (!named.is_empty()).then_some(())
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has `target`.
    pub const fn has(self, target: Target) -> bool {
        self.0 & target.bit() != 0
    }

    /// The names of its targets, or that of all.
    pub fn names(self) -> Vec<&'static str> {
        match self {
            Targets::ALL => [ALL_LINEAR].to_vec(),
            _ => Target::ALL.into_iter().filter(|target| self.has(*target)).map(Target::name).collect(),
        }
    }

    /// Whether the matrix `name`, such as `model.layers.0.mlp.up_proj`, is among them. Routers, and gates that are one
    /// number a token, never are.
    pub fn cover(self, name: &str) -> bool {
        let module = name.rsplit('.').next().unwrap_or(name);
        let is_of_recurrence = name.contains(".linear_attn.") || name.contains(".mamba.");
        Target::ALL.into_iter().filter(|target| self.has(*target)).any(|target| {
            // `out_proj` ends attention in one model and a recurrence in another.
            let is_here = match target {
                Target::O => !is_of_recurrence,
                Target::In | Target::Out => is_of_recurrence,
                _ => true,
            };
            is_here && target.modules().contains(&module)
        })
    }

    /// As a number, for a link.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The reverse of [`Targets::bits`].
    pub const fn of_bits(bits: u16) -> Option<Targets> {
        if bits == 0 || bits > Targets::ALL.0 { None } else { Some(Targets(bits)) }
    }
}

/// Names that a target may have, for a fault.
pub fn accepted_targets() -> String {
    let own = Target::ALL.map(Target::name).join(", ");
    let megatron = Target::MEGATRON.map(|(name, _)| name).join(", ");
    format!("{own}; PEFT's names of them (q_proj, fc1, …); Megatron Core's ({megatron}); or {ALL_LINEAR}")
}

/// Largest rank of adapters.
pub const MAX_RANK: u32 = 65_536;
/// Largest alpha of adapters.
pub const MAX_ALPHA: u32 = 1 << 20;

/// LoRA: beside each targeted matrix `W` of `[out, in]`, `y = W x + (alpha / rank) · B A x` with `A` of `[rank, in]` and
/// `B` of `[out, rank]`, which alone train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lora {
    /// The rank, r.
    pub rank: u32,
    /// What the adapters' product is multiplied with, times the rank.
    pub alpha: u32,
    /// The matrices that have adapters.
    pub targets: Targets,
}

impl Lora {
    /// The factor on the adapters' product in units of 10⁻¹², where it is not 1.
    pub fn factor_e12(&self) -> Option<u64> {
        let rank = u64::from(self.rank.max(1));
        (self.alpha != self.rank).then(|| u64::from(self.alpha) * E12 / rank)
    }
}

/// What a run trains, in one line: for a checkpoint, and for people.
pub fn text(frozen: &Frozen, lora: Option<&Lora>) -> Option<String> {
    match lora {
        Some(Lora { rank, alpha, targets }) => {
            Some(format!("LoRA of rank {rank}, alpha {alpha}, on {}", targets.names().join(", ")))
        }
        None if frozen.is_none() => None,
        None => Some(format!("all but {}", frozen.texts().join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(texts: &[&str]) -> Frozen {
        let mut frozen = Frozen::NONE;
        texts.iter().for_each(|text| frozen.add(text).unwrap_or_else(|why| panic!("{text}: {why:?}")));
        frozen
    }

    #[test]
    fn ranges_that_touch_are_one_and_texts_come_back() {
        let of = frozen(&["layers.4-7", "norms", "layers.0-3", "layers.9", "embedding", "layers.6"]);
        assert_eq!(of.texts(), ["embedding", "norms", "layers.0-7", "layers.9"]);
        let (modules, ranges) = of.parts();
        assert_eq!(Frozen::of_parts(modules, &ranges), Some(of));
        assert!(of.has_layer(7) && !of.has_layer(8) && of.has_layer(9) && !of.has_layer(10));
        for text in ["layer.0", "layers.", "layers.3-1", "layers.a", "layers.-1", "layers.99999999", "lm_head", ""] {
            let mut frozen = Frozen::NONE;
            assert_eq!(frozen.add(text), Err(NotFrozen::Unknown), "{text}");
        }
        let mut many = Frozen::NONE;
        (0..8).for_each(|range| many.add(&format!("layers.{}", 2 * range)).expect("there is room"));
        assert_eq!(many.add("layers.100"), Err(NotFrozen::TooMany));
    }

    #[test]
    fn modules_have_the_weights_that_their_names_say() {
        let layer = |name: &str| name.contains(".layers.3.").then_some(3);
        let of = |module: &str, name: &str| frozen(&[module]).covers(name, layer(name));
        for (name, modules) in [
            ("model.embed_tokens.weight", &["embedding"][..]),
            ("model.decoder.embed_positions.weight", &["embedding"]),
            ("lm_head.weight", &["head"]),
            ("model.layers.3.self_attn.q_proj.weight", &["attention", "layers.3"]),
            ("model.layers.3.self_attn.q_norm.weight", &["attention", "norms", "layers.3"]),
            ("model.layers.3.mlp.gate_proj.weight", &["mlp", "layers.3"]),
            ("model.layers.3.mlp.gate.weight", &["mlp", "router", "layers.3"]),
            ("model.layers.3.mlp.experts.up_proj.weight", &["mlp", "experts", "layers.3"]),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", &["mlp", "shared-experts", "layers.3"]),
            ("model.decoder.layers.3.fc2.bias", &["mlp", "layers.3"]),
            ("model.decoder.layers.3.self_attn_layer_norm.bias", &["norms", "layers.3"]),
        ] {
            let all = Module::ALL.map(Module::name).into_iter().chain(["layers.3", "layers.4-9"]);
            let found: Vec<&str> = all.filter(|module| of(module, name)).collect();
            assert_eq!(found, modules, "{name}");
        }
    }

    /// The names of PEFT and of Megatron Core mean the same matrices as the short ones.
    #[test]
    fn targets_go_by_the_names_that_others_have() {
        let of = |names: &[&str]| {
            let mut targets = Targets::NONE;
            names.iter().for_each(|name| targets.add(name).unwrap_or_else(|| panic!("{name}")));
            targets
        };
        let short = of(&["q", "k", "v", "o", "gate", "up", "down"]);
        let peft = of(&["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
        assert_eq!(short, peft);
        assert_eq!(short, of(&["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]));
        assert_eq!((of(&["all-linear"]), Targets::ALL.names()), (Targets::ALL, Vec::from([ALL_LINEAR])));
        let mut targets = Targets::NONE;
        assert_eq!(targets.add("lm_head"), None);
        assert_eq!(Targets::of_bits(short.bits()), Some(short));
        assert!(short.cover("model.layers.0.mlp.experts.down_proj") && !short.cover("model.layers.0.mlp.gate"));
        assert!(of(&["o"]).cover("model.decoder.layers.0.self_attn.out_proj"));
        assert!(!of(&["o"]).cover("model.layers.0.linear_attn.out_proj"));
        assert!(Targets::ALL.cover("model.layers.0.linear_attn.in_proj_q"));
    }
}
