//! Whether a transport completes a program: its steps run without times until all have ended.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::transfers::transfer_number;
use crate::problem::Problem;
use crate::program::{P2pOp, Payload, Program, Step, Transport, Way};

/// A program that a transport cannot complete: where every unfinished rank stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The transport.
    pub transport: Transport,
    /// Rank, step, the transfer that it waits for, and the rank that has to act.
    pub waits: Vec<Wait>,
    /// Ranks that wait for each other in a circle, if they do: each for the next, the last for the first.
    pub circle: Vec<usize>,
}

/// One rank that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The rank.
    pub rank: usize,
    /// Its step.
    pub index: usize,
    /// The message that does not complete.
    pub message: P2pOp,
    /// The rank that has to act.
    pub on: usize,
    /// A few steps of the op list around it, as text, with the step in brackets.
    pub around: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "with {} transfers no rank can go on:", self.transport)?;
        for wait in &self.waits {
            let Wait { rank, index, message, on, around } = wait;
            write!(f, "\n  rank {rank}, step {index}: {message} waits for rank {on}    {around}")?;
        }
        if let Some(first) = self.circle.first() {
            f.write_str("\n  in a circle:")?;
            for rank in &self.circle {
                let at = self.waits.iter().find(|wait| wait.rank == *rank);
                let message = at.map_or_else(String::new, |wait| alloc::format!(" at {}", wait.message));
                write!(f, " rank {rank}{message} →")?;
            }
            write!(f, " rank {first}")?;
        }
        Ok(())
    }
}

/// Runs the program's steps under `transport`, without times, until all have ended or none can run.
pub(super) fn complete(problem: &Problem, program: &Program, transport: Transport) -> Result<(), Stuck> {
    let transfers = 2 * problem.stage_count() * problem.microbatches();
    let ranks = program.rows.len();
    let mut world = World {
        problem,
        transport,
        started: [vec![false; transfers], vec![false; transfers]],
        ended: [vec![false; transfers], vec![false; transfers]],
        channels: Default::default(),
        pairs: Default::default(),
    };
    let mut at = vec![0usize; ranks];
    // Within a step that runs one transfer at a time: how many have ended.
    let mut within = vec![0usize; ranks];
    let mut look: VecDeque<usize> = (0..ranks).collect();
    while let Some(rank) = look.pop_front() {
        while let Some(step) = program.rows[rank].get(at[rank]) {
            let messages = match step {
                // Copies are the rank's own: they end whatever other ranks do.
                Step::Compute(_) | Step::StartCopy(_) | Step::WaitCopy(_) | Step::Optimizer => {
                    at[rank] += 1;
                    continue;
                }
                Step::Start(messages) => {
                    for &message in messages {
                        world.start(rank, message, &mut look);
                    }
                    at[rank] += 1;
                    continue;
                }
                Step::Transfer(messages) | Step::Wait(messages) => messages,
            };
            let one_by_one = matches!(transport, Transport::Rendezvous | Transport::Buffered { .. })
                && matches!(step, Step::Transfer(_));
            let batch =
                if one_by_one && !messages.is_empty() { &messages[within[rank]..][..1] } else { &messages[..] };
            for &message in batch {
                world.start(rank, message, &mut look);
            }
            if !batch.iter().all(|message| world.has_ended(*message)) {
                break;
            }
            within[rank] += batch.len();
            if within[rank] >= messages.len() {
                within[rank] = 0;
                at[rank] += 1;
            }
        }
    }
    let mut waits = Vec::new();
    for (rank, &index) in at.iter().enumerate() {
        let Some(Step::Transfer(messages) | Step::Wait(messages)) = program.rows[rank].get(index) else { continue };
        let Some(&message) = messages.iter().find(|message| !world.has_ended(**message)) else { continue };
        let around = around(&program.rows[rank], index);
        waits.push(Wait { rank, index, message, on: world.peer(message), around });
    }
    if waits.is_empty() {
        return Ok(());
    }
    let mut circle: Vec<usize> = Vec::new();
    let mut rank = waits[0].rank;
    while let Some(wait) = waits.iter().find(|wait| wait.rank == rank) {
        if let Some(first) = circle.iter().position(|earlier| *earlier == rank) {
            circle.drain(..first);
            break;
        }
        circle.push(rank);
        rank = wait.on;
    }
    Err(Stuck { transport, waits, circle })
}

/// Two steps on either side of step `index`, which stands in brackets.
fn around(row: &[Step], index: usize) -> String {
    let first = index.saturating_sub(2);
    let shown = row.iter().enumerate().skip(first).take(index + 3 - first);
    let texts =
        shown.map(|(at, step)| if at == index { alloc::format!("[{step}]") } else { alloc::format!("{step}") });
    texts.collect::<Vec<_>>().join(" ")
}

/// What has been started and ended while a program is run without times.
struct World<'p> {
    problem: &'p Problem,
    transport: Transport,
    /// By end (send, receive) and transfer.
    started: [Vec<bool>; 2],
    ended: [Vec<bool>; 2],
    /// Buffered: places taken in the channel of (sender, receiver, is gradient), and sends waiting for one.
    channels: BTreeMap<(usize, usize, bool), (usize, VecDeque<P2pOp>)>,
    /// Per-pair ordered: what the lower and the higher rank of a pair have started and not ended. Streamed:
    /// what the sender and the receiver of a link have.
    pairs: BTreeMap<(usize, usize), [VecDeque<P2pOp>; 2]>,
}

impl World<'_> {
    fn peer(&self, message: P2pOp) -> usize {
        self.problem.rank_of(message.peer_stage(), message.microbatch as usize)
    }

    fn has_ended(&self, message: P2pOp) -> bool {
        self.ended[usize::from(message.way == Way::Receive)][transfer_number(self.problem, message)]
    }

    fn end(&mut self, message: P2pOp) {
        self.ended[usize::from(message.way == Way::Receive)][transfer_number(self.problem, message)] = true;
    }

    /// Starts `message` unless it has been started, and ends what that lets end. Ranks that may run are added to
    /// `look`.
    fn start(&mut self, rank: usize, message: P2pOp, look: &mut VecDeque<usize>) {
        let end = usize::from(message.way == Way::Receive);
        let number = transfer_number(self.problem, message);
        if core::mem::replace(&mut self.started[end][number], true) {
            return;
        }
        let peer = self.peer(message);
        match self.transport {
            Transport::Rendezvous | Transport::Grouped => {
                if self.started[1 - end][number] {
                    self.end(message);
                    self.end(message.mirrored());
                    look.push_back(peer);
                }
            }
            Transport::PairOrdered | Transport::Streams => {
                let (from, to) = if end == 0 { (rank, peer) } else { (peer, rank) };
                let by_pair = self.transport == Transport::PairOrdered;
                let (key, side) = if by_pair {
                    ((rank.min(peer), rank.max(peer)), usize::from(rank > peer))
                } else {
                    ((from, to), end)
                };
                self.pairs.entry(key).or_default()[side].push_back(message);
                while let Some([low, high]) = self.pairs.get_mut(&key)
                    && let (Some(&a), Some(&b)) = (low.front(), high.front())
                    && a.mirrored() == b
                {
                    low.pop_front();
                    high.pop_front();
                    self.end(a);
                    self.end(b);
                    look.push_back(peer);
                }
            }
            Transport::Buffered { slots } => {
                let (from, to) = if end == 0 { (rank, peer) } else { (peer, rank) };
                let key = (from, to, message.payload == Payload::Gradient);
                let channel = self.channels.entry(key).or_default();
                let mut arrived = Vec::new();
                if end == 0 {
                    channel.1.push_back(message);
                } else if self.ended[0][number] {
                    channel.0 -= 1;
                    arrived.push(message);
                }
                // Free places go to waiting sends; one that finds its receive started passes straight through.
                while channel.0 < slots.max(1)
                    && let Some(send) = channel.1.pop_front()
                {
                    arrived.push(send);
                    if self.started[1][transfer_number(self.problem, send)] {
                        arrived.push(send.mirrored());
                    } else {
                        channel.0 += 1;
                    }
                }
                for message in arrived {
                    self.end(message);
                }
                look.push_back(peer);
            }
        }
    }
}
