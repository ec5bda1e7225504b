//! What a plan's time hangs on: what its order takes where a rank, a stage, a job or the messages take longer or less, and
//! what it takes planned anew for that.
//!
//! An order is a promise about times that nobody knows exactly. Where one rank alone decides, a tenth more of its work is
//! a tenth more of the step, and a layer that moves away from it is time won; where a rank idles anyway, neither matters.
//! The figures are simulations of the same order, exact for changes of that size: the derivative that a longest path
//! gives holds only until another path is the longest.
//!
//! Planned anew says how much of a change a schedule can make good, such as around a slow link, or how much of a gain
//! it can use.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;

use serde_json::{Value, json};

use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::plan::planner::{self, PlanError};
use crate::problem::Schedule;
use crate::problem::op::OpKind;
use crate::problem::placement::Placement;
use crate::problem::{MAX_BYTES, MAX_NS, Problem, StageCost, Statement, Transfers};
use crate::search::{Effort, Flow, Progress};
use crate::simulate::simulate_as;
use crate::spec::Spec;

/// Most of a change, in thousandths: to ten times as much. The least is to nothing.
pub const MAX_PERMILLE: u32 = 9_000;

/// What takes longer or less, in the order in which people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// Every op.
    Everything,
    /// All ops of one kind; [`OpKind::BW`] is all that backwards take, cut or whole.
    Job(OpKind),
    /// All ops of one rank, as where it is slower than the others.
    Rank(usize),
    /// All ops of one stage, as where it has a layer more, on whichever rank they run.
    Stage(usize),
    /// All messages.
    Messages,
    /// Messages from one rank to another, both ways.
    Link(usize, usize),
    /// What ranks may hold beside what they hold throughout: more or less room, not time.
    Memory,
}

impl What {
    /// Its kind, as a word for programs and a number for order.
    const fn kind(self) -> (&'static str, u8) {
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
    /// As people are told, with the rank that holds a stage.
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

/// What one change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// What changes.
    pub what: What,
    /// The plan's order where it takes that much longer, by the problem's objective. Of memory: what it takes now.
    pub longer_ns: Nanos,
    /// The plan's order where it takes that much less.
    pub less_ns: Nanos,
    /// The same two planned anew, where they have been.
    pub anew: Option<Anew>,
}

/// A change and its opposite, planned anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anew {
    /// Where it takes longer, or memory is more; nothing where there is no such plan.
    pub longer_ns: Option<Nanos>,
    /// Where it takes less, or memory is less.
    pub less_ns: Option<Nanos>,
}

/// What a plan's time hangs on, found change by change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensitivity {
    /// How large the changes are, in thousandths.
    pub permille: u32,
    /// What the order takes as planned, by the problem's objective.
    pub cost_ns: Nanos,
    /// What the best takes, where something has been planned anew.
    pub best_ns: Option<Nanos>,
    /// What has been found: by kind of change; within one, what costs the most first.
    pub effects: Vec<Effect>,
    /// What is still to be found, the last one next.
    open: Vec<What>,
}

/// The kinds of job that `schedule` runs.
fn jobs(schedule: &Schedule) -> &'static [OpKind] {
    let is_cut = schedule.rows.iter().flatten().any(|op| op.kind() == OpKind::W);
    if is_cut { &[OpKind::F, OpKind::B, OpKind::W] } else { &[OpKind::F, OpKind::BW] }
}

/// What can change, by kind.
fn changes(problem: &Problem, schedule: &Schedule) -> Vec<What> {
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

fn is_two_way(problem: &Problem) -> bool {
    *problem.placement() == Placement::TwoWay
}

/// `ns` and so many thousandths of it, to the nearest nanosecond.
fn scaled(ns: Nanos, by_permille: i64) -> Nanos {
    let times = (1000 + by_permille).max(0) as u128;
    ((u128::from(ns) * times + 500) / 1000) as Nanos
}

/// What the order takes with that change, to the nearest nanosecond: where times are so short that rounding each would be
/// seen, it is reckoned in picoseconds.
fn cost_of(problem: &Problem, schedule: &Schedule, what: What, by: i64) -> Nanos {
    match finer(problem) {
        Some(fine) => (cost_as_is(&fine, schedule, what, by) + FINER / 2) / FINER,
        None => cost_as_is(problem, schedule, what, by),
    }
}

/// How much finer times are where the longest is shorter than [`SHORT_NS`]: a change in thousandths then needs no rounding.
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
    // The order runs, and whether it does hangs on no time.
    simulate_as(problem, schedule, &took).map_or(0, |timeline| timeline.cost_ns(problem.objective()))
}

/// `problem` with `what` changed by so many thousandths; nothing where that is no problem: too long, too large, or a rank
/// whose stages run on another one, too.
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

/// `cost` with its jobs changed by so many thousandths each.
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

impl Sensitivity {
    /// Of `schedule`, which is one of `problem`, to changes of `permille` thousandths: to be found by
    /// [`step`](Sensitivity::step). What takes less takes as much less, and nothing where that is all.
    ///
    /// # Errors
    /// A change of nothing or of more than [`MAX_PERMILLE`], or one to times that are too long.
    pub fn new(problem: &Problem, schedule: &Schedule, permille: u32) -> Result<Sensitivity, Fault> {
        // No other change takes longer than one of these.
        let largest = [What::Everything, What::Messages];
        let by = i64::from(permille);
        let accepted = match permille {
            1..=MAX_PERMILLE if largest.iter().all(|what| changed(problem, *what, by).is_some()) => None,
            1..=MAX_PERMILLE => Some("a change that leaves times no longer than a problem may have".to_string()),
            _ => Some(format!("from 1 to {MAX_PERMILLE} thousandths")),
        };
        if let Some(accepted) = accepted {
            return Err(Fault::new("change", format!("{permille} thousandths"), accepted));
        }
        let mut open = changes(problem, schedule);
        open.reverse();
        let cost_ns = cost_of(problem, schedule, What::Everything, 0);
        Ok(Sensitivity { permille, cost_ns, best_ns: None, effects: Vec::new(), open })
    }

    /// Finds what one more change does, by two simulations of the order; says whether there was one.
    pub fn step(&mut self, problem: &Problem, schedule: &Schedule) -> bool {
        let Some(what) = self.open.pop() else { return false };
        let cost = |by: i64| cost_of(problem, schedule, what, by);
        let by = i64::from(self.permille);
        self.effects.push(Effect { what, longer_ns: cost(by), less_ns: cost(-by), anew: None });
        if self.open.is_empty() {
            self.effects
                .sort_by_key(|effect| (effect.what.kind().1, Reverse(effect.longer_ns), effect.less_ns, effect.what));
        }
        true
    }

    /// Changes that are still to be looked at.
    pub fn left(&self) -> usize {
        self.open.len()
    }

    /// What has been found, by kind.
    pub fn kinds(&self) -> impl Iterator<Item = &[Effect]> {
        self.effects.chunk_by(|one, next| one.what.kind() == next.what.kind())
    }

    /// The positions of `effects`, those first that matter most: memory, of which the order says nothing, then what costs
    /// the most.
    pub fn most_first(&self) -> Vec<usize> {
        let mut at: Vec<usize> = (0..self.effects.len()).collect();
        at.sort_by_key(|at| {
            let Effect { what, longer_ns, .. } = self.effects[*at];
            Reverse(if what == What::Memory { Nanos::MAX } else { longer_ns })
        });
        at
    }

    /// Plans the change of `effects[at]` anew, and its opposite: with the best of all schedules and the search on the same
    /// placement, or with the plan's own order where that is shorter. `best_ns` is that of the problem as it is.
    ///
    /// # Errors
    /// [`PlanError`] where the problem as it is has no schedule.
    pub fn plan_anew(
        &mut self,
        (problem, schedule): (&Problem, &Schedule),
        at: usize,
        effort: Effort,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<(), PlanError> {
        let mut best = |problem: &Problem| {
            let spec = Spec::typed(problem.statement());
            planner::best(&spec, effort, observer).map(|answer| answer.cost_ns())
        };
        if self.best_ns.is_none() {
            self.best_ns = Some(best(problem)?.min(self.cost_ns));
        }
        let Some(effect) = self.effects.get_mut(at) else { return Ok(()) };
        let mut anew = |by: i64, kept_ns: Nanos| {
            let problem = changed(problem, effect.what, by)?;
            // The plan's own order is one for the changed problem, too, but where there is less room than it takes.
            let fits = (0..problem.ranks()).all(|rank| {
                let peak = crate::simulate::timeline::schedule_peak_bytes(&problem, schedule, rank);
                problem.limit_bytes(rank).is_none_or(|limit| peak <= limit)
            });
            let kept = fits.then_some(kept_ns);
            match best(&problem) {
                Ok(found) => Some(kept.map_or(found, |kept| kept.min(found))),
                Err(_) => kept,
            }
        };
        let by = i64::from(self.permille);
        let (longer_ns, less_ns) = (anew(by, effect.longer_ns), anew(-by, effect.less_ns));
        effect.anew = Some(Anew { longer_ns, less_ns });
        Ok(())
    }

    /// For programs: `pipeplan sensitivity --json`.
    pub fn to_value(&self) -> Value {
        let effect = |effect: &Effect| {
            let mut value = json!({ "what": effect.what.kind().0 });
            match effect.what {
                What::Job(job) => value["job"] = json!(job.text()),
                What::Rank(rank) => value["rank"] = json!(rank),
                What::Stage(stage) => value["stage"] = json!(stage),
                What::Link(from, to) => value["ranks"] = json!([from, to]),
                What::Everything | What::Messages | What::Memory => {}
            }
            value["longer_ns"] = json!(effect.longer_ns);
            value["less_ns"] = json!(effect.less_ns);
            if let Some(anew) = effect.anew {
                value["anew"] = json!({ "longer_ns": anew.longer_ns, "less_ns": anew.less_ns });
            }
            value
        };
        let mut value = json!({
            "change_permille": self.permille,
            "cost_ns": self.cost_ns,
            "complete": self.open.is_empty(),
            "effects": self.effects.iter().map(effect).collect::<Vec<_>>(),
        });
        if let Some(best_ns) = self.best_ns {
            value["best_ns"] = json!(best_ns);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{find, published};
    use crate::simulate::simulate;

    fn problem(value: &Value) -> Problem {
        let statement = Statement::read(value).expect("a sound statement");
        statement.problem(statement.placements()[0].clone()).expect("its own placement")
    }

    fn all(problem: &Problem, schedule: &Schedule, permille: u32) -> Sensitivity {
        let mut all = Sensitivity::new(problem, schedule, permille).expect("a change");
        while all.step(problem, schedule) {}
        assert_eq!(all.left(), 0);
        all
    }

    /// Ops of 5 ns that take a tenth longer take half a nanosecond more each, and all of them together a tenth.
    #[test]
    fn short_times_change_by_as_much_as_long_ones() {
        let of = |times: u64| {
            let stage =
                json!({ "forward_ns": 5 * times, "backward_input_ns": 7 * times, "backward_weight_ns": 3 * times });
            let problem = problem(&json!({ "ranks": 4, "microbatches": 8, "stages": stage }));
            let schedule = find("zb-h1").expect("published").build(&problem).expect("exists");
            let found = all(&problem, &schedule, 100);
            found.effects.iter().map(|effect| (effect.longer_ns, effect.less_ns)).collect::<Vec<_>>()
        };
        let (short, long) = (of(1), of(1_000_000));
        assert_eq!(short.len(), long.len());
        for (short, long) in short.iter().zip(&long) {
            let rounded = |ns: u64| (ns + 500_000) / 1_000_000;
            assert_eq!(*short, (rounded(long.0), rounded(long.1)));
        }
    }

    /// 1F1B on two ranks with two microbatches: F takes 10, BW 20 (B 12, W 8). Both ranks' longest path is
    /// F0 on 0, F0 BW0 F1 BW1 on 1, BW1 on 0: 10 + 60 + 20 = 90.
    #[test]
    fn two_ranks_by_hand() {
        let problem = problem(&json!({
            "ranks": 2, "microbatches": 2, "placement": "linear",
            "stages": { "forward_ns": 100, "backward_input_ns": 120, "backward_weight_ns": 80 },
        }));
        let schedule = find("1f1b").expect("published").build(&problem).expect("it exists");
        let all = all(&problem, &schedule, 100);
        assert_eq!(all.cost_ns, 900);
        let found: Vec<_> =
            all.effects.iter().map(|effect| (effect.what, effect.longer_ns, effect.less_ns)).collect();
        let expected = [
            (What::Everything, 990, 810),
            // Of the path 600 are backwards, 300 forwards.
            (What::Job(OpKind::BW), 960, 840),
            (What::Job(OpKind::F), 930, 870),
            // 600 are rank 1's, 300 rank 0's.
            (What::Rank(1), 960, 840),
            (What::Rank(0), 930, 870),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            all.to_value()["effects"][4],
            json!({ "what": "rank", "rank": 0, "longer_ns": 930, "less_ns": 870 })
        );
    }

    const PLACES: [(&str, usize); 5] = [("linear", 1), ("v", 2), ("looped", 3), ("wave", 4), ("two-way", 1)];

    /// Every published schedule on each placement, with and without hops, and stages that differ.
    fn each(mut check: impl FnMut(&str, &Problem, &Schedule)) {
        for (placement, chunks) in PLACES {
            for hop in [0, 700] {
                let stage = |at: usize| {
                    let at = at as u64;
                    json!({
                        "forward_ns": 10_000 + 1_000 * (at % 3), "backward_input_ns": 9_000 + 2_000 * (at % 2),
                        "backward_weight_ns": 8_000, "backward_ns": 16_000 + 1_000 * (at % 2), "forward_bytes": 6,
                        "backward_input_bytes": -4, "backward_weight_bytes": -2,
                    })
                };
                let problem = problem(&json!({
                    "ranks": 4, "chunks": chunks, "microbatches": 8, "placement": placement, "transfer_ns": hop,
                    "stages": (0..4 * chunks).map(stage).collect::<Vec<_>>(), "limit_bytes": 1000,
                }));
                for published in published() {
                    if let Ok(schedule) = published.build(&problem) {
                        check(&format!("{} {placement} {hop}", published.name), &problem, &schedule);
                    }
                }
            }
        }
    }

    /// The makespan is the longest of many sums. So it grows with each of them, by no more than all of them together, and
    /// all together do no more than each apart adds up to.
    #[test]
    fn effects_are_those_of_a_longest_path() {
        let mut seen = 0;
        each(|name, problem, schedule| {
            let all = all(problem, schedule, 100);
            let base = all.cost_ns;
            assert_eq!(base, simulate(problem, schedule).expect("runs").cost_ns(problem.objective()), "{name}");
            let everything = all.effects[0];
            let hops = problem.hop(0, 1) > 0;
            if !hops {
                assert_eq!(
                    (everything.longer_ns, everything.less_ns),
                    (scaled(base, 100), scaled(base, -100)),
                    "{name}"
                );
            }
            for effect in &all.effects {
                let is_hop = matches!(effect.what, What::Messages | What::Link(..));
                assert!(effect.less_ns <= base && base <= effect.longer_ns, "{name} {}", effect.what);
                assert!(is_hop || effect.longer_ns <= everything.longer_ns, "{name} {}", effect.what);
                assert!(is_hop || everything.less_ns <= effect.less_ns, "{name} {}", effect.what);
                assert!(hops || !is_hop, "{name} {}", effect.what);
            }
            for kind in ["job", "rank", "stage"] {
                let of_kind = all.effects.iter().filter(|effect| effect.what.kind().0 == kind);
                let sum: Nanos = of_kind.clone().map(|effect| effect.longer_ns - base).sum();
                // Without hops only: with them the longest path may be another where all ops are longer. Each op of the
                // path may be rounded by one nanosecond.
                let is_there = of_kind.count() > 0;
                let rounded = 200;
                assert!(hops || !is_there || sum + rounded >= everything.longer_ns - base, "{name} {kind}: {sum}");
            }
            seen += 1;
        });
        assert!(seen > 40, "{seen} schedules");
    }

    /// A rank that is slower is a problem with longer stages, as a problem file would say it.
    #[test]
    fn effects_are_what_a_changed_problem_takes() {
        each(|name, problem, schedule| {
            for effect in all(problem, schedule, 250).effects {
                for (by, found) in [(250, effect.longer_ns), (-250, effect.less_ns)] {
                    let Some(changed) = changed(problem, effect.what, by) else {
                        assert!(is_two_way(problem) && matches!(effect.what, What::Rank(_)), "{name}");
                        continue;
                    };
                    let written = Statement::read(&changed.statement().to_value()).expect("a problem file");
                    let read = written.problem(problem.placement().clone()).expect("its placement");
                    let timeline = simulate(&read, schedule).expect("runs");
                    // A file rounds each op and hop of the path to a nanosecond, and these are of tens of thousands.
                    let (of_file, rounded) = (timeline.cost_ns(read.objective()), schedule.op_count() as u64);
                    assert!(of_file.abs_diff(found) <= rounded, "{name} {} {by}: {of_file} {found}", effect.what);
                }
            }
        });
    }

    /// Planned anew a change costs no more than in the old order, and more memory nothing.
    #[test]
    fn planning_anew_makes_nothing_worse() {
        let problem = problem(&json!({
            "ranks": 3, "microbatches": 6, "placement": "linear", "transfer_ns": 5, "limit_bytes": 4,
            "stages": { "forward_ns": 50, "backward_input_ns": 55, "backward_weight_ns": 45, "forward_bytes": 2,
                "backward_input_bytes": -1, "backward_weight_bytes": -1 },
        }));
        let spec = Spec::typed(problem.statement());
        let schedule = planner::plan(&spec, planner::BEST).expect("a plan").schedule;
        let mut all = all(&problem, &schedule, 500);
        for at in 0..all.effects.len() {
            all.plan_anew((&problem, &schedule), at, Effort::default(), &mut |_| Flow::Continue).expect("a plan");
        }
        let best = all.best_ns.expect("planned");
        assert!(best <= all.cost_ns);
        for effect in &all.effects {
            let anew = effect.anew.expect("planned");
            let longer = anew.longer_ns.expect("a plan");
            if effect.what == What::Memory {
                // Two microbatches in the room of four bytes; half of the room is one, and the pipeline runs dry.
                assert!(longer < best && anew.less_ns.is_some_and(|less| less > best), "{anew:?} {best}");
                continue;
            }
            assert!(longer <= effect.longer_ns && anew.less_ns.expect("a plan") <= effect.less_ns, "{}", effect.what);
        }
    }

    #[test]
    fn what_is_no_change_is_refused() {
        let long = |ns: u64| {
            let stage = json!({ "forward_ns": ns, "backward_input_ns": ns, "backward_weight_ns": 0 });
            problem(&json!({ "ranks": 2, "microbatches": 4, "placement": "linear", "stages": stage }))
        };
        let of = |problem: &Problem, permille| {
            let schedule = find("gpipe").expect("published").build(problem).expect("it exists");
            Sensitivity::new(problem, &schedule, permille).map(|all| all.cost_ns).map_err(|fault| fault.to_string())
        };
        assert!(of(&long(100), 0).unwrap_err().contains("from 1 to 9000 thousandths"));
        assert!(of(&long(100), 9001).is_err());
        assert!(of(&long(100), 9000).is_ok());
        assert!(of(&long(MAX_NS), 1).unwrap_err().contains("no longer than a problem may have"));
    }
}
