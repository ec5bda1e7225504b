//! Activation offload that fits: how many layers of each stage keep their activations in host memory.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::recompute::fit_recompute;
use super::{Fitted, MOST_COUNTS, NAME_OF_OFFLOAD, Solved, cost_of, limit_of, over_limit};
use crate::base::units::{Bytes, Nanos};
use crate::graph::form::{Offload, Recompute};
use crate::graph::layout::{Partition, RecomputeLayers};
use crate::graph::passes::{Entry, PassReport};
use crate::schedule::Absent;
use crate::spec::ModelWork;

/// The offload with the fastest schedule; among equals the one with the fewest layers.
pub(super) fn fit_offload(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    if work.layout.partition == Partition::WithinLimit {
        return fit_offload_and_partition(work, solve);
    }
    let again_fits = work.layout.recompute_layers == RecomputeLayers::Fit;
    let limit = limit_of(work);
    // The cost of each offload without recomputation for the limit. More offload leaves more room and is not faster.
    // So the choices that fit come last, and the first of them is the fastest.
    let mut tried: Vec<(Nanos, Offload)> = Vec::new();
    let mut counts = None;
    let mut next = Some(Offload::None);
    let mut reason = Absent::because("there is no schedule");
    while let Some(offload) = next {
        let (derived, problem, schedule) = solve(with(work, offload))?;
        let of_stage = || derived.stages.iter().map(|stage| stage.layers.len() as u32).max().unwrap_or(0);
        next = counts.get_or_insert_with(|| offloads(of_stage()).into_iter()).next();
        let cost = cost_of(&problem, &schedule)?;
        tried.push((cost, offload));
        match over_limit(&problem, &schedule, limit) {
            None if !again_fits || tried.first().is_some_and(|(bare, _)| cost <= *bare) => {
                return Ok(chosen(work, offload, again_fits.then_some(Recompute::None)));
            }
            None => {}
            Some((rank, peak)) => {
                let what = in_words(offload);
                reason = Absent::because(format!(
                    "rank {rank} needs {peak} bytes with activation offload of {what}; the limit is {limit} bytes"
                ));
            }
        }
    }
    if !again_fits {
        return Err(reason);
    }
    // As long as copies add no time, more offload is better than recomputation.
    let bare = tried.first().map_or(0, |(bare, _)| *bare);
    let free = tried.iter().rposition(|(cost, _)| *cost <= bare).unwrap_or(0);
    // By cost; among equals the fewest layers.
    let mut best: Option<((Nanos, usize), Fitted)> = None;
    // The least peak among the choices that do not fit.
    let mut nearest = Bytes::MAX;
    for (at, (cost, offload)) in tried.iter().enumerate().skip(free).rev() {
        // Less offload leaves less room: where nothing fits with the most, nothing fits.
        if at + 1 < tried.len() && best.is_none() {
            break;
        }
        let given = with(work, *offload);
        let least = fit_recompute(&given, solve);
        // Recomputed activations are not copied, so recomputation may shorten the wait. Where nothing fits, the error
        // tells the bytes that full recomputation still needs.
        let is_tried = |recompute: &Recompute| *cost > bare || least.is_err() && *recompute == Recompute::Full;
        let all = Recompute::ALL.into_iter().skip(1).filter(is_tried);
        let all: Vec<_> = all.map(|recompute| (recompute.name(), chosen(work, *offload, Some(recompute)))).collect();
        let least = least.map(|fitted| {
            let mut of_offload = chosen(work, *offload, None);
            of_offload.account.extend(fitted.account);
            ("some", Fitted { choices: fitted.choices, ..of_offload })
        });
        for (again, fitted) in least.into_iter().chain(all) {
            let Ok((_, problem, schedule)) = solve(fitted.applied_to(&given)) else { continue };
            match over_limit(&problem, &schedule, limit) {
                None => {
                    let cost = (cost_of(&problem, &schedule)?, at);
                    if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best = Some((cost, fitted));
                    }
                }
                Some((rank, peak)) if peak < nearest => {
                    nearest = peak;
                    let what = in_words(*offload);
                    reason = Absent::because(format!(
                        "rank {rank} needs {peak} bytes even with recompute {again} in all layers and activation offload of \
                         {what}; the limit is {limit} bytes"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    best.map(|(_, fitted)| fitted).ok_or(reason)
}

/// The same with the partition `within-limit`: more offload may balance the stages better and be faster. So all
/// numbers of layers are tried.
fn fit_offload_and_partition(
    work: &ModelWork,
    solve: &mut impl FnMut(ModelWork) -> Result<Solved, Absent>,
) -> Result<Fitted, Absent> {
    let mut best: Option<(Nanos, Offload)> = None;
    let mut reason = Absent::because("there is no schedule");
    let of_stage = work.model.layers.div_ceil(work.pipeline.max(1));
    for offload in core::iter::once(Offload::None).chain(offloads(of_stage)) {
        let solved = solve(with(work, offload));
        let cost = solved.and_then(|(_, problem, schedule)| match over_limit(&problem, &schedule, limit_of(work)) {
            None => cost_of(&problem, &schedule),
            Some((rank, peak)) => Err(Absent::because(format!("rank {rank} needs {peak} bytes"))),
        });
        match cost {
            Ok(cost) if best.is_none_or(|(least, _)| cost < least) => best = Some((cost, offload)),
            Ok(_) => {}
            Err(error) => reason = error,
        }
    }
    best.map(|(_, offload)| chosen(work, offload, None)).ok_or(reason)
}

fn with(work: &ModelWork, offload: Offload) -> ModelWork {
    let mut work = work.clone();
    (work.layout.form.offload, work.layout.offload_fits) = (offload, false);
    work
}

/// The choices `offload`, and `recompute` for all layers.
fn chosen(work: &ModelWork, offload: Offload, recompute: Option<Recompute>) -> Fitted {
    let mut account = PassReport::new(NAME_OF_OFFLOAD);
    let (what, limit) = (in_words(offload), limit_of(work));
    let why = format!(
        "activation offload of {what}: the fastest choice with which every rank fits its limit of {limit} bytes"
    );
    let entry = Entry::new("every stage", None, why, 0);
    match offload {
        Offload::None => account.skipped.push(entry),
        _ => account.done.push(entry),
    }
    if let Some(recompute) = recompute.filter(|recompute| *recompute != Recompute::None) {
        let why = format!("{} in all layers: less to offload", recompute.name());
        account.done.push(Entry::new("every layer", None, why, 0));
    }
    let choices = recompute.map(|recompute| vec![recompute; work.model.layers as usize]);
    Fitted { choices, offload: Some(offload), account }
}

/// The offloads that are tried for stages of `of_stage` layers, the fewest layers first.
pub(super) fn offloads(of_stage: u32) -> Vec<Offload> {
    let steps = of_stage.min(MOST_COUNTS);
    // At most the layers of a model: the product does not overflow.
    let offload = |step: u32| match of_stage * step / steps {
        all if all == of_stage => Offload::All,
        some => Offload::First(some),
    };
    (1..=steps).map(offload).collect()
}

/// The layers that offload.
fn in_words(offload: Offload) -> String {
    match offload {
        Offload::None => String::from("no layer"),
        Offload::First(1) => String::from("the first layer of each stage"),
        Offload::First(layers) => format!("the first {layers} layers of each stage"),
        Offload::All => String::from("all layers"),
        Offload::Scheduled => String::from("single microbatches"),
    }
}
