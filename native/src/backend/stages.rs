//! The stages of one rank: their weights, the tensors of the microbatches under way, and the walk along the operators of
//! a job. It is the same walk on every device; a [`Processor`] holds the data and runs the operators.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::liveness::{Lifetimes, fused_order};
use pipeplan_core::graph::{Axis, Graph, Init, Job, Kernel, Needs, Operator, Role, SequencePart, Tensor, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Payload;

use super::arena::Lane;
use super::peers::{Collective, Peers, Ticket};
use super::{Backend, BackendError, Kind, Meter, Parcel, Part, Shares, Store, Values};
use crate::runner::data::Batches;
use crate::runner::optimizer::AdamW;
use crate::runner::random::SplitMix64;
use crate::runner::shard::Seat;
use crate::transport::{Buffer, OnCard};

/// An input of an operator.
#[derive(Debug)]
pub struct Input<'a, D> {
    /// What it is.
    pub tensor: &'a Tensor,
    /// Where its data is.
    pub data: Held<'a, D>,
}

/// Where an input's data is.
#[derive(Debug)]
pub enum Held<'a, D> {
    /// Here.
    Here(&'a D),
    /// In the output of this position, which is the same tensor or has taken over its buffer.
    InOutput(usize),
    /// Perhaps nowhere: only its sizes are needed.
    Nowhere,
}

/// What became of a collective that is to stay on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// Nothing: it goes by the host's memory.
    Not,
    /// It is done.
    Done,
    /// It has begun, and is to be [joined](Peers::join).
    Begun(Ticket),
}

/// A rank that more copies of tokens come to than it has room for: the fullest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded {
    /// Its number among those that experts are dealt to.
    pub member: usize,
    /// What comes.
    pub come: usize,
    /// Rows for it.
    pub room: usize,
    /// Copies that leave each rank.
    pub copies: usize,
}

impl Crowded {
    /// The least imbalance for which there is room, in thousandths: rows are rounded up.
    fn enough_permille(&self) -> usize {
        1000 * (self.come - 1) / self.copies.max(1) + 1
    }
}

/// A weight as a run starts with it.
pub struct NewParameter<D, S> {
    /// The weight.
    pub weight: D,
    /// Its gradient, all 0.
    pub gradient: D,
    /// What the optimizer keeps.
    pub state: S,
    /// The bytes of that.
    pub state_bytes: Bytes,
}

/// Holds tensors and runs operators.
pub trait Processor {
    /// The data of a tensor.
    type Data;
    /// What the optimizer keeps of a weight: of this rank's [share](Shares) alone.
    type State;
    /// Why something could not be done.
    type Error: Into<BackendError>;

    /// Room for `tensor`, at most until the end of the job where `briefly`.
    ///
    /// # Errors
    /// Where there is none.
    fn allocate(&mut self, tensor: &Tensor, briefly: bool) -> Result<Self::Data, Self::Error>;

    /// Tokens of a microbatch.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn tokens(&mut self, tokens: Vec<i32>) -> Result<Self::Data, Self::Error>;

    /// `weight` as a run of `training` starts, with state for `held` of its elements.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn parameter(
        &mut self,
        training: &Training,
        init: Init,
        weight: &Tensor,
        gradient: &Tensor,
        held: usize,
    ) -> Result<NewParameter<Self::Data, Self::State>, Self::Error>;

    /// What a parcel holds; nothing where that is not this processor's.
    fn unpack(&mut self, buffer: Buffer) -> Option<Self::Data>;

    /// What a transfer has brought, made this processor's own.
    ///
    /// # Errors
    /// As [`Processor::allocate`].
    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, Self::Error> {
        Ok(buffer)
    }

    /// A parcel of `data`, for this rank or (else) for another.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn pack(&mut self, data: Self::Data, tensor: &Tensor, stays: bool) -> Result<Buffer, Self::Error>;

    /// The number in `data`.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn number(&mut self, data: &Self::Data) -> Result<f64, Self::Error>;

    /// Runs or begins a collective of the ranks that share matrices without the host's memory, where that can be done. All
    /// of them come to the same answer. The input is `from`, or lies where the output `to` does.
    ///
    /// # Errors
    /// Where the device or the transport fails.
    fn together(
        &mut self,
        _what: Collective,
        _from: (&Tensor, Option<&Self::Data>),
        _to: (&Tensor, &Self::Data),
        _peers: &mut dyn Peers,
    ) -> Result<Together, BackendError> {
        Ok(Together::Not)
    }

    /// Whether running `kernel` waits for the device.
    fn waits_for_device(&self, _kernel: &Kernel) -> bool {
        false
    }

    /// A copy of `data` in the host's memory, for the ranks that share matrices.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn to_host(&mut self, data: &Self::Data, tensor: &Tensor) -> Result<Buffer, Self::Error>;

    /// Writes what those ranks have made of it to `data`.
    ///
    /// # Errors
    /// Where it cannot be written.
    fn fill(&mut self, data: &mut Self::Data, tensor: &Tensor, values: Buffer) -> Result<(), Self::Error>;

    /// A job starts whose dropouts draw from `dropout_seed`, on the rank with the number `member` among those that share
    /// matrices, and with `part` of every sequence.
    fn begin(&mut self, dropout_seed: u64, member: u64, part: SequencePart);

    /// Runs `kernel`. An output that adds to an input, or runs in its place, holds that input's data.
    ///
    /// # Errors
    /// Where it cannot.
    fn run(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
    ) -> Result<(), Self::Error>;

    /// As [`Processor::run`], and calls `between` now and then while the operator runs, where it can, and when it has run.
    ///
    /// # Errors
    /// As [`Processor::run`].
    fn run_in_pieces(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        between: &mut dyn FnMut(),
    ) -> Result<(), Self::Error> {
        self.run(kernel, inputs, outputs)?;
        between();
        Ok(())
    }

    /// As [`Processor::run`], of a kernel that talks with `peers`, along its [axis](Kernel::axis), while it runs.
    ///
    /// # Errors
    /// As [`Processor::run`], and where a peer does not come.
    fn run_among(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        _peers: &mut dyn Peers,
    ) -> Result<(), BackendError> {
        self.run(kernel, inputs, outputs).map_err(Into::into)
    }

    /// Runs `kernel`, whose experts are dealt to ranks, together with these. Gives the fullest of them where not all have
    /// room for what comes to them, which then all learn.
    ///
    /// # Errors
    /// Where one does not come, or the device fails.
    fn deal(
        &mut self,
        kernel: &Kernel,
        inputs: &[Input<'_, Self::Data>],
        outputs: &mut [(&Tensor, Self::Data)],
        peers: &mut dyn Peers,
    ) -> Result<Option<Crowded>, BackendError>;

    /// Waits until all is done that was asked for.
    ///
    /// # Errors
    /// What has failed since the last wait.
    fn finish(&mut self) -> Result<(), Self::Error>;

    /// Updates the elements `mine` of a weight after training step `step`, and sets its gradient to 0 where it is to be
    /// [cleared](Updated::clear).
    ///
    /// # Errors
    /// Where it cannot.
    fn update(
        &mut self,
        optimizer: &AdamW,
        step: u32,
        parameter: Updated<'_, Self::Data, Self::State>,
    ) -> Result<(), Self::Error>;

    /// The weight as the optimizer has it; nothing where it cannot be read any more.
    fn weight(&self, weight: &Self::Data, state: &Self::State) -> Option<Buffer>;

    /// The numbers of a weight's gradient, in the widest format; nothing where they cannot be read any more.
    fn gradient(&self, gradient: &Self::Data) -> Option<Buffer>;

    /// Lends `part` to `work`, which may change it.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    fn lend(
        &mut self,
        part: Part,
        parameter: Updated<'_, Self::Data, Self::State>,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), Self::Error>;

    /// As [`Backend::device_bytes`].
    fn device_bytes(&self) -> Option<Bytes> {
        None
    }

    /// The device's memory that holds `part`, as [`Backend::on_card`].
    fn on_card(&mut self, _part: Part, _parameter: Updated<'_, Self::Data, Self::State>) -> Option<(OnCard, Dtype)> {
        None
    }

    /// Multiplies `part`, as [`Backend::scale_on_card`].
    ///
    /// # Errors
    /// Where it cannot.
    fn scale_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _factor: f64,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// As [`Backend::copied_on_card`].
    ///
    /// # Errors
    /// Where it cannot.
    fn copied_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _range: Range<usize>,
    ) -> Result<Option<OnCard>, Self::Error> {
        Ok(None)
    }

    /// As [`Backend::sum_on_card`].
    ///
    /// # Errors
    /// Where it cannot.
    fn sum_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _start: usize,
        _from: &[OnCard],
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// As [`Backend::squares_on_card`].
    ///
    /// # Errors
    /// Where it cannot.
    fn squares_on_card(
        &mut self,
        _part: Part,
        _parameter: Updated<'_, Self::Data, Self::State>,
        _range: Range<usize>,
    ) -> Result<Option<f64>, Self::Error> {
        Ok(None)
    }

    /// As [`Backend::most_on_card`].
    fn most_on_card(&self) -> usize {
        0
    }
}

/// A weight with all that belongs to it.
pub struct Updated<'a, D, S> {
    /// What the weight is.
    pub tensor: &'a Tensor,
    /// The weight.
    pub weight: &'a mut D,
    /// Its gradient.
    pub gradient: &'a mut D,
    /// What the optimizer keeps.
    pub state: &'a mut S,
    /// The elements of this rank's share.
    pub mine: Range<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether the next step adds to the gradient as it stands. Where it begins with a product, that writes it anew.
    pub clear: bool,
}

/// A stage of this rank.
struct Stage<D, S> {
    graph: Graph,
    lifetimes: Lifetimes,
    /// The lifetimes where B and W are fused, and the order in which their operators then run. F's are the same.
    fused: (Lifetimes, Vec<u32>),
    /// By tensor: whether its buffer is given back in the job that takes it, with B and W apart.
    brief: Vec<bool>,
    /// By tensor: weights and their gradients; nothing elsewhere.
    persistent: Vec<Option<D>>,
    parameters: Vec<Parameter<S>>,
    /// By tensor: whether it is a gradient that nothing but products add to.
    of_products: Vec<bool>,
    /// Of those, the ones that this step has not written yet: the first product does not add to what the last step left.
    stale: Vec<bool>,
    /// By microbatch: what is there now. A lane goes when its last job has ended.
    lanes: BTreeMap<u32, Lane<D>>,
}

/// A weight, its gradient and what the optimizer remembers of it.
struct Parameter<S> {
    weight: TensorId,
    gradient: TensorId,
    decay: bool,
    state: S,
}

/// One job that has run, for whoever compares bytes with the estimate.
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

/// What a rank trains with, whatever the device.
#[derive(Clone, Debug)]
pub struct Training {
    /// Stages of the model, over all ranks.
    pub stage_count: usize,
    /// Seed of weights and dropouts.
    pub seed: u64,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// The parts of the optimizer's state that this rank holds.
    pub shares: Shares,
    /// Whether that state lies in the host's memory.
    pub state_on_host: bool,
    /// The part of each weight that it holds.
    pub seat: Seat,
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
        let Stages { processor, stages, training, .. } = self;
        let held = stages.get_mut(&stage);
        let done =
            held.and_then(|stage| stage.with_named(name, training.shares, |parameter| work(processor, parameter)));
        let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
        done.ok_or_else(missing)?.map_err(Into::into)
    }

    /// Lends the weight `name` to `work`, such as to change an element in a test; nothing where it is not held.
    pub fn with_weight<R>(
        &mut self,
        name: &str,
        work: impl FnOnce(Updated<'_, P::Data, P::State>) -> R,
    ) -> Option<R> {
        let shares = self.training.shares;
        let stage =
            self.stages.values_mut().find(|stage| stage.graph.weights().any(|(_, tensor)| tensor.name == name));
        stage?.with_named(name, shares, work)
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

    /// The gradient of each weight by the weight's name, as gathered so far.
    pub fn gradients(&self) -> BTreeMap<String, Buffer> {
        self.by_name(|stage, parameter| {
            self.processor.gradient(stage.persistent[parameter.gradient.index()].as_ref()?)
        })
    }

    /// The weights by name, each as [`Part::Weight`] is now.
    pub fn weights(&self) -> BTreeMap<String, Buffer> {
        self.by_name(|stage, parameter| {
            self.processor.weight(stage.persistent[parameter.weight.index()].as_ref()?, &parameter.state)
        })
    }

    fn by_name(
        &self,
        of: impl Fn(&Stage<P::Data, P::State>, &Parameter<P::State>) -> Option<Buffer>,
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
        let Stage { graph, lifetimes, fused, brief, persistent, stale, lanes, .. } = stage;
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
        let lane = lanes.entry(microbatch).or_insert_with(|| Lane::new(graph));
        let draw = u64::from(*step) << 32 | u64::from(training.batches.number(microbatch));
        let seed = SplitMix64::new(SplitMix64::named(training.seed, "dropout").draw() ^ draw).draw();
        processor.begin(seed, training.seat.member as u64, training.batches.part());
        lane.restart_peak();
        for id in &lifetimes.arrive[job as usize] {
            let data = match graph[*id].role {
                Role::Tokens { ahead } => {
                    let tokens = training.batches.tokens(*step, microbatch, ahead);
                    processor.tokens(tokens).map_err(Into::into)?
                }
                role => {
                    let payload = if role == Role::ActivationIn { Payload::Activation } else { Payload::Gradient };
                    let parcel = Parcel { payload, stage: number, microbatch };
                    let expected = graph[*id].bytes();
                    let buffer = store.take(parcel)?;
                    let found = buffer.bytes();
                    match processor.unpack(buffer) {
                        Some(data) if found == expected => data,
                        _ => return Err(BackendError::WrongSize { parcel, found, expected }),
                    }
                }
            };
            lane.put(graph, *id, data, &mut store.meter);
        }
        let mut begun = BTreeMap::new();
        for index in order.into_iter().map(|at| at as usize) {
            let operator = &graph.operators[index];
            let takes_over = lifetimes.takes_over[index];
            let together = &mut InCompany { peers: &mut *peers, begun: &mut begun, microbatch };
            let held = (&mut persistent[..], &mut stale[..]);
            execute(processor, graph, operator, takes_over, brief, held, lane, &mut store.meter, together)
                .map_err(|stuck| stuck.unwrap_or(BackendError::OutOfOrder { op }))?;
            for id in &lifetimes.free_after[index] {
                lane.remove(graph, *id, &mut store.meter);
            }
        }
        // From here on this waits for the device.
        peers.settle()?;
        let peak = lane.peak();
        for id in &lifetimes.end[job as usize] {
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
                    // Those of tokens further on only train.
                    if matches!(role, Role::Loss { ahead: 1, .. }) {
                        self.losses.push((microbatch, loss));
                    }
                    continue;
                }
            };
            let stays = self.here.contains(&stage);
            let buffer = processor.pack(data, &graph[*id], stays).map_err(Into::into)?;
            store.put(Parcel { payload, stage, microbatch }, buffer);
        }
        let kept = lane.held();
        if let Some(noted) = &mut self.job_bytes {
            noted.push(JobBytes { stage: number, kind: op.kind(), microbatch, peak, kept });
        }
        if matches!(op.kind(), OpKind::W | OpKind::BW) {
            lanes.remove(&microbatch);
        }
        processor.finish().map_err(Into::into)
    }
}

/// A collective that has begun in this job.
enum Begun {
    /// It is done already.
    Done,
    /// By the host's memory.
    ByHost(Ticket),
    /// On devices.
    OnDevices(Ticket),
}

/// The ranks that share matrices, and what has begun with them in this job, by the tensor that stands for it.
struct InCompany<'a> {
    peers: &'a mut dyn Peers,
    begun: &'a mut BTreeMap<TensorId, Begun>,
    microbatch: u32,
}

impl InCompany<'_> {
    /// Runs `operator` where it talks with other ranks, begins a collective or waits for one; says whether it does. Values go by the host's
    /// memory where the processor has no shorter way. An error without a reason where a collective was not begun.
    fn run<P: Processor>(
        &mut self,
        processor: &mut P,
        operator: &Operator,
        inputs: &[Input<'_, P::Data>],
        outputs: &mut [(&Tensor, P::Data)],
    ) -> Result<bool, Option<BackendError>> {
        if operator.kernel.axis() == Some(Axis::Expert) {
            let crowded = processor.deal(&operator.kernel, inputs, outputs, &mut *self.peers).map_err(Some)?;
            return crowded.map_or(Ok(true), |crowded| Err(Some(self.no_room(operator, &crowded))));
        }
        let what = match operator.kernel {
            Kernel::AllReduce { .. } | Kernel::AllReduceStart { .. } => Collective::Sum,
            Kernel::AllReduceMax { .. } => Collective::Max,
            Kernel::AllGather { .. } => Collective::Gather,
            Kernel::ReduceScatter { .. } | Kernel::ReduceScatterStart { .. } => Collective::Scatter,
            Kernel::AllReduceWait | Kernel::ReduceScatterWait => {
                let begun = operator.inputs.first().and_then(|input| self.begun.remove(&input.tensor));
                let begun = begun.ok_or(None)?;
                if let Begun::OnDevices(ticket) = begun {
                    self.peers.join(ticket).map_err(Some)?;
                }
                let Begun::ByHost(ticket) = begun else {
                    // What is there already stays where it is, or goes where the output is.
                    let copied = processor.run(&Kernel::Replicate { ways: 1 }, &inputs[..1], outputs);
                    return copied.map(|()| true).map_err(|error| Some(error.into()));
                };
                let result = self.peers.wait(ticket).map_err(Some)?;
                let (tensor, output) = outputs.first_mut().ok_or(None)?;
                processor.fill(output, tensor, result).map_err(|error| Some(error.into()))?;
                return Ok(true);
            }
            _ if operator.kernel.axis().is_some() => {
                let run = processor.run_among(&operator.kernel, inputs, outputs, &mut *self.peers);
                return run.map(|()| true).map_err(Some);
            }
            _ => return Ok(false),
        };
        let (input, (tensor, output)) = (inputs.first().ok_or(None)?, outputs.first_mut().ok_or(None)?);
        let own = if let Held::Here(data) = input.data { Some(data) } else { None };
        let together =
            processor.together(what, (input.tensor, own), (tensor, output), &mut *self.peers).map_err(Some)?;
        let begun = match together {
            Together::Not => None,
            Together::Done => Some(Begun::Done),
            Together::Begun(ticket) if operator.kernel.starts() => Some(Begun::OnDevices(ticket)),
            Together::Begun(ticket) => {
                self.peers.join(ticket).map_err(Some)?;
                Some(Begun::Done)
            }
        };
        if let Some(begun) = begun {
            if operator.kernel.starts() {
                self.begun.insert(*operator.outputs.first().ok_or(None)?, begun);
            }
            return Ok(true);
        }
        let values = match input.data {
            Held::Here(data) => processor.to_host(data, input.tensor),
            _ => processor.to_host(output, tensor),
        };
        let values = values.map_err(|error| Some(error.into()))?;
        if operator.kernel.starts() {
            // The buffer is the result's from here on; what is sent is a copy.
            let begun = self.peers.start(Axis::Tensor, what, values).map_err(Some)?;
            self.begun.insert(*operator.outputs.first().ok_or(None)?, Begun::ByHost(begun));
            return Ok(true);
        }
        let result = self.peers.run(Axis::Tensor, what, values).map_err(Some)?;
        processor.fill(output, tensor, result).map_err(|error| Some(error.into()))?;
        Ok(true)
    }

    fn no_room(&self, operator: &Operator, crowded: &Crowded) -> BackendError {
        let (ranks, _) = self.peers.group(Axis::Expert);
        BackendError::Crowded {
            rank: ranks.get(crowded.member).copied().unwrap_or(crowded.member),
            layer: operator.layer.unwrap_or(0),
            microbatch: self.microbatch,
            come: crowded.come,
            rows: crowded.room,
            enough: (crowded.enough_permille() as f64 / 1000.0).to_string(),
            always: ranks.len(),
        }
    }

    /// Runs `kernel`, which works alone. What has begun goes on beside it.
    fn beside<P: Processor>(
        &mut self,
        processor: &mut P,
        kernel: &Kernel,
        inputs: &[Input<'_, P::Data>],
        outputs: &mut [(&Tensor, P::Data)],
    ) -> Result<(), Option<BackendError>> {
        if processor.waits_for_device(kernel) {
            self.peers.settle().map_err(Some)?;
        }
        if self.begun.is_empty() {
            return processor.run(kernel, inputs, outputs).map_err(|error| Some(error.into()));
        }
        let mut going = Ok(());
        let mut go_on = || {
            if going.is_ok() {
                going = self.peers.go_on();
            }
        };
        let run = processor.run_in_pieces(kernel, inputs, outputs, &mut go_on);
        run.map_err(|error| Some(error.into()))?;
        going.map_err(Some)
    }
}

/// By tensor: whether its buffer is given back in the job that takes it.
fn brief(graph: &Graph, lifetimes: &Lifetimes) -> Vec<bool> {
    // The job in which a buffer is given back, from the last operator on: one that is taken over goes on under another name.
    let mut ends: Vec<Option<Job>> = vec![None; graph.tensors.len()];
    let mut brief = vec![false; graph.tensors.len()];
    for (index, operator) in graph.operators.iter().enumerate().rev() {
        for id in lifetimes.free_after.get(index).into_iter().flatten() {
            ends[id.index()] = Some(operator.job);
        }
        for (position, id) in operator.outputs.iter().enumerate() {
            let end = ends[id.index()];
            brief[id.index()] = end == Some(operator.job);
            let took_over = position == 0 && lifetimes.takes_over[index];
            let input = operator.in_place.filter(|_| took_over).and_then(|at| operator.inputs.get(at as usize));
            if let Some(input) = input {
                ends[input.tensor.index()] = end;
            }
        }
    }
    brief
}

/// By tensor: whether it is the gradient of a weight that products alone add to, each in its place.
fn of_products(graph: &Graph) -> Vec<bool> {
    let gradient = |tensor: &Tensor| matches!(tensor.role, Role::WeightGradient { .. });
    let mut alone: Vec<bool> = graph.tensors().map(|(_, tensor)| gradient(tensor)).collect();
    for operator in &graph.operators {
        let product = matches!(operator.kernel, Kernel::MatMul { accumulate: true, .. });
        for output in &operator.outputs {
            let in_place = operator.inputs.get(2).is_some_and(|addend| addend.tensor == *output);
            alone[output.index()] &= product && in_place;
        }
    }
    alone
}

/// Runs one operator; an error without a reason where a tensor that it needs is not there.
#[allow(clippy::too_many_arguments, reason = "the parts of a stage, borrowed one by one")]
fn execute<P: Processor>(
    processor: &mut P,
    graph: &Graph,
    operator: &Operator,
    takes_over: bool,
    brief: &[bool],
    (persistent, stale): (&mut [Option<P::Data>], &mut [bool]),
    lane: &mut Lane<P::Data>,
    meter: &mut Meter,
    together: &mut InCompany<'_>,
) -> Result<(), Option<BackendError>> {
    let taken_over = operator.in_place.filter(|_| takes_over).and_then(|input| operator.inputs.get(input as usize));
    let taken_over = taken_over.map(|input| input.tensor);
    let mut outputs = Vec::with_capacity(operator.outputs.len());
    for (position, id) in operator.outputs.iter().enumerate() {
        let lent = match taken_over.filter(|_| position == 0) {
            _ if graph[*id].role.is_persistent() => persistent[id.index()].take().ok_or(None)?,
            Some(input) => lane.lend(input).ok_or(None)?,
            None => {
                // Counted now; the buffer itself goes in when the operator has filled it.
                let briefly = brief.get(id.index()).copied().unwrap_or(false);
                let data = processor.allocate(&graph[*id], briefly).map_err(|error| Some(error.into()))?;
                lane.put(graph, *id, data, meter);
                lane.lend(*id).ok_or(None)?
            }
        };
        outputs.push((&graph[*id], lent));
    }
    let mut inputs = Vec::with_capacity(operator.inputs.len());
    for input in &operator.inputs {
        let tensor = &graph[input.tensor];
        let output = match taken_over == Some(input.tensor) {
            true => Some(0),
            false => operator.outputs.iter().position(|output| *output == input.tensor),
        };
        let data = match (output, input.needs) {
            (Some(output), _) => Held::InOutput(output),
            (None, Needs::Shape) => Held::Nowhere,
            (None, Needs::Data) => {
                let here = match tensor.role.is_persistent() {
                    true => persistent[input.tensor.index()].as_ref(),
                    false => lane.get(input.tensor),
                };
                Held::Here(here.ok_or(None)?)
            }
        };
        inputs.push(Input { tensor, data });
    }
    let mut kernel = operator.kernel;
    if let (Kernel::MatMul { accumulate, .. }, [output]) = (&mut kernel, &operator.outputs[..])
        && std::mem::take(&mut stale[output.index()])
    {
        *accumulate = false;
        inputs.truncate(2);
    }
    if !together.run(processor, operator, &inputs, &mut outputs)? {
        together.beside(processor, &kernel, &inputs, &mut outputs)?;
    }
    for (id, (tensor, data)) in operator.outputs.iter().zip(outputs) {
        if tensor.role.is_persistent() {
            persistent[id.index()] = Some(data);
        } else {
            lane.give_back(*id, data);
        }
    }
    Ok(())
}

impl<D, S> Stage<D, S> {
    fn new<P: Processor<Data = D, State = S>>(
        graph: Graph,
        processor: &mut P,
        training: &Training,
        meter: &mut Meter,
    ) -> Result<Stage<D, S>, P::Error> {
        let lifetimes = Lifetimes::of(&graph);
        let fused = (Lifetimes::fused(&graph), fused_order(&graph));
        let mut persistent: Vec<Option<D>> = graph.tensors.iter().map(|_| None).collect();
        let mut parameters = Vec::new();
        for (gradient_id, gradient) in graph.tensors() {
            let Role::WeightGradient { of } = gradient.role else { continue };
            let weight = &graph[of];
            let Role::Weight { init, decay, .. } = weight.role else { continue };
            let held = training.shares.of(weight).of(weight.elements() as usize).len();
            let new = processor.parameter(training, init, weight, gradient, held)?;
            meter.take(Kind::Persistent, weight.bytes() + gradient.bytes());
            meter.take(if training.state_on_host { Kind::Host } else { Kind::Persistent }, new.state_bytes);
            persistent[of.index()] = Some(new.weight);
            persistent[gradient_id.index()] = Some(new.gradient);
            parameters.push(Parameter { weight: of, gradient: gradient_id, decay, state: new.state });
        }
        let brief = brief(&graph, &lifetimes);
        let of_products = of_products(&graph);
        let stale = vec![false; graph.tensors.len()];
        let lanes = BTreeMap::new();
        Ok(Stage { graph, lifetimes, fused, brief, persistent, parameters, of_products, stale, lanes })
    }

    /// Lends what belongs to the parameter at `position` to `work`; nothing where it is not there.
    fn with<R>(&mut self, position: usize, shares: Shares, work: impl FnOnce(Updated<'_, D, S>) -> R) -> Option<R> {
        let Stage { graph, persistent, parameters, of_products, stale, .. } = self;
        let parameter = parameters.get_mut(position)?;
        let clear = !of_products[parameter.gradient.index()] || stale[parameter.gradient.index()];
        let tensor = &graph[parameter.weight];
        let mut weight = persistent[parameter.weight.index()].take()?;
        let result = persistent[parameter.gradient.index()].as_mut().map(|gradient| {
            work(Updated {
                tensor,
                weight: &mut weight,
                gradient,
                state: &mut parameter.state,
                mine: shares.of(tensor).of(tensor.elements() as usize),
                decay: parameter.decay,
                clear,
            })
        });
        persistent[parameter.weight.index()] = Some(weight);
        result
    }

    /// Lends what belongs to the weight `name` to `work`; nothing where it is not held.
    fn with_named<R>(&mut self, name: &str, shares: Shares, work: impl FnOnce(Updated<'_, D, S>) -> R) -> Option<R> {
        let named = |parameter: &Parameter<S>| self.graph[parameter.weight].name == name;
        let position = self.parameters.iter().position(named)?;
        self.with(position, shares, work)
    }
}

impl<P: Processor> Backend for Stages<P> {
    fn begin(&mut self, step: u32) {
        self.step = step;
        self.losses.clear();
        for stage in self.stages.values_mut() {
            stage.stale.clone_from(&stage.of_products);
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

    fn optimize(&mut self, _store: &mut Store) -> Result<(), BackendError> {
        let Stages { processor, stages, training, step, .. } = self;
        for stage in stages.values_mut() {
            for position in 0..stage.parameters.len() {
                let updated = stage.with(position, training.shares, |parameter| {
                    processor.update(&training.optimizer, *step, parameter)
                });
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
        self.with_parameter(stage, name, |processor, parameter| processor.lend(part, parameter, work))
    }

    fn device_bytes(&self) -> Option<Bytes> {
        self.processor.device_bytes()
    }

    fn on_card(&mut self, stage: u16, name: &str, part: Part) -> Option<(OnCard, Dtype)> {
        let Stages { processor, stages, training, .. } = self;
        let lent =
            stages.get_mut(&stage)?.with_named(name, training.shares, |parameter| processor.on_card(part, parameter));
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
