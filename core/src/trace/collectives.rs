//! Collectives of a training step: what ranks do together, at the same time as the ops of their rows or between them.
//!
//! In a file the names of collectives stand once, and each row has columns as it has them for its ops:
//!
//! ```json
//! { "collectives": [ { "kind": "reduce-scatter", "group": "dp", "label": "gradients of stage 1", "ranks": [1, 3] } ],
//!   "steps": [ { "rows": [ {},
//!                          { "collectives": { "of": [0, 0], "start_ns": [700, 810], "end_ns": [800, 850],
//!                                             "bytes": [4096, 512], "exposed_ns": [100, 40] } } ] } ] }
//! ```

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::{MAX_NS, StepTrace, read_list, read_numbers};
use crate::base::fields::{Fault, Table};
use crate::base::units::{Bytes, Nanos};
use crate::problem::MAX_RANKS;

/// Most names of one file.
pub const MAX_NAMES: usize = 1 << 16;

/// What the ranks of a group do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// Each gets the sum of all.
    AllReduce,
    /// Each gets its part of the sum.
    ReduceScatter,
    /// Each gets the parts of all.
    AllGather,
    /// Each sends a part to each.
    AllToAll,
    /// One sends to all.
    Broadcast,
    /// Each sends to the next one, as context parallel ranks pass on keys and values.
    Ring,
}

impl CollectiveKind {
    /// Every kind with its name.
    pub const NAMED: [(&'static str, CollectiveKind); 6] = [
        ("all-reduce", CollectiveKind::AllReduce),
        ("reduce-scatter", CollectiveKind::ReduceScatter),
        ("all-gather", CollectiveKind::AllGather),
        ("all-to-all", CollectiveKind::AllToAll),
        ("broadcast", CollectiveKind::Broadcast),
        ("ring", CollectiveKind::Ring),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        name_of(&CollectiveKind::NAMED, self)
    }
}

/// Which group of ranks it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// Data parallel ranks, of experts too.
    Data,
    /// Tensor parallel ranks.
    Tensor,
    /// Context parallel ranks.
    Context,
    /// Expert parallel ranks.
    Expert,
    /// Ranks that hold copies of one weight in several stages, such as a tied embedding.
    Embedding,
    /// All that add to the norm of the gradients.
    World,
}

impl GroupKind {
    /// Every group with its name.
    pub const NAMED: [(&'static str, GroupKind); 6] = [
        ("dp", GroupKind::Data),
        ("tp", GroupKind::Tensor),
        ("cp", GroupKind::Context),
        ("ep", GroupKind::Expert),
        ("embedding", GroupKind::Embedding),
        ("world", GroupKind::World),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        name_of(&GroupKind::NAMED, self)
    }
}

fn name_of<T: PartialEq>(named: &[(&'static str, T)], of: T) -> &'static str {
    named.iter().find(|(_, known)| *known == of).map_or("", |(name, _)| name)
}

/// What all collectives of a name have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollectiveName {
    /// What they do.
    pub kind: CollectiveKind,
    /// Which group of ranks does it; none where it is not known.
    pub group: Option<GroupKind>,
    /// Of what: `gradients of stage 3`; empty where it is not known.
    pub label: String,
    /// The rows of the trace that take part, in order; empty where they are not known.
    pub ranks: Vec<u32>,
}

impl core::fmt::Display for CollectiveName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let group = self.group.map_or("", GroupKind::name);
        let parts = [group, self.kind.name(), &self.label];
        let mut parts = parts.into_iter().filter(|part| !part.is_empty());
        f.write_str(parts.next().unwrap_or_default())?;
        parts.try_for_each(|part| write!(f, " {part}"))
    }
}

/// One collective on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// Which one.
    pub name: Arc<CollectiveName>,
    /// When the rank began it, from the start of the training step.
    pub start_ns: Nanos,
    /// When the rank had its result.
    pub end_ns: Nanos,
    /// What the rank put in; none where it is not known.
    pub bytes: Option<Bytes>,
    /// For how long of that the rank did nothing else; none where it is not known: then it is what no op covers.
    pub exposed_ns: Option<Nanos>,
}

/// What a collective is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Gradients of data parallel ranks, and of copies of a weight.
    GradientSync,
    /// Weights that data parallel ranks have updated in parts (ZeRO).
    ParameterGather,
    /// Tensor parallel ranks.
    Tensor,
    /// Context parallel ranks.
    Context,
    /// Expert parallel ranks.
    Expert,
    /// What says no more of itself.
    Other,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Purpose; 6] = [
        Purpose::GradientSync,
        Purpose::ParameterGather,
        Purpose::Tensor,
        Purpose::Context,
        Purpose::Expert,
        Purpose::Other,
    ];

    /// What a person calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Purpose::GradientSync => "gradient sync",
            Purpose::ParameterGather => "param all-gather",
            Purpose::Tensor => "TP",
            Purpose::Context => "CP",
            Purpose::Expert => "EP",
            Purpose::Other => "other",
        }
    }
}

impl CollectiveName {
    /// What it is for: as its label says, or else its group and kind.
    pub fn purpose(&self) -> Purpose {
        // Tensor parallel ranks reduce gradients of weights that all of them hold, too.
        if self.label.starts_with("gradient") {
            return Purpose::GradientSync;
        }
        match (self.group, self.kind) {
            (Some(GroupKind::Data), CollectiveKind::AllGather) => Purpose::ParameterGather,
            (Some(GroupKind::Data | GroupKind::Embedding | GroupKind::World), _) => Purpose::GradientSync,
            (Some(GroupKind::Tensor), _) => Purpose::Tensor,
            (Some(GroupKind::Context), _) => Purpose::Context,
            (Some(GroupKind::Expert), _) => Purpose::Expert,
            (None, _) => Purpose::Other,
        }
    }
}

/// The different names in a trace, each with its number, in order.
pub(super) struct Names<'t> {
    by_name: BTreeMap<&'t CollectiveName, usize>,
    /// Most collectives share their name's place in memory.
    by_address: BTreeMap<usize, usize>,
}

impl<'t> Names<'t> {
    pub(super) fn of(steps: &'t [StepTrace]) -> Names<'t> {
        let mut places: BTreeMap<usize, &CollectiveName> = BTreeMap::new();
        for collective in steps.iter().flat_map(|step| &step.collectives).flatten() {
            places.entry(Arc::as_ptr(&collective.name).addr()).or_insert(&collective.name);
        }
        let mut by_name: BTreeMap<&CollectiveName, usize> = places.values().map(|name| (*name, 0)).collect();
        by_name.values_mut().enumerate().for_each(|(index, number)| *number = index);
        let numbered = |(address, name): (&usize, &&CollectiveName)| Some((*address, *by_name.get(*name)?));
        let by_address = places.iter().filter_map(numbered).collect();
        Names { by_name, by_address }
    }

    pub(super) fn number(&self, collective: &Collective) -> usize {
        self.by_address.get(&Arc::as_ptr(&collective.name).addr()).copied().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// By number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'t CollectiveName> + '_ {
        self.by_name.keys().copied()
    }
}

/// A name as the file has it.
pub(super) fn name_value(name: &CollectiveName) -> Value {
    let mut value = json!({ "kind": name.kind.name() });
    if let Some(group) = name.group {
        value["group"] = json!(group.name());
    }
    if !name.label.is_empty() {
        value["label"] = json!(name.label);
    }
    if !name.ranks.is_empty() {
        value["ranks"] = json!(name.ranks);
    }
    value
}

/// The collectives of a row as the file has them.
pub(super) fn row_value(row: &[Collective], names: &Names<'_>) -> Value {
    let mut value = json!({
        "of": row.iter().map(|collective| names.number(collective)).collect::<Vec<_>>(),
        "start_ns": row.iter().map(|collective| collective.start_ns).collect::<Vec<_>>(),
        "end_ns": row.iter().map(|collective| collective.end_ns).collect::<Vec<_>>(),
    });
    let columns: [(&str, fn(&Collective) -> Option<u64>); 2] =
        [("bytes", |collective| collective.bytes), ("exposed_ns", |collective| collective.exposed_ns)];
    for (key, of) in columns {
        if row.iter().any(|collective| of(collective).is_some()) {
            value[key] = row.iter().map(of).collect();
        }
    }
    value
}

/// A name of the file's list.
pub(super) fn read_name(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Arc<CollectiveName>> {
    let mut table = Table::of(value, path, faults)?;
    let kind = table.choice("kind", &CollectiveKind::NAMED, faults);
    if table.get("kind").is_none() {
        let kinds = CollectiveKind::NAMED.map(|(name, _)| name);
        faults.push(Fault::new(table.path("kind"), "nothing", crate::base::fields::one_of(&kinds)));
    }
    let group = table.choice("group", &GroupKind::NAMED, faults);
    let label = table.text("label", faults).unwrap_or_default().to_string();
    let ranks_path = table.path("ranks");
    let ranks = read_numbers(table.get("ranks"), &ranks_path, MAX_RANKS, faults);
    let in_order = ranks.windows(2).all(|pair| pair[0] < pair[1]);
    if !in_order || ranks.last().is_some_and(|last| *last >= MAX_RANKS as u64) {
        faults.push(Fault::new(
            ranks_path,
            format!("{ranks:?}"),
            format!("rows below {MAX_RANKS}, each once, in order"),
        ));
        return None;
    }
    table.finish(faults);
    Some(Arc::new(CollectiveName {
        kind: kind?,
        group,
        label,
        ranks: ranks.into_iter().map(|rank| rank as u32).collect(),
    }))
}

/// A number, or null.
fn read_known(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Option<u64>> {
    if value.is_null() {
        return Some(None);
    }
    let number = crate::base::fields::whole(value).filter(|number| *number <= MAX_NS);
    if number.is_none() {
        let accepted = format!("a whole number up to {MAX_NS}, or null");
        faults.push(Fault::new(path, crate::base::fields::shown(value), accepted));
    }
    number.map(Some)
}

/// The collectives of a row.
pub(super) fn read_row(
    value: &Value,
    path: &str,
    names: &[Arc<CollectiveName>],
    faults: &mut Vec<Fault>,
) -> Option<Vec<Collective>> {
    let mut table = Table::of(value, path, faults)?;
    let of_path = table.path("of");
    let of = read_numbers(table.get("of"), &of_path, usize::MAX, faults);
    let (start_path, end_path) = (table.path("start_ns"), table.path("end_ns"));
    let starts = read_numbers(table.get("start_ns"), &start_path, of.len(), faults);
    let ends = read_numbers(table.get("end_ns"), &end_path, of.len(), faults);
    let mut known = |table: &mut Table<'_>, key: &'static str| {
        let path = table.path(key);
        let column = read_list(table.get(key), &path, of.len(), faults, read_known);
        if column.len() == of.len() || column.is_empty() {
            return Some(column);
        }
        faults.push(Fault::new(path, format!("{} entries", column.len()), format!("{}, or none", of.len())));
        None
    };
    let bytes = known(&mut table, "bytes");
    let exposed = known(&mut table, "exposed_ns");
    table.finish(faults);
    if starts.len() != of.len() || ends.len() != of.len() {
        let found = format!("{} collectives, {} starts and {} ends", of.len(), starts.len(), ends.len());
        faults.push(Fault::new(path, found, "one start and one end for each collective"));
        return None;
    }
    let (bytes, exposed) = (bytes?, exposed?);
    let mut row = Vec::with_capacity(of.len());
    let mut before = 0;
    for (index, ((of, start_ns), end_ns)) in of.into_iter().zip(starts).zip(ends).enumerate() {
        let name = usize::try_from(of).ok().and_then(|of| names.get(of));
        let Some(name) = name else {
            let accepted = format!("the number of one of the {} entries of `collectives`", names.len());
            faults.push(Fault::new(format!("{of_path}[{index}]"), of, accepted));
            return None;
        };
        if start_ns < before || end_ns < start_ns {
            let found = format!("{name} from {start_ns} to {end_ns}, after one from {before} on");
            faults.push(Fault::new(path, found, "collectives in order of their starts"));
            return None;
        }
        before = start_ns;
        let known = |column: &[Option<u64>]| column.get(index).copied().flatten();
        row.push(Collective {
            name: Arc::clone(name),
            start_ns,
            end_ns,
            bytes: known(&bytes),
            exposed_ns: known(&exposed).map(|exposed| exposed.min(end_ns - start_ns)),
        });
    }
    Some(row)
}
