//! How often a run best writes checkpoints: by what a plan estimates, or by what a run measured.

use pipeplan::runner::RunReport;
use pipeplan::runner::interval::{daly, lost_share, young};
use pipeplan_core::estimate::derive::derive;
use pipeplan_core::plan::Plan;
use pipeplan_core::spec::Work;
use serde_json::{Value, json};

use super::format;

/// Seconds in a unit that a person reads.
fn time(seconds: f64) -> String {
    match seconds {
        days if days >= 2.0 * 86_400.0 => format!("{:.1} days", days / 86_400.0),
        hours if hours >= 2.0 * 3600.0 => format!("{:.1} h", hours / 3600.0),
        minutes if minutes >= 120.0 => format!("{:.1} min", minutes / 60.0),
        seconds => format::duration((seconds * 1e9) as u64),
    }
}

/// What is said of the interval between checkpoints. Times are in seconds.
pub struct Interval {
    /// For which training stands still for a checkpoint, in the mean.
    pause: f64,
    /// Between failures of the whole run.
    between_failures: f64,
    /// A step, in the mean.
    step: f64,
}

impl Interval {
    /// As `plan` estimates it, where its spec says how often a device fails.
    ///
    /// Training stands still until each rank has copied its weights and optimizer states to the host: over the link to it, or,
    /// where they lie there, within its memory, which takes no time here.
    pub fn of_plan(plan: &Plan) -> Option<Interval> {
        let Work::Model(work) = &plan.spec.work else { return None };
        let hours = work.failures.mtbf_hours?;
        let derived = derive(work, plan.problem.placement().clone(), plan.problem.chunks()).ok()?;
        let copied = derived.static_bytes.iter().map(|bytes| {
            let state = bytes.master_weights.saturating_add(bytes.optimizer);
            bytes.weights.saturating_add(state)
        });
        let pause = copied.max().unwrap_or(0) as f64 / work.device.host_bytes_per_s.max(1) as f64;
        let between_failures = f64::from(hours) * 3600.0 / work.devices().max(1) as f64;
        Some(Interval { pause, between_failures, step: plan.step()?.step_ns as f64 / 1e9 })
    }

    /// As `report` has measured it, where the run has written checkpoints on its way. A device fails every `hours`.
    pub fn of_run(report: &RunReport, hours: f64) -> Option<Interval> {
        let pauses = &report.checkpoint_pauses;
        if pauses.is_empty() || report.steps.is_empty() {
            return None;
        }
        let pause = pauses.iter().map(|pause| pause.as_secs_f64()).sum::<f64>() / pauses.len() as f64;
        let took: u64 = report.steps.iter().map(|step| step.duration_ns).sum();
        let step = took as f64 / 1e9 / report.steps.len() as f64;
        Some(Interval { pause, between_failures: hours * 3600.0 / report.memory.len().max(1) as f64, step })
    }

    /// Steps between checkpoints that lose the least time.
    fn best_steps(&self) -> u64 {
        (daly(self.pause, self.between_failures) / self.step.max(1e-9)).round().max(1.0) as u64
    }

    fn lost(&self, steps: f64) -> f64 {
        lost_share(steps * self.step, self.pause, self.between_failures)
    }

    /// For a person, next to a checkpoint `every` so many steps where one is in use.
    pub fn told(&self, every: Option<u32>) -> String {
        let best = self.best_steps();
        let in_use = every.map_or_else(String::new, |every| {
            let lost = format::percent(self.lost(f64::from(every)));
            format!("; every {}, {lost}", format::count(every as usize, "step"))
        });
        format!(
            "interval      a checkpoint every {} ({}) loses the least time, {}{in_use}: training stands still {} for each, \
             and the run fails every {}\n",
            format::count(best as usize, "step"),
            time(best as f64 * self.step),
            format::percent(self.lost(best as f64)),
            time(self.pause),
            time(self.between_failures),
        )
    }

    /// The same for programs.
    pub fn to_value(&self, every: u32) -> Value {
        json!({
            "pause_s": self.pause,
            "between_failures_s": self.between_failures,
            "young_s": young(self.pause, self.between_failures),
            "daly_s": daly(self.pause, self.between_failures),
            "daly_steps": self.best_steps(),
            "lost_share": self.lost(self.best_steps() as f64),
            "lost_share_in_use": self.lost(f64::from(every)),
        })
    }
}
