//! The form: the text of each field, and the spec that it means.
//!
//! - In: what a person types, and specs.
//! - Out: specs and their faults; labels, options and help of fields; sliders.
//! - Knows: the planner and [`text`](crate::text). No browser.
//!
//! The form holds text, not numbers: a half-typed value must stay while the planner says what it accepts.
//! [`Form::to_value`] writes the JSON of a spec. A text that is not a number stays a text there, so that the planner names
//! the field and its value. [`Form::of`] makes the form of a spec. It leaves out defaults of the catalog, so that a link
//! opens as the short form that made it.

mod choices;
mod fields;
mod following;
mod labels;
mod presets;
mod slider;

use std::collections::BTreeMap;

use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::hardware::cluster;
use pipeplan_core::model::hf_config;
use pipeplan_core::spec::{Spec, Work};
use serde_json::{Map, Value, json};

pub use choices::{choices, value_label};
pub use fields::{FIELDS, Field, Group, Unit, field};
pub use following::{DEVICES, LayoutQuestion};
pub use labels::{fault_of, with_labels};
pub use presets::{PRESETS, Preset};
pub use slider::{Slider, slider};

/// The half of the form in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// A model on a cluster.
    #[default]
    Model,
    /// Times and bytes of each op.
    Typed,
}

impl Kind {
    fn other(self) -> Kind {
        match self {
            Kind::Model => Kind::Typed,
            Kind::Typed => Kind::Model,
        }
    }

    /// Whether a field is of this half alone.
    fn has(self, path: &str) -> bool {
        !SHARED.contains(&path) && path.starts_with("problem") == (self == Kind::Typed)
    }
}

/// The text of every field, by path. A field that is not here is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Which half of the fields counts.
    pub kind: Kind,
    texts: BTreeMap<String, String>,
    /// Whether degrees that are not typed are found.
    follows: bool,
    found: following::Found,
}

impl Default for Form {
    /// The example at the start. It shows most features of the planner, has few enough blocks for a number in each, and
    /// a memory limit that some schedules exceed.
    fn default() -> Form {
        let texts = [
            ("model.name", "llama-2-7b"),
            ("cluster.device", "h100"),
            ("parallel.pipeline", "4"),
            ("training.microbatches", "10"),
            ("memory.limit_bytes", "56"),
            ("schedule", "best"),
            ("problem.ranks", "4"),
            ("problem.microbatches", "8"),
            ("problem.placement", "any"),
            ("problem.stages.forward_ns", "1000"),
            ("problem.stages.backward_input_ns", "1000"),
            ("problem.stages.backward_weight_ns", "1000"),
            ("problem.stages.forward_bytes", "2"),
            ("problem.stages.backward_input_bytes", "-1"),
            ("problem.stages.backward_weight_bytes", "-1"),
            ("problem.transfer_ns", "50"),
        ];
        let texts = texts.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect();
        Form { kind: Kind::Model, texts, follows: false, found: following::Found::default() }
    }
}

/// Fields of both halves.
const SHARED: [&str; 6] =
    ["name", "schedule", "messages.lowering", "messages.transport", "jitter_permille", "target"];
/// A list of costs, one line a stage, that takes the place of the single costs.
pub const STAGE_LIST: &str = "problem.stages";
/// The documents of a step.
pub const DOCUMENTS: &str = "training.documents";
/// The batch of a step over all replicas.
const GLOBAL_BATCH: &str = "training.global_batch_size";
/// The two fields for the batch.
const BATCH: [&str; 2] = ["training.microbatches", GLOBAL_BATCH];
/// Lines of it that are looked at one by one.
const MOST_LINES: usize = 64;

impl Form {
    /// The text of a field.
    pub fn text(&self, path: &str) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Sets the text of a field. The number of microbatches and the global batch size follow from each other: the last
    /// one counts.
    pub fn set(&mut self, path: &str, text: impl Into<String>) {
        let text = text.into();
        if path == DEVICES && !text.is_empty() {
            self.follow_devices();
        }
        // Where degrees follow, microbatches follow from the batch.
        if self.follows && path == BATCH[0] && !text.is_empty() {
            return;
        }
        if let (false, Some(at)) = (text.is_empty(), BATCH.iter().position(|field| *field == path)) {
            self.texts.remove(BATCH[1 - at]);
        }
        if text.is_empty() {
            self.texts.remove(path);
        } else {
            self.texts.insert(path.to_owned(), text);
        }
    }

    /// Selects a model of the catalog, or custom sizes for an empty name. The description of the model before is
    /// removed; custom sizes start from it. The sequence length is not a part of the model: a typed one stays, and
    /// custom sizes keep that of the model before.
    pub fn choose_model(&mut self, name: &str) {
        let by_hand = name.is_empty();
        let before = brief_defaults(self.text("model.name"), "h100", 1, 1);
        let describes = |field: &&Field| match field.group {
            Group::ModelSizes | Group::Layers | Group::Experts | Group::Latent | Group::Parts => true,
            _ => by_hand && field.path == "training.sequence",
        };
        self.refill(FIELDS.iter().filter(describes), by_hand, before.as_ref());
        self.set("model.name", name);
    }

    /// Another device of the catalog, or figures by hand for an empty name. A limit belongs to the memory of its device, so
    /// another device's goes without it.
    pub fn choose_device(&mut self, name: &str) {
        let by_hand = name.is_empty();
        let before = brief_defaults("llama-2-7b", self.text("cluster.device"), 1, 1);
        self.set("cluster.device", name);
        let groups = |field: &&Field| matches!(field.group, Group::Device | Group::Links);
        self.refill(FIELDS.iter().filter(groups), by_hand, before.as_ref());
        if !by_hand {
            self.set("memory.limit_bytes", "");
        }
    }

    /// Empties `fields`, or, `by_hand`, fills empty ones from `before`. A part of a group that is set as a whole, such
    /// as no experts, stays empty.
    fn refill(&mut self, fields: impl Iterator<Item = &'static Field>, by_hand: bool, before: Option<&Value>) {
        for field in fields {
            let whole = field.path.rsplit_once('.').map_or("", |(whole, _)| whole);
            if !by_hand {
                self.set(field.path, "");
            } else if self.text(field.path).is_empty()
                && self.text(whole).is_empty()
                && let Some(value) =
                    before.and_then(|before| at(before, field.path)).filter(|value| !value.is_object())
            {
                self.set(field.path, field.unit.text_of(value));
            }
        }
    }

    /// The field of the memory limit.
    pub fn limit_path(&self) -> &'static str {
        match self.kind {
            Kind::Model => "memory.limit_bytes",
            Kind::Typed => "problem.limit_bytes",
        }
    }

    /// The schedule without the size of its groups, and that size.
    pub fn schedule_and_group(&self) -> (&str, &str) {
        let schedule = self.text("schedule");
        schedule.split_once(':').unwrap_or((schedule, ""))
    }

    /// Whether the schedule's groups have a size that can be chosen.
    pub fn takes_groups(&self) -> bool {
        pipeplan_core::schedule::find(&format!("{}:1", self.schedule_and_group().0)).is_some()
    }

    /// Sets the size of the schedule's groups; empty for the schedule's own.
    pub fn set_group(&mut self, group: &str) {
        let schedule = self.schedule_and_group().0;
        let name = if group.is_empty() { schedule.to_owned() } else { format!("{schedule}:{group}") };
        self.set("schedule", name);
    }

    /// The spec's JSON. Fields of the other kind stay out.
    pub fn to_value(&self) -> Value {
        let mut root = Map::new();
        FIELDS.iter().for_each(|field| self.put_typed(&mut root, field));
        self.put_found(&mut root);
        // Tables that a spec has to have: an empty one is at fault in the fields that it lacks, a missing one as a whole.
        let needed: &[&str] = match self.kind {
            Kind::Model => &["model", "cluster", "parallel", "training"],
            Kind::Typed => &["problem"],
        };
        for table in needed {
            root.entry(*table).or_insert_with(|| json!({}));
        }
        Value::Object(root)
    }

    /// Writes a field that is typed, if it is of this half and of a spec.
    fn put_typed(&self, root: &mut Map<String, Value>, field: &Field) {
        let text = self.text(field.path).trim();
        let counts = !self.kind.other().has(field.path) && field.path != DEVICES;
        let replaced = field.path.starts_with("problem.stages.") && !self.text(STAGE_LIST).trim().is_empty();
        if counts && !replaced && !text.is_empty() {
            put(root, field.path, field.unit.value_of(text));
        }
    }

    /// The spec that it means.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(&self) -> Result<Spec, Vec<Fault>> {
        let value = self.to_value();
        let mut faults = match Spec::from_value(&value) {
            Ok(spec) => return Ok(spec),
            Err(faults) => faults.0,
        };
        // Of too many lines, or too few, core looks at none: each is looked at as if it were for all stages.
        let lines = at(&value, STAGE_LIST).and_then(Value::as_array).filter(|_| faults.iter().any(is_of_stage_list));
        for (index, line) in lines.into_iter().flatten().enumerate().take(MOST_LINES) {
            let mut alone = value.clone();
            alone.as_object_mut().into_iter().for_each(|root| put(root, STAGE_LIST, line.clone()));
            let found = Spec::from_value(&alone).err().map(|faults| faults.0).unwrap_or_default();
            faults.extend(found.into_iter().filter_map(|fault| {
                let key = fault.field.strip_prefix(STAGE_LIST)?.strip_prefix('.')?;
                Some(Fault::new(format!("{STAGE_LIST}[{index}].{key}"), fault.found, fault.accepted))
            }));
        }
        Err(faults)
    }

    /// The spec's JSON with the model of a `config.json`. If no sequence length is typed, it is `sequence`, or the
    /// number of positions of the model if that is less.
    pub fn value_with(&self, config: Value, sequence: u64) -> Value {
        let mut value = match self.kind {
            Kind::Model if self.follows => self.value_of_pins(),
            Kind::Model => self.to_value(),
            Kind::Typed => Form::default().to_value(),
        };
        if value.pointer("/training/sequence").is_none() {
            let model = hf_config::read(&config, "model.config", &mut Vec::new());
            let positions = model.map_or(u64::MAX, |model| u64::from(model.positions));
            value["training"]["sequence"] = json!(sequence.min(positions));
        }
        value["model"] = json!({ "config": config });
        value
    }

    /// Opens a spec as a file says it.
    ///
    /// # Errors
    /// What is wrong with it; the form is then as it was.
    pub fn open_value(&mut self, value: &Value) -> Result<(), Faults> {
        let spec = Spec::from_value(value)?;
        self.open_saying(&spec, at(value, GLOBAL_BATCH).is_some());
        Ok(())
    }

    /// Opens `spec`, and keeps the other half. If the form gave the global batch size, it still does.
    pub fn open(&mut self, spec: &Spec) {
        self.open_saying(spec, self.says_global_batch());
    }

    fn open_saying(&mut self, spec: &Spec, global_batch: bool) {
        let mut form = Form::of(spec);
        let other = form.kind.other();
        form.texts.retain(|path, _| !other.has(path));
        form.texts.extend(core::mem::take(&mut self.texts).into_iter().filter(|(path, _)| other.has(path)));
        *self = form;
        if global_batch {
            self.say_global_batch(spec);
        }
    }

    /// Changes several fields as `[path, before, after]`. Microbatches that followed from the global batch follow from it still.
    pub fn change_all(&mut self, changes: &[[String; 3]]) {
        let says_global_batch = self.says_global_batch();
        changes.iter().for_each(|[path, _, to]| self.set(path, to.as_str()));
        if says_global_batch
            && !self.follows()
            && let Ok(spec) = self.read()
        {
            self.say_global_batch(&spec);
        }
    }

    fn says_global_batch(&self) -> bool {
        !self.text(GLOBAL_BATCH).is_empty()
    }

    /// Gives the microbatches of `spec` as a global batch size.
    fn say_global_batch(&mut self, spec: &Spec) {
        if let Work::Model(work) = &spec.work {
            let sequences =
                u64::from(work.microbatches) * u64::from(work.microbatch_size) * u64::from(work.layout.data);
            // No spec has more.
            if u32::try_from(sequences).is_ok() {
                self.set(GLOBAL_BATCH, sequences.to_string());
            }
        }
    }

    /// The part of the form that a link does not contain: the texts of the hidden half, the global batch size, and which
    /// degrees follow. None if they are the defaults.
    pub fn unlinked(&self) -> Option<String> {
        let other = self.kind.other();
        let of = |form: &Form| -> BTreeMap<String, String> {
            let texts = form.texts.iter().filter(|(path, _)| other.has(path) || *path == GLOBAL_BATCH);
            texts.map(|(path, text)| (path.clone(), text.clone())).collect()
        };
        let texts = of(self);
        let following = self.unlinked_following();
        (following.is_some() || texts != of(&Form::default()))
            .then(|| json!({ "texts": texts, "following": following }).to_string())
    }

    /// Fills the hidden half with the stored texts, if they belong to it.
    pub fn recall_unlinked(&mut self, text: &str) {
        let other = self.kind.other();
        let stored: Value = serde_json::from_str(text).unwrap_or_default();
        let mut texts: BTreeMap<String, String> = serde_json::from_value(stored["texts"].clone()).unwrap_or_default();
        // The link may be another one by now, of other microbatches.
        if !other.has(GLOBAL_BATCH)
            && texts.remove(GLOBAL_BATCH).is_some()
            && let Ok(spec) = self.read()
        {
            self.say_global_batch(&spec);
        }
        if !texts.is_empty() && texts.keys().all(|path| other.has(path) && field(path).is_some()) {
            self.texts.retain(|path, _| !other.has(path));
            self.texts.extend(texts);
        }
        self.recall_following(&stored["following"]);
    }

    /// The form that means `spec`.
    pub fn of(spec: &Spec) -> Form {
        let mut value = spec.to_value();
        let mut form = Form { kind: Kind::Typed, ..Form::default() };
        let other = if matches!(spec.work, Work::Model(_)) { "model" } else { "problem" };
        form.texts.retain(|path, _| path.starts_with("problem") != (other == "problem"));
        // Texts of the example that do not belong to this spec.
        let mine = |path: &str| path.starts_with("problem") == (other == "problem");
        form.texts.retain(|path, _| !mine(path));
        if let Work::Model(work) = &spec.work {
            form.kind = Kind::Model;
            leave_out_defaults(&mut value, work);
        }
        for (path, default) in [
            ("objective", "makespan"),
            ("problem.objective", "makespan"),
            ("problem.backward", "split"),
            ("messages.lowering", "overlapped"),
            ("messages.transport", "grouped"),
        ] {
            if at(&value, path).and_then(Value::as_str) == Some(default) {
                drop_at(&mut value, path);
            }
        }
        for field in FIELDS {
            match at(&value, field.path) {
                Some(Value::Object(_)) | None => {}
                Some(found) if field.path == STAGE_LIST && !found.is_array() => {}
                Some(found) => form.set(field.path, field.unit.text_of(found)),
            }
        }
        form
    }

    /// The field that a fault of core is shown at: the one of that path, or the nearest that holds it.
    pub fn field_of(fault: &Fault) -> Option<&'static Field> {
        let plain: String = fault.field.chars().take_while(|c| *c != '[').collect();
        let mut path = plain.as_str();
        loop {
            if let Some(field) = field(path) {
                return Some(field);
            }
            path = path.rsplit_once('.')?.0;
        }
    }
}

/// The text of a limit that holds at least `bytes`, as short as a thousandth more allows.
pub fn limit_text(path: &str, bytes: u64) -> String {
    match field(path).map(|field| field.unit) {
        Some(Unit::Of(factor, _)) => {
            let exact = bytes as f64 / factor;
            let text = |decimals: i32| {
                let power = 10f64.powi(decimals);
                ((exact * power).ceil() / power, decimals as usize)
            };
            let short = (1..=9).map(text).find(|(value, _)| *value <= exact * 1.001);
            let (value, decimals) = short.unwrap_or_else(|| text(9));
            crate::text::trimmed(value, decimals)
        }
        _ => bytes.to_string(),
    }
}

/// Puts a value at a dotted path, making tables on the way. A table wins over a text that stands in its way:
/// a device by hand over a device's name, which becomes the table's `name`.
fn put(root: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            root.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let entry = root.entry(first).or_insert_with(|| json!({}));
            if !entry.is_object() {
                *entry = json!({ "name": entry.take() });
            }
            if let Value::Object(table) = entry {
                put(table, rest, value);
            }
        }
    }
}

/// The defaults of a spec that gives only a model of the catalog and a device.
fn brief_defaults(model: &str, device: &str, pipeline: u32, microbatches: u32) -> Option<Value> {
    let brief = json!({
        "model": { "name": model }, "cluster": { "device": device },
        "parallel": { "pipeline": pipeline }, "training": { "microbatches": microbatches },
    });
    Spec::from_value(&brief).ok().map(|spec| spec.to_value())
}

/// Whether a fault is of the list as a whole.
fn is_of_stage_list(fault: &Fault) -> bool {
    fault.field == STAGE_LIST
}

/// The value at a dotted path.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// Removes defaults of the catalog from the JSON of a spec.
fn leave_out_defaults(value: &mut Value, work: &pipeplan_core::spec::ModelWork) {
    let known = |name: &str| cluster::find(name).map(|entry| entry.device(work.dtype));
    if known(&work.device.name).as_ref() == Some(&work.device) {
        value["cluster"]["device"] = json!(work.device.name);
    }
    // Each half has its own defaults, also where the other is by hand.
    let by_model = brief_defaults(&work.model_name, "h100", work.pipeline, work.microbatches);
    let device = if cluster::find(&work.device.name).is_some() { work.device.name.as_str() } else { "h100" };
    let by_device = brief_defaults("llama-2-7b", device, 1, 1);
    let mut drop = |path: &str, defaults: &Option<Value>| {
        if let Some(defaults) = defaults {
            drop_equal(value, path, at(defaults, path));
        }
    };
    drop("model", &by_model);
    // The sequence length depends on the model, and required fields have no default.
    let mut usual = by_device.clone();
    for needed in ["training.microbatches", "training.sequence", "parallel.pipeline"] {
        usual.iter_mut().for_each(|usual| drop_at(usual, needed));
    }
    let sequence = by_model.as_ref().and_then(|defaults| at(defaults, "training.sequence"));
    drop("training", &sequence.map(|sequence| json!({ "training": { "sequence": sequence } })));
    drop("training", &usual);
    // Only a spec of a model with experts has these fields.
    let dealt = json!({ "parallel": { "expert": 1, "whole_experts": false } });
    drop("parallel", &Some(dealt));
    drop("parallel", &usual);
    drop("cluster", &by_device);
    drop("cluster.link", &by_device);
    drop("cluster.node_link", &by_device);
    // These stay, so that the form and its link show them.
    if !work.model_name.is_empty() {
        value["model"]["name"] = json!(work.model_name);
    }
    if value["cluster"]["device"].is_null() {
        value["cluster"]["device"] = json!(work.device.name);
    }
}

/// Takes out the entry at `path`.
fn drop_at(value: &mut Value, path: &str) {
    let (table, key) = match path.rsplit_once('.') {
        Some((table, key)) => (value.pointer_mut(&format!("/{}", table.replace('.', "/"))), key),
        None => (Some(value), path),
    };
    if let Some(Value::Object(table)) = table {
        table.remove(key);
    }
}

/// Takes out of the table at `path` every entry that equals the same one of `defaults`.
fn drop_equal(value: &mut Value, path: &str, defaults: Option<&Value>) {
    let table = value.pointer_mut(&format!("/{}", path.replace('.', "/")));
    if let (Some(Value::Object(table)), Some(Value::Object(defaults))) = (table, defaults) {
        table.retain(|key, value| defaults.get(key) != Some(value));
    }
}

#[cfg(test)]
mod tests;
