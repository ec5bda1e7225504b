//! The state of every rank, for the report of a failure.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use pipeplan_core::graph::Axis;
use pipeplan_core::problem::Problem;
use pipeplan_core::program::{Program, Step};

use super::gradients::Position;
use crate::transport::listed;

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Making its weights.
    Starting,
    /// Joining communicators with the ranks that it will talk with.
    Connecting,
    /// Waiting for all ranks, between two training steps.
    Between,
    /// Computing.
    Computing,
    /// In a group of transfers.
    Exchanging,
    /// In a collective with its tensor-parallel group.
    Joining,
    /// In one with its context-parallel group.
    Passing,
    /// In one with its expert-parallel group.
    Dealing,
    /// Gathering weights or reducing gradients of a microbatch with copies of its stage.
    Sharing,
    /// Writing its part of a checkpoint.
    Saving,
    /// Its op list has failed.
    Failed,
    /// It has refused the run before its first step.
    Refused,
    /// No message since it began the training step: another process, which is gone or stuck.
    Lost,
    /// Done.
    Ended,
}

impl State {
    /// The state with this number.
    pub(super) fn of(number: u8) -> State {
        use State::{
            Between, Computing, Connecting, Dealing, Ended, Exchanging, Failed, Joining, Lost, Passing, Refused,
            Saving, Sharing, Starting,
        };
        let all = [
            Starting, Connecting, Between, Computing, Exchanging, Joining, Passing, Dealing, Sharing, Saving, Failed,
            Refused, Lost,
        ];
        all.into_iter().find(|state| *state as u8 == number).unwrap_or(Ended)
    }

    /// In a collective with the ranks along `axis`.
    pub(super) const fn along(axis: Axis) -> State {
        match axis {
            Axis::Tensor => State::Joining,
            Axis::Context => State::Passing,
            Axis::Expert => State::Dealing,
        }
    }

    /// The ranks that it is in a collective with.
    fn axis(self) -> Option<Axis> {
        Axis::ALL.into_iter().find(|axis| State::along(*axis) == self)
    }
}

#[derive(Debug, Default)]
struct Cell {
    training_step: AtomicU32,
    index: AtomicUsize,
    state: AtomicU8,
}

/// One cell per rank. Each is written by its rank and read by the report.
#[derive(Debug)]
pub struct StatusBoard {
    cells: Vec<Cell>,
    /// Where each rank stands.
    positions: Vec<Position>,
}

impl StatusBoard {
    /// All ranks starting, which stand at `positions`.
    pub fn new(positions: Vec<Position>) -> StatusBoard {
        StatusBoard { cells: positions.iter().map(|_| Cell::default()).collect(), positions }
    }

    /// Rank `rank` is at step `index` of its row in `training_step`.
    pub fn note(&self, rank: usize, training_step: u32, index: usize, state: State) {
        let cell = &self.cells[rank];
        cell.training_step.store(training_step, Ordering::Relaxed);
        cell.index.store(index, Ordering::Relaxed);
        cell.state.store(state as u8, Ordering::Release);
    }

    /// Only the state changes.
    pub fn note_state(&self, rank: usize, state: State) {
        self.cells[rank].state.store(state as u8, Ordering::Release);
    }

    /// Where all ranks are.
    pub fn report(&self, problem: &Problem, program: &Program) -> Vec<RankReport> {
        let report = |(rank, cell): (usize, &Cell)| {
            let state = State::of(cell.state.load(Ordering::Acquire));
            let (training_step, index) =
                (cell.training_step.load(Ordering::Relaxed), cell.index.load(Ordering::Relaxed));
            let position = self.positions[rank];
            let row = program.rows.get(position.rank);
            let replica = (position.replicas > 1).then_some(position.replica);
            let pending = row.and_then(|row| row.get(index)).cloned();
            let mut peers: Vec<usize> = match &pending {
                Some(Step::Transfer(messages) | Step::Start(messages) | Step::Wait(messages)) => messages
                    .iter()
                    .map(|message| {
                        position.in_world(problem.rank_of(message.peer_stage(), message.microbatch as usize))
                    })
                    .collect(),
                _ if state == State::Sharing => {
                    let groups = [false, true].map(|of_experts| position.sharding_groups(of_experts).concat());
                    groups.concat().into_iter().filter(|peer| *peer != rank).collect()
                }
                _ => {
                    let group = state.axis().map_or_else(Vec::new, |axis| position.group(axis));
                    group.into_iter().filter(|peer| *peer != rank).collect()
                }
            };
            peers.sort_unstable();
            peers.dedup();
            let length = row.map_or(0, Vec::len);
            RankReport { rank, replica, training_step, index, length, pending, peers, state }
        };
        self.cells.iter().enumerate().map(report).collect()
    }
}

/// Where one rank was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// The rank in the world.
    pub rank: usize,
    /// The data-parallel replica that it belongs to, if there are several.
    pub replica: Option<usize>,
    /// The training step, from 0.
    pub training_step: u32,
    /// The position in its op list.
    pub index: usize,
    /// Steps of its op list.
    pub length: usize,
    /// The step there.
    pub pending: Option<Step>,
    /// The ranks at the other end, where that step is a group of transfers, or those with which it was in a collective.
    pub peers: Vec<usize>,
    /// What it was doing.
    pub state: State,
}

impl RankReport {
    /// Whether it has come to the end of its op list.
    fn is_behind(&self) -> bool {
        self.length > 0 && self.index >= self.length
    }
}

impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankReport { rank, training_step, index, length, .. } = self;
        let of_replica = self.replica.map_or_else(String::new, |replica| format!(" of replica {replica}"));
        let rank = format!("{rank}{of_replica}");
        let pending = self.pending.as_ref().map_or_else(String::new, ToString::to_string);
        let at = format!("training step {training_step}, {index} of {length}, {pending}");
        let peers = listed(&self.peers);
        match self.state {
            State::Starting => write!(f, "rank {rank}: starting"),
            State::Connecting => write!(f, "rank {rank}: creating communicators with its peers"),
            State::Between if self.is_behind() => {
                write!(f, "rank {rank}: waiting for all ranks at the end of training step {training_step}")
            }
            State::Between => {
                write!(f, "rank {rank}: waiting for all ranks at the start of training step {training_step}")
            }
            State::Saving => write!(f, "rank {rank}: writing a checkpoint after training step {training_step}"),
            State::Computing => write!(f, "rank {rank}: computing at {at}"),
            State::Exchanging => write!(f, "rank {rank}: exchanging with rank {peers} at {at}"),
            State::Joining => {
                write!(f, "rank {rank}: in a tensor-parallel collective with rank {peers} at {at}")
            }
            State::Passing => {
                write!(f, "rank {rank}: in a context-parallel ring with rank {peers} at {at}")
            }
            State::Dealing => {
                write!(f, "rank {rank}: in an expert-parallel all-to-all with rank {peers} at {at}")
            }
            State::Sharing => {
                write!(f, "rank {rank}: gathering weights or reducing gradients with rank {peers} at {at}")
            }
            State::Failed if self.is_behind() => write!(f, "rank {rank}: failed after training step {training_step}"),
            State::Failed if self.peers.is_empty() => write!(f, "rank {rank}: failed at {at}"),
            State::Failed => write!(f, "rank {rank}: failed while exchanging with rank {peers} at {at}"),
            State::Refused => write!(f, "rank {rank}: refused the run"),
            State::Lost => write!(f, "rank {rank}: no message since the start of training step {training_step}"),
            State::Ended => write!(f, "rank {rank}: ended"),
        }
    }
}
