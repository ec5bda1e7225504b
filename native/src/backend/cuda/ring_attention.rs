//! Attention over keys and values that cards pass around a ring (arXiv:2310.01889).
//!
//! A rank has two pieces of every sequence, so pieces meet in pairs, each a launch: a piece's queries first meet its own
//! keys, and what they make of other pieces' is added to that. Blocks of keys and values go on to the next rank while the
//! queries meet them.
//!
//! In the gradient, those of a block's keys and values follow it and are added to where they arrive: while they are on
//! their way, the gradient for the queries is computed.

use std::mem::swap;
use std::sync::Arc;

use pipeplan_core::graph::{Axis, SequencePart, Spread};

use super::card::{Card, CardError, Format, Held, Memory};
use super::launch::{Context, Meeting, OF_ROW};
use super::{packed, unpacked};
use crate::backend::BackendError;
use crate::backend::peers::{Peers, Reach, Ticket};
use crate::transport::{Buffer, OnCard};

/// What all of it needs.
pub(crate) struct Ring<'a> {
    pub card: &'a Arc<dyn Card>,
    pub context: &'a Context,
    pub spread: &'a Spread,
    /// Of the tensors.
    pub format: Format,
    /// Rows of this rank.
    pub rows: u64,
    pub peers: &'a mut dyn Peers,
}

/// What a gradient needs of the queries and of what they made.
pub(crate) struct Seen<'a> {
    pub d_o: &'a Memory,
    pub q: &'a Memory,
    pub o: &'a Memory,
    pub l: &'a Memory,
}

/// Keys with their values, or the gradients of both: one behind the other.
struct Block {
    memory: Arc<Memory>,
    /// Bytes of the first.
    keys: u64,
}

/// Two pieces that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// The first row of the queries, of those of one sequence.
    query: u64,
    /// The first row of the keys.
    key: u64,
    /// Rows of each.
    rows: u64,
    /// How much later in the sequence the queries lie.
    lead: u64,
}

/// How a block goes on.
enum Passing {
    /// It has arrived.
    Done,
    /// The device waits for it where it is taken.
    OnDevices(Ticket),
    /// Through host memory.
    ByHost(Ticket),
}

impl Ring<'_> {
    /// `q`, `k` and `v` to `o` and `l`, with room for two blocks in `ring`.
    pub(crate) fn attention(
        &mut self,
        [q, k, v]: [&Memory; 3],
        [o, l]: [&Memory; 2],
        ring: &Arc<Memory>,
    ) -> Result<(), BackendError> {
        let [mut here, mut next] = blocks(ring, [k, v]);
        self.put(&here, [k, v])?;
        for step in 0..self.parts() {
            let on_its_way = (step + 1 < self.parts()).then(|| self.pass(&here, &next)).transpose()?;
            for pair in self.pairs(step) {
                let [query, key] = [self.of_queries(pair), self.of_keys(pair)];
                let buffers = [
                    q.after(query.keys),
                    here.keys(key),
                    here.values(key),
                    o.after(query.values),
                    l.after(query.sums),
                ];
                self.context.attention(self.spread, &self.meeting(pair), &buffers.map(|at| at.number()))?;
            }
            if let Some(passing) = on_its_way {
                self.take(passing, &next)?;
                swap(&mut here, &mut next);
            }
        }
        Ok(())
    }

    /// The gradients for queries, keys and values, with room for four blocks in `ring`.
    pub(crate) fn attention_grad(
        &mut self,
        seen: &Seen<'_>,
        [k, v]: [&Memory; 2],
        [dq, dk, dv]: [&Memory; 3],
        ring: &Arc<Memory>,
    ) -> Result<(), BackendError> {
        let [mut here, mut next, mut gradient, mut arriving] = blocks(ring, [k, v]);
        self.put(&here, [k, v])?;
        // The gradients of the block that was here before, on their way to the next rank.
        let mut behind = None;
        let of_rows = self.context.of_rows(self.spread, self.rows, self.format)?;
        let noted = |pair: Pair| of_rows.as_ref().map_or(0, |memory| memory.after(OF_ROW * pair.query).number());
        for step in 0..self.parts() {
            let on_its_way = (step + 1 < self.parts()).then(|| self.pass(&here, &next)).transpose()?;
            let pairs = self.pairs(step);
            let buffers = |ring: &Self, pair| {
                let [query, key] = [ring.of_queries(pair), ring.of_keys(pair)];
                let (d_o, o, l) =
                    (seen.d_o.after(query.values), seen.o.after(query.values), seen.l.after(query.sums));
                let inputs = [d_o, seen.q.after(query.keys), here.keys(key), here.values(key), o, l];
                (inputs.map(|at| at.number()), query, key)
            };
            for pair in pairs.iter().copied() {
                let ([d_o, q, k, v, o, l], query, _) = buffers(self, pair);
                let all = [d_o, q, k, v, o, l, dq.after(query.keys).number(), noted(pair)];
                self.context.attention_grad_query(self.spread, &self.meeting(pair), &all)?;
            }
            if let Some(passing) = behind.take() {
                self.take(passing, &arriving)?;
                swap(&mut gradient, &mut arriving);
            }
            for pair in pairs.iter().copied() {
                let ([d_o, q, k, v, o, l], _, key) = buffers(self, pair);
                let [dk, dv] = [gradient.keys(key), gradient.values(key)].map(|at| at.number());
                let all = [d_o, q, k, v, o, l, dk, dv, noted(pair)];
                self.context.attention_grad_key(self.spread, &self.meeting(pair), &all)?;
            }
            behind = Some(self.pass(&gradient, &arriving)?);
            if let Some(passing) = on_its_way {
                self.take(passing, &next)?;
                swap(&mut here, &mut next);
            }
        }
        if let Some(passing) = behind {
            self.take(passing, &arriving)?;
        }
        self.card.copy(arriving.memory.at(), dk.at(), dk.bytes())?;
        Ok(self.card.copy(arriving.memory.after(arriving.keys), dv.at(), dv.bytes())?)
    }

    fn part(&self) -> SequencePart {
        self.context.part
    }

    fn parts(&self) -> u64 {
        self.part().parts
    }

    /// Rows of one sequence on this rank.
    fn step(&self) -> u64 {
        self.spread.heads.sequence / self.parts()
    }

    fn put(&self, block: &Block, [k, v]: [&Memory; 2]) -> Result<(), CardError> {
        self.card.copy(k.at(), block.memory.at(), k.bytes())?;
        self.card.copy(v.at(), block.memory.after(block.keys), v.bytes())
    }

    /// The pieces that meet after `step` steps of the ring.
    fn pairs(&self, step: u64) -> Vec<Pair> {
        pairs(self.part(), self.part().after(step), self.spread)
    }

    /// Pieces that are one piece come first of all that their queries meet, and that their keys do; the others' results are
    /// added to theirs.
    fn meeting(&self, Pair { rows, lead, .. }: Pair) -> Meeting {
        let (format, sequences, step) = (self.format, self.rows / self.step(), self.step());
        Meeting { format, sequences, step, rows, lead, adds: lead > 0 }
    }

    fn of_queries(&self, pair: Pair) -> Offsets {
        Offsets::of(pair.query * self.spread.heads.query, self.spread, self.format)
    }

    fn of_keys(&self, pair: Pair) -> Offsets {
        Offsets::of(pair.key * self.spread.heads.key_value, self.spread, self.format)
    }

    /// Begins to send `from` to the next rank, and to take what the one before this one sends at `to`.
    fn pass(&mut self, from: &Block, to: &Block) -> Result<Passing, BackendError> {
        let shown = |memory: &Arc<Memory>| OnCard::new(memory.clone(), memory.bytes());
        match self.peers.reach(Axis::Context) {
            Reach::Host => {
                let values = Buffer::F32(unpacked(&from.memory.read()?, self.format));
                Ok(Passing::ByHost(self.peers.pass(Axis::Context, values)?))
            }
            Reach::Members(members) => {
                // What this rank writes next is no longer what the others are to read.
                let copy = Arc::new(from.memory.copied_to(self.card, Held::ByOthers)?);
                let all = self.peers.show(Axis::Context, shown(&copy))?;
                let before = (self.part().part as usize + members - 1) % members;
                let Ok(theirs) = all[before].content().downcast::<Memory>() else {
                    return Err(CardError::call("a ring", "the other ranks are not on such a GPU").into());
                };
                self.card.copy(theirs.at(), to.memory.at(), to.memory.bytes())?;
                // The others' memory is let go of behind this.
                self.card.finish()?;
                Ok(Passing::Done)
            }
            Reach::Engine => {
                let from_to = (&shown(&from.memory), &shown(&to.memory));
                Ok(Passing::OnDevices(self.peers.pass_on_card(Axis::Context, from_to)?))
            }
        }
    }

    /// What has been passed is at `to` for all that the device is asked for from here on.
    fn take(&mut self, passing: Passing, to: &Block) -> Result<(), BackendError> {
        match passing {
            Passing::Done => Ok(()),
            Passing::OnDevices(ticket) => self.peers.join(ticket),
            Passing::ByHost(ticket) => match self.peers.wait(ticket)? {
                Buffer::F32(values) => Ok(self.card.write(to.memory.at(), &packed(&values, self.format))?),
                _ => Err(CardError::call("a ring", "the other ranks did not give f32 values").into()),
            },
        }
    }
}

/// Where that number of heads of rows starts, in bytes.
#[derive(Clone, Copy)]
struct Offsets {
    /// In queries and keys.
    keys: u64,
    /// In values and outputs.
    values: u64,
    /// In log-sum-exps.
    sums: u64,
}

impl Offsets {
    fn of(heads: u64, spread: &Spread, format: Format) -> Offsets {
        let bytes = format.bytes();
        Offsets {
            keys: heads * spread.heads.width * bytes,
            values: heads * spread.value_width * bytes,
            sums: heads * 4,
        }
    }
}

impl Block {
    fn keys(&self, at: Offsets) -> super::card::Address {
        self.memory.after(at.keys)
    }

    fn values(&self, at: Offsets) -> super::card::Address {
        self.memory.after(self.keys + at.values)
    }
}

/// As many blocks as `ring` has room for.
fn blocks<const N: usize>(ring: &Arc<Memory>, [k, v]: [&Memory; 2]) -> [Block; N] {
    let bytes = k.bytes() + v.bytes();
    std::array::from_fn(|at| Block {
        memory: Arc::new(Memory::part(ring, at as u64 * bytes, bytes)),
        keys: k.bytes(),
    })
}

/// Pieces of `mine` that see some key of pieces of `theirs`: first those that are one piece.
fn pairs(mine: SequencePart, theirs: SequencePart, spread: &Spread) -> Vec<Pair> {
    let sequence = spread.heads.sequence;
    let mut pairs = Vec::new();
    for (early, queries) in mine.pieces(sequence).into_iter().enumerate() {
        for (of, keys) in theirs.pieces(sequence).into_iter().enumerate() {
            let rows = queries.end - queries.start;
            // The last key is the nearest to the first query.
            let sees = keys.start == queries.start
                || keys.end <= queries.start && keys.end - 1 + spread.window > queries.start;
            if sees {
                let (query, key) = (early as u64 * rows, of as u64 * rows);
                pairs.push(Pair { query, key, rows, lead: queries.start - keys.start });
            }
        }
    }
    pairs.sort_by_key(|pair| pair.lead);
    pairs
}

#[cfg(test)]
mod tests {
    use pipeplan_core::graph::Heads;

    use super::*;

    /// Over all steps of all ranks, every query meets every key that it sees once, and pieces that meet nothing are left out.
    #[test]
    fn every_query_meets_what_it_sees_once() {
        for (sequence, parts, window) in [(8, 2, 8), (24, 3, 24), (24, 4, 5), (60, 5, 1), (64, 4, 9), (64, 4, 8)] {
            let heads = Heads::usual(sequence, [1, 1], 1);
            let spread = Spread { heads, value_width: 1, ways: parts, window };
            let mut met = vec![vec![0; sequence as usize]; sequence as usize];
            for (mine, theirs) in (0..parts).flat_map(|mine| (0..parts).map(move |theirs| (mine, theirs))) {
                let [mine, theirs] = [mine, theirs].map(|part| SequencePart { part, parts });
                for (at, pair) in pairs(mine, theirs, &spread).into_iter().enumerate() {
                    let mut sees_any = false;
                    for (i, j) in (0..pair.rows).flat_map(|i| (0..pair.rows).map(move |j| (i, j))) {
                        // As the kernels have it.
                        if j <= i + pair.lead && j + window > i + pair.lead {
                            let [query, key] =
                                [mine.position(sequence, pair.query + i), theirs.position(sequence, pair.key + j)];
                            met[query as usize][key as usize] += 1;
                            sees_any = true;
                        }
                    }
                    assert!(sees_any, "{pair:?} of {mine:?} and {theirs:?} within {window}");
                    assert_eq!(pair.lead == 0, mine == theirs && at < 2, "{pair:?} is no {at}th");
                }
            }
            for (query, met) in met.iter().enumerate() {
                for (key, met) in met.iter().enumerate() {
                    let sees = key <= query && key + window as usize > query;
                    assert_eq!(*met, u32::from(sees), "query {query} and key {key} of {sequence} over {parts}");
                }
            }
        }
    }
}
