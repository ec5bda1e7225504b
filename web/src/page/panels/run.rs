//! The measured run: what it is, where its time went, what would make it shorter, who is slow, and the plan that follows.

use std::sync::Arc;

use leptos::prelude::*;
use pipeplan_core::trace::analysis::RowTime;

use crate::page::browser;
use crate::page::state::{BestOrder, Planner};
use crate::page::table::SaveTable;
use crate::page::trace_client::Long;
use crate::protocol::{AnalysisRows, Export, StragglerRow, TraceSummary, WhatIfRow};
use crate::text;

/// More rows than this are cut to those with the least compute, as the command does.
const MOST_ROWS: usize = 32;

/// How far looking at files and reading them has come, and a button that stops it.
#[component]
pub fn Reading() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let looks = Memo::new(move |_| planner.measuring.looking.with(Option::is_some));
    let reads = Memo::new(move |_| planner.measuring.reading.with(Option::is_some));
    let said = move || {
        if let Some([done, count]) = planner.measuring.looking.get() {
            let of = if count > 0 { format!(" of {}", text::count(count as u64)) } else { String::new() };
            return Some(format!("looking at files, {}{of} ", text::count(done as u64)));
        }
        let (name, [done, whole]) = planner.measuring.reading.get()?;
        let share = text::percent(done as f64 / whole.max(1) as f64);
        Some(format!("reading {name}, {share} of {} ", text::bytes(whole)))
    };
    let stop = move |_| match looks.get_untracked() {
        true => planner.stop_looking(),
        false => planner.stop_run(),
    };
    move || {
        (looks.get() || reads.get()).then(|| {
            view! {
                <p class="note searching"><span data-test="reading">{said}</span>
                    <button type="button" class="small" data-test="stop-reading" on:click=stop
                        title="Stop reading. Nothing of these files is shown.">"Stop"</button>
                </p>
            }
        })
    }
}

#[component]
pub fn RunPanel() -> impl IntoView {
    let planner = expect_context::<Planner>();
    move || planner.trace.get().map(|summary| view! { <Run summary /> })
}

#[component]
fn Run(summary: TraceSummary) -> impl IntoView {
    let planner = expect_context::<Planner>();
    // A screen reader hears that it replays, and not each number.
    let replayed = move || {
        let [done, most] = planner.measuring.replayed.get()?;
        Some(format!("{} of at most {} replays", text::count(done as u64), text::count(most as u64)))
    };
    let explain = move || {
        let (analysing, known) = (planner.measuring.analysing.get().is_some(), planner.measuring.analysis.get());
        match (analysing, known) {
            (true, _) => view! {
                <p class="hint searching"><span role="status" data-test="analysing">"Replaying the measured steps…"</span>
                    <span class="number" data-test="replayed">{replayed}</span>
                    <button type="button" class="small" data-test="stop-analysing" on:click=move |_| planner.stop_explaining()>"Stop"</button></p>
            }
            .into_any(),
            (false, None) => view! {
                <p class="hint"><button type="button" data-test="analyse" on:click=move |_| planner.explain_run()
                    title="Where the time of each rank went, what a step would take otherwise, and who is slow">"Explain the run"</button></p>
            }
            .into_any(),
            (false, Some(found)) => view! { <Means found /> }.into_any(),
        }
    };
    let save = move |export: Export, label: &'static str, test: &'static str, title: &'static str| {
        view! { <button type="button" class="small" data-test=test title=title on:click=move |_| planner.export_run(export)>{label}</button> }
    };
    view! {
        <section class="panel run" aria-labelledby="run-title" data-test="run">
            <div class="toolbar">
                <h2 id="run-title">"Measured run"</h2>
                <span class="note" data-test="run-said">{said(&summary)}</span>
                <div class="buttons">
                    {save(Export::Trace, "Trace", "save-trace", "Save the run as a trace of pipeplan, with clocks put right")}
                    {save(Export::Perfetto, "Perfetto", "save-trace-perfetto", "Save the run for ui.perfetto.dev and chrome://tracing")}
                    {save(Export::Csv, "CSV", "save-trace-csv", "Save a row for each span")}
                </div>
            </div>
            <Next />
            <WorkingOn />
            {explain}
        </section>
    }
}

/// What takes long, and buttons that stop it.
#[component]
fn WorkingOn() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let which = Memo::new(move |_| {
        planner.measuring.working.with(|working| working.iter().map(|one| one.what).collect::<Vec<Long>>())
    });
    let one = move |what: Long| {
        let (said, test) = match what {
            Long::Comparison => ("Comparing the run with the plan…", "stop-comparison"),
            Long::Order => ("Finding the order that ran…", "stop-order"),
            Long::Profile => ("Making a profile of the run…", "stop-profile"),
            Long::Export(_) => ("Writing the file…", "stop-export"),
            Long::Analysis | Long::Search => return None,
        };
        let steps = move || {
            let working = planner.measuring.working.get();
            let [done, most] = working.iter().find(|one| one.what == what)?.steps?;
            Some(text::percent(done as f64 / most.max(1) as f64))
        };
        Some(view! {
            <p class="hint searching"><span role="status" data-test="working">{said}</span><span class="number">{steps}</span>
                <button type="button" class="small" data-test=test on:click=move |_| planner.stop_working(what)>"Stop"</button></p>
        })
    };
    move || which.get().into_iter().filter_map(one).collect_view()
}

/// The run in a line.
fn said(summary: &TraceSummary) -> String {
    let [replicas, context, tensor] = summary.copies;
    let copies = [(replicas, "data parallel"), (context, "context parallel"), (tensor, "tensor parallel")];
    let copies: String =
        copies.into_iter().filter(|(count, _)| *count > 1).map(|(count, what)| format!(", {count} {what}")).collect();
    let [stages, microbatches] = summary.shape;
    format!(
        "{} of {} on {} over {}: {}, {}{copies}; {}",
        text::counted(summary.steps.len(), "step"),
        text::counted(summary.ranks, "rank"),
        summary.backend,
        summary.transport,
        text::counted(stages, "stage"),
        text::counted(microbatches, "microbatch"),
        text::counted(summary.spans as usize, "span"),
    )
}

/// The plan that follows from the run.
#[component]
fn Next() -> impl IntoView {
    let planner = expect_context::<Planner>();
    let other = Memo::new(move |_| {
        let differs = |scene: &Option<Arc<crate::scene::Scene>>| match scene {
            Some(scene) => planner.measured.with(|measured| measured.as_ref()?.differs_from(scene)),
            None => Some("no plan".to_owned()),
        };
        planner.scene.with(differs)
    });
    let is_model = move || {
        planner
            .spec
            .with(|spec| spec.as_ref().is_some_and(|spec| matches!(spec.work, pipeplan_core::spec::Work::Model(_))))
    };
    // Why no profile can be made; none if it can.
    let no_profile = move || match (other.get().is_some(), is_model()) {
        (true, _) => Some("The run is not one of the plan on screen: open the plan that ran"),
        (false, false) => {
            Some("The plan on screen has typed costs and no model. Lost time plans with measured times")
        }
        (false, true) => None,
    };
    let figures = move || {
        let round = planner.measuring.round.get()?;
        let again = planner.scene.with(|scene| scene.as_ref().map(|scene| scene.cost_ns()));
        let is_planned = !planner.busy.get() && planner.measured_times.with(Option::is_some);
        let title = planner.scene.with(|scene| scene.as_ref().map(|scene| text::schedule_title(&scene.schedule)));
        let change = again.filter(|_| is_planned).map(|again| text::change(again, round.measured_ns));
        let row = |what: &'static str, how: String, ns: Option<u64>| {
            let ns = ns.map_or_else(|| "…".to_owned(), |ns| text::duration(ns as f64));
            view! { <tr><th scope="row">{what}</th><td class="number">{ns}</td><td class="words">{how}</td></tr> }
        };
        Some(view! {
            <table class="round" data-test="round"><tbody>
                {row("first plan", round.first.0.clone(), Some(round.first.1))}
                {row("measured", "mean of the counted steps".to_owned(), Some(round.measured_ns))}
                {row("planned again", format!("{}, with the times of the run{}", title.unwrap_or_default(),
                    change.map(|change| format!(": {change} against the run")).unwrap_or_default()), again.filter(|_| is_planned))}
            </tbody></table>
        })
    };
    view! {
        <div class="next">
            <button type="button" data-test="plan-order" on:click=move |_| planner.plan_run_order()
                title="Plan the order that ran, with the measured times as typed costs. Go back to undo it.">"Plan this order"</button>
            <button type="button" data-test="calibrate-plan" prop:disabled=move || no_profile().is_some() || planner.measuring.round.with(Option::is_some)
                title=move || no_profile().unwrap_or("Make a profile of what the run took, and plan the same model with it: placement and partition are free again")
                on:click=move |_| planner.calibrate_and_plan()>"Calibrate: plan with measured times"</button>
            {move || planner.measuring.round.with(Option::is_some).then(|| view! {
                <button type="button" data-test="save-profile" on:click=move |_| planner.save_profile()
                    title="Save what the run took, for `pipeplan plan SPEC --profile profile.json`">"Export profile"</button>
            })}
            {figures}
        </div>
    }
}

/// What the run means.
#[component]
fn Means(found: Arc<AnalysisRows>) -> impl IntoView {
    let of = match (found.index, found.steps) {
        (Some(_), _) | (None, 1) => "Of the step that is shown".to_owned(),
        (None, steps) => format!("Mean of {}", text::counted(steps, "step")),
    };
    let makespan = text::duration(found.makespan_ns as f64);
    view! {
        <p class="hint" data-test="analysis-of">{format!("{of}: makespan {makespan}. Choose a step above the timeline.")}</p>
        <div class="means">
            <Ranks found=found.clone() />
            <Exposed found=found.clone() />
            <PathRows found=found.clone() />
            <WhatIfs found=found.clone() />
            <Stragglers found />
        </div>
    }
}

fn share(ns: u64, of: u64) -> String {
    if of == 0 { String::new() } else { text::percent(ns as f64 / of as f64) }
}

/// Where the time of each rank went.
#[component]
fn Ranks(found: Arc<AnalysisRows>) -> impl IntoView {
    let mut shown: Vec<usize> = (0..found.rows.len()).collect();
    shown.sort_by_key(|row| found.rows[*row].parts_ns[0]);
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_unstable();
    let heads =
        RowTime::NAMES.iter().map(|name| view! { <th scope="col" class="number">{*name}</th> }).collect_view();
    let rows = shown.iter().map(|row| {
        let row = &found.rows[*row];
        let cells = row.parts_ns.map(|ns| {
            view! { <td class="number" title=text::duration(ns as f64)>{share(ns, found.makespan_ns)}</td> }
        });
        view! { <tr><th scope="row">{row.name.clone()}</th>{cells.collect_view()}</tr> }
    });
    view! {
        <div>
            <h3>"Time by rank"</h3>
            <div class="scroll" role="region" aria-label="Measured time by rank, table" tabindex="0">
                <table data-test="run-ranks">
                    <thead><tr><th scope="col">"Rank"</th>{heads}</tr></thead>
                    <tbody>{rows.collect_view()}</tbody>
                </table>
            </div>
            {(left > 0).then(|| view! { <p class="hint">{format!("and {left} with more compute")}</p> })}
            <p class="hint">{RowTime::MEANING}</p>
            <SaveTable css="[data-test='run-ranks']" name="measured-by-rank.csv" />
        </div>
    }
}

/// Communication that no compute hides, by kind: the ranks with the most of it.
#[component]
fn Exposed(found: Arc<AnalysisRows>) -> impl IntoView {
    let exposed = found.exposed.clone()?;
    let mut shown: Vec<usize> = (0..exposed.rows.len()).collect();
    shown.sort_by_key(|row| std::cmp::Reverse(exposed.rows[*row].iter().sum::<u64>()));
    let left = shown.split_off(shown.len().min(MOST_ROWS)).len();
    shown.sort_unstable();
    let heads = exposed.kinds.iter().map(|kind| view! { <th scope="col" class="number">{kind.clone()}</th> });
    let rows = shown.iter().map(|row| {
        let cells =
            exposed.rows[*row].iter().map(|ns| view! { <td class="number">{text::duration(*ns as f64)}</td> });
        let name = found.rows.get(*row).map(|row| row.name.clone());
        view! { <tr><th scope="row">{name}</th>{cells.collect_view()}</tr> }
    });
    let lines = exposed.lines.iter().map(|line| view! { <p class="hint">{line.clone()}</p> });
    Some(view! {
        <div>
            <h3>"Exposed communication"</h3>
            <div class="scroll" role="region" aria-label="Exposed communication, table" tabindex="0">
                <table data-test="run-exposed">
                    <thead><tr><th scope="col">"Rank"</th>{heads.collect_view()}</tr></thead>
                    <tbody>{rows.collect_view()}</tbody>
                </table>
            </div>
            {(left > 0).then(|| view! { <p class="hint">{format!("and {left} with less")}</p> })}
            {lines.collect_view()}
            <SaveTable css="[data-test='run-exposed']" name="exposed-communication.csv" />
        </div>
    })
}

/// Time on the critical path.
#[component]
fn PathRows(found: Arc<AnalysisRows>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let row = |(name, parts): &(String, [u64; 3])| {
        let cells = parts.map(|ns| view! { <td class="number">{share(ns, found.makespan_ns)}</td> });
        view! { <tr><th scope="row">{name.clone()}</th>{cells.collect_view()}</tr> }
    };
    let left = found.path_rows.len().saturating_sub(MOST_ROWS);
    let show = move |_| {
        planner.path_lit.set(true);
        browser::show_mostly("[data-test='timeline']");
    };
    view! {
        <div>
            <h3>"Critical path"</h3>
            <div class="scroll" role="region" aria-label="Measured critical path, table" tabindex="0">
                <table data-test="run-path">
                    <thead><tr><th scope="col">"Rank"</th><th scope="col" class="number">"ops"</th><th scope="col" class="number">"messages"</th><th scope="col" class="number">"late"</th></tr></thead>
                    <tbody>{found.path_rows.iter().take(MOST_ROWS).map(row).collect_view()}</tbody>
                </table>
            </div>
            {(left > 0).then(|| view! { <p class="hint">{format!("and {left} more ranks")}</p> })}
            <p class="hint" data-test="run-path-end">{found.path_end.clone()}</p>
            <button type="button" class="small" data-test="show-path" on:click=show>"Show it in the timeline"</button>
        </div>
    }
}

/// What a step would take otherwise.
#[component]
fn WhatIfs(found: Arc<AnalysisRows>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    let whole = found.makespan_ns;
    let row = move |what: &WhatIfRow| {
        let sign = if what.saved_ns < 0 { "−" } else { "" };
        let saved = what.saved_ns.unsigned_abs();
        view! {
            <tr>
                <th scope="row">{what.name.clone()}</th>
                <td class="number">{text::duration(what.makespan_ns as f64)}</td>
                <td class="number">{format!("{sign}{}", text::duration(saved as f64))}</td>
                <td class="number">{format!("{sign}{}", share(saved, whole))}</td>
            </tr>
        }
    };
    let best = move || {
        match planner.measuring.best.get() {
        BestOrder::Found(Some(what)) => row(&what).into_any(),
        BestOrder::Found(None) => view! { <tr><th scope="row">"the best order for these times"</th><td colspan="3" class="words">"the order that ran cannot be planned"</td></tr> }.into_any(),
        BestOrder::Searching(so_far) => {
            let said = so_far.map_or_else(|| "searching…".to_owned(), |(cost_ns, _)| format!("searching… {} so far", text::duration(cost_ns as f64)));
            view! {
                <tr><th scope="row">"the best order for these times"</th>
                    <td colspan="3" class="words">{said}" "<button type="button" class="small" data-test="stop-best-order" on:click=move |_| planner.stop_best_order()>"Stop"</button></td></tr>
            }
            .into_any()
        }
        BestOrder::Unasked => view! {
            <tr><th scope="row">"the best order for these times"</th>
                <td colspan="3" class="words"><button type="button" class="small" data-test="best-order" on:click=move |_| planner.find_best_order()>"Search it"</button></td></tr>
        }
        .into_any(),
    }
    };
    view! {
        <div>
            <h3>"What if"</h3>
            <div class="scroll" role="region" aria-label="What if, table" tabindex="0">
                <table data-test="what-if">
                    <thead><tr><th scope="col">"what if"</th><th scope="col" class="number">"makespan"</th><th scope="col" class="number" colspan="2">"saved"</th></tr></thead>
                    <tbody>{found.what_ifs.iter().map(row).collect_view()}{best}</tbody>
                </table>
            </div>
            <SaveTable css="[data-test='what-if']" name="what-if.csv" />
        </div>
    }
}

/// Who is slow, since when, and of which kind.
#[component]
fn Stragglers(found: Arc<AnalysisRows>) -> impl IntoView {
    let planner = expect_context::<Planner>();
    if found.stragglers.is_empty() {
        let said = "No stragglers: no rank, stage, link, microbatch or op is far slower than its like.";
        return view! { <div><h3>"Stragglers"</h3><p class="hint" data-test="stragglers">{said}</p></div> }
            .into_any();
    }
    let row = move |straggler: &StragglerRow| {
        let StragglerRow { place, why, permille, since, ops, saved_ns, at } = straggler.clone();
        let place = match at {
            Some(at) => view! {
                <button type="button" class="quiet" data-test="go-to-straggler" title="Go to it in the timeline"
                    on:click=move |_| planner.go_to_op(at)>{place}</button>
            }
            .into_any(),
            None => view! { {place} }.into_any(),
        };
        view! {
            <tr>
                <th scope="row">{place}</th>
                <td class="number">{format!("{:.2}", f64::from(permille) / 1000.0)}</td>
                <td class="number">{format!("step {since}")}</td>
                <td class="number">{text::count(ops as u64)}</td>
                <td class="number">{text::duration(saved_ns as f64)}</td>
                <td class="words">{why}</td>
            </tr>
        }
    };
    let left = found.stragglers.len().saturating_sub(MOST_ROWS) + found.more_stragglers;
    view! {
        <div class="wide">
            <h3>"Stragglers"</h3>
            <div class="scroll" role="region" aria-label="Stragglers, table" tabindex="0">
                <table data-test="stragglers">
                    <thead><tr><th scope="col">"straggler"</th><th scope="col" class="number">"times"</th><th scope="col" class="number">"since"</th><th scope="col" class="number">"count"</th><th scope="col" class="number">"saved"</th><th scope="col">"kind"</th></tr></thead>
                    <tbody>{found.stragglers.iter().take(MOST_ROWS).map(row).collect_view()}</tbody>
                </table>
            </div>
            {(left > 0).then(|| view! { <p class="hint">{format!("and {left} more that cost less")}</p> })}
            <SaveTable css="[data-test='stragglers']" name="stragglers.csv" />
        </div>
    }
    .into_any()
}
