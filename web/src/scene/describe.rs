//! A plan and its ops in words: headlines and tooltips.

use pipeplan_core::hardware::cluster;
use pipeplan_core::model::catalog;
use pipeplan_core::problem::op::Op;
use pipeplan_core::schedule;
use pipeplan_core::schedule::BEST;
use pipeplan_core::spec::{Spec, Work};

use super::{Scene, words_of};
use crate::draw::track::Track;
use crate::text;

/// Ranks of a read-out: as many lines as a screen has room for.
pub const MOST_READ_OUT: usize = 24;

impl Scene {
    /// The name of its placement.
    pub fn placement(&self) -> String {
        text::placement(&self.problem)
    }

    /// The meaning of that placement.
    pub fn placement_meaning(&self) -> String {
        text::placement_meaning(&self.problem)
    }

    /// Lines of a tooltip for a span of `rank`.
    pub fn describe(&self, rank: usize, index: usize) -> Vec<(String, String)> {
        let Some(span) = self.tracks.get(rank).and_then(|track| track.spans().get(index)) else { return Vec::new() };
        let mut lines = describe_op(span.op, self.problem.stage_count());
        lines.push(("rank".to_owned(), rank.to_string()));
        if let Some(from) = self.up_from() {
            let way = if span.op.microbatch() >= from { "up the ranks" } else { "down the ranks" };
            lines.push(("direction".to_owned(), way.to_owned()));
        }
        lines.push(("starts".to_owned(), text::duration(span.start_ns as f64)));
        lines.push(("takes".to_owned(), text::duration((span.end_ns - span.start_ns) as f64)));
        if let Some(curve) = self.curve(rank) {
            lines.push(("rank holds".to_owned(), text::bytes(curve.at(span.start_ns as f64))));
        }
        lines
    }

    /// Lines of a tooltip for the memory of `rank` at a time.
    pub fn describe_memory(&self, rank: usize, time_ns: f64) -> Vec<(String, String)> {
        let Some(curve) = self.curve(rank) else { return Vec::new() };
        let peak = self.figures.peak_bytes.get(rank).copied().unwrap_or(0);
        let mut lines = vec![
            ("rank".to_owned(), rank.to_string()),
            ("at".to_owned(), text::duration(time_ns)),
            ("holds".to_owned(), text::bytes(curve.at(time_ns))),
            ("peak".to_owned(), text::bytes(peak)),
            ("static".to_owned(), text::bytes(self.problem.static_bytes(rank))),
        ];
        if let Some(limit) = self.figures.limit_bytes.get(rank).copied().flatten() {
            lines.push(("limit".to_owned(), text::bytes(limit)));
        }
        lines
    }

    /// Lines of a read-out of all ranks at a time: the op and the memory of each, up to [`MOST_READ_OUT`] ranks.
    pub fn describe_instant(&self, time_ns: u64) -> Vec<(String, String)> {
        let at = time_ns as f64;
        let rank = |rank: usize| {
            let track = self.tracks.get(rank)?;
            let span = track.spans().get(track.first_ending_after(at)).filter(|span| span.start_ns <= time_ns);
            let op = span.map_or_else(|| "idle".to_owned(), |span| span.op.to_string());
            let holds = self.curve(rank).map_or(0, |curve| curve.at(at));
            Some((format!("rank {rank}"), format!("{op}, holds {}", text::bytes(holds))))
        };
        let more = self.tracks.len().saturating_sub(MOST_READ_OUT);
        let more = (more > 0).then(|| ("and".to_owned(), text::counted(more, "more rank")));
        let all = (0..self.tracks.len().min(MOST_READ_OUT)).filter_map(rank);
        core::iter::once(("at".to_owned(), text::duration(at))).chain(all).chain(more).collect()
    }

    /// Lines of a tooltip for a range of time: how long it is, what the ranks do in it, the most that any holds.
    pub fn describe_range(&self, from_ns: u64, to_ns: u64) -> Vec<(String, String)> {
        let holds = |rank: usize| self.curve(rank).map_or(0, |curve| curve.most_between(from_ns, to_ns));
        let most = (0..self.tracks.len()).map(|rank| (holds(rank), rank)).max().unwrap_or_default();
        let mut lines = range_lines(&self.tracks, from_ns, to_ns);
        lines.push(("peak in it".to_owned(), format!("{}, rank {}", text::bytes(most.0), most.1)));
        lines
    }

    /// Schedule, cost and bubble in a line.
    pub fn headline(&self) -> String {
        let figures = &self.figures;
        format!(
            "{}, {}: {}{}, bubble {}, peak {}",
            text::schedule_title(&self.schedule),
            self.placement(),
            if self.is_judged_by_span() { "longest span " } else { "" },
            text::duration(self.cost_ns() as f64),
            text::percent(figures.bubble_ratio),
            text::bytes(self.peak_bytes())
        )
    }

    /// The plan in a few words.
    pub fn summary(&self) -> String {
        format!("{}, {}", text::schedule_title(&self.schedule), text::duration(self.cost_ns() as f64))
    }

    /// The idea of the schedule and its source; empty for a custom schedule.
    pub fn idea(&self) -> String {
        match schedule::find(&self.schedule) {
            Some(published) => format!("{} ({})", published.idea, published.source),
            None if self.schedule == BEST => {
                "The fastest schedule that a search finds within the memory limit. The search starts from all published schedules.".to_owned()
            }
            None => String::new(),
        }
    }
}

/// The subject of a plan, in a line: model, device, ranks and microbatches.
pub fn subject(spec: &Spec, plan: &Scene) -> String {
    let of_model = match &spec.work {
        Work::Model(work) => {
            let model = catalog::find(&work.model_name).map_or("custom model", |entry| entry.title);
            let device = cluster::find(&work.device.name).map_or(work.device.name.as_str(), |entry| entry.title);
            format!("{model} on {device}")
        }
        Work::Typed(_) => "typed costs".to_owned(),
    };
    let shape =
        [text::counted(plan.problem.ranks(), "rank"), text::counted(plan.problem.microbatches(), "microbatch")];
    let said = [Some(spec.name.clone()).filter(|name| !name.is_empty()), Some(of_model)];
    said.into_iter().flatten().chain(shape).collect::<Vec<_>>().join(", ")
}

/// How long a range of time is, and what the ranks do in it.
pub(super) fn range_lines(tracks: &[Track], from_ns: u64, to_ns: u64) -> Vec<(String, String)> {
    let within = |from: u64, to: u64| to.min(to_ns).saturating_sub(from.max(from_ns));
    let (mut busy_ns, mut ops) = (0_u64, 0_usize);
    for track in tracks {
        let shown = track.between(from_ns as f64, to_ns as f64);
        ops += shown.len();
        let spans = track.spans().get(shown).unwrap_or_default();
        busy_ns += spans.iter().map(|span| within(span.start_ns, span.end_ns)).sum::<u64>();
    }
    let whole = (to_ns - from_ns).max(1) as f64 * tracks.len().max(1) as f64;
    [
        ("range", text::duration((to_ns - from_ns) as f64)),
        ("from", text::duration(from_ns as f64)),
        ("to", text::duration(to_ns as f64)),
        ("ops", text::count(ops as u64)),
        ("busy", text::percent(busy_ns as f64 / whole)),
        ("idle", text::percent(1.0 - busy_ns as f64 / whole)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

pub(super) fn describe_op(op: Op, stages: usize) -> Vec<(String, String)> {
    // Stages are numbered from 0: `7 of 8` would not read as the last.
    let stage = match stages {
        0 => op.stage().to_string(),
        _ => format!("{} (0 to {})", op.stage(), stages - 1),
    };
    vec![
        (op.to_string(), words_of(op.kind()).to_owned()),
        ("stage".to_owned(), stage),
        ("microbatch".to_owned(), op.microbatch().to_string()),
    ]
}
