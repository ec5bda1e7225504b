//! Child processes that do not outlive a test.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// A child with the lines that it prints. Dropping it ends it and all that it started.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts `command` with both outputs read line by line.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub fn start(command: &mut Command) -> Running {
        // A group of its own, so that a browser's helpers end with it.
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().map(|out| Box::new(out) as Box<dyn std::io::Read + Send>);
        let stderr = child.stderr.take().map(|out| Box::new(out) as Box<dyn std::io::Read + Send>);
        for out in [stdout, stderr].into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        Running { child, lines }
    }

    /// The first line for which `wanted` finds something, and what it finds.
    ///
    /// # Panics
    /// Where none comes in time; with all lines seen.
    pub fn line<T>(&self, within: Duration, mut wanted: impl FnMut(&str) -> Option<T>) -> T {
        let end = Instant::now() + within;
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if let Some(found) = wanted(&line) {
                return found;
            }
            seen.push(line);
        }
        panic!("the line waited for did not come; what came is\n{}", seen.join("\n"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of the tests. Cargo says it when it runs them: what it has built may be of another checkout with the same cache.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
    })
}

/// The top of the checkout.
pub fn top() -> &'static Path {
    folder().parent().unwrap_or(Path::new("."))
}

/// The `pipeplan` command of this checkout: `PIPEPLAN_BIN`, or built once with cargo.
///
/// # Panics
/// Where it does not build.
pub fn pipeplan() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(given) = std::env::var_os("PIPEPLAN_BIN") {
            return given.into();
        }
        let build =
            Command::new(env!("CARGO")).args(["build", "--quiet", "-p", "pipeplan"]).current_dir(top()).status();
        assert!(build.is_ok_and(|status| status.success()), "`cargo build -p pipeplan` fails");
        // This test stands in TARGET/debug/deps.
        let test = std::env::current_exe().unwrap_or_default();
        test.ancestors().nth(2).unwrap_or(Path::new(".")).join("pipeplan")
    })
}

/// Runs `pipeplan` at the top of the checkout.
///
/// # Panics
/// Where it cannot be started.
pub fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(pipeplan());
    command.args(arguments).current_dir(top()).env("NO_COLOR", "1").stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// As [`run`], for a run that has to end well: its standard output.
///
/// # Panics
/// Where its exit code is not 0; with what it printed.
pub fn printed<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "pipeplan ends with {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Where tests leave what a person may want to look at. Not kept in the repository.
///
/// # Panics
/// Where it cannot be made.
pub fn output(name: &str) -> PathBuf {
    let folder = folder().join("output");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder.join(name)
}
