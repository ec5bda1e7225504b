//! `pipeplan passes`

use pipeplan_core::derive::graph_and_accounts;
use pipeplan_core::graph::passes::Account;
use pipeplan_core::partition::StageLayout;
use pipeplan_core::planner;
use pipeplan_core::schedule;
use pipeplan_core::spec::Work;
use serde_json::json;

use super::fail::Failure;
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan passes examples/llama-2-70b.toml
  pipeplan passes spec.toml --schedule zb-h1 --stage 0
  pipeplan passes spec.toml --json | jq '.stages[0].passes[0].skipped'";

/// Show what each pass over the operators did, what it left, and why.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec of a model, or a link; - for standard input
    spec: String,
    /// A published schedule, which says how layers become stages
    #[arg(long, value_name = "NAME", default_value = "1f1b")]
    schedule: String,
    /// Only this stage
    #[arg(long, value_name = "STAGE")]
    stage: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let spec = input::spec(&args.spec)?;
    let Work::Model(work) = &spec.work else {
        return Err(Failure::input("passes rewrite the operators of a model; these costs are typed"));
    };
    let Some(published) = schedule::find(&args.schedule) else {
        return Err(Failure::input(planner::PlanError::UnknownSchedule { name: args.schedule }));
    };
    let case = planner::case(&spec, &published).map_err(|absent| {
        Failure::input(planner::PlanError::Absent { schedule: args.schedule.clone(), reason: absent.reason })
    })?;
    let work = case.fitted.as_ref().map_or_else(|| work.clone(), |fitted| fitted.applied_to(work));
    let stages = case.derived.map(|derived| derived.stages).unwrap_or_default();
    if let Some(stage) = args.stage.filter(|stage| *stage >= stages.len()) {
        let text = format!("there is no stage {stage}; stages are 0 to {}", stages.len().saturating_sub(1));
        return Err(Failure::input(text));
    }
    let chosen = |stage: &usize| args.stage.is_none_or(|only| only == *stage);
    let accounts: Vec<(usize, Vec<Account>)> =
        (0..stages.len()).filter(chosen).map(|stage| (stage, graph_and_accounts(&work, &stages[stage]).1)).collect();
    let fit = case.fitted.map(|fitted| fitted.account);
    if args.json {
        let stage = |(stage, passes): &(usize, Vec<Account>)| json!({ "stage": stage, "passes": passes });
        return output::print_json(&json!({
            "schedule": args.schedule,
            "fit": fit,
            "stages": accounts.iter().map(stage).collect::<Vec<_>>(),
        }));
    }
    let mut text = fit.map_or_else(String::new, |fit| format!("{fit}\n"));
    // Stages with the same account are shown once, with layers counted from the stage's first.
    for alike in accounts.chunk_by(|a, b| within(a, &stages) == within(b, &stages)) {
        let numbers: Vec<String> = alike.iter().map(|(stage, _)| stage.to_string()).collect();
        let word = if alike.len() == 1 { "stage" } else { "stages" };
        text.push_str(&format!("{word} {}\n", numbers.join(", ")));
        alike.first().iter().for_each(|first| text.push_str(&within(first, &stages)));
    }
    output::print(&text)
}

/// The accounts of a stage, with layers counted from its first.
fn within((stage, passes): &(usize, Vec<Account>), stages: &[StageLayout]) -> String {
    let first = stages[*stage].layers.start;
    let lines = passes.iter().map(|pass| {
        let mut pass = pass.clone();
        for entry in pass.done.iter_mut().chain(&mut pass.skipped) {
            entry.layer = entry.layer.map(|layer| layer.saturating_sub(first));
        }
        pass.to_string()
    });
    lines.collect()
}
