//! A plan in a few lines for people: what it costs, what it holds, how far it is from the best.

use std::fmt::Write;

use owo_colors::OwoColorize;
use pipeplan_core::base::units::Nanos;
use pipeplan_core::check::check_program;
use pipeplan_core::estimate::published::PUBLISHED_STEPS;
use pipeplan_core::estimate::step::Training;
use pipeplan_core::plan::planner;
use pipeplan_core::plan::{Fill, PackingFigures, Plan, layers_of_rank};
use pipeplan_core::problem::Objective;
use pipeplan_core::problem::copies::CopyWay;
use pipeplan_core::program::execute::{Carrier, execute};
use pipeplan_core::program::lower::{Lowering, lower_as};
use pipeplan_core::simulate::timeline::copied_bytes;
use pipeplan_core::spec::{Documents, Messages, Work};

use super::format::{bytes, count, duration, mfu, percent, trained};
use super::interval::Interval;

/// The lines about `plan`. `proved_ns` is the lower bound that an exact search has proved, if there was one.
pub fn summary(plan: &Plan, proved_ns: Option<Nanos>) -> String {
    let mut text = title(plan);
    if let Work::Model(work) = &plan.spec.work {
        let _ = writeln!(text, "trains        {}", trained(work));
        text.push_str(&layers(plan).unwrap_or_default());
    }
    let (problem, prediction) = (&plan.problem, &plan.prediction);
    let objective = problem.objective();
    let name = objective.name().replace('_', " ");
    let (cost, other) = match objective {
        Objective::Makespan => (prediction.makespan_ns, ("longest span", prediction.longest_span_ns)),
        Objective::LongestSpan => (prediction.longest_span_ns, ("makespan", prediction.makespan_ns)),
    };
    // The step epilogue may differ between two schedules, and counts where one of them is chosen.
    let with_end = if plan.epilogue.is_some() { " with the step epilogue" } else { "" };
    let _ = writeln!(
        text,
        "{name:<13} {}, the objective{with_end}; {} {}",
        duration(cost).bold(),
        other.0,
        duration(other.1)
    );
    text.push_str(&with_transfers(plan, cost).unwrap_or_default());
    if let Some(outcomes) = plan.outcomes() {
        let _ = writeln!(
            text,
            "with jitter   {} typical, more than {} in 1 of 20 steps: op times vary by {}",
            duration(outcomes.typical_ns),
            duration(outcomes.late_ns),
            percent(f64::from(plan.spec.jitter_permille) / 1000.0)
        );
    }
    let whole = cost as f64 * problem.ranks() as f64;
    let busy: f64 = prediction.busy_ns.iter().map(|ns| *ns as f64).sum();
    let bubble = if whole > 0.0 { 1.0 - busy / whole } else { 0.0 };
    let _ = writeln!(text, "bubble        {} of the {name}", percent(bubble));
    text.push_str(&bound(plan, cost, proved_ns));
    text.push_str(&documents(plan).unwrap_or_default());
    text.push_str(&step(plan).unwrap_or_default());
    if let Some(reports) = plan.reports() {
        let _ = writeln!(text, "passes        {}", reports.line());
    }
    let most = (0..problem.ranks()).max_by_key(|rank| prediction.peak_bytes[*rank]).unwrap_or(0);
    let limit = match problem.limit_bytes(most) {
        Some(limit) => format!("of {}", bytes(limit)),
        None => "without a limit".to_owned(),
    };
    let _ = writeln!(text, "peak memory   {} on rank {most}, {limit}", bytes(prediction.peak_bytes[most]));
    text.push_str(&copies(plan).unwrap_or_default());
    text
}

/// What the schedule copies to hosts: how much of what the stages keep, and how much of the links' time.
fn copies(plan: &Plan) -> Option<String> {
    let (problem, schedule) = (&plan.problem, &plan.schedule);
    let all = schedule.copies.iter().flatten();
    let away = all.clone().filter(|copy| copy.moved.way == CopyWay::Offload).count();
    let of_all = problem.stage_count() * problem.microbatches();
    let on_host = (0..problem.ranks()).map(|rank| copied_bytes(problem, schedule.copies_of(rank))).max()?;
    let link = |rank: usize| {
        let of_rank = schedule.copies_of(rank).iter();
        of_rank.map(|copy| problem.cost(copy.moved.stage.into()).offload_ns).sum::<Nanos>()
    };
    let busiest = (0..problem.ranks()).map(link).max()?;
    let share = busiest as f64 / plan.prediction.makespan_ns.max(1) as f64;
    (away > 0).then(|| {
        format!(
            "host copies   {away} of {of_all} activations of a stage and microbatch go to the host and back; at most {} there per \
             rank; links busy for up to {} of the time\n",
            bytes(on_host),
            percent(share)
        )
    })
}

/// Replicas whose documents are told, and microbatches of each; the plan file has all.
const MOST_REPLICAS: usize = 8;
const MOST_MICROBATCHES: usize = 32;

/// Which replica has which documents, and what packings of them cost.
fn documents(plan: &Plan) -> Option<String> {
    let Work::Model(work) = &plan.spec.work else { return None };
    let Documents::OfReplicas(replicas) = &work.batch.documents else { return None };
    let mut text = String::new();
    if let Some(fill) = Fill::of(&plan.spec) {
        let Fill { documents, tokens, replicas, microbatches, .. } = fill;
        let of_each = count(microbatches as usize, "microbatch");
        let of_all = if replicas == 1 { of_each } else { format!("{of_each} of each of {replicas} replicas") };
        let _ = writeln!(
            text,
            "documents     {documents} of {tokens} tokens in {of_all}, {} full",
            percent(fill.share())
        );
    }
    if let Some(PackingFigures { given_ns, sorted_ns, dealt_ns, found_ns, bound_ns }) = plan.packing {
        let named = [("in their order", given_ns), ("sorted", sorted_ns), ("longest first", dealt_ns)];
        let told = named.into_iter().filter_map(|(name, ns)| Some(format!("{name} {}", duration(ns?))));
        let _ = writeln!(
            text,
            "packing       {} a step; {}; no packing takes less than {}",
            duration(found_ns),
            told.collect::<Vec<_>>().join(", "),
            duration(bound_ns)
        );
    }
    for (at, (documents, replica)) in replicas.iter().zip(&plan.replicas).take(MOST_REPLICAS).enumerate() {
        let longest = documents.iter().map(|of| of.iter().max().copied().unwrap_or(0).to_string());
        let mut shown: Vec<String> = longest.take(MOST_MICROBATCHES).collect();
        if documents.len() > MOST_MICROBATCHES {
            shown.push("…".to_owned());
        }
        let all: usize = documents.iter().map(Vec::len).sum();
        let _ = writeln!(
            text,
            "{:<14}{}, {}; the longest of each microbatch: {}",
            format!("replica {at}"),
            duration(replica.makespan_ns),
            count(all, "document"),
            shown.join(" ")
        );
    }
    if replicas.len() > MOST_REPLICAS {
        let _ = writeln!(text, "{:<14}{} more, in the plan file", "replicas", replicas.len() - MOST_REPLICAS);
    }
    Some(text)
}

/// Ranks whose layers are told in a line; `pipeplan layers` tells those of more.
const MOST_RANKS: usize = 8;

/// Which layers each rank holds.
fn layers(plan: &Plan) -> Option<String> {
    let (holders, ranks) = (plan.holders()?, plan.problem.ranks());
    let told = |rank: usize| format!("{} on rank {rank}", layers_of_rank(&holders, rank));
    let told = match ranks <= MOST_RANKS {
        true => (0..ranks).map(told).collect::<Vec<_>>().join("; "),
        false => format!("{}; {}; … {}; `pipeplan layers` lists all", told(0), told(1), told(ranks - 1)),
    };
    Some(format!("layers        {told}\n"))
}

/// The schedule and its sizes.
fn title(plan: &Plan) -> String {
    let problem = &plan.problem;
    let title = match (pipeplan_core::schedule::find(&plan.schedule_name), plan.schedule_name.as_str()) {
        (Some(known), _) => known.title,
        (None, pipeplan_core::schedule::BEST) => "found by search",
        (None, _) => "custom schedule",
    };
    format!(
        "{} ({title}) on {}, {} each, {}\n",
        plan.schedule_name.bold(),
        count(problem.ranks(), "rank"),
        count(problem.chunks(), "chunk"),
        count(problem.microbatches(), "microbatch")
    )
}

/// The cost with waits for transfers, if they add to `cost`; and what overlapped transfers cost, if that is less.
fn with_transfers(plan: &Plan, cost: Nanos) -> Option<String> {
    let (problem, objective) = (&plan.problem, plan.problem.objective());
    let Messages { lowering, transport } = plan.spec.messages;
    let carried = execute(problem, &plan.program, &plan.schedule.pairs, Carrier::of(transport))
        .map(|timeline| timeline.cost_ns(objective));
    let carried = carried.filter(|carried| *carried > cost)?;
    let overlapped = Lowering::Overlapped { prefetch: 0 };
    let program = lower_as(problem, &plan.schedule, overlapped).ok();
    let program = program.filter(|program| check_program(problem, program, transport).is_ok());
    let faster = program.and_then(|program| execute(problem, &program, &plan.schedule.pairs, Carrier::of(transport)));
    let faster = faster.map(|timeline| timeline.cost_ns(objective)).filter(|faster| *faster < carried);
    let pairs_apart = plan.schedule.pairs.iter().any(|pairs| !pairs.is_empty()) && !lowering.keeps_pairs();
    Some(format!(
        "with P2P      {}, waits for transfers included{}: {lowering} transfers on {transport} transport{}\n",
        duration(carried),
        if pairs_apart { " and pairs run one op after the other" } else { "" },
        faster.map_or_else(String::new, |ns| format!("; {} with `--lowering {overlapped}`", duration(ns)))
    ))
}

/// The best bound, and how far `cost` is from it.
fn bound(plan: &Plan, cost: Nanos, proved_ns: Option<Nanos>) -> String {
    let (bound_ns, by_search) = match proved_ns {
        Some(proved_ns) if proved_ns > plan.prediction.bound_ns => (proved_ns, ", by exact search"),
        _ => (plan.prediction.bound_ns, ""),
    };
    let gap = planner::gap(cost, bound_ns);
    let gap = gap.map_or_else(String::new, |gap| match gap {
        0.0 => ": proven the best for this placement".to_owned(),
        gap => format!(": at most {} from the best for this placement", percent(gap)),
    });
    format!("bound         {}{by_search}{gap}\n", duration(bound_ns))
}

/// The whole step of a model: throughput, MFU and the time of the training.
fn step(plan: &Plan) -> Option<String> {
    let (step, Work::Model(work)) = (plan.step()?, &plan.spec.work) else { return None };
    let per_device = match work.devices() {
        0 | 1 => String::new(),
        devices => format!(", {} a device", (step.tokens_per_s / devices as f64).round()),
    };
    let rate = if work.layout.form.matmul_dtype.is_some() {
        format!(" of the rate in {}", work.dtype.name())
    } else {
        String::new()
    };
    let mut text = format!(
        "step          {} with its optimizer: {} tokens/s{per_device}, MFU {}{rate}\n",
        duration(step.step_ns),
        step.tokens_per_s.round(),
        mfu(step.mfu)
    );
    if let Some([least, most]) = PUBLISHED_STEPS.of(work, step.step_ns) {
        let (least, most, count) = (duration(least), duration(most), PUBLISHED_STEPS.count);
        let _ = writeln!(
            text,
            "range         {least} to {most}, as far as 8 of 10 of {count} published runs are from their plans"
        );
    }
    if let Some(whole) = Training::of(work, step.step_ns) {
        let _ = writeln!(text, "training      {whole}");
    }
    text.push_str(&Interval::of_plan(plan).map_or_else(String::new, |interval| interval.told(None)));
    Some(text)
}
