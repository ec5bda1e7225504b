//! Bytes of a text as training data: each byte is a token.
//!
//! The text is cut into windows of one sequence and the byte after it, or as many as the model reads ahead: those are the
//! first of the next window, so that every token has all that is predicted from it and none is masked. Each pass over
//! the text (an epoch)
//! takes all windows once, in custom schedule that follows from the seed. Step `t` takes the next
//! `microbatches · microbatch_size` windows, microbatch `m` the `m`-th `microbatch_size` of these: so a
//! microbatch is the same data whatever the schedule.

use std::sync::{Arc, Mutex, PoisonError};

use pipeplan_core::graph::SequencePart;

use super::random::SplitMix64;

/// Tokens that a vocabulary needs for bytes.
pub const BYTE_VOCABULARY: u64 = 256;

/// Text that cannot be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Not even one sequence.
    #[error(
        "the text has {bytes} bytes, but one sequence of {sequence} tokens needs {}: give a longer text or plan a \
         shorter sequence length", sequence + ahead
    )]
    TooShort {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens of a sequence.
        sequence: usize,
        /// Bytes behind it.
        ahead: usize,
    },
}

/// What every microbatch of a run is trained on.
#[derive(Debug)]
pub struct Batches {
    text: Arc<Vec<u8>>,
    sequence: usize,
    /// Tokens behind a sequence that are read with it.
    ahead: usize,
    microbatch_size: usize,
    microbatches: usize,
    /// The first microbatch of a step that is this replica's, which counts its own from 0.
    first: u32,
    /// Which tokens of every sequence are this rank's.
    part: SequencePart,
    seed: u64,
    /// The epoch asked for last, and its order: ranks ask in step with each other.
    order: Mutex<(u64, Vec<u32>)>,
}

impl Batches {
    /// Cuts `text` for models that read up to `ahead` tokens behind each, at least 1.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn new(
        text: Vec<u8>,
        [sequence, ahead]: [usize; 2],
        microbatch_size: usize,
        microbatches: usize,
        seed: u64,
    ) -> Result<Batches, DataError> {
        let ahead = ahead.max(1);
        if sequence == 0 || text.len() < sequence + ahead {
            return Err(DataError::TooShort { bytes: text.len(), sequence, ahead });
        }
        let text = Arc::new(text);
        let (first, part, order) = (0, SequencePart::WHOLE, Mutex::default());
        let batches = Batches { text, sequence, ahead, microbatch_size, microbatches, first, part, seed, order };
        let order = batches.epoch(0);
        Ok(Batches { order: Mutex::new((0, order)), ..batches })
    }

    /// The same, for a rank with `part` of every sequence in a replica whose microbatch 0 is microbatch `first` of the step.
    pub fn starting_at(&self, first: u32, part: SequencePart) -> Batches {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Batches { text, sequence, ahead, microbatch_size, microbatches, seed, .. } = self;
        Batches {
            text: Arc::clone(text),
            sequence: *sequence,
            ahead: *ahead,
            microbatch_size: *microbatch_size,
            microbatches: *microbatches,
            first,
            part,
            seed: *seed,
            order: Mutex::new(order),
        }
    }

    /// A digest of the text.
    pub fn digest(&self) -> String {
        // FNV-1a: it tells texts apart that were mixed up, not ones made to look alike.
        let hash = self.text.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("fnv1a64:{hash:016x}")
    }

    /// The number of a replica's microbatch among all of the step.
    pub fn number(&self, microbatch: u32) -> u32 {
        self.first.saturating_add(microbatch)
    }

    /// Which tokens of every sequence are this rank's.
    pub fn part(&self) -> SequencePart {
        self.part
    }

    /// Windows of the text.
    pub fn windows(&self) -> usize {
        // Numbered by u32: 4 billion sequences are beyond what this runner trains on.
        ((self.text.len() - self.ahead) / self.sequence).min(u32::MAX as usize)
    }

    /// Tokens of one training step.
    pub fn step_tokens(&self) -> u64 {
        self.sequence as u64 * self.microbatch_size as u64 * self.microbatches as u64
    }

    /// The tokens `ahead` places behind each of this rank's tokens of a microbatch, one sequence after the other.
    pub fn tokens(&self, step: u32, microbatch: u32, ahead: u32) -> Vec<i32> {
        let mut tokens = Vec::with_capacity(self.microbatch_size * self.sequence / self.part.parts as usize);
        let before = u64::from(step) * self.microbatches as u64 + u64::from(self.number(microbatch));
        let windows = self.windows() as u64;
        for number in 0..self.microbatch_size as u64 {
            let number = before * self.microbatch_size as u64 + number;
            let window = self.window(number / windows, (number % windows) as usize);
            let start = window * self.sequence + ahead as usize;
            for piece in self.part.pieces(self.sequence as u64) {
                let piece = start + piece.start as usize..start + piece.end as usize;
                tokens.extend(self.text[piece].iter().map(|byte| i32::from(*byte)));
            }
        }
        tokens
    }

    fn window(&self, epoch: u64, position: usize) -> usize {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if order.0 != epoch {
            *order = (epoch, self.epoch(epoch));
        }
        order.1[position] as usize
    }

    fn epoch(&self, epoch: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.windows() as u32).collect();
        SplitMix64::named(self.seed.wrapping_add(epoch), "data order").shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let tokens = batches.tokens(step, microbatch, 0);
                let targets = batches.tokens(step, microbatch, 1);
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
                (0..microbatches as u32).flat_map(move |microbatch| batches.tokens(3, microbatch, 0))
            };
            (0..replicas).flat_map(|at| of(replica(at))).collect()
        };
        for (microbatch_size, microbatches, replicas) in [(1, 12, 1), (4, 3, 1), (2, 3, 2), (1, 4, 3), (6, 1, 2)] {
            assert_eq!(rows(microbatch_size, microbatches, replicas), rows(12, 1, 1));
        }
    }

    /// Parts are dealt from both ends, and together are the whole.
    #[test]
    fn a_part_has_its_pieces_of_every_sequence() {
        let text: Vec<u8> = (0..=13).collect();
        let all = Batches::new(text, [12, 2], 1, 1, 0).expect("long enough");
        let of = |part| all.starting_at(0, SequencePart { part, parts: 3 });
        assert_eq!(of(0).tokens(0, 0, 0), [0, 1, 10, 11]);
        assert_eq!(of(1).tokens(0, 0, 0), [2, 3, 8, 9]);
        assert_eq!(of(2).tokens(0, 0, 0), [4, 5, 6, 7]);
        assert_eq!(of(1).tokens(0, 0, 1), [3, 4, 9, 10]);
        assert_eq!(of(0).tokens(0, 0, 2), [2, 3, 12, 13]);
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let first = |seed: u64, step: u32| -> Vec<i32> { batches(49, seed).tokens(step, 0, 0) };
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
}
