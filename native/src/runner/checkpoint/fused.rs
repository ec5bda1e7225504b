//! Tensors of a checkpoint that hold several weights of the graph: queries, keys and values as one, or both halves of a
//! gated MLP.
//!
//! A tensor has groups of rows that follow each other, and in each group so many rows of each weight in turn: one group where
//! weights lie behind each other, one for each head where they lie by head, one for each expert.

use serde_json::Value;

use crate::runner::shard::Run;

/// A tensor, and the weights that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fused {
    /// The end of its name.
    pub(super) theirs: &'static str,
    /// The ends of the names of the weights, and the rows that each has in a group.
    parts: Vec<(&'static str, usize)>,
    /// Groups of rows.
    groups: usize,
    /// How its sizes are those of its rows.
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `[rows, columns]`.
    Matrix,
    /// `[experts, rows of each, columns]`, and weights the same.
    Experts,
    /// `[rows, 1, columns]`: a convolution of each channel by itself.
    Convolution,
    /// `[experts, columns, rows of each]`, of weights `[experts, rows, columns]`, their rows by turns (gpt-oss).
    Transposed,
    /// `[experts, rows of each]`, of biases `[experts, rows]`, by turns.
    ByTurns,
    /// `[columns, rows]`: the other way round (GPT-2).
    Columns,
    /// `[rows]`, of biases.
    Vector,
    /// `[heads, rows of each]`, of weights `[heads · rows]`.
    Heads,
}

/// A weight of the graph in a tensor.
pub(super) struct Held {
    /// The weight's name.
    pub(super) name: String,
    /// Its sizes.
    pub(super) shape: Vec<usize>,
}

impl Fused {
    /// The tensors of the model that `config` describes.
    pub(super) fn of(config: &Value) -> Vec<Fused> {
        let size = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
        let (heads, key_values, ffn) =
            (size("num_attention_heads"), size("num_key_value_heads"), size("intermediate_size"));
        let head_dim = match size("head_dim") {
            0 => size("hidden_size").checked_div(heads).unwrap_or(0),
            known => known,
        };
        let gate_up =
            || matrix(".mlp.gate_up_proj.weight", 1, &[(".mlp.gate_proj.weight", ffn), (".mlp.up_proj.weight", ffn)]);
        match config["model_type"].as_str().unwrap_or_default() {
            "glm" | "glm4" => vec![gate_up()],
            "phi3" => vec![
                gate_up(),
                matrix(
                    ".self_attn.qkv_proj.weight",
                    1,
                    &[q(heads * head_dim), k(key_values * head_dim), v(key_values * head_dim)],
                ),
            ],
            "gpt2" => of_gpt_2(size("n_embd"), size("n_inner")),
            "gpt_oss" => of_gpt_oss(size("num_local_experts"), size("hidden_size"), ffn),
            "cohere" if config["use_qk_norm"] == true => {
                let norm = |name, heads| Fused { form: Form::Heads, ..matrix(name, heads, &[(name, head_dim)]) };
                vec![norm(".self_attn.q_norm.weight", heads), norm(".self_attn.k_norm.weight", key_values)]
            }
            "codegen" => {
                // Four parts of the heads, each with its queries, values and keys.
                let quarter = heads * head_dim / 4;
                let parts = [q(quarter), v(quarter), k(quarter)];
                vec![matrix(".attn.qkv_proj.weight", 4, &parts)]
            }
            "gpt_neox" => {
                let biases = [
                    (".self_attn.q_proj.bias", head_dim),
                    (".self_attn.k_proj.bias", head_dim),
                    (".self_attn.v_proj.bias", head_dim),
                ];
                vec![
                    matrix(".attention.query_key_value.weight", heads, &[q(head_dim), k(head_dim), v(head_dim)]),
                    Fused { form: Form::Vector, ..matrix(".attention.query_key_value.bias", heads, &biases) },
                ]
            }
            "granitemoe" => {
                let experts = size("num_local_experts");
                let stacked = |theirs, parts: &[(&'static str, usize)]| Fused {
                    form: Form::Experts,
                    ..matrix(theirs, experts, parts)
                };
                vec![
                    stacked(
                        ".block_sparse_moe.input_linear.weight",
                        &[(".mlp.experts.gate_proj.weight", ffn), (".mlp.experts.up_proj.weight", ffn)],
                    ),
                    stacked(
                        ".block_sparse_moe.output_linear.weight",
                        &[(".mlp.experts.down_proj.weight", size("hidden_size"))],
                    ),
                ]
            }
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => of_delta_net(config, [heads, head_dim]),
            _ => Vec::new(),
        }
    }

    /// Rows of a group.
    fn group(&self) -> usize {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    /// Where the weight `name` of `shape` lies in this tensor, if it is one of its parts: the tensor's name and sizes, and
    /// `runs`, which say where the weight's rows lie where it is held alone, within it.
    pub(super) fn stored(&self, name: &str, shape: &[usize], runs: &[Run]) -> Option<(String, Vec<usize>, Vec<Run>)> {
        let at = self.parts.iter().position(|(part, _)| name.ends_with(part))?;
        let (part, rows) = self.parts[at];
        let theirs = format!("{}{}", name.strip_suffix(part)?, self.theirs);
        match self.form {
            Form::Transposed | Form::ByTurns => {
                return self.by_turns(at, shape).map(|(sizes, lies)| (theirs, sizes, lies));
            }
            Form::Columns => return self.turned(at, shape).map(|(sizes, lies)| (theirs, sizes, lies)),
            _ => {}
        }
        let columns = if matches!(self.form, Form::Vector | Form::Heads) { 1 } else { shape.last().copied()? };
        let all = shape.iter().product::<usize>().checked_div(columns)?;
        if rows == 0 || all != rows * self.groups {
            return None;
        }
        let sizes = match self.form {
            Form::Matrix => vec![self.groups * self.group(), columns],
            Form::Experts => vec![self.groups, self.group(), columns],
            Form::Convolution => vec![self.groups * self.group(), 1, columns],
            Form::Vector => vec![self.groups * self.group()],
            Form::Heads => vec![self.groups, self.group()],
            Form::Transposed | Form::ByTurns | Form::Columns => return None,
        };
        let before: usize = self.parts[..at].iter().map(|(_, rows)| rows).sum();
        let (own, whole) = (rows * columns, self.group() * columns);
        let mut lies = Vec::new();
        for run in runs {
            let mut done = 0;
            // A run ends with its group.
            while done < run.length {
                let (group, within) = ((run.held + done) / own, (run.held + done) % own);
                let length = (own - within).min(run.length - done);
                lies.push(Run { held: group * whole + before * columns + within, whole: run.whole + done, length });
                done += length;
            }
        }
        Some((theirs, sizes, lies))
    }

    /// The sizes of the tensor, and where the elements of its part `at` lie in it, where rows come by turns.
    fn by_turns(&self, at: usize, shape: &[usize]) -> Option<(Vec<usize>, Vec<Run>)> {
        let (rows, columns) = match (self.form, shape) {
            (Form::Transposed, [experts, rows, columns]) if *experts == self.groups => (*rows, *columns),
            (Form::ByTurns, [experts, rows]) if *experts == self.groups => (*rows, 1),
            _ => return None,
        };
        if rows == 0 || rows != self.parts[at].1 {
            return None;
        }
        let (group, turns) = (self.group(), self.parts.len());
        let place = |whole: usize| {
            let (expert, row, column) = (whole / (rows * columns), whole / columns % rows, whole % columns);
            Run { held: (expert * columns + column) * group + row * turns + at, whole, length: 1 }
        };
        let sizes = match self.form {
            Form::Transposed => vec![self.groups, columns, group],
            _ => vec![self.groups, group],
        };
        Some((sizes, (0..self.groups * rows * columns).map(place).collect()))
    }

    /// The same where each row of the matrices is a column.
    fn turned(&self, at: usize, shape: &[usize]) -> Option<(Vec<usize>, Vec<Run>)> {
        let [rows, columns] = *shape else { return None };
        if rows == 0 || rows != self.parts[at].1 {
            return None;
        }
        let (group, before) = (self.group(), self.parts[..at].iter().map(|(_, rows)| rows).sum::<usize>());
        let place = |whole: usize| {
            let (row, column) = (whole / columns, whole % columns);
            Run { held: column * group + before + row, whole, length: 1 }
        };
        Some((vec![columns, group], (0..rows * columns).map(place).collect()))
    }

    /// The weights that the tensor called `stored` of `shape` holds, if it is this one.
    pub(super) fn held(&self, stored: &str, shape: &[usize]) -> Option<Vec<Held>> {
        let layer = stored.strip_suffix(self.theirs)?;
        let columns = match (self.form, shape) {
            (Form::Transposed, [_, columns, _]) => *columns,
            (Form::Columns, [columns, rows]) if *rows == self.group() => *columns,
            (Form::Columns, _) => return None,
            (Form::ByTurns | Form::Vector | Form::Heads, _) => 1,
            _ => shape.last().copied()?,
        };
        let all: usize = shape.iter().product();
        if all != self.groups * self.group() * columns {
            return None;
        }
        let part = |(part, rows): &(&'static str, usize)| Held {
            name: format!("{layer}{part}"),
            shape: match self.form {
                Form::Experts | Form::Transposed => vec![self.groups, *rows, columns],
                Form::ByTurns => vec![self.groups, *rows],
                Form::Vector | Form::Heads => vec![self.groups * rows],
                Form::Matrix | Form::Columns | Form::Convolution => vec![self.groups * rows, columns],
            },
        };
        Some(self.parts.iter().map(part).collect())
    }
}

/// One whose rows are those of a matrix.
fn matrix(theirs: &'static str, groups: usize, parts: &[(&'static str, usize)]) -> Fused {
    Fused { theirs, parts: parts.to_vec(), groups, form: Form::Matrix }
}

/// So many rows of the queries.
const fn q(rows: usize) -> (&'static str, usize) {
    (".self_attn.q_proj.weight", rows)
}

/// Of the keys.
const fn k(rows: usize) -> (&'static str, usize) {
    (".self_attn.k_proj.weight", rows)
}

/// Of the values.
const fn v(rows: usize) -> (&'static str, usize) {
    (".self_attn.v_proj.weight", rows)
}

/// Those of GPT-2, of which `inner` is 0 where it is the usual width.
fn of_gpt_2(hidden: usize, inner: usize) -> Vec<Fused> {
    let ffn = if inner == 0 { 4 * hidden } else { inner };
    let columns = |theirs, parts: &[(&'static str, usize)]| Fused { form: Form::Columns, ..matrix(theirs, 1, parts) };
    let biases = [".self_attn.q_proj.bias", ".self_attn.k_proj.bias", ".self_attn.v_proj.bias"];
    vec![
        columns(".attn.c_attn.weight", &[q(hidden), k(hidden), v(hidden)]),
        Fused { form: Form::Vector, ..matrix(".attn.c_attn.bias", 1, &biases.map(|bias| (bias, hidden))) },
        columns(".attn.c_proj.weight", &[(".self_attn.out_proj.weight", hidden)]),
        columns(".mlp.c_fc.weight", &[(".fc1.weight", ffn)]),
        columns(".mlp.c_proj.weight", &[(".fc2.weight", hidden)]),
    ]
}

/// Those of gpt-oss's experts.
fn of_gpt_oss(experts: usize, hidden: usize, ffn: usize) -> Vec<Fused> {
    let of = |form, theirs, parts: &[(&'static str, usize)]| Fused { form, ..matrix(theirs, experts, parts) };
    vec![
        of(
            Form::Transposed,
            ".mlp.experts.gate_up_proj",
            &[(".mlp.experts.gate_proj.weight", ffn), (".mlp.experts.up_proj.weight", ffn)],
        ),
        of(Form::Transposed, ".mlp.experts.down_proj", &[(".mlp.experts.down_proj.weight", hidden)]),
        of(
            Form::ByTurns,
            ".mlp.experts.gate_up_proj_bias",
            &[(".mlp.experts.gate_proj.bias", ffn), (".mlp.experts.up_proj.bias", ffn)],
        ),
        of(Form::ByTurns, ".mlp.experts.down_proj_bias", &[(".mlp.experts.down_proj.bias", hidden)]),
    ]
}

/// Those of gated delta nets, and of attention with a gate, of so many heads of such a width.
fn of_delta_net(config: &Value, [heads, head_dim]: [usize; 2]) -> Vec<Fused> {
    let size = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
    let (groups, keys) = (size("linear_num_key_heads"), size("linear_key_head_dim"));
    let of_group = size("linear_num_value_heads").checked_div(groups).unwrap_or(0);
    let values = of_group * size("linear_value_head_dim");
    let [q, k, v, z] = [
        (".linear_attn.in_proj_q.weight", keys),
        (".linear_attn.in_proj_k.weight", keys),
        (".linear_attn.in_proj_v.weight", values),
        (".linear_attn.in_proj_z.weight", values),
    ];
    let behind = |parts: &[(&'static str, usize)]| -> Vec<(&'static str, usize)> {
        parts.iter().map(|(name, rows)| (*name, rows * groups)).collect()
    };
    let convolved = behind(&[
        (".linear_attn.conv1d_q.weight", keys),
        (".linear_attn.conv1d_k.weight", keys),
        (".linear_attn.conv1d_v.weight", values),
    ]);
    let gated = [(".self_attn.q_proj.weight", head_dim), (".self_attn.gate_proj.weight", head_dim)];
    let mut all = vec![
        matrix(".self_attn.q_proj.weight", heads, &gated),
        Fused { form: Form::Convolution, ..matrix(".linear_attn.conv1d.weight", 1, &convolved) },
    ];
    if config["model_type"] == "qwen3_next" {
        let rates = [(".linear_attn.in_proj_b.weight", of_group), (".linear_attn.in_proj_a.weight", of_group)];
        all.push(matrix(".linear_attn.in_proj_qkvz.weight", groups, &[q, k, v, z]));
        all.push(matrix(".linear_attn.in_proj_ba.weight", groups, &rates));
    } else {
        all.push(matrix(".linear_attn.in_proj_qkv.weight", 1, &behind(&[q, k, v])));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// gpt-oss has a column for each row of gate and up by turns: of one expert of two rows and three columns, the second row
    /// of `up` is the last column.
    #[test]
    fn rows_come_by_turns() {
        let config =
            json!({ "model_type": "gpt_oss", "num_local_experts": 1, "intermediate_size": 2, "hidden_size": 3 });
        let all = Fused::of(&config);
        let (name, shape, lies) = all[0].stored("a.mlp.experts.up_proj.weight", &[1, 2, 3], &[]).unwrap();
        assert_eq!((name.as_str(), &shape[..]), ("a.mlp.experts.gate_up_proj", &[1, 3, 4][..]));
        let held: Vec<usize> = lies.iter().map(|run| run.held).collect();
        assert_eq!(held, [1, 5, 9, 3, 7, 11]);
        assert_eq!(all[0].held(&name, &shape).unwrap()[1].shape, [1, 2, 3]);
        let (name, shape, lies) = all[2].stored("a.mlp.experts.up_proj.bias", &[1, 2], &[]).unwrap();
        assert_eq!((name.as_str(), &shape[..], lies[1].held), ("a.mlp.experts.gate_up_proj_bias", &[1, 4][..], 3));
        assert_eq!(all[2].held(&name, &shape).unwrap()[0].shape, [1, 2]);
    }

    /// Queries and their gate lie by head: of two heads of two rows and one column, the second head's gate is last.
    #[test]
    fn parts_lie_by_group() {
        let config = json!({ "model_type": "qwen3_next", "num_attention_heads": 2, "head_dim": 2, "hidden_size": 1 });
        let all = Fused::of(&config);
        let runs = [Run { held: 0, whole: 0, length: 4 }];
        let (name, shape, lies) = all[0].stored("a.self_attn.gate_proj.weight", &[4, 1], &runs).unwrap();
        assert_eq!((name.as_str(), &shape[..]), ("a.self_attn.q_proj.weight", &[8, 1][..]));
        assert_eq!(lies, [Run { held: 2, whole: 0, length: 2 }, Run { held: 6, whole: 2, length: 2 }]);
        let held = all[0].held(&name, &shape).unwrap();
        let names: Vec<&str> = held.iter().map(|held| held.name.as_str()).collect();
        assert_eq!(names, ["a.self_attn.q_proj.weight", "a.self_attn.gate_proj.weight"]);
        assert_eq!(held[1].shape, [4, 1]);
        // Sizes that do not fit are no such tensor.
        assert!(all[0].held(&name, &[6, 1]).is_none());
        assert!(all[0].stored("a.self_attn.gate_proj.weight", &[6, 1], &runs).is_none());
    }
}
