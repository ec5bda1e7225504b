//! Why a plan takes its time: the way of a microbatch, the critical path, the time of each rank by cause, all ranks at an
//! instant, and differences to a kept plan.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{DOWN, ENTER, ESCAPE, HOME, choose, planned, serve};

/// Four ranks, F of 10 µs, BW of 20 µs, no transfers: 1F1B takes (8 + 3) · 30 µs.
fn open_example(browser: &Browser, address: &str) {
    let spec = process::output("why.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 20_000, "forward_bytes": 1 << 30, "backward_input_bytes": -(1 << 30) });
    let said = json!({ "schedule": "1f1b", "problem": { "ranks": 4, "microbatches": 8, "stages": stages } });
    std::fs::write(&spec, said.to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(browser, "1F1B");
}

/// The colours of the first rank at 5 µs and at 15 µs, in its blocks 0F0 and 0F1 of 10 µs each; the view has room for 1 % more
/// than the 330 µs.
fn colours(browser: &Browser) -> [Value; 2] {
    [5.0, 15.0].map(|micros: f64| {
        let script = "const image = document.querySelector('canvas.image');
            const at = Math.round(arguments[0] / (330 * 1.01) * image.width);
            return [...image.getContext('2d').getImageData(at, Math.round(46 * image.height / image.clientHeight), 1, 1).data]";
        browser.script(script, json!([micros]))
    })
}

#[test]
fn a_microbatch_lights_its_way_and_the_critical_path_is_switched_on() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("lit", 1440, 900);
    open_example(&browser, &address);
    let timeline = browser.find("[data-test='timeline']");
    let plain = browser.until("blocks", || Some(colours(&browser)).filter(|[first, second]| first == second));
    let one_fades = |what: &str| {
        browser.until(what, || {
            let [first, second] = colours(&browser);
            (first == plain[0] && second != plain[1]).then_some(())
        });
    };
    let none_fades = |what: &str| browser.until(what, || (colours(&browser) == plain).then_some(()));
    timeline.keys(ENTER);
    timeline.keys(HOME);
    timeline.keys(DOWN);
    // A block of the second rank; the first of its row is of microbatch 0.
    timeline.keys(HOME);
    one_fades("microbatch 0 alone to stand out");
    browser.picture("lit-microbatch.png");
    timeline.keys(ESCAPE);
    none_fades("all blocks to be alike");
    browser.find("[data-test='critical-path']").click();
    // It goes down with microbatch 0, and 0F1 could start later.
    one_fades("the critical path");
    browser.picture("critical-path.png");
    browser.find("[data-test='critical-path']").click();
    none_fades("all blocks to be alike again");
    browser.no_errors();
}

#[test]
fn the_time_of_each_rank_is_split_by_cause_and_all_ranks_are_read_at_an_instant() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("split", 1440, 900);
    open_example(&browser, &address);
    browser.find("[data-test='time-split'] summary").click();
    let rows = "return [...document.querySelectorAll(\"[data-test='time-split-rows'] tr\")].map(row =>
        [...row.querySelectorAll('th, td')].map(cell => cell.innerText.trim()).filter(text => text).join(' | '))";
    let rows =
        browser.until("the table", || Some(browser.script(rows, json!([]))).filter(|rows| rows[0].is_string()));
    // Of 330 µs each rank works 240. Rank 0 waits 90 for its first gradient, rank 3 three forwards first and three backwards last.
    assert_eq!(rows[0], json!("Rank | Compute | Bubble: start | Bubble: dependency | Bubble: end"));
    assert_eq!(rows[1], json!("0 | 72.7 % | 0 | 27.3 % | 0"));
    assert_eq!(rows[4], json!("3 | 72.7 % | 9.1 % | 0 | 18.2 %"));
    browser.picture("time-split.png");

    let timeline = browser.find("[data-test='timeline']");
    let high = timeline.property("clientHeight").as_f64().unwrap() as i32;
    timeline.script_with("arguments[0].scrollIntoView({ block: 'center' })", json!(null));
    // On the ruler, in the middle of the time: 166 µs.
    timeline.tap(0, 8 - high / 2);
    let said = browser.until("all ranks at an instant", || {
        Some(browser.text("[data-test='tooltip']")).filter(|text| text.contains("rank 3"))
    });
    assert!(["at", "rank 0", "rank 1", "rank 2", "holds"].iter().all(|part| said.contains(part)), "{said}");
    browser.picture("instant.png");
    browser.no_errors();
}

#[test]
fn a_kept_plan_gives_differences_in_figures_and_rows() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("versus", 1440, 900);
    open_example(&browser, &address);
    browser.find("[data-test='keep']").click();
    let figure = |name: &str| browser.text(&format!("[data-test='versus-{name}']"));
    assert_eq!(figure("makespan"), "", "the kept plan is on screen");
    choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    // Eight microbatches of 1 GiB are held where 1F1B holds four; the time is the same.
    browser.until("differences", || (figure("peak") == "+4 GiB against kept").then_some(()));
    assert_eq!((figure("makespan").as_str(), figure("bubble").as_str()), ("same as kept", "same as kept"));
    let row = browser.text("[data-test='row-gpipe'] [data-test='peak']");
    assert!(row.contains("8 GiB") && row.contains("+4 GiB"), "{row}");
    browser.picture("versus.png");
    browser.find("[data-test='keep']").click();
    browser.until("no differences", || figure("peak").is_empty().then_some(()));
    browser.no_errors();
}
