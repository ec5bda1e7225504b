//! Data parallel replicas with different documents, in a plan.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::Plan;
use super::file::PlanFileError;
use super::judged::{OpLists, Replica};
use crate::base::fields::{Fault, Table, shown};
use crate::base::units::Nanos;
use crate::check::check_schedule;
use crate::problem::factors::MicrobatchFactors;
use crate::problem::{MAX_OPS, Problem};

/// What packings of the documents of a step cost: the figure that judges a plan, of the slowest replica with communication and
/// with the step epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingFigures {
    /// Packed in their order by first fit, and assigned to replicas in turn.
    pub given_ns: Option<Nanos>,
    /// The same with the microbatches of each replica in the best of a few sorted orders.
    pub sorted_ns: Option<Nanos>,
    /// The same microbatches assigned by longest processing time first, then sorted.
    pub dealt_ns: Option<Nanos>,
    /// As the plan has them.
    pub found_ns: Nanos,
    /// No packing, order and schedule costs less.
    pub bound_ns: Nanos,
}

const FIGURES: [&str; 5] = ["given_ns", "sorted_ns", "longest_first_ns", "found_ns", "bound_ns"];

/// The most replicas whose ops, F, B and W apart, come to no more than a problem may have: each is simulated.
fn most_replicas(problem: &Problem) -> usize {
    MAX_OPS / (3 * problem.stage_count() * problem.microbatches()).max(1)
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
    let figures @ [given_ns, sorted_ns, dealt_ns, found_ns, bound_ns] =
        FIGURES.map(|name| table.whole(name, NUMBER, faults));
    if figures.iter().any(Option::is_some) {
        for (name, figure) in [(FIGURES[3], found_ns), (FIGURES[4], bound_ns)] {
            if figure.is_none() {
                faults.push(Fault::new(table.path(name), "nothing", "a whole number, as the other figures have it"));
            }
        }
    }
    table.finish(faults);
    let figures = found_ns.zip(bound_ns);
    let figures =
        figures.map(|(found_ns, bound_ns)| PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns });
    (replicas, figures)
}

/// Whether what is said of the replicas of `plan` follows from its problem, that of the first one, and from its schedule.
pub(super) fn check(plan: &Plan) -> Result<(), PlanFileError> {
    let Plan { spec, problem, schedule, epilogue, replicas, packing, .. } = plan;
    let untrue = |field, written: String, derived: String| Err(PlanFileError::Untrue { field, written, derived });
    let Some(first) = replicas.first() else { return Ok(()) };
    if replicas.len() > most_replicas(problem) {
        let found =
            format!("{} replicas of {} ops", replicas.len(), problem.stage_count() * problem.microbatches() * 3);
        return Err(Fault::new("packing.replicas", found, format!("at most {MAX_OPS} ops of all replicas")).into());
    }
    if first.factors.as_ref() != problem.factors() {
        return untrue("packing.replicas[0].microbatch_factors", "other factors".into(), "those of `problem`".into());
    }
    let op_lists = OpLists { spec, problem, epilogue: epilogue.as_ref(), schedule };
    let mut most_ns = 0;
    for (at, replica) in replicas.iter().enumerate() {
        if at > 0 {
            let own = problem.with_factors(replica.factors.clone()).map_err(PlanFileError::from)?;
            check_schedule(&own, schedule).map_err(PlanFileError::Schedule)?;
        }
        let derived = op_lists.replica(replica.factors.clone());
        let figures = |of: &Replica| format!("{} and {}", of.makespan_ns, of.longest_span_ns);
        let judged_ns = match derived {
            Ok((derived, judged_ns)) if derived == *replica => judged_ns,
            other => {
                let derived = other.map_or_else(|error| error, |(derived, _)| figures(&derived));
                return untrue("the makespan and the longest span of a replica", figures(replica), derived);
            }
        };
        if at == 0 {
            most_ns = judged_ns;
        } else if judged_ns > most_ns {
            return untrue("the slowest replica", "packing.replicas[0]".into(), format!("packing.replicas[{at}]"));
        }
    }
    let Some(figures) = packing else { return Ok(()) };
    let most_ns = op_lists.with_jitter(first, most_ns);
    if figures.found_ns != most_ns {
        return untrue("packing.found_ns", figures.found_ns.to_string(), most_ns.to_string());
    }
    if let Some(less) = figures.values().into_iter().flatten().find(|ns| *ns < figures.bound_ns) {
        return untrue("packing.bound_ns", figures.bound_ns.to_string(), format!("a packing that takes {less}"));
    }
    Ok(())
}
