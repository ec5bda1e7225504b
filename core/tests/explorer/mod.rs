//! Every interleaving of a small program, explored one by one, and what a bounded draw makes of small programs.
//!
//! The explorer knows only what a transport may do next; it tries every step, in every order. A program can hang if some reachable
//! state has no next step and is not the end.

use std::collections::HashSet;

use pipeplan_core::check::{Violation, check_program};
use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::program::{P2pOp, Program, Step, Way};
use pipeplan_core::schedule::find;
use serde_json::json;

/// Where every rank stands, and which messages have ended, by their number in [`World::messages`].
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: Vec<usize>,
    within: Vec<usize>,
    ended: Vec<bool>,
}

/// A program on a transport.
pub struct World<'p> {
    program: &'p Program,
    transport: Transport,
    /// Every message with the rank that it stands on, in the order in which its rank starts it.
    messages: Vec<(usize, P2pOp)>,
    /// By message: the number of its other end, and its step and place within it.
    other: Vec<usize>,
    place: Vec<(usize, usize)>,
}

impl<'p> World<'p> {
    /// Of `program` on `transport`.
    pub fn new(program: &'p Program, transport: Transport) -> World<'p> {
        let mut messages = Vec::new();
        let mut place = Vec::new();
        for (rank, row) in program.rows.iter().enumerate() {
            for (index, step) in row.iter().enumerate() {
                if let Step::Transfer(group) | Step::Start(group) = step {
                    for (within, message) in group.iter().enumerate() {
                        messages.push((rank, *message));
                        place.push((index, within));
                    }
                }
            }
        }
        let find = |wanted: P2pOp| messages.iter().position(|(_, message)| *message == wanted).expect("both ends");
        let other = messages.iter().map(|(_, message)| find(message.mirrored())).collect();
        World { program, transport, messages, other, place }
    }

    fn one_by_one(&self, step: &Step) -> bool {
        matches!(step, Step::Transfer(_))
            && matches!(self.transport, Transport::Rendezvous | Transport::Buffered { .. })
    }

    fn has_started(&self, state: &State, message: usize) -> bool {
        let (rank, _) = self.messages[message];
        let (step, within) = self.place[message];
        let here = state.at[rank] == step
            && (!self.one_by_one(&self.program.rows[rank][step]) || within <= state.within[rank]);
        state.at[rank] > step || here && matches!(self.program.rows[rank][step], Step::Transfer(_))
    }

    /// Whether every message that its own rank starts before `message`, and that `shares` a queue, has ended.
    fn is_first(&self, state: &State, message: usize, shares: impl Fn(usize) -> bool) -> bool {
        let (rank, _) = self.messages[message];
        (0..message).all(|earlier| self.messages[earlier].0 != rank || !shares(earlier) || state.ended[earlier])
    }

    /// Everything that can happen next.
    fn next(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        for (rank, row) in self.program.rows.iter().enumerate() {
            let Some(step) = row.get(state.at[rank]) else { continue };
            let number = |message: &P2pOp| {
                self.messages.iter().position(|candidate| *candidate == (rank, *message)).expect("started somewhere")
            };
            let mut after = state.clone();
            let goes_on = match step {
                Step::Compute(_) | Step::Optimizer | Step::Start(_) => true,
                Step::StartCopy(_) | Step::WaitCopy(_) => true,
                Step::Transfer(group) if self.one_by_one(step) => {
                    if !state.ended[number(&group[state.within[rank]])] {
                        continue;
                    }
                    after.within[rank] += 1;
                    after.within[rank] == group.len()
                }
                Step::Transfer(group) | Step::Wait(group) => {
                    if !group.iter().all(|message| state.ended[number(message)]) {
                        continue;
                    }
                    true
                }
            };
            if goes_on {
                after.at[rank] += 1;
                after.within[rank] = 0;
            }
            next.push(after);
        }
        for (send, (from, message)) in self.messages.iter().enumerate() {
            if message.way != Way::Send || !self.has_started(state, send) {
                continue;
            }
            let receive = self.other[send];
            let to = self.messages[receive].0;
            let both = self.has_started(state, receive);
            let link = |other: usize| {
                let (rank, message) = self.messages[other];
                let peer = self.messages[self.other[other]].0;
                let ends = if message.way == Way::Send { (rank, peer) } else { (peer, rank) };
                (ends, message.payload)
            };
            let mut end = |ended: &[usize]| {
                let mut after = state.clone();
                ended.iter().for_each(|message| after.ended[*message] = true);
                next.push(after);
            };
            match self.transport {
                Transport::Rendezvous | Transport::Grouped => {
                    if both && !state.ended[send] {
                        end(&[send, receive]);
                    }
                }
                Transport::PairOrdered => {
                    let pair = |other: usize| {
                        let ((a, b), _) = link(other);
                        (a.min(b), a.max(b)) == ((*from).min(to), (*from).max(to))
                    };
                    let first = self.is_first(state, send, pair) && self.is_first(state, receive, pair);
                    if both && first && !state.ended[send] {
                        end(&[send, receive]);
                    }
                }
                Transport::Streams => {
                    let same = |other: usize| link(other).0 == (*from, to);
                    let first = self.is_first(state, send, same) && self.is_first(state, receive, same);
                    if both && first && !state.ended[send] {
                        end(&[send, receive]);
                    }
                }
                Transport::Buffered { slots } => {
                    let same = |other: usize| link(other) == ((*from, to), message.payload);
                    let taken = (0..self.messages.len())
                        .filter(|other| self.messages[*other].1.way == Way::Send && same(*other))
                        .filter(|other| state.ended[*other] && !state.ended[self.other[*other]])
                        .count();
                    let in_turn =
                        self.is_first(state, send, |other| self.messages[other].1.way == Way::Send && same(other));
                    if !state.ended[send] && in_turn && (taken < slots || both) {
                        end(&[send]);
                    }
                    if state.ended[send] && both && !state.ended[receive] {
                        end(&[receive]);
                    }
                }
            }
        }
        next
    }

    /// Whether some order of events ends in a state that is not the end.
    pub fn can_hang(&self) -> bool {
        let ranks = self.program.rows.len();
        let start = State { at: vec![0; ranks], within: vec![0; ranks], ended: vec![false; self.messages.len()] };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            let next = self.next(&state);
            let at_end = (0..ranks).all(|rank| state.at[rank] == self.program.rows[rank].len());
            if next.is_empty() && !at_end {
                return true;
            }
            open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
            assert!(seen.len() < 2_000_000, "too many states: choose smaller programs");
        }
        false
    }
}

/// A problem with the same costs for all stages.
pub fn problem(ranks: usize, chunks: usize, microbatches: usize, placement: &str) -> Problem {
    let statement = Statement::read(&json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
        "stages": { "forward_ns": 2, "backward_input_ns": 3, "backward_weight_ns": 1 },
    }))
    .expect("a sound statement");
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

/// Every kind of transport.
pub const TRANSPORTS: [Transport; 6] = [
    Transport::Rendezvous,
    Transport::Grouped,
    Transport::PairOrdered,
    Transport::Streams,
    Transport::Buffered { slots: 1 },
    Transport::Buffered { slots: 2 },
];

/// Schedules that are small enough to explore: name, placement, ranks, chunks, microbatches.
pub const SHAPES: [(&str, &str, usize, usize, usize); 5] = [
    ("1f1b", "linear", 2, 1, 3),
    ("gpipe", "linear", 3, 1, 2),
    ("zb-h1", "linear", 3, 1, 2),
    ("interleaved-1f1b", "looped", 2, 2, 2),
    ("zb-v", "v", 2, 2, 2),
];

/// What a draw asks for: a shape, a lowering, a transport, and steps of ranks that are moved on.
#[derive(Clone, Debug)]
pub struct Draw {
    pub shape: usize,
    pub lowering: usize,
    pub transport: usize,
    /// Rank, step, and how far it is moved.
    pub moves: Vec<(usize, usize, usize)>,
}

/// Steps of a sound program are moved about. Where the result still is a program, checker and explorer say the same of it.
///
/// # Errors
/// What they say otherwise.
pub fn agree(Draw { shape, lowering, transport, moves }: Draw) -> Result<(), String> {
    let (name, placement, ranks, chunks, microbatches) = SHAPES[shape % SHAPES.len()];
    let problem = problem(ranks, chunks, microbatches, placement);
    let schedule = find(name).expect("published").build(&problem).expect("exists");
    let lowerings =
        [Lowering::InPieces, Lowering::ReceiveFirst, Lowering::Grouped, Lowering::Overlapped { prefetch: 1 }];
    let lowering = lowerings[lowering % lowerings.len()];
    let mut program = lower_as(&problem, &schedule, lowering).expect("lowers");
    for (rank, from, by) in moves {
        let row = &mut program.rows[rank % ranks];
        let from = from % row.len();
        if !matches!(row[from], Step::Compute(_) | Step::Optimizer) && from + by < row.len() {
            let step = row.remove(from);
            row.insert(from + by, step);
        }
    }
    let transport = TRANSPORTS[transport % TRANSPORTS.len()];
    let hangs = match check_program(&problem, &program, transport) {
        Ok(()) => false,
        Err(violations) if matches!(violations[0], Violation::Stuck(_)) => true,
        // No longer a program: there is nothing to run.
        Err(_) => return Ok(()),
    };
    if World::new(&program, transport).can_hang() == hangs {
        return Ok(());
    }
    let rows = program.text_rows().join("\n");
    Err(format!("{name} {lowering:?} {transport:?}: the checker says {hangs}, the explorer does not\n{rows}"))
}
