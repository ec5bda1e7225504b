//! Where the time of each rank goes.

use leptos::prelude::*;
use web_sys::Element;

use crate::page::state::Planner;
use crate::page::table::SaveTable;
use crate::scene::{MOST_SPLIT_OPS, Part, Split};
use crate::text;

/// More rows than these tell a person nothing.
const MOST_ROWS: usize = 64;

#[component]
pub fn TimeSplitPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let has_plan = Memo::new(move |_| planner.scene.with(Option::is_some));
    let open = RwSignal::new(false);
    let toggled = move |event: leptos::ev::Event| open.set(event_target::<Element>(&event).has_attribute("open"));
    let content = move || {
        let scene = planner.scene.get()?;
        Some(match scene.time_split() {
            Some(split) => view! { <Ranks split /> }.into_any(),
            None => {
                let most = text::count(MOST_SPLIT_OPS as u64);
                view! { <p class="hint">{format!("The time is split for plans of up to {most} ops.")}</p> }.into_any()
            }
        })
    };
    move || {
        has_plan.get().then(|| {
            view! {
                <details class="panel split" data-test="time-split" prop:open=open.get_untracked() on:toggle=toggled>
                    <summary>"Time by rank"</summary>
                    {move || open.get().then(content)}
                </details>
            }
        })
    }
}

/// The name of a part for the style.
const fn class(part: Part) -> &'static str {
    match part {
        Part::Compute => "slice compute",
        Part::Communication => "slice communication",
        Part::Start => "slice start-of",
        Part::Dependency => "slice dependency",
        Part::Memory => "slice no-room",
        Part::End => "slice end-of",
        Part::GradientSync => "slice sync",
        Part::Optimizer => "slice optimizer",
    }
}

#[component]
fn Ranks(split: Vec<Split>) -> impl IntoView {
    // A part that no rank has is an empty column.
    let has = |part: &Part| split.iter().any(|split| split[*part as usize] > 0);
    let parts: Vec<Part> = Part::ALL.into_iter().filter(has).collect();
    let head = |part: &Part| {
        view! { <th scope="col" class="number" title=part.meaning()><span class=class(*part)></span>" "{part.name()}</th> }
    };
    let heads = parts.iter().map(head).collect_view();
    let more = split.len().saturating_sub(MOST_ROWS);
    let row = |(rank, split): (usize, &Split)| {
        let whole = split.iter().sum::<u64>().max(1) as f64;
        let bars = parts.iter().map(|part| {
            let width = format!("width:{:.3}%", 100.0 * split[*part as usize] as f64 / whole);
            view! { <span class=class(*part) style=width></span> }
        });
        let cells = parts.iter().map(|part| {
            let ns = split[*part as usize];
            let share = if ns == 0 { "0".to_owned() } else { text::percent(ns as f64 / whole) };
            view! { <td class="number" title=text::duration(ns as f64)>{share}</td> }
        });
        view! {
            <tr>
                <th scope="row">{rank}</th>
                <td class="split-bar" aria-hidden="true"><div>{bars.collect_view()}</div></td>
                {cells.collect_view()}
            </tr>
        }
    };
    let rows = split.iter().take(MOST_ROWS).enumerate().map(row).collect_view();
    view! {
        <div class="scroll" role="region" aria-label="Time by rank, table" tabindex="0">
            <table data-test="time-split-rows">
                <thead><tr><th scope="col">"Rank"</th><th class="split-bar" aria-hidden="true"></th>{heads}</tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
        {(more > 0).then(|| view! { <p class="hint">{format!("and {more} more ranks")}</p> })}
        <SaveTable css="[data-test='time-split-rows']" name="time-by-rank.csv" />
    }
}
