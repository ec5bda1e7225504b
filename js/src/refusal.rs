//! The error that functions throw: an `Error` whose message lists all errors, and whose `faults` give them by field.

use js_sys::{Error, JSON, Reflect};
use pipeplan_core::api;
use wasm_bindgen::JsValue;

/// A refusal of the planner's, to be thrown.
pub struct Refusal(pub api::Refusal);

impl Refusal {
    /// A refusal because of one field.
    pub fn of_field(field: &str, found: &str, accepted: &str) -> Refusal {
        Refusal(api::Refusal::of_field(field, found, accepted))
    }
}

/// All that the planner refuses with.
impl<E: Into<api::Refusal>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal(error.into())
    }
}

impl From<Refusal> for JsValue {
    fn from(Refusal(refusal): Refusal) -> JsValue {
        let error = Error::new(&refusal.message);
        let value = refusal.to_value();
        for field in ["faults", "place"] {
            if let Some(value) = value.get(field) {
                // Neither can fail: the text is JSON, and the error is an object of ours.
                let value = JSON::parse(&value.to_string()).unwrap_or_default();
                let _ = Reflect::set(&error, &field.into(), &value);
            }
        }
        error.into()
    }
}
