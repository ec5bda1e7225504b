//! Whether modules that predict later tokens train on stages of their own (Megatron-LM's layouts with `m|L`) as on one rank.

mod common;

#[cfg(feature = "cuda")]
use common::trains_on_cards;
use common::{Expected, options, published, resumes_on_any, trains_as_one_rank, work};
use pipeplan::runner::Precision;
use pipeplan_core::graph::form::Recompute;
use pipeplan_core::graph::layout::Partition;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::{Latent, Variant};
use pipeplan_core::spec::ModelWork;

/// Layers and modules of each stage.
type Stages = &'static [[u32; 2]];

/// Ranks, stages of each, layers and modules of the model with where they lie, and a schedule.
type Case = (usize, u32, (u32, u32, Stages), &'static str);

fn apart(ranks: usize, chunks: u32, (layers, modules, stages): (u32, u32, Stages)) -> ModelWork {
    let mut work = ModelWork { chunks, ..work(ranks, 4) };
    (work.model.layers, work.model.variant) = (layers, Variant { multi_token: modules, ..Variant::USUAL });
    work.layout.partition = Partition::WithModules(stages.to_vec());
    work
}

#[test]
fn modules_on_their_own_stages_train_as_on_one_rank() {
    let mut expected = Expected::default();
    let cases: [Case; 6] = [
        // `Ett|t|m|L`, `Ettt|m|m|L`, `Ett|tm|mL`, over chunks, and all on the last stage.
        (4, 1, (3, 1, &[[2, 0], [1, 0], [0, 1], [0, 0]]), "1f1b"),
        (4, 1, (3, 2, &[[3, 0], [0, 1], [0, 1], [0, 0]]), "zb-h1"),
        (3, 1, (3, 2, &[[2, 0], [1, 1], [0, 1]]), "1f1b"),
        (2, 2, (4, 1, &[[2, 0], [2, 0], [0, 1], [0, 0]]), "interleaved-1f1b"),
        (2, 2, (4, 2, &[[2, 0], [2, 0], [0, 2], [0, 0]]), "zb-v"),
        (2, 1, (3, 1, &[[2, 0], [1, 1]]), "gpipe"),
    ];
    for (at, (ranks, chunks, layout, schedule)) in cases.into_iter().enumerate() {
        for variation in 0..4 {
            let mut work = apart(ranks, chunks, layout);
            work.model.tied = (at + variation) % 2 == 0;
            match variation {
                0 => {}
                1 => (work.layout.form.tensor, work.layout.form.sequence_parallel) = (2, at % 2 == 0),
                2 => (work.layout.data, work.layout.zero) = (2, [1, 3][at % 2]),
                _ => {
                    work.layout.form.recompute = Recompute::Full;
                    let latent = Latent { query_rank: 12, key_value_rank: 10, rope_width: 2, value_width: 3 };
                    work.model.variant.latent = Some(latent);
                    (work.model.kv_heads, work.model.head_dim) = (work.model.heads, 6);
                }
            }
            let what = format!("{schedule}, case {at}, variation {variation}");
            assert!(trains_as_one_rank(&work, schedule, &options(4), &mut expected), "{what}");
        }
    }
}

/// Muon is for matrices of layers, and not for the tables that modules read, on whichever stages these lie.
#[test]
fn tables_of_modules_are_updated_as_tables() {
    let mut expected = Expected::default();
    let cases: [(usize, Stages, &str); 2] =
        [(4, &[[2, 0], [1, 0], [0, 1], [0, 0]], "1f1b"), (2, &[[2, 0], [1, 1]], "zb-h1")];
    for (ranks, stages, schedule) in cases {
        let mut work = apart(ranks, 1, (3, 1, stages));
        work.layout.optimizer = Optimizer::Muon;
        let what = format!("{schedule} on {ranks} ranks");
        assert!(trains_as_one_rank(&work, schedule, &options(4), &mut expected), "{what}");
    }
}

/// From a checkpoint of modules on stages of their own others go on, and the other way round.
#[test]
fn checkpoints_go_from_and_to_modules_apart() {
    let layouts: [(usize, Stages, &str); 3] = [
        (4, &[[2, 0], [1, 0], [0, 1], [0, 0]], "1f1b"),
        (1, &[[3, 1]], "gpipe"),
        (3, &[[3, 0], [0, 1], [0, 0]], "zb-h1"),
    ];
    let planned = |(ranks, stages, name): (usize, Stages, &str)| {
        published(&apart(ranks, 1, (3, 1, stages)), name, Precision::Double).expect("it exists")
    };
    resumes_on_any(&layouts, planned, 5);
}

/// The same on emulated cards.
#[cfg(feature = "cuda")]
#[test]
fn modules_apart_train_on_cards() {
    let work = apart(4, 1, (3, 1, &[[2, 0], [1, 0], [0, 1], [0, 0]]));
    trains_on_cards(&work, "1f1b", 2, &mut Expected::default());
}
