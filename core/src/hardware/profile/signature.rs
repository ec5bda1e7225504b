//! What an operator is to a profile: its kernel, formats and sizes as text.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use crate::graph::liveness::Lifetimes;
use crate::graph::{Graph, Heads, Kernel, Operator, Recurring, TensorId};
use crate::model::Dtype;

/// What an operator is to a profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Its name and what of its attributes matters.
    pub kernel: String,
    /// Formats and sizes of inputs and outputs.
    pub operands: String,
}

impl Signature {
    /// That of `operator`.
    pub fn of(graph: &Graph, operator: &Operator) -> Signature {
        // A collective takes as long whether or not it is waited for at once.
        let name = match operator.kernel {
            Kernel::AllReduceStart { ways } => Kernel::AllReduce { ways }.name(),
            Kernel::ReduceScatterStart { ways } => Kernel::ReduceScatter { ways }.name(),
            kernel => kernel.name(),
        };
        let kernel = match operator.kernel {
            Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
                let mark = |transposed| if transposed { "t" } else { "n" };
                let adds = if accumulate { "+" } else { "" };
                format!("{name} {}{}{adds}", mark(transpose_a), mark(transpose_b))
            }
            Kernel::Attention(heads)
            | Kernel::AttentionGrad(heads)
            | Kernel::FullAttention(heads)
            | Kernel::FullAttentionGrad(heads)
            | Kernel::Scores(heads)
            | Kernel::ScoresGrad(heads)
            | Kernel::Attend(heads)
            | Kernel::AttendGrad(heads) => format!("{name} {}", of_heads(&heads)),
            Kernel::SpreadAttention(spread)
            | Kernel::SpreadAttentionGrad(spread)
            | Kernel::SinkAttention(spread)
            | Kernel::SparseAttention(spread)
            | Kernel::SparseAttentionGrad(spread) => {
                let within = if spread.window < spread.heads.sequence {
                    format!(" within {}", spread.window)
                } else {
                    String::new()
                };
                let ring = if spread.ways > 1 { format!(" in a ring of {}", spread.ways) } else { String::new() };
                format!("{name} {}{within}{ring}", of_heads(&spread.heads))
            }
            Kernel::IndexKeys(of) | Kernel::IndexKeysGrad(of) => {
                format!("{name} of {} over {}", of.tokens, of.sequence)
            }
            Kernel::Recurrence(of) | Kernel::RecurrenceGrad(of) => {
                let Recurring { sequence, key_heads, key_width, heads, width, .. } = of;
                format!("{name} {heads} of {width} by {key_heads} of {key_width} over {sequence}")
            }
            _ => name.to_string(),
        };
        // One text, written at once: planning asks for very many.
        let mut operands = String::with_capacity(64);
        for input in &operator.inputs {
            operand(&mut operands, graph, input.tensor);
        }
        operands.push_str("->");
        for output in &operator.outputs {
            operands.push(' ');
            operand(&mut operands, graph, *output);
            operands.pop();
        }
        Signature { kernel, operands }
    }

    /// That of `product` and of the `sum` behind it, which [takes its result](takes_sum), in one go.
    pub fn of_both(graph: &Graph, product: &Operator, sum: &Operator) -> Signature {
        let [first, second] = [product, sum].map(|operator| Signature::of(graph, operator));
        let (inputs, output) = first.operands.split_once(" -> ").unwrap_or_default();
        let others = sum.inputs.iter().map(|input| input.tensor).filter(|id| !product.outputs.contains(id));
        let mut added = String::new();
        others.for_each(|id| operand(&mut added, graph, id));
        let operands = format!("{inputs} {added}-> {output}");
        Signature { kernel: format!("{} & {}", first.kernel, second.kernel), operands }
    }

    /// That of the optimizer's step over `elements` weights in `dtype`, which is no operator of a graph.
    pub fn of_update(dtype: Dtype, elements: u64) -> Signature {
        let weights = format!("{}[{elements}]", dtype.name());
        Signature { kernel: "adamw".to_string(), operands: format!("{weights} -> {weights}") }
    }
}

/// What of heads matters for time.
fn of_heads(heads: &Heads) -> String {
    let Heads { sequence, query, key_value, width, .. } = heads;
    let capped = if heads.cap_e12.is_some() { ", capped" } else { "" };
    format!("{query}x{key_value} of {width} over {sequence}{capped}")
}

/// Writes format and sizes of a tensor, and a space behind them.
fn operand(text: &mut String, graph: &Graph, id: TensorId) {
    let tensor = &graph[id];
    text.push_str(tensor.dtype.name());
    for (at, size) in tensor.shape.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{size}", if at == 0 { '[' } else { ',' });
    }
    text.push_str(if tensor.shape.is_empty() { "[] " } else { "] " });
}

/// By operator of `graph`: whether it is a product whose result the next operator adds a bias or a residual to, where it
/// lies, which is what an epilogue of a product can do; or the gradient of a norm, to which what comes from beside it is added.
pub fn takes_sum(graph: &Graph) -> Vec<bool> {
    let takes_over = Lifetimes::of(graph).takes_over;
    let does = |at: usize| {
        let (Some(product), Some(sum)) = (graph.operators.get(at), graph.operators.get(at + 1)) else { return false };
        let result = product.outputs.first();
        let in_place = sum.in_place.and_then(|at| sum.inputs.get(at as usize)).map(|input| &input.tensor);
        let can = match product.kernel {
            Kernel::MatMul { accumulate: false, .. } => matches!(sum.kernel, Kernel::Add | Kernel::AddBias),
            Kernel::RmsNormInputGrad { .. } => sum.kernel == Kernel::Add,
            _ => false,
        };
        can && product.job == sum.job
            && takes_over.get(at + 1) == Some(&true)
            && in_place == result
            && sum.inputs.iter().filter(|input| Some(&input.tensor) == result).count() == 1
            && (sum.kernel == Kernel::Add || sum.inputs.first().map(|input| &input.tensor) == result)
    };
    (0..graph.operators.len()).map(does).collect()
}
