//! The banker's algorithm (Dijkstra, EWD 108): whether a rank that takes memory now can still finish what it has begun.
//!
//! Each microbatch is a customer. A rank finishes its microbatches one after the other, oldest first, each with all its F and
//! then all its B. No op waits for a W, so W run where they fit: each as soon as there is room for what it needs while it runs. A
//! W that gives bytes back and fits now is never worth delaying, so this finishes whatever microbatches in this order can.

use alloc::vec::Vec;

use super::flat_problem::{B, BW, Chain, Code, F, Flat, Rows, W, code};
use crate::problem::MAX_CHUNKS;

// A bit for each lane of a rank: one per chunk, or one per direction.
const _: () = assert!(MAX_CHUNKS <= 64);

/// The memory of a rank at some point of its op list.
pub(super) struct Room {
    pub rank: usize,
    pub limit: i64,
    pub held: i64,
    /// The bytes that one microbatch alone needs.
    pub alone: i64,
    /// Whether the microbatches of two directions are admitted alternately, or those of the second after all of the
    /// first.
    pub in_turn: bool,
}

/// Whether `rank` has the memory for an op, now and for what has to follow.
pub(super) fn allowed(room: &Room, flat: &Flat, done: &[[u32; 3]], lane: usize, kind: u32) -> bool {
    let Room { limit, held, alone, .. } = *room;
    let costs = &flat.lanes[lane];
    if held + costs.takes[kind as usize] > limit {
        return false;
    }
    let net = costs.net(kind);
    net <= 0
        || held + net + alone <= limit
        || match room.in_turn && flat.chains.len() > 1 {
            true => stays_safe_in_turn(room, flat, done, lane, kind),
            false => stays_safe(room, flat, done, lane, kind),
        }
}

impl Flat {
    /// The least bytes above the static ones with which `rank` can run at all: one microbatch after the other.
    pub fn least(&self, rank: usize) -> i64 {
        let of_chain = |chain: usize| {
            let (mut low, mut high) = (0, 1);
            while alone(self, rank, chain, high).is_none() {
                (low, high) = (high + 1, high * 2);
            }
            while low < high {
                let middle = low + (high - low) / 2;
                match alone(self, rank, chain, middle) {
                    Some(_) => high = middle,
                    None => low = middle + 1,
                }
            }
            low
        };
        (0..self.chains.len()).map(of_chain).max().unwrap_or(0)
    }

    /// One microbatch after the other: fits wherever anything fits, as [`Flat::least`] has it.
    pub fn serial(&self) -> Rows {
        let row = |rank: usize| {
            let least = self.least(rank);
            let of_chain = |(chain, Chain { microbatches, .. }): (usize, &Chain)| {
                alone(self, rank, chain, least).unwrap_or_default().repeat(*microbatches)
            };
            self.chains.iter().enumerate().flat_map(of_chain).collect()
        };
        (0..self.ranks).map(row).collect()
    }
}

/// The ops of `rank` for a microbatch of `chain` that has all of `limit`; none where it does not fit.
fn alone(flat: &Flat, rank: usize, chain: usize, limit: i64) -> Option<Vec<Code>> {
    let mut rest = Completion { ran: Some(Vec::new()), ..Completion::new(flat, rank, limit, 0) };
    let fits = rest.microbatch(chain, |_| [false; 2]) && rest.finish();
    rest.ran.filter(|_| fits)
}

/// A rank that only finishes what it has begun.
struct Completion<'f> {
    flat: &'f Flat,
    lanes: &'f [usize],
    limit: i64,
    held: i64,
    /// By lane of the rank: W that have had their B and not yet their room.
    waits: [u32; MAX_CHUNKS],
    /// The lanes with such W, a bit each.
    waiting: u64,
    /// The ops that were run, where wanted.
    ran: Option<Vec<Code>>,
}

impl<'f> Completion<'f> {
    fn new(flat: &'f Flat, rank: usize, limit: i64, held: i64) -> Completion<'f> {
        Completion { flat, lanes: &flat.lanes_of[rank], limit, held, waits: [0; MAX_CHUNKS], waiting: 0, ran: None }
    }

    /// From after one more op of `kind` in `lane`; `so_far` counts F, B and W before it. And what F and B then are by lane.
    fn after<'s>(
        room: &Room,
        flat: &'f Flat,
        so_far: &'s [[u32; 3]],
        lane: usize,
        kind: u32,
    ) -> (Completion<'f>, impl Fn(usize) -> [u32; 2] + use<'s>) {
        let mut rest = Completion::new(flat, room.rank, room.limit, room.held + flat.lanes[lane].net(kind));
        let done = move |index: usize, job: u32| {
            let is_it = kind == job || kind == BW && job != F;
            so_far[index][job as usize] + u32::from(index == lane && is_it)
        };
        for (at, &index) in rest.lanes.iter().enumerate() {
            rest.owe(at, done(index, B) - done(index, W));
        }
        rest.drain();
        (rest, move |index| [done(index, F), done(index, B)])
    }

    /// Adds `count` W of a lane that wait.
    fn owe(&mut self, at: usize, count: u32) {
        self.waits[at] += count;
        self.waiting |= u64::from(count > 0) << at;
    }

    /// Runs one op; false where it does not fit.
    fn run(&mut self, at: usize, kind: u32) -> bool {
        let lane = &self.flat.lanes[self.lanes[at]];
        if self.held + lane.takes[kind as usize] > self.limit {
            return false;
        }
        self.held += lane.net(kind);
        if let Some(ran) = &mut self.ran {
            ran.push(code(self.lanes[at], kind));
        }
        if kind == B {
            self.owe(at, 1);
        }
        true
    }

    /// Runs all W that fit and leave no more than they find.
    fn drain(&mut self) {
        let mut before = 0;
        while self.waiting != before {
            before = self.waiting;
            let mut left = before;
            while left != 0 {
                let at = left.trailing_zeros() as usize;
                left &= left - 1;
                let lane = &self.flat.lanes[self.lanes[at]];
                if lane.net(W) <= 0 && self.held + lane.takes[W as usize] <= self.limit {
                    let count = core::mem::take(&mut self.waits[at]);
                    self.held += lane.net(W) * i64::from(count);
                    if let Some(ran) = &mut self.ran {
                        ran.extend((0..count).map(|_| code(self.lanes[at], W)));
                    }
                    self.waiting &= !(1 << at);
                }
            }
        }
    }

    /// Runs what a microbatch of `chain` has left of F and B; `is_done` says by lane what it has had of each.
    fn microbatch(&mut self, chain: usize, is_done: impl Fn(usize) -> [bool; 2]) -> bool {
        let (flat, lanes) = (self.flat, self.lanes);
        let of_chain = |at: &usize| flat.lanes[lanes[*at]].chain == chain;
        let backward = if flat.fused { BW } else { B };
        let mut run = |at: usize, kind: u32| {
            let fits = self.run(at, kind);
            self.drain();
            fits
        };
        (0..lanes.len()).filter(of_chain).filter(|at| !is_done(lanes[*at])[0]).all(|at| run(at, F))
            && (0..lanes.len())
                .rev()
                .filter(of_chain)
                .filter(|at| !is_done(lanes[*at])[1])
                .all(|at| run(at, backward))
    }

    /// Runs the W that are left; false where one does not fit.
    fn finish(&mut self) -> bool {
        self.drain();
        (0..self.lanes.len()).all(|at| {
            let count = core::mem::take(&mut self.waits[at]);
            (0..count).all(|_| self.run(at, W))
        })
    }
}

/// Whether `rank` could finish, after one more op, its microbatches one by one from the oldest; with two directions
/// those of the first before those of the second.
///
/// Microbatches of one chain that have come equally far form a block, since every lane takes them in
/// turn; the oldest of a block has the least memory left, so only it is looked at, unless W wait meanwhile.
fn stays_safe(room: &Room, flat: &Flat, so_far: &[[u32; 3]], lane: usize, kind: u32) -> bool {
    let (mut rest, done) = Completion::after(room, flat, so_far, lane, kind);
    for (index, chain) in flat.chains.iter().enumerate() {
        let lanes = || rest.lanes.iter().copied().filter(|lane| flat.lanes[*lane].chain == index);
        let Some(newest) = lanes().map(|lane| done(lane)[0]).max() else { continue };
        let mut oldest = lanes().map(|lane| done(lane)[1]).min().unwrap_or(newest);
        while oldest < newest {
            let edges =
                rest.lanes.iter().filter(|lane| flat.lanes[**lane].chain == index).flat_map(|lane| done(*lane));
            let block_end = edges.filter(|edge| *edge > oldest).min().unwrap_or(newest);
            let (nothing_waits, before) = (rest.waiting == 0, rest.held);
            if !rest.microbatch(index, |lane| done(lane).map(|count| count > oldest)) {
                return false;
            }
            oldest += 1;
            if nothing_waits && rest.waiting == 0 {
                // The others of the block go as this one.
                rest.held += (rest.held - before) * i64::from(block_end - oldest);
                oldest = block_end;
            }
        }
        // With two directions the first goes before the second, also where it has not yet come this far.
        if rest.held > 0 && (newest as usize) < chain.microbatches && rest.held + room.alone > room.limit {
            return false;
        }
    }
    rest.finish()
}

/// As [`stays_safe`], with the n-th microbatches of all directions before the next of any. At each rank those that have
/// not come yet and count as older need room in addition to those that have.
fn stays_safe_in_turn(room: &Room, flat: &Flat, so_far: &[[u32; 3]], lane: usize, kind: u32) -> bool {
    let (mut rest, done) = Completion::after(room, flat, so_far, lane, kind);
    let lanes = rest.lanes;
    let oldest = lanes.iter().map(|lane| done(*lane)[1]).min().unwrap_or(0);
    let newest = lanes.iter().map(|lane| done(*lane)[0]).max().unwrap_or(0);
    for n in oldest..newest {
        for (index, chain) in flat.chains.iter().enumerate() {
            if n as usize >= chain.microbatches {
                continue;
            }
            let mut of_chain = lanes.iter().filter(|lane| flat.lanes[**lane].chain == index);
            if of_chain.all(|lane| done(*lane)[0] <= n) {
                // What it takes it gives back.
                if rest.held + room.alone > room.limit {
                    return false;
                }
            } else if !rest.microbatch(index, |lane| done(lane).map(|count| count > n)) {
                return false;
            }
        }
    }
    rest.finish()
}
