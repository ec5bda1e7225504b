//! The run that is open: read, shown beside the plan or alone, explained, and planned again.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::problem::op::Op;
use serde_json::{Value, json};
use web_sys::File;

use super::files::{Origin, of_file};
use super::measuring::{BestOrder, Round, Working};
use super::notices::sentences;
use super::{Planner, is_schedule};
use crate::draw::selection::Block;
use crate::page::browser;
use crate::page::chosen::Chosen;
use crate::page::session::{self, Item};
use crate::page::trace_client::Long;
use crate::protocol::{
    Ask, Export, FieldFault, HangReport, Order, PathOp, Place, Purpose, TraceAsk, TraceFile, TraceReply,
    TraceResponse, TraceSummary, spans,
};
use crate::scene::{MeasuredScene, Scene};
use crate::text;

/// An op of the critical path of a measured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSpan {
    /// Its row.
    pub row: usize,
    /// The op.
    pub op: Op,
    /// When it started.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Looking at more files is shown, and every so many of them.
const SHOWN_FROM: usize = 16;
const SHOWN_EVERY: usize = 8;

/// Runs with more spans are explained when a person asks for it.
const MOST_EXPLAINED: u64 = 200_000;

impl Planner {
    /// A person gives files: what was to be done with those before is dropped. Returns the number of this turn.
    pub fn look_at_files(self) -> u32 {
        self.measuring.looks.update_value(|turn| *turn = turn.wrapping_add(1));
        self.measuring.looks.get_value()
    }

    /// Shows how many files of a turn were looked at, and of how many. Returns whether it goes on.
    pub fn looks_on(self, turn: u32, files: [usize; 2]) -> bool {
        let goes_on = self.measuring.looks.get_value() == turn;
        // A few are known before anybody could read it.
        if goes_on && files.iter().any(|count| *count > SHOWN_FROM) && files[0].is_multiple_of(SHOWN_EVERY) {
            self.measuring.looking.set(Some(files));
        }
        goes_on
    }

    /// No more files are looked at.
    pub fn stop_looking(self) {
        self.look_at_files();
        self.measuring.looking.set(None);
    }

    /// Reads files as one run, in place of the run that is open.
    pub fn open_run_files(self, files: Vec<Chosen>) {
        self.read_run(files, Origin::Person);
    }

    pub(super) fn read_run(self, files: Vec<Chosen>, from: Origin) {
        let named = |Chosen { path, file }: &Chosen| TraceFile { path: path.clone(), bytes: file.size() as u64 };
        let names = files.iter().map(named).collect();
        let order = self.shown_order();
        self.forget_run();
        let name = files.first().map(|chosen| chosen.path.clone()).unwrap_or_default();
        let only = if files.len() == 1 { name.clone() } else { String::new() };
        self.measuring.opening.set_value(Some((from, only)));
        let files: Vec<File> = files.into_iter().map(|chosen| chosen.file).collect();
        let bytes = files.iter().map(|file| file.size() as u64).sum();
        self.measuring.reading.set(Some((name, [0, bytes])));
        let ask = TraceAsk::Open { files: names, order };
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.open(ask, files)));
    }

    /// Asks the worker of the run. Returns the number of the question.
    fn ask_run(self, ask: TraceAsk) -> Option<u32> {
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.ask(ask)))
    }

    /// Asks for what takes long, so that it can be stopped. An older one of its kind ends.
    fn ask_long(self, what: Long, ask: impl FnOnce(Option<String>) -> TraceAsk) -> Option<u32> {
        let id = self.ask_run(ask(self.begin(what)))?;
        self.measuring.working.update(|working| {
            working.retain(|other| other.what != what);
            working.push(Working { what, id, steps: None });
        });
        Some(id)
    }

    /// Stops what takes long.
    pub fn stop_working(self, what: Long) {
        self.end(what);
        self.measuring.working.update(|working| working.retain(|other| other.what != what));
    }

    /// Whether somebody waits for the answer to a question that takes long; then nobody does any more.
    fn is_awaited(self, id: u32) -> bool {
        let awaited =
            self.measuring.working.with_untracked(|working| working.iter().find(|one| one.id == id).copied());
        awaited.inspect(|one| self.stop_working(one.what)).is_some()
    }

    /// Takes what the worker says of the run.
    pub(super) fn receive_run(self, reply: TraceReply) {
        let TraceReply { id, response } = reply;
        let measuring = self.measuring;
        let is_last = matches!(
            response,
            TraceResponse::Calibrated(_)
                | TraceResponse::NotCalibrated(_)
                | TraceResponse::Ordered { .. }
                | TraceResponse::NotOrdered(_)
                | TraceResponse::Profiled { .. }
                | TraceResponse::NotProfiled(_)
                | TraceResponse::Exported { .. }
                | TraceResponse::Ended
        );
        // Stopped, or asked again meanwhile.
        if is_last && !self.is_awaited(id) {
            return;
        }
        match response {
            TraceResponse::Reading { name, bytes } => measuring.reading.set(Some((name, bytes))),
            TraceResponse::Opened(summary) => self.run_opened(*summary),
            TraceResponse::Hangs(report) => self.run_hangs(*report),
            TraceResponse::NotOpened(faults) => self.run_not_opened(&faults),
            TraceResponse::Rows(rows) => self.ahead_of(id, |ahead| ahead.rows(&rows)),
            TraceResponse::Marks(rows) => self.ahead_of(id, |ahead| ahead.marks(&rows)),
            TraceResponse::Shown(measured) => {
                let before = self.extent();
                let (of, ahead) = measuring.ahead.try_update_value(core::mem::take).unwrap_or_default();
                if of == id {
                    // A later one may be on its way.
                    self.measuring.asked.update(|asked| *asked = asked.filter(|asked| *asked != measured.index));
                    self.measured.set(Some(Arc::new(MeasuredScene::of(*measured, ahead))));
                    self.decide_alone();
                    self.carry_view(before);
                    self.go_there();
                }
            }
            TraceResponse::Replaying { done, most } if measuring.analysing.get_untracked() == Some(id) => {
                measuring.replayed.set(Some([done, most]));
            }
            TraceResponse::Comparing { done, most } => measuring.working.update(|working| {
                let own = working.iter_mut().filter(|one| one.id == id);
                own.for_each(|one| one.steps = Some([done, most]));
            }),
            TraceResponse::Analysed(rows) if measuring.analysing.get_untracked() == Some(id) => {
                measuring.analysing.set(None);
                measuring.analysis.set(Some(Arc::new(*rows)));
            }
            TraceResponse::NotAnalysed if measuring.analysing.get_untracked() == Some(id) => {
                measuring.analysing.set(None);
            }
            TraceResponse::Searching { cost_ns, bound_ns } if measuring.searching.get_value() == Some(id) => {
                measuring.best.set(BestOrder::Searching(Some((cost_ns, bound_ns))));
            }
            TraceResponse::BestOrder(found) if measuring.searching.get_value() == Some(id) => {
                measuring.searching.set_value(None);
                measuring.best.set(BestOrder::Found(found));
            }
            // Only for the plan on screen.
            TraceResponse::Calibrated(found) if self.calibration_question.get_value() == Some(id) => {
                self.calibrated.set(Some(Ok(*found)));
            }
            TraceResponse::NotCalibrated(faults) if self.calibration_question.get_value() == Some(id) => {
                self.calibrated.set(Some(Err(sentences(&faults))));
            }
            TraceResponse::Ordered { order, problem } => self.plan_found_order(&order, &problem),
            TraceResponse::NotOrdered(faults) => {
                let why = "The order of this run cannot be planned.".to_owned();
                self.report_also([vec![why], sentences(&faults)].concat());
            }
            TraceResponse::Profiled { profile, measured_ns } => self.plan_with_profile(profile, measured_ns),
            TraceResponse::NotProfiled(faults) => {
                let why = "No profile can be made of this run and the plan on screen.".to_owned();
                self.report_also([vec![why], sentences(&faults)].concat());
            }
            TraceResponse::Exported { export, text, step } => self.save_run(export, &text, step),
            // Answers to questions that are no longer asked.
            TraceResponse::Replaying { .. }
            | TraceResponse::Analysed(_)
            | TraceResponse::NotAnalysed
            | TraceResponse::Searching { .. }
            | TraceResponse::BestOrder(_)
            | TraceResponse::Calibrated(_)
            | TraceResponse::NotCalibrated(_)
            | TraceResponse::Ended => {}
        }
    }

    fn ahead_of(self, id: u32, add: impl FnOnce(&mut crate::scene::Ahead)) {
        self.measuring.ahead.update_value(|(of, ahead)| {
            if *of != id {
                (*of, *ahead) = (id, crate::scene::Ahead::default());
            }
            add(ahead);
        });
    }

    fn run_opened(self, summary: TraceSummary) {
        let from = self.measuring.opening.try_update_value(Option::take).flatten();
        self.measuring.reading.set(None);
        self.measuring.undecided.set_value(true);
        if from.is_some_and(|(from, _)| from == Origin::Person) {
            match &summary.text {
                Some(text) => self.remember(Item::Trace, "", text),
                None => {
                    session::forget(Item::Trace);
                    self.notify(
                        "This run is too large for the browser to store: it is gone after a reload of the page.",
                    );
                }
            }
        }
        if !summary.faults.is_empty() {
            let what = "Not all of this run can be read. The rest is shown.".to_owned();
            self.report_also([vec![what], sentences(&summary.faults)].concat());
        }
        summary.told.iter().for_each(|line| self.notify(line));
        let is_small = summary.spans <= MOST_EXPLAINED;
        self.trace.set(Some(summary));
        if is_small {
            self.explain_run();
        }
    }

    /// There are no steps to show, but who waits.
    fn run_hangs(self, report: HangReport) {
        self.forget_run();
        self.measuring.opening.set_value(None);
        self.measuring.reading.set(None);
        session::forget(Item::Trace);
        if !report.faults.is_empty() {
            let what = "Not all of these files can be read. The report is of the rest.".to_owned();
            self.report_also([vec![what], sentences(&report.faults)].concat());
        }
        self.measuring.hang.set(Some(Arc::new(report)));
        browser::next_frame(|| browser::show_mostly("[data-test='hang']"));
    }

    /// Saves that report for programs.
    pub fn save_hang(self) {
        if let Some(report) = self.measuring.hang.get_untracked() {
            browser::download("hang.json", "application/json", &report.json);
        }
    }

    fn run_not_opened(self, faults: &[FieldFault]) {
        let opening = self.measuring.opening.try_update_value(Option::take).flatten();
        let what = match opening {
            Some((_, name)) if !name.is_empty() => of_file(&name, "This trace file cannot be opened."),
            _ => "These files are no run that can be shown.".to_owned(),
        };
        self.measuring.reading.set(None);
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.close()));
        self.report_also([vec![what], sentences(faults)].concat());
    }

    /// The worker has ended on its own.
    pub(super) fn run_failed(self, reason: String) {
        self.measuring.opening.set_value(None);
        self.measuring.reading.set(None);
        self.measuring.analysing.set(None);
        self.measuring.working.update(Vec::clear);
        self.measuring.asked.set(None);
        if self.measuring.searching.try_update_value(Option::take).flatten().is_some() {
            self.measuring.best.set(BestOrder::Unasked);
        }
        self.report_also(vec![reason]);
    }

    /// Stops what says what the run means.
    pub fn stop_explaining(self) {
        self.end(Long::Analysis);
        self.measuring.analysing.set(None);
    }

    fn end(self, what: Long) {
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.end(what)));
    }

    fn begin(self, what: Long) -> Option<String> {
        self.measuring.client.with_value(|client| client.as_ref().and_then(|client| client.begin(what)))
    }

    /// Stops reading.
    pub fn stop_run(self) {
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.stop()));
        self.measuring.analysing.set(None);
        if self.measuring.reading.with_untracked(Option::is_some) {
            self.measuring.reading.set(None);
            self.measuring.opening.set_value(None);
            if self.trace.with_untracked(Option::is_none) {
                self.measuring.client.with_value(|client| client.as_ref().map(|client| client.close()));
            }
        }
    }

    /// Shows the run alone where it is none of the plan on screen. While that plan is on its way, this stays open.
    pub(super) fn decide_alone(self) {
        if !self.measuring.undecided.get_value() || self.measured.with_untracked(Option::is_none) {
            return;
        }
        let other = |scene: &Option<Arc<Scene>>| match scene {
            Some(scene) => self.measured.with_untracked(|measured| measured.as_ref()?.differs_from(scene)).is_some(),
            None => true,
        };
        let is_other = self.scene.with_untracked(other);
        self.measuring.alone.set(is_other);
        if !self.busy.get_untracked() && !self.is_opening() {
            self.measuring.undecided.set_value(false);
        }
    }

    /// Shows the run without the plan on screen, or both.
    pub fn set_alone(self, alone: bool) {
        let before = self.extent();
        self.measuring.undecided.set_value(false);
        self.measuring.alone.set(alone);
        self.carry_view(before);
    }

    /// Shows a step of the run, and what it means; none: what all steps mean.
    pub fn show_trace_step(self, index: Option<u32>) {
        self.measuring.of_step.set(index.is_some());
        let last = self.trace.with_untracked(|trace| trace.as_ref().map_or(0, |trace| trace.steps.len()));
        let was = self.measuring.analysis.with_untracked(Option::is_some);
        let explains = was || self.measuring.analysing.with_untracked(Option::is_some);
        self.step_first(index.unwrap_or(last.saturating_sub(1) as u32), explains.then_some(index));
    }

    /// Asks for a step before all that takes long, which begins anew behind it: an analysis of a step or of all, and a search.
    fn step_first(self, index: u32, analysis: Option<Option<u32>>) {
        self.end(Long::Analysis);
        self.end(Long::Search);
        self.measuring.asked.set(Some(index));
        self.ask_run(TraceAsk::Step { index });
        if let Some(of) = analysis {
            self.explain_run_of(of);
        }
        if self.measuring.searching.get_value().is_some() {
            self.find_best_order();
        }
    }

    /// Asks what the run means.
    pub fn explain_run(self) {
        let shown = self.measured.with_untracked(|measured| measured.as_ref().map(|measured| measured.index));
        self.explain_run_of(shown.filter(|_| self.measuring.of_step.get_untracked()));
    }

    fn explain_run_of(self, index: Option<u32>) {
        let (order, while_readable) = (self.run_order(), self.begin(Long::Analysis));
        self.measuring.replayed.set(None);
        self.measuring.analysing.set(self.ask_run(TraceAsk::Analyse { index, order, while_readable }));
    }

    /// The order on screen, where the shown step is a run of it.
    fn run_order(self) -> Option<Order> {
        let scene = self.scene.get_untracked()?;
        let is_other = self.measured.with_untracked(|measured| measured.as_ref()?.differs_from(&scene)).is_some();
        self.shown_order().filter(|_| !is_other && self.measured.with_untracked(Option::is_some))
    }

    /// Searches the best order for the measured times.
    pub fn find_best_order(self) {
        self.measuring.best.set(BestOrder::Searching(None));
        let (order, while_readable) = (self.run_order(), self.begin(Long::Search));
        self.measuring.searching.set_value(self.ask_run(TraceAsk::BestOrder { order, while_readable }));
    }

    /// Ends that search with the best so far.
    pub fn stop_best_order(self) {
        self.end(Long::Search);
    }

    /// Goes to an op of the run.
    pub fn go_to_op(self, at: Place) {
        self.measuring.go_to.set_value(Some(at));
        match self.measured.with_untracked(|measured| measured.as_ref().is_some_and(|shown| shown.index == at.index))
        {
            true => self.go_there(),
            false => {
                let analysing = self.measuring.analysing.with_untracked(Option::is_some);
                let of = self.measuring.of_step.get_untracked().then_some(at.index);
                self.step_first(at.index, analysing.then_some(of));
            }
        }
        browser::show_mostly("[data-test='timeline']");
    }

    /// Selects the op to go to, if its step is shown.
    fn go_there(self) {
        let shown = self.measured.with_untracked(|measured| measured.as_ref().map(|measured| measured.index));
        if let Some(at) = self.measuring.go_to.get_value().filter(|at| Some(at.index) == shown) {
            self.measuring.go_to.set_value(None);
            let (rank, index) = (at.row as usize, at.place as usize);
            let block = Block { below: true, rank, index, gap: false };
            let times = self.measured.with_untracked(|measured| {
                let track = measured.as_ref()?.tracks.get(rank)?;
                let span = track.spans().get(index)?;
                Some((span.start_ns, span.end_ns))
            });
            if let Some((start_ns, end_ns)) = times {
                let scale = untrack(|| self.below_scale());
                let room_ns = (end_ns - start_ns).max(1) as f64 * 6.0;
                let (from, to) = (start_ns as f64 - room_ns, end_ns as f64 + room_ns);
                let extent = self.extent();
                self.view.set(crate::draw::view::View::around(from * scale, to * scale, extent));
            }
            self.found.set(Some(block));
        }
    }

    /// The critical path of the shown step, where it is known.
    pub fn measured_path(self) -> Option<Vec<PathSpan>> {
        let shown = self.measured.get()?;
        let analysis = self.measuring.analysis.get().filter(|analysis| analysis.path_of == shown.index)?;
        let span = |op: &PathOp| {
            let (row, op) = (op.row as usize, spans::op_of(op.op));
            let track = shown.tracks.get(row)?;
            let span = track.spans().get(track.position(op)?)?;
            Some(PathSpan { row, op, start_ns: span.start_ns, end_ns: span.end_ns })
        };
        Some(analysis.path.iter().filter_map(span).collect())
    }

    /// Compares the open trace with the plan on screen, or hides the result.
    pub fn calibrate(self) {
        if self.calibrated.with_untracked(Option::is_some) {
            return self.forget_calibration();
        }
        let Some(order) = self.shown_order() else { return };
        let ask = |while_readable| TraceAsk::Calibrate { order, while_readable };
        self.calibration_question.set_value(self.ask_long(Long::Comparison, ask));
    }

    /// Drops the calibration: it is outdated.
    pub(super) fn forget_calibration(self) {
        self.calibrated.set(None);
        self.calibration_question.set_value(None);
        self.stop_working(Long::Comparison);
    }

    /// Plans the order that ran, with the measured times.
    pub fn plan_run_order(self) {
        self.ask_long(Long::Order, |while_readable| TraceAsk::Order { while_readable });
    }

    fn plan_found_order(self, order: &str, problem: &str) {
        let Ok(problem) = serde_json::from_str::<Value>(problem) else { return };
        self.notice.set(None);
        if self.open_spec(&json!({ "name": "the run", "problem": problem })).is_ok() {
            // The run is one of this plan.
            self.measuring.undecided.set_value(true);
            self.open_order("", order);
        }
    }

    /// Plans the spec again with what its run took: the plan file comes first.
    pub fn calibrate_and_plan(self) {
        if let Some(text) = self.open_plan_file.get_value() {
            self.profile_of(&text);
        } else if let Some(spec) = self.read_form() {
            self.ask(Ask::Export { spec, purpose: Purpose::Profile }, false);
        }
    }

    /// The plan file for that.
    pub(super) fn profile_of(self, plan: &str) {
        let plan = plan.to_owned();
        self.ask_long(Long::Profile, |while_readable| TraceAsk::Profile { plan, while_readable });
    }

    fn plan_with_profile(self, profile: String, measured_ns: u64) {
        let first =
            self.scene.with_untracked(|scene| scene.as_ref().map(|scene| (scene.schedule.clone(), scene.cost_ns())));
        let Some((schedule, cost_ns)) = first else { return };
        // A plan file gives way to the plan of its spec.
        self.open_plan_file.set_value(None);
        self.measure(Some(&profile));
        let first = (text::schedule_title(&schedule), cost_ns);
        self.measuring.round.set(Some(Round { first, measured_ns, profile }));
    }

    /// Saves the profile of the round as a file for `plan --profile`.
    pub fn save_profile(self) {
        if let Some(round) = self.measuring.round.get_untracked() {
            browser::download(&self.file_name("profile.json"), "application/json", &round.profile);
        }
    }

    /// Asks for the run as a file.
    pub fn export_run(self, export: Export) {
        self.ask_long(Long::Export(export), |while_readable| TraceAsk::Export { export, while_readable });
    }

    fn save_run(self, export: Export, text: &str, step: Option<u64>) {
        let content_type = if export == Export::Csv { "text/csv" } else { "application/json" };
        browser::download(&self.file_name(export.file()), content_type, text);
        if let Some(step) = step {
            self.notify(&format!(
                "The run is large, so the file has step {step} alone. `pipeplan export` writes all of them."
            ));
        }
    }

    /// Plans `problem`, the text of a problem file, with the schedule of the form. Jitter is `jitter_permille`, or that
    /// of the form.
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
        self.notice.set(None);
        // What was measured has no fault.
        let _ = self.open_spec(&spec);
    }

    /// Whether the open trace belongs to another plan than the open plan file.
    pub fn trace_of_another_plan(self) -> bool {
        let digest =
            self.trace.with(|trace| trace.as_ref().map(|trace| trace.plan_digest.clone())).unwrap_or_default();
        let other = |text: &Option<std::rc::Rc<str>>| text.as_ref().is_some_and(|text| !text.contains(&digest));
        // Reads the scene, so that the answer follows the screen.
        self.scene.with(Option::is_some) && !digest.is_empty() && self.open_plan_file.with_value(other)
    }

    /// The measured peak memory of each rank; empty if the trace belongs to another plan.
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

    /// Closes the run.
    pub fn close_trace(self) {
        let before = self.extent();
        self.forget_run();
        session::forget(Item::Trace);
        self.carry_view(before);
    }

    fn forget_run(self) {
        self.measuring.client.with_value(|client| client.as_ref().map(|client| client.close()));
        self.measuring.forget();
        self.measuring.alone.set(false);
        self.trace.set(None);
        self.measured.set(None);
        self.forget_calibration();
    }
}
