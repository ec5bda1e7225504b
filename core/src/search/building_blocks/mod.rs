//! Building blocks: the ops of one microbatch in slots, repeated for every microbatch.
//!
//! In steady state a rank with V chunks has 3 V ops per microbatch. Give each its slots of a period, no two ops of a rank in one
//! slot. Then the block can be repeated every period for ever, and its slots alone say how long it keeps which bytes. The *slope*
//! of a block, the slots from one rank to the next, sets its memory. A slope that is no whole number, or that differs from rank to
//! rank, reaches the memory limits in between. A period with more slots than work serves where even the steepest block takes too
//! much, and a period of several microbatches reaches the rates in between.
//!
//! A block is built from the first forward to the last backward, each op in the first free slots after its input. The search
//! chooses the slope, how it changes along the ranks, and the gaps where a microbatch turns from chunk to chunk. Slots give an
//! order, which [`compact()`] then runs with the real times: ops move ahead into the idle time of the warm-up as far as memory
//! allows, and in the cool-down the gradients that other ranks wait for go first.
//!
//! Slots are assigned in two ways: one slot for each op, whatever its time, since a period can then be filled without a gap; and
//! slots in proportion to the op's time, since the order is then one that the times allow.
//!
//! Source: Qi, Wan, Huang and Lin, “Pipeline parallelism with controllable memory”, arXiv:2405.15362, §3 and §4, who enumerate
//! blocks of two chunks with whole slopes and one slot for each op.

use alloc::vec;
use alloc::vec::Vec;

use super::flat_problem::{B, BW, Code, F, Flat, Rows, UNLIMITED, W, code, kind_of, lane_of};
use super::makespan::Eval;
use crate::base::random::Random;

mod compact;
mod free_slots;

pub(super) use compact::compact;

use free_slots::{first_free, first_free_of_many};

/// Places are counted in so many parts of a slot, and slopes in so many parts of the steepest.
const PARTS: i64 = 16;
/// Most slots of a period: they stand in the bits of a word.
const MOST_SLOTS: usize = 128;
/// Slots of the work of one microbatch where an op has as many as its time asks for.
const FINE: u64 = 30;
/// Most microbatches of a period.
const MOST_COPIES: usize = 4;
/// Ways to set the gaps that are tried for one period.
const GAPS: usize = 216;
/// The least steep that is tried, in parts of the steepest.
const LEAST_STEEP: i64 = 9 * PARTS;

/// The shape of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockShape {
    /// Slots of the period, and microbatches.
    slots: usize,
    copies: usize,
    /// From rank to rank in parts of the shortest way, on the first rank and on the last.
    slope: [i64; 2],
    /// Picks the gaps at the ends of chunks.
    gaps: usize,
}

/// The slots of each lane's F, B and W (or F and BW), microbatch by microbatch of the period.
type Block = Vec<[usize; 3]>;

struct Builder<'a> {
    flat: &'a Flat,
    /// Slots of each lane's F, B (or BW) and W.
    lengths: Vec<[usize; 3]>,
    /// Hops into each lane's F and B, in parts of a slot.
    hops: Vec<[i64; 2]>,
    /// Slots of one microbatch's ops on the busiest rank.
    least: usize,
    /// By lane, its rank, and whether the lane before is on the same.
    ranks: Vec<usize>,
    stays: Vec<bool>,
    /// Of the present shape: the slope into each lane, and the gaps at the ends of chunks, counted along the path of a
    /// microbatch, in parts of a slot.
    slopes: Vec<i64>,
    gaps: Vec<i64>,
    busy: Vec<u128>,
    block: Block,
    /// Ops of a rank: slot within the period, periods before it, microbatch of the period, op.
    row: Vec<(usize, usize, usize, Code)>,
    ops: u64,
    effort: u64,
}

/// Orders from the blocks that fit best within the limit, best first as far as slots can tell, at most `most`. Looks
/// at about `effort` ops at most.
pub(super) fn orders(flat: &Flat, eval: &mut Eval, most: usize, effort: u64) -> Vec<Rows> {
    let mut rows: Vec<Rows> = Vec::new();
    if flat.chains.len() != 1 || 3 * flat.chunks() * MOST_COPIES > MOST_SLOTS {
        return rows;
    }
    for fine in [false, true] {
        let mut builder = Builder::new(flat, fine, effort / 2);
        let found = builder.found();
        let before = rows.len();
        // From steep to flat, evenly: which is best hangs on how many microbatches there are to fill the pipe with.
        let stride = found.len().div_ceil(most / 2).max(1);
        let spread = (0..stride).flat_map(|first| found.iter().skip(first).step_by(stride));
        for &shape in spread {
            if rows.len() - before >= most / 2 || builder.ops > effort {
                break;
            }
            if !builder.build(shape) {
                continue;
            }
            let new = builder.rows(&shape);
            builder.ops += flat.ops as u64;
            if (0..flat.ranks).all(|rank| flat.is_valid_row(rank, &new[rank])) && !rows.contains(&new) {
                rows.push(new);
            }
        }
        eval.ops += builder.ops;
    }
    rows
}

impl Builder<'_> {
    fn new(flat: &Flat, fine: bool, effort: u64) -> Builder<'_> {
        let work = |lanes: &Vec<usize>| -> u64 {
            let of = |lane: &usize| flat.lanes[*lane].duration[F as usize] + flat.lanes[*lane].duration[BW as usize];
            lanes.iter().map(of).sum()
        };
        let most = flat.lanes_of.iter().map(work).max().unwrap_or(0);
        let unit = (most / if fine { FINE } else { 3 * flat.chunks() as u64 }).max(1);
        let kinds: [u32; 3] = if flat.fused { [F, BW, W] } else { [F, B, W] };
        let lengths: Vec<[usize; 3]> = flat
            .lanes
            .iter()
            .map(|lane| {
                kinds.map(|kind| match (fine, kind) {
                    // At least one, so that what is short is not lost.
                    (true, kind) => ((lane.duration[kind as usize] + unit / 2) / unit).clamp(1, FINE) as usize,
                    (false, BW) => 2,
                    (false, _) => 1,
                })
            })
            .collect();
        let work = |lanes: &Vec<usize>| -> usize {
            let of = |lane: &usize| lengths[*lane].iter().take(if flat.fused { 2 } else { 3 }).sum::<usize>();
            lanes.iter().map(of).sum()
        };
        let least = flat.lanes_of.iter().map(work).max().unwrap_or(1).max(1);
        let parts = |hop: u64| (u128::from(hop) * PARTS as u128 / u128::from(unit)).min(1 << 20) as i64;
        Builder {
            hops: flat.lanes.iter().map(|lane| [parts(lane.hop_f), parts(lane.hop_b)]).collect(),
            ranks: flat.lanes.iter().map(|lane| lane.rank).collect(),
            stays: (0..flat.lanes.len())
                .map(|lane| lane > 0 && flat.lanes[lane - 1].rank == flat.lanes[lane].rank)
                .collect(),
            slopes: vec![0; flat.lanes.len()],
            gaps: vec![0; 2 * flat.chunks() - 1],
            busy: vec![0; flat.ranks],
            block: vec![[0; 3]; MOST_COPIES * flat.lanes.len()],
            row: Vec::new(),
            ops: 0,
            effort,
            lengths,
            least,
            flat,
        }
    }

    /// The blocks that fit the limit: short periods first, and within a period the blocks that take longest, since their
    /// ops wait least for others.
    fn found(&mut self) -> Vec<BlockShape> {
        let mut found: Vec<(BlockShape, i64)> = Vec::new();
        let least = self.least;
        let mut periods: Vec<(usize, usize)> = Vec::new();
        for copies in 1..=MOST_COPIES.min(self.flat.chains[0].microbatches) {
            let mut slots = least * copies;
            while slots <= MOST_SLOTS.min(4 * least * copies) {
                periods.push((slots, copies));
                slots += 1 + slots / 32;
            }
        }
        // Of equal rates the simplest counts.
        let rate = |(slots, copies): &(usize, usize)| slots * 12 / copies;
        periods.sort_by_key(|period| (rate(period), period.1));
        periods.dedup_by_key(|period| rate(period));
        let sustained = self.sustained();
        periods.retain(|(slots, copies)| *slots as i64 >= sustained.saturating_mul(*copies as i64) / PARTS);
        let mut useful = 0;
        for (slots, copies) in periods {
            let before = found.len();
            self.search(slots, copies, &mut found);
            useful += usize::from(found.len() > before);
            if useful == 3 || self.ops > self.effort {
                break;
            }
        }
        found.sort_by_key(|(shape, rise)| (rate(&(shape.slots, shape.copies)), -rise));
        found.into_iter().map(|(shape, _)| shape).collect()
    }

    /// Adds the steepest blocks that fit the limit, for many gaps and changes of slope.
    fn search(&mut self, slots: usize, copies: usize, found: &mut Vec<(BlockShape, i64)>) {
        let all = 6usize.saturating_pow(2 * self.flat.chunks() as u32 - 1).min(GAPS);
        let each = 20 * (copies * self.flat.lanes.len()) as u64;
        let ways = usize::try_from(self.effort / 5 / each).unwrap_or(all).clamp(all.min(12), all);
        let before = found.len();
        // Blocks that are steep evenly, at first, and at last.
        for bend in [0, -8, 8, -16, 16] {
            // The first combination has no gaps; the others come in no order.
            for gaps in (0..ways).map(|way| way * 91 % all) {
                let shape = |slope: i64| BlockShape {
                    slots,
                    copies,
                    slope: [(slope - bend).max(PARTS), (slope + bend).max(PARTS)],
                    gaps,
                };
                let (mut fits, mut over, mut slope) = (None, LEAST_STEEP + 1, PARTS);
                while slope < over {
                    if self.build(shape(slope)) && self.fits(&shape(slope)) {
                        fits = Some((slope, self.block[0][1] as i64));
                    } else if fits.is_none() {
                        break;
                    } else {
                        over = slope;
                    }
                    slope = fits.map_or(over, |(fits, _)| (fits + over) / 2);
                    if fits.is_some_and(|(fits, _)| fits == slope) {
                        break;
                    }
                }
                found.extend(fits.map(|(slope, rise)| (shape(slope), rise)));
            }
            // A bend only makes some part steeper.
            if found.len() == before || self.ops > self.effort {
                return;
            }
        }
    }

    /// The gap at the end of a chunk.
    fn gap(&self, shape: &BlockShape, turn: usize) -> i64 {
        let turns = 2 * self.flat.chunks() - 1;
        let sixths = match turns {
            ..=3 => (shape.gaps / 6usize.pow(turn as u32)) % 6,
            _ if shape.gaps == 0 => 0,
            _ => Random::new((shape.gaps * turns + turn) as u64).below(6) as usize,
        };
        (self.least * sixths / 6) as i64 * PARTS
    }

    /// Builds a block; false where an op finds no slot.
    fn build(&mut self, shape: BlockShape) -> bool {
        self.ops += (3 * self.flat.lanes.len() * shape.copies) as u64;
        self.busy.fill(0);
        self.set_ways(&shape);
        (0..shape.copies).all(|copy| self.place_copy(&shape, copy)) && {
            // With several microbatches a W that takes the first free slot could take it from an F or B.
            self.place_weights(&shape);
            true
        }
    }

    /// Works out slopes and gaps.
    fn set_ways(&mut self, shape: &BlockShape) {
        let bend = shape.slope[1] - shape.slope[0];
        let all = (2 * self.flat.ranks as i64 - 2).max(1);
        for lane in 1..self.slopes.len() {
            let along = (self.ranks[lane - 1] + self.ranks[lane]) as i64;
            self.slopes[lane] = shape.slope[0] + if bend == 0 { 0 } else { bend * along / all };
        }
        for turn in 0..self.gaps.len() {
            self.gaps[turn] = self.gap(shape, turn);
        }
    }

    /// Lays F and B of one microbatch of the period.
    fn place_copy(&mut self, shape: &BlockShape, copy: usize) -> bool {
        let (ranks, lanes) = (self.flat.ranks, self.ranks.len());
        let mut at = (copy * shape.slots / shape.copies) as i64 * PARTS;
        let mut turn = 0;
        // Lanes to go until the microbatch turns.
        let mut along = ranks;
        for lane in 0..lanes {
            if lane > 0 {
                let length = self.lengths[lane - 1][0] as i64 * PARTS;
                at += match self.stays[lane] {
                    true => length,
                    false => (length * self.slopes[lane] / PARTS).max(length + self.hops[lane][0]),
                };
                if along == 0 {
                    at += self.gaps[turn];
                    turn += 1;
                    along = ranks;
                }
            }
            along -= 1;
            let Some(slot) = self.take(lane, &mut at, self.lengths[lane][0], shape.slots) else { return false };
            self.block[copy * lanes + lane][0] = slot;
        }
        for lane in (0..lanes).rev() {
            at += match self.stays.get(lane + 1) {
                None => self.lengths[lane][0] as i64 * PARTS,
                Some(stays) => {
                    let length = self.lengths[lane + 1][1] as i64 * PARTS;
                    match stays {
                        true => length,
                        false => (length * self.slopes[lane + 1] / PARTS).max(length + self.hops[lane][1]),
                    }
                }
            };
            if along == 0 {
                at += self.gaps[turn];
                turn += 1;
                along = ranks;
            }
            along -= 1;
            let Some(slot) = self.take(lane, &mut at, self.lengths[lane][1], shape.slots) else { return false };
            self.block[copy * lanes + lane][1] = slot;
        }
        true
    }

    /// Lays every W into the first free slots after its B, or right after its B where too few are free in one piece.
    fn place_weights(&mut self, shape: &BlockShape) {
        if self.flat.fused {
            return;
        }
        for at in (0..shape.copies * self.flat.lanes.len()).rev() {
            let lane = at % self.flat.lanes.len();
            let soonest = self.block[at][1] + self.lengths[lane][1];
            let mut start = soonest as i64 * PARTS;
            self.block[at][2] = self.take(lane, &mut start, self.lengths[lane][2], shape.slots).unwrap_or(soonest);
        }
    }

    /// The first free slots of a lane's rank from `at` on, which then are taken.
    fn take(&mut self, lane: usize, at: &mut i64, length: usize, slots: usize) -> Option<usize> {
        let busy = &mut self.busy[self.ranks[lane]];
        let first = ((*at + PARTS - 1) / PARTS) as usize;
        if length > slots {
            return None;
        }
        let slot = if slots <= 64 {
            // Half a word is taken in half the time.
            let (slot, taken) = first_free(*busy as u64, first, length, slots)?;
            *busy |= u128::from(taken);
            slot
        } else {
            let (slot, taken) = first_free_of_many(*busy, first, length, slots)?;
            *busy |= taken;
            slot
        };
        *at = (*at).max(slot as i64 * PARTS);
        Some(slot)
    }

    /// Whether the block, repeated for ever, keeps within the limits.
    fn fits(&mut self, shape: &BlockShape) -> bool {
        (0..self.flat.ranks)
            .all(|rank| self.flat.limit[rank] >= UNLIMITED || self.peak(rank, shape) <= self.flat.limit[rank])
    }

    /// The least parts of a slot from microbatch to microbatch that memory can sustain, by Little's law: on each rank
    /// bytes of a microbatch times how long a block without gaps holds them, over the limit.
    fn sustained(&self) -> i64 {
        let flat = self.flat;
        let mut trip = 0;
        let mut held = vec![0i128; flat.ranks];
        for (index, lane) in flat.lanes.iter().enumerate().rev() {
            let [f, b, w] = self.lengths[index].map(|length| length as i64 * PARTS);
            if let Some(next) = flat.lanes.get(index + 1)
                && next.rank != lane.rank
            {
                trip += self.hops[index + 1][0] + self.hops[index][1];
            }
            trip += f + b;
            let until_w = if flat.fused { 0 } else { w };
            held[lane.rank] += i128::from(lane.net(F)) * i128::from(trip);
            held[lane.rank] += i128::from(lane.net(F) + lane.net(B)) * i128::from(until_w);
        }
        let sustained = |rank: usize| held[rank] / i128::from(flat.limit[rank].max(1));
        (0..flat.ranks).map(|rank| sustained(rank).min(1 << 40) as i64).max().unwrap_or(0)
    }

    /// Puts the ops of a rank into the order of slots.
    fn sort(&mut self, rank: usize, shape: &BlockShape) {
        self.row.clear();
        let kinds: &[u32] = if self.flat.fused { &[F, BW] } else { &[F, B, W] };
        for copy in 0..shape.copies {
            for &lane in &self.flat.lanes_of[rank] {
                for (kind, slot) in kinds.iter().zip(self.block[copy * self.flat.lanes.len() + lane]) {
                    self.row.push((slot % shape.slots, slot / shape.slots, copy, code(lane, *kind)));
                }
            }
        }
        self.row.sort_unstable();
    }

    /// How many microbatches of a period's `copy` there are in all.
    fn count(&self, shape: &BlockShape, copy: usize) -> usize {
        (self.flat.chains[0].microbatches + shape.copies - 1 - copy) / shape.copies
    }

    /// The most that a rank holds.
    fn peak(&mut self, rank: usize, shape: &BlockShape) -> i64 {
        self.sort(rank, shape);
        let lane = |code: Code| (&self.flat.lanes[lane_of(code)], kind_of(code));
        // Each period starts with what the periods before have left: microbatch by microbatch the same ops, of
        // which an op with a period more before it has run once less.
        let mut held: i64 = 0;
        for (_, before, copy, code) in &self.row {
            let (lane, kind) = lane(*code);
            held -= lane.net(kind) * (*before).min(self.count(shape, *copy)) as i64;
        }
        let mut peak = held;
        for (.., code) in &self.row {
            let (lane, kind) = lane(*code);
            peak = peak.max(held + lane.takes[kind as usize]);
            held += lane.net(kind);
        }
        peak
    }

    /// The block for every microbatch, period after period.
    fn rows(&mut self, shape: &BlockShape) -> Rows {
        (0..self.flat.ranks)
            .map(|rank| {
                self.sort(rank, shape);
                let counts: Vec<usize> = (0..shape.copies).map(|copy| self.count(shape, copy)).collect();
                let periods = self.row.iter().map(|(_, before, copy, _)| before + counts[*copy]).max().unwrap_or(0);
                let mut row = Vec::with_capacity(counts[0] * self.row.len());
                for period in 0..periods {
                    let runs = |before: usize, copy: usize| before <= period && period - before < counts[copy];
                    let ops = self.row.iter().filter(|(_, before, copy, _)| runs(*before, *copy));
                    row.extend(ops.map(|(.., code)| *code));
                }
                row
            })
            .collect()
    }
}
