//! The search beside the exact solver: on random problems so small that an optimum can be proved, how far the best
//! schedule stays from it.

use pipeplan_core::problem::{Problem, Statement};
use pipeplan_core::search::{self, Effort, Flow};
use pipeplan_exact::{Budget, solve};
use serde_json::{Value, json};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

/// A problem of at most some hundred ops, with its limit anywhere between the least and a little more than 1F1B holds.
fn problem_file(seed: u64) -> Value {
    let mut random = Random(seed);
    let placement = ["linear", "looped", "v", "wave"][random.within(0, 3) as usize];
    let ranks = random.within(2, 4);
    let chunks = match placement {
        "linear" => 1,
        "v" => 2,
        _ => random.within(1, 2),
    };
    let microbatches = random.within(2, (36 / (ranks * chunks)).clamp(2, 8));
    let alike = random.within(0, 1) == 0;
    let mut stage = || {
        let forward = random.within(4, 12) as i64;
        let kept = random.within(0, forward as u64) as i64;
        json!({
            "forward_ns": random.within(1, 30), "backward_input_ns": random.within(1, 30),
            "backward_weight_ns": random.within(0, 30),
            "forward_bytes": forward, "backward_input_bytes": kept - forward, "backward_weight_bytes": -kept,
        })
    };
    let first = stage();
    let stages: Vec<Value> = (0..ranks * chunks).map(|_| if alike { first.clone() } else { stage() }).collect();
    let hop = [0, 0, 2, 9][random.within(0, 3) as usize];
    let backward = if random.within(0, 4) == 0 { "fused" } else { "split" };
    json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "stages": stages,
        "transfer_ns": hop,
        "limit_bytes": 12 * chunks + random.within(0, 12 * chunks * ranks),
        "objective": if random.within(0, 1) == 0 { "makespan" } else { "longest_span" }, "backward": backward,
    })
}

fn problem(file: &Value) -> Problem {
    let statement = Statement::read(file).unwrap_or_else(|faults| panic!("{faults}\n{file}"));
    statement.problem(statement.placements().remove(0)).unwrap_or_else(|fault| panic!("{fault}\n{file}"))
}

/// No random problem is left on which the exact search finds what the search missed.
#[test]
fn the_best_is_optimal_on_small_problems() {
    let (mut proved, mut missed) = (0, Vec::new());
    for seed in 0..160 {
        let file = problem_file(seed);
        let problem = problem(&file);
        let Ok(found) = search::best(&problem, Effort::default(), &mut |_| Flow::Continue) else { continue };
        let budget = Budget { steps: Some(30_000), ..Budget::default() };
        // From the answer of the search: what is better, is found, or the answer is proved.
        let exact = solve(&problem, Some(&found.schedule), &budget).unwrap_or_else(|why| panic!("{why}\n{file}"));
        assert!(exact.value_ns <= found.cost_ns, "{file}");
        if exact.value_ns < found.cost_ns {
            let over = 100.0 * (found.cost_ns as f64 / exact.value_ns as f64 - 1.0);
            missed.push(format!("{seed}: {} and not {} ({over:.2} %)", found.cost_ns, exact.value_ns));
        }
        proved += usize::from(exact.optimal);
    }
    println!("{proved} proved, {} missed", missed.len());
    assert!(proved >= 100, "only {proved} are proved");
    assert!(missed.is_empty(), "the search missed {} optima\n{}", missed.len(), missed.join("\n"));
}
