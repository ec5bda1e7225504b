//! Which steps of a run are in its trace.

use std::ops::Range;

use super::RunOptions;

/// What becomes of what was measured in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recorded {
    /// It is in no trace.
    #[default]
    No,
    /// It is in the trace if it is among the last steps.
    Last,
    /// It is in the trace.
    Kept,
}

/// Decides by step.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    window: Option<Range<u32>>,
    last: bool,
}

impl Recording {
    pub(super) fn of(options: &RunOptions) -> Recording {
        Recording { window: options.trace_window.clone(), last: options.traced_steps > 0 }
    }

    /// What becomes of `step`.
    pub(super) fn decide(&self, step: u32) -> Recorded {
        match &self.window {
            Some(window) if window.contains(&step) => Recorded::Kept,
            None if self.last => Recorded::Last,
            _ => Recorded::No,
        }
    }
}
