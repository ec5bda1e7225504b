//! The checker with wrong input: each test breaks one thing of a valid schedule or program, and expects the checker to name
//! it.

use pipeplan_core::check::{Stuck, Violation, check_program, check_schedule};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::{Lowering, lower, lower_as};
use pipeplan_core::program::{P2pOp, Program, Step};
use pipeplan_core::schedule::find;
use proptest::prelude::*;
use serde_json::{Value, json};

fn statement(ranks: usize, chunks: usize, microbatches: usize, limit: Value) -> Statement {
    let placement = if chunks == 1 { "linear" } else { "looped" };
    Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
        "stages": {
            "forward_ns": 2, "backward_input_ns": 2, "backward_weight_ns": 2,
            "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1,
        },
        "limit_bytes": limit,
    }))
    .expect("a sound statement")
}

fn problem(ranks: usize, chunks: usize, microbatches: usize, limit: Value) -> Problem {
    let statement = statement(ranks, chunks, microbatches, limit);
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

fn good(name: &str, problem: &Problem) -> Schedule {
    find(name).expect("published").build(problem).expect("exists")
}

fn first_violation(problem: &Problem, schedule: &Schedule) -> Violation {
    check_schedule(problem, schedule).expect_err("spoiled").remove(0)
}

fn op(text: &str) -> Op {
    text.parse().expect("an op")
}

fn program(rows: &[&str]) -> Program {
    Program::from_text_rows(rows).expect("a program")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_dropped_op_is_named(pick in 0usize..1000) {
        let problem = problem(3, 1, 5, json!(null));
        let mut schedule = good("zb-h1", &problem);
        let rank = pick % 3;
        let index = pick / 3 % schedule.rows[rank].len();
        let dropped = schedule.rows[rank].remove(index);
        prop_assert_eq!(first_violation(&problem, &schedule), Violation::Missing { op: dropped });
    }

    #[test]
    fn a_doubled_op_is_named(pick in 0usize..1000) {
        let problem = problem(3, 1, 5, json!(null));
        let mut schedule = good("1f1b", &problem);
        let rank = pick % 3;
        let index = pick / 3 % schedule.rows[rank].len();
        let doubled = schedule.rows[rank][index];
        schedule.rows[rank].push(doubled);
        let last = schedule.rows[rank].len() - 1;
        prop_assert_eq!(first_violation(&problem, &schedule), Violation::Twice { rank, index: last, op: doubled });
    }

    /// Any shuffle of a rank's row is either accepted, and then runs, or refused with a circle.
    #[test]
    fn checker_and_simulator_agree_on_shuffled_rows(
        rank in 0usize..3,
        from in 0usize..12,
        to in 0usize..12,
    ) {
        let problem = problem(3, 1, 4, json!(null));
        let mut schedule = good("zb-h2", &problem);
        let moved = schedule.rows[rank].remove(from);
        schedule.rows[rank].insert(to, moved);
        let verdict = check_schedule(&problem, &schedule);
        let runs = pipeplan_core::simulate::simulate(&problem, &schedule).is_ok();
        prop_assert_eq!(verdict.is_ok(), runs);
        if let Err(violations) = verdict {
            prop_assert!(matches!(violations[0], Violation::Circle { .. }), "{}", violations[0]);
        }
    }
}

#[test]
fn a_backward_before_its_forward_is_a_circle_of_one() {
    let problem = problem(1, 1, 1, json!(null));
    let schedule = Schedule::from_text_rows(&["0BW0 0F0"]).expect("text");
    let violation = first_violation(&problem, &schedule);
    assert_eq!(
        violation.to_string(),
        "ops wait for each other in a circle:\n  rank 0, op 0: 0BW0 waits for 0F0, which comes after 0BW0"
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_shown() {
    let problem = problem(2, 1, 2, json!(null));
    // Rank 0 wants a gradient that rank 1 makes after a forward that rank 0 has behind it.
    let schedule = Schedule::from_text_rows(&["0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW0 1BW1"]).expect("text");
    assert_eq!(
        first_violation(&problem, &schedule).to_string(),
        "ops wait for each other in a circle:\n  \
         rank 0, op 1: 0BW0 waits for 1B0, which comes after 1F1\n  \
         rank 1, op 1: 1F1 waits for 0F1, which comes after 0BW0"
    );
}

#[test]
fn foreign_and_misplaced_ops_are_named() {
    let problem = problem(2, 1, 1, json!(null));
    let rows = |first: &str, second: &str| Schedule::from_text_rows(&[first, second]).expect("text");
    assert_eq!(
        first_violation(&problem, &rows("0F0 0BW0 0F7", "1F0 1BW0")),
        Violation::Foreign { rank: 0, index: 2, op: op("0F7") }
    );
    assert_eq!(
        first_violation(&problem, &rows("0F0 1BW0", "1F0 0BW0")),
        Violation::WrongRank { rank: 0, index: 1, op: op("1BW0"), holder: 1 }
    );
    assert_eq!(
        first_violation(&problem, &Schedule::from_text_rows(&["0F0 0BW0"]).expect("text")),
        Violation::Rows { found: 1, ranks: 2 }
    );
}

#[test]
fn the_op_that_breaks_the_limit_is_named() {
    // 1F1B's first of three ranks holds three microbatches of 2 bytes.
    let schedule = good("1f1b", &problem(3, 1, 4, json!(null)));
    assert!(check_schedule(&problem(3, 1, 4, json!(6)), &schedule).is_ok());
    assert_eq!(
        first_violation(&problem(3, 1, 4, json!(5)), &schedule),
        Violation::OverLimit { rank: 0, index: 2, op: op("0F2"), held: 6, limit: 5 }
    );
}

#[test]
fn spoiled_messages_are_named() {
    let problem = problem(2, 1, 2, json!(null));
    let sound = lower_as(&problem, &good("gpipe", &problem), Lowering::Grouped).expect("lowers");
    check_program(&problem, &sound, Transport::Rendezvous).expect("sound");
    let spoiled = |spoil: &dyn Fn(&mut Vec<Vec<Step>>)| {
        let mut program = sound.clone();
        spoil(&mut program.rows);
        check_program(&problem, &program, Transport::Rendezvous).expect_err("spoiled").remove(0)
    };
    let is_transfer = |step: &Step| matches!(step, Step::Transfer(_));
    let message = |text: &str| text.parse::<P2pOp>().expect("a message");
    let drop_first = |rows: &mut Vec<Vec<Step>>| {
        let index = rows[0].iter().position(is_transfer).expect("a transfer");
        rows[0].remove(index);
    };
    assert_eq!(spoiled(&drop_first), Violation::MessageMissing { rank: 0, message: message("0SEND_F0") });
    let early = |rows: &mut Vec<Vec<Step>>| {
        let index = rows[0].iter().position(is_transfer).expect("a transfer");
        let step = rows[0].remove(index);
        rows[0].insert(0, step);
    };
    assert_eq!(
        spoiled(&early),
        Violation::MessageMisplaced { rank: 0, index: 0, message: message("0SEND_F0"), op: op("0F0") }
    );
    let twice = |rows: &mut Vec<Vec<Step>>| {
        let index = rows[0].iter().position(is_transfer).expect("a transfer");
        let step = rows[0][index].clone();
        rows[0].insert(index + 1, step);
    };
    assert!(matches!(spoiled(&twice), Violation::MessageTwice { rank: 0, .. }));
    let no_end = |rows: &mut Vec<Vec<Step>>| {
        rows[1].pop();
    };
    assert_eq!(spoiled(&no_end), Violation::Optimizer { rank: 1 });
}

#[test]
fn a_channel_read_in_another_order_is_named() {
    let problem = problem(2, 1, 2, json!(null));
    let program = program(&[
        "0F0 0F1 (0SEND_F0 0SEND_F1) (0RECV_B0) 0BW0 (0RECV_B1) 0BW1 OPTIMIZER",
        "(1RECV_F1 1RECV_F0) 1F0 1BW0 (1SEND_B0) 1F1 1BW1 (1SEND_B1) OPTIMIZER",
    ]);
    let violations = check_program(&problem, &program, Transport::Grouped).expect_err("spoiled");
    assert!(matches!(violations[0], Violation::ChannelOrder { from: 0, to: 1, place: 0, .. }), "{}", violations[0]);
}

fn stuck(problem: &Problem, program: &Program, transport: Transport) -> Option<Stuck> {
    match check_program(problem, program, transport) {
        Ok(()) => None,
        Err(mut violations) => match violations.remove(0) {
            Violation::Stuck(stuck) => Some(stuck),
            other => panic!("{other}"),
        },
    }
}

/// Two ranks in steady 1F1B each begin to send to the other before either receives: the hang that
/// frameworks' users report. One slot a channel cures it, and so does our lowering.
#[test]
fn careless_1f1b_hangs_under_rendezvous() {
    for (ranks, microbatches) in [(2, 4), (4, 8), (8, 16)] {
        let problem = problem(ranks, 1, microbatches, json!(null));
        let schedule = good("1f1b", &problem);
        let careless = lower_as(&problem, &schedule, Lowering::InPieces).expect("lowers");
        let verdict = stuck(&problem, &careless, Transport::Rendezvous).expect("hangs");
        assert_eq!(verdict.circle.len(), 2, "{verdict}");
        assert_eq!(stuck(&problem, &careless, Transport::Buffered { slots: 1 }), None);
        let lowered = lower(&problem, &schedule).expect("lowers");
        assert_eq!(stuck(&problem, &lowered, Transport::Rendezvous), None);
        // The receive of the next forward before the send of the last backward breaks the circle too.
        let receive_first = lower_as(&problem, &schedule, Lowering::ReceiveFirst).expect("lowers");
        assert_eq!(stuck(&problem, &receive_first, Transport::Rendezvous), None);
    }
}

/// In the warm-up of interleaved 1F1B every rank holds a forward to send, and the ring closes.
#[test]
fn careless_interleaving_hangs_in_a_ring() {
    let problem = problem(4, 2, 8, json!(null));
    let schedule = good("interleaved-1f1b", &problem);
    let careless = lower_as(&problem, &schedule, Lowering::InPieces).expect("lowers");
    let verdict = stuck(&problem, &careless, Transport::Rendezvous).expect("hangs");
    assert_eq!(verdict.circle.len(), 4, "{verdict}");
    // Where each rank stands: the warm-up's forwards, all to be sent, none to be received.
    let pending: Vec<String> = verdict.waits.iter().map(|wait| wait.message.to_string()).collect();
    assert_eq!(pending, ["0SEND_F3", "1SEND_F2", "2SEND_F1", "3SEND_F0"]);
    let receive_first = lower_as(&problem, &schedule, Lowering::ReceiveFirst).expect("lowers");
    assert!(stuck(&problem, &receive_first, Transport::Rendezvous).is_some(), "the warm-up is the same");
    assert_eq!(stuck(&problem, &careless, Transport::Buffered { slots: 1 }), None);
    assert_eq!(stuck(&problem, &receive_first, Transport::Buffered { slots: 1 }), None);
}

/// One group between two ops cures every shape, where neither order of single messages does.
#[test]
fn grouping_cures_interleaving() {
    for ranks in 2..=8 {
        for chunks in 2..=4 {
            let problem = problem(ranks, chunks, 2 * ranks, json!(null));
            let schedule = good("interleaved-1f1b", &problem);
            for careless in [Lowering::InPieces, Lowering::ReceiveFirst] {
                let program = lower_as(&problem, &schedule, careless).expect("lowers");
                let verdict = stuck(&problem, &program, Transport::Rendezvous);
                assert!(verdict.is_some_and(|stuck| !stuck.circle.is_empty()), "{ranks} ranks, {chunks} chunks");
                // Both directions of a pair on one communicator meet in another order at either end.
                assert!(
                    stuck(&problem, &program, Transport::PairOrdered).is_some(),
                    "{ranks} ranks, {chunks} chunks"
                );
            }
            let lowered = lower_as(&problem, &schedule, Lowering::Grouped).expect("lowers");
            for transport in [Transport::Rendezvous, Transport::Grouped, Transport::PairOrdered, Transport::Streams] {
                assert_eq!(stuck(&problem, &lowered, transport), None, "{ranks} ranks, {chunks} chunks, {transport}");
            }
            // Beside compute they end as well where the two directions of a pair do not wait for each other.
            let beside = lower(&problem, &schedule).expect("lowers");
            for transport in [Transport::Rendezvous, Transport::Grouped, Transport::Streams] {
                assert_eq!(stuck(&problem, &beside, transport), None, "{ranks} ranks, {chunks} chunks, {transport}");
            }
        }
    }
}

/// PaddlePaddle's interleaved order: microbatches in groups of the ranks, the last group shorter where they do not divide;
/// the warm-up of Megatron-LM's even shapes.
fn paddles_order(ranks: usize, chunks: usize, microbatches: usize) -> Schedule {
    let total = microbatches * chunks;
    let (round, even) = (ranks * chunks, microbatches / ranks * ranks * chunks);
    let chunk_of = |step: usize| match step < even {
        true => step % round / ranks,
        false => (step - even) / (microbatches % ranks),
    };
    let row = |rank: usize| {
        let mut counts = [vec![0; chunks], vec![0; chunks]];
        let mut op = |step: usize, kind: OpKind| {
            let chunk = if kind == OpKind::F { chunk_of(step) } else { chunks - 1 - chunk_of(step) };
            let count = &mut counts[usize::from(kind == OpKind::BW)][chunk];
            *count += 1;
            Op::new(chunk * ranks + rank, kind, *count - 1)
        };
        let warm_up = total.min(2 * (ranks - rank - 1) + (chunks - 1) * ranks);
        let mut row: Vec<Op> = (0..warm_up).map(|step| op(step, OpKind::F)).collect();
        for step in warm_up..total {
            row.push(op(step, OpKind::F));
            row.push(op(step - warm_up, OpKind::BW));
        }
        row.extend((total - warm_up..total).map(|step| op(step, OpKind::BW)));
        row
    };
    Schedule::of((0..ranks).map(row).collect())
}

/// Where microbatches do not divide by the ranks, that order waits in a circle on any transport for some shapes; ours for
/// none.
#[test]
fn uneven_interleaving_can_be_a_circle() {
    let circle = |ranks, chunks, microbatches| {
        let problem = problem(ranks, chunks, microbatches, json!(null));
        assert!(check_schedule(&problem, &good("interleaved-1f1b", &problem)).is_ok());
        match check_schedule(&problem, &paddles_order(ranks, chunks, microbatches)) {
            Ok(()) => false,
            Err(violations) => {
                assert!(matches!(violations[0], Violation::Circle { .. }), "{}", violations[0]);
                true
            }
        }
    };
    for ranks in [2, 4, 8] {
        for (microbatches, chunks) in (ranks..2 * ranks).flat_map(|count| (2..=4).map(move |chunks| (count, chunks)))
        {
            // As another simulation of the same rule found them, by what is left of the microbatches.
            let expected = match (ranks, microbatches % ranks) {
                (4 | 8, 1) => chunks >= 3,
                (8, 2..=5) => true,
                _ => false,
            };
            let what = format!("{microbatches} microbatches on {ranks} ranks of {chunks} chunks");
            assert_eq!(circle(ranks, chunks, microbatches), expected, "{what}");
        }
    }
}

#[test]
fn pairs_that_are_none_are_named() {
    let problem = problem(1, 1, 2, json!(null));
    let pairs = |places: &[u32]| Schedule {
        pairs: vec![places.to_vec()],
        ..Schedule::from_text_rows(&["0F0 0F1 0BW0 0BW1"]).expect("text")
    };
    assert!(check_schedule(&problem, &pairs(&[1])).is_ok());
    for (places, index) in [(&[0][..], 0), (&[2], 2), (&[3], 3), (&[9], 9), (&[1, 1], 1), (&[u32::MAX], 4294967295)] {
        assert_eq!(first_violation(&problem, &pairs(places)), Violation::Pair { rank: 0, index });
    }
    // A pair needs the inputs of both ops before either runs.
    let schedule =
        Schedule { pairs: vec![vec![0]], ..Schedule::from_text_rows(&["0F0 0BW0 0F1 0BW1"]).expect("text") };
    assert!(matches!(first_violation(&problem, &schedule), Violation::Circle { .. }));
    assert!(pipeplan_core::simulate::simulate(&problem, &schedule).is_err());
}
