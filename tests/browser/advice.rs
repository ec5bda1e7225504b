//! Layouts, time against memory, exact search.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{
    END, ENTER, HOME, RIGHT, choose, duration_in, example, field, first_plan, link_that_says, notices, planned,
    reload, seen, serve,
};

/// Searches layouts, selects the fastest, and plans it.
#[test]
fn the_fastest_layout_goes_into_the_form() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("layouts", 1440, 1400);
    browser.goto(&example(&address));
    first_plan(&browser);
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
    // The plan on screen has the step time of the row.
    browser.until("the plan of the layout", || browser.text("[data-test='step']").contains(&step).then_some(()));
    let form = seen(&browser).0;
    let said: Value =
        ["pipeline", "tensor", "data"].iter().map(|name| form[format!("field-parallel.{name}")].clone()).collect();
    let degree = |text: &Value| text.as_str().and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
    assert_eq!(said.as_array().unwrap().iter().map(degree).product::<u32>(), 4, "{said}");

    // The row of the layout on screen is marked.
    let marked = "return [...document.querySelectorAll('.layouts tr.chosen')].map(row => [row.dataset.test, row.querySelector('button').ariaPressed])";
    browser.until("the mark", || {
        let marked = browser.script(marked, json!([]));
        marked.as_array()?.contains(&json!(["layout-1", "true"])).then_some(())
    });

    // The layouts belong to the form until it changes. Then they cannot be selected.
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

/// If no schedule fits, the page offers a search for layouts. Schedules that do not fit are folded.
#[test]
fn where_nothing_fits_layouts_are_looked_for() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("unfit", 1280, 1000);
    browser.goto(&example(&address));
    planned(&browser, "Best");
    browser.find(&field("memory.limit_bytes")).fill("30");
    let said = browser.until("why there is no plan", || {
        Some(browser.text("[data-test='no-plan']")).filter(|text| !text.is_empty())
    });
    assert!(said.contains("raise “Memory limit per GPU”"), "{said}");
    let gpipe = || browser.text("[data-test='row-gpipe']");
    browser.until("the rows to be folded", || {
        (browser.text("[data-test='absent-schedules']").contains("schedules that do not fit") && gpipe().is_empty())
            .then_some(())
    });
    assert!(browser.text("[data-test='row-best']").contains("No schedule fits"));
    browser.find("[data-test='absent-schedules']").click();
    assert!(gpipe().contains("needs"), "{}", gpipe());
    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='find-layouts-here']").click();
    browser.until("the fastest layouts", || {
        browser.text("[data-test='layouts-note']").starts_with("The fastest of").then_some(())
    });
    assert_eq!(browser.script("return document.activeElement.dataset.test", json!([])), "find-layouts");
    browser.picture("layouts-that-fit.png");
    // The advice never exceeds the memory of the device.
    browser.find(&field("memory.limit_bytes")).fill("80\u{E003}\u{E003}");
    choose(&browser, "model.name", "llama-2-70b");
    browser.until("why there is no plan", || {
        let said = browser.text("[data-test='no-plan']");
        (said.contains("a device has") && !said.contains("raise")).then_some(())
    });
    browser.no_errors();
}

/// The plan of a chosen point is never slower than the point. If the plan uses the schedule of the chart, the page says
/// so, and a change of the form removes it.
#[test]
fn a_point_of_the_chart_gives_what_it_shows() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("chart", 1280, 1000);
    browser.goto(&example(&address));
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
    // Without a limit: bidirectional schedules would make the pipeline shorter and the step longer.
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

/// The exact search proves a small plan that the bound does not prove. A better plan that it finds is exported.
#[test]
fn a_small_plan_is_proved_in_the_page() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("proof", 1200, 900);
    // F, B and W are equal, with memory for three microbatches: 31 steps are optimal, and the bound is 30.
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
    // The solver is loaded only on request.
    let loaded = "return performance.getEntriesByType('resource').map(entry => entry.name).filter(name => name.includes('prover')).length";
    assert_eq!(browser.script(loaded, json!([])), json!(0));
    let before = browser.text("[data-test='gap']");
    assert!(before.contains("above it"), "{before}");
    browser.find("[data-test='prove']").click();
    // The button disappears, and the focus does not return to the top of the page.
    assert_eq!(browser.script("return document.activeElement.dataset.test", json!([])), "proof");
    let proof = "[data-test='proof']";
    let state = || browser.find(proof).script_with("return arguments[0].dataset.state", json!(null));
    browser.until("a proof", || (state() == "proved").then_some(()));
    assert!(browser.text(proof).contains("Proved in"), "{}", browser.text(proof));
    assert!(browser.text("[data-test='gap']").contains("no schedule on this placement is faster"));
    browser.picture("proof.png");
    // The command's proof is of the same plan.
    let command = printed(["plan", file, "--schedule", "best", "--prove", "60"]);
    assert!(command.contains("no schedule on this placement costs less\n"), "{command}");
    // A change of the problem drops the proof.
    browser.find(&field("problem.microbatches")).fill("6");
    browser.until("the proof to be forgotten", || (state() == "none").then_some(()));

    // A faster plan is a custom schedule, and the form keeps its schedule.
    browser.find(&field("problem.microbatches")).fill("8");
    choose(&browser, "schedule", "gpipe");
    browser.find(&field("problem.limit_bytes")).fill("8");
    planned(&browser, "GPipe");
    let slower = browser.text("[data-test='makespan']");
    browser.find("[data-test='prove']").click();
    // The chosen schedule stays until a person takes the better one.
    let said = browser.until("a faster schedule", || {
        Some(browser.text("[data-test='proof']")).filter(|text| text.contains("A faster schedule for this placement"))
    });
    assert_eq!(
        (browser.text("[data-test='schedule-title']").as_str(), &browser.text("[data-test='makespan']")),
        ("GPipe", &slower),
        "{said}"
    );
    browser.find("[data-test='show-better']").click();
    planned(&browser, "Exact search");
    assert_ne!(browser.text("[data-test='makespan']"), slower);
    assert!(browser.text("[data-test='notice']").contains("The exact search found"));
    assert_eq!(browser.find(&field("schedule")).property("value"), "gpipe");
    assert_eq!(browser.text("tr.chosen th"), "Exact search");
    let own = browser.text("[data-test='row-Exact search'] [data-test='makespan']");
    assert_eq!(own, browser.text("[data-test='makespan']"));
    browser.picture("found-by-proof.png");
    reload(&browser);
    planned(&browser, "Exact search");
    browser.no_errors();
}
