//! Sensitivity: the times that a plan depends on most.

use pipeplan_core::advise::sensitivity::Sensitivity;
use pipeplan_core::problem::{Problem, Schedule};

use super::Worker;
use super::specs::read_order;
use crate::protocol::{Order, Response, SensitivityRows};

/// The sensitivity of a schedule, so far.
pub(super) struct SensitivityRun {
    pub(super) id: u32,
    pub(super) problem: Problem,
    pub(super) schedule: Schedule,
    pub(super) found: Sensitivity,
}

/// The size of a change, in thousandths.
const SENSED_PERMILLE: u32 = 100;

impl Worker {
    /// Starts the sensitivity of `order`, if its times can change.
    pub(super) fn start_sensitivity(&mut self, id: u32, order: Option<&Order>) -> Option<Response> {
        self.sensitivity_run = None;
        let (problem, schedule) = read_order(order?)?;
        match Sensitivity::new(&problem, &schedule, SENSED_PERMILLE) {
            Ok(found) => self.sensitivity_run = Some(SensitivityRun { id, problem, schedule, found }),
            Err(_) => return Some(Response::Sensitivity(SensitivityRows::default())),
        }
        None
    }
}
