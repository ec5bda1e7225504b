//! The planner for the page, which `worker.js` loads in a worker, and for scripts, which `parts.js` loads.

#[cfg(target_arch = "wasm32")]
mod exports {
    //! Functions for scripts and tests: the planner without the page around it.

    use pipeplan_web::script_api;
    use wasm_bindgen::prelude::*;

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
}

fn main() {
    #[cfg(target_arch = "wasm32")]
    pipeplan_web::start_planner();
    #[cfg(not(target_arch = "wasm32"))]
    println!("The planner of the page runs in a browser: build the page, then `pipeplan serve`; or `pipeplan plan`.");
}
