//! What was done with each argument of a run of Megatron-LM that was opened, and what its script leaves open.

use leptos::prelude::*;

use crate::page::state::{OpenRun, Planner};
use crate::page::table::SaveTable;
use crate::reader::Treatment;

#[component]
pub fn ArgumentsPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    move || planner.run.get().map(|run| view! { <Table run /> })
}

#[component]
fn Table(run: OpenRun) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let OpenRun { name, rows, text, values, command } = run;
    let counted = |what: Treatment| rows.iter().filter(|row| row.treatment == what).count();
    let title = format!(
        "Arguments of {}: {} used, {} planned otherwise, {} refused, {} not known, {} without effect",
        if name.is_empty() { "the run" } else { &name },
        counted(Treatment::Used),
        counted(Treatment::Otherwise),
        counted(Treatment::Refused),
        counted(Treatment::NotKnown),
        counted(Treatment::Harmless)
    );
    let is_refused = counted(Treatment::Refused) > 0;
    let (values, command) = (RwSignal::new(values), RwSignal::new(command));
    let again = move |_| planner.open_run_with(&name, &text, &values.get_untracked(), &command.get_untracked());
    let rows = rows.into_iter().map(|row| {
        view! {
            <tr class:fault=row.treatment == Treatment::Refused>
                <th scope="row">{row.argument}</th>
                <td class="words">{row.treatment.title()}</td>
                <td class="words">{row.how}</td>
            </tr>
        }
    });
    view! {
        <details class="panel arguments" data-test="arguments" open=is_refused>
            <summary>{title}</summary>
            <p class="row">
                <label>"Variables of the script "
                    <input type="text" data-test="script-values" placeholder="NAME=VALUE NAME=VALUE" spellcheck="false" autocomplete="off"
                        prop:value=values on:input=move |event| values.set(event_target_value(&event)) /></label>
                <label>" Training command "
                    <input type="text" inputmode="numeric" size="3" data-test="script-command" placeholder="1" autocomplete="off"
                        prop:value=command on:input=move |event| command.set(event_target_value(&event)) /></label>
                <button type="button" class="small" data-test="script-again" on:click=again>"Read again"</button>
            </p>
            <p><SaveTable css="[data-test='arguments'] table" name="arguments.csv" /></p>
            <div class="scroll" role="region" aria-label="Arguments, table" tabindex="0">
                <table>
                    <thead><tr><th scope="col">"Argument"</th><th scope="col">"Treatment"</th><th scope="col">"Reason"</th></tr></thead>
                    <tbody>{rows.collect_view()}</tbody>
                </table>
            </div>
        </details>
    }
}
