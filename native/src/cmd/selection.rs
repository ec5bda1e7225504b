//! Parts of a trace on the command line: `--steps`, `--ranks`, `--jobs`.

use std::ops::Range;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pipeplan_core::trace::Trace;
use pipeplan_core::trace::select::{Job, Selection};

use super::failure::Failure;

/// The part of a trace to use.
#[derive(clap::Args, Clone, Default)]
pub struct Parts {
    /// For a trace: only these training steps: `5..8` are 5, 6 and 7; also `5`, `5..` and `..8`
    #[arg(long, value_name = "FROM..TO", value_parser = range)]
    steps: Option<Range<u64>>,
    /// For a trace: only these ranks, such as `0,2..4`; copies of the pipeline are counted one after the other
    #[arg(long, value_name = "RANKS", value_delimiter = ',', value_parser = ranks)]
    ranks: Option<Vec<Range<usize>>>,
    /// For a trace: only these jobs
    #[arg(long, value_name = "JOBS", value_delimiter = ',', value_parser = jobs())]
    jobs: Option<Vec<Job>>,
}

impl Parts {
    /// Whether any was asked for.
    pub fn is_given(&self) -> bool {
        self.steps.is_some() || self.ranks.is_some() || self.jobs.is_some()
    }

    /// These parts of `trace`.
    pub fn of(&self, trace: Trace) -> Result<Trace, Failure> {
        let selection = Selection { steps: self.steps.clone(), ranks: self.ranks.clone(), jobs: self.jobs.clone() };
        selection.of(trace).map_err(|fault| Failure::input(format!("--{fault}")))
    }
}

fn jobs() -> impl TypedValueParser<Value = Job> {
    let named = Job::NAMED.map(|(name, _)| PossibleValue::new(name));
    PossibleValuesParser::new(named).try_map(|name| {
        Job::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, job)| job).ok_or("no such job")
    })
}

/// `5..8`, `5`, `5..` or `..8`.
pub fn range(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str, default: u64| match text {
        "" => Some(default),
        digits => digits.parse().ok(),
    };
    let range = match text.split_once("..") {
        Some((from, to)) => number(from, 0).zip(number(to, u64::MAX)).map(|(from, to)| from..to),
        None => text.parse::<u64>().ok().map(|step| step..step.saturating_add(1)),
    };
    let what = "give steps such as `5..8` (5, 6 and 7), `5`, `5..` or `..8`";
    range.filter(|range| range.start < range.end && text != "..").ok_or_else(|| what.to_owned())
}

fn ranks(text: &str) -> Result<Range<usize>, String> {
    let range = range(text).ok().filter(|range| range.end < u64::from(u32::MAX));
    let range = range.ok_or_else(|| "give ranks such as `3` or `0..4` (0 to 3), separated by commas".to_owned())?;
    Ok(range.start as usize..range.end as usize)
}

/// Steps of a run.
pub fn steps_of_a_run(text: &str) -> Result<Range<u32>, String> {
    let range = range(text)?;
    let number = |step: u64| u32::try_from(step).unwrap_or(u32::MAX);
    Ok(number(range.start)..number(range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_steps_are_read() {
        assert_eq!((range("5..8"), range("5"), range("..8")), (Ok(5..8), Ok(5..6), Ok(0..8)));
        assert_eq!(range("5.."), Ok(5..u64::MAX));
        for wrong in ["", "..", "8..5", "5..5", "a", "-1"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
