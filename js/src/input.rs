//! Arguments of the caller, read as the command reads files and flags.

use std::sync::Arc;

use js_sys::{Array, Function, JSON, Object, Reflect};
use pipeplan_core::advise::sensitivity::MAX_PERMILLE;
use pipeplan_core::advise::tune::{Field, MOST_DEVICES, Question};
use pipeplan_core::base::fields::{Fault, Faults, Table, one_of_like, shown};
use pipeplan_core::base::json;
use pipeplan_core::hardware::profile::{Profile, ProfileError};
use pipeplan_core::notation::order;
use pipeplan_core::plan::Plan;
use pipeplan_core::problem::Schedule;
use pipeplan_core::search::{Effort, Flow, Progress};
use pipeplan_core::spec::{Spec, Work};
use serde_json::Value;
use wasm_bindgen::prelude::*;

use crate::refusal::Refusal;

/// Largest number of simulated ops that a JavaScript number represents exactly.
const MOST_EFFORT: u64 = 1 << 53;
/// Largest number of layouts that a caller can ask for.
const MOST_ROWS: u64 = 1000;
const ON_PROGRESS: &str = "onProgress";

/// A spec, a bare problem or a link: text, or an object of the same fields.
pub fn spec(value: &JsValue) -> Result<Spec, Refusal> {
    const ACCEPTED: &str = "a spec or a problem, as text in TOML or JSON or as an object, or a link";
    let text = match value.as_string() {
        Some(text) => text,
        None if value.is_object() => json_of(value, "the whole input", ACCEPTED)?,
        None => return Err(Refusal::of_field("the whole input", &kind(value), ACCEPTED)),
    };
    // As the command does: the spec of a plan.
    match json::format_of(&text) {
        Some("pipeplan-plan") => Ok(Plan::from_json(&text)?.spec),
        _ => Ok(Spec::read(&text)?),
    }
}

/// The text of a file.
pub fn text(value: &JsValue, field: &str, accepted: &str) -> Result<String, Refusal> {
    value.as_string().ok_or_else(|| Refusal::of_field(field, &kind(value), accepted))
}

/// The values of a list.
pub fn list(value: &JsValue, field: &str, accepted: &str) -> Result<Array, Refusal> {
    value.dyn_ref::<Array>().cloned().ok_or_else(|| Refusal::of_field(field, &kind(value), accepted))
}

fn kind(value: &JsValue) -> String {
    if value.is_null() { "null".to_owned() } else { value.js_typeof().as_string().unwrap_or_default() }
}

/// A value as JSON. JSON cannot express NaN and infinity: they become texts, as in TOML, so that the error names the value
/// and not a missing field.
fn json_of(value: &JsValue, field: &str, accepted: &str) -> Result<String, Refusal> {
    let named = Closure::<dyn FnMut(JsValue, JsValue) -> JsValue>::new(|_, value: JsValue| match value.as_f64() {
        Some(number) if !number.is_finite() => number.to_string().into(),
        _ => value,
    });
    let text = JSON::stringify_with_replacer(value, named.as_ref());
    // A cycle or a BigInt: the message of JavaScript.
    let text = text.map_err(|error| {
        let said = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
        Refusal::of_field(field, &said.unwrap_or_default(), accepted)
    })?;
    text.as_string().ok_or_else(|| Refusal::of_field(field, &kind(value), accepted))
}

/// How to plan. Each function accepts some of these.
pub struct Options {
    /// A published schedule or `best`.
    pub schedule: Option<String>,
    /// A custom schedule instead of `schedule`, with its name.
    pub order: Option<(String, Schedule)>,
    /// How hard to search for `best`.
    pub effort: Effort,
    /// Which layouts to look for.
    pub question: Question,
    /// How large a change is, in thousandths.
    pub permille: u32,
    /// Number of changes that are planned again.
    pub anew: usize,
    /// Measured times.
    profile: Option<Arc<Profile>>,
    on_progress: Option<Function>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            schedule: None,
            order: None,
            effort: Effort::default(),
            question: Question::default(),
            permille: 100,
            anew: 0,
            profile: None,
            on_progress: None,
        }
    }
}

impl Options {
    /// Reads the options that `taken` lists, and refuses all others by name.
    pub fn read(value: &JsValue, taken: &[&str]) -> Result<Options, Refusal> {
        if value.is_undefined() || value.is_null() {
            return Ok(Options::default());
        }
        let accepted = "an object of options";
        if !value.is_object() {
            return Err(Refusal::of_field("options", &kind(value), accepted));
        }
        let function = Reflect::get(value, &ON_PROGRESS.into()).ok().and_then(|value| value.dyn_into().ok());
        // JSON has no functions, so `onProgress` is not in it.
        let given = json::parse(&json_of(value, "options", accepted)?)?;
        let mut faults = Vec::new();
        let options = Options::of(&given, taken, function, &mut faults);
        if faults.is_empty() { Ok(options) } else { Err(Faults(faults).into()) }
    }

    fn of(given: &Value, taken: &[&str], on_progress: Option<Function>, faults: &mut Vec<Fault>) -> Options {
        let mut options = Options { on_progress, ..Options::default() };
        let Some(mut table) = Table::of(given, "options", faults) else { return options };
        if taken.contains(&"schedule") {
            options.schedule = table.text("schedule", faults).map(str::to_owned);
        }
        if taken.contains(&"effort")
            && let Some(ops) = table.whole("effort", 1..=MOST_EFFORT, faults)
        {
            options.effort = Effort(ops);
        }
        if taken.contains(&"order") {
            let name = table.text("name", faults).unwrap_or("own-order").to_owned();
            // A text, or an op list for each rank.
            let text =
                table.get("order").map(|order| order.as_str().map_or_else(|| order.to_string(), str::to_owned));
            match text.map(|text| order::read(&text)) {
                None => {}
                Some(Ok(order)) => options.order = Some((name, order)),
                Some(Err(error)) => {
                    let accepted = "an op list for each rank, such as `0F0 0F1 0BW0 0BW1`";
                    faults.push(Fault::new(table.path("order"), error, accepted));
                }
            }
        }
        if taken.contains(&"profile") {
            options.profile = table.get("profile").and_then(|value| profile(value, &table.path("profile"), faults));
        }
        if taken.contains(&"devices") {
            options.question = question(&mut table, faults);
        }
        if taken.contains(&"permille")
            && let Some(permille) = table.whole("permille", 1..=MAX_PERMILLE.into(), faults)
        {
            options.permille = permille as u32;
        }
        if taken.contains(&"anew")
            && let Some(anew) = table.whole("anew", 0..=MOST_ROWS, faults)
        {
            options.anew = anew as usize;
        }
        if taken.contains(&ON_PROGRESS)
            && let Some(other) = table.get(ON_PROGRESS)
        {
            faults.push(Fault::new(table.path(ON_PROGRESS), shown(other), "a function"));
        }
        table.finish(faults);
        options
    }

    /// The spec of `value`, with measured times if there are any.
    pub fn spec(&self, value: &JsValue) -> Result<Spec, Refusal> {
        let mut spec = spec(value)?;
        if let Some(profile) = &self.profile {
            let Work::Model(work) = &mut spec.work else {
                return Err(Refusal::of_field("options.profile", "typed costs", "a profile for a model"));
            };
            work.profile = Some(Arc::clone(profile));
        }
        Ok(spec)
    }

    /// The watcher of the search.
    pub fn watch(&self) -> Watch<'_> {
        Watch { tell: self.on_progress.as_ref(), thrown: None }
    }
}

/// Measured times, in the text of a profile.
fn profile(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Arc<Profile>> {
    const ACCEPTED: &str = "the text of a profile, as `pipeplan profile -o` writes it";
    let Some(text) = value.as_str() else {
        faults.push(Fault::new(path, shown(value), ACCEPTED));
        return None;
    };
    match Profile::of_json(text) {
        Ok(profile) => return Some(Arc::new(profile)),
        Err(ProfileError::Syntax(syntax)) => faults.push(Fault::new(path, syntax, ACCEPTED)),
        Err(ProfileError::Faults(found)) => faults.extend(found.0.into_iter().map(|fault| {
            let field = format!("{path}.{}", fault.field);
            Fault { field, ..fault }
        })),
    }
    None
}

/// The question that `devices`, `keep`, `schedules` and `most` ask.
fn question(table: &mut Table, faults: &mut Vec<Fault>) -> Question {
    let usual = Question::default();
    let devices = table.whole("devices", 1..=MOST_DEVICES, faults);
    let most = table.whole("most", 1..=MOST_ROWS, faults).map_or(usual.most, |most| most as usize);
    let names = Field::ALL.map(Field::name);
    let mut keep = Vec::new();
    for (at, name) in texts(table, "keep", faults).into_iter().enumerate() {
        match Field::named(&name) {
            Some(field) => keep.push(field),
            None => {
                let field = format!("{}[{at}]", table.path("keep"));
                faults.push(Fault::new(field, &name, one_of_like(&name, &names)));
            }
        }
    }
    Question { devices, keep, schedules: texts(table, "schedules", faults), most }
}

/// A list of texts.
fn texts(table: &mut Table, key: &'static str, faults: &mut Vec<Fault>) -> Vec<String> {
    let Some(value) = table.get(key) else { return Vec::new() };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts: Option<Vec<String>> = value.as_array().and_then(|list| list.iter().map(text).collect());
    texts.unwrap_or_else(|| {
        faults.push(Fault::new(table.path(key), shown(value), "a list of texts"));
        Vec::new()
    })
}

/// Calls the caller's `onProgress` during a search, until it returns `false` or throws.
pub struct Watch<'o> {
    tell: Option<&'o Function>,
    thrown: Option<JsValue>,
}

impl Watch<'_> {
    /// Calls `onProgress`. The answer says whether the search continues.
    pub fn see(&mut self, progress: Progress) -> Flow {
        let Some(tell) = self.tell else { return Flow::Continue };
        let told = Object::new();
        let figures = [("ops", progress.ops), ("cost_ns", progress.cost_ns), ("bound_ns", progress.bound_ns)];
        for (name, figure) in figures {
            let _ = Reflect::set(&told, &name.into(), &(figure as f64).into());
        }
        match tell.call1(&JsValue::UNDEFINED, &told) {
            Ok(answer) if answer.as_bool() != Some(false) => Flow::Continue,
            Ok(_) => Flow::Stop,
            Err(thrown) => {
                self.thrown.get_or_insert(thrown);
                Flow::Stop
            }
        }
    }

    /// The result of the search, or the exception of `onProgress`.
    pub fn end<T>(self, found: T) -> Result<T, JsValue> {
        self.thrown.map_or(Ok(found), Err)
    }
}
