//! The question to `tune`: how many devices, which fields stay, and the parallel degrees of a layout.

use crate::spec::ModelWork;
use alloc::string::String;
use alloc::vec::Vec;

/// A field that is changed, unless it is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Pipeline parallel degree.
    Pipeline,
    /// Tensor parallel degree.
    Tensor,
    /// Context parallel degree.
    Context,
    /// Data parallel degree.
    Data,
    /// Expert parallel degree.
    Expert,
    /// Whether devices of a tensor parallel group hold whole experts (expert tensor parallel = 1).
    WholeExperts,
    /// Chunks per rank (virtual stages per rank, VPP).
    Chunks,
    /// Micro-batch size, in sequences.
    MicrobatchSize,
    /// Recomputation.
    Recompute,
    /// Whether sequence parallelism is on.
    SequenceParallel,
    /// ZeRO stage: 1 (optimizer states), or more where the spec says so or there is no pipeline.
    Zero,
    /// How layers are assigned to stages.
    Partition,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 12] = [
        Field::Pipeline,
        Field::Tensor,
        Field::Context,
        Field::Data,
        Field::Expert,
        Field::WholeExperts,
        Field::Chunks,
        Field::MicrobatchSize,
        Field::Recompute,
        Field::SequenceParallel,
        Field::Zero,
        Field::Partition,
    ];

    /// The field of a spec.
    pub const fn name(self) -> &'static str {
        match self {
            Field::Pipeline => "parallel.pipeline",
            Field::Tensor => "parallel.tensor",
            Field::Context => "parallel.context",
            Field::Data => "parallel.data",
            Field::Expert => "parallel.expert",
            Field::WholeExperts => "parallel.whole_experts",
            Field::Chunks => "parallel.chunks",
            Field::MicrobatchSize => "training.microbatch_size",
            Field::Recompute => "training.recompute",
            Field::SequenceParallel => "parallel.sequence_parallel",
            Field::Zero => "parallel.zero",
            Field::Partition => "parallel.partition",
        }
    }

    /// The field of a name.
    pub fn named(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name() == name)
    }
}

/// The question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Devices to be used; none: those of the spec.
    pub devices: Option<u64>,
    /// Fields that stay as they are.
    pub keep: Vec<Field>,
    /// Schedules that may be used, [`BEST`](crate::schedule::BEST) for a search among all; none named: all.
    pub schedules: Vec<String>,
    /// Layouts that are kept, at least 1.
    pub most: usize,
    /// The fewest pipeline ranks of a layout, unless the pipeline degree is kept.
    pub least_pipeline: u32,
    /// Whether the spec as it was given is planned as well, to be compared with the layouts.
    pub plans_given: bool,
}

impl Default for Question {
    fn default() -> Question {
        Question {
            devices: None,
            keep: Vec::new(),
            schedules: Vec::new(),
            most: 8,
            least_pipeline: 1,
            plans_given: true,
        }
    }
}

/// The parallel degrees of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Degrees {
    /// Pipeline parallel degree.
    pub pipeline: u32,
    /// Tensor parallel degree.
    pub tensor: u32,
    /// Context parallel degree.
    pub context: u32,
    /// Data parallel degree.
    pub data: u32,
    /// ZeRO stage ([`Layout::zero`](crate::graph::layout::Layout::zero)).
    pub zero: u32,
    /// Expert parallel degree.
    pub expert: u32,
    /// Whether devices of a tensor parallel group hold whole experts, to which each sends its tokens.
    pub whole_experts: bool,
    /// Micro-batch size, in sequences.
    pub microbatch_size: u32,
    /// Microbatches per step of each data-parallel copy.
    pub microbatches: u32,
}

impl Degrees {
    pub(super) fn of(work: &ModelWork) -> Degrees {
        let form = &work.layout.form;
        Degrees {
            pipeline: work.pipeline,
            tensor: form.tensor,
            context: form.context,
            data: work.layout.data,
            zero: work.layout.zero,
            expert: form.expert,
            whole_experts: form.whole_experts,
            microbatch_size: work.microbatch_size,
            microbatches: work.microbatches,
        }
    }
}
