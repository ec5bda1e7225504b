//! Where input comes from: a file, standard input or a link.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use pipeplan::runner::checkpoint::note_on_positions;
use pipeplan_core::base::fields::Faults;
use pipeplan_core::base::json::{self, Syntax, format_of};
use pipeplan_core::formats::torch_profile;
use pipeplan_core::model::hf_config;
use pipeplan_core::notation::order;
use pipeplan_core::plan::{self, Plan, PlanFileError};
use pipeplan_core::spec::link;
use pipeplan_core::spec::{self, Spec, SpecError};
use pipeplan_core::trace::{self, Trace};
use serde_json::Value;

use super::failure::Failure;
use super::search::{self, Effort};
use super::{format, output};

/// A text and what a person calls it.
pub struct Source {
    /// A path, `standard input` or `the link`.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// Reads what `argument` names.
pub fn read(argument: &str) -> Result<Source, Failure> {
    if argument != "-" && !Path::new(argument).exists() && link::looks_like_one(argument) {
        return Ok(Source { name: "the link".to_owned(), text: argument.to_owned() });
    }
    file_or_standard_input(argument).map_err(|failure| match argument == "-" || Path::new(argument).is_file() {
        true => failure,
        false => failure.with_help("give a file, `-` for standard input, or a link with `#v2.`"),
    })
}

/// Reads the file of that name, or standard input for `-`.
pub fn file_or_standard_input(argument: &str) -> Result<Source, Failure> {
    let name = if argument == "-" { "standard input" } else { argument };
    if argument == "-" && STANDARD_INPUT_IS_READ.swap(true, Ordering::Relaxed) {
        return Err(Failure::input(
            "standard input can be read once, but two arguments are `-`: give one of them as a file",
        ));
    }
    // The longest of what is read here; the others have less, which they check.
    let limit = plan::MAX_FILE_BYTES.max(trace::MAX_FILE_BYTES) as u64;
    let bytes = match argument {
        "-" => bounded(name, limit, Ok(std::io::stdin().lock())),
        path => file(path, limit),
    }?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::input(format!("{name} is not text: byte {} is not UTF-8", at + 1))
    })?;
    // Some editors begin a text with a mark of its encoding.
    let text = match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    };
    Ok(Source { name: name.to_owned(), text })
}

/// Whether somebody has read standard input to its end.
static STANDARD_INPUT_IS_READ: AtomicBool = AtomicBool::new(false);

/// The bytes of a file of at most `limit` bytes.
pub fn file(path: &str, limit: u64) -> Result<Vec<u8>, Failure> {
    bounded(path, limit, std::fs::File::open(path))
}

/// The bytes of a source, called `name`, of at most `limit` of them.
pub fn bounded(name: &str, limit: u64, source: std::io::Result<impl Read>) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    source
        .and_then(|source| source.take(limit + 1).read_to_end(&mut bytes))
        .map_err(|error| Failure::input(format!("{name} cannot be read: {error}")))?;
    if bytes.len() as u64 > limit {
        return Err(Failure::input(format!("{name} is longer than the limit of {limit} bytes")));
    }
    Ok(bytes)
}

/// A spec, a bare problem, or the spec of a plan.
pub fn spec(argument: &str) -> Result<Spec, Failure> {
    spec_of(&read(argument)?)
}

/// As [`spec`], from a text that was read.
pub fn spec_of(source: &Source) -> Result<Spec, Failure> {
    match format_of(&source.text) {
        Some("pipeplan-plan") => return Ok(plan_of(source)?.spec),
        Some(other) => return Err(not_a_spec(source, other)),
        None => {}
    }
    let spec = read_spec(source)?.map_err(|error| match error {
        SpecError::Syntax(syntax) => {
            let failure = syntax_failure(&source.name, &source.text, &syntax);
            match order::looks_like_one(&source.text) {
                true => failure.with_help("give a custom schedule together with its spec: `SPEC --order FILE`"),
                false => failure,
            }
        }
        SpecError::Link(error) => Failure::input(error),
        SpecError::Faults(faults) => faults_failure(&source.name, &source.text, &faults),
    })?;
    spec.unlikely().iter().for_each(|said| output::tell(&format!("note: {}", format::spelled(said))));
    Ok(spec)
}

/// What to do with a file of ours in the place of a spec or a plan.
fn not_a_spec(source: &Source, format: &str) -> Failure {
    let (what, instead) = match format {
        "pipeplan-trace" => (
            "a trace",
            "give a trace to `pipeplan show`, `calibrate` or `export`; give this command the plan that ran",
        ),
        "pipeplan-proof" => ("a proof", "give the plan that it belongs to"),
        _ => ("a profile", "give it with `--profile`, and give its spec here"),
    };
    Failure::input(format!("{} is {what}; a spec or a plan is needed", source.name)).with_help(instead)
}

/// Reads a spec, and the file that its `model.config` names.
fn read_spec(source: &Source) -> Result<Result<Spec, SpecError>, Failure> {
    if source.text.trim().is_empty() {
        return Err(Failure::input(format!("{} is empty", source.name)));
    }
    if link::looks_like_one(&source.text) {
        return Ok(Spec::read(&source.text));
    }
    let mut value = match spec::parse(&source.text) {
        Ok(value) => value,
        // Of a model's own file only its words that JSON has not are wrong.
        Err(error) => match json::parse_python(&source.text).ok().filter(hf_config::looks_like_one) {
            Some(config) => config,
            None => return Ok(Err(error)),
        },
    };
    if hf_config::looks_like_one(&value) {
        // Only a file has a name that a spec could give.
        let file = Path::new(&source.name).file_name().filter(|_| Path::new(&source.name).exists());
        let file = file.and_then(|file| file.to_str()).unwrap_or("config.json");
        let said = Failure::input(format!(
            "{} describes a model; a spec is needed, which says how to train it",
            source.name
        ));
        return Err(said.with_help(format!(
            "write a spec that names it, and plan the spec, such as:\n\
             model.config = {}\n\
             cluster.device = \"h100\"\n\
             parallel.pipeline = 8\n\
             training.microbatches = 32\n\
             training.sequence = 4096",
            Value::from(file)
        )));
    }
    let named = value.pointer("/model/config").and_then(Value::as_str).map(PathBuf::from);
    if let (Some(named), Some(config)) = (named, value.pointer_mut("/model/config")) {
        *config = config_file(source, &named)?;
    }
    Ok(Spec::from_value(&value).map_err(SpecError::from))
}

/// A `config.json`, or the one in a folder, looked for next to the spec.
fn config_file(source: &Source, named: &Path) -> Result<Value, Failure> {
    let beside = Path::new(&source.name).parent().filter(|_| Path::new(&source.name).exists());
    let mut path = beside.map_or_else(|| named.to_owned(), |folder| folder.join(named));
    if path.is_dir() {
        path.push("config.json");
    }
    let shown = path.display();
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::input(format!("model.config: {shown} cannot be read: {error}"))
            .with_help("give the path of a model's config.json, from the spec's folder")
    };
    let mut text = String::new();
    let file = std::fs::File::open(&path).map_err(|error| cannot(&error))?;
    file.take(MAX_CONFIG_BYTES).read_to_string(&mut text).map_err(|error| cannot(&error))?;
    let config = json::parse_python(&text).map_err(|error| cannot(&error))?;
    if let Some(note) = note_on_positions(&config) {
        output::tell(&format!("note: {shown} scales rotary positions (rope_scaling). {note}"));
    }
    for note in hf_config::notes(&config) {
        output::tell(&format!("note: {shown}: {note}"));
    }
    Ok(config)
}

/// Most bytes of a `config.json`; real ones have a few thousand.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A plan, or the plan of a spec.
pub fn plan(argument: &str) -> Result<Plan, Failure> {
    plan_from(&read(argument)?)
}

/// As [`plan`], from a text that was read.
pub fn plan_from(source: &Source) -> Result<Plan, Failure> {
    plan_if(source, |_| Ok(()))
}

/// As [`plan_from`]; a spec is planned if `check` accepts it.
pub fn plan_if(source: &Source, check: impl FnOnce(&Spec) -> Result<(), Failure>) -> Result<Plan, Failure> {
    match format_of(&source.text) {
        Some("pipeplan-plan") => plan_of(source),
        Some(other) => Err(not_a_spec(source, other)),
        None => {
            let spec = spec_of(source)?;
            check(&spec)?;
            let schedule = spec.schedule.clone();
            search::plan(&spec, &schedule, Effort::default())
        }
    }
}

fn plan_of(source: &Source) -> Result<Plan, Failure> {
    Plan::from_json(&source.text).map_err(|error| match &error {
        PlanFileError::Syntax(syntax) => syntax_failure(&source.name, &source.text, syntax),
        _ => Failure::input(format!("{}: {error}", source.name)),
    })
}

/// A trace.
pub fn trace_of(source: &Source) -> Result<Trace, Failure> {
    Trace::from_json(&source.text).map_err(|faults| {
        let failure = Failure::input(format!("{}: {faults}", source.name));
        match torch_profile::looks_like_one(&source.text) {
            true => failure
                .with_help("`pipeplan trace PLAN FILE... -o trace.json` makes a trace from files of torch.profiler"),
            false => failure,
        }
    })
}

fn syntax_failure(name: &str, text: &str, syntax: &Syntax) -> Failure {
    Failure::input(format!("{name}: {syntax}")).at(name, text, [(syntax.offset, 0, syntax.message.clone())])
}

fn faults_failure(name: &str, text: &str, faults: &Faults) -> Failure {
    let count = match faults.0.len() {
        1 => "one fault".to_owned(),
        count => format!("{count} faults"),
    };
    let failure = Failure::input(format!("{name} has {count}\n{faults}"));
    let Ok(table) = toml::de::DeTable::parse(text) else { return failure };
    // Faults of fields that are missing have no place, nor have those beyond what a person reads.
    let place = |fault: &pipeplan_core::base::fields::Fault| {
        let span = locate(table.get_ref(), &fault.field)?;
        Some((span.start, span.len(), format!("accepted is {}", shortened(&fault.accepted))))
    };
    let places: Vec<_> = faults.0.iter().take(20).filter_map(place).collect();
    if places.is_empty() { failure } else { failure.at(name, text, places) }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        text.to_owned()
    } else {
        text.chars().take(LONGEST).chain(['…']).collect()
    }
}

/// Where the value of a field such as `problem.stages[3].forward_ns` stands.
fn locate(table: &toml::de::DeTable<'_>, field: &str) -> Option<Range<usize>> {
    let names = field.split('.');
    let mut span = None;
    let mut table = Some(table);
    for name in names {
        let (key, indices) = name.split_once('[').unwrap_or((name, ""));
        let (_, mut value) = table?.iter().find(|(known, _)| known.get_ref() == key)?;
        for index in indices.split('[').filter(|index| !index.is_empty()) {
            let index: usize = index.trim_end_matches(']').parse().ok()?;
            value = value.get_ref().as_array()?.get(index)?;
        }
        span = Some(value.span());
        table = value.get_ref().as_table();
    }
    span
}
