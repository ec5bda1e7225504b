//! Whether a plan that is kept can be drawn under the one on screen.

use crate::scene::Scene;

/// Two plans share a time axis if neither takes more than this many times as long as the other. Else the shorter one is
/// too short to see.
const MOST_TIMES_AS_LONG: u64 = 20;

/// Why `kept` is not drawn under `shown`; none if it is drawn.
pub fn why_not_drawn(kept: &Scene, shown: Option<&Scene>, trace_is_open: bool) -> Option<String> {
    let reason = match shown {
        None => "There is no plan on screen.".to_owned(),
        Some(_) if trace_is_open => "The trace takes its place: close the trace to see it.".to_owned(),
        Some(shown) => {
            let (kept_ns, shown_ns) = (kept.end_ns().max(1), shown.end_ns().max(1));
            let (less, more) = (kept_ns.min(shown_ns), kept_ns.max(shown_ns));
            if more <= less.saturating_mul(MOST_TIMES_AS_LONG) {
                return None;
            }
            let times = more / less;
            match kept_ns > shown_ns {
                true => format!("It takes {times} times as long as this plan, so this plan is too short to see."),
                false => format!("This plan takes {times} times as long, so the kept plan is too short to see."),
            }
        }
    };
    Some(format!("Kept, but not drawn: {}. {reason}", kept.headline()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::from_core;
    use pipeplan_core::plan::planner;
    use pipeplan_core::schedule;
    use pipeplan_core::spec::Spec;

    fn example(microbatches: u32) -> Scene {
        let spec = format!(
            r#"{{ "ranks": 4, "microbatches": {microbatches}, "stages": {{ "forward_ns": 10, "backward_input_ns": 20 }} }}"#
        );
        let answer = planner::answer(&Spec::read(&spec).unwrap(), &schedule::find("1f1b").unwrap()).unwrap();
        Scene::of(from_core::picture("1f1b", &answer.case.problem, &answer.timeline), Vec::new()).unwrap()
    }

    #[test]
    fn a_kept_plan_is_drawn_beside_one_of_its_order_of_magnitude_alone() {
        // (M + 3) steps of 30 ns: 131 of them beside 4, and beside 15.
        let kept = example(128);
        assert_eq!(why_not_drawn(&kept, Some(&example(12)), false), None);
        let said = why_not_drawn(&kept, Some(&example(1)), false).unwrap();
        assert!(said.contains("1F1B") && said.contains("32 times as long as this plan"), "{said}");
        let said = why_not_drawn(&example(1), Some(&kept), false).unwrap();
        assert!(said.contains("This plan takes 32 times as long"), "{said}");
        let said = why_not_drawn(&kept, Some(&kept), true).unwrap();
        assert!(said.contains("close the trace"), "{said}");
        assert!(why_not_drawn(&kept, None, true).unwrap().contains("no plan"));
    }
}
