//! The operator graph on an NVIDIA card: own kernels through NVRTC, matrix products through cuBLAS, and f32 master
//! weights and gradients beside bf16.
//!
//! - [`libraries`] finds what is there, [`nvidia`] speaks to it, [`host`] runs the same kernels without a GPU;
//! - [`card`] is what either gives, [`launch`] turns an operator into launches, `kernels/` has their source;
//! - this file walks a rank's jobs, as the [CPU's](super::cpu) does.
//!
//! Several ranks of a plan may share one card, each with its own stream and memory pool. A job waits for its own work at
//! its end, so its time is what the card took, and what leaves it is there for whoever takes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pipeplan_core::graph::liveness::{Lifetimes, fused_order};
use pipeplan_core::graph::{Graph, Job, Needs, Operator, Role, TensorId};
use pipeplan_core::model::Dtype;
use pipeplan_core::op::{Op, OpKind};
use pipeplan_core::program::Payload;

use self::card::{Card, CardError, Format, Memory};
use self::launch::{Context, Place};
use super::arena::Lane;
use super::cpu::{JobBytes, initial};
use super::{Backend, BackendError, Kind, Meter, Parcel, Part, Share, Store, Values};
use crate::runner::Device;
use crate::runner::data::Batches;
use crate::runner::optimizer::AdamW;
use crate::runner::random::SplitMix64;
use crate::transport::{Buffer, OnCard};

pub mod card;
pub mod host;
pub mod launch;
pub mod libraries;
pub mod nvidia;
mod source;
#[cfg(test)]
mod tests;

impl From<CardError> for BackendError {
    fn from(error: CardError) -> BackendError {
        BackendError::Device { message: error.to_string() }
    }
}

/// A queue on the card that a person chose.
///
/// # Errors
/// [`CardError`], such as where the GPU or its libraries are missing.
pub fn open(device: Device) -> Result<Arc<dyn Card>, CardError> {
    match device {
        Device::Cuda(ordinal) => Ok(Arc::new(nvidia::Nvidia::new(ordinal)?)),
        Device::Emulated => Ok(Arc::new(host::Host::new()?)),
        Device::Cpu => Err(CardError::call("opening a card", "the CPU is none")),
    }
}

/// How parcels leave a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// As memory of the card: for ranks of this process.
    OnCard,
    /// Through the host's memory, for transports that know no cards.
    ThroughHost,
}

/// A stage of this rank.
struct Stage {
    graph: Graph,
    lifetimes: Lifetimes,
    /// As [`Cpu`](super::cpu::Cpu)'s.
    fused: (Lifetimes, Vec<u32>),
    /// By tensor: weights and their gradients; nothing elsewhere.
    persistent: Vec<Option<Memory>>,
    parameters: Vec<Parameter>,
    /// By microbatch: what is there now. A tensor that has arrived from a stage of this rank is still its parcel's.
    lanes: BTreeMap<u32, Lane<Arc<Memory>>>,
}

/// A weight, its gradient and what the optimizer keeps of it.
struct Parameter {
    weight: TensorId,
    gradient: TensorId,
    decay: bool,
    /// In f32 where the weight is not.
    master: Option<Memory>,
    mean: Memory,
    square: Memory,
}

/// Executes graphs on a card.
pub struct Cuda {
    card: Arc<dyn Card>,
    stages: BTreeMap<u16, Stage>,
    stage_count: usize,
    /// Numbers of the stages of this rank.
    stages_here: BTreeSet<u16>,
    /// The format of activations.
    format: Format,
    share: Share,
    leaving: Leaving,
    context: Context,
    batches: Arc<Batches>,
    optimizer: AdamW,
    seed: u64,
    step: u32,
    losses: Vec<(u32, f64)>,
    job_bytes: Option<Vec<JobBytes>>,
}

impl Cuda {
    #[allow(clippy::too_many_arguments, reason = "what a rank is made of")]
    /// Holds the stages in `stages` (number and graph) of `stage_count` in all on `card`, with the weights that
    /// [`Cpu`](super::cpu::Cpu) would start with. Counts their bytes in `store`.
    ///
    /// # Errors
    /// [`CardError`], such as a card too small for them.
    pub fn new(
        card: Arc<dyn Card>,
        stages: impl IntoIterator<Item = (u16, Graph)>,
        stage_count: usize,
        seed: u64,
        optimizer: AdamW,
        share: Share,
        batches: Arc<Batches>,
        leaving: Leaving,
        store: &mut Store,
    ) -> Result<Cuda, CardError> {
        let stages = stages
            .into_iter()
            .map(|(number, graph)| Ok((number, Stage::new(graph, &card, seed, share, &mut store.meter)?)))
            .collect::<Result<_, CardError>>()?;
        let stages: BTreeMap<u16, Stage> = stages;
        let stages_here = stages.keys().copied().collect();
        let is_bf16 =
            stages.values().any(|stage| stage.graph.tensors.iter().any(|tensor| tensor.dtype == Dtype::Bf16));
        let format = if is_bf16 { Format::Bf16 } else { Format::F32 };
        let context = Context::new(Arc::clone(&card));
        let losses = Vec::new();
        let job_bytes = None;
        Ok(Cuda {
            card,
            stages,
            stage_count,
            stages_here,
            format,
            share,
            leaving,
            context,
            batches,
            optimizer,
            seed,
            step: 0,
            losses,
            job_bytes,
        })
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
    ///
    /// # Errors
    /// [`CardError`].
    pub fn gradients(&self) -> Result<BTreeMap<String, Vec<f32>>, CardError> {
        let mut gradients = BTreeMap::new();
        for stage in self.stages.values() {
            for parameter in &stage.parameters {
                let memory = stage.persistent[parameter.gradient.index()].as_ref();
                let values = memory.map(|memory| memory.read()).transpose()?.unwrap_or_default();
                gradients.insert(stage.graph[parameter.weight].name.clone(), floats(&values));
            }
        }
        Ok(gradients)
    }

    fn run_op(&mut self, op: Op, store: &mut Store) -> Result<(), BackendError> {
        let (number, microbatch) = (op.stage() as u16, op.microbatch() as u32);
        let stage = self.stages.get_mut(&number).ok_or(BackendError::NoSuchStage { stage: number.into() })?;
        let Stage { graph, lifetimes, fused, persistent, lanes, .. } = stage;
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
        let draw = u64::from(self.step) << 32 | u64::from(microbatch);
        self.context.dropout_seed = SplitMix64::new(SplitMix64::named(self.seed, "dropout").draw() ^ draw).draw();
        lane.restart_peak();
        for id in &lifetimes.arrive[job as usize] {
            let tokens = |tokens: Vec<i32>| {
                let bytes: Vec<u8> = tokens.into_iter().flat_map(i32::to_ne_bytes).collect();
                Memory::holding(&self.card, &bytes).map(Arc::new)
            };
            let memory = match graph[*id].role {
                Role::Tokens => tokens(self.batches.tokens(self.step, microbatch))?,
                Role::Targets => tokens(self.batches.targets(self.step, microbatch))?,
                role => {
                    let payload = if role == Role::ActivationIn { Payload::Activation } else { Payload::Gradient };
                    let parcel = Parcel { payload, stage: number, microbatch };
                    let expected = graph[*id].bytes();
                    let buffer = store.take(parcel)?;
                    let found = buffer.bytes();
                    match memory_in(buffer) {
                        Some(memory) if found == expected => memory,
                        _ => return Err(BackendError::WrongSize { parcel, found, expected }),
                    }
                }
            };
            lane.put(graph, *id, memory, &mut store.meter);
        }
        for index in order.into_iter().map(|at| at as usize) {
            let operator = &graph.operators[index];
            let takes_over = lifetimes.takes_over[index];
            execute(&self.card, &mut self.context, graph, operator, takes_over, persistent, lane, &mut store.meter)?
                .ok_or(BackendError::OutOfOrder { op })?;
            for id in &lifetimes.free_after[index] {
                lane.remove(graph, *id, &mut store.meter);
            }
        }
        let peak = lane.peak();
        for id in &lifetimes.end[job as usize] {
            let memory = lane.remove(graph, *id, &mut store.meter);
            if graph[*id].role.leaves_after() != Some(job) {
                continue;
            }
            let memory = memory.ok_or(BackendError::OutOfOrder { op })?;
            let (payload, stage) = match graph[*id].role {
                Role::ActivationOut => (Payload::Activation, number + 1),
                Role::GradientOut => (Payload::Gradient, number.saturating_sub(1)),
                _ => {
                    let loss = floats(&memory.read()?).first().map_or(0.0, |loss| f64::from(*loss));
                    if !loss.is_finite() {
                        return Err(BackendError::NotFinite { microbatch, loss: loss.to_string() });
                    }
                    self.losses.push((microbatch, loss));
                    continue;
                }
            };
            let bytes = memory.bytes();
            let stays = self.stages_here.contains(&stage);
            let buffer = match self.leaving {
                Leaving::ThroughHost if !stays => Buffer::F32(unpacked(&memory.read()?, format_of(graph[*id].dtype))),
                _ => Buffer::OnCard(OnCard::new(memory, bytes)),
            };
            store.put(Parcel { payload, stage, microbatch }, buffer);
        }
        let kept = lane.held();
        if let Some(noted) = &mut self.job_bytes {
            noted.push(JobBytes { stage: number, kind: op.kind(), microbatch, peak, kept });
        }
        if matches!(op.kind(), OpKind::W | OpKind::BW) {
            lanes.remove(&microbatch);
        }
        Ok(self.card.finish()?)
    }
}

/// The memory that a parcel holds; nothing where it holds something of the host's.
fn memory_in(buffer: Buffer) -> Option<Arc<Memory>> {
    match buffer {
        Buffer::OnCard(parcel) => parcel.content().downcast::<Memory>().ok(),
        _ => None,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// `values` as a card holds them.
pub fn packed(values: &[f32], format: Format) -> Vec<u8> {
    match format {
        Format::F32 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        Format::Bf16 => values.iter().flat_map(|value| host::bf16_bits(*value).to_ne_bytes()).collect(),
    }
}

/// Back again, widened.
pub fn unpacked(bytes: &[u8], format: Format) -> Vec<f32> {
    match format {
        Format::F32 => floats(bytes),
        Format::Bf16 => {
            let wide = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) << 16);
            bytes.chunks_exact(2).map(wide).collect()
        }
    }
}

fn format_of(dtype: Dtype) -> Format {
    if dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 }
}

/// Starts one operator; nothing where a tensor that it needs is not there.
#[allow(clippy::too_many_arguments, reason = "the parts of a stage, borrowed one by one")]
fn execute(
    card: &Arc<dyn Card>,
    context: &mut Context,
    graph: &Graph,
    operator: &Operator,
    takes_over: bool,
    persistent: &[Option<Memory>],
    lane: &mut Lane<Arc<Memory>>,
    meter: &mut Meter,
) -> Result<Option<()>, CardError> {
    let taken_over = operator.in_place.filter(|_| takes_over).and_then(|input| operator.inputs.get(input as usize));
    let taken_over = taken_over.map(|input| input.tensor);
    if let (Some(input), Some(output)) = (taken_over, operator.outputs.first()) {
        let Some(memory) = lane.lend(input) else { return Ok(None) };
        lane.give_back(*output, memory);
    }
    for (position, id) in operator.outputs.iter().enumerate() {
        let is_there = graph[*id].role.is_persistent() || (position == 0 && taken_over.is_some());
        if !is_there {
            let memory = Memory::new(card, graph[*id].bytes())?;
            lane.put(graph, *id, Arc::new(memory), meter);
        }
    }
    let address = |id: TensorId| match graph[id].role.is_persistent() {
        true => persistent[id.index()].as_ref().map(Memory::at),
        false => lane.get(id).map(|memory| memory.at()),
    };
    let place = |id: TensorId, at| Place { at, shape: &graph[id].shape, dtype: graph[id].dtype };
    let mut inputs = Vec::with_capacity(operator.inputs.len());
    for input in &operator.inputs {
        let holder = if taken_over == Some(input.tensor) { operator.outputs[0] } else { input.tensor };
        let at = match input.needs {
            Needs::Shape => None,
            Needs::Data => match address(holder) {
                None => return Ok(None),
                at => at,
            },
        };
        inputs.push(place(input.tensor, at));
    }
    let outputs: Vec<Place<'_>> = operator.outputs.iter().map(|id| place(*id, address(*id))).collect();
    context.run(&operator.kernel, &inputs, &outputs)?;
    Ok(Some(()))
}

impl Stage {
    fn new(
        graph: Graph,
        card: &Arc<dyn Card>,
        seed: u64,
        share: Share,
        meter: &mut Meter,
    ) -> Result<Stage, CardError> {
        let lifetimes = Lifetimes::of(&graph);
        let fused = (Lifetimes::fused(&graph), fused_order(&graph));
        let mut persistent: Vec<Option<Memory>> = graph.tensors.iter().map(|_| None).collect();
        let mut masters = BTreeMap::new();
        let mut parameters = Vec::new();
        for (id, tensor) in graph.tensors() {
            match tensor.role {
                Role::Weight { init, .. } => {
                    let values: Vec<f32> = initial(seed, &tensor.name, init, tensor.elements() as usize);
                    let format = format_of(tensor.dtype);
                    persistent[id.index()] = Some(Memory::holding(card, &packed(&values, format))?);
                    if format == Format::Bf16 {
                        let master = Memory::holding(card, &packed(&values, Format::F32))?;
                        meter.take(Kind::Persistent, master.bytes());
                        masters.insert(id, master);
                    }
                }
                Role::WeightGradient { of } => {
                    persistent[id.index()] = Some(Memory::zeros(card, tensor.bytes())?);
                    let decay = matches!(graph[of].role, Role::Weight { decay: true, .. });
                    let mine = share.of(tensor.elements() as usize).len() as u64;
                    let moment = || Memory::zeros(card, 4 * mine);
                    let (mean, square) = (moment()?, moment()?);
                    meter.take(Kind::Persistent, mean.bytes() + square.bytes());
                    let master = masters.remove(&of);
                    parameters.push(Parameter { weight: of, gradient: id, decay, master, mean, square });
                }
                _ => continue,
            }
            meter.take(Kind::Persistent, tensor.bytes());
        }
        Ok(Stage { graph, lifetimes, fused, persistent, parameters, lanes: BTreeMap::new() })
    }
}

impl Backend for Cuda {
    fn begin(&mut self, step: u32) {
        self.step = step;
        self.losses.clear();
    }

    fn take_in(&mut self, buffer: Buffer) -> Result<Buffer, BackendError> {
        if let Buffer::F32(values) = &buffer {
            let memory = Memory::holding(&self.card, &packed(values, self.format))?;
            let bytes = memory.bytes();
            return Ok(Buffer::OnCard(OnCard::new(Arc::new(memory), bytes)));
        }
        let Buffer::OnCard(parcel) = &buffer else { return Ok(buffer) };
        let Ok(memory) = parcel.content().downcast::<Memory>() else { return Ok(buffer) };
        let copy = memory.copied_to(&self.card)?;
        let bytes = copy.bytes();
        Ok(Buffer::OnCard(OnCard::new(Arc::new(copy), bytes)))
    }

    fn compute(&mut self, op: Op, store: &mut Store) -> Result<(), BackendError> {
        if op.stage() >= self.stage_count {
            return Err(BackendError::NoSuchStage { stage: op.stage() });
        }
        self.run_op(op, store)
    }

    fn optimize(&mut self, _store: &mut Store) -> Result<(), BackendError> {
        for stage in self.stages.values() {
            let of = |id: TensorId| stage.persistent[id.index()].as_ref();
            for parameter in &stage.parameters {
                let (Some(weight), Some(gradient)) = (of(parameter.weight), of(parameter.gradient)) else { continue };
                let tensor = &stage.graph[parameter.weight];
                let format = format_of(tensor.dtype);
                let mine = self.share.of(tensor.elements() as usize);
                let master = parameter.master.as_ref().unwrap_or(weight);
                let start = mine.start as u64;
                let places = [
                    weight.after(start * format.bytes()),
                    master.after(start * 4),
                    gradient.after(start * 4),
                    parameter.mean.at(),
                    parameter.square.at(),
                ];
                let elements = mine.len() as u64;
                self.context.adamw(&self.optimizer, self.step, format, places, elements, parameter.decay)?;
                if elements < tensor.elements() {
                    self.card.zero(gradient.at(), gradient.bytes())?;
                }
            }
        }
        Ok(self.card.finish()?)
    }

    fn take_losses(&mut self) -> Vec<(u32, f64)> {
        std::mem::take(&mut self.losses)
    }

    /// The master weights where there are any. Weights that cannot be read any more are left out.
    fn weights(&self) -> BTreeMap<String, Buffer> {
        let mut weights = BTreeMap::new();
        for stage in self.stages.values() {
            for parameter in &stage.parameters {
                let memory = parameter.master.as_ref().or(stage.persistent[parameter.weight.index()].as_ref());
                if let Some(Ok(bytes)) = memory.map(Memory::read) {
                    weights.insert(stage.graph[parameter.weight].name.clone(), Buffer::F32(floats(&bytes)));
                }
            }
        }
        weights
    }

    fn lend(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), BackendError> {
        let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
        let Stage { graph, persistent, parameters, .. } = self.stages.get(&stage).ok_or_else(missing)?;
        let parameter = parameters.iter().find(|parameter| graph[parameter.weight].name == name);
        let parameter = parameter.ok_or_else(missing)?;
        let weight = persistent[parameter.weight.index()].as_ref().ok_or_else(missing)?;
        let memory = match part {
            Part::Weight => parameter.master.as_ref().unwrap_or(weight),
            Part::Gradient => persistent[parameter.gradient.index()].as_ref().ok_or_else(missing)?,
            Part::Mean => &parameter.mean,
            Part::Square => &parameter.square,
        };
        let mut values = floats(&memory.read()?);
        let before = values.clone();
        work(Values::F32(&mut values));
        if values != before {
            self.card.write(memory.at(), &packed(&values, Format::F32))?;
            if part == Part::Weight && parameter.master.is_some() {
                self.card.write(weight.at(), &packed(&values, Format::Bf16))?;
            }
        }
        Ok(())
    }
}
