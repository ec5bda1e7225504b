//! `link`: links to the page.

use std::process::Command;

use crate::command::{command, json_of, printed};

use super::{TINY, folder, path, write};

#[test]
fn a_link_opens_the_page_that_is_asked_for_and_reads_back() {
    let link = printed(&["link", "-", "--base", "http://127.0.0.1:8080/#old"], TINY);
    assert!(link.starts_with("http://127.0.0.1:8080/#v2."), "{link}");
    let spec = json_of(&["link", link.trim(), "--json"], "");
    assert_eq!(spec["spec"]["model"]["layers"], 2);
    assert_eq!(spec["link"].as_str().map(|fragment| link.trim().ends_with(fragment)), Some(true));
}

#[cfg(unix)]
#[test]
fn the_examples_of_link_do_what_they_say() {
    let folder = folder();
    write(&path(&folder, "spec.toml"), TINY);
    let program = std::path::PathBuf::from(command(&[]).get_program());
    let help = printed(&["link", "-h"], "");
    let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  pipeplan ")).collect();
    assert!(examples.len() > 2, "{help}");
    for example in examples {
        // What it says of it stands behind three blanks.
        let example = format!("pipeplan {}", example.split("   ").next().unwrap_or_default());
        let output = Command::new("sh")
            .args(["-c", &format!("PATH=\"$0:$PATH\"; {example}")])
            .arg(program.parent().expect("a folder"))
            .current_dir(folder.path())
            .output()
            .unwrap_or_else(|error| panic!("{error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("#v2."), "{example}: {text}");
    }
}
