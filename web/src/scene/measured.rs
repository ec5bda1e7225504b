//! A measured step on the page.

use pipeplan_core::problem::op::Op;

use super::describe::describe_op;
use super::{Scene, tracks_of};
use crate::draw::track::Track;
use crate::protocol::Measured;
use crate::text;

/// A measured step on the page.
#[derive(Clone, Debug)]
pub struct MeasuredScene {
    /// Position in the trace file.
    pub index: u32,
    /// One track a rank.
    pub tracks: Vec<Track>,
    /// From the first op's start to the last one's end.
    pub makespan_ns: u64,
    /// Idle share.
    pub bubble_ratio: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step, transfers and optimizer included.
    pub duration_ns: u64,
}

impl MeasuredScene {
    /// The scene of a measured step whose tracks are `ahead` and then its own rows.
    pub fn of(measured: Measured, ahead: Vec<Track>) -> MeasuredScene {
        let mut tracks = ahead;
        tracks.extend(tracks_of(&measured.rows));
        MeasuredScene {
            index: measured.index,
            tracks,
            makespan_ns: measured.makespan_ns,
            bubble_ratio: measured.bubble_ratio,
            tokens: measured.tokens,
            duration_ns: measured.duration_ns,
        }
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.tracks.iter().map(Track::end_ns).max().unwrap_or(0)
    }

    /// Why this is not a run of `plan` or of several replicas of it; none if every rank ran the ops of the plan, in any
    /// order.
    pub fn differs_from(&self, plan: &Scene) -> Option<String> {
        let (ran, planned) = (self.tracks.len(), plan.tracks.len().max(1));
        let ops = |track: &Track| track.spans().iter().map(|span| span.op).collect::<Vec<Op>>();
        let same = |(rank, track): (usize, &Track)| {
            let (mut here, mut there) = (ops(track), plan.tracks.get(rank % planned).map(&ops).unwrap_or_default());
            here == there || {
                here.sort_unstable();
                there.sort_unstable();
                here == there
            }
        };
        if ran.is_multiple_of(planned) && self.tracks.iter().enumerate().all(same) {
            return None;
        }
        Some(match ran == planned {
            true => "trace of another plan, with other ops".to_owned(),
            false => format!("trace of another plan, with {} instead of {planned}", text::counted(ran, "rank")),
        })
    }

    /// The measured peak memory of each rank, to compare with `plan`; none if this is not a run of `plan`.
    pub fn peaks_beside(&self, plan: &Scene, peaks: Vec<u64>) -> Option<Vec<u64>> {
        self.differs_from(plan).is_none().then_some(peaks)
    }

    /// Lines of a tooltip for a span of `rank`, compared with the prediction of `plan` for the same op.
    pub fn describe(&self, rank: usize, index: usize, plan: Option<&Scene>) -> Vec<(String, String)> {
        let Some(span) = self.tracks.get(rank).and_then(|track| track.spans().get(index)) else { return Vec::new() };
        let stages = plan.map_or(0, |plan| plan.problem.stage_count());
        let mut lines = describe_op(span.op, stages);
        lines.push(("rank".to_owned(), rank.to_string()));
        lines.push(("started".to_owned(), text::duration(span.start_ns as f64)));
        let took = (span.end_ns - span.start_ns) as f64;
        lines.push(("took".to_owned(), text::duration(took)));
        // The same op of the plan's rank: a trace of another plan has none.
        let planned = plan
            .filter(|plan| plan.span_of(span.op).is_some_and(|(planned, _)| planned == rank % plan.tracks.len()))
            .map(|plan| plan.problem.duration(span.op) as f64);
        if let Some(planned) = planned.filter(|planned| *planned > 0.0) {
            lines.push(("planned".to_owned(), format!("{} (×{:.2})", text::duration(planned), took / planned)));
        }
        lines
    }
}

/// The scale of measured times. If `aligned`, both steps are drawn equally long. Else a plan for a GPU would be a dot
/// next to a CPU run.
pub fn measured_scale(planned_ns: u64, measured_ns: u64, aligned: bool) -> f64 {
    if aligned && planned_ns > 0 && measured_ns > 0 { planned_ns as f64 / measured_ns as f64 } else { 1.0 }
}
