//! The worker without a browser: questions in, replies out.

mod advice;
mod comparison;
mod files;
mod frontier;
mod packing;

use pipeplan_core::search::Flow;

use crate::protocol::{Ask, Question, Reply, Response};
use crate::worker::{Watch, Worker};

pub(super) const SPEC: &str = r#"{ "ranks": 4, "microbatches": 8, "chunks": 1, "placement": "linear",
    "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 } }"#;

pub(super) fn plan(id: u32, spec: &str) -> Question {
    Question { id, ask: Ask::Plan { spec: spec.to_owned() } }
}

pub(super) fn unwatched() -> Watch {
    Box::new(|_, _, _| Flow::Continue)
}

pub(super) fn finish(work: &mut Worker) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !work.is_answered() {
        replies.extend(work.step());
    }
    // The chart is a matter of its own.
    replies.retain(|reply| !matches!(reply.response, Response::Charted(_)));
    replies
}

/// What the page makes of everything that is said of the chart, until there is nothing left to say.
pub(super) fn charted(work: &mut Worker) -> crate::draw::frontier::Chart {
    let mut chart = crate::draw::frontier::Chart::default();
    while !work.is_idle() {
        for reply in work.step() {
            if let Response::Charted(news) = reply.response {
                chart.add(news);
            }
        }
    }
    chart
}
