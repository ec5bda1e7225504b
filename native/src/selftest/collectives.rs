//! Every collective of a transport, as its ranks really carry it out: bit for bit against its definition, and how long it
//! takes.
//!
//! What each rank brings follows from its number, so every rank can work out by itself what all of them should get. Each
//! collective runs in three groups: all ranks, all in reverse, and the even and odd ones apart at the same time.

use std::time::{Duration, Instant};

use super::Row;
use crate::runner::random::SplitMix64;
use crate::transport::collectives::passing::Passing;
use crate::transport::collectives::{CollectiveError, Collectives, Group, Reduction, even_counts, reduced};
use crate::transport::{Transport, TransportError};

const GROUP: &str = "collective";

/// Lengths: below what goes in one round, and beyond.
const LENGTHS: [usize; 3] = [3, 1000, 70_001];

/// How many times each is measured; the least disturbed one counts.
const REPEATS: usize = 5;

/// What `rank` brings: numbers of very different size, so that another order of summation gives other bits.
fn values(rank: usize, length: usize) -> Vec<f32> {
    let mut random = SplitMix64::named(length as u64, &format!("values of rank {rank}"));
    (0..length).map(|_| (random.normal() * libm::pow(10.0, random.below(9) as f64 - 4.0)) as f32).collect()
}

/// One collective as a member calls it: what it gets, of what `ranks` bring.
type Run = fn(&mut dyn Transport, &mut Group, usize) -> Result<Vec<f32>, CollectiveError>;
/// What member `member` of `ranks` should get.
type Expected = fn(ranks: &[usize], member: usize, length: usize) -> Vec<f32>;

/// A collective and its definition.
struct Case {
    name: &'static str,
    run: Run,
    expected: Expected,
}

fn brought(ranks: &[usize], length: usize) -> Vec<Vec<f32>> {
    ranks.iter().map(|rank| values(*rank, length)).collect()
}

fn sum(ranks: &[usize], length: usize) -> Vec<f32> {
    reduced(&brought(ranks, length), Reduction::Sum)
}

/// The root of a reduce and of a broadcast: not the first, where there are more.
fn root(size: usize) -> usize {
    size - 1
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "all-reduce",
            run: |end, group, length| {
                let mut mine = values(end.rank(), length);
                end.all_reduce(group, &mut mine, Reduction::Sum)?;
                Ok(mine)
            },
            expected: |ranks, _, length| sum(ranks, length),
        },
        Case {
            name: "reduce",
            run: |end, group, length| {
                let mut mine = values(end.rank(), length);
                end.reduce(group, root(group.size()), &mut mine, Reduction::Sum)?;
                Ok(mine)
            },
            expected: |ranks, member, length| match member == root(ranks.len()) {
                true => sum(ranks, length),
                false => values(ranks[member], length),
            },
        },
        Case {
            name: "reduce-scatter",
            run: |end, group, length| {
                let counts = even_counts(length, group.size());
                end.reduce_scatter(group, &values(end.rank(), length), &counts, Reduction::Sum)
            },
            expected: |ranks, member, length| {
                let counts = even_counts(length, ranks.len());
                let start: usize = counts[..member].iter().sum();
                sum(ranks, length)[start..start + counts[member]].to_vec()
            },
        },
        Case {
            name: "all-gather",
            run: |end, group, length| {
                let counts = even_counts(length, group.size());
                end.all_gather(group, &values(end.rank(), counts[group.member()]), &counts)
            },
            expected: |ranks, _, length| {
                let counts = even_counts(length, ranks.len());
                ranks.iter().zip(counts).flat_map(|(rank, count)| values(*rank, count)).collect()
            },
        },
        Case {
            name: "broadcast",
            run: |end, group, length| {
                let mut mine = values(end.rank(), length);
                end.broadcast(group, root(group.size()), &mut mine)?;
                Ok(mine)
            },
            expected: |ranks, _, length| values(ranks[root(ranks.len())], length),
        },
        Case {
            name: "pass in a ring",
            run: |end, group, length| Passing::begin(end, group, values(end.rank(), length))?.take(end),
            expected: |ranks, member, length| values(ranks[(member + ranks.len() - 1) % ranks.len()], length),
        },
        Case {
            name: "barrier",
            run: |end, group, _| end.group_barrier(group).map(|()| Vec::new()),
            expected: |_, _, _| Vec::new(),
        },
    ]
}

/// Checks `end`'s collectives together with all other ranks, which do the same. Every rank gets the same rows.
///
/// # Errors
/// Where a rank does not come, or brings another size.
pub fn check(end: &mut dyn Transport) -> Result<Vec<Row>, CollectiveError> {
    let (rank, world) = (end.rank(), end.world());
    let all: Vec<usize> = (0..world).collect();
    let reversed: Vec<usize> = all.iter().rev().copied().collect();
    let apart: Vec<usize> = all.iter().filter(|other| *other % 2 == rank % 2).copied().collect();
    let groups = [("all", all), ("in reverse", reversed), ("two apart", apart)];
    let mut groups = groups.map(|(name, ranks)| {
        // Ranks are distinct, and this one is among them.
        let group = Group::new(ranks, rank).unwrap_or_else(|error| unreachable!("{error}"));
        (name, group)
    });
    // Sums over ranks of what went wrong travel in a group of their own, so that calls are counted apart.
    let mut judges = Group::world(end);
    judges.begin(1);
    let mut rows = Vec::new();
    for Case { name, run, expected } in cases() {
        for length in if name == "barrier" { &LENGTHS[..1] } else { &LENGTHS[..] } {
            for (of, group) in &mut groups {
                let should = expected(group.ranks(), group.member(), *length);
                let mut wrong = 0usize;
                let mut least = Duration::MAX;
                for _ in 0..REPEATS {
                    end.group_barrier(&mut judges)?;
                    let started = Instant::now();
                    let found = run(end, group, *length)?;
                    least = least.min(started.elapsed());
                    let same = found.len() == should.len()
                        && found.iter().zip(&should).all(|(found, should)| found.to_bits() == should.to_bits());
                    wrong += usize::from(!same);
                }
                let mut figures = [wrong as f64, least.as_secs_f64() * 1e6];
                end.all_reduce(&mut judges, &mut figures, Reduction::Max)?;
                let [wrong, micros] = figures;
                let what =
                    if name == "barrier" { format!("{name}, {of}") } else { format!("{name} of {length}, {of}") };
                let found = format!("{micros:.0} us");
                rows.push(Row::fact(GROUP, what, found, "its definition, bit for bit", wrong == 0.0));
            }
        }
    }
    Ok(rows)
}

/// As [`check`], among `ranks` threads of this process.
///
/// # Errors
/// As [`check`]; [`TransportError::Aborted`] where a thread could not be had.
pub fn check_threads(ranks: usize) -> Result<Vec<Row>, CollectiveError> {
    let ends = crate::transport::threads::world(ranks, Default::default());
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || check(&mut end))).collect();
        let mut results = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| {
                let (operation, ranks) = (crate::transport::collectives::Operation::Barrier, Vec::new());
                Err(CollectiveError::Transport { operation, call: 0, ranks, source: TransportError::Aborted })
            })
        });
        let first = results.next().unwrap_or_else(|| Ok(Vec::new()));
        results.try_fold(first?, |rows, result| result.map(|_| rows))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_among_threads_keep_their_definitions() {
        for ranks in 1..=4 {
            let rows = check_threads(ranks).expect("all come");
            assert_eq!(rows.len(), 6 * 3 * 3 + 3);
            for row in rows {
                assert_eq!(row.passed, Some(true), "{ranks} ranks: {row:?}");
            }
        }
    }
}
