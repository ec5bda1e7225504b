//! The plan in slow motion, for teaching.

use std::cell::Cell;
use std::rc::Rc;

use leptos::prelude::*;

use crate::logic::playback::{Playback, SPEEDS};
use crate::page::browser;
use crate::page::state::Planner;
use crate::text;

/// A frame that took longer has waited for something else, and is not made up for.
const LONGEST_FRAME_MS: f64 = 100.0;

/// The button that begins, pauses and goes on.
#[component]
pub(super) fn PlayButton() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let plays = Memo::new(move |_| planner.playback.get().is_some_and(|playback| playback.plays));
    view! {
        <button type="button" data-test="play" prop:disabled=move || planner.scene.with(Option::is_none)
            aria-label=move || if plays.get() { "Pause" } else { "Play" }
            title="Play the plan in slow motion (P). , and . step from one op to the next, < and > change the speed."
            on:click=move |_| planner.play_or_pause()>
            <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path fill="currentColor"
                d=move || if plays.get() { "M3 2h4v12H3zM9 2h4v12H9z" } else { "M3 1.5v13l11-6.5z" } /></svg></button>
    }
}

/// Where the playback is, and how fast it goes, while there is one.
#[component]
pub(super) fn PlaybackBar() -> impl IntoView {
    let planner = expect_context::<Planner>();
    keep_playing(planner);
    let begun = Memo::new(move |_| planner.playback.with(Option::is_some));
    let at_ns = move || planner.playback.get().map_or(0.0, |playback| playback.at_ns);
    let permille = move || {
        let _ = planner.scene.get();
        format!("{:.0}", at_ns() / planner.extent().whole_ns.max(1.0) * 1e3)
    };
    let said = move || {
        let busy = planner.scene.with(|scene| scene.as_ref().map(|scene| scene.busy_at(at_ns() as u64)));
        busy.map(|(busy, ranks)| format!("{}: {busy} of {ranks} ranks compute", text::duration(at_ns())))
    };
    let seek = move |event: leptos::ev::Event| {
        let share = event_target_value(&event).parse::<f64>().unwrap_or(0.0) / 1e3;
        let whole_ns = planner.extent().whole_ns;
        planner.change_playback(|playback| Playback { at_ns: share * whole_ns, plays: false, ..playback });
    };
    let choose = move |event: leptos::ev::Event| {
        let speed = event_target_value(&event).parse().unwrap_or(1.0);
        planner.change_playback(|playback| Playback { speed, ..playback });
    };
    let speed = move || planner.playback.get().map_or(1.0, |playback| playback.speed).to_string();
    move || {
        begun.get().then(|| {
            let speeds = SPEEDS.map(|speed| view! { <option value=speed.to_string()>{format!("{speed}×")}</option> });
            view! {
                <p class="row playback" data-test="playback">
                    <label class="wide">"Time "<input type="range" min="0" max="1000" step="1" data-test="playback-at" prop:value=permille on:input=seek aria-valuetext=said /></label>
                    <label>"Speed "<select data-test="playback-speed" on:change=choose prop:value=speed>{speeds.collect_view()}</select></label>
                    <span class="note" data-test="playback-said">{said}</span>
                    <button type="button" class="small" data-test="playback-end" on:click=move |_| planner.playback.set(None)>"End playback"</button>
                </p>
            }
        })
    }
}

/// Moves on with each frame while the plan is played.
fn keep_playing(planner: Planner) {
    let before_ms = Rc::new(Cell::new(None::<f64>));
    let plays = Memo::new(move |_| planner.playback.get().is_some_and(|playback| playback.plays));
    Effect::new(move |_| {
        if plays.get() {
            before_ms.set(None);
            go_on(planner, before_ms.clone());
        }
    });
}

fn go_on(planner: Planner, before_ms: Rc<Cell<Option<f64>>>) {
    browser::next_frame(move || {
        let now_ms = browser::now_ms();
        let passed_ms = before_ms.replace(Some(now_ms)).map_or(0.0, |before_ms| now_ms - before_ms);
        let Some(playback) = planner.playback.get_untracked().filter(|playback| playback.plays) else { return };
        let next = playback.after(passed_ms.clamp(0.0, LONGEST_FRAME_MS), planner.extent().whole_ns);
        planner.change_playback(|_| next);
        if next.plays {
            go_on(planner, before_ms);
        }
    });
}
