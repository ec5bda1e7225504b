//! The timeline as a table: the ops of one rank in their order, for screen readers and for exact times.

use leptos::prelude::*;
use web_sys::Element;

use crate::page::state::Planner;
use crate::scene::{OpRow, words_of};
use crate::text;

/// Rows at once: more take a browser long, and a person cannot read them.
const MOST_ROWS: usize = 100;

#[component]
pub fn OpTable() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let open = RwSignal::new(false);
    let has_plan = Memo::new(move |_| planner.scene.with(Option::is_some));
    let toggled = move |event: leptos::ev::Event| open.set(event_target::<Element>(&event).has_attribute("open"));
    move || {
        has_plan.get().then(|| {
            view! {
                <details class="guide" data-test="op-table" on:toggle=toggled>
                    <summary>"Ops as a table"</summary>
                    {move || open.get().then(|| view! { <Ops /> })}
                </details>
            }
        })
    }
}

#[component]
fn Ops() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let (rank, first) = (RwSignal::new(0_usize), RwSignal::new(0_usize));
    let ranks = Memo::new(move |_| planner.scene.with(|scene| scene.as_ref().map_or(0, |scene| scene.tracks.len())));
    // Another plan has other ranks.
    let shown = Memo::new(move |_| rank.get().min(ranks.get().saturating_sub(1)));
    let ops = Memo::new(move |_| {
        let count = |rank: usize| planner.scene.with(|scene| Some(scene.as_ref()?.tracks.get(rank)?.spans().len()));
        count(shown.get()).unwrap_or(0)
    });
    let from = Memo::new(move |_| if first.get() < ops.get() { first.get() } else { 0 });
    let to = move || (from.get() + MOST_ROWS).min(ops.get());
    let rows = move || {
        let rows = planner.scene.get().map(|scene| scene.op_rows(shown.get(), from.get()..to()));
        rows.unwrap_or_default().into_iter().map(row).collect_view()
    };
    let choose = move |event: leptos::ev::Event| {
        rank.set(event_target_value(&event).parse().unwrap_or(0));
        first.set(0);
    };
    let options =
        move || (0..ranks.get()).map(|rank| view! { <option value=rank.to_string()>{rank}</option> }).collect_view();
    let which = move || format!("ops {} to {} of {}", from.get() + 1, to(), ops.get());
    view! {
        <p class="row">
            <label>"Rank "<select data-test="op-table-rank" prop:value=move || shown.get().to_string() on:change=choose>{options}</select></label>
            <button type="button" class="small" data-test="op-table-earlier" prop:disabled=move || from.get() == 0
                on:click=move |_| first.set(from.get_untracked().saturating_sub(MOST_ROWS))>"Earlier"</button>
            <button type="button" class="small" data-test="op-table-later" prop:disabled=move || to() == ops.get()
                on:click=move |_| first.set(from.get_untracked() + MOST_ROWS)>"Later"</button>
            <span class="note" role="status" data-test="op-table-part">{which}</span>
        </p>
        <div class="scroll" role="region" aria-label="Ops of a rank, table" tabindex="0">
            <table data-test="op-table-rows">
                <thead><tr>
                    <th scope="col">"Op"</th><th scope="col">"Kind"</th><th scope="col" class="number">"Stage"</th>
                    <th scope="col" class="number">"Microbatch"</th><th scope="col" class="number">"Starts"</th>
                    <th scope="col" class="number">"Takes"</th><th scope="col" class="number">"Idle before"</th>
                    <th scope="col">"Waits for"</th>
                </tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
}

fn row(row: OpRow) -> impl IntoView {
    let OpRow { op, start_ns, takes_ns, idle_ns, needs, .. } = row;
    let time = |ns: u64| text::duration(ns as f64);
    let needs: Vec<String> = needs.into_iter().map(|(op, rank)| format!("{op} of rank {rank}")).collect();
    view! {
        <tr>
            <th scope="row">{op.to_string()}</th>
            <td>{words_of(op.kind())}</td>
            <td class="number">{op.stage()}</td>
            <td class="number">{op.microbatch()}</td>
            <td class="number">{time(start_ns)}</td>
            <td class="number">{time(takes_ns)}</td>
            <td class="number">{if idle_ns > 0 { time(idle_ns) } else { String::new() }}</td>
            <td>{needs.join(", ")}</td>
        </tr>
    }
}
