//! List scheduling of a linear pipeline with the times and bytes of the very microbatches: backwards first, forwards as far
//! ahead as memory and a number allow, W where a rank would wait.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Backward, Problem, Schedule};

/// What one rank has run. It holds one stage.
#[derive(Clone)]
struct Rank {
    /// How many F, B and W have run.
    done: [usize; 3],
    held: i64,
    room: i64,
    free: Nanos,
    row: Vec<Op>,
}

/// A schedule in which microbatches enter as in `order` and each stage before the last holds at most `ahead` more of them than
/// stages follow it. The slices of a sequence stand next to each other in `order`, and a stage may hold all of one besides;
/// their backwards run in reverse. `split` cuts backwards. None where the problem is no linear pipeline, or ranks would wait for ever.
pub(super) fn schedule(problem: &Problem, order: &[u32], ahead: usize, split: bool) -> Option<Schedule> {
    let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
    if problem.chunks() != 1
        || !(0..stages).all(|stage| [0, microbatches - 1].iter().all(|m| problem.rank_of(stage, *m) == stage))
    {
        return None;
    }
    let split = split && problem.backward() == Backward::Split;
    let room = |rank| match problem.limit_bytes(rank) {
        Some(limit) => limit as i64 - problem.static_bytes(rank) as i64,
        None => i64::MAX,
    };
    let new = |rank| Rank { done: [0; 3], held: 0, room: room(rank), free: 0, row: Vec::new() };
    let mut ranks: Vec<Rank> = (0..stages).map(new).collect();
    // When the input of the n-th F and B of each stage is there.
    let mut arrives = vec![[None; 2]; stages * microbatches];
    (0..microbatches).for_each(|n| arrives[n][0] = Some(0));
    let mut wake: BinaryHeap<Reverse<(Nanos, usize)>> = (0..stages).map(|rank| Reverse((0, rank))).collect();
    while let Some(Reverse((now, rank))) = wake.pop() {
        if ranks[rank].free > now {
            continue;
        }
        let (kind, next) = chosen(problem, &ranks[rank], rank, order, &arrives, (ahead, split), now);
        let Some(kind) = kind else {
            wake.extend(next.map(|next| Reverse((next, rank))));
            continue;
        };
        let at = &mut ranks[rank];
        let counter = match kind {
            OpKind::F => 0,
            OpKind::B | OpKind::BW => 1,
            OpKind::W => 2,
        };
        let n = at.done[counter];
        at.done[counter] += 1;
        if kind == OpKind::BW {
            at.done[2] += 1;
        }
        let microbatch = microbatch_of(problem, order, kind, n);
        let op = Op::new(rank, kind, microbatch);
        at.row.push(op);
        at.held += problem.takes(op) as i64 - problem.gives(op) as i64;
        let end = now + problem.duration(op);
        at.free = end;
        wake.push(Reverse((end, rank)));
        let (to, backward) = match kind {
            OpKind::F if rank + 1 == stages => (rank, 1),
            OpKind::F => (rank + 1, 0),
            OpKind::B | OpKind::BW if rank > 0 => (rank - 1, 1),
            _ => continue,
        };
        let hop = if to == rank { 0 } else { problem.hop_of(rank, to, microbatch) };
        let place = if to == rank { problem.nth_backward(n) } else { n };
        arrives[to * microbatches + place][backward] = Some(end + hop);
        wake.push(Reverse((end + hop, to)));
    }
    let all = |rank: &Rank| rank.done == [microbatches; 3];
    ranks.iter().all(all).then(|| Schedule::of(ranks.into_iter().map(|rank| rank.row).collect()))
}

/// What `rank` runs now; or when it has to look again.
fn chosen(
    problem: &Problem,
    at: &Rank,
    rank: usize,
    order: &[u32],
    arrives: &[[Option<Nanos>; 2]],
    (ahead, split): (usize, bool),
    now: Nanos,
) -> (Option<OpKind>, Option<Nanos>) {
    let microbatches = order.len();
    let [forward, backward, weight] = at.done;
    let fits = |kind: OpKind, n: usize| {
        let op = Op::new(rank, kind, microbatch_of(problem, order, kind, n));
        at.held.saturating_add(problem.takes(op) as i64) <= at.room
    };
    let mut next: Option<Nanos> = None;
    let mut later = |arrival: Nanos| next = Some(next.map_or(arrival, |next| next.min(arrival)));
    let whole = if split { OpKind::B } else { OpKind::BW };
    if backward < forward
        && let Some(arrival) = arrives[rank * microbatches + backward][1]
    {
        match arrival <= now {
            true if fits(whole, backward) => return (Some(whole), None),
            true => {}
            false => later(arrival),
        }
    }
    let most = problem.stage_count() - rank + problem.slices() - 1;
    let most = most.saturating_add(ahead);
    if forward < microbatches
        && forward - backward < most
        && fits(OpKind::F, forward)
        && let Some(arrival) = arrives[rank * microbatches + forward][0]
    {
        if arrival <= now {
            return (Some(OpKind::F), None);
        }
        later(arrival);
    }
    if split && weight < backward && fits(OpKind::W, weight) {
        let end = now + problem.duration(Op::new(rank, OpKind::W, microbatch_of(problem, order, OpKind::W, weight)));
        // A W that would make a known arrival wait comes later, unless memory waits for it.
        if next.is_none_or(|next| end <= next) {
            return (Some(OpKind::W), None);
        }
    }
    (None, next)
}

/// The microbatch of the `n`-th op of `kind` of a stage.
fn microbatch_of(problem: &Problem, order: &[u32], kind: OpKind, n: usize) -> usize {
    order[if kind == OpKind::F { n } else { problem.nth_backward(n) }] as usize
}
