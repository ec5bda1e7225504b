//! From an order to times: every op starts as soon as its rank is free and its inputs have arrived.
//!
//! - In: a problem and a schedule.
//! - Out: start and end of each op, bytes of each rank ([`timeline`]); the same with times that vary ([`jitter`]).
//! - Knows: problems. Nothing of how a schedule was made.
//!
//! Copies to and from a host go one after the other on the link of their rank, beside its ops (`host_link`).

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::simulate::host_link::HostLink;
use crate::simulate::timeline::{CopySpan, Span, Timeline};

pub(crate) mod host_link;
pub mod jitter;
pub mod timeline;

/// A rank that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: usize,
    /// The position in its row.
    pub index: usize,
    /// The op that it would run.
    pub op: Op,
    /// The op that has to end first.
    pub needs: Op,
    /// A few ops of the row around it, as text, with the op in brackets.
    pub around: alloc::string::String,
}

/// An order in which the ranks wait for each other for ever, or for an op that nobody runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// One entry for each rank that cannot go on.
    pub waiting: Vec<Waiting>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no rank can go on:")?;
        for waiting in &self.waiting {
            write!(
                f,
                "\n  rank {} at {} waits for {}    {}",
                waiting.rank, waiting.op, waiting.needs, waiting.around
            )?;
        }
        Ok(())
    }
}

impl core::error::Error for Deadlock {}

/// The earliest times for the order of `schedule`: no other timing of the same order ends sooner on any
/// rank. Transfers take no rank's time; the receiver may start one hop after the sender's op has ended.
///
/// Takes time and memory in proportion to the ops. The schedule's ops must belong to the problem (`check`
/// says so); each op is looked up by its number, so one that is twice in a schedule runs twice.
///
/// # Errors
/// [`Deadlock`] where the order cannot be run.
pub fn simulate(problem: &Problem, schedule: &Schedule) -> Result<Timeline, Deadlock> {
    let mut rows: Vec<Vec<Span>> = schedule.rows.iter().map(|row| Vec::with_capacity(row.len())).collect();
    let order = run(problem, schedule, |rank, op, start_ns, end_ns| rows[rank].push(Span { op, start_ns, end_ns }));
    order.map(|copies| Timeline { rows, copies })
}

/// As [`simulate`], handing each op to `visit` (rank, op, start, end) in an order that keeps every
/// dependency; ops of one rank come in the order of its row. Gives the copies to and from hosts.
pub(crate) fn run(
    problem: &Problem,
    schedule: &Schedule,
    visit: impl FnMut(usize, Op, Nanos, Nanos),
) -> Result<Vec<Vec<CopySpan>>, Deadlock> {
    run_as(problem, schedule, |_, _, op| problem.duration(op), visit)
}

/// As [`simulate`], where the op at a place of a rank's row (rank, place, op) takes the time that `took` gives. There
/// is one instance for all callers, since the page has to load each.
///
/// # Errors
/// As [`simulate`].
pub(crate) fn simulate_as(
    problem: &Problem,
    schedule: &Schedule,
    took: &dyn Fn(usize, usize, Op) -> Nanos,
) -> Result<Timeline, Deadlock> {
    let mut rows = vec![Vec::new(); schedule.rows.len()];
    let place = |rank: usize, op, start_ns, end_ns| rows[rank].push(Span { op, start_ns, end_ns });
    let copies = run_as(problem, schedule, took, place)?;
    Ok(Timeline { rows, copies })
}

/// As [`run`], where the op at a place of a rank's row (rank, place, op) takes the time that `took` gives. The shorter
/// op of a pair hides the same share, and communication and copies take the same time.
pub(crate) fn run_as(
    problem: &Problem,
    schedule: &Schedule,
    took: impl Fn(usize, usize, Op) -> Nanos,
    mut visit: impl FnMut(usize, Op, Nanos, Nanos),
) -> Result<Vec<Vec<CopySpan>>, Deadlock> {
    let (stages, microbatches) = (problem.stage_count(), problem.microbatches());
    // Ends of F and of B by stage and microbatch; NEVER until the op has run.
    const NEVER: Nanos = Nanos::MAX;
    let mut forward_end = vec![NEVER; stages * microbatches];
    let mut backward_end = vec![NEVER; stages * microbatches];
    let mut at = vec![0usize; schedule.rows.len()];
    let mut free = vec![0 as Nanos; schedule.rows.len()];
    let mut pairs: Vec<core::iter::Peekable<_>> =
        (0..schedule.rows.len()).map(|rank| schedule.pairs_of(rank).iter().peekable()).collect();
    let mut links: Vec<HostLink> =
        (0..schedule.rows.len()).map(|rank| HostLink::new(schedule.copies_of(rank))).collect();
    // A rank sleeps until the one value that it lacks is made; the rank that makes it wakes it.
    let mut ready: Vec<usize> = (0..schedule.rows.len()).rev().collect();
    while let Some(rank) = ready.pop() {
        while let Some(&op) = schedule.rows[rank].get(at[rank]) {
            let mut start = free[rank];
            let mut blocked = false;
            let mut wait_for_inputs = |op: Op| {
                needs(problem, op, |needed, hop| {
                    let ends = if needed.kind() == OpKind::F { &forward_end } else { &backward_end };
                    let end = ends[needed.stage() * microbatches + needed.microbatch()];
                    if end == NEVER {
                        blocked = true;
                    } else {
                        start = start.max(end + hop);
                    }
                });
            };
            wait_for_inputs(op);
            // A pair starts when both have their inputs and ends for both at once.
            let is_pair = pairs[rank].peek().is_some_and(|place| **place as usize == at[rank]);
            let partner = if is_pair { schedule.rows[rank].get(at[rank] + 1).copied() } else { None };
            partner.iter().for_each(|partner| wait_for_inputs(*partner));
            if blocked {
                break;
            }
            links[rank].start(problem, at[rank], free[rank]);
            start = start.max(links[rank].end(at[rank]));
            let duration = match partner {
                Some(partner) => {
                    let times = [took(rank, at[rank], op), took(rank, at[rank] + 1, partner)];
                    problem.together([op, partner], times)
                }
                None => took(rank, at[rank], op),
            };
            let end = start + duration;
            free[rank] = end;
            if is_pair {
                pairs[rank].next();
            }
            for op in core::iter::once(op).chain(partner) {
                at[rank] += 1;
                let slot = op.stage() * microbatches + op.microbatch();
                match op.kind() {
                    OpKind::F => forward_end[slot] = end,
                    OpKind::B | OpKind::BW => backward_end[slot] = end,
                    OpKind::W => {}
                }
                visit(rank, op, start, end);
                // Only the neighbour stage on another rank can wait for this op.
                let neighbour = match op.kind() {
                    OpKind::F if op.stage() + 1 < stages => Some(op.stage() + 1),
                    OpKind::B | OpKind::BW if op.stage() > 0 => Some(op.stage() - 1),
                    _ => None,
                };
                if let Some(stage) = neighbour {
                    let other = problem.rank_of(stage, op.microbatch());
                    let waits_for_it = |next: &Op| next.stage() == stage && next.microbatch() == op.microbatch();
                    if other != rank
                        && let Some(row) = schedule.rows.get(other)
                        // The rank may wait for this op with the second op of a pair.
                        && row.iter().skip(at[other]).take(2).any(waits_for_it)
                    {
                        ready.push(other);
                    }
                }
            }
        }
    }
    let is_pair = |rank: usize| pairs[rank].peek().is_some_and(|place| **place as usize == at[rank]);
    let has_run = |op: Op| {
        let ends = if op.kind() == OpKind::F { &forward_end } else { &backward_end };
        ends[op.stage() * microbatches + op.microbatch()] != NEVER
    };
    let waiting = waiting(problem, schedule, &at, is_pair, has_run);
    if !waiting.is_empty() {
        return Err(Deadlock { waiting });
    }
    let copies = links.into_iter().map(HostLink::spans);
    Ok(if schedule.has_copies() { copies.collect() } else { Vec::new() })
}

/// The ranks that have ops left, of which each stands at `at`, and what each lacks. `is_pair` says whether a rank's next op
/// is the first of a pair, `has_run` whether an op has run.
fn waiting(
    problem: &Problem,
    schedule: &Schedule,
    at: &[usize],
    mut is_pair: impl FnMut(usize) -> bool,
    has_run: impl Fn(Op) -> bool,
) -> Vec<Waiting> {
    let stuck = |rank: &usize| at[*rank] < schedule.rows[*rank].len();
    (0..schedule.rows.len())
        .filter(stuck)
        .map(|rank| {
            let row = &schedule.rows[rank];
            let op = row[at[rank]];
            let mut lacks = op;
            let partner = if is_pair(rank) { row.get(at[rank] + 1).copied() } else { None };
            for op in core::iter::once(op).chain(partner) {
                needs(problem, op, |needed, _| {
                    if !has_run(needed) {
                        lacks = needed;
                    }
                });
            }
            Waiting { rank, index: at[rank], op, needs: lacks, around: around(row, at[rank]) }
        })
        .collect()
}

/// Calls `each` with every op that has to end before `op` starts and the hop from there. A needed B stands
/// for the B or the BW of that stage and microbatch.
pub fn needs(problem: &Problem, op: Op, mut each: impl FnMut(Op, Nanos)) {
    let (stage, microbatch) = (op.stage(), op.microbatch());
    if let Some(before) = problem.slice_before(op) {
        let kind = if op.kind() == OpKind::F { OpKind::F } else { OpKind::B };
        each(Op::new(stage, kind, before), 0);
    }
    match op.kind() {
        OpKind::F if stage > 0 => {
            each(Op::new(stage - 1, OpKind::F, microbatch), problem.hop_of(stage - 1, stage, microbatch));
        }
        OpKind::F => {}
        OpKind::B | OpKind::BW => {
            each(Op::new(stage, OpKind::F, microbatch), 0);
            if stage + 1 < problem.stage_count() {
                each(Op::new(stage + 1, OpKind::B, microbatch), problem.hop_of(stage + 1, stage, microbatch));
            }
        }
        OpKind::W => each(Op::new(stage, OpKind::B, microbatch), 0),
    }
}

/// Some ops of `row` around `index`, with that one in brackets.
pub(crate) fn around(row: &[Op], index: usize) -> alloc::string::String {
    use core::fmt::Write;
    let from = index.saturating_sub(2);
    let mut text = alloc::string::String::new();
    for (position, op) in row.iter().enumerate().skip(from).take(6) {
        let gap = if position == from { "" } else { " " };
        let _ = if position == index { write!(text, "{gap}[{op}]") } else { write!(text, "{gap}{op}") };
    }
    text
}
