//! Clocks of several hosts put right, from the messages and the collectives between them alone.
//!
//! A message is received after it is sent. So every message from clock i to clock j bounds how far j is ahead from above, and
//! every message the other way bounds it from below. Messages that were waited for are the tight ones: their bounds differ by
//! the time on the link, there and back. What lies in the middle of all bounds is the estimate (offset and drift, a line in
//! time), and half of the room between them its uncertainty: where links are as fast there as back, the estimate is exact.
//! The method is that of NTP's offset for one pair, and of convex hulls for drift (Moon, Skelly, Towsley, INFOCOM 1999).
//!
//! A collective is a message from each of its ranks to each: none has its result before the last has begun. So replicas that
//! nothing else connects are put right by their gradient sync, to within the time that it takes.
//!
//! Clocks between which no message contradicts are taken as one: nothing shows that they differ.

mod line;
#[cfg(test)]
mod tests;
mod together;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use self::line::{Bounds, Line};
use super::collectives::Collective;
use super::waits::Waits;
use super::{Trace, TraceSpan};
use crate::base::units::Nanos;
use crate::program::Step;

/// A message between two clocks: sent by one, received by the other, each on its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The clock of the sender.
    pub from: usize,
    /// The clock of the receiver.
    pub to: usize,
    /// The earliest time at which it can have been sent.
    pub sent_ns: Nanos,
    /// The latest time at which it can have been received.
    pub received_ns: Nanos,
}

/// How far a clock is ahead of the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockError {
    /// In the middle of what was recorded.
    pub offset_ns: i64,
    /// Parts in a billion by which it runs fast.
    pub drift_ppb: i64,
    /// The true offset is at most so far from this one; none where messages went one way only.
    pub uncertainty_ns: Option<Nanos>,
}

/// Estimated errors of clocks, and the way back.
#[derive(Clone, Debug, PartialEq)]
pub struct Clocks {
    origin_ns: Nanos,
    lines: Vec<Line>,
    uncertainty_ns: Vec<Option<f64>>,
}

impl Clocks {
    /// From all `messages` between `count` clocks, against the first clock. A clock without messages is taken as right.
    pub fn estimate(count: usize, messages: &[Message]) -> Clocks {
        let (least, most) = messages.iter().fold((Nanos::MAX, 0), |(least, most), message| {
            (least.min(message.sent_ns.min(message.received_ns)), most.max(message.sent_ns.max(message.received_ns)))
        });
        let origin_ns = if messages.is_empty() { 0 } else { least + (most - least) / 2 };
        let mut clocks =
            Clocks { origin_ns, lines: vec![Line::default(); count], uncertainty_ns: vec![Some(0.0); count] };
        let mut pairs: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
        for message in messages.iter().filter(|message| message.from != message.to) {
            let at = (clocks.since(message.sent_ns), clocks.since(message.received_ns));
            pairs.entry((message.from, message.to)).or_default().push(at);
        }
        let group = groups(count, &pairs);
        let mut of_groups: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
        for ((from, to), times) in pairs {
            let (from, to) = (group[from], group[to]);
            if from != to {
                of_groups.entry((from, to)).or_default().extend(times);
            }
        }
        let mut neighbours = vec![Vec::new(); count];
        for &(from, to) in of_groups.keys() {
            neighbours[to].push(from);
            if !of_groups.contains_key(&(to, from)) {
                neighbours[from].push(to);
            }
        }
        let pairs = Pairs { times: of_groups, neighbours };
        clocks.spread(&pairs, group.first().copied().unwrap_or(0));
        clocks.refine(&pairs, group.first().copied().unwrap_or(0));
        for (clock, group) in group.iter().enumerate() {
            clocks.lines[clock] = clocks.lines[*group];
            clocks.uncertainty_ns[clock] = clocks.uncertainty_ns[*group];
        }
        clocks
    }

    /// What the first clock showed when `clock` showed `ns`.
    pub fn corrected(&self, clock: usize, ns: Nanos) -> Nanos {
        let ahead = self.lines[clock].at(self.since(ns));
        // To the nearest nanosecond; without `round`, which needs an operating system.
        let whole = (ahead + if ahead < 0.0 { -0.5 } else { 0.5 }) as i64;
        ns.saturating_add_signed(whole.saturating_neg())
    }

    /// The error of `clock`.
    pub fn error(&self, clock: usize) -> ClockError {
        let Line { offset, drift } = self.lines[clock];
        let uncertainty_ns = self.uncertainty_ns[clock].map(|ns| ns.max(0.0) as Nanos);
        ClockError { offset_ns: offset as i64, drift_ppb: (drift * 1e9) as i64, uncertainty_ns }
    }

    fn since(&self, ns: Nanos) -> f64 {
        ns.wrapping_sub(self.origin_ns).cast_signed() as f64
    }

    fn back(&self, clock: usize, at: f64) -> f64 {
        at - self.lines[clock].at(at)
    }

    /// The bounds on the line of `clock` by messages from and to `others`, whose lines are known.
    fn bounds(&self, clock: usize, pairs: &Pairs, others: &[usize]) -> Bounds {
        let mut bounds = Bounds::default();
        for &other in others {
            for (sent, received) in pairs.times.get(&(other, clock)).into_iter().flatten() {
                bounds.above.push((*received, received - self.back(other, *sent)));
            }
            for (sent, received) in pairs.times.get(&(clock, other)).into_iter().flatten() {
                bounds.below.push((*sent, sent - self.back(other, *received)));
            }
        }
        bounds
    }

    /// From `root` on, over the surest pairs first.
    fn spread(&mut self, pairs: &Pairs, root: usize) {
        let count = self.lines.len();
        let mut known = vec![false; count];
        let mut next = Some(root.min(count.saturating_sub(1))).filter(|_| count > 0);
        // Fits of clocks that are not known to ones that are.
        let mut fits: Vec<Fit> = Vec::new();
        while let Some(other) = next {
            known[other] = true;
            fits.retain(|fit| fit.clock != other);
            for &clock in pairs.neighbours[other].iter().filter(|clock| !known[**clock]) {
                let (line, room) = self.bounds(clock, pairs, &[other]).tightest().fit();
                // One-way pairs come last.
                let rank = room.map_or(f64::INFINITY, |room| room.max(0.0));
                let uncertainty = room.zip(self.uncertainty_ns[other]).map(|(room, before)| room.max(0.0) + before);
                fits.push(Fit { clock, other, rank, line, uncertainty });
            }
            let place = |fit: &Fit| (fit.clock, fit.other);
            let surest = fits.iter().min_by(|a, b| a.rank.total_cmp(&b.rank).then_with(|| place(a).cmp(&place(b))));
            next = surest.map(|fit| fit.clock);
            if let Some(fit) = surest {
                (self.lines[fit.clock], self.uncertainty_ns[fit.clock]) = (fit.line, fit.uncertainty);
            }
        }
    }

    /// Fits every clock to all its neighbours at once, where there are more pairs than a tree has; and takes a clock as right
    /// that no message contradicts.
    fn refine(&mut self, pairs: &Pairs, root: usize) {
        let neighbours = &pairs.neighbours;
        let links = neighbours.iter().map(Vec::len).sum::<usize>() / 2;
        let own: Vec<usize> =
            (0..self.lines.len()).filter(|clock| *clock != root && !neighbours[*clock].is_empty()).collect();
        for clock in own.iter().copied() {
            if self.lines[clock].offset.abs() <= self.uncertainty_ns[clock].unwrap_or(0.0) {
                let bounds = self.bounds(clock, pairs, &neighbours[clock]);
                if bounds.allow(Line::default()) {
                    self.lines[clock] = Line::default();
                }
            }
        }
        if links <= own.len() {
            return;
        }
        for _ in 0..ROUNDS {
            for clock in own.iter().copied() {
                let bounds = self.bounds(clock, pairs, &neighbours[clock]).tightest();
                let (line, room) = bounds.fit();
                if room.is_some() {
                    self.lines[clock] = line;
                }
            }
        }
    }
}

/// Messages by clock from and to: when they were sent and received.
struct Pairs {
    times: BTreeMap<(usize, usize), Vec<(f64, f64)>>,
    /// By clock: those that it has messages from or to, each once.
    neighbours: Vec<Vec<usize>>,
}

/// The line of a clock that is not known yet, by messages with one that is.
struct Fit {
    clock: usize,
    other: usize,
    /// Half of the room between the bounds.
    rank: f64,
    line: Line,
    uncertainty: Option<f64>,
}

/// How often every clock is fitted to its neighbours.
const ROUNDS: usize = 4;

/// By clock the first of those that are one with it, as far as messages tell.
fn groups(count: usize, pairs: &BTreeMap<(usize, usize), Vec<(f64, f64)>>) -> Vec<usize> {
    let mut group: Vec<usize> = (0..count).collect();
    let early = |from: usize, to: usize| {
        pairs.get(&(from, to)).is_some_and(|times| times.iter().any(|(sent, received)| received < sent))
    };
    for &(from, to) in pairs.keys() {
        if !early(from, to) && !early(to, from) {
            let (one, other) = (group[from].min(group[to]), group[from].max(group[to]));
            group.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
    }
    group
}

/// What putting the clocks of a trace right did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aligned {
    /// By clock; the first is what the others are compared with. Empty where all agree.
    pub clocks: Vec<ClockError>,
    /// Waits of an op for another rank, over all steps.
    pub waits: usize,
    /// Of those, how many were broken: the op started before what it waits for had ended.
    pub broken: usize,
    /// By how much at most.
    pub worst_ns: Nanos,
    /// Collectives that ended on a rank before another of theirs had begun them.
    pub early_collectives: usize,
    /// By how much at most.
    pub worst_collective_ns: Nanos,
    /// Ops that still had to be moved behind what they wait for.
    pub moved: usize,
    /// By how much at most.
    pub moved_ns: Nanos,
}

/// Clocks that are told.
const MOST_CLOCKS: usize = 16;

impl Aligned {
    /// What was put right, in lines, with times as `duration` writes them; none where the clocks agreed.
    pub fn told(&self, duration: &dyn Fn(Nanos) -> String) -> Vec<String> {
        let mut lines = Vec::new();
        if self.broken > 0 {
            let (broken, waits, worst) = (self.broken, self.waits, duration(self.worst_ns));
            lines.push(format!(
                "{broken} of {waits} ops started before their input was made, by up to {worst}; put right"
            ));
        }
        if self.early_collectives > 0 {
            let (early, worst) = (self.early_collectives, duration(self.worst_collective_ns));
            lines.push(format!(
                "{early} collectives ended on a rank before another had begun them, by up to {worst}; put right"
            ));
        }
        let is_off = |clock: &ClockError| clock.offset_ns != 0 || clock.drift_ppb != 0;
        let off: Vec<_> = self.clocks.iter().enumerate().filter(|(_, clock)| is_off(clock)).collect();
        for (clock, error) in off.iter().take(MOST_CLOCKS) {
            let sign = if error.offset_ns < 0 { "behind" } else { "ahead" };
            let within = match error.uncertainty_ns {
                Some(ns) => format!("± {}", duration(ns)),
                None => String::from("at least: messages went one way only"),
            };
            lines.push(format!(
                "clock {clock}: {} {sign}, {within}; drift {:+.1} ppm",
                duration(error.offset_ns.unsigned_abs()),
                error.drift_ppb as f64 / 1e3
            ));
        }
        if off.len() > MOST_CLOCKS {
            lines.push(format!("and {} more clocks", off.len() - MOST_CLOCKS));
        }
        if self.moved > 0 {
            let most = duration(self.moved_ns);
            lines.push(format!("{} ops were moved behind their inputs, by up to {most}", self.moved));
        }
        lines
    }
}

/// Waits of an op for another rank, how many are broken, and by how much at most.
pub fn broken_waits(trace: &Trace) -> (usize, usize, Nanos) {
    trace.steps.iter().fold((0, 0, 0), |(mut all, mut broken, mut worst), step| {
        let waits = Waits::of(step, trace.ranks_of(step.rows.len()));
        for (input, op) in waits.edges() {
            let early = waits.at(input).end_ns.saturating_sub(waits.at(op).start_ns);
            (all, broken, worst) = (all + 1, broken + usize::from(early > 0), worst.max(early));
        }
        (all, broken, worst)
    })
}

/// Puts the clocks of `trace` right, where row `r` of every step was recorded by clock `clock_of_row[r]`, and moves ops that
/// still start too early. Nothing changes where no wait is broken, and no collective.
///
/// Where every step says when it began, offset and drift are estimated over all of them; else an offset for each step.
pub fn align(trace: &mut Trace, clock_of_row: &[usize]) -> Aligned {
    let (waits, broken, worst_ns) = broken_waits(trace);
    let mut aligned = Aligned { waits, broken, worst_ns, ..Aligned::default() };
    for (early, worst_ns) in trace.steps.iter().map(together::broken) {
        aligned.early_collectives += early;
        aligned.worst_collective_ns = aligned.worst_collective_ns.max(worst_ns);
    }
    if broken == 0 && aligned.early_collectives == 0 {
        return aligned;
    }
    let count = clock_of_row.iter().max().map_or(0, |most| most + 1);
    if count > 1 {
        let whole = trace.steps.iter().all(|step| step.began_ns.is_some());
        if whole {
            let messages: Vec<Message> =
                (0..trace.steps.len()).flat_map(|step| messages_of(trace, step, clock_of_row)).collect();
            let clocks = Clocks::estimate(count, &messages);
            (0..trace.steps.len()).for_each(|step| correct(trace, step, clock_of_row, &clocks));
            aligned.clocks = (0..count).map(|clock| clocks.error(clock)).collect();
        } else {
            for step in 0..trace.steps.len() {
                let clocks = Clocks::estimate(count, &messages_of(trace, step, clock_of_row));
                correct(trace, step, clock_of_row, &clocks);
                let errors = (0..count).map(|clock| clocks.error(clock));
                if aligned.clocks.is_empty() {
                    aligned.clocks = errors.collect();
                } else {
                    let larger = |(known, other): (&mut ClockError, ClockError)| {
                        if other.offset_ns.abs() > known.offset_ns.abs() {
                            *known = other;
                        }
                    };
                    aligned.clocks.iter_mut().zip(errors).for_each(larger);
                }
            }
        }
    }
    (aligned.moved, aligned.moved_ns) = settle(trace);
    aligned
}

fn messages_of(trace: &Trace, step: usize, clock_of_row: &[usize]) -> Vec<Message> {
    let step = &trace.steps[step];
    let began = step.began_ns.unwrap_or(0);
    let waits = Waits::of(step, trace.ranks_of(step.rows.len()));
    let clock = |row: usize| clock_of_row.get(row).copied().unwrap_or(0);
    let message = |(input, op): ((usize, usize), (usize, usize))| Message {
        from: clock(input.0),
        to: clock(op.0),
        sent_ns: began.saturating_add(waits.at(input).end_ns),
        received_ns: began
            .saturating_add(waits.received[op.0][op.1].map_or(waits.at(op).start_ns, |received| received[1])),
    };
    let messages = waits.edges().map(message).filter(|message| message.from != message.to);
    messages.chain(together::messages(step, clock)).collect()
}

fn correct(trace: &mut Trace, step: usize, clock_of_row: &[usize], clocks: &Clocks) {
    let step = &mut trace.steps[step];
    // Room for what lies before the step's start on a clock that is behind.
    let began = step.began_ns.unwrap_or(1 << 60);
    for (row, spans) in step.rows.iter_mut().enumerate() {
        let clock = clock_of_row.get(row).copied().unwrap_or(0);
        for span in spans {
            for ns in [&mut span.start_ns, &mut span.end_ns] {
                *ns = clocks.corrected(clock, began.saturating_add(*ns));
            }
        }
        for collective in step.collectives.get_mut(row).into_iter().flatten() {
            for ns in [&mut collective.start_ns, &mut collective.end_ns] {
                *ns = clocks.corrected(clock, began.saturating_add(*ns));
            }
        }
    }
    let computes = |span: &&TraceSpan| matches!(span.step, Step::Compute(_));
    let first = step.rows.iter().flatten().filter(computes).map(|span| span.start_ns).min();
    let first = first.or_else(|| step.rows.iter().flatten().map(|span| span.start_ns).min()).unwrap_or(began);
    for span in step.rows.iter_mut().flatten() {
        (span.start_ns, span.end_ns) = (span.start_ns.saturating_sub(first), span.end_ns.saturating_sub(first));
    }
    for collective in step.collectives.iter_mut().flatten() {
        collective.start_ns = collective.start_ns.saturating_sub(first);
        collective.end_ns = collective.end_ns.saturating_sub(first);
    }
    step.began_ns = step.began_ns.map(|_| first);
}

/// Moves every span behind what is before it on its rank, and every op behind what it waits for; later, never earlier. How many
/// ops were moved, and by how much at most.
fn settle(trace: &mut Trace) -> (usize, Nanos) {
    let (mut moved, mut most) = (0, 0);
    let (replicas, context, tensor) = (trace.replicas, trace.context, trace.tensor);
    for step in &mut trace.steps {
        let ranks = (step.rows.len() / (replicas.max(1) * context.max(1) * tensor.max(1))).max(1);
        let waits = Waits::of(step, ranks);
        let mut ends: Vec<Vec<Nanos>> =
            waits.ops.iter().map(|row| row.iter().map(|span| span.end_ns).collect()).collect();
        let mut at = vec![0usize; step.rows.len()];
        let mut before = vec![0; step.rows.len()];
        let began: Vec<Vec<Nanos>> = match step.collectives.is_empty() {
            true => Vec::new(),
            false => step.rows.iter().map(|row| row.iter().map(|span| span.start_ns).collect()).collect(),
        };
        let push = |span: &mut TraceSpan, before: &mut Nanos, from: Nanos| {
            let late = from.max(*before).saturating_sub(span.start_ns);
            span.start_ns += late;
            span.end_ns = span.end_ns.max(span.start_ns);
            *before = span.end_ns;
            late
        };
        for (row, place) in waits.in_order() {
            let from = waits.inputs[row][place].map_or(0, |(row, place)| ends[row][place]);
            while let Some(span) = step.rows[row].get_mut(at[row]) {
                at[row] += 1;
                let computes = matches!(span.step, Step::Compute(_));
                let late = push(span, &mut before[row], if computes { from } else { 0 });
                if computes {
                    ends[row][place] = span.end_ns;
                    moved += usize::from(late > 0);
                    most = most.max(late);
                    break;
                }
            }
        }
        for (row, spans) in step.rows.iter_mut().enumerate() {
            for span in &mut spans[at[row]..] {
                push(span, &mut before[row], 0);
            }
        }
        for ((collectives, began), spans) in step.collectives.iter_mut().zip(&began).zip(&step.rows) {
            follow(collectives, began, spans);
        }
    }
    (moved, most)
}

/// Moves collectives behind the start of the span in which they began, which began at `began` and has been moved.
fn follow(collectives: &mut [Collective], began: &[Nanos], spans: &[TraceSpan]) {
    for collective in collectives {
        let within = began.partition_point(|began| *began <= collective.start_ns).checked_sub(1);
        let from = within.map_or(0, |within| spans[within].start_ns);
        let late = from.saturating_sub(collective.start_ns);
        collective.start_ns += late;
        collective.end_ns = collective.end_ns.max(collective.start_ns);
        let whole = collective.end_ns - collective.start_ns;
        collective.exposed_ns = collective.exposed_ns.map(|exposed| exposed.min(whole));
    }
}
