//! What runs beside the ops: P2P transfers, gradient sync and the optimizer, by rank.

use pipeplan_core::problem::copies::{CopyWay, Moved};
use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::simulate::timeline::Span;

use super::Scene;
use crate::draw::track::{Carried, Track};
use crate::text;

impl Scene {
    /// The op of another rank that gets what `op` sends, and how long that takes; none where nothing is sent.
    fn receiver(&self, op: Op) -> Option<(usize, u64)> {
        let to = match op.kind() {
            OpKind::F => (op.stage() + 1 < self.problem.stage_count()).then_some(op.stage() + 1),
            OpKind::B | OpKind::BW => op.stage().checked_sub(1),
            OpKind::W => None,
        }?;
        let hop_ns = self.problem.hop_of(op.stage(), to, op.microbatch());
        (hop_ns > 0).then_some((self.problem.rank_of(to, op.microbatch()), hop_ns))
    }

    /// What `rank` sends and does beside its ops.
    pub(super) fn carried_by(&self, rank: usize) -> Carried {
        let Some(track) = self.tracks.get(rank) else { return Carried::default() };
        let sent = |forward: bool| {
            let spans = track.spans().iter().filter(|span| (span.op.kind() == OpKind::F) == forward);
            let sends = spans.filter_map(|span| {
                let (_, hop_ns) = self.receiver(span.op)?;
                Some(Span { op: span.op, start_ns: span.end_ns, end_ns: span.end_ns.saturating_add(hop_ns) })
            });
            Track::new(sends.collect())
        };
        let [sync_ns, optimizer_ns] = self.figures.tails_ns.get(rank).copied().unwrap_or_default();
        let synced_ns = track.end_ns().saturating_add(sync_ns);
        let after = [(track.end_ns(), synced_ns), (synced_ns, synced_ns.saturating_add(optimizer_ns))];
        let copies = self.copies.get(rank).into_iter().flatten().map(|span| {
            let Moved { way, stage, microbatch } = span.copy.moved;
            let kind = if way == CopyWay::Offload { OpKind::F } else { OpKind::BW };
            let op = Op::new(stage.into(), kind, microbatch as usize);
            Span { op, start_ns: span.start_ns, end_ns: span.end_ns }
        });
        Carried { activations: sent(true), gradients: sent(false), copies: Track::new(copies.collect()), after }
    }

    /// When gradient sync and optimizer have ended on all ranks.
    pub fn step_end_ns(&self) -> u64 {
        let tail = |rank: usize| self.figures.tails_ns.get(rank).map_or(0, |tail| tail.iter().sum::<u64>());
        let ends = self.tracks.iter().enumerate().map(|(rank, track)| track.end_ns().saturating_add(tail(rank)));
        ends.max().unwrap_or(0)
    }

    /// Lines of a tooltip for what `rank` sends and does beside its ops at a time.
    pub fn describe_carried(&self, rank: usize, time_ns: u64) -> Vec<(String, String)> {
        let Some(carried) = self.carried(rank) else { return Vec::new() };
        let mut lines =
            vec![("rank".to_owned(), rank.to_string()), ("at".to_owned(), text::duration(time_ns as f64))];
        for (track, what) in [(&carried.activations, "sends activations"), (&carried.gradients, "sends gradients")] {
            let span = track.spans().get(track.first_ending_after(time_ns as f64));
            if let Some(span) = span.filter(|span| span.start_ns <= time_ns)
                && let Some((to, hop_ns)) = self.receiver(span.op)
            {
                let takes = text::duration(hop_ns as f64);
                lines.push((what.to_owned(), format!("of {} to rank {to}, {takes}", span.op)));
            }
        }
        let copy = carried.copies.spans().get(carried.copies.first_ending_after(time_ns as f64));
        if let Some(copy) = copy.filter(|copy| copy.start_ns <= time_ns) {
            let way = if copy.op.kind() == OpKind::F { "copies to the host" } else { "copies from the host" };
            let what = format!("activations of stage {}, microbatch {}", copy.op.stage(), copy.op.microbatch());
            lines.push((way.to_owned(), format!("{what}, {}", text::duration((copy.end_ns - copy.start_ns) as f64))));
        }
        for ((from_ns, to_ns), what) in carried.after.into_iter().zip(["gradient sync", "optimizer"]) {
            if (from_ns..to_ns).contains(&time_ns) {
                lines.push((what.to_owned(), text::duration((to_ns - from_ns) as f64)));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::from_core;
    use pipeplan_core::plan::planner;
    use pipeplan_core::schedule;
    use pipeplan_core::spec::Spec;

    /// Two ranks, F of 10 and BW of 20, transfers of 3: rank 0 sends activations when a forward ends, rank 1 gradients.
    #[test]
    fn each_transfer_begins_where_its_op_ends() {
        let spec = r#"{ "ranks": 2, "microbatches": 2, "transfer_ns": 3,
            "stages": { "forward_ns": 10, "backward_input_ns": 20 } }"#;
        let answer = planner::answer(&Spec::read(spec).unwrap(), &schedule::find("gpipe").unwrap()).unwrap();
        let mut picture = from_core::picture("gpipe", &answer.case.problem, &answer.timeline);
        picture.figures.tails_ns = vec![[5, 7], [5, 7]];
        let scene = Scene::of(picture, Vec::new()).unwrap();
        let times = |track: &Track| track.spans().iter().map(|span| (span.start_ns, span.end_ns)).collect::<Vec<_>>();
        let [first, last] = [0, 1].map(|rank| scene.carried(rank).unwrap());
        assert_eq!((times(&first.activations), times(&first.gradients)), (vec![(10, 13), (20, 23)], vec![]));
        // F1 of rank 1 ends at 33; its backwards end at 53 and 73.
        assert_eq!((times(&last.activations), times(&last.gradients)), (vec![], vec![(53, 56), (73, 76)]));
        assert_eq!(last.after, [(73, 78), (78, 85)]);
        // The backwards of rank 0 follow the transfers: 56 to 76, 76 to 96.
        assert_eq!((scene.end_ns(), scene.step_end_ns()), (96, 108));
        let said = scene.describe_carried(0, 11);
        assert!(
            said.iter().any(|(what, how)| what == "sends activations" && how.contains("0F0 to rank 1")),
            "{said:?}"
        );
        assert!(scene.describe_carried(1, 80).iter().any(|(what, _)| what == "optimizer"));
    }
}
