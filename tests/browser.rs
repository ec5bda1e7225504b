//! The page in a real Chromium, served by the real command. Pictures of what was seen stay in `tests/output`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, Running, printed};
use pipeplan_tests::torch::{Recorded, recorded};
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

/// The address as soon as its link says what `wanted` asks for: it follows the form a moment later.
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

/// Every field of the form with its value, and every figure: what a link has to bring back.
fn seen(browser: &Browser) -> (Value, Vec<String>) {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-test^=field-]')].map(field => [field.dataset.test, field.value]))";
    let figures = ["makespan", "bubble", "peak", "bound", "gap"];
    let figures = figures.map(|name| browser.text(&format!("[data-test='{name}']")));
    (browser.script(script, json!([])), figures.to_vec())
}

/// Looks for layouts, takes the fastest, and has the plan of it.
#[test]
fn the_fastest_layout_goes_into_the_form() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("layouts", 1440, 1400);
    browser.goto(&address);
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    choose(&browser, "model.name", "tiny-llama");
    choose(&browser, "cluster.device", "cpu");
    for (path, value) in [("parallel.pipeline", "4"), ("training.microbatches", "8"), ("training.sequence", "64")] {
        browser.find(&field(path)).fill(value);
    }
    browser.find("[data-test='find-layouts']").click();
    let note = || browser.text("[data-test='layouts-note']");
    browser.until("the fastest layouts", || note().starts_with("The fastest of").then_some(()));
    let step = browser.text("[data-test='layout-1'] [data-test='step']");
    browser.picture("layouts.png");
    browser.find("[data-test='layout-1']").click();
    // The figure of the plan on screen says the same step as the row.
    browser.until("the plan of the layout", || browser.text("[data-test='step']").contains(&step).then_some(()));
    let form = seen(&browser).0;
    let said: Value =
        ["pipeline", "tensor", "data"].iter().map(|name| form[format!("field-parallel.{name}")].clone()).collect();
    let degree = |text: &Value| text.as_str().and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
    assert_eq!(said.as_array().unwrap().iter().map(degree).product::<u32>(), 4, "{said}");

    // They are still those of the form, until it is another one; then they cannot be taken by mistake.
    let can_be_taken = || browser.find("[data-test='layout-1'] button").property("disabled") == json!(false);
    assert!(can_be_taken() && !note().contains("another form"), "{}", note());
    link_that_says(&browser, |spec| spec["model"]["name"] == "tiny-llama");
    choose(&browser, "model.name", "llama-2-7b");
    browser.until("the layouts to be of another form", || note().contains("another form").then_some(()));
    browser.script("document.querySelector(\"[data-test='layout-1']\").click()", json!([]));
    assert!(!can_be_taken() && browser.find(&field("model.name")).property("value") == "llama-2-7b");
    browser.picture("layouts-of-another-form.png");
    choose(&browser, "model.name", "tiny-llama");
    browser.until("the layouts of the form again", || can_be_taken().then_some(()));

    browser.find("[data-test='layout-devices']").fill("none");
    browser.find("[data-test='find-layouts']").click();
    browser.until("the fault", || browser.text(".layouts .fault").contains("a whole number").then_some(()));
    browser.no_errors();
}

#[test]
fn from_the_form_to_a_trained_model_and_back() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("road", 1440, 1000);
    browser.goto(&address);
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
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

    // Where it lost time, and a plan with what was measured: both as the command has them.
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

/// Loads the page anew. Until the new page has begun, the old one answers.
fn reload(browser: &Browser) {
    browser.script("window.old = true; location.reload()", json!([]));
    browser.until("the new page", || (browser.script("return window.old", json!([])) == json!(null)).then_some(()));
}

/// Opens a file by the page's file input.
fn open(browser: &Browser, file: &Path) {
    browser.find("[data-test='open-file']").keys(&file.display().to_string());
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
    // What four ranks take on fewer cores is not set beside what they would take on four.
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(figures.contains("4 ranks in turns on"), cores < 4, "{figures}");
    // What they are held against is said: their planned time in turns is no other figure of the page.
    let planned_as = if cores < 4 { " planned in turns · " } else { " planned · " };
    let of = figures.split_once(planned_as).and_then(|(before, _)| Some(before.rsplit_once('×')?.1));
    let (times, of) = of.and_then(|said| said.split_once(" of ")).unwrap_or_else(|| panic!("{figures}"));
    let ratio = duration_in(&figures) / duration_in(of);
    assert!((ratio - times.parse::<f64>().unwrap()).abs() < 0.02 * ratio, "{figures}");
    browser.picture("served.png");

    // Over another plan it is said to be of another, and not held against it.
    browser.find(&field("parallel.pipeline")).fill("2");
    let figures = browser.until("another plan", || {
        Some(browser.text("[data-test='trace-figures']")).filter(|text| text.contains("4 ranks instead of 2"))
    });
    assert!(!figures.contains('×') && !figures.contains(" planned"), "{figures}");
    browser.no_errors();

    // Of two files that are not there both are named.
    browser.goto(&format!("{address}/?plan=no-plan.json&trace=no-trace.json"));
    browser.script("sessionStorage.clear(); location.reload()", json!([]));
    browser.until("both files", || {
        let said = browser.text("[data-test='notice']");
        (said.contains("no-plan.json") && said.contains("no-trace.json")).then_some(())
    });
}

/// Files that are opened together are told of together, each by its name, whatever the last of them says.
#[test]
fn what_is_wrong_with_one_of_several_files_stays() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("several", 1280, 900);
    browser.goto(&address);
    planned(&browser, "Best");
    let file = |name: &str, text: &str| {
        let path = process::output(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = std::fs::read_to_string(process::top().join("examples/tiny-llama.toml")).unwrap();
    let files = [
        file("faulty-spec.toml", "parallel.pipeline = -8"),
        file("faulty-plan.json", r#"{ "format": "pipeplan-plan" }"#),
        file("faulty-trace.json", r#"{ "format": "pipeplan-trace" }"#),
        file("good-spec.toml", &good),
    ];
    browser.find("[data-test='open-file']").keys(&files.join("\n"));
    planned(&browser, "ZB-V");
    let said = browser.text("[data-test='notice']");
    for part in ["faulty-spec.toml: This file reads", "faulty-plan.json: This plan", "faulty-trace.json: This trace"]
    {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("good-spec"), "{said}");
    // What is opened next is told of by itself.
    open(&browser, Path::new(&files[3]));
    browser.until("nothing to say", || (notices(&browser) == json!(0)).then_some(()));
    browser.no_errors();
}

/// Where nothing fits, another layout may: looking for one begins there. What has no plan is folded together.
#[test]
fn where_nothing_fits_layouts_are_looked_for() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("unfit", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    browser.find(&field("memory.limit_bytes")).fill("30");
    let said = browser.until("why there is no plan", || {
        Some(browser.text("[data-test='no-plan']")).filter(|text| !text.is_empty())
    });
    assert!(said.contains("raise “Limit a rank”"), "{said}");
    let gpipe = || browser.text("[data-test='row-gpipe']");
    browser.until("the rows to be folded", || {
        (browser.text("[data-test='absent-schedules']").contains("schedules without a plan") && gpipe().is_empty())
            .then_some(())
    });
    assert!(browser.text("[data-test='row-best']").contains("No schedule fits"));
    browser.find("[data-test='absent-schedules']").click();
    assert!(gpipe().contains("would hold"), "{}", gpipe());
    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='find-layouts-here']").click();
    browser.until("the fastest layouts", || {
        browser.text("[data-test='layouts-note']").starts_with("The fastest of").then_some(())
    });
    assert_eq!(browser.script("return document.activeElement.dataset.test", json!([])), "find-layouts");
    browser.picture("layouts-that-fit.png");
    // No limit is advised above what there is.
    browser.find(&field("memory.limit_bytes")).fill("80\u{E003}\u{E003}");
    choose(&browser, "model.name", "llama-2-70b");
    browser.until("why there is no plan", || {
        let said = browser.text("[data-test='no-plan']");
        (said.contains("a device has") && !said.contains("raise")).then_some(())
    });
    browser.no_errors();
}

/// A screen reader hears that planning begins and what came of it, and not how far it is.
#[test]
fn a_change_is_read_aloud_when_it_begins_and_when_it_ends() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("aloud", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    let listen = "window.heard = [];
        for (const said of document.querySelectorAll(\"header [role='status'], header [aria-live]\"))
            new MutationObserver(() => heard.push(said.textContent)).observe(said, { childList: true, subtree: true, characterData: true });";
    browser.script(listen, json!([]));
    browser.find(&field("memory.limit_bytes")).fill("50");
    let heard = browser.until("what came of it", || {
        let heard = browser.script("return heard", json!([]));
        heard.as_array()?.last()?.as_str()?.starts_with("Best, ").then_some(heard)
    });
    // Two digits are typed, and each may be planned by itself.
    let times = heard.as_array().unwrap().len();
    assert!(heard[0] == "planning…" && times <= 4, "{heard}");
    browser.no_errors();
}

/// Times that `profile` measured are opened like any file: the page then plans what `plan --profile` does, also when it is
/// loaded anew, until they are closed.
/// A plan and what torch recorded of it on each rank are opened at once; what is drawn then is the command's trace.
#[test]
fn what_torch_recorded_is_laid_under_its_plan() {
    let (_served, address) = serve(&[]);
    let Recorded { plan, packed: [first, second], files: [unpacked, _] } = recorded("page");
    let browser = Browser::open("torch", 1440, 1000);
    browser.goto(&address);
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
    notice("no run of the plan that is shown");
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
    // How much its ops differed is planned with as well.
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

#[test]
fn measured_times_are_planned_with() {
    let (_served, address) = serve(&[]);
    let profile = process::output("profile.json");
    let file = profile.to_str().unwrap();
    printed(["profile", "examples/tiny-llama.toml", "-o", file]);
    let link = printed(["link", "examples/tiny-llama.toml"]);
    let fragment = link.trim().split_once('#').unwrap().1.to_owned();
    let browser = Browser::open("measured-times", 1440, 1000);
    browser.goto(&format!("{address}/#{fragment}"));
    planned(&browser, "ZB-V");
    let makespan = || browser.text("[data-test='makespan']");
    let estimated = makespan();
    open(&browser, &profile);
    let said = |part: &str| {
        browser.until(part, || Some(browser.text("[data-test='profile']")).filter(|text| text.contains(part)));
    };
    said("all operators are measured");
    let measured = browser.until("another plan", || Some(makespan()).filter(|text| *text != estimated));
    planned(&browser, "ZB-V");
    browser.picture("measured-times.png");
    browser.find("[data-test='export-plan']").click();
    let plan = std::fs::read_to_string(browser.downloaded("plan.json")).unwrap();
    assert!(plan == printed(["plan", "examples/tiny-llama.toml", "--profile", file, "-o", "-"]));
    // A damaged one is refused, and the one before it stays, also when the page is loaded anew.
    let damaged = process::output("damaged-profile.json");
    std::fs::write(&damaged, std::fs::read_to_string(&profile).unwrap().replace("\"ns\": ", "\"ns\": -")).unwrap();
    open(&browser, &damaged);
    browser.until("the faults", || browser.text("[data-test='notice']").contains("[0].ns: found -").then_some(()));
    planned(&browser, "ZB-V");
    reload(&browser);
    said("all operators are measured");
    browser.until("the same plan", || (makespan() == measured).then_some(()));
    // A plan that was made without them is not said to have them.
    let plain = process::output("plan-without-profile.json");
    printed(["plan", "examples/tiny-llama.toml", "-o", plain.to_str().unwrap()]);
    open(&browser, &plain);
    said("has times of its own");
    browser.until("the plan's own times", || (makespan() == estimated).then_some(()));
    choose(&browser, "schedule", "1f1b");
    said("all operators are measured");
    choose(&browser, "schedule", "zb-v");
    browser.find("[data-test='profile-close']").click();
    browser.until("the estimate", || (makespan() == estimated).then_some(()));
    let left = browser.script("return document.querySelectorAll(\"[data-test='profile']\").length", json!([]));
    assert_eq!(left, 0);
    browser.no_errors();
}

/// A column says what differing times cost, in the link too, and the best is the least of it.
#[test]
fn jitter_is_typed_and_every_schedule_says_what_it_costs() {
    let (_served, address) = serve(&[]);
    let link = printed(["link", "examples/zero-bubble-1.5b.toml"]);
    let fragment = link.trim().split_once('#').unwrap().1.to_owned();
    let browser = Browser::open("jitter", 1440, 1000);
    browser.goto(&format!("{address}/#{fragment}"));
    let status = || browser.text("[data-test='status']");
    browser.until("the plan", || {
        (status().is_empty() && !browser.text("[data-test='makespan']").is_empty()).then_some(())
    });
    let late = || {
        let script = "return [...document.querySelectorAll(\"[data-test='late']\")].map(cell => cell.textContent)";
        browser.script(script, json!([]))
    };
    assert_eq!(late(), json!([]));
    browser.find(&field("jitter_permille")).fill("10");
    // The rows of before stand until new ones come.
    let cells = browser.until("what it costs", || {
        Some(late()).filter(|cells| cells[4].is_string() && !cells.to_string().contains('—') && status().is_empty())
    });
    browser.picture("jitter.png");
    let address = link_that_says(&browser, |spec| spec["jitter_permille"] == json!(100));
    let told = printed(["compare", &address]);
    for cell in cells.as_array().unwrap() {
        assert!(told.contains(cell.as_str().unwrap()), "{cells} are not those of\n{told}");
    }
    let shown = browser.text("[data-test='late-shown']");
    assert_eq!(
        Some(shown.as_str()),
        cells[0].as_str(),
        "the plan that is shown is the best, which the table begins with"
    );
    browser.find(&field("jitter_permille")).fill("101");
    browser.until("a fault", || {
        browser
            .text("[data-test='fault-jitter_permille']")
            .contains("found 101; accepted is a number from 0 to 100, in %")
            .then_some(())
    });
    // A backspace: what a driver clears, no page hears of.
    browser.find(&field("jitter_permille")).fill("1\u{E003}");
    browser.until("the column to go", || (late() == json!([])).then_some(()));
    browser.no_errors();
}

/// Schedules of a model are compared by what people decide by, as the command does, and on a phone without scrolling.
#[test]
fn steps_of_a_model_are_compared_also_on_a_phone() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("steps", 1440, 1400);
    browser.goto(&address);
    planned(&browser, "Best");
    let compared: Value = serde_json::from_str(&printed(["compare", &browser.address(), "--json"])).unwrap();
    let mut seen = 0;
    for row in compared["rows"].as_array().unwrap().iter().filter(|row| row["status"] == "ok") {
        let cell =
            |name: &str| format!("[data-test='row-{}'] [data-test='{name}']", row["schedule"].as_str().unwrap());
        let near = |shown: f64, told: f64| assert!((shown - told).abs() <= 2e-3 * told, "{row}: {shown}");
        near(duration_in(&browser.text(&cell("step"))), row["step_ns"].as_f64().unwrap());
        let mfu = browser.text(&cell("mfu"));
        near(mfu.trim_end_matches([' ', '%']).parse::<f64>().unwrap() / 100.0, row["mfu"].as_f64().unwrap());
        let title = browser.find(&cell("step")).property("title");
        assert!(title.as_str().is_some_and(|title| title.ends_with(" tokens/s") && title.len() > 10), "{title}");
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
    browser.find("[data-test='sort-step']").click();
    let first = browser.text("[data-test='compare'] tbody tr th button");
    assert_eq!(first, "Best", "it is chosen by its step");
    browser.screen(360, 800);
    let wide =
        "const table = document.querySelector(\".compare .scroll\"); return table.scrollWidth - table.clientWidth";
    browser.until("all of it on a phone", || (browser.script(wide, json!([])) == json!(0)).then_some(()));
    browser.picture("steps-on-a-phone.png");
    browser.screen(1440, 1400);
    browser.find("[data-test='kind-typed']").click();
    let left = "return document.querySelectorAll(\"[data-test='sort-step'], td[data-test='mfu']\").length";
    browser.until("no steps of typed costs", || (browser.script(left, json!([])) == json!(0)).then_some(()));
    browser.no_errors();
}

/// A search of many seconds says how far it is, and ends with the best so far where a person has enough; who chooses the best
/// again has it searched on.
#[test]
fn a_long_search_is_watched_and_ended() {
    let (_served, address) = serve(&[]);
    let spec = process::output("long-search.json");
    let said = json!({ "schedule": "best", "jitter_permille": 100, "problem": {
        "ranks": 24, "chunks": 4, "microbatches": 96, "placement": "any", "transfer_ns": 7, "limit_bytes": 400,
        "stages": { "forward_ns": 90, "backward_input_ns": 110, "backward_weight_ns": 70,
            "forward_bytes": 10, "backward_input_bytes": -4, "backward_weight_bytes": -6 },
    } });
    std::fs::write(&spec, said.to_string()).unwrap();
    let browser = Browser::open("long-search", 1280, 1000);
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    let watched = || {
        let gap = "return document.querySelector(\"[data-test='search-gap']\")?.innerText";
        browser.until("what a search may still gain", || {
            let gap = browser.script(gap, json!([]));
            gap.as_str().filter(|gap| gap.starts_with("at most ") && gap.contains(" %")).map(str::to_owned)
        })
    };
    println!("{}", watched());
    browser.picture("searching.png");
    let stop = || browser.script("document.querySelector(\"[data-test='stop-search']\").click()", json!([]));
    stop();
    // Sooner than any of its searches would end by itself.
    let asked = std::time::Instant::now();
    planned(&browser, "Best");
    println!("ended within {:.1} s", asked.elapsed().as_secs_f64());
    assert!(browser.text("[data-test='row-best']").contains("ended early"));
    let makespan = duration_in(&browser.text("[data-test='makespan']"));
    let count = "return document.querySelectorAll(\"[data-test='stop-search']\").length";
    assert_eq!(browser.script(count, json!([])), json!(0));
    // What is exported is what is shown.
    browser.find("[data-test='export-plan']").click();
    let plan: Value =
        serde_json::from_str(&std::fs::read_to_string(browser.downloaded("plan.json")).unwrap()).unwrap();
    let exported = plan["prediction"]["makespan_ns"].as_f64().unwrap();
    assert!((exported - makespan).abs() <= 1e-3 * makespan, "{exported} {makespan}");

    browser.find("[data-test='row-best'] button").click();
    watched();
    stop();
    planned(&browser, "Best");
    // Another form is searched as ever.
    browser.find(&field("problem.ranks")).fill("4");
    browser.until("the whole search", || {
        let idle = browser.text("[data-test='status']").is_empty();
        let best = browser.text("[data-test='row-best']");
        (idle && best.contains("found by search") && !best.contains("early")).then_some(())
    });
    browser.no_errors();
}

/// Nothing is cut off, however wide the window: neither the form, nor a comparison with all of its columns.
#[test]
fn form_and_comparison_fit_windows_of_all_widths() {
    let (_served, address) = serve(&[]);
    let spec = process::output("wide.toml");
    let said = "model.name = \"tiny-llama\"\ncluster.device = \"cpu\"\nparallel.pipeline = 2\ntraining.microbatches = 8\n\
        jitter_permille = 50\nmessages.lowering = \"grouped\"\nschedule = \"1f1b\"\n";
    std::fs::write(&spec, said).unwrap();
    let browser = Browser::open("widths", 1440, 1000);
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    let columns = browser.script("return document.querySelectorAll('.compare th.number').length", json!([]));
    assert_eq!(columns, json!(8));
    let cut = "return ['.spec', '.compare .scroll'].filter(css => {
        const place = document.querySelector(css);
        return place.scrollWidth > place.clientWidth;
    })";
    for width in [764, 820, 860, 900, 1000, 1100, 1151, 1180, 1240, 1280, 1366, 1440, 1920] {
        browser.screen(width, 900);
        assert_eq!(browser.script(cut, json!([])), json!([]), "{width} pixels");
    }
    browser.screen(1180, 900);
    browser.script("document.querySelector('.compare').scrollIntoView()", json!([]));
    browser.picture("compared-narrowly.png");
    browser.no_errors();
}

/// A column says what waits at transfers cost, the plan on screen too, as the command does; and neither where they cost
/// nothing.
#[test]
fn what_transfers_cost_is_said_where_they_cost_something() {
    let (_served, address) = serve(&[]);
    let spec = std::fs::read_to_string(process::top().join("examples/zero-bubble-1.5b.toml")).expect("an example");
    let grouped = process::output("grouped.toml");
    let spec = spec.replace("schedule = \"best\"", "schedule = \"zb-h1\"");
    std::fs::write(&grouped, format!("messages.lowering = \"grouped\"\n{spec}")).expect("room for a file");
    let grouped = grouped.to_str().expect("a path");
    let link = printed(["link", grouped]);
    let fragment = link.trim().split_once('#').unwrap().1.to_owned();
    let browser = Browser::open("carried", 1440, 1000);
    browser.goto(&format!("{address}/#{fragment}"));
    let status = || browser.text("[data-test='status']");
    let carried = || {
        let script = "return [...document.querySelectorAll(\"[data-test='carried']\")].map(cell => cell.textContent)";
        browser.script(script, json!([])).as_array().cloned().unwrap_or_default()
    };
    let cells = browser.until("what they cost", || {
        let best = browser.text("[data-test='row-best']");
        // In groups no shorter order takes as little (`compare` says the same below).
        Some(carried()).filter(|cells| cells.len() > 4 && best.contains("1F1B") && status().is_empty())
    });
    browser.picture("carried.png");
    let told = printed(["compare", grouped]);
    assert!(told.contains("as carried"), "{told}");
    for cell in &cells {
        // The page leaves zeros at the end out.
        let number = cell.as_str().and_then(|cell| cell.split(' ').next()).unwrap();
        assert!(told.contains(number), "{cells:?} are not those of\n{told}");
    }
    let shown = browser.text("[data-test='carried-shown']");
    let of_row = told.lines().find(|line| line.starts_with("zb-h1")).expect("a row of what is shown");
    let is_of_row = |cell: &Value| cell.as_str().is_some_and(|cell| shown.contains(cell) && of_row.contains(cell));
    assert!(cells.iter().any(is_of_row), "{shown} is not of {of_row}");
    let typed = "arguments[0].value = arguments[1]; ['input', 'change'].forEach(name => arguments[0].dispatchEvent(new Event(name, { bubbles: true })))";
    browser.find(&field("messages.lowering")).script_with(typed, json!("overlapped"));
    browser.until("nothing to be said of it", || {
        let left = "return document.querySelectorAll(\"[data-test^='carried']\").length";
        (browser.script(left, json!([])) == json!(0)).then_some(())
    });
    browser.no_errors();
}

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
    // What a chat program takes for a part of it does no harm, and leaves the address.
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

/// What a field means lies over none of the others.
#[test]
fn what_a_field_means_hides_no_other_field() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("help", 1280, 900);
    browser.goto(&address);
    planned(&browser, "Best");
    browser.script("document.querySelectorAll('.spec details').forEach(part => { part.open = true; })", json!([]));
    let hidden =
        "const fields = [...document.querySelectorAll('.spec :is(input[type=text], input[type=range], select)')];
        const shown = tip => getComputedStyle(tip).display !== 'none';
        const said = new Set(), hidden = [];
        for (const field of fields) {
            field.focus();
            const tips = [...document.querySelectorAll('.tip')].filter(shown);
            tips.forEach(tip => said.add(tip.id));
            for (const other of fields) {
                const place = other.getBoundingClientRect(), right = place.left + place.width / 2, below = place.top + place.height / 2;
                // What the form's own end cuts off is scrolled to.
                if (below > document.querySelector('.spec').getBoundingClientRect().bottom) continue;
                const over = tips.map(tip => [tip.id, tip.getBoundingClientRect()]).find(([_, tip]) =>
                    tip.left < right && right < tip.right && tip.top < below && below < tip.bottom);
                if (over) hidden.push(`${over[0]} over ${other.id}`);
            }
        }
        return [said.size > 50, hidden]";
    for width in [1280, 800, 390] {
        browser.screen(width, 900);
        if width < 760 {
            browser.find("[data-test='form-toggle']").click();
        }
        assert_eq!(browser.script(hidden, json!([])), json!([true, []]), "{width} pixels");
    }
    browser.no_errors();
}

#[test]
fn wrong_input_is_told_at_its_field() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("wrong", 1200, 900);
    browser.goto(&address);
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    let before = seen(&browser).1;
    for (path, wrong, right) in [
        ("parallel.pipeline", "0", "4"),
        ("parallel.pipeline", "many", "4"),
        ("training.microbatches", "99999999999", "8"),
        ("training.microbatches", "-1", "8"),
    ] {
        browser.find(&field(path)).fill(wrong);
        // What the field means is said while it is typed into, and is what describes it.
        let help = browser.text(&format!("{} ~ .help, :has(> {}) ~ .help", field(path), field(path)));
        let described = "return arguments[0].ariaDescribedByElements.map(element => element.textContent).join('|')";
        let described = browser.find(&field(path)).script_with(described, json!(null));
        assert!(
            !help.is_empty() && described.as_str().is_some_and(|text| text.starts_with(&help)),
            "{help}: {described}"
        );
        // It leaves the field's slider free.
        let below = "const [path] = arguments, place = css => document.querySelector(css).getBoundingClientRect();
            return place(`#field-${path.replace('.', '-')}-help`).top >= place(`[data-test='slider-${path}']`).bottom";
        assert_eq!(browser.script(below, json!([path])), json!(true), "{path}");
        let fault = format!("[data-test='fault-{path}']");
        let told = browser.until("a fault", || Some(browser.text(&fault)).filter(|text| !text.is_empty()));
        assert!(told.contains(wrong) && told.contains("accepted"), "{told}");
        assert_eq!(browser.find(&field(path)).property("ariaInvalid"), "true");
        // What is shown meanwhile is the last plan that was right.
        assert!(seen(&browser).1.iter().all(|figure| !figure.is_empty()), "{before:?}");
        if wrong == "many" {
            browser.picture("wrong-input.png");
        }
        browser.find(&field(path)).fill(right);
        browser.until("the fault to go", || browser.text(&fault).is_empty().then_some(()));
        assert_eq!(browser.find(&field(path)).property("ariaInvalid"), "false");
    }

    // So is a field that says nothing and has to. A backspace: what a driver clears, no page hears of.
    let microbatches = browser.find(&field("training.microbatches"));
    microbatches.fill("8\u{E003}");
    let told = browser.until("what is missing", || {
        Some(browser.text("[data-test='fault-training.microbatches']")).filter(|text| !text.is_empty())
    });
    assert!(told.contains("found nothing; accepted is a whole number from 1"), "{told}");
    assert_eq!(microbatches.property("placeholder"), "", "what stood there is no default");
    assert_eq!(browser.text("[data-test='stray-faults']"), "");
    browser.picture("missing-input.png");
    // Who has scrolled away, or has folded it in, is brought to it.
    let focused = "return document.activeElement.dataset.test";
    for path in ["training.microbatches", "parallel.tensor"] {
        let input = browser.find(&field(path));
        if path == "parallel.tensor" {
            microbatches.fill("8");
            browser
                .script("for (const fold of document.querySelectorAll('.spec details')) fold.open = true", json!([]));
            input.fill("0");
            browser.until("the fault", || {
                Some(browser.text("[data-test='fault-parallel.tensor']")).filter(|text| !text.is_empty())
            });
            browser.script(
                "for (const fold of document.querySelectorAll('.spec details')) fold.open = false",
                json!([]),
            );
        }
        browser.script(
            "document.querySelector('.spec').scrollTop = 0; scrollTo(0, document.body.scrollHeight)",
            json!([]),
        );
        browser.find("[data-test='to-fault']").click();
        let is_there = || browser.script(focused, json!([])) == json!(format!("field-{path}"));
        browser.until("the field of the fault", || is_there().then_some(()));
        let in_sight = "const place = arguments[0].getBoundingClientRect(); return place.height > 0 && place.top >= 0 && place.bottom <= innerHeight";
        assert_eq!(input.script_with(in_sight, json!(null)), json!(true), "{path}");
    }
    browser.find(&field("parallel.tensor")).fill("1");
    microbatches.fill("8\u{E003}");
    browser.until("the fault", || {
        Some(browser.text("[data-test='fault-training.microbatches']")).filter(|text| !text.is_empty())
    });
    // What is shown is seen to be of before, and neither saved nor shared for the form's.
    let is_outdated =
        || browser.script("return document.querySelector('main').classList.contains('outdated')", json!([]));
    assert_eq!(is_outdated(), json!(true));
    assert_eq!(browser.find("[data-test='export-plan']").property("disabled"), json!(true));
    let notice = "[data-test='notice']";
    let in_sight = || {
        let script = "const place = arguments[0].getBoundingClientRect(); return place.top >= 0 && place.bottom <= innerHeight && scrollY > 100";
        browser.find(notice).script_with(script, json!(null))
    };
    browser.script("scrollTo(0, document.body.scrollHeight)", json!([]));
    browser.find("[data-test='copy-link']").click();
    browser.until("why there is no link", || browser.text(notice).contains("The form has faults").then_some(()));
    assert_eq!(in_sight(), json!(true), "a notice is seen wherever one has scrolled to");
    browser.picture("notice.png");
    // Who dismisses it goes on where the focus was before.
    browser.find(&format!("{notice} button")).click();
    browser.until("the notice to go", || (notices(&browser) == json!(0)).then_some(()));
    assert_eq!(browser.script(focused, json!([])), "copy-link");
    microbatches.keys("8");
    browser.until("the plan of the form", || (is_outdated() == json!(false)).then_some(()));
    assert_eq!(browser.find("[data-test='export-plan']").property("disabled"), json!(false));

    // What was typed is said as it was, and so is what no schedule can be made of.
    let told = |path: &str, part: &str| {
        let fault = format!("[data-test='fault-{path}']");
        browser.until(part, || Some(browser.text(&fault)).filter(|text| text.contains(part)))
    };
    let aside = browser.find(&field("memory.overhead_bytes"));
    aside.fill("-1");
    told("memory.overhead_bytes", "found -1 GiB; accepted is 0 B to ");
    aside.fill("1");
    let layers = browser.find(&field("parallel.partition"));
    layers.fill("8,8,8,9");
    told("parallel.partition", "found 33 layers in all; accepted is 32, the layers of the model");
    assert!(browser.text("[data-test='no-plan']").contains("“Layers”: found 33"));
    browser.picture("wrong-layers.png");
    layers.fill("8,8,8,8");
    let fault = "[data-test='fault-parallel.partition']";
    browser.until("the fault to go", || browser.text(fault).is_empty().then_some(()));

    let suggestions =
        || browser.script("return document.querySelectorAll(\"[data-test='suggestions']\").length", json!([]));

    // A fold that a person has closed does not hide a fault.
    let tensor = browser.find(&field("parallel.tensor"));
    let fold = |script: &str| {
        tensor.script_with(&format!("const fold = arguments[0].closest('details'); {script}"), json!(null))
    };
    fold("fold.open = true");
    tensor.fill("2");
    browser.until("the plan", || browser.text("[data-test='status']").is_empty().then_some(()));
    fold("fold.open = false");
    tensor.script_with(
        "arguments[0].value = '3'; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))",
        json!(null),
    );
    browser.until("the fold to open", || (fold("return fold.open") == json!(true)).then_some(()));
    assert!(browser.text("[data-test='fault-parallel.tensor']").contains("found 3"));
    tensor.fill("1");

    // What would make a plan fit is of that plan, and goes with it.
    browser.find(&field("memory.limit_bytes")).fill("20");
    browser.until("what would help", || (suggestions() != json!(0)).then_some(()));
    browser.find(&field("parallel.pipeline")).fill("4x");
    browser.until("a fault", || browser.text("[data-test='fault-parallel.pipeline']").contains("4x").then_some(()));
    assert_eq!(suggestions(), json!(0));
    browser.no_errors();
}

/// All that a spec can say of experts, latents, windows and devices is typed in the page, and its link says it.
#[test]
fn experts_latents_and_degrees_are_typed() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("experts", 1200, 1400);
    browser.goto(&address);
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    choose(&browser, "model.name", "deepseek-v3");
    choose(&browser, "schedule", "1f1b");
    // What is seldom typed lies in a fold.
    let opened = "const fold = arguments[0].closest('details'); if (fold) fold.open = true";
    for (path, text) in [
        ("model.experts.count", "64"),
        ("model.experts.shared_ffn", "4096"),
        ("model.latent.query_rank", "768"),
        ("model.window.tokens", "2048"),
        ("model.window.full_every", "4"),
        ("model.multi_token", "2"),
        ("parallel.partition", "within-limit"),
        ("parallel.tensor", "2"),
        ("parallel.data", "32"),
        ("parallel.zero", "1"),
        ("parallel.expert", "16"),
        ("parallel.context", "2"),
        ("training.expert_imbalance", "1.25"),
    ] {
        let found = browser.find(&field(path));
        found.script_with(opened, json!(null));
        if path == "parallel.zero" { choose(&browser, path, text) } else { found.fill(text) }
    }
    for (path, value) in
        [("model.qk_norm", ""), ("model.experts.shared_gate", "true"), ("training.f32_logits", "true")]
    {
        choose(&browser, path, value);
    }
    let link = link_that_says(&browser, |spec| {
        let (model, parallel) = (&spec["model"], &spec["parallel"]);
        model["experts"]["count"] == 64
            && model["experts"]["shared_gate"] == true
            && model["experts"]["shared_ffn"] == 4096
            && model["latent"]["query_rank"] == 768
            && model["latent"]["key_value_rank"] == 512
            && model["window"] == json!({ "tokens": 2048, "full_every": 4 })
            && model["multi_token"] == 2
            && parallel["partition"] == "within-limit"
            && parallel["expert"] == 16
            && parallel["context"] == 2
            && spec["training"]["expert_imbalance"] == 1.25
            && spec["training"]["f32_logits"] == true
    });
    assert!(link.contains("#v2."), "{link}");
    browser.picture("experts.png");
    // A degree that does not divide is told at its field, with the nearest one that does.
    browser.find(&field("parallel.expert")).fill("3");
    let fault = "[data-test='fault-parallel.expert']";
    let told = browser.until("a fault", || Some(browser.text(fault)).filter(|text| !text.is_empty()));
    assert!(told.contains("divides the experts (64), such as"), "{told}");
    choose(&browser, "model.experts", "none");
    let told = browser.until("another fault", || {
        Some(browser.text("[data-test='form']"))
            .filter(|text| text.contains("model has no experts") || text.contains("found an unknown field"))
    });
    assert!(!told.is_empty());
    browser.no_errors();
}

/// Two plans on one axis; a change is undone by going back; figures are the command's; the drawing is saved.
#[test]
fn plans_are_kept_compared_undone_and_saved() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("compared", 1280, 1200);
    browser.goto(&address);
    planned(&browser, "Best");
    let link = link_that_says(&browser, |spec| spec["schedule"] == "best");
    browser.find("[data-test='guide'] summary").click();
    assert!(browser.text("[data-test='guide']").contains("Bubble"));
    let label = || browser.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null));
    let height = || browser.find("[data-test='timeline']").property("clientHeight").as_f64().unwrap();
    let alone = height();
    browser.find("[data-test='keep']").click();
    let in_sight = || {
        let script = "const place = arguments[0].getBoundingClientRect(); return place.top < innerHeight / 2 && place.bottom > 0";
        browser.find("[data-test='timeline']").script_with(script, json!(null)) == json!(true)
    };
    browser.script("scrollTo(0, document.body.scrollHeight)", json!([]));
    assert!(!in_sight());
    browser.find("[data-test='row-1f1b'] button").click();
    planned(&browser, "1F1B");
    browser.until("the timeline to come into sight", || in_sight().then_some(()));
    let said = label().as_str().unwrap_or_default().to_owned();
    assert!(said.starts_with("Timeline of 1F1B") && said.contains("Kept below: Best, "), "{said}");
    assert!(height() > alone + 80.0, "{} after {alone}", height());
    let title = browser.script("return document.title", json!([]));
    assert!(
        title.as_str().is_some_and(|title| title.starts_with("1F1B, ") && title.ends_with("pipeplan")),
        "{title}"
    );
    assert!(browser.text("[data-test='idea']").contains("one forward, one backward"));
    // The colours of both plans: 1F1B has BW alone, what is kept above it has B and W in two shades.
    let legend = browser.text("[data-test='legend']");
    for part in ["F forward", "B for inputs", "W for weights", "BW backward", "shade: chunk"] {
        assert!(legend.contains(part), "{part} is not in {legend}");
    }
    browser.picture("kept.png");

    let comparison: Value = serde_json::from_str(&printed(["compare", &link, "--json"])).unwrap();
    let row = comparison["rows"].as_array().unwrap().iter().find(|row| row["schedule"] == "1f1b").unwrap();
    let tokens = format!("{:.0}", row["tokens_per_s"].as_f64().unwrap());
    let step = browser.text("[data-test='step']").replace('\u{202f}', "");
    assert!(step.contains(&format!(" {tokens} tokens/s")), "{step}: the command says {tokens}");

    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='save-svg']").click();
    let svg = std::fs::read_to_string(browser.downloaded(".svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(">rank 3</text>") && svg.contains("<title>1F1B"), "{svg:.300}");
    assert!(svg.contains("Llama 2 7B on NVIDIA H100") && svg.contains("4 ranks, 10 microbatches"), "{svg:.300}");

    browser.find("[data-test='save-png']").click();
    let png = std::fs::read(browser.downloaded(".png")).unwrap();
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    let shown = browser.find("[data-test='timeline']").property("width");
    assert!(png.starts_with(b"\x89PNG") && json!(number(16)) == shown, "{} pixels wide, shown {shown}", number(16));
    let high = browser.find("[data-test='timeline']").property("height").as_f64().unwrap();
    assert!(f64::from(number(20)) > high + 40.0, "{} pixels high: no room for the legend over {high}", number(20));

    // Smallest first, then largest, then the best first again.
    let peaks = || {
        let script = "return [...document.querySelectorAll(\"[data-test='compare'] [data-test='peak']\")].map(cell => parseFloat(cell.innerText))";
        let shown = browser.script(script, json!([]));
        shown.as_array().into_iter().flatten().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let as_found = peaks();
    let mut sorted = as_found.clone();
    sorted.sort_by(f64::total_cmp);
    let press = || browser.find("[data-test='sort-peak']").click();
    press();
    browser.until("the smallest peak first", || (peaks() == sorted).then_some(()));
    press();
    sorted.reverse();
    browser.until("the largest peak first", || (peaks() == sorted).then_some(()));
    press();
    browser.until("the best first", || (peaks() == as_found).then_some(()));

    // What rests is an entry of the history.
    link_that_says(&browser, |spec| spec["schedule"] == "1f1b");
    browser.find(&field("training.microbatches")).fill("6");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 6);
    let microbatches = || browser.find(&field("training.microbatches")).property("value");
    browser.script("history.back()", json!([]));
    browser.until("10 microbatches again", || (microbatches() == "10").then_some(()));
    planned(&browser, "1F1B");
    browser.script("history.back()", json!([]));
    planned(&browser, "Best");
    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='keep']").click();
    browser.until("what was kept to go", || (!label().to_string().contains("Kept")).then_some(()));

    // A step of another order of magnitude takes the kept plan's place, and gives it back: what a number means while it is
    // being typed costs nothing. However slowly it is typed, it is one entry of the history.
    let entries = || browser.script("return history.length", json!([]));
    choose(&browser, "schedule", "1f1b");
    let number = browser.find(&field("training.microbatches"));
    number.fill("128");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 128);
    planned(&browser, "1F1B");
    browser.find("[data-test='keep']").click();
    let before = entries().as_u64().unwrap();
    number.fill("1");
    let said = browser.until("why it is not drawn", || {
        Some(browser.text("[data-test='kept-unseen']")).filter(|text| text.starts_with("Kept, and not drawn: 1F1B"))
    });
    assert!(said.contains("times as long as this plan"), "{said}");
    browser.picture("kept-and-not-drawn.png");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 1);
    number.keys("2");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 12);
    number.keys("0");
    link_that_says(&browser, |spec| spec["training"]["microbatches"] == 120);
    browser.until("the kept plan", || label().to_string().contains("Kept below: 1F1B, ").then_some(()));
    assert_eq!(entries().as_u64(), Some(before + 1));
    browser.no_errors();
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

/// Whatever point of the chart is chosen, the plan is no slower than it says; where that takes the chart's own order, it says
/// so, and a change of the form is planned without it.
#[test]
fn a_point_of_the_chart_gives_what_it_shows() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("chart", 1280, 1000);
    browser.goto(&address);
    let finished = || {
        browser.until("the whole chart", || {
            let state = "return ['frontier', 'status'].map(name => document.querySelector(`[data-test='${name}']`)?.dataset.state)";
            (browser.script(state, json!([])) == json!(["finished", "idle"])).then_some(())
        });
    };
    finished();
    let chart = browser.find("[data-test='frontier-chart']");
    let mut own = 0;
    for point in 1..6 {
        chart.keys(&(HOME.to_owned() + &RIGHT.repeat(2 * point)));
        let said = browser.text("[data-test='frontier-readout']");
        chart.keys(ENTER);
        finished();
        let step = browser.text("[data-test='step']");
        println!("{said} gives {step}, {}", browser.text("[data-test='schedule-title']"));
        assert!(duration_in(&step) <= duration_in(&said) * 1.0005, "{said} gives {step}");
        own += usize::from(browser.text("[data-test='schedule-title']") == "From the chart");
        if own == 1 {
            assert!(browser.text("[data-test='notice']").contains("the point of the chart"));
            browser.picture("from-the-chart.png");
        }
    }
    println!("{own} of the chart's own");
    // Without a limit of its own, where two copies of the model would make a shorter pipeline and a longer step.
    browser.find(&field("memory.limit_bytes")).fill("");
    finished();
    chart.keys(END);
    let said = browser.text("[data-test='frontier-readout']");
    chart.keys(ENTER);
    finished();
    let step = browser.text("[data-test='step']");
    println!("{said} gives {step}");
    assert!(duration_in(&step) <= duration_in(&said) * 1.0005, "{said} gives {step}");
    browser.find(&field("memory.limit_bytes")).fill("60");
    planned(&browser, "Best");
    assert_eq!(notices(&browser), json!(0));
    browser.no_errors();
}

/// Blocks are reached without a mouse that hovers, and paper has all ranks in light colours.
#[test]
fn the_timeline_is_read_by_taps_keys_and_on_paper() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("reached", 1280, 1000);
    browser.prefer_dark();
    browser.goto(&address);
    planned(&browser, "Best");
    let timeline = browser.find("[data-test='timeline']");
    let selected = || {
        let text = browser.find("[data-test='selected']").property("textContent");
        text.as_str().unwrap_or_default().to_owned()
    };
    let becomes = |what: &str, wanted: &dyn Fn(&str) -> bool| {
        browser.until(what, || Some(selected()).filter(|text| wanted(text)))
    };
    timeline.keys(ENTER);
    let first = becomes("a selected block", &|text| text.contains("rank 0, starts"));
    timeline.keys(RIGHT);
    becomes("the next block of the rank", &|text| text.contains("rank 0, starts") && text != first);
    timeline.keys(LEFT);
    becomes("the block before", &|text| text == first);
    timeline.keys(DOWN);
    let below = becomes("a block of the next rank", &|text| text.contains("rank 1, starts"));
    let name = below.split(' ').next().unwrap_or_default().to_owned();
    assert!(browser.text("[data-test='tooltip']").contains(&name), "{below}");
    browser.picture("selected.png");
    timeline.keys(ESCAPE);
    becomes("nothing selected", &str::is_empty);
    // In the middle of the step, on the third of four ranks.
    timeline.tap(0, -60);
    let tapped = becomes("a block that was tapped", &|text| text.contains("rank 2, starts"));
    let name = tapped.split(' ').next().unwrap_or_default().to_owned();
    assert!(browser.text("[data-test='tooltip']").contains(&name), "{tapped}");
    timeline.tap(0, -60);
    becomes("nothing selected after another tap", &str::is_empty);

    browser.find(&field("parallel.pipeline")).fill("32");
    browser.until("32 ranks", || {
        let label = timeline.script_with("return arguments[0].ariaLabel", json!(null));
        label.as_str()?.contains(" 32 ranks").then_some(())
    });
    // A line that no sheet is wide enough for is broken there.
    browser.find("[data-test='passes'] summary").click();
    browser.until("what the passes did", || (!browser.text("[data-test='passes'] pre").is_empty()).then_some(()));
    let wrapped = "const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]);
        const printed = rules.filter(rule => rule.media?.mediaText === 'print').flatMap(rule => [...rule.cssRules]);
        return printed.some(rule => rule.selectorText === 'pre' && rule.style.whiteSpace === 'pre-wrap')";
    assert_eq!(browser.script(wrapped, json!([])), json!(true));
    let hint = browser
        .script("return [...document.querySelectorAll('.hint')].map(hint => hint.innerText).join()", json!([]));
    assert!(hint.to_string().contains("more ranks than are in sight"), "{hint}");
    browser.picture("ranks-out-of-sight.png");
    // Height and the colour of the panel, between two rows.
    let seen = "const image = document.querySelector('canvas.image');
        const pixel = image.getContext('2d').getImageData(5, 2, 1, 1).data;
        return [image.clientHeight, pixel[0]];";
    let print = |event: &str| browser.script(&format!("dispatchEvent(new Event('{event}')); {seen}"), json!([]));
    let numbers = |seen: Value| (seen[0].as_f64().unwrap(), seen[1].as_u64().unwrap());
    let screen = numbers(browser.script(seen, json!([])));
    let paper = numbers(print("beforeprint"));
    assert!(screen.1 < 60 && paper.1 == 255, "{screen:?} on screen, {paper:?} on paper");
    // 16 rows more of 9 pixels.
    assert!(paper.0 >= screen.0 + 144.0, "{screen:?} on screen, {paper:?} on paper");
    assert_eq!(numbers(print("afterprint")), screen);
    browser.no_errors();
}

/// The legend says how microbatches look that go up the ranks, and their details that they do.
#[test]
fn the_directions_of_dualpipe_are_told_apart() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("directions", 1280, 1000);
    browser.prefer_dark();
    let spec = process::output("directions.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 10_000, "backward_weight_ns": 10_000 });
    let problem = json!({ "ranks": 4, "microbatches": 12, "placement": "any", "stages": stages });
    std::fs::write(&spec, json!({ "schedule": "dualpipe", "problem": problem }).to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "DualPipe");
    assert!(browser.text("[data-test='legend']").contains("up the ranks"));
    let timeline = browser.find("[data-test='timeline']");
    timeline.keys(ENTER);
    timeline.keys(HOME);
    for _ in 0..3 {
        timeline.keys(DOWN);
    }
    timeline.keys(HOME);
    let said = browser.find("[data-test='selected']").property("textContent");
    assert!(said.as_str().is_some_and(|said| said.contains("rank 3, goes up the ranks")), "{said}");
    browser.picture("directions.png");
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    assert!(!browser.text("[data-test='legend']").contains("up the ranks"));
    browser.no_errors();
}

/// Four ranks, F of 10 µs and BW of 20, hops of 2: what the first and the last rank wait for is worked out by hand.
#[test]
fn a_gap_says_what_its_rank_waits_for() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("gaps", 1280, 1000);
    let spec = process::output("gaps.json");
    let said = json!({ "schedule": "1f1b", "problem": {
        "ranks": 4, "microbatches": 8, "transfer_ns": 2_000, "limit_bytes": 16,
        "stages": { "forward_ns": 10_000, "backward_input_ns": 20_000, "forward_bytes": 4, "backward_input_bytes": -4 },
    } });
    std::fs::write(&spec, said.to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    let timeline = browser.find("[data-test='timeline']");
    let becomes = |wanted: &str| {
        browser.until(wanted, || {
            let text = browser.find("[data-test='selected']").property("textContent");
            text.as_str().filter(|text| *text == wanted).map(|_| ())
        });
    };
    timeline.keys(ENTER);
    timeline.keys(HOME);
    timeline.keys(&RIGHT.repeat(4));
    becomes(
        "waits 72 µs, rank 0, from 40 µs, next 0BW0, needs 1BW0 of rank 1, which ends 110 µs, its transfer 2 µs, \
         no room for 0F4 until 0BW0 ends",
    );
    assert!(browser.text("[data-test='tooltip']").contains("1BW0 of rank 1"));
    browser.picture("gap.png");
    timeline.keys(RIGHT);
    browser.until("the block behind it", || {
        let text = browser.find("[data-test='selected']").property("textContent");
        text.as_str().filter(|text| text.starts_with("0BW0 backward")).map(|_| ())
    });
    timeline.keys(ESCAPE);
    becomes("");
    // The start of the last rank.
    let width = timeline.script_with("return arguments[0].getBoundingClientRect().width", json!(null));
    timeline.tap(70 - width.as_f64().unwrap() as i32 / 2, -32);
    becomes("waits 36 µs, rank 3, from 0 ns, next 3F0, needs 2F0 of rank 2, which ends 34 µs, its transfer 2 µs");
    browser.picture("gap-tapped.png");
    browser.no_errors();
}

/// Files that a person opened, and a plan that is kept, are there again when the page is loaded anew.
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
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    let reload = || reload(&browser);
    let kept = || {
        let label = browser.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null));
        label.as_str().and_then(|label| label.split_once("Kept below: ")).map(|(_, kept)| kept.to_owned())
    };

    // An order of one's own, kept below a published schedule.
    open(&browser, &order);
    planned(&browser, "Own order");
    reload();
    planned(&browser, "Own order");
    assert!(browser.text("[data-test='notice']").contains("the file's own"));
    browser.find("[data-test='keep']").click();
    choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    link_that_says(&browser, |spec| spec["schedule"] == "gpipe");
    reload();
    planned(&browser, "GPipe");
    let below = browser.until("what was kept", kept);
    assert!(below.starts_with("Own order, "), "{below}");

    // A plan file and what was measured of it, which takes the kept plan's place.
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
            (said.starts_with("Kept, and not drawn: Own order, ") && said.contains(why)).then_some(())
        });
    };
    unseen("close the trace");
    browser.picture("reloaded.png");

    // What a person closes or changes stays so. The kept plan is there until a person lets go of it, though its times are
    // others altogether.
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

    // What is too much for the browser to remember is said to be.
    let large = process::output("reload-large.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&large, format!("{text}{}", " ".repeat(25 << 20))).unwrap();
    open(&browser, &large);
    planned(&browser, "ZB-H1");
    assert!(browser.text("[data-test='notice']").contains("too large for the browser to remember"));
    let _ = std::fs::remove_file(large);
    browser.no_errors();
}

/// The address says the half of the form that is shown; the other one is as it was, too. Nor is a plan kept that could not be
/// there again.
#[test]
fn the_other_half_of_the_form_outlives_a_reload() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("halves", 1280, 1000);
    browser.goto(&address);
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

    // A link has no word for a global batch. Who says it goes on saying it, also when going back.
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

/// A schedule from elsewhere is judged with the form's costs, and exported as a plan.
#[test]
fn an_order_of_ones_own_is_opened() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("order", 1280, 900);
    let spec = process::output("order-spec.json");
    let problem =
        json!({ "ranks": 2, "microbatches": 2, "stages": { "forward_ns": 1000, "backward_input_ns": 2000 } });
    std::fs::write(&spec, problem.to_string()).unwrap();
    let spec = spec.to_str().unwrap();
    let link = printed(["link", spec]);
    browser.goto(&format!("{address}/{}", link.trim()));
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    let mine = process::output("mine.txt");
    std::fs::write(&mine, "# 1F1B\n0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1 1BW1\n").unwrap();
    open(&browser, &mine);
    planned(&browser, "Own order");
    assert!(browser.text("[data-test='notice']").contains("the file's own"));
    // Its link leads to another plan, and says so.
    browser.find("[data-test='copy-link']").click();
    browser.until("what the link lacks", || {
        browser.text("[data-test='notice']").contains("nor its order of ops").then_some(())
    });
    browser.find("[data-test='export-plan']").click();
    let plan: Value =
        serde_json::from_str(&std::fs::read_to_string(browser.downloaded("plan.json")).unwrap()).unwrap();
    let command: Value =
        serde_json::from_str(&printed(["plan", spec, "--order", mine.to_str().unwrap(), "--json"])).unwrap();
    for part in ["spec", "problem", "program", "prediction"] {
        assert_eq!(plan[part], command[part], "{part}");
    }
    // It stands among the published ones as long as it is shown, with the figures that the command compares it by.
    let own = "[data-test='row-Own order']";
    browser.until("the comparison", || (!browser.text("[data-test='row-gpipe'] td").is_empty()).then_some(()));
    let compared: Value =
        serde_json::from_str(&printed(["compare", spec, "--order", mine.to_str().unwrap(), "--json"])).unwrap();
    let row = compared["rows"].as_array().unwrap().iter().find(|row| row["schedule"] == "mine").unwrap();
    // Two forwards ahead of the first backward on the other rank, two backwards of 2 µs behind it.
    assert_eq!(row["makespan_ns"], 9_000);
    assert_eq!(browser.text(&format!("{own} [data-test='makespan']")), "9 µs");
    assert_eq!(browser.text("tr.chosen th"), "Own order");
    // Of its 9 µs six are rank 1's, and six are backwards.
    browser.find("[data-test='sensitivity'] summary").click();
    let rows = || -> Vec<(String, String)> {
        let text = browser.text("[data-test='effects'] tbody");
        let row = |line: &str| line.split_once('+').map(|(name, rest)| (name.trim().to_string(), rest.to_string()));
        text.lines().filter_map(row).collect()
    };
    let effects = browser.until("what its time hangs on", || Some(rows()).filter(|rows| !rows.is_empty()));
    let effect = |name: &str, effects: &[(String, String)]| {
        effects.iter().find(|(found, _)| found == name).map(|(_, rest)| rest.clone())
    };
    for (name, longer) in [("every op", "10.00 %"), ("all BW", "6.67 %"), ("rank 1", "6.67 %"), ("rank 0", "3.33 %")]
    {
        let found = effect(name, &effects).unwrap_or_else(|| panic!("{name} in {effects:?}"));
        assert!(found.starts_with(longer) && found.ends_with(&format!("−{longer}")), "{name}: {found}");
    }
    browser.picture("own-order.png");
    choose(&browser, "schedule", "zb-h1");
    planned(&browser, "ZB-H1");
    let notice = browser.text("[data-test='notice']");
    assert!(notice.contains("(Own order) is no longer shown") && !notice.contains("the file's own"), "{notice}");
    browser.until("what the time of the other plan hangs on", || effect("all B", &rows()));
    choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    let left = browser.script("return document.querySelectorAll(arguments[0]).length", json!([own]));
    assert_eq!(left, 0);
    // Nor is one dropped without a word that the form overtakes while it is read.
    browser.script(CHANGE_MEANWHILE, json!(["schedule", "zb-h1"]));
    open(&browser, &mine);
    browser.until("the change", || (browser.find(&field("schedule")).property("value") == "zb-h1").then_some(()));
    planned(&browser, "ZB-H1");
    let notice = browser.text("[data-test='notice']");
    assert!(notice.contains("What was being opened is not shown"), "{notice}");
    std::fs::write(&mine, "0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1\n").unwrap();
    open(&browser, &mine);
    browser.until("what is wrong", || browser.text("[data-test='notice']").contains("1BW1 never runs").then_some(()));
    // The form's own schedule is there again after any change.
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    let picked = browser.find("[data-test='open-file']").property("accept");
    assert!(picked.as_str().is_some_and(|kinds| kinds.contains(".txt") && kinds.contains(".csv")), "{picked}");
    // So is the model of a checkpoint.
    let config = process::output("config.json");
    let sizes = json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 500_000.0, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    std::fs::write(&config, sizes.to_string()).unwrap();
    open(&browser, &config);
    // The best of it may be a published schedule, and is then called that.
    let is_planned = || {
        browser.text("[data-test='status']").is_empty()
            && browser.find(&field("model.vocab")).property("value") == "128256"
            && browser.text("[data-test='schedule-title']") != "1F1B"
    };
    browser.until("the plan of its model", || is_planned().then_some(()));
    for (path, value) in [("model.layers", "16"), ("training.sequence", "2048")] {
        assert_eq!(browser.find(&field(path)).property("value"), value, "{path}");
    }
    // The next one has sequences of its own, since nobody has typed any.
    let gpt2 = json!({
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    });
    std::fs::write(&config, gpt2.to_string()).unwrap();
    open(&browser, &config);
    browser.until("its sequences", || {
        let is = |path: &str, value: &str| browser.find(&field(path)).property("value") == value;
        (is("model.layers", "12") && is("training.sequence", "1024")).then_some(())
    });
    browser.no_errors();
}

/// A log of Megatron-LM is the model and the layout of its run; and where its plan waits for memory, the page says what would
/// cost less, which one click does.
#[test]
fn a_run_of_megatron_is_opened_and_what_its_memory_costs_is_told() {
    let (_served, address) = serve(&[]);
    let log = process::output("train.log");
    let lines = [
        "using world size: 8, data-parallel size: 2, pipeline-model-parallel size: 4",
        "  num_layers ...................................... 32",
        "  hidden_size ..................................... 4096",
        "  ffn_hidden_size ................................. 11008",
        "  num_attention_heads ............................. 32",
        "  swiglu .......................................... True",
        "  normalization ................................... RMSNorm",
        "  add_bias_linear ................................. False",
        "  position_embedding_type ......................... rope",
        "  seq_length ...................................... 4096",
        "  bf16 ............................................ True",
        "  hidden_dropout .................................. 0.0",
        "  attention_dropout ............................... 0.0",
        "  pipeline_model_parallel_size .................... 4",
        "  global_batch_size ............................... 16",
        "  micro_batch_size ................................ 2",
        "  padded_vocab_size ............................... 32000",
        " iteration        1/    9 | elapsed time per iteration (ms): 9000.0 | lm loss: 1",
        " iteration        2/    9 | elapsed time per iteration (ms): 3500.0 | lm loss: 1",
    ];
    std::fs::write(&log, lines.join("\n")).unwrap();
    let browser = Browser::open("run", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    open(&browser, &log);
    planned(&browser, "1F1B");
    for (path, value) in [("model.layers", "32"), ("parallel.data", "2"), ("training.microbatches", "4")] {
        assert_eq!(browser.find(&field(path)).property("value"), value, "{path}");
    }
    let notice = browser.text("[data-test='notice']");
    assert!(notice.contains("train.log is a run of Megatron-LM") && notice.contains("3.5 s a step"), "{notice}");

    // How much a step trains on may be said of all copies together, and is shown so where it is not.
    let global = browser.find(&field("training.global_batch_size"));
    assert_eq!(global.property("placeholder"), "16");
    global.fill("32");
    let microbatches = browser.find(&field("training.microbatches"));
    browser.until("as many microbatches", || (microbatches.property("placeholder") == "8").then_some(()));
    assert_eq!(microbatches.property("value"), "");
    microbatches.fill("4");
    browser.until("the batch to follow", || (global.property("placeholder") == "16").then_some(()));
    assert_eq!(global.property("value"), "");

    choose(&browser, "schedule", "best");
    // The best may be a published schedule, and is then called that.
    browser.until("the best", || {
        let idle = browser.text("[data-test='status']").is_empty();
        (idle && browser.text("[data-test='schedule-title']") != "1F1B").then_some(())
    });
    let price = || browser.script("return document.querySelectorAll(\"[data-test='price']\").length", json!([]));
    assert_eq!(price(), json!(0), "there is room enough");
    browser.find(&field("memory.limit_bytes")).fill("42");
    browser.until("what the limit costs", || (price() == json!(1)).then_some(()));
    let summary = browser.find("[data-test='memory'] summary").property("textContent");
    assert!(summary.as_str().is_some_and(|said| said.contains("times as long")), "{summary}");
    browser.find("[data-test='memory'] summary").click();
    browser.picture("price.png");
    browser.find("[data-test='suggestion-training.recompute']").click();
    browser.until("the change", || {
        (browser.find(&field("training.recompute")).property("value") == "fit").then_some(())
    });
    browser.no_errors();
}

/// Changes a field as soon as the page waits for a file.
const CHANGE_MEANWHILE: &str =
    "const [path, text] = arguments, status = document.querySelector(\"[data-test='status']\");
    const watch = new MutationObserver(() => {
        if (status.dataset.state !== 'planning') return;
        watch.disconnect();
        const field = document.querySelector(`[data-test='field-${path}']`);
        field.value = text;
        ['input', 'change'].forEach(name => field.dispatchEvent(new Event(name, { bubbles: true })));
    });
    watch.observe(status, { attributes: true });";

/// Form and figures are of one problem, whatever comes while a plan file is being read: a change of the form, or another file.
#[test]
fn a_change_while_a_plan_is_read_leaves_form_and_figures_of_one_problem() {
    let (_served, address) = serve(&[]);
    let file = |name: &str, ranks: u32, microbatches: u32| {
        let spec = process::output(&format!("{name}-spec.json"));
        let said = json!({
            "model": { "name": "tiny-llama" }, "cluster": { "device": "cpu" }, "schedule": "zb-h1",
            "parallel": { "pipeline": ranks }, "training": { "microbatches": microbatches, "sequence": 32 },
        });
        std::fs::write(&spec, said.to_string()).unwrap();
        let plan = process::output(&format!("{name}.json"));
        printed(["plan", spec.to_str().unwrap(), "-o", plan.to_str().unwrap()]);
        plan
    };
    // Large enough that reading it takes the worker a while.
    let (large, small) = (file("read-large", 2, 4096), file("read-small", 2, 6));
    let browser = Browser::open("read", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    for (path, text, title) in [("schedule", "1f1b", "1F1B"), ("training.microbatches", "12", "1F1B")] {
        browser.script(CHANGE_MEANWHILE, json!([path, text]));
        open(&browser, &large);
        browser.until("the change", || (browser.find(&field(path)).property("value") == text).then_some(()));
        planned(&browser, title);
        assert!(browser.text("[data-test='notice']").contains("is not shown"), "{path}");
        assert_eq!(browser.find(&field("model.name")).property("value"), "llama-2-7b");
        let subject = browser.find("[data-test='subject']").property("textContent");
        assert!(
            subject.as_str().is_some_and(|said| said.contains("Llama 2 7B") && said.contains("4 ranks")),
            "{subject}"
        );
    }

    let config = process::output("read-config.json");
    let sizes = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 500_000.0, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    std::fs::write(&config, sizes.to_string()).unwrap();
    let together = [&small, &config].map(|path| path.display().to_string()).join("\n");
    browser.find("[data-test='open-file']").keys(&together);
    browser.until("the model of the one in the plan of the other", || {
        let said = ["model.layers", "parallel.pipeline", "training.microbatches"]
            .map(|path| browser.find(&field(path)).property("value"));
        (said == ["16", "2", "6"].map(|text| json!(text))).then_some(())
    });
    planned(&browser, "ZB-H1");
    browser.no_errors();
}

/// While a change is worked out, all that is shown of the form before it is seen to be of that.
#[test]
fn what_is_of_the_form_before_is_dimmed() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("dimmed", 1280, 1400);
    browser.goto(&address);
    planned(&browser, "Best");
    let panels = ["memory", "passes"];
    for panel in panels {
        browser.find(&format!("[data-test='{panel}'] summary")).click();
    }
    browser.until("what the passes did", || (!browser.text("[data-test='passes'] pre").is_empty()).then_some(()));
    let rows = |class: &str| {
        let script = "return document.querySelectorAll(`[data-test^='row-']${arguments[0]}`).length";
        browser.script(script, json!([class])).as_u64().unwrap()
    };
    let opacities = || {
        let script = "return [\"[data-test='memory'] .scroll\", \"[data-test='passes'] .scroll\", \"[data-test='row-1f1b'] th\",
                \"[data-test='frontier'] svg\"]
            .map(css => Number(getComputedStyle(document.querySelector(css)).opacity))";
        let read = browser.script(script, json!([]));
        read.as_array().unwrap().iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    browser.until("all of it to be of the form", || (opacities() == [1.0; 4]).then_some(()));
    assert_eq!(rows(".before"), 0);
    // Another schedule of the same problem has the same rows.
    choose(&browser, "schedule", "1f1b");
    assert_eq!(rows(".before"), 0);
    planned(&browser, "1F1B");
    choose(&browser, "schedule", "best");
    planned(&browser, "Best");
    let script =
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))";
    browser.find(&field("parallel.pipeline")).script_with(script, json!("32"));
    browser.find(&field("training.microbatches")).script_with(script, json!("4000"));
    assert_eq!(rows(".before"), rows(""));
    browser.until("all of it to be dimmed", || opacities().iter().all(|opacity| *opacity < 0.5).then_some(()));
    // Nor is anything chosen from the chart of the form before. In one go: that of the new form may begin at any time.
    let choose = "return (async () => {
        const [chart, limit, readout] = Array.from(arguments, css => document.querySelector(css));
        const [is_before, was] = [chart.getAttribute('aria-disabled'), limit.value];
        for (const key of ['Home', 'Enter']) chart.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        chart.click();
        await new Promise(requestAnimationFrame);
        return [is_before, limit.value === was, readout.textContent];
    })()";
    let limit = field("memory.limit_bytes");
    let found =
        browser.script(choose, json!(["[data-test='frontier-chart']", limit, "[data-test='frontier-readout']"]));
    assert_eq!((&found[0], &found[1]), (&json!("true"), &json!(true)), "{found}");
    assert!(!found[2].as_str().unwrap().contains("bubble"), "no point is picked: {found}");
    browser.picture("dimmed.png");
    browser.find(&field("parallel.pipeline")).script_with(script, json!("4"));
    browser.find(&field("training.microbatches")).script_with(script, json!("12"));
    planned(&browser, "Best");
    browser.until("all of it to be of the form", || (opacities() == [1.0; 4]).then_some(()));
    assert_eq!(rows(".before"), 0);
    browser.no_errors();
}

/// Figures of a plan that is judged by its longest span are all of that.
#[test]
fn the_longest_span_is_what_figures_are_of_where_it_is_judged() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("span", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    assert!(browser.text("[data-test='figure-makespan'] h2").starts_with("Makespan"));
    assert_eq!(browser.text("[data-test='whole-shown']"), "");
    let makespan = browser.text("[data-test='makespan']");
    choose(&browser, "objective", "longest_span");
    browser.until("the longest span", || {
        browser.text("[data-test='figure-makespan'] h2").starts_with("Longest span").then_some(())
    });
    planned(&browser, "1F1B");
    let judged = browser.text("[data-test='makespan']");
    assert_eq!(browser.text("[data-test='row-1f1b'] [data-test='makespan']"), judged);
    assert_eq!(browser.text("[data-test='whole-shown']"), format!("makespan {makespan}"));
    let percent = |text: &str| -> Vec<f64> { text.split(' ').filter_map(|word| word.parse::<f64>().ok()).collect() };
    let (bubble, idle) = (browser.text("[data-test='bubble']"), browser.text("[data-test='idle']"));
    let (mean, ranks) = (percent(&bubble)[0], percent(&idle));
    assert!(ranks.len() == 2 && ranks[0] <= mean && mean <= ranks[1], "{bubble} is no mean of {idle}");
    browser.picture("longest-span.png");
    browser.no_errors();
}

/// Whatever block of a narrow picture is tapped, all that is said of it is in sight.
#[test]
fn what_is_said_of_a_block_stays_on_a_phone() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("phone", 500, 844);
    browser.screen(390, 844);
    browser.goto(&address);
    planned(&browser, "Best");
    let timeline = browser.find("[data-test='timeline']");
    // A finger is moved from the middle of what is in sight of the picture; the first rank is under ruler and title.
    let script = "const place = arguments[0].getBoundingClientRect();
        return [place.width, place.top + 50 - (place.top + Math.min(place.bottom, innerHeight)) / 2]";
    let place = timeline.script_with(script, json!(null));
    let [width, first] = [0, 1].map(|at| place[at].as_f64().unwrap() as i32);
    assert!(width < 390, "{width}");
    let mut said = 0;
    for right in (-width / 2 + 40..width / 2 - 5).step_by(18) {
        timeline.tap(right, first);
        // Two taps at once would zoom.
        std::thread::sleep(Duration::from_millis(500));
        let place = "const place = document.querySelector(\"[data-test='tooltip']\")?.getBoundingClientRect();
            return place ? [place.left, place.right, innerWidth] : null";
        let place = browser.script(place, json!([]));
        if let [left, right_end, screen] = place.as_array().map_or(&[][..], Vec::as_slice) {
            let [left, end, screen] = [left, right_end, screen].map(|px| px.as_f64().unwrap());
            assert!(left >= 0.0 && end <= screen, "{left} to {end} of {screen}, tapped {right} from the middle");
            said += 1;
        }
    }
    browser.picture("phone-tip.png");
    assert!(said > 5, "{said} blocks were found");
    browser.no_errors();
}

/// A plan that is still searched for is saved when it is found, and the page says so at once.
#[test]
fn a_plan_is_saved_when_its_search_has_ended() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("saved-later", 1280, 1000);
    browser.goto(&address);
    planned(&browser, "Best");
    let script = "window.said = ''; const status = document.querySelector(\"[data-test='status']\");
        const watch = new MutationObserver(() => {
            if (status.dataset.state !== 'planning') return;
            watch.disconnect();
            document.querySelector(\"[data-test='export-plan']\").click();
            setTimeout(() => window.said = document.querySelector(\"[data-test='notice']\")?.textContent ?? 'nothing');
        });
        watch.observe(status, { attributes: true });";
    browser.script(script, json!([]));
    browser.find(&field("training.microbatches")).script_with(
        "arguments[0].value = '24'; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))",
        json!(null),
    );
    let said = browser.until("what is said", || {
        browser.script("return window.said", json!([])).as_str().filter(|said| !said.is_empty()).map(str::to_owned)
    });
    assert!(said.contains("as soon as the search has ended"), "{said}");
    let plan = std::fs::read_to_string(browser.downloaded("plan.json")).unwrap();
    planned(&browser, "Best");
    let link = link_that_says(&browser, |spec| spec["training"]["microbatches"] == 24);
    assert!(plan == printed(["plan", &link, "-o", "-"]), "the page's plan is not the command's");
    let left = notices(&browser);
    assert_eq!(left, 0, "it is saved, and nothing more to be said of it");
    browser.no_errors();
}

#[test]
fn dragging_a_slider_keeps_the_page_answering() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("slider", 1200, 900);
    browser.goto(&address);
    choose(&browser, "schedule", "best");
    browser.until("the first plan", || (!browser.text("[data-test='makespan']").is_empty()).then_some(()));
    // Every frame is timed while a slider goes through its whole range.
    let drag = "
        const [slider, done] = [arguments[0], arguments[1]];
        const least = Number(slider.min), most = Number(slider.max), steps = 60;
        let last = performance.now(), worst = 0, step = 0;
        const frame = now => {
            worst = Math.max(worst, now - last);
            last = now;
            slider.value = least + (most - least) * step / steps;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
            if (step++ < steps) requestAnimationFrame(frame); else done(worst);
        };
        requestAnimationFrame(now => { last = now; frame(now); });";
    // Planning on the page's own thread would take it away for seconds, every time. Other work on the machine delays
    // a frame as well, but not in each of some drags.
    let worst: Vec<f64> = (0..5)
        .map(|_| browser.find("[data-test='slider-training.microbatches']").script_async(drag).as_f64().unwrap())
        .scan(false, |done, worst| (!std::mem::replace(done, worst < 500.0)).then_some(worst))
        .collect();
    println!("longest frame of each drag: {worst:.0?} ms");
    assert!(worst.last().is_some_and(|worst| *worst < 500.0), "frames took {worst:?} ms");
    // What it ends on is what is planned.
    let last = browser.find(&field("training.microbatches")).property("value");
    let link = link_that_says(&browser, |spec| json!(spec["training"]["microbatches"].to_string()) == last);
    println!("{link}");
    browser.no_errors();
}

/// A small plan that the bound does not settle: an exact search settles it, finds it may be stopped, and what it
/// finds is what is exported.
#[test]
fn a_small_plan_is_proved_in_the_page() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("proof", 1200, 900);
    // F, B and W alike and room for three microbatches: 31 steps are the best, and bounds alone say 30.
    let problem = json!({
        "ranks": 4, "microbatches": 8, "limit_bytes": 3,
        "stages": { "forward_ns": 1_000, "backward_input_ns": 1_000, "backward_weight_ns": 1_000,
            "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 },
    });
    let file = process::output("proof-spec.json");
    std::fs::write(&file, problem.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let link = printed(["link", file]);
    let fragment = link.trim().split_once('#').map_or("", |(_, fragment)| fragment);
    browser.goto(&format!("{address}/#{fragment}"));
    planned(&browser, "Best");
    // The solver is not loaded before it is asked for.
    let loaded = "return performance.getEntriesByType('resource').map(entry => entry.name).filter(name => name.includes('prover')).length";
    assert_eq!(browser.script(loaded, json!([])), json!(0));
    let before = browser.text("[data-test='gap']");
    assert!(before.contains("above it"), "{before}");
    browser.find("[data-test='prove']").click();
    // The button goes, and the focus does not go back to the top of the page.
    assert_eq!(browser.script("return document.activeElement.dataset.test", json!([])), "proof");
    let proof = "[data-test='proof']";
    let state = || browser.find(proof).script_with("return arguments[0].dataset.state", json!(null));
    browser.until("a proof", || (state() == "proved").then_some(()));
    assert!(browser.text(proof).contains("Proved in"), "{}", browser.text(proof));
    assert!(browser.text("[data-test='gap']").contains("no schedule of this placement is faster"));
    browser.picture("proof.png");
    // The command's proof is of the same plan.
    let command = printed(["plan", file, "--schedule", "best", "--prove", "60"]);
    assert!(command.contains("no schedule of this placement costs less\n"), "{command}");
    // Another problem: what was proved is not of it.
    browser.find(&field("problem.microbatches")).fill("6");
    browser.until("the proof to be forgotten", || (state() == "none").then_some(()));

    // What is faster than a published schedule is an order of its own, and not the plan that the form's schedule has.
    browser.find(&field("problem.microbatches")).fill("8");
    choose(&browser, "schedule", "gpipe");
    browser.find(&field("problem.limit_bytes")).fill("8");
    planned(&browser, "GPipe");
    let slower = browser.text("[data-test='makespan']");
    browser.find("[data-test='prove']").click();
    planned(&browser, "Exact search");
    assert_ne!(browser.text("[data-test='makespan']"), slower);
    assert!(browser.text("[data-test='notice']").contains("The exact search has found"));
    assert_eq!(browser.find(&field("schedule")).property("value"), "gpipe");
    assert_eq!(browser.text("tr.chosen th"), "Exact search");
    let own = browser.text("[data-test='row-Exact search'] [data-test='makespan']");
    assert_eq!(own, browser.text("[data-test='makespan']"));
    browser.picture("found-by-proof.png");
    reload(&browser);
    planned(&browser, "Exact search");
    browser.no_errors();
}

/// How much longer the same planning takes in WebAssembly. It prints and does not judge: a busy machine is no
/// fault of the planner's. To be run where tests are optimised as releases are:
/// `cargo test --release -p pipeplan-tests --test browser -- --ignored --nocapture faster`
#[test]
#[ignore = "measures; needs an idle machine and a release build"]
fn how_much_faster_native_code_is() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("speed", 800, 600);
    browser.goto(&address);
    browser.until("the page's functions", || {
        browser.script("return !!window.wasmBindings?.plan_json", json!([])).as_bool().filter(|there| *there)
    });
    let problem = |ranks: u64, chunks: u64, microbatches: u64, placement: &str, limit: u64| {
        json!({
            "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement,
            "stages": { "forward_ns": 18_522, "backward_input_ns": 18_086, "backward_weight_ns": 9_337,
                "forward_bytes": 100, "backward_input_bytes": -63, "backward_weight_bytes": -37 },
            "transfer_ns": 601, "limit_bytes": limit,
        })
        .to_string()
    };
    const TIMES: usize = 5;
    let in_page = "const [spec, schedule, times] = arguments; let least = Infinity; for (let i = 0; i < times; i++) { \
                   const from = performance.now(); window.wasmBindings.plan_json(spec, schedule); \
                   least = Math.min(least, performance.now() - from) } return least";
    println!("{:34} {:>10} {:>10} {:>6}", "planned and written", "native", "page", "ratio");
    for (what, spec, schedule) in [
        ("zb-h1, p=8 m=24", problem(8, 1, 24, "linear", 1600), "zb-h1"),
        ("zb-v, p=32 m=256", problem(32, 2, 256, "v", 12_800), "zb-v"),
        ("best, linear p=8 m=24, half of 1F1B", problem(8, 1, 24, "linear", 400), "best"),
        ("best, v p=8 m=24, half of 1F1B", problem(8, 2, 24, "v", 800), "best"),
        ("best, linear p=32 m=256", problem(32, 1, 256, "linear", 3200), "best"),
    ] {
        let read = pipeplan_core::spec::Spec::read(&spec).unwrap();
        let native = (0..TIMES)
            .map(|_| {
                let from = std::time::Instant::now();
                std::hint::black_box(pipeplan_core::plan::planner::plan(&read, schedule).unwrap().to_json());
                from.elapsed().as_secs_f64() * 1e3
            })
            .fold(f64::INFINITY, f64::min);
        let page = browser.script(in_page, json!([spec, schedule, TIMES])).as_f64().unwrap();
        println!("{what:34} {native:7.1} ms {page:7.1} ms {:6.2}", page / native);
    }
}

/// Specs of every kind for which page and command have to write the same bytes.
fn grid() -> Vec<String> {
    let mut grid: Vec<String> = ["tiny-llama.toml", "llama-2-70b.toml", "zero-bubble-1.5b.toml", "problem.json"]
        .iter()
        .map(|name| std::fs::read_to_string(process::top().join("examples").join(name)).unwrap())
        .collect();
    for (model, device, pipeline, microbatches) in [
        ("llama-2-7b", "a100-80", 4, 8),
        ("llama-2-13b", "a100-40", 8, 16),
        ("llama-3-8b", "h200", 2, 7),
        ("llama-3-70b", "b200", 16, 32),
        ("gpt-3-175b", "h100", 32, 32),
    ] {
        grid.push(json!({
            "model": { "name": model }, "cluster": { "device": device }, "parallel": { "pipeline": pipeline, "chunks": 2 },
            "training": { "microbatches": microbatches, "sequence": 2048 }, "memory": { "limit_bytes": 1u64 << 50 },
        }).to_string());
    }
    for (ranks, chunks, microbatches, placement, objective) in [
        (1, 1, 4, "linear", "makespan"),
        (3, 1, 7, "linear", "longest_span"),
        (4, 2, 8, "v", "makespan"),
        (4, 3, 8, "looped", "longest_span"),
        (2, 4, 9, "wave", "makespan"),
        (4, 1, 8, "two-way", "makespan"),
        (8, 2, 24, "any", "longest_span"),
    ] {
        let stages: Vec<Value> = (0..ranks * chunks).map(|stage| json!({
            "forward_ns": 1000 + 37 * (stage % 5), "backward_input_ns": 1100 + 13 * (stage % 3), "backward_weight_ns": 700,
            "forward_bytes": 1u64 << 33, "backward_input_bytes": -(1i64 << 31), "backward_weight_bytes": -(3i64 << 31),
        })).collect();
        grid.push(json!({
            "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "stages": stages,
            "transfer_ns": 21, "static_bytes": 1u64 << 40, "limit_bytes": null, "objective": objective,
        }).to_string());
    }
    // Of which the best is another one where times differ.
    let jittered = json!({
        "ranks": 8, "chunks": 2, "microbatches": 24, "placement": "looped", "transfer_ns": 10_000,
        "stages": { "forward_ns": 53_000, "backward_input_ns": 85_000, "backward_weight_ns": 40_000 },
    });
    grid.push(json!({ "problem": jittered, "jitter_permille": 200 }).to_string());
    grid
}

#[test]
fn page_and_command_write_the_same_bytes() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("bytes", 800, 600);
    browser.goto(&address);
    browser.until("the page's functions", || {
        browser.script("return !!window.wasmBindings?.plan_json", json!([])).as_bool().filter(|there| *there)
    });
    let from_page = "try { return { ok: window.wasmBindings[arguments[0]](...Array.from(arguments).slice(1)) } } catch (error) { return { error: String(error) } }";
    let file = process::output("grid-spec.txt");
    let file = file.to_str().unwrap();
    let (mut plans, mut refused) = (0, 0);
    for spec in grid() {
        std::fs::write(file, &spec).unwrap();
        let comparison = browser.script(from_page, json!(["compare_json", spec]));
        let read = |text: &str| {
            serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}\n{spec}"))
        };
        let command = read(&printed(["compare", file, "--json"]));
        let page = read(comparison["ok"].as_str().unwrap_or_default());
        let rows = |comparison: &Value| comparison["rows"].as_array().map(Vec::len);
        assert_eq!((&page["objective"], rows(&page)), (&command["objective"], rows(&command)), "{spec}");
        for (page, command) in page["rows"].as_array().unwrap().iter().zip(command["rows"].as_array().unwrap()) {
            assert_eq!(page, command, "{spec}");
        }
        let link = browser.script(from_page, json!(["link", spec]));
        let link = link["ok"].as_str().unwrap_or_default();
        let fragment = link.split_once('#').map_or(link, |(_, fragment)| fragment).to_string();
        let command = printed(["link", file]);
        assert_eq!(command.trim().split_once('#').map(|(_, fragment)| fragment), Some(fragment.as_str()), "{spec}");
        for schedule in pipeplan_core::plan::planner::schedule_names() {
            let page = browser.script(from_page, json!(["plan_json", spec, schedule]));
            let command = process::run(["plan", file, "--schedule", schedule, "-o", "-"]);
            match page["ok"].as_str() {
                Some(plan) => {
                    assert!(command.status.success(), "{schedule}: the page has a plan and the command none\n{spec}");
                    assert!(plan.as_bytes() == command.stdout, "{schedule}: the bytes differ\n{spec}");
                    plans += 1;
                }
                None => {
                    assert!(page["error"].is_string(), "{page}");
                    assert_eq!(
                        command.status.code(),
                        Some(2),
                        "{schedule}: {page} and the command has a plan\n{spec}"
                    );
                    refused += 1;
                }
            }
        }
    }
    println!("{plans} plans with the same bytes, {refused} refused by both");
    assert!(plans > 60, "only {plans} plans");
    browser.no_errors();
}
