//! A run on a person's screen.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Observer, StepReport};

/// One line a step on standard output, and a bar below on standard error where that is a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `steps`, of which `done` are made.
    pub fn new(done: u32, steps: u32) -> Progress {
        let bar = ProgressBar::new(steps.into());
        let template = "{bar:30} step {pos} of {len}, {eta} left {msg}";
        // A template that does not parse would be a bug here; the default bar does as well.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_position(done.into());
        Progress { bar }
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The line of a step.
pub fn line(report: &StepReport) -> String {
    let loss = report.loss.map_or_else(String::new, |loss| format!("loss {loss:.6}  "));
    // Stages that another program brings take what data they like.
    let has_tokens = report.loss.is_some() && report.tokens > 0;
    let tokens = if has_tokens { format!("{:>8.0} tokens/s  ", report.tokens_per_s()) } else { String::new() };
    let trained = loss + &tokens;
    // A plan of typed costs may take nanoseconds.
    let duration = match report.duration_ns {
        0..100_000 => format!("{:>7} ns", report.duration_ns),
        _ => format!("{:>7.1} ms", report.duration_ns as f64 / 1e6),
    };
    let some =
        |name: &str, value: Option<f64>| value.map_or_else(String::new, |value| format!("  {name} {value:.4}"));
    let validation = some("validation", report.validation_loss);
    let norm = some("norm", report.gradient_norm);
    format!(
        "step {:>4}  {trained}{duration}  bubble {:.1} %{norm}{validation}",
        report.step,
        100.0 * report.bubble_ratio
    )
}

impl Observer for Progress {
    fn step_ended(&mut self, report: &StepReport) {
        // A reader that has seen enough, such as `head`, does not end the run.
        self.bar.suspend(|| drop(writeln!(std::io::stdout(), "{}", line(report))));
        if let Some(loss) = report.loss {
            self.bar.set_message(format!("loss {loss:.4}"));
        }
        self.bar.inc(1);
    }
}
