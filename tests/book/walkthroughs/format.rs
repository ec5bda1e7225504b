//! Walk-through: add a file format.

use pipeplan_core::check::check_schedule;
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::Schedule;
use pipeplan_core::problem::op::Op;
use pipeplan_core::spec::Spec;

// ANCHOR: write
/// A plan as a table for a spreadsheet: one line for each op, with its rank, start and end in nanoseconds.
pub fn write_csv(plan: &Plan) -> Result<String, String> {
    let timeline = plan.timeline().map_err(|error| error.to_string())?;
    let mut text = String::from("rank,op,start_ns,end_ns\n");
    for (rank, row) in timeline.rows.iter().enumerate() {
        for span in row {
            text += &format!("{rank},{},{},{}\n", span.op, span.start_ns, span.end_ns);
        }
    }
    Ok(text)
}
// ANCHOR_END: write

// ANCHOR: read
/// The order in such a table. Lines may stand in any order: times decide.
///
/// # Errors
/// The line with what is wrong, as a sentence.
pub fn read_csv(text: &str) -> Result<Schedule, String> {
    let mut spans: Vec<(usize, u64, Op)> = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let wrong = |what: String| format!("line {}: {what}", number + 1);
        let [rank, op, start, _] = line.split(',').collect::<Vec<_>>()[..] else {
            return Err(wrong(format!("`{line}` is not rank, op, start and end")));
        };
        let rank = rank.parse().map_err(|_| wrong(format!("`{rank}` is no rank")))?;
        let start = start.parse().map_err(|_| wrong(format!("`{start}` is no time")))?;
        spans.push((rank, start, op.parse().map_err(|error| wrong(format!("{error}")))?));
    }
    spans.sort_by_key(|(rank, start, _)| (*rank, *start));
    let ranks = spans.last().map_or(0, |(rank, ..)| rank + 1);
    // A file may name any rank; what it names must be there.
    if ranks > spans.len() {
        return Err(format!("rank {} is named, and there are only {} ops", ranks - 1, spans.len()));
    }
    let mut rows = vec![Vec::new(); ranks];
    for (rank, _, op) in spans {
        rows[rank].push(op);
    }
    Ok(Schedule::of(rows))
}
// ANCHOR_END: read

// ANCHOR: judge
#[test]
fn what_is_written_is_read_back() {
    let spec = "model.name = 'tiny-llama'\ncluster.device = 'cpu'\nparallel.pipeline = 4\ntraining.microbatches = 8";
    let spec = Spec::read(spec).unwrap();
    for name in ["1f1b", "interleaved-1f1b", "zb-v"] {
        let plan = planner::plan(&spec, name).unwrap();
        let schedule = read_csv(&write_csv(&plan).unwrap()).unwrap();
        assert_eq!(schedule, plan.schedule);
        assert_eq!(check_schedule(&plan.problem, &schedule), Ok(()));
    }
}

#[test]
fn a_fault_is_told_with_its_line() {
    let error = read_csv("rank,op,start_ns,end_ns\n0,0F0,0,5\n0,0X0,5,9\n").unwrap_err();
    assert!(error.starts_with("line 3: `0X0` is not an op"), "{error}");
    assert!(read_csv("rank,op,start_ns,end_ns\n99999999,0F0,0,5\n").is_err());
}
// ANCHOR_END: judge
