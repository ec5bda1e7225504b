//! The functions of the package. Their comments become the comments of its `.d.ts` file.

use js_sys::JSON;
use pipeplan_core::advise::explanation;
use pipeplan_core::advise::sensitivity::Sensitivity;
use pipeplan_core::base::fields::{Fault, Faults, one_of_like};
use pipeplan_core::base::json::format_of;
use pipeplan_core::bounds::lower_bound;
use pipeplan_core::check::Violation;
use pipeplan_core::formats::export::{self, Format};
use pipeplan_core::formats::torch_profile;
use pipeplan_core::plan::planner::{self, Case};
use pipeplan_core::plan::{Plan, PlanFileError, TRANSPORTS};
use pipeplan_core::schedule::{self, Published};
use pipeplan_core::search::Flow;
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::calibrate;
use serde_json::{Value, json};
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
    if let Some((name, order)) = &options.order {
        return Ok(planner::plan_order(&spec, name, order.clone()).map_err(Refusal::from)?.to_json());
    }
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    let mut watch = options.watch();
    let plan = planner::plan_with(&spec, schedule, options.effort, &mut |progress| watch.see(progress));
    Ok(watch.end(plan)?.map_err(Refusal::from)?.to_json())
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
    let orders = options.order.iter().cloned().collect();
    let mut watch = options.watch();
    let comparison = planner::compare_with(&spec, orders, options.effort, &mut |progress| watch.see(progress));
    object(&json!(watch.end(comparison)?))
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
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    let mut watch = options.watch();
    let mut last = None;
    let mut explained = explanation::explain(&spec, schedule, options.effort, &mut |progress| {
        last = Some(progress);
        watch.see(progress)
    });
    if let Ok(explained) = &mut explained {
        // Changes are planned without a search. The last figures of the search stand, and the caller can stop.
        explained.shorten(&spec, &mut |_, _| last.map_or(Flow::Continue, |progress| watch.see(progress)));
    }
    object(&watch.end(explained)?.map_err(Refusal::from)?.to_value())
}

/// Lower bounds: no valid schedule costs less, on each placement that a spec allows. There is no search, so this takes
/// milliseconds in most cases.
///
/// Throws a {@link Refusal} if the spec has errors.
#[wasm_bindgen(unchecked_return_type = "Bounds")]
pub fn bound(#[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue) -> Result<JsValue, JsValue> {
    let spec = input::spec(spec)?;
    let cases = planner::open_cases(&spec).map_err(Refusal::from)?;
    let of_case = |Case { problem, .. }: &Case| {
        let bound = lower_bound(problem);
        let row = json!({
            "placement": problem.placement().name().unwrap_or("list"), "chunks": problem.chunks(),
            "bound_ns": bound.value_ns, "because": bound.binding.to_string(),
        });
        (bound.value_ns, row)
    };
    let (bounds, rows): (Vec<_>, Vec<_>) = cases.iter().map(of_case).unzip();
    object(&json!({
        "objective": spec.objective().name(), "bound_ns": bounds.iter().min(), "placements": rows,
    }))
}

/// Checks the text of a plan file: its digest, every op and transfer, memory, the prediction, and which transports
/// complete it. An invalid plan is a result with all violations; nothing is thrown.
#[wasm_bindgen(unchecked_return_type = "Checked | NotValid")]
pub fn check(#[wasm_bindgen(unchecked_param_type = "string")] plan: &JsValue) -> Result<JsValue, JsValue> {
    let text = input::text(plan, "plan", "the text of a plan file")?;
    let checked = Plan::from_json(&text).map(|plan| plan.checked(None, &TRANSPORTS));
    object(&match checked {
        Ok(Ok(checked)) => checked.to_value(),
        Ok(Err(deadlock)) => not_valid(&deadlock, &[]),
        Err(error) => match &error {
            PlanFileError::Schedule(found) | PlanFileError::Program(found) => not_valid(&error, found),
            _ => not_valid(&error, &[]),
        },
    })
}

fn not_valid(error: &dyn std::fmt::Display, violations: &[Violation]) -> Value {
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    json!({ "valid": false, "error": error.to_string(), "violations": violations })
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
    let plan = Plan::from_json(&plan).map_err(Refusal::from)?;
    let trace = input::text(trace, "trace", "the text of a trace")?;
    let trace = Trace::from_json(&trace).map_err(Refusal::from)?;
    let calibration = calibrate::calibrate(&plan.problem, &plan.schedule, &trace).map_err(Refusal::from)?;
    object(&calibration.to_value())
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
    let plan = Plan::from_json(&plan).map_err(Refusal::from)?;
    let found = Sensitivity::new(&plan.problem, &plan.schedule, options.permille);
    let mut found = found.map_err(|fault| Refusal::from(Faults::from(fault)))?;
    while found.step(&plan.problem, &plan.schedule) {}
    let mut watch = options.watch();
    let anew = found.most_first().into_iter().take(options.anew).try_for_each(|at| {
        found.plan_anew((&plan.problem, &plan.schedule), at, options.effort, &mut |progress| watch.see(progress))
    });
    watch.end(anew)?.map_err(Refusal::from)?;
    object(&found.to_value())
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
    let plan = Plan::from_json(&plan).map_err(Refusal::from)?;
    let mut files = Vec::new();
    for (index, profile) in input::list(profiles, "profiles", "a list of texts, one of each rank")?.iter().enumerate()
    {
        let field = format!("profiles[{index}]");
        let text = input::text(&profile, &field, "what torch.profiler wrote of a rank")?;
        let recording = torch_profile::read(&text).map_err(|fault| {
            let field = format!("{field}, {}", fault.field);
            Refusal::from(Faults::from(Fault { field, ..fault }))
        })?;
        files.push((field, recording));
    }
    let trace = torch_profile::trace(&plan.problem, &plan.schedule, &plan.digest(), &files).map_err(Refusal::from)?;
    Ok(trace.to_json())
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
    let names = Format::NAMED.map(|(name, _)| name);
    let wanted = format.as_string().unwrap_or_default();
    let Some(format) = Format::named(&wanted) else {
        return Err(Refusal::of_field("format", &wanted, &one_of_like(&wanted, &names)).into());
    };
    let exported = if format_of(&text) == Some("pipeplan-trace") {
        export::of_trace(&Trace::from_json(&text).map_err(Refusal::from)?, format)
    } else {
        export::of_plan(&Plan::from_json(&text).map_err(Refusal::from)?, format)
    };
    Ok(exported.map_err(Refusal::from)?)
}

/// The link of a spec, for the planner's page. `page` is the address of the page; without it, the result is the fragment alone.
///
/// Throws a {@link Refusal} if the spec has errors.
#[wasm_bindgen]
pub fn link(
    #[wasm_bindgen(unchecked_param_type = "SpecInput")] spec: &JsValue,
    page: Option<String>,
) -> Result<String, JsValue> {
    let spec = input::spec(spec)?;
    let page = page.unwrap_or_default();
    let page = page.split('#').next().unwrap_or_default();
    Ok(format!("{page}{}", pipeplan_core::spec::link::write(&spec)))
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
    let row = |published: &Published| {
        json!({
            "name": published.name, "title": published.title, "idea": published.idea, "source": published.source,
        })
    };
    object(&schedule::published().iter().map(row).collect())
}
