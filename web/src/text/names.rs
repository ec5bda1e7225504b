//! Names of schedules and placements as a person reads them.

use pipeplan_core::problem::Problem;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::schedule;

use super::sentence;

/// The name of a custom schedule in a plan file. Files keep it; a person reads "Custom schedule".
pub const CUSTOM_SCHEDULE: &str = "Own order";

/// The name of the placement of a problem.
pub fn placement(problem: &Problem) -> String {
    let placement = match problem.placement() {
        Placement::Bidirectional => "bidirectional",
        other => other.name().unwrap_or("custom placement"),
    };
    match problem.chunks() {
        1 => placement.to_owned(),
        chunks => format!("{placement}, {chunks} stages per rank"),
    }
}

/// The meaning of that placement, in a sentence.
pub fn placement_meaning(problem: &Problem) -> String {
    let meaning = match problem.placement() {
        Placement::Linear => "one stage per rank, in the order of the ranks",
        Placement::Looped => "stages go around the ranks several times, from the last back to the first",
        Placement::V => "stages go down the ranks and back up; the first rank also has the last stage",
        Placement::Wave => "stages go down the ranks and back up several times",
        Placement::List(_) => "the spec lists the rank of each stage",
        Placement::Bidirectional => {
            "each rank has one stage of each of two copies of the model; half of the microbatches go down the ranks, half go up"
        }
    };
    sentence(meaning)
}

/// The display name.
pub fn schedule_title(name: &str) -> String {
    match (schedule::find(name), name.split_once(':')) {
        (Some(published), Some((_, group))) => format!("{}, groups of {group}", published.title),
        (Some(published), None) => published.title.to_owned(),
        (None, _) if name == schedule::BEST => "Best".to_owned(),
        (None, _) if name == CUSTOM_SCHEDULE => "Custom schedule".to_owned(),
        (None, _) => name.to_owned(),
    }
}
