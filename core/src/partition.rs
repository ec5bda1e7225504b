//! Which layers each stage gets.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::fields::Fault;
use crate::units::Nanos;

/// One stage's part of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StageLayout {
    /// Its decoder layers.
    pub layers: Range<u32>,
    /// Whether it holds the embedding.
    pub embedding: bool,
    /// Whether it holds the final norm, the head and the loss.
    pub head: bool,
}

/// What a layer, the embedding and the head cost a stage for one microbatch: F, B and W together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartCosts {
    /// Of one decoder layer.
    pub layer_ns: Nanos,
    /// Of the embedding, on the first stage.
    pub embedding_ns: Nanos,
    /// Of the final norm, the head and the loss, on the last stage.
    pub head_ns: Nanos,
}

/// Deals `layers` equal layers to the stages of `ranks × chunks`, in model order and at least one to each, so that
/// the largest stage time is as small as it can be, and among those deals the stage times are as even as they can
/// be (their squares sum to the least). Stages that tie are served from the last: it holds the fewest microbatches.
///
/// Each layer goes to the stage that is left cheapest by it. Times are convex in the number of layers, so this
/// greedy choice is optimal for both aims (Fox, Operations Research 14, 1966). Takes `layers · log stages`.
///
/// # Errors
/// Fewer layers than stages, at the field that says how many stages there are.
pub fn even(layers: u32, ranks: usize, chunks: usize, costs: PartCosts) -> Result<Vec<StageLayout>, Fault> {
    let stages = ranks * chunks;
    if stages == 0 || layers as usize / stages == 0 {
        return Err(too_many_stages(layers, ranks, chunks));
    }
    let mut count = vec![1u32; stages];
    let mut time = vec![0 as Nanos; stages];
    time[0] = costs.embedding_ns;
    time[stages - 1] = time[stages - 1].saturating_add(costs.head_ns);
    // The stage that one more layer leaves cheapest, which is the one that is cheapest now. Its position counts down,
    // so that the last of equal ones comes first.
    let mut cheapest: alloc::collections::BinaryHeap<core::cmp::Reverse<(Nanos, usize)>> = time
        .iter()
        .enumerate()
        .map(|(stage, time)| core::cmp::Reverse((time.saturating_add(costs.layer_ns), stages - stage)))
        .collect();
    for _ in stages..layers as usize {
        let Some(core::cmp::Reverse((time, position))) = cheapest.pop() else { break };
        count[stages - position] += 1;
        cheapest.push(core::cmp::Reverse((time.saturating_add(costs.layer_ns), position)));
    }
    Ok(from_counts(&count))
}

/// Deals `layers` by hand: `counts` has one entry for each stage of `ranks × chunks`.
///
/// # Errors
/// Another number of stages or layers, or a stage that would hold nothing.
pub fn by_hand(layers: u32, ranks: usize, chunks: usize, counts: &[u32]) -> Result<Vec<StageLayout>, Fault> {
    let stages = ranks * chunks;
    let field = "parallel.partition";
    if counts.len() != stages {
        let accepted = format!("{stages} entries, one for each stage of {ranks} ranks with {chunks} chunks each");
        return Err(Fault::new(field, format!("{} entries", counts.len()), accepted));
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

/// The layouts of stages with these numbers of layers.
fn from_counts(counts: &[u32]) -> Vec<StageLayout> {
    let mut next = 0;
    let last = counts.len().saturating_sub(1);
    let layout = |(stage, count): (usize, &u32)| {
        let layers = next..next + count;
        next = layers.end;
        StageLayout { layers, embedding: stage == 0, head: stage == last }
    };
    counts.iter().enumerate().map(layout).collect()
}

fn too_many_stages(layers: u32, ranks: usize, chunks: usize) -> Fault {
    let layers = layers as usize;
    // The chunks are the cheaper thing to change, where that is enough.
    if chunks > 1 && ranks <= layers {
        let most = layers / ranks;
        return Fault::new(
            "parallel.chunks",
            chunks,
            format!(
                "at most {most}: {ranks} ranks then hold {} stages for the model's {layers} layers",
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

    fn times(layouts: &[StageLayout], costs: PartCosts) -> Vec<u64> {
        let time = |layout: &StageLayout| {
            u64::from(layout.layers.end - layout.layers.start) * costs.layer_ns
                + if layout.embedding { costs.embedding_ns } else { 0 }
                + if layout.head { costs.head_ns } else { 0 }
        };
        layouts.iter().map(time).collect()
    }

    /// The smallest largest stage time and the smallest sum of squares, by trying every deal.
    fn best(layers: u32, stages: u32, costs: PartCosts) -> (u64, u64) {
        let mut best = (u64::MAX, u64::MAX);
        let mut counts = Vec::new();
        try_all(layers, stages, &mut counts, &mut |counts| {
            let times = times(&from_counts(counts), costs);
            let squares = times.iter().map(|time| time * time).sum();
            best = best.min((times.iter().copied().max().unwrap_or(0), squares));
        });
        best
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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_deal_is_better(
            (stages, layers) in (1u32..5).prop_flat_map(|stages| (Just(stages), stages..12)),
            layer_ns in 1u64..20, embedding_ns in 0u64..60, head_ns in 0u64..60,
        ) {
            let costs = PartCosts { layer_ns, embedding_ns, head_ns };
            let layouts = even(layers, stages as usize, 1, costs).unwrap();
            let times = times(&layouts, costs);
            let found = (times.iter().copied().max().unwrap_or(0), times.iter().map(|time| time * time).sum());
            prop_assert_eq!(found, best(layers, stages, costs));
            prop_assert_eq!(layouts[0].layers.start, 0);
            prop_assert_eq!(layouts[layouts.len() - 1].layers.end, layers);
            prop_assert!(layouts.windows(2).all(|pair| pair[0].layers.end == pair[1].layers.start));
        }
    }

    #[test]
    fn equal_layers_are_dealt_equally() {
        let costs = PartCosts { layer_ns: 10, embedding_ns: 0, head_ns: 0 };
        let counts: Vec<u32> =
            even(10, 4, 1, costs).unwrap().iter().map(|layout| layout.layers.end - layout.layers.start).collect();
        assert_eq!(counts, [2, 2, 3, 3], "the last stages hold the fewest microbatches");
    }

    #[test]
    fn by_hand_is_taken_as_it_is_or_refused() {
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
        let costs = PartCosts { layer_ns: 1, embedding_ns: 0, head_ns: 0 };
        let fault = even(8, 4, 3, costs).unwrap_err();
        assert_eq!(
            alloc::string::ToString::to_string(&fault),
            "parallel.chunks: found 3, accepted is at most 2: 4 ranks then hold 8 stages for the model's 8 layers"
        );
        let fault = even(8, 16, 1, costs).unwrap_err();
        assert_eq!(fault.field, "parallel.pipeline");
    }
}
