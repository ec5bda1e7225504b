//! What checkpoints say of a run, and whether a run can go on from one.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipeplan_core::graph::optimizer::Optimizer;
use serde_json::Value;

use super::refusal::Refusal;
use super::{Computation, ModelStages, Workload};
use crate::runner::checkpoint::{
    Adapters, Checkpoint, CheckpointError, Manifest, Pretrained, Reader, Saves, WholeWeights, Writer,
};
use crate::runner::data::Batches;
use crate::runner::optimizer::Schedule;
use crate::runner::{Precision, RunOptions, checkpoint};

impl Workload {
    /// Whether going on from `checkpoint` gives what a run without a break gives.
    pub(super) fn check_resume(
        &self,
        checkpoint: &Checkpoint,
        options: &RunOptions,
        batches: Option<&Batches>,
    ) -> Result<(), Refusal> {
        let other = |what: String| CheckpointError::OtherRun { path: checkpoint.folder.clone(), what };
        let was = &checkpoint.manifest;
        checkpoint::rope_scaling(&was.model).map_err(other)?;
        let is = self.manifest(options, batches).ok_or(Refusal::NothingToSave)?;
        // A run that fails after its last step is only ended by a restart.
        if was.step >= options.steps && options.restarting.begun.is_none() {
            let what = format!("it has {} training steps, but --steps is {}", was.step, options.steps);
            return Err(
                other(format!("{what}: give more steps; --steps includes those before the checkpoint")).into()
            );
        }
        let differs = [
            ("seed", was.seed.to_string(), is.seed.to_string()),
            ("text", was.text_digest.clone(), is.text_digest),
            ("optimizer", was.kind.clone(), is.kind),
            ("list of frozen weights (training.frozen)", said(&was.frozen), said(&is.frozen)),
            ("training.lora", adapters(was.lora.as_ref()), adapters(is.lora.as_ref())),
            ("tokens of a sequence", was.sequence.to_string(), is.sequence.to_string()),
            ("sequences of a training step", was.step_sequences.to_string(), is.step_sequences.to_string()),
        ];
        if let Some((what, was, is)) = differs.into_iter().find(|(_, was, is)| was != is) {
            return Err(other(format!("its {what} is {was}, but this run's is {is}: give the same")).into());
        }
        // Its number format may be another one; whatever else the model is decides what is computed. What it says of
        // itself once more need not be there.
        let same = |value: &Value| {
            let mut value = value.clone();
            for field in ["torch_dtype", checkpoint::OWN_WORDS] {
                value.as_object_mut().map(|fields| fields.remove(field));
            }
            value
        };
        // One that is written in the words of another library today may have been written in ours.
        let model = |value: &Value| checkpoint::model_of(value, &mut Vec::new());
        let is_same_model = model(&was.model).is_some_and(|was| model(&is.model) == Some(was));
        if !is_same_model && same(&was.model) != same(&is.model) {
            let differs = checkpoint::differences(&same(&was.model), &same(&is.model), "the checkpoint");
            return Err(other(format!("its model differs: {differs}; plan the same model")).into());
        }
        Ok(Reader::open(checkpoint)?.check(&self.places())?)
    }

    /// Whether `pretrained` has all weights of the model, in their shapes.
    pub(super) fn check_weights(&self, model: &ModelStages, pretrained: &Pretrained) -> Result<(), Refusal> {
        pretrained.check_model(&model.model)?;
        let checked = Reader::of_pretrained(pretrained, &model.model)?.check(&self.places());
        // Published weights often leave out MTP modules; transformers neither reads nor writes it.
        let of_module = format!("it has no weight `model.layers.{}.", model.model.layers);
        Ok(checked.map_err(|error| match error {
            CheckpointError::OtherModel { path, what } if what.starts_with(&of_module) => {
                let what = format!("{what}: of an MTP module; `model.multi_token = 0` plans without");
                CheckpointError::OtherModel { path, what }
            }
            error => error,
        })?)
    }

    /// The weights of `pretrained` that the model has no use for; nothing for planned times.
    ///
    /// # Errors
    /// [`CheckpointError`] where a file cannot be read.
    pub fn unused_weights(&self, pretrained: &Pretrained) -> Result<Vec<String>, CheckpointError> {
        let Computation::Model(model) = &self.computation else { return Ok(Vec::new()) };
        Ok(Reader::of_pretrained(pretrained, &model.model)?.unused(&self.places()))
    }

    /// The type of the weights in checkpoints of this run; nothing for planned times.
    pub fn precision(&self) -> Option<&'static str> {
        match &self.computation {
            Computation::Model(model) => Some(precision_of(model)),
            Computation::Stages(staged) => Some(staged.precision()),
            Computation::PlannedTimes { .. } => None,
        }
    }

    /// What checkpoints say of this run; nothing for planned times.
    fn manifest(&self, options: &RunOptions, batches: Option<&Batches>) -> Option<Manifest> {
        let precision = self.precision()?;
        let about = match &self.computation {
            Computation::Model(model) => About {
                sequence: model.sequence,
                microbatch_size: model.microbatch_size,
                optimizer: model.optimizer,
                frozen: model.frozen.texts(),
                lora: model.lora.as_ref().map(Adapters::of),
                model: checkpoint::with_scaling(
                    checkpoint::config(&model.model, precision, model.lora.is_some()),
                    options.rope_scaling(),
                ),
            },
            // A microbatch counts as one sequence of its own data.
            Computation::Stages(staged) => About {
                sequence: 1,
                microbatch_size: 1,
                optimizer: staged.model.optimizer(),
                frozen: Vec::new(),
                lora: None,
                model: staged.config(),
            },
            Computation::PlannedTimes { .. } => return None,
        };
        let has_angles = !options.rope_scaling().is_plain()
            || matches!(&self.computation, Computation::Model(model) if checkpoint::has_two_thetas(&model.model));
        Some(Manifest {
            format: checkpoint::FORMAT.to_string(),
            version: checkpoint::version(
                about.lora.is_some(),
                options.optimizer.schedule != Schedule::Cosine,
                has_angles,
            ),
            step: options.first_step(),
            seed: options.seed,
            precision: precision.to_string(),
            rounded: self.rounded(),
            plan_digest: self.plan_digest.clone(),
            text_digest: batches.map(Batches::digest).unwrap_or_default(),
            sequence: about.sequence,
            step_sequences: self.step_microbatches() as u64 * u64::from(about.microbatch_size),
            optimizer: options.optimizer,
            kind: about.optimizer.name().to_string(),
            clip_norm: options.clip_norm,
            frozen: about.frozen,
            lora: about.lora,
            model: about.model,
            layout: checkpoint::Layout {
                pipeline: self.problem.ranks(),
                stages: self.problem.stage_count(),
                data: self.replicas(),
                context: self.parts(),
                tensor: self.members(),
                expert: self.experts(),
                shares_optimizer: self.sharding().optimizer,
            },
            weights: BTreeMap::new(),
            optimizer_state: Vec::new(),
            files: BTreeMap::new(),
            manifest_crc32: None,
        })
    }

    /// What writes the part of rank `rank` of the world of each checkpoint.
    pub(crate) fn writer(
        &self,
        rank: usize,
        options: &RunOptions,
        batches: Option<&Batches>,
        saves: &Arc<Saves>,
    ) -> Option<Writer> {
        let saving = options.saving.as_ref()?;
        let manifest = self.manifest(options, batches)?;
        let position = self.position(rank);
        Some(Writer {
            saving: saving.clone(),
            position,
            places: self.places(),
            together: WholeWeights::new(position, false),
            experts_together: position.is_expert_parallel().then(|| WholeWeights::new(position, true)),
            manifest,
            // Where nothing has been trained, there is nothing to write.
            written: written(options),
            begun: None,
            saves: Arc::clone(saves),
            keep: options.keep,
        })
    }
}

/// What a manifest says of what is trained.
struct About {
    sequence: u32,
    microbatch_size: u32,
    optimizer: Optimizer,
    frozen: Vec<String>,
    lora: Option<Adapters>,
    model: Value,
}

/// The step of the last checkpoint that is there when a run begins, as far as it matters to it. A state from memory
/// may have no checkpoint.
fn written(options: &RunOptions) -> u32 {
    let first = options.first_step();
    match &options.restarting.begun {
        Some(begun) if first > 0 && begun.checkpoint.as_ref().is_none_or(|(step, _)| *step != first) => u32::MAX,
        _ => first,
    }
}

/// The type of the weights in checkpoints.
fn precision_of(model: &ModelStages) -> &'static str {
    if model.precision() == Ok(Precision::Double) { "f64" } else { "f32" }
}

/// A list of frozen weights in words.
fn said(frozen: &[String]) -> String {
    if frozen.is_empty() { "none".to_string() } else { frozen.join(", ") }
}

/// Adapters in words.
fn adapters(lora: Option<&Adapters>) -> String {
    match lora {
        None => "none".to_string(),
        Some(Adapters { rank, alpha, targets }) => format!("rank {rank}, alpha {alpha}, {}", targets.join(", ")),
    }
}
