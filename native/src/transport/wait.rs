//! How long a wait has lasted, in time in which the process ran.

use std::time::{Duration, Instant};

/// Longest part of a wait that is counted at once.
const SLICE: Duration = Duration::from_millis(100);

/// A wait that ends at the latest when its patience is spent. It is counted in short slices, each at most at its own length:
/// a process that was stopped in one, as by Ctrl-Z, has waited no longer than that, whatever the clock says.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: Duration,
    waited: Duration,
    slice: (Instant, Duration),
}

impl Wait {
    /// One that begins now.
    pub(crate) fn new(patience: Duration) -> Wait {
        Wait { patience, waited: Duration::ZERO, slice: (Instant::now(), SLICE) }
    }

    /// Ends a slice and begins the next: how long to wait at most until this is called again.
    ///
    /// # Errors
    /// How long the wait has lasted, once all patience is spent.
    pub(crate) fn next(&mut self) -> Result<Duration, Duration> {
        let (began, length) = self.slice;
        self.waited += began.elapsed().min(length);
        let left = self.patience.saturating_sub(self.waited).min(SLICE);
        if left.is_zero() {
            return Err(self.waited);
        }
        self.slice = (Instant::now(), left);
        Ok(left)
    }

    /// How long it has lasted up to the slice that is under way.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_slices_counts_as_one_slice_at_most() {
        let mut wait = Wait::new(Duration::from_millis(500));
        wait.next().expect("it has begun");
        // As long as a process that is stopped meanwhile.
        std::thread::sleep(Duration::from_millis(700));
        wait.next().expect("a slice of 100 ms has passed");
        assert!(wait.waited() <= Duration::from_millis(250), "{:?}", wait.waited());
    }

    #[test]
    fn patience_ends() {
        let mut wait = Wait::new(Duration::from_millis(30));
        let started = Instant::now();
        while let Ok(left) = wait.next() {
            std::thread::sleep(left);
        }
        assert!(started.elapsed() >= Duration::from_millis(30));
    }
}
