//! What the page and its worker say to each other, as postcard bytes.
//!
//! The page numbers what it asks. Only the newest plan counts: the worker looks for newer questions between
//! any two pieces of work, and the page drops what answers an older one than it already shows. So a slider
//! can be dragged, and what is shown is the newest that is known.

use pipeplan_core::estimate::step::Training;
use serde::{Deserialize, Serialize};

/// From the page to the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Grows with each question.
    pub id: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What the page may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Plan this spec with its schedule, then compare all schedules.
    Plan {
        /// The spec as JSON, as a person typed it: it may be full of faults.
        spec: String,
    },
    /// End the search for the best with what it has found.
    Stop,
    /// A search goes on as long as this address can be read: while it computes, no question reaches it.
    GoOnWhile {
        /// The address.
        url: String,
    },
    /// The plan file of this spec.
    Export {
        /// The spec as JSON.
        spec: String,
        /// What it is for.
        purpose: Purpose,
    },
    /// Read the file of a plan that was kept before the page was loaded anew.
    OpenKept {
        /// The file.
        text: String,
    },
    /// Read a plan file and show it.
    OpenPlan {
        /// The file.
        text: String,
    },
    /// Plan this spec with an order of compute from elsewhere.
    OpenOrder {
        /// The spec as JSON.
        spec: String,
        /// The order, as a file has it.
        text: String,
    },
    /// The order behind a point of the chart, where this spec has room for it and it is judged by less than `below_ns`.
    OpenPoint {
        /// The spec as JSON.
        spec: String,
        /// What the point holds.
        bytes: u64,
        /// What the plan on screen is judged by.
        below_ns: u64,
    },
    /// Read a trace file and show its last step.
    OpenTrace {
        /// The file.
        text: String,
    },
    /// Take in what torch.profiler wrote of a rank.
    Record {
        /// The files that were opened together: those of an earlier batch are forgotten.
        batch: u32,
        /// What the file is called.
        name: String,
        /// The file.
        text: String,
    },
    /// Make a trace of all that was recorded in a batch.
    Trace {
        /// Which.
        batch: u32,
        /// What ran.
        order: Order,
    },
    /// Take measured times from this profile from now on, or estimates alone.
    Measure {
        /// The file; none: estimates alone.
        profile: Option<String>,
    },
    /// What the passes did to the stages of this spec's plan.
    Passes {
        /// The spec as JSON.
        spec: String,
    },
    /// Look for the fastest layouts of this spec's model, or end the search under way.
    Tune {
        /// The spec as JSON; none ends the search.
        spec: Option<String>,
        /// Devices to use; those of the spec where not said.
        devices: Option<u64>,
    },
    /// Hold the open trace against the plan on screen.
    Calibrate(Order),
    /// Show a step of the open trace, by its position in the file.
    TraceStep {
        /// The position.
        index: u32,
    },
    /// What the time of this order hangs on; nothing any more.
    Sense(Option<Order>),
}

/// The order of a plan, with what it stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The plan's problem, as the JSON of a problem file.
    pub problem: String,
    /// A row of ops for each rank.
    pub rows: Vec<String>,
    /// By rank: where pairs begin in it.
    pub pairs: Vec<Vec<u32>>,
}

impl Ask {
    /// Whether a newer question of this sort makes older ones pointless.
    pub fn supersedes(&self, older: &Ask) -> bool {
        match self {
            Ask::Plan { .. } | Ask::OpenPlan { .. } | Ask::OpenOrder { .. } | Ask::OpenPoint { .. } => matches!(
                older,
                Ask::Plan { .. } | Ask::OpenPlan { .. } | Ask::OpenOrder { .. } | Ask::OpenPoint { .. }
            ),
            Ask::TraceStep { .. } | Ask::OpenTrace { .. } => {
                matches!(older, Ask::TraceStep { .. } | Ask::OpenTrace { .. })
            }
            Ask::Passes { .. } => matches!(older, Ask::Passes { .. }),
            Ask::Calibrate(_) => matches!(older, Ask::Calibrate(_)),
            Ask::Sense(_) => matches!(older, Ask::Sense(_)),
            Ask::Stop | Ask::GoOnWhile { .. } => false,
            // Each is a part of what follows.
            Ask::Record { .. } | Ask::Trace { .. } => false,
            Ask::Tune { .. } => matches!(older, Ask::Tune { .. }),
            Ask::Export { purpose, .. } => {
                matches!(older, Ask::Export { purpose: older, .. } if older == purpose)
            }
            Ask::OpenKept { .. } => matches!(older, Ask::OpenKept { .. }),
            Ask::Measure { .. } => matches!(older, Ask::Measure { .. }),
        }
    }
}

/// What a plan file is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A person saves it.
    Download,
    /// An exact search begins with it.
    Proof,
    /// The plan is kept to be compared with others, also after the page is loaded anew.
    Keep,
}

/// Measured times that are planned with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// What was measured.
    pub device: String,
    /// How much of what is planned that is, as far as anything is.
    pub covers: String,
}

/// From the worker to the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The question that this belongs to.
    pub id: u32,
    /// What is said.
    pub said: Said,
}

/// What the worker may say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// The spec is at fault.
    Refused(Vec<FieldFault>),
    /// Rows that belong before those of the next picture or measured step: a million spans in one message would
    /// take the page away while it reads them.
    Rows(Vec<Vec<WireSpan>>),
    /// The plan that was asked for.
    Planned(Box<Picture>),
    /// There is no such plan, and why.
    NoPlan {
        /// The schedule that was asked for.
        schedule: String,
        /// Why there is none.
        reason: String,
        /// The one field that is to blame for that, where there is one.
        fault: Option<FieldFault>,
    },
    /// Where times are from: measured ones, or (none) estimates alone.
    Timed(Option<Timed>),
    /// The comparison starts anew: the spec has changed in more than its schedule.
    Comparing {
        /// Rows to come.
        rows: u32,
    },
    /// The next row of the comparison.
    Compared(Row),
    /// How far the search for the best has come.
    Searching {
        /// The cost of the best so far.
        cost_ns: u64,
        /// What no schedule of what is being searched goes under.
        bound_ns: u64,
    },
    /// All that was asked for has been said. The chart of time against memory may still grow.
    Done,
    /// What is new about time against memory.
    Charted(ChartNews),
    /// Why the schedule that was asked for does not fit in memory.
    Unfit(Box<Unfit>),
    /// What the memory limit costs the best schedule, which fits.
    Shorter(Box<Shorter>),
    /// A plan file.
    Exported {
        /// Its text.
        text: String,
        /// What it was asked for.
        purpose: Purpose,
    },
    /// The plan that was kept before the page was loaded anew.
    KeptOpened {
        /// The plan as it stands in the file.
        picture: Box<Picture>,
    },
    /// A plan file was read.
    Opened {
        /// The spec in it, as JSON.
        spec: String,
        /// The plan as it stands in the file, not planned again.
        picture: Box<Picture>,
    },
    /// What the time of an order hangs on.
    Sensed(Sensed),
    /// What the passes did, in lines; empty where there is no plan of a model.
    Passes(String),
    /// The fastest layouts so far.
    Tuned(Box<Layouts>),
    /// There is nothing to tune.
    NotTuned(Vec<FieldFault>),
    /// The order behind a point of the chart is not shown, and why.
    NoPoint {
        /// In a sentence.
        reason: String,
    },
    /// The plan file of an order from elsewhere.
    Ordered {
        /// Its text.
        plan: String,
    },
    /// The trace file of what was recorded.
    Traced {
        /// Its text.
        trace: String,
    },
    /// What was recorded is no run of that order, and why.
    NotTraced(Vec<FieldFault>),
    /// A trace was read.
    TraceOpened(TraceSummary),
    /// A step of the trace.
    TraceShown(Box<Measured>),
    /// Where the run of the open trace lost time against the plan on screen.
    Calibrated(Box<Calibrated>),
    /// The open trace is no run of that plan, and why.
    NotCalibrated(Vec<FieldFault>),
    /// A file could not be read.
    Unreadable {
        /// `plan`, `trace` or `order`.
        what: String,
        /// Each fault in words.
        faults: Vec<FieldFault>,
    },
}

/// One thing wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldFault {
    /// The field's path.
    pub field: String,
    /// What stood there.
    pub found: String,
    /// What would be accepted.
    pub accepted: String,
}

/// One op in time. Gaps instead of start times keep the numbers, and so the bytes, small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSpan {
    /// Stage.
    pub stage: u16,
    /// Kind: position in F, B, W, BW.
    pub kind: u8,
    /// Microbatch.
    pub microbatch: u32,
    /// From the end of the one before it.
    pub gap_ns: u64,
    /// How long it takes.
    pub duration_ns: u64,
}

/// A plan as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The schedule's name.
    pub schedule: String,
    /// The problem, as the JSON of a problem file with its placement fixed.
    pub problem: String,
    /// The spans of each rank that have not been sent ahead.
    pub rows: Vec<Vec<WireSpan>>,
    /// What it costs.
    pub figures: Figures,
    /// Its bytes by rank and kind; empty where costs are typed.
    pub memory: Vec<RankBytes>,
}

/// The bytes of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankBytes {
    /// Held throughout, by kind: in the order of [`kinds_of_bytes`](crate::wire::kinds_of_bytes).
    pub fixed: Vec<u64>,
    /// The most that microbatches hold at once.
    pub activations: u64,
    /// The op during which that is.
    pub at: String,
    /// The most that they hold of the host's memory.
    pub on_host: u64,
    /// All together.
    pub peak: u64,
    /// What it may hold.
    pub limit: Option<u64>,
}

/// A schedule that does not fit, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfit {
    /// The schedule whose bytes these are: the one that was asked for, or the one that comes nearest.
    pub schedule: String,
    /// Its bytes by rank and kind.
    pub memory: Vec<RankBytes>,
    /// What helps, the best first: single changes, or combinations where none of them is enough.
    pub suggestions: Vec<SuggestionRow>,
}

/// What the memory limit costs, and what makes the step shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shorter {
    /// The step of the best schedule.
    pub step_ns: u64,
    /// What it would be without a limit.
    pub without_limit_ns: u64,
    /// What makes it shorter, the shortest first.
    pub suggestions: Vec<SuggestionRow>,
}

/// Changes of the spec that need less memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuggestionRow {
    /// Of each: the field's path, its value now, and the value to try.
    pub changes: Vec<[String; 3]>,
    /// How many times as many devices it takes.
    pub devices: u32,
    /// The most bytes of a rank then.
    pub peak: u64,
    /// Whether every rank then fits.
    pub fits: bool,
    /// Whether it is what fits with the shortest step, and where any does, on the same devices.
    pub cheapest: bool,
    /// What a step then takes.
    pub step_ns: u64,
}

/// The fastest ways to deal a model to devices, as far as they are known.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Layouts {
    /// The spec as it is, with its fastest schedule.
    pub given: Option<LayoutRow>,
    /// Why the spec as it is has no schedule.
    pub reason: Option<String>,
    /// The fastest first.
    pub rows: Vec<LayoutRow>,
    /// Layouts that are settled, of all.
    pub settled: u64,
    /// All layouts.
    pub all: u64,
    /// Those on which the best schedule was searched for.
    pub searched: u64,
    /// No more will come.
    pub finished: bool,
}

/// A layout with its fastest schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutRow {
    /// The spec that says it, as JSON.
    pub spec: String,
    /// Pipeline ranks, devices that share matrices, that hold parts of sequences, copies, and devices that experts are
    /// dealt to.
    pub degrees: [u32; 5],
    /// Microbatches of a copy, and sequences of each.
    pub microbatches: [u32; 2],
    /// The schedule as a person calls it, with its chunks.
    pub schedule: String,
    /// What layers compute again.
    pub recompute: String,
    /// The step.
    pub step: StepFigures,
    /// The most bytes that a rank holds.
    pub peak: u64,
}

/// A schedule's memory and cost: a point of time against memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartPoint {
    /// The most bytes that a rank holds.
    pub bytes: u64,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// The schedule, as a person calls it.
    pub by: String,
}

impl ChartPoint {
    /// Whether it could hang as its transfers are carried: then it is judged to come behind all else, and not by a time.
    pub fn hangs(&self) -> bool {
        self.judged_ns >= u64::MAX / 2
    }
}

/// What an order takes where something takes longer, or less.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sensed {
    /// What the order takes as planned.
    pub cost_ns: u64,
    /// How much longer or less, in thousandths.
    pub permille: u32,
    /// What changes, what the order takes where that takes longer, and where it takes less: of each kind those that matter
    /// most.
    pub rows: Vec<(String, u64, u64)>,
    /// Changes that are not among them.
    pub others: usize,
}

/// What is new about time against memory.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ChartNews {
    /// It is of another spec than the points so far.
    pub started: bool,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Schedules that are faster than all known ones with as much memory.
    pub points: Vec<ChartPoint>,
    /// No more will come.
    pub finished: bool,
}

/// The figures of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// What it is judged by: `makespan` or `longest_span`.
    pub objective: String,
    /// End of the last op minus start of the first.
    pub makespan_ns: u64,
    /// The largest span of a rank.
    pub longest_span_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// The limit, by rank.
    pub limit_bytes: Vec<Option<u64>>,
    /// No valid schedule on this placement costs less.
    pub bound_ns: u64,
    /// Cost over bound, minus 1.
    pub gap: Option<f64>,
    /// With the jitter that the spec says: what one step of twenty costs more than.
    pub late_ns: Option<u64>,
    /// The cost with waits at transfers, as the spec has them placed and carried; none where that could hang.
    pub carried_ns: Option<u64>,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// What binds the bound, as a sentence.
    pub binding: String,
    /// The whole training step; of a model only.
    pub step: Option<StepFigures>,
}

/// A whole training step, its gradients' sums and its optimizer included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// How long it takes.
    pub step_ns: u64,
    /// Tokens of all copies, a second.
    pub tokens_per_s: f64,
    /// Model FLOPs utilisation.
    pub mfu: f64,
    /// The whole training, where the spec says of how many tokens.
    pub training: Option<Training>,
}

/// One schedule of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name.
    pub schedule: String,
    /// The name a person reads.
    pub title: String,
    /// Paper and section.
    pub source: String,
    /// For an absent schedule why; for `best` which one it is.
    pub reason: Option<String>,
    /// What it costs; none where it is absent.
    pub costs: Option<RowCosts>,
}

/// What a schedule of the comparison costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCosts {
    /// End of the last op minus start of the first.
    pub makespan_ns: u64,
    /// The largest span of a rank.
    pub longest_span_ns: u64,
    /// Idle share under the objective.
    pub bubble_ratio: f64,
    /// Most bytes held by any rank.
    pub peak_bytes: u64,
    /// Cost over bound, minus 1.
    pub gap: Option<f64>,
    /// With the jitter that the spec says: what one step of twenty costs more than.
    pub late_ns: Option<u64>,
    /// The cost with waits at transfers, as the spec has them placed and carried; none where that could hang.
    pub carried_ns: Option<u64>,
    /// What the best is chosen by, see [`judged_ns`](pipeplan_core::plan::planner::judged_ns).
    pub judged_ns: u64,
    /// The whole training step; of a model only.
    pub step: Option<StepFigures>,
}

/// What a trace file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// What computed.
    pub backend: String,
    /// What carried the messages.
    pub transport: String,
    /// The digest of the plan that ran; may be empty.
    pub plan_digest: String,
    /// Number and loss of each recorded training step.
    pub steps: Vec<(u64, Option<f64>)>,
    /// Most bytes held, by rank.
    pub peak_bytes: Vec<u64>,
    /// On how many processors the ranks took turns, where they did.
    pub shared_processors: Option<usize>,
}

/// Where a run lost time against its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Steps that count.
    pub steps: usize,
    /// The makespan of the plan's order.
    pub planned_ns: u64,
    /// What each cause adds: ops, hops, spread, rest.
    pub causes_ns: [i64; 4],
    /// The mean over those steps.
    pub measured_ns: u64,
    /// The ops that decide most of the makespan, such as `3F`, and their share of it.
    pub deciding: Vec<(String, f64)>,
    /// How much ops differ from the mean of their stage and job, in thousandths.
    pub jitter_permille: u64,
    /// The problem with measured times, as the JSON of a problem file.
    pub problem: String,
}

/// One measured training step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Position in the file.
    pub index: u32,
    /// The spans of each rank that have not been sent ahead.
    pub rows: Vec<Vec<WireSpan>>,
    /// From the first op's start to the last one's end.
    pub makespan_ns: u64,
    /// Idle share within the makespan.
    pub bubble_ratio: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// The whole step, transfers and optimizer included.
    pub duration_ns: u64,
}
