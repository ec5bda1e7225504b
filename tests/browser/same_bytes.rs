//! Page and command give the same bytes; how much slower WebAssembly is.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::serve;

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
    let in_page = "const [spec, schedule, times] = arguments; return (async () => { let least = Infinity; \
                   await window.wasmBindings.link(spec); for (let i = 0; i < times; i++) { \
                   const from = performance.now(); await window.wasmBindings.plan_json(spec, schedule); \
                   least = Math.min(least, performance.now() - from) } return least })()";
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

/// Specs of all kinds. Page and command must write the same bytes for them.
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
    // Jitter changes the best of this spec.
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
    let from_page = "const [work, ...given] = arguments; return window.wasmBindings[work](...given).then(ok => ({ ok }), error => ({ error: String(error) }))";
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
        for schedule in pipeplan_core::schedule::schedule_names() {
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
