//! The ranks that make a stage together with this one, as a backend sees them: its tensor-parallel group, its
//! context-parallel group, its expert-parallel group, and the data-parallel copies of its weights. They come to the
//! same collectives in the same order, since all walk the same graph.

use pipeplan_core::base::units::Bytes;
use pipeplan_core::graph::Axis;
use pipeplan_core::model::Dtype;

use super::BackendError;
use crate::transport::{Buffer, OnCard};

/// What they do together with the values that each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Each gets the sum.
    Sum,
    /// Each gets the greatest of each element.
    Max,
    /// Each gets the values of all, by member.
    Gather,
    /// Each gets its part of the sum: the parts are equal, by member.
    Scatter,
}

/// Copies of weights of a stage, which see other tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyGroup {
    /// The stage.
    pub stage: u16,
    /// Whether of its experts, or of all its other weights: those may have other copies.
    pub experts: bool,
}

/// A collective that has begun, by the order of beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How far memory of devices goes among the ranks along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nowhere: values go through host memory.
    Host,
    /// So many members, all on one device: each can read the others' memory.
    Members(usize),
    /// To an engine that sums and sends such memory itself.
    Engine,
}

/// The ranks that make a stage together.
pub trait Peers {
    /// Begins a collective of the ranks along `axis` and does not wait for the others. `values` are in host memory.
    ///
    /// # Errors
    /// Where the transport fails.
    fn start(&mut self, axis: Axis, what: Collective, values: Buffer) -> Result<Ticket, BackendError>;

    /// What a collective that has begun gives. Collectives end in the order in which they began, so this may end
    /// earlier ones too.
    ///
    /// # Errors
    /// Where the transport fails, or another rank does not come.
    fn wait(&mut self, ticket: Ticket) -> Result<Buffer, BackendError>;

    /// Sends `values`, in host memory, to the next member along `axis` and does not wait. [`Peers::wait`] then gives
    /// those of the member before this one, of the last for the first; all have equally many.
    ///
    /// # Errors
    /// As [`Peers::start`].
    fn pass(&mut self, axis: Axis, values: Buffer) -> Result<Ticket, BackendError>;

    /// Sends `pieces[i]` to member `i` along `axis` and gets one piece from each, by member; `counts[i]` is how many
    /// values member `i` sends to this one. The pieces are in host memory.
    ///
    /// # Errors
    /// Where the transport fails, another rank does not come, or the counts do not fit.
    fn expert_all_to_all(
        &mut self,
        axis: Axis,
        pieces: Vec<Buffer>,
        counts: &[usize],
    ) -> Result<Vec<Buffer>, BackendError>;

    /// Begins to gather shares of weights over the sharding group of `of`, or to sum gradients over it of which each
    /// member gets its share; `counts` are the lengths of the shares. Does not wait. `what` is [`Collective::Gather`]
    /// or [`Collective::Scatter`]. Other collectives may begin and end meanwhile.
    ///
    /// # Errors
    /// As [`Peers::start`].
    fn begin_shares(
        &mut self,
        of: CopyGroup,
        what: Collective,
        values: Buffer,
        counts: Vec<usize>,
    ) -> Result<Ticket, BackendError>;

    /// What [`Peers::begin_shares`] gives. Those that have begun earlier end, too.
    ///
    /// # Errors
    /// As [`Peers::wait`].
    fn end_shares(&mut self, ticket: Ticket) -> Result<Buffer, BackendError>;

    /// The sum of `values` over the ranks that hold the same share in other sharding groups of `of`: over all copies,
    /// where nothing is sharded.
    ///
    /// # Errors
    /// As [`Peers::wait`].
    fn sum_across(&mut self, of: CopyGroup, values: Buffer) -> Result<Buffer, BackendError>;

    /// The ranks along `axis`, in the world, and this one's number among them.
    fn group(&self, axis: Axis) -> (&[usize], usize);

    /// Lets what has begun go on as far as it can without waiting.
    ///
    /// # Errors
    /// Where the transport fails.
    fn go_on(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// How far memory of devices goes along `axis`.
    fn reach(&self, _axis: Axis) -> Reach {
        Reach::Host
    }

    /// The memory that each member along `axis` shows, by member, where they [reach](Reach::Members) it: complete,
    /// and not written any more. What is shown stays until all have let go of it.
    ///
    /// # Errors
    /// Where the transport fails, or another rank does not come.
    fn show(&mut self, _axis: Axis, memory: OnCard) -> Result<Vec<OnCard>, BackendError> {
        Ok(vec![memory])
    }

    /// Begins a collective along `axis` on memory of devices, where an [engine](Reach::Engine) does: behind all that
    /// this rank's device has been asked for, and at the same time as its next work. `from` and `to` may be the same.
    ///
    /// # Errors
    /// As [`Peers::show`].
    fn begin_on_card(
        &mut self,
        _axis: Axis,
        _what: Collective,
        _from_to: (&OnCard, &OnCard),
        _dtype: Dtype,
    ) -> Result<Ticket, BackendError> {
        Ok(Ticket(0))
    }

    /// Begins to send what lies in the device's memory at `from` to the next member along `axis`, and to take that of
    /// the member before this one at `to`, as [`Peers::begin_on_card`] begins: all have equally much.
    ///
    /// # Errors
    /// As [`Peers::show`].
    fn pass_on_card(&mut self, _axis: Axis, _from_to: (&OnCard, &OnCard)) -> Result<Ticket, BackendError> {
        Ok(Ticket(0))
    }

    /// Begins to send what lies in the device's memory at `from`, one piece of the given bytes behind the other, to
    /// the members along `axis`, and to take their pieces, of so many bytes, one behind the other at `to`, as
    /// [`Peers::begin_on_card`] begins. The two lie apart.
    ///
    /// # Errors
    /// As [`Peers::show`], and where the lengths do not fit.
    fn deal_on_card(
        &mut self,
        _axis: Axis,
        _from: (&OnCard, &[Bytes]),
        _to: (&OnCard, &[Bytes]),
    ) -> Result<Ticket, BackendError> {
        Ok(Ticket(0))
    }

    /// What this rank's device is asked for from here on comes behind what has [begun](Peers::begin_on_card) there;
    /// the rank itself does not wait.
    ///
    /// # Errors
    /// As [`Peers::show`].
    fn join(&mut self, _ticket: Ticket) -> Result<(), BackendError> {
        Ok(())
    }

    /// Waits until nothing that has begun is under way on devices: before the rank waits for its device, which could
    /// wait for others
    /// without end.
    ///
    /// # Errors
    /// As [`Peers::show`].
    fn settle(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Begins a collective and waits for it.
    ///
    /// # Errors
    /// As [`Peers::start`] and [`Peers::wait`].
    fn run(&mut self, axis: Axis, what: Collective, values: Buffer) -> Result<Buffer, BackendError> {
        let ticket = self.start(axis, what, values)?;
        self.wait(ticket)
    }
}

/// No others: whatever is done together is done.
#[derive(Debug, Default)]
pub struct Alone {
    begun: Vec<Buffer>,
}

impl Peers for Alone {
    fn start(&mut self, _: Axis, _: Collective, values: Buffer) -> Result<Ticket, BackendError> {
        self.begun.push(values);
        Ok(Ticket(self.begun.len() as u64 - 1))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Buffer, BackendError> {
        let begun = self.begun.get_mut(ticket.0 as usize);
        Ok(begun.map_or(Buffer::Nothing, |values| std::mem::replace(values, Buffer::Nothing)))
    }

    fn pass(&mut self, _: Axis, values: Buffer) -> Result<Ticket, BackendError> {
        self.begun.push(values);
        Ok(Ticket(self.begun.len() as u64 - 1))
    }

    fn expert_all_to_all(&mut self, _: Axis, pieces: Vec<Buffer>, _: &[usize]) -> Result<Vec<Buffer>, BackendError> {
        Ok(pieces)
    }

    fn begin_shares(
        &mut self,
        _: CopyGroup,
        _: Collective,
        values: Buffer,
        _: Vec<usize>,
    ) -> Result<Ticket, BackendError> {
        self.begun.push(values);
        Ok(Ticket(self.begun.len() as u64 - 1))
    }

    fn end_shares(&mut self, ticket: Ticket) -> Result<Buffer, BackendError> {
        self.wait(ticket)
    }

    fn sum_across(&mut self, _: CopyGroup, values: Buffer) -> Result<Buffer, BackendError> {
        Ok(values)
    }

    fn group(&self, _: Axis) -> (&[usize], usize) {
        (&[0], 0)
    }
}
