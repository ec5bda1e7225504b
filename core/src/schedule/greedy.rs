//! Published schedules that are stated as a rule for the next op, not as a pattern: Chimera, Hanayo's waves, and zero-bubble
//! waves. One list scheduler makes them all, on the problem's times.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{Absent, splits};
use crate::base::units::Nanos;
use crate::problem::Problem;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;

/// Chimera (arXiv:2107.06925, §3): 1F1B in two directions at once over two copies of parameters. A rank at
/// position `i` of a direction holds at most `min(P / 2, P − i)` of its microbatches, so between `P / 2 + 1`
/// and `P` in all.
pub fn chimera(problem: &Problem) -> Result<Schedule, Absent> {
    if *problem.placement() != Placement::Bidirectional {
        return Err(Absent::because(
            "it is bidirectional: it needs two copies of the model, one for each \
             direction (placement two-way)",
        ));
    }
    let (ranks, half) = (problem.ranks(), problem.microbatches() / 2);
    let lanes = (0..ranks).flat_map(|stage| {
        let in_flight = (ranks / 2).min(ranks - stage);
        let lane =
            |first: usize| Lane { rank: problem.rank_of(stage, first), stage, first, end: first + half, in_flight };
        [lane(0), lane(half)]
    });
    Ok(run(problem, lanes.collect(), OpKind::BW))
}

/// Hanayo's waves (arXiv:2308.15762, §3): the direction alternates with each chunk, so no turn costs a hop. At most P
/// microbatches are in flight, as many as 1F1B's first rank holds.
pub fn wave(problem: &Problem) -> Result<Schedule, Absent> {
    wave_shaped(problem)?;
    Ok(run(problem, one_way(problem), OpKind::BW))
}

/// Waves with a split backward, and W where a rank is idle: the rule of ZB-V (arXiv:2401.10241, §6) for any number of
/// chunks, which PaddlePaddle's ZBVPP also serves.
pub fn zero_bubble_wave(problem: &Problem) -> Result<Schedule, Absent> {
    wave_shaped(problem)?;
    splits(problem)?;
    Ok(run(problem, one_way(problem), OpKind::B))
}

fn wave_shaped(problem: &Problem) -> Result<(), Absent> {
    let wave = Placement::Wave.ranks(problem.ranks(), problem.chunks());
    let same = (0..problem.stage_count()).all(|stage| problem.rank_of(stage, 0) == usize::from(wave[stage]));
    if same && problem.chunks() >= 2 && *problem.placement() != Placement::Bidirectional {
        Ok(())
    } else {
        Err(Absent::because(
            "it needs two or more chunks per rank, each in the opposite direction to the one \
                             before (placement wave)",
        ))
    }
}

/// One lane per stage. Only the first limits the microbatches in flight, so no rank fills with early chunks and lacks
/// room for the late ones that it waits for.
fn one_way(problem: &Problem) -> Vec<Lane> {
    let microbatches = problem.microbatches();
    let lane = |stage: usize| Lane {
        rank: problem.rank_of(stage, 0),
        stage,
        first: 0,
        end: microbatches,
        in_flight: if stage == 0 { problem.ranks() } else { microbatches },
    };
    (0..problem.stage_count()).map(lane).collect()
}

/// The work of one stage for consecutive microbatches, first in, first out.
struct Lane {
    rank: usize,
    stage: usize,
    first: usize,
    /// One past the last microbatch.
    end: usize,
    /// Microbatches between F and backward at most.
    in_flight: usize,
}

/// The progress of a lane: the next microbatch of F, of the backward, of W.
#[derive(Clone, Copy)]
struct Progress {
    forward: usize,
    backward: usize,
    weight: usize,
}

/// Runs every rank by one rule. A backward that has arrived goes before a forward that has, and later stages go before
/// earlier ones. Where none has arrived, a W runs if it ends before the next arrival; else the rank waits.
fn run(problem: &Problem, lanes: Vec<Lane>, backward: OpKind) -> Schedule {
    let microbatches = problem.microbatches();
    let mut lanes_of_rank = vec![Vec::new(); problem.ranks()];
    for (index, lane) in lanes.iter().enumerate().rev() {
        lanes_of_rank[lane.rank].push(index);
    }
    let mut progress: Vec<Progress> =
        lanes.iter().map(|lane| Progress { forward: lane.first, backward: lane.first, weight: lane.first }).collect();
    // By stage and microbatch: when the input of F, of the backward, has arrived.
    let mut forward_in: Vec<Option<Nanos>> = vec![None; problem.stage_count() * microbatches];
    let mut backward_in = forward_in.clone();
    forward_in[..microbatches].fill(Some(0));
    let mut rows = vec![Vec::new(); problem.ranks()];
    let mut free: Vec<Nanos> = vec![0; problem.ranks()];
    let mut wake: BinaryHeap<Reverse<(Nanos, usize)>> = (0..problem.ranks()).map(|rank| Reverse((0, rank))).collect();
    while let Some(Reverse((now, rank))) = wake.pop() {
        if now < free[rank] {
            continue;
        }
        // The best of what has arrived, as (is forward, place among the rank's lanes); and the next arrival.
        let mut arrived: Option<(bool, usize)> = None;
        let mut next: Option<Nanos> = None;
        for (place, &index) in lanes_of_rank[rank].iter().enumerate() {
            let (lane, at) = (&lanes[index], progress[index]);
            let may_forward = at.forward < lane.end && at.forward - at.backward < lane.in_flight;
            let forward = may_forward.then(|| forward_in[lane.stage * microbatches + at.forward]).flatten();
            let may_backward = at.backward < at.forward;
            let backward = may_backward.then(|| backward_in[lane.stage * microbatches + at.backward]).flatten();
            for (is_forward, arrival) in [(true, forward), (false, backward)] {
                match arrival {
                    Some(arrival) if arrival <= now => {
                        arrived = Some(arrived.map_or((is_forward, place), |best| best.min((is_forward, place))));
                    }
                    Some(arrival) => next = Some(next.map_or(arrival, |next| next.min(arrival))),
                    None => {}
                }
            }
        }
        let chosen = arrived.map(|(is_forward, place)| {
            let index = lanes_of_rank[rank][place];
            (index, if is_forward { OpKind::F } else { backward })
        });
        let waiting_weight =
            || lanes_of_rank[rank].iter().copied().find(|index| progress[*index].weight < progress[*index].backward);
        let chosen = chosen.or_else(|| {
            let index = waiting_weight().filter(|_| backward == OpKind::B)?;
            let end = now + problem.duration(Op::new(lanes[index].stage, OpKind::W, progress[index].weight));
            next.is_none_or(|next| end <= next).then_some((index, OpKind::W))
        });
        let Some((index, kind)) = chosen else {
            if let Some(next) = next {
                wake.push(Reverse((next, rank)));
            }
            continue;
        };
        let (stage, at) = (lanes[index].stage, &mut progress[index]);
        let counter = match kind {
            OpKind::F => &mut at.forward,
            OpKind::B | OpKind::BW => &mut at.backward,
            OpKind::W => &mut at.weight,
        };
        let microbatch = *counter;
        *counter += 1;
        let op = Op::new(stage, kind, microbatch);
        rows[rank].push(op);
        let end = now + problem.duration(op);
        free[rank] = end;
        wake.push(Reverse((end, rank)));
        let last_stage = stage + 1 == problem.stage_count();
        let (user, arrivals) = match kind {
            OpKind::F if last_stage => (stage, &mut backward_in),
            OpKind::F => (stage + 1, &mut forward_in),
            OpKind::B | OpKind::BW if stage > 0 => (stage - 1, &mut backward_in),
            _ => continue,
        };
        let other = problem.rank_of(user, microbatch);
        let arrival = end + problem.hop_of(stage, user, microbatch);
        arrivals[user * microbatches + microbatch] = Some(arrival);
        wake.push(Reverse((arrival, other)));
    }
    Schedule::of(rows)
}
