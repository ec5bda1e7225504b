//! What is seen of a plan: memory as a heat map, the minimap, transfers, playback; and that a link holds it.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{first_plan, planned, serve};

/// The address of a problem with typed costs, of so many ranks.
fn problem(address: &str, ranks: u32, microbatches: u32, limit: Option<u64>) -> String {
    let spec = process::output(&format!("seen-{ranks}-{microbatches}.json"));
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 12_000, "backward_weight_ns": 8_000,
        "forward_bytes": 1u64 << 30, "backward_input_bytes": -(1i64 << 29), "backward_weight_bytes": -(1i64 << 29) });
    let mut said = json!({ "ranks": ranks, "microbatches": microbatches, "stages": stages, "transfer_ns": 900,
        "static_bytes": 4u64 << 30 });
    if let Some(limit) = limit {
        said["limit_bytes"] = json!(limit);
    }
    std::fs::write(&spec, json!({ "schedule": "1f1b", "problem": said }).to_string()).unwrap();
    format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim())
}

/// A model, whose step ends with gradient sync and the optimizer.
fn model(address: &str) -> String {
    let spec = process::output("seen-model.toml");
    let said = "model.name = \"llama-2-7b\"\ncluster.device = \"h100\"\nparallel.pipeline = 4\nparallel.data = 2\n\
        training.microbatches = 8\nschedule = \"1f1b\"\n";
    std::fs::write(&spec, said).unwrap();
    format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim())
}

fn number(browser: &Browser, script: &str) -> f64 {
    browser.script(&format!("return {script}"), json!([])).as_f64().unwrap_or(f64::NAN)
}

/// The minimap's frame, as shares of the strip: from where, and how wide.
fn window(browser: &Browser) -> (f64, f64) {
    let script = "const strip = document.querySelector(\"[data-test='minimap']\").getBoundingClientRect(); \
        const frame = document.querySelector(\"[data-test='minimap-window']\").getBoundingClientRect(); \
        return [(frame.left - strip.left) / strip.width, frame.width / strip.width]";
    let found = browser.script(script, json!([]));
    (found[0].as_f64().unwrap_or(f64::NAN), found[1].as_f64().unwrap_or(f64::NAN))
}

#[test]
fn the_minimap_shows_and_moves_the_part_on_screen() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("minimap", 1440, 900);
    browser.goto(&problem(&address, 32, 64, None));
    planned(&browser, "1F1B");
    assert!(window(&browser).1 > 0.97, "all of it: {:?}", window(&browser));
    browser.picture("heat-map.png");
    let timeline = browser.find("[data-test='timeline']");
    timeline.keys("www");
    browser.until("a closer view", || (window(&browser).1 < 0.6).then_some(()));
    let (from, width) = window(&browser);
    assert!(((1.0 - width) / 2.0 - from).abs() < 0.02, "{from} {width}");
    // By a tap, and by keys.
    let strip = browser.find("[data-test='minimap']");
    let right = (number(&browser, "document.querySelector(\"[data-test='minimap']\").clientWidth") / 2.0) as i32 - 4;
    strip.tap(right, 0);
    browser.until("the end", || (window(&browser).0 + width > 0.97).then_some(()));
    browser.picture("minimap.png");
    let before = window(&browser).0;
    strip.keys("\u{e012}\u{e012}");
    browser.until("earlier times", || (window(&browser).0 < before - 0.05).then_some(()));
    browser.no_errors();
}

#[test]
fn transfers_and_optimizer_have_tracks() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("tracks", 1440, 900);
    browser.goto(&model(&address));
    planned(&browser, "1F1B");
    let height = || number(&browser, "document.querySelector('.stage').clientHeight");
    let before = height();
    browser.find("[data-test='tracks']").click();
    browser.until("more tracks", || (height() > before + 50.0).then_some(()));
    assert_eq!(browser.find("[data-test='tracks']").property("ariaPressed"), "true");
    // What is under the pointer of them is told.
    let point = "const canvas = document.querySelector(\"[data-test='timeline']\"); const box = canvas.getBoundingClientRect(); \
        canvas.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: box.left + arguments[0], clientY: box.top + arguments[1], pointerId: 1 }))";
    let told = browser.until("gradient sync or the optimizer", || {
        (0..40).find_map(|step| {
            let width = number(&browser, "document.querySelector('.stage').clientWidth");
            browser.script(point, json!([width - 6.0 - 4.0 * f64::from(step), before - 90.0]));
            let said = browser
                .script("return document.querySelector(\"[data-test='tooltip']\")?.innerText ?? ''", json!([]));
            said.as_str()
                .filter(|said| said.contains("optimizer") || said.contains("gradient sync"))
                .map(str::to_owned)
        })
    });
    assert!(told.contains("rank"), "{told}");
    browser.picture("tracks.png");
    browser.find("[data-test='tracks']").click();
    browser.until("as before", || (height() == before).then_some(()));
    browser.no_errors();
}

#[test]
fn a_plan_is_played_and_stepped() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("playback", 1440, 900);
    browser.goto(&problem(&address, 4, 8, None));
    planned(&browser, "1F1B");
    let at = || number(&browser, "Number(document.querySelector(\"[data-test='playback-at']\")?.value ?? -1)");
    browser.find("[data-test='play']").click();
    browser.until("a later instant", || (at() > 5.0).then_some(()));
    let timeline = browser.find("[data-test='timeline']");
    timeline.keys("p");
    let paused = browser.until("a pause", || {
        let first = at();
        std::thread::sleep(std::time::Duration::from_millis(200));
        (at() == first).then_some(first)
    });
    assert!(browser.text("[data-test='playback-said']").contains("ranks compute"));
    timeline.keys(".");
    browser.until("the next edge", || (at() > paused).then_some(()));
    browser.picture("playback.png");
    timeline.keys(",,");
    browser.until("the edge before", || (at() <= paused).then_some(()));
    browser.find("[data-test='playback-end']").click();
    browser.until("no playback", || (at() == -1.0).then_some(()));
    browser.no_errors();
}

/// Zoom, order of the table, tracks and the kept plan are in the link; going back undoes each.
#[test]
fn a_link_holds_what_is_seen() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("seen", 1440, 900);
    let link = problem(&address, 4, 8, None);
    browser.goto(&link);
    planned(&browser, "1F1B");
    let says = |part: &str| browser.until(part, || browser.address().contains(part).then_some(()));
    browser.find("[data-test='keep']").click();
    says("&kept=v");
    super::choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    browser.find("[data-test='sort-bubble']").click();
    says("&sort=bubble");
    browser.script("scrollTo(0, 0)", json!([]));
    browser.find("[data-test='tracks']").click();
    says("&tracks");
    let unzoomed = browser.address();
    browser.find("[data-test='timeline']").keys("ww");
    says("&t=");
    let (shared, seen) = (browser.address(), window(&browser));
    browser.picture("link-before.png");

    // Elsewhere: another browser, which has nothing of this one's.
    let other = Browser::open("seen-elsewhere", 1440, 900);
    other.goto(&shared);
    planned(&other, "GPipe");
    other.until("the same part", || {
        let there = window(&other);
        ((there.0 - seen.0).abs() < 1e-3 && (there.1 - seen.1).abs() < 1e-3).then_some(())
    });
    let label = || other.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null));
    other.until("the kept plan", || label().as_str()?.contains("Kept below: 1F1B").then_some(()));
    let sorted = "return document.querySelector(\"[data-test='sort-bubble']\").closest('th').ariaSort";
    assert_eq!(other.script(sorted, json!([])), "ascending");
    assert_eq!(other.find("[data-test='tracks']").property("ariaPressed"), "true");
    // The link rounds the zoom: edges of blocks differ by parts of a pixel.
    assert_eq!(
        label(),
        browser.find("[data-test='timeline']").script_with("return arguments[0].ariaLabel", json!(null))
    );
    assert_eq!(other.address(), shared, "nothing was changed by opening it");
    other.no_errors();

    // Back to before the zoom, and forth.
    let third = Browser::open("seen-undo", 1440, 900);
    third.goto(&unzoomed);
    planned(&third, "GPipe");
    std::thread::sleep(std::time::Duration::from_millis(1300));
    third.find("[data-test='timeline']").keys("ww");
    third.until("the zoom in the link", || third.address().contains("&t=").then_some(()));
    let zoomed = window(&third);
    let undo = "window.dispatchEvent(new KeyboardEvent('keydown', { key: 'z', ctrlKey: true, shiftKey: arguments[0], cancelable: true, bubbles: true }))";
    third.script(undo, json!([false]));
    third.until("all of it", || (window(&third).1 > 0.97).then_some(()));
    assert!(!third.address().contains("&t="));
    third.script(undo, json!([true]));
    third.until("the zoom again", || ((window(&third).1 - zoomed.1).abs() < 1e-3).then_some(()));
    third.no_errors();
}

#[test]
fn a_link_is_shown_as_a_qr_code() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("qr", 1440, 900);
    browser.goto(&problem(&address, 4, 8, None));
    planned(&browser, "1F1B");
    browser.find("[data-test='qr']").click();
    browser.find("[data-test='qr-code'] path");
    let dark = browser.script(
        "return document.querySelector(\"[data-test='qr-code'] path\").getAttribute('d').split('M').length",
        json!([]),
    );
    assert!(dark.as_u64().unwrap_or(0) > 100, "{dark}");
    browser.picture("qr.png");
    browser.find("[data-test='qr']").click();
    browser.until("that it is closed", || {
        let open = browser.script("return document.querySelector(\"[data-test='qr-code']\") === null", json!([]));
        open.as_bool().filter(|closed| *closed)
    });
    browser.no_errors();
}

/// The server is gone: the page opens, plans, reads files and proves from what the browser keeps.
#[test]
fn the_page_works_without_a_network() {
    let (served, address) = serve(&[]);
    let browser = Browser::open("offline", 1440, 900);
    browser.goto(&problem(&address, 4, 8, None));
    planned(&browser, "1F1B");
    browser.until("the page to be kept", || {
        let script =
            "return caches.open('pipeplan').then(cache => cache.keys()).then(keys => keys.map(({ url }) => url))";
        let kept = browser.script(script, json!([]));
        let names: Vec<&str> = kept.as_array()?.iter().filter_map(Value::as_str).collect();
        let has = |end: &str| names.iter().any(|name| name.ends_with(end));
        let all =
            ["/", "pipeplan-planner_bg.wasm", "pipeplan-reader_bg.wasm", "pipeplan-prover_bg.wasm", ".css", "sw.js"];
        (all[..5].iter().all(|end| has(end))
            && names.iter().any(|name| name.contains("pipeplan-web-") && name.ends_with("_bg.wasm")))
        .then_some(())
    });
    let controlled = "return navigator.serviceWorker.controller !== null";
    browser.until("the worker's control", || browser.script(controlled, json!([])).as_bool().filter(|is| *is));
    drop(served);
    super::reload(&browser);
    planned(&browser, "1F1B");
    super::choose(&browser, "schedule", "gpipe");
    planned(&browser, "GPipe");
    browser.find("[data-test='qr']").click();
    browser.find("[data-test='qr-code'] path");
    // What could make it one of the system's programs.
    let manifest = browser.script("return document.querySelector('link[rel=manifest]').href", json!([]));
    assert!(manifest.as_str().is_some_and(|link| link.ends_with("manifest.webmanifest")), "{manifest}");
}

/// The hand moves the limit; each picture is of the limit where it is.
#[test]
fn the_plan_follows_a_hand_on_the_chart() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("drag-limit", 1440, 900);
    browser.goto(&problem(&address, 8, 64, Some(12 << 30)));
    first_plan(&browser);
    browser.until("the chart", || {
        let state =
            browser.script("return document.querySelector(\"[data-test='frontier']\").dataset.state", json!([]));
        (state == "finished").then_some(())
    });
    let limit = || browser.find(&super::field("problem.limit_bytes")).property("value");
    let before = limit();
    let link = browser.address();
    let measured = browser.script(DRAG, json!([40]));
    assert_ne!(limit(), before);
    let mut times: Vec<f64> = measured.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    println!(
        "a new picture after a move: median {:.1} ms, p95 {:.1} ms, most {:.1} ms, of {}",
        at(0.5),
        at(0.95),
        at(1.0),
        times.len()
    );
    assert!(times.len() >= 30 && at(0.5) < 400.0, "{times:?}");
    browser.until("the plan of the last limit", || browser.text("[data-test='status']").is_empty().then_some(()));
    // One drag is one step of the history, which is written a moment after it.
    browser.until("the link of the last limit", || (browser.address() != link).then_some(()));
    browser.script("history.back()", json!([]));
    browser.until("the limit before", || (limit() == before).then_some(()));
    browser.picture("drag-limit.png");
    browser.no_errors();
}

/// Drags along the chart and measures, for each move, the time until the picture is painted anew.
const DRAG: &str = "
    const moves = arguments[0];
    const chart = document.querySelector(\"[data-test='frontier-chart']\");
    chart.scrollIntoView({ block: 'center' });
    const canvas = document.querySelector('canvas.image');
    const box = chart.getBoundingClientRect();
    const paint = CanvasRenderingContext2D.prototype.putImageData;
    let painted = null;
    CanvasRenderingContext2D.prototype.putImageData = function (...given) {
        paint.apply(this, given);
        if (this.canvas === canvas) painted?.();
    };
    const send = (kind, share) => chart.dispatchEvent(new PointerEvent(kind, {
        bubbles: true, cancelable: true, pointerId: 1, button: 0, buttons: 1,
        clientX: box.left + share * box.width, clientY: box.top + box.height / 2,
    }));
    const pause = (ms) => new Promise((then) => setTimeout(then, ms));
    return (async () => {
        const times = [];
        send('pointerdown', 0.5);
        for (let move = 0; move < moves; move++) {
            const share = 0.35 + 0.5 * Math.abs(Math.sin(move * 0.7));
            const from = performance.now();
            const seen = new Promise((then) => { painted = () => then(performance.now() - from); });
            send('pointermove', share);
            times.push(await Promise.race([seen, pause(2000).then(() => null)]));
            painted = null;
            await pause(60);
        }
        send('pointerup', 0.6);
        CanvasRenderingContext2D.prototype.putImageData = paint;
        return times;
    })()";

/// How long the first picture takes, and `best` after a change. It prints and does not judge: a busy machine is no fault of the
/// page's. `cargo test -p pipeplan-tests --test browser -- --ignored --nocapture how_long_pictures_take`
#[test]
#[ignore = "measures; needs an idle machine"]
fn how_long_pictures_take() {
    let (_served, address) = serve(&[]);
    let spec = process::output("seen-best.json");
    let stages = json!({ "forward_ns": 18_522, "backward_input_ns": 18_086, "backward_weight_ns": 9_337,
        "forward_bytes": 100, "backward_input_bytes": -63, "backward_weight_bytes": -37 });
    let said = json!({ "ranks": 8, "microbatches": 64, "stages": stages, "transfer_ns": 601, "limit_bytes": 1600 });
    std::fs::write(&spec, json!({ "schedule": "best", "problem": said }).to_string()).unwrap();
    let link = format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim());
    let first_picture = "return (async () => { \
        for (;;) { const marked = performance.getEntriesByName('first picture')[0]; if (marked) return marked.startTime; \
        await new Promise(then => setTimeout(then, 20)); } })()";
    // The server compresses ahead.
    std::thread::sleep(std::time::Duration::from_secs(8));
    for (what, bits) in [("local", 0.0), ("10 Mbit/s", 10e6)] {
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let browser = Browser::open("first-picture", 1440, 900);
                browser.run_first(MARK);
                if bits > 0.0 {
                    browser.throttle(bits / 8.0, 20.0);
                }
                browser.goto(&link);
                browser.script(first_picture, json!([])).as_f64().unwrap_or(f64::NAN)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("first picture, {what}: {times:.0?} ms");
    }
    let browser = Browser::open("best-again", 1440, 900);
    browser.goto(&link);
    planned(&browser, "Best");
    let mut times: Vec<f64> =
        browser.script(CHANGE, json!([30])).as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    println!(
        "best, p=8 m=64, to a new picture: median {:.1} ms, p95 {:.1} ms",
        times[times.len() / 2],
        times[times.len() * 95 / 100]
    );
}

/// Marks when the timeline is painted first.
const MARK: &str = "
    const paint = CanvasRenderingContext2D.prototype.putImageData;
    CanvasRenderingContext2D.prototype.putImageData = function (...given) {
        paint.apply(this, given);
        if (this.canvas.className === 'image') {
            performance.mark('first picture');
            CanvasRenderingContext2D.prototype.putImageData = paint;
        }
    };";

/// Types other times of a forward and measures until the picture is painted anew.
const CHANGE: &str = "
    const field = document.querySelector(\"[data-test='field-problem.stages.forward_ns']\");
    const canvas = document.querySelector('canvas.image');
    const paint = CanvasRenderingContext2D.prototype.putImageData;
    let painted = null;
    CanvasRenderingContext2D.prototype.putImageData = function (...given) {
        paint.apply(this, given);
        if (this.canvas === canvas) painted?.();
    };
    const pause = (ms) => new Promise((then) => setTimeout(then, ms));
    return (async () => {
        const times = [];
        for (let move = 0; move < arguments[0]; move++) {
            const from = performance.now();
            const seen = new Promise((then) => { painted = () => then(performance.now() - from); });
            field.value = `${18500 + 10 * (move % 7)}`;
            field.dispatchEvent(new Event('input', { bubbles: true }));
            times.push(await Promise.race([seen, pause(3000).then(() => null)]));
            painted = null;
            await pause(400);
        }
        return times;
    })()";
