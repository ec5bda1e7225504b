//! What the memory limit costs the step of a model that fits: how much shorter it would be without one, and changes of the
//! spec, on the same devices, with which the limit costs less.
//!
//! Of each change the first orders are looked at ([`planner::look`]), which a search may improve on. The shortest of each
//! field are then taken together, one after the other, where each makes the step shorter still.

use alloc::vec;
use alloc::vec::Vec;

use super::choices::{Choice, choices};
use super::{Relief, most};
use crate::bounds;
use crate::planner::{self, Answer};
use crate::spec::{ModelWork, Spec, Work};
use crate::units::Nanos;
use crate::verdict::{RankMemory, UNLIMITED, by_rank};

/// What the limit costs, and with what it would cost less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shorter {
    /// The step that first orders have where ranks may hold what they like.
    pub without_limit_ns: Nanos,
    /// Single changes with a shorter step, the shortest first. All fit.
    pub single: Vec<Relief>,
    /// Several together, where that is shorter than each alone; each has one change more than the next, and is shorter.
    pub together: Vec<Relief>,
}

/// A step has to be so many thousandths shorter to be worth a change.
const WORTH_PERMILLE: u64 = 20;

/// What the limit has to cost to be worth a word: so many thousandths of the step.
const COSTLY_PERMILLE: u64 = 100;

/// Whether `shorter_ns` is that many thousandths below `ns`.
fn is_below(shorter_ns: Nanos, ns: Nanos, permille: u64) -> bool {
    u128::from(shorter_ns) * 1000 < u128::from(ns) * u128::from(1000 - permille)
}

/// The step that `spec`, of a model, would have without its memory limit, where that is worth a word beside `step_ns`, the
/// step of its best schedule within it.
pub fn without_limit(spec: &Spec, step_ns: Nanos) -> Option<Nanos> {
    let Work::Model(work) = &spec.work else { return None };
    let unlimited = ModelWork { limit_bytes: Some(UNLIMITED), ..work.clone() };
    let unlimited = Spec { work: Work::Model(unlimited), ..spec.clone() };
    // Bounds are found faster than orders, and nearly always say that there is nothing to find.
    let least_ns = |case: &planner::Case| {
        let end_ns = case.derived.as_ref().map_or(0, |derived| derived.ends.least_tail_ns());
        bounds::lower_bound(&case.problem).value_ns.saturating_add(end_ns)
    };
    let least_ns = planner::open_cases(&unlimited).ok()?.iter().map(least_ns).min()?;
    if !is_below(least_ns, step_ns, COSTLY_PERMILLE) {
        return None;
    }
    let free_ns = planner::look(&unlimited).ok()?.step(&unlimited)?.step_ns;
    is_below(free_ns, step_ns, COSTLY_PERMILLE).then_some(free_ns)
}

/// Plans one change after the other, for whoever has something else to do in between.
pub struct Shortener {
    spec: Spec,
    step_ns: Nanos,
    choices: Vec<Choice>,
    /// The next of `choices` to be planned alone.
    next: usize,
    /// Of `choices`, those with a shorter step.
    useful: Vec<(Nanos, usize)>,
    /// What is yet to be added to what is taken together, the next one last; none before all were planned alone.
    left: Option<Vec<usize>>,
    together: Vec<usize>,
    planned: usize,
    found: Shorter,
}

impl Shortener {
    /// What there is to try for `spec`, whose best schedule is `answer`; none where the limit costs nothing worth a word.
    pub fn new(spec: &Spec, answer: &Answer) -> Option<Shortener> {
        let Work::Model(work) = &spec.work else { return None };
        let step_ns = answer.step(spec)?.step_ns;
        let without_limit_ns = without_limit(spec, step_ns)?;
        let mut choices = choices(work);
        choices.retain(|choice| choice.devices == 1);
        Some(Shortener {
            spec: spec.clone(),
            step_ns,
            choices,
            next: 0,
            useful: Vec::new(),
            left: None,
            together: Vec::new(),
            planned: 0,
            found: Shorter { without_limit_ns, single: Vec::new(), together: Vec::new() },
        })
    }

    /// How many plans were made of the most that may be.
    pub fn planned(&self) -> (usize, usize) {
        let together = self.left.as_ref().map_or(self.useful.len().saturating_sub(1), Vec::len);
        let left = self.choices.len() - self.next + together;
        (self.planned, self.planned + left)
    }

    /// Plans one more; false where nothing is left.
    pub fn step(&mut self) -> bool {
        if self.next < self.choices.len() {
            let at = self.next;
            self.next += 1;
            if let Some(relief) = self.plan(&[at], self.step_ns) {
                self.useful.push((relief.step_ns, at));
                self.found.single.push(relief);
            }
            return true;
        }
        if self.left.is_none() {
            self.begin_together();
        }
        let Some(at) = self.left.as_mut().and_then(Vec::pop) else { return false };
        let shortest = self.found.together.first().or(self.found.single.first());
        let shortest_ns = shortest.map_or(self.step_ns, |relief| relief.step_ns);
        let mut together = self.together.clone();
        together.push(at);
        if let Some(relief) = self.plan(&together, shortest_ns) {
            self.together = together;
            self.found.together.insert(0, relief);
        }
        true
    }

    /// From the best of each field: the shortest of all, and then all others.
    fn begin_together(&mut self) {
        self.found.single.sort_by_key(|relief| (relief.step_ns, relief.peak));
        self.useful.sort_unstable();
        let mut fields: Vec<usize> = Vec::new();
        for (_, at) in &self.useful {
            let field = self.choices[*at].field();
            if fields.iter().all(|known| self.choices[*known].field() != field) {
                fields.push(*at);
            }
        }
        self.together = fields.first().map_or_else(Vec::new, |first| vec![*first]);
        self.left = Some(fields.into_iter().skip(1).rev().collect());
    }

    /// The changes at `choices` together, where they fit with a step that is worth it beside `step_ns`.
    fn plan(&mut self, at: &[usize], step_ns: Nanos) -> Option<Relief> {
        self.planned += 1;
        let Work::Model(work) = &self.spec.work else { return None };
        let mut work = work.clone();
        let mut changes = Vec::new();
        for choice in at.iter().filter_map(|at| self.choices.get(*at)) {
            choice.apply(&mut work);
            changes.extend(choice.changes.iter().cloned());
        }
        let changed = Spec { work: Work::Model(work), ..self.spec.clone() };
        let answer = planner::look(&changed).ok()?;
        let shorter_ns = answer.step(&changed)?.step_ns;
        if !is_below(shorter_ns, step_ns, WORTH_PERMILLE) {
            return None;
        }
        let ranks = by_rank(answer.case.derived.as_ref()?, &answer.case.problem, &answer.timeline);
        let fits = ranks.iter().all(RankMemory::fits);
        Some(Relief { changes, devices: 1, peak: most(&ranks), fits, step_ns: shorter_ns })
    }

    /// What was found.
    pub fn finish(self) -> Shorter {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::typed;
    use super::*;
    use crate::search::{Effort, Flow};
    use std::format;

    fn spec(limit: &str) -> Spec {
        let text = format!(
            "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 8\n\
             [training]\nmicrobatches = 16\nmicrobatch_size = 2\n[memory]\nlimit_bytes = \"{limit}\"\n"
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn best(spec: &Spec) -> Answer {
        planner::best(spec, Effort(0), &mut |_| Flow::Continue).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What a change is said to come to, a search with that change comes to or goes below.
    #[test]
    fn a_limit_that_costs_time_is_told_what_would_cost_less() {
        let spec = spec("40 GiB");
        let now_ns = best(&spec).step(&spec).unwrap().step_ns;
        let mut shortener = Shortener::new(&spec, &best(&spec)).expect("there is little room beside the weights");
        let mut before = shortener.planned();
        while shortener.step() {
            let (planned, most) = shortener.planned();
            assert!(planned == before.0 + 1 && planned <= most, "{before:?}");
            before = (planned, most);
        }
        let found = shortener.finish();
        let steps = |reliefs: &[Relief]| reliefs.iter().map(|relief| relief.step_ns).collect::<Vec<_>>();
        assert!(steps(&found.single).is_sorted() && steps(&found.together).is_sorted());
        assert!(found.together.last().unwrap().step_ns < found.single[0].step_ns);
        assert!(found.single.iter().any(|relief| relief.changes[0].field == "training.recompute"));
        for relief in found.single.iter().chain(&found.together) {
            let changed = typed(&spec, relief);
            let searched = best(&changed);
            assert!(searched.step(&changed).unwrap().step_ns <= relief.step_ns, "{relief:?}");
            assert!(relief.fits && relief.peak <= 40 << 30 && relief.devices == 1, "{relief:?}");
            assert!(relief.step_ns < now_ns && relief.step_ns >= found.without_limit_ns / 100 * 99, "{relief:?}");
        }
        let counts: Vec<usize> = found.together.iter().map(|relief| relief.changes.len()).collect();
        assert!(counts.windows(2).all(|pair| pair[0] > pair[1]) && counts.last() >= Some(&2), "{counts:?}");
    }

    #[test]
    fn a_limit_that_costs_nothing_is_told_nothing() {
        for limit in ["200 GiB", "75 GiB"] {
            let spec = spec(limit);
            assert!(Shortener::new(&spec, &best(&spec)).is_none(), "{limit}");
        }
        let typed = "problem.ranks = 2\nproblem.microbatches = 4\nproblem.limit_bytes = 2\n\
                     problem.stages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1, \
                     forward_bytes = 2, backward_input_bytes = -1, backward_weight_bytes = -1 }";
        let typed = Spec::read(typed).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(Shortener::new(&typed, &best(&typed)).is_none(), "typed costs say nothing of what could be changed");
    }
}
