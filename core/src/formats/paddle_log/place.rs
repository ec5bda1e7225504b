//! Which rank each worker is, and which stage each of its chunks.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::{Did, Worker};
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::MAX_RANKS;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Problem, Schedule};

/// Where the workers stand.
pub(super) struct Placed {
    /// Ranks of one pipeline.
    pub(super) ranks: usize,
    /// Copies of the pipeline.
    pub(super) copies: usize,
    /// By worker: its row in a trace; none of a worker without jobs that no place is known for.
    pub(super) row_of: Vec<Option<usize>>,
    /// By rank and chunk: the stage.
    pub(super) stage_of: Vec<Vec<usize>>,
    /// How, where it was found.
    pub(super) placed: Option<&'static str>,
}

/// The ops of a worker's step by chunk.
type Order = Vec<(OpKind, usize, u32)>;

fn order_of(worker: &Worker) -> Order {
    let op = |job: &super::Job| match Did::of(&job.kind) {
        Did::Op(kind, chunk) => Some((kind, chunk, job.microbatch)),
        _ => None,
    };
    // A step that was cut off, or has a wrong line, is shorter than the others.
    let orders = worker.steps().into_iter().map(|jobs| jobs.iter().filter_map(op).collect::<Order>());
    orders.rev().max_by_key(Vec::len).unwrap_or_default()
}

pub(super) fn place(workers: &[Worker], plan: Option<(&Problem, &Schedule)>) -> Result<Placed, Faults> {
    let orders: Vec<Order> = workers.iter().map(order_of).collect();
    if let Some((problem, schedule)) = plan {
        return by_plan(workers, &orders, problem, schedule);
    }
    let (ranks, rank_of) = by_order(workers, &orders).unwrap_or_else(|| by_time(workers));
    let mut of_rank = vec![0usize; ranks];
    let place = |rank: &Option<usize>| {
        let copy = &mut of_rank[(*rank)?];
        *copy += 1;
        Some((*copy - 1) * ranks + (*rank)?)
    };
    let row_of: Vec<Option<usize>> = rank_of.iter().map(place).collect();
    let copies = of_rank.iter().max().copied().unwrap_or(1);
    if ranks * copies > MAX_RANKS {
        let found = format!("{} workers", workers.len());
        return Err(Fault::new("the logs", found, format!("those of at most {MAX_RANKS}")).into());
    }
    let chunks = 1 + orders.iter().flatten().map(|(_, chunk, _)| *chunk).max().unwrap_or(0);
    // How many forwards of the first chunk a rank runs before it goes on to the second one. Round the ranks, each runs as many;
    // back and forth, the last rank goes on at once.
    let before = |rank: usize| {
        let order = (0..workers.len()).find(|at| rank_of[*at] == Some(rank)).map(|at| &orders[at])?;
        order.iter().position(|op| *op == (OpKind::F, 1, 0))
    };
    let back_and_forth = chunks > 1 && ranks > 1 && before(ranks - 1) < before(0);
    let stage = |rank: usize, chunk: usize| {
        let back = back_and_forth && chunk % 2 == 1;
        chunk * ranks + if back { ranks - 1 - rank } else { rank }
    };
    let stage_of = (0..ranks).map(|rank| (0..chunks).map(|chunk| stage(rank, chunk)).collect()).collect();
    let placed = match (chunks, back_and_forth) {
        (1, _) => "one stage per rank",
        (_, false) => "round the ranks",
        (_, true) => "back and forth",
    };
    Ok(Placed { ranks, copies, row_of, stage_of, placed: Some(placed) })
}

/// Ranks by order: workers with the same order are copies. None where the orders do not tell ranks apart.
fn by_order(workers: &[Worker], orders: &[Order]) -> Option<(usize, Vec<Option<usize>>)> {
    let mut classes: Vec<(&Order, Vec<usize>)> = Vec::new();
    let whole = |at: &usize| workers[*at].faults.is_empty() && !orders[*at].is_empty();
    for at in (0..orders.len()).filter(whole) {
        match classes.iter_mut().find(|(order, _)| **order == orders[at]) {
            Some((_, members)) => members.push(at),
            None => classes.push((&orders[at], vec![at])),
        }
    }
    let broken: Vec<usize> = (0..orders.len()).filter(|at| !whole(at)).collect();
    let copies = classes.iter().map(|(_, members)| members.len()).max()?;
    let single = classes.len() + broken.len() == orders.len();
    let uneven = !single && (!broken.is_empty() || classes.iter().any(|(_, members)| members.len() < copies));
    if uneven || (classes.len() < 2 && broken.is_empty()) {
        return None;
    }
    if single {
        // A rank each, in the order of the devices: so damaged logs have their place as well.
        return Some((orders.len(), (0..orders.len()).map(Some).collect()));
    }
    let mut rank_of = vec![None; orders.len()];
    for (rank, (_, members)) in classes.iter().enumerate() {
        members.iter().for_each(|at| rank_of[*at] = Some(rank));
    }
    Some((classes.len(), rank_of))
}

/// Ranks by time: a worker whose first forward starts when that of another has ended holds a later stage.
fn by_time(workers: &[Worker]) -> (usize, Vec<Option<usize>>) {
    let first = |worker: &Worker| -> Option<(Nanos, Nanos)> {
        let forward = worker.jobs.iter().find(|job| matches!(Did::of(&job.kind), Did::Op(OpKind::F, 0)))?;
        Some((forward.start_ns, forward.end_ns))
    };
    let mut sorted: Vec<(Nanos, Nanos, usize)> = workers
        .iter()
        .enumerate()
        .filter_map(|(at, worker)| first(worker).map(|(start, end)| (start, end, at)))
        .collect();
    sorted.sort_unstable();
    let (mut rank, mut ends) = (0, Nanos::MAX);
    let mut rank_of = vec![None; workers.len()];
    let known = sorted.len();
    for (start, end, at) in sorted {
        if start >= ends {
            (rank, ends) = (rank + 1, Nanos::MAX);
        }
        ends = ends.min(end);
        rank_of[at] = Some(rank);
    }
    if rank + 1 == known && known < workers.len() {
        // A rank each: the devices without jobs have their places among the others.
        return (workers.len(), (0..workers.len()).map(Some).collect());
    }
    (rank + 1, rank_of)
}

fn by_plan(workers: &[Worker], orders: &[Order], problem: &Problem, schedule: &Schedule) -> Result<Placed, Faults> {
    let ranks = schedule.rows.len();
    let stage_of: Vec<Vec<usize>> = schedule.rows.iter().map(|row| stages(row)).collect();
    let planned: Vec<Order> =
        schedule.rows.iter().zip(&stage_of).map(|(row, stages)| by_chunk(row, stages)).collect();
    let agree =
        |rank: usize, order: &Order| planned[rank].iter().zip(order).take_while(|(one, other)| one == other).count();
    let mut of_rank: BTreeMap<usize, usize> = BTreeMap::new();
    let mut row_of = vec![None; workers.len()];
    let mut faults = Vec::new();
    for (at, order) in orders.iter().enumerate().filter(|(_, order)| !order.is_empty()) {
        // Of ranks that agree as well, the one with the fewest workers so far, the first of them first.
        let best = (0..ranks).max_by_key(|rank| {
            let taken = of_rank.get(rank).copied().unwrap_or(0);
            (agree(*rank, order), core::cmp::Reverse((taken, *rank)))
        });
        let Some(rank) = best else { continue };
        let agreed = agree(rank, order);
        let worker = &workers[at];
        if worker.faults.is_empty() && agreed < order.len() {
            let name = |op: Option<&(OpKind, usize, u32)>, rank: usize| {
                let named = |(kind, chunk, microbatch): &(OpKind, usize, u32)| {
                    let stage = stage_of[rank].get(*chunk).copied().unwrap_or(*chunk);
                    format!("{}", Op::new(stage, *kind, *microbatch as usize))
                };
                op.map_or_else(|| "nothing".to_string(), named)
            };
            let found = format!("{} as op {}", name(order.get(agreed), rank), agreed + 1);
            let accepted =
                format!("{}: rank {rank} of the plan has that there", name(planned[rank].get(agreed), rank));
            faults.push(Fault::new(worker.name.as_str(), found, accepted));
            continue;
        }
        let copy = of_rank.entry(rank).or_default();
        row_of[at] = Some(*copy * ranks + rank);
        *copy += 1;
    }
    let copies = of_rank.values().max().copied().unwrap_or(1);
    if ranks * copies > MAX_RANKS || ranks != problem.ranks() {
        let found = format!("{} workers", workers.len());
        faults.push(Fault::new(String::from("the logs"), found, format!("those of at most {MAX_RANKS}")));
    }
    if faults.is_empty() { Ok(Placed { ranks, copies, row_of, stage_of, placed: None }) } else { Err(Faults(faults)) }
}

/// The stages of a rank's ops, in model order: its chunks.
pub(super) fn stages(row: &[Op]) -> Vec<usize> {
    let mut stages: Vec<usize> = row.iter().map(|op| op.stage()).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}

fn by_chunk(row: &[Op], stages: &[usize]) -> Order {
    let chunk = |op: &Op| stages.binary_search(&op.stage()).unwrap_or(0);
    row.iter().map(|op| (op.kind(), chunk(op), op.microbatch() as u32)).collect()
}
