//! Whether a schedule of a model fits its devices: bytes by rank and kind. Where it does not,
//! [`suggest`](crate::advise::suggest) says what to change.

use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::{Derived, dealt_within_limit};
use crate::estimate::fit;
use crate::estimate::memory::StaticBytes;
use crate::graph::form::Offload;
use crate::graph::layout::Partition;
use crate::plan::planner::{self, Answer};
use crate::problem::Problem;
use crate::problem::op::{Op, OpKind};
use crate::schedule::{Absent, Published};
use crate::simulate::timeline::Timeline;
use crate::spec::{ModelWork, Spec, Work};

/// Why typed costs have no breakdown of bytes, for people.
pub(crate) const TYPED_COSTS: &str = "a breakdown of bytes needs a model; these costs are typed";

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMemory {
    /// The rank.
    pub rank: usize,
    /// Its static bytes.
    pub fixed: StaticBytes,
    /// The most that its microbatches hold at once, in addition to the static bytes.
    pub activations: Bytes,
    /// The op during which that is.
    pub at: Option<Op>,
    /// When that op starts.
    pub at_ns: Nanos,
    /// The most host memory that it uses at once: activation offload and optimizer offload.
    pub on_host: Bytes,
    /// Fixed and activations together.
    pub peak: Bytes,
    /// Its limit.
    pub limit: Option<Bytes>,
}

impl RankMemory {
    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.limit.is_none_or(|limit| self.peak <= limit)
    }
}

/// The memory of every rank under `timeline`, a schedule of `problem`, which is `derived`'s.
pub fn by_rank(derived: &Derived, problem: &Problem, timeline: &Timeline) -> Vec<RankMemory> {
    let ranks = timeline.rows.iter().zip(&derived.static_bytes).enumerate();
    ranks
        .map(|(rank, (row, fixed))| {
            let (peak, at) = timeline.peak(problem, rank);
            let most = peak - problem.static_bytes(rank);
            let at = at.map(|at| row[at]);
            let kept_there = on_host(&derived.host_bytes, row.iter().map(|span| span.op));
            let copied_there = timeline.copied_bytes(problem, rank);
            RankMemory {
                rank,
                fixed: *fixed,
                activations: most,
                on_host: fixed.on_host.saturating_add(kept_there).saturating_add(copied_there),
                at: at.map(|span| span.op),
                at_ns: at.map_or(0, |span| span.start_ns),
                peak: fixed.total().saturating_add(most),
                limit: problem.limit_bytes(rank),
            }
        })
        .collect()
}

/// The most of the host's memory that `ops`, a rank's in its order, hold at once, where a microbatch of each stage holds `behind`
/// F, and behind B until W.
pub fn on_host(behind: &[[Bytes; 2]], ops: impl Iterator<Item = Op>) -> Bytes {
    let (mut held, mut most): (Bytes, Bytes) = (0, 0);
    for op in ops {
        let [behind_f, behind_b] = behind.get(op.stage()).copied().unwrap_or_default();
        held = match op.kind() {
            OpKind::F => held.saturating_add(behind_f),
            OpKind::B => held.saturating_sub(behind_f.saturating_sub(behind_b)),
            OpKind::W => held.saturating_sub(behind_b),
            OpKind::BW => held.saturating_sub(behind_f),
        };
        most = most.max(held);
    }
    most
}

/// The memory that `published` needs for `spec` whatever the limit: bytes by rank with the limit of each, and its cost.
///
/// # Errors
/// [`Absent`] where the costs are typed, so that there is nothing to explain, or where the schedule does not exist.
pub fn verdict(spec: &Spec, published: &Published) -> Result<(Answer, Vec<RankMemory>), Absent> {
    let Work::Model(work) = &spec.work else {
        return Err(Absent::because(TYPED_COSTS));
    };
    // Settings that the limit decides are chosen under it; where nothing fits, all of them save memory.
    let fitted = match work.layout.fits() {
        true => planner::case(spec, published).ok().and_then(|case| case.fitted),
        false => None,
    };
    let settled = match &fitted {
        Some(found) => found.applied_to(work),
        None => fit::full(work).applied_to(work),
    };
    let mut unlimited = ModelWork { limit_bytes: Some(UNLIMITED), ..settled.clone() };
    let (placement, chunks) = (published.shape)(work.chunks as usize);
    let mut dealt = None;
    if work.layout.partition == Partition::WithinLimit {
        // Layers are assigned for the real limit, and evenly where no assignment keeps it.
        let found = dealt_within_limit(&settled, &placement, chunks);
        dealt = found.as_ref().map(|(_, dealt)| *dealt);
        unlimited.layout.partition = found.map_or(Partition::Balanced, |(counts, _)| Partition::ByHand(counts));
    }
    let with = |work: ModelWork| Spec { work: Work::Model(work), jitter_permille: 0, ..spec.clone() };
    // Copies of the schedule are those that keep the limit. Where none do, the order shows what it holds without.
    let copied = match settled.layout.form.offload {
        Offload::Scheduled => planner::answer(&with(settled), published).ok(),
        _ => None,
    };
    let mut answer = match copied {
        Some(answer) => answer,
        None => planner::answer(&with(unlimited), published)?,
    };
    answer.case.fitted = fitted;
    let Some(derived) = &mut answer.case.derived else {
        return Err(Absent::because(TYPED_COSTS));
    };
    derived.dealt = dealt;
    let limit = work.limit_bytes.unwrap_or(work.device.memory_bytes);
    let mut ranks = by_rank(derived, &answer.case.problem, &answer.timeline);
    ranks.iter_mut().for_each(|rank| rank.limit = Some(limit));
    Ok((answer, ranks))
}

/// Beyond what a plan can hold.
pub(crate) const UNLIMITED: Bytes = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;
    use std::format;

    const SPEC: &str = "[model]\nname = \"llama-2-13b\"\n[cluster]\ndevice = \"a100-80\"\n[parallel]\npipeline = 8\n\
                        [training]\nmicrobatches = 16\nmicrobatch_size = 2\n[memory]\n";

    fn spec(memory: &str) -> Spec {
        let text = format!("{SPEC}{memory}");
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// With copies of the schedule, a table of a limit that they keep is the plan's, and says what the host holds.
    #[test]
    fn copies_of_the_schedule_count() {
        let scheduled = |limit: &str| {
            let text = format!("offload = \"scheduled\"\n[memory]\nlimit_bytes = {limit}");
            let published = schedule::find("1f1b").unwrap();
            verdict(&Spec::read(&SPEC.replace("[memory]", &text)).unwrap(), &published).unwrap()
        };
        let (free, ranks) = scheduled("\"400 GiB\"");
        assert!(!free.schedule.has_copies() && ranks.iter().all(|rank| rank.on_host == 0));
        let peak = ranks.iter().map(|rank| rank.peak).max().unwrap();
        let limit = peak * 4 / 5;
        let (copied, ranks) = scheduled(&format!("{limit}"));
        assert!(copied.schedule.has_copies() && ranks.iter().all(|rank| rank.fits()));
        for rank in &ranks {
            assert_eq!(rank.peak, copied.timeline.peak_bytes(&copied.case.problem, rank.rank));
            assert_eq!(rank.on_host > 0, !copied.schedule.copies_of(rank.rank).is_empty());
        }
    }

    /// The bytes are those that judge a plan.
    #[test]
    fn the_table_is_the_timeline_s() {
        for published in schedule::published() {
            let Ok((answer, ranks)) = verdict(&spec(""), published) else { continue };
            for rank in ranks {
                assert_eq!(
                    rank.peak,
                    answer.timeline.peak_bytes(&answer.case.problem, rank.rank),
                    "{}",
                    published.name
                );
            }
        }
    }
}
