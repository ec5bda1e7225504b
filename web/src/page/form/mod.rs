//! The form for the spec.
//!
//! - In: the state of the page.
//! - Out: the inputs of all fields, with labels, help and faults.
//! - Knows: [`form`](crate::form), the catalogs of the planner, the state of the page.

mod documents;
mod frame;
mod inputs;
mod model;
mod options;
mod presets;
mod schedule;
mod typed;

use inputs::{ListField, SliderField, TextField};
use leptos::prelude::*;
use model::ModelFields;
use options::{named, schedules};
use pipeplan_core::base::fields::Fault;
use presets::PaperPresets;
use schedule::GroupSize;
use typed::TypedFields;

use crate::form::{FIELDS, Field, Form, Group, Kind, choices};
use crate::page::state::Planner;

#[component]
pub fn SpecForm() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let kind = Memo::new(move |_| planner.kind());
    let choose = move |kind: Kind| planner.change_with(|form| form.kind = kind);
    // Stray faults: those that no field of this form is to blame for.
    let stray = move || {
        let faults = planner.faults.get();
        let stray = faults.into_iter().filter(|fault| Form::field_of(fault).is_none());
        stray.map(|fault| view! { <p class="fault">{fault.to_string()}</p> }).collect_view()
    };
    view! {
        <form class="spec" class:open=planner.form_open aria-label="Spec" data-test="form" on:submit=|event| event.prevent_default()>
            <div class="kinds" role="group" aria-label="What is planned">
                <KindButton this=Kind::Model title="Model on a cluster" kind choose test="kind-model" />
                <KindButton this=Kind::Typed title="Typed costs" kind choose test="kind-typed" />
            </div>
            <PaperPresets />
            <div data-test="stray-faults" tabindex="-1">{stray}</div>
            {move || match kind.get() {
                Kind::Model => view! { <ModelFields /> }.into_any(),
                Kind::Typed => view! { <TypedFields /> }.into_any(),
            }}
            <fieldset>
                <legend>"Transfers and name"</legend>
                <Folded title="P2P transfers" groups=&[Group::Messages]>
                    <TextField path="messages.lowering" list="overlapped overlapped:2 grouped receive-first in-pieces" />
                    <TextField path="messages.transport" list="grouped rendezvous buffered buffered:4 pair-ordered streams" />
                </Folded>
                <TextField path="jitter_permille" />
                <ListField path="target" choices=named(choices("target")) />
                <TextField path="name" />
            </fieldset>
        </form>
    }
}

/// What a person changes most, near the top of the form: the schedule and the memory limit.
#[component]
pub(super) fn ScheduleAndLimit(limit: &'static str) -> impl IntoView {
    view! {
        <fieldset class="start">
            <legend class="unseen">"Schedule and memory limit"</legend>
            <ListField path="schedule" choices=schedules() />
            <GroupSize />
            <SliderField path=limit />
        </fieldset>
    }
}

#[component]
fn KindButton(
    this: Kind,
    title: &'static str,
    kind: Memo<Kind>,
    choose: impl Fn(Kind) + Copy + Send + 'static,
    test: &'static str,
) -> impl IntoView {
    view! {
        <button type="button" data-test=test aria-pressed=move || (kind.get() == this).to_string()
            on:click=move |_| choose(this)>{title}</button>
    }
}

/// Rarely used fields. Opens by itself when one of them gets a value or a fault, also if a person has closed it.
#[component]
pub(super) fn Folded(title: &'static str, groups: &'static [Group], children: Children) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let mine = |field: &&Field| groups.contains(&field.group);
    let said = Memo::new(move |_| {
        planner.form.with(|form| FIELDS.iter().filter(mine).any(|field| !form.text(field.path).is_empty()))
    });
    let faults = Memo::new(move |_| {
        let here = |fault: &&Fault| Form::field_of(fault).is_some_and(|field| groups.contains(&field.group));
        planner.faults_of_fields().iter().filter(here).cloned().collect::<Vec<Fault>>()
    });
    // Nothing closes it but a hand: emptying the last field does not take it away from under one.
    let open = RwSignal::new(false);
    let open_where = move |reason: bool| {
        if reason {
            open.set(true);
        }
    };
    Effect::new(move |_| open_where(said.get()));
    Effect::new(move |_| open_where(faults.with(|faults| !faults.is_empty())));
    let toggled = move |event: leptos::ev::Event| {
        open.set(event_target::<web_sys::Element>(&event).has_attribute("open"));
    };
    view! {
        <details prop:open=open on:toggle=toggled>
            <summary>{title}</summary>
            {children()}
        </details>
    }
}
