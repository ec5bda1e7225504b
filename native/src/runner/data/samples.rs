//! Samples by their number: which window of which source each is, and how it is read.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::places::{Placed, Places};
use super::{DataError, MASKED, Source, locked};
use crate::runner::random::SplitMix64;

/// Samples after which a blend of sources repeats its pattern: shares are exact to one in so many.
pub const SLOTS: u64 = 10_000;

/// Windows whose order is a list; of more it is worked out sample by sample, so that no memory grows with the data.
const MOST_LISTED: u64 = 1 << 24;

/// The windows of a source that samples are taken from.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) source: Arc<Source>,
    /// The first one, and how many.
    pub(super) first: u64,
    pub(super) count: u64,
    /// What its order is called: sources do not share theirs.
    pub(super) name: String,
    /// Orders of the epochs asked for last: around the end of one, two are asked for.
    pub(super) orders: Mutex<Vec<(u64, Arc<Vec<u32>>)>>,
}

impl Windows {
    pub(super) fn new(source: &Arc<Source>, windows: Range<u64>, number: usize) -> Windows {
        let name = if number == 0 { "data order".to_string() } else { format!("data order {number}") };
        let (first, count) = (windows.start, windows.end - windows.start);
        Windows { source: Arc::clone(source), first, count, name, orders: Mutex::default() }
    }

    /// The window that is taken as sample `sample` of this source.
    pub(super) fn window(&self, seed: u64, sample: u64) -> u64 {
        let (epoch, at) = (sample / self.count, sample % self.count);
        let mut random = SplitMix64::named(seed.wrapping_add(epoch), &self.name);
        if self.count > MOST_LISTED {
            return self.first + permuted(random.draw(), self.count, at);
        }
        let mut orders = locked(&self.orders);
        if !orders.iter().any(|(known, _)| *known == epoch) {
            let mut order: Vec<u32> = (0..self.count as u32).collect();
            random.shuffle(&mut order);
            orders.truncate(1);
            orders.insert(0, (epoch, Arc::new(order)));
        }
        let order = orders.iter().find(|(known, _)| *known == epoch).map(|(_, order)| Arc::clone(order));
        self.first + order.map_or(at, |order| order[at as usize].into())
    }
}

/// Where `at` comes in an order of `count` numbers: a network of Feistel over the next power of four, walked until it is below
/// `count` (Black and Rogaway: “Ciphers with arbitrary finite domains”, 2002).
pub(super) fn permuted(seed: u64, count: u64, at: u64) -> u64 {
    const ROUNDS: u64 = 6;
    let half = (u64::BITS - count.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let mut place = at;
    loop {
        let (mut left, mut right) = (place >> half, place & mask);
        for round in 0..ROUNDS {
            let mixed = SplitMix64::new(seed ^ (right * ROUNDS + round)).draw() & mask;
            (left, right) = (right, left ^ mixed);
        }
        place = left << half | right;
        if place < count {
            return place;
        }
    }
}

/// Samples of one or several sources by their number.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) windows: Vec<Windows>,
    /// Of [`SLOTS`] samples: the source of each, and which of the source's it is; empty for one source.
    pub(super) slots: Vec<(u32, u32)>,
    /// How many of them each source has.
    pub(super) counts: Vec<u32>,
    pub(super) sequence: usize,
    pub(super) ahead: usize,
    pub(super) seed: u64,
    pub(super) vocabulary: u64,
    /// Where attention stays within documents, the places of microbatches.
    pub(super) within: Option<Arc<Places>>,
}
/// A sequence and the tokens behind it.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) tokens: Vec<u32>,
    /// Which of them are the first ones of documents; empty where attention does not stay within them.
    pub(super) firsts: Vec<usize>,
}

impl Window {
    /// Whether the token at `at` is to be predicted from the one before it.
    pub(super) fn predicts(&self, at: usize) -> bool {
        self.tokens[at] & MASKED == 0 && self.firsts.binary_search(&at).is_err()
    }
}

/// `SLOTS` samples, each source as often as its share says and as evenly as can be: the one that is furthest behind comes next.
pub(super) fn blend(shares: &[f64]) -> (Vec<(u32, u32)>, Vec<u32>) {
    let mut counts = vec![0u32; shares.len()];
    if shares.len() < 2 {
        return (Vec::new(), counts);
    }
    let mut slots = Vec::with_capacity(SLOTS as usize);
    for slot in 1..=SLOTS {
        let behind = |at: usize| shares[at] * slot as f64 - f64::from(counts[at]);
        let next = (0..shares.len()).fold(0, |best, at| if behind(at) > behind(best) { at } else { best });
        slots.push((next as u32, counts[next]));
        counts[next] += 1;
    }
    (slots, counts)
}

impl Samples {
    /// The window of a sample, and its source.
    pub(super) fn place(&self, sample: u64) -> (&Windows, u64) {
        let (source, number) = match self.slots.get((sample % SLOTS) as usize) {
            Some((source, before)) => {
                let source = *source as usize;
                (source, sample / SLOTS * u64::from(self.counts[source]) + u64::from(*before))
            }
            None => (0, sample),
        };
        let windows = &self.windows[source];
        (windows, windows.window(self.seed, number))
    }

    /// A sequence and the tokens behind it.
    pub(super) fn read(&self, sample: u64) -> Result<Window, DataError> {
        let (windows, window) = self.place(sample);
        let (start, count) = (window * self.sequence as u64, self.sequence + self.ahead);
        let tokens = windows.source.read(start, count, self.vocabulary)?;
        let firsts = if self.within.is_some() { windows.source.first_tokens(start, count)? } else { Vec::new() };
        Ok(Window { tokens, firsts })
    }

    /// Which microbatch, by the order of the data, takes which place of `step`; none where they come as they are.
    pub(super) fn placed(&self, step: u32) -> Result<Placed, DataError> {
        let Some(places) = &self.within else { return Ok(None) };
        let (count, size) = (places.count() as u64, places.microbatch_size);
        let work =
            |number: u32| samples_at(step, number, count, size).map(|sample| self.attention_work(sample)).sum();
        places.taken(work)
    }

    /// The squares of the lengths of a sample's documents, with which the work of attention grows.
    pub(super) fn attention_work(&self, sample: u64) -> Result<u64, DataError> {
        let (windows, window) = self.place(sample);
        let firsts = windows.source.first_tokens(window * self.sequence as u64, self.sequence)?;
        let ends = firsts.iter().copied().chain([self.sequence]);
        let (work, _) = ends.fold((0, 0), |(work, start), end| (work + ((end - start) as u64).pow(2), end));
        Ok(work)
    }

    /// How many tokens of a sample's sequence are to be predicted.
    pub(super) fn predicted(&self, sample: u64) -> Result<u64, DataError> {
        let (windows, window) = self.place(sample);
        if !windows.source.is_masked && self.within.is_some() {
            // All but the first ones of documents: their places alone are looked up, and no token is read.
            let firsts = windows.source.first_tokens(window * self.sequence as u64, self.sequence + self.ahead)?;
            let masked = firsts.iter().filter(|at| (1..=self.sequence).contains(*at)).count();
            return Ok((self.sequence - masked) as u64);
        }
        let window = self.read(sample)?;
        Ok((1..=self.sequence).filter(|at| window.predicts(*at)).count() as u64)
    }

    pub(super) fn is_masked(&self) -> bool {
        self.within.is_some() || self.windows.iter().any(|windows| windows.source.is_masked)
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.windows.iter().all(|windows| windows.source.is_in_memory())
    }

    pub(super) fn count(&self) -> u64 {
        self.windows.iter().map(|windows| windows.count).sum()
    }

    /// Reads what `samples` are, to find tokens that the model does not know: at most as many as take seconds.
    pub(super) fn check(&self, samples: Range<u64>) -> Result<(), DataError> {
        /// Some seconds.
        const MOST_TOKENS: u64 = 1 << 30;
        let all_fit = |windows: &Windows| match windows.source.width {
            crate::data::Width::U8 => self.vocabulary >= 1 << 8,
            crate::data::Width::U16 => self.vocabulary >= 1 << 16,
            _ => false,
        };
        if self.windows.iter().all(all_fit) {
            return Ok(());
        }
        let most = MOST_TOKENS / (self.sequence + self.ahead) as u64;
        let samples = samples.start..samples.end.min(samples.start.saturating_add(most.max(1)));
        if samples.end - samples.start >= self.count() && self.windows.len() == 1 {
            // Each window is taken.
            let windows = &self.windows[0];
            let (start, end) = (windows.first, windows.first + windows.count);
            return (start..end).try_for_each(|window| {
                let start = window * self.sequence as u64;
                windows.source.read(start, self.sequence + self.ahead, self.vocabulary).map(drop)
            });
        }
        samples.into_iter().try_for_each(|sample| self.read(sample).map(drop))
    }
}

/// The samples of microbatch `number` of a step of `microbatches`, each of `size` samples.
pub(super) fn samples_at(step: u32, number: u32, microbatches: u64, size: u64) -> Range<u64> {
    let before = u64::from(step) * microbatches + u64::from(number);
    before * size..(before + 1) * size
}
/// Whole sequences of a source.
pub(super) fn windows_of(source: &Source, sequence: usize, ahead: usize) -> Result<u64, DataError> {
    let needed = (sequence + ahead) as u64;
    if sequence == 0 || source.tokens < needed {
        return Err(match source.is_in_memory() {
            true => DataError::TooShort { bytes: source.tokens as usize, sequence, ahead },
            false => DataError::TooFew {
                path: source.path.clone(),
                tokens: source.tokens,
                for_what: "one sequence and what is predicted from it",
                needed,
            },
        });
    }
    Ok((source.tokens - ahead as u64) / sequence as u64)
}
