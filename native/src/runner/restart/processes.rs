//! Restarts of a run of which this process is one rank: what ranks tell each other before the next generation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Kept, RankState, Source, choose, keys, latest_checkpoint, next};
use crate::runner::RunOptions;
use crate::runner::report::Cause;
use crate::runner::workload::Workload;
use crate::transport::collectives::{Collectives, Group};
use crate::transport::{Buffer, Transport};

/// Numbers that a rank tells of itself: two steps after which it holds its state, the steps that it has made, and the step of
/// the latest checkpoint.
const OF_RANK: usize = 4;
/// Numbers that it tells of each earlier restart.
const OF_RESTART: usize = 4;

/// Agrees with all ranks of generation `generation` on the state that they go on from, and gets what this rank lacks of
/// it. Gives the options of the generation; `options` are those of the run.
///
/// # Errors
/// Where another rank fails.
pub fn recover(
    transport: &mut dyn Transport,
    workload: &Workload,
    options: &RunOptions,
    kept: &Kept,
    generation: u32,
) -> Result<RunOptions, Cause> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut everyone = Group::world(transport);
    let checkpoint = latest_checkpoint(options);
    let own = told(kept, rank, generation, checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.step));
    let counts = vec![own.len(); world];
    let all = transport.all_gather(&mut everyone, &own, &counts)?;
    let by_rank: Vec<&[f64]> = all.chunks(own.len()).collect();
    let steps = |numbers: &&[f64]| numbers[..2].iter().filter_map(|step| step_of(*step)).collect();
    let held: Vec<Vec<u32>> = by_rank.iter().map(steps).collect();
    let done = by_rank.iter().filter_map(|numbers| step_of(numbers[2])).max().unwrap_or(0);
    // Rank 0 names checkpoints, so that all whole ones are there for it.
    let saved = step_of(by_rank[0][3]);
    learn(kept, &by_rank, generation);
    let copies = |rank: usize| workload.position(rank).copies_group();
    let (source, step) = choose(&held, copies, saved, options.first_step());
    let mut states = BTreeMap::new();
    if source == Source::Memory {
        states.extend(kept.state(rank, step).map(|state| (rank, state)));
        for lacking in (0..world).filter(|rank| !held[*rank].contains(&step)) {
            let Some(giver) = copies(lacking).into_iter().find(|copy| held[*copy].contains(&step)) else { continue };
            if rank == lacking || rank == giver {
                let given = kept.state(rank, step).filter(|_| rank == giver);
                let state = hand_over(transport, workload, (giver, lacking), step, given)?;
                if rank == lacking {
                    states.insert(rank, Arc::new(state));
                }
            }
        }
    }
    kept.note_source(source, step, done);
    let whole = checkpoint.filter(|checkpoint| Some(checkpoint.manifest.step) == saved);
    Ok(next(options, (source, step), whole, states))
}

/// A step as a number; below 0: none.
fn number(step: Option<u32>) -> f64 {
    step.map_or(-1.0, f64::from)
}

fn step_of(number: f64) -> Option<u32> {
    (number >= 0.0).then_some(number as u32)
}

/// What this rank tells the others.
fn told(kept: &Kept, rank: usize, generation: u32, checkpoint: Option<u32>) -> Vec<f64> {
    let steps = kept.steps(rank);
    let inner = kept.inner();
    let mut numbers = vec![
        number(steps.first().copied()),
        number(steps.get(1).copied()),
        f64::from(inner.done),
        number(checkpoint),
    ];
    for earlier in 1..generation {
        numbers.extend(match inner.history.get(&earlier) {
            // Nanoseconds of a run are exact as f64 for 104 days.
            Some(restart) => [
                restart.source as u8 as f64,
                f64::from(restart.step),
                f64::from(restart.redone),
                restart.lost.as_nanos() as f64,
            ],
            None => [-1.0; OF_RESTART],
        });
    }
    numbers
}

/// Takes over what others know of earlier restarts: a process that was started since has not seen them.
fn learn(kept: &Kept, by_rank: &[&[f64]], generation: u32) {
    let mut inner = kept.inner();
    for earlier in 1..generation {
        let at = OF_RANK + (earlier as usize - 1) * OF_RESTART;
        let known = by_rank.iter().map(|numbers| &numbers[at..at + OF_RESTART]).filter(|known| known[0] >= 0.0);
        // Of two that know, the one that saw it through.
        let Some(known) = known.max_by(|one, other| one[3].total_cmp(&other[3])) else { continue };
        if let Some(restart) = inner.history.get_mut(&earlier).filter(|restart| restart.lost == Duration::ZERO) {
            restart.source = Source::ALL.get(known[0] as usize).copied().unwrap_or(Source::Overtaken);
            (restart.step, restart.redone) = (known[1] as u32, known[2] as u32);
            restart.lost = Duration::from_nanos(known[3] as u64);
        }
    }
}

/// The state of rank `giver` after `step` steps, on the rank `lacking`, which holds the same of every weight.
fn hand_over(
    transport: &mut dyn Transport,
    workload: &Workload,
    (giver, lacking): (usize, usize),
    step: u32,
    given: Option<Arc<RankState>>,
) -> Result<RankState, Cause> {
    let me = transport.rank();
    let mut ranks = vec![giver, lacking];
    ranks.sort_unstable();
    let root = usize::from(ranks[1] == lacking);
    // They differ, and this rank is one of them.
    let mut group = Group::new(ranks, me).unwrap_or_else(|error| unreachable!("{error}"));
    let is_double = workload.precision() == Some("f64");
    let count = keys(workload.position(lacking), &workload.places()).count();
    let mut parts = Vec::with_capacity(count);
    for at in 0..count {
        let held = given.as_ref().and_then(|state| state.parts.get(at));
        let part = if is_double {
            let values = if let Some(Buffer::F64(values)) = held { values.clone() } else { Vec::new() };
            Buffer::F64(transport.gather(&mut group, root, values)?.map_or_else(Vec::new, |all| all.concat()))
        } else {
            let values = if let Some(Buffer::F32(values)) = held { values.clone() } else { Vec::new() };
            Buffer::F32(transport.gather(&mut group, root, values)?.map_or_else(Vec::new, |all| all.concat()))
        };
        parts.push(part);
    }
    Ok(RankState { step, parts })
}
