//! From a plan of a model and a trace of its run to a profile: the loop closes, and keeps the model.

use alloc::format;
use alloc::string::ToString;
use core::ops::ControlFlow;

use super::Refusal;
use crate::base::units::Nanos;
use crate::estimate::derive::derive;
use crate::formats::profile;
use crate::hardware::profile::{LinkTimes, Profile, RunTimes, StageTimes};
use crate::plan::{Plan, planner};
use crate::problem::{Schedule, Statement};
use crate::spec::{ModelWork, Spec, Work};
use crate::trace::Trace;
use crate::trace::analysis::WhatIf;
use crate::trace::calibrate::{Calibration, Watch, calibrate_watched};

/// Compares `trace` with `plan`, and makes a profile of what it took: `pipeplan calibrate --write-profile`. Given with the
/// plan's spec, it scales the estimates to what was measured, with placement and partition free again.
///
/// # Errors
/// [`Refusal`] where the costs are typed, or the trace is of another order.
pub fn measured_profile(plan: &Plan, trace: &Trace) -> Result<(Calibration, Profile), Refusal> {
    measured_profile_watched(plan, trace, &mut |_, _| ControlFlow::Continue(()))
}

/// As [`measured_profile`]; `watch` is that of [`calibrate_watched`].
///
/// # Errors
/// As [`measured_profile`], and one where `watch` has ended it.
pub fn measured_profile_watched(
    plan: &Plan,
    trace: &Trace,
    watch: &mut Watch<'_>,
) -> Result<(Calibration, Profile), Refusal> {
    let Work::Model(work) = &plan.spec.work else {
        return Err(Refusal::of_field(
            "plan",
            "typed costs",
            "the plan of a model; a problem with measured times is what typed costs need",
        ));
    };
    let calibration = calibrate_watched(&plan.problem, &plan.schedule, trace, watch)?;
    let (placement, chunks) = (plan.problem.placement().clone(), plan.problem.chunks());
    // Without the profile of the plan, if it had one: estimates are what the next plan scales.
    let plain = ModelWork { profile: None, ..work.clone() };
    let estimated = derive(&plain, placement, chunks)?
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

/// The problem with the times that `trace` measured, on the placement that its ops show, and the order that ran: a run without
/// a plan becomes one. `watch` is that of [`calibrate_watched`].
///
/// # Errors
/// [`Refusal`] where a stage is on no rank or on several, and where `watch` has ended it.
pub fn measured_order(trace: &Trace, watch: &mut Watch<'_>) -> Result<(Statement, Schedule), Refusal> {
    let (problem, schedule) = profile::of_order(trace.order())?;
    let calibration = calibrate_watched(&problem, &schedule, trace, watch)?;
    Ok((calibration.statement, schedule))
}

/// What if the measured times were run in the best order for them: `problem` has those times, `ran` is the order that ran, and
/// the mean step took `makespan_ns`. `plan` searches the best plan of a spec. None where there is no such plan.
pub fn best_order(
    problem: &Statement,
    ran: &Schedule,
    makespan_ns: Nanos,
    plan: impl FnOnce(&Spec) -> Option<Plan>,
) -> Option<WhatIf> {
    let spec = Spec::read(&problem.to_value().to_string()).ok()?;
    let makespan = |plan: &Plan| plan.timeline().ok().map(|timeline| timeline.makespan_ns());
    let order = Schedule { copies: ran.copies.clone(), ..Schedule::of(ran.rows.clone()) };
    let own = makespan(&planner::plan_order(&spec, "the order that ran", order).ok()?)?;
    let best = makespan(&plan(&spec)?)?.min(own);
    let saved_ns = (own - best).min(makespan_ns);
    Some(WhatIf {
        name: "the best order for these times",
        makespan_ns: makespan_ns - saved_ns,
        saved_ns: saved_ns.cast_signed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::PlacementChoice;
    use crate::trace::StepTrace;
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    /// A run that took `permille` of the plan's times on each rank.
    fn run_of(plan: &Plan, permille: &[u64]) -> Trace {
        let timeline = plan.timeline().expect("it runs");
        let row = |(rank, row): (usize, &Vec<crate::simulate::timeline::Span>)| {
            let span = |span: &crate::simulate::timeline::Span| crate::trace::TraceSpan {
                step: crate::program::Step::Compute(span.op),
                start_ns: span.start_ns * 10,
                end_ns: span.start_ns * 10 + (span.end_ns - span.start_ns) * permille[rank] / 1000,
            };
            row.iter().map(span).collect()
        };
        let rows = timeline.rows.iter().enumerate().map(row).collect();
        let step = StepTrace { rows, ..StepTrace::default() };
        Trace { replicas: 1, context: 1, tensor: 1, steps: Vec::from([step]), ..Trace::default() }
    }

    /// A run says its placement by the name that the plan had, and else by the rank of each stage.
    #[test]
    fn the_placement_of_a_run_has_its_name() {
        let mut named = alloc::collections::BTreeSet::new();
        for (chunks, placement) in
            [(1, "\"linear\""), (2, "\"looped\""), (2, "\"v\""), (3, "\"wave\""), (2, "[0, 0, 1, 1, 2, 2, 3, 3]")]
        {
            let spec = Spec::read(&format!(
                "ranks = 4\nchunks = {chunks}\nmicrobatches = 8\nplacement = {placement}\n\
                 stages = {{ forward_ns = 5, backward_input_ns = 6, backward_weight_ns = 4 }}\n"
            ));
            let plan = planner::plan(&spec.expect("sound"), crate::schedule::BEST).expect("a plan");
            let (statement, schedule) =
                measured_order(&run_of(&plan, &[10_000; 4]), &mut |_, _| ControlFlow::Continue(()))
                    .expect("its order");
            assert_eq!(statement.placement, PlacementChoice::Fixed(plan.problem.placement().clone()), "{placement}");
            assert_eq!(schedule.rows, plan.schedule.rows, "{placement}");
            named.insert(plan.problem.placement().name());
        }
        assert_eq!(named.len(), 5);
    }

    /// Round after round of planning with what a run took: each plan moves layers from the rank that is slow then, and the
    /// profile is of the estimates, whatever plan ran.
    #[test]
    fn rounds_of_planning_are_about_the_estimates_and_not_about_each_other() {
        let text = "schedule = \"1f1b\"\nmodel.name = \"tiny-llama\"\nmodel.layers = 24\ncluster.device = \"cpu\"\n\
                    parallel.pipeline = 4\ntraining.microbatches = 8\ntraining.sequence = 64\n";
        let spec = Spec::read(text).expect("sound");
        let mut plan = planner::plan(&spec, "1f1b").expect("it fits");
        // What each rank takes of its estimates: three times and a half as long on all, and one of them is slow.
        for slow in [1, 3, 1] {
            let paces: Vec<u64> = (0..4).map(|rank| if rank == slow { 7000 } else { 3500 }).collect();
            let Work::Model(work) = &plan.spec.work else { panic!("a model") };
            let was = work.profile.as_ref().and_then(|profile| profile.run.as_ref());
            let before: Vec<u64> = (0..4).map(|rank| was.map_or(1000, |run| run.pace_permille(rank))).collect();
            let of_plan: Vec<u64> = (0..4).map(|rank| paces[rank] * 1000 / before[rank]).collect();
            let (_, profile) = measured_profile(&plan, &run_of(&plan, &of_plan)).expect("its own run");
            let run = profile.run.as_ref().expect("of a run");
            for (rank, pace) in paces.iter().enumerate() {
                assert!(run.pace_permille(rank).abs_diff(*pace) <= pace / 100, "rank {rank}: {run:?}");
            }
            let mut next = spec.clone();
            if let Work::Model(work) = &mut next.work {
                work.profile = Some(Arc::new(profile));
            }
            plan = planner::plan(&next, "1f1b").expect("it fits");
            let holders = plan.holders().expect("of a model");
            let layers: Vec<usize> = holders.iter().map(|holder| holder.layout.layers.len()).collect();
            assert!((0..4).all(|rank| rank == slow || layers[rank] > layers[slow]), "{layers:?}");
        }
    }
}
