//! Names of schedules and placements as a person reads them.

use pipeplan_core::plan::planner;
use pipeplan_core::problem::Problem;
use pipeplan_core::problem::placement::Placement;
use pipeplan_core::schedule;

use super::sentence;

/// Where a problem's stages are, in words.
pub fn placement(problem: &Problem) -> String {
    let placement = problem.placement().name().unwrap_or("stages placed by a list");
    match problem.chunks() {
        1 => placement.to_owned(),
        chunks => format!("{placement}, {chunks} chunks a rank"),
    }
}

/// What that placement means, in a sentence.
pub fn placement_meaning(problem: &Problem) -> String {
    let meaning = match problem.placement() {
        Placement::Linear => "one stage a rank, in the order of the ranks",
        Placement::Looped => "stages go round the ranks, from the last back to the first",
        Placement::V => "stages go down the ranks and back up, so that the first rank has the last stage too",
        Placement::Wave => "stages go down the ranks and back up, again and again",
        Placement::List(_) => "the problem says which rank has which stage",
        Placement::TwoWay => {
            "each rank has a stage of two copies of the model: half of the microbatches go down the ranks, half up"
        }
    };
    sentence(meaning)
}

/// The name a person reads.
pub fn schedule_title(name: &str) -> String {
    match (schedule::find(name), name.split_once(':')) {
        (Some(published), Some((_, group))) => format!("{}, groups of {group}", published.title),
        (Some(published), None) => published.title.to_owned(),
        (None, _) if name == planner::BEST => "Best".to_owned(),
        (None, _) => name.to_owned(),
    }
}
