//! What matrix products and attention reach by their shapes, on devices whose multiprocessors are known.
//!
//! A product is cut into tiles that the multiprocessors take in waves: a last wave that is not full takes as long as a
//! full one (wave quantisation). Attention reaches the more of the rate the longer its sequences and the wider its
//! heads are, and the more blocks of queries the device has at once.
//!
//! The constants are fitted to an H100 under torch 2.11 (cuBLASLt and cuDNN, medians of CUDA events; products that take
//! over 40 µs). Of these the mean error is 5 % for the forward and for the gradient of the input, 4 % for that of the
//! weight, and 6 % in fp8; one rate for all, with a ramp for small products, had 18 to 21 %. The tests hold a part of
//! that table. Other devices have the same shares of their own rates.

use crate::base::units::Nanos;
use crate::hardware::cluster::Device;

/// Matrix products of one shape that one launch does: each `[rows, inner] · [inner, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Products {
    /// Products of this shape.
    pub count: u64,
    /// Rows of the result.
    pub rows: u64,
    /// Columns of the result.
    pub columns: u64,
    /// What is summed over.
    pub inner: u64,
}

/// Attention as a fused kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attends {
    /// Tokens that a query may see.
    pub keys: u64,
    /// Width of a head of the values.
    pub width: u64,
    /// Blocks of queries: of all sequences and heads.
    pub blocks: u64,
    /// Whether it is the gradient.
    pub backward: bool,
}

/// The shape of an operator that has a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One or two kinds of products, one after the other.
    Products([Products; 2]),
    /// Fused attention.
    Attends(Attends),
}

/// Queries of a block of attention.
pub(crate) const QUERY_BLOCK: u64 = 128;

/// Tiles of the result that a multiprocessor takes at once.
const TILES: [[u64; 2]; 3] = [[256, 128], [128, 256], [128, 128]];
/// Parts that the inner dimension may be cut into, whose sums are added up afterwards, in f32.
const CUTS: [u64; 4] = [1, 2, 4, 8];
/// The least inner dimension of such a part.
const LEAST_CUT: u64 = 256;
/// What a tile reaches of the best rate of large products ([`Device::matmul_permille`]), in thousandths.
const TILE_PER_MILLE: u64 = 900;
/// Before a tile's first product its operands come from memory.
const PROLOGUE_PS: u128 = 350_000;
/// Share of the time to write a wave's tiles, at the memory's rate, that does not run beside the next wave, in thousandths.
const WRITE_PER_MILLE: u128 = 560;
/// Bytes of an element that are written so. Gradients of weights that are summed in f32 take no longer: W of a stage on A100
/// (arXiv:2401.10241, table 9) is as long as with these.
const WRITTEN: u64 = 2;

/// Keys, and what attention over so many reaches of the device's rate in thousandths, forward and backward, with heads 128
/// wide and as many blocks as the device likes.
const ATTENTION: [(u64, [u64; 2]); 6] = [
    (512, [250, 180]),
    (1024, [395, 280]),
    (2048, [530, 380]),
    (4096, [550, 400]),
    (8192, [605, 510]),
    (32_768, [690, 620]),
];
/// Width of a head, and what it reaches of what heads 128 wide do.
const ATTENTION_BY_WIDTH: [(u64, [u64; 2]); 4] =
    [(16, [195, 210]), (64, [770, 830]), (128, [1000, 1000]), (192, [1090, 800])];
/// Share of the multiprocessors that stands still at the end of a kernel of attention, on average, in thousandths.
const ATTENTION_TAIL_PER_MILLE: u64 = 760;

/// The time of `products` at `rate` operations a second, which the device's largest products come near to in
/// [`Device::matmul_permille`] thousandths.
pub(crate) fn products_time(products: &Products, rate: u64, device: &Device) -> Nanos {
    let Products { count, rows, columns, inner } = *products;
    let units = u128::from(device.multiprocessors.max(1));
    let per_mille = u128::from(device.matmul_permille * TILE_PER_MILLE / 1000).max(1);
    let rate = u128::from(rate.max(1));
    let memory = u128::from(device.memory_bytes_per_s.max(1));
    let of_tile = |[high, wide]: [u64; 2], cut: u64| {
        let tiles = u128::from(rows.div_ceil(high)) * u128::from(columns.div_ceil(wide)) * u128::from(cut);
        let tiles = tiles.saturating_mul(count.into());
        let area = u128::from(high * wide);
        // In picoseconds. A multiprocessor has its share of the rate.
        let operations = (2 * area * u128::from(inner.div_ceil(cut))).saturating_mul(units * 1_000_000_000_000_000);
        let multiplies = operations / (rate * per_mille);
        let bytes = area * u128::from(if cut > 1 { 4 } else { WRITTEN });
        let writes = bytes * tiles.min(units) * (1_000_000_000 * WRITE_PER_MILLE) / memory;
        tiles.div_ceil(units).saturating_mul(multiplies + PROLOGUE_PS + writes)
    };
    let cuts = || CUTS.into_iter().filter(|cut| *cut == 1 || inner >= cut * LEAST_CUT);
    let least = TILES.into_iter().flat_map(|tile| cuts().map(move |cut| of_tile(tile, cut))).min().unwrap_or(0);
    Nanos::try_from(least.div_ceil(1000)).unwrap_or(Nanos::MAX)
}

/// What attention of this shape reaches of the device's rate, in thousandths.
pub(crate) fn attention_per_mille(attends: &Attends, device: &Device) -> u64 {
    let side = usize::from(attends.backward);
    let at_keys = between(&ATTENTION, attends.keys, side);
    let at_width = between(&ATTENTION_BY_WIDTH, attends.width, side);
    let blocks = attends.blocks.max(1).saturating_mul(1000);
    let idle = device.multiprocessors.saturating_mul(ATTENTION_TAIL_PER_MILLE);
    let share = u128::from(at_keys * at_width / 1000) * u128::from(blocks) / u128::from(blocks.saturating_add(idle));
    (share as u64).max(1)
}

/// The value of a table at `at`, on the line between its neighbours; beyond the ends that of the end.
fn between(table: &[(u64, [u64; 2])], at: u64, side: usize) -> u64 {
    let above = table.partition_point(|(key, _)| *key < at);
    let value = |at: usize| table.get(at).map(|(key, values)| (*key, values[side]));
    match (above.checked_sub(1).and_then(value), value(above)) {
        (Some((low, from)), Some((high, to))) => {
            let (from, to) = (from * (high - at), to * (at - low));
            (from + to) / (high - low)
        }
        (Some((_, end)), None) | (None, Some((_, end))) => end,
        (None, None) => 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::cluster;
    use crate::model::Dtype;
    use std::vec::Vec;

    fn h100() -> Device {
        cluster::find("h100").map(|entry| entry.device(Dtype::Bf16)).unwrap()
    }

    /// Rows, columns and inner dimension, and ns of `x · wᵀ` in bf16 on an H100 (torch 2.11): those of models' layers, and
    /// some that leave a last wave nearly empty.
    const BF16: [([u64; 3], u64); 22] = [
        ([512, 14336, 4096], 89_394),
        ([512, 28672, 8192], 321_136),
        ([1024, 4096, 4096], 47_444),
        ([1024, 14336, 4096], 158_990),
        ([1024, 8192, 8192], 192_887),
        ([2048, 4096, 4096], 98_229),
        ([2048, 14336, 4096], 338_864),
        ([2048, 4096, 14336], 347_456),
        ([2048, 1280, 8192], 63_356),
        ([2048, 128_256, 4096], 2_930_976),
        ([4096, 2048, 2048], 55_504),
        ([4096, 4096, 4096], 197_925),
        ([4096, 14336, 4096], 685_072),
        ([4096, 1024, 8192], 103_430),
        ([4096, 8192, 28672], 2_842_336),
        ([8192, 2048, 1024], 60_236),
        ([8192, 4096, 14336], 1_435_040),
        ([8192, 28672, 8192], 5_602_368),
        ([8192, 768, 2048], 45_541),
        ([16384, 4096, 512], 128_220),
        ([16384, 8192, 8192], 3_201_120),
        ([16384, 12288, 12288], 6_907_200),
    ];

    /// The same in fp8, whose results are bf16.
    const FP8: [([u64; 3], u64); 8] = [
        ([1024, 14336, 4096], 83_835),
        ([1024, 8192, 28672], 313_088),
        ([4096, 8192, 2048], 104_268),
        ([4096, 14336, 4096], 335_304),
        ([4096, 2048, 7168], 95_747),
        ([8192, 8192, 8192], 850_272),
        ([8192, 8192, 1024], 141_220),
        ([16384, 7168, 16384], 2_835_488),
    ];

    fn errors(table: &[([u64; 3], u64)], rate: u64) -> Vec<f64> {
        let error = |([rows, columns, inner], measured): &([u64; 3], u64)| {
            let products = Products { count: 1, rows: *rows, columns: *columns, inner: *inner };
            let ours = products_time(&products, rate, &h100());
            std::println!("{rows} x {columns} x {inner}: {ours} of {measured} ns");
            ours as f64 / *measured as f64 - 1.0
        };
        table.iter().map(error).collect()
    }

    #[test]
    fn products_take_what_was_measured() {
        let device = h100();
        for (table, rate, mean, most) in
            [(&BF16[..], device.matmul_flops, 0.07, 0.2), (&FP8[..], device.fp8_flops, 0.09, 0.14)]
        {
            let errors = errors(table, rate);
            let average = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
            let largest = errors.iter().map(|error| error.abs()).fold(0.0, f64::max);
            assert!(average < mean && largest < most, "{average} {largest}: {errors:?}");
        }
    }

    /// Batch, heads, width, sequence, and ns of the forward and the backward under the causal mask (cuDNN on an H100).
    const ATTENTIONS: [([u64; 4], [u64; 2]); 12] = [
        ([1, 16, 128, 4096], [156_480, 557_472]),
        ([1, 32, 128, 4096], [283_064, 968_608]),
        ([1, 32, 128, 8192], [994_688, 2_776_000]),
        ([1, 8, 128, 8192], [276_902, 890_080]),
        ([1, 8, 128, 32768], [3_372_544, 9_428_960]),
        ([4, 32, 128, 2048], [268_192, 1_043_968]),
        ([1, 32, 64, 4096], [188_485, 602_112]),
        ([8, 12, 64, 1024], [48_017, 172_373]),
        ([1, 16, 192, 4096], [208_768, 979_584]),
        ([1, 64, 64, 4096], [334_184, 1_060_960]),
        ([1, 96, 128, 2048], [207_285, 714_896]),
        ([1, 8, 128, 4096], [99_142, 323_573]),
    ];

    #[test]
    fn attention_takes_what_was_measured() {
        let device = h100();
        let mut errors = Vec::new();
        for ([batch, heads, width, sequence], measured) in ATTENTIONS {
            for (side, products) in [(0, 2.0), (1, 5.0)] {
                let blocks = batch * heads * sequence.div_ceil(QUERY_BLOCK);
                let attends = Attends { keys: sequence, width, blocks, backward: side == 1 };
                let pairs = (batch * heads * sequence) as f64 * (sequence + 1) as f64 / 2.0;
                let rate = device.matmul_flops as f64 * attention_per_mille(&attends, &device) as f64 / 1000.0;
                let ours = 2.0 * products * pairs * width as f64 / rate * 1e9;
                let error = ours / measured[side] as f64 - 1.0;
                std::println!("{batch} x {heads} x {width}, {sequence}, {side}: {:+.1} %", 100.0 * error);
                errors.push(error.abs());
            }
        }
        let average = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(average < 0.06 && errors.iter().all(|error| *error < 0.2), "{average}: {errors:?}");
    }

    /// More work never takes less, and one more row takes a wave more at most.
    #[test]
    fn more_rows_take_no_less() {
        let device = h100();
        let time = |rows, inner| {
            let products = Products { count: 1, rows, columns: 4096, inner };
            products_time(&products, device.matmul_flops, &device)
        };
        for rows in 1..64 {
            let (rows, more) = (rows * 96, rows * 96 + 96);
            assert!(time(rows, 4096) <= time(more, 4096), "{rows}");
            assert!(time(rows, 4096) <= time(rows, 4160), "{rows}");
        }
        let none = Products { count: 0, rows: 0, columns: 0, inner: 0 };
        assert_eq!(products_time(&none, 1, &device), 0);
        let all = u64::from(u32::MAX);
        let most = Products { count: all, rows: all, columns: all, inner: all };
        assert_eq!(products_time(&most, 1, &Device { multiprocessors: u64::from(u32::MAX), ..device }), Nanos::MAX);
    }
}
