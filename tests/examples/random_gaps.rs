//! How far `search::best` stays from the bound on random problems, by kind of problem:
//! `cargo run --release -p pipeplan-tests --example random_gaps -- [EFFORT] [n=COUNT] [only=KIND] [list]`.
//!
//! Stages differ in cost or are alike, and in the mixed kinds backwards may be better whole than cut; ranks and microbatches are odd as often as even; limits lie anywhere
//! between the least and what 1F1B holds twice. The same numbers come up on every machine, so two versions of
//! the search can be held against each other.

use std::collections::BTreeMap;

use pipeplan_core::problem::Statement;
use pipeplan_core::search::{self, Effort, Flow, Frontier};
use pipeplan_tests::random::{self, Random};
use serde_json::{Value, json};

fn main() {
    let (mut effort, mut count, mut only, mut list) = (Effort::default(), 40, String::new(), false);
    for argument in std::env::args().skip(1) {
        if let Some(text) = argument.strip_prefix("n=") {
            count = text.parse().expect("a number");
        } else if let Some(text) = argument.strip_prefix("only=") {
            only = text.to_string();
        } else if argument == "list" {
            list = true;
        } else {
            effort = Effort(argument.parse().expect("an effort in ops"));
        }
    }
    let mut table: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for placement in ["linear", "looped", "v", "wave", "two-way"] {
        for (unequal, mixed) in [(false, false), (true, false), (false, true), (true, true)] {
            for large in [false, true] {
                let kind = format!(
                    "{placement} {} {}{}",
                    if unequal { "unequal" } else { "equal" },
                    if large { "large" } else { "small" },
                    if mixed { " mixed" } else { "" }
                );
                if !kind.contains(&only) {
                    continue;
                }
                for index in 0..count {
                    let mut random = Random(index);
                    let file = statement(&mut random, placement, unequal, large, mixed);
                    let read = |file: &Value| {
                        let statement = Statement::read(file).expect("a statement");
                        statement.problem(statement.placements().remove(0)).expect("a placement")
                    };
                    let free = read(&file);
                    let least = Frontier::new(&free, 2, effort).least_bytes();
                    let chunk = file["stages"][0]["forward_bytes"].as_u64().unwrap_or(0);
                    let full = chunk * (free.ranks() * free.chunks()) as u64;
                    let limit = least + random.below(2 * full.max(least) - least / 2);
                    let mut limited = file.clone();
                    limited["limit_bytes"] = json!(limit);
                    let problem = read(&limited);
                    let started = seconds_on_cpu();
                    let found = search::best(&problem, effort, &mut |_| Flow::Continue).expect("above the least");
                    let seconds = seconds_on_cpu() - started;
                    let gap = found.cost_ns as f64 / found.bound_ns as f64 - 1.0;
                    if list {
                        println!(
                            "{kind} {index}: p={} v={} m={} limit {limit} of {full} (least {least}): {} bound {} {:.2}% by {} {:.0} ms",
                            free.ranks(),
                            free.chunks(),
                            free.microbatches(),
                            found.cost_ns,
                            found.bound_ns,
                            100.0 * gap,
                            found.origin,
                            1e3 * seconds,
                        );
                    }
                    table.entry(kind.clone()).or_default().push((gap, seconds));
                }
            }
        }
    }
    let mut all = Vec::new();
    for (kind, rows) in &table {
        println!("{kind:30} {}", summary(rows));
        all.extend(rows);
    }
    println!("{:30} {}", "all", summary(&all));
}

fn summary(rows: &[(f64, f64)]) -> String {
    let mut gaps: Vec<f64> = rows.iter().map(|row| row.0).collect();
    gaps.sort_by(f64::total_cmp);
    let count = rows.len() as f64;
    format!(
        "gap to the bound: mean {:7.3}%, median {:7.3}%, 90th {:7.3}%; {:6.1} ms each",
        100.0 * gaps.iter().sum::<f64>() / count,
        100.0 * gaps[gaps.len() / 2],
        100.0 * gaps[gaps.len() * 9 / 10],
        1e3 * rows.iter().map(|row| row.1).sum::<f64>() / count,
    )
}

fn statement(random: &mut Random, placement: &str, unequal: bool, large: bool, mixed: bool) -> Value {
    let two_way = placement == "two-way";
    let ranks = match (two_way, large) {
        (false, false) => random.within(2, 4),
        (false, true) => random.within(5, 12),
        (true, false) => 2 * random.within(1, 2),
        (true, true) => 2 * random.within(3, 6),
    };
    let chunks = match placement {
        "linear" | "two-way" => 1,
        "v" => 2,
        _ => random.within(2, 3),
    };
    let microbatches = if large { random.within(ranks, 4 * ranks) } else { random.within(2, 8) };
    let microbatches = if two_way { microbatches.next_multiple_of(2) } else { microbatches };
    let base = [random.within(50, 150), random.within(50, 150), random.within(30, 120)];
    let bytes = random.within(10, 40);
    let after = random.within(0, bytes);
    let mut stage = || {
        let mut spread = |value: u64| if unequal { value * random.within(70, 130) / 100 } else { value };
        let forward = spread(bytes).max(1);
        let kept = spread(after).min(forward);
        let times = base.map(&mut spread);
        random::stage(times, [forward as i64, kept as i64, 0])
    };
    let mut stages: Vec<Value> = (0..ranks * chunks).map(|_| stage()).collect();
    if mixed {
        // Stages that are alike gain alike.
        let alike = random.clone();
        for stage in &mut stages {
            let mut gains = if unequal { random.clone() } else { alike.clone() };
            random::gain_whole(&mut gains, stage);
            *random = gains;
        }
    }
    let hop = random.pick(&[0, 0, 5, 20]);
    json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "stages": stages,
        "transfer_ns": hop, "limit_bytes": null,
        "objective": random.objective(),
    })
}

/// Seconds that this thread has had a core: others may be busy on the machine.
fn seconds_on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}
