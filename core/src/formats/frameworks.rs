//! What frameworks refuse to run, though the plan is valid.
//!
//! - In: a plan, or the degrees of a run.
//! - Out: a sentence for each rule that it breaks.
//! - Knows: Megatron-LM's `validate_args`, its `ModelParallelConfig` and its interleaved schedule
//!   (`megatron/training/arguments.py`, `megatron/core/pipeline_parallel/schedules.py`, core_v0.16.1), and what torch cannot
//!   load ([`torch_csv`]).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::formats::megatron_args;
use crate::graph::layout::Partition;
use crate::notation::torch_csv;
use crate::plan::Plan;
use crate::problem::{Problem, Schedule};
use crate::spec::{ModelWork, Spec, Target, Work};

/// What Megatron-LM's rules look at; a degree or a number that a run does not have is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Pipeline parallel, P.
    pub pipeline: u64,
    /// Tensor parallel.
    pub tensor: u64,
    /// Context parallel.
    pub context: u64,
    /// Expert parallel.
    pub expert: u64,
    /// Chunks of a rank, where its interleaved schedule runs them.
    pub chunks: u64,
    /// Microbatches that go through a chunk together.
    pub group: u64,
    /// Microbatches of a step.
    pub microbatches: u64,
    /// Attention heads.
    pub heads: u64,
    /// Experts of a layer; 0 of a dense model.
    pub experts: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Whether tensor parallel ranks share the tokens between matrices.
    pub sequence_parallel: bool,
    /// Whether the all-to-all of experts overlaps with compute of another microbatch.
    pub overlap_exchanges: bool,
}

impl Degrees {
    /// Of a plan with `schedule`.
    fn of(work: &ModelWork, chunks: usize, schedule: &str) -> Degrees {
        let form = &work.layout.form;
        Degrees {
            pipeline: work.pipeline.into(),
            tensor: form.tensor.into(),
            context: form.context.into(),
            expert: form.expert.into(),
            chunks: chunks as u64,
            group: work.pipeline.into(),
            microbatches: work.microbatches.into(),
            heads: work.model.heads.into(),
            experts: work.model.variant.experts.map_or(0, |experts| experts.count.into()),
            sequence: work.sequence.into(),
            sequence_parallel: form.sequence_parallel,
            overlap_exchanges: work.layout.overlap_exchanges && megatron_args::overlaps_exchanges(schedule),
        }
    }

    /// A sentence for each rule of Megatron-LM that such a run breaks.
    pub fn megatron_refusals(&self) -> Vec<String> {
        let Degrees { pipeline, tensor, context, group, microbatches, .. } = *self;
        let mut refusals = Vec::new();
        if self.chunks > 1 && pipeline > 1 {
            let rest = microbatches % group.max(1);
            if group < pipeline || group > microbatches || (1..pipeline).contains(&rest) {
                refusals.push(format!(
                    "with virtual stages it wants groups of {pipeline} or more microbatches, and at the end none or {pipeline} \
                     or more; there are {microbatches} in groups of {group}"
                ));
            }
        } else if self.chunks > 1 {
            refusals.push("virtual stages want pipeline parallel of 2 or more".to_string());
        }
        let divides = [
            ("--num-attention-heads", self.heads, tensor, "tensor parallel"),
            ("--num-experts", self.experts, self.expert, "expert parallel"),
            (
                "--seq-length",
                self.sequence,
                if context > 1 { context.saturating_mul(2) } else { 1 },
                "twice context parallel",
            ),
            ("--seq-length", self.sequence, if self.sequence_parallel { tensor } else { 1 }, "tensor parallel"),
        ];
        for (name, number, by, what) in divides {
            if !number.is_multiple_of(by.max(1)) {
                refusals.push(format!("{name} {number} is no multiple of {by}, {what}"));
            }
        }
        if self.expert > 1 && tensor > 1 && !self.sequence_parallel {
            refusals.push("expert and tensor parallel together want --sequence-parallel".to_string());
        }
        if self.overlap_exchanges && self.expert < 2 {
            refusals.push("--overlap-moe-expert-parallel-comm wants expert parallel of 2 or more".to_string());
        }
        if self.overlap_exchanges && pipeline > 1 && self.chunks < 2 {
            refusals
                .push("--overlap-moe-expert-parallel-comm wants virtual stages with pipeline parallel".to_string());
        }
        refusals
    }
}

/// Megatron-LM's rule of MTP modules on stages of their own (`validate_layer_layout`): all on one stage, which is the
/// last chunk of its rank.
fn modules_refusal(counts: &[[u32; 2]], pipeline: usize) -> Option<String> {
    let mut stages = (0..counts.len()).filter(|stage| counts[*stage][1] > 0);
    let first = stages.next()?;
    if let Some(other) = stages.next() {
        return Some(format!("it wants all MTP modules (`m`) on one stage; stages {first} and {other} have some"));
    }
    let last_chunks = counts.len().saturating_sub(pipeline);
    (first < last_chunks).then(|| {
        format!(
            "it wants MTP modules (`m`) in the last chunk of a rank, on a stage from {last_chunks} on; stage {first} has \
             them"
        )
    })
}

/// A plan as frameworks see it.
#[derive(Clone, Copy)]
pub struct Shown<'p> {
    /// What was asked for.
    pub spec: &'p Spec,
    /// Ranks, stages and microbatches.
    pub problem: &'p Problem,
    /// The schedule's name.
    pub schedule_name: &'p str,
    /// The order of each rank.
    pub schedule: &'p Schedule,
}

impl<'p> Shown<'p> {
    /// That of a plan.
    pub fn of(plan: &'p Plan) -> Shown<'p> {
        let Plan { spec, problem, schedule_name, schedule, .. } = plan;
        Shown { spec, problem, schedule_name, schedule }
    }

    /// Why `target` would not run it: a sentence for each reason.
    pub fn refusals(&self, target: Target) -> Vec<String> {
        match target {
            Target::Torch => match torch_csv::write(self.problem, self.schedule) {
                Ok(_) => Vec::new(),
                Err(absent) => vec![absent.reason.to_string()],
            },
            Target::Megatron => {
                let mut refusals = Vec::new();
                if !megatron_args::has(self.schedule_name) {
                    let has = megatron_args::SCHEDULES.join(", ");
                    refusals.push(format!("it runs {has}, not {}", self.schedule_name));
                }
                if self.problem.slices() > 1 {
                    let slices = self.problem.slices();
                    refusals.push(format!("it runs whole sequences, not {slices} slices (parallel.sequence_slices)"));
                }
                if let Work::Model(work) = &self.spec.work {
                    let degrees = Degrees::of(work, self.problem.chunks(), self.schedule_name);
                    let group = megatron_args::group(self.schedule_name).unwrap_or(degrees.group);
                    refusals.extend(Degrees { group, ..degrees }.megatron_refusals());
                    if let Partition::WithModules(counts) = &work.layout.partition {
                        refusals.extend(modules_refusal(counts, work.pipeline as usize));
                    }
                }
                refusals
            }
        }
    }

    /// What to tell where the spec names a framework: a sentence for each reason for which that would not run the plan.
    pub fn told(&self) -> Vec<String> {
        let Some(target) = self.spec.target else { return Vec::new() };
        let told = |reason| format!("{} refuses this plan: {reason}", target.title());
        self.refusals(target).into_iter().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::export::{self, ExportError, Format};
    use crate::plan::planner;

    fn planned(more: &str) -> Plan {
        let text = format!(
            "model.name = \"llama-2-7b\"\ncluster.device = \"h100\"\nmemory.limit_bytes = \"900 GiB\"\n{more}"
        );
        let spec = Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"));
        planner::plan(&spec, &spec.schedule).unwrap_or_else(|why| panic!("{why}"))
    }

    const LOOPED: &str =
        "schedule = \"interleaved-1f1b\"\ntarget = \"megatron\"\nparallel.pipeline = 4\nparallel.chunks = 2\n";

    /// `schedules.py` asserts both: groups of P or more, and at the end none or P or more.
    #[test]
    fn megatrons_rule_of_virtual_stages_is_told_and_refused_at_export() {
        for (microbatches, refused) in [(8, false), (4, false), (3, true), (6, true), (7, true)] {
            let plan = planned(&format!("{LOOPED}training.microbatches = {microbatches}\n"));
            assert_eq!(!Shown::of(&plan).told().is_empty(), refused, "{microbatches}");
            let exported = export::of_plan(&plan, Format::MegatronArgs);
            assert_eq!(matches!(exported, Err(ExportError::Megatron(_))), refused, "{microbatches}");
        }
    }

    /// Only the pairs of combined 1F1B overlap exchanges: elsewhere the export has no switch for them, and a note.
    #[test]
    fn overlap_of_exchanges_is_refused_only_where_the_export_asks_for_it() {
        let of = |schedule: &str, chunks: u32| {
            let text = format!(
                "model.name = \"mixtral-8x7b\"\ncluster.device = \"h100\"\nmemory.limit_bytes = \"900 GiB\"\n\
                 parallel = {{ pipeline = 2, chunks = {chunks}, data = 8, expert = 8, overlap_exchanges = true }}\n\
                 training.microbatches = 8\n"
            );
            let spec = Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"));
            let plan = planner::plan(&spec, schedule).unwrap_or_else(|why| panic!("{why}"));
            export::of_plan(&plan, Format::MegatronArgs).unwrap_or_else(|error| panic!("{schedule}: {error}"))
        };
        let switch = "--overlap-moe-expert-parallel-comm";
        for (schedule, chunks, has_switch) in
            [("1f1b", 1, false), ("interleaved-1f1b", 2, false), ("combined-1f1b", 2, true)]
        {
            let text = of(schedule, chunks);
            assert_eq!(text.contains(switch), has_switch, "{text}");
            assert_eq!(text.contains("combined-1f1b has pairs"), !has_switch, "{text}");
        }
    }

    /// `validate_layer_layout` of `pipeline_parallel_layer_layout.py` asserts each.
    #[test]
    fn megatrons_rule_of_mtp_modules_on_stages_of_their_own_is_told() {
        for (counts, pipeline, part) in [
            (&[[2, 0], [1, 0], [0, 1], [0, 0]][..], 2, None),
            (&[[2, 0], [0, 2], [0, 0]], 3, None),
            (&[[2, 0], [0, 1], [0, 1]], 3, Some("stages 1 and 2 have some")),
            (&[[2, 0], [0, 1], [0, 0], [0, 0]], 2, Some("on a stage from 2 on; stage 1 has them")),
        ] {
            let told = modules_refusal(counts, pipeline);
            assert_eq!(told.is_some(), part.is_some(), "{counts:?}");
            assert!(told.unwrap_or_default().contains(part.unwrap_or_default()), "{counts:?}");
        }
    }

    #[test]
    fn only_the_framework_that_is_named_is_asked() {
        let of = |target: &str| {
            let plan = planned(&format!(
                "schedule = \"dualpipe\"\n{target}parallel.pipeline = 4\ntraining.microbatches = 8\n"
            ));
            Shown::of(&plan).told()
        };
        assert!(of("").is_empty());
        assert!(of("target = \"megatron\"\n")[0].starts_with("Megatron-LM refuses this plan: it runs 1f1b"));
        assert!(of("target = \"torch\"\n")[0].contains("torch keeps each stage on one rank"));
    }
}
