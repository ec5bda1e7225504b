//! The least memory at which a schedule exists.

use alloc::vec::Vec;
use core::fmt;

use crate::base::units::Bytes;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;
use crate::problem::{Backward, Problem, StageCost};

/// The least memory of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastMemory {
    /// The rank.
    pub rank: usize,
    /// Every schedule has at least this peak, static bytes included.
    pub needed_bytes: Bytes,
    /// Running one microbatch after the other, each W right after its B, fits in this much: the same number
    /// but for stages whose W takes bytes, or whose W has a workspace larger than what its B holds.
    pub serial_bytes: Bytes,
    /// The op during which `needed_bytes` are held.
    pub op: Op,
}

/// A memory limit under which no schedule exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Infeasible {
    /// The rank.
    pub rank: usize,
    /// No schedule holds less.
    pub needed_bytes: Bytes,
    /// The limit.
    pub limit_bytes: Bytes,
    /// The op that does not fit.
    pub op: Op,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Infeasible { rank, needed_bytes, limit_bytes, op } = self;
        write!(
            f,
            "no schedule fits: rank {rank} needs at least {needed_bytes} bytes while it runs {op}; the limit \
             is {limit_bytes}: raise limit_bytes, or use smaller microbatches"
        )
    }
}

/// The least memory of each rank.
///
/// *Needed.* Of the microbatches of one direction take the one whose F on the rank's first stage comes last.
/// The others have all begun there, and leave at least the least of what F, B and W of that stage leave. Of
/// its own it holds, while F of a stage runs, what F left on the rank's stages before; while B runs, besides,
/// what is left of the stages after, whose B has run; while W runs, what F and B of its stage leave and the
/// least of the others. Where B and W may run apart or fused, the cheaper way counts.
///
/// *Enough.* One microbatch at a time, through all stages and back, is an order that keeps every dependency;
/// so with `serial_bytes` on each rank a schedule exists. Where microbatches differ, so do these: the one that holds
/// most decides.
///
/// *Slices.* B of a sequence's last slice waits for all its forwards in the last stage, and B of every other slice for
/// that. So at the first backward of a sequence a rank holds what all forwards of the sequence have left. What an op of one
/// slice needs by itself is needed with slices as well, since they only add to what waits.
pub fn least_memory(problem: &Problem) -> Vec<LeastMemory> {
    (0..problem.ranks()).map(|rank| least(problem, rank)).collect()
}

/// The first rank whose limit is below what any schedule needs.
///
/// # Errors
/// [`Infeasible`], with the rank, what it needs and what it has.
pub fn feasible(problem: &Problem) -> Result<(), Infeasible> {
    for rank in 0..problem.ranks() {
        if let Some(limit_bytes) = problem.limit_bytes(rank) {
            let LeastMemory { needed_bytes, op, .. } = least(problem, rank);
            if needed_bytes > limit_bytes {
                return Err(Infeasible { rank, needed_bytes, limit_bytes, op });
            }
        }
    }
    Ok(())
}

/// The bytes that a stage holds after F, after B and after W.
fn left(cost: &StageCost) -> [i64; 3] {
    let after_b = cost.forward_bytes + cost.backward_input_bytes;
    [cost.forward_bytes, after_b, after_b + cost.backward_weight_bytes]
}

fn least(problem: &Problem, rank: usize) -> LeastMemory {
    let two_way = *problem.placement() == Placement::Bidirectional;
    let microbatches = problem.microbatches();
    let last: Vec<usize> = match (problem.differs(), two_way) {
        // Each may be the one that holds most.
        (true, _) => (0..microbatches).collect(),
        (false, true) => alloc::vec![microbatches / 2 - 1, microbatches - 1],
        (false, false) => alloc::vec![microbatches - 1],
    };
    let mirrored = [problem.ranks() - 1 - rank];
    let stages_of = |microbatch: usize| -> &[usize] {
        if two_way && 2 * microbatch >= microbatches { &mirrored } else { problem.stages_of(rank) }
    };
    let mut needed = (0, Op::new(problem.stages_of(rank).first().copied().unwrap_or(0), OpKind::F, 0));
    // The bytes that the microbatches before leave for good, in the serial order.
    let others = |microbatch: usize| -> i64 {
        let each: i64 = stages_of(microbatch).iter().map(|stage| left(&problem.cost_of(*stage, microbatch))[2]).sum();
        each * (microbatches / last.len()) as i64
    };
    let kept: i64 = last.iter().map(|microbatch| others(*microbatch)).sum();
    let mut serial = kept;
    for &microbatch in &last {
        let stages = stages_of(microbatch);
        let Some(first) = stages.first() else { continue };
        let cost_of = |stage: usize| problem.cost_of(stage, microbatch);
        let takes = |stage: usize, kind: OpKind| cost_of(stage).takes(kind) as i64;
        // Of microbatches that differ, what the others leave is not counted.
        let begun = left(&cost_of(*first)).into_iter().min().unwrap_or(0);
        let before = begun * (microbatches / last.len() - 1) as i64;
        let own: i64 = stages.iter().map(|stage| left(&cost_of(*stage))[2]).sum();
        let mut take = |bytes: i64, stage: usize, kind: OpKind| {
            if before + bytes > needed.0 {
                needed = (before + bytes, Op::new(stage, kind, microbatch));
            }
        };
        // Up: both alike.
        let mut held = 0;
        for &stage in stages {
            take(held + takes(stage, OpKind::F), stage, OpKind::F);
            serial = serial.max(kept - own + held + takes(stage, OpKind::F));
            held += cost_of(stage).forward_bytes;
        }
        // Down: `after` is the least that the stages above have left, `held` what they have in the serial order.
        let mut after = 0;
        let mut below = held;
        for (index, &stage) in stages.iter().enumerate().rev() {
            let cost = cost_of(stage);
            let [after_f, after_b, after_w] = left(&cost);
            let fused = takes(stage, OpKind::BW);
            let in_serial = match problem.backward() {
                Backward::Fused => fused,
                Backward::Split => {
                    let apart = takes(stage, OpKind::B).max(cost.backward_input_bytes + takes(stage, OpKind::W));
                    apart.min(fused)
                }
            };
            serial = serial.max(kept - own + held + in_serial);
            held += cost.backward_input_bytes + cost.backward_weight_bytes;
            let together = (below + after + fused, OpKind::BW);
            let (bytes, kind) = match problem.backward() {
                Backward::Fused => together,
                Backward::Split => {
                    let least_of = |stage: &usize| left(&cost_of(*stage)).into_iter().min().unwrap_or(0);
                    let rest: i64 = stages[..index].iter().map(least_of).sum();
                    let backward = (below + after + takes(stage, OpKind::B), OpKind::B);
                    let weight = (after_b + rest + after + takes(stage, OpKind::W), OpKind::W);
                    // The one of B and W that holds more; or BW, where that is less.
                    let apart = if weight.0 > backward.0 { weight } else { backward };
                    if together.0 < apart.0 { together } else { apart }
                }
            };
            take(bytes, stage, kind);
            below -= after_f;
            after += after_b.min(after_w);
        }
    }
    if problem.slices() > 1 {
        let (bytes, op) = first_backward(problem, rank);
        needed = if bytes > needed.0 { (bytes, op) } else { needed };
        serial = serial_of_slices(problem, rank);
    }
    let with_static = |bytes: i64| problem.static_bytes(rank) + bytes.max(0) as u64;
    LeastMemory { rank, needed_bytes: with_static(needed.0), serial_bytes: with_static(serial), op: needed.1 }
}

/// The most that `rank` holds at the first backward of a sequence, and that backward.
fn first_backward(problem: &Problem, rank: usize) -> (i64, Op) {
    let (slices, stages) = (problem.slices(), problem.stages_of(rank));
    let last_stage = stages.last().copied().unwrap_or(0);
    let of_sequence = |first: usize| {
        let left = |m: usize| stages.iter().map(|stage| problem.cost_of(*stage, m).forward_bytes).sum::<i64>();
        let held: i64 = (first..first + slices).map(left).sum();
        let whole = Op::new(last_stage, OpKind::BW, first + slices - 1);
        let apart = Op::new(last_stage, OpKind::B, first + slices - 1);
        let op = match problem.backward() {
            Backward::Split if problem.takes(apart) < problem.takes(whole) => apart,
            _ => whole,
        };
        (held + problem.takes(op) as i64, op)
    };
    let sequences = (0..problem.microbatches()).step_by(slices).map(of_sequence);
    sequences.max_by_key(|(bytes, _)| *bytes).unwrap_or((0, Op::new(last_stage, OpKind::BW, 0)))
}

/// The most that `rank` holds where sequences run one after the other, each W right after its B.
fn serial_of_slices(problem: &Problem, rank: usize) -> i64 {
    let (slices, stages) = (problem.slices(), problem.stages_of(rank));
    let (mut held, mut most) = (0i64, 0i64);
    let mut run = |op: Op| {
        held += problem.takes(op) as i64;
        most = most.max(held);
        held -= problem.gives(op) as i64;
    };
    for first in (0..problem.microbatches()).step_by(slices) {
        let sequence = first..first + slices;
        for microbatch in sequence.clone() {
            stages.iter().for_each(|stage| run(Op::new(*stage, OpKind::F, microbatch)));
        }
        for microbatch in sequence.rev() {
            for stage in stages.iter().rev() {
                let whole = problem.backward() == Backward::Fused || problem.cost(*stage).holds_less_whole();
                let kinds: &[OpKind] = if whole { &[OpKind::BW] } else { &[OpKind::B, OpKind::W] };
                kinds.iter().for_each(|kind| run(Op::new(*stage, *kind, microbatch)));
            }
        }
    }
    most
}
