//! Functions for scripts and tests on `window.wasmBindings`: the planner without the page around it.

use wasm_bindgen::prelude::*;

use crate::script_api;

/// The plan file of a spec, byte for byte what the command line writes. `spec` is JSON, TOML or a link;
/// `schedule` is a published schedule or `best`.
///
/// # Errors
/// What is wrong with the spec, or why there is no plan, in words.
#[wasm_bindgen]
pub fn plan_json(spec: &str, schedule: &str) -> Result<String, JsError> {
    script_api::plan_file(spec, Some(schedule)).map_err(|error| JsError::new(&error))
}

/// `pipeplan compare --json` of a spec.
///
/// # Errors
/// What is wrong with the spec, in words.
#[wasm_bindgen]
pub fn compare_json(spec: &str) -> Result<String, JsError> {
    script_api::comparison(spec).map_err(|error| JsError::new(&error))
}

/// The link of a spec.
///
/// # Errors
/// What is wrong with the spec, in words.
#[wasm_bindgen]
pub fn link(spec: &str) -> Result<String, JsError> {
    script_api::link(spec).map_err(|error| JsError::new(&error))
}
