//! From an order to a better one: local search along the critical path.
//!
//! An order costs what its *critical path* costs: a chain of ops from the end of the worst rank back to the
//! start, each starting exactly when the one before it on the same rank ends, or when what it needs arrives.
//! A change that leaves the path as it is cannot make the order cheaper, so only ops on the path are moved, or
//! moved across: every other change is skipped and nothing is lost.
//!
//! A move takes one op of a row out and puts it back elsewhere in the same row. It is tried by running the
//! whole order; that stops early where the order cannot be accepted any more. Moves that are a little worse
//! are accepted too, less and less as the effort is used up (threshold accepting, Dueck and Scheuer 1990).

use alloc::vec;
use alloc::vec::Vec;

use super::eval::{Cost, Eval};
use super::flat::{B, BW, Code, F, Flat, Rows, W, kind_of, lane_of};
use super::random::Random;

/// An op on the critical path.
#[derive(Clone, Copy)]
struct Step {
    rank: usize,
    at: usize,
    /// Whether the op could start sooner if its rank were free: the path goes on along the rank.
    held_by_rank: bool,
}

pub(super) struct Improve {
    pub rows: Rows,
    pub cost: Cost,
    starts: Vec<Vec<u64>>,
    /// By rank and position: bytes held before the op, and how far F is ahead of B and B of W on its lane
    /// after it.
    before: Vec<Vec<Before>>,
    /// The position of the n-th F and B of each lane in its rank's row.
    at_f: Vec<u32>,
    at_b: Vec<u32>,
    path: Vec<Step>,
    /// Moves accepted since the path was found. It changes little with most of them.
    stale: u32,
}

#[derive(Clone, Copy, Default)]
struct Before {
    held: i64,
    lead_b: i32,
    lead_w: i32,
}

impl Improve {
    pub fn new(flat: &Flat, rows: Rows, cost: Cost) -> Improve {
        let before = (0..flat.ranks).map(|rank| befores(flat, rank, &rows[rank])).collect();
        Improve {
            before,
            starts: rows.iter().map(|row| vec![0; row.len()]).collect(),
            rows,
            cost,
            at_f: vec![0; flat.slots],
            at_b: vec![0; flat.slots],
            path: Vec::new(),
            stale: u32::MAX,
        }
    }

    /// Tries one move; true where it was accepted. `slack` is by how much the objective may get worse.
    pub fn step(&mut self, flat: &Flat, eval: &mut Eval, random: &mut Random, slack: u64) -> bool {
        // A try that is turned down before it is run is not for nothing either.
        eval.ops += 10;
        if self.stale > 20 {
            self.stale = 0;
            self.trace(flat, eval, random);
        }
        if self.path.is_empty() {
            return false;
        }
        let step = self.path[random.below(self.path.len() as u64) as usize];
        let Some((from, to)) = self.pick(flat, step, random) else { return false };
        // Most moves take one op. Where memory is short, what takes bytes and what gives them back have to move
        // together: a block of ops, or two ops that change places.
        let row = &mut self.rows[step.rank];
        let change = match random.below(6) {
            0 => Change::Block { from, to, length: (2 + random.below(3) as usize).min(from.abs_diff(to)) },
            1 => Change::Swap { from, to },
            _ => Change::Shift { from, to },
        };
        change.apply(row);
        let valid = match change {
            Change::Shift { from, to } => fits(flat, step.rank, &self.before[step.rank], row, from, to),
            _ => is_ordered(flat, step.rank, row),
        };
        if !valid {
            change.undo(row);
            return false;
        }
        let cutoff = self.cost.objective.saturating_add(slack);
        match eval.run(flat, &self.rows, cutoff) {
            Some(cost) if cost <= self.cost || (slack > 0 && cost.objective <= cutoff) => {
                self.stale = if cost.objective < self.cost.objective { u32::MAX } else { self.stale + 1 };
                self.cost = cost;
                self.before[step.rank] = befores(flat, step.rank, &self.rows[step.rank]);
                true
            }
            _ => {
                change.undo(&mut self.rows[step.rank]);
                false
            }
        }
    }

    /// Which op to move where: positions in the row before the move.
    fn pick(&self, flat: &Flat, step: Step, random: &mut Random) -> Option<(usize, usize)> {
        let row = &self.rows[step.rank];
        let reach = 3 * flat.lanes_of[step.rank].len() as u64 + 3;
        let reach = if random.below(4) == 0 { 4 * reach } else { reach };
        let distance = 1 + random.below(reach) as usize;
        let at = step.at;
        match random.below(if step.held_by_rank { 4 } else { 6 }) {
            // The op itself sooner, or later.
            0 => Some((at, at.checked_sub(distance)?)),
            1 => (at + distance < row.len()).then_some((at, at + distance)),
            // One from before it to after it.
            2 => Some((at.checked_sub(distance)?, at)),
            // One from after it to before it.
            3 => (at + distance < row.len()).then_some((at + distance, at)),
            // The rank is idle before the op: let the next W, or another op, run there.
            _ => {
                let far = (at + 1 + 4 * distance).min(row.len());
                let next = row[at..far].iter().position(|code| kind_of(*code) == W)?;
                Some((at + next, at))
            }
        }
        .filter(|(from, to)| from != to && (row[*from] != row[*to]))
    }

    /// Finds the critical path, going back from the end of the worst rank.
    fn trace(&mut self, flat: &Flat, eval: &mut Eval, random: &mut Random) {
        self.path.clear();
        let starts = &mut self.starts;
        if eval.run_with(flat, &self.rows, u64::MAX, |rank, at, start| starts[rank][at] = start).is_none() {
            return;
        }
        let mut done = vec![[0u32; 2]; flat.lanes.len()];
        for row in &self.rows {
            for (at, &code) in row.iter().enumerate() {
                let lane = lane_of(code);
                match kind_of(code) {
                    F => {
                        self.at_f[flat.lanes[lane].offset + done[lane][0] as usize] = at as u32;
                        done[lane][0] += 1;
                    }
                    B | BW => {
                        self.at_b[flat.lanes[lane].offset + done[lane][1] as usize] = at as u32;
                        done[lane][1] += 1;
                    }
                    _ => {}
                }
            }
        }
        let spans = flat.objective == crate::problem::Objective::LongestSpan;
        let length = |rank: &usize| eval.end[*rank] - if spans { eval.first[*rank] } else { 0 };
        let longest = (0..flat.ranks).map(|rank| length(&rank)).max().unwrap_or(0);
        let worst: Vec<usize> = (0..flat.ranks).filter(|rank| length(rank) == longest).collect();
        let mut rank = worst[random.below(worst.len() as u64) as usize];
        let Some(last) = self.rows[rank].len().checked_sub(1) else { return };
        let mut at = last;
        // Each op is met at most once: the path goes back in time, or along a row.
        for _ in 0..flat.ops {
            let code = self.rows[rank][at];
            let start = self.starts[rank][at];
            let by_rank = at > 0 && {
                let before = self.rows[rank][at - 1];
                self.starts[rank][at - 1] + flat.lanes[lane_of(before)].duration[kind_of(before) as usize] == start
            };
            let by_data = self.needed(flat, eval, rank, at, code, start);
            self.path.push(Step { rank, at, held_by_rank: by_rank });
            match by_data {
                Some((other, position)) if !by_rank || random.below(2) == 0 => {
                    rank = other;
                    at = position;
                }
                _ if by_rank => at -= 1,
                _ => break,
            }
        }
    }

    /// The op on another rank for whose arrival the op at `at` waits.
    fn needed(
        &self,
        flat: &Flat,
        eval: &Eval,
        rank: usize,
        at: usize,
        code: Code,
        start: u64,
    ) -> Option<(usize, usize)> {
        let index = lane_of(code);
        let lane = &flat.lanes[index];
        match kind_of(code) {
            F if !lane.first => {
                let n = self.number(flat, rank, at, code);
                let before = &flat.lanes[index - 1];
                (before.rank != rank && eval.arrive_f[lane.offset + n] == start)
                    .then(|| (before.rank, self.at_f[before.offset + n] as usize))
            }
            B | BW if !lane.last => {
                let n = self.number(flat, rank, at, code);
                let after = &flat.lanes[index + 1];
                (after.rank != rank && eval.arrive_b[lane.offset + n] == start)
                    .then(|| (after.rank, self.at_b[after.offset + n] as usize))
            }
            _ => None,
        }
    }

    /// How many ops like that at `at` stand before it.
    fn number(&self, flat: &Flat, _rank: usize, at: usize, code: Code) -> usize {
        let lane = &flat.lanes[lane_of(code)];
        let places = if kind_of(code) == F { &self.at_f } else { &self.at_b };
        places[lane.offset..lane.offset + lane.count].partition_point(|place| (*place as usize) < at)
    }
}

/// A change of a row that can be undone.
#[derive(Clone, Copy)]
enum Change {
    /// The op at `from` goes to `to`.
    Shift { from: usize, to: usize },
    /// The `length` ops up to `from` (or from it on) go past `to`: the ends of the range change sides.
    Block { from: usize, to: usize, length: usize },
    /// The two ops change places.
    Swap { from: usize, to: usize },
}

impl Change {
    fn apply(self, row: &mut [Code]) {
        match self {
            Change::Shift { from, to } => shift(row, from, to),
            Change::Swap { from, to } => row.swap(from, to),
            Change::Block { from, to, length } if from < to => row[from..=to].rotate_left(length),
            Change::Block { from, to, length } => row[to..=from].rotate_right(length),
        }
    }

    fn undo(self, row: &mut [Code]) {
        match self {
            Change::Shift { from, to } => shift(row, to, from),
            Change::Swap { from, to } => row.swap(from, to),
            Change::Block { from, to, length } if from < to => row[from..=to].rotate_right(length),
            Change::Block { from, to, length } => row[to..=from].rotate_left(length),
        }
    }
}

/// Whether every op of a complete row comes after what it needs on its lane, within the limit.
fn is_ordered(flat: &Flat, rank: usize, row: &[Code]) -> bool {
    befores(flat, rank, row).iter().zip(row).all(|(before, code)| {
        let takes = flat.lanes[lane_of(*code)].takes[kind_of(*code) as usize];
        before.lead_b >= 0 && before.lead_w >= 0 && before.held + takes <= flat.limit[rank]
    })
}

/// Moves the op at `from` to `to`.
fn shift(row: &mut [Code], from: usize, to: usize) {
    if from < to {
        row[from..=to].rotate_left(1);
    } else {
        row[to..=from].rotate_right(1);
    }
}

/// What [`Before`] says, for a whole row.
fn befores(flat: &Flat, rank: usize, row: &[Code]) -> Vec<Before> {
    let lanes = &flat.lanes_of[rank];
    let mut leads = vec![[0i32; 2]; lanes.len()];
    let mut held = 0;
    row.iter()
        .map(|&code| {
            let index = lane_of(code);
            let at = lanes.iter().position(|lane| *lane == index).unwrap_or(0);
            let [lead_b, lead_w] = &mut leads[at];
            lead(kind_of(code), lead_b, lead_w);
            let before = Before { held, lead_b: *lead_b, lead_w: *lead_w };
            held += flat.lanes[index].net(kind_of(code));
            before
        })
        .collect()
}

/// How an op changes how far F is ahead of B, and B of W.
fn lead(kind: u32, lead_b: &mut i32, lead_w: &mut i32) {
    match kind {
        F => *lead_b += 1,
        B => {
            *lead_b -= 1;
            *lead_w += 1;
        }
        BW => *lead_b -= 1,
        _ => *lead_w -= 1,
    }
}

/// Whether a row that was valid, with `before` of that time, still is after its op at `from` went to `to`.
fn fits(flat: &Flat, rank: usize, before: &[Before], row: &[Code], from: usize, to: usize) -> bool {
    let (first, last) = (from.min(to), from.max(to));
    let moved = row[to];
    let lane = lane_of(moved);
    // The leads of the moved op's lane just before the change: as after the moved op at its old place, or
    // after the first op of its lane that it now stands before, less what lay between.
    let old = before[from];
    let (mut lead_b, mut lead_w) = (old.lead_b, old.lead_w);
    let undo = |code: Code, lead_b: &mut i32, lead_w: &mut i32| {
        let (mut b, mut w) = (0, 0);
        lead(kind_of(code), &mut b, &mut w);
        *lead_b -= b;
        *lead_w -= w;
    };
    undo(moved, &mut lead_b, &mut lead_w);
    if to < from {
        for &code in &row[to + 1..=from] {
            if lane_of(code) == lane {
                undo(code, &mut lead_b, &mut lead_w);
            }
        }
    }
    let mut held = before[first].held;
    for &code in &row[first..=last] {
        let (costs, kind) = (&flat.lanes[lane_of(code)], kind_of(code));
        if lane_of(code) == lane {
            lead(kind, &mut lead_b, &mut lead_w);
            if lead_b < 0 || lead_w < 0 {
                return false;
            }
        }
        held += costs.takes[kind as usize];
        if held > flat.limit[rank] {
            return false;
        }
        held -= costs.gives[kind as usize];
    }
    true
}
