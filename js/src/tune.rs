//! The fastest layouts, in one call or in pieces.

use js_sys::JSON;
use pipeplan_core::search::{Effort, Flow};
use wasm_bindgen::prelude::*;

use crate::input::Options;
use crate::refusal::Refusal;

const OPTIONS: [&str; 6] = ["devices", "keep", "schedules", "most", "effort", "profile"];

/// Finds the fastest layouts of a model on its devices: degrees of parallelism, micro-batch size, recomputation and schedule
/// together, with the same global batch size and memory limit: `pipeplan tune --json`. It takes seconds to minutes; a
/// {@link Tuner} does the same in pieces.
///
/// Throws a {@link Refusal} if the spec has errors, if its costs are typed, or if no layout uses that number of devices.
#[wasm_bindgen(unchecked_return_type = "Layouts")]
pub fn tune(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "TuneOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let mut tuner = Tuner::new(spec, options)?;
    while tuner.step() {}
    tuner.found()
}

/// Finds the fastest layouts in pieces, so that a page stays responsive and can stop after any piece.
#[wasm_bindgen]
pub struct Tuner {
    tuner: pipeplan_core::advise::tune::Tuner,
    effort: Effort,
    is_whole: bool,
}

#[wasm_bindgen]
impl Tuner {
    /// Prepares a search. Throws as {@link tune}.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "TuneOptions")] options: &JsValue,
    ) -> Result<Tuner, JsValue> {
        let options = Options::read(options, &OPTIONS)?;
        let spec = options.spec(spec)?;
        let tuner =
            pipeplan_core::advise::tune::Tuner::new(&spec, &options.of_planner.question).map_err(Refusal::from)?;
        Ok(Tuner { tuner, effort: options.of_planner.effort, is_whole: false })
    }

    /// Does the next piece: a schedule of a layout, or a search on one placement within the effort. Returns whether there is
    /// more to do.
    pub fn step(&mut self) -> bool {
        self.is_whole = !self.tuner.step(self.effort, &mut |_| Flow::Continue);
        !self.is_whole
    }

    /// The layouts so far.
    #[wasm_bindgen(getter, unchecked_return_type = "Layouts")]
    pub fn found(&self) -> Result<JsValue, JsValue> {
        JSON::parse(&self.tuner.to_value(self.is_whole).to_string())
    }
}
