//! Links, and the state of the page after a reload.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::json;

use super::{choose, example, field, first_plan, link_that_says, notices, open, planned, reload, serve};

#[test]
fn a_damaged_link_says_which_part_is_wrong() {
    let (_served, address) = serve(&[]);
    let link = printed(["link", "examples/tiny-llama.toml"]);
    let fragment = link.trim().split_once('#').unwrap().1.to_string();
    let mut flipped = fragment.clone();
    let last = if flipped.ends_with('A') { 'B' } else { 'A' };
    flipped.replace_range(fragment.len() - 3..fragment.len() - 2, &last.to_string());
    let cases = [
        (flipped, "checksum"),
        (fragment[..fragment.len() / 4 * 2].to_string(), "checksum"),
        (fragment.replacen("v2.", "v9.", 1), "version"),
        (fragment.replacen('a', "!", 1), "character"),
        ("v1.".to_string(), "cut off"),
    ];
    let browser = Browser::open("damaged", 1200, 800);
    for (damaged, part) in cases {
        browser.goto("about:blank");
        browser.goto(&format!("{address}/#{damaged}"));
        let notice = browser.text("[data-test='notice']");
        assert!(notice.contains(part), "{damaged}: {notice}");
        // The page goes on with a plan of its own.
        browser.until("a plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    }
    browser.picture("damaged-link.png");
    // Punctuation that a chat program adds to a link does no harm, and disappears from the address.
    for behind in [".", "),", "%E2%80%A6"] {
        browser.goto("about:blank");
        browser.goto(&format!("{address}/#{fragment}{behind}"));
        planned(&browser, "ZB-V");
        assert_eq!(browser.find(&field("model.name")).property("value"), "tiny-llama");
        assert_eq!(notices(&browser), json!(0), "{behind}");
        browser.until("the link alone", || browser.address().ends_with(&format!("/#{fragment}")).then_some(()));
    }
    browser.no_errors();
}

/// After a reload, open files and a kept plan are still there.
#[test]
fn loading_anew_loses_nothing() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("reloaded", 1280, 1000);
    let plan = process::output("reload-plan.json");
    let trace = process::output("reload-trace.json");
    let order = process::output("reload-order.txt");
    let paths = [plan.to_str().unwrap(), trace.to_str().unwrap()];
    printed(["plan", "examples/tiny-llama.toml", "--schedule", "zb-h1", "-o", paths[0]]);
    printed(["run", paths[0], "--steps", "2", "--trace", paths[1]]);
    std::fs::write(&order, "0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1 1BW1\n").unwrap();
    let problem =
        json!({ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1000, "backward_input_ns": 2000 } });
    let spec = process::output("reload-spec.json");
    std::fs::write(&spec, problem.to_string()).unwrap();
    let link = printed(["link", spec.to_str().unwrap()]);
    browser.goto(&format!("{address}/{}", link.trim()));
    first_plan(&browser);
    let reload = || reload(&browser);
    let kept = || {
        let label = browser.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null));
        label.as_str().and_then(|label| label.split_once("Kept below: ")).map(|(_, kept)| kept.to_owned())
    };

    // A custom schedule, kept below a published one.
    open(&browser, &order);
    planned(&browser, "Custom schedule");
    reload();
    planned(&browser, "Custom schedule");
    assert!(browser.text("[data-test='notice']").contains("custom schedule of the file"));
    browser.find("[data-test='keep']").click();
    choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    link_that_says(&browser, |spec| spec["schedule"] == "gpipe");
    reload();
    planned(&browser, "GPipe");
    let below = browser.until("what was kept", kept);
    assert!(below.starts_with("Custom schedule, "), "{below}");

    // A plan file and its trace, which takes the place of the kept plan.
    open(&browser, &plan);
    planned(&browser, "ZB-H1");
    open(&browser, &trace);
    let measured = || {
        let script = "return document.querySelector(\"[data-test='trace-figures']\")?.innerText ?? ''";
        browser.script(script, json!([])).as_str().map(str::to_owned).filter(|text| !text.is_empty())
    };
    let before = browser.until("the measured ranks", measured);
    link_that_says(&browser, |spec| spec["model"]["name"] == "tiny-llama");
    reload();
    planned(&browser, "ZB-H1");
    assert_eq!(browser.until("the measured ranks again", measured), before);
    assert_eq!(kept(), None);
    let unseen = |why: &str| {
        browser.until(why, || {
            let said = browser.text("[data-test='kept-unseen']");
            (said.starts_with("Kept, but not drawn: Custom schedule, ") && said.contains(why)).then_some(())
        });
    };
    unseen("close the trace");
    browser.picture("reloaded.png");

    // Closed files stay closed. The kept plan stays until a person releases it, also if its times are of another
    // magnitude.
    browser.find("[data-test='trace-close']").click();
    unseen("This plan takes");
    browser.find("[data-test='keep']").click();
    browser.find("[data-test='keep']").click();
    browser.until("the plan to be kept", kept);
    browser.find("[data-test='keep']").click();
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    link_that_says(&browser, |spec| spec["schedule"] == "1f1b");
    reload();
    planned(&browser, "1F1B");
    assert_eq!((measured(), kept()), (None, None));

    // The page says if a file is too large to store.
    let large = process::output("reload-large.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&large, format!("{text}{}", " ".repeat(25 << 20))).unwrap();
    open(&browser, &large);
    planned(&browser, "ZB-H1");
    assert!(browser.text("[data-test='notice']").contains("too large for the browser to store"));
    let _ = std::fs::remove_file(large);
    browser.no_errors();
}

/// The address contains the visible half of the form; the hidden half also survives a reload. A plan that could not
/// return cannot be kept.
#[test]
fn the_other_half_of_the_form_outlives_a_reload() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("halves", 1280, 1000);
    browser.goto(&example(&address));
    planned(&browser, "Best");
    browser.find(&field("parallel.pipeline")).fill("8");
    planned(&browser, "Best");
    browser.find("[data-test='kind-typed']").click();
    browser.find(&field("problem.ranks")).fill("6");
    link_that_says(&browser, |spec| spec["problem"]["ranks"] == 6);
    reload(&browser);
    planned(&browser, "Best");
    assert_eq!(browser.find(&field("problem.ranks")).property("value"), json!("6"));
    browser.find("[data-test='kind-model']").click();
    assert_eq!(browser.find(&field("parallel.pipeline")).property("value"), json!("8"));
    planned(&browser, "Best");

    // A link does not contain the global batch size. The form still gives it after a reload and after going back.
    let batch = || {
        ["training.global_batch_size", "training.microbatches"].map(|path| {
            let said = browser.find(&field(path));
            (said.property("value"), said.property("placeholder"))
        })
    };
    let follows = |global: &str, microbatches: &str| {
        let [(said, _), (nothing, followed)] = batch();
        said == json!(global) && nothing == json!("") && followed == json!(microbatches)
    };
    browser.find(&field("training.global_batch_size")).fill("24");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 24);
    reload(&browser);
    planned(&browser, "Best");
    assert!(follows("24", "24"), "{:?}", batch());
    browser.find(&field("training.microbatch_size")).fill("2");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 12);
    browser.script("history.back()", json!([]));
    browser.until("the batch before", || follows("24", "24").then_some(()));
    planned(&browser, "Best");

    let keep = || browser.find("[data-test='keep']").property("disabled");
    assert_eq!(keep(), json!(false));
    browser.find(&field("parallel.pipeline")).fill("0");
    browser.until("nothing to keep", || (keep() == json!(true)).then_some(()));
    browser.find(&field("parallel.pipeline")).fill("4");
    browser.until("something to keep", || (keep() == json!(false)).then_some(()));
    browser.no_errors();
}
