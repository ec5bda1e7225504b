//! `pipeplan check`

use pipeplan_core::plan::TRANSPORTS;
use pipeplan_core::program::Transport;
use pipeplan_core::program::lower::Lowering;
use serde_json::json;

use super::custom_schedule::Order;
use super::failure::Failure;
use super::{input, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan check plan.json
  pipeplan check plan.json --json
  pipeplan check problem.json --order mine.txt      check a custom schedule, and list every fault
  pipeplan check plan.json --lowering in-pieces --transport rendezvous    show which ranks wait for each other";

/// Check a plan: its digest, every op and transfer, memory, the prediction, and which transports complete it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    /// Check this transport alone, and fail if it cannot complete the plan: rendezvous, buffered, buffered:4,
    /// grouped, pair-ordered or streams
    #[arg(long, value_name = "PROMISE", value_parser = search::transport)]
    transport: Option<Transport>,
    /// First lower the plan's order to transfers again: in-pieces, receive-first, grouped, overlapped or overlapped:2
    #[arg(long, value_name = "HOW", value_parser = search::lowering)]
    lowering: Option<Lowering>,
    #[command(flatten)]
    order: Order,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let source = input::read(&args.plan)?;
    let plan = match args.order.plan_of(&source) {
        Err(failure) if args.json => {
            output::print_json(&json!({ "valid": false, "error": failure.message() }))?;
            return Err(failure);
        }
        plan => plan?,
    };
    let asked = args.transport.map_or_else(|| TRANSPORTS.to_vec(), |transport| vec![transport]);
    let checked = plan.checked(args.lowering, &asked).map_err(Failure::input)?;
    if args.json {
        output::print_json(&checked.to_value())?;
    } else {
        let mut text = format!("valid: {} ops on {} ranks\n", plan.schedule.op_count(), plan.problem.ranks());
        for (transport, result) in &checked.by_transport {
            // Padded as text: a transport's own form takes no width.
            let name = transport.to_string();
            match result.as_ref().map_err(|violations| violations.first()) {
                Err(Some(violation)) => text.push_str(&format!("{name:<12} cannot complete it: {violation}\n")),
                _ => text.push_str(&format!("{name:<12} completes it\n")),
            }
        }
        for said in &checked.on_trust {
            text.push_str(&format!("unchecked    {said}\n"));
        }
        output::print(&text)?;
    }
    match args.transport.filter(|_| checked.stuck().next().is_some()) {
        None => Ok(()),
        Some(transport) => Err(Failure::input(format!("{transport} transfers cannot complete it"))),
    }
}
