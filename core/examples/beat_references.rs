//! Every row of the public schedulers' results against `search::best` on the same problem, objective and
//! limit: `cargo run --release --example beat_references -- [FILE] [EFFORT] [only=TEXT] [every=N] [losses]`.
//!
//! A row without a limit is met twice: without one, and within the memory that the row itself needed.

use std::collections::BTreeMap;

use pipeplan_core::problem::{Objective, Problem, Statement};
use pipeplan_core::search::{self, Effort, Flow};
use pipeplan_core::simulate::simulate;
use serde_json::{Value, json};

struct Reference {
    scheduler: String,
    cap: String,
    span: u64,
    makespan: u64,
}

fn main() {
    let mut file = String::from("tests/reference/zero_bubble_reference.json");
    let (mut effort, mut only, mut every, mut losses, mut max_ops) =
        (Effort::default(), String::new(), 1, false, u64::MAX);
    for argument in std::env::args().skip(1) {
        if let Some(text) = argument.strip_prefix("only=") {
            only = text.to_string();
        } else if let Some(text) = argument.strip_prefix("every=") {
            every = text.parse().expect("a number");
        } else if let Some(text) = argument.strip_prefix("ops=") {
            max_ops = text.parse().expect("a number");
        } else if argument == "losses" {
            losses = true;
        } else if let Ok(ops) = argument.parse() {
            effort = Effort(ops);
        } else {
            file = argument;
        }
    }
    let text = std::fs::read_to_string(&file).expect("the reference file");
    let rows: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mut problems: BTreeMap<String, (Value, Vec<Reference>)> = BTreeMap::new();
    for row in &rows {
        for (statement, reference) in statements(row) {
            let key = statement.to_string();
            problems.entry(key).or_insert_with(|| (statement, Vec::new())).1.push(reference);
        }
    }
    let mut table: BTreeMap<(String, String), [u64; 6]> = BTreeMap::new();
    let (mut total_seconds, mut worst) = (0.0, 0.0f64);
    let (mut count, mut lost) = (0, 0);
    let mut gaps: Vec<f64> = Vec::new();
    for (index, (statement, references)) in problems.values().enumerate() {
        if index % every != 0 {
            continue;
        }
        let references: Vec<&Reference> = references
            .iter()
            .filter(|reference| format!("{} {}", reference.scheduler, reference.cap).contains(&only))
            .collect();
        let size = 3
            * statement["ranks"].as_u64().unwrap()
            * statement["chunks"].as_u64().unwrap()
            * statement["microbatches"].as_u64().unwrap();
        if references.is_empty() || size > max_ops {
            continue;
        }
        let makespan = problem_of(statement);
        for (objective, problem) in [
            (Objective::Makespan, makespan.clone()),
            (Objective::LongestSpan, makespan.with_objective(Objective::LongestSpan)),
        ] {
            let started = seconds_on_cpu();
            let found =
                search::best(&problem, effort, &mut |_| Flow::Continue).expect("feasible: a reference did it");
            let seconds = seconds_on_cpu() - started;
            let timeline = simulate(&problem, &found.schedule).expect("an order that runs");
            assert_eq!(timeline.cost_ns(objective), found.cost_ns);
            for rank in 0..problem.ranks() {
                assert!(problem.limit_bytes(rank).is_none_or(|limit| timeline.peak_bytes(&problem, rank) <= limit));
            }
            total_seconds += seconds;
            worst = worst.max(seconds);
            count += 1;
            gaps.push(found.cost_ns as f64 / found.bound_ns.max(1) as f64 - 1.0);
            let column = if objective == Objective::Makespan { 0 } else { 3 };
            let mut beaten_by: Option<(&Reference, u64)> = None;
            for reference in &references {
                let theirs = if objective == Objective::Makespan { reference.makespan } else { reference.span };
                let entry = table.entry((reference.scheduler.clone(), reference.cap.clone())).or_default();
                let at = match found.cost_ns.cmp(&theirs) {
                    std::cmp::Ordering::Less => 0,
                    std::cmp::Ordering::Equal => 1,
                    std::cmp::Ordering::Greater => 2,
                };
                entry[column + at] += 1;
                if at == 2 && beaten_by.is_none_or(|(_, best)| theirs < best) {
                    beaten_by = Some((reference, theirs));
                }
            }
            if let Some((reference, theirs)) = beaten_by {
                lost += 1;
                if losses {
                    report_loss(&problem, &found, objective, reference, theirs, seconds);
                }
            }
        }
    }
    print_table(&table);
    if gaps.is_empty() {
        return;
    }
    println!(
        "{count} searches, {lost} lost; {total_seconds:.1} s in all, worst {:.0} ms; {}",
        worst * 1e3,
        spread(gaps)
    );
}

/// The mean and the quantiles of gaps to the bound.
fn spread(mut gaps: Vec<f64>) -> String {
    gaps.sort_by(f64::total_cmp);
    format!(
        "gap to the bound: mean {:.3}%, median {:.2}%, 90th {:.2}%",
        100.0 * gaps.iter().sum::<f64>() / gaps.len() as f64,
        100.0 * gaps[gaps.len() / 2],
        100.0 * gaps[gaps.len() * 9 / 10],
    )
}

/// The problem of a statement, judged by its makespan.
fn problem_of(statement: &Value) -> Problem {
    let mut read = statement.clone();
    read["objective"] = json!("makespan");
    let statement = Statement::read(&read).expect("a statement");
    let placement = statement.placements().remove(0);
    statement.problem(placement).expect("a placement")
}

/// Prints how often the search was better, equal and worse than each scheduler.
fn print_table(table: &BTreeMap<(String, String), [u64; 6]>) {
    println!("{:18} {:>10} | makespan: better equal worse | span: better equal worse", "scheduler", "cap");
    for ((scheduler, cap), n) in table {
        println!("{scheduler:18} {cap:>10} | {:6} {:6} {:6} | {:6} {:6} {:6}", n[0], n[1], n[2], n[3], n[4], n[5]);
    }
}

/// Prints a search that found less than a reference.
fn report_loss(
    problem: &Problem,
    found: &search::Found,
    objective: Objective,
    reference: &Reference,
    theirs: u64,
    seconds: f64,
) {
    println!(
        "LOSS {:5.2}% {:8} {} > {} (bound {}) {} {} {:.0}ms ops {} by {} p={} v={} m={} {:?} F{} B{} W{} hop {} limit {:?}",
        100.0 * (found.cost_ns as f64 / theirs as f64 - 1.0),
        objective.name(),
        found.cost_ns,
        theirs,
        found.bound_ns,
        reference.scheduler,
        reference.cap,
        seconds * 1e3,
        found.ops,
        found.origin,
        problem.ranks(),
        problem.chunks(),
        problem.microbatches(),
        problem.placement(),
        problem.cost(0).forward_ns,
        problem.cost(0).backward_input_ns,
        problem.cost(0).backward_weight_ns,
        problem.hop(0, problem.ranks() - 1),
        problem.limit_bytes(0).map(|limit| limit as f64 / problem.cost(0).forward_bytes as f64),
    );
}

/// Seconds that this thread has had a core: others may be busy on the machine. 0 where the system has no such
/// count.
fn seconds_on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}

/// The problems that a row answers, as problem files, and what it reached.
fn statements(row: &Value) -> Vec<(Value, Reference)> {
    if row["status"] != "ok" || row["over_cap"] == true {
        return Vec::new();
    }
    let number = |value: &Value| value.as_f64().expect("a number");
    // Half nanoseconds stand in the table: everything is doubled.
    let twice = |value: &Value| (2.0 * number(value)) as u64;
    let (ranks, chunks) = (number(&row["p"]) as u64, number(&row["v"]) as u64);
    let scheduler = row["scheduler"].as_str().expect("a name").to_string();
    let placement = match scheduler.as_str() {
        _ if chunks == 1 => "linear",
        "Interleaved-1F1B" | "GroupInterleaved" => "looped",
        _ => "v",
    };
    let model = match &row["mem_model"] {
        Value::Null => [1.0, 0.0, -1.0],
        model => ["f", "b", "w"].map(|key| number(&model[key])),
    };
    // Their memory may be in fractions of a unit.
    let bytes = model.map(|bytes| (2.0 * bytes) as i64);
    let whole = |cap: f64| (cap * bytes[0] as f64 + 1e-6) as u64;
    let cap_ops = match (&row["mem_cap_ops"], &row["mem_cap"]) {
        (Value::Number(cap), _) => cap.as_f64(),
        (_, Value::Number(cap)) => cap.as_f64().map(|cap| cap * (ranks * chunks) as f64),
        _ => None,
    };
    let statement = |limit: Option<u64>| {
        json!({
            "ranks": ranks, "chunks": chunks, "microbatches": row["m"], "placement": placement,
            "stages": {
                "forward_ns": twice(&row["costs"]["f"]),
                "backward_input_ns": twice(&row["costs"]["b"]),
                "backward_weight_ns": twice(&row["costs"]["w"]),
                "forward_bytes": bytes[0], "backward_input_bytes": bytes[1], "backward_weight_bytes": bytes[2],
            },
            "transfer_ns": twice(&row["comm"]), "limit_bytes": limit,
        })
    };
    let reference = |cap: String| Reference {
        scheduler: scheduler.clone(),
        cap,
        span: twice(&row["span"]),
        makespan: twice(&row["makespan"]),
    };
    let mut answers = Vec::new();
    match cap_ops {
        Some(cap) => answers.push((statement(Some(whole(cap))), reference(row["mem_cap"].to_string()))),
        None => {
            answers.push((statement(None), reference("none".to_string())));
            // In units of one stage activation.
            let peak = number(&row["peak_mem_model"]) * chunks as f64;
            answers.push((statement(Some(whole(peak))), reference("own peak".to_string())));
        }
    }
    answers
}
