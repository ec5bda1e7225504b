//! Time against memory as a step chart.

mod axes;
mod svg;
#[cfg(test)]
mod tests;

use pipeplan_core::problem::Objective;
use pipeplan_core::spec::{Spec, Work};

use crate::protocol::frontier::insert;
use crate::protocol::{ChartNews, ChartPoint};
use crate::text;

pub use axes::{HEIGHT, Plot};

/// What the page knows of time against memory.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Chart {
    /// Rising bytes; falling what the best is chosen by.
    pub curve: Vec<ChartPoint>,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Whether all of it is known.
    pub finished: bool,
    /// Whether it is of the spec before the one in the form.
    pub stale: bool,
}

impl Chart {
    /// Takes what is new. The points of another spec stay until the first of this one come: nothing flickers.
    pub fn add(&mut self, news: ChartNews) {
        if news.started {
            self.stale = true;
        }
        if self.stale && (!news.points.is_empty() || news.least_bytes.is_some() || news.finished) {
            *self = Chart::default();
        }
        self.least_bytes = news.least_bytes.or(self.least_bytes);
        for point in news.points {
            insert(&mut self.curve, point);
        }
        self.finished |= news.finished;
    }

    /// What memory buys: the best of all that hold at most `bytes`; the one that holds least where none does.
    pub fn within(&self, bytes: f64) -> Option<usize> {
        let fitting = self.curve.partition_point(|point| point.bytes as f64 <= bytes);
        (!self.curve.is_empty()).then(|| fitting.saturating_sub(1))
    }
}

/// What is drawn against memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Measure {
    /// What points are chosen by: it falls with more memory.
    #[default]
    Time,
    /// Idle share of the same points: it need not fall, where the end of the step, waits or jitter decide.
    Bubble,
}

impl Measure {
    fn of(self, point: &ChartPoint) -> f64 {
        match self {
            Measure::Time if point.hangs() => f64::INFINITY,
            Measure::Time => point.judged_ns as f64,
            Measure::Bubble => point.bubble_ratio,
        }
    }
}

/// What stands out in a drawing.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Marks {
    /// The limit in force.
    pub limit_bytes: Option<u64>,
    /// The plan on screen.
    pub plan: Option<ChartPoint>,
    /// The point that is looked at.
    pub picked: Option<usize>,
    /// What published schedules come to, each by its name.
    pub published: Vec<ChartPoint>,
    /// What points are chosen by.
    pub judged: Judged,
}

/// What points are chosen by, as the page calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Judged {
    /// `step`, or what there is of one.
    pub name: &'static str,
    /// Whether ops differ: then one in twenty takes longer than that.
    pub jitters: bool,
}

impl Judged {
    /// What the best of `spec` is chosen by.
    pub fn of(spec: &Spec) -> Judged {
        let name = match (&spec.work, spec.objective()) {
            (Work::Model(_), Objective::Makespan) => "step time",
            (Work::Model(_), Objective::LongestSpan) => "longest span with step epilogue",
            (Work::Typed(_), Objective::Makespan) => "makespan",
            (Work::Typed(_), Objective::LongestSpan) => "longest span",
        };
        Judged { name, jitters: spec.jitter_permille > 0 }
    }

    /// What the best is best by.
    pub fn least(&self) -> String {
        let late = if self.jitters { ", 1 step in 20" } else { "" };
        format!("least {}{late}", self.name)
    }
}

/// A point in a sentence.
pub fn describe(point: &ChartPoint, judged: &Judged) -> String {
    let time = match point.hangs() {
        true => "hangs with this transport".to_owned(),
        false => format!("{} {}", judged.name, text::duration(point.judged_ns as f64)),
    };
    let late = if judged.jitters { ", 1 step in 20 takes longer" } else { "" };
    let bubble = text::percent(point.bubble_ratio);
    format!("{}: {time}{late}, bubble {bubble} ({})", text::bytes(point.bytes), point.by)
}
