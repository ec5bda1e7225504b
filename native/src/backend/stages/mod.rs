//! The stages of one rank: their weights, the tensors of their microbatches, and the operators of a job one after the
//! other.
//!
//! - In: an op, and the parcels that it needs.
//! - Out: parcels for other stages, losses, and updated weights.
//! - Knows: operator graphs and their liveness. A [`Processor`] holds the data and runs the operators on a device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::{Graph, Job, Role, Tensor, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::copies::Moved;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Payload;

use self::collective::PeerOperators;
use self::execute::execute;
use self::sharded::{Underway, Weights};
use self::stage::{Parameter, Stage};
use super::arena::Lane;
use super::cpu::element::Element;
use super::peers::Peers;
use super::rotary::LayerScaling;
use super::{Backend, BackendError, Parcel, Part, Store, Values, WeightShardings};
use crate::runner::data::Batches;
use crate::runner::optimizer::AdamW;
use crate::runner::random::SplitMix64;
use crate::runner::shard::ShardOwner;
use crate::transport::{Buffer, OnCard};

mod collective;
mod copies;
mod execute;
mod processor;
mod sharded;
mod sliced;
mod stage;

pub use self::processor::{CollectiveOutcome, ExpertOverflow, Held, Input, NewParameter, Processor, Updated};
pub use self::sliced::{Slice, Slicing};

/// One job that has run, for comparisons of bytes with the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobBytes {
    /// The stage.
    pub stage: u16,
    /// The job, or both backwards in one.
    pub kind: OpKind,
    /// The microbatch.
    pub microbatch: u32,
    /// The most bytes that the microbatch's tensors held during the job.
    pub peak: Bytes,
    /// The bytes that they hold after it.
    pub kept: Bytes,
}

/// What a rank trains with, on every device.
#[derive(Clone, Debug)]
pub struct Training {
    /// Stages of the model, over all ranks.
    pub stage_count: usize,
    /// Seed of weights and dropouts.
    pub seed: u64,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// Which optimizer updates the weights.
    pub kind: Optimizer,
    /// How this rank keeps weights, of which there may be copies.
    pub shardings: WeightShardings,
    /// Whether that state lies in host memory.
    pub state_on_host: bool,
    /// Whether moments of bf16 weights are in bf16.
    pub bf16_moments: bool,
    /// Ranks of a node in an expert-parallel group, where a token goes once to each node with experts of it; nothing where
    /// it goes once for each expert.
    pub expert_node: Option<usize>,
    /// The part of each weight that it holds.
    pub seat: ShardOwner,
    /// How rotary positions are scaled.
    pub rotary: LayerScaling,
    /// How sequences are cut into slices; nothing for whole ones.
    pub slicing: Option<Slicing>,
    /// The data.
    pub batches: Arc<Batches>,
}

/// The stages of one rank on a processor.
pub struct Stages<P: Processor> {
    processor: P,
    stages: BTreeMap<u16, Stage<P::Data, P::State>>,
    /// Numbers of the stages of this rank.
    here: BTreeSet<u16>,
    training: Training,
    step: u32,
    losses: Vec<(u32, f64)>,
    job_bytes: Option<Vec<JobBytes>>,
}

impl<P: Processor> Stages<P> {
    /// Lends what belongs to the weight `name` of `stage` to `work`.
    fn with_parameter<R>(
        &mut self,
        stage: u16,
        name: &str,
        work: impl FnOnce(&mut P, Updated<'_, P::Data, P::State>) -> Result<R, P::Error>,
    ) -> Result<R, BackendError> {
        let Stages { processor, stages, .. } = self;
        let held = stages.get_mut(&stage);
        let done = held.and_then(|stage| stage.with_named(name, |parameter| work(processor, parameter)));
        let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
        done.ok_or_else(missing)?.map_err(Into::into)
    }

    /// Lends the weight `name` to `work`, such as to change an element in a test; nothing if it is not held.
    pub fn with_weight<R>(
        &mut self,
        name: &str,
        work: impl FnOnce(Updated<'_, P::Data, P::State>) -> R,
    ) -> Option<R> {
        let stage =
            self.stages.values_mut().find(|stage| stage.graph.weights().any(|(_, tensor)| tensor.name == name));
        stage?.with_named(name, work)
    }

    /// Holds `stages` (number and graph) on `processor`, with weights that follow from the seed and their names:
    /// whatever the partition, a parameter starts the same. Counts their bytes in `store`.
    ///
    /// # Errors
    /// Where there is no room for them.
    pub fn start(
        mut processor: P,
        stages: impl IntoIterator<Item = (u16, Graph)>,
        training: Training,
        store: &mut Store,
    ) -> Result<Stages<P>, P::Error> {
        let mut held = BTreeMap::new();
        for (number, graph) in stages {
            held.insert(number, Stage::new(graph, &mut processor, &training, &mut store.meter)?);
        }
        let here = held.keys().copied().collect();
        let (step, losses, job_bytes) = (0, Vec::new(), None);
        Ok(Stages { processor, stages: held, here, training, step, losses, job_bytes })
    }

    /// Notes the bytes of each job from now on.
    pub fn record_job_bytes(&mut self) {
        self.job_bytes = Some(Vec::new());
    }

    /// What has been noted.
    pub fn job_bytes(&self) -> &[JobBytes] {
        self.job_bytes.as_deref().unwrap_or_default()
    }

    /// The gradient of each weight by the weight's name, as gathered so far: what this rank keeps of it.
    pub fn gradients(&self) -> BTreeMap<String, Buffer> {
        self.by_name(|stage, parameter| {
            let whole = || stage.persistent[parameter.gradient.tensor()?.index()].as_ref();
            self.processor.gradient(parameter.reduced.as_ref().or_else(whole)?)
        })
    }

    /// The weights by name, each as [`Part::Weight`] is now: what this rank keeps of it.
    pub fn weights(&self) -> BTreeMap<String, Buffer> {
        self.by_name(|stage, parameter| {
            let whole = || stage.persistent[parameter.weight.index()].as_ref();
            self.processor.weight(parameter.shard.as_ref().or_else(whole)?, &parameter.state)
        })
    }

    fn by_name(
        &self,
        of: impl Fn(&Stage<P::Data, P::State>, &Parameter<P::Data, P::State>) -> Option<Buffer>,
    ) -> BTreeMap<String, Buffer> {
        let mut named = BTreeMap::new();
        for stage in self.stages.values() {
            for parameter in &stage.parameters {
                if let Some(buffer) = of(stage, parameter) {
                    named.insert(stage.graph[parameter.weight].name.clone(), buffer);
                }
            }
        }
        named
    }

    fn run_op(&mut self, op: Op, store: &mut Store, peers: &mut dyn Peers) -> Result<(), BackendError> {
        let (number, microbatch) = (op.stage() as u16, op.microbatch() as u32);
        let Stages { processor, stages, training, step, .. } = self;
        let stage = stages.get_mut(&number).ok_or(BackendError::NoSuchStage { stage: number.into() })?;
        stage.renew_copies(processor).map_err(Into::into)?;
        let Stage {
            graph,
            lifetimes,
            fused,
            brief,
            persistent,
            parameters,
            of_products,
            stale,
            units,
            slices,
            lanes,
            ..
        } = stage;
        let job = match op.kind() {
            OpKind::F => Job::F,
            OpKind::B | OpKind::BW => Job::B,
            OpKind::W => Job::W,
        };
        let of_job = |at: &u32| graph.operators[*at as usize].job == job;
        let (lifetimes, order): (&Lifetimes, Vec<u32>) = match op.kind() {
            OpKind::BW => (&fused.0, fused.1.clone()),
            _ => (lifetimes, (0..graph.operators.len() as u32).filter(of_job).collect()),
        };
        if (job == Job::F) == lanes.contains_key(&microbatch) {
            return Err(BackendError::OutOfOrder { op });
        }
        let mut lane = lanes.remove(&microbatch).unwrap_or_else(|| Lane::new(graph));
        let draw = u64::from(*step) << 32 | u64::from(training.batches.number(microbatch));
        let seed = SplitMix64::new(SplitMix64::named(training.seed, "dropout").draw() ^ draw).draw();
        processor.begin(seed, training.seat.member as u64, training.batches.part());
        divide_losses(processor, graph, &training.batches, *step)?;
        processor.stay_within(training.batches.document_starts(*step, microbatch)?);
        processor.slice(slices.as_ref().map(|slices| slices.positions(microbatch)));
        if let Some(slices) = slices {
            slices.begin(op, graph, processor, &mut store.meter)?;
        }
        lane.restart_peak();
        let arrives = &lifetimes.arrive[job as usize];
        arrive(processor, graph, arrives, op, (training, *step), &mut lane, store)?;
        take_nothing(graph, job, store, (number, microbatch))?;
        let (mut begun, mut underway) = (BTreeMap::new(), Underway::default());
        let mut weights = Weights {
            stage: number,
            graph,
            units: &units[op.kind() as usize],
            parameters,
            persistent,
            of_products,
            stale,
            meter: &mut store.meter,
        };
        for (position, index) in order.into_iter().map(|at| at as usize).enumerate() {
            underway.before(position, &mut weights, processor, &mut *peers)?;
            let operator = &graph.operators[index];
            let takes_over = lifetimes.takes_over[index];
            let together = &mut PeerOperators { peers: &mut *peers, begun: &mut begun, microbatch };
            let held = (&mut weights.persistent[..], &mut weights.stale[..]);
            let lent = slices.as_mut().map(|slices| slices.lend(op, (index, operator), lanes)).transpose()?;
            let mut slice = lent.flatten();
            let sliced = slice.as_mut();
            execute(processor, graph, operator, takes_over, brief, held, &mut lane, weights.meter, together, sliced)
                .map_err(|stuck| stuck.unwrap_or(BackendError::OutOfOrder { op }))?;
            let sums = slice.map(|slice| slice.gradients);
            if let Some((slices, sums)) = slices.as_mut().zip(sums) {
                slices.give_back(op, index, sums);
                slices.keep(op, index, graph, &lane, processor, weights.meter)?;
            }
            for id in &lifetimes.free_after[index] {
                lane.remove(graph, *id, weights.meter);
            }
            underway.after(position, &mut weights, processor, &mut *peers)?;
        }
        underway.end(&mut weights, processor, &mut *peers)?;
        // From here on this waits for the device.
        peers.settle()?;
        let peak = lane.peak();
        let ends = &lifetimes.end[job as usize];
        let loss = leave(processor, graph, (ends, job), op, &self.here, &mut lane, store)?;
        self.losses.extend(loss.map(|loss| (microbatch, loss)));
        put_nothing(graph, job, store, (number, microbatch));
        let kept = lane.held();
        if let Some(noted) = &mut self.job_bytes {
            noted.push(JobBytes { stage: number, kind: op.kind(), microbatch, peak, kept });
        }
        if let Some(slices) = slices {
            slices.end(op, graph, &mut store.meter);
        }
        if !matches!(op.kind(), OpKind::W | OpKind::BW) {
            lanes.insert(microbatch, lane);
        }
        processor.finish().map_err(Into::into)
    }
}

/// Puts into `lane` what `op` begins with, the tensors `ids`: tokens, and what other stages have sent.
fn arrive<P: Processor>(
    processor: &mut P,
    graph: &Graph,
    ids: &[TensorId],
    op: Op,
    (training, step): (&Training, u32),
    lane: &mut Lane<P::Data>,
    store: &mut Store,
) -> Result<(), BackendError> {
    let (stage, microbatch) = (op.stage() as u16, op.microbatch() as u32);
    for id in ids {
        let data = match graph[*id].role {
            Role::Tokens { ahead } => {
                let tokens = training.batches.tokens(step, microbatch, ahead)?;
                processor.tokens(tokens).map_err(Into::into)?
            }
            role => {
                let payload = if role == Role::ActivationIn { Payload::Activation } else { Payload::Gradient };
                let parcel = Parcel { payload, stage, microbatch };
                let expected = graph[*id].bytes();
                let buffer = store.take(parcel)?;
                let found = buffer.bytes();
                match processor.unpack(buffer, &graph[*id]) {
                    Some(data) if found == expected => data,
                    _ => return Err(BackendError::WrongSize { parcel, found, expected }),
                }
            }
        };
        lane.put(graph, *id, data, &mut store.meter);
    }
    Ok(())
}

/// Takes out of `lane` what `op`, a job of its kind, ends with, the tensors `ids`: parcels for other stages go to
/// `store`, of which `here` are this rank's. Gives the loss, if there is one.
fn leave<P: Processor>(
    processor: &mut P,
    graph: &Graph,
    (ids, job): (&[TensorId], Job),
    op: Op,
    here: &BTreeSet<u16>,
    lane: &mut Lane<P::Data>,
    store: &mut Store,
) -> Result<Option<f64>, BackendError> {
    let (number, microbatch) = (op.stage() as u16, op.microbatch() as u32);
    let mut own = None;
    for id in ids {
        let data = lane.remove(graph, *id, &mut store.meter);
        if graph[*id].role.leaves_after() != Some(job) {
            continue;
        }
        let data = data.ok_or(BackendError::OutOfOrder { op })?;
        let (payload, stage) = match graph[*id].role {
            Role::ActivationOut => (Payload::Activation, number + 1),
            Role::GradientOut => (Payload::Gradient, number.saturating_sub(1)),
            role => {
                let loss = processor.number(&data).map_err(Into::into)?;
                if !loss.is_finite() {
                    return Err(BackendError::NotFinite { microbatch, loss: loss.to_string() });
                }
                // Those of later tokens (MTP) only train.
                if matches!(role, Role::Loss { ahead: 1, .. }) {
                    own = Some(loss);
                }
                continue;
            }
        };
        let buffer = processor.pack(data, &graph[*id], here.contains(&stage)).map_err(Into::into)?;
        store.put(Parcel { payload, stage, microbatch }, buffer);
    }
    Ok(own)
}

/// Lends `values`, the elements `mine` of so many, in the place that they have among these, where all others are 0;
/// and keeps what becomes of them alone.
fn in_whole(values: Values<'_>, elements: usize, mine: &Range<usize>, work: &mut dyn FnMut(Values<'_>)) {
    fn placed<T: Element>(values: &mut [T], elements: usize, mine: &Range<usize>, work: &mut dyn FnMut(Values<'_>)) {
        let mut whole = vec![T::ZERO; elements];
        whole[mine.clone()].copy_from_slice(values);
        work(T::values(&mut whole));
        values.copy_from_slice(&whole[mine.clone()]);
    }
    match values {
        Values::F32(values) => placed(values, elements, mine, work),
        Values::F64(values) => placed(values, elements, mine, work),
    }
}

/// Tells the processor of a stage with targets what losses of `step` are divided by, where some are not to be
/// predicted.
fn divide_losses<P: Processor>(
    processor: &mut P,
    graph: &Graph,
    batches: &Batches,
    step: u32,
) -> Result<(), BackendError> {
    let has_targets = |(_, tensor): (TensorId, &Tensor)| matches!(tensor.role, Role::Tokens { ahead: 1.. });
    if batches.is_masked() && graph.tensors().any(has_targets) {
        processor.divide_losses(batches.loss_divisor(step)?);
    }
    Ok(())
}

/// Takes the message of the next stage for a B where it is empty, because nothing up to the end of this one trains.
fn take_nothing(
    graph: &Graph,
    job: Job,
    store: &mut Store,
    (stage, microbatch): (u16, u32),
) -> Result<(), BackendError> {
    let has = |role| graph.with_role(role).is_some();
    if job == Job::B && has(Role::ActivationOut) && !has(Role::GradientIn) {
        store.take(Parcel { payload: Payload::Gradient, stage, microbatch })?;
    }
    Ok(())
}

/// Puts an empty message of a B for the stage before, which waits for one, where nothing before this one trains.
fn put_nothing(graph: &Graph, job: Job, store: &mut Store, (stage, microbatch): (u16, u32)) {
    let has = |role| graph.with_role(role).is_some();
    if job == Job::B && has(Role::ActivationIn) && !has(Role::GradientOut) {
        let parcel = Parcel { payload: Payload::Gradient, stage: stage.saturating_sub(1), microbatch };
        store.put(parcel, Buffer::Nothing);
    }
}

impl<P: Processor> Backend for Stages<P> {
    fn begin(&mut self, step: u32) {
        self.step = step;
        self.losses.clear();
        for stage in self.stages.values_mut() {
            stage.stale.clone_from(&stage.of_products);
            stage.copies_are_old = true;
        }
    }

    fn expects(&self, parcel: Parcel) -> Bytes {
        let role = match parcel.payload {
            Payload::Activation => Role::ActivationIn,
            Payload::Gradient => Role::GradientIn,
        };
        let graph = self.stages.get(&parcel.stage).map(|stage| &stage.graph);
        graph.and_then(|graph| graph.with_role(role).map(|id| graph[id].bytes())).unwrap_or(0)
    }

    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, BackendError> {
        self.processor.take_in(buffer).map_err(Into::into)
    }

    fn compute(&mut self, op: Op, store: &mut Store, peers: &mut dyn Peers) -> Result<(), BackendError> {
        if op.stage() >= self.training.stage_count {
            return Err(BackendError::NoSuchStage { stage: op.stage() });
        }
        self.run_op(op, store, peers)
    }

    fn start_copy(&mut self, moved: Moved, store: &mut Store) -> Result<(), BackendError> {
        let Stages { processor, stages, .. } = self;
        let no_stage = || BackendError::NoSuchStage { stage: moved.stage.into() };
        let Stage { graph, host_copies, lanes, .. } = stages.get_mut(&moved.stage).ok_or_else(no_stage)?;
        let lane = lanes.get_mut(&moved.microbatch);
        host_copies.start(moved, graph, lane, processor, &mut store.meter)
    }

    fn wait_copy(&mut self, moved: Moved, store: &mut Store) -> Result<(), BackendError> {
        let no_stage = || BackendError::NoSuchStage { stage: moved.stage.into() };
        let Stage { graph, host_copies, lanes, .. } = self.stages.get_mut(&moved.stage).ok_or_else(no_stage)?;
        host_copies.end(moved, graph, lanes.get_mut(&moved.microbatch), &mut store.meter)
    }

    fn optimize(&mut self, _store: &mut Store) -> Result<(), BackendError> {
        let Stages { processor, stages, training, step, .. } = self;
        for stage in stages.values_mut() {
            for position in 0..stage.parameters.len() {
                if stage.parameters[position].gradient.tensor().is_none() {
                    continue;
                }
                let updated =
                    stage.with(position, |parameter| processor.update(&training.optimizer, *step, parameter));
                updated.transpose().map_err(Into::into)?;
            }
        }
        processor.finish().map_err(Into::into)
    }

    fn take_losses(&mut self) -> Vec<(u32, f64)> {
        std::mem::take(&mut self.losses)
    }

    fn lend(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), BackendError> {
        let of_share = self.stages.get(&stage).and_then(|stage| stage.share_kept(name, part));
        self.with_parameter(stage, name, |processor, parameter| match of_share {
            None => processor.lend(part, parameter, work),
            Some((elements, mine)) => {
                processor.lend(part, parameter, &mut |values| in_whole(values, elements, &mine, work))
            }
        })
    }

    fn device_bytes(&self) -> Option<Bytes> {
        self.processor.device_bytes()
    }

    fn on_card(&mut self, stage: u16, name: &str, part: Part) -> Option<(OnCard, Dtype)> {
        let Stages { processor, stages, .. } = self;
        let lent = stages.get_mut(&stage)?.with_named(name, |parameter| processor.on_card(part, parameter));
        lent.flatten()
    }

    fn scale_on_card(&mut self, stage: u16, name: &str, part: Part, factor: f64) -> Result<(), BackendError> {
        self.with_parameter(stage, name, |processor, parameter| processor.scale_on_card(part, parameter, factor))
    }

    fn copied_on_card(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        range: Range<usize>,
    ) -> Result<Option<OnCard>, BackendError> {
        self.with_parameter(stage, name, |processor, parameter| processor.copied_on_card(part, parameter, range))
    }

    fn sum_on_card(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        start: usize,
        from: &[OnCard],
    ) -> Result<(), BackendError> {
        self.with_parameter(stage, name, |processor, parameter| processor.sum_on_card(part, parameter, start, from))
    }

    fn squares_on_card(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        range: Range<usize>,
    ) -> Result<Option<f64>, BackendError> {
        self.with_parameter(stage, name, |processor, parameter| processor.squares_on_card(part, parameter, range))
    }

    fn most_on_card(&self) -> usize {
        self.processor.most_on_card()
    }
}
