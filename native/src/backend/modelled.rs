//! Waits for the planned time instead of computing: so a plan of typed costs, or of a cluster that is not
//! here, runs through everything but the arithmetic.
//!
//! A parcel is one `f64`: when it has arrived, in nanoseconds of the machine's clock since 1970, which processes of one
//! machine share; exact to a quarter of a microsecond. As in the simulator, a transfer takes no rank's time: a rank
//! that needs
//! it waits for the rest of the hop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::copies::{CopyWay, Moved};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Payload;

use super::peers::Peers;
use super::{Backend, BackendError, Kind, Parcel, Store};
use crate::transport::Buffer;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How many times the planned time.
    pub slowdown: u64,
    /// The planned time of what follows the last op of a training step.
    pub tail_ns: Nanos,
    /// From where the run counts its time.
    pub start: Instant,
}

/// Takes the time of the problem, multiplied by a factor.
pub struct Modelled {
    problem: Problem,
    pace: Pace,
    /// From 1970 to the start of the run.
    epoch_ns: Nanos,
    /// When the link to the host is free, and when the copies under way end.
    link_free: Nanos,
    copies: BTreeMap<Moved, Nanos>,
}

impl Modelled {
    /// For `rank` of its pipeline. Counts the rank's static bytes in `store`.
    pub fn new(problem: Problem, rank: usize, pace: Pace, store: &mut Store) -> Modelled {
        store.meter.take(Kind::Persistent, problem.static_bytes(rank));
        store.meter.ignore_transfers();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = since_epoch.saturating_sub(pace.start.elapsed()).as_nanos() as Nanos;
        Modelled { problem, pace, epoch_ns, link_free: 0, copies: BTreeMap::new() }
    }

    fn now(&self) -> Nanos {
        self.pace.start.elapsed().as_nanos() as Nanos
    }

    /// Sleeps until shortly before `moment`, since a sleep ends late, and gives way to others for the rest.
    fn wait_until(&self, moment: Nanos) {
        const LATE: Nanos = 150_000;
        let left = moment.saturating_sub(self.now());
        if left > LATE {
            std::thread::sleep(Duration::from_nanos(left - LATE));
        }
        while self.now() < moment {
            std::thread::yield_now();
        }
    }

    /// What `op` needs of another stage.
    fn arrives(&self, op: Op) -> Option<Parcel> {
        let (payload, is_needed) = match op.kind() {
            OpKind::F => (Payload::Activation, op.stage() > 0),
            OpKind::B | OpKind::BW => (Payload::Gradient, op.stage() + 1 < self.problem.stage_count()),
            OpKind::W => return None,
        };
        is_needed.then_some(Parcel { payload, stage: op.stage() as u16, microbatch: op.microbatch() as u32 })
    }

    /// What `op` makes for another stage.
    fn leaves(&self, op: Op) -> Option<Parcel> {
        let (payload, stage) = match op.kind() {
            OpKind::F if op.stage() + 1 < self.problem.stage_count() => (Payload::Activation, op.stage() + 1),
            OpKind::B | OpKind::BW if op.stage() > 0 => (Payload::Gradient, op.stage() - 1),
            _ => return None,
        };
        Some(Parcel { payload, stage: stage as u16, microbatch: op.microbatch() as u32 })
    }

    /// `planned`, slowed down.
    fn slowed(&self, planned: Nanos) -> Nanos {
        planned.saturating_mul(self.pace.slowdown)
    }
}

impl Backend for Modelled {
    fn begin(&mut self, _: u32) {}

    fn await_inputs(&mut self, op: Op, store: &Store) {
        let buffer = self.arrives(op).and_then(|parcel| store.get(parcel));
        if let Some(Buffer::F64(stamp)) = buffer
            && let Some(arrived) = stamp.first()
        {
            self.wait_until((*arrived as Nanos).saturating_sub(self.epoch_ns));
        }
    }

    fn compute(&mut self, op: Op, store: &mut Store, _: &mut dyn Peers) -> Result<(), BackendError> {
        let start = self.now();
        if op.stage() >= self.problem.stage_count() {
            return Err(BackendError::NoSuchStage { stage: op.stage() });
        }
        let (takes, gives): (Bytes, Bytes) = (self.problem.takes(op), self.problem.gives(op));
        store.meter.take(Kind::Activation, takes);
        if let Some(parcel) = self.arrives(op) {
            store.take(parcel)?;
        }
        self.wait_until(start.saturating_add(self.slowed(self.problem.duration(op))));
        if let Some(parcel) = self.leaves(op) {
            let hop = self.problem.hop_of(op.stage(), usize::from(parcel.stage), op.microbatch());
            let arrives = self.now().saturating_add(self.slowed(hop));
            store.put(parcel, Buffer::F64(vec![self.epoch_ns.saturating_add(arrives) as f64]));
        }
        if store.meter.held(Kind::Activation) < gives {
            return Err(BackendError::OutOfOrder { op });
        }
        store.meter.give(Kind::Activation, gives);
        Ok(())
    }

    fn start_copy(&mut self, moved: Moved, store: &mut Store) -> Result<(), BackendError> {
        let stage = usize::from(moved.stage);
        if stage >= self.problem.stage_count() {
            return Err(BackendError::NoSuchStage { stage });
        }
        let cost = self.problem.cost(stage);
        self.link_free = self.now().max(self.link_free).saturating_add(self.slowed(cost.offload_ns));
        self.copies.insert(moved, self.link_free);
        // What a copy makes is held from here on.
        let kind = if moved.way == CopyWay::Reload { Kind::Activation } else { Kind::Host };
        store.meter.take(kind, cost.offload_bytes);
        Ok(())
    }

    fn wait_copy(&mut self, moved: Moved, store: &mut Store) -> Result<(), BackendError> {
        let end = self.copies.remove(&moved).ok_or(BackendError::CopyOutOfOrder { moved })?;
        self.wait_until(end);
        let bytes = self.problem.cost(moved.stage.into()).offload_bytes;
        let kind = if moved.way == CopyWay::Offload { Kind::Activation } else { Kind::Host };
        store.meter.give(kind, bytes.min(store.meter.held(kind)));
        Ok(())
    }

    fn optimize(&mut self, _: &mut Store) -> Result<(), BackendError> {
        self.wait_until(self.now().saturating_add(self.slowed(self.pace.tail_ns)));
        Ok(())
    }

    fn take_losses(&mut self) -> Vec<(u32, f64)> {
        Vec::new()
    }
}
