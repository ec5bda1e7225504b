//! What is thrown: an `Error` whose message says all that is wrong, with the same by field for programs.

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

/// Input that was refused, or that there is no plan for.
pub struct Refusal {
    message: String,
    faults: Vec<Fault>,
    /// Where a text stops being TOML or JSON.
    place: Option<Syntax>,
}

impl Refusal {
    /// Because of one field.
    pub fn of_field(field: &str, found: &str, accepted: &str) -> Refusal {
        Faults::from(Fault::new(field, found, accepted)).into()
    }

    /// With its sentence alone.
    fn said(message: impl ToString) -> Refusal {
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

/// Neither can fail: the text is JSON, and the error is an object of ours.
fn set(error: &Error, field: &str, value: Value) {
    let value = JSON::parse(&value.to_string()).unwrap_or_default();
    let _ = Reflect::set(error, &field.into(), &value);
}
