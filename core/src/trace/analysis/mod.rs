//! What a measured run means: where the time of each rank went, which ops decided the step, what a step would take
//! otherwise, and who is slow.
//!
//! - In: a trace; the planned times of ops where a plan is known.
//! - Out: an [`Analysis`], as text for people elsewhere, and as JSON here.
//!
//! # Time of a rank
//! From the first op of a step to the last, a rank computes (**busy**) or is idle. An idle time ends with an op that waits for an
//! input: until the other rank has made it, the rank waits **for input** (before its first op: **fill**); from then until it
//! arrives, it waits for **communication** that nothing hides; what is left is **late**: the host, the runner, a scheduler of
//! the system. After its last op it waits for the others to end: **drain**.
//!
//! # Communication
//! What ranks do together ([collectives](super::collectives)) lies within ops or behind them. Of each purpose, a rank has the time
//! in all, the time that is **exposed**, in which it does nothing else, and of all the time in which it **waits** for the last member to
//! begin.
//!
//! # What if
//! The step is replayed from the measured times: each op starts when its rank is free and its input has arrived, as late as it
//! was. This gives exactly the measured step. Then one thing is changed and the step replayed again, as in published studies of
//! stragglers (Lin et al., “Understanding Stragglers in Large Model Training Using What-if Analysis”, OSDI 2025).

mod communication;
mod pace;
mod replay;
mod stragglers;
#[cfg(test)]
mod tests;
mod watch;

pub use self::communication::{Communication, RowCommunication};
pub use self::pace::Watcher;
pub use self::stragglers::{Slow, Straggler};
pub use self::watch::{Late, Watch};

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::ControlFlow;

use serde_json::{Value, json};

use self::pace::Pace;
use self::replay::Replay;
use self::stragglers::{References, stragglers};
use super::waits::Place;
use super::{Trace, TraceSpan};
use crate::base::units::Nanos;
use crate::problem::op::Op;
use crate::program::Step;

/// Where the time of one row of a trace went in one step. All add up to the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowTime {
    /// Ops.
    pub busy_ns: Nanos,
    /// Before the first op: other ranks make its input.
    pub fill_ns: Nanos,
    /// Between ops: other ranks make the input.
    pub input_ns: Nanos,
    /// The input is made, and on its way.
    pub communication_ns: Nanos,
    /// The input is there, and the op does not start.
    pub late_ns: Nanos,
    /// After the last op.
    pub drain_ns: Nanos,
}

impl RowTime {
    /// What a person calls the parts.
    pub const NAMES: [&'static str; 6] = ["busy", "fill", "for input", "communication", "late", "drain"];
    /// What the idle ones are.
    pub const MEANING: &'static str = "idle: before the first op (fill), until another rank has made the input, while it is on its way, after it has come, \
         after the last op (drain)";

    /// The parts in the order of [`RowTime::NAMES`].
    pub const fn parts(&self) -> [Nanos; 6] {
        [self.busy_ns, self.fill_ns, self.input_ns, self.communication_ns, self.late_ns, self.drain_ns]
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// Its number.
    pub step: u64,
    /// From the first op to the end of the last.
    pub makespan_ns: Nanos,
    /// By row of the trace.
    pub rows: Vec<RowTime>,
    /// Time of the ops of each microbatch, over all rows.
    pub microbatches: Vec<(usize, Nanos)>,
    /// The critical path, from the first op to the last.
    pub path: Vec<PathOp>,
}

/// An op on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOp {
    /// Its row.
    pub row: usize,
    /// The op.
    pub op: Op,
    /// Its time.
    pub took_ns: Nanos,
    /// Before it: the message that it waited for; 0 where it waited for its own rank.
    pub message_ns: Nanos,
    /// Before it: what neither explains.
    pub late_ns: Nanos,
}

/// A step that is replayed with one thing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhatIf {
    /// What is changed.
    pub name: &'static str,
    /// The mean step then.
    pub makespan_ns: Nanos,
    /// By how much it is shorter.
    pub saved_ns: i64,
}

/// What a trace means.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The steps, as recorded.
    pub steps: Vec<StepTimes>,
    /// The mean makespan.
    pub makespan_ns: Nanos,
    /// What would be saved, over all steps.
    pub what_ifs: Vec<WhatIf>,
    /// Who is slow, the most costly first.
    pub stragglers: Vec<Straggler>,
    /// How many ranks, stages and links are slow besides: of those with the most excess time the cost is worked out, since each takes
    /// a replay.
    pub more_stragglers: usize,
    /// Collectives by what they are for, where the trace has any.
    pub communication: Vec<Communication>,
}

/// What `trace` means. `planned` gives the planned time of an op: ranks that were to do more are then not taken for slow ones.
/// None of a trace without ops.
pub fn analyse(trace: &Trace, planned: Option<&dyn Fn(Op) -> Nanos>) -> Option<Analysis> {
    analyse_watched(trace, planned, &mut |_, _| ControlFlow::Continue(()))
}

/// As [`analyse`], for a trace that takes long: `watcher` hears of each replay of a step. None as well where it ends the analysis.
pub fn analyse_watched<'w>(
    trace: &Trace,
    planned: Option<&dyn Fn(Op) -> Nanos>,
    watcher: &'w mut Watcher<'w>,
) -> Option<Analysis> {
    let pace = Pace::new(watcher);
    pace.expects(trace.steps.len() * REPLAYS);
    let replays: Vec<Replay> = Replay::of_all(trace, &pace)?;
    if replays.is_empty() {
        return None;
    }
    let computes = |span: &TraceSpan| matches!(span.step, Step::Compute(_));
    let with_ops = trace.steps.iter().filter(|step| step.rows.iter().flatten().any(computes));
    let numbers: Vec<u64> = with_ops.map(|step| step.step).collect();
    let steps: Vec<StepTimes> = numbers.iter().zip(&replays).map(|(step, replay)| replay.times(*step)).collect();
    let makespan_ns = mean(&replays, Replay::makespan_ns);
    let references = References::of(trace, &replays, planned);
    if !pace.goes_on() {
        return None;
    }
    let what_ifs = what_ifs(&replays, &references, &pace)?;
    let saved = |slow: &dyn Fn(usize, usize, Place) -> Option<Nanos>, link| {
        let mut then: u128 = 0;
        for (step, replay) in replays.iter().enumerate() {
            let took = |place: Place| slow(step, 0, place).unwrap_or_else(|| replay.took(place));
            then += u128::from(replay.replayed_with(&took, &|place| replay.hop_as(place, link)));
            if !pace.counts() {
                return 0;
            }
        }
        makespan_ns.saturating_sub((then / replays.len() as u128) as Nanos)
    };
    let (stragglers, more_stragglers) = stragglers(trace, &numbers, &replays, &references, &saved, &pace)?;
    let communication = communication::of(trace);
    Some(Analysis { steps, makespan_ns, what_ifs, stragglers, more_stragglers, communication })
}

/// Replays of each step before stragglers are looked for: two make it, and four change it.
const REPLAYS: usize = 6;

fn mean(replays: &[Replay], of: impl Fn(&Replay) -> Nanos) -> Nanos {
    let sum: u128 = replays.iter().map(|replay| u128::from(of(replay))).sum();
    (sum / replays.len().max(1) as u128) as Nanos
}

/// What a step would take otherwise; none where the analysis is ended.
fn what_ifs(replays: &[Replay], references: &References, pace: &Pace<'_>) -> Option<Vec<WhatIf>> {
    let makespan_ns = mean(replays, Replay::makespan_ns);
    let what_if = |name, took: &dyn Fn(&Replay, Place) -> Nanos, hops: bool| {
        let then = mean(replays, |replay| match pace.goes_on() {
            true => {
                let ns = replay.replayed(&|place| took(replay, place), hops);
                pace.counts();
                ns
            }
            false => 0,
        });
        WhatIf { name, makespan_ns: then, saved_ns: makespan_ns.cast_signed() - then.cast_signed() }
    };
    let slowest = references.slowest_row();
    let found = Vec::from([
        what_if(
            "the slowest rank is fixed",
            &|replay, place| match Some(place.0) == slowest {
                true => replay.took(place).min(references.usual(replay.op(place))),
                false => replay.took(place),
            },
            true,
        ),
        what_if("no stragglers", &|replay, place| replay.took(place).min(references.usual(replay.op(place))), true),
        what_if("even stages", &|replay, place| references.evened(replay.op(place), replay.took(place)), true),
        what_if("instant links", &|replay, place| replay.took(place), false),
    ]);
    pace.goes_on().then_some(found)
}

/// Ops of a path that are told.
const MOST_OPS: usize = 12;

impl StepTimes {
    /// The last ops of the critical path: `… 0B3 -> 1B3 1W3`, with an arrow before each that waited for a message.
    pub fn path_end(&self) -> String {
        let told = self.path.get(self.path.len().saturating_sub(MOST_OPS)..).unwrap_or_default();
        let op = |op: &PathOp| if op.message_ns > 0 { format!("-> {}", op.op) } else { op.op.to_string() };
        let ops: Vec<String> = told.iter().map(op).collect();
        format!("{}{}", if self.path.len() > told.len() { "… " } else { "" }, ops.join(" "))
    }
}

impl Analysis {
    /// By row, the mean over the steps.
    pub fn rows(&self) -> Vec<RowTime> {
        let rows = self.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0);
        let count = self.steps.len().max(1) as u64;
        let mean = |row: usize, of: fn(&RowTime) -> Nanos| {
            self.steps
                .iter()
                .filter_map(|step| step.rows.get(row))
                .fold(0, |sum: Nanos, row| sum.saturating_add(of(row)))
                / count
        };
        let row = |row| RowTime {
            busy_ns: mean(row, |row| row.busy_ns),
            fill_ns: mean(row, |row| row.fill_ns),
            input_ns: mean(row, |row| row.input_ns),
            communication_ns: mean(row, |row| row.communication_ns),
            late_ns: mean(row, |row| row.late_ns),
            drain_ns: mean(row, |row| row.drain_ns),
        };
        (0..rows).map(row).collect()
    }

    /// Time on the critical path by row: ops, then messages and late starts before them; the mean over the steps.
    pub fn path(&self) -> BTreeMap<usize, [Nanos; 3]> {
        let mut rows: BTreeMap<usize, [Nanos; 3]> = BTreeMap::new();
        for op in self.steps.iter().flat_map(|step| &step.path) {
            let row = rows.entry(op.row).or_default();
            for (sum, ns) in row.iter_mut().zip([op.took_ns, op.message_ns, op.late_ns]) {
                *sum = sum.saturating_add(ns);
            }
        }
        let count = self.steps.len().max(1) as u64;
        rows.values_mut().flatten().for_each(|sum| *sum /= count);
        rows
    }

    /// The JSON of `pipeplan show --analysis --json`.
    pub fn to_value(&self) -> Value {
        let row = |row: &RowTime| {
            json!({
                "busy_ns": row.busy_ns, "fill_ns": row.fill_ns, "input_ns": row.input_ns,
                "communication_ns": row.communication_ns, "late_ns": row.late_ns, "drain_ns": row.drain_ns,
            })
        };
        let path = |op: &PathOp| {
            json!({
                "row": op.row, "op": op.op.to_string(), "took_ns": op.took_ns, "message_ns": op.message_ns,
                "late_ns": op.late_ns,
            })
        };
        let step = |step: &StepTimes| {
            json!({
                "step": step.step, "makespan_ns": step.makespan_ns, "rows": step.rows.iter().map(row).collect::<Vec<_>>(),
                "microbatches": step.microbatches.iter().map(|(microbatch, busy_ns)| json!({
                    "microbatch": microbatch, "busy_ns": busy_ns,
                })).collect::<Vec<_>>(),
                "path": step.path.iter().map(path).collect::<Vec<_>>(),
            })
        };
        let what_if =
            |what: &WhatIf| json!({ "if": what.name, "makespan_ns": what.makespan_ns, "saved_ns": what.saved_ns });
        let straggler = |straggler: &Straggler| {
            json!({
                "what": straggler.slow.name(), "where": straggler.slow.place(), "since_step": straggler.since,
                "times": f64::from(straggler.permille) / 1000.0, "ops": straggler.ops, "saved_ns": straggler.saved_ns,
            })
        };
        json!({
            "makespan_ns": self.makespan_ns,
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "what_if": self.what_ifs.iter().map(what_if).collect::<Vec<_>>(),
            "stragglers": self.stragglers.iter().map(straggler).collect::<Vec<_>>(),
            "more_stragglers": self.more_stragglers,
            "communication": self.communication.iter().map(Communication::to_value).collect::<Vec<_>>(),
        })
    }
}

/// What a person calls a row.
pub(crate) fn row_text(trace: &Trace, row: usize) -> String {
    let rows = trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(1);
    trace.row_name(row, rows)
}
