//! Collectives by what they are for: how long they take, how much of that no compute hides, and whom they wait for.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Value, json};

use crate::base::units::Nanos;
use crate::program::Step;
use crate::trace::collectives::{Collective, Names, Purpose};
use crate::trace::{StepTrace, Trace, TraceSpan};

/// Collectives of one purpose: the mean over the steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communication {
    /// What they are for.
    pub purpose: Purpose,
    /// How many, over all rows.
    pub count: usize,
    /// By row of the trace.
    pub rows: Vec<RowCommunication>,
}

/// Of one row: time a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowCommunication {
    /// In collectives: where they overlap each other, each counts.
    pub total_ns: Nanos,
    /// Of that, while the rank does nothing else.
    pub exposed_ns: Nanos,
    /// Of all, until the last member has begun, where members are known.
    pub waits_ns: Nanos,
    /// How long the other members wait for this one, each for itself.
    pub awaited_ns: Nanos,
}

impl Communication {
    /// The row that the others wait for longest.
    pub fn slowest(&self) -> Option<(usize, Nanos)> {
        let rows = self.rows.iter().enumerate().map(|(row, of_row)| (row, of_row.awaited_ns));
        rows.max_by_key(|(row, ns)| (*ns, core::cmp::Reverse(*row))).filter(|(_, ns)| *ns > 0)
    }

    /// It in a line, with times as `duration` writes them and rows as `name` calls them.
    pub fn told(&self, duration: &dyn Fn(Nanos) -> String, name: &dyn Fn(usize) -> String) -> String {
        let mean = |of: fn(&RowCommunication) -> Nanos| {
            let sum = self.rows.iter().fold(0, |sum: Nanos, row| sum.saturating_add(of(row)));
            duration(sum / self.rows.len().max(1) as u64)
        };
        let (total, exposed) = (mean(|row| row.total_ns), mean(|row| row.exposed_ns));
        let waits = mean(|row| row.waits_ns);
        let most = self.slowest().map_or_else(String::new, |(row, _)| format!(", most for {}", name(row)));
        let purpose = self.purpose.name();
        format!(
            "{purpose}: {total} a step on average, {exposed} of it exposed, {waits} of it waiting for the last rank{most}"
        )
    }

    pub(super) fn to_value(&self) -> Value {
        let row = |row: &RowCommunication| {
            json!({
                "total_ns": row.total_ns, "exposed_ns": row.exposed_ns, "waits_ns": row.waits_ns,
                "awaited_ns": row.awaited_ns,
            })
        };
        json!({
            "what": self.purpose.name(), "count": self.count, "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The collectives of `trace`, by purpose.
pub(super) fn of(trace: &Trace) -> Vec<Communication> {
    let count = trace.steps.iter().map(|step| step.rows.len().max(step.collectives.len())).max().unwrap_or(0);
    let mut found: BTreeMap<Purpose, (usize, Vec<RowCommunication>)> = BTreeMap::new();
    let names = Names::of(&trace.steps);
    for step in &trace.steps {
        let last = last_members(step, &names);
        let mut occurrences = Occurrences::new(&names);
        for (row, collectives) in step.collectives.iter().enumerate() {
            let ops = step.rows.get(row).map_or(&[][..], Vec::as_slice);
            for collective in collectives {
                let (number, rows) = found.entry(collective.name.purpose()).or_default();
                rows.resize_with(count, RowCommunication::default);
                *number += 1;
                let took = collective.end_ns - collective.start_ns;
                let (name, occurrence) = occurrences.next(row, collective);
                let latest = last[name].get(occurrence).copied().filter(|(_, from)| *from != row);
                let waits = latest.map_or(0, |(start_ns, _)| start_ns.saturating_sub(collective.start_ns).min(took));
                let of_row = &mut rows[row];
                add(&mut of_row.total_ns, took);
                add(&mut of_row.exposed_ns, exposed(collective, ops));
                add(&mut of_row.waits_ns, waits);
                if let Some((_, latest)) = latest {
                    add(&mut rows[latest].awaited_ns, waits);
                }
            }
        }
    }
    let steps = trace.steps.len().max(1) as u64;
    let mean = |(purpose, (count, mut rows)): (Purpose, (usize, Vec<RowCommunication>))| {
        for row in &mut rows {
            for ns in [&mut row.total_ns, &mut row.exposed_ns, &mut row.waits_ns, &mut row.awaited_ns] {
                *ns /= steps;
            }
        }
        Communication { purpose, count, rows }
    };
    found.into_iter().map(mean).collect()
}

fn add(sum: &mut Nanos, ns: Nanos) {
    *sum = sum.saturating_add(ns);
}

/// Counts the collectives of each name on a row.
struct Occurrences<'n> {
    names: &'n Names<'n>,
    /// By name: the row that is counted, and how many it had.
    counted: Vec<(usize, usize)>,
}

impl<'n> Occurrences<'n> {
    fn new(names: &'n Names<'n>) -> Occurrences<'n> {
        Occurrences { names, counted: vec![(usize::MAX, 0); names.len()] }
    }

    /// The number of the name of `collective`, and how many of that name came before on its row. Rows come one after the other.
    fn next(&mut self, row: usize, collective: &Collective) -> (usize, usize) {
        let name = self.names.number(collective);
        let counted = &mut self.counted[name];
        if counted.0 != row {
            *counted = (row, 0);
        }
        counted.1 += 1;
        (name, counted.1 - 1)
    }
}

/// By name and occurrence: when the last member began, and which one that was. All members come to the collectives of a group in
/// the same order.
fn last_members(step: &StepTrace, names: &Names<'_>) -> Vec<Vec<(Nanos, usize)>> {
    let mut last: Vec<Vec<(Nanos, usize)>> = vec![Vec::new(); names.len()];
    let mut occurrences = Occurrences::new(names);
    for (row, collectives) in step.collectives.iter().enumerate() {
        for collective in collectives.iter().filter(|collective| collective.name.ranks.len() > 1) {
            let (name, occurrence) = occurrences.next(row, collective);
            let began = (collective.start_ns, row);
            match last[name].get_mut(occurrence) {
                Some(known) => *known = (*known).max(began),
                None => last[name].push(began),
            }
        }
    }
    last
}

/// How long the rank does nothing else: as recorded, or what lies in no op of its row.
fn exposed(collective: &Collective, row: &[TraceSpan]) -> Nanos {
    let Collective { start_ns, end_ns, exposed_ns, .. } = *collective;
    exposed_ns.unwrap_or_else(|| {
        let first = row.partition_point(|span| span.end_ns <= start_ns);
        let within = row[first..].iter().take_while(|span| span.start_ns < end_ns);
        let ops = within.filter(|span| matches!(span.step, Step::Compute(_)));
        let hidden = ops.map(|span| span.end_ns.min(end_ns) - span.start_ns.max(start_ns)).sum();
        (end_ns - start_ns).saturating_sub(hidden)
    })
}
