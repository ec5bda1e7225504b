//! Questions about a measured run, and what comes back.
//!
//! They go to a worker that has nothing else to do, so that a large run does not delay plans. A person who stops what takes
//! long, or closes the run, ends that worker, and gets its memory back.

use serde::{Deserialize, Serialize};

use super::{FieldFault, Order, WireMark, WireSpan};

/// The name of the worker of measured runs.
pub const TRACE_WORKER: &str = "trace";

/// From the page to the worker. Files come beside it, unread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceQuestion {
    /// Grows with each question.
    pub id: u32,
    /// The question.
    pub ask: TraceAsk,
}

/// The questions about a measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TraceAsk {
    /// Read the files that come beside this as one run.
    Open {
        /// Their names, in their order.
        files: Vec<TraceFile>,
        /// The plan on screen, of which it may be a run.
        order: Option<Order>,
    },
    /// Read no further.
    StopReading,
    /// Show a step, by its position.
    Step {
        /// The position.
        index: u32,
    },
    /// What the run means.
    Analyse {
        /// Of this step alone, by its position; none: of all steps.
        index: Option<u32>,
        /// The plan on screen, where this is a run of it.
        order: Option<Order>,
        /// It goes on while this address can be read.
        while_readable: Option<String>,
    },
    /// What the best order for the measured times would save.
    BestOrder {
        /// The plan that ran; none: its order follows from the trace.
        order: Option<Order>,
        /// The search goes on while this address can be read.
        while_readable: Option<String>,
    },
    /// Where the run lost time against the plan on screen.
    Calibrate {
        /// That plan.
        order: Order,
        /// It goes on while this address can be read.
        while_readable: Option<String>,
    },
    /// The order that ran, and a problem with the measured times.
    Order {
        /// It goes on while this address can be read.
        while_readable: Option<String>,
    },
    /// A profile of what the run took, for the plan of this file.
    Profile {
        /// The text of the plan file.
        plan: String,
        /// It goes on while this address can be read.
        while_readable: Option<String>,
    },
    /// The run as a file.
    Export {
        /// Which file.
        export: Export,
        /// It goes on while this address can be read.
        while_readable: Option<String>,
    },
}

impl TraceAsk {
    /// The address that says whether the answer is still wanted.
    pub fn while_readable(&self) -> Option<&str> {
        match self {
            TraceAsk::Open { .. } | TraceAsk::StopReading | TraceAsk::Step { .. } => None,
            TraceAsk::Analyse { while_readable, .. }
            | TraceAsk::BestOrder { while_readable, .. }
            | TraceAsk::Calibrate { while_readable, .. }
            | TraceAsk::Order { while_readable }
            | TraceAsk::Profile { while_readable, .. }
            | TraceAsk::Export { while_readable, .. } => while_readable.as_deref(),
        }
    }
}

/// A file that is to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFile {
    /// Its name, behind the folders that a person chose with it.
    pub path: String,
    /// How long it is, packed as it is.
    pub bytes: u64,
}

/// A file of a measured run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Export {
    /// A trace of pipeplan.
    Trace,
    /// Events for Perfetto and chrome://tracing.
    Perfetto,
    /// A row for each span.
    Csv,
}

impl Export {
    /// What the file is called, after the name of the plan.
    pub const fn file(self) -> &'static str {
        match self {
            Export::Trace => "trace.json",
            Export::Perfetto => "trace.perfetto.json",
            Export::Csv => "trace.csv",
        }
    }
}

/// From the worker to the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceReply {
    /// The question that this belongs to.
    pub id: u32,
    /// The response.
    pub response: TraceResponse,
}

/// What the worker says of a measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TraceResponse {
    /// How far reading has come.
    Reading {
        /// The file.
        name: String,
        /// Bytes that are read of all files, and all bytes.
        bytes: [u64; 2],
    },
    /// A run was read.
    Opened(Box<TraceSummary>),
    /// Dumps of torch's flight recorder were read, which have no steps.
    Hangs(Box<HangReport>),
    /// Nothing can be shown, with the reasons.
    NotOpened(Vec<FieldFault>),
    /// Ops of ranks that come before those of the next step. One message with a million spans would block the page.
    Rows(Vec<Vec<WireSpan>>),
    /// What ranks did beside their ops, before the next step.
    Marks(Vec<Vec<WireMark>>),
    /// A step. Its rows came before.
    Shown(Box<Measured>),
    /// How far that has come which says what the run means.
    Replaying {
        /// Replays of a step that are done.
        done: usize,
        /// How many there will be at most.
        most: usize,
    },
    /// How far a comparison with an order has come: one with the plan, or one for a profile or an order.
    Comparing {
        /// Steps that are done: each is read and then simulated.
        done: usize,
        /// How many there are.
        most: usize,
    },
    /// What the run means.
    Analysed(Box<AnalysisRows>),
    /// The run has no op that could be explained, or nobody waits for it any more.
    NotAnalysed,
    /// The progress of a search for the best order.
    Searching {
        /// The cost of the best so far.
        cost_ns: u64,
        /// The lower bound.
        bound_ns: u64,
    },
    /// What the best order would save; none where no order can be planned.
    BestOrder(Option<WhatIfRow>),
    /// Where the run lost time.
    Calibrated(Box<Calibrated>),
    /// The run is not one of that plan, with the reasons.
    NotCalibrated(Vec<FieldFault>),
    /// The order that ran.
    Ordered {
        /// An op list a rank.
        order: String,
        /// The problem with measured times, as the JSON of a problem file.
        problem: String,
    },
    /// The trace has no order that can be planned, with the reasons.
    NotOrdered(Vec<FieldFault>),
    /// A profile.
    Profiled {
        /// The file.
        profile: String,
        /// The mean step that was measured.
        measured_ns: u64,
    },
    /// There is no profile, with the reasons.
    NotProfiled(Vec<FieldFault>),
    /// A file.
    Exported {
        /// Which one.
        export: Export,
        /// Its text.
        text: String,
        /// The step that it has, where it has one of several.
        step: Option<u64>,
    },
    /// Nobody waits for the answer any more.
    Ended,
}

/// Who waits in a run that hangs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HangReport {
    /// What each part is about, and its lines with a word each, as the command prints them.
    pub parts: Vec<(String, Vec<(String, String)>)>,
    /// The report for programs.
    pub json: String,
    /// What could not be read.
    pub faults: Vec<FieldFault>,
}

/// The summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// The backend.
    pub backend: String,
    /// The transport.
    pub transport: String,
    /// The digest of the plan that ran; may be empty.
    pub plan_digest: String,
    /// The recorded training steps.
    pub steps: Vec<StepSummary>,
    /// Ranks, over all copies of the pipeline.
    pub ranks: usize,
    /// Copies of the pipeline: data, context and tensor parallel ones.
    pub copies: [usize; 3],
    /// Stages and microbatches that ops name.
    pub shape: [usize; 2],
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// Number of processors, if ranks were time-sliced on them.
    pub shared_processors: Option<usize>,
    /// All spans of all steps.
    pub spans: u64,
    /// What was found and put right, in lines.
    pub told: Vec<String>,
    /// What could not be read; the rest is here.
    pub faults: Vec<FieldFault>,
    /// The trace as a file, where it is small: for a reload of the page.
    pub text: Option<String>,
}

/// A recorded training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Its number.
    pub step: u64,
    /// Its loss.
    pub loss: Option<f64>,
    /// From the first op to the last.
    pub makespan_ns: u64,
}

/// Where a run lost time against its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Counted steps.
    pub steps: usize,
    /// The makespan of the plan.
    pub planned_ns: u64,
    /// The time of each cause: ops, hops, spread, rest.
    pub causes_ns: [i64; 4],
    /// The mean of the counted steps.
    pub measured_ns: u64,
    /// The ops with the largest shares of the critical path, such as `3F`.
    pub deciding: Vec<(String, f64)>,
    /// Deviation of ops from the mean of their stage and job, in thousandths.
    pub jitter_permille: u64,
    /// The problem with measured times, as the JSON of a problem file.
    pub problem: String,
}

/// One measured training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Position in the file.
    pub index: u32,
    /// From the first op's start to the last one's end.
    pub makespan_ns: u64,
    /// Idle share within the makespan.
    pub bubble_ratio: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step, transfers and optimizer included.
    pub duration_ns: u64,
    /// What marks are called, and the place of each in the legend of marks.
    pub mark_names: Vec<(u8, String)>,
}

/// What a run means: `pipeplan show --analysis`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnalysisRows {
    /// The position of the step that it is of; none: it is of all steps.
    pub index: Option<u32>,
    /// How many steps it is of.
    pub steps: usize,
    /// The mean makespan.
    pub makespan_ns: u64,
    /// Where the time of each row went.
    pub rows: Vec<RankTime>,
    /// Time on the critical path by row: ops, messages, late starts.
    pub path_rows: Vec<(String, [u64; 3])>,
    /// The last ops of the path of a step, in words.
    pub path_end: String,
    /// The position of that step.
    pub path_of: u32,
    /// Its critical path, from the first op to the last.
    pub path: Vec<PathOp>,
    /// What would be saved.
    pub what_ifs: Vec<WhatIfRow>,
    /// Who is slow, the most costly first.
    pub stragglers: Vec<StragglerRow>,
    /// How many more are slow, whose cost is not worked out.
    pub more_stragglers: usize,
    /// Communication that no compute hides; none of a run without collectives.
    pub exposed: Option<ExposedRows>,
}

/// Communication that no compute hides, by kind and rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExposedRows {
    /// The kinds: P2P, then those of collectives.
    pub kinds: Vec<String>,
    /// By row: its time in each kind.
    pub rows: Vec<Vec<u64>>,
    /// Each kind of collectives in a line.
    pub lines: Vec<String>,
}

/// Where the time of a row went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTime {
    /// What a person calls the row.
    pub name: String,
    /// The parts, as `RowTime` of the planner names them.
    pub parts_ns: [u64; 6],
}

/// An op on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOp {
    /// Its row.
    pub row: u32,
    /// Stage, kind (position in F, B, W, BW) and microbatch.
    pub op: (u16, u8, u32),
    /// The P2P transfer that it waited for; 0 where it waited for its own rank.
    pub message_ns: u64,
}

/// A step that is replayed with one thing changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfRow {
    /// What is changed.
    pub name: String,
    /// The mean step then.
    pub makespan_ns: u64,
    /// By how much it is shorter.
    pub saved_ns: i64,
}

/// Something slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StragglerRow {
    /// Where: `rank 3`, `stage 2`, `0 to 1`.
    pub place: String,
    /// What that usually is.
    pub why: String,
    /// Thousandths of the usual time that it takes.
    pub permille: u32,
    /// The first step from which on it is slow.
    pub since: u64,
    /// Slow ops or messages.
    pub ops: usize,
    /// How much shorter the mean step would be without it.
    pub saved_ns: u64,
    /// Where to look at it.
    pub at: Option<Place>,
}

/// An op of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The position of its step.
    pub index: u32,
    /// Its row.
    pub row: u32,
    /// Its place among the ops of the row.
    pub place: u32,
}
