//! The pass that overlaps the TP all-reduce of dX with the dW matmul.
//!
//! The backward of a column-parallel linear layer computes dX = dY · W and dW = dYᵀ · X. Then dX is summed over the
//! devices (all-reduce; reduce-scatter with sequence parallelism). dW does not depend on that sum. So the reduction
//! starts right after the dX matmul, the dW matmul follows, and the wait comes right before the sum is read:
//!
//! ```text
//! dW, dX, [readers of dW], all-reduce dX, …   →   dX, start, dW, [readers of dW], …, wait, …
//! ```
//!
//! dX comes first, then the start, then dW. In the other order the collective starts after dW and hides nothing.
//! Where several matmuls add up to one dX (Q, K and V; gate and up), the dW of all of them overlap its reduction.
//!
//! # With master gradients
//! A dW in 16 bits that is then cast to f32 has a reader between itself and the reduction. Operators there that read
//! a moved dW move with it, in order, so a cast never comes before its input. The operator that adds the cast to the
//! accumulator moves, too. Where another operator there reads the output of a moved one, it would run too early: then
//! the pair stays as it is, and the report says so.
//!
//! # What it gains
//! Time in a fused BW only. Where B runs apart, dW is in W, nothing is left between start and wait, and the reduction
//! takes its full time. The price: the gradients that dW reads, and its input, stay until dW has run.
//!
//! This is the rewrite of Paddle's `allreduce_matmul_grad_overlapping` and Megatron-LM's
//! `async_tensor_model_parallel_allreduce`. Where one dX is reduced twice, the pass takes the last reduction, as they
//! do.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::{Entry, PassReport};
use crate::graph::builder::operator;
use crate::graph::{Graph, Job, Kernel, Operator, Role, Stream, TensorId};

/// What the pass is called in its [`PassReport`].
pub const NAME: &str = "overlap of the all-reduce of dX with the dW matmul";

/// Rewrites the backward of `graph`, which is undivided, once. Takes time in proportion to the operators.
pub fn run(graph: &mut Graph) -> PassReport {
    let mut account = PassReport::new(NAME);
    let index = Index::of(graph);
    // What becomes of each operator.
    let mut fates = vec![Fate::Stays; graph.operators.len()];
    let mut pairs: Vec<Option<Pair>> = Vec::new();
    let mut taken = vec![false; graph.operators.len()];
    for at in (index.backward..graph.operators.len()).rev() {
        let operator = &graph.operators[at];
        if !matches!(operator.kernel, Kernel::AllReduce { .. } | Kernel::ReduceScatter { .. }) {
            continue;
        }
        let Some(output) = operator.outputs.first().map(|id| &graph[*id]) else { continue };
        match index.pair(graph, at, &mut taken) {
            Ok(pair) => {
                let why = format!("overlaps dW of {}", pair.weights.join(", "));
                let bytes = operator.inputs.first().map_or(0, |input| graph[input.tensor].bytes());
                account.done.push(Entry::new(&output.name, operator.layer, why, bytes));
                fates[at] = Fate::Goes;
                pair.moved.iter().for_each(|moved| fates[*moved] = Fate::Goes);
                fates[pair.after] = Fate::Starts(pairs.len());
                pairs.push(Some(pair));
            }
            Err(why) => account.skipped.push(Entry::new(&output.name, operator.layer, why, 0)),
        }
    }
    account.done.reverse();
    account.skipped.reverse();
    if !pairs.is_empty() {
        rewrite(graph, &fates, pairs);
    }
    account
}

/// What the rewrite does at an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It stands elsewhere in the new list, or is replaced.
    Goes,
    /// It makes a dX: behind it, this pair's reduction starts.
    Starts(usize),
}

/// A reduction and what overlaps it, by positions in the list.
struct Pair {
    reduction: usize,
    /// The last matmul that adds to dX.
    after: usize,
    /// What has to follow it: each dW, and what reads one, in order.
    moved: Vec<usize>,
    /// The names of the weights, for people.
    weights: Vec<String>,
    /// Before which operator to wait.
    wait_before: usize,
}

/// What is looked up of a list.
struct Index {
    /// Where the backward starts.
    backward: usize,
    /// By tensor: the operator that makes it; nothing for persistent ones, which several add to.
    maker: Vec<Option<usize>>,
    /// By tensor: the operators that read it, by position.
    readers: Vec<Vec<usize>>,
}

impl Index {
    fn of(graph: &Graph) -> Index {
        let mut index = Index {
            backward: graph.forward_len(),
            maker: vec![None; graph.tensors.len()],
            readers: vec![Vec::new(); graph.tensors.len()],
        };
        for (at, operator) in graph.operators.iter().enumerate() {
            for output in operator.outputs.iter().filter(|output| !graph[**output].role.is_persistent()) {
                index.maker[output.index()] = Some(at);
            }
            for input in &operator.inputs {
                let readers = &mut index.readers[input.tensor.index()];
                if readers.last() != Some(&at) {
                    readers.push(at);
                }
            }
        }
        index
    }

    /// The operators that read `tensor` behind `from`, up to and with `to`.
    fn readers_within(&self, tensor: TensorId, from: usize, to: usize) -> &[usize] {
        let readers = &self.readers[tensor.index()];
        let (first, last) = (readers.partition_point(|at| *at <= from), readers.partition_point(|at| *at <= to));
        readers.get(first..last).unwrap_or_default()
    }

    /// The matmul of the backward that makes `tensor` as a dX.
    fn dx(&self, graph: &Graph, tensor: TensorId) -> Option<usize> {
        let at = self.maker[tensor.index()].filter(|at| *at >= self.backward)?;
        matches!(graph.operators[at].kernel, Kernel::MatMul { transpose_a: false, .. }).then_some(at)
    }

    /// What is to be done for the reduction at `at`, or why nothing can be. Marks the matmuls of dX as `taken`.
    fn pair(&self, graph: &Graph, at: usize, taken: &mut [bool]) -> Result<Pair, String> {
        let reduction = &graph.operators[at];
        let (Some(input), Some(output)) = (reduction.inputs.first(), reduction.outputs.first()) else {
            return Err("it reduces nothing".to_string());
        };
        let Some(after) = self.dx(graph, input.tensor) else {
            let maker = self.maker[input.tensor.index()].map(|maker| graph.operators[maker].kernel.name());
            return Err(format!("its input comes from {}, not from a matmul", maker.unwrap_or("another stage")));
        };
        // The matmuls that add up to dX, and for each the dW that reads the same gradient.
        let mut sums = vec![after];
        while let Some(sum) = sums.last().and_then(|last| {
            let so_far = graph.operators[*last].inputs.get(2)?;
            self.dx(graph, so_far.tensor)
        }) {
            sums.push(sum);
        }
        if sums.iter().any(|sum| taken[*sum]) {
            return Err("a later reduction of the same dX overlaps its dW".to_string());
        }
        let wait_before = self.readers_within(*output, at, usize::MAX).first().copied().unwrap_or(at);
        let mut beside: Vec<(usize, TensorId)> = sums.iter().flat_map(|sum| self.dw(graph, *sum)).collect();
        beside.retain(|(product, _)| *product < wait_before);
        beside.sort_unstable();
        if beside.is_empty() {
            return Err("no dW matmul before its result is needed".to_string());
        }
        let mut moved: Vec<usize> = beside.iter().map(|(at, _)| *at).filter(|at| *at < after).collect();
        let products = moved.len();
        let accumulates =
            |at: &usize| graph.operators[*at].outputs.iter().all(|out| graph[*out].role.is_persistent());
        let mut next = 0;
        while next < moved.len() {
            let from = moved[next];
            for output in &graph.operators[from].outputs {
                let readers = self.readers_within(*output, from, after).iter().copied();
                // What reads a dW; of what reads that, only sums into an accumulator.
                let follows = readers.filter(|reader| next < products || accumulates(reader));
                let new: Vec<usize> = follows.filter(|reader| !moved.contains(reader)).collect();
                moved.extend(new);
            }
            next += 1;
        }
        moved.sort_unstable();
        for from in &moved {
            for output in &graph.operators[*from].outputs {
                let readers = self.readers_within(*output, *from, after);
                if let Some(other) = readers.iter().find(|reader| moved.binary_search(reader).is_err()) {
                    let (reader, moved) =
                        (graph.operators[*other].kernel.name(), graph.operators[*from].kernel.name());
                    return Err(format!("{reader} reads what {moved} makes of dW before the reduction"));
                }
            }
        }
        sums.iter().for_each(|sum| taken[*sum] = true);
        let mut weights: Vec<String> = Vec::new();
        for (_, weight) in &beside {
            let name = &graph[*weight].name;
            let parts: Vec<&str> = name.rsplit('.').take(2).collect();
            weights.push(parts.last().map_or_else(|| name.clone(), ToString::to_string));
        }
        Ok(Pair { reduction: at, after, moved, weights, wait_before })
    }

    /// The matmuls that make dW from the gradient from which the matmul at `dx` makes dX, each with the weight.
    fn dw(&self, graph: &Graph, dx: usize) -> Vec<(usize, TensorId)> {
        let [Some(dy), Some(weight)] = [0, 1].map(|at| graph.operators[dx].inputs.get(at)) else { return Vec::new() };
        let weight = weight.tensor;
        let is_dw = |at: &usize| {
            let operator = &graph.operators[*at];
            let Some(output) = operator.outputs.first().map(|output| &graph[*output]) else { return false };
            let of_weight = match output.role {
                Role::WeightGradient { of } => of == weight,
                _ => output.shape == graph[weight].shape,
            };
            matches!(operator.kernel, Kernel::MatMul { transpose_a: true, .. }) && of_weight
        };
        let readers = self.readers[dy.tensor.index()].iter().copied().filter(|at| *at >= self.backward);
        readers.filter(is_dw).map(|at| (at, weight)).collect()
    }
}

/// Writes the list anew, once.
fn rewrite(graph: &mut Graph, fates: &[Fate], mut pairs: Vec<Option<Pair>>) {
    let mut old: Vec<Option<Operator>> = core::mem::take(&mut graph.operators).into_iter().map(Some).collect();
    let mut waits: Vec<Vec<Operator>> = vec![Vec::new(); old.len()];
    let mut list = Vec::with_capacity(old.len() + pairs.len());
    for at in 0..old.len() {
        list.append(&mut waits[at]);
        match fates[at] {
            Fate::Stays => list.extend(old[at].take()),
            Fate::Goes => {}
            Fate::Starts(pair) => {
                list.extend(old[at].take());
                let Some(pair) = pairs[pair].take() else { continue };
                let Some(reduction) = old[pair.reduction].take() else { continue };
                if let Some((start, wait)) = started(graph, &reduction) {
                    list.push(start);
                    waits[pair.wait_before].push(wait);
                }
                pair.moved.iter().for_each(|moved| list.extend(old[*moved].take()));
            }
        }
    }
    graph.operators = list;
}

/// The reduction in two: its start and its wait.
fn started(graph: &mut Graph, reduction: &Operator) -> Option<(Operator, Operator)> {
    let (x, y) = (reduction.inputs.first()?.tensor, *reduction.outputs.first()?);
    let (name, shape, dtype) = (format!("{} under way", graph[y].name), graph[y].shape.clone(), graph[y].dtype);
    let started = graph.add(name, shape, dtype, Role::Intermediate);
    let one = |kernel, inputs: &[TensorId], output| operator(kernel, Job::B, reduction.layer, inputs, &[output]);
    let (start, wait) = match reduction.kernel {
        Kernel::AllReduce { ways } => {
            (one(Kernel::AllReduceStart { ways }, &[x], started), one(Kernel::AllReduceWait, &[started], y))
        }
        Kernel::ReduceScatter { ways } => {
            let wait = one(Kernel::ReduceScatterWait, &[started, x], y);
            (one(Kernel::ReduceScatterStart { ways }, &[x], started), wait)
        }
        _ => return None,
    };
    Some((Operator { stream: Stream::Collective, ..start }, wait))
}
