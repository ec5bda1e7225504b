//! The page's end of the wire to its worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{MessageEvent, Worker, WorkerOptions, WorkerType};

use super::browser;
use crate::protocol::{Ask, Question, Reply, Response};

/// If a newer question waits for longer than this, the worker is restarted.
const STUCK_AFTER_MS: i32 = 2500;

type OnReply = Rc<dyn Fn(Reply)>;
type OnFailure = Rc<dyn Fn(String)>;

/// Sends questions to the worker and gives its replies to the page. Restarts the worker if it is stuck in outdated
/// work.
pub struct WorkerClient {
    on_reply: OnReply,
    on_failure: OnFailure,
    worker: RefCell<Option<Worker>>,
    /// Asked before the worker could hear.
    waiting: RefCell<Vec<Question>>,
    ready: Cell<bool>,
    next_id: Cell<u32>,
    /// The newest reply's question.
    newest_answered: Cell<u32>,
    /// The newest plan question: a new worker needs it again.
    newest_plan: RefCell<Option<Question>>,
    /// The layouts that are being looked for: so, too.
    tuning: RefCell<Option<Question>>,
    /// A search continues while this address can be read.
    stop_signal: RefCell<Option<String>>,
}

impl WorkerClient {
    /// A courier with a worker under way.
    pub fn start(on_reply: OnReply, on_failure: OnFailure) -> Rc<WorkerClient> {
        let client = Rc::new(WorkerClient {
            on_reply,
            on_failure,
            worker: RefCell::new(None),
            waiting: RefCell::new(Vec::new()),
            ready: Cell::new(false),
            next_id: Cell::new(1),
            newest_answered: Cell::new(0),
            newest_plan: RefCell::new(None),
            tuning: RefCell::new(None),
            stop_signal: RefCell::new(None),
        });
        client.spawn();
        client.give_stop_signal();
        client
    }

    /// Asks, and returns the question's number.
    pub fn ask(self: &Rc<Self>, ask: Ask) -> u32 {
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let question = Question { id, ask };
        match &question.ask {
            Ask::Plan { .. }
            | Ask::PlanByHand { .. }
            | Ask::FindLayout(Some(_))
            | Ask::OpenPlan { .. }
            | Ask::OpenOrder { .. } => {
                let before = self.newest_plan.replace(Some(question.clone()));
                if before.is_some_and(|before| before.id > self.newest_answered.get()) {
                    self.restart_if_stuck(id);
                }
            }
            Ask::Tune { spec, .. } => {
                self.tuning.replace(spec.is_some().then(|| question.clone()));
            }
            _ => {}
        }
        self.send(question);
        id
    }

    /// Stops the search for the best and keeps the best so far.
    pub fn stop(self: &Rc<Self>) {
        if let Some(address) = self.stop_signal.take() {
            browser::forget_address(&address);
        }
        self.ask(Ask::Stop);
        self.give_stop_signal();
    }

    /// Gives the worker an address to watch while it searches.
    fn give_stop_signal(self: &Rc<Self>) {
        if let Some(url) = browser::readable_address() {
            self.stop_signal.replace(Some(url.clone()));
            self.ask(Ask::SearchWhileReadable { url });
        }
    }

    fn send(&self, question: Question) {
        match (&*self.worker.borrow(), self.ready.get()) {
            (Some(worker), true) => post(worker, &question),
            _ => self.waiting.borrow_mut().push(question),
        }
    }

    fn spawn(self: &Rc<Self>) {
        let worker = match browser::planner_worker() {
            Some(worker) => worker,
            None => {
                let address = format!("worker.js?{}", browser::version());
                let options = WorkerOptions::new();
                options.set_type(WorkerType::Module);
                match Worker::new_with_options(&browser::beside_page(&address), &options) {
                    Ok(worker) => worker,
                    Err(_) => return (self.on_failure)("This browser cannot start a web worker.".to_owned()),
                }
            }
        };
        let client = self.clone();
        let on_message =
            Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| client.on_message(&event));
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        on_message.forget();
        let client = self.clone();
        let on_error = Closure::<dyn FnMut()>::new(move || {
            (client.on_failure)("The planner stopped. Reload the page to start it again.".to_owned());
        });
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        on_error.forget();
        self.ready.set(false);
        // One that is ready already says so again.
        let _ = worker.post_message(&Uint8Array::new_with_length(0));
        self.worker.replace(Some(worker));
    }

    fn on_message(&self, event: &MessageEvent) {
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
            if matches!(&reply.response, Response::Tuned(layouts) if layouts.finished) {
                self.tuning.replace(None);
            }
            self.newest_answered.set(self.newest_answered.get().max(reply.id));
            (self.on_reply)(reply);
        }
    }

    /// If the worker still has not got round to question `id` after a while, it is stuck in an older one.
    fn restart_if_stuck(self: &Rc<Self>, id: u32) {
        let client = self.clone();
        browser::after(STUCK_AFTER_MS, move || {
            let newest = client.newest_plan.borrow().as_ref().map(|question| question.id);
            if newest != Some(id) || client.newest_answered.get() >= id || !client.ready.get() {
                return;
            }
            if let Some(worker) = client.worker.take() {
                worker.terminate();
            }
            let again = [&client.newest_plan, &client.tuning].map(|kept| kept.borrow().clone());
            let url = client.stop_signal.borrow().clone();
            let stop_signal = url.map(|url| Question { id: 0, ask: Ask::SearchWhileReadable { url } });
            client.waiting.borrow_mut().extend(stop_signal.into_iter().chain(again.into_iter().flatten()));
            client.spawn();
        });
    }
}

fn post(worker: &Worker, question: &Question) {
    let Ok(bytes) = postcard::to_allocvec(question) else { return };
    let array = Uint8Array::from(bytes.as_slice());
    let _ = worker.post_message_with_transfer(&array, &Array::of1(&array.buffer()));
}
