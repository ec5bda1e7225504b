//! The worker's end of the connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{DedicatedWorkerGlobalScope, MessageChannel, MessageEvent, XmlHttpRequest};

use pipeplan_core::search::Flow;

use super::{Watch, Worker};
use crate::protocol::spans;
use crate::protocol::{Ask, Question, Reply, Response};

/// Interval of progress messages of a search, and of checks whether it continues.
pub(super) const WATCHED_EVERY_MS: f64 = 300.0;

/// Receives questions and works on them in pieces.
///
/// Between two pieces the worker sends a message to itself. Questions that arrived before it come first in the queue,
/// so the worker always takes the newest question next.
pub fn start(scope: DedicatedWorkerGlobalScope) {
    let Ok(channel) = MessageChannel::new() else { return };
    let going_on: Rc<RefCell<Option<String>>> = Rc::default();
    let work = Rc::new(RefCell::new(Worker::new(js_sys::Date::now, watch(&scope, &going_on))));
    let scheduled = Rc::new(Cell::new(false));
    let go_on = {
        let (port, scheduled) = (channel.port2(), scheduled.clone());
        move || {
            if !scheduled.replace(true) {
                let _ = port.post_message(&JsValue::NULL);
            }
        }
    };

    let on_turn = {
        let (work, scope, go_on) = (work.clone(), scope.clone(), go_on.clone());
        Closure::<dyn FnMut()>::new(move || {
            scheduled.set(false);
            let replies = work.borrow_mut().step();
            for reply in replies.into_iter().flat_map(spans::in_parts) {
                post(&scope, &reply);
            }
            let rest_ms = work.borrow().rest_ms();
            if rest_ms > 0 {
                let later = Closure::once_into_js(go_on.clone());
                let _ = scope.set_timeout_with_callback_and_timeout_and_arguments_0(later.unchecked_ref(), rest_ms);
            } else if !work.borrow().is_idle() {
                go_on();
            }
        })
    };
    channel.port1().set_onmessage(Some(on_turn.as_ref().unchecked_ref()));
    on_turn.forget();

    let asked = scope.clone();
    let on_question = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let bytes = Uint8Array::new(&event.data()).to_vec();
        if bytes.is_empty() {
            // The page asks whether the worker is there: it may have come first.
            return say_ready(&asked);
        }
        match postcard::from_bytes::<Question>(&bytes) {
            Ok(Question { ask: Ask::SearchWhileReadable { url }, .. }) => {
                // If a host forbids such addresses, a search stops between two pieces.
                going_on.replace(Some(url).filter(|url| can_be_read(url)));
            }
            Ok(question) => {
                work.borrow_mut().receive(question);
                go_on();
            }
            Err(_) => {}
        }
    });
    scope.set_onmessage(Some(on_question.as_ref().unchecked_ref()));
    on_question.forget();
    say_ready(&scope);
}

/// An empty message: the worker now receives questions.
pub(super) fn say_ready(scope: &DedicatedWorkerGlobalScope) {
    let _ = scope.post_message(&Uint8Array::new_with_length(0));
}

/// Sends the progress of a search. A worker that computes receives no question, and shared memory needs headers that
/// not every host sends. The worker can check whether an address of the page can still be read.
fn watch(scope: &DedicatedWorkerGlobalScope, going_on: &Rc<RefCell<Option<String>>>) -> Watch {
    let (scope, going_on) = (scope.clone(), going_on.clone());
    let (mut of, mut told_ms) = (0, 0.0);
    Box::new(move |id, cost_ns, bound_ns| {
        let now_ms = js_sys::Date::now();
        if of != id {
            (of, told_ms) = (id, now_ms);
        }
        if now_ms - told_ms < WATCHED_EVERY_MS {
            return Flow::Continue;
        }
        told_ms = now_ms;
        post(&scope, &Reply { id, response: Response::Searching { cost_ns, bound_ns } });
        let ended = going_on.borrow().as_ref().is_some_and(|url| !can_be_read(url));
        if ended { Flow::Stop } else { Flow::Continue }
    })
}

pub(super) fn can_be_read(url: &str) -> bool {
    let read = || -> Result<u16, JsValue> {
        let request = XmlHttpRequest::new()?;
        request.open_with_async("GET", url, false)?;
        request.send()?;
        request.status()
    };
    read() == Ok(200)
}

fn post(scope: &DedicatedWorkerGlobalScope, reply: &Reply) {
    let Ok(bytes) = postcard::to_allocvec(reply) else { return };
    let array = Uint8Array::from(bytes.as_slice());
    let _ = scope.post_message_with_transfer(&array, &Array::of1(&array.buffer()));
}
