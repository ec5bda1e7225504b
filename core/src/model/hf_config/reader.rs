//! The fields that several families share: sizes, norms, rotary positions, windows, and what a family does not have.

use alloc::format;
use alloc::vec::Vec;

use serde_json::Value;

use crate::base::fields::{Fault, Table, one_of, shown};
use crate::model::{MAX_FACTOR, MAX_LAYERS, MAX_SIZE, Window, no_width, to_e12};

/// A `config.json` that is being read, and its faults so far.
pub(super) struct Reader<'v, 'f> {
    pub(super) table: Table<'v>,
    pub(super) faults: &'f mut Vec<Fault>,
}

impl Reader<'_, '_> {
    /// A required size.
    pub(super) fn size(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_SIZE), self.faults).map(|size| size as u32)
    }

    /// An optional size.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<u32> {
        self.table.whole(key, 0..=u64::from(MAX_SIZE), self.faults).map(|size| size as u32)
    }

    /// The number of layers.
    pub(super) fn layers(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_LAYERS), self.faults).map(|layers| layers as u32)
    }

    /// A norm's `eps` in units of 10⁻¹².
    pub(super) fn eps(&mut self, key: &'static str) -> Option<u64> {
        if self.table.get(key).is_none() {
            self.faults.push(Fault::new(self.table.path(key), "nothing", "a number above 0, such as 1e-5"));
            return None;
        }
        self.table.positive(key, 1.0, self.faults).map(|eps| libm::round(eps * 1e12) as u64)
    }

    /// A flag; `otherwise` where the file does not have it.
    pub(super) fn flag(&mut self, key: &'static str, otherwise: bool) -> bool {
        self.table.flag(key, self.faults).unwrap_or(otherwise)
    }

    /// RoPE theta: at the top under one of two names, or in the `rope_parameters` of newer files; else 10,000.
    pub(super) fn rope_base(&mut self) -> u32 {
        let most = f64::from(u32::MAX);
        let own = ["rope_theta", "rotary_emb_base"].map(|key| self.table.positive(key, most, self.faults));
        let nested = self.of_rope("rope_theta", most);
        own[0].or(own[1]).or(nested).map_or(10_000, |base| libm::round(base) as u32)
    }

    /// A number of `rope_parameters`.
    fn of_rope(&mut self, key: &'static str, most: f64) -> Option<f64> {
        // Families with several kinds of attention have a table for each kind of layer.
        let mut nested = self.table.table("rope_parameters", self.faults)?;
        if nested.get("full_attention").is_some() {
            nested = nested.table("full_attention", self.faults)?;
        }
        nested.positive(key, most, self.faults)
    }

    /// The partial rotary dim of a head, from the share of `head_dim` that the file gives.
    pub(super) fn rotary(&mut self, key: &'static str, usual: f64, head_dim: u32) -> u32 {
        let nested = self.of_rope("partial_rotary_factor", 1.0);
        let share = self.table.positive(key, 1.0, self.faults).or(nested).unwrap_or(usual);
        libm::trunc(f64::from(head_dim) * share) as u32
    }

    /// Refuses another function than `names` in any of the fields `keys`.
    pub(super) fn function(&mut self, keys: &[&'static str], names: &[&str]) {
        for key in keys {
            let Some(value) = self.table.get(key) else { continue };
            if !value.as_str().is_some_and(|name| names.contains(&name)) {
                let accepted = format!("{}: no other is supported for this family", one_of(names));
                self.faults.push(Fault::new(self.table.path(key), shown(value), accepted));
            }
        }
    }

    /// Refuses a flag that the family's library ignores.
    pub(super) fn never(&mut self, key: &'static str) {
        if self.flag(key, false) {
            self.faults.push(Fault::new(self.table.path(key), "true", "false: the library ignores this flag"));
        }
    }

    /// Refuses these biases.
    pub(super) fn no_biases(&mut self, keys: &[&'static str]) {
        for key in keys {
            if self.flag(key, false) {
                let accepted = "false: such biases are not supported for this family";
                self.faults.push(Fault::new(self.table.path(key), "true", accepted));
            }
        }
    }

    /// `head_dim`: from the file, or for most families `hidden_size / num_attention_heads`.
    pub(super) fn head_dim(&mut self, name: &str, hidden: Option<u32>, heads: Option<u32>) -> Option<u32> {
        if let Some(width) = self.optional("head_dim") {
            return Some(width);
        }
        // In these families `head_dim` does not follow from the number of heads.
        if matches!(name, "gemma" | "gemma2" | "gemma3_text" | "qwen3" | "qwen3_moe" | "glm" | "glm4" | "seed_oss") {
            return self.size("head_dim");
        }
        let (hidden, heads) = (hidden?, heads?);
        if !hidden.is_multiple_of(heads) {
            let accepted = no_width(hidden, "hidden_size", heads);
            self.faults.push(Fault::new(self.table.path("head_dim"), "nothing", accepted));
            return None;
        }
        Some(hidden / heads)
    }

    /// A positive number.
    pub(super) fn positive(&mut self, key: &'static str) -> Option<f64> {
        self.table.positive(key, MAX_FACTOR, self.faults)
    }

    /// A soft-cap in units of 10⁻¹²; `otherwise` where the file has no such field, none where it is null.
    pub(super) fn cap(&mut self, key: &'static str, otherwise: Option<f64>) -> Option<u64> {
        let otherwise = otherwise.filter(|_| !self.table.is_null(key));
        self.positive(key).or(otherwise).map(to_e12)
    }

    /// The sliding window of the attention, where the family has one and the file uses it.
    pub(super) fn window(&mut self, name: &str) -> Option<Window> {
        let tokens = self.optional("sliding_window").filter(|tokens| *tokens > 0);
        let full_every = match name {
            // Gemma 2: every other layer has a window, from the first on. Gemma 3: five of six.
            "gemma2" => 2,
            "gemma3_text" => self.optional("sliding_window_pattern").unwrap_or(6),
            "mistral" | "mixtral" | "phi3" | "starcoder2" => 0,
            _ => {
                if self.flag("use_sliding_window", false) {
                    let field = self.table.path("use_sliding_window");
                    let accepted = "false: windows from a layer on (max_window_layers) are not supported; give the \
                                    window as `model.window` in a spec";
                    self.faults.push(Fault::new(field, "true", accepted));
                }
                1
            }
        };
        let full_every = self.layer_pattern(full_every);
        let tokens = tokens?;
        (full_every != 1).then_some(Window { tokens, full_every })
    }

    /// The period of layers with full attention, from the list `layer_types`; `usual` where there is none.
    fn layer_pattern(&mut self, usual: u32) -> u32 {
        const KEY: &str = "layer_types";
        let Some(types) = self.table.get(KEY) else { return usual };
        let sees_all = |at: &Value| at.as_str() == Some("full_attention");
        let list = types.as_array().map_or(&[][..], Vec::as_slice);
        let every = list.iter().position(sees_all).map_or(0, |first| first + 1);
        let as_found = |(at, of): (usize, &Value)| {
            let all = every > 0 && (at + 1).is_multiple_of(every);
            if all { sees_all(of) } else { of.as_str() == Some("sliding_attention") }
        };
        if list.is_empty() || !list.iter().enumerate().all(as_found) {
            let accepted = "\"sliding_attention\", and \"full_attention\" in every n-th layer";
            self.faults.push(Fault::new(self.table.path(KEY), "another list", accepted));
        }
        every as u32
    }
}

/// Variants of GELU. All take the same bytes and operations here.
pub(super) const GELU: [&str; 5] = ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python"];
