//! Which microbatch and stage a forward or backward is of, where its range does not say so.
//!
//! - A step has as many forwards as backwards. Where the profiler marks steps (`ProfilerStep#7`), these are the steps. Else a step
//!   of the first rank ends where every forward has had its backward, and every rank has as many forwards in a step.
//! - A rank's chunks are told apart by the modules of torch that forwards call. Without these a rank has one chunk, unless it runs
//!   Megatron-LM's interleaved schedule: then only a plan says which chunk a forward is of.
//! - The n-th forward of a chunk in a step is of microbatch n. A backward belongs to the forward that made the node of autograd's
//!   graph which it runs first; where these are not recorded, the n-th backward is of microbatch n.
//! - A rank's place in the pipeline is that in the group whose description says so; else, it follows the rank from which it
//!   receives before its first forward; else, on one clock, it follows the rank which the first microbatch passes before; else,
//!   where all ranks are one pipeline, it is the rank's number.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::names::Job;
use super::{Ran, Recording};
use crate::base::fields::{Fault, Faults};
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::{MAX_CHUNKS, MAX_MICROBATCHES, MAX_RANKS};
use crate::program::Way;

/// What a file says of a job whose stage its range does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub job: Job,
    /// The module that a forward calls.
    pub module: Option<u32>,
    /// The place of the forward that a backward belongs to.
    pub forward: Option<usize>,
}

/// A group of ranks, as a file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub description: String,
    pub ranks: Vec<u64>,
}

/// What to record instead, where chunks cannot be told apart.
const CHUNKS: &str = "modules of torch, and operators with their sequence numbers, which tell a rank's chunks apart: record with \
                      `with_stack=True`; or give the plan that ran";
/// What to record instead, where ranks cannot be put in order.
const PLACES: &str = "ranks in the order of their stages: a group described as the pipeline's (Megatron-LM and DeviceMesh do), or \
                      sends and receives with their peers, which torch.profiler records over NCCL; or give the plan that ran";

/// How microbatches and stages were found; empty where ranges say them.
pub(super) type How = Vec<String>;

/// Gives every op of `files`, one for each rank, its stage and microbatch. Those of a known `plan` where nothing else says them.
pub(super) fn numbered(files: &mut [(String, Recording)], plan: Option<&Schedule>) -> Result<How, Faults> {
    let places: Vec<usize> =
        files.iter().enumerate().filter(|(_, file)| !file.1.counted.is_empty()).map(|(index, _)| index).collect();
    let mut how = How::new();
    if places.is_empty() {
        return Ok(how);
    }
    if places.len() < files.len() {
        let named =
            files.iter().find(|file| file.1.counted.is_empty()).map(|file| file.0.clone()).unwrap_or_default();
        let accepted = format!("ranges with stages, as {named} has");
        return Err(Fault::new(files[places[0]].0.as_str(), "ranges without stages", accepted).into());
    }
    let mut faults = Vec::new();
    let forwards = forwards_of_a_step(files, &mut faults);
    let mut rows: Vec<Vec<Local>> = Vec::new();
    for (name, recording) in files.iter() {
        match local_ops(recording, forwards) {
            Ok(ops) => rows.push(ops),
            Err((found, accepted)) => faults.push(Fault::new(name.as_str(), found, accepted)),
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let in_order = positions(files);
    if let Some(schedule) = plan {
        return of_plan(files, &rows, &in_order, schedule).map(|()| how);
    }
    let Order { positions, ranks, told } = in_order.map_err(|found| Fault::new("the files", found, PLACES))?;
    if let Some(place) = (0..ranks).find(|place| !positions.contains(place)) {
        let group = files.first().and_then(|(_, recording)| recording.groups.iter().find(is_pipeline));
        let rank =
            group.and_then(|group| group.ranks.get(place)).map_or(String::new(), |rank| format!(", rank {rank}"));
        let found = format!("no file of the pipeline's place {place}{rank}");
        return Err(Fault::new("the files", found, format!("those of all {ranks} ranks of a pipeline")).into());
    }
    let chunk_faults = files.iter().zip(&rows).filter(|(_, row)| row.iter().any(|op| op.chunk.is_none()));
    let chunk_faults: Vec<Fault> =
        chunk_faults.map(|(file, _)| Fault::new(file.0.as_str(), "several chunks in turn", CHUNKS)).collect();
    if !chunk_faults.is_empty() {
        return Err(Faults(chunk_faults));
    }
    for ((row, position), (_, recording)) in rows.iter().zip(positions).zip(files.iter_mut()) {
        for (op, ran) in row.iter().zip(&mut recording.ops) {
            ran.op = Op::new(op.chunk.unwrap_or(0) * ranks + position, op.kind, op.microbatch.unwrap_or(0));
        }
        recording.counted.clear();
    }
    how.push("stages and microbatches counted: the ranges do not say them".to_string());
    how.push(told);
    Ok(how)
}

/// An op as its rank knows it.
#[derive(Clone, Copy, Debug)]
struct Local {
    kind: OpKind,
    /// None where nothing says it.
    chunk: Option<usize>,
    microbatch: Option<usize>,
}

/// How many forwards each rank has in a step; none where the profiler marks steps.
fn forwards_of_a_step(files: &[(String, Recording)], faults: &mut Vec<Fault>) -> Option<usize> {
    if files.iter().all(|(_, recording)| !recording.steps.is_empty()) {
        return None;
    }
    let first_balance = |recording: &Recording| {
        let mut open = 0_i64;
        let ends = recording.counted.iter().position(|one| {
            open += if one.job.is_backward { -1 } else { 1 };
            open <= 0
        });
        ends.map(|ends| ends.div_ceil(2))
    };
    let forwards = files.iter().filter_map(|(_, recording)| first_balance(recording)).max().unwrap_or(0);
    if let ([(name, recording)], 1) = (files, forwards)
        && recording.counted.len() > 2
    {
        let accepted = "steps that the profiler marks, by `step()`: each of these backwards follows its forward, so that nothing \
                        else says where a step ends";
        faults.push(Fault::new(name.as_str(), "no mark of a step", accepted));
    }
    Some(forwards)
}

/// The places at which steps begin, and the end.
fn steps(recording: &Recording, forwards: Option<usize>) -> Result<Vec<usize>, (String, String)> {
    let count = recording.counted.len();
    let accepted = || "whole steps, with a backward for every forward".to_string();
    let mut begins: Vec<usize> = match forwards {
        Some(0) => return Err(("no step with all its backwards".to_string(), accepted())),
        Some(forwards) => (0..count).step_by(2 * forwards).collect(),
        None => {
            let marked = recording
                .steps
                .iter()
                .map(|(start_ns, _)| recording.ops.partition_point(|ran| ran.host_ns < *start_ns));
            let mut begins: Vec<usize> = core::iter::once(0).chain(marked).filter(|place| *place < count).collect();
            begins.dedup();
            begins
        }
    };
    begins.push(count);
    for (number, step) in begins.windows(2).enumerate() {
        let ran = &recording.counted[step[0]..step[1]];
        let backwards = ran.iter().filter(|one| one.job.is_backward).count();
        if 2 * backwards != ran.len() {
            let found =
                format!("{} forwards and {backwards} backwards in step {}", ran.len() - backwards, number + 1);
            return Err((found, accepted()));
        }
    }
    Ok(begins)
}

/// The chunk and microbatch of each op of a rank.
fn local_ops(recording: &Recording, forwards: Option<usize>) -> Result<Vec<Local>, (String, String)> {
    let counted = &recording.counted;
    let begins = steps(recording, forwards)?;
    // Chunks in the order in which they run first.
    let mut chunks: Vec<u32> = Vec::new();
    let modules = counted.iter().filter(|one| !one.job.is_backward).map(|one| one.module);
    let has_modules = modules.clone().all(|module| module.is_some());
    for module in modules.flatten() {
        if !chunks.contains(&module) && chunks.len() <= MAX_CHUNKS {
            chunks.push(module);
        }
    }
    if chunks.len() > MAX_CHUNKS {
        return Err((
            format!("more than {MAX_CHUNKS} modules that forwards call"),
            format!("at most {MAX_CHUNKS} chunks"),
        ));
    }
    let is_one = !recording.is_interleaved && (chunks.len() < 2 || !has_modules);
    let chunk_of = |one: &Counted| match one.module {
        _ if is_one => Some(0),
        Some(module) if has_modules => chunks.iter().position(|known| *known == module),
        _ => None,
    };
    let mut ops: Vec<Local> = Vec::with_capacity(counted.len());
    for step in begins.windows(2) {
        // By job and chunk, how many so far.
        let mut seen: BTreeMap<(bool, Option<usize>), usize> = BTreeMap::new();
        let mut done = BTreeSet::new();
        for (place, one) in counted.iter().enumerate().take(step[1]).skip(step[0]) {
            let kind = if one.job.is_backward { OpKind::BW } else { OpKind::F };
            let made =
                one.forward.filter(|forward| (step[0]..place).contains(forward)).and_then(|forward| ops.get(forward));
            let chunk = match made {
                Some(made) if one.job.is_backward => made.chunk,
                _ if one.job.is_backward && !is_one => None,
                _ => chunk_of(one),
            };
            let next = seen.entry((one.job.is_backward, chunk)).or_default();
            let nth = *next;
            *next += 1;
            let microbatch = one.job.microbatch.or(made.and_then(|made| made.microbatch)).unwrap_or(nth);
            if microbatch >= MAX_MICROBATCHES {
                return Err((format!("microbatch {microbatch}"), format!("at most {MAX_MICROBATCHES} microbatches")));
            }
            let microbatch = (is_one || chunk.is_some()).then_some(microbatch);
            if chunk.is_some() && !done.insert((kind, chunk, microbatch)) {
                let found = format!("microbatch {} twice in a step", microbatch.unwrap_or(0));
                return Err((
                    found,
                    "each microbatch once; record whole steps, and mark them with `step()`".to_string(),
                ));
            }
            ops.push(Local { kind, chunk, microbatch });
        }
    }
    Ok(ops)
}

/// The order of ranks in their pipelines.
struct Order {
    /// By file.
    positions: Vec<usize>,
    /// Of a pipeline.
    ranks: usize,
    /// How it was found.
    told: String,
}

/// Else, why there is none.
fn positions(files: &[(String, Recording)]) -> Result<Order, String> {
    if let Some(order) = by_group(files) {
        return Ok(order);
    }
    if files.iter().flat_map(|(_, recording)| &recording.transfers).any(|transfer| transfer.peer.is_some()) {
        return by_peers(files);
    }
    let clock = |file: &(String, Recording)| file.1.clock.clone();
    match files {
        [first, others @ ..] if clock(first).is_some() && others.iter().all(|file| clock(file) == clock(first)) => {
            by_time(files)
        }
        _ => by_number(files),
    }
}

/// On one clock, by the times of the first microbatch: it passes forward from rank to rank, and back in the other order.
fn by_time(files: &[(String, Recording)]) -> Result<Order, String> {
    let first = |recording: &Recording, is_backward: bool| {
        let place = recording.counted.iter().position(|one| one.job.is_backward == is_backward);
        place.map(|place| recording.ops[place]).map_or((0, 0), |ran| (ran.start_ns, ran.end_ns))
    };
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|index| first(&files[*index].1, false));
    for two in order.windows(2) {
        let [before, behind] = [two[0], two[1]].map(|index| &files[index]);
        let passes = first(&before.1, false).1 <= first(&behind.1, false).0;
        if !passes || first(&behind.1, true).1 > first(&before.1, true).0 {
            return Err(format!("first microbatches that overlap in {} and {}", before.0, behind.0));
        }
    }
    let mut positions = alloc::vec![0; files.len()];
    order.iter().enumerate().for_each(|(position, index)| positions[*index] = position);
    let told = "ranks in the order in which the first microbatch passes them";
    Ok(Order { positions, ranks: files.len(), told: told.to_string() })
}

fn is_pipeline(group: &&Group) -> bool {
    let description = group.description.to_ascii_lowercase();
    matches!(description.as_str(), "pipeline_model_parallel_group" | "pp" | "mesh_pp" | "pipeline")
}

/// By a group that is said to be the pipeline's.
fn by_group(files: &[(String, Recording)]) -> Option<Order> {
    let mut positions = Vec::with_capacity(files.len());
    let mut ranks = 0;
    for (_, recording) in files {
        let group = recording.groups.iter().find(is_pipeline)?;
        positions.push(group.ranks.iter().position(|rank| Some(*rank) == recording.rank)?);
        ranks = ranks.max(group.ranks.len());
    }
    Some(Order { positions, ranks, told: "ranks in the order of the pipeline's group".to_string() })
}

/// A rank follows that from which it receives before its first forward.
fn by_peers(files: &[(String, Recording)]) -> Result<Order, String> {
    let mut before: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for (name, recording) in files {
        let Some(rank) = recording.rank else { return Err(format!("no number of the rank in {name}")) };
        let received = recording.transfers.iter().take_while(|transfer| transfer.at_ns < recording.first_end_ns);
        let received = received.filter(|transfer| transfer.way == Way::Receive).find_map(|transfer| transfer.peer);
        before.insert(rank, received);
    }
    let mut positions = Vec::with_capacity(files.len());
    for (name, recording) in files {
        let (mut position, mut rank) = (0, recording.rank.unwrap_or(0));
        while let Some(previous) =
            before.get(&rank).ok_or_else(|| format!("no file of rank {rank}, which sends to {name}"))?
        {
            (position, rank) = (position + 1, *previous);
            if position > before.len() {
                return Err(format!("a circle of first receives, with rank {rank} in it"));
            }
        }
        positions.push(position);
    }
    let ranks = positions.iter().max().map_or(0, |last| last + 1);
    Ok(Order { positions, ranks, told: "ranks in the order of their sends and receives".to_string() })
}

/// Where all ranks are one pipeline, by their numbers: only the first begins without a receive.
fn by_number(files: &[(String, Recording)]) -> Result<Order, String> {
    let count = files.len();
    let unknown = || "neither the pipeline's group nor peers of transfers".to_string();
    let mut positions = Vec::with_capacity(count);
    for (_, recording) in files {
        let (Some(rank), Some(world)) = (recording.rank, recording.world) else { return Err(unknown()) };
        if world != count as u64 || rank >= world || count > MAX_RANKS {
            return Err(format!("{count} files of {world} ranks that may be no pipeline"));
        }
        let mut early = recording.transfers.iter().take_while(|transfer| transfer.at_ns < recording.first_end_ns);
        let has_received = early.any(|transfer| transfer.way == Way::Receive);
        if has_received != (rank > 0) {
            let what = if has_received { "a receive" } else { "no receive" };
            return Err(format!("{what} before the first forward of rank {rank}"));
        }
        positions.push(rank as usize);
    }
    if positions.iter().collect::<BTreeSet<_>>().len() < count {
        return Err("several files of one rank's number".to_string());
    }
    let told =
        "ranks in the order of their numbers: all are one pipeline, and only the first begins without a receive";
    Ok(Order { positions, ranks: count, told: told.to_string() })
}

/// Gives ops the stages and microbatches of the plan's rank that has the same ones in the same order.
fn of_plan(
    files: &mut [(String, Recording)],
    rows: &[Vec<Local>],
    order: &Result<Order, String>,
    schedule: &Schedule,
) -> Result<(), Faults> {
    let mut faults = Vec::new();
    for (index, ((name, recording), row)) in files.iter_mut().zip(rows).enumerate() {
        let known = order.as_ref().ok().map(|order| order.positions[index]);
        let candidates: Vec<usize> = (0..schedule.rows.len())
            .filter(|rank| known.is_none_or(|known| known == *rank) && agrees(row, &schedule.rows[*rank]).is_none())
            .collect();
        match candidates[..] {
            [rank] => give(recording, &schedule.rows[rank]),
            [] => {
                let rank = known.filter(|rank| *rank < schedule.rows.len()).unwrap_or(0);
                let (found, accepted) = agrees(row, &schedule.rows[rank]).unwrap_or_default();
                let of = if known.is_some() { "" } else { ", as no rank of the plan has; the first" };
                faults.push(Fault::new(name.as_str(), format!("{found}{of}"), accepted));
            }
            _ => {
                let found = order.as_ref().err().cloned().unwrap_or_default();
                let accepted =
                    PLACES.replace("; or give the plan that ran", "; several of the plan have the same order");
                faults.push(Fault::new(name.as_str(), found, accepted));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

/// Where a rank's ops differ from those of the plan's rank: what was found, and what the plan has.
fn agrees(ran: &[Local], row: &[Op]) -> Option<(String, String)> {
    if row.is_empty() {
        return Some(("ops".to_string(), "none, as the plan has none".to_string()));
    }
    if !ran.len().is_multiple_of(row.len()) {
        return Some((
            format!("{} forwards and backwards", ran.len()),
            format!("{} in each step, as the plan has", row.len()),
        ));
    }
    let stages: BTreeSet<usize> = row.iter().map(|op| op.stage()).collect();
    let stages: Vec<usize> = stages.into_iter().collect();
    let is_same = |(ran, op): &(&Local, &Op)| {
        let is_stage = ran.chunk.is_none_or(|chunk| stages.get(chunk) == Some(&op.stage()));
        ran.kind == op.kind() && is_stage && ran.microbatch.is_none_or(|number| number == op.microbatch())
    };
    let (place, (ran, op)) = ran.iter().zip(row.iter().cycle()).enumerate().find(|(_, two)| !is_same(two))?;
    let word = if ran.kind == OpKind::F { "a forward" } else { "a whole backward" };
    let of = ran.microbatch.map_or(String::new(), |number| format!(" of microbatch {number}"));
    Some((format!("{word}{of} as op {}", place + 1), format!("{op}, which the plan has there")))
}

fn give(recording: &mut Recording, row: &[Op]) {
    let ops = recording.ops.iter_mut().zip(row.iter().cycle());
    ops.for_each(|(ran, op): (&mut Ran, &Op)| ran.op = *op);
    recording.counted.clear();
}
