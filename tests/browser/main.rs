//! The page in a real Chromium, served by the real command. Screenshots are in `tests/output`.

mod access;
mod address;
mod advice;
mod comparison;
mod documents;
mod files;
mod form;
mod measured;
mod paper;
mod runs;
mod same_bytes;
mod seen;
mod start;
mod timeline;
mod whole_view;
mod why;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, Running, printed};
use serde_json::{Value, json};

/// `pipeplan serve` on a free port, and its address.
fn serve(arguments: &[&str]) -> (Running, String) {
    let built = process::top().join("web/dist/index.html");
    assert!(built.exists(), "the page is not built: run ./dev page");
    let mut command = Command::new(process::pipeplan());
    command.args(["serve", "--port", "0", "--web", "web/dist"]).args(arguments).current_dir(process::top());
    let served = Running::start(&mut command);
    let address = served.line(Duration::from_secs(20), |line| {
        let address = line.split_whitespace().find(|word| word.starts_with("http://"))?;
        Some(address.split(['?', '#']).next().unwrap_or(address).trim_end_matches('/').to_string())
    });
    (served, address)
}

/// The address of an example with degrees by hand, which most tests change: 4 ranks, 10 microbatches, few enough blocks for a
/// number in each, and a limit that some schedules exceed. The page itself opens with five inputs, and finds the degrees: that is
/// tested in `start`.
fn example(address: &str) -> String {
    let spec = process::output("example-by-hand.toml");
    let said = "model.name = \"llama-2-7b\"\ncluster.device = \"h100\"\nparallel.pipeline = 4\ntraining.microbatches = 10\n\
        memory.limit_bytes = \"56 GiB\"\n";
    // Tests run side by side, and each writes the same.
    std::fs::write(&spec, said).unwrap_or_else(|error| panic!("{}: {error}", spec.display()));
    format!("{address}/{}", printed(["link", spec.to_str().unwrap_or("")]).trim())
}

fn field(path: &str) -> String {
    format!("[data-test='field-{path}']")
}

/// Chooses an option of a list.
fn choose(browser: &Browser, path: &str, value: &str) {
    let script =
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', { bubbles: true }))";
    browser.find(&field(path)).script_with(script, json!(value));
}

/// Waits until the page has planned what its form says.
fn planned(browser: &Browser, title: &str) {
    browser.until(&format!("a plan titled {title}"), || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && browser.text("[data-test='schedule-title']") == title).then_some(())
    });
}

/// Waits for the first plan: until then its figures are dashes.
fn first_plan(browser: &Browser) {
    browser.until("the first plan", || {
        let makespan = browser.text("[data-test='makespan']");
        (!makespan.is_empty() && makespan != "—").then_some(())
    });
}

/// The address, as soon as the spec of its link passes `wanted`: the link follows the form a moment later.
fn link_that_says(browser: &Browser, wanted: impl Fn(&Value) -> bool) -> String {
    browser.until("the link to follow the form", || {
        let address = Some(browser.address()).filter(|address| address.contains("#v"))?;
        let said: Value = serde_json::from_str(&printed(["link", "--json", &address])).ok()?;
        wanted(&said["spec"]).then_some(address)
    })
}

/// How many notices there are.
fn notices(browser: &Browser) -> Value {
    browser.script("return document.querySelectorAll(\"[data-test='notice']\").length", json!([]))
}

/// Every field of the form with its value, and every figure. A link restores all of them.
fn seen(browser: &Browser) -> (Value, Vec<String>) {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-test^=field-]')].map(field => [field.dataset.test, field.value]))";
    let figures = ["makespan", "bubble", "peak", "bound", "gap"];
    let figures = figures.map(|name| browser.text(&format!("[data-test='{name}']")));
    (browser.script(script, json!([])), figures.to_vec())
}

/// Reloads the page. The old page answers until the new one starts.
fn reload(browser: &Browser) {
    browser.script("window.old = true; location.reload()", json!([]));
    browser.until("the new page", || (browser.script("return window.old", json!([])) == json!(null)).then_some(()));
}

/// Opens a file by the page's file input.
fn open(browser: &Browser, file: &Path) {
    browser.find("[data-test='open-file']").keys(&file.display().to_string());
}

// Keys as WebDriver calls them.
const ENTER: &str = "\u{e007}";

const ESCAPE: &str = "\u{e00c}";

const HOME: &str = "\u{e011}";

const LEFT: &str = "\u{e012}";

const RIGHT: &str = "\u{e014}";

const END: &str = "\u{e010}";

const DOWN: &str = "\u{e015}";

/// Nanoseconds of the first duration in a text.
fn duration_in(text: &str) -> f64 {
    let words: Vec<&str> = text.split([' ', ',']).collect();
    let units = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let duration = |pair: &[&str]| {
        let unit = units.iter().find(|(unit, _)| *unit == pair[1])?.1;
        Some(pair[0].parse::<f64>().ok()? * unit)
    };
    words.windows(2).find_map(duration).unwrap_or_else(|| panic!("no duration in {text}"))
}
