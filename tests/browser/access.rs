//! The page for everyone: by keys and screen readers, in a person's own colours, without motion.

use std::time::Duration;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{ENTER, choose, example, open, planned, serve};

/// What axe-core finds on the page as it is: each rule that is broken, with the first elements that break it.
fn violations(browser: &Browser, axe: &str) -> Vec<String> {
    browser.script(&format!("if (!window.axe) {{ {axe} }}"), json!([]));
    let run = "const done = arguments[1];
        axe.run(document, { resultTypes: ['violations'] }).then(found => done(found.violations.map(broken =>
            `${broken.id}: ${broken.help}: ${broken.nodes.slice(0, 4).map(node => `${node.target} ${node.any.concat(node.all, node.none).map(check => check.message).join('; ')}`).join(' | ')}`
        )), error => done([String(error)]));";
    let found = browser.find("body").script_async(run);
    found.as_array().into_iter().flatten().map(|said| said.as_str().unwrap_or("?").to_owned()).collect()
}

/// Waits until the page shows a plan, or why there is none, and nothing is under way.
fn settled(browser: &Browser) {
    browser.until("the page to settle", || {
        let script = "const said = name => document.querySelector(`[data-test='${name}']`)?.innerText ?? '';
            return said('status') === '' && (/\\d/.test(said('makespan')) || said('no-plan') !== '')";
        (browser.script(script, json!([])) == json!(true)).then_some(())
    });
}

/// A small problem, whose best schedule is proved within a second.
fn small(address: &str) -> String {
    let spec = process::output("access-small.json");
    let stages = json!({ "forward_ns": 1_000, "backward_input_ns": 1_000, "backward_weight_ns": 1_000,
        "forward_bytes": 1, "backward_input_bytes": 0, "backward_weight_bytes": -1 });
    let said = json!({ "ranks": 4, "microbatches": 8, "limit_bytes": 3, "stages": stages });
    std::fs::write(&spec, said.to_string()).unwrap();
    format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim())
}

/// A plan that does not fit, with suggestions.
fn unfit(address: &str) -> String {
    let spec = process::output("access-unfit.toml");
    let said = "model.name = \"llama-2-7b\"\ncluster.device = \"h100\"\nparallel.pipeline = 4\ntraining.microbatches = 8\n\
        schedule = \"gpipe\"\nmemory.limit_bytes = \"30 GiB\"\n";
    std::fs::write(&spec, said).unwrap();
    format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim())
}

/// Brings the page into a state of a person's work, by name.
fn go_to(browser: &Browser, address: &str, state: &str) {
    // Not only the fragment changes: each state starts from nothing.
    browser.goto("about:blank");
    let to = |address: &str| {
        browser.goto(address);
        browser.script("sessionStorage.clear()", json!([]));
        settled(browser);
    };
    match state {
        "start" => to(address),
        "config" => {
            to(&small(address));
            let config = process::output("access-config.json");
            let said = json!({ "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
                "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000 });
            std::fs::write(&config, said.to_string()).unwrap();
            open(browser, &config);
            settled(browser);
        }
        "unfit" => {
            to(&unfit(address));
            browser.find("[data-test='suggestions']");
        }
        "kept" => {
            to(&example(address));
            browser.find("[data-test='keep']").click();
            choose(browser, "schedule", "1f1b");
            planned(browser, "1F1B");
            browser.find("[data-test='timeline']").keys(ENTER);
        }
        "trace" => {
            let (plan, trace) = (process::output("access-plan.json"), process::output("access-trace.json"));
            let paths = [plan.to_str().unwrap(), trace.to_str().unwrap()];
            printed(["plan", "examples/tiny-llama.toml", "--schedule", "zb-h1", "-o", paths[0]]);
            printed(["run", paths[0], "--steps", "2", "--trace", paths[1]]);
            to(&small(address));
            browser.find("[data-test='open-file']").keys(&paths.join("\n"));
            browser.find("[data-test='calibrate']").click();
            browser.find("[data-test='calibration']");
        }
        "run" => {
            let (plan, trace) = (process::output("access-run-plan.json"), process::output("access-run-trace.json"));
            let paths = [plan.to_str().unwrap(), trace.to_str().unwrap()];
            printed(["plan", "examples/tiny-llama.toml", "--schedule", "1f1b", "-o", paths[0]]);
            printed(["run", paths[0], "--steps", "3", "--trace", paths[1]]);
            to(&small(address));
            // Without its plan: the run alone, and what it means.
            browser.find("[data-test='open-file']").keys(paths[1]);
            browser.find("[data-test='what-if']");
        }
        "help" => {
            to(&example(address));
            browser.script("document.querySelectorAll('details').forEach(fold => fold.open = true)", json!([]));
            browser.find("[data-test='op-table-rows'] tbody tr");
        }
        "comparison" => {
            to(&example(address));
            browser.find("[data-test='sort-peak']").click();
            browser.find("[data-test='compare'] tbody tr");
        }
        "proof" => {
            to(&small(address));
            browser.find("[data-test='prove']").click();
            let done = "return document.querySelector(\"[data-test='proof']\").dataset.state === 'proved'";
            browser.until("a proof", || (browser.script(done, json!([])) == json!(true)).then_some(()));
        }
        "documents" => {
            to(&super::documents::example(address));
            super::documents::open_example(browser);
            browser.script("document.querySelector(\"[data-test='microbatches']\").scrollIntoView()", json!([]));
        }
        other => panic!("no state {other}"),
    }
}

/// Without axe-core, as where npm cannot be had, nothing is checked, and that is said.
#[test]
fn axe_finds_nothing_in_ten_states_light_dark_and_on_a_phone() {
    let Some(axe) = std::env::var_os("PIPEPLAN_AXE") else {
        eprintln!("not run: PIPEPLAN_AXE names no axe.min.js; ./dev test gets one");
        return;
    };
    let axe = std::fs::read_to_string(&axe).unwrap_or_else(|error| panic!("{}: {error}", axe.display()));
    let (_served, address) = serve(&[]);
    let browser = Browser::open("axe", 1440, 900);
    let mut found = Vec::new();
    for state in ["start", "config", "unfit", "kept", "trace", "run", "help", "comparison", "proof", "documents"] {
        browser.screen(1440, 900);
        browser.prefer(&[("prefers-color-scheme", "light"), ("prefers-reduced-motion", "reduce")]);
        go_to(&browser, &address, state);
        for (look, scheme, (width, height)) in
            [("light", "light", (1440, 900)), ("dark", "dark", (1440, 900)), ("phone", "light", (360, 740))]
        {
            browser.prefer(&[("prefers-color-scheme", scheme), ("prefers-reduced-motion", "reduce")]);
            browser.screen(width, height);
            std::thread::sleep(Duration::from_millis(150));
            browser.picture(&format!("axe-{state}-{look}.png"));
            found.extend(violations(&browser, &axe).into_iter().map(|said| format!("{state}, {look}: {said}")));
        }
    }
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
    browser.no_errors();
}

/// The first Tab leads past the form; the timeline is a table, too, bounded in size.
#[test]
fn the_plan_is_reached_at_once_and_read_as_a_table() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("access", 1280, 1000);
    let spec = process::output("access-table.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 20_000 });
    let said = json!({ "schedule": "1f1b", "problem": {
        "ranks": 4, "microbatches": 80, "transfer_ns": 2_000, "stages": stages } });
    std::fs::write(&spec, said.to_string()).unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    browser.find("body").keys("\u{e004}");
    let focused = "return document.activeElement?.dataset.test ?? document.activeElement?.localName";
    assert_eq!(browser.script(focused, json!([])), json!("skip"));
    browser.picture("skip.png");
    browser.find("[data-test='skip']").keys(ENTER);
    assert_eq!(browser.script(focused, json!([])), json!("main"));

    browser.find("[data-test='op-table'] summary").click();
    let rows = || {
        browser.script("return document.querySelectorAll(\"[data-test='op-table-rows'] tbody tr\").length", json!([]))
    };
    browser.until("rows of the first rank", || (rows() == json!(100)).then_some(()));
    assert_eq!(browser.text("[data-test='op-table-part']"), "ops 1 to 100 of 160");
    browser.find("[data-test='op-table-later']").click();
    browser.until("the other rows", || (rows() == json!(60)).then_some(()));
    let choose =
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', { bubbles: true }))";
    browser.find("[data-test='op-table-rank']").script_with(choose, json!("3"));
    // By hand: three forwards of 10 µs and three transfers of 2 µs.
    browser.until("the first row of the last rank", || {
        let row = browser.text("[data-test='op-table-rows'] tbody tr");
        row.contains("3F0 forward 3 0 36 µs 10 µs 36 µs 2F0 of rank 2").then_some(())
    });
    browser.picture("op-table.png");
    browser.no_errors();
}

/// A person's own colours keep the colours of ops apart, and nothing moves where they want no motion.
#[test]
fn own_colours_and_no_motion_are_respected() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("own-colours", 1440, 900);
    browser.prefer(&[
        ("forced-colors", "active"),
        ("prefers-color-scheme", "dark"),
        ("prefers-reduced-motion", "reduce"),
    ]);
    browser.goto(&example(&address));
    planned(&browser, "Best");
    let colours =
        "return [...document.querySelectorAll('.swatch')].map(swatch => getComputedStyle(swatch).backgroundColor)";
    let colours = browser.script(colours, json!([]));
    let mut colours: Vec<&str> = colours.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let all = colours.len();
    colours.sort_unstable();
    colours.dedup();
    assert!(all > 1 && colours.len() == all, "{colours:?}");
    let moving = "return [...document.querySelectorAll('*')].filter(element => {
        const style = getComputedStyle(element);
        const moves = name => style[name].split(',').some(part => parseFloat(part) > 0);
        return (style.transitionProperty !== 'none' && moves('transitionDuration')) || (style.animationName !== 'none' && moves('animationDuration'));
    }).length";
    assert_eq!(browser.script(moving, json!([])), json!(0));
    browser.picture("own-colours.png");
    browser.no_errors();
}
