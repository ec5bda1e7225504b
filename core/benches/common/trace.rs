//! Traces of made-up clusters.

use std::sync::Arc;

use pipeplan_core::base::units::Nanos;
use pipeplan_core::problem::{PlacementChoice, Problem, Schedule, StageCost, Statement};
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::lower::lower;
use pipeplan_core::program::{Program, Step, Way};
use pipeplan_core::schedule::find;
use pipeplan_core::simulate::timeline::{Span, Timeline};
use pipeplan_core::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind};
use pipeplan_core::trace::{StepTrace, Trace, TraceSpan};

/// Thousandths by which a stage differs from its plan, from step to step and copy to copy, at most.
const NOISE: u64 = 50;

/// A run of 1F1B on `copies` pipelines of `ranks` each: each stage of each copy takes another time in each step, and gradients are
/// synchronized at the end.
pub fn made(ranks: usize, copies: usize, microbatches: usize, steps: u64) -> (Problem, Schedule, Trace) {
    let problem = super::problem(pipeplan_core::problem::placement::Placement::Linear, ranks, 1, microbatches, None);
    let schedule = find("1f1b").expect("published").build(&problem).expect("exists");
    let program = lower(&problem, &schedule).expect("an order that runs");
    let syncs: Vec<Arc<CollectiveName>> = (0..ranks).map(|rank| sync(rank, ranks, copies)).collect();
    let mut began = 0;
    let step = |step: u64| {
        let mut rows: Vec<Vec<TraceSpan>> = Vec::with_capacity(ranks * copies);
        for copy in 0..copies as u64 {
            let noisy = noisy(&problem, step * copies as u64 + copy);
            let timeline = execute(&noisy, &program, &[], Carrier { grouped: true, slots: usize::MAX });
            rows.extend(with_transfers(&program, &timeline.expect("it ends")));
        }
        let collectives = (0..rows.len()).map(|row| vec![synced(&rows, row, ranks, &syncs)]).collect();
        let began_ns = Some(began);
        let step = StepTrace { step, loss: Some(2.5), tokens: 1, began_ns, rows, collectives };
        began += step.duration_ns();
        step
    };
    let trace = Trace {
        backend: "made up".into(),
        transport: "none".into(),
        replicas: copies,
        context: 1,
        tensor: 1,
        peak_bytes: vec![1 << 30; ranks * copies],
        steps: (0..steps).map(step).collect(),
        ..Trace::default()
    };
    (problem, schedule, trace)
}

/// Spans of all rows and steps.
pub fn spans(trace: &Trace) -> u64 {
    trace.steps.iter().flat_map(|step| &step.rows).map(|row| row.len() as u64).sum()
}

fn noisy(problem: &Problem, seed: u64) -> Problem {
    let statement = problem.statement();
    let stages = (0..problem.stage_count()).map(|stage| {
        // The mixing step of SplitMix64.
        let mut mixed = (seed << 20 | stage as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let permille = 1000 + (mixed >> 33) % NOISE;
        let took = |ns: Nanos| ns * permille / 1000;
        let cost = *problem.cost(stage);
        StageCost {
            forward_ns: took(cost.forward_ns),
            backward_input_ns: took(cost.backward_input_ns),
            backward_weight_ns: took(cost.backward_weight_ns),
            ..cost
        }
    });
    let placement = problem.placement().clone();
    let noisy =
        Statement { stages: stages.collect(), placement: PlacementChoice::Fixed(placement.clone()), ..statement };
    noisy.problem(placement).expect("as the other one")
}

/// The spans of `timeline` with transfers: a rank waits in the last receive before an op until the op starts.
fn with_transfers(program: &Program, timeline: &Timeline) -> Vec<Vec<TraceSpan>> {
    let row = |(row, spans): (&Vec<Step>, &Vec<Span>)| {
        let mut spans = spans.iter().copied().peekable();
        let mut now = 0;
        let mut out = Vec::with_capacity(row.len());
        for (place, step) in row.iter().enumerate() {
            let receives = |step: &Step| matches!(step, Step::Transfer(m) | Step::Wait(m) if m.iter().any(|m| m.way == Way::Receive));
            let next = spans.peek().map_or(now, |span| span.start_ns);
            let to_op = |step: &&Step| !matches!(step, Step::Compute(_));
            let is_last = !row[place + 1..].iter().take_while(to_op).any(receives);
            let (start_ns, end_ns) = match step {
                Step::Compute(_) => spans.next().map_or((now, now), |span| (span.start_ns, span.end_ns)),
                Step::Optimizer => (now, now + 5_000_000),
                step if receives(step) && is_last => (now, next),
                _ => (now, now),
            };
            now = end_ns;
            out.push(TraceSpan { step: step.clone(), start_ns, end_ns });
        }
        out
    };
    program.rows.iter().zip(&timeline.rows).map(row).collect()
}

fn sync(rank: usize, ranks: usize, copies: usize) -> Arc<CollectiveName> {
    Arc::new(CollectiveName {
        kind: CollectiveKind::AllReduce,
        group: Some(GroupKind::Data),
        label: format!("gradients of stage {rank}"),
        ranks: (0..copies).map(|copy| (copy * ranks + rank) as u32).collect(),
    })
}

/// Gradient sync of `row`, within its optimizer's step: it ends when the last copy has begun.
fn synced(rows: &[Vec<TraceSpan>], row: usize, ranks: usize, syncs: &[Arc<CollectiveName>]) -> Collective {
    let begins = |row: &Vec<TraceSpan>| row.last().map_or(0, |last| last.start_ns);
    let last = rows.iter().skip(row % ranks).step_by(ranks).map(begins).max().unwrap_or(0);
    let (start_ns, end_ns) = (begins(&rows[row]), last + 1_000_000);
    let name = Arc::clone(&syncs[row % ranks]);
    Collective { name, start_ns, end_ns, bytes: Some(1 << 30), exposed_ns: None }
}
