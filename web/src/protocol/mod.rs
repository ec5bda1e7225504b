//! Messages between page and worker, as postcard bytes.
//!
//! - In: results of the planner.
//! - Out: questions ([`ask`]), replies ([`reply`]) and what they carry; those about a measured run ([`trace`]).
//! - Knows: the planner, [`form`](crate::form) for labels, [`text`](crate::text). No browser, no page, no worker.
//!
//! The page numbers what it asks. Only the newest plan counts: the worker looks for newer questions between any two pieces of
//! work, and the page drops what answers an older one than it already shows. So a slider can be dragged, and what is shown is
//! the newest that is known.

mod advice;
mod ask;
pub mod from_core;
pub mod frontier;
mod plan;
mod reply;
pub mod same_spec;
pub mod spans;
mod trace;

use pipeplan_core::spec::Spec;

pub use advice::{FoundLayout, LayoutRow, Layouts, SensitivityRows, Shorter, SuggestionRow, Unfit};
pub use ask::{Ask, Order, Purpose, Question};
pub use frontier::{ChartNews, ChartPoint};
pub use plan::{
    DocumentFigures, Figures, PackingTimes, Picture, RankBytes, Row, RowCosts, StepFigures, Width, Widths,
};
pub use reply::{FieldFault, Reply, Response, Timed};
pub use spans::{WireCopy, WireMark, WireSpan};
pub use trace::{
    AnalysisRows, Calibrated, Export, ExposedRows, HangReport, Measured, PathOp, Place, RankTime, StepSummary,
    StragglerRow, TRACE_WORKER, TraceAsk, TraceFile, TraceQuestion, TraceReply, TraceResponse, TraceSummary,
    WhatIfRow,
};

/// The spec of a JSON text, if it has no faults. All specs that travel are such texts.
pub fn spec_of(json: &str) -> Option<Spec> {
    Spec::from_value(&serde_json::from_str(json).ok()?).ok()
}
