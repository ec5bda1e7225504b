//! `pipeplan run` with a process for each rank.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use pipeplan::bootstrap::{self, Launcher, Place};
use pipeplan::runner::{Computation, Ending, Observer, Refusal, RunError, RunOptions, Workload, run_process};
use pipeplan::transport::processes::Processes;
use pipeplan::transport::rendezvous::Secret;
use pipeplan::transport::secure::Identity;
use pipeplan::transport::tcp::Tcp;

use pipeplan_core::spec::Work;

use super::failure::Failure;
use super::family::{Family, Start};
use super::run::elastic::smaller_numbers;
use super::{input, interrupt, restart};

/// What a run over processes comes to: refused by the command, or ended by the runner.
type Outcome = Result<Result<Ending, RunError>, Failure>;

/// Where this process stands, as its launcher says.
pub fn place() -> Result<Option<Place>, Failure> {
    bootstrap::place(|name| std::env::var(name).ok()).map_err(Failure::input)
}

/// How ranks exchange tensors where a person has not said it: as processes where a launcher has started several, since as
/// threads each of them would make the whole run for itself.
pub fn usual_engine() -> Result<Engine, Failure> {
    let place = place()?.filter(|place| place.world > 1 && place.is_launched);
    let Some(place) = place else { return Ok(Engine::Threads) };
    Ok(match place.launcher {
        Launcher::OpenMpi if cfg!(feature = "mpi") => Engine::Mpi,
        Launcher::Torchrun | Launcher::OpenMpi | Launcher::Slurm => Engine::Tcp,
    })
}

/// Whether a launcher has started this process as one of the ranks.
pub fn is_launched() -> Result<bool, Failure> {
    Ok(place()?.is_some_and(|place| place.is_launched))
}

/// Whether this process is a rank that another process of this command has started.
pub fn is_ours() -> bool {
    std::env::var_os(restart::ENDS_WITH_INPUT).is_some()
}

/// Whether this process is a rank that prints nothing.
pub fn is_silent() -> bool {
    matches!(place(), Ok(Some(place)) if place.rank > 0)
}

/// The transport between ranks.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    Threads,
    Tcp,
    Mpi,
    /// Between GPUs.
    Nccl,
}

/// The longest frame that a rank of `workload` sends: a collective sends no more than all weights, gradients and optimizer
/// states that a rank holds, here in 64 bits instead of 16 and of a whole tensor-parallel group; a message, what a
/// microbatch leaves with a stage. What ranks measured is on top.
fn longest_frame(workload: &Workload) -> u64 {
    const MEASURED: u64 = 1 << 30;
    let problem = &workload.problem;
    let tensor = match &workload.computation {
        Computation::Model(stages) => stages.tensor,
        Computation::Stages(_) | Computation::PlannedTimes { .. } => 1,
    };
    let wider = 4 * u64::from(tensor);
    let held = (0..problem.ranks()).map(|rank| problem.static_bytes(rank)).max().unwrap_or(0);
    // Without factors all microbatches are as the first.
    let microbatches = if problem.differs() { problem.microbatches() } else { 1 };
    let left = (0..problem.stage_count())
        .flat_map(|stage| (0..microbatches).map(move |microbatch| problem.cost_of(stage, microbatch)))
        .map(|cost| cost.forward_bytes.max(0) as u64)
        .max()
        .unwrap_or(0);
    held.max(left).saturating_mul(wider).saturating_add(MEASURED)
}

/// What this process shows of itself over TCP, where it speaks TLS.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

/// Has this process speak TLS over TCP, with what these files hold.
pub fn speak_tls(certificate: &Path, key: &Path, authority: &Path) -> Result<(), Failure> {
    let identity = Identity::read(certificate, key, authority).map_err(Failure::input)?;
    // A command reads them once.
    let _ = IDENTITY.set(identity);
    Ok(())
}

/// What the processes of a run that `launcher` has started know, so that no other is let in.
fn secret(launcher: Launcher) -> Secret {
    let text = bootstrap::secret(|name| std::env::var(name).ok(), launcher);
    Secret::new(text).with(IDENTITY.get().cloned())
}

/// This process' connections to all others, over TCP. No rank sends more than `longest` bytes in one frame.
pub fn tcp_link(longest: u64, patience: Duration) -> Result<Tcp, Failure> {
    let place = place()?.ok_or_else(|| {
        Failure::input("no launcher has set the rank of this process").with_help(
            "Start all ranks with `torchrun --no-python --nproc-per-node 4 pipeplan …` or `srun -n 4 pipeplan …`; \
             or start each rank by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.",
        )
    })?;
    let Some((host, port)) = &place.meeting else {
        let (whence, how) = match place.launcher {
            Launcher::Slurm => (
                format!(": the first host of {} cannot be read", bootstrap::STEP_HOSTS),
                " (`scontrol show hostnames` lists them)",
            ),
            Launcher::Torchrun | Launcher::OpenMpi => (String::new(), " (mpirun: -x MASTER_ADDR=HOST)"),
        };
        return Err(Failure::input(format!("{} does not give the address of rank 0{whence}", place.launcher))
            .with_help(format!(
                "Set MASTER_ADDR to the host of rank 0{how}, and MASTER_PORT to a free port there."
            )));
    };
    let secret = secret(place.launcher);
    Tcp::connect(place.rank, place.world, (host, *port), &secret, longest, patience).map_err(Failure::work)
}

/// Refuses a number of processes that is not that of ranks, before the wait for ranks that do not exist.
fn expect_world(workload: &Workload) -> Result<Result<(), Refusal>, Failure> {
    let other = place()?.filter(|place| place.world != workload.world());
    Ok(other.map_or(Ok(()), |place| Err(Refusal::World { ranks: workload.world(), world: place.world })))
}

/// As [`over_tcp`], for a run whose plan may change: ranks meet once, and no rank ever holds more than all hold of `workload`.
pub fn tcp_for_plans(workload: &Workload, patience: Duration) -> Result<Processes<Tcp>, Failure> {
    expect_world(workload)?.map_err(Failure::input)?;
    let longest = longest_frame(workload).saturating_mul(workload.world() as u64);
    Ok(Processes::new(tcp_link(longest, patience)?, patience))
}

/// This process as one rank, over TCP.
pub fn over_tcp(workload: &Workload, options: &RunOptions, observer: &mut dyn Observer) -> Outcome {
    let patience = options.transport.patience;
    if let Err(refusal) = expect_world(workload)? {
        return Ok(Err(refusal.into()));
    }
    let longest = longest_frame(workload);
    if let Some(place) = place()?.filter(|_| is_ours() && (options.restarting.most > 0 || restart::fewer().is_some()))
    {
        let secret = secret(place.launcher);
        return restart::over_generations(workload, options, observer, &place, (secret, longest));
    }
    Ok(run_process(workload, options, Processes::new(tcp_link(longest, patience)?, patience), observer))
}

/// This process as one rank, over MPI.
pub fn over_mpi(workload: &Workload, options: &RunOptions, observer: &mut dyn Observer) -> Outcome {
    let link = mpi_link()?;
    Ok(run_process(workload, options, Processes::new(link, options.transport.patience), observer))
}

/// This process' end of MPI.
#[cfg(feature = "mpi")]
pub fn mpi_link() -> Result<pipeplan::transport::mpi::Mpi, Failure> {
    pipeplan::transport::mpi::Mpi::start(interrupt::ending()).map_err(Failure::work)
}

/// This build has no MPI: never a link, of whatever type.
#[cfg(not(feature = "mpi"))]
pub fn mpi_link() -> Result<Tcp, Failure> {
    Err(Failure::input("this binary was built without MPI").with_help(
        "Build it with `cargo build --release -p pipeplan --features mpi` (Debian: libopenmpi-dev, libclang-dev), or \
         use --transport tcp.",
    ))
}

/// Starts this command again as one process for each rank of the plan on this machine, and waits for them. None outlives
/// it, even where it is killed. Where the run `trains`, tensor-parallel ranks or sequences have a process each. Where it `saves`
/// checkpoints on its way, an elastic one goes on from them with fewer replicas.
pub fn launch(plan: &str, trains: bool, restarts: u32, saves: bool) -> Result<(), Failure> {
    if plan == "-" {
        return Err(Failure::input("every rank reads the plan, but standard input can be read once")
            .with_help("Write the plan to a file."));
    }
    let plan = input::plan(plan)?;
    let copies = match &plan.spec.work {
        Work::Model(work) => {
            let form = &work.layout.form;
            let together = if trains { [form.tensor, form.context] } else { [1, 1] };
            together
                .iter()
                .fold(work.layout.data.max(1) as usize, |ranks, ways| ranks.saturating_mul((*ways).max(1) as usize))
        }
        Work::Typed(_) => 1,
    };
    let ranks = plan.problem.ranks().saturating_mul(copies);
    let smaller = match &plan.spec.work {
        Work::Model(work) if trains && saves => {
            let of_replica = ranks / work.layout.data.max(1) as usize;
            smaller_numbers(&plan).into_iter().map(|data| data as usize * of_replica).collect()
        }
        _ => Vec::new(),
    };
    // Ctrl-C reaches the processes of a terminal together, and a signal to this one alone is handed on; then it waits
    // until they have ended.
    let (interrupted, again) = (interrupt::flag(), interrupt::again());
    // Another program of this machine may call at that port first.
    let secret = Secret::random().map_err(Failure::work)?;
    let mut family = Family::start(Start { ranks, secret, restarts, smaller })?;
    let code = family.wait(&interrupted, &again)?;
    match code {
        0 => Ok(()),
        // This process was asked to stop, or one of the ranks was.
        130 => Err(Failure::stopped("stopped before the last step")),
        2 => Err(Failure::input("the ranks refused the run")),
        _ => Err(Failure::work("the run failed")),
    }
}
