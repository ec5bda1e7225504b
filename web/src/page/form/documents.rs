//! The documents of a step: typed, or the lengths of a file.

use leptos::prelude::*;
use web_sys::HtmlInputElement;

use super::frame::{described_by, faults_of, framed, id, is_faulty, placeholder};
use crate::form::{DOCUMENTS, field};
use crate::logic::documents;
use crate::page::browser;
use crate::page::chosen::{Chosen, listed};
use crate::page::state::Planner;
use crate::text;

/// Longer texts are told in words: nobody reads or changes them in a line.
const MOST_TYPED: usize = 400;

#[component]
pub(super) fn DocumentsField() -> impl IntoView {
    let Some(field) = field(DOCUMENTS) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let typed = Memo::new(move |_| planner.form.with(|form| form.text(DOCUMENTS).to_owned()));
    let is_long = Memo::new(move |_| typed.with(|typed| typed.len() > MOST_TYPED));
    let has_any = Memo::new(move |_| typed.with(|typed| !typed.is_empty()));
    let said = Memo::new(move |_| typed.with(|typed| documents::said(typed)));
    let faults = faults_of(planner, field);
    let picked = move |event: leptos::ev::Event| {
        let input = event_target::<HtmlInputElement>(&event);
        let files = listed(input.files());
        leptos::task::spawn_local(async move {
            planner.notice.set(None);
            for Chosen { path, file } in files.into_iter().take(1) {
                match browser::read_file(&file).await {
                    Some(text) => planner.open_lengths(&path, &text),
                    None => planner.report_unreadable(&path),
                }
            }
        });
        // The same file can be picked again after it has changed.
        input.set_value("");
    };
    let remove = move |_| {
        // This button goes with them.
        browser::focus("[data-test='open-lengths']");
        planner.change(DOCUMENTS, "");
    };
    let line = move || {
        match is_long.get() {
        true => view! {
            <output class="note" id=id(field) data-test="documents-said">{move || said.get().unwrap_or_else(|| "A list of documents".to_owned())}</output>
        }
        .into_any(),
        false => view! {
            <input type="text" id=id(field) data-test=format!("field-{DOCUMENTS}") autocomplete="off" spellcheck="false"
                prop:value=typed
                placeholder=move || placeholder(planner, field)
                aria-describedby=described_by(field)
                aria-invalid=move || is_faulty(faults).to_string()
                on:input=move |event| planner.type_in(DOCUMENTS, |form| form.set(DOCUMENTS, event_target_value(&event)))
                on:change=move |_| planner.end_typing() />
        }
        .into_any(),
    }
    };
    let in_link = move || {
        planner.has_more_documents_than_a_link().then(|| {
            let most = text::count(documents::MOST_LINKED as u64);
            view! {
                <p class="note" data-test="documents-in-link">{format!("A link has at most {most} documents. The link of this form has a histogram of their lengths instead: it opens with documents that are drawn from it. A reload of this page keeps these documents.")}</p>
            }
        })
    };
    let input = view! {
        {line}
        <div class="lengths">
            <label class="button" title="Open the lengths of the documents of a step, in tokens: text with one on each line, or a JSON list. You can also drop the file on the page.">
                "Open lengths…"
                <input type="file" data-test="open-lengths" aria-describedby=described_by(field) on:change=picked />
            </label>
            {move || has_any.get().then(|| view! {
                <button type="button" class="small" data-test="remove-documents" on:click=remove>"Remove documents"</button>
            })}
        </div>
        {in_link}
    };
    framed(field, false, faults, input).into_any()
}
