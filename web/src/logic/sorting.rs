//! The order of the comparison's rows.

use std::cmp::Ordering;

use pipeplan_core::problem::Objective;
use pipeplan_core::schedule::BEST;

use crate::protocol::{Row, RowCosts};

/// A column that rows can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Its name.
    Schedule,
    /// The cost, by the objective.
    Cost,
    /// Idle share.
    Bubble,
    /// Most bytes of a rank.
    Peak,
    /// Cost over its bound.
    Gap,
    /// The cost that 1 step in 20 exceeds.
    Late,
    /// The cost with communication.
    WithCommunication,
    /// The whole training step.
    Step,
    /// The share of the devices' arithmetic that the step makes use of.
    Mfu,
}

impl Column {
    /// All of them.
    pub const ALL: [Column; 9] = [
        Column::Schedule,
        Column::Cost,
        Column::Bubble,
        Column::Peak,
        Column::Gap,
        Column::Late,
        Column::WithCommunication,
        Column::Step,
        Column::Mfu,
    ];

    /// Its name in links and marks.
    pub const fn name(self) -> &'static str {
        match self {
            Column::Schedule => "schedule",
            Column::Cost => "cost",
            Column::Bubble => "bubble",
            Column::Peak => "peak",
            Column::Gap => "gap",
            Column::Late => "late",
            Column::WithCommunication => "withcommunication",
            Column::Step => "step",
            Column::Mfu => "mfu",
        }
    }
}

/// Rows sorted by a column, or in the order in which they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// The column, and whether the largest comes first.
    pub by: Option<(Column, bool)>,
}

impl Ranking {
    /// After a press of a column's head: smallest first, then largest first, then as at the beginning.
    pub fn pressed(self, column: Column) -> Ranking {
        let by = match self.by {
            Some((now, false)) if now == column => Some((column, true)),
            Some((now, true)) if now == column => None,
            _ => Some((column, false)),
        };
        Ranking { by }
    }

    /// The value of `aria-sort` for a column.
    pub fn aria(self, column: Column) -> &'static str {
        match self.by {
            Some((now, false)) if now == column => "ascending",
            Some((now, true)) if now == column => "descending",
            _ => "none",
        }
    }

    /// The schedules' names in order. Those that do not exist here come last, whatever the column.
    pub fn names(self, rows: &[Row], objective: Objective) -> Vec<String> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| {
            let absent = one.costs.is_none().cmp(&other.costs.is_none());
            let sorted = match self.by {
                None => Ordering::Equal,
                Some((column, false)) => by_column(column, objective, one, other),
                Some((column, true)) => by_column(column, objective, other, one),
            };
            // Among equal rows the best comes first: most people look for it.
            absent.then(sorted).then((one.schedule != BEST).cmp(&(other.schedule != BEST)))
        });
        rows.into_iter().map(|row| row.schedule.clone()).collect()
    }
}

/// The cost of a schedule, by the objective.
pub fn cost_ns(costs: &RowCosts, objective: Objective) -> u64 {
    match objective {
        Objective::Makespan => costs.makespan_ns,
        Objective::LongestSpan => costs.longest_span_ns,
    }
}

fn by_column(column: Column, objective: Objective, one: &Row, other: &Row) -> Ordering {
    let (Some(here), Some(there)) = (&one.costs, &other.costs) else {
        return one.title.cmp(&other.title);
    };
    match column {
        Column::Schedule => one.title.cmp(&other.title),
        Column::Cost => cost_ns(here, objective).cmp(&cost_ns(there, objective)),
        Column::Bubble => here.bubble_ratio.total_cmp(&there.bubble_ratio),
        Column::Peak => here.peak_bytes.cmp(&there.peak_bytes),
        // A row without a bound has no gap: it counts as the largest.
        Column::Gap => here.gap.unwrap_or(f64::INFINITY).total_cmp(&there.gap.unwrap_or(f64::INFINITY)),
        Column::Late => here.late_ns.cmp(&there.late_ns),
        // A schedule that could hang counts as the slowest.
        Column::WithCommunication => here.carried_ns.unwrap_or(u64::MAX).cmp(&there.carried_ns.unwrap_or(u64::MAX)),
        Column::Step => step_ns(here).cmp(&step_ns(there)),
        Column::Mfu => mfu(here).total_cmp(&mfu(there)),
    }
}

fn step_ns(costs: &RowCosts) -> Option<u64> {
    costs.step.map(|step| step.step_ns)
}

fn mfu(costs: &RowCosts) -> f64 {
    costs.step.map_or(0.0, |step| step.mfu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::StepFigures;

    fn row(schedule: &str, costs: Option<(u64, u64, f64)>) -> Row {
        let costs = costs.map(|(makespan_ns, peak_bytes, gap)| RowCosts {
            makespan_ns,
            longest_span_ns: 1000 - makespan_ns,
            bubble_ratio: makespan_ns as f64 / 1000.0,
            peak_bytes,
            gap: (gap >= 0.0).then_some(gap),
            late_ns: Some(1000 - makespan_ns),
            carried_ns: (makespan_ns != 300).then_some(makespan_ns / 100 % 4),
            judged_ns: makespan_ns,
            step: Some(StepFigures {
                step_ns: makespan_ns % 300,
                tokens_per_s: 1.0,
                mfu: peak_bytes as f64 / 10.0,
                published_ns: None,
                training: None,
            }),
        });
        Row {
            schedule: schedule.to_owned(),
            title: schedule.to_uppercase(),
            source: String::new(),
            reason: None,
            costs,
        }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("gpipe", None),
            row("1f1b", Some((300, 4, 0.3))),
            row("zb-v", Some((200, 8, -1.0))),
            row("v-min", Some((400, 2, 0.1))),
            row(BEST, Some((100, 6, 0.0))),
        ]
    }

    #[test]
    fn the_best_comes_first_until_a_column_is_pressed_and_what_is_absent_last() {
        let order = |by| Ranking { by }.names(&rows(), Objective::Makespan);
        assert_eq!(order(None), ["best", "1f1b", "zb-v", "v-min", "gpipe"]);
        assert_eq!(order(Some((Column::Schedule, false))), ["1f1b", "best", "v-min", "zb-v", "gpipe"]);
        assert_eq!(order(Some((Column::Cost, false))), ["best", "zb-v", "1f1b", "v-min", "gpipe"]);
        assert_eq!(order(Some((Column::Cost, true))), ["v-min", "1f1b", "zb-v", "best", "gpipe"]);
        assert_eq!(order(Some((Column::Bubble, true))), ["v-min", "1f1b", "zb-v", "best", "gpipe"]);
        assert_eq!(order(Some((Column::Peak, false))), ["v-min", "1f1b", "best", "zb-v", "gpipe"]);
        assert_eq!(order(Some((Column::Gap, false))), ["best", "v-min", "1f1b", "zb-v", "gpipe"]);
        assert_eq!(order(Some((Column::Late, false))), ["v-min", "1f1b", "zb-v", "best", "gpipe"]);
        assert_eq!(order(Some((Column::WithCommunication, false))), ["v-min", "best", "zb-v", "1f1b", "gpipe"]);
        assert_eq!(order(Some((Column::Step, false))), ["1f1b", "best", "v-min", "zb-v", "gpipe"]);
        assert_eq!(order(Some((Column::Mfu, true))), ["zb-v", "best", "1f1b", "v-min", "gpipe"]);
        let spans = Ranking { by: Some((Column::Cost, false)) }.names(&rows(), Objective::LongestSpan);
        assert_eq!(spans, ["v-min", "1f1b", "zb-v", "best", "gpipe"]);
    }

    #[test]
    fn a_head_pressed_three_times_leaves_all_as_it_was() {
        let once = Ranking::default().pressed(Column::Peak);
        assert_eq!((once.aria(Column::Peak), once.aria(Column::Cost)), ("ascending", "none"));
        let twice = once.pressed(Column::Peak);
        assert_eq!(twice.aria(Column::Peak), "descending");
        assert_eq!(twice.pressed(Column::Peak), Ranking::default());
        assert_eq!(twice.pressed(Column::Gap).by, Some((Column::Gap, false)));
    }
}
