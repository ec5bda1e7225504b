//! `pipeplan link`

use serde_json::json;

use super::failure::Failure;
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan link spec.toml
  pipeplan link spec.toml --base http://127.0.0.1:8080/
  pipeplan link \"$(pipeplan link spec.toml)\" --json    what a link says, with every default";

/// Write a spec as a link for the planner's page, or read a link back.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec, a bare problem or a link; - for standard input
    spec: String,
    /// The address of the page that the link opens
    #[arg(long, value_name = "URL", default_value = "")]
    base: String,
    /// Print JSON: the link and the spec with every default
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let spec = input::spec(&args.spec)?;
    let base = args.base.split('#').next().unwrap_or_default();
    let link = format!("{base}{}", pipeplan_core::spec::link::write(&spec));
    if args.json {
        return output::print_json(&json!({ "link": link, "spec": spec.to_value() }));
    }
    output::print(&format!("{link}\n"))
}
