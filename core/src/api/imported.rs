//! A run of Megatron-LM or torchtitan as a spec, and its measured figures against the planned ones.

use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Value, json};

use crate::advise::explanation::{Explanation, Unexplained, explain_alone};
use crate::base::fields::{Fault, Faults};
use crate::base::units::{Bytes, Nanos};
use crate::formats::training_run::{Arguments, Imported, TrainingRun};
use crate::plan::verdict::RankMemory;
use crate::search::{Effort, Flow, Progress};
use crate::spec::Work;

/// What a log tells of a run, against what is planned for its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgainstPlan {
    /// The schedule that the spec is planned with.
    pub schedule: String,
    /// The step in the middle of those that the log reports; none where it reports none.
    pub step_ns: Option<Nanos>,
    /// The planned step.
    pub planned_step_ns: Option<Nanos>,
    /// Steps that the log reports.
    pub steps: usize,
    /// By pipeline rank: the most that the log tells of one of its devices, and the planned bytes.
    pub peaks: Vec<(usize, Bytes, Bytes)>,
    /// Whether the log tells memory after the first step, before which there are no optimizer states.
    pub of_first_step: bool,
    /// Whether every rank fits its limit, as planned.
    pub fits: bool,
}

impl AgainstPlan {
    /// Plans `imported` as its spec says, and puts the figures of `run` against it.
    ///
    /// # Errors
    /// [`Unexplained`] where the spec has no plan.
    pub fn of(
        run: &TrainingRun,
        imported: &Imported,
        observer: &mut dyn FnMut(Progress) -> Flow,
    ) -> Result<AgainstPlan, Unexplained> {
        let spec = &imported.spec;
        let shown: Explanation = explain_alone(spec, &spec.schedule, Effort::default(), observer)?;
        let each = match &spec.work {
            Work::Model(work) => work.layout.devices_per_rank().max(1),
            Work::Typed(_) => 1,
        };
        let mut peaks: Vec<(usize, Bytes, Bytes)> = Vec::new();
        // Devices of one pipeline rank share a row.
        for (rank, peak) in &run.peaks {
            let rank = (*rank / each) as usize;
            let Some(planned) = shown.ranks.get(rank).map(|planned| peak.planned(planned)) else { continue };
            match peaks.iter_mut().find(|(known, ..)| *known == rank) {
                Some((_, known, _)) => *known = peak.bytes.max(*known),
                None => peaks.push((rank, peak.bytes, planned)),
            }
        }
        Ok(AgainstPlan {
            schedule: shown.answer.name.clone(),
            step_ns: run.typical_step_ns(),
            planned_step_ns: shown.step_ns,
            steps: run.steps_ns.len(),
            peaks,
            of_first_step: run.peaks.values().any(|peak| peak.of_first_step),
            fits: shown.ranks.iter().all(RankMemory::fits),
        })
    }

    /// For programs: with the spec and its notes, `pipeplan import --json`.
    pub fn to_value(&self, imported: &Imported) -> Value {
        let peaks = self
            .peaks
            .iter()
            .map(|(rank, peak, planned)| json!({ "rank": rank, "peak_bytes": peak, "planned_bytes": planned }));
        let measured = json!({
            "schedule": self.schedule, "reported_steps": self.steps, "step_ns": self.step_ns,
            "planned_step_ns": self.planned_step_ns, "peaks": peaks.collect::<Vec<_>>(),
        });
        let arguments = arguments_value(&imported.arguments, &[]);
        json!({ "spec": imported.value, "notes": imported.notes, "arguments": arguments, "measured": measured })
    }
}

/// For programs: what is wrong with a run that no spec can express, and what was done with each of its arguments.
pub fn refused_run(run: &TrainingRun, faults: &Faults) -> Value {
    let Faults(faults) = faults;
    let named: Vec<Fault> = faults.iter().filter(|fault| run.has(&fault.field)).cloned().collect();
    let of_fault = |fault: &Fault| json!({ "field": fault.field, "found": fault.found, "accepted": fault.accepted });
    let rows: Vec<Value> = faults.iter().map(of_fault).collect();
    json!({ "faults": rows, "arguments": arguments_value(&run.sorted_arguments(), &named) })
}

/// The names of arguments, each in one list: those that `faults` name are refused.
fn arguments_value(arguments: &Arguments, faults: &[Fault]) -> Value {
    let mut refused: Vec<&str> = faults.iter().map(|fault| fault.field.trim_start_matches('-')).collect();
    refused.sort_unstable();
    refused.dedup();
    let others = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| !refused.contains(&name.as_str())).cloned().collect()
    };
    json!({
        "used": others(&arguments.used), "harmless": others(&arguments.harmless),
        "not_modelled": arguments.not_modelled, "not_known": others(&arguments.not_known), "refused": refused,
    })
}
