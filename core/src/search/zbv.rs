//! The rule that made ZB-V, for any costs and any limit: forwards in waves, then backwards and forwards in
//! rounds, and W wherever it costs least.
//!
//! Stages that fold back (V, and waves of more chunks) let a microbatch come straight back from the last rank.
//! Then the following, op after op, each as early as it can start, leads to little idle time:
//!
//! 1. **Waves.** The first microbatch goes through all chunks, rank after rank. Before a wave reaches a rank,
//!    that rank and those which the wave has yet to reach take in further microbatches, as long as these
//!    forwards end before the wave arrives and leave room for it.
//! 2. **Top up.** Until the first backward arrives, ranks take further forwards: by the count of the rank before
//!    ([`TopUp::Counts`]), or as long as time and memory last ([`TopUp::Time`]).
//! 3. **Rounds.** One B on every rank, then one F on every rank, as far as what they need has run. While the op
//!    is on its way a whole W goes before it if one fits. If none fits whole, and the wait would leave the rank
//!    idle for longer than it is *allowed* to be, W may go first and make the op late. A W goes first as well
//!    where the op lacks memory.
//! 4. The W that remain.
//!
//! A rank is allowed the idle time of the worst rank so far. In a second pass the idle times of the first are
//! known: where a rank was idle for less than the worst, it is allowed the difference from the start. Passes
//! follow until one is no better. Then all ranks are allowed some share of the least worst that was reached.
//!
//! Memory is looked at as in [`list`](super::list): an op that takes bytes has to leave every microbatch of the
//! rank able to end, so a pass reaches its end at any limit at which one exists.
//!
//! Sources: Qi, Wan, Huang and Lin, “Pipeline parallelism with controllable memory”, arXiv:2405.15362, §4, and
//! “Zero bubble pipeline parallelism”, arXiv:2401.10241, §6, for the rule; the top-up by time and memory is that
//! of PaddlePaddle's ZB-V pass (pull request 63800).

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::eval::{Cost, Eval};
use super::flat::{B, F, Flat, Rows, W, code};
use super::list::{Room, allowed};

/// Schedules that are handed on.
const KEPT: usize = 3;

/// Eighths of the worst idle time that all ranks are granted.
const SHARES: [u64; 4] = [7, 6, 4, 2];

/// How ranks are filled before the first backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopUp {
    /// No rank starts backwards with fewer forwards than the rank before it.
    Counts,
    /// Whatever ends before the first backward arrives and fits.
    Time,
}

/// Which lane of a rank goes first in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefer {
    /// The first chunk in B, the last in F: what ends a microbatch soonest.
    End,
    /// What can start first.
    Soonest,
}

/// What a pass may do in more than one way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    top_up: TopUp,
    prefer_b: Prefer,
    prefer_f: Prefer,
    /// Whether W may make a B, or an F, late.
    late_b: bool,
    late_f: bool,
    /// Whether the ranks of a round go from the last to the first.
    reversed: bool,
}

/// The variants worth a pass, the most useful first: those of the 64 that were best somewhere in samples of the
/// public schedulers' V problems.
pub(super) fn variants() -> Vec<Variant> {
    use Prefer::{End, Soonest};
    let variant = |prefer_b, prefer_f, late_b, late_f| Variant {
        top_up: TopUp::Counts,
        prefer_b,
        prefer_f,
        late_b,
        late_f,
        reversed: false,
    };
    let usual = variant(End, End, true, true);
    vec![
        usual,
        variant(Soonest, End, true, false),
        Variant { reversed: true, ..variant(Soonest, Soonest, true, true) },
        variant(End, End, false, true),
        variant(End, Soonest, true, true),
        variant(End, End, true, false),
        variant(Soonest, End, true, true),
        variant(End, Soonest, true, false),
        Variant { reversed: true, ..usual },
        Variant { top_up: TopUp::Time, ..usual },
    ]
}

/// Whether the rule has anything to say: stages that fold back, B and W apart, one direction.
pub(super) fn applies(flat: &Flat) -> bool {
    let fold = |pair: &[super::flat::Lane]| pair[0].rank == pair[1].rank;
    flat.chains.len() == 1 && !flat.fused && flat.chunks() > 1 && flat.lanes.windows(2).any(fold)
}

/// What all variants lead to, each repeated while it gets better: the best few, best first, and how many ops
/// it took.
pub(super) fn candidates(flat: &Flat, eval: &mut Eval, most_ops: u64) -> (Vec<(Cost, Rows)>, u64) {
    let mut known: Vec<(Cost, Rows)> = Vec::new();
    let mut ops = 0;
    if !applies(flat) {
        return (known, ops);
    }
    let alone: Vec<i64> = (0..flat.ranks).map(|rank| flat.least(rank)).collect();
    let mut pass = |variant: Variant, granted: Vec<u64>| {
        if ops >= most_ops {
            return None;
        }
        ops += flat.ops as u64;
        let (rows, idle) = build(flat, &alone, variant, granted)?;
        let cost = eval.run(flat, &rows, u64::MAX)?;
        if known.iter().all(|(other, _)| *other != cost) {
            let at = known.partition_point(|(other, _)| *other < cost);
            known.insert(at, (cost, rows));
            known.truncate(KEPT);
        }
        Some(idle)
    };
    for variant in variants() {
        let mut granted = vec![0; flat.ranks];
        let mut best = u64::MAX;
        while let Some(idle) = pass(variant, granted) {
            let worst = idle.iter().copied().max().unwrap_or(0);
            if worst >= best {
                break;
            }
            best = worst;
            granted = grants(&idle);
        }
        // Or every rank may idle from the start for some of what the worst had to.
        if best < u64::MAX {
            for eighths in SHARES {
                pass(variant, vec![best / 8 * eighths; flat.ranks]);
            }
        }
    }
    (known, ops)
}

/// One pass over all ops.
struct Pass<'a> {
    flat: &'a Flat,
    variant: Variant,
    alone: &'a [i64],
    /// By lane: how many F, B and W have been placed.
    done: Vec<[u32; 3]>,
    /// By slot: when F and B end.
    end_f: Vec<u64>,
    end_b: Vec<u64>,
    clock: Vec<u64>,
    held: Vec<i64>,
    /// By rank: the lanes whose W wait, oldest first.
    weights: Vec<VecDeque<usize>>,
    /// By rank: idle time since its first op, and the most of any rank.
    idle: Vec<u64>,
    worst: u64,
    /// By rank: the idle time that an earlier pass leaves to it.
    granted: Vec<u64>,
    rows: Rows,
    placed: usize,
}

/// The rows that `variant` leads to, and the idle time of each rank. `granted` by rank is what an earlier pass
/// leaves to it (see [`grants`]). None where the ops do not all find a place.
pub(super) fn build(flat: &Flat, alone: &[i64], variant: Variant, granted: Vec<u64>) -> Option<(Rows, Vec<u64>)> {
    let per_rank = |rank: usize| flat.lanes_of[rank].iter().map(|lane| 3 * flat.lanes[*lane].count).sum();
    let mut pass = Pass {
        flat,
        variant,
        alone,
        done: vec![[0; 3]; flat.lanes.len()],
        end_f: vec![0; flat.slots],
        end_b: vec![0; flat.slots],
        clock: vec![0; flat.ranks],
        held: vec![0; flat.ranks],
        weights: vec![VecDeque::new(); flat.ranks],
        idle: vec![0; flat.ranks],
        worst: 0,
        granted,
        rows: (0..flat.ranks).map(|rank| Vec::with_capacity(per_rank(rank))).collect(),
        placed: 0,
    };
    pass.waves();
    pass.top_up();
    pass.rounds();
    (pass.placed == flat.ops).then_some((pass.rows, pass.idle))
}

/// What a pass with these idle times leaves to each rank of the next.
pub(super) fn grants(idle: &[u64]) -> Vec<u64> {
    let worst = idle.iter().copied().max().unwrap_or(0);
    idle.iter().map(|idle| worst - idle).collect()
}

impl Pass<'_> {
    /// When the next op of `kind`, F or B, has what it needs; none if that is not placed yet.
    fn arrival(&self, lane: usize, kind: u32) -> Option<u64> {
        let costs = &self.flat.lanes[lane];
        let n = self.done[lane][kind as usize];
        if n as usize >= costs.count {
            return None;
        }
        let from = |other: usize, slot: u32| self.flat.lanes[other].offset + slot as usize;
        match kind {
            F if costs.first => Some(0),
            F => (self.done[lane - 1][0] > n).then(|| self.end_f[from(lane - 1, n)] + costs.hop_f),
            _ if costs.last => (self.done[lane][0] > n).then(|| self.end_f[from(lane, n)]),
            _ => (self.done[lane + 1][1] > n).then(|| self.end_b[from(lane + 1, n)] + costs.hop_b),
        }
    }

    fn fits(&self, lane: usize, kind: u32) -> bool {
        let rank = self.flat.lanes[lane].rank;
        let (limit, held, alone) = (self.flat.limit[rank], self.held[rank], self.alone[rank]);
        let room = Room { rank, limit, held, alone, in_turn: false };
        allowed(&room, self.flat, &self.done, lane, kind)
    }

    /// Places the next op of a lane, as early as it can start.
    fn put(&mut self, lane: usize, kind: u32, arrival: u64) {
        let costs = &self.flat.lanes[lane];
        let rank = costs.rank;
        let start = self.clock[rank].max(arrival);
        if !self.rows[rank].is_empty() {
            self.idle[rank] += start - self.clock[rank];
            self.worst = self.worst.max(self.idle[rank]);
        }
        let end = start + costs.duration[kind as usize];
        let slot = costs.offset + self.done[lane][kind as usize] as usize;
        match kind {
            F => self.end_f[slot] = end,
            B => {
                self.end_b[slot] = end;
                self.weights[rank].push_back(lane);
            }
            _ => {}
        }
        self.clock[rank] = end;
        self.held[rank] += costs.net(kind);
        self.done[lane][kind as usize] += 1;
        self.rows[rank].push(code(lane, kind));
        self.placed += 1;
    }

    /// Places the oldest W that waits; false if there is none, or no memory for it.
    fn put_weight(&mut self, rank: usize) -> bool {
        let Some(&lane) = self.weights[rank].front() else { return false };
        if !self.fits(lane, W) {
            return false;
        }
        self.weights[rank].pop_front();
        self.put(lane, W, 0);
        true
    }

    /// Places a forward if it is there and fits.
    fn try_forward(&mut self, lane: usize) -> bool {
        match self.arrival(lane, F) {
            Some(arrival) if self.fits(lane, F) => {
                self.put(lane, F, arrival);
                true
            }
            _ => false,
        }
    }

    /// Lanes of a rank's chunk, `chunk` from 0.
    fn wave(&self, chunk: usize) -> core::ops::Range<usize> {
        chunk * self.flat.ranks..(chunk + 1) * self.flat.ranks
    }

    /// When the next F of `lane` would end.
    fn end_of_forward(&self, lane: usize) -> Option<u64> {
        let costs = &self.flat.lanes[lane];
        Some(self.arrival(lane, F)?.max(self.clock[costs.rank]) + costs.duration[0])
    }

    /// Bytes of one microbatch on all chunks of a rank.
    fn microbatch(&self, rank: usize) -> i64 {
        self.flat.lanes_of[rank].iter().map(|lane| self.flat.lanes[*lane].net(F)).sum()
    }

    /// Step 1: the first microbatch through every chunk.
    fn waves(&mut self) {
        let ranks = self.flat.ranks;
        for chunk in 0..self.flat.chunks() {
            for (at, lane) in self.wave(chunk).enumerate() {
                let rank = self.flat.lanes[lane].rank;
                let Some(arrival) = self.arrival(lane, F) else { return };
                // The first microbatches in stay on the ranks ahead of the wave until it has reached them. So
                // a rank with many still ahead keeps as many microbatches' bytes free, in proportion if the
                // limit is below what all ranks' would take.
                let ahead = (ranks - at) as i64;
                let most = self.microbatch(rank).saturating_mul(ranks as i64).min(self.flat.limit[rank]);
                let keep = most / ranks as i64 * ahead;
                let first = rank_lane(self.flat, rank);
                while chunk > 0
                    && at > 0
                    && self.held[rank] + keep <= self.flat.limit[rank]
                    && self.end_of_forward_through(first).is_some_and(|end| end <= arrival)
                {
                    if !self.send_to(first) {
                        break;
                    }
                }
                if !self.try_forward(lane) {
                    return;
                }
            }
        }
    }

    /// When a microbatch that enters now has run on `lane` of the first chunk.
    fn end_of_forward_through(&self, lane: usize) -> Option<u64> {
        if self.done[0][0] as usize >= self.flat.lanes[0].count {
            return None;
        }
        // What the ranks before have in advance comes first.
        let mut end = 0;
        for index in 0..=lane {
            let costs = &self.flat.lanes[index];
            let arrival = self.arrival(index, F).unwrap_or(end + costs.hop_f);
            end = arrival.max(self.clock[costs.rank]) + costs.duration[0];
        }
        Some(end)
    }

    /// One more forward of the first chunk on every rank up to `lane`.
    fn send_to(&mut self, lane: usize) -> bool {
        let before = self.done[lane][0];
        for index in 0..=lane {
            if !self.try_forward(index) && index == lane {
                return false;
            }
        }
        self.done[lane][0] > before
    }

    /// Step 2: further forwards on every rank, up to its first backward.
    fn top_up(&mut self) {
        let chunks = self.flat.chunks();
        // The first backward goes down the last chunk: when it reaches each rank.
        let wave: Vec<usize> = self.wave(chunks - 1).rev().collect();
        let mut due = 0;
        for (at, &lane) in wave.iter().enumerate() {
            let costs = &self.flat.lanes[lane];
            let rank = costs.rank;
            if at == 0 {
                due = self.clock[rank] + costs.duration[1];
                continue;
            }
            due += costs.hop_b;
            let mut chunk = 0;
            let mut missed = 0;
            while missed < chunks {
                let own = self.flat.lanes_of[rank][chunk];
                let go = match self.variant.top_up {
                    TopUp::Counts => {
                        let before = self.flat.lanes[wave[at - 1]].rank;
                        let last = |rank: usize| self.done[self.flat.lanes_of[rank][chunks - 1]][0];
                        self.forwards(rank) < self.forwards(before)
                            || (last(rank) <= last(before) && (last(before) as usize) < costs.count)
                    }
                    TopUp::Time => self.end_of_forward(own).is_some_and(|end| end <= due),
                };
                let mut any = false;
                if go {
                    // The ranks behind get the same, from the far end: what they hold comes this way.
                    let group: Vec<usize> = match self.variant.top_up {
                        TopUp::Counts => wave[at..].iter().rev().copied().collect(),
                        TopUp::Time => vec![lane],
                    };
                    for other in group {
                        let rank = self.flat.lanes[other].rank;
                        any |= self.try_forward(self.flat.lanes_of[rank][chunk]);
                    }
                }
                missed = if any { 0 } else { missed + 1 };
                chunk = (chunk + 1) % chunks;
            }
            due = due.max(self.clock[rank]) + costs.duration[1];
        }
    }

    fn forwards(&self, rank: usize) -> u32 {
        self.flat.lanes_of[rank].iter().map(|lane| self.done[*lane][0]).sum()
    }

    /// Steps 3 and 4.
    fn rounds(&mut self) {
        loop {
            let before = self.placed;
            for kind in [B, F] {
                for at in 0..self.flat.ranks {
                    let rank = if self.variant.reversed { self.flat.ranks - 1 - at } else { at };
                    self.turn(rank, kind);
                }
            }
            if self.placed == before {
                break;
            }
        }
        for rank in 0..self.flat.ranks {
            while self.put_weight(rank) {}
        }
    }

    /// One op of `kind` on `rank`, with the W that go before it.
    fn turn(&mut self, rank: usize, kind: u32) {
        let prefer = if kind == B { self.variant.prefer_b } else { self.variant.prefer_f };
        let lanes = &self.flat.lanes_of[rank];
        let mut refused = vec![false; lanes.len()];
        loop {
            let mut best: Option<(u64, usize, u64)> = None;
            for (position, &lane) in lanes.iter().enumerate() {
                if refused[position] {
                    continue;
                }
                let Some(arrival) = self.arrival(lane, kind) else { continue };
                let key = match prefer {
                    Prefer::End if kind == B => position as u64,
                    Prefer::End => (lanes.len() - 1 - position) as u64,
                    Prefer::Soonest => arrival.max(self.clock[rank]),
                };
                // Equal times: the later chunk first in F, the earlier in B.
                if best.is_none_or(|(other, _, _)| key < other || (kind == F && key == other)) {
                    best = Some((key, position, arrival));
                }
            }
            let Some((_, position, arrival)) = best else { return };
            let lane = lanes[position];
            // Only what waits can be given back: if that is not enough, W keep for gaps.
            let back: i64 = if self.fits(lane, kind) {
                0
            } else {
                self.weights[rank].iter().map(|lane| -self.flat.lanes[*lane].net(W)).sum()
            };
            if self.held[rank] - back + self.flat.lanes[lane].takes[kind as usize] <= self.flat.limit[rank] {
                while !self.fits(lane, kind) && self.put_weight(rank) {}
            }
            if !self.fits(lane, kind) {
                refused[position] = true;
                continue;
            }
            self.fill(rank, kind, arrival);
            self.put(lane, kind, arrival);
            return;
        }
    }

    /// W before an op that arrives at `arrival`.
    fn fill(&mut self, rank: usize, kind: u32, arrival: u64) {
        while let Some(&lane) = self.weights[rank].front()
            && self.clock[rank] + self.flat.lanes[lane].duration[2] <= arrival
        {
            if !self.put_weight(rank) {
                return;
            }
        }
        let wait = arrival.saturating_sub(self.clock[rank]);
        let allowed = self.worst.max(self.granted[rank]);
        let late = if kind == B { self.variant.late_b } else { self.variant.late_f };
        if late && self.idle[rank] + wait > allowed {
            self.put_weight(rank);
        }
    }
}

/// The lane of a rank's first chunk.
fn rank_lane(flat: &Flat, rank: usize) -> usize {
    flat.lanes_of[rank].first().copied().unwrap_or(0)
}
