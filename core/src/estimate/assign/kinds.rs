//! The best partition of layers of several kinds within a memory limit, where a rank holds several stages.
//!
//! What a stage needs follows from the kinds of its layers in order, so from where it starts and how many it has; and
//! of the start only what comes behind matters. So starts fall into few *classes*: two for windows in every other
//! layer, and for `k` dense layers before others `k + 1`. A start's class and a stage's length give the class of the
//! next start.
//!
//! Ranks are taken one after the other. Of each, all that it may hold is listed by the classes of the cuts between
//! its stages and those of others and by its number of layers, each with the evenest way; then the lists are joined
//! by dynamic programming over the layers so far and the classes of those cuts of which only one side has been
//! assigned. That is done for one time of the slowest stage; the least such time is found by bisection.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};

use super::{Group, Needs, Without};
use crate::base::units::{Bytes, Nanos};

/// Steps that are taken at most: about a second.
pub(crate) const MOST_STEPS: u64 = 4_000_000;

/// A class of starts: the first layer of the model that all that comes behind such a start repeats.
type Class = u32;

/// A stage, the class at which it starts, and its layers.
type Piece = (usize, Class, u32);

/// The sum of the squares of times, and the layers of each stage.
type Even = (u128, Vec<u32>);

/// By the classes of a rank's cuts and its layers.
type Shapes = BTreeMap<(Vec<Class>, u32), Even>;

/// What a rank may hold: the classes of the cuts that it opens, its layers, and how.
type Opening = (Vec<Class>, u32, Even);

/// By the classes of open cuts, in their order, and the layers so far: the squares, and a number.
type States = BTreeMap<(Vec<Class>, u32), (u128, usize)>;

/// The layers of a rank's stages, and the number of the state before.
type Taken = (Vec<u32>, usize);

/// The classes at which a stage may start, each with the most layers that it may then have, and the most of all.
struct Starts {
    starts: Vec<(Class, u32)>,
    cap: u32,
}

struct Dealer<'a> {
    /// By layer: the class of a start there.
    classes: Vec<Class>,
    groups: Vec<Group>,
    stages: usize,
    limit: Bytes,
    /// What stages need: by which they are, where they start, and their layers.
    known: Vec<Vec<Option<Needs>>>,
    /// What the stages in question need, each with its place in its group: kept for its room.
    needed: Vec<(usize, Needs)>,
    needs: &'a mut dyn FnMut(usize, Range<u32>) -> Needs,
    time: &'a dyn Fn(usize, Range<u32>) -> Nanos,
    steps: u64,
}

/// As [`best`](super::best), for layers of the kinds `kinds`. `needs` and `time` say what a stage with these layers
/// of the model needs, which is never less with one more; no stage but the first and the last is unlike the others.
/// No partition has a slowest stage that is faster than `least`.
pub(crate) fn best(
    kinds: &[usize],
    groups: &[Group],
    limit: Bytes,
    needs: &mut dyn FnMut(usize, Range<u32>) -> Needs,
    time: &dyn Fn(usize, Range<u32>) -> Nanos,
    least: Nanos,
) -> Result<Vec<u32>, Without> {
    let stages: usize = groups.iter().map(|group| group.stages.len()).sum();
    let groups = groups
        .iter()
        .map(|group| Group { stages: group.stages.clone(), moments: greatest(&group.moments) })
        .collect();
    let classes = classes(kinds);
    let known = vec![Vec::new(); 4 * classes.len()];
    let mut dealer = Dealer { classes, groups, stages, limit, known, needed: Vec::new(), needs, time, steps: 0 };
    let times = dealer.times(least);
    let (mut from, mut end, mut stride) = (0, 0, 1);
    let mut found = None;
    while found.is_none() && end < times.len() {
        found = dealer.within(times[end])?;
        if found.is_none() {
            from = end + 1;
            end = if from < times.len() { (end + stride).min(times.len() - 1) } else { times.len() };
            stride *= 2;
        }
    }
    while from < end && found.is_some() {
        let middle = (from + end) / 2;
        match dealer.within(times[middle])? {
            Some(better) => (end, found) = (middle, Some(better)),
            None => from = middle + 1,
        }
    }
    found.ok_or(Without::NothingFits)
}

/// By layer the first one from which on the model goes on as it does from there, up to its end.
fn classes(kinds: &[usize]) -> Vec<Class> {
    let repeats = |at: usize, first: usize| kinds[at..] == kinds[first..first + kinds.len() - at];
    let class = |at: usize| (0..at).find(|first| repeats(at, *first)).unwrap_or(at) as Class;
    (0..kinds.len()).map(class).collect()
}

/// The moments at which no other holds as much of every stage.
fn greatest(moments: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let mut greatest: Vec<Vec<u64>> = Vec::new();
    let holds = |all: &[u64], of: &[u64]| all.iter().zip(of).all(|(all, of)| all >= of);
    for moment in moments {
        if !greatest.iter().any(|known| holds(known, moment)) {
            greatest.retain(|known| !holds(moment, known));
            greatest.push(moment.clone());
        }
    }
    greatest
}

impl Dealer<'_> {
    /// The times that a slowest stage can have, from `least` on.
    fn times(&self, least: Nanos) -> Vec<Nanos> {
        let layers = self.classes.len() as u32;
        let starts: BTreeSet<Class> = self.classes.iter().copied().collect();
        let mut times = BTreeSet::from([least]);
        for stage in [0, self.stages / 2, self.stages - 1] {
            for start in starts.iter().copied().filter(|start| stage > 0 || *start == 0) {
                let of = (start + 1..=layers).map(|end| (self.time)(stage, start..end));
                times.extend(of.filter(|time| *time > least));
            }
        }
        times.into_iter().collect()
    }

    fn step(&mut self, count: u64) -> Result<(), Without> {
        self.steps += count;
        if self.steps > MOST_STEPS { Err(Without::TooMany) } else { Ok(()) }
    }

    fn of(&mut self, stage: usize, start: Class, count: u32) -> Needs {
        // One of the middle, the first, the last, or all in one.
        let which = usize::from(stage == 0) + 2 * usize::from(stage + 1 == self.stages);
        let (row, at) = (which * self.classes.len() + start as usize, count as usize);
        if let Some(Some(known)) = self.known[row].get(at) {
            return *known;
        }
        let needs = (self.needs)(stage, start..start + count);
        if self.known[row].len() <= at {
            self.known[row].resize(at + 1, None);
        }
        self.known[row][at] = Some(needs);
        needs
    }

    /// The class of what follows a stage; none behind the last.
    fn next(&self, stage: usize, start: Class, count: u32) -> Option<Class> {
        if stage + 1 == self.stages { None } else { self.classes.get((start + count) as usize).copied() }
    }

    /// The most layers that `stage` could have from `start` on with nothing else on its rank, no longer than `slowest`.
    fn cap(&mut self, stage: usize, start: Class, slowest: Nanos, group: usize) -> Result<u32, Without> {
        let behind = (self.stages - 1 - stage) as u32;
        let most = (self.classes.len() as u32 - start).saturating_sub(behind);
        let mut cap = 0;
        while cap < most
            && (self.time)(stage, start..start + cap + 1) <= slowest
            && self.fits(group, &[(stage, start, cap + 1)])?
        {
            cap += 1;
        }
        Ok(cap)
    }

    /// Whether the rank fits with these stages, their starts and lengths alone.
    fn fits(&mut self, group: usize, held: &[Piece]) -> Result<bool, Without> {
        self.step(1)?;
        let mut needed = core::mem::take(&mut self.needed);
        needed.clear();
        for (stage, start, count) in held {
            let needs = self.of(*stage, *start, *count);
            let at = self.groups[group].stages.iter().position(|other| other == stage);
            needed.extend(at.map(|at| (at, needs)));
        }
        let fixed = needed.iter().fold(0, |sum: Bytes, (_, needs)| sum.saturating_add(needs.fixed));
        let workspace = needed.iter().map(|(_, needs)| needs.workspace).max().unwrap_or(0);
        let fits = self.groups[group].moments.iter().all(|moment| {
            let kept = needed.iter().map(|(at, needs)| needs.each.saturating_mul(moment[*at]));
            kept.fold(fixed.saturating_add(workspace), Bytes::saturating_add) <= self.limit
        });
        self.needed = needed;
        Ok(fits)
    }

    /// The evenest partition that fits in which no stage takes longer than `slowest`, if there is one.
    fn within(&mut self, slowest: Nanos) -> Result<Option<Vec<u32>>, Without> {
        let layers = self.classes.len() as u32;
        let Some(may) = self.may(slowest)? else { return Ok(None) };
        let mut most = Vec::with_capacity(self.groups.len());
        for group in 0..self.groups.len() {
            let mut best = 0;
            self.deepen(group, &may, &mut Vec::new(), &mut best)?;
            most.push(best);
        }
        let sum = most.iter().fold(0, |sum: u32, most| sum.saturating_add(*most));
        if most.contains(&0) || sum < layers {
            return Ok(None);
        }
        let mut states = States::from([((Vec::new(), 0), (0, 0))]);
        let mut open: Vec<usize> = Vec::new();
        let mut chosen = Vec::new();
        let (mut most_left, mut stages_left) = (sum, self.stages as u32);
        for (group, most) in most.into_iter().enumerate() {
            // All others at their most leave at least so many.
            let spare = layers.saturating_sub(sum - most);
            let mut shapes = Shapes::new();
            self.list(group, spare, &may, &mut Vec::new(), 0, &mut shapes)?;
            (most_left, stages_left) = (most_left - most, stages_left - self.groups[group].stages.len() as u32);
            let layers_after = layers.saturating_sub(most_left)..=layers.saturating_sub(stages_left);
            let taken;
            (states, open, taken) = self.join(&states, &open, group, shapes, layers_after)?;
            chosen.push(taken);
        }
        let Some((_, number)) = states.get(&(Vec::new(), layers)) else { return Ok(None) };
        let (mut counts, mut number) = (vec![0; self.stages], *number);
        for (group, taken) in self.groups.iter().zip(&chosen).rev() {
            let (of_group, before) = &taken[number];
            group.stages.iter().zip(of_group).for_each(|(stage, count)| counts[*stage] = *count);
            number = *before;
        }
        Ok(Some(counts))
    }

    /// What `states` with the cuts `open` become by the `shapes` of `group`, if they have `layers` then; the cuts
    /// that are open then; and by number the layers of the group's stages with the number of the state before.
    fn join(
        &mut self,
        states: &States,
        open: &[usize],
        group: usize,
        shapes: Shapes,
        layers: RangeInclusive<u32>,
    ) -> Result<(States, Vec<usize>, Vec<Taken>), Without> {
        let own = cuts_of(&self.groups[group].stages, self.stages);
        let (agreed, opened): (Vec<usize>, Vec<usize>) = own.iter().copied().partition(|cut| open.contains(cut));
        let mut after: Vec<usize> = open.iter().chain(&own).copied().filter(|cut| !agreed.contains(cut)).collect();
        after.sort_unstable();
        // By the classes of cuts that are to be agreed upon.
        let mut fitting: BTreeMap<Vec<Class>, Vec<Opening>> = BTreeMap::new();
        for ((classes, count), even) in shapes {
            let of = |cuts: &[usize]| -> Vec<Class> {
                own.iter().zip(&classes).filter(|(cut, _)| cuts.contains(cut)).map(|(_, class)| *class).collect()
            };
            fitting.entry(of(&agreed)).or_default().push((of(&opened), count, even));
        }
        let (mut next, mut taken) = (States::new(), Vec::new());
        for ((classes, so_far), (squares, number)) in states {
            let before = |cut: &usize| open.iter().position(|other| other == cut).map(|at| classes[at]);
            let key: Vec<Class> = agreed.iter().filter_map(before).collect();
            let Some(fitting) = fitting.get(&key) else { continue };
            self.step(fitting.len() as u64)?;
            for (new, count, (more, counts)) in fitting {
                if !layers.contains(&(so_far + count)) {
                    continue;
                }
                let class = |cut: &usize| {
                    let new = opened.iter().position(|other| other == cut).map(|at| new[at]);
                    new.or_else(|| before(cut))
                };
                let key = (after.iter().filter_map(class).collect(), so_far + count);
                let squares = squares.saturating_add(*more);
                let known = next.entry(key).or_insert((u128::MAX, 0));
                if squares < known.0 {
                    *known = (squares, taken.len());
                    taken.push((counts.clone(), *number));
                }
            }
        }
        Ok((next, after, taken))
    }

    /// By stage, the classes at which it may start, each with the most layers that it may then have; none where there
    /// is a stage without.
    fn may(&mut self, slowest: Nanos) -> Result<Option<Vec<Starts>>, Without> {
        let mut group_of = vec![0; self.stages];
        for (at, group) in self.groups.iter().enumerate() {
            group.stages.iter().for_each(|stage| group_of[*stage] = at);
        }
        let mut may = Vec::with_capacity(self.stages);
        let mut reached = BTreeSet::from([0]);
        for (stage, group) in group_of.into_iter().enumerate() {
            let (mut starts, mut next) = (Vec::new(), BTreeSet::new());
            for start in reached {
                let cap = self.cap(stage, start, slowest, group)?;
                next.extend((1..=cap).filter_map(|count| self.next(stage, start, count)));
                starts.push((start, cap));
            }
            let cap = starts.iter().map(|(_, cap)| *cap).max().unwrap_or(0);
            if cap == 0 {
                return Ok(None);
            }
            may.push(Starts { starts, cap });
            reached = next;
        }
        Ok(Some(may))
    }

    /// Whether the next stage of a rank that holds `held` may start at `start`: where the stage before it is on the
    /// same rank, that one says where.
    fn follows(&self, held: &[Piece], stage: usize, start: Class) -> bool {
        let before = held.last().filter(|(before, ..)| before + 1 == stage);
        before.is_none_or(|(before, from, count)| self.next(*before, *from, *count) == Some(start))
    }

    /// The most layers of `group` beside its first stages `held`, where that is more than `best`.
    fn deepen(&mut self, group: usize, may: &[Starts], held: &mut Vec<Piece>, best: &mut u32) -> Result<(), Without> {
        let so_far: u32 = held.iter().map(|(.., count)| count).sum();
        let stages = &self.groups[group].stages;
        let Some(stage) = stages.get(held.len()).copied() else {
            *best = so_far.max(*best);
            return Ok(());
        };
        let behind: u32 = stages[held.len() + 1..].iter().map(|stage| may[*stage].cap).sum();
        for (start, cap) in may[stage].starts.iter().copied() {
            if !self.follows(held, stage, start) {
                continue;
            }
            for count in (1..=cap).rev() {
                if so_far + count + behind <= *best {
                    break;
                }
                held.push((stage, start, count));
                if self.fits(group, held)? {
                    self.deepen(group, may, held, best)?;
                }
                held.pop();
            }
        }
        Ok(())
    }

    /// All that `group` may hold beside its first stages `held`, of no fewer layers than `least`: by the classes of its
    /// cuts and the layers the evenest.
    fn list(
        &mut self,
        group: usize,
        least: u32,
        may: &[Starts],
        held: &mut Vec<Piece>,
        squares: u128,
        shapes: &mut Shapes,
    ) -> Result<(), Without> {
        let so_far: u32 = held.iter().map(|(.., count)| count).sum();
        let stages = &self.groups[group].stages;
        let Some(stage) = stages.get(held.len()).copied() else {
            let of = |cut: &usize| {
                let from = held.iter().find(|(stage, ..)| stage == cut).map(|(_, start, _)| *start);
                let to = held.iter().find(|(stage, ..)| stage + 1 == *cut);
                from.or_else(|| to.and_then(|(stage, start, count)| self.next(*stage, *start, *count)))
            };
            let classes: Vec<Class> = cuts_of(stages, self.stages).iter().filter_map(of).collect();
            let known = shapes.entry((classes, so_far)).or_insert((u128::MAX, Vec::new()));
            if squares < known.0 {
                *known = (squares, held.iter().map(|(.., count)| *count).collect());
            }
            return Ok(());
        };
        let behind: u32 = stages[held.len() + 1..].iter().map(|stage| may[*stage].cap).sum();
        for (start, cap) in may[stage].starts.iter().copied() {
            if !self.follows(held, stage, start) {
                continue;
            }
            for count in least.saturating_sub(so_far + behind).max(1)..=cap {
                held.push((stage, start, count));
                if !self.fits(group, held)? {
                    held.pop();
                    break;
                }
                let time = u128::from((self.time)(stage, start..start + count));
                self.list(group, least, may, held, squares.saturating_add(time * time), shapes)?;
                held.pop();
            }
        }
        Ok(())
    }
}

/// The cuts at which the stages of a rank meet those of others, in order: cut `s` is before stage `s`. At the model's
/// ends there is nothing to agree upon, nor between stages of one rank.
fn cuts_of(stages: &[usize], all: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = stages.iter().flat_map(|stage| [*stage, *stage + 1]).collect();
    cuts.sort_unstable();
    let own = |cut: &usize| *cut > 0 && *cut < all && cuts.iter().filter(|other| *other == cut).count() == 1;
    cuts.iter().copied().filter(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACEMENTS: [&[&[usize]]; 6] = [
        &[&[0, 2], &[1, 3]],
        &[&[0, 3], &[1, 2]],
        &[&[0, 3, 4], &[1, 2, 5]],
        &[&[0, 2, 4], &[1, 3, 5]],
        &[&[0, 3], &[1, 4], &[2, 5]],
        &[&[0, 5], &[1, 4], &[2, 3]],
    ];

    /// The least (slowest time, sum of squares) over all partitions, by trying every one.
    fn least(
        kinds: &[usize],
        groups: &[Group],
        limit: Bytes,
        needs: &dyn Fn(usize, Range<u32>) -> Needs,
        time: &dyn Fn(usize, Range<u32>) -> Nanos,
    ) -> Option<(u64, u128)> {
        let stages: usize = groups.iter().map(|group| group.stages.len()).sum();
        let mut best = None;
        let mut cuts: Vec<u32> = (1..stages as u32).collect();
        loop {
            let ranges = ranges(&cuts, kinds.len() as u32);
            if groups.iter().all(|group| holds(group, &ranges, limit, needs)) {
                let figures = figures(&ranges, time);
                best = Some(best.map_or(figures, |best: (u64, u128)| best.min(figures)));
            }
            // The next way to choose cuts.
            let last = |at: usize| (kinds.len() - (cuts.len() - at)) as u32;
            let Some(at) = (0..cuts.len()).rev().find(|at| cuts[*at] < last(*at)) else { return best };
            let from = cuts[at] + 1;
            (at..cuts.len()).for_each(|other| cuts[other] = from + (other - at) as u32);
        }
    }

    fn ranges(cuts: &[u32], layers: u32) -> Vec<Range<u32>> {
        let bounds: Vec<u32> = [0].into_iter().chain(cuts.iter().copied()).chain([layers]).collect();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    fn figures(ranges: &[Range<u32>], time: &dyn Fn(usize, Range<u32>) -> Nanos) -> (u64, u128) {
        let times = ranges.iter().enumerate().map(|(stage, range)| time(stage, range.clone()));
        (times.clone().max().unwrap_or(0), times.map(|time| u128::from(time) * u128::from(time)).sum())
    }

    fn holds(group: &Group, ranges: &[Range<u32>], limit: Bytes, needs: &dyn Fn(usize, Range<u32>) -> Needs) -> bool {
        group.moments.iter().all(|moment| {
            let (mut kept, mut workspace) = (0, 0);
            for (stage, held) in group.stages.iter().zip(moment) {
                let of = needs(*stage, ranges[*stage].clone());
                kept += of.fixed + of.each * held;
                workspace = workspace.max(of.workspace);
            }
            kept + workspace <= limit
        })
    }

    /// Layers of two or three kinds: some first, in turns, or as they come.
    fn kinds() -> impl Strategy<Value = Vec<usize>> {
        let layers = 6usize..11;
        prop_oneof![
            (layers.clone(), 0usize..6)
                .prop_map(|(layers, first)| (0..layers).map(|at| usize::from(at >= first)).collect()),
            (layers.clone(), 2usize..5).prop_map(|(layers, every)| {
                (0..layers).map(|at| usize::from((at + 1).is_multiple_of(every))).collect()
            }),
            prop::collection::vec(0usize..3, layers),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

        /// No partition within the limit is better, for ranks with stages here and there.
        #[test]
        fn no_partition_is_better(
            kinds in kinds(), placement in 0..PLACEMENTS.len(), limit in 10u64..160,
            of_kinds in prop::collection::vec((0u64..6, 1u64..5, 0u64..9, 1u64..9), 3),
            ends in [0u64..20, 0u64..20],
            held in prop::collection::vec(prop::collection::vec(1u64..5, 3..=3), 3..7),
        ) {
            let placement = PLACEMENTS[placement];
            let groups: Vec<Group> = placement
                .iter()
                .enumerate()
                .map(|(at, stages)| Group {
                    stages: stages.to_vec(),
                    moments: held.iter().skip(at).step_by(3).map(|held| held[..stages.len()].to_vec()).collect(),
                })
                .collect();
            let last = placement.iter().map(|stages| stages.len()).sum::<usize>() - 1;
            let of_end = |stage: usize| if stage == 0 { ends[0] } else if stage == last { ends[1] } else { 0 };
            let sum = |layers: Range<u32>, of: &dyn Fn((u64, u64, u64, u64)) -> u64| -> u64 {
                layers.map(|layer| of(of_kinds[kinds[layer as usize]])).sum()
            };
            let needs = |stage: usize, layers: Range<u32>| Needs {
                fixed: sum(layers.clone(), &|of| of.0) + of_end(stage),
                each: sum(layers.clone(), &|of| of.1),
                workspace: layers.map(|layer| of_kinds[kinds[layer as usize]].2).max().unwrap_or(0),
            };
            let time = |stage: usize, layers: Range<u32>| sum(layers, &|of| of.3) + of_end(stage);
            let found = best(&kinds, &groups, limit, &mut |stage, layers| needs(stage, layers), &time, 0);
            match least(&kinds, &groups, limit, &needs, &time) {
                Some(figures_of_best) => {
                    let counts = found.unwrap();
                    let mut end = 0;
                    let cuts: Vec<u32> = counts.iter().map(|count| { end += count; end }).collect();
                    prop_assert_eq!(end as usize, kinds.len());
                    let ranges = ranges(&cuts[..last], end);
                    prop_assert!(groups.iter().all(|group| holds(group, &ranges, limit, &needs)));
                    prop_assert_eq!(figures(&ranges, &time), figures_of_best);
                }
                None => prop_assert_eq!(found, Err(Without::NothingFits)),
            }
        }
    }

    /// Starts with the same ahead of them are one class.
    #[test]
    fn classes_are_few() {
        assert_eq!(classes(&[1, 1, 1, 1]), [0, 0, 0, 0]);
        assert_eq!(classes(&[0, 0, 1, 1, 1]), [0, 1, 2, 2, 2]);
        assert_eq!(classes(&[0, 1, 0, 1, 0]), [0, 1, 0, 1, 0]);
        assert_eq!(classes(&[2, 0, 1, 0, 1]), [0, 1, 2, 1, 2]);
    }
}
