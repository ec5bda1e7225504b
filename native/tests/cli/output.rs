//! What commands write: files, standard output, the terminal, help.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::command::{command, printed, refused, run};

use super::{PROBLEM, TINY, folder, path, trained, write};

#[test]
fn no_file_steers_the_terminal() {
    let (escaped, plain) = ("\\u001b[31m\\u009b1mX", "\u{1b}[31m\u{9b}1mX");
    let named = TINY.replace("tiny-llama", escaped);
    let keyed = TINY.replace("[model]", &format!("[model]\n\"{escaped}\" = 1"));
    let raw = TINY.replace("[model]", &format!("[model]\n{plain} = 1"));
    let titled = format!("name = \"{escaped}\"\n{TINY}");
    for (input, says) in [
        (named, "model.name: found"),
        (keyed, "an unknown field"),
        (raw, "this is not TOML"),
        (titled, "none of them a control character"),
    ] {
        let mut command = command(&["plan", "-"]);
        // As to a terminal, which takes colours.
        let child = command.env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1").stdin(Stdio::piped());
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let stderr = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert!(stderr.contains(says), "{stderr:?} should say {says}");
        let from_file: Vec<&str> = stderr.split("1mX").collect();
        assert!(from_file.len() > 1, "{stderr:?} should show what is wrong");
        for before in from_file {
            assert!(!before.ends_with(['\u{1b}', '\u{9b}']) && !before.contains("\u{1b}[31m?"), "{stderr:?}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_no_fault_of_the_input() {
    let (code, _, stderr) = run(&["plan", "-", "-o", "no-such-folder/plan.json"], PROBLEM);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no-such-folder/plan.json cannot be written"), "{stderr}");
    // Before the steps whose measurement would be lost.
    let (code, stdout, stderr) = run(&["run", "-", "--trace", "no-such-folder/trace.json"], TINY);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("no-such-folder/trace.json cannot be written"), "{stderr}");
    let (code, _, stderr) = run(&["plan", "-", "-o", ""], PROBLEM);
    assert!(code == Some(1) && stderr.contains("a file without a name cannot be written"), "{stderr}");
    let folder = folder();
    let file = path(&folder, "file");
    write(&file, "");
    for checkpoints in ["/proc/checkpoints", &file] {
        let (code, _, stderr) = run(&["run", "-", "--steps", "1", "--checkpoint-dir", checkpoints], TINY);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&format!("{checkpoints} cannot be made")), "{stderr}");
    }
}

/// Links go on leading to it, who may read it stays as it was, and what nobody may write is left alone.
#[cfg(unix)]
#[test]
fn a_file_that_is_written_again_stays_what_it_was_but_for_its_content() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    let [target, link, beyond, new] =
        ["target.json", "link.json", "beyond.json", "new.json"].map(|name| path(&folder, name));
    let mode_of = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let plan = printed(&["plan", "-", "--json"], PROBLEM);
    for (mode, to) in [(0o600, &target), (0o640, &link), (0o666, &beyond)] {
        write(&target, "before");
        std::fs::set_permissions(&target, PermissionsExt::from_mode(mode)).unwrap();
        for (link, leads_to) in [(&link, "target.json"), (&beyond, &*link)] {
            let _ = std::fs::remove_file(link);
            symlink(leads_to, link).unwrap();
        }
        printed(&["plan", "-", "-o", to], PROBLEM);
        assert_eq!((std::fs::read_to_string(&target).unwrap(), mode_of(&target)), (plan.clone(), mode), "{to}");
        assert!([&link, &beyond].iter().all(|link| std::fs::symlink_metadata(link).unwrap().is_symlink()), "{to}");
    }
    // One that leads to no file yet makes it; one that leads to itself leads nowhere.
    symlink("new.json", path(&folder, "to-new.json")).unwrap();
    printed(&["plan", "-", "-o", &path(&folder, "to-new.json")], PROBLEM);
    assert_eq!(std::fs::read_to_string(&new).unwrap(), plan);
    let circle = path(&folder, "circle.json");
    symlink("circle.json", &circle).unwrap();
    assert_eq!(run(&["plan", "-", "-o", &circle], PROBLEM).0, Some(1));

    write(&target, "before");
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o444)).unwrap();
    for to in [&target, &link] {
        let (code, _, stderr) = run(&["plan", "-", "-o", to], PROBLEM);
        assert!(
            code == Some(1) && stderr.contains("cannot be written: the file exists and is read-only"),
            "{stderr}"
        );
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "before");
    }
    // Nothing half-written is left behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6);
}

/// As plans are: whole or not at all, and to standard output for `-`.
#[cfg(unix)]
#[test]
fn logits_are_written_as_all_files_are() {
    let folder = folder();
    let checkpoint = trained(&folder);
    let file = path(&folder, "logits.safetensors");
    let arguments = ["evaluate", &checkpoint, "--windows", "2", "--logits"];
    let said = printed(&[&arguments[..], &[&file]].concat(), "");
    assert!(said.contains(&format!("logits        {file}")), "{said}");
    let whole = std::fs::read(&file).unwrap();
    let output = command(&[&arguments[..], &["-"]].concat()).output().unwrap();
    assert!(output.status.success() && output.stdout == whole, "{} bytes", output.stdout.len());
    // As on a disk that is full.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(command(&[]).get_program());
    let output = limited.args([&arguments[..], &[&file]].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("logits.safetensors cannot be written"), "{text}");
    assert!(std::fs::read(&file).unwrap() == whole, "what was there is still there");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_reader_that_has_seen_enough_ends_nothing() {
    // What `head` does, and a terminal that is closed.
    for (which, arguments) in [("1", &["run", "-", "--steps", "6"][..]), ("2", &["plan", "no-such-file.toml"])] {
        let script = format!("exec {which}> >(exec true); sleep 0.2; \"$0\" \"$@\"");
        let program = command(&[]).get_program().to_owned();
        let mut child = Command::new("bash")
            .args(["-c", &script])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(TINY.as_bytes());
        let expected = if which == "1" { 0 } else { 2 };
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn two_documents_do_not_share_standard_output() {
    let checkpoint = trained(&folder());
    for arguments in [
        &["run", "-", "--json", "--trace", "-"][..],
        &["profile", "-", "--json", "-o", "-"],
        &["plan", "-", "--json", "--prove", "1", "--proof", "-"],
        &["evaluate", &checkpoint, "--json", "--logits", "-"],
        &["selftest", "--profile", "-"],
    ] {
        let error = refused(arguments, TINY);
        assert!(error.contains("cannot both use standard output"), "{arguments:?}: {error}");
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    for name in ["plan", "compare", "check", "show", "link", "run", "serve", "export", "schema", "completions"] {
        let help = printed(&[name, "--help"], "");
        assert!(help.contains("Examples:\n  pipeplan"), "{name}: {help}");
        let exit_codes = help.contains("Exit codes:");
        assert!(exit_codes || ["schema", "completions"].contains(&name), "{name}: {help}");
    }
    assert!(printed(&["completions", "bash"], "").contains("_pipeplan"));
}
