//! Gradient sync: what ranks do with their gradients between the last backward of a training step and the optimizer
//! step.
//!
//! - In: accumulated gradients of a rank, and its position.
//! - Out: reduced, averaged and clipped gradients; after the update, all-gathered weights.
//! - Knows: places of weights, groups and collectives. Nothing of schedules.
//!
//! 1. **Shares.** Where tensor-parallel ranks hold the same elements and have each seen other tokens, or made another
//!    part of what they go into, their gradients are summed.
//! 2. **Copies.** A weight may lie in several places: the table of a tied model in its first and its last stage, and
//!    every weight of a bidirectional placement on two ranks. The gradients of all places are summed and written back to
//!    each, so that all make the same update and stay equal.
//! 3. **Replicas.** The data-parallel replicas and the context-parallel ranks average theirs. Each has divided its losses by its own microbatches and tokens, so the average is the gradient of the mean
//!    over all of them. Where the optimizer states are sharded (ZeRO stage 1), each gets the average of its own
//!    elements, updates these, and gathers the rest of the weights afterwards. With sharding groups (HSDP), the groups then
//!    average what each has. Where experts are split over ranks, those that hold the same ones do this among themselves, and
//!    what they gather counts for all that have sent tokens to them. Where gradients are reduced for each microbatch, the
//!    [stages](crate::backend::stages) have summed them over replicas, and only the division is left; and sharded weights
//!    (ZeRO stage 3) are gathered there.
//! 4. **Clipping.** The norm is that of all gradients together, each element of each weight counted once.
//!
//! Everything goes by weights in order of name, sums by member, then by stage, by rank and by replica: so all ranks
//! call their collectives in the same order, none waits in a circle, and a second run has the same bits.

use std::collections::BTreeMap;

use pipeplan_core::graph::Axis;
use pipeplan_core::model::Dtype;
use pipeplan_core::trace::collectives::CollectiveKind;

use self::on_card::{add_on_card, copy_on_card, here_on_card, on_card, piece_of, pieces};
use super::collective_log::{CollectiveLog, Role, What};
use super::report::Cause;
use crate::backend::cpu::element::Element;
use crate::backend::{Backend, BackendError, Part, Share, Values, WeightSharding};
use crate::transport::collectives::{Collectives, Group, Operation, Reduction};
use crate::transport::{Buffer, OnCard, Transport};

mod on_card;
mod places;
mod position;

#[cfg(feature = "cuda")]
pub use self::places::has_copies;
pub use self::places::{Placed, Places, places, stages_held};
pub use self::position::Position;

/// A weight that this rank holds.
struct Held {
    name: String,
    /// Its position among all weights.
    index: usize,
    /// This rank's stages that hold it.
    stages: Vec<u16>,
    /// The group of the members whose gradients are parts of one, by its position in `Gradients::groups`.
    shares: Option<usize>,
    /// The group of the ranks that hold it, likewise; none where no other does.
    copies: Option<usize>,
    /// The group of those that hold the same of it for other tokens, likewise; of a sharding group alone, where there
    /// are such.
    replicas: Option<usize>,
    /// The group of those that hold the same share of it in other sharding groups, likewise.
    across: Option<usize>,
    /// How this rank keeps it, among those.
    sharding: WeightSharding,
    /// What their average is multiplied with, as a fraction: they are fewer where they gather what others have sent.
    factor: [usize; 2],
    /// Whether its elements count for the norm here.
    is_owner: bool,
    /// Whether it does not train: it has no gradient, and every rank keeps what it starts with.
    frozen: bool,
}

/// One rank's part in it.
pub struct Gradients {
    clip_norm: Option<f64>,
    weights: usize,
    held: Vec<Held>,
    /// Groups of ranks that hold copies. Kept once each, so that calls of one group are counted together.
    groups: Vec<Group>,
    /// Whoever adds to the norm.
    all: Group,
    /// The norm of the last step.
    norm: Option<f64>,
    /// What is noted of it for traces: of what goes through host memory, since a device's own collectives end unseen.
    pub(super) log: CollectiveLog,
}

/// The groups that reduce the gradient of a weight, in the world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightGroups {
    /// The members whose gradients are parts of one.
    pub(super) shares: Vec<usize>,
    /// The ranks that hold it.
    pub(super) copies: Vec<usize>,
    /// Those that hold the same of it for other tokens; of a sharding group alone, where there are such.
    pub(super) replicas: Vec<usize>,
    /// Those that hold the same share of it in other sharding groups.
    pub(super) across: Vec<usize>,
}

impl WeightGroups {
    /// Of a weight that lies at `placed`, for the rank at `position`.
    pub(super) fn of(position: Position, Placed { at, shard }: &Placed) -> WeightGroups {
        let holders = if shard.partial { shard.holders(position.member, position.members) } else { 0..0 };
        let mut copies: Vec<usize> = at.iter().map(|(rank, _)| position.in_world(*rank)).collect();
        copies.dedup();
        let [within, across] = position.sharding_groups(shard.experts.is_some());
        // Without sharding all copies are alike.
        let (replicas, across) = if position.sharding.optimizer { (within, across) } else { (across, Vec::new()) };
        let shares = holders.map(|member| Position { member, ..position }.world_rank()).collect();
        WeightGroups { shares, copies, replicas, across }
    }
}

/// Whoever adds to the norm of the gradients with the rank at `position`.
pub(super) fn norm_group(position: Position) -> Vec<usize> {
    match position.sharding.optimizer || position.is_expert_parallel() {
        true => (0..position.ranks * position.copies() * position.members).collect(),
        // Every rank that holds the same copy.
        false => (0..position.ranks).flat_map(|rank| Position { rank, ..position }.group(Axis::Tensor)).collect(),
    }
}

impl Gradients {
    /// For the rank at `position` of a pipeline whose weights lie at `places`.
    pub fn new(position: Position, places: &Places, clip_norm: Option<f64>) -> Gradients {
        let me = position.world_rank();
        let group = |ranks: Vec<usize>| {
            // Ranks of a pipeline are distinct, and this one is among them.
            Group::new(ranks, me).unwrap_or_else(|error| unreachable!("{error}"))
        };
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of = |ranks: Vec<usize>| {
            (ranks.len() > 1).then(|| {
                groups.iter().position(|known| known.ranks() == ranks).unwrap_or_else(|| {
                    groups.push(group(ranks));
                    groups.len() - 1
                })
            })
        };
        let mut held = Vec::new();
        for (index, (name, placed)) in places.iter().enumerate() {
            let Placed { at, shard } = placed;
            let stages: Vec<u16> =
                at.iter().filter(|(rank, _)| *rank == position.rank).map(|(_, stage)| *stage).collect();
            if stages.is_empty() {
                continue;
            }
            let of_experts = shard.experts.is_some();
            let holders = shard.holders(position.member, position.members);
            let copy = if of_experts { position.expert_copy() } else { position.copy() };
            let sharding = position.sharding_of(shard);
            // Of sharding groups the first.
            let counts = match position.sharding.optimizer {
                true => copy < sharding.share.members,
                false => copy == 0 || !position.is_expert_parallel(),
            };
            let is_owner = at.first().is_some_and(|(rank, _)| *rank == position.rank)
                && (of_experts && position.whole_experts || holders.start == position.member)
                && counts;
            let of_weight = WeightGroups::of(position, placed);
            let factor = match of_experts {
                // They are summed and not averaged yet.
                _ if sharding.reduces => [1, position.copies()],
                true => [position.expert_copies(), position.copies()],
                false => [1, 1],
            };
            let (shares, copies) = (group_of(of_weight.shares), group_of(of_weight.copies));
            let (replicas, across) = (group_of(of_weight.replicas), group_of(of_weight.across));
            let name = name.clone();
            let new = Held {
                name,
                index,
                stages,
                shares,
                copies,
                replicas,
                across,
                sharding,
                factor,
                is_owner,
                frozen: false,
            };
            held.push(match shard.frozen {
                true => Held {
                    shares: None,
                    copies: None,
                    // Sharded it is gathered like any other.
                    replicas: replicas.filter(|_| sharding.weight),
                    across: None,
                    sharding: if sharding.weight { sharding } else { WeightSharding::WHOLE },
                    is_owner: false,
                    frozen: true,
                    ..new
                },
                false => new,
            });
        }
        let all = group(norm_group(position));
        Gradients { clip_norm, weights: places.len(), held, groups, all, norm: None, log: CollectiveLog::default() }
    }

    /// The ranks of all groups that gradients are summed over here, in an order that all ranks have.
    pub fn all_groups(&self) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = self.groups.iter().map(|group| group.ranks().to_vec()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Makes the gradients of `backend` those of the whole training step `step`.
    ///
    /// # Errors
    /// Where a rank does not come, or a weight is not there.
    pub fn reduce(
        &mut self,
        step: u32,
        backend: &mut dyn Backend,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        self.groups.iter_mut().chain([&mut self.all]).for_each(|group| group.begin(step));
        for held in self.held.iter().filter(|held| !held.frozen) {
            let Some((first, others)) = held.stages.split_first() else { continue };
            if !others.is_empty() {
                // Reading waits for the device.
                transport.settle_on_card()?;
            }
            let here = here_on_card(backend, *first, &held.name);
            for stage in others {
                if let Some(elements) = here {
                    add_on_card(backend, elements, [*first, *stage], &held.name)?;
                    continue;
                }
                let other = copy_of(backend, *stage, &held.name, Part::Gradient)?;
                lend(backend, *first, &held.name, Part::Gradient, |values| {
                    add(values, &other);
                    Ok(())
                })?;
            }
            let (groups, log) = (&mut self.groups, &mut self.log);
            if held.is_alone() {
                // Nobody else has any.
            } else if let Some((memory, _)) = on_card(backend, transport, *first, &held.name, Part::Gradient) {
                held.reduce_on_card(&memory, groups, transport)?;
                if !held.is_average() {
                    backend.scale_on_card(*first, &held.name, Part::Gradient, held.of_average())?;
                }
            } else if let Some(elements) = here.filter(|_| held.meets_on_card(groups, backend, transport)) {
                held.reduce_among(elements, *first, groups, backend, transport)?;
            } else {
                transport.settle_on_card()?;
                lend(backend, *first, &held.name, Part::Gradient, |values| match values {
                    Values::F32(values) => held.reduce(values, groups, log, transport),
                    Values::F64(values) => held.reduce(values, groups, log, transport),
                })?;
            }
            if !others.is_empty() {
                transport.settle_on_card()?;
            }
            match here {
                Some(elements) => {
                    others
                        .iter()
                        .try_for_each(|stage| copy_on_card(backend, elements, [*first, *stage], &held.name))?;
                }
                None => spread(backend, held, Part::Gradient)?,
            }
        }
        // From here on this may wait for the device.
        transport.settle_on_card()?;
        match self.clip_norm {
            Some(limit) => self.clip(limit, backend, transport),
            None => Ok(()),
        }
    }

    /// Scales all gradients so that their norm is at most `limit`.
    fn clip(&mut self, limit: f64, backend: &mut dyn Backend, transport: &mut dyn Transport) -> Result<(), Cause> {
        // One place for each weight, 0 from all ranks but those that own it: adding zeros rounds nothing, so the sum
        // is the same however the weights are dealt to stages.
        let mut squares = vec![0f64; self.weights];
        for held in self.held.iter().filter(|held| held.is_owner) {
            let Some(stage) = held.stages.first() else { continue };
            let share = held.sharding.share;
            if let Some(elements) = here_on_card(backend, *stage, &held.name) {
                let mine = share.of(elements);
                let found = backend.squares_on_card(*stage, &held.name, Part::Gradient, mine)?;
                // Squares of floats grow beyond them long before their sum in wider numbers does.
                if let Some(found) = found.filter(|found| found.is_finite()) {
                    squares[held.index] = found;
                    continue;
                }
            }
            squares[held.index] = lend(backend, *stage, &held.name, Part::Gradient, |values| {
                Ok(match values {
                    Values::F32(values) => sum_of_squares(&values[share.of(values.len())]),
                    Values::F64(values) => sum_of_squares(&values[share.of(values.len())]),
                })
            })?;
        }
        let began = self.log.now();
        transport.all_reduce(&mut self.all, &mut squares, Reduction::Sum)?;
        if self.all.size() > 1 {
            let what = What { kind: CollectiveKind::AllReduce, role: Role::Norm };
            self.log.waited(what, 8 * squares.len() as u64, began);
        }
        let norm = libm::sqrt(squares.iter().fold(0.0, |sum, square| sum + square));
        self.norm = Some(norm);
        if let Some(factor) = clip_factor(norm, limit) {
            for held in self.held.iter().filter(|held| !held.frozen) {
                for stage in &held.stages {
                    if here_on_card(backend, *stage, &held.name).is_some() {
                        backend.scale_on_card(*stage, &held.name, Part::Gradient, factor)?;
                        continue;
                    }
                    lend(backend, *stage, &held.name, Part::Gradient, |values| {
                        match values {
                            Values::F32(values) => scale(values, factor),
                            Values::F64(values) => scale(values, factor),
                        }
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }

    /// The norm of the gradients of the last step, before they were clipped; nothing where nobody asked for it.
    pub fn take_norm(&mut self) -> Option<f64> {
        self.norm.take()
    }

    /// Forgets all gradients, without an update.
    ///
    /// # Errors
    /// Where a weight is not there.
    pub fn clear(&self, backend: &mut dyn Backend) -> Result<(), Cause> {
        for held in self.held.iter().filter(|held| !held.frozen) {
            for stage in &held.stages {
                lend(backend, *stage, &held.name, Part::Gradient, |values| {
                    match values {
                        Values::F32(values) => values.fill(0.0),
                        Values::F64(values) => values.fill(0.0),
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// After the update: where each copy has made a share of it, gathers the weights of all.
    ///
    /// # Errors
    /// As [`Gradients::reduce`].
    pub fn gather(&mut self, backend: &mut dyn Backend, transport: &mut dyn Transport) -> Result<(), Cause> {
        for held in &self.held {
            let (Some(first), Some(replicas)) = (held.stages.first(), held.replicas) else { continue };
            if !held.is_shared_out() || held.sharding.weight {
                continue;
            }
            let (replicas, share, log) = (&mut self.groups[replicas], held.sharding.share, &mut self.log);
            if let Some((memory, dtype)) = on_card(backend, transport, *first, &held.name, Part::Weight) {
                let counts = share.counts((memory.bytes() / dtype.bytes()) as usize);
                transport.on_card(replicas, Operation::AllGather, &memory, dtype, (0, &counts))?;
            } else {
                let began = log.now();
                let bytes = lend(backend, *first, &held.name, Part::Weight, |values| match values {
                    Values::F32(values) => gather(values, replicas, share, transport).map(|()| bytes_of(values)),
                    Values::F64(values) => gather(values, replicas, share, transport).map(|()| bytes_of(values)),
                })?;
                log.waited(held.what(CollectiveKind::AllGather, Role::Replicas), bytes, began);
            }
            if held.stages.len() > 1 {
                transport.settle_on_card()?;
            }
            spread(backend, held, Part::Weight)?;
        }
        Ok(transport.settle_on_card()?)
    }

    /// The weight `name` as the optimizer has it. Where copies of it share that out, each is handed what the others
    /// have, so all
    /// of them call this at the same time.
    ///
    /// # Errors
    /// As [`Gradients::reduce`].
    pub fn exact(
        &mut self,
        name: &str,
        backend: &mut dyn Backend,
        transport: &mut dyn Transport,
    ) -> Result<Buffer, Cause> {
        let Gradients { held, groups, .. } = self;
        // In the order of their names.
        let held = held.binary_search_by(|held| (*held.name).cmp(name)).ok().map(|at| &held[at]);
        let found = held.and_then(|held| Some((held, *held.stages.first()?)));
        let missing = || BackendError::NoSuchWeight { stage: 0, name: name.to_string() };
        let (held, stage) = found.ok_or_else(missing)?;
        let mut values = copy_of(backend, stage, name, Part::Weight)?;
        if let Some(replicas) = held.replicas.filter(|_| held.is_shared_out()) {
            match &mut values {
                Buffer::F32(values) => gather(values, &mut groups[replicas], held.sharding.share, transport)?,
                Buffer::F64(values) => gather(values, &mut groups[replicas], held.sharding.share, transport)?,
                // Of weights there are only these.
                _ => {}
            }
        }
        Ok(values)
    }

    /// The same of all weights that this rank holds, by name.
    ///
    /// # Errors
    /// As [`Gradients::reduce`].
    pub fn all_exact(
        &mut self,
        backend: &mut dyn Backend,
        transport: &mut dyn Transport,
    ) -> Result<BTreeMap<String, Buffer>, Cause> {
        let names: Vec<String> = self.held.iter().map(|held| held.name.clone()).collect();
        names.into_iter().map(|name| Ok((name.clone(), self.exact(&name, backend, transport)?))).collect()
    }

    /// Whether data-parallel ranks shard the optimizer states of the weight `name`.
    pub fn is_shared_out(&self, name: &str) -> bool {
        let held = self.held.binary_search_by(|held| (*held.name).cmp(name));
        held.is_ok_and(|at| self.held[at].is_shared_out())
    }
}

/// Lends a part of a weight to work that may fail.
pub fn lend<R>(
    backend: &mut dyn Backend,
    stage: u16,
    name: &str,
    part: Part,
    work: impl FnOnce(Values<'_>) -> Result<R, Cause>,
) -> Result<R, Cause> {
    let (mut work, mut done) = (Some(work), None);
    backend.lend(stage, name, part, &mut |values| done = work.take().map(|work| work(values)))?;
    let missing = || BackendError::NoSuchWeight { stage: stage.into(), name: name.to_string() };
    done.unwrap_or_else(|| Err(missing().into()))
}

/// A copy of a part of a weight.
pub fn copy_of(backend: &mut dyn Backend, stage: u16, name: &str, part: Part) -> Result<Buffer, Cause> {
    lend(backend, stage, name, part, |values| {
        Ok(match values {
            Values::F32(values) => Buffer::F32(values.to_vec()),
            Values::F64(values) => Buffer::F64(values.to_vec()),
        })
    })
}

/// Gives all of this rank's copies what the first one holds.
fn spread(backend: &mut dyn Backend, held: &Held, part: Part) -> Result<(), Cause> {
    let Some((first, others)) = held.stages.split_first() else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    let values = copy_of(backend, *first, &held.name, part)?;
    for stage in others {
        lend(backend, *stage, &held.name, part, |copy| {
            match (copy, &values) {
                (Values::F32(copy), Buffer::F32(values)) => copy.copy_from_slice(values),
                (Values::F64(copy), Buffer::F64(values)) => copy.copy_from_slice(values),
                // A backend has one format.
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(())
}

impl Held {
    /// Whether data-parallel ranks shard the optimizer states of it.
    fn is_shared_out(&self) -> bool {
        self.sharding.share.members > 1
    }

    /// Whether its gradient is the average over replicas as it is, or as they average it.
    fn is_average(&self) -> bool {
        self.factor[0] == self.factor[1]
    }

    /// Whether nobody else has any of its gradient, or all of it is there.
    fn is_alone(&self) -> bool {
        [self.shares, self.copies, self.replicas, self.across].iter().all(Option::is_none) && self.is_average()
    }

    /// A collective for it.
    fn what(&self, kind: CollectiveKind, role: fn(u32) -> Role) -> What {
        What { kind, role: role(self.index as u32) }
    }

    /// What its average over replicas is multiplied with, or their sum where each microbatch's gradients are summed.
    fn of_average(&self) -> f64 {
        self.factor[0] as f64 / self.factor[1] as f64
    }

    /// Over members and copies the sum, over replicas the average: of this rank's share alone where that is not all.
    fn reduce<T: Element>(
        &self,
        values: &mut [T],
        groups: &mut [Group],
        log: &mut CollectiveLog,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        let mine = self.sharding.share.of(values.len());
        let mut all_reduce = |at: Option<usize>, values: &mut [T], reduction, role: fn(u32) -> Role| {
            let Some(at) = at else { return Ok(()) };
            let began = log.now();
            transport.all_reduce(&mut groups[at], values, reduction)?;
            log.waited(self.what(CollectiveKind::AllReduce, role), bytes_of(values), began);
            Ok::<(), Cause>(())
        };
        // Of what is reduced already, only this rank's share is there.
        let summed = if self.sharding.reduces { &mut values[mine.clone()] } else { &mut values[..] };
        all_reduce(self.shares, summed, Reduction::Sum, Role::Shares)?;
        all_reduce(self.copies, summed, Reduction::Sum, Role::Copies)?;
        match self.replicas {
            _ if self.sharding.reduces => {}
            Some(_) if !self.is_shared_out() => {
                all_reduce(self.replicas, values, Reduction::Avg, Role::Replicas)?;
            }
            _ => {
                if let Some(replicas) = self.replicas {
                    let (counts, began) = (self.sharding.share.counts(values.len()), log.now());
                    let average = transport.reduce_scatter(&mut groups[replicas], values, &counts, Reduction::Avg)?;
                    log.waited(self.what(CollectiveKind::ReduceScatter, Role::Replicas), bytes_of(values), began);
                    values[mine.clone()].copy_from_slice(&average);
                }
                if let Some(across) = self.across {
                    let (mine, began) = (&mut values[mine.clone()], log.now());
                    transport.all_reduce(&mut groups[across], mine, Reduction::Avg)?;
                    log.waited(self.what(CollectiveKind::AllReduce, Role::Across), bytes_of(mine), began);
                }
            }
        }
        if !self.is_average() {
            scale(&mut values[mine], self.of_average());
        }
        Ok(())
    }

    /// Whether all that have a part in it are on one device, which can add up what they have.
    fn meets_on_card(&self, groups: &[Group], backend: &dyn Backend, transport: &dyn Transport) -> bool {
        let most = backend.most_on_card();
        let fits = |at: &usize| groups[*at].size() <= most;
        // Where the optimizer is shared out, pieces differ in length.
        let is_whole = self.replicas.is_none() || !self.is_shared_out();
        let all = [self.shares, self.copies, self.replicas];
        transport.carries_memory() && is_whole && all.iter().flatten().all(fits)
    }

    /// As [`Held::reduce`], for ranks on one device: each shows the others a copy of a piece, and adds all copies up.
    fn reduce_among(
        &self,
        elements: usize,
        stage: u16,
        groups: &mut [Group],
        backend: &mut dyn Backend,
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        for at in [self.shares, self.copies, self.replicas].into_iter().flatten() {
            for piece in pieces(elements) {
                let copy = piece_of(backend, stage, &self.name, piece.clone())?;
                let all = transport.show(&mut groups[at], copy)?;
                backend.sum_on_card(stage, &self.name, Part::Gradient, piece.start, &all)?;
            }
        }
        let replicas = self.replicas.map_or(1, |at| groups[at].size());
        let factor = self.of_average() / replicas as f64;
        if factor != 1.0 {
            backend.scale_on_card(stage, &self.name, Part::Gradient, factor)?;
        }
        Ok(())
    }

    /// As [`Held::reduce`], without leaving the devices.
    fn reduce_on_card(
        &self,
        memory: &OnCard,
        groups: &mut [Group],
        transport: &mut dyn Transport,
    ) -> Result<(), Cause> {
        let mut sum = |at: usize, operation: Operation, counts: &[usize]| {
            transport.on_card(&mut groups[at], operation, memory, Dtype::F32, (0, counts))
        };
        for at in [self.shares, self.copies].into_iter().flatten() {
            sum(at, Operation::AllReduce(Reduction::Sum), &[])?;
        }
        let Some(replicas) = self.replicas else { return Ok(()) };
        if !self.is_shared_out() {
            return Ok(sum(replicas, Operation::AllReduce(Reduction::Avg), &[])?);
        }
        let counts = self.sharding.share.counts((memory.bytes() / 4) as usize);
        Ok(sum(replicas, Operation::ReduceScatter(Reduction::Avg), &counts)?)
    }
}

fn bytes_of<T>(values: &[T]) -> u64 {
    size_of_val(values) as u64
}

fn add(values: Values<'_>, other: &Buffer) {
    match (values, other) {
        (Values::F32(values), Buffer::F32(other)) => values.iter_mut().zip(other).for_each(|(a, b)| *a += *b),
        (Values::F64(values), Buffer::F64(other)) => values.iter_mut().zip(other).for_each(|(a, b)| *a += *b),
        _ => {}
    }
}

fn gather<T: Element>(
    values: &mut [T],
    replicas: &mut Group,
    share: Share,
    transport: &mut dyn Transport,
) -> Result<(), Cause> {
    let counts = share.counts(values.len());
    let mine = values[share.of(values.len())].to_vec();
    let all = transport.all_gather(replicas, &mine, &counts)?;
    values.copy_from_slice(&all);
    Ok(())
}

/// What gradients of this norm are multiplied with where they are to be at most `limit` long, if anything: as torch's
/// `clip_grad_norm_` and Megatron-LM have it, who keep the divisor above 0.
fn clip_factor(norm: f64, limit: f64) -> Option<f64> {
    let factor = limit / (norm + 1e-6);
    // Not "unless it is 1 or more": a norm that is no number leaves all as it is, and the next loss tells of it.
    (factor < 1.0).then_some(factor)
}

fn sum_of_squares<T: Element>(values: &[T]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value.wide() * value.wide())
}

fn scale<T: Element>(values: &mut [T], factor: f64) {
    values.iter_mut().for_each(|value| *value = T::of(value.wide() * factor));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `torch.nn.utils.clip_grad_norm_` has it: `max_norm / (norm + 1e-6)`, and no more than 1.
    #[test]
    fn gradients_are_clipped_as_torch_clips_them() {
        // Of 3 and 4, whose norm is 5.
        let of_five = clip_factor(5.0, 1.0).expect("it is more than 1");
        assert!((of_five - 0.199_999_960_000_008).abs() < 1e-15, "{of_five}");
        // A norm that is the limit, to which 10⁻⁶ is added.
        assert!(clip_factor(1.0, 1.0).is_some_and(|factor| (factor - 0.999_999_000_001).abs() < 1e-15));
        for (norm, limit) in [(0.5, 1.0), (0.0, 1.0), (5.0, f64::INFINITY), (f64::NAN, 1.0)] {
            assert_eq!(clip_factor(norm, limit), None, "{norm}");
        }
    }
}
