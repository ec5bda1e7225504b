//! Ending a run early, after a whole step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recording::{Recorded, Recording};

/// Raise it to end a run after the current step. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    raised: Arc<AtomicBool>,
}

impl StopFlag {
    /// What is raised, for code that knows no more than that.
    pub fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.raised)
    }

    /// Asks the run to end.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has asked.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }
}

/// One answer a step for all ranks: without it, a flag raised between two ranks' looks would leave one in a
/// step that the other never starts.
#[derive(Debug)]
pub struct Verdict {
    flag: StopFlag,
    steps: u32,
    /// Raised to end the run before a step that is a multiple of the number.
    pausing: (StopFlag, u32),
    asked: Mutex<Asked>,
    recording: Recording,
}

/// What ranks have asked about.
#[derive(Debug, Default)]
struct Asked {
    /// The first step that nobody has asked about.
    next: u32,
    /// Whether the run has ended before it, and whether to go on later.
    ended: bool,
    paused: bool,
    /// What becomes of the step before it.
    recorded: Recorded,
}

impl Verdict {
    /// Ends a run after `steps` steps or when `flag` is raised.
    pub fn new(flag: StopFlag, steps: u32) -> Verdict {
        Verdict {
            flag,
            steps,
            pausing: (StopFlag::default(), 1),
            asked: Mutex::default(),
            recording: Recording::default(),
        }
    }

    /// And before the next multiple of `every` steps after `flag` is raised.
    pub fn pausing(self, flag: StopFlag, every: u32) -> Verdict {
        Verdict { pausing: (flag, every.max(1)), ..self }
    }

    /// And says which steps are recorded.
    pub(super) fn recording(self, recording: Recording) -> Verdict {
        Verdict { recording, ..self }
    }

    /// What becomes of the step that ranks have last asked about: none of them asks about the next one before all have ended it.
    pub fn recorded(&self) -> Recorded {
        self.asked().recorded
    }

    /// Whether the run has ended only because it was asked to pause.
    pub fn has_paused(&self) -> bool {
        self.asked().paused
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `step` is run. Ranks ask about steps in order, all from 0.
    pub fn runs(&self, step: u32) -> bool {
        let mut asked = self.asked();
        if step >= asked.next && !asked.ended {
            let ends = step >= self.steps || self.flag.is_raised();
            let paused = !ends && self.pausing.0.is_raised() && step.is_multiple_of(self.pausing.1);
            let recorded = self.recording.decide(step, self.recording.is_asked());
            *asked = Asked { next: step + 1, ended: ends || paused, paused, recorded };
        }
        !(asked.ended && step + 1 >= asked.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_answer_of_the_first() {
        let flag = StopFlag::default();
        let verdict = Verdict::new(flag.clone(), 5);
        assert!(verdict.runs(0) && verdict.runs(1));
        flag.raise();
        // Step 1 was promised before the flag was raised.
        assert!(verdict.runs(1));
        assert!(!verdict.runs(2) && !verdict.runs(2) && !verdict.has_paused());
    }

    #[test]
    fn a_run_that_pauses_ends_at_a_multiple() {
        let flag = StopFlag::default();
        let verdict = Verdict::new(StopFlag::default(), 20).pausing(flag.clone(), 4);
        assert!((0..6).all(|step| verdict.runs(step)));
        flag.raise();
        assert!(verdict.runs(6) && verdict.runs(7));
        assert!(!verdict.has_paused() && !verdict.runs(8) && !verdict.runs(8) && verdict.has_paused());
    }

    #[test]
    fn a_run_ends_after_its_steps() {
        let verdict = Verdict::new(StopFlag::default(), 2);
        assert_eq!((0..3).map(|step| verdict.runs(step)).collect::<Vec<_>>(), [true, true, false]);
    }
}
