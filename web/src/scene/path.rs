//! The critical path: from the last op back to the start, each op with what it waited for.

use std::collections::{HashMap, HashSet};

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::simulate;

use super::Scene;

impl Scene {
    /// The ops of one critical path: from the last op back, each starts when the one before it on the path ends, or when that
    /// one's transfer arrives. A shorter op off the path changes nothing.
    pub fn critical_path(&self) -> HashSet<Op> {
        // Gradients that a stage waits for are those of its B or of its BW.
        let key = |op: Op| (op.kind() != OpKind::F, op.stage(), op.microbatch());
        let mut places = HashMap::new();
        for (rank, track) in self.tracks.iter().enumerate() {
            let spans = track.spans().iter().enumerate().filter(|(_, span)| span.op.kind() != OpKind::W);
            places.extend(spans.map(|(place, span)| (key(span.op), (rank, place))));
        }
        let span = |(rank, place): (usize, usize)| self.tracks.get(rank)?.spans().get(place);
        let ends = self
            .tracks
            .iter()
            .enumerate()
            .filter_map(|(rank, track)| Some((track.spans().len().checked_sub(1)?, rank)));
        let mut at = ends.map(|(place, rank)| (rank, place)).max_by_key(|at| span(*at).map(|span| span.end_ns));
        let mut path = HashSet::new();
        while let Some(here) = at {
            let Some(now) = span(here) else { break };
            // Ops without time could lead in a circle.
            if !path.insert(now.op) || now.start_ns == 0 {
                break;
            }
            let (rank, place) = here;
            let before = place.checked_sub(1).map(|place| (rank, place));
            at = before.filter(|before| span(*before).is_some_and(|before| before.end_ns == now.start_ns));
            if at.is_none() {
                simulate::needs(&self.problem, now.op, |needed, hop_ns| {
                    let found = places.get(&key(needed)).copied();
                    let arrives =
                        |found| span(found).is_some_and(|from| from.end_ns.saturating_add(hop_ns) == now.start_ns);
                    at = at.or(found.filter(|found| arrives(*found)));
                });
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::tests::example;

    /// 1F1B on four ranks with eight microbatches: the path goes down with microbatch 0, works off all eight on the last rank, and
    /// goes up with the last one: 3 F + 8 (F + BW) + 3 BW are the makespan of (8 + 3) · 30.
    #[test]
    fn the_critical_path_adds_up_to_the_makespan() {
        let scene = example("1f1b", 1);
        let path = scene.critical_path();
        let took: u64 = path.iter().map(|op| scene.problem.duration(*op)).sum();
        assert_eq!(took, scene.end_ns());
        assert!(path.contains(&Op::new(0, OpKind::F, 0)) && path.contains(&Op::new(0, OpKind::BW, 7)), "{path:?}");
        assert_eq!(path.iter().filter(|op| op.stage() == 3).count(), 16);
        for (schedule, chunks) in [("gpipe", 1), ("zb-h1", 1), ("zb-v", 2), ("interleaved-1f1b", 2)] {
            let scene = example(schedule, chunks);
            let took: u64 = scene.critical_path().iter().map(|op| scene.problem.duration(*op)).sum();
            assert_eq!(took, scene.end_ns(), "{schedule}");
        }
    }
}
