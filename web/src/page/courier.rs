//! The page's end of the wire to its worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{MessageEvent, Worker, WorkerOptions, WorkerType};

use super::browser;
use crate::protocol::{Ask, Question, Reply, Said};

/// A plan that keeps a newer question waiting for longer than this is abandoned with its worker.
const PATIENCE_MS: i32 = 2500;

#[wasm_bindgen]
extern "C" {
    /// The address of the script that loaded this WebAssembly: the worker loads the same.
    #[wasm_bindgen(thread_local_v2, js_namespace = ["import", "meta"], js_name = url)]
    static GLUE_URL: String;
}

type OnReply = Rc<dyn Fn(Reply)>;
type OnFailure = Rc<dyn Fn(String)>;

/// Sends questions to the worker and hands its replies to the page. Starts the worker anew where it works on
/// what nobody wants to know any more.
pub struct Courier {
    on_reply: OnReply,
    on_failure: OnFailure,
    worker: RefCell<Option<Worker>>,
    /// Asked before the worker could hear.
    waiting: RefCell<Vec<Question>>,
    ready: Cell<bool>,
    next_id: Cell<u32>,
    /// The newest reply's question.
    heard: Cell<u32>,
    /// The newest plan that was asked for, and the open trace: a new worker has to be told again.
    newest_plan: RefCell<Option<Question>>,
    open_trace: RefCell<Option<Question>>,
    /// The layouts that are being looked for: so, too.
    tuning: RefCell<Option<Question>>,
    /// As long as it can be read, a search goes on.
    going_on: RefCell<Option<String>>,
}

impl Courier {
    /// A courier with a worker under way.
    pub fn start(on_reply: OnReply, on_failure: OnFailure) -> Rc<Courier> {
        let courier = Rc::new(Courier {
            on_reply,
            on_failure,
            worker: RefCell::new(None),
            waiting: RefCell::new(Vec::new()),
            ready: Cell::new(false),
            next_id: Cell::new(1),
            heard: Cell::new(0),
            newest_plan: RefCell::new(None),
            open_trace: RefCell::new(None),
            tuning: RefCell::new(None),
            going_on: RefCell::new(None),
        });
        courier.spawn();
        courier.let_go_on();
        courier
    }

    /// Asks, and returns the question's number.
    pub fn ask(self: &Rc<Self>, ask: Ask) -> u32 {
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let question = Question { id, ask };
        match &question.ask {
            Ask::Plan { .. } | Ask::OpenPlan { .. } | Ask::OpenOrder { .. } => {
                let before = self.newest_plan.replace(Some(question.clone()));
                if before.is_some_and(|before| before.id > self.heard.get()) {
                    self.lose_patience_later(id);
                }
            }
            Ask::OpenTrace { .. } => {
                self.open_trace.replace(Some(question.clone()));
            }
            Ask::Tune { spec, .. } => {
                self.tuning.replace(spec.is_some().then(|| question.clone()));
            }
            _ => {}
        }
        self.send(question);
        id
    }

    /// Ends the search for the best with what it has found.
    pub fn stop(self: &Rc<Self>) {
        if let Some(address) = self.going_on.take() {
            browser::forget_address(&address);
        }
        self.ask(Ask::Stop);
        self.let_go_on();
    }

    /// Gives the worker an address to watch while it searches.
    fn let_go_on(self: &Rc<Self>) {
        if let Some(url) = browser::readable_address() {
            self.going_on.replace(Some(url.clone()));
            self.ask(Ask::GoOnWhile { url });
        }
    }

    fn send(&self, question: Question) {
        match (&*self.worker.borrow(), self.ready.get()) {
            (Some(worker), true) => post(worker, &question),
            _ => self.waiting.borrow_mut().push(question),
        }
    }

    fn spawn(self: &Rc<Self>) {
        let glue = GLUE_URL.with(|url| url.clone());
        let address = format!("worker.js?glue={}", js_sys::encode_uri_component(&glue));
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        let worker = match Worker::new_with_options(&browser::beside_page(&address), &options) {
            Ok(worker) => worker,
            Err(_) => return (self.on_failure)("This browser cannot start a web worker.".to_owned()),
        };
        let courier = self.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| courier.hear(&event));
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        on_message.forget();
        let courier = self.clone();
        let on_error = Closure::<dyn FnMut()>::new(move || {
            (courier.on_failure)("The planner stopped. Reload the page to start it again.".to_owned());
        });
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        on_error.forget();
        self.ready.set(false);
        self.worker.replace(Some(worker));
    }

    fn hear(&self, event: &MessageEvent) {
        if let Some(reason) = event.data().as_string() {
            return (self.on_failure)(format!("The planner could not be loaded: {reason}"));
        }
        let bytes = Uint8Array::new(&event.data()).to_vec();
        if bytes.is_empty() {
            self.ready.set(true);
            if let Some(worker) = &*self.worker.borrow() {
                self.waiting.borrow_mut().drain(..).for_each(|question| post(worker, &question));
            }
            return;
        }
        if let Ok(reply) = postcard::from_bytes::<Reply>(&bytes) {
            if matches!(&reply.said, Said::Tuned(layouts) if layouts.finished) {
                self.tuning.replace(None);
            }
            self.heard.set(self.heard.get().max(reply.id));
            (self.on_reply)(reply);
        }
    }

    /// If the worker still has not got round to question `id` after a while, it is stuck in an older one.
    fn lose_patience_later(self: &Rc<Self>, id: u32) {
        let courier = self.clone();
        browser::after(PATIENCE_MS, move || {
            let newest = courier.newest_plan.borrow().as_ref().map(|question| question.id);
            if newest != Some(id) || courier.heard.get() >= id || !courier.ready.get() {
                return;
            }
            if let Some(worker) = courier.worker.take() {
                worker.terminate();
            }
            let again =
                [&courier.open_trace, &courier.newest_plan, &courier.tuning].map(|kept| kept.borrow().clone());
            let url = courier.going_on.borrow().clone();
            let going_on = url.map(|url| Question { id: 0, ask: Ask::GoOnWhile { url } });
            courier.waiting.borrow_mut().extend(going_on.into_iter().chain(again.into_iter().flatten()));
            courier.spawn();
        });
    }
}

fn post(worker: &Worker, question: &Question) {
    let Ok(bytes) = postcard::to_allocvec(question) else { return };
    let array = Uint8Array::from(bytes.as_slice());
    let _ = worker.post_message_with_transfer(&array, &Array::of1(&array.buffer()));
}
