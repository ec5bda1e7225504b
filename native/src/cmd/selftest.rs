//! `pipeplan selftest`

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use pipeplan::runner::Device;
use pipeplan::selftest::{self, News, Part, Report, Row, collectives};
use pipeplan::transport::Transport;
use pipeplan::transport::processes::{Link, Processes};
use serde_json::{Value, json};

use super::fail::Failure;
use super::processes::Engine;
use super::{human, interrupt, output, processes};

const EXAMPLES: &str = "\
Examples:
  pipeplan selftest --device cpu
  pipeplan selftest --device cuda --profile h200.json
  pipeplan selftest --device cuda --only operators
  pipeplan selftest --transport threads --ranks 4
  mpirun -n 4 pipeplan selftest --transport mpi";

/// Prove on this machine that a device computes what it should, holds the bytes that plans predict, and how fast it is.
///
/// Prints one table; exits with 1 where any row fails, and with 2 where the device cannot be used. What fails fails alone:
/// the rest goes on, and the table comes last whatever happens. Every operator is held
/// against the CPU in f64, runs of whole plans against one rank on the CPU. On a GPU the operators run again under
/// compute-sanitizer, and the model once more in PyTorch, where these are installed. With --transport it is the collectives of a
/// transport that are proved, among the ranks that a launcher has started: bit for bit, and how long they take.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// cpu, cuda, or emulated: the kernels of cuda, compiled for the processor by its C++ compiler
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Choice,
    /// Instead of a device: the collectives of this transport
    #[arg(long, value_name = "ENGINE", conflicts_with_all = ["device", "gpu", "profile"])]
    transport: Option<Engine>,
    /// With --transport threads: how many
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Which GPU
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    gpu: usize,
    /// Write the measured times of operators here
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,
    /// Only a part of it
    #[arg(long, value_name = "PART", conflicts_with = "transport")]
    only: Option<Only>,
    /// Every tensor of the operators in memory of its own, so that compute-sanitizer sees whoever leaves it
    #[arg(long, conflicts_with = "transport")]
    apart: bool,
    /// How long all may take: what has not begun by then fails, and what then does not end is named
    #[arg(long, value_name = "SECONDS", default_value_t = 540, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    within: u64,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
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
    /// Runs of whole plans, and NCCL
    Runs,
    /// Times, of a GPU
    Speed,
}

impl From<Only> for Part {
    fn from(only: Only) -> Part {
        match only {
            Only::Operators => Part::Operators,
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
            Engine::Tcp => check_processes(processes::tcp_link(PATIENCE)?)?,
            Engine::Nccl => return Err(Failure::input("selftest --device cuda calls NCCL itself")),
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
    let (only, within) = (args.only.map(Part::from), Duration::from_secs(args.within));
    let report = on_device(device, only, args.apart, within, !args.json)?;
    let written = match (&args.profile, &report.profile) {
        (None, _) => Ok(()),
        (Some(path), Some(profile)) => output::write(path, profile.to_json().as_bytes()),
        (Some(_), None) => {
            Err(Failure::work("--profile: nothing was written, since not all operators of a GPU were measured"))
        }
    };
    // The table comes whatever became of the profile.
    show(&report, args.json).and(written)
}

/// How much longer than [`Args::within`] what is under way then may take.
const GRACE: Duration = Duration::from_secs(30);

/// Tests `device` on another thread, so that what does not end is told of and not waited for.
fn on_device(
    device: Device,
    only: Option<Part>,
    apart: bool,
    within: Duration,
    is_shown: bool,
) -> Result<Report, Failure> {
    let deadline = Instant::now() + within;
    let (tell, hear) = channel();
    let worker = std::thread::spawn(move || {
        let say = |news| {
            // Nobody listens only after all has been given up.
            let _ = tell.send(news);
        };
        test(device, only, apart, deadline, say)
    });
    let mut report = Report { device: String::new(), rows: Vec::new(), profile: None, rate: None };
    let mut under_way = "opening the device".to_string();
    loop {
        match hear.recv_timeout((deadline + GRACE).saturating_duration_since(Instant::now())) {
            Ok(News::Device(name)) => report.device = name,
            Ok(News::Begins(what)) => under_way = what,
            Ok(News::Found(row)) => {
                if is_shown {
                    // The table comes last; meanwhile a person sees that something happens.
                    anstream::eprintln!("{:>4}  {}: {}", mark(&row), row.group, row.name);
                }
                report.rows.push(row);
            }
            Err(RecvTimeoutError::Timeout) => {
                report.rows.push(Row::broken("time", under_way, &"did not end in time: the rest was not tested"));
                return Ok(report);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match worker.join() {
        Ok(result) => result.map_err(Failure::input),
        Err(_) => {
            report.rows.push(Row::broken("time", under_way, &"it panicked: the rest was not tested"));
            Ok(report)
        }
    }
}

/// All rows of `device`.
fn test(
    device: Device,
    only: Option<Part>,
    apart: bool,
    deadline: Instant,
    say: impl Fn(News),
) -> Result<Report, String> {
    let mut report = selftest::run(device, only, apart, deadline, &say)?;
    let has = |part| only.is_none_or(|only| only == part);
    let mut add = |row: Row| {
        say(News::Found(row.clone()));
        report.rows.push(row);
    };
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        if has(Part::Runs) {
            say(News::Begins("NCCL: ranks in several processes".to_string()));
            add(super::over_nccl::check(gpu, deadline));
        }
        if let Some(rate) = report.rate {
            say(News::Begins("speed: PyTorch".to_string()));
            add(selftest::beside_torch(device, rate, deadline));
        }
        // That of the whole test starts itself again.
        if only.is_none() {
            for tool in super::sanitizer::TOOLS {
                say(News::Begins(format!("compute-sanitizer: {tool}")));
                add(super::sanitizer::check(tool, gpu, deadline));
            }
        }
    }
    Ok(report)
}

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
                vec![(*group).to_string(), name.clone(), found.clone(), against.clone(), mark(row).to_string()]
            })
            .collect();
        let header = ["", "what", "found", "against", ""];
        let table = human::table(&header, &rows, 0);
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
