//! Launches for attention and its gradients: fused kernels, by warp or by group of warps, and products with a softmax.

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Heads, Kernel, Spread};

use super::attention_kernels::{AttentionKernel, TensorTiles};
use super::grid::args;
use super::place::Place;
use super::{Call, Context};
use crate::backend::cuda::card::{CardError, Format, Held, Memory};

/// Which rows of queries meet which of keys, as many in each of some sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Number format of all but statistics.
    pub format: Format,
    /// Sequences.
    pub sequences: u64,
    /// Rows from one sequence to the next.
    pub step: u64,
    /// Rows of a sequence that meet, of queries as of keys.
    pub rows: u64,
    /// How much later in the sequence the queries lie than the keys.
    pub lead: u64,
    /// Whether the result adds to what is there: outputs relative to their log-sum-exps.
    pub adds: bool,
}

impl Meeting {
    /// All of each sequence of `sequence` tokens, in `rows` rows.
    pub(crate) fn of_whole(rows: u64, sequence: u64, format: Format) -> Meeting {
        Meeting { format, sequences: rows / sequence, step: sequence, rows: sequence, lead: 0, adds: false }
    }
}

/// Bytes of what the gradient of attention for queries leaves for that of keys, where tensor cores make it: two
/// floats of each
/// row of each head, head after head.
pub(crate) fn of_rows(heads: &Heads, rows: u64, format: Format) -> Option<Bytes> {
    (format == Format::Bf16).then_some(OF_ROW * rows * heads.query)
}

/// Bytes of one row of one head.
pub(crate) const OF_ROW: Bytes = 8;

impl Context {
    /// Attention and its gradients, fused or as products with a softmax.
    pub(super) fn run_attention(&self, call: &Call<'_>) -> Result<(), CardError> {
        let Call { kernel, inputs, outputs, format, rows, columns, .. } = *call;
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        match *kernel {
            Kernel::Attention(heads) | Kernel::AttentionGrad(heads) => {
                self.whole_attention(&alone(&heads), inputs, outputs)
            }
            Kernel::SpreadAttention(spread) | Kernel::SpreadAttentionGrad(spread) if spread.ways <= 1 => {
                self.whole_attention(&spread, inputs, outputs)
            }
            Kernel::Scores(_) => {
                self.products(kernel, inputs, outputs)?;
                self.hide_later(&outputs[0], f32::NEG_INFINITY)
            }
            // Beyond each position they are 0: its probability is.
            Kernel::ScoresGrad(_) | Kernel::Attend(_) => self.products(kernel, inputs, outputs),
            Kernel::AttendGrad(_) => {
                self.products(kernel, inputs, outputs)?;
                self.hide_later(&outputs[0], 0.0)
            }
            Kernel::Softmax => {
                self.over_rows("softmax", format, [rows, columns], args(&[input(0), output(0)], &[columns], &[]))
            }
            Kernel::SoftmaxGrad => {
                let args = args(&[input(0), input(1), output(0)], &[columns], &[]);
                self.over_rows("softmax_grad", format, [rows, columns], args)
            }
            _ => Err(call.has_no_kernel()),
        }
    }

    /// Attention at one meeting. `buffers`: q, k, v, o, l.
    ///
    /// # Errors
    /// [`CardError`].
    pub(crate) fn attention(&self, spread: &Spread, meeting: &Meeting, buffers: &[u64; 5]) -> Result<(), CardError> {
        let tensor = TensorTiles { stay: (1, 0), stream: (1, 1), is_grad: false };
        let kernel = self.attention_kernel("attention", spread, meeting.format, (2, 2), tensor)?;
        self.launch_attention(kernel, spread, meeting, spread.heads.query, buffers)
    }

    /// The gradient for the queries of one meeting. `buffers`: do, q, k, v, o, l, dq, and where [`of_rows`] go.
    ///
    /// # Errors
    /// [`CardError`].
    pub(crate) fn attention_grad_query(
        &self,
        spread: &Spread,
        meeting: &Meeting,
        buffers: &[u64; 8],
    ) -> Result<(), CardError> {
        let tiles = TensorTiles { stay: (1, 1), stream: (1, 1), is_grad: true };
        let kernel = self.attention_kernel("attention_grad_query", spread, meeting.format, (3, 2), tiles)?;
        self.launch_attention(kernel, spread, meeting, spread.heads.query, buffers)
    }

    /// The gradients for the keys and values of one meeting, behind that for its queries. `buffers`: do, q, k, v, o,
    /// l, dk, dv,
    /// and [`of_rows`].
    ///
    /// # Errors
    /// [`CardError`].
    pub(crate) fn attention_grad_key(
        &self,
        spread: &Spread,
        meeting: &Meeting,
        buffers: &[u64; 9],
    ) -> Result<(), CardError> {
        let (format, heads) = (meeting.format, &spread.heads);
        // What stays in shared memory, and what comes tile by tile.
        let tiles = |stay| TensorTiles { stay, stream: (1, 1), is_grad: true };
        let of_keys = self.attention_kernel("attention_grad_key", spread, format, (3, 3), tiles((1, 1)))?;
        let apart = of_keys.apart;
        self.launch_attention(of_keys, spread, meeting, heads.key_value, buffers)?;
        if !apart {
            return Ok(());
        }
        let of_values = self.attention_kernel("attention_grad_value", spread, format, (3, 3), tiles((1, 0)))?;
        self.launch_attention(of_values, spread, meeting, heads.key_value, buffers)
    }

    /// Attention over whole sequences, or its gradient.
    fn whole_attention(&self, spread: &Spread, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let (rows, format) = (inputs[0].rows(), inputs[0].format());
        let meeting = Meeting::of_whole(rows, spread.heads.sequence, format);
        let (input, output) = (|at: usize| inputs[at].at(), |at: usize| outputs[at].at());
        if let [q, k, v] = inputs {
            return self.attention(spread, &meeting, &[q.at(), k.at(), v.at(), output(0), output(1)]);
        }
        let [d_o, q, k, v, o, l] = [0, 1, 2, 3, 4, 5].map(input);
        let of_rows = self.of_rows(spread, rows, format)?;
        let noted = of_rows.as_ref().map_or(0, |memory| memory.at().0);
        self.attention_grad_query(spread, &meeting, &[d_o, q, k, v, o, l, output(0), noted])?;
        self.attention_grad_key(spread, &meeting, &[d_o, q, k, v, o, l, output(1), output(2), noted])
    }

    /// Room for [`of_rows`] of a gradient. Given back behind the work that is queued by then.
    pub(crate) fn of_rows(&self, spread: &Spread, rows: u64, format: Format) -> Result<Option<Memory>, CardError> {
        let bytes = of_rows(&spread.heads, rows, format);
        bytes.map(|bytes| Memory::held(&self.card, bytes, Held::Briefly)).transpose()
    }

    /// Sets what lies beyond each position of the squares in `scores`.
    fn hide_later(&self, scores: &Place<'_>, value: f32) -> Result<(), CardError> {
        let [rows, columns] = [scores.rows(), scores.columns()];
        let args = args(&[scores.at()], &[columns], &[value]);
        self.over_rows("hide_later", scores.format(), [rows, columns], args)
    }

    /// Starts `kernel` for `heads` heads.
    fn launch_attention(
        &self,
        kernel: AttentionKernel,
        spread: &Spread,
        meeting: &Meeting,
        heads: u64,
        buffers: &[u64],
    ) -> Result<(), CardError> {
        let AttentionKernel { name, rows: of_block, threads, shared, buffers: of_tiles, .. } = kernel;
        let Spread { heads: Heads { query, key_value, width, .. }, value_width, window, .. } = *spread;
        let Meeting { sequences, step, rows, lead, adds, .. } = *meeting;
        let numbers = [step, query, key_value, width, value_width, window, of_tiles, rows, lead, u64::from(adds)];
        let args = args(buffers, &numbers, &[scale(&spread.heads), spread.heads.cap().unwrap_or(0.0) as f32]);
        self.launch_with(name, [heads, sequences, rows.div_ceil(of_block)], threads, shared, args)
    }
}

/// Attention of one device over whole sequences.
const fn alone(heads: &Heads) -> Spread {
    Spread { heads: *heads, value_width: heads.width, ways: 1, window: heads.sequence }
}

pub(super) fn scale(heads: &Heads) -> f32 {
    heads.scale() as f32
}
