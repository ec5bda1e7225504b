//! Who hears of a search: the caller's function, and Ctrl-C.

use std::time::{Duration, Instant};

use pipeplan_core::search::{Flow, Progress};
use pyo3::prelude::*;

/// Time between two words. A search that reports hundreds of thousands of times a second runs without Python in between.
const APART: Duration = Duration::from_millis(50);

/// Tells a function of the caller's how a search goes, until that returns `False` or raises, or Ctrl-C is pressed.
pub struct Watch {
    tell: Option<Py<PyAny>>,
    raised: Option<PyErr>,
    stopped: bool,
    next: Instant,
}

impl Watch {
    /// Hears nothing yet. `tell` takes work done, best cost and bound.
    pub fn new(tell: Option<Py<PyAny>>) -> Watch {
        Watch { tell, raised: None, stopped: false, next: Instant::now() }
    }

    /// Where a search of the planner stands: whether it goes on.
    pub fn see(&mut self, progress: Progress) -> Flow {
        self.tell(progress.ops, progress.cost_ns, progress.bound_ns)
    }

    /// As [`Watch::see`], of any search.
    pub fn tell(&mut self, done: u64, cost_ns: u64, bound_ns: u64) -> Flow {
        let now = Instant::now();
        if self.stopped || now < self.next {
            return self.flow();
        }
        self.next = now + APART;
        let heard = Python::attach(|py| {
            py.check_signals()?;
            let Some(tell) = &self.tell else { return Ok(false) };
            // Before there is a schedule the largest value stands for its cost.
            let cost_ns = (cost_ns < u64::MAX).then_some(cost_ns);
            let answer = tell.bind(py).call1((done, cost_ns, bound_ns))?;
            Ok(answer.extract::<bool>().is_ok_and(|goes_on| !goes_on))
        });
        match heard {
            Ok(stops) => self.stopped = stops,
            Err(raised) => (self.stopped, self.raised) = (true, Some(raised)),
        }
        self.flow()
    }

    /// Whether the search goes on.
    pub fn flow(&self) -> Flow {
        if self.stopped { Flow::Stop } else { Flow::Continue }
    }

    /// What the caller's function raised, or Ctrl-C, where there was such.
    pub fn end(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}
