//! The timeline: by keys, by taps, on paper.

use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{DOWN, ENTER, ESCAPE, HOME, LEFT, RIGHT, choose, example, field, planned, serve};

/// Keys and taps reach blocks, and paper shows all ranks in light colours.
#[test]
fn the_timeline_is_read_by_taps_keys_and_on_paper() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("reached", 1280, 1000);
    browser.prefer_dark();
    browser.goto(&example(&address));
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
    // Print wraps long lines.
    browser.find("[data-test='passes'] summary").click();
    browser.until("what the passes did", || (!browser.text("[data-test='passes'] pre").is_empty()).then_some(()));
    let wrapped = "const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]);
        const printed = rules.filter(rule => rule.media?.mediaText === 'print').flatMap(rule => [...rule.cssRules]);
        return printed.some(rule => rule.selectorText === 'pre' && rule.style.whiteSpace === 'pre-wrap')";
    assert_eq!(browser.script(wrapped, json!([])), json!(true));
    let hints = || {
        let script = "return [...document.querySelectorAll('.hint')].map(hint => hint.innerText).join()";
        browser.script(script, json!([])).to_string()
    };
    assert!(!hints().contains("more ranks than are in sight"), "32 ranks and their memory are: {}", hints());
    let spec = process::output("many-ranks.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 20_000 });
    let said = json!({ "schedule": "1f1b", "problem": { "ranks": 96, "microbatches": 8, "stages": stages } });
    std::fs::write(&spec, said.to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    browser.until("what to do for the others", || hints().contains("more ranks than are in sight").then_some(()));
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
    // Of 96 rows of 3 pixels, 66 are on screen: 30 more, of ranks and of their memory.
    assert!(paper.0 >= screen.0 + 176.0, "{screen:?} on screen, {paper:?} on paper");
    assert_eq!(numbers(print("afterprint")), screen);
    browser.no_errors();
}

/// The legend and the details of a block show which microbatches go up the ranks.
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
    assert!(said.as_str().is_some_and(|said| said.contains("rank 3, direction up the ranks")), "{said}");
    browser.picture("directions.png");
    choose(&browser, "schedule", "1f1b");
    planned(&browser, "1F1B");
    assert!(!browser.text("[data-test='legend']").contains("up the ranks"));
    browser.no_errors();
}

/// Four ranks, F of 10 µs, BW of 20 µs, transfers of 2 µs. The waits of the first and the last rank are computed by
/// hand.
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

/// On a narrow screen, the details of any tapped block are in sight.
#[test]
fn what_is_said_of_a_block_stays_on_a_phone() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("phone", 500, 844);
    browser.screen(390, 844);
    browser.goto(&example(&address));
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
