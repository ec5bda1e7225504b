//! A run that hangs: who waits in which collective, as dumps of torch's flight recorder say it.

use std::sync::Arc;

use leptos::prelude::*;

use crate::page::browser;
use crate::page::state::Planner;
use crate::protocol::HangReport;

#[component]
pub fn HangPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    move || planner.measuring.hang.get().map(|report| view! { <Hang report /> })
}

#[component]
fn Hang(report: Arc<HangReport>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let close = move |_| {
        browser::focus("main");
        planner.measuring.hang.set(None);
    };
    let line = |(word, line): &(String, String)| view! { <dt>{word.clone()}</dt><dd>{line.clone()}</dd> };
    let part = |(title, lines): &(String, Vec<(String, String)>)| {
        view! {
            {(!title.is_empty()).then(|| view! { <h3>{title.clone()}</h3> })}
            <dl>{lines.iter().map(line).collect_view()}</dl>
        }
    };
    view! {
        <section class="panel run hang" aria-labelledby="hang-title" data-test="hang">
            <div class="toolbar">
                <h2 id="hang-title">"Run that hangs"</h2>
                <span class="note">"by dumps of torch's flight recorder, which have no times of ops"</span>
                <div class="buttons">
                    <button type="button" class="small" data-test="save-hang" on:click=move |_| planner.save_hang()
                        title="Save the report as JSON">"Report"</button>
                    <button type="button" class="small" data-test="hang-close" on:click=close>"Close"</button>
                </div>
            </div>
            {report.parts.iter().map(part).collect_view()}
        </section>
    }
}
