//! The fastest ways to deal a model to so many devices: degrees of parallelism, size of microbatches, chunks,
//! recomputation and schedule together, of the same tokens a step and within the same memory.
//!
//! Every layout that divides the devices is looked at. First roughly: what its ranks hold throughout, and a time that none
//! of its steps goes under, which is the work of all ranks and the ends of their steps, spread evenly. Then one after the
//! other, from the least such time on, with each published schedule and the least recomputation that fits
//! ([`fit`](crate::estimate::fit)), until what is left could not be among the best any more. Last, the best schedule is searched for
//! on the layouts that were kept.
//!
//! What is left alone: number format, attention, partition by rule, when gradients are reduced, and how transfers go.
//! Two things are taken because they never cost time here: devices that share matrices share the tokens between them, too,
//! where those divide (`sequence_parallel`, arXiv:2205.05198 §4.2.2), and copies share out the optimizer's state (ZeRO 1,
//! arXiv:1910.02054). Where there is no pipeline, copies that share out gradients and weights (ZeRO 3, as in FSDP) are tried
//! beside: with one, each microbatch would gather and reduce all of them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Value, json};

use crate::advise::suggest::Change;
use crate::base::fields::{Fault, Faults, one_of_like};
use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::{Derived, derive};
use crate::estimate::memory::StaticBytes;
use crate::estimate::step::Step;
use crate::graph::form::{Form, Offload, Recompute};
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::plan::planner::{self, Answer, BEST, Best};
use crate::problem::placement::Placement;
use crate::problem::{MAX_BYTES, StageCost};
use crate::schedule::{self, Published};
use crate::search::{Effort, Flow, Progress};
use crate::spec::{FIT, ModelWork, Spec, Work};

mod question;
pub use question::{Degrees, Field, Question};

mod layouts;
use layouts::layouts;
pub use layouts::nearest_numbers;

/// Layouts that are looked at; with more, some fields have to be kept.
pub const MOST_LAYOUTS: usize = 20_000;
/// Devices that can be dealt.
pub const MOST_DEVICES: u64 = 1 << 20;
/// Sequences of a microbatch that are tried are powers of two up to this, and the spec's own number.
pub const MOST_SEQUENCES: u32 = 64;
/// A sequence is dealt to so many devices that each has at least as many tokens, or as the spec deals it: shorter parts
/// send more than they compute.
pub const LEAST_PART: u32 = 4096;
/// Chunks a rank that are tried, beside the spec's own.
pub const CHUNKS: [u32; 3] = [2, 4, 8];
/// The best schedule is searched for with no more chunks than so many, or the spec's own: more make a search long, and what
/// they save, published schedules that are planned with them save too.
pub const MOST_SEARCHED_CHUNKS: u32 = 4;

/// A layout with the fastest step that was found for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    /// The spec that says all of it, its schedule included.
    pub spec: Spec,
    /// How devices are dealt.
    pub degrees: Degrees,
    /// Chunks a rank of its schedule.
    pub chunks: usize,
    /// What is computed again, in words: `none`, or by layers `3 full, 5 cheap of 80`.
    pub recompute: String,
    /// Which layers keep what they keep in the host's memory.
    pub offload: Offload,
    /// The step.
    pub step: Step,
    /// Idle share of the pipeline's makespan or longest span, as the spec's objective says.
    pub bubble: f64,
    /// The most bytes that a rank holds.
    pub peak: Bytes,
    /// No step of this layout takes less, whatever its schedule.
    pub floor_ns: Nanos,
}

impl Tuned {
    /// What is done to fit, in words: `3 full of 80; on the host: 2 of each stage; ZeRO 3`.
    pub fn saved(&self) -> String {
        let on_host = match self.offload {
            Offload::None => String::new(),
            Offload::First(layers) => format!("; on the host: {layers} of each stage"),
            Offload::All => "; on the host: all".to_string(),
        };
        let shared = if self.degrees.zero >= 2 { format!("; ZeRO {}", self.degrees.zero) } else { String::new() };
        format!("{}{on_host}{shared}", self.recompute)
    }

    /// What `from` has to be changed in to be this.
    pub fn changes(&self, from: &Spec) -> Vec<Change> {
        let (Work::Model(before), Work::Model(after)) = (&from.work, &self.spec.work) else { return Vec::new() };
        let (old, new) = (Degrees::of(before), Degrees::of(after));
        let recompute = |work: &ModelWork| match &work.layout.recompute_layers {
            RecomputeLayers::Fit => FIT.to_string(),
            RecomputeLayers::Each(choices) => RecomputeLayers::text_of(choices),
            _ => work.layout.form.recompute.name().to_string(),
        };
        let offload = |work: &ModelWork| match work.layout.offload_fits {
            true => FIT.to_string(),
            false => work.layout.form.offload.text(),
        };
        let shard = |work: &ModelWork| work.layout.shard.map_or_else(|| "all".to_string(), |shard| shard.to_string());
        let partition = |work: &ModelWork| work.layout.partition.name().unwrap_or("by hand").to_string();
        let (form, to) = (&before.layout.form, &after.layout.form);
        let fields = [
            ("parallel.pipeline", old.pipeline.to_string(), new.pipeline.to_string()),
            ("parallel.tensor", old.tensor.to_string(), new.tensor.to_string()),
            ("parallel.sequence_parallel", form.sequence_parallel.to_string(), to.sequence_parallel.to_string()),
            ("parallel.context", old.context.to_string(), new.context.to_string()),
            ("parallel.data", old.data.to_string(), new.data.to_string()),
            ("parallel.zero", before.layout.zero.to_string(), after.layout.zero.to_string()),
            ("parallel.shard", shard(before), shard(after)),
            ("parallel.expert", old.expert.to_string(), new.expert.to_string()),
            ("parallel.whole_experts", old.whole_experts.to_string(), new.whole_experts.to_string()),
            ("parallel.chunks", before.chunks.to_string(), after.chunks.to_string()),
            ("parallel.partition", partition(before), partition(after)),
            ("training.microbatch_size", old.microbatch_size.to_string(), new.microbatch_size.to_string()),
            ("training.microbatches", old.microbatches.to_string(), new.microbatches.to_string()),
            ("training.recompute", recompute(before), recompute(after)),
            ("training.offload", offload(before), offload(after)),
            ("schedule", from.schedule.clone(), self.spec.schedule.clone()),
        ];
        let changed = fields.into_iter().filter(|(_, from, to)| from != to);
        changed.map(|(field, from, to)| Change { field, from, to }).collect()
    }
}

/// How far a [`Tuner`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Layouts that divide the devices.
    pub layouts: usize,
    /// Those that the model does not allow.
    pub refused: usize,
    /// Those that hold too much whatever is computed again.
    pub too_large: usize,
    /// Those of which every schedule was planned.
    pub planned: usize,
    /// Those that no schedule made fit.
    pub unfit: usize,
    /// Those that were passed over, since none of their steps could be among the fastest.
    pub slower: usize,
    /// Layouts on which the best schedule was searched for.
    pub searched: usize,
}

impl Tally {
    /// Layouts that are settled.
    pub fn settled(&self) -> usize {
        self.refused + self.too_large + self.planned + self.slower
    }
}

/// Why a layout has no plan, whatever its schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hopeless {
    /// The model does not allow it, and the first reason.
    Refused(String),
    /// All ranks together hold more than their limits, whatever is computed again.
    TooLarge,
}

/// Looks for the fastest layouts, a piece at a time: a page has to listen between two pieces.
pub struct Tuner {
    spec: Spec,
    question: Question,
    /// Published schedules that may be used.
    schedules: Vec<Published>,
    searches: bool,
    /// Layouts that have not been looked at.
    fresh: Vec<Degrees>,
    /// Layouts to be planned, with the time that none of their steps goes under, the next one last.
    open: Option<Vec<(Nanos, Degrees)>>,
    trial: Option<Trial>,
    given: Option<Result<Tuned, String>>,
    given_is_searched: bool,
    rows: Vec<Tuned>,
    search: Option<Search>,
    /// What a search begins from, by layout.
    starts: BTreeMap<Degrees, Tuned>,
    /// Of `rows`, by [`Degrees`], those that were searched.
    searched: Vec<Degrees>,
    /// Searches that went on elsewhere, to be taken when it is their turn.
    learned: Vec<Search>,
    tally: Tally,
    /// Why the model does not allow the first of those that it does not.
    refusal: Option<String>,
}

/// A layout whose schedules are being planned.
struct Trial {
    spec: Spec,
    floor_ns: Nanos,
    /// Whether it is the spec as it was given.
    is_given: bool,
    /// Schedules with the chunks that they are tried with, the next one last.
    left: Vec<(Published, u32)>,
    /// Those that do not fit with nothing computed again, or kept in the host's memory for the limit, with the step that they
    /// would then have; the next one last once `left` is empty.
    unfit: Vec<(Nanos, Published, u32)>,
    best: Option<Tuned>,
    /// The best of those from which a search may begin.
    start: Option<Tuned>,
    /// Chunks of the spec.
    chunks: u32,
    /// Why the first of them has no plan.
    reason: Option<String>,
}

/// A layout whose best schedule is being searched for. Searches know nothing of each other: whoever has threads can let
/// each go on one ([`Tuner::searches`]).
#[derive(Clone, Debug)]
pub struct Search {
    /// The fastest so far.
    fastest: Tuned,
    /// What is searched now, and what the search has to know of it.
    spec: Spec,
    best: Best,
    /// The next published schedule that the search has to know.
    next: usize,
    /// What is searched after that: the same with nothing computed again, since a search minds the limit itself.
    then: Option<Spec>,
    /// Whether it is the spec as it was given.
    is_given: bool,
    is_done: bool,
}

impl Tuner {
    /// What there is to try for `spec`.
    ///
    /// # Errors
    /// Costs are typed, a schedule's name is unknown, or the devices cannot be dealt; fields are the question's, but for
    /// those with a dot, which are the spec's.
    pub fn new(spec: &Spec, question: &Question) -> Result<Tuner, Faults> {
        let Work::Model(work) = &spec.work else {
            return Err(Fault::new("model", "typed costs", "a model: layouts follow from its operators").into());
        };
        let (schedules, searches) = allowed(&question.schedules)?;
        let devices = question.devices.unwrap_or_else(|| work.devices());
        if devices == 0 || devices > MOST_DEVICES {
            let accepted = format!("a whole number from 1 to {MOST_DEVICES}");
            return Err(Fault::new("devices", devices, accepted).into());
        }
        let fresh = layouts(work, devices, &question.keep)?;
        let tally = Tally { layouts: fresh.len(), ..Tally::default() };
        let mut tuner = Tuner {
            spec: spec.clone(),
            question: Question { most: question.most.max(1), ..question.clone() },
            schedules,
            searches,
            fresh,
            open: None,
            trial: None,
            given: None,
            // Who names a schedule has that one.
            given_is_searched: schedule::find(&spec.schedule).is_some(),
            rows: Vec::new(),
            search: None,
            starts: BTreeMap::new(),
            searched: Vec::new(),
            learned: Vec::new(),
            tally,
            refusal: None,
        };
        tuner.trial = Some(tuner.trial_of_given(work));
        Ok(tuner)
    }

    /// How far it is.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Why the model does not allow the first of the layouts that it does not allow.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The fastest layouts so far, the fastest first, each with its fastest schedule.
    pub fn rows(&self) -> &[Tuned] {
        &self.rows
    }

    /// The spec as it was given: with the schedule that it names, or else the fastest of those allowed; or why it has none.
    /// None while that is not known.
    pub fn given(&self) -> Option<&Result<Tuned, String>> {
        self.given.as_ref()
    }

    /// What programs get of it: the spec as it was given, the fastest layouts, and how many there were. `complete` says
    /// whether nothing is left to do.
    pub fn to_value(&self, complete: bool) -> Value {
        let change = |change: &Change| json!({ "field": change.field, "from": change.from, "to": change.to });
        let layout = |row: &Tuned| {
            let Degrees {
                pipeline,
                tensor,
                context,
                data,
                zero,
                expert,
                whole_experts,
                microbatch_size,
                microbatches,
            } = row.degrees;
            json!({
                "pipeline": pipeline, "tensor": tensor, "context": context, "data": data, "zero": zero, "expert": expert,
                "whole_experts": whole_experts, "microbatch_size": microbatch_size, "microbatches": microbatches, "chunks": row.chunks,
                "recompute": row.recompute, "offload": row.offload.text(), "schedule": row.spec.schedule,
                "step_ns": row.step.step_ns, "tokens_per_s": row.step.tokens_per_s, "mfu": row.step.mfu,
                "bubble_ratio": row.bubble, "peak_bytes": row.peak, "floor_ns": row.floor_ns,
                "changes": row.changes(&self.spec).iter().map(change).collect::<Vec<_>>(),
                "spec": row.spec.to_value(),
            })
        };
        let Tally { layouts, refused, too_large, planned, unfit, slower, searched } = self.tally;
        let given = self.given.as_ref();
        json!({
            "complete": complete,
            "given": given.and_then(|given| given.as_ref().ok()).map(layout),
            "given_reason": given.and_then(|given| given.as_ref().err()),
            "layouts": self.rows.iter().map(layout).collect::<Vec<_>>(),
            "tally": json!({
                "layouts": layouts, "refused": refused, "too_large": too_large, "planned": planned, "unfit": unfit,
                "slower": slower, "searched": searched,
            }),
        })
    }

    /// Does the next piece; false where nothing is left. `observer` may stop a search, whose best so far then counts.
    pub fn step(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> bool {
        if let Some(trial) = self.trial.take() {
            self.plan_next(trial);
            return true;
        }
        if let Some(degrees) = self.fresh.pop() {
            match self.floor(degrees) {
                Ok(floor) => self.open.get_or_insert_default().push((floor, degrees)),
                Err(Hopeless::TooLarge) => self.tally.too_large += 1,
                Err(Hopeless::Refused(reason)) => {
                    self.tally.refused += 1;
                    self.refusal.get_or_insert(reason);
                }
            }
            if self.fresh.is_empty()
                && let Some(open) = &mut self.open
            {
                // The least last; of equals the one with the fewest pipeline ranks.
                open.sort_unstable();
                open.reverse();
            }
            return true;
        }
        if let Some((floor, degrees)) = self.open.as_mut().and_then(Vec::pop) {
            if self.worst_kept().is_some_and(|worst| floor >= worst) {
                self.tally.slower += 1 + self.open.take().map_or(0, |open| open.len());
                return true;
            }
            self.trial = self.trial_of(degrees, floor);
            return true;
        }
        self.searches && self.search_next(effort, observer)
    }

    /// The step of the last of the layouts that are kept, where there is no room for another.
    fn worst_kept(&self) -> Option<Nanos> {
        let last = self.question.most.checked_sub(1)?;
        self.rows.get(last).map(|row| row.step.step_ns)
    }

    fn work(&self) -> Option<&ModelWork> {
        match &self.spec.work {
            Work::Model(work) => Some(work),
            Work::Typed(_) => None,
        }
    }

    /// The spec's model dealt as `degrees` says, with nothing computed again, and nothing left to the limit.
    fn dealt(&self, degrees: Degrees) -> Option<ModelWork> {
        let mut work = self.work()?.clone();
        let is_kept = |field: Field| self.question.keep.contains(&field);
        let layout = &mut work.layout;
        layout.data = degrees.data;
        layout.form.tensor = degrees.tensor;
        layout.form.context = degrees.context;
        layout.form.expert = degrees.expert;
        layout.form.whole_experts = degrees.whole_experts;
        if degrees.tensor > 1 && !layout.form.sequence_parallel && !is_kept(Field::SequenceParallel) {
            // Unless the tokens cannot be dealt so.
            let (shared, mut faults) = (Form { sequence_parallel: true, ..layout.form }, Vec::new());
            shared.find_faults(&work.model, work.sequence, "", &mut faults);
            layout.form.sequence_parallel = faults.is_empty();
        }
        layout.zero = degrees.zero;
        if layout.copies() > 1 && !is_kept(Field::Zero) {
            layout.zero = layout.zero.max(1);
        }
        // Groups as they are, where copies come out even in them.
        if !layout.shards_evenly(work.model.variant.experts.is_some()) {
            layout.shard = None;
        }
        let by_hand = matches!(layout.partition, Partition::ByHand(_));
        let may_fit = !is_kept(Field::Recompute);
        if may_fit {
            (layout.recompute_layers, layout.form.recompute) = (RecomputeLayers::All, Recompute::None);
            layout.offload_fits = false;
        }
        let must_be_free = by_hand || may_fit && layout.partition == Partition::WithinLimit;
        if must_be_free && !is_kept(Field::Partition) {
            layout.partition = Partition::Balanced;
        }
        work.pipeline = degrees.pipeline;
        if degrees.pipeline == 1 && !is_kept(Field::Chunks) {
            work.chunks = 1;
        }
        work.microbatch_size = degrees.microbatch_size;
        work.microbatches = degrees.microbatches;
        Some(work)
    }

    /// The time that no step of a layout goes under. All work is counted at its shortest and spread evenly over the ranks, and so are the ends
    /// of their steps: the average of what ranks need is no more than what the slowest needs.
    fn floor(&self, degrees: Degrees) -> Result<Nanos, Hopeless> {
        let (work, derived) = self.derived(degrees)?;
        let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
        let ranks = u128::from(work.pipeline.max(1));
        // Whatever the placement, all ranks together hold at least this.
        let held = |bytes: &StaticBytes| {
            u128::from(bytes.weights) + u128::from(bytes.master_weights) + u128::from(bytes.optimizer)
        };
        let held: u128 = derived.static_bytes.iter().map(held).sum();
        if held > u128::from(limit) * ranks {
            return Err(Hopeless::TooLarge);
        }
        Ok(floor_of(&work, &derived))
    }

    /// A layout with nothing in the host's memory, and what follows from it.
    fn derived(&self, degrees: Degrees) -> Result<(ModelWork, Derived), Hopeless> {
        let refused = |reason: &dyn ToString| Hopeless::Refused(reason.to_string());
        let work = without_copies(&self.dealt(degrees).ok_or_else(|| refused(&"no model"))?);
        match derive(&work, Placement::Linear, 1) {
            Ok(derived) => Ok((work, derived)),
            Err(faults) => Err(faults.0.first().map_or_else(|| refused(&faults), |fault| refused(fault))),
        }
    }

    fn trial_of(&self, degrees: Degrees, floor_ns: Nanos) -> Option<Trial> {
        let work = self.dealt(degrees)?;
        let left = self.tried(&work);
        let spec = Spec { work: Work::Model(work), ..self.spec.clone() };
        Some(Trial::new(spec, floor_ns, false, left))
    }

    fn trial_of_given(&self, work: &ModelWork) -> Trial {
        let bare = without_copies(work);
        let floor_ns = derive(&bare, Placement::Linear, 1).map_or(0, |derived| floor_of(&bare, &derived));
        let left = match schedule::find(&self.spec.schedule) {
            Some(named) => vec![(named, work.chunks)],
            None => self.schedules.iter().rev().map(|published| (*published, work.chunks)).collect(),
        };
        Trial::new(self.spec.clone(), floor_ns, true, left)
    }

    /// Each schedule that may be used, with every number of chunks that makes another problem of it. The last is the first.
    fn tried(&self, work: &ModelWork) -> Vec<(Published, u32)> {
        let mut chunks = vec![work.chunks];
        if !self.question.keep.contains(&Field::Chunks) {
            let room = work.model.layers / work.pipeline.max(1);
            chunks.extend(CHUNKS.into_iter().filter(|chunks| *chunks != work.chunks && *chunks <= room));
        }
        // A rank alone has no bubble that chunks could shorten.
        let is_alone = work.pipeline == 1 && work.chunks == 1;
        let mut tried: Vec<(Published, u32)> = Vec::new();
        for chunks in chunks {
            for published in &self.schedules {
                let shape = (published.shape)(chunks as usize);
                if is_alone && shape.1 > 1 {
                    continue;
                }
                let is_known = |(other, chunks): &(Published, u32)| {
                    other.name == published.name && (other.shape)(*chunks as usize) == shape
                };
                if !tried.iter().any(is_known) {
                    tried.push((*published, chunks));
                }
            }
        }
        tried.reverse();
        tried
    }

    fn plan_next(&mut self, mut trial: Trial) {
        if let Some((published, chunks)) = trial.left.pop() {
            if trial.is_given || self.question.keep.contains(&Field::Recompute) {
                trial.plan(trial.spec_of(&published, chunks), &published);
            } else {
                trial.plan_without_recomputation(&published, chunks);
            }
            if trial.left.is_empty() {
                // The fastest last. Nothing but the step counts, so that equals stay in the order of schedules.
                trial.unfit.sort_by_key(|(step, ..)| *step);
                trial.unfit.reverse();
            }
            self.trial = Some(trial);
            return;
        }
        let best =
            trial.start.as_ref().filter(|_| self.searches).or(trial.best.as_ref()).map(|best| best.step.step_ns);
        let enough = best.into_iter().chain(self.worst_kept()).min().unwrap_or(Nanos::MAX);
        if let Some((_, published, chunks)) = trial.unfit.pop().filter(|(step, ..)| *step < enough) {
            let mut spec = trial.spec_of(&published, chunks);
            if let Work::Model(work) = &mut spec.work {
                work.layout.recompute_layers = RecomputeLayers::Fit;
                work.layout.offload_fits = self.work().is_some_and(|work| work.layout.offload_fits);
            }
            trial.plan(spec, &published);
            self.trial = Some(trial);
            return;
        }
        if trial.is_given {
            self.given = Some(trial.best.ok_or_else(|| trial.reason.unwrap_or_default()));
            return;
        }
        self.tally.planned += 1;
        match trial.best {
            Some(tuned) => {
                self.starts.extend(trial.start.map(|start| (start.degrees, start)));
                self.keep(tuned);
            }
            None => self.tally.unfit += 1,
        }
    }

    fn keep(&mut self, tuned: Tuned) {
        self.rows.retain(|row| row.degrees != tuned.degrees && !is_same_by_context(&tuned, row));
        if self.rows.iter().any(|row| is_same_by_context(row, &tuned)) {
            return;
        }
        let at = self.rows.partition_point(|row| !is_faster(&tuned, row));
        self.rows.insert(at, tuned);
        self.rows.truncate(self.question.most);
    }

    /// The searches that are left, as far as is known now; none while layouts are still being planned.
    pub fn searches(&self) -> Vec<Search> {
        let is_planned =
            self.trial.is_none() && self.fresh.is_empty() && self.open.as_ref().is_none_or(Vec::is_empty);
        if !is_planned || !self.searches || self.search.is_some() {
            return Vec::new();
        }
        let given = self.given_to_search().map(|given| self.search_of_given(given));
        let rows = self.open_rows().map(|row| self.search_of(row));
        given.into_iter().chain(rows).filter(|search| !self.learned.iter().any(|known| known.is_as(search))).collect()
    }

    /// Takes a search of [`searches`](Tuner::searches) that went on elsewhere to its end. [`step`](Tuner::step) uses its
    /// result when it is its turn, so that the answer is the same, with or without. Another is forgotten.
    pub fn learn(&mut self, search: Search) {
        if search.is_done {
            self.learned.push(search);
        }
    }

    /// Uses all that was [learned](Tuner::learn) at once: for whoever ends it early.
    pub fn settle_learned(&mut self) {
        while let Some(search) = self.learned.pop() {
            self.settle(search);
        }
    }

    /// Searches on the fastest layout that was not searched yet, if anything better than the fastest can be there.
    fn search_next(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> bool {
        let Some(mut search) = self.search.take().or_else(|| self.begin_search()) else { return false };
        if search.step(effort, observer) {
            self.search = Some(search);
            return true;
        }
        self.settle(search);
        true
    }

    fn settle(&mut self, search: Search) {
        self.tally.searched += 1;
        match search.is_given {
            true => self.given = Some(Ok(search.fastest)),
            false => self.keep(search.fastest),
        }
    }

    fn begin_search(&mut self) -> Option<Search> {
        let given = self.given_to_search().map(|given| self.search_of_given(given));
        self.given_is_searched = true;
        let search = match given {
            Some(search) => search,
            None => {
                let search = self.open_rows().next().map(|row| self.search_of(row))?;
                self.searched.push(search.fastest.degrees);
                search
            }
        };
        match self.learned.iter().position(|known| known.is_as(&search)) {
            Some(at) => Some(self.learned.swap_remove(at)),
            None => Some(search),
        }
    }

    /// The spec as it was given, if it has a plan and was not searched yet.
    fn given_to_search(&self) -> Option<&Tuned> {
        self.given.as_ref().filter(|_| !self.given_is_searched).and_then(|given| given.as_ref().ok())
    }

    /// Layouts that were not searched yet and whose steps could be faster than the fastest. One rank has nobody to wait for.
    fn open_rows(&self) -> impl Iterator<Item = &Tuned> {
        let fastest = self.rows.first().map_or(Nanos::MAX, |row| row.step.step_ns);
        let may_gain = move |row: &&Tuned| row.degrees.pipeline > 1 && row.floor_ns < fastest;
        self.rows.iter().filter(may_gain).filter(|row| !self.searched.contains(&row.degrees))
    }

    fn search_of_given(&self, given: &Tuned) -> Search {
        Search { is_given: true, ..Search::new(given.clone(), given.spec.clone()) }
    }

    fn search_of(&self, row: &Tuned) -> Search {
        let start = self.starts.get(&row.degrees).unwrap_or(row).spec.clone();
        let mut then = None;
        if let Work::Model(work) = &start.work
            && matches!(work.layout.recompute_layers, RecomputeLayers::Each(_))
            && !self.question.keep.contains(&Field::Recompute)
        {
            let mut work = work.clone();
            work.layout.recompute_layers = RecomputeLayers::All;
            then = Some(Spec { work: Work::Model(work), ..start.clone() });
        }
        Search { then, ..Search::new(row.clone(), start) }
    }
}

impl Search {
    fn new(fastest: Tuned, spec: Spec) -> Search {
        let best = Best::new(&as_planned(&spec));
        Search { fastest, spec, best, next: 0, then: None, is_given: false, is_done: false }
    }

    /// Whether `other` is a search on the same layout.
    fn is_as(&self, other: &Search) -> bool {
        self.is_given == other.is_given && self.fastest.degrees == other.fastest.degrees
    }

    /// Does the next piece; false where nothing is left. `observer` may stop it, and its best so far then counts.
    pub fn step(&mut self, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> bool {
        if self.is_done {
            return false;
        }
        if let Some(published) = schedule::published().get(self.next) {
            self.next += 1;
            self.best.offer(published.name, planner::answer(&as_planned(&self.spec), published));
            return true;
        }
        if self.best.search_next(effort, observer) == Ok(true) {
            return true;
        }
        if let Some(answer) = self.best.so_far() {
            let spec = Spec { schedule: answer.name.clone(), ..self.spec.clone() };
            let found = tuned(spec, answer, self.fastest.floor_ns);
            if let Some(found) = found.filter(|found| is_faster(found, &self.fastest)) {
                self.fastest = found;
            }
        }
        match self.then.take() {
            Some(spec) => {
                (self.best, self.spec, self.next) = (Best::new(&as_planned(&spec)), spec, 0);
                true
            }
            None => {
                self.is_done = true;
                false
            }
        }
    }
}

/// `work` with nothing in the host's memory: what copies leave uncovered depends on how layers are cut into stages, and no step
/// takes less for it.
fn without_copies(work: &ModelWork) -> ModelWork {
    let mut bare = work.clone();
    (bare.layout.form.offload, bare.layout.offload_fits) = (Offload::None, false);
    bare
}

/// Layouts are told apart by what their steps are planned to take, so that is what their schedules are found by.
fn as_planned(spec: &Spec) -> Spec {
    Spec { jitter_permille: 0, ..spec.clone() }
}

impl Trial {
    fn new(spec: Spec, floor_ns: Nanos, is_given: bool, left: Vec<(Published, u32)>) -> Trial {
        let chunks = match &spec.work {
            Work::Model(work) => work.chunks,
            Work::Typed(_) => 1,
        };
        Trial { spec, floor_ns, is_given, left, unfit: Vec::new(), best: None, start: None, chunks, reason: None }
    }

    fn spec_of(&self, published: &Published, chunks: u32) -> Spec {
        let mut spec = Spec { schedule: published.name.to_string(), ..self.spec.clone() };
        if let Work::Model(work) = &mut spec.work {
            work.chunks = chunks;
        }
        spec
    }

    fn plan(&mut self, spec: Spec, published: &Published) {
        match planner::answer(&as_planned(&spec), published) {
            Ok(answer) => self.keep(tuned(spec, &answer, self.floor_ns)),
            Err(absent) => {
                self.reason.get_or_insert_with(|| format!("{}: {}", published.name, absent.reason));
            }
        }
    }

    /// Without regard to the limit, too: where it is missed, the step still says what recomputation could come to at best.
    fn plan_without_recomputation(&mut self, published: &Published, chunks: u32) {
        let spec = self.spec_of(published, chunks);
        let Work::Model(work) = &spec.work else { return };
        let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
        let unlimited = ModelWork { limit_bytes: Some(MAX_BYTES), ..work.clone() };
        let unlimited = Spec { work: Work::Model(unlimited), ..spec.clone() };
        let Ok(answer) = planner::answer(&as_planned(&unlimited), published) else { return };
        match tuned(spec, &answer, self.floor_ns) {
            Some(found) if found.peak > limit => self.unfit.push((found.step.step_ns, *published, chunks)),
            found => self.keep(found),
        }
    }

    fn keep(&mut self, found: Option<Tuned>) {
        let Some(found) = found else { return };
        let is_new = |best: &Option<Tuned>| best.as_ref().is_none_or(|best| is_faster(&found, best));
        let may_start = found.chunks <= self.chunks.max(MOST_SEARCHED_CHUNKS) as usize;
        if may_start && is_new(&self.start) {
            self.start = Some(found.clone());
        }
        if is_new(&self.best) {
            self.best = Some(found);
        }
    }
}

/// Published schedules of these names, and whether the best is to be searched for.
fn allowed(names: &[String]) -> Result<(Vec<Published>, bool), Faults> {
    let mut schedules = Vec::new();
    let mut faults = Vec::new();
    for name in names.iter().filter(|name| *name != BEST) {
        match schedule::find(name) {
            Some(published) => schedules.push(published),
            None => {
                let accepted = one_of_like(name, &planner::schedule_names());
                faults.push(Fault::new("schedule", name, accepted));
            }
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    if schedules.is_empty() {
        schedules = schedule::published().to_vec();
    }
    Ok((schedules, names.is_empty() || names.iter().any(|name| name == BEST)))
}

/// See [`Tuner::floor`].
fn floor_of(work: &ModelWork, derived: &Derived) -> Nanos {
    // A pair saves no more than what its ops exchange.
    let of_stage = |cost: &StageCost| {
        let one_by_one = u128::from(cost.forward_ns) + cost.least_backward().map(u128::from).iter().sum::<u128>();
        one_by_one - u128::from(cost.forward_exchange_ns) - u128::from(cost.backward_exchange_ns)
    };
    let microbatch: u128 = derived.statement.stages.iter().map(of_stage).sum();
    let ends: u128 =
        derived.ends.tails.iter().map(|tail| u128::from(tail.reduce_ns) + u128::from(tail.optimizer_ns)).sum();
    let ranks = u128::from(work.pipeline.max(1));
    let floor = (microbatch * u128::from(work.microbatches) + ends) / ranks;
    Nanos::try_from(floor).unwrap_or(Nanos::MAX)
}

fn is_faster(one: &Tuned, other: &Tuned) -> bool {
    (one.step.step_ns, one.peak, one.degrees) < (other.step.step_ns, other.peak, other.degrees)
}

/// Whether `other` is the same to a person, with sequences cut into more parts for nothing.
fn is_same_by_context(one: &Tuned, other: &Tuned) -> bool {
    let figures = |tuned: &Tuned| (tuned.step.step_ns, tuned.peak, tuned.degrees.pipeline, tuned.degrees.tensor);
    figures(one) == figures(other) && one.degrees.context < other.degrees.context
}

/// What `answer` to `spec` comes to; none where it is not of a model.
fn tuned(mut spec: Spec, answer: &Answer, floor_ns: Nanos) -> Option<Tuned> {
    let step = answer.step(&spec)?;
    let problem = &answer.case.problem;
    let timeline = &answer.timeline;
    let Work::Model(work) = &mut spec.work else { return None };
    if let Some(fitted) = &answer.case.fitted {
        *work = fitted.applied_to(work);
    }
    let recompute = match &work.layout.recompute_layers {
        RecomputeLayers::Each(choices) => in_words(choices),
        _ => work.layout.form.recompute.name().to_string(),
    };
    let offload = work.layout.form.offload;
    let degrees = Degrees::of(work);
    let peak = (0..problem.ranks()).map(|rank| timeline.peak_bytes(problem, rank)).max().unwrap_or(0);
    let bubble = timeline.bubble_ratio(problem.objective());
    Some(Tuned { spec, degrees, chunks: problem.chunks(), recompute, offload, step, bubble, peak, floor_ns })
}

/// How many layers make which choice: `3 full, 5 cheap of 80`.
fn in_words(choices: &[Recompute]) -> String {
    let count = |of: Recompute| choices.iter().filter(|choice| **choice == of).count();
    let counts = Recompute::ALL.into_iter().rev().filter(|choice| *choice != Recompute::None);
    let said: Vec<String> =
        counts.filter(|of| count(*of) > 0).map(|of| format!("{} {}", count(of), of.name())).collect();
    if said.is_empty() {
        return Recompute::None.name().to_string();
    }
    format!("{} of {}", said.join(", "), choices.len())
}

#[cfg(test)]
mod tests;
