//! The planned problem with measured times.

use alloc::vec::Vec;

use super::hops::HopTimes;
use crate::base::fields::Faults;
use crate::base::units::Nanos;
use crate::problem::op::OpKind;
use crate::problem::{Problem, StageCost, Statement, Transfers};

/// The problem of `statement`, which differs from an accepted one only in its times.
pub(super) fn accepted(statement: &Statement) -> Result<Problem, Faults> {
    let mut faults = Vec::new();
    let read = Statement::read_into(&statement.to_value(), "measured", &mut faults).ok_or(Faults(faults))?;
    let placement = read.placements().swap_remove(0);
    Ok(read.problem(placement)?)
}

/// `planned` with measured times. Where only the fused backward was measured, or only B and W, the other is scaled by
/// the same ratio to its plan.
pub(super) fn measured_cost(planned: StageCost, took: impl Fn(OpKind) -> Option<Nanos>) -> StageCost {
    let mut cost = planned;
    if let Some(forward_ns) = took(OpKind::F) {
        cost.forward_ns = forward_ns;
    }
    let scaled = |ns: Nanos, is: Nanos, was: Nanos| match was {
        0 => ns,
        _ => Nanos::try_from(u128::from(ns) * u128::from(is) / u128::from(was)).unwrap_or(Nanos::MAX),
    };
    let both = planned.backward_input_ns.saturating_add(planned.backward_weight_ns);
    match (took(OpKind::B), took(OpKind::W), took(OpKind::BW)) {
        (None, None, None) => {}
        (None, None, Some(fused)) => {
            let was = planned.duration(OpKind::BW);
            if was == 0 {
                (cost.backward_input_ns, cost.backward_ns) = (fused, None);
            } else {
                cost.backward_input_ns = scaled(planned.backward_input_ns, fused, was);
                cost.backward_weight_ns = match planned.backward_ns {
                    // Exactly the fused one is left over.
                    None => fused.saturating_sub(cost.backward_input_ns),
                    Some(_) => scaled(planned.backward_weight_ns, fused, was),
                };
                cost.backward_ns = planned.backward_ns.map(|_| fused);
            }
        }
        (input, weight, fused) => {
            cost.backward_input_ns = input.unwrap_or(planned.backward_input_ns);
            cost.backward_weight_ns = weight.unwrap_or(planned.backward_weight_ns);
            let is = cost.backward_input_ns.saturating_add(cost.backward_weight_ns);
            cost.backward_ns = match fused {
                Some(fused) => Some(fused),
                None => planned.backward_ns.map(|whole| scaled(whole, is, both)),
            };
        }
    }
    // A fused backward is never longer than its halves: then nobody would run it.
    let is = cost.backward_input_ns.saturating_add(cost.backward_weight_ns);
    cost.backward_ns = cost.backward_ns.filter(|whole| *whole < is);
    cost.bounded()
}

/// `planned` with measured hops: the median of all links where the plan has one time for all of them, else the median
/// of each link.
pub(super) fn measured_transfers(planned: &Transfers, hops: &[HopTimes]) -> Transfers {
    match planned {
        Transfers::Uniform(hop) => {
            // Each link as often as it was measured.
            let mut by_time: Vec<(Nanos, usize)> = hops.iter().map(|hop| (hop.median_ns, hop.messages)).collect();
            by_time.sort_unstable();
            let half = by_time.iter().map(|(_, messages)| messages).sum::<usize>() / 2;
            let mut before = 0;
            let middle = by_time.iter().find(|(_, messages)| {
                before += messages;
                before > half
            });
            Transfers::Uniform(middle.map_or(*hop, |(ns, _)| *ns))
        }
        Transfers::Links(links) => {
            let mut links = links.clone();
            for hop in hops {
                links[hop.from][hop.to] = hop.median_ns;
            }
            Transfers::Links(links)
        }
    }
}
