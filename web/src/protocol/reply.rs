//! What the worker replies to the page.

use serde::{Deserialize, Serialize};

use super::{
    Calibrated, ChartNews, Layouts, Measured, Picture, Purpose, Row, SensitivityRows, Shorter, TraceSummary, Unfit,
    WireSpan,
};

/// From the worker to the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The question that this belongs to.
    pub id: u32,
    /// The response.
    pub response: Response,
}

/// What the worker responds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
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
    Sensitivity(SensitivityRows),
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

/// Measured times that are planned with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// What was measured.
    pub device: String,
    /// How much of what is planned that is, as far as anything is.
    pub covers: String,
}
