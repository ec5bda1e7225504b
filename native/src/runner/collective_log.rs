//! Which collectives a rank takes part in, and when, for traces.
//!
//! A rank notes numbers alone. What they are called, and which ranks they have, follows from the workload: whoever
//! puts the trace together works it out once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::graph::Axis;
use pipeplan_core::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind};

use super::gradients::{Places, WeightGroups, norm_group};
use super::workload::Workload;
use crate::backend::peers::Ticket;

/// Which group does it, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// What an op needs of the ranks along an axis.
    Along(Axis),
    /// Gradients that are parts of one, of the weight with this number.
    Shares(u32),
    /// Copies of this weight.
    Copies(u32),
    /// Data parallel ranks, of this weight.
    Replicas(u32),
    /// Those that hold the same share of this weight in other sharding groups.
    Across(u32),
    /// Data parallel ranks of a sharding group, of weights of this stage or gradients of one of its microbatches: of
    /// experts or of all else, as [`of_stage`] has it.
    Sharded(u32),
    /// The same, over sharding groups.
    ShardedAcross(u32),
    /// The norm of all gradients.
    Norm,
}

/// The number of experts of a stage, or of all its other weights, in [`Role::Sharded`].
pub(super) const fn of_stage(stage: u16, of_experts: bool) -> u32 {
    2 * stage as u32 + of_experts as u32
}

/// What a collective is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct What {
    pub(super) kind: CollectiveKind,
    pub(super) role: Role,
}

/// One collective of a rank. Times count from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub(super) what: What,
    pub(super) start_ns: Nanos,
    pub(super) end_ns: Nanos,
    /// What the rank put in.
    pub(super) bytes: Bytes,
    /// While the rank did nothing else.
    pub(super) exposed_ns: Nanos,
}

/// Numbers that say a [`Noted`] to another process.
pub(super) const NUMBERS: usize = 6;

impl Noted {
    /// As numbers that are exact as `f64`, with times since `opened`.
    pub(super) fn numbers(&self, opened: Nanos) -> [f64; NUMBERS] {
        let kind = CollectiveKind::NAMED.iter().position(|(_, kind)| *kind == self.what.kind).unwrap_or(0);
        let (role, of) = match self.what.role {
            Role::Along(axis) => (0, axis as u32),
            Role::Shares(weight) => (1, weight),
            Role::Copies(weight) => (2, weight),
            Role::Replicas(weight) => (3, weight),
            Role::Norm => (4, 0),
            Role::Across(weight) => (5, weight),
            Role::Sharded(stage) => (6, stage),
            Role::ShardedAcross(stage) => (7, stage),
        };
        let since = |ns: Nanos| ns.saturating_sub(opened) as f64;
        let what = f64::from(role * 8 + kind as u32);
        [what, of.into(), self.bytes as f64, self.exposed_ns as f64, since(self.start_ns), since(self.end_ns)]
    }

    /// The same back; none where they say nothing.
    pub(super) fn of_numbers(numbers: &[f64; NUMBERS], opened: Nanos) -> Option<Noted> {
        let [what, of, bytes, exposed_ns, start_ns, end_ns] = numbers.map(|number| number as u64);
        let kind = CollectiveKind::NAMED.get(what as usize % 8)?.1;
        let of = u32::try_from(of).ok()?;
        let role = match what / 8 {
            0 => Role::Along(Axis::ALL.into_iter().find(|axis| *axis as u32 == of)?),
            1 => Role::Shares(of),
            2 => Role::Copies(of),
            3 => Role::Replicas(of),
            4 => Role::Norm,
            5 => Role::Across(of),
            6 => Role::Sharded(of),
            7 => Role::ShardedAcross(of),
            _ => return None,
        };
        let what = What { kind, role };
        let at = |since: Nanos| opened.saturating_add(since);
        Some(Noted { what, start_ns: at(start_ns), end_ns: at(end_ns.max(start_ns)), bytes, exposed_ns })
    }
}

/// Takes note of collectives while it is on.
pub(super) struct CollectiveLog {
    start: Instant,
    on: bool,
    noted: Vec<Noted>,
    /// What has begun and not been taken, by ticket.
    open: Vec<(Ticket, Noted)>,
}

impl Default for CollectiveLog {
    fn default() -> CollectiveLog {
        CollectiveLog { start: Instant::now(), on: false, noted: Vec::new(), open: Vec::new() }
    }
}

impl CollectiveLog {
    /// From here on it takes notes, or none. Times count from `start`.
    pub(super) fn turn(&mut self, on: bool, start: Instant) {
        (self.on, self.start) = (on, start);
        self.noted.clear();
        self.open.clear();
    }

    /// What it has noted.
    pub(super) fn take(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.noted)
    }

    /// The time; 0 while it is off.
    pub(super) fn now(&self) -> Nanos {
        if self.on { self.start.elapsed().as_nanos() as Nanos } else { 0 }
    }

    /// A collective for which the rank has waited from `start_ns` until now.
    pub(super) fn waited(&mut self, what: What, bytes: Bytes, start_ns: Nanos) {
        if self.on {
            let end_ns = self.now();
            self.noted.push(Noted { what, start_ns, end_ns, bytes, exposed_ns: end_ns - start_ns });
        }
    }

    /// A collective that has begun since `start_ns`, and goes on while the rank computes.
    pub(super) fn begun(&mut self, ticket: Ticket, what: What, bytes: Bytes, start_ns: Nanos) {
        if self.on {
            let end_ns = self.now();
            let noted = Noted { what, start_ns, end_ns, bytes, exposed_ns: end_ns - start_ns };
            self.open.push((ticket, noted));
        }
    }

    /// Its result, for which the rank has waited from `waits_ns` until now.
    pub(super) fn ended(&mut self, ticket: Ticket, waits_ns: Nanos) {
        if let Some(at) = self.open.iter().position(|(open, _)| *open == ticket) {
            let (_, noted) = self.open.swap_remove(at);
            let end_ns = self.now();
            self.noted.push(Noted { end_ns, exposed_ns: noted.exposed_ns + (end_ns - waits_ns), ..noted });
        }
    }
}

/// The names of the collectives of a run.
pub(super) struct CollectiveNames {
    places: Places,
    known: BTreeMap<(usize, What), Arc<CollectiveName>>,
    /// Each name once.
    all: BTreeMap<CollectiveName, Arc<CollectiveName>>,
}

impl CollectiveNames {
    pub(super) fn new(workload: &Workload) -> CollectiveNames {
        CollectiveNames { places: workload.places(), known: BTreeMap::new(), all: BTreeMap::new() }
    }

    /// The collectives of `rank`, with times after `start_ns` that are `slowdown` times too long.
    pub(super) fn named(
        &mut self,
        workload: &Workload,
        rank: usize,
        noted: &[Noted],
        start_ns: Nanos,
    ) -> Vec<Collective> {
        let slowdown = workload.slowdown();
        let since = |ns: Nanos| ns.saturating_sub(start_ns) / slowdown;
        let named = |noted: &Noted| Collective {
            name: self.name(workload, rank, noted.what),
            start_ns: since(noted.start_ns),
            end_ns: since(noted.end_ns),
            bytes: Some(noted.bytes),
            exposed_ns: Some((noted.exposed_ns / slowdown).min(since(noted.end_ns) - since(noted.start_ns))),
        };
        let mut named: Vec<Collective> = noted.iter().map(named).collect();
        named.sort_by_key(|collective| collective.start_ns);
        named
    }

    fn name(&mut self, workload: &Workload, rank: usize, what: What) -> Arc<CollectiveName> {
        if let Some(name) = self.known.get(&(rank, what)) {
            return Arc::clone(name);
        }
        let name = name_of(workload, &self.places, rank, what);
        let name = Arc::clone(self.all.entry(name.clone()).or_insert_with(|| Arc::new(name)));
        self.known.insert((rank, what), Arc::clone(&name));
        name
    }
}

fn name_of(workload: &Workload, places: &Places, rank: usize, What { kind, role }: What) -> CollectiveName {
    let position = workload.position(rank);
    let of_weight = |weight: u32| {
        let (name, placed) = places.iter().nth(weight as usize)?;
        let mut stages = placed.at.iter().map(|(_, stage)| *stage);
        let first = stages.next()?;
        let own = placed.at.iter().find(|(rank, _)| *rank == position.rank).map_or(first, |(_, stage)| *stage);
        // A weight that several stages have, such as a tied embedding, is called by its name.
        let what = if stages.all(|stage| stage == first) { format!("stage {own}") } else { name.clone() };
        Some((what, WeightGroups::of(position, placed)))
    };
    let part = if kind == CollectiveKind::AllGather { "parameters" } else { "gradients" };
    let (group, label, ranks) = match role {
        Role::Along(axis) => {
            let group = match axis {
                Axis::Tensor => GroupKind::Tensor,
                Axis::Context => GroupKind::Context,
                Axis::Expert => GroupKind::Expert,
            };
            (group, String::new(), position.group(axis))
        }
        Role::Norm => (GroupKind::World, "gradient norm".to_string(), norm_group(position)),
        Role::Shares(weight) | Role::Copies(weight) | Role::Replicas(weight) | Role::Across(weight) => {
            let (what, groups) = of_weight(weight).unwrap_or_default();
            let (group, ranks) = match role {
                Role::Shares(_) => (GroupKind::Tensor, groups.shares),
                Role::Copies(_) => (GroupKind::Embedding, groups.copies),
                Role::Across(_) => (GroupKind::Data, groups.across),
                _ => (GroupKind::Data, groups.replicas),
            };
            (group, format!("{part} of {what}"), ranks)
        }
        Role::Sharded(of) | Role::ShardedAcross(of) => {
            let (stage, of_experts) = (of / 2, of % 2 == 1);
            let [within, across] = position.sharding_groups(of_experts);
            let ranks = if matches!(role, Role::Sharded(_)) { within } else { across };
            let what = if of_experts { "experts of stage" } else { "stage" };
            (GroupKind::Data, format!("{part} of {what} {stage}"), ranks)
        }
    };
    let mut ranks: Vec<u32> = ranks.into_iter().map(|rank| workload.position(rank).in_trace() as u32).collect();
    ranks.sort_unstable();
    CollectiveName { kind, group: Some(group), label, ranks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_goes_to_another_process_as_numbers() {
        let roles = Axis::ALL.map(Role::Along).into_iter();
        let roles =
            roles.chain([Role::Shares(7), Role::Copies(0), Role::Replicas(100_000), Role::Norm, Role::Across(3)]);
        let roles = roles.chain([Role::Sharded(of_stage(4, true)), Role::ShardedAcross(0)]);
        for (role, (_, kind)) in roles.flat_map(|role| CollectiveKind::NAMED.map(|kind| (role, kind))) {
            let what = What { kind, role };
            let noted = Noted { what, start_ns: 1_005, end_ns: 2_000, bytes: 1 << 40, exposed_ns: 900 };
            let elsewhere = Noted { start_ns: 55, end_ns: 1_050, ..noted };
            assert_eq!(Noted::of_numbers(&noted.numbers(1_000), 50), Some(elsewhere));
        }
        assert_eq!(Noted::of_numbers(&[8.0 * 8.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0), None);
        assert_eq!(Noted::of_numbers(&[6.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0), None);
        assert_eq!(Noted::of_numbers(&[0.0, 3.0, 0.0, 0.0, 0.0, 0.0], 0), None);
    }

    #[test]
    fn a_collective_that_overlaps_is_exposed_while_it_is_waited_for() {
        let mut log = CollectiveLog::default();
        let what = What { kind: CollectiveKind::AllReduce, role: Role::Along(Axis::Tensor) };
        log.waited(what, 4, log.now());
        log.begun(Ticket(1), what, 4, 0);
        log.ended(Ticket(1), 0);
        assert_eq!(log.take(), []);
        log.turn(true, Instant::now());
        let began = log.now();
        log.begun(Ticket(1), what, 4, began);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let waits = log.now();
        log.ended(Ticket(1), waits);
        let [noted] = log.take()[..] else { panic!("one") };
        assert!(noted.end_ns - noted.start_ns >= 2_000_000, "{noted:?}");
        assert!(noted.exposed_ns <= noted.end_ns - noted.start_ns - 2_000_000, "{noted:?}");
    }
}
