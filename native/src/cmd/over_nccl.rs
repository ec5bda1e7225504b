//! Ranks in processes of their own on one card, through the real NCCL: a part of `pipeplan selftest`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pipeplan::selftest::{Row, child};
use pipeplan::transport::nccl::{Library, Version};
use serde_json::Value;

use super::selftest_worker::Variables;

const GROUP: &str = "NCCL";

/// Two stages, two copies, which share out the optimizer's state: messages, reduce-scatters and all-gathers.
const SPEC: &str = "schedule = \"1f1b\"\n[model]\nname = \"tiny-llama\"\nlayers = 2\n[cluster]\ndevice = \"cpu\"\n\
                    [parallel]\npipeline = 2\ndata = 2\nzero = 1\n[training]\nmicrobatches = 4\nsequence = 32\n";

/// Whether four processes on GPU `gpu`, opened with `variables`, train as four threads do.
pub fn check(gpu: usize, deadline: Instant, variables: Variables) -> Row {
    const NAME: &str = "4 ranks in 4 processes on one card train as threads do";
    let library = match Library::load() {
        Ok(library) => library,
        Err(_) => return Row::figure(GROUP, NAME, "not run".to_string(), "NCCL was not found".to_string()),
    };
    if library.version() < Version::SHARES_GPUS {
        let against = format!("NCCL {} takes one rank a GPU; {} takes more", library.version(), Version::SHARES_GPUS);
        return Row::figure(GROUP, NAME, "not run".to_string(), against);
    }
    match losses_apart(gpu, deadline, variables) {
        // NCCL chooses the order of a sum, and the mean of two is rounded once or twice.
        Ok(error) => Row::error(GROUP, NAME, error, 1e-5),
        Err(error) => Row::broken(GROUP, NAME, &error),
    }
}

/// The greatest relative difference of losses.
fn losses_apart(gpu: usize, deadline: Instant, variables: Variables) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (spec, plan) = (folder.path().join("spec.toml"), folder.path().join("plan.json"));
    std::fs::write(&spec, SPEC).map_err(|error| error.to_string())?;
    pipeplan(&["plan", &spec.to_string_lossy(), "-o", &plan.to_string_lossy()], deadline, variables)?;
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
    child::run(&mut command, deadline).map(|said| said.output)
}
