//! A plan, or a measured step, as the page holds it: everything that painting and pointing need.

use std::sync::{Arc, OnceLock};

use pipeplan_core::hardware::cluster;
use pipeplan_core::model::catalog;
use pipeplan_core::plan::planner::BEST;
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Objective, PlacementChoice, Problem, Statement};
use pipeplan_core::schedule;
use pipeplan_core::simulate::timeline::{self, Span, Timeline};
use pipeplan_core::spec::{Spec, Work};

use crate::draw::lane::Lane;
use crate::draw::memory::Curve;
use crate::message::{Figures, Measured, Picture, RankBytes, WireSpan};
use crate::{text, wire};

/// Rows that have travelled, as lanes.
pub fn lanes_of(rows: &[Vec<WireSpan>]) -> Vec<Lane> {
    rows.iter().map(|row| Lane::new(wire::unpack(row))).collect()
}

/// Which kinds of ops occur in any of `lanes`: a searched order may have one on a single rank.
pub fn kinds_of(lanes: &[Lane]) -> Vec<OpKind> {
    let mut kinds: Vec<OpKind> = Vec::new();
    for span in lanes.iter().flat_map(Lane::spans) {
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

/// What the legend says of shades.
pub const SHADES_TITLE: &str = "shade: chunk";

/// The colours that are on a picture.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Key {
    /// Kinds of ops of the plan and of what is compared with it.
    pub kinds: Vec<OpKind>,
    /// Whether any rank has several chunks, which have shades of their own.
    pub shaded: bool,
    /// Whether some microbatches go up the ranks.
    pub two_way: bool,
}

impl Key {
    /// Of `plan` above `below`.
    pub fn of(plan: &Scene, below: Option<&Below>) -> Key {
        let mut kinds = kinds_of(&plan.lanes);
        kinds.extend(below.map(|below| kinds_of(below.lanes())).unwrap_or_default());
        kinds.sort_unstable();
        kinds.dedup();
        let chunks = below.map_or(1, |below| below.chunks(plan)).max(plan.problem.chunks());
        let up = plan.up_from().or(below.and_then(|below| below.up_from(plan)));
        Key { kinds, shaded: chunks > 1, two_way: up.is_some() }
    }
}

/// What is planned, in a line: model, device, ranks and microbatches.
pub fn subject(spec: &Spec, plan: &Scene) -> String {
    let of_model = match &spec.work {
        Work::Model(work) => {
            let model = catalog::find(&work.model_name).map_or("a model by hand", |entry| entry.title);
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

/// A plan on the page.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The schedule's name.
    pub schedule: String,
    /// What it solves.
    pub problem: Problem,
    /// One lane a rank.
    pub lanes: Vec<Lane>,
    curves: Vec<OnceLock<Curve>>,
    /// What it costs.
    pub figures: Figures,
    /// Its bytes by rank and kind; empty where costs are typed.
    pub memory: Vec<RankBytes>,
}

impl Scene {
    /// The scene of a picture whose lanes are `ahead` and then its own rows. `None` where its problem cannot be
    /// read or its ops are not of that problem, which no worker of ours sends.
    pub fn of(picture: Picture, ahead: Vec<Lane>) -> Option<Scene> {
        let value = serde_json::from_str(&picture.problem).ok()?;
        let statement = Statement::read(&value).ok()?;
        let PlacementChoice::Fixed(placement) = statement.placement.clone() else { return None };
        let problem = statement.problem(placement).ok()?;
        let mut lanes = ahead;
        lanes.extend(lanes_of(&picture.rows));
        let foreign = |op: Op| op.stage() >= problem.stage_count() || op.microbatch() >= problem.microbatches();
        if lanes.len() != problem.ranks() || lanes.iter().flat_map(Lane::spans).any(|span| foreign(span.op)) {
            return None;
        }
        let curves = (0..problem.ranks()).map(|_| OnceLock::new()).collect();
        Some(Scene {
            schedule: picture.schedule,
            problem,
            lanes,
            curves,
            figures: picture.figures,
            memory: picture.memory,
        })
    }

    /// Bytes over time on `rank`, worked out when first looked at: of many ranks few are in sight.
    pub fn curve(&self, rank: usize) -> Option<&Curve> {
        let lane = self.lanes.get(rank)?;
        let curve = || {
            let mut timeline = Timeline { rows: vec![Vec::new(); rank] };
            timeline.rows.push(lane.spans().to_vec());
            Curve::new(timeline.memory(&self.problem, rank))
        };
        Some(self.curves.get(rank)?.get_or_init(curve))
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.lanes.iter().map(Lane::end_ns).max().unwrap_or(0)
    }

    /// What `ranks` of this plan and its copies take that take turns on `processors`.
    pub fn in_turns_ns(&self, ranks: usize, processors: usize) -> u64 {
        let work = self.lanes.iter().flat_map(Lane::spans).map(|span| self.problem.duration(span.op));
        let pipelines = (ranks / self.lanes.len().max(1)).max(1);
        self.figures.makespan_ns.max(timeline::in_turns_ns(work, pipelines, processors))
    }

    /// Which of its rank's chunks a stage is, by stage.
    pub fn chunk_of_stage(&self) -> Vec<usize> {
        let mut chunks = vec![0; self.problem.stage_count()];
        for rank in 0..self.problem.ranks() {
            for (chunk, stage) in self.problem.stages_of(rank).iter().enumerate() {
                if let Some(slot) = chunks.get_mut(*stage) {
                    *slot = chunk;
                }
            }
        }
        chunks
    }

    /// The microbatches from this one on go up the ranks; none where all go one way.
    pub fn up_from(&self) -> Option<usize> {
        (*self.problem.placement() == Placement::TwoWay).then(|| self.problem.microbatches() / 2)
    }

    /// Where its stages are, in words.
    pub fn placement(&self) -> String {
        wire::placement(&self.problem)
    }

    /// What that placement means.
    pub fn placement_meaning(&self) -> String {
        wire::placement_meaning(&self.problem)
    }

    /// The most bytes of any rank.
    pub fn peak_bytes(&self) -> u64 {
        self.figures.peak_bytes.iter().copied().max().unwrap_or(0)
    }

    /// The rank nearest to its limit, or the fullest where there are no limits; of equals the last, which the command names.
    pub fn tightest_rank(&self) -> usize {
        let room = |rank: &usize| {
            let peak = self.figures.peak_bytes.get(*rank).copied().unwrap_or(0);
            let limit = self.figures.limit_bytes.get(*rank).copied().flatten().unwrap_or(u64::MAX);
            (limit.saturating_sub(peak), core::cmp::Reverse(peak))
        };
        (0..self.problem.ranks()).rev().min_by_key(room).unwrap_or(0)
    }

    /// Whether it is judged by its longest span and not by its makespan.
    pub fn is_judged_by_span(&self) -> bool {
        self.figures.objective == Objective::LongestSpan.name()
    }

    /// What it is judged by.
    pub fn cost_ns(&self) -> u64 {
        if self.is_judged_by_span() { self.figures.longest_span_ns } else { self.figures.makespan_ns }
    }

    /// The least and the most that a rank waits, as a share of what is judged: the bubble is the mean of all ranks.
    pub fn idle_shares(&self) -> Option<(f64, f64)> {
        let whole = self.cost_ns() as f64;
        let idle = |lane: &Lane| 1.0 - lane.busy_ns(0, lane.spans().len()) as f64 / whole;
        let shares = self.lanes.iter().map(idle).filter(|share| share.is_finite());
        shares.map(|share| (share, share)).reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// The largest limit of any rank, if all have one.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.figures.limit_bytes.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Lines of a tooltip for a span of `rank`.
    pub fn describe(&self, rank: usize, index: usize) -> Vec<(String, String)> {
        let Some(span) = self.lanes.get(rank).and_then(|lane| lane.spans().get(index)) else { return Vec::new() };
        let mut lines = describe_op(span.op, self.problem.stage_count());
        lines.push(("rank".to_owned(), rank.to_string()));
        if let Some(from) = self.up_from() {
            let way = if span.op.microbatch() >= from { "up the ranks" } else { "down the ranks" };
            lines.push(("goes".to_owned(), way.to_owned()));
        }
        lines.push(("starts".to_owned(), text::duration(span.start_ns as f64)));
        lines.push(("takes".to_owned(), text::duration((span.end_ns - span.start_ns) as f64)));
        if let Some(curve) = self.curve(rank) {
            lines.push(("rank holds".to_owned(), text::bytes(curve.at(span.start_ns as f64))));
        }
        lines
    }
}

impl Scene {
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

    /// Its order: a row of ops for each rank, and where in it pairs begin, whose second op has travelled without a time of its
    /// own.
    pub fn order(&self) -> (Vec<String>, Vec<Vec<u32>>) {
        let rows = self.lanes.iter().map(|lane| lane.spans().iter().map(|span| span.op).collect()).collect();
        let firsts = |lane: &Lane| {
            let places = lane.spans().iter().enumerate().skip(1);
            places.filter(|(_, span)| self.is_second(span)).map(|(place, _)| place as u32 - 1).collect()
        };
        (Schedule::of(rows).text_rows(), self.lanes.iter().map(firsts).collect())
    }

    /// The ops that `op` waits for and those that wait for it, as far as they run on another rank or not:
    /// each as the rank and position of the earlier and of the later one.
    pub fn dependencies(&self, op: Op) -> Vec<[(usize, usize); 2]> {
        let Some(here) = self.find(op) else { return Vec::new() };
        let (stage, microbatch) = (op.stage(), op.microbatch());
        let last = self.problem.stage_count().saturating_sub(1);
        let forward = |stage: usize| self.find(Op::new(stage, OpKind::F, microbatch));
        let backward = |stage: usize| {
            let either = [OpKind::B, OpKind::BW];
            either.into_iter().find_map(|kind| self.find(Op::new(stage, kind, microbatch)))
        };
        let (before, after) = match op.kind() {
            OpKind::F => (
                stage.checked_sub(1).and_then(forward),
                if stage < last { forward(stage + 1) } else { backward(stage) },
            ),
            OpKind::B | OpKind::BW => (
                if stage < last { backward(stage + 1) } else { forward(stage) },
                stage.checked_sub(1).and_then(backward),
            ),
            OpKind::W => (backward(stage), None),
        };
        let before = before.map(|before| [before, here]);
        let after = after.map(|after| [here, after]);
        before.into_iter().chain(after).collect()
    }

    /// The rank and the span of an op, where this plan has it.
    pub fn span_of(&self, op: Op) -> Option<(usize, &Span)> {
        let known = op.stage() < self.problem.stage_count() && op.microbatch() < self.problem.microbatches();
        let (rank, index) = known.then(|| self.find(op)).flatten()?;
        Some((rank, self.lanes.get(rank)?.spans().get(index)?))
    }

    /// Schedule, what it is judged by, and bubble in a line.
    pub fn headline(&self) -> String {
        let figures = &self.figures;
        format!(
            "{}, {}: {}{}, bubble {}, peak {}",
            wire::title(&self.schedule),
            self.placement(),
            if self.is_judged_by_span() { "longest span " } else { "" },
            text::duration(self.cost_ns() as f64),
            text::percent(figures.bubble_ratio),
            text::bytes(self.peak_bytes())
        )
    }

    /// The plan in a few words.
    pub fn summary(&self) -> String {
        format!("{}, {}", wire::title(&self.schedule), text::duration(self.cost_ns() as f64))
    }

    /// What the schedule does, in a few sentences, and who published it; empty where it comes from elsewhere.
    pub fn idea(&self) -> String {
        match schedule::find(&self.schedule) {
            Some(published) => format!("{} ({})", published.idea, published.source),
            None if self.schedule == BEST => {
                "The fastest that a search finds within the limit; it starts from all the others.".to_owned()
            }
            None => String::new(),
        }
    }

    /// The rank of an op and its place in that row.
    pub(crate) fn find(&self, op: Op) -> Option<(usize, usize)> {
        let rank = self.problem.rank_of(op.stage(), op.microbatch());
        Some((rank, self.lanes.get(rank)?.position(op)?))
    }
}

/// A measured step on the page.
#[derive(Clone, Debug)]
pub struct MeasuredScene {
    /// Position in the trace file.
    pub index: u32,
    /// One lane a rank.
    pub lanes: Vec<Lane>,
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
    /// The scene of a measured step whose lanes are `ahead` and then its own rows.
    pub fn of(measured: Measured, ahead: Vec<Lane>) -> MeasuredScene {
        let mut lanes = ahead;
        lanes.extend(lanes_of(&measured.rows));
        MeasuredScene {
            index: measured.index,
            lanes,
            makespan_ns: measured.makespan_ns,
            bubble_ratio: measured.bubble_ratio,
            tokens: measured.tokens,
            duration_ns: measured.duration_ns,
        }
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.lanes.iter().map(Lane::end_ns).max().unwrap_or(0)
    }

    /// Why this is no run of `plan`, or of several copies of it; none where every rank ran the plan's ops, in whatever order.
    pub fn differs_from(&self, plan: &Scene) -> Option<String> {
        let (ran, planned) = (self.lanes.len(), plan.lanes.len().max(1));
        let ops = |lane: &Lane| lane.spans().iter().map(|span| span.op).collect::<Vec<Op>>();
        let same = |(rank, lane): (usize, &Lane)| {
            let (mut here, mut there) = (ops(lane), plan.lanes.get(rank % planned).map(&ops).unwrap_or_default());
            here == there || {
                here.sort_unstable();
                there.sort_unstable();
                here == there
            }
        };
        if ran.is_multiple_of(planned) && self.lanes.iter().enumerate().all(same) {
            return None;
        }
        Some(match ran == planned {
            true => "of another plan, with other ops".to_owned(),
            false => format!("of another plan, with {} instead of {planned}", text::counted(ran, "rank")),
        })
    }

    /// What each rank has held at most, as the trace of this step says, to stand beside what `plan` says; none where this is
    /// no run of it.
    pub fn peaks_beside(&self, plan: &Scene, peaks: Vec<u64>) -> Option<Vec<u64>> {
        self.differs_from(plan).is_none().then_some(peaks)
    }

    /// Lines of a tooltip for a span of `rank`, beside what `plan` predicts for the same op.
    pub fn describe(&self, rank: usize, index: usize, plan: Option<&Scene>) -> Vec<(String, String)> {
        let Some(span) = self.lanes.get(rank).and_then(|lane| lane.spans().get(index)) else { return Vec::new() };
        let stages = plan.map_or(0, |plan| plan.problem.stage_count());
        let mut lines = describe_op(span.op, stages);
        lines.push(("rank".to_owned(), rank.to_string()));
        lines.push(("started".to_owned(), text::duration(span.start_ns as f64)));
        let took = (span.end_ns - span.start_ns) as f64;
        lines.push(("took".to_owned(), text::duration(took)));
        // The same op of the plan's rank: a trace of another plan has none.
        let planned = plan
            .filter(|plan| plan.span_of(span.op).is_some_and(|(planned, _)| planned == rank % plan.lanes.len()))
            .map(|plan| plan.problem.duration(span.op) as f64);
        if let Some(planned) = planned.filter(|planned| *planned > 0.0) {
            lines.push(("planned".to_owned(), format!("{} (×{:.2})", text::duration(planned), took / planned)));
        }
        lines
    }
}

fn describe_op(op: Op, stages: usize) -> Vec<(String, String)> {
    let kind = match op.kind() {
        OpKind::F => "forward",
        OpKind::B => "backward for inputs",
        OpKind::W => "backward for weights",
        OpKind::BW => "backward",
    };
    let stage = if stages > 0 { format!("{} of {stages}", op.stage()) } else { op.stage().to_string() };
    vec![
        (op.to_string(), kind.to_owned()),
        ("stage".to_owned(), stage),
        ("microbatch".to_owned(), op.microbatch().to_string()),
    ]
}

/// What stands under the plan on the same axis.
#[derive(Clone, Debug)]
pub enum Below {
    /// A measured step.
    Measured(Arc<MeasuredScene>),
    /// Another plan, kept to be compared.
    Kept(Arc<Scene>),
}

impl Below {
    /// One lane a rank.
    pub fn lanes(&self) -> &[Lane] {
        match self {
            Below::Measured(measured) => &measured.lanes,
            Below::Kept(kept) => &kept.lanes,
        }
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.lanes().iter().map(Lane::end_ns).max().unwrap_or(0)
    }

    /// By how much its times are drawn shorter. Plans are always compared in their own time.
    pub fn scale(&self, planned_ns: u64, aligned: bool) -> f64 {
        match self {
            Below::Measured(measured) => measured_scale(planned_ns, measured.end_ns(), aligned),
            Below::Kept(_) => 1.0,
        }
    }

    /// What it is, in a line.
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

    /// The chunks of a rank; a measured step is of `plan`.
    pub fn chunks(&self, plan: &Scene) -> usize {
        match self {
            Below::Measured(_) => plan.problem.chunks(),
            Below::Kept(kept) => kept.problem.chunks(),
        }
    }

    /// As [`Scene::up_from`]; a measured step is of `plan`.
    pub fn up_from(&self, plan: &Scene) -> Option<usize> {
        match self {
            Below::Measured(_) => plan.up_from(),
            Below::Kept(kept) => kept.up_from(),
        }
    }

    /// Which of its rank's chunks a stage is; a measured step is of `plan`.
    pub fn chunk_of_stage(&self, plan: &Scene) -> Vec<usize> {
        match self {
            Below::Measured(_) => plan.chunk_of_stage(),
            Below::Kept(kept) => kept.chunk_of_stage(),
        }
    }

    /// Lines of a tooltip for a span of `rank`, beside what `plan` says of the same op.
    pub fn describe(&self, rank: usize, index: usize, plan: &Scene) -> Vec<(String, String)> {
        match self {
            Below::Measured(measured) => measured.describe(rank, index, Some(plan)),
            Below::Kept(kept) => {
                let mut lines = kept.describe(rank, index);
                let op = kept.lanes.get(rank).and_then(|lane| lane.spans().get(index)).map(|span| span.op);
                if let Some((_, same)) = op.and_then(|op| plan.span_of(op)) {
                    lines.push(("above it starts".to_owned(), text::duration(same.start_ns as f64)));
                }
                lines
            }
        }
    }

    /// Lines of a tooltip for the gap before a place of a rank's row. What a measured rank waited for is not in its trace.
    pub fn describe_wait(&self, rank: usize, place: usize) -> Vec<(String, String)> {
        match self {
            Below::Measured(measured) => {
                let gap = measured.lanes.get(rank).and_then(|lane| lane.gap_before(place, self.end_ns()));
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

/// By how much measured times are drawn shorter so that both steps are equally long, where `aligned`: a CPU
/// run beside a plan for a GPU would otherwise leave the plan a dot.
pub fn measured_scale(planned_ns: u64, measured_ns: u64, aligned: bool) -> f64 {
    if aligned && planned_ns > 0 && measured_ns > 0 { planned_ns as f64 / measured_ns as f64 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeplan_core::plan::planner;
    use pipeplan_core::schedule;
    use pipeplan_core::spec::Spec;
    use serde_json::json;

    pub(crate) fn example(schedule: &str, chunks: usize) -> Scene {
        let statement = Statement::read(&json!({
            "ranks": 4, "chunks": chunks, "microbatches": 8, "placement": "any",
            "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10,
                        "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2 },
            "static_bytes": 3, "limit_bytes": 1000
        }));
        let spec = Spec::typed(statement.unwrap());
        let answer = planner::answer(&spec, &schedule::find(schedule).unwrap()).unwrap();
        Scene::of(wire::picture(schedule, &answer.case.problem, &answer.timeline), Vec::new()).unwrap()
    }

    #[test]
    fn a_scene_shows_what_the_planner_found() {
        let scene = example("1f1b", 1);
        // (M + P − 1)(F + BW), and rank 0 holds P microbatches.
        assert_eq!(scene.end_ns(), (8 + 3) * 30);
        assert_eq!(scene.peak_bytes(), 3 + 4 * 4);
        assert_eq!(scene.curve(0).unwrap().peak(), 3 + 4 * 4);
        assert_eq!(scene.curve(3).unwrap().peak(), 3 + 4);
        assert_eq!(scene.tightest_rank(), 0);
        assert_eq!(kinds_of(&scene.lanes), [OpKind::F, OpKind::BW]);
        let lines = scene.describe(2, 0);
        assert_eq!(lines[0], ("2F0".to_owned(), "forward".to_owned()));
        assert!(lines.contains(&("starts".to_owned(), "20 ns".to_owned())), "{lines:?}");
        assert!(scene.describe(9, 0).is_empty() && scene.describe(0, 999).is_empty());
    }

    /// Each rank is at work for 240 ns of 330 from the first op to the last; rank 0 alone is there for all of them.
    #[test]
    fn ranks_wait_in_what_the_plan_is_judged_by() {
        let mut scene = example("1f1b", 1);
        scene.figures.longest_span_ns = 300;
        assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 330.0, 1.0 - 240.0 / 330.0)));
        assert!(scene.headline().contains(": 330 ns, "), "{}", scene.headline());
        scene.figures.objective = Objective::LongestSpan.name().to_owned();
        assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 300.0, 1.0 - 240.0 / 300.0)));
        assert!(scene.headline().contains(": longest span 300 ns, "), "{}", scene.headline());
        scene.lanes[3] = Lane::new(Vec::new());
        assert_eq!(scene.idle_shares(), Some((1.0 - 240.0 / 300.0, 1.0)));
    }

    #[test]
    fn the_key_has_what_is_compared_too() {
        let (plan, kept) = (example("1f1b", 1), example("zb-v", 2));
        assert_eq!(Key::of(&plan, None), Key { kinds: vec![OpKind::F, OpKind::BW], ..Key::default() });
        let both = Key::of(&plan, Some(&Below::Kept(Arc::new(kept))));
        let kinds = vec![OpKind::F, OpKind::B, OpKind::W, OpKind::BW];
        assert_eq!(both, Key { kinds, shaded: true, two_way: false });
        let two_way = example("dualpipe", 1);
        let keys = [Key::of(&two_way, None), Key::of(&plan, Some(&Below::Kept(Arc::new(two_way.clone()))))];
        assert!(keys.iter().all(|key| key.two_way && !key.shaded), "{keys:?}");
        let said: Vec<String> = (0..4)
            .flat_map(|index| two_way.describe(0, index))
            .filter_map(|(name, value)| (name == "goes").then_some(value))
            .collect();
        assert_eq!(said.len(), 4);
        assert!(said.contains(&"down the ranks".to_owned()) && plan.up_from().is_none(), "{said:?}");
    }

    #[test]
    fn a_drawing_says_what_it_is_of() {
        let form = crate::form::Form::default();
        let mut spec = Spec::from_value(&form.to_value()).unwrap();
        let answer = planner::answer(&spec, &schedule::find("1f1b").unwrap()).unwrap();
        let scene = Scene::of(wire::picture_of(&spec, &answer), Vec::new()).unwrap();
        assert_eq!(subject(&spec, &scene), "Llama 2 7B on NVIDIA H100 SXM 80 GB, 4 ranks, 10 microbatches");
        spec.name = "mine".to_owned();
        assert!(subject(&spec, &scene).starts_with("mine, Llama"));
    }

    #[test]
    fn a_kind_that_a_single_rank_has_is_found() {
        let mut lanes = example("zb-h1", 1).lanes;
        assert_eq!(kinds_of(&lanes), [OpKind::F, OpKind::B, OpKind::W]);
        lanes[3] = Lane::new(vec![Span { op: Op::new(3, OpKind::BW, 0), start_ns: 0, end_ns: 1 }]);
        assert_eq!(kinds_of(&lanes), [OpKind::F, OpKind::B, OpKind::W, OpKind::BW]);
    }

    /// Pairs too, although the second op of a pair has travelled without a time of its own.
    #[test]
    fn a_scene_knows_its_order() {
        let statement = Statement::read(&json!({
            "ranks": 4, "microbatches": 8, "placement": "any", "overlap_permille": 500,
            "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10 },
        }));
        let spec = Spec::typed(statement.unwrap());
        let mut paired = 0;
        for name in ["1f1b", "zb-h1", "dualpipe"] {
            let answer = planner::answer(&spec, &schedule::find(name).unwrap()).unwrap();
            let picture = wire::picture(name, &answer.case.problem, &answer.timeline);
            let pairs: Vec<Vec<u32>> = (0..4).map(|rank| answer.schedule.pairs_of(rank).to_vec()).collect();
            paired += pairs.concat().len();
            let scene = Scene::of(picture, Vec::new()).unwrap();
            assert_eq!(scene.order(), (answer.schedule.text_rows(), pairs), "{name}");
        }
        assert!(paired > 0);
    }

    #[test]
    fn ranks_that_take_turns_take_all_their_work_shared_out() {
        let scene = example("1f1b", 1);
        // Four ranks with eight microbatches of F and BW each.
        let work = 4 * 8 * 30;
        assert_eq!(scene.in_turns_ns(4, 1), work);
        assert_eq!(scene.in_turns_ns(4, 2), work / 2);
        // Two copies of the pipeline.
        assert_eq!(scene.in_turns_ns(8, 2), work);
        assert_eq!(scene.in_turns_ns(4, 3), scene.end_ns(), "a rank for itself takes no less");
    }

    #[test]
    fn dependencies_follow_the_microbatch_through_the_ranks() {
        let scene = example("1f1b", 1);
        let names = |text: &str| -> Vec<String> {
            let op = text.parse().unwrap();
            let name = |(rank, index): (usize, usize)| scene.lanes[rank].spans()[index].op.to_string();
            scene.dependencies(op).into_iter().map(|[from, to]| format!("{}>{}", name(from), name(to))).collect()
        };
        assert_eq!(names("0F3"), ["0F3>1F3"]);
        assert_eq!(names("2F3"), ["1F3>2F3", "2F3>3F3"]);
        assert_eq!(names("3F3"), ["2F3>3F3", "3F3>3BW3"]);
        assert_eq!(names("3BW3"), ["3F3>3BW3", "3BW3>2BW3"]);
        assert_eq!(names("0BW3"), ["1BW3>0BW3"]);
    }

    #[test]
    fn of_ranks_that_are_as_full_the_last_is_named() {
        let mut scene = example("1f1b", 1);
        scene.figures.peak_bytes = vec![5, 7, 7, 3];
        assert_eq!(scene.tightest_rank(), 2);
        scene.figures.peak_bytes = vec![5, 7, 7, 5];
        scene.figures.limit_bytes = vec![Some(5), Some(9), Some(9), Some(5)];
        assert_eq!(scene.tightest_rank(), 3);
    }

    #[test]
    fn chunks_count_within_their_rank() {
        assert_eq!(example("zb-v", 2).chunk_of_stage(), [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    /// A step that ran as planned, in so many copies of the pipeline.
    fn ran(plan: &Scene, copies: usize) -> MeasuredScene {
        let lanes = (0..copies).flat_map(|_| plan.lanes.clone()).collect();
        MeasuredScene { index: 0, lanes, makespan_ns: 1, bubble_ratio: 0.0, tokens: 0, duration_ns: 1 }
    }

    #[test]
    fn a_run_is_of_the_plan_whose_ops_its_ranks_ran() {
        let plan = example("1f1b", 1);
        assert_eq!(ran(&plan, 1).differs_from(&plan), None);
        assert_eq!(ran(&plan, 2).differs_from(&plan), None);
        assert_eq!(ran(&example("gpipe", 1), 1).differs_from(&plan), None, "the same ops in another order");
        let said = ran(&example("zb-h1", 1), 1).differs_from(&plan);
        assert_eq!(said.as_deref(), Some("of another plan, with other ops"));
        // Nor does its memory stand beside this plan's.
        assert_eq!(ran(&plan, 1).peaks_beside(&plan, vec![7; 4]), Some(vec![7; 4]));
        assert_eq!(ran(&example("zb-h1", 1), 1).peaks_beside(&plan, vec![7; 4]), None);
        let mut more = ran(&plan, 1);
        more.lanes.push(plan.lanes[0].clone());
        assert_eq!(more.differs_from(&plan).as_deref(), Some("of another plan, with 5 ranks instead of 4"));
        // What is pointed at is set beside the same op of the same rank alone.
        let planned = |measured: &MeasuredScene, rank: usize| {
            measured.describe(rank, 0, Some(&plan)).iter().any(|(name, _)| name == "planned")
        };
        assert!(planned(&ran(&plan, 2), 5) && !planned(&more, 4 + 1));
        more.lanes.swap(0, 1);
        assert!(!planned(&more, 0), "an op of another rank");
    }

    #[test]
    fn a_measured_step_is_stretched_only_where_asked() {
        assert_eq!(measured_scale(100, 400, true), 0.25);
        assert_eq!(measured_scale(100, 400, false), 1.0);
        assert_eq!(measured_scale(0, 400, true), 1.0);
    }
}
