//! What a spec leaves to the memory limit: what each layer computes again, how many layers of each stage keep what they keep
//! in the host's memory, or both.
//!
//! # Recomputation
//!
//! What each stage computes again so that every rank fits, in the least time.
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
//!
//! # The host's memory
//!
//! As many layers at the start of each stage as are needed ([`Offload`]): of no, few and more layers those are planned, each
//! with the recomputation that then is the least, of which the schedule costs the least. More of them leave more room, and
//! take longer where their copies take longer than what the device computes meanwhile (PipeOffload, arXiv:2503.01328 §3);
//! there each way to compute all layers' activations again is tried too, since what is computed again is not copied. Where a
//! stage has more than [`MOST_COUNTS`] layers, not every number is tried.

mod knapsack;
mod mixtures;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::Derived;
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::Partition;
use crate::graph::layout::RecomputeLayers;
use crate::graph::passes::{Account, Entry};
use crate::model::StageLayout;
use crate::problem::Schedule;
use crate::problem::op::OpKind;
use crate::problem::{Problem, StageCost};
use crate::schedule::Absent;
use crate::simulate::simulate;
use crate::simulate::timeline::schedule_peak_bytes;
use crate::spec::ModelWork;
use knapsack::{Item, Least, Moments};
pub use mixtures::MOST_MIXTURES;
use mixtures::{Mixture, Stages, drop_beaten};

/// Combinations of stages' mixtures that are begun on one rank in the order of their time.
pub const MOST_TRIES: usize = 50_000;
/// Turns of rows and choices.
const MOST_ROUNDS: usize = 8;
/// Numbers of layers in the host's memory that are tried, beside none.
pub const MOST_COUNTS: u32 = 16;
/// What the pass is called in its [`Account`].
pub const NAME: &str = "recompute to fit";
/// The same where the limit says what is kept in the host's memory.
pub const NAME_OF_OFFLOAD: &str = "offload to fit";

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// For each layer of the model what it computes again; none where the spec says it.
    pub choices: Option<Vec<Recompute>>,
    /// What is kept in the host's memory; none where the spec says it.
    pub offload: Option<Offload>,
    /// Why.
    pub account: Account,
}

impl Fitted {
    /// `work` with these choices.
    pub fn applied_to(&self, work: &ModelWork) -> ModelWork {
        let mut work = work.clone();
        if let Some(choices) = &self.choices {
            work.layout.form.recompute = Recompute::None;
            work.layout.recompute_layers = RecomputeLayers::Each(choices.clone());
        }
        if let Some(offload) = self.offload {
            work.layout.form.offload = offload;
            work.layout.offload_fits = false;
        }
        work
    }

    /// Whether nothing holds less: all that is left to the limit gives way.
    pub fn is_last_resort(&self) -> bool {
        let all_again = |choices: &Vec<Recompute>| choices.iter().all(|choice| *choice == Recompute::Full);
        self.choices.as_ref().is_none_or(all_again) && self.offload.is_none_or(|offload| offload == Offload::All)
    }
}

/// A problem and a schedule of it.
pub type Solved = (Derived, Problem, Schedule);

/// All that `work` leaves to the limit given way, with which the least is kept: every layer computed again in full, and all
/// in the host's memory.
pub fn full(work: &ModelWork) -> Fitted {
    let again = work.layout.recompute_layers == RecomputeLayers::Fit;
    let choices = again.then(|| vec![Recompute::Full; work.model.layers as usize]);
    let offload = work.layout.offload_fits.then_some(Offload::All);
    let mut account = Account::new(if offload.is_some() { NAME_OF_OFFLOAD } else { NAME });
    let why = match offload {
        Some(_) => "all layers: planned faster so than with less in the host's memory",
        None => "all layers: planned faster so than with less computed again",
    };
    account.done.push(Entry::new("every stage", None, why.to_string(), 0));
    Fitted { choices, offload, account }
}

/// What `work` leaves to its limit, so that every rank fits, under the schedule that `solve` makes of a choice.
///
/// # Errors
/// What `solve` says, or that a rank does not fit whatever is chosen.
pub fn fit(work: &ModelWork, mut solve: impl FnMut(ModelWork) -> Result<Solved, Absent>) -> Result<Fitted, Absent> {
    match work.layout.offload_fits {
        true => fit_offload(work, &mut solve),
        false => fit_recompute(work, &mut solve),
    }
}

/// The choice of layers for the host's memory with which the schedule costs the least; of equals the fewest.
fn fit_offload(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    if work.layout.partition == Partition::WithinLimit {
        return fit_offload_and_deal(work, solve);
    }
    let again_fits = work.layout.recompute_layers == RecomputeLayers::Fit;
    let limit = limit_of(work);
    // What each costs with nothing computed again for the limit. More in the host's memory leaves more room, and takes no
    // less; so those that fit come last, and the first of them is the fastest.
    let mut tried: Vec<(Nanos, Offload)> = Vec::new();
    let mut counts = None;
    let mut next = Some(Offload::None);
    let mut reason = Absent::because("there is no schedule");
    while let Some(offload) = next {
        let (derived, problem, schedule) = solve(with(work, offload))?;
        let of_stage = || derived.stages.iter().map(|stage| stage.layers.len() as u32).max().unwrap_or(0);
        next = counts.get_or_insert_with(|| offloads(of_stage()).into_iter()).next();
        let cost = cost_of(&problem, &schedule)?;
        tried.push((cost, offload));
        match over_limit(&problem, &schedule, limit) {
            None if !again_fits || tried.first().is_some_and(|(bare, _)| cost <= *bare) => {
                return Ok(in_part(work, offload, again_fits.then_some(Recompute::None)));
            }
            None => {}
            Some((rank, peak)) => {
                let what = in_words(offload);
                reason = Absent::because(format!(
                    "rank {rank} would hold {peak} bytes with {what} in the host's memory, and its limit is {limit}"
                ));
            }
        }
    }
    if !again_fits {
        return Err(reason);
    }
    // As long as copies take nothing, more of them are better than anything computed again.
    let bare = tried.first().map_or(0, |(bare, _)| *bare);
    let free = tried.iter().rposition(|(cost, _)| *cost <= bare).unwrap_or(0);
    let mut best: Option<(Nanos, Fitted)> = None;
    // Of those with which some rank does not fit, the one that holds the least.
    let mut nearest = Bytes::MAX;
    for (cost, offload) in &tried[free..] {
        let given = with(work, *offload);
        let least = fit_recompute(&given, solve);
        // What is computed again is not copied, so that there may be less to wait for; and where nothing fits, how much is
        // lacking with the most of it is told.
        let is_tried = |recompute: &Recompute| *cost > bare || least.is_err() && *recompute == Recompute::Full;
        let all = Recompute::ALL.into_iter().skip(1).filter(is_tried);
        let all: Vec<_> = all.map(|recompute| (recompute.name(), in_part(work, *offload, Some(recompute)))).collect();
        let least = least.map(|fitted| {
            let mut of_offload = in_part(work, *offload, None);
            of_offload.account.extend(fitted.account);
            ("some", Fitted { choices: fitted.choices, ..of_offload })
        });
        for (again, fitted) in least.into_iter().chain(all) {
            let Ok((_, problem, schedule)) = solve(fitted.applied_to(&given)) else { continue };
            match over_limit(&problem, &schedule, limit) {
                None => {
                    let cost = cost_of(&problem, &schedule)?;
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, fitted));
                    }
                }
                Some((rank, peak)) if peak < nearest => {
                    nearest = peak;
                    let what = in_words(*offload);
                    reason = Absent::because(format!(
                        "rank {rank} would hold {peak} bytes even with recompute {again} in all layers and {what} in the \
                         host's memory, and its limit is {limit}"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    best.map(|(_, fitted)| fitted).ok_or(reason)
}

/// The same where layers are dealt within the limit, so that more in the host's memory may deal them more evenly, and take
/// less: all numbers are tried.
fn fit_offload_and_deal(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let mut best: Option<(Nanos, Offload)> = None;
    let mut reason = Absent::because("there is no schedule");
    let of_stage = work.model.layers.div_ceil(work.pipeline.max(1));
    for offload in core::iter::once(Offload::None).chain(offloads(of_stage)) {
        let solved = solve(with(work, offload));
        let cost = solved.and_then(|(_, problem, schedule)| match over_limit(&problem, &schedule, limit_of(work)) {
            None => cost_of(&problem, &schedule),
            Some((rank, peak)) => Err(Absent::because(format!("rank {rank} would hold {peak} bytes"))),
        });
        match cost {
            Ok(cost) if best.is_none_or(|(least, _)| cost < least) => best = Some((cost, offload)),
            Ok(_) => {}
            Err(error) => reason = error,
        }
    }
    best.map(|(_, offload)| in_part(work, offload, None)).ok_or(reason)
}

fn with(work: &ModelWork, offload: Offload) -> ModelWork {
    let mut work = work.clone();
    (work.layout.form.offload, work.layout.offload_fits) = (offload, false);
    work
}

/// This in the host's memory, and the same of all layers computed again.
fn in_part(work: &ModelWork, offload: Offload, recompute: Option<Recompute>) -> Fitted {
    let mut account = Account::new(NAME_OF_OFFLOAD);
    let (what, limit) = (in_words(offload), limit_of(work));
    let why = format!("{what} in the host's memory: the fastest with which no rank holds more than {limit} bytes");
    let entry = Entry::new("every stage", None, why, 0);
    match offload {
        Offload::None => account.skipped.push(entry),
        _ => account.done.push(entry),
    }
    if let Some(recompute) = recompute.filter(|recompute| *recompute != Recompute::None) {
        let why = format!("{} for all of them, which leaves less to copy", recompute.name());
        account.done.push(Entry::new("every layer", None, why, 0));
    }
    let choices = recompute.map(|recompute| vec![recompute; work.model.layers as usize]);
    Fitted { choices, offload: Some(offload), account }
}

/// What is tried beside none for stages of so many layers, the fewest first.
fn offloads(of_stage: u32) -> Vec<Offload> {
    let steps = of_stage.min(MOST_COUNTS);
    // Not more than the layers of any model, so that nothing overflows.
    let offload = |step: u32| match of_stage * step / steps {
        all if all == of_stage => Offload::All,
        some => Offload::First(some),
    };
    (1..=steps).map(offload).collect()
}

/// What is kept in the host's memory.
fn in_words(offload: Offload) -> String {
    match offload {
        Offload::None => String::from("nothing"),
        Offload::First(1) => String::from("activations of the first layer of each stage"),
        Offload::First(layers) => format!("activations of the first {layers} layers of each stage"),
        Offload::All => String::from("activations of all layers"),
    }
}

/// What the schedule is judged by.
fn cost_of(problem: &Problem, schedule: &Schedule) -> Result<Nanos, Absent> {
    let timeline = simulate(problem, schedule).map_err(|deadlock| Absent::because(deadlock.to_string()))?;
    Ok(timeline.cost_ns(problem.objective()))
}

/// The rank that holds the most, where that is more than `limit`, and how much.
fn over_limit(problem: &Problem, schedule: &Schedule, limit: Bytes) -> Option<(usize, Bytes)> {
    let peaks = (0..problem.ranks()).map(|rank| (rank, schedule_peak_bytes(problem, schedule, rank)));
    peaks.max_by_key(|(_, peak)| *peak).filter(|(_, peak)| *peak > limit)
}

/// The least recomputation with which every rank of `work` fits. Where a schedule follows from the times of ops, rows and
/// choices are worked out in turn, from no recomputation on and, if that leads nowhere, from the most.
fn fit_recompute(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let layers = work.model.layers as usize;
    if let Ok(found) = settle(work, vec![Recompute::None; layers], solve) {
        return Ok(found);
    }
    settle(work, vec![Recompute::Full; layers], solve).or_else(|reason| {
        let all = full(work);
        let (_, problem, schedule) = solve(all.applied_to(work))?;
        if over_limit(&problem, &schedule, limit_of(work)).is_none() { Ok(all) } else { Err(reason) }
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
            return Ok(Fitted { choices: Some(choices), offload: None, account });
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
        let listed = self.ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        let (ranks, hold, their) = match self.ranks.len() {
            1 => (format!("rank {listed}"), "holds", "its"),
            _ => (format!("ranks {listed}"), "hold", "each one's"),
        };
        let Some(found) = found else {
            let all: Vec<usize> = lists.iter().map(|list| list.len() - 1).collect();
            return Err(Absent::because(format!(
                "{ranks} would hold {} bytes even with all layers computed again, and {their} limit is {limit}",
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
                "{}: {ranks} {hold} at most {peak} bytes of {limit} bytes, and {their} ops take {slower} ns more for each \
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
    use crate::plan::planner::{self, Answer};
    use crate::plan::verdict;
    use crate::schedule;
    use crate::spec::{Spec, Work};
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
                let ours = time(&stages.cost(layout, &fitted.choices.as_ref().unwrap()[range.clone()]));
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

    /// The spec with more `training` and a rate of copies.
    fn offloading(recompute: &str, offload: &str, limit: Bytes, host: &str) -> Spec {
        let mut spec = spec(recompute, &format!("{limit}"), "");
        let Work::Model(work) = &mut spec.work else { panic!("a model") };
        let said = format!(
            "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 1\n\
             [training]\nmicrobatches = 1\noffload = {offload}"
        );
        let said = Spec::read(&said).unwrap_or_else(|faults| panic!("{faults}"));
        let Work::Model(said) = said.work else { panic!("a model") };
        work.layout.form.offload = said.layout.form.offload;
        work.layout.offload_fits = said.layout.offload_fits;
        work.device.host_bytes_per_s = host.parse().unwrap();
        spec
    }

    /// Of all numbers of layers none with which all ranks fit costs less, nor as much with fewer: with a host that is far
    /// and one that is near, with recomputation and without.
    #[test]
    fn the_host_s_memory_is_used_as_far_as_it_is_needed() {
        let peak = |offload| {
            *peaks(&answer(&offloading("none", offload, 900 << 30, "25000000000"), "1f1b").unwrap())
                .iter()
                .max()
                .unwrap()
        };
        let (most, fewest) = (peak("\"none\""), peak("\"all\""));
        assert!(10 * fewest < 7 * most, "{fewest} {most}");
        let numbers = ["\"none\"", "1", "2", "3", "\"all\""];
        let mut seen = Vec::new();
        for host in ["1000000000", "25000000000", "400000000000"] {
            for recompute in ["none", "cheap", "fit"] {
                for share in [0, 1, 3, 5, 6] {
                    let limit = fewest + (most - fewest) * share / 6;
                    let ways: &[&str] = match recompute {
                        "fit" => &["fit", "none", "selective", "cheap", "full"],
                        given => &[given],
                    };
                    let cost = |number: &&str| {
                        let tried = ways.iter().map(|way| answer(&offloading(way, number, limit, host), "1f1b"));
                        tried.filter_map(|tried| Some(tried.ok()?.cost_ns())).min().unwrap_or(Nanos::MAX)
                    };
                    let costs = numbers.iter().map(cost);
                    let (at, least) = costs.enumerate().min_by_key(|(_, cost)| *cost).unwrap();
                    let found = answer(&offloading(recompute, "\"fit\"", limit, host), "1f1b");
                    let what = format!("{host} {recompute} {share}");
                    let Ok(found) = found else {
                        assert_eq!(least, Nanos::MAX, "{what}: {found:?}");
                        continue;
                    };
                    assert_eq!(found.cost_ns(), least, "{what}");
                    assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{what}");
                    let offload = found.case.fitted.unwrap().offload.unwrap();
                    let number = if offload == Offload::First(4) { Offload::All } else { offload }.text();
                    assert_eq!(number, numbers[at].trim_matches('"'), "{what}");
                    seen.push(number);
                }
            }
        }
        numbers.iter().for_each(|number| {
            assert!(seen.iter().any(|seen| seen == number.trim_matches('"')), "{number} of {seen:?}")
        });
    }

    #[test]
    fn a_plan_says_what_waits_on_the_host_and_derives_again() {
        let limit = 45_000_000_000;
        for recompute in ["none", "fit"] {
            let spec = offloading(recompute, "\"fit\"", limit, "25000000000");
            assert_eq!(Spec::read(&spec.to_json()).unwrap(), spec);
            assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec);
            let plan = planner::plan(&spec, "1f1b").unwrap();
            let Work::Model(work) = &plan.spec.work else { panic!("a model") };
            assert!(!work.layout.fits() && work.layout.form.offload != Offload::None);
            let again = Spec::read(&plan.spec.to_json()).unwrap();
            assert_eq!(again, plan.spec);
            assert_eq!(planner::plan(&again, "1f1b").unwrap().prediction, plan.prediction);
        }
        let error = answer(&offloading("none", "\"fit\"", 1_000_000_000, "25000000000"), "1f1b").unwrap_err();
        assert!(
            error.contains("with activations of all layers in the host's memory, and its limit is 1000000000"),
            "{error}"
        );
        // What would be held with the most of both is what a limit has to be at least.
        let both = |limit| answer(&offloading("fit", "\"fit\"", limit, "25000000000"), "1f1b");
        let error = both(1_000_000_000).unwrap_err();
        let held =
            error.split("would hold ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
        assert!(both(held).is_ok(), "{error}");
        assert!(both(held - held / 50).is_err(), "{error}");
    }

    /// Where layers are dealt within the limit, too, no number that can be said costs less.
    #[test]
    fn layers_are_dealt_beside_what_waits_on_the_host() {
        let dealt = |offload: &str, limit| {
            let mut spec = offloading("none", offload, limit, "25000000000");
            let Work::Model(work) = &mut spec.work else { panic!("a model") };
            work.layout.partition = Partition::WithinLimit;
            (work.model.layers, work.microbatches) = (18, 12);
            answer(&spec, "1f1b")
        };
        let roomy = dealt("\"all\"", 900 << 30).unwrap();
        let fewest = *peaks(&roomy).iter().max().unwrap();
        let mut some = 0;
        for limit in [fewest - fewest / 50, fewest + fewest / 50, fewest + fewest / 10, fewest + fewest / 4] {
            let tried = ["\"none\"", "1", "2", "3", "4", "\"all\""].map(|offload| dealt(offload, limit));
            let least = tried.iter().filter_map(|tried| Some(tried.as_ref().ok()?.cost_ns())).min();
            let found = dealt("\"fit\"", limit);
            assert_eq!(found.as_ref().ok().map(Answer::cost_ns), least, "{limit}: {:?}", found.err());
            some += usize::from(least.is_some());
        }
        assert!(some > 2, "{some}");
    }

    #[test]
    fn many_layers_are_tried_in_few_steps() {
        assert_eq!(offloads(1), [Offload::All]);
        assert_eq!(offloads(3), [Offload::First(1), Offload::First(2), Offload::All]);
        let many = offloads(4096);
        assert_eq!((many.len(), many[0], many[15]), (16, Offload::First(256), Offload::All));
        assert!(offloads(0).is_empty());
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
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&plan.spec)).unwrap(), plan.spec);
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec);
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
