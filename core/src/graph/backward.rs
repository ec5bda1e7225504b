//! The backward from F, by one rule for each kernel (reverse mode): undivided, all of it in B.
//! [`split`](super::passes::split_backward) takes W out of it.
//!
//! The forward's operators are taken in reverse. Where a tensor has several consumers, their gradients are
//! summed in that order: a matmul adds to the sum so far, anything else is followed by an [`Kernel::Add`]. A
//! tensor that only goes into sums passes its gradient on as it is, without a copy. The gradient of a matrix comes
//! before that of its input: so the input's buffer goes before its gradient's comes.

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

    /// The rule of each kernel. Nothing happens where no gradient reaches the operator's output.
    fn visit(&mut self, operator: &Operator) {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        let arriving = output(0).and_then(|id| self.gradient[id.index()]);
        // Every kernel has the inputs and outputs that its documentation says.
        let mut rule = || -> Option<()> {
            let loss = match operator.kernel {
                Kernel::CrossEntropy { microbatches } => Some((microbatches, 0)),
                Kernel::SharedCrossEntropy { microbatches } => Some((microbatches, 2)),
                _ => None,
            };
            if let Some((microbatches, first)) = loss {
                let (logits, targets, log_sum_exp) = (input(first)?, input(first + 1)?, output(1)?);
                let Role::Loss { weight_e12, .. } = self.graph[output(0)?].role else { return None };
                let kernel = Kernel::CrossEntropyGrad { microbatches, weight_e12 };
                self.contribute_by(logits, kernel, &[logits, targets, log_sum_exp]);
                return Some(());
            }
            let dy = arriving?;
            match operator.kernel {
                Kernel::Embedding => {
                    self.accumulate(Kernel::EmbeddingGrad, &[dy, input(0)?], input(1)?);
                }
                Kernel::Positions { sequence, ways } => {
                    self.accumulate(Kernel::PositionsGrad { sequence, ways }, &[dy], input(1)?);
                    self.contribute(input(0)?, dy);
                }
                Kernel::RmsNorm { offset, .. } => {
                    let (x, gain, inverse) = (input(0)?, input(1)?, output(1)?);
                    // First: the gradient of x may take the place of dy.
                    self.accumulate(Kernel::RmsNormGainGrad, &[dy, x, inverse], gain);
                    self.contribute_by(x, Kernel::RmsNormInputGrad { offset }, &[dy, x, inverse, gain]);
                }
                Kernel::LayerNorm { .. } => {
                    let (x, gain, bias) = (input(0)?, input(1)?, input(2)?);
                    let (mean, inverse) = (output(1)?, output(2)?);
                    self.accumulate(Kernel::LayerNormGainGrad, &[dy, x, mean, inverse], gain);
                    self.accumulate(Kernel::BiasGrad, &[dy], bias);
                    self.contribute_by(x, Kernel::LayerNormInputGrad, &[dy, x, mean, inverse, gain]);
                }
                Kernel::AddBias => {
                    self.accumulate(Kernel::BiasGrad, &[dy], input(1)?);
                    self.contribute(input(0)?, dy);
                }
                Kernel::MatMul { transpose_b, .. } => {
                    let (x, weight) = (input(0)?, input(1)?);
                    let kernel = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
                    // [out, in] for x · wᵀ, [in, out] for x · w.
                    let (a, b) = if transpose_b { (dy, x) } else { (x, dy) };
                    self.accumulate(kernel, &[a, b], weight);
                    self.contribute_matmul(x, dy, weight, !transpose_b);
                }
                Kernel::Rope { sequence, heads, width, base, inverse } => {
                    let kernel = Kernel::Rope { sequence, heads, width, base, inverse: !inverse };
                    self.contribute_by(input(0)?, kernel, &[dy]);
                }
                Kernel::Attention(heads) => {
                    let (q, k, v) = (input(0)?, input(1)?, input(2)?);
                    let (attended, log_sum_exp) = (output(0)?, output(1)?);
                    let outputs = [q, k, v].map(|tensor| self.gradient_tensor(tensor));
                    let kernel = Kernel::AttentionGrad(heads);
                    self.push(kernel, &[dy, q, k, v, attended, log_sum_exp], &outputs);
                    for (tensor, gradient) in [q, k, v].into_iter().zip(outputs) {
                        self.contribute(tensor, gradient);
                    }
                }
                Kernel::SpreadAttention(spread) => {
                    let (q, k, v) = (input(0)?, input(1)?, input(2)?);
                    let (attended, log_sum_exp) = (output(0)?, output(1)?);
                    let gradients = [q, k, v].map(|tensor| self.gradient_tensor(tensor));
                    let mut outputs = gradients.to_vec();
                    if let Some(ring) = output(2) {
                        let ring = self.gradient_tensor(ring);
                        // Keys and values, and the gradients of both.
                        if let Some(blocks) = self.graph.tensors[ring.index()].shape.first_mut() {
                            *blocks *= 2;
                        }
                        outputs.push(ring);
                    }
                    let kernel = Kernel::SpreadAttentionGrad(spread);
                    self.push(kernel, &[dy, q, k, v, attended, log_sum_exp], &outputs);
                    for (tensor, gradient) in [q, k, v].into_iter().zip(gradients) {
                        self.contribute(tensor, gradient);
                    }
                }
                Kernel::HeadNorm { width, offset, .. } => {
                    let (x, gain, inverse) = (input(0)?, input(1)?, output(1)?);
                    self.accumulate(Kernel::HeadNormGainGrad { width }, &[dy, x, inverse], gain);
                    self.contribute_by(x, Kernel::HeadNormInputGrad { width, offset }, &[dy, x, inverse, gain]);
                }
                Kernel::RopeTail { sequence, heads, width, tail, base, inverse } => {
                    let kernel = Kernel::RopeTail { sequence, heads, width, tail, base, inverse: !inverse };
                    self.contribute_by(input(0)?, kernel, &[dy]);
                }
                Kernel::SplitColumns => {
                    let right = self.gradient[output(1)?.index()]?;
                    self.contribute_by(input(0)?, Kernel::JoinColumns, &[dy, right]);
                }
                Kernel::JoinColumns => self.contribute_all([input(0)?, input(1)?], Kernel::SplitColumns, &[dy]),
                Kernel::LatentKeys { heads } => {
                    let values = self.gradient[output(1)?.index()]?;
                    self.contribute_all([input(0)?, input(1)?], Kernel::LatentKeysGrad { heads }, &[dy, values]);
                }
                Kernel::Route { routing, .. } => {
                    let (logits, chosen) = (input(0)?, output(1)?);
                    self.contribute_by(logits, Kernel::RouteGrad { routing }, &[dy, logits, chosen]);
                }
                Kernel::Dispatch { ways } => {
                    let (x, chosen, weights) = (input(0)?, input(1)?, input(2)?);
                    let dshares = self.gradient[output(2)?.index()]?;
                    let kernel = Kernel::DispatchGrad { ways };
                    self.contribute_all([x, weights], kernel, &[dy, chosen, output(1)?, dshares]);
                }
                Kernel::Combine { ways } => {
                    let (rows, chosen, arrivals) = (input(0)?, input(1)?, input(2)?);
                    self.contribute_by(rows, Kernel::CombineGrad { ways }, &[dy, chosen, arrivals]);
                }
                Kernel::WeightedGlu { activation } => {
                    let (gate, up, shares) = (input(0)?, input(1)?, input(2)?);
                    let kernel = Kernel::WeightedGluGrad { activation };
                    self.contribute_all([gate, up, shares], kernel, &[dy, gate, up, shares]);
                }
                Kernel::RowGate => {
                    let (x, gate) = (input(0)?, input(1)?);
                    self.contribute_all([x, gate], Kernel::RowGateGrad, &[dy, x, gate]);
                }
                Kernel::ExpertMatMul { transpose_b } => {
                    let (x, weight, arrivals) = (input(0)?, input(1)?, input(2)?);
                    self.accumulate(Kernel::ExpertMatMulGrad, &[dy, x, arrivals], weight);
                    let kernel = Kernel::ExpertMatMul { transpose_b: !transpose_b };
                    self.contribute_by(x, kernel, &[dy, weight, arrivals]);
                }
                Kernel::GeGlu => {
                    let (gate, up) = (input(0)?, input(1)?);
                    self.contribute_all([gate, up], Kernel::GeGluGrad, &[dy, gate, up]);
                }
                Kernel::Scores(heads) => {
                    let (q, k) = (input(0)?, input(1)?);
                    self.contribute_all([q, k], Kernel::ScoresGrad(heads), &[dy, q, k]);
                }
                Kernel::Softmax => self.contribute_by(input(0)?, Kernel::SoftmaxGrad, &[dy, output(0)?]),
                Kernel::Attend(heads) => {
                    let (weights, v) = (input(0)?, input(1)?);
                    self.contribute_all([weights, v], Kernel::AttendGrad(heads), &[dy, weights, v]);
                }
                Kernel::Dropout { .. } => self.contribute_by(input(0)?, Kernel::DropoutGrad, &[dy, output(1)?]),
                Kernel::Replicate { ways } => self.contribute_by(input(0)?, Kernel::AllReduce { ways }, &[dy]),
                // Every device holds the whole sum's gradient.
                Kernel::AllReduce { .. } => self.contribute(input(0)?, dy),
                // Only passes over forward and backward make these.
                Kernel::Quantize
                | Kernel::Offload
                | Kernel::OffloadWait
                | Kernel::Reload
                | Kernel::ReloadWait
                | Kernel::AllReduceStart { .. }
                | Kernel::AllReduceWait
                | Kernel::ReduceScatterStart { .. }
                | Kernel::ReduceScatterWait => {}
                Kernel::AllGather { ways } => self.contribute_by(input(0)?, Kernel::ReduceScatter { ways }, &[dy]),
                Kernel::ReduceScatter { ways } => self.contribute_by(input(0)?, Kernel::AllGather { ways }, &[dy]),
                Kernel::SwiGlu => {
                    let (gate, up) = (input(0)?, input(1)?);
                    self.contribute_all([gate, up], Kernel::SwiGluGrad, &[dy, gate, up]);
                }
                Kernel::Gelu => {
                    let x = input(0)?;
                    self.contribute_by(x, Kernel::GeluGrad, &[dy, x]);
                }
                // Hidden columns have no gradient as it is.
                Kernel::HidePadding { .. } => self.contribute(input(0)?, dy),
                Kernel::Cast => self.contribute_by(input(0)?, Kernel::Cast, &[dy]),
                Kernel::Scale { factor_e12 } => self.contribute_by(input(0)?, Kernel::Scale { factor_e12 }, &[dy]),
                Kernel::SoftCap { cap_e12 } => {
                    self.contribute_by(input(0)?, Kernel::SoftCapGrad { cap_e12 }, &[dy, output(0)?]);
                }
                Kernel::Add => {
                    self.contribute(input(0)?, dy);
                    self.contribute(input(1)?, dy);
                }
                // A gradient of a gradient is never asked for, nor one of what a loss is made of.
                Kernel::OwnTokens { .. }
                | Kernel::AllReduceMax { .. }
                | Kernel::RowMax
                | Kernel::ExpSums
                | Kernel::SharedCrossEntropy { .. }
                | Kernel::EmbeddingGrad
                | Kernel::PositionsGrad { .. }
                | Kernel::RmsNormInputGrad { .. }
                | Kernel::RmsNormGainGrad
                | Kernel::LayerNormInputGrad
                | Kernel::LayerNormGainGrad
                | Kernel::BiasGrad
                | Kernel::AttentionGrad(_)
                | Kernel::SpreadAttentionGrad(_)
                | Kernel::HeadNormInputGrad { .. }
                | Kernel::HeadNormGainGrad { .. }
                | Kernel::LatentKeysGrad { .. }
                | Kernel::RouteGrad { .. }
                | Kernel::DispatchGrad { .. }
                | Kernel::CombineGrad { .. }
                | Kernel::WeightedGluGrad { .. }
                | Kernel::RowGateGrad
                | Kernel::ExpertMatMulGrad
                | Kernel::GeGluGrad
                | Kernel::ScoresGrad(_)
                | Kernel::SoftmaxGrad
                | Kernel::AttendGrad(_)
                | Kernel::DropoutGrad
                | Kernel::SoftCapGrad { .. }
                | Kernel::SwiGluGrad
                | Kernel::GeluGrad
                | Kernel::CrossEntropy { .. }
                | Kernel::CrossEntropyGrad { .. } => {}
            }
            Some(())
        };
        rule();
    }
}
