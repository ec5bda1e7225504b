use proptest::prelude::*;

use super::*;
use crate::problem::{Backward, PlacementChoice, StageCost, Statement, Transfers};

fn statement(ranks: usize, chunks: usize, microbatches: usize, stages: Vec<StageCost>, hop: u64) -> Statement {
    Statement {
        ranks,
        chunks,
        microbatches,
        placement: PlacementChoice::Any,
        stages,
        transfers: Transfers::Uniform(hop),
        static_bytes: vec![0],
        limit_bytes: vec![None],
        objective: Objective::Makespan,
        backward: Backward::Split,
        overlap_permille: 0,
        slices: 1,
        microbatch_factors: None,
    }
}

fn stage() -> impl Strategy<Value = StageCost> {
    (1u64..30, 1u64..30, 0u64..30, 1i64..5, 0i64..5).prop_map(|(f, b, w, input, weight)| StageCost {
        forward_ns: f,
        backward_input_ns: b,
        backward_weight_ns: w,
        forward_bytes: input + weight,
        backward_input_bytes: -input,
        backward_weight_bytes: -weight,
        ..StageCost::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Microbatches that are left out can only lower the bound: what is said of the others holds for all.
    #[test]
    fn looking_at_fewer_ops_gives_no_higher_bound(
        (ranks, stages) in (2usize..6).prop_flat_map(|ranks| {
            (Just(ranks), proptest::collection::vec(stage(), 2 * ranks))
        }),
        half in 1usize..12, hop in 0u64..20, room in 2u64..40, each_end in 1usize..4, shape in 0usize..4, spans: bool,
    ) {
        use crate::problem::placement::Placement;
        let (placement, chunks) =
            [(Placement::Linear, 1), (Placement::V, 2), (Placement::Looped, 2), (Placement::Bidirectional, 1)][shape].clone();
        prop_assume!(placement != Placement::Bidirectional || ranks % 2 == 0);
        let stages = stages[..ranks * chunks].to_vec();
        let mut statement = statement(ranks, chunks, 2 * half, stages, hop);
        statement.objective = if spans { Objective::LongestSpan } else { Objective::Makespan };
        statement.limit_bytes = vec![Some(room * chunks as u64)];
        let problem = statement.problem(placement).unwrap();
        let whole = lower_bound(&problem).value_ns;
        let part = looking_at(&problem, 6 * each_end * problem.stage_count()).value_ns;
        prop_assert!(part <= whole, "{part} > {whole} {problem:?}");
        // In a bidirectional placement, a rank runs a stage for one half of the microbatches.
        let of = |cost: &StageCost| cost.forward_ns + cost.backward_input_ns + cost.backward_weight_ns;
        let work = problem.costs().iter().map(of).max().unwrap() * half as u64;
        prop_assert!(work <= part);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A thousandth of the unit of time, and so a thousand times the figures: what pairs hide is rounded down in the coarser
    /// unit, so the bound there is no lower, and by the last nanosecond at most higher where they hide whole ones.
    #[test]
    fn with_pairs_the_unit_of_time_does_not_matter(
        stages in proptest::collection::vec(stage(), 4),
        half in 1usize..8, hop in 0u64..9, permille in 0u16..=10, exchange in 0u64..20, spans: bool,
    ) {
        let exchanging = |cost: &StageCost| StageCost {
            forward_exchange_ns: exchange.min(cost.forward_ns),
            backward_exchange_ns: (exchange / 2).min(cost.backward_input_ns),
            ..*cost
        };
        let mut small = statement(4, 1, 2 * half, stages.iter().map(exchanging).collect(), hop);
        small.overlap_permille = 100 * permille;
        small.objective = if spans { Objective::LongestSpan } else { Objective::Makespan };
        let small = small.problem(crate::problem::placement::Placement::Bidirectional).unwrap();
        let large = small.in_finer_time(1000).expect("times have room");
        let [small_ns, large_ns] = [&small, &large].map(|problem| lower_bound(problem).value_ns);
        prop_assert!(1000 * small_ns >= large_ns, "{small_ns} {large_ns}");
        if permille % 10 == 0 {
            prop_assert!(1000 * (small_ns - 1) < large_ns, "{small_ns} {large_ns}");
        }
    }
}

/// Two chunks on each of two ranks, four microbatches: of 24 ns of work a forward of each may hide behind a backward of 2 ns,
/// and no more.
#[test]
fn pairs_hide_no_more_than_the_shorter_op() {
    let cost = StageCost { forward_ns: 1, backward_input_ns: 1, backward_weight_ns: 1, ..StageCost::default() };
    for (overlap_permille, least) in [(0, 24), (10, 24), (1000, 16)] {
        let mut statement = statement(2, 2, 4, vec![cost], 0);
        statement.overlap_permille = overlap_permille;
        let bound = lower_bound(&statement.problem(crate::problem::placement::Placement::V).unwrap());
        assert!(bound.value_ns >= least, "{overlap_permille}: {bound:?}");
    }
}

/// `(M + P − 1)(F + B) + 2 (P − 1) c + W`, or the work of the last rank after the way to it, for a linear pipe of
/// any size: the bound of a plan of millions of ops is as good as that of a small one.
#[test]
fn a_problem_of_millions_of_ops_has_the_bound_of_its_formula() {
    let cost = StageCost { forward_ns: 20, backward_input_ns: 19, backward_weight_ns: 11, ..StageCost::default() };
    for (ranks, microbatches) in [(4, 8), (512, 4_000), (1024, 3_000), (2, 1_000_000)] {
        let problem =
            statement(ranks, 1, microbatches, vec![cost], 3).problem(crate::problem::placement::Placement::Linear);
        let (p, m) = (ranks as u64, microbatches as u64);
        let there_and_back = (m + p - 1) * 39 + 2 * (p - 1) * 3 + 11;
        let last_rank = (p - 1) * 23 + m * 50;
        assert_eq!(lower_bound(&problem.unwrap()).value_ns, there_and_back.max(last_rank));
    }
}
