//! Files in and out: open by picker or drop, export, copy the link.

use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::{DragEvent, FileList, HtmlInputElement};

use super::state::Planner;
use super::{browser, parts};
use crate::reader::MOST_CHARS;

#[component]
pub fn Files() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let picked = move |event: leptos::ev::Event| {
        let input = event_target::<HtmlInputElement>(&event);
        open_all(planner, input.files());
        // The same file can be picked again after it has changed.
        input.set_value("");
    };
    // Why there is nothing to export; none if there is a plan.
    let no_export = move || match (planner.is_faulty(), planner.scene.with(Option::is_none)) {
        (true, _) => Some("The form has errors: correct the marked fields"),
        (false, true) => Some("There is no plan"),
        (false, false) => None,
    };
    let code = RwSignal::new(None::<QrCode>);
    let code_of = code;
    let toggle_code = move |_| {
        let Some(fragment) = planner.shared_fragment().filter(|_| code.with_untracked(Option::is_none)) else {
            return code.set(None);
        };
        leptos::task::spawn_local(async move {
            match parts::qr_code(&browser::address_with(&fragment)).await {
                Ok(found) => code.set(Some(found)),
                Err(reason) => planner.report(vec![reason]),
            }
        });
    };
    // It is of the link before.
    Effect::new(move |_| {
        let _ = (planner.form.with(|_| ()), planner.view.get());
        code.set(None);
    });
    view! {
        <div class="files">
            <label class="button" title="Open a plan, what a run left behind (traces, torch.profiler files or workerlog.N of PaddlePaddle: all of a run at once), a profile of measured times, a spec, a custom schedule, a log of Megatron-LM, or a config.json. You can also drop files on the page.">
                "Open…"
                <input type="file" multiple  data-test="open-file" on:change=picked />
            </label>
            <button type="button" data-test="export-plan" prop:disabled=move || no_export().is_some() on:click=move |_| planner.export()
                title=move || no_export().unwrap_or("Download the plan file. `pipeplan run` executes it.")>"Export plan"</button>
            <button type="button" data-test="copy-link" on:click=move |_| planner.copy_link()
                title="Copy a link that contains the whole form and what is seen">"Copy link"</button>
            <button type="button" data-test="qr" aria-expanded=move || code.with(Option::is_some).to_string() on:click=toggle_code
                title="Show the link as a QR code">"QR"</button>
            {move || code.get().map(|code| view! { <Code code on_close=move || code_closed(code_of) /> })}
        </div>
    }
}

/// A link as a QR code.
type QrCode = Option<(u32, String)>;

/// Hides the code, and gives the focus back.
fn code_closed(code: RwSignal<Option<QrCode>>) {
    code.set(None);
    browser::focus("[data-test='qr']");
}

/// The QR code of the link, or why there is none.
#[component]
fn Code(code: QrCode, on_close: impl Fn() + Copy + 'static) -> impl IntoView {
    let drawing = match code {
        Some((side, path)) => view! {
            <svg viewBox=format!("0 0 {side} {side}") role="img" aria-label="QR code of the link" data-test="qr-code">
                <rect width=side height=side fill="#fff" /><path d=path fill="#000" shape-rendering="crispEdges" /></svg>
        }
        .into_any(),
        None => view! { <p class="note" data-test="qr-none">{format!("The link has more than {MOST_CHARS} characters, which no QR code holds. Copy the link instead.")}</p> }.into_any(),
    };
    view! {
        <div class="qr" role="group" aria-label="QR code" on:keydown=move |event| if event.key() == "Escape" { on_close() }>
            {drawing}
            <button type="button" class="small" on:click=move |_| on_close()>"Close"</button>
        </div>
    }
}

/// Files dropped anywhere on the page are opened.
pub fn accept_dropped_files(planner: Planner) {
    let Some(body) = browser::window().and_then(|window| window.document()).and_then(|document| document.body())
    else {
        return;
    };
    let over = Closure::<dyn FnMut(DragEvent)>::new(|event: DragEvent| event.prevent_default());
    let drop = Closure::<dyn FnMut(DragEvent)>::new(move |event: DragEvent| {
        event.prevent_default();
        open_all(planner, event.data_transfer().and_then(|data| data.files()));
    });
    let _ = body.add_event_listener_with_callback("dragover", over.as_ref().unchecked_ref());
    let _ = body.add_event_listener_with_callback("drop", drop.as_ref().unchecked_ref());
    over.forget();
    drop.forget();
}

/// How long a file waits for a plan that was opened with it: a minute.
const PAUSE_MS: i32 = 50;
const MOST_PAUSES: u32 = 1200;

/// Whether a file is left behind by a run, as its name and its beginning say: read as one with all others of that run.
fn is_of_a_run(name: &str, head: &str) -> bool {
    let marks = ["\"traceEvents\"", "\"pipeplan-trace\"", "Profiler Info: Job"];
    name.starts_with("workerlog.")
        || head.starts_with("SQLite format 3")
        || marks.iter().any(|mark| head.contains(mark))
}

/// Opens files one after the other. Each applies to the form and the plan of those before it, so the page first shows a
/// plan.
fn open_all(planner: Planner, files: Option<FileList>) {
    let files: Vec<_> =
        files.map(|files| (0..files.length()).filter_map(|index| files.get(index)).collect()).unwrap_or_default();
    leptos::task::spawn_local(async move {
        planner.notice.set(None);
        let mut of_a_run = Vec::new();
        for file in files {
            if browser::head(&file).await.is_some_and(|head| is_of_a_run(&file.name(), &head)) {
                of_a_run.push(file);
                continue;
            }
            match browser::read_file(&file).await {
                Some(text) => {
                    planner.open_named(&file.name(), &text);
                    for _ in 0..MOST_PAUSES {
                        if !planner.is_opening() {
                            break;
                        }
                        browser::pause(PAUSE_MS).await;
                    }
                }
                None => planner.report_unreadable(&file.name()),
            }
        }
        // What they are a run of is on screen by now.
        if !of_a_run.is_empty() {
            planner.open_run_files(of_a_run);
        }
    });
}
