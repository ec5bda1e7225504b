//! How far `search::best` is from monotone in memory, and the frontier: development aid.
use pipeplan_core::problem::Statement;
use pipeplan_core::search::{self, Effort, Flow};
use serde_json::json;

fn main() {
    let effort: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4_000_000);
    let (mut pairs, mut wrong, mut worst) = (0, 0, 0.0f64);
    for (f, b, w, c) in [(1000, 1000, 1000, 0), (1852, 1809, 934, 60), (1000, 1100, 700, 50), (1441, 1438, 968, 161)]
    {
        for (p, m, v) in [(4, 8, 1), (8, 24, 1), (4, 8, 2), (8, 24, 2), (8, 64, 2), (16, 48, 2)] {
            for objective in ["makespan", "longest_span"] {
                let mut line = String::new();
                let mut last = u64::MAX;
                for half in 2..=(6 * p * v).min(64) {
                    let (fb, bb, wb) = if c == 60 { (201216, -127488, -73728) } else { (1000, 0, -1000) };
                    let limit = fb * half / 2;
                    if half < 2 * v {
                        continue;
                    }
                    let value = json!({"ranks": p, "chunks": v, "microbatches": m, "placement": if v == 1 {"linear"} else {"v"},
                        "stages": {"forward_ns": f, "backward_input_ns": b, "backward_weight_ns": w, "forward_bytes": fb, "backward_input_bytes": bb, "backward_weight_bytes": wb},
                        "transfer_ns": c, "limit_bytes": limit, "objective": objective});
                    let statement = Statement::read(&value).unwrap();
                    let problem = statement.problem(statement.placements().remove(0)).unwrap();
                    let Ok(found) = search::best(&problem, Effort(effort), &mut |_| Flow::Continue) else { continue };
                    pairs += 1;
                    let work = problem.work(0) as f64;
                    if found.cost_ns > last {
                        wrong += 1;
                        worst = worst.max(found.cost_ns as f64 / last as f64 - 1.0);
                        line += "!";
                    }
                    last = last.min(found.cost_ns);
                    line += &format!("{}:{:.2} ", half as f64 / 2.0, 100.0 * (found.cost_ns as f64 / work - 1.0));
                }
                println!("p{p} m{m} v{v} {objective} {f}/{b}/{w}/{c}: {line}");
            }
        }
    }
    println!("{pairs} points, {wrong} not monotone, worst {:.2}%", worst * 100.0);
}
