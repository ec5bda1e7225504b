//! The functions of the package. Their comments become the comments of its `.d.ts` file.

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

/// A panic is a bug of the planner: the console shows it with its place.
#[wasm_bindgen(start, skip_typescript)]
fn start() {
    console_error_panic_hook::set_once();
}

fn object(value: &Value) -> Result<JsValue, JsValue> {
    JSON::parse(&value.to_string())
}

/// Plans a spec and returns the text of its plan file, identical to that of `pipeplan plan`, with the same digest.
///
/// `JSON.parse` reads it as a {@link Plan}. Keep the text: `JSON.stringify` can write numbers in another way, and then the
/// digest differs.
///
/// Throws a {@link Refusal} if the input has errors, or if there is no plan.
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

/// Compares every published schedule, and the best schedule that a search finds, for one spec: `pipeplan compare --json`.
///
/// Throws a {@link Refusal} if the spec has errors. A schedule that does not exist for the spec is a row with a reason.
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

/// Memory of each rank of a model, by kind, with suggestions if it does not fit: `pipeplan memory --json`.
///
/// Throws a {@link Refusal} if the spec has errors, or if its costs are typed: typed bytes have no kind.
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

/// Lower bounds: no valid schedule costs less, on each placement that a spec allows. There is no search, so this takes
/// milliseconds in most cases.
///
/// Throws a {@link Refusal} if the spec has errors.
#[wasm_bindgen(unchecked_return_type = "Bounds")]
pub fn bound(#[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue) -> Result<JsValue, JsValue> {
    object(&api::bound(&input::spec(spec)?).map_err(Refusal)?)
}

/// Checks the text of a plan file: its digest, every op and transfer, memory, the prediction, and which transports
/// complete it. An invalid plan is a result with all violations; nothing is thrown.
#[wasm_bindgen(unchecked_return_type = "Checked | NotValid")]
pub fn check(#[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue) -> Result<JsValue, JsValue> {
    object(&api::check(&input::text(plan, "plan", "the text of a plan file")?))
}

/// Shows where a run lost time against its plan, and gives the problem of the plan with measured times, for {@link plan}
/// and {@link compare}: `pipeplan calibrate --json`. `plan` and `trace` are the texts of both files.
///
/// Throws a {@link Refusal} if one of the files has errors, or if the trace ran another schedule.
#[wasm_bindgen(unchecked_return_type = "Calibration")]
pub fn calibrate(
    #[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "string")] trace: &JsValue,
) -> Result<JsValue, JsValue> {
    let plan = input::text(plan, "plan", "the text of a plan file")?;
    let trace = input::text(trace, "trace", "the text of a trace")?;
    object(&api::calibrate(&plan, &trace).map_err(Refusal)?)
}

/// Sensitivity of a plan: the time of its schedule if a rank, a stage, a job or P2P transfers take more or less, and for the
/// first `options.anew` of these the time of a new plan: `pipeplan sensitivity --json`. `plan` is the text of its file.
///
/// Throws a {@link Refusal} if the file has errors.
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

/// Makes a trace for {@link calibrate} of torch.profiler files, recorded while torch.distributed.pipelining ran the schedule of
/// the plan: `pipeplan trace`. `plan` is the text of its file; `profiles` are the texts of all ranks.
///
/// Throws a {@link Refusal} if one of the files has errors, or if a rank ran another schedule or is missing.
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

/// Makes a spec of a run of Megatron-LM, from its log, its command line, its launch script or its YAML, and puts what it measured
/// against the plan: `pipeplan import --json`. `device` is a device of the catalog. A script is read, never run.
///
/// Throws a {@link Refusal} that names each argument and each variable that is missing or cannot be planned.
#[wasm_bindgen(js_name = importRun, unchecked_return_type = "ImportedRun")]
pub fn import_run(
    #[wasm_bindgen(unchecked_param_type = "string")] run: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "string")] device: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "ImportOptions")] options: &JsValue,
) -> Result<JsValue, JsValue> {
    let options = Options::read(options, &["devices", "variables", "command", "onProgress"])?;
    let text = input::text(run, "run", "a log, a command line, a launch script or YAML of Megatron-LM")?;
    let device = input::text(device, "device", "a device of the catalog, such as h100")?;
    let mut watch = options.watch();
    let of_planner = &options.of_planner;
    let imported = api::import_run(&text, &device, of_planner.question.devices, &of_planner.given, &mut |progress| {
        watch.see(progress)
    });
    object(&watch.end(imported)?.map_err(Refusal)?)
}

/// Converts a plan file or a trace to the format of another program: `pipeplan export`.
///
/// Throws a {@link Refusal} if the file is not a plan or trace, or if the format cannot express it.
#[wasm_bindgen(js_name = exportAs)]
pub fn export_as(
    #[wasm_bindgen(unchecked_param_type = "string")] file: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "ExportFormat")] format: &JsValue,
) -> Result<String, JsValue> {
    let text = input::text(file, "file", "the text of a plan or of a trace")?;
    Ok(api::export(&text, &format.as_string().unwrap_or_default()).map_err(Refusal)?)
}

/// Converts as {@link exportAs}, to formats that are no text too, such as `perfetto`.
///
/// Throws a {@link Refusal} if the file is not a plan or trace, or if the format cannot express it.
#[wasm_bindgen(js_name = exportBytes)]
pub fn export_bytes(
    #[wasm_bindgen(unchecked_param_type = "string")] file: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "ExportFormat | BinaryFormat")] format: &JsValue,
) -> Result<Vec<u8>, JsValue> {
    let text = input::text(file, "file", "the text of a plan or of a trace")?;
    Ok(api::export_bytes(&text, &format.as_string().unwrap_or_default()).map_err(Refusal)?)
}

/// The link of a spec, for the planner's page. `page` is the address of the page; without it, the result is the fragment alone.
///
/// Throws a {@link Refusal} if the spec has errors.
#[wasm_bindgen]
pub fn link(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    page: Option<String>,
) -> Result<String, JsValue> {
    Ok(api::link(&input::spec(spec)?, &page.unwrap_or_default()))
}

/// Reads a spec, a problem or a link, and returns the spec with every default.
///
/// Throws a {@link Refusal} with all errors.
#[wasm_bindgen(js_name = readSpec, unchecked_return_type = "Spec")]
pub fn read_spec(#[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue) -> Result<JsValue, JsValue> {
    object(&input::spec(spec)?.to_value())
}

/// The published schedules, in the order in which comparisons show them.
#[wasm_bindgen(unchecked_return_type = "PublishedSchedule[]")]
pub fn schedules() -> Result<JsValue, JsValue> {
    object(&api::schedules())
}
