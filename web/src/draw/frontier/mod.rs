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

/// Time against memory, as the page has it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Chart {
    /// The points, by rising bytes and falling cost.
    pub curve: Vec<ChartPoint>,
    /// Below this no schedule exists.
    pub least_bytes: Option<u64>,
    /// Whether all of it is known.
    pub finished: bool,
    /// Whether it is of the spec before the one in the form.
    pub stale: bool,
}

impl Chart {
    /// Adds news. Points of another spec stay until the first points of this one arrive, so that nothing flickers.
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

    /// The best point within `bytes`, or the point with the least memory if none fits.
    pub fn within(&self, bytes: f64) -> Option<usize> {
        let fitting = self.curve.partition_point(|point| point.bytes as f64 <= bytes);
        (!self.curve.is_empty()).then(|| fitting.saturating_sub(1))
    }
}

/// The quantity on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Measure {
    /// The criterion of `best`: it falls with more memory.
    #[default]
    Time,
    /// The idle share of the same points. It need not fall if step epilogue, waits or jitter decide.
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

/// Marks on the chart.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Marks {
    /// The limit in force.
    pub limit_bytes: Option<u64>,
    /// The plan on screen.
    pub plan: Option<ChartPoint>,
    /// The point that is looked at.
    pub picked: Option<usize>,
    /// Published schedules, with their names.
    pub published: Vec<ChartPoint>,
    /// The criterion of points.
    pub judged: Judged,
}

/// The criterion of points, as the page names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Judged {
    /// `step time`, or a part of it.
    pub name: &'static str,
    /// Whether ops differ: then one in twenty takes longer than that.
    pub jitters: bool,
}

impl Judged {
    /// The criterion for the best of `spec`.
    pub fn of(spec: &Spec) -> Judged {
        let name = match (&spec.work, spec.objective()) {
            (Work::Model(_), Objective::Makespan) => "step time",
            (Work::Model(_), Objective::LongestSpan) => "longest span with step epilogue",
            (Work::Typed(_), Objective::Makespan) => "makespan",
            (Work::Typed(_), Objective::LongestSpan) => "longest span",
        };
        Judged { name, jitters: spec.jitter_permille > 0 }
    }

    /// The criterion of the best, in words.
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
