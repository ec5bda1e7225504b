//! Costs of each stage, typed as lines.

use pipeplan_core::base::fields::Fault;
use serde_json::Value;

use super::Unit;

pub(super) const STAGE_KEYS: [&str; 16] = [
    "forward_ns",
    "backward_input_ns",
    "backward_weight_ns",
    "forward_bytes",
    "backward_input_bytes",
    "backward_weight_bytes",
    "forward_workspace_bytes",
    "backward_input_workspace_bytes",
    "backward_weight_workspace_bytes",
    "backward_workspace_bytes",
    "backward_ns",
    "forward_exchange_ns",
    "backward_exchange_ns",
    "slice_gradient_bytes",
    "offload_bytes",
    "offload_ns",
];

/// The name of each number in a line.
const STAGE_NUMBERS: [&str; 16] = [
    "ns of F",
    "ns of B",
    "ns of W",
    "bytes of F",
    "bytes of B",
    "bytes of W",
    "workspace bytes of F",
    "workspace bytes of B",
    "workspace bytes of W",
    "workspace bytes of BW",
    "ns of BW",
    "ns of F's exchanges",
    "ns of B's exchanges",
    "bytes of slice gradients",
    "bytes to offload",
    "ns of a copy to the host",
];

/// The costs of a stage: up to sixteen numbers in a line. Other words stay text; missing numbers stay out.
pub(super) fn stage(line: &str) -> Value {
    let words = line.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let mut keys = STAGE_KEYS.iter();
    let mut table = serde_json::Map::new();
    for word in words {
        // A seventeenth number is an error with this name.
        let key = keys.next().copied().unwrap_or("a seventeenth number");
        if word != "none" {
            table.insert(key.to_owned(), Unit::Whole.value_of(word));
        }
    }
    Value::Object(table)
}

/// A fault in lines of costs, which the planner reads as a list of tables.
pub(super) fn explain_line_fault(inside: &str, fault: &Fault) -> String {
    let Fault { found, accepted, .. } = fault;
    let number = |text: &str| text.split(' ').find_map(|word| word.parse::<usize>().ok());
    let place = || {
        let (index, key) = inside.strip_prefix('[')?.split_once(']')?;
        let key = key.trim_start_matches('.');
        let known = STAGE_KEYS.iter().position(|known| *known == key).map(|position| STAGE_NUMBERS[position]);
        Some(format!(
            "line {}, {}: found {found}; accepted is {accepted}",
            index.parse::<usize>().ok()? + 1,
            known.unwrap_or(key)
        ))
    };
    let lines = || {
        let (found, accepted) = (found.strip_prefix("a list of ").and_then(number)?, number(accepted)?);
        let found = crate::text::counted(found, "line");
        let wanted = crate::text::counted(accepted, "line");
        Some(format!(
            "found {found}; accepted is {wanted}, one for each stage, or none: all stages then have the costs above"
        ))
    };
    let told = if inside.is_empty() { lines() } else { place() };
    told.unwrap_or_else(|| format!("found {found}; accepted is {accepted}"))
}
