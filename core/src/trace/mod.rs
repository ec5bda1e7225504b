//! What a run measured: when each step of each rank really started and ended, bytes, losses, tokens.
//!
//! - In: a trace file of a run, and the plan that was run.
//! - Out: measured times against planned ones, and a problem with the measured times ([`calibrate`]).
//! - Knows: problems, programs and timelines. Nothing of models or backends.
//!
//! The file is versioned JSON; its schema is `core/schema/trace.schema.json`. Each rank's spans of one training step
//! stand in columns, because a long run has millions of them:
//!
//! ```json
//! { "format": "pipeplan-trace", "version": 1,
//!   "plan_digest": "sha256:…", "backend": "cpu", "transport": "threads",
//!   "peak_bytes": [1024, 1024],
//!   "steps": [ { "step": 0, "loss": 5.5, "tokens": 64,
//!                "rows": [ { "steps": "0F0 (0SEND_F0) (0RECV_B0) 0BW0 OPTIMIZER",
//!                            "start_ns": [0, 10, 12, 40, 60], "end_ns": [10, 12, 40, 60, 61] } ] } ] }
//! ```
//!
//! Where the run had copies of the pipeline, `replicas` says how many, and `rows` and `peak_bytes` have the ranks of
//! the first copy, then those of the second and so on. Where ranks hold parts of the same sequences, `context` says
//! how many, and each copy has the ranks with the first part, then those with the second and so on. Where ranks share
//! matrices, `tensor` says how many, and each of these has the ranks that are first among those, then those that are
//! second and so on. `overhead_ns` is what the runner itself took for an op, on average. Where the ranks took turns
//! on fewer cores than they are, or on one GPU, `shared_processors` says on how many. `began_ns` of a step says when it
//! began, where all steps and hosts share a clock.
//!
//! `collectives` of a file and of its rows say what ranks did together, at the same time as their ops: see [`collectives`].
//!
//! Times count from the start of the training step on the clock of the run. A trace is input like any other:
//! it is read with every size bounded, and what does not fit together is refused with its place.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde_json::{Value, json};

use self::collectives::{Collective, CollectiveName, Names};
use crate::base::fields::{Fault, Faults, Table, shown, whole};
use crate::base::json::{self, Syntax};
use crate::base::units::{Bytes, Nanos};
use crate::problem::MAX_RANKS;
use crate::program::{Program, Step};
use crate::simulate::timeline::{Span, Timeline};

pub mod analysis;
pub mod calibrate;
pub mod clocks;
pub mod collectives;
pub mod select;
pub mod waits;

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;
/// The JSON Schema of a trace file, version 1.
pub const SCHEMA: &str = include_str!("../../schema/trace.schema.json");
/// Longest file that is read.
pub const MAX_FILE_BYTES: usize = 512 << 20;
/// Most training steps of one file.
pub const MAX_STEPS: usize = 1_000_000;

/// More than any machine has.
const MAX_PROCESSORS: u64 = 1 << 20;
const FORMAT: &str = "pipeplan-trace";
/// 146 years: sums of two stay within `u64`.
pub(crate) const MAX_NS: u64 = 1 << 62;

/// One program step in measured time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// What the rank did.
    pub step: Step,
    /// When it started, from the start of the training step.
    pub start_ns: Nanos,
    /// When it ended.
    pub end_ns: Nanos,
}

/// One training step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTrace {
    /// Its number, from 0.
    pub step: u64,
    /// The mean loss over its microbatches; none where nothing real was trained.
    pub loss: Option<f64>,
    /// Tokens trained on.
    pub tokens: u64,
    /// When it began, on the clock of the run; none where only times within the step are known.
    pub began_ns: Option<Nanos>,
    /// What each rank did, in the order in which it did it.
    pub rows: Vec<Vec<TraceSpan>>,
    /// By row: the collectives that it took part in, in order of their starts. Rows without any may be missing at the end.
    pub collectives: Vec<Vec<Collective>>,
}

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The digest of the plan that ran; empty where it is not known.
    pub plan_digest: String,
    /// What computed: `cpu`, `cuda`, `modelled`; `torch (CPU)` or `torch (GPU)` where torch ran the order.
    pub backend: String,
    /// What carried the messages: `threads`, `mpi`, torch's `gloo`.
    pub transport: String,
    /// Copies of the pipeline, at least 1.
    pub replicas: usize,
    /// Ranks that each hold a part of every sequence, at least 1: each of them in its place is a pipeline too.
    pub context: usize,
    /// Ranks that share each matrix, at least 1: likewise.
    pub tensor: usize,
    /// From the moment at which an op could have started, its rank free and its input there, to its start: the mean
    /// over the recorded ops. None where it was not measured.
    pub overhead_ns: Option<Nanos>,
    /// On how many processors the ranks took turns; none where each had one, or that was not known.
    pub shared_processors: Option<usize>,
    /// Most bytes that each rank held at once over the run, as counted by its allocator.
    pub peak_bytes: Vec<Bytes>,
    /// The training steps that were recorded, oldest first.
    pub steps: Vec<StepTrace>,
}

impl StepTrace {
    /// The compute ops as a timeline that starts at 0, to be drawn with the prediction.
    pub fn timeline(&self) -> Timeline {
        let starts = self.rows.iter().flatten().filter(|span| matches!(span.step, Step::Compute(_)));
        let first = starts.map(|span| span.start_ns).min().unwrap_or(0);
        let row = |row: &Vec<TraceSpan>| {
            row.iter()
                .filter_map(|span| match span.step {
                    Step::Compute(op) => {
                        Some(Span { op, start_ns: span.start_ns - first, end_ns: span.end_ns - first })
                    }
                    _ => None,
                })
                .collect()
        };
        Timeline { rows: self.rows.iter().map(row).collect() }
    }

    /// The collectives of a row.
    pub fn collectives_of(&self, row: usize) -> &[Collective] {
        self.collectives.get(row).map_or(&[], Vec::as_slice)
    }

    /// From the start of the training step to the end of the last thing that any rank did.
    pub fn duration_ns(&self) -> Nanos {
        let collectives = self.collectives.iter().flatten().map(|collective| collective.end_ns);
        self.rows.iter().flatten().map(|span| span.end_ns).chain(collectives).max().unwrap_or(0)
    }
}

impl Trace {
    /// The file's text.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    fn to_value(&self) -> Value {
        let names = Names::of(&self.steps);
        let row = |row: &Vec<TraceSpan>, of_row: &[Collective]| {
            let steps: Vec<String> = row.iter().map(|span| span.step.to_string()).collect();
            let mut value = json!({
                "steps": steps.join(" "),
                "start_ns": row.iter().map(|span| span.start_ns).collect::<Vec<_>>(),
                "end_ns": row.iter().map(|span| span.end_ns).collect::<Vec<_>>(),
            });
            if !of_row.is_empty() {
                value["collectives"] = collectives::row_value(of_row, &names);
            }
            value
        };
        let step = |step: &StepTrace| {
            let mut value = json!({
                "step": step.step,
                "loss": step.loss,
                "tokens": step.tokens,
                "rows": step.rows.iter().enumerate().map(|(at, spans)| row(spans, step.collectives_of(at))).collect::<Vec<_>>(),
            });
            if let Some(began_ns) = step.began_ns {
                value["began_ns"] = json!(began_ns);
            }
            value
        };
        let mut value = json!({
            "format": FORMAT,
            "version": VERSION,
            "plan_digest": self.plan_digest,
            "backend": self.backend,
            "transport": self.transport,
            "peak_bytes": self.peak_bytes,
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
        });
        if names.len() > 0 {
            value["collectives"] = names.iter().map(collectives::name_value).collect();
        }
        if self.replicas > 1 {
            value["replicas"] = json!(self.replicas);
        }
        if self.context > 1 {
            value["context"] = json!(self.context);
        }
        if self.tensor > 1 {
            value["tensor"] = json!(self.tensor);
        }
        if let Some(overhead_ns) = self.overhead_ns {
            value["overhead_ns"] = json!(overhead_ns);
        }
        if let Some(processors) = self.shared_processors {
            value["shared_processors"] = json!(processors);
        }
        value
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Every fault, each with its field: another format or version first, because nothing else can be said
    /// about such a file.
    pub fn from_json(text: &str) -> Result<Trace, Faults> {
        if text.len() > MAX_FILE_BYTES {
            let accepted = format!("a trace of at most {MAX_FILE_BYTES} bytes");
            return Err(Fault::new("the whole input", format!("{} bytes", text.len()), accepted).into());
        }
        let value = json::parse(text).map_err(|Syntax { line, column, message, .. }| {
            Fault::new("the whole input", format!("{message} at line {line} column {column}"), "a trace file in JSON")
        })?;
        Trace::from_value(&value)
    }

    fn from_value(value: &Value) -> Result<Trace, Faults> {
        let mut faults = Vec::new();
        let mut table = Table::of(value, "", &mut faults).ok_or_else(|| Faults(faults.clone()))?;
        expect_format(&mut table)?;
        let mut text = |table: &mut Table<'_>, key| table.text(key, &mut faults).unwrap_or_default().to_string();
        let plan_digest = text(&mut table, "plan_digest");
        let backend = text(&mut table, "backend");
        let transport = text(&mut table, "transport");
        let replicas = table.whole("replicas", 1..=MAX_RANKS as u64, &mut faults).unwrap_or(1) as usize;
        let context = table.whole("context", 1..=MAX_RANKS as u64, &mut faults).unwrap_or(1) as usize;
        let tensor = table.whole("tensor", 1..=MAX_RANKS as u64, &mut faults).unwrap_or(1) as usize;
        let overhead_ns = table.whole("overhead_ns", 0..=MAX_NS, &mut faults);
        let processors = table.whole("shared_processors", 1..=MAX_PROCESSORS, &mut faults);
        let shared_processors = processors.map(|processors| processors as usize);
        let peak_bytes = read_numbers(table.get("peak_bytes"), "peak_bytes", MAX_RANKS, &mut faults);
        let names = table.get("collectives");
        let names = read_list(names, "collectives", collectives::MAX_NAMES, &mut faults, collectives::read_name);
        let read_step = |value: &Value, path: &str, faults: &mut Vec<Fault>| read_step(value, path, &names, faults);
        let steps = read_list(table.get("steps"), "steps", MAX_STEPS, &mut faults, read_step);
        table.finish(&mut faults);
        let pipelines = replicas * context * tensor;
        for (index, step) in steps.iter().enumerate().filter(|(_, step)| !step.rows.len().is_multiple_of(pipelines)) {
            let mut accepted = format!("as many ranks in each of the {replicas} replicas");
            for (ways, what) in [(context, "each sequence"), (tensor, "each matrix")] {
                if ways > 1 {
                    accepted.push_str(&format!(", {ways} to share {what}"));
                }
            }
            faults.push(Fault::new(format!("steps[{index}].rows"), format!("{} rows", step.rows.len()), accepted));
        }
        if !faults.is_empty() {
            return Err(Faults(faults));
        }
        Ok(Trace {
            plan_digest,
            backend,
            transport,
            replicas,
            context,
            tensor,
            overhead_ns,
            shared_processors,
            peak_bytes,
            steps,
        })
    }

    /// What a person calls row `row` of a step that has `rows` of them: `rank 3`, or `replica 1, rank 3, context 1,
    /// part 0` where there are several replicas, several context parallel ranks, and several that share
    /// matrices.
    pub fn row_name(&self, row: usize, rows: usize) -> String {
        let (replicas, context, tensor) = (self.replicas.max(1), self.context.max(1), self.tensor.max(1));
        let ranks = (rows / (replicas * context * tensor)).max(1);
        let (rank, pipeline) = (row % ranks, row / ranks);
        let (part, replica) = (pipeline % tensor, pipeline / tensor / context);
        let mut name = if replicas > 1 { format!("replica {replica}, rank {rank}") } else { format!("rank {rank}") };
        if context > 1 {
            name.push_str(&format!(", context {}", pipeline / tensor % context));
        }
        if tensor > 1 {
            name.push_str(&format!(", part {part}"));
        }
        name
    }
}

fn expect_format(table: &mut Table<'_>) -> Result<(), Fault> {
    let nothing = || String::from("no layer");
    let format = table.get("format");
    if format.and_then(Value::as_str) != Some(FORMAT) {
        return Err(Fault::new("format", format.map_or_else(nothing, shown), format!("\"{FORMAT}\"")));
    }
    let version = table.get("version");
    if version.and_then(whole) != Some(VERSION) {
        return Err(Fault::new(
            "version",
            version.map_or_else(nothing, shown),
            format!("{VERSION}, the only version so far"),
        ));
    }
    Ok(())
}

fn read_step(value: &Value, path: &str, names: &[Arc<CollectiveName>], faults: &mut Vec<Fault>) -> Option<StepTrace> {
    let mut table = Table::of(value, path, faults)?;
    let step = table.needed_whole("step", 0..=u64::MAX, faults);
    let loss = table.get("loss").map(|value| {
        let loss = value.as_f64();
        if loss.is_none() {
            faults.push(Fault::new(table.path("loss"), shown(value), "a number, or null"));
        }
        loss
    });
    let tokens = table.whole("tokens", 0..=1 << 62, faults).unwrap_or(0);
    let began_ns = table.whole("began_ns", 0..=MAX_NS, faults);
    let rows_path = table.path("rows");
    let read_row = |value: &Value, path: &str, faults: &mut Vec<Fault>| read_row(value, path, names, faults);
    let rows = read_list(table.get("rows"), &rows_path, MAX_RANKS, faults, read_row);
    table.finish(faults);
    let (rows, mut collectives): (Vec<_>, Vec<Vec<Collective>>) = rows.into_iter().unzip();
    let with_any = collectives.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
    collectives.truncate(with_any);
    Some(StepTrace { step: step?, loss: loss.flatten(), tokens, began_ns, rows, collectives })
}

type Row = (Vec<TraceSpan>, Vec<Collective>);

fn read_row(value: &Value, path: &str, names: &[Arc<CollectiveName>], faults: &mut Vec<Fault>) -> Option<Row> {
    let mut table = Table::of(value, path, faults)?;
    let collectives_path = table.path("collectives");
    let collectives = table
        .get("collectives")
        .map_or(Some(Vec::new()), |value| collectives::read_row(value, &collectives_path, names, faults));
    let text = table.get("steps");
    let steps_path = table.path("steps");
    let steps = match text.and_then(Value::as_str).map(|text| Program::from_text_rows(&[text])) {
        Some(Ok(mut program)) => program.rows.pop().unwrap_or_default(),
        Some(Err((_, error))) => {
            faults.push(Fault::new(steps_path, &error.text, "steps such as `0F3`, `(1SEND_F0)` or `OPTIMIZER`"));
            return None;
        }
        None => {
            faults.push(Fault::new(
                steps_path,
                text.map_or_else(|| "nothing".to_string(), shown),
                "a row of steps as text",
            ));
            return None;
        }
    };
    let (start_path, end_path) = (table.path("start_ns"), table.path("end_ns"));
    let starts = read_numbers(table.get("start_ns"), &start_path, steps.len(), faults);
    let ends = read_numbers(table.get("end_ns"), &end_path, steps.len(), faults);
    table.finish(faults);
    if starts.len() != steps.len() || ends.len() != steps.len() {
        faults.push(Fault::new(
            path,
            format!("{} steps, {} starts and {} ends", steps.len(), starts.len(), ends.len()),
            "one start and one end for each step",
        ));
        return None;
    }
    let mut spans = Vec::with_capacity(steps.len());
    let mut before = 0;
    for ((step, start_ns), end_ns) in steps.into_iter().zip(starts).zip(ends) {
        if start_ns < before || end_ns < start_ns {
            faults.push(Fault::new(
                path,
                format!("{step} from {start_ns} to {end_ns} after {before}"),
                "spans in order of time that do not overlap",
            ));
            return None;
        }
        before = end_ns;
        spans.push(TraceSpan { step, start_ns, end_ns });
    }
    Some((spans, collectives?))
}

/// A list of at most `most` entries; a missing one is empty.
fn read_list<T>(
    value: Option<&Value>,
    path: &str,
    most: usize,
    faults: &mut Vec<Fault>,
    read: impl Fn(&Value, &str, &mut Vec<Fault>) -> Option<T>,
) -> Vec<T> {
    match value {
        None => Vec::new(),
        Some(Value::Array(items)) if items.len() <= most => items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| read(item, &format!("{path}[{index}]"), faults))
            .collect(),
        Some(other) => {
            faults.push(Fault::new(path, shown(other), format!("a list of at most {most}")));
            Vec::new()
        }
    }
}

fn read_numbers(value: Option<&Value>, path: &str, most: usize, faults: &mut Vec<Fault>) -> Vec<u64> {
    read_list(value, path, most, faults, |value, path, faults| {
        let number = whole(value).filter(|number| *number <= MAX_NS);
        if number.is_none() {
            faults.push(Fault::new(path, shown(value), format!("a whole number up to {MAX_NS}")));
        }
        number
    })
}

#[cfg(test)]
mod tests {
    use super::collectives::{CollectiveKind, GroupKind};
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn example() -> Trace {
        let steps = Program::from_text_rows(&["0F0 (0SEND_F0) (0RECV_B0) 0BW0 OPTIMIZER"]).unwrap().rows.remove(0);
        let spans = steps.into_iter().enumerate().map(|(index, step)| {
            let start_ns = 100 + 10 * index as u64;
            TraceSpan { step, start_ns, end_ns: start_ns + 7 }
        });
        let name = |kind, label: &str| {
            Arc::new(CollectiveName { kind, group: Some(GroupKind::Data), label: label.to_string(), ranks: vec![0] })
        };
        let sync = name(CollectiveKind::ReduceScatter, "gradients of stage 0");
        let of = |name: &Arc<CollectiveName>, start_ns, bytes| Collective {
            name: Arc::clone(name),
            start_ns,
            end_ns: start_ns + 2,
            bytes,
            exposed_ns: Some(1),
        };
        let gather = name(CollectiveKind::AllGather, "");
        let collectives = vec![vec![of(&sync, 140, Some(64)), of(&sync, 141, None), of(&gather, 145, Some(8))]];
        let rows = vec![spans.collect()];
        let step = StepTrace { step: 0, loss: Some(0.1 + 0.2), tokens: 64, began_ns: Some(5), rows, collectives };
        Trace {
            plan_digest: "sha256:00".to_string(),
            backend: "cpu".to_string(),
            transport: "threads".to_string(),
            replicas: 1,
            context: 1,
            tensor: 1,
            overhead_ns: Some(17),
            shared_processors: Some(2),
            peak_bytes: vec![1024],
            steps: vec![step],
        }
    }

    #[test]
    fn a_trace_reads_back() {
        let trace = example();
        assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace));
    }

    #[test]
    fn a_timeline_holds_the_compute_and_starts_at_zero() {
        let timeline = example().steps[0].timeline();
        let texts: Vec<String> =
            timeline.rows[0].iter().map(|span| format!("{} {}-{}", span.op, span.start_ns, span.end_ns)).collect();
        assert_eq!(texts, ["0F0 0-7", "0BW0 30-37"]);
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let broken = |from: &str, to: &str| {
            let text = example().to_json();
            assert!(text.contains(from), "{from} in {text}");
            Trace::from_json(&text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        for (from, to, says) in [
            ("pipeplan-trace", "other", "format: found \"other\""),
            ("\"version\":1", "\"version\":2", "version: found 2, accepted is 1"),
            ("[100,110", "[110", "steps[0].rows[0]: found 5 steps, 4 starts and 5 ends"),
            ("[107", "[90", "spans in order of time"),
            ("0BW0", "0Q0", "steps[0].rows[0].steps: found 0Q0"),
            ("\"tokens\":64", "\"tokens\":-1", "steps[0].tokens: found -1"),
            ("\"tokens\"", "\"tokns\"", "steps[0].tokns: found an unknown field"),
            ("\"overhead_ns\"", "\"replicas\":2,\"overhead_ns\"", "steps[0].rows: found 1 rows, accepted is as many"),
            ("\"overhead_ns\"", "\"tensor\":2,\"overhead_ns\"", "in each of the 1 replicas, 2 to share each matrix"),
            (
                "\"overhead_ns\"",
                "\"context\":2,\"overhead_ns\"",
                "in each of the 1 replicas, 2 to share each sequence",
            ),
            ("\"overhead_ns\":17", "\"overhead_ns\":-17", "overhead_ns: found -17"),
            ("all-gather", "all-gathr", "collectives[1].kind: found \"all-gathr\", accepted is one of"),
            ("\"kind\"", "\"kinds\"", "collectives[0].kind: found nothing"),
            ("\"ranks\":[0]", "\"ranks\":[1,0]", "collectives[0].ranks: found [1, 0]"),
            ("\"group\":\"dp\"", "\"group\":\"pd\"", "collectives[0].group: found \"pd\""),
            (
                "\"of\":[0,0,1]",
                "\"of\":[0,2,1]",
                "steps[0].rows[0].collectives.of[1]: found 2, accepted is the number",
            ),
            ("\"of\":[0,0,1]", "\"of\":[0,1]", "steps[0].rows[0].collectives.start_ns: found a list of 3"),
            ("[140,141,145]", "[140,139,145]", "in order of their starts"),
            (
                "\"bytes\":[64,null,8]",
                "\"bytes\":[64,8]",
                "collectives.bytes: found 2 entries, accepted is 3, or none",
            ),
            ("\"bytes\":[64,null", "\"bytes\":[64,-1", "collectives.bytes[1]: found -1"),
            ("\"shared_processors\":2", "\"shared_processors\":0", "shared_processors: found 0"),
        ] {
            let error = broken(from, to);
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}", at in 0usize..400, with in any::<u8>()) {
            let _ = Trace::from_json(&text);
            let mut bytes = example().to_json().into_bytes();
            let at = at % bytes.len();
            bytes[at] = with;
            if let Ok(text) = String::from_utf8(bytes) {
                let _ = Trace::from_json(&text);
            }
        }
    }
}
