//! Whether ranks on the CPU train in the number formats of a plan: bf16, gradients and moments in bf16, and products in FP8
//! and FP4. What a rank keeps is rounded; what it computes is in f32.

mod common;

use common::{EXPERTS, Expected, alone, assert_near, bits, options, train, wide, work};
use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::published_workloads::{one_by_one, published};
use pipeplan::runner::{Precision, RunOptions, RunReport, Workload};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::graph::form::{Offload, Recompute};
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::graph::post_training::{Lora, Targets};
use pipeplan_core::model::{Dtype, Latent, Variant};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::spec::ModelWork;

/// `work` in its own formats, as the published schedule `name`.
fn planned(work: &ModelWork, name: &str) -> Workload {
    published(work, name, None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// One rank that takes all of `work` by itself, in its own formats.
fn whole(work: &ModelWork) -> Workload {
    one_by_one(&ModelWork { pipeline: 1, ..work.clone() }, None).unwrap_or_else(|error| panic!("{error}"))
}

fn same(found: &RunReport, expected: &RunReport, what: &str) {
    assert_eq!(bits(found), bits(expected), "losses of {what}");
    assert!(found.weights == expected.weights, "weights of {what}");
}

/// Messages between stages carry bf16 numbers as they are, so stages change no bit: in bf16, with gradients and moments
/// in it, and with products in fewer bits.
#[test]
fn stages_change_no_bit() {
    let formats: [fn(&mut ModelWork); 6] = [
        |_| {},
        |work| (work.layout.form.bf16_gradients, work.layout.bf16_moments) = (true, true),
        |work| work.layout.form.matmul_dtype = Some(Dtype::Fp8),
        |work| work.layout.form.matmul_dtype = Some(Dtype::MxFp8),
        |work| work.layout.form.matmul_dtype = Some(Dtype::MxFp4),
        |work| work.layout.form.matmul_dtype = Some(Dtype::NvFp4),
    ];
    for (at, set) in formats.into_iter().enumerate() {
        let mut work = ModelWork { dtype: Dtype::Bf16, ..wide(2, 4) };
        work.model.layers = 4;
        work.model.tied = at == 1;
        set(&mut work);
        let expected = train(&whole(&work), &options(4));
        for schedule in ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b"] {
            let what = format!("{schedule}, formats {at}");
            let found = train(&planned(&work, schedule), &options(4));
            // Two stages of a rank or of two add up the gradients of a tied weight in another order.
            if work.model.tied {
                common::assert_close_losses(&found, &expected, 1e-3, &what);
            } else {
                same(&found, &expected, &what);
            }
        }
        for (recompute, offload) in [(Recompute::Full, Offload::None), (Recompute::Cheap, Offload::All)] {
            let mut work = work.clone();
            (work.layout.form.recompute, work.layout.form.offload) = (recompute, offload);
            if !work.model.tied {
                same(
                    &train(&planned(&work, "1f1b"), &options(4)),
                    &expected,
                    &format!("{recompute:?}, formats {at}"),
                );
            }
        }
    }
}

/// Along every other axis, and with all that a model may have, a run in bf16 is as near to one rank in f64 as one on a
/// GPU has to be.
#[test]
fn every_axis_trains_in_bf16() {
    type Change = fn(&mut ModelWork);
    let all: [(&str, Change); 9] = [
        ("1f1b", |work| (work.layout.form.tensor, work.layout.form.sequence_parallel) = (2, true)),
        ("zb-h1", |work| {
            (work.layout.form.tensor, work.layout.form.async_reduce) = (2, true);
            (work.layout.data, work.layout.zero) = (2, 1);
        }),
        ("1f1b", |work| (work.layout.form.context, work.sequence) = (2, 24)),
        ("1f1b", |work| (work.layout.data, work.layout.zero) = (2, 3)),
        ("zb-v", |work| (work.layout.data, work.layout.zero) = (2, 2)),
        ("1f1b", |work| {
            work.model.variant = Variant { experts: Some(EXPERTS), ..Variant::USUAL };
            (work.layout.data, work.layout.form.expert, work.layout.form.imbalance_permille) = (2, 2, 4000);
        }),
        ("dualpipe", |work| {
            let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
            work.model.variant = Variant { latent: Some(latent), ..Variant::USUAL };
            (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
        }),
        ("seq1f1b", |work| (work.sequence, work.layout.slices) = (24, 3)),
        ("1f1b", |work| work.layout.form.lora = Some(Lora { rank: 4, alpha: 8, targets: Targets::ALL })),
    ];
    let mut expected = Expected::default();
    for (at, (schedule, change)) in all.into_iter().enumerate() {
        for bf16_sums in [false, true] {
            let mut work = ModelWork { dtype: Dtype::Bf16, ..work(2, 4) };
            work.model.layers = 4;
            change(&mut work);
            (work.layout.form.bf16_gradients, work.layout.bf16_moments) = (bf16_sums, bf16_sums);
            let what = format!("{schedule}, case {at}, gradients in bf16: {bf16_sums}");
            let options = RunOptions { clip_norm: (at % 2 == 0).then_some(0.25), ..options(4) };
            let found = train(&planned(&work, schedule), &options);
            let mut plain = work.clone();
            (plain.layout.form.bf16_gradients, plain.layout.bf16_moments) = (false, false);
            assert_near(&found, expected.of(&plain, Precision::Double, &options), &work, &what);
        }
    }
}

/// The gradient of one microbatch is the same number in f32 and in bf16, up to one rounding: SGD without decay moves each
/// weight by the gradient times a rate, which a weight that starts at 0 shows.
#[test]
fn a_gradient_in_bf16_is_rounded_once() {
    let mut work = ModelWork { dtype: Dtype::Bf16, microbatches: 1, ..work(1, 1) };
    (work.model.layers, work.layout.optimizer) = (2, Optimizer::Sgd);
    let after = |bf16_gradients: bool| {
        let mut work = work.clone();
        work.layout.form.bf16_gradients = bf16_gradients;
        let mut options = RunOptions { clip_norm: None, ..options(1) };
        (options.optimizer.learning_rate, options.optimizer.weight_decay) = (1.0, 0.0);
        train(&planned(&work, "gpipe"), &options)
    };
    let still = {
        let mut options = options(1);
        (options.optimizer.learning_rate, options.optimizer.weight_decay) = (f64::MIN_POSITIVE, 0.0);
        train(&planned(&work, "gpipe"), &options)
    };
    let (wide, narrow) = (after(false), after(true));
    let mut rounded = 0;
    for (name, start) in &still.weights {
        use pipeplan::transport::Buffer::F32;
        let (F32(start), F32(wide), F32(narrow)) = (start, &wide.weights[name], &narrow.weights[name]) else {
            panic!("{name} is lent in f32");
        };
        for ((start, wide), narrow) in start.iter().zip(wide).zip(narrow) {
            // Each of the two weights is rounded to 24 bits once.
            let slack = 4.0 * f32::EPSILON * start.abs().max(wide.abs());
            let gradient = start - wide;
            let error = (start - narrow - gradient).abs();
            assert!(error <= gradient.abs() / 256.0 + slack, "{name}: {gradient} became {}", start - narrow);
            rounded += usize::from(error > slack);
        }
    }
    assert!(rounded > 0, "some gradient has more than 8 bits");
}

/// A checkpoint has the master weights and goes on to the bit, also on other ranks; and in f32.
#[test]
fn checkpoints_of_bf16_keep_every_bit() {
    let mut work = ModelWork { dtype: Dtype::Bf16, ..work(2, 4) };
    (work.model.layers, work.layout.bf16_moments, work.layout.form.bf16_gradients) = (4, true, true);
    for (data, zero) in [(1, 0), (2, 1), (2, 3)] {
        (work.layout.data, work.layout.zero) = (data, zero);
        let workload = planned(&work, "1f1b");
        let unbroken = train(&workload, &options(6));
        let folder = tempfile::tempdir().expect("a folder");
        let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
        train(&workload, &RunOptions { saving, ..options(3) });
        let resume = Some(Checkpoint::open(folder.path()).expect("a checkpoint"));
        let found = train(&workload, &RunOptions { resume, ..options(6) });
        assert_eq!(bits(&found), bits(&unbroken)[3..], "data {data}, zero {zero}");
        assert!(found.weights == unbroken.weights, "data {data}, zero {zero}");
    }
}

/// What does not train has no master weights, and is read and written as it is kept: also where a rank has a share of it
/// alone, which begins anywhere.
#[test]
fn frozen_weights_in_bf16_are_shared() {
    for (data, zero) in [(3, 3), (3, 1), (1, 0)] {
        for lora in [true, false] {
            let mut work = ModelWork { dtype: Dtype::Bf16, ..work(2, 4) };
            (work.model.layers, work.layout.data, work.layout.zero) = (4, data, zero);
            match lora {
                true => work.layout.form.lora = Some(Lora { rank: 4, alpha: 8, targets: Targets::ALL }),
                false => work.layout.form.frozen.add("attention").expect("a module"),
            }
            let workload = planned(&work, "1f1b");
            let folder = tempfile::tempdir().expect("a folder");
            let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 0 });
            train(&workload, &RunOptions { saving, ..options(3) });
            let resume = Some(Checkpoint::open(folder.path()).expect("a checkpoint"));
            let (found, unbroken) =
                (train(&workload, &RunOptions { resume, ..options(5) }), train(&workload, &options(5)));
            assert_eq!(bits(&found), bits(&unbroken)[3..], "data {data}, zero {zero}, LoRA {lora}");
            assert!(found.weights == unbroken.weights, "data {data}, zero {zero}, LoRA {lora}");
        }
    }
}

/// Which rule updates a weight does not depend on the format of its products.
#[test]
fn muon_updates_matrices_with_products_in_any_format() {
    let state = |optimizer, matmul_dtype| {
        let mut work = ModelWork { dtype: Dtype::Bf16, ..wide(2, 4) };
        (work.model.layers, work.layout.optimizer, work.layout.form.matmul_dtype) = (4, optimizer, matmul_dtype);
        let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
        let planned_bytes: Vec<u64> = derived.static_bytes.iter().map(|bytes| bytes.optimizer).collect();
        (planned_bytes, train(&planned(&work, "1f1b"), &options(3)).losses())
    };
    let (plain, _) = state(Optimizer::Muon, None);
    for dtype in Dtype::OF_MATMULS {
        let (muon, losses) = state(Optimizer::Muon, Some(dtype));
        assert_eq!(muon, plain, "{dtype:?}");
        let (adamw, other) = state(Optimizer::AdamW, Some(dtype));
        assert!(muon[0] < adamw[0] && losses[0] == other[0] && losses[2] != other[2], "{dtype:?}");
    }
}

/// With gradients in shares, those under way are in the plan whatever the format of products.
#[test]
fn gradients_under_way_are_planned_in_any_format() {
    for matmul_dtype in [None].into_iter().chain(Dtype::OF_MATMULS.map(Some)) {
        let mut work = ModelWork { dtype: Dtype::Bf16, ..wide(2, 4) };
        (work.layout.data, work.layout.zero, work.layout.form.matmul_dtype) = (4, 2, matmul_dtype);
        let derived = derive(&work, Placement::Linear, 1).expect("the model can be cut");
        let problem = common::problem(&work, Placement::Linear, 1).expect("the model can be cut");
        let report = train(&planned(&work, "1f1b"), &options(2));
        for (at, memory) in report.memory.iter().enumerate() {
            let (rank, what) = (at % 2, format!("{matmul_dtype:?}, rank {at}: {memory:?}"));
            let most = derived.static_bytes[rank].total() - derived.static_bytes[rank].buffers;
            assert!(memory.persistent_bytes <= most, "{what}, planned {most}");
            assert!(memory.high_water_bytes <= problem.static_bytes(rank) + memory.activation_bytes, "{what}");
        }
    }
}

/// In one type by `--precision`, all of a plan is in it.
#[test]
fn one_type_is_all_of_it() {
    let mut plain = wide(2, 4);
    plain.model.layers = 4;
    let mut work = ModelWork { dtype: Dtype::Bf16, ..plain.clone() };
    (work.layout.form.matmul_dtype, work.layout.bf16_moments) = (Some(Dtype::Fp8), true);
    work.layout.form.bf16_gradients = true;
    let in_f32 = |work: &ModelWork| published(work, "1f1b", Some(Precision::Single)).expect("it exists");
    same(&train(&in_f32(&work), &options(3)), &train(&in_f32(&plain), &options(3)), "the plan in f32");
    let expected = train(&alone(&plain, Precision::Double), &options(3));
    // Products of numbers of 3 bits still learn: the loss falls as without them.
    let found = train(&planned(&work, "1f1b"), &options(3));
    common::assert_close_losses(&found, &expected, 2e-2, "products in FP8");
}
