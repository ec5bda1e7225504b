//! Reports of the compiler passes for the plan on screen.

use leptos::prelude::*;
use wasm_bindgen::JsCast;

use crate::page::state::Planner;

#[component]
pub fn PassesPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let is_model =
        Memo::new(move |_| planner.scene.with(|scene| scene.as_ref().is_some_and(|scene| !scene.memory.is_empty())));
    let toggled = move |event: leptos::ev::Event| {
        let details = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
        planner.passes_open.set(details.is_some_and(|details| details.has_attribute("open")));
        planner.ask_passes();
    };
    move || {
        is_model.get().then(|| {
            view! {
                <details class="panel" data-test="passes" on:toggle=toggled>
                    <summary>"Compiler passes"</summary>
                    <p class="hint">"Layer 0 is the first layer of a stage."</p>
                    <div class="scroll" role="region" aria-label="Compiler passes, text" tabindex="0" class:before=planner.passes_outdated><pre>{move || planner.passes.get()}</pre></div>
                </details>
            }
        })
    }
}
