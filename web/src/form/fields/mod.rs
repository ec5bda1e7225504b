//! The fields of the form: path in a spec, label, unit, group, help.

mod stage_list;
mod table;
mod unit;

use pipeplan_core::base::fields::Fault;
use stage_list::explain_line_fault;

pub use table::FIELDS;

/// Which part of the form a field is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Above all groups.
    Top,
    /// The model by name.
    Model,
    /// Its sizes by hand.
    ModelSizes,
    /// Special features of its layers.
    Layers,
    /// Experts of its feed-forward parts.
    Experts,
    /// Latents of its attention.
    Latent,
    /// Parts that only newer models have.
    Parts,
    /// The cluster.
    Cluster,
    /// A device by hand.
    Device,
    /// Links and nodes by hand.
    Links,
    /// Ranks and chunks.
    Parallel,
    /// Devices beyond the pipeline's ranks.
    Split,
    /// The batch and precision of a step.
    Training,
    /// Documents, and microbatches that differ.
    Documents,
    /// How operators are written.
    Operators,
    /// The memory of a rank.
    Memory,
    /// The objective.
    Objective,
    /// How transfers go.
    Messages,
    /// Ranks, chunks and microbatches of typed costs.
    Shape,
    /// Typed costs.
    Costs,
    /// Bytes that typed ops need while they run.
    Workspace,
    /// The same for the fused backward.
    Fused,
    /// A line of costs for each stage.
    StageList,
    /// Typed limits and hops.
    Limits,
}

/// How a field's text becomes a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Plain text, or options that are never numbers.
    Words,
    /// The name of a choice, or numbers with commas between.
    Text,
    /// A whole number.
    Whole,
    /// Any number.
    Real,
    /// `true` or `false`.
    Flag,
    /// A number of this many, shown with a suffix: 80 GiB.
    Of(f64, &'static str),
    /// A whole number, or several with commas between: one for each rank. `none` is no limit.
    List(&'static str),
    /// One line a stage: three times, three changes of bytes.
    Stages,
    /// Lengths of documents, in a list or in lists of lists; or a table.
    Lengths,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its path in a spec.
    pub path: &'static str,
    /// Its label.
    pub label: &'static str,
    /// How its text is read.
    pub unit: Unit,
    /// Its group in the form.
    pub group: Group,
    /// A sentence that explains it; may be empty.
    pub help: &'static str,
}

const GIB: f64 = (1u64 << 30) as f64;

const fn of(path: &'static str, label: &'static str, unit: Unit, group: Group, help: &'static str) -> Field {
    Field { path, label, unit, group, help }
}

impl Field {
    /// Its name for screen readers, if its label is not enough without the legend.
    pub fn accessible_name(&self) -> Option<String> {
        match self.label {
            "F" | "B" | "W" | "BW" => {}
            _ => return None,
        }
        let of = match self.path.rsplit_once('_') {
            Some((key, "bytes")) if key.ends_with("_workspace") => "bytes only while it runs",
            Some((_, unit)) => unit,
            None => return None,
        };
        Some(format!("{}, {of}", self.label))
    }

    /// A fault of this field with the text `typed`, in the units of the field.
    pub fn explain_fault(&self, typed: &str, fault: &Fault) -> String {
        let inside = fault.field.strip_prefix(self.path).unwrap_or_default();
        if self.unit == Unit::Stages {
            return explain_line_fault(inside, fault);
        }
        if self.unit == Unit::Lengths
            && let Some(told) = explain_document_fault(inside, fault)
        {
            return told;
        }
        let inside = inside.trim_start_matches('.');
        let place = if inside.is_empty() { String::new() } else { format!("{inside}: ") };
        place + &self.unit.explain_fault(typed, &fault.found, &fault.accepted)
    }
}

/// A fault of one document in a list of all of a step, which has its number from 1: its line in a file of lengths.
fn explain_document_fault(inside: &str, fault: &Fault) -> Option<String> {
    let number: usize = inside.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
    let Fault { found, accepted, .. } = fault;
    // Of a list of lists it is a microbatch.
    found.parse::<f64>().ok().filter(|_| !accepted.starts_with("a list"))?;
    Some(format!("document {}: found {found}; accepted is {accepted}", number + 1))
}

/// The field of a path.
pub fn field(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}
