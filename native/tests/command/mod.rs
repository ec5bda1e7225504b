//! Running the command as a person does.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("pipeplan"));
    command.args(arguments).env("NO_COLOR", "1");
    command
}

/// Exit code, standard output and standard error for this standard input.
pub fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{error}"));
    // A command that never reads its input closes it.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    (status.code(), String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Standard output of a command that has to end well.
pub fn printed(arguments: &[&str], input: &str) -> String {
    let (code, stdout, stderr) = run(arguments, input);
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    stdout
}

pub fn json_of(arguments: &[&str], input: &str) -> Value {
    let text = printed(arguments, input);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
}

/// Standard error of a command that has to refuse its input.
pub fn refused(arguments: &[&str], input: &str) -> String {
    let (code, stdout, stderr) = run(arguments, input);
    assert_eq!(code, Some(2), "{arguments:?}: {stdout}{stderr}");
    assert!(!stderr.is_empty(), "{arguments:?} says nothing");
    stderr
}
