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

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Value, json};

use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::{MAX_TOTAL_NS, Problem, StageCost, Statement, Transfers};
use crate::program::{Message, Payload, Step, Way};
use crate::simulate::timeline::{Span, Timeline};
use crate::simulate::{Deadlock, needs, simulate, simulate_as};
use crate::trace::{StepTrace, Trace, TraceSpan};

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

/// What messages from one rank to another took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopTimes {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Messages that were waited for, which are those whose time can be told.
    pub messages: usize,
    /// What the plan says.
    pub planned_ns: Nanos,
    /// The one in the middle: a few that met late say nothing about the link.
    pub median_ns: Nanos,
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

/// A sum of times, and what lies in it.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    whole: u128,
    squares: f64,
    least: Nanos,
    most: Nanos,
}

impl Sum {
    fn add(&mut self, ns: Nanos) {
        self.least = if self.count == 0 { ns } else { self.least.min(ns) };
        self.most = self.most.max(ns);
        self.count += 1;
        self.whole += u128::from(ns);
        self.squares += ns as f64 * ns as f64;
    }

    /// The square of the standard deviation over the mean; of one op none is known.
    fn spread(&self) -> f64 {
        if self.count < 2 || self.whole == 0 {
            return 0.0;
        }
        let count = self.count as f64;
        let mean = self.whole as f64 / count;
        let of_squares = self.squares / count;
        (of_squares / (mean * mean) - 1.0).max(0.0) * count / (count - 1.0)
    }

    /// To the nearest nanosecond; 0 of nothing.
    fn mean(&self) -> Nanos {
        let count = u128::from(self.count.max(1));
        // No more than the largest of what was added.
        ((self.whole + count / 2) / count) as Nanos
    }
}

/// What `jobs` have in common: each counts for as much as its ops took. Halves of a whole backward differ each for itself,
/// so that it differs by less than they do.
fn jitter_permille(problem: &Problem, jobs: &BTreeMap<(usize, OpKind), Sum>) -> u64 {
    let (squares, whole) = jobs.iter().fold((0.0, 0.0), |(squares, whole), ((stage, kind), job)| {
        let half = |kind| problem.cost(*stage).duration(kind) as f64;
        let (b, w) = (half(OpKind::B), half(OpKind::W));
        let steadier = if *kind == OpKind::BW && b + w > 0.0 { (b * b + w * w) / ((b + w) * (b + w)) } else { 1.0 };
        (squares + job.whole as f64 * job.spread() / steadier, whole + job.whole as f64)
    });
    if whole > 0.0 { ((1e6 * squares / whole) as u64).isqrt() } else { 0 }
}

/// The compute ops of each copy of the pipeline in `step`, which are to be those of `schedule`, and their sum no more
/// than what simulations add up without overflow.
fn pipelines_of(schedule: &Schedule, step: &StepTrace, index: usize) -> Result<Vec<Vec<Vec<Span>>>, Faults> {
    let ranks = schedule.rows.len();
    let path = format!("steps[{index}].rows");
    if step.rows.is_empty() || !step.rows.len().is_multiple_of(ranks.max(1)) {
        let accepted = format!("the {ranks} ranks of the plan, or those of several copies of it");
        return Err(Fault::new(path, format!("{} rows", step.rows.len()), accepted).into());
    }
    let mut faults = Vec::new();
    let rows = step.timeline().rows;
    for (number, row) in rows.iter().enumerate() {
        let planned = &schedule.rows[number % ranks];
        let same = row.iter().zip(planned).take_while(|(span, op)| span.op == **op).count();
        if same < row.len().max(planned.len()) {
            let text = |op: Option<String>| op.unwrap_or_else(|| "nothing".to_string());
            let found = text(row.get(same).map(|span| span.op.to_string()));
            let accepted = text(planned.get(same).map(|op| op.to_string()));
            let accepted = format!("{accepted}, as in the plan: its run, and no other, can be held against it");
            faults.push(Fault::new(format!("{path}[{number}].steps, op {same}"), found, accepted));
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let whole: u128 = rows.iter().flatten().map(|span| u128::from(span.end_ns - span.start_ns)).sum();
    if whole > u128::from(MAX_TOTAL_NS) {
        let accepted = format!("at most {MAX_TOTAL_NS} ns in all");
        return Err(Fault::new(path, format!("{whole} ns over all ops"), accepted).into());
    }
    Ok(rows.chunks(ranks).map(<[_]>::to_vec).collect())
}

/// The problem of `statement`, which came from one that was accepted but for its times.
fn accepted(statement: &Statement) -> Result<Problem, Faults> {
    let mut faults = Vec::new();
    let read = Statement::read_into(&statement.to_value(), "measured", &mut faults).ok_or(Faults(faults))?;
    let placement = read.placements().swap_remove(0);
    Ok(read.problem(placement)?)
}

/// `planned` with what its jobs took. Where only a fused backward was measured, or only a cut one, the other is as many
/// times its plan as that was.
fn measured_cost(planned: StageCost, took: impl Fn(OpKind) -> Option<Nanos>) -> StageCost {
    let mut cost = planned;
    if let Some(forward_ns) = took(OpKind::F) {
        cost.forward_ns = forward_ns;
    }
    let scaled = |ns: Nanos, is: Nanos, was: Nanos| match was {
        0 => ns,
        _ => Nanos::try_from(u128::from(ns) * u128::from(is) / u128::from(was)).unwrap_or(Nanos::MAX),
    };
    let both = planned.backward_input_ns.saturating_add(planned.backward_weight_ns);
    match (took(OpKind::B), took(OpKind::W), took(OpKind::BW)) {
        (None, None, None) => {}
        (None, None, Some(fused)) => {
            let was = planned.duration(OpKind::BW);
            if was == 0 {
                (cost.backward_input_ns, cost.backward_ns) = (fused, None);
            } else {
                cost.backward_input_ns = scaled(planned.backward_input_ns, fused, was);
                cost.backward_weight_ns = match planned.backward_ns {
                    // Exactly the fused one is left over.
                    None => fused.saturating_sub(cost.backward_input_ns),
                    Some(_) => scaled(planned.backward_weight_ns, fused, was),
                };
                cost.backward_ns = planned.backward_ns.map(|_| fused);
            }
        }
        (input, weight, fused) => {
            cost.backward_input_ns = input.unwrap_or(planned.backward_input_ns);
            cost.backward_weight_ns = weight.unwrap_or(planned.backward_weight_ns);
            let is = cost.backward_input_ns.saturating_add(cost.backward_weight_ns);
            cost.backward_ns = match fused {
                Some(fused) => Some(fused),
                None => planned.backward_ns.map(|whole| scaled(whole, is, both)),
            };
        }
    }
    // A fused backward is never longer than its halves: then nobody would run it.
    let is = cost.backward_input_ns.saturating_add(cost.backward_weight_ns);
    cost.backward_ns = cost.backward_ns.filter(|whole| *whole < is);
    cost.bounded()
}

/// What each link took, from the receives that were there first: from the end of the op that made what they received.
/// Of several messages that are received together the one that was made last is counted.
fn hops_of(problem: &Problem, steps: &[StepTrace]) -> Vec<HopTimes> {
    let mut samples: BTreeMap<(usize, usize), Vec<Nanos>> = BTreeMap::new();
    let ranks = problem.ranks();
    for step in steps {
        for rows in step.rows.chunks(ranks) {
            let mut made: BTreeMap<(bool, usize, usize), Nanos> = BTreeMap::new();
            for span in rows.iter().flatten() {
                if let Step::Compute(op) = span.step
                    && op.kind() != OpKind::W
                {
                    made.insert((op.kind() != OpKind::F, op.stage(), op.microbatch()), span.end_ns);
                }
            }
            for (rank, row) in rows.iter().enumerate() {
                for span in row {
                    let Some((from, made_ns)) = last_made(problem, span, &made) else { continue };
                    if from != rank && span.start_ns <= made_ns {
                        samples.entry((from, rank)).or_default().push(span.end_ns.saturating_sub(made_ns));
                    }
                }
            }
        }
    }
    let median = |((from, to), mut samples): ((usize, usize), Vec<Nanos>)| {
        samples.sort_unstable();
        let median_ns = samples[samples.len() / 2];
        HopTimes { from, to, messages: samples.len(), planned_ns: problem.hop(from, to), median_ns }
    };
    samples.into_iter().map(median).collect()
}

/// Of what `span` receives, if it is a wait for messages: which rank made the last one, and when.
fn last_made(
    problem: &Problem,
    span: &TraceSpan,
    made: &BTreeMap<(bool, usize, usize), Nanos>,
) -> Option<(usize, Nanos)> {
    let (Step::Transfer(messages) | Step::Wait(messages)) = &span.step else { return None };
    let received = messages.iter().filter(|message| message.way == Way::Receive);
    let made_at = |message: &Message| {
        let (stage, microbatch) = (message.peer_stage(), message.microbatch as usize);
        let key = (message.payload == Payload::Gradient, stage, microbatch);
        // Only a stage of the problem has an op that was measured.
        made.get(&key).map(|ns| (problem.rank_of(stage, microbatch), *ns))
    };
    received.filter_map(made_at).max_by_key(|(_, ns)| *ns)
}

/// `planned` with what was measured: the median of all links where the plan has one time for all of them, and each
/// link's own where it has one for each.
fn measured_transfers(planned: &Transfers, hops: &[HopTimes]) -> Transfers {
    match planned {
        Transfers::Uniform(hop) => {
            // Each link as often as it was measured.
            let mut by_time: Vec<(Nanos, usize)> = hops.iter().map(|hop| (hop.median_ns, hop.messages)).collect();
            by_time.sort_unstable();
            let half = by_time.iter().map(|(_, messages)| messages).sum::<usize>() / 2;
            let mut before = 0;
            let middle = by_time.iter().find(|(_, messages)| {
                before += messages;
                before > half
            });
            Transfers::Uniform(middle.map_or(*hop, |(ns, _)| *ns))
        }
        Transfers::Links(links) => {
            let mut links = links.clone();
            for hop in hops {
                links[hop.from][hop.to] = hop.median_ns;
            }
            Transfers::Links(links)
        }
    }
}

/// How much of the longest path through `timeline` (which was simulated from `problem`) is ops of each stage and job,
/// and how much is hops. Together they are the makespan.
fn longest_path(problem: &Problem, timeline: &Timeline) -> (BTreeMap<(usize, OpKind), Nanos>, Nanos) {
    let mut places = BTreeMap::new();
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (place, span) in row.iter().enumerate() {
            let op = span.op;
            if op.kind() != OpKind::W {
                places.insert((op.kind() != OpKind::F, op.stage(), op.microbatch()), (rank, place));
            }
        }
    }
    let (mut paths, mut hops) = (BTreeMap::new(), 0);
    let last = timeline.rows.iter().enumerate().filter(|(_, row)| !row.is_empty());
    let last = last.max_by_key(|(_, row)| row[row.len() - 1].end_ns);
    let mut at = last.map(|(rank, row)| (rank, row.len() - 1));
    while let Some((rank, place)) = at {
        let Span { op, start_ns, end_ns } = timeline.rows[rank][place];
        *paths.entry((op.stage(), op.kind())).or_default() += end_ns - start_ns;
        let before = place.checked_sub(1).filter(|before| timeline.rows[rank][*before].end_ns == start_ns);
        at = before.map(|before| (rank, before));
        if at.is_none() && start_ns > 0 {
            needs(problem, op, |needed, hop| {
                let key = (needed.kind() != OpKind::F, needed.stage(), needed.microbatch());
                let Some(&(rank, place)) = places.get(&key) else { return };
                if at.is_none() && timeline.rows[rank][place].end_ns + hop == start_ns {
                    at = Some((rank, place));
                    hops += hop;
                }
            });
        }
    }
    (paths, hops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::program::execute::{Carrier, execute};
    use crate::program::lower::{Lowering, lower_as};
    use crate::schedule::find;
    use crate::simulate::jitter;
    use proptest::prelude::*;

    fn problem(stages: &[(u64, u64, u64)], chunks: usize, placement: &str, hop: u64) -> Problem {
        let stages: Vec<Value> = stages
            .iter()
            .map(|(f, b, w)| json!({ "forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w }))
            .collect();
        let ranks = stages.len() / chunks;
        let statement = Statement::read(&json!({
            "ranks": ranks, "chunks": chunks, "microbatches": 2 * ranks, "placement": placement, "transfer_ns": hop,
            "stages": stages,
        }))
        .expect("a sound statement");
        statement.problem(statement.placements()[0].clone()).expect("its own placement")
    }

    fn scheduled(problem: &Problem, name: &str) -> Schedule {
        find(name).expect("published").build(problem).expect("exists")
    }

    /// A run that takes exactly what `truth` says, where each receive is started by a rank that then waits for it.
    fn run_of(truth: &Problem, schedule: &Schedule) -> StepTrace {
        let program = lower_as(truth, schedule, Lowering::InPieces).expect("lowers");
        let timeline = execute(truth, &program, &[], Carrier { grouped: true, slots: usize::MAX }).expect("it ends");
        StepTrace { step: 0, loss: None, tokens: 0, rows: with_transfers(&program, &timeline) }
    }

    /// The spans of `timeline` with transfers from the end of what is before to the start of what comes after.
    fn with_transfers(program: &Program, timeline: &Timeline) -> Vec<Vec<TraceSpan>> {
        let row = |(row, spans): (&Vec<Step>, &Vec<Span>)| {
            let mut spans = spans.iter().copied().peekable();
            let mut now = 0;
            let mut out = Vec::new();
            for (place, step) in row.iter().enumerate() {
                let receives =
                    |step: &Step| matches!(step, Step::Transfer(m) if m.iter().any(|m| m.way == Way::Receive));
                let next = spans.peek().map_or(now, |span| span.start_ns);
                let (start_ns, end_ns) = match step {
                    Step::Compute(_) => spans.next().map_or((now, now), |span| (span.start_ns, span.end_ns)),
                    // The last one before an op ends when the op starts.
                    step if receives(step)
                        && !row[place + 1..]
                            .iter()
                            .take_while(|step| !matches!(step, Step::Compute(_)))
                            .any(receives) =>
                    {
                        (now, next)
                    }
                    _ => (now, now),
                };
                now = end_ns;
                out.push(TraceSpan { step: step.clone(), start_ns, end_ns });
            }
            out
        };
        program.rows.iter().zip(&timeline.rows).map(row).collect()
    }

    fn trace(steps: Vec<StepTrace>) -> Trace {
        Trace {
            plan_digest: String::new(),
            backend: "cpu".to_string(),
            transport: "threads".to_string(),
            replicas: 1,
            context: 1,
            tensor: 1,
            overhead_ns: None,
            shared_processors: None,
            peak_bytes: Vec::new(),
            steps,
        }
    }

    /// A step of the order whose ops take what `took` says.
    fn step_of(problem: &Problem, schedule: &Schedule, took: &dyn Fn(usize, usize, Op) -> Nanos) -> StepTrace {
        let timeline = simulate_as(problem, schedule, took).expect("runs");
        let span =
            |span: &Span| TraceSpan { step: Step::Compute(span.op), start_ns: span.start_ns, end_ns: span.end_ns };
        let rows = timeline.rows.iter().map(|row| row.iter().map(span).collect()).collect();
        StepTrace { step: 0, loss: None, tokens: 0, rows }
    }

    /// What no problem may say is refused, however often it comes.
    #[test]
    fn the_longest_times_are_refused() {
        let plan = problem(&[(1, 1, 0)], 1, "linear", 0);
        let schedule = Schedule::from_text_rows(&["0F0 0BW0"]).expect("ops");
        let plan =
            Statement { microbatches: 1, ..plan.statement() }.problem(plan.placement().clone()).expect("sound");
        let steps = (0..40).map(|_| step_of(&plan, &schedule, &|_, _, _| MAX_TOTAL_NS / 2));
        let told = calibrate(&plan, &schedule, &trace(steps.collect())).unwrap_err().to_string();
        assert!(told.contains("measured.stages.forward_ns: found 2305843009213693952"), "{told}");
    }

    /// The standard deviation of some thousand exponential numbers is known to a few percent.
    #[test]
    fn jitter_is_measured() {
        let plan = problem(&[(20_000, 30_000, 10_000); 8], 2, "looped", 500);
        for name in ["interleaved-1f1b", "interleaved-zb"] {
            let schedule = scheduled(&plan, name);
            for permille in [20, 150, 600] {
                let steps =
                    (0..20).map(|run| step_of(&plan, &schedule, &jitter::took(&plan, &schedule, permille, run)));
                let found =
                    calibrate(&plan, &schedule, &trace(steps.collect())).expect("its own run").jitter_permille;
                let of = f64::from(permille);
                assert!((0.9 * of..=1.1 * of).contains(&(found as f64)), "{found} of {permille}, {name}");
            }
        }
    }

    fn sum(causes: &Causes) -> i64 {
        causes.planned_ns as i64 + causes.ops_ns + causes.hops_ns + causes.spread_ns + causes.rest_ns
    }

    const SHAPES: [(&str, usize, &str); 4] =
        [("1f1b", 1, "linear"), ("zb-h1", 1, "linear"), ("interleaved-1f1b", 2, "looped"), ("zb-v", 2, "v")];

    proptest! {
        /// A run whose ops and hops take what another problem says is a run of that problem: nothing is left over, and the
        /// problem that comes back takes what the run took.
        #[test]
        fn what_a_run_took_comes_back(
            planned in prop::collection::vec((1u64..100, 1u64..100, 1u64..100), 8),
            really in prop::collection::vec((1u64..100, 1u64..100, 1u64..100), 8),
            (planned_hop, hop) in (0u64..50, 0u64..50),
            shape in 0..SHAPES.len(),
        ) {
            let (name, chunks, placement) = SHAPES[shape];
            let (planned, really) = (&planned[..4 * chunks], &really[..4 * chunks]);
            let plan = problem(planned, chunks, placement, planned_hop);
            let truth = problem(really, chunks, placement, hop);
            let schedule = scheduled(&plan, name);
            let step = run_of(&truth, &schedule);
            let calibration = calibrate(&plan, &schedule, &trace(vec![step.clone()])).expect("its own run");
            let measured = accepted(&calibration.statement).expect("sound");
            let causes = calibration.causes;
            prop_assert_eq!(causes.planned_ns, simulate(&plan, &schedule).expect("runs").makespan_ns());
            prop_assert_eq!(causes.measured_ns, step.timeline().makespan_ns());
            prop_assert_eq!(sum(&causes), causes.measured_ns as i64);
            prop_assert_eq!((causes.spread_ns, calibration.jitter_permille), (0, 0));
            let path: u64 = calibration.jobs.iter().map(|job| job.path_ns).sum();
            for job in &calibration.jobs {
                prop_assert_eq!(job.planned_ns, plan.cost(job.stage).duration(job.kind));
                prop_assert_eq!([job.least_ns, job.mean_ns, job.most_ns], [truth.cost(job.stage).duration(job.kind); 3]);
                prop_assert_eq!(measured.cost(job.stage).duration(job.kind), job.mean_ns);
            }
            // A hop that nobody waits for is not to be seen, and costs nothing then.
            if !calibration.hops.is_empty() {
                prop_assert!(calibration.hops.iter().all(|link| link.median_ns >= hop));
            }
            prop_assert_eq!(path + calibration.path_hops_ns, (causes.planned_ns as i64 + causes.ops_ns + causes.hops_ns) as u64);
            if calibration.hops.iter().any(|link| link.median_ns == hop) && measured.hop(0, 1) == hop {
                prop_assert_eq!(causes.rest_ns, 0);
            }
        }

        /// One op that takes longer than its like changes the mean by its share, and what more it costs is spread.
        #[test]
        fn a_straggler_is_spread(extra in 1u64..10_000, rank in 0usize..4, microbatch in 0usize..8) {
            let plan = problem(&[(100, 100, 100); 4], 1, "linear", 0);
            let schedule = scheduled(&plan, "1f1b");
            let late = Op::new(rank, OpKind::F, microbatch);
            let took = |_: usize, _: usize, op: Op| plan.duration(op) + if op == late { extra } else { 0 };
            let step = step_of(&plan, &schedule, &took);
            let calibration = calibrate(&plan, &schedule, &trace(vec![step])).expect("its own run");
            let causes = calibration.causes;
            prop_assert_eq!(sum(&causes), causes.measured_ns as i64);
            prop_assert_eq!((causes.hops_ns, causes.rest_ns), (0, 0));
            let slow = calibration.jobs.iter().find(|job| (job.stage, job.kind) == (rank, OpKind::F)).expect("measured");
            prop_assert_eq!((slow.least_ns, slow.most_ns, slow.ops), (100, 100 + extra, 8));
            prop_assert_eq!(slow.mean_ns, (800 + extra + 4) / 8);
        }
    }

    /// By hand: 2 ranks, 1F1B, F 10, B 10, W 10. Rank 1's forwards take 16: the path is F0 of rank 0, then all of rank 1,
    /// then the last BW of rank 0.
    #[test]
    fn the_longest_path_goes_through_the_slow_rank() {
        let plan = problem(&[(10, 10, 10), (10, 10, 10)], 1, "linear", 3);
        let truth = problem(&[(10, 10, 10), (16, 10, 10)], 1, "linear", 3);
        let schedule = scheduled(&plan, "1f1b");
        let calibration = calibrate(&plan, &schedule, &trace(vec![run_of(&truth, &schedule)])).expect("its own run");
        let on_path = |stage, kind| {
            calibration.jobs.iter().find(|job| (job.stage, job.kind) == (stage, kind)).map(|job| job.path_ns)
        };
        assert_eq!(on_path(1, OpKind::F), Some(4 * 16));
        assert_eq!(on_path(1, OpKind::BW), Some(4 * 20));
        assert_eq!(on_path(0, OpKind::F), Some(10));
        assert_eq!(on_path(0, OpKind::BW), Some(20));
        assert_eq!(calibration.path_hops_ns, 6);
        assert_eq!(calibration.causes.measured_ns, 10 + 3 + 4 * 36 + 3 + 20);
        // Planned, rank 1 waits for its third and fourth forward, 6 each: 13 + 4 * 30 + 6 + 23.
        assert_eq!((calibration.causes.planned_ns, calibration.causes.ops_ns), (162, 18));
    }

    /// Steps are averaged, without the first; copies of the pipeline too, where the slowest ends the step.
    #[test]
    fn steps_and_copies_count_together() {
        let plan = problem(&[(10, 10, 10), (10, 10, 10)], 1, "linear", 0);
        let schedule = scheduled(&plan, "zb-h1");
        let of = |f: u64| run_of(&problem(&[(f, 10, 10), (f, 10, 10)], 1, "linear", 0), &schedule);
        let calibration = calibrate(&plan, &schedule, &trace(vec![of(1000), of(20), of(30)])).expect("its own run");
        assert_eq!(calibration.steps, 2);
        assert_eq!(calibration.statement.stages[0].forward_ns, 25);
        assert_eq!(calibration.causes.rest_ns, 0);
        let mut both = of(20);
        both.rows.extend(of(40).rows);
        let mut two = trace(vec![both]);
        two.replicas = 2;
        let calibration = calibrate(&plan, &schedule, &two).expect("its own run");
        assert_eq!(calibration.statement.stages[1].forward_ns, 30);
        assert_eq!(calibration.jobs[0].ops, 8);
        assert_eq!(calibration.causes.measured_ns, of(40).timeline().makespan_ns());
        assert_eq!(calibration.causes.rest_ns, 0, "the slower copy is what the step takes");
        assert!(calibration.causes.spread_ns > 0);
    }

    /// A run does the ops of a pair one after the other: the problem that it gives promises no overlap, and takes as long.
    #[test]
    fn pairs_that_hid_nothing_hide_nothing() {
        let statement = Statement::read(&json!({
            "ranks": 4, "microbatches": 8, "placement": "two-way", "overlap_permille": 500,
            "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10 },
        }))
        .expect("a sound statement");
        let plan = statement.problem(statement.placements()[0].clone()).expect("its own placement");
        let schedule = scheduled(&plan, "dualpipe");
        let calibration = calibrate(&plan, &schedule, &trace(vec![run_of(&plan, &schedule)])).expect("its own run");
        let Causes { planned_ns, ops_ns, hops_ns, measured_ns, .. } = calibration.causes;
        assert!(ops_ns > 0, "what the plan hides");
        let measured = accepted(&calibration.statement).expect("sound");
        let in_turn = Schedule::of(schedule.rows.clone());
        let makespan = simulate(&measured, &in_turn).expect("runs").makespan_ns();
        assert_eq!(makespan as i64, planned_ns as i64 + ops_ns + hops_ns);
        assert!(makespan <= measured_ns, "what is left over are waits");
    }

    /// A fused backward was measured: its halves are as many times their plan, and together what it took.
    #[test]
    fn halves_follow_the_whole() {
        let planned = StageCost { backward_input_ns: 30, backward_weight_ns: 10, ..StageCost::default() };
        let fused = |ns: u64| move |kind| (kind == OpKind::BW).then_some(ns);
        let cost = measured_cost(planned, fused(101));
        assert_eq!((cost.backward_input_ns, cost.backward_weight_ns, cost.backward_ns), (75, 26, None));
        let shorter = StageCost { backward_ns: Some(20), ..planned };
        let cost = measured_cost(shorter, fused(40));
        assert_eq!((cost.backward_input_ns, cost.backward_weight_ns, cost.backward_ns), (60, 20, Some(40)));
        // Nothing was planned: all of it is B's, which the stage before waits for.
        let cost = measured_cost(StageCost::default(), fused(7));
        assert_eq!((cost.backward_input_ns, cost.backward_weight_ns), (7, 0));
        // Cut ones were measured: the fused one is as many times its plan, and never longer than they.
        let cut = |kind| match kind {
            OpKind::B => Some(60),
            OpKind::W => Some(20),
            _ => None,
        };
        assert_eq!(measured_cost(shorter, cut).backward_ns, Some(40));
        assert_eq!(measured_cost(StageCost { backward_ns: Some(40), ..planned }, cut).backward_ns, None);
    }

    /// What is no run of the plan is told by its first difference, and nothing overflows.
    #[test]
    fn another_run_is_refused() {
        let plan = problem(&[(10, 10, 10), (10, 10, 10)], 1, "linear", 0);
        let schedule = scheduled(&plan, "1f1b");
        let refused = |steps| calibrate(&plan, &schedule, &trace(steps)).expect_err("no run of it").to_string();
        assert!(refused(Vec::new()).contains("at least one recorded step"));
        let other = run_of(&plan, &scheduled(&plan, "gpipe"));
        let said = refused(vec![other]);
        assert!(said.starts_with("steps[0].rows[0].steps, op 2: found 0F2, accepted is 0BW0"), "{said}");
        let mut short = run_of(&plan, &schedule);
        short.rows.pop();
        assert!(refused(vec![short]).contains("1 rows"));
        let mut cut = run_of(&plan, &schedule);
        cut.rows[1].truncate(3);
        assert!(refused(vec![cut]).contains("found nothing"));
        let mut long = run_of(&plan, &schedule);
        for row in &mut long.rows {
            let mut now = 0;
            for span in row.iter_mut() {
                span.start_ns = now;
                now += 1 << 58;
                span.end_ns = now;
            }
        }
        assert!(refused(vec![long]).contains("ns"));
    }
}
