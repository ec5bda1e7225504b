//! The pass that recomputes activations. Tensors that the backward needs and that are not kept are computed again
//! right before the backward needs them, by the same operators on the kept tensors.
//!
//! Consecutive operators that run again form a group. The whole group runs where its first result is needed. It
//! belongs to B, unless only W needs it.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use super::{Entry, PassReport};
use crate::base::units::Bytes;
use crate::graph::form::Recompute;
use crate::graph::{Graph, Job, Kernel, Needs, Operator, Role, TensorId, Use};

/// What the pass is called in its [`PassReport`].
pub const NAME: &str = "recompute";

/// The recomputation of each decoder layer of a stage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choices {
    /// From the stage's first layer on; beyond its end, and outside of layers, [`Choices::others`].
    pub by_layer: Vec<Recompute>,
    /// The number of the first layer, counted over the whole model.
    pub first: u32,
    /// The choice for all layers that `by_layer` does not have.
    pub others: Recompute,
    /// With full recomputation: the number of consecutive layers that keep only the input of the first.
    pub group: u32,
}

impl Choices {
    /// The same for all layers, each for itself.
    pub const fn same(choice: Recompute) -> Choices {
        Choices { by_layer: Vec::new(), first: 0, others: choice, group: 1 }
    }

    fn of(&self, layer: Option<u32>) -> Recompute {
        let at = layer.and_then(|layer| layer.checked_sub(self.first));
        at.and_then(|at| self.by_layer.get(at as usize)).copied().unwrap_or(self.others)
    }

    /// The group of `layer`.
    fn unit(&self, layer: Option<u32>) -> Option<u32> {
        layer.map(|layer| layer.saturating_sub(self.first) / self.group.max(1))
    }
}

/// Lets B and W of `graph` make again what `choices` say is not kept, and the all-gathers of sequence parallelism in
/// any case: their inputs are kept, a share of the size (arXiv:2205.05198 §4.2.2). Takes time in proportion to the
/// operators. To be run before [`run_in_place`](crate::graph::liveness::run_in_place).
///
/// The bytes of what was done are those of the tensors that are made again.
pub fn rerun(graph: &mut Graph, choices: &Choices) -> PassReport {
    let forward = graph.forward_len();
    let groups = groups(graph, forward, choices);
    let mut account = PassReport::new(NAME);
    if groups.iter().flatten().count() == 0 {
        return account;
    }
    let later = graph.operators.split_off(forward);
    let maker = makers(graph);
    let needed = needed(graph, &groups, later.iter());
    for ((operator, needed), _) in
        graph.operators.iter().zip(&needed).zip(&groups).filter(|(_, group)| group.is_some())
    {
        let bytes = operator.outputs.iter().fold(0, |sum: Bytes, id| sum.saturating_add(graph[*id].bytes()));
        let name = operator.outputs.first().map_or("", |id| graph[*id].name.as_str());
        match needed {
            true => account.done.push(Entry::new(name, operator.layer, "made again", bytes)),
            false => account.skipped.push(Entry::new(name, operator.layer, "the backward needs nothing of it", 0)),
        }
    }
    let mut rerun = Rerun {
        jobs: jobs(graph, &groups, &needed, &maker, &later),
        maker,
        again: vec![None; graph.tensors.len()],
        done: vec![false; forward],
        needed,
        groups: &groups,
        graph,
    };
    for mut operator in later {
        for input in &mut operator.inputs {
            if input.needs == Needs::Data {
                rerun.make(input.tensor);
            }
            input.tensor = rerun.now(input.tensor);
        }
        rerun.graph.operators.push(operator);
    }
    account
}

/// By group: the job that runs it again. B, where one of its operators makes what B needs, or what a group of B needs.
fn jobs(
    graph: &Graph,
    groups: &[Option<u32>],
    needed_at_all: &[bool],
    maker: &[Option<u32>],
    later: &[Operator],
) -> Vec<Job> {
    let by_b = needed(graph, groups, later.iter().filter(|operator| operator.job == Job::B));
    let mut jobs = vec![Job::W; groups.iter().flatten().max().map_or(0, |last| *last as usize + 1)];
    for (group, _) in groups.iter().zip(&by_b).filter(|(_, by_b)| **by_b) {
        group.iter().for_each(|group| jobs[*group as usize] = Job::B);
    }
    // Groups only need groups before them, so from the last to the first each job is final when it is read.
    for (at, operator) in graph.operators.iter().enumerate().rev() {
        let Some(group) = groups[at].filter(|group| needed_at_all[at] && jobs[*group as usize] == Job::B) else {
            continue;
        };
        for input in operator.inputs.iter().filter(|input| input.needs == Needs::Data) {
            let from = maker[input.tensor.index()].and_then(|maker| groups[maker as usize]);
            from.filter(|from| *from != group).iter().for_each(|from| jobs[*from as usize] = Job::B);
        }
    }
    jobs
}

/// By forward operator: the group it runs again with, if it is to.
fn groups(graph: &Graph, forward: usize, choices: &Choices) -> Vec<Option<u32>> {
    let operators = &graph.operators[..forward];
    // Layers that read a tensor, to find what crosses from layer to layer, or from group to group of layers.
    let mut crosses = vec![false; graph.tensors.len()];
    let mut layer_of = vec![None; graph.tensors.len()];
    for operator in operators {
        for input in &operator.inputs {
            let made_in = layer_of[input.tensor.index()];
            crosses[input.tensor.index()] |= made_in.is_some_and(|unit| unit != choices.unit(operator.layer));
        }
        for output in &operator.outputs {
            layer_of[output.index()] = Some(choices.unit(operator.layer));
        }
    }
    let inner = |id: &TensorId| graph[*id].role == Role::Intermediate && !crosses[id.index()];
    let mut group = 0;
    let mut before: Option<&Operator> = None;
    let mut before_named = false;
    let mut made_again = vec![false; graph.tensors.len()];
    let expands = expands(graph, operators);
    let feeds_forward = feeds_forward(operators);
    let mut groups = Vec::with_capacity(forward);
    for operator in operators {
        let chosen = match choices.of(operator.layer) {
            Recompute::None => false,
            Recompute::Selective => is_attention_core(operator, before),
            Recompute::Cheap => is_attention_core(operator, before) || is_cheap(&operator.kernel),
            Recompute::Latents => {
                is_attention_core(operator, before) || is_cheap(&operator.kernel) || expands[groups.len()]
            }
            Recompute::FeedForward => {
                let at = groups.len();
                is_attention_core(operator, before) || is_cheap(&operator.kernel) || expands[at] || feeds_forward[at]
            }
            Recompute::Full => operator.layer.is_some(),
        };
        // Quantized again is what is made again, and nothing else: the quantized takes less than what it is made of.
        let chosen = match operator.kernel {
            Kernel::Quantize { .. } => operator.inputs.iter().all(|input| made_again[input.tensor.index()]),
            Kernel::AllGather { .. } => true,
            _ => chosen,
        };
        let named = chosen && operator.outputs.iter().all(inner);
        operator.outputs.iter().for_each(|output| made_again[output.index()] = named);
        if !before_named || before.map(|before| choices.unit(before.layer)) != Some(choices.unit(operator.layer)) {
            group += 1;
        }
        groups.push(named.then_some(group));
        (before, before_named) = (Some(operator), named);
    }
    groups
}

/// From the scores to what is applied to the values; the softmax's dropout directly follows it.
fn is_attention_core(operator: &Operator, before: Option<&Operator>) -> bool {
    match operator.kernel {
        Kernel::Scores(_) | Kernel::Softmax => true,
        Kernel::SoftCap { .. } => before.is_some_and(|before| matches!(before.kernel, Kernel::Scores(_))),
        Kernel::Dropout { .. } => before.is_some_and(|before| before.kernel == Kernel::Softmax),
        _ => false,
    }
}

/// Operators that read their inputs once, and the core of attention.
fn is_cheap(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::RmsNorm { .. }
            | Kernel::LayerNorm { .. }
            | Kernel::HeadLayerNorm { .. }
            | Kernel::HeadNorm { .. }
            | Kernel::SwiGlu
            | Kernel::GeGlu
            | Kernel::WeightedGlu { .. }
            | Kernel::ClampedGlu
            | Kernel::SquaredRelu
            | Kernel::WeightedSquaredRelu
            | Kernel::Xielu
            | Kernel::HeadLength { .. }
            | Kernel::Gelu
            | Kernel::GeluTanh
    )
}

/// By operator: whether it is on the way from latents to the queries, keys and values of a latent attention.
fn expands(graph: &Graph, operators: &[Operator]) -> Vec<bool> {
    let mut expands = vec![false; operators.len()];
    if !operators.iter().any(|operator| matches!(operator.kernel, Kernel::LatentKeys { .. })) {
        return expands;
    }
    let mut wanted = vec![false; graph.tensors.len()];
    for (operator, expands) in operators.iter().zip(&mut expands).rev() {
        let is_wanted = operator.outputs.iter().any(|output| wanted[output.index()]);
        let goes_on = match operator.kernel {
            Kernel::SpreadAttention(_) | Kernel::SparseAttention(_) => true,
            Kernel::LatentKeys { .. } | Kernel::RopeTail { .. } | Kernel::Rope { .. } => {
                *expands = is_wanted;
                is_wanted
            }
            // The matrix that expands, to whose product an adapter's may be added.
            Kernel::MatMul { accumulate, .. } => {
                *expands = is_wanted;
                if accumulate && is_wanted {
                    operator.inputs.iter().skip(2).for_each(|input| wanted[input.tensor.index()] = true);
                }
                false
            }
            _ => false,
        };
        if goes_on {
            operator.inputs.iter().for_each(|input| wanted[input.tensor.index()] = true);
        }
    }
    expands
}

/// By operator: whether it is of a feed-forward part, which in its layer follows what attention adds to the stream.
fn feeds_forward(operators: &[Operator]) -> Vec<bool> {
    let (mut layer, mut attended, mut added) = (None, false, false);
    let of_part = operators.iter().map(|operator| {
        if operator.layer != layer {
            (layer, attended, added) = (operator.layer, false, false);
        }
        let is_so = layer.is_some() && added;
        attended |= matches!(
            operator.kernel,
            Kernel::Attention(_)
                | Kernel::SpreadAttention(_)
                | Kernel::SinkAttention(_)
                | Kernel::SparseAttention(_)
                | Kernel::Recurrence(_)
                | Kernel::Attend(_)
        );
        added |= attended && operator.kernel == Kernel::Add;
        is_so
    });
    of_part.collect()
}

/// By tensor: the forward operator that makes it.
fn makers(graph: &Graph) -> Vec<Option<u32>> {
    let mut makers = vec![None; graph.tensors.len()];
    for (at, operator) in graph.operators.iter().enumerate() {
        for output in &operator.outputs {
            makers[output.index()] = Some(at as u32);
        }
    }
    makers
}

/// By forward operator: whether `later` needs what it makes, at first or second hand, and it is in a group.
fn needed<'o>(graph: &Graph, groups: &[Option<u32>], later: impl Iterator<Item = &'o Operator>) -> Vec<bool> {
    let mut used = vec![false; graph.tensors.len()];
    let data = |operator: &Operator| -> Vec<TensorId> {
        operator.inputs.iter().filter(|input| input.needs == Needs::Data).map(|input| input.tensor).collect()
    };
    later.flat_map(data).for_each(|id| used[id.index()] = true);
    let mut needed = vec![false; groups.len()];
    for (at, operator) in graph.operators.iter().enumerate().rev() {
        needed[at] = groups[at].is_some() && operator.outputs.iter().any(|output| used[output.index()]);
        if needed[at] {
            data(operator).into_iter().for_each(|id| used[id.index()] = true);
        }
    }
    needed
}

struct Rerun<'g> {
    graph: &'g mut Graph,
    groups: &'g [Option<u32>],
    /// By group: the job that runs it again.
    jobs: Vec<Job>,
    /// By tensor of before: the forward operator that makes it.
    maker: Vec<Option<u32>>,
    /// By forward operator: whether it is to run again.
    needed: Vec<bool>,
    /// By forward operator: whether it has.
    done: Vec<bool>,
    /// By tensor of before: the tensor that holds it again.
    again: Vec<Option<TensorId>>,
}

impl Rerun<'_> {
    /// Where `id` is to be read from now on.
    fn now(&self, id: TensorId) -> TensorId {
        self.again.get(id.index()).copied().flatten().unwrap_or(id)
    }

    /// Makes sure that `id` is there: runs its maker's whole group, if that is to run again and has not, and before it
    /// whatever that needs. Every step goes towards the start of the forward, so this ends.
    fn make(&mut self, id: TensorId) {
        let Some(maker) = self.maker.get(id.index()).copied().flatten() else { return };
        let maker = maker as usize;
        if !self.needed[maker] || self.done[maker] {
            return;
        }
        let job = self.groups[maker].map_or(Job::B, |group| self.jobs[group as usize]);
        let same = |at: &usize| self.groups[*at] == self.groups[maker];
        let first = (0..maker).rev().take_while(same).last().unwrap_or(maker);
        let last = (maker..self.groups.len()).take_while(same).last().unwrap_or(maker);
        for at in first..=last {
            if !self.needed[at] || self.done[at] {
                continue;
            }
            self.done[at] = true;
            let mut operator = Operator { job, ..self.graph.operators[at].clone() };
            for input in &mut operator.inputs {
                if input.needs == Needs::Data {
                    self.make(input.tensor);
                }
                *input = Use { tensor: self.now(input.tensor), ..*input };
            }
            for output in &mut operator.outputs {
                let before = &self.graph[*output];
                let (name, shape, dtype) = (format!("{} again", before.name), before.shape.clone(), before.dtype);
                let id = self.graph.add(name, shape, dtype, Role::Intermediate);
                self.again[output.index()] = Some(id);
                *output = id;
            }
            self.graph.operators.push(operator);
        }
    }
}
