//! The picture: planned ranks, the part under them, and memory on one time axis.
//!
//! - In: the plan on screen, and what stands under it.
//! - Out: a canvas with ranks, memory and tooltips.
//! - Knows: [`draw`](crate::draw), [`scene`](crate::scene), the state of the page, the browser.

mod canvas;
mod details;
mod height;
mod keys;
mod legend;
mod minimap;
mod op_table;
mod overlay;
mod paper;
mod playback;
mod pointed;
mod pointer;
mod trace;

use canvas::Canvas;
use leptos::prelude::*;

use crate::form::Form;
use crate::page::browser;
use crate::page::state::Planner;

/// How much one notch of a wheel or one press of a key zooms.
const ZOOM_STEP: f64 = 1.25;

#[component]
pub fn TimelinePanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let find_layouts = move |_| {
        if !untrack(|| planner.is_finding_layouts()) {
            planner.find_layouts();
        }
        // The panel that shows them and has the stop button.
        browser::show_mostly(".layouts");
        browser::focus("[data-test='find-layouts']");
    };
    let room_before = StoredValue::new(0.0);
    view! {
        <section class="panel timeline" aria-label="Timeline" on:fullscreenchange=move |_| height::fit_screen(planner, room_before)>
            <Toolbar />
            <p class="note idea" data-test="idea">{move || planner.planned().map(|scene| scene.idea())}</p>
            {move || planner.no_plan.get().map(|reason| view! {
                <div class="empty" role="alert" data-test="no-plan"><p>{reason}</p>
                    {move || planner.next_step.get().map(|next| view! {
                        <button type="button" data-test="next-step" on:click=move |_| planner.take_next_step()>{next.title}</button>
                    })}
                    {move || (planner.may_find_layouts() && !planner.form.with(Form::follows)).then(|| view! {
                        <button type="button" data-test="follow-here" on:click=move |_| planner.let_follow()
                            title="Unpin all degrees, and find them for these devices or for as many as it takes">"Let the degrees follow"</button>
                    })}
                    {move || (planner.may_find_layouts() && !planner.form.with(Form::follows)).then(|| view! {
                        <button type="button" data-test="find-layouts-here" on:click=find_layouts
                            title="Search other degrees of parallelism, microbatches and recomputation on the same devices">"Find a layout that fits"</button>
                    })}</div>
            })}
            {move || planner.kept_unseen().map(|said| view! { <p class="note" data-test="kept-unseen">{said}</p> })}
            <Canvas />
        </section>
    }
}

/// Finds an op, a rank or a microbatch, and selects its block.
#[component]
fn Search() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let (wanted, missed) = (RwSignal::new(String::new()), RwSignal::new(false));
    let search = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let text = wanted.get_untracked();
        let found = untrack(|| match planner.planned() {
            Some(scene) => scene.search(&text),
            None => planner.measured.get().and_then(|measured| measured.search(&text)),
        });
        missed.set(found.is_none() && !text.trim().is_empty());
        planner.found.set(found);
    };
    view! {
        <form class="search" role="search" on:submit=search>
            <input type="search" data-test="search" aria-label="Find an op, a rank or a microbatch" placeholder="3F7, rank 2, m5" size="13"
                autocomplete="off" spellcheck="false" prop:value=wanted
                on:input=move |event| { missed.set(false); wanted.set(event_target_value(&event)); } />
            <span class="note" role="status" data-test="search-missed">{move || missed.get().then_some("not in this plan")}</span>
        </form>
    }
}

#[component]
fn Toolbar() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let zoom = move |factor: f64| {
        let extent = planner.extent();
        planner.view.update(|view| *view = view.zoomed(factor, extent.width_px / 2.0, extent));
    };
    let title = move || {
        if planner.is_alone() {
            return "Measured run".to_owned();
        }
        planner
            .scene
            .with(|scene| scene.as_ref().map(|scene| crate::text::schedule_title(&scene.schedule)))
            .unwrap_or_else(|| "No plan".to_owned())
    };
    // Why nothing can be kept; none if a plan can be kept or released.
    let no_keep = move || match (planner.kept.with(Option::is_none), planner.is_faulty(), planner.outdated.get()) {
        (true, true, _) => Some("This plan belongs to the form before its errors: correct the marked fields"),
        (true, _, true) => Some("This plan belongs to the form before the last change: planning is under way"),
        (true, ..) if planner.scene.with(Option::is_none) => Some("There is no plan"),
        _ => None,
    };
    view! {
        <div class="toolbar">
            <h2 data-test="schedule-title">{title}</h2>
            <span class="note" data-test="placement" title=move || planner.planned().map(|scene| scene.placement_meaning())>{move || planner.planned().map(|scene| scene.placement())}</span>
            <legend::Legend />
            <div class="buttons">
                <button type="button" data-test="keep" aria-pressed=move || planner.kept.with(Option::is_some).to_string()
                    prop:disabled=move || no_keep().is_some()
                    title=move || no_keep().unwrap_or("Keep this timeline below the next one, to compare them")
                    on:click=move |_| planner.keep(planner.kept.with_untracked(Option::is_none))>
                    {move || if planner.kept.with(Option::is_some) { "Release" } else { "Keep" }}</button>
                <button type="button" data-test="save-svg" prop:disabled=move || planner.scene.with(Option::is_none)
                    title="Save the timeline as SVG, for papers and slides" on:click=move |_| planner.save_svg()>"SVG"</button>
                <button type="button" data-test="save-png" prop:disabled=move || planner.scene.with(Option::is_none)
                    title="Save the visible time range as PNG, with memory, all ranks and the legend" on:click=move |_| planner.save_png()>"PNG"</button>
            </div>
            <div class="buttons zoom" role="group" aria-label="Zoom and what is shown">
                <button type="button" aria-label="Zoom out" data-test="zoom-out" on:click=move |_| zoom(1.0 / (ZOOM_STEP * ZOOM_STEP))>"−"</button>
                <button type="button" aria-label="Zoom in" data-test="zoom-in" on:click=move |_| zoom(ZOOM_STEP * ZOOM_STEP)>"+"</button>
                <button type="button" data-test="critical-path" aria-pressed=move || planner.path_lit.get().to_string()
                    title="Show the critical path: the ops that decide the time. A shorter op off the path changes nothing."
                    on:click=move |_| planner.path_lit.update(|lit| *lit = !*lit)>"Critical path"</button>
                <button type="button" data-test="tracks" aria-pressed=move || planner.carried_shown.get().to_string()
                    title="Show P2P transfers, copies to the host, gradient sync and the optimizer as tracks of their own"
                    on:click=move |_| planner.show_carried(!planner.carried_shown.get_untracked())>"Transfers"</button>
                <button type="button" data-test="zoom-fit" on:click=move |_| planner.view.set(planner.extent().fit())>"Fit"</button>
            </div>
            <Search />
            <div class="buttons zoom"><playback::PlayButton /><height::FullScreen /></div>
            <trace::TraceControls />
        </div>
    }
}
