//! Bytes by rank and kind, and suggestions if they do not fit.

use leptos::prelude::*;

use crate::form::{field, value_label};
use crate::page::browser;
use crate::page::state::Planner;
use crate::page::table::SaveTable;
use crate::protocol::{RankBytes, Shorter, SuggestionRow, from_core};
use crate::text;

/// More rows than these tell a person nothing.
const MOST_ROWS: usize = 64;
const MOST_SUGGESTIONS: usize = 16;

#[component]
pub fn MemoryPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let unfit = Memo::new(move |_| planner.unfit.with(Option::is_some));
    let ranks = Memo::new(move |_| {
        let unfit = planner.unfit.with(|unfit| unfit.as_ref().map(|unfit| unfit.memory.clone()));
        unfit
            .or_else(|| planner.scene.with(|scene| scene.as_ref().map(|scene| scene.memory.clone())))
            .unwrap_or_default()
    });
    let known = Memo::new(move |_| ranks.with(|ranks| !ranks.is_empty()));
    let whose = move || {
        planner.unfit.with(|unfit| {
            unfit.as_ref().map(|unfit| format!(": {} does not fit", text::schedule_title(&unfit.schedule)))
        })
    };
    let price =
        move || planner.shorter.with(|shorter| shorter.as_ref().map(|shorter| format!(": {}", times(shorter))));
    move || {
        known.get().then(|| {
            view! {
                <details class="panel memory" data-test="memory" prop:open=unfit>
                    <summary>"Memory by rank"{whose}{price}</summary>
                    {move || planner.unfit.get().map(|unfit| {
                        view! { <Suggestions heading="Suggestions:" suggestions=unfit.suggestions.clone() /> }
                    })}
                    {move || planner.shorter.get().map(|shorter| view! { <Price shorter=(*shorter).clone() /> })}
                    {move || view! { <Ranks ranks=ranks.get() /> }}
                </details>
            }
        })
    }
}

/// The effect of the limit on the step.
fn times(shorter: &Shorter) -> String {
    let times = shorter.step_ns as f64 / shorter.without_limit_ns.max(1) as f64;
    format!("the limit makes the step {times:.2} times as long")
}

/// The cost of the limit, and suggestions.
#[component]
fn Price(shorter: Shorter) -> impl IntoView {
    let [step, free] = [shorter.step_ns, shorter.without_limit_ns].map(|ns| text::duration(ns as f64));
    let said = format!("The step time is {step}; without a memory limit it is {free}.");
    let none = "No change that was tried makes the step shorter on these devices. Find the fastest, under Layouts, tries other layouts.";
    let advice = match shorter.suggestions.is_empty() {
        true => view! { <p class="hint">{none}</p> }.into_any(),
        false => {
            let heading = "Changes that make the step shorter on these devices (a search can improve these times):";
            view! { <Suggestions heading=heading suggestions=shorter.suggestions /> }.into_any()
        }
    };
    view! {
        <p class="hint" data-test="price">{said}</p>
        {advice}
    }
}

/// Suggestions, each with its result.
#[component]
fn Suggestions(heading: &'static str, suggestions: Vec<SuggestionRow>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    if suggestions.is_empty() {
        return view! { <p class="hint">"No change that was tried needs less memory. Give a rank more memory or fewer layers."</p> }.into_any();
    }
    let more = suggestions.len().saturating_sub(MOST_SUGGESTIONS);
    let apply = move |changes: &[[String; 3]]| {
        // These suggestions go with it.
        browser::focus("main");
        planner.change_with(|form| form.change_all(changes));
    };
    let row = move |suggestion: SuggestionRow| {
        let said = |[path, from, to]: &[String; 3]| {
            let label = field(path).map_or(path.as_str(), |field| field.label);
            format!("{label}: {} → {}", value_label(path, from), value_label(path, to))
        };
        let said = suggestion.changes.iter().map(said).collect::<Vec<_>>().join("; ");
        let fits = if suggestion.fits { "fits" } else { "still does not fit" };
        let devices = if suggestion.devices > 1 {
            format!(", on {} times the devices", suggestion.devices)
        } else {
            String::new()
        };
        let step = text::duration(suggestion.step_ns as f64);
        // What fits with the shortest step may still cost most of the speed: its MFU stands beside it.
        let mfu = suggestion.mfu_e4.map(|mfu| f64::from(mfu) / 1e4);
        let cheapest = suggestion.cheapest.then(|| view! { <b data-test="cheapest">{praise(mfu)}</b> });
        let mfu = mfu.map_or_else(String::new, |mfu| format!(" (MFU {})", text::mfu(mfu)));
        let comes_to = format!("peak {}, {fits}; step time {step}{mfu}{devices}", text::bytes(suggestion.peak));
        let first = suggestion.changes.first().map_or("", |change| change[0].as_str());
        view! {
            <li><button type="button" title="Make this change" data-test=format!("suggestion-{first}")
                on:click=move |_| apply(&suggestion.changes)>{said}</button>
            <span class="note">{cheapest}{comes_to}</span></li>
        }
    };
    view! {
        <p class="hint">{heading}</p>
        <ul class="suggestions" data-test="suggestions">{suggestions.into_iter().take(MOST_SUGGESTIONS).map(row).collect_view()}</ul>
        {(more > 0).then(|| view! { <p class="hint">{format!("and {more} more: `pipeplan memory` lists them")}</p> })}
    }
    .into_any()
}

/// An MFU below this costs most of the speed: published runs of dense models and of mixtures reach 20 to 55 %.
const SLOW_MFU: f64 = 0.15;

/// What the suggestion with the shortest step is called.
fn praise(mfu: Option<f64>) -> &'static str {
    match mfu {
        Some(mfu) if mfu < SLOW_MFU => "fits, at most of the speed: ",
        _ => "cheapest: ",
    }
}

#[component]
fn Ranks(ranks: Vec<RankBytes>) -> impl IntoView {
    // A kind that no rank holds would be an empty column.
    let held = |kind: usize| ranks.iter().any(|rank| rank.fixed.get(kind).is_some_and(|bytes| *bytes > 0));
    let kinds: Vec<(usize, &str)> =
        from_core::kinds_of_bytes().into_iter().enumerate().filter(|(kind, _)| held(*kind)).collect();
    let heads = kinds.iter().map(|(_, name)| view! { <th scope="col" class="number">{*name}</th> }).collect_view();
    let more = ranks.len().saturating_sub(MOST_ROWS);
    let on_host = ranks.iter().any(|bytes| bytes.on_host > 0);
    let row = |(rank, bytes): (usize, &RankBytes)| {
        let over = bytes.limit.is_some_and(|limit| bytes.peak > limit);
        let cells = kinds.iter().map(|(kind, _)| {
            let amount = bytes.fixed.get(*kind).copied().unwrap_or(0);
            view! { <td class="number">{text::bytes(amount)}</td> }
        });
        let at = if bytes.at.is_empty() { String::new() } else { format!("peak during {}", bytes.at) };
        let room = bytes.limit.map_or_else(
            || "—".to_owned(),
            |limit| match limit.checked_sub(bytes.peak) {
                Some(room) => text::bytes(room),
                None => format!("−{}", text::bytes(bytes.peak - limit)),
            },
        );
        view! {
            <tr class:over=over>
                <th scope="row">{rank}</th>
                {cells.collect_view()}
                <td class="number" title=at>{text::bytes(bytes.activations)}</td>
                <td class="number">{text::bytes(bytes.peak)}</td>
                <td class="number">{room}</td>
                {on_host.then(|| view! { <td class="number">{text::bytes(bytes.on_host)}</td> })}
                <td>{bytes.layers.clone()}</td>
            </tr>
        }
    };
    let rows = ranks.iter().take(MOST_ROWS).enumerate().map(row).collect_view();
    view! {
        <div class="scroll" role="region" aria-label="Memory by rank, table" tabindex="0">
            <table>
                <thead><tr><th scope="col">"Rank"</th>{heads}<th scope="col" class="number">"activations"</th><th scope="col" class="number">"peak"</th><th scope="col" class="number">"left"</th>{on_host.then(|| view! { <th scope="col" class="number">"in host memory"</th> })}<th scope="col">"layers"</th></tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
        {(more > 0).then(|| view! { <p class="hint">{format!("and {more} more ranks")}</p> })}
        <SaveTable css="[data-test='memory'] table" name="memory-by-rank.csv" />
    }
}
