//! Replies of the worker.

use pipeplan_core::base::fields::Fault;
use serde::{Deserialize, Serialize};

use super::{ChartNews, FoundLayout, Layouts, Picture, Purpose, Row, SensitivityRows, Shorter, Unfit, WireSpan};

/// From the worker to the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The question that this belongs to.
    pub id: u32,
    /// The response.
    pub response: Response,
}

/// The responses of the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// The spec has faults.
    Refused(Vec<FieldFault>),
    /// Rows that come before those of the next picture. One message with a million spans would block
    /// the page.
    Rows(Vec<Vec<WireSpan>>),
    /// The plan that was asked for.
    Planned(Box<Picture>),
    /// There is no such plan, with the reason.
    NoPlan {
        /// The schedule that was asked for.
        schedule: String,
        /// The reason.
        reason: String,
        /// The one field that causes it, if there is one.
        fault: Option<FieldFault>,
    },
    /// The measured times in use; none: estimates only.
    Timed(Option<Timed>),
    /// The comparison starts again: more than the schedule of the spec has changed.
    Comparing {
        /// Rows to come.
        rows: u32,
    },
    /// The next row of the comparison.
    Compared(Row),
    /// The progress of the search for the best.
    Searching {
        /// The cost of the best so far.
        cost_ns: u64,
        /// The lower bound of the schedules in this search.
        bound_ns: u64,
    },
    /// The answer is complete. The chart of time against memory can still grow.
    Done,
    /// New points of time against memory.
    Charted(ChartNews),
    /// Why the requested schedule does not fit in memory.
    Unfit(Box<Unfit>),
    /// The cost of the memory limit for the best schedule, which fits.
    Shorter(Box<Shorter>),
    /// A plan file.
    Exported {
        /// Its text.
        text: String,
        /// The purpose of the question.
        purpose: Purpose,
    },
    /// The plan that was kept before a reload of the page.
    KeptOpened {
        /// The plan of the file.
        picture: Box<Picture>,
    },
    /// A plan file was read.
    Opened {
        /// The spec in it, as JSON.
        spec: String,
        /// The plan of the file, not planned again.
        picture: Box<Picture>,
    },
    /// The sensitivity of a schedule.
    Sensitivity(SensitivityRows),
    /// Reports of the compiler passes, as lines; empty if there is no plan of a model.
    Passes(String),
    /// The fastest layouts so far.
    Tuned(Box<Layouts>),
    /// The layout of a form whose degrees follow.
    LayoutFound(FoundLayout),
    /// Why there is no search for layouts.
    NotTuned(Vec<FieldFault>),
    /// The schedule of a point of the chart is not shown, with the reason.
    NoPoint {
        /// The reason, as a sentence.
        reason: String,
    },
    /// The plan file of a custom schedule.
    Ordered {
        /// Its text.
        plan: String,
    },
    /// A file could not be read.
    Unreadable {
        /// `plan`, `profile` or `order`.
        what: String,
        /// Each fault in words.
        faults: Vec<FieldFault>,
    },
}

/// One fault of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldFault {
    /// The field's path.
    pub field: String,
    /// The value of the field.
    pub found: String,
    /// The accepted values.
    pub accepted: String,
}

/// The measured times in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// The measured device.
    pub device: String,
    /// Which operators of the plan have measured times.
    pub covers: String,
}

impl From<&Fault> for FieldFault {
    fn from(fault: &Fault) -> FieldFault {
        let Fault { field, found, accepted } = fault.clone();
        FieldFault { field, found, accepted }
    }
}
