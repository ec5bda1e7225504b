//! The timeline by Perfetto's keys, by search, by two fingers, as a range, and on the whole screen.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{DOWN, ENTER, ESCAPE, choose, planned, serve};

fn open_example(name: &str, address: &str) -> Browser {
    let browser = Browser::open(name, 1440, 900);
    let spec = process::output("whole-view.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 20_000 });
    let said = json!({ "schedule": "1f1b", "problem": { "ranks": 4, "microbatches": 8, "stages": stages } });
    std::fs::write(&spec, said.to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    browser
}

/// All that is painted of blocks.
fn painted(browser: &Browser) -> Value {
    browser.script("return document.querySelector('canvas.image').toDataURL()", json!([]))
}

fn selected(browser: &Browser) -> String {
    let text = browser.find("[data-test='selected']").property("textContent");
    text.as_str().unwrap_or_default().to_owned()
}

#[test]
fn perfettos_keys_and_search_move_the_timeline() {
    let (_served, address) = serve(&[]);
    let browser = open_example("perfetto-keys", &address);
    let timeline = browser.find("[data-test='timeline']");
    let all = painted(&browser);
    for keys in ["w", "d"] {
        let before = painted(&browser);
        timeline.keys(keys);
        browser.until("another view", || (painted(&browser) != before).then_some(()));
    }
    timeline.keys("f");
    browser.until("all of it", || (painted(&browser) == all).then_some(()));

    let search = browser.find("[data-test='search']");
    for (text, found) in
        [("2F1", "2F1 forward"), ("rank 3", "3F0 forward"), ("m5", "0F5 forward"), ("0bw7", "0BW7 backward")]
    {
        search.fill(&format!("{text}{ENTER}"));
        browser.until(found, || selected(&browser).starts_with(found).then_some(()));
    }
    timeline.keys("f");
    browser.until("the block that was found", || (painted(&browser) != all).then_some(()));
    browser.picture("searched.png");
    search.fill(&format!("9F9{ENTER}"));
    browser.until("that it is not there", || {
        (browser.text("[data-test='search-missed']") == "not in this plan").then_some(())
    });
    timeline.keys(ESCAPE);
    browser.no_errors();
}

/// Pointer events at shares of the width, on the first rank: id, kind, share.
fn pointers(browser: &Browser, shift: bool, events: &[(i32, &str, f64)]) {
    let script = "const place = arguments[0].getBoundingClientRect(); const [shift, events] = arguments[1];
        for (const [pointerId, kind, share] of events) arguments[0].dispatchEvent(new PointerEvent('pointer' + kind, { pointerId, bubbles: true,
            button: 0, shiftKey: shift, clientX: place.left + 52 + share * (place.width - 53), clientY: place.top + 50 }))";
    browser.find("[data-test='timeline']").script_with(script, json!([shift, events]));
}

#[test]
fn a_range_gives_its_figures_and_two_fingers_zoom() {
    let (_served, address) = serve(&[]);
    let browser = open_example("range", &address);
    let all = painted(&browser);
    // The whole of 330 µs, from before its beginning to behind its end.
    pointers(&browser, true, &[(1, "down", -0.02), (1, "move", 0.5), (1, "move", 1.0), (1, "up", 1.0)]);
    let said =
        browser.until("the figures of a range", || Some(selected(&browser)).filter(|text| text.starts_with("range")));
    assert!(said.contains("range 330 µs, from 0 ns, to 330 µs, ops 64, busy 72.7 %, idle 27.3 %"), "{said}");
    browser.picture("range.png");
    browser.find("[data-test='timeline']").keys(ESCAPE);
    browser.until("no range", || selected(&browser).is_empty().then_some(()));
    pointers(
        &browser,
        false,
        &[(1, "down", 0.4), (2, "down", 0.6), (1, "move", 0.2), (2, "move", 0.8), (2, "up", 0.8), (1, "up", 0.2)],
    );
    browser.until("a closer view", || (painted(&browser) != all).then_some(()));
    browser.picture("pinched.png");
    browser.no_errors();
}

#[test]
fn the_timeline_is_made_higher_and_takes_the_whole_screen() {
    let (_served, address) = serve(&[]);
    let browser = open_example("high", &address);
    let high = || browser.find("[data-test='timeline']").property("clientHeight").as_f64().unwrap();
    let usual = high();
    browser.find("[data-test='height']").keys(&DOWN.repeat(5));
    let higher = browser.until("a higher timeline", || Some(high()).filter(|high| *high > usual + 60.0));
    browser.picture("higher.png");
    browser.find("[data-test='full-screen']").click();
    let is_full = "return document.fullscreenElement?.className ?? ''";
    browser.until("the whole screen", || {
        browser.script(is_full, json!([])).as_str().is_some_and(|class| class.contains("timeline")).then_some(())
    });
    browser.until("a timeline of that height", || (high() != higher).then_some(()));
    browser.picture("full-screen.png");
    browser.find("[data-test='full-screen']").click();
    browser.until("the page again", || {
        (browser.script(is_full, json!([])) == json!("") && high() == higher).then_some(())
    });
    browser.no_errors();
}

/// Ctrl+Z undoes what the form was changed to, and never leaves the page.
#[test]
fn changes_are_undone_and_redone_by_keys() {
    let (_served, address) = serve(&[]);
    let browser = open_example("undo", &address);
    let entries = || browser.script("return history.length", json!([])).as_u64().unwrap();
    let before = entries();
    choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    browser.until("an entry of the history", || (entries() > before).then_some(()));
    let press = |key: &str, shift: bool| {
        let script = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], ctrlKey: true, shiftKey: arguments[1], bubbles: true, cancelable: true }))";
        browser.script(script, json!([key, shift]));
    };
    press("z", false);
    planned(&browser, "1F1B");
    press("Z", true);
    planned(&browser, "GPipe");
    press("z", false);
    planned(&browser, "1F1B");
    press("z", false);
    std::thread::sleep(std::time::Duration::from_millis(500));
    planned(&browser, "1F1B");
    press("y", false);
    planned(&browser, "GPipe");
    browser.no_errors();
}

#[test]
fn an_embedded_page_is_its_timeline_alone() {
    let (_served, address) = serve(&[]);
    let browser = open_example("embedded", &address);
    let fragment = browser.address().split_once('#').unwrap().1.to_owned();
    browser.goto("about:blank");
    browser.goto(&format!("{address}/?embed#{fragment}"));
    planned(&browser, "1F1B");
    let seen = "return [...document.querySelectorAll('header, form.spec, main > *')].filter(part => part.checkVisibility()).map(part => part.className)";
    assert_eq!(browser.script(seen, json!([])), json!(["panel timeline", "whole-page"]));
    browser.picture("embedded.png");
    browser.script("document.querySelector(\"[data-test='whole-page']\").addEventListener('click', event => event.preventDefault())", json!([]));
    browser.find("[data-test='whole-page']").click();
    let href = browser.find("[data-test='whole-page']").property("href");
    assert_eq!(href, json!(format!("{address}/#{fragment}")));
    browser.no_errors();
}
