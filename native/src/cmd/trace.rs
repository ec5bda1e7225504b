//! `pipeplan trace`

use std::io::{BufRead, BufReader, Read as Bytes};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use pipeplan_core::base::fields::Fault;
use pipeplan_core::base::json::format_of;
use pipeplan_core::formats::paddle_log;
use pipeplan_core::formats::profile::{self, Recording};
use pipeplan_core::formats::torch_profile;
use pipeplan_core::plan::Plan;
use pipeplan_core::problem::Schedule;
use pipeplan_core::trace::clocks::Aligned;
use pipeplan_core::trace::select::merged;
use pipeplan_core::trace::{MAX_FILE_BYTES, Trace};

use super::failure::Failure;
use super::input::Source;
use super::selection::Parts;
use super::{format, hang, input, nsight, output, paddle};

const EXAMPLES: &str = "\
Examples:
  pipeplan export plan.json --format torch-csv -o order.csv      for _PipelineScheduleRuntime._load_csv
  pipeplan trace plan.json rank0.json rank1.json -o trace.json   files of torch.profiler, one per rank
  pipeplan trace plan.json log/*.pt.trace.json.gz -o trace.json
  pipeplan trace report.sqlite -o trace.json --write-order order.txt    nsys export --type sqlite
  pipeplan trace dumps/nccl_trace_rank_*                         who waits in which collective
  pipeplan trace log -o trace.json --write-order order.txt       workerlog.N of PaddlePaddle
  pipeplan trace logs --multi-machine --devices 0,1 -o trace.json --events profile
  pipeplan trace host0.json host1.json -o trace.json             traces of pipeplan, merged
  pipeplan trace trace.json --steps 5..8 -o part.json
  pipeplan calibrate plan.json trace.json                        compare it with the plan
  pipeplan serve --plan plan.json --trace trace.json             both on one time axis";

/// Make a trace from what a run left behind: profiles of torch or Nsight Systems, logs of PaddlePaddle, or traces of pipeplan.
///
/// With the plan that ran, its order is checked. Without one, stages and microbatches are read from the files, and
/// --write-order writes the order that ran, for `plan --order`.
///
/// torch.profiler: one file per rank, of torch.distributed.pipelining, Megatron-LM or DeepSpeed. The runtime of torch
/// (`_PipelineScheduleRuntime`) and ScheduleGPipe mark their ops; of Schedule1F1B, Megatron-LM and DeepSpeed, record Python's
/// functions (`with_stack=True`). Stages and microbatches that ranges do not say are found, and told. Pairs (DualPipeV's
/// `OVERLAP_F_B`) are recorded as one op and refused. On GPUs, record kernels too (`ProfilerActivity.CUDA`).
///
/// Nsight Systems: reports exported by `nsys export --type sqlite`, traced with `cuda,nvtx`. Each process is a rank. Ranges have
/// the names above, or `forward_step` and `backward_step`.
///
/// PaddlePaddle: the folder of `workerlog.N`, with the lines `Profiler Info: Job ...` that
/// `pipeline.job_schedule_profiler_start` and `_stop` switch on. Missing files and damaged lines are named, and the rest is
/// shown.
///
/// Traces of pipeplan: of other steps or other ranks of one run.
///
/// Dumps of torch's flight recorder (`TORCH_NCCL_TRACE_BUFFER_SIZE`), which a run that hangs leaves: no trace is made. Instead,
/// `trace` says who waits in which collective, which ranks are not there, what they are in, and where ranks do not agree.
///
/// Where clocks of ranks contradict each other, their offset and drift are estimated from the messages between them, removed,
/// and told.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// The plan that ran, where there is one, then what it left behind: files of torch.profiler (also with gzip), exports of
    /// Nsight Systems, a folder of workerlog.N, or traces of pipeplan; dumps of the flight recorder alone; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Write the trace here; - for standard output. Of dumps of the flight recorder, the report in JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// With workerlog.N: only these devices of each machine; default: all
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    devices: Option<Vec<usize>>,
    /// With workerlog.N: the folder has folders `machine*`, one for each machine
    #[arg(long, visible_alias = "multi_machine")]
    multi_machine: bool,
    /// With workerlog.N: also write pipeline_profile.json and pipeline_profile_perfetto.json into this folder, as
    /// PaddlePaddle's tool does
    #[arg(long, value_name = "FOLDER")]
    events: Option<String>,
    /// Write the order that ran here, for `plan --order`; - for standard output
    #[arg(long, value_name = "FILE")]
    write_order: Option<String>,
    #[command(flatten)]
    parts: Parts,
}

/// A trace, and what a person hears of it.
struct Read {
    trace: Trace,
    clocks: Aligned,
    notes: Vec<String>,
    faults: Vec<Fault>,
}

impl From<(Trace, Aligned)> for Read {
    fn from((trace, clocks): (Trace, Aligned)) -> Read {
        Read { trace, clocks, notes: Vec::new(), faults: Vec::new() }
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    if args.files.iter().filter(|name| *name == "-").count() > 1 {
        return Err(Failure::input("only one of the plan and the profiles can come from standard input"));
    }
    if args.files.iter().any(|name| hang::looks_like_one(Path::new(name))) {
        return say_who_waits(&args);
    }
    let Some(output) = args.output.as_deref() else {
        return Err(
            Failure::input("a trace needs a file to go to").with_help("give --output FILE, or - for standard output")
        );
    };
    output::expect_one_document([
        ("--output -", output == "-"),
        ("--write-order -", args.write_order.as_deref() == Some("-")),
    ])?;
    for path in [Some(output), args.write_order.as_deref()].into_iter().flatten().filter(|path| *path != "-") {
        output::expect_room_at(path)?;
    }
    let folders = args.files.iter().filter(|name| paddle::looks_like_one(Path::new(name))).count();
    let read = if folders > 0 { read_logs(&args)? } else { read_files(&args)? };
    let Read { trace, clocks, notes, faults } = read;
    faults.iter().for_each(|fault| output::tell(&fault.to_string()));
    let trace = args.parts.of(trace)?;
    if let Some(path) = &args.write_order {
        let rows = Schedule::of(trace.order()).text_rows();
        output::write(path, format!("{}\n", rows.join("\n")).as_bytes())?;
    }
    output::write_trace(output, &trace)?;
    if output == "-" || args.write_order.as_deref() == Some("-") {
        return Ok(());
    }
    let mut shown = report(&trace, &clocks);
    notes.iter().for_each(|note| shown.push_str(note));
    if let Some(path) = &args.write_order {
        shown.push_str(&format!("order         {path}\n"));
    }
    if let Some(folder) = &args.events {
        shown.push_str(&format!("events        {folder}/pipeline_profile.json and pipeline_profile_perfetto.json\n"));
    }
    output::print(&format!("{shown}trace         {output}\n"))
}

/// Dumps of the flight recorder have no times of ops to make a trace of: what they say is who waits.
fn say_who_waits(args: &Args) -> Result<(), Failure> {
    if let Some(other) = args.files.iter().find(|name| !hang::looks_like_one(Path::new(name))) {
        let text = format!("{other} is no dump of torch's flight recorder, as other files are");
        return Err(Failure::input(text).with_help("give the dumps alone; a plan is not needed"));
    }
    if args.write_order.is_some() {
        return Err(Failure::input("dumps of the flight recorder say no order: leave --write-order out"));
    }
    let report = hang::read(&args.files)?;
    match args.output.as_deref() {
        Some("-") => output::print_bytes(hang::to_json(&report).as_bytes()),
        Some(path) => {
            output::write(path, hang::to_json(&report).as_bytes())?;
            output::print(&format!("{}\nreport        {path}\n", hang::text(&report)))
        }
        None => output::print(&hang::text(&report)),
    }
}

/// Logs of Paddle, with or without a plan before them.
fn read_logs(args: &Args) -> Result<Read, Failure> {
    let (plan, folder) = match &args.files[..] {
        [folder] => (None, folder),
        [plan, folder] if !paddle::looks_like_one(Path::new(plan)) => (Some(input::plan(plan)?), folder),
        _ => return Err(Failure::input("give one folder of workerlog.N, after the plan if there is one")),
    };
    let logs = paddle::read(Path::new(folder), args.devices.as_deref(), args.multi_machine)?;
    let digest = plan.as_ref().map(Plan::digest);
    let known =
        plan.as_ref().zip(digest.as_ref()).map(|(plan, digest)| (&plan.problem, &plan.schedule, digest.as_str()));
    let logged = paddle_log::trace(&logs.workers, known).map_err(|faults| {
        Failure::input(faults)
            .with_help("give the folder of workerlog.N of a run with pipeline.job_schedule_profiler_start")
    })?;
    if let Some(folder) = &args.events {
        let folder = Path::new(folder);
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::work(format!("{} cannot be written: {error}", folder.display())))?;
        let file = |name: &str| folder.join(name).display().to_string();
        output::write(&file("pipeline_profile.json"), paddle_log::events(&logs.workers).as_bytes())?;
        output::write(
            &file("pipeline_profile_perfetto.json"),
            paddle_log::perfetto_events(&logs.workers).as_bytes(),
        )?;
    }
    let mut notes = Vec::new();
    if let Some(placed) = logged.placed {
        notes.push(format!("stages        {placed}, found from the order of jobs\n"));
    }
    if !logged.left_out.is_empty() {
        let kinds: Vec<String> = logged.left_out.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        notes.push(format!("left out      jobs without a stage: {}\n", kinds.join(", ")));
    }
    let missing: Vec<String> = logs.missing.iter().map(|fault| fault.field.clone()).collect();
    let faults = logged.faults.into_iter().filter(|fault| !missing.contains(&fault.field));
    let faults = logs.missing.into_iter().chain(faults).collect();
    Ok(Read { trace: logged.trace, clocks: logged.clocks, notes, faults })
}

/// Profiles of torch or traces of pipeplan, with or without a plan before them.
fn read_files(args: &Args) -> Result<Read, Failure> {
    for (given, option) in [
        (args.devices.is_some(), "--devices"),
        (args.multi_machine, "--multi-machine"),
        (args.events.is_some(), "--events"),
    ] {
        if given {
            return Err(Failure::input(format!("{option} applies to folders of workerlog.N")));
        }
    }
    let (mut files, mut recordings) = (Vec::new(), Vec::new());
    let mut plan = None;
    for (index, name) in args.files.iter().enumerate() {
        if index == 0 && name != "-" && !Path::new(name).exists() {
            // A link, or no file.
            plan = Some(input::plan(name)?);
            continue;
        }
        if nsight::looks_like_one(Path::new(name)) {
            recordings.extend(nsight::read(name)?);
            continue;
        }
        let text = match of_torch_or_whole(name)? {
            Contents::Torch(recording) => {
                recordings.push((name.clone(), *recording));
                continue;
            }
            Contents::Text(text) => text,
        };
        if text.contains(TIMERS) {
            return Err(of_timers(name));
        }
        if index == 0 && !is_trace(&text) && !torch_profile::looks_like_one(&text) {
            plan = Some(input::plan_from(&Source { name: name.clone(), text })?);
            continue;
        }
        files.push((name.clone(), text));
    }
    if files.is_empty() && recordings.is_empty() {
        return Err(Failure::input("there is nothing of a run beside the plan").with_help(
            "give files of torch.profiler, exports of Nsight Systems, a folder of workerlog.N, or traces of pipeplan after the plan",
        ));
    }
    if recordings.is_empty() && files.iter().all(|(_, text)| is_trace(text)) {
        if plan.is_some() {
            return Err(Failure::input("traces of pipeplan are merged without a plan: leave the plan out"));
        }
        let traces = files.into_iter().map(|(name, text)| {
            let trace = input::trace_of(&Source { name: name.clone(), text })?;
            Ok((name, trace))
        });
        let traces = traces.collect::<Result<Vec<_>, Failure>>()?;
        return merged(traces).map(Read::from).map_err(Failure::input);
    }
    for file in files {
        recordings.push(recording(file)?);
    }
    let help = "give the plan whose order ran, and one file per rank, all of the same complete steps";
    let read = match &plan {
        Some(plan) => profile::aligned(&plan.problem, &plan.schedule, &plan.digest(), &recordings),
        None => profile::found(&recordings)
            .and_then(|(problem, schedule)| profile::aligned(&problem, &schedule, "", &recordings)),
    };
    let read = read.map_err(|faults| Failure::input(faults).with_help(help))?;
    let told = if plan.is_none() { profile::told(&recordings) } else { Vec::new() };
    let notes = told.into_iter().map(|line| format!("found         {line}\n")).collect();
    Ok(Read { notes, ..Read::from(read) })
}

/// What Megatron-LM writes before the times of its timers.
const TIMERS: &str = "time across ranks (ms):";

/// Logs of Megatron-LM hold sums.
fn of_timers(name: &str) -> Failure {
    let text = format!("{name} is a log of Megatron-LM: its timers are sums over a step, which say no timeline");
    Failure::input(text).with_help(
        "record a profile of each rank: --profile --use-pytorch-profiler --pytorch-profiler-collect-callstack, with \
         --profile-ranks for all of a pipeline",
    )
}

/// Whether a text is a trace of pipeplan. Files of torch are not parsed for this: they may be large.
fn is_trace(text: &str) -> bool {
    text.contains("\"pipeplan-trace\"")
        && !torch_profile::looks_like_one(text)
        && format_of(text) == Some("pipeplan-trace")
}

/// Reads the file of one rank.
fn recording((name, text): (String, String)) -> Result<(String, Recording), Failure> {
    let recording = torch_profile::read(&text).map_err(|fault| Failure::input(format!("{name}: {fault}")))?;
    Ok((name, recording))
}

/// What a file holds.
enum Contents {
    /// What torch recorded of a rank, read piece by piece.
    Torch(Box<Recording>),
    /// Anything else.
    Text(String),
}

/// Bytes at the start of a file in which one of torch's has its events begin.
const HEAD: u64 = 1 << 18;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Reads a file or standard input, unpacked. Files of torch may be of any length.
fn of_torch_or_whole(name: &str) -> Result<Contents, Failure> {
    let cannot = |error: std::io::Error| Failure::input(format!("{name} cannot be read: {error}"));
    let mut source: Box<dyn BufRead> = match name {
        "-" => Box::new(std::io::stdin().lock()),
        path => Box::new(BufReader::with_capacity(PIECE, std::fs::File::open(path).map_err(cannot)?)),
    };
    let is_packed = source.fill_buf().map_err(cannot)?.starts_with(&[0x1f, 0x8b]);
    let mut source: Box<dyn Bytes> = if is_packed { Box::new(MultiGzDecoder::new(source)) } else { source };
    let mut head = Vec::new();
    source.by_ref().take(HEAD).read_to_end(&mut head).map_err(cannot)?;
    if !torch_profile::looks_like_one(&String::from_utf8_lossy(&head)) {
        let bytes = input::bounded(name, MAX_FILE_BYTES as u64, Ok(head.as_slice().chain(source)))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Failure::input(format!("{name} is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
        })?;
        return Ok(Contents::Text(text));
    }
    let refused = |fault: Fault| Failure::input(format!("{name}: {fault}"));
    let mut reader = torch_profile::Reader::new();
    reader.push(&head).map_err(refused)?;
    let mut piece = vec![0; PIECE];
    loop {
        match source.read(&mut piece).map_err(cannot)? {
            0 => break,
            count => reader.push(&piece[..count]).map_err(refused)?,
        }
    }
    Ok(Contents::Torch(Box::new(reader.finish().map_err(refused)?)))
}

fn report(trace: &Trace, clocks: &Aligned) -> String {
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
        let whose = if trace.backend.starts_with("torch") { "torch's" } else { "its" };
        text.push_str(&format!("peak memory   {} on the fullest rank, by {whose} allocator\n", format::bytes(*most)));
    }
    text.push_str(&of_clocks(clocks));
    text
}

/// What putting clocks right did; nothing where they agreed.
pub fn of_clocks(clocks: &Aligned) -> String {
    let lines = clocks.told(&format::duration).into_iter().enumerate();
    lines.map(|(index, line)| format!("{:<14}{line}\n", if index == 0 { "clocks" } else { "" })).collect()
}
