//! Samples however a step is cut.

use super::samples::permuted;
use super::*;
use crate::runner::random::SplitMix64;

fn cut(microbatch_size: usize) -> Cut {
    let [sequence, ahead, microbatches] = [4, 1, 1];
    Cut { sequence, ahead, microbatch_size, microbatches, seed: 3, vocabulary: 256, within: None, slices: 1 }
}

fn batches(bytes: usize, seed: u64) -> Batches {
    let text = (0..bytes).map(|at| at as u8).collect();
    Batches::new(text, [4, 1], 2, 3, seed).expect("long enough")
}

#[test]
fn an_epoch_takes_every_window_once() {
    // 49 bytes are 12 windows of 4 and their next byte: two steps of 3 microbatches of 2.
    let batches = batches(49, 5);
    let mut starts = Vec::new();
    for step in 0..2 {
        for microbatch in 0..3 {
            let tokens = batches.tokens(step, microbatch, 0).unwrap();
            let targets = batches.tokens(step, microbatch, 1).unwrap();
            assert_eq!(tokens.len(), 8);
            assert!(tokens.iter().zip(&targets).all(|(token, target)| target - token == 1));
            starts.extend([tokens[0], tokens[4]]);
        }
    }
    assert_ne!(starts, (0..12).map(|window| 4 * window).collect::<Vec<_>>(), "shuffled");
    starts.sort_unstable();
    assert_eq!(starts, (0..12).map(|window| 4 * window).collect::<Vec<_>>());
}

/// However a step's sequences are dealt to microbatches and replicas, they are the same rows in the same order.
#[test]
fn a_step_has_the_same_rows_however_it_is_cut() {
    let text: Vec<u8> = (0..200).collect();
    let rows = |microbatch_size: usize, microbatches: usize, replicas: usize| -> Vec<i32> {
        let all =
            Batches::new(text.clone(), [4, 1], microbatch_size, microbatches * replicas, 7).expect("long enough");
        let replica = |replica: usize| all.starting_at((replica * microbatches) as u32, SequencePart::WHOLE);
        let of = |batches: Batches| {
            (0..microbatches as u32).flat_map(move |microbatch| batches.tokens(3, microbatch, 0).unwrap())
        };
        (0..replicas).flat_map(|at| of(replica(at))).collect()
    };
    for (microbatch_size, microbatches, replicas) in [(1, 12, 1), (4, 3, 1), (2, 3, 2), (1, 4, 3), (6, 1, 2)] {
        assert_eq!(rows(microbatch_size, microbatches, replicas), rows(12, 1, 1));
    }
}

/// A step has the samples that it has without places, each document begins where it does, and microbatches with more
/// work are where more is planned.
#[test]
fn microbatches_take_the_places_that_the_plan_has_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("documents.jsonl");
    let mut random = SplitMix64::new(9);
    let (mut lines, mut next) = (String::new(), 0);
    let mut firsts = BTreeSet::new();
    while next < 240 {
        let tokens: Vec<u32> = (next..next + 1 + (random.draw() % 12) as u32).collect();
        firsts.insert(next as i32);
        next += tokens.len() as u32;
        lines += &format!("{{\"input_ids\": {tokens:?}}}\n");
    }
    std::fs::write(&path, lines).expect("written");
    let source = crate::data::open(&path, &crate::data::tokenizer::Tokenizer::Bytes).expect("read");
    let sources = Arc::new(Sources::new(vec![(Arc::new(source), None)]));
    let of = |planned: Vec<u64>| {
        let (microbatches, within) = (planned.len(), Some(Within { planned }));
        let cut = Cut { sequence: 8, microbatches, within, vocabulary: 1000, ..cut(2) };
        Batches::of(Arc::clone(&sources), &cut).expect("long enough")
    };
    let planned = vec![30, 50, 10, 40, 20];
    let (placed, plain) = (of(planned.clone()), of(vec![1; 5]));
    // Two replicas that read ahead see the same as one that does not.
    let replica = placed.starting_at(3, SequencePart::WHOLE);
    for step in 0..4 {
        replica.prepare(step).expect("read");
        let rows = |batches: &Batches, place: u32| batches.tokens(step, place, 0).expect("read");
        let all = |batches: &Batches| {
            let mut all: Vec<Vec<i32>> = (0..5).map(|place| rows(batches, place)).collect();
            all.sort();
            all
        };
        assert_eq!(all(&placed), all(&plain));
        assert_eq!([rows(&replica, 0), rows(&replica, 1)], [rows(&placed, 3), rows(&placed, 4)]);
        let work = |place: u32| -> u64 {
            let starts = placed.document_starts(step, place).expect("read").expect("documents");
            let tokens = rows(&placed, place);
            (0..tokens.len())
                .map(|at| {
                    let start = starts.of(at);
                    assert!(start % 8 == 0 || firsts.contains(&tokens[start]), "{tokens:?} {start}");
                    assert!((start + 1..=at).all(|at| !firsts.contains(&tokens[at])), "{tokens:?} {start}");
                    2 * (at - start) as u64 + 1
                })
                .sum()
        };
        let mut found: Vec<(u64, u64)> = (0..5).map(|place| (planned[place as usize], work(place))).collect();
        found.sort_unstable();
        assert!(found.is_sorted_by_key(|(_, work)| *work), "{found:?}");
        // The first token of a document is predicted from none.
        for place in 0..5 {
            let (tokens, targets) = (rows(&placed, place), placed.tokens(step, place, 1).expect("read"));
            for (token, target) in tokens.into_iter().zip(targets) {
                let expected = if firsts.contains(&(token + 1)) { IGNORED } else { token + 1 };
                assert_eq!(target, expected);
            }
        }
    }
}

/// Parts are dealt from both ends, and together are the whole.
#[test]
fn a_part_has_its_pieces_of_every_sequence() {
    let text: Vec<u8> = (0..=13).collect();
    let all = Batches::new(text, [12, 2], 1, 1, 0).expect("long enough");
    let of = |part| all.starting_at(0, SequencePart { part, parts: 3 });
    assert_eq!(of(0).tokens(0, 0, 0).unwrap(), [0, 1, 10, 11]);
    assert_eq!(of(1).tokens(0, 0, 0).unwrap(), [2, 3, 8, 9]);
    assert_eq!(of(2).tokens(0, 0, 0).unwrap(), [4, 5, 6, 7]);
    assert_eq!(of(1).tokens(0, 0, 1).unwrap(), [3, 4, 9, 10]);
    assert_eq!(of(0).tokens(0, 0, 2).unwrap(), [2, 3, 12, 13]);
}

#[test]
fn epochs_and_seeds_differ_and_repeat() {
    let first = |seed: u64, step: u32| -> Vec<i32> { batches(49, seed).tokens(step, 0, 0).unwrap() };
    assert_eq!(first(5, 0), first(5, 0));
    assert!((1..10).any(|seed| first(5, 0) != first(seed, 0)));
    assert!((1..10).any(|epoch| first(5, 0) != first(5, 2 * epoch)));
}

#[test]
fn a_text_shorter_than_a_sequence_is_refused() {
    assert_eq!(
        Batches::new(vec![0; 4], [4, 1], 1, 1, 0).err(),
        Some(DataError::TooShort { bytes: 4, sequence: 4, ahead: 1 })
    );
    assert!(Batches::new(vec![0; 5], [4, 1], 1, 1, 0).is_ok());
    assert!(Batches::new(vec![0; 5], [4, 2], 1, 1, 0).is_err());
    assert!(Batches::new(vec![0; 6], [4, 2], 1, 1, 0).is_ok());
}

/// Counts of a long run, sample by sample: each source's share to one in [`SLOTS`], and each of its windows once an
/// epoch.
#[test]
fn a_blend_takes_shares_and_every_window_once_an_epoch() {
    let text = |bytes: usize| Arc::new(Source::of_text((0..bytes).map(|at| at as u8).collect()));
    let sources = Sources::new(vec![(text(401), Some(0.6)), (text(201), Some(0.3)), (text(41), Some(0.1))]);
    let batches = Batches::of(Arc::new(sources), &cut(1)).expect("long enough");
    let mut taken = [const { Vec::new() }; 3];
    for sample in 0..20_000 {
        let (windows, window) = batches.samples.place(sample);
        let source = [100, 50, 10].iter().position(|count| *count == windows.count).expect("one of them");
        taken[source].push(window);
    }
    assert_eq!(taken.each_ref().map(Vec::len), [12_000, 6_000, 2_000]);
    for (of_source, count) in taken.iter().zip([100, 50, 10]) {
        for epoch in of_source.chunks_exact(count) {
            let mut epoch = epoch.to_vec();
            epoch.sort_unstable();
            assert_eq!(epoch, (0..count as u64).collect::<Vec<_>>());
        }
    }
    // Anywhere in a run, no source is a sample ahead or behind.
    let (slots, _) = blend(&[0.6, 0.3, 0.1]);
    let mut counts = [0f64; 3];
    for (at, (source, _)) in slots.iter().enumerate() {
        counts[*source as usize] += 1.0;
        let ahead = |share: f64, count: f64| (count - share * (at + 1) as f64).abs();
        assert!(ahead(0.6, counts[0]) < 1.0 && ahead(0.3, counts[1]) < 1.0 && ahead(0.1, counts[2]) < 1.0);
    }
}

#[test]
fn an_order_without_a_list_takes_every_number_once() {
    for count in [1, 2, 5, 64, 1000, 4097] {
        let mut order: Vec<u64> = (0..count).map(|at| permuted(7, count, at)).collect();
        let is_mixed = order.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64 * 2 >= count / 2;
        assert!(is_mixed, "{count}");
        order.sort_unstable();
        assert_eq!(order, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_split_off_is_never_trained_on() {
    let sources = Sources { split: 0.25, ..Sources::of_text((0..=200).collect()) };
    let batches = Batches::of(Arc::new(sources), &cut(2)).expect("long enough");
    assert_eq!((batches.windows(), batches.validation_windows()), (37, 13));
    let seen = |step| batches.tokens(step, 0, 0).expect("read");
    let trained: Vec<i32> = (0..100).flat_map(seen).collect();
    assert!(trained.iter().all(|token| *token < 37 * 4));
    batches.evaluate(Some(1));
    assert!(seen(0).iter().all(|token| *token >= 37 * 4));
    batches.evaluate(None);
    assert_eq!(seen(0), trained[..8]);
}
