//! The fastest choice of a mixture for each of several stages with which a rank holds no more than it may.
//!
//! What a rank holds at a moment is a sum over its stages, so each moment is a knapsack of which every stage brings one
//! item (multiple-choice: Sinha and Zoltners, Operations Research 27, 1979), and all have to be packed alike. Choices are
//! made stage by stage, best first. What is still open costs at least what the fullest moment asks for where shares of
//! mixtures are allowed: bytes are then saved where they cost the least time first, along the lower hull of each stage's
//! mixtures. So combinations come out in the order of their time, and few others are looked at.

use alloc::collections::{BTreeSet, BinaryHeap};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::base::units::{Bytes, Nanos};
use crate::problem::Schedule;
use crate::problem::op::OpKind;
use crate::problem::{Problem, StageCost};

/// Moments whose knapsacks bound the time of what is open: those that ask for most when nothing is computed again.
const MOST_BOUNDING: usize = 32;

/// Ops that start together while some microbatches are between their F and their B, and between B and W, at each stage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    /// The ops' stages and kinds: one, or the two of a pair.
    starts: Vec<(usize, OpKind)>,
    /// By stage: microbatches whose F has ended and whose B has not, and those whose B has ended and whose W has not.
    held: Vec<[u32; 2]>,
}

impl Moment {
    /// What the stage at `stage` holds, with `cost`.
    fn bytes(&self, stage: usize, cost: &StageCost) -> i128 {
        let [after_f, after_b] = self.held[stage].map(i128::from);
        let (f, b) = (i128::from(cost.forward_bytes), i128::from(cost.backward_input_bytes));
        let starts = self.starts.iter().filter(|(of, _)| *of == stage);
        after_f * f + after_b * (f + b) + starts.map(|(_, kind)| i128::from(cost.takes(*kind))).sum::<i128>()
    }

    /// Whether nothing is held here that is not held at `other`, whatever the costs.
    fn is_within(&self, other: &Moment) -> bool {
        let within = |(a, b): (&[u32; 2], &[u32; 2])| a[0] <= b[0] && a[1] <= b[1];
        self.starts == other.starts && self.held.iter().zip(&other.held).all(within)
    }
}

/// The moments of a rank at which it may hold the most.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    statics: Bytes,
    list: Vec<Moment>,
}

impl Moments {
    /// Those of `rank`, which holds `stages`.
    pub(super) fn of(problem: &Problem, schedule: &Schedule, rank: usize, stages: &[usize]) -> Moments {
        let pairs = schedule.pairs_of(rank);
        let mut held = vec![[0u32; 2]; stages.len()];
        let mut seen = BTreeSet::new();
        let mut starts: Vec<(usize, OpKind)> = Vec::new();
        for (at, op) in schedule.rows[rank].iter().enumerate() {
            let Some(stage) = stages.iter().position(|stage| *stage == op.stage()) else { continue };
            starts.push((stage, op.kind()));
            if pairs.binary_search(&(at as u32)).is_ok() {
                // The next one starts with it.
                continue;
            }
            starts.sort_unstable();
            seen.insert(Moment { starts: starts.clone(), held: held.clone() });
            for (stage, kind) in starts.drain(..) {
                let [after_f, after_b] = &mut held[stage];
                match kind {
                    OpKind::F => *after_f += 1,
                    OpKind::B => {
                        *after_f = after_f.saturating_sub(1);
                        *after_b += 1;
                    }
                    OpKind::W => *after_b = after_b.saturating_sub(1),
                    OpKind::BW => *after_f = after_f.saturating_sub(1),
                }
            }
        }
        // The fullest first: what is within another one comes after it.
        let mut all: Vec<Moment> = seen.into_iter().collect();
        all.sort_by_cached_key(|moment| {
            Reverse(moment.held.iter().flatten().map(|count| u64::from(*count)).sum::<u64>())
        });
        let mut list: Vec<Moment> = Vec::new();
        for moment in all {
            if !list.iter().any(|other| moment.is_within(other)) {
                list.push(moment);
            }
        }
        Moments { statics: problem.static_bytes(rank), list }
    }

    /// The most that the rank holds at once, with `costs` of its stages.
    pub(super) fn peak(&self, costs: &[StageCost]) -> Bytes {
        let bytes = |moment: &Moment| -> i128 {
            costs.iter().enumerate().map(|(stage, cost)| moment.bytes(stage, cost)).sum()
        };
        let most = self.list.iter().map(bytes).max().unwrap_or(0).max(0);
        self.statics.saturating_add(Bytes::try_from(most).unwrap_or(Bytes::MAX))
    }
}

/// A mixture of a stage, as the search sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Time of all ops of the stage.
    pub time: Nanos,
    /// What it holds when.
    pub cost: StageCost,
}

/// Combinations of one item for each stage that fit all moments, in the order of their time.
pub(super) struct Least<'a> {
    /// By stage, from the fastest on.
    items: &'a [Vec<Item>],
    moments: Vec<(&'a Moment, i128)>,
    /// Of moments, by their position, those whose knapsacks bound.
    bounding: Vec<(usize, Knapsack)>,
    open: BinaryHeap<Reverse<Node>>,
    /// Whether any combination will do.
    dives: bool,
    /// Nodes that were taken from `open`.
    taken: usize,
}

/// Items that were chosen for the first stages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    /// Goes before the bound: open stages where any combination will do, else 0.
    turn: usize,
    /// No combination that begins so takes less.
    bound: Nanos,
    /// Stages that are open: of equals the one with fewer comes first.
    left: usize,
    chosen: Vec<usize>,
    time: Nanos,
}

impl<'a> Least<'a> {
    /// Of `items` by stage, each from the fastest on, at `moments` of ranks that may hold `limit` bytes each.
    pub(super) fn new(items: &'a [Vec<Item>], moments: &'a [Moments], limit: Bytes) -> Least<'a> {
        let room = |of: &Moments| i128::from(limit) - i128::from(of.statics);
        let moments: Vec<(&Moment, i128)> =
            moments.iter().flat_map(|of| of.list.iter().map(move |moment| (moment, room(of)))).collect();
        let missing = |(moment, room): &(&Moment, i128)| {
            let fastest = items.iter().enumerate();
            let held: i128 =
                fastest.filter_map(|(stage, items)| Some(moment.bytes(stage, &items.first()?.cost))).sum();
            held - room
        };
        let mut hardest: Vec<usize> = (0..moments.len()).collect();
        hardest.sort_by_cached_key(|at| Reverse(missing(&moments[*at])));
        // A single stage is looked through in the order of time: nothing is open that could be bounded.
        hardest.truncate(if items.len() > 1 { MOST_BOUNDING } else { 0 });
        let bounding = hardest.into_iter().map(|at| (at, Knapsack::new(items, moments[at].0))).collect();
        let mut least = Least { items, moments, bounding, open: BinaryHeap::new(), dives: false, taken: 0 };
        least.push(Vec::new(), 0);
        least
    }

    /// Combinations begun so far: the work that was done.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// No combination that was not found yet takes less.
    pub(super) fn floor(&self) -> Nanos {
        self.open.iter().map(|Reverse(node)| node.bound).min().unwrap_or(0)
    }

    /// From here on combinations do not come by time: what is nearest to its end goes on first.
    pub(super) fn dive(&mut self) {
        self.dives = true;
        let open = core::mem::take(&mut self.open).into_iter();
        self.open = open.map(|Reverse(node)| Reverse(Node { turn: node.left, ..node })).collect();
    }

    /// The next combination; `None` where there is no other, or after `most` nodes.
    pub(super) fn next(&mut self, most: usize) -> Option<Vec<usize>> {
        while self.taken < most {
            let Reverse(Node { left, chosen, time, .. }) = self.open.pop()?;
            self.taken += 1;
            let stage = chosen.len();
            match left {
                0 => {
                    // The slower ones of the last stage were left for later.
                    if let Some((last, before)) = chosen.split_last() {
                        let time = time.saturating_sub(self.items[stage - 1][*last].time);
                        self.finish(before, time, last + 1);
                    }
                    return Some(chosen);
                }
                1 => self.finish(&chosen, time, 0),
                _ => {
                    for item in 0..self.items[stage].len() {
                        let mut next = chosen.clone();
                        next.push(item);
                        self.push(next, time.saturating_add(self.items[stage][item].time));
                    }
                }
            }
        }
        None
    }

    /// Adds `chosen`, unless nothing that begins so fits.
    fn push(&mut self, chosen: Vec<usize>, time: Nanos) {
        let mut bound = time;
        for (at, knapsack) in &self.bounding {
            let (moment, room) = &self.moments[*at];
            let held = |(stage, item): (usize, &usize)| moment.bytes(stage, &self.items[stage][*item].cost);
            let room = room - chosen.iter().enumerate().map(held).sum::<i128>();
            let Some(rest) = knapsack.least(chosen.len(), room) else { return };
            bound = bound.max(time.saturating_add(rest));
        }
        let left = self.items.len() - chosen.len();
        let turn = if self.dives { left } else { 0 };
        self.open.push(Reverse(Node { turn, bound, left, chosen, time }));
    }

    /// Adds `before` with the first item of the last stage, from the one at `from` on, with which all fits.
    fn finish(&mut self, before: &[usize], time: Nanos, from: usize) {
        let last = before.len();
        let held = |moment: &Moment| -> i128 {
            before.iter().enumerate().map(|(stage, item)| moment.bytes(stage, &self.items[stage][*item].cost)).sum()
        };
        let rooms: Vec<(&Moment, i128)> =
            self.moments.iter().map(|(moment, room)| (*moment, room - held(moment))).collect();
        let fits = |item: &Item| rooms.iter().all(|(moment, room)| moment.bytes(last, &item.cost) <= *room);
        let Some(item) = (from..self.items[last].len()).find(|item| fits(&self.items[last][*item])) else { return };
        let time = time.saturating_add(self.items[last][item].time);
        let mut chosen = before.to_vec();
        chosen.push(item);
        self.open.push(Reverse(Node { turn: 0, bound: time, left: 0, chosen, time }));
    }
}

/// The least time in which the last stages hold so much at one moment, where shares of items are allowed.
struct Knapsack {
    /// For the stages from each one on.
    from: Vec<Relaxed>,
}

#[derive(Clone, Default)]
struct Relaxed {
    /// Time and bytes of the fastest items.
    time: Nanos,
    bytes: i128,
    /// Bytes saved and time taken up to each step along the hulls, those that cost the least for a byte first.
    steps: Vec<(i128, Nanos)>,
}

impl Knapsack {
    fn new(items: &[Vec<Item>], moment: &Moment) -> Knapsack {
        let hulls: Vec<Vec<(Nanos, i128)>> = items
            .iter()
            .enumerate()
            .map(|(stage, items)| hull(items.iter().map(|item| (item.time, moment.bytes(stage, &item.cost)))))
            .collect();
        let relaxed = |from: usize| {
            let (mut relaxed, mut steps) = (Relaxed::default(), Vec::new());
            for hull in &hulls[from..] {
                let Some((time, bytes)) = hull.first() else { continue };
                relaxed.time = relaxed.time.saturating_add(*time);
                relaxed.bytes += bytes;
                steps.extend(hull.windows(2).map(|pair| (pair[0].1 - pair[1].1, pair[1].0 - pair[0].0)));
            }
            // By time for a byte; steps of one hull stay in order, since they cost more and more.
            steps.sort_by(|a, b| (i128::from(a.1) * b.0).cmp(&(i128::from(b.1) * a.0)));
            let mut sum = (0, 0);
            for (saved, time) in steps {
                sum = (sum.0 + saved, time.saturating_add(sum.1));
                relaxed.steps.push(sum);
            }
            relaxed
        };
        Knapsack { from: (0..=items.len()).map(relaxed).collect() }
    }

    /// Of the stages from `from` on, where they may hold `room` bytes; `None` where they cannot.
    fn least(&self, from: usize, room: i128) -> Option<Nanos> {
        let Relaxed { time, bytes, steps } = &self.from[from];
        let missing = bytes - room;
        if missing <= 0 {
            return Some(*time);
        }
        let step = steps.partition_point(|(saved, _)| *saved < missing);
        let (saved, slower) = *steps.get(step)?;
        let before = step.checked_sub(1).map_or((0, 0), |before| steps[before]);
        // A part of the last step, rounded up: times are whole, so no whole choice takes less.
        let (of, part) = (saved - before.0, missing - before.0);
        let share = (i128::from(slower - before.1) * part + of - 1) / of;
        Some(time.saturating_add(before.1).saturating_add(Nanos::try_from(share).unwrap_or(Nanos::MAX)))
    }
}

/// The lower hull of points of time and bytes: from the fastest to the one that holds least, each step costing more time
/// for a byte than the one before.
fn hull(points: impl Iterator<Item = (Nanos, i128)>) -> Vec<(Nanos, i128)> {
    let mut points: Vec<(Nanos, i128)> = points.collect();
    points.sort_unstable();
    let mut hull: Vec<(Nanos, i128)> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point.1 >= last.1) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let [to_b, to_point] = [b, point].map(|to| (i128::from(to.0 - a.0), a.1 - to.1));
            // Where `b` saves no more for its time than the way past it, it is above the hull.
            if to_b.1 * to_point.0 > to_point.1 * to_b.0 {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Statement;
    use crate::problem::placement::Placement;
    use crate::schedule;
    use crate::simulate::timeline::schedule_peak_bytes;
    use proptest::prelude::*;
    use serde_json::json;

    fn item(time: Nanos, [after_f, after_b]: [i64; 2], workspace: [Bytes; 3]) -> Item {
        let cost = StageCost {
            forward_bytes: after_f,
            backward_input_bytes: after_b - after_f,
            backward_weight_bytes: -after_b,
            backward_input_workspace_bytes: workspace[0],
            backward_weight_workspace_bytes: workspace[1],
            backward_workspace_bytes: Some(workspace[2]),
            ..StageCost::default()
        };
        Item { time, cost }
    }

    fn one() -> impl Strategy<Value = Item> {
        let numbers = (0u64..40, 0i64..30, 0i64..30, prop::array::uniform3(0u64..8));
        numbers.prop_map(|(time, f, b, workspace)| item(time, [f, b], workspace))
    }

    fn items() -> impl Strategy<Value = Vec<Item>> {
        prop::collection::vec(one(), 1..6).prop_map(|mut items| {
            items.sort_by_key(|item| item.time);
            items
        })
    }

    /// The first rank's row of a schedule of two, and that rank's stages.
    fn case(which: usize, costs: &[StageCost]) -> (Problem, Schedule, Vec<usize>) {
        const CASES: [(&str, usize); 6] = [
            ("1f1b", 1),
            ("zb-h1", 1),
            ("interleaved-1f1b", 2),
            ("interleaved-zb", 3),
            ("v-half", 2),
            ("dualpipe-v", 2),
        ];
        let (name, chunks) = CASES[which % CASES.len()];
        let published = schedule::find(name).unwrap();
        let placement = (published.shape)(chunks).0;
        let stages: Vec<_> = (0..2 * chunks)
            .map(|stage| {
                let cost = &costs[stage % costs.len()];
                json!({
                    "forward_ns": 2, "backward_input_ns": 2, "backward_weight_ns": 1,
                    "forward_bytes": cost.forward_bytes, "backward_input_bytes": cost.backward_input_bytes,
                    "backward_weight_bytes": cost.backward_weight_bytes,
                })
            })
            .collect();
        let statement = json!({
            "ranks": 2, "chunks": chunks, "microbatches": 6, "placement": placement.name(), "stages": stages,
            "static_bytes": 5,
        });
        let problem =
            Statement::read(&statement).unwrap_or_else(|faults| panic!("{faults}")).problem(placement).unwrap();
        let schedule = published.build(&problem).unwrap_or_else(|absent| panic!("{name}: {}", absent.reason));
        let stages = problem.stages_of(0).to_vec();
        (problem, schedule, stages)
    }

    proptest! {
        /// A rank holds the most at one of its moments, by a walk of its row.
        #[test]
        fn moments_have_the_peak(which in 0usize..6, costs in prop::collection::vec(one(), 1..6)) {
            let costs: Vec<StageCost> = costs.into_iter().map(|item| item.cost).collect();
            let (problem, schedule, stages) = case(which, &costs);
            let moments = Moments::of(&problem, &schedule, 0, &stages);
            let of_stages: Vec<StageCost> = stages.iter().map(|stage| *problem.cost(*stage)).collect();
            prop_assert_eq!(moments.peak(&of_stages), schedule_peak_bytes(&problem, &schedule, 0));
        }

        /// Combinations come in the order of their time, and they are all of those that fit.
        #[test]
        fn combinations_are_those_that_fit_by_time(
            which in 0usize..6, lists in prop::collection::vec(items(), 3), limit in 0u64..300,
        ) {
            let (problem, schedule, stages) = case(which, &[lists[0][0].cost]);
            let moments = [Moments::of(&problem, &schedule, 0, &stages)];
            let lists = &lists[..stages.len()];
            let mut all = vec![Vec::new()];
            for list in lists {
                let longer = |before: &Vec<usize>| {
                    let before = before.clone();
                    (0..list.len()).map(move |item| before.iter().copied().chain([item]).collect::<Vec<_>>())
                };
                all = all.iter().flat_map(longer).collect();
            }
            let time = |at: &[usize]| at.iter().zip(lists).map(|(at, list)| list[*at].time).sum::<Nanos>();
            let fits = |at: &Vec<usize>| {
                let costs: Vec<StageCost> = at.iter().zip(lists).map(|(at, list)| list[*at].cost).collect();
                moments[0].peak(&costs) <= limit
            };
            let mut expected: Vec<_> = all.into_iter().filter(fits).map(|at| (time(&at), at)).collect();
            let mut least = Least::new(lists, &moments, limit);
            let mut found = Vec::new();
            while let Some(at) = least.next(usize::MAX) {
                found.push((time(&at), at));
            }
            prop_assert!(found.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{:?}", found);
            found.sort();
            expected.sort();
            prop_assert_eq!(found, expected);
        }
    }

    /// Eight stages with ten mixtures each are 10⁸ combinations, most of which are never begun. All are alike, which is
    /// hardest: where the order of time asks for too many, what comes next is still near the least.
    #[test]
    fn few_combinations_are_begun() {
        let stages: Vec<_> =
            (0..16).map(|_| json!({ "forward_ns": 2, "backward_input_ns": 2, "backward_weight_ns": 1 })).collect();
        let statement =
            json!({ "ranks": 2, "chunks": 8, "microbatches": 16, "placement": "looped", "stages": stages });
        let problem = Statement::read(&statement)
            .unwrap_or_else(|faults| panic!("{faults}"))
            .problem(Placement::Looped)
            .unwrap();
        let schedule = schedule::find("interleaved-1f1b").unwrap().build(&problem).unwrap();
        let moments = [Moments::of(&problem, &schedule, 0, problem.stages_of(0))];
        // Two layers, of which each may compute again nothing, or parts of itself: what is saved grows less than the time.
        let list: Vec<Item> =
            (0..10u64).map(|at| item(97 * at + at * at, [1000 - 101 * at as i64, 300], [50, 0, 50])).collect();
        let lists = vec![list; 8];
        let most = moments[0].peak(&[lists[0][0].cost; 8]);
        let fewest = moments[0].peak(&[lists[0][9].cost; 8]);
        const MOST: usize = 20_000;
        let (mut last, mut dived) = (None, 0);
        for share in 1..20 {
            let limit = fewest + (most - fewest) * share / 20;
            let mut least = Least::new(&lists, &moments, limit);
            let time = |at: Vec<usize>| at.iter().zip(&lists).map(|(at, list)| list[*at].time).sum::<Nanos>();
            let found = match least.next(MOST) {
                Some(found) => time(found),
                None => {
                    let floor = least.floor();
                    least.dive();
                    let found = least.next(2 * MOST).map(time).unwrap_or_else(|| panic!("{share}: none"));
                    assert!(found >= floor && found - floor < found / 20, "{share}: {found}, and not below {floor}");
                    dived += 1;
                    found
                }
            };
            assert!(last.is_none_or(|last| found <= last + last / 20), "{share}: more room takes longer");
            last = Some(found);
        }
        assert!(dived < 10, "{dived}");
    }
}
