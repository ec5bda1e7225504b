//! How often `search::best` misses an optimum that the exact solver proves, on random problems by kind:
//! `cargo run -p pipeplan-tests --example missed_optima -- [only=KIND] [from=SEED] [n=COUNT] [steps=STEPS] [effort=OPS]
//! [print=1]`.
//!
//! The kinds are placements, each with limits anywhere, tight, or exactly the least with which any schedule exists; and
//! all of them once more mixed, with backwards that may be better whole than cut. The same problems come up on every
//! machine, so two versions of the search can be held against each other. `print=1` writes each as a line of JSON with
//! what the search found, for another solver to read.

use pipeplan_core::problem::Statement;
use pipeplan_core::search::{self, Effort, Flow, Frontier};
use pipeplan_exact::{Budget, solve};
use pipeplan_tests::random::{self, Random};
use serde_json::{Value, json};

const MEMORY: [&str; 3] = ["least", "tight", "any"];

fn main() {
    let (mut only, mut from, mut count, mut steps, mut effort) = (String::new(), 0, 40, 60_000, Effort::default());
    let mut print = false;
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').expect("KEY=VALUE");
        let number = || value.parse().expect("a number");
        match key {
            "only" => only = value.to_string(),
            "from" => from = number(),
            "n" => count = number(),
            "steps" => steps = number(),
            "effort" => effort = Effort(number()),
            "print" => print = number() > 0,
            _ => panic!("{key} is none of only, from, n, steps, effort and print"),
        }
    }
    for placement in ["linear", "looped", "v", "wave", "two-way"] {
        for (memory, mixed) in [false, true].into_iter().flat_map(|mixed| MEMORY.map(|memory| (memory, mixed))) {
            let kind = format!("{placement} {memory}{}", if mixed { " mixed" } else { "" });
            if !kind.contains(&only) {
                continue;
            }
            let (mut proved, mut missed, mut over, mut seconds, mut most) = (0, Vec::new(), 0.0f64, 0.0, 0.0f64);
            for seed in from..from + count {
                let file = statement(placement, memory, seed, mixed);
                let problem = problem(&file);
                let before = seconds_on_cpu();
                let found = search::best(&problem, effort, &mut |_| Flow::Continue).expect("not below the least");
                let took = seconds_on_cpu() - before;
                seconds += took;
                most = most.max(took);
                if print {
                    println!("{}", json!({ "kind": kind, "seed": seed, "file": file, "value": found.cost_ns }));
                }
                let budget = Budget { steps: Some(steps), ..Budget::default() };
                let exact = solve(&problem, Some(&found.schedule), &budget).expect("a schedule");
                proved += u64::from(exact.optimal);
                if exact.value_ns < found.cost_ns {
                    let by = 100.0 * (found.cost_ns as f64 / exact.value_ns as f64 - 1.0);
                    over = over.max(by);
                    missed.push(format!(
                        "  {seed}: {} and not {}{} ({by:.2} %), p={} v={} m={} by {}",
                        found.cost_ns,
                        exact.value_ns,
                        if exact.optimal { "" } else { " or less" },
                        problem.ranks(),
                        problem.chunks(),
                        problem.microbatches(),
                        found.origin,
                    ));
                }
            }
            println!(
                "{kind:19} {count} tried, {proved} proved, {} missed, at most {over:.2} %; {:.1} ms each, {:.0} at most",
                missed.len(),
                1e3 * seconds / count as f64,
                1e3 * most,
            );
            missed.iter().for_each(|line| println!("{line}"));
        }
    }
}

fn problem(file: &Value) -> pipeplan_core::problem::Problem {
    let statement = Statement::read(file).unwrap_or_else(|faults| panic!("{faults}\n{file}"));
    statement.problem(statement.placements().remove(0)).unwrap_or_else(|fault| panic!("{fault}\n{file}"))
}

/// At most some hundred ops.
fn statement(placement: &str, memory: &str, seed: u64, mixed: bool) -> Value {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9) ^ placement.len() as u64 ^ ((memory.len() as u64) << 8));
    let step = if placement == "two-way" { 2 } else { 1 };
    let ranks = step * random.within(2 / step, 6 / step);
    let chunks = match placement {
        "linear" | "two-way" => 1,
        "v" => 2,
        _ => random.within(2, 3),
    };
    let most = (36 / (ranks * chunks)).clamp(2, 12);
    let microbatches = step * random.within(1, most / step);
    let alike = random.one_in(2);
    let mut stage = || {
        let forward = random.within(4, 12);
        let kept = random.within(0, forward);
        let times = [random.within(1, 30), random.within(1, 30), random.within(0, 30)];
        let mut stage = random::stage(times, [forward as i64, kept as i64, 0]);
        if mixed {
            random::gain_whole(&mut random, &mut stage);
        }
        stage
    };
    let first = stage();
    let stages: Vec<Value> = (0..ranks * chunks).map(|_| if alike { first.clone() } else { stage() }).collect();
    let hop = random.pick(&[0, 0, 2, 9]);
    let mut file = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "stages": stages,
        "transfer_ns": hop, "limit_bytes": null, "objective": random.objective(),
        "backward": if !mixed && random.one_in(5) { "fused" } else { "split" },
    });
    let least = Frontier::new(&problem(&file), 2, Effort(0)).least_bytes();
    let chunk = file["stages"][0]["forward_bytes"].as_u64().unwrap_or(0);
    let limit = match memory {
        "least" => least,
        "tight" => least + random.within(0, 2 * chunk * chunks),
        _ => least + random.within(0, chunk * chunks * ranks),
    };
    file["limit_bytes"] = json!(limit);
    file
}

/// Seconds that this thread has had a core: others may be busy on the machine.
fn seconds_on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}
