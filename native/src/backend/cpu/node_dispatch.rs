//! Routed tokens that go once to each node with experts of theirs, and from rank to rank there; on the way back their
//! copies are summed in the node (DeepSeek-AI, arXiv:2412.19437 §3.2.2). A token goes between nodes to the rank with the
//! same place as its own, which hands it on.
//!
//! - In: what every rank has chosen, and the numbers of this rank's tokens or of its rows.
//! - Out: the same numbers that an all-to-all of copies gives; sums in another order.
//! - Knows: the expert-parallel group, and how many of its ranks a node has. No operator.

use std::ops::Range;

use pipeplan_core::graph::Axis;

use super::element::Element;
use super::kernels::experts::Order;
use crate::backend::BackendError;
use crate::backend::peers::{Collective, Peers};

/// What all ranks of the group have chosen.
pub(super) struct Routes {
    /// By rank of the group: its copies in the order in which they leave, and which copy each of these is.
    ranks: Vec<(Order, Vec<usize>)>,
    /// Experts that see a token.
    active: usize,
    /// Experts of a rank.
    experts: usize,
    /// Ranks of a node.
    node: usize,
    /// This rank.
    own: usize,
}

impl Routes {
    /// All ranks tell what they have `chosen`, of `experts` experts of a rank, for each token `active` ones. Numbers of
    /// experts are exact in every type.
    ///
    /// # Errors
    /// Where another rank does not come, or the transport fails.
    pub(super) fn of_all<T: Element>(
        chosen: &[i32],
        (active, experts, node): (usize, usize, usize),
        peers: &mut dyn Peers,
    ) -> Result<Routes, BackendError> {
        let values = chosen.iter().map(|expert| T::of(f64::from(*expert))).collect();
        let all = peers.run(Axis::Expert, Collective::Gather, T::pack(values))?;
        let all: Vec<i32> = T::unpack(all).unwrap_or_default().iter().map(|expert| expert.wide() as i32).collect();
        let (ranks, own) = peers.group(Axis::Expert);
        let of_rank = |chosen: &[i32]| {
            let order = Order::new(chosen, experts * ranks.len());
            let mut copies = vec![0; order.places.len()];
            order.places.iter().enumerate().for_each(|(copy, place)| copies[*place] = copy);
            (order, copies)
        };
        let ranks = all.chunks(chosen.len().max(1)).map(of_rank).collect();
        Ok(Routes { ranks, active, experts, node, own })
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The ranks of the node of `rank`.
    fn neighbours(&self, rank: usize) -> Range<usize> {
        let first = rank / self.node * self.node;
        first..(first + self.node).min(self.size())
    }

    /// Who in the node of `at` hands on what comes from `source`: the rank with its place, or the last one of a smaller
    /// node.
    fn hands_on(&self, source: usize, at: usize) -> usize {
        let node = self.neighbours(at);
        (node.start + source % self.node).min(node.end - 1)
    }

    /// The copies of `source` for `rank`, in their order.
    fn copies(&self, source: usize, rank: usize) -> &[usize] {
        let (order, copies) = &self.ranks[source];
        let before = |experts: usize| order.counts[..experts].iter().sum::<usize>();
        &copies[before(rank * self.experts)..before((rank + 1) * self.experts)]
    }

    /// The tokens of `source` that have copies for the node of `at`, in order.
    fn tokens(&self, source: usize, at: usize) -> Vec<usize> {
        let copies = self.neighbours(at).flat_map(|rank| self.copies(source, rank));
        let mut tokens: Vec<usize> = copies.map(|copy| copy / self.active).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// The ranks whose tokens this one hands on in its node.
    fn sources(&self) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(|source| self.hands_on(*source, self.own) == self.own)
    }

    /// One part of an exchange: what this rank has for each other, and elements that come from each.
    fn exchange<T: Element>(
        &self,
        pieces: Vec<Vec<T>>,
        come: &[usize],
        peers: &mut dyn Peers,
    ) -> Result<Vec<Vec<T>>, BackendError> {
        let pieces = pieces.into_iter().map(T::pack).collect();
        let received = peers.expert_all_to_all(Axis::Expert, pieces, come)?;
        Ok(received.into_iter().map(|piece| T::unpack(piece).unwrap_or_default()).collect())
    }

    /// Tokens `x` of `width` elements to their experts, and with each copy its number of `weights`, if there are any: what
    /// comes here, by the rank that it comes from and its order there.
    ///
    /// # Errors
    /// As [`Routes::of_all`].
    pub(super) fn out<T: Element>(
        &self,
        (x, width): (&[T], usize),
        weights: Option<&[T]>,
        peers: &mut dyn Peers,
    ) -> Result<Vec<T>, BackendError> {
        let (active, size) = (self.active, self.size());
        // Between nodes: a token once, with the weights of all its copies.
        let row = width + weights.map_or(0, |_| active);
        let mut pieces = vec![Vec::new(); size];
        for first in (0..size).step_by(self.node) {
            let piece = &mut pieces[self.hands_on(self.own, first)];
            for token in self.tokens(self.own, first) {
                piece.extend_from_slice(&x[token * width..(token + 1) * width]);
                piece
                    .extend_from_slice(weights.map_or(&[], |weights| &weights[token * active..(token + 1) * active]));
            }
        }
        let handed_on = |source: usize| self.hands_on(source, self.own) == self.own;
        let come = |source: usize| if handed_on(source) { row * self.tokens(source, self.own).len() } else { 0 };
        let received = self.exchange(pieces, &(0..size).map(come).collect::<Vec<_>>(), peers)?;
        // In the node: each copy to its rank, with its weight.
        let copy_row = width + usize::from(weights.is_some());
        let mut pieces = vec![Vec::new(); size];
        for source in self.sources() {
            let tokens = self.tokens(source, self.own);
            let rows = &received[source];
            for rank in self.neighbours(self.own) {
                for copy in self.copies(source, rank) {
                    let Ok(at) = tokens.binary_search(&(copy / active)) else { continue };
                    let of_token = &rows[at * row..(at + 1) * row];
                    pieces[rank].extend_from_slice(&of_token[..width]);
                    pieces[rank].extend(weights.map(|_| of_token[width + copy % active]));
                }
            }
        }
        let of_source = |source: usize| copy_row * self.copies(source, self.own).len();
        let mut come = vec![0; size];
        (0..size).for_each(|source| come[self.hands_on(source, self.own)] += of_source(source));
        let received = self.exchange(pieces, &come, peers)?;
        let mut taken = vec![0; size];
        let mut all = Vec::with_capacity(come.iter().sum());
        for source in 0..size {
            let from = self.hands_on(source, self.own);
            let rest = &received[from][taken[from]..];
            all.extend_from_slice(&rest[..of_source(source)]);
            taken[from] += of_source(source);
        }
        Ok(all)
    }

    /// The way back of what [`Routes::out`] gave: of each copy `width` elements, which add up by token, and where there
    /// are `more`, one that stays of the copy. Gives the sums of this rank's tokens, and by copy what stays.
    ///
    /// # Errors
    /// As [`Routes::of_all`].
    pub(super) fn back<T: Element>(
        &self,
        (copies, width): (&[T], usize),
        more: bool,
        peers: &mut dyn Peers,
    ) -> Result<(Vec<T>, Vec<T>), BackendError> {
        let (active, size) = (self.active, self.size());
        let (copy_row, row) = (width + usize::from(more), width + if more { active } else { 0 });
        // In the node: to the rank that hands on.
        let mut pieces = vec![Vec::new(); size];
        let mut rest = copies;
        for source in 0..size {
            let (own, after) = rest.split_at(copy_row * self.copies(source, self.own).len());
            pieces[self.hands_on(source, self.own)].extend_from_slice(own);
            rest = after;
        }
        let node = self.neighbours(self.own);
        let of_rank = |rank: usize| -> usize {
            if node.contains(&rank) { self.sources().map(|source| self.copies(source, rank).len()).sum() } else { 0 }
        };
        let come: Vec<usize> = (0..size).map(|rank| copy_row * of_rank(rank)).collect();
        let received = self.exchange(pieces, &come, peers)?;
        // Between nodes: the sum over the copies of a token, in the order of ranks and experts.
        let mut taken = vec![0; size];
        let mut pieces = vec![Vec::new(); size];
        for source in self.sources() {
            let tokens = self.tokens(source, self.own);
            let mut sums = vec![T::ZERO; tokens.len() * row];
            for rank in node.clone() {
                for copy in self.copies(source, rank) {
                    let of_copy = &received[rank][taken[rank]..taken[rank] + copy_row];
                    taken[rank] += copy_row;
                    let Ok(at) = tokens.binary_search(&(copy / active)) else { continue };
                    let sum = &mut sums[at * row..(at + 1) * row];
                    sum.iter_mut().zip(&of_copy[..width]).for_each(|(sum, more)| *sum += *more);
                    if more {
                        sum[width + copy % active] = of_copy[width];
                    }
                }
            }
            pieces[source] = sums;
        }
        let mut come = vec![0; size];
        for first in (0..size).step_by(self.node) {
            come[self.hands_on(self.own, first)] += row * self.tokens(self.own, first).len();
        }
        let received = self.exchange(pieces, &come, peers)?;
        let tokens = self.ranks[self.own].0.places.len() / active.max(1);
        let (mut sums, mut stays) = (vec![T::ZERO; tokens * width], vec![T::ZERO; tokens * active]);
        for first in (0..size).step_by(self.node) {
            let rows = received[self.hands_on(self.own, first)].chunks_exact(row.max(1));
            for (token, of_token) in self.tokens(self.own, first).into_iter().zip(rows) {
                let sum = &mut sums[token * width..(token + 1) * width];
                sum.iter_mut().zip(&of_token[..width]).for_each(|(sum, more)| *sum += *more);
                let kept = &mut stays[token * active..(token + 1) * active];
                kept.iter_mut().zip(&of_token[width..]).for_each(|(kept, more)| *kept += *more);
            }
        }
        Ok((sums, stays))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;

    use super::*;
    use crate::backend::peers::{CopyGroup, Ticket};
    use crate::runner::random::SplitMix64;
    use crate::transport::Buffer;

    /// A group of threads, and how many values went from node to node.
    #[derive(Clone)]
    struct Group {
        own: usize,
        node: usize,
        ranks: Vec<usize>,
        meets: Arc<Barrier>,
        pieces: Arc<Mutex<Vec<Vec<Buffer>>>>,
        between_nodes: Arc<Mutex<usize>>,
    }

    impl Group {
        /// Gives what all others have for this rank.
        fn exchanged(&mut self, pieces: Vec<Buffer>) -> Vec<Buffer> {
            self.pieces.lock().expect("held")[self.own] = pieces;
            self.meets.wait();
            let taken = self.pieces.lock().expect("held").iter().map(|pieces| pieces[self.own].clone()).collect();
            self.meets.wait();
            taken
        }
    }

    impl Peers for Group {
        fn run(&mut self, _: Axis, _: Collective, values: Buffer) -> Result<Buffer, BackendError> {
            let size = self.ranks.len();
            let all = self.exchanged(vec![values; size]);
            let values = all.into_iter().flat_map(|piece| f64::unpack(piece).expect("in f64"));
            Ok(Buffer::F64(values.collect()))
        }

        fn expert_all_to_all(
            &mut self,
            _: Axis,
            pieces: Vec<Buffer>,
            counts: &[usize],
        ) -> Result<Vec<Buffer>, BackendError> {
            let elsewhere = |(rank, _): &(usize, &Buffer)| rank / self.node != self.own / self.node;
            let values: usize = pieces.iter().enumerate().filter(elsewhere).map(|(_, piece)| piece.values()).sum();
            *self.between_nodes.lock().expect("held") += values;
            let received = self.exchanged(pieces);
            assert_eq!(received.iter().map(Buffer::values).collect::<Vec<_>>(), counts);
            Ok(received)
        }

        fn group(&self, _: Axis) -> (&[usize], usize) {
            (&self.ranks, self.own)
        }

        fn start(&mut self, _: Axis, _: Collective, _: Buffer) -> Result<Ticket, BackendError> {
            unreachable!("nothing begins without ending")
        }

        fn wait(&mut self, _: Ticket) -> Result<Buffer, BackendError> {
            unreachable!("nothing begins without ending")
        }

        fn pass(&mut self, _: Axis, _: Buffer) -> Result<Ticket, BackendError> {
            unreachable!("no ring")
        }

        fn begin_shares(
            &mut self,
            _: CopyGroup,
            _: Collective,
            _: Buffer,
            _: Vec<usize>,
        ) -> Result<Ticket, BackendError> {
            unreachable!("no shares")
        }

        fn end_shares(&mut self, _: Ticket) -> Result<Buffer, BackendError> {
            unreachable!("no shares")
        }

        fn sum_across(&mut self, _: CopyGroup, _: Buffer) -> Result<Buffer, BackendError> {
            unreachable!("no shares")
        }
    }

    const TOKENS: usize = 7;
    const WIDTH: usize = 3;
    const ACTIVE: usize = 3;
    const EXPERTS: usize = 2;

    /// The tokens of `rank`: each of them has its own number.
    fn tokens(rank: usize) -> Vec<f64> {
        (0..TOKENS * WIDTH).map(|at| (rank * 1000 + at) as f64).collect()
    }

    /// Every copy comes with its token and weight; the sum over the copies of each token comes back; and between nodes go
    /// as many rows as tokens have other nodes, there and back.
    #[test]
    fn a_token_goes_once_to_each_node() {
        for (size, node) in [(4, 2), (6, 3), (5, 2), (3, 1), (8, 4), (7, 3)] {
            let mut random = SplitMix64::new(size as u64);
            let chosen: Vec<Vec<i32>> = (0..size)
                .map(|_| {
                    let of_token = |_| {
                        let mut experts: Vec<i32> = (0..(size * EXPERTS) as i32).collect();
                        (0..ACTIVE).map(|_| experts.remove(random.below(experts.len() as u64) as usize)).collect()
                    };
                    (0..TOKENS).flat_map::<Vec<i32>, _>(of_token).collect()
                })
                .collect();
            let (meets, pieces) = (Arc::new(Barrier::new(size)), Arc::new(Mutex::new(vec![Vec::new(); size])));
            let between_nodes = Arc::new(Mutex::new(0));
            let group = Group { own: 0, node, ranks: (0..size).collect(), meets, pieces, between_nodes };
            thread::scope(|scope| {
                for own in 0..size {
                    let (mut peers, chosen) = (Group { own, ..group.clone() }, &chosen);
                    scope.spawn(move || {
                        let routes = Routes::of_all::<f64>(&chosen[own], (ACTIVE, EXPERTS, node), &mut peers);
                        let routes = routes.expect("all come");
                        let weights: Vec<f64> = (0..TOKENS * ACTIVE).map(|copy| (own * 100 + copy) as f64).collect();
                        let came = routes.out((&tokens(own), WIDTH), Some(&weights), &mut peers).expect("they come");
                        let mut expected = Vec::new();
                        for (source, chosen) in chosen.iter().enumerate() {
                            for expert in own * EXPERTS..(own + 1) * EXPERTS {
                                for copy in (0..chosen.len()).filter(|copy| chosen[*copy] == expert as i32) {
                                    let token = copy / ACTIVE;
                                    expected.extend_from_slice(&tokens(source)[token * WIDTH..(token + 1) * WIDTH]);
                                    expected.push((source * 100 + copy) as f64);
                                }
                            }
                        }
                        assert_eq!(came, expected, "{size} ranks, {node} of a node, rank {own}");
                        let plain = routes.out((&tokens(own), WIDTH), None, &mut peers).expect("they come");
                        let (sums, stays) = routes.back((&came, WIDTH), true, &mut peers).expect("they come");
                        // Whole numbers add up exactly in any order.
                        assert_eq!(sums, tokens(own).iter().map(|value| value * ACTIVE as f64).collect::<Vec<_>>());
                        assert_eq!(stays, weights);
                        let (sums, _) = routes.back((&plain, WIDTH), false, &mut peers).expect("they come");
                        assert_eq!(sums, tokens(own).iter().map(|value| value * ACTIVE as f64).collect::<Vec<_>>());
                    });
                }
            });
            let mut rows = 0;
            for (rank, chosen) in chosen.iter().enumerate() {
                for of_token in chosen.chunks(ACTIVE) {
                    let mut nodes: Vec<usize> =
                        of_token.iter().map(|expert| *expert as usize / EXPERTS / node).collect();
                    nodes.sort_unstable();
                    nodes.dedup();
                    rows += nodes.into_iter().filter(|other| *other != rank / node).count();
                }
            }
            let values = 2 * rows * (WIDTH + ACTIVE) + 2 * rows * WIDTH;
            assert_eq!(*group.between_nodes.lock().expect("held"), values, "{size} ranks, {node} of a node");
        }
    }
}
