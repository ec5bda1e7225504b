//! Starts the page.

#[cfg(target_arch = "wasm32")]
mod exports {
    //! Functions for scripts and tests on `window.wasmBindings`: the planner without the page around it. Each gives a promise.

    use js_sys::Array;
    use pipeplan_web::call_planner;
    use wasm_bindgen::prelude::*;

    /// The plan file of a spec, byte for byte what the command line writes.
    /// `spec` is JSON, TOML or a link; `schedule` is a published schedule or `best`.
    ///
    /// # Errors
    /// What is wrong with the spec, or why there is no plan.
    #[wasm_bindgen]
    pub async fn plan_json(spec: String, schedule: String) -> Result<JsValue, JsValue> {
        call_planner("plan_json", Array::of2(&spec.into(), &schedule.into())).await
    }

    /// `pipeplan compare --json` of a spec.
    ///
    /// # Errors
    /// What is wrong with the spec.
    #[wasm_bindgen]
    pub async fn compare_json(spec: String) -> Result<JsValue, JsValue> {
        call_planner("compare_json", Array::of1(&spec.into())).await
    }

    /// The link of a spec.
    ///
    /// # Errors
    /// What is wrong with the spec.
    #[wasm_bindgen]
    pub async fn link(spec: String) -> Result<JsValue, JsValue> {
        call_planner("link", Array::of1(&spec.into())).await
    }
}

fn main() {
    #[cfg(target_arch = "wasm32")]
    pipeplan_web::start();
    #[cfg(not(target_arch = "wasm32"))]
    println!("The planner page runs in a browser: build it with `trunk build`, then `pipeplan serve`.");
}
