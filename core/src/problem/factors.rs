//! Microbatches that differ: what each takes of the time and bytes of its stages.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::StageCost;
use crate::base::fields::{Fault, Table, shown, whole};
use crate::base::units::{ByteDelta, Nanos};
use crate::problem::op::OpKind;

/// The factor of a microbatch that takes what its stage says.
pub const USUAL_PERMILLE: u32 = 1000;
/// The greatest factor: a hundred times.
pub const MAX_PERMILLE: u32 = 100_000;

/// The names of the factors, in the order of [`Factors::values`].
const NAMES: [&str; 5] = ["forward", "backward_input", "backward_weight", "bytes", "messages"];

/// What one microbatch takes, in thousandths of what its stage says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factors {
    /// Of the time of F, rounded up.
    pub forward: u32,
    /// Of the time of B, rounded up. The fused BW takes what B and W take together; where it takes less, the same share.
    pub backward_input: u32,
    /// Of the time of W, rounded up.
    pub backward_weight: u32,
    /// Of the bytes that are held after F, after B and after W, and of those that an op needs while it runs, each
    /// rounded up.
    pub bytes: u32,
    /// Of the hops between this stage and the next, both ways, rounded up.
    pub messages: u32,
}

impl Default for Factors {
    fn default() -> Factors {
        Factors::all(USUAL_PERMILLE)
    }
}

impl Factors {
    /// The same factor for everything.
    pub const fn all(permille: u32) -> Factors {
        Factors {
            forward: permille,
            backward_input: permille,
            backward_weight: permille,
            bytes: permille,
            messages: permille,
        }
    }

    /// All factors: of F, B, W, bytes and messages.
    pub const fn values(self) -> [u32; 5] {
        [self.forward, self.backward_input, self.backward_weight, self.bytes, self.messages]
    }

    /// The factors with these [values](Factors::values).
    pub const fn of(values: [u32; 5]) -> Factors {
        let [forward, backward_input, backward_weight, bytes, messages] = values;
        Factors { forward, backward_input, backward_weight, bytes, messages }
    }

    /// What a stage takes for a microbatch with these factors.
    pub fn applied_to(self, cost: &StageCost) -> StageCost {
        let [forward_ns, backward_input_ns, backward_weight_ns] =
            [OpKind::F, OpKind::B, OpKind::W].map(|kind| self.time(cost, kind));
        let apart = u128::from(backward_input_ns) + u128::from(backward_weight_ns);
        let usual = u128::from(cost.backward_input_ns) + u128::from(cost.backward_weight_ns);
        let fused = |ns: Nanos| (u128::from(ns) * apart).div_ceil(usual.max(1));
        let after_b = cost.forward_bytes + cost.backward_input_bytes;
        let held = [cost.forward_bytes, after_b, after_b + cost.backward_weight_bytes].map(|bytes| self.held(bytes));
        let workspace = |bytes| scaled_up(bytes, self.bytes);
        StageCost {
            forward_ns,
            backward_input_ns,
            backward_weight_ns,
            backward_ns: cost.backward_ns.map(fused).filter(|ns| *ns < apart).map(|ns| ns as Nanos),
            forward_exchange_ns: scaled_down(cost.forward_exchange_ns, self.forward),
            backward_exchange_ns: scaled_down(cost.backward_exchange_ns, self.backward_input),
            forward_bytes: held[0],
            backward_input_bytes: held[1] - held[0],
            backward_weight_bytes: held[2] - held[1],
            forward_workspace_bytes: workspace(cost.forward_workspace_bytes),
            backward_input_workspace_bytes: workspace(cost.backward_input_workspace_bytes),
            backward_weight_workspace_bytes: workspace(cost.backward_weight_workspace_bytes),
            backward_workspace_bytes: cost.backward_workspace_bytes.map(workspace),
            slice_gradient_bytes: cost.slice_gradient_bytes,
            // Microbatches that differ have no copies.
            offload_bytes: 0,
            offload_ns: 0,
        }
        .bounded()
    }

    /// The time of F, B or W of a stage.
    pub(super) fn time(self, cost: &StageCost, kind: OpKind) -> Nanos {
        match kind {
            OpKind::F => scaled_up(cost.forward_ns, self.forward),
            OpKind::B => scaled_up(cost.backward_input_ns, self.backward_input),
            OpKind::W => scaled_up(cost.backward_weight_ns, self.backward_weight),
            OpKind::BW => self.applied_to(cost).duration(OpKind::BW),
        }
    }

    /// Bytes held, which are never below 0.
    fn held(self, bytes: ByteDelta) -> ByteDelta {
        scaled_up(bytes.max(0) as u64, self.bytes) as ByteDelta
    }
}

/// `value` times `permille` thousandths, rounded up. Values and factors are bounded, so that it fits.
pub(super) fn scaled_up(value: u64, permille: u32) -> u64 {
    if permille == USUAL_PERMILLE {
        return value;
    }
    u64::try_from((u128::from(value) * u128::from(permille)).div_ceil(1000)).unwrap_or(u64::MAX)
}

fn scaled_down(value: u64, permille: u32) -> u64 {
    u64::try_from(u128::from(value) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}

/// The factors of every microbatch of a problem: one for all stages, or one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchFactors {
    /// 1, or the number of stages.
    stages: usize,
    /// By microbatch, then by stage.
    of: Vec<Factors>,
}

impl MicrobatchFactors {
    /// Of microbatches that take the same share in all stages.
    pub fn of_all_stages(of: Vec<Factors>) -> MicrobatchFactors {
        MicrobatchFactors { stages: 1, of }
    }

    /// By microbatch, then by stage, each microbatch with one entry for each of `stages`; none for another number of
    /// entries. Entries that are the same in all stages are kept once.
    pub fn of_stages(stages: usize, of: Vec<Factors>) -> Option<MicrobatchFactors> {
        if stages == 0 || !of.len().is_multiple_of(stages) {
            return None;
        }
        let is_one = of.chunks(stages).all(|row| row.iter().all(|factors| *factors == row[0]));
        if is_one {
            return Some(MicrobatchFactors::of_all_stages(of.into_iter().step_by(stages).collect()));
        }
        Some(MicrobatchFactors { stages, of })
    }

    /// 1 where they are the same in all stages, else the number of stages.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// All of them, by microbatch, then by stage.
    pub fn values(&self) -> &[Factors] {
        &self.of
    }

    /// How many microbatches they are of.
    pub fn microbatches(&self) -> usize {
        self.of.len() / self.stages
    }

    /// Those of `microbatch` in `stage`.
    pub fn at(&self, stage: usize, microbatch: usize) -> Factors {
        self.of[if self.stages == 1 { microbatch } else { microbatch * self.stages + stage }]
    }

    /// Whether all microbatches take what the stages say.
    pub fn are_usual(&self) -> bool {
        self.of.iter().all(|factors| *factors == Factors::default())
    }

    /// As JSON: for each microbatch a number, or an object of those that are not 1000, or a list of these by stage.
    pub fn to_value(&self) -> Value {
        let one = |factors: &Factors| match factors.values() {
            [first, rest @ ..] if rest.iter().all(|value| *value == first) => json!(first),
            values => {
                let named = NAMES.iter().zip(values).filter(|(_, value)| *value != USUAL_PERMILLE);
                Value::Object(named.map(|(name, value)| (String::from(*name), json!(value))).collect::<Map<_, _>>())
            }
        };
        let row = |row: &[Factors]| match row {
            [only] => one(only),
            several => Value::Array(several.iter().map(one).collect()),
        };
        Value::Array(self.of.chunks(self.stages).map(row).collect())
    }

    /// Reads the JSON form of `microbatches` microbatches on `stages` stages. None with a fault, and for factors that are
    /// all 1000, which say nothing.
    pub fn read(
        value: &Value,
        path: &str,
        [stages, microbatches]: [usize; 2],
        faults: &mut Vec<Fault>,
    ) -> Option<MicrobatchFactors> {
        let Some(items) = value.as_array().filter(|items| items.len() == microbatches) else {
            let accepted = format!("a list of {microbatches}, one for each microbatch");
            let found = value.as_array().map_or_else(|| shown(value), |items| format!("a list of {}", items.len()));
            faults.push(Fault::new(path, found, accepted));
            return None;
        };
        let before = faults.len();
        let by_stage = items.iter().any(Value::is_array);
        let mut of = Vec::with_capacity(items.len() * if by_stage { stages } else { 1 });
        for (index, item) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            match item {
                Value::Array(row) if row.len() == stages => {
                    for (stage, item) in row.iter().enumerate() {
                        of.extend(read_one(item, &format!("{path}[{stage}]"), faults));
                    }
                }
                Value::Array(row) => {
                    let found = format!("a list of {}", row.len());
                    faults.push(Fault::new(
                        path,
                        found,
                        format!("one entry, or a list of {stages}, one for each stage"),
                    ));
                }
                item => {
                    let one = read_one(item, &path, faults);
                    of.extend(one.into_iter().flat_map(|one| vec![one; if by_stage { stages } else { 1 }]));
                }
            }
        }
        if faults.len() > before {
            return None;
        }
        MicrobatchFactors::of_stages(if by_stage { stages } else { 1 }, of).filter(|factors| !factors.are_usual())
    }
}

fn read_one(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Factors> {
    let range = 1..=u64::from(MAX_PERMILLE);
    if value.is_object() {
        let before = faults.len();
        let mut table = Table::of(value, path, faults)?;
        let values = NAMES
            .map(|name| table.whole(name, range.clone(), faults).map_or(USUAL_PERMILLE, |permille| permille as u32));
        table.finish(faults);
        return (faults.len() == before).then_some(Factors::of(values));
    }
    let permille = whole(value).filter(|permille| range.contains(permille));
    if permille.is_none() {
        let accepted = format!("thousandths from 1 to {MAX_PERMILLE}, or a table of {}", NAMES.join(", "));
        faults.push(Fault::new(path, shown(value), accepted));
    }
    permille.map(|permille| Factors::all(permille as u32))
}
