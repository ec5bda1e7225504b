//! The sensitivity of the plan on screen.

use leptos::prelude::*;
use wasm_bindgen::JsCast;

use crate::page::state::Planner;
use crate::page::table::SaveTable;
use crate::protocol::SensitivityRows;
use crate::text;

#[component]
pub fn SensitivityPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let has_plan = Memo::new(move |_| planner.scene.with(Option::is_some));
    let toggled = move |event: leptos::ev::Event| {
        let details = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
        planner.sensitivity_open.set(details.is_some_and(|details| details.has_attribute("open")));
        planner.ask_sensitivity();
    };
    move || {
        has_plan.get().then(|| {
            view! {
                <details class="panel" data-test="sensitivity" prop:open=planner.sensitivity_open.get_untracked() on:toggle=toggled>
                    <summary>"Sensitivity"</summary>
                    {move || match planner.sensitivity.get() {
                        Some(sensed) if sensed.rows.is_empty() => view! { <p class="hint">"No times of this plan can change."</p> }.into_any(),
                        Some(sensed) => view! { <Effects sensed /> }.into_any(),
                        None => view! { <p class="hint">"Running the schedule with changed times…"</p> }.into_any(),
                    }}
                </details>
            }
        })
    }
}

#[component]
fn Effects(sensed: SensitivityRows) -> impl IntoView {
    let SensitivityRows { cost_ns, permille, rows, others } = sensed;
    let by = f64::from(permille) / 10.0;
    let row = |(name, longer_ns, less_ns): (String, u64, u64)| {
        view! {
            <tr>
                <th scope="row">{name}</th>
                <td class="number">{text::change(longer_ns, cost_ns)}</td>
                <td class="number">{text::change(less_ns, cost_ns)}</td>
            </tr>
        }
    };
    view! {
        <p class="hint">{format!(
            "Change of the time of this schedule when one item takes {by} % more or {by} % less. \
             If one rank stands out, move layers away from it."
        )}</p>
        <div class="scroll" role="region" aria-label="Sensitivity, table" tabindex="0">
            <table data-test="effects">
                <thead><tr><th scope="col">"Item"</th><th scope="col" class="number">{format!("{by} % longer")}</th><th scope="col" class="number">{format!("{by} % less")}</th></tr></thead>
                <tbody>{rows.into_iter().map(row).collect_view()}</tbody>
            </table>
        </div>
        <SaveTable css="[data-test='effects']" name="sensitivity.csv" />
        {(others > 0).then(|| view! { <p class="hint">{format!("and {others} others with smaller effects")}</p> })}
    }
}
