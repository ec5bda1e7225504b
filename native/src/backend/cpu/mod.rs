//! The operator graph on one core: loops in Rust, matrix products by a tuned crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipeplan_core::graph::liveness::{Lifetimes, fused_order};
use pipeplan_core::graph::{Graph, INIT_STD, Init, Job, Needs, Operator, Role, TensorId};
use pipeplan_core::op::{Op, OpKind};
use pipeplan_core::program::Payload;
use pipeplan_core::units::Bytes;

use self::element::Element;
use self::kernels::{Context, Data, Input};
use super::arena::Lane;
use super::{Backend, BackendError, Kind, Meter, Parcel, Part, Share, Store, Values};
use crate::runner::data::Batches;
use crate::runner::optimizer::{AdamW, Moments};
use crate::runner::random::SplitMix64;
use crate::transport::Buffer;

pub mod element;
pub mod gemm;
pub mod kernels;

/// A stage of this rank.
struct Stage<T> {
    graph: Graph,
    lifetimes: Lifetimes,
    /// The lifetimes where B and W are fused, and the order in which their operators then run. F's are the same.
    fused: (Lifetimes, Vec<u32>),
    /// By tensor: weights and their gradients; nothing elsewhere.
    persistent: Vec<Option<Data<T>>>,
    parameters: Vec<Parameter<T>>,
    /// By microbatch: what is there now. A lane goes when its last job has ended.
    lanes: BTreeMap<u32, Lane<Data<T>>>,
}

/// A weight, its gradient and what the optimizer remembers of it.
struct Parameter<T> {
    weight: TensorId,
    gradient: TensorId,
    decay: bool,
    moments: Moments<T>,
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

/// Executes graphs on the calling thread.
pub struct Cpu<T> {
    stages: BTreeMap<u16, Stage<T>>,
    stage_count: usize,
    context: Context<T>,
    batches: Arc<Batches>,
    optimizer: AdamW,
    share: Share,
    seed: u64,
    step: u32,
    losses: Vec<(u32, f64)>,
    job_bytes: Option<Vec<JobBytes>>,
}

impl<T: Element> Cpu<T> {
    /// Holds the stages in `stages` (number and graph) of `stage_count` in all, with weights that follow from
    /// `seed` and their names: whatever the partition, a parameter starts the same. Counts their bytes in
    /// `store`.
    pub fn new(
        stages: impl IntoIterator<Item = (u16, Graph)>,
        stage_count: usize,
        seed: u64,
        optimizer: AdamW,
        batches: Arc<Batches>,
        store: &mut Store,
    ) -> Cpu<T> {
        Cpu::sharing(stages, stage_count, seed, optimizer, Share::WHOLE, batches, store)
    }

    /// As [`Cpu::new`], with `share` of the optimizer's state.
    pub fn sharing(
        stages: impl IntoIterator<Item = (u16, Graph)>,
        stage_count: usize,
        seed: u64,
        optimizer: AdamW,
        share: Share,
        batches: Arc<Batches>,
        store: &mut Store,
    ) -> Cpu<T> {
        let stages: BTreeMap<u16, Stage<T>> = stages
            .into_iter()
            .map(|(number, graph)| (number, Stage::new(graph, seed, share, &mut store.meter)))
            .collect();
        let context = Context::new(Box::new(gemm::Tuned));
        let (step, losses, job_bytes) = (0, Vec::new(), None);
        Cpu { stages, stage_count, context, batches, optimizer, share, seed, step, losses, job_bytes }
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
    pub fn gradients(&self) -> BTreeMap<String, Vec<T>> {
        let of = |stage: &Stage<T>| -> Vec<(String, Vec<T>)> {
            let named = |parameter: &Parameter<T>| {
                let name = stage.graph[parameter.weight].name.clone();
                stage.floats(parameter.gradient).map(|values| (name, values.to_vec()))
            };
            stage.parameters.iter().filter_map(named).collect()
        };
        self.stages.values().flat_map(of).collect()
    }

    /// Changes element `index` of weight `name` to `value`.
    pub fn set_weight(&mut self, name: &str, index: usize, value: T) {
        for stage in self.stages.values_mut() {
            let found = stage.graph.weights().find(|(_, tensor)| tensor.name == name).map(|(id, _)| id);
            if let Some(Data::Floats(values)) = found.and_then(|id| stage.persistent[id.index()].as_mut()) {
                values[index] = value;
            }
        }
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
        let fresh = job == Job::F;
        if fresh == lanes.contains_key(&microbatch) {
            return Err(BackendError::OutOfOrder { op });
        }
        let lane = lanes.entry(microbatch).or_insert_with(|| Lane::new(graph));
        let draw = u64::from(self.step) << 32 | u64::from(self.batches.number(microbatch));
        self.context.dropout_seed = SplitMix64::new(SplitMix64::named(self.seed, "dropout").draw() ^ draw).draw();
        lane.restart_peak();
        for id in &lifetimes.arrive[job as usize] {
            let data = match graph[*id].role {
                Role::Tokens => Data::Tokens(self.batches.tokens(self.step, microbatch)),
                Role::Targets => Data::Tokens(self.batches.targets(self.step, microbatch)),
                role => {
                    let payload = if role == Role::ActivationIn { Payload::Activation } else { Payload::Gradient };
                    let parcel = Parcel { payload, stage: number, microbatch };
                    let expected = graph[*id].bytes();
                    let buffer = store.take(parcel)?;
                    let found = buffer.bytes();
                    match T::unpack(buffer) {
                        Some(values) if found == expected => Data::Floats(values),
                        _ => return Err(BackendError::WrongSize { parcel, found, expected }),
                    }
                }
            };
            lane.put(graph, *id, data, &mut store.meter);
        }
        for index in order.into_iter().map(|at| at as usize) {
            let operator = &graph.operators[index];
            let takes_over = lifetimes.takes_over[index];
            execute(&mut self.context, graph, operator, takes_over, persistent, lane, &mut store.meter)
                .ok_or(BackendError::OutOfOrder { op })?;
            for id in &lifetimes.free_after[index] {
                lane.remove(graph, *id, &mut store.meter);
            }
        }
        let peak = lane.peak();
        for id in &lifetimes.end[job as usize] {
            let data = lane.remove(graph, *id, &mut store.meter);
            if graph[*id].role.leaves_after() != Some(job) {
                continue;
            }
            let Some(Data::Floats(values)) = data else { return Err(BackendError::OutOfOrder { op }) };
            let (payload, stage) = match graph[*id].role {
                Role::ActivationOut => (Payload::Activation, number + 1),
                Role::GradientOut => (Payload::Gradient, number.saturating_sub(1)),
                _ => {
                    let loss = values.first().map_or(0.0, |loss| loss.wide());
                    if !loss.is_finite() {
                        return Err(BackendError::NotFinite { microbatch, loss: loss.to_string() });
                    }
                    self.losses.push((microbatch, loss));
                    continue;
                }
            };
            store.put(Parcel { payload, stage, microbatch }, T::pack(values));
        }
        let kept = lane.held();
        if let Some(noted) = &mut self.job_bytes {
            noted.push(JobBytes { stage: number, kind: op.kind(), microbatch, peak, kept });
        }
        if matches!(op.kind(), OpKind::W | OpKind::BW) {
            lanes.remove(&microbatch);
        }
        Ok(())
    }
}

/// Runs one operator; nothing where a tensor that it needs is not there.
fn execute<T: Element>(
    context: &mut Context<T>,
    graph: &Graph,
    operator: &Operator,
    takes_over: bool,
    persistent: &mut [Option<Data<T>>],
    lane: &mut Lane<Data<T>>,
    meter: &mut Meter,
) -> Option<()> {
    let taken_over = operator.in_place.filter(|_| takes_over).and_then(|input| operator.inputs.get(input as usize));
    let taken_over = taken_over.map(|input| input.tensor);
    let mut outputs = Vec::with_capacity(operator.outputs.len());
    for (position, id) in operator.outputs.iter().enumerate() {
        let lent = match taken_over.filter(|_| position == 0) {
            _ if graph[*id].role.is_persistent() => persistent[id.index()].take()?,
            Some(input) => lane.lend(input)?,
            None => {
                // Counted now; the buffer itself goes in when the kernel has filled it.
                let data = Data::zeros(graph[*id].dtype, graph[*id].elements() as usize);
                lane.put(graph, *id, data, meter);
                lane.lend(*id)?
            }
        };
        outputs.push(lent);
    }
    let inputs: Option<Vec<Input<'_, T>>> = operator
        .inputs
        .iter()
        .map(|input| {
            let tensor = &graph[input.tensor];
            let is_output = operator.outputs.contains(&input.tensor) || taken_over == Some(input.tensor);
            let data = match input.needs {
                _ if is_output => None,
                Needs::Shape => None,
                Needs::Data if tensor.role.is_persistent() => Some(persistent[input.tensor.index()].as_ref()?),
                Needs::Data => Some(lane.get(input.tensor)?),
            };
            Some(Input { shape: &tensor.shape, data })
        })
        .collect();
    kernels::run(context, &operator.kernel, &inputs?, &mut outputs);
    for (id, data) in operator.outputs.iter().zip(outputs) {
        if graph[*id].role.is_persistent() {
            persistent[id.index()] = Some(data);
        } else {
            lane.give_back(*id, data);
        }
    }
    Some(())
}

impl<T: Element> Stage<T> {
    fn new(graph: Graph, seed: u64, share: Share, meter: &mut Meter) -> Stage<T> {
        let lifetimes = Lifetimes::of(&graph);
        let fused = (Lifetimes::fused(&graph), fused_order(&graph));
        let mut persistent: Vec<Option<Data<T>>> = graph.tensors.iter().map(|_| None).collect();
        let mut parameters = Vec::new();
        for (id, tensor) in graph.tensors() {
            let elements = tensor.elements() as usize;
            match tensor.role {
                Role::Weight { init, .. } => {
                    persistent[id.index()] = Some(Data::Floats(initial(seed, &tensor.name, init, elements)));
                }
                Role::WeightGradient { of } => {
                    persistent[id.index()] = Some(Data::Floats(vec![T::ZERO; elements]));
                    let decay = matches!(graph[of].role, Role::Weight { decay: true, .. });
                    let held = share.of(elements).len();
                    meter.take(Kind::Persistent, 2 * held as u64 * T::DTYPE.bytes());
                    parameters.push(Parameter { weight: of, gradient: id, decay, moments: Moments::new(held) });
                }
                _ => continue,
            }
            meter.take(Kind::Persistent, tensor.bytes());
        }
        Stage { graph, lifetimes, fused, persistent, parameters, lanes: BTreeMap::new() }
    }

    fn floats(&self, id: TensorId) -> Option<&Vec<T>> {
        match self.persistent[id.index()].as_ref()? {
            Data::Floats(values) => Some(values),
            Data::Tokens(_) | Data::Bytes(_) => None,
        }
    }
}

/// A weight's first values. They are drawn in `f64`, so `f32` and `f64` runs start from the same numbers
/// up to rounding.
pub(crate) fn initial<T: Element>(seed: u64, name: &str, init: Init, elements: usize) -> Vec<T> {
    match init {
        Init::Ones => vec![T::ONE; elements],
        Init::Zeros => vec![T::ZERO; elements],
        Init::Normal => {
            let mut random = SplitMix64::named(seed, name);
            (0..elements).map(|_| T::of(INIT_STD * random.normal())).collect()
        }
    }
}

impl<T: Element> Backend for Cpu<T> {
    fn begin(&mut self, step: u32) {
        self.step = step;
        self.losses.clear();
    }

    fn compute(&mut self, op: Op, store: &mut Store) -> Result<(), BackendError> {
        if op.stage() >= self.stage_count {
            return Err(BackendError::NoSuchStage { stage: op.stage() });
        }
        self.run_op(op, store)
    }

    fn optimize(&mut self, _store: &mut Store) -> Result<(), BackendError> {
        for stage in self.stages.values_mut() {
            for parameter in &mut stage.parameters {
                let gradient = stage.persistent[parameter.gradient.index()].take();
                let weight = stage.persistent[parameter.weight.index()].as_mut();
                if let (Some(Data::Floats(mut gradient)), Some(Data::Floats(weight))) = (gradient, weight) {
                    let mine = self.share.of(weight.len());
                    let (weight, moments) = (&mut weight[mine.clone()], &mut parameter.moments);
                    self.optimizer.update(self.step, weight, &gradient[mine], moments, parameter.decay);
                    gradient.fill(T::ZERO);
                    stage.persistent[parameter.gradient.index()] = Some(Data::Floats(gradient));
                }
            }
        }
        Ok(())
    }

    fn take_losses(&mut self) -> Vec<(u32, f64)> {
        std::mem::take(&mut self.losses)
    }

    fn weights(&self) -> BTreeMap<String, Buffer> {
        let of = |stage: &Stage<T>| -> Vec<(String, Buffer)> {
            let named = |(id, tensor): (TensorId, &pipeplan_core::graph::Tensor)| {
                stage.floats(id).map(|values| (tensor.name.clone(), T::pack(values.clone())))
            };
            stage.graph.weights().filter_map(named).collect()
        };
        self.stages.values().flat_map(of).collect()
    }

    fn lend(
        &mut self,
        stage: u16,
        name: &str,
        part: Part,
        work: &mut dyn FnMut(Values<'_>),
    ) -> Result<(), BackendError> {
        let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
        let Stage { graph, persistent, parameters, .. } = self.stages.get_mut(&stage).ok_or_else(missing)?;
        let parameter = parameters.iter_mut().find(|parameter| graph[parameter.weight].name == name);
        let parameter = parameter.ok_or_else(missing)?;
        let held = match part {
            Part::Weight => &mut persistent[parameter.weight.index()],
            Part::Gradient => &mut persistent[parameter.gradient.index()],
            Part::Mean => {
                work(T::values(parameter.moments.mean_mut()));
                return Ok(());
            }
            Part::Square => {
                work(T::values(parameter.moments.square_mut()));
                return Ok(());
            }
        };
        let Some(Data::Floats(values)) = held else { return Err(missing()) };
        work(T::values(values));
        Ok(())
    }
}
