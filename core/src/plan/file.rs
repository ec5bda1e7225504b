//! Plans as files.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Plan, Prediction, packing};
use crate::base::canonical;
use crate::base::fields::{Fault, Faults, Table, shown, whole};
use crate::base::json::{self, Syntax};
use crate::base::units::Nanos;
use crate::check::{Violation, check_program, check_schedule};
use crate::estimate::step::{Overlapped, RankEpilogue, StepEpilogue};
use crate::problem::Schedule;
use crate::problem::copies::HostCopy;
use crate::problem::op::OpSyntax;
use crate::problem::{PlacementChoice, Problem, Statement};
use crate::program::{Program, Step};
use crate::simulate::simulate;
use crate::spec::{Documents, Spec, Work};

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;
/// Longest file that is read.
pub const MAX_FILE_BYTES: usize = 512 << 20;

const FORMAT: &str = "pipeplan-plan";
const DIGEST: &str = "digest";

/// Why a file is not a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanFileError {
    /// Longer than is read.
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// Not JSON.
    Syntax(Syntax),
    /// JSON, but no plan.
    Format {
        /// What its `format` is.
        found: String,
    },
    /// A plan of another version.
    Version {
        /// What its `version` is.
        found: String,
    },
    /// Changed after it was written.
    Digest {
        /// What the file says.
        written: String,
        /// What its content gives.
        computed: String,
    },
    /// Fields are missing, unknown or out of range.
    Faults(Faults),
    /// The schedule is not valid for the problem.
    Schedule(Vec<Violation>),
    /// The program is not valid for the problem.
    Program(Vec<Violation>),
    /// A field does not follow from the rest of the file.
    Untrue {
        /// The field.
        field: &'static str,
        /// What the file says.
        written: String,
        /// What follows.
        derived: String,
    },
}

impl fmt::Display for PlanFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, what: &str, violations: &[Violation]| {
            write!(f, "the plan's {what} is not valid:")?;
            violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
        };
        match self {
            PlanFileError::TooLong { bytes } => {
                write!(f, "the file has {bytes} bytes; the limit is {MAX_FILE_BYTES}")
            }
            PlanFileError::Syntax(syntax) => fmt::Display::fmt(syntax, f),
            PlanFileError::Format { found } => {
                write!(f, "this is not a plan: its `format` is {found}; a plan's is \"{FORMAT}\"")
            }
            PlanFileError::Version { found } => {
                write!(
                    f,
                    "the plan's version is {found}; this planner reads version {VERSION}: use a newer \
                           planner"
                )
            }
            PlanFileError::Digest { written, computed } => write!(
                f,
                "the plan was changed after it was written: its digest is {written}, and its content gives \
                 {computed}; plan it again, or pass it with `--order` and a spec to keep the order that it has \
                 now"
            ),
            PlanFileError::Faults(faults) => write!(f, "the plan has faults:\n{faults}"),
            PlanFileError::Schedule(violations) => list(f, "schedule", violations),
            PlanFileError::Program(violations) => list(f, "program", violations),
            PlanFileError::Untrue { field, written, derived } => {
                write!(f, "the plan says that {field} is {written}; its content gives {derived}")
            }
        }
    }
}

impl core::error::Error for PlanFileError {}

impl From<Fault> for PlanFileError {
    fn from(fault: Fault) -> PlanFileError {
        PlanFileError::Faults(fault.into())
    }
}

impl Plan {
    /// The file's content.
    pub fn to_value(&self) -> Value {
        let mut value = self.content();
        value[DIGEST] = Value::from(digest_of(&value));
        value
    }

    /// The file's text: equal plans have equal texts.
    pub fn to_json(&self) -> String {
        canonical::pretty(&self.to_value())
    }

    /// `sha256:` and the hash of the content: what a trace names its plan by.
    pub fn digest(&self) -> String {
        digest_of(&self.content())
    }

    fn content(&self) -> Value {
        let mut schedule = json!({ "name": self.schedule_name, "rows": self.schedule.text_rows() });
        if !self.schedule.pairs.is_empty() {
            schedule["pairs"] = json!(self.schedule.pairs);
        }
        if self.schedule.has_copies() {
            schedule["copies"] = self.schedule.copies.iter().map(|copies| copy_row(copies)).collect();
        }
        let mut content = json!({
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_value(),
            "problem": self.problem.statement().to_value(),
            "schedule": schedule,
            "program": { "rows": self.program.text_rows() },
            "prediction": self.prediction.to_value(),
        });
        if let Some(StepEpilogue { tails, reduces_ns, overlapped }) = &self.epilogue {
            let by_rank = |of: fn(&RankEpilogue) -> Nanos| tails.iter().map(of).collect::<Vec<Nanos>>();
            content["ends"] = json!({
                "reduce_ns": by_rank(|tail| tail.reduce_ns),
                "optimizer_ns": by_rank(|tail| tail.optimizer_ns),
                "reduce_each_ns": reduces_ns,
            });
            if !overlapped.is_empty() {
                let pairs: Vec<[Nanos; 2]> = overlapped.iter().map(|of| [of.reduce_ns, of.gather_ns]).collect();
                content["ends"]["overlapped_ns"] = json!(pairs);
            }
        }
        if let Some(packing) = packing::to_value(&self.replicas, self.packing) {
            content["packing"] = packing;
        }
        content
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`PlanFileError`]: the version and the digest are checked first, then the fields, then whether the plan is valid
    /// and true.
    pub fn from_json(text: &str) -> Result<Plan, PlanFileError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(PlanFileError::TooLong { bytes: text.len() });
        }
        let value = json::parse(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(PlanFileError::Syntax)?;
        Plan::from_value(value)
    }

    fn from_value(mut value: Value) -> Result<Plan, PlanFileError> {
        let found = |value: Option<&Value>| value.map_or_else(|| "nothing".to_string(), shown);
        if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(PlanFileError::Format { found: found(value.get("format")) });
        }
        if value.get("version").and_then(whole) != Some(VERSION) {
            return Err(PlanFileError::Version { found: found(value.get("version")) });
        }
        let written = match value.as_object_mut().and_then(|map| map.remove(DIGEST)) {
            Some(Value::String(written)) => written,
            other => return Err(Fault::new(DIGEST, found(other.as_ref()), "`sha256:` and 64 hex digits").into()),
        };
        let computed = digest_of(&value);
        if written != computed {
            return Err(PlanFileError::Digest { written: written.chars().take(80).collect(), computed });
        }
        let plan = read_fields(&value).map_err(PlanFileError::Faults)?;
        plan.check_truth()?;
        Ok(plan)
    }

    /// Whether all that the file says follows from its problem and its schedule.
    fn check_truth(&self) -> Result<(), PlanFileError> {
        let problem = &self.problem;
        check_schedule(problem, &self.schedule).map_err(PlanFileError::Schedule)?;
        // A run checks this again, with its real transport.
        check_program(problem, &self.program, self.spec.messages.transport).map_err(PlanFileError::Program)?;
        for (rank, (row, steps)) in self.schedule.rows.iter().zip(&self.program.rows).enumerate() {
            let computes = steps.iter().filter_map(|step| if let Step::Compute(op) = step { Some(op) } else { None });
            if !computes.eq(row) {
                let derived = format!("the order of `schedule.rows[{rank}]`");
                return Err(PlanFileError::Untrue {
                    field: "program.rows",
                    written: "another order".into(),
                    derived,
                });
            }
        }
        let timeline = simulate(problem, &self.schedule).map_err(|_| PlanFileError::Schedule(Vec::new()))?;
        let derived = Prediction::of(problem, &timeline);
        let untrue = |field, written: String, derived: String| Err(PlanFileError::Untrue { field, written, derived });
        let written = &self.prediction;
        for (field, written, derived) in [
            ("prediction.makespan_ns", written.makespan_ns, derived.makespan_ns),
            ("prediction.longest_span_ns", written.longest_span_ns, derived.longest_span_ns),
        ] {
            if written != derived {
                return untrue(field, written.to_string(), derived.to_string());
            }
        }
        for (field, written, derived) in [
            ("prediction.busy_ns", &written.busy_ns, &derived.busy_ns),
            ("prediction.peak_bytes", &written.peak_bytes, &derived.peak_bytes),
        ] {
            if written != derived {
                return untrue(field, format!("{written:?}"), format!("{derived:?}"));
            }
        }
        // An older planner may have proved less. A bound above the one proved here is not a proof.
        if written.bound_ns > derived.bound_ns {
            return untrue("prediction.bound_ns", written.bound_ns.to_string(), derived.bound_ns.to_string());
        }
        self.check_spec()?;
        packing::check(self)
    }

    /// Whether the problem is one of the spec.
    fn check_spec(&self) -> Result<(), PlanFileError> {
        let untrue = |field, written: String, derived: String| Err(PlanFileError::Untrue { field, written, derived });
        match &self.spec.work {
            Work::Typed(statement) => {
                let placement = match &statement.placement {
                    PlacementChoice::Any => self.problem.placement().clone(),
                    PlacementChoice::Fixed(placement) => placement.clone(),
                };
                let of_spec = statement.problem(placement).map_err(PlanFileError::from)?;
                if of_spec != self.problem {
                    return untrue("problem", "another problem".into(), "the typed one of `spec`".into());
                }
                if !self.replicas.is_empty() {
                    return untrue("packing", "something".into(), "nothing, since its costs are typed".into());
                }
            }
            Work::Model(work) => {
                for (field, written, derived) in [
                    ("problem.ranks", self.problem.ranks(), work.pipeline as usize),
                    (
                        "problem.microbatches",
                        self.problem.microbatches(),
                        work.microbatches as usize * work.layout.slices as usize,
                    ),
                    ("problem.slices", self.problem.slices(), work.layout.slices as usize),
                ] {
                    if written != derived {
                        return untrue(field, written.to_string(), derived.to_string());
                    }
                }
                let expected = match &work.batch.documents {
                    Documents::OfReplicas(replicas) => replicas.len(),
                    _ => 0,
                };
                let found = self.replicas.len();
                if found != expected {
                    return untrue("the length of packing.replicas", found.to_string(), expected.to_string());
                }
                let (written, derived) = (self.problem.objective(), work.objective);
                if written != derived {
                    return untrue("problem.objective", written.name().into(), derived.name().into());
                }
            }
        }
        self.check_epilogue()
    }

    /// Whether the step epilogue has the plan's number of ranks and stages.
    fn check_epilogue(&self) -> Result<(), PlanFileError> {
        let Some(StepEpilogue { tails, reduces_ns, overlapped }) = &self.epilogue else { return Ok(()) };
        let untrue = |field, written: String, derived: String| Err(PlanFileError::Untrue { field, written, derived });
        if let Work::Typed(_) = self.spec.work {
            return untrue("ends", "something".into(), "nothing, since its costs are typed".into());
        }
        for (field, written, derived) in [
            ("the length of ends.optimizer_ns", tails.len(), self.problem.ranks()),
            ("the length of ends.reduce_each_ns", reduces_ns.len(), self.problem.stage_count()),
            (
                "the length of ends.overlapped_ns",
                overlapped.len(),
                if overlapped.is_empty() { 0 } else { self.problem.stage_count() },
            ),
        ] {
            if written != derived {
                return untrue(field, written.to_string(), derived.to_string());
            }
        }
        Ok(())
    }
}

pub(super) fn digest_of(value: &Value) -> String {
    let hash = Sha256::digest(canonical::compact(value).as_bytes());
    let mut text = String::from("sha256:");
    for byte in hash.iter() {
        let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
    }
    text
}

fn read_fields(value: &Value) -> Result<Plan, Faults> {
    let mut faults = Vec::new();
    let mut table = Table::of(value, "", &mut faults).ok_or_else(|| Faults(faults.clone()))?;
    for key in ["format", "version"] {
        table.get(key);
    }
    let spec = table.get("spec").map(|spec| read_spec(spec, &mut faults));
    let problem = table.get("problem").map(|problem| read_problem(problem, &mut faults));
    let schedule = table.table("schedule", &mut faults).map(|mut schedule| {
        let name = schedule.text("name", &mut faults).unwrap_or_default().to_string();
        let rows =
            read_rows(&mut schedule, "an op such as `0F3`", &mut faults, |rows| Schedule::from_text_rows(rows));
        let pairs = read_pairs(&mut schedule, &mut faults);
        let copies = read_copies(&mut schedule, &mut faults);
        schedule.finish(&mut faults);
        (name, rows.map(|schedule| Schedule { pairs, copies, ..schedule }))
    });
    let program = table.table("program", &mut faults).map(|mut program| {
        let accepted = "a step such as `0F3`, `(1SEND_F0)` or `OPTIMIZER`";
        let rows = read_rows(&mut program, accepted, &mut faults, |rows| Program::from_text_rows(rows));
        program.finish(&mut faults);
        rows
    });
    let prediction =
        table.table("prediction", &mut faults).map(|prediction| read_prediction(prediction, &mut faults));
    let epilogue = table.table("ends", &mut faults).map(|ends| read_epilogue(ends, &mut faults));
    let (replicas, packing) = match table.table("packing", &mut faults) {
        Some(table) => packing::read(table, problem.as_ref().and_then(Option::as_ref), &mut faults),
        None => (Vec::new(), None),
    };
    table.finish(&mut faults);
    for (key, missing) in [
        ("spec", spec.is_none()),
        ("problem", problem.is_none()),
        ("schedule", schedule.is_none()),
        ("program", program.is_none()),
        ("prediction", prediction.is_none()),
    ] {
        if missing && value.get(key).is_none_or(Value::is_null) {
            faults.push(Fault::new(key, "nothing", "the table that every plan has"));
        }
    }
    let plan = || {
        let (schedule_name, schedule) = schedule?;
        Some(Plan {
            spec: spec??,
            problem: problem??,
            schedule_name,
            schedule: schedule?,
            program: program??,
            epilogue: epilogue.map_or(Some(None), |epilogue| epilogue.map(Some))?,
            prediction: prediction??,
            replicas,
            packing,
        })
    };
    match plan() {
        Some(plan) if faults.is_empty() => Ok(plan),
        _ => Err(Faults(faults)),
    }
}

fn read_spec(value: &Value, faults: &mut Vec<Fault>) -> Option<Spec> {
    // Its own fields are at its own top.
    Spec::from_value(value)
        .map_err(|inner| {
            faults.extend(inner.0.into_iter().map(|fault| Fault { field: format!("spec.{}", fault.field), ..fault }));
        })
        .ok()
}

fn read_problem(value: &Value, faults: &mut Vec<Fault>) -> Option<Problem> {
    let statement = Statement::read_into(value, "problem", faults)?;
    match &statement.placement {
        PlacementChoice::Any => {
            faults.push(Fault::new("problem.placement", "any", "the placement that the plan chose"));
            None
        }
        PlacementChoice::Fixed(placement) => statement
            .problem(placement.clone())
            .map_err(|fault| faults.push(Fault { field: format!("problem.{}", fault.field), ..fault }))
            .ok(),
    }
}

/// The positions at which pairs begin, by rank; none where the file has none.
fn read_pairs(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Vec<Vec<u32>> {
    let path = table.path("pairs");
    let Some(value) = table.get("pairs") else { return Vec::new() };
    let place = |value: &Value| whole(value).and_then(|place| u32::try_from(place).ok());
    let row = |value: &Value| value.as_array()?.iter().map(place).collect::<Option<Vec<u32>>>();
    let pairs = value.as_array().and_then(|rows| rows.iter().map(row).collect::<Option<Vec<_>>>());
    if pairs.is_none() {
        faults.push(Fault::new(path, shown(value), "for each rank a list of the positions at which pairs begin"));
    }
    pairs.unwrap_or_default()
}

/// The copies of a rank as one text.
fn copy_row(copies: &[HostCopy]) -> Value {
    Value::String(copies.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

/// The copies to and from hosts, by rank; none where the file has none.
fn read_copies(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Vec<Vec<HostCopy>> {
    let path = table.path("copies");
    let Some(value) = table.get("copies") else { return Vec::new() };
    let row = |value: &Value| value.as_str()?.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    let copies = value.as_array().and_then(|rows| rows.iter().map(row).collect::<Option<Vec<Vec<HostCopy>>>>());
    if copies.is_none() {
        let accepted =
            "for each rank a text of copies such as `0OFFLOAD3:4-9`: what, and the positions between which";
        faults.push(Fault::new(path, shown(value), accepted));
    }
    copies.unwrap_or_default()
}

fn read_rows<T>(
    table: &mut Table<'_>,
    accepted: &str,
    faults: &mut Vec<Fault>,
    read: impl Fn(&[&str]) -> Result<T, (usize, OpSyntax)>,
) -> Option<T> {
    let path = table.path("rows");
    let rows = table.get("rows");
    let texts: Option<Vec<&str>> =
        rows.and_then(Value::as_array).and_then(|rows| rows.iter().map(Value::as_str).collect());
    let Some(texts) = texts else {
        faults.push(Fault::new(
            path,
            rows.map_or_else(|| "nothing".to_string(), shown),
            "a list of texts, one per rank",
        ));
        return None;
    };
    read(&texts)
        .map_err(|(rank, error)| faults.push(Fault::new(format!("{path}[{rank}]"), error.text, accepted)))
        .ok()
}

impl Prediction {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, value) in [
            ("makespan_ns", json!(self.makespan_ns)),
            ("longest_span_ns", json!(self.longest_span_ns)),
            ("busy_ns", json!(self.busy_ns)),
            ("peak_bytes", json!(self.peak_bytes)),
            ("bound_ns", json!(self.bound_ns)),
        ] {
            map.insert(key.to_string(), value);
        }
        Value::Object(map)
    }
}

fn read_epilogue(mut table: Table<'_>, faults: &mut Vec<Fault>) -> Option<StepEpilogue> {
    let reduce_ns = read_numbers(&mut table, "reduce_ns", "rank", faults);
    let optimizer_ns = read_numbers(&mut table, "optimizer_ns", "rank", faults);
    let reduces_ns = read_numbers(&mut table, "reduce_each_ns", "stage", faults);
    let overlapped = read_overlapped(&mut table, faults);
    let (reduce_ns, optimizer_ns, reduces_ns) = (reduce_ns?, optimizer_ns?, reduces_ns?);
    if reduce_ns.len() != optimizer_ns.len() {
        let found = format!("{} numbers", optimizer_ns.len());
        faults.push(Fault::new(
            table.path("optimizer_ns"),
            found,
            format!("as many as `reduce_ns`, {}", reduce_ns.len()),
        ));
    }
    table.finish(faults);
    let tail = |(reduce_ns, optimizer_ns)| RankEpilogue { reduce_ns, optimizer_ns };
    let tails = reduce_ns.into_iter().zip(optimizer_ns).map(tail).collect();
    Some(StepEpilogue { tails, reduces_ns, overlapped })
}

/// By stage the times of the reduction and of the gathering that overlap with ops; none where nothing is written.
fn read_overlapped(table: &mut Table<'_>, faults: &mut Vec<Fault>) -> Vec<Overlapped> {
    let Some(value) = table.get("overlapped_ns") else { return Vec::new() };
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([reduce, gather]) => Some(Overlapped { reduce_ns: reduce.as_u64()?, gather_ns: gather.as_u64()? }),
        _ => None,
    };
    let pairs = value.as_array().and_then(|pairs| pairs.iter().map(pair).collect::<Option<Vec<Overlapped>>>());
    pairs.unwrap_or_else(|| {
        let accepted = "a list with [reduction, gathering] of each stage, in whole ns";
        faults.push(Fault::new(table.path("overlapped_ns"), shown(value), accepted));
        Vec::new()
    })
}

fn read_numbers(table: &mut Table<'_>, key: &'static str, each: &str, faults: &mut Vec<Fault>) -> Option<Vec<u64>> {
    let list = table.get(key);
    let numbers: Option<Vec<u64>> = list.and_then(Value::as_array).and_then(|list| list.iter().map(whole).collect());
    if numbers.is_none() {
        let found = list.map_or_else(|| "nothing".to_string(), shown);
        faults.push(Fault::new(table.path(key), found, format!("a list of whole numbers, one per {each}")));
    }
    numbers
}

fn read_prediction(mut table: Table<'_>, faults: &mut Vec<Fault>) -> Option<Prediction> {
    const NUMBER: core::ops::RangeInclusive<u64> = 0..=u64::MAX;
    let makespan_ns = table.needed_whole("makespan_ns", NUMBER, faults);
    let longest_span_ns = table.needed_whole("longest_span_ns", NUMBER, faults);
    let busy_ns = read_numbers(&mut table, "busy_ns", "rank", faults);
    let peak_bytes = read_numbers(&mut table, "peak_bytes", "rank", faults);
    let bound_ns = table.needed_whole("bound_ns", NUMBER, faults);
    table.finish(faults);
    Some(Prediction {
        makespan_ns: makespan_ns?,
        longest_span_ns: longest_span_ns?,
        busy_ns: busy_ns?,
        peak_bytes: peak_bytes?,
        bound_ns: bound_ns?,
    })
}
