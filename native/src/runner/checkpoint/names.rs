//! Under which names, and in which order of rows, checkpoints hold what a graph holds otherwise: the matrices of a layer's
//! experts each by itself, and rows that rotary positions turn where the published models have them.

use serde_json::Value;

use crate::runner::shard::Run;

/// What the kind of model in a `config.json` says of its weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    kind: Kind,
    /// Rows of each head of the queries: those that carry no position, and those that do.
    query: [usize; 2],
    /// Rows of the latent of keys and values, and of the key that all heads share.
    latent: [usize; 2],
    /// Whether each router has a bias that corrects the choice.
    corrects: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// All is held as the graph holds it.
    #[default]
    Own,
    Mixtral,
    Qwen2Moe,
    Qwen3Moe,
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
const ADAPTER: &str = ".lora_";

impl Names {
    /// Of the model that `config` describes, the content of a `config.json`.
    pub fn of(config: &Value) -> Names {
        let size = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
        let kind = match config["model_type"].as_str() {
            Some("mixtral") => Kind::Mixtral,
            Some("qwen2_moe") => Kind::Qwen2Moe,
            Some("qwen3_moe") => Kind::Qwen3Moe,
            Some("deepseek_v2" | "deepseek_v3") => Kind::DeepSeek,
            _ => Kind::Own,
        };
        let rope = size("qk_rope_head_dim");
        Names {
            kind,
            query: [size("qk_nope_head_dim"), rope],
            latent: [size("kv_lora_rank"), rope],
            corrects: config["model_type"] == "deepseek_v3",
        }
    }

    /// The tensors that hold the weight `name` of this shape.
    pub fn stored(&self, name: &str, shape: &[usize]) -> Vec<Stored> {
        let elements: usize = shape.iter().product();
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

    /// The weight that a tensor called `stored` belongs to, and which expert's part it is.
    pub fn own(&self, stored: &str) -> (String, Option<usize>) {
        let own = match self.kind {
            Kind::Mixtral => stored.replacen(".block_sparse_moe.", ".mlp.", 1),
            Kind::Qwen2Moe => stored.replacen(".mlp.shared_expert.", ".mlp.shared_experts.", 1),
            _ => stored.to_string(),
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
        let router = name.strip_suffix(".mlp.gate.weight").filter(|_| self.corrects)?;
        Some(format!("{router}.mlp.gate.e_score_correction_bias"))
    }

    fn renamed(&self, name: &str) -> String {
        match self.kind {
            Kind::Qwen2Moe => name.replacen(".mlp.shared_experts.", ".mlp.shared_expert.", 1),
            Kind::Mixtral => match name.split_once(".mlp.") {
                None => name.to_string(),
                Some((layer, rest)) => {
                    let theirs = |rest: String, [own, theirs]: &[&str; 2]| rest.replacen(own, theirs, 1);
                    format!("{layer}.block_sparse_moe.{}", OF_EXPERT.iter().fold(rest.to_string(), theirs))
                }
            },
            _ => name.to_string(),
        }
    }

    /// Where the rows of a matrix lie. DeepSeek turns columns `2j` and `2j + 1` together, the kernels `j` and `j + half`.
    fn rows(&self, name: &str, shape: &[usize]) -> Vec<Run> {
        let (rows, columns) = (shape.first().copied().unwrap_or(1), shape.iter().skip(1).product());
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
        ] {
            let names = Names::of(&json!({ "model_type": kind }));
            let [own, published] = [own, published].map(|part| format!("model.layers.3.{part}.weight"));
            let sizes = if kind == "pipeplan-llama" { &shape[..] } else { &shape[1..] };
            assert_eq!(names.stored(&own, sizes)[0].name, published);
            assert_eq!(names.own(&published), (own, None));
        }
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
