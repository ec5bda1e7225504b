//! Whether a run holds the bytes that the graph's liveness says, and what the plan predicts.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{options, problem, published, train, wide, work};
use pipeplan::backend::cpu::Cpu;
use pipeplan::backend::peers::Alone;
use pipeplan::backend::{Backend, Kind, Parcel, Store};
use pipeplan::runner::data::Batches;
use pipeplan::runner::optimizer::AdamW;
use pipeplan::runner::{Precision, RunReport, Workload};
use pipeplan::transport::Buffer;
use pipeplan_core::estimate::derive::{Derived, derive, graph_of};
use pipeplan_core::graph::Job;
use pipeplan_core::graph::form::{AttentionForm, Form, Offload, Recompute};
use pipeplan_core::graph::layout::{Partition, RecomputeLayers};
use pipeplan_core::graph::liveness::Lifetimes;
use pipeplan_core::graph::post_training::{Lora, Targets};
use pipeplan_core::model::{Arrangement, Dtype, Experts, Family, Latent, ModelConfig, Routing, Variant};
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::program::Payload;
use pipeplan_core::spec::ModelWork;

/// How attention is written, whether there is dropout, and what is made again.
const FORMS: [(AttentionForm, bool, Recompute); 5] = [
    (AttentionForm::Flash, false, Recompute::None),
    (AttentionForm::Flash, false, Recompute::Cheap),
    (AttentionForm::Flash, true, Recompute::Full),
    (AttentionForm::Materialised, true, Recompute::None),
    (AttentionForm::Materialised, true, Recompute::Selective),
];

/// Two microbatches through every stage, F and B of both before any W: the bytes that each job needs and
/// keeps are those of the estimate, to the byte.
#[test]
fn every_job_holds_what_liveness_says() {
    let kinds = [
        (Family::Llama, Dtype::F32),
        (Family::Llama, Dtype::F64),
        (Family::Gpt, Dtype::F32),
        (Family::Llama, Dtype::Bf16),
    ];
    for ((family, dtype), (attention, dropout, recompute)) in
        kinds.into_iter().flat_map(|kind| FORMS.map(|form| (kind, form)))
    {
        let mut work = ModelWork { dtype, ..work(4, 2) };
        work.model.family = family;
        work.layout.form = Form { attention, dropout, recompute, ..work.layout.form };
        let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
        for (stage, layout) in derived.stages.iter().enumerate() {
            let graph = graph_of(&work, layout);
            let estimate = Lifetimes::of(&graph).memory(&graph);
            let noted = match dtype {
                Dtype::F64 => jobs::<f64>(stage as u16, &work, layout, &SPLIT),
                _ => jobs::<f32>(stage as u16, &work, layout, &SPLIT),
            };
            let fused = jobs::<f32>(stage as u16, &ModelWork { dtype: Dtype::F32, ..work.clone() }, layout, &FUSED);
            let single = graph_of(&ModelWork { dtype: Dtype::F32, ..work.clone() }, layout);
            let expected = Lifetimes::fused(&single).memory_fused(&single);
            let forward = Lifetimes::of(&single).memory(&single)[0];
            for microbatch in 0..2 {
                let (peak, kept) = fused[&(OpKind::BW, microbatch)];
                let what = format!("{family:?} {attention:?} {recompute:?} stage {stage} BW{microbatch}");
                assert_eq!(peak as i64, forward.net + expected.peak as i64, "peak of {what}");
                assert_eq!(kept, 0, "kept after {what}");
            }
            for microbatch in 0..2 {
                let mut held = 0i64;
                for job in Job::ALL {
                    let (peak, kept) = noted[&(SPLIT[job as usize], microbatch)];
                    let expected = estimate[job as usize];
                    let what =
                        format!("{family:?} {attention:?} {recompute:?} {dtype:?} stage {stage} {job:?}{microbatch}");
                    assert_eq!(peak as i64, held + expected.peak as i64, "peak of {what}");
                    held += expected.net;
                    assert_eq!(kept as i64, held, "kept after {what}");
                }
                assert_eq!(held, 0, "W gives all back");
            }
        }
    }
}

/// So do layers that differ in what they compute again, and groups of them.
#[test]
fn layers_that_differ_hold_what_liveness_says() {
    use Recompute::{Cheap, Full, None};
    for layers in [
        RecomputeLayers::Each(vec![Full, None, Cheap, None, Full, Full, None, Cheap]),
        RecomputeLayers::First(3),
        RecomputeLayers::Groups(2),
    ] {
        let mut work = work(2, 2);
        work.model.layers = 8;
        work.layout.form.recompute = Full;
        work.layout.recompute_layers = layers.clone();
        holds_what_liveness_says(&work, &format!("{layers:?}"));
    }
}

/// That each job of every stage of `work` holds the bytes of the estimate, with B and W apart and in one.
fn holds_what_liveness_says(work: &ModelWork, what: &str) {
    let derived = derive(work, Placement::Linear, 1).expect("the model can be cut");
    for (stage, layout) in derived.stages.iter().enumerate() {
        let graph = graph_of(work, layout);
        let estimate = Lifetimes::of(&graph).memory(&graph);
        let noted = jobs::<f32>(stage as u16, work, layout, &SPLIT);
        let fused = jobs::<f32>(stage as u16, work, layout, &FUSED);
        let expected = Lifetimes::fused(&graph).memory_fused(&graph);
        for microbatch in 0..2 {
            let what = format!("{what}, stage {stage}, microbatch {microbatch}");
            let mut held = 0i64;
            for job in Job::ALL {
                let (peak, kept) = noted[&(SPLIT[job as usize], microbatch)];
                assert_eq!(peak as i64, held + estimate[job as usize].peak as i64, "{job:?} of {what}");
                held += estimate[job as usize].net;
                assert_eq!(kept as i64, held, "{job:?} of {what}");
            }
            let (peak, kept) = fused[&(OpKind::BW, microbatch)];
            assert_eq!((peak as i64, kept), (estimate[0].net + expected.peak as i64, 0), "BW of {what}");
        }
    }
}

/// Frozen layers and modules, and adapters, by job; and in a run by what the plan predicts.
#[test]
fn what_does_not_train_is_not_held() {
    for (texts, adapters) in [
        (&["embedding", "layers.0-3"][..], None),
        (&["mlp"], None),
        (&["attention", "norms", "layers.5"], None),
        (&[], Some(Lora { rank: 4, alpha: 8, targets: Targets::ALL })),
    ] {
        for recompute in [Recompute::None, Recompute::Cheap, Recompute::Full] {
            let mut work = work(4, 8);
            texts.iter().for_each(|text| work.layout.form.frozen.add(text).expect("a module or layers"));
            (work.layout.form.lora, work.layout.form.recompute) = (adapters, recompute);
            holds_what_liveness_says(&ModelWork { microbatches: 2, ..work.clone() }, &format!("{texts:?}"));
            for (name, data, zero) in [("1f1b", 1, 0), ("zb-h1", 2, 1)] {
                (work.layout.data, work.layout.zero) = (data, zero);
                let workload = published(&work, name, Precision::Single).expect("it exists");
                let problem = problem(&work, Placement::Linear, 1).expect("the model can be cut");
                let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
                let report = train(&workload, &options(3));
                for at in 0..report.memory.len() {
                    let what = format!("{name}, {texts:?}, {adapters:?}, {recompute:?}, rank {at}");
                    let position = (at, 4);
                    assert_as_predicted(&what, &workload, &work, (&problem, &derived), &report, position);
                }
            }
        }
    }
}

const SPLIT: [OpKind; 3] = [OpKind::F, OpKind::B, OpKind::W];
const FUSED: [OpKind; 2] = [OpKind::F, OpKind::BW];

type Noted = BTreeMap<(OpKind, u32), (u64, u64)>;

fn jobs<T: pipeplan::backend::cpu::element::Element>(
    stage: u16,
    work: &ModelWork,
    layout: &pipeplan_core::model::StageLayout,
    kinds: &[OpKind],
) -> Noted {
    let text = common::text();
    let batches = Batches::new(text, [work.sequence as usize, 3], work.microbatch_size as usize, 2, 0).expect("text");
    let mut store = Store::default();
    let graph = graph_of(work, layout);
    let [on_host, _] = Lifetimes::of(&graph).on_host(&graph);
    let mut cpu =
        Cpu::<T>::new([(stage, graph)], work.pipeline as usize, 1, AdamW::default(), Arc::new(batches), &mut store);
    cpu.record_job_bytes();
    cpu.begin(0);
    let boundary = (work.microbatch_size * work.sequence * work.model.hidden) as usize;
    for kind in kinds.iter().copied() {
        for microbatch in 0..2 {
            let payload = if kind == OpKind::F { Payload::Activation } else { Payload::Gradient };
            let arrives = match kind {
                OpKind::F => !layout.embedding,
                OpKind::B | OpKind::BW => !layout.head,
                _ => false,
            };
            if arrives {
                let parcel = match work.dtype {
                    Dtype::Bf16 => Buffer::Bf16(vec![half::bf16::from_f32(0.01); boundary]),
                    _ => T::pack(vec![T::of(0.01); boundary]),
                };
                store.put(Parcel { payload, stage, microbatch }, parcel);
            }
            let op = Op::new(stage.into(), kind, microbatch as usize);
            cpu.compute(op, &mut store, &mut Alone::default()).expect("it runs");
        }
    }
    assert_eq!(store.meter.held(Kind::Activation), 0);
    assert_eq!((store.meter.held(Kind::Host), store.meter.peak(Kind::Host)), (0, 2 * on_host));
    cpu.job_bytes().iter().map(|noted| ((noted.kind, noted.microbatch), (noted.peak, noted.kept))).collect()
}

/// So do layers of newer families, by job and with each recomputation.
#[test]
fn newer_families_hold_what_liveness_says() {
    let usual = work(2, 2).model;
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 10,
        shared_ffn: 6,
        shared_gate: false,
        dense_layers: 3,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 4, value_width: 6 };
    let gpt = ModelConfig { family: Family::Gpt, ..usual };
    let models = [
        ("Qwen 3", ModelConfig { variant: Variant { qk_norm: true, ..Variant::USUAL }, ..usual }),
        ("Gemma 2", ModelConfig { variant: common::gemma_2(5), tied: true, ..usual }),
        (
            "capped everywhere",
            ModelConfig { variant: Variant { window: None, ..common::gemma_2(5) }, tied: true, ..usual },
        ),
        ("Granite", ModelConfig { variant: common::granite(), ..usual }),
        (
            "gated shared experts",
            ModelConfig {
                variant: Variant { experts: Some(Experts { shared_gate: true, ..experts }), ..Variant::USUAL },
                ..usual
            },
        ),
        (
            "experts",
            ModelConfig { variant: Variant { qkv_bias: true, experts: Some(experts), ..Variant::USUAL }, ..usual },
        ),
        (
            "DeepSeek",
            ModelConfig {
                variant: Variant { latent: Some(latent), multi_token: 2, ..Variant::USUAL },
                kv_heads: usual.heads,
                head_dim: 10,
                ..usual
            },
        ),
        ("GLM", ModelConfig { variant: Variant { rotary: Some(2), ..Variant::USUAL }, ..usual }),
        (
            "GPT-NeoX",
            ModelConfig {
                variant: Variant { rotary: Some(2), arrangement: Arrangement::Beside, ..Variant::USUAL },
                ..gpt
            },
        ),
        (
            "Falcon",
            ModelConfig {
                variant: Variant {
                    rotary: Some(4),
                    arrangement: Arrangement::BesideOneNorm,
                    no_bias: true,
                    ..Variant::USUAL
                },
                kv_heads: 1,
                ..gpt
            },
        ),
    ];
    for (name, model) in models {
        for recompute in Recompute::ALL {
            let mut work = ModelWork { model, ..work(2, 2) };
            work.layout.form.recompute = recompute;
            holds_what_liveness_says(&work, &format!("{name} {recompute:?}"));
            if model.variant.window.is_none() && model.variant.latent.is_none() {
                work.layout.form = Form { attention: AttentionForm::Materialised, dropout: true, ..work.layout.form };
                holds_what_liveness_says(&work, &format!("{name} {recompute:?}, scores held"));
            }
        }
    }
}

/// What waits in host memory leaves the device's, all of it or that of a stage's first layers.
#[test]
fn what_waits_in_the_host_s_memory_leaves_the_device_s() {
    let usual = work(2, 2).model;
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 10,
        shared_ffn: 6,
        shared_gate: true,
        dense_layers: 3,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    for (name, model) in [
        ("Llama", usual),
        ("GPT", ModelConfig { family: Family::Gpt, ..usual }),
        ("Gemma 2", ModelConfig { variant: common::gemma_2(5), tied: true, ..usual }),
        ("experts", ModelConfig { variant: Variant { experts: Some(experts), ..Variant::USUAL }, ..usual }),
    ] {
        for recompute in Recompute::ALL {
            let kept = |offload| {
                let mut work = ModelWork { model, ..work(2, 2) };
                work.layout.form = Form { recompute, offload, ..work.layout.form };
                holds_what_liveness_says(&work, &format!("{name} {recompute:?} {offload:?}"));
                let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
                let cost = derived.statement.stages[0];
                (cost.forward_bytes, derived.host_bytes[0])
            };
            let [(all, here), (some, first), (least, away)] =
                [Offload::None, Offload::First(1), Offload::All].map(kept);
            assert_eq!(here, [0, 0]);
            assert!(least < some && some < all && all > 3 * least, "{name} {recompute:?}: {all} {some} {least}");
            // What leaves the one is in the other.
            assert_eq!((all - some, all - least), (first[0] as i64, away[0] as i64), "{name} {recompute:?}");
        }
    }
}

/// A change of the usual work.
type Change = fn(&mut ModelWork);

/// Experts of a model of [`peak_cases`].
const SHARED_EXPERTS: Experts = Experts {
    count: 4,
    active: 2,
    ffn: 12,
    shared_ffn: 6,
    shared_gate: true,
    dense_layers: 1,
    layers: None,
    biases: false,
    routing: Routing::USUAL,
};

/// Schedules, ranks of a pipeline, ranks of a tensor-parallel group and changes of the usual work.
///
/// Long on purpose: a table of cases.
fn peak_cases() -> Vec<(&'static str, usize, u32, Change)> {
    let full: Change = |work| work.layout.form.recompute = Recompute::Full;
    let as_it_is: Change = |_| {};
    let beside: Change = |work| work.layout.form.async_reduce = true;
    let by_layer: Change = |work| {
        use Recompute::{Cheap, Full, None};
        work.layout.form.async_reduce = true;
        work.layout.recompute_layers = RecomputeLayers::Each(vec![Full, None, Cheap, None, Full, Full, None, Cheap]);
    };
    let shared_out: Change = |work| (work.layout.data, work.layout.zero) = (2, 1);
    let shared_out_by_layer: Change = |work| {
        (work.layout.data, work.layout.zero, work.microbatch_size) = (2, 1, 3);
        work.layout.form.recompute = Recompute::Cheap;
        work.layout.recompute_layers = RecomputeLayers::First(1);
    };
    let uneven: Change = |work| {
        work.layout.partition = Partition::ByHand(vec![1, 4, 3]);
        work.microbatch_size = 1;
    };
    let neox: Change = |work| {
        work.model.family = Family::Gpt;
        (work.model.variant.rotary, work.model.variant.arrangement) = (Some(4), Arrangement::Beside);
    };
    let gemma: Change = |work| (work.model.variant, work.model.tied) = (common::gemma_2(5), true);
    let tied_gpt: Change = |work| (work.model.family, work.model.tied) = (Family::Gpt, true);
    let dealt: Change = |work| {
        work.model.variant = Variant { experts: Some(SHARED_EXPERTS), ..Variant::USUAL };
        (work.layout.data, work.layout.zero) = (4, 1);
        (work.layout.form.expert, work.layout.form.imbalance_permille) = (2, 2000);
        work.layout.form.recompute = Recompute::Full;
    };
    let ring: Change = |work| (work.layout.form.context, work.sequence) = (2, 24);
    let windowed_ring: Change = |work| {
        (work.layout.form.context, work.sequence, work.layout.data, work.layout.zero) = (2, 24, 2, 1);
        (work.model.variant, work.layout.form.recompute) = (common::gemma_2(5), Recompute::Full);
    };
    let on_host: Change = |work| work.layout.form.offload = Offload::All;
    let partly_on_host: Change = |work| {
        (work.layout.form.offload, work.layout.form.recompute) = (Offload::First(1), Recompute::Cheap);
    };
    let state_on_host: Change = |work| work.layout.offload_optimizer = true;
    let all_on_host: Change = |work| {
        (work.layout.offload_optimizer, work.layout.form.offload) = (true, Offload::All);
        (work.layout.data, work.layout.zero) = (2, 1);
    };
    let modules_apart: Change = |work| {
        work.model.variant.multi_token = 2;
        work.layout.partition = Partition::WithModules(vec![[5, 0], [3, 0], [0, 1], [0, 1]]);
    };
    vec![
        ("1f1b", 1, 1, as_it_is),
        ("1f1b", 4, 1, modules_apart),
        ("1f1b", 4, 1, as_it_is),
        ("gpipe", 2, 1, full),
        ("zb-h1", 4, 1, as_it_is),
        ("zb-v", 2, 1, full),
        ("interleaved-1f1b", 2, 1, full),
        // Tensor-parallel ranks, also their tokens, and so unevenly a vocabulary.
        ("1f1b", 2, 4, full),
        ("zb-v", 2, 2, full),
        ("zb-h1", 4, 2, as_it_is),
        ("gpipe", 1, 4, as_it_is),
        // Reductions overlapped with compute, also with layers that differ.
        ("1f1b", 2, 2, beside),
        ("zb-h1", 2, 4, beside),
        ("zb-v", 2, 2, by_layer),
        ("1f1b", 4, 1, by_layer),
        // Copies that share out the optimizer states.
        ("1f1b", 2, 1, shared_out),
        ("zb-h1", 2, 2, shared_out),
        ("interleaved-1f1b", 2, 1, shared_out_by_layer),
        ("zb-h2", 3, 1, uneven),
        ("zb-h1", 2, 1, neox),
        ("1f1b", 2, 2, neox),
        ("zb-h1", 2, 1, gemma),
        ("1f1b", 2, 2, gemma),
        ("interleaved-1f1b", 2, 4, gemma),
        ("chimera", 4, 1, tied_gpt),
        ("dualpipe-v", 2, 1, as_it_is),
        ("v-half", 4, 1, as_it_is),
        // Experts dealt to ranks.
        ("1f1b", 2, 1, dealt),
        ("zb-v", 2, 2, dealt),
        // What waits in host memory.
        ("1f1b", 2, 1, on_host),
        ("zb-h1", 2, 2, on_host),
        ("zb-v", 2, 1, partly_on_host),
        ("interleaved-1f1b", 2, 4, partly_on_host),
        ("1f1b", 2, 2, state_on_host),
        ("zb-v", 2, 1, all_on_host),
        ("chimera", 4, 1, state_on_host),
        // Keys and values in a ring: two blocks, and in the gradient theirs beside them.
        ("1f1b", 2, 2, ring),
        ("zb-h1", 2, 4, ring),
        ("interleaved-1f1b", 2, 1, windowed_ring),
    ]
}

/// What a rank's allocator counts is the prediction, except for the message buffers: the prediction reserves them, and the
/// run takes only those that it needs.
#[test]
fn the_high_water_mark_is_the_predicted_peak() {
    for (name, ranks, tensor, change) in peak_cases() {
        let mut work = work(ranks, 8);
        work.layout.form.tensor = tensor;
        work.layout.form.sequence_parallel = tensor == 4;
        work.model.vocab += tensor - 1;
        change(&mut work);
        let what = format!("{name} on {ranks} ranks of {tensor}");
        assert_peak_as_predicted(name, &work, &what);
    }
}

/// What a format is called, and what changes the usual work to it.
type Format<'a> = (&'a str, &'a dyn Fn(&mut ModelWork));

/// So it is where numbers take fewer bits than those that the CPU computes in: all of a model in bf16, gradients and
/// moments too, and operands of products in FP8 and FP4.
#[test]
fn numbers_in_fewer_bits_take_the_predicted_bytes() {
    let bf16: Change = |work| work.dtype = Dtype::Bf16;
    let all_bf16: Change = |work| {
        (work.dtype, work.layout.form.bf16_gradients, work.layout.bf16_moments) = (Dtype::Bf16, true, true);
    };
    let products =
        |dtype| move |work: &mut ModelWork| (work.dtype, work.layout.form.matmul_dtype) = (Dtype::Bf16, Some(dtype));
    let [fp8, mxfp8, mxfp4, nvfp4] = Dtype::OF_MATMULS.map(products);
    let formats: [Format<'_>; 6] = [
        ("bf16", &bf16),
        ("bf16 gradients and moments", &all_bf16),
        ("fp8", &fp8),
        ("mxfp8", &mxfp8),
        ("mxfp4", &mxfp4),
        ("nvfp4", &nvfp4),
    ];
    // A number of cases that is no multiple of the formats' gives each one others.
    for (at, (name, ranks, tensor, change)) in peak_cases().into_iter().enumerate().skip(1).step_by(3) {
        let (format, set) = &formats[at / 3 % formats.len()];
        let mut work = wide(ranks, 8);
        work.layout.form.tensor = tensor;
        work.layout.form.sequence_parallel = tensor == 4;
        change(&mut work);
        set(&mut work);
        assert_peak_as_predicted(name, &work, &format!("{name} on {ranks} ranks of {tensor} in {format}"));
    }
    for (format, set) in formats {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let mut work = wide(2, 2);
            set(&mut work);
            work.layout.form.recompute = recompute;
            holds_what_liveness_says(&work, &format!("{format}, {recompute:?}"));
        }
    }
}

/// What ranks hold in a run of `work` as `name` is what the plan predicts.
fn assert_peak_as_predicted(name: &str, work: &ModelWork, what: &str) {
    let precision = (work.dtype == Dtype::F32).then_some(Precision::Single);
    let workload = pipeplan::runner::published_workloads::published(work, name, precision);
    let workload = workload.unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = train(&workload, &options(2));
    let shape = pipeplan_core::schedule::find(name).expect("published").shape;
    let (placement, chunks) = shape(work.chunks as usize);
    let derived = derive(work, placement.clone(), chunks).expect("the model can be cut");
    let problem = problem(work, placement, chunks).expect("the model can be cut");
    let ranks = workload.program.rows.len();
    assert_eq!(report.memory.len(), ranks * work.layout.devices_per_rank() as usize);
    for at in 0..report.memory.len() {
        let what = format!("{what}, rank {} of {at}", at % ranks);
        assert_as_predicted(&what, &workload, work, (&problem, &derived), &report, (at, ranks));
    }
}

/// The memory of the rank at `at` of a world whose pipelines have `ranks` ranks is what `problem` and `derived` predict.
fn assert_as_predicted(
    what: &str,
    workload: &Workload,
    work: &ModelWork,
    (problem, derived): (&Problem, &Derived),
    report: &RunReport,
    (at, ranks): (usize, usize),
) {
    let (memory, rank) = (&report.memory[at], at % ranks);
    let row = workload.program.rows[rank].iter().filter_map(|step| match step {
        pipeplan_core::program::Step::Compute(op) => Some(*op),
        _ => None,
    });
    let predicted = pipeplan_core::simulate::timeline::peak_bytes(problem, rank, row);
    let buffers = derived.static_bytes[rank].buffers;
    let what = format!("{what}: {memory:?}, predicted {predicted}");
    let fixed = problem.static_bytes(rank) - buffers;
    // The first copy has as much of what is shared out as any.
    if at < ranks {
        assert_eq!(memory.persistent_bytes, fixed, "{what}");
    }
    assert!(memory.persistent_bytes <= fixed && fixed - memory.persistent_bytes < fixed / 100, "{what}");
    let held = predicted - problem.static_bytes(rank);
    assert_eq!(memory.activation_bytes, held, "{what}");
    let ops = workload.program.rows[rank].iter().filter_map(|step| match step {
        pipeplan_core::program::Step::Compute(op) => Some(*op),
        _ => None,
    });
    let kept = pipeplan_core::plan::verdict::on_host(&derived.host_bytes, ops);
    assert_eq!(kept > 0, work.layout.form.offload != Offload::None, "{what}");
    let on_host = kept + derived.static_bytes[rank].on_host;
    assert_eq!(workload.host_bytes()[rank], on_host, "{what}");
    if at < ranks {
        assert_eq!(memory.host_bytes, on_host, "{what}");
    }
    assert!(memory.host_bytes <= on_host && on_host - memory.host_bytes <= on_host / 100, "{what}");
    assert!(memory.high_water_bytes <= predicted, "{what}");
}

/// A parcel of another size is refused, not read.
#[test]
fn a_parcel_of_another_size_is_refused() {
    let work = work(4, 2);
    let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
    let graph = graph_of(&work, &derived.stages[1]);
    let batches = Batches::new(vec![b'a'; 100], [12, 1], 2, 2, 0).expect("text");
    let mut store = Store::default();
    let mut cpu = Cpu::<f32>::new([(1, graph)], 4, 1, AdamW::default(), Arc::new(batches), &mut store);
    let parcel = Parcel { payload: Payload::Activation, stage: 1, microbatch: 0 };
    store.put(parcel, Buffer::F32(vec![0.0; 3]));
    let error = cpu.compute(Op::new(1, OpKind::F, 0), &mut store, &mut Alone::default()).expect_err("too short");
    assert_eq!(error.to_string(), "the activation for stage 1 of microbatch 0 has 12 bytes; expected are 1536");
}
