//! Made-up clusters whose clocks are wrong by a known amount.

use super::*;
use crate::problem::{Problem, Statement};
use crate::schedule::find;
use crate::simulate::{jitter, simulate_as};
use crate::trace::StepTrace;
use crate::trace::collectives::{CollectiveKind, CollectiveName, GroupKind};
use alloc::string::String;
use alloc::sync::Arc;
use proptest::prelude::*;
use serde_json::json;
use std::string::ToString;

/// An op of the made-up clusters.
const OP_NS: u64 = 1_000_000;

fn problem(ranks: usize, microbatches: usize, hop: u64) -> Problem {
    let statement = Statement::read(&json!({
        "ranks": ranks, "microbatches": microbatches, "transfer_ns": hop,
        "stages": { "forward_ns": OP_NS, "backward_input_ns": OP_NS, "backward_weight_ns": OP_NS },
    }))
    .expect("a sound statement");
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

/// A collective that lasts as long as an op.
fn during(span: &TraceSpan) -> Collective {
    let name = CollectiveName {
        kind: CollectiveKind::AllReduce,
        group: Some(GroupKind::Tensor),
        label: String::new(),
        ranks: Vec::new(),
    };
    let (start_ns, end_ns) = (span.start_ns, span.end_ns);
    Collective { name: Arc::new(name), start_ns, end_ns, bytes: None, exposed_ns: None }
}

/// `steps` steps of 1F1B whose ops vary, one after the other with `gap_ns` between them, by the true clock.
fn run(problem: &Problem, steps: u64, gap_ns: u64, permille: u16) -> Trace {
    let schedule = find("1f1b").expect("published").build(problem).expect("exists");
    let mut began = 1_700_000_000_000_000_000;
    let step = |number: u64| {
        let took = jitter::took(problem, &schedule, permille, number);
        let timeline = simulate_as(problem, &schedule, &took).expect("runs");
        let span = |span: &crate::simulate::timeline::Span| TraceSpan {
            step: Step::Compute(span.op),
            start_ns: span.start_ns,
            end_ns: span.end_ns,
        };
        let rows: Vec<Vec<TraceSpan>> = timeline.rows.iter().map(|row| row.iter().map(span).collect()).collect();
        let collectives = rows.iter().map(|row| row.last().map(during).into_iter().collect()).collect();
        let step = StepTrace { step: number, began_ns: Some(began), rows, collectives, ..StepTrace::default() };
        began += timeline.makespan_ns() + gap_ns;
        step
    };
    Trace { backend: "made up".to_string(), steps: (0..steps).map(step).collect(), ..Trace::default() }
}

/// What the clock of each row shows at these times: ahead by its offset, and by its drift since the start.
fn as_shown(truth: &Trace, clocks: &[(i64, i64)]) -> Trace {
    let mut shown = truth.clone();
    let start = truth.steps[0].began_ns.unwrap_or(0);
    for step in &mut shown.steps {
        let began = step.began_ns.unwrap_or(0);
        for (row, spans) in step.rows.iter_mut().enumerate() {
            let of_collectives = step.collectives[row].iter_mut().flat_map(|it| [&mut it.start_ns, &mut it.end_ns]);
            let of_ops = spans.iter_mut().flat_map(|span| [&mut span.start_ns, &mut span.end_ns]);
            for ns in of_ops.chain(of_collectives) {
                let since = i128::from(began + *ns - start);
                let ahead = i128::from(clocks[row].0) + since * i128::from(clocks[row].1) / 1_000_000_000;
                // Far enough from 0 for clocks that are behind.
                *ns = (i128::from(*ns) + ahead + 1_000_000_000) as u64;
            }
        }
        step.began_ns = Some(began - 1_000_000_000);
    }
    shown
}

/// The largest distance of a corrected time from what the first clock showed.
fn error_ns(aligned: &Trace, shown_by_first: &Trace) -> u64 {
    let times = |trace: &Trace| -> Vec<u64> {
        let of = |step: &StepTrace| {
            let began = step.began_ns.unwrap_or(0);
            step.rows
                .iter()
                .flatten()
                .flat_map(|span| [began + span.start_ns, began + span.end_ns])
                .collect::<Vec<_>>()
        };
        trace.steps.iter().flat_map(of).collect()
    };
    times(aligned).iter().zip(times(shown_by_first)).map(|(one, other)| one.abs_diff(other)).max().unwrap_or(0)
}

fn right_to(ranks: usize, steps: u64, hop: u64, clocks: &[(i64, i64)]) -> (u64, Aligned) {
    let truth = run(&problem(ranks, 2 * ranks, hop), steps, 100 * OP_NS, 50);
    let mut shown = as_shown(&truth, clocks);
    let by_first = as_shown(&truth, &vec![clocks[0]; ranks]);
    let rows: Vec<usize> = (0..ranks).collect();
    let aligned = align(&mut shown, &rows);
    assert_eq!(broken_waits(&shown).1, 0, "no op starts before its input");
    for step in &shown.steps {
        for (row, collectives) in step.rows.iter().zip(&step.collectives) {
            assert_eq!(collectives, &row.last().map(during).into_iter().collect::<Vec<_>>(), "they go along");
        }
    }
    (error_ns(&shown, &by_first), aligned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    /// 64 hosts, offsets of ±50 ms, drift of ±20 ppm: right to under a tenth of an op.
    #[test]
    fn clocks_of_64_hosts_are_put_right(
        clocks in prop::collection::vec((-50_000_000i64..50_000_000, -20_000i64..20_000), 64),
        hop in 2_000u64..50_000,
    ) {
        let (error, aligned) = right_to(64, 6, hop, &clocks);
        prop_assert!(error < OP_NS / 10, "{} ns", error);
        prop_assert!(aligned.broken > 0);
        for (clock, (offset, _)) in clocks.iter().enumerate() {
            let told = aligned.clocks[clock];
            let truly = offset - clocks[0].0;
            // The drift until the middle of the run comes on top.
            prop_assert!((told.offset_ns - truly).unsigned_abs() < 200_000, "{:?}, {}", told, truly);
        }
    }
}

#[test]
fn one_shifted_clock_is_found_and_the_others_stay() {
    let mut clocks = vec![(0, 0); 8];
    clocks[5] = (50_000_000, 0);
    let (error, aligned) = right_to(8, 3, 10_000, &clocks);
    assert!(error <= 10_000, "{error}");
    assert!(
        aligned.clocks.iter().enumerate().all(|(clock, error)| clock == 5 || error.offset_ns == 0),
        "{aligned:?}"
    );
    let ClockError { offset_ns, uncertainty_ns, .. } = aligned.clocks[5];
    let within = uncertainty_ns.expect("messages both ways");
    assert!(offset_ns.abs_diff(50_000_000) <= within.max(1), "{offset_ns} within {within}");
}

#[test]
fn clocks_that_agree_are_left_as_they_are() {
    let truth = run(&problem(4, 8, 0), 2, 0, 50);
    let mut trace = truth.clone();
    let aligned = align(&mut trace, &[0, 1, 2, 3]);
    assert_eq!((trace, aligned.broken, aligned.moved), (truth, 0, 0));
}

#[test]
fn a_few_wrong_times_do_not_spoil_the_estimate() {
    let truth = run(&problem(4, 32, 10_000), 2, 0, 50);
    let clocks = [(0, 0), (20_000_000, 5_000), (-30_000_000, 0), (1_000_000, -5_000)];
    let mut shown = as_shown(&truth, &clocks);
    // An op of rank 2 that seems to have started long ago.
    let row = &mut shown.steps[0].rows[2];
    row[6].start_ns = row[5].end_ns.min(row[6].start_ns);
    row[3].end_ns = row[3].start_ns;
    row[4].start_ns = row[3].start_ns;
    row[4].end_ns = row[4].start_ns + 1;
    let by_first = as_shown(&truth, &[clocks[0]; 4]);
    align(&mut shown, &[0, 1, 2, 3]);
    let far =
        |trace: &Trace| trace.steps[1].rows[3].last().map(|span| span.end_ns + trace.steps[1].began_ns.unwrap_or(0));
    assert!(far(&shown).zip(far(&by_first)).is_some_and(|(one, other)| one.abs_diff(other) < OP_NS / 10));
}

#[test]
fn steps_without_a_common_clock_get_an_offset_each() {
    let truth = run(&problem(4, 8, 10_000), 3, 0, 20);
    let mut shown = as_shown(&truth, &[(0, 0), (9_000_000, 0), (-9_000_000, 0), (4_000_000, 0)]);
    shown.steps.iter_mut().for_each(|step| step.began_ns = None);
    align(&mut shown, &[0, 1, 2, 3]);
    for (step, truth) in shown.steps.iter().zip(&truth.steps) {
        let (found, right) = (step.timeline().makespan_ns(), truth.timeline().makespan_ns());
        assert!(found.abs_diff(right) < 50_000, "{found} for {right}");
    }
    assert_eq!(broken_waits(&shown).1, 0);
}

/// Replicas on two hosts exchange no message: only their gradient sync says how far the clocks are apart. One of them is late
/// in some steps, the other in others.
#[test]
fn replicas_are_put_right_by_their_gradient_sync() {
    const RANKS: usize = 2;
    const SYNC_NS: u64 = 50_000;
    let problem = problem(RANKS, 8, 10_000);
    let pipelines = [7, 8].map(|seed: u64| run(&problem, 40, 100 * OP_NS, 50 + seed as u16));
    let name = |rank: usize| CollectiveName {
        kind: CollectiveKind::AllReduce,
        group: Some(GroupKind::Data),
        label: format!("gradients of stage {rank}"),
        ranks: vec![rank as u32, (rank + RANKS) as u32],
    };
    let mut truth = pipelines[0].clone();
    (truth.replicas, truth.context, truth.tensor) = (2, 1, 1);
    for (step, other) in truth.steps.iter_mut().zip(&pipelines[1].steps) {
        step.rows.extend(other.rows.clone());
        let ends: Vec<u64> = step.rows.iter().map(|row| row.last().map_or(0, |span| span.end_ns)).collect();
        let sync = |row: usize| {
            let (rank, start_ns) = (row % RANKS, ends[row]);
            let end_ns = ends[rank].max(ends[rank + RANKS]) + SYNC_NS;
            vec![Collective { name: Arc::new(name(rank)), start_ns, end_ns, bytes: None, exposed_ns: None }]
        };
        step.collectives = (0..2 * RANKS).map(sync).collect();
    }
    let late = |step: &StepTrace| step.collectives[0][0].start_ns < step.collectives[RANKS][0].start_ns;
    assert!(truth.steps.iter().any(late) && !truth.steps.iter().all(late), "each is late at times");
    let ahead = (30_000_000, 20_000);
    let mut shown = as_shown(&truth, &[(0, 0), (0, 0), ahead, ahead]);
    let by_first = as_shown(&truth, &[(0, 0); 4]);
    let aligned = align(&mut shown, &[0, 0, 1, 1]);
    assert_eq!(aligned.broken, 0, "no message goes between them");
    assert!(aligned.early_collectives > 0 && aligned.worst_collective_ns > 20_000_000, "{aligned:?}");
    let within = aligned.clocks[1].uncertainty_ns.expect("both ways");
    assert!(within <= SYNC_NS, "{within}");
    let error = error_ns(&shown, &by_first);
    assert!(error <= SYNC_NS, "{error}");
    let told = aligned.told(&|ns| format!("{ns} ns"));
    assert!(told[0].contains("collectives ended on a rank before another had begun them"), "{told:?}");
}

/// Where a rank has recorded fewer of a collective than another, nobody knows which belong together.
#[test]
fn collectives_that_a_rank_lacks_say_nothing() {
    let mut trace = run(&problem(2, 4, 10_000), 1, 0, 0);
    let name = CollectiveName { ranks: vec![0, 1], ..(*during(&trace.steps[0].rows[0][0]).name).clone() };
    let at = |start_ns, end_ns| Collective {
        name: Arc::new(name.clone()),
        start_ns,
        end_ns,
        bytes: None,
        exposed_ns: None,
    };
    trace.steps[0].collectives = vec![vec![at(0, 1), at(10_000, 11_000)], vec![at(500_000, 600_000)]];
    let before = trace.clone();
    assert_eq!(align(&mut trace, &[0, 1]).early_collectives, 0);
    assert_eq!(trace, before);
}
