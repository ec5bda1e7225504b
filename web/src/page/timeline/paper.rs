//! Figures for papers, and the plan as files of other programs.

use leptos::prelude::*;

use crate::draw::figure::{Style, WIDTHS};
use crate::page::state::Planner;

/// CSS pixels of an inch.
const INCH_PX: f64 = 96.0;
/// Pixels of a point of a font.
const POINT_PX: f64 = INCH_PX / 72.0;

#[component]
pub fn PaperFigure() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let (width, font) = (RwSignal::new(WIDTHS[1].1.to_string()), RwSignal::new("7".to_owned()));
    let (memory, part) = (RwSignal::new(false), RwSignal::new(false));
    let number = |text: String, least: f64, most: f64| {
        text.trim().replace(',', ".").parse().ok().filter(|n| (least..=most).contains(n))
    };
    let style = move || -> Option<Style> {
        let (width, font) = (number(width.get(), 1.0, 60.0)?, number(font.get(), 3.0, 40.0)?);
        Some(Style { width_px: width * INCH_PX, font_px: font * POINT_PX, memory: memory.get() })
    };
    let wrong =
        move || style().is_none().then_some("Enter a width from 1 to 60 inches and a font size from 3 to 40 points.");
    let save = move |png: bool| {
        if let Some(style) = untrack(style) {
            planner.save_figure(style, part.get_untracked(), png);
        }
    };
    let widths = WIDTHS.map(|(name, inches)| view! { <option value=inches.to_string()>{name}</option> });
    let no_plan = move || planner.scene.with(Option::is_none);
    view! {
        <details class="guide" data-test="paper">
            <summary>"Figure for a paper, and files for other programs"</summary>
            <p class="row">
                <label>"Width, in "<input type="text" inputmode="decimal" size="5" list="figure-widths" data-test="figure-width" autocomplete="off"
                    prop:value=width on:input=move |event| width.set(event_target_value(&event)) /></label>
                <datalist id="figure-widths">{widths.collect_view()}</datalist>
                <label>"Font size, pt "<input type="text" inputmode="decimal" size="3" data-test="figure-font" autocomplete="off"
                    prop:value=font on:input=move |event| font.set(event_target_value(&event)) /></label>
                <label><input type="checkbox" data-test="figure-memory" prop:checked=memory
                    on:change=move |event| memory.set(event_target_checked(&event)) />" Memory"</label>
                <label><input type="checkbox" data-test="figure-part" prop:checked=part
                    on:change=move |event| part.set(event_target_checked(&event)) />" Visible time range only"</label>
                <button type="button" data-test="figure-svg" prop:disabled=move || no_plan() || style().is_none() on:click=move |_| save(false)>"SVG"</button>
                <button type="button" data-test="figure-png" prop:disabled=move || no_plan() || style().is_none() on:click=move |_| save(true)
                    title="At twice the pixels, for slides">"PNG at 2×"</button>
            </p>
            <p class="fault" role="alert" data-test="figure-fault">{wrong}</p>
            <p class="row">
                <button type="button" data-test="save-perfetto" prop:disabled=no_plan on:click=move |_| planner.save_perfetto()
                    title="Events for ui.perfetto.dev and chrome://tracing">"Perfetto JSON"</button>
                <button type="button" data-test="save-torch" prop:disabled=no_plan on:click=move |_| planner.save_torch_csv()
                    title="The compute-only order that torch.distributed.pipelining loads">"torch CSV"</button>
                <button type="button" data-test="save-ops" prop:disabled=no_plan on:click=move |_| planner.save_ops_csv()
                    title="A line for each op, with start and end in nanoseconds">"Ops as CSV"</button>
                <span class="note">"For a PDF, print the page: it prints light, with all ranks."</span>
            </p>
        </details>
    }
}
