//! What a spec leaves to the memory limit: the recomputation of each layer, the layers of each stage that offload their
//! activations, or both.
//!
//! # Recomputation
//!
//! For each stage, the recomputation that takes the least time with which every rank fits.
//!
//! With the op lists of a schedule fixed, the memory of a rank depends on its own stages alone. So the ranks are
//! settled one by one; in a bidirectional schedule, two ranks that hold the same stages are settled together. For
//! each rank, `fit` takes the mixture of the choices of [`Recompute`] that adds the least time to the rank's ops and
//! keeps its peak within the limit. The peak follows from the graphs of the rank's stages. No op then takes longer
//! than its rank needs in order to fit.
//!
//! A mixture gives the first layers of a stage the choice that keeps the least, and its last layers the choice that
//! keeps the most. The backward starts with the last layers, while all others still hold their bytes.
//!
//! The time and bytes of a mixture follow from its graph; where a stage has many mixtures, from sums over its layers.
//! The search (`knapsack`) tries combinations of the stages' mixtures from the fastest on, and only those that fit.
//! Of bytes that are held only while an op runs, sums have a lower bound for backwards, and none with offload; there the
//! graphs decide. The first combination that fits is the least. After [`MOST_TRIES`] combinations the search goes depth first, and the report says how far the
//! result is at most from the least. At last it tries combinations in which all stages go equally far. Where a stage
//! has so many layers that it has more than [`MOST_MIXTURES`] mixtures, several layers share a choice; the report
//! says that, too.
//!
//! Some schedules depend on the times of ops, which recomputation changes. There the schedule and the choices are
//! computed alternately until both stay the same.
//!
//! # Activation offload
//!
//! The number of first layers of each stage that offload ([`Offload`]). `fit` plans with none, few and more layers,
//! each with the least recomputation that then fits, and takes the fastest schedule. More offload leaves more room;
//! it takes longer where the copies take longer than the compute meanwhile (PipeOffload, arXiv:2503.01328 §3). There
//! `fit` also tries each recomputation for all layers, because what a layer recomputes is not offloaded. It tries at
//! most [`MOST_COUNTS`] numbers of layers, and no others where nothing fits with the most.

mod knapsack;
mod mixtures;
mod offload;
mod recompute;

pub use self::mixtures::MOST_MIXTURES;

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use self::offload::fit_offload;
use self::recompute::fit_recompute;
use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::Derived;
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::RecomputeLayers;
use crate::graph::passes::{Entry, PassReport};
use crate::problem::{Problem, Schedule};
use crate::schedule::Absent;
use crate::simulate::simulate;
use crate::simulate::timeline::schedule_peak_bytes;
use crate::spec::ModelWork;

/// Combinations of stages' mixtures that are tried on one rank in the order of their time.
pub const MOST_TRIES: usize = 50_000;
/// Rounds of schedule and choices.
const MOST_ROUNDS: usize = 8;
/// Numbers of offloaded layers that are tried, besides none.
pub const MOST_COUNTS: u32 = 16;
/// The name in the [`PassReport`].
pub const NAME: &str = "recompute to fit";
/// The name in the [`PassReport`] where offload is fitted, too.
pub const NAME_OF_OFFLOAD: &str = "offload to fit";

/// The choices that fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// The recomputation of each layer of the model; none where the spec gives it.
    pub choices: Option<Vec<Recompute>>,
    /// The activation offload; none where the spec gives it.
    pub offload: Option<Offload>,
    /// The reasons.
    pub account: PassReport,
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

    /// Whether no choice needs less memory.
    pub fn is_last_resort(&self) -> bool {
        let all_again = |choices: &Vec<Recompute>| choices.iter().all(|choice| *choice == Recompute::Full);
        self.choices.as_ref().is_none_or(all_again) && self.offload.is_none_or(|offload| offload == Offload::All)
    }
}

/// A problem and a schedule of it.
pub type Solved = (Derived, Problem, Schedule);

/// The choices that need the least memory, for all that `work` leaves to the limit: full recomputation and offload of
/// every layer.
pub fn full(work: &ModelWork) -> Fitted {
    let again = work.layout.recompute_layers == RecomputeLayers::Fit;
    let choices = again.then(|| vec![Recompute::Full; work.model.layers as usize]);
    let offload = work.layout.offload_fits.then_some(Offload::All);
    let mut account = PassReport::new(if offload.is_some() { NAME_OF_OFFLOAD } else { NAME });
    let why = match offload {
        Some(_) => "all layers: the plan is faster than with less offload",
        None => "all layers: the plan is faster than with less recomputation",
    };
    account.done.push(Entry::new("every stage", None, why.to_string(), 0));
    Fitted { choices, offload, account }
}

/// The choices that `work` leaves to its limit, with which every rank fits under the schedule that `solve` makes.
///
/// # Errors
/// The error of `solve`, or a rank that does not fit with any choice.
pub fn fit(work: &ModelWork, mut solve: impl FnMut(ModelWork) -> Result<Solved, Absent>) -> Result<Fitted, Absent> {
    match work.layout.offload_fits {
        true => fit_offload(work, &mut solve),
        false => fit_recompute(work, &mut solve),
    }
}

/// The objective of the schedule.
fn cost_of(problem: &Problem, schedule: &Schedule) -> Result<Nanos, Absent> {
    let timeline = simulate(problem, schedule).map_err(|deadlock| Absent::because(deadlock.to_string()))?;
    Ok(timeline.cost_ns(problem.objective()))
}

/// The rank that needs the most memory, where that is more than `limit`, and its bytes.
fn over_limit(problem: &Problem, schedule: &Schedule, limit: Bytes) -> Option<(usize, Bytes)> {
    let peaks = (0..problem.ranks()).map(|rank| (rank, schedule_peak_bytes(problem, schedule, rank)));
    peaks.max_by_key(|(_, peak)| *peak).filter(|(_, peak)| *peak > limit)
}

fn limit_of(work: &ModelWork) -> Bytes {
    work.limit_bytes.unwrap_or(work.device.memory_bytes)
}

#[cfg(test)]
mod tests;
