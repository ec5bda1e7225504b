//! The rule of each operator: which operators make the gradients of its inputs from those of its outputs.
//!
//! Every kernel has the inputs and outputs that its documentation says.

use alloc::vec::Vec;

use super::Backward;
use crate::graph::{ImageRows, Indexing, Kernel, Operator, Role, TensorId};

impl Backward<'_> {
    /// The rule of each kernel. None where no gradient reaches the operator's output, and nothing happens then.
    ///
    /// Long on purpose: a table with every kernel.
    pub(super) fn visit(&mut self, operator: &Operator) -> Option<()> {
        let arriving = operator.outputs.first().and_then(|id| self.gradient[id.index()]);
        if !operator.outputs.first().is_some_and(|id| self.wanted[id.index()]) {
            return None;
        }
        match operator.kernel {
            Kernel::CrossEntropy { microbatches } => self.loss(operator, microbatches, 0),
            Kernel::SharedCrossEntropy { microbatches } => self.loss(operator, microbatches, 2),
            Kernel::RouterLoss { losses, scores, microbatches, sharers } => {
                let [logits, chosen] = [0, 1].map(|at| operator.inputs.get(at).map(|input| input.tensor));
                let (logits, chosen) = (logits?, chosen?);
                let kernel = Kernel::RouterLossGrad { losses, scores, parts: microbatches.saturating_mul(sharers) };
                self.contribute_by(logits, kernel, &[logits, chosen]);
                Some(())
            }
            Kernel::Embedding | Kernel::Positions { .. } => self.embedding(operator, arriving?),
            Kernel::RmsNorm { .. }
            | Kernel::LayerNorm { .. }
            | Kernel::HeadLayerNorm { .. }
            | Kernel::HeadNorm { .. } => self.norm(operator, arriving?),
            Kernel::RowSquares | Kernel::SharedRmsNorm { .. } | Kernel::HeadLength { .. } => {
                self.shared_norm(operator, arriving?)
            }
            // What it chooses is learned from attention, and not from what comes behind.
            Kernel::IndexKeys(indexing) => self.indexer(operator, indexing),
            Kernel::SinkAttention(_) | Kernel::SparseAttention(_) => self.chosen_attention(operator, arriving?),
            Kernel::Convolution { .. } | Kernel::Recurrence(_) => self.recurrence(operator, arriving?),
            Kernel::AddBias
            | Kernel::MatMul { .. }
            | Kernel::DetachedMatMul
            | Kernel::HidePadding { .. }
            | Kernel::Cast
            | Kernel::Scale { .. }
            | Kernel::SoftCap { .. }
            | Kernel::Clip { .. }
            | Kernel::PositionScale { .. }
            | Kernel::Add => self.linear(operator, arriving?),
            Kernel::Rope { .. }
            | Kernel::RopeTail { .. }
            | Kernel::SplitColumns
            | Kernel::JoinColumns
            | Kernel::LatentKeys { .. } => self.rope(operator, arriving?),
            Kernel::Attention(_)
            | Kernel::SpreadAttention(_)
            | Kernel::FullAttention(_)
            | Kernel::Scores(_)
            | Kernel::Softmax
            | Kernel::Attend(_) => self.attention(operator, arriving?),
            Kernel::ImageRows(rows) => self.image_rows(operator, rows, arriving?),
            Kernel::Route { .. }
            | Kernel::Dispatch { .. }
            | Kernel::Combine { .. }
            | Kernel::RowGate
            | Kernel::ExpertScale
            | Kernel::ExpertBias { .. }
            | Kernel::ExpertMatMul { .. } => self.experts(operator, arriving?),
            Kernel::GeGlu
            | Kernel::SwiGlu
            | Kernel::ClampedGlu
            | Kernel::WeightedGlu { .. }
            | Kernel::Gelu
            | Kernel::GeluTanh
            | Kernel::SquaredRelu
            | Kernel::WeightedSquaredRelu
            | Kernel::Xielu
            | Kernel::SigmoidGate
            | Kernel::Dropout { .. } => self.activation(operator, arriving?),
            Kernel::Replicate { .. }
            | Kernel::AllReduce { .. }
            | Kernel::AllGather { .. }
            | Kernel::ReduceScatter { .. } => self.collective(operator, arriving?),
            // Only passes over forward and backward make these.
            Kernel::Quantize { .. }
            | Kernel::Offload
            | Kernel::OffloadWait
            | Kernel::Reload
            | Kernel::ReloadWait
            | Kernel::AllReduceStart { .. }
            | Kernel::AllReduceWait
            | Kernel::ReduceScatterStart { .. }
            | Kernel::ReduceScatterWait => None,
            // A gradient of a gradient is never asked for, nor one of what a loss is made of.
            Kernel::OwnTokens { .. }
            | Kernel::AllReduceMax { .. }
            | Kernel::RowMax
            | Kernel::ExpSums
            | Kernel::EmbeddingGrad
            | Kernel::PositionsGrad { .. }
            | Kernel::RmsNormInputGrad { .. }
            | Kernel::RmsNormGainGrad
            | Kernel::LayerNormInputGrad
            | Kernel::LayerNormGainGrad
            | Kernel::HeadLayerNormInputGrad { .. }
            | Kernel::HeadLayerNormGainGrad { .. }
            | Kernel::BiasGrad
            | Kernel::AttentionGrad(_)
            | Kernel::SpreadAttentionGrad(_)
            | Kernel::FullAttentionGrad(_)
            | Kernel::ImageRowsGrad(_)
            | Kernel::HeadNormInputGrad { .. }
            | Kernel::HeadNormGainGrad { .. }
            | Kernel::LatentKeysGrad { .. }
            | Kernel::RouteGrad { .. }
            | Kernel::RouterLossGrad { .. }
            | Kernel::DispatchGrad { .. }
            | Kernel::CombineGrad { .. }
            | Kernel::WeightedGluGrad { .. }
            | Kernel::RowGateGrad
            | Kernel::ExpertScaleGrad
            | Kernel::ExpertMatMulGrad
            | Kernel::GeGluGrad
            | Kernel::ScoresGrad(_)
            | Kernel::SoftmaxGrad
            | Kernel::AttendGrad(_)
            | Kernel::DropoutGrad
            | Kernel::SoftCapGrad { .. }
            | Kernel::ClipGrad { .. }
            | Kernel::SwiGluGrad
            | Kernel::GeluGrad
            | Kernel::GeluTanhGrad
            | Kernel::ClampedGluGrad
            | Kernel::SquaredReluGrad
            | Kernel::WeightedSquaredReluGrad
            | Kernel::XieluGrad
            | Kernel::XieluWeightGrad { .. }
            | Kernel::SigmoidGateGrad
            | Kernel::RowSquaresGrad
            | Kernel::SharedRmsNormGrad { .. }
            | Kernel::HeadLengthGrad { .. }
            | Kernel::SinkGrad
            | Kernel::ExpertBiasGrad { .. }
            | Kernel::ExpertBiasShareGrad { .. }
            | Kernel::IndexKeysGrad(_)
            | Kernel::SparseAttentionGrad(_)
            | Kernel::ConvolutionGrad { .. }
            | Kernel::ConvolutionWeightGrad { .. }
            | Kernel::RecurrenceGrad(_)
            | Kernel::CrossEntropyGrad { .. } => None,
        }
    }

    /// The rule of a loss whose logits are the input `first`, followed by the targets.
    fn loss(&mut self, operator: &Operator, microbatches: u64, first: usize) -> Option<()> {
        let [logits, targets] = [first, first + 1].map(|at| operator.inputs.get(at).map(|input| input.tensor));
        let (logits, targets) = (logits?, targets?);
        let [loss, log_sum_exp] = operator.outputs[..] else { return None };
        let Role::Loss { weight_e12, .. } = self.graph[loss].role else { return None };
        let kernel = Kernel::CrossEntropyGrad { microbatches, weight_e12 };
        self.contribute_by(logits, kernel, &[logits, targets, log_sum_exp]);
        Some(())
    }

    /// Rules of the embedding and learned positions.
    fn embedding(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        match operator.kernel {
            Kernel::Embedding => {
                self.accumulate(Kernel::EmbeddingGrad, &[dy, input(0)?], input(1)?);
            }
            Kernel::Positions { sequence, ways } => {
                self.accumulate(Kernel::PositionsGrad { sequence, ways }, &[dy], input(1)?);
                self.contribute(input(0)?, dy);
            }
            _ => return None,
        }
        Some(())
    }

    /// Rules of norms.
    fn norm(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
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
            Kernel::HeadLayerNorm { width, offset, .. } => {
                let (x, mean, inverse) = (input(0)?, output(1)?, output(2)?);
                let mut inputs = [dy, x, mean, inverse].to_vec();
                if let Some(gain) = input(1) {
                    self.accumulate(Kernel::HeadLayerNormGainGrad { width }, &inputs, gain);
                    inputs.push(gain);
                }
                if let Some(bias) = input(2) {
                    self.accumulate(Kernel::BiasGrad, &[dy], bias);
                }
                self.contribute_by(x, Kernel::HeadLayerNormInputGrad { width, offset }, &inputs);
            }
            Kernel::HeadNorm { width, offset, .. } => {
                let (x, gain, inverse) = (input(0)?, input(1)?, output(1)?);
                self.accumulate(Kernel::HeadNormGainGrad { width }, &[dy, x, inverse], gain);
                self.contribute_by(x, Kernel::HeadNormInputGrad { width, offset }, &[dy, x, inverse, gain]);
            }
            _ => return None,
        }
        Some(())
    }

    /// Rules of norms of rows that devices share, and of norms without weights.
    fn shared_norm(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
            Kernel::RowSquares => self.contribute_by(input(0)?, Kernel::RowSquaresGrad, &[dy, input(0)?]),
            Kernel::SharedRmsNorm { columns, offset, .. } => {
                let (x, gain, squares, inverse) = (input(0)?, input(1)?, input(2)?, output(1)?);
                self.accumulate(Kernel::RmsNormGainGrad, &[dy, x, inverse], gain);
                let kernel = Kernel::SharedRmsNormGrad { columns, offset };
                self.contribute_all([x, squares], kernel, &[dy, x, inverse, gain]);
            }
            Kernel::HeadLength { width, .. } => {
                let (x, inverse) = (input(0)?, output(1)?);
                self.contribute_by(x, Kernel::HeadLengthGrad { width }, &[dy, x, inverse]);
            }
            _ => return None,
        }
        Some(())
    }

    /// The rule of attention with a sink, or over chosen tokens.
    fn chosen_attention(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        let (q, k, v, last) = (input(0)?, input(1)?, input(2)?, input(3)?);
        let (attended, log_sum_exp) = (output(0)?, output(1)?);
        let inputs = [dy, q, k, v, attended, log_sum_exp];
        match operator.kernel {
            Kernel::SinkAttention(spread) => {
                self.accumulate(Kernel::SinkGrad, &[dy, attended, log_sum_exp, last], last);
                self.contribute_all([q, k, v], Kernel::SpreadAttentionGrad(spread), &inputs);
            }
            Kernel::SparseAttention(spread) => {
                let with_chosen = [dy, q, k, v, attended, log_sum_exp, last];
                self.contribute_all([q, k, v], Kernel::SparseAttentionGrad(spread), &with_chosen);
            }
            _ => return None,
        }
        Some(())
    }

    /// The rule of an indexer.
    fn indexer(&mut self, operator: &Operator, indexing: Indexing) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let (q, k, weights, chosen) = (input(0)?, input(1)?, input(2)?, operator.outputs.first().copied()?);
        self.contribute_all([q, k, weights], Kernel::IndexKeysGrad(indexing), &[q, k, weights, chosen]);
        Some(())
    }

    /// Rules of a recurrence and of the convolution before it.
    fn recurrence(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let inputs: Vec<TensorId> = operator.inputs.iter().map(|input| input.tensor).collect();
        let with_dy: Vec<TensorId> = [dy].into_iter().chain(inputs.iter().copied()).collect();
        match operator.kernel {
            Kernel::Convolution { sequence } => {
                let (x, weight) = (*inputs.first()?, *inputs.get(1)?);
                self.accumulate(Kernel::ConvolutionWeightGrad { sequence, bias: false }, &with_dy, weight);
                if let Some(bias) = inputs.get(2) {
                    self.accumulate(Kernel::ConvolutionWeightGrad { sequence, bias: true }, &with_dy, *bias);
                }
                self.contribute_by(x, Kernel::ConvolutionGrad { sequence }, &with_dy);
            }
            Kernel::Recurrence(recurring) => {
                let is_weight = |id: &TensorId| self.graph[*id].is_weight();
                let (weights, streams): (Vec<TensorId>, Vec<TensorId>) = inputs.iter().copied().partition(is_weight);
                let mut gradients: Vec<TensorId> = streams.iter().map(|id| self.gradient_tensor(*id)).collect();
                // The steps are behind the three streams; what they are shifted by has their gradient.
                let (steps, of_steps) = (*streams.get(3)?, *gradients.get(3)?);
                let part = |at| if at == 1 { of_steps } else { self.gradient_tensor(steps) };
                let by_head: Vec<TensorId> = (0..weights.len()).map(part).collect();
                let parts: Vec<(TensorId, TensorId)> = weights.into_iter().zip(by_head).collect();
                gradients.extend(parts.iter().map(|(_, part)| *part).filter(|part| *part != of_steps));
                // The states between chunks, made again.
                gradients.push(self.gradient_tensor(operator.outputs.get(1).copied()?));
                self.push(Kernel::RecurrenceGrad(recurring), &with_dy, &gradients);
                for (weight, part) in parts {
                    self.accumulate(Kernel::BiasGrad, &[part], weight);
                }
                for (stream, gradient) in streams.into_iter().zip(gradients) {
                    self.contribute(stream, gradient);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Rules of matrix products and what is done by element.
    fn linear(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
            Kernel::AddBias => {
                self.accumulate(Kernel::BiasGrad, &[dy], input(1)?);
                self.contribute(input(0)?, dy);
            }
            Kernel::MatMul { transpose_b, accumulate, .. } => {
                let (x, weight) = (input(0)?, input(1)?);
                if accumulate {
                    self.contribute(input(2)?, dy);
                }
                let kernel = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
                // [out, in] for x · wᵀ, [in, out] for x · w.
                let (a, b) = if transpose_b { (dy, x) } else { (x, dy) };
                self.accumulate(kernel, &[a, b], weight);
                self.contribute_matmul(x, dy, weight, !transpose_b);
            }
            Kernel::DetachedMatMul => {
                let kernel = Kernel::MatMul { transpose_a: true, transpose_b: false, accumulate: true };
                self.accumulate(kernel, &[dy, input(0)?], input(1)?);
            }
            // Hidden columns have no gradient as it is.
            Kernel::HidePadding { .. } => self.contribute(input(0)?, dy),
            Kernel::Cast => self.contribute_by(input(0)?, Kernel::Cast, &[dy]),
            Kernel::Scale { factor_e12 } => self.contribute_by(input(0)?, Kernel::Scale { factor_e12 }, &[dy]),
            // Linear in each row.
            kernel @ Kernel::PositionScale { .. } => self.contribute_by(input(0)?, kernel, &[dy]),
            Kernel::SoftCap { cap_e12 } => {
                self.contribute_by(input(0)?, Kernel::SoftCapGrad { cap_e12 }, &[dy, output(0)?]);
            }
            Kernel::Clip { limit_e12 } => {
                self.contribute_by(input(0)?, Kernel::ClipGrad { limit_e12 }, &[dy, output(0)?]);
            }
            Kernel::Add => {
                self.contribute(input(0)?, dy);
                self.contribute(input(1)?, dy);
            }
            _ => return None,
        }
        Some(())
    }

    /// Rules of rotary positions and columns.
    fn rope(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
            Kernel::Rope { sequence, heads, width, angles, inverse } => {
                let kernel = Kernel::Rope { sequence, heads, width, angles, inverse: !inverse };
                self.contribute_by(input(0)?, kernel, &[dy]);
            }
            Kernel::RopeTail { sequence, heads, width, tail, angles, inverse } => {
                let kernel = Kernel::RopeTail { sequence, heads, width, tail, angles, inverse: !inverse };
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
            _ => return None,
        }
        Some(())
    }

    /// Rules of attention.
    fn attention(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
            Kernel::Attention(heads) | Kernel::FullAttention(heads) => {
                let (q, k, v) = (input(0)?, input(1)?, input(2)?);
                let (attended, log_sum_exp) = (output(0)?, output(1)?);
                let outputs = [q, k, v].map(|tensor| self.gradient_tensor(tensor));
                let kernel = match operator.kernel {
                    Kernel::FullAttention(_) => Kernel::FullAttentionGrad(heads),
                    _ => Kernel::AttentionGrad(heads),
                };
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
            Kernel::Scores(heads) => {
                let (q, k) = (input(0)?, input(1)?);
                self.contribute_all([q, k], Kernel::ScoresGrad(heads), &[dy, q, k]);
            }
            Kernel::Softmax => self.contribute_by(input(0)?, Kernel::SoftmaxGrad, &[dy, output(0)?]),
            Kernel::Attend(heads) => {
                let (weights, v) = (input(0)?, input(1)?);
                self.contribute_all([weights, v], Kernel::AttendGrad(heads), &[dy, weights, v]);
            }
            _ => return None,
        }
        Some(())
    }

    /// The rule of what moves rows of images.
    fn image_rows(&mut self, operator: &Operator, rows: ImageRows, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let kernel = Kernel::ImageRowsGrad(rows);
        match rows {
            ImageRows::Joined => {
                self.accumulate(Kernel::BiasGrad, &[dy], input(1)?);
                self.contribute_by(input(0)?, kernel, &[dy]);
            }
            ImageRows::Merged => self.contribute_by(input(0)?, kernel, &[dy]),
            ImageRows::Placed => self.contribute_all([input(0)?, input(1)?], kernel, &[dy]),
        }
        Some(())
    }

    /// Rules of mixtures of experts.
    fn experts(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
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
            Kernel::RowGate => {
                let (x, gate) = (input(0)?, input(1)?);
                self.contribute_all([x, gate], Kernel::RowGateGrad, &[dy, x, gate]);
            }
            Kernel::ExpertScale => {
                let (weights, chosen, scales) = (input(0)?, input(1)?, input(2)?);
                self.accumulate(Kernel::ExpertScaleGrad, &[dy, weights, chosen], scales);
                self.contribute_by(weights, Kernel::ExpertScale, &[dy, chosen, scales]);
            }
            Kernel::ExpertBias { ways, shared } => {
                let (x, bias, arrivals) = (input(0)?, input(1)?, input(2)?);
                let kernel = Kernel::ExpertBiasGrad { ways, shared };
                match input(3) {
                    Some(shares) => {
                        self.accumulate(kernel, &[dy, arrivals, shares], bias);
                        self.contribute_by(shares, Kernel::ExpertBiasShareGrad { ways }, &[dy, bias, arrivals]);
                    }
                    None => self.accumulate(kernel, &[dy, arrivals], bias),
                }
                self.contribute(x, dy);
            }
            Kernel::ExpertMatMul { transpose_b } => {
                let (x, weight, arrivals) = (input(0)?, input(1)?, input(2)?);
                self.accumulate(Kernel::ExpertMatMulGrad, &[dy, x, arrivals], weight);
                let kernel = Kernel::ExpertMatMul { transpose_b: !transpose_b };
                self.contribute_by(x, kernel, &[dy, weight, arrivals]);
            }
            _ => return None,
        }
        Some(())
    }

    /// Rules of activations and dropout.
    fn activation(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        let output = |at: usize| operator.outputs.get(at).copied();
        match operator.kernel {
            Kernel::GeGlu => {
                let (gate, up) = (input(0)?, input(1)?);
                self.contribute_all([gate, up], Kernel::GeGluGrad, &[dy, gate, up]);
            }
            Kernel::SwiGlu => {
                let (gate, up) = (input(0)?, input(1)?);
                self.contribute_all([gate, up], Kernel::SwiGluGrad, &[dy, gate, up]);
            }
            Kernel::ClampedGlu => {
                let (gate, up) = (input(0)?, input(1)?);
                self.contribute_all([gate, up], Kernel::ClampedGluGrad, &[dy, gate, up]);
            }
            Kernel::SquaredRelu => {
                let x = input(0)?;
                self.contribute_by(x, Kernel::SquaredReluGrad, &[dy, x]);
            }
            Kernel::WeightedSquaredRelu => {
                let (x, shares) = (input(0)?, input(1)?);
                self.contribute_all([x, shares], Kernel::WeightedSquaredReluGrad, &[dy, x, shares]);
            }
            Kernel::Xielu => {
                let (x, above, below) = (input(0)?, input(1)?, input(2)?);
                self.accumulate(Kernel::XieluWeightGrad { below: false }, &[dy, x, above], above);
                self.accumulate(Kernel::XieluWeightGrad { below: true }, &[dy, x, below], below);
                self.contribute_by(x, Kernel::XieluGrad, &[dy, x, above, below]);
            }
            Kernel::SigmoidGate => {
                let (x, gate) = (input(0)?, input(1)?);
                self.contribute_all([x, gate], Kernel::SigmoidGateGrad, &[dy, x, gate]);
            }
            Kernel::WeightedGlu { activation } => {
                let (gate, up, shares) = (input(0)?, input(1)?, input(2)?);
                let kernel = Kernel::WeightedGluGrad { activation };
                self.contribute_all([gate, up, shares], kernel, &[dy, gate, up, shares]);
            }
            Kernel::Gelu => {
                let x = input(0)?;
                self.contribute_by(x, Kernel::GeluGrad, &[dy, x]);
            }
            Kernel::GeluTanh => {
                let x = input(0)?;
                self.contribute_by(x, Kernel::GeluTanhGrad, &[dy, x]);
            }
            Kernel::Dropout { .. } => self.contribute_by(input(0)?, Kernel::DropoutGrad, &[dy, output(1)?]),
            _ => return None,
        }
        Some(())
    }

    /// Rules of collectives among tensor-parallel devices.
    fn collective(&mut self, operator: &Operator, dy: TensorId) -> Option<()> {
        let input = |at: usize| operator.inputs.get(at).map(|input| input.tensor);
        match operator.kernel {
            Kernel::Replicate { ways } => self.contribute_by(input(0)?, Kernel::AllReduce { ways }, &[dy]),
            // Every device holds the whole sum's gradient.
            Kernel::AllReduce { .. } => self.contribute(input(0)?, dy),
            Kernel::AllGather { ways } => self.contribute_by(input(0)?, Kernel::ReduceScatter { ways }, &[dy]),
            Kernel::ReduceScatter { ways } => self.contribute_by(input(0)?, Kernel::AllGather { ways }, &[dy]),
            _ => return None,
        }
        Some(())
    }
}
