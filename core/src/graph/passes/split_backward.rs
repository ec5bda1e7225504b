//! The pass that divides the backward: what only ends in gradients of weights, and is worth it, becomes W.
//!
//! Worth it are the gradients of matrices (one matmul each) and of embeddings. Those of gains and biases stay in B: they
//! are a sum over tokens, too small to fill a bubble, and deferring them would keep two more tensors of the hidden width
//! alive for each norm. Nothing moves in the list, so the fused BW is what it was.
//!
//! What this costs is memory: W needs the inputs of all matrices and the gradients of their outputs, so all of these
//! stay from B until W. With flash attention that is about 94 % of a microbatch, 32sbh of 34sbh in a GPT layer.

use alloc::format;
use alloc::vec;

use super::{Entry, PassReport};
use crate::base::units::Bytes;
use crate::graph::{Graph, Job, Kernel, Needs, Operator, Role, TensorId};

/// What the pass is called in its [`PassReport`].
pub const NAME: &str = "split of the backward into B and W";

/// Why a gain's or bias's gradient is left in B.
const SMALL: &str = "stays in B: a sum over tokens is too small to fill a bubble";

/// Takes W out of B, in one walk from the last operator to the first.
pub fn run(graph: &mut Graph) {
    // By tensor: who reads it. Readers come after makers.
    let mut reads = vec![Reads::Nobody; graph.tensors.len()];
    for at in (graph.forward_len()..graph.operators.len()).rev() {
        let operator = &graph.operators[at];
        let matrix = match operator.job {
            Job::B => matrix_of(graph, &reads, operator),
            _ => None,
        };
        let passes_on = matches!(operator.kernel, Kernel::Cast | Kernel::Add);
        let reader = matrix.filter(|_| passes_on).map_or(Reads::Other, Reads::Gradient);
        for input in &operator.inputs {
            let by = &mut reads[input.tensor.index()];
            *by = if *by == Reads::Nobody || *by == reader { reader } else { Reads::Other };
        }
        if matrix.is_some() {
            graph.operators[at].job = Job::W;
        }
    }
}

/// Who reads a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nobody,
    /// Only casts and sums of the gradient of this matrix or embedding.
    Gradient(TensorId),
    /// Something else, too.
    Other,
}

/// The matrix or embedding whose gradient is all that `operator` makes: the accumulator itself, or what is cast and
/// added to it and goes nowhere else.
fn matrix_of(graph: &Graph, reads: &[Reads], operator: &Operator) -> Option<TensorId> {
    let of = |output: &TensorId| match (graph[*output].role, reads[output.index()]) {
        (Role::WeightGradient { of }, _) => Some(of),
        (Role::Intermediate, Reads::Gradient(of)) if graph[of].shape == graph[*output].shape => Some(of),
        _ => None,
    };
    let first = of(operator.outputs.first()?)?;
    let all = operator.outputs.iter().all(|output| of(output) == Some(first));
    (all && graph[first].shape.len() > 1).then_some(first)
}

/// What the pass did to `graph`, as it is after all passes. The bytes of an entry are those that its operator keeps
/// from the end of B until W; what several need is counted with the first. So they add up to all that is held then.
pub fn account(graph: &Graph) -> PassReport {
    let mut account = PassReport::new(NAME);
    // Tensors that are there when W starts, and not yet counted.
    let mut there = vec![true; graph.tensors.len()];
    graph.job(Job::W).flat_map(|operator| &operator.outputs).for_each(|output| there[output.index()] = false);
    for operator in &graph.operators[graph.forward_len()..] {
        let ends_in = operator.outputs.iter().find_map(|output| match graph[*output].role {
            Role::WeightGradient { of } => Some(&graph[of].name),
            _ => None,
        });
        if operator.job != Job::W {
            let skipped = ends_in.map(|name| Entry::new(name, operator.layer, SMALL, 0));
            account.skipped.extend(skipped);
            continue;
        }
        let mut kept: Bytes = 0;
        for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
            let tensor = &graph[input.tensor];
            if !tensor.role.is_persistent() && core::mem::take(&mut there[input.tensor.index()]) {
                kept = kept.saturating_add(tensor.bytes());
            }
        }
        let name = ends_in.or(operator.outputs.first().map(|output| &graph[*output].name));
        let why = format!("{} runs in W", operator.kernel.name());
        account.done.extend(name.map(|name| Entry::new(name, operator.layer, why, kept)));
    }
    account
}
