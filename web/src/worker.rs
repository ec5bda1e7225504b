//! The worker's end of the wire.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{DedicatedWorkerGlobalScope, MessageChannel, MessageEvent};

use crate::message::{Question, Reply};
use crate::wire;
use crate::work::Work;

/// Listens for questions and works on them piece by piece.
///
/// Between two pieces the worker lets go, by a message to itself: questions that came meanwhile stand before
/// it in the queue, so the newest question is always the next one worked on.
pub fn start(scope: DedicatedWorkerGlobalScope) {
    let Ok(channel) = MessageChannel::new() else { return };
    let work = Rc::new(RefCell::new(Work::new(js_sys::Date::now)));
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
            for reply in replies.into_iter().flat_map(wire::in_parts) {
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

    let on_question = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let bytes = Uint8Array::new(&event.data()).to_vec();
        if let Ok(question) = postcard::from_bytes::<Question>(&bytes) {
            work.borrow_mut().take(question);
            go_on();
        }
    });
    scope.set_onmessage(Some(on_question.as_ref().unchecked_ref()));
    on_question.forget();
    // An empty message: from now on questions are heard.
    let _ = scope.post_message(&Uint8Array::new_with_length(0));
}

fn post(scope: &DedicatedWorkerGlobalScope, reply: &Reply) {
    let Ok(bytes) = postcard::to_allocvec(reply) else { return };
    let array = Uint8Array::from(bytes.as_slice());
    let _ = scope.post_message_with_transfer(&array, &Array::of1(&array.buffer()));
}
