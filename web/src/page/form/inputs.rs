//! The inputs of fields: a line, several lines, a number with a slider, a list.

use leptos::prelude::*;

use super::frame::{described_by, faults_of, framed, id, is_faulty, placeholder};
use super::options::{Choices, flag};
use crate::form::{FIELDS, Field, Group, Unit, field, slider, value_label};
use crate::page::state::Planner;

/// A line of text.
#[component]
pub(super) fn TextField(path: &'static str, #[prop(optional)] list: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| planner.form.with(|form| form.text(path).to_owned()));
    let faults = faults_of(planner, field);
    let options = list.split_whitespace().map(|name| view! { <option value=name></option> }).collect_view();
    let list_id = format!("{}-list", id(field));
    let input = view! {
        <div class="unit">
            <input type="text" id=id(field) data-test=format!("field-{path}") autocomplete="off" spellcheck="false"
                list=(!list.is_empty()).then(|| list_id.clone())
                prop:value=text
                placeholder=move || placeholder(planner, field)
                aria-label=field.accessible_name()
                aria-describedby=described_by(field)
                aria-invalid=move || is_faulty(faults).to_string()
                class:found=move || planner.form.with(|form| form.found(path).is_some())
                on:input=move |event| planner.type_in(path, |form| form.set(path, event_target_value(&event)))
                on:change=move |_| planner.end_typing() />
            <span class="suffix">{field.unit.suffix()}</span>
            {(!list.is_empty()).then(|| view! { <datalist id=list_id.clone()>{options}</datalist> })}
        </div>
    };
    framed(field, false, faults, input).into_any()
}

/// Several lines of text.
#[component]
pub(super) fn LinesField(path: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| planner.form.with(|form| form.text(path).to_owned()));
    let faults = faults_of(planner, field);
    let input = view! {
        <textarea id=id(field) data-test=format!("field-{path}") rows="3" spellcheck="false" prop:value=text
            aria-describedby=described_by(field)
            aria-invalid=move || is_faulty(faults).to_string()
            on:input=move |event| planner.type_in(path, |form| form.set(path, event_target_value(&event)))
            on:change=move |_| planner.end_typing()></textarea>
    };
    framed(field, false, faults, input).into_any()
}

/// A number with a slider: dragging plans live.
#[component]
pub(super) fn SliderField(path: &'static str) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let place =
        Memo::new(move |_| planner.form.with(|form| planner.spec.with(|spec| slider(form, spec.as_deref(), path))));
    let of = move |pick: fn(&crate::form::Slider) -> f64| {
        move || place.with(|place| place.as_ref().map_or_else(String::new, |place| pick(place).to_string()))
    };
    let moved = move |event: leptos::ev::Event| {
        let position: Option<f64> = event_target_value(&event).parse().ok();
        if let (Some(position), Some(place)) = (position, place.get_untracked()) {
            planner.type_in(path, |form| form.set(path, place.text_at(position)));
        }
    };
    view! {
        <div class="slid">
            <TextField path />
            <input type="range" aria-label=format!("{}, slider", field.label) data-test=format!("slider-{path}")
                min=of(|place| place.least) max=of(|place| place.most) step=of(|place| place.step)
                prop:value=of(|place| place.value)
                hidden=move || place.with(|place| place.is_none())
                on:input=moved
                on:change=move |_| planner.end_typing() />
        </div>
    }
    .into_any()
}

/// A choice.
#[component]
pub(super) fn ListField(path: &'static str, choices: Choices, #[prop(optional)] alone: bool) -> impl IntoView {
    let Some(field) = field(path) else { return ().into_any() };
    let planner = expect_context::<Planner>();
    let text = Memo::new(move |_| {
        planner.form.with(|form| match path {
            // The group size has a separate field.
            "schedule" => form.schedule_and_group().0.to_owned(),
            _ => form.text(path).to_owned(),
        })
    });
    let known: Vec<String> = choices.iter().map(|(name, _)| name.clone()).collect();
    // A name that no choice has, as a file may hold: shown as it is instead of as the first choice.
    let other = move || {
        let text = text.get();
        (!known.contains(&text)).then(|| view! { <option value=text.clone() selected>{text.clone()}</option> })
    };
    let options = choices
        .into_iter()
        .map(|(name, title)| {
            let value = name.clone();
            let is_default = name.is_empty();
            // The empty choice is what was found, where degrees follow.
            let title = move || match planner.form.with(|form| form.found(path).map(str::to_owned)) {
                Some(found) if is_default => format!("{} (found)", value_label(path, &found)),
                _ => title.clone(),
            };
            view! { <option value=value prop:selected=move || text.with(|text| *text == name)>{title}</option> }
        })
        .collect_view();
    let chosen = move |event: leptos::ev::Event| {
        let name = event_target_value(&event);
        match path {
            "model.name" => planner.choose_model(&name),
            "cluster.device" => planner.choose_device(&name),
            _ => planner.change(path, name),
        }
    };
    let faults = faults_of(planner, field);
    let input = view! {
        <select id=id(field) data-test=format!("field-{path}") aria-describedby=described_by(field)
            aria-invalid=move || is_faulty(faults).to_string() on:change=chosen>
            {options}
            {other}
        </select>
    };
    framed(field, alone, faults, input).into_any()
}

/// All fields of a group but one.
#[component]
pub(super) fn Texts(group: Group, but: &'static str) -> impl IntoView {
    let fields = FIELDS.iter().filter(move |field| field.group == group && field.path != but);
    let input = |field: &'static Field| match field.unit {
        Unit::Flag => view! { <ListField path=field.path choices=flag() /> }.into_any(),
        _ => view! { <TextField path=field.path /> }.into_any(),
    };
    fields.map(input).collect_view()
}

#[component]
pub(super) fn Triple(paths: [&'static str; 3]) -> impl IntoView {
    paths.map(|path| view! { <TextField path /> }).collect_view()
}
