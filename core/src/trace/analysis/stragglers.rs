//! Who is slow, since when, and of which kind.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::replay::Replay;
use super::row_text;
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::trace::Trace;
use crate::trace::waits::Place;

/// What is slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// A rank, in all that it does: its device, its host. The row of the trace, and its name.
    Rank(usize, String),
    /// A stage, on every rank that holds it: it has more work.
    Stage(usize),
    /// Messages from one row to another.
    Link(usize, usize),
    /// Microbatches that take long on every rank: longer sequences, more tokens for some experts. The slowest one.
    Microbatches(usize),
    /// Single ops, now and then: garbage collection, other programs.
    Sporadic,
}

impl Slow {
    /// The kind, for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Slow::Rank(..) => "rank",
            Slow::Stage(_) => "stage",
            Slow::Link(..) => "link",
            Slow::Microbatches(_) => "microbatches",
            Slow::Sporadic => "sporadic",
        }
    }

    /// What that usually is.
    pub const fn why(&self) -> &'static str {
        match self {
            Slow::Rank(..) => "all that it does: its device or host, or more work than a plan (--plan) tells of",
            Slow::Stage(_) => "this stage alone: it has more work",
            Slow::Link(..) => "its messages",
            Slow::Microbatches(_) => "microbatches on every rank: longer sequences, or more tokens for some experts",
            Slow::Sporadic => "now and then: garbage collection, other programs",
        }
    }

    /// Where: `rank 3`, `stage 2`, `0 to 1`.
    pub fn place(&self) -> String {
        match self {
            Slow::Rank(_, name) => name.clone(),
            Slow::Stage(stage) => format!("stage {stage}"),
            Slow::Link(from, to) => format!("{from} to {to}"),
            Slow::Microbatches(microbatch) => format!("microbatch {microbatch}"),
            Slow::Sporadic => "single ops".to_string(),
        }
    }
}

/// Something slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// What.
    pub slow: Slow,
    /// The first step from which on it is slow in every step.
    pub since: u64,
    /// Thousandths of the usual time that it takes.
    pub permille: u32,
    /// Slow ops or messages.
    pub ops: usize,
    /// How much shorter the mean step would be without it.
    pub saved_ns: Nanos,
}

/// A rank or stage is slow from this many thousandths of the usual time on; a microbatch, an op and a link from more on.
pub(super) const SLOW: u64 = 1100;
const SLOW_MICROBATCH: u64 = 1200;
const SLOW_OP: u64 = 1500;
pub(super) const SLOW_LINK: u64 = 3000;

/// The usual times of ops.
pub(super) struct References {
    /// By stage and job.
    usual: BTreeMap<(usize, OpKind), Nanos>,
    /// By stage and job: the median over its ops.
    median: BTreeMap<(usize, OpKind), Nanos>,
    /// By row: thousandths of the usual time, over its ops.
    rows: Vec<u64>,
}

pub(super) fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    // Of two copies, the faster one is the usual one.
    values.get(values.len().checked_sub(1)? / 2).copied()
}

pub(super) fn permille(took: Nanos, usual: Nanos) -> u64 {
    let ratio = u128::from(took) * 1000 / u128::from(usual.max(1));
    u64::try_from(ratio).unwrap_or(u64::MAX).min(u32::MAX.into())
}

impl References {
    /// Where `planned` says what each op was to take, the usual time is that times the median ratio of its job. Else it is the
    /// median over the copies of the stage, where there are several; else over all stages.
    pub(super) fn of(trace: &Trace, replays: &[Replay], planned: Option<&dyn Fn(Op) -> Nanos>) -> References {
        let mut by_stage: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
        let mut by_row: BTreeMap<(usize, OpKind, usize), Vec<u64>> = BTreeMap::new();
        for replay in replays {
            for place in replay.places() {
                let (op, took) = (replay.op(place), replay.took(place));
                by_stage.entry((op.stage(), op.kind())).or_default().push(took);
                by_row.entry((op.stage(), op.kind(), place.0)).or_default().push(took);
            }
        }
        let medians: BTreeMap<(usize, OpKind), Nanos> =
            by_stage.into_iter().filter_map(|(key, times)| Some((key, median(times)?))).collect();
        // A slow rank in a small group shifts the median over all ops, but not that of the ranks' medians.
        let mut of_copies: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
        for ((stage, kind, _), times) in by_row {
            of_copies.entry((stage, kind)).or_default().extend(median(times));
        }
        let copies = trace.replicas.max(1) * trace.context.max(1) * trace.tensor.max(1);
        let mut of_jobs: BTreeMap<OpKind, Vec<u64>> = BTreeMap::new();
        for ((stage, kind), medians) in &of_copies {
            let planned = planned.map(|planned| planned(Op::new(*stage, *kind, 0)));
            let ratio = |ns: &u64| planned.map_or(*ns, |planned| permille(*ns, planned));
            of_jobs.entry(*kind).or_default().extend(medians.iter().map(ratio));
        }
        let of_jobs: BTreeMap<OpKind, u64> =
            of_jobs.into_iter().filter_map(|(kind, times)| Some((kind, median(times)?))).collect();
        let usual = of_copies.into_iter().filter_map(|((stage, kind), times)| {
            let of_job = *of_jobs.get(&kind)?;
            let ns = match planned {
                Some(planned) => (u128::from(planned(Op::new(stage, kind, 0))) * u128::from(of_job) / 1000) as Nanos,
                None if copies > 1 => median(times)?,
                None => of_job,
            };
            Some(((stage, kind), ns))
        });
        let mut references = References { usual: usual.collect(), median: medians, rows: Vec::new() };
        let rows = replays.iter().map(|replay| replay.waits.ops.len()).max().unwrap_or(0);
        references.rows = (0..rows).map(|row| references.whole(replays, row)).collect();
        references
    }

    pub(super) fn usual(&self, op: Op) -> Nanos {
        self.usual.get(&(op.stage(), op.kind())).copied().unwrap_or(Nanos::MAX)
    }

    /// Thousandths of the usual time that the ops of `row` take, all of them or those of one stage: the median.
    fn ratio<'a>(&self, replays: impl Iterator<Item = &'a Replay>, row: usize, stage: Option<usize>) -> Option<u64> {
        let of = |replay: &'a Replay| {
            let ops = replay.waits.ops.get(row).map_or(0, Vec::len);
            (0..ops).map(move |place| (replay, (row, place)))
        };
        let all = replays
            .flat_map(of)
            .filter(|(replay, place)| stage.is_none_or(|stage| replay.op(*place).stage() == stage));
        median(all.map(|(replay, place)| permille(replay.took(place), self.usual(replay.op(place)))).collect())
    }

    /// Thousandths of the usual time that all ops of `row` take together.
    fn whole(&self, replays: &[Replay], row: usize) -> u64 {
        let ops = replays.iter().flat_map(|replay| replay.places().map(move |place| (replay, place)));
        let (took, usual) =
            ops.filter(|(_, place)| place.0 == row).fold((0, 0), |(took, usual): (Nanos, Nanos), (replay, place)| {
                (took.saturating_add(replay.took(place)), usual.saturating_add(self.usual(replay.op(place))))
            });
        permille(took, usual)
    }

    pub(super) fn slowest_row(&self) -> Option<usize> {
        (0..self.rows.len()).max_by_key(|row| (self.rows[*row], core::cmp::Reverse(*row)))
    }

    /// `took`, where all stages have as much work of each job: what an op takes more than its like it still does.
    pub(super) fn evened(&self, op: Op, took: Nanos) -> Nanos {
        let of_job = self.median.iter().filter(|((_, kind), _)| *kind == op.kind()).map(|(_, ns)| u128::from(*ns));
        let (sum, count) = of_job.fold((0, 0u128), |(sum, count), ns| (sum + ns, count + 1));
        let Some(own) = self.median.get(&(op.stage(), op.kind())) else { return took };
        let even = (sum / count.max(1)) as Nanos;
        took.saturating_add(even).saturating_sub(*own)
    }
}

/// How much shorter the mean step is where ops (step, unused, place) take other times, and a link another one.
pub(super) type Saved<'a> =
    dyn Fn(&dyn Fn(usize, usize, Place) -> Option<Nanos>, Option<((usize, usize), Nanos)>) -> Nanos + 'a;

/// The first of `count` steps from which on `slow` holds in every step; none where it does not hold in the last.
fn since(count: usize, slow: impl Fn(usize) -> bool) -> Option<usize> {
    let fast = (0..count).rev().find(|step| !slow(*step));
    let first = fast.map_or(0, |fast| fast + 1);
    // One slow step at the end of many is an accident.
    (first < count && (first == 0 || count - first > 1)).then_some(first)
}

pub(super) fn stragglers(
    trace: &Trace,
    replays: &[Replay],
    references: &References,
    saved: &Saved<'_>,
) -> Vec<Straggler> {
    let number = |step: usize| trace.steps.get(step).map_or(0, |step| step.step);
    let mut found = Vec::new();
    let mut slow_rows = Vec::new();
    for row in 0..references.rows.len() {
        let places = replays.iter().flat_map(|replay| replay.waits.ops.get(row).into_iter().flatten());
        let stages: BTreeSet<usize> = places.map(|span| span.op.stage()).collect();
        let first = |stage: &usize| {
            let ratio = |step: usize| references.ratio(replays[step..=step].iter(), row, Some(*stage)).unwrap_or(0);
            Some((Some(*stage), since(replays.len(), |step| ratio(step) >= SLOW)?))
        };
        let mut slow: Vec<(Option<usize>, usize)> = stages.iter().filter_map(first).collect();
        if slow.is_empty() {
            continue;
        }
        slow_rows.push(row);
        if slow.len() == stages.len() {
            // In all that it does.
            let first = slow.iter().map(|(_, first)| *first).min().unwrap_or(0);
            slow = Vec::from([(None, first)]);
        }
        for (stage, first) in slow {
            let is_slow = |step: usize, place: Place| {
                place.0 == row && step >= first && stage.is_none_or(|stage| replays[step].op(place).stage() == stage)
            };
            let fixed = |step: usize, _: usize, place: Place| {
                let usual = references.usual(replays[step].op(place));
                is_slow(step, place).then(|| replays[step].took(place).min(usual))
            };
            let all = (first..replays.len()).flat_map(|step| replays[step].places().map(move |place| (step, place)));
            found.push(Straggler {
                slow: stage.map_or_else(|| Slow::Rank(row, row_text(trace, row)), Slow::Stage),
                since: number(first),
                permille: references.ratio(replays[first..].iter(), row, stage).unwrap_or(1000) as u32,
                ops: all.filter(|(step, place)| is_slow(*step, *place)).count(),
                saved_ns: saved(&fixed, None),
            });
        }
    }
    found.extend(slow_microbatches(replays, references, &slow_rows, saved, &number));
    found.extend(slow_links(replays, saved, &number));
    found.sort_by_key(|straggler| core::cmp::Reverse(straggler.saved_ns));
    found
}

/// Microbatches that are slow on all ranks, and ops that are slow alone.
fn slow_microbatches(
    replays: &[Replay],
    references: &References,
    slow_rows: &[usize],
    saved: &Saved<'_>,
    number: &dyn Fn(usize) -> u64,
) -> Vec<Straggler> {
    // The usual time of a row's job within the step: a slow rank is slow for every microbatch.
    let mut of_rows: BTreeMap<(usize, usize, usize, OpKind), Vec<u64>> = BTreeMap::new();
    for (step, replay) in replays.iter().enumerate() {
        for place in replay.places() {
            let op = replay.op(place);
            of_rows.entry((step, place.0, op.stage(), op.kind())).or_default().push(replay.took(place));
        }
    }
    let usual: BTreeMap<_, Nanos> =
        of_rows.into_iter().filter_map(|(key, times)| Some((key, median(times)?))).collect();
    let usual_of = |step: usize, place: Place| {
        let op = replays[step].op(place);
        usual.get(&(step, place.0, op.stage(), op.kind())).copied().unwrap_or(Nanos::MAX)
    };
    let mut ratios: BTreeMap<(usize, usize), Vec<u64>> = BTreeMap::new();
    for (step, replay) in replays.iter().enumerate() {
        for place in replay.places() {
            let ratio = permille(replay.took(place), usual_of(step, place));
            ratios.entry((step, replay.op(place).microbatch())).or_default().push(ratio);
        }
    }
    let slow: BTreeMap<(usize, usize), u64> = ratios
        .into_iter()
        .filter(|(_, ratios)| ratios.len() > 2)
        .filter_map(|(key, ratios)| Some((key, median(ratios)?)))
        .filter(|(_, ratio)| *ratio >= SLOW_MICROBATCH)
        .collect();
    let mut found = Vec::new();
    if let Some(((_, worst), ratio)) = slow.iter().max_by_key(|(_, ratio)| **ratio) {
        let is_slow = |step: usize, place: Place| slow.contains_key(&(step, replays[step].op(place).microbatch()));
        let fixed = |step: usize, _: usize, place: Place| {
            is_slow(step, place).then(|| replays[step].took(place).min(usual_of(step, place)))
        };
        let first = slow.keys().map(|(step, _)| *step).min().unwrap_or(0);
        found.push(Straggler {
            slow: Slow::Microbatches(*worst),
            since: number(first),
            permille: *ratio as u32,
            ops: slow.len(),
            saved_ns: saved(&fixed, None),
        });
    }
    let alone = |step: usize, place: Place| {
        let is_of_microbatch = slow.contains_key(&(step, replays[step].op(place).microbatch()));
        !is_of_microbatch && permille(replays[step].took(place), usual_of(step, place)) >= SLOW_OP
    };
    let all =
        || replays.iter().enumerate().flat_map(|(step, replay)| replay.places().map(move |place| (step, place)));
    let ops: Vec<(usize, Place)> = all().filter(|(step, place)| alone(*step, *place)).collect();
    if let Some((first, _)) = ops.first() {
        let fixed = |step: usize, _: usize, place: Place| alone(step, place).then(|| usual_of(step, place));
        let worst =
            ops.iter().map(|(step, place)| permille(replays[*step].took(*place), usual_of(*step, *place))).max();
        let of_slow_rows = ops.iter().all(|(_, place)| slow_rows.contains(&place.0));
        let straggler = Straggler {
            slow: Slow::Sporadic,
            since: number(*first),
            permille: worst.unwrap_or(1000) as u32,
            ops: ops.len(),
            saved_ns: saved(&fixed, None),
        };
        if !of_slow_rows || references.rows.len() == slow_rows.len() || straggler.saved_ns > 0 {
            found.push(straggler);
        }
    }
    found
}

/// Links whose messages take far longer than those of others.
fn slow_links(replays: &[Replay], saved: &Saved<'_>, number: &dyn Fn(usize) -> u64) -> Vec<Straggler> {
    let mut times: BTreeMap<(usize, usize), Vec<u64>> = BTreeMap::new();
    let mut ops: Vec<Nanos> = Vec::new();
    for replay in replays {
        for (input, op) in replay.waits.edges() {
            times.entry((input.0, op.0)).or_default().push(replay.hop_as(op, None));
        }
        ops.extend(replay.places().map(|place| replay.took(place)));
    }
    let messages: BTreeMap<(usize, usize), usize> = times.iter().map(|(link, times)| (*link, times.len())).collect();
    let medians: BTreeMap<(usize, usize), Nanos> =
        times.into_iter().filter_map(|(link, times)| Some((link, median(times)?))).collect();
    let Some(usual) = median(medians.values().copied().collect()).filter(|_| medians.len() > 2) else {
        return Vec::new();
    };
    let op = median(ops).unwrap_or(0);
    let slow = medians.iter().filter(|(_, ns)| permille(**ns, usual.max(1)) >= SLOW_LINK && **ns - usual > op / 50);
    slow.map(|(link, ns)| Straggler {
        slow: Slow::Link(link.0, link.1),
        since: number(0),
        permille: permille(*ns, usual.max(1)) as u32,
        ops: messages.get(link).copied().unwrap_or(0),
        saved_ns: saved(&|_, _, _| None, Some((*link, usual))),
    })
    .collect()
}
