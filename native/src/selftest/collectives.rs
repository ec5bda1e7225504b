//! Every collective of a transport, as its ranks really carry it out: bit for bit against its definition, and how long it
//! takes; and what a message from rank to rank takes, in the words of a spec.
//!
//! What each rank brings follows from its number, so every rank can work out by itself what all of them should get. Each
//! collective runs in three groups: all ranks, all in reverse, and the even and odd ones apart at the same time.

use std::time::{Duration, Instant};

use pipeplan_core::base::units::Nanos;
use pipeplan_core::hardware::cluster::{Link, MAX_LATENCY_NS, MAX_RATE};

use super::Row;
use crate::runner::random::SplitMix64;
use crate::transport::collectives::ring::Passing;
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
    // The count of errors over ranks uses a separate group, so that its calls are counted apart.
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
    rows.extend(measured_link(end)?.map(rows_of).into_iter().flatten());
    Ok(rows)
}

/// Bytes of the messages that a link is measured with: one that is all latency, and two whose difference is all rate.
const MESSAGES: [usize; 3] = [8, 4 << 20, 16 << 20];

/// What a message to the next rank takes while all ranks send one, as they do within a pipeline; none of a single rank.
fn measured_link(end: &mut dyn Transport) -> Result<Option<Link>, CollectiveError> {
    let mut ring = Group::world(end);
    let mut judges = Group::world(end);
    judges.begin(1);
    if end.world() < 2 {
        return Ok(None);
    }
    let mut times = [Nanos::MAX; MESSAGES.len()];
    for (bytes, least) in MESSAGES.into_iter().zip(&mut times) {
        for _ in 0..REPEATS {
            let values = vec![1.0f32; bytes / size_of::<f32>()];
            end.group_barrier(&mut judges)?;
            let started = Instant::now();
            Passing::begin(end, &mut ring, values)?.take(end)?;
            let mut slowest = [started.elapsed().as_secs_f64() * 1e9];
            // What counts is when the last one has its message.
            end.all_reduce(&mut judges, &mut slowest, Reduction::Max)?;
            *least = (*least).min(slowest[0] as Nanos);
        }
    }
    Ok(Some(link_of(times)))
}

/// The link on which [`MESSAGES`] take so long.
fn link_of([small, middle, large]: [Nanos; 3]) -> Link {
    // Where a message is handed over and not copied, size hardly matters: then the whole time of the largest stands for what
    // cannot be told apart.
    let has_rate = large > middle.saturating_add(middle / 2);
    let (bytes, time) = if has_rate { (MESSAGES[2] - MESSAGES[1], large - middle) } else { (MESSAGES[2], large) };
    let rate = bytes as u128 * 1_000_000_000 / u128::from(time.max(1));
    Link {
        bytes_per_s: u64::try_from(rate).unwrap_or(MAX_RATE).clamp(1, MAX_RATE),
        latency_ns: small.min(MAX_LATENCY_NS),
    }
}

/// Each figure together with the field of a spec that takes it.
fn rows_of(Link { bytes_per_s, latency_ns }: Link) -> [Row; 2] {
    let row = |name: &str, found, words| Row::figure("link", name.to_string(), found, words);
    [
        row(
            "messages to the next rank, all at once: latency",
            format!("{:.1} us", latency_ns as f64 / 1e3),
            format!("cluster.link.latency_ns = {latency_ns}"),
        ),
        row(
            "messages to the next rank, all at once: rate",
            format!("{:.2} GB/s", bytes_per_s as f64 / 1e9),
            format!("cluster.link.bytes_per_s = {bytes_per_s}"),
        ),
    ]
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
    use pipeplan_core::spec::{Spec, Work};

    use super::*;

    /// The figures of a link, from what its messages take.
    #[test]
    fn a_link_is_found_from_its_messages() {
        let link = Link { bytes_per_s: 12_500_000_000, latency_ns: 8_000 };
        let found = link_of(MESSAGES.map(|bytes| link.time(bytes as u64)));
        assert_eq!(found.latency_ns, link.time(8));
        assert!((found.bytes_per_s as f64 / link.bytes_per_s as f64 - 1.0).abs() < 1e-5, "{found:?}");
        // Handed over, not copied: the rate is one that explains the time, and not what is left between two noises.
        assert_eq!(link_of([5_000, 6_000, 6_100]).bytes_per_s, (16 << 20) * 1_000_000_000 / 6_100);
        // A spec takes the words as they stand.
        let words = rows_of(link).map(|row| row.against).join("\n");
        let rest = "cluster.device = \"cpu\"\nparallel.pipeline = 2\ntraining.microbatches = 4";
        let text = format!("model.name = \"tiny-llama\"\n{rest}\n{words}\n");
        let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(matches!(&spec.work, Work::Model(work) if work.link == link), "{text}");
        // Whatever a clock says, a spec can say too.
        for times in [[0; 3], [u64::MAX; 3], [3, 2, 1], [1, 1, u64::MAX]] {
            let mut faults = Vec::new();
            link_of(times).find_faults("cluster.link", &mut faults);
            assert!(faults.is_empty(), "{faults:?}");
        }
    }

    #[test]
    fn slow_collectives_among_threads_keep_their_definitions() {
        for ranks in 1..=4 {
            let rows = check_threads(ranks).expect("all come");
            let (links, collectives): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.group == "link");
            assert_eq!(links.len(), if ranks > 1 { 2 } else { 0 });
            assert_eq!(collectives.len(), 6 * 3 * 3 + 3);
            for row in collectives {
                assert_eq!(row.passed, Some(true), "{ranks} ranks: {row:?}");
            }
        }
    }
}
