//! The planner without the page, for scripts and tests.

use pipeplan_core::plan::planner;
use pipeplan_core::spec::Spec;

/// The plan file of a spec with the schedule that it names, byte for byte what the command line writes.
///
/// # Errors
/// What is wrong with the spec, or why there is no plan, in words.
pub fn plan_file(spec: &str, schedule: Option<&str>) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    let name = schedule.unwrap_or(&spec.schedule);
    let plan = planner::plan(&spec, name).map_err(|error| error.to_string())?;
    Ok(plan.to_json())
}

/// `pipeplan compare --json` of a spec.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn comparison(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    serde_json::to_string(&planner::compare(&spec)).map_err(|error| error.to_string())
}

/// The link of a spec: what stands after `#` in the page's address.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn link(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    Ok(pipeplan_core::spec::link::write(&spec))
}
