//! Which rows of the comparison belong to the current spec. While a comparison runs, rows of the one before stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use pipeplan_core::spec::Spec;

use crate::protocol::same_spec::same_work;

/// The spec of the rows on the page.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// The spec of the running or last comparison; none if the form never had that spec.
    of: Option<Arc<Spec>>,
    /// Schedules whose rows are of a comparison before it.
    before: BTreeSet<String>,
}

impl Compared {
    /// A comparison starts, and no row has arrived.
    pub fn begin(&mut self, of: Option<Arc<Spec>>, rows: impl Iterator<Item = String>) {
        *self = Compared { of, before: rows.collect() };
    }

    /// The row of a schedule has come.
    pub fn row_arrived(&mut self, schedule: &str) {
        self.before.remove(schedule);
    }

    /// All rows are there, and they are of `of`.
    pub fn end(&mut self, of: Option<Arc<Spec>>) {
        *self = Compared { of, before: BTreeSet::new() };
    }

    /// Whether the comparison belongs to `spec`, with any schedule.
    pub fn is_of(&self, spec: &Spec) -> bool {
        self.of.as_ref().is_some_and(|of| same_work(of, spec))
    }

    /// Whether the row of a schedule is of that comparison.
    pub fn has(&self, schedule: &str) -> bool {
        !self.before.contains(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(microbatches: u32, schedule: &str) -> Arc<Spec> {
        let problem = json!({ "ranks": 2, "microbatches": microbatches, "stages": { "forward_ns": 1, "backward_input_ns": 1 } });
        Arc::new(Spec::from_value(&json!({ "problem": problem, "schedule": schedule })).unwrap())
    }

    #[test]
    fn rows_are_of_before_until_they_come_anew() {
        let names = || ["1f1b", "zb-v"].map(str::to_owned).into_iter();
        let mut compared = Compared::default();
        assert!(!compared.is_of(&spec(4, "best")), "nothing has been compared");
        compared.begin(Some(spec(4, "best")), std::iter::empty());
        assert!(compared.is_of(&spec(4, "best")) && compared.is_of(&spec(4, "1f1b")) && compared.has("1f1b"));
        // The form changes, the worker begins, and a row comes.
        assert!(!compared.is_of(&spec(8, "best")));
        compared.begin(Some(spec(8, "best")), names());
        compared.row_arrived("1f1b");
        assert!(compared.is_of(&spec(8, "best")) && compared.has("1f1b") && !compared.has("zb-v"));
        // Of something that has been overtaken; then all is known.
        compared.begin(None, names());
        assert!(!compared.is_of(&spec(8, "best")) && !compared.has("1f1b"));
        compared.end(Some(spec(9, "best")));
        assert!(compared.is_of(&spec(9, "1f1b")) && compared.has("1f1b") && compared.has("zb-v"));
    }
}
