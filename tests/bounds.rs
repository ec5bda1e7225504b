//! Lower bounds held against results of other programs: no schedule that somebody found may be below the
//! bound of its problem, under the limit that it kept.

use std::collections::BTreeMap;

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::problem::{Objective, PlacementChoice, Statement};
use pipeplan_tests::tables::{self, Even, list, number};
use serde_json::{Value, json};

/// The problem that a run of a public scheduler solved, and the limit that its schedule kept: its own cap
/// where it kept that, else the peak that was measured.
fn file(run: &Value) -> Option<(Value, &'static str)> {
    // Some costs are fractions: in thousandths, rounded down, which can only lower the bound.
    let thousandths = |value: &Value| value.as_f64().map_or(0, |value| (value * 1e3 + 1e-6).floor() as u64);
    let times = ["f", "b", "w"].map(|key| thousandths(&run["costs"][key]));
    let v = number(&run["v"]);
    let placement = match run["scheduler"].as_str()? {
        "Interleaved-1F1B" | "GroupInterleaved" => "looped",
        _ if v == 2 => "v",
        _ => "linear",
    };
    let model = run.get("mem_model").filter(|model| !model.is_null());
    let bytes = model.map_or([1, 0, -1], |model| ["f", "b", "w"].map(|key| model[key].as_i64().unwrap_or(0)));
    let mut file =
        Even { p: number(&run["p"]), m: number(&run["m"]), v, times, hop: thousandths(&run["comm"]), bytes }
            .file(placement);
    // Peaks are counted in forwards of one stage, so a chunk's forward is 1/v; with rounding they are upper
    // limits only when raised by a little.
    let chunk_forwards = run["peak_mem_model"].as_f64()? * v as f64;
    let kept = (chunk_forwards * bytes[0] as f64 + 0.001 * bytes[0] as f64).floor() as u64 + 1;
    let cap = run["mem_cap_ops"].as_f64().map(|cap| (cap * bytes[0] as f64).floor() as u64);
    let limit = match cap {
        Some(cap) if run["over_cap"] == json!(false) => cap,
        _ => kept,
    };
    file["limit_bytes"] = json!(limit);
    Some((file, placement))
}

fn bound(file: &Value, objective: Objective) -> u64 {
    let statement = Statement::read(file).unwrap_or_else(|faults| panic!("{faults}\n{file}"));
    let PlacementChoice::Fixed(placement) = statement.placement.clone() else { panic!("no placement in {file}") };
    let problem = statement.problem(placement).unwrap_or_else(|fault| panic!("{fault}\n{file}"));
    lower_bound(&problem.with_objective(objective)).value_ns
}

#[test]
fn no_run_of_a_public_scheduler_is_below_the_bound() {
    let table = tables::read("zero_bubble_reference.json");
    let mut gaps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut seen = 0;
    for run in list(&table).iter().filter(|run| run["status"] == "ok") {
        let Some((file, placement)) = file(run) else { continue };
        seen += 1;
        // Paddle's rule breaks its own dependencies at 1p: what it reaches is no schedule.
        if run["scheduler"] == "Paddle-ZBV" {
            continue;
        }
        for (key, objective) in [("span", Objective::LongestSpan), ("makespan", Objective::Makespan)] {
            let reached = (run[key].as_f64().unwrap_or(0.0) * 1e3).round() as u64;
            let bound = bound(&file, objective);
            assert!(bound <= reached, "{key} {reached} below the bound {bound}: {run}\n{file}");
            let cap = run["mem_cap"].as_f64().map_or("free".to_string(), |cap| format!("{cap}p"));
            let name = run["scheduler"].as_str().unwrap_or("");
            let gap = 100.0 * (reached - bound) as f64 / bound as f64;
            gaps.entry(format!("{key:8} {placement:7} {name:18} {cap}")).or_default().push(gap);
        }
    }
    assert!(seen > 2900, "{seen}");
    for (class, mut gaps) in gaps {
        gaps.sort_by(f64::total_cmp);
        println!(
            "{class:45} runs {:4}  gap median {:6.2} %  max {:6.2} %",
            gaps.len(),
            gaps[gaps.len() / 2],
            gaps[gaps.len() - 1]
        );
    }
}
