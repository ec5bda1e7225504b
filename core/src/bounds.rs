//! How good a schedule can be: a value that no valid schedule goes under, with the reason why.
//!
//! Nothing here looks at a schedule or knows how one is made: a bound follows from the [`Problem`] alone.
//!
//! # Head, load, tail
//! Fix a *window*: for [`Objective::Makespan`] from the first start to the last end over all ranks; for
//! [`Objective::LongestSpan`] from the first start to the last end on one rank. The window opens no later
//! than any F of its first stage, so an op of a later stage starts no sooner than its *head*: the shortest
//! way to it through the stages between. In the same manner the window closes no sooner than its *tail*
//! after an op ends. A rank runs one op at a time, so for any set of its ops that lie in the window, the
//! window lasts at least the least head + the sum of the durations + the least tail (Carlier, "The
//! one-machine sequencing problem", EJOR 11, 1982).
//!
//! Split B and W are never slower than a fused BW, which can be replaced by its two halves in place; so the
//! bounds count on B alone wherever [`Backward::Split`] allows it, and hold for any mix.

use alloc::vec::Vec;
use core::fmt;

use crate::placement::Placement;
use crate::problem::{Backward, Objective, Problem};
use crate::units::Nanos;

/// A value that no valid schedule goes under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Every valid schedule costs at least this.
    pub value_ns: Nanos,
    /// What the value bounds.
    pub objective: Objective,
    /// Why.
    pub binding: Binding,
}

/// What keeps a schedule from being faster. Its text is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All the work of one rank.
    Rank {
        /// The rank.
        rank: usize,
        /// Before its first op can start.
        head_ns: Nanos,
        /// Its work that counts.
        load_ns: Nanos,
        /// After its last op that counts.
        tail_ns: Nanos,
        /// Whether the load leaves out W: the rank's last B has to travel back to stage 0.
        without_w: bool,
    },
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Binding::Rank { rank, head_ns, load_ns, tail_ns, without_w } => {
                let work = if *without_w { "forward and input-gradient work" } else { "work" };
                write!(f, "rank {rank} has {load_ns} ns of {work}")?;
                if *head_ns > 0 {
                    write!(f, ", cannot start before {head_ns} ns")?;
                }
                if *tail_ns > 0 {
                    write!(f, ", and {tail_ns} ns must follow its last backward")?;
                }
                f.write_str(".")
            }
        }
    }
}

/// Microbatches that travel the same way: all of them, or with [`Placement::TwoWay`] one half.
struct Lane {
    microbatches: u64,
    /// By stage.
    ranks: Vec<usize>,
    /// By stage: from the start of F of stage 0 to the soonest start of F of this stage.
    head: Vec<Nanos>,
    /// By stage: from the end of B of this stage to the soonest end of B of stage 0.
    back: Vec<Nanos>,
}

/// Durations of a stage as the bounds may count on them.
#[derive(Clone, Copy)]
struct Times {
    f: Nanos,
    b: Nanos,
    w: Nanos,
}

fn times(problem: &Problem) -> Vec<Times> {
    let of = |cost: &crate::problem::StageCost| match problem.backward() {
        Backward::Split => Times { f: cost.forward_ns, b: cost.backward_input_ns, w: cost.backward_weight_ns },
        Backward::Fused => Times { f: cost.forward_ns, b: cost.backward_input_ns + cost.backward_weight_ns, w: 0 },
    };
    problem.costs().iter().map(of).collect()
}

fn lanes(problem: &Problem, times: &[Times]) -> Vec<Lane> {
    let microbatches = problem.microbatches();
    let firsts: &[usize] = if *problem.placement() == Placement::TwoWay { &[0, microbatches / 2] } else { &[0] };
    let lane = |first: &usize| {
        let ranks: Vec<usize> = (0..times.len()).map(|stage| problem.rank_of(stage, *first)).collect();
        let (mut head, mut back) = (Vec::with_capacity(times.len()), Vec::with_capacity(times.len()));
        let (mut head_ns, mut back_ns) = (0, 0);
        for stage in 0..times.len() {
            if stage > 0 {
                head_ns += times[stage - 1].f + problem.hop(ranks[stage - 1], ranks[stage]);
                back_ns += times[stage - 1].b + problem.hop(ranks[stage], ranks[stage - 1]);
            }
            head.push(head_ns);
            back.push(back_ns);
        }
        Lane { microbatches: (microbatches / firsts.len()) as u64, ranks, head, back }
    };
    firsts.iter().map(lane).collect()
}

/// A lower bound on what `problem` asks to be small.
///
/// No valid schedule of the problem, under any order of F, B and W, costs less.
pub fn lower_bound(problem: &Problem) -> Bound {
    // Bounds are proved for ops that run one after the other.
    let problem = &problem.without_pairs();
    let times = times(problem);
    let lanes = lanes(problem, &times);
    let mut best: Option<(Nanos, Binding)> = None;
    let mut take = |value: Nanos, binding: Binding| {
        if best.as_ref().is_none_or(|(known, _)| value > *known) {
            best = Some((value, binding));
        }
    };
    // The window of the makespan, or that of the rank which holds the first stage of each lane. In the
    // latter, work of another rank counts only where it lies between two ops of the window's rank.
    let windows: Vec<Option<usize>> = match problem.objective() {
        Objective::Makespan => alloc::vec![None],
        Objective::LongestSpan => (0..problem.ranks()).map(Some).collect(),
    };
    for window in windows {
        let roots: Vec<usize> = lanes
            .iter()
            .map(|lane| match window {
                None => 0,
                Some(rank) => lane.ranks.iter().position(|held| *held == rank).unwrap_or(0),
            })
            .collect();
        // By rank: least head, work, least tail, work without W, and whether it runs anything in the window.
        let mut found = alloc::vec![(Nanos::MAX, 0 as Nanos, Nanos::MAX, 0 as Nanos); problem.ranks()];
        for (lane, &root) in lanes.iter().zip(&roots) {
            for stage in root..times.len() {
                let Times { f, b, w } = times[stage];
                let tail = lane.back[stage] - lane.back[root] + times[root].w;
                let entry = &mut found[lane.ranks[stage]];
                entry.0 = entry.0.min(lane.head[stage] - lane.head[root]);
                entry.1 += (f + b + w) * lane.microbatches;
                entry.2 = entry.2.min(tail);
                entry.3 += (f + b) * lane.microbatches;
            }
        }
        for (rank, &(head_ns, load_ns, tail_ns, without_w_ns)) in found.iter().enumerate() {
            if head_ns == Nanos::MAX {
                continue;
            }
            take(
                head_ns + without_w_ns + tail_ns,
                Binding::Rank { rank, head_ns, load_ns: without_w_ns, tail_ns, without_w: true },
            );
            if window.is_none_or(|own| own == rank) {
                take(head_ns + load_ns, Binding::Rank { rank, head_ns, load_ns, tail_ns: 0, without_w: false });
            }
        }
    }
    let (value_ns, binding) =
        best.unwrap_or((0, Binding::Rank { rank: 0, head_ns: 0, load_ns: 0, tail_ns: 0, without_w: false }));
    Bound { value_ns, objective: problem.objective(), binding }
}
