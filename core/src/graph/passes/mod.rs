//! Rewrites of a stage's graph. Each is small and reports what it did, what it left and why.
//!
//! They run in this order, on the forward and the undivided backward that [`backward`](super::backward) derives from
//! it:
//!
//! | Pass | What it changes |
//! |---|---|
//! | [`overlap_all_reduce`] | the TP all-reduce of dX starts early, and the dW matmul overlaps it |
//! | [`split_backward`] | gradients of matrices become W, so that they may run later |
//! | [`quantize`] | matmuls of layers run in FP8, where the spec asks for it |
//! | [`recompute`] | activations that are not kept are recomputed |
//! | [`offload_activations`] | kept activations wait in host memory, where the spec asks for it |
//!
//! Each takes time in proportion to the operators and rewrites the list once.
//!
//! [`frozen`] reports in the same way what of a graph does not train.
//!
//! [`reduce_gradients`] is one more pass, over the list of what a step does with the stage's gradients.

pub mod frozen;
pub mod offload_activations;
pub mod overlap_all_reduce;
pub mod quantize;
pub mod recompute;
pub mod reduce_gradients;
pub mod split_backward;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::Serialize;

use crate::base::units::Bytes;

/// What a pass did to one graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassReport {
    /// The pass, as a person would call it.
    pub pass: &'static str,
    /// Where it applied, in the order of the graph.
    pub done: Vec<Entry>,
    /// Where it might have and did not.
    pub skipped: Vec<Entry>,
}

/// One place of a graph in an [`PassReport`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Entry {
    /// The operator or tensor, without its layer's number.
    pub what: String,
    /// What was done, or why nothing was.
    pub why: String,
    /// Its decoder layer, counted over the whole model.
    pub layer: Option<u32>,
    /// Bytes that this concerns, of one microbatch or throughout a step; the pass says how. 0 where it concerns none.
    pub bytes: Bytes,
}

impl Entry {
    /// For the tensor or operator `name` of `layer`, whose number is left out of the name.
    pub fn new(name: &str, layer: Option<u32>, why: impl ToString, bytes: Bytes) -> Entry {
        let what = match layer {
            None => name.to_string(),
            Some(layer) => name.replace(&format!("layer {layer} "), "").replace(&format!(".{layer}."), ".*."),
        };
        Entry { what, why: why.to_string(), layer, bytes }
    }
}

impl PassReport {
    /// Of `pass`, with nothing done and nothing skipped.
    pub const fn new(pass: &'static str) -> PassReport {
        PassReport { pass, done: Vec::new(), skipped: Vec::new() }
    }

    /// Adds what the same pass did to another graph.
    pub fn extend(&mut self, other: PassReport) {
        self.done.extend(other.done);
        self.skipped.extend(other.skipped);
    }

    /// Bytes of all that was done.
    pub fn bytes(&self) -> Bytes {
        self.done.iter().fold(0, |sum: Bytes, entry| sum.saturating_add(entry.bytes))
    }
}

/// Layers as ranges: `0-3, 7`.
fn ranges(layers: &mut Vec<u32>) -> String {
    layers.sort_unstable();
    layers.dedup();
    let runs = layers.chunk_by(|a, b| *b == a + 1);
    let run = |run: &[u32]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

/// A head line, then one line for all entries that say the same of different layers.
impl fmt::Display for PassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} done, {} skipped", self.pass, self.done.len(), self.skipped.len())?;
        for (mark, entries) in [("+", &self.done), ("-", &self.skipped)] {
            let mut alike: BTreeMap<(&str, &str), (usize, Vec<u32>, Bytes)> = BTreeMap::new();
            let mut order = Vec::new();
            for entry in entries {
                let key = (entry.what.as_str(), entry.why.as_str());
                let found = alike.entry(key).or_insert_with(|| {
                    order.push(key);
                    (0, Vec::new(), 0)
                });
                found.0 += 1;
                found.1.extend(entry.layer);
                found.2 = found.2.saturating_add(entry.bytes);
            }
            for key in order {
                let Some((count, layers, bytes)) = alike.get_mut(&key) else { continue };
                let layers = if layers.is_empty() { String::new() } else { format!(" in layers {}", ranges(layers)) };
                let times = if *count > 1 { format!("{count} × ") } else { String::new() };
                let bytes = if *bytes > 0 { format!(" ({bytes} bytes)") } else { String::new() };
                writeln!(f, "  {mark} {times}{}{layers}: {}{bytes}", key.0, key.1)?;
            }
        }
        Ok(())
    }
}
