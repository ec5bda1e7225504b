//! The package's functions. What their comments say, its `.d.ts` file says.

use js_sys::JSON;
use pipeplan_core::api;
use serde_json::Value;
use wasm_bindgen::prelude::*;

use crate::input::{self, Options};
use crate::refusal::Refusal;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("types.d.ts");
#[wasm_bindgen(typescript_custom_section)]
const FILES: &str = include_str!(concat!(env!("OUT_DIR"), "/schema.d.ts"));

/// A panic is a fault of the planner's: it is told with its place.
#[wasm_bindgen(start, skip_typescript)]
fn start() {
    console_error_panic_hook::set_once();
}

fn object(value: &Value) -> Result<JsValue, JsValue> {
    JSON::parse(&value.to_string())
}

/// Plans a spec, and returns its plan file: the very text that `pipeplan plan` writes, with the same digest.
///
/// `JSON.parse` reads it as a {@link Plan}. Keep the text: what `JSON.stringify` makes of it again may differ in how
/// numbers are written, and then the digest is another one.
///
/// Throws a {@link Refusal} where the input is refused, or where there is no plan for it.
#[wasm_bindgen]
pub fn plan(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "PlanOptions")] options: &JsValue,
) -> Result<String, JsValue> {
    let options = Options::read(options, &["schedule", "effort", "order", "profile", "onProgress"])?;
    let spec = options.spec(spec)?;
    let mut watch = options.watch();
    let plan = api::plan(&spec, &options.of_planner, &mut |progress| watch.see(progress));
    Ok(watch.end(plan)?.map_err(Refusal)?.to_json())
}

/// Every published schedule, and the best that a search finds, side by side for one spec: `pipeplan compare --json`.
///
/// Throws a {@link Refusal} where the spec is refused. A schedule that does not exist for it is a row with a reason.
#[wasm_bindgen(unchecked_return_type = "Comparison")]
pub fn compare(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "CompareOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let options = Options::read(options, &["effort", "order", "profile", "onProgress"])?;
    let spec = options.spec(spec)?;
    let mut watch = options.watch();
    let comparison = api::compare(&spec, &options.of_planner, &mut |progress| watch.see(progress));
    object(&watch.end(comparison)?)
}

/// What each rank of a model holds, by kind, and where it does not fit what to change: `pipeplan memory --json`.
///
/// Throws a {@link Refusal} where the spec is refused, or where its costs are typed: then nothing says what bytes are
/// for.
#[wasm_bindgen(js_name = memoryOf, unchecked_return_type = "Memory")]
pub fn memory_of(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "MemoryOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let options = Options::read(options, &["schedule", "effort", "profile", "onProgress"])?;
    let spec = options.spec(spec)?;
    let mut watch = options.watch();
    let memory = api::memory(&spec, &options.of_planner, &mut |progress| watch.see(progress));
    object(&watch.end(memory)?.map_err(Refusal)?)
}

/// What no valid schedule costs less than, on each placement that a spec leaves open. Without a search: mostly a matter
/// of milliseconds.
///
/// Throws a {@link Refusal} where the spec is refused.
#[wasm_bindgen(unchecked_return_type = "Bounds")]
pub fn bound(#[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue) -> Result<JsValue, JsValue> {
    object(&api::bound(&input::spec(spec)?).map_err(Refusal)?)
}

/// Checks the text of a plan file: its digest, every op and transfer, memory, the prediction, and which transports
/// complete it. A plan that is not valid is an answer, with all that is wrong, and nothing is thrown.
#[wasm_bindgen(unchecked_return_type = "Checked | NotValid")]
pub fn check(#[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue) -> Result<JsValue, JsValue> {
    object(&api::check(&input::text(plan, "plan", "the text of a plan file")?))
}

/// Where a run lost time against its plan, and the plan's problem with the times that were measured, which {@link plan}
/// and {@link compare} take: `pipeplan calibrate --json`. `plan` and `trace` are the texts of both files.
///
/// Throws a {@link Refusal} where one of them is none, or where the trace is of another order.
#[wasm_bindgen(unchecked_return_type = "Calibration")]
pub fn calibrate(
    #[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "string")] trace: &JsValue,
) -> Result<JsValue, JsValue> {
    let plan = input::text(plan, "plan", "the text of a plan file")?;
    let trace = input::text(trace, "trace", "the text of a trace")?;
    object(&api::calibrate(&plan, &trace).map_err(Refusal)?)
}

/// What a plan's time hangs on: what its order takes where a rank, a stage, a job or messages take longer or less, and
/// for the first `options.anew` of these what the best takes: `pipeplan sensitivity --json`. `plan` is the text of its file.
///
/// Throws a {@link Refusal} where it is none.
#[wasm_bindgen(unchecked_return_type = "Sensitivity")]
pub fn sensitivity(
    #[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "SensitivityOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let options = Options::read(options, &["permille", "anew", "effort", "onProgress"])?;
    let plan = input::text(plan, "plan", "the text of a plan file")?;
    let mut watch = options.watch();
    let found = api::sensitivity(&plan, &options.of_planner, &mut |progress| watch.see(progress));
    object(&watch.end(found)?.map_err(Refusal)?)
}

/// The trace of what torch.profiler recorded while torch.distributed.pipelining ran the plan's order, which
/// {@link calibrate} takes: `pipeplan trace`. `plan` is the text of its file, and `profiles` are those of all ranks.
///
/// Throws a {@link Refusal} where one of them is none, or where a rank ran another order or is missing.
#[wasm_bindgen(js_name = traceOfTorch)]
pub fn trace_of_torch(
    #[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "string[]")] profiles: &JsValue,
) -> Result<String, JsValue> {
    let plan = input::text(plan, "plan", "the text of a plan file")?;
    let profiles = input::list(profiles, "profiles", "a list of texts, one of each rank")?;
    let texts = profiles.iter().enumerate().map(|(index, profile)| {
        let field = format!("profiles[{index}]");
        let text = input::text(&profile, &field, "what torch.profiler wrote of a rank");
        text.map(|text| (field, text)).map_err(|Refusal(refusal)| refusal)
    });
    Ok(api::trace(&plan, texts).map_err(Refusal)?)
}

/// The text of a plan file, or of a measured trace, in another program's format: `pipeplan export`.
///
/// Throws a {@link Refusal} where the file is no plan or trace, or where the format has no words for it.
#[wasm_bindgen(js_name = exportAs)]
pub fn export_as(
    #[wasm_bindgen(unchecked_param_type = "string")] file: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "ExportFormat")] format: &JsValue,
) -> Result<String, JsValue> {
    let text = input::text(file, "file", "the text of a plan or of a trace")?;
    Ok(api::export(&text, &format.as_string().unwrap_or_default()).map_err(Refusal)?)
}

/// The link of a spec, which the planner's page opens. `page` is the page's address; without one, what stands behind it.
///
/// Throws a {@link Refusal} where the spec is refused.
#[wasm_bindgen]
pub fn link(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    page: Option<String>,
) -> Result<String, JsValue> {
    Ok(api::link(&input::spec(spec)?, &page.unwrap_or_default()))
}

/// What a spec, a bare problem or a link says, with every default written out.
///
/// Throws a {@link Refusal} with all that is wrong.
#[wasm_bindgen(js_name = readSpec, unchecked_return_type = "Spec")]
pub fn read_spec(#[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue) -> Result<JsValue, JsValue> {
    object(&input::spec(spec)?.to_value())
}

/// The published schedules, in the order in which comparisons show them.
#[wasm_bindgen(unchecked_return_type = "PublishedSchedule[]")]
pub fn schedules() -> Result<JsValue, JsValue> {
    object(&api::schedules())
}
