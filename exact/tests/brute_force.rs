//! The solver against a search that knows nothing: every order of every op, tried.

use pipeplan_core::bounds::{feasible, least_memory, lower_bound};
use pipeplan_core::check::check_schedule;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Backward, Objective, Problem, Statement};
use pipeplan_core::search::{Effort, Flow, best};
use pipeplan_exact::{Budget, Refused, solve_from};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The cost of the cheapest order, trying all of them; none where none fits the memory.
///
/// Ops are appended in the order of their starts, each as soon as it can run; microbatches in any order,
/// fused and split backwards mixed at will.
struct Brute<'a> {
    problem: &'a Problem,
    objective: Objective,
    ended: std::collections::BTreeMap<Op, u64>,
    free_at: Vec<u64>,
    first: Vec<Option<u64>>,
    held: Vec<u64>,
    left: usize,
    best: Option<u64>,
}

impl Brute<'_> {
    fn of(problem: &Problem) -> Option<u64> {
        let ranks = problem.ranks();
        let mut brute = Brute {
            problem,
            objective: problem.objective(),
            ended: Default::default(),
            free_at: vec![0; ranks],
            first: vec![None; ranks],
            held: (0..ranks).map(|rank| problem.static_bytes(rank)).collect(),
            left: problem.stage_count() * problem.microbatches() * 3,
            best: None,
        };
        brute.go(0);
        brute.best
    }

    fn end(&self, stage: usize, kinds: &[OpKind], microbatch: usize) -> Option<u64> {
        kinds.iter().find_map(|kind| self.ended.get(&Op::new(stage, *kind, microbatch)).copied())
    }

    /// When `op` could start at the soonest; none where it is done or has to wait for one not yet run.
    fn ready(&self, op: Op) -> Option<u64> {
        const BACK: [OpKind; 2] = [OpKind::B, OpKind::BW];
        let (stage, microbatch) = (op.stage(), op.microbatch());
        let rank = self.problem.rank_of(stage, microbatch);
        let across = |other: usize, end: u64| end + self.problem.hop_of(other, stage, microbatch);
        let mut start = self.free_at[rank];
        // Slices of a sequence: forwards in order, backwards in reverse.
        let slices = self.problem.slices();
        match op.kind() {
            OpKind::F if !microbatch.is_multiple_of(slices) => {
                self.end(stage, &[OpKind::F], microbatch - 1).map(|_| ())?
            }
            OpKind::B | OpKind::BW if !(microbatch + 1).is_multiple_of(slices) => {
                self.end(stage, &BACK, microbatch + 1).map(|_| ())?;
            }
            _ => {}
        }
        match op.kind() {
            OpKind::F => {
                if self.end(stage, &[OpKind::F], microbatch).is_some() {
                    return None;
                }
                if stage > 0 {
                    start = start.max(across(stage - 1, self.end(stage - 1, &[OpKind::F], microbatch)?));
                }
            }
            OpKind::B | OpKind::BW => {
                if self.end(stage, &BACK, microbatch).is_some() {
                    return None;
                }
                start = start.max(self.end(stage, &[OpKind::F], microbatch)?);
                if stage + 1 < self.problem.stage_count() {
                    start = start.max(across(stage + 1, self.end(stage + 1, &BACK, microbatch)?));
                }
            }
            OpKind::W => {
                if self.end(stage, &[OpKind::W], microbatch).is_some() {
                    return None;
                }
                start = start.max(self.end(stage, &[OpKind::B], microbatch)?);
            }
        }
        Some(start)
    }

    fn cost(&self) -> u64 {
        let spans = self.first.iter().zip(&self.free_at).filter_map(|(first, end)| first.map(|first| end - first));
        match self.objective {
            Objective::LongestSpan => spans.max().unwrap_or(0),
            // The first op of all starts at 0: nothing comes before it.
            Objective::Makespan => self.free_at.iter().copied().max().unwrap_or(0),
        }
    }

    fn go(&mut self, from: u64) {
        if self.best.is_some_and(|best| self.cost() >= best) {
            return;
        }
        if self.left == 0 {
            self.best = Some(self.cost());
            return;
        }
        let kinds: &[OpKind] = match self.problem.backward() {
            Backward::Split => &[OpKind::F, OpKind::B, OpKind::W, OpKind::BW],
            Backward::Fused => &[OpKind::F, OpKind::BW],
        };
        for stage in 0..self.problem.stage_count() {
            for microbatch in 0..self.problem.microbatches() {
                for kind in kinds {
                    let op = Op::new(stage, *kind, microbatch);
                    let Some(start) = self.ready(op).filter(|start| *start >= from) else { continue };
                    let rank = self.problem.rank_of(stage, microbatch);
                    let during = self.held[rank] + self.problem.takes(op);
                    if self.problem.limit_bytes(rank).is_some_and(|limit| during > limit) {
                        continue;
                    }
                    let saved = (self.held[rank], self.free_at[rank], self.first[rank]);
                    let pieces = if *kind == OpKind::BW { 2 } else { 1 };
                    self.held[rank] = during - self.problem.gives(op);
                    self.free_at[rank] = start + self.problem.duration(op);
                    self.first[rank] = saved.2.or(Some(start));
                    self.ended.insert(op, self.free_at[rank]);
                    self.left -= pieces;
                    self.go(start);
                    self.left += pieces;
                    self.ended.remove(&op);
                    (self.held[rank], self.free_at[rank], self.first[rank]) = saved;
                }
            }
        }
    }
}

fn stage() -> impl Strategy<Value = Value> {
    let time = || prop_oneof![1 => Just(0u64), 4 => 1u64..8, 4 => 10u64..30];
    (time(), time(), time(), 0i64..4, -2i64..3, 0i64..3, 0u64..2, 0u64..2).prop_map(
        |(forward, backward, weight, kept, by_b, left, ws_f, ws_b)| {
            let by_b = by_b.max(-kept);
            let mut stage = json!({
                "forward_ns": forward, "backward_input_ns": backward, "backward_weight_ns": weight,
                "forward_bytes": kept, "backward_input_bytes": by_b,
                // W gives back all but at times a byte.
                "backward_weight_bytes": -(kept + by_b - i64::from(left == 2)).max(0),
                "forward_workspace_bytes": ws_f, "backward_input_workspace_bytes": ws_b,
            });
            // A BW that holds less than its halves.
            if ws_f == 1 && ws_b == 1 {
                stage["backward_workspace_bytes"] = json!(0);
            }
            // One that is shorter than both.
            if left == 1 {
                stage["backward_ns"] = json!(backward + weight - backward.min(weight) / 2);
            }
            stage
        },
    )
}

/// Problems of one of these shapes: ranks, chunks, microbatches, placement.
fn problems(shapes: Vec<(usize, usize, usize, Placement)>) -> impl Strategy<Value = Problem> {
    proptest::sample::select(shapes).prop_flat_map(|(ranks, chunks, microbatches, placement)| {
        let stages = prop_oneof![
            proptest::collection::vec(stage(), ranks * chunks),
            // Equal stages: where the published schedules are at home, and bounds are tight.
            stage().prop_map(move |stage| vec![stage; ranks * chunks]),
        ];
        let limits = proptest::collection::vec(proptest::option::of(3u64..16), ranks);
        (stages, 0u64..6, limits, any::<bool>(), any::<bool>()).prop_map(
            move |(stages, hop, limits, fused, makespan)| {
                let value = json!({
                    "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": "any",
                    "stages": stages, "transfer_ns": hop, "limit_bytes": limits,
                    "backward": if fused { "fused" } else { "split" },
                    "objective": if makespan { "makespan" } else { "longest_span" },
                });
                let statement = Statement::read(&value).expect("a valid statement");
                statement.problem(placement.clone()).expect("a placement that fits")
            },
        )
    })
}

/// At most 12 ops.
fn small() -> impl Strategy<Value = Problem> {
    problems(vec![
        (1, 1, 4, Placement::Linear),
        (2, 1, 2, Placement::Linear),
        (2, 1, 2, Placement::Bidirectional),
        (1, 2, 2, Placement::V),
        (4, 1, 1, Placement::Linear),
        (2, 2, 1, Placement::V),
        (2, 2, 1, Placement::List(vec![0, 1, 1, 0])),
        (2, 2, 1, Placement::List(vec![1, 1, 0, 0])),
        (1, 4, 1, Placement::Looped),
    ])
}

/// Up to 48 ops, for which the solver, once trusted, is the judge.
fn middling() -> impl Strategy<Value = Problem> {
    problems(vec![
        (2, 1, 5, Placement::Linear),
        (3, 1, 4, Placement::Linear),
        (4, 1, 3, Placement::Linear),
        (2, 1, 6, Placement::Bidirectional),
        (2, 2, 4, Placement::V),
        (2, 2, 4, Placement::Looped),
        (3, 2, 2, Placement::V),
        (2, 3, 2, Placement::Wave),
        (2, 2, 3, Placement::List(vec![0, 0, 1, 1])),
    ])
}

/// Of 12 ops, with forwards that take little or no time: there microbatches overtake each other to advantage.
fn steep() -> impl Strategy<Value = Problem> {
    let time = || prop_oneof![4 => Just(0u64), 2 => 1u64..8, 2 => 10u64..30];
    let stage = (time(), time()).prop_map(|(forward, backward)| {
        json!({ "forward_ns": forward, "backward_input_ns": backward, "backward_weight_ns": 0 })
    });
    let shape = proptest::sample::select(vec![(3usize, 2usize), (2, 3)]);
    (shape, proptest::collection::vec(stage, 3), 0u64..6).prop_map(|((ranks, microbatches), stages, hop)| {
        let value = json!({
            "ranks": ranks, "microbatches": microbatches, "placement": "linear", "stages": stages[..ranks],
            "transfer_ns": hop, "objective": "longest_span", "backward": "fused",
        });
        Statement::read(&value).expect("a valid statement").problem(Placement::Linear).expect("one that fits")
    })
}

/// At most 12 ops of sequences cut into slices, which differ.
fn sliced() -> impl Strategy<Value = Problem> {
    let shapes = vec![(1usize, 1usize, 2usize, 2u64), (2, 1, 1, 2), (1, 1, 1, 4), (1, 2, 1, 2), (1, 1, 1, 3)];
    let shape = proptest::sample::select(shapes);
    let factors = proptest::collection::vec(1u64..2500, 4);
    let limit = proptest::option::of(3u64..40);
    (shape, proptest::collection::vec(stage(), 2), factors, 0u64..3, 0u64..6, limit, any::<[bool; 3]>()).prop_map(
        |((ranks, chunks, sequences, slices), mut stages, factors, gradients, hop, limit, [fused, makespan, alike])| {
            let microbatches = sequences * slices as usize;
            stages.truncate(ranks * chunks);
            stages.iter_mut().for_each(|stage| stage["slice_gradient_bytes"] = json!(gradients));
            let mut value = json!({
                "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "slices": slices, "placement": "looped",
                "stages": stages, "transfer_ns": hop, "limit_bytes": limit,
                "backward": if fused { "fused" } else { "split" },
                "objective": if makespan { "makespan" } else { "longest_span" },
            });
            if !alike {
                value["microbatch_factors"] = json!(factors[..microbatches]);
            }
            let statement = Statement::read(&value).expect("a valid statement");
            statement.problem(Placement::Looped).expect("a placement that fits")
        },
    )
}

/// Few, for each takes a proof; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

/// The model once let an op without duration lie within another, so that the order of its start times took longer.
#[test]
fn ops_without_duration_lie_within_no_other() {
    let value = json!({
        "ranks": 2, "chunks": 2, "microbatches": 1, "placement": "any", "transfer_ns": 2,
        "stages": { "forward_ns": 0, "backward_input_ns": 0, "backward_weight_ns": 12 },
    });
    let problem = Statement::read(&value).unwrap().problem(Placement::List(vec![0, 1, 1, 0])).unwrap();
    let exact = solve_from(&problem, None, 0, &Budget { steps: Some(200_000), ..Budget::default() }).unwrap();
    assert_eq!((exact.value_ns, exact.lower_ns, Some(exact.value_ns)), (30, 30, Brute::of(&problem)));
}

/// A rank that lets the second microbatch overtake the first starts later, by more than that costs it.
#[test]
fn a_microbatch_may_overtake_the_first() {
    let stage = |forward: u64, weight: u64| json!({ "forward_ns": forward, "backward_input_ns": 0, "backward_weight_ns": weight });
    let value = json!({
        "ranks": 2, "microbatches": 2, "placement": "linear", "objective": "longest_span",
        "stages": [stage(14, 6), stage(0, 21)], "transfer_ns": 1,
    });
    let problem = Statement::read(&value).unwrap().problem(Placement::Linear).unwrap();
    let exact = solve_from(&problem, None, 0, &Budget::default()).unwrap();
    assert_eq!((exact.value_ns, exact.lower_ns, Some(exact.value_ns)), (42, 42, Brute::of(&problem)));
    let first = exact.schedule.expect("a schedule").rows[1][0];
    assert_eq!(first, Op::new(1, OpKind::F, 1));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_order_is_cheaper_than_the_proof(problem in small()) {
        let brute = Brute::of(&problem);
        let budget = Budget { steps: Some(200_000), ..Budget::default() };
        match (solve_from(&problem, None, 0, &budget), brute) {
            (Ok(exact), Some(cheapest)) => {
                prop_assert!(lower_bound(&problem).value_ns <= cheapest, "bound above {cheapest}");
                prop_assert!(feasible(&problem).is_ok(), "{:?} with a schedule", feasible(&problem));
                prop_assert!(exact.lower_ns <= cheapest, "proved {} above {cheapest}", exact.lower_ns);
                // In bidirectional and listed placements, a rank may gain by delaying its first op, which an op list
                // cannot express: then the proof stays open.
                let strict = problem.objective() == Objective::Makespan
                    || !matches!(problem.placement(), Placement::Bidirectional | Placement::List(_));
                prop_assert!(exact.optimal || !strict);
                prop_assert!(exact.value_ns >= cheapest);
                if exact.optimal {
                    prop_assert_eq!(exact.value_ns, cheapest);
                }
                match exact.schedule {
                    Some(schedule) => prop_assert!(check_schedule(&problem, &schedule).is_ok()),
                    None => prop_assert!(!strict),
                }
            }
            (Err(Refused::Infeasible), None) => {
                let enough = least_memory(&problem)
                    .iter()
                    .all(|least| problem.limit_bytes(least.rank).is_none_or(|limit| limit >= least.serial_bytes));
                prop_assert!(!enough, "memory for one microbatch at a time, and no schedule");
            }
            (found, brute) => prop_assert!(false, "{found:?} but brute force {brute:?}"),
        }
    }

    /// Slices wait for each other: no bound is above the best of all orders that let them, no search is below it, and the
    /// memory of one sequence at a time is enough.
    #[test]
    fn no_order_of_slices_is_cheaper_than_the_bound(problem in sliced()) {
        let found = best(&problem, Effort(5_000), &mut |_| Flow::Continue);
        match Brute::of(&problem) {
            Some(cheapest) => {
                prop_assert!(lower_bound(&problem).value_ns <= cheapest, "bound above {cheapest}");
                prop_assert!(feasible(&problem).is_ok(), "{:?} with a schedule", feasible(&problem));
                if let Ok(found) = found {
                    prop_assert!(cheapest <= found.cost_ns, "{} below {cheapest}", found.cost_ns);
                    prop_assert_eq!(check_schedule(&problem, &found.schedule), Ok(()));
                }
            }
            None => {
                prop_assert!(found.is_err());
                let enough = least_memory(&problem)
                    .iter()
                    .all(|least| problem.limit_bytes(least.rank).is_none_or(|limit| limit >= least.serial_bytes));
                prop_assert!(!enough, "memory for one sequence at a time, and no schedule");
            }
        }
    }

    #[test]
    fn no_proved_optimum_is_below_the_bound(problem in middling()) {
        let budget = Budget { steps: Some(3_000), ..Budget::default() };
        let bound = lower_bound(&problem);
        if let Ok(exact) = solve_from(&problem, None, 0, &budget) {
            // Proved or not, a schedule is a witness.
            prop_assert!(bound.value_ns <= exact.value_ns, "{bound:?} above a schedule of {}", exact.value_ns);
        }
    }

    #[test]
    fn a_proof_knows_what_overtaking_gains(problem in steep()) {
        let budget = Budget { steps: Some(200_000), ..Budget::default() };
        let exact = solve_from(&problem, None, 0, &budget).expect("no limit");
        let cheapest = Brute::of(&problem).expect("no limit");
        prop_assert_eq!((exact.value_ns, exact.lower_ns), (cheapest, cheapest));
    }
}
