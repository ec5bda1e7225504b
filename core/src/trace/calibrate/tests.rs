//! Runs that another problem describes come back as that problem.

use super::*;
use crate::problem::{MAX_TOTAL_NS, StageCost};
use crate::program::Program;
use crate::program::execute::{Carrier, execute};
use crate::program::lower::{Lowering, lower_as};
use crate::program::{Step, Way};
use crate::schedule::find;
use crate::simulate::jitter;
use crate::simulate::timeline::Timeline;
use crate::trace::analysis::{Slow, Watch};
use crate::trace::{StepTrace, TraceSpan};
use proptest::prelude::*;
use std::string::ToString;

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
    StepTrace { rows: with_transfers(&program, &timeline), ..StepTrace::default() }
}

/// The spans of `timeline` with transfers from the end of what is before to the start of what comes after.
fn with_transfers(program: &Program, timeline: &Timeline) -> Vec<Vec<TraceSpan>> {
    let row = |(row, spans): (&Vec<Step>, &Vec<Span>)| {
        let mut spans = spans.iter().copied().peekable();
        let mut now = 0;
        let mut out = Vec::new();
        for (place, step) in row.iter().enumerate() {
            let receives = |step: &Step| matches!(step, Step::Transfer(m) if m.iter().any(|m| m.way == Way::Receive));
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
        hosts: Vec::new(),
        steps,
    }
}

/// A step of the order whose ops take what `took` says.
fn step_of(problem: &Problem, schedule: &Schedule, took: &dyn Fn(usize, usize, Op) -> Nanos) -> StepTrace {
    let timeline = simulate_as(problem, schedule, took).expect("runs");
    let span = |span: &Span| TraceSpan { step: Step::Compute(span.op), start_ns: span.start_ns, end_ns: span.end_ns };
    let rows = timeline.rows.iter().map(|row| row.iter().map(span).collect()).collect();
    StepTrace { rows, ..StepTrace::default() }
}

/// What no problem may say is refused, however often it comes.
#[test]
fn the_longest_times_are_refused() {
    let plan = problem(&[(1, 1, 0)], 1, "linear", 0);
    let schedule = Schedule::from_text_rows(&["0F0 0BW0"]).expect("ops");
    let plan = Statement { microbatches: 1, ..plan.statement() }.problem(plan.placement().clone()).expect("sound");
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
            let steps = (0..20).map(|run| step_of(&plan, &schedule, &jitter::took(&plan, &schedule, permille, run)));
            let found = calibrate(&plan, &schedule, &trace(steps.collect())).expect("its own run").jitter_permille;
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

#[test]
fn a_link_that_is_slower_than_the_others_in_every_step_is_seen() {
    let plan = problem(&[(1000, 1000, 1000); 4], 1, "linear", 100);
    let mut statement = plan.statement();
    let mut links = vec![vec![100; 4]; 4];
    links[1][2] = 700;
    statement.transfers = crate::problem::Transfers::Links(links);
    let truth = accepted(&statement).expect("sound");
    let schedule = scheduled(&plan, "gpipe");
    let shape = trace(Vec::new());
    let step = StepTrace { began_ns: Some(0), ..run_of(&truth, &schedule) };
    let mut watch = Watch::new(&plan, &shape, 3);
    assert_eq!((watch.add(&step), watch.add(&step)), (Vec::new(), Vec::new()));
    let found = watch.add(&step);
    let [late] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&late.slow, late.permille, late.others_permille), (&Slow::Link(1, 2), 7000, (1000, 1000)));
}
