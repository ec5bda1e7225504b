//! Stages of one's own under a plan: eight linear layers of 8 × 8 without biases and a mean squared error, cut into as many
//! stages as the plan has.
//!
//! `cargo run -p pipeplan --example own_stages [SCHEDULE] [RANKS] [REPLICAS]` trains with threads as ranks. Under a launcher
//! (`torchrun --no-python --nproc-per-node 4 target/debug/examples/own_stages 1f1b 4`) each process is a rank, over TCP.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pipeplan::backend::Values;
use pipeplan::backend::staged::{
    LentParameter, Stage, StageCall, StageError, StageOutput, StageParameter, StageSeat, StagedModel,
};
use pipeplan::bootstrap;
use pipeplan::runner::progress::line;
use pipeplan::runner::{Observer, RunOptions, Staged, StepReport, Workload, run, run_process};
use pipeplan::transport::Buffer;
use pipeplan::transport::processes::Processes;
use pipeplan::transport::rendezvous::Secret;
use pipeplan::transport::tcp::Tcp;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::Dtype;
use pipeplan_core::plan::{Plan, planner};
use pipeplan_core::problem::Statement;
use pipeplan_core::schedule;
use pipeplan_core::spec::Spec;
use serde_json::json;

/// Layers of the model.
pub const LAYERS: usize = 8;
/// Rows and columns of each.
pub const WIDTH: usize = 8;
/// Samples of a microbatch.
pub const SAMPLES: usize = 4;

/// The model: `y = x · W₀ᵀ · … · W₇ᵀ`.
#[derive(Clone, Copy, Debug)]
pub struct Linears {
    /// Whether the last layer is the first one again.
    pub tied: bool,
    /// Which optimizer trains it.
    pub optimizer: Optimizer,
}

impl Linears {
    /// The name of a layer's weight.
    pub fn weight(self, layer: usize) -> String {
        let layer = if self.tied && layer + 1 == LAYERS { 0 } else { layer };
        format!("layers.{layer}.weight")
    }

    /// The numbers that a layer starts with: those of its name, near the identity.
    pub fn start(self, layer: usize) -> Vec<f64> {
        let layer = if self.tied && layer + 1 == LAYERS { 0 } else { layer };
        let noise = noise(layer as u64 + 1, WIDTH * WIDTH);
        noise.iter().enumerate().map(|(at, noise)| f64::from(at % (WIDTH + 1) == 0) + 0.2 * noise).collect()
    }
}

/// Which layers a stage has.
fn layers_of(stage: usize, stages: usize) -> Range<usize> {
    LAYERS * stage / stages..LAYERS * (stage + 1) / stages
}

/// Numbers from −1 to 1 that follow from `seed`.
fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The samples of a microbatch, and what they should become.
pub fn samples(step: u32, of_batch: u32) -> [Vec<f64>; 2] {
    let input = noise(u64::from(step) * 1000 + u64::from(of_batch) + 100, SAMPLES * WIDTH);
    let target = input.iter().enumerate().map(|(at, value)| value * (1.0 + (at % WIDTH) as f64 / 8.0)).collect();
    [input, target]
}

impl StagedModel for Linears {
    fn name(&self) -> String {
        format!("{LAYERS} linears{}", if self.tied { ", tied" } else { "" })
    }

    fn parameters(&self, stage: usize, stages: usize) -> Vec<StageParameter> {
        let mut parameters: Vec<StageParameter> = Vec::new();
        for layer in layers_of(stage, stages) {
            let name = self.weight(layer);
            if parameters.iter().all(|known| known.name != name) {
                parameters.push(StageParameter { name, shape: vec![WIDTH, WIDTH], decays: true });
            }
        }
        parameters
    }

    fn stage(&self, seat: StageSeat) -> Result<Box<dyn Stage>, StageError> {
        let StageSeat { stage, stages, .. } = seat;
        let names: Vec<String> = self.parameters(stage, stages).into_iter().map(|parameter| parameter.name).collect();
        let mut weights: Vec<Weight> = names.iter().map(|_| Weight::default()).collect();
        let layers = layers_of(stage, stages).map(|layer| {
            let at = names.iter().position(|name| *name == self.weight(layer)).unwrap_or(0);
            weights[at] = Weight { values: self.start(layer), gradient: vec![0.0; WIDTH * WIDTH] };
            at
        });
        let layers = layers.collect();
        Ok(Box::new(LinearStage {
            is_first: stage == 0,
            is_last: stage + 1 == stages,
            layers,
            weights,
            saved: BTreeMap::new(),
        }))
    }

    fn dtype(&self) -> Dtype {
        Dtype::F64
    }

    fn optimizer(&self) -> Optimizer {
        self.optimizer
    }
}

#[derive(Default)]
struct Weight {
    values: Vec<f64>,
    gradient: Vec<f64>,
}

/// Some layers.
struct LinearStage {
    is_first: bool,
    is_last: bool,
    /// By layer: which of the weights it has.
    layers: Vec<usize>,
    weights: Vec<Weight>,
    /// By microbatch that is under way.
    saved: BTreeMap<u32, Saved>,
}

/// What backward needs.
#[derive(Default)]
struct Saved {
    /// What each layer took in.
    inputs: Vec<Vec<f64>>,
    /// In the last stage: the output without the target.
    difference: Vec<f64>,
    /// The gradient of what each layer gave, once it is known.
    gradients: Vec<Vec<f64>>,
}

impl LinearStage {
    fn saved(&mut self, call: StageCall) -> Result<&mut Saved, StageError> {
        let missing = || StageError(format!("microbatch {} has not gone forward", call.microbatch));
        self.saved.get_mut(&call.microbatch).ok_or_else(missing)
    }
}

impl Stage for LinearStage {
    fn parameters(&mut self) -> Vec<LentParameter<'_>> {
        let mut all = Vec::new();
        for Weight { values, gradient } in &mut self.weights {
            all.push(LentParameter { weight: Values::F64(values), gradient: Values::F64(gradient) });
        }
        all
    }

    fn forward(&mut self, call: StageCall, input: Option<Buffer>) -> Result<StageOutput, StageError> {
        let [own, target] = samples(call.step, call.of_batch);
        let mut flow = input.map_or(Ok(own), floats)?;
        let mut saved = Saved::default();
        for layer in &self.layers {
            let output = times(&flow, &self.weights[*layer].values, true);
            saved.inputs.push(std::mem::replace(&mut flow, output));
        }
        let output = match self.is_last {
            false => StageOutput::Activation(Buffer::F64(flow)),
            true => {
                saved.difference = flow.iter().zip(target).map(|(found, target)| found - target).collect();
                let squares: f64 = saved.difference.iter().map(|difference| difference * difference).sum();
                StageOutput::Loss(squares / saved.difference.len() as f64)
            }
        };
        self.saved.insert(call.microbatch, saved);
        Ok(output)
    }

    fn backward_input(&mut self, call: StageCall, gradient: Option<Buffer>) -> Result<Option<Buffer>, StageError> {
        let saved = self.saved(call)?;
        let difference = std::mem::take(&mut saved.difference);
        let of_loss = 2.0 * call.loss_scale / difference.len().max(1) as f64;
        let own = || Ok(difference.iter().map(|difference| of_loss * difference).collect());
        let mut flow = gradient.map_or_else(own, floats)?;
        let mut gradients = Vec::new();
        for layer in self.layers.iter().rev() {
            let before = times(&flow, &self.weights[*layer].values, false);
            gradients.push(std::mem::replace(&mut flow, before));
        }
        gradients.reverse();
        self.saved(call)?.gradients = gradients;
        Ok((!self.is_first).then_some(Buffer::F64(flow)))
    }

    fn backward_weight(&mut self, call: StageCall) -> Result<(), StageError> {
        self.saved(call)?;
        let Some(Saved { inputs, gradients, .. }) = self.saved.remove(&call.microbatch) else { return Ok(()) };
        for ((layer, input), gradient) in self.layers.iter().zip(inputs).zip(gradients) {
            let sum = &mut self.weights[*layer].gradient;
            for (at, sum) in sum.iter_mut().enumerate() {
                let (row, column) = (at / WIDTH, at % WIDTH);
                *sum += (0..SAMPLES)
                    .map(|sample| gradient[sample * WIDTH + row] * input[sample * WIDTH + column])
                    .sum::<f64>();
            }
        }
        Ok(())
    }

    fn saved_bytes(&self) -> u64 {
        let of = |Saved { inputs, difference, gradients }: &Saved| {
            let rows = inputs.iter().chain(gradients).map(Vec::len).sum::<usize>();
            8 * (rows + difference.len()) as u64
        };
        self.saved.values().map(of).sum()
    }
}

/// Rows of `x` times the matrix `w`, or its transpose.
fn times(x: &[f64], w: &[f64], transposed: bool) -> Vec<f64> {
    let entry =
        |row: usize, column: usize| if transposed { w[column * WIDTH + row] } else { w[row * WIDTH + column] };
    let of = |at: usize| {
        let (sample, column) = (at / WIDTH, at % WIDTH);
        (0..WIDTH).map(|row| x[sample * WIDTH + row] * entry(row, column)).sum()
    };
    (0..x.len()).map(of).collect()
}

/// What another stage has sent.
fn floats(buffer: Buffer) -> Result<Vec<f64>, StageError> {
    match buffer {
        Buffer::F64(values) => Ok(values),
        other => Err(StageError(format!("a message is in {}, and this stage takes f64", other.format()))),
    }
}

/// A plan of the published schedule `name` over `ranks`, with stages of equal times.
pub fn plan(name: &str, ranks: usize, microbatches: usize) -> Result<Plan, Box<dyn Error>> {
    let published = schedule::find(name).ok_or_else(|| format!("no schedule is called {name}"))?;
    let (placement, chunks) = (published.shape)(2);
    let problem = json!({
        "ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement.name().unwrap_or("linear"),
        "stages": { "forward_ns": 100, "backward_input_ns": 100, "backward_weight_ns": 100,
                    "forward_bytes": 2, "backward_input_bytes": -1, "backward_weight_bytes": -1 },
        "transfer_ns": 5
    });
    let statement = Statement::read(&problem).map_err(|faults| faults.to_string())?;
    Ok(planner::plan(&Spec::typed(statement), name).map_err(|error| error.to_string())?)
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
    let name = words.next().unwrap_or_else(|| "1f1b".to_string());
    let mut number = |default: u32| words.next().map_or(Ok(default), |word| word.parse());
    let (ranks, replicas) = (number(4)?, number(1)?);
    let model = Arc::new(Linears { tied: false, optimizer: Optimizer::AdamW });
    let plan = plan(&name, ranks as usize, 8)?;
    let workload = Workload::of_stages(&plan, Staged { model, replicas, shares_optimizer: replicas > 1 });
    let options = RunOptions { steps: 20, ..RunOptions::default() };
    match bootstrap::place(|name| std::env::var(name).ok())? {
        None => drop(run(&workload, &options, &mut Lines)?),
        Some(place) => {
            let patience = Duration::from_secs(30);
            let (host, port) = place.meeting.ok_or("set MASTER_ADDR and MASTER_PORT")?;
            let secret = Secret::new(bootstrap::secret(|name| std::env::var(name).ok(), place.launcher));
            let tcp = Tcp::connect(place.rank, place.world, (&host, port), &secret, 1 << 20, patience)?;
            run_process(&workload, &options, Processes::new(tcp, patience), &mut Lines)?;
        }
    }
    Ok(())
}
