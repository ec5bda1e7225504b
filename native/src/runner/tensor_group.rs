//! The ranks that share this rank's matrices, over the transport.

use std::collections::VecDeque;

use pipeplan_core::model::Dtype;

use super::board::{Board, State};
use crate::backend::BackendError;
use crate::backend::cpu::element::Element;
use crate::backend::peers::{Collective, Peers, Reach, Ticket};
use crate::transport::collectives::started::Started;
use crate::transport::collectives::{CollectiveError, Collectives, Group, Operation, Reduction, even_counts};
use crate::transport::{Buffer, OnCard, Transport, TransportError};

/// The group as a rank holds it over a run.
pub struct TensorGroup {
    group: Group,
    single: Begun<f32>,
    double: Begun<f64>,
    tickets: u64,
}

/// Collectives that have begun, and results that nobody has taken yet.
struct Begun<T> {
    started: Started<T>,
    /// Tickets of what has begun, in order.
    open: VecDeque<Ticket>,
    done: Vec<(Ticket, Vec<T>)>,
}

impl<T> Default for Begun<T> {
    fn default() -> Begun<T> {
        Begun { started: Started::default(), open: VecDeque::new(), done: Vec::new() }
    }
}

impl TensorGroup {
    /// Of `group`.
    pub fn new(group: Group) -> TensorGroup {
        TensorGroup { group, single: Begun::default(), double: Begun::default(), tickets: 0 }
    }

    /// Ready for training step `step`.
    pub fn begin(&mut self, step: u32) {
        self.group.begin(step);
    }

    /// The group while an op of `rank` runs.
    pub fn over<'a>(&'a mut self, transport: &'a mut dyn Transport, board: &'a Board, rank: usize) -> Joined<'a> {
        Joined { group: self, transport, board, rank }
    }
}

/// The group while an op runs.
pub struct Joined<'a> {
    group: &'a mut TensorGroup,
    transport: &'a mut dyn Transport,
    board: &'a Board,
    rank: usize,
}

impl Joined<'_> {
    /// Says that the rank waits for its group while `work` runs.
    fn joining<R>(
        &mut self,
        work: impl FnOnce(&mut TensorGroup, &mut dyn Transport) -> Result<R, CollectiveError>,
    ) -> Result<R, BackendError> {
        self.board.note_state(self.rank, State::Joining);
        let result = work(self.group, self.transport)?;
        self.board.note_state(self.rank, State::Computing);
        Ok(result)
    }

    /// The same for what has begun on devices.
    fn on_card(
        &mut self,
        work: impl FnOnce(&mut dyn Transport) -> Result<(), TransportError>,
    ) -> Result<(), BackendError> {
        self.board.note_state(self.rank, State::Joining);
        work(self.transport)?;
        self.board.note_state(self.rank, State::Computing);
        Ok(())
    }
}

impl Peers for Joined<'_> {
    fn reach(&self) -> Reach {
        match (self.transport.carries_memory(), self.transport.has_own_on_card()) {
            (true, _) => Reach::Members(self.group.group.size()),
            (false, true) => Reach::Engine,
            (false, false) => Reach::Host,
        }
    }

    fn show(&mut self, memory: OnCard) -> Result<Vec<OnCard>, BackendError> {
        self.joining(|group, transport| transport.show(&mut group.group, memory))
    }

    fn begin_on_card(
        &mut self,
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
        self.joining(|group, transport| transport.begin_from(&mut group.group, operation, from_to, dtype)).map(Ticket)
    }

    fn join(&mut self, Ticket(begun): Ticket) -> Result<(), BackendError> {
        self.on_card(|transport| transport.join_on_card(begun))
    }

    fn settle(&mut self) -> Result<(), BackendError> {
        self.on_card(|transport| transport.settle_on_card())
    }

    fn start(&mut self, what: Collective, values: Buffer) -> Result<Ticket, BackendError> {
        let ticket = Ticket(self.group.tickets);
        self.group.tickets += 1;
        self.joining(|group, transport| {
            let TensorGroup { group, single, double, .. } = group;
            match values {
                Buffer::F32(values) => single.start(ticket, what, values, group, transport),
                Buffer::F64(values) => double.start(ticket, what, values, group, transport),
                // No processor gives anything else.
                Buffer::OnCard(_) | Buffer::Nothing => Ok(()),
            }
        })?;
        Ok(ticket)
    }

    fn go_on(&mut self) -> Result<(), BackendError> {
        let TensorGroup { single, double, .. } = &mut *self.group;
        single.started.go_on(self.transport)?;
        Ok(double.started.go_on(self.transport)?)
    }

    /// By the engine's own way, where it has one and nothing is under way.
    fn run(&mut self, what: Collective, values: Buffer) -> Result<Buffer, BackendError> {
        self.joining(|group, transport| {
            let TensorGroup { group, single, double, .. } = group;
            match values {
                Buffer::F32(values) => single.run(what, values, group, transport).map(Buffer::F32),
                Buffer::F64(values) => double.run(what, values, group, transport).map(Buffer::F64),
                none @ (Buffer::OnCard(_) | Buffer::Nothing) => Ok(none),
            }
        })
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Buffer, BackendError> {
        self.joining(|group, transport| {
            let TensorGroup { single, double, .. } = group;
            if let Some(values) = single.wait(ticket, transport)? {
                return Ok(Buffer::F32(values));
            }
            Ok(double.wait(ticket, transport)?.map_or(Buffer::Nothing, Buffer::F64))
        })
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
        if let Collective::Sum | Collective::Scatter = what {
            self.started.begin(transport, group, values, Reduction::Sum, what == Collective::Scatter)?;
            self.open.push_back(ticket);
            return Ok(());
        }
        let result = self.run(what, values, group, transport)?;
        self.done.push((ticket, result));
        Ok(())
    }

    fn run(
        &mut self,
        what: Collective,
        mut values: Vec<T>,
        group: &mut Group,
        transport: &mut dyn Transport,
    ) -> Result<Vec<T>, CollectiveError> {
        // What follows on the same channels must find nothing of what has begun before.
        self.finish(transport)?;
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

    fn wait(&mut self, ticket: Ticket, transport: &mut dyn Transport) -> Result<Option<Vec<T>>, CollectiveError> {
        if self.open.contains(&ticket) {
            self.finish(transport)?;
        }
        let place = self.done.iter().position(|(done, _)| *done == ticket);
        Ok(place.map(|place| self.done.swap_remove(place).1))
    }

    fn finish(&mut self, transport: &mut dyn Transport) -> Result<(), CollectiveError> {
        if !self.open.is_empty() {
            let results = self.started.finish(transport)?;
            self.done.extend(self.open.drain(..).zip(results));
        }
        Ok(())
    }
}
