//! The exact search for the page, which `prover.js` loads in a worker of its own where a person asks for a proof.

#[cfg(target_arch = "wasm32")]
mod exports {
    //! The function that `prover.js` calls.

    use std::cell::Cell;

    use js_sys::{Array, Function};
    use pipeplan_exact::Budget;
    use pipeplan_prover::Progress;
    use wasm_bindgen::prelude::*;

    /// The shortest time between two progress reports, in milliseconds.
    const REPORTS_APART_MS: f64 = 100.0;

    /// Runs an exact search for the plan file `plan`, for at most `seconds`. Calls `tell` with each progress report: steps,
    /// the cost of the best plan and the bound in nanoseconds, and the file of a better plan or null. Returns the last
    /// report.
    ///
    /// # Errors
    /// Why there is no proof.
    #[wasm_bindgen]
    pub fn prove(plan: &str, seconds: f64, tell: &Function) -> Result<Array, JsError> {
        console_error_panic_hook::set_once();
        let told_at = Cell::new(f64::NEG_INFINITY);
        let budget = Budget::seconds(seconds);
        let last = pipeplan_prover::prove(plan, &budget, &mut |word| {
            let now = js_sys::Date::now();
            if word.better.is_some() || now - told_at.get() > REPORTS_APART_MS {
                told_at.set(now);
                let _ = tell.call1(&JsValue::NULL, &array(word));
            }
        });
        last.map(|word| array(&word)).map_err(|error| JsError::new(&error.to_string()))
    }

    fn array(word: &Progress) -> Array {
        let better = word.better.as_deref().map_or(JsValue::NULL, JsValue::from_str);
        let numbers = [word.steps, word.value_ns, word.lower_ns].map(|number| JsValue::from_f64(number as f64));
        numbers.into_iter().chain([better]).collect()
    }
}

fn main() {
    #[cfg(not(target_arch = "wasm32"))]
    println!("The prover runs in a browser: build the page, then `pipeplan serve`; or `pipeplan plan --prove`.");
}
