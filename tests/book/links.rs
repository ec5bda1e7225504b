//! Every file that a page links to, and every page that the table of contents names, is there.

use std::path::Path;

use pipeplan_tests::process::top;

use crate::pages::{book, pages};

#[test]
fn links_between_pages_lead_somewhere() {
    let mut all = pages();
    all.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"]
            .map(|name| top().join(name)),
    );
    let links: usize = all.iter().map(|page| check_links(page)).sum();
    assert!(links >= 50, "only {links} links");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let contents = std::fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    for page in pages() {
        let name = page.strip_prefix(book()).unwrap().to_string_lossy().into_owned();
        assert!(name == "SUMMARY.md" || contents.contains(&format!("]({name})")), "SUMMARY.md does not name {name}");
    }
}

/// The README is read in one sitting.
#[test]
fn the_readme_is_short() {
    let lines = std::fs::read_to_string(top().join("README.md")).unwrap().lines().count();
    assert!(lines <= 150, "README.md has {lines} lines");
}

/// Paths from the top of the checkout are to files that are there. A walk-through also names the file that a reader adds.
#[test]
fn files_that_pages_name_are_there() {
    const TO_BE_ADDED: [&str; 2] = ["core/src/schedule/late_weights.rs", "docs/src/howto/bound.md"];
    const BUILT: [&str; 3] = ["js/pkg", "web/dist", "docs/book"];
    let mut all = pages();
    all.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "python/README.md"].map(|name| top().join(name)));
    let mut named = 0;
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        for path in text.split('`').skip(1).step_by(2).filter(|part| part.chars().all(|c| c.is_ascii_graphic())) {
            let crates = ["core/", "exact/", "js/", "native/", "python/", "tests/", "web/", "docs/"];
            if !crates.iter().any(|start| path.starts_with(start))
                || TO_BE_ADDED.contains(&path)
                || BUILT.contains(&path)
            {
                continue;
            }
            // A module of Rust may be named without its ending.
            let found = top().join(path).exists() || top().join(format!("{path}.rs")).exists();
            assert!(found, "{}: there is no {path}", page.display());
            named += 1;
        }
    }
    assert!(named > 30, "only {named} paths");
}

/// How many links to files a page has. What a page includes is a file, too.
fn check_links(page: &Path) -> usize {
    let text = std::fs::read_to_string(page).unwrap();
    let folder = page.parent().unwrap();
    let mut links = 0;
    for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        if file.contains("://") {
            continue;
        }
        let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
        assert!(target.exists(), "{}: no file at {link}", page.display());
        if !anchor.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
            let target = std::fs::read_to_string(&target).unwrap();
            let headings = target.lines().filter(|line| line.starts_with('#')).map(anchor_of);
            assert!(
                headings.into_iter().any(|heading| heading == anchor),
                "{}: no heading at {link}",
                page.display()
            );
        }
        links += usize::from(!file.is_empty());
    }
    for include in text.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next()) {
        let (file, part) = include.split_once(':').unwrap_or((include, ""));
        let included = std::fs::read_to_string(folder.join(file));
        let included = included.unwrap_or_else(|error| panic!("{}: {include}: {error}", page.display()));
        for mark in ["ANCHOR: ", "ANCHOR_END: "] {
            let mark = format!("{mark}{part}");
            assert!(
                part.is_empty() || included.lines().any(|line| line.trim_end().ends_with(&mark)),
                "{include}: no {mark}"
            );
        }
        links += 1;
    }
    links
}

/// The anchor that mdBook and GitHub give a heading.
fn anchor_of(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
