//! Training data as ranks take it: sources cut into sequences, in an order that follows from the seed.
//!
//! A source is cut into windows of one sequence and the token after it, or as many as the model reads ahead: those are the
//! first of the next window, so that every token has all that is predicted from it. Documents follow each other, so a window
//! may hold the end of one and the start of the next. Each pass over a source (an epoch) takes all windows once, in an order
//! that follows from the seed. Step `t` takes the next `microbatches · microbatch_size` samples, microbatch `m` the `m`-th
//! `microbatch_size` of these: so a microbatch is the same data whatever the schedule, and a run that resumes after step `t`
//! goes on at the very next sample.
//!
//! Where attention stays within documents ([`Within`]), a window is cut where its documents begin, and the first token of a
//! document is not predicted from the end of the one before. Then microbatches of a step differ, and each takes the place that
//! the plan has for one like it: the one with the most work is where the plan has its longest, and so on. So what a step is
//! trained on stays the same, and its microbatches come in the order that was planned, to balanced replicas.
//!
//! Of several sources, [`SLOTS`] samples in a row take as many from each as its share says, spread evenly.
//!
//! Ranks read ahead: while they compute a step, a thread reads the samples of the next one. Where these cannot be read, the
//! run ends after the step, with its checkpoint ([`Batches::prepare`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pipeplan_core::graph::SequencePart;

use super::random::SplitMix64;
use crate::backend::documents::DocumentStarts;
use crate::data::argument::shares;
pub use crate::data::tokenizer::BYTE_VOCABULARY;
pub use crate::data::{DataError, MASKED, Source};
use crate::data::{START_OF_DIGEST, digest_of};

/// What a target is that is not to be predicted.
pub const IGNORED: i32 = -100;

/// Samples after which a blend of sources repeats its pattern: shares are exact to one in so many.
pub const SLOTS: u64 = 10_000;

/// Windows whose order is a list; of more it is worked out sample by sample, so that no memory grows with the data.
const MOST_LISTED: u64 = 1 << 24;

/// Samples to train on, and others to evaluate on.
#[derive(Debug, Default)]
pub struct Sources {
    /// To train on, each with its weight in the blend.
    pub training: Vec<(Arc<Source>, Option<f64>)>,
    /// To evaluate on, beside what is split off.
    pub validation: Vec<Arc<Source>>,
    /// The share of every source, its end, that is not trained on but evaluated on.
    pub split: f64,
    /// Why the run was ended, where data could not be read.
    failure: Mutex<Option<DataError>>,
}

impl Sources {
    /// These, of which all is trained on.
    pub fn new(training: Vec<(Arc<Source>, Option<f64>)>) -> Sources {
        Sources { training, ..Sources::default() }
    }

    /// One text, whose bytes are tokens.
    pub fn of_text(text: Vec<u8>) -> Sources {
        Sources::new(vec![(Arc::new(Source::of_text(text)), None)])
    }

    /// Why the run was ended, where data could not be read.
    pub fn failure(&self) -> Option<DataError> {
        locked(&self.failure).clone()
    }

    fn note(&self, error: DataError) {
        locked(&self.failure).get_or_insert(error);
    }

    fn digest(&self) -> Result<String, DataError> {
        if let ([(source, _)], true) = (&self.training[..], self.split == 0.0) {
            return Ok(format!("fnv1a64:{:016x}", source.digest()?));
        }
        let mut hash = self.split.to_bits().to_le_bytes().into_iter().fold(START_OF_DIGEST, digest_of);
        for (source, weight) in &self.training {
            let weight = weight.unwrap_or(0.0).to_bits();
            let parts = source.digest()?.to_le_bytes().into_iter().chain(weight.to_le_bytes());
            hash = parts.fold(hash, digest_of);
        }
        Ok(format!("fnv1a64:{hash:016x}"))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The windows of a source that samples are taken from.
#[derive(Debug)]
struct Windows {
    source: Arc<Source>,
    /// The first one, and how many.
    first: u64,
    count: u64,
    /// What its order is called: sources do not share theirs.
    name: String,
    /// Orders of the epochs asked for last: around the end of one, two are asked for.
    orders: Mutex<Vec<(u64, Arc<Vec<u32>>)>>,
}

impl Windows {
    fn new(source: &Arc<Source>, windows: Range<u64>, number: usize) -> Windows {
        let name = if number == 0 { "data order".to_string() } else { format!("data order {number}") };
        let (first, count) = (windows.start, windows.end - windows.start);
        Windows { source: Arc::clone(source), first, count, name, orders: Mutex::default() }
    }

    /// The window that is taken as sample `sample` of this source.
    fn window(&self, seed: u64, sample: u64) -> u64 {
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
fn permuted(seed: u64, count: u64, at: u64) -> u64 {
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
struct Samples {
    windows: Vec<Windows>,
    /// Of [`SLOTS`] samples: the source of each, and which of the source's it is; empty for one source.
    slots: Vec<(u32, u32)>,
    /// How many of them each source has.
    counts: Vec<u32>,
    sequence: usize,
    ahead: usize,
    seed: u64,
    vocabulary: u64,
    /// Where attention stays within documents, the places of microbatches.
    within: Option<Arc<Places>>,
}

/// Where attention stays within documents: which place each microbatch of a step takes.
#[derive(Debug)]
struct Places {
    /// For each place of a step, how many others have more planned work; empty where all have as much.
    ranks: Vec<u32>,
    microbatch_size: u64,
}

impl Places {
    fn new(within: &Within, [microbatch_size, microbatches]: [usize; 2]) -> Places {
        let planned = &within.planned;
        let mut by_work: Vec<u32> = (0..planned.len() as u32).collect();
        by_work.sort_by_key(|place| std::cmp::Reverse(planned[*place as usize]));
        let mut ranks = vec![0; planned.len()];
        by_work.iter().enumerate().for_each(|(rank, place)| ranks[*place as usize] = rank as u32);
        if planned.len() != microbatches || planned.iter().all(|work| *work == planned[0]) {
            ranks.clear();
        }
        Places { ranks, microbatch_size: microbatch_size as u64 }
    }
}

/// A sequence and the tokens behind it.
#[derive(Debug, Default)]
struct Window {
    tokens: Vec<u32>,
    /// Which of them are the first ones of documents; empty where attention does not stay within them.
    firsts: Vec<usize>,
}

impl Window {
    /// Whether the token at `at` is to be predicted from the one before it.
    fn predicts(&self, at: usize) -> bool {
        self.tokens[at] & MASKED == 0 && self.firsts.binary_search(&at).is_err()
    }
}

/// `SLOTS` samples, each source as often as its share says and as evenly as can be: the one that is furthest behind comes next.
fn blend(shares: &[f64]) -> (Vec<(u32, u32)>, Vec<u32>) {
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
    fn place(&self, sample: u64) -> (&Windows, u64) {
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
    fn read(&self, sample: u64) -> Result<Window, DataError> {
        let (windows, window) = self.place(sample);
        let (start, count) = (window * self.sequence as u64, self.sequence + self.ahead);
        let tokens = windows.source.read(start, count, self.vocabulary)?;
        let firsts = if self.within.is_some() { windows.source.first_tokens(start, count)? } else { Vec::new() };
        Ok(Window { tokens, firsts })
    }

    /// For each place of `step` the microbatch, by the order of the data, that takes it; none where they come as they are.
    fn placed(&self, step: u32) -> Result<Option<Arc<Vec<u32>>>, DataError> {
        let Some(places) = self.within.as_ref().filter(|places| !places.ranks.is_empty()) else { return Ok(None) };
        let count = places.ranks.len() as u64;
        let first = u64::from(step) * count * places.microbatch_size;
        let mut by_work = Vec::with_capacity(places.ranks.len());
        for microbatch in 0..count {
            let mut work = 0;
            for sample in 0..places.microbatch_size {
                work += self.attention_work(first + microbatch * places.microbatch_size + sample)?;
            }
            by_work.push((std::cmp::Reverse(work), microbatch as u32));
        }
        by_work.sort_unstable();
        Ok(Some(Arc::new(places.ranks.iter().map(|rank| by_work[*rank as usize].1).collect())))
    }

    /// How many pairs of tokens see each other in a sample, but for those that see themselves; twice.
    fn attention_work(&self, sample: u64) -> Result<u64, DataError> {
        let (windows, window) = self.place(sample);
        let firsts = windows.source.first_tokens(window * self.sequence as u64, self.sequence)?;
        let ends = firsts.iter().copied().chain([self.sequence]);
        let (work, _) = ends.fold((0, 0), |(work, start), end| (work + ((end - start) as u64).pow(2), end));
        Ok(work)
    }

    fn is_masked(&self) -> bool {
        self.within.is_some() || self.windows.iter().any(|windows| windows.source.is_masked)
    }

    fn is_in_memory(&self) -> bool {
        self.windows.iter().all(|windows| windows.source.is_in_memory())
    }

    fn count(&self) -> u64 {
        self.windows.iter().map(|windows| windows.count).sum()
    }

    /// Reads what `samples` are, to find tokens that the model does not know: at most as many as take seconds.
    fn check(&self, samples: Range<u64>) -> Result<(), DataError> {
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

/// Which microbatch takes which place of a step.
type Placed = Option<Arc<Vec<u32>>>;

/// What was read ahead of a step: its places, and samples by number.
type Read = Result<(Placed, BTreeMap<u64, Window>), DataError>;

/// What is read ahead for one rank.
#[derive(Debug, Default)]
struct Ahead {
    /// Microbatches of this replica that were asked for in the step before.
    asked: BTreeSet<u32>,
    /// The samples of a step.
    now: (u32, BTreeMap<u64, Window>),
    /// The places of a step.
    placed: Option<(u32, Placed)>,
    /// Those of the step after it, which a thread reads.
    next: Option<(u32, JoinHandle<Read>)>,
    /// How many tokens of a step are predicted, where not all are.
    predicted: Option<(u32, u64)>,
}

/// How sources are cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Tokens of a sequence.
    pub sequence: usize,
    /// How far behind each token the model reads, at least 1.
    pub ahead: usize,
    /// Sequences of a microbatch.
    pub microbatch_size: usize,
    /// Microbatches of a step, over all replicas.
    pub microbatches: usize,
    /// Of the order.
    pub seed: u64,
    /// Tokens are below it.
    pub vocabulary: u64,
    /// Where attention stays within documents.
    pub within: Option<Within>,
}

/// Attention stays within documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// For each microbatch of a step, of all replicas one after the other, the work that the plan has for it, in any unit.
    pub planned: Vec<u64>,
}

/// What every microbatch of a run is trained on.
#[derive(Debug)]
pub struct Batches {
    sources: Arc<Sources>,
    samples: Arc<Samples>,
    /// What is evaluated on, if anything.
    validation: Option<Arc<Samples>>,
    digest: String,
    microbatch_size: usize,
    microbatches: usize,
    /// The first microbatch of a step that is this replica's, which counts its own from 0.
    first: u32,
    /// Which tokens of every sequence are this rank's.
    part: SequencePart,
    replicas: usize,
    ahead: Mutex<Ahead>,
    /// The evaluation that is under way, by number; [`TRAINING`] if none is.
    evaluation: AtomicU32,
    /// Nanoseconds for which this rank has waited for data.
    waited_ns: AtomicU64,
}

/// No evaluation.
const TRAINING: u32 = u32::MAX;

impl Batches {
    /// Cuts `text` for models that read up to `ahead` tokens behind each, at least 1.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn new(
        text: Vec<u8>,
        sizes: [usize; 2],
        microbatch_size: usize,
        microbatches: usize,
        seed: u64,
    ) -> Result<Batches, DataError> {
        let [sequence, ahead] = sizes;
        let cut = Cut { sequence, ahead, microbatch_size, microbatches, seed, vocabulary: u64::MAX, within: None };
        Batches::of(Arc::new(Sources::of_text(text)), &cut)
    }

    /// The same of sources.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn of(sources: Arc<Sources>, cut: &Cut) -> Result<Batches, DataError> {
        let Cut { sequence, microbatch_size, microbatches, seed, vocabulary, .. } = *cut;
        let within = cut.within.as_ref().map(|within| Arc::new(Places::new(within, [microbatch_size, microbatches])));
        let ahead = cut.ahead.max(1);
        let all = sources.training.iter().map(|(source, _)| source).chain(&sources.validation);
        if let Some(source) = all.filter(|_| within.is_some()).find(|source| !source.knows_documents()) {
            let found = format!("{}, which does not say where documents begin", source.format.name());
            let expected = "indexed data of Megatron-LM, JSON lines, Parquet, a table of NumPy or text with a tokenizer, since \
                            attention stays within documents (training.documents)";
            return Err(DataError::wrong(&source.path, "the file", found, expected));
        }
        let (mut training, mut validation) = (Vec::new(), Vec::new());
        for (number, (source, _)) in sources.training.iter().enumerate() {
            let windows = windows_of(source, sequence, ahead)?;
            let apart = if sources.split > 0.0 { (windows as f64 * sources.split).ceil() as u64 } else { 0 };
            if apart >= windows {
                let needed = (2 * sequence + ahead) as u64;
                let (path, tokens, for_what) =
                    (source.path.clone(), source.tokens, "a sequence to train on and one to evaluate on");
                return Err(DataError::TooFew { path, tokens, for_what, needed });
            }
            training.push(Windows::new(source, 0..windows - apart, number));
            if apart > 0 {
                validation.push(Windows::new(source, windows - apart..windows, number));
            }
        }
        for source in &sources.validation {
            let windows = windows_of(source, sequence, ahead)?;
            validation.push(Windows::new(source, 0..windows, validation.len()));
        }
        let sizes: Vec<u64> = training.iter().map(|windows| windows.count).collect();
        let weights: Vec<Option<f64>> = sources.training.iter().map(|(_, weight)| *weight).collect();
        let samples = |windows: Vec<Windows>, shares: &[f64]| {
            let (slots, counts) = blend(shares);
            Arc::new(Samples { windows, slots, counts, sequence, ahead, seed, vocabulary, within: within.clone() })
        };
        let all: u64 = validation.iter().map(|windows| windows.count).sum();
        let by_size: Vec<f64> = validation.iter().map(|windows| windows.count as f64 / all.max(1) as f64).collect();
        Ok(Batches {
            samples: samples(training, &shares(&weights, &sizes).map_err(DataError::Argument)?),
            validation: (!validation.is_empty()).then(|| samples(validation, &by_size)),
            digest: sources.digest()?,
            sources,
            microbatch_size,
            microbatches,
            first: 0,
            part: SequencePart::WHOLE,
            replicas: 1,
            ahead: Mutex::default(),
            evaluation: AtomicU32::new(TRAINING),
            waited_ns: AtomicU64::new(0),
        })
    }

    /// The same, for a rank with `part` of every sequence in a replica whose microbatch 0 is microbatch `first` of the step.
    pub fn starting_at(&self, first: u32, part: SequencePart) -> Batches {
        Batches {
            sources: Arc::clone(&self.sources),
            samples: Arc::clone(&self.samples),
            validation: self.validation.clone(),
            digest: self.digest.clone(),
            microbatch_size: self.microbatch_size,
            microbatches: self.microbatches,
            first,
            part,
            replicas: self.replicas,
            ahead: Mutex::default(),
            evaluation: AtomicU32::new(TRAINING),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// The same, of which each of so many replicas has its part.
    pub fn among(self, replicas: usize) -> Batches {
        Batches { replicas: replicas.max(1), ..self }
    }

    /// A digest of the data.
    pub fn digest(&self) -> String {
        self.digest.clone()
    }

    /// The number of a replica's microbatch among all of the step.
    pub fn number(&self, microbatch: u32) -> u32 {
        self.first.saturating_add(microbatch)
    }

    /// Which tokens of every sequence are this rank's.
    pub fn part(&self) -> SequencePart {
        self.part
    }

    /// Sequences to train on.
    pub fn windows(&self) -> usize {
        self.samples.count() as usize
    }

    /// Sequences to evaluate on.
    pub fn validation_windows(&self) -> usize {
        self.validation.as_ref().map_or(0, |samples| samples.count() as usize)
    }

    /// Whether some tokens are not to be predicted.
    pub fn is_masked(&self) -> bool {
        self.samples.is_masked() || self.validation.as_ref().is_some_and(|samples| samples.is_masked())
    }

    /// Tokens of one training step.
    pub fn step_tokens(&self) -> u64 {
        self.samples.sequence as u64 * self.step_sequences()
    }

    /// Sequences of one training step.
    pub fn step_sequences(&self) -> u64 {
        self.microbatch_size as u64 * self.microbatches as u64
    }

    /// How long this rank has waited for data, in nanoseconds.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// Looks for tokens that the model does not know, in what `steps` take and what is evaluated on.
    ///
    /// # Errors
    /// [`DataError::Wrong`] of the first.
    pub fn check(&self, steps: Range<u32>) -> Result<(), DataError> {
        let samples = |step: u32| u64::from(step) * self.step_sequences();
        self.samples.check(samples(steps.start)..samples(steps.end))?;
        self.validation.as_ref().map_or(Ok(()), |validation| validation.check(0..validation.count()))
    }

    /// From now on gives what is evaluated on: of evaluation `number`, or (none) of training.
    pub fn evaluate(&self, number: Option<u32>) {
        self.evaluation.store(number.unwrap_or(TRAINING), Ordering::Relaxed);
    }

    /// What is asked for, and as which step.
    fn current(&self, step: u32) -> (&Arc<Samples>, u32, bool) {
        match (self.evaluation.load(Ordering::Relaxed), &self.validation) {
            (number, Some(validation)) if number != TRAINING => (validation, number, true),
            _ => (&self.samples, step, false),
        }
    }

    /// The samples at this replica's place `microbatch` of a step, or of an evaluation, which has no places.
    fn samples_of(
        &self,
        ahead: &mut Ahead,
        (step, microbatch): (u32, u32),
        evaluates: bool,
    ) -> Result<Range<u64>, DataError> {
        let number = self.number(microbatch);
        let (microbatches, size) = (self.microbatches as u64, self.microbatch_size as u64);
        if evaluates {
            return Ok(samples_at(step, number, microbatches, size));
        }
        ahead.asked.insert(microbatch);
        let placed = match &ahead.placed {
            Some((known, placed)) if *known == step => placed.clone(),
            _ => {
                let placed = self.samples.placed(step)?;
                ahead.placed = Some((step, placed.clone()));
                placed
            }
        };
        Ok(samples_at(step, placed_at(&placed, number), microbatches, size))
    }

    /// Has the data of `step` there before it begins, and the next one's read meanwhile. Where it cannot be read, the reason is
    /// noted for [`Sources::failure`].
    ///
    /// # Errors
    /// That reason: the run is to end before the step.
    pub fn prepare(&self, step: u32) -> Result<(), DataError> {
        if self.samples.is_in_memory() {
            return Ok(());
        }
        let started = Instant::now();
        let mut ahead = locked(&self.ahead);
        let asked = std::mem::take(&mut ahead.asked);
        if asked.is_empty() {
            return Ok(());
        }
        let numbers: Vec<u32> = asked.iter().map(|microbatch| self.number(*microbatch)).collect();
        let (microbatches, size) = (self.microbatches as u64, self.microbatch_size as u64);
        let read = move |samples: &Samples, step: u32, numbers: &[u32]| -> Read {
            let placed = samples.placed(step)?;
            let mut read = BTreeMap::new();
            for number in numbers {
                for sample in samples_at(step, placed_at(&placed, *number), microbatches, size) {
                    read.insert(sample, samples.read(sample)?);
                }
            }
            Ok((placed, read))
        };
        let found = match ahead.next.take() {
            // A thread that has died has read nothing.
            Some((of_step, thread)) if of_step == step => {
                thread.join().unwrap_or_else(|_| read(&self.samples, step, &numbers))
            }
            _ => read(&self.samples, step, &numbers),
        };
        let (placed, samples) = found.inspect_err(|error| self.sources.note(error.clone()))?;
        (ahead.now, ahead.placed) = ((step, samples), Some((step, placed)));
        let (samples, next) = (Arc::clone(&self.samples), step.saturating_add(1));
        // Where a system allows no more threads, each step reads its own.
        let thread = std::thread::Builder::new().name("data".to_string());
        ahead.next = thread.spawn(move || read(&samples, next, &numbers)).ok().map(|thread| (next, thread));
        self.waited_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The tokens `ahead` places behind each of this rank's tokens of a microbatch, one sequence after the other. Those to be
    /// predicted are [`IGNORED`] where they are not to be.
    ///
    /// # Errors
    /// [`DataError`] where they cannot be read.
    pub fn tokens(&self, step: u32, microbatch: u32, ahead: u32) -> Result<Vec<i32>, DataError> {
        let started = Instant::now();
        let (samples, step, evaluates) = self.current(step);
        let sequence = samples.sequence;
        let mut tokens = Vec::with_capacity(self.microbatch_size * sequence / self.part.parts as usize);
        let mut read = locked(&self.ahead);
        for sample in self.samples_of(&mut read, (step, microbatch), evaluates)? {
            let known = (!evaluates && read.now.0 == step).then(|| read.now.1.get(&sample)).flatten();
            let fresh = if known.is_none() { samples.read(sample)? } else { Window::default() };
            let window = known.unwrap_or(&fresh);
            for piece in self.part.pieces(sequence as u64) {
                let piece = ahead as usize + piece.start as usize..ahead as usize + piece.end as usize;
                tokens.extend(piece.map(|at| match ahead > 0 && !window.predicts(at) {
                    true => IGNORED,
                    false => (window.tokens[at] & !MASKED) as i32,
                }));
            }
        }
        self.waited_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(tokens)
    }

    /// Where the documents of a microbatch begin; nothing where attention sees whole sequences.
    ///
    /// # Errors
    /// As [`Batches::tokens`].
    pub fn document_starts(&self, step: u32, microbatch: u32) -> Result<Option<DocumentStarts>, DataError> {
        let (samples, step, evaluates) = self.current(step);
        if samples.within.is_none() {
            return Ok(None);
        }
        let mut read = locked(&self.ahead);
        let mut starts = DocumentStarts::default();
        for sample in self.samples_of(&mut read, (step, microbatch), evaluates)? {
            let known = (!evaluates && read.now.0 == step).then(|| read.now.1.get(&sample)).flatten();
            match known {
                Some(window) => starts.add(samples.sequence, &window.firsts),
                None => starts.add(samples.sequence, &samples.read(sample)?.firsts),
            }
        }
        Ok(Some(starts))
    }

    /// What a rank divides the sum of its losses by where some tokens of the step are not to be predicted: so the mean over ranks
    /// that see other tokens is the mean over all that are. Nothing where all tokens are predicted.
    ///
    /// # Errors
    /// As [`Batches::tokens`].
    pub fn loss_divisor(&self, step: u32) -> Result<Option<f64>, DataError> {
        let (samples, step, evaluates) = self.current(step);
        if !samples.is_masked() {
            return Ok(None);
        }
        let known = locked(&self.ahead).predicted.filter(|(known, _)| *known == step && !evaluates);
        let count = match known {
            Some((_, count)) => count,
            None => {
                let mut count = 0;
                let first = u64::from(step) * self.step_sequences();
                for sample in first..first + self.step_sequences() {
                    let window = samples.read(sample)?;
                    count += (1..=samples.sequence).filter(|at| window.predicts(*at)).count() as u64;
                }
                count
            }
        };
        if !evaluates {
            locked(&self.ahead).predicted = Some((step, count));
        }
        Ok(Some(count.max(1) as f64 / (self.replicas * self.part.parts as usize) as f64))
    }
}

/// The samples of microbatch `number` of a step of `microbatches`, each of `size` samples.
fn samples_at(step: u32, number: u32, microbatches: u64, size: u64) -> Range<u64> {
    let before = u64::from(step) * microbatches + u64::from(number);
    before * size..(before + 1) * size
}

/// The microbatch at place `number`.
fn placed_at(placed: &Placed, number: u32) -> u32 {
    placed.as_ref().and_then(|placed| placed.get(number as usize)).copied().unwrap_or(number)
}

/// Whole sequences of a source.
fn windows_of(source: &Source, sequence: usize, ahead: usize) -> Result<u64, DataError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(microbatch_size: usize) -> Cut {
        let [sequence, ahead, microbatches] = [4, 1, 1];
        Cut { sequence, ahead, microbatch_size, microbatches, seed: 3, vocabulary: 256, within: None }
    }

    fn batches(bytes: usize, seed: u64) -> Batches {
        let text = (0..bytes).map(|at| at as u8).collect();
        Batches::new(text, [4, 1], 2, 3, seed).expect("long enough")
    }

    #[test]
    fn an_epoch_takes_every_window_once() {
        // 49 bytes are 12 windows of 4 and their next byte: two steps of 3 microbatches of 2.
        let batches = batches(49, 5);
        let mut starts = Vec::new();
        for step in 0..2 {
            for microbatch in 0..3 {
                let tokens = batches.tokens(step, microbatch, 0).unwrap();
                let targets = batches.tokens(step, microbatch, 1).unwrap();
                assert_eq!(tokens.len(), 8);
                assert!(tokens.iter().zip(&targets).all(|(token, target)| target - token == 1));
                starts.extend([tokens[0], tokens[4]]);
            }
        }
        assert_ne!(starts, (0..12).map(|window| 4 * window).collect::<Vec<_>>(), "shuffled");
        starts.sort_unstable();
        assert_eq!(starts, (0..12).map(|window| 4 * window).collect::<Vec<_>>());
    }

    /// However a step's sequences are dealt to microbatches and replicas, they are the same rows in the same order.
    #[test]
    fn a_step_has_the_same_rows_however_it_is_cut() {
        let text: Vec<u8> = (0..200).collect();
        let rows = |microbatch_size: usize, microbatches: usize, replicas: usize| -> Vec<i32> {
            let all =
                Batches::new(text.clone(), [4, 1], microbatch_size, microbatches * replicas, 7).expect("long enough");
            let replica = |replica: usize| all.starting_at((replica * microbatches) as u32, SequencePart::WHOLE);
            let of = |batches: Batches| {
                (0..microbatches as u32).flat_map(move |microbatch| batches.tokens(3, microbatch, 0).unwrap())
            };
            (0..replicas).flat_map(|at| of(replica(at))).collect()
        };
        for (microbatch_size, microbatches, replicas) in [(1, 12, 1), (4, 3, 1), (2, 3, 2), (1, 4, 3), (6, 1, 2)] {
            assert_eq!(rows(microbatch_size, microbatches, replicas), rows(12, 1, 1));
        }
    }

    /// A step has the samples that it has without places, each document begins where it does, and microbatches with more work are
    /// where more is planned.
    #[test]
    fn microbatches_take_the_places_that_the_plan_has_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("documents.jsonl");
        let mut random = SplitMix64::new(9);
        let (mut lines, mut next) = (String::new(), 0);
        let mut firsts = BTreeSet::new();
        while next < 240 {
            let tokens: Vec<u32> = (next..next + 1 + (random.draw() % 12) as u32).collect();
            firsts.insert(next as i32);
            next += tokens.len() as u32;
            lines += &format!("{{\"input_ids\": {tokens:?}}}\n");
        }
        std::fs::write(&path, lines).expect("written");
        let source = crate::data::open(&path, &crate::data::tokenizer::Tokenizer::Bytes).expect("read");
        let sources = Arc::new(Sources::new(vec![(Arc::new(source), None)]));
        let of = |planned: Vec<u64>| {
            let (microbatches, within) = (planned.len(), Some(Within { planned }));
            let cut = Cut { sequence: 8, microbatches, within, vocabulary: 1000, ..cut(2) };
            Batches::of(Arc::clone(&sources), &cut).expect("long enough")
        };
        let planned = vec![30, 50, 10, 40, 20];
        let (placed, plain) = (of(planned.clone()), of(vec![1; 5]));
        // Two replicas that read ahead see the same as one that does not.
        let replica = placed.starting_at(3, SequencePart::WHOLE);
        for step in 0..4 {
            replica.prepare(step).expect("read");
            let rows = |batches: &Batches, place: u32| batches.tokens(step, place, 0).expect("read");
            let all = |batches: &Batches| {
                let mut all: Vec<Vec<i32>> = (0..5).map(|place| rows(batches, place)).collect();
                all.sort();
                all
            };
            assert_eq!(all(&placed), all(&plain));
            assert_eq!([rows(&replica, 0), rows(&replica, 1)], [rows(&placed, 3), rows(&placed, 4)]);
            let work = |place: u32| -> u64 {
                let starts = placed.document_starts(step, place).expect("read").expect("documents");
                let tokens = rows(&placed, place);
                (0..tokens.len())
                    .map(|at| {
                        let start = starts.of(at);
                        assert!(start % 8 == 0 || firsts.contains(&tokens[start]), "{tokens:?} {start}");
                        assert!((start + 1..=at).all(|at| !firsts.contains(&tokens[at])), "{tokens:?} {start}");
                        2 * (at - start) as u64 + 1
                    })
                    .sum()
            };
            let mut found: Vec<(u64, u64)> = (0..5).map(|place| (planned[place as usize], work(place))).collect();
            found.sort_unstable();
            assert!(found.is_sorted_by_key(|(_, work)| *work), "{found:?}");
            // The first token of a document is predicted from none.
            for place in 0..5 {
                let (tokens, targets) = (rows(&placed, place), placed.tokens(step, place, 1).expect("read"));
                for (token, target) in tokens.into_iter().zip(targets) {
                    let expected = if firsts.contains(&(token + 1)) { IGNORED } else { token + 1 };
                    assert_eq!(target, expected);
                }
            }
        }
    }

    /// Parts are dealt from both ends, and together are the whole.
    #[test]
    fn a_part_has_its_pieces_of_every_sequence() {
        let text: Vec<u8> = (0..=13).collect();
        let all = Batches::new(text, [12, 2], 1, 1, 0).expect("long enough");
        let of = |part| all.starting_at(0, SequencePart { part, parts: 3 });
        assert_eq!(of(0).tokens(0, 0, 0).unwrap(), [0, 1, 10, 11]);
        assert_eq!(of(1).tokens(0, 0, 0).unwrap(), [2, 3, 8, 9]);
        assert_eq!(of(2).tokens(0, 0, 0).unwrap(), [4, 5, 6, 7]);
        assert_eq!(of(1).tokens(0, 0, 1).unwrap(), [3, 4, 9, 10]);
        assert_eq!(of(0).tokens(0, 0, 2).unwrap(), [2, 3, 12, 13]);
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let first = |seed: u64, step: u32| -> Vec<i32> { batches(49, seed).tokens(step, 0, 0).unwrap() };
        assert_eq!(first(5, 0), first(5, 0));
        assert!((1..10).any(|seed| first(5, 0) != first(seed, 0)));
        assert!((1..10).any(|epoch| first(5, 0) != first(5, 2 * epoch)));
    }

    #[test]
    fn a_text_shorter_than_a_sequence_is_refused() {
        assert_eq!(
            Batches::new(vec![0; 4], [4, 1], 1, 1, 0).err(),
            Some(DataError::TooShort { bytes: 4, sequence: 4, ahead: 1 })
        );
        assert!(Batches::new(vec![0; 5], [4, 1], 1, 1, 0).is_ok());
        assert!(Batches::new(vec![0; 5], [4, 2], 1, 1, 0).is_err());
        assert!(Batches::new(vec![0; 6], [4, 2], 1, 1, 0).is_ok());
    }

    /// Counts of a long run, sample by sample: each source's share to one in [`SLOTS`], and each of its windows once an epoch.
    #[test]
    fn a_blend_takes_shares_and_every_window_once_an_epoch() {
        let text = |bytes: usize| Arc::new(Source::of_text((0..bytes).map(|at| at as u8).collect()));
        let sources = Sources::new(vec![(text(401), Some(0.6)), (text(201), Some(0.3)), (text(41), Some(0.1))]);
        let batches = Batches::of(Arc::new(sources), &cut(1)).expect("long enough");
        let mut taken = [const { Vec::new() }; 3];
        for sample in 0..20_000 {
            let (windows, window) = batches.samples.place(sample);
            let source = [100, 50, 10].iter().position(|count| *count == windows.count).expect("one of them");
            taken[source].push(window);
        }
        assert_eq!(taken.each_ref().map(Vec::len), [12_000, 6_000, 2_000]);
        for (of_source, count) in taken.iter().zip([100, 50, 10]) {
            for epoch in of_source.chunks_exact(count) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                assert_eq!(epoch, (0..count as u64).collect::<Vec<_>>());
            }
        }
        // Anywhere in a run, no source is a sample ahead or behind.
        let (slots, _) = blend(&[0.6, 0.3, 0.1]);
        let mut counts = [0f64; 3];
        for (at, (source, _)) in slots.iter().enumerate() {
            counts[*source as usize] += 1.0;
            let ahead = |share: f64, count: f64| (count - share * (at + 1) as f64).abs();
            assert!(ahead(0.6, counts[0]) < 1.0 && ahead(0.3, counts[1]) < 1.0 && ahead(0.1, counts[2]) < 1.0);
        }
    }

    #[test]
    fn an_order_without_a_list_takes_every_number_once() {
        for count in [1, 2, 5, 64, 1000, 4097] {
            let mut order: Vec<u64> = (0..count).map(|at| permuted(7, count, at)).collect();
            let is_mixed = order.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64 * 2 >= count / 2;
            assert!(is_mixed, "{count}");
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_split_off_is_never_trained_on() {
        let sources = Sources { split: 0.25, ..Sources::of_text((0..=200).collect()) };
        let batches = Batches::of(Arc::new(sources), &cut(2)).expect("long enough");
        assert_eq!((batches.windows(), batches.validation_windows()), (37, 13));
        let seen = |step| batches.tokens(step, 0, 0).expect("read");
        let trained: Vec<i32> = (0..100).flat_map(seen).collect();
        assert!(trained.iter().all(|token| *token < 37 * 4));
        batches.evaluate(Some(1));
        assert!(seen(0).iter().all(|token| *token >= 37 * 4));
        batches.evaluate(None);
        assert_eq!(seen(0), trained[..8]);
    }
}
