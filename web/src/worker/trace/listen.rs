//! The end of the connection in the worker of measured runs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Function, Reflect, Uint8Array};
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::formats::run_files::{Contents, Reader};
use pipeplan_core::search::{Flow, Progress};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    DedicatedWorkerGlobalScope, File, MessageEvent, ReadableStream, ReadableStreamDefaultReader, ReadableWritablePair,
};

use super::{Analyst, Watched, reply};
use crate::protocol::{Order, TraceAsk, TraceFile, TraceQuestion, TraceResponse};
use crate::worker::listen::{WATCHED_EVERY_MS, can_be_read, say_ready};

/// What takes long looks so often whether it is still wanted: a step that is chosen meanwhile waits for it.
const STOPPED_WITHIN_MS: f64 = 100.0;

/// What reading shares with questions.
#[derive(Clone, Default)]
struct Shared {
    analyst: Rc<RefCell<Analyst>>,
    /// Grows with each run that is opened: what is read of an older one ends.
    opening: Rc<Cell<u32>>,
}

/// Receives questions about measured runs.
pub fn start(scope: DedicatedWorkerGlobalScope) {
    let shared = Shared::default();
    let asked = scope.clone();
    let on_question = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let parts = Array::from(&event.data());
        let bytes = Uint8Array::new(&parts.get(0)).to_vec();
        if bytes.is_empty() {
            return say_ready(&asked);
        }
        let Ok(TraceQuestion { id, ask }) = postcard::from_bytes::<TraceQuestion>(&bytes) else { return };
        match ask {
            TraceAsk::Open { files, order } => {
                let given: Vec<File> = (1..parts.length()).filter_map(|at| parts.get(at).dyn_into().ok()).collect();
                let shared = shared.clone();
                let scope = asked.clone();
                wasm_bindgen_futures::spawn_local(
                    async move { open(&scope, &shared, id, files, given, order).await },
                );
            }
            TraceAsk::StopReading => shared.opening.set(shared.opening.get() + 1),
            ask => {
                let url = ask.while_readable().map(str::to_owned);
                // What nobody waits for any more does not begin.
                let mut told_ms = 0.0;
                let mut watch = |watched: Watched| {
                    let now_ms = js_sys::Date::now();
                    if now_ms - told_ms < STOPPED_WITHIN_MS {
                        return Flow::Continue;
                    }
                    told_ms = now_ms;
                    let response = match watched {
                        Watched::Search(Progress { cost_ns, bound_ns, .. }) => {
                            Some(TraceResponse::Searching { cost_ns, bound_ns })
                        }
                        Watched::Replays(done, most) => Some(TraceResponse::Replaying { done, most }),
                        Watched::Comparison(done, most) => Some(TraceResponse::Comparing { done, most }),
                        Watched::Writing => None,
                    };
                    response.into_iter().for_each(|response| post(&asked, id, response));
                    if url.as_deref().is_some_and(|url| !can_be_read(url)) { Flow::Stop } else { Flow::Continue }
                };
                let replies = shared.analyst.borrow().answer(ask, &mut watch);
                replies.into_iter().for_each(|response| post(&asked, id, response));
            }
        }
    });
    scope.set_onmessage(Some(on_question.as_ref().unchecked_ref()));
    on_question.forget();
    say_ready(&scope);
}

/// Reads files piece by piece, and opens what they hold.
async fn open(
    scope: &DedicatedWorkerGlobalScope,
    shared: &Shared,
    id: u32,
    names: Vec<TraceFile>,
    files: Vec<File>,
    order: Option<Order>,
) {
    let opening = shared.opening.get() + 1;
    shared.opening.set(opening);
    let whole: f64 = files.iter().map(|file| file.size()).sum();
    let (mut before, mut told_ms) = (0.0, 0.0);
    let mut read = Vec::new();
    for (name, file) in names.into_iter().zip(files) {
        let mut reader = Reader::new(&name.path, name.bytes);
        let mut done = 0.0;
        let contents = loop_over(&file, |piece| {
            done += piece.len() as f64;
            let now_ms = js_sys::Date::now();
            if now_ms - told_ms > WATCHED_EVERY_MS {
                told_ms = now_ms;
                // What is packed comes out longer than it went in.
                let bytes = [(before + done.min(file.size())) as u64, whole as u64];
                post(scope, id, TraceResponse::Reading { name: name.path.clone(), bytes });
            }
            match shared.opening.get() == opening {
                true => reader.push(piece).map(|()| Flow::Continue),
                false => Ok(Flow::Stop),
            }
        })
        .await;
        if shared.opening.get() != opening {
            return;
        }
        let contents: Result<Contents, Faults> = contents.map_err(Faults::from).and_then(|()| reader.finish());
        before += file.size();
        read.push((name.path, contents));
    }
    let replies = shared.analyst.borrow_mut().open(read, order.as_ref());
    replies.into_iter().for_each(|response| post(scope, id, response));
}

/// Calls `with` for each piece of a file, unpacked.
async fn loop_over(file: &File, mut with: impl FnMut(&[u8]) -> Result<Flow, Fault>) -> Result<(), Fault> {
    let cannot = |_: JsValue| {
        Fault::new("the whole file", "bytes that cannot be read", "a whole file, packed with gzip or not")
    };
    let reader: ReadableStreamDefaultReader =
        stream(file).await.map_err(cannot)?.get_reader().dyn_into().map_err(|object| cannot(object.into()))?;
    loop {
        let piece = JsFuture::from(reader.read()).await.map_err(cannot)?;
        let is_done = Reflect::get(&piece, &"done".into()).map_err(cannot)?.is_truthy();
        if is_done {
            return Ok(());
        }
        let bytes = Uint8Array::new(&Reflect::get(&piece, &"value".into()).map_err(cannot)?).to_vec();
        if with(&bytes)? == Flow::Stop {
            return Ok(());
        }
    }
}

/// The bytes of a file; what is packed with gzip is unpacked by the browser.
async fn stream(file: &File) -> Result<ReadableStream, JsValue> {
    let head = JsFuture::from(file.slice_with_i32_and_i32(0, 2)?.array_buffer()).await?;
    if Uint8Array::new(&head).to_vec() != [0x1f, 0x8b] {
        return Ok(file.stream());
    }
    let class = Reflect::get(&js_sys::global(), &"DecompressionStream".into())?;
    let unpacker =
        Reflect::construct(class.dyn_ref::<Function>().ok_or(JsValue::NULL)?, &Array::of1(&"gzip".into()))?;
    Ok(file.stream().pipe_through(unpacker.unchecked_ref::<ReadableWritablePair>()))
}

fn post(scope: &DedicatedWorkerGlobalScope, id: u32, response: TraceResponse) {
    let Ok(bytes) = postcard::to_allocvec(&reply(id, response)) else { return };
    let array = Uint8Array::from(bytes.as_slice());
    let _ = scope.post_message_with_transfer(&array, &Array::of1(&array.buffer()));
}
