//! Recomputation that fits: for each rank the mixture of choices that takes the least time.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use super::knapsack::{Item, Least, Moments};
use super::mixtures::{Mixture, Stages, drop_beaten};
use super::{Fitted, MOST_ROUNDS, MOST_TRIES, NAME, Solved, full, limit_of, over_limit};
use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::Derived;
use crate::graph::form::Recompute;
use crate::graph::layout::RecomputeLayers;
use crate::graph::passes::{Entry, PassReport};
use crate::model::StageLayout;
use crate::problem::op::OpKind;
use crate::problem::{Problem, Schedule, StageCost};
use crate::schedule::Absent;
use crate::spec::ModelWork;

/// The least recomputation with which every rank of `work` fits. Where the schedule depends on the times of ops,
/// schedule and choices are computed alternately: first from no recomputation, and if that fails, from full
/// recomputation.
pub(super) fn fit_recompute(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let layers = work.model.layers as usize;
    let mut stages = Stages::new(with(work, &vec![Recompute::None; layers]));
    if let Ok(found) = settle(work, vec![Recompute::None; layers], &mut stages, solve) {
        return Ok(found);
    }
    settle(work, vec![Recompute::Full; layers], &mut stages, solve).or_else(|reason| {
        let all = full(work);
        let (_, problem, schedule) = solve(all.applied_to(work))?;
        if over_limit(&problem, &schedule, limit_of(work)).is_none() { Ok(all) } else { Err(reason) }
    })
}

/// Computes schedule and choices alternately, from `choices` on, until both stay the same.
fn settle(
    work: &ModelWork,
    mut choices: Vec<Recompute>,
    stages: &mut Stages,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let limit = limit_of(work);
    for _ in 0..MOST_ROUNDS {
        let (derived, problem, schedule) = solve(with(work, &choices))?;
        let mut account = PassReport::new(NAME);
        let mut next = choices.clone();
        for group in groups(&problem) {
            let chosen = group.choose(&problem, &schedule, &derived, limit, stages, &mut account)?;
            for (stage, mixture) in chosen {
                let layers = derived.stages[stage].layers.clone();
                next[layers.start as usize..layers.end as usize].copy_from_slice(&mixture);
            }
        }
        if next == choices {
            return Ok(Fitted { choices: Some(choices), offload: None, account });
        }
        choices = next;
    }
    Err(Absent::because(format!(
        "the schedule depends on the recomputation: after {MOST_ROUNDS} rounds no choice fits its own schedule"
    )))
}

/// `work` with these choices.
fn with(work: &ModelWork, choices: &[Recompute]) -> ModelWork {
    let mut work = work.clone();
    work.layout.form.recompute = Recompute::None;
    work.layout.recompute_layers = RecomputeLayers::Each(choices.to_vec());
    work
}

/// Ranks that hold the same stages.
struct Group {
    ranks: Vec<usize>,
    stages: Vec<usize>,
}

fn groups(problem: &Problem) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for rank in 0..problem.ranks() {
        let holds =
            |stage: &usize| [0, problem.microbatches() - 1].iter().any(|at| problem.rank_of(*stage, *at) == rank);
        let stages: Vec<usize> = (0..problem.stage_count()).filter(holds).collect();
        match groups.iter_mut().find(|group| group.stages == stages) {
            Some(group) => group.ranks.push(rank),
            None => groups.push(Group { ranks: vec![rank], stages }),
        }
    }
    groups
}

type Chosen = Vec<(usize, Vec<Recompute>)>;

impl Group {
    /// The fastest mixture of each stage with which all ranks fit.
    fn choose(
        &self,
        problem: &Problem,
        schedule: &Schedule,
        derived: &Derived,
        limit: Bytes,
        stages: &mut Stages,
        account: &mut PassReport,
    ) -> Result<Chosen, Absent> {
        let layouts: Vec<_> = self.stages.iter().map(|stage| &derived.stages[*stage]).collect();
        let mixtures: Vec<_> = layouts.iter().map(|layout| stages.mixtures(layout)).collect();
        let stride = mixtures.iter().map(|mixtures| mixtures.stride).max().unwrap_or(1);
        let is_exact = mixtures.iter().all(|mixtures| mixtures.exact);
        let mut lists: Vec<Vec<Mixture>> = mixtures.into_iter().map(|mixtures| mixtures.list).collect();
        if lists.len() > 1 {
            lists.iter_mut().for_each(drop_beaten);
        }
        let moments: Vec<Moments> =
            self.ranks.iter().map(|rank| Moments::of(problem, schedule, *rank, &self.stages)).collect();
        let times = self.times(schedule);
        let items: Vec<Vec<Item>> = lists
            .iter()
            .zip(&times)
            .map(|(list, times)| {
                list.iter().map(|mixture| Item { time: times.of(&mixture.cost), cost: mixture.cost }).collect()
            })
            .collect();
        let mut exact = |at: &[usize]| -> Bytes {
            let chosen = at.iter().zip(&lists).map(|(at, list)| &list[*at]);
            let cost = |(layout, mixture): (&&StageLayout, &Mixture)| {
                stages.cost(layout, &mixture.choices(layout.layers.len()))
            };
            let costs: Vec<StageCost> = layouts.iter().zip(chosen).map(cost).collect();
            moments.iter().map(|moments| moments.peak(&costs)).max().unwrap_or(0)
        };
        let mut least = Least::new(&items, &moments, limit);
        let mut fits = |at: &Vec<usize>| is_exact || exact(at) <= limit;
        let mut found = core::iter::from_fn(|| least.next(MOST_TRIES)).find(&mut fits);
        let time =
            |at: &[usize]| at.iter().zip(&items).map(|(at, items)| items[*at].time).fold(0, Nanos::saturating_add);
        let microbatches = problem.microbatches() as u64;
        let mut note = String::new();
        if stride > 1 {
            note = format!("; {stride} layers share a choice, so a cheaper choice may exist");
        }
        if found.is_none() && least.taken() == MOST_TRIES {
            let floor = least.floor();
            least.dive();
            found = core::iter::from_fn(|| least.next(2 * MOST_TRIES)).find(&mut fits);
            // Where several layers share a choice, the floor is not the least of all.
            if stride == 1 {
                let over = found.as_ref().map_or(0, |found| time(found).saturating_sub(floor)) / microbatches;
                note = format!("; a cheaper choice may exist, at most {over} ns faster");
            }
        }
        if found.is_none() && least.taken() == 2 * MOST_TRIES {
            note = "; tried only with equal shares of all stages, so a cheaper choice may exist".to_string();
            const STEPS: usize = 1000;
            let equal = |step: usize| lists.iter().map(|list| (list.len() - 1) * step / STEPS).collect::<Vec<_>>();
            found = (0..=STEPS).map(equal).find(|at| exact(at) <= limit);
        }
        let listed = self.ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let (ranks, need, their) = match self.ranks.len() {
            1 => (format!("rank {listed}"), "needs", "its"),
            _ => (format!("ranks {listed}"), "each need", "their"),
        };
        let Some(found) = found else {
            let all: Vec<usize> = lists.iter().map(|list| list.len() - 1).collect();
            return Err(Absent::because(format!(
                "{ranks} {need} {} bytes even with full recomputation of all layers; the limit is {limit} bytes",
                exact(&all)
            )));
        };
        let peak = exact(&found);
        let slower = time(&found).saturating_sub(time(&vec![0; items.len()])) / microbatches;
        let mut chosen = Vec::new();
        for ((at, list), stage) in found.iter().zip(&lists).zip(&self.stages) {
            let mixture = list[*at].choices(derived.stages[*stage].layers.len());
            let what = format!("stage {stage}");
            let text = RecomputeLayers::text_of(&mixture);
            let why = format!(
                "{}: {ranks} {need} at most {peak} bytes of {limit} bytes, and {their} ops take {slower} ns more for each \
                 microbatch{note}",
                if text.is_empty() { "no layers" } else { &text }
            );
            let entry = Entry::new(&what, None, why, 0);
            match mixture.iter().any(|choice| *choice != Recompute::None) {
                true => account.done.push(entry),
                false => account.skipped.push(entry),
            }
            chosen.push((*stage, mixture));
        }
        Ok(chosen)
    }

    /// How many backward ops of each kind the ranks run of each stage.
    fn times(&self, schedule: &Schedule) -> Vec<Times> {
        let mut times = vec![Times::default(); self.stages.len()];
        for op in self.ranks.iter().flat_map(|rank| &schedule.rows[*rank]) {
            let Some(at) = self.stages.iter().position(|stage| *stage == op.stage()) else { continue };
            let [b, w, fused] = &mut times[at].0;
            match op.kind() {
                OpKind::F => {}
                OpKind::B => *b += 1,
                OpKind::W => *w += 1,
                OpKind::BW => *fused += 1,
            }
        }
        times
    }
}

/// How often a stage runs B, W and BW.
#[derive(Clone, Copy, Debug, Default)]
struct Times([u64; 3]);

impl Times {
    /// The time of the ops with `cost`.
    fn of(self, cost: &StageCost) -> Nanos {
        let kinds = [OpKind::B, OpKind::W, OpKind::BW].map(|kind| cost.duration(kind));
        self.0.iter().zip(kinds).fold(0, |sum: Nanos, (times, ns)| sum.saturating_add(times.saturating_mul(ns)))
    }
}
