use std::sync::Arc;

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::{Objective, Statement};
use pipeplan_core::simulate::timeline::Span;

use crate::protocol::from_core;

use super::*;
use pipeplan_core::plan::planner;
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;
use serde_json::json;

pub(crate) fn example(schedule: &str, chunks: usize) -> Scene {
    let statement = Statement::read(&json!({
        "ranks": 4, "chunks": chunks, "microbatches": 8, "placement": "any",
        "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10,
                    "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2 },
        "static_bytes": 3, "limit_bytes": 1000
    }));
    let spec = Spec::typed(statement.unwrap());
    let answer = planner::answer(&spec, &schedule::find(schedule).unwrap()).unwrap();
    Scene::of(from_core::picture(schedule, &answer.case.problem, &answer.timeline), Vec::new()).unwrap()
}

#[test]
fn a_scene_shows_what_the_planner_found() {
    let scene = example("1f1b", 1);
    // (M + P − 1)(F + BW), and rank 0 holds P microbatches.
    assert_eq!(scene.end_ns(), (8 + 3) * 30);
    assert_eq!(scene.peak_bytes(), 3 + 4 * 4);
    assert_eq!(scene.curve(0).unwrap().peak(), 3 + 4 * 4);
    assert_eq!(scene.curve(3).unwrap().peak(), 3 + 4);
    assert_eq!(scene.tightest_rank(), 0);
    assert_eq!(kinds_of(&scene.tracks), [OpKind::F, OpKind::BW]);
    let lines = scene.describe(2, 0);
    assert_eq!(lines[0], ("2F0".to_owned(), "forward".to_owned()));
    assert!(lines.contains(&("starts".to_owned(), "20 ns".to_owned())), "{lines:?}");
    assert!(scene.describe(9, 0).is_empty() && scene.describe(0, 999).is_empty());
}

/// Each rank is at work for 240 ns of 330 from the first op to the last; rank 0 alone is there for all of them.
#[test]
fn ranks_wait_in_what_the_plan_is_judged_by() {
    let mut scene = example("1f1b", 1);
    scene.figures.longest_span_ns = 300;
    assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 330.0, 1.0 - 240.0 / 330.0)));
    assert!(scene.headline().contains(": 330 ns, "), "{}", scene.headline());
    scene.figures.objective = Objective::LongestSpan.name().to_owned();
    assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 300.0, 1.0 - 240.0 / 300.0)));
    assert!(scene.headline().contains(": longest span 300 ns, "), "{}", scene.headline());
    scene.tracks[3] = Track::new(Vec::new());
    assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 300.0, 1.0)));
}

#[test]
fn the_key_has_what_is_compared_too() {
    let (plan, kept) = (example("1f1b", 1), example("zb-v", 2));
    assert_eq!(Key::of(Some(&plan), None), Key { kinds: vec![OpKind::F, OpKind::BW], ..Key::default() });
    let both = Key::of(Some(&plan), Some(&Below::Kept(Arc::new(kept))));
    let kinds = vec![OpKind::F, OpKind::B, OpKind::W, OpKind::BW];
    assert_eq!(both, Key { kinds, shaded: true, two_way: false, marks: Vec::new() });
    let two_way = example("dualpipe", 1);
    let keys = [Key::of(Some(&two_way), None), Key::of(Some(&plan), Some(&Below::Kept(Arc::new(two_way.clone()))))];
    assert!(keys.iter().all(|key| key.two_way && !key.shaded), "{keys:?}");
    let said: Vec<String> = (0..4)
        .flat_map(|index| two_way.describe(0, index))
        .filter_map(|(name, value)| (name == "direction").then_some(value))
        .collect();
    assert_eq!(said.len(), 4);
    assert!(said.contains(&"down the ranks".to_owned()) && plan.up_from().is_none(), "{said:?}");
}

#[test]
fn a_drawing_says_what_it_is_of() {
    let form = crate::form::Form::default();
    let mut spec = Spec::from_value(&form.to_value()).unwrap();
    let answer = planner::answer(&spec, &schedule::find("1f1b").unwrap()).unwrap();
    let scene = Scene::of(from_core::picture_of(&spec, &answer), Vec::new()).unwrap();
    assert_eq!(subject(&spec, &scene), "Llama 2 7B on NVIDIA H100 SXM 80 GB, 4 ranks, 10 microbatches");
    spec.name = "mine".to_owned();
    assert!(subject(&spec, &scene).starts_with("mine, Llama"));
}

#[test]
fn a_kind_that_a_single_rank_has_is_found() {
    let mut tracks = example("zb-h1", 1).tracks;
    assert_eq!(kinds_of(&tracks), [OpKind::F, OpKind::B, OpKind::W]);
    tracks[3] = Track::new(vec![Span { op: Op::new(3, OpKind::BW, 0), start_ns: 0, end_ns: 1 }]);
    assert_eq!(kinds_of(&tracks), [OpKind::F, OpKind::B, OpKind::W, OpKind::BW]);
}

/// Pairs too, although the second op of a pair has travelled without a time of its own.
#[test]
fn a_scene_knows_its_order() {
    let statement = Statement::read(&json!({
        "ranks": 4, "microbatches": 8, "placement": "any", "overlap_permille": 500,
        "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10 },
    }));
    let spec = Spec::typed(statement.unwrap());
    let mut paired = 0;
    for name in ["1f1b", "zb-h1", "dualpipe"] {
        let answer = planner::answer(&spec, &schedule::find(name).unwrap()).unwrap();
        let picture = from_core::picture(name, &answer.case.problem, &answer.timeline);
        let pairs: Vec<Vec<u32>> = (0..4).map(|rank| answer.schedule.pairs_of(rank).to_vec()).collect();
        paired += pairs.concat().len();
        let scene = Scene::of(picture, Vec::new()).unwrap();
        let order = scene.order();
        assert_eq!((order.text_rows(), order.pairs), (answer.schedule.text_rows(), pairs), "{name}");
    }
    assert!(paired > 0);
}

/// Copies to the host travel with the plan: the memory of a rank is that of the planner at any time, and so is what the page asks
/// the worker to plan on with.
#[test]
fn a_scene_knows_its_copies() {
    let statement = Statement::read(&json!({
        "ranks": 4, "microbatches": 8, "limit_bytes": 8,
        "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10, "forward_bytes": 4,
                    "backward_input_bytes": -1, "backward_weight_bytes": -3, "offload_bytes": 4, "offload_ns": 3 },
    }));
    let spec = Spec::typed(statement.unwrap());
    let answer = planner::answer(&spec, &schedule::find("1f1b").unwrap()).unwrap();
    assert!(answer.schedule.has_copies());
    let picture = from_core::picture("1f1b", &answer.case.problem, &answer.timeline);
    let scene = Scene::of(picture, Vec::new()).unwrap();
    assert_eq!(scene.order().copies, answer.schedule.copies);
    for rank in 0..4 {
        assert_eq!(scene.timeline().memory(&scene.problem, rank), answer.timeline.memory(&scene.problem, rank));
        assert_eq!(scene.carried(rank).unwrap().copies.spans().len(), answer.schedule.copies_of(rank).len());
    }
    let goes = &answer.timeline.copies[0][0];
    let said = scene.describe_carried(0, goes.start_ns);
    assert!(said.iter().any(|(what, _)| what == "copies to the host"), "{said:?}");
}

#[test]
fn ranks_that_take_turns_take_all_their_work_shared_out() {
    let scene = example("1f1b", 1);
    // Four ranks with eight microbatches of F and BW each.
    let work = 4 * 8 * 30;
    assert_eq!(scene.in_turns_ns(4, 1), work);
    assert_eq!(scene.in_turns_ns(4, 2), work / 2);
    // Two copies of the pipeline.
    assert_eq!(scene.in_turns_ns(8, 2), work);
    assert_eq!(scene.in_turns_ns(4, 3), scene.end_ns(), "a rank for itself takes no less");
}

#[test]
fn dependencies_follow_the_microbatch_through_the_ranks() {
    let scene = example("1f1b", 1);
    let names = |text: &str| -> Vec<String> {
        let op = text.parse().unwrap();
        let name = |(rank, index): (usize, usize)| scene.tracks[rank].spans()[index].op.to_string();
        scene.dependencies(op).into_iter().map(|[from, to]| format!("{}>{}", name(from), name(to))).collect()
    };
    assert_eq!(names("0F3"), ["0F3>1F3"]);
    assert_eq!(names("2F3"), ["1F3>2F3", "2F3>3F3"]);
    assert_eq!(names("3F3"), ["2F3>3F3", "3F3>3BW3"]);
    assert_eq!(names("3BW3"), ["3F3>3BW3", "3BW3>2BW3"]);
    assert_eq!(names("0BW3"), ["1BW3>0BW3"]);
}

#[test]
fn of_ranks_that_are_as_full_the_last_is_named() {
    let mut scene = example("1f1b", 1);
    scene.figures.peak_bytes = vec![5, 7, 7, 3];
    assert_eq!(scene.tightest_rank(), 2);
    scene.figures.peak_bytes = vec![5, 7, 7, 5];
    scene.figures.limit_bytes = vec![Some(5), Some(9), Some(9), Some(5)];
    assert_eq!(scene.tightest_rank(), 3);
}

#[test]
fn chunks_count_within_their_rank() {
    assert_eq!(example("zb-v", 2).chunk_of_stage(), [0, 0, 0, 0, 1, 1, 1, 1]);
}

/// A step that ran as planned, in so many copies of the pipeline.
fn ran(plan: &Scene, copies: usize) -> MeasuredScene {
    let tracks = (0..copies).flat_map(|_| plan.tracks.clone()).collect();
    MeasuredScene::of_tracks(tracks)
}

#[test]
fn a_run_is_of_the_plan_whose_ops_its_ranks_ran() {
    let plan = example("1f1b", 1);
    assert_eq!(ran(&plan, 1).differs_from(&plan), None);
    assert_eq!(ran(&plan, 2).differs_from(&plan), None);
    assert_eq!(ran(&example("gpipe", 1), 1).differs_from(&plan), None, "the same ops in another order");
    let said = ran(&example("zb-h1", 1), 1).differs_from(&plan);
    assert_eq!(said.as_deref(), Some("trace of another plan, with other ops"));
    // Nor does its memory stand beside this plan's.
    assert_eq!(ran(&plan, 1).peaks_beside(&plan, vec![7; 4]), Some(vec![7; 4]));
    assert_eq!(ran(&example("zb-h1", 1), 1).peaks_beside(&plan, vec![7; 4]), None);
    let mut more = ran(&plan, 1);
    more.tracks.push(plan.tracks[0].clone());
    assert_eq!(more.differs_from(&plan).as_deref(), Some("trace of another plan, with 5 ranks instead of 4"));
    // What is pointed at is set beside the same op of the same rank alone.
    let planned = |measured: &MeasuredScene, rank: usize| {
        measured.describe(rank, 0, Some(&plan)).iter().any(|(name, _)| name == "planned")
    };
    assert!(planned(&ran(&plan, 2), 5) && !planned(&more, 4 + 1));
    more.tracks.swap(0, 1);
    assert!(!planned(&more, 0), "an op of another rank");
}

#[test]
fn a_measured_step_is_stretched_only_where_asked() {
    assert_eq!(measured_scale(100, 400, true), 0.25);
    assert_eq!(measured_scale(100, 400, false), 1.0);
    assert_eq!(measured_scale(0, 400, true), 1.0);
}
