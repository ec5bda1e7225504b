//! The controls of an open trace: step, scale, figures and lost time.

use leptos::prelude::*;
use pipeplan_core::simulate::jitter;

use crate::page::state::Planner;
use crate::protocol::{Calibrated, StepSummary};
use crate::scene::Scene;
use crate::text;

/// Controls of the trace: its step, scale and figures.
#[component]
pub fn TraceControls() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let open = Memo::new(move |_| planner.trace.with(Option::is_some));
    move || open.get().then(|| view! { <OpenTrace /> })
}

#[component]
fn OpenTrace() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let steps = move || {
        // As properties: a list that a person has used no longer follows the attribute.
        let steps = planner.trace.with(|trace| trace.as_ref().map(|trace| trace.steps.clone()).unwrap_or_default());
        let drawn = planner.measured.with(|measured| measured.as_ref().map_or(0, |measured| measured.index));
        // The list says at once what was chosen.
        let shown = planner.measuring.asked.get().unwrap_or(drawn) as usize;
        let of_step = planner.measuring.of_step.get();
        let slowest = steps.iter().map(|step| step.makespan_ns).max().filter(|_| steps.len() > 1);
        let all = (steps.len() > 1).then(|| {
            let mean = steps.iter().map(|step| step.makespan_ns as f64).sum::<f64>() / steps.len() as f64;
            let said = format!("all {} · mean {} · draws the last", steps.len(), text::duration(mean));
            view! { <option value="all" prop:selected=!of_step>{said}</option> }
        });
        let option = move |(position, step): (usize, StepSummary)| {
            let loss = step.loss.map(|loss| format!(" · loss {loss:.4}")).unwrap_or_default();
            let mark = if slowest == Some(step.makespan_ns) { " · slowest" } else { "" };
            let said = format!("{} · {}{mark}{loss}", step.step, text::duration(step.makespan_ns as f64));
            let is_shown = position == shown && (of_step || slowest.is_none());
            view! { <option value=position.to_string() prop:selected=is_shown>{said}</option> }
        };
        (all, steps.into_iter().enumerate().map(option).collect_view())
    };
    let choose = move |event: leptos::ev::Event| planner.show_trace_step(event_target_value(&event).parse().ok());
    let alone = move || planner.is_alone();
    view! {
        <div class="trace" data-test="trace-controls">
            <label>"Step "<select data-test="trace-step" on:change=choose>{steps}</select></label>
            <label><input type="checkbox" data-test="trace-beside" prop:checked=move || !alone()
                prop:disabled=move || planner.scene.with(Option::is_none)
                on:change=move |event| planner.set_alone(!event_target_checked(&event)) />" With the plan"</label>
            <label><input type="checkbox" data-test="trace-aligned" prop:checked=planner.aligned prop:disabled=alone
                on:change=move |event| planner.set_aligned(event_target_checked(&event)) />" Scale to the plan"</label>
            <span data-test="trace-figures">{move || figures(planner)}</span>
            <button type="button" data-test="calibrate" on:click=move |_| planner.calibrate()
                aria-expanded=move || planner.calibrated.with(Option::is_some).to_string()>"Lost time"</button>
            <button type="button" data-test="trace-close" on:click=move |_| planner.close_trace()>"Close trace"</button>
            {move || planner.calibrated.get().map(|found| view! { <WhereTimeWent found /> })}
        </div>
    }
}

/// How the planned makespan became the measured one, and which ops decide.
#[component]
fn WhereTimeWent(found: Result<Calibrated, Vec<String>>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let found = match found {
        Ok(found) => found,
        Err(lines) => {
            let said = format!("This trace cannot be compared with the plan on screen. {}", lines.join(" "));
            return view! { <p class="calibration" role="alert" data-test="calibration">{said}</p> }.into_any();
        }
    };
    let Calibrated { steps, planned_ns, causes_ns, measured_ns, deciding, jitter_permille, problem } = found;
    let took = |ns: u64| text::duration(ns as f64);
    let whys = [
        ("ops", "each op takes the mean of its stage and job"),
        ("hops", "P2P transfers take their measured times"),
        ("spread", "each op takes its own measured time"),
        ("rest", "overhead of the runner, and waits between ranks"),
    ];
    let cause = |((name, why), ns): ((&'static str, &'static str), i64)| {
        let more = format!("{}{}", if ns < 0 { "−" } else { "+" }, took(ns.unsigned_abs()));
        view! { <tr><th scope="row">{name}</th><td>{more}</td><td>{why}</td></tr> }
    };
    let causes = whys.into_iter().zip(causes_ns).map(cause).collect_view();
    let mean = format!("from the first op to the last, mean of {}", text::counted(steps, "step"));
    let deciding: Vec<String> =
        deciding.into_iter().map(|(name, share)| format!("{name} {}", text::percent(share))).collect();
    // As much of it as can be planned with.
    let jitter_permille = jitter_permille.min(u64::from(jitter::MAX_PERMILLE)) as u16;
    let with_jitter = (jitter_permille > 0).then(|| {
        let problem = problem.clone();
        let take = move |_| planner.plan_measured(&problem, Some(jitter_permille));
        view! {
            <button type="button" data-test="plan-jitter" on:click=take
                title="Also use the measured deviation of ops from the mean of their stage and job as jitter. The comparison shows its cost, and Best has the lowest.">
                {format!("…and with their jitter of {}", text::percent(f64::from(jitter_permille) / 1000.0))}
            </button>
        }
    });
    let take = move |_| planner.plan_measured(&problem, None);
    view! {
        <div class="calibration" role="status" data-test="calibration">
            <table>
                <tr><th scope="row">"planned"</th><td>{took(planned_ns)}</td><td>"the schedule with planned times"</td></tr>
                {causes}
                <tr><th scope="row">"measured"</th><td>{took(measured_ns)}</td><td>{mean}</td></tr>
            </table>
            <p>{format!("Largest parts of the critical path: {}. A shorter op off the path changes nothing.", deciding.join(", "))}</p>
            <button type="button" data-test="plan-measured" on:click=take
                title="Plan the same placement with the measured times, as typed costs. Go back to undo it.">
                "Plan with these times"
            </button>
            {with_jitter}
        </div>
    }
    .into_any()
}

/// Measured figures, compared with the plan.
fn figures(planner: Planner) -> String {
    let Some(measured) = planner.measured.get() else { return String::new() };
    let took = measured.makespan_ns as f64;
    let mut words = vec![format!("measured {}", text::duration(took))];
    let turns = planner.trace.with(|trace| trace.as_ref()?.shared_processors);
    let planned = |scene: &Scene| match turns {
        None => scene.figures.makespan_ns,
        Some(processors) => scene.in_turns_ns(measured.tracks.len(), processors),
    };
    let planned = planner.scene.with(|scene| scene.as_ref().map_or(0, |scene| planned(scene)));
    let differs = planner.scene.with(|scene| measured.differs_from(scene.as_ref()?));
    if planned > 0 && differs.is_none() && !planner.is_alone() {
        let in_turns = if turns.is_some() { " time-sliced" } else { "" };
        let (times, of) = (text::trimmed(took / planned as f64, 2), text::duration(planned as f64));
        words.push(format!("×{times} of {of} planned{in_turns}"));
    }
    if let Some(processors) = turns {
        let on = text::counted(processors, "processor");
        words.push(format!("{} time-sliced on {on}", text::counted(measured.tracks.len(), "rank")));
    }
    words.push(format!("bubble {}", text::percent(measured.bubble_ratio)));
    if measured.tokens > 0 && measured.duration_ns > 0 {
        let rate = measured.tokens as f64 * 1e9 / measured.duration_ns as f64;
        words.push(format!("{} tokens/s", text::count(rate as u64)));
    }
    words.extend(
        differs
            .filter(|_| !planner.is_alone())
            .or_else(|| planner.trace_of_another_plan().then(|| "trace of another plan".to_owned())),
    );
    words.join(" · ")
}
