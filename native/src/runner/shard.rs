//! Which elements of a whole weight, as checkpoints have it, each of the ranks holds that share matrices or that experts are
//! dealt to.

use pipeplan_core::graph::{Role, Split, Tensor};

use crate::backend::cpu::element::Element;
use crate::transport::Buffer;

/// Which part of a weight a rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardOwner {
    /// The rank's number among the tensor-parallel ranks.
    pub member: usize,
    /// Its number among the expert-parallel ranks.
    pub dealt: usize,
}

/// How a weight lies on the tensor-parallel ranks, and on the expert-parallel ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The whole weight's sizes.
    pub shape: Vec<usize>,
    /// The elements that each rank holds, padding included.
    pub held: usize,
    /// Whether ranks that hold the same elements each gather only a part of their gradient.
    pub partial: bool,
    /// Whether the weight does not train: it has no gradient and no optimizer states.
    pub frozen: bool,
    /// Where it is a matrix of each expert: the ranks that these are dealt to.
    pub experts: Option<usize>,
    split: Option<Split>,
    /// Entries of the cut dimension that a rank holds.
    own: usize,
}

/// A piece of a weight: which of how many, cut along which dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The piece.
    pub piece: usize,
    /// Pieces.
    pub pieces: usize,
    /// The dimension.
    pub dimension: usize,
}

/// Elements that follow each other both where a rank holds them and in the whole weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one, among those that the rank holds.
    pub held: usize,
    /// The first one, in the whole weight.
    pub whole: usize,
    /// How many.
    pub length: usize,
}

impl Shard {
    /// Of the weight `tensor`.
    pub fn of(tensor: &Tensor) -> Shard {
        let split = tensor.split();
        let own = split.and_then(|split| tensor.shape.get(split.dimension as usize)).copied().unwrap_or(0) as usize;
        Shard {
            shape: tensor.whole_shape().iter().map(|size| *size as usize).collect(),
            held: tensor.elements() as usize,
            partial: matches!(tensor.role, Role::Weight { partial: true, .. }),
            frozen: tensor.is_frozen(),
            experts: tensor.expert_ways().map(|ways| ways as usize),
            split,
            own,
        }
    }

    /// Of a weight of this shape that every rank holds whole.
    pub fn whole(shape: Vec<usize>) -> Shard {
        let held = shape.iter().product();
        Shard { shape, held, partial: false, frozen: false, experts: None, split: None, own: 0 }
    }

    /// Elements of the whole weight.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The piece that `seat` holds: cut by experts, and what that gives cut again as matrices are. Nothing for a weight that
    /// every rank holds whole.
    pub fn cuts(&self, seat: ShardOwner) -> Vec<Cut> {
        let experts = self.experts.filter(|ways| *ways > 1);
        let experts = experts.map(|pieces| Cut { piece: seat.dealt, pieces, dimension: 0 });
        let split = self.split.map(|split| Cut {
            piece: split.piece_of(seat.member as u64) as usize,
            pieces: split.pieces as usize,
            dimension: split.dimension as usize,
        });
        experts.into_iter().chain(split).collect()
    }

    /// Whether each member holds a different piece.
    pub fn is_split(&self) -> bool {
        self.split.is_some()
    }

    /// The members, of `members`, that hold what `member` holds.
    pub fn holders(&self, member: usize, members: usize) -> std::ops::Range<usize> {
        let count = self.split.map_or(members, |split| split.holders() as usize);
        let first = member / count.max(1) * count;
        first..first + count
    }

    /// Puts what `seat` holds into `whole`, which is nothing before the first.
    pub fn put(&self, seat: ShardOwner, held: Buffer, whole: &mut Buffer) {
        if self.cuts(seat).is_empty() {
            *whole = held;
            return;
        }
        match (held, whole) {
            (Buffer::F32(held), whole) => self.put_in(seat, &held, whole),
            (Buffer::F64(held), whole) => self.put_in(seat, &held, whole),
            // The host cannot read it.
            _ => {}
        }
    }

    fn put_in<T: Element>(&self, seat: ShardOwner, held: &[T], whole: &mut Buffer) {
        let before = T::unpack(std::mem::replace(whole, Buffer::Nothing));
        let mut values = before.unwrap_or_else(|| vec![T::ZERO; self.elements()]);
        for Run { held: from, whole: to, length } in self.runs(seat) {
            values[to..to + length].copy_from_slice(&held[from..from + length]);
        }
        *whole = T::pack(values);
    }

    /// Where the elements that `seat` holds lie in the whole weight: none of its padding.
    pub fn runs(&self, seat: ShardOwner) -> Vec<Run> {
        let ways = self.experts.unwrap_or(1);
        // Experts are dealt evenly, and those of one rank follow each other.
        let first = self.elements() / ways * seat.dealt.min(ways - 1);
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|experts| *experts /= ways);
        let mut runs = match self.split {
            None => vec![Run { held: 0, whole: 0, length: self.held }],
            Some(split) => {
                let piece = split.piece_of(seat.member as u64) as usize;
                runs(&shape, split.dimension as usize, self.own, piece)
            }
        };
        runs.iter_mut().for_each(|run| run.whole += first);
        runs
    }
}

/// Where piece `piece` of a weight of shape `shape` lies, pieces having `own` entries of `dimension`.
pub fn runs(shape: &[usize], dimension: usize, own: usize, piece: usize) -> Vec<Run> {
    let inner: usize = shape.iter().skip(dimension + 1).product();
    let outer: usize = shape.iter().take(dimension).product();
    let size = shape.get(dimension).copied().unwrap_or(1);
    let first = (piece * own).min(size);
    let length = own.min(size - first) * inner;
    let run = |at: usize| Run { held: at * own * inner, whole: (at * size + first) * inner, length };
    if length == 0 { Vec::new() } else { (0..outer).map(run).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements that pieces hold, piece by piece, by their places in the whole weight.
    fn places(shape: &[usize], dimension: usize, pieces: usize) -> Vec<Vec<usize>> {
        let own = shape[dimension].div_ceil(pieces);
        let of =
            |piece| runs(shape, dimension, own, piece).into_iter().flat_map(|run| run.whole..run.whole + run.length);
        (0..pieces).map(|piece| of(piece).collect()).collect()
    }

    #[test]
    fn pieces_are_rows_or_columns() {
        assert_eq!(places(&[4, 3], 0, 2), [vec![0, 1, 2, 3, 4, 5], vec![6, 7, 8, 9, 10, 11]]);
        assert_eq!(places(&[2, 4], 1, 2), [vec![0, 1, 4, 5], vec![2, 3, 6, 7]]);
        // Five rows over four: the last piece is all padding.
        assert_eq!(places(&[5, 1], 0, 4), [vec![0, 1], vec![2, 3], vec![4], vec![]]);
    }

    #[test]
    fn every_element_is_in_one_piece() {
        for (shape, dimension, pieces) in
            [(&[6, 4][..], 0, 3), (&[6, 4], 1, 4), (&[7, 3], 0, 2), (&[2, 6, 5], 1, 3), (&[9], 0, 3)]
        {
            let mut all: Vec<usize> = places(shape, dimension, pieces).concat();
            all.sort_unstable();
            assert_eq!(all, (0..shape.iter().product()).collect::<Vec<_>>(), "{shape:?}");
        }
    }
}
