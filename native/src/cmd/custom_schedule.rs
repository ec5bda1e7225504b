//! A custom schedule: an order of compute from a file instead of a published schedule.

use std::path::Path;

use pipeplan_core::notation::order;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner;
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;

use super::failure::Failure;
use super::input::{self, Source};
use super::{format, output};

/// Where the order of compute comes from.
#[derive(clap::Args, Clone, Default)]
pub struct Order {
    /// Read a custom schedule from here: one line per rank such as `0F0 0F1 0B0 0W0`, torch's compute-only CSV, or a
    /// plan file with edited op lists; - for standard input
    #[arg(long, visible_alias = "custom-schedule", value_name = "FILE")]
    order: Option<String>,
}

impl Order {
    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        self.order.is_some()
    }

    /// The plan of `source` with this order; what `source` says by itself if there is none.
    pub fn plan_of(&self, source: &Source) -> Result<Plan, Failure> {
        match &self.order {
            None => input::plan_from(source),
            Some(_) => self.plan(&input::spec_of(source)?).unwrap_or_else(|| input::plan_from(source)),
        }
    }

    /// The plan of `spec` with this order, if there is one.
    pub fn plan(&self, spec: &Spec) -> Option<Result<Plan, Failure>> {
        self.order.as_ref().map(|from| with_order(spec, from))
    }
}

fn with_order(spec: &Spec, from: &str) -> Result<Plan, Failure> {
    let (name, order) = read(from)?;
    planner::plan_order(spec, &name, order).map_err(|error| Failure::input(format::spelled(&error.to_string())))
}

/// The order in the file `from`, called as that is; `own NAME` where a published schedule has that name.
pub fn read(from: &str) -> Result<(String, order::Order), Failure> {
    let source = input::file_or_standard_input(from)?;
    let order = order::read_whole(&source.text)
        .map_err(|error| Failure::input(format!("{} is not a schedule: {error}", source.name)))?;
    if !order.left_out.is_empty() {
        let (name, left_out) = (&source.name, &order.left_out);
        output::tell(&format!("note: {left_out} of {name} are ignored: pipeplan adds the transfers itself"));
    }
    let stem = Path::new(&source.name).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name: String = stem.chars().take(100).collect();
    let is_taken = name == schedule::BEST || schedule::find(&name).is_some();
    Ok((if is_taken { format!("own {name}") } else { name }, order))
}
