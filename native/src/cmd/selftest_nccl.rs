//! Ranks in separate processes on one card, over the real NCCL: a part of `pipeplan selftest`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pipeplan::selftest::{Row, subprocess};
use pipeplan::transport::nccl::{Library, Version};
use serde_json::Value;

use super::selftest_worker::Variables;

const GROUP: &str = "NCCL";

/// What is spread over four processes, and how: messages between stages, and by kind of group what its ranks do together.
const SPREAD: [(&str, &str); 4] = [
    ("PP 2, DP 2, ZeRO 1", "pipeline = 2\ndata = 2\nzero = 1\n"),
    ("PP 2, TP 2, sequence parallel", "pipeline = 2\ntensor = 2\nsequence_parallel = true\n"),
    ("PP 2, CP 2", "pipeline = 2\ncontext = 2\n"),
    ("DP 4, EP 2, ZeRO 1", "pipeline = 1\ndata = 4\nzero = 1\nexpert = 2\n"),
];

fn spec(parallel: &str) -> String {
    let (experts, room) = match parallel.contains("expert") {
        true => ("experts = { count = 4, active = 2, ffn = 24 }\n", "expert_imbalance = 4\n"),
        false => ("", ""),
    };
    format!(
        "schedule = \"1f1b\"\n[model]\nname = \"own\"\nlayers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 96\n\
         vocab = 260\n{experts}[cluster]\ndevice = \"cpu\"\n[parallel]\n{parallel}[training]\nmicrobatches = 4\n\
         sequence = 32\n{room}"
    )
}

/// Whether four processes on GPU `gpu`, opened with `variables`, train as four threads do, in each way to spread a model.
pub fn check(gpu: usize, deadline: Instant, variables: Variables) -> Vec<Row> {
    const NAME: &str = "4 ranks in 4 processes on one card train as threads do";
    let library = match Library::load() {
        Ok(library) => library,
        Err(_) => return vec![Row::figure(GROUP, NAME, "not run".to_string(), "NCCL was not found".to_string())],
    };
    if library.version() < Version::SHARES_GPUS {
        let against =
            format!("NCCL {} supports one rank per GPU; {} supports more", library.version(), Version::SHARES_GPUS);
        return vec![Row::figure(GROUP, NAME, "not run".to_string(), against)];
    }
    let row = |(how, parallel)| {
        let name = format!("{NAME}: {how}");
        match losses_apart(&spec(parallel), gpu, deadline, variables) {
            // NCCL chooses the order of a sum, and the mean of two is rounded once or twice.
            Ok(error) => Row::error(GROUP, name, error, 1e-5),
            Err(error) => Row::broken(GROUP, name, &error),
        }
    };
    SPREAD.map(row).into()
}

/// The greatest relative difference of losses.
fn losses_apart(spec: &str, gpu: usize, deadline: Instant, variables: Variables) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (path, plan) = (folder.path().join("spec.toml"), folder.path().join("plan.json"));
    std::fs::write(&path, spec).map_err(|error| error.to_string())?;
    pipeplan(&["plan", &path.to_string_lossy(), "-o", &plan.to_string_lossy()], deadline, variables)?;
    let train = |transport| train(&plan, gpu, transport, deadline, variables);
    let (threads, over_nccl) = (train("threads")?, train("nccl")?);
    if threads.len() != over_nccl.len() || threads.is_empty() {
        return Err(format!("{} steps over NCCL, {} over threads", over_nccl.len(), threads.len()));
    }
    Ok(threads.iter().zip(&over_nccl).map(|(one, other)| (other / one - 1.0).abs()).fold(0.0, f64::max))
}

fn train(
    plan: &Path,
    gpu: usize,
    transport: &str,
    deadline: Instant,
    variables: Variables,
) -> Result<Vec<f64>, String> {
    let (plan, gpu) = (plan.to_string_lossy(), gpu.to_string());
    let on = ["run", &*plan, "--backend", "cuda", "--gpu", &*gpu, "--transport", transport];
    let said = pipeplan(&[&on[..], &["--steps", "4", "--patience", "60", "--json"]].concat(), deadline, variables)?;
    let summary: Value = serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
    Ok(summary["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect())
}

/// What this command prints when called again.
fn pipeplan(arguments: &[&str], deadline: Instant, variables: Variables) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied()).env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    // This process may have been started by a launcher, and those are none of its ranks.
    for variable in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    subprocess::run(&mut command, deadline).map(|said| said.output)
}
