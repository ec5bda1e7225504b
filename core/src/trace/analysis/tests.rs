//! Runs with a known straggler: it is found, and what it costs is the difference to the run without it.

use super::*;
use crate::problem::op::OpKind;
use crate::problem::{Problem, Schedule, Statement};
use crate::schedule::find;
use crate::simulate::simulate_as;
use crate::trace::{StepTrace, TraceSpan};
use proptest::prelude::*;
use std::vec;

fn problem(stages: &[(u64, u64, u64)], chunks: usize, placement: &str, hop: u64) -> Problem {
    let stages: Vec<Value> = stages
        .iter()
        .map(|(f, b, w)| json!({ "forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w }))
        .collect();
    let statement = Statement::read(&json!({
        "ranks": stages.len() / chunks, "chunks": chunks, "microbatches": 8, "placement": placement, "transfer_ns": hop,
        "stages": stages,
    }))
    .expect("a sound statement");
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

const EVEN: [(u64, u64, u64); 4] = [(1000, 1000, 900); 4];

fn scheduled(problem: &Problem, name: &str) -> Schedule {
    find(name).expect("published").build(problem).expect("exists")
}

/// The steps of a run whose ops take what `took` says of step, rank and op.
fn run(problem: &Problem, name: &str, steps: usize, took: &dyn Fn(usize, usize, Op) -> Nanos) -> Trace {
    let schedule = scheduled(problem, name);
    let step = |step: usize| {
        let timeline = simulate_as(problem, &schedule, &|rank, _, op| took(step, rank, op)).expect("runs");
        let span = |span: &crate::simulate::timeline::Span| TraceSpan {
            step: crate::program::Step::Compute(span.op),
            start_ns: span.start_ns,
            end_ns: span.end_ns,
        };
        let rows = timeline.rows.iter().map(|row| row.iter().map(span).collect()).collect();
        StepTrace { step: 10 + step as u64, rows, ..StepTrace::default() }
    };
    Trace { replicas: 1, context: 1, tensor: 1, steps: (0..steps).map(step).collect(), ..Trace::default() }
}

fn saved(analysis: &Analysis, name: &str) -> i64 {
    analysis.what_ifs.iter().find(|what| what.name == name).expect("known").saved_ns
}

fn makespan(trace: &Trace) -> i64 {
    let steps: Vec<u64> = trace.steps.iter().map(|step| step.timeline().makespan_ns()).collect();
    (steps.iter().sum::<u64>() / steps.len() as u64) as i64
}

#[test]
fn a_slow_rank_is_found_with_its_cost_and_its_first_step() {
    let problem = problem(&EVEN, 1, "linear", 10);
    let plain = |_: usize, _: usize, op: Op| problem.duration(op);
    let slow =
        |step: usize, rank: usize, op: Op| problem.duration(op) * if rank == 2 && step >= 3 { 3 } else { 2 } / 2;
    let (healthy, trace) = (run(&problem, "1f1b", 6, &plain), run(&problem, "1f1b", 6, &slow));
    let analysis = analyse(&trace, None).expect("ops");
    let [straggler] = &analysis.stragglers[..] else { panic!("{:?}", analysis.stragglers) };
    assert_eq!((straggler.slow.place().as_str(), straggler.since, straggler.permille), ("rank 2", 13, 1500));
    let truth = makespan(&trace) - makespan(&healthy);
    assert_eq!(straggler.saved_ns as i64, truth);
    assert_eq!((saved(&analysis, "the slowest rank is fixed"), saved(&analysis, "no stragglers")), (truth, truth));
}

#[test]
fn a_slow_stage_of_a_rank_with_two_is_told_from_a_slow_rank() {
    let problem = problem(&[(1000, 1000, 900); 8], 2, "looped", 10);
    let slow = |_: usize, _: usize, op: Op| problem.duration(op) * if op.stage() == 5 { 2 } else { 1 };
    let analysis = analyse(&run(&problem, "interleaved-1f1b", 2, &slow), None).expect("ops");
    assert_eq!(analysis.stragglers.first().map(|straggler| straggler.slow.place()), Some("stage 5".to_string()));
    // With a plan that says so, nothing is slow.
    let planned = |op: Op| problem.duration(op) * if op.stage() == 5 { 2 } else { 1 };
    let analysis = analyse(&run(&problem, "interleaved-1f1b", 2, &slow), Some(&planned)).expect("ops");
    assert_eq!(analysis.stragglers, []);
}

#[test]
fn long_microbatches_are_found() {
    let problem = problem(&EVEN, 1, "linear", 10);
    let plain = |_: usize, _: usize, op: Op| problem.duration(op);
    let slow =
        |step: usize, _: usize, op: Op| problem.duration(op) * if (step, op.microbatch()) == (1, 3) { 2 } else { 1 };
    let (healthy, trace) = (run(&problem, "1f1b", 3, &plain), run(&problem, "1f1b", 3, &slow));
    let analysis = analyse(&trace, None).expect("ops");
    let [straggler] = &analysis.stragglers[..] else { panic!("{:?}", analysis.stragglers) };
    assert_eq!((&straggler.slow, straggler.since, straggler.permille), (&Slow::Microbatches(3), 11, 2000));
    assert_eq!(straggler.saved_ns as i64, makespan(&trace) - makespan(&healthy));
}

#[test]
fn single_long_ops_are_found() {
    let problem = problem(&EVEN, 1, "linear", 10);
    let pause = |step: usize, _: usize, op: Op| {
        problem.duration(op) + if step == 2 && op == Op::new(1, OpKind::F, 5) { 9000 } else { 0 }
    };
    let trace = run(&problem, "1f1b", 4, &pause);
    let analysis = analyse(&trace, None).expect("ops");
    let [straggler] = &analysis.stragglers[..] else { panic!("{:?}", analysis.stragglers) };
    assert_eq!((&straggler.slow, straggler.since, straggler.ops), (&Slow::Sporadic, 12, 1));
    let healthy = run(&problem, "1f1b", 4, &|_, _, op| problem.duration(op));
    assert_eq!(straggler.saved_ns as i64, makespan(&trace) - makespan(&healthy));
}

#[test]
fn a_slow_link_is_found() {
    let statement = Statement::read(&json!({
        "ranks": 4, "microbatches": 8,
        "transfer_ns": [[0, 10, 10, 10], [10, 0, 700, 10], [10, 10, 0, 10], [10, 10, 10, 0]],
        "stages": { "forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 900 },
    }));
    let Ok(statement) = statement else { panic!("{statement:?}") };
    let problem = statement.problem(statement.placements()[0].clone()).expect("its own placement");
    let trace = run(&problem, "1f1b", 2, &|_, _, op| problem.duration(op));
    let analysis = analyse(&trace, None).expect("ops");
    let [straggler] = &analysis.stragglers[..] else { panic!("{:?}", analysis.stragglers) };
    assert_eq!(straggler.slow, Slow::Link(1, 2));
    assert!(straggler.saved_ns > 0);
}

#[test]
fn a_slow_copy_is_found_among_copies() {
    let problem = problem(&[(1000, 1000, 900), (3000, 3000, 2800)], 1, "linear", 10);
    let one = run(&problem, "1f1b", 2, &|_, _, op| problem.duration(op));
    let other = run(&problem, "1f1b", 2, &|_, rank, op| problem.duration(op) * if rank == 0 { 13 } else { 10 } / 10);
    let mut trace = one.clone();
    trace.replicas = 3;
    for (step, other) in trace.steps.iter_mut().zip(&other.steps) {
        let rows = step.rows.clone();
        step.rows.extend(other.rows.clone());
        step.rows.extend(rows);
    }
    let analysis = analyse(&trace, None).expect("ops");
    let [straggler] = &analysis.stragglers[..] else { panic!("{:?}", analysis.stragglers) };
    assert_eq!((straggler.slow.place().as_str(), straggler.permille), ("replica 1, rank 0", 1300));
}

/// By hand: two ranks, two microbatches, F 10, B 10, W 10 (BW 20), hop 3. Rank 1 waits 13 for its first input, then 7 for none.
#[test]
fn times_of_a_rank_add_up() {
    let problem = problem(&[(10, 10, 10), (10, 10, 10)], 1, "linear", 3);
    let trace = run(&problem, "1f1b", 1, &|_, _, op| problem.duration(op));
    let analysis = analyse(&trace, None).expect("ops");
    let step = &analysis.steps[0];
    for row in &step.rows {
        let RowTime { busy_ns, fill_ns, input_ns, communication_ns, late_ns, drain_ns } = *row;
        assert_eq!(busy_ns + fill_ns + input_ns + communication_ns + late_ns + drain_ns, step.makespan_ns);
        assert_eq!((busy_ns, late_ns), (8 * 30, 0));
    }
    assert_eq!((step.rows[1].fill_ns, step.rows[0].fill_ns, step.rows[0].drain_ns), (10, 0, 0));
    let path: u64 = step.path.iter().map(|op| op.took_ns + op.message_ns + op.late_ns).sum();
    assert_eq!(path, step.makespan_ns);
    assert_eq!(step.path.first().map(|op| op.op), Some(Op::new(0, OpKind::F, 0)));
}

/// What the last step of `trace` shows of the six before it.
fn watched(problem: &Problem, trace: &Trace) -> Vec<Late> {
    let mut watch = Watch::new(problem, trace, 6);
    trace.steps.iter().map(|step| watch.add(step)).last().expect("steps")
}

#[test]
fn a_rank_is_slower_than_planned_after_as_many_steps_as_are_watched() {
    let problem =
        problem(&[(1000, 1000, 900), (2000, 2000, 1800), (1000, 1000, 900), (900, 900, 800)], 1, "linear", 10);
    // The devices are ten times as slow as the plan says, and its F half as slow again: that is no rank's fault.
    let usual = |op: Op| problem.duration(op) * if op.kind() == OpKind::F { 15 } else { 10 };
    let slow = |step: usize, rank: usize, op: Op| usual(op) * if rank == 2 && step >= 3 { 13 } else { 10 } / 10;
    for steps in 1..12 {
        let trace = run(&problem, "1f1b", steps, &slow);
        let found = watched(&problem, &trace);
        if steps < 9 {
            assert_eq!(found, [], "{steps} steps");
            continue;
        }
        let [late] = &found[..] else { panic!("{found:?}") };
        assert_eq!((late.slow.place().as_str(), late.permille, late.least_permille), ("rank 2", 1300, 1300));
        assert_eq!((late.others_permille, late.steps, late.jitter_permille), ((1000, 1000), 6, 0));
    }
}

#[test]
fn what_no_more_than_jitters_or_happens_once_is_no_straggler() {
    let problem = problem(&EVEN, 1, "linear", 10);
    let accident =
        |step: usize, rank: usize, op: Op| problem.duration(op) * if rank == 1 && step != 4 { 14 } else { 10 } / 10;
    assert_eq!(watched(&problem, &run(&problem, "1f1b", 8, &accident)), []);
    // Rank 1 takes 1.15 times as long, and each rank up to a tenth more or less from step to step.
    let jitter = |step: usize, rank: usize, op: Op| {
        let varies = 90 + (step * 7 + rank * 3) as u64 % 5 * 5;
        problem.duration(op) * varies * if rank == 1 { 115 } else { 100 } / 10_000
    };
    assert_eq!(watched(&problem, &run(&problem, "1f1b", 12, &jitter)), []);
}

#[test]
fn of_replicas_the_slow_one_is_named() {
    let problem = problem(&EVEN, 1, "linear", 10);
    let mut trace = run(&problem, "1f1b", 6, &|_, _, op| problem.duration(op));
    let slow = run(&problem, "1f1b", 6, &|_, rank, op| problem.duration(op) * if rank == 3 { 2 } else { 1 });
    trace.replicas = 2;
    trace.steps.iter_mut().zip(slow.steps).for_each(|(step, slow)| step.rows.extend(slow.rows));
    let found = watched(&problem, &trace);
    let places: Vec<String> = found.iter().map(|late| late.slow.place()).collect();
    assert_eq!(places, ["replica 1, rank 3"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the times, the replay of the measured ones is the measured step; the parts add up, on every row and on the path;
    /// and nothing that is fixed makes a step longer.
    #[test]
    fn a_replay_is_the_measured_step(
        times in prop::collection::vec(1u64..1000, 256),
        hop in 0u64..100,
        shape in 0usize..4,
    ) {
        let (name, chunks, placement) =
            [("1f1b", 1, "linear"), ("zb-h1", 1, "linear"), ("interleaved-1f1b", 2, "looped"), ("zb-v", 2, "v")][shape];
        let problem = problem(&vec![(500, 500, 500); 4 * chunks], chunks, placement, hop);
        let took = |step: usize, rank: usize, op: Op| times[(step * 31 + rank * 7 + op.stage() * 3 + op.microbatch() * 11 + op.kind() as usize) % 256];
        let trace = run(&problem, name, 2, &took);
        let analysis = analyse(&trace, None).expect("ops");
        for (replay, step) in Replay::of_all(&trace, &Pace::new(&mut |_, _| ControlFlow::Continue(()))).expect("nobody ends it").iter().zip(&analysis.steps) {
            prop_assert_eq!(replay.replayed(&|place| replay.took(place), true), step.makespan_ns);
            for row in &step.rows {
                let RowTime { busy_ns, fill_ns, input_ns, communication_ns, late_ns, drain_ns } = *row;
                prop_assert_eq!(busy_ns + fill_ns + input_ns + communication_ns + late_ns + drain_ns, step.makespan_ns);
            }
            let path: u64 = step.path.iter().map(|op| op.took_ns + op.message_ns + op.late_ns).sum();
            prop_assert_eq!(path, step.makespan_ns);
        }
        for what in analysis.what_ifs.iter().filter(|what| what.name != "even stages") {
            prop_assert!(what.saved_ns >= 0, "{:?}", what);
        }
    }
}

/// Two ranks sync gradients: rank 1 comes 30 ns later. Worked out by hand.
#[test]
fn collectives_are_told_by_purpose_with_whom_they_wait_for() {
    use crate::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind, Purpose};
    use alloc::sync::Arc;
    let name = |kind, group, label: &str| {
        Arc::new(CollectiveName { kind, group: Some(group), label: label.to_string(), ranks: vec![0, 1] })
    };
    let sync = name(CollectiveKind::ReduceScatter, GroupKind::Data, "gradients of stage 0");
    let gather = name(CollectiveKind::AllGather, GroupKind::Data, "parameters of stage 0");
    let of = |name: &Arc<CollectiveName>, start_ns, end_ns, exposed_ns| Collective {
        name: Arc::clone(name),
        start_ns,
        end_ns,
        bytes: None,
        exposed_ns,
    };
    let row = |end_ns| {
        let op = |microbatch, start_ns, end_ns| TraceSpan {
            step: crate::program::Step::Compute(Op::new(0, OpKind::BW, microbatch)),
            start_ns,
            end_ns,
        };
        vec![op(0, 0, 100), op(1, 120, end_ns)]
    };
    let step = StepTrace {
        rows: vec![row(150), row(180)],
        collectives: vec![
            // One overlaps both ops: 20 ns between them are exposed. The other comes behind them.
            vec![of(&sync, 90, 140, None), of(&sync, 150, 200, None), of(&gather, 210, 220, Some(4))],
            vec![of(&sync, 90, 140, None), of(&sync, 180, 200, None), of(&gather, 205, 220, None)],
        ],
        ..StepTrace::default()
    };
    let trace = Trace { replicas: 2, context: 1, tensor: 1, steps: vec![step], ..Trace::default() };
    let analysis = analyse(&trace, None).expect("ops");
    let figures = |communication: &Communication| {
        let rows = communication.rows.iter().map(|row| [row.total_ns, row.exposed_ns, row.waits_ns, row.awaited_ns]);
        (communication.purpose, communication.count, rows.collect::<Vec<_>>(), communication.slowest())
    };
    let [sync, gather] = &analysis.communication[..] else { panic!("{:?}", analysis.communication) };
    let expected = (Purpose::GradientSync, 4, vec![[100, 70, 30, 0], [70, 40, 0, 30]], Some((1, 30)));
    assert_eq!(figures(sync), expected);
    let expected = (Purpose::ParameterGather, 2, vec![[10, 4, 0, 5], [15, 15, 5, 0]], Some((0, 5)));
    assert_eq!(figures(gather), expected);
}

/// A damaged log can make one step of two: each op stands twice there, and what an op waits for may come after it.
#[test]
fn ops_that_stand_twice_in_a_step_make_no_endless_path() {
    let problem = problem(&EVEN, 1, "linear", 100);
    let mut trace = run(&problem, "1f1b", 2, &|_, _, op| problem.duration(op));
    let later = trace.steps[1].rows[1].clone();
    let by = trace.steps[0].duration_ns();
    trace.steps[0].rows[1].remove(0);
    trace.steps[0].rows[1].extend(later.into_iter().map(|span| TraceSpan {
        start_ns: span.start_ns + by,
        end_ns: span.end_ns + by,
        ..span
    }));
    let ops: usize = trace.steps[0].rows.iter().map(Vec::len).sum();
    let found = analyse(&trace, None).expect("ops");
    assert!(found.steps[0].path.len() <= ops, "{}", found.steps[0].path.len());
}

/// Forty of 96 ranks are slow, one more than the other. The cost of a few is worked out, and the rest is counted.
#[test]
fn of_many_stragglers_the_most_costly_are_told() {
    let problem = problem(&[(1000, 1000, 900); 96], 1, "linear", 10);
    let slow = |_: usize, rank: usize, op: Op| match rank % 12 {
        0..5 => problem.duration(op) * (120 + rank as u64) / 100,
        _ => problem.duration(op),
    };
    let without = |fixed: usize| {
        let took = |step: usize, rank: usize, op: Op| {
            if rank == fixed { problem.duration(op) } else { slow(step, rank, op) }
        };
        makespan(&run(&problem, "1f1b", 2, &took))
    };
    let trace = run(&problem, "1f1b", 2, &slow);
    let analysis = analyse(&trace, None).expect("ops");
    assert_eq!((analysis.stragglers.len(), analysis.more_stragglers), (24, 16), "{:?}", analysis.stragglers);
    let saved: Vec<u64> = analysis.stragglers.iter().map(|straggler| straggler.saved_ns).collect();
    assert!(saved.is_sorted_by(|one, other| one >= other), "{saved:?}");
    // The truth, by running without each of the slow ranks.
    let truth = (0..96).filter(|rank| rank % 12 < 5).map(|rank| makespan(&trace) - without(rank)).max();
    assert_eq!(truth, saved.first().map(|saved| *saved as i64));
}
