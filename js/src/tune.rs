//! The fastest layouts, at once or piece by piece.

use js_sys::JSON;
use pipeplan_core::search::{Effort, Flow};
use wasm_bindgen::prelude::*;

use crate::input::Options;
use crate::refusal::Refusal;

const OPTIONS: [&str; 6] = ["devices", "keep", "schedules", "most", "effort", "profile"];

/// The fastest layouts of a model on its devices: degrees of parallelism, size of microbatches, recomputation and schedule
/// together, of as many sequences a step and within the same memory: `pipeplan tune --json`. That takes seconds to minutes;
/// a {@link Tuner} does the same piece by piece.
///
/// Throws a {@link Refusal} where the spec is refused, where its costs are typed, or where the devices cannot be dealt.
#[wasm_bindgen(unchecked_return_type = "Layouts")]
pub fn tune(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "TuneOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let mut tuner = Tuner::new(spec, options)?;
    while tuner.step() {}
    tuner.found()
}

/// Looks for the fastest layouts piece by piece, so that a page stays responsive and can stop at any piece.
#[wasm_bindgen]
pub struct Tuner {
    tuner: pipeplan_core::advise::tune::Tuner,
    effort: Effort,
    is_whole: bool,
}

#[wasm_bindgen]
impl Tuner {
    /// Nothing is planned yet. Throws as {@link tune}.
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

    /// Does the next piece: a schedule of a layout, or a search of one placement within the effort. Returns whether there is
    /// more to do.
    pub fn step(&mut self) -> bool {
        self.is_whole = !self.tuner.step(self.effort, &mut |_| Flow::Continue);
        !self.is_whole
    }

    /// What was found so far.
    #[wasm_bindgen(getter, unchecked_return_type = "Layouts")]
    pub fn found(&self) -> Result<JsValue, JsValue> {
        JSON::parse(&self.tuner.to_value(self.is_whole).to_string())
    }
}
