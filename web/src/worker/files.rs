//! Plan files, orders and profiles: opening and exporting them.

use std::sync::Arc;

use pipeplan_core::estimate::derive::coverage;
use pipeplan_core::formats::frameworks::Shown;
use pipeplan_core::hardware::profile::{Profile, ProfileError};
use pipeplan_core::notation::order;
use pipeplan_core::plan::planner;
use pipeplan_core::plan::{Plan, verdict};
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::schedule::BEST;
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::{Spec, Work};

use super::Worker;
use super::comparison::Comparison;
use super::specs::{case_of, no_plan, read_spec, unreadable};
use crate::form::with_labels;
use crate::protocol::frontier::{FROM_CHART, OF_POINT};
use crate::protocol::same_spec::same_work;
use crate::protocol::{FieldFault, Picture, Purpose, Response, Timed, from_core};
use crate::text;

impl Worker {
    /// The plan file of a spec: from the finished comparison if there is one, else planned again.
    pub(super) fn export(&self, spec: &str, purpose: Purpose) -> Response {
        let text = || -> Result<String, String> {
            let spec = self.with_profile(Spec::read(spec).map_err(|error| error.to_string())?);
            let finished = |running: &&Comparison| running.finished && same_work(&running.spec, &spec);
            let found = self.comparison.as_ref().filter(finished).filter(|_| spec.schedule == BEST);
            let found = found.filter(|running| running.best.so_far().is_some()).map(|running| running.best.plan());
            let plan = found.or_else(|| self.packed_plan(&spec));
            let plan = plan.unwrap_or_else(|| planner::plan(&spec, &spec.schedule));
            Ok(plan.map_err(|error| error.to_string())?.to_json())
        };
        match text() {
            Ok(text) => Response::Exported { text, purpose },
            Err(reason) => Response::NoPlan { schedule: String::new(), reason: with_labels(&reason), fault: None },
        }
    }

    /// Reads a spec and adds the measured times in use.
    pub(super) fn read(&self, text: &str) -> Result<Spec, Vec<FieldFault>> {
        read_spec(text).map(|spec| self.with_profile(spec))
    }

    pub(super) fn with_profile(&self, mut spec: Spec) -> Spec {
        if let Work::Model(work) = &mut spec.work {
            work.profile.clone_from(&self.profile);
        }
        spec
    }

    /// Which operators of `spec` have measured times, if a profile is open.
    pub(super) fn timed(&self, spec: &Spec) -> Option<Timed> {
        let profile = self.profile.as_ref()?;
        let covers = match &spec.work {
            Work::Typed(_) => "typed costs do not use them".to_owned(),
            Work::Model(work) => match coverage(work) {
                Some(coverage) if coverage.is_any() => coverage.to_string(),
                _ => "the profile has no operators of this model in its precision, so all times are estimates"
                    .to_owned(),
            },
        };
        Some(Timed { device: profile.device.clone(), covers })
    }

    pub(super) fn measure(&mut self, profile: Option<&str>) -> Response {
        let read = profile.map(Profile::of_json).transpose();
        match read {
            Ok(profile) => {
                self.profile = profile.map(Arc::new);
                let timed = self.profile.as_ref();
                Response::Timed(timed.map(|profile| Timed { device: profile.device.clone(), covers: String::new() }))
            }
            Err(ProfileError::Faults(faults)) => {
                Response::Unreadable { what: "profile".to_owned(), faults: from_core::faults(&faults) }
            }
            Err(ProfileError::Syntax(error)) => unreadable("profile", error.to_string()),
        }
    }

    /// Reads a plan file and makes its picture.
    ///
    /// # Errors
    /// Why it is none, in words.
    pub(super) fn read_plan(&self, text: &str) -> Result<(Plan, Picture), String> {
        let plan = Plan::from_json(text).map_err(|error| error.to_string())?;
        let timeline = simulate(&plan.problem, &plan.schedule).map_err(|deadlock| deadlock.to_string())?;
        let mut picture = from_core::picture(&plan.schedule_name, &plan.problem, &timeline);
        picture.figures.step = plan.step().map(|found| from_core::step(&plan.spec, found));
        picture.figures.tails_ns = from_core::tails_ns(plan.epilogue.as_ref());
        picture.figures.refusals = Shown::of(&plan).told();
        picture.figures.late_ns = plan.outcomes().map(|outcomes| outcomes.late_ns);
        let carried = {
            let carrier = Carrier::of(plan.spec.messages.transport);
            execute(&plan.problem, &plan.program, &plan.schedule.pairs, carrier)
        };
        picture.figures.carried_ns = carried.map(|carried| carried.cost_ns(plan.problem.objective()));
        picture.figures.judged_ns = from_core::plan_judged_ns(&plan, &timeline);
        // The file does not give bytes by kind. They follow from the spec, with or without measured times.
        let case = case_of(&plan, &plan.spec).or_else(|| case_of(&plan, &self.with_profile(plan.spec.clone())));
        let derived = case.and_then(|case| case.derived);
        if let Some(derived) = &derived {
            let ranks = verdict::by_rank(derived, &plan.problem, &timeline);
            picture.memory = from_core::ranks_bytes((&plan.spec, derived, &plan.problem), &ranks);
        }
        picture.widths = from_core::widths(&plan.spec, &plan.problem, derived.as_ref(), plan.packing);
        Ok((plan, picture))
    }

    /// A plan that this page kept. If another version of the page wrote it and it cannot be read, it is dropped.
    pub(super) fn open_kept(&self, text: &str) -> Option<Response> {
        let (_, picture) = self.read_plan(text).ok()?;
        Some(Response::KeptOpened { picture: Box::new(picture) })
    }

    /// The plan of a spec, to be kept. If it has none, nothing is kept.
    pub(super) fn plan_kept(&self, spec: &str) -> Option<Response> {
        let spec = self.read(spec).ok()?;
        self.open_kept(&planner::plan(&spec, &spec.schedule).ok()?.to_json())
    }

    /// The plan of a custom schedule, as a file, so that the page shows the plan that it exports.
    pub(super) fn open_order(&self, spec: &str, text: &str) -> Response {
        let plan = || -> Result<Plan, String> {
            let spec = self.with_profile(Spec::read(spec).map_err(|error| error.to_string())?);
            let order = order::read(text).map_err(|error| error.to_string())?;
            planner::plan_order(&spec, text::CUSTOM_SCHEDULE, order).map_err(|error| error.to_string())
        };
        match plan() {
            Ok(plan) => Response::Ordered { plan: plan.to_json() },
            Err(reason) => unreadable("order", with_labels(&reason)),
        }
    }

    /// The plan of the chart's schedule within `bytes`, as a file. Else the reason why there is none that costs less
    /// than `below_ns`, and the end of the answer.
    pub(super) fn open_point(&self, spec: &str, bytes: u64, below_ns: u64) -> Vec<Response> {
        let plan = || -> Result<Plan, String> {
            let spec = self.read(spec).map_err(|_| "belongs to another form".to_owned())?;
            let chart = self.chart.as_ref().filter(|chart| chart.is_of(&spec));
            let order = chart.and_then(|chart| chart.order_within(bytes)).ok_or("has no stored schedule")?;
            let plan = planner::plan_order(&spec, FROM_CHART, order.clone())
                .map_err(|error| format!("gives no plan under this limit: {}", no_plan(&spec, &error.to_string())))?;
            let timeline = plan.timeline().map_err(|deadlock| format!("gives no plan: {deadlock}"))?;
            let judged_ns = from_core::plan_judged_ns(&plan, &timeline);
            if judged_ns < below_ns {
                return Ok(plan);
            }
            let [there, here] = [judged_ns, below_ns].map(|ns| text::duration(ns as f64));
            Err(format!("has a step time of {there} under this limit; this plan has {here}"))
        };
        match plan() {
            Ok(plan) => vec![Response::Ordered { plan: plan.to_json() }],
            Err(reason) => {
                let reason = text::sentence(&format!("{OF_POINT} {reason}"));
                vec![Response::NoPoint { reason }, Response::Done]
            }
        }
    }

    pub(super) fn open_plan(&mut self, id: u32, text: &str) -> Vec<Response> {
        let (plan, picture) = match self.read_plan(text) {
            Ok(read) => read,
            Err(reason) => return vec![unreadable("plan", reason)],
        };
        // Of the question before.
        self.packing = None;
        let mut response = vec![Response::Opened { spec: plan.spec.to_json(), picture: Box::new(picture) }];
        let spec = self.with_profile(plan.spec.clone());
        response.extend(self.timed(&spec).map(|timed| {
            // A plan file contains its times; a profile does not change them.
            let covers = match (&spec.work, case_of(&plan, &spec)) {
                (Work::Model(_), None) => {
                    "not in the open plan file, which contains its own times; the comparison uses the measured times"
                        .to_owned()
                }
                _ => timed.covers,
            };
            Response::Timed(Some(Timed { covers, ..timed }))
        }));
        response.extend(self.start_comparison(id, spec, false));
        response.extend(self.done());
        response
    }
}
