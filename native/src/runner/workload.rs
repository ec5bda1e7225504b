//! What is to be run, and whether it can be.

use std::collections::BTreeMap;
use std::sync::Arc;

use pipeplan_core::check::{self, Violation};
use pipeplan_core::graph::{Graph, Role};
use pipeplan_core::model::Dtype;
use pipeplan_core::placement::Placement;
use pipeplan_core::problem::Problem;
use pipeplan_core::program::Program;
use pipeplan_core::units::Bytes;

use super::data::{BYTE_VOCABULARY, Batches, DataError};
use super::{Precision, RunOptions};
use crate::backend::cpu::Cpu;
use crate::backend::{Backend, Store};

/// A plan as ranks execute it: which stage is where, what each rank does, and what each stage computes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Ranks, stages and where they are.
    pub problem: Problem,
    /// What each rank executes in a training step.
    pub program: Program,
    /// The operators of each stage, in the type to compute in.
    pub stages: Vec<Graph>,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// The digest of the plan, for the trace.
    pub plan_digest: String,
    /// The bytes that the plan predicts each rank to hold at most.
    pub predicted_peak_bytes: Vec<Bytes>,
    /// The idle share that the plan predicts.
    pub predicted_bubble_ratio: f64,
}

/// Why a workload cannot be run. Nothing has been started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The plan is of typed costs.
    #[error(
        "the plan was made from typed costs, so there is no model to train: plan a spec with a `[model]`, such \
         as tiny-llama"
    )]
    NoModel,
    /// The program is not valid, or would hang.
    #[error("the program cannot be run:{}", list(violations))]
    Invalid {
        /// What is wrong with it.
        violations: Vec<Violation>,
    },
    /// The graphs do not fit the problem.
    #[error("the plan has {stages} stages, and {graphs} of them have operators")]
    Stages {
        /// Stages of the problem.
        stages: usize,
        /// Graphs given.
        graphs: usize,
    },
    /// A number format that the backend does not compute in.
    #[error("the CPU computes in f32 or f64, and stage {stage} is in {}", dtype.name())]
    Format {
        /// The stage.
        stage: usize,
        /// Its format.
        dtype: Dtype,
    },
    /// Weights that two ranks would have to keep equal.
    #[error(
        "stage {stage} shares `{weight}` with another stage, and this runner does not yet add up gradients \
         across stages: plan a model whose head is not tied to its embedding"
    )]
    SharedWeight {
        /// The stage.
        stage: usize,
        /// The weight.
        weight: String,
    },
    /// Two copies of the model.
    #[error("a two-way placement holds each stage twice, and this runner does not yet add up their gradients")]
    TwoWay,
    /// Bytes do not fit the vocabulary.
    #[error("text is read as bytes, which needs a vocabulary of 256 or more, and the model has {vocabulary}")]
    Vocabulary {
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// The text does not do.
    #[error(transparent)]
    Data(#[from] DataError),
    /// No steps.
    #[error("a run needs at least 1 step")]
    NoSteps,
    /// The machine has no thread left.
    #[error("rank {rank} has no thread: {error}")]
    NoThread {
        /// The rank.
        rank: usize,
        /// What the machine says.
        error: String,
    },
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("\n  {violation}")).collect()
}

impl Workload {
    /// Tokens of one training step.
    pub fn step_tokens(&self) -> u64 {
        u64::from(self.sequence) * u64::from(self.microbatch_size) * self.problem.microbatches() as u64
    }

    /// The type that the stages are in.
    ///
    /// # Errors
    /// [`Refusal::Format`] where it is none that the CPU computes in, or not the same everywhere.
    pub fn precision(&self) -> Result<Precision, Refusal> {
        let formats = self.stages.iter().enumerate().flat_map(|(stage, graph)| {
            graph.tensors().map(move |(_, tensor)| (stage, tensor.dtype)).filter(|(_, dtype)| *dtype != Dtype::I32)
        });
        let mut first = None;
        for (stage, dtype) in formats {
            let known = matches!(dtype, Dtype::F32 | Dtype::F64);
            if !known || *first.get_or_insert(dtype) != dtype {
                return Err(Refusal::Format { stage, dtype });
            }
        }
        Ok(if first == Some(Dtype::F64) { Precision::Double } else { Precision::Single })
    }

    /// Whether all is there that a run needs; cuts the text.
    pub(super) fn check(&self, options: &RunOptions) -> Result<Batches, Refusal> {
        if options.steps == 0 {
            return Err(Refusal::NoSteps);
        }
        if *self.problem.placement() == Placement::TwoWay {
            return Err(Refusal::TwoWay);
        }
        // Threads take a group at once, as `Grouped` says, and more slots complete whatever fewer do.
        check::check_program(&self.problem, &self.program, check::Transport::Grouped)
            .map_err(|violations| Refusal::Invalid { violations })?;
        let stages = self.problem.stage_count();
        if self.stages.len() != stages {
            return Err(Refusal::Stages { stages, graphs: self.stages.len() });
        }
        self.precision()?;
        for (stage, graph) in self.stages.iter().enumerate() {
            for (_, tensor) in graph.tensors() {
                match tensor.role {
                    Role::Weight { shared: true, .. } => {
                        return Err(Refusal::SharedWeight { stage, weight: tensor.name.clone() });
                    }
                    _ => continue,
                }
            }
        }
        self.check_vocabulary()?;
        let (sequence, microbatch_size) = (self.sequence as usize, self.microbatch_size as usize);
        let text = options.text.clone();
        Ok(Batches::new(text, sequence, microbatch_size, self.problem.microbatches(), options.seed)?)
    }

    fn check_vocabulary(&self) -> Result<(), Refusal> {
        use pipeplan_core::graph::Kernel;
        for operator in
            self.stages.iter().flat_map(|graph| graph.operators.iter().map(move |operator| (graph, operator)))
        {
            let (graph, operator) = operator;
            let columns = |input: usize, axis: usize| {
                operator.inputs.get(input).and_then(|input| graph[input.tensor].shape.get(axis)).copied().unwrap_or(0)
            };
            let vocabulary = match operator.kernel {
                Kernel::Embedding => columns(1, 0),
                Kernel::CrossEntropy { .. } => columns(0, 1),
                _ => continue,
            };
            if vocabulary < BYTE_VOCABULARY {
                return Err(Refusal::Vocabulary { vocabulary });
            }
        }
        Ok(())
    }

    /// What executes the ops of `rank`.
    pub(super) fn backend(
        &self,
        rank: usize,
        options: &RunOptions,
        batches: &Arc<Batches>,
        store: &mut Store,
    ) -> Box<dyn Backend> {
        let held: BTreeMap<u16, Graph> =
            self.problem.stages_of(rank).iter().map(|stage| (*stage as u16, self.stages[*stage].clone())).collect();
        let (count, seed, optimizer) = (self.problem.stage_count(), options.seed, options.optimizer);
        let batches = Arc::clone(batches);
        match self.precision() {
            Ok(Precision::Double) => Box::new(Cpu::<f64>::new(held, count, seed, optimizer, batches, store)),
            _ => Box::new(Cpu::<f32>::new(held, count, seed, optimizer, batches, store)),
        }
    }
}
