//! The op list of each rank by a published rule, with a file for each rule.
//!
//! - In: a problem.
//! - Out: the op list of each rank, by a published rule.
//! - Knows: problems, and the simulator for rules that need times.

use alloc::string::String;
use alloc::vec::Vec;

use crate::problem::placement::Placement;
use crate::problem::{Backward, Problem, Schedule};
use crate::simulate;

mod building_block;
mod dualpipe;
mod gpipe;
mod greedy;
mod interleaved;
mod one_f_one_b;
mod one_f_one_b_v;
mod row;
mod seq1f1b;
mod slices;
mod slimpipe;
mod terapipe;
mod whole_sequences;
mod zb_h;
mod zb_v;

pub(crate) use building_block::{BACKWARD_0, BACKWARD_1, FORWARD_0, FORWARD_1, KINDS, PERIOD, WEIGHT_0, WEIGHT_1};
pub(crate) use interleaved::{forward_steps, groups_of};
pub use row::Row;
pub(crate) use whole_sequences::in_slices;

/// The name that asks for the best schedule, published or found by search.
pub const BEST: &str = "best";

/// Every name of a schedule that a spec takes, [`BEST`] first.
pub fn schedule_names() -> Vec<&'static str> {
    core::iter::once(BEST).chain(published().iter().map(|published| published.name)).collect()
}

/// Why a published schedule does not exist for a problem, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The reason.
    pub reason: String,
}

impl Absent {
    /// Absent because of `reason`.
    pub fn because(reason: impl Into<String>) -> Absent {
        Absent { reason: reason.into() }
    }

    /// A schedule of slices, where sequences are whole.
    pub fn of_whole_sequences() -> Absent {
        Absent::because("it schedules slices of sequences; the sequences are whole")
    }
}

/// One published schedule.
#[derive(Clone, Copy)]
pub struct Published {
    /// The name on the command line and in files: `1f1b`.
    pub name: &'static str,
    /// The name a person reads: `1F1B`.
    pub title: &'static str,
    /// What it does, with its benefits and costs, for newcomers, in whole sentences.
    pub idea: &'static str,
    /// Paper and section.
    pub source: &'static str,
    /// How it wants stages dealt, given how many chunks a rank the person asked for (at least 1).
    pub shape: fn(usize) -> (Placement, usize),
    /// Whether it cuts the backward in two.
    pub splits_backward: bool,
    /// How it makes a schedule.
    rule: Rule,
    /// Microbatches that go through a chunk before the next chunk's turn, for the interleaved ones, where a person
    /// asked for another number than the rule's own.
    group: Option<usize>,
}

/// How a published schedule is made: by name, so that whoever only asks what there is does not carry all generators.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Gpipe,
    OneFOneB,
    EagerOneFOneB,
    Interleaved,
    Combined,
    LoopedBfs,
    ZbH1,
    ZbH2,
    InterleavedZeroBubble,
    Grouped,
    GroupedByHalf,
    ZbV,
    VHalf,
    VMin,
    OneFOneBV,
    DualpipeV,
    Wave,
    ZeroBubbleWave,
    Chimera,
    Dualpipe,
    Terapipe,
    Seq1f1b,
    Seq1f1bInterleaved,
    Slimpipe,
}

impl Rule {
    /// Whether it schedules slices of sequences.
    const fn is_of_slices(self) -> bool {
        matches!(self, Rule::Terapipe | Rule::Seq1f1b | Rule::Seq1f1bInterleaved | Rule::Slimpipe)
    }
}

impl Published {
    /// Whether it schedules slices of sequences, and exists only where sequences are cut into slices.
    pub fn is_of_slices(&self) -> bool {
        self.rule.is_of_slices()
    }

    /// The schedule for a problem. Memory limits are not looked at here. Where sequences are cut into slices and the rule
    /// is of whole microbatches, each op is run slice by slice.
    ///
    /// # Errors
    /// [`Absent`] with the reason for which it does not exist for this problem.
    pub fn build(&self, problem: &Problem) -> Result<Schedule, Absent> {
        if problem.slices() > 1 && !self.is_of_slices() {
            return whole_sequences::build(self, problem);
        }
        match self.rule {
            Rule::Gpipe => gpipe::gpipe(problem),
            Rule::OneFOneB => one_f_one_b::one_f_one_b(problem),
            Rule::EagerOneFOneB => one_f_one_b::eager_one_f_one_b(problem),
            Rule::Interleaved => interleaved::interleaved(problem, self.group),
            Rule::Combined => interleaved::combined(problem, self.group),
            Rule::LoopedBfs => interleaved::looped_bfs(problem),
            Rule::ZbH1 => zb_h::zb_h1(problem),
            Rule::ZbH2 => zb_h::zb_h2(problem),
            Rule::InterleavedZeroBubble => interleaved::interleaved_zero_bubble(problem, self.group),
            Rule::Grouped => interleaved::grouped(problem, self.group),
            Rule::GroupedByHalf => interleaved::grouped_by_half(problem),
            Rule::ZbV => zb_v::zb_v(problem),
            Rule::VHalf => building_block::v_half(problem),
            Rule::VMin => building_block::v_min(problem),
            Rule::OneFOneBV => one_f_one_b_v::one_f_one_b_v(problem),
            Rule::DualpipeV => dualpipe::dualpipe_v(problem),
            Rule::Wave => greedy::wave(problem),
            Rule::ZeroBubbleWave => greedy::zero_bubble_wave(problem),
            Rule::Chimera => greedy::chimera(problem),
            Rule::Dualpipe => dualpipe::dualpipe(problem),
            Rule::Terapipe => terapipe::terapipe(problem),
            Rule::Seq1f1b => seq1f1b::seq1f1b(problem),
            Rule::Seq1f1bInterleaved => seq1f1b::seq1f1b_interleaved(problem),
            Rule::Slimpipe => slimpipe::slimpipe(problem),
        }
    }
}

/// Every published schedule, in the order in which comparisons show them.
pub fn published() -> &'static [Published] {
    PUBLISHED
}

/// The published schedule of that name. The interleaved ones take a number of microbatches for their groups,
/// such as `interleaved-1f1b:6`.
pub fn find(name: &str) -> Option<Published> {
    let (name, group) = match name.split_once(':') {
        Some((name, group)) => (name, Some(group.parse().ok().filter(|group| *group > 0)?)),
        None => (name, None),
    };
    let published = PUBLISHED.iter().find(|published| published.name == name)?;
    let takes_groups =
        matches!(published.rule, Rule::Interleaved | Rule::Combined | Rule::InterleavedZeroBubble | Rule::Grouped);
    (group.is_none() || takes_groups).then_some(Published { group, ..*published })
}

static PUBLISHED: &[Published] = &[
    Published {
        name: "gpipe",
        title: "GPipe",
        idea: "All forwards, then all backwards. Simple; each rank keeps the activations of all microbatches.",
        source: "Huang et al., arXiv:1811.06965, §2.3",
        shape: one_stage_each,
        splits_backward: false,
        rule: Rule::Gpipe,
        group: None,
    },
    Published {
        name: "1f1b",
        title: "1F1B",
        idea: "Each rank alternates one forward and one backward as soon as it can. The bubble is GPipe's, but \
               a rank keeps at most as many microbatches as there are ranks from it to the last.",
        source: "Narayanan et al., arXiv:2104.04473, §2.2.1",
        shape: one_stage_each,
        splits_backward: false,
        rule: Rule::OneFOneB,
        group: None,
    },
    Published {
        name: "eager-1f1b",
        title: "Eager 1F1B",
        idea: "1F1B with about twice as many warm-up forwards. Compute hides transfers, and activations nearly \
               double.",
        source: "Zhuang et al., arXiv:2211.05322",
        shape: one_stage_each,
        splits_backward: false,
        rule: Rule::EagerOneFOneB,
        group: None,
    },
    Published {
        name: "interleaved-1f1b",
        title: "Interleaved 1F1B",
        idea: "1F1B over several smaller stages per rank, assigned round-robin (virtual pipeline stages). \
               Ranks fill and drain sooner, so the bubble shrinks by the number of chunks. Transfers and \
               activations grow.",
        source: "Narayanan et al., arXiv:2104.04473, §2.2.2",
        shape: several_looped,
        splits_backward: false,
        rule: Rule::Interleaved,
        group: None,
    },
    Published {
        name: "combined-1f1b",
        title: "Combined 1F1B",
        idea: "Interleaved 1F1B with one more warm-up forward. Each forward runs together with a backward of another \
               microbatch: the all-to-all of experts of one hides behind the compute of the other.",
        source: "Megatron-LM, combined_1f1b; Kimi K2, arXiv:2507.20534, §2.4.2",
        shape: several_looped,
        splits_backward: false,
        rule: Rule::Combined,
        group: None,
    },
    Published {
        name: "looped-bfs",
        title: "Looped BFS",
        idea: "Several stages per rank, assigned round-robin. Each stage runs all microbatches before the next \
               one starts. The bubble is smaller than GPipe's; the activations are the same.",
        source: "Lamy-Poirier, arXiv:2211.05953, §4",
        shape: several_looped,
        splits_backward: false,
        rule: Rule::LoopedBfs,
        group: None,
    },
    Published {
        name: "zb-h1",
        title: "ZB-H1",
        idea: "1F1B with the backward split: B goes to the previous rank at once, and W waits to fill bubbles. \
               Where F, B and W take equal time, the bubble is a third of 1F1B's, in about the same memory.",
        source: "Qi et al., arXiv:2401.10241, §2.1",
        shape: one_stage_each,
        splits_backward: true,
        rule: Rule::ZbH1,
        group: None,
    },
    Published {
        name: "zb-h2",
        title: "ZB-H2",
        idea: "ZB-H1 with more warm-up forwards: almost no bubble, for about twice 1F1B's activations.",
        source: "Qi et al., arXiv:2401.10241, §2.2",
        shape: one_stage_each,
        splits_backward: true,
        rule: Rule::ZbH2,
        group: None,
    },
    Published {
        name: "interleaved-zb",
        title: "Interleaved ZB",
        idea: "Interleaved 1F1B with the backward split: W fills idle time.",
        source: "Qi et al., arXiv:2401.10241; torch.distributed.pipelining",
        shape: several_looped,
        splits_backward: true,
        rule: Rule::InterleavedZeroBubble,
        group: None,
    },
    Published {
        name: "gis",
        title: "GIS",
        idea: "Interleaved 1F1B with the backward split and half the warm-up. The bubble is smaller still, \
               with 1F1B's activations.",
        source: "Wan et al., arXiv:2503.01328, §3",
        shape: several_looped,
        splits_backward: true,
        rule: Rule::Grouped,
        group: None,
    },
    Published {
        name: "gis-h",
        title: "GIS-H",
        idea: "GIS in groups of half as many microbatches as ranks. Each chunk but the last keeps half as many \
               microbatches; ranks wait between groups.",
        source: "Wan et al., arXiv:2503.01328, §3",
        shape: several_looped,
        splits_backward: true,
        rule: Rule::GroupedByHalf,
        group: None,
    },
    Published {
        name: "zb-v",
        title: "ZB-V",
        idea: "Two chunks per rank, down the ranks and back up, with the backward split. Where F, B and W take \
               equal time, there is almost no bubble in 1F1B's memory.",
        source: "Qi et al., arXiv:2401.10241, §6",
        shape: two_in_a_v,
        splits_backward: true,
        rule: Rule::ZbV,
        group: None,
    },
    Published {
        name: "v-half",
        title: "V-Half",
        idea: "Two chunks per rank in a V, timed to keep about half of 1F1B's activations. The bubble is \
               larger than ZB-V's.",
        source: "Qi et al., arXiv:2405.15362, §3",
        shape: two_in_a_v,
        splits_backward: true,
        rule: Rule::VHalf,
        group: None,
    },
    Published {
        name: "v-min",
        title: "V-Min",
        idea: "Two chunks per rank in a V, timed to keep the least activations: about a third of 1F1B's. The \
               bubble is larger still.",
        source: "Qi et al., arXiv:2405.15362, §3",
        shape: two_in_a_v,
        splits_backward: true,
        rule: Rule::VMin,
        group: None,
    },
    Published {
        name: "1f1b-v",
        title: "1F1B-V",
        idea: "Two chunks per rank in a V, with a fused backward. Two thirds to three quarters of 1F1B's \
               activations, and a slightly smaller bubble.",
        source: "Qi et al., arXiv:2405.15362, appendix I",
        shape: two_in_a_v,
        splits_backward: false,
        rule: Rule::OneFOneBV,
        group: None,
    },
    Published {
        name: "dualpipe-v",
        title: "DualPipeV",
        idea: "DualPipe folded into a V, with one copy of the model. A forward of one chunk overlaps a \
               backward of the other, so compute hides transfers.",
        source: "DeepSeek-AI, arXiv:2412.19437, §3.2.1; cut in half",
        shape: two_in_a_v,
        splits_backward: true,
        rule: Rule::DualpipeV,
        group: None,
    },
    Published {
        name: "wave",
        title: "Waves (Hanayo)",
        idea: "Chunks go down the ranks and back up several times (a wave), and each op starts as soon as it \
               can. Small stages give small bubbles; the backward is fused.",
        source: "Liu et al., arXiv:2308.15762, §3",
        shape: several_in_waves,
        splits_backward: false,
        rule: Rule::Wave,
        group: None,
    },
    Published {
        name: "zb-wave",
        title: "ZB waves",
        idea: "A wave with the backward split into B and W: W fills the idle time of each rank.",
        source: "Qi et al., arXiv:2401.10241, §6, for any number of chunks",
        shape: several_in_waves,
        splits_backward: true,
        rule: Rule::ZeroBubbleWave,
        group: None,
    },
    Published {
        name: "chimera",
        title: "Chimera",
        idea: "Bidirectional: two copies of the model, one down the ranks and one up. Microbatches enter at \
               both ends and fill each other's bubbles, for twice the weights.",
        source: "Li and Hoefler, arXiv:2107.06925, §3",
        shape: two_way,
        splits_backward: false,
        rule: Rule::Chimera,
        group: None,
    },
    Published {
        name: "dualpipe",
        title: "DualPipe",
        idea: "Bidirectional: two copies of the model, with microbatches from both ends. A forward of one \
               direction overlaps a backward of the other, so compute hides transfers, for twice the weights.",
        source: "DeepSeek-AI, arXiv:2412.19437, §3.2.1",
        shape: two_way,
        splits_backward: true,
        rule: Rule::Dualpipe,
        group: None,
    },
    Published {
        name: "terapipe",
        title: "TeraPipe",
        idea: "GPipe over slices of sequences: a stage passes on each slice as soon as it is made. The bubble shrinks by \
               the number of slices; each rank keeps all activations.",
        source: "Li et al., arXiv:2102.07988, §3",
        shape: one_stage_each,
        splits_backward: false,
        rule: Rule::Terapipe,
        group: None,
    },
    Published {
        name: "seq1f1b",
        title: "Seq1F1B",
        idea: "1F1B over slices of sequences, the last slice of a sequence back first. Bubble and activations shrink by \
               about the number of slices.",
        source: "Sun et al., arXiv:2406.03488, §3",
        shape: one_stage_each,
        splits_backward: false,
        rule: Rule::Seq1f1b,
        group: None,
    },
    Published {
        name: "seq1f1b-i",
        title: "Seq1F1B-I",
        idea: "Seq1F1B over several smaller stages per rank, assigned round-robin. The bubble shrinks by chunks and \
               slices; transfers and activations grow.",
        source: "Sun et al., arXiv:2406.03488, §3",
        shape: several_looped,
        splits_backward: false,
        rule: Rule::Seq1f1bInterleaved,
        group: None,
    },
    Published {
        name: "slimpipe",
        title: "SlimPipe",
        idea: "1F1B over uniform slices of sequences, on one chunk per rank or several. A rank keeps little more than one \
               sequence; its exchange of attention is not planned.",
        source: "Li et al., arXiv:2504.14519, §4",
        shape: one_or_several_looped,
        splits_backward: false,
        rule: Rule::Slimpipe,
        group: None,
    },
];

fn one_stage_each(_: usize) -> (Placement, usize) {
    (Placement::Linear, 1)
}

/// As many chunks as asked for, but at least the two that make a loop.
fn several_looped(chunks: usize) -> (Placement, usize) {
    (Placement::Looped, chunks.max(2))
}

/// As many chunks as asked for.
fn one_or_several_looped(chunks: usize) -> (Placement, usize) {
    if chunks > 1 { (Placement::Looped, chunks) } else { (Placement::Linear, 1) }
}

fn two_in_a_v(_: usize) -> (Placement, usize) {
    (Placement::V, 2)
}

/// As many chunks as asked for, but at least the two that make a wave.
fn several_in_waves(chunks: usize) -> (Placement, usize) {
    (Placement::Wave, chunks.max(2))
}

fn two_way(_: usize) -> (Placement, usize) {
    (Placement::Bidirectional, 1)
}

/// Refuses problems with more than one stage a rank, or with two directions.
fn one_chunk(problem: &Problem) -> Result<(), Absent> {
    match problem.placement() {
        Placement::Bidirectional => Err(Absent::because(
            "it runs in one direction; the problem's placement is \
             bidirectional (`two-way`)",
        )),
        _ if problem.chunks() > 1 => {
            Err(Absent::because(alloc::format!("it runs one chunk per rank; the problem has {}", problem.chunks())))
        }
        _ => Ok(()),
    }
}

/// Refuses problems whose stages do not go round the ranks.
fn looped(problem: &Problem) -> Result<(), Absent> {
    let looped = Placement::Looped.ranks(problem.ranks(), problem.chunks());
    let same = (0..problem.stage_count()).all(|stage| problem.rank_of(stage, 0) == usize::from(looped[stage]));
    if same && *problem.placement() != Placement::Bidirectional {
        Ok(())
    } else {
        Err(Absent::because("it needs stage s on rank s mod P (placement looped)"))
    }
}

/// Refuses problems whose stages do not go down the ranks and back up once.
fn v_shaped(problem: &Problem) -> Result<(), Absent> {
    let v = Placement::V.ranks(problem.ranks(), problem.chunks().min(2));
    let same = problem.chunks() == 2 && (0..v.len()).all(|stage| problem.rank_of(stage, 0) == usize::from(v[stage]));
    if same {
        Ok(())
    } else {
        Err(Absent::because("it needs two chunks per rank, assigned down the ranks and back up (placement v)"))
    }
}

/// Refuses problems whose backward cannot be cut.
fn splits(problem: &Problem) -> Result<(), Absent> {
    match problem.backward() {
        Backward::Split => Ok(()),
        Backward::Fused => Err(Absent::because(
            "it splits the backward into B and W; the problem's backward is \
             fused",
        )),
    }
}

/// The rows with the least extra warm-up that can be run.
///
/// In looped placements with uneven groups, the usual warm-up can make ranks wait for each other in a circle, on any
/// transport: groups of 4, 4 and 1 with P = 4, V = 3 do. More forwards ahead of the first backward cut it,
/// and all forwards first can always be run, so the search ends.
fn runnable(problem: &Problem, rows: impl Fn(usize) -> Schedule) -> Schedule {
    let runs = |schedule: &Schedule| simulate::run(problem, schedule, |_, _, _, _| {}).is_ok();
    let tried = 2 * problem.ranks() * problem.chunks();
    (0..=tried).map(&rows).find(runs).unwrap_or_else(|| rows(problem.chunks() * problem.microbatches()))
}

/// A row for each rank of a problem with one stage a rank, written by stage.
fn by_stage(problem: &Problem, write: impl Fn(&mut Row, usize)) -> Schedule {
    let mut schedule = Schedule::of(alloc::vec![Vec::new(); problem.ranks()]);
    for stage in 0..problem.stage_count() {
        let mut row = Row::new(problem.stage_count());
        write(&mut row, stage);
        schedule.rows[problem.rank_of(stage, 0)] = row.into_ops();
    }
    schedule
}
