//! Files in and out: open by picker or drop, export, copy the link.

use leptos::prelude::*;
use pipeplan_core::formats::run_files::{HEAD, Kind};
use wasm_bindgen::prelude::*;
use web_sys::{DragEvent, HtmlInputElement};

use super::chosen::{Chosen, Dropped, MOST_FILES, listed};
use super::state::Planner;
use super::{browser, parts};
use crate::reader::MOST_CHARS;
use crate::text;

#[component]
pub fn Files() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let picked = move |event: leptos::ev::Event| {
        let input = event_target::<HtmlInputElement>(&event);
        let (turn, files) = (planner.look_at_files(), listed(input.files()));
        leptos::task::spawn_local(open_all(planner, turn, files));
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
            <label class="button" title="Open a plan, what a run left behind (traces, torch.profiler files, workerlog.N of PaddlePaddle or dumps of torch's flight recorder: all of a run at once), a profile of measured times, a spec, a custom schedule, lengths of documents, a log of Megatron-LM, or a config.json. You can also drop files and folders on the page.">
                "Open…"
                <input type="file" multiple data-test="open-file" on:change=picked />
            </label>
            <label class="button" title="Open what a run left behind in a folder and the folders in it: files of all ranks and hosts, machine0, machine1 and so on. A plan in it is opened, too.">
                "Folder…"
                <input type="file" prop:webkitdirectory=true data-test="open-folder" on:change=picked />
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

/// Files and folders dropped anywhere on the page are opened.
pub fn accept_dropped_files(planner: Planner) {
    let Some(body) = browser::window().and_then(|window| window.document()).and_then(|document| document.body())
    else {
        return;
    };
    let over = Closure::<dyn FnMut(DragEvent)>::new(|event: DragEvent| event.prevent_default());
    let drop = Closure::<dyn FnMut(DragEvent)>::new(move |event: DragEvent| {
        event.prevent_default();
        let Some(dropped) = event.data_transfer().map(|data| Dropped::of(&data)) else { return };
        leptos::task::spawn_local(async move {
            let turn = planner.look_at_files();
            let files = dropped.files(|count| planner.looks_on(turn, [count, 0])).await;
            open_all(planner, turn, files).await;
        });
    });
    let _ = body.add_event_listener_with_callback("dragover", over.as_ref().unchecked_ref());
    let _ = body.add_event_listener_with_callback("drop", drop.as_ref().unchecked_ref());
    over.forget();
    drop.forget();
}

/// How long a file waits for a plan that was opened with it: a minute.
const PAUSE_MS: i32 = 50;
const MOST_PAUSES: u32 = 1200;
/// Bytes that mostly say what a file is; else [`HEAD`] do.
const START: usize = 1 << 12;
/// Files of a folder that are named because nothing reads them.
const MOST_NAMED: usize = 5;

/// What to do with a file.
enum Use {
    /// It is of a run: read as one with all others of that run.
    Run,
    /// It is opened by itself, whatever it is.
    Alone,
    /// It lay in a folder, and nothing reads it.
    Nothing,
}

async fn use_of(chosen: &Chosen) -> Use {
    let mut head = Vec::new();
    for most in [START, HEAD] {
        head = browser::head(&chosen.file, most).await.unwrap_or_default();
        if Kind::of(&chosen.path, &head).is_some() {
            return Use::Run;
        }
        if head.len() < most {
            break;
        }
    }
    let is_plan = String::from_utf8_lossy(&head).contains("\"pipeplan-plan\"");
    if is_plan || !chosen.is_in_folder() { Use::Alone } else { Use::Nothing }
}

/// Opens files one after the other. Each applies to the form and the plan of those before it, so the page first shows a
/// plan. `turn` is that of [`Planner::look_at_files`].
async fn open_all(planner: Planner, turn: u32, files: Vec<Chosen>) {
    planner.notice.set(None);
    let (mut of_a_run, mut alone, mut unread) = (Vec::new(), Vec::new(), Vec::new());
    let count = files.len().min(MOST_FILES);
    let too_many = files.len() > MOST_FILES;
    for (at, chosen) in files.into_iter().take(MOST_FILES).enumerate() {
        if !planner.looks_on(turn, [at, count]) {
            return;
        }
        match use_of(&chosen).await {
            Use::Run => of_a_run.push(chosen),
            Use::Alone => alone.push(chosen),
            Use::Nothing => unread.push(chosen.path),
        }
    }
    if !planner.looks_on(turn, [count, count]) {
        return;
    }
    planner.stop_looking();
    // Of the plans in a folder, the one that ran is not known.
    if alone.iter().filter(|chosen| chosen.is_in_folder()).count() > 1 {
        alone.retain(|chosen| {
            let stays = !chosen.is_in_folder();
            if !stays {
                unread.push(chosen.path.clone());
            }
            stays
        });
    }
    for Chosen { path, file } in alone {
        match browser::read_file(&file).await {
            Some(text) => {
                planner.open_named(&path, &text);
                for _ in 0..MOST_PAUSES {
                    if !planner.is_opening() {
                        break;
                    }
                    browser::pause(PAUSE_MS).await;
                }
            }
            None => planner.report_unreadable(&path),
        }
    }
    if too_many {
        planner.report_also(vec![format!(
            "Only the first {} files are read. Choose the folder of one run.",
            text::count(MOST_FILES as u64)
        )]);
    }
    match (of_a_run.is_empty(), &unread[..]) {
        (_, []) => {}
        (true, _) if count == unread.len() => {
            planner.report_also(vec![format!("No file of this folder is of a run: {}.", named(&unread))])
        }
        _ => planner.notify(&format!("Not read, since they are of no run: {}.", named(&unread))),
    }
    // What they are a run of is on screen by now.
    if !of_a_run.is_empty() {
        planner.open_run_files(of_a_run);
    }
}

/// The first of some files.
fn named(files: &[String]) -> String {
    let first = files.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(MOST_NAMED) {
        0 => first,
        more => format!("{first} and {} more", text::count(more as u64)),
    }
}
