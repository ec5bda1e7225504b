//! Stages that a tensor framework computes, candle, under a plan: layers of `tanh(x · Wᵀ + b)` with a mean squared error.
//!
//! A framework has its own storage. So a stage holds its weights once more as the runner lends them, and brings them over when a
//! step begins; its automatic differentiation makes the gradients of input and weights at once, and what W adds up is kept
//! until then.
//!
//! `cargo run -p pipeplan --example candle_stages [SCHEDULE] [RANKS]`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use pipeplan::backend::Values;
use pipeplan::backend::staged::{
    LentParameter, Stage, StageCall, StageError, StageOutput, StageParameter, StageSeat, StagedModel,
};
use pipeplan::runner::progress::line;
use pipeplan::runner::{Observer, RunOptions, Staged, StepReport, Workload, run};
use pipeplan::transport::Buffer;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::plan::planner;
use pipeplan_core::problem::Statement;
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;
use serde_json::json;

/// Layers of the model.
pub const LAYERS: usize = 8;
/// Width of each.
pub const WIDTH: usize = 16;
/// Samples of a microbatch.
pub const SAMPLES: usize = 8;

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Tanh;

/// Numbers near 0 that follow from `seed`.
pub fn noise(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((seed * 7919 + at * 104_729) % 2003) as f32 / 2003.0 - 0.5).collect()
}

/// The samples of a microbatch, and what they should become.
pub fn samples(of_batch: u32) -> [Vec<f32>; 2] {
    let input = noise(of_batch as usize + 50, SAMPLES * WIDTH);
    let target = input.iter().rev().map(|value| 0.5 * value).collect();
    [input, target]
}

/// A layer's matrix and bias at the start.
pub fn start(layer: usize) -> [Vec<f32>; 2] {
    [noise(layer + 1, WIDTH * WIDTH), vec![0.0; WIDTH]]
}

/// What a layer makes of `flow`.
///
/// # Errors
/// As candle.
pub fn layer(flow: &Tensor, matrix: &Tensor, bias: &Tensor) -> candle_core::Result<Tensor> {
    flow.matmul(&matrix.t()?)?.broadcast_add(bias)?.tanh()
}

impl StagedModel for Tanh {
    fn name(&self) -> String {
        format!("{LAYERS} tanh layers of {WIDTH}")
    }

    fn parameters(&self, stage: usize, stages: usize) -> Vec<StageParameter> {
        let of = |layer: usize| {
            [
                StageParameter { name: format!("{layer}.weight"), shape: vec![WIDTH, WIDTH], decays: true },
                StageParameter { name: format!("{layer}.bias"), shape: vec![WIDTH], decays: false },
            ]
        };
        (LAYERS * stage / stages..LAYERS * (stage + 1) / stages).flat_map(of).collect()
    }

    fn stage(&self, StageSeat { stage, stages, .. }: StageSeat) -> Result<Box<dyn Stage>, StageError> {
        let layers = LAYERS * stage / stages..LAYERS * (stage + 1) / stages;
        let values: Vec<Vec<f32>> = layers.flat_map(start).collect();
        let gradients = values.iter().map(|values| vec![0.0; values.len()]).collect();
        let (is_first, is_last) = (stage == 0, stage + 1 == stages);
        let vars = Vec::new();
        Ok(Box::new(TanhStage { is_first, is_last, values, gradients, vars, saved: BTreeMap::new() }))
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer::Sgd
    }
}

/// Some layers.
struct TanhStage {
    is_first: bool,
    is_last: bool,
    /// Matrix and bias of each layer, as the runner changes them.
    values: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
    /// The same for candle.
    vars: Vec<Var>,
    saved: BTreeMap<u32, Saved>,
}

/// What backward needs.
enum Saved {
    /// After forward: input and output, or loss, with the graph between them.
    Forward(Var, Tensor),
    /// After the backward of the input.
    Gradients(Vec<Vec<f32>>),
}

fn of_candle(error: candle_core::Error) -> StageError {
    StageError(error.to_string())
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>, StageError> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).map_err(of_candle)
}

fn rows(buffer: Buffer) -> Result<Tensor, StageError> {
    let Buffer::F32(values) = buffer else { return Err(StageError("a message is not in f32".to_string())) };
    Tensor::from_vec(values, (SAMPLES, WIDTH), &Device::Cpu).map_err(of_candle)
}

impl Stage for TanhStage {
    fn parameters(&mut self) -> Vec<LentParameter<'_>> {
        let both = self.values.iter_mut().zip(&mut self.gradients);
        both.map(|(values, gradient)| LentParameter { weight: Values::F32(values), gradient: Values::F32(gradient) })
            .collect()
    }

    fn begin_step(&mut self, _: u32) {
        let var = |values: &Vec<f32>| match values.len() == WIDTH {
            true => Var::from_slice(values, WIDTH, &Device::Cpu),
            false => Var::from_slice(values, (WIDTH, WIDTH), &Device::Cpu),
        };
        // Memory of the host alone: it is there, or the process ends.
        self.vars = self.values.iter().filter_map(|values| var(values).ok()).collect();
    }

    fn forward(&mut self, call: StageCall, input: Option<Buffer>) -> Result<StageOutput, StageError> {
        let [own, target] = samples(call.of_batch);
        let input = rows(input.unwrap_or(Buffer::F32(own)))?;
        let input = Var::from_tensor(&input).map_err(of_candle)?;
        let mut flow = input.as_tensor().clone();
        for both in self.vars.chunks(2) {
            let [matrix, bias] = both else { return Err(StageError("a layer has no bias".to_string())) };
            flow = layer(&flow, matrix, bias).map_err(of_candle)?;
        }
        if self.is_last {
            let target = rows(Buffer::F32(target))?;
            flow = flow.sub(&target).and_then(|rest| rest.sqr()?.mean_all()).map_err(of_candle)?;
        }
        let output = match self.is_last {
            true => StageOutput::Loss(flow.to_scalar::<f32>().map_err(of_candle)?.into()),
            false => StageOutput::Activation(Buffer::F32(floats(&flow)?)),
        };
        self.saved.insert(call.microbatch, Saved::Forward(input, flow));
        Ok(output)
    }

    fn backward_input(&mut self, call: StageCall, gradient: Option<Buffer>) -> Result<Option<Buffer>, StageError> {
        let Some(Saved::Forward(input, output)) = self.saved.remove(&call.microbatch) else {
            return Err(StageError(format!("microbatch {} has not gone forward", call.microbatch)));
        };
        // The gradient of Σ output · gradient is what the stages behind make of it.
        let scalar = match gradient {
            None => output.affine(call.loss_scale, 0.0),
            Some(gradient) => output.mul(&rows(gradient)?).and_then(|product| product.sum_all()),
        };
        let found = scalar.and_then(|scalar| scalar.backward()).map_err(of_candle)?;
        let of = |var: &Var| found.get(var).ok_or_else(|| StageError("a gradient is missing".to_string()));
        let of_weights = self.vars.iter().map(|var| floats(of(var)?)).collect::<Result<_, _>>()?;
        let of_input = if self.is_first { None } else { Some(Buffer::F32(floats(of(&input)?)?)) };
        self.saved.insert(call.microbatch, Saved::Gradients(of_weights));
        Ok(of_input)
    }

    fn backward_weight(&mut self, call: StageCall) -> Result<(), StageError> {
        let Some(Saved::Gradients(found)) = self.saved.remove(&call.microbatch) else {
            return Err(StageError(format!("microbatch {} has not gone back", call.microbatch)));
        };
        for (sum, found) in self.gradients.iter_mut().zip(found) {
            sum.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
        Ok(())
    }

    fn saved_bytes(&self) -> u64 {
        // Of each layer candle keeps the product, its sum with the bias and what tanh makes of it.
        let layers = self.values.len() as u64 / 2;
        let of = |saved: &Saved| match saved {
            Saved::Forward(..) => 4 * (3 * layers + 1) * (SAMPLES * WIDTH) as u64,
            Saved::Gradients(found) => 4 * found.iter().map(Vec::len).sum::<usize>() as u64,
        };
        self.saved.values().map(of).sum()
    }
}

/// This model in the order of the published schedule `name`.
pub fn workload(name: &str, ranks: usize, microbatches: usize, replicas: u32) -> Result<Workload, Box<dyn Error>> {
    let published = schedule::find(name).ok_or_else(|| format!("no schedule is called {name}"))?;
    let (placement, chunks) = (published.shape)(2);
    let problem = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches,
        "placement": placement.name().unwrap_or("linear"),
        "stages": { "forward_ns": 100, "backward_input_ns": 200, "backward_weight_ns": 10,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 }
    });
    let statement = Statement::read(&problem).map_err(|faults| faults.to_string())?;
    let plan = planner::plan(&Spec::typed(statement), name).map_err(|error| error.to_string())?;
    let staged = Staged { model: Arc::new(Tanh), replicas, shares_optimizer: false };
    Ok(Workload::of_stages(&plan, staged))
}

/// Prints each step.
struct Lines;

impl Observer for Lines {
    fn step_ended(&mut self, step: &StepReport) {
        println!("{}", line(step));
    }
}

#[allow(dead_code, reason = "tests use the rest")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "zb-h1".to_string());
    let ranks = words.next().map_or(Ok(4), |word| word.parse())?;
    run(&workload(&name, ranks, 8, 1)?, &RunOptions { steps: 20, ..RunOptions::default() }, &mut Lines)?;
    Ok(())
}
