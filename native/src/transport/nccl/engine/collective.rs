//! Collectives on separate queues: they start, overlap the rank's queue, and are joined or waited for.

use std::sync::Arc;

use pipeplan_core::model::Dtype;

use super::start::StartError;
use super::{Channel, Nccl};
use crate::backend::cuda::card::{Mark, Memory};
use crate::transport::collectives::{Call, Operation, Reduction};
use crate::transport::nccl::{DataType, NcclError, Reduce, grouped};
use crate::transport::{Tag, TransportError};

/// A sum that has begun.
pub(super) struct Sum {
    /// Behind it, until it is known to have ended.
    pub(super) mark: Option<Box<dyn Mark>>,
    pub(super) tag: Tag,
    /// The others of its ranks.
    pub(super) peers: Vec<usize>,
    /// What it reads and writes, until it is joined: what the rank's queue does with that memory then comes behind it.
    pub(super) memory: Option<[Arc<Memory>; 2]>,
}

/// So many sums may be under way when the next begins. Between two there are some dozens of launches, and a driver that has
/// a thousand waiting makes the caller wait, and the caller then does not watch the run.
pub(super) const MOST_SUMS: usize = 4;

/// NCCL's name of a dtype and the bytes of one element. Formats that are only moved travel as bytes.
fn data_type(dtype: Dtype) -> (DataType, u64) {
    match dtype {
        Dtype::F64 => (DataType::Float64, 8),
        Dtype::Bf16 => (DataType::Bfloat16, 2),
        Dtype::I32 | Dtype::U8 | Dtype::Fp8 | Dtype::MxFp8 | Dtype::MxFp4 | Dtype::NvFp4 => (DataType::Uint8, 1),
        Dtype::F32 => (DataType::Float32, 4),
    }
}

/// NCCL's name of a reduction.
fn reduce_of(reduction: Reduction) -> Reduce {
    match reduction {
        Reduction::Sum => Reduce::Sum,
        Reduction::Avg => Reduce::Avg,
        Reduction::Max => Reduce::Max,
    }
}

/// The start and the length of each member's piece of a buffer at `at`.
fn pieces(at: u64, counts: &[usize], size_of: u64) -> Vec<(u64, u64)> {
    let next = |start: &mut u64, count: &usize| {
        *start += *count as u64;
        Some((at + (*start - *count as u64) * size_of, *count as u64))
    };
    counts.iter().scan(0, next).collect()
}

impl<'t> Nccl<'t> {
    /// Queues the collective `call` from memory to memory, behind all that this rank's own queue has been asked for: the
    /// mark behind it.
    pub(super) fn collective(
        &mut self,
        call: &Call<'_>,
        from: &Memory,
        to: &Memory,
    ) -> Result<Box<dyn Mark>, StartError> {
        self.join_group(call.ranks)?;
        if call.operation == Operation::AllToAll {
            // A piece for the rank itself goes nowhere.
            let at = |lengths: &[usize]| lengths[..call.member].iter().sum::<usize>() as u64;
            let (from, to) = (from.after(at(call.sent)), to.after(at(call.counts)));
            self.card.copy(from, to, call.sent[call.member] as u64).map_err(NcclError::from)?;
        }
        let missing = || NcclError::Missing("no communicator has been made".to_string());
        let Channel { communicator, queue, .. } = self.axes.get_mut(call.ranks).ok_or_else(missing)?;
        let mut watch = || self.control.check();
        let ready = self.card.mark().map_err(NcclError::from)?;
        if !queue.wait_for(&*ready).map_err(NcclError::from)? {
            communicator.until("what a collective reads", &mut watch, || Ok(ready.is_past()?))?;
        }
        let (kind, size_of) = data_type(call.dtype);
        let (from, at, stream, count) = (from.at().number(), to.at().number(), queue.stream(), to.bytes() / size_of);
        let is_even = call.counts.windows(2).all(|pair| pair[0] == pair[1]);
        let first = call.counts.first().map_or(0, |count| *count as u64);
        // In place, this member's piece lies among all.
        let mine = if from == at { at + call.member as u64 * first * size_of } else { at };
        let pieces_at = |at: u64, counts: &[usize]| pieces(at, counts, size_of);
        let pieces = pieces_at(at, call.counts);
        // SAFETY: the memory is kept until the rank's queue waits for this one, or what is on this one has been aborted; the
        // pieces lie within it, which the caller has checked.
        unsafe {
            match call.operation {
                Operation::AllReduce(reduction) => {
                    communicator.all_reduce((from, at), count, (kind, reduce_of(reduction)), stream)
                }
                Operation::Reduce(reduction) => {
                    communicator.reduce(at, count, call.root, (kind, reduce_of(reduction)), stream)
                }
                Operation::Broadcast => communicator.broadcast(at, count, call.root, kind, stream),
                Operation::ReduceScatter(reduction) if is_even => {
                    communicator.reduce_scatter((from, mine), first, (kind, reduce_of(reduction)), stream)
                }
                Operation::AllGather if is_even => {
                    let own = if from == at { mine } else { from };
                    communicator.all_gather((own, at), first, kind, stream)
                }
                // NCCL's own have pieces of one length: others go as one group of the roots' own calls.
                Operation::ReduceScatter(reduction) => grouped(&self.library, &mut [communicator], |members| {
                    pieces.iter().enumerate().filter(|(_, piece)| piece.1 > 0).try_for_each(|(root, piece)| {
                        members[0].reduce(piece.0, piece.1, root, (kind, reduce_of(reduction)), stream)
                    })
                }),
                Operation::AllGather => grouped(&self.library, &mut [communicator], |members| {
                    pieces
                        .iter()
                        .enumerate()
                        .filter(|(_, piece)| piece.1 > 0)
                        .try_for_each(|(root, piece)| members[0].broadcast(piece.0, piece.1, root, kind, stream))
                }),
                // Both at once: each of a ring of ranks would else wait for the next one to take.
                Operation::PassOn => grouped(&self.library, &mut [communicator], |members| {
                    let (member, size) = (call.member, call.ranks.len());
                    members[0].send(from, count * size_of, (member + 1) % size, stream)?;
                    members[0].receive(at, count * size_of, (member + size - 1) % size, stream)
                }),
                // The next member first, so that not all send to the same one at once.
                Operation::AllToAll => grouped(&self.library, &mut [communicator], |members| {
                    let (size, sent) = (call.ranks.len(), pieces_at(from, call.sent));
                    (1..size).map(|distance| (call.member + distance) % size).try_for_each(|other| {
                        let ((from, leave), (to, come)) = (sent[other], pieces[other]);
                        if leave > 0 {
                            members[0].send(from, leave * size_of, other, stream)?;
                        }
                        if come > 0 { members[0].receive(to, come * size_of, other, stream) } else { Ok(()) }
                    })
                }),
                Operation::Gather | Operation::Barrier => {
                    Err(NcclError::NoSuchCollective { operation: call.operation.to_string() })
                }
            }
        }?;
        communicator.settle("a collective to be queued", &mut watch)?;
        Ok(queue.mark().map_err(NcclError::from)?)
    }

    /// Waits until all sums have ended but the last `left`.
    pub(super) fn settle_sums(&mut self, left: usize) -> Result<(), TransportError> {
        let under_way: Vec<u64> =
            self.sums.iter().filter(|(_, sum)| sum.mark.is_some()).map(|(number, _)| *number).collect();
        for number in under_way.iter().take(under_way.len().saturating_sub(left)) {
            self.settle_sum(*number)?;
        }
        Ok(())
    }

    /// Waits until the sum of this number has ended.
    pub(super) fn settle_sum(&mut self, number: u64) -> Result<(), TransportError> {
        let Some(sum) = self.sums.get_mut(&number) else { return Ok(()) };
        let (peers, tag) = (sum.peers.clone(), sum.tag);
        if let Some(mark) = sum.mark.take() {
            self.wait(&*mark, &peers, tag)?;
        }
        // One that is still to be joined keeps its memory until then, so that places do not depend on when this looked.
        if self.sums.get(&number).is_some_and(|sum| sum.memory.is_none()) {
            self.sums.remove(&number);
        }
        Ok(())
    }
}
