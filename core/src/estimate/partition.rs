//! Which layers each stage gets.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::base::fields::Fault;
use crate::base::units::Nanos;
use crate::model::{Modules, StageLayout};
use crate::problem::placement::Placement;

/// Times of layers, embedding and head for one microbatch: F, B and W together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartCosts {
    /// Of each decoder layer.
    pub layers_ns: Vec<Nanos>,
    /// Of the embedding, on the first stage.
    pub embedding_ns: Nanos,
    /// Of the final norm, the head and the loss, on the last stage.
    pub head_ns: Nanos,
    /// By stage, thousandths of these times that its rank takes; empty where all take the same.
    pub pace_permille: Vec<u64>,
}

impl PartCosts {
    /// Those of `layers` equal layers.
    pub fn equal(layers: u32, layer_ns: Nanos, embedding_ns: Nanos, head_ns: Nanos) -> PartCosts {
        PartCosts { layers_ns: vec![layer_ns; layers as usize], embedding_ns, head_ns, pace_permille: Vec::new() }
    }

    /// The same on ranks that differ.
    pub(crate) fn paced(self, pace_permille: Vec<u64>) -> PartCosts {
        PartCosts { pace_permille, ..self }
    }

    /// Of each of `layouts`, which are all stages.
    pub(crate) fn times(&self, layouts: &[StageLayout]) -> Vec<Nanos> {
        let time = |(stage, layout): (usize, &StageLayout)| {
            let layers = self.layers_ns.get(layout.layers.start as usize..layout.layers.end as usize);
            self.time(stage, layouts.len(), layers.unwrap_or_default())
        };
        layouts.iter().enumerate().map(time).collect()
    }

    /// Time of `layers` on `stage` of `stages`.
    pub(crate) fn time(&self, stage: usize, stages: usize, layers: &[Nanos]) -> Nanos {
        let ends = if stage == 0 { self.embedding_ns } else { 0 };
        let ends = ends.saturating_add(if stage + 1 == stages { self.head_ns } else { 0 });
        let time = layers.iter().fold(ends, |sum: Nanos, layer| sum.saturating_add(*layer));
        match self.pace_permille.get(stage) {
            Some(pace) => Nanos::try_from(u128::from(time) * u128::from(*pace) / 1000).unwrap_or(Nanos::MAX),
            None => time,
        }
    }
}

/// Assigns layers to the stages of `ranks × chunks`, in model order and at least one to each. The largest stage time
/// is as small as possible; among those partitions, the sum of squares of the stage times is the least.
///
/// # Errors
/// Fewer layers than stages, at the field that gives the number of stages.
pub fn balanced(ranks: usize, chunks: usize, costs: &PartCosts) -> Result<Vec<StageLayout>, Fault> {
    let stages = enough_layers(costs.layers_ns.len(), ranks, chunks)?;
    if costs.pace_permille.is_empty() && costs.layers_ns.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(even(stages, costs));
    }
    // Everything fits, so a partition always exists.
    within(ranks, chunks, costs, &mut |_, _| true)
}

/// As [`balanced`], with only the layouts that `fits` accepts for a stage. A part of a layout that fits must fit, too.
///
/// Bisection finds the least largest time: for a given time, each stage takes as many layers as possible, or, on ranks that
/// differ, any number. Dynamic
/// programming over (stage, layers so far) then finds the evenest partition within it. Takes `stages · layers` times
/// the layers of a stage.
///
/// # Errors
/// As [`balanced`], and where no partition fits.
pub fn within(
    ranks: usize,
    chunks: usize,
    costs: &PartCosts,
    fits: &mut dyn FnMut(usize, &StageLayout) -> bool,
) -> Result<Vec<StageLayout>, Fault> {
    let layers = costs.layers_ns.len();
    let stages = enough_layers(layers, ranks, chunks)?;
    let layout = |stage: usize, layers: Range<usize>| StageLayout {
        layers: layers.start as u32..layers.end as u32,
        embedding: stage == 0,
        head: stage + 1 == stages,
        ..StageLayout::default()
    };
    // Only the last stage may end at the last layer, and each has to leave one for every later stage.
    let last_end = |stage: usize| layers - (stages - 1 - stage);
    let mut reaches = |most: Nanos| {
        let mut starts = vec![0];
        for stage in 0..stages {
            let mut ends: Vec<usize> = Vec::new();
            for from in starts {
                let mut to = from;
                while to < last_end(stage)
                    && costs.time(stage, stages, &costs.layers_ns[from..=to]) <= most
                    && fits(stage, &layout(stage, from..to + 1))
                {
                    to += 1;
                }
                // What a stage may end at: on equal ranks the last is as good as any. On others a heavy layer may have to
                // be left to a fast rank, which must not be given another one first.
                let least = if costs.pace_permille.is_empty() { to.max(from + 1) } else { from + 1 };
                let known = ends.last().copied().unwrap_or(0);
                ends.extend(least.max(known + 1)..=to);
            }
            starts = ends;
        }
        starts.contains(&layers)
    };
    // No stage takes longer than all layers on the slowest rank.
    let slowest = costs.pace_permille.iter().max().map(|pace| vec![*pace]).unwrap_or_default();
    let (mut least, mut most) = (0, costs.clone().paced(slowest).time(0, 1, &costs.layers_ns));
    if !reaches(most) {
        return Err(nothing_fits());
    }
    while least < most {
        let middle = least + (most - least) / 2;
        if reaches(middle) { most = middle } else { least = middle + 1 }
    }

    // By layers so far, counted from one for each stage: the least sum of squares, and by stage where the stage starts.
    let width = layers - stages + 1;
    let mut squares: Vec<Option<u128>> = vec![None; width];
    let mut starts: Vec<Vec<u32>> = Vec::with_capacity(stages);
    for stage in 0..stages {
        let (mut next, mut from_where) = (vec![None; width], vec![0u32; width]);
        for at in 0..width {
            let end = at + stage + 1;
            for start in (stage..end).rev() {
                let time = costs.time(stage, stages, &costs.layers_ns[start..end]);
                if time > most || !fits(stage, &layout(stage, start..end)) {
                    break;
                }
                let before = if stage == 0 { (start == 0).then_some(0) } else { squares[start - stage] };
                let Some(before) = before else { continue };
                let sum = before.saturating_add(u128::from(time) * u128::from(time));
                if next[at].is_none_or(|known| sum < known) {
                    (next[at], from_where[at]) = (Some(sum), start as u32);
                }
            }
        }
        squares = next;
        starts.push(from_where);
    }
    if squares[width - 1].is_none() {
        return Err(nothing_fits());
    }
    let mut layouts = Vec::with_capacity(stages);
    let mut end = layers;
    for stage in (0..stages).rev() {
        let start = starts[stage][end - stage - 1] as usize;
        layouts.push(layout(stage, start..end));
        end = start;
    }
    layouts.reverse();
    Ok(layouts)
}

/// The moments at which the stages of `rank` may hold the most activations, under the placement's usual schedule that
/// keeps every rank busy. The partition within a memory limit is made for these. Each moment has the rank's stages
/// with their numbers of microbatches.
///
/// - Linear and bidirectional: `P − s`, as 1F1B (arXiv:2104.04473 §2.2.1); bidirectional: in each direction.
/// - Looped: interleaved 1F1B (arXiv:2104.04473 §2.2.2), which has run `2(P − r − 1) + (V − 1)P + 1` forwards more than
///   backwards on rank `r`, both in groups of `P` for each chunk.
/// - V, wave and lists: `2(S − s)/V` of `S` stages, rounded up. A microbatch stays on stage `s` while it passes the
///   stages behind and comes back; over the chunks of a rank this is what 1F1B holds, P microbatches of `V` chunks.
pub fn in_flight(
    placement: &Placement,
    ranks: usize,
    chunks: usize,
    microbatches: usize,
    rank: usize,
) -> Vec<Vec<(usize, usize)>> {
    let stages = ranks * chunks;
    let within = |held: usize| held.clamp(1, microbatches.max(1));
    if *placement == Placement::Looped {
        let ahead = 2 * ranks.saturating_sub(rank + 1) + chunks.saturating_sub(1) * ranks + 1;
        // Of `ops` in groups, those of a chunk.
        let of_chunk = |ops: usize, chunk: usize| {
            ops / stages.max(1) * ranks + (ops % stages.max(1)).saturating_sub(chunk * ranks).min(ranks)
        };
        let moment = |backwards: usize| {
            let held = |chunk: usize| {
                let forwards = of_chunk(ahead + backwards, chunk);
                (chunk * ranks + rank, within(forwards.saturating_sub(of_chunk(backwards, chunks - 1 - chunk))))
            };
            (0..chunks).map(held).collect()
        };
        return (0..stages).map(moment).collect();
    }
    let rank_of_stage = placement.ranks(ranks, chunks);
    let holds = |stage: usize| match placement {
        Placement::Bidirectional => stage == rank || stages - 1 - stage == rank,
        _ => rank_of_stage.get(stage).is_some_and(|other| usize::from(*other) == rank),
    };
    let held = |stage: usize| match placement {
        Placement::Linear | Placement::Bidirectional => within(ranks.saturating_sub(stage)),
        _ => within((2 * stages.saturating_sub(stage)).div_ceil(chunks.max(1))),
    };
    Vec::from([(0..stages).filter(|stage| holds(*stage)).map(|stage| (stage, held(stage))).collect()])
}

/// [`balanced`] for equal layers. Stages that tie are served from the last: it holds the fewest microbatches.
///
/// Each layer goes to the stage that is left cheapest by it. Times are convex in the number of layers, so this
/// greedy choice is optimal for both aims (Fox, Operations Research 14, 1966). Takes `layers · log stages`.
fn even(stages: usize, costs: &PartCosts) -> Vec<StageLayout> {
    let layer_ns = costs.layers_ns.first().copied().unwrap_or(0);
    let mut count = vec![1u32; stages];
    let mut time = vec![0 as Nanos; stages];
    time[0] = costs.embedding_ns;
    time[stages - 1] = time[stages - 1].saturating_add(costs.head_ns);
    // The stage that one more layer leaves cheapest, which is the one that is cheapest now. Its position counts down,
    // so that the last of equal ones comes first.
    let mut cheapest: alloc::collections::BinaryHeap<core::cmp::Reverse<(Nanos, usize)>> = time
        .iter()
        .enumerate()
        .map(|(stage, time)| core::cmp::Reverse((time.saturating_add(layer_ns), stages - stage)))
        .collect();
    for _ in stages..costs.layers_ns.len() {
        let Some(core::cmp::Reverse((time, position))) = cheapest.pop() else { break };
        count[stages - position] += 1;
        cheapest.push(core::cmp::Reverse((time.saturating_add(layer_ns), position)));
    }
    from_counts(&count)
}

/// The partition by hand: `counts` has one entry for each stage of `ranks × chunks`.
///
/// # Errors
/// Another number of stages or layers, or an empty stage.
pub fn by_hand(layers: u32, ranks: usize, chunks: usize, counts: &[u32]) -> Result<Vec<StageLayout>, Fault> {
    let stages = ranks * chunks;
    let field = "parallel.partition";
    if counts.len() != stages {
        let counted =
            |number: usize, one: &str, several: &str| format!("{number} {}", if number == 1 { one } else { several });
        let entries = |number: usize| counted(number, "entry", "entries");
        let each = if chunks > 1 { format!(" with {chunks} chunks each") } else { String::new() };
        let accepted =
            format!("{}, one for each stage of {}{each}", entries(stages), counted(ranks, "rank", "ranks"));
        return Err(Fault::new(field, entries(counts.len()), accepted));
    }
    let sum: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if sum != u64::from(layers) {
        return Err(Fault::new(field, format!("{sum} layers in all"), format!("{layers}, the layers of the model")));
    }
    if let Some(empty) = (1..stages.saturating_sub(1)).find(|stage| counts[*stage] == 0) {
        let found = format!("0 layers on stage {empty}");
        return Err(Fault::new(field, found, "at least 1 layer between the first and the last stage"));
    }
    Ok(from_counts(counts))
}

/// The partition by hand of a model with `modules` MTP modules: `counts` has the layers and the modules of each stage of
/// `ranks × chunks`.
///
/// # Errors
/// As [`by_hand`], and where modules are missing, on the first stage, or before a layer.
pub fn with_modules(
    (layers, modules): (u32, u32),
    ranks: usize,
    chunks: usize,
    counts: &[[u32; 2]],
) -> Result<Vec<StageLayout>, Fault> {
    let field = "parallel.partition";
    let of_layers: Vec<u32> = counts.iter().map(|[layers, _]| *layers).collect();
    let of_parts: Vec<u32> = counts.iter().map(|[layers, modules]| layers.saturating_add(*modules)).collect();
    let sum: u64 = counts.iter().map(|[_, modules]| u64::from(*modules)).sum();
    if sum != u64::from(modules) {
        let accepted = format!("{modules}, the model's number of MTP modules (multi_token)");
        return Err(Fault::new(field, format!("{sum} MTP modules in all"), accepted));
    }
    let sum: u64 = of_layers.iter().map(|count| u64::from(*count)).sum();
    if sum != u64::from(layers) {
        return Err(Fault::new(field, format!("{sum} layers in all"), format!("{layers}, the layers of the model")));
    }
    // The number of stages, and stages without any part.
    by_hand(layers.saturating_add(modules), ranks, chunks, &of_parts)?;
    let first = counts.iter().position(|[_, modules]| *modules > 0).unwrap_or(counts.len());
    if first == 0 && counts.len() > 1 {
        let accepted = "MTP modules behind the last layer, and none on the stage of the embedding";
        return Err(Fault::new(field, "an MTP module on stage 0", accepted));
    }
    if let Some(behind) = (first + 1..counts.len()).find(|stage| of_layers[*stage] > 0) {
        let found = format!("a layer on stage {behind}, and an MTP module before it on stage {first}");
        return Err(Fault::new(field, found, "MTP modules behind the last layer"));
    }
    let mut before = 0;
    let mut stages = from_counts(&of_layers);
    for (layout, [_, here]) in stages.iter_mut().zip(counts) {
        layout.modules = Modules { before, here: *here };
        before += here;
    }
    Ok(stages)
}

/// The same layers in another number of stages: neighbours added up, or each stage cut into equal ones. None where that
/// does not come out even.
pub(crate) fn regrouped(counts: &[u32], stages: usize) -> Option<Vec<u32>> {
    if counts.is_empty() || stages == 0 || counts.len() == stages {
        return None;
    }
    if counts.len().is_multiple_of(stages) {
        return Some(counts.chunks(counts.len() / stages).map(|group| group.iter().sum()).collect());
    }
    let pieces = stages.is_multiple_of(counts.len()).then_some((stages / counts.len()) as u32)?;
    let even = |count: &&u32| **count > 0 && count.is_multiple_of(pieces);
    (counts.iter().filter(even).count() == counts.len())
        .then(|| counts.iter().flat_map(|count| core::iter::repeat_n(count / pieces, pieces as usize)).collect())
}

/// The layouts of stages with these numbers of layers.
pub(crate) fn from_counts(counts: &[u32]) -> Vec<StageLayout> {
    let mut next = 0;
    let last = counts.len().saturating_sub(1);
    let layout = |(stage, count): (usize, &u32)| {
        let layers = next..next + count;
        next = layers.end;
        StageLayout { layers, embedding: stage == 0, head: stage == last, ..StageLayout::default() }
    };
    counts.iter().enumerate().map(layout).collect()
}

/// The fault that no partition fits the limit.
pub(crate) fn nothing_fits() -> Fault {
    let accepted =
        "a larger memory.limit_bytes, more recomputation, or another partition and a schedule that needs less memory";
    Fault::new("parallel.partition", "a limit that no assignment of layers to stages fits", accepted)
}

/// The number of stages, for each of which there is a layer.
///
/// # Errors
/// Fewer layers than stages, at the field that says how many stages there are.
pub(crate) fn enough_layers(layers: usize, ranks: usize, chunks: usize) -> Result<usize, Fault> {
    let stages = ranks * chunks;
    if stages == 0 || layers < stages { Err(too_many_stages(layers, ranks, chunks)) } else { Ok(stages) }
}

fn too_many_stages(layers: usize, ranks: usize, chunks: usize) -> Fault {
    // The chunks are the cheaper thing to change, where that is enough.
    if chunks > 1 && ranks <= layers {
        let most = layers / ranks;
        return Fault::new(
            "parallel.chunks",
            chunks,
            format!(
                "at most {most}: {ranks} ranks then have {} stages for the model's {layers} layers",
                most * ranks
            ),
        );
    }
    let found =
        if chunks > 1 { format!("{ranks} ranks with {chunks} chunks each") } else { format!("{ranks} ranks") };
    Fault::new(
        "parallel.pipeline",
        found,
        format!("at most {layers} stages in all, one for each of the model's layers"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The smallest largest stage time and the smallest sum of squares, over every partition that `fits`.
    fn best(stages: u32, costs: &PartCosts, fits: &dyn Fn(&StageLayout) -> bool) -> Option<(u64, u64)> {
        let mut best = None;
        let mut counts = Vec::new();
        try_all(costs.layers_ns.len() as u32, stages, &mut counts, &mut |counts| {
            let layouts = from_counts(counts);
            if !layouts.iter().all(fits) {
                return;
            }
            let found = figures(&layouts, costs);
            if best.is_none_or(|best| found < best) {
                best = Some(found);
            }
        });
        best
    }

    fn figures(layouts: &[StageLayout], costs: &PartCosts) -> (u64, u64) {
        let times = costs.times(layouts);
        (times.iter().copied().max().unwrap_or(0), times.iter().map(|time| time * time).sum())
    }

    fn try_all(layers: u32, stages: u32, counts: &mut Vec<u32>, visit: &mut impl FnMut(&[u32])) {
        if stages == 1 {
            counts.push(layers);
            visit(counts);
            counts.pop();
            return;
        }
        for count in 1..=layers - (stages - 1) {
            counts.push(count);
            try_all(layers - count, stages - 1, counts, visit);
            counts.pop();
        }
    }

    fn assert_partition(layouts: &[StageLayout], layers: usize) {
        assert_eq!(layouts[0].layers.start, 0);
        assert_eq!(layouts[layouts.len() - 1].layers.end as usize, layers);
        assert!(layouts.windows(2).all(|pair| pair[0].layers.end == pair[1].layers.start));
        assert!(layouts.iter().all(|layout| !layout.layers.is_empty()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_deal_is_better(
            (stages, layers) in (1u32..5).prop_flat_map(|stages| (Just(stages), stages..12)),
            layer_ns in 1u64..20, embedding_ns in 0u64..60, head_ns in 0u64..60,
        ) {
            let costs = PartCosts::equal(layers, layer_ns, embedding_ns, head_ns);
            let layouts = balanced(stages as usize, 1, &costs).unwrap();
            prop_assert_eq!(Some(figures(&layouts, &costs)), best(stages, &costs, &|_| true));
            assert_partition(&layouts, layers as usize);
            // The other way to the same answer.
            let other = within(stages as usize, 1, &costs, &mut |_, _| true).unwrap();
            prop_assert_eq!(figures(&other, &costs), figures(&layouts, &costs));
        }

        /// Layers of two kinds, as where the first have no experts, ranks that are slower than others, and a limit that earlier
        /// stages meet sooner.
        #[test]
        fn no_deal_within_a_limit_is_better(
            (stages, layers_ns, pace_permille) in (1usize..5).prop_flat_map(|stages| {
                let paces = prop::collection::vec(500u64..3000, stages);
                (Just(stages), prop::collection::vec(1u64..20, stages..11), prop_oneof![Just(Vec::new()), paces])
            }),
            embedding_ns in 0u64..40, head_ns in 0u64..40, limit in 4u64..60,
        ) {
            let costs = PartCosts { layers_ns, embedding_ns, head_ns, pace_permille };
            let fits = |layout: &StageLayout| {
                let in_flight = stages as u64 - u64::from(layout.layers.start).min(stages as u64 - 1);
                in_flight * layout.layers.len() as u64 <= limit
            };
            match (within(stages, 1, &costs, &mut |_, layout| fits(layout)), best(stages as u32, &costs, &fits)) {
                (Ok(layouts), Some(best)) => {
                    prop_assert!(layouts.iter().all(fits));
                    assert_partition(&layouts, costs.layers_ns.len());
                    prop_assert_eq!(figures(&layouts, &costs), best);
                }
                (Err(fault), None) => prop_assert_eq!(fault.field, "parallel.partition"),
                (found, best) => prop_assert!(false, "{found:?} {best:?}"),
            }
        }
    }

    /// The counts of 1F1B, and those of interleaved 1F1B at p = 4, v = 2: rank 0 runs 11 forwards before its first
    /// backward, 4 of chunk 0, 4 of chunk 1 and 3 of chunk 0, and holds 11 from then on. Over a rank's chunks, V
    /// holds P microbatches, too.
    #[test]
    fn microbatches_in_flight_are_those_of_the_usual_schedules() {
        let one = |placement: Placement, chunks: usize, microbatches| -> Vec<Vec<(usize, usize)>> {
            (0..4).map(|rank| in_flight(&placement, 4, chunks, microbatches, rank).remove(0)).collect()
        };
        assert_eq!(one(Placement::Linear, 1, 8), [[(0, 4)], [(1, 3)], [(2, 2)], [(3, 1)]]);
        assert_eq!(one(Placement::Linear, 1, 2), [[(0, 2)], [(1, 2)], [(2, 2)], [(3, 1)]]);
        assert_eq!(one(Placement::Bidirectional, 1, 8)[1], [(1, 3), (2, 2)]);
        assert_eq!(
            one(Placement::V, 2, 16),
            [[(0, 8), (7, 1)], [(1, 7), (6, 2)], [(2, 6), (5, 3)], [(3, 5), (4, 4)]]
        );
        let moments = in_flight(&Placement::Looped, 4, 2, 16, 0);
        assert_eq!(moments[0], [(0, 7), (4, 4)]);
        assert!(moments.iter().all(|held| held[0].1 + held[1].1 == 11));
        assert_eq!(in_flight(&Placement::Looped, 4, 2, 16, 3)[0], [(3, 4), (7, 1)]);
    }

    #[test]
    fn equal_layers_are_split_equally() {
        let costs = PartCosts::equal(10, 10, 0, 0);
        let counts: Vec<usize> = balanced(4, 1, &costs).unwrap().iter().map(|layout| layout.layers.len()).collect();
        assert_eq!(counts, [2, 2, 3, 3], "the last stages hold the fewest microbatches");
    }

    #[test]
    fn by_hand_is_taken_as_it_is_or_refused() {
        assert_eq!(regrouped(&[3, 4, 4, 3], 2), Some(vec![7, 7]));
        assert_eq!(regrouped(&[6, 8, 8, 6], 8), Some(vec![3, 3, 4, 4, 4, 4, 3, 3]));
        assert_eq!(
            [regrouped(&[3, 4], 4), regrouped(&[0, 4], 4), regrouped(&[3, 4, 4], 2), regrouped(&[], 2)],
            [const { None }; 4]
        );
        let layouts = by_hand(10, 2, 2, &[0, 4, 5, 1]).unwrap();
        let counts: Vec<usize> = layouts.iter().map(|layout| layout.layers.len()).collect();
        assert_eq!(counts, [0, 4, 5, 1]);
        assert!(layouts[0].embedding && layouts[3].head && !layouts[1].embedding && !layouts[2].head);
        for wrong in [&[5, 5][..], &[1, 1, 1, 1], &[5, 0, 4, 1], &[u32::MAX, u32::MAX, 1, 1]] {
            assert_eq!(by_hand(10, 2, 2, wrong).unwrap_err().field, "parallel.partition");
        }
    }

    #[test]
    fn more_stages_than_layers_are_refused_with_what_works() {
        let costs = PartCosts::equal(8, 1, 0, 0);
        let fault = balanced(4, 3, &costs).unwrap_err();
        assert_eq!(
            alloc::string::ToString::to_string(&fault),
            "parallel.chunks: found 3, accepted is at most 2: 4 ranks then have 8 stages for the model's 8 layers"
        );
        let fault = balanced(16, 1, &costs).unwrap_err();
        assert_eq!(fault.field, "parallel.pipeline");
    }
}
