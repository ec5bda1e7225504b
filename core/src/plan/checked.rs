//! Which transports complete a plan, and which ranks wait for which on those that do not.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::Plan;
use crate::bounds::lower_bound;
use crate::check::{Violation, check_program};
use crate::plan::planner::derived_case;
use crate::program::Transport;
use crate::program::lower::{Lowering, lower_as};
use crate::simulate::Deadlock;
use crate::spec::Work;

/// The transports that are checked where none is named.
pub const TRANSPORTS: [Transport; 5] = [
    Transport::Rendezvous,
    Transport::Buffered { slots: 1 },
    Transport::Grouped,
    Transport::PairOrdered,
    Transport::Streams,
];

/// Whether each transport completes a plan's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The plan's digest.
    pub digest: String,
    /// In the order of the check: whether the program completes, or what stops it.
    pub by_transport: Vec<(Transport, Result<(), Vec<Violation>>)>,
    /// What was taken from the file unchecked, since it does not follow from the rest.
    pub on_trust: Vec<String>,
}

impl Plan {
    /// Checks each transport with the plan's program; with a `lowering`, the transfers of its order are placed again.
    ///
    /// # Errors
    /// [`Deadlock`] where the order cannot be run: never for a plan that the planner made or that was read.
    pub fn checked(&self, lowering: Option<Lowering>, asked: &[Transport]) -> Result<Checked, Deadlock> {
        let lowered = lowering.map(|lowering| lower_as(&self.problem, &self.schedule, lowering)).transpose()?;
        let program = lowered.as_ref().unwrap_or(&self.program);
        let ask = |transport: &Transport| (*transport, check_program(&self.problem, program, *transport));
        let by_transport = asked.iter().map(ask).collect();
        Ok(Checked { digest: self.digest(), by_transport, on_trust: self.on_trust() })
    }

    /// The fields of the file that differ from a new plan of its spec. Measured times and other planner versions are
    /// valid reasons; a wrong change of the file is not.
    fn on_trust(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Work::Model(work) = &self.spec.work {
            let problem = &self.problem;
            let case = derived_case(&self.spec, work, problem.placement().clone(), problem.chunks());
            let derived = case.as_ref().ok().and_then(|case| case.derived.as_ref());
            let differs = "not what `spec` gives: the times are measured, or another version wrote the plan";
            if case.as_ref().map_or(true, |case| case.problem != *problem) {
                found.push(format!("problem: {differs}"));
            }
            if self.epilogue.is_some() && self.epilogue.as_ref() != derived.map(|derived| &derived.epilogue) {
                found.push(format!("ends: {differs}"));
            }
        }
        let (written, proved) = (self.prediction.bound_ns, lower_bound(&self.problem).value_ns);
        if written < proved {
            found.push(format!(
                "prediction.bound_ns: {written}, but this version proves {proved}: an earlier version wrote \
                 the plan"
            ));
        }
        found
    }
}

impl Checked {
    /// The transports that do not complete the program, each with its first violation.
    pub fn stuck(&self) -> impl Iterator<Item = (Transport, &Violation)> {
        self.by_transport.iter().filter_map(|(transport, result)| Some((*transport, result.as_ref().err()?.first()?)))
    }

    /// For programs: `pipeplan check --json`.
    pub fn to_value(&self) -> Value {
        let completed: Map<String, Value> = self
            .by_transport
            .iter()
            .map(|(transport, result)| (transport.to_string(), json!(result.is_ok())))
            .collect();
        let stuck: Map<String, Value> =
            self.stuck().map(|(transport, violation)| (transport.to_string(), hang(violation))).collect();
        json!({ "valid": true, "digest": self.digest, "transports": completed, "stuck": stuck, "on_trust": self.on_trust })
    }
}

/// What every rank waits for, and the circle of waits.
fn hang(violation: &Violation) -> Value {
    let Violation::Stuck(stuck) = violation else { return json!({ "error": violation.to_string() }) };
    let waits = stuck.waits.iter().map(|wait| {
        json!({ "rank": wait.rank, "step": wait.index, "message": wait.message.to_string(), "waits_for_rank": wait.on })
    });
    json!({ "waits": waits.collect::<Vec<_>>(), "circle": stuck.circle })
}
