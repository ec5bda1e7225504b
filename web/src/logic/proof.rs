//! The state of the exact search for the plan on screen, and its message.

use crate::text;

/// An exact search behind the plan on screen.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Proof {
    /// Its state.
    pub state: State,
    /// Steps of the solver so far.
    pub steps: u64,
    /// The cost of the best known plan, by its objective.
    pub value_ns: u64,
    /// No plan of the same problem and placement costs less.
    pub lower_ns: u64,
    /// The file of a better plan than the one on screen.
    pub better: Option<String>,
}

/// The state of an exact search.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum State {
    /// None was asked for.
    #[default]
    None,
    /// Under way.
    Running,
    /// Over: proved, stopped, or out of time.
    Over,
    /// It could not be, and why.
    Failed(String),
}

impl Proof {
    /// A proof that has just been asked for.
    pub fn begun() -> Proof {
        Proof { state: State::Running, ..Proof::default() }
    }

    /// Takes a progress report of the solver.
    pub fn update_from(&mut self, steps: u64, value_ns: u64, lower_ns: u64, better: Option<String>) {
        (self.steps, self.value_ns) = (steps, value_ns);
        self.lower_ns = self.lower_ns.max(lower_ns);
        self.better = better.or(self.better.take());
    }

    /// Whether no schedule of the placement is faster.
    pub fn is_proved(&self) -> bool {
        self.value_ns > 0 && self.lower_ns >= self.value_ns
    }

    /// The state as one word, for scripts and tests.
    pub fn mark(&self) -> &'static str {
        match self.state {
            State::None => "none",
            State::Running => "running",
            State::Failed(_) => "failed",
            State::Over if self.is_proved() => "proved",
            State::Over => "open",
        }
    }

    /// The message for a person.
    pub fn sentence(&self) -> Option<String> {
        let more = || text::percent(self.value_ns as f64 / self.lower_ns.max(1) as f64 - 1.0);
        Some(match &self.state {
            State::None => return None,
            State::Running if self.value_ns == 0 => "Loading the solver…".to_owned(),
            State::Running => {
                format!("Exact search: {} steps, at most {} better.", text::count(self.steps), more())
            }
            State::Failed(reason) => text::sentence(&format!("No proof: {reason}")),
            State::Over if self.is_proved() => format!("Proved in {} steps.", text::count(self.steps)),
            State::Over => format!("Not proved: at most {} better.", more()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_says_how_far_it_has_come() {
        let mut proof = Proof::default();
        assert_eq!((proof.sentence(), proof.mark()), (None, "none"));
        proof = Proof::begun();
        assert_eq!(proof.mark(), "running");
        proof.update_from(2048, 110, 100, None);
        assert!(proof.sentence().unwrap().contains("at most 10"), "{proof:?}");
        proof.update_from(4096, 105, 90, Some("plan".to_owned()));
        assert_eq!((proof.lower_ns, proof.better.as_deref()), (100, Some("plan")), "a bound stays proved");
        proof.state = State::Over;
        assert_eq!(proof.mark(), "open");
        proof.update_from(5000, 105, 105, None);
        assert_eq!((proof.mark(), proof.better.as_deref()), ("proved", Some("plan")));
    }
}
