//! P2P transfers: every one stands once, with both ends, in its place, and in the same order at both ends.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use super::rows::{B_RUNS, F_RUNS};
use super::{MOST_REPORTED, Violation};
use crate::problem::Problem;
use crate::problem::op::{Op, OpKind};
use crate::program::{P2pOp, Payload, Program, Step, Way};

/// Number of a transfer: one activation and one gradient for each boundary between stages and microbatch.
pub(super) fn transfer_number(problem: &Problem, message: P2pOp) -> usize {
    let lower = usize::from(message.stage).min(message.peer_stage());
    let payload = usize::from(message.payload == Payload::Gradient);
    (2 * lower + payload) * problem.microbatches() + message.microbatch as usize
}

/// Whether `message` is one end of a transfer between two ranks, and stands on the right one.
fn is_transfer_of(problem: &Problem, rank: usize, message: P2pOp) -> bool {
    let (stage, stages) = (usize::from(message.stage), problem.stage_count());
    let upward = matches!(
        (message.way, message.payload),
        (Way::Send, Payload::Activation) | (Way::Receive, Payload::Gradient)
    );
    let has_peer = if upward { stage + 1 < stages } else { stage > 0 && stage < stages };
    let microbatch = message.microbatch as usize;
    has_peer
        && microbatch < problem.microbatches()
        && problem.rank_of(stage, microbatch) == rank
        && problem.rank_of(message.peer_stage(), microbatch) != rank
}

/// Every transfer once, between the op that makes it and the op that uses it; the optimizer once and last.
pub(super) fn check_messages(problem: &Problem, program: &Program, violations: &mut Vec<Violation>) {
    let microbatches = problem.microbatches();
    let transfers = 2 * problem.stage_count() * microbatches;
    for (rank, row) in program.rows.iter().enumerate() {
        let optimizers = row.iter().filter(|step| matches!(step, Step::Optimizer)).count();
        if optimizers != 1 || !matches!(row.last(), Some(Step::Optimizer)) {
            violations.push(Violation::Optimizer { rank });
        }
    }
    // By end and transfer: whether it has been started, and awaited.
    let mut started = [vec![false; transfers], vec![false; transfers]];
    let mut awaited = started.clone();
    let mut done = vec![0u8; problem.stage_count() * microbatches];
    for (rank, row) in program.rows.iter().enumerate() {
        for (index, step) in row.iter().enumerate() {
            if violations.len() >= MOST_REPORTED {
                return;
            }
            let (messages, starts, awaits) = match step {
                Step::Compute(op) => {
                    let slot = op.stage() * microbatches + op.microbatch();
                    done[slot] |= if op.kind() == OpKind::F { F_RUNS } else { 0 };
                    done[slot] |= if op.kind().makes_input_gradient() { B_RUNS } else { 0 };
                    continue;
                }
                Step::StartCopy(_) | Step::WaitCopy(_) | Step::Optimizer => continue,
                Step::Transfer(messages) => (messages, true, true),
                Step::Start(messages) => (messages, true, false),
                Step::Wait(messages) => (messages, false, true),
            };
            for &message in messages {
                if !is_transfer_of(problem, rank, message) {
                    violations.push(Violation::ForeignMessage { rank, index, message });
                    continue;
                }
                let end = usize::from(message.way == Way::Receive);
                let number = transfer_number(problem, message);
                if (starts && started[end][number]) || (awaits && awaited[end][number]) {
                    violations.push(Violation::MessageTwice { rank, index, message });
                }
                started[end][number] |= starts;
                if awaits && !started[end][number] {
                    violations.push(Violation::NotStarted { rank, index, message });
                }
                awaited[end][number] |= awaits;
                let slot = usize::from(message.stage) * microbatches + message.microbatch as usize;
                let (bit, kind) = match message.payload {
                    Payload::Activation => (F_RUNS, OpKind::F),
                    Payload::Gradient => (B_RUNS, OpKind::B),
                };
                // A send follows the op that makes it; a receive ends before the op that uses it.
                if (done[slot] & bit != 0) != (message.way == Way::Send) {
                    let op = Op::new(usize::from(message.stage), kind, message.microbatch as usize);
                    violations.push(Violation::MessageMisplaced { rank, index, message, op });
                }
            }
        }
    }
    for stage in 0..problem.stage_count() - 1 {
        for microbatch in 0..microbatches {
            let (below, above) = (problem.rank_of(stage, microbatch), problem.rank_of(stage + 1, microbatch));
            if below == above {
                continue;
            }
            for payload in [Payload::Activation, Payload::Gradient] {
                let sender = if payload == Payload::Activation { stage } else { stage + 1 };
                let send = P2pOp { way: Way::Send, payload, stage: sender as u16, microbatch: microbatch as u32 };
                for message in [send, send.mirrored()] {
                    let end = usize::from(message.way == Way::Receive);
                    if !awaited[end][transfer_number(problem, message)] && violations.len() < MOST_REPORTED {
                        let rank = problem.rank_of(usize::from(message.stage), microbatch);
                        violations.push(Violation::MessageMissing { rank, message });
                    }
                }
            }
        }
    }
}

/// Both ends of every channel list their transfers in the same order (NCCL matches by order and has no tags).
pub(super) fn check_channels(problem: &Problem, program: &Program, violations: &mut Vec<Violation>) {
    let mut sent: BTreeMap<(usize, usize), VecDeque<P2pOp>> = Default::default();
    let each_message = |way: Way, visit: &mut dyn FnMut(usize, usize, P2pOp)| {
        for (rank, row) in program.rows.iter().enumerate() {
            for step in row {
                let (Step::Transfer(messages) | Step::Start(messages)) = step else { continue };
                for &message in messages.iter().filter(|message| message.way == way) {
                    visit(rank, problem.rank_of(message.peer_stage(), message.microbatch as usize), message);
                }
            }
        }
    };
    each_message(Way::Send, &mut |rank, peer, message| sent.entry((rank, peer)).or_default().push_back(message));
    let mut places: BTreeMap<(usize, usize), usize> = Default::default();
    each_message(Way::Receive, &mut |rank, peer, received| {
        let place = places.entry((peer, rank)).or_default();
        if let Some(sent) = sent.get_mut(&(peer, rank)).and_then(VecDeque::pop_front)
            && sent.mirrored() != received
            && violations.len() < MOST_REPORTED
        {
            let (from, to, place) = (peer, rank, *place);
            violations.push(Violation::ChannelOrder { from, to, place, sent, received });
        }
        *place += 1;
    });
}
