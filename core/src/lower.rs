//! From a schedule to what ranks execute: transfers placed so that no transport can hang.
//!
//! All ops and transfers are put into one line, in which everything comes after what it needs; each rank
//! executes its part of that line, and its messages between two ops form one group. Then the first thing in
//! the line that has not ended can always go on: whatever its ranks do before it comes earlier in the line
//! and has ended. So the program completes when sends wait for their receives, one message at a time or a
//! group at once; both ends of a channel see its messages in the same order; and so do both ends of a
//! communicator that carries two directions.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::op::{Op, OpKind};
use crate::problem::Problem;
use crate::program::{Message, Payload, Program, Step, Way};
use crate::schedule::Schedule;
use crate::simulate::{Deadlock, simulate};
use crate::timeline::Timeline;
use crate::units::Nanos;

/// The program of `schedule`: its ops, the transfers between ranks and the optimizer step.
///
/// The line follows the predicted times: a transfer stands where the op that makes its data ends, before
/// ops that start at that moment. Takes `n log n` time for `n` ops.
///
/// # Errors
/// [`Deadlock`] where the order cannot be run at all.
pub fn lower(problem: &Problem, schedule: &Schedule) -> Result<Program, Deadlock> {
    let timeline = simulate(problem, schedule)?;
    let mut program =
        Program { rows: schedule.rows.iter().map(|row| Vec::with_capacity(2 * row.len() + 1)).collect() };
    in_line(problem, &timeline, |event| match event {
        Event::Compute { rank, index } => {
            program.rows[rank].push(Step::Compute(schedule.rows[rank][index]));
        }
        Event::Transfer(send) => {
            for message in [send, send.mirrored()] {
                let rank = problem.rank_of(usize::from(message.stage), message.microbatch as usize);
                match program.rows[rank].last_mut() {
                    Some(Step::Transfer(group)) => group.push(message),
                    _ => program.rows[rank].push(Step::Transfer(vec![message])),
                }
            }
        }
    });
    for row in &mut program.rows {
        row.push(Step::Optimizer);
    }
    Ok(program)
}

/// One thing in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A transfer, as its sender sees it. Before computes, so that it wins where times are equal.
    Transfer(Message),
    /// An op by its place.
    Compute { rank: usize, index: usize },
}

/// Hands out every op and transfer, each after what it needs, otherwise by time.
fn in_line(problem: &Problem, timeline: &Timeline, mut hand_out: impl FnMut(Event)) {
    let mut heap: BinaryHeap<Reverse<(Nanos, Event)>> = BinaryHeap::new();
    // What an op still waits for: the op before it in its row, and its transfer or its neighbour stage's op.
    let mut open: Vec<Vec<u8>> = timeline.rows.iter().map(|row| vec![0; row.len()]).collect();
    let users = users(problem, timeline);
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (index, span) in row.iter().enumerate() {
            let input = input_of(problem, span.op).is_some();
            open[rank][index] = u8::from(index > 0) + u8::from(input);
            if open[rank][index] == 0 {
                heap.push(Reverse((span.start_ns, Event::Compute { rank, index })));
            }
        }
    }
    while let Some(Reverse((_, event))) = heap.pop() {
        hand_out(event);
        let mut release = |rank: usize, index: usize, heap: &mut BinaryHeap<Reverse<(Nanos, Event)>>| {
            open[rank][index] -= 1;
            if open[rank][index] == 0 {
                heap.push(Reverse((timeline.rows[rank][index].start_ns, Event::Compute { rank, index })));
            }
        };
        match event {
            Event::Compute { rank, index } => {
                let span = timeline.rows[rank][index];
                if index + 1 < timeline.rows[rank].len() {
                    release(rank, index + 1, &mut heap);
                }
                let Some(send) = output_of(problem, span.op) else { continue };
                let receive = send.mirrored();
                let (user_rank, user_index) = users[user_slot(problem, receive)];
                if user_rank == rank {
                    release(user_rank, user_index as usize, &mut heap);
                } else {
                    heap.push(Reverse((span.end_ns, Event::Transfer(send))));
                }
            }
            Event::Transfer(send) => {
                let (rank, index) = users[user_slot(problem, send.mirrored())];
                release(rank, index as usize, &mut heap);
            }
        }
    }
}

/// The message that `op` sends to the neighbour stage, on whichever rank that is.
fn output_of(problem: &Problem, op: Op) -> Option<Message> {
    let (payload, has_neighbour) = match op.kind() {
        OpKind::F => (Payload::Activation, op.stage() + 1 < problem.stage_count()),
        OpKind::B | OpKind::BW => (Payload::Gradient, op.stage() > 0),
        OpKind::W => return None,
    };
    let message = Message { way: Way::Send, payload, stage: op.stage() as u16, microbatch: op.microbatch() as u32 };
    has_neighbour.then_some(message)
}

/// The message that `op` needs from the neighbour stage.
fn input_of(problem: &Problem, op: Op) -> Option<Message> {
    let (payload, has_neighbour) = match op.kind() {
        OpKind::F => (Payload::Activation, op.stage() > 0),
        OpKind::B | OpKind::BW => (Payload::Gradient, op.stage() + 1 < problem.stage_count()),
        OpKind::W => return None,
    };
    let message =
        Message { way: Way::Receive, payload, stage: op.stage() as u16, microbatch: op.microbatch() as u32 };
    has_neighbour.then_some(message)
}

/// Where the op that uses a received message stands in [`users`].
fn user_slot(problem: &Problem, receive: Message) -> usize {
    let payload = usize::from(receive.payload == Payload::Gradient);
    (2 * usize::from(receive.stage) + payload) * problem.microbatches() + receive.microbatch as usize
}

/// The place of the op that uses each received message.
fn users(problem: &Problem, timeline: &Timeline) -> Vec<(usize, u32)> {
    let mut users = vec![(0, 0); 2 * problem.stage_count() * problem.microbatches()];
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (index, span) in row.iter().enumerate() {
            if let Some(receive) = input_of(problem, span.op) {
                users[user_slot(problem, receive)] = (rank, index as u32);
            }
        }
    }
    users
}
