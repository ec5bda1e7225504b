//! Why a rank waits: its next op, the inputs of that op, and another op that could run in the gap or lacks memory.

use pipeplan_core::problem::op::{Op, OpKind};
use pipeplan_core::simulate;
use pipeplan_core::simulate::timeline::Span;

use super::Scene;
use crate::text;

/// Ops behind a gap that are looked at for one that could run in it.
const LOOKS_AHEAD: usize = 4096;

/// A gap in a rank's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When it begins.
    pub from_ns: u64,
    /// When it ends.
    pub to_ns: u64,
    /// The op after the gap; none after the last op.
    pub next: Option<Op>,
    /// The last inputs of that op: one op, or several that arrive at the same time.
    pub needs: Vec<Need>,
    /// Another op of the row that has all it needs before the gap ends.
    pub other: Option<Alternative>,
}

/// An op that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The op.
    pub op: Op,
    /// Its rank, and its place in that row.
    pub at: (usize, usize),
    /// When it ends.
    pub end_ns: u64,
    /// The time of its transfer.
    pub hop_ns: u64,
}

/// A later op of the rank that has its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alternative {
    /// It has room, too: the order alone has it later.
    Later(Op),
    /// The rank would exceed its limit.
    NoRoom {
        /// The op.
        op: Op,
        /// The op that must first end and free memory.
        until: Op,
    },
}

impl Scene {
    /// The gap before a position in the op list of a rank, or after its last op, if there is one.
    pub fn wait(&self, rank: usize, place: usize) -> Option<Wait> {
        let spans = self.tracks.get(rank)?.spans();
        let (from_ns, to_ns) = self.tracks.get(rank)?.gap_before(place, self.end_ns())?;
        let next = spans.get(place).map(|span| span.op);
        // A pair starts when both ops have their inputs.
        let partner = spans.get(place + 1).filter(|span| self.is_second(span)).map(|span| span.op);
        let mut needs: Vec<Need> = next.into_iter().chain(partner).flat_map(|op| self.needs(op)).collect();
        needs.retain(|need| need.end_ns.saturating_add(need.hop_ns) == to_ns);
        let other = self.other(rank, place, (from_ns, to_ns));
        Some(Wait { from_ns, to_ns, next, needs, other })
    }

    /// Lines of a tooltip for that gap.
    pub fn describe_wait(&self, rank: usize, place: usize) -> Vec<(String, String)> {
        let Some(wait) = self.wait(rank, place) else { return Vec::new() };
        let time = |ns: u64| text::duration(ns as f64);
        let mut lines = vec![
            ("waits", time(wait.to_ns - wait.from_ns)),
            ("rank", rank.to_string()),
            ("from", time(wait.from_ns)),
            ("next", wait.next.map_or_else(|| "nothing, its last op has ended".to_owned(), |op| op.to_string())),
        ];
        for need in wait.needs {
            lines.push(("needs", format!("{} of rank {}", need.op, need.at.0)));
            lines.push(("which ends", time(need.end_ns)));
            if need.hop_ns > 0 {
                lines.push(("its transfer", time(need.hop_ns)));
            }
        }
        lines.extend(wait.other.map(|other| match other {
            Alternative::Later(op) => ("could start", format!("{op}, which the order has later")),
            Alternative::NoRoom { op, until } => ("no room for", format!("{op} until {until} ends")),
        }));
        lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn needs(&self, op: Op) -> Vec<Need> {
        let mut needs = Vec::new();
        simulate::needs(&self.problem, op, |needed, hop_ns| {
            // A needed B can be the BW of that stage and microbatch.
            let whole = Op::new(needed.stage(), OpKind::BW, needed.microbatch());
            let known = [needed, whole].into_iter().find_map(|op| self.find(op));
            let span = known.and_then(|(rank, place)| self.tracks.get(rank)?.spans().get(place));
            if let (Some(at), Some(span)) = (known, span) {
                needs.push(Need { op: span.op, at, end_ns: span.end_ns, hop_ns });
            }
        });
        needs
    }

    /// The second op of a pair arrives without a separate time.
    pub(crate) fn is_second(&self, span: &Span) -> bool {
        span.start_ns == span.end_ns && self.problem.duration(span.op) > 0
    }

    /// The first op after the gap that is the next of its stage and kind and has its inputs before the gap ends. Pairs
    /// are excluded: both ops must start together.
    fn other(&self, rank: usize, place: usize, (from_ns, to_ns): (u64, u64)) -> Option<Alternative> {
        let spans = self.tracks.get(rank)?.spans().get(place..)?;
        let spans = &spans[..spans.len().min(LOOKS_AHEAD)];
        let is_second = |at: usize| spans.get(at).is_some_and(|span| self.is_second(span));
        let mut seen: Vec<(usize, OpKind)> =
            spans.iter().take(1).map(|span| (span.op.stage(), span.op.kind())).collect();
        for (at, span) in spans.iter().enumerate().skip(1) {
            let sort = (span.op.stage(), span.op.kind());
            if seen.contains(&sort) {
                continue;
            }
            seen.push(sort);
            let arrives_ns = |need: Need| need.end_ns.saturating_add(need.hop_ns);
            let in_time = self.needs(span.op).into_iter().all(|need| arrives_ns(need) < to_ns);
            if !in_time || is_second(at) || is_second(at + 1) {
                continue;
            }
            let held = self.curve(rank)?.at((from_ns as f64 + to_ns as f64) / 2.0);
            return Some(match self.room_at(rank, &spans[..at], span.op, held) {
                0 => Alternative::Later(span.op),
                place => Alternative::NoRoom { op: span.op, until: spans[place - 1].op },
            });
        }
        None
    }

    /// The first position among `ahead` where `op`, which comes after them, could run within the memory limit of the
    /// rank. All ops after that position then also hold its bytes. `held` is the memory before `ahead`.
    fn room_at(&self, rank: usize, ahead: &[Span], op: Op, held: u64) -> usize {
        let Some(limit) = self.problem.limit_bytes(rank) else { return 0 };
        let bytes = |op: Op| (i128::from(self.problem.takes(op)), i128::from(self.problem.gives(op)));
        let (limit, (takes, gives)) = (i128::from(limit), bytes(op));
        // `held`: memory before each op of `ahead` and after the last one. `most`: peak while each op runs.
        let mut held = vec![i128::from(held)];
        let mut most: Vec<i128> = Vec::with_capacity(ahead.len());
        for (at, span) in ahead.iter().enumerate() {
            let (takes, gives) = bytes(span.op);
            let before = held[at];
            match most.last_mut().filter(|_| self.is_second(span)) {
                // Both ops of a pair hold their bytes together. The first has freed its bytes by then.
                Some(first) => {
                    let (_, given) = bytes(ahead[at - 1].op);
                    *first = before + given + takes;
                    most.push(before + given + takes);
                }
                None => most.push(before + takes),
            }
            held.push(before + takes - gives);
        }
        let mut place = ahead.len();
        for at in (0..ahead.len()).rev() {
            if most[at] + takes - gives > limit {
                break;
            }
            if held[at] + takes <= limit && !self.is_second(&ahead[at]) {
                place = at;
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::from_core;
    use pipeplan_core::plan::planner;
    use pipeplan_core::problem::Statement;
    use pipeplan_core::schedule;
    use pipeplan_core::spec::Spec;
    use serde_json::{Value, json};

    /// None where the schedule does not exist for that.
    fn scene_of(name: &str, change: Value) -> Option<Scene> {
        let mut value = json!({
            "ranks": 4, "microbatches": 8, "placement": "any", "transfer_ns": 2,
            "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10,
                        "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2 },
        });
        let fields = change.as_object().cloned().unwrap_or_default();
        fields.into_iter().for_each(|(key, changed)| value[key] = changed);
        let spec = Spec::typed(Statement::read(&value).unwrap());
        let answer = planner::answer(&spec, &schedule::find(name).unwrap()).ok()?;
        Scene::of(from_core::picture(name, &answer.case.problem, &answer.timeline), Vec::new())
    }

    fn scene(name: &str, change: Value) -> Scene {
        scene_of(name, change).unwrap()
    }

    fn said(scene: &Scene, rank: usize, place: usize) -> String {
        let lines = scene.describe_wait(rank, place);
        lines.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_gap_names_what_is_awaited() {
        let scene = scene("1f1b", json!({}));
        // Rank 3 begins when three forwards and three hops have gone by.
        assert_eq!(
            said(&scene, 3, 0),
            "waits 36 ns; rank 3; from 0 ns; next 3F0; needs 2F0 of rank 2; which ends 34 ns; its transfer 2 ns"
        );
        // Rank 0 has sent four forwards: down to rank 3 and up again are 4 F, 4 BW and six hops less the last BW, which is its own.
        assert_eq!(
            said(&scene, 0, 4),
            "waits 72 ns; rank 0; from 40 ns; next 0BW0; needs 1BW0 of rank 1; which ends 110 ns; its transfer 2 ns; could start 0F4, which the order has later"
        );
        assert_eq!(said(&scene, 0, 0), "", "it begins at once");
        let last = scene.tracks[3].spans().len();
        assert!(said(&scene, 3, last).contains("next nothing, its last op has ended"), "{}", said(&scene, 3, last));
        assert_eq!(said(&scene, 0, last) + &said(&scene, 9, 0) + &said(&scene, 0, last + 1), "");
    }

    /// Of 1F1B's four microbatches, and not of a fifth, there is room until the first is given back.
    #[test]
    fn where_memory_is_what_lacks_it_is_said_what_gives_it_back() {
        let scene = scene("1f1b", json!({ "limit_bytes": 16 }));
        assert!(said(&scene, 0, 4).ends_with("no room for 0F4 until 0BW0 ends"), "{}", said(&scene, 0, 4));
    }

    /// Whatever the schedule, each gap ends with something that comes at its end, except where the rank has nothing to do.
    #[test]
    fn every_gap_has_its_reason() {
        let mut seen = 0;
        for published in schedule::published() {
            for change in [
                json!({}),
                json!({ "chunks": 2 }),
                json!({ "chunks": 2, "limit_bytes": 30, "overlap_permille": 300 }),
            ] {
                let Some(scene) = scene_of(published.name, change) else { continue };
                for (rank, track) in scene.tracks.iter().enumerate() {
                    for place in 0..=track.spans().len() {
                        let Some(wait) = scene.wait(rank, place) else { continue };
                        assert_eq!(
                            wait.needs.is_empty(),
                            place == track.spans().len(),
                            "{} {rank} {place}",
                            published.name
                        );
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
