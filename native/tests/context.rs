//! Whether ranks that hold parts of every sequence, and pass keys and values around a ring, train as one rank does.

mod common;

#[cfg(feature = "cuda")]
use common::trains_on_cards;
use common::{EXPERTS, Expected, options, published, resumes_on_any, stalled, trains_as_one_rank};
use pipeplan::runner::{Cause, Precision, RunOptions, State};
use pipeplan_core::graph::form::Recompute;
#[cfg(feature = "cuda")]
use pipeplan_core::model::Dtype;
use pipeplan_core::model::{Experts, Family, Latent, Variant, Window};
use pipeplan_core::spec::ModelWork;

/// Ranks of a pipeline, parts of a sequence, tensor-parallel ranks, replicas.
type Sizes = [usize; 4];

/// A decoder whose sequences 2, 3 or 4 ranks can hold, each with tensor-parallel ranks.
fn work([pp, cp, tp, dp]: Sizes) -> ModelWork {
    let mut work = common::work(pp, 2 * pp);
    work.model.layers = (2 * pp as u32).max(4);
    (work.model.heads, work.model.kv_heads, work.model.head_dim) = (4, 2, 4);
    (work.sequence, work.microbatch_size) = (24, 2);
    work.layout.data = dp as u32;
    let form = &mut work.layout.form;
    (form.context, form.tensor) = (cp as u32, tp as u32);
    work
}

/// A name, and what makes a plain model one.
type Kind = (&'static str, fn(&mut ModelWork));

/// Kinds of attention: plain, with norms of heads, within windows (shorter and longer than a piece) with soft caps, latent,
/// and with learned positions; and of layers, with experts.
fn kinds() -> Vec<Kind> {
    vec![
        ("Llama", |_| {}),
        ("Qwen 3", |work| work.model.variant = Variant { qk_norm: true, ..Variant::USUAL }),
        ("Gemma 2", |work| work.model.variant = common::gemma_2(3)),
        ("windows of pieces", |work| {
            let window = Some(Window::sliding(11, 0));
            work.model.variant = Variant { window, ..common::gemma_2(11) };
        }),
        ("DeepSeek", |work| {
            let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
            work.model.variant = Variant { latent: Some(latent), multi_token: 2, ..Variant::USUAL };
            (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
        }),
        ("GPT", |work| (work.model.family, work.model.kv_heads) = (Family::Gpt, work.model.heads)),
        ("turned in part", |work| work.model.variant = Variant { rotary: Some(2), ..common::granite() }),
        ("experts", |work| {
            let experts = EXPERTS;
            work.model.variant = Variant { experts: Some(experts), ..Variant::USUAL };
        }),
    ]
}

#[test]
fn every_kind_of_attention_trains_as_one_rank() {
    let mut expected = Expected::default();
    for (at, (kind, change)) in kinds().into_iter().enumerate() {
        for (sizes, schedule) in [([2, 2, 1, 1], "1f1b"), ([1, 3, 1, 1], "gpipe"), ([1, 4, 2, 1], "zb-h1")] {
            let mut work = work(sizes);
            change(&mut work);
            let form = &mut work.layout.form;
            form.sequence_parallel = sizes[2] > 1 && at % 2 == 0;
            form.dropout = at % 4 == 1;
            form.recompute = [Recompute::None, Recompute::Full, Recompute::Cheap][at % 3];
            assert!(trains_as_one_rank(&work, schedule, &options(4), &mut expected), "{kind} on {sizes:?}");
        }
    }
}

/// Pieces of more than one tile of the kernels, which do not fill them.
#[test]
fn long_pieces_train_as_one_rank() {
    let mut expected = Expected::default();
    for (sizes, window) in [([1, 2, 1, 1], None), ([1, 3, 1, 1], Some(Window::sliding(170, 2)))] {
        let mut work = work(sizes);
        (work.sequence, work.microbatch_size, work.model.layers) = (600, 1, 2);
        work.model.variant = Variant { window, ..Variant::USUAL };
        assert!(trains_as_one_rank(&work, "1f1b", &options(2), &mut expected), "{sizes:?}");
    }
}

/// With all that ranks do around it: schedules of all kinds, bidirectional ones among them, replicas, shared states of
/// the optimizer, tied tables, clipping.
#[test]
fn rings_train_as_one_rank_in_every_layout() {
    let mut expected = Expected::default();
    for (at, (sizes, schedule)) in [
        ([2, 2, 2, 2], "1f1b"),
        ([2, 2, 1, 2], "interleaved-1f1b"),
        ([2, 3, 1, 1], "zb-v"),
        ([4, 2, 1, 1], "dualpipe"),
        ([2, 2, 2, 1], "zb-h1"),
        ([2, 2, 1, 1], "chimera"),
        ([1, 4, 1, 2], "gpipe"),
        ([2, 4, 1, 1], "dualpipe-v"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut work = work(sizes);
        work.layout.zero = u32::from(at % 3 != 1);
        work.model.tied = at % 2 == 1;
        work.layout.form.sequence_parallel = sizes[2] > 1;
        work.layout.form.async_reduce = at % 4 == 0;
        work.model.variant.multi_token = u32::from(at % 4 == 3);
        if at % 4 == 0 {
            // Dealt to ranks of one ring, which see other tokens.
            let experts = Experts { shared_ffn: 0, ..EXPERTS };
            work.model.variant = Variant { experts: Some(experts), ..Variant::USUAL };
            (work.layout.form.expert, work.layout.form.imbalance_permille) = (2, 4000);
        }
        let options = RunOptions { clip_norm: (at % 2 == 0).then_some(0.25), ..options(5) };
        assert!(trains_as_one_rank(&work, schedule, &options, &mut expected), "{schedule} on {sizes:?}");
    }
}

/// A weight is the same on all that hold parts of sequences, and each may hold its share of the optimizer states:
/// whatever wrote a checkpoint, any layout goes on from it.
#[test]
fn checkpoints_go_from_any_layout_to_any() {
    let layouts: [(Sizes, u32, &str); 4] = [
        ([1, 2, 1, 1], 1, "gpipe"),
        ([2, 2, 2, 1], 0, "1f1b"),
        ([1, 1, 2, 2], 1, "1f1b"),
        ([1, 3, 1, 2], 1, "gpipe"),
    ];
    let planned = |(sizes, zero, name): (Sizes, u32, &str)| {
        let mut work = work(sizes);
        work.model.layers = 4;
        // Twelve microbatches a step, over all replicas.
        (work.microbatches, work.layout.zero) = (12 / sizes[3] as u32, zero);
        published(&work, name, Precision::Double).expect("it exists")
    };
    resumes_on_any(&layouts, planned, 5);
}

/// A rank of a ring that stands still is named by the next one, with what it is to pass and the ring.
#[test]
fn a_rank_of_a_ring_that_does_not_come_is_named() {
    let workload = published(&work([1, 2, 1, 1]), "1f1b", Precision::Single).expect("it exists");
    let failure = stalled(&workload, 5, 0);
    assert!(matches!(failure.cause, Cause::Collective(_)), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("rank 0 failed: pass in a ring"), "{text}");
    assert!(text.contains("among ranks [0, 1]") && text.contains("for rank 1 to send its part of"), "{text}");
    assert_eq!(failure.ranks[1].state, State::Passing, "{text}");
    assert!(text.contains("rank 1: in a context-parallel ring with rank 0 at training step 0, "), "{text}");
}

/// A piece of 24 / (2 · 5) tokens is none.
#[test]
fn sequences_that_cannot_be_dealt_are_refused() {
    let mut work = work([1, 2, 1, 1]);
    work.layout.form.context = 5;
    let mut faults = Vec::new();
    work.layout.form.find_faults(&work.model, work.sequence, "parallel", &mut faults);
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    let text = fault.to_string();
    assert!(
        text.contains("parallel.context: found 5") && text.contains("training.sequence (24), such as 4"),
        "{text}"
    );
}

/// Cards do the same, on the emulated card for one: every other kind in bf16, on what stands in for tensor cores, whose
/// heads are wider.
#[cfg(feature = "cuda")]
#[test]
fn rings_of_cards_train_as_one_rank() {
    let mut expected = Expected::default();
    let layouts = [([2, 2, 1, 1], "1f1b"), ([1, 3, 2, 1], "gpipe"), ([1, 2, 1, 2], "gpipe")];
    for (at, (kind, change)) in kinds().into_iter().enumerate() {
        let (sizes, schedule) = layouts[at % layouts.len()];
        let mut work = work(sizes);
        // The emulated card takes a thousand times as long as a processor's own kernels.
        (work.model.layers, work.microbatches, work.microbatch_size) = (2, 2, 1);
        if at % 2 == 0 {
            (work.dtype, work.model.heads, work.model.kv_heads, work.model.head_dim) = (Dtype::Bf16, 2, 2, 32);
        }
        change(&mut work);
        let form = &mut work.layout.form;
        form.sequence_parallel = sizes[2] > 1;
        form.dropout = at % 4 == 1;
        work.layout.zero = u32::from(sizes[3] > 1);
        println!("{kind}");
        if !trains_on_cards(&work, schedule, 2, &mut expected) {
            return;
        }
    }
}
