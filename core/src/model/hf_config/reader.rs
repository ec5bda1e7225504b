//! The fields that several families share: sizes, norms, rotary positions, windows, and what a family does not have.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::Value;

use crate::base::fields::{Fault, Table, one_of, shown};
use crate::model::{LayerPattern, MAX_FACTOR, MAX_LAYERS, MAX_PATTERN, MAX_SIZE, Window, no_width, to_e12};

/// A `config.json` that is being read, and its faults so far.
pub(super) struct Reader<'v, 'f> {
    pub(super) table: Table<'v>,
    pub(super) faults: &'f mut Vec<Fault>,
    /// What to tell of the model.
    pub(super) notes: Vec<String>,
}

impl Reader<'_, '_> {
    /// A required size.
    pub(super) fn size(&mut self, key: &'static str) -> Option<u32> {
        self.table.needed_whole(key, 1..=u64::from(MAX_SIZE), self.faults).map(|size| size as u32)
    }

    /// The positions that a model with rotary ones was trained for. No plan has more than a sequence may have.
    pub(super) fn positions(&mut self, key: &'static str) -> Option<u32> {
        let positions = self.table.needed_whole(key, 1..=u64::from(u32::MAX), self.faults)?;
        if positions > u64::from(MAX_SIZE) {
            self.notes.push(format!("{key} {positions} is more than any plan has; read as {MAX_SIZE}"));
        }
        Some(positions.min(MAX_SIZE.into()) as u32)
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

    /// RoPE theta: at the top under one of two names, or in the `rope_parameters` of newer files; else what the
    /// library of the family `name` fills in.
    pub(super) fn rope_base(&mut self, name: &str) -> u32 {
        let most = f64::from(u32::MAX);
        let own = ["rope_theta", "rotary_emb_base"].map(|key| self.table.positive(key, most, self.faults));
        let nested = self.of_rope("full_attention", "rope_theta", most);
        own[0].or(own[1]).or(nested).map_or(usual_rope_base(name), |base| libm::round(base) as u32)
    }

    /// RoPE theta of layers with a window, in families that have one for each kind of layer; none where it is `base`.
    pub(super) fn window_rope_base(&mut self, name: &str, base: u32) -> Option<u32> {
        let most = f64::from(u32::MAX);
        let by_kind = self.kinds_of_rope();
        let usual = match name {
            // In older files, and where the library fills it in.
            "gemma3_text" => self.table.positive("rope_local_base_freq", most, self.faults).or(Some(10_000.0)),
            "gemma4_text" => Some(10_000.0),
            "mellum" if !by_kind => Some(10_000.0),
            _ if by_kind => None,
            _ => return None,
        };
        let said = self.of_rope("sliding_attention", "rope_theta", most).filter(|_| by_kind);
        said.or(usual).map(|theta| libm::round(theta) as u32).filter(|theta| *theta != base)
    }

    /// Whether `rope_parameters` has a table for each kind of layer.
    fn kinds_of_rope(&mut self) -> bool {
        let kinds = ["full_attention", "sliding_attention"];
        self.table.peek("rope_parameters").is_some_and(|table| kinds.iter().any(|kind| table.get(kind).is_some()))
    }

    /// A number of `rope_parameters`: of all layers, or of those of `kind`.
    fn of_rope(&mut self, kind: &'static str, key: &'static str, most: f64) -> Option<f64> {
        let by_kind = self.kinds_of_rope();
        let mut nested = self.table.table("rope_parameters", self.faults)?;
        if by_kind {
            nested = nested.table(kind, self.faults)?;
        }
        nested.positive(key, most, self.faults)
    }

    /// The partial rotary dim of a head, from the share of `head_dim` that the file gives.
    pub(super) fn rotary(&mut self, key: &'static str, usual: f64, head_dim: u32) -> u32 {
        let nested = self.of_rope("full_attention", "partial_rotary_factor", 1.0);
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
            let (whole, heads) = (u64::from(hidden?), u64::from(heads?));
            let is_whole = [
                "codegen",
                "cohere2",
                "deepseek_ocr2_text",
                "glm4v_text",
                "gpt_neox",
                "gptj",
                "helium",
                "olmoe",
                "stablelm",
            ];
            if is_whole.contains(&name) && u64::from(width) != whole / heads {
                let accepted = format!("{}: hidden_size / num_attention_heads, as the library has it", whole / heads);
                self.faults.push(Fault::new(self.table.path("head_dim"), width, accepted));
            }
            return Some(width);
        }
        // In these families `head_dim` does not follow from the number of heads.
        let apart = [
            "gemma",
            "gemma2",
            "gemma3_text",
            "gemma4_text",
            "vaultgemma",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_5_text",
            "qwen3_5_moe_text",
            "glm",
            "glm4",
            "gpt_oss",
            "llama4_text",
            "seed_oss",
            "mellum",
            "afmoe",
        ];
        if apart.contains(&name) {
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
    pub(super) fn window(&mut self, name: &str, layers: u32) -> Option<Window> {
        let tokens = self.optional("sliding_window").filter(|tokens| *tokens > 0);
        let full_every = match name {
            // Gemma 2 and gpt-oss: every other layer has a window, from the first on. Gemma 3: five of six.
            "gemma2" | "gpt_oss" | "vaultgemma" => 2,
            "gemma3_text" => self.optional("sliding_window_pattern").unwrap_or(6),
            "olmo3" => 4,
            "cohere2" => self.optional("sliding_window_pattern").unwrap_or(4),
            "exaone4" | "exaone_moe" => return self.exaone_window(tokens, layers),
            "afmoe" => self.optional("global_attn_every_n_layers").unwrap_or(4),
            "mistral" | "mixtral" | "phi3" | "phimoe" | "starcoder2" => 0,
            // Those that a list says, or none.
            "mellum" => 1,
            // Five of six, and never the last.
            "gemma4_text" => {
                let by_list = self.windows_by_list(layers);
                let has_window = by_list.unwrap_or_else(|| (1..=layers).map(|layer| layer % 6 != 0).collect());
                let but_last = has_window.into_iter().enumerate();
                let has_window: Vec<bool> = but_last.map(|(at, has)| has && at + 1 < layers as usize).collect();
                return windowed(tokens?, &has_window);
            }
            // Every fourth layer sees all, from the first on.
            "cwm" | "granite_swa" | "granitemoe_swa" => {
                let by_list = self.windows_by_list(layers);
                let has_window = by_list.unwrap_or_else(|| (0..layers).map(|layer| layer % 4 != 0).collect());
                return windowed(tokens?, &has_window);
            }
            _ => return self.window_from_a_layer_on(name, tokens, layers),
        };
        let sliding = tokens.map(|tokens| Window::sliding(tokens, full_every));
        match self.windows_by_list(layers) {
            Some(has_window) => windowed(tokens?, &has_window),
            None => sliding.filter(|window| window.full_every != 1),
        }
    }

    /// The window of families whose first layers have none, where the file uses it.
    fn window_from_a_layer_on(&mut self, name: &str, tokens: Option<u32>, layers: u32) -> Option<Window> {
        let uses = self.flag("use_sliding_window", false);
        if uses && matches!(name, "qwen2_moe" | "qwen3_moe" | "smollm3") {
            let accepted = "false: this family's library gives the window to other layers than are planned";
            self.faults.push(Fault::new(self.table.path("use_sliding_window"), "true", accepted));
        }
        let first = self.optional("max_window_layers").unwrap_or(28);
        let by_list = self.windows_by_list(layers);
        let tokens = tokens.filter(|_| uses)?;
        let has_window = by_list.unwrap_or_else(|| (0..layers).map(|layer| layer >= first).collect());
        windowed(tokens, &has_window)
    }

    /// EXAONE 4: a number, or a letter for each layer of a period, of which `L` has the window. The last layer has
    /// none.
    fn exaone_window(&mut self, tokens: Option<u32>, layers: u32) -> Option<Window> {
        const KEY: &str = "sliding_window_pattern";
        let by_letter = match self.table.get(KEY) {
            Some(Value::String(letters)) => {
                let letters = letters.as_bytes();
                let known = !letters.is_empty() && letters.iter().all(|letter| matches!(letter, b'L' | b'G'));
                if !known {
                    let accepted = "a number, or letters L (sliding window) and G (all tokens)";
                    self.faults.push(Fault::new(self.table.path(KEY), "another text", accepted));
                }
                let of = |layer: u32| letters.get(layer as usize % letters.len().max(1)) == Some(&b'L');
                (0..layers).map(|layer| of(layer) && layer + 1 < layers).collect()
            }
            _ => {
                let every = self.optional(KEY).unwrap_or(4).max(1);
                (0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect::<Vec<bool>>()
            }
        };
        let has_window = self.windows_by_list(layers).unwrap_or(by_letter);
        windowed(tokens?, &has_window)
    }

    /// Which layers have a window, from the list `layer_types`; none where there is no list.
    pub(super) fn windows_by_list(&mut self, layers: u32) -> Option<Vec<bool>> {
        self.list_of_layers("layer_types", layers, &[("sliding_attention", true), ("full_attention", false)])
    }

    /// A list that has one of these `kinds` for each layer; none where there is no list, or where it is wrong.
    pub(super) fn list_of_layers(
        &mut self,
        key: &'static str,
        layers: u32,
        kinds: &[(&str, bool)],
    ) -> Option<Vec<bool>> {
        let value = self.table.get(key)?;
        let kind = |value: &Value| {
            let name = value.as_str()?;
            kinds.iter().find(|(kind, _)| *kind == name).map(|(_, is_so)| *is_so)
        };
        let list: Option<Vec<bool>> = value.as_array().and_then(|list| list.iter().map(kind).collect());
        let list = list.filter(|list| list.len() == layers as usize);
        if list.is_none() {
            let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
            let accepted = format!("a list of {layers} layers, each {}", one_of(&names));
            self.faults.push(Fault::new(self.table.path(key), "another list", accepted));
        }
        list
    }

    /// A pattern of layers; a fault at `key` where layers differ too much.
    pub(super) fn pattern(&mut self, key: &'static str, has: &[bool]) -> Option<LayerPattern> {
        let pattern = LayerPattern::from_list(has);
        if pattern.is_none() {
            let accepted = format!("at most {MAX_PATTERN} layers that do not repeat");
            self.faults.push(Fault::new(self.table.path(key), "another list", accepted));
        }
        pattern
    }
}

/// RoPE theta that the library fills in (`transformers` 5).
fn usual_rope_base(name: &str) -> u32 {
    match name {
        "gpt_oss" => 150_000,
        "helium" => 100_000,
        "cohere" => 500_000,
        "ernie4_5" | "ernie4_5_moe" | "flex_olmo" | "llama4_text" | "mellum" | "olmo3" => 500_000,
        "cwm" | "gemma3_text" | "gemma4_text" | "mixtral" | "phimoe" => 1_000_000,
        "smollm3" => 2_000_000,
        "minimax_m2" => 5_000_000,
        "hy_v3" => 11_158_840,
        "apertus" => 12_000_000,
        _ => 10_000,
    }
}

/// A window of `tokens` in the layers that have it: by its period where it has one.
pub(super) fn windowed(tokens: u32, has_window: &[bool]) -> Option<Window> {
    if !has_window.contains(&true) {
        return None;
    }
    let every = has_window.iter().position(|has| !has).map_or(0, |first| first + 1);
    let is_period = |(at, has): (usize, &bool)| *has == (every == 0 || !(at + 1).is_multiple_of(every));
    if has_window.iter().enumerate().all(is_period) {
        return Some(Window::sliding(tokens, every as u32));
    }
    LayerPattern::from_list(has_window).map(|pattern| Window::sliding(tokens, 0).within(pattern))
}

/// Variants of GELU. All take the same bytes and operations here.
pub(super) const GELU: [&str; 5] = ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python"];
