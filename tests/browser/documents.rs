//! Documents of a step, from a file of their lengths.

use std::path::{Path, PathBuf};

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{duration_in, field, first_plan, link_that_says, notices, open, planned, reload, serve};

const LENGTHS: &str = "512\n300\n40\n150\n20\n500\n380\n120\n256\n256\n75\n50\n";

fn file(name: &str, text: &str) -> PathBuf {
    let path = process::output(name);
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// A spec whose two data parallel replicas have four microbatches each, or `microbatches`.
fn spec(name: &str, microbatches: u32) -> PathBuf {
    let text = format!(
        "model.name = \"tiny-llama\"\ncluster.device = \"h100\"\nparallel = {{ pipeline = 2, data = 2 }}\n\
         training = {{ microbatches = {microbatches}, sequence = 512 }}\n"
    );
    file(name, &text)
}

fn link(spec: &Path, address: &str) -> String {
    format!("{address}/{}", printed(["link", &spec.display().to_string()]).trim())
}

/// The input of a file is behind its label.
fn open_lengths(browser: &Browser, path: &Path) {
    browser.find("[data-test='open-lengths']").keys(&path.display().to_string());
}

/// The address of a spec for [`open_example`].
pub fn example(address: &str) -> String {
    link(&spec("documents-example.toml", 4), address)
}

/// Opens lengths, and waits for their plan.
pub fn open_example(browser: &Browser) {
    open_lengths(browser, &file("lengths-example.txt", LENGTHS));
    packed(browser);
}

/// What packing gains, as soon as the plan is complete.
fn packed(browser: &Browser) -> String {
    browser.until("the gain", || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && is_there(browser, "[data-test='packing-gain']")).then(|| browser.text("[data-test='packing-gain']"))
    })
}

fn is_there(browser: &Browser, css: &str) -> bool {
    browser.script("return document.querySelector(arguments[0]) !== null", json!([css])) == json!(true)
}

/// The cells of a table, by row.
fn cells(browser: &Browser, table: &str) -> Vec<Vec<String>> {
    let script = "return [...document.querySelectorAll(`[data-test='${arguments[0]}'] tbody tr`)].map(row =>
        [...row.querySelectorAll('th, td:not([aria-hidden])')].map(cell => cell.textContent.trim()))";
    serde_json::from_value(browser.script(script, json!([table]))).unwrap_or_default()
}

/// The page plans the documents of a file as `plan --documents` does, says what packing gains, and lets them go again.
#[test]
fn a_file_of_lengths_is_planned_as_the_command_plans_it() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("documents", 1440, 1400);
    let (spec, lengths) = (spec("documents.toml", 4), file("lengths.txt", LENGTHS));
    browser.goto(&link(&spec, &address));
    planned(&browser, "Best");
    assert!(!is_there(&browser, "[data-test='microbatches']"), "whole sequences are alike");
    let alike = browser.text("[data-test='makespan']");

    browser
        .script("document.querySelector(\"[data-test='open-lengths']\").closest('details').open = true", json!([]));
    open_lengths(&browser, &lengths);
    let said = packed(&browser);
    assert!(said.contains("shorter than with documents in their order"), "{said}");
    let arguments = ["plan", spec.to_str().unwrap(), "--documents", lengths.to_str().unwrap(), "-o", "-"];
    let text = printed(arguments);
    let plan: Value = serde_json::from_str(&text).unwrap();
    let rows = cells(&browser, "packing-rows");
    let figures = ["given_ns", "sorted_ns", "longest_first_ns", "found_ns", "bound_ns"];
    assert_eq!(rows.len(), figures.len(), "{rows:?}");
    for (row, figure) in rows.iter().zip(figures) {
        let ns = plan["packing"][figure].as_f64().unwrap();
        // Three to four digits are shown.
        assert!((duration_in(&row[1]) - ns).abs() <= 0.001 * ns, "{row:?} is {figure} {ns}");
    }
    let makespan = plan["prediction"]["makespan_ns"].as_f64().unwrap();
    assert!((duration_in(&browser.text("[data-test='makespan']")) - makespan).abs() <= 0.001 * makespan);
    let packed = browser.text("[data-test='documents-packed']").replace('\u{202f}', "");
    assert!(packed.contains("12 documents of 2659 tokens in 4 microbatches of each of 2"), "{packed}");
    assert!(packed.contains("64.9 % full"), "2659 of 8 × 512: {packed}");
    // The microbatches are those of the slowest replica, the first in the plan.
    let rows = cells(&browser, "width-rows");
    let of_replica = plan["spec"]["training"]["documents"][0].as_array().unwrap();
    assert_eq!(rows.len(), of_replica.len());
    for (number, (row, documents)) in rows.iter().zip(of_replica).enumerate() {
        let lengths: Vec<u64> = serde_json::from_value(documents.clone()).unwrap();
        let expected =
            [number as u64, lengths.len() as u64, lengths.iter().sum(), lengths.iter().max().map_or(0, |most| *most)];
        assert_eq!(row[..4], expected.map(|number| number.to_string()), "{row:?}");
    }
    let widths = browser.text("[data-test='widths']");
    assert!(widths.starts_with("The longest microbatch takes ") && widths.contains("attention"), "{widths}");
    browser.script("document.querySelector(\"[data-test='microbatches']\").scrollIntoView()", json!([]));
    browser.picture("documents.png");
    browser.script("scrollTo(0, 0)", json!([]));
    browser.picture("documents-top.png");
    browser.script(
        "document.querySelector(\"[data-test='remove-documents']\").scrollIntoView({ block: 'center' })",
        json!([]),
    );
    browser.picture("documents-form.png");
    browser.find("[data-test='export-plan']").click();
    assert!(std::fs::read_to_string(browser.downloaded("plan.json")).unwrap() == text, "the file of the command");
    // The link has them.
    let typed: Vec<u64> = LENGTHS.lines().map(|line| line.parse().unwrap()).collect();
    link_that_says(&browser, |spec| spec["training"]["documents"] == json!(typed));

    browser.find("[data-test='remove-documents']").click();
    browser.until("the plan without documents", || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && browser.text("[data-test='makespan']") == alike).then_some(())
    });
    assert!(
        !is_there(&browser, "[data-test='microbatches']") && !is_there(&browser, "[data-test='remove-documents']")
    );
    assert_eq!(browser.find(&field("training.documents")).property("value"), json!(""));
    browser.no_errors();
}

/// What is no length is told with its line; what does not fit the form, with its document. A wrong file leaves the form as it is.
#[test]
fn wrong_lengths_are_told_with_their_place() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("wrong-documents", 1280, 1000);
    browser.goto(&link(&spec("wrong-documents.toml", 4), &address));
    planned(&browser, "Best");
    open_lengths(&browser, &file("wrong-lengths.txt", "512\n300\nabc\n"));
    let said =
        browser.until("the error", || (notices(&browser) == json!(1)).then(|| browser.text("[data-test='notice']")));
    for part in ["wrong-lengths.txt", "line 3", "\"abc\" is no length", "one on each line"] {
        assert!(said.to_lowercase().contains(part), "{part}: {said}");
    }
    assert_eq!(browser.find("[data-test='notice']").property("role"), json!("alert"));
    assert_eq!(browser.find(&field("training.documents")).property("value"), json!(""));
    // As a file that is dropped, or opened like any other.
    open(&browser, &file("long-lengths.json", "[300, 513, 20]"));
    let fault = browser.until("the fault", || {
        Some(browser.text("[data-test='fault-training.documents']")).filter(|fault| !fault.is_empty())
    });
    assert!(fault.contains("document 2: found 513; accepted is 1 to 512 tokens"), "{fault}");
    // A longer sequence has room for it.
    browser.find(&field("training.sequence")).fill("1024");
    browser.until("a plan", || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && is_there(&browser, "[data-test='width-rows']")).then_some(())
    });
    browser.no_errors();
}

/// More documents than a link carries are in it as a histogram, which the page says; a reload keeps the documents.
#[test]
fn many_documents_are_in_a_link_as_a_histogram() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("many-documents", 1280, 1000);
    browser.goto(&link(&spec("many-documents.toml", 32), &address));
    first_plan(&browser);
    super::choose(&browser, "schedule", "1f1b");
    let lengths: Vec<u32> = (0..5000).map(|at| 1 + at * 7919 % 11).collect();
    open_lengths(&browser, &file("many-lengths.json", &json!(lengths).to_string()));
    let said = || browser.text("[data-test='documents-said']").replace('\u{202f}', "");
    let tokens: u32 = lengths.iter().sum();
    browser.until("the documents", || (said() == format!("5000 documents, {tokens} tokens")).then_some(()));
    browser.until("the note", || browser.text("[data-test='documents-in-link']").contains("histogram").then_some(()));
    link_that_says(&browser, |spec| spec["training"]["documents"]["distribution"] == "histogram");
    reload(&browser);
    browser.until("the same documents", || (said() == format!("5000 documents, {tokens} tokens")).then_some(()));
    browser.no_errors();
}

/// Where degrees follow, those that were found stay: layouts are searched for microbatches that are alike.
#[test]
fn lengths_keep_the_layout_that_was_found() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("found-documents", 1280, 1000);
    browser.goto(&address);
    first_plan(&browser);
    super::choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    let degrees = |browser: &Browser| ["pipeline", "tensor", "data"].map(|degree| shown(browser, degree));
    let found = degrees(&browser);
    let lengths: Vec<u32> = (0..40).map(|at| 1 + at * 7919 % 4000).collect();
    open_lengths(&browser, &file("found-lengths.json", &json!(lengths).to_string()));
    packed(&browser);
    let said = browser.text("[data-test='notice']");
    assert!(said.contains("parallel degrees stay as they were found"), "{said}");
    let follows =
        browser.script("return document.querySelector(\"[data-test='following']\").dataset.follows", json!([]));
    assert_eq!((follows, degrees(&browser)), (json!("false"), found));
    browser.no_errors();
}

/// What a degree is, typed or found.
fn shown(browser: &Browser, degree: &str) -> String {
    let input = browser.find(&field(&format!("parallel.{degree}")));
    let value = input.property("value");
    let shown = if value == json!("") { input.property("placeholder") } else { value };
    shown.as_str().unwrap_or_default().to_owned()
}
