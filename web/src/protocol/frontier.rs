//! Time against memory as it travels: one point for each schedule that no other one beats.

use serde::{Deserialize, Serialize};

/// A schedule's memory and cost: a point of time against memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartPoint {
    /// The peak memory of the fullest rank.
    pub bytes: u64,
    /// The criterion of `best`, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// The display name of the schedule.
    pub by: String,
}

impl ChartPoint {
    /// Whether it could hang with the transport of the spec. Such a schedule ranks behind all others.
    pub fn hangs(&self) -> bool {
        self.judged_ns >= u64::MAX / 2
    }
}

/// New points of time against memory.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ChartNews {
    /// The points belong to another spec than those before.
    pub started: bool,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Schedules that are faster than all known ones within their memory.
    pub points: Vec<ChartPoint>,
    /// No more will come.
    pub finished: bool,
}

/// Inserts a point into a Pareto curve of rising bytes and falling costs. Returns false if the curve has a point that
/// is as good. Removes points that are no better.
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

/// The start of every message about a chosen point.
pub const OF_POINT: &str = "The point of the chart";

/// The name of a plan that comes from the chart.
pub const FROM_CHART: &str = "From the chart";
