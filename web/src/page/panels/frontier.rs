//! Time against memory.

use leptos::html;
use leptos::prelude::*;
use pipeplan_core::schedule::BEST;
use web_sys::{KeyboardEvent, MouseEvent, PointerEvent};

use crate::draw::frontier::{Chart, HEIGHT, Judged, Marks, Measure, Plot, describe};
use crate::page::browser::follow_width;
use crate::page::state::Planner;
use crate::protocol::same_spec::{follows_from_limit, limit_of};
use crate::protocol::{ChartPoint, Row, RowCosts};
use crate::text;

/// A pointer that moves no farther than this has tapped.
const TAP_PX: f64 = 4.0;

#[component]
pub fn FrontierPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let holder = NodeRef::<html::Div>::new();
    let width = RwSignal::new(600.0_f64);
    let measure = RwSignal::new(Measure::default());
    let picked = RwSignal::new(None::<usize>);
    Effect::new(move |_| holder.get().iter().for_each(|holder| follow_width(holder, width)));
    // The chart can belong to the form before. Then a person cannot pick or choose points.
    let of_before = Memo::new(move |_| planner.chart_is_of_before());
    Effect::new(move |_| {
        if of_before.get() {
            picked.set(None);
        }
    });
    let judged = Memo::new(move |_| planner.spec.with(|spec| spec.as_deref().map(Judged::of)).unwrap_or_default());
    let marks = Memo::new(move |_| marks(planner, picked.get(), judged.get()));
    // These are not memos: a value that depends on `marks` in two ways does not always get its changes.
    let plot =
        move || planner.chart.with(|chart| marks.with(|marks| Plot::new(chart, marks, measure.get(), width.get())));
    let drawing = move || {
        planner.chart.with(|chart| {
            marks.with(|marks| {
                let plot = Plot::new(chart, marks, measure.get(), width.get());
                plot.map(|plot| plot.svg(chart, marks)).unwrap_or_default()
            })
        })
    };
    let pick_at = move |event: &MouseEvent| {
        let Some(holder) = holder.get_untracked().filter(|_| !of_before.get_untracked()) else { return };
        let x = f64::from(event.client_x()) - holder.get_bounding_client_rect().left();
        let bytes = untrack(plot).map(|plot| plot.bytes_at(x));
        picked.set(bytes.and_then(|bytes| planner.chart.with_untracked(|chart| chart.within(bytes))));
    };
    let hand = Hand { planner, of_before, at: StoredValue::new(None), dragged: StoredValue::new(false), holder };
    let moved = move |event: PointerEvent| {
        if !hand.moves(&event, plot) {
            return pick_at(&event);
        }
        picked.set(None);
    };
    let choose = move || {
        let point =
            picked.get_untracked().and_then(|at| planner.chart.with_untracked(|chart| chart.curve.get(at).cloned()));
        if let Some(point) = point {
            planner.take_point(point);
        }
    };
    let on_key = move |event: KeyboardEvent| {
        if of_before.get_untracked() {
            return;
        }
        let last = planner.chart.with_untracked(|chart| chart.curve.len()).saturating_sub(1);
        match pressed(&event.key(), picked.get_untracked(), last) {
            Some(Pressed::Choose) => choose(),
            Some(Pressed::Pick(to)) => picked.set(Some(to)),
            Some(Pressed::Leave) => return picked.set(None),
            None => return,
        }
        event.prevent_default();
    };
    let readout = Memo::new(move |_| {
        let point = picked.get().and_then(|at| planner.chart.with(|chart| chart.curve.get(at).cloned()));
        let judged = judged.get();
        point.map_or_else(|| summary(planner, of_before.get(), &judged), |point| describe(&point, &judged))
    });
    view! {
        <section class="panel frontier" aria-label="Time against memory" data-test="frontier"
            class:stale=of_before
            data-state=move || if !of_before.get() && planner.chart.with(|chart| chart.finished) { "finished" } else { "searching" }>
            <div class="toolbar">
                <h2 title="The best schedule for each memory limit, by its time with step epilogue and waits for transfers">{move || heading(measure.get(), &judged.get())}" "<span class="what">{move || what(measure.get(), &judged.get())}</span></h2>
                <span class="note" data-test="frontier-readout">{readout}</span>
                <div class="buttons" role="group" aria-label="What is drawn">
                    <Choice measure this=Measure::Time title="Time" test="frontier-time" />
                    <Choice measure this=Measure::Bubble title="Bubble" test="frontier-bubble" />
                </div>
            </div>
            <div class="chart" node_ref=holder tabindex="0" role="slider" data-test="frontier-chart" aria-disabled=move || of_before.get().to_string()
                aria-label="Memory limits with the best schedule of each; arrow keys move, Enter sets the limit"
                aria-valuemin="0" aria-valuemax=move || planner.chart.with(|chart| chart.curve.len().saturating_sub(1)).to_string()
                aria-valuenow=move || picked.get().unwrap_or(0).to_string() aria-valuetext=readout
                title="Drag along the chart to move the memory limit: the plan follows"
                on:pointerdown=move |event| hand.comes_down(&event) on:pointermove=moved on:pointerup=move |_| hand.lets_go()
                on:pointercancel=move |_| hand.at.set_value(None)
                on:pointerleave=move |_| picked.set(None)
                on:click=move |event| {
                    // The end of a drag is no choice of a point.
                    if !hand.dragged.try_update_value(core::mem::take).unwrap_or(false) {
                        pick_at(&event);
                        choose();
                    }
                }
                on:keydown=on_key>
                <svg aria-hidden="true" height=HEIGHT width=move || width.get() inner_html=drawing></svg>
            </div>
        </section>
    }
}

/// What is marked on the chart.
fn marks(planner: Planner, picked: Option<usize>, judged: Judged) -> Marks {
    let (limit_bytes, plan, published) = (limit(planner), plan(planner), published(planner));
    Marks { limit_bytes, plan, picked, published, judged }
}

/// A hand that drags the memory limit along the chart.
#[derive(Clone, Copy)]
struct Hand {
    planner: Planner,
    of_before: Memo<bool>,
    holder: NodeRef<html::Div>,
    /// Where it came down, and whether it has moved since.
    at: StoredValue<Option<(f64, bool)>>,
    /// Whether it has just let go of the limit.
    dragged: StoredValue<bool>,
}

impl Hand {
    fn comes_down(self, event: &PointerEvent) {
        if event.button() == 0 && !self.of_before.get_untracked() {
            self.at.set_value(Some((f64::from(event.client_x()), false)));
            if let Some(holder) = self.holder.get_untracked() {
                let _ = holder.set_pointer_capture(event.pointer_id());
            }
        }
    }

    /// Moves the limit, if the hand is down. Whether it is.
    fn moves(self, event: &PointerEvent, plot: impl FnOnce() -> Option<Plot>) -> bool {
        let Some((from, drags)) = self.at.get_value() else { return false };
        let x = f64::from(event.client_x());
        if !drags && (x - from).abs() < TAP_PX {
            return true;
        }
        self.at.set_value(Some((from, true)));
        if let (Some(holder), Some(plot)) = (self.holder.get_untracked(), untrack(plot)) {
            self.planner.drag_limit(plot.bytes_at(x - holder.get_bounding_client_rect().left()));
        }
        true
    }

    fn lets_go(self) {
        let drags = self.at.try_update_value(Option::take).flatten().is_some_and(|(_, drags)| drags);
        self.dragged.set_value(drags);
        if drags {
            self.planner.drop_limit();
        }
    }
}

/// The action of a key on the chart.
enum Pressed {
    /// The point that is picked sets the limit.
    Choose,
    /// Another point is picked.
    Pick(usize),
    /// No point is picked any more.
    Leave,
}

/// The action of `key` if the point `at` is picked, of points up to `last`.
fn pressed(key: &str, at: Option<usize>, last: usize) -> Option<Pressed> {
    Some(match key {
        "ArrowLeft" | "ArrowDown" => Pressed::Pick(at.map_or(last, |at| at.saturating_sub(1))),
        "ArrowRight" | "ArrowUp" => Pressed::Pick(at.map_or(0, |at| (at + 1).min(last))),
        "Home" => Pressed::Pick(0),
        "End" => Pressed::Pick(last),
        "Enter" | " " => Pressed::Choose,
        "Escape" => Pressed::Leave,
        _ => return None,
    })
}

#[component]
fn Choice(measure: RwSignal<Measure>, this: Measure, title: &'static str, test: &'static str) -> impl IntoView {
    view! {
        <button type="button" data-test=test aria-pressed=move || (measure.get() == this).to_string()
            on:click=move |_| measure.set(this)>{title}</button>
    }
}

/// The quantity on the chart.
fn heading(measure: Measure, judged: &Judged) -> String {
    match measure {
        // Before the first spec nothing is judged.
        Measure::Time if judged.name.is_empty() => "Time against memory".to_owned(),
        Measure::Time => text::capital(&format!("{} against memory", judged.name)),
        Measure::Bubble => "Bubble against memory".to_owned(),
    }
}

/// Of which plans, or of how many steps, that is.
fn what(measure: Measure, judged: &Judged) -> String {
    match measure {
        Measure::Time if judged.jitters => "1 step in 20 takes longer".to_owned(),
        Measure::Time => String::new(),
        Measure::Bubble => format!("of the plans with the lowest {}", judged.name),
    }
}

/// The text while no point is picked.
fn summary(planner: Planner, of_before: bool, judged: &Judged) -> String {
    match (of_before, planner.is_faulty()) {
        (true, true) => return "This belongs to the form before its errors.".to_owned(),
        (true, false) => return "Searching…".to_owned(),
        (false, _) => {}
    }
    let by_limit = planner.spec.with(|spec| spec.as_deref().is_some_and(follows_from_limit));
    planner.chart.with(|chart| {
        let least =
            chart.least_bytes.map(|least| format!("No schedule exists below {} per rank.", text::bytes(least)));
        let more = match (chart.finished, better_than_shown(planner, chart)) {
            (false, _) => "Searching…".to_owned(),
            // Under the limit they are other orders.
            (true, _) if by_limit => {
                return "The chart has no limit: with less memory, layers recompute more or move to other \
                        stages. Click a point to plan within its memory."
                    .to_owned();
            }
            (true, Some(point)) => {
                format!("Faster than the plan on screen, within its limit: {}.", describe(point, judged))
            }
            (true, None) => "Click a point to plan within its memory.".to_owned(),
        };
        [least, Some(more)].into_iter().flatten().collect::<Vec<_>>().join(" ")
    })
}

/// The point of the chart within the limit, if the plan on screen is a slower best.
fn better_than_shown(planner: Planner, chart: &Chart) -> Option<&ChartPoint> {
    let (limit, shown) = (limit(planner)?, plan(planner)?);
    let is_best = planner.spec.with(|spec| spec.as_ref().is_some_and(|spec| spec.schedule == BEST));
    let point = chart.curve.get(chart.within(limit as f64)?)?;
    (is_best && point.bytes <= limit && text::is_less(point.judged_ns, shown.judged_ns)).then_some(point)
}

/// The memory limit of the form.
fn limit(planner: Planner) -> Option<u64> {
    planner.spec.with(|spec| limit_of(spec.as_ref()?))
}

/// The plan on screen as a point.
fn plan(planner: Planner) -> Option<ChartPoint> {
    planner.scene.with(|scene| {
        let scene = scene.as_ref()?;
        Some(ChartPoint {
            bytes: scene.peak_bytes(),
            judged_ns: scene.figures.judged_ns,
            bubble_ratio: scene.figures.bubble_ratio,
            by: String::new(),
        })
    })
}

/// The points of published schedules, from the comparison.
fn published(planner: Planner) -> Vec<ChartPoint> {
    let point = |row: &Row| {
        let costs = row.costs.filter(|_| row.schedule != BEST)?;
        let RowCosts { peak_bytes: bytes, judged_ns, bubble_ratio, .. } = costs;
        Some(ChartPoint { bytes, judged_ns, bubble_ratio, by: row.title.clone() })
    };
    planner.rows.with(|rows| rows.iter().filter_map(point).collect())
}
