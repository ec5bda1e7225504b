//! What a run is told of while it goes on: ranks and links that are slower than planned.

use std::collections::{BTreeSet, VecDeque};

use pipeplan::runner::{Observer, Restart, StepReport, Workload};
use pipeplan_core::problem::Problem;
use pipeplan_core::trace::analysis::{Late, Slow, Watch};
use pipeplan_core::trace::{StepTrace, Trace};
use serde_json::{Value, json};

use crate::cmd::output;

/// The steps that have to be slow, where nobody says another number.
pub const USUAL_STEPS: u32 = 8;

/// A rank or a link that was slower than planned.
pub struct Straggler {
    /// The step after which it was noticed, from 0.
    step: u32,
    pub late: Late,
}

fn times(permille: u64) -> String {
    format!("{:.2}", permille as f64 / 1000.0)
}

impl Straggler {
    /// For a person, with the evidence.
    pub fn told(&self) -> String {
        let Late { slow, permille, least_permille, others_permille: (least, most), steps, .. } = &self.late;
        let (place, others) = match slow {
            Slow::Link(..) => (format!("link {}", slow.place()), "other links"),
            _ => (slow.place(), "others"),
        };
        format!(
            "straggler: {place} takes {} times what the plan says, in each of the last {steps} steps (at least {}); the \
             {others} {} to {}",
            times(*permille),
            times(*least_permille),
            times(*least),
            times(*most)
        )
    }

    pub fn to_value(&self) -> Value {
        let Late { slow, permille, least_permille, others_permille: (least, most), steps, jitter_permille } =
            &self.late;
        json!({
            "what": slow.name(), "place": slow.place(), "after_step": self.step, "steps": steps,
            "permille": permille, "least_permille": least_permille, "others_permille": [least, most],
            "jitter_permille": jitter_permille,
        })
    }
}

/// The steps of a run of one plan, for whoever wants to know of stragglers.
pub struct Watched<'w> {
    watch: Watch<'w>,
    window: usize,
    /// The first step fills caches.
    has_begun: bool,
    has_ended: bool,
    /// The steps that are watched.
    last: VecDeque<StepTrace>,
    /// Who has been named.
    named: BTreeSet<String>,
}

/// A trace of `workload` without steps.
pub fn shape(workload: &Workload) -> Trace {
    Trace {
        plan_digest: workload.plan_digest.clone(),
        backend: "cpu".to_string(),
        transport: "threads".to_string(),
        replicas: workload.replicas(),
        context: workload.parts(),
        tensor: workload.members(),
        ..Trace::default()
    }
}

impl<'w> Watched<'w> {
    /// The run of `problem`, in copies as `shape` says.
    pub fn new(problem: &'w Problem, shape: &'w Trace, window: u32) -> Watched<'w> {
        let window = window as usize;
        let watch = Watch::new(problem, shape, window);
        Watched { watch, window, has_begun: false, has_ended: false, last: VecDeque::new(), named: BTreeSet::new() }
    }

    /// Takes the next step, and gives those that are slow and were not before.
    pub fn add(&mut self, step: &StepTrace) -> Vec<Straggler> {
        if !std::mem::replace(&mut self.has_begun, true) || self.has_ended {
            return Vec::new();
        }
        self.last.push_back(step.clone());
        if self.last.len() > self.window {
            self.last.pop_front();
        }
        let late = self.watch.add(step).into_iter().filter(|late| self.named.insert(late.slow.place()));
        late.map(|late| Straggler { step: step.step as u32, late }).collect()
    }

    /// Watches no longer: the ranks are others now.
    fn end(&mut self) {
        self.has_ended = true;
    }

    /// The steps that are watched, oldest first.
    pub fn steps(&self) -> impl Iterator<Item = &StepTrace> {
        self.last.iter()
    }
}

/// Tells of stragglers, and lets another one hear of all else.
pub struct Telling<'w> {
    pub watched: Watched<'w>,
    pub found: Vec<Straggler>,
    pub is_quiet: bool,
    pub other: &'w mut dyn Observer,
}

impl Observer for Telling<'_> {
    fn step_ended(&mut self, step: &StepReport) {
        self.other.step_ended(step);
    }

    fn measured(&mut self, step: &StepTrace, clocks: &[usize]) {
        self.other.measured(step, clocks);
        let found = self.watched.add(step);
        if !self.is_quiet {
            found.iter().for_each(|straggler| output::tell(&straggler.told()));
        }
        self.found.extend(found);
    }

    fn recorded(&mut self, trace: &Trace) {
        self.other.recorded(trace);
    }

    fn restarted(&mut self, restart: &Restart) {
        if restart.replicas.is_some() {
            self.watched.end();
        }
        self.other.restarted(restart);
    }
}
