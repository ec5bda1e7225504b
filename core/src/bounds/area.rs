//! Bytes held over time against what the limit offers.

use alloc::vec::Vec;

use super::net::Net;
use crate::units::{Bytes, Nanos};

pub(super) struct Area {
    pub value: Nanos,
    pub round_trip: Nanos,
    pub room: Bytes,
}

/// The shortest window in which the memory of `rank` can hold, one after the other, all that its ops keep.
///
/// One microbatch takes at least `f · (F + way to B and back + B) + b⁺ · B + (f + b) · W` byte-nanoseconds of
/// a stage. Memory fills no faster than F takes bytes, and empties no faster than B and W give them back: at
/// x ns from the opening at most `f + x · max f/F` bytes are held, and in the same way before the close.
pub(super) fn bound(net: &Net, rank: usize, back: &[Vec<[Nanos; 2]>]) -> Option<Area> {
    let room = u128::try_from(net.room[rank]?).ok()?;
    let mut area = 0u128;
    let mut round_trip = 0;
    for (back, stages_of) in back.iter().zip(&net.stages_of) {
        for &stage in &stages_of[rank] {
            let cost = &net.costs[stage];
            let trip = cost.f + back[stage][0] - cost.w;
            round_trip = round_trip.max(trip + cost.w);
            let [f, b, _] = cost.bytes.map(i128::from);
            let held = f * i128::from(trip) + b.max(0) * i128::from(cost.b) + (f + b) * i128::from(cost.w);
            area += u128::try_from(held).unwrap_or(0) * net.all_microbatches() as u128;
        }
    }
    if area == 0 {
        return None;
    }
    if room == 0 {
        return None;
    }
    // Rates as fractions bytes/ns; the fastest F, and the fastest op that gives back.
    let costs = || net.stages_of.iter().flat_map(|stages_of| &stages_of[rank]).map(|stage| &net.costs[*stage]);
    let fills = costs().map(|cost| (cost.bytes[0].max(0) as u128, u128::from(cost.f)));
    let empties = costs().flat_map(|cost| {
        let gives = |delta: i64| delta.min(0).unsigned_abs().into();
        [(gives(cost.bytes[1]), u128::from(cost.b)), (gives(cost.bytes[2]), u128::from(cost.w))]
    });
    // What is never given back stays to the end.
    let stays: i128 = costs().map(|cost| i128::from(cost.bytes.iter().sum::<i64>().max(0))).sum();
    let stays = stays.unsigned_abs() * net.all_microbatches() as u128;
    // Each within one half of the window, which lasts for all the work of the rank at least.
    let half = u128::from(net.load(rank) / 2);
    let lost = slope(room, 0, half, fills) + slope(room, stays, half, empties);
    let value = (area + lost).div_ceil(room);
    Some(Area { value: u64::try_from(value).ok()?, round_trip, room: room as u64 })
}

/// Byte-nanoseconds out of reach in the first `within` ns while memory rises from `least` to `room` by steps
/// `(bytes, ns)`: what lies above the steepest line, less a step.
fn slope(room: u128, least: u128, within: u128, steps: impl Iterator<Item = (u128, u128)> + Clone) -> u128 {
    let step = steps.clone().map(|(bytes, _)| bytes).max().unwrap_or(0);
    let height = room.saturating_sub(least + step);
    let lost = |(bytes, ns): (u128, u128)| -> Option<u128> {
        let time = within.min(height.checked_mul(ns)? / bytes);
        let below = bytes.checked_mul(time)?.checked_mul(time)?.div_ceil(2 * ns.max(1));
        Some(height.checked_mul(time)?.saturating_sub(below))
    };
    steps.filter(|(bytes, _)| *bytes > 0).map(|step| lost(step).unwrap_or(0)).min().unwrap_or(0)
}
