//! The commands of the pages, run as they stand there, each page in a folder of its own.
//!
//! A block that begins with ```` ```console ```` is run: each line after `$ ` by a shell that finds `pipeplan`, `examples`
//! and what earlier commands of the page wrote. What it prints is compared with what the page shows. A comment on the line
//! before the block says otherwise:
//!
//! - `<!-- varies: REASON -->`: run, and not compared, since times of this machine are in it.
//! - `<!-- not run: REASON -->`: not run; the reason is one of [`REASONS`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use pipeplan_tests::process::{pipeplan, top};

use crate::pages::{book, is_update, pages};

/// Why a command of a page is not run by the tests.
const REASONS: [&str; 6] =
    ["needs a GPU", "needs mpirun", "needs Slurm", "needs several machines", "needs torch", "serves until Ctrl-C"];

#[test]
fn the_commands_of_the_readme_work() {
    let commands = run_commands_of(&top().join("README.md"));
    assert!(commands.run >= 3, "only {} commands", commands.run);
}

#[test]
fn the_commands_of_the_book_work() {
    let mut skipped = Vec::new();
    let mut run = 0;
    for page in pages() {
        let commands = run_commands_of(&page);
        run += commands.run;
        skipped.extend(commands.skipped);
    }
    println!("{run} commands are run. Not run:\n{}", skipped.join("\n"));
    assert!(run >= 40, "only {run} commands");
}

/// A command line of pipeplan outside of a block that is run would not be noticed when it breaks.
#[test]
fn every_command_line_is_in_a_block_that_is_run() {
    let mut all = pages();
    all.push(top().join("README.md"));
    for page in all.iter().filter(|page| !page.starts_with(book().join("reference"))) {
        let text = std::fs::read_to_string(page).unwrap();
        let mut block = None;
        for line in text.lines() {
            match line.strip_prefix("```") {
                Some(language) => block = block.is_none().then_some(language),
                None => assert!(
                    block.is_none_or(|language| language == "console") || !line.starts_with("pipeplan "),
                    "{}: `{line}` is not run: put it into a ```console block, behind `$ `",
                    page.display()
                ),
            }
        }
    }
}

/// What became of the commands of a page.
struct Commands {
    run: usize,
    /// Each with its page and the reason.
    skipped: Vec<String>,
}

/// What a comment says of the block that follows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Compared,
    Varies,
    Skipped,
}

fn run_commands_of(path: &Path) -> Commands {
    let name = path.strip_prefix(top()).unwrap().display().to_string();
    let text = std::fs::read_to_string(path).unwrap();
    let folder = folder_of(&name);
    let mut written = String::new();
    let mut commands = Commands { run: 0, skipped: Vec::new() };
    let mut mark = Mark::Compared;
    let mut reason = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        written.push_str(line);
        written.push('\n');
        if line != "```console" {
            (mark, reason) = mark_of(line, &name);
            continue;
        }
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        assert!(block.first().is_some_and(|line| line.starts_with("$ ")), "{name}: a command after ```console");
        let typed = typed_in(&block);
        if mark == Mark::Skipped {
            commands.skipped.extend(typed.iter().map(|command| format!("  {name}: {command} ({reason})")));
            written.extend(block.iter().map(|line| format!("{line}\n")));
        } else {
            let shown = |command: &String| {
                format!("$ {}\n{}", command.replace('\n', "\n> "), run_in(&folder, command, &name))
            };
            let shown: String = typed.iter().map(shown).collect();
            commands.run += typed.len();
            let before: String = block.iter().map(|line| format!("{line}\n")).collect();
            assert!(
                is_update() || mark == Mark::Varies || shown == before,
                "{name} shows\n{before}\nand the program prints\n{shown}\n\
                 Write it anew: PIPEPLAN_UPDATE=1 cargo test -p pipeplan-tests --test readme"
            );
            written.push_str(&shown);
        }
        written.push_str("```\n");
        (mark, reason) = (Mark::Compared, "");
    }
    if is_update() {
        std::fs::write(path, written).unwrap();
    }
    commands
}

/// The commands of a block: what follows `$ `, and the lines right behind it that continue it after `> `.
fn typed_in(block: &[&str]) -> Vec<String> {
    let mut typed: Vec<String> = Vec::new();
    let mut continues = false;
    for line in block {
        if let Some(command) = line.strip_prefix("$ ") {
            typed.push(command.to_owned());
            continues = true;
        } else if let (true, Some(more), Some(command)) = (continues, line.strip_prefix("> "), typed.last_mut()) {
            command.push('\n');
            command.push_str(more);
        } else {
            continues = false;
        }
    }
    typed
}

/// What `line` says of a block that follows it, and why.
fn mark_of<'a>(line: &'a str, page: &str) -> (Mark, &'a str) {
    let said = |start| line.strip_prefix(start).and_then(|rest: &str| rest.strip_suffix(" -->"));
    if let Some(reason) = said("<!-- varies: ") {
        return (Mark::Varies, reason);
    }
    let Some(reason) = said("<!-- not run: ") else { return (Mark::Compared, "") };
    assert!(REASONS.contains(&reason), "{page}: `{reason}` is no reason not to run a command: {REASONS:?}");
    (Mark::Skipped, reason)
}

/// What a person sees of `command`, without blanks at the ends of lines.
fn run_in(folder: &Path, command: &str, page: &str) -> String {
    let mut shell = Command::new("sh");
    // One stream, as a person sees it.
    shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(folder).stdin(Stdio::null());
    let paths = [programs().to_owned(), PathBuf::from(std::env::var_os("PATH").unwrap_or_default())];
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    shell.env("PATH", paths.join(":")).env("NO_COLOR", "1").env_remove("COLUMNS");
    let output = shell.output().unwrap_or_else(|error| panic!("{command}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{page}: `{command}` ends with {}\n{printed}", output.status);
    let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let printed = lines.join("\n");
    let printed = printed.trim_end();
    if printed.is_empty() { String::new() } else { format!("{printed}\n") }
}

/// An empty folder for the commands of a page, with the examples in it, and what other programs wrote for tests.
fn folder_of(page: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book").join(page.replace('/', "-"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for shown in ["examples", "tests"] {
        std::os::unix::fs::symlink(top().join(shown), folder.join(shown)).unwrap();
    }
    folder
}

/// A folder in which the command of this checkout is called `pipeplan`.
pub fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bin");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let program = std::fs::canonicalize(pipeplan()).unwrap();
        std::os::unix::fs::symlink(program, folder.join("pipeplan")).unwrap();
        folder
    })
}
