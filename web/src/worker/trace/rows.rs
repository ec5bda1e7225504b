//! A step as it is drawn: its ops, and what ranks did beside them, in columns.

use std::collections::BTreeMap;

use pipeplan_core::problem::Objective;
use pipeplan_core::problem::copies::{CopyWay, Moved};
use pipeplan_core::program::{Payload, Step, Way};
use pipeplan_core::trace::collectives::Purpose;
use pipeplan_core::trace::{StepTrace, Trace, TraceSpan};

use crate::protocol::{Measured, TraceResponse, WireMark, spans};
use crate::scene::MarkClass;

/// From the first op of a step to the last.
pub(super) fn makespan_ns(step: &StepTrace) -> u64 {
    let ops = || step.rows.iter().flatten().filter(|span| matches!(span.step, Step::Compute(_)));
    let first = ops().map(|span| span.start_ns).min().unwrap_or(0);
    ops().map(|span| span.end_ns).max().unwrap_or(0).saturating_sub(first)
}

/// The step at a position: its rows, in messages that the page reads quickly, and then what is said of it.
pub(super) fn of_step(trace: &Trace, index: u32) -> Vec<TraceResponse> {
    let Some(step) = trace.steps.get(index as usize) else { return Vec::new() };
    let timeline = step.timeline();
    let packed = timeline.rows.iter().map(|row| spans::pack(row)).collect();
    let mut replies: Vec<TraceResponse> = spans::grouped(packed).into_iter().map(TraceResponse::Rows).collect();
    let mut names = Names::default();
    let first = step.rows.iter().flatten().filter(|span| matches!(span.step, Step::Compute(_)));
    let first_ns = first.map(|span| span.start_ns).min().unwrap_or(0);
    let marks: Vec<Vec<WireMark>> = (0..step.rows.len()).map(|row| marks(step, row, first_ns, &mut names)).collect();
    if marks.iter().any(|row| !row.is_empty()) {
        replies.extend(spans::grouped(marks).into_iter().map(TraceResponse::Marks));
    }
    replies.push(TraceResponse::Shown(Box::new(Measured {
        index,
        makespan_ns: timeline.makespan_ns(),
        bubble_ratio: timeline.bubble_ratio(Objective::Makespan),
        tokens: step.tokens,
        duration_ns: step.duration_ns(),
        mark_names: names.list,
    })));
    replies
}

/// The names of marks, each once.
#[derive(Default)]
struct Names {
    list: Vec<(u8, String)>,
    known: BTreeMap<(u8, String), u32>,
}

impl Names {
    fn of(&mut self, class: MarkClass, name: String) -> u32 {
        let entry = (class as u8, name);
        if let Some(number) = self.known.get(&entry) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(entry.clone());
        self.known.insert(entry, number);
        number
    }
}

/// What a rank did beside its ops, in the order of starts. Times count from the first op of the step; what was before it is
/// left out.
fn marks(step: &StepTrace, row: usize, first_ns: u64, names: &mut Names) -> Vec<WireMark> {
    let spans = step.rows.get(row).map_or(&[][..], Vec::as_slice);
    let mut found: Vec<(u64, u64, u32)> = spans.iter().filter_map(|span| mark(span, names)).collect();
    found.extend(step.collectives_of(row).iter().map(|collective| {
        let name = &collective.name;
        (collective.start_ns, collective.end_ns, names.of(class_of(name.purpose()), name.to_string()))
    }));
    found.sort_unstable();
    let mut before = 0;
    let wire = |(start_ns, end_ns, name): (u64, u64, u32)| {
        let (start_ns, end_ns) = (start_ns.saturating_sub(first_ns), end_ns.saturating_sub(first_ns));
        let gap_ns = start_ns - before;
        before = start_ns;
        WireMark { name, gap_ns, duration_ns: end_ns - start_ns }
    };
    found.into_iter().map(wire).collect()
}

const fn class_of(purpose: Purpose) -> MarkClass {
    match purpose {
        Purpose::GradientSync => MarkClass::GradientSync,
        Purpose::ParameterGather => MarkClass::ParameterGather,
        Purpose::Tensor => MarkClass::Tensor,
        Purpose::Context => MarkClass::Context,
        Purpose::Expert => MarkClass::Expert,
        Purpose::Other => MarkClass::Other,
    }
}

/// A copy without its microbatch, which would make a name of each.
fn copied(Moved { way, stage, .. }: Moved) -> String {
    let way = if way == CopyWay::Offload { "to" } else { "from" };
    format!("{way} the host, stage {stage}")
}

fn mark(span: &TraceSpan, names: &mut Names) -> Option<(u64, u64, u32)> {
    let (class, name) = match &span.step {
        Step::Compute(_) => return None,
        Step::Optimizer => (MarkClass::Optimizer, "optimizer".to_owned()),
        Step::StartCopy(moved) => (MarkClass::Transfer, format!("start of copy, {}", copied(*moved))),
        Step::WaitCopy(moved) => (MarkClass::Transfer, format!("wait for copy, {}", copied(*moved))),
        Step::Transfer(messages) | Step::Start(messages) | Step::Wait(messages) => {
            let what = match &span.step {
                Step::Wait(_) => "wait for ",
                Step::Start(_) => "start of ",
                _ => "",
            };
            let message = messages.first()?;
            let way = if message.way == Way::Send { "send" } else { "receive" };
            let payload = if message.payload == Payload::Gradient { "gradient" } else { "activation" };
            // Without the microbatch, which would make a name of each.
            (MarkClass::Transfer, format!("{what}{way} {payload}, stage {}", message.stage))
        }
    };
    Some((span.start_ns, span.end_ns, names.of(class, name)))
}
