//! An order run with the real times: ops move ahead into idle time.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::search::flat_problem::{BW, Code, F, Flat, Rows, W, kind_of, lane_of};
use crate::search::makespan::Eval;

/// What stands on a rank so far.
#[derive(Clone, Default)]
struct Placed {
    /// Start, end, op, and bytes held before it.
    pub(super) ops: Vec<(u64, u64, Code, i64)>,
    pub(super) held: i64,
    forwards_left: usize,
    waiting: VecDeque<Code>,
}

impl Placed {
    fn free(&self) -> u64 {
        self.ops.last().map_or(0, |op| op.1)
    }

    pub(super) fn push(&mut self, flat: &Flat, code: Code, arrival: u64) -> u64 {
        let lane = &flat.lanes[lane_of(code)];
        let start = self.free().max(arrival);
        let end = start + lane.duration[kind_of(code) as usize];
        self.ops.push((start, end, code, self.held));
        self.held += lane.net(kind_of(code));
        end
    }

    /// Puts an op into idle time before the last op if it can start no later than `arrival` allows and memory
    /// stays within `limit`: the earliest such place among the last `far` ops.
    fn insert(&mut self, flat: &Flat, code: Code, arrival: u64, limit: i64, far: usize) -> Option<u64> {
        let lane = &flat.lanes[lane_of(code)];
        let kind = kind_of(code);
        let (takes, net, duration) = (lane.takes[kind as usize], lane.net(kind), lane.duration[kind as usize]);
        let mut best = None;
        for at in (0..self.ops.len()).rev().take(far) {
            let (start, _, other, held) = self.ops[at];
            let other_takes = flat.lanes[lane_of(other)].takes[kind_of(other) as usize];
            // Ops of one lane keep their order: the n-th of a kind is microbatch n.
            if other >> 2 == code >> 2 && kind_of(other) <= kind
                || held + net + other_takes > limit
                || start <= arrival
            {
                break;
            }
            let from = at.checked_sub(1).map_or(0, |before| self.ops[before].1).max(arrival);
            if from + duration <= start && held + takes <= limit {
                best = Some((at, from));
            }
        }
        let (at, from) = best?;
        let held = self.ops[at].3;
        self.ops.insert(at, (from, from + duration, code, held));
        for op in &mut self.ops[at + 1..] {
            op.3 += net;
        }
        self.held += net;
        Some(from + duration)
    }
}

/// What [`compact`] has placed so far.
struct Compact<'a> {
    pub(super) flat: &'a Flat,
    placed: Vec<Placed>,
    /// By lane and microbatch, when F and B end, as far as they are placed.
    end_f: Vec<u64>,
    end_b: Vec<u64>,
    /// By lane: how many F, B and W are placed.
    done: Vec<[usize; 3]>,
}

impl Compact<'_> {
    /// Places the next op of a rank; false where what it needs on another rank is not placed yet.
    fn place(&mut self, rank: usize, code: Code) -> bool {
        let flat = self.flat;
        let (index, kind) = (lane_of(code), kind_of(code));
        let lane = &flat.lanes[index];
        let limit = flat.limit[rank];
        let far = 12 * flat.lanes_of[rank].len();
        let job = if kind == BW { 1 } else { kind as usize };
        let n = self.done[index][job];
        let needed = match kind {
            F => index.checked_sub(1).filter(|_| !lane.first),
            W => None,
            _ => Some(index + 1).filter(|_| !lane.last),
        };
        if needed.is_some_and(|needed| self.done[needed][job] <= n) {
            return false;
        }
        let on = &mut self.placed[rank];
        self.done[index][job] += 1;
        match kind {
            F => {
                let arrival = needed.map_or(0, |needed| self.end_f[flat.lanes[needed].offset + n] + lane.hop_f);
                let end = on.insert(flat, code, arrival, limit, far);
                self.end_f[lane.offset + n] = end.unwrap_or_else(|| on.push(flat, code, arrival));
                on.forwards_left -= 1;
            }
            W if on.forwards_left == 0 => on.waiting.push_back(code),
            W => {
                let arrival = self.end_b[lane.offset + n];
                if on.insert(flat, code, arrival, limit, far).is_none() {
                    on.push(flat, code, arrival);
                }
            }
            _ => {
                let arrival = match needed {
                    Some(needed) => self.end_b[flat.lanes[needed].offset + n] + lane.hop_b,
                    None => self.end_f[lane.offset + n],
                };
                let fits = |on: &Placed| on.held + lane.takes[kind as usize] <= limit;
                while let Some(&weight) = on.waiting.front()
                    && (on.free() + flat.lanes[lane_of(weight)].duration[W as usize] <= arrival || !fits(on))
                {
                    on.waiting.pop_front();
                    on.push(flat, weight, 0);
                }
                let end = on.insert(flat, code, arrival, limit, far);
                self.end_b[lane.offset + n] = end.unwrap_or_else(|| on.push(flat, code, arrival));
            }
        }
        true
    }
}

/// `rows`, run with the real times: in the order of its row each op moves ahead into the earliest idle time that its
/// inputs and the limit allow; and once a rank has run its last forward, W waits for idle time. None where the ranks
/// wait for each other for ever.
///
/// Where an op goes depends on its own rank and on the ends of what it needs alone, so ranks may be gone through in any
/// order in which those are known.
pub(in crate::search) fn compact(flat: &Flat, eval: &mut Eval, rows: &[Vec<Code>]) -> Option<Rows> {
    let count = |rank: usize| flat.lanes_of[rank].iter().map(|lane| flat.lanes[*lane].count).sum();
    let placed = |rank: usize| Placed {
        ops: Vec::with_capacity(rows[rank].len()),
        forwards_left: count(rank),
        ..Placed::default()
    };
    let mut compact = Compact {
        flat,
        placed: (0..flat.ranks).map(placed).collect(),
        end_f: vec![0; flat.slots],
        end_b: vec![0; flat.slots],
        done: vec![[0; 3]; flat.lanes.len()],
    };
    let mut at = vec![0; flat.ranks];
    let mut ready: Vec<usize> = (0..flat.ranks).rev().collect();
    let mut is_ready = vec![true; flat.ranks];
    let mut ran = 0;
    while let Some(rank) = ready.pop() {
        is_ready[rank] = false;
        while let Some(&code) = rows[rank].get(at[rank])
            && compact.place(rank, code)
        {
            at[rank] += 1;
            ran += 1;
            let (index, kind) = (lane_of(code), kind_of(code));
            let wakes = match kind {
                F => Some(index + 1).filter(|_| !flat.lanes[index].last),
                W => None,
                _ => index.checked_sub(1).filter(|_| !flat.lanes[index].first),
            };
            if let Some(other) = wakes.map(|lane| flat.lanes[lane].rank)
                && !is_ready[other]
                && other != rank
            {
                is_ready[other] = true;
                ready.push(other);
            }
        }
    }
    eval.ops += ran as u64;
    if ran < rows.iter().map(Vec::len).sum::<usize>() {
        return None;
    }
    eval.ops += 3 * flat.ops as u64;
    let rows = compact.placed.into_iter().map(|mut on| {
        while let Some(weight) = on.waiting.pop_front() {
            on.push(flat, weight, 0);
        }
        on.ops.iter().map(|op| op.2).collect()
    });
    Some(rows.collect())
}
