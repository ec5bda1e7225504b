//! What the page knows, as signals, and what happens to it.
//!
//! - In: what a person does, and what the worker replies.
//! - Out: signals that the components show, and questions to the worker.
//! - Knows: all of this crate, and the browser through `page::browser`. No component.
//!
//! [`Planner`] holds the signals; each file here holds what one part of the page does with them.

mod address;
mod advice;
mod chart;
mod export;
mod files;
mod layouts;
mod notices;
mod picture;
mod planning;
mod proof;
mod replies;
mod rows;
mod traces;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;
use pipeplan_core::plan::planner::BEST;
use pipeplan_core::spec::Spec;
use serde_json::Value;
use web_sys::Worker;

use self::files::Opening;
use crate::draw::frontier::Chart;
use crate::draw::track::Track;
use crate::draw::view::View;
use crate::form::Form;
use crate::logic::comparison::Compared;
use crate::logic::edits::Edits;
use crate::logic::proof::Proof;
use crate::page::browser;
use crate::page::worker_client::WorkerClient;
use crate::protocol::{Calibrated, ChartPoint, Layouts, Row, SensitivityRows, Shorter, Timed, TraceSummary, Unfit};
use crate::scene::{MeasuredScene, Scene};

pub use notices::Notice;

/// The page's state. Copies share it.
#[derive(Clone, Copy)]
pub struct Planner {
    /// What is typed.
    pub form: RwSignal<Form>,
    /// Whether the form is open on a screen too narrow for both form and picture.
    pub form_open: RwSignal<bool>,
    /// What is wrong with it.
    pub faults: RwSignal<Vec<Fault>>,
    /// What the newest form without faults means.
    pub spec: RwSignal<Option<Arc<Spec>>>,
    /// That form, and its spec with every default said, for what empty fields show.
    pub resolved: RwSignal<(Form, Value)>,
    /// The plan on screen.
    pub scene: RwSignal<Option<Arc<Scene>>>,
    /// Why there is no plan on screen.
    pub no_plan: RwSignal<Option<String>>,
    /// The field that is to blame for that: the form by itself is without faults.
    no_plan_at: RwSignal<Option<Fault>>,
    /// What to change where the plan does not fit in memory.
    pub unfit: RwSignal<Option<Arc<Unfit>>>,
    /// What the memory limit costs the best schedule.
    pub shorter: RwSignal<Option<Arc<Shorter>>>,
    /// What the time of the plan on screen hangs on, as far as it has been asked for.
    pub sensitivity: RwSignal<Option<SensitivityRows>>,
    /// Whether that is shown.
    pub sensitivity_open: RwSignal<bool>,
    /// What the passes did to the plan on screen, as far as it has been asked for.
    pub passes: RwSignal<String>,
    /// Whether that was said of a plan before it.
    pub passes_outdated: RwSignal<bool>,
    /// Whether it is shown.
    pub passes_open: RwSignal<bool>,
    /// Time against memory, as far as it is known.
    pub chart: RwSignal<Chart>,
    /// What that is of; none where it is of a form that has been overtaken.
    chart_spec: RwSignal<Option<Arc<Spec>>>,
    /// On how many devices layouts are looked for; on those that the form has where it is empty.
    pub layout_devices: RwSignal<String>,
    /// The fastest layouts, as far as they were looked for.
    pub layouts: RwSignal<Option<Arc<Layouts>>>,
    /// Why they were not.
    pub layout_faults: RwSignal<Vec<String>>,
    /// What they were looked for; none where times have changed since.
    layouts_for: RwSignal<Option<Arc<Spec>>>,
    /// The comparison, as far as it has come.
    pub rows: RwSignal<Vec<Row>>,
    /// What those rows are of.
    pub compared: RwSignal<Compared>,
    /// Measured times that all is planned with.
    pub measured_times: RwSignal<Option<Timed>>,
    /// The open trace.
    pub trace: RwSignal<Option<TraceSummary>>,
    /// The step of it on screen.
    pub measured: RwSignal<Option<Arc<MeasuredScene>>>,
    /// Where the run of the open trace lost time against the plan on screen, or why that cannot be said; none where nobody asked.
    pub calibrated: RwSignal<Option<Result<Calibrated, Vec<String>>>>,
    /// Whether the measured step is drawn as long as the plan.
    pub aligned: RwSignal<bool>,
    /// A plan kept to be compared with others.
    pub kept: RwSignal<Option<Arc<Scene>>>,
    /// Questions without their last reply.
    pub busy: RwSignal<bool>,
    /// Schedules that the comparison has looked at, and all that it will.
    pub progress: RwSignal<(u32, u32)>,
    /// The cost of the best that a search has so far, and the bound; none where it has not taken long.
    pub searching: RwSignal<Option<(u64, u64)>>,
    /// Whether the plan on screen is of the form before a change.
    pub outdated: RwSignal<bool>,
    /// The exact search behind the plan on screen.
    pub proof: RwSignal<Proof>,
    /// What to say above the picture.
    pub notice: RwSignal<Option<Notice>>,
    /// The visible part of time, in CSS pixels.
    pub view: RwSignal<View>,
    /// Width of the time axis in CSS pixels.
    pub width: RwSignal<f64>,
    /// How many pictures of the timeline have been asked for.
    pub png_wanted: RwSignal<u32>,
    /// The newest plan question, and the newest whose answer is on screen.
    newest_asked: StoredValue<u32>,
    newest_shown: StoredValue<u32>,
    /// The point of the chart that was chosen, until what comes of it is known.
    chosen_point: StoredValue<Option<ChartPoint>>,
    /// The plan file that is open, as long as nothing in the form has changed since: exporting gives it back as it
    /// is, whoever wrote it.
    open_plan_file: StoredValue<Option<Rc<str>>, LocalStorage>,
    /// Whether the plan file is to be saved when the search for the plan has ended.
    saves_when_found: StoredValue<bool>,
    /// The plan file, or the order, that the worker is reading.
    opening: StoredValue<Option<Opening>, LocalStorage>,
    /// The trace file that the worker is reading.
    opening_trace: StoredValue<Option<Opening>, LocalStorage>,
    /// The profile that the worker is reading.
    opening_profile: StoredValue<Option<Opening>, LocalStorage>,
    /// The tokens of a sequence that a `config.json` has put into the form, and those that the model before had.
    configured: StoredValue<Option<(String, u64)>>,
    /// Whether a plan or trace is remembered, for when the page is loaded anew.
    remembers: StoredValue<bool>,
    /// Tracks sent ahead of their picture, and the question that they belong to.
    early_tracks: StoredValue<(u32, Vec<Track>)>,
    /// The question of where time went that is under way, or whose answer is shown.
    calibration_question: StoredValue<Option<u32>>,
    /// The question after what the plan's time hangs on.
    sensitivity_question: StoredValue<Option<u32>>,
    /// The question after what the passes did.
    passes_question: StoredValue<Option<u32>>,
    /// Of files that are opened together.
    batch: StoredValue<u32>,
    link_timer: StoredValue<u32>,
    /// What stands after `#`, as far as the page knows.
    own_fragment: StoredValue<String>,
    /// Whether the next link takes the place of the one in the address or comes after it, so that going back leads to what
    /// was there before.
    edits: StoredValue<Edits>,
    client: StoredValue<Option<Rc<WorkerClient>>, LocalStorage>,
    /// The worker of a proof under way.
    prover: StoredValue<Option<Worker>, LocalStorage>,
}

impl Planner {
    /// The state of a page that opens.
    pub fn new() -> Planner {
        let planner = Planner {
            form: RwSignal::new(Form::default()),
            form_open: RwSignal::new(false),
            faults: RwSignal::new(Vec::new()),
            spec: RwSignal::new(None),
            resolved: RwSignal::new((Form::default(), Value::Null)),
            scene: RwSignal::new(None),
            no_plan: RwSignal::new(None),
            no_plan_at: RwSignal::new(None),
            unfit: RwSignal::new(None),
            shorter: RwSignal::new(None),
            sensitivity: RwSignal::new(None),
            sensitivity_open: RwSignal::new(false),
            passes: RwSignal::new(String::new()),
            passes_outdated: RwSignal::new(false),
            passes_open: RwSignal::new(false),
            chart: RwSignal::new(Chart::default()),
            chart_spec: RwSignal::new(None),
            layout_devices: RwSignal::new(String::new()),
            layouts: RwSignal::new(None),
            layouts_for: RwSignal::new(None),
            layout_faults: RwSignal::new(Vec::new()),
            rows: RwSignal::new(Vec::new()),
            compared: RwSignal::new(Compared::default()),
            measured_times: RwSignal::new(None),
            trace: RwSignal::new(None),
            measured: RwSignal::new(None),
            calibrated: RwSignal::new(None),
            aligned: RwSignal::new(true),
            kept: RwSignal::new(None),
            busy: RwSignal::new(true),
            progress: RwSignal::new((0, 0)),
            searching: RwSignal::new(None),
            outdated: RwSignal::new(false),
            proof: RwSignal::new(Proof::default()),
            notice: RwSignal::new(None),
            view: RwSignal::new(View { start_ns: 0.0, ns_per_px: 1.0 }),
            width: RwSignal::new(600.0),
            png_wanted: RwSignal::new(0),
            newest_asked: StoredValue::new(0),
            newest_shown: StoredValue::new(0),
            chosen_point: StoredValue::new(None),
            open_plan_file: StoredValue::new_local(None),
            saves_when_found: StoredValue::new(false),
            opening: StoredValue::new_local(None),
            opening_trace: StoredValue::new_local(None),
            opening_profile: StoredValue::new_local(None),
            configured: StoredValue::new(None),
            remembers: StoredValue::new(true),
            early_tracks: StoredValue::new((0, Vec::new())),
            calibration_question: StoredValue::new(None),
            sensitivity_question: StoredValue::new(None),
            passes_question: StoredValue::new(None),
            batch: StoredValue::new(0),
            link_timer: StoredValue::new(0),
            own_fragment: StoredValue::new(String::new()),
            edits: StoredValue::new(Edits::default()),
            client: StoredValue::new_local(None),
            prover: StoredValue::new_local(None),
        };
        let client = WorkerClient::start(
            Rc::new(move |reply| planner.receive(reply)),
            Rc::new(move |reason| {
                planner.busy.set(false);
                planner.report(vec![reason]);
            }),
        );
        planner.client.set_value(Some(client));
        planner
    }
}

/// Whether the planner makes schedules of this name.
pub(super) fn is_schedule(name: &str) -> bool {
    name == BEST || pipeplan_core::schedule::find(name).is_some()
}

thread_local! {
    static FRAME_REQUESTED: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs `paint` once before the next frame, however often it is asked for.
pub fn once_a_frame(paint: impl FnOnce() + 'static) {
    let already = FRAME_REQUESTED.with(|requested| requested.replace(true));
    if !already {
        browser::next_frame(move || {
            FRAME_REQUESTED.with(|requested| requested.replace(false));
            paint();
        });
    }
}
