//! `pipeplan selftest`

use std::time::Duration;

use clap::ValueEnum;
use pipeplan::runner::Device;
use pipeplan::selftest::{self, Report, Row, collectives};
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
  pipeplan selftest --transport threads --ranks 4
  mpirun -n 4 pipeplan selftest --transport mpi";

/// Prove on this machine that a device computes what it should, holds the bytes that plans predict, and how fast it is.
///
/// Prints one table; exits with 1 where any row fails, and with 2 where the device cannot be used. Every operator is held
/// against the CPU in f64, runs of whole plans against one rank on the CPU. With --transport it is the collectives of a
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

pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(engine) = args.transport {
        let (rows, ranks, is_first) = match engine {
            Engine::Threads => {
                let rows = collectives::check_threads(args.ranks.into()).map_err(Failure::work)?;
                (rows, args.ranks.into(), true)
            }
            Engine::Tcp => check_processes(processes::tcp_link(PATIENCE)?)?,
            Engine::Nccl => return Err(Failure::input("selftest --device cuda calls NCCL itself")),
            Engine::Mpi => check_processes(processes::mpi_link(&interrupt::flag())?)?,
        };
        let name = engine.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string());
        let report = Report { device: format!("{ranks} ranks over {name}"), rows, profile: None };
        return if is_first { show(&report, args.json) } else { Ok(()) };
    }
    let device = match args.device {
        Choice::Cpu => Device::Cpu,
        Choice::Cuda => Device::Cuda(args.gpu),
        Choice::Emulated => Device::Emulated,
    };
    let tell = |row: &Row| {
        if !args.json {
            // The table comes last; meanwhile a person sees that something happens.
            anstream::eprintln!("{:>4}  {}: {}", mark(row), row.group, row.name);
        }
    };
    let mut report = selftest::run(device, tell).map_err(Failure::input)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        report.rows.push(super::over_nccl::check(gpu));
        report.rows.last().into_iter().for_each(tell);
    }
    let report = report;
    if let Some(path) = &args.profile {
        let profile = report.profile.as_ref();
        let profile = profile.ok_or_else(|| Failure::input("--profile: only a GPU's operators are measured"))?;
        output::write(path, profile.to_json().as_bytes())?;
    }
    show(&report, args.json)
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
