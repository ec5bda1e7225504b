//! Training data as ranks take it: sources cut into sequences, in an order that follows from the seed.
//!
//! A source is cut into windows of one sequence and the token after it, or as many as the model reads ahead: those
//! are the first of the next window, so that every token has all that is predicted from it. Documents follow each
//! other, so a window may hold the end of one and the start of the next. Each pass over a source (an epoch) takes all
//! windows once, in an order that follows from the seed. Step `t` takes the next `microbatches · microbatch_size`
//! samples, microbatch `m` the `m`-th `microbatch_size` of these: so a microbatch is the same data whatever the
//! schedule, and a run that resumes after step `t` goes on at the very next sample.
//!
//! Where attention stays within documents ([`Within`]), a window is cut where its documents begin, and the first
//! token of a document is not predicted from the end of the one before. Then microbatches of a step differ, and each
//! takes the place that the plan has for one like it: the one with the most work is where the plan has its longest,
//! and so on. So what a step is trained on stays the same, and its microbatches come in the order that was planned,
//! to balanced replicas.
//!
//! Of several sources, [`SLOTS`] samples in a row take as many from each as its share says, spread evenly.
//!
//! | Module | What it has |
//! |---|---|
//! | `samples` | samples by their number: windows of sources, and how they are read |
//! | `places` | which microbatch takes which place of a step |
//!
//! Ranks read ahead: while they compute a step, a thread reads the samples of the next one. Where these cannot be
//! read, the run ends after the step, with its checkpoint ([`Batches::prepare`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pipeplan_core::graph::SequencePart;

use self::places::{Placed, Places, placed_at};
use self::samples::{Samples, Window, Windows, blend, samples_at, windows_of};
use crate::backend::documents::DocumentStarts;
use crate::data::argument::shares;
pub use crate::data::tokenizer::BYTE_VOCABULARY;
pub use crate::data::{DataError, MASKED, Source};
use crate::data::{START_OF_DIGEST, digest_of};

mod places;
mod samples;
#[cfg(test)]
mod tests;

pub use places::Within;
pub use samples::SLOTS;

/// What a target is that is not to be predicted.
pub const IGNORED: i32 = -100;

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
    /// How many tokens of a step, or of an evaluation, are predicted, where not all are; and of which.
    predicted: Option<((u32, bool), u64)>,
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
    /// Slices into which each sequence is cut, at least 1: those of a microbatch follow each other and are counted as
    /// microbatches are.
    pub slices: usize,
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
    /// Slices of a sequence: what is asked for is one of them.
    slices: u32,
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
        let cut = Cut {
            sequence,
            ahead,
            microbatch_size,
            microbatches,
            seed,
            vocabulary: u64::MAX,
            within: None,
            slices: 1,
        };
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
            slices: cut.slices.max(1) as u32,
            first: 0,
            part: SequencePart::WHOLE,
            replicas: 1,
            ahead: Mutex::default(),
            evaluation: AtomicU32::new(TRAINING),
            waited_ns: AtomicU64::new(0),
        })
    }

    /// The same, for a rank with `part` of every sequence in a replica whose microbatch 0 is microbatch `first` of
    /// the step.
    pub fn starting_at(&self, first: u32, part: SequencePart) -> Batches {
        Batches {
            sources: Arc::clone(&self.sources),
            samples: Arc::clone(&self.samples),
            validation: self.validation.clone(),
            digest: self.digest.clone(),
            microbatch_size: self.microbatch_size,
            microbatches: self.microbatches,
            slices: self.slices,
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

    /// Has the data of `step` there before it begins, and the next one's read meanwhile. Where it cannot be read, the
    /// reason is noted for [`Sources::failure`].
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

    /// The tokens `ahead` places behind each of this rank's tokens of a microbatch, or of a slice of one, one
    /// sequence after the other. Those to be predicted are [`IGNORED`] where they are not to be.
    ///
    /// # Errors
    /// [`DataError`] where they cannot be read.
    pub fn tokens(&self, step: u32, microbatch: u32, ahead: u32) -> Result<Vec<i32>, DataError> {
        let started = Instant::now();
        let (samples, step, evaluates) = self.current(step);
        let sequence = samples.sequence as u64;
        let (slice, slices) = (u64::from(microbatch % self.slices), u64::from(self.slices));
        let pieces = match slices {
            1 => self.part.pieces(sequence),
            // Plans with parts of sequences have no slices.
            _ => [slice * sequence / slices..(slice + 1) * sequence / slices, 0..0],
        };
        let mut tokens = Vec::with_capacity(self.microbatch_size * (sequence / self.part.parts / slices) as usize);
        let mut read = locked(&self.ahead);
        for sample in self.samples_of(&mut read, (step, microbatch / self.slices), evaluates)? {
            let known = (!evaluates && read.now.0 == step).then(|| read.now.1.get(&sample)).flatten();
            let fresh = if known.is_none() { samples.read(sample)? } else { Window::default() };
            let window = known.unwrap_or(&fresh);
            for piece in pieces.clone() {
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

    /// What a rank divides the sum of its losses by where some tokens of the step are not to be predicted: so the
    /// mean over ranks that see other tokens is the mean over all that are. Nothing where all tokens are predicted.
    ///
    /// # Errors
    /// As [`Batches::tokens`].
    pub fn loss_divisor(&self, step: u32) -> Result<Option<f64>, DataError> {
        let (samples, step, evaluates) = self.current(step);
        if !samples.is_masked() {
            return Ok(None);
        }
        let mut ahead = locked(&self.ahead);
        let count = match ahead.predicted {
            Some((known, count)) if known == (step, evaluates) => count,
            _ => {
                let started = Instant::now();
                let first = u64::from(step) * self.step_sequences();
                let counts = (first..first + self.step_sequences()).map(|sample| samples.predicted(sample));
                let count = counts.sum::<Result<u64, DataError>>()?;
                self.waited_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
                count
            }
        };
        ahead.predicted = Some(((step, evaluates), count));
        Ok(Some(count.max(1) as f64 / (self.replicas * self.part.parts as usize) as f64))
    }
}
