//! What a rank executes: its ops, the transfers that they need, and the optimizer step.
//!
//! - In: a schedule with its times.
//! - Out: the op lists with sends, receives and the optimizer ([`lower`]); times as the transfers allow ([`execute`]).
//! - Knows: problems and timelines. Nothing of models.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::problem::copies::{HostCopy, Moved};
use crate::problem::op::{Op, OpSyntax};

pub mod execute;
pub mod lower;
mod transport;

pub use transport::Transport;

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payload {
    /// The output of a forward, to the next stage.
    Activation,
    /// The gradient of a stage's inputs, to the stage before.
    Gradient,
}

/// Which end of a transfer this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// This rank sends.
    Send,
    /// This rank receives.
    Receive,
}

/// One end of a transfer. Its text form is torch's: `1SEND_F0`, `2RECV_F0`, `2SEND_B0`, `1RECV_B0`, with
/// the rank's own stage; the peer follows from the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct P2pOp {
    /// Send or receive.
    pub way: Way,
    /// Activation or gradient.
    pub payload: Payload,
    /// The stage of this rank that sends or receives.
    pub stage: u16,
    /// The microbatch.
    pub microbatch: u32,
}

impl P2pOp {
    /// The stage at the other end.
    pub fn peer_stage(self) -> usize {
        let stage = usize::from(self.stage);
        match (self.way, self.payload) {
            (Way::Send, Payload::Activation) | (Way::Receive, Payload::Gradient) => stage + 1,
            (Way::Receive, Payload::Activation) | (Way::Send, Payload::Gradient) => stage - 1,
        }
    }

    /// The message as its other end sees it.
    pub fn mirrored(self) -> P2pOp {
        let way = match self.way {
            Way::Send => Way::Receive,
            Way::Receive => Way::Send,
        };
        P2pOp { way, stage: self.peer_stage() as u16, ..self }
    }
}

impl fmt::Display for P2pOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match (self.way, self.payload) {
            (Way::Send, Payload::Activation) => "SEND_F",
            (Way::Receive, Payload::Activation) => "RECV_F",
            (Way::Send, Payload::Gradient) => "SEND_B",
            (Way::Receive, Payload::Gradient) => "RECV_B",
        };
        write!(f, "{}{verb}{}", self.stage, self.microbatch)
    }
}

impl FromStr for P2pOp {
    type Err = OpSyntax;

    fn from_str(text: &str) -> Result<P2pOp, OpSyntax> {
        let parse = || {
            let (stage, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
            let (verb, microbatch) = rest.split_at(rest.find(|c: char| c.is_ascii_digit())?);
            let (way, payload) = match verb {
                "SEND_F" => (Way::Send, Payload::Activation),
                "RECV_F" => (Way::Receive, Payload::Activation),
                "SEND_B" => (Way::Send, Payload::Gradient),
                "RECV_B" => (Way::Receive, Payload::Gradient),
                _ => return None,
            };
            let message = P2pOp { way, payload, stage: stage.parse().ok()?, microbatch: microbatch.parse().ok()? };
            // Stage 0 has no stage before it.
            let names_a_peer = !matches!(verb, "RECV_F" | "SEND_B") || message.stage > 0;
            names_a_peer.then_some(message)
        };
        parse().ok_or_else(|| OpSyntax { text: text.chars().take(40).collect() })
    }
}

/// One step of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run this op.
    Compute(Op),
    /// Start all these transfers together and continue when all have ended. Written `(1RECV_F0 1SEND_B2)`.
    Transfer(Vec<P2pOp>),
    /// Start these transfers and continue at once, each on the stream of its link. Written `start(1RECV_F0)`.
    Start(Vec<P2pOp>),
    /// Continue when these transfers, started before, have ended. Written `wait(1RECV_F0)`.
    Wait(Vec<P2pOp>),
    /// Start this copy to or from the host, behind the copies started before, and continue at once. Written
    /// `start(0OFFLOAD3)`.
    StartCopy(Moved),
    /// Continue when this copy, started before, has ended. Written `wait(0OFFLOAD3)`.
    WaitCopy(Moved),
    /// Run the optimizer on the gradients of this rank. Written `OPTIMIZER`.
    Optimizer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Compute(op) => fmt::Display::fmt(op, f),
            Step::Transfer(messages) => write_messages(f, "", messages),
            Step::Start(messages) => write_messages(f, "start", messages),
            Step::Wait(messages) => write_messages(f, "wait", messages),
            Step::StartCopy(moved) => write!(f, "start({moved})"),
            Step::WaitCopy(moved) => write!(f, "wait({moved})"),
            Step::Optimizer => f.write_str("OPTIMIZER"),
        }
    }
}

fn write_messages(f: &mut fmt::Formatter<'_>, verb: &str, messages: &[P2pOp]) -> fmt::Result {
    write!(f, "{verb}(")?;
    for (index, message) in messages.iter().enumerate() {
        f.write_str(if index > 0 { " " } else { "" })?;
        fmt::Display::fmt(message, f)?;
    }
    f.write_str(")")
}

/// What every rank executes for one training step.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Program {
    /// By rank.
    pub rows: Vec<Vec<Step>>,
}

impl Program {
    /// One string per rank, steps separated by blanks: `(1RECV_F0) 1F0 (1SEND_F0) OPTIMIZER`.
    pub fn text_rows(&self) -> Vec<String> {
        self.rows
            .iter()
            .map(|row| {
                let steps: Vec<String> = row.iter().map(ToString::to_string).collect();
                steps.join(" ")
            })
            .collect()
    }

    /// By rank, the copies to and from its host, by the ops between which they stand; empty where no rank has any. A copy that
    /// no step waits for, which [`check_program`](crate::check::check_program) refuses, is left out.
    pub fn copies(&self) -> Vec<Vec<HostCopy>> {
        let of_row = |row: &Vec<Step>| {
            let mut copies: Vec<HostCopy> = Vec::new();
            let mut open: BTreeMap<Moved, usize> = BTreeMap::new();
            let mut place = 0;
            for step in row {
                match step {
                    Step::Compute(_) => place += 1,
                    Step::StartCopy(moved) => {
                        open.insert(*moved, copies.len());
                        copies.push(HostCopy { moved: *moved, starts: place, ends: u32::MAX });
                    }
                    Step::WaitCopy(moved) => {
                        if let Some(at) = open.remove(moved) {
                            copies[at].ends = place;
                        }
                    }
                    Step::Transfer(_) | Step::Start(_) | Step::Wait(_) | Step::Optimizer => {}
                }
            }
            copies.retain(|copy| copy.ends < u32::MAX);
            copies
        };
        let copies: Vec<_> = self.rows.iter().map(of_row).collect();
        if copies.iter().all(Vec::is_empty) { Vec::new() } else { copies }
    }

    /// Reads the text back.
    ///
    /// # Errors
    /// The rank and the text of the first word that is not a step.
    pub fn from_text_rows<S: AsRef<str>>(rows: &[S]) -> Result<Program, (usize, OpSyntax)> {
        let mut program = Program::default();
        for (rank, row) in rows.iter().enumerate() {
            program.rows.push(read_row(row.as_ref()).map_err(|error| (rank, error))?);
        }
        Ok(program)
    }
}

/// What a group of messages becomes.
type MakeStep = fn(Vec<P2pOp>) -> Step;

fn read_row(row: &str) -> Result<Vec<Step>, OpSyntax> {
    steps_of(row).collect()
}

/// The steps of a row in text form, one after the other. After an error there is nothing more.
pub(crate) fn steps_of(row: &str) -> impl Iterator<Item = Result<Step, OpSyntax>> + '_ {
    let mut words = row.split_ascii_whitespace();
    let mut over = false;
    core::iter::from_fn(move || {
        let step = if over { None } else { next_step(&mut words).transpose() };
        over = !matches!(step, Some(Ok(_)));
        step
    })
}

fn next_step<'t>(words: &mut impl Iterator<Item = &'t str>) -> Result<Option<Step>, OpSyntax> {
    let refused = |text: &str| OpSyntax { text: text.chars().take(40).collect() };
    // The group being read: what it becomes, and its messages.
    let mut group: Option<(MakeStep, Vec<P2pOp>)> = None;
    for word in words {
        let (verb, inner) = word.split_once('(').map_or((None, word), |(verb, inner)| (Some(verb), inner));
        let (inner, closes) = inner.strip_suffix(')').map_or((inner, false), |inner| (inner, true));
        // A copy stands alone.
        match (verb, inner.parse::<Moved>()) {
            (Some("start"), Ok(moved)) if closes && group.is_none() => return Ok(Some(Step::StartCopy(moved))),
            (Some("wait"), Ok(moved)) if closes && group.is_none() => return Ok(Some(Step::WaitCopy(moved))),
            _ => {}
        }
        match (&mut group, verb) {
            (None, Some("")) => group = Some((Step::Transfer, alloc::vec![inner.parse()?])),
            (None, Some("start")) => group = Some((Step::Start, alloc::vec![inner.parse()?])),
            (None, Some("wait")) => group = Some((Step::Wait, alloc::vec![inner.parse()?])),
            (Some((_, messages)), None) => messages.push(inner.parse()?),
            (None, None) if word == "OPTIMIZER" => return Ok(Some(Step::Optimizer)),
            (None, None) => return word.parse().map(|op| Some(Step::Compute(op))),
            (_, Some(_)) => return Err(refused(word)),
        }
        if closes {
            let (kind, messages) = group.take().ok_or_else(|| refused(word))?;
            return Ok(Some(kind(messages)));
        }
    }
    if group.is_some() { Err(refused("a group has no closing bracket")) } else { Ok(None) }
}
