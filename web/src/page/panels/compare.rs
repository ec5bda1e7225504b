//! The table that compares all schedules.

use leptos::prelude::*;
use pipeplan_core::problem::Objective;
use pipeplan_core::schedule::BEST;

use crate::draw::frontier::Judged;
use crate::logic::sorting::{Column, Ranking, cost_ns};
use crate::logic::versus::Differences;
use crate::page::browser;
use crate::page::state::{Planner, is_schedule};
use crate::page::table::SaveTable;
use crate::protocol::{Row, RowCosts};
use crate::text;

/// More schedules that have no plan are folded together: why they have none is no comparison.
const MOST_ABSENT: usize = 3;

#[component]
pub fn Compare() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let objective = judged(planner);
    let ranking = planner.ranking;
    let names = Memo::new(move |_| planner.rows.with(|rows| ranking.get().names(rows, objective.get())));
    let with_jitter = jitters(planner);
    let with_waits = waits(planner);
    let with_steps = steps(planner);
    let of_form = Memo::new(move |_| {
        let compared = planner.compared.get();
        planner.spec.with(|spec| spec.as_ref().is_none_or(|spec| compared.is_of(spec)))
    });
    let packs = Memo::new(move |_| {
        planner.scene.with(|scene| scene.as_ref().is_some_and(|scene| scene.widths.packing.is_some()))
    });
    let columns = columns(with_jitter, with_waits, with_steps);
    let unfolded = RwSignal::new(false);
    let is_absent = |row: &&Row| row.costs.is_none() && row.schedule != BEST;
    let absent = Memo::new(move |_| planner.rows.with(|rows| rows.iter().filter(is_absent).count()));
    let foldable = Memo::new(move |_| absent.get() > MOST_ABSENT);
    let cost = move || match objective.get() {
        Objective::Makespan => "Makespan",
        Objective::LongestSpan => "Longest span",
    };
    view! {
        <section class="panel compare" aria-label="Comparison of schedules">
            <div class="toolbar">
                <h2>"Compare"</h2>
                <span class="note">{move || match packs.get() {
                    true => "Choose a schedule to see its timeline. Documents are packed by a search for Best and for a chosen schedule, for the others without.",
                    false => "Choose a schedule to see its timeline.",
                }}</span>
                <SaveTable css="[data-test='compare']" name="schedules.csv" />
            </div>
            <div class="scroll" role="region" aria-label="Schedules, table" tabindex="0">
                <table data-test="compare" class:folded=move || foldable.get() && !unfolded.get() class:steps=move || with_steps.get()
                    class:more=move || with_waits.get() || with_jitter.get() class:most=move || with_waits.get() && with_jitter.get()>
                    <thead>
                        <tr>
                            <Head ranking column=Column::Schedule>"Schedule"</Head>
                            <Head ranking column=Column::Cost>{cost}</Head>
                            // The numbers in the other columns say the same.
                            <th scope="col" class="bar" aria-hidden="true"
                                title="Length: time. Light part: bubble.">"Busy, idle"</th>
                            <Show when=move || with_steps.get()>
                                <Head ranking column=Column::Step
                                    title="The whole training step, with gradient sync and optimizer">"Step time"</Head>
                                <Head ranking column=Column::Mfu title=text::MFU>"MFU"</Head>
                            </Show>
                            <Head ranking column=Column::Bubble>"Bubble"</Head>
                            <Head ranking column=Column::Peak>"Peak memory"</Head>
                            <Head ranking column=Column::Gap
                                title="Time above the lower bound of the placement of this schedule. Each placement has its own bound.">"Above bound"</Head>
                            <Show when=move || with_waits.get()>
                                <Head ranking column=Column::WithCommunication
                                    title="Includes waits for P2P transfers, with the lowering and the transport of the form. Best has the lowest of these. No other column includes them.">"With communi\u{ad}cation"</Head>
                            </Show>
                            <Show when=move || with_jitter.get()>
                                <Head ranking column=Column::Late
                                    title="1 step in 20 takes longer than this, with the jitter of the form">"1 in 20"</Head>
                            </Show>
                        </tr>
                    </thead>
                    <tbody>
                        <For each=move || names.get() key=|name| name.clone() let(name)>
                            <CompareRow name of_form />
                        </For>
                    </tbody>
                    {move || foldable.get().then(|| view! {
                        <tbody>
                            <tr on:click=move |_| unfolded.update(|unfolded| *unfolded = !*unfolded)>
                                <th scope="row" colspan=move || columns() + 1>
                                    <button type="button" class="quiet" data-test="absent-schedules" aria-expanded=move || unfolded.get().to_string()>
                                        {move || format!("{} {} that do not fit", if unfolded.get() { "▾" } else { "▸" }, text::counted(absent.get(), "schedule"))}</button>
                                </th>
                            </tr>
                        </tbody>
                    })}
                </table>
            </div>
        </section>
    }
}

/// The head of a column: pressing it sorts by the column.
#[component]
fn Head(
    ranking: RwSignal<Ranking>,
    column: Column,
    #[prop(optional)] title: &'static str,
    children: Children,
) -> impl IntoView {
    // Parts of a step, which a phone has no room for.
    let is_part = matches!(column, Column::Cost | Column::Bubble | Column::Gap);
    let mark = move || match ranking.get().aria(column) {
        "ascending" => " ▲",
        "descending" => " ▼",
        _ => "",
    };
    view! {
        <th scope="col" class:number=column != Column::Schedule class:part=is_part aria-sort=move || ranking.get().aria(column)>
            <button type="button" class="quiet" title=title data-test=format!("sort-{}", column.name())
                on:click=move |_| ranking.update(|ranking| *ranking = ranking.pressed(column))>
                {children()}<span aria-hidden="true">{mark}</span>
            </button>
        </th>
    }
}

#[component]
fn CompareRow(name: String, of_form: Memo<bool>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let row = {
        let name = name.clone();
        Memo::new(move |_| planner.rows.with(|rows| rows.iter().find(|row| row.schedule == name).cloned()))
    };
    // A custom schedule is on screen if it has a row; the form names another schedule.
    let is_own = !is_schedule(&name);
    let chosen = {
        let name = name.clone();
        Memo::new(move |_| {
            let shows_own = planner.rows.with(|rows| rows.iter().any(|row| !is_schedule(&row.schedule)));
            if shows_own { is_own } else { planner.form.with(|form| chosen_schedule(form.text("schedule")) == name) }
        })
    };
    let of_before = {
        let name = name.clone();
        move || !is_own && (!of_form.get() || !planner.compared.with(|compared| compared.has(&name)))
    };
    let objective = judged(planner);
    let with_jitter = jitters(planner);
    let with_waits = waits(planner);
    let with_steps = steps(planner);
    let columns = columns(with_jitter, with_waits, with_steps);
    let longest = Memo::new(move |_| {
        let costs = |row: &Row| row.costs.map(|costs| cost_ns(&costs, objective.get()));
        planner.rows.with(|rows| rows.iter().filter_map(costs).max().unwrap_or(1).max(1))
    });
    let choose = {
        let name = name.clone();
        move |_| {
            if !is_own {
                planner.change("schedule", name.clone());
                browser::show_mostly(".timeline");
            }
        }
    };
    let title = move || row.get().map(|row| row.title).unwrap_or_default();
    let source = move || row.get().map(|row| row.source).unwrap_or_default();
    let won = move || {
        let row = row.get().filter(|row| row.schedule == BEST && row.costs.is_some())?;
        let least = planner.spec.with(|spec| spec.as_deref().map(|spec| Judged::of(spec).least()))?;
        Some([Some(least), row.reason].into_iter().flatten().collect::<Vec<_>>().join(": "))
    };
    view! {
        <tr class:chosen=chosen class:absent=move || row.get().is_some_and(|row| row.costs.is_none())
            class:before=of_before data-test=format!("row-{name}") on:click=choose>
            <th scope="row">
                <button type="button" class="quiet" title=source aria-pressed=move || chosen.get().to_string()>
                    {title}
                </button>
                {move || won().map(|won| view! { <span class="won">{won}</span> })}
            </th>
            {move || match row.get().and_then(|row| row.costs.ok_or(row.reason).map_or_else(|reason| reason.map(Err), |costs| Some(Ok(costs)))) {
                Some(Ok(costs)) => view! { <Costs costs objective=objective.get() longest=longest.get() against=planner.versus().map(|versus| versus.row(&costs, cost_ns(&costs, objective.get()))).unwrap_or_default() with_steps=with_steps.get() with_waits=with_waits.get() with_jitter=with_jitter.get() /> }.into_any(),
                Some(Err(reason)) => view! { <td class="reason" colspan=columns data-test="reason">{reason}</td> }.into_any(),
                None => view! { <td colspan=columns></td> }.into_any(),
            }}
        </tr>
    }
}

#[component]
fn Costs(
    costs: RowCosts,
    objective: Objective,
    longest: u64,
    against: Differences,
    with_steps: bool,
    with_waits: bool,
    with_jitter: bool,
) -> impl IntoView {
    let cost = cost_ns(&costs, objective);
    let width = 100.0 * cost as f64 / longest as f64;
    let busy = width * (1.0 - costs.bubble_ratio).clamp(0.0, 1.0);
    let versus = |said: String| {
        (!said.is_empty()).then(|| view! { <span class="versus" title="Difference to the kept plan">{said}</span> })
    };
    view! {
        <td class="number part" data-test="makespan">{text::duration(cost as f64)}{versus(against.cost)}</td>
        <td class="bar" aria-hidden="true">
            <div style=format!("width:{width:.2}%")><span style=format!("width:{:.2}%", 100.0 * busy / width.max(0.01))></span></div>
        </td>
        {with_steps.then(|| {
            let cells = costs.step.map(|step| {
                let tokens = format!("{} tokens/s", text::count(step.tokens_per_s.round() as u64));
                (text::duration(step.step_ns as f64), tokens, text::mfu(step.mfu))
            });
            let (step, tokens, mfu) = cells.unwrap_or_else(|| ("—".to_owned(), String::new(), "—".to_owned()));
            view! {
                <td class="number" data-test="step" title=tokens>{step}{versus(against.step)}</td>
                <td class="number" data-test="mfu">{mfu}{versus(against.mfu)}</td>
            }
        })}
        <td class="number part" data-test="bubble">{text::percent(costs.bubble_ratio)}{versus(against.bubble)}</td>
        <td class="number" data-test="peak">{text::bytes(costs.peak_bytes)}{versus(against.peak)}</td>
        <td class="number part" data-test="gap">{costs.gap.map_or_else(|| "—".to_owned(), text::percent)}</td>
        {with_waits.then(|| {
            let carried = costs.carried_ns.map_or_else(|| "hangs".to_owned(), |ns| text::duration(ns as f64));
            view! { <td class="number" data-test="carried">{carried}</td> }
        })}
        {with_jitter.then(|| {
            let late = costs.late_ns.map_or_else(|| "—".to_owned(), |ns| text::duration(ns as f64));
            view! { <td class="number" data-test="late">{late}</td> }
        })}
    }
}

/// How many columns follow a schedule's name.
fn columns(
    with_jitter: Memo<bool>,
    with_waits: Memo<bool>,
    with_steps: Memo<bool>,
) -> impl Fn() -> u8 + Copy + Send + Sync + 'static {
    move || 5 + u8::from(with_jitter.get()) + u8::from(with_waits.get()) + 2 * u8::from(with_steps.get())
}

/// Whether the spec has jitter.
fn jitters(planner: Planner) -> Memo<bool> {
    Memo::new(move |_| planner.spec.with(|spec| spec.as_ref().is_some_and(|spec| spec.jitter_permille > 0)))
}

/// Whether rows have step times: those of a model do.
fn steps(planner: Planner) -> Memo<bool> {
    let has_step = |row: &Row| row.costs.is_some_and(|costs| costs.step.is_some());
    Memo::new(move |_| planner.rows.with(|rows| rows.iter().any(has_step)))
}

/// Whether waits at transfers cost any row anything.
fn waits(planner: Planner) -> Memo<bool> {
    let objective = judged(planner);
    let waits =
        move |row: &Row| row.costs.is_some_and(|costs| costs.carried_ns != Some(cost_ns(&costs, objective.get())));
    Memo::new(move |_| planner.rows.with(|rows| rows.iter().any(waits)))
}

/// The objective of the rows.
fn judged(planner: Planner) -> Memo<Objective> {
    Memo::new(move |_| planner.spec.with(|spec| spec.as_ref().map(|spec| spec.objective()).unwrap_or_default()))
}

fn chosen_schedule(typed: &str) -> &str {
    let name = typed.split(':').next().unwrap_or(typed);
    if name.is_empty() { BEST } else { name }
}
