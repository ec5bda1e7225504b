//! Why a workload cannot be run.

use pipeplan_core::base::fields::Faults;
use pipeplan_core::base::units::Bytes;
use pipeplan_core::check::Violation;
use pipeplan_core::model::Dtype;
use pipeplan_core::plan::PlanFileError;

use super::ranks::MAX_WORLD;
use crate::runner::checkpoint::CheckpointError;
use crate::runner::data::DataError;

/// Why a workload cannot run. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Tokens that are not to be predicted.
    #[error("the data has loss masks (labels of -100, or prompts), which run {why}")]
    Masks {
        /// Where they run.
        why: &'static str,
    },
    /// Nothing to evaluate on.
    #[error("evaluation needs data: give --validation FILE or --validation-split SHARE with --evaluate-every")]
    NoValidation,
    /// The plan is of typed costs.
    #[error(
        "the plan has typed costs and no model to train: plan a spec with a `[model]`, such as tiny-llama, or run \
         the planned times (`--backend modelled`)"
    )]
    NoModel,
    /// The program is not valid, or would hang.
    #[error("the program cannot be run:{}", list(violations))]
    Invalid {
        /// What is wrong with it.
        violations: Vec<Violation>,
    },
    /// The plan's problem is not its spec's.
    #[error("the plan schedules {problem} microbatches, but its spec has {spec}")]
    Microbatches {
        /// Microbatches of the problem.
        problem: usize,
        /// Microbatches of the spec.
        spec: u32,
    },
    /// What rank 0 handed on to the other ranks is no plan.
    #[error("the next plan, which rank 0 handed on, cannot be read: {0}")]
    HandedOn(PlanFileError),
    /// The plan's microbatches differ, and it does not say why.
    #[error(
        "the plan's microbatches differ (training.microbatch_factors), which runs of a model do not: leave that out, or run the \
         planned times (`--backend modelled`)"
    )]
    Differing,
    /// Attention within documents.
    #[error("attention within documents (training.documents) runs {why}")]
    WithinDocuments {
        /// Where it runs.
        why: &'static str,
    },
    /// Attention within documents of too many microbatches.
    #[error(
        "attention within documents (training.documents) runs with at most {most} microbatches in a step of all replicas; this \
         plan has {microbatches}: plan larger microbatches"
    )]
    DocumentsOfMicrobatches {
        /// Microbatches of a step.
        microbatches: usize,
        /// The most.
        most: usize,
    },
    /// The plan's slices are not its spec's.
    #[error(
        "the plan schedules {problem} slices of each sequence, but its spec has {spec} (parallel.sequence_slices)"
    )]
    Slices {
        /// Slices of the problem.
        problem: usize,
        /// Slices of the spec.
        spec: usize,
    },
    /// Slices of sequences, with something that does not go with them.
    #[error("sequence slices (parallel.sequence_slices) run {why}")]
    Sliced {
        /// Where they run.
        why: &'static str,
    },
    /// Stages that another program brings.
    #[error("the stages cannot be run: {what}")]
    Staged {
        /// Why, and what to do.
        what: String,
    },
    /// The model cannot be cut into the plan's stages.
    #[error("the plan's stages do not follow from its spec:\n{0}")]
    Model(Faults),
    /// The ranks need more memory than the machine has.
    #[error(
        "the ranks of this plan need {} MiB together{}; this machine has {} MiB free: plan a smaller model, or fewer \
         or smaller microbatches", needed >> 20, of_restarts(*copies), available >> 20
    )]
    Memory {
        /// Bytes of all ranks.
        needed: Bytes,
        /// Bytes that the machine can still give.
        available: Bytes,
        /// Of those that are needed, copies for restarts.
        copies: Bytes,
    },
    /// Offload, and copies for restarts, need more host memory than there is.
    #[error(
        "all ranks keep {} MiB in host memory, for {}; this machine has {} MiB free: {}", needed >> 20,
        of_host(*needed, *copies), available >> 20, less_on_host(*needed, *copies)
    )]
    HostMemory {
        /// Bytes of all ranks.
        needed: Bytes,
        /// Bytes that the machine can still give.
        available: Bytes,
        /// Of those that are needed, copies for restarts.
        copies: Bytes,
    },
    /// The graphs do not fit the problem.
    #[error("the plan has {stages} stages, but only {graphs} of them have operators")]
    Stages {
        /// Stages of the problem.
        stages: usize,
        /// Graphs given.
        graphs: usize,
    },
    /// Experts have fewer rows than routed tokens.
    #[error("stage {stage} has {rows} rows for {copies} routed tokens: write training.expert_imbalance = 1 or more")]
    ExpertRows {
        /// The stage.
        stage: usize,
        /// Rows of its experts.
        rows: u64,
        /// Tokens times the experts that see each.
        copies: u64,
    },
    /// Devices route parts of a microbatch, so that none knows how many tokens each expert gets.
    #[error(
        "losses of routers (training.moe_aux_loss, training.moe_z_loss) are over all tokens of a microbatch, but with \
         parallel.context, or with expert tensor parallel 1 beside parallel.tensor, each device routes a part of them, which \
         is not run: plan without these, or without the losses"
    )]
    RouterLosses,
    /// The device cannot be used.
    #[error("{reason}")]
    Device {
        /// Why.
        reason: String,
    },
    /// A dtype that GPUs do not compute in.
    #[error("stage {stage} is in f64, but GPUs compute in f32 or bf16: use f32")]
    CardFormat {
        /// The stage.
        stage: usize,
    },
    /// Stages in f64 and in another dtype.
    #[error("stage {stage} is in {}, and others are not: use `--precision f32`", dtype.name())]
    Format {
        /// The stage.
        stage: usize,
        /// Its format.
        dtype: Dtype,
    },
    /// Nothing would be left of the run after a failure.
    #[error(
        "--restart has no state to go on from: {why}, and no checkpoints are written while the run runs: give \
         --checkpoint-dir FOLDER and --checkpoint-every STEPS"
    )]
    NoStateToRestart {
        /// Why none is in memory.
        why: &'static str,
    },
    /// More of ZeRO than GPUs run.
    #[error(
        "the plan has {part}, which run on the CPU only: run it there (`--backend cpu`), or plan with parallel.zero = 1 and \
         without parallel.shard and parallel.reduce_gradients"
    )]
    ShardingOnCard {
        /// What.
        part: &'static str,
    },
    /// Routed tokens go once to each node.
    #[error(
        "the plan sends each token once to each node (parallel.dispatch = \"once-per-node\"), which runs on the CPU only: run \
         it there (`--backend cpu`), or plan with parallel.dispatch = \"each-copy\""
    )]
    OncePerNode,
    /// Experts that some of the TP devices split.
    #[error(
        "the plan splits each expert over {ways} devices (parallel.expert_tensor), but the runner splits it over all that \
         share matrices or over none: plan with parallel.expert_tensor = 1, or as parallel.tensor"
    )]
    ExpertTensor {
        /// Expert tensor parallel degree.
        ways: u32,
    },
    /// A part of the model that no backend runs.
    #[error(
        "the model has {part}: planned, not run on any device. Run a plan of its times with `--backend modelled`"
    )]
    OnlyPlanned {
        /// The part.
        part: &'static str,
    },
    /// A part of the model that no GPU runs.
    #[error("the model has {part}: planned, not run on CUDA. Run it on the CPU (`--backend cpu`)")]
    NotOnCard {
        /// The part.
        part: &'static str,
    },
    /// Copies of the schedule to the host, which no GPU runs.
    #[error(
        "the schedule copies activations to the host and back (training.offload = \"scheduled\"), which runs on the CPU only: run \
         it there (`--backend cpu`), or plan with training.offload = \"fit\""
    )]
    CopiesOnCard,
    /// Numbers in FP8 or FP4, or in bf16 where GPUs keep f32.
    #[error(
        "the plan has {said}, which runs on the CPU only: run it there (`--backend cpu`), in one type (`--precision f32`), or plan without it"
    )]
    NumberFormat {
        /// The field and its value.
        said: &'static str,
    },
    /// An optimizer that is not run, or not there.
    #[error(
        "the plan has training.optimizer = \"{optimizer}\", which {why}: plan with training.optimizer = \"adamw\""
    )]
    Optimizer {
        /// Its name in a spec.
        optimizer: &'static str,
        /// The end of the reason.
        why: &'static str,
    },
    /// Muon where ranks hold parts of matrices or of its state.
    #[error(
        "the plan has training.optimizer = \"muon\", and the runner updates whole matrices only: plan with \
         parallel.tensor = 1 and parallel.zero = 0"
    )]
    WholeMatrices,
    /// More ranks than the limit.
    #[error("{replicas} replicas of {ranks} ranks exceed the limit of {MAX_WORLD} ranks: plan fewer replicas")]
    TooManyRanks {
        /// Data-parallel replicas.
        replicas: usize,
        /// Ranks of one.
        ranks: usize,
    },
    /// A norm that is not above 0.
    #[error("the norm for gradient clipping is {norm}: give a number above 0")]
    ClipNorm {
        /// The norm, as text.
        norm: String,
    },
    /// The vocabulary has fewer entries than a byte has values.
    #[error("the text is read as bytes, which needs a vocabulary of 256 or more; the model has {vocabulary}")]
    Vocabulary {
        /// The model's vocabulary.
        vocabulary: u64,
    },
    /// The text cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A checkpoint from which this run cannot go on, or a place where none can be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nothing is trained.
    #[error("a run of planned times has no weights: it cannot write a checkpoint or resume from one")]
    NothingToSave,
    /// No steps.
    #[error("a run needs at least 1 step")]
    NoSteps,
    /// The number of processes differs from the number of ranks.
    #[error("the plan has {ranks} ranks, but {world} processes were started: start one process per rank")]
    World {
        /// Ranks of the plan.
        ranks: usize,
        /// Processes.
        world: usize,
    },
    /// Processes with different plans, texts or options.
    #[error(
        "the plan, text or options of rank {rank} differ from those of rank 0: give all processes the same files \
         and arguments"
    )]
    Disagree {
        /// The first rank that differs.
        rank: usize,
    },
    /// Another rank has refused the run.
    #[error("rank {rank} refused the run, and gives the reason")]
    Elsewhere {
        /// That rank.
        rank: usize,
        /// Its exit status, with which all end.
        status: u8,
    },
    /// The machine cannot start another thread.
    #[error("no thread can be started for rank {rank}: {error}")]
    NoThread {
        /// The rank.
        rank: usize,
        /// What the machine says.
        error: String,
    },
}

impl Refusal {
    /// The exit status for it: 1 where a place for checkpoints cannot be written, since that is no fault of the
    /// input, and 2 else.
    pub fn exit_status(&self) -> u8 {
        match self {
            Refusal::Checkpoint(error) if error.is_of_writing() => 1,
            Refusal::Elsewhere { status, .. } => *status,
            _ => 2,
        }
    }
}

/// What is in host memory.
fn of_host(needed: Bytes, copies: Bytes) -> String {
    match copies {
        copies if copies == needed => "copies for restarts (--restart, training.elastic)".to_string(),
        copies => format!(
            "activation and optimizer offload (training.offload, training.offload_optimizer){}",
            of_restarts(copies)
        ),
    }
}

/// How less of it is.
fn less_on_host(needed: Bytes, copies: Bytes) -> &'static str {
    match copies == needed {
        true => "leave out restarts, or go on from checkpoints alone with parallel.zero = 1",
        false => "offload fewer layers, or keep the optimizer states on the device",
    }
}

/// Copies for restarts in words.
fn of_restarts(copies: Bytes) -> String {
    match copies {
        0 => String::new(),
        _ => format!(", {} MiB of them copies for restarts (--restart, training.elastic)", copies >> 20),
    }
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|violation| format!("\n  {violation}")).collect()
}
