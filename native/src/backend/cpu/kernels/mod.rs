//! The kernels of the operator graph for the CPU, one file per family of operators.
//!
//! - In: the inputs of one operator, and outputs that are allocated.
//! - Out: the outputs. [`Kernel`] defines what each operator computes.
//! - Knows: slices of numbers. No graph and no other rank, except attention in a ring.
//!
//! A kernel that can run in place is written only for that case: its output starts as the input, taken over or copied.

use std::collections::BTreeMap;

use half::bf16;
use pipeplan_core::graph::{Angles, Heads, Kernel, SequencePart, Spread};
use pipeplan_core::model::Dtype;

use super::element::Element;
use super::gemm::{Gemm, Operand, Size};
use super::storage::Quantized;
use crate::backend::BackendError;
use crate::backend::documents::DocumentStarts;
use crate::backend::peers::Peers;
use crate::backend::rotary::LayerScaling;
use crate::backend::stages::Slice;
use crate::runner::random::SplitMix64;

mod attention;
mod elementwise;
mod embedding;
pub(crate) mod experts;
mod loss;
mod mla;
mod newer;
mod norm;
mod recurrence;
mod ring_attention;
pub(crate) mod rope;
mod slices;
#[cfg(test)]
mod tests;
mod unfused_attention;

/// The data of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data<T> {
    /// Floats, in the type that kernels compute in.
    Floats(Vec<T>),
    /// Numbers in bf16. Kernels see them [widened](super::storage).
    Bf16(Vec<bf16>),
    /// Operands of products in FP8 or FP4, likewise.
    Quantized(Quantized),
    /// Tokens.
    Tokens(Vec<i32>),
    /// What dropout keeps.
    Bytes(Vec<u8>),
}

impl<T: Element> Data<T> {
    /// All 0, for a tensor of `dtype`, as kernels read and write it.
    pub fn zeros(dtype: Dtype, elements: usize) -> Data<T> {
        match dtype {
            Dtype::I32 => Data::Tokens(vec![0; elements]),
            Dtype::U8 => Data::Bytes(vec![0; elements]),
            Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => {
                Data::Floats(vec![T::ZERO; elements])
            }
        }
    }

    /// The floats of a weight or activation.
    pub(super) fn floats(&self) -> &[T] {
        let Data::Floats(values) = self else { panic!("floats were expected") };
        values
    }

    /// The same, to change them.
    pub(super) fn floats_mut(&mut self) -> &mut [T] {
        let Data::Floats(values) = self else { panic!("floats were expected") };
        values
    }

    /// The same, taken out.
    pub(super) fn into_floats(self) -> Vec<T> {
        let Data::Floats(values) = self else { panic!("floats were expected") };
        values
    }

    pub(super) fn tokens(&self) -> &[i32] {
        let Data::Tokens(values) = self else { panic!("tokens were expected") };
        values
    }

    pub(super) fn tokens_mut(&mut self) -> &mut [i32] {
        let Data::Tokens(values) = self else { panic!("tokens were expected") };
        values
    }

    fn bytes(&self) -> &[u8] {
        let Data::Bytes(values) = self else { panic!("bytes were expected") };
        values
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let Data::Bytes(values) = self else { panic!("bytes were expected") };
        values
    }
}

/// An input of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a, T> {
    /// Its sizes.
    pub shape: &'a [u64],
    /// Its data: none where only the shape is needed, or where output 0 has taken over the buffer.
    pub data: Option<&'a Data<T>>,
}

/// What kernels share over a run.
pub struct Context<T> {
    /// Multiplies matrices.
    pub gemm: Box<dyn Gemm<T>>,
    /// Sines and cosines by positions, width and angles.
    rope: BTreeMap<(u64, u64, Angles), Vec<(T, T)>>,
    /// How rotary positions are scaled: the same over a run.
    pub rotary: LayerScaling,
    /// Seed of what dropout keeps: the same while a job runs, and again when it is run again.
    pub dropout_seed: u64,
    /// This rank's number among the tensor-parallel ranks.
    pub member: u64,
    /// Which tokens of every sequence it has.
    pub part: SequencePart,
    /// Where sequences are cut into slices: the position of the first token of this one, and the positions of all
    /// slices.
    pub slice: Option<[u64; 2]>,
    /// What losses are divided by, where not all tokens are to be predicted.
    pub loss_divisor: Option<f64>,
    /// Where the documents of the microbatch begin, where attention stays within them.
    pub documents: Option<DocumentStarts>,
}

impl<T> Context<T> {
    /// The position of this rank's row `row`, in sequences of `sequence` tokens: where attention stays within
    /// documents, in its document.
    fn position(&self, sequence: u64, row: u64) -> u64 {
        match &self.documents {
            None => self.slice.map_or(0, |[first, _]| first) + self.part.position(sequence, row),
            Some(starts) => {
                let token = self.part.row(sequence, row);
                token - starts.of(token as usize) as u64
            }
        }
    }
}

impl<T: Element> Context<T> {
    /// With `gemm`.
    pub fn new(gemm: Box<dyn Gemm<T>>) -> Context<T> {
        Context {
            gemm,
            rope: BTreeMap::new(),
            rotary: LayerScaling::default(),
            dropout_seed: 0,
            member: 0,
            part: SequencePart::WHOLE,
            slice: None,
            loss_divisor: None,
            documents: None,
        }
    }
}

/// Inputs and outputs of one call, by position. A graph that was built by core has what each kernel asks
/// for; a wrong one panics here, which ends the rank with a report.
struct Call<'a, 'o, T> {
    inputs: &'a [Input<'a, T>],
    outputs: &'o mut [Data<T>],
}

impl<'a, T: Element> Call<'a, '_, T> {
    fn floats(&self, input: usize) -> &'a [T] {
        self.inputs[input].data.expect("this input's data is needed").floats()
    }

    fn bytes(&self, input: usize) -> &'a [u8] {
        self.inputs[input].data.expect("this input's data is needed").bytes()
    }

    fn tokens(&self, input: usize) -> &'a [i32] {
        self.inputs[input].data.expect("this input's data is needed").tokens()
    }

    /// Rows and columns of a matrix, or the length of a vector and 1.
    fn sizes(&self, input: usize) -> (usize, usize) {
        let shape = self.inputs[input].shape;
        (shape[0] as usize, shape.get(1).map_or(1, |columns| *columns as usize))
    }

    /// Output 0, which starts as `input`: taken over, or copied now.
    fn started(&mut self, input: usize) -> &mut [T] {
        let output = self.outputs[0].floats_mut();
        if let Some(data) = self.inputs[input].data {
            output.copy_from_slice(data.floats());
        }
        output
    }
}

/// As [`run`], and calls `between` when it has run, and between the pieces of a matrix product, which change no bit
/// of it.
pub fn run_in_pieces<T: Element>(
    context: &mut Context<T>,
    kernel: &Kernel,
    inputs: &[Input<'_, T>],
    outputs: &mut [Data<T>],
    between: &mut dyn FnMut(),
) {
    let Kernel::MatMul { transpose_a, transpose_b, accumulate } = kernel else {
        run(context, kernel, inputs, outputs);
        return between();
    };
    let mut call = Call { inputs, outputs };
    matmul(&*context.gemm, &mut call, *transpose_a, *transpose_b, *accumulate, Some(between));
}

/// As [`run`], of attention or its gradient in a slice of sequences, which sees the keys and values of the slices
/// before it.
pub fn run_in_slice<T: Element>(
    context: &mut Context<T>,
    kernel: &Kernel,
    inputs: &[Input<'_, T>],
    outputs: &mut [Data<T>],
    slice: &mut Slice<'_, Data<T>>,
) {
    let mut call = Call { inputs, outputs };
    let within = |spread: Spread| Spread { window: slice.window, ..spread };
    match kernel {
        Kernel::Attention(heads) => {
            slices::attention(&*context.gemm, &mut call, &within(alone(heads)), &slice.before);
        }
        Kernel::SpreadAttention(spread) => {
            slices::attention(&*context.gemm, &mut call, &within(*spread), &slice.before);
        }
        Kernel::SinkAttention(spread) => {
            slices::attention(&*context.gemm, &mut call, &within(*spread), &slice.before);
            newer::take_sinks(&mut call, spread);
        }
        Kernel::AttentionGrad(heads) => {
            slices::attention_grad(&*context.gemm, &mut call, &within(alone(heads)), slice);
        }
        Kernel::SpreadAttentionGrad(spread) => {
            slices::attention_grad(&*context.gemm, &mut call, &within(*spread), slice);
        }
        _ => run(context, kernel, inputs, outputs),
    }
}

/// As [`run`], of a kernel that talks with `peers` while it runs.
///
/// # Errors
/// Where a peer does not come.
pub fn run_among<T: Element>(
    context: &mut Context<T>,
    kernel: &Kernel,
    inputs: &[Input<'_, T>],
    outputs: &mut [Data<T>],
    peers: &mut dyn Peers,
) -> Result<(), BackendError> {
    let mut call = Call { inputs, outputs };
    match kernel {
        Kernel::SpreadAttention(spread) => ring_attention::attention(context, &mut call, spread, peers),
        Kernel::SpreadAttentionGrad(spread) => ring_attention::attention_grad(context, &mut call, spread, peers),
        _ => {
            run(context, kernel, inputs, outputs);
            Ok(())
        }
    }
}

/// Runs `kernel`. Outputs are allocated; those of a kernel that adds to its output, or that runs in place,
/// hold the input's data, which is then absent from `inputs`.
///
/// Long on purpose: a table with one arm per kernel.
pub fn run<T: Element>(context: &mut Context<T>, kernel: &Kernel, inputs: &[Input<'_, T>], outputs: &mut [Data<T>]) {
    let mut call = Call { inputs, outputs };
    match kernel {
        Kernel::OwnTokens { rows } => embedding::own_tokens(&mut call, *rows, context.member),
        Kernel::Embedding => embedding::embedding(&mut call),
        Kernel::EmbeddingGrad => embedding::embedding_grad(&mut call),
        Kernel::Positions { sequence, ways } => {
            let first = first_row(&call, *ways, context.member);
            embedding::positions(&mut call, |row| context.position(*sequence, first + row));
        }
        Kernel::PositionsGrad { sequence, ways } => {
            let first = first_row(&call, *ways, context.member);
            embedding::positions_grad(&mut call, |row| context.position(*sequence, first + row));
        }
        Kernel::RmsNorm { eps_e12, offset } => norm::rms_norm(&mut call, *eps_e12, *offset, None),
        Kernel::RmsNormInputGrad { offset } => norm::rms_norm_input_grad(&mut call, *offset, None),
        Kernel::RmsNormGainGrad => norm::rms_norm_gain_grad(&mut call, None),
        Kernel::LayerNorm { eps_e12 } => norm::layer_norm(&mut call, *eps_e12, false, None),
        Kernel::LayerNormInputGrad => norm::layer_norm_input_grad(&mut call, false, None),
        Kernel::LayerNormGainGrad => norm::layer_norm_gain_grad(&mut call, None),
        Kernel::HeadLayerNorm { eps_e12, width, offset } => {
            norm::layer_norm(&mut call, *eps_e12, *offset, Some(*width));
        }
        Kernel::HeadLayerNormInputGrad { width, offset } => {
            norm::layer_norm_input_grad(&mut call, *offset, Some(*width));
        }
        Kernel::HeadLayerNormGainGrad { width } => norm::layer_norm_gain_grad(&mut call, Some(*width)),
        Kernel::AddBias => elementwise::add_bias(&mut call),
        Kernel::BiasGrad => elementwise::bias_grad(&mut call),
        Kernel::MatMul { transpose_a, transpose_b, accumulate } => {
            matmul(&*context.gemm, &mut call, *transpose_a, *transpose_b, *accumulate, None);
        }
        Kernel::Rope { sequence, heads, width, angles, inverse } => {
            rope(context, &mut call, (*sequence, *angles), (*heads, *width, *width), *inverse);
        }
        Kernel::Attention(heads) => {
            attention::attention(&*context.gemm, &mut call, &alone(heads), context.documents.as_ref())
        }
        Kernel::AttentionGrad(heads) => {
            attention::attention_grad(&*context.gemm, &mut call, &alone(heads), context.documents.as_ref())
        }
        Kernel::SwiGlu => elementwise::swiglu(&mut call),
        Kernel::SwiGluGrad => elementwise::swiglu_grad(&mut call),
        Kernel::Gelu => elementwise::gelu(&mut call),
        Kernel::GeluTanh => elementwise::gelu_tanh(&mut call),
        Kernel::GeluTanhGrad => elementwise::gelu_tanh_grad(&mut call),
        Kernel::GeluGrad => elementwise::gelu_grad(&mut call),
        Kernel::ClampedGlu => newer::clamped_glu(&mut call),
        Kernel::ClampedGluGrad => newer::clamped_glu_grad(&mut call),
        Kernel::SquaredRelu => newer::squared_relu(&mut call),
        Kernel::SquaredReluGrad => newer::squared_relu_grad(&mut call),
        Kernel::WeightedSquaredRelu => newer::weighted_squared_relu(&mut call),
        Kernel::WeightedSquaredReluGrad => newer::weighted_squared_relu_grad(&mut call),
        Kernel::Xielu => newer::xielu(&mut call),
        Kernel::XieluGrad => newer::xielu_grad(&mut call),
        Kernel::XieluWeightGrad { below } => newer::xielu_weight_grad(&mut call, *below),
        Kernel::SigmoidGate => newer::sigmoid_gate(&mut call),
        Kernel::SigmoidGateGrad => newer::sigmoid_gate_grad(&mut call),
        Kernel::RowSquares => newer::row_squares(&mut call),
        Kernel::RowSquaresGrad => newer::row_squares_grad(&mut call),
        Kernel::SharedRmsNorm { eps_e12, columns, offset } => {
            newer::shared_rms_norm(&mut call, *eps_e12, *columns, *offset);
        }
        Kernel::SharedRmsNormGrad { columns, offset } => newer::shared_rms_norm_grad(&mut call, *columns, *offset),
        Kernel::HeadLength { eps_e12, width } => newer::head_length(&mut call, *eps_e12, *width),
        Kernel::HeadLengthGrad { width } => newer::head_length_grad(&mut call, *width),
        Kernel::PositionScale { sequence, tokens, scale_e12 } => {
            newer::position_scale(&mut call, |row| context.position(*sequence, row), *tokens, *scale_e12);
        }
        Kernel::SinkAttention(spread) => {
            attention::attention(&*context.gemm, &mut call, spread, context.documents.as_ref());
            newer::take_sinks(&mut call, spread);
        }
        Kernel::SinkGrad => newer::sink_grad(&mut call),
        Kernel::ExpertBias { ways, shared } => newer::expert_bias(&mut call, *ways, *shared),
        Kernel::ExpertBiasGrad { ways, shared } => newer::expert_bias_grad(&mut call, *ways, *shared),
        Kernel::ExpertBiasShareGrad { ways } => newer::expert_bias_share_grad(&mut call, *ways),
        Kernel::DetachedMatMul => matmul(&*context.gemm, &mut call, false, true, false, None),
        Kernel::Convolution { sequence } => newer::convolution(&mut call, *sequence),
        Kernel::ConvolutionGrad { sequence } => newer::convolution_grad(&mut call, *sequence),
        Kernel::ConvolutionWeightGrad { sequence, bias } => {
            newer::convolution_weight_grad(&mut call, *sequence, *bias);
        }
        Kernel::Recurrence(of) => recurrence::recurrence(&mut call, *of),
        Kernel::RecurrenceGrad(of) => recurrence::recurrence_grad(&mut call, *of),
        Kernel::IndexKeys(_)
        | Kernel::IndexKeysGrad(_)
        | Kernel::SparseAttention(_)
        | Kernel::SparseAttentionGrad(_)
        | Kernel::FullAttention(_)
        | Kernel::FullAttentionGrad(_)
        | Kernel::ImageRows(_)
        | Kernel::ImageRowsGrad(_) => panic!("a workload with `{}` is refused before it starts", kernel.name()),
        Kernel::Add => elementwise::add(&mut call),
        Kernel::Scale { factor_e12 } => elementwise::scale(&mut call, *factor_e12),
        Kernel::SoftCap { cap_e12 } => elementwise::soft_cap(&mut call, *cap_e12),
        Kernel::SoftCapGrad { cap_e12 } => elementwise::soft_cap_grad(&mut call, *cap_e12),
        Kernel::Clip { limit_e12 } => elementwise::clip(&mut call, *limit_e12),
        Kernel::ClipGrad { limit_e12 } => elementwise::clip_grad(&mut call, *limit_e12),
        Kernel::CrossEntropy { microbatches } => loss::cross_entropy(&mut call, *microbatches, context.loss_divisor),
        Kernel::HidePadding { vocab } => loss::hide_padding(&mut call, *vocab, context.member),
        Kernel::RowMax => loss::row_max(&mut call),
        Kernel::ExpSums => loss::exp_sums(&mut call),
        Kernel::SharedCrossEntropy { microbatches } => {
            loss::shared_cross_entropy(&mut call, *microbatches, context.loss_divisor)
        }
        Kernel::Replicate { .. } => {
            call.started(0);
        }
        Kernel::CrossEntropyGrad { microbatches, weight_e12 } => {
            loss::cross_entropy_grad(&mut call, *microbatches, *weight_e12, context.loss_divisor)
        }
        Kernel::Scores(heads) => {
            unfused_attention::scores(&*context.gemm, &mut call, heads, context.documents.as_ref())
        }
        Kernel::ScoresGrad(heads) => unfused_attention::scores_grad(&*context.gemm, &mut call, heads),
        Kernel::Softmax => unfused_attention::softmax(&mut call),
        Kernel::SoftmaxGrad => unfused_attention::softmax_grad(&mut call),
        Kernel::Attend(heads) => unfused_attention::attend(&*context.gemm, &mut call, heads),
        Kernel::AttendGrad(heads) => {
            unfused_attention::attend_grad(&*context.gemm, &mut call, heads, context.documents.as_ref())
        }
        Kernel::Dropout { site, ways, blocks, sequence } => {
            // Seeds that differ little must not give sequences that overlap.
            let seed = SplitMix64::new(context.dropout_seed ^ site).draw();
            unfused_attention::dropout(
                &mut call,
                &SplitMix64::new(seed),
                [*ways, *blocks],
                context.member,
                (*sequence, context.part),
            );
        }
        Kernel::DropoutGrad => unfused_attention::dropout_grad(&mut call),
        Kernel::SpreadAttention(spread) => {
            attention::attention(&*context.gemm, &mut call, spread, context.documents.as_ref())
        }
        Kernel::SpreadAttentionGrad(spread) => {
            attention::attention_grad(&*context.gemm, &mut call, spread, context.documents.as_ref())
        }
        Kernel::HeadNorm { eps_e12, offset, width } => norm::rms_norm(&mut call, *eps_e12, *offset, Some(*width)),
        Kernel::HeadNormInputGrad { offset, width } => norm::rms_norm_input_grad(&mut call, *offset, Some(*width)),
        Kernel::HeadNormGainGrad { width } => norm::rms_norm_gain_grad(&mut call, Some(*width)),
        Kernel::RopeTail { sequence, heads, width, tail, angles, inverse } => {
            rope(context, &mut call, (*sequence, *angles), (*heads, *width, *tail), *inverse);
        }
        Kernel::SplitColumns => mla::split_columns(&mut call),
        Kernel::JoinColumns => mla::join_columns(&mut call),
        Kernel::LatentKeys { heads } => mla::latent_keys(&mut call, *heads as usize),
        Kernel::LatentKeysGrad { heads } => mla::latent_keys_grad(&mut call, *heads as usize),
        Kernel::Route { active, routing } => experts::route(&mut call, *active as usize, *routing),
        Kernel::RouteGrad { routing } => experts::route_grad(&mut call, *routing),
        Kernel::RouterLoss { losses, scores, microbatches, .. } => {
            experts::router_loss(&mut call, *losses, *scores, *microbatches);
        }
        Kernel::RouterLossGrad { losses, scores, parts } => {
            experts::router_loss_grad(&mut call, *losses, *scores, *parts);
        }
        Kernel::Dispatch { .. } => experts::dispatch(&mut call),
        Kernel::DispatchGrad { .. } => experts::dispatch_grad(&mut call),
        Kernel::Combine { .. } => experts::combine(&mut call),
        Kernel::CombineGrad { .. } => experts::combine_grad(&mut call),
        Kernel::WeightedGlu { activation } => elementwise::weighted_glu(&mut call, *activation),
        Kernel::WeightedGluGrad { activation } => elementwise::weighted_glu_grad(&mut call, *activation),
        Kernel::RowGate => experts::row_gate(&mut call),
        Kernel::RowGateGrad => experts::row_gate_grad(&mut call),
        Kernel::ExpertScale => experts::expert_scale(&mut call),
        Kernel::ExpertScaleGrad => experts::expert_scale_grad(&mut call),
        Kernel::ExpertMatMul { transpose_b } => experts::matmul(&*context.gemm, &mut call, *transpose_b),
        Kernel::ExpertMatMulGrad => experts::matmul_grad(&*context.gemm, &mut call),
        Kernel::GeGlu => elementwise::geglu(&mut call),
        Kernel::GeGluGrad => elementwise::geglu_grad(&mut call),
        Kernel::Cast => elementwise::cast(&mut call),
        // Host memory is the core's own: what starts here is done.
        Kernel::Offload | Kernel::Reload => {
            let from = call.inputs[0].data.expect("this input's data is needed");
            call.outputs[0].clone_from(from);
        }
        Kernel::OffloadWait | Kernel::ReloadWait => {}
        Kernel::Quantize { .. } => panic!("operands are quantized by the core"),
        Kernel::AllReduce { .. }
        | Kernel::AllReduceMax { .. }
        | Kernel::AllGather { .. }
        | Kernel::AllReduceStart { .. }
        | Kernel::AllReduceWait
        | Kernel::ReduceScatterStart { .. }
        | Kernel::ReduceScatterWait
        | Kernel::ReduceScatter { .. } => panic!("`{}` is not for one rank alone", kernel.name()),
    }
}

/// The number of a member's first row, where rows are dealt to `ways`.
fn first_row<T: Element>(call: &Call<'_, '_, T>, ways: u64, member: u64) -> u64 {
    if ways > 1 { member * call.sizes(0).0 as u64 } else { 0 }
}

/// Rotates the last `tail` columns of each head of `width`, by positions in sequences of `sequence` tokens.
fn rope<T: Element>(
    context: &mut Context<T>,
    call: &mut Call<'_, '_, T>,
    (sequence, angles): (u64, Angles),
    (heads, width, tail): (u64, u64, u64),
    inverse: bool,
) {
    let positions = context.slice.map_or(sequence, |[_, positions]| positions);
    let (key, scaling) = ((positions, tail, angles), context.rotary.of(&angles));
    context.rope.entry(key).or_insert_with(|| rope::table(positions, tail, &angles, scaling.as_ref()));
    let context = &*context;
    rope::rope(call, &context.rope[&key], |row| context.position(sequence, row), (heads, width, tail), inverse);
}

/// Attention of one device over whole sequences.
const fn alone(heads: &Heads) -> Spread {
    Spread { heads: *heads, value_width: heads.width, ways: 1, window: heads.sequence }
}

fn matmul<T: Element>(
    gemm: &dyn Gemm<T>,
    call: &mut Call<'_, '_, T>,
    transpose_a: bool,
    transpose_b: bool,
    accumulate: bool,
    between: Option<&mut dyn FnMut()>,
) {
    let operand = |input: usize, transpose: bool| {
        let (rows, columns) = call.sizes(input);
        let operand = Operand::rows(call.floats(input), columns);
        if transpose { (operand.transposed(), columns, rows) } else { (operand, rows, columns) }
    };
    let (a, rows, inner) = operand(0, transpose_a);
    let (b, b_rows, columns) = operand(1, transpose_b);
    assert_eq!(inner, b_rows, "the inner sizes of a product differ");
    let (so_far, c) = if accumulate { (T::ONE, call.started(2)) } else { (T::ZERO, call.outputs[0].floats_mut()) };
    let Some(between) = between else {
        return gemm.gemm(Size { rows, inner, columns }, T::ONE, a, b, so_far, c, columns);
    };
    let piece = rows.div_ceil(PIECES).next_multiple_of(FEWEST_ROWS);
    for first in (0..rows).step_by(piece) {
        let size = Size { rows: piece.min(rows - first), inner, columns };
        let a = Operand { data: &a.data[first * a.row..], ..a };
        let c = &mut c[first * columns..(first + size.rows) * columns];
        gemm.gemm(size, T::ONE, a, b, so_far, c, columns);
        between();
    }
}

/// Pieces of a product beside which something goes on: each packs the other matrix again, which is little beside
/// [`FEWEST_ROWS`] rows of work with it.
const PIECES: usize = 8;
const FEWEST_ROWS: usize = 16;
