//! What a profiler recorded of a run of a pipeline: a trace of the order that ran.
//!
//! - In: a [`Capture`] of each rank: ranges, launches, kernels and transfers, as [`torch_profile`](super::torch_profile) reads them
//!   from files of torch.profiler. Whoever reads another profiler's files fills it too.
//! - Out: a trace, of a plan's order or of that which was found.
//!
//! `names.rs` says which ranges are forwards and backwards of which runtime. Where they say neither stage nor microbatch, as those
//! of Megatron-LM and DeepSpeed, `count.rs` finds them.
//!
//! The host begins a range before the op's input has arrived, and waits for it inside. The time of the op itself
//!
//! | | starts | ends |
//! |---|---|---|
//! | on a GPU | with the first kernel that was launched during the range, of those that begin when its input is there | with the last |
//! | on a CPU | with the range's first operator | with the range |
//!
//! Kernels follow from their launches, whichever thread made them: those of a backward come from threads of autograd, and the
//! range's copy among the GPU's events leaves them out (Kineto's issue 1022). Kernels that begin before the input has arrived
//! gather the weights of a sharded stage. Collectives count where they stand between kernels; P2P transfers never count. An op
//! without any kernel, such as torch's `I` of the first stage, takes no time.
//!
//! Where a rank waits for a transfer from another rank, the wait is a separate step: on a CPU from the start of the op's range to
//! the start of the op, on a GPU from the end of the op before to that of NCCL's kernel, launched in `PP:1RECV_F3`.
//!
//! Collectives of NCCL are kernels too, whichever op launched them; those of gloo are ranges of the host.
//!
//! Where clocks of ranks contradict each other, as those of several hosts may, they are put right by the messages between them
//! ([`clocks`](crate::trace::clocks)). Without a plan, [`found`] takes stages and order from the names of the ranges.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::fields::{Fault, Faults};
use crate::base::units::{Bytes, Nanos};
use crate::notation::torch_csv;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::{MAX_RANKS, Problem, Statement};
use crate::program::{P2pOp, Payload, Step, Way};
use crate::trace::clocks::{Aligned, align};
use crate::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind};
use crate::trace::{MAX_NS, StepTrace, Trace, TraceSpan};

mod capture;
mod count;
#[cfg(test)]
mod counted_tests;
mod names;
#[cfg(test)]
mod tests;

pub use self::capture::Capture;
pub(in crate::formats) use self::names::PYTHON_OF_USE;

use self::capture::{Together, Transfer};
use self::count::{Counted, Group, How, numbered};

/// The pipeline as the files of one rank record it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The rank among all processes; none where the file does not say.
    rank: Option<u64>,
    /// How many processes there are.
    world: Option<u64>,
    /// The transport of P2P transfers, such as `nccl`.
    transport: Option<String>,
    /// The groups of ranks that it is in.
    groups: Vec<Group>,
    /// What names its clock; none where files do not say which ones share theirs.
    clock: Option<String>,
    /// Whether a GPU computed.
    on_gpu: bool,
    /// In the order in which they ran, on the clock of the process.
    ops: Vec<Ran>,
    /// What is known of each of `ops`, where ranges do not say their stages; empty once they are found.
    counted: Vec<Counted>,
    /// Whether chunks take turns by Megatron-LM's interleaved schedule.
    is_interleaved: bool,
    /// Collectives, in order of their starts.
    together: Vec<Together>,
    /// When the first op's range ended on the host.
    first_end_ns: Nanos,
    /// Sends and receives in order; none where ranges say their stages.
    transfers: Vec<Transfer>,
    /// Steps of the profiler, in order: when each began, and its number.
    steps: Vec<(Nanos, u64)>,
    /// Most bytes that torch's allocator held on a GPU; none where memory was not recorded.
    peak_bytes: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ran {
    op: Op,
    /// When its range began on the host.
    host_ns: Nanos,
    start_ns: Nanos,
    end_ns: Nanos,
    /// The time from which the rank waited for its input: 0 for the end of the op before.
    asked_ns: Nanos,
    /// When the input arrived, if known.
    arrived_ns: Option<Nanos>,
}

impl Ran {
    fn later(self, by_ns: Nanos) -> Ran {
        let later = |ns: Nanos| ns.saturating_add(by_ns);
        Ran {
            op: self.op,
            host_ns: later(self.host_ns),
            start_ns: later(self.start_ns),
            end_ns: later(self.end_ns),
            asked_ns: later(self.asked_ns),
            arrived_ns: self.arrived_ns.map(later),
        }
    }
}

/// The trace of a run of `schedule`, of the files of all its ranks, each with its name; `plan_digest` is empty where the plan
/// is not known. A rank may have several files, of steps that follow each other. Ranks are told apart by their ops; where
/// several did the same ones, as replicas and ranks that share matrices do, they are copies of the pipeline.
///
/// # Errors
/// Every fault, with the file: another order than the plan's, ranks without a file, files of other steps than others have.
pub fn trace(
    problem: &Problem,
    schedule: &Schedule,
    plan_digest: &str,
    files: &[(String, Recording)],
) -> Result<Trace, Faults> {
    aligned(problem, schedule, plan_digest, files).map(|(trace, _)| trace)
}

/// The order that `files` show, and a problem with its ranks and stages whose ops take no time: for [`trace`] without a plan.
///
/// # Errors
/// Ranks whose stages overlap, or stages that no file has.
pub fn found(files: &[(String, Recording)]) -> Result<(Problem, Schedule), Faults> {
    let mut rows: Vec<Vec<Op>> = Vec::new();
    let mut faults = Vec::new();
    let mut files = joined(files, &mut faults);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    numbered(&mut files, None)?;
    for (_, recording) in files {
        // A step ends where an op comes again.
        let mut seen = alloc::collections::BTreeSet::new();
        let row: Vec<Op> = recording.ops.iter().map(|ran| ran.op).take_while(|op| seen.insert(*op)).collect();
        if !row.is_empty() && !rows.contains(&row) {
            rows.push(row);
        }
    }
    of_order(rows)
}

/// A schedule of these op lists, with its ranks by their first stages, and a problem of it whose ops take no time. The placement
/// has its name where it has one.
///
/// # Errors
/// Ranks whose stages overlap, or stages that no op list has.
pub(crate) fn of_order(mut rows: Vec<Vec<Op>>) -> Result<(Problem, Schedule), Faults> {
    rows.sort_by_key(|row| row.iter().map(|op| op.stage()).min());
    let schedule = Schedule::of(rows);
    let fault = |found: &str| {
        Fault::new("the files", found, "ranges of every stage, each stage on one rank; else give the plan that ran")
    };
    let ranks = schedule.rows.len();
    let list = torch_csv::placement(&schedule).ok_or_else(|| fault("stages that are on no rank or on several"))?;
    let ops = || schedule.rows.iter().flatten();
    let stages = ops().map(|op| op.stage() + 1).max().unwrap_or(0);
    let microbatches = ops().map(|op| op.microbatch() + 1).max().unwrap_or(0);
    if ranks == 0 || !stages.is_multiple_of(ranks) {
        return Err(fault(&format!("{stages} stages on {ranks} ranks")).into());
    }
    let statement = Statement::read(&serde_json::json!({
        "ranks": ranks, "chunks": stages / ranks, "microbatches": microbatches, "placement": "any",
        "stages": { "forward_ns": 0, "backward_input_ns": 0, "backward_weight_ns": 0 },
    }))?;
    Ok((statement.problem(list.named(ranks, stages / ranks))?, schedule))
}

/// How stages and microbatches of `files` are found, line by line; nothing where their ranges say them.
pub fn told(files: &[(String, Recording)]) -> Vec<String> {
    let how: Result<How, Faults> = numbered(&mut joined(files, &mut Vec::new()), None);
    how.unwrap_or_default()
}

/// As [`trace`], and what putting the clocks of the ranks right did.
///
/// # Errors
/// As [`trace`].
pub fn aligned(
    problem: &Problem,
    schedule: &Schedule,
    plan_digest: &str,
    files: &[(String, Recording)],
) -> Result<(Trace, Aligned), Faults> {
    let rows = &schedule.rows;
    let mut faults = Vec::new();
    let mut files = joined(files, &mut faults);
    numbered(&mut files, Some(schedule))?;
    // By rank of the plan, the recordings with its ops.
    let mut of_rank: Vec<Vec<&Recording>> = rows.iter().map(|_| Vec::new()).collect();
    let mut first: Option<(&str, &Recording, Vec<Option<u64>>)> = None;
    for (name, recording) in &files {
        let mut fault = |found: String, accepted: String| faults.push(Fault::new(name.as_str(), found, accepted));
        let (rank, count) = match row_of(rows, recording) {
            Ok(known) => known,
            Err((found, accepted)) => {
                fault(found, accepted);
                continue;
            }
        };
        of_rank[rank].push(recording);
        let numbers = numbers(recording, count);
        let Some((of, like, known)) = &first else {
            first = Some((name, recording, numbers));
            continue;
        };
        let other = |(one, other): &(&Option<u64>, &Option<u64>)| one.is_some() && other.is_some() && one != other;
        if like.on_gpu != recording.on_gpu {
            let what = |on_gpu| if on_gpu { "kernels of a GPU" } else { "no kernel of a GPU" };
            fault(what(recording.on_gpu).to_string(), format!("{}, as {of} has", what(like.on_gpu)));
        } else if numbers.len() != known.len() {
            let steps = if count == 1 { "step" } else { "steps" };
            fault(format!("{count} {steps}"), format!("{}, as many as {of} has", known.len()));
        } else if let Some((Some(here), Some(there))) = numbers.iter().zip(known).find(other) {
            fault(format!("step {here}"), format!("step {there}, which {of} has there"));
        }
    }
    let copies = of_rank.iter().map(Vec::len).max().unwrap_or(0);
    if faults.is_empty() {
        for (rank, of_rank) in of_rank.iter().enumerate().filter(|(_, of_rank)| of_rank.len() < copies.max(1)) {
            let found = match of_rank.len() {
                0 => "no file with its ops".to_string(),
                some => format!("{some} of the files with its ops"),
            };
            let accepted = format!("{}, as many as of other ranks", copies.max(1));
            faults.push(Fault::new(format!("rank {rank} of the plan"), found, accepted));
        }
        if copies * rows.len() > MAX_RANKS {
            let found = format!("those of {} ranks", copies * rows.len());
            faults.push(Fault::new("the files", found, format!("those of at most {MAX_RANKS}")));
        }
    }
    let Some((_, like, numbers)) = first.filter(|_| faults.is_empty()) else { return Err(Faults(faults)) };
    for of_rank in &mut of_rank {
        of_rank.sort_by_key(|recording| recording.rank);
    }
    // The ranks of the first copy, then those of the second and so on.
    let ranks: Vec<&Recording> = (0..copies).flat_map(|copy| of_rank.iter().map(move |files| files[copy])).collect();
    let peaks: Option<Vec<Bytes>> = ranks.iter().map(|recording| recording.peak_bytes).collect();
    let count = numbers.len();
    let step = |(index, number): (usize, &Option<u64>)| {
        let (began_ns, rows) = step(problem, &ranks, index, count);
        let mut collectives: Vec<Vec<Collective>> =
            ranks.iter().map(|recording| together(recording, index, count, began_ns)).collect();
        while collectives.last().is_some_and(Vec::is_empty) {
            collectives.pop();
        }
        // A profile's clock may count from anywhere; a time that no trace holds is left out.
        let began_ns = Some(began_ns).filter(|began| *began <= MAX_NS);
        StepTrace { step: number.unwrap_or(index as u64), began_ns, rows, collectives, ..StepTrace::default() }
    };
    let mut trace = Trace {
        plan_digest: plan_digest.to_string(),
        backend: if like.on_gpu { "torch (GPU)" } else { "torch (CPU)" }.to_string(),
        transport: like.transport.clone().unwrap_or_else(|| "an unnamed transport".to_string()),
        replicas: copies,
        context: 1,
        tensor: 1,
        overhead_ns: None,
        shared_processors: None,
        peak_bytes: peaks.unwrap_or_default(),
        hosts: Vec::new(),
        steps: numbers.iter().enumerate().map(step).collect(),
    };
    let clock_of_row: Vec<usize> = (0..ranks.len()).collect();
    let clocks = align(&mut trace, &clock_of_row);
    Ok((trace, clocks))
}

/// Files of the same rank as one, in the order of their steps.
fn joined(files: &[(String, Recording)], faults: &mut Vec<Fault>) -> Vec<(String, Recording)> {
    let mut known: BTreeMap<u64, Vec<&(String, Recording)>> = BTreeMap::new();
    let mut joined = Vec::new();
    for file in files {
        match file.1.rank {
            Some(rank) => known.entry(rank).or_default().push(file),
            None => joined.push(file.clone()),
        }
    }
    for (rank, mut files) in known {
        files.sort_by_key(|(_, recording)| recording.ops.first().map(|ran| ran.start_ns));
        let mut files = files.into_iter();
        let Some((name, first)) = files.next() else { continue };
        let mut whole = first.clone();
        for (other, next) in files {
            if next.counted.is_empty() != whole.counted.is_empty() {
                let says =
                    |one: &Recording| if one.counted.is_empty() { "ranges with stages" } else { "ranges without" };
                let accepted = format!("{}, as {name} of the same rank has", says(&whole));
                faults.push(Fault::new(other.as_str(), says(next), accepted));
                continue;
            }
            let end_ns = whole.ops.last().map(|ran| ran.end_ns);
            if next.ops.first().map(|ran| ran.start_ns) < end_ns {
                let accepted = format!("each step once: {name} is of rank {rank} and the same time");
                faults.push(Fault::new(other.as_str(), format!("steps of rank {rank}"), accepted));
                continue;
            }
            let before = whole.ops.len();
            whole.ops.extend(&next.ops);
            let later = |one: &Counted| Counted { forward: one.forward.map(|forward| forward + before), ..*one };
            whole.counted.extend(next.counted.iter().map(later));
            whole.transfers.extend(&next.transfers);
            whole.together.extend(&next.together);
            whole.steps.extend(&next.steps);
            whole.on_gpu |= next.on_gpu;
            whole.peak_bytes = whole.peak_bytes.max(next.peak_bytes);
        }
        joined.push((name.clone(), whole));
    }
    joined
}

/// The rank of the plan whose ops `recording` has, and how often. Else the ops that were found, and those of the plan.
fn row_of(rows: &[Vec<Op>], recording: &Recording) -> Result<(usize, usize), (String, String)> {
    let ran = &recording.ops;
    // The op list that agrees with it the longest.
    let agree = |row: &Vec<Op>| ran.iter().zip(row.iter().cycle()).take_while(|(ran, op)| ran.op == **op).count();
    let furthest = rows.iter().enumerate().filter(|(_, row)| !row.is_empty()).map(|(rank, row)| (agree(row), rank));
    let Some((agreed, rank)) = furthest.max_by_key(|(agreed, rank)| (*agreed, core::cmp::Reverse(*rank))) else {
        return Err(("ops".to_string(), "none, as the plan has none".to_string()));
    };
    let row = &rows[rank];
    if agreed == ran.len() && ran.len().is_multiple_of(row.len()) {
        return Ok((rank, ran.len() / row.len()));
    }
    let wanted = row[agreed % row.len()];
    let found = match ran.get(agreed) {
        Some(ran) => format!("{} as op {}", torch_csv::action(ran.op), agreed + 1),
        None => format!("an end after op {agreed}"),
    };
    let accepted = match agreed {
        0 => "an order that a rank of the plan has".to_string(),
        _ => format!("{}: rank {rank} of the plan has that there", torch_csv::action(wanted)),
    };
    Err((found, accepted))
}

/// The number of each of `count` steps: the last that the profiler began before the host did.
fn numbers(recording: &Recording, count: usize) -> Vec<Option<u64>> {
    let number = |ops: &[Ran]| {
        let begun = recording.steps.partition_point(|(start_ns, _)| *start_ns <= ops[0].host_ns);
        Some(recording.steps.get(begun.checked_sub(1)?)?.1)
    };
    recording.ops.chunks_exact((recording.ops.len() / count).max(1)).map(number).collect()
}

/// When step `index` of `count` began, and its rows, with times from its first op on.
fn step(problem: &Problem, ranks: &[&Recording], index: usize, count: usize) -> (Nanos, Vec<Vec<TraceSpan>>) {
    let of = |recording: &&Recording| {
        let ops = recording.ops.len() / count;
        recording.ops[index * ops..(index + 1) * ops].to_vec()
    };
    let rows: Vec<Vec<Ran>> = ranks.iter().map(of).collect();
    let first_ns = rows.iter().flatten().map(|ran| ran.start_ns).min().unwrap_or(0);
    let spans = |row: Vec<Ran>| {
        let mut spans: Vec<TraceSpan> = Vec::with_capacity(2 * row.len());
        let mut before_ns = first_ns;
        for ran in row {
            let span =
                |step, start_ns, end_ns| TraceSpan { step, start_ns: start_ns - first_ns, end_ns: end_ns - first_ns };
            let asked_ns = ran.asked_ns.max(before_ns);
            let arrived_ns = ran.arrived_ns.map_or(0, |arrived_ns| arrived_ns.min(ran.start_ns));
            if let Some(message) = received(problem, ran.op).filter(|_| asked_ns < arrived_ns) {
                spans.push(span(Step::Wait(Vec::from([message])), asked_ns, arrived_ns));
            }
            spans.push(span(Step::Compute(ran.op), ran.start_ns, ran.end_ns));
            before_ns = ran.end_ns;
        }
        spans
    };
    (first_ns, rows.into_iter().map(spans).collect())
}

/// The collectives that a rank began from its first op of a step on to that of the next step.
fn together(recording: &Recording, index: usize, count: usize, began_ns: Nanos) -> Vec<Collective> {
    let ops = recording.ops.len() / count;
    let begins = |index: usize| recording.ops.get(index * ops).map_or(Nanos::MAX, |ran| ran.start_ns);
    let at = |ns| recording.together.partition_point(|one| one.start_ns < ns);
    let own = recording.together.get(at(begins(index))..at(begins(index + 1))).unwrap_or_default();
    let mut names: BTreeMap<(CollectiveKind, Option<GroupKind>), Arc<CollectiveName>> = BTreeMap::new();
    own.iter()
        .map(|one| {
            let name = names.entry((one.kind, one.group)).or_insert_with(|| {
                let (label, ranks) = (String::new(), Vec::new());
                Arc::new(CollectiveName { kind: one.kind, group: one.group, label, ranks })
            });
            let [start_ns, end_ns] = [one.start_ns, one.end_ns].map(|ns| ns.saturating_sub(began_ns));
            Collective { name: Arc::clone(name), start_ns, end_ns, bytes: one.bytes, exposed_ns: None }
        })
        .collect()
}

/// The input of `op` from another rank.
fn received(problem: &Problem, op: Op) -> Option<P2pOp> {
    let (stage, microbatch) = (op.stage(), op.microbatch());
    let payload = match op.kind() {
        OpKind::F if stage > 0 => Payload::Activation,
        OpKind::B | OpKind::BW if stage + 1 < problem.stage_count() => Payload::Gradient,
        _ => return None,
    };
    let message = P2pOp { way: Way::Receive, payload, stage: stage as u16, microbatch: microbatch as u32 };
    let rank = |stage| problem.rank_of(stage, microbatch);
    (rank(message.peer_stage()) != rank(stage)).then_some(message)
}

/// The op of `trace` that began the longest before another rank had made what it needs, and by how much; none where no op
/// did. Clocks of hosts then differ by at least that.
pub fn skew(problem: &Problem, trace: &Trace) -> Option<(Op, Nanos)> {
    let mut worst: Option<(Op, Nanos)> = None;
    for rows in trace.steps.iter().flat_map(|step| step.rows.chunks(problem.ranks())) {
        let ops = || {
            rows.iter().flatten().filter_map(|span| match span.step {
                Step::Compute(op) => Some((op, span)),
                _ => None,
            })
        };
        let key = |gradient, stage, microbatch| (gradient, stage, microbatch);
        let made: BTreeMap<_, Nanos> = ops()
            .filter(|(op, _)| op.kind() != OpKind::W)
            .map(|(op, span)| (key(op.kind() != OpKind::F, op.stage(), op.microbatch()), span.end_ns))
            .collect();
        for (op, span) in ops() {
            let Some(message) = received(problem, op) else { continue };
            let from = key(message.payload == Payload::Gradient, message.peer_stage(), op.microbatch());
            let early_ns = made.get(&from).map_or(0, |made_ns| made_ns.saturating_sub(span.start_ns));
            if early_ns > worst.map_or(0, |(_, ns)| ns) {
                worst = Some((op, early_ns));
            }
        }
    }
    worst
}
