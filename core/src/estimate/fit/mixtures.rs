//! The mixtures of a stage: which of its layers make which choice, and what that adds in time and bytes.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::base::units::{Bytes, Nanos};
use crate::estimate::derive::{kind_of, stage_cost};
use crate::graph::form::Recompute;
use crate::graph::layout::RecomputeLayers;
use crate::model::{Modules, StageLayout};
use crate::problem::StageCost;
use crate::problem::op::OpKind;
use crate::spec::ModelWork;

/// Mixtures of one stage that are looked at: all of those of up to 69 layers with three choices, 344 with two. They grow with
/// the power of the choices, and the time of a plan is to grow no faster than the layers.
pub const MOST_MIXTURES: usize = 60_000;
/// Up to so many mixtures of a stage the graph of each is built, so that it is known exactly what each holds.
const MOST_GRAPHS: usize = 120;

/// What a mixture does to a stage.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    pub runs: Runs,
    /// Times, and what is held. Where it is a sum over layers, what is held only while an op runs is a lower bound.
    pub cost: StageCost,
}

/// What the first layers compute again, up to which layer, and so on; those behind the last run compute nothing again.
pub(super) type Runs = Vec<(Recompute, usize)>;

impl Mixture {
    /// The choice of each of `layers` layers.
    pub(super) fn choices(&self, layers: usize) -> Vec<Recompute> {
        let mut choices = vec![Recompute::None; layers];
        let mut from = 0;
        for (choice, to) in &self.runs {
            choices[from..*to].fill(*choice);
            from = *to;
        }
        choices
    }
}

/// The mixtures of a stage.
#[derive(Clone, Debug)]
pub(super) struct Mixtures {
    /// From the fastest on; of equals the one that holds less.
    pub list: Vec<Mixture>,
    /// How many layers get a choice at a time.
    pub stride: usize,
    /// Whether costs are those of graphs, and not sums.
    pub exact: bool,
}

/// Stages of which all is the same: kinds of their layers, in order, whether with embedding and with head, and MTP modules.
type Alike = (Vec<usize>, bool, bool, Modules);

/// What is known of stages.
pub(super) struct Stages {
    work: ModelWork,
    costs: BTreeMap<(Alike, Vec<Recompute>), StageCost>,
    mixtures: BTreeMap<Alike, Mixtures>,
}

impl Stages {
    /// Of `work`, where no layer computes anything again.
    pub(super) fn new(work: ModelWork) -> Stages {
        Stages { work, costs: BTreeMap::new(), mixtures: BTreeMap::new() }
    }

    fn alike(&self, layout: &StageLayout) -> Alike {
        let kinds = layout.layers.clone().map(|layer| kind_of(&self.work, layer)).collect();
        (kinds, layout.embedding, layout.head, layout.modules)
    }

    /// The cost of `layout` with `choices`, from its graph.
    pub(super) fn cost(&mut self, layout: &StageLayout, choices: &[Recompute]) -> StageCost {
        let key = (self.alike(layout), choices.to_vec());
        if let Some(cost) = self.costs.get(&key) {
            return *cost;
        }
        let mut all = vec![Recompute::None; self.work.model.layers as usize];
        all[layout.layers.start as usize..layout.layers.end as usize].copy_from_slice(choices);
        self.work.layout.recompute_layers = RecomputeLayers::Each(all);
        let cost = stage_cost(&self.work, layout);
        self.costs.insert(key, cost);
        cost
    }

    /// The mixtures of `layout`.
    pub(super) fn mixtures(&mut self, layout: &StageLayout) -> Mixtures {
        let key = self.alike(layout);
        if let Some(known) = self.mixtures.get(&key) {
            return known.clone();
        }
        let mut mixtures = self.sums(layout);
        if mixtures.list.len() <= MOST_GRAPHS {
            let layers = layout.layers.len();
            for mixture in &mut mixtures.list {
                mixture.cost = self.cost(layout, &mixture.choices(layers));
            }
            mixtures.exact = true;
            sort(&mut mixtures.list);
        }
        self.mixtures.insert(key, mixtures.clone());
        mixtures
    }

    /// The mixtures of `layout`, with costs that are sums over its layers.
    pub(super) fn sums(&mut self, layout: &StageLayout) -> Mixtures {
        let count = layout.layers.len();
        let none = vec![Recompute::None; count];
        let base = self.cost(layout, &none);
        // What one layer adds with each choice. Layers of a kind that all offload, or none of them, add the same.
        let mut by_kind: BTreeMap<((usize, bool), Recompute), Added> = BTreeMap::new();
        let offloaded = self.work.layout.form.offload.layers().unwrap_or(0) as usize;
        let kinds = layout.layers.clone().map(|layer| kind_of(&self.work, layer));
        let kinds: Vec<(usize, bool)> = kinds.enumerate().map(|(at, kind)| (kind, at < offloaded)).collect();
        for (at, kind) in kinds.iter().enumerate() {
            for choice in Recompute::ALL {
                by_kind.entry((*kind, choice)).or_insert_with(|| {
                    let mut one = none.clone();
                    one[at] = choice;
                    Added::of(&base, &self.cost(layout, &one))
                });
            }
        }
        // A choice that changes nothing beside the one before it, such as a selective one without scores, is that one.
        let differ =
            |pair: &&[Recompute]| kinds.iter().any(|kind| by_kind[&(*kind, pair[0])] != by_kind[&(*kind, pair[1])]);
        let useful: Vec<Recompute> = Recompute::ALL.windows(2).rev().filter(differ).map(|pair| pair[1]).collect();
        // By choice: what the first so many layers add with it.
        let sums = useful.iter().map(|choice| {
            let added = kinds.iter().map(|kind| by_kind[&(*kind, *choice)]);
            let sums = added.scan(Added::default(), |sum, added| {
                *sum = sum.plus(added);
                Some(*sum)
            });
            (*choice, core::iter::once(Added::default()).chain(sums).collect())
        });
        let sums: BTreeMap<Recompute, Vec<Added>> = sums.collect();
        let known = core::iter::once(&Recompute::None).chain(&useful).map(|choice| {
            let costs = [*choice, Recompute::None, Recompute::Full].map(|others| {
                let mut choices = vec![others; count];
                choices.last_mut().into_iter().for_each(|last| *last = *choice);
                self.cost(layout, &choices)
            });
            (*choice, costs)
        });
        // With offload it depends on all layers which copies are under way.
        let peaks = match offloaded {
            0 => Peaks::of(&known.collect::<Vec<_>>()),
            _ => Peaks(BTreeMap::new()),
        };
        let stride = stride(count, useful.len());
        let mut ends: Vec<usize> = (0..count).step_by(stride).collect();
        ends.push(count);
        let mut list = Vec::new();
        fill(&useful, &ends, &mut Runs::new(), &mut |runs| {
            let (mut added, mut from) = (Added::default(), 0);
            for (choice, to) in runs {
                let sums = &sums[choice];
                added = added.plus(sums[*to]).less(sums[from]);
                from = *to;
            }
            let last = runs.iter().find(|(_, to)| *to == count).map_or(Recompute::None, |(choice, _)| *choice);
            list.push(Mixture { runs: runs.clone(), cost: peaks.given_to(added.to(&base), last) });
        });
        sort(&mut list);
        Mixtures { list, stride, exact: false }
    }
}

/// From the fastest on. Of equals the one that holds less comes first, and then the one that computes less again in its
/// first layers.
fn sort(list: &mut [Mixture]) {
    list.sort_by_cached_key(|mixture| {
        let cost = &mixture.cost;
        let ends: Vec<usize> = mixture.runs.iter().map(|(_, to)| *to).collect();
        (cost.backward_input_ns + cost.backward_weight_ns, cost.forward_bytes, ends)
    });
}

/// How many layers have to get a choice at a time, so that `layers` layers and `choices` choices beside none make at most
/// [`MOST_MIXTURES`].
pub(super) fn stride(layers: usize, choices: usize) -> usize {
    // Ways to cut `steps` equal pieces into runs, with repetition: the product stays whole at each factor.
    let mixtures =
        |steps: usize| (1..=choices).fold(1usize, |ways, choice| ways.saturating_mul(steps + choice) / choice);
    (1..=layers).find(|stride| mixtures(layers.div_ceil(*stride)) <= MOST_MIXTURES).unwrap_or(layers.max(1))
}

/// Every way to give the choices `left` in turn to the layers up to one of `ends`, of which the first is where the run
/// before has ended.
pub(super) fn fill(left: &[Recompute], ends: &[usize], runs: &mut Runs, each: &mut dyn FnMut(&Runs)) {
    let Some((choice, rest)) = left.split_first() else { return each(runs) };
    for (at, end) in ends.iter().enumerate() {
        runs.push((*choice, *end));
        fill(rest, &ends[at..], runs, each);
        runs.pop();
    }
}

/// What a choice adds to F's bytes, and to B's and W's times and bytes, and to the time of a fused BW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Added([i128; 6]);

impl Added {
    pub(super) fn numbers(cost: &StageCost) -> [i128; 6] {
        [
            cost.forward_bytes.into(),
            cost.backward_input_bytes.into(),
            cost.backward_weight_bytes.into(),
            cost.backward_input_ns.into(),
            cost.backward_weight_ns.into(),
            cost.duration(OpKind::BW).into(),
        ]
    }

    fn of(base: &StageCost, with: &StageCost) -> Added {
        let (base, with) = (Added::numbers(base), Added::numbers(with));
        Added(core::array::from_fn(|at| with[at] - base[at]))
    }

    fn plus(self, other: Added) -> Added {
        Added(core::array::from_fn(|at| self.0[at] + other.0[at]))
    }

    fn less(self, other: Added) -> Added {
        Added(core::array::from_fn(|at| self.0[at] - other.0[at]))
    }

    /// `base` with this added, and without workspace.
    fn to(self, base: &StageCost) -> StageCost {
        let [f, b, w, b_ns, w_ns, fused_ns] = self.plus(Added(Added::numbers(base))).0;
        StageCost {
            forward_ns: base.forward_ns,
            backward_input_ns: b_ns.max(0) as Nanos,
            backward_weight_ns: w_ns.max(0) as Nanos,
            backward_ns: Some(fused_ns.max(0) as Nanos),
            forward_bytes: f as i64,
            backward_input_bytes: b as i64,
            backward_weight_bytes: w as i64,
            backward_workspace_bytes: Some(0),
            ..StageCost::default()
        }
    }
}

/// What B and BW of any mixture take at least while they run, by the choice of the last layer: they start with it, while all
/// others still hold their bytes.
struct Peaks(BTreeMap<Recompute, [Bytes; 2]>);

impl Peaks {
    /// From the costs of a stage, by the choice of its last layer, with several choices of the others.
    fn of(known: &[(Recompute, [StageCost; 3])]) -> Peaks {
        let least = |costs: &[StageCost], kind| costs.iter().map(|cost| cost.takes(kind)).min().unwrap_or(0);
        let both = |costs| [OpKind::B, OpKind::BW].map(|kind| least(costs, kind));
        Peaks(known.iter().map(|(choice, costs)| (*choice, both(costs))).collect())
    }

    /// `cost` of a mixture whose last layer has the choice `last`.
    fn given_to(&self, cost: StageCost, last: Recompute) -> StageCost {
        let Some([input, both]) = self.0.get(&last).copied() else { return cost };
        let beside = |peak: Bytes, delta: i64| peak.saturating_sub(delta.max(0) as Bytes);
        StageCost {
            backward_input_workspace_bytes: beside(input, cost.backward_input_bytes),
            backward_workspace_bytes: Some(beside(both, cost.backward_input_bytes + cost.backward_weight_bytes)),
            ..cost
        }
    }
}

/// Leaves out mixtures that take no less time than a faster one which never holds more.
pub(super) fn drop_beaten(mixtures: &mut Vec<Mixture>) {
    // What those kept hold, in the order in which they are asked: what has beaten one mixture tends to beat the next.
    let mut held_by_kept: Vec<[i64; 6]> = Vec::new();
    mixtures.retain(|mixture| {
        let cost = &mixture.cost;
        let [f, b, w, fused] = [OpKind::F, OpKind::B, OpKind::W, OpKind::BW].map(|kind| cost.takes(kind) as i64);
        let (after_f, after_b) = (cost.forward_bytes, cost.forward_bytes + cost.backward_input_bytes);
        // Between ops, and while one runs, of which the microbatch holds something before.
        let held = [after_f, after_b, f, after_f + b, after_b + w, after_f + fused];
        let beats = |other: &[i64; 6]| other.iter().zip(&held).all(|(other, held)| other <= held);
        let by = held_by_kept.iter().position(beats);
        match by {
            Some(at) => held_by_kept.swap(at, at / 2),
            None => held_by_kept.push(held),
        }
        by.is_none()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::form::AttentionForm;
    use crate::spec::{Spec, Work};
    use alloc::format;

    fn spec(more: &str) -> Spec {
        let text = format!(
            "model.name = \"llama-2-13b\"\nmodel.layers = 16\ncluster.device = \"a100-80\"\n\
             training = {{ microbatches = 8, microbatch_size = 2 }}\n[parallel]\npipeline = 4\n{more}"
        );
        Spec::read(&text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// A mixture's times and bytes are sums over its layers, which the order of tries relies on.
    #[test]
    fn what_a_mixture_adds_is_a_sum_over_layers() {
        for more in ["", "tensor = 2\nsequence_parallel = true\nasync_reduce = true"] {
            for attention in ["flash", "materialised"] {
                let mut spec = spec(more);
                let Work::Model(work) = &mut spec.work else { panic!("a model") };
                work.layout.form.attention =
                    if attention == "flash" { AttentionForm::Flash } else { AttentionForm::Materialised };
                work.model.layers = 4;
                let layout = StageLayout { layers: 0..4, embedding: true, head: true, ..StageLayout::default() };
                let mut stages = Stages::new(work.clone());
                let mixtures = stages.sums(&layout).list;
                // Ways to write 4 as an ordered sum of 4 or 5 counts: none, cheap, feed-forward, full, and selective.
                assert_eq!(mixtures.len(), if attention == "flash" { 35 } else { 70 });
                for mixture in mixtures {
                    let exact = stages.cost(&layout, &mixture.choices(4));
                    assert_eq!(
                        Added::numbers(&mixture.cost),
                        Added::numbers(&exact),
                        "{attention} {:?}",
                        mixture.runs
                    );
                }
            }
        }
    }

    /// Whoever rests on a sum that is too high passes over a mixture that fits.
    #[test]
    fn what_the_ops_of_a_mixture_hold_is_at_least_what_its_sum_says() {
        let models = ["llama-2-13b", "mixtral-8x7b", "qwen-3-8b", "gemma-2-9b", "deepseek-v3"];
        for model in models {
            for attention in [AttentionForm::Flash, AttentionForm::Materialised] {
                let mut spec = Spec::read(&format!(
                    "model.name = \"{model}\"\nmodel.layers = 16\ncluster.device = \"h100\"\n\
                     training = {{ microbatches = 8, microbatch_size = 1, sequence = 2048 }}\n[parallel]\npipeline = 4"
                ))
                .unwrap_or_else(|faults| panic!("{model}: {faults}"));
                let Work::Model(work) = &mut spec.work else { panic!("a model") };
                work.layout.form.attention = attention;
                for layout in [(0..5, true, false), (6..11, false, false), (11..16, false, true)] {
                    let (layers, embedding, head) = layout;
                    let layout = StageLayout { layers, embedding, head, ..StageLayout::default() };
                    let mut stages = Stages::new(work.clone());
                    let (mut below, mut all) = (0u128, 0u128);
                    for mixture in stages.sums(&layout).list {
                        let exact = stages.cost(&layout, &mixture.choices(5));
                        for kind in [OpKind::F, OpKind::B, OpKind::W, OpKind::BW] {
                            let (least, true_one) = (mixture.cost.takes(kind), exact.takes(kind));
                            let at = format!("{model} {attention:?} {layout:?} {:?} {kind:?}", mixture.runs);
                            assert!(least <= true_one, "{at}: {least} of {true_one}");
                            below += u128::from(true_one - least);
                            all += u128::from(true_one);
                        }
                    }
                    assert!(
                        below * 4 <= all,
                        "{model} {attention:?} {layout:?}: {below} of {all} bytes are not seen"
                    );
                }
            }
        }
    }

    /// Ways to give `layers` layers a choice each, in turn: `C(layers + choices, choices)`, of which there are more than
    /// any memory holds for the largest models.
    #[test]
    fn the_mixtures_of_the_largest_stage_are_few_enough() {
        for choices in 1..=5 {
            let useful = &Recompute::ALL[1..=choices];
            for layers in [0, 1, 4, 100, 132, 133, 1000, 4096] {
                let stride = stride(layers, choices);
                let mut ends: Vec<usize> = (0..layers).step_by(stride).collect();
                ends.push(layers);
                let (mut count, mut all_alike) = (0, 0);
                fill(useful, &ends, &mut Runs::new(), &mut |runs| {
                    count += 1;
                    all_alike += usize::from(runs.iter().all(|(_, to)| *to == 0 || *to == layers));
                });
                assert!(count <= MOST_MIXTURES, "{layers} layers, {choices} choices: {count}");
                let exact = (1..=choices as u128).fold(1, |ways, at| ways * (layers as u128 + at) / at);
                assert_eq!(stride == 1, exact <= MOST_MIXTURES as u128, "{layers} layers, {choices} choices");
                // Each choice for all layers, and none for all, are always among them.
                assert!(all_alike == choices + 1 || layers == 0);
            }
        }
    }
}
