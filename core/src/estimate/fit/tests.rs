//! Every rank fits, and nothing that was tried is faster.

use super::knapsack::Moments;
use super::mixtures::Stages;
use super::offload::offloads;
use super::*;
use crate::graph::layout::Partition;
use crate::plan::planner::{self, Answer};
use crate::plan::verdict;
use crate::problem::StageCost;
use crate::schedule;
use crate::spec::{Spec, Work};
use alloc::format;
use alloc::string::String;

fn spec(recompute: &str, limit: &str, more: &str) -> Spec {
    let text = format!(
        "[model]\nname = \"llama-2-13b\"\nlayers = 16\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 4\n\
         {more}\n[training]\nmicrobatches = 8\nmicrobatch_size = 2\nrecompute = \"{recompute}\"\n\
         [memory]\nlimit_bytes = {limit}"
    );
    Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn answer(spec: &Spec, name: &str) -> Result<Answer, String> {
    planner::answer(spec, &schedule::find(name).unwrap()).map_err(|absent| absent.reason)
}

fn peaks(answer: &Answer) -> Vec<Bytes> {
    let problem = &answer.case.problem;
    (0..problem.ranks()).map(|rank| answer.timeline.peak_bytes(problem, rank)).collect()
}

/// Every rank fits, and nothing with less time in any rank's ops would: all mixtures of all ranks are tried.
#[test]
fn the_choice_is_the_least_that_fits() {
    let plenty = answer(&spec("none", "900000000000", ""), "1f1b").unwrap();
    let least = answer(&spec("full", "900000000000", ""), "1f1b").unwrap();
    let (most, fewest) = (*peaks(&plenty).iter().max().unwrap(), *peaks(&least).iter().max().unwrap());
    let mut seen = Vec::new();
    for share in 0..=6 {
        let limit = fewest + (most - fewest) * share / 6;
        let spec = spec("fit", &format!("{limit}"), "");
        let found = answer(&spec, "1f1b").unwrap();
        assert!(peaks(&found).iter().all(|peak| *peak <= limit));
        let fitted = found.case.fitted.clone().unwrap();
        let (derived, Work::Model(work)) = (found.case.derived.as_ref().unwrap(), &spec.work) else { panic!() };
        for (rank, layout) in derived.stages.iter().enumerate() {
            let range = layout.layers.start as usize..layout.layers.end as usize;
            let mut stages = Stages::new(fitted.applied_to(work));
            let time = |cost: &StageCost| cost.backward_input_ns + cost.backward_weight_ns;
            let ours = time(&stages.cost(layout, &fitted.choices.as_ref().unwrap()[range.clone()]));
            let moments = Moments::of(&found.case.problem, &found.schedule, rank, &[rank]);
            for mixture in stages.mixtures(layout).list {
                let cost = stages.cost(layout, &mixture.choices(layout.layers.len()));
                let peak = moments.peak(&[cost]);
                assert!(peak > limit || time(&cost) >= ours, "rank {rank}: {:?}", mixture.runs);
            }
        }
        seen.push(found.timeline.makespan_ns());
    }
    assert!(seen.windows(2).all(|pair| pair[0] >= pair[1]), "more memory never costs time: {seen:?}");
    assert_eq!(seen[6], plenty.timeline.makespan_ns());
    assert!(seen[3] < seen[0]);
}

/// Also for schedules whose rows follow from times, and where the limit is just what that takes. And the best of what
/// fits is no slower.
#[test]
fn slow_what_fits_with_all_layers_computed_again_fits() {
    let mut seen = 0;
    for published in schedule::published() {
        let Ok(full) = answer(&spec("full", "900000000000", ""), published.name) else { continue };
        let limit = peaks(&full).into_iter().max().unwrap();
        // Within its own peak a schedule that minds the limit may be another.
        let Ok(full) = answer(&spec("full", &format!("{limit}"), ""), published.name) else { continue };
        let found = answer(&spec("fit", &format!("{limit}"), ""), published.name);
        let found = found.unwrap_or_else(|reason| panic!("{} in {limit}: {reason}", published.name));
        assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{}", published.name);
        let best = |recompute| {
            let spec = spec(recompute, &format!("{limit}"), "");
            let best = planner::best(&spec, crate::search::Effort::default(), &mut |_| crate::search::Flow::Continue);
            best.unwrap_or_else(|error| panic!("{} in {limit}: {error}", published.name)).timeline.makespan_ns()
        };
        if seen % 4 == 0 {
            let (fit, full_best) = (best("fit"), best("full"));
            assert!(
                fit <= full_best && full_best <= full.timeline.makespan_ns(),
                "{}: {fit} {full_best}",
                published.name
            );
        }
        seen += 1;
    }
    assert!(seen > 12, "{seen} schedules");
}

#[test]
fn a_model_of_many_layers_on_few_ranks_is_fitted_and_says_how() {
    let mut spec = spec("fit", "900000000000", "");
    let Work::Model(work) = &mut spec.work else { panic!("a model") };
    work.model.layers = 1200;
    work.pipeline = 1;
    let all = answer(&Spec { work: Work::Model(work.clone()), ..spec.clone() }, "1f1b").unwrap_err();
    assert!(all.contains("even with full recomputation of all layers"), "{all}");
    let Work::Model(work) = &mut spec.work else { panic!("a model") };
    work.limit_bytes = Some(8_000_000_000_000);
    let found = answer(&spec, "1f1b").unwrap();
    assert!(peaks(&found)[0] <= 8_000_000_000_000);
    let said = format!("{:?}", found.case.fitted.unwrap().account);
    assert!(said.contains("layers share a choice"), "{said}");
}

/// The spec with more `training` and a rate of copies.
fn offloading(recompute: &str, offload: &str, limit: Bytes, host: &str) -> Spec {
    let mut spec = spec(recompute, &format!("{limit}"), "");
    let Work::Model(work) = &mut spec.work else { panic!("a model") };
    let said = format!(
        "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 1\n\
         [training]\nmicrobatches = 1\noffload = {offload}"
    );
    let said = Spec::read(&said).unwrap_or_else(|faults| panic!("{faults}"));
    let Work::Model(said) = said.work else { panic!("a model") };
    work.layout.form.offload = said.layout.form.offload;
    work.layout.offload_fits = said.layout.offload_fits;
    work.device.host_bytes_per_s = host.parse().unwrap();
    spec
}

/// Of all numbers of layers none with which all ranks fit costs less, nor as much with fewer: with a host that is far
/// and one that is near, with recomputation and without.
#[test]
fn slow_the_host_s_memory_is_used_as_far_as_it_is_needed() {
    let peak = |offload| {
        *peaks(&answer(&offloading("none", offload, 900 << 30, "25000000000"), "1f1b").unwrap()).iter().max().unwrap()
    };
    let (most, fewest) = (peak("\"none\""), peak("\"all\""));
    assert!(10 * fewest < 7 * most, "{fewest} {most}");
    let numbers = ["\"none\"", "1", "2", "3", "\"all\""];
    let mut seen = Vec::new();
    for host in ["1000000000", "25000000000", "400000000000"] {
        for recompute in ["none", "cheap", "fit"] {
            for share in [0, 1, 3, 5, 6] {
                let limit = fewest + (most - fewest) * share / 6;
                let ways: &[&str] = match recompute {
                    "fit" => &["fit", "none", "selective", "cheap", "full"],
                    given => &[given],
                };
                let cost = |number: &&str| {
                    let tried = ways.iter().map(|way| answer(&offloading(way, number, limit, host), "1f1b"));
                    tried.filter_map(|tried| Some(tried.ok()?.cost_ns())).min().unwrap_or(Nanos::MAX)
                };
                let costs = numbers.iter().map(cost);
                let (at, least) = costs.enumerate().min_by_key(|(_, cost)| *cost).unwrap();
                let found = answer(&offloading(recompute, "\"fit\"", limit, host), "1f1b");
                let what = format!("{host} {recompute} {share}");
                let Ok(found) = found else {
                    assert_eq!(least, Nanos::MAX, "{what}: {found:?}");
                    continue;
                };
                assert_eq!(found.cost_ns(), least, "{what}");
                assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{what}");
                let offload = found.case.fitted.unwrap().offload.unwrap();
                let number = if offload == Offload::First(4) { Offload::All } else { offload }.text();
                assert_eq!(number, numbers[at].trim_matches('"'), "{what}");
                seen.push(number);
            }
        }
    }
    numbers
        .iter()
        .for_each(|number| assert!(seen.iter().any(|seen| seen == number.trim_matches('"')), "{number} of {seen:?}"));
}

#[test]
fn a_plan_says_what_waits_on_the_host_and_derives_again() {
    let limit = 45_000_000_000;
    for recompute in ["none", "fit"] {
        let spec = offloading(recompute, "\"fit\"", limit, "25000000000");
        assert_eq!(Spec::read(&spec.to_json()).unwrap(), spec);
        assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec);
        let plan = planner::plan(&spec, "1f1b").unwrap();
        let Work::Model(work) = &plan.spec.work else { panic!("a model") };
        assert!(!work.layout.fits() && work.layout.form.offload != Offload::None);
        let again = Spec::read(&plan.spec.to_json()).unwrap();
        assert_eq!(again, plan.spec);
        assert_eq!(planner::plan(&again, "1f1b").unwrap().prediction, plan.prediction);
    }
    let error = answer(&offloading("none", "\"fit\"", 1_000_000_000, "25000000000"), "1f1b").unwrap_err();
    assert!(error.contains("with activation offload of all layers; the limit is 1000000000 bytes"), "{error}");
    // What would be held with the most of both is what a limit has to be at least.
    let both = |limit| answer(&offloading("fit", "\"fit\"", limit, "25000000000"), "1f1b");
    let error = both(1_000_000_000).unwrap_err();
    let held = error.split(" needs ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    assert!(both(held).is_ok(), "{error}");
    assert!(both(held - held / 50).is_err(), "{error}");
}

/// Where layers are dealt within the limit, too, no number that can be said costs less.
#[test]
fn partition_and_offload_are_fitted_together() {
    let dealt = |offload: &str, limit| {
        let mut spec = offloading("none", offload, limit, "25000000000");
        let Work::Model(work) = &mut spec.work else { panic!("a model") };
        work.layout.partition = Partition::WithinLimit;
        (work.model.layers, work.microbatches) = (18, 12);
        answer(&spec, "1f1b")
    };
    let roomy = dealt("\"all\"", 900 << 30).unwrap();
    let fewest = *peaks(&roomy).iter().max().unwrap();
    let mut some = 0;
    for limit in [fewest - fewest / 50, fewest + fewest / 50, fewest + fewest / 10, fewest + fewest / 4] {
        let tried = ["\"none\"", "1", "2", "3", "4", "\"all\""].map(|offload| dealt(offload, limit));
        let least = tried.iter().filter_map(|tried| Some(tried.as_ref().ok()?.cost_ns())).min();
        let found = dealt("\"fit\"", limit);
        assert_eq!(found.as_ref().ok().map(Answer::cost_ns), least, "{limit}: {:?}", found.err());
        some += usize::from(least.is_some());
    }
    assert!(some > 2, "{some}");
}

#[test]
fn many_layers_are_tried_in_few_steps() {
    assert_eq!(offloads(1), [Offload::All]);
    assert_eq!(offloads(3), [Offload::First(1), Offload::First(2), Offload::All]);
    let many = offloads(4096);
    assert_eq!((many.len(), many[0], many[15]), (16, Offload::First(256), Offload::All));
    assert!(offloads(0).is_empty());
}

#[test]
fn every_kind_of_schedule_is_fitted() {
    for name in ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe"] {
        let free = answer(&spec("none", "900000000000", ""), name).unwrap();
        let full = answer(&spec("full", "900000000000", ""), name).unwrap();
        let (most, fewest) = (*peaks(&free).iter().max().unwrap(), *peaks(&full).iter().max().unwrap());
        let limit = fewest + most.saturating_sub(fewest) * 2 / 3;
        let found =
            answer(&spec("fit", &format!("{limit}"), ""), name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(peaks(&found).iter().all(|peak| *peak <= limit), "{name}");
        assert!(found.timeline.makespan_ns() <= full.timeline.makespan_ns(), "{name}");
        let fitted = found.case.fitted.as_ref().unwrap();
        assert!(
            fitted.account.done.len() + fitted.account.skipped.len() == found.case.problem.stage_count(),
            "{name}"
        );
    }
}

#[test]
fn a_plan_says_what_was_chosen_and_derives_again() {
    let spec = spec("fit", "45000000000", "");
    let plan = planner::plan(&spec, "1f1b").unwrap();
    let Work::Model(work) = &plan.spec.work else { panic!("a model") };
    assert!(matches!(work.layout.recompute_layers, RecomputeLayers::Each(_)));
    let again = Spec::read(&plan.spec.to_json()).unwrap();
    assert_eq!(again, plan.spec);
    assert_eq!(planner::plan(&again, "1f1b").unwrap().prediction, plan.prediction);
    assert_eq!(crate::spec::link::read(&crate::spec::link::write(&plan.spec)).unwrap(), plan.spec);
    assert_eq!(crate::spec::link::read(&crate::spec::link::write(&spec)).unwrap(), spec);
}

#[test]
fn what_cannot_fit_says_by_how_much() {
    let error = answer(&spec("fit", "1000000000", ""), "1f1b").unwrap_err();
    assert!(error.contains("even with full recomputation of all layers; the limit is 1000000000 bytes"), "{error}");
    // And what to change still has numbers.
    let (_, ranks) = verdict::verdict(&spec("fit", "1000000000", ""), &schedule::find("1f1b").unwrap()).unwrap();
    assert!(ranks.iter().all(|rank| !rank.fits()));
}
