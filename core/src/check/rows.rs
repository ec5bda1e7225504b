//! Op lists: every op stands once, ranks never wait in a circle, and no rank exceeds its limit, its copies to and from the host
//! counted.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::copies::{changes, check_copies};
use super::{CircleWait, MOST_REPORTED, Violation};
use crate::problem::copies::HostCopy;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Backward, Problem};

/// Every op once and in its place; then no circle; then memory.
pub(super) fn check_rows(
    problem: &Problem,
    rows: &[&[Op]],
    pairs: &[Vec<u32>],
    copies: &[Vec<HostCopy>],
    violations: &mut Vec<Violation>,
) {
    if rows.len() != problem.ranks() {
        violations.push(Violation::Rows { found: rows.len(), ranks: problem.ranks() });
        return;
    }
    check_census(problem, rows, violations);
    if violations.is_empty() {
        check_pairs(rows, pairs, violations);
    }
    if violations.is_empty() {
        check_copies(problem, rows, pairs, copies, violations);
    }
    if violations.is_empty() {
        check_circles(problem, rows, pairs, violations);
    }
    if violations.is_empty() {
        check_memory(problem, rows, pairs, copies, violations);
    }
}

pub(super) const F_RUNS: u8 = 1;
pub(super) const B_RUNS: u8 = 2;
const W_RUNS: u8 = 4;

fn check_census(problem: &Problem, rows: &[&[Op]], violations: &mut Vec<Violation>) {
    let microbatches = problem.microbatches();
    let mut seen = vec![0u8; problem.stage_count() * microbatches];
    for (rank, row) in rows.iter().enumerate() {
        for (index, &op) in row.iter().enumerate() {
            if violations.len() >= MOST_REPORTED {
                return;
            }
            if op.stage() >= problem.stage_count() || op.microbatch() >= microbatches {
                violations.push(Violation::Foreign { rank, index, op });
                continue;
            }
            let holder = problem.rank_of(op.stage(), op.microbatch());
            if holder != rank {
                violations.push(Violation::WrongRank { rank, index, op, holder });
                continue;
            }
            let runs = match op.kind() {
                OpKind::F => F_RUNS,
                OpKind::B => B_RUNS,
                OpKind::W => W_RUNS,
                OpKind::BW => B_RUNS | W_RUNS,
            };
            if problem.backward() == Backward::Fused && matches!(op.kind(), OpKind::B | OpKind::W) {
                violations.push(Violation::Cut { rank, index, op });
            }
            let seen = &mut seen[op.stage() * microbatches + op.microbatch()];
            if *seen & runs != 0 {
                violations.push(Violation::Twice { rank, index, op });
            }
            *seen |= runs;
        }
    }
    for stage in 0..problem.stage_count() {
        for microbatch in 0..microbatches {
            let runs = seen[stage * microbatches + microbatch];
            let lacks = [(F_RUNS, OpKind::F), (B_RUNS, OpKind::B), (W_RUNS, OpKind::W)];
            for (bit, kind) in lacks.into_iter().filter(|(bit, _)| runs & bit == 0) {
                if violations.len() >= MOST_REPORTED {
                    return;
                }
                // The whole backward of the stage is missing: this is reported once.
                let kind = if runs & (B_RUNS | W_RUNS) == 0 && kind != OpKind::F { OpKind::BW } else { kind };
                if kind != OpKind::BW || bit == B_RUNS {
                    violations.push(Violation::Missing { op: Op::new(stage, kind, microbatch) });
                }
            }
        }
    }
}

fn check_pairs(rows: &[&[Op]], pairs: &[Vec<u32>], violations: &mut Vec<Violation>) {
    if pairs.len() > rows.len() {
        violations.push(Violation::Rows { found: pairs.len(), ranks: rows.len() });
        return;
    }
    for (rank, places) in pairs.iter().enumerate() {
        let mut from = 0;
        for place in places {
            let index = *place as usize;
            let is_pair = matches!(
                rows[rank].get(index..index.saturating_add(2)),
                Some([first, second]) if first.kind() == OpKind::F && second.kind().makes_input_gradient()
            );
            if index < from || !is_pair {
                violations.push(Violation::Pair { rank, index });
                return;
            }
            from = index + 2;
        }
    }
}

/// How many ops run together from `index` on.
fn together(pairs: &[Vec<u32>], rank: usize, index: usize) -> usize {
    let is_pair = pairs.get(rank).is_some_and(|places| places.binary_search(&(index as u32)).is_ok());
    if is_pair { 2 } else { 1 }
}

/// Runs every rank as far as it can, with marks for ops that are done. Ranks that remain wait in circles. One circle is
/// followed: the input that a rank lacks is on a rank that cannot run either.
fn check_circles(problem: &Problem, rows: &[&[Op]], pairs: &[Vec<u32>], violations: &mut Vec<Violation>) {
    let microbatches = problem.microbatches();
    let last_stage = problem.stage_count() - 1;
    let mut done = vec![0u8; problem.stage_count() * microbatches];
    let lacking = |done: &[u8], op: Op| -> Option<Op> {
        let has = |stage: usize, bit: u8| done[stage * microbatches + op.microbatch()] & bit != 0;
        let lack = |stage: usize, kind: OpKind| Some(Op::new(stage, kind, op.microbatch()));
        let stage = op.stage();
        // Slices of a sequence wait for each other on their stage: F in order, and backwards in reverse.
        let slice = op.microbatch() % problem.slices();
        let beside = |microbatch: usize, kind: OpKind, bit: u8| {
            let is_done = done[stage * microbatches + microbatch] & bit != 0;
            (!is_done).then(|| Op::new(stage, kind, microbatch))
        };
        let waits = match op.kind() {
            OpKind::F if slice > 0 => beside(op.microbatch() - 1, OpKind::F, F_RUNS),
            OpKind::B | OpKind::BW if slice + 1 < problem.slices() => beside(op.microbatch() + 1, OpKind::B, B_RUNS),
            _ => None,
        };
        if waits.is_some() {
            return waits;
        }
        match op.kind() {
            OpKind::F if stage > 0 && !has(stage - 1, F_RUNS) => lack(stage - 1, OpKind::F),
            OpKind::B | OpKind::BW if !has(stage, F_RUNS) => lack(stage, OpKind::F),
            OpKind::B | OpKind::BW if stage < last_stage && !has(stage + 1, B_RUNS) => lack(stage + 1, OpKind::B),
            OpKind::W if !has(stage, B_RUNS) => lack(stage, OpKind::B),
            _ => None,
        }
    };
    let mut at = vec![0usize; rows.len()];
    // By rank: ops whose inputs have been looked at, one further than `at` within a pair.
    let mut passed = vec![0usize; rows.len()];
    // Ranks to look at: all at first, then those whose neighbour has made something.
    let mut look: VecDeque<usize> = (0..rows.len()).collect();
    while let Some(rank) = look.pop_front() {
        while let Some(&op) = rows[rank].get(at[rank]) {
            let group = &rows[rank][at[rank]..][..together(pairs, rank, at[rank])];
            // The second op of a pair runs with the first, so only with all inputs of both.
            if at[rank] >= passed[rank] && group.iter().any(|op| lacking(&done, *op).is_some()) {
                break;
            }
            passed[rank] = passed[rank].max(at[rank] + group.len());
            let (mark, reached) = match op.kind() {
                OpKind::F => (F_RUNS, (op.stage() < last_stage).then(|| op.stage() + 1)),
                OpKind::B => (B_RUNS, op.stage().checked_sub(1)),
                OpKind::W => (W_RUNS, None),
                OpKind::BW => (B_RUNS | W_RUNS, op.stage().checked_sub(1)),
            };
            done[op.stage() * microbatches + op.microbatch()] |= mark;
            at[rank] += 1;
            if let Some(stage) = reached {
                let neighbour = problem.rank_of(stage, op.microbatch());
                let waits_for_it = rows[neighbour]
                    .iter()
                    .skip(at[neighbour])
                    .take(2)
                    .any(|next| next.microbatch() == op.microbatch() && next.stage() == stage);
                if neighbour != rank && waits_for_it {
                    look.push_back(neighbour);
                }
            }
        }
    }
    let Some(start) = (0..rows.len()).find(|rank| at[*rank] < rows[*rank].len()) else { return };
    let mut waits: Vec<CircleWait> = Vec::new();
    let mut rank = start;
    loop {
        if let Some(first) = waits.iter().position(|wait| wait.rank == rank) {
            waits.drain(..first);
            violations.push(Violation::Circle { waits });
            return;
        }
        let group = &rows[rank][at[rank]..][..together(pairs, rank, at[rank])];
        let Some((op, needs)) = group.iter().find_map(|op| Some((*op, lacking(&done, *op)?))) else { return };
        waits.push(CircleWait { rank, index: at[rank], op, needs });
        rank = problem.rank_of(needs.stage(), needs.microbatch());
    }
}

fn check_memory(
    problem: &Problem,
    rows: &[&[Op]],
    pairs: &[Vec<u32>],
    copies: &[Vec<HostCopy>],
    violations: &mut Vec<Violation>,
) {
    for (rank, row) in rows.iter().enumerate() {
        let Some(limit) = problem.limit_bytes(rank) else { continue };
        let mut held = problem.static_bytes(rank);
        if held > limit && violations.len() < MOST_REPORTED {
            if let Some(&op) = row.first() {
                violations.push(Violation::OverLimit { rank, index: 0, op, held, limit });
            }
            continue;
        }
        let mut index = 0;
        let mut copied = changes(problem, copies.get(rank).map_or(&[], Vec::as_slice)).into_iter().peekable();
        while index < row.len() {
            let group = &row[index..][..together(pairs, rank, index)];
            let mut given = 0;
            while let Some((_, change)) = copied.next_if(|(place, _)| *place as usize <= index) {
                held = held.saturating_add_signed(change);
                if held > limit {
                    violations.push(Violation::OverLimit { rank, index, op: row[index], held, limit });
                    break;
                }
            }
            if held > limit {
                break;
            }
            for (place, op) in group.iter().enumerate() {
                let (takes, gives) = bytes_of(problem, *op);
                held += takes;
                given += gives;
                if held > limit {
                    violations.push(Violation::OverLimit { rank, index: index + place, op: *op, held, limit });
                    break;
                }
            }
            if held > limit {
                // One entry per rank: later ops exceed the limit for the same reason.
                break;
            }
            held -= given;
            index += group.len();
        }
        if violations.len() >= MOST_REPORTED {
            return;
        }
    }
}

/// Bytes that `op` takes when it starts, and gives back when it ends.
fn bytes_of(problem: &Problem, op: Op) -> (u64, u64) {
    let cost = problem.cost_of(op.stage(), op.microbatch());
    let backward_input = (cost.backward_input_bytes, cost.backward_input_workspace_bytes);
    let backward_weight = (cost.backward_weight_bytes, cost.backward_weight_workspace_bytes);
    let parts = match op.kind() {
        OpKind::F => [(cost.forward_bytes, cost.forward_workspace_bytes), (0, 0)],
        OpKind::B => [backward_input, (0, 0)],
        OpKind::W => [backward_weight, (0, 0)],
        OpKind::BW => match cost.backward_workspace_bytes {
            Some(workspace) => [(cost.backward_input_bytes + cost.backward_weight_bytes, workspace), (0, 0)],
            None => [backward_input, backward_weight],
        },
    };
    let workspace = parts.iter().map(|(_, workspace)| *workspace).max().unwrap_or(0);
    let mut taken: u64 = parts.iter().map(|(delta, _)| (*delta).max(0) as u64).sum();
    let mut given: u64 = parts.iter().map(|(delta, _)| (*delta).min(0).unsigned_abs()).sum();
    if op.kind().makes_input_gradient() && problem.slices() > 1 {
        // The last slice runs first and holds the gradients of all keys and values before it.
        match op.microbatch() % problem.slices() + 1 == problem.slices() {
            true => taken += cost.slice_gradient_bytes * (problem.slices() as u64 - 1),
            false => given += cost.slice_gradient_bytes,
        }
    }
    (taken + workspace, given + workspace)
}
