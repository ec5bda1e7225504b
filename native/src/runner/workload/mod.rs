//! A plan as ranks execute it, and whether it can be executed.
//!
//! - In: a [`Plan`], or a problem with its program, and the options of a run.
//! - Out: a [`Workload`], or a [`Refusal`] before anything starts.
//! - Knows: plans, graphs and checkpoints. It starts nothing.

use std::fmt;
use std::sync::Arc;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::estimate::derive::{derive, graph_of};
use pipeplan_core::estimate::step::StepEpilogue;
use pipeplan_core::graph::Graph;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::post_training::{Frozen, Lora};
use pipeplan_core::model::{Dtype, ModelConfig, StageLayout};
use pipeplan_core::plan::{Plan, Replica};
use pipeplan_core::problem::Problem;
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::{Program, Step};
use pipeplan_core::simulate::timeline::in_turns_ns;
use pipeplan_core::spec::{Documents, ModelWork, Work};

use self::checks::check_layout;
use super::Precision;
use crate::backend::Sharding;
use crate::backend::staged::StagedModel;
use crate::backend::stages::Slicing;

mod checkpoints;
mod checks;
mod memory;
mod ranks;
mod refusal;
mod staged;

pub(super) use self::checks::MessageCarrier;
pub(crate) use self::memory::available_bytes;
pub use self::refusal::Refusal;

/// A plan as ranks execute it: which stage is where, what each rank does, and what each stage computes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Ranks, stages and where they are.
    pub problem: Problem,
    /// The op lists: what each rank executes in a training step.
    pub program: Program,
    /// What the ops compute.
    pub computation: Computation,
    /// The digest of the plan, for the trace.
    pub plan_digest: String,
    /// The peak memory of each rank, as the plan predicts it.
    pub predicted_peak_bytes: Vec<Bytes>,
    /// Whether the plan predicts times; a test has none.
    pub is_timed: bool,
    /// The step epilogue (gradient sync and optimizer) by the times of the plan; empty for typed costs or without
    /// times.
    pub epilogue: StepEpilogue,
}

/// The times of a step, as the plan predicts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Predicted {
    /// From the first op to the last.
    pub makespan_ns: Nanos,
    /// From the first op to the end of the last rank's optimizer.
    pub step_ns: Nanos,
    /// Idle share of the ranks' time; none where they share processors.
    pub bubble_ratio: Option<f64>,
}

/// What ops compute.
#[expect(clippy::large_enum_variant, reason = "a run holds one")]
#[derive(Clone, Debug)]
pub enum Computation {
    /// A model's operators.
    Model(ModelStages),
    /// Stages that another program brings.
    Stages(Staged),
    /// Nothing is computed: each op waits for its planned time.
    PlannedTimes {
        /// Factor on planned times, at least 1. Measured times are divided by it.
        slowdown: u64,
        /// Data-parallel replicas, at least 1.
        replicas: u32,
        /// By replica the problem with its times, where they differ; else nothing.
        apart: Vec<Problem>,
    },
}

/// Stages that another program brings, and how often a pipeline of them is there.
#[derive(Clone)]
pub struct Staged {
    /// What makes the stages.
    pub model: Arc<dyn StagedModel>,
    /// Data-parallel replicas, each with its own microbatches; at least 1.
    pub replicas: u32,
    /// Whether replicas shard the optimizer states (ZeRO 1).
    pub shares_optimizer: bool,
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("model", &self.model.name())
            .field("dtype", &self.model.dtype())
            .field("optimizer", &self.model.optimizer())
            .field("replicas", &self.replicas)
            .field("shares_optimizer", &self.shares_optimizer)
            .finish()
    }
}

/// A model in stages.
#[derive(Clone, Debug)]
pub struct ModelStages {
    /// The operators of each stage, in the type to compute in.
    pub graphs: Vec<Graph>,
    /// Sequence length.
    pub sequence: u32,
    /// Micro-batch size, in sequences.
    pub microbatch_size: u32,
    /// The whole model.
    pub model: ModelConfig,
    /// Ranks that share each matrix of a stage.
    pub tensor: u32,
    /// Context-parallel ranks.
    pub context: u32,
    /// Expert-parallel ranks.
    pub expert: u32,
    /// Whether tensor-parallel ranks hold whole experts, and each routes its own tokens.
    pub whole_experts: bool,
    /// Data-parallel replicas, each with its own microbatches.
    pub replicas: u32,
    /// What the copies, and the context-parallel ranks, shard.
    pub sharding: Sharding,
    /// Whether the optimizer states lie in host memory.
    pub optimizer_on_host: bool,
    /// Whether the moments of bf16 weights are in bf16.
    pub bf16_moments: bool,
    /// Ranks of a node in an expert-parallel group, where a token goes there once (`parallel.dispatch`).
    pub expert_node: Option<usize>,
    /// The field of the spec with number formats that no GPU runs.
    pub format_of_cpu: Option<&'static str>,
    /// Slices of a sequence, which go through the stages one after the other.
    pub slices: u32,
    /// Which optimizer updates the weights.
    pub optimizer: Optimizer,
    /// The weights that do not train.
    pub frozen: Frozen,
    /// The adapters that train.
    pub lora: Option<Lora>,
    /// Where attention stays within the documents of the data, the work of attention that the plan has for each
    /// microbatch of a step: the squares of the lengths of its documents. Of one replica where all have the same,
    /// else of all replicas one after the other.
    pub planned_work: Option<Vec<u64>>,
}

impl Workload {
    /// What `plan` has ranks do. With `precision` its stages compute in that type, else in the plan's own.
    ///
    /// # Errors
    /// [`Refusal`], where the plan has no model or its stages cannot be worked out.
    pub fn of_plan(plan: &Plan, precision: Option<Precision>) -> Result<Workload, Refusal> {
        let Work::Model(work) = &plan.spec.work else { return Err(Refusal::NoModel) };
        let workload = Workload::new(work, &plan.problem, &plan.program, precision)?;
        Ok(match in_precision(work, precision).dtype == work.dtype {
            true => workload.with_prediction_of(plan),
            // Times and bytes of another type say nothing of it.
            false => Workload { plan_digest: plan.digest(), ..workload },
        })
    }

    /// `plan` with ops that wait for their planned times, `slowdown` times; where none is given, as many times
    /// as make ops last 10 ms on average: the overhead of the runner is small compared with that.
    pub fn of_planned_times(plan: &Plan, slowdown: Option<u64>) -> Workload {
        const LONG_ENOUGH_NS: u64 = 10_000_000;
        let ops = plan.schedule.op_count().max(1) as u64;
        let busy: Nanos = plan.prediction.busy_ns.iter().sum();
        let slowdown = slowdown.unwrap_or_else(|| LONG_ENOUGH_NS.div_ceil((busy / ops).max(1)));
        let replicas = match &plan.spec.work {
            Work::Typed(_) => 1,
            Work::Model(work) => work.layout.data.max(1),
        };
        // A plan that was checked has factors that fit its problem.
        let problem = |replica: &Replica| plan.problem.with_factors(replica.factors.clone());
        let apart = plan.replicas.iter().map(|replica| problem(replica).unwrap_or_else(|_| plan.problem.clone()));
        let computation = Computation::PlannedTimes { slowdown: slowdown.max(1), replicas, apart: apart.collect() };
        Workload::without_prediction(&plan.problem, &plan.program, computation).with_prediction_of(plan)
    }

    /// The order of `plan`, with stages that another program brings in the place of those of its spec. Nothing of the
    /// spec counts but what its plan says: ranks, stages, microbatches, op lists, and the times beside which the
    /// trace lies.
    pub fn of_stages(plan: &Plan, staged: Staged) -> Workload {
        Workload::without_prediction(&plan.problem, &plan.program, Computation::Stages(staged))
            .with_prediction_of(plan)
    }

    fn without_prediction(problem: &Problem, program: &Program, computation: Computation) -> Workload {
        Workload {
            problem: problem.clone(),
            program: program.clone(),
            computation,
            plan_digest: String::new(),
            predicted_peak_bytes: vec![0; problem.ranks()],
            is_timed: false,
            epilogue: StepEpilogue::default(),
        }
    }

    fn with_prediction_of(self, plan: &Plan) -> Workload {
        let predicted_peak_bytes = plan.prediction.peak_bytes.clone();
        let epilogue = plan.step_epilogue().unwrap_or_default();
        Workload { plan_digest: plan.digest(), predicted_peak_bytes, is_timed: true, epilogue, ..self }
    }

    /// What a step takes by the plan's times, as transfers are placed and where `slots` messages of a channel may
    /// wait to be taken; nothing where no times are known. With fewer `processors` than ranks they take
    /// [turns](in_turns_ns).
    pub(super) fn predicted(&self, slots: usize, processors: usize) -> Option<Predicted> {
        // Every engine takes a group at once; ops of a pair run one after the other.
        let carrier = Carrier { grouped: true, slots };
        let timeline = self.is_timed.then(|| execute(&self.problem, &self.program, &[], carrier)).flatten()?;
        let (makespan_ns, ranks) = (timeline.makespan_ns(), self.world());
        // Without a model nothing follows the last op.
        let step_ns = self.epilogue.step_ns(&timeline).max(makespan_ns);
        if processors >= ranks {
            let bubble_ratio = Some(timeline.bubble_ratio(self.problem.objective()));
            return Some(Predicted { makespan_ns, step_ns, bubble_ratio });
        }
        let pipelines = ranks / self.problem.ranks().max(1);
        let ops = self.program.rows.iter().flatten().filter_map(|step| match step {
            Step::Compute(op) => Some(self.problem.duration(*op)),
            _ => None,
        });
        let ops = in_turns_ns(ops, pipelines, processors);
        let tails = self.epilogue.tails.iter().map(|tail| tail.optimizer_ns);
        let optimizer = in_turns_ns(tails, pipelines, processors);
        Some(Predicted {
            makespan_ns: makespan_ns.max(ops),
            step_ns: step_ns.max(ops.saturating_add(optimizer)),
            bubble_ratio: None,
        })
    }

    /// `program` for the stages into which `problem` cuts the model of `work`; without a prediction.
    ///
    /// # Errors
    /// As [`Workload::of_plan`].
    pub fn new(
        work: &ModelWork,
        problem: &Problem,
        program: &Program,
        precision: Option<Precision>,
    ) -> Result<Workload, Refusal> {
        let (slices, of_spec) = (problem.slices(), work.layout.slices.max(1) as usize);
        if slices != of_spec {
            return Err(Refusal::Slices { problem: slices, spec: of_spec });
        }
        if problem.microbatches() != work.microbatches as usize * slices {
            let (problem, spec) = (problem.microbatches() / slices, work.microbatches);
            return Err(Refusal::Microbatches { problem, spec });
        }
        let differs = slices == 1 && problem.differs() && work.batch.documents == Documents::Sequences;
        if work.batch.factors.is_some() || differs {
            return Err(Refusal::Differing);
        }
        let derived = derive(work, problem.placement().clone(), problem.chunks()).map_err(Refusal::Model)?;
        if derived.stages.len() != problem.stage_count() {
            return Err(Refusal::Stages { stages: problem.stage_count(), graphs: derived.stages.len() });
        }
        check_layout(work)?;
        // The layers are dealt as the plan's own format has them; only the arithmetic changes.
        let work = in_precision(work, precision);
        let computation = Computation::Model(ModelStages::new(&work, &derived.stages));
        Ok(Workload::without_prediction(problem, program, computation))
    }

    /// How many times the planned time an op takes; 1 where ops compute.
    pub fn slowdown(&self) -> u64 {
        match &self.computation {
            Computation::Model(_) | Computation::Stages(_) => 1,
            Computation::PlannedTimes { slowdown, .. } => *slowdown,
        }
    }

    /// The problem with the times of this replica.
    pub fn problem_of(&self, replica: usize) -> &Problem {
        match &self.computation {
            Computation::PlannedTimes { apart, .. } => apart.get(replica).unwrap_or(&self.problem),
            Computation::Model(_) | Computation::Stages(_) => &self.problem,
        }
    }

    /// Whether ops wait for their planned times instead of computing.
    pub fn only_waits(&self) -> bool {
        matches!(self.computation, Computation::PlannedTimes { .. })
    }

    /// What `rank` of the world takes after its last op, where ops only wait.
    pub fn planned_tail_ns(&self, rank: usize) -> Nanos {
        match &self.computation {
            Computation::Model(_) | Computation::Stages(_) => 0,
            Computation::PlannedTimes { .. } => {
                let tail = self.epilogue.tails.get(self.position(rank).rank).copied().unwrap_or_default();
                tail.reduce_ns.saturating_add(tail.optimizer_ns)
            }
        }
    }

    /// The formats in which ranks keep numbers in fewer bits than a CPU computes in.
    pub fn rounded(&self) -> Option<String> {
        let Computation::Model(model) = &self.computation else { return None };
        let has_bf16 = |graph: &Graph| graph.tensors.iter().any(|tensor| tensor.dtype == Dtype::Bf16);
        let bf16 = model.graphs.iter().any(has_bf16).then_some(Dtype::Bf16.name());
        let all: Vec<&str> = bf16.into_iter().chain(model.format_of_cpu).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Tokens of one training step; 0 where there are none that the runner knows of.
    pub fn step_tokens(&self) -> u64 {
        match &self.computation {
            Computation::Model(model) => model.microbatch_tokens() * self.step_microbatches() as u64,
            Computation::Stages(_) | Computation::PlannedTimes { .. } => 0,
        }
    }

    /// Microbatches of one training step, over all replicas: of whole sequences.
    pub fn step_microbatches(&self) -> usize {
        self.microbatches().saturating_mul(self.replicas())
    }

    /// Those of one replica.
    pub(super) fn microbatches(&self) -> usize {
        self.problem.microbatches() / self.problem.slices().max(1)
    }
}

impl ModelStages {
    /// How sequences are cut into slices.
    pub fn slicing(&self) -> Option<Slicing> {
        let Self { slices, sequence, model, .. } = *self;
        (slices > 1).then_some(Slicing { slices, sequence, model })
    }

    /// Tokens of one microbatch.
    pub fn microbatch_tokens(&self) -> u64 {
        u64::from(self.sequence) * u64::from(self.microbatch_size)
    }

    /// The type that the CPU computes in: numbers in bf16, FP8 or FP4 are widened for it, and rounded where they are kept.
    ///
    /// # Errors
    /// [`Refusal::Format`] where stages are in f64 and in another type.
    pub fn precision(&self) -> Result<Precision, Refusal> {
        let formats = self.graphs.iter().enumerate().flat_map(|(stage, graph)| {
            graph
                .tensors()
                .map(move |(_, tensor)| (stage, tensor.dtype))
                .filter(|(_, dtype)| !matches!(dtype, Dtype::I32 | Dtype::U8))
        });
        let mut first = None;
        for (stage, dtype) in formats {
            let computed = if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
            if *first.get_or_insert(computed) != computed {
                return Err(Refusal::Format { stage, dtype });
            }
        }
        Ok(if first == Some(Dtype::F64) { Precision::Double } else { Precision::Single })
    }

    fn new<'l>(work: &ModelWork, stages: impl IntoIterator<Item = &'l StageLayout>) -> ModelStages {
        ModelStages {
            graphs: stages.into_iter().map(|layout| graph_of(work, layout)).collect(),
            sequence: work.sequence,
            microbatch_size: work.microbatch_size,
            model: work.model,
            tensor: work.layout.form.tensor.max(1),
            context: work.layout.form.context.max(1),
            expert: work.layout.form.expert.max(1),
            whole_experts: work.layout.form.whole_experts && work.layout.form.tensor > 1,
            replicas: work.layout.data.max(1),
            sharding: Sharding::of(&work.layout),
            slices: work.layout.slices.max(1),
            optimizer_on_host: work.layout.offload_optimizer,
            bf16_moments: work.layout.bf16_moments,
            format_of_cpu: work.format_of_cpu(),
            expert_node: work.experts_by_node(),
            optimizer: work.layout.optimizer,
            frozen: work.layout.form.frozen,
            lora: work.layout.form.lora,
            planned_work: planned_work(work),
        }
    }
}

/// The work of attention within documents, as `work` says them; nothing where sequences are whole.
fn planned_work(work: &ModelWork) -> Option<Vec<u64>> {
    let of = |lengths: &Vec<u32>| lengths.iter().map(|length| u64::from(*length).pow(2)).sum();
    match work.batch.documents.packed(work.bins(), work.sequence) {
        Documents::OfMicrobatches(lists) => Some(lists.iter().map(of).collect()),
        Documents::OfReplicas(replicas) => Some(replicas.iter().flatten().map(of).collect()),
        _ => None,
    }
}

/// `work` as it is computed, all in one type where that is asked for.
fn in_precision(work: &ModelWork, precision: Option<Precision>) -> ModelWork {
    let dtype = match precision {
        None => work.dtype,
        Some(Precision::Single) => Dtype::F32,
        Some(Precision::Double) => Dtype::F64,
    };
    let mut work = ModelWork { dtype, ..work.clone() };
    if precision.is_some() {
        (work.layout.form.matmul_dtype, work.layout.form.bf16_gradients, work.layout.bf16_moments) =
            (None, false, false);
    }
    work
}
