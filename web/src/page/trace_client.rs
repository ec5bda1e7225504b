//! The page's end of the wire to the worker of measured runs.
//!
//! The worker starts with the first run that is opened, and ends when the run is closed: only so does the browser get its memory
//! back. Where a person stops what takes long, it ends too, and reads the files again when it is asked next.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{File, MessageEvent, Worker, WorkerOptions, WorkerType};

use super::browser;
use crate::protocol::{Export, TRACE_WORKER, TraceAsk, TraceQuestion, TraceReply, TraceResponse};

/// The number of the question that reads files again. Nobody waits for its answer.
const AGAIN: u32 = 0;

type OnReply = Rc<dyn Fn(TraceReply)>;
type OnFailure = Rc<dyn Fn(String)>;

/// A question with the files that travel beside it.
type Message = (TraceQuestion, Rc<[File]>);

/// Sends questions about a measured run to its worker.
pub struct TraceClient {
    on_reply: OnReply,
    on_failure: OnFailure,
    worker: RefCell<Option<Worker>>,
    /// Whether the worker receives messages.
    ready: Cell<bool>,
    /// Asked before that.
    waiting: RefCell<Vec<Message>>,
    next_id: Cell<u32>,
    /// The run that is open, to be read again.
    open: RefCell<Option<(TraceAsk, Rc<[File]>)>>,
    /// What takes long goes on while its address can be read.
    going_on: RefCell<Vec<(Long, String)>>,
}

/// What takes long, and ends without its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Long {
    /// Finding out what the run means.
    Analysis,
    /// The search for the best order.
    Search,
    /// Where time was lost against the plan.
    Comparison,
    /// The order that ran.
    Order,
    /// A profile.
    Profile,
    /// A file.
    Export(Export),
}

impl TraceClient {
    /// Without a worker so far.
    pub fn new(on_reply: OnReply, on_failure: OnFailure) -> Rc<TraceClient> {
        Rc::new(TraceClient {
            on_reply,
            on_failure,
            worker: RefCell::new(None),
            ready: Cell::new(false),
            waiting: RefCell::new(Vec::new()),
            next_id: Cell::new(AGAIN + 1),
            open: RefCell::new(None),
            going_on: RefCell::new(Vec::new()),
        })
    }

    /// Asks, and returns the question's number.
    pub fn ask(self: &Rc<Self>, ask: TraceAsk) -> u32 {
        self.send(ask, Rc::new([]))
    }

    /// Opens these files as one run, in place of what is open.
    pub fn open(self: &Rc<Self>, ask: TraceAsk, files: Vec<File>) -> u32 {
        // Whatever an older run still takes ends with its worker.
        self.close();
        let files: Rc<[File]> = files.into();
        self.open.replace(Some((ask.clone(), files.clone())));
        self.send(ask, files)
    }

    fn send(self: &Rc<Self>, ask: TraceAsk, files: Rc<[File]>) -> u32 {
        if self.worker.borrow().is_none() {
            self.spawn();
            let is_open = matches!(ask, TraceAsk::Open { .. });
            if let (false, Some((ask, files))) = (is_open, self.open.borrow().clone()) {
                self.waiting.borrow_mut().push((TraceQuestion { id: AGAIN, ask }, files));
            }
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1).max(AGAIN + 1));
        let message = (TraceQuestion { id, ask }, files);
        match (&*self.worker.borrow(), self.ready.get()) {
            (Some(worker), true) => post(worker, &message),
            _ => self.waiting.borrow_mut().push(message),
        }
        id
    }

    /// An address that what takes long watches; [`TraceClient::end`] ends it. An older one of its kind ends at once.
    pub fn begin(&self, what: Long) -> Option<String> {
        self.end(what);
        let address = browser::readable_address()?;
        self.going_on.borrow_mut().push((what, address.clone()));
        Some(address)
    }

    /// Ends what takes long: a search with the best so far.
    pub fn end(&self, what: Long) {
        self.going_on.borrow_mut().retain(|(of, address)| {
            let stays = *of != what;
            if !stays {
                browser::forget_address(address);
            }
            stays
        });
    }

    /// Ends what the worker does, and the worker.
    pub fn stop(&self) {
        for (_, address) in self.going_on.take() {
            browser::forget_address(&address);
        }
        self.waiting.borrow_mut().clear();
        self.ready.set(false);
        if let Some(worker) = self.worker.take() {
            worker.set_onmessage(None);
            worker.set_onerror(None);
            worker.terminate();
        }
    }

    /// Ends the worker for good.
    pub fn close(&self) {
        self.stop();
        self.open.replace(None);
    }

    fn spawn(self: &Rc<Self>) {
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        options.set_name(TRACE_WORKER);
        let address = browser::beside_page(&format!("worker.js?{}", browser::version()));
        let Ok(worker) = Worker::new_with_options(&address, &options) else {
            return (self.on_failure)("This browser cannot start a web worker.".to_owned());
        };
        let client = self.clone();
        let on_message =
            Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| client.on_message(&event));
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        on_message.forget();
        let client = self.clone();
        let on_error =
            Closure::<dyn FnMut()>::new(move || client.failed("it needs more memory than this browser has"));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        on_error.forget();
        self.worker.replace(Some(worker));
    }

    fn failed(&self, reason: &str) {
        self.close();
        (self.on_failure)(format!(
            "The worker that reads runs has ended: {reason}. Open fewer steps: `pipeplan trace FILES --steps A..B -o part.json` writes them."
        ));
    }

    fn on_message(&self, event: &MessageEvent) {
        if let Some(reason) = event.data().as_string() {
            return self.failed(&reason);
        }
        let bytes = Uint8Array::new(&event.data()).to_vec();
        if bytes.is_empty() {
            self.ready.set(true);
            if let Some(worker) = &*self.worker.borrow() {
                self.waiting.borrow_mut().drain(..).for_each(|message| post(worker, &message));
            }
            return;
        }
        match postcard::from_bytes::<TraceReply>(&bytes) {
            Ok(TraceReply { id: AGAIN, response }) if !matches!(response, TraceResponse::Reading { .. }) => {}
            Ok(reply) => (self.on_reply)(reply),
            Err(_) => {}
        }
    }
}

fn post(worker: &Worker, (question, files): &Message) {
    let Ok(bytes) = postcard::to_allocvec(question) else { return };
    let message = Array::of1(&Uint8Array::from(bytes.as_slice()));
    for file in files.iter() {
        message.push(file);
    }
    let _ = worker.post_message(&message);
}
