//! Planners of sail-sg/zero-bubble-pipeline-parallelism, rebuilt op by op: their results are a table.

use super::*;

/// A row of the table of public results.
#[derive(Clone)]
struct PublicRow {
    problem: Problem,
    /// The limit in chunk activations.
    limit: Option<i64>,
    /// Span and makespan.
    figures: [u64; 2],
    order: Option<Vec<String>>,
}

/// The rows of `scheduler` with at most so many ranks times microbatches.
fn public_rows(scheduler: &str, most: u64) -> Vec<PublicRow> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/zero_bubble_reference.json");
    let table: Vec<serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(file).expect("the table")).expect("JSON");
    let rows = table.iter().filter(|row| row["scheduler"] == scheduler && row["status"] == "ok");
    rows.filter(|row| row["p"].as_u64().unwrap() * row["m"].as_u64().unwrap() <= most)
        .map(|row| {
            // Half nanoseconds stand in the table.
            let twice = |value: &serde_json::Value| (2.0 * value.as_f64().unwrap()) as u64;
            let (costs, bytes) = (&row["costs"], &row["mem_model"]);
            let bytes = ["f", "b", "w"].map(|kind| bytes[kind].as_i64().unwrap());
            let ranks = row["p"].as_u64().unwrap();
            let limit = row["mem_cap"].as_f64().map(|cap| (cap * 2.0 * ranks as f64) as i64);
            let statement = json!({
                "ranks": ranks, "chunks": 2, "microbatches": row["m"], "placement": "v", "objective": "longest_span",
                "stages": { "forward_ns": twice(&costs["f"]), "backward_input_ns": twice(&costs["b"]),
                    "backward_weight_ns": twice(&costs["w"]), "forward_bytes": bytes[0],
                    "backward_input_bytes": bytes[1], "backward_weight_bytes": bytes[2] },
                "transfer_ns": twice(&row["comm"]), "limit_bytes": limit.map(|chunks| chunks * bytes[0]),
            });
            let statement = Statement::read(&statement).expect("a statement");
            let problem = statement.problem(statement.placements().remove(0)).expect("a placement");
            let order = row["orders"].as_array();
            let order = order.map(|rows| rows.iter().map(|row| row.as_str().unwrap().to_string()).collect());
            PublicRow { problem, limit, figures: [twice(&row["span"]), twice(&row["makespan"])], order }
        })
        .collect()
}

/// Rows in the letters of the table: small ones for the second chunk.
fn public_text(flat: &Flat, rows: &[Vec<flat_problem::Code>]) -> Vec<String> {
    let text = |row: &Vec<flat_problem::Code>| {
        let mut seen = std::collections::BTreeMap::new();
        let op = |code: &flat_problem::Code| {
            let n: &mut u32 = seen.entry(*code).or_default();
            *n += 1;
            let letters = if flat_problem::lane_of(*code) < flat.ranks { ["F", "B", "W"] } else { ["f", "b", "w"] };
            std::format!("{}{}", letters[flat_problem::kind_of(*code) as usize], *n - 1)
        };
        row.iter().map(op).collect::<Vec<String>>().join(" ")
    };
    rows.iter().map(text).collect()
}

/// Span and makespan of rows.
fn public_figures(flat: &Flat, rows: &[Vec<flat_problem::Code>]) -> [u64; 2] {
    let mut eval = Eval::new(flat);
    let cost = eval.run(flat, rows, u64::MAX).expect("an order that runs");
    [cost.objective, eval.end.iter().copied().max().unwrap()]
}

#[test]
fn the_public_rule_of_zb_v_is_rebuilt_op_by_op() {
    let (mut seen, mut orders) = (0, 0);
    for row in [public_rows("ZBV", 512), public_rows("ZBV-arxiv", 512)].concat() {
        let PublicRow { problem, figures, order, .. } = row;
        let flat = Flat::new(&problem);
        let mut best: Option<(u64, flat_problem::Rows)> = None;
        for (late_b, late_f) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut granted = vec![0; flat.ranks];
            let mut least = u64::MAX;
            while let Some((rows, idle)) = zbv::build(&flat, &[], zbv::public(late_b, late_f), granted) {
                let worst = idle.iter().copied().max().unwrap();
                if worst >= least {
                    break;
                }
                (least, granted) = (worst, zbv::grants(&idle));
                if best.as_ref().is_none_or(|(best, _)| worst < *best) {
                    best = Some((worst, rows));
                }
            }
        }
        let (_, rows) = best.expect("the public planner has an answer");
        assert_eq!(public_figures(&flat, &rows), figures, "{:?}", problem.statement());
        if let Some(order) = order {
            assert_eq!(public_text(&flat, &rows), order, "{:?}", problem.statement());
            orders += 1;
        }
        seen += 1;
    }
    assert!(seen > 700 && orders == 400, "{seen} rows, {orders} orders");
}

#[test]
fn the_public_search_over_building_blocks_is_rebuilt_op_by_op() {
    let (mut seen, mut orders) = (0, 0);
    for PublicRow { problem, limit, figures, order } in public_rows("V-auto", 64) {
        let flat = Flat::new(&problem);
        let (limit, microbatches) = (limit.expect("a limit"), problem.microbatches());
        let mut best: Option<(u64, flat_problem::Rows)> = None;
        for first in v_blocks::firsts() {
            v_blocks::blocks_from(first, flat.ranks, |block| {
                let is_filled = microbatches >= 2 * flat.ranks;
                if block.held > 2 * flat.ranks || is_filled && block.held as i64 > limit {
                    return false;
                }
                let all_fit = 2 * microbatches as i64 <= limit;
                let Some(cells) = v_blocks::build(block, microbatches, all_fit) else { return true };
                let rows = v_blocks::rows(&flat, &cells);
                if rows.iter().any(|row| flat.peak(row) > limit) {
                    return false;
                }
                let [span, _] = public_figures(&flat, &rows);
                if best.as_ref().is_none_or(|(best, _)| span < *best) {
                    best = Some((span, rows));
                }
                true
            });
        }
        let (_, rows) = best.expect("the public search has an answer");
        assert_eq!(public_figures(&flat, &rows), figures, "{:?}", problem.statement());
        if let Some(order) = order {
            assert_eq!(public_text(&flat, &rows), order, "{:?}", problem.statement());
            orders += 1;
        }
        seen += 1;
    }
    assert!(seen > 60 && orders == 40, "{seen} rows, {orders} orders");
}
