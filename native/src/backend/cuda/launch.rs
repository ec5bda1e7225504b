//! From an operator of the graph to launches and products: which kernel, how many blocks, which bytes. What each
//! operator computes is said once, at [`Kernel`]. What is made of products is in [`matrices`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::{Graph, Heads, Kernel, SequencePart, Spread, of_e12};
use pipeplan_core::model::{Dtype, Routing, Scores};

use super::card::{Address, Args, Card, CardError, Format, Held, Launch, Matrix, Memory};
use super::{floats, matrices};
use crate::backend::cpu::kernels::{experts, rope};
use crate::runner::optimizer::AdamW;
use crate::runner::random::SplitMix64;

/// A tensor that an operator reads or writes. An input that gives its buffer to the output lies where the output does.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its start; none where only its shape is needed.
    pub at: Option<Address>,
    /// Its sizes.
    pub shape: &'a [u64],
    /// Its number format.
    pub dtype: Dtype,
}

impl Place<'_> {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(super) fn rows(&self) -> u64 {
        self.shape[0]
    }

    pub(super) fn columns(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }

    pub(super) fn at(&self) -> u64 {
        self.at.expect("this tensor's data is needed").0
    }

    pub(super) fn format(&self) -> Format {
        if self.dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 }
    }

    /// The matrix `offset` elements on, `rows` by `columns` with `row` elements from row to row, `count` times with
    /// `step` elements between.
    pub(super) fn matrix(
        &self,
        offset: u64,
        [rows, columns]: [u64; 2],
        row: u64,
        (count, step): (u64, u64),
    ) -> Matrix {
        let end = offset + (count.max(1) - 1) * step + (rows.max(1) - 1) * row + columns;
        assert!(end <= self.elements(), "a matrix leaves its tensor {:?}", self.shape);
        let format = self.format();
        Matrix { at: Address(self.at() + offset * format.bytes()), row, step, transposed: false, format }
    }

    pub(super) fn whole(&self) -> Matrix {
        self.matrix(0, [self.rows(), self.columns()], self.columns(), (1, 0))
    }
}

/// Copies of tokens, each of which lies somewhere among rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    /// The format of all that they are made of.
    pub format: Format,
    /// By copy: the number of its row.
    pub places: Address,
    /// How many there are.
    pub count: u64,
    /// Copies of each token, which follow each other.
    pub active: u64,
}

impl Copies {
    /// One for each choice of `chosen`.
    pub fn of(chosen: &Place<'_>, format: Format, places: Address) -> Copies {
        Copies { format, places, count: chosen.elements(), active: chosen.columns() }
    }
}

/// Rows that need not lie directly behind each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided {
    at: u64,
    /// Elements from the first of one row to that of the next.
    next: u64,
}

impl Strided {
    pub fn new(at: u64, next: u64) -> Strided {
        Strided { at, next }
    }
}

/// What a kernel between tokens and their copies is called with.
fn of_copies(
    copies: &Copies,
    columns: u64,
    (from, to): (Strided, Strided),
    numbers: Option<(Strided, Strided)>,
) -> Args {
    let nowhere = Strided::new(0, 0);
    let (numbers_from, numbers_to) = numbers.unwrap_or((nowhere, nowhere));
    let buffers = [from.at, copies.places.0, to.at, numbers_from.at, numbers_to.at];
    args(&buffers, &[columns, copies.active, from.next, to.next, numbers_from.next, numbers_to.next], &[])
}

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

/// Blocks that share the rows of a sum over them out, for each 32 of so many columns: as many as fill a large card, whichever
/// it is, so that sums are the same on all.
fn splits([rows, columns]: [u64; 2]) -> u64 {
    const BLOCKS: u64 = 256;
    const LEAST_ROWS: u64 = 512;
    (BLOCKS / columns.div_ceil(32).max(1)).min(rows / LEAST_ROWS).max(1)
}

/// Bytes of what they leave, where they are several.
fn of_splits(size: [u64; 2]) -> Option<Bytes> {
    let splits = splits(size);
    (splits > 1).then_some(4 * splits * size[1])
}

/// Bytes of what the gradient of attention for queries leaves for that of keys, where tensor cores make it: two floats of each
/// row of each head, head after head.
pub(super) fn of_rows(heads: &Heads, rows: u64, format: Format) -> Option<Bytes> {
    (format == Format::Bf16).then_some(OF_ROW * rows * heads.query)
}

/// Bytes of one row of one head.
pub(super) const OF_ROW: Bytes = 8;

/// As a card holds them.
pub(super) fn place_bytes(places: &[usize]) -> Vec<u8> {
    places.iter().flat_map(|place| (*place as i32).to_ne_bytes()).collect()
}

/// What operators share over a run.
pub struct Context {
    pub(super) card: Arc<dyn Card>,
    /// Sines and cosines by sequence, width and base.
    rope: BTreeMap<(u64, u64, u64), Memory>,
    /// Seed of what dropout keeps.
    pub dropout_seed: u64,
    /// This rank's number among those that share matrices.
    pub member: u64,
    /// Its part of every sequence.
    pub part: SequencePart,
    /// Whether attention goes by groups of warps where the card can.
    pub(super) by_group: bool,
}

/// Members that [`Context::combine`] takes: a kernel's buffers but one.
pub const MOST_MEMBERS: usize = 9;

/// Threads of a block where nothing else is better.
const THREADS: u32 = 256;
/// Enough blocks to fill any card; each takes several shares of the work.
const MOST_BLOCKS: u64 = 1 << 16;
/// Rows of a tile of `attention.cu`.
const SMALL_TILE: u64 = 32;
/// Floats of a row of scores there.
const SCORES: u64 = SMALL_TILE + 8;
/// Rows of what is streamed in `attention_tensor.cu`.
const TILE: u64 = 64;
/// Widths of keys and of values that `attention_tensor.cu` is compiled for.
const TENSOR_WIDTHS: [(u64, u64); 6] = [(32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256)];
/// The same of `attention_groups.cu`, and how many groups of warps a block of attention has; of its gradients, two.
pub(super) const GROUP_WIDTHS: [((u64, u64), u64); 4] =
    [((64, 64), 2), ((128, 128), 3), ((192, 128), 3), ((256, 256), 2)];
/// Widths whose gradients of keys and of values are made by two kernels: one has no registers for both. By warp, and by group.
const APART: [&[(u64, u64)]; 2] = [&[(256, 256)], &[(192, 128), (256, 256)]];
/// The kernels of attention by groups of warps for these widths.
pub(super) fn group_kernels(widths: (u64, u64)) -> Vec<String> {
    let of_values = APART[1].contains(&widths).then_some("attention_grad_value");
    let names = ["attention", "attention_grad_query", "attention_grad_key"].into_iter().chain(of_values);
    names.map(|name| attention_name("group", name, widths)).collect()
}

fn attention_name(way: &str, name: &str, (width, value_width): (u64, u64)) -> String {
    format!("{way}_{name}_{width}_{value_width}")
}

/// Shared memory that a card keeps of each block's.
const KEPT_OF_BLOCK: u64 = 1 << 10;

/// Buffers and numbers of a launch.
fn args(buffers: &[u64], numbers: &[u64], floats: &[f32]) -> Args {
    let mut args = Args::default();
    args.p[..buffers.len()].copy_from_slice(buffers);
    for (slot, number) in args.n.iter_mut().zip(numbers) {
        *slot = *number as i64;
    }
    args.f[..floats.len()].copy_from_slice(floats);
    args
}

/// Adds the row at `bias` to every row of the `rows` by `columns` at `to`, whose rows lie behind each other.
pub fn add_bias(bias: Address, to: &Matrix, rows: u64, columns: u64) -> Launch {
    let kernel = format!("add_rows_{}", to.format.suffix());
    let args = args(&[to.at.0, bias.0, to.at.0], &[rows, columns, 1, 0, 0, 1], &[]);
    Launch { kernel, grid: [rows.min(MOST_BLOCKS) as u32, 1, 1], threads: row_threads(columns), shared: 0, args }
}

/// What threads take one at a time of a row of `columns`: 16 bytes where it is made of such, or a number.
fn in_packs(format: Format, columns: u64) -> u64 {
    let pack = 16 / format.bytes();
    if columns.is_multiple_of(pack) { columns / pack } else { columns }
}

/// Threads for a row of `columns`: whole warps, no more than there is to do.
fn row_threads(columns: u64) -> u32 {
    (columns.div_ceil(32) * 32).clamp(32, 512) as u32
}

impl Context {
    /// For `card`.
    pub fn new(card: Arc<dyn Card>) -> Context {
        let (dropout_seed, member, part) = (0, 0, SequencePart::WHOLE);
        Context { card, rope: BTreeMap::new(), dropout_seed, member, part, by_group: true }
    }

    fn launch(&self, name: &str, format: Format, grid: [u64; 3], threads: u32, args: Args) -> Result<(), CardError> {
        self.launch_with(format!("{name}_{}", format.suffix()), grid, threads, 0, args)
    }

    fn launch_with(
        &self,
        kernel: String,
        grid: [u64; 3],
        threads: u32,
        shared: u64,
        args: Args,
    ) -> Result<(), CardError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid;
        if x > i32::MAX as u64 || y > 65_535 || z > 65_535 {
            return Err(CardError::call(kernel, format!("{grid:?} blocks are more than a GPU takes")));
        }
        let shared = shared as u32;
        self.card.launch(&Launch { kernel, grid: [x as u32, y as u32, z as u32], threads, shared, args })
    }

    fn products(&self, kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        matrices::of(kernel, inputs, outputs).iter().try_for_each(|product| self.card.product(product))
    }

    /// A launch over elements, 16 bytes of `format` a thread.
    fn over_elements(&self, name: &str, format: Format, elements: u64, args: Args) -> Result<(), CardError> {
        let blocks = elements.div_ceil(u64::from(THREADS) * 16 / format.bytes()).min(MOST_BLOCKS);
        self.launch(name, format, [blocks, 1, 1], THREADS, args)
    }

    /// A launch of one block a row.
    fn over_rows(&self, name: &str, format: Format, [rows, columns]: [u64; 2], args: Args) -> Result<(), CardError> {
        self.launch(name, format, [rows, 1, 1], row_threads(columns), args)
    }

    /// The same for kernels whose threads take 16 bytes at once where rows are made of such.
    fn over_packed_rows(
        &self,
        name: &str,
        format: Format,
        [rows, columns]: [u64; 2],
        args: Args,
    ) -> Result<(), CardError> {
        self.over_rows(name, format, [rows, in_packs(format, columns)], args)
    }

    /// A sum over rows, added to the second of up to five `buffers`, which are at least two.
    fn over_columns(&self, name: &str, format: Format, size: [u64; 2], buffers: &[u64]) -> Result<(), CardError> {
        let parts = of_splits(size).map(|bytes| Memory::held(&self.card, bytes, Held::Briefly)).transpose()?;
        let ([_, columns], splits) = (size, splits(size));
        let mut all = [0; 6];
        all[..buffers.len()].copy_from_slice(buffers);
        all[5] = parts.as_ref().map_or(0, |parts| parts.at().0);
        self.launch(name, format, [columns.div_ceil(32), splits, 1], 1024, args(&all, &size, &[]))?;
        match parts {
            None => Ok(()),
            Some(parts) => {
                let args = args(&[parts.at().0, buffers[1]], &[columns, splits], &[]);
                self.over_elements("add_splits", Format::F32, columns, args)
            }
        }
    }

    /// Starts `kernel`.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn run(&mut self, kernel: &Kernel, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let input = |at: usize| inputs[at].at();
        let output = |at: usize| outputs[at].at();
        // The format of activations and weights: outputs may be sums in f32.
        let format = inputs.iter().find(|place| place.dtype == Dtype::Bf16).map_or(Format::F32, Place::format);
        let [rows, columns] = [inputs[0].rows(), inputs[0].columns()];
        let elements = inputs[0].elements();
        // The number of this member's first row, where rows are dealt to more than one.
        let first = |ways: u64| if ways > 1 { self.member * rows } else { 0 };
        let part = self.part;
        match *kernel {
            Kernel::OwnTokens { rows } => {
                let args = args(&[input(0), output(0)], &[elements, rows, rows * self.member], &[]);
                self.over_elements("own_tokens", format, elements, args)
            }
            Kernel::Embedding => {
                let columns = inputs[1].columns();
                let args = args(&[input(0), input(1), output(0)], &[rows, columns], &[]);
                self.over_packed_rows("embedding", format, [rows, columns], args)
            }
            Kernel::EmbeddingGrad => {
                let args = args(&[input(0), input(1), output(0)], &[rows, columns], &[]);
                let grid = [rows, in_packs(format, columns).div_ceil(THREADS.into()), 1];
                self.launch("embedding_grad", format, grid, THREADS, args)
            }
            Kernel::Positions { sequence, ways } => {
                let numbers = [rows, columns, sequence, first(ways), part.part, part.parts];
                let args = args(&[input(0), input(1), output(0)], &numbers, &[]);
                self.over_packed_rows("add_rows", format, [rows, columns], args)
            }
            Kernel::PositionsGrad { sequence, ways } => {
                let numbers = [rows, columns, sequence, first(ways), part.part, part.parts];
                let args = args(&[input(0), output(0)], &numbers, &[]);
                let blocks = (sequence / part.parts * columns).div_ceil(THREADS.into()).min(MOST_BLOCKS);
                self.launch("add_rows_grad", format, [blocks, 1, 1], THREADS, args)
            }
            Kernel::AddBias => {
                let args = args(&[input(0), input(1), output(0)], &[rows, columns, 1, 0, 0, 1], &[]);
                self.over_packed_rows("add_rows", format, [rows, columns], args)
            }
            Kernel::BiasGrad => self.over_columns("bias_grad", format, [rows, columns], &[input(0), output(0)]),
            Kernel::RmsNorm { eps_e12, offset } => {
                let buffers = [input(0), input(1), output(0), output(1)];
                let args = args(&buffers, &[columns], &[of_e12(eps_e12) as f32, one_more(offset)]);
                self.over_packed_rows("rms_norm", format, [rows, columns], args)
            }
            Kernel::RmsNormInputGrad { offset } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0)];
                let args = args(&buffers, &[columns], &[one_more(offset)]);
                self.over_packed_rows("rms_norm_input_grad", format, [rows, columns], args)
            }
            Kernel::RmsNormGainGrad => {
                let buffers = [input(0), output(0), input(1), input(2)];
                self.over_columns("rms_norm_gain_grad", format, [rows, columns], &buffers)
            }
            Kernel::LayerNorm { eps_e12 } => {
                let buffers = [input(0), input(1), input(2), output(0), output(1), output(2)];
                let args = args(&buffers, &[columns], &[of_e12(eps_e12) as f32]);
                self.over_packed_rows("layer_norm", format, [rows, columns], args)
            }
            Kernel::LayerNormInputGrad => {
                let buffers = [input(0), input(1), input(2), input(3), input(4), output(0)];
                self.over_packed_rows(
                    "layer_norm_input_grad",
                    format,
                    [rows, columns],
                    args(&buffers, &[columns], &[]),
                )
            }
            Kernel::LayerNormGainGrad => {
                let buffers = [input(0), output(0), input(1), input(3), input(2)];
                self.over_columns("layer_norm_gain_grad", format, [rows, columns], &buffers)
            }
            Kernel::MatMul { .. } => self.products(kernel, inputs, outputs),
            Kernel::Rope { sequence, heads, width, base, inverse } => {
                let table = self.rope_table(sequence, width, base)?;
                let sign = if inverse { -1.0 } else { 1.0 };
                let numbers = [rows, heads, width, sequence, width, part.part, part.parts];
                let args = args(&[input(0), table.0, output(0)], &numbers, &[sign]);
                self.over_packed_rows("rope", format, [rows, heads * width / 2], args)
            }
            Kernel::RopeTail { sequence, heads, width, tail, base, inverse } => {
                let table = self.rope_table(sequence, tail, base)?;
                if input(0) != output(0) {
                    // The columns that stay.
                    self.card.copy(Address(input(0)), Address(output(0)), elements * inputs[0].format().bytes())?;
                }
                let sign = if inverse { -1.0 } else { 1.0 };
                let numbers = [rows, heads, width, sequence, tail, part.part, part.parts];
                let args = args(&[input(0), table.0, output(0)], &numbers, &[sign]);
                self.over_packed_rows("rope", format, [rows, heads * tail / 2], args)
            }
            Kernel::HeadNorm { eps_e12, width, offset } => {
                let buffers = [input(0), input(1), output(0), output(1)];
                let args = args(&buffers, &[width], &[of_e12(eps_e12) as f32, one_more(offset)]);
                self.over_packed_rows("rms_norm", format, [elements / width, width], args)
            }
            Kernel::HeadNormInputGrad { width, offset } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0)];
                let args = args(&buffers, &[width], &[one_more(offset)]);
                self.over_packed_rows("rms_norm_input_grad", format, [elements / width, width], args)
            }
            Kernel::HeadNormGainGrad { width } => {
                let buffers = [input(0), output(0), input(1), input(2)];
                self.over_columns("rms_norm_gain_grad", format, [elements / width, width], &buffers)
            }
            Kernel::SplitColumns => {
                let sizes = [outputs[0].columns(), outputs[1].columns()];
                let args = args(&[input(0), output(0), output(1)], &sizes, &[]);
                self.over_rows("split_columns", format, [rows, columns], args)
            }
            Kernel::JoinColumns => {
                let sizes = [columns, inputs[1].columns()];
                let args = args(&[input(0), input(1), output(0)], &sizes, &[]);
                self.over_rows("join_columns", format, [rows, outputs[0].columns()], args)
            }
            Kernel::LatentKeys { heads } => {
                let (shared, width) = (inputs[1].columns(), outputs[0].columns() / heads);
                let sizes = [heads, width - shared, shared, outputs[1].columns() / heads];
                let args = args(&[input(0), input(1), output(0), output(1)], &sizes, &[]);
                self.over_rows("latent_keys", format, [rows, columns], args)
            }
            Kernel::LatentKeysGrad { heads } => {
                let (shared, width) = (outputs[1].columns(), columns / heads);
                let sizes = [heads, width - shared, shared, inputs[1].columns() / heads];
                let args = args(&[input(0), input(1), output(0), output(1)], &sizes, &[]);
                self.over_rows("latent_keys_grad", format, [rows, columns], args)
            }
            Kernel::Route { active, routing } => {
                let (flags, factor) = of_routing(routing);
                let groups = [routing.groups, routing.active_groups].map(u64::from);
                let numbers = [rows, columns, active, flags[0], flags[1], groups[0], groups[1]];
                let args = args(&[input(0), output(0), output(1)], &numbers, &[factor]);
                self.launch("route", format, [rows.div_ceil(THREADS.into()), 1, 1], THREADS, args)
            }
            Kernel::RouteGrad { routing } => {
                let buffers = [input(0), input(1), input(2), output(0)];
                let (flags, factor) = of_routing(routing);
                let numbers = [rows, inputs[1].columns(), columns, flags[0], flags[1]];
                let args = args(&buffers, &numbers, &[factor]);
                self.launch("route_grad", format, [rows.div_ceil(THREADS.into()), 1, 1], THREADS, args)
            }
            Kernel::Dispatch { .. } => {
                let order = self.order(&inputs[1], &outputs[1])?;
                self.write_numbers(&outputs[1], order.arrivals())?;
                let places = self.places(&order)?;
                let copies = Copies::of(&inputs[1], format, places.at());
                [&outputs[0], &outputs[2]].into_iter().try_for_each(|rows| self.clear_behind(rows, copies.count))?;
                let weights = (Strided::new(input(2), 1), Strided::new(output(2), 1));
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.spread(copies, columns, rows, Some(weights))
            }
            Kernel::CombineGrad { .. } => {
                let places = self.places(&self.order(&inputs[1], &inputs[2])?)?;
                let copies = Copies::of(&inputs[1], format, places.at());
                self.clear_behind(&outputs[0], copies.count)?;
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.spread(copies, columns, rows, None)
            }
            Kernel::DispatchGrad { .. } | Kernel::Combine { .. } => {
                let places = self.places(&self.order(&inputs[1], &inputs[2])?)?;
                let copies = Copies::of(&inputs[1], format, places.at());
                let shares = inputs.get(3).map(|_| (Strided::new(input(3), 1), Strided::new(output(1), 1)));
                let rows = (Strided::new(input(0), columns), Strided::new(output(0), columns));
                self.gather(copies, columns, rows, shares)
            }
            Kernel::ExpertMatMul { transpose_b } => self.expert_matmul(transpose_b, inputs, outputs),
            Kernel::ExpertMatMulGrad => self.expert_matmul_grad(inputs, outputs),
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
            Kernel::Dropout { site, ways, blocks, sequence } => {
                // The CPU's draws, one for each element, which this generator gives in any order.
                let seed = SplitMix64::new(self.dropout_seed ^ site).draw();
                // Scores, which have more blocks than one, are never held where sequences are dealt out.
                let block = if part.parts > 1 { columns } else { (elements / blocks.max(1)).max(1) };
                let (first, of) = (first(ways), if ways > 1 { (ways, self.member) } else { (1, 0) });
                let numbers = [elements, seed, block, of.0, of.1, first, sequence, part.part, part.parts];
                let args = args(&[input(0), output(0), output(1)], &numbers, &[]);
                self.over_elements("dropout", format, elements, args)
            }
            Kernel::DropoutGrad => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("dropout_grad", format, elements, args)
            }
            Kernel::SwiGlu => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("swiglu", format, elements, args)
            }
            Kernel::SwiGluGrad => {
                let args = args(&[input(0), input(1), input(2), output(0), output(1)], &[elements], &[]);
                self.over_elements("swiglu_grad", format, elements, args)
            }
            Kernel::GeGlu => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("geglu", format, elements, args)
            }
            Kernel::GeGluGrad => {
                let args = args(&[input(0), input(1), input(2), output(0), output(1)], &[elements], &[]);
                self.over_elements("geglu_grad", format, elements, args)
            }
            Kernel::Gelu => {
                self.over_elements("gelu", format, elements, args(&[input(0), output(0)], &[elements], &[]))
            }
            Kernel::GeluGrad => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("gelu_grad", format, elements, args)
            }
            // The same numbers, elsewhere or where they are.
            Kernel::Cast | Kernel::Replicate { .. } if inputs[0].dtype == outputs[0].dtype => {
                if input(0) == output(0) {
                    return Ok(());
                }
                self.card.copy(Address(input(0)), Address(output(0)), elements * inputs[0].dtype.bytes())
            }
            Kernel::Cast => {
                let name = if outputs[0].format() == Format::Bf16 { "cast_to" } else { "cast_from" };
                self.over_elements(name, Format::Bf16, elements, args(&[input(0), output(0)], &[elements], &[]))
            }
            Kernel::Add => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[]);
                self.over_elements("add", format, elements, args)
            }
            Kernel::Scale { factor_e12 } => {
                let args = args(&[input(0), output(0)], &[elements], &[of_e12(factor_e12) as f32]);
                self.over_elements("scale", format, elements, args)
            }
            Kernel::SoftCap { cap_e12 } => {
                let args = args(&[input(0), output(0)], &[elements], &[of_e12(cap_e12) as f32]);
                self.over_elements("soft_cap", format, elements, args)
            }
            Kernel::SoftCapGrad { cap_e12 } => {
                let args = args(&[input(0), input(1), output(0)], &[elements], &[of_e12(cap_e12) as f32]);
                self.over_elements("soft_cap_grad", format, elements, args)
            }
            Kernel::WeightedGlu { .. } => {
                let args = args(&[input(0), input(1), input(2), output(0)], &[columns], &[]);
                self.over_packed_rows(kernel.name(), format, [rows, columns], args)
            }
            Kernel::WeightedGluGrad { .. } => {
                let buffers = [input(0), input(1), input(2), input(3), output(0), output(1), output(2)];
                self.over_packed_rows(kernel.name(), format, [rows, columns], args(&buffers, &[columns], &[]))
            }
            Kernel::RowGate => {
                let args = args(&[input(0), input(1), output(0)], &[columns], &[]);
                self.over_rows("row_gate", format, [rows, columns], args)
            }
            Kernel::RowGateGrad => {
                let buffers = [input(0), input(1), input(2), output(0), output(1)];
                self.over_rows("row_gate_grad", format, [rows, columns], args(&buffers, &[columns], &[]))
            }
            Kernel::CrossEntropy { microbatches } => {
                let share = 1.0 / (rows as f64 * microbatches as f64);
                let rows_args = args(&[input(0), output(1)], &[columns], &[]);
                self.over_packed_rows("log_sum_exp", format, [rows, columns], rows_args)?;
                let buffers = [input(0), input(1), output(1), output(0)];
                let args = args(&buffers, &[columns, rows], &[share as f32]);
                self.launch("cross_entropy", format, [1, 1, 1], 1024, args)
            }
            Kernel::CrossEntropyGrad { microbatches, weight_e12 } => {
                let share = of_e12(weight_e12) / (rows as f64 * microbatches as f64);
                let buffers = [input(0), input(1), input(2), output(0)];
                let args = args(&buffers, &[columns], &[share as f32]);
                self.over_packed_rows("cross_entropy_grad", format, [rows, columns], args)
            }
            Kernel::HidePadding { vocab } => {
                let shown = vocab.saturating_sub(self.member * columns).min(columns);
                let args = args(&[input(0), output(0)], &[columns, shown], &[]);
                self.over_rows("hide_padding", format, [rows, columns], args)
            }
            Kernel::RowMax => {
                self.over_rows("row_max", format, [rows, columns], args(&[input(0), output(0)], &[columns], &[]))
            }
            Kernel::ExpSums => {
                let args = args(&[input(0), input(1), input(2), output(0)], &[columns], &[]);
                self.over_rows("exp_sums", format, [rows, columns], args)
            }
            Kernel::SharedCrossEntropy { microbatches } => {
                let share = 1.0 / (rows as f64 * microbatches as f64);
                let args = args(&[input(0), input(1), output(0), output(1)], &[rows], &[share as f32]);
                self.launch("shared_cross_entropy", Format::F32, [1, 1, 1], 1024, args)
            }
            // What ranks do together, and what no rank does; a workload with the latter is refused before it starts.
            _ => Err(CardError::call(kernel.name(), "it needs other devices")),
        }
    }

    /// AdamW on one parameter; clears its gradient where `clear`. `places` are weight, master weight, gradient, mean, mean square.
    ///
    /// # Errors
    /// [`CardError`].
    #[allow(clippy::too_many_arguments, reason = "what one update is")]
    pub fn adamw(
        &self,
        optimizer: &AdamW,
        step: u32,
        format: Format,
        places: [Address; 5],
        elements: u64,
        decay: bool,
        clear: bool,
    ) -> Result<(), CardError> {
        let count = f64::from(step) + 1.0;
        let AdamW { beta1, beta2, epsilon, weight_decay, .. } = *optimizer;
        let learning_rate = optimizer.rate(step);
        let floats = [
            beta1,
            beta2,
            1.0 - beta1,
            1.0 - beta2,
            1.0 / (1.0 - libm::pow(beta1, count)),
            1.0 / (1.0 - libm::pow(beta2, count)),
            1.0 - learning_rate * if decay { weight_decay } else { 0.0 },
            learning_rate,
            epsilon,
        ];
        let args = args(&places.map(|place| place.0), &[elements, clear.into()], &floats.map(|float| float as f32));
        // A thread takes four elements at once.
        let blocks = elements.div_ceil(4 * u64::from(THREADS)).min(MOST_BLOCKS);
        self.launch("adamw", format, [blocks, 1, 1], THREADS, args)
    }

    /// The sum of squares of `elements` floats: of float sums that no order of the work changes. Waits for it.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn squares(&self, at: Address, elements: u64) -> Result<f64, CardError> {
        const BLOCKS: u64 = 1024;
        if elements == 0 {
            return Ok(0.0);
        }
        let blocks = elements.div_ceil(THREADS.into()).min(BLOCKS);
        // Given back at once: jobs find their places as they were.
        let sums = Memory::held(&self.card, 4 * blocks, Held::Briefly)?;
        let args = args(&[at.0, sums.at().0], &[elements], &[]);
        self.launch("sum_squares", Format::F32, [blocks, 1, 1], THREADS, args)?;
        Ok(floats(&sums.read()?).into_iter().map(f64::from).sum())
    }

    /// What members of a group have, combined in their order into `to`, which is none of `from`. At most
    /// [`MOST_MEMBERS`].
    ///
    /// # Errors
    /// [`CardError`].
    pub fn combine(
        &self,
        greatest: bool,
        format: Format,
        from: &[Address],
        to: Address,
        elements: u64,
    ) -> Result<(), CardError> {
        let buffers: Vec<u64> = [to].iter().chain(from).map(|place| place.0).collect();
        let name = if greatest { "max_members" } else { "sum_members" };
        self.over_elements(name, format, elements, args(&buffers, &[elements, from.len() as u64], &[]))
    }

    /// Multiplies `elements` floats.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn scale(&self, at: Address, elements: u64, factor: f64) -> Result<(), CardError> {
        let args = args(&[at.0, at.0], &[elements], &[factor as f32]);
        self.over_elements("scale", Format::F32, elements, args)
    }

    /// Makes what `graphs` will look up, which is made of what they lack only here.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn prepare<'g>(&mut self, graphs: impl IntoIterator<Item = &'g Graph>) -> Result<(), CardError> {
        for (sequence, width, base) in rope_tables(graphs) {
            self.rope_table(sequence, width, base)?;
        }
        Ok(())
    }

    fn rope_table(&mut self, sequence: u64, width: u64, base: u64) -> Result<Address, CardError> {
        if let Some(table) = self.rope.get(&(sequence, width, base)) {
            return Ok(table.at());
        }
        let table = rope::table::<f32>(sequence, width, base);
        let bytes: Vec<u8> =
            table.iter().flat_map(|(sine, cosine)| [*sine, *cosine]).flat_map(f32::to_ne_bytes).collect();
        let table = self.rope.entry((sequence, width, base)).or_insert(Memory::holding(&self.card, &bytes)?);
        Ok(table.at())
    }

    /// The order of the experts' tokens, of as many experts as `arrivals` counts: waits for the choice.
    pub(super) fn order(&self, chosen: &Place<'_>, arrivals: &Place<'_>) -> Result<experts::Order, CardError> {
        Ok(experts::Order::new(&self.numbers(chosen)?, arrivals.elements() as usize))
    }

    /// By expert of `experts`: its rows. Waits for the dispatch.
    fn rows_of_experts(&self, arrivals: &Place<'_>, experts: u64) -> Result<Vec<Range<usize>>, CardError> {
        Ok(experts::Arrivals::new(&self.numbers(arrivals)?, experts as usize).rows())
    }

    /// Whole numbers from the card. Waits for them.
    pub(super) fn numbers(&self, place: &Place<'_>) -> Result<Vec<i32>, CardError> {
        let mut bytes = vec![0; 4 * place.elements() as usize];
        self.card.read(Address(place.at()), &mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        Ok(numbers.iter().map(|number| i32::from_ne_bytes(*number)).collect())
    }

    /// Writes whole numbers to the card.
    pub(super) fn write_numbers(
        &self,
        to: &Place<'_>,
        numbers: impl IntoIterator<Item = i32>,
    ) -> Result<(), CardError> {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_ne_bytes).collect();
        self.card.write(Address(to.at()), &bytes)
    }

    /// The places of copies, on the card. Given back behind the work that is queued by then.
    fn places(&self, order: &experts::Order) -> Result<Memory, CardError> {
        let bytes = place_bytes(&order.places);
        let memory = Memory::held(&self.card, bytes.len() as Bytes, Held::Briefly)?;
        self.card.write(memory.at(), &bytes)?;
        Ok(memory)
    }

    /// Each token's row of so many columns to its copies' places, from the first of a pair to the second; and where there are
    /// `weights`, each copy's to its place.
    pub(super) fn spread(
        &self,
        copies: Copies,
        columns: u64,
        rows: (Strided, Strided),
        weights: Option<(Strided, Strided)>,
    ) -> Result<(), CardError> {
        let size = [copies.count, columns];
        self.over_rows("dispatch", copies.format, size, of_copies(&copies, columns, rows, weights))
    }

    /// For each token the sum of its copies among rows of so many columns, from the first of a pair to the second; and where
    /// there are `shares`, what those of the copies' rows are, by copy.
    pub(super) fn gather(
        &self,
        copies: Copies,
        columns: u64,
        rows: (Strided, Strided),
        shares: Option<(Strided, Strided)>,
    ) -> Result<(), CardError> {
        let size = [copies.count / copies.active, columns];
        self.over_rows("combine", copies.format, size, of_copies(&copies, columns, rows, shares))
    }

    /// Sets the rows behind the first `filled` to 0.
    pub(super) fn clear_behind(&self, rows: &Place<'_>, filled: u64) -> Result<(), CardError> {
        let row = rows.columns() * rows.format().bytes();
        self.card.zero(Address(rows.at() + filled * row), (rows.rows() - filled) * row)
    }

    fn expert_matmul(&self, transpose: bool, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let of_experts = self.rows_of_experts(&inputs[2], inputs[1].rows())?;
        // Rows beyond those of all experts are nobody's.
        self.clear_behind(&outputs[0], of_experts.last().map_or(0, |rows| rows.end) as u64)?;
        (0..).zip(of_experts).try_for_each(|(expert, rows)| {
            let product = matrices::of_expert(transpose, expert, rows, inputs, outputs);
            product.map_or(Ok(()), |product| self.card.product(&product))
        })
    }

    fn expert_matmul_grad(&self, inputs: &[Place<'_>], outputs: &[Place<'_>]) -> Result<(), CardError> {
        let of_experts = self.rows_of_experts(&inputs[2], outputs[0].rows())?;
        (0..).zip(of_experts).try_for_each(|(expert, rows)| {
            let product = matrices::of_expert_grad(expert, rows, inputs, outputs);
            product.map_or(Ok(()), |product| self.card.product(&product))
        })
    }

    /// The kernel of attention for `spread`, which holds so many small tiles, or so many on tensor cores.
    fn attention_kernel(
        &self,
        name: &str,
        spread: &Spread,
        format: Format,
        small: Tiles,
        tensor: TensorTiles,
    ) -> Result<AttentionKernel, CardError> {
        let widths = (spread.heads.width, spread.value_width);
        let limit = u64::from(self.card.shared_bytes());
        let ways = [TensorWay::by_group(widths, tensor.is_grad), TensorWay::by_warp(widths)];
        for way in ways.into_iter().flatten().filter(|_| format == Format::Bf16) {
            let name = attention_name(way.name, name, widths);
            if (way.is_everywhere || self.by_group && self.card.has(&name))
                && let Some((buffers, shared)) = tensor.buffers(&way, widths, limit)
            {
                let (rows, threads) = (way.rows, 2 * way.rows as u32);
                return Ok(AttentionKernel { name, rows, threads, shared, buffers, apart: way.apart });
            }
        }
        let shared = SMALL_TILE * (small.0 * (widths.0 | 1) + small.1 * (widths.1 | 1)) * 4;
        // Beside it, two tiles of scores that the kernel declares itself.
        let limit = limit.saturating_sub(2 * SMALL_TILE * SCORES * 4);
        if shared > limit {
            let width = widths.0;
            let reason = format!("heads {width} wide need {shared} bytes of shared memory, and the card has {limit}");
            return Err(CardError::call(name, reason));
        }
        let name = format!("{name}_{}", format.suffix());
        Ok(AttentionKernel { name, rows: SMALL_TILE, threads: 256, shared, buffers: 1, apart: false })
    }

    /// Starts `kernel` for so many `heads`.
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

    /// Attention at one meeting. `buffers`: q, k, v, o, l.
    ///
    /// # Errors
    /// [`CardError`].
    pub(super) fn attention(&self, spread: &Spread, meeting: &Meeting, buffers: &[u64; 5]) -> Result<(), CardError> {
        let tensor = TensorTiles { stay: (1, 0), stream: (1, 1), is_grad: false };
        let kernel = self.attention_kernel("attention", spread, meeting.format, (2, 2), tensor)?;
        self.launch_attention(kernel, spread, meeting, spread.heads.query, buffers)
    }

    /// The gradient for the queries of one meeting. `buffers`: do, q, k, v, o, l, dq, and where [`of_rows`] go.
    ///
    /// # Errors
    /// [`CardError`].
    pub(super) fn attention_grad_query(
        &self,
        spread: &Spread,
        meeting: &Meeting,
        buffers: &[u64; 8],
    ) -> Result<(), CardError> {
        let tiles = TensorTiles { stay: (1, 1), stream: (1, 1), is_grad: true };
        let kernel = self.attention_kernel("attention_grad_query", spread, meeting.format, (3, 2), tiles)?;
        self.launch_attention(kernel, spread, meeting, spread.heads.query, buffers)
    }

    /// The gradients for the keys and values of one meeting, behind that for its queries. `buffers`: do, q, k, v, o, l, dk, dv,
    /// and [`of_rows`].
    ///
    /// # Errors
    /// [`CardError`].
    pub(super) fn attention_grad_key(
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
    pub(super) fn of_rows(&self, spread: &Spread, rows: u64, format: Format) -> Result<Option<Memory>, CardError> {
        let bytes = of_rows(&spread.heads, rows, format);
        bytes.map(|bytes| Memory::held(&self.card, bytes, Held::Briefly)).transpose()
    }

    /// Sets what lies beyond each position of the squares in `scores`.
    fn hide_later(&self, scores: &Place<'_>, value: f32) -> Result<(), CardError> {
        let [rows, columns] = [scores.rows(), scores.columns()];
        let args = args(&[scores.at()], &[columns], &[value]);
        self.over_rows("hide_later", scores.format(), [rows, columns], args)
    }
}

/// Sequences, widths and bases of the angles that `graphs` turn by, each once: for each a table of [`rope_bytes`].
pub fn rope_tables<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> BTreeSet<(u64, u64, u64)> {
    let table = |kernel| match kernel {
        Kernel::Rope { sequence, width, base, .. } => Some((sequence, width, base)),
        Kernel::RopeTail { sequence, tail, base, .. } => Some((sequence, tail, base)),
        _ => None,
    };
    graphs.into_iter().flat_map(|graph| graph.operators.iter().filter_map(move |of| table(of.kernel))).collect()
}

/// A sine and a cosine for each position and pair of columns.
pub fn rope_bytes((sequence, width, _): (u64, u64, u64)) -> Bytes {
    sequence * (width / 2) * 2 * 4
}

fn scale(heads: &Heads) -> f32 {
    heads.scale() as f32
}

/// Whether scores are each by themselves, and whether those chosen are divided by their sum; what weights are multiplied with.
fn of_routing(routing: Routing) -> ([u64; 2], f32) {
    let flags = [routing.scores == Scores::Sigmoid, routing.normed].map(u64::from);
    (flags, routing.factor.map_or(1.0, of_e12) as f32)
}

/// What is added to the weight of a norm.
const fn one_more(offset: bool) -> f32 {
    if offset { 1.0 } else { 0.0 }
}

/// Attention of one device over whole sequences.
const fn alone(heads: &Heads) -> Spread {
    Spread { heads: *heads, value_width: heads.width, ways: 1, window: heads.sequence }
}

/// Which rows of queries meet which of keys, as many in each of some sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
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
    pub(super) fn of_whole(rows: u64, sequence: u64, format: Format) -> Meeting {
        Meeting { format, sequences: rows / sequence, step: sequence, rows: sequence, lead: 0, adds: false }
    }
}

/// Tiles of keys' width, and of values'.
type Tiles = (u64, u64);

/// How the warps of an attention kernel on tensor cores multiply.
struct TensorWay {
    /// The beginning of its kernels' names.
    name: &'static str,
    /// Whether all cards have it.
    is_everywhere: bool,
    /// Rows of a block, two threads each.
    rows: u64,
    /// Columns more that each row has in shared memory.
    more: u64,
    /// Blocks of a multiprocessor that the registers allow at least.
    blocks: u64,
    /// Whether gradients of keys and of values are made apart.
    apart: bool,
}

impl TensorWay {
    /// Each warp for itself.
    fn by_warp(widths: (u64, u64)) -> Option<TensorWay> {
        let apart = APART[0].contains(&widths);
        let way = TensorWay { name: "tensor", is_everywhere: true, rows: 64, more: 8, blocks: 2, apart };
        TENSOR_WIDTHS.contains(&widths).then_some(way)
    }

    /// Four warps at a time, where the card can.
    fn by_group(widths: (u64, u64), is_grad: bool) -> Option<TensorWay> {
        let (_, groups) = GROUP_WIDTHS.into_iter().find(|(of, _)| *of == widths)?;
        let (rows, apart) = (64 * if is_grad { 2 } else { groups }, APART[1].contains(&widths));
        Some(TensorWay { name: "group", is_everywhere: false, rows, more: 0, blocks: 1, apart })
    }
}

/// What a block of an attention kernel on tensor cores holds in shared memory.
#[derive(Clone, Copy)]
struct TensorTiles {
    /// From its start to its end.
    stay: Tiles,
    /// One after the other.
    stream: Tiles,
    /// Of a gradient.
    is_grad: bool,
}

impl TensorTiles {
    /// Buffers of what streams, and bytes of all, on a card that gives a block at most `limit`; nothing where one does not
    /// fit. Two, so that the next tiles come while one is computed with, where no fewer blocks run on a multiprocessor for it
    /// than the registers allow. Attention by warps has another way to see to that.
    fn buffers(self, way: &TensorWay, (width, value): (u64, u64), limit: u64) -> Option<(u64, u64)> {
        let bytes =
            |rows: u64, tiles: Tiles| rows * (tiles.0 * (width + way.more) + tiles.1 * (value + way.more)) * 2;
        // What a kernel notes of rows, which it declares itself.
        let rows = 2 * TILE * 8;
        let [once, twice] = [1, 2].map(|buffers| bytes(way.rows, self.stay) + buffers * bytes(TILE, self.stream));
        let blocks = |bytes: u64| {
            if bytes + rows > limit { 0 } else { (limit + KEPT_OF_BLOCK) / (bytes + rows + KEPT_OF_BLOCK) }
        };
        match blocks(once) {
            0 => None,
            fitting if (self.is_grad || !way.is_everywhere) && blocks(twice) >= fitting.min(way.blocks) => {
                Some((2, twice))
            }
            _ => Some((1, once)),
        }
    }
}

/// A kernel of attention, and how it is started.
struct AttentionKernel {
    name: String,
    /// Rows of a block.
    rows: u64,
    threads: u32,
    /// Bytes of shared memory.
    shared: u64,
    /// Buffers of what streams.
    buffers: u64,
    /// Whether the gradients of values have a kernel of their own.
    apart: bool,
}
