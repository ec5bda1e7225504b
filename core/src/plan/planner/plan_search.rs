//! The search for a plan piece by piece, whether replicas differ or not.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::packing::{Pieces, Step};
use super::{Answer, Best, PlanError, answer, plan_of};
use crate::base::units::Nanos;
use crate::plan::{PackingFigures, Plan};
use crate::schedule::{Absent, BEST, Published};
use crate::search::{Effort, Flow, Progress};
use crate::spec::Spec;

/// The search for the plan of a spec, piece by piece, so that a page can respond between two pieces. After the last piece its
/// plan is that of [`plan_with`](super::plan_with) with the same effort.
///
/// Look at every published schedule, then search until there is nothing left.
#[derive(Clone, Debug)]
pub struct PlanSearch {
    spec: Spec,
    way: Way,
}

#[derive(Clone, Debug)]
enum Way {
    /// All data parallel replicas have the same microbatches.
    Alike(Best),
    /// They have different documents. What is found has this cost.
    Packed { pieces: Pieces, found: Option<([Nanos; 2], Packed)> },
}

/// An answer with the documents of all data parallel replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// The spec with the documents of each replica and microbatch, the slowest replica first.
    pub spec: Spec,
    /// The answer of that replica.
    pub answer: Answer,
    /// What packings cost; none where documents stay where they are.
    pub figures: Option<PackingFigures>,
}

impl Packed {
    /// The plan.
    ///
    /// # Errors
    /// As [`plan_of`].
    pub fn plan(&self) -> Result<Plan, PlanError> {
        Ok(Plan { packing: self.figures, ..plan_of(&self.spec, self.answer.clone())? })
    }
}

impl PlanSearch {
    /// The search for the best plan; nothing looked at yet.
    pub fn new(spec: &Spec) -> PlanSearch {
        let packed = || Way::Packed { pieces: Pieces::new(BEST), found: None };
        let way = if Step::of(spec).is_some() { packed() } else { Way::Alike(Best::new(spec)) };
        PlanSearch { spec: spec.clone(), way }
    }

    /// The search for documents in the places of the schedule `name`, which is then to be looked at. None where all data
    /// parallel replicas have the same microbatches: there a published schedule takes no search.
    pub fn of_schedule(spec: &Spec, name: &str) -> Option<PlanSearch> {
        Step::of(spec)?;
        Some(PlanSearch { spec: spec.clone(), way: Way::Packed { pieces: Pieces::new(name), found: None } })
    }

    /// Looks at a published schedule: `seen` gets its answer. Documents are packed as well as they are without a search.
    ///
    /// # Errors
    /// [`Absent`] where it does not exist here.
    pub fn look(&mut self, published: &Published, seen: &mut dyn FnMut(&Answer)) -> Result<(), Absent> {
        let name = published.name;
        match &mut self.way {
            Way::Alike(best) => {
                let answer = answer(&self.spec, published);
                let told = answer.as_ref().map(&mut *seen).map_err(Clone::clone);
                best.offer(name, answer);
                told
            }
            Way::Packed { pieces, found } => {
                let missing = || Absent::because("its documents are packed otherwise");
                let step = Step::of(&self.spec).ok_or_else(missing)?;
                let answer = answer(&step.as_given(), published);
                let candidate = pieces.offer(&step, name, answer)?;
                let answer = step.answer_of(candidate).map_err(|error| Absent::because(error.to_string()))?;
                seen(&answer);
                let (cost, spec) = (candidate.cost(), step.spec_of(candidate));
                if found.as_ref().is_none_or(|(known, _)| cost < *known) {
                    *found = Some((cost, Packed { spec, answer, figures: None }));
                }
                Ok(())
            }
        }
    }

    /// The next search. False where none is left.
    ///
    /// # Errors
    /// [`PlanError::Spec`] where no problem follows from the spec.
    pub fn search_next(
        &mut self,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<bool, PlanError> {
        let (pieces, found) = match &mut self.way {
            Way::Alike(best) => return best.search_next(effort, observer),
            Way::Packed { pieces, found } => (pieces, found),
        };
        let Some(step) = Step::of(&self.spec) else { return Ok(false) };
        let more = pieces.search_next(&step, effort, observer)?;
        if let Some(best) = pieces.best().filter(|best| found.as_ref().is_none_or(|(known, _)| best.cost() < *known))
        {
            let packed = Packed { spec: step.spec_of(best), answer: step.answer_of(best)?, figures: None };
            *found = Some((best.cost(), packed));
        }
        if let Some((_, packed)) = found {
            packed.figures = pieces.figures(&step)?;
        }
        Ok(more)
    }

    /// The figure that judges the best so far, see [`Best::least_ns`]. The greatest number where there is none.
    pub fn least_ns(&self) -> Nanos {
        match &self.way {
            Way::Alike(best) => best.least_ns(),
            Way::Packed { found, .. } => found.as_ref().map_or(Nanos::MAX, |([judged_ns, _], _)| *judged_ns),
        }
    }

    /// The best so far; of replicas with different documents, the answer of the slowest.
    pub fn so_far(&self) -> Option<&Answer> {
        match &self.way {
            Way::Alike(best) => best.so_far(),
            Way::Packed { .. } => self.packed().map(|packed| &packed.answer),
        }
    }

    /// The best so far with its documents, where data parallel replicas have different ones.
    pub fn packed(&self) -> Option<&Packed> {
        match &self.way {
            Way::Alike(_) => None,
            Way::Packed { found, .. } => found.as_ref().map(|(_, packed)| packed),
        }
    }

    /// Whether data parallel replicas have different documents.
    pub fn packs(&self) -> bool {
        matches!(self.way, Way::Packed { .. })
    }

    /// Why there is no plan yet; none where there is one.
    pub fn failure(&self) -> Option<PlanError> {
        match &self.way {
            _ if self.so_far().is_some() => None,
            Way::Alike(best) => best.clone().finish().err(),
            Way::Packed { pieces, .. } => Some(pieces.none()),
        }
    }

    /// The plan of the best so far.
    ///
    /// # Errors
    /// [`PlanError::NoSchedule`] where there is none, and as [`plan_of`].
    pub fn plan(&self) -> Result<Plan, PlanError> {
        match (self.packed(), self.so_far()) {
            (Some(packed), _) => packed.plan(),
            (None, Some(answer)) => plan_of(&self.spec, answer.clone()),
            (None, None) => {
                let none = PlanError::NoSchedule { nearest: None, reasons: Vec::new() };
                Err(self.failure().unwrap_or(none))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;
    use crate::plan::planner::plan_with;
    use crate::schedule;
    use crate::search::Effort;

    fn spec(documents: &str) -> Spec {
        let text = format!(
            "[model]\nname = \"tiny-llama\"\n[cluster]\ndevice = \"h100\"\n[parallel]\npipeline = 2\ndata = 2\n\
             [training]\nmicrobatches = 4\nsequence = 512\n{documents}\n"
        );
        Spec::read(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    const STEP: &str = "documents = [512, 300, 40, 150, 20, 500, 380, 120, 256, 256, 75, 50]";

    /// Piece by piece comes the same plan as in one go, whether the planner packs documents, leaves them or has none.
    #[test]
    fn the_pieces_make_the_plan() {
        let effort = Effort(20_000);
        let mut go_on = |_: Progress| Flow::Continue;
        for documents in
            ["", STEP, "documents = [[[512], [300, 40], [150], [20]], [[500], [380, 120], [256, 256], [75, 50]]]"]
        {
            let spec = spec(documents);
            let mut search = PlanSearch::new(&spec);
            assert_eq!(search.packs(), !documents.is_empty());
            let mut seen = 0;
            for published in schedule::published() {
                let before = search.least_ns();
                seen += u32::from(search.look(published, &mut |answer| assert!(answer.judged_ns() > 0)).is_ok());
                assert!(search.least_ns() <= before);
            }
            assert!(seen > 5);
            while search.search_next(effort, &mut go_on).expect("a problem") {}
            let plan = search.plan().expect("a plan");
            assert_eq!(Some(search.least_ns()), search.so_far().map(Answer::judged_ns));
            assert_eq!(Ok(plan.to_json()), plan_with(&spec, BEST, effort, &mut go_on).map(|plan| plan.to_json()));
            assert_eq!(plan.packing.is_some(), documents == STEP);
        }
        let spec = spec(STEP);
        let mut search = PlanSearch::of_schedule(&spec, "1f1b").expect("documents");
        let published = schedule::find("1f1b").expect("published");
        search.look(&published, &mut |_| ()).expect("it fits");
        let before = search.least_ns();
        while search.search_next(effort, &mut go_on).expect("a problem") {}
        assert!(search.least_ns() <= before);
        let plan = search.plan().map(|plan| plan.to_json());
        assert_eq!(plan, plan_with(&spec, "1f1b", effort, &mut go_on).map(|plan| plan.to_json()));
    }

    #[test]
    fn a_stopped_search_has_the_best_so_far() {
        let spec = spec(STEP);
        let mut search = PlanSearch::new(&spec);
        assert!(matches!(search.plan(), Err(PlanError::NoSchedule { .. })));
        for published in schedule::published() {
            let _ = search.look(published, &mut |_| ());
        }
        let known = search.least_ns();
        while search.search_next(Effort::default(), &mut |_| Flow::Stop).expect("a problem") {}
        assert!(search.least_ns() <= known);
        assert!(search.plan().is_ok());
    }
}
