//! A button that saves a table.

use leptos::prelude::*;

use super::state::Planner;

/// Saves the tables under `css` as the CSV file `name`, as they stand on screen.
#[component]
pub fn SaveTable(css: &'static str, name: &'static str) -> impl IntoView {
    let planner = expect_context::<Planner>();
    view! {
        <button type="button" class="small save-table" data-test=format!("save-{name}") title="Save this table as CSV"
            on:click=move |_| planner.save_table(css, name)>"CSV"</button>
    }
}
