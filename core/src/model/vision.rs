//! A vision tower: the encoder of images before a decoder, and the projector that makes tokens of what it gives.
//!
//! Patches of an image go through layers that attend to all patches of their image. The projector makes fewer tokens of
//! them, of the decoder's width, which stand in the sequence among those of text. Sizes and parameters are those of
//! `transformers` 5.

use alloc::format;
use alloc::string::String;
use core::fmt::Display;

use super::MAX_SIZE;

/// The kind of a tower's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoder {
    /// CLIP (arXiv:2103.00020): LayerNorm, learned positions, GELU, a class token.
    Clip,
    /// SigLIP (arXiv:2303.15343): the same without a class token.
    Siglip,
    /// Qwen 2.5 VL (arXiv:2502.13923 §2.1): RMSNorm, rotary positions, SwiGLU, most layers within windows.
    Qwen25,
    /// Qwen 3 VL (arXiv:2511.21631 §2): as SigLIP with rotary positions as well.
    Qwen3,
    /// Pixtral (arXiv:2410.07073 §2.2): RMSNorm, rotary positions, SwiGLU, no biases.
    Pixtral,
    /// Llama 4: as CLIP with rotary positions as well.
    Llama4,
}

impl Encoder {
    /// All of them.
    pub const ALL: [Encoder; 6] =
        [Encoder::Clip, Encoder::Siglip, Encoder::Qwen25, Encoder::Qwen3, Encoder::Pixtral, Encoder::Llama4];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Encoder::Clip => "clip",
            Encoder::Siglip => "siglip",
            Encoder::Qwen25 => "qwen-2.5-vl",
            Encoder::Qwen3 => "qwen-3-vl",
            Encoder::Pixtral => "pixtral",
            Encoder::Llama4 => "llama-4",
        }
    }

    /// Whether norms are RMSNorm and the MLP has a gate.
    pub const fn is_gated(self) -> bool {
        matches!(self, Encoder::Qwen25 | Encoder::Pixtral)
    }

    /// Whether matrices of layers have biases.
    pub const fn has_biases(self) -> bool {
        !matches!(self, Encoder::Pixtral)
    }

    /// Whether the matrix that takes patches has a bias.
    pub const fn has_patch_bias(self) -> bool {
        matches!(self, Encoder::Siglip | Encoder::Qwen3)
    }

    /// Whether each image has a class token before its patches.
    pub const fn has_class_token(self) -> bool {
        matches!(self, Encoder::Clip | Encoder::Llama4)
    }

    /// Whether positions are learned.
    pub const fn has_table(self) -> bool {
        !matches!(self, Encoder::Qwen25 | Encoder::Pixtral)
    }

    /// Whether queries and keys are turned by their positions.
    pub const fn is_rotary(self) -> bool {
        matches!(self, Encoder::Qwen25 | Encoder::Qwen3 | Encoder::Pixtral | Encoder::Llama4)
    }

    /// Whether a norm stands before the first layer.
    pub const fn has_norm_before(self) -> bool {
        matches!(self, Encoder::Clip | Encoder::Pixtral | Encoder::Llama4)
    }

    /// Whether a norm stands behind the last layer.
    pub const fn has_norm_behind(self) -> bool {
        matches!(self, Encoder::Clip | Encoder::Siglip | Encoder::Llama4)
    }

    /// Frames that a patch has: an image is one frame, twice.
    pub const fn frames(self) -> u32 {
        if matches!(self, Encoder::Qwen25 | Encoder::Qwen3) { 2 } else { 1 }
    }

    /// The projector that models with such a tower usually have.
    pub const fn usual_projector(self) -> Projector {
        match self {
            Encoder::Clip => Projector::Mlp,
            Encoder::Siglip => Projector::Pooled,
            Encoder::Qwen25 | Encoder::Qwen3 => Projector::Merger,
            Encoder::Pixtral => Projector::PatchMerger,
            Encoder::Llama4 => Projector::Shuffle,
        }
    }
}

/// What makes tokens of a tower's patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Projector {
    /// Two matrices with biases and GELU between them (LLaVA 1.5, arXiv:2310.03744).
    Mlp,
    /// The mean of patches, a norm and a matrix (Gemma 3, arXiv:2503.19786 §2).
    Pooled,
    /// A norm, and two matrices with biases over patches side by side (Qwen VL).
    Merger,
    /// A norm, a matrix over patches side by side, and two matrices without biases (Mistral Small 3.1).
    PatchMerger,
    /// Two matrices over patches side by side, and one to the decoder's width, without biases (Llama 4).
    Shuffle,
}

impl Projector {
    /// All of them.
    pub const ALL: [Projector; 5] =
        [Projector::Mlp, Projector::Pooled, Projector::Merger, Projector::PatchMerger, Projector::Shuffle];

    /// The name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Projector::Mlp => "mlp",
            Projector::Pooled => "pooled",
            Projector::Merger => "merger",
            Projector::PatchMerger => "patch-merger",
            Projector::Shuffle => "shuffle",
        }
    }
}

/// A vision tower with its projector, and the images that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vision {
    /// The kind of its layers.
    pub encoder: Encoder,
    /// What joins it to the decoder.
    pub projector: Projector,
    /// Its layers.
    pub layers: u32,
    /// Its hidden size.
    pub hidden: u32,
    /// Its attention heads.
    pub heads: u32,
    /// Inner width of its MLP.
    pub ffn: u32,
    /// Side of a patch, in pixels of three colours.
    pub patch: u32,
    /// Patches that one token of the decoder is made of.
    pub merge: u32,
    /// Tokens of an image in the decoder's sequence.
    pub tokens: u32,
    /// Images of a sequence.
    pub images: u32,
    /// Rows of the table of learned positions, where there is one.
    pub positions: u32,
    /// Patches of a window; 0: all layers see whole images.
    pub window: u32,
    /// Layers that see whole images where others have windows.
    pub full_layers: u32,
    /// Further mergers behind layers of the tower, whose tokens are added to the decoder's stream (DeepStack).
    pub deepstack: u32,
    /// Inner width of [`Projector::Shuffle`]; else 0.
    pub width: u32,
    /// Columns of what leaves a merger or the shuffle; 0: the decoder's width.
    pub output: u32,
    /// Whether a pooling head, which no decoder reads, is held as well (SigLIP's).
    pub head: bool,
}

/// Most layers of a tower.
pub const MAX_VISION_LAYERS: u32 = 512;

impl Vision {
    /// Patches of an image.
    pub fn patches(&self) -> u64 {
        u64::from(self.tokens) * u64::from(self.merge)
    }

    /// Rows of an image in the tower: its patches, and a class token.
    pub fn rows(&self) -> u64 {
        self.patches() + u64::from(self.encoder.has_class_token())
    }

    /// Numbers of a patch.
    pub fn patch_width(&self) -> u64 {
        3 * u64::from(self.encoder.frames()) * u64::from(self.patch) * u64::from(self.patch)
    }

    /// Columns of what leaves a merger, for a decoder of width `decoder`.
    pub fn output(&self, decoder: u32) -> u32 {
        if self.output == 0 { decoder } else { self.output }
    }

    /// Whether `layer` of the tower sees whole images.
    pub fn sees_all(&self, layer: u32) -> bool {
        let period = self.layers.checked_div(self.full_layers).unwrap_or(0);
        self.window == 0 || period > 0 && (layer + 1).is_multiple_of(period)
    }

    /// Parameters of the tower alone, without its projector.
    pub fn tower_parameters(&self) -> u64 {
        let (of, [hidden, ffn]) = (self.encoder, [self.hidden, self.ffn].map(u64::from));
        let if_so = |is_so: bool, number: u64| if is_so { number } else { 0 };
        let norm = self.norm(hidden);
        let matrices = 4 * hidden * hidden + if of.is_gated() { 3 } else { 2 } * hidden * ffn;
        let biases = 4 * hidden + hidden + if of.is_gated() { 2 } else { 1 } * ffn;
        let layer = matrices + if_so(of.has_biases(), biases) + 2 * norm;
        // A probe that attends to all patches, a norm and an MLP.
        let head = hidden + 4 * hidden * (hidden + 1) + norm + 2 * hidden * ffn + ffn + hidden;
        u64::from(self.layers) * layer
            + self.patch_width() * hidden
            + if_so(of.has_patch_bias(), hidden)
            + if_so(of.has_class_token(), hidden)
            + if_so(of.has_table(), u64::from(self.positions) * hidden)
            + if_so(of.has_norm_before(), norm)
            + if_so(of.has_norm_behind(), norm)
            + if_so(self.head, head)
    }

    /// Parameters of the projector to a decoder of width `decoder`.
    pub fn projector_parameters(&self, decoder: u32) -> u64 {
        let [hidden, merge, width, deepstack] = [self.hidden, self.merge, self.width, self.deepstack].map(u64::from);
        let (output, decoder) = (u64::from(self.output(decoder)), u64::from(decoder));
        let side_by_side = merge * hidden;
        match self.projector {
            Projector::Mlp => (hidden + 1) * decoder + (decoder + 1) * decoder,
            Projector::Pooled => hidden + hidden * decoder,
            Projector::Merger => {
                let matrices = (side_by_side + 1) * side_by_side + (side_by_side + 1) * output;
                matrices + self.norm(hidden) + deepstack * (matrices + self.norm(side_by_side))
            }
            Projector::PatchMerger => hidden + side_by_side * hidden + hidden * decoder + decoder * decoder,
            Projector::Shuffle => u64::from(self.ffn) * width + width * width + output * decoder,
        }
    }

    /// Parameters of the tower and of its projector.
    pub fn parameters(&self, decoder: u32) -> u64 {
        self.tower_parameters().saturating_add(self.projector_parameters(decoder))
    }

    /// Parameters of a norm of such a width.
    fn norm(&self, width: u64) -> u64 {
        if self.encoder.is_gated() { width } else { 2 * width }
    }

    /// What is wrong with the sizes, each with its field below `vision`.
    pub(super) fn find_faults(&self, fault: &mut impl FnMut(&str, &dyn Display, String)) {
        for (field, value, least, most) in [
            ("vision.layers", self.layers, 1, MAX_VISION_LAYERS),
            ("vision.hidden", self.hidden, 1, MAX_SIZE >> 4),
            ("vision.heads", self.heads, 1, MAX_SIZE >> 4),
            ("vision.ffn", self.ffn, 1, MAX_SIZE),
            ("vision.patch", self.patch, 1, 1024),
            ("vision.merge", self.merge, 1, 1024),
            ("vision.tokens", self.tokens, 1, MAX_SIZE),
            ("vision.images", self.images, 1, MAX_SIZE),
            ("vision.positions", self.positions, 0, MAX_SIZE),
            ("vision.window", self.window, 0, MAX_SIZE),
            ("vision.full_layers", self.full_layers, 0, self.layers),
            ("vision.deepstack", self.deepstack, 0, self.layers),
            ("vision.width", self.width, 0, MAX_SIZE),
            ("vision.output", self.output, 0, MAX_SIZE),
        ] {
            if !(least..=most).contains(&value) {
                fault(field, &value, format!("a whole number from {least} to {most}"));
            }
        }
        if self.heads > 0 && !self.hidden.is_multiple_of(self.heads) {
            fault("vision.heads", &self.heads, format!("a divisor of vision.hidden ({})", self.hidden));
        }
        let side_by_side = u64::from(self.merge) * u64::from(self.hidden);
        if self.projector == Projector::Shuffle && u64::from(self.ffn) != side_by_side {
            let accepted = format!("{side_by_side}, which is merge · hidden: what the projector `shuffle` takes in");
            fault("vision.ffn", &self.ffn, accepted);
        }
        if self.projector == Projector::Shuffle && (self.width == 0 || self.output != self.width) {
            let accepted = String::from("the inner width of the projector, such as 4096, which is vision.output too");
            fault("vision.width", &self.width, accepted);
        }
        if self.deepstack > 0 && self.projector != Projector::Merger {
            fault(
                "vision.deepstack",
                &self.deepstack,
                String::from("0: only the projector `merger` has more of its kind"),
            );
        }
    }
}
