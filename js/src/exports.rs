//! The package's functions. What their comments say, its `.d.ts` file says.

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
    if let Some((name, order)) = &options.order {
        return Ok(planner::plan_order(&spec, name, order.clone()).map_err(Refusal::from)?.to_json());
    }
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    let mut watch = options.watch();
    let plan = planner::plan_with(&spec, schedule, options.effort, &mut |progress| watch.see(progress));
    Ok(watch.end(plan)?.map_err(Refusal::from)?.to_json())
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
    let orders = options.order.iter().cloned().collect();
    let mut watch = options.watch();
    let comparison = planner::compare_with(&spec, orders, options.effort, &mut |progress| watch.see(progress));
    object(&json!(watch.end(comparison)?))
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
    let schedule = options.schedule.as_deref().unwrap_or(&spec.schedule);
    let mut watch = options.watch();
    let mut last = None;
    let mut explained = explanation::explain(&spec, schedule, options.effort, &mut |progress| {
        last = Some(progress);
        watch.see(progress)
    });
    if let Ok(explained) = &mut explained {
        // Changes are planned without a search: its figures stand, and whoever has had enough can say so.
        explained.shorten(&spec, &mut |_, _| last.map_or(Flow::Continue, |progress| watch.see(progress)));
    }
    object(&watch.end(explained)?.map_err(Refusal::from)?.to_value())
}

/// What no valid schedule costs less than, on each placement that a spec leaves open. Without a search: mostly a matter
/// of milliseconds.
///
/// Throws a {@link Refusal} where the spec is refused.
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
/// complete it. A plan that is not valid is an answer, with all that is wrong, and nothing is thrown.
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
    let plan = Plan::from_json(&plan).map_err(Refusal::from)?;
    let trace = input::text(trace, "trace", "the text of a trace")?;
    let trace = Trace::from_json(&trace).map_err(Refusal::from)?;
    let calibration = calibrate::calibrate(&plan.problem, &plan.schedule, &trace).map_err(Refusal::from)?;
    object(&calibration.to_value())
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

/// The text of a plan file, or of a measured trace, in another program's format: `pipeplan export`.
///
/// Throws a {@link Refusal} where the file is no plan or trace, or where the format has no words for it.
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

/// The link of a spec, which the planner's page opens. `page` is the page's address; without one, what stands behind it.
///
/// Throws a {@link Refusal} where the spec is refused.
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
    let row = |published: &Published| {
        json!({
            "name": published.name, "title": published.title, "idea": published.idea, "source": published.source,
        })
    };
    object(&schedule::published().iter().map(row).collect())
}
