//! `selftest` on the card.

use serde_json::Value;

use super::on_cards;

fn selftest(name: &str, more: &[&str], variables: &[(&str, &str)]) -> Option<Vec<Value>> {
    selftest_within(3000, name, more, variables)
}

pub(super) fn selftest_within(
    seconds: u32,
    name: &str,
    more: &[&str],
    variables: &[(&str, &str)],
) -> Option<Vec<Value>> {
    let seconds = seconds.to_string();
    let arguments = [&["selftest", "--device", "cuda", "--json", "--within", &*seconds], more].concat();
    let ran = on_cards(name, "", &arguments, variables)?;
    let text = String::from_utf8_lossy(&ran.output.stdout);
    let table: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&ran.output.stderr));
    });
    Some(table["rows"].as_array().expect("rows").clone())
}

/// What the selftest measures, on a model that suits so small a card: all rows are there, and none fails but the one whose
/// time means nothing here.
#[test]
fn the_selftest_measures_a_card() {
    let Some(rows) = selftest("speed", &["--only", "speed"], &[]) else { return };
    let found = |name: &str| {
        let is_it = |row: &&Value| row["name"].as_str().is_some_and(|found| found.starts_with(name));
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no row `{name}` in {rows:#?}"))
    };
    for name in [
        "one rank, CUDA graphs off: losses",
        "memory of the device that 4 ranks take",
        "bytes of rank 3",
        "4 ranks, each on its part of the multiprocessors: losses",
    ] {
        assert_eq!(found(name)["passed"], true, "{name}");
    }
    let of_time = "a step of the model, 4 ranks on one card";
    let failed = |row: &&Value| row["passed"] == false && row["name"] != of_time;
    assert_eq!(rows.iter().find(failed), None);
}

/// A kernel that breaks the card for its process: each section that needs it fails by itself, in a separate process, and
/// what was found before stands once.
#[test]
fn the_selftest_goes_on_behind_a_fault() {
    let fault = [("FAKE_CUDA_FAULT", "rms_norm_bf16")];
    let Some(rows) = selftest("fault", &["--only", "speed"], &fault) else { return };
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_string();
    let failed: Vec<String> = rows.iter().filter(|row| row["passed"] == false).map(|row| text(row, "name")).collect();
    let sections = [
        "operators of the model",
        "stages of 4 ranks side by side",
        "4 ranks on one card",
        "jobs as CUDA",
        "4 ranks, each on its part",
        "one rank",
    ];
    assert_eq!(failed.len(), sections.len(), "{rows:#?}");
    for (name, section) in failed.iter().zip(sections) {
        assert!(name.starts_with(section), "{name} for {section}");
    }
    assert!(rows.iter().any(|row| row["passed"] == false && text(row, "found").contains("ILLEGAL_ADDRESS")));
    for name in ["copying within memory", "embedding to"] {
        let there = rows.iter().filter(|row| text(row, "name").starts_with(name)).count();
        assert_eq!(there, 1, "{name}: {rows:#?}");
    }
}

/// Every operator through the calls of a card, each tensor in its own memory, whose ends are watched.
#[test]
#[ignore = "takes minutes: the emulated selftest runs the same kernels"]
fn every_operator_runs_by_the_calls_of_a_card() {
    let Some(rows) = selftest("operators", &["--only", "operators", "--apart"], &[]) else { return };
    assert!(rows.len() > 90, "{} rows", rows.len());
    assert_eq!(rows.iter().find(|row| row["passed"] != true), None);
}
