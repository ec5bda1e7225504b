//! What `torch.profiler` recorded of a run: a trace of a plan whose order torch ran.
//!
//! [`torch_csv`] writes an order for `torch.distributed.pipelining`; this module reads what came of it. The runtime of torch puts
//! each action into a range with its name, `PP:1F3`, and the profiler of each rank writes a file in the form of Chrome traces
//! (`export_chrome_trace`, or `tensorboard_trace_handler`). Tested with torch 2.15 on CPUs and 2.11 on a GPU. Schedules of torch
//! with one stage per rank record no such ranges, and for a pair of ops torch records one range.
//!
//! What is found in them, and how, [`profile`](super::profile) says.

use alloc::format;

use crate::base::fields::Fault;
use crate::formats::profile::Recording;
use crate::trace::MAX_FILE_BYTES;

mod events;
mod stream;

pub use self::stream::Reader;

/// Whether `text` is in the form of such files, whatever it records.
pub fn looks_like_one(text: &str) -> bool {
    text.contains("\"traceEvents\"")
}

/// Reads the file of one rank.
///
/// # Errors
/// The place and what is wrong: no JSON, no events, no ranges of a pipeline, a GPU's run without its kernels.
pub fn read(text: &str) -> Result<Recording, Fault> {
    if text.len() > MAX_FILE_BYTES {
        let accepted = format!("a profile of at most {MAX_FILE_BYTES} bytes; profile fewer steps, without stacks");
        return Err(Fault::new("the whole input", format!("{} bytes", text.len()), accepted));
    }
    events::read(text)
}
