//! The problem that a spec gives to a published schedule.

use crate::base::fields::Faults;
use crate::estimate::derive::{Derived, derive};
use crate::estimate::fit::{self, Fitted};
use crate::problem::Schedule;
use crate::problem::placement::Placement;
use crate::problem::{Backward, MAX_BYTES, PlacementChoice, Problem, Statement};
use crate::program::lower::Lowering;
use crate::schedule::{Absent, Published};
use crate::spec::{ModelWork, Spec, Work};
use alloc::format;
use alloc::string::ToString;

/// The problem that a spec gives to one published schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The problem, with the placement that the spec fixed or that the schedule chose.
    pub problem: Problem,
    /// The layers of each stage and their costs; none for typed costs.
    pub derived: Option<Derived>,
    /// What each layer recomputes, where the spec leaves that to the limit.
    pub fitted: Option<Fitted>,
}

/// The problem that `published` has to solve for `spec`.
///
/// # Errors
/// [`Absent`] with the reason: another placement or number of chunks is fixed, or the backward may not be
/// cut.
pub fn case(spec: &Spec, published: &Published) -> Result<Case, Absent> {
    if published.is_of_slices() && spec.slices() == 1 {
        return Err(Absent::of_whole_sequences());
    }
    match &spec.work {
        Work::Typed(statement) => typed_case(statement, published).map(Case::typed),
        Work::Model(work) => {
            let (placement, chunks) = (published.shape)(work.chunks as usize);
            let fitted = work.layout.fits().then(|| fitted(spec, work, published)).transpose()?;
            let applied = fitted.as_ref().map(|fitted| fitted.applied_to(work));
            let case = derived_case(spec, applied.as_ref().unwrap_or(work), placement, chunks);
            let case = case.map_err(|faults| Absent::because(faults.to_string()))?;
            Ok(Case { fitted, ..case })
        }
    }
}

/// The settings that the spec leaves to the limit, chosen so that every rank fits under `published`.
pub(super) fn fitted(spec: &Spec, work: &ModelWork, published: &Published) -> Result<Fitted, Absent> {
    fit::fit(work, |work| {
        let (placement, chunks) = (published.shape)(work.chunks as usize);
        let solved = |work: &ModelWork| {
            let case = derived_case(spec, work, placement.clone(), chunks);
            let case = case.map_err(|faults| Absent::because(faults.to_string()))?;
            let schedule = case.build(published)?;
            let missing = || Absent::because("there is no model");
            Ok((case.derived.ok_or_else(missing)?, case.problem, schedule))
        };
        // A schedule that depends on the limit may not exist yet, before memory is saved for it.
        solved(&work).or_else(|_: Absent| solved(&ModelWork { limit_bytes: Some(MAX_BYTES), ..work.clone() }))
    })
}

/// The case of `work`, the model of `spec`, with this placement of its stages.
pub(crate) fn derived_case(
    spec: &Spec,
    work: &ModelWork,
    placement: Placement,
    chunks: usize,
) -> Result<Case, Faults> {
    let mut derived = derive(work, placement.clone(), chunks)?;
    if let Lowering::Overlapped { prefetch } = spec.messages.lowering {
        derived.add_prefetch(work, &placement, prefetch);
    }
    let problem = derived.statement.problem(placement)?;
    Ok(Case { problem, derived: Some(derived), fitted: None })
}

pub(super) fn typed_case(statement: &Statement, published: &Published) -> Result<Problem, Absent> {
    let (wanted, chunks) = (published.shape)(statement.chunks);
    if chunks != statement.chunks {
        return Err(Absent::because(format!(
            "it has {chunks} chunk{} per rank; the problem fixes {}",
            if chunks == 1 { "" } else { "s" },
            statement.chunks
        )));
    }
    if published.splits_backward && statement.backward == Backward::Fused {
        return Err(Absent::because("it splits the backward; the problem's backward is fused"));
    }
    let placement = match &statement.placement {
        PlacementChoice::Any => wanted,
        // The same stages on the same ranks under another name: `wave` with two chunks is `v`.
        PlacementChoice::Fixed(fixed) if fixed.same_as(&wanted, statement.ranks, chunks) => fixed.clone(),
        PlacementChoice::Fixed(fixed) => {
            return Err(Absent::because(format!(
                "its placement is {}; the problem fixes {}",
                wanted.name().unwrap_or("a list"),
                fixed.name().unwrap_or("a custom list")
            )));
        }
    };
    statement.problem(placement).map_err(|fault| Absent::because(fault.to_string()))
}

impl Case {
    /// Of typed costs.
    pub(super) fn typed(problem: Problem) -> Case {
        Case { problem, derived: None, fitted: None }
    }

    /// The schedule of `published` for this case.
    ///
    /// # Errors
    /// [`Absent`] with the reason why it does not exist here.
    pub fn build(&self, published: &Published) -> Result<Schedule, Absent> {
        let (wanted, _) = (published.shape)(self.problem.chunks());
        if *self.problem.placement() == wanted {
            return published.build(&self.problem);
        }
        let named = Statement { placement: PlacementChoice::Fixed(wanted.clone()), ..self.problem.statement() };
        let named = named.problem(wanted).map_err(|fault| Absent::because(fault.to_string()))?;
        published.build(&named)
    }
}
