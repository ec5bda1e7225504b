//! The frame of an input: label, help, faults, and the meaning of an empty field.

use leptos::prelude::*;
use pipeplan_core::base::fields::Fault;

use crate::form::{DEVICES, Field, Form};
use crate::page::state::Planner;

/// A field with its label, help and fault around `input`. The label of one that stands `alone` under its
/// legend is for those who do not see the legend.
pub(super) fn framed(
    field: &'static Field,
    alone: bool,
    faults: Memo<Vec<String>>,
    input: impl IntoView + 'static,
) -> impl IntoView {
    view! {
        <div class="field" class:alone=alone class:faulty=move || is_faulty(faults)>
            <label for=id(field) title=field.help>{field.label}</label>
            {input}
            <Help id=help_id(field) help=field.help />
            <div class="faults" id=fault_id(field) aria-live="polite" data-test=format!("fault-{}", field.path)>
                {move || faults.get().into_iter().map(|fault| view! { <p class="fault">{fault}</p> }).collect_view()}
            </div>
        </div>
    }
}

pub(super) fn faults_of(planner: Planner, field: &'static Field) -> Memo<Vec<String>> {
    Memo::new(move |_| {
        let typed = planner.form.with(|form| form.text(field.path).to_owned());
        let sentence = |fault: &Fault| field.explain_fault(&typed, fault);
        let mine = |fault: &&Fault| Form::field_of(fault).is_some_and(|owner| owner.path == field.path);
        planner.faults_of_fields().iter().filter(mine).take(4).map(sentence).collect()
    })
}

pub(super) fn is_faulty(faults: Memo<Vec<String>>) -> bool {
    faults.with(|faults| !faults.is_empty())
}

pub(super) fn id(field: &Field) -> String {
    format!("field-{}", field.path.replace('.', "-"))
}

pub(super) fn fault_id(field: &Field) -> String {
    format!("{}-fault", id(field))
}

pub(super) fn help_id(field: &Field) -> String {
    format!("{}-help", id(field))
}

/// The ids that describe a field: its help and its faults.
pub(super) fn described_by(field: &Field) -> String {
    format!("{} {}", help_id(field), fault_id(field))
}

/// The help of a field, shown while it has the focus: touch and keyboard cannot reach a tooltip.
#[component]
pub(super) fn Help(id: String, help: &'static str) -> impl IntoView {
    (!help.is_empty()).then(|| view! { <p class="help tip" id=id>{help}</p> })
}

/// The meaning of an empty field, if it is known. The text before it was emptied does not count.
pub(super) fn placeholder(planner: Planner, field: &'static Field) -> String {
    let empty = planner.resolved.with(|(form, resolved)| {
        if !form.text(field.path).is_empty() {
            return None;
        }
        let value = field.path.split('.').try_fold(resolved, |value, key| value.get(key));
        let text =
            |value: &serde_json::Value| (!value.is_object() && !value.is_null()).then(|| field.unit.text_of(value));
        value.and_then(text)
    });
    match (empty, field.path) {
        (None, "memory.limit_bytes") => planner
            .resolved
            .with(|(_, resolved)| {
                resolved.pointer("/cluster/device/memory_bytes").map(|value| field.unit.text_of(value))
            })
            .unwrap_or_default(),
        (None, "problem.limit_bytes") => "none".to_owned(),
        (None, "parallel.context" | "parallel.expert") if planner.spec.with(Option::is_some) => "1".to_owned(),
        (None, DEVICES) => planner.devices().map_or_else(String::new, |devices| devices.to_string()),
        // No spec gives both.
        (None, "training.global_batch_size") => planner
            .resolved
            .with(|(_, resolved)| global_batch(resolved))
            .map_or_else(String::new, |sequences| sequences.to_string()),
        (empty, _) => empty.unwrap_or_default(),
    }
}

/// The sequences of a step of `resolved`, a spec of a model, over all copies.
pub(super) fn global_batch(resolved: &serde_json::Value) -> Option<u64> {
    let whole = |path: &str| resolved.pointer(path).and_then(serde_json::Value::as_u64);
    let microbatches = whole("/training/microbatches")?.checked_mul(whole("/training/microbatch_size")?)?;
    microbatches.checked_mul(whole("/parallel/data")?)
}
