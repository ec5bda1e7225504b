//! Arguments of the caller, read as the command reads files and flags.

use js_sys::{Array, Function, JSON, Object, Reflect};
use pipeplan_core::api;
use pipeplan_core::base::json;
use pipeplan_core::search::{Flow, Progress};
use pipeplan_core::spec::Spec;
use wasm_bindgen::prelude::*;

use crate::refusal::Refusal;

const ON_PROGRESS: &str = "onProgress";

/// A spec, a bare problem or a link: text, or an object of the same fields.
pub fn spec(value: &JsValue) -> Result<Spec, Refusal> {
    const ACCEPTED: &str = "a spec or a problem, as text in TOML or JSON or as an object, or a link";
    let text = match value.as_string() {
        Some(text) => text,
        None if value.is_object() => json_of(value, "the whole input", ACCEPTED)?,
        None => return Err(Refusal::of_field("the whole input", &kind(value), ACCEPTED)),
    };
    Ok(api::spec(&text)?)
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

/// How to plan, and who hears of it.
#[derive(Default)]
pub struct Options {
    /// What the planner reads.
    pub of_planner: api::Options,
    on_progress: Option<Function>,
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
        let on_progress = Reflect::get(value, &ON_PROGRESS.into()).ok().and_then(|value| value.dyn_into().ok());
        // JSON has no functions: this one is left out of it.
        let given = json::parse(&json_of(value, "options", accepted)?)?;
        let functions: &[&'static str] = if taken.contains(&ON_PROGRESS) { &[ON_PROGRESS] } else { &[] };
        Ok(Options { of_planner: api::Options::read(&given, taken, functions)?, on_progress })
    }

    /// The spec of `value`, with measured times if there are any.
    pub fn spec(&self, value: &JsValue) -> Result<Spec, Refusal> {
        Ok(self.of_planner.apply(spec(value)?)?)
    }

    /// The watcher of the search.
    pub fn watch(&self) -> Watch<'_> {
        Watch { tell: self.on_progress.as_ref(), thrown: None }
    }
}

/// Tells a function of the caller's how a search goes, until that says `false` or throws.
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
