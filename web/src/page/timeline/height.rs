//! The height of the picture: dragged at its lower edge, and that of the screen while it is full.

use leptos::prelude::*;
use web_sys::{Element, KeyboardEvent, PointerEvent};

use crate::page::browser;
use crate::page::state::Planner;

/// The most by which a person can make the picture higher.
const MOST_ROOM_PX: f64 = 2400.0;
/// By how much one press of a key does.
const STEP_PX: f64 = 40.0;
/// What stands above and below the picture on a full screen: the toolbar and the hints.
const AROUND_PX: f64 = 230.0;

/// The lower edge of the picture, which is dragged or moved by arrow keys.
#[component]
pub(super) fn LowerEdge() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let room = planner.room_px;
    let set = move |to: f64| room.set(to.clamp(0.0, MOST_ROOM_PX));
    // Where a drag began, and the room then.
    let from = StoredValue::new(None::<(f64, f64)>);
    let down = move |event: PointerEvent| {
        from.set_value(Some((f64::from(event.client_y()), room.get_untracked())));
        let _ = event_target::<Element>(&event).set_pointer_capture(event.pointer_id());
    };
    let moved = move |event: PointerEvent| {
        if let Some((y, before)) = from.get_value() {
            set(before + f64::from(event.client_y()) - y);
        }
    };
    let key = move |event: KeyboardEvent| {
        let by = match event.key().as_str() {
            "ArrowDown" => STEP_PX,
            "ArrowUp" => -STEP_PX,
            _ => return,
        };
        event.prevent_default();
        set(room.get_untracked() + by);
    };
    view! {
        <div class="edge" role="separator" aria-orientation="horizontal" aria-label="Height of the timeline" tabindex="0" data-test="height"
            title="Drag, or press the arrow keys, to change the height of the timeline"
            aria-valuemin="0" aria-valuemax=MOST_ROOM_PX.to_string() aria-valuenow=move || format!("{:.0}", room.get())
            on:pointerdown=down on:pointermove=moved on:pointerup=move |_| from.set_value(None) on:pointercancel=move |_| from.set_value(None)
            on:dblclick=move |_| set(0.0) on:keydown=key></div>
    }
}

/// Shows the timeline on the whole screen, or ends that.
#[component]
pub(super) fn FullScreen() -> impl IntoView {
    view! {
        <button type="button" data-test="full-screen" aria-label="Full screen" title="Show the timeline on the whole screen, or end that"
            on:click=move |_| browser::toggle_full_screen(".timeline")>
            <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d="M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4" fill="none" stroke="currentColor" stroke-width="1.6" /></svg></button>
    }
}

/// As high as the screen, while the timeline has all of it; else as before.
pub(super) fn fit_screen(planner: Planner, before: StoredValue<f64>) {
    match browser::full_screen_height() {
        Some(height) => {
            before.set_value(planner.room_px.get_untracked());
            let usual = 372.0;
            planner.room_px.set((height - AROUND_PX - usual).clamp(0.0, MOST_ROOM_PX));
        }
        None => planner.room_px.set(before.get_value()),
    }
}
