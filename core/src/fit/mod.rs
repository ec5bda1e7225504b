//! Recomputation chosen to fit a limit: what each stage computes again so that every rank fits, in the least time.
//!
//! Given the rows of a schedule, what a rank holds depends on its own stages alone. So ranks are settled one by one (two
//! by two where a schedule goes two ways and both hold the same stages): of all mixtures of the choices of
//! [`Recompute`], the one that adds the least time to the rank's ops and with which its peak, worked out from the graphs
//! of just these stages, is within its limit. No op of any rank then takes longer than it has to for its rank to fit.
//!
//! A mixture gives the first layers of a stage the choice that keeps the least, and so on to the last layers, which keep
//! the most: a stage's last layers come first in the backward, while all others still hold their bytes.
//!
//! What a mixture takes and holds follows from its graph, or where there are many from sums over its layers. Combinations
//! of the stages' mixtures come from the fastest on, and only those of which the rank holds no more than it may
//! (`least`); where bytes are sums, which leave out what is only held while an op runs, the graphs decide. The first that
//! fits is the least. Beyond [`MOST_TRIES`] that were begun, those nearest to their end go on first, and the account says
//! how far from the least what they come to is at most; last, those are tried in which all stages go equally far. Where a
//! stage has so many layers that there would be more than [`MOST_MIXTURES`] mixtures, choices go to several layers at a
//! time, and the account says that, too.
//!
//! Some schedules follow from the times of ops, which recomputation changes. Then rows and choices are worked out in
//! turn until both stay.

mod least;
mod mixtures;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::derive::Derived;
use crate::graph::form::Recompute;
use crate::graph::passes::{Account, Entry};
use crate::layout::RecomputeLayers;
use crate::op::OpKind;
use crate::partition::StageLayout;
use crate::problem::{Problem, StageCost};
use crate::schedule::{Absent, Schedule};
use crate::spec::ModelWork;
use crate::timeline::schedule_peak_bytes;
use crate::units::{Bytes, Nanos};
use least::{Item, Least, Moments};
pub use mixtures::MOST_MIXTURES;
use mixtures::{Mixture, Stages, drop_beaten};

/// Combinations of stages' mixtures that are begun on one rank in the order of their time.
pub const MOST_TRIES: usize = 50_000;
/// Turns of rows and choices.
const MOST_ROUNDS: usize = 8;
/// What the pass is called in its [`Account`].
pub const NAME: &str = "recompute to fit";

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// For each layer of the model.
    pub choices: Vec<Recompute>,
    /// Why.
    pub account: Account,
}

impl Fitted {
    /// `work` with these choices.
    pub fn applied_to(&self, work: &ModelWork) -> ModelWork {
        let mut work = work.clone();
        work.layout.form.recompute = Recompute::None;
        work.layout.recompute_layers = RecomputeLayers::Each(self.choices.clone());
        work
    }
}

/// A problem and a schedule of it.
pub type Solved = (Derived, Problem, Schedule);

/// Every layer computed again in full: what always holds the least.
pub fn full(work: &ModelWork) -> Fitted {
    let mut account = Account::new(NAME);
    let why = "all layers: planned faster so than with less computed again".to_string();
    account.done.push(Entry::new("every stage", None, why, 0));
    Fitted { choices: vec![Recompute::Full; work.model.layers as usize], account }
}

/// The least recomputation with which every rank of `work` fits, under the schedule that `solve` makes for a choice of
/// each layer. Where a schedule follows from the times of ops, rows and choices are worked out in turn, from no
/// recomputation on and, if that leads nowhere, from the most.
///
/// # Errors
/// What `solve` says, or that a rank does not fit whatever it computes again.
pub fn fit(work: &ModelWork, mut solve: impl FnMut(ModelWork) -> Result<Solved, Absent>) -> Result<Fitted, Absent> {
    let layers = work.model.layers as usize;
    if let Ok(found) = settle(work, vec![Recompute::None; layers], &mut solve) {
        return Ok(found);
    }
    settle(work, vec![Recompute::Full; layers], &mut solve).or_else(|reason| {
        let all = full(work);
        let (_, problem, schedule) = solve(all.applied_to(work))?;
        let fits = |rank: usize| schedule_peak_bytes(&problem, &schedule, rank) <= limit_of(work);
        if (0..problem.ranks()).all(fits) { Ok(all) } else { Err(reason) }
    })
}

fn limit_of(work: &ModelWork) -> Bytes {
    work.limit_bytes.unwrap_or(work.device.memory_bytes)
}

/// Rows and choices in turn, from `choices` on, until both stay.
fn settle(
    work: &ModelWork,
    mut choices: Vec<Recompute>,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let limit = limit_of(work);
    let with = |choices: &[Recompute]| {
        let mut work = work.clone();
        work.layout.form.recompute = Recompute::None;
        work.layout.recompute_layers = RecomputeLayers::Each(choices.to_vec());
        work
    };
    let mut stages = Stages::new(with(&choices));
    for _ in 0..MOST_ROUNDS {
        let (derived, problem, schedule) = solve(with(&choices))?;
        let mut account = Account::new(NAME);
        let mut next = choices.clone();
        for group in groups(&problem) {
            let chosen = group.choose(&problem, &schedule, &derived, limit, &mut stages, &mut account)?;
            for (stage, mixture) in chosen {
                let layers = derived.stages[stage].layers.clone();
                next[layers.start as usize..layers.end as usize].copy_from_slice(&mixture);
            }
        }
        if next == choices {
            return Ok(Fitted { choices, account });
        }
        choices = next;
    }
    Err(Absent::because(format!(
        "the schedule changes with what is computed again, and after {MOST_ROUNDS} rounds no choice fits its own schedule"
    )))
}

/// Ranks that hold the same stages, with them.
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
        account: &mut Account,
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
            note = format!("; {stride} layers were given a choice at a time, so perhaps not the least");
        }
        if found.is_none() && least.taken() == MOST_TRIES {
            let floor = least.floor();
            least.dive();
            found = core::iter::from_fn(|| least.next(2 * MOST_TRIES)).find(&mut fits);
            // Where several layers got a choice at a time, the least of all may be lower still.
            if stride == 1 {
                let over = found.as_ref().map_or(0, |found| time(found).saturating_sub(floor)) / microbatches;
                note = format!("; perhaps not the least, which may take {over} ns less");
            }
        }
        if found.is_none() && least.taken() == 2 * MOST_TRIES {
            note = "; found among equal shares of all stages, so perhaps not the least".to_string();
            const STEPS: usize = 1000;
            let equal = |step: usize| lists.iter().map(|list| (list.len() - 1) * step / STEPS).collect::<Vec<_>>();
            found = (0..=STEPS).map(equal).find(|at| exact(at) <= limit);
        }
        let ranks: Vec<_> = self.ranks.iter().map(ToString::to_string).collect();
        let ranks = ranks.join(" and ");
        let Some(found) = found else {
            let all: Vec<usize> = lists.iter().map(|list| list.len() - 1).collect();
            return Err(Absent::because(format!(
                "rank {ranks} would hold {} bytes even with all layers computed again, and its limit is {limit}",
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
                "{}: rank {ranks} holds at most {peak} bytes of {limit} bytes, and its ops take {slower} ns more for each \
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

    /// How many backward ops of each kind the group's ranks run of each stage.
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
    /// What they take with `cost`.
    fn of(self, cost: &StageCost) -> Nanos {
        let kinds = [OpKind::B, OpKind::W, OpKind::BW].map(|kind| cost.duration(kind));
        self.0.iter().zip(kinds).fold(0, |sum: Nanos, (times, ns)| sum.saturating_add(times.saturating_mul(ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::{self, Answer};
    use crate::schedule;
    use crate::spec::{Spec, Work};
    use crate::verdict;
    use std::string::String;

    fn spec(recompute: &str, limit: &str, more: &str) -> Spec {
        let text = format!(
            "[model]\nname = \"llama-2-13b\"\nlayers = 16\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 4\n\
             {more}\n[training]\nmicrobatches = 8\nmicrobatch_size = 2\nrecompute = \"{recompute}\"\n\
             [memory]\nlimit_bytes = {limit}"
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn answer(spec: &Spec, name: &str) -> Result<Answer, String> {
        planner::answer(spec, &schedule::find(name).unwrap()).map_err(|absent| absent.reason)
    }

    fn peaks(answer: &Answer) -> Vec<Bytes> {
        let problem = &answer.case.problem;
        (0..problem.ranks()).map(|rank| answer.timeline.peak_bytes(problem, rank)).collect()
    }

    /// Every rank fits, and nothing with less time in any rank's ops would: all mixtures of all ranks are tried.
    #[test]
    fn the_choice_is_the_least_that_fits() {
        let plenty = answer(&spec("none", "900000000000", ""), "1f1b").unwrap();
        let least = answer(&spec("full", "900000000000", ""), "1f1b").unwrap();
        let (most, fewest) = (*peaks(&plenty).iter().max().unwrap(), *peaks(&least).iter().max().unwrap());
        let mut seen = Vec::new();
        for share in 0..=6 {
            let limit = fewest + (most - fewest) * share / 6;
            let spec = spec("fit", &format!("{limit}"), "");
            let found = answer(&spec, "1f1b").unwrap();
            assert!(peaks(&found).iter().all(|peak| *peak <= limit));
            let fitted = found.case.fitted.clone().unwrap();
            let (derived, Work::Model(work)) = (found.case.derived.as_ref().unwrap(), &spec.work) else { panic!() };
            for (rank, layout) in derived.stages.iter().enumerate() {
                let range = layout.layers.start as usize..layout.layers.end as usize;
                let mut stages = Stages::new(fitted.applied_to(work));
                let time = |cost: &StageCost| cost.backward_input_ns + cost.backward_weight_ns;
                let ours = time(&stages.cost(layout, &fitted.choices[range.clone()]));
                let moments = Moments::of(&found.case.problem, &found.schedule, rank, &[rank]);
                for mixture in stages.mixtures(layout).list {
                    let cost = stages.cost(layout, &mixture.choices(layout.layers.len()));
                    let peak = moments.peak(&[cost]);
                    assert!(peak > limit || time(&cost) >= ours, "rank {rank}: {:?}", mixture.runs);
                }
            }
            seen.push(found.timeline.makespan_ns());
        }
        assert!(seen.windows(2).all(|pair| pair[0] >= pair[1]), "more memory never costs time: {seen:?}");
        assert_eq!(seen[6], plenty.timeline.makespan_ns());
        assert!(seen[3] < seen[0]);
    }

    /// Also for schedules whose rows follow from times, and where the limit is just what that takes. And the best of what
    /// fits is no slower.
    #[test]
    fn what_fits_with_all_layers_computed_again_fits() {
        let mut seen = 0;
        for published in schedule::published() {
            let Ok(full) = answer(&spec("full", "900000000000", ""), published.name) else { continue };
            let limit = peaks(&full).into_iter().max().unwrap();
            // Within its own peak a schedule that minds the limit may be another.
            let Ok(full) = answer(&spec("full", &format!("{limit}"), ""), published.name) else { continue };
            let found = answer(&spec("fit", &format!("{limit}"), ""), published.name);
            let found = found.unwrap_or_else(|reason| panic!("{} in {limit}: {reason}", published.name));
            assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{}", published.name);
            let best = |recompute| {
                let spec = spec(recompute, &format!("{limit}"), "");
                let best =
                    planner::best(&spec, crate::search::Effort::default(), &mut |_| crate::search::Flow::Continue);
                best.unwrap_or_else(|error| panic!("{} in {limit}: {error}", published.name)).timeline.makespan_ns()
            };
            if seen % 4 == 0 {
                let (fit, full_best) = (best("fit"), best("full"));
                assert!(
                    fit <= full_best && full_best <= full.timeline.makespan_ns(),
                    "{}: {fit} {full_best}",
                    published.name
                );
            }
            seen += 1;
        }
        assert!(seen > 12, "{seen} schedules");
    }

    #[test]
    fn a_model_of_many_layers_on_few_ranks_is_fitted_and_says_how() {
        let mut spec = spec("fit", "900000000000", "");
        let Work::Model(work) = &mut spec.work else { panic!("a model") };
        work.model.layers = 1200;
        work.pipeline = 1;
        let all = answer(&Spec { work: Work::Model(work.clone()), ..spec.clone() }, "1f1b").unwrap_err();
        assert!(all.contains("even with all layers computed again"), "{all}");
        let Work::Model(work) = &mut spec.work else { panic!("a model") };
        work.limit_bytes = Some(8_000_000_000_000);
        let found = answer(&spec, "1f1b").unwrap();
        assert!(peaks(&found)[0] <= 8_000_000_000_000);
        let said = format!("{:?}", found.case.fitted.unwrap().account);
        assert!(said.contains("layers were given a choice at a time"), "{said}");
    }

    #[test]
    fn every_kind_of_schedule_is_fitted() {
        for name in ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe"] {
            let free = answer(&spec("none", "900000000000", ""), name).unwrap();
            let full = answer(&spec("full", "900000000000", ""), name).unwrap();
            let (most, fewest) = (*peaks(&free).iter().max().unwrap(), *peaks(&full).iter().max().unwrap());
            let limit = fewest + most.saturating_sub(fewest) * 2 / 3;
            let found =
                answer(&spec("fit", &format!("{limit}"), ""), name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{name}");
            assert!(found.timeline.makespan_ns() <= full.timeline.makespan_ns(), "{name}");
            let fitted = found.case.fitted.as_ref().unwrap();
            assert!(
                fitted.account.done.len() + fitted.account.skipped.len() == found.case.problem.stage_count(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_plan_says_what_was_chosen_and_derives_again() {
        let spec = spec("fit", "45000000000", "");
        let plan = planner::plan(&spec, "1f1b").unwrap();
        let Work::Model(work) = &plan.spec.work else { panic!("a model") };
        assert!(matches!(work.layout.recompute_layers, RecomputeLayers::Each(_)));
        let again = Spec::read(&plan.spec.to_json()).unwrap();
        assert_eq!(again, plan.spec);
        assert_eq!(planner::plan(&again, "1f1b").unwrap().prediction, plan.prediction);
        assert_eq!(crate::link::read(&crate::link::write(&plan.spec)).unwrap(), plan.spec);
        assert_eq!(crate::link::read(&crate::link::write(&spec)).unwrap(), spec);
    }

    #[test]
    fn what_cannot_fit_says_by_how_much() {
        let error = answer(&spec("fit", "1000000000", ""), "1f1b").unwrap_err();
        assert!(error.contains("even with all layers computed again, and its limit is 1000000000"), "{error}");
        // And what to change still has numbers.
        let (_, ranks) = verdict::verdict(&spec("fit", "1000000000", ""), &schedule::find("1f1b").unwrap()).unwrap();
        assert!(ranks.iter().all(|rank| !rank.fits()));
    }
}
