//! An operator of the graph as launches of kernels: which kernel, how many blocks, which bytes.
//!
//! - In: a [`Kernel`] with the [`Place`]s of its tensors.
//! - Out: launches on a [`Card`].
//! - Knows: one card. [`Kernel`] defines what each operator computes; [`matmuls`] has the matrix products.
//!
//! One file per family of operators; `grid` has the shapes of launches, `attention_kernels` the choice of an
//! attention kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Kernel, SequencePart};
use pipeplan_core::model::Dtype;

use self::grid::{MOST_BLOCKS, args, of_splits, row_threads};
use super::card::{Address, Card, CardError, Format, Launch, Matrix, Memory};
use super::matmuls;

mod attention;
mod attention_kernels;
mod columns;
mod elementwise;
mod embedding;
mod experts;
mod grid;
mod loss;
mod norm;
mod optimizer;
mod place;
mod rope;

pub(super) use self::attention::{Meeting, OF_ROW, of_rows};
pub(super) use self::attention_kernels::{GROUP_WIDTHS, group_kernels};
pub(super) use self::experts::{RoutedTokens, Strided, place_bytes};
pub use self::optimizer::MOST_MEMBERS;
pub use self::place::Place;
use self::rope::RopeTable;
pub use self::rope::{rope_bytes, rope_tables};

/// Bytes that [`Context::run`] takes for as long as `kernel` runs, where it takes any.
pub fn taken(kernel: &Kernel, inputs: &[Place<'_>]) -> Option<Bytes> {
    let chosen = match *kernel {
        Kernel::Dispatch { .. }
        | Kernel::DispatchGrad { .. }
        | Kernel::Combine { .. }
        | Kernel::CombineGrad { .. } => 1,
        Kernel::AttentionGrad(heads) => return of_rows(&heads, inputs[0].rows(), inputs[0].format()),
        Kernel::SpreadAttentionGrad(spread) => return of_rows(&spread.heads, inputs[0].rows(), inputs[0].format()),
        Kernel::BiasGrad | Kernel::RmsNormGainGrad | Kernel::LayerNormGainGrad => {
            return of_splits([inputs[0].rows(), inputs[0].columns()]);
        }
        Kernel::HeadNormGainGrad { width } => return of_splits([inputs[0].elements() / width, width]),
        _ => return None,
    };
    Some(4 * inputs[chosen].elements())
}

/// What operators share over a run.
pub struct Context {
    pub(super) card: Arc<dyn Card>,
    /// Sines and cosines by sequence, width and base.
    rope: BTreeMap<RopeTable, Memory>,
    /// Seed of what dropout keeps.
    pub dropout_seed: u64,
    /// This rank's number among the tensor-parallel ranks.
    pub member: u64,
    /// Its part of every sequence.
    pub part: SequencePart,
    /// Whether attention goes by groups of warps where the card can.
    pub(super) by_group: bool,
}

/// An operator to start, with the tensors that it reads and writes.
struct Call<'a> {
    kernel: &'a Kernel,
    inputs: &'a [Place<'a>],
    outputs: &'a [Place<'a>],
    /// Format of activations and weights.
    format: Format,
    /// Rows of the first input.
    rows: u64,
    /// Its columns.
    columns: u64,
    /// Its elements.
    elements: u64,
}

impl Call<'_> {
    /// The error where one card alone cannot run the operator.
    fn has_no_kernel(&self) -> CardError {
        CardError::call(self.kernel.name(), "it needs other devices")
    }
}

/// Adds the row at `bias` to every row of the `rows` by `columns` at `to`, whose rows lie behind each other.
pub fn add_bias(bias: Address, to: &Matrix, rows: u64, columns: u64) -> Launch {
    let kernel = format!("add_rows_{}", to.format.suffix());
    let args = args(&[to.at.0, bias.0, to.at.0], &[rows, columns, 1, 0, 0, 1], &[]);
    Launch { kernel, grid: [rows.min(MOST_BLOCKS) as u32, 1, 1], threads: row_threads(columns), shared: 0, args }
}

impl Context {
    /// For `card`.
    pub fn new(card: Arc<dyn Card>) -> Context {
        let (dropout_seed, member, part) = (0, 0, SequencePart::WHOLE);
        Context { card, rope: BTreeMap::new(), dropout_seed, member, part, by_group: true }
    }

    fn products(&self, kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        matmuls::of(kernel, inputs, outputs).iter().try_for_each(|product| self.card.product(product))
    }

    /// Starts `kernel`.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn run(&mut self, kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        // The format of activations and weights: outputs may be sums in f32.
        let format = inputs.iter().find(|place| place.dtype == Dtype::Bf16).map_or(Format::F32, Place::format);
        let [rows, columns] = [inputs[0].rows(), inputs[0].columns()];
        let elements = inputs[0].elements();
        let call = Call { kernel, inputs, outputs, format, rows, columns, elements };
        match kernel {
            Kernel::MatMul { .. } => self.products(kernel, inputs, outputs),
            Kernel::OwnTokens { .. }
            | Kernel::Embedding
            | Kernel::EmbeddingGrad
            | Kernel::Positions { .. }
            | Kernel::PositionsGrad { .. } => self.run_embedding(&call),
            Kernel::RmsNorm { .. }
            | Kernel::RmsNormInputGrad { .. }
            | Kernel::RmsNormGainGrad
            | Kernel::LayerNorm { .. }
            | Kernel::LayerNormInputGrad
            | Kernel::LayerNormGainGrad
            | Kernel::HeadNorm { .. }
            | Kernel::HeadNormInputGrad { .. }
            | Kernel::HeadNormGainGrad { .. } => self.run_norm(&call),
            Kernel::Rope { .. } | Kernel::RopeTail { .. } => self.run_rope(&call),
            Kernel::SplitColumns
            | Kernel::JoinColumns
            | Kernel::LatentKeys { .. }
            | Kernel::LatentKeysGrad { .. } => self.run_columns(&call),
            Kernel::Route { .. }
            | Kernel::RouteGrad { .. }
            | Kernel::Dispatch { .. }
            | Kernel::CombineGrad { .. }
            | Kernel::DispatchGrad { .. }
            | Kernel::Combine { .. }
            | Kernel::ExpertMatMul { .. }
            | Kernel::ExpertMatMulGrad => self.run_experts(&call),
            Kernel::Attention(_)
            | Kernel::AttentionGrad(_)
            | Kernel::SpreadAttention(_)
            | Kernel::SpreadAttentionGrad(_)
            | Kernel::Scores(_)
            | Kernel::ScoresGrad(_)
            | Kernel::Attend(_)
            | Kernel::AttendGrad(_)
            | Kernel::Softmax
            | Kernel::SoftmaxGrad => self.run_attention(&call),
            Kernel::AddBias
            | Kernel::BiasGrad
            | Kernel::Dropout { .. }
            | Kernel::DropoutGrad
            | Kernel::SwiGlu
            | Kernel::SwiGluGrad
            | Kernel::GeGlu
            | Kernel::GeGluGrad
            | Kernel::Gelu
            | Kernel::GeluGrad
            | Kernel::GeluTanh
            | Kernel::GeluTanhGrad
            | Kernel::Cast
            | Kernel::Replicate { .. }
            | Kernel::Add
            | Kernel::Scale { .. }
            | Kernel::SoftCap { .. }
            | Kernel::SoftCapGrad { .. }
            | Kernel::WeightedGlu { .. }
            | Kernel::WeightedGluGrad { .. }
            | Kernel::RowGate
            | Kernel::RowGateGrad => self.run_elementwise(&call),
            Kernel::CrossEntropy { .. }
            | Kernel::CrossEntropyGrad { .. }
            | Kernel::HidePadding { .. }
            | Kernel::RowMax
            | Kernel::ExpSums
            | Kernel::SharedCrossEntropy { .. } => self.run_loss(&call),
            // Collectives, and what is only planned; a workload with the latter is refused before it starts.
            _ => Err(call.has_no_kernel()),
        }
    }
}
