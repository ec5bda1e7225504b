//! Copies to and from hosts: each behind its F, back before its backward, in one order on the link of its rank.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{MOST_REPORTED, Violation};
use crate::problem::Problem;
use crate::problem::copies::{CopyWay, HostCopy, Moved};
use crate::problem::op::{Op, OpKind};
use crate::program::{Program, Step};

/// The op lists of a program, and the copies between their ops by where they start and are awaited. A copy that is awaited
/// before it starts, or started twice, or never awaited, is a violation.
pub(super) fn of_program(program: &Program, violations: &mut Vec<Violation>) -> (Vec<Vec<Op>>, Vec<Vec<HostCopy>>) {
    let mut rows = Vec::with_capacity(program.rows.len());
    let mut all = Vec::with_capacity(program.rows.len());
    for (rank, row) in program.rows.iter().enumerate() {
        let mut ops: Vec<Op> = Vec::new();
        let mut copies: Vec<HostCopy> = Vec::new();
        // By what is copied: the number of its copy, and whether it has been awaited.
        let mut seen: BTreeMap<Moved, (usize, bool)> = BTreeMap::new();
        let mut report = |index: usize, moved: Moved, wrong: &'static str| {
            if violations.len() < MOST_REPORTED {
                violations.push(Violation::Copy { rank, index, moved, wrong });
            }
        };
        for step in row {
            match step {
                Step::Compute(op) => ops.push(*op),
                Step::StartCopy(moved) => {
                    if seen.insert(*moved, (copies.len(), false)).is_some() {
                        report(copies.len(), *moved, "is started twice");
                    }
                    copies.push(HostCopy { moved: *moved, starts: ops.len() as u32, ends: 0 });
                }
                Step::WaitCopy(moved) => match seen.get_mut(moved) {
                    Some((at, awaited @ false)) => {
                        copies[*at].ends = ops.len() as u32;
                        *awaited = true;
                    }
                    Some((at, _)) => report(*at, *moved, "is awaited twice"),
                    None => report(copies.len(), *moved, "is awaited before it is started"),
                },
                Step::Transfer(_) | Step::Start(_) | Step::Wait(_) | Step::Optimizer => {}
            }
        }
        for (moved, (at, awaited)) in seen {
            if !awaited {
                report(at, moved, "is never awaited");
            }
        }
        rows.push(ops);
        all.push(copies);
    }
    (rows, all)
}

/// Every copy in its place.
pub(super) fn check_copies(
    problem: &Problem,
    rows: &[&[Op]],
    pairs: &[Vec<u32>],
    copies: &[Vec<HostCopy>],
    violations: &mut Vec<Violation>,
) {
    if copies.len() > rows.len() {
        violations.push(Violation::CopyLists { found: copies.len(), ranks: rows.len() });
        return;
    }
    for (rank, copies) in copies.iter().enumerate().filter(|(_, copies)| !copies.is_empty()) {
        let places = places(rows[rank]);
        // By stage and microbatch: the position in the list, and the end, of the copy to the host.
        let mut away: BTreeMap<(u16, u32), (usize, u32)> = BTreeMap::new();
        let mut back: BTreeMap<(u16, u32), usize> = BTreeMap::new();
        let inside =
            |place: u32| place > 0 && pairs.get(rank).is_some_and(|pairs| pairs.binary_search(&(place - 1)).is_ok());
        let mut from = 0;
        for (index, copy) in copies.iter().enumerate() {
            let HostCopy { moved, starts, ends } = *copy;
            let (stage, microbatch) = (usize::from(moved.stage), moved.microbatch as usize);
            let is_known = stage < problem.stage_count() && microbatch < problem.microbatches();
            let key = (moved.stage, moved.microbatch);
            let wrong = if !is_known || problem.rank_of(stage, microbatch) != rank {
                Some("belongs to no op of this rank")
            } else if problem.cost(stage).offload_bytes == 0 {
                Some("is of a stage whose activations may not go to the host")
            } else if starts > ends || ends as usize >= rows[rank].len() {
                Some("needs an op behind its start that waits for it")
            } else if starts < from {
                Some("starts before the copy that stands before it in the list")
            } else if inside(starts) || inside(ends) {
                Some("stands between the two ops of a pair")
            } else {
                let [forward, backward] = places.get(&(stage, microbatch)).copied().unwrap_or_default();
                match (moved.way, away.get(&key)) {
                    (CopyWay::Offload, Some(_)) => Some("is listed twice"),
                    (CopyWay::Offload, None) if starts <= forward => Some("starts before its F has ended"),
                    (CopyWay::Offload, None) => None,
                    (CopyWay::Reload, _) if back.contains_key(&key) => Some("is listed twice"),
                    (CopyWay::Reload, None) => Some("has no copy to the host before it"),
                    (CopyWay::Reload, Some((_, until))) if starts < *until => {
                        Some("starts before its copy to the host has been awaited")
                    }
                    (CopyWay::Reload, Some(_)) if ends > backward => Some("is awaited behind its backward"),
                    (CopyWay::Reload, Some(_)) => None,
                }
            };
            match wrong {
                Some(wrong) if violations.len() < MOST_REPORTED => {
                    violations.push(Violation::Copy { rank, index, moved, wrong });
                }
                Some(_) => return,
                None => {}
            }
            from = from.max(starts);
            match moved.way {
                CopyWay::Offload => drop(away.insert(key, (index, ends))),
                CopyWay::Reload => drop(back.insert(key, index)),
            }
        }
        for (key, (index, _)) in away.iter().filter(|(key, _)| !back.contains_key(key)) {
            let (rank_of, at) = (rank, *index);
            let is_same = |violation: &Violation| matches!(violation, Violation::Copy { rank, index, .. } if *rank == rank_of && *index == at);
            // A copy that is wrong in itself is reported once.
            if violations.iter().any(is_same) {
                continue;
            }
            if violations.len() < MOST_REPORTED {
                let (stage, microbatch) = *key;
                let moved = Moved { way: CopyWay::Offload, stage, microbatch };
                violations.push(Violation::Copy { rank, index: *index, moved, wrong: "never comes back" });
            }
        }
    }
}

/// By stage and microbatch of a row, the positions of F and of the backward.
fn places(row: &[Op]) -> BTreeMap<(usize, usize), [u32; 2]> {
    let mut places: BTreeMap<(usize, usize), [u32; 2]> = BTreeMap::new();
    for (place, op) in row.iter().enumerate() {
        let which = match op.kind() {
            OpKind::F => 0,
            OpKind::B | OpKind::BW => 1,
            OpKind::W => continue,
        };
        places.entry((op.stage(), op.microbatch())).or_default()[which] = place as u32;
    }
    places
}

/// What copies change before ops: by position of the op, bytes taken (positive) or given back. At one position in the order of
/// the link, on which a copy starts when the one before it has ended.
pub(super) fn changes(problem: &Problem, copies: &[HostCopy]) -> Vec<(u32, i64)> {
    let mut changes: Vec<(u32, i64)> = copies
        .iter()
        .map(|copy| {
            let bytes = problem.cost(copy.moved.stage.into()).offload_bytes as i64;
            match copy.moved.way {
                CopyWay::Offload => (copy.ends, -bytes),
                CopyWay::Reload => (copy.starts, bytes),
            }
        })
        .collect();
    // Keeps the order of the list at one position.
    changes.sort_by_key(|(place, _)| *place);
    changes
}
