//! The page as a first visitor meets it: five inputs, and a layout that the planner finds.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process;
use serde_json::{Value, json};

use super::{choose, field, link_that_says, notices, open, printed, reload, serve};

/// The devices that a spec's degrees need.
fn devices(spec: &Value) -> u64 {
    let degree = |name: &str| spec["parallel"][name].as_u64().unwrap_or(1);
    ["pipeline", "tensor", "data", "context"].map(degree).iter().product()
}

/// Waits until a plan is shown and nothing is under way: whichever schedule is the best.
fn shown(browser: &Browser) {
    browser.until("a plan", || {
        let idle = browser.text("[data-test='status']").is_empty();
        let known = |name: &str| browser.text(&format!("[data-test='{name}']")).chars().any(char::is_numeric);
        (idle && known("peak") && known("makespan")).then_some(())
    });
}

fn following(browser: &Browser) -> String {
    browser.text("[data-test='following']")
}

#[test]
fn five_inputs_come_first_and_a_layout_that_fits_is_shown() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("start", 1440, 900);
    browser.goto(&address);
    shown(&browser);
    let labels = "return [...document.querySelectorAll(\"[data-test='start'] .field > label\")].map(label => label.textContent)";
    let five = json!(["Model", "Device", "Devices", "Global batch size", "Sequence length"]);
    assert_eq!(browser.script(labels, json!([])), five);
    let spec_of = |wanted: &dyn Fn(&Value) -> bool| {
        let link = link_that_says(&browser, wanted);
        serde_json::from_str::<Value>(&printed(["link", "--json", &link])).unwrap()["spec"].clone()
    };
    let spec = spec_of(&|spec| spec["model"]["name"] == "llama-3-70b");
    assert!(devices(&spec) == 64 && spec["parallel"]["pipeline"].as_u64() > Some(1), "{spec}");
    assert_eq!(spec["memory"]["limit_bytes"], Value::Null, "the device's");
    assert_eq!(notices(&browser), json!(0));
    browser.picture("start.png");

    // A degree is pinned by typing it; the others follow.
    browser.find(&field("parallel.tensor")).fill("8");
    let spec = spec_of(&|spec| spec["parallel"]["tensor"] == 8);
    assert_eq!(devices(&spec), 64, "{spec}");
    assert!(following(&browser).contains("1 value is pinned"), "{}", following(&browser));
    reload(&browser);
    shown(&browser);
    assert!(following(&browser).contains("1 value is pinned"), "{}", following(&browser));
    assert_eq!(browser.find(&field("devices")).property("value"), "64");
    browser.find("[data-test='let-follow']").click();
    shown(&browser);
    assert!(following(&browser).contains("Found for these devices"), "{}", following(&browser));
    browser.no_errors();
}

/// Where a person types too few devices, the page says so with one step that works. Where they choose another model, the number
/// is raised, and the page says that.
#[test]
fn too_few_devices_are_told_how_many_it_takes() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("few", 1440, 900);
    browser.goto(&address);
    shown(&browser);
    browser.find(&field("devices")).fill("4");
    let said = browser.until("why there is no plan", || {
        Some(browser.text("[data-test='no-plan']")).filter(|text| text.contains("4 devices"))
    });
    // Weights and optimizer states of 70.6 G parameters are 988 GB: 12 devices of 85 GB and more.
    assert!(said.contains("79.1 GiB") && said.contains("Use 16 devices"), "{said}");
    browser.picture("too-few-devices.png");
    browser.find("[data-test='next-step']").click();
    shown(&browser);
    assert_eq!(browser.find(&field("devices")).property("value"), "16");
    assert_eq!(notices(&browser), json!(0));

    choose(&browser, "model.name", "mixtral-8x22b");
    let notice = browser.until("the number of devices", || {
        (notices(&browser) == json!(1)).then(|| browser.text("[data-test='notice']"))
    });
    let now = browser.find(&field("devices")).property("value");
    let now = now.as_str().unwrap_or("");
    assert!(notice.contains("16 devices") && notice.contains(&format!("is {now} now")), "{notice}");
    assert!(now.parse::<u64>().is_ok_and(|devices| devices > 16), "{now}");
    browser.until("a plan", || (!browser.text("[data-test='peak']").contains('—')).then_some(()));
    browser.no_errors();
}

/// What does not fit by hand is still told what would, in lines that do not widen the page, each with its cost; and the degrees
/// can follow.
#[test]
fn suggestions_say_their_cost_and_do_not_widen_the_page() {
    let (_served, address) = serve(&[]);
    let spec = process::output("large-by-hand.toml");
    let said = "model.name = \"deepseek-v3\"\ncluster.device = \"h100\"\nparallel.pipeline = 16\nparallel.tensor = 4\n\
        parallel.data = 4\nparallel.expert = 4\ntraining.microbatches = 8\nschedule = \"1f1b\"\n";
    std::fs::write(&spec, said).unwrap();
    let browser = Browser::open("wide-suggestions", 1440, 900);
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    let said = browser
        .until("suggestions", || Some(browser.text("[data-test='suggestions']")).filter(|text| !text.is_empty()));
    assert!(said.lines().filter(|line| line.contains("peak")).all(|line| line.contains("MFU")), "{said}");
    let is_wide = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    for width in [1440, 360] {
        browser.screen(width, 740);
        assert_eq!(browser.script(is_wide, json!([])), json!(false), "{width} pixels");
    }
    // What scrolls on a phone takes the focus, so that keys can scroll it.
    let deaf = "return [...document.querySelectorAll('.scroll')].filter(area => area.tabIndex !== 0).length";
    assert_eq!(browser.script(deaf, json!([])), json!(0));
    browser.picture("suggestions-on-a-phone.png");
    browser.no_errors();
}

/// A line of a launch script that holds its arguments in quotes.
#[test]
fn a_quoted_line_of_arguments_opens() {
    let (_served, address) = serve(&[]);
    let file = process::output("quoted.sh");
    let script = "DISTRIBUTED_ARGS=\"--nproc_per_node 8 --nnodes 2 --master_port 6000\"\n\
        torchrun $DISTRIBUTED_ARGS pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\\n  \
        --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\\n  \
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --bf16 --vocab-size 32000\n";
    std::fs::write(&file, script).unwrap();
    let browser = Browser::open("quoted", 1440, 900);
    browser.goto(&address);
    shown(&browser);
    open(&browser, &file);
    link_that_says(&browser, |spec| spec["parallel"]["pipeline"] == 4 && spec["parallel"]["tensor"] == 2);
    let wrong = "return document.querySelectorAll('.notice.wrong').length";
    assert_eq!(browser.script(wrong, json!([])), json!(0));
    browser.no_errors();
}
