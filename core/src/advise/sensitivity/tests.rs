use super::change::{is_two_way, scaled};
use super::*;
use crate::problem::op::OpKind;
use crate::problem::{MAX_NS, Statement};
use crate::schedule::{find, published};
use crate::simulate::simulate;

fn problem(value: &Value) -> Problem {
    let statement = Statement::read(value).expect("a sound statement");
    statement.problem(statement.placements()[0].clone()).expect("its own placement")
}

fn all(problem: &Problem, schedule: &Schedule, permille: u32) -> Sensitivity {
    let mut all = Sensitivity::new(problem, schedule, permille).expect("a change");
    while all.step(problem, schedule) {}
    assert_eq!(all.left(), 0);
    all
}

/// Ops of 5 ns that take a tenth longer take half a nanosecond more each, and all of them together a tenth.
#[test]
fn short_times_change_by_as_much_as_long_ones() {
    let of = |times: u64| {
        let stage =
            json!({ "forward_ns": 5 * times, "backward_input_ns": 7 * times, "backward_weight_ns": 3 * times });
        let problem = problem(&json!({ "ranks": 4, "microbatches": 8, "stages": stage }));
        let schedule = find("zb-h1").expect("published").build(&problem).expect("exists");
        let found = all(&problem, &schedule, 100);
        found.effects.iter().map(|effect| (effect.longer_ns, effect.less_ns)).collect::<Vec<_>>()
    };
    let (short, long) = (of(1), of(1_000_000));
    assert_eq!(short.len(), long.len());
    for (short, long) in short.iter().zip(&long) {
        let rounded = |ns: u64| (ns + 500_000) / 1_000_000;
        assert_eq!(*short, (rounded(long.0), rounded(long.1)));
    }
}

/// 1F1B on two ranks with two microbatches: F takes 10, BW 20 (B 12, W 8). Both ranks' longest path is
/// F0 on 0, F0 BW0 F1 BW1 on 1, BW1 on 0: 10 + 60 + 20 = 90.
#[test]
fn two_ranks_by_hand() {
    let problem = problem(&json!({
        "ranks": 2, "microbatches": 2, "placement": "linear",
        "stages": { "forward_ns": 100, "backward_input_ns": 120, "backward_weight_ns": 80 },
    }));
    let schedule = find("1f1b").expect("published").build(&problem).expect("it exists");
    let all = all(&problem, &schedule, 100);
    assert_eq!(all.cost_ns, 900);
    let found: Vec<_> = all.effects.iter().map(|effect| (effect.what, effect.longer_ns, effect.less_ns)).collect();
    let expected = [
        (What::Everything, 990, 810),
        // Of the path 600 are backwards, 300 forwards.
        (What::Job(OpKind::BW), 960, 840),
        (What::Job(OpKind::F), 930, 870),
        // 600 are rank 1's, 300 rank 0's.
        (What::Rank(1), 960, 840),
        (What::Rank(0), 930, 870),
    ];
    assert_eq!(found, expected);
    assert_eq!(all.to_value()["effects"][4], json!({ "what": "rank", "rank": 0, "longer_ns": 930, "less_ns": 870 }));
}

const PLACES: [(&str, usize); 5] = [("linear", 1), ("v", 2), ("looped", 3), ("wave", 4), ("two-way", 1)];

/// Every published schedule on each placement, with and without hops, and stages that differ.
fn each(mut check: impl FnMut(&str, &Problem, &Schedule)) {
    for (placement, chunks) in PLACES {
        for hop in [0, 700] {
            let stage = |at: usize| {
                let at = at as u64;
                json!({
                    "forward_ns": 10_000 + 1_000 * (at % 3), "backward_input_ns": 9_000 + 2_000 * (at % 2),
                    "backward_weight_ns": 8_000, "backward_ns": 16_000 + 1_000 * (at % 2), "forward_bytes": 6,
                    "backward_input_bytes": -4, "backward_weight_bytes": -2,
                })
            };
            let problem = problem(&json!({
                "ranks": 4, "chunks": chunks, "microbatches": 8, "placement": placement, "transfer_ns": hop,
                "stages": (0..4 * chunks).map(stage).collect::<Vec<_>>(), "limit_bytes": 1000,
            }));
            for published in published() {
                if let Ok(schedule) = published.build(&problem) {
                    check(&format!("{} {placement} {hop}", published.name), &problem, &schedule);
                }
            }
        }
    }
}

/// The makespan is the longest of many sums. So it grows with each of them, by no more than all of them together, and
/// all together do no more than each apart adds up to.
#[test]
fn effects_are_those_of_a_longest_path() {
    let mut seen = 0;
    each(|name, problem, schedule| {
        let all = all(problem, schedule, 100);
        let base = all.cost_ns;
        assert_eq!(base, simulate(problem, schedule).expect("runs").cost_ns(problem.objective()), "{name}");
        let everything = all.effects[0];
        let hops = problem.hop(0, 1) > 0;
        if !hops {
            assert_eq!((everything.longer_ns, everything.less_ns), (scaled(base, 100), scaled(base, -100)), "{name}");
        }
        for effect in &all.effects {
            let is_hop = matches!(effect.what, What::Messages | What::Link(..));
            assert!(effect.less_ns <= base && base <= effect.longer_ns, "{name} {}", effect.what);
            assert!(is_hop || effect.longer_ns <= everything.longer_ns, "{name} {}", effect.what);
            assert!(is_hop || everything.less_ns <= effect.less_ns, "{name} {}", effect.what);
            assert!(hops || !is_hop, "{name} {}", effect.what);
        }
        for kind in ["job", "rank", "stage"] {
            let of_kind = all.effects.iter().filter(|effect| effect.what.kind().0 == kind);
            let sum: Nanos = of_kind.clone().map(|effect| effect.longer_ns - base).sum();
            // Without hops only: with them the longest path may be another where all ops are longer. Each op of the
            // path may be rounded by one nanosecond.
            let is_there = of_kind.count() > 0;
            let rounded = 200;
            assert!(hops || !is_there || sum + rounded >= everything.longer_ns - base, "{name} {kind}: {sum}");
        }
        seen += 1;
    });
    assert!(seen > 40, "{seen} schedules");
}

/// A rank that is slower is a problem with longer stages, as a problem file would say it.
#[test]
fn effects_are_what_a_changed_problem_takes() {
    each(|name, problem, schedule| {
        for effect in all(problem, schedule, 250).effects {
            for (by, found) in [(250, effect.longer_ns), (-250, effect.less_ns)] {
                let Some(changed) = changed(problem, effect.what, by) else {
                    assert!(is_two_way(problem) && matches!(effect.what, What::Rank(_)), "{name}");
                    continue;
                };
                let written = Statement::read(&changed.statement().to_value()).expect("a problem file");
                let read = written.problem(problem.placement().clone()).expect("its placement");
                let timeline = simulate(&read, schedule).expect("runs");
                // A file rounds each op and hop of the path to a nanosecond, and these are of tens of thousands.
                let (of_file, rounded) = (timeline.cost_ns(read.objective()), schedule.op_count() as u64);
                assert!(of_file.abs_diff(found) <= rounded, "{name} {} {by}: {of_file} {found}", effect.what);
            }
        }
    });
}

/// Planned anew a change costs no more than in the old order, and more memory nothing.
#[test]
fn planning_anew_makes_nothing_worse() {
    let problem = problem(&json!({
        "ranks": 3, "microbatches": 6, "placement": "linear", "transfer_ns": 5, "limit_bytes": 4,
        "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45, "forward_bytes": 2,
            "backward_input_bytes": -1, "backward_weight_bytes": -1 },
    }));
    let spec = Spec::typed(problem.statement());
    let schedule = planner::plan(&spec, crate::schedule::BEST).expect("a plan").schedule;
    let mut all = all(&problem, &schedule, 500);
    for at in 0..all.effects.len() {
        all.plan_anew((&problem, &schedule), at, Effort::default(), &mut |_| Flow::Continue).expect("a plan");
    }
    let best = all.best_ns.expect("planned");
    assert!(best <= all.cost_ns);
    for effect in &all.effects {
        let anew = effect.anew.expect("planned");
        let longer = anew.longer_ns.expect("a plan");
        if effect.what == What::Memory {
            // Two microbatches in the room of four bytes; half of the room is one, and the pipeline runs dry.
            assert!(longer < best && anew.less_ns.is_some_and(|less| less > best), "{anew:?} {best}");
            continue;
        }
        assert!(longer <= effect.longer_ns && anew.less_ns.expect("a plan") <= effect.less_ns, "{}", effect.what);
    }
}

#[test]
fn what_is_no_change_is_refused() {
    let long = |ns: u64| {
        let stage = json!({ "forward_ns": ns, "backward_input_ns": ns, "backward_weight_ns": 0 });
        problem(&json!({ "ranks": 2, "microbatches": 4, "placement": "linear", "stages": stage }))
    };
    let of = |problem: &Problem, permille| {
        let schedule = find("gpipe").expect("published").build(problem).expect("it exists");
        Sensitivity::new(problem, &schedule, permille).map(|all| all.cost_ns).map_err(|fault| fault.to_string())
    };
    assert!(of(&long(100), 0).unwrap_err().contains("from 1 to 9000 thousandths"));
    assert!(of(&long(100), 9001).is_err());
    assert!(of(&long(100), 9000).is_ok());
    assert!(of(&long(MAX_NS), 1).unwrap_err().contains("within the limits of a problem"));
}
