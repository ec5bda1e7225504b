//! Which steps of a run are in its trace: those of a window, the last ones, or those between two requests that come while it runs.
//!
//! All ranks record the same steps. Ranks that are threads ask one place; ranks that are processes tell each other with the vote
//! before each step whether somebody has asked one of them, so a request to any of them reaches all, and costs no message.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::RunOptions;
use super::workload::Workload;

/// What becomes of what was measured in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Recorded {
    /// It is in no trace.
    #[default]
    No,
    /// It is in the trace if it is among the last steps.
    Last,
    /// It is in the trace.
    Kept,
}

/// Ask it to begin to record, or to end that, from the next step on. Clones share one switch.
#[derive(Clone, Debug, Default)]
pub struct RecordingSwitch {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// When somebody last asked, until it is noticed.
    asked: Option<Instant>,
    /// What was asked for; nothing before the first request.
    on: Option<bool>,
    /// Requests until then are those that another rank has noticed already.
    echoes: Option<Instant>,
}

/// Launchers hand a signal on to all ranks, which do not get it at the same moment: what comes to a rank so soon after the others
/// have noticed it is the same request.
const ECHO: Duration = Duration::from_secs(1);

impl RecordingSwitch {
    /// Asks.
    pub fn ask(&self) {
        self.ask_at(Instant::now());
    }

    fn ask_at(&self, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.echoes.is_none_or(|until| now > until) {
            state.asked = Some(now);
        }
    }

    /// Whether somebody has asked and it was not noticed yet.
    pub fn is_asked(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.is_some()
    }

    /// Whether anybody has asked so far.
    pub(super) fn was_asked(&self) -> bool {
        self.on().is_some()
    }

    /// Forgets who has asked, as whoever hands it on does. Gives whether somebody had.
    pub fn take(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.take().is_some()
    }

    /// Takes note that one of the ranks was asked. `is_on` says whether it records without any request.
    fn toggle(&self, is_on: bool, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.on = Some(!state.on.unwrap_or(is_on));
        if state.asked.take().is_none() {
            state.echoes = Some(now + ECHO);
        }
    }

    fn on(&self) -> Option<bool> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).on
    }
}

/// Spans of ops that are recorded by request at most, some 40 bytes each: a request that nobody ends takes no more.
const MOST_SPANS: usize = 10_000_000;

/// The most steps of a run of `workload` that are recorded by request.
pub fn most_recorded(workload: &Workload) -> u32 {
    let spans: usize = (0..workload.world()).map(|rank| workload.row(rank).len()).sum();
    (MOST_SPANS / spans.max(1)).max(1) as u32
}

/// Decides by step.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    window: Option<Range<u32>>,
    last: bool,
    switch: RecordingSwitch,
    /// The most steps by request, and those that there are.
    most: u32,
    by_request: Arc<AtomicU32>,
}

impl Recording {
    pub(super) fn of(options: &RunOptions, workload: &Workload) -> Recording {
        Recording {
            window: options.trace_window.clone(),
            last: options.traced_steps > 0,
            switch: options.recording.clone(),
            most: most_recorded(workload),
            by_request: Arc::default(),
        }
    }

    /// Whether this process was asked to begin or to end.
    pub(super) fn is_asked(&self) -> bool {
        self.switch.is_asked()
    }

    /// What becomes of `step`, before which one of the ranks was `asked` or none.
    pub(super) fn decide(&self, step: u32, asked: bool) -> Recorded {
        let in_window = self.window.as_ref().is_some_and(|window| window.contains(&step));
        if asked {
            self.switch.toggle(in_window, Instant::now());
        }
        match self.switch.on() {
            // All ranks count alike.
            Some(true) if self.by_request.fetch_add(1, Ordering::Relaxed) < self.most => Recorded::Kept,
            Some(true) => {
                self.by_request.store(self.most, Ordering::Relaxed);
                Recorded::No
            }
            Some(false) => Recorded::No,
            None if in_window => Recorded::Kept,
            None if self.window.is_none() && self.last => Recorded::Last,
            None => Recorded::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Recorded::{Kept, Last, No};

    fn decided(recording: &Recording, asked_before: &[u32]) -> Vec<Recorded> {
        (0..7).map(|step| recording.decide(step, asked_before.contains(&step))).collect()
    }

    #[test]
    fn requests_begin_and_end_what_is_recorded() {
        let last = Recording { last: true, most: 100, ..Recording::default() };
        assert_eq!(decided(&last, &[]), [Last; 7]);
        assert_eq!(decided(&last, &[2, 4]), [Last, Last, Kept, Kept, No, No, No]);
        let window = || Recording { window: Some(3..5), last: true, most: 100, ..Recording::default() };
        assert_eq!(decided(&window(), &[]), [No, No, No, Kept, Kept, No, No]);
        assert_eq!(decided(&window(), &[1, 2]), [No, Kept, No, No, No, No, No]);
        assert_eq!(decided(&window(), &[4]), [No, No, No, Kept, No, No, No]);
    }

    /// A request that nobody ends, and those after it, record no more than fits.
    #[test]
    fn requests_record_no_more_than_there_is_room_for() {
        let two = || Recording { most: 2, ..Recording::default() };
        assert_eq!(decided(&two(), &[1]), [No, Kept, Kept, No, No, No, No]);
        assert_eq!(decided(&two(), &[1, 2, 4]), [No, Kept, No, No, Kept, No, No]);
    }

    /// A launcher hands one signal on to all ranks: the one that gets it after the vote does not toggle again.
    #[test]
    fn a_request_that_comes_late_to_a_rank_is_no_second_one() {
        let (one, other) = (RecordingSwitch::default(), RecordingSwitch::default());
        let now = Instant::now();
        one.ask_at(now);
        assert!(one.is_asked() && !other.is_asked());
        // The vote tells both.
        [&one, &other].into_iter().for_each(|switch| switch.toggle(false, now));
        other.ask_at(now + ECHO / 2);
        assert!(!one.is_asked() && !other.is_asked());
        // What comes later to one of them alone is a new request; the one that was asked may be asked again at once.
        other.ask_at(now + 2 * ECHO);
        one.ask_at(now + ECHO / 2);
        assert!(one.is_asked() && other.is_asked());
        assert_eq!((one.on(), other.on()), (Some(true), Some(true)));
    }
}
