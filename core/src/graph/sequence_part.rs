//! Context parallelism: the tokens of every sequence that a device holds.

use core::ops::Range;

/// A device's part of every sequence.
///
/// Under the causal mask a token's work grows with its position. So with `parts` devices a sequence is cut into `2 ·
/// parts` equal pieces, and device `part` holds pieces `part` and `2 · parts − 1 − part`, in this order: then all do
/// the same work on every block of keys that goes around the ring. Megatron-LM splits sequences the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequencePart {
    /// The device's number.
    pub part: u64,
    /// Devices, at least 1.
    pub parts: u64,
}

impl SequencePart {
    /// All of every sequence.
    pub const WHOLE: SequencePart = SequencePart { part: 0, parts: 1 };

    /// The part whose block this device has after `steps` steps of a ring in which each device passes its block to
    /// the next.
    pub fn after(self, steps: u64) -> SequencePart {
        let parts = self.parts.max(1);
        SequencePart { part: (self.part + parts - steps % parts) % parts, ..self }
    }

    /// Whether sequences of `sequence` tokens can be split over `parts` devices.
    pub const fn divides(sequence: u64, parts: u64) -> bool {
        parts <= 1 || sequence.is_multiple_of(parts.saturating_mul(2))
    }

    /// The positions of the device's tokens in a sequence of `sequence` tokens, in the order of its rows.
    pub fn pieces(self, sequence: u64) -> [Range<u64>; 2] {
        let piece = sequence / self.parts.max(1) / 2;
        let at = |number: u64| number * piece..(number + 1) * piece;
        match self.parts {
            // One device has all of it, whether or not it has halves.
            0 | 1 => [0..piece, piece..sequence],
            parts => [at(self.part), at(2 * parts - 1 - self.part)],
        }
    }

    /// The row, among those of all devices, of the device's row `row`.
    pub fn row(self, sequence: u64, row: u64) -> u64 {
        row / (sequence / self.parts.max(1)).max(1) * sequence + self.position(sequence, row)
    }

    /// The position in its sequence of the device's row `row`, one sequence of `sequence` tokens after the other.
    pub fn position(self, sequence: u64, row: u64) -> u64 {
        let [first, second] = self.pieces(sequence);
        let (early, all) = (first.end - first.start, (first.end - first.start + second.end - second.start).max(1));
        let row = row % all;
        if row < early { first.start + row } else { second.start + row - early }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Each token is on one device, and all devices see as many pairs of a token and one not after it.
    #[test]
    fn parts_hold_every_token_once_and_do_the_same_work() {
        for (sequence, parts) in [(1, 1), (7, 1), (8, 2), (24, 3), (24, 4), (60, 5)] {
            let positions = |part| {
                let part = SequencePart { part, parts };
                (0..sequence / parts).map(move |row| part.position(sequence, row)).collect::<Vec<u64>>()
            };
            let mut all: Vec<u64> = (0..parts).flat_map(positions).collect();
            let work: Vec<u64> = (0..parts).map(|part| positions(part).iter().sum()).collect();
            assert!(work.iter().all(|of_part| *of_part == work[0]), "{sequence} over {parts}: {work:?}");
            all.sort_unstable();
            assert_eq!(all, (0..sequence).collect::<Vec<u64>>());
            let again = SequencePart { part: parts - 1, parts };
            assert_eq!(again.position(sequence, sequence / parts), again.position(sequence, 0), "the next sequence");
            assert_eq!(again.row(sequence, sequence / parts), sequence + again.row(sequence, 0));
        }
    }

    /// A block is at home first and at the end, and one device further at each step between.
    #[test]
    fn blocks_go_round() {
        for parts in 1..5 {
            for part in 0..parts {
                let here = SequencePart { part, parts };
                assert_eq!((here.after(0), here.after(parts)), (here, here));
                for steps in 1..parts {
                    let before = SequencePart { part: (part + parts - 1) % parts, parts };
                    assert_eq!(here.after(steps), before.after(steps - 1));
                }
            }
        }
    }

    #[test]
    fn sequences_are_cut_into_two_pieces_a_device() {
        assert!(SequencePart::divides(7, 1) && SequencePart::divides(12, 3) && SequencePart::divides(12, 2));
        assert!(!SequencePart::divides(12, 4) && !SequencePart::divides(12, u64::MAX));
        assert_eq!(SequencePart { part: 1, parts: 3 }.pieces(12), [2..4, 8..10]);
    }
}
