//! `pipeplan check`

use pipeplan_core::check::{Transport, Violation, check_program};
use pipeplan_core::lower::{Lowering, lower_as};
use serde_json::{Value, json};

use super::fail::Failure;
use super::order::Order;
use super::{input, output, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan check plan.json
  pipeplan check plan.json --json
  pipeplan check problem.json --order mine.txt      whether an order of your own is valid, and all that is wrong
  pipeplan check plan.json --lowering in-pieces --transport rendezvous    who would wait for whom";

/// Check a plan: its digest, every op and transfer, memory, the prediction, and which transports complete it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    /// Ask this transport alone, and fail where it cannot complete the plan: rendezvous, buffered, buffered:4, grouped,
    /// pair-ordered or streams
    #[arg(long, value_name = "PROMISE", value_parser = search::transport)]
    transport: Option<Transport>,
    /// Place the transfers of the plan's order anew first: in-pieces, receive-first, grouped, overlapped or overlapped:2
    #[arg(long, value_name = "HOW", value_parser = search::lowering)]
    lowering: Option<Lowering>,
    #[command(flatten)]
    order: Order,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Those that are asked of where none is named.
pub const TRANSPORTS: [Transport; 5] = [
    Transport::Rendezvous,
    Transport::Buffered { slots: 1 },
    Transport::Grouped,
    Transport::PairOrdered,
    Transport::Streams,
];

pub fn run(args: Args) -> Result<(), Failure> {
    let plan = match input::read(&args.plan).and_then(|source| args.order.plan_of(&source)) {
        Err(failure) if args.json => {
            output::print_json(&json!({ "valid": false, "error": failure.message() }))?;
            return Err(failure);
        }
        plan => plan?,
    };
    let program = match args.lowering {
        None => plan.program.clone(),
        Some(lowering) => lower_as(&plan.problem, &plan.schedule, lowering).map_err(Failure::input)?,
    };
    let asked = args.transport.map_or_else(|| TRANSPORTS.to_vec(), |transport| vec![transport]);
    let mut text = format!("valid: {} ops on {} ranks\n", plan.schedule.op_count(), plan.problem.ranks());
    let (mut completed, mut stuck) = (serde_json::Map::new(), serde_json::Map::new());
    for transport in &asked {
        let result = check_program(&plan.problem, &program, *transport);
        let name = transport.to_string();
        completed.insert(name.clone(), json!(result.is_ok()));
        match result {
            Ok(()) => text.push_str(&format!("{name:<12} completes it\n")),
            Err(violations) => {
                if let Some(violation) = violations.first() {
                    text.push_str(&format!("{name:<12} does not: {violation}\n"));
                    stuck.insert(name, hang(violation));
                }
            }
        }
    }
    let hangs = args.transport.filter(|_| !stuck.is_empty());
    if args.json {
        let digest = plan.digest();
        output::print_json(
            &json!({ "valid": true, "digest": digest, "transports": completed, "stuck": Value::Object(stuck) }),
        )?;
    } else {
        output::print(&text)?;
    }
    match hangs {
        None => Ok(()),
        Some(transport) => Err(Failure::input(format!("{transport} transfers cannot complete it"))),
    }
}

/// Where every rank waits, and in which circle.
fn hang(violation: &Violation) -> Value {
    let Violation::Stuck(stuck) = violation else { return json!({ "error": violation.to_string() }) };
    let waits = stuck.waits.iter().map(|wait| {
        json!({ "rank": wait.rank, "step": wait.index, "message": wait.message.to_string(), "waits_for_rank": wait.on })
    });
    json!({ "waits": waits.collect::<Vec<_>>(), "circle": stuck.circle })
}
