//! Operators of expert parallel: routed tokens go to the ranks that hold their experts, and come back.

use pipeplan_core::graph::{Axis, Kernel, Tensor};

use super::element::Element;
use super::kernels::Data;
use super::kernels::experts::{Arrivals, Order, gather, spread};
use super::node_dispatch::Routes;
use crate::backend::BackendError;
use crate::backend::expert_parallel::{self, to_each};
use crate::backend::peers::Peers;
use crate::backend::stages::{ExpertOverflow, Held, Input};
use crate::transport::Buffer;

/// Runs `kernel`, one of those that are dealt, with the ranks that hold the other experts. A token goes once for each of
/// its experts, or with so many ranks of a `node` once to each node.
///
/// # Errors
/// Where another rank does not come, or the transport fails.
pub(super) fn run<T: Element>(
    kernel: &Kernel,
    inputs: &[Input<'_, Data<T>>],
    outputs: &mut [(&Tensor, Data<T>)],
    node: Option<usize>,
    peers: &mut dyn Peers,
) -> Result<Option<ExpertOverflow>, BackendError> {
    let here = |at: usize| match inputs[at].data {
        Held::Here(data) => data,
        _ => panic!("input {at} of `{}` lies apart", kernel.name()),
    };
    let columns = |at: usize| inputs[at].tensor.shape.last().map_or(1, |columns| *columns as usize);
    let width = columns(0);
    let arrivals = |at: usize| Arrivals::new(here(at).tokens(), columns(at));
    let order = |chosen: usize, arrivals: usize| Order::new(here(chosen).tokens(), here(arrivals).tokens().len());
    let experts = match kernel {
        Kernel::Dispatch { .. } => outputs[1].0.shape.last().map_or(1, |experts| *experts as usize),
        _ => columns(2),
    };
    let (chosen, active) = (here(1).tokens(), columns(1));
    let routes = |peers: &mut dyn Peers| {
        node.map(|node| Routes::of_all::<T>(chosen, (active, experts, node), peers)).transpose()
    };
    match kernel {
        Kernel::Dispatch { .. } => {
            let [(_, rows), (of_arrivals, arrived), (_, shares)] = outputs else {
                panic!("dispatch has three outputs")
            };
            let order = Order::new(here(1).tokens(), of_arrivals.elements() as usize);
            let (rows, arrived, shares) = (rows.floats_mut(), arrived.tokens_mut(), shares.floats_mut());
            match expert_parallel::arrivals::<T>(&order, rows.len() / width, peers)? {
                Ok(arrivals) => arrived.copy_from_slice(&arrivals),
                Err(overflow) => return Ok(Some(overflow)),
            }
            // Behind each copy of a token its weight.
            let (x, weights) = (here(0).floats(), here(2).floats());
            let arrivals = Arrivals::new(arrived, experts);
            let copies = match routes(peers)? {
                Some(routes) => routes.out((x, width), Some(weights), peers)?,
                None => out(&with_weights((x, width), weights, &order), width + 1, &order, &arrivals, peers)?,
            };
            rows.fill(T::ZERO);
            shares.fill(T::ZERO);
            for (copy, place) in copies.chunks_exact(width + 1).zip(arrivals.places()) {
                rows[place * width..(place + 1) * width].copy_from_slice(&copy[..width]);
                shares[place] = copy[width];
            }
        }
        Kernel::DispatchGrad { .. } => {
            let (order, drows, dshares) = (order(1, 2), here(0).floats(), here(3).floats());
            let with_share = |(drow, dshare): (&[T], &T)| [drow, &[*dshare]].concat();
            let with_shares: Vec<T> = drows.chunks_exact(width).zip(dshares).flat_map(with_share).collect();
            let [(_, dx), (_, dweights)] = outputs else { panic!("dispatch_grad has two outputs") };
            if let Some(routes) = routes(peers)? {
                let (sums, stays) =
                    routes.back((&arrived(&with_shares, width + 1, &arrivals(2)), width), true, peers)?;
                dx.floats_mut().copy_from_slice(&sums);
                dweights.floats_mut().copy_from_slice(&stays);
                return Ok(None);
            }
            let copies = back(&with_shares, width + 1, &order, &arrivals(2), peers)?;
            let row = |place: usize| &copies[place * (width + 1)..][..width];
            gather(row, &order, active, width, dx.floats_mut());
            let dweights = dweights.floats_mut().iter_mut().zip(&order.places);
            dweights.for_each(|(dweight, place)| *dweight = copies[place * (width + 1) + width]);
        }
        Kernel::Combine { .. } => {
            let order = order(1, 2);
            if let Some(routes) = routes(peers)? {
                let copies = arrived(here(0).floats(), width, &arrivals(2));
                let (sums, _) = routes.back((&copies, width), false, peers)?;
                outputs[0].1.floats_mut().copy_from_slice(&sums);
                return Ok(None);
            }
            let copies = back(here(0).floats(), width, &order, &arrivals(2), peers)?;
            let row = |place: usize| &copies[place * width..(place + 1) * width];
            gather(row, &order, active, width, outputs[0].1.floats_mut());
        }
        Kernel::CombineGrad { .. } => {
            let (order, arrivals) = (order(1, 2), arrivals(2));
            let copies = match routes(peers)? {
                Some(routes) => routes.out((here(0).floats(), width), None, peers)?,
                None => {
                    let mut copies = vec![T::ZERO; order.places.len() * width];
                    spread(here(0).floats(), &order, active, width, &mut copies);
                    out(&copies, width, &order, &arrivals, peers)?
                }
            };
            let drows = outputs[0].1.floats_mut();
            drows.fill(T::ZERO);
            for (copy, place) in copies.chunks_exact(width).zip(arrivals.places()) {
                drows[place * width..(place + 1) * width].copy_from_slice(copy);
            }
        }
        _ => panic!("`{}` is not dealt", kernel.name()),
    }
    Ok(None)
}

/// Sends `copies` of `width` elements, in their order, to the ranks of their experts, and gets what comes from each rank.
fn out<T: Element>(
    copies: &[T],
    width: usize,
    order: &Order,
    arrivals: &Arrivals,
    peers: &mut dyn Peers,
) -> Result<Vec<T>, BackendError> {
    let come: Vec<usize> = arrivals.by_device().iter().map(|copies| copies * width).collect();
    let mut rest = copies;
    let pieces = to_each(order, come.len()).into_iter().map(|copies| {
        let (piece, after) = rest.split_at(copies * width);
        rest = after;
        T::pack(piece.to_vec())
    });
    let pieces = pieces.collect();
    joined(peers.expert_all_to_all(Axis::Expert, pieces, &come)?)
}

/// The copies of tokens `x` in their order, behind each its weight.
fn with_weights<T: Element>((x, width): (&[T], usize), weights: &[T], order: &Order) -> Vec<T> {
    let active = weights.len() * width / x.len().max(1);
    let mut copies = vec![T::ZERO; order.places.len() * (width + 1)];
    for ((copy, place), weight) in order.places.iter().enumerate().zip(weights) {
        let to = &mut copies[place * (width + 1)..(place + 1) * (width + 1)];
        to[..width].copy_from_slice(&x[copy / active * width..(copy / active + 1) * width]);
        to[width] = *weight;
    }
    copies
}

/// Rows of `width` elements in the order in which they came.
fn arrived<T: Element>(rows: &[T], width: usize, arrivals: &Arrivals) -> Vec<T> {
    let rows = arrivals.places().into_iter().flat_map(|place| &rows[place * width..(place + 1) * width]);
    rows.copied().collect()
}

/// The way back: rows of `width` elements to the ranks that their copies came from; gives this rank's copies, in their order.
fn back<T: Element>(
    rows: &[T],
    width: usize,
    order: &Order,
    arrivals: &Arrivals,
    peers: &mut dyn Peers,
) -> Result<Vec<T>, BackendError> {
    let by_device = arrivals.by_device();
    let mut places = arrivals.places().into_iter();
    let piece = |copies: &usize| {
        let places = places.by_ref().take(*copies);
        T::pack(places.flat_map(|place| &rows[place * width..(place + 1) * width]).copied().collect())
    };
    let pieces = by_device.iter().map(piece).collect();
    let come: Vec<usize> = to_each(order, by_device.len()).iter().map(|copies| copies * width).collect();
    joined(peers.expert_all_to_all(Axis::Expert, pieces, &come)?)
}

fn joined<T: Element>(pieces: Vec<Buffer>) -> Result<Vec<T>, BackendError> {
    Ok(pieces.into_iter().filter_map(T::unpack).flatten().collect())
}
