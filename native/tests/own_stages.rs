//! Stages that another program brings, under plans of published schedules: as a plain loop over the whole model.

#[path = "../examples/candle_stages.rs"]
#[allow(dead_code, reason = "its own main is not called")]
mod candle_stages;
#[path = "../examples/local_map.rs"]
#[allow(dead_code, reason = "its own main is not called")]
mod local_map;
#[path = "../examples/own_stages.rs"]
#[allow(dead_code, reason = "its own main is not called")]
mod own_stages;

use std::collections::BTreeMap;
use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{Device, Var};
use own_stages::{LAYERS, Linears, SAMPLES, WIDTH, plan, samples};
use pipeplan::backend::staged::{Stage, StageError, StageParameter, StageSeat, StagedModel};
use pipeplan::runner::checkpoint::{Checkpoint, Saving};
use pipeplan::runner::optimizer::AdamW;
use pipeplan::runner::restart::Kept;
use pipeplan::runner::{
    Ending, Restarting, RunError, RunOptions, RunReport, Silent, Staged, Workload, run, run_process, run_restarting,
};
use pipeplan::transport::Buffer;
use pipeplan::transport::faulty::Faults;
use pipeplan::transport::processes::Processes;
use pipeplan::transport::rendezvous::Secret;
use pipeplan::transport::tcp::Tcp;
use pipeplan_core::graph::optimizer::Optimizer;
use pipeplan_core::model::Dtype;

const STEPS: u32 = 3;

const ADAMW: Linears = Linears { tied: false, optimizer: Optimizer::AdamW };

fn options() -> RunOptions {
    let optimizer = AdamW { learning_rate: 0.01, ..AdamW::default() };
    RunOptions { steps: STEPS, optimizer, keep_weights: true, ..RunOptions::default() }
}

fn workload(model: Linears, (name, ranks, microbatches, replicas): (&str, usize, usize, u32)) -> Workload {
    let plan = plan(name, ranks, microbatches).unwrap_or_else(|error| panic!("{name}: {error}"));
    Workload::of_stages(&plan, Staged { model: Arc::new(model), replicas, shares_optimizer: replicas > 1 })
}

fn train(workload: &Workload, options: &RunOptions) -> RunReport {
    run(workload, options, &mut Silent).unwrap_or_else(|error| panic!("{error}"))
}

/// The same model, data and optimizer in one loop, by rows and columns: losses, and weights by name.
fn plain(model: Linears, microbatches: usize) -> (Vec<f64>, BTreeMap<String, Vec<f64>>) {
    let AdamW { learning_rate, beta1, beta2, epsilon, weight_decay, .. } = options().optimizer;
    let mut weights: BTreeMap<String, Vec<f64>> =
        (0..LAYERS).map(|layer| (model.weight(layer), model.start(layer))).collect();
    let zeros: BTreeMap<String, Vec<f64>> = weights.keys().map(|name| (name.clone(), vec![0.0; 64])).collect();
    let (mut means, mut squares) = (zeros.clone(), zeros.clone());
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (mut gradients, mut loss) = (zeros.clone(), 0.0);
        for microbatch in 0..microbatches as u32 {
            let [input, target] = samples(step, microbatch);
            for sample in 0..SAMPLES {
                let of_sample = sample * WIDTH..(sample + 1) * WIDTH;
                let mut flows = vec![input[of_sample.clone()].to_vec()];
                for layer in 0..LAYERS {
                    let (weight, from) = (&weights[&model.weight(layer)], flows[layer].clone());
                    let dot = |row: usize| (0..WIDTH).map(|at| weight[row * WIDTH + at] * from[at]).sum();
                    flows.push((0..WIDTH).map(dot).collect());
                }
                let count = (SAMPLES * WIDTH * microbatches) as f64;
                let rest: Vec<f64> =
                    flows[LAYERS].iter().zip(&target[of_sample]).map(|(found, target)| found - target).collect();
                loss += rest.iter().map(|rest| rest * rest).sum::<f64>() / count;
                let mut back: Vec<f64> = rest.iter().map(|rest| 2.0 * rest / count).collect();
                for layer in (0..LAYERS).rev() {
                    let name = model.weight(layer);
                    let (weight, gradient) = (&weights[&name], gradients.get_mut(&name).expect("a layer"));
                    for (at, sum) in gradient.iter_mut().enumerate() {
                        *sum += back[at / WIDTH] * flows[layer][at % WIDTH];
                    }
                    back = (0..WIDTH)
                        .map(|column| (0..WIDTH).map(|row| back[row] * weight[row * WIDTH + column]).sum())
                        .collect();
                }
            }
        }
        losses.push(loss);
        let count = step as i32 + 1;
        for (name, weight) in &mut weights {
            for at in 0..weight.len() {
                let gradient = gradients[name][at];
                let decayed = weight[at] * (1.0 - learning_rate * weight_decay);
                if model.optimizer == Optimizer::Sgd {
                    weight[at] = decayed - learning_rate * gradient;
                    continue;
                }
                let mean = &mut means.get_mut(name).expect("a layer")[at];
                *mean = beta1 * *mean + (1.0 - beta1) * gradient;
                let square = &mut squares.get_mut(name).expect("a layer")[at];
                *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
                let (mean, square) = (*mean / (1.0 - beta1.powi(count)), *square / (1.0 - beta2.powi(count)));
                weight[at] = decayed - learning_rate * mean / (square.sqrt() + epsilon);
            }
        }
    }
    (losses, weights)
}

fn assert_trains_as_plain(model: Linears, shape: (&str, usize, usize, u32)) {
    let report = train(&workload(model, shape), &options());
    let (losses, weights) = plain(model, shape.2 * shape.3 as usize);
    assert_eq!(report.losses().len(), losses.len(), "{shape:?}");
    for (found, expected) in report.losses().iter().zip(&losses) {
        assert!((found - expected).abs() < 1e-12, "{shape:?}: a loss of {found} for {expected}");
    }
    assert!(report.weights.keys().eq(weights.keys()), "{shape:?}: {:?}", report.weights.keys());
    for (name, expected) in &weights {
        let Buffer::F64(found) = &report.weights[name] else { panic!("{name} in f64") };
        let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-12, "{shape:?}: {name} is {apart} off");
    }
}

/// Eight layers in 1, 2, 4 and 8 stages, with chunks, in both directions, with B and W apart, with replicas.
#[test]
fn eight_linears_train_as_a_plain_loop_does() {
    let shapes = [
        ("gpipe", 1, 4, 1),
        ("gpipe", 4, 4, 1),
        ("1f1b", 2, 4, 1),
        ("1f1b", 8, 8, 1),
        ("interleaved-1f1b", 4, 8, 1),
        ("zb-h1", 4, 6, 1),
        ("zb-v", 4, 8, 1),
        ("chimera", 4, 8, 1),
        ("dualpipe-v", 2, 8, 1),
        ("1f1b", 4, 4, 2),
        ("interleaved-1f1b", 2, 4, 3),
    ];
    for shape in shapes {
        for optimizer in [Optimizer::AdamW, Optimizer::Sgd] {
            assert_trains_as_plain(Linears { tied: false, optimizer }, shape);
        }
    }
}

/// The last layer is the first one again: in one stage, on two ranks, on two chunks of one rank.
#[test]
fn a_weight_of_several_stages_is_one() {
    for shape in [("1f1b", 1, 4, 1), ("1f1b", 4, 4, 1), ("zb-v", 4, 8, 1), ("1f1b", 2, 4, 2)] {
        assert_trains_as_plain(Linears { tied: true, optimizer: Optimizer::AdamW }, shape);
    }
}

/// With 1F1B rank r holds at most P − r microbatches, each with the inputs and gradients of its layers, and in the last stage
/// one difference of the output and its target, which backward takes at once.
#[test]
fn what_stages_keep_is_counted() {
    let report = train(&workload(ADAMW, ("1f1b", 4, 8, 1)), &options());
    let row = (8 * SAMPLES * WIDTH) as u64;
    for (rank, memory) in report.memory.iter().enumerate() {
        // Two layers: their inputs are kept by all that are under way, their gradients are added up at once.
        let difference = if rank == 3 { row } else { 0 };
        assert_eq!(memory.activation_bytes, (4 - rank as u64) * (2 * row + difference), "rank {rank}");
        // Two weights with gradient, mean and square.
        assert_eq!(memory.persistent_bytes, 2 * 4 * 8 * 64, "rank {rank}");
    }
}

/// A checkpoint after two of four steps goes on with other stages, orders and replicas.
#[test]
fn stages_go_on_from_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let saving = Some(Saving { folder: folder.path().to_path_buf(), every: 2 });
    let whole = train(&workload(ADAMW, ("zb-h1", 4, 8, 1)), &RunOptions { steps: 4, ..options() });
    train(&workload(ADAMW, ("1f1b", 4, 4, 2)), &RunOptions { steps: 2, saving, ..options() });
    let resume = Some(Checkpoint::open(folder.path()).expect("a checkpoint"));
    for shape in [("gpipe", 1, 8, 1), ("zb-v", 2, 4, 2), ("chimera", 4, 8, 1)] {
        let rest = train(&workload(ADAMW, shape), &RunOptions { steps: 4, resume: resume.clone(), ..options() });
        for (found, expected) in rest.losses().iter().zip(&whole.losses()[2..]) {
            assert!((found - expected).abs() < 1e-12, "{shape:?}: {found} {expected}");
        }
        assert_eq!(rest.losses().len(), 2);
    }
    let other = Linears { tied: true, ..ADAMW };
    let refused = run(
        &workload(other, ("gpipe", 1, 8, 1)),
        &RunOptions { steps: 4, resume: resume.clone(), ..options() },
        &mut Silent,
    );
    let text = refused.expect_err("another model").to_string();
    assert!(text.contains("its model differs"), "{text}");
    let sgd = Linears { optimizer: Optimizer::Sgd, ..ADAMW };
    let refused = run(&workload(sgd, ("gpipe", 1, 8, 1)), &RunOptions { steps: 4, resume, ..options() }, &mut Silent);
    let text = refused.expect_err("another optimizer").to_string();
    assert!(text.contains("optimizer"), "{text}");
}

/// Ranks that are apart, over TCP, as threads of this test.
#[test]
fn stages_over_tcp_train_as_threads_do_bit_for_bit() {
    let shape = ("1f1b", 2, 4, 2);
    let expected = train(&workload(ADAMW, shape), &options()).losses();
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port").port();
    let rank = |rank: usize| -> Result<Vec<f64>, Box<dyn Error + Send + Sync>> {
        let patience = Duration::from_secs(30);
        let secret = Secret::new("a test of stages");
        let tcp = Tcp::connect(rank, 4, ("127.0.0.1", port), &secret, 1 << 20, patience)?;
        let options = RunOptions { keep_weights: false, ..options() };
        let ending = run_process(&workload(ADAMW, shape), &options, Processes::new(tcp, patience), &mut Silent)?;
        Ok(match ending {
            Ending::First(report) => report.losses(),
            Ending::Other { .. } => Vec::new(),
        })
    };
    let all = thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..4).map(|of| scope.spawn(move || rank(of).map_err(|error| error.to_string()))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("a rank")).collect::<Vec<_>>()
    });
    assert_eq!(all[0], expected);
}

/// candle's own gradients of the whole model, updated by hand.
#[test]
fn a_framework_of_tensors_trains_stages() {
    let (rate, decay) = (0.01f32, 0.1f32);
    let var = |values: Vec<f32>, is_matrix: bool| {
        let width = candle_stages::WIDTH;
        match is_matrix {
            true => Var::from_vec(values, (width, width), &Device::Cpu),
            false => Var::from_vec(values, width, &Device::Cpu),
        }
        .expect("a variable")
    };
    let layers = (0..candle_stages::LAYERS).map(|layer| {
        let [matrix, bias] = candle_stages::start(layer);
        [var(matrix, true), var(bias, false)]
    });
    let layers: Vec<[Var; 2]> = layers.collect();
    let mut expected = Vec::new();
    for _ in 0..STEPS {
        let step = || -> candle_core::Result<f32> {
            let mut losses = Vec::new();
            for microbatch in 0..8 {
                let shape = (candle_stages::SAMPLES, candle_stages::WIDTH);
                let [input, target] = candle_stages::samples(microbatch)
                    .map(|values| candle_core::Tensor::from_vec(values, shape, &Device::Cpu));
                let mut flow = input?;
                for [matrix, bias] in &layers {
                    flow = candle_stages::layer(&flow, matrix, bias)?;
                }
                losses.push((flow - target?)?.sqr()?.mean_all()?);
            }
            let loss = candle_core::Tensor::stack(&losses, 0)?.mean_all()?;
            let gradients = loss.backward()?;
            for (at, var) in layers.iter().flatten().enumerate() {
                let gradient = gradients.get(var).expect("of every weight");
                let kept = if at % 2 == 0 { 1.0 - rate * decay } else { 1.0 };
                var.set(&((var.as_tensor() * f64::from(kept))? - (gradient * f64::from(rate))?)?)?;
            }
            loss.to_scalar()
        };
        expected.push(step().expect("candle computes"));
    }
    for (name, ranks, microbatches, replicas) in [("zb-h1", 4, 8, 1), ("1f1b", 2, 4, 2), ("zb-v", 4, 8, 1)] {
        let workload = candle_stages::workload(name, ranks, microbatches, replicas).expect("a plan");
        let found = train(&workload, &options()).losses();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((*found as f32 - expected).abs() < 1e-6 * expected, "{name}: {found} {expected}");
        }
    }
}

/// A rank that dies gets its stages' state from the other replica, and the run ends with the bits of an unbroken one.
#[test]
fn stages_go_on_after_a_rank_has_died() {
    let plan = plan("1f1b", 2, 4).expect("a plan");
    // Both replicas hold all of the state.
    let staged = Staged { model: Arc::new(ADAMW), replicas: 2, shares_optimizer: false };
    let workload = Workload::of_stages(&plan, staged);
    let whole = train(&workload, &options());
    for (rank, at) in [(0, 3), (1, 20), (2, 31)] {
        let faults = vec![(rank, Faults { death: Some(at), ..Faults::default() })];
        let restarting = Restarting { most: 1, ..Restarting::default() };
        let broken = RunOptions { faults, restarting, ..options() };
        let report = run_restarting(&workload, &broken, &mut Silent).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((report.losses(), report.weights), (whole.losses(), whole.weights.clone()), "rank {rank} at {at}");
        assert_eq!(report.restarts.len(), 1, "rank {rank} at {at}");
    }
}

/// What is copied for restarts: weights and both moments of four layers, of two steps.
#[test]
fn copies_for_restarts_are_counted() {
    let plan = plan("1f1b", 2, 4).expect("a plan");
    let staged = Staged { model: Arc::new(ADAMW), replicas: 2, shares_optimizer: false };
    let workload = Workload::of_stages(&plan, staged);
    let restarting = Restarting { kept: Some(Arc::new(Kept::new(&workload))), ..Restarting::default() };
    assert_eq!(workload.restart_bytes(&RunOptions { restarting, ..options() }), [2 * 3 * 8 * 4 * 64; 2]);
    assert_eq!(workload.restart_bytes(&options()), [0; 2]);
}

/// Whole numbers, so that sums over ranks are exact in any order.
#[test]
fn a_function_of_parts_of_tensors_gives_what_one_rank_gives() {
    for ranks in [1, 2, 4] {
        let (found, alone) = local_map::outputs(ranks).expect("it maps");
        assert!(found.len() == ranks && found.iter().all(|found| *found == alone), "{ranks}: {found:?} {alone:?}");
        assert!(alone.iter().any(|value| *value != 0.0));
    }
}

/// A model with a fault.
struct Faulty(&'static str);

impl StagedModel for Faulty {
    fn name(&self) -> String {
        "faulty".to_string()
    }

    fn parameters(&self, stage: usize, stages: usize) -> Vec<StageParameter> {
        let mut parameters = ADAMW.parameters(stage, stages);
        match self.0 {
            "missing" => drop(parameters.pop()),
            "twice" => parameters.push(parameters[0].clone()),
            "shape" => {
                let shape = vec![8, 8 + stage];
                parameters
                    .iter_mut()
                    .for_each(|all| *all = StageParameter { name: "w".into(), shape: shape.clone(), ..all.clone() });
            }
            "longer" => parameters[0].shape = vec![8, 9],
            _ => {}
        }
        parameters
    }

    fn stage(&self, seat: StageSeat) -> Result<Box<dyn Stage>, StageError> {
        match self.0 {
            "made" => Err(StageError("there is no file of weights".to_string())),
            // A stage in the middle takes itself for the last one, the last one for one in the middle, and so on.
            "loss" => ADAMW.stage(StageSeat { stage: seat.stages - 1, ..seat }),
            "activation" => ADAMW.stage(StageSeat { stage: 1, ..seat }),
            "gradient" => ADAMW.stage(StageSeat { stage: seat.stage.max(1), ..seat }),
            _ => ADAMW.stage(seat),
        }
    }

    fn dtype(&self) -> Dtype {
        match self.0 {
            "f32" => Dtype::F32,
            "bf16" => Dtype::Bf16,
            _ => Dtype::F64,
        }
    }
}

#[test]
fn what_is_wrong_with_a_stage_is_said_with_its_number() {
    let faults = [
        ("made", ": there is no file of weights"),
        ("missing", "it lends 1 parameters, and its model declares 0"),
        ("twice", "declares two weights named `layers.0.weight`"),
        ("shape", "`w` has the shape [8, 8] in stage 0 and [8, 9] in stage 1"),
        ("longer", "has 64 elements in f64, and its model declares 72 in f64"),
        ("f32", ".weight` has 64 elements in f64, and its model declares 64 in f32"),
        ("bf16", "their dtype is bf16: use f32 or f64"),
        ("loss", "stage 0: forward returned a loss, and another stage comes behind it"),
        ("activation", "forward returned an activation, and no stage comes behind it"),
        ("gradient", "stage 0: backward_input returned a gradient, and no stage comes before it"),
    ];
    for (fault, expected) in faults {
        let plan = plan("1f1b", 8, 8).expect("a plan");
        let staged = Staged { model: Arc::new(Faulty(fault)), replicas: 1, shares_optimizer: false };
        let error = run(&Workload::of_stages(&plan, staged), &options(), &mut Silent).expect_err(fault);
        let text = match &error {
            RunError::Failed(failure) => failure.cause.to_string(),
            other => other.to_string(),
        };
        assert!(text.contains(expected), "{fault}: {text}");
    }
    let of_models = RunOptions { text: b"a text".to_vec(), ..options() };
    let error = run(&workload(ADAMW, ("1f1b", 2, 4, 1)), &of_models, &mut Silent).expect_err("a text");
    assert!(error.to_string().contains("stages take their own data"), "{error}");
}
