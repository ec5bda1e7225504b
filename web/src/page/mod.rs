//! The page: components that connect state, arithmetic and browser.
//!
//! - In: events of the browser, and replies of the worker.
//! - Out: the document, and questions to the worker.
//! - Knows: all of this crate and the browser. Nothing else in this crate knows `page`.
//!
//! # Marks for tests
//! Elements carry `data-test` with a name that stays: see `web/README.md`.

mod browser;
mod chosen;
mod files;
mod form;
mod panels;
pub mod parts;
mod prover;
mod session;
mod state;
mod table;
mod timeline;
mod trace_client;
mod worker_client;

use leptos::either::Either;
use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::Element;

use crate::text;
use state::{Notice, Planner};

/// The status if the form has errors.
const FAULTY: &str = "the form has errors";

/// How long a notice stays on top while the page scrolls.
const NOTICE_STAYS_MS: i32 = 10_000;

/// Puts the page into the document.
pub fn start() {
    browser::remove("loading");
    leptos::mount::mount_to_body(Page);
}

#[component]
fn Page() -> impl IntoView {
    let planner = Planner::new();
    provide_context(planner);
    planner.open_address();
    planner.follow_what_is_seen();
    on_fragment_change(planner);
    files::accept_dropped_files(planner);
    browser::fit_paper();
    browser::on_key(|event| {
        let (undo, redo) = (event.key().eq_ignore_ascii_case("z"), event.key().eq_ignore_ascii_case("y"));
        if (event.ctrl_key() || event.meta_key()) && !event.alt_key() && (undo || redo) {
            event.prevent_default();
            browser::undo(redo || event.shift_key());
        }
    });
    // In a frame of another page: the timeline alone.
    let embedded = browser::query("embed").is_some();
    if embedded {
        browser::mark_body("embed");
    }
    let state = move || match (planner.faults.with(Vec::is_empty), planner.busy.get() || planner.following.get()) {
        (false, _) => "faulty",
        (true, true) => "planning",
        (true, false) => "idle",
    };
    // Tells tabs and entries of the history apart.
    Effect::new(move |_| {
        let shown = planner.scene.with(|scene| scene.as_ref().map(|scene| format!("{} · pipeplan", scene.summary())));
        browser::set_title(shown.as_deref().unwrap_or("pipeplan"));
    });
    // For screen readers: the start of planning and its result. Progress is not read aloud.
    let said = Memo::new(move |_| match state() {
        "idle" => planner.scene.with(|scene| scene.as_ref().map(|scene| scene.headline())).unwrap_or_default(),
        "planning" => "planning…".to_owned(),
        _ => FAULTY.to_owned(),
    });
    view! {
        <button type="button" class="skip" data-test="skip" on:click=move |_| browser::focus("main")>"Skip to the plan"</button>
        <header class="top">
            <h1><svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><path class="f" d="M1 2h7v3H1z" /><path class="b" d="M4.5 6.5h7v3h-7z" /><path class="w" d="M8 11h7v3H8z" /></svg>"pipeplan"</h1>
            <p class="tagline">"Plan pipeline-parallel training"</p>
            <p class="status" data-test="status" data-state=state>
                {move || match state() {
                    "planning" if planner.following.get() => Either::Left("finding a layout…".to_owned()),
                    "planning" => Either::Left(progress(planner.progress.get())),
                    "faulty" => Either::Right(view! {
                        <button type="button" class="quiet" data-test="to-fault" title="Go to the first error" on:click=move |_| show_fault(planner)>{FAULTY}</button>
                    }),
                    _ => Either::Left(String::new()),
                }}
            </p>
            <Searching />
            <panels::run::Reading />
            <p class="unseen" role="status">{said}</p>
            <button type="button" class="form-toggle" data-test="form-toggle" aria-expanded=move || planner.form_open.get().to_string()
                on:click=move |_| planner.form_open.update(|open| *open = !*open)>"Change…"</button>
            <files::Files />
        </header>
        <Notices notice=planner.notice />
        <div class="columns">
            <form::SpecForm />
            <main tabindex="-1" class:outdated=move || planner.outdated.get() || planner.is_faulty() class:of-before=move || planner.is_faulty()>
                // The form is not printed, so this line gives its subject.
                <p class="subject" data-test="subject">{move || planner.subject()}</p>
                <panels::arguments::ArgumentsPanel />
                <panels::figures::FigureRow />
                <timeline::TimelinePanel />
                {embedded.then(|| view! { <p class="whole-page"><a target="_blank" data-test="whole-page" href="?" on:click=open_whole>"Open in pipeplan"</a></p> })}
                <panels::hang::HangPanel />
                <panels::run::RunPanel />
                <panels::microbatches::MicrobatchesPanel />
                <panels::time_split::TimeSplitPanel />
                <panels::memory::MemoryPanel />
                <panels::passes::PassesPanel />
                <panels::sensitivity::SensitivityPanel />
                <panels::frontier::FrontierPanel />
                <panels::compare::Compare />
                <panels::layouts::LayoutsPanel />
            </main>
        </div>
    }
}

/// Goes to the first fault of the form: to its field, or to those that are of no field.
fn show_fault(planner: Planner) {
    planner.form_open.set(true);
    // The form may have to open first.
    browser::next_frame(|| {
        browser::show(".spec .faulty :is(input, select, textarea), .spec [data-test='stray-faults']:not(:empty)")
    });
}

/// Opens the whole page with what an embedded one shows.
fn open_whole(event: leptos::ev::MouseEvent) {
    let anchor = event.current_target().and_then(|target| target.dyn_into::<Element>().ok());
    if let Some(anchor) = anchor {
        let _ = anchor.set_attribute("href", &browser::address_with(&browser::fragment()));
    }
}

/// How far the comparison has come. The last row is the search for the best.
fn progress((done, all): (u32, u32)) -> String {
    match all {
        0 => "planning…".to_owned(),
        _ if done + 1 >= all => "searching for the best…".to_owned(),
        _ => format!("planning… {done} of {all} schedules"),
    }
}

/// The progress of a long search, and a button that stops it. Not read aloud: the figure changes all the time.
#[component]
fn Searching() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let shown = Memo::new(move |_| planner.busy.get() && planner.searching.with(Option::is_some));
    let gap = move || {
        let (cost_ns, bound_ns) = planner.searching.get()?;
        let gap = pipeplan_core::plan::planner::gap(cost_ns, bound_ns)?;
        Some(format!("at most {} better ", text::percent(gap)))
    };
    move || {
        shown.get().then(|| view! {
            <p class="note searching"><span data-test="search-gap">{gap}</span>
                <button type="button" class="small" data-test="stop-search" on:click=move |_| planner.stop_searching()
                    title="Stop the search and keep the best schedule so far. Choose Best again to continue.">"Stop"</button>
            </p>
        })
    }
}

/// A notice stays in sight at any scroll position for some seconds. Then it stays at the top of the page and covers
/// nothing.
#[component]
fn Notices(notice: RwSignal<Option<Notice>>) -> impl IntoView {
    let fresh = RwSignal::new(0_u32);
    Effect::new(move |_| {
        if notice.with(Option::is_some) {
            fresh.update(|turn| *turn = turn.wrapping_add(1).max(1));
            let turn = fresh.get_untracked();
            browser::after(NOTICE_STAYS_MS, move || {
                if fresh.get_untracked() == turn {
                    fresh.set(0);
                }
            });
        }
    });
    let is_fresh = move || fresh.get() != 0;
    // The element that had the focus before the notice.
    let came_from = StoredValue::new_local(None::<Element>);
    let reached = move |event: leptos::ev::FocusEvent| {
        came_from.set_value(event.related_target().and_then(|from| from.dyn_into().ok()));
    };
    let dismiss = move |_| {
        browser::focus("main");
        browser::focus_on(came_from.get_value().as_ref());
        notice.set(None);
    };
    move || {
        notice.get().map(|Notice { wrong, lines }| {
            view! {
                <div class="notice" class:fresh=is_fresh class:wrong=wrong role=if wrong { "alert" } else { "status" } data-test="notice">
                    <div>{lines.into_iter().map(|line| view! { <p>{line}</p> }).collect_view()}</div>
                    <button type="button" class="quiet" aria-label="Dismiss" on:focus=reached on:click=dismiss>"×"</button>
                </div>
            }
        })
    }
}

fn on_fragment_change(planner: Planner) {
    let Some(window) = browser::window() else { return };
    let changed = Closure::<dyn FnMut()>::new(move || planner.fragment_changed());
    window.set_onhashchange(Some(changed.as_ref().unchecked_ref()));
    changed.forget();
}
