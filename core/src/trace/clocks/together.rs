//! What collectives say of clocks: none has ended on a rank before the last of its ranks has begun it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Message;
use crate::base::units::Nanos;
use crate::trace::StepTrace;
use crate::trace::collectives::{Collective, CollectiveKind, CollectiveName};

/// Times that are so near may be the same: profilers tell a GPU's to a microsecond.
const PRECISION_NS: Nanos = 1000;

/// Whether each rank's result needs something of every rank. In an all-to-all a rank may have nothing for another; who sends
/// in a broadcast is not known; a pass of a ring takes what its neighbour had.
const fn waits_for_all(kind: CollectiveKind) -> bool {
    match kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::AllGather => true,
        CollectiveKind::AllToAll | CollectiveKind::Broadcast | CollectiveKind::Ring => false,
    }
}

/// The collectives of a step that all their ranks recorded, each as its rows with their times: the n-th of a name on each.
pub(super) fn whole(step: &StepTrace) -> Vec<Vec<(usize, &Collective)>> {
    let mut by_name: BTreeMap<&CollectiveName, Vec<(usize, Vec<&Collective>)>> = BTreeMap::new();
    for (row, collectives) in step.collectives.iter().enumerate() {
        for collective in collectives.iter().filter(|one| waits_for_all(one.name.kind)) {
            let rows = by_name.entry(&*collective.name).or_default();
            match rows.last_mut() {
                Some((last, of_row)) if *last == row => of_row.push(collective),
                _ => rows.push((row, alloc::vec![collective])),
            }
        }
    }
    let mut whole = Vec::new();
    for (name, rows) in by_name {
        let count = rows.first().map_or(0, |(_, of_row)| of_row.len());
        let is_whole = rows.len() > 1
            && rows.len() == name.ranks.len()
            && rows.iter().all(|(row, of_row)| of_row.len() == count && name.ranks.contains(&(*row as u32)));
        if is_whole {
            whole.extend((0..count).map(|at| rows.iter().map(|(row, of_row)| (*row, of_row[at])).collect()));
        }
    }
    whole
}

/// How many ended on a rank before another had begun them, and by how much at most.
pub(super) fn broken(step: &StepTrace) -> (usize, Nanos) {
    whole(step).iter().fold((0, 0), |(count, worst), ranks| {
        let last = ranks.iter().map(|(_, one)| one.start_ns).max().unwrap_or(0);
        let first = ranks.iter().map(|(_, one)| one.end_ns).min().unwrap_or(Nanos::MAX);
        let early = last.saturating_sub(first);
        if early > PRECISION_NS { (count + 1, worst.max(early)) } else { (count, worst) }
    })
}

/// The same as messages from and to the next of its ranks: over several collectives, each pair has its turn at being late.
pub(super) fn messages(step: &StepTrace, clock: impl Fn(usize) -> usize) -> Vec<Message> {
    let began = step.began_ns.unwrap_or(0);
    let message = |from: &(usize, &Collective), to: &(usize, &Collective)| Message {
        from: clock(from.0),
        to: clock(to.0),
        sent_ns: began.saturating_add(from.1.start_ns),
        received_ns: began.saturating_add(to.1.end_ns),
    };
    let mut messages = Vec::new();
    for ranks in whole(step) {
        for pair in ranks.windows(2) {
            messages.extend([message(&pair[0], &pair[1]), message(&pair[1], &pair[0])]);
        }
    }
    messages.retain(|message| message.from != message.to);
    messages
}
