//! From a program to times: as [`simulate`](crate::simulate::simulate) does for an order, with transfers in their places and a
//! transport that carries them.
//!
//! # Where time passes
//! - An op takes its planned time. It starts when its rank comes to it and its input has arrived.
//! - A transfer takes its hop, from the end of the op that made the data until the receiving rank may use it. It keeps no rank
//!   busy: a rank that needs the data waits for the rest of the hop.
//! - Ranks wait for each other as the program and the transport say. A receive ends when both ends have come to it. A send ends
//!   when at most `slots` transfers of its channel (sender, receiver and payload), itself included, still wait to be taken. With
//!   0 slots it ends when both ends have come to it.
//! - Copies to and from the host run one after the other on the link of their rank. A rank waits for one where its program says.
//!
//! The runner does the same with planned times (`run --backend modelled`), so each can be compared with the other. A wait costs
//! nothing where the order waits anyway, so a program takes at least the time of its order. The ops of a pair start together,
//! when both have their inputs, and end together, where no transfer stands between them. Else they run one after the other.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::op::OpKind;
use crate::program::Transport;
use crate::program::{P2pOp, Payload, Program, Step, Way};
use crate::simulate::host_link::HostLink;
use crate::simulate::timeline::{Span, Timeline};

/// When a transport lets ranks continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Whether the P2P transfers of a step start together, or one after the other as written.
    pub grouped: bool,
    /// P2P transfers of a channel that may wait to be taken while their sender continues.
    pub slots: usize,
}

impl Carrier {
    /// The promises of `transport`. Where P2P transfers must meet in the order in which both ends start them, they also
    /// start in that order, so the order costs no time.
    pub const fn of(transport: Transport) -> Carrier {
        match transport {
            Transport::Rendezvous => Carrier { grouped: false, slots: 0 },
            Transport::Buffered { slots } => Carrier { grouped: false, slots },
            Transport::Grouped | Transport::PairOrdered | Transport::Streams => Carrier { grouped: true, slots: 0 },
        }
    }
}

/// The times of `program`, which [`check_program`](crate::check::check_program) accepts on what `carrier` stands for,
/// with `pairs` of ops as of [`Schedule::pairs`](crate::problem::Schedule::pairs); none where it does not end. Without
/// pairs the ops run one after the other, as in the runner.
///
/// Takes time and memory in proportion to the steps, times the P2P transfers of the largest group.
pub fn execute(problem: &Problem, program: &Program, pairs: &[Vec<u32>], carrier: Carrier) -> Option<Timeline> {
    let ranks = program.rows.len();
    let mut world = World {
        problem,
        carrier,
        ends: vec![None; 4 * problem.stage_count() * problem.microbatches()],
        numbers: BTreeMap::new(),
        channels: Vec::new(),
        made: vec![0; 2 * problem.stage_count() * problem.microbatches()],
    };
    let mut timeline = Timeline { rows: vec![Vec::new(); ranks], copies: Vec::new() };
    let copies = program.copies();
    let mut links: Vec<HostLink> =
        (0..ranks).map(|rank| HostLink::new(copies.get(rank).map_or(&[], Vec::as_slice))).collect();
    let is_pair = |rank: usize, place: u32| pairs.get(rank).is_some_and(|row| row.binary_search(&place).is_ok());
    let mut at = vec![0usize; ranks];
    // Within a step that runs one transfer at a time: how many have ended.
    let mut within = vec![0usize; ranks];
    let mut now: Vec<Nanos> = vec![0; ranks];
    let mut look: VecDeque<usize> = (0..ranks).collect();
    while let Some(rank) = look.pop_front() {
        while let Some(step) = program.rows[rank].get(at[rank]) {
            let (messages, starts) = match step {
                Step::Compute(op) => {
                    let place = timeline.rows[rank].len() as u32;
                    let partner = match program.rows[rank].get(at[rank] + 1) {
                        Some(Step::Compute(partner)) => Some(*partner).filter(|_| is_pair(rank, place)),
                        _ => None,
                    };
                    let takes = match partner {
                        Some(partner) => problem.pair_duration(*op, partner),
                        None => problem.duration(*op),
                    };
                    let ops = || core::iter::once(*op).chain(partner);
                    let start_ns = ops().fold(now[rank], |start, op| start.max(world.arrival(op)));
                    let end_ns = start_ns.saturating_add(takes);
                    for op in ops() {
                        timeline.rows[rank].push(Span { op, start_ns, end_ns });
                        let made = world.slot(op.stage(), op.kind() != OpKind::F, op.microbatch());
                        if op.kind() != OpKind::W {
                            world.made[made] = end_ns;
                        }
                        at[rank] += 1;
                    }
                    now[rank] = end_ns;
                    continue;
                }
                Step::StartCopy(_) | Step::WaitCopy(_) => {
                    let place = timeline.rows[rank].len();
                    match step {
                        Step::WaitCopy(_) => now[rank] = now[rank].max(links[rank].end(place)),
                        _ => links[rank].start(problem, place, now[rank]),
                    }
                    at[rank] += 1;
                    continue;
                }
                Step::Optimizer => {
                    at[rank] += 1;
                    continue;
                }
                Step::Transfer(messages) | Step::Start(messages) => (messages.as_slice(), true),
                Step::Wait(messages) => (messages.as_slice(), false),
            };
            let one_by_one = !carrier.grouped && matches!(step, Step::Transfer(_)) && !messages.is_empty();
            let batch = if one_by_one { &messages[within[rank]..][..1] } else { messages };
            for &message in batch.iter().filter(|_| starts) {
                world.start(rank, message, now[rank], &mut look);
            }
            if !matches!(step, Step::Start(_)) {
                let mut last = now[rank];
                let ended = batch.iter().all(|message| {
                    let end = world.end(*message);
                    last = last.max(end.unwrap_or(0));
                    end.is_some()
                });
                if !ended {
                    break;
                }
                now[rank] = last;
            }
            within[rank] += batch.len();
            if within[rank] >= messages.len() {
                within[rank] = 0;
                at[rank] += 1;
            }
        }
    }
    if !copies.is_empty() {
        timeline.copies = links.into_iter().map(HostLink::spans).collect();
    }
    (0..ranks).all(|rank| at[rank] == program.rows[rank].len()).then_some(timeline)
}

/// Sender, receiver, and whether gradients pass.
type Channel = (usize, usize, bool);

/// The transfers that were started while a program runs.
struct World<'p> {
    problem: &'p Problem,
    carrier: Carrier,
    /// By [`World::end_of`] of a started message: the number of its channel, and its own among those of its end.
    ends: Vec<Option<(u32, u32)>>,
    /// The numbers of channels.
    numbers: BTreeMap<Channel, u32>,
    /// By number of the channel, when each message was started: by the sender, by the receiver.
    channels: Vec<[Vec<Nanos>; 2]>,
    /// When what a message carries was made, by [`World::slot`].
    made: Vec<Nanos>,
}

impl World<'_> {
    /// Of the output of F, or of the gradient that B makes.
    fn slot(&self, stage: usize, is_gradient: bool, microbatch: usize) -> usize {
        (2 * stage + usize::from(is_gradient)) * self.problem.microbatches() + microbatch
    }

    /// Each message has two ends.
    fn end_of(&self, message: P2pOp) -> usize {
        let is_gradient = message.payload == Payload::Gradient;
        let slot = self.slot(message.stage.into(), is_gradient, message.microbatch as usize);
        2 * slot + usize::from(message.way == Way::Receive)
    }

    /// When the input of `op` from another rank may be used.
    fn arrival(&self, op: crate::problem::op::Op) -> Nanos {
        let (stage, microbatch) = (op.stage(), op.microbatch());
        let (from, is_gradient) = match op.kind() {
            OpKind::F if stage > 0 => (stage - 1, false),
            OpKind::B | OpKind::BW if stage + 1 < self.problem.stage_count() => (stage + 1, true),
            _ => return 0,
        };
        let hop = self.problem.hop_of(from, stage, microbatch);
        self.made[self.slot(from, is_gradient, microbatch)].saturating_add(hop)
    }

    /// Starts `message` on `rank` unless it has been started. Its other end may go on.
    fn start(&mut self, rank: usize, message: P2pOp, now: Nanos, look: &mut VecDeque<usize>) {
        let at = self.end_of(message);
        if self.ends[at].is_some() {
            return;
        }
        let peer = self.problem.rank_of(message.peer_stage(), message.microbatch as usize);
        let (from, to) = if message.way == Way::Send { (rank, peer) } else { (peer, rank) };
        let channel = (from, to, message.payload == Payload::Gradient);
        let number = *self.numbers.entry(channel).or_insert_with(|| {
            self.channels.push([Vec::new(), Vec::new()]);
            self.channels.len() as u32 - 1
        });
        let starts = &mut self.channels[number as usize][usize::from(message.way == Way::Receive)];
        self.ends[at] = Some((number, starts.len() as u32));
        starts.push(now);
        look.push_back(peer);
    }

    /// When `message` ends, where that is known.
    fn end(&self, message: P2pOp) -> Option<Nanos> {
        let (channel, number) = self.ends[self.end_of(message)]?;
        let ([sent, received], number) = (&self.channels[channel as usize], number as usize);
        // Both ends list a channel's messages in the same order.
        let met = |number: usize| Some((*sent.get(number)?).max(*received.get(number)?));
        match message.way {
            Way::Receive => met(number),
            Way::Send => {
                let own = *sent.get(number)?;
                number.checked_sub(self.carrier.slots).map_or(Some(own), |taken| Some(own.max(met(taken)?)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Schedule;
    use crate::problem::Statement;
    use crate::program::lower::{Lowering, lower_as};
    use crate::schedule::find;
    use crate::simulate::simulate;
    use serde_json::json;

    fn problem(ranks: usize, chunks: usize, placement: &str, hop: u64) -> Problem {
        let statement = Statement::read(&json!({
            "ranks": ranks, "chunks": chunks, "microbatches": 2 * ranks, "placement": placement, "transfer_ns": hop,
            "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45 },
        }))
        .expect("a sound statement");
        statement.problem(statement.placements()[0].clone()).expect("its own placement")
    }

    const SHAPES: [(&str, usize, &str); 6] = [
        ("1f1b", 1, "linear"),
        ("gpipe", 1, "linear"),
        ("zb-h1", 1, "linear"),
        ("interleaved-1f1b", 2, "looped"),
        ("zb-v", 2, "v"),
        ("v-half", 2, "v"),
    ];
    const BOUNDLESS: Carrier = Carrier { grouped: true, slots: usize::MAX };

    /// Ranks wait for data alone where sends are taken at once and receives stand right before their op, and where
    /// transfers overlap compute. Elsewhere waits can only be added.
    #[test]
    fn a_program_takes_the_time_of_its_order_and_its_waits() {
        let mut waits = 0;
        for (name, chunks, placement) in SHAPES {
            for (ranks, hop) in [(2, 0), (4, 5), (4, 70)] {
                let problem = problem(ranks, chunks, placement, hop);
                let schedule = find(name).expect("published").build(&problem).expect("exists");
                let order = simulate(&problem, &schedule).expect("it runs");
                let run = |lowering, carrier| {
                    let program = lower_as(&problem, &schedule, lowering).expect("lowers");
                    execute(&problem, &program, &schedule.pairs, carrier)
                };
                assert_eq!(run(Lowering::InPieces, BOUNDLESS), Some(order.clone()), "{name} on {ranks}");
                for prefetch in [0, 2] {
                    let overlapped = Lowering::Overlapped { prefetch };
                    for carrier in [BOUNDLESS, Carrier::of(Transport::Streams), Carrier::of(Transport::Rendezvous)] {
                        assert_eq!(run(overlapped, carrier), Some(order.clone()), "{name} on {ranks}, {carrier:?}");
                    }
                }
                let mut before = Nanos::MAX;
                for slots in [0, 1, 2, 4, usize::MAX] {
                    let carrier = Carrier { grouped: true, slots };
                    let spans = run(Lowering::Grouped, carrier).expect("grouped programs end on every transport");
                    for (row, order) in spans.rows.iter().zip(&order.rows) {
                        let earlier = row.iter().zip(order).find(|(span, order)| span.start_ns < order.start_ns);
                        assert_eq!(earlier, None, "{name} on {ranks}, {slots} slots");
                    }
                    let makespan = spans.makespan_ns();
                    assert!(makespan <= before, "{name} on {ranks}: more slots, no later");
                    before = makespan;
                    waits += usize::from(makespan > order.makespan_ns());
                }
            }
        }
        assert!(waits > 0, "somewhere a rank waits for more than data");
    }

    /// Pairs run together where their transfers allow. Where transfers overlap compute, pairs cost what their order
    /// does; in groups they cost no more than one after the other. Where each op has its transfers right around it, the
    /// ops follow each other.
    #[test]
    fn pairs_run_together() {
        for (name, chunks, placement) in [("dualpipe", 1, "two-way"), ("dualpipe-v", 2, "v")] {
            for (exchange, hop) in [(0, 0), (20, 0), (20, 7), (55, 7)] {
                let statement = Statement::read(&json!({
                    "ranks": 4, "chunks": chunks, "microbatches": 16, "placement": placement, "transfer_ns": hop,
                    "stages": {
                        "forward_ns": 60, "backward_input_ns": 70, "backward_weight_ns": 40,
                        "forward_exchange_ns": exchange, "backward_exchange_ns": exchange,
                    },
                }))
                .expect("a sound statement");
                let problem = statement.problem(statement.placements()[0].clone()).expect("its own placement");
                let schedule = find(name).expect("published").build(&problem).expect("exists");
                assert_eq!(schedule.pairs.iter().any(|pairs| !pairs.is_empty()), exchange > 0);
                let order = simulate(&problem, &schedule).expect("it runs");
                let in_turn = Schedule::of(schedule.rows.clone());
                let apart = simulate(&problem, &in_turn).expect("it runs");
                assert_eq!(order.makespan_ns() < apart.makespan_ns(), exchange > 0, "{name}");
                let run = |lowering: Lowering, pairs: &[Vec<u32>], carrier| {
                    let program = lower_as(&problem, &schedule, lowering).expect("lowers");
                    if lowering.keeps_pairs() {
                        assert_eq!(crate::check::check_program(&problem, &program, Transport::Grouped), Ok(()));
                    }
                    execute(&problem, &program, pairs, carrier).expect("it ends")
                };
                for prefetch in [0, 1] {
                    let beside =
                        run(Lowering::Overlapped { prefetch }, &schedule.pairs, Carrier::of(Transport::Streams));
                    assert_eq!(beside, order, "{name}, exchanges of {exchange}, hops of {hop}");
                }
                let grouped = |pairs| run(Lowering::Grouped, pairs, Carrier::of(Transport::Grouped)).makespan_ns();
                let (together, one_by_one) = (grouped(&schedule.pairs), grouped(&[]));
                assert!(order.makespan_ns() <= together && together <= one_by_one, "{name}: {together} {one_by_one}");
                let pieces = run(Lowering::InPieces, &schedule.pairs, BOUNDLESS).makespan_ns();
                assert!(pieces >= apart.makespan_ns(), "{name}: {pieces}");
            }
        }
    }

    /// Two ranks, worked out by hand. Rank 1 takes twice as long, and receives one activation at a time: the second when it
    /// has ended the first, at 150, and so on.
    #[test]
    fn a_sender_waits_for_its_receiver() {
        let stage = |forward: u64| json!({ "forward_ns": forward, "backward_input_ns": 1, "backward_weight_ns": 1 });
        let statement = Statement::read(&json!({
            "ranks": 2, "chunks": 1, "microbatches": 4, "placement": "linear", "stages": [stage(50), stage(100)],
        }))
        .expect("a sound statement");
        let problem = statement.problem(statement.placements()[0].clone()).expect("its own placement");
        let schedule = find("gpipe").expect("published").build(&problem).expect("exists");
        let program = lower_as(&problem, &schedule, Lowering::InPieces).expect("lowers");
        let starts = |slots: usize, rank: usize| -> Vec<Nanos> {
            let timeline = execute(&problem, &program, &[], Carrier { grouped: false, slots }).expect("it ends");
            timeline.rows[rank].iter().take(4).map(|span| span.start_ns).collect()
        };
        assert_eq!(starts(0, 0), [0, 50, 150, 250]);
        assert_eq!(starts(1, 0), [0, 50, 100, 150]);
        for slots in [0, 1] {
            assert_eq!(starts(slots, 1), [50, 150, 250, 350], "rank 1 is never short of work");
        }
    }

    /// What hangs has no times.
    #[test]
    fn a_program_that_hangs_does_not_end() {
        let problem = problem(2, 1, "linear", 0);
        let schedule = find("1f1b").expect("published").build(&problem).expect("exists");
        let program = lower_as(&problem, &schedule, Lowering::InPieces).expect("lowers");
        assert_eq!(execute(&problem, &program, &[], Carrier::of(Transport::Rendezvous)), None);
        assert!(execute(&problem, &program, &[], Carrier::of(Transport::Buffered { slots: 1 })).is_some());
    }
}
