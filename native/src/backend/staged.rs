//! Stages that another program brings: whatever goes forward and back through a part of a model, under any checked plan.
//!
//! - In: a [`StagedModel`], which makes a [`Stage`] for each stage that a rank holds.
//! - Out: a [`Backend`], as every executor of ops: so transports, gradient sync, optimizers, checkpoints and traces are those of
//!   models that pipeplan computes itself.
//! - Knows: ops and messages. What a stage computes, and on what data, is its own.
//!
//! A stage keeps what its backward needs by microbatch: several are under way at once, and the plan says how many. B and W
//! apart are [`Stage::backward_input`] and [`Stage::backward_weight`]; a fused backward is one behind the other.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::program::Payload;

use super::cpu::element::Element;
use super::peers::Peers;
use super::{Backend, BackendError, Kind, Parcel, Part, Share, Store, Values};
use crate::runner::optimizer::{AdamW, Moments, Rule};
use crate::transport::Buffer;

/// A model in stages that its author computes.
pub trait StagedModel: Send + Sync {
    /// What it is called: a checkpoint goes on with the model of the same name.
    fn name(&self) -> String;

    /// The weights of `stage` of `stages`, in the order of [`Stage::parameters`]. A name that several stages have is one
    /// weight, as in tied embeddings: its gradients are added up.
    fn parameters(&self, stage: usize, stages: usize) -> Vec<StageParameter>;

    /// Makes a stage. All replicas, and all stages that share a weight, begin with the same numbers.
    ///
    /// # Errors
    /// Where it cannot be made.
    fn stage(&self, seat: StageSeat) -> Result<Box<dyn Stage>, StageError>;

    /// The type of weights and gradients: `f32`, or `f64`.
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    /// Which optimizer updates the weights; [`RunOptions::optimizer`](crate::runner::RunOptions::optimizer) has its settings.
    fn optimizer(&self) -> Optimizer {
        Optimizer::AdamW
    }
}

/// A stage of a model: a part that lies on one rank.
pub trait Stage {
    /// Its weights and their gradients. The runner reads and changes them between the last op of a step and the first of the
    /// next: it sums gradients over replicas, updates weights and clears gradients.
    fn parameters(&mut self) -> Vec<LentParameter<'_>>;

    /// A training step begins, counted from 0: weights may have changed since the last op.
    fn begin_step(&mut self, _step: u32) {}

    /// Goes forward. The first stage gets no `input`, and takes its data by `call`; the last one returns a loss.
    ///
    /// # Errors
    /// What is wrong; the run ends with it.
    fn forward(&mut self, call: StageCall, input: Option<Buffer>) -> Result<StageOutput, StageError>;

    /// Goes back to the input: `gradient` is that of what [`Stage::forward`] returned, and nothing in the last stage, whose loss
    /// counts [`StageCall::loss_scale`] times. Returns the gradient of the input; nothing in the first stage.
    ///
    /// # Errors
    /// What is wrong; the run ends with it.
    fn backward_input(&mut self, call: StageCall, gradient: Option<Buffer>) -> Result<Option<Buffer>, StageError>;

    /// Adds the microbatch's gradients of the weights to those that are there. Comes after [`Stage::backward_input`] of the
    /// microbatch, at once or later.
    ///
    /// # Errors
    /// What is wrong; the run ends with it.
    fn backward_weight(&mut self, call: StageCall) -> Result<(), StageError>;

    /// The bytes that it keeps of microbatches under way. They count as activation memory of the rank.
    fn saved_bytes(&self) -> Bytes;
}

/// Which stage is to be made, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSeat {
    /// The stage, in model order.
    pub stage: usize,
    /// Stages of the model.
    pub stages: usize,
    /// The data-parallel replica.
    pub replica: usize,
    /// Data-parallel replicas.
    pub replicas: usize,
}

/// One call of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCall {
    /// The training step, counted from 0.
    pub step: u32,
    /// The microbatch, among those of the replica.
    pub microbatch: u32,
    /// The microbatch, among those of all replicas.
    pub of_batch: u32,
    /// What the loss of the microbatch is multiplied with: 1 over the microbatches of the replica. So gradients add up to that of
    /// the mean.
    pub loss_scale: f64,
}

/// What going forward gives.
#[derive(Clone, Debug, PartialEq)]
pub enum StageOutput {
    /// What the next stage takes.
    Activation(Buffer),
    /// The loss of the microbatch, a mean over its samples.
    Loss(f64),
}

/// A weight of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageParameter {
    /// Its name in checkpoints.
    pub name: String,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Whether weight decay shrinks it, and Muon updates it where it is a matrix: as matrices of layers, not as norms, biases
    /// and embeddings.
    pub decays: bool,
}

/// A weight and the gradient that is added up since the last update, lent by its stage.
#[derive(Debug, PartialEq)]
pub struct LentParameter<'a> {
    /// The weight.
    pub weight: Values<'a>,
    /// Its gradient, as long.
    pub gradient: Values<'a>,
}

/// Why a stage cannot go on, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StageError(pub String);

/// What the optimizer remembers of a weight.
enum State {
    F32(Moments<f32>),
    F64(Moments<f64>),
}

/// A stage on this rank.
struct HeldStage {
    stage: Box<dyn Stage>,
    weights: Vec<HeldWeight>,
    saved: Bytes,
}

struct HeldWeight {
    about: StageParameter,
    state: State,
}

/// How a rank trains its stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StagedTraining {
    /// Stages of the model.
    pub stages: usize,
    /// The replica.
    pub replica: usize,
    /// Replicas.
    pub replicas: usize,
    /// Microbatches of a replica.
    pub microbatches: usize,
    /// The optimizer's settings.
    pub optimizer: AdamW,
    /// Which part of the optimizer states the rank holds.
    pub share: Share,
}

/// Executes the ops of one rank by the stages of a [`StagedModel`].
pub struct StagedBackend {
    stages: BTreeMap<u16, HeldStage>,
    training: StagedTraining,
    step: u32,
    losses: Vec<(u32, f64)>,
}

impl StagedBackend {
    /// Makes the stages `held` of `model`, and counts their weights, gradients and optimizer states in `store`.
    ///
    /// # Errors
    /// Where a stage cannot be made, or its weights are not those that the model declares.
    pub fn new(
        model: &dyn StagedModel,
        held: &[usize],
        training: StagedTraining,
        store: &mut Store,
    ) -> Result<StagedBackend, BackendError> {
        let StagedTraining { stages: count, replica, replicas, share, .. } = training;
        let mut stages = BTreeMap::new();
        for stage in held {
            let failed = |error: StageError| BackendError::OfStage { stage: *stage, message: error.to_string() };
            let declared = model.parameters(*stage, count);
            let seat = StageSeat { stage: *stage, stages: count, replica, replicas };
            let mut made = model.stage(seat).map_err(failed)?;
            check_weights(&declared, &made.parameters(), model.dtype()).map_err(failed)?;
            let weights: Vec<HeldWeight> = declared
                .into_iter()
                .map(|about| {
                    let shape: Vec<u64> = about.shape.iter().map(|size| *size as u64).collect();
                    let elements = share.of(about.shape.iter().product()).len();
                    let rule = Rule::of(model.optimizer(), &shape, about.decays);
                    let state = match model.dtype() {
                        Dtype::F64 => State::F64(Moments::new(rule, elements)),
                        _ => State::F32(Moments::new(rule, elements)),
                    };
                    HeldWeight { about, state }
                })
                .collect();
            store.meter.take(Kind::Persistent, persistent_bytes(&made.parameters(), &weights));
            stages.insert(*stage as u16, HeldStage { stage: made, weights, saved: 0 });
        }
        Ok(StagedBackend { stages, training, step: 0, losses: Vec::new() })
    }

    fn is_last(&self, stage: u16) -> bool {
        usize::from(stage) + 1 == self.training.stages
    }

    fn call(&self, microbatch: u32) -> StageCall {
        let StagedTraining { replica, microbatches, .. } = self.training;
        let of_batch = (replica * microbatches) as u32 + microbatch;
        StageCall { step: self.step, microbatch, of_batch, loss_scale: 1.0 / microbatches.max(1) as f64 }
    }

    fn forward(&mut self, stage: u16, microbatch: u32, store: &mut Store) -> Result<(), BackendError> {
        let (call, is_last) = (self.call(microbatch), self.is_last(stage));
        let parcel = Parcel { payload: Payload::Activation, stage, microbatch };
        let input = if stage > 0 { Some(store.take(parcel)?) } else { None };
        match (self.stage(stage)?.stage.forward(call, input).map_err(of_stage(stage))?, is_last) {
            (StageOutput::Activation(output), false) => {
                store.put(Parcel { stage: stage + 1, ..parcel }, output);
                Ok(())
            }
            (StageOutput::Loss(loss), true) if !loss.is_finite() => {
                Err(BackendError::NotFinite { microbatch: call.of_batch, loss: loss.to_string() })
            }
            (StageOutput::Loss(loss), true) => {
                self.losses.push((microbatch, loss * call.loss_scale));
                Ok(())
            }
            (StageOutput::Activation(_), true) => {
                Err(wrong(stage, "forward returned an activation, and no stage comes behind it: return a loss"))
            }
            (StageOutput::Loss(_), false) => {
                Err(wrong(stage, "forward returned a loss, and another stage comes behind it: return an activation"))
            }
        }
    }

    fn backward_input(&mut self, stage: u16, microbatch: u32, store: &mut Store) -> Result<(), BackendError> {
        let (call, is_last) = (self.call(microbatch), self.is_last(stage));
        let parcel = Parcel { payload: Payload::Gradient, stage, microbatch };
        let gradient = if is_last { None } else { Some(store.take(parcel)?) };
        match (self.stage(stage)?.stage.backward_input(call, gradient).map_err(of_stage(stage))?, stage) {
            (None, 0) => Ok(()),
            (Some(gradient), 1..) => {
                store.put(Parcel { stage: stage - 1, ..parcel }, gradient);
                Ok(())
            }
            (Some(_), 0) => {
                Err(wrong(stage, "backward_input returned a gradient, and no stage comes before it: return nothing"))
            }
            (None, 1..) => Err(wrong(stage, "backward_input returned no gradient for the stage before it")),
        }
    }

    fn stage(&mut self, stage: u16) -> Result<&mut HeldStage, BackendError> {
        self.stages.get_mut(&stage).ok_or(BackendError::NoSuchStage { stage: stage.into() })
    }
}

impl Backend for StagedBackend {
    fn begin(&mut self, step: u32) {
        self.step = step;
        self.losses.clear();
        self.stages.values_mut().for_each(|held| held.stage.begin_step(step));
    }

    fn compute(&mut self, op: Op, store: &mut Store, _: &mut dyn Peers) -> Result<(), BackendError> {
        let (stage, microbatch) = (op.stage() as u16, op.microbatch() as u32);
        let call = self.call(microbatch);
        match op.kind() {
            OpKind::F => self.forward(stage, microbatch, store)?,
            OpKind::B => self.backward_input(stage, microbatch, store)?,
            OpKind::W => self.stage(stage)?.stage.backward_weight(call).map_err(of_stage(stage))?,
            OpKind::BW => {
                self.backward_input(stage, microbatch, store)?;
                self.stage(stage)?.stage.backward_weight(call).map_err(of_stage(stage))?;
            }
        }
        let held = self.stage(stage)?;
        let (was, is) = (held.saved, held.stage.saved_bytes());
        held.saved = is;
        store.meter.take(Kind::Activation, is.saturating_sub(was));
        store.meter.give(Kind::Activation, was.saturating_sub(is));
        Ok(())
    }

    fn optimize(&mut self, _: &mut Store) -> Result<(), BackendError> {
        let StagedTraining { optimizer, share, .. } = self.training;
        for HeldStage { stage, weights, .. } in self.stages.values_mut() {
            for (HeldWeight { about, state }, lent) in weights.iter_mut().zip(stage.parameters()) {
                let decays = about.decays;
                match (lent.weight, lent.gradient, state) {
                    (Values::F32(weight), Values::F32(gradient), State::F32(state)) => {
                        update(&optimizer, self.step, (weight, gradient), state, (share, decays));
                    }
                    (Values::F64(weight), Values::F64(gradient), State::F64(state)) => {
                        update(&optimizer, self.step, (weight, gradient), state, (share, decays));
                    }
                    // The stage was checked when it was made.
                    _ => {}
                }
            }
        }
        Ok(())
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
        let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
        let HeldStage { stage, weights, .. } = self.stages.get_mut(&stage).ok_or_else(missing)?;
        let at = weights.iter().position(|weight| weight.about.name == name).ok_or_else(missing)?;
        match (part, &mut weights[at].state) {
            (Part::Weight, _) => work(stage.parameters().into_iter().nth(at).ok_or_else(missing)?.weight),
            (Part::Gradient, _) => work(stage.parameters().into_iter().nth(at).ok_or_else(missing)?.gradient),
            (Part::Mean, State::F32(state)) => work(Values::F32(state.mean_mut())),
            (Part::Mean, State::F64(state)) => work(Values::F64(state.mean_mut())),
            (Part::Square, State::F32(state)) => work(Values::F32(state.square_mut())),
            (Part::Square, State::F64(state)) => work(Values::F64(state.square_mut())),
        }
        Ok(())
    }
}

fn of_stage(stage: u16) -> impl Fn(StageError) -> BackendError {
    move |error| BackendError::OfStage { stage: stage.into(), message: error.to_string() }
}

fn wrong(stage: u16, message: &str) -> BackendError {
    BackendError::OfStage { stage: stage.into(), message: message.to_string() }
}

/// Updates this rank's share, and clears the gradient.
fn update<T: Element>(
    optimizer: &AdamW,
    step: u32,
    (weight, gradient): (&mut [T], &mut [T]),
    state: &mut Moments<T>,
    (share, decays): (Share, bool),
) {
    let mine = share.of(weight.len());
    optimizer.update(step, &mut weight[mine.clone()], &gradient[mine], state, decays);
    gradient.fill(T::ZERO);
}

/// Whether a stage lends what its model declares.
fn check_weights(declared: &[StageParameter], lent: &[LentParameter<'_>], dtype: Dtype) -> Result<(), StageError> {
    if declared.len() != lent.len() {
        let (declared, lent) = (declared.len(), lent.len());
        return Err(StageError(format!("it lends {lent} parameters, and its model declares {declared}")));
    }
    for (about, lent) in declared.iter().zip(lent) {
        let elements: usize = about.shape.iter().product();
        for (values, what) in [(&lent.weight, "the weight"), (&lent.gradient, "the gradient of")] {
            let (found, format) = match values {
                Values::F32(values) => (values.len(), Dtype::F32),
                Values::F64(values) => (values.len(), Dtype::F64),
            };
            if (found, format) != (elements, dtype) {
                return Err(StageError(format!(
                    "{what} `{}` has {found} elements in {}, and its model declares {elements} in {}",
                    about.name,
                    format.name(),
                    dtype.name()
                )));
            }
        }
    }
    Ok(())
}

/// What a rank holds of a stage between ops.
fn persistent_bytes(lent: &[LentParameter<'_>], weights: &[HeldWeight]) -> Bytes {
    let of = |values: &Values<'_>| match values {
        Values::F32(values) => size_of_val(*values) as Bytes,
        Values::F64(values) => size_of_val(*values) as Bytes,
    };
    let lent: Bytes = lent.iter().map(|lent| of(&lent.weight) + of(&lent.gradient)).sum();
    let states = weights.iter().map(|weight| match &weight.state {
        State::F32(state) => state.bytes(),
        State::F64(state) => state.bytes(),
    });
    lent + states.sum::<Bytes>()
}
