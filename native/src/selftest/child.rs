//! Programs that a test starts, each with an end.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// What a program has left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// On standard output.
    pub output: String,
    /// On standard error.
    pub errors: String,
}

/// Runs `command` until it ends, or until `deadline`, when it is ended with all that it has started.
///
/// # Errors
/// Why it could not be started or did not end well.
pub fn run(command: &mut Command, deadline: Instant) -> Result<Said, String> {
    const PAUSE: Duration = Duration::from_millis(20);
    let fail = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(fail)?;
    // Files take whatever is said; a pipe that nobody reads would stop the program.
    let paths = ["output", "errors"].map(|name| folder.path().join(name));
    let [output, errors] = [File::create(&paths[0]).map_err(fail)?, File::create(&paths[1]).map_err(fail)?];
    // A group of its own: what looks like a program may be a script that starts one.
    let command = command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn().map_err(fail)?;
    let status = loop {
        match child.try_wait().map_err(fail)? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => {
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    let read = |at: usize| std::fs::read(&paths[at]).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let said = Said { output: read(0).map_err(fail)?, errors: read(1).map_err(fail)? };
    // What went wrong may take some lines, the last of which need not be the one that counts.
    const MOST: usize = 6;
    let lines: Vec<&str> = said.errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = match lines.len() {
        0 => "it said nothing".to_string(),
        count => lines[count.saturating_sub(MOST)..].join("; "),
    };
    match status {
        None => Err(format!("it did not end in time; its last words: {last}")),
        Some(status) if !status.success() => Err(last),
        Some(_) => Ok(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all that is left of a process is that nobody has asked how it ended.
    fn is_zombie(process: i32) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let within = |seconds| Instant::now() + Duration::from_secs(seconds);
        let said = run(Command::new("sh").args(["-c", "echo one; echo two >&2"]), within(60)).expect("it runs");
        assert_eq!(said, Said { output: "one\n".to_string(), errors: "two\n".to_string() });
        assert_eq!(run(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), within(60)), Err("why".to_string()));
        let many = run(Command::new("sh").args(["-c", "seq 9 >&2; exit 3"]), within(60));
        assert_eq!(many, Err("4; 5; 6; 7; 8; 9".to_string()));
        let endless = run(Command::new("sh").args(["-c", "echo here >&2; exec sleep 600"]), within(1));
        assert_eq!(endless, Err("it did not end in time; its last words: here".to_string()));
        // What a script has started ends with it.
        let script = run(Command::new("sh").args(["-c", "sleep 600 & echo $! >&2; wait"]), within(1))
            .expect_err("it is endless");
        let started = script.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
        let is_gone = || nix::sys::signal::kill(Pid::from_raw(started), None).is_err();
        let ends = (0..500).any(|_| {
            is_gone() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(ends || is_zombie(started), "process {started} runs on");
    }
}
