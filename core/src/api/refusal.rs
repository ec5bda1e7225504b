//! What a caller gets where its input is refused or has no plan: one message, and the faults by field for programs.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_json::{Value, json};

use crate::advise::explanation::Unexplained;
use crate::base::fields::{Fault, Faults, one_of_like};
use crate::base::json::Syntax;
use crate::formats::export::ExportError;
use crate::hardware::profile::ProfileError;
use crate::plan::PlanFileError;
use crate::plan::planner::PlanError;
use crate::schedule::schedule_names;
use crate::spec::SpecError;

/// Input that was refused, or that there is no plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// All that is wrong, for people.
    pub message: String,
    /// All faults, in the order of the fields; empty where no field is to blame.
    pub faults: Vec<Fault>,
    /// Where a text stops being TOML or JSON.
    pub place: Option<Syntax>,
}

impl Refusal {
    /// Because of one field.
    pub fn of_field(field: &str, found: &str, accepted: &str) -> Refusal {
        Faults::from(Fault::new(field, found, accepted)).into()
    }

    /// With a sentence alone.
    pub fn said(message: impl ToString) -> Refusal {
        Refusal { message: message.to_string(), faults: Vec::new(), place: None }
    }

    /// For programs: `message`, `faults` and, of a text, `place`.
    pub fn to_value(&self) -> Value {
        let fault = |fault: &Fault| json!({ "field": fault.field, "found": fault.found, "accepted": fault.accepted });
        let faults: Vec<Value> = self.faults.iter().map(fault).collect();
        let mut value = json!({ "message": self.message, "faults": faults });
        if let Some(Syntax { line, column, offset, .. }) = &self.place {
            value["place"] = json!({ "line": line, "column": column, "offset": offset });
        }
        value
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for Refusal {}

impl From<Faults> for Refusal {
    fn from(faults: Faults) -> Refusal {
        Refusal { message: faults.to_string(), faults: faults.0, place: None }
    }
}

impl From<Syntax> for Refusal {
    fn from(syntax: Syntax) -> Refusal {
        Refusal { place: Some(syntax.clone()), ..Refusal::said(syntax) }
    }
}

impl From<SpecError> for Refusal {
    fn from(error: SpecError) -> Refusal {
        match error {
            SpecError::Faults(faults) => faults.into(),
            SpecError::Syntax(syntax) => syntax.into(),
            SpecError::Link(_) => Refusal::said(error),
        }
    }
}

impl From<ProfileError> for Refusal {
    fn from(error: ProfileError) -> Refusal {
        match error {
            ProfileError::Faults(faults) => faults.into(),
            ProfileError::Syntax(syntax) => syntax.into(),
        }
    }
}

impl From<PlanFileError> for Refusal {
    fn from(error: PlanFileError) -> Refusal {
        match error {
            PlanFileError::Faults(faults) => faults.into(),
            PlanFileError::Syntax(syntax) => syntax.into(),
            _ => Refusal::said(error),
        }
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Refusal {
        match error {
            PlanError::Spec(faults) => faults.into(),
            PlanError::UnknownSchedule { name } => {
                let accepted = one_of_like(&name, &schedule_names());
                Refusal::of_field("schedule", &format!("\"{name}\""), &accepted)
            }
            _ => Refusal::said(error),
        }
    }
}

impl From<Unexplained> for Refusal {
    fn from(error: Unexplained) -> Refusal {
        match error {
            Unexplained::Plan(error) => error.into(),
            Unexplained::Typed => Refusal::said(error),
        }
    }
}

impl From<ExportError> for Refusal {
    fn from(error: ExportError) -> Refusal {
        match error {
            ExportError::Spec(faults) => faults.into(),
            _ => Refusal::said(error),
        }
    }
}
