//! The compute ops of each replica of the pipeline, checked against the schedule.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::base::fields::{Fault, Faults};
use crate::problem::{MAX_TOTAL_NS, Schedule};
use crate::simulate::timeline::Span;
use crate::trace::StepTrace;

/// The compute ops of each copy of the pipeline in `step`, which are to be those of `schedule`, and their sum no more
/// than what simulations add up without overflow.
pub(super) fn pipelines_of(
    schedule: &Schedule,
    step: &StepTrace,
    index: usize,
) -> Result<Vec<Vec<Vec<Span>>>, Faults> {
    let ranks = schedule.rows.len();
    let path = format!("steps[{index}].rows");
    if step.rows.is_empty() || !step.rows.len().is_multiple_of(ranks.max(1)) {
        let accepted = format!("the {ranks} ranks of the plan, or a multiple for data-parallel replicas");
        return Err(Fault::new(path, format!("{} rows", step.rows.len()), accepted).into());
    }
    let mut faults = Vec::new();
    let rows = step.timeline().rows;
    for (number, row) in rows.iter().enumerate() {
        let planned = &schedule.rows[number % ranks];
        let same = row.iter().zip(planned).take_while(|(span, op)| span.op == **op).count();
        if same < row.len().max(planned.len()) {
            let text = |op: Option<String>| op.unwrap_or_else(|| "nothing".to_string());
            let found = text(row.get(same).map(|span| span.op.to_string()));
            let accepted = text(planned.get(same).map(|op| op.to_string()));
            let accepted = format!("{accepted}, as in the plan: only a run of this plan can be compared with it");
            faults.push(Fault::new(format!("{path}[{number}].steps, op {same}"), found, accepted));
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let whole: u128 = rows.iter().flatten().map(|span| u128::from(span.end_ns - span.start_ns)).sum();
    if whole > u128::from(MAX_TOTAL_NS) {
        let accepted = format!("at most {MAX_TOTAL_NS} ns in total");
        return Err(Fault::new(path, format!("{whole} ns over all ops"), accepted).into());
    }
    Ok(rows.chunks(ranks).map(<[_]>::to_vec).collect())
}
