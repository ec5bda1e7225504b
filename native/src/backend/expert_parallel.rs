//! Routed tokens among the expert-parallel ranks, on every device: how many go where, and whether there is room for them.
//!
//! Before any copy leaves, every rank learns how many all of them have for each expert. So each knows what comes to it, and
//! whether it and all others have room for that: where one has not, all of them end alike, and nothing has been sent.

use pipeplan_core::graph::Axis;

use super::BackendError;
use super::cpu::element::Element;
use super::cpu::kernels::experts::Order;
use super::peers::{Collective, Peers};
use super::stages::ExpertOverflow;

/// What comes to this rank, of which each has `room` rows, from all that hold its experts' others: a tensor of arrivals; or
/// the fullest of them, where not all have room. Every rank gives its own `order`.
///
/// # Errors
/// Where another rank does not come, or the transport fails.
pub fn arrivals<T: Element>(
    order: &Order,
    room: usize,
    peers: &mut dyn Peers,
) -> Result<Result<Vec<i32>, ExpertOverflow>, BackendError> {
    let counts = counts_of_all::<T>(order, peers)?;
    let (_, own) = peers.group(Axis::Expert);
    let experts = order.counts.len() / counts.len();
    if let Some(overflow) = overflow(&counts, experts, room, order.places.len()) {
        return Ok(Err(overflow));
    }
    let mine = counts.iter().flat_map(|counts| &counts[own * experts..(own + 1) * experts]);
    Ok(Ok(mine.map(|count| *count as i32).collect()))
}

/// By rank: the copies that it has for each expert. Numbers of them are exact in 32-bit floats up to 2²⁴.
fn counts_of_all<T: Element>(order: &Order, peers: &mut dyn Peers) -> Result<Vec<Vec<usize>>, BackendError> {
    let own = order.counts.iter().map(|count| T::of(*count as f64)).collect();
    let all = peers.run(Axis::Expert, Collective::Gather, T::pack(own))?;
    let all = T::unpack(all).unwrap_or_default();
    let of_rank = |counts: &[T]| counts.iter().map(|count| count.wide() as usize).collect();
    Ok(all.chunks_exact(order.counts.len()).map(of_rank).collect())
}

/// The fullest rank, where it has no room for what comes to it. By rank `counts` of copies for each expert, of which each
/// rank holds `experts`; each has `room` rows, and `copies` from itself.
fn overflow(counts: &[Vec<usize>], experts: usize, room: usize, copies: usize) -> Option<ExpertOverflow> {
    let come = |member: usize| -> usize {
        counts.iter().flat_map(|counts| &counts[member * experts..(member + 1) * experts]).sum()
    };
    let (member, come) = (0..counts.len()).map(|member| (member, come(member))).max_by_key(|(_, come)| *come)?;
    (come > room).then_some(ExpertOverflow { member, come, room, copies })
}

/// By rank of `ranks`: the copies of `order` that go to its experts.
pub fn to_each(order: &Order, ranks: usize) -> Vec<usize> {
    order.counts.chunks(order.counts.len() / ranks).map(|counts| counts.iter().sum()).collect()
}
