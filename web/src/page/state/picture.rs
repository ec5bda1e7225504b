//! The timeline: the plan, what is under it, the visible part of time.

use std::sync::Arc;

use leptos::prelude::*;

use super::Planner;
use crate::draw::figure::Style;
use crate::draw::track::Track;
use crate::draw::view::Extent;
use crate::logic::kept_plan;
use crate::logic::versus::Versus;
use crate::page::browser;
use crate::page::session::{self, Item};
use crate::protocol::{Ask, Order, Purpose};
use crate::scene::{Below, Scene, subject};

/// A saved drawing, as wide as a slide.
const SVG_STYLE: Style = Style { width_px: 1200.0, font_px: 11.0, memory: false };

impl Planner {
    pub(super) fn show(self, scene: Option<Arc<Scene>>) {
        let before = self.extent();
        if self.newest_shown.get_value() == self.newest_asked.get_value() {
            self.outdated.set(false);
            // The chart of the worker belongs to the same spec by then.
            self.chart_spec.set(self.spec.get_untracked());
        }
        if scene.is_some() {
            self.no_plan.set(None);
            self.no_plan_at.set(None);
            self.forget_advice();
        }
        self.scene.set(scene);
        self.forget_calibration();
        self.decide_alone();
        self.carry_view(before);
        if self.scene.with_untracked(Option::is_some) {
            self.show_wanted();
        }
        self.ask_passes();
        self.ask_sensitivity();
        self.follow_hand();
    }

    /// The extent of all tracks together.
    pub fn extent(self) -> Extent {
        let end_ns = |scene: &Arc<Scene>| match self.carried_shown.get_untracked() {
            true => scene.step_end_ns(),
            false => scene.end_ns(),
        };
        let planned = untrack(|| self.planned()).as_ref().map_or(0, end_ns);
        let (below, scale) = untrack(|| (self.below(), self.below_scale()));
        let whole_ns = below.map_or(0.0, |below| below.drawn_end_ns() as f64 * scale).max(planned as f64);
        Extent { whole_ns, width_px: self.width.get_untracked() }
    }

    /// Shows transfers, gradient sync and optimizer, or hides them.
    pub fn show_carried(self, shown: bool) {
        let before = self.extent();
        self.carried_shown.set(shown);
        self.carry_view(before);
    }

    /// Keeps the view when the shown plans change.
    pub fn carry_view(self, before: Extent) {
        let now = self.extent();
        self.view.update(|view| *view = view.carried(before, now));
    }

    /// The plan on screen; none where a run is shown without one.
    pub fn planned(self) -> Option<Arc<Scene>> {
        self.scene.get().filter(|_| !self.is_alone())
    }

    /// The plan on screen, or what stands in its place where a run is shown without one.
    pub fn stage_scene(self) -> Option<Arc<Scene>> {
        let stand_in = || Scene::none().filter(|_| self.is_alone()).map(Arc::new);
        self.planned().or_else(stand_in)
    }

    /// Whether a run is shown without a plan: a person wants it so, or there is none.
    pub fn is_alone(self) -> bool {
        self.measured.with(Option::is_some) && (self.measuring.alone.get() || self.scene.with(Option::is_none))
    }

    /// By how much the part under the plan is drawn shorter.
    pub fn below_scale(self) -> f64 {
        let planned = self.planned();
        let scale = |below: Below| match &planned {
            Some(planned) => below.scale(planned.end_ns(), self.aligned.get()),
            None => 1.0,
        };
        self.below().map_or(1.0, scale)
    }

    /// The part under the plan: a measured step, else a kept plan.
    pub fn below(self) -> Option<Below> {
        let kept = || self.kept.get().filter(|_| self.kept_unseen().is_none()).map(Below::Kept);
        self.measured.get().map(Below::Measured).or_else(kept)
    }

    /// Why the kept plan is not drawn; none if it is drawn or nothing is kept.
    pub fn kept_unseen(self) -> Option<String> {
        let kept = self.kept.get()?;
        let trace_is_open = self.measured.with(Option::is_some);
        self.scene.with(|shown| kept_plan::why_not_drawn(&kept, shown.as_deref(), trace_is_open))
    }

    /// The figures of the kept plan, where it is not the plan on screen.
    pub fn versus(self) -> Option<Versus> {
        let kept = self.kept.get()?;
        let is_shown = self.scene.with(|scene| scene.as_ref().is_some_and(|scene| Arc::ptr_eq(scene, &kept)));
        (!is_shown).then(|| Versus::of(&kept))
    }

    /// Keeps the plan on screen for comparison, or releases the kept plan.
    pub fn keep(self, keep: bool) {
        let before = self.extent();
        self.kept_link.set_value(None);
        if keep {
            let is_of_form = self.open_plan_file.with_value(Option::is_none) && !self.outdated.get_untracked();
            self.kept_link.set_value(self.link().filter(|_| is_of_form));
            self.kept.set(self.scene.get_untracked());
            if let Some(text) = self.open_plan_file.get_value() {
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

    /// Scales the measured step to the plan, or draws it in real time.
    pub fn set_aligned(self, aligned: bool) {
        let before = self.extent();
        self.aligned.set(aligned);
        self.carry_view(before);
    }

    /// The order of the plan on screen.
    pub(super) fn shown_order(self) -> Option<Order> {
        let scene = self.scene.get_untracked()?;
        let problem = scene.problem.statement().to_value().to_string();
        let order = scene.order();
        let copies = order.copies.iter().map(|copies| copies.iter().map(ToString::to_string).collect()).collect();
        Some(Order { problem, rows: order.text_rows(), pairs: order.pairs, copies })
    }

    /// The model, device and shape of the plan on screen, in a line.
    pub fn subject(self) -> String {
        match (self.spec.get(), self.scene.get()) {
            (Some(spec), Some(scene)) => subject(&spec, &scene),
            _ => String::new(),
        }
    }

    /// Downloads the timeline as a drawing.
    pub fn save_svg(self) {
        let Some(scene) = self.scene.get_untracked() else { return };
        let title = format!("{} ({})", scene.headline(), untrack(|| self.subject()));
        let drawing = scene.figure(SVG_STYLE, None, &title);
        browser::download(&self.file_name("timeline.svg"), "image/svg+xml", &drawing);
    }

    /// Downloads the visible time range as a picture.
    pub fn save_png(self) {
        self.png_wanted.update(|wanted| *wanted += 1);
    }

    /// The tracks that arrived before the picture of question `id`.
    pub(super) fn take_early_tracks(self, id: u32) -> Vec<Track> {
        let (of, tracks) = self.early_tracks.try_update_value(core::mem::take).unwrap_or_default();
        if of == id { tracks } else { Vec::new() }
    }
}
