//! What the memory limit costs the step of a model that fits: how much shorter the step is without a limit, and changes of the
//! spec, on the same devices, with which the limit costs less.
//!
//! For each change the first orders are planned, which a search may improve. Then the shortest change of each field is added, one
//! after the other, where it makes the step shorter still.

use alloc::vec;
use alloc::vec::Vec;

use super::choices::{Choice, changed, changes, choices};
use super::{Suggestion, most};
use crate::base::units::Nanos;
use crate::bounds;
use crate::plan::planner::{self, Answer, Best};
use crate::plan::verdict::{RankMemory, UNLIMITED, by_rank};
use crate::schedule;
use crate::spec::{ModelWork, Spec, Work};

/// The cost of the limit, and changes that reduce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shorter {
    /// The step of the first orders without a memory limit.
    pub without_limit_ns: Nanos,
    /// Single changes with a shorter step, the shortest first. All fit.
    pub single: Vec<Suggestion>,
    /// Several together, where that is shorter than each alone; each has one change more than the next, and is shorter.
    pub together: Vec<Suggestion>,
}

/// The least gain of a change that is reported, in thousandths of the step.
const WORTH_PERMILLE: u64 = 20;

/// The least cost of the limit that is reported, in thousandths of the step.
const COSTLY_PERMILLE: u64 = 100;

/// Whether `shorter_ns` is that many thousandths below `ns`.
fn is_below(shorter_ns: Nanos, ns: Nanos, permille: u64) -> bool {
    u128::from(shorter_ns) * 1000 < u128::from(ns) * u128::from(1000 - permille)
}

/// The step of `spec`, of a model, without its memory limit, where it is enough shorter than `step_ns`, the step of its
/// best schedule within the limit.
pub fn without_limit(spec: &Spec, step_ns: Nanos) -> Option<Nanos> {
    let mut look = unlimited(spec, step_ns)?;
    while look.step() {}
    look.costs(step_ns)
}

/// The first orders of `spec` without its limit, where bounds leave room for a gain that is reported. Bounds are found
/// faster than orders, and mostly show that there is no gain.
fn unlimited(spec: &Spec, step_ns: Nanos) -> Option<Look> {
    let Work::Model(work) = &spec.work else { return None };
    let unlimited = ModelWork { limit_bytes: Some(UNLIMITED), ..work.clone() };
    let unlimited = Spec { work: Work::Model(unlimited), ..spec.clone() };
    let least_ns = |case: &planner::Case| {
        let end_ns = case.derived.as_ref().map_or(0, |derived| derived.epilogue.least_tail_ns());
        bounds::lower_bound(&case.problem).value_ns.saturating_add(end_ns)
    };
    let least_ns = planner::open_cases(&unlimited).ok()?.iter().map(least_ns).min()?;
    is_below(least_ns, step_ns, COSTLY_PERMILLE).then(|| Look::new(unlimited, Vec::new()))
}

/// The first orders of a spec, one after the other: the published schedules, and the first orders of a search.
struct Look {
    spec: Spec,
    /// The changes that led to it.
    at: Vec<usize>,
    best: Best,
    /// The next published schedule.
    next: usize,
}

impl Look {
    fn new(spec: Spec, at: Vec<usize>) -> Look {
        Look { best: Best::new(&spec), spec, at, next: 0 }
    }

    /// Plans one more; false where none is left.
    fn step(&mut self) -> bool {
        match schedule::published().get(self.next) {
            Some(published) => {
                self.next += 1;
                self.best.offer(published.name, planner::answer(&self.spec, published));
                true
            }
            None => self.best.look_next() == Ok(true),
        }
    }

    /// The step, where it is enough shorter than `step_ns`, the step with a limit.
    fn costs(&self, step_ns: Nanos) -> Option<Nanos> {
        let free_ns = self.best.so_far()?.step(&self.spec)?.step_ns;
        is_below(free_ns, step_ns, COSTLY_PERMILLE).then_some(free_ns)
    }
}

/// Plans one change after the other, in small pieces, for whoever has something else to do in between.
pub struct Shortener {
    spec: Spec,
    step_ns: Nanos,
    choices: Vec<Choice>,
    /// The next of `choices` to be planned alone.
    next: usize,
    /// Of `choices`, those with a shorter step.
    useful: Vec<(Nanos, usize)>,
    /// The changes that may be added to the combination, the next one last; none before all were planned alone.
    left: Option<Vec<usize>>,
    together: Vec<usize>,
    /// What is being planned.
    look: Option<Look>,
    planned: usize,
    /// Once it is known that the limit costs anything.
    found: Option<Shorter>,
}

impl Shortener {
    /// What there is to try for `spec`, whose best schedule is `answer`; none where the limit costs too little to
    /// report.
    pub fn new(spec: &Spec, answer: &Answer) -> Option<Shortener> {
        let Work::Model(work) = &spec.work else { return None };
        let step_ns = answer.step(spec)?.step_ns;
        let look = unlimited(spec, step_ns)?;
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
            look: Some(look),
            planned: 0,
            found: None,
        })
    }

    /// How many plans were made of the most that may be.
    pub fn planned(&self) -> (usize, usize) {
        let together = self.left.as_ref().map_or(self.useful.len().saturating_sub(1), Vec::len);
        let left = self.choices.len() - self.next + together + usize::from(self.look.is_some());
        (self.planned, self.planned + left)
    }

    /// Goes on; false where nothing is left.
    pub fn step(&mut self) -> bool {
        if let Some(look) = &mut self.look {
            if !look.step() {
                self.planned += 1;
                self.conclude();
            }
            return true;
        }
        if self.found.is_none() {
            return false;
        }
        if self.next < self.choices.len() {
            self.next += 1;
            self.look = self.look_at(vec![self.next - 1]);
            return true;
        }
        if self.left.is_none() {
            self.begin_together();
        }
        let Some(at) = self.left.as_mut().and_then(Vec::pop) else { return false };
        let mut together = self.together.clone();
        together.push(at);
        self.look = self.look_at(together);
        true
    }

    /// From the best of each field: the shortest of all, and then all others.
    fn begin_together(&mut self) {
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

    /// A look at the spec with the changes at `at`.
    fn look_at(&self, at: Vec<usize>) -> Option<Look> {
        changed(&self.spec, &self.choices, &at).map(|spec| Look::new(spec, at))
    }

    /// Takes what has been planned.
    fn conclude(&mut self) {
        let Some(look) = self.look.take() else { return };
        let Some(found) = &mut self.found else {
            let costs = look.costs(self.step_ns);
            self.found =
                costs.map(|without_limit_ns| Shorter { without_limit_ns, single: Vec::new(), together: Vec::new() });
            return;
        };
        let Some(suggestion) = look.best.so_far().and_then(|answer| suggestion(&look, answer, &self.choices)) else {
            return;
        };
        let shortest = found.together.first().filter(|_| look.at.len() > 1);
        let shortest = shortest.or(found.single.first().filter(|_| look.at.len() > 1));
        if !is_below(
            suggestion.step_ns,
            shortest.map_or(self.step_ns, |suggestion| suggestion.step_ns),
            WORTH_PERMILLE,
        ) {
            return;
        }
        match look.at[..] {
            [at] => {
                self.useful.push((suggestion.step_ns, at));
                found.single.push(suggestion);
                found.single.sort_by_key(|suggestion| (suggestion.step_ns, suggestion.peak));
            }
            _ => {
                self.together = look.at;
                found.together.insert(0, suggestion);
            }
        }
    }

    /// The result; none where the limit costs too little to report.
    pub fn finish(self) -> Option<Shorter> {
        self.found
    }
}

/// The result of the changes of `look`.
fn suggestion(look: &Look, answer: &Answer, choices: &[Choice]) -> Option<Suggestion> {
    let ranks = by_rank(answer.case.derived.as_ref()?, &answer.case.problem, &answer.timeline);
    Some(Suggestion {
        changes: changes(choices, &look.at),
        devices: 1,
        peak: most(&ranks),
        fits: ranks.iter().all(RankMemory::fits),
        step_ns: answer.step(&look.spec)?.step_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::typed;
    use super::*;
    use crate::search::{Effort, Flow};
    use alloc::format;

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
    fn slow_a_limit_that_costs_time_is_told_what_would_cost_less() {
        let spec = spec("40 GiB");
        let now_ns = best(&spec).step(&spec).unwrap().step_ns;
        let mut shortener = Shortener::new(&spec, &best(&spec)).expect("there is little room beside the weights");
        let mut before = shortener.planned();
        while shortener.step() {
            let (planned, most) = shortener.planned();
            assert!((before.0..=before.0 + 1).contains(&planned) && planned <= most, "{before:?}");
            before = (planned, most);
        }
        assert_eq!(before.0, before.1, "all were planned");
        let found = shortener.finish().expect("the limit costs time");
        let steps =
            |suggestions: &[Suggestion]| suggestions.iter().map(|suggestion| suggestion.step_ns).collect::<Vec<_>>();
        assert!(steps(&found.single).is_sorted() && steps(&found.together).is_sorted());
        assert!(found.together.last().unwrap().step_ns < found.single[0].step_ns);
        assert!(found.single.iter().any(|suggestion| suggestion.changes[0].field == "training.recompute"));
        for suggestion in found.single.iter().chain(&found.together) {
            let changed = typed(&spec, suggestion);
            let searched = best(&changed);
            assert!(searched.step(&changed).unwrap().step_ns <= suggestion.step_ns, "{suggestion:?}");
            assert!(suggestion.fits && suggestion.peak <= 40 << 30 && suggestion.devices == 1, "{suggestion:?}");
            assert!(
                suggestion.step_ns < now_ns && suggestion.step_ns >= found.without_limit_ns / 100 * 99,
                "{suggestion:?}"
            );
        }
        let counts: Vec<usize> = found.together.iter().map(|suggestion| suggestion.changes.len()).collect();
        assert!(counts.windows(2).all(|pair| pair[0] > pair[1]) && counts.last() >= Some(&2), "{counts:?}");
    }

    #[test]
    fn a_limit_that_costs_nothing_is_told_nothing() {
        for limit in ["200 GiB", "75 GiB"] {
            let spec = spec(limit);
            let found = Shortener::new(&spec, &best(&spec)).and_then(|mut shortener| {
                while shortener.step() {}
                shortener.finish()
            });
            assert_eq!(found, None, "{limit}");
        }
        let typed = "problem.ranks = 2\nproblem.microbatches = 4\nproblem.limit_bytes = 2\n\
                     problem.stages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1, \
                     forward_bytes = 2, backward_input_bytes = -1, backward_weight_bytes = -1 }";
        let typed = Spec::read(typed).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(Shortener::new(&typed, &best(&typed)).is_none(), "typed costs say nothing of what could be changed");
    }
}
