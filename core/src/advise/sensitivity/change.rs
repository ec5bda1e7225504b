//! One change of a problem, by some thousandths: of an op kind, a rank, a stage, a link or the memory.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::base::units::Nanos;
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;
use crate::problem::{MAX_BYTES, MAX_NS, Problem, Schedule, StageCost, Statement, Transfers};
use crate::simulate::simulate_as;

/// What a change affects, in the order in which people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// Every op.
    Everything,
    /// All ops of one kind; [`OpKind::BW`] is all backwards, split or fused.
    Job(OpKind),
    /// All ops of one rank, as for a slower device.
    Rank(usize),
    /// All ops of one stage, as for one more layer, on whichever rank they run.
    Stage(usize),
    /// All messages.
    Messages,
    /// P2P transfers between two ranks, in both directions.
    Link(usize, usize),
    /// The memory of ranks above the static bytes: more or less room, not time.
    Memory,
}

impl What {
    /// Its kind: a word for programs and a number for the order.
    pub(super) const fn kind(self) -> (&'static str, u8) {
        match self {
            What::Everything => ("everything", 0),
            What::Job(_) => ("job", 1),
            What::Rank(_) => ("rank", 2),
            What::Stage(_) => ("stage", 3),
            What::Messages => ("messages", 4),
            What::Link(..) => ("link", 5),
            What::Memory => ("memory", 6),
        }
    }
}

impl What {
    /// The text for people, with the rank that holds a stage.
    pub fn name_on(self, problem: &Problem) -> String {
        match self {
            What::Stage(stage) => format!("{self} (rank {})", problem.rank_of(stage, 0)),
            _ => format!("{self}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Everything => f.write_str("every op"),
            What::Job(kind) => write!(f, "all {kind}"),
            What::Rank(rank) => write!(f, "rank {rank}"),
            What::Stage(stage) => write!(f, "stage {stage}"),
            What::Messages => f.write_str("messages"),
            What::Link(from, to) => write!(f, "messages {from}-{to}"),
            What::Memory => f.write_str("memory"),
        }
    }
}

/// The kinds of job that `schedule` runs.
fn jobs(schedule: &Schedule) -> &'static [OpKind] {
    let is_cut = schedule.rows.iter().flatten().any(|op| op.kind() == OpKind::W);
    if is_cut { &[OpKind::F, OpKind::B, OpKind::W] } else { &[OpKind::F, OpKind::BW] }
}

/// What can change, by kind.
pub(super) fn changes(problem: &Problem, schedule: &Schedule) -> Vec<What> {
    let (ranks, stages) = (problem.ranks(), problem.stage_count());
    let mut changes = Vec::from([What::Everything]);
    changes.extend(jobs(schedule).iter().copied().map(What::Job));
    changes.extend((0..ranks).map(What::Rank));
    if problem.chunks() > 1 || is_two_way(problem) {
        changes.extend((0..stages).map(What::Stage));
    }
    let mut links: Vec<What> = Vec::new();
    for microbatch in [0, problem.microbatches() - 1] {
        for stage in 1..stages {
            let ends = [stage - 1, stage].map(|stage| problem.rank_of(stage, microbatch));
            let (from, to) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            if problem.hop(from, to).max(problem.hop(to, from)) > 0 {
                links.push(What::Link(from, to));
            }
        }
    }
    links.sort_unstable();
    links.dedup();
    if !links.is_empty() {
        changes.push(What::Messages);
    }
    if links.len() > 1 {
        changes.extend(links);
    }
    if (0..ranks).any(|rank| problem.limit_bytes(rank).is_some()) {
        changes.push(What::Memory);
    }
    changes
}

pub(super) fn is_two_way(problem: &Problem) -> bool {
    *problem.placement() == Placement::Bidirectional
}

/// `ns` and so many thousandths of it, to the nearest nanosecond.
pub(super) fn scaled(ns: Nanos, by_permille: i64) -> Nanos {
    let times = (1000 + by_permille).max(0) as u128;
    ((u128::from(ns) * times + 500) / 1000) as Nanos
}

/// The time of the order with that change, to the nearest nanosecond. Short times are computed in picoseconds, since
/// rounding each would show.
pub(super) fn cost_of(problem: &Problem, schedule: &Schedule, what: What, by: i64) -> Nanos {
    match finer(problem) {
        Some(fine) => (cost_as_is(&fine, schedule, what, by) + FINER / 2) / FINER,
        None => cost_as_is(problem, schedule, what, by),
    }
}

/// The factor of finer times where the longest is shorter than [`SHORT_NS`]: a change in thousandths then needs no
/// rounding.
const FINER: Nanos = 1000;
const SHORT_NS: Nanos = 1_000_000;

/// `problem` with times in picoseconds, where they are short.
fn finer(problem: &Problem) -> Option<Problem> {
    let mut statement = problem.statement();
    let mut longest = 0;
    let mut fine = |ns: &mut Nanos| {
        longest = longest.max(*ns);
        *ns = ns.saturating_mul(FINER);
    };
    for cost in &mut statement.stages {
        [&mut cost.forward_ns, &mut cost.backward_input_ns, &mut cost.backward_weight_ns]
            .into_iter()
            .for_each(&mut fine);
        cost.backward_ns.iter_mut().for_each(&mut fine);
        fine(&mut cost.offload_ns);
    }
    match &mut statement.transfers {
        Transfers::Uniform(hop) => fine(hop),
        Transfers::Links(links) => links.iter_mut().flatten().for_each(&mut fine),
    }
    (longest < SHORT_NS).then(|| statement.problem(problem.placement().clone()).ok())?
}

fn cost_as_is(problem: &Problem, schedule: &Schedule, what: What, by: i64) -> Nanos {
    let of_ranks;
    let (problem, slow) = match what {
        What::Rank(rank) => (problem, Some(rank)),
        What::Memory => (problem, None),
        _ => {
            of_ranks = changed(problem, what, by);
            (of_ranks.as_ref().unwrap_or(problem), None)
        }
    };
    let took = |rank: usize, _: usize, op| match slow {
        Some(slow) if slow == rank => scaled(problem.duration(op), by),
        _ => problem.duration(op),
    };
    // The order runs, and that does not depend on times.
    simulate_as(problem, schedule, &took).map_or(0, |timeline| timeline.cost_ns(problem.objective()))
}

/// `problem` with `what` changed by a number of thousandths. None where that is not a problem: times too long, bytes
/// too large, or a rank whose stages also run on another rank.
pub fn changed(problem: &Problem, what: What, by: i64) -> Option<Problem> {
    let mut statement = problem.statement();
    match what {
        What::Rank(_) if is_two_way(problem) => return None,
        What::Messages | What::Link(..) => {
            let (ranks, hop) = (problem.ranks(), |from, to| problem.hop(from, to));
            let of_link = |from: usize, to: usize| match what {
                What::Link(a, b) => (from, to) == (a, b) || (to, from) == (a, b),
                _ => true,
            };
            let of = |from, to| if of_link(from, to) { scaled(hop(from, to), by) } else { hop(from, to) };
            statement.transfers = match &statement.transfers {
                Transfers::Uniform(hop) if what == What::Messages => Transfers::Uniform(scaled(*hop, by)),
                _ => Transfers::Links((0..ranks).map(|from| (0..ranks).map(|to| of(from, to)).collect()).collect()),
            };
        }
        What::Memory => {
            for (rank, limit) in statement.limit_bytes.iter_mut().enumerate() {
                let fixed = problem.static_bytes(rank);
                let room = |limit: u64| fixed.saturating_add(scaled(limit.saturating_sub(fixed), by)).min(MAX_BYTES);
                *limit = limit.map(room);
            }
        }
        _ => {
            for (stage, cost) in statement.stages.iter_mut().enumerate() {
                let applies = |kind| match what {
                    What::Everything => true,
                    What::Job(job) => job == kind || job == OpKind::BW && kind != OpKind::F,
                    What::Rank(rank) => problem.rank_of(stage, 0) == rank,
                    What::Stage(of) => of == stage,
                    _ => false,
                };
                *cost = longer(*cost, |kind| if applies(kind) { by } else { 0 });
            }
        }
    }
    sound(&statement).then(|| statement.problem(problem.placement().clone()).ok())?
}

/// `cost` with each job changed by a number of thousandths.
fn longer(cost: StageCost, by: impl Fn(OpKind) -> i64) -> StageCost {
    let forward_ns = scaled(cost.forward_ns, by(OpKind::F));
    let backward_input_ns = scaled(cost.backward_input_ns, by(OpKind::B));
    let backward_weight_ns = scaled(cost.backward_weight_ns, by(OpKind::W));
    let both = backward_input_ns.saturating_add(backward_weight_ns);
    let backward_ns = cost.backward_ns.map(|whole| {
        // What the two hide of each other is a share of them.
        let was = cost.backward_input_ns.saturating_add(cost.backward_weight_ns).max(1);
        (u128::from(whole) * u128::from(both) / u128::from(was)) as Nanos
    });
    StageCost {
        forward_ns,
        backward_input_ns,
        backward_weight_ns,
        backward_ns: backward_ns.filter(|whole| *whole < both),
        ..cost
    }
    .bounded()
}

/// Whether times of a statement that came from a problem are still such as one may hold.
fn sound(statement: &Statement) -> bool {
    let short = |ns: &Nanos| *ns <= MAX_NS;
    let stages = statement
        .stages
        .iter()
        .all(|cost| [cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns].iter().all(short));
    let hops = match &statement.transfers {
        Transfers::Uniform(hop) => short(hop),
        Transfers::Links(links) => links.iter().flatten().all(short),
    };
    let mut faults = Vec::new();
    statement.find_faults("", &mut faults);
    stages && hops && faults.is_empty()
}
