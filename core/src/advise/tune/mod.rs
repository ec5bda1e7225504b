//! Tune: the fastest parallel layouts of a model on a number of devices. Parallel degrees, micro-batch size, chunks,
//! recomputation and schedule are chosen together, for the same tokens per step and the same memory limit.
//!
//! 1. Every layout that divides the devices gets a rough look: the static bytes of its ranks, and a lower bound on its step
//!    time, which is the work of all ranks and their step epilogues, spread evenly.
//! 2. Layouts are planned one after the other, from the least lower bound on, with each published schedule and the least
//!    recomputation that fits ([`fit`](crate::estimate::fit)), until no other layout can be among the fastest.
//! 3. The best schedule is searched for on the layouts that were kept.
//!
//! Not changed: precision, attention, a partition by rule, gradient reduction, and how transfers run. Two settings are always
//! taken, because they never cost time here: sequence parallelism where the tokens divide (`sequence_parallel`,
//! arXiv:2205.05198 §4.2.2), and ZeRO 1 over data-parallel copies (optimizer states, arXiv:1910.02054). Without a pipeline, ZeRO 3
//! (gradients and weights, as in FSDP) is tried as well: with a pipeline, each microbatch would gather and reduce all of them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use layouts::layouts;
use serde_json::{Value, json};

use crate::advise::suggest::Change;
use crate::base::fields::{Fault, Faults, one_of_like};
use crate::base::units::Nanos;
use crate::schedule::{self, BEST, Published};
use crate::search::{Effort, Flow, Progress};
use crate::spec::{Spec, Work};

mod floor;
mod search;
mod trial;
mod tuned;

pub use search::Search;
pub use tuned::Tuned;

use floor::Rejection;
use trial::Trial;
use tuned::{is_faster, is_same_by_context};

mod question;
pub use question::{Degrees, Field, Question};

mod layouts;
pub use layouts::nearest_numbers;

mod finder;
pub use finder::{LayoutFinder, NextStep, Outcome, usual_batch};

/// The most layouts that are tried; with more, some fields have to be kept.
pub const MOST_LAYOUTS: usize = 20_000;
/// The most devices.
pub const MOST_DEVICES: u64 = 1 << 20;
/// Micro-batch sizes that are tried are powers of two up to this, and the spec's.
pub const MOST_SEQUENCES: u32 = 64;
/// The least tokens per device under context parallelism, unless the spec has fewer: shorter parts spend more time on
/// communication than on compute.
pub const LEAST_PART: u32 = 4096;
/// Chunks per rank that are tried, in addition to the spec's.
pub const CHUNKS: [u32; 3] = [2, 4, 8];
/// The most chunks per rank with which the best schedule is searched for, unless the spec has more. More chunks make a
/// search long, and published schedules with them save as much.
pub const MOST_SEARCHED_CHUNKS: u32 = 4;

/// How far a [`Tuner`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Layouts that divide the devices.
    pub layouts: usize,
    /// Those that the model does not allow.
    pub refused: usize,
    /// Those that need too much memory whatever the recomputation.
    pub too_large: usize,
    /// Those whose schedules were all planned.
    pub planned: usize,
    /// Those that fit with no schedule.
    pub unfit: usize,
    /// Those that were skipped, since none of their steps can be among the fastest.
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

/// Finds the fastest layouts, a piece at a time, so that a page can respond between two pieces.
pub struct Tuner {
    spec: Spec,
    question: Question,
    /// Published schedules that may be used.
    schedules: Vec<Published>,
    searches: bool,
    /// Layouts without a lower bound yet.
    fresh: Vec<Degrees>,
    /// Layouts to be planned, with the lower bound of their step time, the next one last.
    open: Option<Vec<(Nanos, Degrees)>>,
    trial: Option<Trial>,
    given: Option<Result<Tuned, String>>,
    given_is_searched: bool,
    rows: Vec<Tuned>,
    search: Option<Search>,
    /// The start of each search, by layout.
    starts: BTreeMap<Degrees, Tuned>,
    /// Of `rows`, by [`Degrees`], those that were searched.
    searched: Vec<Degrees>,
    /// Searches that ended elsewhere, to be used when it is their turn.
    learned: Vec<Search>,
    tally: Tally,
    /// Why the model does not allow the first of those that it does not.
    refusal: Option<String>,
}

impl Tuner {
    /// The layouts to try for `spec`.
    ///
    /// # Errors
    /// Costs are typed, a schedule's name is unknown, or the devices have no layout. Fields are the question's; those
    /// with a dot are the spec's.
    pub fn new(spec: &Spec, question: &Question) -> Result<Tuner, Faults> {
        let Work::Model(work) = &spec.work else {
            return Err(Fault::new("model", "typed costs", "a model: layouts follow from its operators").into());
        };
        if work.batch.differs() {
            let accepted = "microbatches that are alike: other layouts have other microbatches";
            return Err(Fault::new("training", "microbatches that differ", accepted).into());
        }
        let (schedules, searches) = allowed(&question.schedules)?;
        let devices = question.devices.unwrap_or_else(|| work.devices());
        if devices == 0 || devices > MOST_DEVICES {
            let accepted = format!("a whole number from 1 to {MOST_DEVICES}");
            return Err(Fault::new("devices", devices, accepted).into());
        }
        let fresh = layouts(work, devices, question)?;
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
            // A spec that names a schedule keeps it.
            given_is_searched: schedule::find(&spec.schedule).is_some(),
            rows: Vec::new(),
            search: None,
            starts: BTreeMap::new(),
            searched: Vec::new(),
            learned: Vec::new(),
            tally,
            refusal: None,
        };
        match question.plans_given {
            true => tuner.trial = Some(tuner.trial_of_given(work)),
            false => tuner.given_is_searched = true,
        }
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

    /// The JSON for programs: the spec as it was given, the fastest layouts, and how many there were. `complete` says
    /// whether the search is complete.
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
                Err(Rejection::TooLarge) => self.tally.too_large += 1,
                Err(Rejection::Refused(reason)) => {
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

    fn keep(&mut self, tuned: Tuned) {
        self.rows.retain(|row| row.degrees != tuned.degrees && !is_same_by_context(&tuned, row));
        if self.rows.iter().any(|row| is_same_by_context(row, &tuned)) {
            return;
        }
        let at = self.rows.partition_point(|row| !is_faster(&tuned, row));
        self.rows.insert(at, tuned);
        self.rows.truncate(self.question.most);
    }
}

/// Layouts are compared by their planned step times, so their schedules are chosen by the same figure.
fn without_jitter(spec: &Spec) -> Spec {
    Spec { jitter_permille: 0, ..spec.clone() }
}

/// Published schedules of these names, and whether to search for the best.
fn allowed(names: &[String]) -> Result<(Vec<Published>, bool), Faults> {
    let mut schedules = Vec::new();
    let mut faults = Vec::new();
    for name in names.iter().filter(|name| *name != BEST) {
        match schedule::find(name) {
            Some(published) => schedules.push(published),
            None => {
                let accepted = one_of_like(name, &schedule::schedule_names());
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

#[cfg(test)]
mod tests;
