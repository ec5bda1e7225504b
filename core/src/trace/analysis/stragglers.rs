//! Who is slow, since when, and of which kind.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::pace::Pace;
use super::replay::{Links, Replay};
use super::row_text;
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::simulate::timeline::Span;
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

/// Something of each stage and job.
struct ByJob<T>(Vec<Option<T>>);

impl<T: Copy> ByJob<T> {
    fn of(all: impl Iterator<Item = ((usize, OpKind), T)>) -> ByJob<T> {
        let mut by_job = Vec::new();
        for ((stage, kind), of) in all {
            let at = stage * KINDS + kind as usize;
            by_job.resize(by_job.len().max(at + 1), None);
            by_job[at] = Some(of);
        }
        ByJob(by_job)
    }

    fn get(&self, op: Op) -> Option<T> {
        self.0.get(op.stage() * KINDS + op.kind() as usize).copied().flatten()
    }
}

/// Kinds of ops.
const KINDS: usize = 4;

/// The usual times of ops.
pub(super) struct References {
    usual: ByJob<Nanos>,
    /// The median over the ops of a stage and job.
    median: ByJob<Nanos>,
    /// By job: the mean of those medians.
    even: [Nanos; KINDS],
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
        let rows = replays.iter().map(|replay| replay.waits.ops.len()).max().unwrap_or(0);
        let mut by_stage: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
        // A slow rank in a small group shifts the median over all ops, but not that of the ranks' medians.
        let mut of_copies: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
        for row in 0..rows {
            let mut of_row: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
            for span in replays.iter().flat_map(|replay| replay.row(row)) {
                let times = of_row.entry((span.op.stage(), span.op.kind())).or_default();
                times.push(span.end_ns - span.start_ns);
            }
            for (key, times) in of_row {
                by_stage.entry(key).or_default().extend(&times);
                of_copies.entry(key).or_default().extend(median(times));
            }
        }
        let medians: BTreeMap<(usize, OpKind), Nanos> =
            by_stage.into_iter().filter_map(|(key, times)| Some((key, median(times)?))).collect();
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
        let mut even = [(0u128, 0u128); KINDS];
        for ((_, kind), ns) in &medians {
            let (sum, count) = &mut even[*kind as usize];
            (*sum, *count) = (*sum + u128::from(*ns), *count + 1);
        }
        let even = even.map(|(sum, count)| (sum / count.max(1)) as Nanos);
        let (usual, median) = (ByJob::of(usual), ByJob::of(medians.into_iter()));
        let mut references = References { usual, median, even, rows: Vec::new() };
        references.rows = (0..rows).map(|row| references.whole(replays, row)).collect();
        references
    }

    pub(super) fn usual(&self, op: Op) -> Nanos {
        self.usual.get(op).unwrap_or(Nanos::MAX)
    }

    /// Thousandths of the usual time that the ops of `row` take, all of them or those of one stage: the median.
    fn ratio<'a>(&self, replays: impl Iterator<Item = &'a Replay>, row: usize, stage: Option<usize>) -> Option<u64> {
        let all = replays.flat_map(|replay| replay.row(row));
        let all = all.filter(|span| stage.is_none_or(|stage| span.op.stage() == stage));
        median(all.map(|span| permille(span.end_ns - span.start_ns, self.usual(span.op))).collect())
    }

    /// Thousandths of the usual time that all ops of `row` take together.
    fn whole(&self, replays: &[Replay], row: usize) -> u64 {
        let ops = replays.iter().flat_map(|replay| replay.row(row));
        let (took, usual) = ops.fold((0, 0), |(took, usual): (Nanos, Nanos), span| {
            (took.saturating_add(span.end_ns - span.start_ns), usual.saturating_add(self.usual(span.op)))
        });
        permille(took, usual)
    }

    pub(super) fn slowest_row(&self) -> Option<usize> {
        (0..self.rows.len()).max_by_key(|row| (self.rows[*row], core::cmp::Reverse(*row)))
    }

    /// `took`, where all stages have as much work of each job: what an op takes more than its like it still does.
    pub(super) fn evened(&self, op: Op, took: Nanos) -> Nanos {
        let Some(own) = self.median.get(op) else { return took };
        took.saturating_add(self.even[op.kind() as usize]).saturating_sub(own)
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

/// A slow rank, stage or link whose cost is not worked out yet.
struct Candidate {
    straggler: Straggler,
    /// What it takes beyond the usual over all steps, in all: it can cost no more than that.
    excess_ns: u128,
    fix: Fix,
}

enum Fix {
    /// Ops of a row, of all stages or of one, from a step on.
    Ops { row: usize, stage: Option<usize>, first: usize },
    /// Messages of a link, which usually take so long.
    Link((usize, usize), Nanos),
}

/// So many ranks, stages and links are told of; and so many are replayed, at most, to find the most costly.
const MOST_TOLD: usize = 24;
const MOST_REPLAYED: usize = 48;

/// Who is slow, the most costly first, and how many more ranks, stages and links are. `numbers` are those of the steps. None where
/// the analysis is ended.
pub(super) fn stragglers(
    trace: &Trace,
    numbers: &[u64],
    replays: &[Replay],
    references: &References,
    saved: &Saved<'_>,
    pace: &Pace<'_>,
) -> Option<(Vec<Straggler>, usize)> {
    let number = |step: usize| numbers.get(step).copied().unwrap_or(0);
    let (mut candidates, slow_rows) = slow_ranks(trace, replays, references, &number, pace);
    candidates.extend(slow_links(replays, &number));
    candidates.sort_by_key(|candidate| core::cmp::Reverse(candidate.excess_ns));
    // Besides, those of slow microbatches and of ops that are slow alone.
    pace.expects(replays.len() * (candidates.len().min(MOST_REPLAYED) + 2));
    let steps = replays.len().max(1) as u128;
    let mut found: Vec<Straggler> = Vec::new();
    let mut more = 0;
    for (index, Candidate { mut straggler, excess_ns, fix }) in candidates.into_iter().enumerate() {
        pace.goes_on().then_some(())?;
        let least = found.get(MOST_TOLD - 1).map_or(0, |least| u128::from(least.saved_ns));
        if index >= MOST_REPLAYED || found.len() >= MOST_TOLD && excess_ns / steps <= least {
            more += 1;
            continue;
        }
        straggler.saved_ns = match fix {
            Fix::Ops { row, stage, first } => {
                let fixed = |step: usize, _: usize, place: Place| {
                    let op = replays[step].op(place);
                    let is_slow = place.0 == row && step >= first && stage.is_none_or(|stage| op.stage() == stage);
                    is_slow.then(|| replays[step].took(place).min(references.usual(op)))
                };
                saved(&fixed, None)
            }
            Fix::Link(link, usual) => saved(&|_, _, _| None, Some((link, usual))),
        };
        let at = found.partition_point(|known| known.saved_ns >= straggler.saved_ns);
        found.insert(at, straggler);
    }
    more += found.len().saturating_sub(MOST_TOLD);
    found.truncate(MOST_TOLD);
    found.extend(slow_microbatches(replays, references, &slow_rows, saved, &number));
    found.sort_by_key(|straggler| core::cmp::Reverse(straggler.saved_ns));
    pace.goes_on().then_some((found, more))
}

/// Rows that are slow in all that they do or in some of their stages; and the numbers of these rows.
fn slow_ranks(
    trace: &Trace,
    replays: &[Replay],
    references: &References,
    number: &dyn Fn(usize) -> u64,
    pace: &Pace<'_>,
) -> (Vec<Candidate>, BTreeSet<usize>) {
    let (mut found, mut slow_rows) = (Vec::new(), BTreeSet::new());
    for row in 0..references.rows.len() {
        if !pace.goes_on() {
            break;
        }
        let stages: BTreeSet<usize> =
            replays.iter().flat_map(|replay| replay.row(row)).map(|span| span.op.stage()).collect();
        let first = |stage: &usize| {
            let ratio = |step: usize| references.ratio(replays[step..=step].iter(), row, Some(*stage)).unwrap_or(0);
            Some((Some(*stage), since(replays.len(), |step| ratio(step) >= SLOW)?))
        };
        let mut slow: Vec<(Option<usize>, usize)> = stages.iter().filter_map(first).collect();
        if slow.is_empty() {
            continue;
        }
        slow_rows.insert(row);
        if slow.len() == stages.len() {
            // In all that it does.
            let first = slow.iter().map(|(_, first)| *first).min().unwrap_or(0);
            slow = Vec::from([(None, first)]);
        }
        for (stage, first) in slow {
            let ops = replays[first..].iter().flat_map(|replay| replay.row(row));
            let ops = ops.filter(|span| stage.is_none_or(|stage| span.op.stage() == stage));
            let beyond = |span: &Span| (span.end_ns - span.start_ns).saturating_sub(references.usual(span.op));
            found.push(Candidate {
                excess_ns: ops.clone().map(|span| u128::from(beyond(span))).sum(),
                straggler: Straggler {
                    slow: stage.map_or_else(|| Slow::Rank(row, row_text(trace, row)), Slow::Stage),
                    since: number(first),
                    permille: references.ratio(replays[first..].iter(), row, stage).unwrap_or(1000) as u32,
                    ops: ops.count(),
                    saved_ns: 0,
                },
                fix: Fix::Ops { row, stage, first },
            });
        }
    }
    (found, slow_rows)
}

/// Microbatches that are slow on all ranks, and ops that are slow alone.
fn slow_microbatches(
    replays: &[Replay],
    references: &References,
    slow_rows: &BTreeSet<usize>,
    saved: &Saved<'_>,
    number: &dyn Fn(usize) -> u64,
) -> Vec<Straggler> {
    // The usual time of a row's job within the step: a slow rank is slow for every microbatch.
    let usual: Vec<Vec<Vec<Nanos>>> = replays.iter().map(usual_in_rows).collect();
    let usual_of = |step: usize, place: Place| usual[step][place.0][place.1];
    let mut slow: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for (step, replay) in replays.iter().enumerate() {
        let ratio = |place| (replay.op(place).microbatch(), permille(replay.took(place), usual_of(step, place)));
        let mut ratios: Vec<(usize, u64)> = replay.places().map(ratio).collect();
        ratios.sort_unstable();
        for of_one in ratios.chunk_by(|one, other| one.0 == other.0).filter(|of_one| of_one.len() > 2) {
            let (microbatch, ratio) = of_one[(of_one.len() - 1) / 2];
            if ratio >= SLOW_MICROBATCH {
                slow.insert((step, microbatch), ratio);
            }
        }
    }
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
        let is_of_microbatch = !slow.is_empty() && slow.contains_key(&(step, replays[step].op(place).microbatch()));
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

/// By row and place: the median time of the row's ops of the same stage and job.
fn usual_in_rows(replay: &Replay) -> Vec<Vec<Nanos>> {
    let in_row = |ops: &Vec<Span>| {
        let mut of_jobs: BTreeMap<(usize, OpKind), Vec<u64>> = BTreeMap::new();
        for span in ops {
            of_jobs.entry((span.op.stage(), span.op.kind())).or_default().push(span.end_ns - span.start_ns);
        }
        let usual: BTreeMap<_, Nanos> =
            of_jobs.into_iter().filter_map(|(key, times)| Some((key, median(times)?))).collect();
        let of = |span: &Span| usual.get(&(span.op.stage(), span.op.kind())).copied().unwrap_or(Nanos::MAX);
        ops.iter().map(of).collect()
    };
    replay.waits.ops.iter().map(in_row).collect()
}

/// Links whose messages take far longer than those of others.
fn slow_links(replays: &[Replay], number: &dyn Fn(usize) -> u64) -> Vec<Candidate> {
    let mut times: Links<Vec<u64>> = Links::new();
    let mut ops: Vec<Nanos> = Vec::new();
    for replay in replays {
        for (input, op) in replay.waits.edges() {
            times.entry(input.0, op.0, Vec::new).push(replay.hop_as(op, None));
        }
        ops.extend(replay.places().map(|place| replay.took(place)));
    }
    let times = times.into_sorted();
    let medians: Vec<Nanos> = times.iter().map(|(_, times)| median(times.clone()).unwrap_or(0)).collect();
    let Some(usual) = median(medians.clone()).filter(|_| medians.len() > 2) else {
        return Vec::new();
    };
    let op = median(ops).unwrap_or(0);
    let is_slow = |ns: Nanos| permille(ns, usual.max(1)) >= SLOW_LINK && ns - usual > op / 50;
    let slow = times.into_iter().zip(medians).filter(|(_, ns)| is_slow(*ns));
    let candidate = |((link, times), ns): (((usize, usize), Vec<u64>), Nanos)| Candidate {
        excess_ns: times.iter().map(|ns| u128::from(ns.saturating_sub(usual))).sum(),
        straggler: Straggler {
            slow: Slow::Link(link.0, link.1),
            since: number(0),
            permille: permille(ns, usual.max(1)) as u32,
            ops: times.len(),
            saved_ns: 0,
        },
        fix: Fix::Link(link, usual),
    };
    slow.map(candidate).collect()
}
