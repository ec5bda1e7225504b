use std::thread;
use std::time::{Duration, Instant};

use super::ring::Passing;
use super::shares::ShareCollective;
use super::*;
use crate::runner::random::SplitMix64;
use crate::transport::faulty::{Faults, Faulty};
use crate::transport::threads::{ThreadOptions, world};

type End = Faulty<crate::transport::threads::Threads>;

/// Runs `row` as each rank of a world of `ranks` whose rank `r` has `faults(r)`. A rank that dies gives `None`.
fn run_with<R: Send>(
    ranks: usize,
    patience_ms: u64,
    faults: impl Fn(usize) -> Faults,
    row: impl Fn(&mut End) -> R + Sync,
) -> Vec<Option<R>> {
    let options = ThreadOptions { patience: Duration::from_millis(patience_ms), ..ThreadOptions::default() };
    thread::scope(|scope| {
        let row = &row;
        let handles: Vec<_> = world(ranks, options)
            .into_iter()
            .enumerate()
            .map(|(rank, end)| {
                let mut end = Faulty::new(end, faults(rank));
                scope.spawn(move || row(&mut end))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().ok()).collect()
    })
}

fn run<R: Send>(ranks: usize, row: impl Fn(&mut End) -> R + Sync) -> Vec<R> {
    run_with(ranks, 20_000, |_| Faults::default(), row).into_iter().map(|end| end.expect("no rank dies")).collect()
}

/// What `rank` brings: numbers of very different size, so that another order of summation gives other bits.
fn values<T: Element>(seed: u64, rank: usize, length: usize) -> Vec<T> {
    let mut random = SplitMix64::named(seed, &format!("values of rank {rank}"));
    (0..length)
        .map(|_| {
            let size = libm::pow(10.0, random.below(9) as f64 - 4.0);
            // Without a square root, which Miri does not know as `libm` has it.
            T::of((random.below(1 << 21) as f64 - f64::from(1 << 20)) * size)
        })
        .collect()
}

/// The definition: from the first member to the last, one element at a time.
fn by_hand<T: Element>(seed: u64, ranks: &[usize], length: usize, reduction: Reduction) -> Vec<T> {
    let all: Vec<Vec<T>> = ranks.iter().map(|rank| values(seed, *rank, length)).collect();
    (0..length)
        .map(|at| {
            let mut result = all[0][at];
            for values in &all[1..] {
                result = if reduction == Reduction::Max { result.greater(values[at]) } else { result + values[at] };
            }
            if reduction == Reduction::Avg { result / T::of(ranks.len() as f64) } else { result }
        })
        .collect()
}

fn bits<T: Element>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.wide().to_bits()).collect()
}

/// A random subset of `0..world` with `size` members in random order.
fn subgroup(random: &mut SplitMix64, world: usize, size: usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..world).collect();
    random.shuffle(&mut ranks);
    ranks.truncate(size);
    ranks
}

const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Avg, Reduction::Max];

/// Every collective once, on the members of `ranks`, against its definition.
fn every_collective<T: Element>(end: &mut End, ranks: &[usize], seed: u64, length: usize) {
    let rank = end.rank();
    let mut group = Group::new(ranks.to_vec(), rank).expect("a member");
    let (size, member) = (group.size(), group.member());
    let root = length % size;
    // Uneven on purpose, with an empty piece where there are two members or more.
    let mut counts = even_counts(length, size);
    counts.rotate_left(1);
    if size > 1 {
        counts[1] += counts[0];
        counts[0] = 0;
    }
    let start = |member: usize| counts[..member].iter().sum::<usize>();
    group.begin(7);
    for reduction in REDUCTIONS {
        let whole = by_hand::<T>(seed, ranks, length, reduction);

        let mut reduced = values::<T>(seed, rank, length);
        end.all_reduce(&mut group, &mut reduced, reduction).expect("all-reduce");
        assert_eq!(bits(&reduced), bits(&whole), "{reduction} {ranks:?}");

        let mut reduced = values::<T>(seed, rank, length);
        end.reduce(&mut group, root, &mut reduced, reduction).expect("reduce");
        let expected = if member == root { whole.clone() } else { values::<T>(seed, rank, length) };
        assert_eq!(bits(&reduced), bits(&expected));

        let piece = end
            .reduce_scatter(&mut group, &values::<T>(seed, rank, length), &counts, reduction)
            .expect("reduce-scatter");
        assert_eq!(bits(&piece), bits(&whole[start(member)..start(member + 1)]));
    }
    let lengths: Vec<usize> = ranks.iter().map(|rank| (rank * 7 + length) % 50).collect();
    let all = end.all_gather(&mut group, &values::<T>(seed, rank, lengths[member]), &lengths).expect("all-gather");
    let expected: Vec<T> =
        ranks.iter().zip(&lengths).flat_map(|(rank, length)| values::<T>(seed, *rank, *length)).collect();
    assert_eq!(bits(&all), bits(&expected));

    let mut sent = values::<T>(seed, rank, length);
    end.broadcast(&mut group, root, &mut sent).expect("broadcast");
    assert_eq!(bits(&sent), bits(&values::<T>(seed, ranks[root], length)));

    let gathered = end.gather(&mut group, root, values::<T>(seed, rank, lengths[member])).expect("gather");
    assert_eq!(gathered.map(|all| bits(&all.concat())), (member == root).then(|| bits(&expected)));

    // Member i sends i + 2j values to member j.
    let pieces = (0..size).map(|other| vec![T::of((100 * member + other) as f64); member + 2 * other]).collect();
    let from: Vec<usize> = (0..size).map(|other| other + 2 * member).collect();
    let received = end.all_to_all(&mut group, pieces, &from).expect("all-to-all");
    for (other, values) in received.iter().enumerate() {
        assert_eq!(*values, vec![T::of((100 * other + member) as f64); other + 2 * member]);
    }
    // Twice round at once: each pass takes what the one before it sent in the same one.
    let passes = [0, 1].map(|round| {
        let values = vec![T::of((10 * member + round) as f64); length];
        Passing::begin(end, &mut group, values).expect("a pass")
    });
    let before = (member + size - 1) % size;
    for (round, pass) in passes.into_iter().enumerate() {
        assert_eq!(pass.take(end).expect("passed"), vec![T::of((10 * before + round) as f64); length]);
    }
    end.group_barrier(&mut group).expect("barrier");
}

#[test]
fn every_collective_keeps_its_definition_bit_for_bit_in_groups_of_all_sizes() {
    let mut random = SplitMix64::new(5);
    for world in 1..=8 {
        // Empty, fewer than members, small, and beyond what goes in one round.
        for length in [0, 1, 3, 100, SMALL + 37] {
            let seed = random.draw();
            let ranks = subgroup(&mut random, world, world);
            run(world, |end| every_collective::<f32>(end, &ranks, seed, length));
            run(world, |end| every_collective::<f64>(end, &ranks, seed, length));
        }
    }
}

#[test]
fn groups_apart_do_not_disturb_each_other() {
    let mut random = SplitMix64::new(6);
    for round in 0..12 {
        let mut ranks = subgroup(&mut random, 8, 8);
        let second = ranks.split_off(1 + round % 7);
        run(8, |end| {
            let mine = if ranks.contains(&end.rank()) { &ranks } else { &second };
            every_collective::<f64>(end, mine, round as u64, 200 + round);
        });
    }
}

#[test]
fn the_bits_do_not_depend_on_who_comes_first() {
    let late =
        |seed: u64| move |_rank: usize| Faults { seed, delay: Duration::from_micros(300), ..Faults::default() };
    let sums = |seed: u64| {
        run_with(6, 20_000, late(seed), |end| {
            let mut group = Group::world(end);
            let mut sums = Vec::new();
            for length in [5, SMALL + 1] {
                let mut values = values::<f32>(1, end.rank(), length);
                end.all_reduce(&mut group, &mut values, Reduction::Sum).expect("all come");
                sums.extend(bits(&values));
            }
            sums
        })
    };
    let first = sums(1);
    assert!(first.iter().all(|sum| *sum == first[0] && sum.is_some()), "every member holds the same bits");
    assert_eq!(first, sums(2), "and so does another run");
}

/// Looks alone move all of it, however often each member looks between two that begin.
#[test]
fn what_has_begun_goes_on_without_being_waited_for() {
    let length = 2 * SMALL + 37;
    for size in [2, 3, 5] {
        let ranks: Vec<usize> = (0..size).collect();
        run(size, |end| {
            let mut group = Group::world(end);
            let mut started = overlapped::Started::default();
            let scatters = |call: u64| call == 1;
            for call in 0..3 {
                let values = values::<f64>(call, end.rank(), length);
                started.begin(end, &mut group, values, Reduction::Sum, scatters(call)).expect("it begins");
                for _ in 0..3 * end.rank() {
                    started.go_on(end).expect("a look");
                    thread::yield_now();
                }
            }
            let since = Instant::now();
            while !started.is_done() {
                started.go_on(end).expect("a look");
                thread::yield_now();
                assert!(since.elapsed() < Duration::from_secs(20), "nothing is left to wait for");
            }
            let results = started.finish(end).expect("all is there");
            let counts = even_counts(length, size);
            let start: usize = counts[..end.rank()].iter().sum();
            for (call, result) in (0..3).zip(results) {
                let whole = by_hand::<f64>(call, &ranks, length, Reduction::Sum);
                let mine = if scatters(call) { &whole[start..start + counts[end.rank()]] } else { &whole[..] };
                assert_eq!(bits(&result), bits(mine), "call {call} among {size}");
            }
        });
    }
}

/// A gather and a reduction that have begun leave room for other collectives of the same ranks, in another order of
/// ends too, and give what they give alone: shares of unequal length, also of none.
#[test]
fn what_goes_on_beside_does_not_disturb_what_is_called() {
    let (ranks, counts, whole) = ([0, 1, 2], vec![700, 0, 801], 1501);
    let gathered = run(3, |end| {
        let rank = end.rank();
        let (mut group, mut other) =
            (Group::new(ranks.to_vec(), rank).expect("a group"), Group::new(ranks.to_vec(), rank).expect("a group"));
        let gather = ShareCollective::gather(end, &mut group, values::<f32>(1, rank, counts[rank]), counts.clone())
            .expect("begun");
        let mut sum = values::<f32>(2, rank, 2000);
        end.all_reduce(&mut other, &mut sum, Reduction::Sum).expect("summed");
        let scatter =
            ShareCollective::scatter(end, &mut group, &values::<f32>(3, rank, whole), counts.clone()).expect("begun");
        end.group_barrier(&mut other).expect("all come");
        let gathered = gather.end(end).expect("gathered");
        (bits(&gathered), bits(&sum), bits(&scatter.end(end).expect("reduced")))
    });
    let shares: Vec<Vec<f32>> = ranks.iter().map(|rank| values(1, *rank, counts[*rank])).collect();
    let sum = by_hand::<f32>(3, &ranks, whole, Reduction::Sum);
    for (rank, (gathered, called, share)) in gathered.into_iter().enumerate() {
        assert_eq!(gathered, bits(&shares.concat()));
        assert_eq!(called, bits(&by_hand::<f32>(2, &ranks, 2000, Reduction::Sum)));
        let start: usize = counts[..rank].iter().sum();
        assert_eq!(share, bits(&sum[start..start + counts[rank]]), "rank {rank}");
    }
}

#[test]
fn a_nan_cannot_hide_in_a_maximum() {
    for place in 0..3 {
        let results = run(3, |end| {
            let mut values = [if end.rank() == place { f32::NAN } else { 1.0 }];
            end.all_reduce(&mut Group::world(end), &mut values, Reduction::Max).expect("all come");
            values[0]
        });
        assert!(results.iter().all(|value| value.is_nan()));
    }
}

#[test]
fn members_that_do_not_come_are_named() {
    // Rank 2 stays away; what the others wait for is its part.
    let errors = run_with(
        4,
        150,
        |_| Faults::default(),
        |end| {
            let mut group = Group::world(end);
            group.begin(3);
            if end.rank() == 2 {
                return None;
            }
            end.all_reduce(&mut group, &mut [1.0f64; 3], Reduction::Sum).err()
        },
    );
    for rank in [0, 1, 3] {
        let error = errors[rank].clone().flatten().expect("it cannot end");
        assert_eq!(error.peer(), Some(2), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("all-reduce (sum) 0 among ranks [0, 1, 2, 3]: waited 0."), "{text}");
        assert!(text.contains("for rank 2 to send its part of all-reduce (sum) 0 in group"), "{text}");
        assert!(text.ends_with("of step 3"), "{text}");
    }
}

#[test]
fn a_rank_that_dies_or_a_parcel_that_is_lost_ends_in_a_time_out() {
    let started = Instant::now();
    let death = |rank: usize| Faults { death: (rank == 1).then_some(2), ..Faults::default() };
    let results = run_with(4, 200, death, |end| {
        let mut group = Group::world(end);
        (0..10).find_map(|_| end.group_barrier(&mut group).err())
    });
    assert!(results[1].is_none(), "rank 1 died");
    let waited_for: Vec<Option<usize>> =
        [0, 2, 3].iter().map(|rank| results[*rank].as_ref()?.as_ref()?.peer()).collect();
    assert!(waited_for.contains(&Some(1)), "{waited_for:?}");

    let loss = |rank: usize| Faults { lost_per_mille: if rank == 0 { 1000 } else { 0 }, ..Faults::default() };
    let results = run_with(3, 200, loss, |end| end.group_barrier(&mut Group::world(end)).err());
    assert_eq!(results[1].as_ref().and_then(|error| error.as_ref()?.peer()), Some(0));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_member_with_another_size_is_named() {
    let errors = run(3, |end| {
        let mut values = vec![0.0f32; if end.rank() == 1 { 4 } else { 5 }];
        end.all_reduce(&mut Group::world(end), &mut values, Reduction::Sum).err()
    });
    let text = errors[0].as_ref().expect("sizes differ").to_string();
    assert!(text.contains("rank 1 sent 4 f32 values; expected are 5 f32 values"), "{text}");
}

#[test]
fn a_member_with_another_collective_or_group_is_found_at_the_first_part() {
    let errors = run_with(
        2,
        300,
        |_| Faults::default(),
        |end| {
            let mut group = Group::world(end);
            if end.rank() == 0 {
                end.group_barrier(&mut group).err()
            } else {
                end.all_reduce::<f32>(&mut group, &mut [1.0], Reduction::Sum).err()
            }
        },
    );
    assert!(
        errors
            .iter()
            .flatten()
            .flatten()
            .any(|error| matches!(error.transport(), Some(TransportError::WrongParcel { .. }))),
        "{errors:?}"
    );

    let errors = run_with(
        3,
        300,
        |_| Faults::default(),
        |end| {
            let ranks = if end.rank() == 0 { vec![0, 1] } else { vec![1, 0] };
            let mut group = (end.rank() < 2).then(|| Group::new(ranks, end.rank()).expect("a member"))?;
            end.group_barrier(&mut group).err()
        },
    );
    assert!(errors.iter().flatten().flatten().count() > 0);
}

#[test]
fn calls_that_do_not_fit_are_refused_before_anything_is_sent() {
    let refusals = run(2, |end| {
        let mut group = Group::world(end);
        [
            end.all_gather(&mut group, &[1.0f32; 3], &[3]).err(),
            end.all_gather(&mut group, &[1.0f32; 3], &[2, 2]).err(),
            end.reduce_scatter(&mut group, &[1.0f32; 3], &[2, 2], Reduction::Sum).err(),
            end.broadcast(&mut group, 2, &mut [1.0f32]).err(),
            end.reduce(&mut group, 9, &mut [1.0f32], Reduction::Max).err(),
            end.all_to_all(&mut group, vec![vec![1.0f32]], &[1, 1]).err(),
        ]
        .map(|error| error.map(|error| error.to_string()))
    });
    assert!(refusals[0].iter().all(Option::is_some), "{refusals:?}");
    assert_eq!(refusals[0][2].as_deref(), Some("reduce-scatter (sum) among 2 members: 3 values given; needed are 4"));
    assert!(matches!(Group::new(vec![0, 1, 0], 1), Err(GroupError::Twice { rank: 0, .. })));
    assert!(matches!(Group::new(vec![0, 1], 2), Err(GroupError::NotAMember { rank: 2, .. })));
}
