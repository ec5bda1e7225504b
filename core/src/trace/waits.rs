//! Which op of a measured step waits for which, found from the ops alone: no plan is needed.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{StepTrace, Trace};
use crate::base::units::Nanos;
use crate::problem::op::{Op, OpKind};
use crate::program::{P2pOp, Payload, Step, Way};
use crate::simulate::timeline::Span;

/// Where an op stands: the row of its rank, and its place among the ops there.
pub type Place = (usize, usize);

/// The ops of one step, in all copies of the pipeline, and what each waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The ops of each row, in the order in which they ran.
    pub ops: Vec<Vec<Span>>,
    /// By row and place: the op of another row that made the input, if there is one.
    pub inputs: Vec<Vec<Option<Place>>>,
    /// By row and place: from when to when the rank received that input, where a receive says so. It may have arrived before.
    pub received: Vec<Vec<Option<[Nanos; 2]>>>,
}

/// What an op makes: whether it is a gradient, the stage, the microbatch.
type Made = (bool, usize, usize);

fn made(op: Op) -> Option<Made> {
    (op.kind() != OpKind::W).then(|| (op.kind() != OpKind::F, op.stage(), op.microbatch()))
}

/// What `op` needs of another stage, if there is one.
pub(crate) fn needed(op: Op) -> Option<(bool, usize, usize)> {
    match op.kind() {
        OpKind::F => op.stage().checked_sub(1).map(|stage| (false, stage, op.microbatch())),
        OpKind::B | OpKind::BW => Some((true, op.stage() + 1, op.microbatch())),
        OpKind::W => None,
    }
}

fn input_of(message: &P2pOp) -> Option<Made> {
    let is_gradient = message.payload == Payload::Gradient;
    (message.way == Way::Receive).then(|| (is_gradient, message.peer_stage(), message.microbatch as usize))
}

impl Waits {
    /// Of a step whose rows are those of copies of the pipeline with `ranks` ranks each.
    pub fn of(step: &StepTrace, ranks: usize) -> Waits {
        let mut waits = Waits::default();
        for (copy, rows) in step.rows.chunks(ranks.max(1)).enumerate() {
            let first = copy * ranks.max(1);
            let mut places: Vec<(Made, Place)> = Vec::new();
            let mut arrivals: Vec<Vec<(Made, [Nanos; 2])>> = Vec::with_capacity(rows.len());
            for (row, spans) in rows.iter().enumerate() {
                let (mut ops, mut arrived) = (Vec::new(), Vec::new());
                for span in spans {
                    match &span.step {
                        Step::Compute(op) => {
                            places.extend(made(*op).map(|made| (made, (first + row, ops.len()))));
                            ops.push(Span { op: *op, start_ns: span.start_ns, end_ns: span.end_ns });
                        }
                        Step::Transfer(messages) | Step::Wait(messages) => {
                            let inputs = messages.iter().filter_map(input_of);
                            arrived.extend(inputs.map(|input| (input, [span.start_ns, span.end_ns])));
                        }
                        Step::Start(_) | Step::StartCopy(_) | Step::WaitCopy(_) | Step::Optimizer => {}
                    }
                }
                waits.ops.push(ops);
                // Of several the last one counts: a stable sort keeps their order.
                arrived.sort_by_key(|(input, _)| *input);
                arrivals.push(arrived);
            }
            // Of several the first one counts.
            places.sort_unstable();
            for (row, arrived) in arrivals.iter().enumerate() {
                let ops = &waits.ops[first + row];
                let input = |span: &Span| {
                    let needed = needed(span.op)?;
                    let at = places.partition_point(|(made, _)| *made < needed);
                    let place = places.get(at).filter(|(made, _)| *made == needed).map(|(_, place)| *place);
                    let place = place.filter(|place| place.0 != first + row)?;
                    let before = arrived.partition_point(|(input, _)| *input <= needed).checked_sub(1);
                    let received = before.map(|at| arrived[at]).filter(|(input, _)| *input == needed);
                    Some((place, received.map(|(_, ns)| ns).filter(|ns| ns[1] <= span.start_ns)))
                };
                let found: Vec<Option<(Place, Option<[Nanos; 2]>)>> = ops.iter().map(input).collect();
                waits.inputs.push(found.iter().map(|found| found.map(|(place, _)| place)).collect());
                waits.received.push(found.iter().map(|found| found.and_then(|(_, ns)| ns)).collect());
            }
        }
        waits
    }

    /// The op at a place.
    pub fn at(&self, place: Place) -> &Span {
        &self.ops[place.0][place.1]
    }

    /// Every op that waits for another row, with the op that it waits for.
    pub fn edges(&self) -> impl Iterator<Item = (Place, Place)> + '_ {
        self.inputs.iter().enumerate().flat_map(|(row, inputs)| {
            inputs.iter().enumerate().filter_map(move |(place, input)| input.map(|input| (input, (row, place))))
        })
    }

    /// All ops in an order that keeps every wait; those of a circle, which no run has, are left out.
    pub fn in_order(&self) -> Vec<Place> {
        let mut order = Vec::with_capacity(self.ops.iter().map(Vec::len).sum());
        let mut at = alloc::vec![0usize; self.ops.len()];
        let mut done: Vec<Vec<bool>> = self.ops.iter().map(|row| alloc::vec![false; row.len()]).collect();
        let mut sleeping: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
        let mut ready: Vec<usize> = (0..self.ops.len()).rev().collect();
        while let Some(row) = ready.pop() {
            while at[row] < self.ops[row].len() {
                let place = (row, at[row]);
                if let Some(input) = self.inputs[row][at[row]].filter(|input| !done[input.0][input.1]) {
                    sleeping.entry(input).or_default().push(row);
                    break;
                }
                done[row][at[row]] = true;
                at[row] += 1;
                order.push(place);
                ready.extend(sleeping.remove(&place).into_iter().flatten());
            }
        }
        order
    }
}

impl Trace {
    /// Ranks of one pipeline, in a step with so many rows.
    pub fn ranks_of(&self, rows: usize) -> usize {
        (rows / (self.replicas.max(1) * self.context.max(1) * self.tensor.max(1))).max(1)
    }

    /// The ops that each rank of the first copy ran in the step that has the most of them: an order for `plan --order`.
    pub fn order(&self) -> Vec<Vec<Op>> {
        let fullest = self.steps.iter().rev().max_by_key(|step| step.rows.iter().map(Vec::len).sum::<usize>());
        let Some(step) = fullest else { return Vec::new() };
        let ops = |row: &Vec<super::TraceSpan>| {
            row.iter()
                .filter_map(|span| match span.step {
                    Step::Compute(op) => Some(op),
                    _ => None,
                })
                .collect()
        };
        step.rows.iter().take(self.ranks_of(step.rows.len())).map(ops).collect()
    }
}
