//! Measured runs: opened with a plan or without one, explained, planned again, and large.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use pipeplan_tests::torch::{Recorded, recorded};
use serde_json::{Value, json};

use super::{duration_in, example, first_plan, open, planned, serve};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn open_all(browser: &Browser, files: &[&str]) {
    browser.find("[data-test='open-file']").keys(&files.join("\n"));
}

/// Waits until the page shows a run and says what it means.
fn explained(browser: &Browser) -> String {
    browser.until("a run that is explained", || {
        let known = browser.script("return !!document.querySelector(\"[data-test='what-if']\")", json!([]));
        (known == json!(true)).then(|| browser.text("[data-test='run-said']"))
    })
}

fn is_beside(browser: &Browser) -> bool {
    browser.find("[data-test='trace-beside']").property("checked") == json!(true)
}

fn notice(browser: &Browser, part: &str) -> String {
    browser.until(part, || Some(browser.text("[data-test='notice']")).filter(|text| text.contains(part)))
}

/// The cells of a table, row by row.
fn cells(browser: &Browser, table: &str) -> Vec<Vec<String>> {
    let script = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))";
    let found = browser.script(script, json!([format!("[data-test='{table}']")]));
    serde_json::from_value(found).expect("texts")
}

fn choose_step(browser: &Browser, value: &str) {
    let script =
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', { bubbles: true }))";
    browser.find("[data-test='trace-step']").script_with(script, json!(value));
}

/// A step as a trace has it, of the timeline of a plan.
fn step_of(number: usize, plan: &Path) -> Value {
    let shown: Value = serde_json::from_str(&printed(["show", text(plan), "--json"])).expect("JSON");
    let row = |row: &Value| {
        let spans: Vec<&Value> = row.as_array().into_iter().flatten().collect();
        let column = |name: &str| spans.iter().map(|span| span[name].clone()).collect::<Vec<Value>>();
        let ops: Vec<&str> = spans.iter().filter_map(|span| span["op"].as_str()).collect();
        json!({ "steps": ops.join(" "), "start_ns": column("start_ns"), "end_ns": column("end_ns") })
    };
    let rows: Vec<Value> = shown["rows"].as_array().into_iter().flatten().map(row).collect();
    json!({ "step": number, "loss": null, "tokens": 0, "rows": rows })
}

/// A plan of four ranks, and a run of it in which rank 2 takes twice as long from step 3 on.
fn slow_run(name: &str) -> [PathBuf; 2] {
    let path = |what: &str| process::output(&format!("{name}-{what}.json"));
    let plan = |what: &str, slow: u64| {
        let stage = |by: u64| json!({ "forward_ns": 10_000 * by, "backward_input_ns": 20_000 * by });
        let stages = json!([stage(1), stage(1), stage(slow), stage(1)]);
        let problem = json!({ "ranks": 4, "microbatches": 8, "transfer_ns": 1_000, "stages": stages });
        let (spec, plan) = (path(&format!("{what}-problem")), path(what));
        std::fs::write(&spec, problem.to_string()).expect("written");
        printed(["plan", text(&spec), "--schedule", "1f1b", "-o", text(&plan)]);
        plan
    };
    let (usual, slow) = (plan("plan", 1), plan("slow", 2));
    let steps: Vec<Value> = (0..6).map(|step| step_of(step, if step < 3 { &usual } else { &slow })).collect();
    let trace = json!({ "format": "pipeplan-trace", "version": 1, "plan_digest": "", "backend": "cpu",
        "transport": "threads", "peak_bytes": [0, 0, 0, 0], "steps": steps });
    let file = path("trace");
    std::fs::write(&file, trace.to_string()).expect("written");
    [usual, file]
}

/// Files of torch.profiler without the plan that ran: the run alone, with stages and microbatches from its ranges. Its order is
/// planned, and then both are shown.
#[test]
fn a_run_without_a_plan_is_shown_alone_and_its_order_is_planned() {
    let (_served, address) = serve(&[]);
    let Recorded { packed: [first, second], .. } = recorded("alone");
    let browser = Browser::open("alone", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    open_all(&browser, &[&first, &second]);
    let said = explained(&browser);
    assert!(said.contains("2 ranks") && said.contains("4 stages") && said.contains("2 microbatches"), "{said}");
    assert!(notice(&browser, "not a run of the plan on screen").contains("rank"), "the reason");
    assert!(!is_beside(&browser));
    let label = browser.find("[data-test='timeline']").property("ariaLabel");
    assert!(label.as_str().is_some_and(|label| label.contains("measured step: 2 ranks")), "{label}");
    // There is no plan of it to calibrate.
    assert_eq!(browser.find("[data-test='calibrate-plan']").property("disabled"), json!(true));
    browser.picture("run-alone.png");
    browser.find("[data-test='plan-order']").click();
    let figures = browser.until("the run beside its plan", || {
        let text = browser.text("[data-test='trace-figures']");
        (is_beside(&browser) && text.contains('×')).then_some(text)
    });
    assert!(figures.contains("5.593 ms"), "{figures}");
    browser.picture("run-order-planned.png");
    browser.no_errors();
}

/// Logs of PaddlePaddle with a damaged line, and one of them missing.
#[test]
fn logs_of_paddle_open_and_damage_is_named() {
    let (_served, address) = serve(&[]);
    let [_, trace] = slow_run("paddle");
    let folder = process::output("paddle-logs");
    printed(["export", text(&trace), "--format", "paddle-log", "-o", text(&folder)]);
    let log = |device: usize| folder.join(format!("workerlog.{device}"));
    let damaged = std::fs::read_to_string(log(1)).expect("a log").replacen("job_end_time = ", "job_", 1);
    let line =
        damaged.lines().position(|line| line.contains("job_start") && !line.contains("job_end")).expect("a line") + 1;
    std::fs::write(log(1), damaged).expect("written");
    let browser = Browser::open("paddle", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    let logs: Vec<PathBuf> = [0, 1, 2, 3].map(log).into();
    open_all(&browser, &logs.iter().map(|log| text(log)).collect::<Vec<_>>());
    let said = explained(&browser);
    assert!(
        said.contains("4 ranks on Paddle") && said.contains("4 stages") && said.contains("8 microbatches"),
        "{said}"
    );
    let told = notice(&browser, &format!("workerlog.1 line {line}"));
    assert!(told.contains("The rest is shown"), "{told}");
    browser.picture("run-paddle.png");
    browser.find("[data-test='trace-close']").click();
    open_all(&browser, &[text(&logs[0]), text(&logs[2]), text(&logs[3])]);
    notice(&browser, "workerlog.1: found no file");
    // What no browser reads says what to do.
    let report = process::output("report.sqlite");
    std::fs::write(&report, [&b"SQLite format 3\0"[..], &[0; 4096]].concat()).expect("written");
    open(&browser, &report);
    notice(&browser, "pipeplan trace");
    browser.no_errors();
}

/// A folder of this name with these files.
fn folder_of(name: &str, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let folder = process::output(name);
    let _ = std::fs::remove_dir_all(&folder);
    for (path, bytes) in files {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(path, bytes).expect("written");
    }
    folder
}

/// Folders are chosen and dropped: logs of two machines, traces of ranks with their plan, profiles of torch. What is of no run is
/// named.
#[test]
fn folders_of_runs_open_as_the_command_reads_them() {
    let (_served, address) = serve(&[]);
    let [plan, trace] = slow_run("folders");
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let logs = process::output("folders-logs");
    printed(["export", text(&trace), "--format", "paddle-log", "-o", text(&logs)]);
    let log = |device: usize| read(&logs.join(format!("workerlog.{device}")));
    let paddle = folder_of(
        "folders-paddle",
        &[
            ("machine2/workerlog.0", log(0)),
            ("machine2/workerlog.1", log(1)),
            ("machine10/workerlog.0", log(2)),
            ("machine10/workerlog.1", log(3)),
            ("machine10/notes.txt", b"nothing of a run".to_vec()),
        ],
    );
    let parts = ["0,1", "2,3"].map(|ranks| {
        let part = process::output(&format!("folders-ranks-{}.json", &ranks[..1]));
        printed(["trace", text(&trace), "--ranks", ranks, "-o", text(&part)]);
        read(&part)
    });
    let [first, second] = parts;
    let ours =
        folder_of("folders-ours", &[("a/host0.json", first), ("b/host1.json", second), ("plan.json", read(&plan))]);
    let Recorded { packed, .. } = recorded("folders");
    let [rank0, rank1] = packed.map(|file| read(Path::new(&file)));
    let torch = folder_of("folders-torch", &[("rank0.pt.trace.json.gz", rank0), ("rank1.pt.trace.json.gz", rank1)]);

    let browser = Browser::open("folders", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    browser.find("[data-test='open-folder']").keys(text(&paddle));
    let said = explained(&browser);
    assert!(said.contains("4 ranks on Paddle") && said.contains("4 stages"), "{said}");
    let told = notice(&browser, "machine10/notes.txt");
    assert!(told.contains("of no run"), "{told}");
    browser.picture("run-folder.png");

    browser.find("[data-test='trace-close']").click();
    browser.drop_files(&[text(&ours)]);
    let said = explained(&browser);
    assert!(said.contains("4 ranks on cpu") && said.contains("6 steps"), "{said}");
    assert!(is_beside(&browser), "the plan of the folder ran");

    browser.find("[data-test='trace-close']").click();
    browser.drop_files(&[text(&torch)]);
    let said = explained(&browser);
    assert!(said.contains("2 ranks") && said.contains("4 stages"), "{said}");

    let other = folder_of("folders-other", &[("a.txt", b"nothing".to_vec()), ("b/c.md", b"nothing".to_vec())]);
    browser.drop_files(&[text(&other)]);
    let told = notice(&browser, "No file of this folder is of a run");
    assert!(told.contains("folders-other/a.txt, folders-other/b/c.md"), "{told}");
    browser.no_errors();
}

/// Dumps of torch's flight recorder: each line of the command stands on the page, and the file is that of the command.
#[test]
fn dumps_of_a_run_that_hangs_say_who_waits() {
    let (_served, address) = serve(&[]);
    let folder = process::top().join("tests/reference/flight_recorder");
    let dumps = [0, 1, 2].map(|rank| folder.join(format!("fr_trace_rank_{rank}")));
    let dumps: Vec<&str> = dumps.iter().map(|dump| text(dump)).collect();
    let browser = Browser::open("hang", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    open_all(&browser, &dumps);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let shown = browser
        .until("the report", || Some(browser.text("[data-test='hang']")).filter(|text| text.contains("not there")));
    let shown = words(&shown).join(" ");
    let command = printed(["trace"].into_iter().chain(dumps.iter().copied()));
    for line in command.lines().filter(|line| !line.is_empty()) {
        // The page says times as pages do: "for at least 12 ms".
        let line = line.split("for at least").next().unwrap_or(line);
        assert!(shown.contains(&words(line).join(" ")), "{line} in {shown}");
    }
    browser.picture("run-hangs.png");
    browser.find("[data-test='save-hang']").click();
    let saved = std::fs::read_to_string(browser.downloaded("hang.json")).expect("a file");
    assert!(saved == printed(["trace"].into_iter().chain(dumps.iter().copied()).chain(["-o", "-"])), "{saved}");
    browser.screen(360, 780);
    std::thread::sleep(Duration::from_millis(300));
    browser.find("[data-test='hang']").script_with("arguments[0].scrollIntoView()", json!(null));
    browser.picture("run-hangs-on-a-phone.png");
    let is_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.script(is_wide, json!([])), json!(false));
    browser.screen(1440, 1000);
    // A dump beside files of another program is no run of one program.
    let Recorded { packed: [rank0, _], .. } = recorded("hang");
    open_all(&browser, &[dumps[0], &rank0]);
    notice(&browser, "files of one program");
    browser.no_errors();
}

/// What takes long on a run of millions of spans ends when a person says so, and can be asked for again.
#[test]
fn a_file_and_an_order_that_take_long_are_stopped() {
    let (_served, address) = serve(&[]);
    let file = large_run(512, 100, 10);
    let browser = Browser::open("stopped", 1440, 900);
    browser.goto(&example(&address));
    first_plan(&browser);
    open(&browser, &file);
    browser.until("the run", || {
        Some(browser.text("[data-test='trace-figures']")).filter(|text| text.contains("measured"))
    });
    let stopped = |button: &str, stop: &str| {
        let script =
            "const [button, stop, done] = arguments; document.querySelector(`[data-test='${button}']`).click();
            requestAnimationFrame(() => {
                const found = document.querySelector(`[data-test='${stop}']`);
                found?.click();
                setTimeout(() => done([!!found, !!document.querySelector(\"[data-test='working']\")]), 100);
            });";
        browser.script_async(script, json!([button, stop]))
    };
    for (button, stop) in [("save-trace", "stop-export"), ("plan-order", "stop-order")] {
        assert_eq!(stopped(button, stop), json!([true, false]), "{button}");
    }
    // The worker goes on with what is asked next, and nothing of what was stopped has come.
    choose_step(&browser, "3");
    let step = "return document.querySelector(\"[data-test='timeline']\").dataset.step";
    browser.until("another step", || (browser.script(step, json!([])) == json!("3")).then_some(()));
    assert!(!is_beside(&browser), "the order was not planned");
    browser.find("[data-test='save-trace']").click();
    assert!(browser.downloaded("trace.json").metadata().is_ok_and(|file| file.len() > 1 << 20));
    browser.no_errors();
}

/// Steps are chosen by their times, what they mean is what the command says, and a straggler is one click away.
#[test]
fn what_a_run_means_is_what_the_command_says() {
    let (_served, address) = serve(&[]);
    let [plan, trace] = slow_run("means");
    let browser = Browser::open("means", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    open_all(&browser, &[text(&plan), text(&trace)]);
    explained(&browser);
    assert!(is_beside(&browser));
    let told: Value =
        serde_json::from_str(&printed(["show", text(&trace), "--analysis", "--plan", text(&plan), "--json"]))
            .expect("JSON");
    let what_ifs = cells(&browser, "what-if");
    for (row, what) in what_ifs.iter().zip(told["what_if"].as_array().expect("rows")) {
        assert_eq!(row[0], what["if"].as_str().unwrap_or(""));
        if row.len() == 4 {
            let ns = what["makespan_ns"].as_f64().unwrap_or(0.0);
            assert!((duration_in(&row[1]) - ns).abs() < 0.001 * ns, "{row:?} {what}");
        }
    }
    // Busy and idle of each rank are all of the step.
    for row in cells(&browser, "run-ranks") {
        let shares = row[1..].iter().map(|share| share.trim_end_matches(" %").parse::<f64>().unwrap_or(0.0));
        assert!((shares.sum::<f64>() - 100.0).abs() < 0.6, "{row:?}");
    }
    let stragglers = cells(&browser, "stragglers");
    let (place, since) = (&stragglers[0][0], &stragglers[0][2]);
    assert_eq!((place.as_str(), since.as_str()), ("rank 2", "step 3"));
    browser.picture("run-means.png");
    browser.find("[data-test='best-order']").click();
    browser.until("the best order", || {
        let rows = cells(&browser, "what-if");
        rows.last().filter(|row| row[0].starts_with("the best order") && row.len() == 4).cloned()
    });

    // The list has each step with its time, the slowest marked.
    let options =
        "return [...document.querySelector(\"[data-test='trace-step']\").options].map(option => option.text)";
    let options: Vec<String> = serde_json::from_value(browser.script(options, json!([]))).expect("texts");
    assert!(options.len() == 7 && options[0].contains("all 6") && options[4].contains("slowest"), "{options:?}");
    choose_step(&browser, "0");
    let of_step: String = browser.until("the step", || {
        Some(browser.text("[data-test='analysis-of']")).filter(|text| text.contains("step that is shown"))
    });
    let chosen = browser.find("[data-test='trace-step']").property("value");
    assert_eq!(chosen, json!("0"), "the list follows");
    let figures = browser.text("[data-test='trace-figures']");
    let said = of_step.split_once(". Choose").map_or("", |(said, _)| said);
    assert_eq!(duration_in(said), duration_in(&figures), "{figures}");
    choose_step(&browser, "all");
    browser.until("all steps", || {
        Some(browser.text("[data-test='analysis-of']")).filter(|text| text.contains("Mean of 6"))
    });

    browser.find("[data-test='go-to-straggler']").click();
    let selected = browser.until("the straggler", || {
        Some(browser.text("[data-test='selected']")).filter(|text| text.contains("rank 2"))
    });
    assert!(selected.contains("stage 2"), "{selected}");
    browser.picture("run-straggler.png");
    browser.find("[data-test='show-path']").click();
    // By script: the page's head lies over the button.
    browser.find("[data-test='zoom-fit']").script_with("arguments[0].click()", json!(null));
    std::thread::sleep(Duration::from_millis(300));
    browser.picture("run-path.png");
    browser.screen(390, 844);
    std::thread::sleep(Duration::from_millis(300));
    browser.find("[data-test='run']").script_with("arguments[0].scrollIntoView()", json!(null));
    browser.picture("run-on-a-phone.png");
    let is_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.script(is_wide, json!([])), json!(false));
    browser.prefer_dark();
    browser.screen(1440, 900);
    std::thread::sleep(Duration::from_millis(300));
    browser.picture("run-dark.png");

    // The files are those of the command.
    for (button, end, format) in
        [("save-trace-perfetto", "trace.perfetto.json", "chrome-trace"), ("save-trace-csv", "trace.csv", "csv")]
    {
        browser.find(&format!("[data-test='{button}']")).click();
        let file = std::fs::read_to_string(browser.downloaded(end)).expect("a file");
        assert!(file == printed(["export", text(&trace), "--format", format, "-o", "-"]), "{format}");
    }
    browser.no_errors();
}

/// Plan, run, profile, and the plan of the same model with what the run took: as the command does it.
#[test]
fn the_loop_closes_on_the_page() {
    let (_served, address) = serve(&[]);
    let path = |what: &str| process::output(&format!("round-{what}.json"));
    let (plan, trace, profile, next) = (path("plan"), path("trace"), path("profile"), path("next"));
    printed(["plan", "examples/tiny-llama.toml", "--schedule", "1f1b", "-o", text(&plan)]);
    printed(["run", text(&plan), "--steps", "3", "--trace", text(&trace)]);
    let browser = Browser::open("round", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    open_all(&browser, &[text(&plan), text(&trace)]);
    explained(&browser);
    browser.find("[data-test='calibrate-plan']").click();
    let rows = browser.until("the plan with measured times", || {
        let rows = cells(&browser, "round");
        (rows.len() == 3 && rows[2][1].chars().any(char::is_numeric)).then_some(rows)
    });
    planned(&browser, "1F1B");
    browser.picture("run-planned-again.png");
    assert_eq!([&rows[0][0], &rows[1][0], &rows[2][0]], ["first plan", "measured", "planned again"]);
    browser.find("[data-test='save-profile']").click();
    let saved = browser.downloaded("profile.json");
    printed(["calibrate", text(&plan), text(&trace), "--write-profile", text(&profile)]);
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    assert!(read(&saved) == read(&profile), "the profile is that of the command");
    printed(["plan", text(&plan), "--schedule", "1f1b", "--profile", text(&saved), "-o", text(&next)]);
    let expected: Value = serde_json::from_str(&read(&next)).expect("JSON");
    let expected = expected["prediction"]["makespan_ns"].as_f64().expect("a makespan");
    let rows = cells(&browser, "round");
    assert!((duration_in(&rows[2][1]) - expected).abs() < 0.001 * expected, "{rows:?}, {expected}");
    browser.no_errors();
}

/// Collectives have a track under the ops of their rank, a legend, and a tooltip; their exposed time stands in a table.
#[test]
fn collectives_are_a_track_under_the_ops() {
    let (_served, address) = serve(&[]);
    let [_, trace] = slow_run("collectives");
    let mut said: Value = serde_json::from_str(&std::fs::read_to_string(&trace).expect("a file")).expect("JSON");
    said["collectives"] = json!([{ "kind": "reduce-scatter", "group": "dp", "label": "gradients" }, { "kind": "all-reduce", "group": "tp" }]);
    for step in said["steps"].as_array_mut().expect("steps") {
        for row in step["rows"].as_array_mut().expect("rows") {
            let last = row["end_ns"].as_array().and_then(|ends| ends.last()?.as_u64()).expect("an end");
            row["collectives"] = json!({ "of": [1, 0], "start_ns": [0, last], "end_ns": [5_000, last + 60_000] });
        }
    }
    let file = process::output("collectives.json");
    std::fs::write(&file, said.to_string()).expect("written");
    let browser = Browser::open("collectives", 1440, 1000);
    browser.goto(&example(&address));
    first_plan(&browser);
    open(&browser, &file);
    explained(&browser);
    let legend = browser.text("[data-test='legend']");
    assert!(legend.contains("gradient sync") && legend.contains("TP"), "{legend}");
    let rows = cells(&browser, "run-exposed");
    assert!(rows.len() == 4 && rows.iter().all(|row| row.iter().any(|cell| cell == "60 µs")), "{rows:?}");
    // The lower part of the first row, at the end of the step.
    let at = "const canvas = arguments[0], place = canvas.getBoundingClientRect();
        const event = (kind, x, y) => canvas.dispatchEvent(new PointerEvent(kind, { clientX: place.left + x, clientY: place.top + y, bubbles: true }));
        event('pointermove', place.width - 30, arguments[1]);";
    let said = browser.until("the tooltip", || {
        for y in (42..90).step_by(2) {
            browser.find("[data-test='timeline']").script_with(at, json!(y));
            std::thread::sleep(Duration::from_millis(40));
            let shown = browser
                .script("return document.querySelector(\"[data-test='tooltip']\")?.innerText ?? ''", json!([]));
            let shown = shown.as_str().unwrap_or("").to_owned();
            if shown.contains("gradient sync") {
                return Some(shown);
            }
        }
        None
    });
    assert!(said.contains("dp reduce-scatter gradients") && said.contains("60 µs"), "{said}");
    browser.picture("run-collectives.png");
    browser.no_errors();
}

/// A run of 1,024 ranks and 10 steps, as a file of some ten million spans: made up, since nobody keeps one.
fn large_run(ranks: usize, microbatches: usize, steps: usize) -> PathBuf {
    use std::io::Write;
    let file = process::output(&format!("large-{ranks}-{microbatches}-{steps}.json"));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&file).expect("created"));
    let mut put = |text: &str| out.write_all(text.as_bytes()).expect("written");
    put(r#"{"backend":"gpu","format":"pipeplan-trace","peak_bytes":[],"plan_digest":"","steps":["#);
    // Pipelines of 16 ranks, all copies of one: F goes down a microbatch at a time, BW comes back, as in GPipe.
    let (depth, took) = (16_usize, 1_000_000_u64);
    for step in 0..steps {
        put(if step > 0 { "," } else { "" });
        put(&format!(r#"{{"loss":null,"step":{step},"tokens":0,"rows":["#));
        for rank in 0..ranks {
            let (stage, noise) = (rank % depth, (rank * 7919 + step * 104_729) as u64);
            let (mut names, mut starts, mut ends) = (String::new(), String::new(), String::new());
            let mut add = |name: String, start: u64, end: u64| {
                let comma = if starts.is_empty() { "" } else { "," };
                names.push_str(if comma.is_empty() { "" } else { " " });
                names.push_str(&name);
                starts.push_str(&format!("{comma}{start}"));
                ends.push_str(&format!("{comma}{end}"));
            };
            for microbatch in 0..microbatches {
                let start = (stage + microbatch) as u64 * took;
                add(
                    format!("{stage}F{microbatch}"),
                    start,
                    start + took * 9 / 10 - (noise + microbatch as u64 * 31) % 90_000,
                );
            }
            let turn = (depth + microbatches) as u64 * took;
            for microbatch in 0..microbatches {
                let start = turn + (depth - 1 - stage + microbatch) as u64 * 2 * took;
                add(
                    format!("{stage}BW{microbatch}"),
                    start,
                    start + took * 19 / 10 - (noise + microbatch as u64 * 17) % 90_000,
                );
            }
            put(if rank > 0 { "," } else { "" });
            put(&format!(r#"{{"end_ns":[{ends}],"start_ns":[{starts}],"steps":"{names}"}}"#));
        }
        put("]}");
    }
    put(&format!(r#"],"replicas":{},"transport":"nccl","version":1}}"#, ranks / depth));
    file
}

/// Times to open and to draw a large run, and the memory that it takes. Run alone: `--ignored large`.
#[test]
#[ignore = "it measures; some minutes and gigabytes"]
fn a_large_run_opens_and_moves() {
    let (_served, address) = serve(&[]);
    let microbatches = std::env::var("PIPEPLAN_LARGE").ok().and_then(|count| count.parse().ok()).unwrap_or(488);
    let file = large_run(1024, microbatches, 10);
    println!("{} bytes, {} spans", file.metadata().expect("a file").len(), 1024 * microbatches * 2 * 10);
    let browser = Browser::open("large", 1440, 900);
    browser.goto(&example(&address));
    first_plan(&browser);
    let memory = |when: &str| {
        let script = "const done = arguments[1]; performance.measureUserAgentSpecificMemory
            ? performance.measureUserAgentSpecificMemory().then(m => done(m.bytes), () => done(performance.memory?.usedJSHeapSize ?? 0))
            : done(performance.memory?.usedJSHeapSize ?? 0)";
        println!("{when}: page {} of JavaScript", browser.find("body").script_async(script));
        let rss = std::process::Command::new("ps").args(["-eo", "rss,args"]).output().expect("ps").stdout;
        let rss = String::from_utf8_lossy(&rss).into_owned();
        let renderers: Vec<u64> = rss
            .lines()
            .filter(|line| line.contains("--type=renderer"))
            .filter_map(|line| line.trim().split(' ').next()?.parse().ok())
            .collect();
        println!("{when}: renderers hold {renderers:?} KiB");
    };
    memory("before");
    let began = Instant::now();
    open(&browser, &file);
    let shown = |said: &str, most: u64| {
        let end = Instant::now() + Duration::from_secs(most);
        while browser.script(said, json!([])) != json!(true) {
            assert!(Instant::now() < end, "waited for {said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    shown("return /measured/.test(document.querySelector(\"[data-test='trace-figures']\")?.innerText ?? '')", 240);
    println!("open: {:.1} s", began.elapsed().as_secs_f64());
    memory("open");
    browser.picture("run-large.png");
    let frames = "const done = arguments[1], canvas = document.querySelector(\"[data-test='timeline']\"), took = [];
        const place = canvas.getBoundingClientRect(), y = place.top + 150;
        for (let at = 0; at < 4; at++) canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: -400, ctrlKey: true, clientX: place.left + place.width / 2, clientY: y, bubbles: true, cancelable: true }));
        const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, { pointerId: 1, button: 0, buttons: 1, clientX: x, clientY: y, bubbles: true }));
        let last = performance.now(), count = 0;
        const frame = () => {
            const now = performance.now(); took.push(now - last); last = now; count++;
            if (count > 240) { send('pointerup', place.left + 500); took.sort((a, b) => a - b); return done([took[took.length >> 1], took[Math.floor(took.length * 0.95)], took[took.length - 1]]); }
            if (count == 1) send('pointerdown', place.left + 700); else send('pointermove', place.left + 700 + 300 * Math.sin(count / 20));
            requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);";
    println!("frames while panning, ms (median, p95, most): {}", browser.find("body").script_async(frames));
    let shown_step = |step: &str| {
        let began = Instant::now();
        choose_step(&browser, step);
        shown(
            &format!(
                "return document.querySelector(\"[data-test='trace-step']\").value === '{step}' && document.querySelector(\"[data-test='timeline']\").dataset.step === '{step}'"
            ),
            60,
        );
        began.elapsed().as_secs_f64()
    };
    println!("another step: {:.1} s", shown_step("3"));
    let began = Instant::now();
    browser.script("document.querySelector(\"[data-test='analyse']\")?.click()", json!([]));
    shown("return /[1-9]/.test(document.querySelector(\"[data-test='replayed']\")?.innerText ?? '')", 60);
    println!("while it is explained, another step: {:.1} s", shown_step("5"));
    shown("return !!document.querySelector(\"[data-test='what-if']\")", 300);
    println!("that step explained: {:.1} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    choose_step(&browser, "all");
    shown("return /Mean of/.test(document.querySelector(\"[data-test='analysis-of']\")?.innerText ?? '')", 300);
    println!("all steps explained: {:.1} s", began.elapsed().as_secs_f64());
    memory("explained");
    browser.no_errors();
}
