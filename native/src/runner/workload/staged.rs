//! Stages that another program brings: what is checked of them, and what checkpoints say of them.

use std::collections::BTreeMap;

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::Dtype;
use pipeplan_core::problem::Problem;
use serde_json::{Value, json};

use super::{Refusal, Staged, Workload};
use crate::backend::staged::StageParameter;
use crate::runner::checkpoint::CheckpointError;
use crate::runner::gradients::{Placed, Places, stages_held};
use crate::runner::optimizer::Rule;
use crate::runner::shard::Shard;
use crate::runner::{Device, RunOptions};

/// What a `config.json` of such a model is called.
const MODEL_TYPE: &str = "pipeplan-stages";

impl Staged {
    /// Where its weights lie in a pipeline.
    pub(super) fn places(&self, problem: &Problem) -> Places {
        let stages = problem.stage_count();
        let mut places = Places::new();
        for rank in 0..problem.ranks() {
            for stage in stages_held(problem, rank) {
                for StageParameter { name, shape, .. } in self.model.parameters(stage, stages) {
                    let new = || Placed { at: Vec::new(), shard: Shard::whole(shape) };
                    places.entry(name).or_insert_with(new).at.push((rank, stage as u16));
                }
            }
        }
        places
    }

    /// The weights of `rank` of a pipeline, and what the optimizer remembers of them.
    pub(super) fn state_bytes(&self, problem: &Problem, rank: usize) -> Bytes {
        let stages = problem.stage_count();
        let parameters =
            stages_held(problem, rank).into_iter().flat_map(|stage| self.model.parameters(stage, stages));
        let bytes = parameters.map(|StageParameter { shape, decays, .. }| {
            let sizes: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
            let values = 1 + Rule::of(self.model.optimizer(), &sizes, decays).moments() as u64;
            sizes.iter().product::<u64>() * self.model.dtype().bytes() * values
        });
        bytes.sum()
    }

    /// The type of its weights in checkpoints.
    pub(super) fn precision(&self) -> &'static str {
        if self.model.dtype() == Dtype::F64 { "f64" } else { "f32" }
    }

    /// What checkpoints have in the place of a model's sizes.
    pub(super) fn config(&self) -> Value {
        json!({ "model_type": MODEL_TYPE, "name": self.model.name() })
    }

    /// Whether all stages fit together, and the options ask for nothing that only a model has.
    pub(super) fn check(&self, workload: &Workload, options: &RunOptions) -> Result<(), Refusal> {
        let refused = |what: String| Err(Refusal::Staged { what });
        let dtype = self.model.dtype();
        if !matches!(dtype, Dtype::F32 | Dtype::F64) {
            return refused(format!("their dtype is {}: use f32 or f64", dtype.name()));
        }
        if workload.problem.slices() > 1 {
            return refused("the plan cuts sequences into slices: plan without parallel.sequence_slices".to_string());
        }
        if workload.copies_activations() {
            return refused(
                "the plan copies activations to the host: plan without offload_bytes, or a limit that needs no copies".to_string(),
            );
        }
        let of_models = [
            (options.device != Device::Cpu, "a device other than the CPU"),
            (options.data.is_some() || !options.text.is_empty(), "data"),
            (options.evaluate_every > 0, "an evaluation"),
            (options.weights.is_some(), "pretrained weights"),
        ];
        if let Some((_, what)) = of_models.into_iter().find(|(asked, _)| *asked) {
            return refused(format!("the options have {what}: stages take their own data and weights"));
        }
        match self.model.optimizer() {
            Optimizer::Adafactor => return refused("the runner does not have Adafactor".to_string()),
            Optimizer::Muon if workload.sharding().optimizer => return Err(Refusal::WholeMatrices),
            _ => {}
        }
        let stages = workload.problem.stage_count();
        let mut known: BTreeMap<String, (usize, Vec<usize>, bool)> = BTreeMap::new();
        for stage in 0..stages {
            for StageParameter { name, shape, decays } in self.model.parameters(stage, stages) {
                match known.get(&name) {
                    Some((other, _, _)) if *other == stage => {
                        return refused(format!("stage {stage} declares two weights named `{name}`"));
                    }
                    Some((other, _, decayed)) if *decayed != decays => {
                        return refused(format!(
                            "`{name}` decays in one of the stages {other} and {stage} alone: say the same in both"
                        ));
                    }
                    Some((other, was, _)) if *was != shape => {
                        return refused(format!(
                            "`{name}` has the shape {was:?} in stage {other} and {shape:?} in stage {stage}: give other names \
                             to weights that are not the same"
                        ));
                    }
                    _ => {
                        known.insert(name, (stage, shape, decays));
                    }
                }
            }
        }
        if let Some(saving) = &options.saving {
            std::fs::create_dir_all(&saving.folder).map_err(CheckpointError::file(&saving.folder, "made"))?;
        }
        if let Some(checkpoint) = &options.resume {
            workload.check_resume(checkpoint, options, None)?;
        }
        Ok(())
    }
}
