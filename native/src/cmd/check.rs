//! `pipeplan check`

use pipeplan_core::check::{Transport, check_program};
use serde_json::json;

use super::fail::Failure;
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan check plan.json
  pipeplan check plan.json --json";

/// Check a plan: its digest, every op and transfer, memory, the prediction, and which transports complete it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const TRANSPORTS: [(&str, Transport); 4] = [
    ("rendezvous", Transport::Rendezvous),
    ("buffered", Transport::Buffered { slots: 1 }),
    ("grouped", Transport::Grouped),
    ("pair-ordered", Transport::PairOrdered),
];

pub fn run(args: Args) -> Result<(), Failure> {
    let plan = match input::plan(&args.plan) {
        Err(failure) if args.json => {
            output::print_json(&json!({ "valid": false, "error": failure.message() }))?;
            return Err(failure);
        }
        plan => plan?,
    };
    let mut text = format!("valid: {} ops on {} ranks\n", plan.schedule.op_count(), plan.problem.ranks());
    let mut completed = serde_json::Map::new();
    for (name, transport) in TRANSPORTS {
        let result = check_program(&plan.problem, &plan.program, transport);
        completed.insert(name.to_owned(), json!(result.is_ok()));
        match result {
            Ok(()) => text.push_str(&format!("{name:<12} completes it\n")),
            Err(violations) => {
                let why = violations.first().map_or_else(String::new, ToString::to_string);
                text.push_str(&format!("{name:<12} does not: {why}\n"));
            }
        }
    }
    if args.json {
        let digest = plan.digest();
        return output::print_json(&json!({ "valid": true, "digest": digest, "transports": completed }));
    }
    output::print(&text)
}
