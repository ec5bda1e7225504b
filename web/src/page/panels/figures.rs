//! The figures of the plan, above its picture.

use std::sync::Arc;

use leptos::prelude::*;

use crate::logic::proof::{Proof, State};
use crate::logic::versus::Differences;
use crate::page::browser;
use crate::page::state::Planner;
use crate::protocol::{Row, RowCosts};
use crate::scene::Scene;
use crate::text;

#[component]
pub fn FigureRow() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let scene = move || planner.scene.get();
    let of = move |pick: fn(&Scene) -> String| scene().map_or_else(|| "—".to_owned(), |scene| pick(&scene));
    let versus = Memo::new(move |_| Some(planner.versus()?.plan(&*planner.scene.get()?)));
    let against = move |pick: fn(Differences) -> String| {
        move || versus.get().map(|found| view! { <Against said=pick(found) /> })
    };
    let by_span = move || planner.scene.with(|scene| scene.as_ref().is_some_and(|scene| scene.is_judged_by_span()));
    view! {
        <section class="figures" aria-label="Figures of the plan">
            <div class="figure" data-test="figure-makespan">
                {move || match by_span() {
                    true => view! { <h2>"Longest span "<span class="what">"first to last op of one rank"</span></h2> },
                    false => view! { <h2>"Makespan "<span class="what">"first to last op"</span></h2> },
                }}
                <p class="value" data-test="makespan">{move || of(|scene| text::duration(scene.cost_ns() as f64))}</p>
                <p class="versus" data-test="versus-makespan">{against(|found| found.cost)}</p>
                <p class="note" data-test="step">{move || scene().map(|scene| view! {
                    {whole_step(planner, &scene)}
                    {mfu(&scene).map(|mfu| view! { ", "<abbr title=text::MFU>"MFU"</abbr>{format!(" {mfu}")} })}
                })}</p>
                <p class="note" data-test="training" title="Training steps only, without checkpoints, evaluation and failures">{move || scene().and_then(|scene| training(&scene))}</p>
                <p class="note" data-test="whole-shown">{move || scene().and_then(|scene| whole(&scene))}</p>
                {move || scene().and_then(|scene| carried(&scene)).map(|carried| view! {
                    <p class="note" data-test="carried-shown" title="Includes waits for P2P transfers, with the lowering and the transport that the form gives. Overlapped transfers run during compute. In-pieces transfers serialize F/B pairs. No other figure includes these waits.">{carried}</p>
                })}
                {move || scene().and_then(|scene| scene.figures.late_ns).map(|late_ns| view! {
                    <p class="note">"1 step in 20 takes longer than "<span data-test="late-shown">{text::duration(late_ns as f64)}</span></p>
                })}
            </div>
            <div class="figure" data-test="figure-bubble">
                <h2>"Bubble "<span class="what">{move || if by_span() { "of the longest span" } else { "idle time of ranks" }}</span></h2>
                <p class="value" data-test="bubble">{move || of(|scene| text::percent(scene.figures.bubble_ratio))}</p>
                <p class="versus" data-test="versus-bubble">{against(|found| found.bubble)}</p>
                <p class="note" data-test="idle">{move || scene().map(|scene| idle(&scene))}</p>
            </div>
            <div class="figure" data-test="figure-peak">
                <h2>"Peak memory "<span class="what">"fullest rank"</span></h2>
                <p class="value" data-test="peak">{move || of(|scene| text::bytes(scene.peak_bytes()))}</p>
                <p class="versus" data-test="versus-peak">{against(|found| found.peak)}</p>
                {move || scene().map(|scene| view! { <MemoryMeter scene /> })}
            </div>
            <div class="figure wide" data-test="figure-bound">
                <h2>"Lower bound "<span class="what" data-test="bound-of">{move || scene().map_or_else(
                    || "proved, for one placement".to_owned(),
                    |scene| format!("proved for this placement: {}{}", scene.placement(), if scene.widths.packing.is_some() { ", and this packing" } else { "" }),
                )}</span></h2>
                <p class="value" data-test="bound">{move || scene().map_or_else(|| "—".to_owned(), |scene| text::duration(bound_ns(planner, &scene) as f64))}</p>
                <p class="note"><b data-test="gap">{move || scene().map(|scene| gap(planner, &scene))}</b>" "{move || scene().map(|scene| binding(planner, &scene))}</p>
                <p class="note" data-test="elsewhere">{move || scene().and_then(|scene| elsewhere(planner, &scene))}</p>
                <ProofLine />
            </div>
        </section>
        {move || scene().map(|scene| scene.figures.refusals.clone()).filter(|refusals| !refusals.is_empty()).map(|refusals| view! {
            <div class="fault" data-test="refusals">{refusals.into_iter().map(|refusal| view! { <p>{text::sentence(&refusal)}</p> }).collect_view()}</div>
        })}
    }
}

/// A difference to the kept plan.
#[component]
fn Against(said: String) -> impl IntoView {
    view! { <span title="Difference to the kept plan">{if said == "same" { "same as kept".to_owned() } else { format!("{said} against kept") }}</span> }
}

/// How close the tightest rank is to its limit.
#[component]
fn MemoryMeter(scene: Arc<Scene>) -> impl IntoView {
    let rank = scene.tightest_rank();
    let peak = scene.figures.peak_bytes.get(rank).copied().unwrap_or(0);
    match scene.figures.limit_bytes.get(rank).copied().flatten() {
        Some(limit) => {
            let share = if limit > 0 { peak as f64 / limit as f64 } else { 1.0 };
            let note = format!("rank {rank}: {} of {}", text::percent(share), text::bytes(limit));
            view! {
                <div class="meter" role="img" aria-label=note.clone()>
                    <span style=format!("width:{:.1}%", 100.0 * share.min(1.0))></span>
                </div>
                <p class="note">{note}</p>
            }
            .into_any()
        }
        None => view! { <p class="note">{format!("rank {rank} needs the most; no limit")}</p> }.into_any(),
    }
}

/// How long the ranks wait each.
fn idle(scene: &Scene) -> String {
    match scene.idle_shares() {
        None => String::new(),
        Some((least, most)) if most - least < 0.0005 => "equal on all ranks".to_owned(),
        Some((least, most)) => format!("idle {} to {} by rank", text::percent(least.max(0.0)), text::percent(most)),
    }
}

/// The largest number of ops for a proof: the solver takes seconds to minutes, if it ends.
const MOST_OPS: usize = 4096;

/// The message of the exact search. It gets the focus when its button disappears.
pub(in crate::page) const PROOF: &str = ".proof";

/// The exact search: its start and stop buttons, and its message.
#[component]
fn ProofLine() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let ops = |scene: &Scene| scene.tracks.iter().map(|track| track.spans().len()).sum::<usize>();
    let may_prove = move || {
        planner.scene.with(|scene| {
            scene.as_ref().is_some_and(|scene| scene.figures.gap != Some(0.0) && ops(scene) <= MOST_OPS)
        }) && !planner.proof.with(|proof| proof.state == State::Running || proof.is_proved())
            && !planner.busy.get()
    };
    let running = move || planner.proof.with(|proof| proof.state == State::Running);
    view! {
        <p class="note proof" tabindex="-1" data-test="proof" data-state=move || planner.proof.with(Proof::mark) role="status">
            {move || planner.proof.with(Proof::sentence)}
            " "
            {move || may_prove().then(|| view! {
                <button type="button" class="small" data-test="prove" on:click=move |_| { browser::focus(PROOF); planner.prove(); }
                    title="Run an exact search for a faster schedule on this placement, or for a proof that there is none. It can take minutes.">"Prove"</button>
            })}
            {move || planner.better_ns().map(|ns| view! {
                <span data-test="better">{format!("A faster schedule for this placement was found: {}. ", text::duration(ns as f64))}</span>
                <button type="button" class="small" data-test="show-better" on:click=move |_| planner.show_better()
                    title="Show it in place of the chosen schedule">"Show it"</button>
            })}
            {move || running().then(|| view! {
                <button type="button" class="small" data-test="stop-proof" on:click=move |_| planner.end_proof(State::Over)>"Stop"</button>
            })}
        </p>
    }
}

/// The lower bound, from bounds or from a proof.
fn bound_ns(planner: Planner, scene: &Scene) -> u64 {
    scene.figures.bound_ns.max(planner.proof.with(|proof| proof.lower_ns))
}

fn binding(planner: Planner, scene: &Scene) -> String {
    if bound_ns(planner, scene) > scene.figures.bound_ns {
        return "By exact search.".to_owned();
    }
    scene.figures.binding.clone()
}

fn gap(planner: Planner, scene: &Scene) -> String {
    match pipeplan_core::plan::planner::gap(scene.cost_ns(), bound_ns(planner, scene)) {
        Some(gap) if gap <= 0.0 && scene.widths.packing.is_some() => {
            "Reached: no schedule on this placement is faster with this packing.".to_owned()
        }
        Some(gap) if gap <= 0.0 => "Reached: no schedule on this placement is faster.".to_owned(),
        Some(gap) => format!("{} above it.", text::percent(gap)),
        None => "No bound here.".to_owned(),
    }
}

/// The fastest plan that is on the page and below the bound: it has another placement. None if there is none.
fn elsewhere(planner: Planner, scene: &Scene) -> Option<String> {
    let bound_ns = bound_ns(planner, scene);
    let by_span = scene.is_judged_by_span();
    let cost_ns = |costs: &RowCosts| if by_span { costs.longest_span_ns } else { costs.makespan_ns };
    let row = planner.rows.with(|rows| {
        let is_current = |row: &&Row| planner.compared.with(|compared| compared.has(&row.schedule));
        let below = rows.iter().filter(is_current).filter_map(|row| Some((cost_ns(&row.costs?), row.title.clone())));
        below.filter(|(cost, _)| *cost < bound_ns).min()
    });
    let kept = planner.kept.get().map(|kept| kept.cost_ns()).filter(|cost| *cost < bound_ns);
    let row =
        row.map(|(cost, title)| format!("{title} is faster on another placement: {}.", text::duration(cost as f64)));
    let kept = kept.map(|cost| {
        format!("The kept plan is faster, with another placement or form: {}.", text::duration(cost as f64))
    });
    let said: Vec<String> = row.into_iter().chain(kept).collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// The makespan, if it is not the objective.
fn whole(scene: &Scene) -> Option<String> {
    scene.is_judged_by_span().then(|| format!("makespan {}", text::duration(scene.figures.makespan_ns as f64)))
}

/// The cost with communication, if it differs.
fn carried(scene: &Scene) -> Option<String> {
    match scene.figures.carried_ns {
        Some(carried) if carried <= scene.cost_ns() => None,
        Some(carried) => {
            Some(format!("with communication: {}, waits for transfers included", text::duration(carried as f64)))
        }
        None => Some("hangs with this transport".to_owned()),
    }
}

/// The step time and throughput, if the spec is of a model.
fn whole_step(planner: Planner, scene: &Scene) -> String {
    // A plan of the form before has other devices.
    let devices = planner.devices().filter(|devices| *devices > 1 && !planner.outdated.get());
    scene.figures.step.map_or_else(String::new, |step| {
        let each = devices.map_or_else(String::new, |devices| {
            format!(" ({} per device)", text::count((step.tokens_per_s / devices as f64).round() as u64))
        });
        let published = step.published_ns.map_or_else(String::new, |span| {
            let [least, most] = span.map(|ns| text::duration(ns as f64));
            format!("; as 8 of 10 published runs: {least} to {most}")
        });
        format!(
            "step time {} with optimizer: {} tokens/s{each}{published}",
            text::duration(step.step_ns as f64),
            text::count(step.tokens_per_s.round() as u64),
        )
    })
}

/// The share of the devices' arithmetic that a whole training step makes use of.
fn mfu(scene: &Scene) -> Option<String> {
    scene.figures.step.map(|step| text::mfu(step.mfu))
}

/// The time of the whole training, if the spec gives its tokens.
fn training(scene: &Scene) -> Option<String> {
    scene.figures.step.and_then(|step| step.training).map(|training| training.to_string())
}
