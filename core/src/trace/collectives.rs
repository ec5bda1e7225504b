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

use serde::de::{Error, MapAccess, SeqAccess};
use serde_json::{Value, json};

use super::read::{self, column};
use super::{MAX_NS, StepTrace};
use crate::base::fields::{Fault, Table, one_of, shown, whole};
use crate::base::stream::{Entry, Fields, Found, ListOf, Path, Reader, TableOf, Wanted};
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

/// The names of a file, by number.
#[derive(Default)]
pub(super) struct Named(Vec<Arc<CollectiveName>>);

impl Named {
    pub(super) fn get(&self, number: u64) -> Option<Arc<CollectiveName>> {
        self.0.get(usize::try_from(number).ok()?).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'de> Entry<'de> for Named {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error> {
        let mut fields = NameFields::default();
        let table = TableOf { fields: &mut fields, path, found };
        let Some(others) = entries.next_element_seed(Reader(table))? else { return Ok(false) };
        let (ranks, path, faults) = (fields.ranks, path.to_string(), found.faults());
        let Some(mut table) = others.as_ref().and_then(|others| Table::of(others, &path, faults)) else {
            return Ok(true);
        };
        let kind = table.choice("kind", &CollectiveKind::NAMED, faults);
        if table.get("kind").is_none() {
            let kinds = CollectiveKind::NAMED.map(|(name, _)| name);
            faults.push(Fault::new(table.path("kind"), "nothing", one_of(&kinds)));
        }
        let group = table.choice("group", &GroupKind::NAMED, faults);
        let label = table.text("label", faults).unwrap_or_default().to_string();
        NameFields::TAKEN.iter().for_each(|taken| _ = table.get(taken));
        let is_in_order = ranks.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_in_order || ranks.last().is_some_and(|last| *last >= MAX_RANKS as u64) {
            let accepted = format!("rows below {MAX_RANKS}, each once, in order");
            faults.push(Fault::new(table.path("ranks"), format!("{ranks:?}"), accepted));
        }
        table.finish(faults);
        // One with a fault keeps its place.
        let kind = kind.unwrap_or(CollectiveKind::AllReduce);
        let ranks = ranks.into_iter().map(|rank| rank as u32).collect();
        self.0.push(Arc::new(CollectiveName { kind, group, label, ranks }));
        Ok(true)
    }
}

#[derive(Default)]
struct NameFields {
    ranks: Vec<u64>,
}

impl<'de> Fields<'de> for NameFields {
    const TAKEN: &'static [&'static str] = &["ranks"];

    fn field<A: MapAccess<'de>>(
        &mut self,
        _: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error> {
        self.ranks = column(Vec::new(), MAX_RANKS, path, fields, found)?;
        Ok(())
    }
}

/// The columns of a row.
#[derive(Default)]
struct RowFields {
    of: Vec<u64>,
    starts: Vec<u64>,
    ends: Vec<u64>,
    bytes: Vec<u64>,
    exposed: Vec<u64>,
}

impl<'de> Fields<'de> for RowFields {
    const TAKEN: &'static [&'static str] = &["of", "start_ns", "end_ns", "bytes", "exposed_ns"];

    fn field<A: MapAccess<'de>>(
        &mut self,
        field: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error> {
        let most = usize::MAX;
        match field {
            0 => self.of = column(Vec::new(), most, path, fields, found)?,
            1 => self.starts = column(Vec::new(), most, path, fields, found)?,
            2 => self.ends = column(Vec::new(), most, path, fields, found)?,
            _ => {
                let entry = Known(Vec::new());
                let Known(column) = fields.next_value_seed(Reader(ListOf { most, path, found, entry }))?;
                *(if field == 3 { &mut self.bytes } else { &mut self.exposed }) = column;
            }
        }
        Ok(())
    }
}

/// Numbers, some of which may be null: those are [`UNKNOWN`].
struct Known(Vec<u64>);

const UNKNOWN: u64 = u64::MAX;

impl<'de> Entry<'de> for Known {
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error> {
        let number = entries.next_element_seed(Reader(KnownNumber { path, found }))?;
        self.0.extend(number);
        Ok(number.is_some())
    }
}

struct KnownNumber<'a> {
    path: &'a Path<'a>,
    found: &'a mut Found,
}

impl Wanted<'_> for KnownNumber<'_> {
    type Out = u64;

    fn other<E: Error>(self, value: Value) -> Result<u64, E> {
        let number = whole(&value).filter(|number| *number <= MAX_NS);
        if number.is_none() && !value.is_null() {
            let accepted = format!("a whole number up to {MAX_NS}, or null");
            self.found.fault(Fault::new(self.path.to_string(), shown(&value), accepted))?;
        }
        Ok(number.unwrap_or(UNKNOWN))
    }
}

/// The collectives of a row, and the numbers of their names.
pub(super) type NumberedRow = (Vec<Collective>, Vec<u64>);

/// Reads the collectives of a row, with the numbers of their names, which may come later in the file; none where the columns do not
/// fit together.
pub(super) fn read_row<'de, A: MapAccess<'de>>(
    path: &Path<'_>,
    fields: &mut A,
    found: &mut Found,
) -> Result<Option<NumberedRow>, A::Error> {
    let mut row = RowFields::default();
    let Some(others) = fields.next_value_seed(Reader(TableOf { fields: &mut row, path, found }))? else {
        return Ok(None);
    };
    read::finish::<RowFields>(&others, path, found);
    let RowFields { of, starts, ends, bytes, exposed } = row;
    let count = of.len();
    if starts.len() != count || ends.len() != count {
        let columns = format!("{count} collectives, {} starts and {} ends", starts.len(), ends.len());
        found.fault(Fault::new(path.to_string(), columns, "one start and one end for each collective"))?;
        return Ok(None);
    }
    for (key, column) in [("bytes", &bytes), ("exposed_ns", &exposed)] {
        if !column.is_empty() && column.len() != count {
            let path = Path::Field(path, key).to_string();
            found.fault(Fault::new(path, format!("{} entries", column.len()), format!("{count}, or none")))?;
            return Ok(None);
        }
    }
    let nameless =
        CollectiveName { kind: CollectiveKind::AllReduce, group: None, label: String::new(), ranks: Vec::new() };
    let nameless = Arc::new(nameless);
    let known = |column: &[u64], at: usize| column.get(at).copied().filter(|number| *number != UNKNOWN);
    let mut collectives = Vec::with_capacity(count);
    let mut before = 0;
    for (at, (&start_ns, &end_ns)) in starts.iter().zip(&ends).enumerate() {
        if start_ns < before || end_ns < start_ns {
            let times = format!("one from {start_ns} to {end_ns}, after one from {before} on");
            found.fault(Fault::new(path.to_string(), times, "collectives in order of their starts"))?;
            return Ok(None);
        }
        before = start_ns;
        collectives.push(Collective {
            name: Arc::clone(&nameless),
            start_ns,
            end_ns,
            bytes: known(&bytes, at),
            exposed_ns: known(&exposed, at).map(|exposed| exposed.min(end_ns - start_ns)),
        });
    }
    Ok(Some((collectives, of)))
}
