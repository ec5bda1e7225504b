//! `pipeplan plan`

use pipeplan_core::base::canonical;
use pipeplan_core::formats::frameworks::Shown;
use pipeplan_core::plan::Plan;
use pipeplan_core::plan::planner;
use pipeplan_core::schedule::BEST;

use super::custom_schedule::Order;
use super::documents::Lengths;
use super::failure::Failure;
use super::search::{Effort, Jitter, Measured, Messages};
use super::{exact_search, input, output, plan_summary, search};

const EXAMPLES: &str = "\
Examples:
  pipeplan plan examples/tiny-llama.toml                     show the plan
  pipeplan plan spec.toml --schedule best -o plan.json       write it
  pipeplan plan problem.json --schedule zb-v --json | jq .prediction
  pipeplan plan problem.json --schedule best --prove 10      improve it exactly, or prove it the best
  pipeplan plan spec.toml --lowering overlapped:2 -o plan.json    transfers overlap compute, two received ahead
  pipeplan plan problem.json --order mine.txt -o plan.json   plan a custom schedule
  pipeplan plan problem.json --schedule 1f1b --reorder       microbatches that differ: 1F1B, in their best order
  pipeplan plan spec.toml --documents lengths.txt            pack the documents of this step";

/// Plan a spec: choose or build its schedule, check it, and write the plan.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec, a bare problem or a link; - for standard input
    spec: String,
    /// A published schedule or `best`; default: that of the spec
    #[arg(long, value_name = "NAME", conflicts_with = "order")]
    schedule: Option<String>,
    /// Write the plan file here; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// Print the plan file, even with -o
    #[arg(long)]
    json: bool,
    /// Where microbatches differ: search the order in which they enter, with the op lists of the schedule. `best` does
    /// so always
    #[arg(long)]
    reorder: bool,
    #[command(flatten)]
    documents: Lengths,
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    effort: Effort,
    #[command(flatten)]
    measured: Measured,
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    jitter: Jitter,
    /// Run an exact search for this many seconds: it improves the plan if the schedule is `best`, and proves a bound.
    /// For plans of a few hundred ops; Ctrl-C ends it early
    #[arg(long, value_name = "SECONDS")]
    prove: Option<f64>,
    /// With --prove: write the proof here, as JSON (`pipeplan schema proof`); - for standard output
    #[arg(long, value_name = "FILE", requires = "prove")]
    proof: Option<String>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let prints_plan = args.json || args.output.as_deref() == Some("-");
    output::expect_one_document([("--proof -", args.proof.as_deref() == Some("-")), ("the plan", prints_plan)])?;
    if args.order.is_given() && !args.effort.is_usual() && !args.reorder {
        return Err(Failure::input("--effort applies to the search for `best`; with --order there is no search")
            .with_help("Leave one of the two out."));
    }
    for path in args.output.iter().chain(&args.proof) {
        output::expect_room_at(path)?;
    }
    let spec = args.documents.apply(input::spec(&args.spec)?)?;
    let spec = args.jitter.apply(args.messages.apply(args.measured.apply(spec)?));
    if let Some(seconds) = args.prove {
        exact_search::expect_provable(&spec, seconds)?;
    }
    let schedule = args.schedule.as_ref().unwrap_or(&spec.schedule);
    let own = args.order.plan(&spec);
    let is_best = own.is_none() && schedule.as_str() == BEST;
    // What is proved is of planned times, which are not what the best is chosen by where ops differ.
    let may_replace = is_best && spec.jitter_permille == 0;
    let mut plan = own.unwrap_or_else(|| search::plan(&spec, schedule, args.effort))?;
    // Where the planner has packed documents, it has chosen their order.
    if args.reorder && !is_best && plan.packing.is_none() {
        plan = search::reorder(&plan, args.effort)?;
    }
    let mut proved = None;
    if let Some(seconds) = args.prove {
        let mut found = exact_search::prove(&plan, seconds)?;
        if let (true, Some(better)) = (may_replace, found.better.take()) {
            plan = better;
        }
        if prints_plan {
            output::tell(exact_search::sentence(&found, &plan).trim_end());
        }
        proved = Some(found);
    }
    Shown::of(&plan).told().iter().for_each(|refusal| output::tell(refusal));
    if is_best && !prints_plan {
        // What the limit costs is worth more than what a longer search may find.
        let is_told = search::tell_price_of_limit(&spec, plan.step().map(|step| step.step_ns));
        if !is_told && may_replace && proved.is_none() && args.effort.is_usual() {
            hint(&plan);
        }
    }
    if let (Some(path), Some(proved)) = (&args.proof, &proved) {
        output::write(path, canonical::pretty(&proved.to_value(&plan)).as_bytes())?;
    }
    match args.output.as_deref() {
        Some(path) if args.json && path != "-" => {
            let file = output::plan_file(&plan)?;
            output::write(path, file.as_bytes())?;
            output::print_bytes(file.as_bytes())
        }
        Some("-") => output::print_bytes(output::plan_file(&plan)?.as_bytes()),
        None if args.json => output::print_bytes(output::plan_file(&plan)?.as_bytes()),
        // Nothing but the proof.
        None if args.proof.as_deref() == Some("-") => Ok(()),
        Some(path) => {
            output::write(path, output::plan_file(&plan)?.as_bytes())?;
            let proof = proved.as_ref().map_or_else(String::new, |proved| exact_search::sentence(proved, &plan));
            let summary = plan_summary::summary(&plan, proved.as_ref().map(|proved| proved.lower_ns));
            output::print(&format!("{summary}{proof}plan          {path}\n"))
        }
        None => super::show::print_plan(&plan, proved.as_ref()),
    }
}

/// Where the best is further from its bound than this, a longer search has often found better.
const FAR: f64 = 0.05;
/// Exact search has often succeeded with up to this number of ops.
const MOST_EXACT: usize = 600;

/// Says how to find what the usual search may have missed.
fn hint(plan: &Plan) {
    let prediction = &plan.prediction;
    let gap = planner::gap(prediction.cost_ns(plan.problem.objective()), prediction.bound_ns);
    if gap.is_none_or(|gap| gap < FAR) {
        return;
    }
    let ops = plan.schedule.rows.iter().map(Vec::len).sum::<usize>();
    let exact =
        if ops <= MOST_EXACT && !plan.problem.offloads() { ", and `--prove 60` runs an exact search" } else { "" };
    output::tell(&format!("a better schedule may exist: `--effort 20000000` searches ten times as long{exact}"));
}
