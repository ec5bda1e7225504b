//! The comparison of schedules, and kept plans.

use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{choose, duration_in, example, field, link_that_says, planned, serve};

/// A column shows the cost of jitter. The link contains the jitter, and the best has the lowest cost.
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
    // Old rows stay until new ones arrive.
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
    // A backspace: the page gets no event if the driver clears a field.
    browser.find(&field("jitter_permille")).fill("1\u{E003}");
    browser.until("the column to go", || (late() == json!([])).then_some(()));
    browser.no_errors();
}

/// The comparison of a model shows step time and MFU, as the command does, and fits a phone without scrolling.
#[test]
fn steps_of_a_model_are_compared_also_on_a_phone() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("steps", 1440, 1400);
    browser.goto(&example(&address));
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

/// A long search shows its progress, and a person can stop it with the best so far. Choosing the best again continues
/// the search.
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
    // This is sooner than any of its searches would end.
    let asked = std::time::Instant::now();
    planned(&browser, "Best");
    println!("ended within {:.1} s", asked.elapsed().as_secs_f64());
    assert!(browser.text("[data-test='row-best']").contains("stopped early"));
    let makespan = duration_in(&browser.text("[data-test='makespan']"));
    let count = "return document.querySelectorAll(\"[data-test='stop-search']\").length";
    assert_eq!(browser.script(count, json!([])), json!(0));
    // The page exports the plan on screen.
    browser.find("[data-test='export-plan']").click();
    let plan: Value =
        serde_json::from_str(&std::fs::read_to_string(browser.downloaded("plan.json")).unwrap()).unwrap();
    let exported = plan["prediction"]["makespan_ns"].as_f64().unwrap();
    assert!((exported - makespan).abs() <= 1e-3 * makespan, "{exported} {makespan}");

    browser.find("[data-test='row-best'] button").click();
    watched();
    stop();
    planned(&browser, "Best");
    // Another form has a complete search.
    browser.find(&field("problem.ranks")).fill("4");
    browser.until("the whole search", || {
        let idle = browser.text("[data-test='status']").is_empty();
        let best = browser.text("[data-test='row-best']");
        (idle && best.contains("found by search") && !best.contains("early")).then_some(())
    });
    browser.no_errors();
}

/// A column and the plan on screen show the cost with communication, as the command does. Both are absent if
/// communication costs nothing.
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
    assert!(told.contains("with communication"), "{told}");
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

/// Two plans share one axis; going back undoes a change; figures equal those of the command; the drawing is saved.
#[test]
fn plans_are_kept_compared_undone_and_saved() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("compared", 1280, 1200);
    browser.goto(&example(&address));
    planned(&browser, "Best");
    let link = link_that_says(&browser, |spec| spec["schedule"] == "best");
    browser.find("[data-test='guide'] summary").click();
    assert!(browser.text("[data-test='guide']").contains("Bubble"));
    let label = || label(&browser);
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
    // The drawing follows the figures a frame later.
    browser.until("both plans in the timeline", || {
        let said = label().as_str().unwrap_or_default().to_owned();
        (said.starts_with("Timeline of 1F1B") && said.contains("Kept below: Best, ")).then_some(())
    });
    browser.until("room for both plans", || (height() > alone + 80.0).then_some(()));
    browser.until("the plan in the title of the page", || {
        let title = browser.script("return document.title", json!([]));
        title.as_str().is_some_and(|title| title.starts_with("1F1B, ") && title.ends_with("pipeplan")).then_some(())
    });
    assert!(browser.text("[data-test='idea']").contains("one forward and one backward"));
    // The legend has the colours of both plans: 1F1B has only BW; the kept plan has B and W in two shades.
    let legend = browser.text("[data-test='legend']");
    for part in ["F forward", "B for inputs", "W for weights", "BW backward", "shade: virtual stage"] {
        assert!(legend.contains(part), "{part} is not in {legend}");
    }
    browser.picture("kept.png");

    figures_and_drawings_are_of_the_plan(&browser, &link);
    columns_sort(&browser);
    changes_are_undone_by_going_back(&browser);
    a_plan_of_another_magnitude_hides_the_kept_one(&browser);
    browser.no_errors();
}

/// The label of the timeline.
fn label(browser: &Browser) -> Value {
    browser.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null))
}

fn figures_and_drawings_are_of_the_plan(browser: &Browser, link: &str) {
    let comparison: Value = serde_json::from_str(&printed(["compare", link, "--json"])).unwrap();
    let row = comparison["rows"].as_array().unwrap().iter().find(|row| row["schedule"] == "1f1b").unwrap();
    let tokens = format!("{:.0}", row["tokens_per_s"].as_f64().unwrap());
    let step = browser.text("[data-test='step']").replace('\u{202f}', "");
    assert!(step.contains(&format!(" {tokens} tokens/s")), "{step}: the command says {tokens}");

    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='save-svg']").click();
    let svg = std::fs::read_to_string(browser.downloaded(".svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(">Rank 3</text>") && svg.contains("<title>1F1B"), "{svg:.300}");
    assert!(svg.contains("Llama 2 7B on NVIDIA H100") && svg.contains("4 ranks, 10 microbatches"), "{svg:.300}");

    browser.find("[data-test='save-png']").click();
    let png = std::fs::read(browser.downloaded(".png")).unwrap();
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    let shown = browser.find("[data-test='timeline']").property("width");
    assert!(png.starts_with(b"\x89PNG") && json!(number(16)) == shown, "{} pixels wide, shown {shown}", number(16));
    let high = browser.find("[data-test='timeline']").property("height").as_f64().unwrap();
    assert!(f64::from(number(20)) > high + 40.0, "{} pixels high: no room for the legend over {high}", number(20));
}

/// Smallest first, then largest, then the best first again.
fn columns_sort(browser: &Browser) {
    let peaks = || {
        let script = "return [...document.querySelectorAll(\"[data-test='compare'] [data-test='peak']\")].map(cell => parseFloat(cell.innerText))";
        let shown = browser.script(script, json!([]));
        shown.as_array().into_iter().flatten().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    // Rows come one by one: as long as schedules are missing, the table changes by itself.
    let as_found = browser.until("all rows", || {
        let before = peaks();
        std::thread::sleep(Duration::from_secs(1));
        (!before.is_empty() && peaks() == before).then_some(before)
    });
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
}

/// A change that rests is an entry of the history.
fn changes_are_undone_by_going_back(browser: &Browser) {
    link_that_says(browser, |spec| spec["schedule"] == "1f1b");
    browser.find(&field("training.microbatches")).fill("6");
    link_that_says(browser, |spec| spec["training"]["microbatches"] == 6);
    let microbatches = || browser.find(&field("training.microbatches")).property("value");
    browser.script("history.back()", json!([]));
    browser.until("10 microbatches again", || (microbatches() == "10").then_some(()));
    planned(browser, "1F1B");
    browser.script("history.back()", json!([]));
    planned(browser, "Best");
    // What was kept then is planned anew: until it is there, the button would keep the plan and not release it.
    browser
        .until("what was kept to come", || label(browser).to_string().contains("Kept below: Best, ").then_some(()));
    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='keep']").click();
    browser.until("what was kept to go", || (!label(browser).to_string().contains("Kept")).then_some(()));
}

/// A plan of another magnitude hides the kept plan, and a later change shows it again: the kept plan survives a
/// half-typed number. A number that is typed slowly is one entry of the history.
fn a_plan_of_another_magnitude_hides_the_kept_one(browser: &Browser) {
    let entries = || browser.script("return history.length", json!([]));
    choose(browser, "schedule", "1f1b");
    let number = browser.find(&field("training.microbatches"));
    number.fill("128");
    link_that_says(browser, |spec| spec["training"]["microbatches"] == 128);
    planned(browser, "1F1B");
    browser.find("[data-test='keep']").click();
    // Keeping a plan is an entry of its own.
    browser.until("the kept plan in the link", || browser.address().contains("&kept=").then_some(()));
    number.fill("1");
    let said = browser.until("why it is not drawn", || {
        Some(browser.text("[data-test='kept-unseen']")).filter(|text| text.starts_with("Kept, but not drawn: 1F1B"))
    });
    assert!(said.contains("times as long as this plan"), "{said}");
    browser.picture("kept-and-not-drawn.png");
    link_that_says(browser, |spec| spec["training"]["microbatches"] == 1);
    // Counted from here: what clears a field leaves it, and a slow machine may write that as an entry of its own.
    let before = entries().as_u64().unwrap();
    number.keys("2");
    link_that_says(browser, |spec| spec["training"]["microbatches"] == 12);
    number.keys("0");
    link_that_says(browser, |spec| spec["training"]["microbatches"] == 120);
    browser.until("the kept plan", || label(browser).to_string().contains("Kept below: 1F1B, ").then_some(()));
    // Two digits are no two entries. On a machine that is busy, the kept plan that is seen again may come as one.
    let more = entries().as_u64().unwrap() - before;
    assert!(more <= 1, "{more} entries");
}

/// If the objective is the longest span, all figures refer to it.
#[test]
fn the_longest_span_is_what_figures_are_of_where_it_is_judged() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("span", 1280, 1000);
    browser.goto(&example(&address));
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
