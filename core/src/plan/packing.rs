//! Data parallel replicas with different documents, in a plan.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::file::PlanFileError;
use crate::base::fields::{Fault, Table, shown};
use crate::base::units::Nanos;
use crate::check::check_schedule;
use crate::problem::factors::MicrobatchFactors;
use crate::problem::{Problem, Schedule};
use crate::simulate::simulate;

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

/// What packings of the documents of a step cost: the figure that judges a plan, of the slowest replica with communication and
/// with the step epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingFigures {
    /// Packed in their order by first fit, and dealt to replicas in turn.
    pub given_ns: Option<Nanos>,
    /// The same with the microbatches of each replica in the best of a few sorted orders.
    pub sorted_ns: Option<Nanos>,
    /// The same microbatches dealt by longest processing time first, then sorted.
    pub dealt_ns: Option<Nanos>,
    /// As the plan has them.
    pub found_ns: Nanos,
    /// No packing, order and schedule costs less.
    pub bound_ns: Nanos,
}

const FIGURES: [&str; 5] = ["given_ns", "sorted_ns", "longest_first_ns", "found_ns", "bound_ns"];

impl Replica {
    /// A replica whose microbatches take `factors` of `problem`; none where the schedule does not run.
    pub(super) fn of(problem: &Problem, factors: Option<MicrobatchFactors>, schedule: &Schedule) -> Option<Replica> {
        let problem = problem.with_factors(factors.clone()).ok()?;
        let timeline = simulate(&problem, schedule).ok()?;
        let (makespan_ns, longest_span_ns) = (timeline.makespan_ns(), timeline.longest_span_ns());
        Some(Replica { factors, makespan_ns, longest_span_ns })
    }
}

impl PackingFigures {
    fn values(self) -> [Option<Nanos>; 5] {
        let PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns } = self;
        [given_ns, sorted_ns, dealt_ns, Some(found_ns), Some(bound_ns)]
    }
}

/// The field `packing` of a plan file; none without replicas that differ.
pub(super) fn to_value(replicas: &[Replica], figures: Option<PackingFigures>) -> Option<Value> {
    let replica = |replica: &Replica| {
        let Replica { factors, makespan_ns, longest_span_ns } = replica;
        let mut value = json!({ "makespan_ns": makespan_ns, "longest_span_ns": longest_span_ns });
        if let Some(factors) = factors {
            value["microbatch_factors"] = factors.to_value();
        }
        value
    };
    let mut value = Map::new();
    value.insert("replicas".to_string(), replicas.iter().map(replica).collect());
    for (name, figure) in FIGURES.iter().zip(figures.into_iter().flat_map(PackingFigures::values)) {
        value.extend(figure.map(|ns| (name.to_string(), json!(ns))));
    }
    (!replicas.is_empty()).then_some(Value::Object(value))
}

/// Reads the field `packing` of a plan with `problem`.
pub(super) fn read(
    mut table: Table<'_>,
    problem: Option<&Problem>,
    faults: &mut Vec<Fault>,
) -> (Vec<Replica>, Option<PackingFigures>) {
    const NUMBER: core::ops::RangeInclusive<u64> = 0..=u64::MAX;
    let path = table.path("replicas");
    let list = table.get("replicas");
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        let found = list.map_or_else(|| "nothing".to_string(), shown);
        faults.push(Fault::new(path.clone(), found, "a list with one table for each data parallel replica"));
    }
    let mut replica = |(index, item): (usize, &Value)| {
        let mut table = Table::of(item, &format!("{path}[{index}]"), faults)?;
        let problem = problem?;
        let shape = [problem.stage_count(), problem.microbatches()];
        let at = table.path("microbatch_factors");
        let factors = table.get("microbatch_factors");
        let factors = factors.and_then(|value| MicrobatchFactors::read(value, &at, shape, faults));
        let makespan_ns = table.needed_whole("makespan_ns", NUMBER, faults);
        let longest_span_ns = table.needed_whole("longest_span_ns", NUMBER, faults);
        table.finish(faults);
        Some(Replica { factors, makespan_ns: makespan_ns?, longest_span_ns: longest_span_ns? })
    };
    let replicas = items.iter().enumerate().filter_map(&mut replica).collect();
    let [given_ns, sorted_ns, dealt_ns, found_ns, bound_ns] = FIGURES.map(|name| table.whole(name, NUMBER, faults));
    table.finish(faults);
    let figures = found_ns.zip(bound_ns);
    let figures =
        figures.map(|(found_ns, bound_ns)| PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns });
    (replicas, figures)
}

/// Whether what is said of `replicas` follows from `problem`, that of the first one, and from `schedule`.
pub(super) fn check(problem: &Problem, schedule: &Schedule, replicas: &[Replica]) -> Result<(), PlanFileError> {
    if let Some(first) = replicas.first()
        && first.factors.as_ref() != problem.factors()
    {
        return Err(PlanFileError::Untrue {
            field: "packing.replicas[0].microbatch_factors",
            written: "other factors".to_string(),
            derived: "those of `problem`".to_string(),
        });
    }
    for replica in replicas {
        let own = problem.with_factors(replica.factors.clone()).map_err(PlanFileError::from)?;
        check_schedule(&own, schedule).map_err(PlanFileError::Schedule)?;
        let derived = Replica::of(problem, replica.factors.clone(), schedule);
        let figures = |of: &Replica| format!("{} and {}", of.makespan_ns, of.longest_span_ns);
        if derived.as_ref() != Some(replica) {
            return Err(PlanFileError::Untrue {
                field: "the makespan and the longest span of a replica",
                written: figures(replica),
                derived: derived.as_ref().map_or_else(|| "none".to_string(), figures),
            });
        }
    }
    Ok(())
}
