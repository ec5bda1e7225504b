//! From a schedule to what ranks execute: where each transfer starts, and where a rank waits for it.
//!
//! # Why these programs cannot hang
//! All ops and transfers stand in one total order, in which everything comes after what it needs. Each rank executes its part
//! of that order, and its transfers between two ops form one group. Then the first item that has not ended can always run:
//! whatever its ranks do before it comes earlier in the order and has ended. So the program completes where sends wait for their
//! receives, one transfer at a time or a group at once. Both ends of a channel see its transfers in the same order, and so do
//! both ends of a communicator that carries two directions.
//!
//! The two ops of a pair are one item of the order: both inputs come before, both outputs after, and no transfer stands between
//! them. [`Lowering::InPieces`] and [`Lowering::ReceiveFirst`] do not handle pairs.
//!
//! [`Lowering::Overlapped`] starts transfers without waiting. A rank then waits only for what its next op needs, and for its
//! sends where that costs nothing. Both ends of a link start its transfers in the total order. Take the ops in that order: each
//! has inputs that earlier ops made, whose ranks start the sends at once; the receives before it on the same link have been
//! started too, and so it runs.
//!
//! The other two lowerings place transfers as published systems do. They can hang, which `check` shows; they serve to compare
//! and to teach.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;

use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::copies::{CopyWay, HostCopy};
use crate::problem::op::{Op, OpKind};
use crate::program::Transport;
use crate::program::{P2pOp, Payload, Program, Step, Way};
use crate::simulate::timeline::Timeline;
use crate::simulate::{Deadlock, simulate};

/// How transfers are placed. As text: `in-pieces`, `receive-first`, `grouped`, `overlapped` and, with a prefetch,
/// `overlapped:2`.
///
/// [`Lowering::Overlapped`] is the default: a program then takes the time of its order. In groups the best orders may
/// take longer than 1F1B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// Each op receives, computes and sends, one P2P transfer at a time, as schedulers write that ignore transfers. Two
    /// ranks that first send to each other wait for ever where a send waits for its receive.
    InPieces,
    /// As [`Lowering::InPieces`], with the receive of a forward before the send of the backward that it
    /// follows (PaddlePaddle's B-r-s-F order). Cures 1F1B, not interleaved schedules.
    ReceiveFirst,
    /// All P2P transfers between two ops of a rank in one group, placed by the total order (see the module). Completes
    /// on every transport.
    Grouped,
    /// P2P transfers overlap compute, each direction of a link on its own stream. Receives of a link are started
    /// `prefetch` transfers ahead, 0 meaning just before their op; each takes a buffer of one boundary tensor.
    Overlapped {
        /// P2P transfers of a link that are received ahead, at most [`MAX_PREFETCH`].
        prefetch: usize,
    },
}

/// The largest prefetch: more than any rank has transfers to wait for at once.
pub const MAX_PREFETCH: usize = 1024;

impl Default for Lowering {
    fn default() -> Lowering {
        Lowering::Overlapped { prefetch: 0 }
    }
}

impl Lowering {
    /// The default on `transport`. Where both directions of a pair of ranks keep one order, transfers that overlap
    /// compute could wait for each other, so there they go in groups.
    pub fn usual_on(transport: Transport) -> Lowering {
        match transport {
            Transport::PairOrdered => Lowering::Grouped,
            _ => Lowering::default(),
        }
    }

    /// Whether the ops of a pair stand side by side, so that they can run together.
    pub const fn keeps_pairs(self) -> bool {
        matches!(self, Lowering::Grouped | Lowering::Overlapped { .. })
    }

    /// What [`Lowering::read`] takes, for error texts.
    pub const ACCEPTED: &'static str = "in-pieces, receive-first, grouped, overlapped, or overlapped with the \
     number of P2P transfers of a link that are received ahead, up to 1024, \
      such as overlapped:2";

    /// Reads the text form; none for anything else.
    pub fn read(text: &str) -> Option<Lowering> {
        let (name, prefetch) = text.split_once(':').map_or((text, None), |(name, prefetch)| (name, Some(prefetch)));
        match (name, prefetch) {
            ("in-pieces", None) => Some(Lowering::InPieces),
            ("receive-first", None) => Some(Lowering::ReceiveFirst),
            ("grouped", None) => Some(Lowering::Grouped),
            ("overlapped", None) => Some(Lowering::Overlapped { prefetch: 0 }),
            ("overlapped", Some(prefetch)) => {
                let prefetch = prefetch.parse().ok().filter(|prefetch| *prefetch <= MAX_PREFETCH)?;
                Some(Lowering::Overlapped { prefetch })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Lowering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lowering::InPieces => f.write_str("in-pieces"),
            Lowering::ReceiveFirst => f.write_str("receive-first"),
            Lowering::Grouped => f.write_str("grouped"),
            Lowering::Overlapped { prefetch: 0 } => f.write_str("overlapped"),
            Lowering::Overlapped { prefetch } => write!(f, "overlapped:{prefetch}"),
        }
    }
}

/// The result of one pass of the lowering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub does: &'static str,
    /// The program after it.
    pub program: Program,
}

/// The program of a schedule that `check` accepts: its ops, the transfers between ranks and the optimizer step. Takes
/// `n log n` time for `n` ops.
///
/// # Errors
/// [`Deadlock`] where the order cannot be run at all.
pub fn lower(problem: &Problem, schedule: &Schedule) -> Result<Program, Deadlock> {
    lower_as(problem, schedule, Lowering::default())
}

/// As [`lower`], with transfers placed as `lowering` says.
///
/// # Errors
/// [`Deadlock`] where the order cannot be run at all.
pub fn lower_as(problem: &Problem, schedule: &Schedule, lowering: Lowering) -> Result<Program, Deadlock> {
    let timeline = simulate(problem, schedule)?;
    let program = match lowering {
        Lowering::InPieces => in_pieces(problem, schedule),
        Lowering::ReceiveFirst => receive_first(in_pieces(problem, schedule)),
        Lowering::Grouped => grouped(problem, schedule, &timeline),
        Lowering::Overlapped { prefetch } => {
            overlapped(problem, schedule, &grouped(problem, schedule, &timeline), prefetch)
        }
    };
    Ok(with_optimizer(with_copies(schedule, program)))
}

/// The passes by which [`lower_as`] gets to its program, each with the program after it; the last one's is the result.
///
/// # Errors
/// [`Deadlock`] where the order cannot be run at all.
pub fn passes(problem: &Problem, schedule: &Schedule, lowering: Lowering) -> Result<Vec<Pass>, Deadlock> {
    let timeline = simulate(problem, schedule)?;
    let mut passes = vec![Pass {
        name: "place",
        does: "each op receives what it needs and sends what it makes, one P2P transfer at a time",
        program: in_pieces(problem, schedule),
    }];
    if lowering == Lowering::ReceiveFirst {
        passes.push(Pass {
            name: "receive first",
            does: "between a backward and the forward after it, the receive goes before the send",
            program: receive_first(in_pieces(problem, schedule)),
        });
    }
    if matches!(lowering, Lowering::Grouped | Lowering::Overlapped { .. }) {
        passes.push(Pass {
            name: "group",
            does: "all P2P transfers between two ops go in one group, in one order for all ranks",
            program: grouped(problem, schedule, &timeline),
        });
    }
    if let (Lowering::Overlapped { prefetch }, Some(grouped)) = (lowering, passes.last()) {
        passes.push(Pass {
            name: "overlap",
            does: "P2P transfers start as soon as possible; a rank waits for one only where it uses the data",
            program: overlapped(problem, schedule, &grouped.program, prefetch),
        });
    }
    if schedule.has_copies() {
        let before = passes.last().map(|pass| pass.program.clone()).unwrap_or_default();
        passes.push(Pass {
            name: "copies",
            does: "activations go to the host and back beside the ops; a rank waits for a copy where it needs the memory or the data",
            program: with_copies(schedule, before),
        });
    }
    let program = with_optimizer(passes.last().map(|pass| pass.program.clone()).unwrap_or_default());
    passes.push(Pass { name: "optimizer", does: "each rank ends with its optimizer step", program });
    Ok(passes)
}

/// Starts each copy right behind the op before it, and waits for it right before the op that needs its memory or its data. Where
/// a reload takes the memory of an offload that the same op waits for, the rank waits before it starts the reload, behind its
/// sends.
fn with_copies(schedule: &Schedule, mut program: Program) -> Program {
    for (rank, row) in program.rows.iter_mut().enumerate() {
        let copies = schedule.copies_of(rank);
        if copies.is_empty() {
            continue;
        }
        let mut weaver = CopyWeaver::new(copies);
        let mut steps = Vec::with_capacity(row.len() + 2 * copies.len());
        let mut place = 0;
        weaver.behind(place, &mut steps);
        for step in row.drain(..) {
            // What does not wait goes on beside a copy.
            if !matches!(step, Step::Start(_)) {
                steps.append(&mut weaver.later);
            }
            if matches!(step, Step::Compute(_)) {
                weaver.before(place, &mut steps);
                steps.push(step);
                place += 1;
                weaver.behind(place, &mut steps);
            } else {
                steps.push(step);
            }
        }
        *row = steps;
    }
    program
}

/// Puts the copies of a rank between its steps.
struct CopyWeaver<'s> {
    copies: &'s [HostCopy],
    /// Copies by the op that waits for them, and in the order of the list: copies end in that order.
    awaited: Vec<usize>,
    next_wait: usize,
    started: usize,
    /// Steps that stand before the next step that waits.
    later: Vec<Step>,
}

impl<'s> CopyWeaver<'s> {
    fn new(copies: &'s [HostCopy]) -> CopyWeaver<'s> {
        let mut awaited: Vec<usize> = (0..copies.len()).collect();
        awaited.sort_by_key(|at| (copies[*at].ends, *at));
        CopyWeaver { copies, awaited, next_wait: 0, started: 0, later: Vec::new() }
    }

    /// Behind the op before `place`: starts what starts here.
    fn behind(&mut self, place: u32, steps: &mut Vec<Step>) {
        while let Some(copy) = self.copies.get(self.started).filter(|copy| copy.starts <= place) {
            while copy.moved.way == CopyWay::Reload
                && let Some(at) = self.awaited.get(self.next_wait)
                && *at < self.started
                && self.copies[*at].ends <= place
            {
                self.later.push(Step::WaitCopy(self.copies[*at].moved));
                self.next_wait += 1;
            }
            // The link keeps the order of the list.
            let to = if self.later.is_empty() { &mut *steps } else { &mut self.later };
            to.push(Step::StartCopy(copy.moved));
            self.started += 1;
        }
    }

    /// Before the op at `place`: waits for what it waits for.
    fn before(&mut self, place: u32, steps: &mut Vec<Step>) {
        while let Some(at) = self.awaited.get(self.next_wait).filter(|at| self.copies[**at].ends <= place) {
            steps.push(Step::WaitCopy(self.copies[*at].moved));
            self.next_wait += 1;
        }
    }
}

fn with_optimizer(mut program: Program) -> Program {
    program.rows.iter_mut().for_each(|row| row.push(Step::Optimizer));
    program
}

/// The P2P transfers of `op`: its input and its output.
fn crossing(problem: &Problem, op: Op) -> (Option<P2pOp>, Option<P2pOp>) {
    let rank = problem.rank_of(op.stage(), op.microbatch());
    let crosses = |message: &P2pOp| problem.rank_of(message.peer_stage(), op.microbatch()) != rank;
    (input_of(problem, op).filter(crosses), output_of(problem, op).filter(crosses))
}

fn in_pieces(problem: &Problem, schedule: &Schedule) -> Program {
    let steps = |op: &Op| {
        let (input, output) = crossing(problem, *op);
        let transfer = |message: P2pOp| Step::Transfer(vec![message]);
        [input.map(transfer), Some(Step::Compute(*op)), output.map(transfer)].into_iter().flatten()
    };
    Program { rows: schedule.rows.iter().map(|row| row.iter().flat_map(steps).collect()).collect() }
}

/// Between a backward and the forward after it, puts the receive before the send.
fn receive_first(mut program: Program) -> Program {
    let carries = |step: &Step, wanted: Way, payload: Payload| matches!(step, Step::Transfer(messages) if messages[0].way == wanted && messages[0].payload == payload);
    for row in &mut program.rows {
        for index in 1..row.len() {
            let send = carries(&row[index - 1], Way::Send, Payload::Gradient);
            if send && carries(&row[index], Way::Receive, Payload::Activation) {
                row.swap(index - 1, index);
            }
        }
    }
    program
}

/// Every rank's part of the total order, transfers between two ops together.
fn grouped(problem: &Problem, schedule: &Schedule, timeline: &Timeline) -> Program {
    let mut program =
        Program { rows: schedule.rows.iter().map(|row| Vec::with_capacity(2 * row.len() + 1)).collect() };
    in_line(problem, schedule, timeline, |event| match event {
        Event::Compute { rank, index } => {
            program.rows[rank].push(Step::Compute(schedule.rows[rank][index]));
        }
        Event::Transfer(send) => {
            for message in [send, send.mirrored()] {
                let rank = problem.rank_of(usize::from(message.stage), message.microbatch as usize);
                match program.rows[rank].last_mut() {
                    Some(Step::Transfer(group)) => group.push(message),
                    _ => program.rows[rank].push(Step::Transfer(vec![message])),
                }
            }
        }
    });
    program
}

/// Starts sends where their data is made and receives ahead of their op, and waits only where data is used:
/// for a receive before its op; for the send of an activation before the backward of the same stage and
/// microbatch, which cannot begin before that activation has arrived; for the send of a gradient at the end.
fn overlapped(problem: &Problem, schedule: &Schedule, grouped: &Program, prefetch: usize) -> Program {
    let rows = grouped.rows.iter().enumerate();
    let rows = rows.map(|(rank, row)| overlapped_row(problem, row, schedule.pairs_of(rank), prefetch));
    Program { rows: rows.collect() }
}

/// The ops of a row: those of a pair together, any other by itself.
fn units<'o>(ops: &'o [Op], pairs: &[u32]) -> Vec<&'o [Op]> {
    let mut pairs = pairs.iter().map(|place| *place as usize).peekable();
    let mut units = Vec::with_capacity(ops.len());
    let mut at = 0;
    while at < ops.len() {
        let end = if pairs.next_if_eq(&at).is_some() { at + 2 } else { at + 1 }.min(ops.len());
        units.push(&ops[at..end]);
        at = end;
    }
    units
}

/// The receives of one link on one rank, in the total order.
#[derive(Default)]
struct Inbox {
    receives: Vec<P2pOp>,
    started: usize,
    used: usize,
}

/// The row of a rank with `pairs`, as of [`Schedule::pairs`].
fn overlapped_row(problem: &Problem, row: &[Step], pairs: &[u32], prefetch: usize) -> Vec<Step> {
    let peer = |message: P2pOp| problem.rank_of(message.peer_stage(), message.microbatch as usize);
    let mut inboxes: BTreeMap<usize, Inbox> = BTreeMap::new();
    let mut place: BTreeMap<P2pOp, usize> = BTreeMap::new();
    for step in row {
        let Step::Transfer(messages) = step else { continue };
        for &message in messages.iter().filter(|message| message.way == Way::Receive) {
            let inbox = inboxes.entry(peer(message)).or_default();
            inbox.receives.push(message);
            place.insert(message, inbox.receives.len());
        }
    }
    let mut steps = Vec::with_capacity(2 * row.len());
    let mut unawaited = Vec::new();
    let mut ahead = Vec::new();
    for inbox in inboxes.values_mut() {
        inbox.start_to(prefetch, &mut ahead);
    }
    let ops: Vec<Op> =
        row.iter().filter_map(|step| if let Step::Compute(op) = step { Some(*op) } else { None }).collect();
    for together in units(&ops, pairs) {
        let crossing = |op: &Op| crossing(problem, *op);
        let received = || together.iter().filter_map(|op| crossing(op).0);
        for receive in received() {
            if let Some(inbox) = inboxes.get_mut(&peer(receive)) {
                inbox.start_to(place[&receive], &mut ahead);
            }
        }
        push_messages(&mut steps, Step::Start, &mut ahead);
        let mut waits: Vec<P2pOp> = Vec::new();
        for op in together {
            waits.extend(crossing(op).0);
            if op.kind().makes_input_gradient() {
                waits.extend(crossing(&Op::new(op.stage(), OpKind::F, op.microbatch())).1);
            }
        }
        push_messages(&mut steps, Step::Wait, &mut waits);
        steps.extend(together.iter().map(|op| Step::Compute(*op)));
        for send in together.iter().filter_map(|op| crossing(op).1) {
            ahead.push(send);
            if send.payload == Payload::Gradient {
                unawaited.push(send);
            }
        }
        for receive in received() {
            if let Some(inbox) = inboxes.get_mut(&peer(receive)) {
                inbox.used += 1;
                inbox.start_to(inbox.used + prefetch, &mut ahead);
            }
        }
        push_messages(&mut steps, Step::Start, &mut ahead);
    }
    push_messages(&mut steps, Step::Wait, &mut unawaited);
    steps
}

impl Inbox {
    /// Adds to `ahead` the receives that are to be started so that `count` are.
    fn start_to(&mut self, count: usize, ahead: &mut Vec<P2pOp>) {
        let count = count.min(self.receives.len());
        if count > self.started {
            ahead.extend_from_slice(&self.receives[self.started..count]);
            self.started = count;
        }
    }
}

fn push_messages(steps: &mut Vec<Step>, step: fn(Vec<P2pOp>) -> Step, messages: &mut Vec<P2pOp>) {
    if !messages.is_empty() {
        steps.push(step(core::mem::take(messages)));
    }
}

/// One thing in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A transfer, as its sender sees it. Before computes, so that it wins where times are equal.
    Transfer(P2pOp),
    /// An op by its place.
    Compute { rank: usize, index: usize },
}

/// Hands out every op and transfer, each after what it needs, otherwise by time; the second op of a pair right behind the
/// first, which waits for what both need.
fn in_line(problem: &Problem, schedule: &Schedule, timeline: &Timeline, mut hand_out: impl FnMut(Event)) {
    let mut heap: BinaryHeap<Reverse<(Nanos, Event)>> = BinaryHeap::new();
    // By op, the place of the first of its pair, or its own.
    let heads: Vec<Vec<u32>> = timeline
        .rows
        .iter()
        .enumerate()
        .map(|(rank, row)| {
            let mut heads: Vec<u32> = (0..row.len() as u32).collect();
            for place in schedule.pairs_of(rank) {
                if let Some(head) = heads.get_mut(*place as usize + 1) {
                    *head = *place;
                }
            }
            heads
        })
        .collect();
    // The inputs that a position still lacks: the op before it in its op list, and its transfers or the ops of its
    // neighbour stages.
    let mut open: Vec<Vec<u8>> = timeline.rows.iter().map(|row| vec![0; row.len()]).collect();
    let users = users(problem, timeline);
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (index, span) in row.iter().enumerate() {
            let head = heads[rank][index] as usize;
            open[rank][head] += u8::from(index > 0 && head == index) + u8::from(input_of(problem, span.op).is_some());
        }
        if open[rank].first() == Some(&0) {
            heap.push(Reverse((row[0].start_ns, Event::Compute { rank, index: 0 })));
        }
    }
    while let Some(Reverse((_, event))) = heap.pop() {
        let mut release = |rank: usize, index: usize, heap: &mut BinaryHeap<Reverse<(Nanos, Event)>>| {
            let index = heads[rank][index] as usize;
            open[rank][index] -= 1;
            if open[rank][index] == 0 {
                heap.push(Reverse((timeline.rows[rank][index].start_ns, Event::Compute { rank, index })));
            }
        };
        match event {
            Event::Compute { rank, index } => {
                let row = &timeline.rows[rank];
                let behind = (index + 1..row.len()).take_while(|next| heads[rank][*next] as usize == index).count();
                let together = index..index + 1 + behind;
                together.clone().for_each(|index| hand_out(Event::Compute { rank, index }));
                if together.end < row.len() {
                    release(rank, together.end, &mut heap);
                }
                for span in &row[together] {
                    let Some(send) = output_of(problem, span.op) else { continue };
                    let (user_rank, user_index) = users[user_slot(problem, send.mirrored())];
                    if user_rank == rank {
                        release(user_rank, user_index as usize, &mut heap);
                    } else {
                        heap.push(Reverse((span.end_ns, Event::Transfer(send))));
                    }
                }
            }
            Event::Transfer(send) => {
                hand_out(event);
                let (rank, index) = users[user_slot(problem, send.mirrored())];
                release(rank, index as usize, &mut heap);
            }
        }
    }
}

/// The message that `op` sends to the neighbour stage, on whichever rank that is.
fn output_of(problem: &Problem, op: Op) -> Option<P2pOp> {
    let (payload, has_neighbour) = match op.kind() {
        OpKind::F => (Payload::Activation, op.stage() + 1 < problem.stage_count()),
        OpKind::B | OpKind::BW => (Payload::Gradient, op.stage() > 0),
        OpKind::W => return None,
    };
    let message = P2pOp { way: Way::Send, payload, stage: op.stage() as u16, microbatch: op.microbatch() as u32 };
    has_neighbour.then_some(message)
}

/// The message that `op` needs from the neighbour stage.
fn input_of(problem: &Problem, op: Op) -> Option<P2pOp> {
    let (payload, has_neighbour) = match op.kind() {
        OpKind::F => (Payload::Activation, op.stage() > 0),
        OpKind::B | OpKind::BW => (Payload::Gradient, op.stage() + 1 < problem.stage_count()),
        OpKind::W => return None,
    };
    let message = P2pOp { way: Way::Receive, payload, stage: op.stage() as u16, microbatch: op.microbatch() as u32 };
    has_neighbour.then_some(message)
}

/// Where the op that uses a received message stands in [`users`].
fn user_slot(problem: &Problem, receive: P2pOp) -> usize {
    let payload = usize::from(receive.payload == Payload::Gradient);
    (2 * usize::from(receive.stage) + payload) * problem.microbatches() + receive.microbatch as usize
}

/// The place of the op that uses each received message.
fn users(problem: &Problem, timeline: &Timeline) -> Vec<(usize, u32)> {
    let mut users = vec![(0, 0); 2 * problem.stage_count() * problem.microbatches()];
    for (rank, row) in timeline.rows.iter().enumerate() {
        for (index, span) in row.iter().enumerate() {
            if let Some(receive) = input_of(problem, span.op) {
                users[user_slot(problem, receive)] = (rank, index as u32);
            }
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::spec::Spec;

    #[test]
    fn names_read_back() {
        let lowerings = [Lowering::InPieces, Lowering::ReceiveFirst, Lowering::Grouped];
        let overlapped = [0, 1, 7, MAX_PREFETCH].map(|prefetch| Lowering::Overlapped { prefetch });
        for lowering in lowerings.into_iter().chain(overlapped) {
            assert_eq!(Lowering::read(&alloc::format!("{lowering}")), Some(lowering));
        }
        for text in ["", "Grouped", "grouped:1", "overlapped:", "overlapped:-1", "overlapped:1025"] {
            assert_eq!(Lowering::read(text), None, "{text}");
        }
    }

    /// 1F1B on two ranks, as the passes change it: B-r-s-F is the order of PaddlePaddle's cut (its pull request 70360).
    #[test]
    fn each_pass_is_seen_in_its_program() {
        let spec =
            Spec::read("ranks = 2\nmicrobatches = 2\nstages = { forward_ns = 1, backward_input_ns = 1 }\n").unwrap();
        let plan = planner::plan(&spec, "1f1b").unwrap();
        let rows = |lowering| -> Vec<(&str, Vec<alloc::string::String>)> {
            let passes = passes(&plan.problem, &plan.schedule, lowering).unwrap();
            let last = passes.last().map(|pass| pass.program.clone());
            assert_eq!(last, lower_as(&plan.problem, &plan.schedule, lowering).ok());
            passes.into_iter().map(|pass| (pass.name, pass.program.text_rows())).collect()
        };
        let placed = "(1RECV_F0) 1F0 1BW0 (1SEND_B0) (1RECV_F1) 1F1 1BW1 (1SEND_B1)";
        let cut = "(1RECV_F0) 1F0 1BW0 (1RECV_F1) (1SEND_B0) 1F1 1BW1 (1SEND_B1)";
        let in_pieces = rows(Lowering::ReceiveFirst);
        assert_eq!(
            in_pieces.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["place", "receive first", "optimizer"]
        );
        assert_eq!((in_pieces[0].1[1].as_str(), in_pieces[1].1[1].as_str()), (placed, cut));
        let overlapped = rows(Lowering::Overlapped { prefetch: 1 });
        assert_eq!(
            overlapped[1].1[1], "(1RECV_F0) 1F0 (1RECV_F1) 1BW0 (1SEND_B0) 1F1 1BW1 (1SEND_B1)",
            "by time, transfers first"
        );
        assert_eq!(
            overlapped[2].1[1],
            "start(1RECV_F0) wait(1RECV_F0) 1F0 start(1RECV_F1) 1BW0 start(1SEND_B0) wait(1RECV_F1) 1F1 1BW1 start(1SEND_B1) \
             wait(1SEND_B0 1SEND_B1)"
        );
        assert_eq!(overlapped[3].0, "optimizer");
    }
}
