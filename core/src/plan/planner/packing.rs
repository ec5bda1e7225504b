//! Plans of steps whose data parallel replicas have different documents: which documents form which microbatch, which replica
//! runs it, and in which order, together with the schedule.
//!
//! All replicas run the same op lists, and the step waits for the slowest. So the plan's problem is that of the slowest replica,
//! which comes first in its spec.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::answer::judge;
use super::comparison::{Bounds, ORDERING, Row, absent_row, gap, row};
use super::{Answer, Case, PlanError, best_with, derived_case, open_cases, plan_of, published_answers};
use crate::base::units::Nanos;
use crate::bounds::packing_bound;
use crate::estimate::derive::WithinDocuments;
use crate::plan::judged::{OpLists, slowest};
use crate::plan::{PackingFigures, Plan};
use crate::problem::op::{Op, OpKind};
use crate::problem::packing::{Bins, Document, DocumentTimes, Packing};
use crate::problem::placement::Placement;
use crate::problem::{Problem, Schedule};
use crate::schedule::{self, Absent, BEST};
use crate::search::{Batch, Effort, Flow, Progress};
use crate::spec::{Documents, ModelWork, Spec, Work, lengths_of};

mod pieces;
pub(super) use pieces::Pieces;

/// Documents of a step whose replicas have different ones.
pub(super) struct Step<'a> {
    spec: &'a Spec,
    work: &'a ModelWork,
    bins: Bins,
    lengths: Vec<u32>,
    /// The packing as given.
    given: Packing,
    /// Whether documents stay where they are.
    is_fixed: bool,
}

/// A schedule with documents in its places.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// As it was asked for.
    name: String,
    case: Case,
    schedule: Schedule,
    packing: Packing,
    cost: Cost,
}

/// What the slowest replica costs: what judges a plan, then the objective alone.
pub(super) type Cost = [Nanos; 2];

/// What the packings of one schedule cost; none of those that do not exist.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub given: Option<Cost>,
    pub sorted: Option<Cost>,
    pub dealt: Option<Cost>,
    pub found: Option<Cost>,
}

impl Candidate {
    /// What the slowest replica costs.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}

impl<'a> Step<'a> {
    /// None where all replicas have the same microbatches.
    pub fn of(spec: &'a Spec) -> Option<Step<'a>> {
        let Work::Model(work) = &spec.work else { return None };
        let bins = work.bins();
        let (lengths, given, is_fixed) = match &work.batch.documents {
            Documents::OfReplicas(replicas) => {
                let mut next = 0..;
                let mut number =
                    |lengths: &Vec<u32>| lengths.iter().filter_map(|_| next.next()).collect::<Vec<u32>>();
                let given = replicas.iter().map(|of| of.iter().map(&mut number).collect()).collect();
                (replicas.iter().flatten().flatten().copied().collect(), given, true)
            }
            documents => {
                let lengths = documents.of_step(bins, work.sequence)?;
                let given = bins.packed(&lengths)?;
                (lengths, given, false)
            }
        };
        Some(Step { spec, work, bins, lengths, given, is_fixed })
    }

    /// The spec with documents where `packing` has them.
    fn spec_with(&self, packing: &Packing) -> Spec {
        let mut spec = self.spec.clone();
        if let Work::Model(work) = &mut spec.work {
            let replicas = packing.iter().map(|replica| lengths_of(replica, &self.lengths)).collect();
            work.batch.documents = Documents::OfReplicas(replicas);
        }
        spec
    }

    /// The spec with documents as given.
    pub fn as_given(&self) -> Spec {
        self.spec_with(&self.given)
    }

    /// The spec with documents in the places of a candidate.
    pub fn spec_of(&self, candidate: &Candidate) -> Spec {
        self.spec_with(&candidate.packing)
    }

    fn bound_with_end_ns(&self, case: &Case) -> Option<Nanos> {
        self.placed(case).map(|placed| placed.bound_with_end_ns())
    }

    fn placed<'c>(&'c self, case: &'c Case) -> Option<Placed<'c>> {
        let within = WithinDocuments::of(self.work, &case.derived.as_ref()?.stages);
        let documents = self.lengths.iter().map(|length| within.document(*length)).collect();
        Some(Placed { step: self, case, times: within.times(), documents, within })
    }

    /// The plan with the published schedule `name`, or with the best of all.
    pub fn plan(
        &self,
        name: &str,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<Plan, PlanError> {
        let (candidate, figures) = match name {
            BEST => self.best(Vec::new(), effort, observer)?,
            _ => {
                let published =
                    schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_string() })?;
                let absent = |absent: Absent| PlanError::Absent { schedule: name.to_string(), reason: absent.reason };
                let answer = super::answer(&self.as_given(), &published).map_err(absent)?;
                let mut pieces = Pieces::new(name);
                pieces.offer(self, published.name, Ok(answer)).map_err(absent)?;
                while pieces.search_next(self, effort, observer)? {}
                let found = pieces.best().cloned().ok_or_else(|| pieces.none())?;
                (found, pieces.figures(self)?)
            }
        };
        let answer = self.answer_of(&candidate)?;
        let spec = self.spec_with(&candidate.packing);
        Ok(Plan { packing: figures, ..plan_of(&spec, answer)? })
    }

    fn figures(&self, costs: Costs, bound_ns: Nanos) -> Option<PackingFigures> {
        let Costs { given, sorted, dealt, found } = costs;
        let [given_ns, sorted_ns, dealt_ns] = [given, sorted, dealt].map(|cost| cost.map(|[judged_ns, _]| judged_ns));
        let figures = PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns: found?[0], bound_ns };
        (!self.is_fixed).then_some(figures)
    }

    /// The answer to the problem of the slowest replica, the first one.
    pub fn answer_of(&self, candidate: &Candidate) -> Result<Answer, PlanError> {
        let Candidate { name, case, schedule, packing, .. } = candidate;
        let spec = self.spec_with(packing);
        let Work::Model(work) = &spec.work else {
            return Err(PlanError::NoSchedule { nearest: None, reasons: vec![] });
        };
        let problem = &case.problem;
        let case =
            derived_case(&spec, work, problem.placement().clone(), problem.chunks()).map_err(PlanError::Spec)?;
        judge(&spec, case, name, schedule.clone())
            .map_err(|absent| PlanError::Absent { schedule: name.clone(), reason: absent.reason })
    }

    /// `answer` with documents as the search packs them for its schedule, and what the packings cost.
    pub fn packed(
        &self,
        name: &str,
        answer: &Answer,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<(Candidate, Costs), Absent> {
        let (best, mut costs) = self.simple(name, answer)?;
        if self.is_fixed {
            return Ok((best, costs));
        }
        let found = self.searched(&best, effort, observer).unwrap_or(best);
        costs.found = Some(found.cost);
        Ok((found, costs))
    }

    /// `answer` with the best of the packings that need no search, and what they cost.
    fn simple(&self, name: &str, answer: &Answer) -> Result<(Candidate, Costs), Absent> {
        let missing = || Absent::because("its op lists do not run with these documents");
        let placed = self.placed(&answer.case).ok_or_else(missing)?;
        let batch = placed.batch();
        let schedule = &answer.schedule;
        let dealt = batch.dealt(&self.given);
        let [sorted, dealt] = match self.is_fixed {
            true => [None, None],
            false => [batch.sorted(schedule, &self.given), Some(batch.sorted(schedule, &dealt).unwrap_or(dealt))],
        };
        let packings = [Some(self.given.clone()), sorted, dealt];
        let cost = |packing: &Option<Packing>| placed.judged(schedule, packing.as_ref()?);
        let costs: Vec<Option<(Cost, usize)>> = packings.iter().map(cost).collect();
        let best = packings.into_iter().zip(&costs).filter_map(|(packing, cost)| Some(((*cost)?, packing?)));
        let ((cost, slowest), mut packing) = best.min_by_key(|((cost, _), _)| *cost).ok_or_else(missing)?;
        packing.swap(0, slowest);
        let of = |at: usize| costs[at].map(|(cost, _)| cost);
        let costs = Costs { given: of(0), sorted: of(1), dealt: of(2), found: None };
        let (name, case, schedule) = (name.to_string(), answer.case.clone(), schedule.clone());
        Ok((Candidate { name, case, schedule, packing, cost }, costs))
    }

    /// A better packing for the schedule of `known`.
    fn searched(
        &self,
        known: &Candidate,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Option<Candidate> {
        let placed = self.placed(&known.case)?;
        let found = placed.batch().search(&known.schedule, &known.packing, effort, observer)?;
        let (cost, slowest) = placed.judged(&known.schedule, &found.packing)?;
        let mut packing = found.packing;
        packing.swap(0, slowest);
        (cost < known.cost).then(|| Candidate { packing, cost, ..known.clone() })
    }

    /// The best schedule with its documents, never worse than `more`, nor than a published one with a packing that needs no
    /// search.
    pub fn best(
        &self,
        more: Vec<Candidate>,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<(Candidate, Option<PackingFigures>), PlanError> {
        let mut pieces = Pieces::new(BEST);
        for (name, answer) in published_answers(&self.as_given()) {
            // Its reason is kept, for where there is no other.
            let _ = pieces.offer(self, name, answer);
        }
        pieces.extend(more);
        while pieces.search_next(self, effort, observer)? {}
        let best = pieces.best().cloned().ok_or_else(|| pieces.none())?;
        Ok((best, pieces.figures(self)?))
    }

    /// What the search of schedules finds for the slowest replica, where documents are evened out.
    fn of_even_documents(
        &self,
        known: &[Candidate],
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<Option<Candidate>, PlanError> {
        let case = known.first().map(|candidate| candidate.case.clone());
        let case = case.map_or_else(|| open_cases(self.spec).map(|mut cases| cases.swap_remove(0)), Ok)?;
        let mut even = match (self.is_fixed, self.placed(&case)) {
            (false, Some(placed)) => placed.batch().evened_out(&self.given, effort),
            _ => self.given.clone(),
        };
        if let Some(placed) = self.placed(&case) {
            let weight = |replica: &Vec<Vec<u32>>| replica.iter().flatten().map(|of| placed.weight(*of)).sum::<u64>();
            let heaviest = (0..even.len()).max_by_key(|at| weight(&even[*at])).unwrap_or(0);
            even.swap(0, heaviest);
        }
        let spec = self.spec_with(&even);
        let answer = best_with(&spec, published_answers(&spec), effort, observer)?;
        let (schedule, even) = match self.is_fixed {
            true => (answer.schedule.clone(), even),
            false => entering(&answer.case.problem, &answer.schedule, even),
        };
        let Some(placed) = self.placed(&answer.case) else { return Ok(None) };
        let batch = placed.batch();
        let mut best: Option<Candidate> = None;
        let sorted = if self.is_fixed { None } else { batch.sorted(&schedule, &even) };
        // The first replica may be best in the order that was found for it.
        let mixed = sorted.clone().map(|mut sorted| {
            sorted[0] = even[0].clone();
            sorted
        });
        for mut packing in [Some(even.clone()), sorted, mixed].into_iter().flatten() {
            let Some((cost, slowest)) = placed.judged(&schedule, &packing) else { continue };
            packing.swap(0, slowest);
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                let (name, case, schedule) = (answer.name.clone(), answer.case.clone(), schedule.clone());
                best = Some(Candidate { name, case, schedule, packing, cost });
            }
        }
        Ok(best)
    }

    /// The least bounds of all placements that the spec leaves open: with the step epilogue, then on the objective alone.
    fn bounds_of_all(&self) -> Result<Cost, PlanError> {
        let of = |case: &Case| self.placed(case).map(|placed| [placed.bound_with_end_ns(), placed.bound_ns()]);
        let bounds = open_cases(self.spec)?;
        let least =
            bounds.iter().filter_map(of).reduce(|[one, other], [more, further]| [one.min(more), other.min(further)]);
        Ok(least.unwrap_or([0; 2]))
    }

    /// A row for each published schedule, with the packing as given; then that of the best.
    pub fn rows(&self, bounds: &mut Bounds, effort: Effort, observer: &mut dyn FnMut(Progress) -> Flow) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut candidates = Vec::new();
        for (name, answer) in published_answers(&self.as_given()) {
            let share = Effort(effort.0 / ORDERING);
            let found = answer.and_then(|answer| {
                let (candidate, costs) = self.packed(name, &answer, share, observer)?;
                let as_given = self.answer_as_given(&candidate, &answer)?;
                candidates.push(candidate);
                Ok(self.row(name, &as_given, costs, bounds))
            });
            rows.push(found.unwrap_or_else(|absent| absent_row(name, absent.reason)));
        }
        let best = self.best(candidates, effort, observer).and_then(|(best, _)| {
            let costs = Costs { found: (!self.is_fixed).then_some(best.cost), ..Costs::default() };
            let row = self.row(BEST, &self.answer_of(&best)?, costs, bounds);
            let of_all = self.bounds_of_all()?[1];
            Ok(Row { bound_of_all_ns: Some(of_all).min(row.bound_ns).or(row.bound_ns), ..row })
        });
        rows.push(best.unwrap_or_else(|error| absent_row(BEST, error.to_string())));
        rows
    }

    /// The answer of the slowest replica with the packing as given.
    fn answer_as_given(&self, candidate: &Candidate, answer: &Answer) -> Result<Answer, Absent> {
        let missing = || Absent::because("its op lists do not run with these documents");
        let placed = self.placed(&answer.case).ok_or_else(missing)?;
        let (_, slowest) = placed.judged(&answer.schedule, &self.given).ok_or_else(missing)?;
        let mut packing = self.given.clone();
        packing.swap(0, slowest);
        let given = Candidate { packing, ..candidate.clone() };
        self.answer_of(&given).map_err(|error| Absent::because(error.to_string()))
    }

    fn row(&self, name: &str, answer: &Answer, costs: Costs, bounds: &mut Bounds) -> Row {
        let bound_ns = self.placed(&answer.case).map(|placed| placed.bound_ns());
        let objective = |cost: Option<Cost>| cost.map(|[_, objective_ns]| objective_ns);
        Row {
            bound_ns,
            bound_of_all_ns: bound_ns,
            gap: bound_ns.and_then(|bound_ns| gap(answer.cost_ns(), bound_ns)),
            sorted_ns: objective(costs.sorted),
            longest_first_ns: objective(costs.dealt),
            ordered_ns: objective(costs.found),
            ..row(name, self.spec, answer, bounds)
        }
    }
}

/// Candidates whose documents are searched.
const SEARCHED: usize = 2;

impl Costs {
    /// The least of both.
    fn take(&mut self, other: Costs) {
        let least = |one: &mut Option<Cost>, other: Option<Cost>| *one = (*one).into_iter().chain(other).min();
        least(&mut self.given, other.given);
        least(&mut self.sorted, other.sorted);
        least(&mut self.dealt, other.dealt);
    }
}

/// `schedule` with its places numbered as they enter, and the documents of all replicas in the same places as before.
fn entering(problem: &Problem, schedule: &Schedule, packing: Packing) -> (Schedule, Packing) {
    if *problem.placement() == Placement::Bidirectional {
        return (schedule.clone(), packing);
    }
    let forwards = schedule.rows[problem.rank_of(0, 0)].iter();
    let entering = forwards.filter(|op| op.stage() == 0 && op.kind() == OpKind::F);
    let old: Vec<usize> = entering.map(|op| op.microbatch()).collect();
    let mut new = vec![0; problem.microbatches()];
    old.iter().enumerate().for_each(|(place, microbatch)| new[*microbatch] = place);
    let op = |op: &Op| Op::new(op.stage(), op.kind(), new[op.microbatch()]);
    let rows = schedule.rows.iter().map(|row| row.iter().map(op).collect()).collect();
    let replica = |of: &Vec<Vec<u32>>| old.iter().map(|microbatch| of[*microbatch].clone()).collect();
    (Schedule { rows, pairs: schedule.pairs.clone(), ..Schedule::default() }, packing.iter().map(replica).collect())
}

/// Documents on the stages of one case.
struct Placed<'a> {
    step: &'a Step<'a>,
    case: &'a Case,
    within: WithinDocuments<'a>,
    times: DocumentTimes,
    documents: Vec<Document>,
}

impl Placed<'_> {
    fn batch(&self) -> Batch<'_> {
        let Placed { step, case, times, documents, .. } = self;
        Batch { problem: &case.problem, bins: step.bins, documents, times }
    }

    fn weight(&self, document: u32) -> u64 {
        self.times.weight(self.documents[document as usize].loads)
    }

    fn bound_ns(&self) -> Nanos {
        packing_bound(&self.case.problem, self.step.bins, &self.documents, &self.times)
    }

    fn bound_with_end_ns(&self) -> Nanos {
        let end_ns = self.case.derived.as_ref().map_or(0, |derived| derived.epilogue.least_tail_ns());
        self.bound_ns().saturating_add(end_ns)
    }

    /// What the slowest replica costs, and which that is. None where `schedule` does not run.
    fn judged(&self, schedule: &Schedule, packing: &Packing) -> Option<(Cost, usize)> {
        let Placed { step, case, within, .. } = self;
        let epilogue = case.derived.as_ref().map(|derived| &derived.epilogue);
        let op_lists = OpLists { spec: step.spec, problem: &case.problem, epilogue, schedule };
        let factors = packing.iter().map(|microbatches| within.factors(&lengths_of(microbatches, &step.lengths)));
        let replicas = op_lists.replicas(factors).ok()?;
        let at = slowest(&replicas);
        let cost_ns = replicas.iter().map(|(replica, _)| replica.cost_ns(case.problem.objective())).max();
        Some(([replicas.get(at)?.1, cost_ns?], at))
    }
}
