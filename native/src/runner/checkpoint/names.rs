//! Under which names, and in which order of rows, checkpoints hold what a graph holds otherwise: the matrices of a layer's
//! experts each by itself, and rows that rotary positions turn where the published models have them.

use serde_json::Value;

use super::fused::{Fused, Held};
use crate::runner::shard::Run;

/// What the kind of model in a `config.json` says of its weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    kind: Kind,
    /// Rows of each head of the queries: those that carry no position, and those that do.
    query: [usize; 2],
    /// Rows of the latent of keys and values, and of the key that all heads share.
    latent: [usize; 2],
    /// Rows of each head of queries and keys that stay, and that carry the position, which come first in a checkpoint.
    head: [usize; 2],
    /// Parts of names that differ.
    renamed: &'static [Renamed],
    /// Beginnings of names that differ.
    begin: &'static [Renamed],
    /// Weights of which each head has a tensor of its own, as so many numbers: in the graph's words, and what stands before
    /// the number of the head.
    of_heads: Option<([Renamed; 2], usize)>,
    /// Whether those that come first lie in pairs: columns `2j` and `2j + 1` are turned together.
    in_pairs: bool,
    /// Tensors that hold several weights.
    fused: Vec<Fused>,
    /// What a bias is called that corrects the choice of a router, where it has one.
    correction: Option<&'static str>,
}

/// A part of a name in the graph's words, and in the checkpoint's.
type Renamed = [&'static str; 2];

const QUERY_LAYERNORM: Renamed = [".self_attn.q_norm.", ".self_attn.query_layernorm."];
const KEY_LAYERNORM: Renamed = [".self_attn.k_norm.", ".self_attn.key_layernorm."];

const FC: [Renamed; 2] = [[".mlp.up_proj.", ".mlp.fc1."], [".mlp.down_proj.", ".mlp.fc2."]];

const OF_GPT_J: &[Renamed] = &[
    [".self_attn.o_proj.", ".attn.out_proj."],
    [".self_attn.", ".attn."],
    [".mlp.up_proj.", ".mlp.fc_in."],
    [".mlp.down_proj.", ".mlp.fc_out."],
    [".input_layernorm.", ".ln_1."],
];

/// By `model_type`, beginnings of names that differ; they are replaced beside parts.
const BEGIN: [(&str, &[Renamed]); 4] = [
    (
        "gpt2",
        &[
            ["model.decoder.layers.", "transformer.h."],
            ["model.decoder.embed_tokens.", "transformer.wte."],
            ["model.decoder.embed_positions.", "transformer.wpe."],
            // The published ones are of the decoder without its head.
            ["model.decoder.layers.", "h."],
            ["model.decoder.embed_tokens.", "wte."],
            ["model.decoder.embed_positions.", "wpe."],
            ["model.decoder.final_layer_norm.", "ln_f."],
        ],
    ),
    ("codegen", BEGIN_GPT_J),
    ("gptj", BEGIN_GPT_J),
    (
        "gpt_neox",
        &[
            ["model.layers.", "gpt_neox.layers."],
            ["model.embed_tokens.", "gpt_neox.embed_in."],
            ["model.norm.", "gpt_neox.final_layer_norm."],
            ["lm_head.", "embed_out."],
        ],
    ),
];

const BEGIN_GPT_J: &[Renamed] = &[
    ["model.layers.", "transformer.h."],
    ["model.embed_tokens.", "transformer.wte."],
    ["model.norm.", "transformer.ln_f."],
];

const SHARED_EXPERT: Renamed = [".mlp.shared_experts.", ".mlp.shared_expert."];

/// By `model_type`, parts of names that differ. Of each name the first part that fits is replaced.
const RENAMED: [(&str, &[Renamed]); 17] = [
    (
        "gpt2",
        &[
            ["model.decoder.final_layer_norm.", "transformer.ln_f."],
            [".self_attn_layer_norm.", ".ln_1."],
            [".final_layer_norm.", ".ln_2."],
            [".self_attn.out_proj.", ".attn.c_proj."],
            [".fc1.", ".mlp.c_fc."],
            [".fc2.", ".mlp.c_proj."],
        ],
    ),
    ("codegen", OF_GPT_J),
    ("gptj", OF_GPT_J),
    (
        "gpt_neox",
        &[
            [".self_attn.o_proj.", ".attention.dense."],
            [".mlp.up_proj.", ".mlp.dense_h_to_4h."],
            [".mlp.down_proj.", ".mlp.dense_4h_to_h."],
        ],
    ),
    ("nanochat", &FC),
    ("phi", &[[".self_attn.o_proj.", ".self_attn.dense."], FC[0], FC[1], ["model.norm.", "model.final_layernorm."]]),
    ("starcoder2", &[[".mlp.up_proj.", ".mlp.c_fc."], [".mlp.down_proj.", ".mlp.c_proj."]]),
    ("hunyuan_v1_dense", &[QUERY_LAYERNORM, KEY_LAYERNORM]),
    (
        "hunyuan_v1_moe",
        &[
            QUERY_LAYERNORM,
            KEY_LAYERNORM,
            [".mlp.shared_experts.", ".mlp.shared_mlp."],
            [".mlp.gate.weight", ".mlp.gate.wg.weight"],
        ],
    ),
    (
        "hyperclovax",
        &[
            [".post_attention_layernorm.", ".post_norm1."],
            [".pre_feedforward_layernorm.", ".post_attention_layernorm."],
            [".post_feedforward_layernorm.", ".post_norm2."],
        ],
    ),
    (
        "glm4",
        &[
            [".post_attention_layernorm.", ".post_self_attn_layernorm."],
            [".pre_feedforward_layernorm.", ".post_attention_layernorm."],
            [".post_feedforward_layernorm.", ".post_mlp_layernorm."],
        ],
    ),
    ("gpt_oss", &[[".mlp.gate.", ".mlp.router."]]),
    ("granitemoe", &[[".mlp.gate.weight", ".block_sparse_moe.router.layer.weight"]]),
    ("qwen2_moe", &[SHARED_EXPERT]),
    ("qwen3_5_moe_text", &[SHARED_EXPERT]),
    ("qwen3_next", &[SHARED_EXPERT]),
    ("vaultgemma", &[[".post_attention_layernorm.", ".pre_feedforward_layernorm."]]),
];

/// Kinds whose experts have a matrix each, under the graph's names.
const OF_QWEN: [&str; 11] = [
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_moe_text",
    "olmoe",
    "flex_olmo",
    "hunyuan_v1_moe",
    "glm4_moe",
    "dots1",
    "exaone_moe",
    "mellum",
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// All is held as the graph holds it.
    #[default]
    Own,
    Mixtral,
    Qwen,
    DeepSeek,
}

/// A tensor of a checkpoint that holds a weight or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Where its elements (`held`) lie in the weight, in the weight's order.
    pub runs: Vec<Run>,
}

/// A matrix of one expert, in the graph's words and in Mixtral's.
const OF_EXPERT: [[&str; 2]; 3] = [["gate_proj", "w1"], ["up_proj", "w3"], ["down_proj", "w2"]];
const EXPERTS: &str = ".mlp.experts.";
const MATRIX: &str = ".weight";
/// What comes behind the name of a matrix in those of its adapter: `lora_A` and `lora_B`.
pub(super) const ADAPTER: &str = ".lora_";

impl Names {
    /// Of the model that `config` describes, the content of a `config.json`.
    pub fn of(config: &Value) -> Names {
        let size = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
        let name = config["model_type"].as_str().unwrap_or_default();
        let kind = match name {
            "mixtral" | "minimax_m2" => Kind::Mixtral,
            "deepseek_v2" | "deepseek_v3" => Kind::DeepSeek,
            _ if OF_QWEN.contains(&name) => Kind::Qwen,
            _ => Kind::Own,
        };
        let rope = size("qk_rope_head_dim");
        let share = config["partial_rotary_factor"].as_f64();
        let width = match size("head_dim") {
            0 => size("hidden_size").checked_div(size("num_attention_heads")).unwrap_or(0),
            known => known,
        };
        let turned = match name {
            "minimax_m2" | "gptj" | "codegen" => Some(size("rotary_dim")),
            "glm" | "glm4" | "glm4_moe" | "phi3" | "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text"
            | "gpt_neox" | "nemotron" | "phi" | "stablelm" => share.map(|share| (width as f64 * share) as usize),
            "cohere" | "cohere2" => Some(width),
            // It turns the other way, which is the same with both halves of a head in the other's place.
            "nanochat" => Some(width / 2),
            _ => None,
        };
        let head = turned.and_then(|turned| Some([width.checked_sub(turned)?, turned]));
        let of_heads = [
            [".self_attn.q_norm.weight", ".self_attn.q_layernorm.norms."],
            [".self_attn.k_norm.weight", ".self_attn.k_layernorm.norms."],
        ];
        Names {
            kind,
            query: [size("qk_nope_head_dim"), rope],
            latent: [size("kv_lora_rank"), rope],
            head: head.unwrap_or_default(),
            in_pairs: matches!(name, "glm" | "glm4" | "cohere" | "cohere2" | "gptj" | "codegen"),
            begin: BEGIN.into_iter().find(|(other, _)| *other == name).map_or(&[], |(_, begin)| begin),
            of_heads: (name == "stablelm" && width > 0).then_some((of_heads, width)),
            fused: Fused::of(config),
            renamed: RENAMED.into_iter().find(|(other, _)| *other == name).map_or(&[], |(_, renamed)| renamed),
            correction: match name {
                "deepseek_v3" | "glm4_moe" | "dots1" => Some(".mlp.gate.e_score_correction_bias"),
                "exaone_moe" => Some(".mlp.e_score_correction_bias"),
                "minimax_m2" => Some(".block_sparse_moe.e_score_correction_bias"),
                _ => None,
            },
        }
    }

    /// The tensors that hold the weight `name` of this shape.
    pub fn stored(&self, name: &str, shape: &[usize]) -> Vec<Stored> {
        let elements: usize = shape.iter().product();
        if self.is_fused(name) {
            let runs = self.rows(name, shape);
            if let Some((name, shape, runs)) = self.fused.iter().find_map(|fused| fused.stored(name, shape, &runs)) {
                return vec![Stored { name: self.begun(&name), shape, runs }];
            }
        }
        if let Some(stored) = self.by_head(name, shape) {
            return stored;
        }
        let (true, [experts, sizes @ ..]) = (self.kind != Kind::Own && shape.len() == 3, shape) else {
            let runs = self.rows(name, shape);
            return vec![Stored { name: self.renamed(name), shape: shape.to_vec(), runs }];
        };
        let length = elements / (*experts).max(1);
        let of_expert = |expert| Stored {
            name: self.renamed(&name.replacen(EXPERTS, &format!("{EXPERTS}{expert}."), 1)),
            shape: sizes.to_vec(),
            runs: vec![Run { held: 0, whole: expert * length, length }],
        };
        (0..*experts).map(of_expert).collect()
    }

    /// The tensors of the heads of the weight `name`, where each has one.
    fn by_head(&self, name: &str, shape: &[usize]) -> Option<Vec<Stored>> {
        let (parts, width) = self.of_heads?;
        let [own, theirs] = parts.into_iter().find(|[own, _]| name.ends_with(own))?;
        let layer = name.strip_suffix(own)?;
        let [elements] = shape else { return None };
        let runs = self.rows(name, shape);
        let of_head = |head: usize| {
            let first = head * width;
            let is_within = |run: &&Run| (first..first + width).contains(&run.held);
            let moved = |run: &Run| Run { held: run.held - first, ..*run };
            // Where no rows have another place, one run is of all heads.
            let mut runs: Vec<Run> = runs.iter().filter(is_within).map(moved).collect();
            if self.head[1] == 0 {
                runs = vec![Run { held: 0, whole: first, length: width }];
            }
            Stored { name: format!("{layer}{theirs}{head}{MATRIX}"), shape: vec![width], runs }
        };
        Some((0..elements / width).map(of_head).collect())
    }

    /// The sizes of the weight `own` of which there are tensors of `sizes`, of so many experts or heads.
    pub(super) fn whole(&self, own: &str, parts: Option<usize>, sizes: &[usize]) -> Vec<usize> {
        let is_of_heads = self.of_heads.is_some_and(|(names, _)| names.iter().any(|[name, _]| own.ends_with(name)));
        match parts {
            Some(heads) if is_of_heads => vec![heads * sizes.iter().product::<usize>()],
            _ => parts.into_iter().chain(sizes.iter().copied()).collect(),
        }
    }

    /// Whether a tensor holds the weight `name` with others. Adapters are held by themselves.
    fn is_fused(&self, name: &str) -> bool {
        !self.fused.is_empty() && !name.contains(ADAPTER)
    }

    /// The weights that the tensor called `stored` of this shape holds, if it holds several.
    pub(super) fn held(&self, stored: &str, shape: &[usize]) -> Option<Vec<Held>> {
        let stored = self.own_begin(stored);
        self.fused.iter().find_map(|fused| fused.held(&stored, shape))
    }

    /// The weight that a tensor called `stored` belongs to, and which expert's part it is.
    pub fn own(&self, stored: &str) -> (String, Option<usize>) {
        let stored = &self.own_begin(stored);
        let of_head = self.of_heads.and_then(|(parts, _)| {
            let [own, theirs] = parts.into_iter().find(|[_, theirs]| stored.contains(theirs))?;
            let (layer, head) = stored.split_once(theirs)?;
            Some((format!("{layer}{own}"), head.strip_suffix(MATRIX)?.parse().ok()?))
        });
        if let Some((own, head)) = of_head {
            return (own, Some(head));
        }
        let own = match self.kind {
            Kind::Mixtral => stored.replacen(".block_sparse_moe.", ".mlp.", 1),
            _ => match self.renamed.iter().find(|[_, theirs]| stored.contains(theirs)) {
                Some([own, theirs]) => stored.replacen(theirs, own, 1),
                None => stored.to_string(),
            },
        };
        let parts = own.split_once(EXPERTS).and_then(|(layer, rest)| {
            let (expert, rest) = rest.split_once('.')?;
            Some((layer, expert.parse::<usize>().ok()?, rest.strip_suffix(MATRIX)?))
        });
        let Some((layer, expert, part)) = parts.filter(|_| self.kind != Kind::Own) else { return (own, None) };
        let (matrix, adapter) = part.split_at(part.find(ADAPTER).unwrap_or(part.len()));
        let matrix = OF_EXPERT.iter().find(|[_, other]| *other == matrix).map_or(matrix, |[part, _]| part);
        (format!("{layer}{EXPERTS}{matrix}{adapter}{MATRIX}"), Some(expert))
    }

    /// The name of what is added to each expert's score where experts are chosen, if `name` is the matrix of a router that
    /// has it. No gradient trains it (arXiv:2408.15664); here it stays 0.
    pub fn correction(&self, name: &str) -> Option<String> {
        let router = name.strip_suffix(".mlp.gate.weight")?;
        Some(format!("{router}{}", self.correction?))
    }

    /// `name` with the beginning that the checkpoint has.
    fn begun(&self, name: &str) -> String {
        let other = |[own, theirs]: &Renamed| Some([theirs, name.strip_prefix(own)?].concat());
        self.begin.iter().find_map(other).unwrap_or_else(|| name.to_string())
    }

    /// The name `stored` of a checkpoint with the beginning that the graph has.
    fn own_begin(&self, stored: &str) -> String {
        let other = |[own, theirs]: &Renamed| Some([own, stored.strip_prefix(theirs)?].concat());
        self.begin.iter().find_map(other).unwrap_or_else(|| stored.to_string())
    }

    fn renamed(&self, name: &str) -> String {
        let name = &self.part_renamed(name);
        self.begun(name)
    }

    fn part_renamed(&self, name: &str) -> String {
        match self.kind {
            Kind::Mixtral => match name.split_once(".mlp.") {
                None => name.to_string(),
                Some((layer, rest)) => {
                    let theirs = |rest: String, [own, theirs]: &[&str; 2]| rest.replacen(own, theirs, 1);
                    format!("{layer}.block_sparse_moe.{}", OF_EXPERT.iter().fold(rest.to_string(), theirs))
                }
            },
            _ => match self.renamed.iter().find(|[own, _]| name.contains(own)) {
                Some([own, theirs]) => name.replacen(own, theirs, 1),
                None => name.to_string(),
            },
        }
    }

    /// Where the rows of queries and keys lie whose rotary columns come first in a checkpoint; the graph has them last.
    fn turned_first(&self, name: &str, rows: usize, columns: usize) -> Option<Vec<Run>> {
        let [still, turned] = self.head;
        let parts = ["q_proj", "k_proj", "q_norm", "k_norm"].map(|part| format!(".self_attn.{part}."));
        // A of an adapter has the rows of its rank.
        let is_turned = turned > 0 && !name.contains(".lora_A.") && parts.iter().any(|part| name.contains(part));
        if !is_turned || !rows.is_multiple_of(still + turned) {
            return None;
        }
        let of_head = |first: usize| {
            let run = |held: usize, whole: usize, length: usize| Run {
                held: (first + held) * columns,
                whole: (first + whole) * columns,
                length: length * columns,
            };
            // In the weight's order.
            let mut runs = vec![run(turned, 0, still)];
            match self.in_pairs {
                true => {
                    let halves =
                        (0..2).flat_map(|half| (0..turned / 2).map(move |j| (2 * j + half, half * (turned / 2) + j)));
                    runs.extend(halves.map(|(held, whole)| run(held, still + whole, 1)));
                }
                false => runs.push(run(0, still, turned)),
            }
            runs
        };
        Some((0..rows).step_by(still + turned).flat_map(of_head).collect())
    }

    /// Where the rows of a matrix lie. DeepSeek turns columns `2j` and `2j + 1` together, the kernels `j` and `j + half`.
    fn rows(&self, name: &str, shape: &[usize]) -> Vec<Run> {
        let (rows, columns) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product());
        if let Some(runs) = self.turned_first(name, rows, columns) {
            return runs;
        }
        // B of an adapter has the rows of its matrix.
        let matrix = name.replacen(".lora_B.", ".", 1);
        let ends_in = |part: &str| matrix.ends_with(&format!(".self_attn.{part}{MATRIX}"));
        let [still, turned] = match self.kind {
            Kind::DeepSeek if ends_in("q_proj") || ends_in("q_b_proj") => self.query,
            Kind::DeepSeek if ends_in("kv_a_proj_with_mqa") => self.latent,
            _ => [rows, 0],
        };
        // What a file says of sizes need not fit its weights; then there is nothing to turn.
        let of_head = still.checked_add(turned).filter(|head| rows.is_multiple_of(*head) && turned % 2 == 0);
        let ([still, turned], of_head) = of_head.map_or(([rows, 0], rows), |of_head| ([still, turned], of_head));
        let mut runs = Vec::new();
        for first in (0..rows).step_by(of_head.max(1)) {
            runs.push(Run { held: first * columns, whole: first * columns, length: still * columns });
            let start = first + still;
            // Of each half in turn: every other row.
            let pairs = (0..2).flat_map(|half| (0..turned / 2).map(move |j| (2 * j + half, half * (turned / 2) + j)));
            runs.extend(pairs.map(|(held, whole)| Run {
                held: (start + held) * columns,
                whole: (start + whole) * columns,
                length: columns,
            }));
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// GPT-2's matrices lie the other way round, those of queries, keys and values side by side; names begin as in files of
    /// the model with its head, or without it as in the published ones. Sizes are those of its class in `transformers`.
    #[test]
    fn matrices_of_gpt_2_lie_the_other_way_round() {
        let names = Names::of(&json!({ "model_type": "gpt2", "n_embd": 2, "n_inner": null }));
        let layer = "model.decoder.layers.7.";
        for (own, shape, theirs, sizes, lies) in [
            ("self_attn.k_proj.weight", vec![2, 2], "attn.c_attn.weight", vec![2, 6], vec![2, 8, 3, 9]),
            ("self_attn.v_proj.bias", vec![2], "attn.c_attn.bias", vec![6], vec![4, 5]),
            ("self_attn.out_proj.weight", vec![2, 2], "attn.c_proj.weight", vec![2, 2], vec![0, 2, 1, 3]),
            ("self_attn.out_proj.bias", vec![2], "attn.c_proj.bias", vec![2], vec![0, 1]),
            ("fc1.weight", vec![8, 2], "mlp.c_fc.weight", vec![2, 8], (0..8).flat_map(|at| [at, 8 + at]).collect()),
            ("final_layer_norm.weight", vec![2], "ln_2.weight", vec![2], vec![0, 1]),
        ] {
            let stored = names.stored(&format!("{layer}{own}"), &shape);
            assert_eq!((stored[0].name.as_str(), &stored[0].shape), (&*format!("transformer.h.7.{theirs}"), &sizes));
            let places =
                stored[0].runs.iter().flat_map(|run| (0..run.length).map(|at| (run.whole + at, run.held + at)));
            let mut places: Vec<(usize, usize)> = places.collect();
            places.sort_unstable();
            assert_eq!(places.into_iter().map(|(_, held)| held).collect::<Vec<_>>(), lies, "{own}");
            for begin in ["transformer.h.7.", "h.7."] {
                let stored = format!("{begin}{theirs}");
                match names.held(&stored, &sizes) {
                    Some(held) => assert!(held.iter().any(|held| held.name == format!("{layer}{own}")), "{stored}"),
                    None => assert_eq!(names.own(&stored).0, format!("{layer}{own}")),
                }
            }
        }
        for (own, theirs) in [("embed_tokens.", "wte."), ("embed_positions.", "wpe."), ("final_layer_norm.", "ln_f.")]
        {
            let (own, theirs) = (format!("model.decoder.{own}weight"), format!("{theirs}weight"));
            assert_eq!(names.stored(&own, &[2])[0].name, format!("transformer.{theirs}"));
            assert_eq!([names.own(&theirs).0, names.own(&format!("transformer.{theirs}")).0], [own.clone(), own]);
        }
    }

    /// Names as in the indices of the published checkpoints.
    #[test]
    fn experts_have_the_published_names() {
        let shape = [8, 3, 2];
        for (kind, own, published) in [
            ("mixtral", "mlp.experts.gate_proj", "block_sparse_moe.experts.7.w1"),
            ("mixtral", "mlp.experts.down_proj", "block_sparse_moe.experts.7.w2"),
            ("mixtral", "mlp.experts.up_proj", "block_sparse_moe.experts.7.w3"),
            ("qwen2_moe", "mlp.experts.up_proj", "mlp.experts.7.up_proj"),
            ("qwen3_moe", "mlp.experts.gate_proj", "mlp.experts.7.gate_proj"),
            ("deepseek_v2", "mlp.experts.down_proj", "mlp.experts.7.down_proj"),
            ("mixtral", "mlp.experts.gate_proj.lora_A", "block_sparse_moe.experts.7.w1.lora_A"),
            ("qwen3_moe", "mlp.experts.up_proj.lora_B", "mlp.experts.7.up_proj.lora_B"),
            ("minimax_m2", "mlp.experts.gate_proj", "block_sparse_moe.experts.7.w1"),
            ("hunyuan_v1_moe", "mlp.experts.up_proj", "mlp.experts.7.up_proj"),
        ] {
            let names = Names::of(&json!({ "model_type": kind }));
            let [own, published] = [own, published].map(|part| format!("model.layers.3.{part}.weight"));
            let stored = names.stored(&own, &shape);
            assert_eq!((stored.len(), &stored[7].name, &stored[7].shape[..]), (8, &published, &shape[1..]));
            assert_eq!(stored[7].runs, [Run { held: 0, whole: 42, length: 6 }]);
            assert_eq!(names.own(&published), (own, Some(7)));
        }
        for (kind, own, published) in [
            ("mixtral", "mlp.gate", "block_sparse_moe.gate"),
            ("qwen2_moe", "mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj"),
            ("qwen2_moe", "mlp.shared_expert_gate", "mlp.shared_expert_gate"),
            ("deepseek_v3", "mlp.shared_experts.up_proj", "mlp.shared_experts.up_proj"),
            ("pipeplan-llama", "mlp.experts.up_proj", "mlp.experts.up_proj"),
            ("llama", "mlp.up_proj", "mlp.up_proj"),
            ("hunyuan_v1_moe", "mlp.shared_experts.up_proj", "mlp.shared_mlp.up_proj"),
            ("hunyuan_v1_moe", "mlp.gate", "mlp.gate.wg"),
            ("hyperclovax", "post_attention_layernorm", "post_norm1"),
            ("hyperclovax", "pre_feedforward_layernorm", "post_attention_layernorm"),
        ] {
            let names = Names::of(&json!({ "model_type": kind }));
            let [own, published] = [own, published].map(|part| format!("model.layers.3.{part}.weight"));
            let sizes = if kind == "pipeplan-llama" { &shape[..] } else { &shape[1..] };
            assert_eq!(names.stored(&own, sizes)[0].name, published);
            assert_eq!(names.own(&published), (own, None));
        }
    }

    /// Names as in the indices of the published checkpoints: Phi 2, StarCoder 2, GPT-J, and Pythia.
    #[test]
    fn families_with_layer_norm_have_the_published_names() {
        for (kind, own, published) in [
            ("phi", "model.layers.3.self_attn.o_proj.bias", "model.layers.3.self_attn.dense.bias"),
            ("phi", "model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.fc1.weight"),
            ("phi", "model.norm.bias", "model.final_layernorm.bias"),
            ("starcoder2", "model.layers.3.mlp.down_proj.bias", "model.layers.3.mlp.c_proj.bias"),
            ("nanochat", "model.layers.3.mlp.down_proj.weight", "model.layers.3.mlp.fc2.weight"),
            ("gptj", "model.layers.3.self_attn.q_proj.weight", "transformer.h.3.attn.q_proj.weight"),
            ("gptj", "model.layers.3.self_attn.o_proj.weight", "transformer.h.3.attn.out_proj.weight"),
            ("gptj", "model.layers.3.input_layernorm.bias", "transformer.h.3.ln_1.bias"),
            ("gptj", "model.embed_tokens.weight", "transformer.wte.weight"),
            ("gptj", "lm_head.bias", "lm_head.bias"),
            ("gpt_neox", "model.layers.3.self_attn.o_proj.bias", "gpt_neox.layers.3.attention.dense.bias"),
            ("gpt_neox", "model.layers.3.mlp.up_proj.bias", "gpt_neox.layers.3.mlp.dense_h_to_4h.bias"),
            ("gpt_neox", "lm_head.weight", "embed_out.weight"),
            ("gpt_neox", "model.norm.weight", "gpt_neox.final_layer_norm.weight"),
        ] {
            let names = Names::of(&json!({ "model_type": kind }));
            assert_eq!(names.stored(own, &[6])[0].name, published);
            assert_eq!(names.own(published), (own.to_string(), None));
        }
    }

    /// StableLM 2 12B has a tensor of each head; Command R+ has one of all heads, in two sizes, and pairs of rows that turn
    /// together follow each other.
    #[test]
    fn norms_of_heads_lie_as_their_families_have_them() {
        let config = json!({
            "model_type": "stablelm", "hidden_size": 12, "num_attention_heads": 2, "partial_rotary_factor": 0.4,
        });
        let names = Names::of(&config);
        let own = "model.layers.3.self_attn.q_norm.weight";
        let stored = names.stored(own, &[12]);
        assert_eq!(stored[1].name, "model.layers.3.self_attn.q_layernorm.norms.1.weight");
        assert_eq!((stored.len(), &stored[1].shape[..]), (2, &[6][..]));
        // Of a head, those that turn come first there, and last here.
        let runs = |of: &Stored| of.runs.iter().map(|run| (run.held, run.whole, run.length)).collect::<Vec<_>>();
        assert_eq!(runs(&stored[1]), [(2, 6, 4), (0, 10, 2)]);
        assert_eq!(names.own(&stored[1].name), (own.to_string(), Some(1)));
        assert_eq!(names.whole(own, Some(2), &[6]), [12]);

        let config = json!({
            "model_type": "cohere", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
            "use_qk_norm": true,
        });
        let names = Names::of(&config);
        let stored = names.stored(own, &[8]).remove(0);
        assert_eq!((stored.name.as_str(), &stored.shape[..]), (own, &[2, 4][..]));
        let rows: Vec<usize> = stored.runs.iter().filter(|run| run.length > 0).map(|run| run.held).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(names.held(own, &[2, 4]).unwrap()[0].shape, [8]);
    }

    /// GPT-NeoX has the queries, keys and values of a head behind each other; CodeGen those of a quarter of the heads, values
    /// before keys.
    #[test]
    fn queries_keys_and_values_lie_as_one() {
        let sizes =
            |kind: &str| json!({ "model_type": kind, "hidden_size": 8, "num_attention_heads": 4, "rotary_dim": 0 });
        let held = |kind: &str, part: &str, shape: &[usize]| {
            let name = format!("model.layers.3.self_attn.{part}");
            let stored = Names::of(&sizes(kind)).stored(&name, shape).remove(0);
            let lies = stored.runs.iter().flat_map(|run| run.held..run.held + run.length).collect::<Vec<usize>>();
            (stored.name, stored.shape, lies)
        };
        let (name, shape, lies) = held("gpt_neox", "v_proj.bias", &[8]);
        assert_eq!((name.as_str(), &shape[..]), ("gpt_neox.layers.3.attention.query_key_value.bias", &[24][..]));
        assert_eq!(lies, [4, 5, 10, 11, 16, 17, 22, 23]);
        let (name, shape, lies) = held("codegen", "v_proj.weight", &[8, 1]);
        assert_eq!((name.as_str(), &shape[..]), ("transformer.h.3.attn.qkv_proj.weight", &[24, 1][..]));
        assert_eq!(lies, [2, 3, 8, 9, 14, 15, 20, 21]);
    }

    /// Of heads of six rows, of which the last four turn: a checkpoint has those first.
    #[test]
    fn turned_rows_come_first() {
        let config = json!({ "model_type": "glm4_moe", "head_dim": 6, "partial_rotary_factor": 0.7 });
        let runs = |name: &str, shape: &[usize]| {
            let stored = Names::of(&config).stored(name, shape).remove(0);
            stored.runs.into_iter().map(|run| (run.held, run.whole, run.length)).collect::<Vec<_>>()
        };
        assert_eq!(runs("a.self_attn.q_proj.bias", &[6]), [(4, 0, 2), (0, 2, 4)]);
        assert_eq!(runs("a.self_attn.k_proj.weight", &[12, 3])[2..], [(30, 18, 6), (18, 24, 12)]);
        assert_eq!(runs("a.self_attn.v_proj.weight", &[12, 3]), [(0, 0, 36)]);
    }

    /// Of two heads with two rows that stay and four that are turned: rows 0 and 1 of the checkpoint's turned ones are the
    /// first of each half.
    #[test]
    fn turned_rows_lie_as_pairs() {
        let config = json!({
            "model_type": "deepseek_v3", "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "kv_lora_rank": 3,
        });
        let rows = |name: &str, shape: &[usize]| {
            let mut of_stored = vec![0; shape[0]];
            for run in &Names::of(&config).stored(name, shape)[0].runs {
                for row in 0..run.length / shape[1] {
                    of_stored[run.held / shape[1] + row] = run.whole / shape[1] + row;
                }
            }
            of_stored
        };
        assert_eq!(rows("a.self_attn.q_b_proj.weight", &[12, 5]), [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]);
        assert_eq!(rows("a.self_attn.q_b_proj.lora_B.weight", &[12, 2]), [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11]);
        assert_eq!(rows("a.self_attn.q_b_proj.lora_A.weight", &[2, 5]), [0, 1]);
        assert_eq!(rows("a.self_attn.kv_a_proj_with_mqa.weight", &[7, 5]), [0, 1, 2, 3, 5, 4, 6]);
        assert_eq!(rows("a.self_attn.kv_b_proj.weight", &[3, 5]), [0, 1, 2]);
        // Heads of six rows do not fit into eight.
        assert_eq!(rows("a.self_attn.q_proj.weight", &[8, 5]), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
