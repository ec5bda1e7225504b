//! Every operator under compute-sanitizer: a part of `pipeplan selftest`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use pipeplan::backend::cuda::warp_group_trial;
use pipeplan::selftest::{Row, subprocess};

use super::selftest_worker::Variables;

const GROUP: &str = "compute-sanitizer";

/// What it looks for: accesses outside of memory, and of shared memory without a barrier between.
pub const TOOLS: [&str; 2] = ["memcheck", "racecheck"];

/// How long one may take of the time that is left: it slows kernels down many times.
const LONGEST: Duration = Duration::from_secs(180);

/// The most processes that it runs at once, each on a share of the operators: all of them take the GPU's memory.
const MOST_AT_ONCE: usize = 12;

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

/// Whether `tool` finds nothing while all operators run on GPU `gpu`, opened with `variables`, each tensor in its own
/// memory.
pub fn check(tool: &str, gpu: usize, deadline: Instant, variables: Variables) -> Row {
    let what = if tool == "racecheck" { "kernels of our own but those by groups of warps" } else { "operators" };
    let name = format!("{tool}, all {what}");
    let Some(program) = program() else {
        let against = "looked for it in PATH and in /usr/local/cuda".to_string();
        return Row::figure(GROUP, name, "not run".to_string(), against);
    };
    check_by(&program, name, tool, gpu, deadline.min(Instant::now() + LONGEST), variables)
}

/// The same by `program`, as the row `name`.
fn check_by(program: &Path, name: String, tool: &str, gpu: usize, deadline: Instant, variables: Variables) -> Row {
    let this = match std::env::current_exe() {
        Ok(this) => this,
        Err(error) => return Row::broken(GROUP, name, &error),
    };
    // Kernels are made ready for the checker one by one, on a core each.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shares = cores.clamp(1, MOST_AT_ONCE);
    let check = |number| {
        let mut command = Command::new(program);
        // Of this process alone: Python is asked for its folders.
        command.envs(variables.iter().copied());
        share_of(&mut command, tool, &this, gpu, &format!("{number}/{shares}"), deadline)
    };
    let found: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let begun: Vec<_> = (0..shares).map(|number| scope.spawn(move || check(number))).collect();
        let ended = |check: std::thread::ScopedJoinHandle<'_, _>| {
            check.join().unwrap_or_else(|_| Err("it broke".to_string()))
        };
        begun.into_iter().map(ended).collect()
    });
    let (unsaid, wrong): (Vec<&String>, Vec<&String>) = found
        .iter()
        .filter_map(|found| found.as_ref().err())
        .partition(|error| NOT_ITS_VERDICT.iter().any(|why| error.contains(why)));
    match (wrong.first(), unsaid.first()) {
        (Some(error), _) => Row::broken(GROUP, name, error),
        (None, None) => Row::fact(GROUP, name, "clean", "no error, and every row holds", true),
        // Some machines do not let it attach, or are slow under it, which says nothing about the kernels.
        (None, Some(error)) => {
            let clean = shares - unsaid.len();
            let found = format!("not run to its end: {clean} of {shares} parts of them, which are clean");
            Row::figure(GROUP, name, found, error.to_string())
        }
    }
}

/// Whether `tool` finds nothing in such a share of the operators, by `command`, which knows no arguments yet.
fn share_of(
    command: &mut Command,
    tool: &str,
    this: &Path,
    gpu: usize,
    share: &str,
    deadline: Instant,
) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let log = folder.path().join("log");
    // A separate exit code, which the selftest does not use.
    command.args(["--tool", tool, "--error-exitcode", "77", "--print-limit", "5"]);
    command.args(["--target-processes", "application-only", "--destroy-on-device-error", "kernel"]);
    // Libraries of some hundred megabytes are read before the first call that it waits for.
    command.args(["--launch-timeout", "60"]);
    // Calls that fail are seen by who makes them, and libraries make some that may. Between allocations that lie
    // close together
    // there is room, so that an access out of bounds is found.
    if tool == "memcheck" {
        command.args(["--report-api-errors", "no", "--padding", "4096"]);
    }
    // Products' kernels wait for each other in ways that not every version knows, and so do those of attention by groups of
    // warps, whose products read shared memory past the threads that it watches.
    let part = if tool == "racecheck" { "kernels" } else { "operators" };
    if tool == "racecheck" {
        command.env(warp_group_trial::VARIABLE, "warps");
    }
    command.arg("--log-file").arg(&log).arg(this);
    command.args(["selftest", "--device", "cuda", "--only", part, "--apart", "--worker", "--share", share, "--gpu"]);
    command.arg(gpu.to_string());
    let said = subprocess::run(command, deadline).map_err(|error| {
        // Behind its name, what it found first.
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().map(|line| line.trim_start_matches(['=', ' ']));
        let found = lines.filter(|line| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER")).take(2);
        format!("{error}: {}", found.collect::<Vec<_>>().join(", "))
    })?;
    match super::selftest_worker::is_whole(&said.output) {
        true => Ok(()),
        false => Err(NOTHING_RAN.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What becomes of the first share of the operators becomes of the row; the others end well.
    #[test]
    fn a_share_that_finds_something_or_does_not_end_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("compute-sanitizer");
        let row = |first: &str, seconds: u64| {
            let script =
                format!("#!/bin/sh\ncase \"$*\" in *'--share 0/'*) {first} ;; *) echo '\"Whole\"' ;; esac\n");
            std::fs::write(&program, script).expect("it is written");
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it may run");
            let deadline = Instant::now() + Duration::from_secs(seconds);
            check_by(&program, "kernels".to_string(), "racecheck", 0, deadline, &[])
        };
        let clean = row("echo '\"Whole\"'", 600);
        assert_eq!((clean.passed, &*clean.found), (Some(true), "clean"));
        let hazard = row("echo 'a race in a kernel' >&2; exit 77", 600);
        assert!(hazard.passed == Some(false) && hazard.found.contains("a race in a kernel"), "{hazard:?}");
        let early = row("exit 0", 600);
        assert!(early.passed.is_none() && early.against.contains(NOTHING_RAN), "{early:?}");
        let slow = row("exec sleep 600", 3);
        assert!(slow.passed.is_none() && slow.found.starts_with("not run to its end: "), "{slow:?}");
        assert!(slow.against.contains("did not end in time"), "{slow:?}");
    }
}
