//! Which attention kernel suits the widths of the heads and the shared memory of the card.

use pipeplan_core::graph::Spread;

use super::Context;
use crate::backend::cuda::card::{CardError, Format};

/// Rows of a tile of `attention.cu`.
const SMALL_TILE: u64 = 32;

/// Floats of a row of scores there.
const SCORES: u64 = SMALL_TILE + 8;

/// Rows of what is streamed in `attention_tensor.cu`.
const TILE: u64 = 64;

/// Widths of keys and of values that `attention_tensor.cu` is compiled for.
const TENSOR_WIDTHS: [(u64, u64); 6] = [(32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256)];

/// The same of `attention_groups.cu`, and how many groups of warps a block of attention has; of its gradients, two.
pub(crate) const GROUP_WIDTHS: [((u64, u64), u64); 4] =
    [((64, 64), 2), ((128, 128), 3), ((192, 128), 3), ((256, 256), 2)];

/// Widths whose gradients of keys and of values are made by two kernels: one has no registers for both. By warp, and
/// by group.
const APART: [&[(u64, u64)]; 2] = [&[(256, 256)], &[(192, 128), (256, 256)]];

/// The kernels of attention by groups of warps for these widths.
pub(crate) fn group_kernels(widths: (u64, u64)) -> Vec<String> {
    let of_values = APART[1].contains(&widths).then_some("attention_grad_value");
    let names = ["attention", "attention_grad_query", "attention_grad_key"].into_iter().chain(of_values);
    names.map(|name| attention_name("group", name, widths)).collect()
}

fn attention_name(way: &str, name: &str, (width, value_width): (u64, u64)) -> String {
    format!("{way}_{name}_{width}_{value_width}")
}

/// Shared memory that a card keeps of each block's.
const KEPT_OF_BLOCK: u64 = 1 << 10;

/// Tiles of keys' width, and of values'.
type Tiles = (u64, u64);

/// How the warps of an attention kernel on tensor cores multiply.
struct TensorWay {
    /// The beginning of its kernels' names.
    pub(super) name: &'static str,
    /// Whether all cards have it.
    is_everywhere: bool,
    /// Rows of a block, two threads each.
    pub(super) rows: u64,
    /// Columns more that each row has in shared memory.
    more: u64,
    /// Blocks of a multiprocessor that the registers allow at least.
    pub(super) blocks: u64,
    /// Whether gradients of keys and of values are made apart.
    pub(super) apart: bool,
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
pub(super) struct TensorTiles {
    /// From its start to its end.
    pub(super) stay: Tiles,
    /// One after the other.
    pub(super) stream: Tiles,
    /// Of a gradient.
    pub(super) is_grad: bool,
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
pub(super) struct AttentionKernel {
    pub(super) name: String,
    /// Rows of a block.
    pub(super) rows: u64,
    pub(super) threads: u32,
    /// Bytes of shared memory.
    pub(super) shared: u64,
    /// Buffers of what streams.
    pub(super) buffers: u64,
    /// Whether the gradients of values have their own kernel.
    pub(super) apart: bool,
}

impl Context {
    /// The attention kernel for `spread`, with its number of small tiles, or of tiles on tensor cores.
    pub(super) fn attention_kernel(
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
}
