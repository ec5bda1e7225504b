//! Every operator under NVIDIA's checker of memory: a part of `pipeplan selftest`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use pipeplan::selftest::{Row, child};

const GROUP: &str = "compute-sanitizer";

/// What it looks for: accesses outside of memory, and of shared memory without a barrier between.
pub const TOOLS: [&str; 2] = ["memcheck", "racecheck"];

/// How long one may take of the time that is left: it slows kernels down many times.
const LONGEST: Duration = Duration::from_secs(180);

/// Where people have it.
fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let toolkits = [home, Some(PathBuf::from("/usr/local/cuda"))].into_iter().flatten();
    let mut folders = std::env::split_paths(&folders)
        .chain(toolkits.flat_map(|kit| [kit.join("bin"), kit.join("compute-sanitizer")]));
    folders.find_map(|folder| Some(folder.join("compute-sanitizer")).filter(|file| file.is_file()))
}

/// Whether `tool` finds nothing while all operators run on GPU `gpu`, each tensor in memory of its own.
pub fn check(tool: &str, gpu: usize, deadline: Instant) -> Row {
    let name = format!("{tool}, all operators");
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
    // A code of its own, apart from those of the selftest.
    let mut command = Command::new(program);
    command.args(["--tool", tool, "--error-exitcode", "77", "--print-limit", "5", "--log-file"]);
    command.arg(&log).arg(this);
    command
        .args(["selftest", "--device", "cuda", "--only", "operators", "--apart", "--worker", "--gpu"])
        .arg(gpu.to_string());
    let deadline = deadline.min(Instant::now() + LONGEST);
    let ran = child::run(&mut command, deadline).map_err(|error| {
        // Behind its name, what it found first.
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().map(|line| line.trim_start_matches(['=', ' ']));
        let found = lines.filter(|line| !line.is_empty() && !line.starts_with("COMPUTE-SANITIZER")).take(2);
        format!("{error}: {}", found.collect::<Vec<_>>().join(", "))
    });
    match ran {
        Ok(_) => Row::fact(GROUP, name, "clean", "no error, and every row holds", true),
        // Some machines do not let it attach, or are slow under it, which says nothing about the kernels.
        Err(error)
            if ["not supported", "not permitted", "did not end in time"].iter().any(|why| error.contains(why)) =>
        {
            Row::figure(GROUP, name, "not run to its end".to_string(), error)
        }
        Err(error) => Row::broken(GROUP, name, &error),
    }
}
