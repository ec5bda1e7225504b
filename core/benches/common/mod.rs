//! The problems that benchmarks are run on.

use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Backward, Objective, PlacementChoice, Problem, StageCost, Statement, Transfers};

/// Times of a stage in microseconds, and bytes of a microbatch in thousandths, of the 1.5B model in the
/// zero-bubble paper's Tables 4 and 9 (p = 8).
const FORWARD_US: u64 = 18_522;
const BACKWARD_INPUT_US: u64 = 18_086;
const BACKWARD_WEIGHT_US: u64 = 9_337;
const HOP_US: u64 = 601;
/// What 1F1B's first rank holds of one microbatch, in bytes.
pub const MICROBATCH_BYTES: i64 = 100_000;
/// The share of it that waits for W: 37 %.
const WEIGHT_BYTES: i64 = 37_000;

/// A pipe of `ranks` with the costs above, shared over `placement`'s chunks, under a limit of `permille`
/// thousandths of what 1F1B's first rank holds.
pub fn problem(
    placement: Placement,
    ranks: usize,
    chunks: usize,
    microbatches: usize,
    permille: Option<u64>,
) -> Problem {
    let share = |us: u64| us * 1000 / chunks as u64;
    let bytes = |bytes: i64| bytes / chunks as i64;
    let limit = permille.map(|permille| MICROBATCH_BYTES as u64 * ranks as u64 * permille / 1000);
    let statement = Statement {
        ranks,
        chunks,
        microbatches,
        placement: PlacementChoice::Fixed(placement.clone()),
        stages: vec![StageCost {
            forward_ns: share(FORWARD_US),
            backward_input_ns: share(BACKWARD_INPUT_US),
            backward_weight_ns: share(BACKWARD_WEIGHT_US),
            forward_bytes: bytes(MICROBATCH_BYTES),
            backward_input_bytes: bytes(WEIGHT_BYTES - MICROBATCH_BYTES),
            backward_weight_bytes: bytes(-WEIGHT_BYTES),
            ..StageCost::default()
        }],
        transfers: Transfers::Uniform(HOP_US * 1000),
        static_bytes: vec![0],
        limit_bytes: vec![limit],
        objective: Objective::LongestSpan,
        backward: Backward::Split,
        overlap_permille: 0,
        slices: 1,
        microbatch_factors: None,
    };
    statement.problem(placement).expect("a placement for these chunks")
}
