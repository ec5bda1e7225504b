//! Finding a block by what a person types: an op, a rank, a microbatch.

use pipeplan_core::problem::op::{Op, OpKind};

use super::{MeasuredScene, Scene};
use crate::draw::selection::Block;

/// What a person looks for.
enum Wanted {
    Rank(usize),
    Op(Op),
}

impl Wanted {
    /// Of `3F7` (an op), `rank 2` or `r2`, `microbatch 5` or `m5` (its first op).
    fn of(text: &str) -> Option<Wanted> {
        let text = text.trim().to_ascii_lowercase();
        let after = |names: &[&str]| -> Option<usize> {
            names.iter().find_map(|name| text.strip_prefix(name)?.trim_start().parse().ok())
        };
        if let Some(rank) = after(&["rank", "r"]) {
            return Some(Wanted::Rank(rank));
        }
        let microbatch = after(&["microbatch", "mb", "m"]);
        microbatch.map(|microbatch| Op::new(0, OpKind::F, microbatch)).or_else(|| op_of(&text)).map(Wanted::Op)
    }
}

impl Scene {
    /// The block that a person looks for: an op, or the first one of a rank or a microbatch; none where the plan has no such block.
    pub fn search(&self, text: &str) -> Option<Block> {
        let block = |(rank, index): (usize, usize)| Block { below: false, rank, index, gap: false };
        match Wanted::of(text)? {
            Wanted::Rank(rank) => {
                self.tracks.get(rank).filter(|track| !track.spans().is_empty()).map(|_| block((rank, 0)))
            }
            Wanted::Op(op) => {
                let known = op.stage() < self.problem.stage_count() && op.microbatch() < self.problem.microbatches();
                self.find(Some(op).filter(|_| known)?).map(block)
            }
        }
    }
}

impl MeasuredScene {
    /// As [`Scene::search`], among what was measured.
    pub fn search(&self, text: &str) -> Option<Block> {
        let block = |rank: usize, index: usize| Block { below: true, rank, index, gap: false };
        match Wanted::of(text)? {
            Wanted::Rank(rank) => {
                self.tracks.get(rank).filter(|track| !track.spans().is_empty()).map(|_| block(rank, 0))
            }
            Wanted::Op(op) => {
                let mut tracks = self.tracks.iter().enumerate();
                tracks.find_map(|(rank, track)| Some(block(rank, track.position(op)?)))
            }
        }
    }
}

/// The op of a text such as `3bw7`, in small letters.
fn op_of(text: &str) -> Option<Op> {
    let digits = |part: &str| part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
    let (stage, rest) = text.split_at(digits(text));
    let kinds = [("bw", OpKind::BW), ("f", OpKind::F), ("b", OpKind::B), ("w", OpKind::W)];
    let (kind, microbatch) = kinds.into_iter().find_map(|(name, kind)| Some((kind, rest.strip_prefix(name)?)))?;
    Some(Op::new(stage.parse().ok()?, kind, microbatch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use crate::draw::selection::Block;
    use crate::scene::example;

    #[test]
    fn blocks_are_found_by_op_rank_and_microbatch() {
        let scene = example("1f1b", 1);
        let found = |text: &str| scene.search(text).map(|Block { rank, index, .. }| (rank, index));
        for (text, wanted) in [
            ("2F0", Some((2, 0))),
            (" 3bw0 ", Some((3, 1))),
            ("rank 3", Some((3, 0))),
            ("R1", Some((1, 0))),
            ("microbatch 2", Some((0, 2))),
            ("m3", Some((0, 3))),
            ("3W0", None),
            ("9F0", None),
            ("0F99", None),
            ("rank 4", None),
            ("m8", None),
            ("99999999999999999999F0", None),
            ("", None),
            ("F", None),
        ] {
            assert_eq!(found(text), wanted, "{text}");
        }
    }
}
