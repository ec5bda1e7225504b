//! `pipeplan passes`

use pipeplan_core::estimate::derive::PartitionQuality;
use pipeplan_core::estimate::pass_reports::PassReports;
use pipeplan_core::graph::passes::PassReport;
use pipeplan_core::schedule;
use pipeplan_core::spec::Work;
use serde_json::json;

use super::failure::Failure;
use super::search::Effort;
use super::{format, input, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan passes examples/llama-2-70b.toml
  pipeplan passes spec.toml --schedule zb-h1 --stage 0
  pipeplan passes spec.toml --json | jq '.stages[0].passes[0].skipped'";

/// Show what each compiler pass changed in the operators, what it skipped, and why.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec of a model, or a link; - for standard input
    spec: String,
    /// A published schedule, which determines the layers per stage, or `best`, which is searched first; default: that
    /// of the spec, or 1f1b if that is `best`
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Only this stage
    #[arg(long, value_name = "STAGE")]
    stage: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    effort: Effort,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let spec = input::spec(&args.spec)?;
    let Work::Model(work) = &spec.work else {
        return Err(Failure::input("passes rewrite the operators of a model, but this spec has typed costs"));
    };
    let said = Some(spec.schedule.clone()).filter(|name| name != schedule::BEST);
    let name = args.schedule.or(said).unwrap_or_else(|| "1f1b".to_owned());
    let case = search::case(&spec, &name, args.effort)?;
    let derived = case.derived.ok_or_else(|| Failure::input("there is no model"))?;
    let count = derived.stages.len();
    if let Some(stage) = args.stage.filter(|stage| *stage >= count) {
        let text = format!("there is no stage {stage}; give a stage from 0 to {}", count.saturating_sub(1));
        return Err(Failure::input(text));
    }
    let wanted = |stage: usize| args.stage.is_none_or(|only| only == stage);
    let reports = PassReports::of(work, &derived, case.fitted.as_ref(), wanted);
    if args.json {
        let stage = |(stage, _, passes): &(usize, u32, Vec<PassReport>)| json!({ "stage": stage, "passes": passes });
        let dealt =
            |dealt: PartitionQuality| json!({ "slowest_stage_ns": dealt.slowest_ns, "bound_ns": dealt.bound_ns });
        return output::print_json(&json!({
            "schedule": name,
            "fit": reports.fit,
            "deal": reports.dealt.map(dealt),
            "stages": reports.stages.iter().map(stage).collect::<Vec<_>>(),
        }));
    }
    output::print(&format::spelled(&reports.text()))
}
