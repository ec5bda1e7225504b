//! Where every rank is, for the report of a failure.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use pipeplan_core::problem::Problem;
use pipeplan_core::program::{Program, Step};

/// What a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Making its weights.
    Starting,
    /// Waiting for all ranks, between two training steps.
    Between,
    /// Computing.
    Computing,
    /// In a group of transfers.
    Exchanging,
    /// Its row has failed.
    Failed,
    /// Not heard of since it began the training step: another process, and gone or stuck.
    Lost,
    /// Done.
    Ended,
}

impl State {
    /// The state with this number.
    pub(super) fn of(number: u8) -> State {
        [State::Starting, State::Between, State::Computing, State::Exchanging, State::Failed, State::Lost]
            .into_iter()
            .find(|state| *state as u8 == number)
            .unwrap_or(State::Ended)
    }
}

#[derive(Debug, Default)]
struct Cell {
    training_step: AtomicU32,
    index: AtomicUsize,
    state: AtomicU8,
}

/// One cell a rank. Each is written by its rank and read by whoever reports.
#[derive(Debug)]
pub struct Board {
    cells: Vec<Cell>,
    /// Ranks of one pipeline.
    pipeline: usize,
}

impl Board {
    /// All `ranks` starting, the first `pipeline` of which are one pipeline, the next so many its copy and so on.
    pub fn new(ranks: usize, pipeline: usize) -> Board {
        Board { cells: (0..ranks).map(|_| Cell::default()).collect(), pipeline: pipeline.max(1) }
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
            let row = program.rows.get(rank % self.pipeline);
            let first = rank - rank % self.pipeline;
            let replica = (self.cells.len() > self.pipeline).then_some(rank / self.pipeline);
            let pending = row.and_then(|row| row.get(index)).cloned();
            let mut peers: Vec<usize> = match &pending {
                Some(Step::Transfer(messages) | Step::Start(messages) | Step::Wait(messages)) => messages
                    .iter()
                    .map(|message| first + problem.rank_of(message.peer_stage(), message.microbatch as usize))
                    .collect(),
                _ => Vec::new(),
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
    /// The copy of the pipeline that it belongs to, where there are several.
    pub replica: Option<usize>,
    /// The training step, from 0.
    pub training_step: u32,
    /// The position in its row.
    pub index: usize,
    /// Steps of its row.
    pub length: usize,
    /// The step there.
    pub pending: Option<Step>,
    /// The ranks at the other end, where that step is a group of transfers.
    pub peers: Vec<usize>,
    /// What it was doing.
    pub state: State,
}

impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankReport { rank, training_step, index, length, .. } = self;
        let of_replica = self.replica.map_or_else(String::new, |replica| format!(" of replica {replica}"));
        let rank = format!("{rank}{of_replica}");
        let pending = self.pending.as_ref().map_or_else(String::new, ToString::to_string);
        let at = format!("training step {training_step}, {index} of {length}, {pending}");
        let peers: Vec<String> = self.peers.iter().map(ToString::to_string).collect();
        let peers = peers.join(", ");
        match self.state {
            State::Starting => write!(f, "rank {rank}: starting"),
            State::Between => write!(f, "rank {rank}: waiting for all ranks to start training step {training_step}"),
            State::Computing => write!(f, "rank {rank}: computing at {at}"),
            State::Exchanging => write!(f, "rank {rank}: exchanging with rank {peers} at {at}"),
            State::Failed if self.peers.is_empty() => write!(f, "rank {rank}: failed at {at}"),
            State::Failed => write!(f, "rank {rank}: failed, exchanging with rank {peers} at {at}"),
            State::Lost => write!(f, "rank {rank}: not heard of since it began training step {training_step}"),
            State::Ended => write!(f, "rank {rank}: ended"),
        }
    }
}
