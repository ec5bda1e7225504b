//! The memory of a schedule that does not fit, and suggestions.

use pipeplan_core::advise::suggest::{Finder, Suggestion, Suggestions};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::estimate::step::Step;
use pipeplan_core::plan::verdict::{self, RankMemory};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::{Spec, Work};

use super::Worker;
use crate::protocol::{Response, SuggestionRow, Unfit, from_core};

/// The search for suggestions for a schedule that does not fit.
pub(super) struct MemoryAdvice {
    pub(super) id: u32,
    pub(super) spec: Spec,
    /// Schedules whose bytes are not yet known.
    pub(super) names: Vec<String>,
    /// The schedule that needs least: its bytes and its name.
    pub(super) nearest: Option<(u64, String)>,
    /// The memory of the nearest schedule, and the search for suggestions.
    pub(super) suggestion: Option<(Unfit, Finder)>,
}

impl Worker {
    /// A model without a plan may lack memory. The worker computes its memory after the comparison.
    pub(super) fn queue_memory_advice(&mut self, id: u32, response: &[Response]) {
        let Some(spec) = self.comparison.as_ref().map(|comparison| &comparison.spec) else { return };
        for response in response {
            if let (Response::NoPlan { schedule, .. }, Work::Model(_)) = (response, &spec.work)
                && !schedule.is_empty()
            {
                let all = || schedule::published().iter().map(|published| published.name.to_owned()).collect();
                let names = if schedule == BEST { all() } else { vec![schedule.clone()] };
                self.memory_advice =
                    Some(MemoryAdvice { id, spec: spec.clone(), names, nearest: None, suggestion: None });
            }
        }
    }
}

impl MemoryAdvice {
    /// Evaluates the next schedule. `Some` at the end, with a response if memory is the reason.
    pub(super) fn step(&mut self) -> Option<Option<Response>> {
        let peak = |ranks: &[RankMemory]| ranks.iter().map(|rank| rank.peak).max().unwrap_or(0);
        if let Some(name) = self.names.pop() {
            let verdict = schedule::find(&name).and_then(|published| verdict::verdict(&self.spec, &published).ok());
            if let Some((_, ranks)) = verdict
                && self.nearest.as_ref().is_none_or(|(least, _)| peak(&ranks) < *least)
            {
                self.nearest = Some((peak(&ranks), name));
            }
            return None;
        }
        if self.suggestion.is_none() {
            self.suggestion = self.unfit();
        }
        let Some((_, finder)) = &mut self.suggestion else { return Some(None) };
        if finder.step() {
            return None;
        }
        let response = self.suggestion.take().map(|(mut unfit, finder)| {
            let found = finder.finish();
            let cheapest = found.cheapest().cloned();
            let Suggestions { single, combined, all } = found;
            let mfu_of = mfu_of(&self.spec);
            let row = |suggestion: Suggestion| {
                let is_cheapest = cheapest.as_ref() == Some(&suggestion);
                let mfu_e4 = mfu_of.as_ref().map(|mfu_of| mfu_of(suggestion.step_ns, suggestion.devices));
                SuggestionRow { mfu_e4, ..from_core::suggestion(suggestion, is_cheapest) }
            };
            unfit.suggestions = combined.into_iter().chain(all).chain(single).map(row).collect();
            unfit.suggestions.sort_by_key(|suggestion| !suggestion.cheapest);
            Response::Unfit(Box::new(unfit))
        });
        Some(response)
    }

    /// The memory of the nearest schedule if it is too much, and a search for suggestions.
    pub(super) fn unfit(&self) -> Option<(Unfit, Finder)> {
        let (_, name) = self.nearest.as_ref()?;
        let published = schedule::find(name)?;
        let (answer, ranks) = verdict::verdict(&self.spec, &published).ok()?;
        let case = &answer.case;
        let whose = (&self.spec, case.derived.as_ref()?, &case.problem);
        if ranks.iter().all(RankMemory::fits) {
            return None;
        }
        let memory = from_core::ranks_bytes(whose, &ranks);
        let unfit = Unfit { schedule: name.clone(), memory, suggestions: Vec::new() };
        Some((unfit, Finder::new(&self.spec, &published).ok()?))
    }
}

/// The MFU of a step of the same tokens, in hundredths of a percent, by its time and the factor on the number of devices.
fn mfu_of(spec: &Spec) -> Option<impl Fn(u64, u32) -> u32 + use<>> {
    let Work::Model(work) = &spec.work else { return None };
    // Operations of the model do not depend on recomputation, nor on how the layers are placed.
    let step_flops = derive(work, Placement::Linear, 1).ok()?.step_flops;
    let work = work.clone();
    Some(move |step_ns: u64, devices: u32| {
        let on_all = step_ns.saturating_mul(u64::from(devices));
        (Step::taking(&work, step_flops, work.pipeline as usize, on_all).mfu * 1e4).round() as u32
    })
}
