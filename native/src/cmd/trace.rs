//! `pipeplan trace`

use flate2::read::MultiGzDecoder;
use pipeplan_core::formats::torch_profile::{self, Recording};
use pipeplan_core::problem::Problem;
use pipeplan_core::trace::{MAX_FILE_BYTES, Trace};

use super::failure::Failure;
use super::{format, input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format torch-csv -o order.csv      for _PipelineScheduleRuntime._load_csv
  pipeplan trace plan.json rank0.json rank1.json -o trace.json   files of torch.profiler, one per rank
  pipeplan trace plan.json log/*.pt.trace.json.gz -o trace.json
  pipeplan calibrate plan.json trace.json                        compare it with the plan
  pipeplan serve --plan plan.json --trace trace.json             both on one time axis";

/// Make a trace from files of torch.profiler, recorded while torch.distributed.pipelining ran the plan's order.
///
/// The order must run in `_PipelineScheduleRuntime`: torch's schedules with one stage per rank do not record their
/// ops, and pairs (DualPipeV's `OVERLAP_F_B`) are recorded as one op. On GPUs, record kernels too
/// (`ProfilerActivity.CUDA`). Across hosts, the trace is as accurate as their clocks agree.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// The plan whose order ran
    plan: String,
    /// The files of all ranks, as `export_chrome_trace` or `tensorboard_trace_handler` writes them, also with gzip; - for
    /// standard input
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<String>,
    /// Write the trace here; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: String,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let inputs = args.profiles.iter().chain([&args.plan]).filter(|name| *name == "-").count();
    if inputs > 1 {
        return Err(Failure::input("only one of the plan and the profiles can come from standard input"));
    }
    if args.output != "-" {
        output::expect_room_at(&args.output)?;
    }
    let plan = input::plan(&args.plan)?;
    let files = args.profiles.iter().map(|name| recording(name)).collect::<Result<Vec<_>, _>>()?;
    let trace = torch_profile::trace(&plan.problem, &plan.schedule, &plan.digest(), &files).map_err(|faults| {
        Failure::input(faults)
            .with_help("give the plan whose order ran, and one file per rank, all of the same complete steps")
    })?;
    let text = trace.to_json();
    if args.output == "-" {
        return output::print_bytes(text.as_bytes());
    }
    output::write(&args.output, text.as_bytes())?;
    output::print(&format!("{}trace         {}\n", report(&plan.problem, &trace), args.output))
}

/// Reads the file of one rank.
fn recording(name: &str) -> Result<(String, Recording), Failure> {
    let text = String::from_utf8(unpacked(name)?).map_err(|error| {
        Failure::input(format!("{name} is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
    })?;
    let recording = torch_profile::read(&text).map_err(|fault| Failure::input(format!("{name}: {fault}")))?;
    Ok((name.to_owned(), recording))
}

fn unpacked(name: &str) -> Result<Vec<u8>, Failure> {
    let limit = MAX_FILE_BYTES as u64;
    let bytes = match name {
        "-" => input::bounded("standard input", limit, Ok(std::io::stdin().lock()))?,
        path => input::file(path, limit)?,
    };
    match bytes.starts_with(&[0x1f, 0x8b]) {
        true => input::bounded(name, limit, Ok(MultiGzDecoder::new(bytes.as_slice()))),
        false => Ok(bytes),
    }
}

fn report(problem: &Problem, trace: &Trace) -> String {
    let rows = trace.steps.first().map_or(0, |step| step.rows.len());
    let mut text = format!(
        "steps         {} of {} on {} over {}\n",
        trace.steps.len(),
        format::count(rows, "rank"),
        trace.backend,
        trace.transport
    );
    let makespans: Vec<u64> = trace.steps.iter().map(|step| step.timeline().makespan_ns()).collect();
    let (least, most) = (makespans.iter().min(), makespans.iter().max());
    if let (Some(least), Some(most)) = (least, most) {
        text.push_str(&format!("makespan      {} to {}\n", format::duration(*least), format::duration(*most)));
    }
    if let Some(most) = trace.peak_bytes.iter().max() {
        text.push_str(&format!("peak memory   {} on the fullest rank, by torch's allocator\n", format::bytes(*most)));
    }
    if let Some((op, early_ns)) = torch_profile::skew(problem, trace) {
        text.push_str(&format!(
            "clocks        {op} starts {} before another rank has made its input: the clocks differ, and waits are wrong by as much\n",
            format::duration(early_ns)
        ));
    }
    text
}
