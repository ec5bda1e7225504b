//! Measured times of operators on a device, as a file. They replace the roofline of [`crate::hardware::cost`]. The
//! JSON Schema is `core/schema/profile.schema.json`.
//!
//! The file is JSON: `{"version": 1, "device": "...", "operators": [{"kernel": "matmul", "operands": "bf16[8,4] ...",
//! "ns": 12, "flops": 512, "bytes": 256}, ...]}`, sorted by kernel and operands. `operands` lists the number format
//! and sizes of all inputs, `->`, and those of all outputs. So two operators with tensors of the same sizes count as
//! the same. Attributes that also change the time (heads, transposes) are part of `kernel`.
//!
//! `flops` and `bytes`, by default 0, are the work of the operator ([`Load`]). With them, the time of an operator of
//! other sizes is its roofline, scaled by the ratio of the measured operator of the same kind and format with the
//! nearest work. So a profile of one model serves other models and layouts, too, and treats all their operators
//! alike.
//!
//! A device that fuses a matmul with the sum after it has a time of both ([`Signature::of_both`]): the `kernel` has
//! both names, with `&` between them. Then the sum itself takes no time.
//!
//! The optimizer's step is the kernel `adamw`, with the format and number of the updated weights and the bytes that
//! it moves ([`Signature::of_update`]).
//!
//! `run` has what a run took, by rank and stage, with what was estimated of it ([`RunTimes`]): from `pipeplan calibrate`.
//!
//! `workspace_bytes`, by default 0, is memory that each rank on the device needs besides what a plan counts, such as
//! a workspace of a matmul library. Memory that is planned with this profile counts it.

mod coverage;
mod file;
mod run;
mod signature;

pub use self::coverage::Coverage;
pub use self::file::{ProfileError, SCHEMA, VERSION};
pub use self::run::{JobNanos, LinkTimes, RunTimes, StageTimes};
pub use self::signature::{Signature, takes_sum};

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::graph::{Graph, Kernel, Operator};
use crate::hardware::cluster::Device;
use crate::hardware::cost::{self, Load, Peers};
use crate::model::Dtype;
use crate::problem::MAX_NS;

/// Measured times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What was measured, for people.
    pub device: String,
    /// Memory that each rank needs besides what a plan counts.
    pub workspace_bytes: Bytes,
    /// What a run took, by rank and stage; none where only operators were measured.
    pub run: Option<RunTimes>,
    measured: BTreeMap<Signature, Measured>,
    /// The same by kind, and there by how much is done.
    kinds: BTreeMap<Kind, BTreeMap<u128, Measured>>,
}

/// A measured operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    time: Nanos,
    load: Load,
}

/// What operators have in common whose sizes differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// The kernel without its sizes.
    kernel: String,
    /// The formats of the first input and of the first output.
    formats: [String; 2],
}

impl Kind {
    fn of(signature: &Signature) -> Kind {
        let kernel = signature.kernel.split(|character: char| character.is_ascii_digit()).next().unwrap_or_default();
        let format = |operands: &str| operands.split('[').next().unwrap_or_default().to_string();
        let (inputs, outputs) = signature.operands.split_once("-> ").unwrap_or_default();
        Kind { kernel: kernel.trim_end().to_string(), formats: [format(inputs), format(outputs)] }
    }
}

/// How much is done: arithmetic where there is any.
fn amount(load: &Load) -> u128 {
    if load.flops > 0 { load.flops } else { load.bytes.into() }
}

/// Of a kind the one whose amount is fewest times `own`, or the other way round.
fn nearest(of_kind: &BTreeMap<u128, Measured>, own: u128) -> Option<&Measured> {
    let below = of_kind.range(..=own).next_back();
    let above = of_kind.range(own..).next();
    let (_, nearest) = match (below, above) {
        (Some(below), Some(above)) if own.saturating_mul(own) > below.0.saturating_mul(*above.0) => above,
        (below, above) => below.or(above)?,
    };
    Some(nearest)
}

impl Measured {
    /// The time of what is estimated to take `own`, where this is estimated to take `other`.
    fn in_proportion(&self, [own, other]: [Nanos; 2]) -> Nanos {
        let time = u128::from(own).saturating_mul(self.time.into()).div_ceil(u128::from(other.max(1)));
        Nanos::try_from(time).unwrap_or(Nanos::MAX).min(MAX_NS)
    }
}

impl Profile {
    /// Of `device`, with nothing measured.
    pub fn new(device: &str) -> Profile {
        Profile { device: device.to_string(), ..Profile::default() }
    }

    /// Notes a measured time of an operator that does so much; of a product and the sum behind it, the product.
    pub fn insert(&mut self, signature: Signature, load: Load, time: Nanos) {
        let measured = Measured { time, load };
        if amount(&load) > 0 {
            let of_kind = self.kinds.entry(Kind::of(&signature)).or_default();
            let known = of_kind.entry(amount(&load)).or_insert(measured);
            // Of those that do as much the slowest, so that it does not matter which came first.
            if (known.time, known.load.bytes) < (time, load.bytes) {
                *known = measured;
            }
        }
        self.measured.insert(signature, measured);
    }

    /// Whether there is a time of what is called so.
    pub fn has(&self, signature: &Signature) -> bool {
        self.measured.contains_key(signature)
    }

    /// The measured time of an operator like `operator`.
    pub fn time(&self, graph: &Graph, operator: &Operator) -> Option<Nanos> {
        self.measured(&Signature::of(graph, operator))
    }

    /// The measured time of a product like `product` with the `sum` behind it.
    pub fn time_of_both(&self, graph: &Graph, product: &Operator, sum: &Operator) -> Option<Nanos> {
        self.measured(&Signature::of_both(graph, product, sum))
    }

    fn measured(&self, signature: &Signature) -> Option<Nanos> {
        self.measured.get(signature).map(|measured| measured.time)
    }

    /// By operator of `graph`: what is measured, with the time of a product and the sum behind it all at the product's.
    pub fn times(&self, graph: &Graph) -> Vec<Option<Nanos>> {
        self.times_by(graph, |signature, _| self.measured(signature))
    }

    /// By operator of `graph`: what is measured, or follows from what is.
    fn known_times(&self, graph: &Graph, device: &Device, peers: &Peers) -> Vec<Option<Nanos>> {
        self.times_by(graph, |signature, operator| {
            self.measured(signature).or_else(|| self.scaled(signature, graph, operator, device, peers))
        })
    }

    /// By operator of `graph` what `time` says, of a product and the sum behind it all at the product's.
    fn times_by(&self, graph: &Graph, time: impl Fn(&Signature, &Operator) -> Option<Nanos>) -> Vec<Option<Nanos>> {
        let alone = |operator: &Operator| time(&Signature::of(graph, operator), operator);
        let mut times: Vec<Option<Nanos>> = graph.operators.iter().map(alone).collect();
        for at in (0..times.len()).zip(takes_sum(graph)).filter_map(|(at, takes)| takes.then_some(at)) {
            let (product, sum) = (&graph.operators[at], &graph.operators[at + 1]);
            if let Some(both) = time(&Signature::of_both(graph, product, sum), product) {
                (times[at], times[at + 1]) = (Some(both), Some(0));
            }
        }
        times
    }

    /// The time of `operator`, which is called `signature` but was not measured, by the nearest of its kind. None
    /// where it talks with other devices: what that takes is no matter of its sizes alone. But attention in a ring
    /// computes what it does on one device, while what it passes on travels beside.
    fn scaled(
        &self,
        signature: &Signature,
        graph: &Graph,
        operator: &Operator,
        device: &Device,
        peers: &Peers,
    ) -> Option<Nanos> {
        let is_spread = matches!(operator.kernel, Kernel::SpreadAttention(_) | Kernel::SpreadAttentionGrad(_));
        if operator.kernel.axis().is_some() && !is_spread {
            return None;
        }
        let own = Kind::of(signature);
        let plain = || is_spread.then(|| Kind { kernel: own.kernel.replace("spread_", ""), ..own.clone() });
        let of_kind = self.kinds.get(&own).or_else(|| self.kinds.get(&plain()?))?;
        let load = Load::of(graph, operator);
        let nearest = nearest(of_kind, amount(&load))?;
        let estimate = |load: &Load| load.time(&operator.kernel, device, peers);
        let time = nearest.in_proportion([&Load { sent: 0, ..load }, &nearest.load].map(estimate));
        let travels = if load.sent > 0 { estimate(&Load { sent: load.sent, ..Load::default() }) } else { 0 };
        Some(time.max(travels))
    }

    /// The time of the optimizer's step over weights in `dtype` that moves so many bytes, by the nearest measured one.
    pub fn update_time(&self, dtype: Dtype, moved: Bytes, device: &Device) -> Option<Nanos> {
        let nearest = nearest(self.kinds.get(&Kind::of(&Signature::of_update(dtype, 0)))?, moved.into())?;
        Some(nearest.in_proportion([moved, nearest.load.bytes].map(|bytes| cost::traffic_time(bytes, device))))
    }

    /// How many operators have been measured.
    pub fn len(&self) -> usize {
        self.measured.len()
    }

    /// Whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }

    /// By operator of `graph` its time: measured, else by a measured one of its kind, else the roofline's.
    pub fn operator_times(&self, graph: &Graph, device: &Device, peers: &Peers) -> Vec<Nanos> {
        let known = self.known_times(graph, device, peers).into_iter().zip(&graph.operators);
        known
            .map(|(time, operator)| time.unwrap_or_else(|| cost::operator_time(graph, operator, device, peers)))
            .collect()
    }

    /// What it knows of the operators of `graph` on `device`.
    pub fn covers(&self, graph: &Graph, device: &Device, peers: &Peers) -> Coverage {
        let measured = graph.operators.iter().filter(|operator| self.time(graph, operator).is_some()).count();
        let known = self.known_times(graph, device, peers).iter().flatten().count();
        Coverage { measured, scaled: known.saturating_sub(measured), all: graph.operators.len() }
    }
}

#[cfg(test)]
mod tests;
