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
use super::{Graph, Job, Kernel, Operator, Role, TensorId};

/// Appends the gradients of all that `graph`, a forward, computes, as operators of B. It ends either in a loss or in an
/// activation for the next stage, whose gradient then arrives.
pub fn derive(graph: &mut Graph) {
    let forward = core::mem::take(&mut graph.operators);
    let mut backward =
        Backward { gradient: vec![None; graph.tensors.len()], graph, layer: None, operators: Vec::new() };
    backward.add_weight_gradients();
    if let Some(out) = backward.graph.with_role(Role::ActivationOut) {
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
    /// The layer of the operator being visited.
    layer: Option<u32>,
    /// The operators so far.
    operators: Vec<Operator>,
}

impl Backward<'_> {
    fn add_weight_gradients(&mut self) {
        for index in 0..self.gradient.len() {
            let weight = TensorId(index as u32);
            if matches!(self.graph[weight].role, Role::Weight { .. }) {
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
        let more = self.gradient_tensor(tensor);
        self.push(kernel, inputs, &[more]);
        self.contribute(tensor, more);
    }

    /// New gradients of several tensors by one `kernel`, from `inputs`.
    fn contribute_all<const N: usize>(&mut self, tensors: [TensorId; N], kernel: Kernel, inputs: &[TensorId]) {
        let outputs = tensors.map(|tensor| self.gradient_tensor(tensor));
        self.push(kernel, inputs, &outputs);
        for (tensor, gradient) in tensors.into_iter().zip(outputs) {
            self.contribute(tensor, gradient);
        }
    }

    /// As [`Backward::contribute_by`] for a matmul, which can add to the sum so far itself.
    fn contribute_matmul(&mut self, tensor: TensorId, a: TensorId, b: TensorId, transpose_b: bool) {
        let so_far = self.gradient[tensor.index()];
        let sum = self.gradient_tensor(tensor);
        let kernel = Kernel::MatMul { transpose_a: false, transpose_b, accumulate: so_far.is_some() };
        match so_far {
            None => self.push(kernel, &[a, b], &[sum]),
            Some(so_far) => self.push(kernel, &[a, b, so_far], &[sum]),
        }
        self.gradient[tensor.index()] = Some(sum);
    }

    /// The accumulator of `weight` as the last input and the output of `kernel`.
    fn accumulate(&mut self, kernel: Kernel, inputs: &[TensorId], weight: TensorId) {
        if let Some(sum) = self.gradient[weight.index()] {
            let inputs: Vec<TensorId> = inputs.iter().copied().chain([sum]).collect();
            self.push(kernel, &inputs, &[sum]);
        }
    }
}
