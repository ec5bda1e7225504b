//! A local search over packings: it swaps the places of two microbatches, or exchanges documents between two. It takes what is no
//! worse than the packing some steps before (late acceptance: Burke and Bykov, EJOR 258, 2017). Of two packings the better one
//! has the shorter slowest replica, then the shorter replicas together.

use alloc::vec;
use alloc::vec::Vec;

use super::balance::Bin;
use super::{Effort, Flow, Packed, Progress, Run};
use crate::base::random::Random;
use crate::base::units::Nanos;
use crate::problem::packing::Packing;

/// Costs that late acceptance remembers.
const REMEMBERED: usize = 200;
/// Steps between two calls of an observer.
const QUIET: u64 = 1_000;

/// The slowest replica, and all together.
type Cost = (Nanos, u128);

struct State {
    bins: Vec<Vec<Bin>>,
    times: Vec<Vec<Nanos>>,
    costs: Vec<Nanos>,
}

impl State {
    fn of(run: &mut Run, packing: &Packing) -> Option<State> {
        let (mut times, mut costs) = (Vec::new(), Vec::new());
        for microbatches in packing {
            costs.push(run.replica(microbatches, Nanos::MAX)?);
            times.push(run.times.clone());
        }
        let bin = |documents: &Vec<u32>| Bin::new(run.batch, documents.clone());
        let bins = packing.iter().map(|of| of.iter().map(bin).collect()).collect();
        Some(State { bins, times, costs })
    }

    fn cost(&self) -> Cost {
        let most = self.costs.iter().max().copied().unwrap_or(0);
        (most, self.costs.iter().map(|cost| u128::from(*cost)).sum())
    }

    fn packing(&self) -> Packing {
        self.bins.iter().map(|of| of.iter().map(|bin| bin.documents.clone()).collect()).collect()
    }

    /// Puts `bin` in its place; gives the one that was there.
    fn put(&mut self, run: &Run, [replica, place]: [usize; 2], bin: Bin) -> Bin {
        run.write(&mut self.times[replica], place, run.batch.load(&bin.documents));
        core::mem::replace(&mut self.bins[replica][place], bin)
    }

    /// Two places, one of them in the slowest replica at times.
    fn places(&self, random: &mut Random) -> [[usize; 2]; 2] {
        let (replicas, each) = (self.bins.len() as u64, self.bins[0].len() as u64);
        let slowest = || self.costs.iter().enumerate().max_by_key(|(_, cost)| **cost).map_or(0, |(at, _)| at);
        let one = if random.below(4) > 0 { slowest() } else { random.below(replicas) as usize };
        let other = if random.below(2) > 0 { one } else { random.below(replicas) as usize };
        [one, other].map(|replica| [replica, random.below(each) as usize])
    }
}

/// The best packing found from `start` on, until `effort` ops have run; documents and replicas that are looked at count as ops.
pub(super) fn search(
    run: &mut Run,
    start: Packing,
    bound_ns: Nanos,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Packed {
    let Some(mut state) = State::of(run, &start) else { return Packed { packing: start, cost_ns: 0, ops: run.ops } };
    let mut random = Random::new(1);
    let mut now = state.cost();
    let (mut best, mut saved, mut is_saved) = (now, start, true);
    let mut remembered = vec![now; REMEMBERED];
    let (mut steps, mut quiet) = (0, 0);
    let bins = run.batch.bins.count();
    while run.ops < effort.0 && best.0 > bound_ns && bins > 1 {
        let slot = steps % REMEMBERED;
        steps += 1;
        quiet += 1;
        let most = remembered[slot].max(now);
        // A step that is not possible counts too.
        run.ops += 8;
        if let Some((cost, undo)) = step(run, &mut state, &mut random, most) {
            if cost > best && !is_saved {
                // `best` is what was there before this step.
                run.ops += run.batch.documents.len() as u64;
                saved = before(&state, &undo);
                is_saved = true;
            }
            now = cost;
        }
        let improved = now < best;
        if improved {
            (best, is_saved) = (now, false);
        }
        remembered[slot] = remembered[slot].min(now);
        if improved || quiet >= QUIET {
            quiet = 0;
            if observer(Progress { ops: run.ops, cost_ns: best.0, bound_ns }) == Flow::Stop {
                break;
            }
        }
    }
    let packing = if is_saved { saved } else { state.packing() };
    Packed { packing, cost_ns: best.0, ops: run.ops }
}

/// What was in two places before a step.
type Undo = [([usize; 2], Bin); 2];

/// One step, if it costs no more than `most`: its cost, and what was there before.
fn step(run: &mut Run, state: &mut State, random: &mut Random, most: Cost) -> Option<(Cost, Undo)> {
    let [one, two] = state.places(random);
    if one == two {
        return None;
    }
    let [first, second] = [one, two].map(|[replica, place]| &state.bins[replica][place]);
    // Both are copied, and the costs of all replicas are looked at.
    run.ops += (first.documents.len() + second.documents.len() + state.costs.len()) as u64;
    let changed = match random.below(2) {
        0 => (second.clone(), first.clone()),
        _ => first.exchanged(second, run.batch, random)?,
    };
    let undo = [(one, state.put(run, one, changed.0)), (two, state.put(run, two, changed.1))];
    let before = [one, two].map(|[replica, _]| state.costs[replica]);
    let replicas = if one[0] == two[0] { &[one[0]][..] } else { &[one[0], two[0]][..] };
    let fits = replicas.iter().all(|replica| {
        let cost = run.cost(&state.times[*replica], most.0.saturating_add(1));
        cost.inspect(|cost| state.costs[*replica] = *cost).is_some()
    });
    let cost = state.cost();
    if fits && cost <= most {
        return Some((cost, undo));
    }
    for ((place, bin), cost) in undo.into_iter().zip(before) {
        state.costs[place[0]] = cost;
        state.put(run, place, bin);
    }
    None
}

/// The packing before the step that `undo` takes back.
fn before(state: &State, undo: &Undo) -> Packing {
    let mut packing = state.packing();
    for ([replica, place], bin) in undo {
        packing[*replica][*place] = bin.documents.clone();
    }
    packing
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use serde_json::json;

    use super::super::super::orders::fixed::Tables;
    use super::super::{Batch, Run};
    use super::*;
    use crate::problem::Statement;
    use crate::problem::packing::{Bins, Document, DocumentTimes, Shares};
    use crate::problem::placement::Placement;
    use crate::schedule::find;

    /// What a step copies and looks at counts as effort: it takes longer with more documents, and with more replicas.
    #[test]
    fn effort_counts_documents_and_replicas() {
        let file = json!({ "ranks": 1, "microbatches": 2,
            "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10 } });
        let problem = Statement::read(&file).unwrap().problem(Placement::Linear).unwrap();
        let schedule = find("1f1b").unwrap().build(&problem).unwrap();
        let shares = Shares { usual_ns: [10; 3], fixed_ns: [5; 3], by_load_ns: [[5, 0]; 3] };
        let times = DocumentTimes { stages: [shares].into(), whole: [1 << 20, 1] };
        let spent = |replicas: usize, each: usize| {
            let bins = Bins { replicas, microbatches: 2, tokens: 1 << 20 };
            let document = Document { tokens: 1, loads: [1, 0] };
            let documents: Vec<Document> = [document].repeat(bins.count() * each);
            let batch = Batch { problem: &problem, bins, documents: &documents, times: &times };
            let tables = Tables::of(&problem);
            let mut run = Run::new(&batch, &tables, &schedule).unwrap();
            let number = |at: usize| (at * each..(at + 1) * each).map(|document| document as u32).collect();
            let packing: Packing = (0..replicas).map(|of| [number(2 * of), number(2 * of + 1)].into()).collect();
            let mut state = State::of(&mut run, &packing).unwrap();
            run.ops = 0;
            let (mut random, most) = (Random::new(7), state.cost());
            while step(&mut run, &mut state, &mut random, most).is_none() {}
            run.ops
        };
        let few = spent(1, 1);
        assert!(spent(1, 1000) >= few + 2 * 999);
        assert!(spent(500, 1) >= few + 499);
    }
}
