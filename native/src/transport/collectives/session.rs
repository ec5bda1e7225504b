//! One call of a collective as one member carries it out.

use pipeplan_core::model::Dtype;

use super::{ANY_LENGTH, Call, Channel, CollectiveError, Group, Operation, Reduction, reduced};
use crate::backend::cpu::element::Element;
use crate::transport::{Buffer, Incoming, OnCard, Outgoing, Tag, Transport, TransportError, What};

/// One call of one collective on one member.
pub(super) struct Session<'a> {
    pub(super) operation: Operation,
    call: u32,
    tag: Tag,
    pub(super) ranks: Vec<usize>,
    pub(super) member: usize,
    /// The other members, starting with the next one, so that not all send to the same one at once.
    pub(super) others: Vec<usize>,
    counts: &'a [usize],
    root: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(group: &mut Group, operation: Operation, counts: &'a [usize], root: usize) -> Session<'a> {
        let (call, tag) = group.next(operation);
        let (member, size) = (group.member(), group.size());
        let others = (1..size).map(|distance| (member + distance) % size).collect();
        Session { operation, call, tag, ranks: group.ranks().to_vec(), member, others, counts, root }
    }

    pub(super) fn check(&self, found: usize, needed: usize, what: &'static str) -> Result<(), CollectiveError> {
        if found == needed {
            return Ok(());
        }
        let (operation, members) = (self.operation, self.ranks.len());
        Err(CollectiveError::WrongCall { operation, members, what, found, needed })
    }

    pub(super) fn check_root(&self) -> Result<(), CollectiveError> {
        if self.root < self.ranks.len() {
            return Ok(());
        }
        Err(CollectiveError::NoSuchMember { operation: self.operation, root: self.root, ranks: self.ranks.clone() })
    }

    pub(super) fn failed(&self, source: TransportError) -> CollectiveError {
        CollectiveError::Transport { operation: self.operation, call: self.call, ranks: self.ranks.clone(), source }
    }

    /// Whether the engine itself does `operation` where a member gets so many values.
    pub(super) fn is_own<X: Transport + ?Sized>(&self, transport: &X, operation: Operation, values: usize) -> bool {
        transport.has_own(operation) && transport.suits_own(&self.ranks, values)
    }

    /// The `values` of all, one after the other by position, by the engine's own all-gather where it has one.
    pub(super) fn gathered<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        values: &[T],
        counts: &[usize],
    ) -> Result<Vec<T>, CollectiveError> {
        if self.is_own(transport, Operation::AllGather, counts.iter().sum()) {
            return self.own_as(transport, Operation::AllGather, counts, values);
        }
        Ok(self.to_all(transport, values, counts)?.concat())
    }

    /// What the engine is asked to do on values of `dtype`.
    pub(super) fn call(&self, dtype: Dtype) -> Call<'_> {
        Call {
            operation: self.operation,
            ranks: &self.ranks,
            member: self.member,
            root: self.root,
            counts: self.counts,
            sent: &[],
            dtype,
            tag: self.tag,
        }
    }

    /// The result of the engine's own collective.
    pub(super) fn own<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        values: &[T],
    ) -> Result<Vec<T>, CollectiveError> {
        self.own_as(transport, self.operation, self.counts, values)
    }

    fn own_as<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        operation: Operation,
        counts: &[usize],
        values: &[T],
    ) -> Result<Vec<T>, CollectiveError> {
        let call = Call { operation, counts, ..self.call(T::DTYPE) };
        let result =
            transport.own_collective(&call, T::pack(values.to_vec())).map_err(|source| self.failed(source))?;
        let length = result.values();
        self.unpacked(self.ranks[self.member], result, length)
    }

    /// As [`Session::own`], where the result takes the place of the input.
    pub(super) fn own_into<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        values: &mut [T],
    ) -> Result<(), CollectiveError> {
        let result: Vec<T> = self.own(transport, values)?;
        self.check(result.len(), values.len(), "values by the engine")?;
        values.copy_from_slice(&result);
        Ok(())
    }

    /// Sends each piece to its member and receives one parcel of the given length from each member of `from`,
    /// all in one group.
    pub(super) fn exchange<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        sends: Vec<(usize, Vec<T>)>,
        from: &[(usize, usize)],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let sends = sends.into_iter().map(|(member, values)| (member, T::pack(values))).collect();
        let buffers = self.exchange_parcels(transport, sends, from.iter().map(|(member, _)| *member))?;
        self.all_unpacked(from, buffers)
    }

    /// One parcel of the given length from each member of `from`, where all have come; does not wait.
    pub(super) fn arrived<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        from: &[(usize, usize)],
    ) -> Result<Option<Vec<Vec<T>>>, CollectiveError> {
        let receives = self.incoming(from.iter().map(|(member, _)| *member));
        let buffers = transport.take_arrived(&receives).map_err(|source| self.failed(source))?;
        buffers.map(|buffers| self.all_unpacked(from, buffers)).transpose()
    }

    /// From here on, its parts are sent on `channel`.
    pub(super) fn turn_to(&mut self, channel: Channel) {
        if let What::Part(part) = &mut self.tag.what {
            part.channel = channel;
        }
    }

    fn incoming(&self, from: impl Iterator<Item = usize>) -> Vec<Incoming> {
        from.map(|member| Incoming { peer: self.ranks[member], tag: self.tag }).collect()
    }

    fn all_unpacked<T: Element>(
        &self,
        from: &[(usize, usize)],
        buffers: Vec<Buffer>,
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let parcels = from.iter().zip(buffers);
        parcels.map(|((member, length), buffer)| self.unpacked(self.ranks[*member], buffer, *length)).collect()
    }

    /// As [`Session::exchange`], of whatever parcels hold.
    fn exchange_parcels<X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        sends: Vec<(usize, Buffer)>,
        from: impl Iterator<Item = usize>,
    ) -> Result<Vec<Buffer>, CollectiveError> {
        let outgoing = |(member, buffer)| Outgoing { peer: self.ranks[member], tag: self.tag, buffer };
        let sends = sends.into_iter().map(outgoing).collect();
        transport.exchange(sends, &self.incoming(from)).map_err(|source| self.failed(source))
    }

    /// The memory of devices that each member shows, by position.
    pub(super) fn shown<X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        memory: OnCard,
    ) -> Result<Vec<OnCard>, CollectiveError> {
        let sends = self.others.iter().map(|member| (*member, Buffer::OnCard(memory.clone()))).collect();
        let received = self.exchange_parcels(transport, sends, self.others.iter().copied())?;
        let (bytes, mine) = (memory.bytes(), Buffer::OnCard(memory));
        let mut all: Vec<Buffer> = self.ranks.iter().map(|_| mine.clone()).collect();
        for (member, buffer) in self.others.iter().zip(received) {
            all[*member] = buffer;
        }
        let memory = |(member, buffer): (usize, Buffer)| match buffer {
            Buffer::OnCard(memory) if memory.bytes() == bytes => Ok(memory),
            other => Err(CollectiveError::WrongSize {
                operation: self.operation,
                call: self.call,
                ranks: self.ranks.clone(),
                peer: self.ranks[member],
                found: other.bytes() as usize,
                found_format: other.format(),
                expected: bytes as usize,
                expected_format: mine.format(),
            }),
        };
        all.into_iter().enumerate().map(memory).collect()
    }

    /// Sends each piece to its member and waits for none of them.
    pub(super) fn post<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        sends: Vec<(usize, Vec<T>)>,
    ) -> Result<(), CollectiveError> {
        let outgoing =
            |(member, values)| Outgoing { peer: self.ranks[member], tag: self.tag, buffer: T::pack(values) };
        transport.post(sends.into_iter().map(outgoing).collect()).map_err(|source| self.failed(source))
    }

    pub(super) fn unpacked<T: Element>(
        &self,
        peer: usize,
        buffer: Buffer,
        expected: usize,
    ) -> Result<Vec<T>, CollectiveError> {
        let (found, found_format) = (buffer.values(), buffer.format());
        let wrong = || CollectiveError::WrongSize {
            operation: self.operation,
            call: self.call,
            ranks: self.ranks.clone(),
            peer,
            found,
            found_format,
            expected,
            expected_format: T::pack(Vec::new()).format(),
        };
        T::unpack(buffer).filter(|values| expected == ANY_LENGTH || values.len() == expected).ok_or_else(wrong)
    }

    /// `values` to every member, and those of every member, by position.
    pub(super) fn to_all<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        values: &[T],
        counts: &[usize],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let sends = self.others.iter().map(|member| (*member, values.to_vec())).collect();
        let from: Vec<(usize, usize)> = self.others.iter().map(|member| (*member, counts[*member])).collect();
        let received = self.exchange(transport, sends, &from)?;
        Ok(self.in_order(received, values.to_vec()))
    }

    /// This member's piece of the reduction: each piece goes to its member, which sums it in order.
    pub(super) fn scattered<T: Element, X: Transport + ?Sized>(
        &self,
        transport: &mut X,
        values: &[T],
        reduction: Reduction,
    ) -> Result<Vec<T>, CollectiveError> {
        let mut rest = values;
        let mut pieces: Vec<&[T]> = Vec::with_capacity(self.counts.len());
        for count in self.counts {
            // The counts sum to the length: checked by the caller, or made so.
            let (piece, after) = rest.split_at(*count);
            pieces.push(piece);
            rest = after;
        }
        let sends = self.others.iter().map(|member| (*member, pieces[*member].to_vec())).collect();
        let mine = pieces[self.member];
        let from: Vec<(usize, usize)> = self.others.iter().map(|member| (*member, mine.len())).collect();
        let received = self.exchange(transport, sends, &from)?;
        Ok(reduced(&self.in_order(received, mine.to_vec()), reduction))
    }

    /// What came from the others, and this member's own, by position.
    pub(super) fn in_order<T>(&self, received: Vec<Vec<T>>, mine: Vec<T>) -> Vec<Vec<T>> {
        let mut all: Vec<Vec<T>> = self.ranks.iter().map(|_| Vec::new()).collect();
        for (member, values) in self.others.iter().zip(received) {
            all[*member] = values;
        }
        all[self.member] = mine;
        all
    }
}
