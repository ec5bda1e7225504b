//! Suggestions: what to change first where a schedule of a model does not fit its devices. Single changes of the spec come first,
//! then combinations where none of them is enough. Each has been planned. Where the schedule fits and the limit makes the step
//! longer, [`Shortener`] finds changes that make it shorter.
//!
//! A combination takes at most one change of each field. Combinations that need no more devices than there are come first; the
//! others only where nothing fits. Those of two changes are tried first, then those of three and so on, up to the first number at
//! which one fits: a larger combination changes more than needed. Among combinations of one number, those whose single changes
//! leave the fewest bytes come first, and [`MOST_TRIES`] are tried.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::plan::verdict::{RankMemory, verdict};
use crate::schedule::{Absent, Published};
use crate::spec::{Spec, Work};

mod choices;
mod shorter;

use choices::{Choice, changed, changes, choices};
pub use shorter::{Shortener, Shorter, without_limit};

/// Combinations that are planned, on the same devices and on more.
pub const MOST_TRIES: usize = 60;

/// One field of a spec, and another value for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The field, as in a spec.
    pub field: &'static str,
    /// Its value now.
    pub from: String,
    /// The value that is tried.
    pub to: String,
}

/// A suggestion: changes of a spec that reduce its bytes, and their result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The changes, taken together. None changes the training result, except the last bits of sums.
    pub changes: Vec<Change>,
    /// The factor on the number of devices.
    pub devices: u32,
    /// The peak bytes of a rank with the changes.
    pub peak: Bytes,
    /// Whether every rank fits with the changes.
    pub fits: bool,
    /// The step time with the changes, for the same number of tokens.
    pub step_ns: Nanos,
}

/// What helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestions {
    /// Single changes. Those that fit come first, and among them those on the same devices; each group starts with the
    /// shortest step.
    pub single: Vec<Suggestion>,
    /// In the same order, combinations that fit; none where a single change does on the same devices.
    pub combined: Vec<Suggestion>,
    /// All changes that help, together, where no combination that was tried fits.
    pub all: Option<Suggestion>,
}

impl Suggestions {
    /// The suggestion that fits with the shortest step, on the same devices where one does.
    pub fn cheapest(&self) -> Option<&Suggestion> {
        let fit = self.single.iter().chain(&self.combined).filter(|suggestion| suggestion.fits);
        fit.min_by_key(|suggestion| (suggestion.devices, suggestion.step_ns))
    }
}

/// The suggestions of `spec` under `published`, all at once.
///
/// # Errors
/// As [`verdict`].
pub fn suggestions(spec: &Spec, published: &Published) -> Result<Suggestions, Absent> {
    let mut finder = Finder::new(spec, published)?;
    while finder.step() {}
    Ok(finder.finish())
}

/// Plans one change after the other, so that a caller can do other work in between.
pub struct Finder {
    spec: Spec,
    published: Published,
    peak_now: Bytes,
    choices: Vec<Choice>,
    /// The next of `choices` to be planned alone.
    next: usize,
    /// The choices that help, with the peak of each alone.
    useful: Vec<(usize, Bytes)>,
    /// What is combined now.
    combines: Combines,
    /// The combinations that remain, the next at the end, all of one number of changes.
    together: Vec<Vec<usize>>,
    size: usize,
    tries: usize,
    found: Suggestions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combines {
    NotYet,
    OnTheSameDevices,
    OnMore,
    Nothing,
}

impl Finder {
    /// The changes to try.
    ///
    /// # Errors
    /// As [`verdict`].
    pub fn new(spec: &Spec, published: &Published) -> Result<Finder, Absent> {
        let (_, ranks) = verdict(spec, published)?;
        let choices = match &spec.work {
            Work::Model(work) => choices(work),
            Work::Typed(_) => Vec::new(),
        };
        Ok(Finder {
            spec: spec.clone(),
            published: *published,
            peak_now: most(&ranks),
            choices,
            next: 0,
            useful: Vec::new(),
            combines: Combines::NotYet,
            together: Vec::new(),
            size: 0,
            tries: 0,
            found: Suggestions { single: Vec::new(), combined: Vec::new(), all: None },
        })
    }

    /// Plans one more; false where none is left.
    pub fn step(&mut self) -> bool {
        if self.next < self.choices.len() {
            let at = self.next;
            self.next += 1;
            if let Some(suggestion) = self.plan(&[at]).filter(|suggestion| suggestion.peak < self.peak_now) {
                self.useful.push((at, suggestion.peak));
                self.found.single.push(suggestion);
            }
            return true;
        }
        if self.combines == Combines::NotYet {
            let fits_here = |suggestion: &Suggestion| suggestion.fits && suggestion.devices == 1;
            let is_enough = self.found.single.iter().any(fits_here);
            self.begin(if is_enough { Combines::Nothing } else { Combines::OnTheSameDevices });
        }
        while self.together.is_empty() || self.tries >= MOST_TRIES {
            match self.combines {
                Combines::NotYet | Combines::Nothing => return false,
                _ if self.found.combined.is_empty() && self.tries < MOST_TRIES && self.size < self.fields().len() => {
                    self.size += 1;
                    self.together = self.combinations();
                }
                Combines::OnTheSameDevices if self.found.cheapest().is_none() => self.begin(Combines::OnMore),
                _ => self.begin(Combines::Nothing),
            }
        }
        let Some(changes) = self.together.pop() else { return false };
        self.tries += 1;
        self.found.combined.extend(self.plan(&changes).filter(|suggestion| suggestion.fits));
        true
    }

    fn begin(&mut self, combines: Combines) {
        (self.combines, self.size, self.tries) = (combines, 1, 0);
        self.together = Vec::new();
        if combines == Combines::Nothing {
            return;
        }
        let all = self.all();
        // A spec that does not fit with all changes that help does not fit with fewer.
        if all.as_ref().is_none_or(|all| !all.fits) {
            self.tries = MOST_TRIES;
        }
        self.found.all = all.or(self.found.all.take());
    }

    /// What was found.
    pub fn finish(self) -> Suggestions {
        let mut found = self.found;
        if found.cheapest().is_none() {
            // Too many combinations to try all of them: at least the largest is known to be enough.
            found.combined.extend(found.all.clone().filter(|all| all.fits));
        }
        for suggestions in [&mut found.single, &mut found.combined] {
            suggestions.sort_by_key(|suggestion| {
                (!suggestion.fits, suggestion.devices, suggestion.step_ns, suggestion.peak)
            });
        }
        if found.cheapest().is_some() {
            found.all = None;
        }
        found
    }

    /// The changes at `choices` together; none where they make no problem.
    fn plan(&self, at: &[usize]) -> Option<Suggestion> {
        let changed = changed(&self.spec, &self.choices, at)?;
        let chosen = at.iter().filter_map(|at| self.choices.get(*at));
        let devices = chosen.fold(1u32, |devices, choice| devices.saturating_mul(choice.devices));
        let (answer, ranks) = verdict(&changed, &self.published).ok()?;
        let step_ns = answer.step(&changed).map_or(answer.cost_ns(), |step| step.step_ns);
        let (peak, fits) = (most(&ranks), ranks.iter().all(RankMemory::fits));
        Some(Suggestion { changes: changes(&self.choices, at), devices, peak, fits, step_ns })
    }

    fn field(&self, at: usize) -> &'static str {
        self.choices.get(at).map_or("", Choice::field)
    }

    /// The fields whose changes help, each with those that are worth combining, from the one that alone leaves least.
    fn fields(&self) -> Vec<Vec<(usize, Bytes)>> {
        let devices = |at: &usize| self.choices.get(*at).map_or(1, |choice| choice.devices);
        let mut useful = self.useful.clone();
        useful.retain(|(at, _)| self.combines == Combines::OnMore || devices(at) == 1);
        useful.sort_by_key(|(at, peak)| (*peak, *at));
        let mut fields: Vec<Vec<(usize, Bytes)>> = Vec::new();
        for (at, peak) in useful {
            match fields.iter_mut().find(|field| self.field(field[0].0) == self.field(at)) {
                Some(field) => field.push((at, peak)),
                None => fields.push(vec![(at, peak)]),
            }
        }
        fields
    }

    /// All changes that help, together: for each field the change with the lowest peak alone. None where that is only
    /// one change.
    fn all(&self) -> Option<Suggestion> {
        let mut together: Vec<usize> = Vec::new();
        let mut best: Option<Suggestion> = None;
        for field in self.fields() {
            together.push(field[0].0);
            // Two changes may exclude each other: the first one then stays.
            match self.plan(&together) {
                Some(suggestion) if best.as_ref().is_none_or(|best| suggestion.peak <= best.peak) => {
                    best = Some(suggestion)
                }
                _ => {
                    together.pop();
                }
            }
        }
        best.filter(|_| together.len() > 1)
    }

    /// All combinations of `size` changes of different fields, the first to be planned at the end.
    fn combinations(&self) -> Vec<Vec<usize>> {
        let fields = self.fields();
        let mut all: Vec<(u128, Vec<usize>)> = vec![(0, Vec::new())];
        for (from, field) in fields.iter().enumerate() {
            let mut with: Vec<(u128, Vec<usize>)> = Vec::new();
            for (sum, together) in &all {
                let left = fields.len() - from - 1;
                if together.len() + left >= self.size {
                    with.push((*sum, together.clone()));
                }
                if together.len() < self.size {
                    let one_more = |(at, peak): &(usize, Bytes)| {
                        let together = together.iter().copied().chain([*at]).collect();
                        (sum + u128::from(*peak), together)
                    };
                    with.extend(field.iter().map(one_more));
                }
            }
            all = with;
        }
        // Of those that need no more devices, none fits.
        let on_more = |at: &usize| self.choices.get(*at).is_some_and(|choice| choice.devices > 1);
        let is_new = |together: &[usize]| self.combines != Combines::OnMore || together.iter().any(on_more);
        all.retain(|(_, together)| together.len() == self.size && is_new(together));
        all.sort();
        all.into_iter().rev().map(|(_, together)| together).collect()
    }
}

fn most(ranks: &[RankMemory]) -> Bytes {
    ranks.iter().map(|rank| rank.peak).max().unwrap_or(0)
}

impl core::fmt::Display for Change {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {} → {}", self.field, self.from, self.to)
    }
}

impl Suggestion {
    /// Its changes in words: `training.recompute none → full, parallel.pipeline 8 → 16 on 2 times the devices`.
    pub fn words(&self) -> String {
        let changes: Vec<String> = self.changes.iter().map(ToString::to_string).collect();
        let more = if self.devices > 1 { format!(" on {} times the devices", self.devices) } else { String::new() };
        format!("{}{more}", changes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;
    use alloc::borrow::ToOwned;

    fn spec(more: &str, memory: &str) -> Spec {
        let text = format!(
            "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 8\n{more}\
             [training]\nmicrobatches = 16\nmicrobatch_size = 2\n[memory]\n{memory}"
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn of(spec: &Spec) -> Suggestions {
        suggestions(spec, &schedule::find("1f1b").unwrap()).unwrap()
    }

    /// `spec` with the changes of a suggestion typed into it.
    pub(super) fn typed(spec: &Spec, suggestion: &Suggestion) -> Spec {
        let mut value = spec.to_value();
        for change in &suggestion.changes {
            let (table, key) = change.field.split_once('.').unwrap();
            let typed = serde_json::from_str(&change.to).unwrap_or_else(|_| change.to.clone().into());
            value[table][key] = typed;
        }
        Spec::from_value(&value).unwrap_or_else(|faults| panic!("{suggestion:?}: {faults}"))
    }

    /// What a suggestion says is what its changes, typed into the spec, come to.
    fn assert_true(spec: &Spec, suggestion: &Suggestion) {
        let changed = typed(spec, suggestion);
        let (answer, ranks) = verdict(&changed, &schedule::find("1f1b").unwrap()).unwrap();
        assert_eq!(most(&ranks), suggestion.peak, "{suggestion:?}");
        assert_eq!(ranks.iter().all(RankMemory::fits), suggestion.fits);
        assert_eq!(answer.step(&changed).unwrap().step_ns, suggestion.step_ns);
    }

    #[test]
    fn what_does_not_fit_is_told_what_would() {
        let spec = spec("", "limit_bytes = 60000000000");
        let (_, ranks) = verdict(&spec, &schedule::find("1f1b").unwrap()).unwrap();
        // Stage 0 holds the most microbatches.
        assert!(!ranks[0].fits() && ranks[0].activations > ranks[7].activations);
        for rank in &ranks {
            assert_eq!(rank.peak, rank.fixed.total() + rank.activations);
        }
        let found = of(&spec);
        let first = found.cheapest().unwrap();
        assert!(first.fits && first.devices == 1, "{first:?}");
        assert!(found.combined.is_empty() && found.all.is_none(), "single changes are enough");
        assert!(found.single.iter().any(|suggestion| suggestion.changes[0].to == "full" && suggestion.fits));
        let order = |suggestion: &Suggestion| (!suggestion.fits, suggestion.devices, suggestion.step_ns);
        assert!(found.single.windows(2).all(|pair| order(&pair[0]) <= order(&pair[1])));
        found.single.iter().for_each(|suggestion| assert_true(&spec, suggestion));
    }

    /// Where no change is enough, the fewest together that are; none of them is there without need.
    #[test]
    fn changes_are_combined_where_none_is_enough() {
        let spec = spec("data = 8\n", "limit_bytes = 14000000000");
        let found = of(&spec);
        assert!(found.single.iter().all(|suggestion| !suggestion.fits), "{found:?}");
        let cheapest = found.cheapest().unwrap();
        assert!(cheapest.changes.len() > 1 && cheapest.fits && cheapest.devices == 1, "{cheapest:?}");
        let fields =
            |suggestion: &Suggestion| suggestion.changes.iter().map(|change| change.field).collect::<Vec<_>>();
        for suggestion in &found.combined {
            assert!(suggestion.fits);
            let mut fields = fields(suggestion);
            fields.sort_unstable();
            fields.dedup();
            assert_eq!(fields.len(), suggestion.changes.len(), "each field once: {suggestion:?}");
            assert_true(&spec, suggestion);
        }
        let same = |suggestion: &&Suggestion| suggestion.devices == cheapest.devices;
        assert!(found.combined.iter().filter(same).all(|suggestion| suggestion.step_ns >= cheapest.step_ns));
    }

    /// A copy of all experts on each device is what a mixture of experts first has too much of.
    #[test]
    fn experts_are_dealt_to_the_copies_that_there_are_or_to_more() {
        let of_experts = |data: u32| {
            let text = format!(
                "[model]\nname = \"mixtral-8x7b\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 4\ndata = {data}\n\
                 [training]\nmicrobatches = 16\n"
            );
            Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
        };
        let dealt = |data: u32| {
            let spec = of_experts(data);
            let single = of(&spec).single;
            single.iter().for_each(|suggestion| assert_true(&spec, suggestion));
            let dealt = single.into_iter().filter(|suggestion| suggestion.changes[0].field == "parallel.expert");
            dealt.map(|suggestion| (suggestion.changes[0].to.clone(), suggestion.devices)).collect::<Vec<_>>()
        };
        let mut on_the_same = dealt(4);
        on_the_same.sort();
        assert_eq!(on_the_same, [("2".to_owned(), 1), ("4".to_owned(), 1), ("8".to_owned(), 2)]);
        let mut on_more = dealt(1);
        on_more.sort();
        assert_eq!(on_more, [("2".to_owned(), 2), ("4".to_owned(), 4), ("8".to_owned(), 8)]);
    }

    #[test]
    fn what_nothing_helps_is_said_with_the_least_that_was_reached() {
        let spec = spec("", "limit_bytes = 100000000");
        let found = of(&spec);
        assert!(found.cheapest().is_none() && found.combined.is_empty());
        let all = found.all.as_ref().unwrap();
        assert!(found.single.iter().all(|single| single.peak >= all.peak), "{all:?}");
        assert_true(&spec, all);
    }
}
