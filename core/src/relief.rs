//! What to change first where a schedule of a model does not fit its devices: single changes of the spec, and where none
//! of them is enough, combinations of them. Each has been planned.
//!
//! Combinations take one change of each field at most. First those that need no more devices than there are; and only where
//! nothing fits, the others. Those of two are tried first, then those of three and so on, up to the first number at which
//! one fits: a larger one does more than it has to. Of one number, those come first whose changes alone leave the fewest
//! bytes, and [`MOST_TRIES`] are tried.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::graph::form::{AttentionForm, Form, Offload, Recompute};
use crate::layout::{Partition, RecomputeLayers, ReduceGradients};
use crate::schedule::{Absent, Published};
use crate::spec::{FIT, ModelWork, Spec, Work};
use crate::units::{Bytes, Nanos};
use crate::verdict::{RankMemory, verdict};

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

/// Changes of a spec that make it hold fewer bytes, and what they come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relief {
    /// What is changed together. None changes what is learnt but the last bits of sums.
    pub changes: Vec<Change>,
    /// How many times as many devices that takes.
    pub devices: u32,
    /// The most bytes that a rank then holds.
    pub peak: Bytes,
    /// Whether every rank then fits.
    pub fits: bool,
    /// The time of a whole step then, of as many tokens as before.
    pub step_ns: Nanos,
}

/// What helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reliefs {
    /// Single changes: those that then fit come first, of them those on the same devices, each group from the shortest step.
    pub single: Vec<Relief>,
    /// In the same order, combinations that fit; none where a single change does on the same devices.
    pub combined: Vec<Relief>,
    /// All that helps together, where no combination that was tried fits.
    pub all: Option<Relief>,
}

impl Reliefs {
    /// What fits with the shortest step, and where any does, on the same devices.
    pub fn cheapest(&self) -> Option<&Relief> {
        let fit = self.single.iter().chain(&self.combined).filter(|relief| relief.fits);
        fit.min_by_key(|relief| (relief.devices, relief.step_ns))
    }
}

/// The reliefs of `spec` under `published`, all at once.
///
/// # Errors
/// As [`verdict`].
pub fn reliefs(spec: &Spec, published: &Published) -> Result<Reliefs, Absent> {
    let mut finder = Finder::new(spec, published)?;
    while finder.step() {}
    Ok(finder.finish())
}

/// Plans one change after the other, for whoever has something else to do in between.
pub struct Finder {
    spec: Spec,
    published: Published,
    peak_now: Bytes,
    choices: Vec<Choice>,
    /// The next of `choices` to be planned alone.
    next: usize,
    /// Of `choices`, those that help, with the peak of each alone.
    useful: Vec<(usize, Bytes)>,
    /// What is combined now.
    combines: Combines,
    /// What is yet to be planned together, the next at the end, all of one number of changes.
    together: Vec<Vec<usize>>,
    size: usize,
    tries: usize,
    found: Reliefs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combines {
    NotYet,
    OnTheSameDevices,
    OnMore,
    Nothing,
}

impl Finder {
    /// What there is to try.
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
            found: Reliefs { single: Vec::new(), combined: Vec::new(), all: None },
        })
    }

    /// Plans one more; false where nothing is left.
    pub fn step(&mut self) -> bool {
        if self.next < self.choices.len() {
            let at = self.next;
            self.next += 1;
            if let Some(relief) = self.plan(&[at]).filter(|relief| relief.peak < self.peak_now) {
                self.useful.push((at, relief.peak));
                self.found.single.push(relief);
            }
            return true;
        }
        if self.combines == Combines::NotYet {
            let fits_here = |relief: &Relief| relief.fits && relief.devices == 1;
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
        self.found.combined.extend(self.plan(&changes).filter(|relief| relief.fits));
        true
    }

    fn begin(&mut self, combines: Combines) {
        (self.combines, self.size, self.tries) = (combines, 1, 0);
        self.together = Vec::new();
        if combines == Combines::Nothing {
            return;
        }
        let all = self.all();
        // What does not fit with everything that helps does not fit with less of it.
        if all.as_ref().is_none_or(|all| !all.fits) {
            self.tries = MOST_TRIES;
        }
        self.found.all = all.or(self.found.all.take());
    }

    /// What was found.
    pub fn finish(self) -> Reliefs {
        let mut found = self.found;
        if found.cheapest().is_none() {
            // Too many combinations to try all of them: at least the largest is known to be enough.
            found.combined.extend(found.all.clone().filter(|all| all.fits));
        }
        for reliefs in [&mut found.single, &mut found.combined] {
            reliefs.sort_by_key(|relief| (!relief.fits, relief.devices, relief.step_ns, relief.peak));
        }
        if found.cheapest().is_some() {
            found.all = None;
        }
        found
    }

    /// The changes at `choices` together; none where they make no problem.
    fn plan(&self, at: &[usize]) -> Option<Relief> {
        let Work::Model(work) = &self.spec.work else { return None };
        let mut work = work.clone();
        let (mut changes, mut devices) = (Vec::new(), 1u32);
        for choice in at.iter().filter_map(|at| self.choices.get(*at)) {
            (choice.apply)(&mut work);
            changes.extend(choice.changes.iter().cloned());
            devices = devices.saturating_mul(choice.devices);
        }
        let changed = Spec { work: Work::Model(work), ..self.spec.clone() };
        let (answer, ranks) = verdict(&changed, &self.published).ok()?;
        let step_ns = answer.step(&changed).map_or(answer.cost_ns(), |step| step.step_ns);
        let (peak, fits) = (most(&ranks), ranks.iter().all(RankMemory::fits));
        Some(Relief { changes, devices, peak, fits, step_ns })
    }

    fn field(&self, at: usize) -> &'static str {
        self.choices.get(at).and_then(|choice| choice.changes.first()).map_or("", |change| change.field)
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

    /// All that helps together: of each field what alone leaves least. None where that is only one change.
    fn all(&self) -> Option<Relief> {
        let mut together: Vec<usize> = Vec::new();
        let mut best: Option<Relief> = None;
        for field in self.fields() {
            together.push(field[0].0);
            // Two changes may exclude each other: what was there first then stays.
            match self.plan(&together) {
                Some(relief) if best.as_ref().is_none_or(|best| relief.peak <= best.peak) => best = Some(relief),
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

/// A change that may help: of one field, but for what it entails.
struct Choice {
    changes: Vec<Change>,
    devices: u32,
    apply: Apply,
}

type Apply = alloc::boxed::Box<dyn Fn(&mut ModelWork)>;

/// Gathers [`Choice`]s.
#[derive(Default)]
struct Choices(Vec<Choice>);

impl Choices {
    fn add(
        &mut self,
        field: &'static str,
        from: impl ToString,
        to: impl ToString,
        apply: impl Fn(&mut ModelWork) + 'static,
    ) -> &mut Choice {
        let change = Change { field, from: from.to_string(), to: to.to_string() };
        self.0.push(Choice { changes: vec![change], devices: 1, apply: alloc::boxed::Box::new(apply) });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }
}

/// The changes that may help.
fn choices(work: &ModelWork) -> Vec<Choice> {
    let mut choices = Choices::default();
    add_recompute(work, &mut choices);
    let (layout, form) = (&work.layout, work.layout.form);
    if !layout.offload_fits {
        const FIELD: &str = "training.offload";
        choices.add(FIELD, form.offload.text(), FIT, |work| {
            (work.layout.form.offload, work.layout.offload_fits) = (Offload::None, true);
        });
        if form.offload != Offload::All {
            choices.add(FIELD, form.offload.text(), Offload::All.text(), |work| {
                work.layout.form.offload = Offload::All;
            });
        }
    }
    if !layout.offload_optimizer {
        choices.add("training.offload_optimizer", false, true, |work| work.layout.offload_optimizer = true);
    }
    if layout.partition != Partition::WithinLimit {
        let from = layout.partition.name().unwrap_or("by hand");
        choices.add("parallel.partition", from, "within-limit", |work| {
            work.layout.partition = Partition::WithinLimit;
        });
    }
    if form.attention == AttentionForm::Materialised {
        let [from, to] = [AttentionForm::Materialised, AttentionForm::Flash].map(AttentionForm::name);
        choices.add("training.attention", from, to, |work| work.layout.form.attention = AttentionForm::Flash);
    }
    add_smaller_microbatches(work, &mut choices);
    add_dealt_experts(work, &mut choices);
    if form.tensor > 1 && !form.sequence_parallel {
        choices.add("parallel.sequence_parallel", false, true, |work| work.layout.form.sequence_parallel = true);
    }
    for times in [2, 4, 8] {
        let tensor = form.tensor.saturating_mul(times);
        let mut faults = Vec::new();
        Form { tensor, ..form }.find_faults(&work.model, work.sequence, "parallel", &mut faults);
        if faults.is_empty() && tensor <= work.devices_per_node {
            let choice =
                choices.add("parallel.tensor", form.tensor, tensor, move |work| work.layout.form.tensor = tensor);
            choice.devices = times;
        }
    }
    if layout.data > 1 {
        for zero in layout.zero + 1..=3 {
            choices.add("parallel.zero", layout.zero, zero, move |work| work.layout.zero = zero);
        }
    }
    let each = ReduceGradients::EachMicrobatch;
    if layout.zero >= 2 && layout.copies() > 1 && layout.reduces_gradients() != each {
        let from = layout.reduces_gradients().name();
        choices.add("parallel.reduce_gradients", from, each.name(), move |work| {
            work.layout.reduce_gradients = Some(each);
        });
    }
    for times in [2, 4] {
        let pipeline = work.pipeline.saturating_mul(times);
        if pipeline <= work.model.layers {
            let choice =
                choices.add("parallel.pipeline", work.pipeline, pipeline, move |work| work.pipeline = pipeline);
            choice.devices = times;
        }
    }
    choices.0
}

fn add_recompute(work: &ModelWork, choices: &mut Choices) {
    const FIELD: &str = "training.recompute";
    let (layers, usual) = (&work.layout.recompute_layers, work.layout.form.recompute);
    let now = match layers {
        // Already the least that fits.
        RecomputeLayers::Fit => return,
        RecomputeLayers::Each(choices) => RecomputeLayers::text_of(choices),
        _ => usual.name().to_string(),
    };
    choices.add(FIELD, &now, FIT, |work| {
        work.layout.recompute_layers = RecomputeLayers::Fit;
        work.layout.form.recompute = Recompute::None;
    });
    for recompute in [Recompute::Selective, Recompute::Cheap, Recompute::Latents, Recompute::Full] {
        if recompute == Recompute::Latents && work.model.variant.latent.is_none() {
            continue;
        }
        if recompute != usual || *layers != RecomputeLayers::All {
            choices.add(FIELD, &now, recompute.name(), move |work| {
                work.layout.recompute_layers = RecomputeLayers::All;
                work.layout.form.recompute = recompute;
            });
        }
    }
}

/// Microbatches of fewer sequences, and as many more of them: of half as many, and of one.
fn add_smaller_microbatches(work: &ModelWork, choices: &mut Choices) {
    let size = work.microbatch_size;
    let mut smaller = Vec::new();
    smaller.extend((size > 1 && size.is_multiple_of(2)).then_some(size / 2));
    smaller.extend((size > 2 || size == 2 && smaller.is_empty()).then_some(1));
    for to in smaller {
        let microbatches = work.microbatches.saturating_mul(size / to);
        let choice = choices.add("training.microbatch_size", size, to, move |work| {
            work.microbatch_size = to;
            work.microbatches = microbatches;
        });
        choice.changes.push(Change {
            field: "training.microbatches",
            from: work.microbatches.to_string(),
            to: microbatches.to_string(),
        });
    }
}

/// Experts dealt to more of the devices that hold other tokens; or where these are too few, to as many copies as deal them.
fn add_dealt_experts(work: &ModelWork, choices: &mut Choices) {
    const FIELD: &str = "parallel.expert";
    let Some(experts) = work.model.variant.experts else { return };
    let (now, data) = (work.layout.form.expert.max(1), work.layout.data.max(1));
    for times in [2, 4, 8, 16, 32, 64] {
        let expert = now.saturating_mul(times);
        if !experts.count.is_multiple_of(expert) {
            break;
        }
        // The fewest copies that such experts can be dealt to, which share the microbatches of a step.
        let with = |copies: u32| {
            let mut layout = work.layout.clone();
            (layout.form.expert, layout.data) = (expert, data.saturating_mul(copies));
            let mut faults = Vec::new();
            layout.find_faults(&work.model, work.sequence, &mut faults);
            faults.is_empty() && work.microbatches.is_multiple_of(copies)
        };
        let Some(copies) = [1, 2, 4, 8].into_iter().find(|copies| with(*copies)) else { continue };
        let (copied, microbatches) = (data.saturating_mul(copies), work.microbatches / copies);
        let choice = choices.add(FIELD, now, expert, move |work| {
            work.layout.form.expert = expert;
            (work.layout.data, work.microbatches) = (copied, microbatches);
        });
        choice.devices = copies;
        if copies > 1 {
            for (field, from, to) in
                [("parallel.data", data, copied), ("training.microbatches", work.microbatches, microbatches)]
            {
                choice.changes.push(Change { field, from: from.to_string(), to: to.to_string() });
            }
        }
    }
}

impl core::fmt::Display for Change {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {} → {}", self.field, self.from, self.to)
    }
}

impl Relief {
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

    fn of(spec: &Spec) -> Reliefs {
        reliefs(spec, &schedule::find("1f1b").unwrap()).unwrap()
    }

    /// What a relief says is what its changes, typed into the spec, come to.
    fn assert_true(spec: &Spec, relief: &Relief) {
        let mut value = spec.to_value();
        for change in &relief.changes {
            let (table, key) = change.field.split_once('.').unwrap();
            let typed = serde_json::from_str(&change.to).unwrap_or_else(|_| change.to.clone().into());
            value[table][key] = typed;
        }
        let changed = Spec::from_value(&value).unwrap_or_else(|faults| panic!("{relief:?}: {faults}"));
        let (answer, ranks) = verdict(&changed, &schedule::find("1f1b").unwrap()).unwrap();
        assert_eq!(most(&ranks), relief.peak, "{relief:?}");
        assert_eq!(ranks.iter().all(RankMemory::fits), relief.fits);
        assert_eq!(answer.step(&changed).unwrap().step_ns, relief.step_ns);
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
        assert!(found.single.iter().any(|relief| relief.changes[0].to == "full" && relief.fits));
        let order = |relief: &Relief| (!relief.fits, relief.devices, relief.step_ns);
        assert!(found.single.windows(2).all(|pair| order(&pair[0]) <= order(&pair[1])));
        found.single.iter().for_each(|relief| assert_true(&spec, relief));
    }

    /// Where no change is enough, the fewest together that are; none of them is there without need.
    #[test]
    fn changes_are_combined_where_none_is_enough() {
        let spec = spec("data = 8\n", "limit_bytes = 14000000000");
        let found = of(&spec);
        assert!(found.single.iter().all(|relief| !relief.fits), "{found:?}");
        let cheapest = found.cheapest().unwrap();
        assert!(cheapest.changes.len() > 1 && cheapest.fits && cheapest.devices == 1, "{cheapest:?}");
        let fields = |relief: &Relief| relief.changes.iter().map(|change| change.field).collect::<Vec<_>>();
        for relief in &found.combined {
            assert!(relief.fits);
            let mut fields = fields(relief);
            fields.sort_unstable();
            fields.dedup();
            assert_eq!(fields.len(), relief.changes.len(), "each field once: {relief:?}");
            assert_true(&spec, relief);
        }
        let same = |relief: &&Relief| relief.devices == cheapest.devices;
        assert!(found.combined.iter().filter(same).all(|relief| relief.step_ns >= cheapest.step_ns));
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
            single.iter().for_each(|relief| assert_true(&spec, relief));
            let dealt = single.into_iter().filter(|relief| relief.changes[0].field == "parallel.expert");
            dealt.map(|relief| (relief.changes[0].to.clone(), relief.devices)).collect::<Vec<_>>()
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
