//! Lower bounds held against results of other programs: no schedule that somebody found may be below the
//! bound of its problem, under the limit that it kept.

use std::collections::BTreeMap;

use pipeplan_core::bounds::lower_bound;
use pipeplan_core::problem::{Objective, PlacementChoice, Statement};
use pipeplan_core::search::{self, Effort, Flow};
use pipeplan_exact::{Budget, solve};
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

/// The best schedules known for small and middling problems, at limits from the least up, beside the bound: prints
/// how far apart they are by placement and limit, which is what the README says of the bound.
///
/// Takes minutes, most of them proofs: `cargo test --release -p pipeplan-tests --test bounds -- --ignored --nocapture`
#[test]
#[ignore = "minutes of proofs; prints how loose the bound is"]
fn how_loose_the_bound_is() {
    let unit = ([1, 1, 1], [1, 0, -1], 0);
    // The zero-bubble paper's 1.5B row, and costs per chunk with longer hops.
    let measured = ([18_522, 18_086, 9_337], [201_216, -127_488, -73_728], 601);
    let hops = ([1_441, 1_438, 968], [7, -4, -3], 161);
    let small = [("linear", 4, 8), ("v", 3, 6), ("looped", 3, 6), ("wave", 2, 4), ("two-way", 4, 8)];
    let large = [("linear", 8, 24), ("v", 8, 24), ("looped", 8, 24), ("wave", 8, 24), ("two-way", 8, 24)];
    let mut gaps: BTreeMap<String, (Vec<f64>, usize)> = BTreeMap::new();
    for (size, (placement, p, m)) in
        small.map(|shape| ("small", shape)).into_iter().chain(large.map(|shape| ("large", shape)))
    {
        let v = match placement {
            "linear" | "two-way" => 1,
            "wave" => 4,
            _ => 2,
        };
        for (times, bytes, hop) in [unit, measured, hops] {
            for percent in [25u64, 37, 50, 75, 100, 150] {
                for objective in [Objective::Makespan, Objective::LongestSpan] {
                    let mut file = Even { p, m, v, times, hop, bytes }.file(placement);
                    let whole = bytes[0] as u64 * v as u64 * p as u64;
                    file["limit_bytes"] = json!(whole * percent / 100);
                    let statement = Statement::read(&file).unwrap_or_else(|faults| panic!("{faults}\n{file}"));
                    let problem = statement.problem(statement.placements().remove(0)).expect("a placement that fits");
                    let problem = problem.with_objective(objective);
                    let Ok(found) = search::best(&problem, Effort::default(), &mut |_| Flow::Continue) else {
                        continue;
                    };
                    let bound = lower_bound(&problem).value_ns;
                    let (mut value, mut optimal) = (found.cost_ns, found.cost_ns == bound);
                    if size == "small" && !optimal {
                        let budget = Budget { steps: Some(60_000), ..Budget::default() };
                        let exact = solve(&problem, Some(&found.schedule), &budget).expect("a schedule");
                        (value, optimal) = (exact.value_ns, exact.optimal);
                        assert!(!optimal || exact.lower_ns == value);
                    }
                    assert!(bound <= value, "{bound} above a schedule of {value}: {file}");
                    let gap = 100.0 * (value - bound) as f64 / value as f64;
                    let class = format!("{placement:8} {size} {percent:3} %");
                    println!(
                        "{class} {times:?} {} {value} {bound} {gap:.2} {optimal} {}",
                        objective.name(),
                        lower_bound(&problem).binding
                    );
                    let of_class = gaps.entry(class).or_default();
                    of_class.0.push(gap);
                    of_class.1 += usize::from(optimal);
                }
            }
        }
    }
    for (class, (mut gaps, optimal)) in gaps {
        gaps.sort_by(f64::total_cmp);
        let middle = gaps[gaps.len() / 2];
        println!(
            "{class:25} median {middle:5.2} %  most {:5.2} %  proved {optimal} of {}",
            gaps[gaps.len() - 1],
            gaps.len()
        );
    }
}
