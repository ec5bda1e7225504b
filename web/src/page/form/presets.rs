//! The figures of papers, which a person can open.

use leptos::prelude::*;

use crate::form::PRESETS;
use crate::page::state::Planner;

#[component]
pub(super) fn PaperPresets() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let choose = move |event: leptos::ev::Event| {
        let chosen = event_target_value(&event);
        if let Some(spec) = PRESETS.iter().find(|preset| preset.title == chosen).and_then(|preset| preset.spec()) {
            planner.change_with(|form| form.open(&spec));
        }
        // It is a command and not a field: what is chosen can be chosen again after a change.
        event_target::<web_sys::HtmlSelectElement>(&event).set_value("");
    };
    let option = |preset: crate::form::Preset| view! { <option value=preset.title>{format!("{} ({})", preset.title, preset.source)}</option> };
    view! {
        <div class="field presets">
            <label for="paper-preset" title="Open the problem that a figure of a paper shows">"Figure of a paper"</label>
            <select id="paper-preset" data-test="paper-preset" on:change=choose>
                <option value="">"Open…"</option>
                {PRESETS.map(option).collect_view()}
            </select>
        </div>
    }
}
