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
//! began, where all steps and hosts share a clock. `hosts` has the number of the host of each row, where there are several.
//!
//! `collectives` of a file and of its rows say what ranks did together, at the same time as their ops: see [`collectives`].
//!
//! Times count from the start of the training step on the clock of the run. A trace is input like any other:
//! it is read with every size bounded, and what does not fit together is refused with its place.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use self::collectives::Collective;
use crate::base::fields::Faults;
use crate::base::units::{Bytes, Nanos};
use crate::problem::copies::{HostCopy, Moved};
use crate::program::Step;
use crate::simulate::timeline::{CopySpan, Span, Timeline};

pub mod analysis;
pub mod calibrate;
pub mod clocks;
pub mod collectives;
mod read;
pub mod select;
pub mod waits;
mod write;

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;
/// The JSON Schema of a trace file, version 1.
pub const SCHEMA: &str = include_str!("../../schema/trace.schema.json");
/// Longest file that is read.
pub const MAX_FILE_BYTES: usize = 1 << 30;
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
    /// By row: the number of the host that it ran on, from 0; empty where all ran on one, or it is not known.
    pub hosts: Vec<u32>,
    /// The training steps that were recorded, oldest first.
    pub steps: Vec<StepTrace>,
}

/// The copies of a row from their start to the end of the wait for them, with times from `first` on.
fn copies(row: &[TraceSpan], first: Nanos) -> Vec<CopySpan> {
    let mut started: BTreeMap<Moved, (u32, Nanos)> = BTreeMap::new();
    let mut copies = Vec::new();
    let mut place = 0;
    for span in row {
        match span.step {
            Step::Compute(_) => place += 1,
            Step::StartCopy(moved) => drop(started.insert(moved, (place, span.start_ns))),
            Step::WaitCopy(moved) => {
                if let Some((starts, start_ns)) = started.remove(&moved) {
                    let copy = HostCopy { moved, starts, ends: place };
                    let [start_ns, end_ns] = [start_ns, span.end_ns].map(|ns| ns.saturating_sub(first));
                    copies.push(CopySpan { copy, start_ns, end_ns });
                }
            }
            _ => {}
        }
    }
    copies.sort_by_key(|span| span.start_ns);
    copies
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
        let copies = self.rows.iter().map(|row| copies(row, first)).collect::<Vec<_>>();
        let copies = if copies.iter().all(Vec::is_empty) { Vec::new() } else { copies };
        Timeline { rows: self.rows.iter().map(row).collect(), copies }
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
    /// The file's text. Where it goes straight to a file, serialize the trace instead: that takes no memory.
    pub fn to_json(&self) -> String {
        // Whoever serializes a trace writes texts as keys, and nothing that fails.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As [`Trace::to_json`]; none where `go_on`, which is asked before each row, has said no.
    pub fn to_json_while(&self, go_on: &dyn Fn() -> bool) -> Option<String> {
        serde_json::to_string(&write::File { trace: self, go_on }).ok()
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Every fault, each with its field: another format or version first, because nothing else can be said
    /// about such a file.
    pub fn from_json(text: &str) -> Result<Trace, Faults> {
        read::trace(text)
    }

    /// Notes the host of each row, by whatever tells hosts apart.
    pub fn set_hosts(&mut self, of_row: &[usize]) {
        let differ = of_row.windows(2).any(|two| two[0] != two[1]);
        let mut known = of_row.to_vec();
        known.sort_unstable();
        known.dedup();
        let number = |host: &usize| known.binary_search(host).unwrap_or(0) as u32;
        self.hosts = if differ { of_row.iter().map(number).collect() } else { Vec::new() };
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

#[cfg(test)]
mod tests {
    use super::collectives::{CollectiveKind, CollectiveName, GroupKind};
    use super::*;
    use crate::program::Program;
    use alloc::string::ToString;
    use alloc::sync::Arc;
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
            hosts: vec![3],
            steps: vec![step],
        }
    }

    #[test]
    fn a_trace_reads_back() {
        let trace = example();
        assert_eq!(Trace::from_json(&trace.to_json()), Ok(trace));
    }

    #[test]
    fn a_file_that_nobody_wants_any_more_is_not_written() {
        let trace = example();
        let asked = core::cell::Cell::new(0);
        let count = || {
            asked.set(asked.get() + 1);
            true
        };
        assert_eq!(trace.to_json_while(&count), Some(trace.to_json()));
        assert_eq!(asked.get(), trace.steps.iter().map(|step| step.rows.len()).sum::<usize>());
        assert_eq!(trace.to_json_while(&|| false), None);
    }

    /// Those of a program in another language come in any order.
    #[test]
    fn fields_may_stand_in_any_order() {
        let value: serde_json::Value = serde_json::from_str(&example().to_json()).unwrap();
        fn turned(value: &serde_json::Value) -> String {
            match value {
                serde_json::Value::Object(fields) => {
                    let fields = fields.iter().rev().map(|(key, value)| format!("{key:?}:{}", turned(value)));
                    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
                }
                serde_json::Value::Array(items) => {
                    format!("[{}]", items.iter().map(turned).collect::<Vec<_>>().join(", "))
                }
                other => other.to_string(),
            }
        }
        let text = turned(&value);
        assert!(text.find("\"steps\"") < text.find("\"collectives\""), "{text}");
        assert_eq!(Trace::from_json(&text), Ok(example()));
        // And a text with an escape, and numbers as floats.
        let escaped = example().to_json().replace("0BW0", "0\\u0042W0").replace("[107,", "[107.0,");
        assert!(escaped.contains("u0042") && escaped.contains("107.0"), "{escaped}");
        assert_eq!(Trace::from_json(&escaped), Ok(example()));
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
            ("(0SEND_F0)", "(0SEND_F0", "steps[0].rows[0].steps: found (0RECV_B0)"),
            (
                "\"steps\":\"0F0",
                "\"steps\":[7],\"stps\":\"0F0",
                "steps[0].rows[0].steps: found a list of 1, accepted is a row",
            ),
            (
                "\"steps\":\"0F0",
                "\"stps\":\"0F0",
                "steps[0].rows[0].stps: found an unknown field, accepted is one of steps",
            ),
            ("\"steps\":\"0F0", "\"stps\":\"0F0", "steps[0].rows[0].steps: found nothing, accepted is a row"),
            ("\"tokens\":64", "\"tokens\":64,\"tokens\":64", "the field \"tokens\" is given twice at line 1"),
            (
                "\"start_ns\":[100",
                "\"end_ns\":[], \"start_ns\":[100",
                "the field \"end_ns\" is given twice at line 1",
            ),
            ("\"hosts\":[3]", "\"hosts\":[1024]", "hosts[0]: found 1024, accepted is a number below 1024"),
            (
                "\"peak_bytes\":[1024]",
                "\"peak_bytes\":{}",
                "peak_bytes: found a table, accepted is a list of at most 1024",
            ),
            (
                "\"peak_bytes\":[1024]",
                "\"peak_bytes\":[1,true]",
                "peak_bytes[1]: found true, accepted is a whole number",
            ),
            ("\"version\":1}", "\"version\":1} {", "trailing characters at line 1"),
            ("\"version\":1}", "\"version\":1", "EOF while parsing an object at line 1"),
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
            (
                "\"of\":[0,0,1]",
                "\"of\":[0,1]",
                "steps[0].rows[0].collectives: found 2 collectives, 3 starts and 3 ends",
            ),
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
