//! Whether a schedule or a program is valid, decided from the problem alone.
//!
//! - In: a problem and a schedule or program.
//! - Out: a verdict, with every violation.
//! - Knows: problems and programs. Nothing of the code that it judges.
//!
//! This room shares nothing with the generators, the search, the lowering or the simulator. The rules are written a second time,
//! so that each finds the mistakes of the other.
//!
//! # What acceptance promises
//! For a schedule: every op of the problem runs once, on the rank that holds its stage; ranks never wait for each other in a
//! circle; every copy to a host comes back before its backward; no rank holds more than its limit. For a program, in addition: every transfer that the placement needs stands once,
//! with both ends, after the op that makes it and before the op that uses it; both ends of every channel list their transfers in
//! the same order; the optimizer step of each rank comes once and last; and the named transport completes the program.

use alloc::vec::Vec;
use core::fmt;

use crate::base::units::Bytes;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::copies::Moved;
use crate::problem::op::Op;
use crate::program::{P2pOp, Program, Transport, Way};

mod copies;
mod rows;
mod transfers;
mod transport;

pub use transport::{Stuck, Wait};

use rows::check_rows;
use transfers::{check_channels, check_messages};
use transport::complete;

/// Faults reported at most; a schedule of a million ops may have a million.
const MOST_REPORTED: usize = 20;

/// One thing wrong with a schedule or a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// There is not one row a rank.
    Rows {
        /// Rows found.
        found: usize,
        /// Ranks of the problem.
        ranks: usize,
    },
    /// An op of a stage or microbatch that the problem does not have.
    Foreign {
        /// The rank.
        rank: usize,
        /// The position in its row.
        index: usize,
        /// The op.
        op: Op,
    },
    /// An op on a rank that does not hold its stage.
    WrongRank {
        /// The rank.
        rank: usize,
        /// The position in its row.
        index: usize,
        /// The op.
        op: Op,
        /// The rank that holds the stage.
        holder: usize,
    },
    /// An op that runs a second time, counting BW as B and as W.
    Twice {
        /// The rank.
        rank: usize,
        /// The position of the second run.
        index: usize,
        /// The op.
        op: Op,
    },
    /// An op that never runs.
    Missing {
        /// The op.
        op: Op,
    },
    /// A split backward where the problem allows only the fused one.
    Cut {
        /// The rank.
        rank: usize,
        /// The position in its row.
        index: usize,
        /// The op.
        op: Op,
    },
    /// A pair that is not a forward with a backward right after it, or that overlaps another pair.
    Pair {
        /// The rank.
        rank: usize,
        /// The position at which the pair begins.
        index: usize,
    },
    /// There are more lists of copies than ranks.
    CopyLists {
        /// Lists found.
        found: usize,
        /// Ranks of the problem.
        ranks: usize,
    },
    /// A copy to or from the host that cannot be where it stands.
    Copy {
        /// The rank.
        rank: usize,
        /// Its number in the rank's list of copies.
        index: usize,
        /// What it moves.
        moved: Moved,
        /// What is wrong.
        wrong: &'static str,
    },
    /// Ops that wait for each other in a circle: each for the next, the last for the first.
    Circle {
        /// In the order of waiting.
        waits: Vec<CircleWait>,
    },
    /// More memory than the limit of the rank.
    OverLimit {
        /// The rank.
        rank: usize,
        /// The position in its row.
        index: usize,
        /// The op that takes it over the limit.
        op: Op,
        /// Bytes held while the op runs, static bytes included.
        held: Bytes,
        /// The rank's limit.
        limit: Bytes,
    },
    /// A transfer that the problem does not have, or that stands on the wrong rank.
    ForeignMessage {
        /// The rank.
        rank: usize,
        /// The step.
        index: usize,
        /// The message.
        message: P2pOp,
    },
    /// A transfer that is listed twice.
    MessageTwice {
        /// The rank.
        rank: usize,
        /// The step.
        index: usize,
        /// The message.
        message: P2pOp,
    },
    /// A wait for a transfer that has not been started.
    NotStarted {
        /// The rank.
        rank: usize,
        /// The step.
        index: usize,
        /// The message.
        message: P2pOp,
    },
    /// A transfer that the placement needs and that is missing, or that is started and never awaited.
    MessageMissing {
        /// The rank that lacks it.
        rank: usize,
        /// The message.
        message: P2pOp,
    },
    /// A transfer on the wrong side of the op that makes or uses it.
    MessageMisplaced {
        /// The rank.
        rank: usize,
        /// The step of the message.
        index: usize,
        /// The message.
        message: P2pOp,
        /// The op that makes or uses it.
        op: Op,
    },
    /// The two ends of a channel have different orders of transfers.
    ChannelOrder {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The first place at which the two lists differ.
        place: usize,
        /// What is sent there.
        sent: P2pOp,
        /// What is received there.
        received: P2pOp,
    },
    /// A rank without exactly one optimizer step at its end.
    Optimizer {
        /// The rank.
        rank: usize,
    },
    /// The transport cannot complete the program.
    Stuck(Stuck),
}

/// An op that cannot run in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircleWait {
    /// The rank.
    pub rank: usize,
    /// The position in its row.
    pub index: usize,
    /// The op.
    pub op: Op,
    /// The op that has to end first; a B stands for the B or BW of that stage and microbatch.
    pub needs: Op,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Rows { found, ranks } => write!(
                f,
                "{found} op lists for {ranks} ranks: write one op \
                 list per rank"
            ),
            Violation::Foreign { rank, index, op } => {
                write!(f, "rank {rank}, op {index}: {op} names a stage or microbatch that the problem does not have")
            }
            Violation::WrongRank { rank, index, op, holder } => {
                write!(f, "rank {rank}, op {index}: {op} belongs to rank {holder}, which holds its stage")
            }
            Violation::Twice { rank, index, op } => write!(f, "rank {rank}, op {index}: {op} has run already"),
            Violation::Missing { op } => write!(f, "{op} never runs"),
            Violation::Cut { rank, index, op } => {
                write!(f, "rank {rank}, op {index}: {op} splits the backward; the problem allows only BW")
            }
            Violation::Pair { rank, index } => {
                write!(
                    f,
                    "rank {rank}, op {index}: a pair is a forward and a backward right after it; neither is in \
                     another pair"
                )
            }
            Violation::Circle { waits } => {
                f.write_str("ops wait for each other in a circle:")?;
                for (place, CircleWait { rank, index, op, needs }) in waits.iter().enumerate() {
                    let ahead = waits[(place + 1) % waits.len()].op;
                    write!(f, "\n  rank {rank}, op {index}: {op} waits for {needs}, which comes after {ahead}")?;
                }
                Ok(())
            }
            Violation::OverLimit { rank, index, op, held, limit } => {
                write!(f, "rank {rank}, op {index}: {op} needs {held} bytes; the limit is {limit}")
            }
            Violation::CopyLists { found, ranks } => {
                write!(f, "{found} lists of copies for {ranks} ranks: write at most one for each rank")
            }
            Violation::Copy { rank, index, moved, wrong } => write!(f, "rank {rank}, copy {index}: {moved} {wrong}"),
            Violation::ForeignMessage { rank, index, message } => {
                write!(f, "rank {rank}, step {index}: {message} is not a transfer of this rank")
            }
            Violation::MessageTwice { rank, index, message } => {
                write!(f, "rank {rank}, step {index}: {message} is listed twice")
            }
            Violation::NotStarted { rank, index, message } => {
                write!(f, "rank {rank}, step {index}: {message} is awaited before it is started")
            }
            Violation::MessageMissing { rank, message } => {
                write!(f, "rank {rank}: {message} is missing, or started and never awaited")
            }
            Violation::MessageMisplaced { rank, index, message, op } => match message.way {
                Way::Send => write!(f, "rank {rank}, step {index}: {message} comes before {op}, which makes it"),
                Way::Receive => write!(f, "rank {rank}, step {index}: {message} comes after {op}, which needs it"),
            },
            Violation::ChannelOrder { from, to, place, sent, received } => write!(
                f,
                "rank {from} to rank {to}: P2P transfer {place} is {sent} on the sender and {received} on the \
                 receiver"
            ),
            Violation::Optimizer { rank } => write!(f, "rank {rank}: write OPTIMIZER once, as the last step"),
            Violation::Stuck(stuck) => fmt::Display::fmt(stuck, f),
        }
    }
}

/// Checks a schedule against its problem.
///
/// # Errors
/// All violations, at most 20, at least one.
pub fn check_schedule(problem: &Problem, schedule: &Schedule) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    let rows: Vec<&[Op]> = schedule.rows.iter().map(Vec::as_slice).collect();
    check_rows(problem, &rows, &schedule.pairs, &schedule.copies, &mut violations);
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Checks a program against its problem, and whether `transport` completes it.
///
/// # Errors
/// All violations, at most 20, at least one.
pub fn check_program(problem: &Problem, program: &Program, transport: Transport) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    let (computes, copies) = copies::of_program(program, &mut violations);
    let rows: Vec<&[Op]> = computes.iter().map(Vec::as_slice).collect();
    // A program has no pairs: the schedule is checked for what they hold together.
    check_rows(problem, &rows, &[], &copies, &mut violations);
    if violations.is_empty() {
        check_messages(problem, program, &mut violations);
    }
    if violations.is_empty() {
        check_channels(problem, program, &mut violations);
    }
    if violations.is_empty()
        && let Err(stuck) = complete(problem, program, transport)
    {
        violations.push(Violation::Stuck(stuck));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}
