//! What jitter costs: one order runs many times, with ops that take sometimes more and sometimes less than planned.
//!
//! A planned time comes true only where every op takes what was planned. On a cluster, ops of one kind differ: clocks change,
//! links and hosts are shared, routing is uneven. A late rank delays all ranks that wait for it, unless they have other work
//! meanwhile. So two orders with equal planned times may differ widely when they run, and a schedule may lose there what it
//! gains on paper.
//!
//! In each run the time of every op is multiplied by its own random number, `1 + jitter · (e − 1)`, where `e` is exponential
//! with mean 1. This is the shifted exponential that usually models stragglers (Lee et al., arXiv:1512.02673, §III). Its mean is
//! 1 and its standard deviation is the jitter. Much longer times occur; much shorter ones do not. The numbers depend on the op
//! and the run alone, so all orders of a problem meet the same ones. A whole backward is longer as its halves would be, each by
//! its share. Ops vary independently: the sum of more and shorter ops is steadier. A rank that is always slower than others
//! belongs into the times of the problem. P2P transfers take what is planned.

use alloc::vec;
use alloc::vec::Vec;

use crate::base::random::Random;
use crate::base::units::Nanos;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::{MAX_TOTAL_NS, Objective, Problem};
use crate::simulate::{Deadlock, run_as};

/// The most jitter, in thousandths of an op's time: with more, times would be below 0.
pub const MAX_PERMILLE: u16 = 1000;

/// Runs of an order, in steps of [`LEAST_RUNS`], of which one is late; and the ops of all runs together from which on there
/// are fewer of them.
const RUNS: u64 = 200;
const LEAST_RUNS: u64 = 20;
const RUN_OPS: u64 = 2_000_000;
/// With more microbatches on all ranks, no runs are made: they take seconds for each order.
const MOST_RANK_MICROBATCHES: u64 = 100_000;

/// The costs of an order, run after run, by the problem's objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcomes {
    /// Half of the runs take at most this: the median.
    pub typical_ns: Nanos,
    /// One run of twenty takes longer: the 95th percentile.
    pub late_ns: Nanos,
}

/// The outcomes of `schedule` where an op's time has a standard deviation of `permille` thousandths of its planned
/// time.
///
/// Takes 200 runs; fewer, and at least 20, of problems with more than 10,000 ops. None without jitter, of an order that cannot
/// be run, and where the microbatches of all ranks are more than 100,000: as many for each order of a problem.
pub fn outcomes(problem: &Problem, schedule: &Schedule, permille: u16) -> Option<Outcomes> {
    let microbatches = problem.microbatches() as u64;
    if permille == 0 || problem.ranks() as u64 * microbatches > MOST_RANK_MICROBATCHES {
        return None;
    }
    let ops = 3 * problem.stage_count() as u64 * microbatches;
    let runs = (RUN_OPS / ops / LEAST_RUNS * LEAST_RUNS).clamp(LEAST_RUNS, RUNS);
    let mut costs: Vec<Nanos> =
        (0..runs).map(|run| cost(problem, schedule, permille, run).ok()).collect::<Option<_>>()?;
    costs.sort_unstable();
    let of = |percent: usize| costs[(costs.len() * percent).div_ceil(100) - 1];
    Some(Outcomes { typical_ns: of(50), late_ns: of(95) })
}

/// The cost of run number `run` of `schedule`.
pub(crate) fn cost(problem: &Problem, schedule: &Schedule, permille: u16, run: u64) -> Result<Nanos, Deadlock> {
    // By rank, the start of its first op and the end of its last.
    let mut spans: Vec<Option<(Nanos, Nanos)>> = vec![None; schedule.rows.len()];
    let took = took(problem, schedule, permille, run);
    run_as(problem, schedule, took, |rank, _, start, end| {
        let first = spans[rank].map_or(start, |(first, _)| first);
        spans[rank] = Some((first, end));
    })?;
    let spans = spans.into_iter().flatten();
    Ok(match problem.objective() {
        Objective::LongestSpan => spans.map(|(start, end)| end - start).max().unwrap_or(0),
        Objective::Makespan => {
            let (start, end) = spans.fold((Nanos::MAX, 0), |(start, end), span| (span.0.min(start), span.1.max(end)));
            end.saturating_sub(start)
        }
    })
}

/// The time of each op of `schedule` in run number `run`, by rank, place and op.
pub(crate) fn took<'p>(
    problem: &'p Problem,
    schedule: &Schedule,
    permille: u16,
    run: u64,
) -> impl Fn(usize, usize, Op) -> Nanos + use<'p> {
    // What is added never overflows: a problem's times come to no more than that, and so does what they are longer by.
    let most_longer = MAX_TOTAL_NS / schedule.op_count().max(1) as u64;
    move |_, _, op| {
        let planned = problem.duration(op);
        let of = |op| jittered(problem.duration(op), permille, number(problem, op, run));
        let longer = match op.kind() {
            OpKind::BW => {
                let halves = [OpKind::B, OpKind::W].map(|kind| Op::new(op.stage(), kind, op.microbatch()));
                share(planned, halves.map(of), halves.map(|half| problem.duration(half)))
            }
            _ => of(op),
        };
        longer.min(planned + most_longer)
    }
}

/// `planned` as many times as what two ops took is of what they were planned to take.
fn share(planned: Nanos, took: [Nanos; 2], of: [Nanos; 2]) -> Nanos {
    let sum = |of: [Nanos; 2]| u128::from(of[0]) + u128::from(of[1]);
    // Times of one op are below 2^63, and what they are longer by is at most 45 times that.
    let longer = (u128::from(planned) * sum(took)).checked_div(sum(of)).unwrap_or(0);
    Nanos::try_from(longer).unwrap_or(Nanos::MAX)
}

/// A random number for `op`, which is no BW, in one of the runs.
fn number(problem: &Problem, op: Op, run: u64) -> u64 {
    let kind = match op.kind() {
        OpKind::F => 0,
        OpKind::B | OpKind::BW => 1,
        OpKind::W => 2,
    };
    let job = (run * problem.stage_count() as u64 + op.stage() as u64) * 3 + kind;
    Random::new(job * problem.microbatches() as u64 + op.microbatch() as u64).next()
}

/// One, in the fixed point of [`exponential`].
const ONE: u64 = 1 << 16;

/// `planned` longer or shorter, as the random bits say.
fn jittered(planned: Nanos, permille: u16, bits: u64) -> Nanos {
    let permille = u64::from(permille);
    let whole = u64::from(MAX_PERMILLE) * ONE;
    let share = whole - permille * ONE + permille * exponential(bits);
    let longer = (u128::from(planned) * u128::from(share) + u128::from(whole / 2)) / u128::from(whole);
    Nanos::try_from(longer).unwrap_or(Nanos::MAX)
}

/// An exponential number with mean [`ONE`]: `−ln u` of a `u` that is uniform between 0 and 1. In whole numbers, so that it
/// is the same everywhere: the digits of a logarithm to base 2 come one by one, as its argument is squared.
fn exponential(bits: u64) -> u64 {
    const LN_2: u64 = 45_426; // of ONE
    let bits = bits | 1;
    let zeros = u64::from(bits.leading_zeros());
    // u is 2^-(zeros + 1) times a number from 1 to 2, here with 31 digits behind the point.
    let mut square = (bits << zeros) >> 32;
    let mut digits = 0;
    for _ in 0..16 {
        square = (square * square) >> 31;
        let digit = square >> 32;
        square >>= digit;
        digits = 2 * digits + digit;
    }
    ((zeros + 1) * ONE - digits) * LN_2 / ONE
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::problem::Statement;
    use crate::schedule::{find, published};
    use crate::simulate::simulate;

    fn problem(ranks: u64, chunks: u64, microbatches: u64, placement: &str, overlap: u16) -> Option<Problem> {
        let statement = Statement::read(&json!({
            "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "transfer_ns": 7_000,
            "stages": { "forward_ns": 90_000, "backward_input_ns": 100_000, "backward_weight_ns": 80_000 },
            "overlap_permille": overlap,
        }))
        .ok()?;
        statement.problem(statement.placements()[0].clone()).ok()
    }

    #[test]
    fn numbers_are_exponential() {
        let mut random = Random::new(5);
        let drawn: Vec<f64> = (0..200_000).map(|_| exponential(random.next()) as f64 / ONE as f64).collect();
        let mean = |of: &dyn Fn(f64) -> f64| drawn.iter().map(|e| of(*e)).sum::<f64>() / drawn.len() as f64;
        let first = mean(&|e| e);
        let spread = mean(&|e| (e - first) * (e - first));
        assert!((first - 1.0).abs() < 0.01 && (spread - 1.0).abs() < 0.03, "{first} {spread}");
        // e to the minus x are above x.
        for (above, share) in [(0.1, 0.9048), (1.0, 0.3679), (3.0, 0.0498), (6.0, 0.0025)] {
            let found = mean(&|e| f64::from(u8::from(e > above)));
            assert!((found - share).abs() < 0.004, "{found} of {share} above {above}");
        }
        assert_eq!(exponential(u64::MAX), 0);
    }

    #[test]
    fn a_run_without_jitter_is_as_planned() {
        let mut seen = 0;
        for published in published() {
            let (placement, chunks) = (published.shape)(2);
            for overlap in [0, 400] {
                let name = placement.name().expect("a published placement");
                let Some(problem) = problem(4, chunks as u64, 8, name, overlap) else { continue };
                let Ok(schedule) = published.build(&problem) else { continue };
                let planned = simulate(&problem, &schedule).expect("runs").cost_ns(problem.objective());
                assert_eq!(cost(&problem, &schedule, 0, 7).expect("runs"), planned, "{}", published.name);
                assert_eq!(outcomes(&problem, &schedule, 0), None);
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }

    /// One rank waits for nobody: its time is a sum of 2 · 400 ops, and that nearly normal.
    #[test]
    fn one_rank_takes_the_sum_of_its_ops() {
        let problem = problem(1, 1, 400, "linear", 0).expect("a sound problem");
        let schedule = published()[1].build(&problem).expect("1F1B");
        let outcomes = outcomes(&problem, &schedule, 300).expect("runs");
        let mean = 400.0 * 270_000.0;
        // F, and the whole backward, of which each half differs for itself.
        let squares = 90_000.0f64.powi(2) + 100_000.0f64.powi(2) + 80_000.0f64.powi(2);
        let deviation = 0.3 * (400.0 * squares).sqrt();
        let (typical, late) = (outcomes.typical_ns as f64, outcomes.late_ns as f64);
        assert!((typical - mean).abs() < 0.2 * deviation, "{typical} of {mean} ± {deviation}");
        assert!((late - mean - 1.645 * deviation).abs() < 0.35 * deviation, "{late} of {mean} + {deviation}");
    }

    /// A rank that waits for nobody takes as long whether it cuts its backwards or not, run for run.
    #[test]
    fn cutting_backwards_takes_no_jitter_away() {
        let problem = problem(1, 1, 64, "linear", 0).expect("a sound problem");
        let of = |name: &str| {
            let schedule = find(name).expect("published").build(&problem).expect("for one rank");
            outcomes(&problem, &schedule, 200).expect("jitter")
        };
        let (whole, cut) = (of("1f1b"), of("zb-h1"));
        // Each whole one is rounded down by less than a nanosecond.
        assert!(cut.late_ns.abs_diff(whole.late_ns) < 64 && cut.typical_ns.abs_diff(whole.typical_ns) < 64);
    }

    #[test]
    fn what_would_take_too_long_is_left_out() {
        let most = problem(2, 1, MOST_RANK_MICROBATCHES / 2, "linear", 0).expect("a sound problem");
        let more = problem(2, 1, MOST_RANK_MICROBATCHES / 2 + 1, "linear", 0).expect("a sound problem");
        let of = |problem: &Problem| outcomes(problem, &published()[1].build(problem).expect("1F1B"), 10);
        assert!(of(&most).is_some() && of(&more).is_none());
    }

    #[test]
    fn the_longest_times_do_not_overflow() {
        let statement = Statement::read(&json!({
            "ranks": 2, "microbatches": 120, "stages": { "forward_ns": 1u64 << 53, "backward_input_ns": 1u64 << 53 },
        }))
        .expect("within what a problem may say");
        let problem = statement.problem(statement.placements()[0].clone()).expect("a sound problem");
        let schedule = published()[1].build(&problem).expect("1F1B");
        let outcomes = outcomes(&problem, &schedule, MAX_PERMILLE).expect("runs");
        assert!(outcomes.late_ns > simulate(&problem, &schedule).expect("runs").makespan_ns());
    }

    /// What a rank is late all others wait for: the more of them, the more longer the typical step is than planned.
    #[test]
    fn more_jitter_and_more_ranks_cost_more() {
        let longer = |ranks: u64, permille: u16| {
            let problem = problem(ranks, 1, 32, "linear", 0).expect("a sound problem");
            let schedule = published()[1].build(&problem).expect("1F1B");
            let planned = simulate(&problem, &schedule).expect("runs").makespan_ns();
            let outcomes = outcomes(&problem, &schedule, permille).expect("runs");
            assert!(outcomes.typical_ns <= outcomes.late_ns);
            outcomes.typical_ns.saturating_sub(planned)
        };
        for (less, more) in [((4, 50), (4, 100)), ((4, 100), (4, 300)), ((2, 100), (4, 100)), ((4, 100), (16, 100))] {
            assert!(longer(less.0, less.1) < longer(more.0, more.1), "{less:?} {more:?}");
        }
    }
}
