//! Files that are opened and saved.

use std::path::Path;

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{choose, example, field, first_plan, link_that_says, notices, open, planned, reload, serve};

/// Errors of files that are opened together are shown together, each with the name of its file.
#[test]
fn what_is_wrong_with_one_of_several_files_stays() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("several", 1280, 900);
    browser.goto(&example(&address));
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
    let parts =
        ["faulty-spec.toml: This file is a spec", "faulty-plan.json: This plan", "faulty-trace.json: This trace"];
    // Runs are read in a worker of their own, so what is wrong with one comes when it comes.
    let said = browser.until("all that is wrong", || {
        let said = browser.text("[data-test='notice']");
        parts.iter().all(|part| said.contains(part)).then_some(said)
    });
    assert!(!said.contains("good-spec"), "{said}");
    // The next file has separate messages.
    open(&browser, Path::new(&files[3]));
    browser.until("nothing to say", || (notices(&browser) == json!(0)).then_some(()));
    browser.no_errors();
}

/// A profile is opened like any file. The page then makes the plan of `plan --profile`, also after a reload, until the
/// profile is closed.
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
    // A damaged profile is refused, and the one before stays, also after a reload.
    let damaged = process::output("damaged-profile.json");
    std::fs::write(&damaged, std::fs::read_to_string(&profile).unwrap().replace("\"ns\": ", "\"ns\": -")).unwrap();
    open(&browser, &damaged);
    browser.until("the faults", || browser.text("[data-test='notice']").contains("[0].ns: found -").then_some(()));
    planned(&browser, "ZB-V");
    reload(&browser);
    said("all operators are measured");
    browser.until("the same plan", || (makespan() == measured).then_some(()));
    // A plan without measured times is not labelled with them.
    let plain = process::output("plan-without-profile.json");
    printed(["plan", "examples/tiny-llama.toml", "-o", plain.to_str().unwrap()]);
    open(&browser, &plain);
    said("contains its own times");
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

/// A custom schedule has the costs of the form, and is exported as a plan.
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
    first_plan(&browser);
    let mine = process::output("mine.txt");
    std::fs::write(&mine, "# 1F1B\n0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1 1BW1\n").unwrap();
    open(&browser, &mine);
    planned(&browser, "Custom schedule");
    assert!(browser.text("[data-test='notice']").contains("custom schedule of the file"));
    // Its link leads to another plan, and the page says so.
    browser.find("[data-test='copy-link']").click();
    browser.until("what the link lacks", || {
        browser.text("[data-test='notice']").contains("or its custom schedule").then_some(())
    });
    browser.find("[data-test='export-plan']").click();
    let plan: Value =
        serde_json::from_str(&std::fs::read_to_string(browser.downloaded("plan.json")).unwrap()).unwrap();
    let command: Value =
        serde_json::from_str(&printed(["plan", spec, "--order", mine.to_str().unwrap(), "--json"])).unwrap();
    for part in ["spec", "problem", "program", "prediction"] {
        assert_eq!(plan[part], command[part], "{part}");
    }
    an_order_is_compared_with_published_ones(&browser, spec, &mine);
    a_change_takes_the_order_away(&browser, &mine);
    the_model_of_a_checkpoint_is_opened(&browser);
    browser.no_errors();
}

/// The row of a custom schedule.
const OWN_ROW: &str = "[data-test='row-Own order']";

/// The sensitivity table: item and change of time.
fn effects(browser: &Browser) -> Vec<(String, String)> {
    let text = browser.text("[data-test='effects'] tbody");
    let row = |line: &str| line.split_once('+').map(|(name, rest)| (name.trim().to_string(), rest.to_string()));
    text.lines().filter_map(row).collect()
}

fn effect(name: &str, effects: &[(String, String)]) -> Option<String> {
    effects.iter().find(|(found, _)| found == name).map(|(_, rest)| rest.clone())
}

/// While it is on screen, it has a row among published schedules, with the figures of the command.
fn an_order_is_compared_with_published_ones(browser: &Browser, spec: &str, mine: &Path) {
    browser.until("the comparison", || (!browser.text("[data-test='row-gpipe'] td").is_empty()).then_some(()));
    let compared: Value =
        serde_json::from_str(&printed(["compare", spec, "--order", mine.to_str().unwrap(), "--json"])).unwrap();
    let row = compared["rows"].as_array().unwrap().iter().find(|row| row["schedule"] == "mine").unwrap();
    // Two forwards ahead of the first backward on the other rank, two backwards of 2 µs behind it.
    assert_eq!(row["makespan_ns"], 9_000);
    assert_eq!(browser.text(&format!("{OWN_ROW} [data-test='makespan']")), "9 µs");
    assert_eq!(browser.text("tr.chosen th"), "Custom schedule");
    // Of its 9 µs, 6 µs are ops of rank 1 and 6 µs are backwards.
    browser.find("[data-test='sensitivity'] summary").click();
    let effects = browser.until("what its time hangs on", || Some(effects(browser)).filter(|rows| !rows.is_empty()));
    for (name, longer) in [("every op", "10.00 %"), ("all BW", "6.67 %"), ("rank 1", "6.67 %"), ("rank 0", "3.33 %")]
    {
        let found = effect(name, &effects).unwrap_or_else(|| panic!("{name} in {effects:?}"));
        assert!(found.starts_with(longer) && found.ends_with(&format!("−{longer}")), "{name}: {found}");
    }
    browser.picture("own-order.png");
}

fn a_change_takes_the_order_away(browser: &Browser, mine: &Path) {
    choose(browser, "schedule", "zb-h1");
    planned(browser, "ZB-H1");
    let notice = browser.text("[data-test='notice']");
    assert!(
        notice.contains("(Custom schedule) is no longer shown") && !notice.contains("custom schedule of the file"),
        "{notice}"
    );
    browser.until("what the time of the other plan hangs on", || effect("all B", &effects(browser)));
    choose(browser, "schedule", "gpipe");
    planned(browser, "GPipe");
    let left = browser.script("return document.querySelectorAll(arguments[0]).length", json!([OWN_ROW]));
    assert_eq!(left, 0);
    // If the form changes while the file is read, the page says that the file is dropped.
    browser.script(CHANGE_MEANWHILE, json!(["schedule", "zb-h1"]));
    open(browser, mine);
    browser.until("the change", || (browser.find(&field("schedule")).property("value") == "zb-h1").then_some(()));
    planned(browser, "ZB-H1");
    let notice = browser.text("[data-test='notice']");
    assert!(notice.contains("The opened file is not shown"), "{notice}");
    std::fs::write(mine, "0F0 0F1 0BW0 0BW1\n1F0 1BW0 1F1\n").unwrap();
    open(browser, mine);
    browser.until("what is wrong", || browser.text("[data-test='notice']").contains("1BW1 never runs").then_some(()));
    // After any change, the schedule of the form is on screen again.
    choose(browser, "schedule", "1f1b");
    planned(browser, "1F1B");
    // Any file can be picked: a workerlog.0 has no ending that a list could name.
    let picked = browser.find("[data-test='open-file']").property("accept");
    assert_eq!(picked, json!(""));
}

fn the_model_of_a_checkpoint_is_opened(browser: &Browser) {
    let config = process::output("config.json");
    let sizes = json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 500_000.0, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    std::fs::write(&config, sizes.to_string()).unwrap();
    open(browser, &config);
    // The best can be a published schedule, and then has its name.
    let is_planned = || {
        browser.text("[data-test='status']").is_empty()
            && browser.find(&field("model.vocab")).property("value") == "128256"
            && browser.text("[data-test='schedule-title']") != "1F1B"
    };
    browser.until("the plan of its model", || is_planned().then_some(()));
    for (path, value) in [("model.layers", "16"), ("training.sequence", "2048")] {
        assert_eq!(browser.find(&field(path)).property("value"), value, "{path}");
    }
    // The next one sets its sequence length, since no person has typed one.
    let gpt2 = json!({
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    });
    std::fs::write(&config, gpt2.to_string()).unwrap();
    open(browser, &config);
    browser.until("its sequences", || {
        let is = |path: &str, value: &str| browser.find(&field(path)).property("value") == value;
        (is("model.layers", "12") && is("training.sequence", "1024")).then_some(())
    });
}

/// A script that leaves a size open is refused by the variable's name. Given its value, it is planned, and the table says what
/// was done with each argument.
#[test]
fn a_script_is_given_what_it_leaves_open_and_its_arguments_are_listed() {
    let (_served, address) = serve(&[]);
    let script = process::output("launch.sh");
    let lines = [
        "ARGS=\"--num-layers $1 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 32000\"",
        "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS --swiglu --normalization RMSNorm --disable-bias-linear \\",
        "  --position-embedding-type rope --micro-batch-size 1 --global-batch-size 3 --seed 1 --tp-comm-overlap \\",
        "  --pipeline-model-parallel-size 4 --tensor-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
    ];
    std::fs::write(&script, lines.join("\n")).unwrap();
    let browser = Browser::open("script", 1280, 1000);
    browser.goto(&example(&address));
    planned(&browser, "Best");
    open(&browser, &script);
    let table = || browser.text("[data-test='arguments']");
    browser.until("the refusal", || table().contains("1 refused").then_some(()));
    assert!(table().contains("--num-layers") && table().contains("--set 1=VALUE"), "{}", table());
    browser.picture("arguments-refused.png");
    browser.find("[data-test='script-values']").fill("1=24");
    browser.find("[data-test='script-again']").click();
    planned(&browser, "Interleaved 1F1B");
    assert_eq!(browser.find(&field("model.layers")).property("value"), "24");
    browser.find("[data-test='arguments'] summary").click();
    for said in ["0 refused", "--tp-comm-overlap", "planned otherwise", "--seed", "does not change the plan", "used"]
    {
        assert!(table().contains(said), "{said}: {}", table());
    }

    // Three microbatches are fewer than the stages of a rank want: Megatron-LM's own rule.
    choose(&browser, "target", "megatron");
    browser.until("the rule", || browser.text("[data-test='refusals']").contains("Megatron-LM").then_some(()));
    browser.picture("arguments.png");
    browser.no_errors();
}

/// A log of Megatron-LM gives the model and the layout of its run. If the memory limit makes the step longer, the page
/// suggests changes, and one click makes a change.
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
    browser.goto(&example(&address));
    planned(&browser, "Best");
    open(&browser, &log);
    planned(&browser, "1F1B");
    for (path, value) in [("model.layers", "32"), ("parallel.data", "2"), ("training.microbatches", "4")] {
        assert_eq!(browser.find(&field(path)).property("value"), value, "{path}");
    }
    let notice = browser.text("[data-test='notice']");
    assert!(
        notice.contains("train.log is a run of Megatron-LM") && notice.contains("step time is 3.5 s"),
        "{notice}"
    );

    // The form accepts the global batch size, and shows it if it is not typed.
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
    // The best can be a published schedule, and then has its name.
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

/// Form and figures belong to one problem, also if the form changes or another file comes while a plan file is read.
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
    browser.goto(&example(&address));
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

/// If the search still runs, the plan is saved when it is found, and the page says so at once.
#[test]
fn a_plan_is_saved_when_its_search_has_ended() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("saved-later", 1280, 1000);
    browser.goto(&example(&address));
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
    assert!(said.contains("when the search ends"), "{said}");
    let plan = std::fs::read_to_string(browser.downloaded("plan.json")).unwrap();
    planned(&browser, "Best");
    let link = link_that_says(&browser, |spec| spec["training"]["microbatches"] == 24);
    assert!(plan == printed(["plan", &link, "-o", "-"]), "the page's plan is not the command's");
    let left = notices(&browser);
    assert_eq!(left, 0, "it is saved, and nothing more to be said of it");
    browser.no_errors();
}
