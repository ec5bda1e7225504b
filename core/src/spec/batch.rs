//! The microbatches of a step of a model, where they differ.

use alloc::format;
use alloc::vec::Vec;

use serde_json::{Map, Value, json};

use super::{Documents, ModelWork};
use crate::base::fields::{Fault, Table, shown, whole};
use crate::graph::form::AttentionForm;
use crate::model::Variant;
use crate::problem::factors::{Factors, MAX_PERMILLE, MicrobatchFactors, USUAL_PERMILLE};

/// What differs between the microbatches of a step. All have the same number of tokens, padded where they have fewer, so
/// they hold the same bytes. Default: nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Batch {
    /// Thousandths of the times of F, B and W of each microbatch.
    pub factors: Option<MicrobatchFactors>,
    /// The lengths of the documents, in tokens: attention stays within documents.
    pub documents: Documents,
}

const TIMES: [&str; 3] = ["forward", "backward_input", "backward_weight"];

impl Batch {
    /// Whether something differs.
    pub fn differs(&self) -> bool {
        self.factors.is_some() || self.documents != Documents::Sequences
    }

    /// Reads `training.microbatch_factors` and `training.documents`.
    pub(super) fn read(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Batch {
        let factors = table.get("microbatch_factors").and_then(|value| {
            let path = table.path("microbatch_factors");
            read_times(value, &path, faults)
        });
        let documents = table.get("documents").map(|value| {
            let path = table.path("documents");
            Documents::read(value, &path, faults)
        });
        Batch { factors, documents: documents.unwrap_or_default() }
    }

    /// Adds what it says to the table `training`.
    pub(super) fn write(&self, training: &mut Value) {
        let one = |of: &Factors| match of.values() {
            [f, b, w, ..] if f == b && b == w => json!(f),
            values => {
                let times = TIMES.iter().zip(values).filter(|(_, value)| *value != USUAL_PERMILLE);
                Value::Object(times.map(|(name, value)| ((*name).into(), json!(value))).collect::<Map<_, _>>())
            }
        };
        if let Some(factors) = &self.factors {
            training["microbatch_factors"] = Value::Array(factors.values().iter().map(one).collect());
        }
        if let Some(documents) = self.documents.to_value() {
            training["documents"] = documents;
        }
    }

    /// What does not fit the rest of the spec.
    pub(super) fn find_faults(&self, work: &ModelWork, faults: &mut Vec<Fault>) {
        if !self.differs() {
            return;
        }
        let microbatches = work.microbatches as usize;
        let list = format!("a list of {microbatches}, one for each microbatch");
        if let Some(factors) = &self.factors {
            let field = "training.microbatch_factors";
            if factors.stages() != 1 || factors.microbatches() != microbatches {
                faults.push(Fault::new(field, format!("a list of {}", factors.microbatches()), list));
            }
            let is_sound = |of: &Factors| {
                let [times @ .., bytes, messages] = of.values();
                [bytes, messages] == [USUAL_PERMILLE; 2] && times.iter().all(|time| (1..=MAX_PERMILLE).contains(time))
            };
            if !factors.values().iter().all(is_sound) {
                faults.push(Fault::new(
                    field,
                    "other factors",
                    format!("times from 1 to {MAX_PERMILLE} thousandths"),
                ));
            }
            if self.documents != Documents::Sequences {
                faults.push(Fault::new(
                    "training.documents",
                    "it together with training.microbatch_factors",
                    "one of both",
                ));
            }
        }
        if self.documents != Documents::Sequences {
            self.find_document_faults(work, faults);
        }
        // Both weigh layers by the time of one microbatch.
        if work.layout.fits() {
            faults.push(Fault::new(
                "training.recompute",
                "`fit` with microbatches that differ",
                "recomputation and offload by name: `fit` rests on microbatches that are alike",
            ));
        }
    }

    fn find_document_faults(&self, work: &ModelWork, faults: &mut Vec<Fault>) {
        let field = "training.documents";
        self.documents.find_faults(work.bins(), work.sequence, faults);
        let Variant { indexer, recurrence, vision, .. } = &work.model.variant;
        let unknown = [
            (work.layout.form.attention != AttentionForm::Flash, "materialised attention"),
            (work.layout.form.context > 1, "context parallel"),
            (indexer.is_some(), "an indexer"),
            (recurrence.is_some(), "a recurrence"),
            (vision.is_some(), "a vision tower"),
        ];
        for (_, what) in unknown.into_iter().filter(|(is_so, _)| *is_so) {
            let accepted = "flash attention on one device, without recurrences and images: there the time within \
                            documents is known; or training.microbatch_factors";
            faults.push(Fault::new(field, format!("documents with {what}"), accepted));
        }
    }
}

/// Factors of time: a number for F, B and W, or a table of these. None for all 1000, which says nothing.
fn read_times(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<MicrobatchFactors> {
    let range = 1..=u64::from(MAX_PERMILLE);
    let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
        faults.push(Fault::new(path, shown(value), "a list of thousandths of time, one for each microbatch"));
        return None;
    };
    let before = faults.len();
    let mut of = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut times = [USUAL_PERMILLE; 3];
        if item.is_object() {
            if let Some(mut table) = Table::of(item, &path, faults) {
                times = TIMES.map(|name| {
                    table.whole(name, range.clone(), faults).map_or(USUAL_PERMILLE, |permille| permille as u32)
                });
                table.finish(faults);
            }
        } else if let Some(permille) = whole(item).filter(|permille| range.contains(permille)) {
            times = [permille as u32; 3];
        } else {
            let accepted =
                format!("thousandths of time from 1 to {MAX_PERMILLE}, or a table of {}", TIMES.join(", "));
            faults.push(Fault::new(path, shown(item), accepted));
        }
        let [forward, backward_input, backward_weight] = times;
        of.push(Factors { forward, backward_input, backward_weight, ..Factors::default() });
    }
    (faults.len() == before).then(|| MicrobatchFactors::of_all_stages(of)).filter(|factors| !factors.are_usual())
}
