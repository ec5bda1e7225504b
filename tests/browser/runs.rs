//! Runs: traces, torch.profiler files, and lost time.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use pipeplan_tests::torch::{Recorded, recorded};
use serde_json::{Value, json};

use super::{choose, duration_in, example, field, first_plan, link_that_says, open, planned, seen, serve};

#[test]
fn from_the_form_to_a_trained_model_and_back() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("road", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    choose(&browser, "model.name", "tiny-llama");
    choose(&browser, "cluster.device", "cpu");
    for (path, value) in [("parallel.pipeline", "2"), ("training.microbatches", "4"), ("training.sequence", "32")] {
        browser.find(&field(path)).fill(value);
    }
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    let (form, figures) = seen(&browser);
    assert_eq!(form["field-parallel.pipeline"], "2");
    assert!(figures.iter().all(|figure| !figure.is_empty()), "{figures:?}");
    let link = link_that_says(&browser, |spec| spec["schedule"] == "1f1b" && spec["training"]["microbatches"] == 4);
    browser.picture("planner.png");
    browser.no_errors();

    // The link, in a profile that has never seen the page.
    let friend = Browser::open("friend", 1440, 1000);
    friend.goto(&link);
    planned(&friend, "1F1B");
    assert_eq!(seen(&friend), (form, figures));
    friend.no_errors();

    // The same plan from the page and, of the same link, from the command.
    browser.find("[data-test='export-plan']").click();
    let plan = browser.downloaded("plan.json");
    let file = std::fs::read_to_string(&plan).unwrap();
    assert!(file == printed(["plan", &link, "-o", "-"]), "the page's plan is not the command's");

    let trace = process::output("trace.json");
    let [plan_file, trace_file] = [&plan, &trace].map(|path| path.to_str().unwrap());
    println!("{}", printed(["run", plan_file, "--steps", "3", "--trace", trace_file]));
    open(&browser, &trace);
    browser.until("the measured ranks", || {
        Some(browser.text("[data-test='trace-figures']")).filter(|text| !text.is_empty())
    });
    browser.picture("planned-and-measured.png");

    // Lost time, and a plan with measured times: both equal those of the command.
    browser.find("[data-test='calibrate']").click();
    let said = browser.until("where time went", || {
        Some(browser.text("[data-test='calibration']")).filter(|text| text.contains("measured"))
    });
    assert!(["planned", "ops", "hops", "spread", "rest"].iter().all(|cause| said.contains(cause)), "{said}");
    browser.picture("where-time-went.png");
    let calibrated: Value =
        serde_json::from_str(&printed(["calibrate", plan_file, trace_file, "--json"])).expect("JSON");
    browser.find("[data-test='plan-measured']").click();
    let stages = &calibrated["problem"]["stages"];
    link_that_says(&browser, |spec| spec["problem"]["stages"] == *stages && spec["schedule"] == "1f1b");
    planned(&browser, "1F1B");
    browser.no_errors();
}

#[test]
fn a_plan_and_its_trace_are_one_click_away() {
    let plan = process::output("served-plan.json");
    let trace = process::output("served-trace.json");
    let [plan, trace] = [plan.to_str().unwrap(), trace.to_str().unwrap()];
    printed(["plan", "examples/tiny-llama.toml", "-o", plan]);
    printed(["run", plan, "--steps", "2", "--trace", trace]);
    let (_served, address) = serve(&["--plan", plan, "--trace", trace]);
    let browser = Browser::open("served", 1440, 1000);
    browser.goto(&format!("{address}/?plan=plan.json&trace=trace.json"));
    planned(&browser, "ZB-V");
    let figures = browser.until("the measured ranks", || {
        Some(browser.text("[data-test='trace-figures']")).filter(|text| !text.is_empty())
    });
    // Four ranks on fewer cores are not compared with four ranks on four cores.
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(figures.contains("4 ranks time-sliced on"), cores < 4, "{figures}");
    // The page shows the reference of the comparison: the planned time with time-slicing, which no other figure gives.
    let planned_as = if cores < 4 { " planned time-sliced · " } else { " planned · " };
    let of = figures.split_once(planned_as).and_then(|(before, _)| Some(before.rsplit_once('×')?.1));
    let (times, of) = of.and_then(|said| said.split_once(" of ")).unwrap_or_else(|| panic!("{figures}"));
    let ratio = duration_in(&figures) / duration_in(of);
    assert!((ratio - times.parse::<f64>().unwrap()).abs() < 0.02 * ratio, "{figures}");
    browser.picture("served.png");

    // Over another plan, the page says that the trace is of another plan, and does not compare them.
    browser.find(&field("parallel.pipeline")).fill("2");
    let figures = browser.until("another plan", || {
        Some(browser.text("[data-test='trace-figures']")).filter(|text| text.contains("4 ranks instead of 2"))
    });
    assert!(!figures.contains('×') && !figures.contains(" planned"), "{figures}");
    browser.no_errors();

    // Of two files that are not there both are named.
    // Without what the page keeps of the plan on screen, and without a link, which would come before the file.
    let nowhere = json!([format!("{address}/?plan=no-plan.json&trace=no-trace.json")]);
    browser.script("sessionStorage.clear(); location.replace(arguments[0])", nowhere);
    browser.until("both files", || {
        let said = browser.text("[data-test='notice']");
        (said.contains("no-plan.json") && said.contains("no-trace.json")).then_some(())
    });
}

/// A plan and the torch.profiler files of all ranks are opened together. The page draws the trace of the command.
#[test]
fn what_torch_recorded_is_laid_under_its_plan() {
    let (_served, address) = serve(&[]);
    let Recorded { plan, packed: [first, second], files: [unpacked, _] } = recorded("page");
    let browser = Browser::open("torch", 1440, 1000);
    browser.goto(&example(&address));
    browser.until("the first plan, and nothing under way", || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && !browser.text("[data-test='makespan']").is_empty()).then_some(())
    });
    let trace = process::output("page-torch-trace.json");
    let trace = trace.to_str().unwrap();
    printed(["trace", &plan, &first, &second, "-o", trace]);
    let notice = |part: &str| {
        browser.until(part, || Some(browser.text("[data-test='notice']")).filter(|text| text.contains(part)))
    };
    browser.find("[data-test='open-file']").keys(&[second.as_str(), &unpacked].join("\n"));
    notice("not a run of the plan on screen");
    browser.find("[data-test='open-file']").keys(&[first.as_str(), &second, &plan].join("\n"));
    let figures = browser
        .until("the trace", || Some(browser.text("[data-test='trace-figures']")).filter(|text| !text.is_empty()));
    planned(&browser, "ZB-V");
    browser.picture("torch-trace.png");
    // The last step, as `pipeplan trace` has it: 5.593 ms.
    assert!(figures.contains("5.593 ms"), "{figures}");
    browser.find("[data-test='calibrate']").click();
    let said = browser.until("where time went", || {
        Some(browser.text("[data-test='calibration']")).filter(|text| text.contains("measured"))
    });
    assert!(["planned", "ops", "hops", "spread", "rest"].iter().all(|cause| said.contains(cause)), "{said}");
    browser.picture("torch-calibrated.png");
    // The measured jitter can be planned with as well.
    let calibrated: Value =
        serde_json::from_str(&printed(["calibrate", plan.as_str(), trace, "--json"])).expect("JSON");
    browser.find("[data-test='plan-jitter']").click();
    link_that_says(&browser, |spec| {
        let known = ["stages", "transfer_ns"].iter().all(|key| spec["problem"][*key] == calibrated["problem"][*key]);
        known && spec["jitter_permille"] == calibrated["jitter_permille"]
    });
    planned(&browser, "ZB-V");
    browser.no_errors();
}
