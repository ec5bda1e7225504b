//! Which state a restart goes on from.

use super::*;

/// Two pipelines of two ranks: ranks 0 and 1 hold the same, and so do 2 and 3.
fn copies(rank: usize) -> Vec<usize> {
    let first = rank / 2 * 2;
    vec![first, first + 1]
}

fn chosen(held: [&[u32]; 4], checkpoint: Option<u32>) -> (Source, u32) {
    choose(&held.map(<[u32]>::to_vec), copies, checkpoint, 0)
}

#[test]
fn the_latest_state_that_all_ranks_can_reach_is_taken() {
    // Rank 3 is gone, and rank 2 holds the same; rank 0 has made a step more than rank 1.
    assert_eq!(chosen([&[6, 7], &[6], &[6], &[]], None), (Source::Memory, 6));
    // Rank 1 is the only one that has not made step 7 whole, and rank 0 has it for it.
    assert_eq!(chosen([&[6, 7], &[6], &[6, 7], &[]], Some(4)), (Source::Memory, 7));
    // Both that hold the second stage are gone.
    assert_eq!(chosen([&[6], &[6], &[], &[]], Some(4)), (Source::Checkpoint, 4));
    assert_eq!(chosen([&[6], &[6], &[], &[]], None), (Source::Start, 0));
    // A checkpoint that is later than what is in memory: its folder cannot hold an earlier one.
    assert_eq!(chosen([&[6], &[6], &[6], &[]], Some(7)), (Source::Checkpoint, 7));
    assert_eq!(chosen([&[6], &[6], &[6], &[]], Some(6)), (Source::Memory, 6));
}

#[test]
fn the_time_lost_ends_where_the_run_is_where_it_was_or_at_the_next_failure() {
    let kept = Kept::default();
    kept.note_done(5);
    let noticed = Instant::now();
    kept.begin_restart(1, vec![2], noticed);
    kept.note_source(Source::Checkpoint, 3, 5);
    kept.inner().reach(3);
    assert_eq!(kept.history()[0].lost, Duration::ZERO, "steps 3 and 4 are made again");
    let next = noticed + Duration::from_secs(2);
    kept.begin_restart(2, vec![0], next);
    assert_eq!(kept.history()[0].lost, Duration::from_secs(2));
    kept.note_source(Source::Memory, 4, 5);
    kept.inner().reach(5);
    let history = kept.history();
    assert_eq!((history[0].step, history[0].redone, history[1].step, history[1].redone), (3, 2, 4, 1));
    assert!(kept.inner().open.is_none());
}
