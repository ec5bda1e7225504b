//! The fastest layouts of the form's model on its devices. A person starts the search.

use leptos::prelude::*;
use pipeplan_core::spec::Spec;

use crate::page::state::Planner;
use crate::page::table::SaveTable;
use crate::protocol::same_spec::same_work;
use crate::protocol::{LayoutRow, Layouts, spec_of};
use crate::text;

#[component]
pub fn LayoutsPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let devices = planner.layout_devices;
    let usual = Memo::new(move |_| planner.devices().map(|devices| devices.to_string()));
    let stale = Memo::new(move |_| planner.layouts_are_stale());
    // A search for another form gives way to one for this form.
    let stops = Memo::new(move |_| planner.is_finding_layouts());
    let press = move |_| match stops.get_untracked() {
        true => planner.stop_finding_layouts(),
        false => planner.find_layouts(),
    };
    let begin = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        press(());
    };
    let note = move || match stale.get() {
        true => Some("These layouts belong to another form. Search again, or go back to that form.".to_owned()),
        false => planner.layouts.with(|layouts| layouts.as_ref().map(|layouts| said(layouts))),
    };
    let faults = move || {
        planner
            .layout_faults
            .get()
            .into_iter()
            .map(|fault| view! { <p class="fault" role="alert">{fault}</p> })
            .collect_view()
    };
    move || {
        usual.get().is_some().then(|| {
            view! {
                <section class="panel compare layouts" class:stale=stale aria-label="Layouts">
                    <form class="toolbar" on:submit=begin>
                        <h2>"Layouts"</h2>
                        <label>"of "
                            <input type="text" inputmode="numeric" class="short" data-test="layout-devices" prop:value=devices
                                placeholder=move || usual.get().unwrap_or_default() on:input=move |event| devices.set(event_target_value(&event)) />
                            " devices"</label>
                        <button type="submit" data-test="find-layouts" title="Search degrees of parallelism, microbatches, recomputation and schedule together, with the same global batch size and the same memory limit">
                            {move || if stops.get() { "Stop" } else { "Find the fastest" }}</button>
                        <span class="note" role="status" data-test="layouts-note">{note}</span>
                    </form>
                    {faults}
                    <Rows stale />
                </section>
            }
        })
    }
}

/// The progress of the search, or its result.
fn said(layouts: &Layouts) -> String {
    let Layouts { rows, settled, all, searched, finished, .. } = layouts;
    match (finished, rows.is_empty()) {
        (false, _) if settled < all => format!("{settled} of {all} evaluated…"),
        (false, _) => format!("searching schedules of the fastest: {searched} of {}…", rows.len()),
        (true, true) => {
            format!("None of {all} layouts fits: each needs more memory or has no schedule. Try more devices.")
        }
        (true, false) if settled < all => format!("Stopped after {settled} of {all} layouts."),
        (true, false) => format!("The fastest of {all} layouts. Choose one to plan it."),
    }
}

// Column headings. On narrow screens each figure has its heading next to it.
const MICROBATCHES: &str = "Microbatches";
const STEP: &str = "Step time";
const TOKENS: &str = "Tokens/s";
const MFU: &str = "MFU";
const PEAK: &str = "Peak memory";
const SCHEDULE: &str = "Schedule";
const RECOMPUTED: &str = "Recompute";

#[component]
fn Rows(stale: Memo<bool>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    move || {
        let layouts = planner.layouts.get().filter(|layouts| !layouts.rows.is_empty())?;
        let shown: Vec<(String, LayoutRow)> = layouts
            .given
            .iter()
            .map(|given| ("as it was".to_owned(), given.clone()))
            .chain(layouts.rows.iter().enumerate().map(|(at, row)| ((at + 1).to_string(), row.clone())))
            .collect();
        // Columns in which all layouts say 1 are left out.
        let columns: Vec<(usize, &str)> = [(0, "PP"), (1, "TP"), (2, "CP"), (3, "DP"), (4, "EP")]
            .into_iter()
            .filter(|(at, _)| !matches!(at, 2 | 4) || shown.iter().any(|(_, row)| row.degrees[*at] > 1))
            .collect();
        let heads =
            columns.iter().map(|(_, name)| view! { <th scope="col" class="number">{*name}</th> }).collect_view();
        let reason = layouts.reason.as_ref().map(|reason| {
            view! { <p class="note">{text::sentence(&format!("The layout of the form does not run: {reason}"))}</p> }
        });
        let rows = shown
            .into_iter()
            .map(|(name, row)| {
                let degrees =
                    columns.iter().map(|(at, name)| view! { <td class="number" data-label=*name>{row.degrees[*at]}</td> }).collect_view();
                let [microbatches, size] = row.microbatches;
                let (spec, test) = (row.spec.clone(), format!("layout-{name}").replace(' ', "-"));
                let chosen = {
                    let row = spec_of(&row.spec);
                    Memo::new(move |_| {
                        let is_it = |spec: &Spec| row.as_ref().is_some_and(|row| same_work(row, spec));
                        planner.spec.with(|spec| spec.as_deref().is_some_and(is_it))
                    })
                };
                let take = move |_| {
                    if !stale.get_untracked() {
                        planner.take_layout(&spec);
                    }
                };
                view! {
                    <tr data-test=test class:chosen=chosen on:click=take>
                        <th scope="row"><button type="button" class="quiet" prop:disabled=stale aria-pressed=move || chosen.get().to_string()>{name}</button>
                            {move || chosen.get().then(|| view! { <span class="won">"on screen"</span> })}</th>
                        {degrees}
                        <td class="number" data-label=MICROBATCHES>{format!("{microbatches} × {size}")}</td>
                        <td class="number" data-test="step" data-label=STEP title=row.step.training.map(|training| training.to_string())>{text::duration(row.step.step_ns as f64)}</td>
                        <td class="number" data-label=TOKENS>{text::count(row.step.tokens_per_s.round() as u64)}</td>
                        <td class="number" data-label=MFU>{text::mfu(row.step.mfu)}</td>
                        <td class="number" data-label=PEAK>{text::bytes(row.peak)}</td>
                        <td class="words" data-label=SCHEDULE>{row.schedule}</td>
                        <td class="words" data-label=RECOMPUTED>{row.recompute}</td>
                    </tr>
                }
            })
            .collect_view();
        Some(view! {
            {reason}
            <p><SaveTable css="[data-test='layouts']" name="layouts.csv" /></p>
            <div class="scroll" role="region" aria-label="Layouts, table" tabindex="0">
                <table data-test="layouts">
                    <thead>
                        <tr>
                            <th scope="col"></th>
                            {heads}
                            <th scope="col" class="number">{MICROBATCHES}</th>
                            <th scope="col" class="number">{STEP}</th>
                            <th scope="col" class="number">{TOKENS}</th>
                            <th scope="col" class="number" title=text::MFU>{MFU}</th>
                            <th scope="col" class="number">{PEAK}</th>
                            <th scope="col">{SCHEDULE}</th>
                            <th scope="col">{RECOMPUTED}</th>
                        </tr>
                    </thead>
                    <tbody>{rows}</tbody>
                </table>
            </div>
        })
    }
}
