//! From a trace back to a problem: what the jobs of each stage really took, where the run lost time against its plan,
//! and the plan's problem with the measured times in the place of the planned ones, to be planned anew.
//!
//! # Where time went
//! The planned makespan becomes the measured one in four steps, each a simulation of the same order with one thing more
//! taken from the trace; what a step adds is its cause's:
//! 1. **ops**: each op takes the mean of its stage and job. Here the estimate was wrong, or a device is slow.
//! 2. **hops**: messages take what they took where somebody waited for them.
//! 3. **spread**: each op takes what it took itself. Here ops of one stage and job differ: stragglers, other programs,
//!    experts with more tokens.
//! 4. **rest**: what no order and no op explains: the runner itself, messages that meet late because their ranks do.
//!
//! Which ops decide is said by the longest path through the order: the ops, from the first to the last, of which each
//! ends when the next one starts (or a hop before). A shorter op off that path changes nothing.
//!
//! The ops of an overlapped pair count one after the other, as the runner runs them: what the plan hides of them is among
//! the ops' cause, and the problem with measured times hides nothing.

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

use serde_json::{Value, json};

use self::critical_path::longest_path;
use self::hops::hops_of;
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

/// What the ops of one stage and job took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// The stage.
    pub stage: usize,
    /// The job.
    pub kind: OpKind,
    /// Ops measured, over all steps that count and all copies of the stage.
    pub ops: u64,
    /// What the plan says of each.
    pub planned_ns: Nanos,
    /// Their mean.
    pub mean_ns: Nanos,
    /// The shortest.
    pub least_ns: Nanos,
    /// The longest.
    pub most_ns: Nanos,
    /// How much of the longest path is theirs, with every op at its mean.
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
    /// Messages do.
    pub hops_ns: i64,
    /// Ops of one stage and job differ among each other.
    pub spread_ns: i64,
    /// Neither: the runner, and ranks that meet late.
    pub rest_ns: i64,
    /// The mean over the steps that count.
    pub measured_ns: Nanos,
}

/// What a trace says about the problem that was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Steps that count: all that were recorded but the first, which fills caches; that one where there is no other.
    pub steps: usize,
    /// By stage, then job.
    pub jobs: Vec<JobTimes>,
    /// By sender, then receiver, where a message was waited for.
    pub hops: Vec<HopTimes>,
    /// Where time went.
    pub causes: Causes,
    /// How much of the longest path is hops.
    pub path_hops_ns: Nanos,
    /// How much ops differ from the mean of their stage and job: their standard deviation in thousandths of it, over all
    /// time that was measured. What [`jitter`](crate::simulate::jitter) takes.
    pub jitter_permille: u64,
    /// The problem with measured times, on the placement that was measured.
    pub statement: Statement,
}

/// Holds `trace` against the plan of `problem` and `schedule` that it is a run of. Traces of more copies of the pipeline
/// count with all of them.
///
/// Takes time and memory in proportion to the spans of the trace.
///
/// # Errors
/// A trace without steps, one whose ranks ran other ops than the schedule's, or times too long for a problem.
pub fn calibrate(problem: &Problem, schedule: &Schedule, trace: &Trace) -> Result<Calibration, Faults> {
    let in_turn = Schedule::of(schedule.rows.clone());
    let steps = if trace.steps.len() > 1 { &trace.steps[1..] } else { &trace.steps[..] };
    if steps.is_empty() {
        return Err(Fault::new("steps", "none", "at least one recorded step").into());
    }
    let first = trace.steps.len() - steps.len();
    let mut pipelines = Vec::new();
    for (index, step) in steps.iter().enumerate() {
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
        // What ran one after the other hid nothing.
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
    // Means of jobs by the name under which they ran: a problem has one time for BW, or two.
    let mean = |_: usize, _: usize, op: Op| {
        jobs.get(&(op.stage(), op.kind())).map_or_else(|| problem.duration(op), Sum::mean)
    };
    let planned_ns = planned.makespan_ns();
    let ops_ns = simulate_as(&with_ops, &in_turn, &mean).map_err(no_order)?.makespan_ns();
    let timeline = simulate_as(&with_hops, &in_turn, &mean).map_err(no_order)?;
    let hops_ns = timeline.makespan_ns();

    // What each step would have taken of its own ops, in the slowest copy of the pipeline; and what it took.
    let mut of_steps = vec![0; steps.len()];
    for (step, pipeline) in &pipelines {
        let took = |rank: usize, place: usize, _: Op| {
            let span: &Span = &pipeline[rank][place];
            span.end_ns - span.start_ns
        };
        of_steps[*step] =
            simulate_as(&with_hops, &in_turn, &took).map_err(no_order)?.makespan_ns().max(of_steps[*step]);
    }
    let mut spread = Sum::default();
    of_steps.iter().for_each(|ns| spread.add(*ns));
    let mut measured = Sum::default();
    steps.iter().for_each(|step| measured.add(step.timeline().makespan_ns()));

    let jitter_permille = jitter_permille(problem, &jobs);
    let (paths, path_hops_ns) = longest_path(&with_hops, &timeline);
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

fn no_order(deadlock: Deadlock) -> Faults {
    Fault::new("schedule", deadlock, "an order that runs").into()
}

impl Calibration {
    /// For programs: `pipeplan calibrate --json`.
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
