//! Degrees that follow: a person gives a model, a device, a number of devices and a batch, and the planner finds the layout.
//!
//! While the form follows, a degree that is typed is pinned, and an empty one is the one that was found: [`Form::to_value`]
//! writes it, and the input shows it in place of a default. What was found belongs to one [`LayoutQuestion`]; after a change
//! of it the layout is found again.

use std::collections::BTreeMap;

use pipeplan_core::advise::tune::{Field as Pin, MOST_DEVICES};
use pipeplan_core::base::fields::Fault;
use pipeplan_core::spec::{Spec, Work};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{BATCH, FIELDS, Form, GLOBAL_BATCH, Kind, at, field, put};

/// The number of devices: a field of the page, which no spec has.
pub const DEVICES: &str = "devices";

/// Fields that the planner finds while the form follows.
const FOUND: [&str; 10] = [
    "parallel.pipeline",
    "parallel.tensor",
    "parallel.sequence_parallel",
    "parallel.data",
    "parallel.zero",
    "parallel.context",
    "parallel.expert",
    "parallel.whole_experts",
    "training.microbatch_size",
    "training.recompute",
];

/// Fields that are settings of the layout, and that no search finds.
const OF_LAYOUT: [&str; 5] = [
    "parallel.chunks",
    "parallel.partition",
    "parallel.shard",
    "training.recompute_first",
    "training.recompute_group",
];

/// Fields that make no other layout.
const OF_NO_LAYOUT: [&str; 6] =
    ["name", "schedule", "messages.lowering", "messages.transport", "jitter_permille", "target"];

/// What a layout is found for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutQuestion {
    /// The spec as JSON; its degrees count only where they are pinned.
    pub spec: String,
    /// Number of devices; none: the least that works.
    pub devices: Option<u64>,
    /// The global batch size; none: the usual one.
    pub batch: Option<u64>,
    /// Fields of the spec that stay.
    pub pins: Vec<String>,
}

/// What was found, and for which question.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Found {
    texts: BTreeMap<String, String>,
    question: Option<LayoutQuestion>,
}

impl Form {
    /// What the page opens with: a large model on nodes of which many have some.
    pub fn start() -> Form {
        let mut form = Form::default();
        for path in FIELDS.iter().map(|field| field.path).filter(|path| !path.starts_with("problem")) {
            form.set(path, "");
        }
        form.set("model.name", "llama-3-70b");
        form.set("cluster.device", "h100");
        form.set("schedule", "best");
        form.follows = true;
        form.set(DEVICES, "64");
        form
    }

    /// Whether degrees that are not typed are found.
    pub fn follows(&self) -> bool {
        self.follows && self.kind == Kind::Model
    }

    /// Lets all degrees follow, for the devices that there are. A limit and a batch that came with degrees by hand go with
    /// them; typed ones of a form that follows already stay.
    pub fn follow(&mut self) {
        if !self.follows {
            let devices = self.devices_by_hand();
            for path in BATCH.into_iter().chain(["memory.limit_bytes"]) {
                self.set(path, "");
            }
            if let Some(devices) = devices {
                self.texts.insert(DEVICES.to_owned(), devices.to_string());
            }
        }
        self.follows = true;
        self.set(BATCH[0], "");
        self.unpin();
    }

    /// Lets the degrees follow that are not typed: a person has typed the number of devices.
    pub(super) fn follow_devices(&mut self) {
        if !self.follows && self.kind == Kind::Model {
            // The batch stays as it is, and becomes one that shows.
            if let Ok(spec) = self.read() {
                self.say_global_batch(&spec);
            }
            self.follows = true;
        }
    }

    /// Takes what was found for an answer to the form as it is now.
    pub fn keep_found(&mut self) {
        if self.found.question.is_some()
            && let Ok(Some(question)) = self.layout_question()
        {
            self.found.question = Some(question);
        }
    }

    /// Drops what was found.
    pub fn forget_found(&mut self) {
        self.found = Found::default();
    }

    /// Unpins all degrees.
    pub fn unpin(&mut self) {
        for path in FOUND.into_iter().chain(OF_LAYOUT) {
            self.texts.remove(path);
        }
        self.found = Found::default();
    }

    /// Fields of the layout that are typed while the others follow.
    pub fn pins(&self) -> Vec<&'static str> {
        let typed = |path: &&'static str| !self.text(path).trim().is_empty();
        if self.follows() { FOUND.into_iter().chain(OF_LAYOUT).filter(typed).collect() } else { Vec::new() }
    }

    /// The text of a field that was found, and is not pinned.
    pub fn found(&self, path: &str) -> Option<&str> {
        let found = self.found.texts.get(path).filter(|_| self.follows() && self.text(path).trim().is_empty());
        found.map(String::as_str)
    }

    /// Whether what was found is for this question.
    pub fn was_found(&self, question: &LayoutQuestion) -> bool {
        self.follows() && self.found.question.as_ref() == Some(question)
    }

    /// The devices of degrees by hand.
    fn devices_by_hand(&self) -> Option<u64> {
        match &self.read().ok()?.work {
            Work::Model(work) => Some(work.devices()),
            Work::Typed(_) => None,
        }
    }

    /// The model of `spec`, as an opened file has it, with the devices, the batch and the limit of this form.
    pub fn open_model(&mut self, spec: &Spec) {
        let stays = [DEVICES, GLOBAL_BATCH, "memory.limit_bytes"];
        let mut before = self.clone();
        before.follow();
        let kept: Vec<(&str, String)> = stays.into_iter().map(|path| (path, before.text(path).to_owned())).collect();
        self.open(spec);
        self.follows = true;
        for path in BATCH {
            self.set(path, "");
        }
        self.unpin();
        for (path, text) in kept {
            self.set(path, text);
        }
    }

    /// What has to be found for this form; none where nothing has to be. Faults of typed fields come first.
    ///
    /// # Errors
    /// What is wrong with the fields that are typed.
    pub fn layout_question(&self) -> Result<Option<LayoutQuestion>, Vec<Fault>> {
        if !self.follows() {
            return Ok(None);
        }
        let mut faults = Vec::new();
        let mut whole = |path: &'static str, most: u64| {
            let text = self.text(path).trim();
            let unit = field(path)?.unit;
            let number = unit.value_of(text).as_u64().filter(|number| (1..=most).contains(number));
            if !text.is_empty() && number.is_none() {
                faults.push(Fault::new(path, text, format!("a whole number from 1 to {most}")));
            }
            number
        };
        let (devices, batch) = (whole(DEVICES, MOST_DEVICES), whole(GLOBAL_BATCH, u32::MAX.into()));
        let spec = self.value_of_pins();
        if let Err(found) = Spec::from_value(&spec) {
            faults.extend(found.0);
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut asked = spec;
        for path in OF_NO_LAYOUT {
            super::drop_at(&mut asked, path);
        }
        let pins = self.pins().into_iter().map(|path| match path {
            "training.recompute_first" | "training.recompute_group" => "training.recompute",
            path => path,
        });
        let pins = pins.filter(|path| Pin::named(path).is_some()).map(str::to_owned).collect();
        let question = LayoutQuestion { spec: asked.to_string(), devices, batch, pins };
        Ok((self.found.question.as_ref() != Some(&question)).then_some(question))
    }

    /// Puts the layout of `spec`, which was found for `question`, into the fields that follow. Whether it differs from the one
    /// before.
    pub fn take_found(&mut self, question: &LayoutQuestion, spec: &Spec) -> bool {
        let value = spec.to_value();
        let text = |path: &&str| Some(((*path).to_owned(), field(path)?.unit.text_of(at(&value, path)?)));
        let mut texts: BTreeMap<String, String> = FOUND.iter().filter_map(text).collect();
        if let Work::Model(work) = &spec.work {
            let sequences =
                u64::from(work.microbatches) * u64::from(work.microbatch_size) * u64::from(work.layout.data);
            texts.insert(GLOBAL_BATCH.to_owned(), sequences.to_string());
        }
        let differs = texts != self.found.texts;
        self.found = Found { texts, question: Some(question.clone()) };
        differs
    }

    /// The spec of what is typed, with the least of everything that follows.
    pub(super) fn value_of_pins(&self) -> Value {
        let mut root = Map::new();
        let typed = |path: &str| self.text(path).trim().to_owned();
        for field in FIELDS.iter().filter(|field| !BATCH.contains(&field.path)) {
            self.put_typed(&mut root, field);
        }
        if typed("parallel.pipeline").is_empty() {
            put(&mut root, "parallel.pipeline", json!(1));
        }
        // What shares replicas needs some.
        let shares = ["parallel.expert", "parallel.shard"].map(|path| typed(path).parse::<u64>().unwrap_or(1).max(1));
        if typed("parallel.data").is_empty() && shares != [1, 1] {
            put(&mut root, "parallel.data", json!(shares[0].saturating_mul(shares[1])));
        }
        put(&mut root, BATCH[0], json!(1));
        for table in ["model", "cluster", "parallel", "training"] {
            root.entry(table).or_insert_with(|| json!({}));
        }
        Value::Object(root)
    }

    /// Writes what was found where nothing is typed.
    pub(super) fn put_found(&self, root: &mut Map<String, Value>) {
        for (path, text) in self.found.texts.iter().filter(|_| self.follows()) {
            if self.found(path).is_some()
                && let Some(field) = field(path)
            {
                put(root, path, field.unit.value_of(text));
            }
        }
    }

    /// What a reload of the page needs to follow again: the number of devices and the pins.
    pub(super) fn unlinked_following(&self) -> Option<Value> {
        self.follows.then(|| {
            let typed = |path: &&str| !self.text(path).is_empty();
            let pinned: Vec<&str> = FOUND.into_iter().chain([GLOBAL_BATCH, BATCH[0]]).filter(typed).collect();
            json!({ "devices": self.text(DEVICES), "pinned": pinned })
        })
    }

    /// The other way round, for a form that a link has opened: degrees that were not pinned are the ones that were found.
    pub(super) fn recall_following(&mut self, value: &Value) {
        let (Some(devices), Some(pinned)) = (value["devices"].as_str(), value["pinned"].as_array()) else { return };
        let Ok(spec) = self.read() else { return };
        let is_pinned = |path: &str| pinned.iter().any(|pin| pin == path);
        self.follows = true;
        if is_pinned(GLOBAL_BATCH) {
            self.say_global_batch(&spec);
        } else {
            BATCH.into_iter().for_each(|path| drop(self.texts.remove(path)));
        }
        for path in FOUND.into_iter().filter(|path| !is_pinned(path)) {
            self.texts.remove(path);
        }
        self.texts.remove(DEVICES);
        if !devices.is_empty() {
            self.texts.insert(DEVICES.to_owned(), devices.to_owned());
        }
        if let Ok(Some(question)) = self.layout_question() {
            self.take_found(&question, &spec);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(form: &Form) -> LayoutQuestion {
        form.layout_question().unwrap().unwrap()
    }

    /// A layout of `form`, as the planner finds them.
    fn found(form: &Form, parallel: Value, sequences: u64) -> Spec {
        let mut value: Value = serde_json::from_str(&question(form).spec).unwrap();
        value["parallel"] = parallel;
        let data = value["parallel"]["data"].as_u64().unwrap_or(1);
        value["training"]["microbatches"] = json!(sequences / data);
        Spec::from_value(&value).unwrap()
    }

    #[test]
    fn the_page_opens_with_five_inputs_and_no_limit() {
        let form = Form::start();
        assert!(form.follows() && form.pins().is_empty());
        let LayoutQuestion { devices, batch, pins, .. } = question(&form);
        assert_eq!((devices, batch, pins.len()), (Some(64), None, 0));
        assert_eq!(form.text("memory.limit_bytes"), "");
    }

    #[test]
    fn what_is_found_counts_until_it_is_pinned_or_asked_anew() {
        let mut form = Form::start();
        let asked = question(&form);
        let spec = found(&form, json!({ "pipeline": 8, "tensor": 4, "data": 2, "zero": 1 }), 128);
        assert!(form.take_found(&asked, &spec) && !form.take_found(&asked, &spec));
        assert_eq!(form.layout_question(), Ok(None), "it is known");
        assert_eq!(form.read().unwrap(), spec);
        assert_eq!((form.found("parallel.tensor"), form.text("parallel.tensor")), (Some("4"), ""));
        // Another schedule has the same layout.
        form.set("schedule", "1f1b");
        assert_eq!(form.layout_question(), Ok(None));
        form.set("parallel.tensor", "8");
        assert_eq!((question(&form).pins, form.found("parallel.tensor")), (vec!["parallel.tensor".to_owned()], None));
        form.set("parallel.tensor", "");
        assert_eq!(form.layout_question(), Ok(None), "as it was");
        form.set(DEVICES, "many");
        assert_eq!(form.layout_question().unwrap_err()[0].field, DEVICES);
    }

    #[test]
    fn nothing_of_degrees_by_hand_carries_over_unseen() {
        // The example has a limit of 56 GiB and 10 microbatches.
        let mut form = Form::default();
        form.choose_model("deepseek-v3");
        form.follow();
        assert_eq!((form.text("memory.limit_bytes"), form.text(BATCH[0]), form.text(GLOBAL_BATCH)), ("", "", ""));
        assert_eq!((form.text(DEVICES), form.pins().len()), ("4", 0));
        // Of a form that follows, what is typed stays.
        form.set(GLOBAL_BATCH, "256");
        form.set("memory.limit_bytes", "70");
        form.set("parallel.tensor", "4");
        form.choose_model("llama-3-70b");
        form.follow();
        assert_eq!((form.text("memory.limit_bytes"), form.text(GLOBAL_BATCH)), ("70", "256"));
        assert_eq!(form.text("parallel.tensor"), "");
    }

    #[test]
    fn typed_devices_keep_the_batch_and_pin_what_is_typed() {
        let mut form = Form::default();
        form.set(DEVICES, "16");
        assert!(form.follows());
        assert_eq!((form.text(GLOBAL_BATCH), form.text(BATCH[0])), ("10", ""));
        assert_eq!(form.pins(), ["parallel.pipeline"]);
    }

    #[test]
    fn a_reload_follows_again() {
        let mut form = Form::start();
        form.set("parallel.tensor", "4");
        let asked = question(&form);
        let spec = found(&form, json!({ "pipeline": 8, "tensor": 4, "data": 2, "zero": 1 }), 128);
        form.take_found(&asked, &spec);
        let mut again = Form::of(&form.read().unwrap());
        assert!(!again.follows());
        again.recall_unlinked(&form.unlinked().unwrap());
        assert!(again.follows());
        assert_eq!(again.pins(), ["parallel.tensor"]);
        assert_eq!((again.text(DEVICES), again.layout_question()), ("64", Ok(None)));
        assert_eq!(again.read().unwrap(), spec);
    }
}
