//! What the page knows, as signals, and what happens to it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;
use pipeplan_core::formats::megatron_run::MegatronRun;
use pipeplan_core::formats::svg;
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::hf_config;
use pipeplan_core::notation::order;
use pipeplan_core::plan::planner::BEST;
use pipeplan_core::simulate::timeline::Timeline;
use pipeplan_core::spec::link;
use pipeplan_core::spec::{Spec, Work};
use serde_json::{Value, json};
use web_sys::Worker;

use super::browser;
use super::courier::Courier;
use super::figures::PROOF;
use super::prover;
use super::session::{self, Item};
use crate::compared::Compared;
use crate::draw::chart::{Chart, OF_POINT};
use crate::draw::lane::Lane;
use crate::draw::view::{Extent, View};
use crate::edits::Edits;
use crate::form::{Form, Kind, limit_text};
use crate::frontier::{FROM_CHART, same_chart};
use crate::kept;
use crate::message::{
    Ask, Calibrated, ChartPoint, FieldFault, Layouts, Order, Purpose, Reply, Row, RowCosts, Said, Sensed, Shorter,
    Timed, TraceSummary, Unfit,
};
use crate::proof::{Proof, State};
use crate::scene::{Below, MeasuredScene, Scene, lanes_of, subject};
use crate::text;
use crate::tuned;

/// How long the form rests before its link stands in the address: browsers slow pages down that change it
/// with every movement of a slider.
const LINK_AFTER_MS: i32 = 200;

/// What is said where a plan file is wanted before it is known.
const SAVED_LATER: &str = "The plan file is saved as soon as the search has ended.";
/// Tokens of a sequence where nothing has said how many.
const USUAL_SEQUENCE: u64 = 4096;
/// Pixels of a saved drawing: a page of paper.
const SVG_WIDTH: u32 = 1200;

/// A sentence above the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Whether something went wrong.
    pub wrong: bool,
    /// What to say.
    pub lines: Vec<String>,
}

/// A file on its way to the page.
#[derive(Clone)]
struct Opening {
    text: Rc<str>,
    /// What the file is called; empty where no file of a person's own brought it.
    name: Rc<str>,
    from: Origin,
}

/// Where a file comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A person opened it: loading the page anew must not lose it.
    Person,
    /// The address names it, or the browser remembered it.
    Address,
}

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
    pub sensed: RwSignal<Option<Sensed>>,
    /// Whether that is shown.
    pub sensing_open: RwSignal<bool>,
    /// What the passes did to the plan on screen, as far as it has been asked for.
    pub passes: RwSignal<String>,
    /// Whether that was said of a plan before it.
    pub passes_before: RwSignal<bool>,
    /// Whether it is shown.
    pub passes_open: RwSignal<bool>,
    /// Time against memory, as far as it is known.
    pub chart: RwSignal<Chart>,
    /// What that is of; none where it is of a form that has been overtaken.
    charted: RwSignal<Option<Arc<Spec>>>,
    /// On how many devices layouts are looked for; on those that the form has where it is empty.
    pub layout_devices: RwSignal<String>,
    /// The fastest layouts, as far as they were looked for.
    pub layouts: RwSignal<Option<Arc<Layouts>>>,
    /// Why they were not.
    pub not_tuned: RwSignal<Vec<String>>,
    /// What they were looked for; none where times have changed since.
    tuned_for: RwSignal<Option<Arc<Spec>>>,
    /// The comparison, as far as it has come.
    pub rows: RwSignal<Vec<Row>>,
    /// What those rows are of.
    pub compared: RwSignal<Compared>,
    /// Measured times that all is planned with.
    pub timed: RwSignal<Option<Timed>>,
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
    asked: StoredValue<u32>,
    shown: StoredValue<u32>,
    /// The point of the chart that was chosen, until what comes of it is known.
    promised: StoredValue<Option<ChartPoint>>,
    /// The plan file that is open, as long as nothing in the form has changed since: exporting gives it back as it
    /// is, whoever wrote it.
    opened: StoredValue<Option<Rc<str>>, LocalStorage>,
    /// Whether the plan file is to be saved when the search for the plan has ended.
    saves_later: StoredValue<bool>,
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
    /// Lanes sent ahead of their picture, and the question that they belong to.
    ahead: StoredValue<(u32, Vec<Lane>)>,
    /// The question of where time went that is under way, or whose answer is shown.
    calibrating: StoredValue<Option<u32>>,
    /// The question after what the plan's time hangs on.
    sensing: StoredValue<Option<u32>>,
    /// The question after what the passes did.
    passing: StoredValue<Option<u32>>,
    /// Of files that are opened together.
    batch: StoredValue<u32>,
    link_timer: StoredValue<u32>,
    /// What stands after `#`, as far as the page knows.
    own_fragment: StoredValue<String>,
    /// Whether the next link takes the place of the one in the address or comes after it, so that going back leads to what
    /// was there before.
    edits: StoredValue<Edits>,
    courier: StoredValue<Option<Rc<Courier>>, LocalStorage>,
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
            sensed: RwSignal::new(None),
            sensing_open: RwSignal::new(false),
            passes: RwSignal::new(String::new()),
            passes_before: RwSignal::new(false),
            passes_open: RwSignal::new(false),
            chart: RwSignal::new(Chart::default()),
            charted: RwSignal::new(None),
            layout_devices: RwSignal::new(String::new()),
            layouts: RwSignal::new(None),
            tuned_for: RwSignal::new(None),
            not_tuned: RwSignal::new(Vec::new()),
            rows: RwSignal::new(Vec::new()),
            compared: RwSignal::new(Compared::default()),
            timed: RwSignal::new(None),
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
            asked: StoredValue::new(0),
            shown: StoredValue::new(0),
            promised: StoredValue::new(None),
            opened: StoredValue::new_local(None),
            saves_later: StoredValue::new(false),
            opening: StoredValue::new_local(None),
            opening_trace: StoredValue::new_local(None),
            opening_profile: StoredValue::new_local(None),
            configured: StoredValue::new(None),
            remembers: StoredValue::new(true),
            ahead: StoredValue::new((0, Vec::new())),
            calibrating: StoredValue::new(None),
            sensing: StoredValue::new(None),
            passing: StoredValue::new(None),
            batch: StoredValue::new(0),
            link_timer: StoredValue::new(0),
            own_fragment: StoredValue::new(String::new()),
            edits: StoredValue::new(Edits::default()),
            courier: StoredValue::new_local(None),
            prover: StoredValue::new_local(None),
        };
        let courier = Courier::start(
            Rc::new(move |reply| planner.hear(reply)),
            Rc::new(move |reason| {
                planner.busy.set(false);
                planner.complain(vec![reason]);
            }),
        );
        planner.courier.set_value(Some(courier));
        planner
    }

    /// Opens what was open before the page was loaded anew, or else what the address asks for: a link's spec, files
    /// beside the page, or the example.
    pub fn open_address(self) {
        self.notice.set(None);
        // Before anything is planned.
        if let Some(profile) = session::recall(Item::Profile, "") {
            self.ask(Ask::Measure { profile: Some(profile) }, false);
        }
        let fragment = browser::fragment();
        let open_plan = session::recall(Item::Plan, &fragment);
        let plan = browser::query("plan").filter(|_| fragment.is_empty() && open_plan.is_none());
        if let Some(text) = open_plan {
            // Should the plan not be readable any more, the form is planned.
            if let Ok(spec) = link::read(&fragment) {
                self.form.update(|form| form.open(&spec));
            }
            self.own_fragment.set_value(fragment);
            self.open_file("", &text, Origin::Address);
        } else if !fragment.is_empty() {
            self.open_link(&fragment);
        } else if plan.is_none() {
            self.plan_opened();
        }
        if let Some(text) = session::recall(Item::Unlinked, "") {
            self.form.update(|form| form.recall_unlinked(&text));
            self.read_form();
        }
        if let Some(text) = session::recall(Item::Kept, "") {
            self.ask(Ask::OpenKept { text }, false);
        }
        let open_trace = session::recall(Item::Trace, "");
        let trace = browser::query("trace").filter(|_| open_trace.is_none());
        if let Some(text) = open_trace {
            self.open_file("", &text, Origin::Address);
        }
        leptos::task::spawn_local(async move {
            for address in [plan.clone(), trace].into_iter().flatten() {
                match browser::fetch_text(&address).await {
                    Ok(text) => self.open_file(&address, &text, Origin::Address),
                    Err(reason) => {
                        self.complain_too(vec![text::sentence(&reason)]);
                        if plan.as_ref() == Some(&address) {
                            self.plan_opened();
                        }
                    }
                }
            }
        });
    }

    /// Opens the spec of a link. A damaged one leaves the form as it is and says which part is wrong.
    pub fn open_link(self, fragment: &str) {
        self.own_fragment.set_value(fragment.to_owned());
        match link::read(fragment) {
            Ok(spec) => {
                self.notice.set(None);
                self.form.update(|form| form.open(&spec));
            }
            Err(error) => {
                self.complain(vec![
                    text::sentence(&format!("This link cannot be opened ({}): {error}", error.part())),
                    "The form is not from the link.".to_owned(),
                ]);
            }
        }
        self.plan_opened();
    }

    /// The address has got another fragment, not by us.
    pub fn fragment_changed(self) {
        let fragment = browser::fragment();
        if fragment == self.own_fragment.get_value() {
            return;
        }
        if fragment.is_empty() {
            // Back where the page began, with files beside it.
            self.own_fragment.set_value(fragment);
            self.open_address();
        } else {
            self.open_link(&fragment);
        }
    }

    /// Sets a field and plans anew.
    pub fn change(self, path: &str, text: impl Into<String>) {
        self.change_with(|form| form.set(path, text));
    }

    /// Changes the form as a whole and plans anew.
    pub fn change_with(self, change: impl FnOnce(&mut Form)) {
        self.form.update(change);
        self.plan();
    }

    /// Changes the form by what is typed, or dragged, in the field `path`, and plans anew.
    pub fn type_in(self, path: &'static str, change: impl FnOnce(&mut Form)) {
        self.form.update(change);
        self.edits.update_value(|edits| edits.typed(path));
        self.plan_form();
    }

    /// The field is left, or Enter pressed in it.
    pub fn typed(self) {
        self.edits.update_value(Edits::ended);
    }

    /// Asks for the best schedule within the memory of a point of the chart: no slower than the point.
    pub fn take_point(self, point: ChartPoint) {
        self.unsay(|line| line.starts_with(OF_POINT));
        self.change_with(|form| {
            let path = form.limit_path();
            form.set(path, limit_text(path, point.bytes));
            form.set("schedule", BEST);
        });
        self.promised.set_value(Some(point));
    }

    /// All that was asked for is known.
    fn answered(self) {
        self.searching.set(None);
        if !self.keep_promise() {
            self.busy.set(false);
            self.outdated.set(false);
            if self.stop_saving_later() {
                self.export();
            }
        }
    }

    /// Whether the plan file was to be saved; it is no longer.
    fn stop_saving_later(self) -> bool {
        let wanted = self.saves_later.get_value();
        if wanted {
            self.saves_later.set_value(false);
            self.unsay(|line| line == SAVED_LATER);
        }
        wanted
    }

    /// Opens the order behind the point that was chosen, where the best within its memory has turned out worse: the chart
    /// comes to a limit from less memory, and may find what the search for one limit does not. Whether there was reason to.
    fn keep_promise(self) -> bool {
        let Some(point) = self.promised.try_update_value(Option::take).flatten() else { return false };
        let shown = self.scene.with_untracked(|scene| scene.as_ref().map(|scene| scene.figures.judged_ns));
        let below_ns = shown.unwrap_or(u64::MAX);
        // What reads the same is as good.
        if text::is_less(point.judged_ns, below_ns)
            && let Some(spec) = self.read_form()
        {
            self.ask(Ask::OpenPoint { spec, bytes: point.bytes, below_ns }, true);
            return true;
        }
        false
    }

    /// Reads the form; plans it if it is without faults, else shows them.
    pub fn plan(self) {
        self.edits.update_value(Edits::other);
        self.plan_form();
    }

    /// Plans the form that the page opens with.
    fn plan_opened(self) {
        self.edits.update_value(Edits::opened);
        self.plan_form();
    }

    fn plan_form(self) {
        self.promised.set_value(None);
        self.searching.set(None);
        self.opened.set_value(None);
        // It was to be of the form before.
        self.stop_saving_later();
        self.unsay(|line| line.starts_with(OF_POINT));
        let is_own = |row: &&Row| !is_schedule(&row.schedule);
        let own = self.rows.with_untracked(|rows| rows.iter().find(is_own).map(|row| row.schedule.clone()));
        if let Some(own) = own {
            // What was said of an order from elsewhere goes with it.
            self.rows.update(|rows| rows.retain(|row| is_schedule(&row.schedule)));
            self.notice.update(|notice| *notice = notice.take().filter(|notice| notice.wrong));
            // A point of the chart is a click away.
            if own != FROM_CHART {
                self.say(&format!(
                    "The order of ops that was open ({own}) is no longer shown: the form has changed. Open its file \
                     to see it again."
                ));
            }
        }
        if self.remembers.get_value() {
            self.remembers.set_value(false);
            session::forget(Item::Plan);
        }
        self.forget_proof();
        match self.read_form() {
            Some(text) => {
                // The newer wish counts: a file that is still being read would else bring a form that is not what is planned.
                if self.opening.try_update_value(Option::take).flatten().is_some() {
                    self.say("What was being opened is not shown: the form has changed meanwhile.");
                }
                self.busy.set(true);
                self.outdated.set(true);
                self.ask(Ask::Plan { spec: text }, true);
                self.write_link_later();
            }
            None => {
                self.busy.set(false);
                self.forget_advice();
            }
        }
    }

    /// Reads the form without planning it. The JSON of its spec where it has no faults.
    fn read_form(self) -> Option<String> {
        match self.form.with_untracked(Form::read) {
            Ok(spec) => {
                self.faults.set(Vec::new());
                self.resolved.set((self.form.get_untracked(), spec.to_value()));
                self.spec.set(Some(Arc::new(spec)));
                Some(self.form.with_untracked(Form::to_value).to_string())
            }
            Err(faults) => {
                self.faults.set(faults);
                None
            }
        }
    }

    /// Asks the worker. The question's number, where there is a worker.
    fn ask(self, ask: Ask, newest: bool) -> Option<u32> {
        let id = self.courier.with_value(|courier| courier.as_ref().map(|courier| courier.ask(ask)));
        if let (Some(id), true) = (id, newest) {
            self.asked.set_value(id);
        }
        id
    }

    /// What would help was of another plan.
    fn forget_advice(self) {
        self.unfit.set(None);
        self.shorter.set(None);
    }

    /// What was said of where time went no longer holds.
    fn forget_calibration(self) {
        self.calibrated.set(None);
        self.calibrating.set_value(None);
    }

    fn hear(self, reply: Reply) {
        let Reply { id, said } = reply;
        let stale = id < self.shown.get_value();
        let newest = id >= self.asked.get_value();
        match said {
            Said::Rows(rows) => self.ahead.update_value(|(of, lanes)| {
                if *of != id {
                    (*of, *lanes) = (id, Vec::new());
                }
                lanes.extend(lanes_of(&rows));
            }),
            Said::Planned(picture) if !stale => {
                self.shown.set_value(id);
                self.show(Scene::of(*picture, self.take_ahead(id)).map(Arc::new));
            }
            Said::NoPlan { schedule, reason, .. } if schedule.is_empty() => self.complain(vec![reason]),
            Said::NoPlan { reason, fault, .. } if !stale => {
                self.shown.set_value(id);
                self.no_plan.set(Some(reason));
                self.no_plan_at.set(fault.map(|fault| Fault::new(fault.field, fault.found, fault.accepted)));
                self.forget_advice();
                self.show(None);
            }
            Said::Passes(text) if self.passing.get_value() == Some(id) => {
                self.passes.set(text);
                self.passes_before.set(false);
            }
            // Of a plan before the one on screen nothing is shown.
            Said::Sensed(found) if self.sensing.get_value() == Some(id) => self.sensed.set(Some(found)),
            Said::Sensed(_) => {}
            Said::Tuned(layouts) => self.layouts.set(Some(Arc::new(*layouts))),
            Said::NotTuned(faults) => {
                self.layouts.set(None);
                self.not_tuned.set(sentences(&faults));
            }
            Said::Shorter(shorter) if newest && untrack(|| !self.is_faulty()) => {
                self.shorter.set(Some(Arc::new(*shorter)));
            }
            Said::Unfit(unfit) if newest && untrack(|| !self.is_faulty()) => self.unfit.set(Some(Arc::new(*unfit))),
            // In order, whatever question it answers: there is one chart, and it says when it starts anew.
            Said::Charted(news) => {
                if news.started {
                    self.charted.set(if newest { self.spec.get_untracked() } else { None });
                }
                self.chart.update(|chart| chart.hear(news));
            }
            Said::NoPoint { reason } if newest => self.say(&reason),
            Said::Refused(faults) if newest => {
                self.no_plan.set(Some(sentences(&faults).join(" ")));
                self.no_plan_at.set(None);
                self.forget_advice();
                self.show(None);
            }
            Said::Comparing { rows } => {
                self.progress.set((0, rows));
                let of = if newest { self.spec.get_untracked() } else { None };
                let known = self.rows.with_untracked(|rows| {
                    rows.iter().map(|row| row.schedule.clone()).filter(|name| is_schedule(name)).collect::<Vec<_>>()
                });
                self.compared.update(|compared| compared.begin(of, known.into_iter()));
            }
            Said::Compared(row) if !stale => {
                self.progress.update(|(done, _)| *done += 1);
                self.compared.update(|compared| compared.come(&row.schedule));
                self.rows.update(|rows| put_row(rows, row));
            }
            Said::Searching { cost_ns, bound_ns } if newest => self.searching.set(Some((cost_ns, bound_ns))),
            Said::Done if newest => {
                self.compared.update(|compared| compared.end(self.spec.get_untracked()));
                self.answered();
            }
            Said::Exported { text, purpose: Purpose::Download } => {
                browser::download(&self.file_name("plan.json"), "application/json", &text)
            }
            Said::Exported { text, purpose: Purpose::Proof } => self.start_prover(&text),
            Said::Exported { text, purpose: Purpose::Keep } if self.kept.with_untracked(Option::is_some) => {
                self.remember(Item::Kept, "", &text);
            }
            Said::KeptOpened { picture } if self.kept.with_untracked(Option::is_none) => {
                let before = self.extent();
                self.kept.set(Scene::of(*picture, self.take_ahead(id)).map(Arc::new));
                self.carry_view(before);
            }
            // Of a file that was opened before a change of the form, which has the plan that it asked for.
            Said::Opened { spec, picture } if newest => {
                self.opened(id, &spec, Scene::of(*picture, self.take_ahead(id)))
            }
            Said::Ordered { plan } if newest => {
                let name = self.opening.with_value(|opening| opening.as_ref().map(|opening| opening.name.clone()));
                self.open_file(&name.unwrap_or_default(), &plan, Origin::Person);
            }
            Said::Traced { trace } => self.open_file("", &trace, Origin::Person),
            Said::NotTraced(faults) => {
                let what = "What torch recorded is no run of the plan that is shown.".to_owned();
                self.complain_too([vec![what], sentences(&faults)].concat());
            }
            Said::Timed(timed) => {
                let opened = self.opening_profile.try_update_value(Option::take).flatten();
                if let (Some(Opening { text, .. }), true) = (opened, timed.is_some()) {
                    self.remember(Item::Profile, "", &text);
                }
                self.timed.set(timed);
            }
            Said::TraceOpened(summary) => {
                let opening = self.opening_trace.try_update_value(Option::take).flatten();
                if let Some(Opening { text, from: Origin::Person, .. }) = opening {
                    self.remember(Item::Trace, "", &text);
                }
                self.forget_calibration();
                self.trace.set(Some(summary));
            }
            Said::TraceShown(measured) => {
                let before = self.extent();
                self.measured.set(Some(Arc::new(MeasuredScene::of(*measured, self.take_ahead(id)))));
                self.carry_view(before);
            }
            // Of the plan on screen, and not of one before it.
            Said::Calibrated(found) if self.calibrating.get_value() == Some(id) => {
                self.calibrated.set(Some(Ok(*found)));
            }
            Said::NotCalibrated(faults) if self.calibrating.get_value() == Some(id) => {
                self.calibrated.set(Some(Err(sentences(&faults))));
            }
            Said::Unreadable { what, faults } => {
                // What is told of later is not of this file.
                let opening = match what.as_str() {
                    "profile" => self.opening_profile.try_update_value(Option::take),
                    "trace" => self.opening_trace.try_update_value(Option::take),
                    _ if newest => self.opening.try_update_value(Option::take),
                    _ => None,
                };
                let name = opening.flatten().map(|opening| opening.name).unwrap_or_default();
                let mut lines = vec![of_file(&name, &format!("This {what} file cannot be opened."))];
                let said = sentences(&faults);
                lines.extend(
                    said.iter().flat_map(|said| said.lines()).map(|line| text::sentence(&text::on_page(line))),
                );
                self.complain_too(lines);
                if newest {
                    self.busy.set(false);
                }
                if self.spec.with_untracked(Option::is_none) {
                    self.plan_opened();
                }
            }
            _ => {}
        }
    }

    /// The lanes that were sent ahead of the picture that answers question `id`.
    fn take_ahead(self, id: u32) -> Vec<Lane> {
        let (of, lanes) = self.ahead.try_update_value(core::mem::take).unwrap_or_default();
        if of == id { lanes } else { Vec::new() }
    }

    fn opened(self, id: u32, spec: &str, scene: Option<Scene>) {
        if let Ok(spec) = Spec::read(spec) {
            let mut form = self.form.get_untracked();
            form.open(&spec);
            // The file may hold another schedule than its spec asks for; the form names what is shown, where the planner
            // knows that name.
            if let Some(scene) = scene.as_ref().filter(|scene| is_schedule(&scene.schedule)) {
                form.set("schedule", scene.schedule.clone());
            }
            self.form.set(form);
            self.read_form();
        }
        let opening = self.opening.try_update_value(Option::take).flatten();
        self.opened.set_value(opening.as_ref().map(|opening| opening.text.clone()));
        let better = self.proof.with_untracked(|proof| proof.better.clone());
        let found = better.is_some_and(|better| self.shows_file(&better));
        if let (Some(Opening { text, from: Origin::Person, .. }), Some(link)) = (opening, self.link()) {
            // It is known again by its form's link, which stands in the address from now on.
            self.remember(Item::Plan, &link, &text);
            self.edits.update_value(Edits::other);
            self.write_link_later();
        }
        self.remembers.set_value(true);
        self.shown.set_value(id);
        let own = scene.as_ref().filter(|scene| !is_schedule(&scene.schedule));
        self.rows.update(|rows| {
            rows.retain(|row| is_schedule(&row.schedule));
            // Where the best is none, it is the first to be looked at.
            let source = match own.map(|scene| scene.schedule.as_str()) {
                _ if found => "Found by the exact search that was asked for",
                Some(FROM_CHART) => "The order behind the point of the chart that was chosen",
                _ => "The order of the file that was opened",
            };
            own.into_iter().for_each(|scene| rows.insert(0, own_row(scene, source)));
        });
        match own.map(|scene| scene.schedule.as_str()) {
            Some(_) if found => self.say("The exact search has found this order of ops. A change of the form plans anew, without it: Export plan saves it."),
            Some(FROM_CHART) => self.say(
                "This is the order behind the point of the chart: the search for the best within this limit has found a \
                 slower one. A change of the form, and the link, plan anew, without it; Export plan saves it.",
            ),
            Some(_) => self.say("This order of ops is the file's own. A change of the form plans anew, without it."),
            None => {}
        }
        self.show(scene.map(Arc::new));
    }

    fn show(self, scene: Option<Arc<Scene>>) {
        let before = self.extent();
        if self.shown.get_value() == self.asked.get_value() {
            self.outdated.set(false);
            // Whatever is answered, the worker's chart is of the same spec by then.
            self.charted.set(self.spec.get_untracked());
        }
        if scene.is_some() {
            self.no_plan.set(None);
            self.no_plan_at.set(None);
            self.forget_advice();
        }
        self.scene.set(scene);
        self.forget_calibration();
        self.carry_view(before);
        self.ask_passes();
        self.ask_sensitivity();
    }

    /// Asks what the time of the plan on screen hangs on, where that is shown.
    pub fn ask_sensitivity(self) {
        let order = if self.sensing_open.get_untracked() { self.shown_order() } else { None };
        self.sensed.set(None);
        if order.is_some() || self.sensing.get_value().is_some() {
            let asked = order.is_some();
            let id = self.ask(Ask::Sense(order), false);
            self.sensing.set_value(id.filter(|_| asked));
        }
    }

    /// Asks what the passes did to the plan on screen, where that is shown.
    pub fn ask_passes(self) {
        if self.passes_open.get_untracked() && self.faults.with_untracked(Vec::is_empty) {
            let spec = self.form.with_untracked(Form::to_value).to_string();
            self.passes_before.set(true);
            self.passing.set_value(self.ask(Ask::Passes { spec }, false));
        }
    }

    /// Devices of the form's model; none for typed costs, which have no layouts.
    pub fn devices(self) -> Option<u64> {
        self.spec.with(|spec| match spec.as_ref().map(|spec| &spec.work) {
            Some(Work::Model(work)) => Some(work.devices()),
            _ => None,
        })
    }

    /// Whether another layout may have a plan where the form's has none: no field is to blame.
    pub fn may_find_layouts(self) -> bool {
        self.devices().is_some() && self.no_plan_at.with(Option::is_none) && !self.is_faulty()
    }

    /// Whether layouts of this form are being looked for.
    pub fn is_tuning(self) -> bool {
        let runs = |layouts: &Option<Arc<Layouts>>| layouts.as_ref().is_some_and(|layouts| !layouts.finished);
        self.layouts.with(runs) && !self.layouts_are_stale()
    }

    /// Looks for the fastest layouts of the form's model.
    pub fn tune(self) {
        self.layouts.set(None);
        self.tuned_for.set(None);
        self.not_tuned.set(Vec::new());
        let typed = self.layout_devices.get_untracked();
        let devices = typed.trim();
        let number = devices.parse::<u64>();
        match (number, self.read_form()) {
            (Err(_), _) if !devices.is_empty() => {
                self.not_tuned.set(vec![format!("devices: found {devices}, accepted is a whole number.")]);
            }
            (_, None) => self.not_tuned.set(vec!["The form has faults.".to_owned()]),
            (number, spec) => {
                self.tuned_for.set(self.spec.get_untracked());
                self.ask(Ask::Tune { spec, devices: number.ok() }, false);
            }
        }
    }

    /// Whether the layouts that were found are of another form than the one that is there.
    pub fn layouts_are_stale(self) -> bool {
        let are_of = |layouts: &Layouts| {
            let (asked, spec) = (self.tuned_for.get(), self.spec.get());
            asked.zip(spec).is_some_and(|(asked, spec)| tuned::are_of(layouts, &asked, &spec))
        };
        self.layouts.with(|layouts| layouts.as_ref().is_some_and(|layouts| !are_of(layouts)))
    }

    /// Ends the search for the best with what it has found.
    pub fn stop_searching(self) {
        self.courier.with_value(|courier| courier.iter().for_each(Courier::stop));
    }

    /// Ends the search for layouts with what it has found.
    pub fn stop_tuning(self) {
        self.ask(Ask::Tune { spec: None, devices: None }, false);
    }

    /// Puts a layout into the form.
    pub fn take_layout(self, spec: &str) {
        if let Ok(spec) = Spec::read(spec) {
            self.change_with(|form| form.open(&spec));
        }
    }

    /// All that is shown together.
    pub fn extent(self) -> Extent {
        let planned = self.scene.with_untracked(|scene| scene.as_ref().map_or(0, |scene| scene.end_ns()));
        let below = untrack(|| self.below());
        let scaled = |below: Below| below.end_ns() as f64 * below.scale(planned, self.aligned.get_untracked());
        let whole_ns = below.map_or(0.0, scaled).max(planned as f64);
        Extent { whole_ns, width_px: self.width.get_untracked() }
    }

    /// Keeps the view over a change of what is shown.
    pub fn carry_view(self, before: Extent) {
        let now = self.extent();
        self.view.update(|view| *view = view.carried(before, now));
    }

    /// What stands under the plan: a measured step before a plan that was kept.
    pub fn below(self) -> Option<Below> {
        let kept = || self.kept.get().filter(|_| self.kept_unseen().is_none()).map(Below::Kept);
        self.measured.get().map(Below::Measured).or_else(kept)
    }

    /// Why the plan that is kept is not drawn; none where it is, or nothing is kept.
    pub fn kept_unseen(self) -> Option<String> {
        let kept = self.kept.get()?;
        let trace_is_open = self.measured.with(Option::is_some);
        self.scene.with(|shown| kept::why_not_drawn(&kept, shown.as_deref(), trace_is_open))
    }

    /// Keeps the plan on screen to be compared with others, or lets go of the one that is kept.
    pub fn keep(self, keep: bool) {
        let before = self.extent();
        if keep {
            self.kept.set(self.scene.get_untracked());
            if let Some(text) = self.opened.get_value() {
                self.remember(Item::Kept, "", &text);
            } else if let (false, Some(spec)) = (self.outdated.get_untracked(), self.read_form()) {
                self.ask(Ask::Export { spec, purpose: Purpose::Keep }, false);
            }
        } else {
            self.kept.set(None);
            session::forget(Item::Kept);
        }
        self.carry_view(before);
    }

    /// Draws the measured step as long as the plan, or in its own time.
    pub fn set_aligned(self, aligned: bool) {
        let before = self.extent();
        self.aligned.set(aligned);
        self.carry_view(before);
    }

    /// Shows another step of the trace.
    pub fn show_trace_step(self, index: u32) {
        self.ask(Ask::TraceStep { index }, false);
    }

    /// Holds the open trace against the plan on screen, or shows that no longer.
    pub fn calibrate(self) {
        if self.calibrated.with_untracked(Option::is_some) {
            return self.forget_calibration();
        }
        let Some(order) = self.shown_order() else { return };
        self.calibrating.set_value(self.ask(Ask::Calibrate(order), false));
    }

    /// The order of the plan on screen.
    fn shown_order(self) -> Option<Order> {
        let scene = self.scene.get_untracked()?;
        let problem = scene.problem.statement().to_value().to_string();
        let (rows, pairs) = scene.order();
        Some(Order { problem, rows, pairs })
    }

    /// A number for files that are opened together: what is said from now on is of them, and stays until all are open.
    pub fn next_batch(self) -> u32 {
        self.notice.set(None);
        self.batch.update_value(|batch| *batch += 1);
        self.batch.get_value()
    }

    /// Whether what is shown is the plan file with this text.
    pub fn shows_file(self, text: &str) -> bool {
        self.opened.with_value(|opened| opened.as_deref() == Some(text))
    }

    /// Whether a file is being read.
    pub fn is_opening(self) -> bool {
        let reads = |opening: StoredValue<Option<Opening>, LocalStorage>| opening.with_value(Option::is_some);
        self.busy.get_untracked() && reads(self.opening) || reads(self.opening_trace) || reads(self.opening_profile)
    }

    /// Takes in what torch recorded of a rank.
    pub fn record(self, batch: u32, name: String, text: String) {
        self.ask(Ask::Record { batch, name, text }, false);
    }

    /// Opens the trace of what torch recorded, which is to be of the plan on screen.
    pub fn trace_recorded(self, batch: u32) {
        match self.shown_order() {
            Some(order) => {
                self.ask(Ask::Trace { batch, order }, false);
            }
            None => {
                self.complain_too(vec!["There is no plan that this could be a run of: open that first.".to_owned()])
            }
        }
    }

    /// Plans `problem`, a problem file's text, with the schedule that the form has, where ops differ by `jitter_permille` or as
    /// the form says.
    pub fn plan_measured(self, problem: &str, jitter_permille: Option<u16>) {
        let Ok(problem) = serde_json::from_str::<Value>(problem) else { return };
        let (name, schedule, said) = self
            .spec
            .with_untracked(|spec| {
                spec.as_ref().map(|spec| (spec.name.clone(), spec.schedule.clone(), spec.jitter_permille))
            })
            .unwrap_or_default();
        let jitter_permille = jitter_permille.unwrap_or(said);
        let mut spec = json!({ "name": name, "problem": problem, "jitter_permille": jitter_permille });
        if is_schedule(&schedule) {
            spec["schedule"] = json!(schedule);
        }
        self.open_text(&spec.to_string());
    }

    /// Whether the open trace is known to be of another plan than the one that was opened.
    pub fn trace_of_another_plan(self) -> bool {
        let digest =
            self.trace.with(|trace| trace.as_ref().map(|trace| trace.plan_digest.clone())).unwrap_or_default();
        let other = |text: &Option<Rc<str>>| text.as_ref().is_some_and(|text| !text.contains(&digest));
        // Asks for the scene so that the answer follows what is shown.
        self.scene.with(Option::is_some) && !digest.is_empty() && self.opened.with_value(other)
    }

    /// What the open trace has measured of each rank's memory; nothing where it is of another plan than the one on screen.
    pub fn measured_peaks(self) -> Vec<u64> {
        if self.trace_of_another_plan() {
            return Vec::new();
        }
        let peaks = self.trace.with(|trace| trace.as_ref().map(|trace| trace.peak_bytes.clone()));
        let of_plan = |measured: &MeasuredScene| {
            self.scene.with(|scene| measured.peaks_beside(scene.as_ref()?, peaks.unwrap_or_default()))
        };
        self.measured.with(|measured| measured.as_deref().and_then(of_plan)).unwrap_or_default()
    }

    /// Plans with the times of this profile, or with estimates.
    pub fn measure(self, profile: Option<&str>) {
        if profile.is_none() {
            session::forget(Item::Profile);
        }
        // Layouts were found with other times.
        self.tuned_for.set(None);
        self.ask(Ask::Measure { profile: profile.map(str::to_owned) }, false);
        self.plan();
    }

    /// Closes the trace.
    pub fn close_trace(self) {
        let before = self.extent();
        self.trace.set(None);
        self.measured.set(None);
        self.forget_calibration();
        session::forget(Item::Trace);
        self.carry_view(before);
    }

    /// Opens what the page itself has brought forth.
    fn open_text(self, text: &str) {
        self.notice.set(None);
        self.open_file("", text, Origin::Person);
    }

    /// Opens the text of the file `name`, which a person has chosen: a plan, a trace, an order of ops, or a spec.
    pub fn open_named(self, name: &str, text: &str) {
        self.open_file(name, text, Origin::Person);
    }

    fn open_file(self, name: &str, text: &str, from: Origin) {
        let opening = || Opening { text: text.into(), name: name.into(), from };
        // A file says what it is in its `format`; one that says nothing may be a spec.
        let says = |format: &str| text.contains(&format!("\"{format}\""));
        if says("pipeplan-trace") {
            self.opening_trace.set_value(Some(opening()));
            self.ask(Ask::OpenTrace { text: text.to_owned() }, false);
        } else if says("pipeplan-plan") {
            if self.proof.with_untracked(|proof| proof.better.as_deref() != Some(text)) {
                self.forget_proof();
            }
            self.busy.set(true);
            self.opening.set_value(Some(opening()));
            self.ask(Ask::OpenPlan { text: text.to_owned() }, true);
        } else if says("operators") && says("kernel") {
            self.opening_profile.set_value(Some(opening()));
            self.measure(Some(text));
        } else if order::looks_like_one(text) {
            let Some(spec) = self.read_form() else {
                let why = "The form has faults, so it says nothing of which costs this order is.";
                return self.complain_too(vec![of_file(name, why)]);
            };
            self.busy.set(true);
            self.opening.set_value(Some(opening()));
            self.ask(Ask::OpenOrder { spec, text: text.to_owned() }, true);
        } else if let Some(run) = Some(MegatronRun::read(text)).filter(MegatronRun::is_any) {
            self.open_run(name, &run);
        } else if let Some(config) = config_of(text) {
            self.open_config(name, config);
        } else {
            let mut form = self.form.get_untracked();
            match form.open_text(text) {
                Ok(()) => self.change_with(|before| *before = form),
                Err(error) => {
                    let mut lines = vec![of_file(name, &text::no_file(text, &error))];
                    lines.extend(error.to_string().lines().take(6).map(str::to_owned));
                    self.complain_too(lines);
                }
            }
        }
    }

    /// Puts what a run of Megatron-LM says of itself into the form, on the device that stands there, which no log names; and on
    /// as many, where it does not say that either.
    fn open_run(self, name: &str, run: &MegatronRun) {
        let (device, devices) = self.resolved.with_untracked(|(_, known)| {
            let device = known["cluster"]["device"]["name"].as_str().filter(|name| cluster::find(name).is_some());
            let work = Spec::from_value(known).ok().map(|spec| spec.work);
            let devices = work.and_then(|work| match work {
                Work::Model(work) => Some(work.devices()),
                Work::Typed(_) => None,
            });
            (device.unwrap_or("h100").to_owned(), devices)
        });
        match run.spec(&device, None).or_else(|_| run.spec(&device, devices)) {
            Ok(imported) => {
                self.change_with(|form| form.open(&imported.spec));
                let mut said = vec![format!(
                    "{name} is a run of Megatron-LM. It does not name its devices: planned on {device}."
                )];
                if let Some(step_ns) = run.typical_step_ns() {
                    said.push(format!("It measured {} a step.", text::duration(step_ns as f64)));
                }
                said.extend(imported.notes.iter().map(|note| text::sentence(note)));
                self.say(&said.join(" "));
            }
            Err(faults) => {
                let mut lines = vec![of_file(name, "It is of a run of Megatron-LM, and lacks something.")];
                lines.extend(faults.0.iter().take(6).map(|fault| text::sentence(&fault.to_string())));
                self.complain_too(lines);
            }
        }
    }

    /// Puts the model that a `config.json` describes into the form, and leaves the rest of it.
    fn open_config(self, name: &str, config: Value) {
        const SEQUENCE: &str = "training.sequence";
        let mut form = self.form.get_untracked();
        // What the file before has put there was typed by nobody.
        let before = self.configured.get_value().filter(|(text, _)| form.text(SEQUENCE) == text);
        if before.is_some() {
            form.set(SEQUENCE, "");
        }
        let is_typed = !form.text(SEQUENCE).is_empty();
        // The catalog's model said it, and stands in the form no more.
        let said = || self.resolved.with_untracked(|(_, known)| known["training"]["sequence"].as_u64());
        let wanted = before.map(|(_, wanted)| wanted).or_else(said).unwrap_or(USUAL_SEQUENCE);
        match Spec::from_value(&form.value_with(config, wanted)) {
            Ok(spec) => {
                self.change_with(|form| form.open(&spec));
                let put = self.form.with_untracked(|form| form.text(SEQUENCE).to_owned());
                self.configured.set_value((!is_typed).then_some((put, wanted)));
            }
            Err(faults) => {
                let why = "The model of this config.json cannot be planned with the rest of the form.";
                let mut lines = vec![of_file(name, why)];
                lines.extend(faults.0.iter().take(6).map(|fault| text::sentence(&fault.to_string())));
                self.complain_too(lines);
            }
        }
    }

    /// Downloads the plan file of the form; where that is still searched for, when it is found.
    pub fn export(self) {
        if let Some(text) = self.opened.get_value() {
            browser::download(&self.file_name("plan.json"), "application/json", &text);
        } else if self.busy.get_untracked() {
            self.saves_later.set_value(true);
            self.say(SAVED_LATER);
        } else if let Some(text) = self.read_form() {
            self.ask(Ask::Export { spec: text, purpose: Purpose::Download }, false);
        }
    }

    /// Downloads the timeline as a drawing.
    pub fn save_svg(self) {
        let Some(scene) = self.scene.get_untracked() else { return };
        let rows = scene.lanes.iter().map(|lane| lane.spans().to_vec()).collect();
        let title = format!("{} ({})", scene.headline(), untrack(|| self.subject()));
        let drawing = svg::draw(&Timeline { rows }, &title, SVG_WIDTH);
        browser::download(&self.file_name("timeline.svg"), "image/svg+xml", &drawing);
    }

    /// What the plan on screen is of, in a line.
    pub fn subject(self) -> String {
        match (self.spec.get(), self.scene.get()) {
            (Some(spec), Some(scene)) => subject(&spec, &scene),
            _ => String::new(),
        }
    }

    /// Downloads what is seen as a picture.
    pub fn save_png(self) {
        self.png_wanted.update(|wanted| *wanted += 1);
    }

    /// Searches exactly for a better plan than the one on screen, or for a proof that there is none.
    pub fn prove(self) {
        if let Some(text) = self.opened.get_value() {
            self.proof.set(Proof::begun());
            self.start_prover(&text);
        } else if let Some(text) = self.read_form() {
            self.proof.set(Proof::begun());
            self.ask(Ask::Export { spec: text, purpose: Purpose::Proof }, false);
        } else {
            self.complain(vec![
                "The form has faults, so there is nothing to prove. Mend the fields that are marked.".to_owned(),
            ]);
        }
    }

    fn start_prover(self, plan: &str) {
        // The form may have changed since the plan was asked for.
        if self.proof.with_untracked(|proof| proof.state != State::Running) {
            return;
        }
        match prover::start(self, plan) {
            Some(worker) => self.prover.set_value(Some(worker)),
            None => self.end_proof(State::Failed("this browser cannot start a worker".to_owned())),
        }
    }

    /// Ends the proof under way, and shows the better plan that it found.
    pub fn end_proof(self, state: State) {
        // What stops it goes with it.
        if browser::has_focus("[data-test='stop-proof']") {
            browser::focus(PROOF);
        }
        self.stop_prover();
        self.proof.update(|proof| proof.state = state);
        if let Some(better) = self.proof.with_untracked(|proof| proof.better.clone()) {
            self.open_text(&better);
        }
    }

    fn stop_prover(self) {
        if let Some(worker) = self.prover.try_update_value(Option::take).flatten() {
            worker.terminate();
        }
    }

    /// Another plan will be on screen: what was proved is not of it.
    fn forget_proof(self) {
        self.stop_prover();
        if self.proof.with_untracked(|proof| proof.state != State::None) {
            self.proof.set(Proof::default());
        }
    }

    /// The name of a file of the plan on screen, which ends like `plan.json`.
    pub fn file_name(self, end: &str) -> String {
        let name = self.form.with_untracked(|form| form.text("name").to_owned());
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let plain = plain.trim_matches('-').to_lowercase();
        if plain.is_empty() { end.to_owned() } else { format!("{plain}.{end}") }
    }

    /// Puts the link on the clipboard.
    pub fn copy_link(self) {
        if untrack(|| self.is_faulty()) {
            return self.complain(vec![
                "The form has faults, and no link holds those. Mend the fields that are marked, then copy it."
                    .to_owned(),
            ]);
        }
        let Some(link) = self.link() else { return };
        leptos::task::spawn_local(async move {
            let lines = if browser::copy(&browser::address_with(&link)).await {
                let mut lines = vec!["The link is on the clipboard. It holds the whole form.".to_owned()];
                if self.opened.with_value(Option::is_some) {
                    lines.push("The plan file that is open is not in it, nor its order of ops: whoever opens the link sees the form planned anew. Export plan saves the file.".to_owned());
                }
                if self.timed.with_untracked(Option::is_some) {
                    lines.push("Measured times are not in it: whoever opens it sees estimates.".to_owned());
                }
                lines
            } else {
                vec!["The browser does not let this page use the clipboard; copy the address instead.".to_owned()]
            };
            self.notice.set(Some(Notice { wrong: false, lines }));
        });
    }

    fn link(self) -> Option<String> {
        let spec = self.spec.get_untracked()?;
        Some(pipeplan_core::spec::link::write(&spec).trim_start_matches('#').to_owned())
    }

    fn write_link_later(self) {
        let turn = self.link_timer.get_value().wrapping_add(1);
        self.link_timer.set_value(turn);
        browser::after(LINK_AFTER_MS, move || {
            if self.link_timer.get_value() != turn {
                return;
            }
            self.remember_unlinked();
            let Some(link) = self.link() else { return };
            if link != self.own_fragment.get_value() {
                let same_entry = self.edits.try_update_value(Edits::write) == Some(true);
                browser::set_fragment(&link, same_entry);
                self.own_fragment.set_value(link);
            }
        });
    }

    /// Remembers what of the form the address does not say.
    fn remember_unlinked(self) {
        match self.form.with_untracked(Form::unlinked) {
            // As short as it is, it is not worth a word where the browser stores nothing.
            Some(text) => drop(session::remember(Item::Unlinked, "", &text)),
            None => session::forget(Item::Unlinked),
        }
    }

    /// Remembers a file for when the page is loaded anew, or says that it will not be there then.
    fn remember(self, item: Item, fragment: &str, text: &str) {
        if !session::remember(item, fragment, text) {
            self.say("This file is too large for the browser to remember: it is gone when the page is loaded anew.");
        }
    }

    /// Says something more that is no fault.
    fn say(self, line: &str) {
        self.notice.update(|notice| match notice {
            Some(Notice { lines, .. }) => {
                if !lines.iter().any(|said| said == line) {
                    lines.push(line.to_owned());
                }
            }
            None => *notice = Some(Notice { wrong: false, lines: vec![line.to_owned()] }),
        });
    }

    /// Takes back what was said.
    fn unsay(self, is_it: impl Fn(&str) -> bool) {
        if self
            .notice
            .with_untracked(|notice| notice.as_ref().is_some_and(|said| said.lines.iter().any(|line| is_it(line))))
        {
            self.notice.update(|notice| {
                *notice = notice.take().and_then(|Notice { wrong, mut lines }| {
                    lines.retain(|line| !is_it(line));
                    (!lines.is_empty()).then_some(Notice { wrong, lines })
                });
            });
        }
    }

    fn complain(self, lines: Vec<String>) {
        self.notice.set(Some(Notice { wrong: true, lines }));
    }

    /// Says what is wrong with one of several things, beside what was said of the others.
    fn complain_too(self, lines: Vec<String>) {
        let before = self.notice.get_untracked().map(|notice| notice.lines).unwrap_or_default();
        self.complain([before, lines].concat());
    }

    /// Says that a file is no text.
    pub fn say_unreadable(self, name: &str) {
        self.complain_too(vec![format!("{name} cannot be read as text.")]);
    }

    /// All that is wrong with fields: with the form, and with what no schedule could be made of.
    pub fn faults_of_fields(self) -> Vec<Fault> {
        self.faults.get().into_iter().chain(self.no_plan_at.get()).collect()
    }

    /// Whether the form has faults: what is shown is then of the form before them.
    pub fn is_faulty(self) -> bool {
        self.faults.with(|faults| !faults.is_empty())
    }

    /// Whether the chart is of another form than the one that is there: of another limit and schedule it is the same.
    pub fn chart_is_of_before(self) -> bool {
        let is_of_form = || {
            let (charted, spec) = (self.charted.get(), self.spec.get());
            charted.zip(spec).is_some_and(|(charted, spec)| same_chart(&charted, &spec))
        };
        self.chart.with(|chart| chart.stale) || self.is_faulty() || !is_of_form()
    }

    /// Which half of the form is shown.
    pub fn kind(self) -> Kind {
        self.form.with(|form| form.kind)
    }
}

/// What a model's `config.json` holds, where `text` is one.
fn config_of(text: &str) -> Option<Value> {
    let value = pipeplan_core::base::json::parse(text).ok()?;
    hf_config::looks_like_one(&value).then_some(value)
}

/// What is said of the file `name`: of several that are opened together, which one it is.
fn of_file(name: &str, said: &str) -> String {
    if name.is_empty() { said.to_owned() } else { format!("{name}: {said}") }
}

/// Whether the planner makes schedules of this name.
pub(super) fn is_schedule(name: &str) -> bool {
    name == BEST || pipeplan_core::schedule::find(name).is_some()
}

/// The row of an order that a file has brought.
fn own_row(scene: &Scene, source: &str) -> Row {
    let figures = &scene.figures;
    Row {
        schedule: scene.schedule.clone(),
        title: scene.schedule.clone(),
        source: source.to_owned(),
        reason: None,
        costs: Some(RowCosts {
            makespan_ns: figures.makespan_ns,
            longest_span_ns: figures.longest_span_ns,
            bubble_ratio: figures.bubble_ratio,
            peak_bytes: scene.peak_bytes(),
            gap: figures.gap,
            late_ns: figures.late_ns,
            carried_ns: figures.carried_ns,
            judged_ns: figures.judged_ns,
            step: figures.step,
        }),
    }
}

/// Replaces a schedule's row, or adds it: while a comparison comes in, the rows of the one before stay.
fn put_row(rows: &mut Vec<Row>, row: Row) {
    match rows.iter_mut().find(|known| known.schedule == row.schedule) {
        Some(known) => *known = row,
        None => rows.push(row),
    }
}

fn sentences(faults: &[FieldFault]) -> Vec<String> {
    let sentence = |fault: &FieldFault| match (&fault.field, &fault.accepted) {
        (field, _) if field.is_empty() => fault.found.clone(),
        (field, accepted) => format!("{field}: found {}, accepted is {accepted}.", fault.found),
    };
    faults.iter().take(8).map(sentence).collect()
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
