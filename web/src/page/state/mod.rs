//! The state of the page, as signals, and its changes.
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
mod following;
mod layouts;
mod measuring;
mod notices;
mod picture;
mod planning;
mod playback;
mod proof;
mod replies;
mod rows;
mod run;
mod shown;
mod traces;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::Spec;
use serde_json::Value;
use web_sys::Worker;

use self::files::Opening;
use self::following::Followed;
use self::measuring::Measuring;
use crate::draw::frontier::Chart;
use crate::draw::selection::{Block, Pointed};
use crate::draw::track::Track;
use crate::draw::view::View;
use crate::form::Form;
use crate::logic::comparison::Compared;
use crate::logic::edits::Edits;
use crate::logic::playback::Playback;
use crate::logic::proof::Proof;
use crate::logic::shown::Shown;
use crate::logic::sorting::Ranking;
use crate::page::browser;
use crate::page::trace_client::TraceClient;
use crate::page::worker_client::WorkerClient;
use crate::protocol::{Calibrated, ChartPoint, Layouts, Row, SensitivityRows, Shorter, Timed, TraceSummary, Unfit};
use crate::scene::{MeasuredScene, Scene};

pub use following::NextStep;
pub use measuring::BestOrder;
pub use notices::Notice;
pub use run::OpenRun;
pub use traces::PathSpan;

/// The page's state. Clones refer to the same state.
#[derive(Clone, Copy)]
pub struct Planner {
    /// What is typed.
    pub form: RwSignal<Form>,
    /// Whether the form is open on a screen too narrow for both form and picture.
    pub form_open: RwSignal<bool>,
    /// What is wrong with it.
    pub faults: RwSignal<Vec<Fault>>,
    /// The spec of the newest form without faults.
    pub spec: RwSignal<Option<Arc<Spec>>>,
    /// That form, and its spec with every default, for the placeholders of empty fields.
    pub resolved: RwSignal<(Form, Value)>,
    /// The plan on screen.
    pub scene: RwSignal<Option<Arc<Scene>>>,
    /// Why there is no plan on screen.
    pub no_plan: RwSignal<Option<String>>,
    /// The field that causes it, although the form has no faults.
    no_plan_at: RwSignal<Option<Fault>>,
    /// A change of the form with which there is a layout, if there is none.
    pub next_step: RwSignal<Option<NextStep>>,
    /// Whether the layout of the form is being found.
    pub following: RwSignal<bool>,
    /// The layout that is being found.
    followed: StoredValue<Option<Followed>>,
    /// Whether the number of devices may be raised: a person chose another model or device, and typed no number since.
    may_raise: StoredValue<bool>,
    /// Suggestions if the plan does not fit in memory.
    pub unfit: RwSignal<Option<Arc<Unfit>>>,
    /// The cost of the memory limit for the best schedule.
    pub shorter: RwSignal<Option<Arc<Shorter>>>,
    /// The sensitivity of the plan on screen, if it was asked for.
    pub sensitivity: RwSignal<Option<SensitivityRows>>,
    /// Whether its panel is open.
    pub sensitivity_open: RwSignal<bool>,
    /// The reports of the compiler passes, if they were asked for.
    pub passes: RwSignal<String>,
    /// Whether they belong to an older plan.
    pub passes_outdated: RwSignal<bool>,
    /// Whether their panel is open.
    pub passes_open: RwSignal<bool>,
    /// Time against memory, so far.
    pub chart: RwSignal<Chart>,
    /// The spec of the chart; none if it belongs to an older form.
    chart_spec: RwSignal<Option<Arc<Spec>>>,
    /// The number of devices for layouts; empty: that of the form.
    pub layout_devices: RwSignal<String>,
    /// The fastest layouts, so far.
    pub layouts: RwSignal<Option<Arc<Layouts>>>,
    /// Why there is no search for layouts.
    pub layout_faults: RwSignal<Vec<String>>,
    /// The spec of the layouts; none if times have changed since.
    layouts_for: RwSignal<Option<Arc<Spec>>>,
    /// The rows of the comparison, so far.
    pub rows: RwSignal<Vec<Row>>,
    /// The spec that those rows belong to.
    pub compared: RwSignal<Compared>,
    /// The measured times in use.
    pub measured_times: RwSignal<Option<Timed>>,
    /// The open trace.
    pub trace: RwSignal<Option<TraceSummary>>,
    /// What is known of it beside that.
    pub measuring: Measuring,
    /// The step of it on screen.
    pub measured: RwSignal<Option<Arc<MeasuredScene>>>,
    /// Where the run of the open trace lost time against the plan on screen, or the reasons why that is unknown; none
    /// if it was not asked.
    pub calibrated: RwSignal<Option<Result<Calibrated, Vec<String>>>>,
    /// Whether the measured step is drawn as long as the plan.
    pub aligned: RwSignal<bool>,
    /// A plan kept to be compared with others.
    pub kept: RwSignal<Option<Arc<Scene>>>,
    /// Whether an answer is incomplete.
    pub busy: RwSignal<bool>,
    /// Evaluated schedules of the comparison, and all schedules.
    pub progress: RwSignal<(u32, u32)>,
    /// The cost of the best so far and the bound; none if the search is short.
    pub searching: RwSignal<Option<(u64, u64)>>,
    /// Whether the plan on screen belongs to the form before a change.
    pub outdated: RwSignal<bool>,
    /// The exact search behind the plan on screen.
    pub proof: RwSignal<Proof>,
    /// The run of Megatron-LM that was opened.
    pub run: RwSignal<Option<OpenRun>>,
    /// What to say above the picture.
    pub notice: RwSignal<Option<Notice>>,
    /// The visible part of time, in CSS pixels.
    pub view: RwSignal<View>,
    /// The selected part of the timeline.
    pub selected: RwSignal<Option<Pointed>>,
    /// The block that was searched last.
    pub found: RwSignal<Option<Block>>,
    /// Whether the ops of the critical path stand out.
    pub path_lit: RwSignal<bool>,
    /// The order of the comparison.
    pub ranking: RwSignal<Ranking>,
    /// Whether transfers, gradient sync and optimizer have tracks of their own.
    pub carried_shown: RwSignal<bool>,
    /// The plan in slow motion.
    pub playback: RwSignal<Option<Playback>>,
    /// By how much a person has made the timeline higher.
    pub room_px: RwSignal<f64>,
    /// Width of the time axis in CSS pixels.
    pub width: RwSignal<f64>,
    /// The number of requested pictures of the timeline.
    pub png_wanted: RwSignal<u32>,
    /// The newest plan question, and the newest whose answer is on screen.
    newest_asked: StoredValue<u32>,
    newest_shown: StoredValue<u32>,
    /// The chosen point of the chart, until its plan is known.
    chosen_point: StoredValue<Option<ChartPoint>>,
    /// Where a hand has dragged the memory limit to, until it is asked for, and when the last such question was asked.
    dragged_to: StoredValue<Option<u64>>,
    hand_asked_ms: StoredValue<f64>,
    /// Whether the question under way is that of a hand.
    by_hand: StoredValue<bool>,
    /// The open plan file, until the form changes. Exporting returns its text unchanged.
    open_plan_file: StoredValue<Option<Rc<str>>, LocalStorage>,
    /// Whether to save the plan file when the search ends.
    saves_when_found: StoredValue<bool>,
    /// The plan file or custom schedule that the worker reads.
    opening: StoredValue<Option<Opening>, LocalStorage>,
    /// The profile that the worker reads.
    opening_profile: StoredValue<Option<Opening>, LocalStorage>,
    /// How many files are being read by the page itself.
    reading: StoredValue<u32>,
    /// The sequence length that a `config.json` put into the form, and that of the model before.
    configured: StoredValue<Option<(String, u64)>>,
    /// Whether a plan or trace is stored for a reload.
    remembers: StoredValue<bool>,
    /// Tracks that arrived before their picture, and their question.
    early_tracks: StoredValue<(u32, Vec<Track>)>,
    /// The question of the calibration that runs or is shown.
    calibration_question: StoredValue<Option<u32>>,
    /// The question of the sensitivity.
    sensitivity_question: StoredValue<Option<u32>>,
    /// The question of the reports of compiler passes.
    passes_question: StoredValue<Option<u32>>,
    link_timer: StoredValue<u32>,
    /// The fragment of the address that the page knows.
    own_fragment: StoredValue<String>,
    /// The link of the kept plan's spec, if it is the plan of a form.
    kept_link: StoredValue<Option<String>>,
    /// What a link shows beside the form, until its plan is there.
    wanted_view: StoredValue<Option<Shown>>,
    /// When a person has last changed what is seen.
    seen_changed_ms: StoredValue<f64>,
    /// Whether the next link replaces the one in the address or adds an entry to the history.
    edits: StoredValue<Edits>,
    client: StoredValue<Option<Rc<WorkerClient>>, LocalStorage>,
    /// The worker of a proof under way.
    prover: StoredValue<Option<Worker>, LocalStorage>,
}

impl Planner {
    /// The state of a page that opens.
    pub fn new() -> Planner {
        let planner = Planner {
            form: RwSignal::new(Form::start()),
            form_open: RwSignal::new(false),
            faults: RwSignal::new(Vec::new()),
            spec: RwSignal::new(None),
            resolved: RwSignal::new((Form::default(), Value::Null)),
            scene: RwSignal::new(None),
            no_plan: RwSignal::new(None),
            no_plan_at: RwSignal::new(None),
            next_step: RwSignal::new(None),
            following: RwSignal::new(false),
            followed: StoredValue::new(None),
            may_raise: StoredValue::new(false),
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
            measuring: Measuring::new(),
            measured: RwSignal::new(None),
            calibrated: RwSignal::new(None),
            aligned: RwSignal::new(true),
            kept: RwSignal::new(None),
            busy: RwSignal::new(true),
            progress: RwSignal::new((0, 0)),
            searching: RwSignal::new(None),
            outdated: RwSignal::new(false),
            proof: RwSignal::new(Proof::default()),
            run: RwSignal::new(None),
            notice: RwSignal::new(None),
            view: RwSignal::new(View { start_ns: 0.0, ns_per_px: 1.0 }),
            selected: RwSignal::new(None),
            found: RwSignal::new(None),
            path_lit: RwSignal::new(false),
            ranking: RwSignal::new(Ranking::default()),
            carried_shown: RwSignal::new(false),
            playback: RwSignal::new(None),
            room_px: RwSignal::new(0.0),
            width: RwSignal::new(600.0),
            png_wanted: RwSignal::new(0),
            newest_asked: StoredValue::new(0),
            newest_shown: StoredValue::new(0),
            chosen_point: StoredValue::new(None),
            dragged_to: StoredValue::new(None),
            hand_asked_ms: StoredValue::new(f64::NEG_INFINITY),
            by_hand: StoredValue::new(false),
            open_plan_file: StoredValue::new_local(None),
            saves_when_found: StoredValue::new(false),
            opening: StoredValue::new_local(None),
            opening_profile: StoredValue::new_local(None),
            reading: StoredValue::new(0),
            configured: StoredValue::new(None),
            remembers: StoredValue::new(true),
            early_tracks: StoredValue::new((0, Vec::new())),
            calibration_question: StoredValue::new(None),
            sensitivity_question: StoredValue::new(None),
            passes_question: StoredValue::new(None),
            link_timer: StoredValue::new(0),
            own_fragment: StoredValue::new(String::new()),
            kept_link: StoredValue::new(None),
            wanted_view: StoredValue::new(None),
            seen_changed_ms: StoredValue::new(0.0),
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
        let of_runs = TraceClient::new(
            Rc::new(move |reply| planner.receive_run(reply)),
            Rc::new(move |reason| planner.run_failed(reason)),
        );
        planner.measuring.client.set_value(Some(of_runs));
        planner
    }
}

/// Whether the planner has a schedule of this name.
pub(super) fn is_schedule(name: &str) -> bool {
    name == BEST || pipeplan_core::schedule::find(name).is_some()
}

thread_local! {
    static REQUESTED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Runs `paint` of `what` once before the next frame, however often it is asked for.
pub fn once_a_frame(what: &'static str, paint: impl FnOnce() + 'static) {
    let is_first = REQUESTED.with_borrow_mut(|requested| requested.insert(what));
    if is_first {
        browser::next_frame(move || {
            REQUESTED.with_borrow_mut(|requested| requested.remove(what));
            paint();
        });
    }
}
