//! How good a schedule can be: a value that no valid schedule goes under, with the reason why.
//!
//! - In: a problem.
//! - Out: a time that no valid schedule goes under, with its reason; the least memory.
//! - Knows: problems. Nothing of schedules.
//!
//! Nothing here looks at a schedule or knows how one is made: a bound follows from the [`Problem`] alone, and
//! holds for any order of F, B and W, fused or apart, and for ops that start later than they could.
//!
//! # What is proved
//! **Order of microbatches.** Microbatches that have the same direction are alike. In any valid schedule give the n-th
//! F, B and W of each stage to microbatch n: the n-th F of a stage still starts no sooner than n F of the stage before
//! have ended, and so for B and W, and the rank holds the same bytes at any time. So it is enough to bound schedules
//! that keep the order. A fused BW may be replaced in place by its halves, which hold no more; so with
//! [`Backward::Split`](crate::problem::Backward::Split) it is enough to bound schedules of F, B and W. Where a stage
//! says that its BW holds less than its halves, the halves are given what BW holds.
//!
//! **Windows.** The makespan is a window from the first start to the last end over all ranks. The longest span
//! S is one window for each rank, each at most S long. The window of rank r opens with the first F of its
//! first stage. It opens at least as long after that of stage 0's rank as the first microbatch needs to get
//! there: call that H. Every B leads to stage 0, whose rank's window closes S after it opened; so the window
//! of rank r closes at least H later than that of stage 0's rank. Tails on rank r are therefore the way back
//! to the end of stage 0's last work, plus H.
//!
//! **Head, load, tail** (Carlier, "The one-machine sequencing problem", EJOR 11, 1982): for any set of ops of
//! a rank, the window lasts at least the least head + all durations + the least tail. Heads and tails are the
//! longest paths of the module `longest_paths`, memory's precedences among them. For a linear pipeline of equal stages
//! this contains `(M + P − 1)(F + B) + 2 (P − 1) c + W`.
//!
//! **Ahead** (module `precedence`): how far F of a stage may run ahead of B of the same or a later stage of its rank before
//! the rank is full of microbatches none of which can go on, and what the rank must do between that B and that F: the
//! work that makes room, and F that did not fit before. These are precedences of the ways above. With equal stages that
//! W frees, and room for both chunks of n microbatches, the last rank of a V takes
//! `(P − 1)(F + B + 2c) + 2 (F + B + W)` for every n.
//!
//! **Passing** (module `crossing`): the B of a microbatch that frees memory must pass the F of the next ones between
//! two stages; the ways from one such meeting to the next do not divide evenly. With equal stages, hops of nothing,
//! P ranks and room for two microbatches that makes, for each, half of `P (F + B) + W` rounded up to whole `F + B`,
//! give or take W.
//!
//! **Fill and drain** (module `memory_idle`): idle time that a full memory forces before the first backwards return,
//! and after the last forwards. It closes the gap of V placements at 1F1B's memory: with equal stages, hops c
//! and room for 2P chunks the last rank idles `(P − 1)(B − F + 2c)` before and
//! `2 (P − 1)(F − W + 2c) − W` after.
//!
//! **Area** (Little's law; module `memory_idle`): a microbatch holds a stage's bytes at least from F through the shortest
//! round trip to B, and what B leaves until W has run. The sum over all microbatches fits under the limit during
//! the window, less what cannot be held yet, or any more, near its ends.
//!
//! **Copies to the host** (module `host_link`): all of the above is taken for copies that take no time, so that what may go takes
//! room during F and from the start of the backward on alone. And there is an area with the time of copies: what stays holds its bytes through the round trip, what is copied holds them during its ops and its two
//! copies, and the link copies for no longer than the window lasts.
//!
//! **Microbatches that differ** (module `differing`): none of this but heads, loads and tails, of each microbatch for itself.
//!
//! **Documents that may form any microbatches** (module `packing`): the work of all replicas on average, the replica with the
//! largest document, and all microbatches without documents.

mod crossing;
mod differing;
mod host_link;
mod least_memory;
mod longest_paths;
mod memory_idle;
mod one_machine;
mod packing;
mod precedence;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

pub use least_memory::{Infeasible, LeastMemory, feasible, least_memory};
pub use packing::packing_bound;

use crate::base::units::{Bytes, Nanos};
use crate::problem::{Objective, Problem};
use longest_paths::PathLengths;
use one_machine::Window;
use precedence::{B, F, Net};

/// A lower bound on the cost of every valid schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Every valid schedule costs at least this.
    pub value_ns: Nanos,
    /// What the value bounds.
    pub objective: Objective,
    /// Why.
    pub binding: Binding,
}

/// The reason of the bound. Its text is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All the work of one rank.
    Work {
        /// The rank.
        rank: usize,
        /// Its work.
        load_ns: Nanos,
    },
    /// A rank's work, with the head before it and the tail after it.
    Rank {
        /// The rank.
        rank: usize,
        /// Before the ops that bind can start.
        head_ns: Nanos,
        /// Their work.
        load_ns: Nanos,
        /// After the last of them has ended.
        tail_ns: Nanos,
    },
    /// A rank's work, and its idle time because its memory is full.
    Memory {
        /// The rank.
        rank: usize,
        /// Its work.
        load_ns: Nanos,
        /// Idle before the first backwards return.
        fill_ns: Nanos,
        /// Idle after the last forwards.
        drain_ns: Nanos,
    },
    /// Microbatches that pass each other: the paths between two such exchanges do not divide evenly.
    Cross {
        /// The rank of the first stage.
        rank: usize,
        /// How many microbatches memory holds there at once.
        at_once: usize,
    },
    /// Bytes held over time.
    Area {
        /// The rank.
        rank: usize,
        /// The shortest time for which a microbatch occupies the rank's memory, first to last.
        round_trip_ns: Nanos,
        /// Bytes that the rank's ops may hold.
        room_bytes: Bytes,
    },
    /// Bytes held over time, as far as the link to the host cannot take them away.
    HostLink {
        /// The rank.
        rank: usize,
        /// How long its link copies at the least.
        copies_ns: Nanos,
        /// Bytes that the rank's ops may hold.
        room_bytes: Bytes,
    },
    /// One of the others, for ops that are shorter by the most that pairs could hide.
    Hidden(Box<Binding>),
}

impl Binding {
    /// The same in units of time that are `finer` times as long.
    fn coarser(self, finer: Nanos) -> Binding {
        let coarse = |ns: Nanos| ns.div_ceil(finer);
        match self {
            Binding::Work { rank, load_ns } => Binding::Work { rank, load_ns: coarse(load_ns) },
            Binding::Rank { rank, head_ns, load_ns, tail_ns } => {
                let [head_ns, load_ns, tail_ns] = [head_ns, load_ns, tail_ns].map(coarse);
                Binding::Rank { rank, head_ns, load_ns, tail_ns }
            }
            Binding::Memory { rank, load_ns, fill_ns, drain_ns } => {
                let [load_ns, fill_ns, drain_ns] = [load_ns, fill_ns, drain_ns].map(coarse);
                Binding::Memory { rank, load_ns, fill_ns, drain_ns }
            }
            Binding::Area { rank, round_trip_ns, room_bytes } => {
                Binding::Area { rank, round_trip_ns: coarse(round_trip_ns), room_bytes }
            }
            Binding::HostLink { rank, copies_ns, room_bytes } => {
                Binding::HostLink { rank, copies_ns: coarse(copies_ns), room_bytes }
            }
            Binding::Cross { .. } | Binding::Hidden(_) => self,
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Binding::Work { rank, load_ns } => write!(f, "rank {rank} has {load_ns} ns of work"),
            Binding::Rank { rank, head_ns, load_ns, tail_ns } => {
                write!(f, "rank {rank} has {load_ns} ns of work")?;
                if *head_ns > 0 {
                    write!(f, " that cannot start before {head_ns} ns")?;
                }
                if *tail_ns > 0 {
                    let and = if *head_ns > 0 { " and" } else { "" };
                    write!(f, "{and} that {tail_ns} ns must follow")?;
                }
                Ok(())
            }
            Binding::Memory { rank, load_ns, fill_ns, drain_ns } => {
                write!(f, "rank {rank} has {load_ns} ns of work and, its memory full, must idle")?;
                match (*fill_ns, *drain_ns) {
                    (fill, 0) => write!(f, " {fill} ns before backwards return"),
                    (0, drain) => write!(f, " {drain} ns after its last forwards"),
                    (fill, drain) => {
                        write!(f, " {fill} ns before backwards return and {drain} ns after its last forwards")
                    }
                }
            }
            Binding::Cross { rank, at_once } => write!(
                f,
                "rank {rank} has memory for {at_once} microbatches at once, and each backward that frees some must \
                 pass the forwards of the next between two stages"
            ),
            Binding::Area { rank, round_trip_ns, room_bytes } => write!(
                f,
                "each microbatch occupies the memory of rank {rank} for {round_trip_ns} ns or longer, \
                 and {room_bytes} bytes hold only so many at once"
            ),
            Binding::HostLink { rank, copies_ns, room_bytes } => write!(
                f,
                "rank {rank} has {room_bytes} bytes for activations, and its link to the host must copy for {copies_ns} ns"
            ),
            Binding::Hidden(binding) => write!(f, "{binding}, even with all that pairs of ops could hide left out"),
        }
    }
}

/// The most ops that are looked at one by one: the longest paths take about 20 ns per op. Of larger problems the first
/// and the last microbatches are looked at, which fill and drain the pipe; those between count by their work.
const MOST_STEPS: usize = 3_000_000;
/// Ops, counted once for each window, beyond which fewer windows are looked at: some milliseconds.
const MOST_WINDOW_STEPS: usize = 300_000;

/// A lower bound on the objective of `problem`: no valid schedule costs less.
///
/// The work is in proportion to the ops, up to some millions, for the makespan; for the longest span up to
/// ranks × ops, as far as that takes some milliseconds, and fewer ranks are looked at beyond it.
pub fn lower_bound(problem: &Problem) -> Bound {
    looking_at(problem, MOST_STEPS)
}

fn looking_at(problem: &Problem, most_ops: usize) -> Bound {
    if problem.differs() {
        let bound = differing::bound(problem);
        // Slices that take the same are microbatches that are alike, with fewer orders left.
        let apart =
            problem.without_slices().filter(|apart| !apart.differs()).map(|apart| looking_at(&apart, most_ops));
        return apart.filter(|apart| apart.value_ns > bound.value_ns).unwrap_or(bound);
    }
    if problem.offloads() {
        let Bound { value_ns, objective, binding } = looking_at(&problem.with_instant_copies(), most_ops);
        let mut best = Best { value: value_ns, binding };
        host_link::bound(problem, &mut best);
        return Bound { value_ns: best.value, objective, binding: best.binding };
    }
    if !problem.pairs_gain() {
        return one_by_one(problem, most_ops);
    }
    // The bounds are proved for ops that run one after the other. Each op is shortened by half of what a pair can hide,
    // rounded. In a finer unit the rounding takes nothing from ops of a few nanoseconds; a schedule costs at most
    // `finer` times as much there.
    let (finer, problem) = [1 << 10, 1 << 5]
        .into_iter()
        .find_map(|finer| Some((finer, problem.in_finer_time(finer)?)))
        .unwrap_or_else(|| (1, problem.clone()));
    let Bound { value_ns, objective, binding } = one_by_one(&problem.without_pairs(), most_ops);
    let binding = Binding::Hidden(Box::new(binding.coarser(finer)));
    Bound { value_ns: value_ns.div_ceil(finer), objective, binding }
}

/// The same for a problem without pairs.
fn one_by_one(problem: &Problem, most_ops: usize) -> Bound {
    let net = Net::of(problem, most_ops);
    let back = backs(&net);
    let mut best = Best { value: 0, binding: Binding::Work { rank: 0, load_ns: 0 } };
    for rank in 0..net.ranks {
        let load_ns = net.load(rank);
        best.take(load_ns, || Binding::Work { rank, load_ns });
        if let Some(area) = memory_idle::area(&net, rank, &back) {
            best.take(area.value, || Binding::Area { rank, round_trip_ns: area.round_trip, room_bytes: area.room });
        }
    }
    let ops = 3 * net.costs.len() * net.microbatches * net.lanes.len();
    windows(&net, &back, problem.objective(), ops, &mut best);
    Bound { value_ns: best.value, objective: problem.objective(), binding: best.binding }
}

struct Best {
    value: Nanos,
    binding: Binding,
}

impl Best {
    fn take(&mut self, value: Nanos, binding: impl FnOnce() -> Binding) {
        if value > self.value {
            *self = Best { value, binding: binding() };
        }
    }
}

fn windows(net: &Net, back: &[Vec<[Nanos; 2]>], objective: Objective, ops: usize, best: &mut Best) {
    let mut heads = PathLengths::new(net);
    let mut tails = PathLengths::new(net);
    // Of the rank judged last: most are alike.
    let mut shares: Option<memory_idle::Shares> = None;
    let mut judge = |rank: usize, heads: &PathLengths, tails: &PathLengths, later: Nanos, best: &mut Best| {
        let window = Window { net, rank, heads, tails, later, back };
        let carlier = window.carlier();
        let load_ns = carlier.value - carlier.head - carlier.tail;
        best.take(carlier.value, || Binding::Rank { rank, head_ns: carlier.head, load_ns, tail_ns: carlier.tail });
        let load_ns = net.load(rank);
        let alike = shares.take().filter(|shares| shares.are_of(net, rank));
        let shares = shares.insert(alike.unwrap_or_else(|| memory_idle::Shares::new(net, rank)));
        let (idle, area) = memory_idle::bound(&window, shares, load_ns, best.value);
        best.take(idle.value, || Binding::Memory { rank, load_ns, fill_ns: idle.fill, drain_ns: idle.drain });
        if let Some(area) = area {
            best.take(area.value, || Binding::Area { rank, round_trip_ns: area.round_trip, room_bytes: area.room });
        }
    };
    let crosses = |lane: usize, heads: &PathLengths, tails: &PathLengths, best: &mut Best| {
        if let Some(cross) = crossing::bound(net, lane, heads, tails, best.value) {
            let rank = net.lanes[lane].ranks[0];
            best.take(cross.value, || Binding::Cross { rank, at_once: cross.at_once });
        }
    };
    match objective {
        Objective::Makespan => {
            longest_paths::heads(net, &vec![0; net.lanes.len()], &mut heads);
            longest_paths::tails(net, |_| true, &mut tails);
            (0..net.ranks).for_each(|rank| judge(rank, &heads, &tails, 0, best));
            (0..net.lanes.len()).for_each(|lane| crosses(lane, &heads, &tails, best));
        }
        Objective::LongestSpan => {
            // In a bidirectional placement, no rank is known to open its window first.
            let one_way = net.lanes.len() == 1;
            if one_way {
                let first = net.lanes[0].ranks[0];
                longest_paths::tails(net, |rank| rank == first, &mut tails);
            }
            let firsts = |rank: usize| -> Vec<usize> {
                net.stages_of.iter().map(|stages_of| stages_of[rank].first().copied().unwrap_or(0)).collect()
            };
            let mut later = vec![0; net.ranks];
            if one_way {
                let mut head = 0;
                for stage in 0..net.costs.len() {
                    let rank = net.lanes[0].ranks[stage];
                    head += net.lanes[0].down[stage];
                    if firsts(rank)[0] == stage {
                        later[rank] = head;
                    }
                    head += net.costs[stage].f;
                }
            }
            for rank in chosen(net, (MOST_WINDOW_STEPS / ops.max(1)).max(3)) {
                longest_paths::heads(net, &firsts(rank), &mut heads);
                judge(rank, &heads, &tails, later[rank], best);
                // The window of the first stage's rank holds all of the lane.
                if one_way && net.lanes[0].ranks.first() == Some(&rank) {
                    crosses(0, &heads, &tails, best);
                }
            }
        }
    }
}

/// Up to `most` ranks: the first and the last on the way, the one with the most work, and others between.
fn chosen(net: &Net, most: usize) -> Vec<usize> {
    if most >= net.ranks {
        return (0..net.ranks).collect();
    }
    let first = net.lanes[0].ranks.first().copied().unwrap_or(0);
    let busiest = (0..net.ranks).rev().max_by_key(|rank| net.load(*rank)).unwrap_or(0);
    let mut chosen = vec![first, 0, net.ranks - 1, busiest];
    let between = most.saturating_sub(3);
    chosen.extend((0..between).map(|index| (index + 1) * net.ranks / (between + 1)));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// By lane and stage, after F and after B: the least time until W of the same microbatch has ended.
fn backs(net: &Net) -> Vec<Vec<[Nanos; 2]>> {
    let of = |lane: &precedence::Lane| {
        let mut found = vec![[0; 2]; net.costs.len()];
        let mut trip = 0;
        for (stage, cost) in net.costs.iter().enumerate().rev() {
            // From the end of F of this stage to the start of its B.
            if let Some(next) = net.costs.get(stage + 1) {
                trip += lane.down[stage + 1] + next.f + next.b + lane.up[stage + 1];
            }
            found[stage][F] = trip + cost.b + cost.w;
            found[stage][B] = cost.w;
        }
        found
    };
    net.lanes.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
