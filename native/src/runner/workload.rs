//! What is to be run, and whether it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use pipeplan_core::base::fields::Faults;
use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::check::{self, Violation};
use pipeplan_core::estimate::derive::{derive, graph_of};
use pipeplan_core::estimate::step::Ends;
use pipeplan_core::graph::layout::{Dispatch, ReduceGradients};
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::{Graph, Kernel, Tensor};
use pipeplan_core::model::StageLayout;
use pipeplan_core::model::{Dtype, ModelConfig};
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::verdict;
use pipeplan_core::problem::Problem;
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::{Program, Step, Transport, Way};
use pipeplan_core::simulate::timeline::in_turns_ns;
use pipeplan_core::spec::{ModelWork, Spec, Work};
use serde_json::Value;

use super::checkpoint::{self, Checkpoint, CheckpointError, Manifest, Reader, Together, Writer};
use super::data::{BYTE_VOCABULARY, Batches, DataError};
use super::gradients::{Places, Position, places, stages_held};
use super::{Device, Precision, RunOptions};
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::mesh::{Mesh, MeshError};
use crate::transport::collectives::Group;

/// Most ranks of a run: every two of them have a mailbox for each other.
const MAX_WORLD: usize = 1024;

/// What carries messages between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// Mailboxes with [`RunOptions::transport`]'s slots.
    Threads,
    /// Links that take every send at once.
    Processes,
}

/// A plan as ranks execute it: which stage is where, what each rank does, and what each stage computes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Ranks, stages and where they are.
    pub problem: Problem,
    /// What each rank executes in a training step.
    pub program: Program,
    /// What the ops are.
    pub computation: Computation,
    /// The digest of the plan, for the trace.
    pub plan_digest: String,
    /// The bytes that the plan predicts each rank to hold at most.
    pub predicted_peak_bytes: Vec<Bytes>,
    /// Whether times are predicted, or made up for a test.
    pub is_timed: bool,
    /// What ends its steps by the plan's times; nothing where its costs are typed or no times are known.
    pub ends: Ends,
}

/// What a step takes by the plan's times.
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
    /// A model's operators, on the CPU.
    Model(ModelStages),
    /// Nothing: each op waits for its planned time.
    PlannedTimes {
        /// How many times the planned time, at least 1. Measured times are divided by it.
        slowdown: u64,
        /// Copies of the whole pipeline, at least 1.
        replicas: u32,
    },
}

/// A model cut into stages.
#[derive(Clone, Debug)]
pub struct ModelStages {
    /// The operators of each stage, in the type to compute in.
    pub graphs: Vec<Graph>,
    /// Tokens of one sequence.
    pub sequence: u32,
    /// Sequences of one microbatch.
    pub microbatch_size: u32,
    /// The whole model.
    pub model: ModelConfig,
    /// Ranks that share each matrix of a stage.
    pub tensor: u32,
    /// Ranks that each hold a part of every sequence.
    pub context: u32,
    /// Ranks that a layer's experts are dealt to.
    pub expert: u32,
    /// Whether ranks that share matrices hold whole experts, and each routes tokens of its own.
    pub whole_experts: bool,
    /// Copies of the whole pipeline, each with microbatches of its own.
    pub replicas: u32,
    /// Whether the copies, and the ranks that hold parts of the same sequences, share out the optimizer's state.
    pub shares_optimizer: bool,
    /// Whether that state lies in the host's memory.
    pub optimizer_on_host: bool,
}

/// Why a workload cannot be run. Nothing has been started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The plan is of typed costs.
    #[error(
        "the plan was made from typed costs, so there is no model to train: plan a spec with a `[model]`, such \
         as tiny-llama, or run the planned times instead (`--backend modelled`)"
    )]
    NoModel,
    /// The program is not valid, or would hang.
    #[error("the program cannot be run:{}", list(violations))]
    Invalid {
        /// What is wrong with it.
        violations: Vec<Violation>,
    },
    /// The plan's problem is not its spec's.
    #[error("the plan schedules {problem} microbatches, and its spec has {spec}")]
    Microbatches {
        /// Microbatches of the problem.
        problem: usize,
        /// Microbatches of the spec.
        spec: u32,
    },
    /// The model cannot be cut into the plan's stages.
    #[error("the plan's stages do not follow from its spec:\n{0}")]
    Model(Faults),
    /// More than the machine has.
    #[error(
        "the ranks of this plan need {} MiB at once, and this machine has {} MiB left: plan a smaller model, or \
         fewer or smaller microbatches", needed >> 20, available >> 20
    )]
    Memory {
        /// Bytes of all ranks.
        needed: Bytes,
        /// Bytes that the machine can still give.
        available: Bytes,
    },
    /// More on the host than it has.
    #[error(
        "training.offload and .offload_optimizer keep {} MiB in the host's memory, over all ranks, and this machine has {} MiB \
         left: let fewer layers keep what they keep there, or the optimizer's state stay on the device", needed >> 20, available >> 20
    )]
    HostMemory {
        /// Bytes of all ranks.
        needed: Bytes,
        /// Bytes that the machine can still give.
        available: Bytes,
    },
    /// The graphs do not fit the problem.
    #[error("the plan has {stages} stages, and {graphs} of them have operators")]
    Stages {
        /// Stages of the problem.
        stages: usize,
        /// Graphs given.
        graphs: usize,
    },
    /// Experts have less room than tokens.
    #[error(
        "stage {stage} has {rows} rows for {copies} copies of tokens: write training.expert_imbalance = 1 or more"
    )]
    ExpertRows {
        /// The stage.
        stage: usize,
        /// Rows of its experts.
        rows: u64,
        /// Tokens times the experts that see each.
        copies: u64,
    },
    /// The device cannot be used.
    #[error("{reason}")]
    Device {
        /// Why.
        reason: String,
    },
    /// A number format that cards do not compute in here.
    #[error("stage {stage} is in f64, and GPUs compute in f32 or bf16: ask for f32")]
    CardFormat {
        /// The stage.
        stage: usize,
    },
    /// A number format that the backend does not compute in.
    #[error("the CPU computes in f32 or f64, and the plan is in {}: ask for `--precision f32`", dtype.name())]
    Format {
        /// The stage.
        stage: usize,
        /// Its format.
        dtype: Dtype,
    },
    /// Gradients or weights shared out among replicas.
    #[error(
        "the plan shares out gradients or weights among its replicas (zero = {zero}), and this runner only the \
         optimizer's state: plan with zero = 1"
    )]
    Zero {
        /// The plan's stage of ZeRO.
        zero: u32,
    },
    /// The optimizer's state shared out in groups of replicas.
    #[error(
        "the plan shares out the optimizer's state among groups of {shard} replicas (parallel.shard), and this runner among \
         all: plan without it"
    )]
    Shard {
        /// Of a group.
        shard: u32,
    },
    /// Gradients are reduced for each microbatch.
    #[error(
        "the plan reduces gradients over its replicas for each microbatch (parallel.reduce_gradients = \
         \"each-microbatch\"), and this runner once a step: plan with parallel.reduce_gradients = \
         \"after-accumulation\""
    )]
    EachMicrobatch,
    /// Copies of tokens go once to each node.
    #[error(
        "the plan sends copies of tokens once to each node (parallel.dispatch = \"once-per-node\"), and this runner each \
         copy by itself: plan with parallel.dispatch = \"each-copy\""
    )]
    OncePerNode,
    /// Pairs that compute while one of them exchanges.
    #[error(
        "the plan has exchanges of tokens behind the other op of a pair (parallel.overlap_exchanges = true), and this runner \
         runs the two one after the other: plan without it"
    )]
    OverlapExchanges,
    /// A number format that no backend computes in.
    #[error("the plan says {said}, which is planned and not run: plan without it")]
    NumberFormat {
        /// The field and its value.
        said: &'static str,
    },
    /// More ranks than threads are good for.
    #[error("{replicas} replicas of {ranks} ranks are more than {MAX_WORLD} ranks: plan fewer replicas")]
    TooManyRanks {
        /// Copies of the pipeline.
        replicas: usize,
        /// Ranks of one.
        ranks: usize,
    },
    /// A norm that nothing can have.
    #[error("gradients cannot be clipped to a norm of {norm}: give a number above 0")]
    ClipNorm {
        /// The norm, as text.
        norm: String,
    },
    /// Bytes do not fit the vocabulary.
    #[error("text is read as bytes, which needs a vocabulary of 256 or more, and the model has {vocabulary}")]
    Vocabulary {
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// The text does not do.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint from which this run cannot go on, or a place where none can be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing is trained.
    #[error("planned times are run, so there is nothing to write into a checkpoint or to go on from")]
    NothingToSave,
    /// No steps.
    #[error("a run needs at least 1 step")]
    NoSteps,
    /// Another number of processes than ranks.
    #[error("the plan is for {ranks} ranks, and {world} processes were started: start one for each rank")]
    World {
        /// Ranks of the plan.
        ranks: usize,
        /// Processes.
        world: usize,
    },
    /// Processes that do not run the same thing.
    #[error(
        "rank {rank} runs another plan, text or options than rank 0: give all processes the same files and arguments"
    )]
    Disagree {
        /// The first rank that differs.
        rank: usize,
    },
    /// Another rank has refused the run.
    #[error("rank {rank} has refused the run, and says why")]
    Elsewhere {
        /// That rank.
        rank: usize,
        /// Its exit status, with which all end.
        status: u8,
    },
    /// The machine has no thread left.
    #[error("rank {rank} has no thread: {error}")]
    NoThread {
        /// The rank.
        rank: usize,
        /// What the machine says.
        error: String,
    },
}

impl Refusal {
    /// The exit status for it: 1 where a place for checkpoints cannot be written, since that is no fault of the input, and
    /// 2 else.
    pub fn exit_status(&self) -> u8 {
        match self {
            Refusal::Checkpoint(error) if error.is_of_writing() => 1,
            Refusal::Elsewhere { status, .. } => *status,
            _ => 2,
        }
    }
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("\n  {violation}")).collect()
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

    /// Whether no plan of `spec` could be run on `device`, whatever its schedule: what is known before a long search.
    ///
    /// # Errors
    /// [`Refusal`], as a run of the plan would end with.
    pub fn check_spec(spec: &Spec, precision: Option<Precision>, device: Device) -> Result<(), Refusal> {
        let Work::Model(work) = &spec.work else { return Err(Refusal::NoModel) };
        check_layout(work)?;
        let work = in_precision(work, precision);
        let whole = StageLayout { layers: 0..work.model.layers, embedding: true, head: true };
        ModelStages::new(&work, [&whole]).check(device)
    }

    /// `plan` with ops that wait for their planned times, `slowdown` times; where none is given, as many times
    /// as make ops last 10 ms on average, beside which the runner's own time is small.
    pub fn of_planned_times(plan: &Plan, slowdown: Option<u64>) -> Workload {
        const LONG_ENOUGH_NS: u64 = 10_000_000;
        let ops = plan.schedule.op_count().max(1) as u64;
        let busy: Nanos = plan.prediction.busy_ns.iter().sum();
        let slowdown = slowdown.unwrap_or_else(|| LONG_ENOUGH_NS.div_ceil((busy / ops).max(1)));
        let replicas = match &plan.spec.work {
            Work::Typed(_) => 1,
            Work::Model(work) => work.layout.data.max(1),
        };
        let computation = Computation::PlannedTimes { slowdown: slowdown.max(1), replicas };
        Workload::without_prediction(&plan.problem, &plan.program, computation).with_prediction_of(plan)
    }

    fn without_prediction(problem: &Problem, program: &Program, computation: Computation) -> Workload {
        Workload {
            problem: problem.clone(),
            program: program.clone(),
            computation,
            plan_digest: String::new(),
            predicted_peak_bytes: vec![0; problem.ranks()],
            is_timed: false,
            ends: Ends::default(),
        }
    }

    fn with_prediction_of(self, plan: &Plan) -> Workload {
        let predicted_peak_bytes = plan.prediction.peak_bytes.clone();
        let ends = plan.step_ends().unwrap_or_default();
        Workload { plan_digest: plan.digest(), predicted_peak_bytes, is_timed: true, ends, ..self }
    }

    /// What a step takes by the plan's times, as transfers are placed and where `slots` messages of a channel may wait to be
    /// taken; nothing where no times are known. With fewer `processors` than ranks they take [turns](in_turns_ns).
    pub(super) fn predicted(&self, slots: usize, processors: usize) -> Option<Predicted> {
        // Every engine takes a group at once; ops of a pair run one after the other.
        let carrier = Carrier { grouped: true, slots };
        let timeline = self.is_timed.then(|| execute(&self.problem, &self.program, &[], carrier)).flatten()?;
        let (makespan_ns, ranks) = (timeline.makespan_ns(), self.world());
        // Without a model nothing follows the last op.
        let step_ns = self.ends.step_ns(&timeline).max(makespan_ns);
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
        let tails = self.ends.tails.iter().map(|tail| tail.optimizer_ns);
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
        if problem.microbatches() != work.microbatches as usize {
            let (problem, spec) = (problem.microbatches(), work.microbatches);
            return Err(Refusal::Microbatches { problem, spec });
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
            Computation::Model(_) => 1,
            Computation::PlannedTimes { slowdown, .. } => *slowdown,
        }
    }

    /// Whether ops wait for their planned times instead of computing.
    pub fn only_waits(&self) -> bool {
        matches!(self.computation, Computation::PlannedTimes { .. })
    }

    /// What `rank` of the world takes after its last op, where ops only wait.
    pub fn planned_tail_ns(&self, rank: usize) -> Nanos {
        match &self.computation {
            Computation::Model(_) => 0,
            Computation::PlannedTimes { .. } => {
                let tail = self.ends.tails.get(self.position(rank).rank).copied().unwrap_or_default();
                tail.reduce_ns.saturating_add(tail.optimizer_ns)
            }
        }
    }

    /// Tokens of one training step; 0 where nothing is trained.
    pub fn step_tokens(&self) -> u64 {
        match &self.computation {
            Computation::Model(model) => model.microbatch_tokens() * self.step_microbatches() as u64,
            Computation::PlannedTimes { .. } => 0,
        }
    }

    /// Copies of the pipeline.
    pub fn replicas(&self) -> usize {
        match &self.computation {
            Computation::Model(ModelStages { replicas, .. }) | Computation::PlannedTimes { replicas, .. } => {
                (*replicas).max(1) as usize
            }
        }
    }

    /// Ranks that share each matrix of a stage. Where ops only wait, one rank stands for all of them.
    pub fn members(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.tensor.max(1) as usize,
            Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Ranks that each hold a part of every sequence. Where ops only wait, one rank stands for all of them.
    pub fn parts(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.context.max(1) as usize,
            Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Ranks that a layer's experts are dealt to. Where ops only wait, one rank stands for all of them.
    pub fn experts(&self) -> usize {
        match &self.computation {
            Computation::Model(model) => model.expert.max(1) as usize,
            Computation::PlannedTimes { .. } => 1,
        }
    }

    /// Ranks that make one rank of one pipeline together.
    fn ranks_together(&self) -> usize {
        self.parts().saturating_mul(self.members())
    }

    /// Ranks of all replicas.
    pub fn world(&self) -> usize {
        self.problem.ranks().saturating_mul(self.replicas()).saturating_mul(self.ranks_together())
    }

    /// Microbatches of one training step, over all replicas.
    pub fn step_microbatches(&self) -> usize {
        self.problem.microbatches().saturating_mul(self.replicas())
    }

    /// Where rank `rank` of the world stands.
    pub fn position(&self, rank: usize) -> Position {
        let (ranks, replicas) = (self.problem.ranks(), self.replicas());
        let (parts, members) = (self.parts(), self.members());
        Position {
            rank: rank / (replicas * parts * members),
            ranks,
            replica: rank / (parts * members) % replicas,
            replicas,
            part: rank / members % parts,
            parts,
            member: rank % members,
            members,
            experts: self.experts(),
            whole_experts: matches!(&self.computation, Computation::Model(model) if model.whole_experts),
            shares_optimizer: self.shares_optimizer(),
        }
    }

    /// Whether ranks that hold the same of every weight share out the optimizer's state.
    fn shares_optimizer(&self) -> bool {
        let copies = self.replicas() * self.parts();
        matches!(&self.computation, Computation::Model(model) if model.shares_optimizer && copies > 1)
    }

    /// Where all ranks of the world stand.
    pub fn positions(&self) -> Vec<Position> {
        (0..self.world()).map(|rank| self.position(rank)).collect()
    }

    /// The mesh of the run's ranks: the axes `pp`, `dp`, `cp` and `tp`, the last of which runs fastest.
    ///
    /// # Errors
    /// [`MeshError`] where there are more ranks than any run has.
    pub fn mesh(&self) -> Result<Mesh, MeshError> {
        let (pp, dp) = (self.problem.ranks(), self.replicas());
        Mesh::of_sizes(&[("pp", pp), ("dp", dp), ("cp", self.parts()), ("tp", self.members())])
    }

    /// Sender and receiver of all messages of a training step, over the whole world, each pair once, in order.
    pub fn links(&self) -> Vec<(usize, usize)> {
        let mut links = BTreeSet::new();
        for rank in 0..self.world() {
            let position = self.position(rank);
            for step in self.row(rank) {
                let messages = match step {
                    Step::Transfer(messages) | Step::Start(messages) => messages.as_slice(),
                    _ => &[],
                };
                for message in messages.iter().filter(|message| message.way == Way::Send) {
                    let peer = self.problem.rank_of(message.peer_stage(), message.microbatch as usize);
                    links.insert((rank, position.in_world(peer)));
                }
            }
        }
        links.into_iter().collect()
    }

    /// What rank `rank` of the world executes.
    pub fn row(&self, rank: usize) -> &[Step] {
        self.program.rows.get(self.position(rank).rank).map_or(&[], Vec::as_slice)
    }

    /// Where the model's weights lie in a pipeline.
    pub fn places(&self) -> Places {
        match &self.computation {
            Computation::Model(model) => places(&self.problem, &model.graphs),
            Computation::PlannedTimes { .. } => Places::new(),
        }
    }

    /// Whether all is there that a run needs; cuts the text that a model trains on.
    pub(super) fn check(&self, options: &RunOptions, carries: Carries) -> Result<Option<Batches>, Refusal> {
        if options.steps == 0 {
            return Err(Refusal::NoSteps);
        }
        self.check_program(options, carries)?;
        if self.world() > MAX_WORLD {
            let (ranks, replicas) = (self.problem.ranks() * self.ranks_together(), self.replicas());
            return Err(Refusal::TooManyRanks { replicas, ranks });
        }
        let Computation::Model(model) = &self.computation else {
            let saves = options.saving.is_some() || options.resume.is_some();
            return if saves { Err(Refusal::NothingToSave) } else { Ok(None) };
        };
        if let Some(norm) = options.clip_norm.filter(|norm| !(*norm > 0.0 && norm.is_finite())) {
            return Err(Refusal::ClipNorm { norm: norm.to_string() });
        }
        let stages = self.problem.stage_count();
        if model.graphs.len() != stages {
            return Err(Refusal::Stages { stages, graphs: model.graphs.len() });
        }
        model.check(options.device)?;
        if matches!(options.device, Device::Cuda(_)) {
            // The card's memory is not the machine's; it says itself when it is full. Which processes share a machine is not
            // known here: each looks for itself.
            check_device(options, self.world())?;
            if carries == Carries::Threads {
                self.check_host_memory()?;
            }
        } else {
            self.check_memory()?;
        }
        let (sequence, microbatch_size) = (model.sequence as usize, model.microbatch_size as usize);
        let ahead = 1 + model.model.variant.multi_token as usize;
        let text = options.text.clone();
        let batches = Batches::new(text, [sequence, ahead], microbatch_size, self.step_microbatches(), options.seed)?;
        if let Some(saving) = &options.saving {
            std::fs::create_dir_all(&saving.folder).map_err(CheckpointError::file(&saving.folder, "made"))?;
        }
        if let Some(checkpoint) = &options.resume {
            self.check_resume(model, checkpoint, options, &batches)?;
        }
        Ok(Some(batches))
    }

    /// Whether the engine completes the program. Every engine takes a group at once, and keeps some sends until they are
    /// taken: so it completes whatever groups alone or buffers alone do.
    fn check_program(&self, options: &RunOptions, carries: Carries) -> Result<(), Refusal> {
        let (problem, program) = (&self.problem, &self.program);
        let buffered = match carries {
            Carries::Threads => options.transport.slots,
            Carries::Processes => usize::MAX,
        };
        let grouped = check::check_program(problem, program, Transport::Grouped);
        let Err(violations) = grouped else { return Ok(()) };
        let stuck = |violation: &Violation| matches!(violation, Violation::Stuck(_));
        if violations.iter().all(stuck) && buffered > 0 {
            let transport = Transport::Buffered { slots: buffered };
            return check::check_program(problem, program, transport)
                .map_err(|violations| Refusal::Invalid { violations });
        }
        Err(Refusal::Invalid { violations })
    }

    /// Whether going on from `checkpoint` gives what a run without a break gives.
    fn check_resume(
        &self,
        model: &ModelStages,
        checkpoint: &Checkpoint,
        options: &RunOptions,
        batches: &Batches,
    ) -> Result<(), Refusal> {
        let other = |what: String| CheckpointError::OtherRun { path: checkpoint.folder.clone(), what };
        let (was, is) = (&checkpoint.manifest, self.manifest(model, options, batches));
        if was.step >= options.steps {
            let what = format!("it has {} training steps, and {} are asked for", was.step, options.steps);
            return Err(other(format!("{what}: give more steps, since those before it count")).into());
        }
        let differs = [
            ("seed", was.seed.to_string(), is.seed.to_string()),
            ("text", was.text_digest.clone(), is.text_digest),
            ("tokens of a sequence", was.sequence.to_string(), is.sequence.to_string()),
            ("sequences of a training step", was.step_sequences.to_string(), is.step_sequences.to_string()),
        ];
        if let Some((what, was, is)) = differs.into_iter().find(|(_, was, is)| was != is) {
            return Err(other(format!("its {what} is {was}, and this run's is {is}: give the same")).into());
        }
        // Its number format may be another one; whatever else the model is decides what is computed. What it says of itself
        // once more need not be there.
        let same = |value: &Value| {
            let mut value = value.clone();
            for field in ["torch_dtype", checkpoint::OWN_WORDS] {
                value.as_object_mut().map(|fields| fields.remove(field));
            }
            value
        };
        if same(&was.model) != same(&is.model) {
            let differs = differences(&same(&was.model), &same(&is.model));
            return Err(other(format!("its model is another one: {differs}; plan the same model")).into());
        }
        Ok(Reader::open(checkpoint)?.check(&self.places())?)
    }

    /// What checkpoints say of this run.
    fn manifest(&self, model: &ModelStages, options: &RunOptions, batches: &Batches) -> Manifest {
        let precision = if model.precision() == Ok(Precision::Double) { "f64" } else { "f32" };
        Manifest {
            format: checkpoint::FORMAT.to_string(),
            version: checkpoint::VERSION,
            step: options.first_step(),
            seed: options.seed,
            precision: precision.to_string(),
            plan_digest: self.plan_digest.clone(),
            text_digest: batches.digest(),
            sequence: model.sequence,
            step_sequences: self.step_microbatches() as u64 * u64::from(model.microbatch_size),
            optimizer: options.optimizer,
            clip_norm: options.clip_norm,
            model: checkpoint::config(&model.model, precision),
            layout: checkpoint::Layout {
                pipeline: self.problem.ranks(),
                stages: self.problem.stage_count(),
                data: self.replicas(),
                context: self.parts(),
                tensor: self.members(),
                expert: self.experts(),
                shares_optimizer: self.shares_optimizer(),
            },
            weights: BTreeMap::new(),
            optimizer_state: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// What writes the part of rank `rank` of the world of each checkpoint.
    pub(super) fn writer(&self, rank: usize, options: &RunOptions, batches: &Batches) -> Option<Writer> {
        let (Computation::Model(model), Some(saving)) = (&self.computation, &options.saving) else { return None };
        let position = self.position(rank);
        Some(Writer {
            saving: saving.clone(),
            position,
            places: self.places(),
            everyone: Group::of_all(rank, self.world()),
            together: Together::new(position, false),
            experts_together: position.deals_experts().then(|| Together::new(position, true)),
            manifest: self.manifest(model, options, batches),
            // Where nothing has been trained, there is nothing to write.
            written: options.first_step(),
        })
    }

    /// Refuses what the machine's memory cannot hold, where the machine says how much it has. What devices of this machine's
    /// memory keep on the host is in the same.
    fn check_memory(&self) -> Result<(), Refusal> {
        let on_devices = self.of_world(&self.predicted_peak_bytes);
        let needed = on_devices.saturating_add(self.of_world(&self.host_bytes()));
        match available_bytes() {
            Some(available) if needed > available => Err(Refusal::Memory { needed, available }),
            _ => Ok(()),
        }
    }

    /// The same of what cards keep on the host: memory that does not move cannot be taken beyond what there is, and a machine
    /// that tries to stands still.
    fn check_host_memory(&self) -> Result<(), Refusal> {
        let needed = self.of_world(&self.host_bytes());
        match available_bytes() {
            Some(available) if needed > available => Err(Refusal::HostMemory { needed, available }),
            _ => Ok(()),
        }
    }

    /// Over all ranks, of which those of a pipeline have `bytes`.
    fn of_world(&self, bytes: &[Bytes]) -> Bytes {
        let pipeline = bytes.iter().fold(0, |sum: Bytes, bytes| sum.saturating_add(*bytes));
        pipeline.saturating_mul(self.replicas() as u64).saturating_mul(self.ranks_together() as u64)
    }

    /// By rank of a pipeline: the most of the host's memory that its stages keep at once, and what its optimizer keeps there.
    pub fn host_bytes(&self) -> Vec<Bytes> {
        let Computation::Model(model) = &self.computation else { return vec![0; self.problem.ranks()] };
        let behind: Vec<_> = model.graphs.iter().map(|graph| Lifetimes::of(graph).on_host(graph)).collect();
        let of_rank = |(rank, row): (usize, &Vec<Step>)| {
            let ops = row.iter().filter_map(|step| if let Step::Compute(op) = step { Some(*op) } else { None });
            let kept = verdict::on_host(&behind, ops);
            kept.saturating_add(if model.optimizer_on_host { self.state_bytes(model, rank) } else { 0 })
        };
        self.program.rows.iter().enumerate().map(of_rank).collect()
    }

    /// What the optimizer of `rank` of a pipeline keeps of its share: both moments, and the master weights of bf16 ones.
    fn state_bytes(&self, model: &ModelStages, rank: usize) -> Bytes {
        let shares = Position { rank, ..self.position(0) }.shares();
        let stages = stages_held(&self.problem, rank);
        let weights = stages.iter().filter_map(|stage| model.graphs.get(*stage)).flat_map(Graph::weights);
        let state = |weight: &Tensor| {
            let mine = shares.of(weight).of(weight.elements() as usize).len() as u64;
            mine * weight.dtype.bytes().max(Dtype::F32.bytes()) * if weight.dtype == Dtype::Bf16 { 3 } else { 2 }
        };
        weights.map(|(_, weight)| state(weight)).sum()
    }

    /// Whether a layer of `rank` of a pipeline keeps what it keeps in the host's memory.
    pub fn copies_to_host(&self, rank: usize) -> bool {
        let Computation::Model(model) = &self.computation else { return false };
        let stages = stages_held(&self.problem, rank);
        let graphs = stages.iter().filter_map(|stage| model.graphs.get(*stage));
        graphs.flat_map(|graph| &graph.operators).any(|operator| operator.kernel.copies())
    }

    /// How much longer ranks may need to get ready than others that keep nothing on the host: its memory is pinned page by
    /// page, some gigabytes a second, perhaps for all ranks of a machine in turn.
    pub fn pinning(&self, device: Device) -> Duration {
        const BYTES_PER_S: Bytes = 2_000_000_000;
        const OF_MACHINE: usize = 8;
        let most = self.host_bytes().into_iter().max().unwrap_or(0);
        match device {
            Device::Cuda(_) => {
                Duration::from_secs(most.saturating_mul(self.world().min(OF_MACHINE) as u64) / BYTES_PER_S)
            }
            _ => Duration::ZERO,
        }
    }
}

impl ModelStages {
    /// Tokens of one microbatch.
    pub fn microbatch_tokens(&self) -> u64 {
        u64::from(self.sequence) * u64::from(self.microbatch_size)
    }

    /// The type that the stages are in.
    ///
    /// # Errors
    /// [`Refusal::Format`] where it is none that the CPU computes in, or not the same everywhere.
    pub fn precision(&self) -> Result<Precision, Refusal> {
        let formats = self.graphs.iter().enumerate().flat_map(|(stage, graph)| {
            graph
                .tensors()
                .map(move |(_, tensor)| (stage, tensor.dtype))
                .filter(|(_, dtype)| !matches!(dtype, Dtype::I32 | Dtype::U8))
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
            shares_optimizer: work.layout.zero == 1,
            optimizer_on_host: work.layout.offload_optimizer,
        }
    }

    fn check(&self, device: Device) -> Result<(), Refusal> {
        for (stage, graph) in self.graphs.iter().enumerate() {
            for operator in
                graph.operators.iter().filter(|operator| matches!(operator.kernel, Kernel::Dispatch { .. }))
            {
                let copies = operator.inputs.get(1).map_or(0, |chosen| graph[chosen.tensor].elements());
                let rows = operator.outputs.first().and_then(|rows| graph[*rows].shape.first()).copied().unwrap_or(0);
                if rows < copies {
                    return Err(Refusal::ExpertRows { stage, rows, copies });
                }
            }
        }
        match device {
            Device::Cpu => self.precision().map(|_| ())?,
            Device::Cuda(_) | Device::Emulated => self.check_card_formats()?,
        }
        self.check_vocabulary()
    }

    /// A card computes in f32 or bf16.
    fn check_card_formats(&self) -> Result<(), Refusal> {
        for (stage, graph) in self.graphs.iter().enumerate() {
            if graph.tensors.iter().any(|tensor| tensor.dtype == Dtype::F64) {
                return Err(Refusal::CardFormat { stage });
            }
        }
        Ok(())
    }

    fn check_vocabulary(&self) -> Result<(), Refusal> {
        let vocabulary = u64::from(self.model.vocab);
        if vocabulary < BYTE_VOCABULARY { Err(Refusal::Vocabulary { vocabulary }) } else { Ok(()) }
    }
}

/// The fields in which the models `there`, of a checkpoint, and `here`, of a plan, differ, with what both say.
fn differences(there: &Value, here: &Value) -> String {
    let fields = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let (there, here) = (fields(there), fields(here));
    let names: BTreeSet<&String> = there.keys().chain(here.keys()).collect();
    let says = |value: Option<&Value>| value.map_or_else(|| "not said".to_string(), Value::to_string);
    let differing = names.into_iter().filter_map(|name| {
        let (was, is) = (there.get(name), here.get(name));
        (was != is).then(|| format!("{name} is {} there and {} in the plan", says(was), says(is)))
    });
    differing.collect::<Vec<_>>().join(", ")
}

/// Whether gradients and states are shared out in a way that is run.
fn check_layout(work: &ModelWork) -> Result<(), Refusal> {
    if work.layout.zero > 1 && work.layout.copies() > 1 {
        return Err(Refusal::Zero { zero: work.layout.zero });
    }
    if work.layout.reduces_gradients() == ReduceGradients::EachMicrobatch && work.layout.copies() > 1 {
        return Err(Refusal::EachMicrobatch);
    }
    if let Some(shard) = work.layout.shard
        && work.layout.sharers(work.layout.copies()) < work.layout.copies()
    {
        return Err(Refusal::Shard { shard });
    }
    if work.layout.dispatch == Dispatch::OncePerNode && work.layout.form.expert > 1 {
        return Err(Refusal::OncePerNode);
    }
    if work.layout.overlap_exchanges {
        return Err(Refusal::OverlapExchanges);
    }
    work.format_not_run().map_or(Ok(()), |said| Err(Refusal::NumberFormat { said }))
}

/// `work` as it is computed where that is not in its own format.
fn in_precision(work: &ModelWork, precision: Option<Precision>) -> ModelWork {
    let dtype = match precision {
        None => work.dtype,
        Some(Precision::Single) => Dtype::F32,
        Some(Precision::Double) => Dtype::F64,
    };
    ModelWork { dtype, ..work.clone() }
}

/// Whether the device can be used at all, so that a run is refused before its ranks start.
#[cfg(feature = "cuda")]
fn check_device(options: &RunOptions, ranks: usize) -> Result<(), Refusal> {
    let portion = options.split_gpu.then_some(cuda::card::Portion { part: 0, parts: ranks });
    let open = cuda::open_as(options.device, cuda::Opening { portion, ..cuda::Opening::default() });
    open.map(|_| ()).map_err(|error| Refusal::Device { reason: error.to_string() })
}

#[cfg(not(feature = "cuda"))]
fn check_device(_: &RunOptions, _: usize) -> Result<(), Refusal> {
    let reason = "this binary was built without the feature `cuda`".to_string();
    Err(Refusal::Device { reason })
}

/// Memory that Linux can still give to programs, and their container to this one; elsewhere unknown.
pub(crate) fn available_bytes() -> Option<Bytes> {
    let machine = || {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kibibytes: Bytes = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    machine().into_iter().chain(left_in_container(Path::new("/sys/fs/cgroup"))).min()
}

/// What the control group (version 2) whose files are in `group` may still take; none where it has no limit. Files that are
/// kept in memory make room.
fn left_in_container(group: &Path) -> Option<Bytes> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let limit: Bytes = read("memory.max")?.trim().parse().ok()?;
    let taken: Bytes = read("memory.current")?.trim().parse().ok()?;
    let files = |stat: String| -> Bytes {
        let of = |line: &str| {
            let (name, bytes) = line.split_once(' ')?;
            matches!(name, "inactive_file" | "active_file").then(|| bytes.trim().parse().ok())?
        };
        stat.lines().filter_map(of).fold(0, Bytes::saturating_add)
    };
    let files = read("memory.stat").map_or(0, files);
    Some(limit.saturating_sub(taken.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a container has left is its limit without what programs hold; what it keeps of files makes room. One without a limit,
    /// and a machine without containers, say nothing.
    #[test]
    fn a_container_says_what_it_has_left() {
        let group = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).expect("written");
        assert_eq!(left_in_container(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(left_in_container(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(left_in_container(group.path()), Some(300));
        write("memory.stat", "anon 400\nfile 300\nactive_file 100\ninactive_file 150\nshmem 50\n");
        assert_eq!(left_in_container(group.path()), Some(550));
        write("memory.current", "1500\n");
        write("memory.stat", "active_file none\n");
        assert_eq!(left_in_container(group.path()), Some(0));
    }
}
