//! The problem file: the form in which a person or another program states a scheduling problem. It is read, checked and written
//! here.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::factors::MicrobatchFactors;
use super::op::OpKind;
use super::placement::Placement;
use super::{
    Backward, MAX_BYTES, MAX_CHUNKS, MAX_MICROBATCHES, MAX_NS, MAX_OPS, MAX_RANKS, MAX_TOTAL_BYTES, MAX_TOTAL_NS,
    Objective, Problem, StageCost, Transfers,
};
use crate::base::fields::{Fault, Faults, Table, bytes_in, one_of, shown, whole};
use crate::base::units::{Bytes, Nanos};

/// The placement that a statement asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementChoice {
    /// An answer keeps this placement.
    Fixed(Placement),
    /// An answer may choose.
    Any,
}

/// A scheduling problem as a problem file states it, in the common form that other programs write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Ranks, P.
    pub ranks: usize,
    /// Stages held by each rank, V.
    pub chunks: usize,
    /// Microbatches, M. With slices each is one slice.
    pub microbatches: usize,
    /// Sequence slices, of which M is a multiple; see [`Problem::slices`]. 1: sequences are whole.
    pub slices: usize,
    /// Which rank holds which stage.
    pub placement: PlacementChoice,
    /// One cost for all stages, or one for each.
    pub stages: Vec<StageCost>,
    /// Hop times.
    pub transfers: Transfers,
    /// Static bytes: one value, or one for each rank.
    pub static_bytes: Vec<Bytes>,
    /// The memory of a rank: one value, or one for each; none for no limit.
    pub limit_bytes: Vec<Option<Bytes>>,
    /// What an answer is judged by.
    pub objective: Objective,
    /// Whether the backward may be split.
    pub backward: Backward,
    /// Where a schedule runs a forward and a backward as a pair: thousandths of the shorter one that hide behind
    /// the longer. What each computes while the other [exchanges](StageCost::exchange) hides in any case.
    pub overlap_permille: u16,
    /// What each microbatch takes of what the stages say, where they differ; none where all take the same.
    pub microbatch_factors: Option<MicrobatchFactors>,
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
        let slices = table.whole("slices", 1..=MAX_MICROBATCHES as u64, faults).unwrap_or(1) as usize;
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
        let microbatch_factors = table.get("microbatch_factors").and_then(|value| {
            let path = table.path("microbatch_factors");
            MicrobatchFactors::read(value, &path, [ranks * chunks, microbatches], faults)
        });
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
            slices,
            placement: placement?,
            stages: stages?,
            transfers: transfers?,
            static_bytes: static_bytes?,
            limit_bytes: limit_bytes?,
            objective,
            backward,
            overlap_permille,
            microbatch_factors,
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
        // Additions to the common form, written only where they are set.
        if self.slices > 1 {
            value["slices"] = json!(self.slices);
        }
        if self.overlap_permille > 0 {
            value["overlap_permille"] = json!(self.overlap_permille);
        }
        if let Some(factors) = &self.microbatch_factors {
            value["microbatch_factors"] = factors.to_value();
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
        self.check_placement(&placement)?;
        self.check_slices("slices")?;
        let stages = self.ranks * self.chunks;
        self.check_factors("microbatch_factors")?;
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
            slices: self.slices,
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
            factors: self.microbatch_factors.clone(),
        })
    }

    /// Whether all sequences have as many slices.
    fn check_slices(&self, path: &str) -> Result<(), Fault> {
        if self.slices > 0 && self.microbatches.is_multiple_of(self.slices) {
            return Ok(());
        }
        let accepted = format!("a divisor of the {} microbatches, each of which is one slice", self.microbatches);
        Err(Fault::new(path, self.slices, accepted))
    }

    /// Whether there is a factor for each microbatch, and where they differ by stage for each stage.
    fn check_factors(&self, path: &str) -> Result<(), Fault> {
        let Some(factors) = &self.microbatch_factors else { return Ok(()) };
        let stages = self.ranks * self.chunks;
        let range = 1..=super::factors::MAX_PERMILLE;
        if let Some(wrong) = factors.values().iter().flat_map(|of| of.values()).find(|value| !range.contains(value)) {
            return Err(Fault::new(path, wrong, format!("thousandths from 1 to {}", range.end())));
        }
        if factors.microbatches() == self.microbatches && [1, stages].contains(&factors.stages()) {
            return Ok(());
        }
        let found = format!("{} microbatches on {} stages", factors.microbatches(), factors.stages());
        Err(Fault::new(path, found, format!("{} microbatches, on 1 or {stages} stages", self.microbatches)))
    }

    /// The time of all ops and hops, and the bytes that all ops take, of microbatches that differ.
    fn totals(&self, factors: &MicrobatchFactors, longest_hop: Nanos) -> (u128, u128) {
        let (mut time, mut bytes) = (0u128, 0u128);
        for stage in 0..self.ranks * self.chunks {
            let cost = &self.stages[if self.stages.len() == 1 { 0 } else { stage }];
            for microbatch in 0..self.microbatches {
                let of = factors.at(stage, microbatch);
                let own = of.applied_to(cost);
                time += 2 * u128::from(super::factors::scaled_up(longest_hop, of.messages));
                time += [OpKind::F, OpKind::B, OpKind::W]
                    .iter()
                    .map(|kind| u128::from(own.duration(*kind)))
                    .sum::<u128>();
                let kinds = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW];
                bytes += kinds.iter().map(|kind| u128::from(own.takes(*kind))).sum::<u128>();
                bytes += u128::from(own.slice_gradient_bytes);
            }
        }
        (time, bytes)
    }

    /// The placements that an answer may use, the simplest first. Never empty for a statement that was read.
    pub fn placements(&self) -> Vec<Placement> {
        match &self.placement {
            PlacementChoice::Fixed(placement) => vec![placement.clone()],
            PlacementChoice::Any if self.chunks == 1 => {
                let mut open = vec![Placement::Linear];
                // Bidirectional schedules are offered with the others, so the best is searched for there too.
                if self.suits(&Placement::Bidirectional) {
                    open.push(Placement::Bidirectional);
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

    /// Faults that no single field shows: total sizes, and bytes that fall below zero.
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
            && let Err(mut fault) = self.check_placement(placement)
        {
            fault.field = at(&fault.field);
            faults.push(fault);
        }
        if let Err(fault) = self.check_slices(&at("slices")) {
            faults.push(fault);
        }
        if let Err(fault) = self.check_factors(&at("microbatch_factors")) {
            faults.push(fault);
            return;
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
            time += 2 * u128::from(cost.offload_ns) * microbatches;
            for kind in [OpKind::F, OpKind::B, OpKind::W, OpKind::BW] {
                bytes += u128::from(cost.takes(kind)) * microbatches;
            }
            bytes += u128::from(cost.slice_gradient_bytes) * microbatches;
            if let Some((found, accepted)) = self.wrong_offload(cost) {
                let stage = if self.stages.len() == 1 { at("stages") } else { format!("{}[{index}]", at("stages")) };
                faults.push(Fault::new(format!("{stage}.offload_bytes"), found, accepted));
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
        if let Some(factors) = self.microbatch_factors.as_ref().filter(|_| faults.is_empty()) {
            (time, bytes) = self.totals(factors, longest_hop);
        }
        if time > u128::from(MAX_TOTAL_NS) {
            // The fault names the field that contributes most.
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

    /// What is wrong with the offload of a stage, and what is accepted.
    fn wrong_offload(&self, cost: &StageCost) -> Option<(String, String)> {
        let found = format!("{} bytes", cost.offload_bytes);
        if cost.offload_bytes == 0 {
            let accepted =
                String::from("at least 1, since `offload_ns` says how long its copy takes; or leave both out");
            return (cost.offload_ns > 0).then_some((found, accepted));
        }
        if self.slices > 1 || self.microbatch_factors.is_some() {
            let accepted =
                "0 where sequences are cut into slices or microbatches differ: their copies are not planned";
            return Some((found, String::from(accepted)));
        }
        let accepted = || format!("at most the {} bytes that F leaves held", cost.forward_bytes.max(0));
        (cost.offload_bytes > cost.forward_bytes.max(0) as u64).then(|| (found, accepted()))
    }

    /// Whether stages may be placed so.
    fn suits(&self, placement: &Placement) -> bool {
        let Statement { ranks, chunks, microbatches, slices, .. } = *self;
        match placement {
            Placement::Linear => chunks == 1,
            Placement::V => chunks == 2,
            Placement::Looped | Placement::Wave => true,
            Placement::Bidirectional => {
                chunks == 1 && ranks.is_multiple_of(2) && microbatches.is_multiple_of(2) && slices == 1
            }
            Placement::List(list) => {
                let wrong = list.len() != ranks * chunks || list.iter().any(|rank| usize::from(*rank) >= ranks);
                let mut held = vec![0usize; ranks];
                list.iter().filter(|rank| usize::from(**rank) < ranks).for_each(|rank| held[usize::from(*rank)] += 1);
                !wrong && held.iter().all(|held| *held == chunks)
            }
        }
    }

    fn check_placement(&self, placement: &Placement) -> Result<(), Fault> {
        if self.suits(placement) {
            return Ok(());
        }
        let Statement { ranks, chunks, microbatches, slices, .. } = *self;
        let accepted = match placement {
            Placement::Linear => "chunks 1 with `linear`; for more write looped, v, wave or a list",
            Placement::V => "chunks 2 with `v`; for more write wave",
            Placement::Bidirectional if slices > 1 => {
                "a placement in one direction where sequences are cut into slices"
            }
            Placement::Bidirectional => "chunks 1 and even numbers of ranks and microbatches with `two-way`",
            _ => "ranks × chunks entries, each a rank, every rank as often as it has chunks",
        };
        let name = placement.name().unwrap_or("a list");
        let found = format!("{name} with chunks {chunks}, ranks {ranks}, microbatches {microbatches}");
        Err(Fault::new("placement", found, accepted))
    }
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
        Some("two-way") => PlacementChoice::Fixed(Placement::Bidirectional),
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
        slice_gradient_bytes: table.whole("slice_gradient_bytes", 0..=MAX_BYTES, faults).unwrap_or(0),
        offload_bytes: table.whole("offload_bytes", 0..=MAX_BYTES, faults).unwrap_or(0),
        offload_ns: table.whole("offload_ns", 0..=MAX_NS, faults).unwrap_or(0),
    };
    let apart = cost.backward_input_ns + cost.backward_weight_ns;
    // The sum of both adds no information.
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
    // An addition to the common form, written only where it is set.
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
        ("slice_gradient_bytes", cost.slice_gradient_bytes),
        ("offload_bytes", cost.offload_bytes),
        ("offload_ns", cost.offload_ns),
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
