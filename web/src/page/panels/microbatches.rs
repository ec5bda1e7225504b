//! Microbatches that differ: what packing and ordering them gains, and how long each takes.

use std::sync::Arc;

use leptos::prelude::*;
use web_sys::Element;

use crate::page::state::Planner;
use crate::page::table::SaveTable;
use crate::protocol::{PackingTimes, Widths};
use crate::scene::{Scene, Spread};
use crate::text;

/// More rows than these tell a person nothing.
const MOST_ROWS: usize = 64;

#[component]
pub fn MicrobatchesPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let differ = Memo::new(move |_| {
        planner.scene.with(|scene| scene.as_ref().is_some_and(|scene| !scene.widths.microbatches.is_empty()))
    });
    let open = RwSignal::new(true);
    let toggled = move |event: leptos::ev::Event| open.set(event_target::<Element>(&event).has_attribute("open"));
    let content = move || planner.scene.get().map(|scene| view! { <Content scene /> });
    move || {
        differ.get().then(|| {
            view! {
                <details class="panel split widths" data-test="microbatches" prop:open=open.get_untracked() on:toggle=toggled>
                    <summary>"Microbatches by width"</summary>
                    {move || open.get().then(content)}
                </details>
            }
        })
    }
}

#[component]
fn Content(scene: Arc<Scene>) -> impl IntoView {
    let of_spread = Spread::of(&scene.widths.microbatches).map(|spread| spread.sentence());
    view! {
        <p class="hint" data-test="documents-packed">{scene.documents_packed()}</p>
        {scene.widths.packing.map(|times| view! { <Gain times /> })}
        <p class="hint" data-test="widths">{of_spread}</p>
        <Rows widths=scene.widths.clone() />
    }
}

/// What packings of the documents cost.
#[component]
fn Gain(times: PackingTimes) -> impl IntoView {
    let row = |(name, meaning, ns): (&'static str, &'static str, Option<u64>)| {
        let ns = ns?;
        let against = times.given_ns.map(|given_ns| text::change(ns, given_ns));
        Some(view! {
            <tr>
                <th scope="row" title=meaning>{name}</th>
                <td class="number">{text::duration(ns as f64)}</td>
                <td class="number">{against}</td>
            </tr>
        })
    };
    let rows = times.named().into_iter().filter_map(row).collect_view();
    view! {
        <p class="hint" data-test="packing-gain">{times.gain()}</p>
        <div class="scroll" role="region" aria-label="Packings of documents, table" tabindex="0">
            <table data-test="packing-rows">
                <thead><tr>
                    <th scope="col">"Packing"</th>
                    <th scope="col" class="number" title="What judges a plan: of the slowest data parallel replica, with communication and the step epilogue">"Step"</th>
                    <th scope="col" class="number">"Against their order"</th>
                </tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
}

/// The microbatches, in the order of their numbers.
#[component]
fn Rows(widths: Widths) -> impl IntoView {
    let all = &widths.microbatches;
    let longest_ns = all.iter().map(|of| of.time_ns).max().unwrap_or(0).max(1) as f64;
    let has_documents = widths.documents.is_some();
    let row = |(number, of): (usize, &crate::protocol::Width)| {
        let part = |ns: u64| format!("width:{:.3}%", 100.0 * ns as f64 / longest_ns);
        let of = *of;
        let documents = has_documents.then(|| {
            view! {
                <td class="number">{of.documents}</td>
                <td class="number">{text::count(of.tokens)}</td>
                <td class="number">{text::count(of.longest.into())}</td>
                <td class="number">{text::percent(of.attention_ns as f64 / of.time_ns.max(1) as f64)}</td>
            }
        });
        view! {
            <tr>
                <th scope="row">{number}</th>
                <td class="split-bar" aria-hidden="true"><div>
                    <span class="slice attention" style=part(of.attention_ns)></span>
                    <span class="slice compute" style=part(of.time_ns - of.attention_ns.min(of.time_ns))></span>
                </div></td>
                {documents}
                <td class="number">{text::duration(of.time_ns as f64)}</td>
            </tr>
        }
    };
    let rows = all.iter().enumerate().take(MOST_ROWS).map(row).collect_view();
    let more = all.len().saturating_sub(MOST_ROWS);
    let heads = has_documents.then(|| view! {
        <th scope="col" class="number">"Documents"</th>
        <th scope="col" class="number">"Tokens"</th>
        <th scope="col" class="number" title="Tokens of its longest document">"Longest"</th>
        <th scope="col" class="number" title="Share of its time that attention within its documents takes"><span class="slice attention"></span>" Attention"</th>
    });
    view! {
        <div class="scroll" role="region" aria-label="Microbatches by width, table" tabindex="0">
            <table data-test="width-rows">
                <thead><tr>
                    <th scope="col">"Microbatch"</th>
                    <th class="split-bar" aria-hidden="true"></th>
                    {heads}
                    <th scope="col" class="number" title="F, B and W on all stages">"Time"</th>
                </tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
        {(more > 0).then(|| view! { <p class="hint">{format!("and {more} more microbatches")}</p> })}
        <SaveTable css="[data-test='width-rows']" name="microbatches.csv" />
    }
}
