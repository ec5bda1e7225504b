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
//! What a mixture adds in time, and what it leaves held after F and after B, are sums over its layers. So mixtures are
//! tried from the fastest on, those are passed over whose held bytes alone do not fit, and the graph of the others is
//! built. The first that fits is the least. Where a rank holds several stages, their mixtures are combined in the same
//! order, of those that no other one beats in both time and bytes; beyond [`MOST_TRIES`] combinations, only those are
//! tried in which all stages go equally far, and the account says so. So it does where a stage has so many layers that
//! there would be more than [`MOST_MIXTURES`] of them: choices then go to several layers at a time.
//!
//! Some schedules follow from the times of ops, which recomputation changes. Then rows and choices are worked out in
//! turn until both stay.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::derive::{Derived, stage_cost};
use crate::graph::form::Recompute;
use crate::graph::passes::{Account, Entry};
use crate::layout::RecomputeLayers;
use crate::op::OpKind;
use crate::partition::StageLayout;
use crate::problem::{Problem, StageCost};
use crate::schedule::{Absent, Schedule};
use crate::spec::ModelWork;
use crate::units::{Bytes, Nanos};

/// Combinations of several stages' mixtures that are tried on one rank before only equal ones are.
pub const MOST_TRIES: usize = 50_000;
/// Mixtures of one stage that are looked at: all of those of up to 132 layers with three choices, 893 with two.
pub const MOST_MIXTURES: usize = 400_000;
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

/// The least recomputation with which every rank of `work` fits, under the schedule that `solve` makes for a choice of
/// each layer.
///
/// # Errors
/// What `solve` says, or that a rank does not fit whatever it computes again.
pub fn fit(work: &ModelWork, mut solve: impl FnMut(ModelWork) -> Result<Solved, Absent>) -> Result<Fitted, Absent> {
    let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
    let with = |choices: &[Recompute]| {
        let mut work = work.clone();
        work.layout.form.recompute = Recompute::None;
        work.layout.recompute_layers = RecomputeLayers::Each(choices.to_vec());
        work
    };
    let mut choices = vec![Recompute::None; work.model.layers as usize];
    let mut stages = Stages { work: with(&choices), costs: BTreeMap::new(), mixtures: BTreeMap::new() };
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

/// What a mixture does to a stage, by sums over its layers: durations are whole, bytes leave out what is only held while
/// an op runs.
#[derive(Clone, Debug)]
struct Mixture {
    runs: Runs,
    cost: StageCost,
}

/// What the first layers compute again, up to which layer, and so on; those behind the last run compute nothing again.
type Runs = Vec<(Recompute, usize)>;

impl Mixture {
    /// The choice of each of `layers` layers.
    fn choices(&self, layers: usize) -> Vec<Recompute> {
        let mut choices = vec![Recompute::None; layers];
        let mut from = 0;
        for (choice, to) in &self.runs {
            choices[from..*to].fill(*choice);
            from = *to;
        }
        choices
    }
}

/// The mixtures of a stage.
#[derive(Clone, Debug)]
struct Mixtures {
    /// From the fastest on; of equals the one that holds less.
    list: Vec<Mixture>,
    /// How many layers get a choice at a time.
    stride: usize,
}

/// What is known of stages.
struct Stages {
    work: ModelWork,
    costs: BTreeMap<(u32, u32, Vec<Recompute>), StageCost>,
    mixtures: BTreeMap<(u32, u32), Mixtures>,
}

impl Stages {
    /// The cost of `layout` with `choices`, from its graph.
    fn cost(&mut self, layout: &StageLayout, choices: &[Recompute]) -> StageCost {
        let (start, end): (u32, u32) = (layout.layers.start, layout.layers.end);
        let key = (start, end, choices.to_vec());
        if let Some(cost) = self.costs.get(&key) {
            return *cost;
        }
        let mut all = vec![Recompute::None; self.work.model.layers as usize];
        all[start as usize..end as usize].copy_from_slice(choices);
        self.work.layout.recompute_layers = RecomputeLayers::Each(all);
        let cost = stage_cost(&self.work, layout);
        self.costs.insert(key, cost);
        cost
    }

    fn mixtures(&mut self, layout: &StageLayout) -> Mixtures {
        let key = (layout.layers.start, layout.layers.end);
        if let Some(known) = self.mixtures.get(&key) {
            return known.clone();
        }
        let count = layout.layers.len();
        let none = vec![Recompute::None; count];
        let base = self.cost(layout, &none);
        // What one layer adds with each choice. Layers of a kind add the same.
        let mut by_kind: BTreeMap<(usize, Recompute), Added> = BTreeMap::new();
        let kinds: Vec<usize> =
            layout.layers.clone().map(|layer| crate::derive::kind_of(&self.work, layer)).collect();
        for (at, kind) in kinds.iter().enumerate() {
            for choice in Recompute::ALL {
                by_kind.entry((*kind, choice)).or_insert_with(|| {
                    let mut one = none.clone();
                    one[at] = choice;
                    Added::of(&base, &self.cost(layout, &one))
                });
            }
        }
        // A choice that changes nothing, such as a selective one without scores, is none.
        let useful: Vec<Recompute> = Recompute::ALL
            .into_iter()
            .rev()
            .filter(|choice| {
                *choice != Recompute::None && kinds.iter().any(|kind| by_kind[&(*kind, *choice)] != Added::default())
            })
            .collect();
        // By choice: what the first so many layers add with it.
        let sums = useful.iter().map(|choice| {
            let added = kinds.iter().map(|kind| by_kind[&(*kind, *choice)]);
            let sums = added.scan(Added::default(), |sum, added| {
                *sum = sum.plus(added);
                Some(*sum)
            });
            (*choice, core::iter::once(Added::default()).chain(sums).collect())
        });
        let sums: BTreeMap<Recompute, Vec<Added>> = sums.collect();
        let stride = stride(count, useful.len());
        let mut ends: Vec<usize> = (0..count).step_by(stride).collect();
        ends.push(count);
        let mut list = Vec::new();
        fill(&useful, &ends, &mut Runs::new(), &mut |runs| {
            let (mut added, mut from) = (Added::default(), 0);
            for (choice, to) in runs {
                let sums = &sums[choice];
                added = added.plus(sums[*to]).less(sums[from]);
                from = *to;
            }
            list.push(Mixture { runs: runs.clone(), cost: added.to(&base) });
        });
        // Equal ones that compute less again in their first layers come first.
        let ends = |mixture: &Mixture| mixture.runs.iter().map(|(_, to)| *to).collect::<Vec<_>>();
        list.sort_by_cached_key(|mixture| {
            let cost = &mixture.cost;
            (cost.backward_input_ns + cost.backward_weight_ns, cost.forward_bytes, ends(mixture))
        });
        let mixtures = Mixtures { list, stride };
        self.mixtures.insert(key, mixtures.clone());
        mixtures
    }
}

/// How many layers have to get a choice at a time, so that `layers` layers and `choices` choices beside none make at most
/// [`MOST_MIXTURES`].
fn stride(layers: usize, choices: usize) -> usize {
    // Ways to cut `steps` equal pieces into runs, with repetition: the product stays whole at each factor.
    let mixtures =
        |steps: usize| (1..=choices).fold(1usize, |ways, choice| ways.saturating_mul(steps + choice) / choice);
    (1..=layers).find(|stride| mixtures(layers.div_ceil(*stride)) <= MOST_MIXTURES).unwrap_or(layers.max(1))
}

/// Every way to give the choices `left` in turn to the layers up to one of `ends`, of which the first is where the run
/// before has ended.
fn fill(left: &[Recompute], ends: &[usize], runs: &mut Runs, each: &mut dyn FnMut(&Runs)) {
    let Some((choice, rest)) = left.split_first() else { return each(runs) };
    for (at, end) in ends.iter().enumerate() {
        runs.push((*choice, *end));
        fill(rest, &ends[at..], runs, each);
        runs.pop();
    }
}

/// What a choice adds to F's bytes, and to B's and W's times and bytes, and to the time of a fused BW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Added([i128; 6]);

impl Added {
    fn numbers(cost: &StageCost) -> [i128; 6] {
        [
            cost.forward_bytes.into(),
            cost.backward_input_bytes.into(),
            cost.backward_weight_bytes.into(),
            cost.backward_input_ns.into(),
            cost.backward_weight_ns.into(),
            cost.duration(OpKind::BW).into(),
        ]
    }

    fn of(base: &StageCost, with: &StageCost) -> Added {
        let (base, with) = (Added::numbers(base), Added::numbers(with));
        Added(core::array::from_fn(|at| with[at] - base[at]))
    }

    fn plus(self, other: Added) -> Added {
        Added(core::array::from_fn(|at| self.0[at] + other.0[at]))
    }

    fn less(self, other: Added) -> Added {
        Added(core::array::from_fn(|at| self.0[at] - other.0[at]))
    }

    /// `base` with this added, and without workspace.
    fn to(self, base: &StageCost) -> StageCost {
        let [f, b, w, b_ns, w_ns, fused_ns] = self.plus(Added(Added::numbers(base))).0;
        StageCost {
            forward_ns: base.forward_ns,
            backward_input_ns: b_ns.max(0) as Nanos,
            backward_weight_ns: w_ns.max(0) as Nanos,
            backward_ns: Some(fused_ns.max(0) as Nanos),
            forward_bytes: f as i64,
            backward_input_bytes: b as i64,
            backward_weight_bytes: w as i64,
            backward_workspace_bytes: Some(0),
            ..StageCost::default()
        }
    }
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
        let mixtures: Vec<Mixtures> =
            self.stages.iter().map(|stage| stages.mixtures(&derived.stages[*stage])).collect();
        let stride = mixtures.iter().map(|mixtures| mixtures.stride).max().unwrap_or(1);
        let mut lists: Vec<Vec<Mixture>> = mixtures.into_iter().map(|mixtures| mixtures.list).collect();
        if lists.len() > 1 {
            lists.iter_mut().for_each(drop_beaten);
        }
        let peak = |costs: &[StageCost]| {
            let of = |rank: &usize| self.peak(problem, schedule, *rank, costs);
            self.ranks.iter().map(of).max().unwrap_or(0)
        };
        let held =
            |at: &[usize]| -> Vec<StageCost> { at.iter().zip(&lists).map(|(at, list)| list[*at].cost).collect() };
        let mut exact = |at: &[usize]| -> Bytes {
            let layouts = self.stages.iter().map(|stage| &derived.stages[*stage]);
            let mixtures = at.iter().zip(&lists).map(|(at, list)| &list[*at]);
            let cost = |(layout, mixture): (&StageLayout, &Mixture)| {
                stages.cost(layout, &mixture.choices(layout.layers.len()))
            };
            peak(&layouts.zip(mixtures).map(cost).collect::<Vec<_>>())
        };
        let fits =
            |at: &[usize], exact: &mut dyn FnMut(&[usize]) -> Bytes| peak(&held(at)) <= limit && exact(at) <= limit;
        // Best first: of all combinations not yet tried, the one whose ops take the least time.
        let work = |at: &[usize]| self.work(schedule, &held(at));
        let start = vec![0; lists.len()];
        let mut open = BinaryHeap::from([Reverse((work(&start), start.clone()))]);
        let mut seen = BTreeSet::from([start.clone()]);
        let (mut found, mut tries) = (None, 0);
        // Where the least of every stage is too much, so is every combination.
        let least: Vec<StageCost> = lists.iter().map(|list| least_held(list)).collect();
        if peak(&least) > limit {
            open.clear();
        }
        while let Some(Reverse((_, at))) = open.pop() {
            if fits(&at, &mut exact) {
                found = Some(at);
                break;
            }
            tries += 1;
            if tries == MOST_TRIES {
                break;
            }
            for list in 0..lists.len() {
                let mut next = at.clone();
                next[list] += 1;
                if next[list] < lists[list].len() && seen.insert(next.clone()) {
                    open.push(Reverse((work(&next), next)));
                }
            }
        }
        let mut note = String::new();
        if stride > 1 {
            note = format!("; {stride} layers were given a choice at a time, so perhaps not the least");
        }
        if found.is_none() && tries == MOST_TRIES {
            note = "; found among equal shares of all stages, so perhaps not the least".to_string();
            const STEPS: usize = 1000;
            let equal = |step: usize| lists.iter().map(|list| (list.len() - 1) * step / STEPS).collect::<Vec<_>>();
            found = (0..=STEPS).map(equal).find(|at| fits(at, &mut exact));
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
        let slower = work(&found).saturating_sub(work(&start)) / problem.microbatches() as u64;
        let mut chosen = Vec::new();
        for ((at, list), stage) in found.iter().zip(&lists).zip(&self.stages) {
            let mixture = list[*at].choices(derived.stages[*stage].layers.len());
            let what = format!("stage {stage}");
            let text = RecomputeLayers::text_of(&mixture);
            let why = format!(
                "{}: rank {ranks} holds at most {peak} of {limit} bytes, and its ops take {slower} ns more for each \
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

    /// Times of all backward ops of the group's ranks.
    fn work(&self, schedule: &Schedule, costs: &[StageCost]) -> Nanos {
        let ops = self.ranks.iter().flat_map(|rank| &schedule.rows[*rank]);
        let time = |op: &crate::op::Op| {
            let at = self.stages.iter().position(|stage| *stage == op.stage());
            at.map_or(0, |at| costs[at].duration(op.kind()))
        };
        ops.fold(0, |sum: Nanos, op| sum.saturating_add(time(op)))
    }

    /// The most that `rank` holds at once, with `costs` of its stages.
    fn peak(&self, problem: &Problem, schedule: &Schedule, rank: usize, costs: &[StageCost]) -> Bytes {
        let pairs = schedule.pairs_of(rank);
        let (mut held, mut peak) = (problem.static_bytes(rank), problem.static_bytes(rank));
        let mut gives: Bytes = 0;
        for (at, op) in schedule.rows[rank].iter().enumerate() {
            let Some(stage) = self.stages.iter().position(|stage| *stage == op.stage()) else { continue };
            held = held.saturating_add(costs[stage].takes(op.kind()));
            peak = peak.max(held);
            gives = gives.saturating_add(costs[stage].gives(op.kind()));
            // The two ops of a pair hold their bytes together.
            if pairs.binary_search(&(at as u32)).is_err() {
                held = held.saturating_sub(core::mem::take(&mut gives));
            }
        }
        peak
    }
}

/// What a stage holds after F and after B at the least, each by whichever mixture holds least then.
fn least_held(mixtures: &[Mixture]) -> StageCost {
    let least = |held: fn(&StageCost) -> i64| mixtures.iter().map(|mixture| held(&mixture.cost)).min().unwrap_or(0);
    let after_f = least(|cost| cost.forward_bytes);
    let after_b = least(|cost| cost.forward_bytes + cost.backward_input_bytes);
    StageCost {
        forward_bytes: after_f,
        backward_input_bytes: after_b - after_f,
        backward_weight_bytes: -after_b,
        backward_workspace_bytes: Some(0),
        ..StageCost::default()
    }
}

/// Leaves out mixtures that take no less time than a faster one which holds no more after F and after B.
fn drop_beaten(mixtures: &mut Vec<Mixture>) {
    let mut kept: Vec<Mixture> = Vec::new();
    for mixture in mixtures.drain(..) {
        let held = |mixture: &Mixture| {
            let cost = &mixture.cost;
            (cost.forward_bytes, cost.forward_bytes + cost.backward_input_bytes)
        };
        let (after_f, after_b) = held(&mixture);
        let beaten = kept.iter().any(|other| held(other).0 <= after_f && held(other).1 <= after_b);
        if !beaten {
            kept.push(mixture);
        }
    }
    *mixtures = kept;
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

    /// A mixture's times and bytes are sums over its layers, which the order of tries relies on.
    #[test]
    fn what_a_mixture_adds_is_a_sum_over_layers() {
        for more in ["", "tensor = 2\nsequence_parallel = true\nasync_reduce = true"] {
            for attention in ["flash", "materialised"] {
                let mut spec = spec("fit", "900000000000", more);
                let Work::Model(work) = &mut spec.work else { panic!("a model") };
                work.layout.form.attention = if attention == "flash" {
                    crate::graph::form::AttentionForm::Flash
                } else {
                    crate::graph::form::AttentionForm::Materialised
                };
                work.model.layers = 4;
                let layout = StageLayout { layers: 0..4, embedding: true, head: true };
                let mut stages = Stages { work: work.clone(), costs: BTreeMap::new(), mixtures: BTreeMap::new() };
                let mixtures = stages.mixtures(&layout).list;
                // Ways to write 4 as an ordered sum of 3 or 4 counts.
                assert_eq!(mixtures.len(), if attention == "flash" { 15 } else { 35 });
                for mixture in mixtures {
                    let exact = stages.cost(&layout, &mixture.choices(4));
                    assert_eq!(
                        Added::numbers(&mixture.cost),
                        Added::numbers(&exact),
                        "{attention} {:?}",
                        mixture.runs
                    );
                }
            }
        }
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
                let mut stages =
                    Stages { work: fitted.applied_to(work), costs: BTreeMap::new(), mixtures: BTreeMap::new() };
                let time = |cost: &StageCost| cost.backward_input_ns + cost.backward_weight_ns;
                let ours = time(&stages.cost(layout, &fitted.choices[range.clone()]));
                let group = Group { ranks: vec![rank], stages: vec![rank] };
                for mixture in stages.mixtures(layout).list {
                    let cost = stages.cost(layout, &mixture.choices(layout.layers.len()));
                    let peak = group.peak(&found.case.problem, &found.schedule, rank, &[cost]);
                    assert!(peak > limit || time(&cost) >= ours, "rank {rank}: {:?}", mixture.runs);
                }
            }
            seen.push(found.timeline.makespan_ns());
        }
        assert!(seen.windows(2).all(|pair| pair[0] >= pair[1]), "more memory never costs time: {seen:?}");
        assert_eq!(seen[6], plenty.timeline.makespan_ns());
        assert!(seen[3] < seen[0]);
    }

    /// Ways to give `layers` layers a choice each, in turn: `C(layers + choices, choices)`, of which there are more than
    /// any memory holds for the largest models.
    #[test]
    fn the_mixtures_of_the_largest_stage_are_few_enough() {
        for choices in 1..=3 {
            let useful = &Recompute::ALL[1..=choices];
            for layers in [0, 1, 4, 100, 132, 133, 1000, 4096] {
                let stride = stride(layers, choices);
                let mut ends: Vec<usize> = (0..layers).step_by(stride).collect();
                ends.push(layers);
                let (mut count, mut all_alike) = (0, 0);
                fill(useful, &ends, &mut Runs::new(), &mut |runs| {
                    count += 1;
                    all_alike += usize::from(runs.iter().all(|(_, to)| *to == 0 || *to == layers));
                });
                assert!(count <= MOST_MIXTURES, "{layers} layers, {choices} choices: {count}");
                let exact = (1..=choices as u128).fold(1, |ways, at| ways * (layers as u128 + at) / at);
                assert_eq!(stride == 1, exact <= MOST_MIXTURES as u128, "{layers} layers, {choices} choices");
                // Each choice for all layers, and none for all, are always among them.
                assert!(all_alike == choices + 1 || layers == 0);
            }
        }
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
