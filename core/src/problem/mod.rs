//! All that a scheduler may know: ranks, stages, microbatches, time and bytes per op, limits. Nothing of
//! models.
//!
//! Two types, because a person's statement may leave the placement open. A [`Statement`] is what stands in
//! a problem file (the form other programs write); a [`Problem`] is one placement of it, checked.
//!
//! # What a `Problem` promises
//! Whoever holds one may rely on: 1 to [`MAX_RANKS`] ranks; `P · V` stages, each on one rank; at most
//! [`MAX_OPS`] ops; no sum of all durations and hops beyond [`MAX_TOTAL_NS`]; no sum of all bytes taken
//! beyond [`MAX_TOTAL_BYTES`]; and bytes held never below zero in any order that keeps F before B before W.
//! So later stages add without overflow and size their tables without further checks.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use crate::base::fields::{Fault, Faults, Table, bytes_in, one_of, shown, whole};
use crate::base::units::{ByteDelta, Bytes, Nanos};
use crate::problem::op::{Op, OpKind};
use crate::problem::placement::Placement;

pub mod op;
pub mod placement;
mod schedule;

pub use schedule::Schedule;

/// Most ranks of a problem.
pub const MAX_RANKS: usize = 1024;
/// Most chunks of one rank.
pub const MAX_CHUNKS: usize = 64;
/// Most microbatches.
pub const MAX_MICROBATCHES: usize = 1_000_000;
/// Most ops, counting F, B and W apart.
pub const MAX_OPS: usize = 12_000_000;
/// Most nanoseconds over all ops and hops: 146 years.
pub const MAX_TOTAL_NS: u64 = 1 << 62;
/// Most bytes taken over all ops.
pub const MAX_TOTAL_BYTES: u64 = 1 << 62;

pub(crate) const MAX_NS: u64 = 1 << 53;
pub(crate) const MAX_BYTES: u64 = 1 << 53;

/// What a schedule is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Objective {
    /// End of the last op over all ranks minus the start of the first.
    #[default]
    Makespan,
    /// The largest, over ranks, of a rank's last end minus its first start (the zero-bubble papers' cost).
    LongestSpan,
}

impl Objective {
    /// The name in a problem file.
    pub const fn name(self) -> &'static str {
        match self {
            Objective::Makespan => "makespan",
            Objective::LongestSpan => "longest_span",
        }
    }
}

/// Whether the backward of a stage may be cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Backward {
    /// B and W may run apart, or fused.
    #[default]
    Split,
    /// Only the fused BW can run.
    Fused,
}

/// Time and memory of one stage for one microbatch.
///
/// An op's positive bytes are taken when it starts, its negative ones given back when it ends; its
/// workspace is taken at the start and given back at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StageCost {
    /// Duration of F.
    pub forward_ns: Nanos,
    /// Duration of B.
    pub backward_input_ns: Nanos,
    /// Duration of W.
    pub backward_weight_ns: Nanos,
    /// Duration of the fused BW, where it is less than that of B and then W: at most their sum. So it is where W's
    /// operators run beside a collective that B would wait for.
    pub backward_ns: Option<Nanos>,
    /// The part of F in which its rank does not compute but exchanges with others, and in which the other op of a pair may
    /// compute.
    pub forward_exchange_ns: Nanos,
    /// The same of B, and of BW.
    pub backward_exchange_ns: Nanos,
    /// Bytes that F leaves held.
    pub forward_bytes: ByteDelta,
    /// Change of bytes held by B.
    pub backward_input_bytes: ByteDelta,
    /// Change of bytes held by W.
    pub backward_weight_bytes: ByteDelta,
    /// Bytes that F needs only while it runs.
    pub forward_workspace_bytes: Bytes,
    /// Bytes that B needs only while it runs.
    pub backward_input_workspace_bytes: Bytes,
    /// Bytes that W needs only while it runs.
    pub backward_weight_workspace_bytes: Bytes,
    /// Bytes that the fused BW needs only while it runs, where it is more than B and then W: B's and W's changes of
    /// bytes are then one change, their sum. So it is where a layer's recomputed tensors are used up by its W before the
    /// next layer's are made.
    pub backward_workspace_bytes: Option<Bytes>,
}

impl StageCost {
    /// How long an op of `kind` keeps its rank busy.
    pub const fn duration(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_ns,
            OpKind::B => self.backward_input_ns,
            OpKind::W => self.backward_weight_ns,
            OpKind::BW => match self.backward_ns {
                Some(duration) => duration,
                None => self.backward_input_ns + self.backward_weight_ns,
            },
        }
    }

    /// How much of an op of `kind` its rank spends in exchanges.
    pub const fn exchange(&self, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => self.forward_exchange_ns,
            OpKind::B | OpKind::BW => self.backward_exchange_ns,
            OpKind::W => 0,
        }
    }

    /// The least that B and W may count on to keep their rank busy, whether they run apart or fused: neither more than
    /// it takes alone, nor both more than BW takes.
    pub const fn least_backward(&self) -> [Nanos; 2] {
        let fused = self.duration(OpKind::BW);
        let first = if self.backward_input_ns < fused { self.backward_input_ns } else { fused };
        [first, fused - first]
    }

    /// The same where no exchange is longer than its op.
    pub(crate) fn bounded(self) -> StageCost {
        let backward = self.backward_input_ns.min(self.duration(OpKind::BW));
        StageCost {
            forward_exchange_ns: self.forward_exchange_ns.min(self.forward_ns),
            backward_exchange_ns: self.backward_exchange_ns.min(backward),
            ..self
        }
    }

    /// Whether BW holds less at its most than B and then W.
    fn holds_less_whole(&self) -> bool {
        let apart = self.backward_input_bytes + self.takes(OpKind::W) as i64;
        (self.takes(OpKind::BW) as i64) < apart.max(self.takes(OpKind::B) as i64)
    }

    /// The same with BW as its B, and nothing as its W.
    fn whole(&self) -> StageCost {
        let change = self.backward_input_bytes + self.backward_weight_bytes;
        StageCost {
            backward_input_ns: self.duration(OpKind::BW),
            backward_weight_ns: 0,
            backward_ns: None,
            backward_input_bytes: change,
            backward_weight_bytes: 0,
            backward_input_workspace_bytes: self.takes(OpKind::BW) - change.max(0) as u64,
            backward_weight_workspace_bytes: 0,
            backward_workspace_bytes: None,
            ..*self
        }
    }

    /// Bytes taken when an op of `kind` starts.
    pub fn takes(&self, kind: OpKind) -> Bytes {
        let taken = |delta: ByteDelta| delta.max(0) as u64;
        match kind {
            OpKind::F => taken(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => taken(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => taken(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => taken(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    taken(self.backward_input_bytes)
                        + taken(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }

    /// Bytes given back when an op of `kind` ends.
    pub fn gives(&self, kind: OpKind) -> Bytes {
        let given = |delta: ByteDelta| delta.min(0).unsigned_abs();
        match kind {
            OpKind::F => given(self.forward_bytes) + self.forward_workspace_bytes,
            OpKind::B => given(self.backward_input_bytes) + self.backward_input_workspace_bytes,
            OpKind::W => given(self.backward_weight_bytes) + self.backward_weight_workspace_bytes,
            OpKind::BW => match self.backward_workspace_bytes {
                Some(workspace) => given(self.backward_input_bytes + self.backward_weight_bytes) + workspace,
                None => {
                    given(self.backward_input_bytes)
                        + given(self.backward_weight_bytes)
                        + self.backward_input_workspace_bytes.max(self.backward_weight_workspace_bytes)
                }
            },
        }
    }
}

/// Time that one hop takes between two ranks; nothing within a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// The same between any two ranks.
    Uniform(Nanos),
    /// By sender, then receiver.
    Links(Vec<Vec<Nanos>>),
}

/// Where the statement leaves stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementChoice {
    /// An answer keeps this placement.
    Fixed(Placement),
    /// An answer may choose.
    Any,
}

/// A scheduling problem as it stands in a problem file: the common form that other programs write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Ranks, P.
    pub ranks: usize,
    /// Stages held by each rank, V.
    pub chunks: usize,
    /// Microbatches, M.
    pub microbatches: usize,
    /// Which rank holds which stage.
    pub placement: PlacementChoice,
    /// One cost for all stages, or one for each.
    pub stages: Vec<StageCost>,
    /// Hop times.
    pub transfers: Transfers,
    /// Bytes held throughout: one value, or one for each rank.
    pub static_bytes: Vec<Bytes>,
    /// The memory of a rank: one value, or one for each; none for no limit.
    pub limit_bytes: Vec<Option<Bytes>>,
    /// What an answer is judged by.
    pub objective: Objective,
    /// Whether the backward may be cut.
    pub backward: Backward,
    /// Where a schedule runs a forward and a backward as a pair: thousandths of the shorter one that hide behind
    /// the longer. What each computes while the other [exchanges](StageCost::exchange) hides in any case.
    pub overlap_permille: u16,
}

impl Statement {
    /// Reads a problem file.
    ///
    /// # Errors
    /// Every fault of the input, each with its field.
    pub fn read(value: &Value) -> Result<Statement, Faults> {
        let mut faults = Vec::new();
        let statement = Statement::read_into(value, "", &mut faults);
        match statement {
            Some(statement) if faults.is_empty() => Ok(statement),
            _ => Err(Faults(faults)),
        }
    }

    /// As [`Statement::read`], for a statement that stands at `path` of a larger input. `None` comes with at
    /// least one fault.
    pub fn read_into(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Statement> {
        let before = faults.len();
        let mut table = Table::of(value, path, faults)?;
        let ranks = table.needed_whole("ranks", 1..=MAX_RANKS as u64, faults);
        let chunks = table.whole("chunks", 1..=MAX_CHUNKS as u64, faults).unwrap_or(1);
        let microbatches = table.needed_whole("microbatches", 1..=MAX_MICROBATCHES as u64, faults);
        let objective = table
            .choice(
                "objective",
                &[("makespan", Objective::Makespan), ("longest_span", Objective::LongestSpan)],
                faults,
            )
            .unwrap_or_default();
        let backward = table
            .choice("backward", &[("split", Backward::Split), ("fused", Backward::Fused)], faults)
            .unwrap_or_default();
        let overlap_permille = table.whole("overlap_permille", 0..=1000, faults).unwrap_or(0) as u16;
        let ranks = ranks? as usize;
        let chunks = chunks as usize;
        let microbatches = microbatches? as usize;
        let placement = read_placement(&mut table, ranks, chunks, faults);
        let stages = read_stages(&mut table, ranks * chunks, faults);
        let transfers = read_transfers(&mut table, ranks, faults);
        let static_bytes = read_by_rank(&mut table, "static_bytes", ranks, Some(0), faults, |value| {
            bytes_in(value).filter(|bytes| *bytes <= MAX_BYTES)
        });
        let limit_bytes = read_by_rank(&mut table, "limit_bytes", ranks, Some(None), faults, |value| {
            if value.is_null() { Some(None) } else { bytes_in(value).filter(|bytes| *bytes <= MAX_BYTES).map(Some) }
        });
        table.finish(faults);
        if faults.len() > before {
            return None;
        }
        let statement = Statement {
            ranks,
            chunks,
            microbatches,
            placement: placement?,
            stages: stages?,
            transfers: transfers?,
            static_bytes: static_bytes?,
            limit_bytes: limit_bytes?,
            objective,
            backward,
            overlap_permille,
        };
        statement.find_faults(path, faults);
        (faults.len() == before).then_some(statement)
    }

    /// The same statement with its defaults written out, as JSON with keys in order.
    pub fn to_value(&self) -> Value {
        let placement = match &self.placement {
            PlacementChoice::Any => json!("any"),
            PlacementChoice::Fixed(Placement::List(list)) => json!(list),
            PlacementChoice::Fixed(placement) => json!(placement.name()),
        };
        let stages: Vec<Value> = self.stages.iter().map(stage_value).collect();
        let transfers = match &self.transfers {
            Transfers::Uniform(hop) => json!(hop),
            Transfers::Links(links) => json!(links),
        };
        let mut value = json!({
            "ranks": self.ranks,
            "chunks": self.chunks,
            "microbatches": self.microbatches,
            "placement": placement,
            "stages": one_or_list(stages),
            "transfer_ns": transfers,
            "static_bytes": one_or_list(self.static_bytes.iter().map(|bytes| json!(bytes)).collect()),
            "limit_bytes": one_or_list(self.limit_bytes.iter().map(|bytes| json!(bytes)).collect()),
            "objective": self.objective.name(),
            "backward": match self.backward { Backward::Split => "split", Backward::Fused => "fused" },
        });
        // Our addition to the common form: written only where it says something.
        if self.overlap_permille > 0 {
            value["overlap_permille"] = json!(self.overlap_permille);
        }
        value
    }

    /// The problem with `placement`, which must suit the number of chunks.
    ///
    /// # Errors
    /// A placement for another number of chunks, or one that the statement rules out.
    pub fn problem(&self, placement: Placement) -> Result<Problem, Fault> {
        if let PlacementChoice::Fixed(fixed) = &self.placement
            && *fixed != placement
        {
            return Err(Fault::new(
                "placement",
                placement.name().unwrap_or("a list"),
                format!("{}, which the problem fixes", fixed.name().unwrap_or("the list")),
            ));
        }
        check_placement(&placement, self.ranks, self.chunks, self.microbatches)?;
        let stages = self.ranks * self.chunks;
        let spread = |costs: &Vec<StageCost>| {
            if costs.len() == 1 { vec![costs[0]; stages] } else { costs.clone() }
        };
        let by_rank = |bytes: &Vec<Bytes>| if bytes.len() == 1 { vec![bytes[0]; self.ranks] } else { bytes.clone() };
        let limits = if self.limit_bytes.len() == 1 {
            vec![self.limit_bytes[0]; self.ranks]
        } else {
            self.limit_bytes.clone()
        };
        let rank_of_stage = placement.ranks(self.ranks, self.chunks);
        let mut stages_of_rank = vec![Vec::new(); self.ranks];
        for (stage, rank) in rank_of_stage.iter().enumerate() {
            stages_of_rank[*rank as usize].push(stage);
        }
        Ok(Problem {
            ranks: self.ranks,
            chunks: self.chunks,
            microbatches: self.microbatches,
            placement,
            rank_of_stage,
            stages_of_rank,
            stages: spread(&self.stages),
            transfers: self.transfers.clone(),
            static_bytes: by_rank(&self.static_bytes),
            limit_bytes: limits,
            objective: self.objective,
            backward: self.backward,
            overlap_permille: self.overlap_permille,
        })
    }

    /// The placements that an answer may use, the plainest first. Never empty for a statement that was read.
    pub fn placements(&self) -> Vec<Placement> {
        match &self.placement {
            PlacementChoice::Fixed(placement) => vec![placement.clone()],
            PlacementChoice::Any if self.chunks == 1 => {
                let mut open = vec![Placement::Linear];
                // Schedules that go two ways are offered beside the others, so what is best of all is looked for there, too.
                if suits(&Placement::TwoWay, self.ranks, self.chunks, self.microbatches) {
                    open.push(Placement::TwoWay);
                }
                open
            }
            PlacementChoice::Any => {
                let folded = if self.chunks == 2 { Placement::V } else { Placement::Wave };
                let blocks = (0..self.ranks * self.chunks).map(|stage| (stage / self.chunks) as u16).collect();
                vec![Placement::Looped, folded, Placement::List(blocks)]
            }
        }
    }

    /// What cannot be seen field by field: sizes of the whole, and bytes that fall below zero.
    pub(crate) fn find_faults(&self, path: &str, faults: &mut Vec<Fault>) {
        let at = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
        let stages = self.ranks * self.chunks;
        let ops = 3 * stages as u128 * self.microbatches as u128;
        if ops > MAX_OPS as u128 {
            faults.push(Fault::new(
                at("microbatches"),
                self.microbatches,
                format!("at most {} with {stages} stages ({MAX_OPS} ops)", MAX_OPS / (3 * stages)),
            ));
            return;
        }
        if let PlacementChoice::Fixed(placement) = &self.placement
            && let Err(mut fault) = check_placement(placement, self.ranks, self.chunks, self.microbatches)
        {
            fault.field = at(&fault.field);
            faults.push(fault);
        }
        let repeat = if self.stages.len() == 1 { stages as u128 } else { 1 };
        let longest_hop = match &self.transfers {
            Transfers::Uniform(hop) => *hop,
            Transfers::Links(links) => links.iter().flatten().copied().max().unwrap_or(0),
        };
        let hops = 2 * u128::from(longest_hop) * stages as u128 * self.microbatches as u128;
        let mut time = hops;
        let mut bytes = 0u128;
        for (index, cost) in self.stages.iter().enumerate() {
            let microbatches = self.microbatches as u128 * repeat;
            for kind in [OpKind::F, OpKind::B, OpKind::W] {
                time += u128::from(cost.duration(kind)) * microbatches;
            }
            for kind in [OpKind::F, OpKind::B, OpKind::W, OpKind::BW] {
                bytes += u128::from(cost.takes(kind)) * microbatches;
            }
            let after_b = cost.forward_bytes + cost.backward_input_bytes;
            let after_w = after_b + cost.backward_weight_bytes;
            // W cannot come before B, so these are the only sums that an order can reach.
            if cost.forward_bytes < 0 || after_b < 0 || after_w < 0 {
                let stage = if self.stages.len() == 1 { at("stages") } else { format!("{}[{index}]", at("stages")) };
                faults.push(Fault::new(
                    stage,
                    format!(
                        "bytes {} + {} + {}",
                        cost.forward_bytes, cost.backward_input_bytes, cost.backward_weight_bytes
                    ),
                    "sums of forward, backward-input and backward-weight bytes that never fall below 0",
                ));
            }
        }
        if time > u128::from(MAX_TOTAL_NS) {
            // The field to blame is the one that has most of it.
            faults.push(Fault::new(
                at(if hops > time / 2 { "transfer_ns" } else { "stages" }),
                format!("{time} ns over all ops and hops"),
                format!("at most {MAX_TOTAL_NS} ns in all"),
            ));
        }
        if bytes > u128::from(MAX_TOTAL_BYTES) {
            faults.push(Fault::new(
                at("stages"),
                format!("{bytes} bytes over all ops"),
                format!("at most {MAX_TOTAL_BYTES} bytes in all"),
            ));
        }
    }
}

/// Whether stages may be placed so.
fn suits(placement: &Placement, ranks: usize, chunks: usize, microbatches: usize) -> bool {
    match placement {
        Placement::Linear => chunks == 1,
        Placement::V => chunks == 2,
        Placement::Looped | Placement::Wave => true,
        Placement::TwoWay => chunks == 1 && ranks.is_multiple_of(2) && microbatches.is_multiple_of(2),
        Placement::List(list) => {
            let wrong = list.len() != ranks * chunks || list.iter().any(|rank| usize::from(*rank) >= ranks);
            let mut held = vec![0usize; ranks];
            list.iter().filter(|rank| usize::from(**rank) < ranks).for_each(|rank| held[usize::from(*rank)] += 1);
            !wrong && held.iter().all(|held| *held == chunks)
        }
    }
}

fn check_placement(placement: &Placement, ranks: usize, chunks: usize, microbatches: usize) -> Result<(), Fault> {
    if suits(placement, ranks, chunks, microbatches) {
        return Ok(());
    }
    let accepted = match placement {
        Placement::Linear => "chunks 1 with `linear`; for more write looped, v, wave or a list",
        Placement::V => "chunks 2 with `v`; for more write wave",
        Placement::TwoWay => "chunks 1 and even numbers of ranks and microbatches with `two-way`",
        _ => "ranks × chunks entries, each a rank, every rank as often as it has chunks",
    };
    let name = placement.name().unwrap_or("a list");
    Err(Fault::new(
        "placement",
        format!("{name} with chunks {chunks}, ranks {ranks}, microbatches {microbatches}"),
        accepted,
    ))
}

fn read_placement(
    table: &mut Table<'_>,
    ranks: usize,
    chunks: usize,
    faults: &mut Vec<Fault>,
) -> Option<PlacementChoice> {
    const NAMES: [&str; 6] = ["linear", "looped", "v", "wave", "two-way", "any"];
    let Some(value) = table.get("placement") else {
        return Some(match chunks {
            1 => PlacementChoice::Fixed(Placement::Linear),
            _ => PlacementChoice::Any,
        });
    };
    if let Value::Array(items) = value {
        let list: Option<Vec<u16>> = items
            .iter()
            .map(|item| whole(item).filter(|rank| (*rank as usize) < ranks).map(|rank| rank as u16))
            .collect();
        if list.is_none() {
            faults.push(Fault::new(table.path("placement"), shown(value), format!("ranks from 0 to {}", ranks - 1)));
        }
        return list.map(|list| PlacementChoice::Fixed(Placement::List(list)));
    }
    let choice = match value.as_str() {
        Some("linear") => PlacementChoice::Fixed(Placement::Linear),
        Some("looped") => PlacementChoice::Fixed(Placement::Looped),
        Some("v") => PlacementChoice::Fixed(Placement::V),
        Some("wave") => PlacementChoice::Fixed(Placement::Wave),
        Some("two-way") => PlacementChoice::Fixed(Placement::TwoWay),
        Some("any") => PlacementChoice::Any,
        _ => {
            let accepted = format!("{}, or the rank of each stage as a list", one_of(&NAMES));
            faults.push(Fault::new(table.path("placement"), shown(value), accepted));
            return None;
        }
    };
    Some(choice)
}

fn read_stages(table: &mut Table<'_>, stages: usize, faults: &mut Vec<Fault>) -> Option<Vec<StageCost>> {
    let path = table.path("stages");
    match table.get("stages") {
        Some(Value::Array(items)) if items.len() == stages => items
            .iter()
            .enumerate()
            .map(|(index, item)| read_stage(item, &format!("{path}[{index}]"), faults))
            // Collect first: every stage's faults are wanted, not only the first's.
            .collect::<Vec<_>>()
            .into_iter()
            .collect(),
        Some(value @ Value::Object(_)) => read_stage(value, &path, faults).map(|cost| vec![cost]),
        found => {
            let found = found.map_or_else(|| "nothing".to_string(), shown);
            faults.push(Fault::new(path, found, format!("one table for all stages, or a list of {stages} tables")));
            None
        }
    }
}

fn read_stage(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<StageCost> {
    const DELTA: core::ops::RangeInclusive<i64> = -(MAX_BYTES as i64)..=MAX_BYTES as i64;
    let before = faults.len();
    let mut table = Table::of(value, path, faults)?;
    let mut cost = StageCost {
        forward_ns: table.needed_whole("forward_ns", 0..=MAX_NS, faults).unwrap_or(0),
        backward_input_ns: table.needed_whole("backward_input_ns", 0..=MAX_NS, faults).unwrap_or(0),
        backward_weight_ns: table.whole("backward_weight_ns", 0..=MAX_NS, faults).unwrap_or(0),
        backward_ns: None,
        forward_exchange_ns: 0,
        backward_exchange_ns: 0,
        forward_bytes: table.signed("forward_bytes", DELTA, faults).unwrap_or(0),
        backward_input_bytes: table.signed("backward_input_bytes", DELTA, faults).unwrap_or(0),
        backward_weight_bytes: table.signed("backward_weight_bytes", DELTA, faults).unwrap_or(0),
        forward_workspace_bytes: table.whole("forward_workspace_bytes", 0..=MAX_BYTES, faults).unwrap_or(0),
        backward_input_workspace_bytes: table
            .whole("backward_input_workspace_bytes", 0..=MAX_BYTES, faults)
            .unwrap_or(0),
        backward_weight_workspace_bytes: table
            .whole("backward_weight_workspace_bytes", 0..=MAX_BYTES, faults)
            .unwrap_or(0),
        backward_workspace_bytes: table.whole("backward_workspace_bytes", 0..=MAX_BYTES, faults),
    };
    let apart = cost.backward_input_ns + cost.backward_weight_ns;
    // The sum of both says nothing that they do not.
    cost.backward_ns = table.whole("backward_ns", 0..=apart, faults).filter(|fused| *fused < apart);
    cost.forward_exchange_ns = table.whole("forward_exchange_ns", 0..=cost.forward_ns, faults).unwrap_or(0);
    let least = cost.backward_input_ns.min(cost.duration(OpKind::BW));
    cost.backward_exchange_ns = table.whole("backward_exchange_ns", 0..=least, faults).unwrap_or(0);
    table.finish(faults);
    (faults.len() == before).then_some(cost)
}

fn read_transfers(table: &mut Table<'_>, ranks: usize, faults: &mut Vec<Fault>) -> Option<Transfers> {
    let Some(value) = table.get("transfer_ns") else { return Some(Transfers::Uniform(0)) };
    let hop = |value: &Value| whole(value).filter(|hop| *hop <= MAX_NS);
    let read = match value {
        Value::Array(rows) if rows.len() == ranks => rows
            .iter()
            .map(|row| match row {
                Value::Array(row) if row.len() == ranks => row.iter().map(hop).collect(),
                _ => None,
            })
            .collect::<Option<Vec<Vec<Nanos>>>>()
            .map(Transfers::Links),
        other => hop(other).map(Transfers::Uniform),
    };
    if read.is_none() {
        faults.push(Fault::new(
            table.path("transfer_ns"),
            shown(value),
            format!("whole nanoseconds, or {ranks} lists (by sender) of {ranks} (by receiver)"),
        ));
    }
    read
}

fn read_by_rank<T: Clone>(
    table: &mut Table<'_>,
    key: &'static str,
    ranks: usize,
    default: Option<T>,
    faults: &mut Vec<Fault>,
    read: impl Fn(&Value) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(value) = table.get(key) else { return default.map(|value| vec![value]) };
    let values = match value {
        Value::Array(items) if items.len() == ranks => items.iter().map(read).collect(),
        Value::Array(_) => None,
        other => read(other).map(|value| vec![value]),
    };
    if values.is_none() {
        faults.push(Fault::new(
            table.path(key),
            shown(value),
            format!("bytes up to {MAX_BYTES}, or text such as `80 GiB`, or a list of {ranks}, one for each rank"),
        ));
    }
    values
}

fn stage_value(cost: &StageCost) -> Value {
    let mut map = Map::new();
    for (key, value) in [
        ("forward_ns", json!(cost.forward_ns)),
        ("backward_input_ns", json!(cost.backward_input_ns)),
        ("backward_weight_ns", json!(cost.backward_weight_ns)),
        ("forward_bytes", json!(cost.forward_bytes)),
        ("backward_input_bytes", json!(cost.backward_input_bytes)),
        ("backward_weight_bytes", json!(cost.backward_weight_bytes)),
    ] {
        map.insert(String::from(key), value);
    }
    // Our addition to the common form: written only where it says something.
    if let Some(duration) = cost.backward_ns {
        map.insert(String::from("backward_ns"), json!(duration));
    }
    for (key, exchange) in
        [("forward_exchange_ns", cost.forward_exchange_ns), ("backward_exchange_ns", cost.backward_exchange_ns)]
    {
        if exchange > 0 {
            map.insert(String::from(key), json!(exchange));
        }
    }
    for (key, bytes) in [
        ("forward_workspace_bytes", cost.forward_workspace_bytes),
        ("backward_input_workspace_bytes", cost.backward_input_workspace_bytes),
        ("backward_weight_workspace_bytes", cost.backward_weight_workspace_bytes),
    ] {
        if bytes > 0 {
            map.insert(String::from(key), json!(bytes));
        }
    }
    if let Some(bytes) = cost.backward_workspace_bytes {
        map.insert(String::from("backward_workspace_bytes"), json!(bytes));
    }
    Value::Object(map)
}

fn one_or_list(mut values: Vec<Value>) -> Value {
    if values.len() == 1 || (!values.is_empty() && values.iter().all(|value| *value == values[0])) {
        values.swap_remove(0)
    } else {
        Value::Array(values)
    }
}

/// One placement of a [`Statement`], with every value by stage and by rank. See the module for what it
/// promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    ranks: usize,
    chunks: usize,
    microbatches: usize,
    placement: Placement,
    rank_of_stage: Vec<u16>,
    stages_of_rank: Vec<Vec<usize>>,
    stages: Vec<StageCost>,
    transfers: Transfers,
    static_bytes: Vec<Bytes>,
    limit_bytes: Vec<Option<Bytes>>,
    objective: Objective,
    backward: Backward,
    overlap_permille: u16,
}

impl Problem {
    /// Ranks, P.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Stages held by each rank, V.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// All stages, `P · V`.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// Microbatches, M.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Where the stages are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What a schedule is judged by.
    pub fn objective(&self) -> Objective {
        self.objective
    }

    /// Whether the backward may be cut.
    pub fn backward(&self) -> Backward {
        self.backward
    }

    /// Time and memory of `stage`.
    pub fn cost(&self, stage: usize) -> &StageCost {
        &self.stages[stage]
    }

    /// Time and memory of every stage.
    pub fn costs(&self) -> &[StageCost] {
        &self.stages
    }

    /// The rank that runs `stage` for `microbatch`.
    pub fn rank_of(&self, stage: usize, microbatch: usize) -> usize {
        let rank = usize::from(self.rank_of_stage[stage]);
        if self.placement == Placement::TwoWay && microbatch >= self.microbatches / 2 {
            self.ranks - 1 - rank
        } else {
            rank
        }
    }

    /// The stages that `rank` holds, in model order; with [`Placement::TwoWay`] those of the first half.
    pub fn stages_of(&self, rank: usize) -> &[usize] {
        &self.stages_of_rank[rank]
    }

    /// Time of one hop; 0 within a rank.
    pub fn hop(&self, from_rank: usize, to_rank: usize) -> Nanos {
        match &self.transfers {
            _ if from_rank == to_rank => 0,
            Transfers::Uniform(hop) => *hop,
            Transfers::Links(links) => links[from_rank][to_rank],
        }
    }

    /// How long `op` keeps its rank busy.
    pub fn duration(&self, op: Op) -> Nanos {
        self.stages[op.stage()].duration(op.kind())
    }

    /// Whether a forward and a backward that run as a pair may take less time than one after the other.
    pub fn pairs_gain(&self) -> bool {
        self.overlap_permille > 0
            || self.stages.iter().any(|cost| cost.forward_exchange_ns + cost.backward_exchange_ns > 0)
    }

    /// How long a forward and a backward that run as a pair keep their rank busy, both together.
    pub fn pair_duration(&self, forward: Op, backward: Op) -> Nanos {
        self.together([forward, backward], [self.duration(forward), self.duration(backward)])
    }

    /// How long two ops of a pair take together that take so long each.
    pub(crate) fn together(&self, ops: [Op; 2], took: [Nanos; 2]) -> Nanos {
        let exchanges = ops.map(|op| self.stages[op.stage()].exchange(op.kind()));
        took[0] + took[1] - hidden(took, exchanges, self.overlap_permille)
    }

    /// The same problem where pairs gain nothing: their ops one after the other.
    pub(crate) fn with_pairs_in_turn(&self) -> Problem {
        let in_turn = |cost: &StageCost| StageCost { forward_exchange_ns: 0, backward_exchange_ns: 0, ..*cost };
        Problem { stages: self.stages.iter().map(in_turn).collect(), overlap_permille: 0, ..self.clone() }
    }

    /// A problem without pairs that is no harder: for every schedule of this one, with any pairs, the same order
    /// is a schedule of that one in which no op ends later.
    ///
    /// Each op is shortened by half of what it can hide as part of a pair, rounded up. So the two ops of a pair,
    /// one after the other, fit where the pair stood, and any other op ends sooner than before. Bounds are proved
    /// for problems without pairs; this carries them over.
    pub fn without_pairs(&self) -> Problem {
        if !self.pairs_gain() {
            return self.clone();
        }
        // The most of an op's partners on its rank: what one takes, what it computes, what it exchanges. What is hidden
        // grows with each.
        let partner = |rank: usize, kind: OpKind| {
            let held = self.stages_of_rank[rank].iter();
            // With two directions a rank also holds the stage of its mirror.
            let mirrored = (self.placement == Placement::TwoWay).then(|| &self.stages_of_rank[self.ranks - 1 - rank]);
            held.chain(mirrored.into_iter().flatten()).fold([0; 3], |[longest, computes, exchanges], stage| {
                let cost = &self.stages[*stage];
                let (duration, exchange) = (cost.duration(kind), cost.exchange(kind));
                [longest.max(duration), computes.max(duration.saturating_sub(exchange)), exchanges.max(exchange)]
            })
        };
        let shorten = |stage: usize| {
            let rank = usize::from(self.rank_of_stage[stage]);
            let cost = self.stages[stage];
            let half = |kind: OpKind, [longest, computes, exchanges]: [Nanos; 3]| {
                let (duration, exchange) = (cost.duration(kind), cost.exchange(kind));
                let by_share = share(duration.min(longest), self.overlap_permille);
                let by_exchange = exchange.min(computes) + exchanges.min(duration.saturating_sub(exchange));
                by_share.max(by_exchange).div_ceil(2)
            };
            let forward = half(OpKind::F, partner(rank, OpKind::BW)) + 1;
            let backward = half(OpKind::BW, partner(rank, OpKind::F)) + 1;
            let [b, w] = cost.least_backward();
            let from_b = backward.min(b);
            StageCost {
                forward_ns: cost.forward_ns.saturating_sub(forward),
                backward_input_ns: b - from_b,
                backward_weight_ns: w.saturating_sub(backward - from_b),
                backward_ns: None,
                ..cost
            }
        };
        let shorter = Problem { stages: (0..self.stages.len()).map(shorten).collect(), ..self.clone() };
        shorter.with_pairs_in_turn()
    }

    /// Bytes held by `rank` throughout.
    pub fn static_bytes(&self, rank: usize) -> Bytes {
        self.static_bytes[rank]
    }

    /// The memory of `rank`; none for no limit.
    pub fn limit_bytes(&self, rank: usize) -> Option<Bytes> {
        self.limit_bytes[rank]
    }

    /// The same problem under another memory limit, one entry a rank.
    pub fn with_limits(&self, limit_bytes: Vec<Option<Bytes>>) -> Problem {
        assert_eq!(limit_bytes.len(), self.ranks, "one limit a rank");
        Problem { limit_bytes, ..self.clone() }
    }

    /// The same problem with every backward left whole, where that may be of use: where a BW holds less or takes less
    /// time than its B and then its W. Its schedules are schedules of this problem too.
    pub fn with_whole_backwards(&self) -> Option<Problem> {
        let is_shorter =
            |cost: &StageCost| cost.duration(OpKind::BW) < cost.duration(OpKind::B) + cost.duration(OpKind::W);
        let helps = |cost: &StageCost| is_shorter(cost) || cost.holds_less_whole();
        let whole = || Problem { backward: Backward::Fused, ..self.clone() };
        (self.backward == Backward::Split && self.stages.iter().any(helps)).then(whole)
    }

    /// The same problem with the backwards of those stages left whole that hold less so, where other stages have none
    /// of that; and which those are. There B stands for BW, and W takes neither time nor bytes: with BW in the place of
    /// B, and without W, its schedules are schedules of this problem.
    pub fn with_some_whole_backwards(&self) -> Option<(Problem, Vec<bool>)> {
        let some: Vec<bool> = self.stages.iter().map(StageCost::holds_less_whole).collect();
        if self.backward == Backward::Fused || !some.contains(&true) || !some.contains(&false) {
            return None;
        }
        let stage = |(cost, whole): (&StageCost, &bool)| if *whole { cost.whole() } else { *cost };
        Some((Problem { stages: self.stages.iter().zip(&some).map(stage).collect(), ..self.clone() }, some))
    }

    /// Whether both ask for the same, whatever their placements are called.
    pub fn same_as(&self, other: &Problem) -> bool {
        self.placement.same_as(&other.placement, self.ranks, self.chunks)
            && Problem { placement: other.placement.clone(), ..self.clone() } == *other
    }

    /// The same problem judged by another objective.
    pub fn with_objective(&self, objective: Objective) -> Problem {
        Problem { objective, ..self.clone() }
    }

    /// The same problem in a unit of time of which a nanosecond has `finer`; none where times would come to more than a problem
    /// may have. The same order takes `finer` times as long there, or less where what a pair hides was rounded down.
    pub(crate) fn in_finer_time(&self, finer: Nanos) -> Option<Problem> {
        let times = |ns: Nanos| ns.checked_mul(finer);
        let stage = |cost: &StageCost| {
            Some(StageCost {
                forward_ns: times(cost.forward_ns)?,
                backward_input_ns: times(cost.backward_input_ns)?,
                backward_weight_ns: times(cost.backward_weight_ns)?,
                backward_ns: match cost.backward_ns {
                    Some(backward_ns) => Some(times(backward_ns)?),
                    None => None,
                },
                forward_exchange_ns: times(cost.forward_exchange_ns)?,
                backward_exchange_ns: times(cost.backward_exchange_ns)?,
                ..*cost
            })
        };
        let transfers = match &self.transfers {
            Transfers::Uniform(hop) => Transfers::Uniform(times(*hop)?),
            Transfers::Links(links) => {
                let row = |row: &Vec<Nanos>| row.iter().map(|hop| times(*hop)).collect();
                Transfers::Links(links.iter().map(row).collect::<Option<_>>()?)
            }
        };
        let stages = self.stages.iter().map(stage).collect::<Option<_>>()?;
        Statement { stages, transfers, ..self.statement() }.problem(self.placement.clone()).ok()
    }

    /// The same problem with hops that take `by` more; none where times would come to more than a problem may have.
    pub(crate) fn with_longer_hops(&self, by: Nanos) -> Option<Problem> {
        let transfers = match &self.transfers {
            Transfers::Uniform(hop) => Transfers::Uniform(hop.checked_add(by)?),
            Transfers::Links(links) => {
                let row = |row: &Vec<Nanos>| row.iter().map(|hop| hop.checked_add(by)).collect();
                Transfers::Links(links.iter().map(row).collect::<Option<_>>()?)
            }
        };
        Statement { transfers, ..self.statement() }.problem(self.placement.clone()).ok()
    }

    /// The problem as a statement with this placement fixed.
    pub fn statement(&self) -> Statement {
        Statement {
            ranks: self.ranks,
            chunks: self.chunks,
            microbatches: self.microbatches,
            placement: PlacementChoice::Fixed(self.placement.clone()),
            stages: self.stages.clone(),
            transfers: self.transfers.clone(),
            static_bytes: self.static_bytes.clone(),
            limit_bytes: self.limit_bytes.clone(),
            objective: self.objective,
            backward: self.backward,
            overlap_permille: self.overlap_permille,
        }
    }
}

/// What a pair saves whose ops take `took`, of which `exchanges` in exchanges: a share of the shorter one, or what each
/// computes while the other exchanges, whichever is more.
fn hidden(took: [Nanos; 2], exchanges: [Nanos; 2], overlap_permille: u16) -> Nanos {
    let [a, b] = [0, 1].map(|at| exchanges[at].min(took[at]));
    let beside = a.min(took[1] - b) + b.min(took[0] - a);
    share(took[0].min(took[1]), overlap_permille).max(beside)
}

/// The part of `shorter` that hides behind a longer op, rounded down.
fn share(shorter: Nanos, overlap_permille: u16) -> Nanos {
    (u128::from(shorter) * u128::from(overlap_permille) / 1000) as Nanos
}
