//! What judges a schedule: its cost with communication, with the step epilogue and with jitter; and data parallel replicas that
//! run the same op lists.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::base::units::Nanos;
use crate::estimate::step::StepEpilogue;
use crate::problem::factors::MicrobatchFactors;
use crate::problem::{Objective, Problem, Schedule};
use crate::program::execute::{Carrier, execute};
use crate::program::lower::lower_as;
use crate::simulate::jitter::{self, Outcomes};
use crate::simulate::simulate;
use crate::simulate::timeline::Timeline;
use crate::spec::{Messages, Spec};

/// The cost of a schedule with communication: ranks wait for transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithCommunication {
    /// The figure that the problem's objective asks to be small.
    pub cost_ns: Nanos,
    /// The same with the step epilogue, where there is one.
    pub(super) with_end_ns: Nanos,
    /// The whole step: from the first op to the end of the last rank's optimizer.
    pub(super) step_ns: Nanos,
}

impl WithCommunication {
    pub(super) fn of(
        spec: &Spec,
        problem: &Problem,
        epilogue: Option<&StepEpilogue>,
        schedule: &Schedule,
    ) -> Option<WithCommunication> {
        let Messages { lowering, transport } = spec.messages;
        let program = lower_as(problem, schedule, lowering).ok()?;
        let timeline = execute(problem, &program, &schedule.pairs, Carrier::of(transport))?;
        let cost_ns = timeline.cost_ns(problem.objective());
        Some(WithCommunication {
            cost_ns,
            with_end_ns: epilogue.map_or(cost_ns, |epilogue| epilogue.cost_ns(&timeline, problem.objective())),
            step_ns: epilogue.map_or_else(|| timeline.makespan_ns(), |epilogue| epilogue.step_ns(&timeline)),
        })
    }
}

/// As [`Answer::judged_ns`](super::planner::Answer::judged_ns), for an order of `problem` that is not an answer: `timeline` says
/// when its ops run, and `epilogue` what ends its step.
pub fn judged_ns(
    spec: &Spec,
    problem: &Problem,
    epilogue: Option<&StepEpilogue>,
    schedule: &Schedule,
    timeline: &Timeline,
) -> Nanos {
    let carried = WithCommunication::of(spec, problem, epilogue, schedule);
    let outcomes = jitter::outcomes(problem, schedule, spec.jitter_permille);
    judged(timeline.cost_ns(problem.objective()), carried, outcomes)
}

/// The cost of an order, with communication and with the excess of jitter.
pub(super) fn judged(cost_ns: Nanos, carried: Option<WithCommunication>, outcomes: Option<Outcomes>) -> Nanos {
    let late_ns = outcomes.map_or(0, |outcomes| outcomes.late_ns.saturating_sub(cost_ns));
    match carried {
        Some(carried) => carried.with_end_ns.saturating_add(late_ns),
        None => (Nanos::MAX / 2).saturating_add(cost_ns),
    }
}

/// What one replica takes under the plan's op lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// What its microbatches take; none where they are alike.
    pub factors: Option<MicrobatchFactors>,
    /// End of its last op minus start of its first.
    pub makespan_ns: Nanos,
    /// The largest span of one of its ranks.
    pub longest_span_ns: Nanos,
}

impl Replica {
    /// The figure that the objective asks to be small.
    pub(super) fn cost_ns(&self, objective: Objective) -> Nanos {
        match objective {
            Objective::Makespan => self.makespan_ns,
            Objective::LongestSpan => self.longest_span_ns,
        }
    }
}

/// The op lists that all replicas of a step run, and what judges them.
#[derive(Clone, Copy)]
pub(super) struct OpLists<'a> {
    /// How transfers go, and how much op times vary.
    pub spec: &'a Spec,
    /// The problem of any of the replicas.
    pub problem: &'a Problem,
    /// What ends the step of each.
    pub epilogue: Option<&'a StepEpilogue>,
    /// The op lists.
    pub schedule: &'a Schedule,
}

impl OpLists<'_> {
    /// A replica whose microbatches take `factors`, and the figure that judges it without jitter.
    ///
    /// # Errors
    /// Why such a replica cannot be run.
    pub fn replica(&self, factors: Option<MicrobatchFactors>) -> Result<(Replica, Nanos), String> {
        let problem = self.problem.with_factors(factors.clone()).map_err(|fault| fault.to_string())?;
        let timeline = simulate(&problem, self.schedule).map_err(|deadlock| deadlock.to_string())?;
        let carried = WithCommunication::of(self.spec, &problem, self.epilogue, self.schedule);
        let judged_ns = judged(timeline.cost_ns(problem.objective()), carried, None);
        let (makespan_ns, longest_span_ns) = (timeline.makespan_ns(), timeline.longest_span_ns());
        Ok((Replica { factors, makespan_ns, longest_span_ns }, judged_ns))
    }

    /// `judged_ns` of the slowest replica, with the excess of jitter. Jitter is drawn many times, so it is of one replica alone.
    pub fn with_jitter(&self, slowest: &Replica, judged_ns: Nanos) -> Nanos {
        let Ok(problem) = self.problem.with_factors(slowest.factors.clone()) else { return judged_ns };
        let outcomes = jitter::outcomes(&problem, self.schedule, self.spec.jitter_permille);
        let cost_ns = slowest.cost_ns(problem.objective());
        judged_ns.saturating_add(outcomes.map_or(0, |outcomes| outcomes.late_ns.saturating_sub(cost_ns)))
    }

    /// The replicas whose microbatches take these factors, in this order; the figure of the slowest is with jitter.
    ///
    /// # Errors
    /// The first replica that cannot be run, and why.
    pub fn replicas(
        &self,
        factors: impl Iterator<Item = Option<MicrobatchFactors>>,
    ) -> Result<Vec<(Replica, Nanos)>, String> {
        let replica = |(at, factors): (usize, Option<MicrobatchFactors>)| {
            self.replica(factors).map_err(|error| format!("data parallel replica {at} cannot be run: {error}"))
        };
        let mut replicas = factors.enumerate().map(replica).collect::<Result<Vec<_>, String>>()?;
        let at = slowest(&replicas);
        if let Some((slowest, judged_ns)) = replicas.get_mut(at) {
            *judged_ns = self.with_jitter(slowest, *judged_ns);
        }
        Ok(replicas)
    }
}

/// The first of the replicas that none takes longer than; 0 where there is none.
pub(super) fn slowest(replicas: &[(Replica, Nanos)]) -> usize {
    let mut most = 0;
    for (at, (_, judged_ns)) in replicas.iter().enumerate() {
        if *judged_ns > replicas[most].1 {
            most = at;
        }
    }
    most
}
