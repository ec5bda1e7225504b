//! The README's commands, run as they stand there.
//!
//! With `PIPEPLAN_UPDATE=1` in the environment what they print is written into the README; read the diff.

use pipeplan_tests::process::{run, top};

#[test]
fn the_commands_of_the_readme_work() {
    let path = top().join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut written = String::new();
    let mut commands = 0;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        written.push_str(line);
        written.push('\n');
        if line != "```console" {
            continue;
        }
        let command =
            lines.next().and_then(|line| line.strip_prefix("$ pipeplan ")).expect("a command after ```console");
        let output = run(command.split_whitespace());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`pipeplan {command}` ends with {}\n{error}", output.status);
        commands += 1;
        // What a person sees, without blanks at the ends of lines.
        let printed = [String::from_utf8_lossy(&output.stdout), error].concat();
        let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
        written.push_str(&format!("$ pipeplan {command}\n{}\n```\n", printed.join("\n").trim_end()));
        lines.by_ref().find(|line| *line == "```").expect("the end of a block");
    }
    assert!(commands >= 3, "only {commands} commands");
    if std::env::var_os("PIPEPLAN_UPDATE").is_some() {
        std::fs::write(path, written).unwrap();
    }
}
