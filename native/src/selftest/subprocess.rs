//! Programs that a test starts, each with an end.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
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
    let mut child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(fail)?;
    let status = loop {
        match child.try_wait().map_err(fail)? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => {
                // What looks like a program may be a script that starts one. Not a separate process group: a
                // terminal's Ctrl-C is
                // to reach all of them.
                let started = all_below(child.id());
                let _ = child.kill();
                started.into_iter().for_each(|process| _ = kill(process, Signal::SIGKILL));
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

/// What `process` has started, and what that has.
fn all_below(process: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, status(id)?.1))).collect();
    let mut below = vec![process];
    let mut at = 0;
    while let Some(parent) = below.get(at).copied() {
        below.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| id));
        at += 1;
    }
    below.drain(1..).map(|id| Pid::from_raw(id as i32)).collect()
}

/// State of a process, by its letter, and who started it (proc(5)).
fn status(process: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind its name, which may hold anything.
    let mut fields = text.rsplit(") ").next()?.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let script = run(Command::new("sh").args(["-c", "sleep 600 & echo $! >&2; wait"]), within(1));
        let script = script.expect_err("it is endless");
        let started = script.rsplit(' ').next().and_then(|id| id.parse().ok()).expect("a number");
        // All that may be left of it is that nobody has asked how it ended.
        let is_gone = || status(started).is_none_or(|(state, _)| state == 'Z');
        let patience = within(60);
        while !is_gone() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_gone(), "process {started} runs on");
    }
}
