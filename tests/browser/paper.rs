//! Figures for papers, the figures of papers, and files for other programs.

use pipeplan_tests::browser::Browser;
use pipeplan_tests::process::{self, printed};
use serde_json::{Value, json};

use super::{planned, serve};

/// Opens the figure of a paper, as a person chooses it.
fn open_figure(browser: &Browser, title: &str) {
    let choose =
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', { bubbles: true }))";
    browser.find("[data-test='paper-preset']").script_with(choose, json!(title));
    planned(browser, title);
}

#[test]
fn the_figures_of_papers_open_by_name() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("presets", 1440, 900);
    let spec = process::output("presets.json");
    let stages = json!({ "forward_ns": 10, "backward_input_ns": 20 });
    std::fs::write(
        &spec,
        json!({ "schedule": "1f1b", "problem": { "ranks": 2, "microbatches": 2, "stages": stages } }).to_string(),
    )
    .unwrap();
    browser.goto(&format!("{address}/{}", printed(["link", spec.to_str().unwrap()]).trim()));
    planned(&browser, "1F1B");
    // In units of 1 ms, with F of 2: (8 + 3) · 6 = 66, with two chunks 8 · 6 + 3 · 3 = 57, ZB-H1 8 · 6 + 3 · 2 = 54.
    for (title, makespan) in
        [("GPipe", "66 ms"), ("1F1B", "66 ms"), ("Interleaved 1F1B", "57 ms"), ("ZB-H1", "54 ms")]
    {
        open_figure(&browser, title);
        assert_eq!(browser.text("[data-test='makespan']"), makespan, "{title}");
    }
    for title in ["ZB-H2", "ZB-V", "V-Half", "DualPipe", "DualPipeV"] {
        open_figure(&browser, title);
        browser.picture(&format!("preset-{title}.png"));
    }
    // The figure of DeepSeek-V3 has 8 ranks and 20 microbatches; half of it 4 and 10.
    let label = browser.find("[data-test='timeline']").property("ariaLabel");
    assert!(label.as_str().is_some_and(|label| label.contains("4 ranks")), "{label}");
    browser.no_errors();
}

#[test]
fn a_figure_has_its_width_and_plans_are_files_of_other_programs() {
    let (_served, address) = serve(&[]);
    let browser = Browser::open("paper", 1440, 900);
    let spec = process::output("paper.json");
    let stages = json!({ "forward_ns": 10_000, "backward_input_ns": 20_000, "forward_bytes": 1 << 20, "backward_input_bytes": -(1 << 20) });
    let said = json!({ "schedule": "1f1b", "name": "paper", "problem": { "ranks": 4, "microbatches": 8, "stages": stages } });
    std::fs::write(&spec, said.to_string()).unwrap();
    let link = printed(["link", spec.to_str().unwrap()]);
    browser.goto(&format!("{address}/{}", link.trim()));
    planned(&browser, "1F1B");
    browser.find("[data-test='paper'] summary").click();
    let press = |name: &str| browser.find(&format!("[data-test='{name}']")).click();
    browser.find("[data-test='figure-width']").fill("7");
    browser.find("[data-test='figure-font']").fill("8");
    press("figure-memory");
    press("figure-svg");
    let svg = std::fs::read_to_string(browser.downloaded("figure.svg")).unwrap();
    // 7 inches of 96 pixels.
    assert!(svg.starts_with("<svg") && svg.contains("width=\"672\""), "{svg:.300}");
    // Blocks of 19 pixels have room for the kind and the microbatch.
    for part in
        [">Rank 3</text>", ">F0</text>", ">BW7</text>", ">BW backward</text>", "Memory by rank", ">300 µs</text>"]
    {
        assert!(svg.contains(part), "{part} in {svg}");
    }
    press("figure-png");
    let png = std::fs::read(browser.downloaded("figure.png")).unwrap();
    let wide = u32::from_be_bytes(png[16..20].try_into().unwrap());
    assert!(png.starts_with(b"\x89PNG") && wide == 2 * 672, "{wide} pixels wide");
    std::fs::write(process::output("figure.png"), &png).unwrap();

    browser.find("[data-test='figure-font']").fill("0");
    browser.until("what to enter", || {
        browser.text("[data-test='figure-fault']").contains("3 to 40 points").then_some(())
    });
    assert_eq!(browser.find("[data-test='figure-svg']").property("disabled"), json!(true));

    press("save-perfetto");
    let perfetto: Value =
        serde_json::from_str(&std::fs::read_to_string(browser.downloaded("perfetto.json")).unwrap()).unwrap();
    assert!(perfetto.to_string().contains("\"0BW7\""));
    // As the command exports the same plan.
    let plan = process::output("paper-plan.json");
    let plan = plan.to_str().unwrap();
    printed(["plan", spec.to_str().unwrap(), "-o", plan]);
    for (button, name, format) in [("save-torch", "torch.csv", "torch-csv"), ("save-ops", "ops.csv", "csv")] {
        press(button);
        let saved = std::fs::read_to_string(browser.downloaded(name)).unwrap();
        assert_eq!(saved.trim(), printed(["export", plan, "--format", format]).trim(), "{name}");
    }
    press("save-schedules.csv");
    let table = std::fs::read_to_string(browser.downloaded("schedules.csv")).unwrap();
    assert!(table.starts_with("Schedule,Makespan,") && table.contains("1F1B,330 µs,"), "{table}");
    browser.no_errors();
}
