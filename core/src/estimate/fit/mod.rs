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
use crate::graph::passes::{Account, Entry};
use crate::problem::{Problem, Schedule};
use crate::schedule::Absent;
use crate::simulate::simulate;
use crate::simulate::timeline::schedule_peak_bytes;
use crate::spec::ModelWork;

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
        Some(_) => "all layers: the plan is faster than with less offload",
        None => "all layers: the plan is faster than with less recomputation",
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

fn limit_of(work: &ModelWork) -> Bytes {
    work.limit_bytes.unwrap_or(work.device.memory_bytes)
}

#[cfg(test)]
mod tests;
