//! The backward of a forward graph, by reverse-mode differentiation with one rule for each kernel. All of it is in B;
//! [`split`](super::passes::split_backward) moves the gradients of weights to W.
//!
//! The rules visit the operators of the forward in reverse. A tensor with several consumers has several gradients, which
//! are summed in that order: a matmul adds to the sum so far, and an [`Kernel::Add`] follows any other kernel. A tensor that
//! only goes into sums passes its gradient on without a copy. The gradient of a matrix comes before the gradient of its
//! input, so that the input's buffer is free before the gradient needs one.

mod rules;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::builder::{operator, statistics_of};
use super::{Graph, Job, Kernel, Operator, Role, Tensor, TensorId};

/// Appends the gradients of all that `graph`, a forward, computes, as operators of B. It ends either in a loss or in an
/// activation for the next stage, whose gradient then arrives.
///
/// Nothing is written that leads to no weight that trains: not the gradient of a frozen weight, nor of what only frozen
/// weights have made. `trains_before` says that an earlier stage trains something, so that the stage's input has a
/// gradient; where the input has none, none is sent, and none arrives for an output that has none.
pub fn derive(graph: &mut Graph, trains_before: bool) {
    let forward = core::mem::take(&mut graph.operators);
    let wanted = wanted(graph, &forward, trains_before);
    let mut backward =
        Backward { gradient: vec![None; graph.tensors.len()], wanted, graph, layer: None, operators: Vec::new() };
    backward.add_weight_gradients();
    if let Some(out) = backward.graph.with_role(Role::ActivationOut)
        && backward.wanted[out.index()]
    {
        let id = backward.like(out, String::from("gradient_in"), Role::GradientIn);
        backward.gradient[out.index()] = Some(id);
    }
    for operator in forward.iter().rev() {
        backward.layer = operator.layer;
        backward.visit(operator);
    }
    if let Some(input) = backward.graph.with_role(Role::ActivationIn)
        && let Some(gradient) = backward.gradient[input.index()]
        && backward.graph[gradient].role == Role::Intermediate
    {
        backward.graph.tensors[gradient.index()].role = Role::GradientOut;
    }
    let Backward { graph, operators, .. } = backward;
    graph.operators = forward;
    graph.operators.extend(operators);
}

/// By tensor of the forward: whether something that trains goes into it, so that the backward passes through it.
fn wanted(graph: &Graph, forward: &[Operator], trains_before: bool) -> Vec<bool> {
    let of = |tensor: &Tensor| match tensor.role {
        Role::Weight { frozen, .. } => !frozen,
        // One that no operator writes comes from before, too.
        Role::ActivationIn | Role::Intermediate => trains_before,
        _ => false,
    };
    let mut wanted: Vec<bool> = graph.tensors.iter().map(of).collect();
    for operator in forward {
        // What an indexer is made of learns from attention alone: its input gets no gradient.
        let from = if operator.kernel == Kernel::DetachedMatMul { 1 } else { 0 };
        let is_wanted = operator.inputs.iter().skip(from).any(|input| wanted[input.tensor.index()]);
        operator.outputs.iter().for_each(|output| wanted[output.index()] = is_wanted);
    }
    wanted
}

/// Lets gradients of weights be summed in the weights' own format instead of f32.
pub fn sum_as_weights(graph: &mut Graph) {
    for index in 0..graph.tensors.len() {
        if let Role::WeightGradient { of } = graph.tensors[index].role {
            graph.tensors[index].dtype = graph[of].dtype;
        }
    }
}

struct Backward<'g> {
    graph: &'g mut Graph,
    /// By tensor of the forward: its gradient so far, or a weight's accumulator.
    gradient: Vec<Option<TensorId>>,
    /// By tensor of the forward: whether it has a gradient at all.
    wanted: Vec<bool>,
    /// The layer of the operator being visited.
    layer: Option<u32>,
    /// The operators so far.
    operators: Vec<Operator>,
}

impl Backward<'_> {
    fn add_weight_gradients(&mut self) {
        for index in 0..self.gradient.len() {
            let weight = TensorId(index as u32);
            if matches!(self.graph[weight].role, Role::Weight { frozen: false, .. }) {
                let name = format!("{}.gradient", self.graph[weight].name);
                let gradient = self.like(weight, name, Role::WeightGradient { of: weight });
                let tensor = &mut self.graph.tensors[gradient.index()];
                tensor.dtype = statistics_of(tensor.dtype);
                self.gradient[index] = Some(gradient);
            }
        }
    }

    /// A tensor of the shape and dtype of `id`.
    fn like(&mut self, id: TensorId, name: String, role: Role) -> TensorId {
        let (shape, dtype) = (self.graph[id].shape.clone(), self.graph[id].dtype);
        self.graph.add(name, shape, dtype, role)
    }

    fn gradient_tensor(&mut self, of: TensorId) -> TensorId {
        let name = format!("gradient of {}", self.graph[of].name);
        self.like(of, name, Role::Intermediate)
    }

    fn push(&mut self, kernel: Kernel, inputs: &[TensorId], outputs: &[TensorId]) {
        self.operators.push(operator(kernel, Job::B, self.layer, inputs, outputs));
    }

    /// Adds `more` to the gradient of `tensor`.
    fn contribute(&mut self, tensor: TensorId, more: TensorId) {
        if !self.wanted[tensor.index()] {
            return;
        }
        let sum = match self.gradient[tensor.index()] {
            None => more,
            Some(so_far) => {
                let sum = self.gradient_tensor(tensor);
                self.push(Kernel::Add, &[so_far, more], &[sum]);
                sum
            }
        };
        self.gradient[tensor.index()] = Some(sum);
    }

    /// A new gradient of `tensor` by `kernel`, from `inputs`.
    fn contribute_by(&mut self, tensor: TensorId, kernel: Kernel, inputs: &[TensorId]) {
        if !self.wanted[tensor.index()] {
            return;
        }
        let more = self.gradient_tensor(tensor);
        self.push(kernel, inputs, &[more]);
        self.contribute(tensor, more);
    }

    /// New gradients of several tensors by one `kernel`, from `inputs`. A kernel makes all of its outputs, where any is
    /// wanted.
    fn contribute_all<const N: usize>(&mut self, tensors: [TensorId; N], kernel: Kernel, inputs: &[TensorId]) {
        if !self.wants_any(&tensors) {
            return;
        }
        let outputs = tensors.map(|tensor| self.gradient_tensor(tensor));
        self.push(kernel, inputs, &outputs);
        for (tensor, gradient) in tensors.into_iter().zip(outputs) {
            self.contribute(tensor, gradient);
        }
    }

    /// As [`Backward::contribute_by`] for a matmul, which can add to the sum so far itself.
    fn contribute_matmul(&mut self, tensor: TensorId, a: TensorId, b: TensorId, transpose_b: bool) {
        if !self.wanted[tensor.index()] {
            return;
        }
        let so_far = self.gradient[tensor.index()];
        let sum = self.gradient_tensor(tensor);
        let kernel = Kernel::MatMul { transpose_a: false, transpose_b, accumulate: so_far.is_some() };
        match so_far {
            None => self.push(kernel, &[a, b], &[sum]),
            Some(so_far) => self.push(kernel, &[a, b, so_far], &[sum]),
        }
        self.gradient[tensor.index()] = Some(sum);
    }

    fn wants_any(&self, tensors: &[TensorId]) -> bool {
        tensors.iter().any(|tensor| self.wanted[tensor.index()])
    }

    /// The accumulator of `weight` as the last input and the output of `kernel`.
    fn accumulate(&mut self, kernel: Kernel, inputs: &[TensorId], weight: TensorId) {
        if let Some(sum) = self.gradient[weight.index()] {
            let inputs: Vec<TensorId> = inputs.iter().copied().chain([sum]).collect();
            self.push(kernel, &inputs, &[sum]);
        }
    }
}
