//! A layout for a model, a device and a number of devices, where nothing else is typed.
//!
//! Plans of one published schedule, 1F1B, decide: which layout fits, and which is the fastest. The [`Tuner`] finds it among the
//! layouts that people start from: a pipeline, micro-batches of one sequence or of [`LEAST_TOKENS`], optimizer states over
//! data-parallel replicas (ZeRO 1), whole experts, context parallelism for long sequences only. Fields that a person has typed
//! are pinned. The whole space is [`tune`](super)'s.
//!
//! 1. Layouts that fit without recomputation beyond the typed one, which takes moments.
//! 2. All layouts, with the least recomputation that fits.
//! 3. Where none fits: layouts without a pipeline, with ZeRO 3 too.
//! 4. Where still none fits: one change with which one does ([`NextStep`]), planned as well.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::{Field, MOST_DEVICES, Question, Tuned, Tuner, is_faster};
use crate::base::fields::{Fault, Faults};
use crate::estimate::derive::derive;
use crate::problem::placement::Placement;
use crate::search::{Effort, Flow};
use crate::spec::{ModelWork, Spec, Work};

/// The schedule that decides.
const DECIDES: &str = "1f1b";
/// Tokens of a microbatch: with fewer, GEMMs are far from the device's peak.
const LEAST_TOKENS: u32 = 4096;
/// Sequences longer than this may be split by context parallelism: two parts of the least length that
/// [`tune`](super) gives a device are a choice, four are a need.
const LONG: u32 = 16_384;
const GIB: f64 = (1u64 << 30) as f64;
/// Numbers of devices that are tried, each twice the one before, from the least that can hold the model.
const MOST_DOUBLINGS: usize = 6;

/// The global batch size where nobody gives one: two sequences per device and at least 32, or one from 1024 devices on. A
/// multiple of the devices, so that every degree divides it.
pub fn usual_batch(devices: u64) -> u64 {
    let devices = devices.clamp(1, MOST_DEVICES);
    let each = if devices >= 1024 { 1 } else { 32u64.div_ceil(devices).max(2) };
    devices * each
}

/// One change with which there is a layout. It has been planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// That many devices.
    Devices(u64),
    /// That global batch size.
    Batch(u64),
    /// No pinned field.
    Unpin,
}

/// What a [`LayoutFinder`] has found.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The fastest layout.
    Found(Box<Tuned>),
    /// Why there is none, and one change with which there is one; none where no change was found.
    None(String, Option<NextStep>),
}

/// A number of devices with a batch, which may have a layout.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    devices: u64,
    batch: u64,
    pinned: bool,
    /// The change that this is, if it is not what was asked.
    step: Option<NextStep>,
}

/// Which layouts are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Among {
    /// Without more recomputation than typed.
    Plain,
    /// With the least recomputation that fits.
    Saving,
    /// Without a pipeline, too.
    Any,
}

/// Finds a layout a piece at a time, so that a page can respond between two pieces.
pub struct LayoutFinder {
    spec: Spec,
    pins: Vec<Field>,
    batch: Option<u64>,
    /// Whether the number of devices is given.
    is_given: bool,
    /// The least number of devices whose memory holds the weights and the optimizer states.
    least: u64,
    attempts: VecDeque<Attempt>,
    attempt: Attempt,
    among: Among,
    tuner: Option<Tuner>,
    found: Option<Tuned>,
    /// Why what was asked has no layout.
    reason: Option<String>,
    outcome: Option<Outcome>,
}

impl LayoutFinder {
    /// Begins for the model and the settings of `spec`, whose degrees count only where they are in `pins`. Without `devices`,
    /// the least number that works is found, from a whole node on; without `batch`, it is [`usual_batch`].
    ///
    /// # Errors
    /// Costs are typed, or the model's operators have faults whatever the layout.
    pub fn new(
        spec: &Spec,
        devices: Option<u64>,
        batch: Option<u64>,
        pins: &[Field],
    ) -> Result<LayoutFinder, Faults> {
        let Work::Model(work) = &spec.work else {
            return Err(Fault::new("model", "typed costs", "a model: layouts follow from its operators").into());
        };
        let least = least_devices(work)?;
        let node = u64::from(work.devices_per_node.max(1));
        let first = devices.unwrap_or_else(|| least.next_power_of_two().max(node));
        let mut finder = LayoutFinder {
            spec: spec.clone(),
            pins: pins.to_vec(),
            batch,
            is_given: devices.is_some(),
            least,
            attempts: VecDeque::new(),
            attempt: Attempt { devices: first, batch: 1, pinned: true, step: None },
            among: Among::Plain,
            tuner: None,
            found: None,
            reason: None,
            outcome: None,
        };
        finder.attempt.batch = finder.batch_on(first);
        finder.list_attempts();
        finder.begin(Among::Plain);
        Ok(finder)
    }

    /// The number of devices of the layout that is looked for now.
    pub fn devices(&self) -> u64 {
        self.attempt.devices
    }

    /// The best so far of what was asked.
    pub fn so_far(&self) -> Option<&Tuned> {
        self.found.as_ref().filter(|_| self.attempt.step.is_none())
    }

    /// The answer, once there is one.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Does the next piece; false where nothing is left.
    pub fn step(&mut self) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        let goes_on = match &mut self.tuner {
            Some(tuner) => tuner.step(Effort::default(), &mut |_| Flow::Continue),
            None => false,
        };
        let best = self.tuner.as_ref().and_then(|tuner| tuner.rows().first());
        if let Some(best) = best
            && self.found.as_ref().is_none_or(|found| is_faster(best, found))
        {
            self.found = Some(best.clone());
        }
        // Of another question than what was asked, that it has an answer is enough.
        let is_enough = self.attempt.step.is_some() && self.found.is_some();
        if !goes_on || is_enough {
            self.next();
        }
        self.outcome.is_none()
    }

    fn batch_on(&self, devices: u64) -> u64 {
        self.batch.unwrap_or_else(|| usual_batch(devices))
    }

    /// What is tried after what was asked: another batch, no pins, more devices.
    fn list_attempts(&mut self) {
        let now = self.attempt;
        let usual = usual_batch(now.devices);
        let mut attempts = Vec::new();
        if self.is_given && now.batch != usual {
            attempts.push(Attempt { batch: usual, step: Some(NextStep::Batch(usual)), ..now });
        }
        if self.is_given && !self.pins.is_empty() {
            attempts.push(Attempt { pinned: false, step: Some(NextStep::Unpin), ..now });
        }
        let begin = self.least.max(now.devices.saturating_add(1)).next_power_of_two();
        let more = (0..MOST_DOUBLINGS as u32).filter_map(|double| begin.checked_shl(double));
        for devices in more.filter(|devices| *devices <= MOST_DEVICES) {
            let step = self.is_given.then_some(NextStep::Devices(devices));
            attempts.push(Attempt { devices, batch: self.batch_on(devices), step, ..now });
        }
        self.attempts = attempts.into();
    }

    /// Begins to look among these layouts of the present attempt.
    fn begin(&mut self, among: Among) {
        self.among = among;
        if self.attempt.devices < self.least {
            self.tuner = None;
            return;
        }
        self.tuner = match self.tuner_of(self.attempt, among) {
            Ok(tuner) => Some(tuner),
            Err(faults) => {
                let fault = faults.0.first().map_or_else(|| faults.to_string(), ToString::to_string);
                if self.attempt.step.is_none() {
                    self.reason.get_or_insert(fault);
                }
                None
            }
        };
        if let (Some(tuner), Some(found)) = (&mut self.tuner, &self.found) {
            tuner.keep(found.clone());
        }
    }

    fn next(&mut self) {
        let may_recompute = !(self.attempt.pinned && self.pins.contains(&Field::Recompute));
        let may_be_alone = !(self.attempt.pinned && self.pins.contains(&Field::Pipeline));
        let is_other = self.attempt.step.is_some();
        match (self.among, &self.found) {
            (_, Some(_)) if is_other => return self.end(),
            (Among::Plain, _) if may_recompute => return self.begin(Among::Saving),
            (_, Some(_)) => return self.end(),
            (Among::Plain | Among::Saving, None) if may_be_alone => return self.begin(Among::Any),
            _ => {}
        }
        if self.attempt.step.is_none() {
            let refusal = self.tuner.as_ref().and_then(|tuner| tuner.refusal().map(ToString::to_string));
            let tally = self.tuner.as_ref().map(Tuner::tally).unwrap_or_default();
            let allows_some = tally.layouts > tally.refused;
            let too_small = || {
                let (devices, limit) = (self.attempt.devices, limit_of(&self.spec) as f64 / GIB);
                format!("no layout on {devices} devices fits in {limit:.1} GiB of memory per device")
            };
            let reason = refusal.filter(|_| !allows_some).unwrap_or_else(too_small);
            self.reason.get_or_insert(reason);
        }
        match self.attempts.pop_front() {
            Some(attempt) => {
                self.attempt = attempt;
                if attempt.step.is_none() {
                    self.reason = None;
                }
                self.begin(if attempt.step.is_none() { Among::Plain } else { Among::Saving });
            }
            None => self.outcome = Some(Outcome::None(self.reason.take().unwrap_or_default(), None)),
        }
    }

    fn end(&mut self) {
        let Some(found) = self.found.clone() else { return };
        self.outcome = Some(match self.attempt.step {
            None => Outcome::Found(Box::new(found)),
            step => Outcome::None(self.reason.take().unwrap_or_default(), step),
        });
    }

    /// The tuner of an attempt.
    fn tuner_of(&self, attempt: Attempt, among: Among) -> Result<Tuner, Faults> {
        let Work::Model(work) = &self.spec.work else { return Err(Faults(Vec::new())) };
        let pins: &[Field] = if attempt.pinned { &self.pins } else { &[] };
        let is_pinned = |field: Field| pins.contains(&field);
        let mut work = work.clone();
        let mut keep = pins.to_vec();
        let mut settle = |field: Field| {
            if !keep.contains(&field) {
                keep.push(field);
            }
        };
        if !is_pinned(Field::MicrobatchSize) {
            let wanted = LEAST_TOKENS.div_ceil(work.sequence.max(1)).next_power_of_two().min(super::MOST_SEQUENCES);
            // A power of two that divides the batch, and leaves every device a microbatch.
            let divides = 1 << attempt.batch.trailing_zeros().min(6);
            let for_each = 1 << (attempt.batch / attempt.devices).max(1).ilog2().min(6);
            work.microbatch_size = wanted.min(divides).min(for_each);
            settle(Field::MicrobatchSize);
        }
        if !is_pinned(Field::Context) && work.sequence <= LONG {
            work.layout.form.context = 1;
            settle(Field::Context);
        }
        if !is_pinned(Field::Zero) && among != Among::Any {
            work.layout.set_zero(1);
            settle(Field::Zero);
        }
        if !is_pinned(Field::WholeExperts) && work.model.variant.experts.is_some() {
            work.layout.form.whole_experts = true;
            settle(Field::WholeExperts);
        }
        if among == Among::Plain {
            settle(Field::Recompute);
        }
        let data = if is_pinned(Field::Data) { work.layout.data.max(1) } else { 1 };
        let at_once = u64::from(data) * u64::from(work.microbatch_size.max(1));
        if !attempt.batch.is_multiple_of(at_once) {
            let accepted = format!("a multiple of {at_once} (parallel.data × training.microbatch_size)");
            return Err(Fault::new("training.global_batch_size", attempt.batch, accepted).into());
        }
        work.layout.data = data;
        work.microbatches = u32::try_from(attempt.batch / at_once).unwrap_or(u32::MAX);
        let question = Question {
            devices: Some(attempt.devices),
            keep,
            schedules: vec![DECIDES.to_string()],
            most: 1,
            least_pipeline: if among == Among::Any { 1 } else { 2 },
            plans_given: false,
        };
        let spec = Spec { work: Work::Model(work), schedule: DECIDES.to_string(), ..self.spec.clone() };
        Tuner::new(&spec, &question)
    }
}

fn limit_of(spec: &Spec) -> u64 {
    match &spec.work {
        Work::Model(work) => work.limit_bytes.unwrap_or(work.device.memory_bytes),
        Work::Typed(_) => 0,
    }
}

/// The least number of devices whose memory holds weights and optimizer states.
fn least_devices(work: &ModelWork) -> Result<u64, Faults> {
    let mut alone = work.clone();
    (alone.pipeline, alone.chunks, alone.layout.data) = (1, 1, 1);
    alone.layout.set_zero(0);
    let form = &mut alone.layout.form;
    (form.tensor, form.context, form.expert, form.sequence_parallel) = (1, 1, 1, false);
    (form.whole_experts, form.expert_tensor, alone.layout.shard) = (false, 0, None);
    alone.layout.partition = crate::graph::layout::Partition::Balanced;
    let derived = derive(&alone, Placement::Linear, 1)?;
    let held = |bytes: &crate::estimate::memory::StaticBytes| {
        u128::from(bytes.weights) + u128::from(bytes.master_weights) + u128::from(bytes.optimizer)
    };
    let held: u128 = derived.static_bytes.iter().map(held).sum();
    let limit = u128::from(work.limit_bytes.unwrap_or(work.device.memory_bytes).max(1));
    Ok(u64::try_from(held.div_ceil(limit)).unwrap_or(u64::MAX).clamp(1, MOST_DEVICES))
}

#[cfg(test)]
mod tests;
