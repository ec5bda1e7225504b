//! What the worker does about a question: small pieces, so that a newer question can come between any two.

use std::collections::VecDeque;

use pipeplan_core::planner::{self, Answer, BEST, PlanError};
use pipeplan_core::schedule::{self, Published};
use pipeplan_core::simulate::simulate;
use pipeplan_core::spec::Spec;
use pipeplan_core::trace::Trace;

use crate::message::{Ask, FieldFault, Measured, Question, Reply, Said, TraceSummary};
use crate::{text, wire};

/// The worker's memory between questions.
#[derive(Default)]
pub struct Work {
    questions: VecDeque<Question>,
    comparison: Option<Comparison>,
    trace: Option<Trace>,
}

/// A comparison under way, or finished and kept: another schedule of the same spec does not start it anew.
struct Comparison {
    id: u32,
    spec: Spec,
    next: usize,
    best: Option<Answer>,
}

impl Work {
    /// Takes a question. Those that it makes pointless are forgotten.
    pub fn take(&mut self, question: Question) {
        self.questions.retain(|older| !question.ask.supersedes(&older.ask));
        self.questions.push_back(question);
    }

    /// Does the next piece of work. Empty when there is none.
    pub fn step(&mut self) -> Vec<Reply> {
        if let Some(Question { id, ask }) = self.questions.pop_front() {
            let said = self.answer(id, ask);
            return said.into_iter().map(|said| Reply { id, said }).collect();
        }
        self.compare()
    }

    /// Whether [`Work::step`] has anything to do.
    pub fn is_idle(&self) -> bool {
        let compared =
            self.comparison.as_ref().is_none_or(|comparison| comparison.next > schedule::published().len());
        self.questions.is_empty() && compared
    }

    fn answer(&mut self, id: u32, ask: Ask) -> Vec<Said> {
        match ask {
            Ask::Plan { spec } => match read_spec(&spec) {
                Ok(spec) => self.plan(id, spec),
                Err(faults) => vec![Said::Refused(faults), Said::Done],
            },
            Ask::Export { spec } => vec![export(&spec)],
            Ask::OpenPlan { text } => self.open_plan(id, &text),
            Ask::OpenTrace { text } => self.open_trace(&text),
            Ask::TraceStep { index } => self.trace_step(index).into_iter().collect(),
        }
    }

    fn plan(&mut self, id: u32, spec: Spec) -> Vec<Said> {
        let mut said = Vec::new();
        match solve(&spec, &spec.schedule) {
            Ok(answer) => said.push(Said::Planned(Box::new(wire::picture(
                &answer.name,
                &answer.case.problem,
                &answer.timeline,
            )))),
            Err(error) => {
                let reason = text::humanised(&error.to_string());
                said.push(Said::NoPlan { schedule: spec.schedule.clone(), reason });
            }
        }
        self.start_comparison(id, spec, &mut said);
        said
    }

    fn start_comparison(&mut self, id: u32, spec: Spec, said: &mut Vec<Said>) {
        match &mut self.comparison {
            Some(running) if same_work(&running.spec, &spec) => {
                running.id = id;
                if running.next > schedule::published().len() {
                    said.push(Said::Done);
                }
            }
            _ => {
                said.push(Said::Comparing { rows: schedule::published().len() as u32 + 1 });
                self.comparison = Some(Comparison { id, spec, next: 0, best: None });
            }
        }
    }

    /// The next row of the comparison; after the last schedule, the best of all.
    fn compare(&mut self) -> Vec<Reply> {
        let Some(running) = &mut self.comparison else { return Vec::new() };
        let published = schedule::published();
        let id = running.id;
        let position = running.next;
        if position > published.len() {
            return Vec::new();
        }
        running.next += 1;
        let Some(published) = published.get(position) else {
            let row = match running.best.take() {
                Some(answer) => {
                    crate::message::Row { reason: Some(wire::title(&answer.name)), ..wire::row(BEST, &answer) }
                }
                None => wire::absent_row(BEST, Some("no published schedule is valid for this problem".to_owned())),
            };
            return vec![Reply { id, said: Said::Compared(row) }, Reply { id, said: Said::Done }];
        };
        vec![Reply { id, said: Said::Compared(running.row(published)) }]
    }

    fn open_plan(&mut self, id: u32, text: &str) -> Vec<Said> {
        let plan = match read_plan(text) {
            Ok(plan) => plan,
            Err(error) => return vec![unreadable("plan", error)],
        };
        let timeline = match simulate(&plan.problem, &plan.schedule) {
            Ok(timeline) => timeline,
            Err(deadlock) => return vec![unreadable("plan", deadlock.to_string())],
        };
        let picture = wire::picture(&plan.schedule_name, &plan.problem, &timeline);
        let mut said = vec![Said::Opened { spec: plan.spec.to_json(), picture: Box::new(picture) }];
        self.start_comparison(id, plan.spec, &mut said);
        said
    }

    fn open_trace(&mut self, text: &str) -> Vec<Said> {
        match Trace::from_json(text) {
            Ok(trace) => {
                let summary = TraceSummary {
                    backend: trace.backend.clone(),
                    transport: trace.transport.clone(),
                    plan_digest: trace.plan_digest.clone(),
                    steps: trace.steps.iter().map(|step| (step.step, step.loss)).collect(),
                    peak_bytes: trace.peak_bytes.clone(),
                };
                let last = trace.steps.len().saturating_sub(1) as u32;
                self.trace = Some(trace);
                let mut said = vec![Said::TraceOpened(summary)];
                said.extend(self.trace_step(last));
                said
            }
            Err(faults) => vec![Said::Unreadable { what: "trace".to_owned(), faults: wire::faults(&faults) }],
        }
    }

    fn trace_step(&self, index: u32) -> Option<Said> {
        let step = self.trace.as_ref()?.steps.get(index as usize)?;
        let timeline = step.timeline();
        Some(Said::TraceShown(Box::new(Measured {
            index,
            rows: timeline.rows.iter().map(|row| wire::pack(row)).collect(),
            makespan_ns: timeline.makespan_ns(),
            bubble_ratio: timeline.bubble_ratio(pipeplan_core::problem::Objective::Makespan),
            tokens: step.tokens,
            duration_ns: step.duration_ns(),
        })))
    }
}

impl Comparison {
    fn row(&mut self, published: &Published) -> crate::message::Row {
        match planner::answer(&self.spec, published) {
            Ok(answer) => {
                let row = wire::row(published.name, &answer);
                if self.best.as_ref().is_none_or(|best| answer.cost_ns() < best.cost_ns()) {
                    self.best = Some(answer);
                }
                row
            }
            Err(absent) => wire::absent_row(published.name, Some(absent.reason)),
        }
    }
}

/// The plan file of a spec with the schedule that it names, byte for byte what the command line writes.
///
/// # Errors
/// What is wrong with the spec, or why there is no plan, in words.
pub fn plan_file(spec: &str, schedule: Option<&str>) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    let name = schedule.unwrap_or(&spec.schedule);
    let plan = planner::plan(&spec, name).map_err(|error| error.to_string())?;
    write_plan(&plan)
}

fn write_plan(_plan: &pipeplan_core::plan::Plan) -> Result<String, String> {
    Err("plan files cannot be written yet".to_owned())
}

fn read_plan(_text: &str) -> Result<pipeplan_core::plan::Plan, String> {
    Err("plan files cannot be read yet".to_owned())
}

/// `pipeplan compare --json` of a spec.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn comparison(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    serde_json::to_string(&planner::compare(&spec)).map_err(|error| error.to_string())
}

/// The link of a spec: what stands after `#` in the page's address.
///
/// # Errors
/// What is wrong with the spec, in words.
pub fn link(spec: &str) -> Result<String, String> {
    let spec = Spec::read(spec).map_err(|error| error.to_string())?;
    Ok(pipeplan_core::link::write(&spec))
}

fn export(spec: &str) -> Said {
    match plan_file(spec, None) {
        Ok(text) => Said::Exported { text },
        Err(reason) => Said::NoPlan { schedule: String::new(), reason: text::humanised(&reason) },
    }
}

fn solve(spec: &Spec, name: &str) -> Result<Answer, PlanError> {
    if name == BEST {
        return planner::best(spec);
    }
    let published = schedule::find(name).ok_or_else(|| PlanError::UnknownSchedule { name: name.to_owned() })?;
    planner::answer(spec, published)
        .map_err(|absent| PlanError::Absent { schedule: wire::title(name), reason: absent.reason })
}

fn read_spec(text: &str) -> Result<Spec, Vec<FieldFault>> {
    Spec::read(text).map_err(|error| match error {
        pipeplan_core::spec::SpecError::Faults(faults) => wire::faults(&faults),
        other => vec![whole_fault(other.to_string())],
    })
}

/// Whether two specs differ at most in name and schedule.
fn same_work(one: &Spec, other: &Spec) -> bool {
    one.work == other.work
}

fn unreadable(what: &str, reason: String) -> Said {
    Said::Unreadable { what: what.to_owned(), faults: vec![whole_fault(reason)] }
}

/// A fault that no field is to blame for: its sentence alone.
fn whole_fault(sentence: String) -> FieldFault {
    FieldFault { field: String::new(), found: sentence, accepted: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"{ "ranks": 4, "microbatches": 8, "chunks": 1, "placement": "linear",
        "stages": { "forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10, "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 } }"#;

    fn plan(id: u32, spec: &str) -> Question {
        Question { id, ask: Ask::Plan { spec: spec.to_owned() } }
    }

    fn finish(work: &mut Work) -> Vec<Reply> {
        let mut replies = Vec::new();
        while !work.is_idle() {
            replies.extend(work.step());
        }
        replies
    }

    #[test]
    fn a_plan_is_shown_first_and_then_compared_with_every_schedule() {
        let mut work = Work::default();
        work.take(plan(7, SPEC));
        let replies = finish(&mut work);
        assert!(matches!(replies[0].said, Said::Planned(_)), "{:?}", replies[0]);
        let rows = replies.iter().filter(|reply| matches!(reply.said, Said::Compared(_))).count();
        assert_eq!(rows, schedule::published().len() + 1);
        assert!(replies.iter().all(|reply| reply.id == 7));
        assert_eq!(replies.last().map(|reply| &reply.said), Some(&Said::Done));
    }

    #[test]
    fn another_schedule_of_the_same_spec_is_not_compared_again() {
        let mut work = Work::default();
        let spec = |schedule: &str| format!(r#"{{ "schedule": "{schedule}", "problem": {SPEC} }}"#);
        work.take(plan(1, &spec("1f1b")));
        finish(&mut work);
        work.take(plan(2, &spec("gpipe")));
        let replies = finish(&mut work);
        assert!(matches!(&replies[0].said, Said::Planned(picture) if picture.schedule == "gpipe"));
        assert_eq!(replies[1].said, Said::Done);
        assert_eq!(replies.len(), 2);
    }

    #[test]
    fn a_newer_plan_makes_the_older_one_pointless() {
        let mut work = Work::default();
        work.take(plan(1, SPEC));
        work.take(plan(2, "{}"));
        let replies = finish(&mut work);
        assert!(replies.iter().all(|reply| reply.id == 2));
        assert!(matches!(&replies[0].said, Said::Refused(faults) if !faults.is_empty()));
    }

    #[test]
    fn a_newer_spec_stops_the_comparison_of_the_older_one() {
        let mut work = Work::default();
        work.take(plan(1, SPEC));
        work.step();
        work.step();
        work.take(plan(2, &SPEC.replace("\"microbatches\": 8", "\"microbatches\": 9")));
        let replies = finish(&mut work);
        assert!(replies.iter().all(|reply| reply.id == 2), "{replies:?}");
    }

    #[test]
    fn a_file_that_is_none_is_refused_in_words() {
        let mut work = Work::default();
        for ask in [Ask::OpenPlan { text: "{}".to_owned() }, Ask::OpenTrace { text: "nonsense".to_owned() }] {
            work.take(Question { id: 1, ask });
            let replies = finish(&mut work);
            assert!(matches!(&replies[0].said, Said::Unreadable { faults, .. } if !faults.is_empty()));
        }
        work.take(Question { id: 2, ask: Ask::TraceStep { index: 9 } });
        assert!(finish(&mut work).is_empty(), "there is no trace to show a step of");
    }
}
