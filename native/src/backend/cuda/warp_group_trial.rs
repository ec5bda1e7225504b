//! Whether a card's kernels of attention by groups of warps give what those by warps give. They are the ones that need most
//! of what one kind of card alone has, so they are tried out before anything counts on them: a run goes on without them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pipeplan_core::graph::{Heads, Spread};

use super::card::{Card, CardError, Format, Memory};
use super::launch::{Context, GROUP_WIDTHS, Meeting, group_kernels};
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
            let what = format!("it is `{}`; set it to `warps` or unset it", word.display());
            Err(CardError::call(format!("reading {VARIABLE}"), what))
        }
    }
}

/// What to do where an attempt has broken more than itself.
pub fn advice() -> String {
    format!("{VARIABLE}=warps in the environment turns off attention by warp groups (wgmma)")
}

/// Why a card goes without them.
#[derive(Debug)]
pub enum Unfit {
    /// They give other results, or cannot be run.
    Differ(CardError),
    /// They do not end, and whatever comes behind them on the card waits.
    Stand(CardError),
}

impl From<CardError> for Unfit {
    fn from(error: CardError) -> Unfit {
        Unfit::Differ(error)
    }
}

/// How long the kernels of one width may take: milliseconds, but for a checker of memory or others on the card.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What failed, for people.
const ATTEMPT: &str = "testing attention by warp groups (wgmma)";

/// What bf16 may make of the same sums in another order, relative to all of a tensor.
pub const MOST: f64 = 2e-2;

/// What attention is tried out on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a sequence.
    pub rows: u64,
    /// Sequences.
    pub sequences: u64,
    /// Heads of queries, and of keys.
    pub heads: [u64; 2],
    /// Tokens back to which each token looks.
    pub window: u64,
    /// What scores are capped by, in units of 10⁻¹².
    pub cap_e12: Option<u64>,
}

impl Shape {
    /// What a process tries when it opens a card: enough blocks for half of its multiprocessors, of many tiles each,
    /// the last not
    /// full.
    pub(super) const FIRST: Shape = Shape { rows: 1000, sequences: 1, heads: [8, 2], window: 1000, cap_e12: None };

    fn spread(&self, (width, value_width): (u64, u64)) -> Spread {
        let heads = Heads { cap_e12: self.cap_e12, ..Heads::usual(self.rows, self.heads, width) };
        Spread { heads, value_width, ways: 1, window: self.window }
    }
}

/// The widths, of keys and of values, for which `card` has them.
pub fn widths(card: &Arc<dyn Card>) -> Vec<(u64, u64)> {
    // All are asked for, so that none of them is loaded later, behind a kernel that may not end.
    let has = |widths: &(u64, u64)| group_kernels(*widths).iter().filter(|name| !card.has(name)).count() == 0;
    GROUP_WIDTHS.map(|(widths, _)| widths).into_iter().filter(has).collect()
}

/// Runs both on `card`, for all widths that it has by groups, and compares; each within `patience`.
///
/// # Errors
/// [`Unfit`].
pub fn try_out(card: &Arc<dyn Card>, shape: &Shape, patience: Duration) -> Result<(), Unfit> {
    for widths in widths(card) {
        let by_group = made(card, shape, widths, true, patience)?;
        let by_warp = made(card, shape, widths, false, patience)?;
        for ((name, ours), (_, theirs)) in by_group.iter().zip(&by_warp) {
            let error = relative(ours, theirs);
            if error.is_nan() || error > MOST {
                let what = format!("{name} of heads {} and {} wide differ by {error:.1e}", widths.0, widths.1);
                return Err(CardError::call(ATTEMPT, what).into());
            }
        }
    }
    Ok(())
}

/// ‖a − b‖ / ‖b‖.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let differ = squares(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    differ / squares(&mut b.iter().map(|b| f64::from(*b)))
}

/// What was found of one width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The greatest error of a tensor, compared with attention by warps.
    pub error: f64,
    /// Whether the same came out twice, bit for bit.
    pub repeats: bool,
}

/// As [`try_out`] for one of the [widths], and once more by groups.
///
/// # Errors
/// [`CardError`], also where one does not end within `patience`.
pub fn compare(
    card: &Arc<dyn Card>,
    shape: &Shape,
    widths: (u64, u64),
    patience: Duration,
) -> Result<Found, CardError> {
    let made = |by_group| {
        made(card, shape, widths, by_group, patience).map_err(|unfit| match unfit {
            Unfit::Differ(error) | Unfit::Stand(error) => error,
        })
    };
    let (by_group, again) = (made(true)?, made(true)?);
    let by_warp = made(false)?;
    let errors = by_group.iter().zip(&by_warp).map(|((_, ours), (_, theirs))| relative(ours, theirs));
    // No number is worse than any.
    let error = errors.fold(0.0, |most: f64, error| if error.is_nan() { f64::INFINITY } else { most.max(error) });
    let bits = |made: &Made| made.iter().flat_map(|(_, tensor)| tensor).map(|x| x.to_bits()).collect::<Vec<_>>();
    Ok(Found { error, repeats: bits(&by_group) == bits(&again) })
}

/// Tensors with their names.
type Made = Vec<(&'static str, Vec<f32>)>;

/// What attention and its gradient make of some numbers.
fn made(
    card: &Arc<dyn Card>,
    shape: &Shape,
    widths: (u64, u64),
    by_group: bool,
    patience: Duration,
) -> Result<Made, Unfit> {
    let spread = &shape.spread(widths);
    let mut context = Context::new(Arc::clone(card));
    context.by_group = by_group;
    let rows = shape.sequences * shape.rows;
    let meeting = Meeting::of_whole(rows, shape.rows, Format::Bf16);
    let of = |heads: u64, width: u64| (rows * heads * width) as usize;
    let mut seed = 1u32;
    let mut some = |count: usize| -> Result<Memory, CardError> {
        let draw = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as f32 / 32_768.0 - 1.0
        };
        Memory::holding(card, &packed(&(0..count).map(draw).collect::<Vec<_>>(), Format::Bf16))
    };
    let [queries, keys] = shape.heads;
    let (width, value_width) = widths;
    let (q, k, v) = (some(of(queries, width))?, some(of(keys, width))?, some(of(keys, value_width))?);
    let d_o = some(of(queries, value_width))?;
    let zeros = |like: &Memory| Memory::zeros(card, like.bytes());
    let (o, dq, dk, dv) = (zeros(&d_o)?, zeros(&q)?, zeros(&k)?, zeros(&v)?);
    let l = Memory::zeros(card, 4 * rows * queries)?;
    let at = |memory: &Memory| memory.at().number();
    // A card that gives memory may wait for what runs there.
    let noted = context.of_rows(spread, rows, Format::Bf16)?;
    let noted = noted.as_ref().map_or(0, at);
    context.attention(spread, &meeting, &[at(&q), at(&k), at(&v), at(&o), at(&l)])?;
    let [d_o, q, k, v, out, sums] = [&d_o, &q, &k, &v, &o, &l].map(at);
    context.attention_grad_query(spread, &meeting, &[d_o, q, k, v, out, sums, at(&dq), noted])?;
    context.attention_grad_key(spread, &meeting, &[d_o, q, k, v, out, sums, at(&dk), at(&dv), noted])?;
    // Reading would wait for ever.
    let (mark, until) = (card.mark()?, Instant::now() + patience);
    while !mark.is_past()? {
        if Instant::now() >= until {
            let what = format!("it has not ended within {} s", patience.as_secs_f64());
            return Err(Unfit::Stand(CardError::call(ATTEMPT, what)));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let read = |name, memory: &Memory, format| Ok::<_, CardError>((name, unpacked(&memory.read()?, format)));
    Ok(vec![
        read("outputs", &o, Format::Bf16)?,
        read("log-sum-exps", &l, Format::F32)?,
        read("gradients of queries", &dq, Format::Bf16)?,
        read("gradients of keys", &dk, Format::Bf16)?,
        read("gradients of values", &dv, Format::Bf16)?,
    ])
}
