//! Attention over keys and values that ranks pass around a ring (arXiv:2310.01889).
//!
//! Each rank has the queries, keys and values of its part of every sequence. In as many steps as there are ranks, the block
//! of keys and values that is here goes on to the next rank while the queries meet it, and then the next one is taken. So a
//! rank holds two blocks at most, which are its operator's to count: what is on its way is the transport's.
//!
//! In the gradient, those of a block's keys and values follow it, one step behind: a rank adds its own to what has come and
//! passes the sum on. After the last step they come home.

use pipeplan_core::graph::{Axis, Spread};

use super::super::element::Element;
use super::attention::{Rows, Seen, attention_block, attention_grad_block, before_any_block};
use super::{Call, Context};
use crate::backend::BackendError;
use crate::backend::peers::{Peers, Ticket};

/// Passes `block` on.
fn pass<T: Element>(peers: &mut dyn Peers, block: &[T]) -> Result<Ticket, BackendError> {
    peers.pass(Axis::Context, T::pack(block.to_vec()))
}

/// Takes what the rank before this one has passed. It has as many values: a pass says so otherwise.
fn take<T: Element>(peers: &mut dyn Peers, ticket: Ticket, block: &mut [T]) -> Result<(), BackendError> {
    if let Some(values) = T::unpack(peers.wait(ticket)?) {
        block.copy_from_slice(&values);
    }
    Ok(())
}

pub fn attention<T: Element>(
    context: &Context<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    peers: &mut dyn Peers,
) -> Result<(), BackendError> {
    let (sequence, part) = (spread.heads.sequence, context.part);
    let queries = Rows::of(part, sequence);
    let (q, k, v) = (call.floats(0), call.floats(1), call.floats(2));
    let [o, log_sums, ring] = &mut *call.outputs else { panic!("attention in a ring has three outputs") };
    let (o, log_sums, ring) = (o.floats_mut(), log_sums.floats_mut(), ring.floats_mut());
    before_any_block(o, log_sums);
    let (mut here, mut next) = ring.split_at_mut(k.len() + v.len());
    here[..k.len()].copy_from_slice(k);
    here[k.len()..].copy_from_slice(v);
    for step in 0..part.parts {
        let on_its_way = (step + 1 < part.parts).then(|| pass(peers, here)).transpose()?;
        let (keys, values) = here.split_at(k.len());
        let rows = [queries, Rows::of(part.after(step), sequence)];
        let spread = (spread, context.documents.as_ref());
        attention_block(&*context.gemm, spread, [q, keys, values], [&mut *o, &mut *log_sums], rows);
        if let Some(ticket) = on_its_way {
            take(peers, ticket, next)?;
            std::mem::swap(&mut here, &mut next);
        }
    }
    Ok(())
}

pub fn attention_grad<T: Element>(
    context: &Context<T>,
    call: &mut Call<'_, '_, T>,
    spread: &Spread,
    peers: &mut dyn Peers,
) -> Result<(), BackendError> {
    let (sequence, part) = (spread.heads.sequence, context.part);
    let queries = Rows::of(part, sequence);
    let seen = Seen::by(call);
    let (k, v) = (call.floats(2), call.floats(3));
    let [dq, dk, dv, ring] = &mut *call.outputs else { panic!("the gradient in a ring has four outputs") };
    let (dq, dk, dv) = (dq.floats_mut(), dk.floats_mut(), dv.floats_mut());
    dq.fill(T::ZERO);
    let block = k.len() + v.len();
    let (blocks, gradients) = ring.floats_mut().split_at_mut(2 * block);
    let (mut here, mut next) = blocks.split_at_mut(block);
    let (own, arrived) = gradients.split_at_mut(block);
    here[..k.len()].copy_from_slice(k);
    here[k.len()..].copy_from_slice(v);
    // The gradients of the block that was here before, on their way to the next rank.
    let mut behind = None;
    for step in 0..part.parts {
        let on_its_way = (step + 1 < part.parts).then(|| pass(peers, here)).transpose()?;
        own.fill(T::ZERO);
        let (keys, values) = here.split_at(k.len());
        let (dkeys, dvalues) = own.split_at_mut(k.len());
        let rows = [queries, Rows::of(part.after(step), sequence)];
        let spread = (spread, context.documents.as_ref());
        attention_grad_block(&*context.gemm, spread, &seen, [keys, values], [&mut *dq, dkeys, dvalues], rows);
        if let Some(ticket) = behind {
            take(peers, ticket, arrived)?;
            own.iter_mut().zip(&*arrived).for_each(|(own, arrived)| *own += *arrived);
        }
        behind = Some(pass(peers, own)?);
        if let Some(ticket) = on_its_way {
            take(peers, ticket, next)?;
            std::mem::swap(&mut here, &mut next);
        }
    }
    if let Some(ticket) = behind {
        take(peers, ticket, arrived)?;
    }
    dk.copy_from_slice(&arrived[..k.len()]);
    dv.copy_from_slice(&arrived[k.len()..]);
    Ok(())
}
