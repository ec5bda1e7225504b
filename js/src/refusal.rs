//! The error that functions throw: an `Error` whose message lists all errors, and whose `faults` give them by field.

use js_sys::{Error, JSON, Reflect};
use pipeplan_core::advise::explanation::Unexplained;
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::base::json::Syntax;
use pipeplan_core::formats::export::ExportError;
use pipeplan_core::plan::PlanFileError;
use pipeplan_core::plan::planner::PlanError;
use pipeplan_core::spec::SpecError;
use serde_json::{Value, json};
use wasm_bindgen::JsValue;

/// An input with errors, or one without a plan.
pub struct Refusal {
    message: String,
    faults: Vec<Fault>,
    /// Position of a syntax error in TOML or JSON.
    place: Option<Syntax>,
}

impl Refusal {
    /// A refusal because of one field.
    pub fn of_field(field: &str, found: &str, accepted: &str) -> Refusal {
        Faults::from(Fault::new(field, found, accepted)).into()
    }

    /// A refusal with a message only.
    fn message(message: impl ToString) -> Refusal {
        Refusal { message: message.to_string(), faults: Vec::new(), place: None }
    }
}

impl From<Faults> for Refusal {
    fn from(faults: Faults) -> Refusal {
        Refusal { message: faults.to_string(), faults: faults.0, place: None }
    }
}

impl From<Syntax> for Refusal {
    fn from(syntax: Syntax) -> Refusal {
        Refusal { place: Some(syntax.clone()), ..Refusal::message(syntax) }
    }
}

impl From<SpecError> for Refusal {
    fn from(error: SpecError) -> Refusal {
        match error {
            SpecError::Faults(faults) => faults.into(),
            SpecError::Syntax(syntax) => syntax.into(),
            SpecError::Link(_) => Refusal::message(error),
        }
    }
}

impl From<PlanFileError> for Refusal {
    fn from(error: PlanFileError) -> Refusal {
        match error {
            PlanFileError::Faults(faults) => faults.into(),
            PlanFileError::Syntax(syntax) => syntax.into(),
            _ => Refusal::message(error),
        }
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Refusal {
        match error {
            PlanError::Spec(faults) => faults.into(),
            _ => Refusal::message(error),
        }
    }
}

impl From<Unexplained> for Refusal {
    fn from(error: Unexplained) -> Refusal {
        match error {
            Unexplained::Plan(error) => error.into(),
            Unexplained::Typed => Refusal::message(error),
        }
    }
}

impl From<ExportError> for Refusal {
    fn from(error: ExportError) -> Refusal {
        match error {
            ExportError::Spec(faults) => faults.into(),
            _ => Refusal::message(error),
        }
    }
}

impl From<Refusal> for JsValue {
    fn from(refusal: Refusal) -> JsValue {
        let error = Error::new(&refusal.message);
        let fault = |fault: &Fault| json!({ "field": fault.field, "found": fault.found, "accepted": fault.accepted });
        let faults = refusal.faults.iter().map(fault).collect();
        set(&error, "faults", faults);
        if let Some(Syntax { line, column, offset, .. }) = refusal.place {
            set(&error, "place", json!({ "line": line, "column": column, "offset": offset }));
        }
        error.into()
    }
}

/// Sets a property of the error. Neither call can fail: the text is JSON, and `error` is a plain object.
fn set(error: &Error, field: &str, value: Value) {
    let value = JSON::parse(&value.to_string()).unwrap_or_default();
    let _ = Reflect::set(error, &field.into(), &value);
}
