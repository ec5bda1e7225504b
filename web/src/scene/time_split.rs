//! Where the time of each rank goes: compute, waits by cause, gradient sync, optimizer.

use super::Scene;
use super::gaps::Alternative;

/// Plans of more ops are not split: what each gap is due to is looked for among thousands of ops behind it.
pub const MOST_SPLIT_OPS: usize = 50_000;

/// A part of a rank's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Ops run.
    Compute,
    /// A transfer is on its way, and nothing else is waited for.
    Communication,
    /// Before the first op.
    Start,
    /// An op on another rank has not ended.
    Dependency,
    /// Another op could run, if there were memory for it.
    Memory,
    /// After the last op, until the step ends.
    End,
    /// Gradients are summed over replicas, and weights gathered.
    GradientSync,
    /// The optimizer's step.
    Optimizer,
}

impl Part {
    /// All parts, in the order in which they are drawn.
    pub const ALL: [Part; 8] = [
        Part::Compute,
        Part::Communication,
        Part::Start,
        Part::Dependency,
        Part::Memory,
        Part::End,
        Part::GradientSync,
        Part::Optimizer,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Compute => "Compute",
            Part::Communication => "Exposed communication",
            Part::Start => "Bubble: start",
            Part::Dependency => "Bubble: dependency",
            Part::Memory => "Bubble: memory",
            Part::End => "Bubble: end",
            Part::GradientSync => "Gradient sync",
            Part::Optimizer => "Optimizer",
        }
    }

    /// What it means, in a sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Part::Compute => "Ops run.",
            Part::Communication => "The next op waits for a P2P transfer alone.",
            Part::Start => "The rank waits for its first input.",
            Part::Dependency => "The next op waits for an op of another rank.",
            Part::Memory => "Another op has its inputs, but the memory limit has no room for it.",
            Part::End => "The rank has ended, and others have not.",
            Part::GradientSync => "Gradients are summed over data-parallel replicas.",
            Part::Optimizer => "The optimizer updates the weights.",
        }
    }
}

/// The time of a rank by [`Part::ALL`], in nanoseconds. Together they are the whole, which all ranks have in common.
pub type Split = [u64; Part::ALL.len()];

impl Scene {
    /// Where the time of each rank goes, by rank; none for plans of more than [`MOST_SPLIT_OPS`] ops.
    pub fn time_split(&self) -> Option<Vec<Split>> {
        let ops: usize = self.tracks.iter().map(|track| track.spans().len()).sum();
        if ops > MOST_SPLIT_OPS {
            return None;
        }
        let tail = |rank: usize| self.figures.tails_ns.get(rank).copied().unwrap_or_default();
        let ended = |rank: usize| self.tracks[rank].end_ns() + tail(rank).iter().sum::<u64>();
        let whole_ns = (0..self.tracks.len()).map(ended).max().unwrap_or(0).max(self.end_ns());
        let split = |rank: usize| {
            let track = &self.tracks[rank];
            let mut split = Split::default();
            let mut add = |part: Part, ns: u64| split[part as usize] += ns;
            add(Part::Compute, track.busy_ns(0, track.spans().len()));
            for place in 0..track.spans().len() {
                let Some((from_ns, to_ns)) = track.gap_before(place, whole_ns) else { continue };
                if place == 0 {
                    add(Part::Start, to_ns - from_ns);
                    continue;
                }
                let Some(wait) = self.wait(rank, place) else { continue };
                // Of several inputs that arrive together, the one with the shortest transfer is waited for longest.
                let hop_ns = wait.needs.iter().map(|need| need.hop_ns).min().unwrap_or(0).min(to_ns - from_ns);
                let why = match wait.other {
                    Some(Alternative::NoRoom { .. }) => Part::Memory,
                    _ => Part::Dependency,
                };
                add(Part::Communication, hop_ns);
                add(why, to_ns - from_ns - hop_ns);
            }
            let [sync_ns, optimizer_ns] = tail(rank);
            add(Part::GradientSync, sync_ns);
            add(Part::Optimizer, optimizer_ns);
            add(Part::End, whole_ns - ended(rank));
            split
        };
        Some((0..self.tracks.len()).map(split).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::tests::example;

    /// By hand: rank 3 of 1F1B waits for three forwards before its first op and three backwards after its last, and never
    /// between; rank 0 waits (P − 1)(F + BW) for its first gradient and not otherwise.
    #[test]
    fn the_time_of_a_rank_is_split_by_cause() {
        let scene = example("1f1b", 1);
        let split = scene.time_split().unwrap();
        let of = |rank: usize, part: Part| split[rank][part as usize];
        assert_eq!(
            [Part::Compute, Part::Start, Part::Dependency, Part::End].map(|part| of(3, part)),
            [240, 30, 0, 60]
        );
        assert_eq!(
            [Part::Compute, Part::Start, Part::Dependency, Part::End].map(|part| of(0, part)),
            [240, 0, 90, 0]
        );
        assert!(split.iter().all(|split| split.iter().sum::<u64>() == 330), "{split:?}");
    }

    #[test]
    fn gradient_sync_and_optimizer_follow_each_rank() {
        let mut scene = example("1f1b", 1);
        scene.figures.tails_ns = vec![[5, 7], [0, 0], [0, 0], [100, 1]];
        let split = scene.time_split().unwrap();
        // Rank 3 ends its last op at 270.
        assert!(split.iter().all(|split| split.iter().sum::<u64>() == 371), "{split:?}");
        let of = |rank: usize, part: Part| split[rank][part as usize];
        assert_eq!((of(3, Part::GradientSync), of(3, Part::Optimizer), of(3, Part::End)), (100, 1, 0));
        assert_eq!((of(0, Part::GradientSync), of(0, Part::Optimizer), of(0, Part::End)), (5, 7, 371 - 330 - 12));
    }
}
