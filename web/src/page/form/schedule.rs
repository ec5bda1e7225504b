//! The size of the groups of a schedule.

use leptos::prelude::*;

use super::frame::Help;
use crate::form::Form;
use crate::page::state::Planner;

const GROUP_HELP: &str = "Consecutive microbatches that a virtual stage runs before the next virtual stage runs";

/// Microbatches of a group, for schedules that have groups.
#[component]
pub(super) fn GroupSize() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let shown = Memo::new(move |_| planner.form.with(Form::takes_groups) || !group(planner).is_empty());
    let text = Memo::new(move |_| group(planner));
    move || {
        shown.get().then(|| {
            view! {
                <div class="field">
                    <label for="schedule-group" title=GROUP_HELP>"Microbatch group size"</label>
                    <input type="text" id="schedule-group" data-test="schedule-group" autocomplete="off" placeholder="number of ranks" prop:value=text
                        aria-describedby="schedule-group-help"
                        on:input=move |event| planner.type_in("schedule", |form| form.set_group(event_target_value(&event).trim()))
                        on:change=move |_| planner.end_typing() />
                    <Help id="schedule-group-help".to_owned() help=GROUP_HELP />
                </div>
            }
        })
    }
}

pub(super) fn group(planner: Planner) -> String {
    planner.form.with(|form| form.schedule_and_group().1.to_owned())
}
