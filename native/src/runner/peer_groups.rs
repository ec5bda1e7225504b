//! The ranks that make a stage together with this one, over the transport: a group for each axis.

use std::collections::VecDeque;

use pipeplan_core::base::units::{Bytes, Nanos};
use pipeplan_core::graph::Axis;
use pipeplan_core::model::Dtype;
use pipeplan_core::trace::collectives::CollectiveKind;

use super::collective_log::{CollectiveLog, Role, What, of_stage};
use super::gradients::Position;
use super::status::{State, StatusBoard};
use crate::backend::BackendError;
use crate::backend::cpu::element::Element;
use crate::backend::peers::{Collective, CopyGroup, Peers, Reach, Ticket};
use crate::transport::collectives::overlapped::Started;
use crate::transport::collectives::ring::Passing;
use crate::transport::collectives::shares::ShareCollective;
use crate::transport::collectives::{CollectiveError, Collectives, Group, Operation, Reduction, even_counts};
use crate::transport::{Buffer, OnCard, Transport, TransportError};

/// The groups as a rank holds them over a run.
pub struct PeerGroups {
    /// By the number of the axis.
    groups: [Group; Axis::ALL.len()],
    /// Of weights but experts, and of experts: the sharding group, and those with the same share in other groups.
    copies: [[Group; 2]; 2],
    single: Begun<f32>,
    double: Begun<f64>,
    tickets: u64,
    /// What is noted of it for traces: of what goes through host memory, since a device's own collectives end unseen.
    pub(super) log: CollectiveLog,
}

/// Collectives that have begun, and results that nobody has taken yet.
struct Begun<T> {
    started: Started<T>,
    /// Tickets of what has begun, in order.
    open: VecDeque<Ticket>,
    /// Passes that have begun, in order. Not while there is anything else.
    passing: VecDeque<(Ticket, Passing<T>)>,
    /// What has begun beside all that, in order.
    of_shares: VecDeque<(Ticket, ShareCollective<T>)>,
    done: Vec<(Ticket, Vec<T>)>,
}

impl<T> Default for Begun<T> {
    fn default() -> Begun<T> {
        Begun {
            started: Started::default(),
            open: VecDeque::new(),
            passing: VecDeque::new(),
            of_shares: VecDeque::new(),
            done: Vec::new(),
        }
    }
}

impl PeerGroups {
    /// Of the rank at `position`.
    pub fn new(position: Position) -> PeerGroups {
        // A rank stands once in each of its groups.
        let group = |ranks| Group::new(ranks, position.world_rank()).unwrap_or_else(|error| unreachable!("{error}"));
        PeerGroups {
            groups: Axis::ALL.map(|axis| group(position.group(axis))),
            copies: [false, true].map(|of_experts| position.sharding_groups(of_experts).map(group)),
            single: Begun::default(),
            double: Begun::default(),
            tickets: 0,
            log: CollectiveLog::default(),
        }
    }

    /// Ready for training step `step`.
    pub fn begin(&mut self, step: u32) {
        self.groups.iter_mut().chain(self.copies.iter_mut().flatten()).for_each(|group| group.begin(step));
    }

    /// The groups while an op of `rank` runs.
    pub fn over<'a>(
        &'a mut self,
        transport: &'a mut dyn Transport,
        board: &'a StatusBoard,
        rank: usize,
    ) -> Joined<'a> {
        Joined { groups: self, transport, board, rank, waits_for: State::Joining }
    }

    fn along(&mut self, axis: Axis) -> &mut Group {
        &mut self.groups[axis as usize]
    }
}

/// The groups while an op runs.
pub struct Joined<'a> {
    groups: &'a mut PeerGroups,
    transport: &'a mut dyn Transport,
    board: &'a StatusBoard,
    rank: usize,
    /// What it is in while it waits for what began last.
    waits_for: State,
}

impl Joined<'_> {
    /// Says that the rank waits for a group while `work` runs.
    fn joining<R>(
        &mut self,
        work: impl FnOnce(&mut PeerGroups, &mut dyn Transport) -> Result<R, CollectiveError>,
    ) -> Result<R, BackendError> {
        self.board.note_state(self.rank, self.waits_for);
        let result = work(self.groups, self.transport)?;
        self.board.note_state(self.rank, State::Computing);
        Ok(result)
    }

    /// Notes a collective that this rank has waited for, where it is not alone.
    fn note(&mut self, what: What, bytes: Bytes, began: Nanos) {
        let Role::Along(axis) = what.role else { return };
        if self.groups.groups[axis as usize].size() > 1 {
            self.groups.log.waited(what, bytes, began);
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.groups.tickets += 1;
        Ticket(self.groups.tickets)
    }

    /// The same for what has begun on devices.
    fn on_card(
        &mut self,
        work: impl FnOnce(&mut dyn Transport) -> Result<(), TransportError>,
    ) -> Result<(), BackendError> {
        self.board.note_state(self.rank, self.waits_for);
        work(self.transport)?;
        self.board.note_state(self.rank, State::Computing);
        Ok(())
    }
}

impl Peers for Joined<'_> {
    fn group(&self, axis: Axis) -> (&[usize], usize) {
        let group = &self.groups.groups[axis as usize];
        (group.ranks(), group.member())
    }

    fn reach(&self, axis: Axis) -> Reach {
        match (self.transport.carries_memory(), self.transport.has_own_on_card()) {
            (true, _) => Reach::Members(self.groups.groups[axis as usize].size()),
            (false, true) => Reach::Engine,
            (false, false) => Reach::Host,
        }
    }

    fn show(&mut self, axis: Axis, memory: OnCard) -> Result<Vec<OnCard>, BackendError> {
        self.waits_for = State::along(axis);
        self.joining(|groups, transport| transport.show(groups.along(axis), memory))
    }

    fn begin_on_card(
        &mut self,
        axis: Axis,
        what: Collective,
        from_to: (&OnCard, &OnCard),
        dtype: Dtype,
    ) -> Result<Ticket, BackendError> {
        let operation = match what {
            Collective::Sum => Operation::AllReduce(Reduction::Sum),
            Collective::Max => Operation::AllReduce(Reduction::Max),
            Collective::Gather => Operation::AllGather,
            Collective::Scatter => Operation::ReduceScatter(Reduction::Sum),
        };
        self.waits_for = State::along(axis);
        let begin = |groups: &mut PeerGroups, transport: &mut dyn Transport| {
            transport.begin_from(groups.along(axis), operation, from_to, dtype)
        };
        self.joining(begin).map(Ticket)
    }

    /// Bytes are passed, of whatever format.
    fn pass_on_card(&mut self, axis: Axis, from_to: (&OnCard, &OnCard)) -> Result<Ticket, BackendError> {
        self.waits_for = State::along(axis);
        let begin = |groups: &mut PeerGroups, transport: &mut dyn Transport| {
            transport.begin_from(groups.along(axis), Operation::PassOn, from_to, Dtype::U8)
        };
        self.joining(begin).map(Ticket)
    }

    fn deal_on_card(
        &mut self,
        axis: Axis,
        from: (&OnCard, &[Bytes]),
        to: (&OnCard, &[Bytes]),
    ) -> Result<Ticket, BackendError> {
        self.waits_for = State::along(axis);
        let begin = |groups: &mut PeerGroups, transport: &mut dyn Transport| {
            transport.deal_from(groups.along(axis), from, to)
        };
        self.joining(begin).map(Ticket)
    }

    fn join(&mut self, Ticket(begun): Ticket) -> Result<(), BackendError> {
        self.on_card(|transport| transport.join_on_card(begun))
    }

    fn settle(&mut self) -> Result<(), BackendError> {
        self.on_card(|transport| transport.settle_on_card())
    }

    fn start(&mut self, axis: Axis, what: Collective, values: Buffer) -> Result<Ticket, BackendError> {
        let ticket = self.ticket();
        self.waits_for = State::along(axis);
        let (began, bytes) = (self.groups.log.now(), values.bytes());
        self.joining(|groups, transport| {
            let PeerGroups { groups, single, double, .. } = groups;
            let group = &mut groups[axis as usize];
            match values {
                Buffer::F32(values) => single.start(ticket, what, values, group, transport),
                Buffer::F64(values) => double.start(ticket, what, values, group, transport),
                // No processor gives anything else: what is in bf16 adds up in f32.
                Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => Ok(()),
            }
        })?;
        match what {
            Collective::Sum | Collective::Scatter => self.groups.log.begun(ticket, along(axis, what), bytes, began),
            // These end at once.
            Collective::Max | Collective::Gather => self.note(along(axis, what), bytes, began),
        }
        Ok(ticket)
    }

    fn pass(&mut self, axis: Axis, values: Buffer) -> Result<Ticket, BackendError> {
        let ticket = self.ticket();
        self.waits_for = State::along(axis);
        let (began, bytes) = (self.groups.log.now(), values.bytes());
        self.joining(|groups, transport| {
            let PeerGroups { groups, single, double, .. } = groups;
            let group = &mut groups[axis as usize];
            match values {
                Buffer::F32(values) => single.pass(ticket, values, group, transport),
                Buffer::F64(values) => double.pass(ticket, values, group, transport),
                Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => Ok(()),
            }
        })?;
        let what = What { kind: CollectiveKind::Ring, role: Role::Along(axis) };
        self.groups.log.begun(ticket, what, bytes, began);
        Ok(ticket)
    }

    fn go_on(&mut self) -> Result<(), BackendError> {
        let PeerGroups { single, double, .. } = &mut *self.groups;
        single.started.go_on(self.transport)?;
        Ok(double.started.go_on(self.transport)?)
    }

    /// By the engine's own way, where it has one and nothing is under way.
    fn run(&mut self, axis: Axis, what: Collective, values: Buffer) -> Result<Buffer, BackendError> {
        self.waits_for = State::along(axis);
        let (began, bytes) = (self.groups.log.now(), values.bytes());
        let result = self.joining(|groups, transport| {
            let PeerGroups { groups, single, double, .. } = groups;
            let group = &mut groups[axis as usize];
            match values {
                Buffer::F32(values) => single.run(what, values, group, transport).map(Buffer::F32),
                Buffer::F64(values) => double.run(what, values, group, transport).map(Buffer::F64),
                none @ (Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing) => Ok(none),
            }
        })?;
        self.note(along(axis, what), bytes, began);
        Ok(result)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Buffer, BackendError> {
        let waits = self.groups.log.now();
        let result = self.joining(|groups, transport| {
            let PeerGroups { single, double, .. } = groups;
            if let Some(values) = single.wait(ticket, transport)? {
                return Ok(Buffer::F32(values));
            }
            Ok(double.wait(ticket, transport)?.map_or(Buffer::Nothing, Buffer::F64))
        })?;
        self.groups.log.ended(ticket, waits);
        Ok(result)
    }

    fn begin_shares(
        &mut self,
        of: CopyGroup,
        what: Collective,
        values: Buffer,
        counts: Vec<usize>,
    ) -> Result<Ticket, BackendError> {
        let ticket = self.ticket();
        self.waits_for = State::Sharing;
        let (began, bytes) = (self.groups.log.now(), values.bytes());
        self.joining(|groups, transport| {
            let PeerGroups { copies, single, double, .. } = groups;
            let [within, _] = &mut copies[usize::from(of.experts)];
            match values {
                Buffer::F32(values) => single.begin_shares(ticket, what, values, counts, within, transport),
                Buffer::F64(values) => double.begin_shares(ticket, what, values, counts, within, transport),
                Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing => Ok(()),
            }
        })?;
        let role = Role::Sharded(of_stage(of.stage, of.experts));
        self.groups.log.begun(ticket, What { kind: kind_of(what), role }, bytes, began);
        Ok(ticket)
    }

    fn end_shares(&mut self, ticket: Ticket) -> Result<Buffer, BackendError> {
        self.waits_for = State::Sharing;
        let waits = self.groups.log.now();
        let result = self.joining(|groups, transport| {
            let PeerGroups { single, double, .. } = groups;
            if let Some(values) = single.end_shares(ticket, transport)? {
                return Ok(Buffer::F32(values));
            }
            Ok(double.end_shares(ticket, transport)?.map_or(Buffer::Nothing, Buffer::F64))
        })?;
        self.groups.log.ended(ticket, waits);
        Ok(result)
    }

    fn sum_across(&mut self, of: CopyGroup, values: Buffer) -> Result<Buffer, BackendError> {
        if self.groups.copies[usize::from(of.experts)][1].size() == 1 {
            return Ok(values);
        }
        self.waits_for = State::Sharing;
        let (began, bytes) = (self.groups.log.now(), values.bytes());
        let result = self.joining(|groups, transport| {
            let PeerGroups { copies, single, double, .. } = groups;
            let [_, across] = &mut copies[usize::from(of.experts)];
            match values {
                Buffer::F32(values) => single.run(Collective::Sum, values, across, transport).map(Buffer::F32),
                Buffer::F64(values) => double.run(Collective::Sum, values, across, transport).map(Buffer::F64),
                none @ (Buffer::Bf16(_) | Buffer::OnCard(_) | Buffer::Nothing) => Ok(none),
            }
        })?;
        let role = Role::ShardedAcross(of_stage(of.stage, of.experts));
        self.groups.log.waited(What { kind: CollectiveKind::AllReduce, role }, bytes, began);
        Ok(result)
    }

    fn expert_all_to_all(
        &mut self,
        axis: Axis,
        pieces: Vec<Buffer>,
        counts: &[usize],
    ) -> Result<Vec<Buffer>, BackendError> {
        self.waits_for = State::along(axis);
        let (began, bytes) = (self.groups.log.now(), pieces.iter().map(Buffer::bytes).sum());
        let received = self.joining(|groups, transport| {
            let PeerGroups { groups, single, double, .. } = groups;
            let group = &mut groups[axis as usize];
            match pieces.first() {
                Some(Buffer::F32(_)) => single.expert_all_to_all(pieces, counts, group, transport),
                Some(Buffer::F64(_)) => double.expert_all_to_all(pieces, counts, group, transport),
                _ => Ok(pieces),
            }
        })?;
        self.note(What { kind: CollectiveKind::AllToAll, role: Role::Along(axis) }, bytes, began);
        Ok(received)
    }
}

fn along(axis: Axis, what: Collective) -> What {
    What { kind: kind_of(what), role: Role::Along(axis) }
}

const fn kind_of(what: Collective) -> CollectiveKind {
    match what {
        Collective::Sum | Collective::Max => CollectiveKind::AllReduce,
        Collective::Gather => CollectiveKind::AllGather,
        Collective::Scatter => CollectiveKind::ReduceScatter,
    }
}

impl<T: Element> Begun<T> {
    fn start(
        &mut self,
        ticket: Ticket,
        what: Collective,
        values: Vec<T>,
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<(), CollectiveError> {
        match what {
            Collective::Sum | Collective::Scatter => {
                self.take_all(transport)?;
                self.started.begin(transport, group, values, Reduction::Sum, what == Collective::Scatter)?;
                self.open.push_back(ticket);
            }
            Collective::Max | Collective::Gather => {
                let result = self.run(what, values, group, transport)?;
                self.done.push((ticket, result));
            }
        }
        Ok(())
    }

    fn pass(
        &mut self,
        ticket: Ticket,
        values: Vec<T>,
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<(), CollectiveError> {
        self.finish(transport)?;
        self.passing.push_back((ticket, Passing::begin(transport, group, values)?));
        Ok(())
    }

    fn begin_shares(
        &mut self,
        ticket: Ticket,
        what: Collective,
        values: Vec<T>,
        counts: Vec<usize>,
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<(), CollectiveError> {
        let begun = match what {
            Collective::Gather => ShareCollective::gather(transport, group, values, counts)?,
            _ => ShareCollective::scatter(transport, group, &values, counts)?,
        };
        self.of_shares.push_back((ticket, begun));
        Ok(())
    }

    fn end_shares(
        &mut self,
        ticket: Ticket,
        transport: &mut dyn Transport,
    ) -> Result<Option<Vec<T>>, CollectiveError> {
        if self.of_shares.iter().any(|(begun, _)| *begun == ticket) {
            while let Some((first, begun)) = self.of_shares.pop_front() {
                self.done.push((first, begun.end(transport)?));
                if first == ticket {
                    break;
                }
            }
        }
        Ok(self.take_done(ticket))
    }

    fn take_done(&mut self, ticket: Ticket) -> Option<Vec<T>> {
        let place = self.done.iter().position(|(done, _)| *done == ticket);
        place.map(|place| self.done.swap_remove(place).1)
    }

    fn run(
        &mut self,
        what: Collective,
        mut values: Vec<T>,
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<Vec<T>, CollectiveError> {
        self.end_all(transport)?;
        match what {
            Collective::Sum => transport.all_reduce(group, &mut values, Reduction::Sum)?,
            Collective::Max => transport.all_reduce(group, &mut values, Reduction::Max)?,
            Collective::Gather => return transport.all_gather(group, &values, &vec![values.len(); group.size()]),
            Collective::Scatter => {
                let counts = even_counts(values.len(), group.size());
                return transport.reduce_scatter(group, &values, &counts, Reduction::Sum);
            }
        }
        Ok(values)
    }

    fn expert_all_to_all(
        &mut self,
        pieces: Vec<Buffer>,
        counts: &[usize],
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        self.end_all(transport)?;
        // All pieces are of one format; of another, nothing goes out, and their receiver says what lacks.
        let pieces = pieces.into_iter().map(|piece| T::unpack(piece).unwrap_or_default()).collect();
        Ok(transport.all_to_all(group, pieces, counts)?.into_iter().map(T::pack).collect())
    }

    fn wait(&mut self, ticket: Ticket, transport: &mut dyn Transport) -> Result<Option<Vec<T>>, CollectiveError> {
        if self.open.contains(&ticket) {
            self.finish(transport)?;
        }
        if self.passing.iter().any(|(passing, _)| *passing == ticket) {
            self.take_until(ticket, transport)?;
        }
        Ok(self.take_done(ticket))
    }

    /// Ends all that has begun: what follows on the same channels must find nothing of it.
    fn end_all(&mut self, transport: &mut dyn Transport) -> Result<(), CollectiveError> {
        self.finish(transport)?;
        self.take_all(transport)
    }

    /// Ends the reductions.
    fn finish(&mut self, transport: &mut dyn Transport) -> Result<(), CollectiveError> {
        if !self.open.is_empty() {
            let results = self.started.finish(transport)?;
            self.done.extend(self.open.drain(..).zip(results));
        }
        Ok(())
    }

    /// Takes what has been passed, in order, up to `ticket`.
    fn take_until(&mut self, ticket: Ticket, transport: &mut dyn Transport) -> Result<(), CollectiveError> {
        while let Some((first, passing)) = self.passing.pop_front() {
            self.done.push((first, passing.take(transport)?));
            if first == ticket {
                break;
            }
        }
        Ok(())
    }

    fn take_all(&mut self, transport: &mut dyn Transport) -> Result<(), CollectiveError> {
        let last = self.passing.back().map(|(last, _)| *last);
        last.map_or(Ok(()), |last| self.take_until(last, transport))
    }
}
