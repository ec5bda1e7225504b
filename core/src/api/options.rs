//! How to plan, read from an object of options by name.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::Value;

use super::Refusal;
use crate::advise::sensitivity::MAX_PERMILLE;
use crate::advise::tune::{Field, MOST_DEVICES, Question};
use crate::base::fields::{Fault, Faults, Table, one_of_like, shown};
use crate::formats::training_run::Given;
use crate::hardware::profile::{Profile, ProfileError};
use crate::notation::order;
use crate::problem::Schedule;
use crate::search::Effort;
use crate::spec::{Spec, Work};

/// Longest number of simulated ops that a double says exactly.
const MOST_EFFORT: u64 = 1 << 53;
/// Layouts that can be asked for.
const MOST_ROWS: u64 = 1000;

/// How to plan. Each function takes its own of these.
#[derive(Clone, Debug)]
pub struct Options {
    /// A published schedule or `best`.
    pub schedule: Option<String>,
    /// A custom schedule with its name.
    pub order: Option<(String, Schedule)>,
    /// How hard to search for `best`.
    pub effort: Effort,
    /// Which layouts to look for.
    pub question: Question,
    /// How large a change is, in thousandths.
    pub permille: u32,
    /// How many changes are planned anew.
    pub anew: usize,
    /// What a person adds to a script that is imported.
    pub given: Given,
    /// Measured times of operators.
    profile: Option<Arc<Profile>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            schedule: None,
            order: None,
            effort: Effort::default(),
            question: Question::default(),
            permille: 100,
            anew: 0,
            given: Given::default(),
            profile: None,
        }
    }
}

impl Options {
    /// Reads the options that are `taken` from the object `given`, and refuses all others by name. `functions` are names
    /// whose values are functions of the caller's language: JSON leaves these out, so what stands there is none.
    ///
    /// # Errors
    /// [`Refusal`] with every fault.
    pub fn read(given: &Value, taken: &[&str], functions: &[&'static str]) -> Result<Options, Refusal> {
        let mut faults = Vec::new();
        let options = Options::of(given, taken, functions, &mut faults);
        if faults.is_empty() { Ok(options) } else { Err(Faults(faults).into()) }
    }

    fn of(given: &Value, taken: &[&str], functions: &[&'static str], faults: &mut Vec<Fault>) -> Options {
        let mut options = Options::default();
        let Some(mut table) = Table::of(given, "options", faults) else { return options };
        if taken.contains(&"schedule") {
            options.schedule = table.text("schedule", faults).map(str::to_owned);
        }
        if taken.contains(&"effort")
            && let Some(ops) = table.whole("effort", 1..=MOST_EFFORT, faults)
        {
            options.effort = Effort(ops);
        }
        if taken.contains(&"order") {
            options.order = custom_order(&mut table, faults);
        }
        if taken.contains(&"profile") {
            options.profile = table.get("profile").and_then(|value| profile(value, &table.path("profile"), faults));
        }
        if taken.contains(&"variables") {
            options.question.devices = table.whole("devices", 1..=MOST_DEVICES, faults);
            options.given = given_of(&mut table, faults);
        } else if taken.contains(&"devices") {
            options.question = question(&mut table, faults);
        }
        if taken.contains(&"permille")
            && let Some(permille) = table.whole("permille", 1..=MAX_PERMILLE.into(), faults)
        {
            options.permille = permille as u32;
        }
        if taken.contains(&"anew")
            && let Some(anew) = table.whole("anew", 0..=MOST_ROWS, faults)
        {
            options.anew = anew as usize;
        }
        for name in functions {
            if let Some(other) = table.get(name) {
                faults.push(Fault::new(table.path(name), shown(other), "a function"));
            }
        }
        table.finish(faults);
        options
    }

    /// `spec` with the measured times, where there are some.
    ///
    /// # Errors
    /// [`Refusal`] where the costs of `spec` are typed.
    pub fn apply(&self, mut spec: Spec) -> Result<Spec, Refusal> {
        if let Some(profile) = &self.profile {
            let Work::Model(work) = &mut spec.work else {
                return Err(Refusal::of_field("options.profile", "typed costs", "a profile for a model"));
            };
            work.profile = Some(Arc::clone(profile));
        }
        Ok(spec)
    }
}

/// What `name` and `order` say.
fn custom_order(table: &mut Table, faults: &mut Vec<Fault>) -> Option<(String, Schedule)> {
    let name = table.text("name", faults).unwrap_or("own-order").to_owned();
    // A text, or a row for each rank.
    let text = table.get("order").map(|order| order.as_str().map_or_else(|| order.to_string(), str::to_owned))?;
    match order::read(&text) {
        Ok(order) => Some((name, order)),
        Err(error) => {
            let accepted = "a row of ops for each rank, such as `0F0 0F1 0BW0 0BW1`";
            faults.push(Fault::new(table.path("order"), error, accepted));
            None
        }
    }
}

/// Measured times, in the text of a profile.
fn profile(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Option<Arc<Profile>> {
    const ACCEPTED: &str = "the text of a profile, as `pipeplan profile -o` writes it";
    let Some(text) = value.as_str() else {
        faults.push(Fault::new(path, shown(value), ACCEPTED));
        return None;
    };
    match Profile::of_json(text) {
        Ok(profile) => return Some(Arc::new(profile)),
        Err(ProfileError::Syntax(syntax)) => faults.push(Fault::new(path, syntax, ACCEPTED)),
        Err(ProfileError::Faults(found)) => faults.extend(found.0.into_iter().map(|fault| {
            let field = format!("{path}.{}", fault.field);
            Fault { field, ..fault }
        })),
    }
    None
}

/// What `devices`, `keep`, `schedules` and `most` say.
fn question(table: &mut Table, faults: &mut Vec<Fault>) -> Question {
    let usual = Question::default();
    let devices = table.whole("devices", 1..=MOST_DEVICES, faults);
    let most = table.whole("most", 1..=MOST_ROWS, faults).map_or(usual.most, |most| most as usize);
    let names = Field::ALL.map(Field::name);
    let mut keep = Vec::new();
    for (at, name) in texts(table, "keep", faults).into_iter().enumerate() {
        match Field::named(&name) {
            Some(field) => keep.push(field),
            None => {
                let field = format!("{}[{at}]", table.path("keep"));
                faults.push(Fault::new(field, &name, one_of_like(&name, &names)));
            }
        }
    }
    Question { devices, keep, schedules: texts(table, "schedules", faults), most, ..usual }
}

/// What `variables` and `command` say of a script.
fn given_of(table: &mut Table, faults: &mut Vec<Fault>) -> Given {
    let command = table.whole("command", 1..=MOST_ROWS, faults).map(|command| command as usize);
    let mut given = Given { command, ..Given::default() };
    let Some(value) = table.get("variables") else { return given };
    let Some(map) = value.as_object() else {
        let accepted = "an object of texts by the names of variables";
        faults.push(Fault::new(table.path("variables"), shown(value), accepted));
        return given;
    };
    for (name, value) in map {
        match value.as_str() {
            Some(text) => {
                given.variables.insert(name.to_owned(), text.to_owned());
            }
            None => {
                let field = format!("{}.{name}", table.path("variables"));
                faults.push(Fault::new(field, shown(value), "a text, such as \"7B\""));
            }
        }
    }
    given
}

/// A list of texts.
fn texts(table: &mut Table, key: &'static str, faults: &mut Vec<Fault>) -> Vec<String> {
    let Some(value) = table.get(key) else { return Vec::new() };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts: Option<Vec<String>> = value.as_array().and_then(|list| list.iter().map(text).collect());
    texts.unwrap_or_else(|| {
        faults.push(Fault::new(table.path(key), shown(value), "a list of texts"));
        Vec::new()
    })
}
