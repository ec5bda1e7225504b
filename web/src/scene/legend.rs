//! The meaning of the colours of a picture.

use pipeplan_core::problem::op::OpKind;

use super::{Below, Scene};
use crate::draw::marks::MarkClass;
use crate::draw::track::Track;

/// Which kinds of ops occur in any of `tracks`: a searched order may have one on a single rank.
pub fn kinds_of(tracks: &[Track]) -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = Vec::new();
    for span in tracks.iter().flat_map(Track::spans) {
        if !kinds.contains(&span.op.kind()) {
            kinds.push(span.op.kind());
            if kinds.len() == 4 {
                break;
            }
        }
    }
    kinds.sort_unstable();
    kinds
}

/// An op kind in the legend.
pub const fn title_of(kind: OpKind) -> &'static str {
    match kind {
        OpKind::F => "F forward",
        OpKind::B => "B for inputs",
        OpKind::W => "W for weights",
        OpKind::BW => "BW backward",
    }
}

/// The legend of shades.
pub const SHADES_TITLE: &str = "shade: virtual stage";

/// The colours that are on a picture.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Key {
    /// Kinds of ops of the plan and of the part under it.
    pub kinds: Vec<OpKind>,
    /// Whether any rank has several chunks, which have shades of their own.
    pub shaded: bool,
    /// Whether some microbatches go up the ranks.
    pub two_way: bool,
    /// What measured ranks did beside their ops.
    pub marks: Vec<MarkClass>,
}

impl Key {
    /// Of `plan`, if any, above `below`.
    pub fn of(plan: Option<&Scene>, below: Option<&Below>) -> Key {
        let mut kinds = plan.map(|plan| kinds_of(&plan.tracks)).unwrap_or_default();
        kinds.extend(below.map(|below| kinds_of(below.tracks())).unwrap_or_default());
        kinds.sort_unstable();
        kinds.dedup();
        let chunks = below.map_or(1, |below| below.chunks(plan)).max(plan.map_or(1, |plan| plan.problem.chunks()));
        let up = plan.and_then(Scene::up_from).or(below.and_then(|below| below.up_from(plan)));
        let marks = match below {
            Some(Below::Measured(measured)) => measured.mark_classes(),
            _ => Vec::new(),
        };
        Key { kinds, shaded: chunks > 1, two_way: up.is_some(), marks }
    }
}
