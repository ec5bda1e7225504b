//! How often the run best writes checkpoints, by what it measured.

use pipeplan::runner::RunReport;
use pipeplan::runner::interval::{daly, lost_share, young};
use serde_json::{Value, json};

use super::Args;
use crate::cmd::format;

/// What is said of the interval between checkpoints. Times are in seconds.
pub struct Interval {
    /// For which training stands still for a checkpoint, in the mean.
    pause: f64,
    /// Between failures of the whole run.
    between_failures: f64,
    /// A step, in the mean.
    step: f64,
    /// Steps between the checkpoints of this run.
    every: u32,
}

impl Interval {
    /// Of the run with `args`, where it was asked for and has written checkpoints.
    pub fn of(args: &Args, report: &RunReport) -> Option<Interval> {
        let (hours, every) = (args.mtbf?, args.checkpoint_every?);
        let pauses = &report.checkpoint_pauses;
        if pauses.is_empty() || report.steps.is_empty() {
            return None;
        }
        let pause = pauses.iter().map(|pause| pause.as_secs_f64()).sum::<f64>() / pauses.len() as f64;
        let took: u64 = report.steps.iter().map(|step| step.duration_ns).sum();
        let step = took as f64 / 1e9 / report.steps.len() as f64;
        Some(Interval { pause, between_failures: hours * 3600.0 / report.memory.len().max(1) as f64, step, every })
    }

    /// Steps between checkpoints that lose the least time.
    fn best_steps(&self) -> u64 {
        (daly(self.pause, self.between_failures) / self.step.max(1e-9)).round().max(1.0) as u64
    }

    fn lost(&self, steps: f64) -> f64 {
        lost_share(steps * self.step, self.pause, self.between_failures)
    }

    pub fn told(&self) -> String {
        let time = |seconds: f64| format::duration((seconds * 1e9) as u64);
        let (best, every) = (self.best_steps(), self.every);
        format!(
            "interval      a checkpoint every {} loses the least time, {}; every {}, {}: training stands still {} for \
             each, and the run fails every {}\n",
            format::count(best as usize, "step"),
            format::percent(self.lost(best as f64)),
            format::count(every as usize, "step"),
            format::percent(self.lost(f64::from(every))),
            time(self.pause),
            time(self.between_failures),
        )
    }

    pub fn to_value(&self) -> Value {
        json!({
            "pause_s": self.pause,
            "between_failures_s": self.between_failures,
            "young_s": young(self.pause, self.between_failures),
            "daly_s": daly(self.pause, self.between_failures),
            "daly_steps": self.best_steps(),
            "lost_share": self.lost(self.best_steps() as f64),
            "lost_share_in_use": self.lost(f64::from(self.every)),
        })
    }
}
