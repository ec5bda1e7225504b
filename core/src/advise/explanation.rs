//! What each rank of a model holds under a schedule, by kind, and what to change first where that is too much:
//! what `pipeplan memory` shows.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_json::{Map, Value, json};

use crate::advise::suggest::{self, Change, Shortener, Shorter, Suggestion, Suggestions};
use crate::base::units::{Bytes, Nanos};
use crate::plan::planner::{self, Answer, PlanError};
use crate::plan::verdict::{self, RankMemory, TYPED_COSTS};
use crate::plan::{StageHolder, holders};
use crate::problem::op::OpKind;
use crate::schedule::{self, Absent, BEST, Published};
use crate::search::{Effort, Flow, Progress};
use crate::spec::{Spec, Work};

/// What each rank holds under a schedule of a model.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The schedule, planned without the limit where none keeps it.
    pub answer: Answer,
    /// Whether it is the best within the limit, published or found by search.
    pub is_best: bool,
    /// What each rank holds.
    pub ranks: Vec<RankMemory>,
    /// Suggestions, where it does not fit.
    pub suggestions: Option<Suggestions>,
    /// The cost of the limit, where the best schedule fits and [`Explanation::shorten`] has run.
    pub shorter: Option<Shorter>,
    /// The time of a whole step.
    pub step_ns: Option<Nanos>,
    /// Why this schedule stands for `best`, where no schedule fits.
    pub note: Option<String>,
}

/// Why nothing is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// The costs are typed: the purpose of their bytes is not known.
    Typed,
    /// There is no such plan, with a limit or without.
    Plan(PlanError),
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unexplained::Typed => f.write_str(TYPED_COSTS),
            Unexplained::Plan(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for Unexplained {}

impl From<PlanError> for Unexplained {
    fn from(error: PlanError) -> Unexplained {
        Unexplained::Plan(error)
    }
}

/// What each rank of `spec` holds under the schedule `name`, and what to change where that does not fit. For [`BEST`] where none
/// fits: under the published one that holds the least. `effort` and `observer` are those of the search for the best.
///
/// # Errors
/// [`Unexplained`] where the costs are typed, or where there is no such schedule.
pub fn explain(
    spec: &Spec,
    name: &str,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Explanation, Unexplained> {
    let shown = explain_alone(spec, name, effort, observer)?;
    let suggestions = match schedule::find(&shown.answer.name) {
        Some(published) if !shown.is_best && !shown.ranks.iter().all(RankMemory::fits) => {
            Some(suggest::suggestions(spec, &published).map_err(|absent| not_there(&published, absent))?)
        }
        _ => None,
    };
    Ok(Explanation { suggestions, ..shown })
}

/// As [`explain`], without what to change: that takes by far the longest.
///
/// # Errors
/// As [`explain`].
pub(crate) fn explain_alone(
    spec: &Spec,
    name: &str,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Explanation, Unexplained> {
    if matches!(spec.work, Work::Typed(_)) {
        return Err(Unexplained::Typed);
    }
    if name == BEST {
        return of_best(spec, effort, observer);
    }
    let published = schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_owned() })?;
    of_published(spec, &published, None)
}

fn not_there(published: &Published, absent: Absent) -> PlanError {
    PlanError::Absent { schedule: published.name.to_owned(), reason: absent.reason }
}

fn of_published(spec: &Spec, published: &Published, note: Option<String>) -> Result<Explanation, Unexplained> {
    let (answer, ranks) = verdict::verdict(spec, published).map_err(|absent| not_there(published, absent))?;
    let step_ns = answer.step(spec).map(|step| step.step_ns);
    Ok(Explanation { answer, is_best: false, ranks, suggestions: None, shorter: None, step_ns, note })
}

/// The best schedule within the limit. Where there is none: the published one that needs the least memory.
fn of_best(
    spec: &Spec,
    effort: Effort,
    observer: &mut dyn FnMut(Progress) -> Flow,
) -> Result<Explanation, Unexplained> {
    match planner::best(spec, effort, observer) {
        Ok(answer) => {
            let derived = answer.case.derived.as_ref().ok_or(Unexplained::Typed)?;
            let ranks = verdict::by_rank(derived, &answer.case.problem, &answer.timeline);
            let step_ns = answer.step(spec).map(|step| step.step_ns);
            Ok(Explanation { answer, is_best: true, ranks, suggestions: None, shorter: None, step_ns, note: None })
        }
        Err(error @ PlanError::NoSchedule { .. }) => {
            let peak = |published: &&Published| {
                let (_, ranks) = verdict::verdict(spec, published).ok()?;
                ranks.iter().map(|rank| rank.peak).max()
            };
            let leanest = schedule::published()
                .iter()
                .filter_map(|published| Some((peak(&published)?, published)))
                .min_by_key(|(peak, _)| *peak);
            let Some((_, leanest)) = leanest else { return Err(error.into()) };
            let note = format!("no schedule fits the limit; this is {}, which needs the least memory", leanest.name);
            of_published(spec, leanest, Some(note))
        }
        Err(error) => Err(error.into()),
    }
}

impl Explanation {
    /// Which layers each stage and rank holds.
    pub fn holders(&self) -> Vec<StageHolder> {
        let case = &self.answer.case;
        case.derived.as_ref().map_or_else(Vec::new, |derived| holders(derived, &case.problem))
    }

    /// By stage: what a microbatch holds after F, and what it still holds after B, for W; on the device and in the
    /// host's memory. Where B recomputes what F did not keep, the latter may be more.
    pub fn held_for_w(&self) -> Vec<[Bytes; 2]> {
        let case = &self.answer.case;
        let held = |stage| {
            let cost = case.problem.cost(stage);
            let behind = [cost.forward_bytes, cost.forward_bytes + cost.backward_input_bytes];
            let on_host = case.derived.as_ref().map_or([0; 2], |derived| derived.host_bytes[stage]);
            [0, 1].map(|at| behind[at].max(0).unsigned_abs().saturating_add(on_host[at]))
        };
        (0..case.problem.stage_count()).map(held).collect()
    }

    /// Whether the schedule splits a backward, so that bytes wait for W.
    pub fn cuts_backwards(&self) -> bool {
        self.answer.schedule.rows.iter().flatten().any(|op| op.kind() == OpKind::W)
    }

    /// Finds how much time the memory limit of `spec`, which this explains, costs its best schedule, and changes with
    /// which it costs less. `observer` gets the number of plans made and of all, and may stop the search.
    pub fn shorten(&mut self, spec: &Spec, observer: &mut dyn FnMut(usize, usize) -> Flow) {
        if !self.is_best {
            return;
        }
        let Some(mut shortener) = Shortener::new(spec, &self.answer) else { return };
        loop {
            let (planned, most) = shortener.planned();
            if observer(planned, most) == Flow::Stop || !shortener.step() {
                break;
            }
        }
        self.shorter = shortener.finish();
    }

    /// For programs: `pipeplan memory --json`.
    pub fn to_value(&self) -> Value {
        let holders = self.holders();
        let rank = |rank: &RankMemory| {
            let held = holders.iter().filter(|holder| holder.ranks.contains(&rank.rank));
            let layers: Vec<u32> = held.flat_map(|holder| holder.layout.layers.clone()).collect();
            let kinds: Map<String, Value> =
                rank.fixed.kinds().iter().map(|(kind, bytes)| (kind.replace(' ', "_"), json!(bytes))).collect();
            json!({
                "rank": rank.rank,
                "layers": layers,
                "static_bytes": kinds,
                "activation_bytes": rank.activations,
                "host_bytes": rank.on_host,
                "peak_bytes": rank.peak,
                "at_op": rank.at.map(|op| op.to_string()),
                "at_ns": rank.at_ns,
                "limit_bytes": rank.limit,
                "fits": rank.fits(),
            })
        };
        let change = |change: &Change| json!({ "field": change.field, "from": change.from, "to": change.to });
        let suggestion = |suggestion: &Suggestion| {
            json!({
                "changes": suggestion.changes.iter().map(change).collect::<Vec<_>>(), "devices": suggestion.devices,
                "peak_bytes": suggestion.peak, "fits": suggestion.fits, "step_ns": suggestion.step_ns,
            })
        };
        let found = self.suggestions.as_ref();
        let listed = |of: fn(&Suggestions) -> &[Suggestion]| {
            found.map_or(&[][..], of).iter().map(suggestion).collect::<Vec<_>>()
        };
        let dealt = self.answer.case.derived.as_ref().and_then(|derived| derived.dealt);
        json!({
            "schedule": self.answer.name,
            "objective": self.answer.case.problem.objective().name(),
            "cost_ns": self.answer.cost_ns(),
            "fits": self.ranks.iter().all(RankMemory::fits),
            "note": self.note,
            "ranks": self.ranks.iter().map(rank).collect::<Vec<_>>(),
            "held_for_weight_permille": self.held_for_w().into_iter().map(|[kept, left]| {
                (u128::from(left) * 1000).checked_div(u128::from(kept)).unwrap_or(0) as u64
            }).collect::<Vec<_>>(),
            "deal": dealt.map(|dealt| json!({ "slowest_stage_ns": dealt.slowest_ns, "bound_ns": dealt.bound_ns })),
            "fit": self.answer.case.fitted.as_ref().map(|fitted| &fitted.account),
            "step_ns": self.step_ns,
            "changes": listed(|found| &found.single),
            "combinations": listed(|found| &found.combined),
            "all_together": found.and_then(|found| found.all.as_ref()).map(suggestion),
            "cheapest": found.and_then(Suggestions::cheapest).map(suggestion),
            "shorter": self.shorter.as_ref().map(|shorter| json!({
                "without_limit_step_ns": shorter.without_limit_ns,
                "changes": shorter.single.iter().map(suggestion).collect::<Vec<_>>(),
                "combinations": shorter.together.iter().map(suggestion).collect::<Vec<_>>(),
            })),
        })
    }
}
