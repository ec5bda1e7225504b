//! A measured step on the page.

use std::collections::BTreeMap;

use pipeplan_core::problem::op::Op;

use super::describe::{describe_op, range_lines};
use super::{Scene, tracks_of};
use crate::draw::marks::{Mark, MarkClass, Marks};
use crate::draw::track::Track;
use crate::protocol::{Measured, WireMark, WireSpan};
use crate::text;

/// A measured step on the page.
#[derive(Clone, Debug)]
pub struct MeasuredScene {
    /// Position in the trace file.
    pub index: u32,
    /// One track a rank.
    pub tracks: Vec<Track>,
    /// By rank: what it did beside its ops; empty where no rank did anything.
    pub marks: Vec<Marks>,
    /// What marks are.
    mark_names: Vec<(MarkClass, String)>,
    /// Which of its rank's chunks a stage is, as the ops say.
    chunk_of_stage: Vec<usize>,
    /// From the first op's start to the last one's end.
    pub makespan_ns: u64,
    /// Idle share.
    pub bubble_ratio: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step, transfers and optimizer included.
    pub duration_ns: u64,
}

/// The rows of a measured step that came before what is said of it.
#[derive(Default)]
pub struct Ahead {
    tracks: Vec<Track>,
    marks: Vec<Vec<Mark>>,
}

impl Ahead {
    /// Adds ops of the next ranks.
    pub fn rows(&mut self, rows: &[Vec<WireSpan>]) {
        self.tracks.extend(tracks_of(rows));
    }

    /// Adds what the next ranks did beside their ops.
    pub fn marks(&mut self, rows: &[Vec<WireMark>]) {
        self.marks.extend(rows.iter().map(|row| {
            let mut start_ns: u64 = 0;
            let mark = |wire: &WireMark| {
                start_ns = start_ns.saturating_add(wire.gap_ns);
                Mark { name: wire.name, start_ns, end_ns: start_ns.saturating_add(wire.duration_ns) }
            };
            row.iter().map(mark).collect()
        }));
    }
}

impl MeasuredScene {
    /// The scene of a measured step whose rows are `ahead`.
    pub fn of(measured: Measured, ahead: Ahead) -> MeasuredScene {
        let names = measured.mark_names.into_iter();
        let mark_names: Vec<(MarkClass, String)> =
            names.map(|(class, name)| (MarkClass::at(usize::from(class)), name)).collect();
        let class = |name: u32| mark_names.get(name as usize).map_or(MarkClass::Other, |(class, _)| *class);
        MeasuredScene {
            index: measured.index,
            chunk_of_stage: chunks_of(&ahead.tracks),
            tracks: ahead.tracks,
            marks: ahead.marks.into_iter().map(|row| Marks::new(row, class)).collect(),
            mark_names,
            makespan_ns: measured.makespan_ns,
            bubble_ratio: measured.bubble_ratio,
            tokens: measured.tokens,
            duration_ns: measured.duration_ns,
        }
    }

    /// A step of these ranks, for tests.
    #[cfg(test)]
    pub(crate) fn of_tracks(tracks: Vec<Track>) -> MeasuredScene {
        let (mark_names, index, makespan_ns, bubble_ratio, tokens, duration_ns) = (Vec::new(), 0, 1, 0.0, 0, 1);
        let measured = Measured { index, makespan_ns, bubble_ratio, tokens, duration_ns, mark_names };
        MeasuredScene::of(measured, Ahead { tracks, marks: Vec::new() })
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.tracks.iter().map(Track::end_ns).max().unwrap_or(0)
    }

    /// When the last op or mark ends.
    pub fn step_end_ns(&self) -> u64 {
        self.marks.iter().map(Marks::end_ns).max().unwrap_or(0).max(self.end_ns())
    }

    /// Which of its rank's chunks a stage is.
    pub fn chunk_of_stage(&self) -> Vec<usize> {
        self.chunk_of_stage.clone()
    }

    /// How many chunks a rank has.
    pub fn chunks(&self) -> usize {
        self.chunk_of_stage.iter().max().map_or(1, |most| most + 1)
    }

    /// What marks there are, in the order of the legend.
    pub fn mark_classes(&self) -> Vec<MarkClass> {
        let mut classes: Vec<MarkClass> = self.mark_names.iter().map(|(class, _)| *class).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
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

    /// Lines of a tooltip for what `rank` did beside its ops.
    pub fn describe_mark(&self, rank: usize, index: usize) -> Vec<(String, String)> {
        let Some(mark) = self.marks.get(rank).and_then(|marks| marks.get(index)) else { return Vec::new() };
        let Some((class, name)) = self.mark_names.get(mark.name as usize) else { return Vec::new() };
        let took = mark.end_ns - mark.start_ns;
        let hidden = self.tracks.get(rank).map_or(0, |track| busy_within(track, mark.start_ns, mark.end_ns));
        [
            (class.title(), name.clone()),
            ("rank", rank.to_string()),
            ("started", text::duration(mark.start_ns as f64)),
            ("took", text::duration(took as f64)),
            ("exposed", text::duration(took.saturating_sub(hidden) as f64)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Lines of a tooltip for a range of time.
    pub fn describe_range(&self, from_ns: u64, to_ns: u64) -> Vec<(String, String)> {
        range_lines(&self.tracks, from_ns, to_ns)
    }
}

/// How long ops of a track run between two times.
fn busy_within(track: &Track, from_ns: u64, to_ns: u64) -> u64 {
    let spans = track.spans().get(track.between(from_ns as f64, to_ns as f64)).unwrap_or_default();
    spans.iter().map(|span| span.end_ns.min(to_ns).saturating_sub(span.start_ns.max(from_ns))).sum()
}

/// Which chunk of its rank each stage is: the first of several where ranks differ.
fn chunks_of(tracks: &[Track]) -> Vec<usize> {
    let mut chunks: BTreeMap<usize, usize> = BTreeMap::new();
    for track in tracks {
        let stages: std::collections::BTreeSet<usize> = track.spans().iter().map(|span| span.op.stage()).collect();
        for (chunk, stage) in stages.into_iter().enumerate() {
            chunks.entry(stage).or_insert(chunk);
        }
    }
    let count = chunks.keys().next_back().map_or(0, |last| last + 1);
    (0..count).map(|stage| chunks.get(&stage).copied().unwrap_or(0)).collect()
}

/// The scale of measured times. If `aligned`, both steps are drawn equally long. Else a plan for a GPU would be a dot
/// next to a CPU run.
pub fn measured_scale(planned_ns: u64, measured_ns: u64, aligned: bool) -> f64 {
    if aligned && planned_ns > 0 && measured_ns > 0 { planned_ns as f64 / measured_ns as f64 } else { 1.0 }
}
