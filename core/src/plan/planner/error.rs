//! Why there is no plan, for people.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::base::fields::{Faults, one_of_like};
use crate::check::Violation;
use crate::program::lower::Lowering;
use crate::schedule::schedule_names;
use crate::search::Infeasible;
use crate::simulate::Deadlock;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// No schedule has this name.
    UnknownSchedule {
        /// The spec.
        name: String,
    },
    /// The schedule does not exist for this spec, or breaks its memory limit.
    Absent {
        /// The schedule.
        schedule: String,
        /// Why.
        reason: String,
    },
    /// No schedule is valid for this spec.
    NoSchedule {
        /// The missing memory on the placement that needs least, where the search ran.
        nearest: Option<Infeasible>,
        /// Each published schedule with its reason.
        reasons: Vec<(String, String)>,
    },
    /// The spec has faults.
    Spec(Faults),
    /// The order cannot run; `check` accepts no such order.
    Deadlock(Deadlock),
    /// The transport that the spec names could not complete the program.
    Hangs {
        /// How transfers were to be placed.
        lowering: Lowering,
        /// What is wrong, such as ranks that wait in a circle.
        violations: Vec<Violation>,
        /// Ways to place them that complete there.
        completing: Vec<Lowering>,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::UnknownSchedule { name } => {
                write!(f, "no schedule is called `{name}`; accepted is {}", one_of_like(name, &schedule_names()))
            }
            PlanError::Absent { schedule, reason } => write!(f, "{schedule} has no plan here: {reason}"),
            PlanError::NoSchedule { nearest, reasons } => {
                f.write_str("no schedule is valid here")?;
                // What the search says comes first: it tried everything. The rest shares lines where it can.
                nearest.iter().try_for_each(|infeasible| write!(f, ": {infeasible}"))?;
                let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
                for (name, reason) in reasons {
                    match lines.iter_mut().find(|(known, _)| *known == reason.as_str()) {
                        Some((_, names)) => names.push(name),
                        None => lines.push((reason, Vec::from([name.as_str()]))),
                    }
                }
                lines.iter().try_for_each(|(reason, names)| write!(f, "\n  {}: {reason}", names.join(", ")))
            }
            PlanError::Spec(faults) => fmt::Display::fmt(faults, f),
            PlanError::Deadlock(deadlock) => fmt::Display::fmt(deadlock, f),
            PlanError::Hangs { lowering, violations, completing } => {
                write!(f, "with {lowering} transfers this plan could hang, so it is not written:")?;
                violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))?;
                let names: Vec<String> = completing.iter().map(|lowering| format!("`{lowering}`")).collect();
                match names.split_last() {
                    Some((last, [])) => write!(f, "\nuse {last}, which completes there")?,
                    Some((last, others)) => write!(f, "\nuse {} or {last}, which complete there", others.join(", "))?,
                    None => f.write_str("\nname another transport")?,
                }
                // Buffers resolve a wait, but not transfers in a different order at both ends.
                let waits = violations.iter().all(|violation| matches!(violation, Violation::Circle { .. }));
                f.write_str(if waits { ", or name a transport with buffers, or with more of them" } else { "" })
            }
        }
    }
}

impl core::error::Error for PlanError {}
