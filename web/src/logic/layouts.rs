//! Whether layouts that were found are still those of the form.

use pipeplan_core::spec::Spec;

use crate::protocol::same_spec::same_work;
use crate::protocol::{Layouts, spec_of};

/// Whether `layouts` belong to `spec`: it is the spec of the search, `asked`, or one of the layouts that a person put
/// into the form. Name and schedule do not count.
pub fn are_of(layouts: &Layouts, asked: &Spec, spec: &Spec) -> bool {
    let is_row = |text: &str| spec_of(text).is_some_and(|row| same_work(&row, spec));
    same_work(asked, spec) || layouts.rows.iter().any(|row| is_row(&row.spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{LayoutRow, StepFigures};
    use pipeplan_core::spec::Spec;
    use serde_json::json;

    fn spec(model: &str, pipeline: u32, schedule: &str) -> Spec {
        let value = json!({
            "model": { "name": model }, "cluster": { "device": "h100" }, "parallel": { "pipeline": pipeline },
            "training": { "microbatches": 8 }, "schedule": schedule,
        });
        Spec::from_value(&value).unwrap()
    }

    #[test]
    fn layouts_are_those_of_what_was_asked_and_of_what_was_taken() {
        let step = StepFigures { step_ns: 1, tokens_per_s: 1.0, mfu: 0.1, published_ns: None, training: None };
        let row = LayoutRow {
            spec: spec("llama-2-7b", 2, "zb-h1").to_json(),
            degrees: [2, 2, 1, 1, 1],
            microbatches: [8, 1],
            schedule: "ZB-H1".to_owned(),
            recompute: "none".to_owned(),
            step,
            peak: 1,
        };
        let (asked, layouts) = (spec("llama-2-7b", 4, "best"), Layouts { rows: vec![row], ..Layouts::default() });
        let are_of = |spec: &Spec| are_of(&layouts, &asked, spec);
        assert!(are_of(&asked) && are_of(&spec("llama-2-7b", 4, "1f1b")));
        assert!(are_of(&spec("llama-2-7b", 2, "zb-h1")), "taken into the form");
        assert!(!are_of(&spec("llama-3-8b", 4, "best")), "another model");
        assert!(!are_of(&spec("llama-2-7b", 8, "best")));
    }
}
