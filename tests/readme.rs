//! The commands of README.md and of docs/, run as they stand there.
//!
//! With `PIPEPLAN_UPDATE=1` in the environment what they print is written into the page; read the diff.

use std::path::Path;

use pipeplan_tests::process::{run, top};

#[test]
fn the_commands_of_the_readme_work() {
    let commands = run_commands_of(&top().join("README.md"));
    assert!(commands >= 3, "only {commands} commands");
}

#[test]
fn the_commands_of_the_docs_work() {
    let pages = std::fs::read_dir(top().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let commands: usize = pages.map(|path| run_commands_of(&path)).sum();
    assert!(commands >= 1, "no commands");
}

/// Every file that a page links to is there.
#[test]
fn links_between_pages_lead_somewhere() {
    let docs = std::fs::read_dir(top().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| top().join(name)));
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or("");
            if !file.is_empty() && !file.contains("://") {
                assert!(page.parent().unwrap().join(file).exists(), "{}: no file at {link}", page.display());
                links += 1;
            }
        }
    }
    assert!(links >= 10, "only {links} links");
}

/// Runs the commands of a page, and says how many there are.
fn run_commands_of(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap();
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
    if std::env::var_os("PIPEPLAN_UPDATE").is_some() {
        std::fs::write(path, written).unwrap();
    }
    commands
}
