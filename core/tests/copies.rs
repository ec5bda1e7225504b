//! Activations that go to the host and come back: the copies that an order needs, their check, their bound, and what they gain.

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::{Violation, check_program, check_schedule};
use pipeplan_core::problem::copies::{CopyWay, HostCopy, Moved};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::{Problem, Schedule, Statement};
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::program::{Program, Transport};
use pipeplan_core::schedule::published;
use pipeplan_core::search::{self, Effort, Flow, within_limits};
use pipeplan_core::simulate::simulate;
use pipeplan_core::simulate::timeline::schedule_peak_bytes;
use proptest::prelude::*;
use serde_json::json;

/// F, B and W take alike; F keeps 4 bytes, B gives back 1 and W 3; all 4, or fewer, may go.
fn problem(
    [ranks, chunks, microbatches]: [usize; 3],
    placement: &str,
    limit: Option<u64>,
    [bytes, ns]: [u64; 2],
) -> Problem {
    let statement = Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "limit_bytes": limit,
        "stages": {
            "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45,
            "forward_bytes": 4, "backward_input_bytes": -1, "backward_weight_bytes": -3,
            "offload_bytes": bytes, "offload_ns": ns,
        },
    }))
    .unwrap_or_else(|faults| panic!("{faults}"));
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

fn best(problem: &Problem) -> search::Found {
    search::best(problem, Effort(200_000), &mut |_| Flow::Continue).unwrap_or_else(|refused| panic!("{refused}"))
}

/// What a schedule with copies promises: accepted, above the bound, lowered on every transport to the same times.
fn judge(problem: &Problem, schedule: &Schedule, cost_ns: u64, of: &str) {
    if let Err(violations) = check_schedule(problem, schedule) {
        let copies: Vec<String> =
            schedule.copies.iter().map(|row| row.iter().map(|copy| format!("{copy} ")).collect()).collect();
        panic!("{of}: {}\n{}\n{}", violations[0], schedule.text_rows().join("\n"), copies.join("\n"));
    }
    let timeline = simulate(problem, schedule).expect("checked, so it runs");
    assert_eq!(timeline.cost_ns(problem.objective()), cost_ns, "{of}");
    let bound = lower_bound(problem);
    assert!(bound.value_ns <= cost_ns, "{of}: {cost_ns} is below the bound {} ({})", bound.value_ns, bound.binding);
    for rank in 0..problem.ranks() {
        let peak = schedule_peak_bytes(problem, schedule, rank);
        assert!(problem.limit_bytes(rank).is_none_or(|limit| peak <= limit), "{of}: rank {rank} holds {peak}");
        assert_eq!(timeline.peak_bytes(problem, rank), peak, "{of}");
        let most = timeline.memory(problem, rank).into_iter().map(|(_, held)| held).max();
        assert_eq!(most, Some(peak), "{of}: memory over time");
    }
    for lowering in [Lowering::Grouped, Lowering::default()] {
        let program = lower_as(problem, schedule, lowering).expect("checked, so it lowers");
        assert_eq!(check_program(problem, &program, Transport::Streams), Ok(()), "{of}");
        let text = program.text_rows();
        assert_eq!(Program::from_text_rows(&text), Ok(program.clone()), "{of}: the text of a program is read back");
        let run = execute(problem, &program, &schedule.pairs, Carrier::of(Transport::Streams));
        if lowering == Lowering::default() {
            assert_eq!(run, Some(timeline.clone()), "{of}: a program takes the time of its order");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every published order that gets copies is valid with them, and the best is no worse than any of them, nor than the best
    /// without copies.
    #[test]
    fn copies_keep_the_limit_and_gain(
        ranks in 1usize..5, chunks in 1usize..3, microbatches in 1usize..8,
        limit in 4u64..40, bytes in 1u64..5, ns in 0u64..200,
    ) {
        let placement = if chunks == 1 { "linear" } else { "v" };
        let problem = problem([ranks, chunks, microbatches], placement, Some(limit), [bytes, ns]);
        let kept = problem.without_offload();
        let of = format!("P={ranks} V={chunks} M={microbatches} limit {limit}, {bytes} bytes in {ns} ns");
        let mut least = u64::MAX;
        for published in published() {
            let Ok(order) = published.build(&problem) else { continue };
            let fitted = within_limits(&problem, order.clone());
            prop_assert_eq!(&fitted.rows, &order.rows, "copies change no order");
            if fitted.has_copies() || check_schedule(&problem, &fitted).is_ok() {
                let cost_ns = simulate(&problem, &fitted).expect("it runs").cost_ns(problem.objective());
                judge(&problem, &fitted, cost_ns, &format!("{} of {of}", published.name));
                least = least.min(cost_ns);
            }
        }
        match search::best(&problem, Effort(20_000), &mut |_| Flow::Continue) {
            Ok(found) => {
                judge(&problem, &found.schedule, found.cost_ns, &of);
                prop_assert!(found.cost_ns <= least, "{}: {} against {}", of, found.cost_ns, least);
                if let Ok(without) = search::best(&kept, Effort(20_000), &mut |_| Flow::Continue) {
                    prop_assert!(found.cost_ns <= without.cost_ns, "{}: worse than without copies", of);
                }
            }
            Err(refused) => {
                prop_assert!(refused.least_bytes > refused.limit_bytes, "{}: {}", of, refused);
                let without = search::best(&kept, Effort(0), &mut |_| Flow::Continue);
                prop_assert!(without.is_err(), "{}: refused, and has a schedule without copies", of);
                let limits = vec![Some(refused.least_bytes.max(limit)); ranks];
                let raised = search::best(&problem.with_limits(limits), Effort(0), &mut |_| Flow::Continue);
                // Of several ranks one is named: another may lack more in its own way.
                if let Err(again) = raised {
                    prop_assert!(again.rank != refused.rank, "{}: {} and then {}", of, refused, again);
                }
            }
        }
    }
}

/// PipeOffload (arXiv:2503.01328, §4): where a copy takes no longer than its share of compute, half of what interleaved 1F1B
/// holds can be away, and the step takes no longer. Here 8 ranks, 16 microbatches, two chunks, and a copy of 0.2 of a chunk's
/// F: the least limit in chunks at which interleaved 1F1B takes as long as without a limit.
#[test]
fn half_of_what_interleaved_1f1b_holds_is_away_for_nothing() {
    let free = problem([8, 2, 16], "looped", None, [4, 10]);
    let interleaved = pipeplan_core::schedule::find("interleaved-1f1b").expect("published");
    let order = interleaved.build(&free).expect("it exists");
    let peak = (0..8).map(|rank| schedule_peak_bytes(&free, &order, rank)).max().expect("ranks");
    let cost_ns = simulate(&free, &order).expect("it runs").makespan_ns();
    let within = |limit: u64| {
        let limited = problem([8, 2, 16], "looped", Some(limit), [4, 10]);
        let fitted = within_limits(&limited, order.clone());
        check_schedule(&limited, &fitted).ok()?;
        let cost_ns = simulate(&limited, &fitted).expect("it runs").makespan_ns();
        judge(&limited, &fitted, cost_ns, &format!("limit {limit}"));
        Some(cost_ns)
    };
    let least = (4..=peak).find(|limit| within(*limit) == Some(cost_ns)).expect("its own peak is enough");
    assert!(2 * least <= peak, "{least} of {peak} bytes");
    // And the least at all is what two ops hold, or three: the one that runs, and those on their way.
    let smallest = (4..=peak).find(|limit| within(*limit).is_some()).expect("its own peak is enough");
    assert!(smallest <= 12, "{smallest} of {peak} bytes");
}

/// What runs within a limit runs within any higher one, down to the last byte, and the least limit that a refusal names is one.
#[test]
fn more_memory_never_refuses() {
    for (chunks, placement) in [(1, "linear"), (2, "v"), (2, "looped")] {
        for name in ["1f1b", "gpipe", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "gis"] {
            let free = problem([4, chunks, 8], placement, None, [4, 30]);
            let Ok(order) = pipeplan_core::schedule::find(name).expect("published").build(&free) else { continue };
            let mut fits = false;
            for limit in 4..=36 {
                let limited = problem([4, chunks, 8], placement, Some(limit), [4, 30]);
                let now = check_schedule(&limited, &within_limits(&limited, order.clone())).is_ok();
                assert!(now || !fits, "{name} {placement} fits into less than {limit}, and not into {limit}");
                fits |= now;
            }
            assert!(fits, "{name} {placement}");
        }
    }
}

/// Two ranks, three microbatches, GPipe, room for two, worked out by hand. Rank 0 runs F of 0, 1 and 2 at 0, 50 and 100. F of 2
/// needs room: 0 goes from 50 to 70. Its backward comes at 300, behind F and BW on rank 1 (200 to 300). There it needs room
/// again: 2 goes behind its F, at 150. All copies lie where the rank idles or computes, so the step is that without a limit.
#[test]
fn copies_beside_compute_cost_nothing() {
    let of = problem([2, 1, 3], "linear", None, [4, 20]).with_limits(vec![Some(8), None]);
    let order = pipeplan_core::schedule::find("gpipe").expect("published").build(&of).expect("it exists");
    let fitted = within_limits(&of, order);
    let timeline = simulate(&of, &fitted).expect("it runs");
    judge(&of, &fitted, timeline.makespan_ns(), "by hand");
    let starts: Vec<u64> = timeline.rows[0].iter().take(4).map(|span| span.start_ns).collect();
    assert_eq!(starts, [0, 50, 100, 300]);
    let without = simulate(&of, &Schedule::of(fitted.rows.clone())).expect("it runs").makespan_ns();
    assert_eq!(timeline.makespan_ns(), without, "{:?}", timeline.copies);
    assert_eq!(timeline.copies[0][0].copy.to_string(), "0OFFLOAD0:1-2");
    assert!(timeline.copies[0].iter().all(|span| span.end_ns - span.start_ns == 20));
}

/// A copy in every wrong place is refused by name.
#[test]
fn wrong_copies_are_refused() {
    let of = problem([1, 1, 3], "linear", None, [4, 20]);
    let op = |kind, microbatch| Op::new(0, kind, microbatch);
    let row = vec![
        op(OpKind::F, 0),
        op(OpKind::F, 1),
        op(OpKind::F, 2),
        op(OpKind::BW, 2),
        op(OpKind::BW, 1),
        op(OpKind::BW, 0),
    ];
    let copy = |way, microbatch, starts, ends| HostCopy { moved: Moved { way, stage: 0, microbatch }, starts, ends };
    let (away, back) = (CopyWay::Offload, CopyWay::Reload);
    let sound = vec![copy(away, 0, 1, 2), copy(back, 0, 4, 5)];
    let schedule = |copies: Vec<HostCopy>| Schedule { copies: vec![copies], ..Schedule::of(vec![row.clone()]) };
    assert_eq!(check_schedule(&of, &schedule(sound)), Ok(()));
    for (copies, wrong) in [
        (vec![copy(away, 0, 0, 2), copy(back, 0, 4, 5)], "starts before its F has ended"),
        (vec![copy(away, 0, 1, 2)], "never comes back"),
        (vec![copy(back, 0, 4, 5)], "has no copy to the host before it"),
        (vec![copy(away, 0, 1, 2), copy(back, 0, 1, 5)], "starts before its copy to the host has been awaited"),
        (vec![copy(away, 0, 1, 2), copy(back, 0, 5, 6)], "needs an op behind its start that waits for it"),
        (vec![copy(away, 1, 2, 3), copy(back, 1, 4, 5)], "is awaited behind its backward"),
        (vec![copy(away, 1, 2, 3), copy(away, 0, 1, 2)], "starts before the copy that stands before it in the list"),
        (vec![copy(away, 0, 1, 2), copy(away, 0, 2, 3)], "is listed twice"),
        (vec![copy(away, 7, 1, 2)], "belongs to no op of this rank"),
        (vec![copy(away, 0, 3, 2)], "needs an op behind its start that waits for it"),
    ] {
        let refused = check_schedule(&of, &schedule(copies.clone())).expect_err(wrong);
        let found =
            refused.iter().any(|found| matches!(found, Violation::Copy { wrong: found, .. } if *found == wrong));
        assert!(found, "{copies:?}: {wrong} is not among {refused:?}");
    }
    let stays = problem([1, 1, 3], "linear", None, [0, 0]);
    assert!(check_schedule(&stays, &schedule(vec![copy(away, 0, 1, 2), copy(back, 0, 4, 5)])).is_err());
}

/// What memory costs, copies give back: within half of 1F1B's memory the best order takes 6,045 without copies. Where the link
/// is quick it is near the order that would fit if copies took no time, and shorter than 1F1B, which has all its copies for
/// nothing. Where the link is slow, copies are left out.
#[test]
fn copies_close_the_gap_that_memory_opens() {
    for (ns, of_instant) in [(5, 1.03), (25, 1.12), (400, 2.0)] {
        let limited = problem([8, 1, 24], "linear", Some(16), [4, ns]);
        let found = best(&limited);
        judge(&limited, &found.schedule, found.cost_ns, "half of 1F1B's memory");
        let without = best(&limited.without_offload()).cost_ns;
        let instant = best(&limited.with_instant_copies()).cost_ns;
        let figures = format!("copies of {ns}: {}; {without} without, {instant} if instant", found.cost_ns);
        assert!(found.cost_ns <= without, "{figures}");
        assert!(found.cost_ns as f64 <= of_instant * instant as f64, "{figures}");
        // (M + P - 1)(F + B + W): 1F1B's time.
        assert!(ns > 25 || found.cost_ns <= 31 * 150, "{figures}");
    }
}
