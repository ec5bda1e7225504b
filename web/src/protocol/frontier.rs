//! Time against memory as it travels: one point for each schedule that no other one beats.

use serde::{Deserialize, Serialize};

/// A schedule's memory and cost: a point of time against memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartPoint {
    /// The most bytes that a rank holds.
    pub bytes: u64,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// The schedule, as a person calls it.
    pub by: String,
}

impl ChartPoint {
    /// Whether it could hang as its transfers are carried: then it is judged to come behind all else, and not by a time.
    pub fn hangs(&self) -> bool {
        self.judged_ns >= u64::MAX / 2
    }
}

/// What is new about time against memory.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ChartNews {
    /// It is of another spec than the points so far.
    pub started: bool,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Schedules that are faster than all known ones with as much memory.
    pub points: Vec<ChartPoint>,
    /// No more will come.
    pub finished: bool,
}

/// Puts a point into a curve of rising bytes and of falling costs as the best is chosen by them. False where the curve has
/// as good a one already; what is no better than the point goes.
pub fn insert(curve: &mut Vec<ChartPoint>, point: ChartPoint) -> bool {
    let after = curve.partition_point(|known| known.bytes <= point.bytes);
    if after.checked_sub(1).and_then(|last| curve.get(last)).is_some_and(|last| last.judged_ns <= point.judged_ns) {
        return false;
    }
    let from = curve.partition_point(|known| known.bytes < point.bytes);
    let beaten = curve.iter().skip(from).take_while(|known| known.judged_ns >= point.judged_ns).count();
    curve.splice(from..from + beaten, [point]);
    true
}

/// How what is said of a point that was chosen begins.
pub const OF_POINT: &str = "The point of the chart";

/// What an order of the chart is called where it is shown as a plan.
pub const FROM_CHART: &str = "From the chart";
