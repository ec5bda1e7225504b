//! `pipeplan trace`

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use pipeplan_core::base::fields::{Fault, Faults};
use pipeplan_core::formats::flight_recorder;
use pipeplan_core::formats::paddle_log::{self, Worker};
use pipeplan_core::formats::run_files::{self, Contents, Files, HEAD, Kind, Ran, Reader, Run};
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

pub fn run(args: Args) -> Result<(), Failure> {
    if args.files.iter().filter(|name| *name == "-").count() > 1 {
        return Err(Failure::input("only one of the plan and the profiles can come from standard input"));
    }
    if args.files.iter().any(|name| kind_of(name) == Some(Kind::FlightRecorder)) {
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
    let Run { trace, clocks, told, faults } = read_run(&args)?;
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
    told.iter().for_each(|(word, line)| shown.push_str(&format!("{word:<13} {line}\n")));
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
    if let Some(other) = args.files.iter().find(|name| kind_of(name) != Some(Kind::FlightRecorder)) {
        let text = format!("{other} is no dump of torch's flight recorder, as other files are");
        return Err(Failure::input(text).with_help("give the dumps alone; a plan is not needed"));
    }
    if args.write_order.is_some() {
        return Err(Failure::input("dumps of the flight recorder say no order: leave --write-order out"));
    }
    let mut files = Files::default();
    for name in &args.files {
        files.add(name.clone(), Unpacked::open(name)?.contents()?);
    }
    let report = flight_recorder::waits(&files.dumps).map_err(Failure::input)?;
    match args.output.as_deref() {
        Some("-") => output::print_bytes(hang::to_json(&report).as_bytes()),
        Some(path) => {
            output::write(path, hang::to_json(&report).as_bytes())?;
            output::print(&format!("{}\nreport        {path}\n", hang::text(&report)))
        }
        None => output::print(&hang::text(&report)),
    }
}

/// The run that the files show, with or without a plan before them.
fn read_run(args: &Args) -> Result<Run, Failure> {
    let Given { plan, files, missing } = read_files(args)?;
    files.expect_one_program().map_err(Failure::input)?;
    for (given, option) in [
        (args.devices.is_some(), "--devices"),
        (args.multi_machine, "--multi-machine"),
        (args.events.is_some(), "--events"),
    ] {
        if given && files.logs.is_empty() {
            return Err(Failure::input(format!("{option} applies to folders of workerlog.N")));
        }
    }
    let digest = plan.as_ref().map(Plan::digest);
    let ran =
        plan.as_ref().zip(digest.as_ref()).map(|(plan, digest)| (&plan.problem, &plan.schedule, digest.as_str()));
    if !files.logs.is_empty() {
        return of_logs(args, files.logs, missing, ran);
    }
    if !files.traces.is_empty() {
        if plan.is_some() {
            return Err(Failure::input("traces of pipeplan are merged without a plan: leave the plan out"));
        }
        let (trace, clocks) = merged(files.traces).map_err(Failure::input)?;
        return Ok(Run { trace, clocks, told: Vec::new(), faults: Vec::new() });
    }
    if files.recordings.is_empty() {
        return Err(Failure::input("there is nothing of a run beside the plan").with_help(
            "give files of torch.profiler, exports of Nsight Systems, a folder of workerlog.N, or traces of pipeplan after the plan",
        ));
    }
    run_files::of_recordings(&files.recordings, ran).map_err(|faults| {
        Failure::input(faults)
            .with_help("give the plan whose order ran, and one file per rank, all of the same complete steps")
    })
}

/// Logs of Paddle, and the events of its own tool where they are asked for.
fn of_logs(args: &Args, logs: Vec<Worker>, mut missing: Vec<Fault>, ran: Option<Ran<'_>>) -> Result<Run, Failure> {
    let mut logs = run_files::placed(logs).map_err(Failure::input)?;
    if args.devices.is_none() {
        missing.extend(run_files::add_missing(&mut logs));
    }
    let run = run_files::of_logs(&logs, &missing, ran).map_err(|faults| {
        Failure::input(faults)
            .with_help("give the folder of workerlog.N of a run with pipeline.job_schedule_profiler_start")
    })?;
    if let Some(folder) = &args.events {
        let folder = Path::new(folder);
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::work(format!("{} cannot be written: {error}", folder.display())))?;
        let file = |name: &str| folder.join(name).display().to_string();
        output::write(&file("pipeline_profile.json"), paddle_log::events(&logs).as_bytes())?;
        output::write(&file("pipeline_profile_perfetto.json"), paddle_log::perfetto_events(&logs).as_bytes())?;
    }
    Ok(run)
}

/// What the arguments name.
#[derive(Default)]
struct Given {
    /// The plan that ran.
    plan: Option<Plan>,
    files: Files,
    /// Logs that cannot be read.
    missing: Vec<Fault>,
}

fn read_files(args: &Args) -> Result<Given, Failure> {
    let mut given = Given::default();
    for (index, name) in args.files.iter().enumerate() {
        let path = Path::new(name);
        if index == 0 && name != "-" && !path.exists() {
            // A link, or no file.
            given.plan = Some(input::plan(name)?);
        } else if path.is_dir() {
            for path in paddle::logs(path, args.devices.as_deref(), args.multi_machine)? {
                let log = path.display().to_string();
                match Unpacked::open(&log).and_then(Unpacked::contents) {
                    Ok(contents) => given.files.add(log, contents),
                    Err(failure) => {
                        let device = run_files::device_of(&log).unwrap_or(0);
                        given.missing.push(Fault::new(log.as_str(), failure.message(), "the log of this device"));
                        given.files.logs.push(Worker::new(log, 0, device));
                    }
                }
            }
        } else if nsight::looks_like_one(path) {
            given.files.recordings.extend(nsight::read(name)?);
        } else {
            let file = Unpacked::open(name)?;
            if Kind::of(name, &file.head).is_some() {
                given.files.add(name.clone(), file.contents()?);
                continue;
            }
            let source = file.text()?;
            if source.text.contains(TIMERS) {
                return Err(of_timers(name));
            }
            if index > 0 {
                return Err(Failure::input(format!("{name}: {}", run_files::of_no_program(source.text.as_bytes()))));
            }
            given.plan = Some(input::plan_from(&source)?);
        }
    }
    Ok(given)
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

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// What a regular file is; none of a pipe, which is not read twice, and of a file of no program that is known.
fn kind_of(name: &str) -> Option<Kind> {
    Path::new(name).is_file().then(|| Unpacked::open(name).ok()).flatten().and_then(|file| Kind::of(name, &file.head))
}

/// A file or standard input, unpacked, of which the head is read.
struct Unpacked {
    name: String,
    head: Vec<u8>,
    rest: Box<dyn Read>,
}

impl Unpacked {
    fn open(name: &str) -> Result<Unpacked, Failure> {
        let cannot = |error: std::io::Error| Failure::input(format!("{name} cannot be read: {error}"));
        let mut source: Box<dyn BufRead> = match name {
            "-" => Box::new(std::io::stdin().lock()),
            path => Box::new(BufReader::with_capacity(PIECE, std::fs::File::open(path).map_err(cannot)?)),
        };
        let is_packed = source.fill_buf().map_err(cannot)?.starts_with(&[0x1f, 0x8b]);
        let mut rest: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(source)) } else { source };
        let mut head = Vec::new();
        rest.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(cannot)?;
        Ok(Unpacked { name: name.to_owned(), head, rest })
    }

    /// All of it as text.
    fn text(self) -> Result<Source, Failure> {
        let Unpacked { name, head, rest } = self;
        let bytes = input::bounded(&name, MAX_FILE_BYTES as u64, Ok(head.as_slice().chain(rest)))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Failure::input(format!("{name} is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
        })?;
        Ok(Source { name, text })
    }

    /// What it holds, read piece by piece.
    fn contents(mut self) -> Result<Contents, Failure> {
        let name = &self.name;
        let refused = |faults: Faults| Failure::input(format!("{name}: {faults}"));
        let bytes = std::fs::metadata(name).map_or(0, |file| file.len());
        let mut reader = Reader::new(name, bytes);
        reader.push(&self.head).map_err(|fault| refused(fault.into()))?;
        let mut piece = vec![0; PIECE];
        loop {
            let read = self.rest.read(&mut piece);
            match read.map_err(|error| Failure::input(format!("{name} cannot be read: {error}")))? {
                0 => return reader.finish().map_err(refused),
                count => reader.push(&piece[..count]).map_err(|fault| refused(fault.into()))?,
            }
        }
    }
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
