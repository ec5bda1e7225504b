//! `pipeplan selftest`

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pipeplan::runner::Device;
use pipeplan::selftest::{Asked, Part, Report, Row, Share, collectives};
use pipeplan::transport::Transport;
use pipeplan::transport::processes::{Link, Processes};
use serde_json::{Value, json};

use super::failure::Failure;
use super::processes::Engine;
use super::selftest_worker::{self as worker, Variables};
use super::{format, interrupt, output, processes};

const EXAMPLES: &str = "\
Examples:
  pipeplan selftest --device cpu
  pipeplan selftest --device cuda --profile h200.json
  pipeplan selftest --device cuda --only operators
  pipeplan selftest --transport threads --ranks 4
  mpirun -n 4 pipeplan selftest --transport mpi";

/// Check on this machine that a device computes correct results, that runs hold the bytes that plans predict, and how
/// fast the device is.
///
/// Prints one table. The exit code is 1 if a row fails, and 2 if the device cannot be used. A failed row does not
/// stop the others: they continue, in a new process if the device is lost, and the table is always printed at the
/// end. Every operator is compared with the CPU in f64, and runs of whole plans with one rank on the CPU. On a GPU
/// the operators also run under compute-sanitizer, and the model also runs in PyTorch, if these are installed. With
/// --transport it checks the collectives of a transport among the ranks that a launcher started, bit for bit, and
/// measures them; the table ends with latency and bandwidth of a P2P transfer, as the `cluster.link` of a spec.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// cpu, cuda, or emulated: the CUDA kernels compiled for the CPU by its C++ compiler
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Choice,
    /// Check the collectives of this transport instead of a device
    #[arg(long, value_name = "ENGINE", conflicts_with_all = ["device", "gpu", "profile"])]
    transport: Option<Engine>,
    /// With --transport threads: number of ranks
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Which GPU
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    gpu: usize,
    /// Write the measured operator times here, as a profile
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,
    /// Run only this part
    #[arg(long, value_name = "PART", conflicts_with = "transport")]
    only: Option<Only>,
    /// Give every tensor a separate allocation, so that compute-sanitizer finds every access out of bounds
    #[arg(long, conflicts_with = "transport")]
    apart: bool,
    /// Time limit of the whole selftest in seconds: tests that have not started by then fail, and a test that does
    /// not end is named
    #[arg(long, visible_alias = "timeout", value_name = "SECONDS", default_value_t = 540, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    within: u64,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
    /// Test in this process and report in lines of JSON; the selftest starts itself with this option
    #[arg(long, hide = true)]
    worker: bool,
    /// As a worker: only this share of the tests, such as 0/4
    #[arg(long, hide = true, value_parser = share)]
    share: Option<Share>,
}

fn share(text: &str) -> Result<Share, String> {
    let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
    let share = numbers.map(|(number, of)| Share { number, of });
    share.filter(|share| share.number < share.of).ok_or_else(|| "give a share such as 0/4".to_string())
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Choice {
    Cpu,
    Cuda,
    Emulated,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Only {
    /// Every operator
    Operators,
    /// Operators with kernels of pipeplan, once each, on short sequences; matrix products run in a library
    Kernels,
    /// Runs of whole plans, and NCCL
    Runs,
    /// Times, of a GPU
    Speed,
}

impl From<Only> for Part {
    fn from(only: Only) -> Part {
        match only {
            Only::Operators => Part::Operators,
            Only::Kernels => Part::Kernels,
            Only::Runs => Part::Runs,
            Only::Speed => Part::Speed,
        }
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(engine) = args.transport {
        let (rows, ranks, is_first) = match engine {
            Engine::Threads => {
                let rows = collectives::check_threads(args.ranks.into()).map_err(Failure::work)?;
                (rows, args.ranks.into(), true)
            }
            Engine::Tcp => check_processes(processes::tcp_link(u64::MAX, PATIENCE)?)?,
            Engine::Nccl => return Err(Failure::input("selftest --device cuda tests NCCL itself")),
            Engine::Mpi => {
                // From here on SIGTERM is noticed.
                interrupt::flag();
                check_processes(processes::mpi_link()?)?
            }
        };
        let name = engine.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string());
        let report = Report { device: format!("{ranks} ranks over {name}"), rows, profile: None, rate: None };
        return if is_first { show(&report, args.json) } else { Ok(()) };
    }
    let device = match args.device {
        Choice::Cpu => Device::Cpu,
        Choice::Cuda => Device::Cuda(args.gpu),
        Choice::Emulated => Device::Emulated,
    };
    let deadline = Instant::now() + Duration::from_secs(args.within);
    if args.worker {
        let only = args.only.map(Part::from);
        let share = args.share.unwrap_or(Share::ALL);
        return worker::work(Asked { device, only, apart: args.apart, deadline, past: BTreeSet::new(), share });
    }
    if let Some(path) = &args.profile {
        let table = if args.json { "--json" } else { "the table" };
        output::expect_one_document([("--profile -", path == "-"), (table, true)])?;
        output::expect_room_at(path)?;
    }
    let report = on_device(&args, device, deadline)?;
    let written = match (&args.profile, &report.profile) {
        (None, _) => Ok(()),
        (Some(path), Some(profile)) => output::write(path, profile.to_json().as_bytes()),
        (Some(_), None) => {
            Err(Failure::work("--profile: nothing was written, because not all operators of a GPU were measured"))
        }
    };
    // The table comes whatever became of the profile.
    show(&report, args.json).and(written)
}

/// All rows of `device`: those of a worker, and of other programs behind it.
fn on_device(args: &Args, device: Device, deadline: Instant) -> Result<Report, Failure> {
    let this = std::env::current_exe().map_err(Failure::work)?;
    let name = |choice: Option<clap::builder::PossibleValue>| choice.map(|value| value.get_name().to_string());
    let command = |variables: Variables| {
        let mut command = Command::new(&this);
        command.envs(variables.iter().copied());
        command.args(["selftest", "--worker", "--device"]).args(name(args.device.to_possible_value()));
        if let Some(only) = args.only.and_then(|only| name(only.to_possible_value())) {
            command.args(["--only", &only]);
        }
        if args.apart {
            command.arg("--apart");
        }
        let left = deadline.saturating_duration_since(Instant::now()).as_secs().max(1);
        command.args(["--gpu", &args.gpu.to_string(), "--within", &left.to_string()]);
        command
    };
    // The table comes last; meanwhile a person sees that something happens.
    let tell = |row: &Row| {
        if !args.json {
            output::tell(&format!("{:>4}  {}: {}", mark(row), row.group, row.name));
        }
    };
    let (mut report, variables) = worker::watch(command, deadline, worker::SILENCE, tell)?;
    let (rate, rows) = (report.rate, &mut report.rows);
    beside(args, device, deadline, variables, rate, |row| {
        tell(&row);
        rows.push(row);
    });
    Ok(report)
}

/// What NCCL, compute-sanitizer and PyTorch say of a GPU, where these are installed; `rate` is ours, in tokens a second, and
/// `variables` what the device has to be opened with.
#[cfg(feature = "cuda")]
fn beside(
    args: &Args,
    device: Device,
    deadline: Instant,
    variables: Variables,
    rate: Option<f64>,
    mut add: impl FnMut(Row),
) {
    let Device::Cuda(gpu) = device else { return };
    let has = |part: Part| args.only.is_none_or(|only| part == only.into());
    if has(Part::Runs) {
        super::selftest_nccl::check(gpu, deadline, variables).into_iter().for_each(&mut add);
    }
    // Checkers take all the time that there is.
    if let Some(rate) = rate {
        add(pipeplan::selftest::compare_with_torch(device, rate, deadline));
    }
    // That of the whole test starts a worker for the operators.
    if args.only.is_none() {
        super::selftest_sanitizer::TOOLS
            .iter()
            .for_each(|tool| add(super::selftest_sanitizer::check(tool, gpu, deadline, variables)));
    }
}

#[cfg(not(feature = "cuda"))]
fn beside(_: &Args, _: Device, _: Instant, _: Variables, _: Option<f64>, _: impl FnMut(Row)) {}

/// How long a rank may wait for another.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rows of a world of processes, how many they are, and whether this one is the first.
fn check_processes<L: Link + 'static>(link: L) -> Result<(Vec<Row>, usize, bool), Failure> {
    let mut end = Processes::new(link, PATIENCE);
    let rows = collectives::check(&mut end).map_err(Failure::work)?;
    let (ranks, is_first) = (end.world(), end.rank() == 0);
    end.control().leave();
    Ok((rows, ranks, is_first))
}

fn show(report: &Report, as_json: bool) -> Result<(), Failure> {
    let failed = report.rows.iter().filter(|row| row.passed == Some(false)).count();
    if as_json {
        let rows: Vec<Value> = report
            .rows
            .iter()
            .map(|row| {
                let Row { group, name, found, against, passed } = row;
                json!({ "group": group, "name": name, "found": found, "against": against, "passed": passed })
            })
            .collect();
        output::print_json(&json!({ "device": report.device, "rows": rows, "failed": failed }))?;
    } else {
        let rows: Vec<Vec<String>> = report
            .rows
            .iter()
            .map(|row| {
                let Row { group, name, found, against, .. } = row;
                vec![group.to_string(), name.clone(), found.clone(), against.clone(), mark(row).to_string()]
            })
            .collect();
        let header = ["", "what", "found", "against", ""];
        let table = format::table(&header, &rows, 0);
        output::print(&format!("{}\n\n{table}\n{} rows, {failed} failed\n", report.device, rows.len()))?;
    }
    if failed > 0 {
        return Err(Failure::work(format!("{failed} rows of the table failed")));
    }
    Ok(())
}

fn mark(row: &Row) -> &'static str {
    match row.passed {
        Some(true) => "ok",
        Some(false) => "FAIL",
        None => "",
    }
}
