//! Differences of figures to those of a kept plan.

use crate::protocol::{RowCosts, StepFigures};
use crate::scene::Scene;
use crate::text;

/// The figures of a kept plan that others are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Versus {
    cost_ns: u64,
    peak_bytes: u64,
    bubble_ratio: f64,
    step: Option<StepFigures>,
}

/// Differences, as a person reads them: `+28 %`, `−10 GiB`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Of the cost, in percent.
    pub cost: String,
    /// Of the bubble, in points of a percentage.
    pub bubble: String,
    /// Of the peak memory.
    pub peak: String,
    /// Of the step time, in percent; empty where one of the two has none.
    pub step: String,
    /// Of the MFU, in points; empty where one of the two has none.
    pub mfu: String,
}

impl Versus {
    /// Those of a kept plan.
    pub fn of(kept: &Scene) -> Versus {
        let figures = &kept.figures;
        let (peak_bytes, bubble_ratio, step) = (kept.peak_bytes(), figures.bubble_ratio, figures.step);
        Versus { cost_ns: kept.cost_ns(), peak_bytes, bubble_ratio, step }
    }

    /// The differences of a plan.
    pub fn plan(&self, plan: &Scene) -> Differences {
        self.differences(plan.cost_ns(), plan.figures.bubble_ratio, plan.peak_bytes(), plan.figures.step)
    }

    /// The differences of a row of the comparison, which is judged by `cost_ns`.
    pub fn row(&self, costs: &RowCosts, cost_ns: u64) -> Differences {
        self.differences(cost_ns, costs.bubble_ratio, costs.peak_bytes, costs.step)
    }

    fn differences(&self, cost_ns: u64, bubble: f64, peak_bytes: u64, step: Option<StepFigures>) -> Differences {
        let both = self.step.zip(step);
        Differences {
            cost: text::rate_change(cost_ns as f64, self.cost_ns as f64),
            bubble: text::share_change(bubble, self.bubble_ratio),
            peak: text::bytes_change(peak_bytes, self.peak_bytes),
            step: both
                .map(|(kept, step)| text::rate_change(step.step_ns as f64, kept.step_ns as f64))
                .unwrap_or_default(),
            mfu: both.map(|(kept, step)| text::share_change(step.mfu, kept.mfu)).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::example;

    /// GPipe holds eight microbatches of 4 bytes where 1F1B holds four, over 3 bytes; both take (8 + 3) · 30.
    #[test]
    fn a_plan_is_compared_with_the_kept_one() {
        let (gpipe, one) = (example("gpipe", 1), example("1f1b", 1));
        let found = Versus::of(&gpipe).plan(&one);
        assert_eq!((found.cost.as_str(), found.bubble.as_str(), found.peak.as_str()), ("same", "same", "−16 B"));
        assert_eq!(found.step, "", "typed costs have no step");
        assert_eq!(Versus::of(&one).plan(&gpipe).peak, "+16 B");
    }
}
