//! The search for the best plan in pieces, for callers that do other work between two pieces.

use js_sys::JSON;
use pipeplan_core::plan::planner::PlanSearch;
use pipeplan_core::schedule;
use pipeplan_core::search::{Effort, Flow};
use serde_json::json;
use wasm_bindgen::prelude::*;

use crate::input::Options;
use crate::refusal::Refusal;

/// The search for the best plan of a spec in pieces, so that a page stays responsive and can stop after any piece.
///
/// After the last piece, its plan is that of `plan(spec, { schedule: "best" })`, byte for byte.
#[wasm_bindgen]
pub struct Search {
    effort: Effort,
    /// Published schedules that were looked at.
    offered: usize,
    search: PlanSearch,
}

#[wasm_bindgen]
impl Search {
    /// Prepares a search. Throws a {@link Refusal} if the spec has errors.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "{ effort?: number; profile?: string }")] options: &JsValue,
    ) -> Result<Search, JsValue> {
        let options = Options::read(options, &["effort", "profile"])?;
        let spec = options.spec(spec)?;
        Ok(Search { search: PlanSearch::new(&spec), effort: options.of_planner.effort, offered: 0 })
    }

    /// Does the next piece: a published schedule, or a search on one placement within the effort. Returns whether there is
    /// more to do. Throws a {@link Refusal} if the spec gives no problem.
    pub fn step(&mut self) -> Result<bool, JsValue> {
        if let Some(published) = schedule::published().get(self.offered) {
            self.offered += 1;
            // Where no schedule exists, the plan has all reasons.
            let _ = self.search.look(published, &mut |_| ());
            return Ok(true);
        }
        let more = self.search.search_next(self.effort, &mut |_| Flow::Continue);
        Ok(more.map_err(Refusal::from)?)
    }

    /// The best so far, if there is any.
    #[wasm_bindgen(getter, unchecked_return_type = "Best | undefined")]
    pub fn best(&self) -> Result<JsValue, JsValue> {
        let Some(answer) = self.search.so_far() else { return Ok(JsValue::UNDEFINED) };
        JSON::parse(&json!({ "schedule": answer.name, "cost_ns": answer.cost_ns() }).to_string())
    }

    /// The plan file of the best so far. Throws a {@link Refusal} if there is none.
    pub fn plan(&self) -> Result<String, JsValue> {
        Ok(self.search.plan().map_err(Refusal::from)?.to_json())
    }
}
