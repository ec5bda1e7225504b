//! From a trace back to a problem: the measured times of each stage's jobs, where the run lost time against its plan,
//! and the plan's problem with measured times, to be planned again.
//!
//! # Where time went
//! The planned makespan becomes the measured one in four steps. Each step simulates the same order with one more
//! thing from the trace. The difference that it makes is attributed to it:
//! 1. **ops**: each op takes the mean time of its stage and job. Here the estimate was wrong, or a device is slow.
//! 2. **hops**: P2P transfers take their measured times where a rank waited for them.
//! 3. **spread**: each op takes its own measured time. Here ops of one stage and job differ: stragglers, other
//!    programs, experts with more tokens.
//! 4. **rest**: what neither order nor ops explain: the runner, and transfers that meet late because their ranks do.
//!
//! The critical path shows which ops decide the makespan: from the first op to the last, each ends when the next one
//! starts (or a hop before). A shorter op off that path changes nothing.
//!
//! The ops of an overlapped pair count one after the other, as the runner runs them. What the plan hides of them
//! belongs to **ops**, and the problem with measured times hides nothing.

mod critical_path;
mod hops;
mod measured;
mod pipelines;
mod sums;

pub use self::hops::HopTimes;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::ops::ControlFlow;

use serde_json::{Value, json};

use self::critical_path::critical_path;
pub(super) use self::hops::hops_of;
use self::measured::{accepted, measured_cost, measured_transfers};
use self::pipelines::pipelines_of;
use self::sums::{Sum, jitter_permille};
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule, Statement};
use crate::simulate::timeline::Span;
use crate::simulate::{Deadlock, simulate, simulate_as};
use crate::trace::Trace;

/// Measured times of the ops of one stage and job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// The stage.
    pub stage: usize,
    /// The job.
    pub kind: OpKind,
    /// Measured ops, over all counted steps and all replicas of the stage.
    pub ops: u64,
    /// What the plan says of each.
    pub planned_ns: Nanos,
    /// Their mean.
    pub mean_ns: Nanos,
    /// The shortest.
    pub least_ns: Nanos,
    /// The longest.
    pub most_ns: Nanos,
    /// Their time on the critical path, with every op at its mean.
    pub path_ns: Nanos,
}

impl JobTimes {
    /// The stage and the job: `3BW`.
    pub fn name(&self) -> String {
        format!("{}{}", self.stage, self.kind)
    }
}

/// How the planned makespan became the measured one. Planned and the four causes add up to measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes {
    /// The makespan of the plan's order.
    pub planned_ns: Nanos,
    /// Ops take longer (or shorter) than planned on average.
    pub ops_ns: i64,
    /// P2P transfers take longer (or shorter) than planned.
    pub hops_ns: i64,
    /// Ops of one stage and job differ among each other.
    pub spread_ns: i64,
    /// Neither: the runner, and ranks that meet late.
    pub rest_ns: i64,
    /// The mean over the steps that count.
    pub measured_ns: Nanos,
}

/// The measured problem, against the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Counted steps: all recorded steps but the first, which fills caches; the first one where there is no other.
    pub steps: usize,
    /// By stage, then job.
    pub jobs: Vec<JobTimes>,
    /// By sender, then receiver, where a message was waited for.
    pub hops: Vec<HopTimes>,
    /// Where time went.
    pub causes: Causes,
    /// Time of hops on the critical path.
    pub path_hops_ns: Nanos,
    /// The jitter of ops: their standard deviation from the mean of their stage and job, in thousandths of it, over
    /// all measured time. The unit of [`jitter`](crate::simulate::jitter).
    pub jitter_permille: u64,
    /// The problem with measured times, on the placement that was measured.
    pub statement: Statement,
}

/// Compares `trace` with the plan of `problem` and `schedule` that was run. All data-parallel replicas of a trace
/// count.
///
/// Takes time and memory in proportion to the spans of the trace.
///
/// # Errors
/// A trace without steps, a trace with other ops than the schedule, or times too long for a problem.
pub fn calibrate(problem: &Problem, schedule: &Schedule, trace: &Trace) -> Result<Calibration, Faults> {
    calibrate_watched(problem, schedule, trace, &mut |_, _| ControlFlow::Continue(()))
}

/// Hears how much is done, and how much there is, and may end it.
pub type Watch<'w> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'w;

/// As [`calibrate`]. `watch` hears of steps: each is read and then simulated.
///
/// # Errors
/// As [`calibrate`], and one where `watch` has ended it.
pub fn calibrate_watched(
    problem: &Problem,
    schedule: &Schedule,
    trace: &Trace,
    watch: &mut Watch<'_>,
) -> Result<Calibration, Faults> {
    if problem.differs() {
        // The mean over microbatches is the time of none of them.
        let accepted = "microbatches that are alike: calibration measures one time for each stage and job";
        let (field, found) = match problem.slices() {
            1 => ("problem.microbatch_factors", "microbatches that differ"),
            _ => ("problem.slices", "slices of sequences"),
        };
        return Err(Fault::new(field, found, accepted).into());
    }
    let in_turn = Schedule { copies: schedule.copies.clone(), ..Schedule::of(schedule.rows.clone()) };
    let steps = if trace.steps.len() > 1 { &trace.steps[1..] } else { &trace.steps[..] };
    if steps.is_empty() {
        return Err(Fault::new("steps", "none", "at least one recorded step").into());
    }
    let first = trace.steps.len() - steps.len();
    let mut pipelines = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        go_on(watch(index, 2 * steps.len()))?;
        for pipeline in pipelines_of(&in_turn, step, first + index)? {
            pipelines.push((index, pipeline));
        }
    }

    let mut jobs: BTreeMap<(usize, OpKind), Sum> = BTreeMap::new();
    for span in pipelines.iter().flat_map(|(_, pipeline)| pipeline.iter().flatten()) {
        jobs.entry((span.op.stage(), span.op.kind())).or_default().add(span.end_ns - span.start_ns);
    }
    let hops = hops_of(problem, steps);

    let mut statement = problem.statement();
    if (0..schedule.rows.len()).any(|rank| !schedule.pairs_of(rank).is_empty()) {
        // The runner runs pairs one after the other: nothing overlapped.
        statement.overlap_permille = 0;
        statement.stages.iter_mut().for_each(|cost| {
            (cost.forward_exchange_ns, cost.backward_exchange_ns) = (0, 0);
        });
    }
    for (stage, cost) in statement.stages.iter_mut().enumerate() {
        *cost = measured_cost(*cost, |kind| jobs.get(&(stage, kind)).map(Sum::mean));
    }
    let with_ops = accepted(&statement)?;
    statement.transfers = measured_transfers(&statement.transfers, &hops);
    let with_hops = accepted(&statement)?;

    let planned = simulate(problem, schedule).map_err(no_order)?;
    // Means by the job that ran: a problem has one time for BW, or two.
    let mean = |_: usize, _: usize, op: Op| {
        jobs.get(&(op.stage(), op.kind())).map_or_else(|| problem.duration(op), Sum::mean)
    };
    let planned_ns = planned.makespan_ns();
    let ops_ns = simulate_as(&with_ops, &in_turn, &mean).map_err(no_order)?.makespan_ns();
    let timeline = simulate_as(&with_hops, &in_turn, &mean).map_err(no_order)?;
    let hops_ns = timeline.makespan_ns();

    let spread = spread(&with_hops, &in_turn, steps.len(), &pipelines, watch)?;
    let mut measured = Sum::default();
    steps.iter().for_each(|step| measured.add(step.timeline().makespan_ns()));

    let jitter_permille = jitter_permille(problem, &jobs);
    let (paths, path_hops_ns) = critical_path(&with_hops, &timeline);
    let more = |than: Nanos, it: Nanos| it as i64 - than as i64;
    let jobs = jobs.into_iter().map(|((stage, kind), sum)| JobTimes {
        stage,
        kind,
        ops: sum.count,
        planned_ns: problem.cost(stage).duration(kind),
        mean_ns: sum.mean(),
        least_ns: sum.least,
        most_ns: sum.most,
        path_ns: paths.get(&(stage, kind)).copied().unwrap_or(0),
    });
    Ok(Calibration {
        steps: steps.len(),
        jobs: jobs.collect(),
        hops,
        causes: Causes {
            planned_ns,
            ops_ns: more(planned_ns, ops_ns),
            hops_ns: more(ops_ns, hops_ns),
            spread_ns: more(hops_ns, spread.mean()),
            rest_ns: more(spread.mean(), measured.mean()),
            measured_ns: measured.mean(),
        },
        path_hops_ns,
        jitter_permille,
        statement,
    })
}

/// The makespan of each of `steps` steps with its own op times, in its slowest replica.
fn spread(
    with_hops: &Problem,
    in_turn: &Schedule,
    steps: usize,
    pipelines: &[(usize, Vec<Vec<Span>>)],
    watch: &mut Watch<'_>,
) -> Result<Sum, Faults> {
    let mut of_steps = vec![0; steps];
    for (step, pipeline) in pipelines {
        go_on(watch(steps + step, 2 * steps))?;
        let took = |rank: usize, place: usize, _: Op| {
            let span: &Span = &pipeline[rank][place];
            span.end_ns - span.start_ns
        };
        let makespan_ns = simulate_as(with_hops, in_turn, &took).map_err(no_order)?.makespan_ns();
        of_steps[*step] = makespan_ns.max(of_steps[*step]);
    }
    let mut spread = Sum::default();
    of_steps.iter().for_each(|ns| spread.add(*ns));
    Ok(spread)
}

fn go_on(flow: ControlFlow<()>) -> Result<(), Fault> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Fault::new("the comparison", "its end", "all steps of the trace")),
    }
}

fn no_order(deadlock: Deadlock) -> Faults {
    Fault::new("schedule", deadlock, "an order that runs").into()
}

impl Calibration {
    /// The JSON of `pipeplan calibrate --json`.
    pub fn to_value(&self) -> Value {
        let job = |job: &JobTimes| {
            json!({
                "stage": job.stage, "job": job.kind.text(), "ops": job.ops, "planned_ns": job.planned_ns,
                "mean_ns": job.mean_ns, "least_ns": job.least_ns, "most_ns": job.most_ns, "path_ns": job.path_ns,
            })
        };
        let hop = |hop: &HopTimes| {
            json!({
                "from": hop.from, "to": hop.to, "messages": hop.messages, "planned_ns": hop.planned_ns,
                "median_ns": hop.median_ns,
            })
        };
        let causes = &self.causes;
        json!({
            "steps": self.steps,
            "makespan": {
                "planned_ns": causes.planned_ns, "ops_ns": causes.ops_ns, "hops_ns": causes.hops_ns,
                "spread_ns": causes.spread_ns, "rest_ns": causes.rest_ns, "measured_ns": causes.measured_ns,
            },
            "jobs": self.jobs.iter().map(job).collect::<Vec<_>>(),
            "hops": self.hops.iter().map(hop).collect::<Vec<_>>(),
            "path_hops_ns": self.path_hops_ns,
            "jitter_permille": self.jitter_permille,
            "problem": self.statement.to_value(),
        })
    }
}

#[cfg(test)]
mod tests;
