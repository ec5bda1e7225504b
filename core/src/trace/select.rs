//! Parts of a trace, and several traces as one.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::clocks::{Aligned, align};
use super::{StepTrace, Trace};
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;
use crate::problem::op::OpKind;
use crate::program::Step;

/// A kind of what ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Ops of one kind.
    Op(OpKind),
    /// Transfers, and waits for them.
    Transfers,
    /// Copies to and from the host, and waits for them.
    Copies,
    /// The optimizer's step.
    Optimizer,
    /// What ranks do together.
    Collectives,
}

impl Job {
    /// Every kind with its name.
    pub const NAMED: [(&'static str, Job); 8] = [
        ("F", Job::Op(OpKind::F)),
        ("B", Job::Op(OpKind::B)),
        ("W", Job::Op(OpKind::W)),
        ("BW", Job::Op(OpKind::BW)),
        ("transfers", Job::Transfers),
        ("copies", Job::Copies),
        ("optimizer", Job::Optimizer),
        ("collectives", Job::Collectives),
    ];

    fn of(step: &Step) -> Job {
        match step {
            Step::Compute(op) => Job::Op(op.kind()),
            Step::Optimizer => Job::Optimizer,
            Step::Transfer(_) | Step::Start(_) | Step::Wait(_) => Job::Transfers,
            Step::StartCopy(_) | Step::WaitCopy(_) => Job::Copies,
        }
    }
}

/// The steps, ranks and jobs to keep; all where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Steps by number.
    pub steps: Option<Range<u64>>,
    /// Rows of the trace: the ranks of the first copy of the pipeline, then those of the next.
    pub ranks: Option<Vec<Range<usize>>>,
    /// Kinds of jobs.
    pub jobs: Option<Vec<Job>>,
}

impl Selection {
    /// Whether all is kept.
    pub fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    /// The part of `trace`. Rows of other ranks stay, and are empty: so ranks keep their numbers.
    ///
    /// # Errors
    /// Steps or ranks that the trace does not have.
    pub fn of(&self, mut trace: Trace) -> Result<Trace, Fault> {
        if let Some(wanted) = &self.steps {
            let known = trace.steps.first().zip(trace.steps.last());
            let accepted = known.map_or_else(
                || String::from("steps of the trace, which has none"),
                |(first, last)| format!("steps of the trace, which has {} to {}", first.step, last.step),
            );
            trace.steps.retain(|step| wanted.contains(&step.step));
            if trace.steps.is_empty() {
                return Err(Fault::new("steps", format!("{}..{}", wanted.start, wanted.end), accepted));
            }
        }
        if let Some(wanted) = &self.ranks {
            let rows = trace.steps.iter().map(|step| step.rows.len()).max().unwrap_or(0);
            if let Some(beyond) = wanted.iter().find(|range| range.end > rows || range.is_empty()) {
                let accepted = format!("ranks of the trace, which has 0 to {}", rows.saturating_sub(1));
                return Err(Fault::new("ranks", format!("{}..{}", beyond.start, beyond.end), accepted));
            }
            for step in &mut trace.steps {
                let others = step.rows.iter_mut().enumerate();
                let is_other = |row: &usize| !wanted.iter().any(|range| range.contains(row));
                others.filter(|(row, _)| is_other(row)).for_each(|(_, row)| row.clear());
                let others = step.collectives.iter_mut().enumerate();
                others.filter(|(row, _)| is_other(row)).for_each(|(_, row)| row.clear());
            }
        }
        if let Some(wanted) = &self.jobs {
            for row in trace.steps.iter_mut().flat_map(|step| &mut step.rows) {
                row.retain(|span| wanted.contains(&Job::of(&span.step)));
            }
            if !wanted.contains(&Job::Collectives) {
                trace.steps.iter_mut().for_each(|step| step.collectives.clear());
            }
        }
        Ok(trace)
    }
}

/// Traces of one run as one: of other steps, of other ranks of the same steps, or both. Each comes with its name. Where ranks of
/// a step are from several of them, their clocks are put right.
///
/// # Errors
/// Traces of other plans or shapes, and ranks of a step that are in several.
pub fn merged(traces: Vec<(String, Trace)>) -> Result<(Trace, Aligned), Faults> {
    let mut faults = Vec::new();
    let mut traces = traces.into_iter();
    let Some((first_name, mut whole)) = traces.next() else {
        return Err(Fault::new("the traces", "none", "at least one trace").into());
    };
    let mut steps: BTreeMap<u64, StepTrace> = BTreeMap::new();
    let mut clock_of_row: Vec<usize> = Vec::new();
    let mut mixed = false;
    let own = core::mem::take(&mut whole.steps);
    let shape = |trace: &Trace| (trace.replicas, trace.context, trace.tensor);
    let all = core::iter::once((first_name.clone(), Trace { steps: own, ..whole.clone() })).chain(traces);
    for (clock, (name, trace)) in all.enumerate() {
        if shape(&trace) != shape(&whole) || trace.plan_digest != whole.plan_digest {
            let found = format!(
                "a run of {:?} replicas, context and tensor ranks of plan `{}`",
                shape(&trace),
                trace.plan_digest
            );
            faults.push(Fault::new(name, found, format!("a part of the same run as {first_name}")));
            continue;
        }
        whole.peak_bytes = longest(core::mem::take(&mut whole.peak_bytes), trace.peak_bytes);
        whole.hosts = longest(core::mem::take(&mut whole.hosts), trace.hosts);
        for step in trace.steps {
            for row in (0..step.rows.len()).filter(|row| !step.rows[*row].is_empty()) {
                clock_of_row.resize(clock_of_row.len().max(row + 1), 0);
                clock_of_row[row] = clock;
            }
            match steps.remove(&step.step) {
                None => {
                    steps.insert(step.step, step);
                }
                Some(known) => {
                    mixed = true;
                    let number = step.step;
                    match together(known, step) {
                        Ok(step) => {
                            steps.insert(number, step);
                        }
                        Err(row) => {
                            let found = format!("step {number} of {}", whole.row_name(row, row + 1));
                            faults.push(Fault::new(name.as_str(), found, "what no other trace has"));
                        }
                    }
                }
            }
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    whole.steps = steps.into_values().collect();
    let clocks = if mixed { align(&mut whole, &clock_of_row) } else { Aligned::default() };
    Ok((whole, clocks))
}

fn longest<T>(one: Vec<T>, other: Vec<T>) -> Vec<T> {
    if other.len() > one.len() { other } else { one }
}

/// The rows of two parts of a step; else the first row that both have.
fn together(one: StepTrace, other: StepTrace) -> Result<StepTrace, usize> {
    let rows = one.rows.len().max(other.rows.len());
    let began = one.began_ns.zip(other.began_ns).map(|(one, other)| one.min(other));
    let mut parts = [one, other];
    for step in &mut parts {
        let later: Nanos = step.began_ns.zip(began).map_or(0, |(own, began)| own - began);
        let move_on = |ns: &mut Nanos| *ns = ns.saturating_add(later);
        step.rows.iter_mut().flatten().for_each(|span| {
            move_on(&mut span.start_ns);
            move_on(&mut span.end_ns);
        });
        step.collectives.iter_mut().flatten().for_each(|collective| {
            move_on(&mut collective.start_ns);
            move_on(&mut collective.end_ns);
        });
        step.rows.resize(rows, Vec::new());
    }
    let [mut joined, other] = parts;
    joined.began_ns = began;
    joined.loss = joined.loss.or(other.loss);
    joined.tokens = joined.tokens.max(other.tokens);
    let with_any = joined.collectives.len().max(other.collectives.len());
    joined.collectives.resize(with_any, Vec::new());
    let mut of_others = other.collectives.into_iter();
    for (row, spans) in other.rows.into_iter().enumerate() {
        let collectives = of_others.next().unwrap_or_default();
        if !joined.rows[row].is_empty() && !spans.is_empty() && joined.rows[row] != spans {
            return Err(row);
        }
        if joined.rows[row].is_empty() {
            joined.rows[row] = spans;
        }
        if !collectives.is_empty() && joined.collectives[row].is_empty() {
            joined.collectives[row] = collectives;
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::trace::TraceSpan;
    use crate::trace::collectives::{Collective, CollectiveKind, CollectiveName, GroupKind};
    use alloc::sync::Arc;
    use alloc::vec;
    use std::string::ToString;

    fn row(text: &str, from: Nanos) -> Vec<TraceSpan> {
        let steps = Program::from_text_rows(&[text]).expect("steps").rows.remove(0);
        let span = |(index, step)| TraceSpan {
            step,
            start_ns: from + 10 * index as u64,
            end_ns: from + 10 * index as u64 + 7,
        };
        steps.into_iter().enumerate().map(span).collect()
    }

    fn trace(steps: &[u64]) -> Trace {
        let rows = || vec![row("0F0 (0SEND_F0) 0BW0 OPTIMIZER", 0), row("(1RECV_F0) 1F0 1BW0 OPTIMIZER", 0)];
        let name = CollectiveName {
            kind: CollectiveKind::AllReduce,
            group: Some(GroupKind::Embedding),
            label: "gradients of embedding".to_string(),
            ranks: vec![0, 1],
        };
        let name = Arc::new(name);
        let sync = |start_ns| Collective {
            name: Arc::clone(&name),
            start_ns,
            end_ns: start_ns + 3,
            bytes: None,
            exposed_ns: None,
        };
        let step = |step: &u64| StepTrace {
            step: *step,
            began_ns: Some(1000 * step),
            rows: rows(),
            collectives: vec![vec![sync(30)], vec![sync(31), sync(34)]],
            ..StepTrace::default()
        };
        Trace { replicas: 1, context: 1, tensor: 1, steps: steps.iter().map(step).collect(), ..Trace::default() }
    }

    #[test]
    fn steps_ranks_and_jobs_are_selected() {
        let whole = trace(&[3, 4, 5]);
        let steps = Selection { steps: Some(4..9), ..Selection::default() }.of(whole.clone()).expect("there");
        assert_eq!(steps.steps.iter().map(|step| step.step).collect::<Vec<_>>(), [4, 5]);
        let ranks = Selection { ranks: Some(core::iter::once(1..2).collect()), ..Selection::default() }
            .of(whole.clone())
            .expect("there");
        assert_eq!(ranks.steps[0].rows.iter().map(Vec::len).collect::<Vec<_>>(), [0, 4]);
        assert_eq!(ranks.steps[0].collectives.iter().map(Vec::len).collect::<Vec<_>>(), [0, 2]);
        let jobs = vec![Job::Op(OpKind::F), Job::Optimizer];
        let jobs = Selection { jobs: Some(jobs), ..Selection::default() }.of(whole.clone()).expect("there");
        assert_eq!(jobs.steps[0].rows.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert!(jobs.steps[0].collectives.is_empty());
        let syncs = Selection { jobs: Some(vec![Job::Collectives]), ..Selection::default() }.of(whole.clone());
        let syncs = syncs.expect("there");
        assert!(syncs.steps[0].rows.iter().all(Vec::is_empty));
        assert_eq!(syncs.steps[0].collectives, whole.steps[0].collectives);
        let told = |selection: Selection| selection.of(whole.clone()).unwrap_err().to_string();
        let told_steps = told(Selection { steps: Some(7..9), ..Selection::default() });
        assert!(told_steps.contains("found 7..9") && told_steps.contains("3 to 5"), "{told_steps}");
        assert!(
            told(Selection { ranks: Some(core::iter::once(1..3).collect()), ..Selection::default() })
                .contains("0 to 1")
        );
    }

    #[test]
    fn parts_of_a_run_are_merged() {
        let whole = trace(&[0, 1, 2]);
        let part = |steps: Range<u64>, ranks: Range<usize>| {
            let selection = Selection { steps: Some(steps), ranks: Some(vec![ranks]), jobs: None };
            selection.of(whole.clone()).expect("there")
        };
        let name = |index: usize| format!("{index}.json");
        let parts = [part(0..1, 0..2), part(1..3, 0..1), part(1..3, 1..2)];
        let named = parts.into_iter().enumerate().map(|(index, part)| (name(index), part)).collect();
        let merged_again = merged(named).expect("parts of one run").0;
        let collectives = |trace: &Trace| trace.steps.iter().map(|step| step.collectives.clone()).collect::<Vec<_>>();
        assert_eq!(collectives(&merged_again), collectives(&whole));
        let twice = vec![
            (name(0), part(0..1, 0..2)),
            (name(1), {
                let mut other = part(0..1, 1..2);
                other.steps[0].rows[1][0].start_ns = 3;
                other
            }),
        ];
        assert!(merged(twice).unwrap_err().to_string().contains("1.json: found step 0 of rank 1"));
        let other = Trace { plan_digest: "sha256:1".into(), ..trace(&[7]) };
        assert!(merged(vec![(name(0), whole.clone()), (name(1), other)]).unwrap_err().to_string().contains("1.json"));
    }
}
