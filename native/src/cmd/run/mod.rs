//! `pipeplan run`

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pipeplan::runner::checkpoint::{Checkpoint, Pretrained, Saving};
use pipeplan::runner::metrics::{Figures, Metrics};
use pipeplan::runner::progress::Progress;
use pipeplan::runner::{
    Device, Ending, Observer, Precision, Refusal, Restart, Restarting, RunError, RunOptions, RunReport, StepReport,
    Workload, most_recorded, run_elastic, run_restarting,
};
use pipeplan::transport::faulty;
use pipeplan::transport::faulty::Faults;
use pipeplan::transport::threads::ThreadOptions;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::Work;
use pipeplan_core::trace::Trace;

use self::report::{drawn, summary};
use super::failure::Failure;
use super::interval::Interval;
use super::processes::Engine;
use super::{format, input, interrupt, output, processes, restart, selection};

pub mod data;
pub mod elastic;
mod optimizer;
mod replan;
mod report;
mod restarts;
mod stragglers;

const EXAMPLES: &str = "\
Examples:
  pipeplan run plan.json --trace trace.json
  pipeplan run plan.json --steps 100 --trace trace.json --trace-steps 40..43
  pipeplan run examples/tiny-llama.toml --steps 100
  pipeplan run plan.json --data book.txt --seed 7 --json
  pipeplan run plan.json --data web:0.7 --data code:0.3 --validation-split 0.01 --evaluate-every 100
  pipeplan run plan.json --data chats.jsonl --tokenizer tokenizer.json --schedule cosine --decay-until 1000
  pipeplan run plan.json --checkpoint-dir run --checkpoint-every 100
  pipeplan run other-plan.json --resume run --steps 1000
  pipeplan run spec.toml --steps 1000 --replan      plan anew where a rank is slower than planned
  pipeplan run plan.json --transport tcp
  pipeplan run plan.json --transport tcp --restart 3 --checkpoint-dir run --checkpoint-every 100
  torchrun --no-python --nproc-per-node 4 pipeplan run plan.json
  srun -n 4 pipeplan run plan.json
  mpirun -n 4 pipeplan run plan.json
  torchrun --no-python --nproc-per-node 8 pipeplan run plan.json --backend cuda --transport nccl";

/// Train the planned model on tokens or on the bytes of a text, with one thread or process per rank.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A plan, or a spec that is planned first; - for standard input
    plan: String,
    #[command(flatten)]
    data: data::DataArgs,
    /// Training steps, including those before the checkpoint
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Seed of the initial weights and of the data order; default: that of the checkpoint, else 0
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    optimizer: optimizer::OptimizerArgs,
    /// Write a checkpoint into this folder at the end, also after Ctrl-C or SIGUSR1
    ///
    /// Both end a run after the current step. Under mpirun use SIGUSR1, which mpirun passes on to all ranks: after
    /// Ctrl-C it kills them within a second.
    ///
    /// The run locks the folder. A folder with a later checkpoint than the run starts from is refused, so that the
    /// latest checkpoint in a folder is always from the last run: `--resume` continues from it.
    #[arg(long, value_name = "FOLDER")]
    checkpoint_dir: Option<PathBuf>,
    /// Also write a checkpoint every N steps
    #[arg(long, value_name = "STEPS", requires = "checkpoint_dir", value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: Option<u32>,
    /// Mean time between failures of one device, in hours: the report says how often checkpoints are best written; default:
    /// `training.mtbf_hours` of the spec
    ///
    /// From the measured time for which training stands still for a checkpoint, after Daly (2006), and the share of the time
    /// that is lost to checkpoints and to steps that are made again. The run of Llama 3 405B had a failure in 50,600 hours of
    /// a GPU.
    #[arg(long, value_name = "HOURS", requires = "checkpoint_every")]
    mtbf: Option<f64>,
    /// Keep only the last N checkpoints of the folder; default: all
    #[arg(long, value_name = "N", requires = "checkpoint_dir", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Resume from this checkpoint, or from the latest one in this folder, of any parallel layout
    #[arg(long, value_name = "FOLDER")]
    resume: Option<PathBuf>,
    /// Go on after the failure of a rank, up to N times
    ///
    /// A rank that dies is started again. Ranks that live keep their weights and optimizer states in memory, and a rank
    /// that is started again gets those of a data-parallel or context-parallel rank that holds the same. Where none does
    /// (one replica, `zero` or split experts), all ranks go back to the latest checkpoint: give --checkpoint-dir and
    /// --checkpoint-every. Losses and weights are those of an unbroken run. Each rank keeps a second copy of its weights
    /// and optimizer states in host memory where they may come from there.
    ///
    /// For threads, and for the processes that --transport tcp starts. Under a launcher, which starts all ranks again
    /// itself (torchrun --max-restarts), the run goes on from the latest checkpoint in --checkpoint-dir instead of its
    /// start; with torchrun and Slurm also without this option.
    #[arg(long, value_name = "N", conflicts_with = "replan", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    restart: Option<u32>,
    /// Start from the weights in this folder: `config.json` and safetensors, as `transformers` saves them, or a checkpoint
    ///
    /// The plan's model must be that of the folder: `model.config = "FOLDER/config.json"` in the spec. Each rank reads its
    /// part. The optimizer starts anew.
    #[arg(long, value_name = "FOLDER", conflicts_with = "resume")]
    weights: Option<PathBuf>,
    /// Precision; default: f64 if the checkpoint to resume from is in f64, else that of the plan
    #[arg(long, visible_alias = "dtype", value_name = "TYPE")]
    precision: Option<Type>,
    /// Messages per channel that can wait for their receiver while the sender continues; 0: the sender waits (rendezvous)
    #[arg(long, value_name = "MESSAGES", default_value_t = ThreadOptions::default().slots)]
    slots: usize,
    /// Train on the CPU or a GPU, or only wait for the planned time of each op, which needs no model; then one rank
    /// stands for its whole tensor-parallel and context-parallel group
    #[arg(long, visible_alias = "device", value_name = "BACKEND", default_value = "cpu")]
    backend: Backend,
    /// With --backend cuda: the GPU of this process, shared by all its ranks
    ///
    /// By default a rank in a separate process uses the GPU with its local rank: LOCAL_RANK, else
    /// OMPI_COMM_WORLD_LOCAL_RANK, else SLURM_LOCALID. If the driver shows fewer GPUs, for example with
    /// CUDA_VISIBLE_DEVICES, the count starts again at 0.
    #[arg(long, value_name = "NUMBER")]
    gpu: Option<usize>,
    /// With --backend cuda and ranks in one process: give each rank an equal part of the GPU's multiprocessors
    ///
    /// Uses green contexts of the driver, CUDA 12.5 or later. Ranks then run at the same time as on separate GPUs,
    /// but share the memory. `profile --split-gpu` measures such parts.
    #[arg(long)]
    split_gpu: bool,
    /// With --backend cuda: launch a job that repeats with the same addresses as a CUDA graph; default: on
    #[arg(long, value_name = "WHETHER")]
    cuda_graphs: Option<Switch>,
    /// With --backend modelled: factor on planned times; default: ops last 10 ms on average
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    slowdown: Option<u64>,
    /// Transport between ranks: threads of this process; one process per rank over TCP or MPI; or NCCL between GPUs,
    /// with TCP between hosts. Default: threads, or the transport that suits the launcher of this process
    ///
    /// A process reads its rank from the variables of the launcher: torchrun's RANK, WORLD_SIZE, MASTER_ADDR and
    /// MASTER_PORT, else Open MPI's OMPI_COMM_WORLD_RANK and _SIZE, else Slurm's SLURM_PROCID and SLURM_NTASKS. Under
    /// Open MPI the default is mpi if this binary was built with it; otherwise tcp, for which mpirun needs -x
    /// MASTER_ADDR=HOST of rank 0, and srun needs nothing. Without a launcher, tcp starts one process per rank on
    /// this machine. Rank 0 prints and writes the results.
    #[arg(long, value_name = "ENGINE")]
    transport: Option<Engine>,
    /// TLS 1.3 between ranks over TCP: files in PEM of this rank's certificate, its private key, and the certificate of the
    /// authority that signs those of all ranks
    ///
    /// The certificate is one for the name `pipeplan`, with those that sign it below it. Whoever has none by this authority is
    /// not let in.
    #[arg(long, num_args = 3, value_names = ["CERT", "KEY", "CA"])]
    tls: Vec<PathBuf>,
    /// Seconds that a rank waits for another before the run fails
    ///
    /// The report comes at once if a rank died, else after this time, and 5 s later if some rank does not answer;
    /// processes that still do not answer after 3 s more are killed. With offload to host memory on GPUs, the time to
    /// pin that memory is added: a second per 2 GB, for up to eight ranks one after the other.
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Inject a failure: 2:death@9 ends rank 2 at its tenth exchange; also stall@9/30 (for 30 s), short@9, lost@9,
    /// twice@9, late@9 (after the next) and corrupt@9 (one message), delay@5 (up to 5 ms each), slow@1.3 (ops take 1.3
    /// times as long)
    #[arg(long, visible_alias = "inject-fault", value_name = "RANK:WHAT", value_parser = faulty::read)]
    fault: Vec<(usize, Faults)>,
    /// Write the measured trace here; the page and `pipeplan show` read it; - for standard output, which then holds
    /// nothing else
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// Number of steps in the trace, counted from the last
    #[arg(long, value_name = "STEPS", requires = "trace", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    traced_steps: u32,
    /// Trace these steps instead: `5..8` are 5, 6 and 7; steps count from 0
    ///
    /// SIGUSR2 begins and ends recording while the run runs: sent to any process of the run, it counts for all ranks from the next
    /// step on. Then the trace has those steps, and the file is written each time recording ends: at the latest after 10 million
    /// ops of all ranks.
    #[arg(long, value_name = "FROM..TO", requires = "trace", conflicts_with = "traced_steps", value_parser = selection::steps_of_a_run)]
    trace_steps: Option<Range<u32>>,
    /// Plan anew while training, where a rank or a link is slower than planned in each of the last STEPS steps; 8 if only
    /// --replan is given
    ///
    /// Slower than planned is what takes longer against the plan than the other ranks do, by at least a tenth and three times
    /// the jitter; a link, three times as long. Each run tells of it. With --replan the run plans anew with the times of these
    /// steps, as `calibrate --write-profile` and `plan --profile` do: the spec's schedule and parallel degrees stay, placement
    /// and partition are chosen anew, so that a slow rank gets fewer layers. A plan that is shorter by more than 2 % begins at
    /// the next checkpoint of --checkpoint-every, else after the current step, with the same weights and optimizer states.
    /// Ranks as processes go on from a checkpoint that all of them read: --checkpoint-dir, on several hosts a folder that they
    /// share. --trace is of the last plan.
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true, default_missing_value = "8")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=1000))]
    replan: Option<u32>,
    /// With --replan: write the last new plan here, if there is one
    #[arg(long, value_name = "FILE", requires = "replan")]
    replanned: Option<String>,
    /// Append the figures of each step to this file, as JSON lines: loss, gradient norm, learning rate, tokens/s, MFU, memory,
    /// time left
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the figures of each step into this folder, for TensorBoard
    #[arg(long, visible_alias = "tensorboard-dir", value_name = "FOLDER")]
    tensorboard: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// A type to compute in.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Type {
    F32,
    F64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Args {
    /// The precision that was asked for, else that of a checkpoint in f64: GPUs compute in the plan's own type alone.
    fn precision(&self, device: Device, resume: Option<&Checkpoint>) -> Option<Precision> {
        let kept = resume.filter(|checkpoint| device == Device::Cpu && checkpoint.manifest.precision == "f64");
        match self.precision {
            Some(Type::F32) => Some(Precision::Single),
            Some(Type::F64) => Some(Precision::Double),
            None => kept.map(|_| Precision::Double),
        }
    }

    /// Where checkpoints are kept.
    fn saving_folder(&self) -> Option<&PathBuf> {
        self.checkpoint_dir.as_ref()
    }

    /// Whether steps are not told to a person.
    fn is_quiet(&self) -> bool {
        self.json || self.trace.as_deref() == Some("-") || processes::is_silent()
    }

    /// Refuses options that have no effect.
    fn expect_all_used(&self, engine: Engine) -> Result<(), Failure> {
        let on_card = matches!(self.backend, Backend::Cuda | Backend::Emulated);
        let only_waits = self.backend == Backend::Modelled;
        let cuda = "Give --backend cuda with it.";
        // Whether it was asked for and does nothing, what it is, and what to do.
        let mut idle = vec![
            (engine == Engine::Nccl && !on_card, "NCCL transfers tensors of GPUs".to_owned(), cuda),
            (
                self.split_gpu && !(engine == Engine::Threads && on_card),
                "--split-gpu divides a GPU among the ranks of one process".to_owned(),
                "Give --backend cuda --transport threads with it.",
            ),
            (self.gpu.is_some() && self.backend != Backend::Cuda, "--gpu selects the GPU of a run".to_owned(), cuda),
            (
                !self.tls.is_empty() && engine != Engine::Tcp,
                "--tls encrypts what ranks send over TCP".to_owned(),
                "Give --transport tcp with it.",
            ),
            (self.cuda_graphs.is_some() && !on_card, "--cuda-graphs applies to runs on a GPU".to_owned(), cuda),
            (
                self.slowdown.is_some() && !only_waits,
                "--slowdown applies to planned times".to_owned(),
                "Give --backend modelled with it.",
            ),
        ];
        let own = [("--seed", self.seed.is_some()), ("--precision", self.precision.is_some())];
        let of_training = own.into_iter().chain(self.data.given()).chain(self.optimizer.given());
        idle.extend(of_training.map(|(option, is_given): (&str, bool)| {
            let what = format!("{option} applies to training, but the modelled backend only waits for planned times");
            (is_given && only_waits, what, "Leave it out, or train with --backend cpu or cuda.")
        }));
        match idle.into_iter().find(|(is_idle, ..)| *is_idle) {
            Some((_, what, help)) => Err(Failure::input(what).with_help(help)),
            None if only_waits
                && (self.resume.is_some() || self.weights.is_some() || self.checkpoint_dir.is_some()) =>
            {
                Err(Failure::input(Refusal::NothingToSave))
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    Cpu,
    Cuda,
    /// The CUDA kernels compiled for the CPU: slow, for checks.
    Emulated,
    Modelled,
}

/// What a run trains on where nothing is said: written for this project.
pub static TEXT: &[u8] = include_bytes!("../../../../examples/data/pipeline.txt");

pub fn run(args: Args) -> Result<(), Failure> {
    // From the start on: unheard, the signal ends a process.
    let _ = interrupt::recording();
    if let Some(hours) = args.mtbf.filter(|hours| !(hours.is_finite() && *hours > 0.0)) {
        return Err(Failure::input(format!("--mtbf is {hours}; give hours above 0")));
    }
    let engine = match args.transport {
        Some(engine) => engine,
        None => processes::usual_engine()?,
    };
    args.expect_all_used(engine)?;
    replan::expect_room(&args, engine)?;
    let prints_trace = args.trace.as_deref() == Some("-");
    output::expect_one_document([("--trace -", prints_trace), ("--json", args.json)])?;
    if let [certificate, key, authority] = &args.tls[..] {
        processes::speak_tls(certificate, key, authority)?;
    }
    restart::listen_to_parent();
    if matches!(engine, Engine::Tcp | Engine::Nccl) && !processes::is_launched()? {
        let goes_on = args.checkpoint_every.is_some();
        let trains = args.backend != Backend::Modelled;
        return processes::launch(&args.plan, trains, args.restart.unwrap_or(0), goes_on);
    }
    let device = match args.backend {
        Backend::Cuda => Device::Cuda(gpu(args.gpu, engine)?),
        Backend::Emulated => Device::Emulated,
        Backend::Cpu | Backend::Modelled => Device::Cpu,
    };
    let resume = restarts::resumed(&args)?;
    let precision = args.precision(device, resume.as_ref());
    let plan = plan(&args, device, precision)?;
    let plan =
        if engine == Engine::Threads || args.backend == Backend::Modelled { plan } else { elastic::for_world(plan)? };
    let (workload, mfu_ns) = workload(&args, &plan, precision)?;
    expect_ranks_of_faults(&args, workload.world())?;
    // Rank 0 writes, and its host alone may have the folder.
    if let Some(path) = args.trace.as_ref().filter(|_| !processes::is_silent()) {
        output::expect_room_at(path)?;
    }
    let options = options(&args, &workload, engine, device, resume)?;
    replan::expect_possible(&args, &plan)?;
    restarts::expect_restartable(&args, &workload, &options)?;
    tell_resume(&args, &options, &workload);
    tell_weights(&args, &options, &workload)?;
    tell_differences(&args, &plan, &workload, device);
    let mut metrics = metrics(&args, mfu_ns)?;
    let mut progress = (!args.is_quiet()).then(|| Progress::new(options.first_step(), args.steps));
    let most = most_recorded(&workload) as usize;
    let mut writer =
        args.trace.as_ref().filter(|path| *path != "-").map(|path| TraceWriter { path: path.clone(), most });
    let mut observers: Vec<&mut dyn Observer> = vec![&mut metrics];
    observers.extend(writer.as_mut().map(|writer| writer as &mut dyn Observer));
    observers.extend(progress.as_mut().map(|progress| progress as &mut dyn Observer));
    let observer = &mut Together(observers);
    let said = train(&args, engine, (&plan, precision), &workload, &options, observer);
    if let Some(progress) = &progress {
        progress.finish();
    }
    let (ending, slow) = said?;
    let data_failure = options.data.as_ref().and_then(|data| data.failure());
    let report = match ending {
        Ending::First(report) => report,
        Ending::Other { stopped: false, .. } => return Ok(()),
        Ending::Other { rank, stopped: true, .. } => {
            // Launchers end all as soon as one ends so, and rank 0 may still have to print and write.
            std::thread::sleep(Duration::from_secs(1));
            if let Some(error) = data_failure {
                return Err(Failure::work(format!("rank {rank} ended the run: {error}")));
            }
            return Err(Failure::stopped(format!("rank {rank} was stopped with the run; rank 0 reports the step")));
        }
    };
    write_report(&args, &options, &report, (&slow, mtbf(&args, &plan)))?;
    for (rank, exchanges) in &report.missed_faults {
        let made = format::count(*exchanges as usize, "exchange");
        output::tell(&format!(
            "--fault for rank {rank} was not reached: the rank made {made}; give an earlier exchange"
        ));
    }
    if let Some(error) = metrics.error() {
        return Err(Failure::work(error));
    }
    if let Some(error) = data_failure {
        let done = done(&options, &report);
        let saved = report
            .checkpoint
            .as_ref()
            .map(|folder| format!("The checkpoint of step {done} is {}.", folder.display()));
        let failure = Failure::work(format!("the run ended after step {done}: {error}"));
        return Err(
            failure.with_help(saved.unwrap_or_else(|| "Give --checkpoint-dir to keep what is trained.".into()))
        );
    }
    if report.stopped {
        let done = done(&options, &report);
        return Err(Failure::stopped(format!("stopped after {done} of {} steps", args.steps)));
    }
    Ok(())
}

/// Hours between failures of a device: those asked for, else those of the spec.
fn mtbf(args: &Args, plan: &Plan) -> Option<f64> {
    match &plan.spec.work {
        Work::Model(work) => args.mtbf.or_else(|| work.failures.mtbf_hours.map(f64::from)),
        Work::Typed(_) => args.mtbf,
    }
}

/// What a run says of stragglers: those of a run whose plan stays, and the rounds of one that plans anew.
enum Slow {
    Found(Vec<stragglers::Straggler>),
    Rounds(Vec<replan::Round>),
}

/// Trains: with one plan, with others where a rank becomes slow, or on fewer replicas where ranks fail.
fn train(
    args: &Args,
    engine: Engine,
    (plan, precision): (&Plan, Option<Precision>),
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<(Ending, Slow), Failure> {
    if let Some(window) = args.replan {
        let ran = replan::run(args, (engine, window), (plan, precision), workload, options, observer);
        return ran.map(|(ending, rounds)| (ending, Slow::Rounds(rounds)));
    }
    let shape = stragglers::shape(workload);
    let watched = stragglers::Watched::new(&workload.problem, &shape, stragglers::USUAL_STEPS);
    let is_quiet = args.is_quiet();
    let mut telling = stragglers::Telling { watched, found: Vec::new(), is_quiet, other: observer };
    let is_elastic = engine == Engine::Threads && args.backend != Backend::Modelled && elastic::is_elastic(plan);
    let ending = match is_elastic {
        true => {
            let mut plan = plan.clone();
            let fewer = &mut |_: &Workload| elastic::smaller(&mut plan, precision);
            let ran = run_elastic(workload, options, &mut telling, fewer);
            ran.map(|report| Ending::First(Box::new(report))).map_err(failed)
        }
        false => execute(engine, workload, options, &mut telling),
    };
    Ok((ending?, Slow::Found(telling.found)))
}

/// The training steps that are made at the end.
fn done(options: &RunOptions, report: &RunReport) -> u32 {
    report.steps.last().map_or(options.first_step(), |step| step.step + 1)
}

/// The plan to run; of a spec, planned here.
fn plan(args: &Args, device: Device, precision: Option<Precision>) -> Result<Plan, Failure> {
    let source = input::read(&args.plan)?;
    input::plan_if(&source, |spec| match args.backend {
        Backend::Modelled => Ok(()),
        // What cannot be run is said before it is searched for.
        _ => Workload::check_spec(spec, precision, device).map_err(Failure::input),
    })
}

/// What the plan has ranks do.
///
/// And, where the plan says how much of its devices a step uses, that share times the step's nanoseconds.
fn workload(args: &Args, plan: &Plan, precision: Option<Precision>) -> Result<(Workload, Option<f64>), Failure> {
    match args.backend {
        Backend::Cpu | Backend::Cuda | Backend::Emulated => {
            let mfu_ns = plan.step().map(|step| step.mfu * step.step_ns as f64);
            Ok((Workload::of_plan(plan, precision).map_err(Failure::input)?, mfu_ns))
        }
        Backend::Modelled => Ok((Workload::of_planned_times(plan, args.slowdown), None)),
    }
}

/// What is written of each step while the run runs: by rank 0 alone.
fn metrics(args: &Args, mfu_ns: Option<f64>) -> Result<Metrics, Failure> {
    let written = |path: &Option<PathBuf>| path.clone().filter(|_| !processes::is_silent());
    let (log, board) = (written(&args.log), written(&args.tensorboard));
    Metrics::open(log.as_deref(), board.as_deref(), Figures::new(mfu_ns)).map_err(Failure::work)
}

/// Observers, one after the other.
struct Together<'a>(Vec<&'a mut dyn Observer>);

impl Observer for Together<'_> {
    fn step_ended(&mut self, step: &StepReport) {
        self.0.iter_mut().for_each(|observer| observer.step_ended(step));
    }

    fn recorded(&mut self, trace: &Trace) {
        self.0.iter_mut().for_each(|observer| observer.recorded(trace));
    }

    fn restarted(&mut self, restart: &Restart) {
        self.0.iter_mut().for_each(|observer| observer.restarted(restart));
        output::tell(&report::of_restart(restart));
    }
}

/// Writes the trace as soon as recording ends: nobody has to wait for the end of the run.
struct TraceWriter {
    path: String,
    /// The most steps that it may have.
    most: usize,
}

impl Observer for TraceWriter {
    fn step_ended(&mut self, _: &StepReport) {}

    fn recorded(&mut self, trace: &Trace) {
        let path = &self.path;
        let steps = trace.steps.first().zip(trace.steps.last()).map(|(first, last)| (first.step, last.step));
        let Some((first, last)) = steps else { return };
        match output::write_trace(path, trace) {
            Ok(()) if trace.steps.len() < self.most => {
                output::tell(&format!("{path} has the steps recorded so far, {first} to {last}"));
            }
            Ok(()) => output::tell(&format!(
                "recording has ended by itself after {} steps, the most of this run: {path} has {first} to {last}",
                self.most
            )),
            // The end of the run tries again.
            Err(failure) => output::tell(&failure.to_string()),
        }
    }
}

fn expect_ranks_of_faults(args: &Args, ranks: usize) -> Result<(), Failure> {
    // A run that goes on with fewer ranks has had those that its first ranks have.
    let has_had = restart::fewer().is_some_and(|times| times > 0);
    let other = args.fault.iter().find(|(rank, _)| *rank >= ranks && !has_had);
    let Some((rank, _)) = other else { return Ok(()) };
    let last = ranks.saturating_sub(1);
    Err(Failure::input(format!("--fault names rank {rank}, but this run has ranks 0 to {last}")))
}

/// The options of the run: what the command line says, else what the checkpoint says.
fn options(
    args: &Args,
    workload: &Workload,
    engine: Engine,
    device: Device,
    resume: Option<Checkpoint>,
) -> Result<RunOptions, Failure> {
    let sources = args.data.sources(workload)?;
    let weights = args.weights.as_deref().map(Pretrained::open).transpose().map_err(Failure::input)?;
    let was = resume.as_ref().map(|checkpoint| &checkpoint.manifest);
    let optimizer = args.optimizer.read(was.map(|manifest| manifest.optimizer).unwrap_or_default())?;
    let clip_norm = args.optimizer.clip_norm.or_else(|| was.and_then(|manifest| manifest.clip_norm));
    let seed = args.seed.or_else(|| was.map(|manifest| manifest.seed)).unwrap_or(0);
    let every = args.checkpoint_every.unwrap_or(0);
    let saving = args.checkpoint_dir.clone().map(|folder| Saving { folder, every });
    if let Some(window) = args.trace_steps.as_ref() {
        let first = resume.as_ref().map_or(0, |checkpoint| checkpoint.manifest.step);
        if window.start >= args.steps || window.end <= first {
            let what = format!("--trace-steps {}..{} has none of the run's steps", window.start, window.end);
            let last = args.steps.saturating_sub(1);
            return Err(Failure::input(what).with_help(format!("the run has steps {first} to {last}")));
        }
    }
    let patience = Duration::from_secs(args.patience) + workload.pinning(device);
    Ok(RunOptions {
        optimizer,
        clip_norm,
        steps: args.steps,
        seed,
        saving,
        resume,
        weights,
        data: Some(Arc::new(sources)),
        evaluate_every: args.data.evaluate_every.unwrap_or(0),
        evaluate_steps: args.data.evaluate_steps,
        measure_norm: args.log.is_some() || args.tensorboard.is_some(),
        keep: args.keep.unwrap_or(0),
        device,
        traced_steps: args.traced_steps,
        trace_window: args.trace_steps.clone(),
        recording: interrupt::recording(),
        stop: interrupt::flag(),
        grace: Duration::from_secs(5),
        transport: ThreadOptions { slots: args.slots, patience },
        faults: restarts::faults(args),
        restarting: Restarting { most: args.restart.unwrap_or(0), ..Restarting::default() },
        nccl: engine == Engine::Nccl,
        split_gpu: args.split_gpu,
        cuda_graphs: args.cuda_graphs != Some(Switch::Off),
        ..RunOptions::default()
    })
}

/// Says from which step the run goes on, and where it does so in another type.
fn tell_resume(args: &Args, options: &RunOptions, workload: &Workload) {
    if let Some(checkpoint) = options.resume.as_ref().filter(|_| !args.json && !processes::is_silent()) {
        let (folder, step) = (checkpoint.folder.display(), checkpoint.manifest.step);
        // Else the run is refused.
        if step < args.steps {
            output::tell(&format!("resuming from {folder}, after step {step} of {}", args.steps));
        }
        let (was, is) = (&checkpoint.manifest.precision, workload.precision());
        if is.is_some_and(|is| is != was) {
            let is = is.unwrap_or_default();
            output::tell(&format!("note: the checkpoint is in {was}, and this run goes on in {is}"));
        } else if checkpoint.manifest.rounded != workload.rounded() {
            let said = |rounded: &Option<String>| rounded.clone().unwrap_or_else(|| was.clone());
            let (was, is) = (said(&checkpoint.manifest.rounded), said(&workload.rounded()));
            output::tell(&format!(
                "note: the run of the checkpoint kept numbers in {was}, and this one does in {is}"
            ));
        }
    }
}

/// Says what takes longer in the run than in the plan, with the same numbers: what the plan overlaps and the runner does
/// not, and numbers in fewer bits than the CPU computes in.
fn tell_differences(args: &Args, plan: &Plan, workload: &Workload, device: Device) {
    if args.json || processes::is_silent() {
        return;
    }
    if plan.schedule.pairs.iter().any(|pairs| !pairs.is_empty()) {
        output::tell(
            "note: the plan overlaps pairs of ops; the runner runs them one after the other, with the same numbers",
        );
    }
    if device == Device::Cpu && workload.rounded().is_some() {
        output::tell(
            "note: numbers are kept in the formats of the plan and computed in f32; --precision f32 keeps all of them in f32 \
             and is faster",
        );
    }
    if !workload.epilogue.overlapped.is_empty() {
        output::tell(
            "note: the plan overlaps collectives of replicas with ops (parallel.overlap_grad_reduce, \
             parallel.overlap_param_gather); the runner runs them after the last op, with the same numbers",
        );
    }
}

/// Says what of the weights to start from is not used.
fn tell_weights(args: &Args, options: &RunOptions, workload: &Workload) -> Result<(), Failure> {
    let Some(pretrained) = options.weights.as_ref().filter(|_| !args.json && !processes::is_silent()) else {
        return Ok(());
    };
    let unused = workload.unused_weights(pretrained).map_err(Failure::input)?;
    if let Some(first) = unused.first() {
        let count = unused.len();
        output::tell(&format!(
            "note: {count} tensors in {} are not used, the first is {first}",
            pretrained.folder.display()
        ));
    }
    Ok(())
}

/// Writes the trace and prints the report, for programs or for people.
fn write_report(
    args: &Args,
    options: &RunOptions,
    report: &RunReport,
    (slow, mtbf): (&Slow, Option<f64>),
) -> Result<(), Failure> {
    let interval = mtbf.and_then(|hours| Some((Interval::of_run(report, hours)?, args.checkpoint_every?)));
    if let Some(path) = &args.trace {
        output::write_trace(path, &report.trace)?;
    }
    if args.json {
        let mut summary = summary(report);
        if let Some((interval, every)) = &interval {
            summary["checkpoint_interval"] = interval.to_value(*every);
        }
        match slow {
            Slow::Found(found) => {
                summary["stragglers"] = found.iter().map(stragglers::Straggler::to_value).collect();
            }
            Slow::Rounds(rounds) => summary["replanned"] = rounds.iter().map(replan::Round::to_value).collect(),
        }
        return output::print_json(&summary);
    }
    if args.trace.as_deref() == Some("-") {
        return Ok(());
    }
    let mut text = drawn(report);
    match (&report.checkpoint, options.saving.is_some()) {
        (Some(folder), _) => text.push_str(&format!("checkpoint    {}\n", folder.display())),
        (None, true) => text.push_str("checkpoint    none written: no step was completed\n"),
        // Whoever goes on from a checkpoint takes care to keep what is trained.
        (None, false) if args.resume.is_some() => {
            text.push_str("checkpoint    not saved: give --checkpoint-dir\n");
        }
        (None, false) => {}
    }
    if let Some((interval, every)) = &interval {
        text.push_str(&interval.told(Some(*every)));
    }
    for restart in &report.restarts {
        text.push_str(&format!("{}\n", report::of_restart(restart)));
    }
    text.push_str(&super::trace::of_clocks(&report.clocks));
    if let Some(path) = &args.trace {
        text.push_str(&format!("trace         {path}\n"));
    }
    output::print(&text)
}

/// The GPU of this process: the one asked for, or that of its number on this host.
fn gpu(asked: Option<usize>, engine: Engine) -> Result<usize, Failure> {
    if let Some(gpu) = asked {
        return Ok(gpu);
    }
    let place = if engine == Engine::Threads { None } else { processes::place()? };
    let local = place.and_then(|place| place.local_rank).unwrap_or(0);
    #[cfg(feature = "cuda")]
    let count = pipeplan::backend::cuda::driver::gpus().map_or(0, |(_, gpus)| gpus.len());
    #[cfg(not(feature = "cuda"))]
    let count = 0;
    Ok(if count > 0 { local % count } else { local })
}

fn execute(
    engine: Engine,
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Ending, Failure> {
    let result = match engine {
        Engine::Threads => run_restarting(workload, options, observer).map(|report| Ending::First(Box::new(report))),
        Engine::Tcp | Engine::Nccl => processes::over_tcp(workload, options, observer)?,
        Engine::Mpi => processes::over_mpi(workload, options, observer)?,
    };
    result.map_err(failed)
}

fn failed(error: RunError) -> Failure {
    match error.exit_status() {
        2 => Failure::input(&error),
        _ => Failure::work(&error),
    }
}
