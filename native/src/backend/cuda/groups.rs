//! Whether a card's kernels of attention by groups of warps give what those by warps give. They are the ones that need most
//! of what one kind of card alone has, so they are tried out before anything counts on them: a run goes on without them.

use std::sync::Arc;

use pipeplan_core::graph::{Heads, Spread};

use super::card::{Card, CardError, Format, Memory};
use super::launch::{Context, GROUP_WIDTHS, Meeting};
use super::{packed, unpacked};

/// The variable that lets a process go without them, untried, where it says `warps`: for a card that an attempt would break.
pub const VARIABLE: &str = "PIPEPLAN_ATTENTION";

/// Whether this process is to go without them.
///
/// # Errors
/// Another word than the variable knows.
pub(super) fn are_left() -> Result<bool, CardError> {
    match std::env::var_os(VARIABLE) {
        None => Ok(false),
        Some(word) if word == "warps" => Ok(true),
        Some(word) => {
            let what = format!("it is `{}`; set it to `warps`, or not at all", word.display());
            Err(CardError::call(format!("reading {VARIABLE}"), what))
        }
    }
}

/// Rows of a sequence: of more blocks than one, the last not full.
const SEQUENCE: u64 = 200;
/// Heads of queries, and of keys.
const HEADS: [u64; 2] = [2, 1];
/// What bf16 may make of the same sums in another order, relative to all of a tensor.
const MOST: f64 = 2e-2;

/// Runs both on `card`, for all widths that it has by groups, and compares.
///
/// # Errors
/// What differs, or cannot be run.
pub fn try_out(card: &Arc<dyn Card>) -> Result<(), CardError> {
    let has = |(width, value_width): (u64, u64)| card.has(&format!("group_attention_{width}_{value_width}"));
    for (width, value_width) in GROUP_WIDTHS.map(|(widths, _)| widths).into_iter().filter(|widths| has(*widths)) {
        let spread = Spread { heads: Heads::usual(SEQUENCE, HEADS, width), value_width, ways: 1, window: SEQUENCE };
        let [by_group, by_warp] = [true, false].map(|by_group| made(card, &spread, by_group));
        for ((name, ours), (_, theirs)) in by_group?.into_iter().zip(by_warp?) {
            let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
            let [ours, theirs] = [ours, theirs].map(|values| values.into_iter().map(f64::from).collect::<Vec<_>>());
            let differs = squares(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b));
            let error = differs / squares(&mut theirs.iter().copied());
            if error.is_nan() || error > MOST {
                let what = format!("{name} of heads {width} and {value_width} wide differ by {error:.1e}");
                return Err(CardError::call("attention by groups of warps", what));
            }
        }
    }
    Ok(())
}

/// What attention and its gradient make of some numbers.
fn made(card: &Arc<dyn Card>, spread: &Spread, by_group: bool) -> Result<Vec<(&'static str, Vec<f32>)>, CardError> {
    let mut context = Context::new(Arc::clone(card));
    context.by_group = by_group;
    let meeting = Meeting::of_whole(SEQUENCE, SEQUENCE, Format::Bf16);
    let of = |heads: u64, width: u64| (SEQUENCE * heads * width) as usize;
    let mut seed = 1u32;
    let mut some = |count: usize| -> Result<Memory, CardError> {
        let draw = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as f32 / 32_768.0 - 1.0
        };
        Memory::holding(card, &packed(&(0..count).map(draw).collect::<Vec<_>>(), Format::Bf16))
    };
    let [queries, keys] = HEADS;
    let (width, value_width) = (spread.heads.width, spread.value_width);
    let (q, k, v) = (some(of(queries, width))?, some(of(keys, width))?, some(of(keys, value_width))?);
    let d_o = some(of(queries, value_width))?;
    let zeros = |like: &Memory| Memory::zeros(card, like.bytes());
    let (o, dq, dk, dv) = (zeros(&d_o)?, zeros(&q)?, zeros(&k)?, zeros(&v)?);
    let l = Memory::zeros(card, 4 * SEQUENCE * queries)?;
    let at = |memory: &Memory| memory.at().number();
    context.attention(spread, &meeting, &[at(&q), at(&k), at(&v), at(&o), at(&l)])?;
    let noted = context.of_rows(spread, SEQUENCE, Format::Bf16)?;
    let noted = noted.as_ref().map_or(0, at);
    let [d_o, q, k, v, out, sums] = [&d_o, &q, &k, &v, &o, &l].map(at);
    context.attention_grad_query(spread, &meeting, &[d_o, q, k, v, out, sums, at(&dq), noted])?;
    context.attention_grad_key(spread, &meeting, &[d_o, q, k, v, out, sums, at(&dk), at(&dv), noted])?;
    let read = |name, memory: &Memory, format| Ok((name, unpacked(&memory.read()?, format)));
    Ok(vec![
        read("outputs", &o, Format::Bf16)?,
        read("log-sum-exps", &l, Format::F32)?,
        read("gradients of queries", &dq, Format::Bf16)?,
        read("gradients of keys", &dk, Format::Bf16)?,
        read("gradients of values", &dv, Format::Bf16)?,
    ])
}
