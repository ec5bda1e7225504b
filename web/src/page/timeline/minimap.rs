//! The whole plan in a strip under the picture, with a frame around the part that is on screen.

use leptos::html;
use leptos::prelude::*;
use web_sys::{Element, KeyboardEvent, PointerEvent};

use super::ZOOM_STEP;
use super::canvas::Screen;
use super::overlay;
use crate::draw::overview::{OVERVIEW_PX, centred, window};
use crate::page::state::{Planner, once_a_frame};

/// How much one press of a key pans, of the width.
const PAN_STEP: f64 = 0.15;

#[component]
pub(super) fn Minimap(screen: Screen) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let canvas = NodeRef::<html::Canvas>::new();
    let paint = move || {
        let (Some(canvas), Some(scene)) = (canvas.get_untracked(), untrack(|| planner.stage_scene())) else { return };
        let alone = planner.measured.get_untracked().filter(|_| untrack(|| planner.is_alone()));
        overlay::paint_overview(&canvas, &scene, alone.as_deref(), planner.extent(), screen.dark.get_untracked());
    };
    Effect::new(move |_| {
        // What the strip shows.
        let _ = (planner.stage_scene().is_some(), planner.below().is_some(), planner.carried_shown.get());
        let _ = (planner.width.get(), screen.dark.get(), canvas.get().is_some(), planner.aligned.get());
        once_a_frame("minimap", paint);
    });
    let place = move || {
        let _ = planner.scene.get();
        window(planner.view.get(), planner.extent())
    };
    let style = move || {
        let (from, width) = place();
        format!("left:{:.3}%;width:max({:.3}%,4px)", from * 100.0, width * 100.0)
    };
    let go = move |event: &PointerEvent| {
        let strip = event.current_target().and_then(|target| wasm_bindgen::JsCast::dyn_into::<Element>(target).ok());
        let Some(place) = strip.map(|strip| strip.get_bounding_client_rect()) else { return };
        let share = (f64::from(event.client_x()) - place.left()) / place.width().max(1.0);
        planner.view.update(|view| *view = centred(share.clamp(0.0, 1.0), *view, planner.extent()));
    };
    let drags = StoredValue::new(false);
    let down = move |event: PointerEvent| {
        if event.button() == 0 {
            drags.set_value(true);
            let _ = event_target::<Element>(&event).set_pointer_capture(event.pointer_id());
            go(&event);
        }
    };
    let key = move |event: KeyboardEvent| {
        let extent = planner.extent();
        let (pan, middle) = (extent.width_px * PAN_STEP, extent.width_px / 2.0);
        planner.view.update(|view| {
            *view = match event.key().as_str() {
                "ArrowLeft" => view.panned(-pan, extent),
                "ArrowRight" => view.panned(pan, extent),
                "ArrowUp" => view.zoomed(ZOOM_STEP, middle, extent),
                "ArrowDown" => view.zoomed(1.0 / ZOOM_STEP, middle, extent),
                "Home" => centred(0.0, *view, extent),
                "End" => centred(1.0, *view, extent),
                _ => return,
            };
            event.prevent_default();
        });
    };
    let said = move || {
        let (from, width) = place();
        format!("{:.0} % to {:.0} % of the time", from * 100.0, (from + width) * 100.0)
    };
    view! {
        <div class="minimap" class:none=move || planner.stage_scene().is_none() data-test="minimap" tabindex="0" role="slider" aria-label="Part of the time on screen"
            aria-valuemin="0" aria-valuemax="100" aria-valuenow=move || format!("{:.0}", place().0 * 100.0) aria-valuetext=said
            style=move || format!("margin-left:{}px;height:{OVERVIEW_PX}px", screen.layout.with(|layout| layout.left_px))
            title="All of the time; drag the frame to the part to show"
            on:pointerdown=down on:pointermove=move |event| if drags.get_value() { go(&event) }
            on:pointerup=move |_| drags.set_value(false) on:pointercancel=move |_| drags.set_value(false) on:keydown=key>
            <canvas aria-hidden="true" node_ref=canvas></canvas>
            <div class="window" data-test="minimap-window" style=style></div>
        </div>
    }
}
