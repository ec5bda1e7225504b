//! What a plan decides, as arguments of Megatron-LM: a Bash array, to be added to the arguments of the model, the optimizer and
//! the data. Comments name what Megatron-LM cannot do as planned, with the nearest setting that fits.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::graph::form::{AttentionForm, Offload, Recompute};
use crate::graph::layout::RecomputeLayers;
use crate::graph::optimizer::Optimizer;
use crate::model::{Dtype, StageLayout};
use crate::spec::ModelWork;

/// The schedules that Megatron-LM has.
pub const SCHEDULES: [&str; 3] = ["1f1b", "interleaved-1f1b", COMBINED];

/// The one that hides exchanges of experts.
const COMBINED: &str = "combined-1f1b";

/// Whether Megatron-LM has the schedule of this name, with or without a size of groups.
pub fn has(schedule: &str) -> bool {
    SCHEDULES.contains(&schedule.split(':').next().unwrap_or(schedule))
}

/// Whether ops of the schedule of this name run as pairs that hide exchanges of experts.
pub fn overlaps_exchanges(schedule: &str) -> bool {
    schedule.split(':').next() == Some(COMBINED)
}

/// The size of groups that a schedule's name asks for: microbatches that go through a chunk together.
pub fn group(schedule: &str) -> Option<u64> {
    schedule.split_once(':')?.1.parse().ok()
}

/// The arguments for `work` in this schedule, whose layers lie in `stages`; `layout` is that of its stages as
/// [`megatron_layout`](crate::notation::megatron_layout) writes it.
pub fn write(work: &ModelWork, schedule: &str, stages: &[StageLayout], layout: &str) -> String {
    let mut lines = Lines::default();
    let form = &work.layout.form;
    let sequences =
        u64::from(work.microbatches) * u64::from(work.microbatch_size) * u64::from(work.layout.data.max(1));
    lines.add("--tensor-model-parallel-size", form.tensor);
    if form.sequence_parallel && form.tensor > 1 {
        lines.switch("--sequence-parallel");
    }
    pipeline(work, schedule, layout, &mut lines);
    lines.add("--context-parallel-size", form.context.max(1));
    if work.model.variant.experts.is_some() {
        lines.add("--expert-model-parallel-size", form.expert.max(1));
        if form.tensor > 1 {
            lines.add("--expert-tensor-parallel-size", form.expert_ways());
        }
    }
    lines.add("--micro-batch-size", work.microbatch_size);
    lines.add("--global-batch-size", sequences);
    lines.add("--seq-length", work.sequence);
    match work.layout.zero {
        0 => {}
        1 => lines.switch("--use-distributed-optimizer"),
        2 => lines.sharded("optim_grads"),
        _ => lines.sharded("optim_grads_params"),
    }
    let (copies, sharers) = (work.layout.copies(), work.layout.sharers(work.layout.copies()));
    if sharers < copies {
        lines.add("--num-distributed-optimizer-instances", copies / sharers);
    }
    lines.add(
        "--attention-backend",
        match form.attention {
            AttentionForm::Flash => "flash",
            AttentionForm::Materialised => "unfused",
        },
    );
    if !form.f32_logits {
        lines.switch("--cross-entropy-loss-fusion");
    }
    match form.matmul_dtype {
        Some(Dtype::NvFp4) => {
            lines.add("--fp4-format", "e2m1");
            lines.add("--fp4-recipe", "nvfp4");
        }
        Some(Dtype::MxFp4) => lines.note("the plan has MXFP4 matmuls; Megatron-LM has NVFP4, MXFP8 and FP8"),
        Some(dtype) => {
            lines.add("--fp8-format", "e4m3");
            lines.add("--fp8-recipe", if dtype == Dtype::MxFp8 { "mxfp8" } else { "blockwise" });
        }
        None => {}
    }
    overlaps(work, schedule, &mut lines);
    if form.bf16_gradients {
        lines.switch("--grad-reduce-in-bf16");
    }
    if work.layout.bf16_moments {
        lines.switch("--use-precision-aware-optimizer");
        lines.add("--exp-avg-dtype", "bf16");
        lines.add("--exp-avg-sq-dtype", "bf16");
    }
    if work.layout.offload_optimizer {
        lines.switch("--optimizer-cpu-offload");
    }
    recompute(work, stages, &mut lines);
    optimizer(work, &mut lines);
    if work.model.variant.vision.is_some() {
        lines.note(
            "the plan has a vision tower; Megatron-LM takes one in its multimodal examples, from the model's code",
        );
    }
    if !form.frozen.is_none() {
        lines.note("the plan has frozen weights; Megatron-LM freezes them in the model's code");
    }
    if let Some(lora) = form.lora {
        lines.note(&format!(
            "the plan has LoRA of rank {}; Megatron Bridge and ms-swift have it, Megatron-LM does not",
            lora.rank
        ));
    }
    if form.offload != Offload::None {
        lines.note("the plan offloads activations to the host; Megatron-LM does so only without a pipeline");
    }
    if form.async_reduce {
        lines.note(
            "the plan overlaps the all-reduce of dX with the dW matmul; --tp-comm-overlap is the \
                    nearest option",
        );
    }
    let devices = work.devices();
    format!(
        "# What the plan decides, for {devices} device{}; add the model, the optimizer and the data.\nPLAN_ARGS=(\n{})\n",
        if devices == 1 { "" } else { "s" },
        lines.0
    )
}

/// Pipeline parallelism.
fn pipeline(work: &ModelWork, schedule: &str, layout: &str, lines: &mut Lines) {
    lines.add("--pipeline-model-parallel-size", work.pipeline);
    if work.pipeline > 1 {
        lines.add("--pipeline-model-parallel-layout", format!("'{layout}'"));
    }
    if let Some(group) = group(schedule) {
        lines.add("--microbatch-group-size-per-virtual-pipeline-stage", group);
    }
}

/// Collectives of replicas, and of experts, that overlap with ops.
fn overlaps(work: &ModelWork, schedule: &str, lines: &mut Lines) {
    if work.layout.overlap_exchanges {
        match overlaps_exchanges(schedule) {
            true => lines.switch("--overlap-moe-expert-parallel-comm"),
            false => {
                lines.note(&format!("no pair of {schedule} overlaps exchanges of experts: combined-1f1b has pairs"))
            }
        }
    }
    if work.layout.overlap_grad_reduce {
        lines.switch("--overlap-grad-reduce");
    }
    if work.layout.overlap_param_gather {
        lines.switch("--overlap-param-gather");
    }
}

/// The optimizer, where it is not Adam.
fn optimizer(work: &ModelWork, lines: &mut Lines) {
    match work.layout.optimizer {
        Optimizer::AdamW => {}
        Optimizer::Sgd => {
            lines.add("--optimizer", "sgd");
            lines.add("--sgd-momentum", "0.0");
        }
        Optimizer::SgdMomentum => lines.add("--optimizer", "sgd"),
        Optimizer::Muon => lines.add("--optimizer", "muon"),
        Optimizer::Adafactor => lines.note("the plan has Adafactor; Megatron-LM does not"),
    }
}

/// Lines of the array.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl ToString) {
        self.0.push_str(&format!("    {name} {}\n", value.to_string()));
    }

    fn switch(&mut self, name: &str) {
        self.0.push_str(&format!("    {name}\n"));
    }

    fn note(&mut self, note: &str) {
        self.0.push_str(&format!("    # {note}\n"));
    }

    /// ZeRO, with the options of Megatron-LM for it.
    fn sharded(&mut self, what: &str) {
        self.switch("--use-megatron-fsdp");
        self.add("--data-parallel-sharding-strategy", what);
    }

    fn full(&mut self, method: &str, layers: usize) {
        self.add("--recompute-granularity", "full");
        self.add("--recompute-method", method);
        self.add("--recompute-num-layers", layers);
    }

    /// All layers alike.
    fn parts(&mut self, recompute: Recompute, latent: bool) {
        let modules = match recompute {
            Recompute::None | Recompute::Full => return,
            Recompute::Selective => "core_attn",
            Recompute::Cheap => "layernorm moe_act",
            Recompute::Latents => "mla_up_proj layernorm moe_act",
            Recompute::FeedForward if latent => "mla_up_proj layernorm mlp moe",
            Recompute::FeedForward => "layernorm mlp moe",
        };
        self.add("--recompute-granularity", "selective");
        self.add("--recompute-modules", modules);
    }
}

/// The recomputation: the same in all layers, or full in a number of layers at the start of each stage.
fn recompute(work: &ModelWork, stages: &[StageLayout], lines: &mut Lines) {
    let (usual, latent) = (work.layout.form.recompute, work.model.variant.latent.is_some());
    let choices = match &work.layout.recompute_layers {
        RecomputeLayers::All | RecomputeLayers::Fit if usual == Recompute::Full => return lines.full("uniform", 1),
        RecomputeLayers::All | RecomputeLayers::Fit => return lines.parts(usual, latent),
        RecomputeLayers::Groups(size) => return lines.full("uniform", *size as usize),
        RecomputeLayers::First(layers) if usual == Recompute::Full => return lines.full("block", *layers as usize),
        RecomputeLayers::First(layers) => {
            lines.note(&format!("the plan does so in {layers} layers of each stage; Megatron-LM does so in all"));
            return lines.parts(usual, latent);
        }
        RecomputeLayers::Each(choices) => choices,
    };
    let of = |layer: u32| choices.get(layer as usize).copied().unwrap_or_default();
    let counted = |which: &dyn Fn(Recompute) -> bool| -> Vec<usize> {
        stages.iter().map(|stage| stage.layers.clone().filter(|layer| which(of(*layer))).count()).collect()
    };
    let strongest = choices.iter().copied().max().unwrap_or_default();
    if strongest == Recompute::None {
        return;
    }
    if strongest != Recompute::Full {
        let again = choices.iter().filter(|choice| **choice != Recompute::None).count();
        if again < choices.len() {
            lines.note(&format!(
                "the plan does so in {again} of {} layers; Megatron-LM does so in all",
                choices.len()
            ));
        }
        return lines.parts(strongest, latent);
    }
    let any = counted(&|choice| choice != Recompute::None);
    let (most, least) = (any.iter().max().copied().unwrap_or(0), any.iter().min().copied().unwrap_or(0));
    if counted(&|choice| choice == Recompute::Full) != any {
        lines.note(
            "the plan recomputes less in some of these layers; Megatron-LM cannot mix that with full recompute",
        );
    }
    if least < most {
        lines.note(&format!(
            "the plan does so in {least} to {most} layers of a stage; Megatron-LM does so in the same number \
             of each"
        ));
    }
    lines.full("block", most);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::export::{self, ExportError, Format};
    use crate::formats::training_run::TrainingRun;
    use crate::plan::planner;
    use crate::search::{Effort, Flow};
    use crate::spec::{Spec, Work};

    /// Arguments of the model, as its script has them.
    const LLAMA_3_8B: &str = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu \
        --group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear --bf16 \
        --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
        --padded-vocab-size 128256 ";

    fn planned(schedule: &str, more: &str) -> crate::plan::Plan {
        let text = format!(
            "model.name = \"llama-3-8b\"\ncluster.device = \"h100\"\ntraining.sequence = 8192\n\
             training.microbatches = 16\n{more}"
        );
        let spec = Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"));
        planner::plan_with(&spec, schedule, Effort(0), &mut |_| Flow::Continue).unwrap_or_else(|why| panic!("{why}"))
    }

    fn arguments(schedule: &str, more: &str) -> String {
        export::of_plan(&planned(schedule, more), Format::MegatronArgs).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A run with these arguments is the plan: read back, it has the same layout in the same step.
    #[test]
    fn a_run_with_the_arguments_is_the_plan() {
        for (schedule, more) in [
            ("1f1b", "parallel.pipeline = 4\nparallel.tensor = 2\nparallel.sequence_parallel = true\n"),
            ("1f1b", "parallel.pipeline = 4\nparallel.data = 8\nparallel.zero = 1\ntraining.recompute = \"full\"\n"),
            (
                "interleaved-1f1b",
                "parallel.pipeline = 4\nparallel.chunks = 4\nparallel.context = 2\nparallel.tensor = 4\n",
            ),
            ("interleaved-1f1b:8", "parallel.pipeline = 4\nparallel.chunks = 2\nparallel.tensor = 4\n"),
            ("1f1b", "parallel.pipeline = 1\nparallel.data = 64\nparallel.zero = 3\ntraining.microbatch_size = 2\n"),
            ("1f1b", "parallel.pipeline = 2\nparallel.data = 16\nparallel.zero = 1\nparallel.shard = 4\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.recompute = \"full\"\ntraining.recompute_first = 2\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.recompute = \"full\"\ntraining.recompute_group = 2\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.recompute = \"feed-forward\"\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.recompute = \"cheap\"\ntraining.moments_dtype = \"bf16\"\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.optimizer = \"muon\"\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.optimizer = \"sgd\"\n"),
            ("1f1b", "parallel.pipeline = 8\ntraining.f32_logits = true\ntraining.matmul_dtype = \"fp8\"\n"),
            (
                "1f1b",
                "parallel.pipeline = 8\ntraining.attention = \"materialised\"\n\
              training.recompute = \"selective\"\ntraining.gradients_dtype = \"bf16\"\nparallel.data = 2\n",
            ),
        ] {
            let plan = planned(schedule, &format!("{more}memory.limit_bytes = \"900 GiB\"\n"));
            let text = export::of_plan(&plan, Format::MegatronArgs).unwrap_or_else(|error| panic!("{error}"));
            let Work::Model(before) = &plan.spec.work else { panic!("a model") };
            let run = TrainingRun::read(&format!("{text}\ntrain {LLAMA_3_8B} \"${{PLAN_ARGS[@]}}\"\n"));
            let read = run.spec("h100", Some(before.devices())).unwrap_or_else(|faults| panic!("{text}{faults}"));
            let Work::Model(after) = &read.spec.work else { panic!("a model") };
            assert_eq!(read.spec.schedule, schedule, "{text}");
            assert_eq!(
                (after.pipeline, after.microbatches, after.microbatch_size),
                (before.pipeline, before.microbatches, before.microbatch_size)
            );
            let mut layout = after.layout.clone();
            // Numbers of layers are what the rule came to.
            layout.partition = before.layout.partition.clone();
            assert_eq!(layout, before.layout, "{text}");
            let again = planner::plan_with(&read.spec, schedule, Effort(0), &mut |_| Flow::Continue);
            let again = again.map(|plan| plan.prediction.makespan_ns);
            assert_eq!(again, Ok(plan.prediction.makespan_ns), "{text}");
        }
    }

    /// Every switch begins with two dashes, in an array that a shell takes.
    #[test]
    fn the_text_is_an_array_of_a_shell() {
        let text =
            arguments("1f1b", "parallel.pipeline = 4\ntraining.recompute = \"3 full, 5 none, 1 full, 23 none\"\n");
        let inner =
            text.split_once("PLAN_ARGS=(\n").and_then(|(_, rest)| rest.strip_suffix(")\n")).expect("an array");
        let words = shlex::split(inner).expect("words of a shell");
        assert!(words.iter().all(|word| !word.contains(['(', '#']) || word.contains('|')), "{words:?}");
        assert!(text.contains("--recompute-num-layers 3\n"), "{text}");
        assert!(text.contains("# the plan does so in 0 to 3 layers of a stage"), "{text}");
    }

    #[test]
    fn other_schedules_and_typed_costs_are_refused() {
        let refused = |plan: &crate::plan::Plan| export::of_plan(plan, Format::MegatronArgs).unwrap_err();
        let plan = planned("zb-v", "parallel.pipeline = 4\n");
        assert_eq!(refused(&plan), ExportError::Schedule("zb-v".to_string()));
        assert!(refused(&plan).to_string().contains("runs 1f1b, interleaved-1f1b, combined-1f1b"));
    }
}
