//! `pipeplan layers`

use pipeplan_core::base::json::format_of;
use pipeplan_core::model::ModelConfig;
use pipeplan_core::plan::{StageHolder, holders, written_layers};
use pipeplan_core::spec::Work;
use serde_json::json;

use super::failure::Failure;
use super::search::{self, Effort};
use super::{format, input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan layers plan.json
  pipeplan layers examples/llama-2-70b.toml --schedule zb-v
  pipeplan layers plan.json --json | jq '.stages[] | select(.ranks[] == 0) | .layers'";

/// Show which layers of the model each stage and rank holds, by the model's own numbers.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, a spec of a model, or a link; - for standard input
    plan: String,
    /// Of a spec: a published schedule, or `best`, which is searched first; default: that of the spec
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    effort: Effort,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    let typed = || Failure::input("layers are those of a model, but this has typed costs");
    let (work, name, holders) = if format_of(&source.text) == Some("pipeplan-plan") {
        if args.schedule.is_some() {
            return Err(Failure::input("--schedule applies to a spec, but this plan has its schedule")
                .with_help("Leave it out, or give the plan's spec."));
        }
        let plan = input::plan_from(&source)?;
        let holders = plan.holders().ok_or_else(typed)?;
        (plan.spec.work, plan.schedule_name, holders)
    } else {
        let spec = input::spec_of(&source)?;
        let name = args.schedule.unwrap_or_else(|| spec.schedule.clone());
        if matches!(spec.work, Work::Typed(_)) {
            return Err(typed());
        }
        let case = search::case(&spec, &name, args.effort)?;
        let derived = case.derived.as_ref().ok_or_else(typed)?;
        (spec.work, name, holders(derived, &case.problem))
    };
    let Work::Model(work) = &work else { return Err(typed()) };
    if args.json {
        let stages: Vec<_> = holders.iter().map(|holder| holder.to_value(&work.model)).collect();
        return output::print_json(&json!({ "schedule": name, "stages": stages }));
    }
    let rows: Vec<Vec<String>> = holders.iter().map(|holder| row(holder, &work.model)).collect();
    output::print(&format!(
        "{}\n\n{}",
        format::trained(work),
        format::table(&["stage", "rank", "chunk", "layers", "and"], &rows, 2)
    ))
}

fn row(holder: &StageHolder, model: &ModelConfig) -> Vec<String> {
    let ranks: Vec<String> = holder.ranks.iter().map(usize::to_string).collect();
    vec![
        holder.stage.to_string(),
        ranks.join(", "),
        holder.chunk.to_string(),
        written_layers(&holder.layout.layers),
        holder.others(model).join(", "),
    ]
}
