//! Whether a run goes on as it was planned: ranks and links that are slower than the plan says, next to the others, in each of
//! its last steps.
//!
//! Plans are often made for other devices than those of a run. So a time counts by how far its ratio to the plan is from that of
//! the other ranks in the same step: what slows all of them is no straggler. An accident of one step is none, either: all steps
//! that are watched have to be slow, by more than the ranks' ratios jitter from step to step.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::stragglers::{SLOW, SLOW_LINK, Slow, median, permille};
use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;
use crate::program::Step;
use crate::trace::calibrate::hops_of;
use crate::trace::{StepTrace, Trace};

/// And a ratio is slow from so many times the jitter above 1000.
const JITTERS: u64 = 3;

/// Something that is slower than planned, in each of the last steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// What: a rank or a link.
    pub slow: Slow,
    /// Thousandths of what the plan says, next to the other ranks or links: the middle one of the steps.
    pub permille: u64,
    /// Of the steps, the one in which it was least.
    pub least_permille: u64,
    /// The same of all others: their least and most middle ones.
    pub others_permille: (u64, u64),
    /// The steps, all of them slow.
    pub steps: usize,
    /// How far ratios are from the middle one of their rank or link, from step to step, in thousandths.
    pub jitter_permille: u64,
}

/// The ratios of one step: by row, and by link. None where nothing was measured.
struct Ratios {
    rows: Vec<Option<u64>>,
    links: BTreeMap<(usize, usize), u64>,
}

/// Watches the steps of a run.
pub struct Watch<'p> {
    problem: &'p Problem,
    shape: &'p Trace,
    window: usize,
    last: VecDeque<Ratios>,
}

impl<'p> Watch<'p> {
    /// For a run of `problem`, over its last `window` steps, at least 2. `shape` is a trace of it, whose steps do not matter: it
    /// says how many copies of the pipeline there are.
    pub fn new(problem: &'p Problem, shape: &'p Trace, window: usize) -> Watch<'p> {
        Watch { problem, shape, window: window.max(2), last: VecDeque::new() }
    }

    /// Takes the next step. Gives what is slower than planned, where as many steps have been taken as are watched.
    pub fn add(&mut self, step: &StepTrace) -> Vec<Late> {
        self.last.push_back(Ratios { rows: rows(self.problem, step), links: links(self.problem, step) });
        if self.last.len() > self.window {
            self.last.pop_front();
        }
        if self.last.len() < self.window {
            return Vec::new();
        }
        let count = self.last.iter().map(|step| step.rows.len()).min().unwrap_or(0);
        let of_rows = (0..count).filter_map(|row| {
            let ratios: Option<Vec<u64>> = self.last.iter().map(|step| step.rows[row]).collect();
            Some((Slow::Rank(row, self.shape.row_name(row, count)), ratios?))
        });
        let mut found = late(of_rows.collect(), SLOW);
        let of_links = self.last[0].links.keys().filter_map(|link| {
            let ratios: Option<Vec<u64>> = self.last.iter().map(|step| step.links.get(link).copied()).collect();
            Some((Slow::Link(link.0, link.1), ratios?))
        });
        // Of two links nobody knows which one is usual.
        let of_links: Vec<_> = of_links.collect();
        if of_links.len() > 2 {
            found.extend(late(of_links, SLOW_LINK));
        }
        found
    }
}

/// Those of `all`, each with its ratios by step, that are slow in every step.
fn late(all: Vec<(Slow, Vec<u64>)>, slow: u64) -> Vec<Late> {
    let middle: Vec<u64> = all.iter().map(|(_, ratios)| median(ratios.clone()).unwrap_or(1000)).collect();
    let apart =
        all.iter().zip(&middle).flat_map(|((_, ratios), middle)| ratios.iter().map(|it| it.abs_diff(*middle)));
    let jitter_permille = median(apart.collect()).unwrap_or(0);
    let from = slow.max(1000 + JITTERS * jitter_permille);
    let is_late = |ratios: &[u64]| ratios.iter().all(|ratio| *ratio >= from);
    let usual = all.iter().zip(&middle).filter(|((_, ratios), _)| !is_late(ratios)).map(|(_, middle)| *middle);
    let others_permille = (usual.clone().min().unwrap_or(1000), usual.max().unwrap_or(1000));
    let late = all.into_iter().zip(middle).filter(|((_, ratios), _)| is_late(ratios));
    late.map(|((slow, ratios), permille)| Late {
        slow,
        permille,
        least_permille: ratios.iter().copied().min().unwrap_or(permille),
        others_permille,
        steps: ratios.len(),
        jitter_permille,
    })
    .collect()
}

/// By row: the middle one of its ops' ratios to the plan, next to the middle row's of the same job: a plan can be wrong about F
/// and B apart.
fn rows(problem: &Problem, step: &StepTrace) -> Vec<Option<u64>> {
    let ops: Vec<Vec<(OpKind, u64)>> = step
        .rows
        .iter()
        .map(|row| {
            let ops = row.iter().filter_map(|span| match span.step {
                // Another trace's ops are not those of the problem.
                Step::Compute(op)
                    if op.stage() < problem.stage_count() && op.microbatch() < problem.microbatches() =>
                {
                    let planned = problem.duration(op);
                    (planned > 0).then(|| (op.kind(), permille(span.end_ns.saturating_sub(span.start_ns), planned)))
                }
                _ => None,
            });
            ops.collect()
        })
        .collect();
    let mut of_jobs: BTreeMap<OpKind, Vec<u64>> = BTreeMap::new();
    for row in &ops {
        let mut own: BTreeMap<OpKind, Vec<u64>> = BTreeMap::new();
        row.iter().for_each(|(kind, ratio)| own.entry(*kind).or_default().push(*ratio));
        own.into_iter().for_each(|(kind, ratios)| of_jobs.entry(kind).or_default().extend(median(ratios)));
    }
    let usual: BTreeMap<OpKind, u64> =
        of_jobs.into_iter().filter_map(|(kind, ratios)| Some((kind, median(ratios)?))).collect();
    let own = |(kind, ratio): &(OpKind, u64)| Some(permille(*ratio, *usual.get(kind)?));
    ops.iter().map(|row| median(row.iter().filter_map(own).collect())).collect()
}

/// By link: the middle one of its hops' times against the plan, next to the middle link's; of those whose hops are long enough
/// next to an op to matter. Nothing where ranks do not share a clock.
fn links(problem: &Problem, step: &StepTrace) -> BTreeMap<(usize, usize), u64> {
    if step.began_ns.is_none() {
        return BTreeMap::new();
    }
    let hops = hops_of(problem, core::slice::from_ref(step));
    let all_planned = hops.iter().all(|hop| hop.planned_ns > 0);
    let ratio =
        |took: Nanos, planned: Nanos| if all_planned { permille(took, planned) } else { took.saturating_mul(1000) };
    let usual = median(hops.iter().map(|hop| ratio(hop.median_ns, hop.planned_ns)).collect()).unwrap_or(0).max(1);
    let took = step.rows.iter().flatten().filter(|span| matches!(span.step, Step::Compute(_)));
    let op = median(took.map(|span| span.end_ns.saturating_sub(span.start_ns)).collect()).unwrap_or(0);
    let of = hops.iter().map(|hop| {
        let ratio = permille(ratio(hop.median_ns, hop.planned_ns), usual);
        let matters = hop.median_ns > op / 50;
        ((hop.from, hop.to), if matters { ratio } else { ratio.min(1000) })
    });
    of.collect()
}
