//! Whether tensor-parallel ranks, with pipelines and replicas around them, train as one rank does.

mod common;

use common::{Expected, bits, options, published, resumes_on_any, stalled, train, trains_as_one_rank};
use pipeplan::runner::{Cause, Computation, Precision, State, Workload};
use pipeplan_core::graph::Axis;
use pipeplan_core::graph::form::{AttentionForm, Recompute};
use pipeplan_core::model::{Arrangement, Experts, Family, Latent, Routing, Variant};
use pipeplan_core::problem::Schedule;
use pipeplan_core::schedule;
use pipeplan_core::spec::ModelWork;

/// Ranks of a pipeline, tensor-parallel ranks, replicas.
type Sizes = [usize; 3];

/// All of up to 8 ranks.
fn all_sizes() -> Vec<Sizes> {
    let up_to = |most: usize| 1..=most;
    let all =
        up_to(8).flat_map(|pp| up_to(8 / pp).flat_map(move |tp| up_to(8 / pp / tp).map(move |dp| [pp, tp, dp])));
    all.collect()
}

/// A decoder that up to 8 ranks can share: with 4, two hold each head of keys, and with 8 the vocabulary does not divide.
/// Heads and widths are other ones where 3, 5, 6 or 7 share them.
fn work([pp, tp, dp]: Sizes) -> ModelWork {
    // Two stages a rank, and enough microbatches for every schedule.
    let mut work = common::work(pp, 2 * pp);
    work.model.layers = (2 * pp as u32).max(8);
    (work.model.heads, work.model.kv_heads, work.model.head_dim) = (8, 2, 2);
    (work.model.vocab, work.sequence, work.microbatch_size) = (260, 8, 1);
    match tp as u32 {
        3 | 6 => (work.model.heads, work.model.kv_heads, work.sequence) = (6, 3, 12),
        odd @ (5 | 7) => {
            (work.model.heads, work.model.kv_heads, work.model.ffn, work.sequence) = (odd, 1, 5 * odd, 2 * odd);
        }
        _ => {}
    }
    work.layout.form.tensor = tp as u32;
    work.layout.data = dp as u32;
    work
}

/// Each combination in which ranks share matrices, with one schedule, and with one of the other things that change what
/// ranks do.
#[test]
fn combinations_train_as_one_rank() {
    let mut expected = Expected::default();
    let names = ["1f1b", "zb-v", "interleaved-1f1b", "dualpipe", "zb-h1", "gpipe"];
    let powers = |sizes: &Sizes| sizes[1] > 1 && sizes.iter().all(|size| size.is_power_of_two());
    let odd = [[1, 3, 2], [3, 2, 1], [1, 5, 1], [1, 6, 1]];
    for (at, sizes) in all_sizes().into_iter().filter(powers).chain(odd).enumerate() {
        let mut work = work(sizes);
        let mut options = options(20);
        let form = &mut work.layout.form;
        form.sequence_parallel = at % 2 == 1;
        form.async_reduce = at % 4 < 2;
        form.recompute = [Recompute::None, Recompute::Full, Recompute::Cheap][at % 3];
        work.layout.zero = u32::from(at % 4 > 1 && sizes[2] > 1);
        work.model.tied = at % 3 == 1;
        work.model.variant.multi_token = u32::from(at % 5 > 2);
        options.clip_norm = (at % 3 == 2).then_some(0.25);
        let tried = (0..names.len())
            .find(|next| trains_as_one_rank(&work, names[(at + next) % names.len()], &options, &mut expected));
        assert!(tried.is_some(), "{sizes:?}");
    }
}

/// Sums that run beside the dW matmul are the same sums.
#[test]
fn reductions_beside_compute_change_no_bit() {
    for (sizes, name, sequence_parallel) in [
        ([2, 2, 1], "1f1b", false),
        ([1, 4, 1], "zb-h1", false),
        ([2, 4, 1], "zb-v", true),
        ([1, 2, 1], "gpipe", true),
    ] {
        let with = |async_reduce: bool| {
            let mut work = work(sizes);
            let form = &mut work.layout.form;
            (form.async_reduce, form.sequence_parallel) = (async_reduce, sequence_parallel);
            form.recompute = Recompute::Cheap;
            let workload = published(&work, name, Precision::Single).expect("it exists");
            let Computation::Model(model) = &workload.computation else { panic!("a model") };
            let begun =
                model.graphs.iter().flat_map(|graph| &graph.operators).filter(|op| op.kernel.starts()).count();
            assert_eq!(begun > 0, async_reduce, "{name}");
            train(&workload, &options(4))
        };
        let (plain, beside) = (with(false), with(true));
        assert_eq!((bits(&plain), plain.weights), (bits(&beside), beside.weights), "{name} on {sizes:?}");
    }
}

#[test]
fn other_forms_of_a_layer_train_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (family, attention)) in [
        (Family::Gpt, AttentionForm::Flash),
        (Family::Gpt, AttentionForm::Materialised),
        (Family::Llama, AttentionForm::Materialised),
    ]
    .into_iter()
    .enumerate()
    {
        let mut work = work([2, [2, 4][at % 2], 1]);
        work.model.family = family;
        if family == Family::Gpt {
            work.model.kv_heads = work.model.heads;
        }
        let form = &mut work.layout.form;
        (form.attention, form.dropout) = (attention, true);
        for sequence_parallel in [false, true] {
            work.layout.form.sequence_parallel = sequence_parallel;
            work.layout.form.recompute = if sequence_parallel { Recompute::Selective } else { Recompute::None };
            assert!(trains_as_one_rank(&work, "zb-h1", &options(6), &mut expected));
        }
    }
}

/// Norms of heads, norms behind, GELU gates, windows, experts (each cut, and whole where tokens are shared out), and latent
/// attention: among ranks that hold heads of their own, and among more than there are heads of keys.
#[test]
fn newer_families_train_as_one_rank() {
    let mut expected = Expected::default();
    let experts = Experts {
        count: 4,
        active: 2,
        ffn: 16,
        shared_ffn: 0,
        shared_gate: false,
        dense_layers: 0,
        layers: None,
        biases: false,
        routing: Routing::USUAL,
    };
    let latent = |query_rank| Some(Latent { query_rank, key_value_rank: 10, rope_width: 2, value_width: 3 });
    let shared = Experts { shared_ffn: 8, dense_layers: 1, layers: None, biases: false, ..experts };
    let gated = Experts { shared_gate: true, ..shared };
    let usual = Variant::USUAL;
    for (at, (variant, whole_experts)) in [
        (Variant { qk_norm: true, ..usual }, false),
        (common::gemma_2(3), false),
        (Variant { rotary: Some(2), ..common::granite() }, false),
        (Variant { experts: Some(experts), ..usual }, false),
        (Variant { experts: Some(shared), ..usual }, true),
        (Variant { experts: Some(gated), ..usual }, false),
        (Variant { experts: Some(gated), ..usual }, true),
        (Variant { experts: Some(shared), latent: latent(12), ..usual }, false),
        (Variant { latent: latent(0), ..usual }, false),
    ]
    .into_iter()
    .enumerate()
    {
        for (sizes, sequence_parallel) in
            [([2, 2, 1], true), ([1, 4, 1], at % 2 == 1 || whole_experts), ([1, 2, 2], whole_experts)]
        {
            let mut work = work(sizes);
            work.model.layers = 4;
            work.model.variant = variant;
            if variant.latent.is_some() {
                (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
            }
            let form = &mut work.layout.form;
            (form.sequence_parallel, form.whole_experts, form.async_reduce) =
                (sequence_parallel, whole_experts, at % 2 == 0);
            form.recompute = [Recompute::None, Recompute::Full, Recompute::Cheap][at % 3];
            let mut faults = Vec::new();
            form.find_faults(&work.model, work.sequence, "", &mut faults);
            assert!(faults.is_empty(), "{faults:?}");
            assert!(trains_as_one_rank(&work, "1f1b", &options(5), &mut expected), "{variant:?} {sizes:?}");
        }
    }
}

/// So do later GPTs, whose heads are turned in part and whose parts of a layer may stand beside each other.
#[test]
fn newer_gpts_train_as_one_rank() {
    let mut expected = Expected::default();
    let half = Variant { rotary: Some(2), ..Variant::USUAL };
    for (variant, kv_heads) in [
        (Variant { arrangement: Arrangement::Beside, ..half }, 8),
        (Variant { arrangement: Arrangement::BesideOneNorm, no_bias: true, ..half }, 1),
    ] {
        for (sizes, sequence_parallel) in [([2, 2, 1], true), ([1, 4, 1], false)] {
            let mut work = work(sizes);
            (work.model.family, work.model.variant) = (Family::Gpt, variant);
            (work.model.kv_heads, work.model.head_dim) = (kv_heads, 4);
            work.layout.form.sequence_parallel = sequence_parallel;
            assert!(trains_as_one_rank(&work, "1f1b", &options(5), &mut expected), "{variant:?} {sizes:?}");
        }
    }
}

/// Messages of the pipeline that run overlapped with compute, among collectives that do too.
#[test]
fn messages_and_reductions_overlap() {
    use pipeplan_core::program::Step;
    use pipeplan_core::program::lower::{Lowering, lower_as};
    let mut work = work([4, 2, 1]);
    work.layout.form.async_reduce = true;
    let workload = published(&work, "zb-v", Precision::Single).expect("it exists");
    let expected = train(&workload, &options(4));
    let ops = |row: &Vec<Step>| {
        row.iter().filter_map(|step| if let Step::Compute(op) = step { Some(*op) } else { None }).collect()
    };
    let schedule = Schedule::of(workload.program.rows.iter().map(ops).collect());
    let program = lower_as(&workload.problem, &schedule, Lowering::Overlapped { prefetch: 1 }).expect("lowers");
    let run = train(&Workload { program, ..workload.clone() }, &options(4));
    assert_eq!((bits(&run), run.weights), (bits(&expected), expected.weights));
}

/// Every combination of up to 8 ranks with every schedule there is: some ten minutes of one core.
#[test]
#[ignore = "minutes: run it with --release -- --ignored --nocapture"]
fn every_combination_with_every_schedule_trains_as_one_rank() {
    let mut expected = Expected::default();
    let (mut ran, mut table) = (0, String::new());
    for sizes in all_sizes() {
        let mut row = String::new();
        for schedule in schedule::published() {
            let mut work = work(sizes);
            work.layout.form.sequence_parallel = sizes[1] > 1 && ran % 2 == 1;
            work.layout.form.async_reduce = sizes[1] > 1 && ran % 4 < 2;
            work.layout.zero = u32::from(sizes[2] > 1 && ran % 3 == 1);
            if trains_as_one_rank(&work, schedule.name, &options(20), &mut expected) {
                row.push_str(&format!(" {}", schedule.name));
                ran += 1;
            }
        }
        println!("{sizes:?}:{row}");
        table.push_str(&row);
    }
    println!("{ran} combinations of sizes and schedule");
    let run = |schedule: &schedule::Published| !schedule.is_of_slices();
    assert!(schedule::published().iter().filter(|one| run(one)).all(|one| table.contains(one.name)), "{table}");
}

fn planned(sizes: Sizes, zero: u32, name: &str, precision: Precision) -> Workload {
    let mut work = work(sizes);
    work.microbatches = 8 / sizes[2] as u32;
    work.layout.zero = zero;
    work.layout.form.sequence_parallel = zero == 1 && sizes[1] > 1;
    published(&work, name, precision).unwrap_or_else(|| panic!("{name} exists"))
}

/// On their own layout to the bit, on another one within rounding.
#[test]
fn checkpoints_go_from_any_layout_to_any() {
    let layouts = [
        ([1, 1, 1], 0, "1f1b"),
        ([2, 2, 2], 1, "1f1b"),
        ([1, 8, 1], 0, "gpipe"),
        ([4, 2, 1], 0, "zb-h1"),
        ([1, 4, 2], 1, "1f1b"),
        ([2, 1, 4], 1, "zb-v"),
        ([1, 2, 4], 0, "gpipe"),
        ([2, 4, 1], 0, "dualpipe"),
    ];
    let planned = |(sizes, zero, name)| planned(sizes, zero, name, Precision::Double);
    resumes_on_any(&layouts, planned, 6);
}

/// A member that stands still is named by the one that waits for it, with the collective and its group.
#[test]
fn a_member_that_does_not_come_is_named() {
    // One stage: ranks of another would wait just as long for what this one computes, and could give up first.
    let workload = published(&work([1, 2, 1]), "1f1b", Precision::Single).expect("it exists");
    let failure = stalled(&workload, 5, 4);
    assert!(matches!(failure.cause, Cause::Collective(_)), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("rank 0 failed: "), "{text}");
    assert!(text.contains("among ranks [0, 1]") && text.contains("for rank 1 to send its part of"), "{text}");
    assert_eq!(failure.ranks[1].state, State::Joining, "{text}");
    assert!(text.contains("rank 1: in a tensor-parallel collective with rank 0 at training step 0"), "{text}");
}

/// Positions are those of the documented mesh.
#[test]
fn ranks_stand_on_the_mesh() {
    let mut work = work([2, 2, 3]);
    work.layout.form.context = 2;
    let workload = published(&work, "1f1b", Precision::Single).expect("it exists");
    let mesh = workload.mesh().expect("a mesh");
    let [pp, dp, cp, tp] = ["pp", "dp", "cp", "tp"].map(|axis| mesh.axis(axis).unwrap());
    assert_eq!(workload.world(), 24);
    for rank in 0..24 {
        let position = workload.position(rank);
        let coordinates = mesh.coordinates(rank).expect("in it");
        assert_eq!(coordinates, [position.rank, position.replica, position.part, position.member]);
        assert_eq!(position.world_rank(), rank);
        for (axis, along) in [(tp, Axis::Tensor), (cp, Axis::Context)] {
            assert_eq!(mesh.group(axis, rank).expect("a group").ranks(), position.group(along));
        }
        // Gradients are averaged over replicas and parts, those of a replica together.
        let replicas = mesh.group(dp, rank).expect("a group");
        let parts = |replica: &usize| mesh.group(cp, *replica).expect("a group").ranks().to_vec();
        let copies: Vec<usize> = replicas.ranks().iter().flat_map(parts).collect();
        assert_eq!(copies, position.copies_group());
        assert_eq!(copies.get(position.copy()), Some(&rank));
        let pipeline: Vec<usize> = (0..2).map(|other| position.in_world(other)).collect();
        assert_eq!(mesh.group(pp, rank).expect("a group").ranks(), pipeline);
    }
    // The fastest axis is that of the tensor-parallel ranks, then comes that of parts of sequences.
    assert_eq!(workload.position(1).group(Axis::Tensor), [0, 1]);
    assert_eq!(workload.position(1).group(Axis::Context), [1, 3]);
}
