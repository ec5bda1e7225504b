//! What holds for every schedule: it is valid, it runs, it lowers to a program that no transport hangs on,
//! and its text reads back. Shapes go below, to and beyond a multiple of the ranks.

use pipeplan_core::check::{check_program, check_schedule};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::program::Program;
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::schedule::{find, published};
use pipeplan_core::simulate::simulate;
use serde_json::json;

const TRANSPORTS: [Transport; 6] = [
    Transport::Rendezvous,
    Transport::Grouped,
    Transport::PairOrdered,
    Transport::Streams,
    Transport::Buffered { slots: 1 },
    Transport::Buffered { slots: 3 },
];

/// A problem of the schedule's own shape, with costs of no special relation.
fn problem(
    name: &str,
    ranks: usize,
    chunks: usize,
    microbatches: usize,
    costs: [u64; 3],
    hop: u64,
) -> Option<Problem> {
    let (placement, chunks) = (find(name).expect("a published schedule").shape)(chunks);
    let statement = Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement.name(),
        "stages": {
            "forward_ns": costs[0], "backward_input_ns": costs[1], "backward_weight_ns": costs[2],
            "forward_bytes": 3, "backward_input_bytes": -1, "backward_weight_bytes": -2,
        },
        "transfer_ns": hop,
    }));
    // Some shapes do not exist: two directions need even numbers.
    let statement = statement.ok()?;
    Some(statement.problem(placement).expect("the statement's own placement"))
}

fn build(name: &str, problem: &Problem) -> Option<Schedule> {
    find(name).expect("a published schedule").build(problem).ok()
}

#[test]
fn every_schedule_is_valid_and_lowers_to_a_program_that_completes() {
    let mut built = 0;
    for published in published() {
        for ranks in [1, 2, 3, 4, 6] {
            for chunks in 1..=4 {
                for microbatches in [1, 2, 4, 5, 8, 13] {
                    for (costs, hop) in [([1, 1, 1], 0), ([50, 55, 45], 5), ([0, 3, 0], 1)] {
                        let name = published.name;
                        let Some(problem) = problem(name, ranks, chunks, microbatches, costs, hop) else { continue };
                        let Some(schedule) = build(name, &problem) else { continue };
                        built += 1;
                        let shape = format!("{name} P={ranks} V={chunks} M={microbatches} {costs:?} hop {hop}");
                        if let Err(violations) = check_schedule(&problem, &schedule) {
                            panic!("{shape}: {}\n{}", violations[0], schedule.text_rows().join("\n"));
                        }
                        let overlapped = [0, 2].map(|prefetch| Lowering::Overlapped { prefetch });
                        for lowering in [Lowering::Grouped, overlapped[0], overlapped[1]] {
                            let program = lower_as(&problem, &schedule, lowering).expect("checked, so it lowers");
                            // Started without waiting, two directions may cross: one queue a pair is not for that.
                            let one_way = TRANSPORTS.into_iter().filter(|transport| {
                                lowering == Lowering::Grouped || *transport != Transport::PairOrdered
                            });
                            for transport in one_way {
                                if let Err(violations) = check_program(&problem, &program, transport) {
                                    let rows = program.text_rows().join("\n");
                                    panic!("{shape} {lowering:?}: {}\n{rows}", violations[0]);
                                }
                            }
                            assert_eq!(Program::from_text_rows(&program.text_rows()), Ok(program), "{shape}");
                        }
                        assert_eq!(Schedule::from_text_rows(&schedule.text_rows()), Ok(schedule), "{shape}");
                    }
                }
            }
        }
    }
    assert!(built > 1000, "only {built} schedules were built: the shapes above no longer fit");
}

#[test]
fn times_scale_with_costs() {
    for published in published() {
        let cost = |scale: u64| {
            let problem = problem(published.name, 4, 2, 8, [5 * scale, 6 * scale, 4 * scale], scale)?;
            let timeline = simulate(&problem, &build(published.name, &problem)?).expect("valid");
            Some((timeline.makespan_ns(), timeline.longest_span_ns()))
        };
        let (Some(once), Some(seven)) = (cost(1), cost(7)) else { continue };
        assert_eq!((7 * once.0, 7 * once.1), seven, "{}", published.name);
    }
}

/// The closed forms of the papers, free hops: (schedule, makespan or span, formula).
#[test]
fn bubbles_are_those_of_the_papers() {
    let (f, b, w) = (50, 55, 45);
    for ranks in [2u64, 4, 8] {
        for microbatches in [2 * ranks, 3 * ranks] {
            let work = microbatches * (f + b + w);
            let rows = [
                // arXiv:1811.06965 and arXiv:2104.04473 §2.2.1: (P − 1)(F + B + W).
                ("gpipe", (ranks - 1) * (f + b + w)),
                ("1f1b", (ranks - 1) * (f + b + w)),
                // arXiv:2401.10241, Table 1, F ≤ B: the span's bubbles.
                ("zb-h1", (ranks - 1) * (f + b - w)),
                ("zb-h2", (ranks - 1) * (f + b).saturating_sub(2 * w)),
            ];
            for (name, bubble) in rows {
                let problem = problem(name, ranks as usize, 1, microbatches as usize, [f, b, w], 0).expect("exists");
                let timeline = simulate(&problem, &build(name, &problem).expect("exists")).expect("valid");
                assert_eq!(timeline.longest_span_ns(), work + bubble, "{name} P={ranks} M={microbatches}");
            }
        }
    }
}

#[test]
fn in_flight_microbatches_are_those_of_the_papers() {
    let peaks = |name: &str, ranks: usize, chunks: usize, microbatches: usize| -> Vec<u64> {
        let problem = problem(name, ranks, chunks, microbatches, [1, 1, 1], 0).expect("exists");
        let timeline = simulate(&problem, &build(name, &problem).expect("exists")).expect("valid");
        // F takes 3 bytes and the backward gives back 3.
        (0..ranks).map(|rank| timeline.peak_bytes(&problem, rank).div_ceil(3)).collect()
    };
    assert_eq!(peaks("gpipe", 4, 1, 8), [8, 8, 8, 8]);
    assert_eq!(peaks("1f1b", 4, 1, 8), [4, 3, 2, 1]);
    assert_eq!(peaks("eager-1f1b", 4, 1, 8), [7, 5, 3, 1]);
    // P(V + 1) − 1 − 2r chunks on rank r.
    assert_eq!(peaks("interleaved-1f1b", 4, 2, 8), [11, 9, 7, 5]);
}

/// What the ideas say of bubble and activations beside 1F1B's, where F, B and W take as long.
#[test]
fn ideas_say_what_is_so() {
    const RANKS: usize = 8;
    const MICROBATCHES: usize = 32;
    // Of a whole rank, whatever its chunks.
    let figures = |name: &str| {
        let problem = problem(name, RANKS, 2, MICROBATCHES, [1, 1, 1], 0).expect("exists");
        let timeline = simulate(&problem, &build(name, &problem).expect("exists")).expect("valid");
        let chunks = problem.chunks() as f64;
        let idle = timeline.longest_span_ns() as f64 / chunks - 3.0 * MICROBATCHES as f64;
        let held = (0..RANKS).map(|rank| timeline.peak_bytes(&problem, rank)).max().expect("ranks");
        (idle, held as f64 / 3.0 / chunks)
    };
    let (idle, held) = figures("1f1b");
    assert_eq!(held, RANKS as f64);
    let hardly = 0.0..=0.1;
    for (name, bubble, activations) in [
        ("gpipe", 1.0..=1.0, 4.0..=4.0),
        ("eager-1f1b", 0.0..=1.0, 1.8..=2.0),
        ("interleaved-1f1b", 0.5..=0.5, 1.2..=1.5),
        ("looped-bfs", 0.5..=0.5, 4.0..=4.0),
        ("zb-h1", 0.33..=0.34, 1.0..=1.1),
        ("zb-h2", hardly.clone(), 1.8..=2.1),
        ("zb-v", hardly, 0.9..=1.0),
        ("v-half", 0.1..=0.7, 0.5..=0.65),
        ("v-min", 0.3..=1.0, 0.3..=0.5),
        ("1f1b-v", 0.7..=0.9, 0.6..=0.75),
        ("gis", 0.33..=0.34, 1.0..=1.0),
        ("gis-h", 0.4..=0.5, 0.7..=0.8),
    ] {
        let (own_idle, own_held) = figures(name);
        let said = (own_idle / idle, own_held / held);
        assert!(bubble.contains(&said.0) && activations.contains(&said.1), "{name}: {said:?}");
    }
    for published in published() {
        let idea = published.idea;
        assert!(idea.ends_with('.') && (60..220).contains(&idea.len()), "{}: {idea}", published.name);
    }
}

#[test]
fn uneven_interleaved_shapes_run() {
    // The circles that groups of P and a small rest make: P, M, V.
    for (ranks, microbatches, chunks) in [(4, 5, 3), (4, 5, 4), (4, 9, 3), (8, 10, 2), (8, 12, 2), (8, 13, 4)] {
        let problem = problem("interleaved-1f1b", ranks, chunks, microbatches, [1, 1, 1], 0).expect("exists");
        let schedule = build("interleaved-1f1b", &problem).expect("exists for any M");
        check_schedule(&problem, &schedule).expect("valid");
    }
}

/// Chunk activations held at most, over all ranks, when F takes 3 bytes and the backward gives 3 back.
fn most_chunks(name: &str, ranks: usize, chunks: usize, microbatches: usize) -> u64 {
    let problem = problem(name, ranks, chunks, microbatches, [1, 1, 1], 0).expect("exists");
    let timeline = simulate(&problem, &build(name, &problem).expect("exists")).expect("valid");
    (0..ranks).map(|rank| timeline.peak_bytes(&problem, rank).div_ceil(3)).max().expect("ranks")
}

#[test]
fn v_schedules_hold_what_the_papers_say() {
    for ranks in [2, 3, 4, 6, 8, 12, 16] {
        let microbatches = 3 * ranks;
        // arXiv:2401.10241 §6: ZB-V holds as much as 1F1B, P microbatches of two chunks.
        assert!(most_chunks("zb-v", ranks, 2, microbatches) <= 2 * ranks as u64, "zb-v P={ranks}");
        // arXiv:2405.15362: ⌊(P + 2) / 2⌋ and ⌊(P + 4) / 3⌋ microbatches. Where 3 divides P the authors shift one
        // rank; our search of the block's gaps may then hold one chunk more.
        assert!(most_chunks("v-half", ranks, 2, microbatches) <= 2 * (ranks as u64 / 2 + 1), "v-half P={ranks}");
        let third = 2 * ((ranks as u64 + 4) / 3) + u64::from(ranks % 3 == 0);
        assert!(most_chunks("v-min", ranks, 2, microbatches) <= third, "v-min P={ranks}");
        // arXiv:2405.15362, appendix I: two thirds of 1F1B's; what the block's gaps add is at most one microbatch.
        assert!(most_chunks("1f1b-v", ranks, 2, microbatches) <= 4 * ranks as u64 / 3 + 2, "1f1b-v P={ranks}");
        // github.com/deepseek-ai/DualPipe, README: P + 1 microbatches of DualPipe's 2P stages.
        assert!(most_chunks("dualpipe-v", ranks, 2, microbatches) <= 2 * ranks as u64 + 1, "dualpipe-v P={ranks}");
        assert!(most_chunks("wave", ranks, 4, microbatches) <= 4 * ranks as u64, "wave P={ranks}");
    }
}

#[test]
fn chimera_is_that_of_its_paper() {
    // arXiv:2107.06925, Table 2: with F and B alike and P microbatches, P − 2 slots of a rank stay empty.
    for ranks in [4u64, 6, 8] {
        let problem = problem("chimera", ranks as usize, 1, ranks as usize, [1, 1, 0], 0).expect("exists");
        let timeline = simulate(&problem, &build("chimera", &problem).expect("exists")).expect("valid");
        assert_eq!(timeline.makespan_ns(), 2 * ranks + ranks - 2, "P={ranks}");
        let peaks: Vec<u64> =
            (0..ranks as usize).map(|rank| timeline.peak_bytes(&problem, rank).div_ceil(3)).collect();
        let expected: Vec<u64> =
            (0..ranks).map(|rank| (ranks / 2).min(ranks - rank) + (ranks / 2).min(rank + 1)).collect();
        assert_eq!(peaks, expected, "P={ranks}");
    }
}

#[test]
fn dualpipe_v_with_even_costs_has_the_closed_form_of_its_order() {
    // The order of arXiv:2412.19437 without overlap: P − 1 idle slots a rank with F = B = W.
    for (ranks, microbatches) in [(2u64, 4u64), (4, 8), (4, 16), (8, 16)] {
        let problem = problem("dualpipe-v", ranks as usize, 2, microbatches as usize, [1, 1, 1], 0).expect("exists");
        let timeline = simulate(&problem, &build("dualpipe-v", &problem).expect("exists")).expect("valid");
        assert_eq!(timeline.makespan_ns(), 6 * microbatches + ranks - 1, "P={ranks} M={microbatches}");
    }
}

/// DualPipe's README gives the bubble as `(PP/2 − 1)(F&B + B − 3W)` with B the whole backward and PP twice the
/// ranks of its V: the forward and backward of a pair take F&B together.
#[test]
fn overlapped_pairs_have_the_bubble_of_their_readme() {
    let (f, b, w) = (20, 20, 20);
    for (ranks, microbatches) in [(2u64, 4u64), (4, 8), (4, 12), (8, 16)] {
        for overlap in [1u64, 250, 500, 800] {
            let statement = Statement::read(&json!({
                "ranks": ranks, "chunks": 2, "microbatches": microbatches, "placement": "v",
                "stages": {
                    "forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w,
                    "forward_bytes": 3, "backward_input_bytes": -1, "backward_weight_bytes": -2,
                },
                "overlap_permille": overlap,
            }))
            .expect("a sound statement");
            let problem = statement.problem(statement.placements()[0].clone()).expect("its own placement");
            let schedule = build("dualpipe-v", &problem).expect("exists");
            check_schedule(&problem, &schedule).expect("valid");
            let timeline = simulate(&problem, &schedule).expect("runs");
            let pair = f + b + w - f * overlap / 1000;
            let bubble = (ranks - 1) * (pair + b + w - 3 * w);
            let shape = format!("P={ranks} M={microbatches} overlap {overlap}");
            // The rank at the turn pairs most; the others run some of their pairs apart, so they idle less.
            let idle: Vec<u64> =
                (0..ranks as usize).map(|rank| timeline.makespan_ns() - timeline.busy_ns(rank)).collect();
            assert_eq!(idle.last(), Some(&bubble), "{shape}");
            assert_eq!(idle.iter().max(), Some(&bubble), "{shape}");
            assert!(pipeplan_core::bounds::lower_bound(&problem).value_ns <= timeline.makespan_ns(), "{shape}");
            let program = lower_as(&problem, &schedule, Lowering::Grouped).expect("lowers");
            for transport in TRANSPORTS {
                check_program(&problem, &program, transport).expect("completes");
            }
        }
    }
}

/// A problem of chunks with exchanges of experts in its times.
fn with_exchanges(ranks: usize, chunks: usize, microbatches: usize, exchanges: [u64; 2]) -> Problem {
    let statement = Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": "looped",
        "stages": {
            "forward_ns": 100, "backward_input_ns": 120, "backward_weight_ns": 80, "forward_bytes": 3,
            "backward_input_bytes": -1, "backward_weight_bytes": -2,
            "forward_exchange_ns": exchanges[0], "backward_exchange_ns": exchanges[1],
        },
    }));
    let statement = statement.expect("a sound statement");
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

/// The order of Megatron-LM where exchanges of experts overlap (`get_pp_rank_microbatches`): a forward more before the first
/// backward, then a forward with a backward in each step.
#[test]
fn combined_steps_are_those_of_megatron_lm() {
    let problem = with_exchanges(2, 2, 4, [40, 80]);
    let schedule = build("combined-1f1b", &problem).expect("exists");
    let rows = [
        "0F0 0F1 2F0 2F1 0F2 0F3 2BW0 2F2 2BW1 2F3 0BW0 0BW1 2BW2 2BW3 0BW2 0BW3",
        "1F0 1F1 3F0 3F1 3BW0 1F2 3BW1 1F3 1BW0 3F2 1BW1 3F3 3BW2 3BW3 1BW2 1BW3",
    ];
    assert_eq!(
        (schedule.text_rows(), &schedule.pairs),
        (rows.map(String::from).to_vec(), &vec![vec![5, 7, 9], vec![3, 5, 7, 9, 11]])
    );
    for (ranks, chunks, microbatches, group) in
        [(2, 2, 4, 2), (4, 2, 8, 4), (4, 3, 16, 4), (4, 2, 12, 6), (8, 2, 16, 8), (8, 4, 32, 8)]
    {
        let shape = format!("P={ranks} V={chunks} M={microbatches} groups of {group}");
        let problem = with_exchanges(ranks, chunks, microbatches, [40, 80]);
        let plain = build(&format!("interleaved-1f1b:{group}"), &problem).expect("exists");
        let schedule = build(&format!("combined-1f1b:{group}"), &problem).expect("exists");
        check_schedule(&problem, &schedule).unwrap_or_else(|violations| panic!("{shape}: {}", violations[0]));
        let (timeline, before) =
            (simulate(&problem, &schedule).expect("runs"), simulate(&problem, &plain).expect("runs"));
        for (rank, row) in schedule.rows.iter().enumerate() {
            let warm_up = 2 * (ranks - rank - 1) + (chunks - 1) * group + 1;
            let steps = chunks * microbatches - warm_up;
            assert_eq!(
                schedule.pairs[rank],
                (0..steps).map(|step| (warm_up + 2 * step) as u32).collect::<Vec<_>>(),
                "{shape}"
            );
            for at in &schedule.pairs[rank] {
                let [forward, backward] = [0, 1].map(|next| row[*at as usize + next]);
                assert_ne!(forward.microbatch(), backward.microbatch(), "{shape}");
            }
            // An exchange of 40 hides behind 120 of compute, and one of 80 behind the 60 that a forward computes.
            let work = (chunks * microbatches * 300 - steps * 100) as u64;
            assert_eq!(timeline.busy_ns(rank), work, "{shape}");
            assert_eq!(timeline.peak_bytes(&problem, rank), before.peak_bytes(&problem, rank) + 3, "{shape}");
        }
        assert!(timeline.makespan_ns() < before.makespan_ns(), "{shape}");
        let program = lower_as(&problem, &schedule, Lowering::Grouped).expect("lowers");
        check_program(&problem, &program, Transport::Rendezvous).expect("completes");
    }
    let nothing_to_hide = with_exchanges(4, 2, 8, [0, 0]);
    assert!(build("combined-1f1b", &nothing_to_hide).is_none());
    // Any shape runs.
    for (ranks, microbatches, chunks) in [(1, 1, 2), (2, 1, 2), (4, 3, 2), (4, 5, 3), (4, 9, 3), (8, 13, 4)] {
        let problem = with_exchanges(ranks, chunks, microbatches, [40, 80]);
        let schedule = build("combined-1f1b", &problem).expect("exists for any M");
        check_schedule(&problem, &schedule).unwrap_or_else(|violations| panic!("{ranks} {}", violations[0]));
    }
}

/// PipeOffload, arXiv:2503.01328, Table 1 and §3: GIS has a bubble of `(P − 1)(F + B)`, half groups add
/// `(V − 1)(P / 2)(F + B − W)`, and with groups of `g` rank `r` holds `(V − 1) g + P − r` chunks.
#[test]
fn grouped_interleaving_is_that_of_its_paper() {
    for (ranks, chunks) in [2u64, 4, 8, 12].into_iter().flat_map(|ranks| [2u64, 3, 4].map(|chunks| (ranks, chunks))) {
        for (name, group) in [("gis", ranks), ("gis-h", ranks / 2)] {
            let microbatches = 3 * ranks;
            let (f, b, w) = (50, 50, 45);
            let shape = (ranks as usize, chunks as usize, microbatches as usize);
            let problem = problem(name, shape.0, shape.1, shape.2, [f, b, w], 0).expect("exists");
            let timeline = simulate(&problem, &build(name, &problem).expect("exists")).expect("valid");
            let bubble = (ranks - 1) * (f + b) + (ranks - group) * (chunks - 1) * (f + b - w);
            let work = microbatches * chunks * (f + b + w);
            assert_eq!(timeline.makespan_ns() - work, bubble, "{name} P={ranks} V={chunks}");
            for rank in 0..ranks {
                let held = timeline.peak_bytes(&problem, rank as usize).div_ceil(3);
                assert_eq!(held, (chunks - 1) * group + ranks - rank, "{name} P={ranks} V={chunks} on rank {rank}");
            }
        }
    }
}

#[test]
fn groups_of_the_interleaved_schedules_are_tunable() {
    for name in ["interleaved-1f1b", "interleaved-zb", "gis"] {
        let problem = problem(name, 4, 3, 14, [2, 2, 2], 1).expect("exists");
        let held = |group: usize| {
            let schedule = build(&format!("{name}:{group}"), &problem).expect("exists");
            check_schedule(&problem, &schedule)
                .unwrap_or_else(|violations| panic!("{name}:{group} {}", violations[0]));
            let warm_up = schedule.rows[0].iter().take_while(|op| op.kind().text() == "F").count();
            // (V − 1) groups before the first rank's own way to the end and back.
            assert!(warm_up >= 2 * group, "{name}:{group}");
            simulate(&problem, &schedule).expect("valid").peak_bytes(&problem, 0)
        };
        assert!(held(4) <= held(7) && held(7) <= held(14), "larger groups hold more");
        for refused in [if name == "gis" { "1" } else { "3" }, "15"] {
            assert!(build(&format!("{name}:{refused}"), &problem).is_none(), "{name}:{refused}");
        }
    }
    for name in ["1f1b:4", "interleaved-1f1b:0", "interleaved-1f1b:", "interleaved-1f1b:x"] {
        assert!(find(name).is_none(), "{name}");
    }
}
