//! Orders for torch.distributed.pipelining: the compute-only CSV that `_PipelineScheduleRuntime._load_csv` reads (2.7 and later,
//! with pairs 2.9 and later; tested with 2.11 and 2.15).
//!
//! One row per rank and one cell per action, `0F0,0F1,0B0`: torch writes `I` for our B, and `B` for our BW. torch derives the
//! transfers from the map of stages to ranks that the rows imply, so transfers in a file are left out here. torch asks more of
//! an order than validity, and finds the rest out too late or not at all. So it is checked here: every stage on one rank, an
//! action on every rank, and on the last stage the forwards in order.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::problem::Schedule;
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;
use crate::problem::{MAX_CHUNKS, MAX_MICROBATCHES, MAX_RANKS, Problem};
use crate::schedule::Absent;

/// The file's text for a valid schedule of `problem`.
///
/// # Errors
/// [`Absent`] with the reason for which torch cannot run the order.
pub fn write(problem: &Problem, schedule: &Schedule) -> Result<String, Absent> {
    if *problem.placement() == Placement::Bidirectional {
        return Err(Absent::because(
            "torch keeps each stage on one rank; this plan is bidirectional, with two copies of the model: set \
             `schedule` to zb-h1, zb-v or interleaved-1f1b, which have one",
        ));
    }
    if problem.slices() > 1 {
        return Err(Absent::because(
            "torch runs whole microbatches; this plan cuts sequences into slices, which read the keys and values of those \
             before them: plan without `parallel.sequence_slices`",
        ));
    }
    if let Some(rank) = schedule.rows.iter().position(Vec::is_empty) {
        return Err(Absent::because(alloc::format!("torch needs an action on every rank; rank {rank} has none")));
    }
    if schedule.has_copies() {
        return Err(Absent::because(
            "the schedule copies activations to the host, for which torch's file has no action: plan without \
             `training.offload = \"scheduled\"`",
        ));
    }
    let last = problem.stage_count() - 1;
    for (rank, row) in schedule.rows.iter().enumerate() {
        let forwards = row.iter().filter(|op| op.stage() == last && op.kind() == OpKind::F);
        let forwards: Vec<usize> = forwards.map(|op| op.microbatch()).collect();
        if let Some([before, early]) = forwards.windows(2).find(|two| two[0] > two[1]) {
            return Err(Absent::because(alloc::format!(
                "torch takes losses in the order in which the last stage runs; on rank {rank} that stage runs \
                 microbatch {early} after {before}: set `schedule` to one that runs them in order, such as \
                 zb-h1, zb-v or interleaved-1f1b, or put {last}F{early} before {last}F{before} in a custom \
                 schedule"
            )));
        }
    }
    let mut text = String::new();
    for (rank, row) in schedule.rows.iter().enumerate() {
        let pairs = schedule.pairs_of(rank);
        let mut cells: Vec<String> = Vec::with_capacity(row.len());
        let mut place = 0;
        while let Some(op) = row.get(place) {
            let begins_pair = pairs.binary_search(&(place as u32)).is_ok();
            match row.get(place + 1).filter(|_| begins_pair) {
                Some(with) => {
                    cells.push(alloc::format!("({};{})OVERLAP_F_B", action(*op), action(*with)));
                    place += 2;
                }
                None => {
                    cells.push(action(*op));
                    place += 1;
                }
            }
        }
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    Ok(text)
}

pub(crate) fn action(op: Op) -> String {
    let kind = match op.kind() {
        OpKind::F => "F",
        OpKind::B => "I",
        OpKind::W => "W",
        OpKind::BW => "B",
    };
    alloc::format!("{}{kind}{}", op.stage(), op.microbatch())
}

/// A cell that is not a compute action, or a file that is too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvSyntax {
    /// The line, from 1: one row per rank.
    pub row: usize,
    /// The cell, from 1.
    pub cell: usize,
    /// The text there, shortened.
    pub text: String,
}

impl fmt::Display for CsvSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CsvSyntax { row, cell, text } = self;
        write!(
            f,
            "line {row}, cell {cell}: `{text}` is not a compute action of torch: write stage, kind and \
             microbatch, such as `0F3`, with kind F, B, I or W, or `(0F3;7B1)OVERLAP_F_B`"
        )
    }
}

impl core::error::Error for CsvSyntax {}

/// Actions that torch derives itself: transfers, and the exchange of parameters and gradients among replicas. From 2.15
/// on it has separate waits for them.
const WORKED_OUT: [&str; 7] = ["SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"];

/// Which of those `action` is, of a stage and perhaps a microbatch.
fn worked_out(action: &str) -> Option<&str> {
    let is_digit = |c: char| c.is_ascii_digit();
    let name = action.trim_start_matches(is_digit);
    let numbered = name.len() < action.len();
    let name = name.trim_end_matches(is_digit);
    let begun = name.strip_prefix("WAIT_").unwrap_or(name);
    (numbered && WORKED_OUT.contains(&begun)).then_some(name)
}

/// What a file holds in addition to its order of compute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Sends and receives.
    transfers: usize,
    /// The others, by name.
    others: BTreeMap<String, usize>,
}

impl LeftOut {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.transfers == 0 && self.others.is_empty()
    }

    fn note(&mut self, name: &str) {
        if ["SEND_", "RECV_"].iter().any(|way| name.starts_with(way)) {
            self.transfers += 1;
        } else {
            *self.others.entry(name.to_string()).or_default() += 1;
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transfers = if self.transfers == 1 { "transfer" } else { "transfers" };
        let all = [(transfers, self.transfers)].into_iter();
        let all = all.chain(self.others.iter().map(|(name, count)| (name.as_str(), *count)));
        for (place, (name, count)) in all.filter(|(_, count)| *count > 0).enumerate() {
            write!(f, "{}{count} {name}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A file, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its order of compute.
    pub order: Schedule,
    /// By row and op of the order: its cell, from 1. Both of a pair stand in one.
    pub cells: Vec<Vec<u32>>,
    /// What it has besides.
    pub left_out: LeftOut,
}

/// Reads the order of a compute-only file.
///
/// # Errors
/// As [`read_file`].
pub fn read(text: &str) -> Result<Schedule, CsvSyntax> {
    read_file(text).map(|file| file.order)
}

/// Reads a compute-only file. Idle cells are dropped.
///
/// # Errors
/// [`CsvSyntax`] with the place of the first cell that is no action.
pub fn read_file(text: &str) -> Result<File, CsvSyntax> {
    let (mut rows, mut pairs, mut cells, mut left_out) = (Vec::new(), Vec::new(), Vec::new(), LeftOut::default());
    for (index, line) in text.lines().enumerate() {
        let (mut row, mut places, mut of_row) = (Vec::new(), Vec::new(), Vec::new());
        for (cell, action) in line.split(',').enumerate() {
            let action = action.trim().trim_matches('"');
            let wrong = || CsvSyntax { row: index + 1, cell: cell + 1, text: action.chars().take(40).collect() };
            if index >= MAX_RANKS {
                return Err(wrong());
            }
            let pair = action.strip_prefix('(').and_then(|rest| rest.strip_suffix(")OVERLAP_F_B"));
            match pair {
                Some(parts) => {
                    let (first, second) = parts.split_once(';').ok_or_else(wrong)?;
                    places.push(row.len() as u32);
                    row.push(op(first).ok_or_else(wrong)?);
                    row.push(op(second).ok_or_else(wrong)?);
                }
                None if action.is_empty() => {}
                None => match worked_out(action) {
                    Some(name) => left_out.note(name),
                    None => row.push(op(action).ok_or_else(wrong)?),
                },
            }
            of_row.resize(row.len(), cell as u32 + 1);
        }
        rows.push(row);
        pairs.push(places);
        cells.push(of_row);
    }
    let has_pairs = pairs.iter().any(|places| !places.is_empty());
    let order = if has_pairs { Schedule { rows, pairs, ..Schedule::default() } } else { Schedule::of(rows) };
    Ok(File { order, cells, left_out })
}

pub(crate) fn op(text: &str) -> Option<Op> {
    let (before, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (kind, behind) = rest.split_at_checked(1)?;
    let (stage, microbatch) = match behind.split_once('_') {
        // Before 2.5 torch wrote kind, microbatch and stage, as in `F0_3`.
        Some((microbatch, stage)) if before.is_empty() => (stage.strip_prefix('s').unwrap_or(stage), microbatch),
        _ => (before, behind),
    };
    let kind = match kind {
        "F" => OpKind::F,
        "I" => OpKind::B,
        "W" => OpKind::W,
        "B" => OpKind::BW,
        _ => return None,
    };
    let number = |text: &str, most: usize| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| text.parse::<usize>().ok())??;
        (number < most).then_some(number)
    };
    Some(Op::new(number(stage, MAX_RANKS * MAX_CHUNKS)?, kind, number(microbatch, MAX_MICROBATCHES)?))
}

/// The rank of each stage, as the rows imply it; none where a stage stands in two rows or in none.
pub fn placement(schedule: &Schedule) -> Option<Placement> {
    let stages = schedule.rows.iter().flatten().map(|op| op.stage() + 1).max()?;
    let mut ranks: Vec<Option<u16>> = alloc::vec![None; stages];
    for (rank, row) in schedule.rows.iter().enumerate() {
        for op in row {
            let known = ranks.get_mut(op.stage())?.get_or_insert(rank as u16);
            if usize::from(*known) != rank {
                return None;
            }
        }
    }
    ranks.into_iter().collect::<Option<Vec<u16>>>().map(Placement::List)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::planner;
    use crate::schedule::published;
    use crate::spec::Spec;
    use proptest::prelude::*;

    fn spec(chunks: usize) -> Spec {
        let placement = if chunks == 1 { "linear" } else { "any" };
        Spec::read(&alloc::format!(
            "ranks = 4\nchunks = {chunks}\nmicrobatches = 8\nplacement = \"{placement}\"\n\
             stages = {{ forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }}\n"
        ))
        .unwrap()
    }

    #[test]
    fn every_published_order_is_read_back_with_its_placement() {
        let mut written = 0;
        for chunks in [1, 2, 3] {
            for published in published() {
                let Ok(plan) = planner::plan(&spec(chunks), published.name) else { continue };
                match write(&plan.problem, &plan.schedule) {
                    Ok(text) => {
                        assert_eq!(read(&text), Ok(plan.schedule.clone()), "{}", published.name);
                        let placement = placement(&plan.schedule).unwrap();
                        assert!(placement.same_as(plan.problem.placement(), 4, chunks), "{}", published.name);
                        written += 1;
                    }
                    Err(absent) => {
                        assert!(*plan.problem.placement() == Placement::Bidirectional, "{}", absent.reason)
                    }
                }
            }
        }
        assert!(written >= 10, "{written}");
    }

    /// 1F1B as torch's documentation shows an order: B is the whole backward there.
    #[test]
    fn kinds_are_torchs() {
        let spec = Spec::read(
            "ranks = 2\nmicrobatches = 2\nstages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }\n",
        )
        .unwrap();
        let csv = |name| {
            let plan = planner::plan(&spec, name).unwrap();
            write(&plan.problem, &plan.schedule).unwrap()
        };
        assert_eq!(csv("1f1b"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
        assert!(csv("zb-h1").contains("1I0,") && csv("zb-h1").contains("1W0"), "{}", csv("zb-h1"));
    }

    /// A V of four stages on two ranks, as files of torch 2.4 have it: stages 0 and 3 meet on the first rank.
    #[test]
    fn older_names_are_read() {
        let schedule = read("F0_0,,,F0_3,B0_3,,,B0_0\n,F0_1,F0_2,,,B0_2,B0_1,").unwrap();
        assert_eq!(schedule.text_rows(), ["0F0 3F0 3BW0 0BW0", "1F0 2F0 2BW0 1BW0"]);
        for wrong in ["F0_", "F_0", "0F0_1", "F0_x1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cells_of_torch_are_read_and_others_named() {
        let schedule = read("0F0, ,\"0F1\",(0F2;0B0)OVERLAP_F_B\r\n1F0,1I0,1W0").unwrap();
        assert_eq!(schedule.text_rows(), ["0F0 0F1 0F2 0BW0", "1F0 1B0 1W0"]);
        assert_eq!(schedule.pairs, [alloc::vec![2], Vec::new()]);
        // Orders that torch 2.15 writes, with the actions that it derives itself.
        let with_communication = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0WAIT_SEND_F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0";
        assert_eq!(read(with_communication).unwrap().text_rows(), ["0F0 0BW0", "1F0 1BW0"]);
        for (text, row, cell) in
            [("0F0,0SEND_X0", 1, 2), ("0F0\n1X0", 2, 1), ("0F0,SEND_F0", 1, 2), ("0F0junk", 1, 1), ("0é1", 1, 1)]
        {
            let error = read(text).unwrap_err();
            assert_eq!((error.row, error.cell), (row, cell), "{error}");
        }
    }

    #[test]
    fn pairs_are_written_as_torchs() {
        let spec = Spec::read(
            "ranks = 4\nchunks = 2\nmicrobatches = 8\nplacement = \"v\"\noverlap_permille = 500\n\
             stages = { forward_ns = 1, backward_input_ns = 1, backward_weight_ns = 1 }\n",
        )
        .unwrap();
        let plan = planner::plan(&spec, "dualpipe-v").unwrap();
        let text = write(&plan.problem, &plan.schedule).unwrap();
        assert!(text.contains(")OVERLAP_F_B"), "{text}");
        assert_eq!(read(&text), Ok(plan.schedule));
    }

    #[test]
    fn what_torch_would_get_wrong_is_refused() {
        let plan = planner::plan(&spec(1), "gpipe").unwrap();
        let mut swapped = plan.schedule.clone();
        swapped.rows[3].swap(0, 1);
        assert!(write(&plan.problem, &swapped).unwrap_err().reason.contains("losses"));
        let mut empty = plan.schedule;
        empty.rows[2].clear();
        assert!(write(&plan.problem, &empty).unwrap_err().reason.contains("rank 2 has none"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "[0-9FBIW,;()\"A-Z_é \n]{0,80}") {
            if let Ok(schedule) = read(&text) {
                let _ = placement(&schedule);
            }
        }
    }
}
