//! Figures of a plan that are computed on request and are not written to its file.

use super::Plan;
use crate::estimate::derive::derive;
use crate::estimate::step::{Step, StepEpilogue};
use crate::program::execute::{Carrier, execute};
use crate::simulate::jitter::{self, Outcomes};
use crate::spec::Work;

impl Plan {
    /// The cost with the jitter of its spec, as [`jitter::outcomes`]; none where the spec has none.
    pub fn outcomes(&self) -> Option<Outcomes> {
        jitter::outcomes(&self.problem, &self.schedule, self.spec.jitter_permille)
    }

    /// The training step of this plan's program on its transport, where its spec is of a model.
    pub fn step(&self) -> Option<Step> {
        let Work::Model(work) = &self.spec.work else { return None };
        let mut derived = derive(work, self.problem.placement().clone(), self.problem.chunks()).ok()?;
        if let Some(epilogue) = &self.epilogue {
            derived.epilogue.clone_from(epilogue);
        }
        let carried =
            execute(&self.problem, &self.program, &self.schedule.pairs, Carrier::of(self.spec.messages.transport));
        let timeline = carried.or_else(|| self.timeline().ok())?;
        Some(Step::taking(work, derived.step_flops, timeline.rows.len(), derived.epilogue.step_ns(&timeline)))
    }

    /// The step epilogue: that of the file, or, in plans of earlier planners without one, the one that follows from the
    /// spec. None where the spec is not of a model.
    pub fn step_epilogue(&self) -> Option<StepEpilogue> {
        let Work::Model(work) = &self.spec.work else { return None };
        let derived = || derive(work, self.problem.placement().clone(), self.problem.chunks()).ok();
        self.epilogue.clone().or_else(|| derived().map(|derived| derived.epilogue))
    }
}
