//! What each step of a run says, written while it runs: JSON lines, and files of TensorBoard.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::{Observer, StepReport};

mod tensorboard;

/// The figures of one step, by name.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// What of its devices' time the model needs, times nanoseconds of a step; nothing where the plan does not say.
    pub mfu_ns: Option<f64>,
    started: Option<Instant>,
    steps: u32,
}

impl Figures {
    /// Of a run whose plan says how much of its devices a step of so many nanoseconds would use.
    pub fn new(mfu_ns: Option<f64>) -> Figures {
        Figures { mfu_ns, ..Figures::default() }
    }

    /// Those of `report`, in the order in which they are written.
    fn of(&mut self, report: &StepReport) -> Vec<(&'static str, f64)> {
        let started = *self.started.get_or_insert_with(Instant::now);
        let left = f64::from(report.steps.saturating_sub(report.step + 1));
        // The first step has no time before it that counts.
        let step_seconds = match self.steps {
            0 => report.duration_ns as f64 / 1e9,
            steps => started.elapsed().as_secs_f64() / f64::from(steps),
        };
        self.steps += 1;
        let some = |name, value: Option<f64>| value.map(|value| (name, value));
        let seconds = report.duration_ns as f64 / 1e9;
        [
            some("loss", report.loss),
            some("validation_loss", report.validation_loss),
            some("gradient_norm", report.gradient_norm),
            some("learning_rate", report.learning_rate),
            some("tokens_per_s", report.loss.filter(|_| report.tokens > 0).map(|_| report.tokens_per_s())),
            some("mfu", self.mfu_ns.map(|mfu_ns| mfu_ns / report.duration_ns.max(1) as f64)),
            some("step_seconds", Some(seconds)),
            some("bubble_ratio", Some(report.bubble_ratio)),
            some("peak_bytes", Some(report.peak_bytes as f64)),
            some("seconds_left", Some(left * step_seconds)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Writes figures while a run runs. The first error is kept, and nothing is written after it.
#[derive(Debug, Default)]
pub struct Metrics {
    figures: Figures,
    log: Option<(PathBuf, File)>,
    board: Option<tensorboard::Writer>,
    tokens: u64,
    error: Option<String>,
}

impl Metrics {
    /// Into the file `log`, behind what it holds, and into the folder `board`, if they are given.
    ///
    /// # Errors
    /// What cannot be opened, and why.
    pub fn open(log: Option<&Path>, board: Option<&Path>, figures: Figures) -> Result<Metrics, String> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("{path} cannot be written: {error}")
        };
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map(|file| (path.to_path_buf(), file)).map_err(failed(path))
        };
        let board = board.map(|folder| tensorboard::Writer::new(folder).map_err(failed(folder))).transpose()?;
        Ok(Metrics { figures, log: log.map(open).transpose()?, board, ..Metrics::default() })
    }

    /// What could not be written, and why.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn write(&mut self, report: &StepReport) -> Result<(), String> {
        let figures = self.figures.of(report);
        // Steps count from 1 where they are done.
        let done = report.step + 1;
        self.tokens += report.tokens;
        if let Some((path, file)) = &mut self.log {
            let mut line = Map::new();
            line.insert("step".to_string(), json!(done));
            line.insert("tokens".to_string(), json!(self.tokens));
            line.extend(figures.iter().map(|(name, value)| {
                let is_whole = *name == "peak_bytes";
                (name.to_string(), if is_whole { json!(*value as u64) } else { json!(value) })
            }));
            // In one call, so that a reader never sees half a line.
            file.write_all(format!("{}\n", Value::Object(line)).as_bytes())
                .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        }
        match &mut self.board {
            Some(board) => board
                .add(done.into(), &figures)
                .map_err(|error| format!("{} cannot be written: {error}", board.path().display())),
            None => Ok(()),
        }
    }
}

impl Observer for Metrics {
    fn step_ended(&mut self, report: &StepReport) {
        if self.error.is_none() {
            self.error = self.write(report).err();
        }
    }
}
