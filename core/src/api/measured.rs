//! From a plan of a model and a trace of its run to a profile: the loop closes, and keeps the model.

use alloc::format;
use alloc::string::ToString;

use super::Refusal;
use crate::estimate::derive::derive;
use crate::hardware::profile::{LinkTimes, Profile, RunTimes, StageTimes};
use crate::plan::Plan;
use crate::spec::Work;
use crate::trace::Trace;
use crate::trace::calibrate::{Calibration, calibrate};

/// Compares `trace` with `plan`, and makes a profile of what it took: `pipeplan calibrate --write-profile`. Given with the
/// plan's spec, it scales the estimates to what was measured, with placement and partition free again.
///
/// # Errors
/// [`Refusal`] where the costs are typed, or the trace is of another order.
pub fn measured_profile(plan: &Plan, trace: &Trace) -> Result<(Calibration, Profile), Refusal> {
    let Work::Model(work) = &plan.spec.work else {
        return Err(Refusal::of_field(
            "plan",
            "typed costs",
            "the plan of a model; a problem with measured times is what typed costs need",
        ));
    };
    let calibration = calibrate(&plan.problem, &plan.schedule, trace)?;
    let (placement, chunks) = (plan.problem.placement().clone(), plan.problem.chunks());
    // Without the profile of the plan, if it had one: estimates are what the next plan scales.
    let estimated = derive(work, placement, chunks)?
        .statement
        .problem(plan.problem.placement().clone())
        .map_err(crate::base::fields::Faults::from)?;
    let jobs = |cost: &crate::problem::StageCost| [cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns];
    let measured = calibration.statement.stages.iter().enumerate();
    let stages = measured.map(|(stage, cost)| StageTimes {
        rank: plan.problem.rank_of(stage, 0),
        estimated_ns: jobs(estimated.cost(stage)),
        measured_ns: jobs(cost),
    });
    let hops = calibration.hops.iter().map(|hop| LinkTimes {
        from: hop.from,
        to: hop.to,
        estimated_ns: estimated.hop(hop.from, hop.to),
        measured_ns: hop.median_ns,
    });
    let mut profile = Profile::new(&format!("a run on {} over {}", trace.backend, trace.transport).to_string());
    profile.run = Some(RunTimes {
        stages: stages.collect(),
        hops: hops.collect(),
        jitter_permille: calibration.jitter_permille.min(1_000_000),
    });
    Ok((calibration, profile))
}
