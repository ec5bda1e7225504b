//! The page's end of the connection to the solver, which is loaded when a person asks for a proof.

use js_sys::{Array, Object, Reflect};
use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::{MessageEvent, Worker, WorkerOptions, WorkerType};

use super::browser;
use super::state::Planner;
use crate::logic::proof::State;

/// How long a proof may take.
const SECONDS: f64 = 120.0;

/// Starts a worker that proves the plan file `plan` and tells the planner how it goes.
pub fn start(planner: Planner, plan: &str) -> Option<Worker> {
    let options = WorkerOptions::new();
    options.set_type(WorkerType::Module);
    let worker = Worker::new_with_options(&browser::beside_page("prover.js"), &options).ok()?;
    let on_reply =
        Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| on_message(planner, &event.data()));
    worker.set_onmessage(Some(on_reply.as_ref().unchecked_ref()));
    on_reply.forget();
    let failed = Closure::<dyn FnMut()>::new(move || {
        planner.end_proof(State::Failed("the solver could not be loaded".to_owned()));
    });
    worker.set_onerror(Some(failed.as_ref().unchecked_ref()));
    failed.forget();
    let asked = Object::new();
    let _ = Reflect::set(&asked, &"plan".into(), &plan.into());
    let _ = Reflect::set(&asked, &"seconds".into(), &SECONDS.into());
    worker.post_message(&asked).ok()?;
    Some(worker)
}

fn on_message(planner: Planner, data: &JsValue) {
    let part = |name: &str| Reflect::get(data, &name.into()).unwrap_or(JsValue::UNDEFINED);
    if let Some(reason) = part("error").as_string() {
        return planner.end_proof(State::Failed(reason));
    }
    let is_last = part("last").is_object();
    let word: Array = if is_last { part("last") } else { part("word") }.unchecked_into();
    let number = |index: u32| word.get(index).as_f64().unwrap_or(0.0) as u64;
    planner.proof.update(|proof| proof.update_from(number(0), number(1), number(2), word.get(3).as_string()));
    if is_last {
        planner.end_proof(State::Over);
    }
}
