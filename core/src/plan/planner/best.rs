//! The best of the published answers and of searches, also where the times of ops vary.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Answer, BEST, Case, PlanError, judge, open_cases};
use crate::base::units::Nanos;
use crate::bounds;
use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::{Backward, Problem};
use crate::program::lower::Lowering;
use crate::schedule::Absent;
use crate::search::{self, Effort, Flow, Infeasible, Progress};
use crate::spec::Spec;

/// With jitter, the factor on hops in searches for robust orders: quarters of the standard deviation of a mean op.
const SLACKS: [u64; 4] = [2, 4, 8, 16];

/// Where ranks wait at transfers, the jitter of a mean op that is assumed, in thousandths: a rank is ready to receive
/// that much before, or after, its neighbour sends.
const WAITS_PERMILLE: u64 = 250;

/// The best of the published answers and of a search on every problem that a spec leaves open, piece by piece, so that
/// a page can respond between two pieces.
///
/// Offer every published answer, then search until there is nothing left. Of two equal answers the one with a published
/// name wins, since a person knows it.
///
/// A search minimises the pipeline time of one placement. Among placements the best has the shortest step: a
/// bidirectional placement holds two stages per rank, so gradient sync and optimizer take twice as long. A step counts
/// [with communication](super::WithCommunication). Where ranks wait at transfers, the shortest order may not give the shortest
/// step. Orders with slack lose less; they are searched for as with jitter.
///
/// Where the spec has [jitter](crate::simulate::jitter), the best order has the least 95th percentile of the step time.
/// An order whose ops have their inputs some time before they start loses little when an op is late. So each problem is
/// searched again with longer hops, which gives orders with such slack (as in slack-based robust scheduling: Davenport,
/// Gefflot and Beck, ECP 2001), and the results are judged with the real hops.
#[derive(Clone, Debug)]
pub struct Best {
    spec: Spec,
    /// With the figure that judges it.
    best: Option<(Nanos, Answer)>,
    reasons: Vec<(String, String)>,
    /// Of the placements that no schedule fits, the one that needs least.
    nearest: Option<Infeasible>,
    /// The searches that remain, the next one last; none before the first search.
    open: Option<Vec<Piece>>,
    stopped: bool,
}

/// One search.
#[derive(Clone, Debug)]
struct Piece {
    case: Case,
    /// The lower bound of the problem.
    bound_ns: Nanos,
    /// The cost that nothing is expected to beat: the bound, or the result of a search of the same problem.
    floor_ns: Nanos,
    /// The least time of the step epilogue.
    end_ns: Nanos,
    /// The time that is added to hops.
    slack_ns: Nanos,
}

impl Best {
    /// Nothing offered and nothing searched yet.
    pub fn new(spec: &Spec) -> Best {
        Best { spec: spec.clone(), best: None, reasons: Vec::new(), nearest: None, open: None, stopped: false }
    }

    /// Takes the answer of a published schedule.
    pub fn offer(&mut self, name: &str, answer: Result<Answer, Absent>) {
        match answer {
            Ok(answer) => self.keep(answer),
            Err(absent) => self.reasons.push((name.to_string(), absent.reason)),
        }
    }

    fn keep(&mut self, answer: Answer) {
        let judged_ns = answer.judged_ns();
        if judged_ns < self.least_ns() {
            self.best = Some((judged_ns, answer));
        }
    }

    /// The figure that judges the best so far: its cost with communication, with jitter the 95th percentile, and for a
    /// model with the step epilogue. The greatest number where there is none.
    pub fn least_ns(&self) -> Nanos {
        self.best.as_ref().map_or(Nanos::MAX, |(judged_ns, _)| *judged_ns)
    }

    /// Searches the next open problem, if it can have a better schedule. False where none is left.
    ///
    /// # Errors
    /// [`PlanError::Spec`] where no problem follows from the spec.
    pub fn search_next(
        &mut self,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<bool, PlanError> {
        if self.open.is_none() {
            self.open = Some(pieces(&self.spec)?);
        }
        if self.stopped && self.best.is_some() {
            return Ok(false);
        }
        let Some(Piece { case, bound_ns, floor_ns, end_ns, slack_ns }) = self.open.as_mut().and_then(Vec::pop) else {
            return Ok(false);
        };
        // With jitter too: no op is shorter on average than planned.
        if floor_ns.saturating_add(end_ns) >= self.least_ns() {
            return Ok(true);
        }
        let slack = if slack_ns > 0 { case.problem.with_longer_hops(slack_ns) } else { Some(case.problem.clone()) };
        let Some(searched) = slack else { return Ok(true) };
        let known_ns = self.best.as_ref().map(|(_, best)| best.cost_ns()).filter(|_| slack_ns > 0);
        let mut stopped = false;
        let found = search::best(&searched, effort, &mut |progress| {
            // What a search with longer hops reaches is no figure of this problem.
            let cost_ns = known_ns.unwrap_or(progress.cost_ns);
            let flow = observer(Progress { cost_ns, bound_ns, ..progress });
            stopped |= flow == Flow::Stop;
            flow
        });
        self.stopped |= stopped;
        if let (Ok(found), 0) = (&found, slack_ns) {
            let best = self.best.iter().filter(|(_, best)| best.case.problem == case.problem);
            let floor_ns = best.map(|(_, best)| best.cost_ns()).fold(found.cost_ns, Nanos::min);
            let same = |piece: &&mut Piece| piece.case.problem == case.problem;
            self.open.iter_mut().flatten().filter(same).for_each(|piece| piece.floor_ns = floor_ns);
        }
        match found {
            Ok(found) if slack_ns > 0 || found.cost_ns.saturating_add(end_ns) < self.least_ns() => {
                self.keep_found(case, found.schedule);
            }
            Ok(_) => {}
            Err(infeasible) => {
                let before = self.nearest.take();
                let nearer = before.filter(|before| before.least_bytes <= infeasible.least_bytes);
                self.nearest = nearer.or(Some(infeasible));
            }
        }
        Ok(true)
    }

    /// Builds and runs the first few orders of the next open problem, without a search, if it can have a better
    /// schedule. False where none is left.
    ///
    /// # Errors
    /// [`PlanError::Spec`] where no problem follows from the spec.
    pub fn look_next(&mut self) -> Result<bool, PlanError> {
        if self.open.is_none() {
            self.open = Some(pieces(&self.spec)?);
        }
        let Some(Piece { case, floor_ns, end_ns, slack_ns, .. }) = self.open.as_mut().and_then(Vec::pop) else {
            return Ok(false);
        };
        if slack_ns == 0
            && floor_ns.saturating_add(end_ns) < self.least_ns()
            && let Ok(found) = search::first(&case.problem)
        {
            self.keep_found(case, found.schedule);
        }
        Ok(true)
    }

    /// Judges the result of a search like any other schedule, since the search has another simulator.
    fn keep_found(&mut self, case: Case, schedule: Schedule) {
        if let Some(fused) = fused(&case.problem, &schedule) {
            self.offer(BEST, judge(&self.spec, case.clone(), BEST, fused));
        }
        self.offer(BEST, judge(&self.spec, case, BEST, schedule));
    }

    /// The best so far.
    pub fn so_far(&self) -> Option<&Answer> {
        self.best.as_ref().map(|(_, answer)| answer)
    }

    /// The best of all.
    ///
    /// # Errors
    /// [`PlanError::NoSchedule`] with every reason where nothing was valid.
    pub fn finish(self) -> Result<Answer, PlanError> {
        let none = PlanError::NoSchedule { nearest: self.nearest, reasons: self.reasons };
        self.best.map(|(_, answer)| answer).ok_or(none)
    }
}

/// All searches for `spec`, the first one last.
fn pieces(spec: &Spec) -> Result<Vec<Piece>, PlanError> {
    // Two chunks in a wave are a V.
    let mut plain: Vec<Piece> = Vec::new();
    for case in open_cases(spec)? {
        if !plain.iter().any(|known| known.case.problem.same_as(&case.problem)) {
            let bound_ns = bounds::lower_bound(&case.problem).value_ns;
            let end_ns = case.derived.as_ref().map_or(0, |derived| derived.epilogue.least_tail_ns());
            plain.push(Piece { case, bound_ns, floor_ns: bound_ns, end_ns, slack_ns: 0 });
        }
    }
    // The problem with the most to gain comes first: its result may leave nothing to gain elsewhere.
    plain.sort_by_key(|piece| piece.bound_ns.saturating_add(piece.end_ns));
    plain.reverse();
    let waits = if matches!(spec.messages.lowering, Lowering::Overlapped { .. }) { 0 } else { WAITS_PERMILLE };
    let jitter = u64::from(spec.jitter_permille).max(waits);
    let with_slack = |piece: &Piece| {
        // A rank that waits for no other needs none.
        let several = u64::from(piece.case.problem.ranks() > 1);
        let differs_ns = several * mean_op_ns(&piece.case.problem).saturating_mul(jitter) / 1000;
        let piece = piece.clone();
        SLACKS.map(|quarters| Piece { slack_ns: differs_ns.saturating_mul(quarters) / 4, ..piece.clone() })
    };
    let mut pieces: Vec<Piece> = plain.iter().flat_map(with_slack).filter(|piece| piece.slack_ns > 0).collect();
    pieces.extend(plain);
    Ok(pieces)
}

/// What an F, B or W takes on average over the stages.
fn mean_op_ns(problem: &Problem) -> Nanos {
    let of_stage = |stage| {
        [OpKind::F, OpKind::B, OpKind::W]
            .iter()
            .map(move |kind| problem.duration(Op::new(stage, *kind, 0)))
            .sum::<Nanos>()
    };
    let all: Nanos = (0..problem.stage_count()).map(of_stage).sum();
    all / (3 * problem.stage_count()) as u64
}

/// `schedule` with each B that stands right before its W fused with it, where that is shorter: a search of a backward that
/// may be cut always cuts it. None where that changes nothing.
fn fused(problem: &Problem, schedule: &Schedule) -> Option<Schedule> {
    let gains = |op: &Op| problem.backward() == Backward::Split && problem.cost(op.stage()).backward_ns.is_some();
    let mut changes = false;
    let row = |row: &Vec<Op>| {
        let mut fused: Vec<Op> = Vec::with_capacity(row.len());
        for op in row {
            match fused.last_mut() {
                Some(last)
                    if op.kind() == OpKind::W
                        && gains(op)
                        && *last == Op::new(op.stage(), OpKind::B, op.microbatch()) =>
                {
                    *last = Op::new(op.stage(), OpKind::BW, op.microbatch());
                    changes = true;
                }
                _ => fused.push(*op),
            }
        }
        fused
    };
    let rows = schedule.rows.iter().map(row).collect();
    changes.then(|| Schedule::of(rows))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::plan::planner::{best, compare};
    use crate::simulate::jitter;

    fn spec(ranks: u64, microbatches: u64, placement: &str, limit: u64, jitter: u64, hop: u64) -> Spec {
        let chunks = if placement == "linear" { 1 } else { 2 };
        let value = json!({
            "problem": {
                "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
                "limit_bytes": limit * chunks * 10, "transfer_ns": hop,
                "stages": { "forward_ns": 90_000, "backward_input_ns": 110_000, "backward_weight_ns": 70_000,
                    "forward_bytes": 10, "backward_input_bytes": -4, "backward_weight_bytes": -6 },
            },
            "jitter_permille": jitter,
        });
        Spec::read(&value.to_string()).unwrap_or_else(|error| panic!("{error}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        /// Nor is there a published schedule that one step in twenty costs less.
        #[test]
        fn with_jitter_no_row_is_late_by_less_than_the_best(
            ranks in 2u64..6, rounds in 1u64..4, placement in prop::sample::select(vec!["linear", "v", "looped", "any"]),
            limit in 1u64..9, jitter in 1u64..300, hop in 0u64..10_000,
        ) {
            let comparison = compare(&spec(ranks, ranks * rounds, placement, limit, jitter, hop));
            let best = comparison.rows.last().and_then(|row| row.late_ns);
            prop_assert!(best.is_some(), "room for one microbatch is enough");
            for row in &comparison.rows {
                prop_assert!(row.late_ns.is_none() || best <= row.late_ns, "{row:?}");
                prop_assert!(row.typical_ns <= row.late_ns);
            }
        }
    }

    /// Bidirectional placements have the shortest pipelines and twice the gradients. Over few links the gradients cost
    /// more than the pipeline saves.
    #[test]
    fn no_row_of_a_model_has_a_shorter_step_than_the_best() {
        let mut longer = 0;
        for (data, zero, objective) in
            [(1, 0, "makespan"), (16, 1, "makespan"), (16, 3, "longest_span"), (64, 1, "makespan")]
        {
            let text = std::format!(
                "objective = \"{objective}\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ndevice = \"h100\"\ndevices_per_node = 1\n\
                 node_link = {{ bytes_per_s = 12_500_000_000, latency_ns = 5000 }}\n[parallel]\npipeline = 4\n\
                 data = {data}\nzero = {zero}\n[training]\nmicrobatches = 16\nsequence = 4096\n"
            );
            let spec = Spec::read(&text).unwrap_or_else(|error| panic!("{error}"));
            let rows = compare(&spec).rows;
            let best = rows.last().expect("the best");
            for row in &rows {
                if objective == "makespan" {
                    assert!(row.step_ns.is_none() || best.step_ns <= row.step_ns, "{data} {zero}: {row:?}");
                }
                longer += u32::from(row.makespan_ns.is_some_and(|ns| Some(ns) < best.makespan_ns));
            }
        }
        assert!(longer > 0, "the shortest pipeline always made the shortest step");
    }

    /// Where ranks wait at their transfers, the shortest order may not make the shortest step.
    #[test]
    fn the_best_is_that_of_what_is_carried() {
        let mut shorter = 0;
        for (placement, limit, hop) in [("any", 6, 20_000), ("linear", 4, 20_000), ("looped", 8, 5_000)] {
            let mut grouped = spec(4, 12, placement, limit, 0, hop);
            grouped.messages.lowering = Lowering::Grouped;
            let rows = compare(&grouped).rows;
            let best = rows.last().expect("the best");
            assert!(best.carried_ns.is_some());
            for row in &rows {
                assert!(
                    row.carried_ns.is_none() || best.carried_ns <= row.carried_ns,
                    "{placement}: {row:?} {best:?}"
                );
            }
            // The best where no rank waits.
            let rows = compare(&spec(4, 12, placement, limit, 0, hop)).rows;
            shorter += u32::from(rows.last().is_some_and(|other| other.makespan_ns < best.makespan_ns));
        }
        assert!(shorter > 0, "the shortest order is always the best");
    }

    /// Of two orders that are planned to take as long, one passes delays on and the other does not. Judged in other runs
    /// than those by which it was chosen.
    #[test]
    fn slack_pays_where_ops_differ() {
        let jittered = json!({
            "problem": { "ranks": 8, "chunks": 2, "microbatches": 24, "placement": "looped", "transfer_ns": 10_000,
                "stages": { "forward_ns": 53_000, "backward_input_ns": 85_000, "backward_weight_ns": 40_000 } },
            "jitter_permille": 200,
        });
        let jittered = Spec::read(&jittered.to_string()).unwrap_or_else(|error| panic!("{error}"));
        let planned = Spec { jitter_permille: 0, ..jittered.clone() };
        let solve = |spec: &Spec| best(spec, Effort::default(), &mut |_| Flow::Continue).expect("a schedule");
        let (plain, robust) = (solve(&planned), solve(&jittered));
        assert_eq!(robust.cost_ns(), plain.cost_ns());
        let late = |answer: &Answer| {
            let run = |run| jitter::cost(&answer.case.problem, &answer.schedule, 200, run).expect("runs");
            let mut costs: Vec<Nanos> = (1000..1200).map(run).collect();
            costs.sort_unstable();
            costs[189] as f64
        };
        assert!(late(&robust) < 0.97 * late(&plain), "{} {}", late(&robust), late(&plain));
    }

    #[test]
    fn searches_can_be_stopped_also_with_jitter() {
        let spec = spec(4, 12, "v", 4, 100, 1_000);
        let mut best = Best::new(&spec);
        let mut asked = 0;
        while best.search_next(Effort::default(), &mut |_| {
            asked += 1;
            Flow::Stop
        }) == Ok(true)
        {}
        assert_eq!(asked, 1, "nothing is searched behind a stop");
        assert!(best.finish().is_ok());
    }
}
