//! Training that goes on with fewer data-parallel replicas (`training.elastic`): the same spec, with the same global batch.

use pipeplan::runner::{Precision, Workload};
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::{Documents, ModelWork, Spec, Work};

use super::super::failure::Failure;
use super::super::processes;
use super::super::search::{self, Effort};
use super::super::{format, output};

/// The model of an elastic spec.
fn elastic(spec: &Spec) -> Option<&ModelWork> {
    match &spec.work {
        Work::Model(work) if work.failures.elastic => Some(work),
        _ => None,
    }
}

/// Whether `plan` may go on with fewer replicas.
pub fn is_elastic(plan: &Plan) -> bool {
    elastic(&plan.spec).is_some_and(|work| work.layout.data > 1)
}

/// `spec` on `data` replicas, each with more microbatches.
fn on_replicas(spec: &Spec, data: u32) -> Result<Spec, String> {
    let mut spec = spec.clone();
    let Work::Model(work) = &mut spec.work else { return Err("typed costs have no replicas".to_string()) };
    let whole = u64::from(work.microbatches) * u64::from(work.layout.data.max(1));
    if !whole.is_multiple_of(data.into()) {
        let replicas = format::count(data as usize, "replica");
        return Err(format!("the {whole} microbatches of a step cannot be dealt to {replicas} evenly"));
    }
    work.microbatches = u32::try_from(whole / u64::from(data)).map_err(|error| error.to_string())?;
    work.batch.documents = of_step(std::mem::take(&mut work.batch.documents), work.layout.data.max(1));
    work.layout.data = data;
    let profile = work.profile.take();
    // What else depends on the number of replicas, such as groups of experts, is refused as in any spec.
    let mut read = Spec::from_value(&spec.to_value()).map_err(|faults| faults.to_string())?;
    if let Work::Model(work) = &mut read.work {
        work.profile = profile;
    }
    Ok(read)
}

/// What microbatches and replicas of a plan have been given, as the documents of the step: other replicas pack them anew.
fn of_step(documents: Documents, replicas: u32) -> Documents {
    match documents {
        Documents::OfMicrobatches(lists) => Documents::OfStep(lists.concat().repeat(replicas as usize)),
        Documents::OfReplicas(replicas) => Documents::OfStep(replicas.concat().concat()),
        other => other,
    }
}

/// The plan of `plan`'s spec on the most replicas below its own that its batch and its layout allow. Those that they do not allow
/// are told.
fn fewer(plan: &Plan) -> Option<Plan> {
    let work = elastic(&plan.spec)?;
    for data in (1..work.layout.data).rev() {
        let found = on_replicas(&plan.spec, data).and_then(|spec| {
            let schedule = spec.schedule.clone();
            search::plan(&spec, &schedule, Effort::default()).map_err(|failure| failure.to_string())
        });
        match found {
            Ok(plan) => return Some(plan),
            Err(why) => output::tell(&format!("{} not gone on with: {why}", format::count(data as usize, "replica"))),
        }
    }
    None
}

/// After a failure for good: what the run of `plan` goes on as.
pub fn smaller(plan: &mut Plan, precision: Option<Precision>) -> Option<Workload> {
    let next = fewer(plan)?;
    match Workload::of_plan(&next, precision) {
        Ok(workload) => {
            *plan = next;
            Some(workload)
        }
        Err(refusal) => {
            output::tell(&format!("the run does not go on with fewer replicas: {refusal}"));
            None
        }
    }
}

/// The numbers of replicas below its own that `plan` may go on with, the most first; none where it is not elastic.
pub fn smaller_numbers(plan: &Plan) -> Vec<u32> {
    let Some(work) = elastic(&plan.spec) else { return Vec::new() };
    (1..work.layout.data).rev().filter(|data| on_replicas(&plan.spec, *data).is_ok()).collect()
}

/// `plan`, or where a launcher has started fewer ranks than it has and its spec is elastic, one for those that there are.
pub fn for_world(plan: Plan) -> Result<Plan, Failure> {
    let (Some(work), Some(place)) = (elastic(&plan.spec), processes::place()?) else { return Ok(plan) };
    let form = &work.layout.form;
    let of_replica = plan.problem.ranks() * (form.tensor.max(1) * form.context.max(1)) as usize;
    let data = place.world / of_replica;
    // Another number of ranks than that of whole replicas is refused with all others.
    if place.world % of_replica != 0 || data == 0 || data >= work.layout.data as usize {
        return Ok(plan);
    }
    let (fewer, whole) = (format::count(data, "replica"), work.layout.data);
    let spec = on_replicas(&plan.spec, data as u32)
        .map_err(|why| Failure::input(format!("training.elastic: {} ranks are {fewer}: {why}", place.world)))?;
    if !processes::is_silent() {
        output::tell(&format!("note: {} ranks are {fewer} of {whole}; the global batch stays", place.world));
    }
    search::plan(&spec, &spec.schedule.clone(), Effort::default())
}
