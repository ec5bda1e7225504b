//! A plan on the page.

use std::sync::OnceLock;

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::problem::{Objective, PlacementChoice, Problem, Schedule, Statement};
use pipeplan_core::simulate::timeline::{self, CopySpan, Span, Timeline};

use super::tracks_of;
use crate::draw::memory::Curve;
use crate::draw::track::{Carried, Track};
use crate::protocol::spans::unpack_copies;
use crate::protocol::{Figures, Picture, RankBytes, Widths};

/// A plan on the page.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The schedule's name.
    pub schedule: String,
    /// The problem of the plan.
    pub problem: Problem,
    /// One track a rank.
    pub tracks: Vec<Track>,
    /// By rank, its copies to and from the host; empty where there are none.
    pub copies: Vec<Vec<CopySpan>>,
    curves: Vec<OnceLock<Curve>>,
    carried: Vec<OnceLock<Carried>>,
    /// Its cost.
    pub figures: Figures,
    /// Its bytes by rank and kind; empty if costs are typed.
    pub memory: Vec<RankBytes>,
    /// Its microbatches, if they differ.
    pub widths: Widths,
}

impl Scene {
    /// The scene of a picture. Its tracks are `ahead`, then its own rows. `None` if its problem cannot be read or if
    /// its ops do not belong to the problem; the worker never sends that.
    pub fn of(picture: Picture, ahead: Vec<Track>) -> Option<Scene> {
        let value = serde_json::from_str(&picture.problem).ok()?;
        let statement = Statement::read(&value).ok()?;
        let PlacementChoice::Fixed(placement) = statement.placement.clone() else { return None };
        let problem = statement.problem(placement).ok()?;
        let mut tracks = ahead;
        tracks.extend(tracks_of(&picture.rows));
        let foreign = |op: Op| op.stage() >= problem.stage_count() || op.microbatch() >= problem.microbatches();
        if tracks.len() != problem.ranks() || tracks.iter().flat_map(Track::spans).any(|span| foreign(span.op)) {
            return None;
        }
        let copies = unpack_copies(&picture.copies);
        let foreign = |span: &CopySpan| usize::from(span.copy.moved.stage) >= problem.stage_count();
        if copies.len() > problem.ranks() || copies.iter().flatten().any(foreign) {
            return None;
        }
        let curves = (0..problem.ranks()).map(|_| OnceLock::new()).collect();
        let carried = (0..problem.ranks()).map(|_| OnceLock::new()).collect();
        Some(Scene {
            schedule: picture.schedule,
            problem,
            tracks,
            copies,
            curves,
            carried,
            figures: picture.figures,
            memory: picture.memory,
            widths: picture.widths,
        })
    }

    /// What stands in place of a plan where there is none: without ranks.
    pub fn none() -> Option<Scene> {
        let stated = serde_json::json!({
            "ranks": 1, "microbatches": 1, "stages": { "forward_ns": 1, "backward_input_ns": 1 },
        });
        let statement = Statement::read(&stated).ok()?;
        let problem = statement.problem(statement.placements().first()?.clone()).ok()?;
        let (curves, carried, tracks, memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Some(Scene {
            schedule: String::new(),
            problem,
            tracks,
            copies: Vec::new(),
            curves,
            carried,
            figures: Figures::default(),
            memory,
            widths: Widths::default(),
        })
    }

    /// Bytes over time on `rank`, worked out when first looked at: of many ranks few are in sight.
    pub fn curve(&self, rank: usize) -> Option<&Curve> {
        let track = self.tracks.get(rank)?;
        let curve = || {
            let mut timeline = Timeline { rows: vec![Vec::new(); rank], copies: vec![Vec::new(); rank] };
            timeline.rows.push(track.spans().to_vec());
            timeline.copies.push(self.copies.get(rank).cloned().unwrap_or_default());
            Curve::new(timeline.memory(&self.problem, rank))
        };
        Some(self.curves.get(rank)?.get_or_init(curve))
    }

    /// What `rank` sends and does beside its ops, worked out when first looked at.
    pub fn carried(&self, rank: usize) -> Option<&Carried> {
        Some(self.carried.get(rank)?.get_or_init(|| self.carried_by(rank)))
    }

    /// How many ranks run an op at a time, and of how many.
    pub fn busy_at(&self, time_ns: u64) -> (usize, usize) {
        let is_busy = |track: &&Track| {
            let span = track.spans().get(track.first_ending_after(time_ns as f64));
            span.is_some_and(|span| span.start_ns <= time_ns)
        };
        (self.tracks.iter().filter(is_busy).count(), self.tracks.len())
    }

    /// When the last op ends.
    pub fn end_ns(&self) -> u64 {
        self.tracks.iter().map(Track::end_ns).max().unwrap_or(0)
    }

    /// The time of this plan if `ranks` ranks of its replicas are time-sliced on `processors`.
    pub fn in_turns_ns(&self, ranks: usize, processors: usize) -> u64 {
        let work = self.tracks.iter().flat_map(Track::spans).map(|span| self.problem.duration(span.op));
        let pipelines = (ranks / self.tracks.len().max(1)).max(1);
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

    /// Microbatches from this index on go up the ranks; none if all go one way.
    pub fn up_from(&self) -> Option<usize> {
        (*self.problem.placement() == Placement::Bidirectional).then(|| self.problem.microbatches() / 2)
    }

    /// The most bytes of any rank.
    pub fn peak_bytes(&self) -> u64 {
        self.figures.peak_bytes.iter().copied().max().unwrap_or(0)
    }

    /// The rank nearest to its limit, or the fullest rank without limits. Among equals the last one, as the command
    /// does.
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

    /// The cost, by the objective.
    pub fn cost_ns(&self) -> u64 {
        if self.is_judged_by_span() { self.figures.longest_span_ns } else { self.figures.makespan_ns }
    }

    /// The smallest and largest idle share of a rank, of the cost by the objective. The bubble is the mean of all
    /// ranks.
    pub fn idle_shares(&self) -> Option<(f64, f64)> {
        let whole = self.cost_ns() as f64;
        let idle = |track: &Track| 1.0 - track.busy_ns(0, track.spans().len()) as f64 / whole;
        let shares = self.tracks.iter().map(idle).filter(|share| share.is_finite());
        shares.map(|share| (share, share)).reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// The largest limit of any rank, if all have one.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.figures.limit_bytes.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Its schedule: an op list for each rank, the positions of pairs, and copies to and from hosts. The second op of a pair has
    /// no separate time.
    pub fn order(&self) -> Schedule {
        let rows = self.tracks.iter().map(|track| track.spans().iter().map(|span| span.op).collect()).collect();
        let firsts = |track: &Track| {
            let places = track.spans().iter().enumerate().skip(1);
            places.filter(|(_, span)| self.is_second(span)).map(|(place, _)| place as u32 - 1).collect()
        };
        let pairs = self.tracks.iter().map(firsts).collect();
        let copies = self.copies.iter().map(|copies| copies.iter().map(|span| span.copy).collect()).collect();
        Schedule { rows, pairs, copies }
    }

    /// The ops that `op` waits for and the ops that wait for it, on any rank. Each entry is the rank and position of
    /// the earlier and of the later op.
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

    /// The rank and the span of an op, if this plan has it.
    pub fn span_of(&self, op: Op) -> Option<(usize, &Span)> {
        let known = op.stage() < self.problem.stage_count() && op.microbatch() < self.problem.microbatches();
        let (rank, index) = known.then(|| self.find(op)).flatten()?;
        Some((rank, self.tracks.get(rank)?.spans().get(index)?))
    }

    /// The rank of an op and its place in that row.
    pub(crate) fn find(&self, op: Op) -> Option<(usize, usize)> {
        let rank = self.problem.rank_of(op.stage(), op.microbatch());
        Some((rank, self.tracks.get(rank)?.position(op)?))
    }
}
