//! One microbatch through all stages, with bytes held against liveness; and weights and tokens for it.

use std::collections::BTreeMap;
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::arena::Arena;
use super::devices::{computed, gathered};
use crate::graph::build::stage_graph;
use crate::graph::form::{Form, StageShape};
use crate::graph::liveness::{Lifetimes, fused_order};
use crate::graph::{Graph, Job, Role, of_e12};
use crate::model::{Dtype, ModelConfig, Modules};

/// What crosses a stage's border, as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Border {
    Tokens { ahead: u32 },
    Activation,
    Gradient,
    Loss { weight_e12: u64, ahead: u32 },
    RouterLoss { layer: u32 },
    Nothing,
}

impl Border {
    pub(super) fn of(role: Role) -> Border {
        match role {
            Role::Tokens { ahead } => Border::Tokens { ahead },
            Role::ActivationIn | Role::ActivationOut => Border::Activation,
            Role::GradientIn | Role::GradientOut => Border::Gradient,
            Role::Loss { ahead, weight_e12 } => Border::Loss { weight_e12, ahead },
            Role::RouterLoss { layer } => Border::RouterLoss { layer },
            _ => Border::Nothing,
        }
    }
}

/// A number in −1..1 that depends on nothing but its seeds.
pub(super) fn number(seed: u64) -> f64 {
    let mixed = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

pub(super) struct Run {
    pub(super) loss: f64,
    pub(super) gradients: BTreeMap<String, Vec<f64>>,
}

/// One microbatch through `stages`, all F, then all B, then all W, with bytes held against liveness.
pub(super) fn run(stages: &[Graph], weights: &BTreeMap<String, Vec<f64>>, tokens: &[Vec<f64>]) -> Run {
    let apart = run_as(stages, weights, tokens, false);
    let fused = run_as(stages, weights, tokens, true);
    assert_eq!(apart.loss.to_bits(), fused.loss.to_bits());
    assert_eq!(apart.gradients, fused.gradients, "fused or not, not a bit may differ");
    apart
}

pub(super) fn run_as(
    stages: &[Graph],
    weights: &BTreeMap<String, Vec<f64>>,
    tokens: &[Vec<f64>],
    fused: bool,
) -> Run {
    let lifetimes = |graph: &Graph| if fused { Lifetimes::fused(graph) } else { Lifetimes::of(graph) };
    let splits = stages.iter().flat_map(|graph| graph.weights().filter_map(|(_, weight)| weight.split()));
    let devices = splits.map(|split| split.ways as usize).max().unwrap_or(1);
    let of_stage = |graph| -> Vec<Arena> {
        (0..devices).map(|member| Arena::new(graph, member, weights, lifetimes(graph))).collect()
    };
    let mut arenas: Vec<Vec<Arena>> = stages.iter().map(of_stage).collect();
    let border: BTreeMap<Border, Vec<f64>> =
        (0..).zip(tokens).map(|(ahead, tokens)| (Border::Tokens { ahead }, tokens.clone())).collect();
    let mut borders = vec![border; devices];
    for job in if fused { &Job::ALL[..2] } else { &Job::ALL[..] } {
        let job = *job;
        let mut order: Vec<usize> = (0..stages.len()).collect();
        if job == Job::B {
            order.reverse();
        }
        for stage in order {
            let graph = &stages[stage];
            let (memory, operators) = if fused && job == Job::B {
                (arenas[stage][0].lifetimes.memory_fused(graph), fused_order(graph))
            } else {
                let of_job = |at: &u32| graph.operators[*at as usize].job == job;
                let operators = (0..graph.operators.len() as u32).filter(of_job).collect();
                (arenas[stage][0].lifetimes.memory(graph)[job as usize], operators)
            };
            let mut devices: Vec<&mut Arena> = arenas[stage].iter_mut().collect();
            let found = devices[0].held;
            devices.iter_mut().zip(&borders).for_each(|(device, border)| device.begin(job, border));
            let mut peak = devices[0].held;
            for at in operators.iter().map(|at| *at as usize) {
                let outputs = computed(&devices, at);
                for (device, outputs) in devices.iter_mut().zip(outputs) {
                    peak = peak.max(device.settle(at, outputs));
                }
            }
            devices.iter_mut().zip(&mut borders).for_each(|(device, border)| border.extend(device.end(job)));
            assert_eq!(peak - found, memory.peak, "{job:?} of stage {stage}");
            assert_eq!(devices[0].held as i64 - found as i64, memory.net, "{job:?} of stage {stage}");
        }
    }
    let mut gradients: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for stage in &arenas {
        for (id, tensor) in stage[0].graph.weights() {
            let whole = tensor.whole_shape().iter().product::<u64>() as usize;
            let gradient = stage[0].graph.gradient_of(id).unwrap();
            // Tied tables on two stages: both gradients together.
            let sum = gradients.entry(tensor.name.clone()).or_insert_with(|| vec![0.0; whole]);
            for (place, value) in gathered(stage, tensor, gradient) {
                sum[place] += value;
            }
        }
        assert!(stage.iter().all(|arena| arena.held == 0));
    }
    let loss = |border: &BTreeMap<Border, Vec<f64>>| -> f64 {
        let weighted = |(border, values): (&Border, &Vec<f64>)| match border {
            Border::Loss { weight_e12, .. } => of_e12(*weight_e12) * values[0],
            Border::RouterLoss { .. } => values[0],
            _ => 0.0,
        };
        border.iter().map(weighted).sum()
    };
    let losses: Vec<f64> = borders.iter().map(loss).collect();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "devices that share matrices have one loss");
    Run { loss: losses[0], gradients }
}

pub(super) type Prepared = (Vec<Graph>, BTreeMap<String, Vec<f64>>, Vec<Vec<f64>>);

/// Stages cut before the layers `cuts`, and numbers for their weights, tokens and targets.
pub(super) fn prepare(model: ModelConfig, form: Form, cuts: &[u32]) -> Prepared {
    prepare_with(model, form, cuts, &[])
}

/// As [`prepare`], with MTP modules on these stages, from the first.
pub(super) fn prepare_with(model: ModelConfig, form: Form, cuts: &[u32], modules: &[u32]) -> Prepared {
    let (microbatch_size, sequence) = (4, 3);
    let bounds: Vec<u32> = [0].into_iter().chain(cuts.iter().copied()).chain([model.layers]).collect();
    let stages: Vec<Graph> = (0..bounds.len() - 1)
        .map(|stage| {
            let shape = StageShape {
                layers: bounds[stage]..bounds[stage + 1],
                has_embedding: stage == 0,
                has_head: stage + 2 == bounds.len(),
                modules: Modules {
                    before: modules.iter().take(stage).sum(),
                    here: modules.get(stage).copied().unwrap_or(0),
                },
                microbatch_size,
                sequence,
                dtype: Dtype::F64,
                form,
            };
            stage_graph(&model, &shape, 2)
        })
        .collect();
    let mut weights = BTreeMap::new();
    for graph in &stages {
        for (_, tensor) in graph.weights() {
            let seed = tensor.name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
            let elements = tensor.whole_shape().iter().product();
            let values = (0..elements).map(|e| 0.7 * number(seed.wrapping_add(e))).collect();
            weights.insert(tensor.name.clone(), values);
        }
    }
    let rows = u64::from(microbatch_size * sequence);
    let vocab = f64::from(model.vocab);
    // Nothing here asks that tokens further ahead are those of the rows that follow.
    let token = |i: u64| ((number(i) + 1.0) / 2.0 * vocab).floor();
    let ahead = u64::from(model.variant.multi_token) + 2;
    let tokens = (0..ahead).map(|ahead| (0..rows).map(|i| token(i + 100 * ahead)).collect()).collect();
    (stages, weights, tokens)
}
