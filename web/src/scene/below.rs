//! The part under the plan on the same time axis: a measured step, or a kept plan.

use std::sync::Arc;

use super::{MeasuredScene, Scene, measured_scale};
use crate::draw::marks::Marks;
use crate::draw::track::Track;
use crate::text;

/// The part under the plan.
#[derive(Clone, Debug)]
pub enum Below {
    /// A measured step.
    Measured(Arc<MeasuredScene>),
    /// Another plan, kept to be compared.
    Kept(Arc<Scene>),
}

impl Below {
    /// Whether both are the very same.
    pub fn is_same(&self, other: &Below) -> bool {
        match (self, other) {
            (Below::Measured(one), Below::Measured(other)) => Arc::ptr_eq(one, other),
            (Below::Kept(one), Below::Kept(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// One track a rank.
    pub fn tracks(&self) -> &[Track] {
        match self {
            Below::Measured(measured) => &measured.tracks,
            Below::Kept(kept) => &kept.tracks,
        }
    }

    /// By rank: what it did beside its ops.
    pub fn marks(&self) -> &[Marks] {
        match self {
            Below::Measured(measured) => &measured.marks,
            Below::Kept(_) => &[],
        }
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.tracks().iter().map(Track::end_ns).max().unwrap_or(0)
    }

    /// When all that is drawn of it ends.
    pub fn drawn_end_ns(&self) -> u64 {
        match self {
            Below::Measured(measured) => measured.step_end_ns(),
            Below::Kept(_) => self.end_ns(),
        }
    }

    /// By how much its times are drawn shorter. Plans are always compared in their own time.
    pub fn scale(&self, planned_ns: u64, aligned: bool) -> f64 {
        match self {
            Below::Measured(measured) => measured_scale(planned_ns, measured.end_ns(), aligned),
            Below::Kept(_) => 1.0,
        }
    }

    /// Its title, in a line.
    pub fn headline(&self, scale: f64) -> String {
        match self {
            Below::Measured(_) if scale == 1.0 => "Measured".to_owned(),
            Below::Measured(_) => {
                let digits = if scale < 0.1 { 5 } else { 3 };
                format!("Measured, drawn at ×{} of its time", text::trimmed(scale, digits))
            }
            Below::Kept(kept) => format!("Kept: {}", kept.headline()),
        }
    }

    /// The chunks of a rank, where it is below `plan`, if any.
    pub fn chunks(&self, plan: Option<&Scene>) -> usize {
        match self {
            Below::Measured(measured) => plan.map_or_else(|| measured.chunks(), |plan| plan.problem.chunks()),
            Below::Kept(kept) => kept.problem.chunks(),
        }
    }

    /// As [`Scene::up_from`]; a measured step is of `plan`, if any.
    pub fn up_from(&self, plan: Option<&Scene>) -> Option<usize> {
        match self {
            Below::Measured(_) => plan?.up_from(),
            Below::Kept(kept) => kept.up_from(),
        }
    }

    /// Which of its rank's chunks a stage is; a measured step is of `plan`, if any.
    pub fn chunk_of_stage(&self, plan: Option<&Scene>) -> Vec<usize> {
        match self {
            Below::Measured(measured) => plan.map_or_else(|| measured.chunk_of_stage(), Scene::chunk_of_stage),
            Below::Kept(kept) => kept.chunk_of_stage(),
        }
    }

    /// Lines of a tooltip for a span of `rank`, compared with the same op of `plan`, if any.
    pub fn describe(&self, rank: usize, index: usize, plan: Option<&Scene>) -> Vec<(String, String)> {
        match self {
            Below::Measured(measured) => measured.describe(rank, index, plan),
            Below::Kept(kept) => {
                let mut lines = kept.describe(rank, index);
                let op = kept.tracks.get(rank).and_then(|track| track.spans().get(index)).map(|span| span.op);
                if let Some((_, same)) = op.and_then(|op| plan?.span_of(op)) {
                    lines.push(("above it starts".to_owned(), text::duration(same.start_ns as f64)));
                }
                lines
            }
        }
    }

    /// Lines of a tooltip for the gap before a position in the op list of a rank. A trace does not say what a measured
    /// rank waited for.
    pub fn describe_wait(&self, rank: usize, place: usize) -> Vec<(String, String)> {
        match self {
            Below::Measured(measured) => {
                let gap = measured.tracks.get(rank).and_then(|track| track.gap_before(place, self.end_ns()));
                let lines = |(from_ns, to_ns): (u64, u64)| {
                    [("waited", to_ns - from_ns), ("from", from_ns)]
                        .map(|(name, ns)| (name.to_owned(), text::duration(ns as f64)))
                };
                gap.into_iter().flat_map(lines).collect()
            }
            Below::Kept(kept) => kept.describe_wait(rank, place),
        }
    }
}
