//! Every operator under NVIDIA's checker of memory: a part of `pipeplan selftest`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pipeplan::backend::cuda::groups;
use pipeplan::selftest::{Row, child};

use super::selftest_worker::Variables;

const GROUP: &str = "compute-sanitizer";

/// What it looks for: accesses outside of memory, and of shared memory without a barrier between.
pub const TOOLS: [&str; 2] = ["memcheck", "racecheck"];

/// How long one may take of the time that is left: it slows kernels down many times.
const LONGEST: Duration = Duration::from_secs(180);

/// What it says where it cannot look.
const NOT_ITS_VERDICT: [&str; 9] = [
    "not supported",
    "not permitted",
    "did not end in time",
    // Of kernels that are tried out when a card is opened, and are many times as slow under it.
    "has not ended within",
    "before first instrumented API call",
    "Internal Sanitizer Error",
    "Unable to find",
    "No attachable process",
    NOTHING_RAN,
];

/// Said where a checker ends well and what it was to check never did.
const NOTHING_RAN: &str = "it ended well, and the test did not end under it";

/// Where people have it.
fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    // The system's, the newest last.
    let mut system: Vec<PathBuf> =
        std::fs::read_dir("/usr/local").into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    system.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda")));
    system.sort();
    let toolkits = home.into_iter().chain(system.into_iter().rev());
    let mut folders = std::env::split_paths(&folders)
        .chain(toolkits.flat_map(|kit| [kit.join("bin"), kit.join("compute-sanitizer")]));
    folders.find_map(|folder| Some(folder.join("compute-sanitizer")).filter(|file| file.is_file()))
}

/// Whether `tool` finds nothing while all operators run on GPU `gpu`, opened with `variables`, each tensor in memory of its own.
pub fn check(tool: &str, gpu: usize, deadline: Instant, variables: Variables) -> Row {
    let what = if tool == "racecheck" { "kernels of our own but those by groups of warps" } else { "operators" };
    let name = format!("{tool}, all {what}");
    let Some(program) = program() else {
        let against = "looked for it in PATH and in /usr/local/cuda".to_string();
        return Row::figure(GROUP, name, "not run".to_string(), against);
    };
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return Row::broken(GROUP, name, &error),
    };
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return Row::broken(GROUP, name, &error),
    };
    let log = folder.path().join("log");
    // A code of its own, apart from those of the selftest. Of this process alone: Python is asked for its folders.
    let mut command = Command::new(program);
    command.envs(variables.iter().copied());
    command.args(["--tool", tool, "--error-exitcode", "77", "--print-limit", "5"]);
    command.args(["--target-processes", "application-only", "--destroy-on-device-error", "kernel"]);
    // Libraries of some hundred megabytes are read before the first call that it waits for.
    command.args(["--launch-timeout", "60"]);
    // Calls that fail are seen by who makes them, and libraries make some that may. Between allocations that lie close together
    // there is room, so that whoever leaves one is seen.
    if tool == "memcheck" {
        command.args(["--report-api-errors", "no", "--padding", "4096"]);
    }
    // Products' kernels wait for each other in ways that not every version knows, and so do those of attention by groups of
    // warps, whose products read shared memory past the threads that it watches.
    let part = if tool == "racecheck" { "kernels" } else { "operators" };
    if tool == "racecheck" {
        command.env(groups::VARIABLE, "warps");
    }
    command.arg("--log-file");
    command.arg(&log).arg(this);
    command
        .args(["selftest", "--device", "cuda", "--only", part, "--apart", "--worker", "--gpu"])
        .arg(gpu.to_string());
    let deadline = deadline.min(Instant::now() + LONGEST);
    let ran = child::run(&mut command, deadline).map_err(|error| {
        // Behind its name, what it found first.
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().map(|line| line.trim_start_matches(['=', ' ']));
        let found = lines.filter(|line| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER")).take(2);
        format!("{error}: {}", found.collect::<Vec<_>>().join(", "))
    });
    let ran = ran.and_then(|said| match super::selftest_worker::is_whole(&said.output) {
        true => Ok(()),
        false => Err(NOTHING_RAN.to_string()),
    });
    match ran {
        Ok(()) => Row::fact(GROUP, name, "clean", "no error, and every row holds", true),
        // Some machines do not let it attach, or are slow under it, which says nothing about the kernels.
        Err(error) if NOT_ITS_VERDICT.iter().any(|why| error.contains(why)) => {
            Row::figure(GROUP, name, "not run to its end".to_string(), error)
        }
        Err(error) => Row::broken(GROUP, name, &error),
    }
}
