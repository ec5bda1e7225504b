//! What the names of ranges mean, by the runtime that gives them.
//!
//! | Runtime | Forward, backward | Says |
//! |---|---|---|
//! | torch, `_PipelineScheduleRuntime` | `PP:1F3`, `PP:1B3` | stage and microbatch |
//! | torch, `ScheduleGPipe` | `Forward 3`, `Backward 3` | microbatch |
//! | torch, `Schedule1F1B` | `forward_one_chunk`, `backward_one_chunk` of `pipelining/stage.py` | |
//! | Megatron-LM | `forward_step`, `backward_step` of `pipeline_parallel/schedules.py` | |
//! | DeepSpeed | `_exec_forward_pass`, `_exec_backward_pass` of `runtime/pipe/engine.py` | |
//!
//! The last three put no ranges around them. torch.profiler records Python's functions with `with_stack=True`, under names such
//! as `megatron/core/pipeline_parallel/schedules.py(539): backward_step`. Nsight Systems records those that
//! `--python-functions-trace` lists, and ranges of NVTX with the name of the function, or that of Megatron-LM's timer
//! (`forward-compute`).

use alloc::string::{String, ToString};

use crate::notation::torch_csv;
use crate::problem::op::Op;
use crate::program::P2pOp;
use crate::trace::collectives::{CollectiveKind, GroupKind};

/// What a range is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// An op with its stage and microbatch.
    Op(Op),
    /// Several ops in one range, which cannot be told apart.
    Pair(String),
    /// Where a receive is launched.
    Receive(P2pOp),
    /// A forward or a backward of the rank's next microbatch, or of that with a number.
    Job(Job),
    /// A step of the profiler with its number.
    Step(u64),
    /// A module of torch, such as `GPTModel_0`.
    Module,
    /// A rank that holds several chunks runs them by a schedule of Megatron-LM.
    Interleaved,
    /// A send to, or a receive from another rank, over gloo.
    Send,
    Arrival,
    /// A collective over gloo.
    Together(CollectiveKind),
}

/// A job whose stage its range does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub is_backward: bool,
    pub microbatch: Option<usize>,
}

const FORWARDS: [&str; 4] = ["forward_step", "forward-compute", "_exec_forward_pass", "forward_one_chunk"];
const BACKWARDS: [&str; 5] =
    ["backward_step", "backward_step_multimodule", "backward-compute", "_exec_backward_pass", "backward_one_chunk"];
/// The files whose functions these are.
const FILES: [&str; 3] =
    ["pipeline_parallel/schedules.py", "runtime/pipe/engine.py", "distributed/pipelining/stage.py"];
/// What the name of a function of Python contains if it means anything: part of a file's name, or a call of a module.
pub(in crate::formats) const PYTHON_OF_USE: [&str; 4] =
    ["pipeline_parallel/", "runtime/pipe/engine.py", "distributed/pipelining/stage.py", MODULE];
const MODULE: &str = "nn.Module: ";
/// Of Megatron-LM: layers of a forward and of a backward in turn.
const COMBINED: [&str; 3] = [
    "combined_forward_backward_step",
    "combined_1f1b_schedule_for_interleaved_pipelining",
    "combined_1f1b_schedule_for_no_pipelining",
];
const INTERLEAVED: &str = "forward_backward_pipelining_with_interleaving";

/// Of a range that a program marked, by torch's `record_function` or NVTX.
pub(super) fn of_range(name: &str) -> Option<Meaning> {
    if let Some(action) = name.strip_prefix("PP:") {
        if action.starts_with('(') {
            return Some(Meaning::Pair(action.to_string()));
        }
        let op = torch_csv::op(action).map(Meaning::Op);
        return op.or_else(|| action.parse().ok().map(Meaning::Receive));
    }
    if let Some(number) = name.strip_prefix("ProfilerStep#") {
        return number.parse().ok().map(Meaning::Step);
    }
    for (word, is_backward) in [("Forward ", false), ("Backward ", true)] {
        if let Some(number) = name.strip_prefix(word) {
            let microbatch = number.parse().ok()?;
            return Some(Meaning::Job(Job { is_backward, microbatch: Some(microbatch) }));
        }
    }
    match name {
        "gloo:send" => return Some(Meaning::Send),
        "gloo:recv" => return Some(Meaning::Arrival),
        _ => {}
    }
    if let Some(op) = name.strip_prefix("gloo:") {
        return of_collective(op).map(Meaning::Together);
    }
    // `megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving.warmup`
    if name.contains(INTERLEAVED) {
        return Some(Meaning::Interleaved);
    }
    let function = name.rsplit(['.', ':', '/']).next()?.trim();
    of_function(function)
}

/// Of a function of Python, `megatron/core/pipeline_parallel/schedules.py(539): backward_step`.
pub(super) fn of_python(name: &str) -> Option<Meaning> {
    if name.starts_with(MODULE) {
        return Some(Meaning::Module);
    }
    let (place, function) = name.rsplit_once(": ")?;
    let (file, _) = place.rsplit_once('(')?;
    if function.starts_with("combined_") && file.ends_with("pipeline_parallel/combined_1f1b.py") {
        return of_function(function);
    }
    if !FILES.iter().any(|known| file.ends_with(known)) {
        return None;
    }
    if function == INTERLEAVED { Some(Meaning::Interleaved) } else { of_function(function) }
}

fn of_function(function: &str) -> Option<Meaning> {
    if COMBINED.contains(&function) {
        return Some(Meaning::Pair(function.to_string()));
    }
    let is_backward = BACKWARDS.contains(&function);
    (is_backward || FORWARDS.contains(&function)).then_some(Meaning::Job(Job { is_backward, microbatch: None }))
}

/// The operator of a name that torch's `emit_nvtx` gives, `aten::addmm, op_id = 7, seq = 12`, and its number in autograd.
pub(super) fn of_nvtx_operator(name: &str) -> Option<(&str, Option<u64>)> {
    let (operator, rest) = name.split_once(", ").unwrap_or((name, ""));
    let is_one = operator.contains("::") && !operator.contains(' ') || operator.starts_with(EVALUATES);
    let number = rest.split(", ").find_map(|part| part.strip_prefix("seq = "))?;
    is_one.then(|| (operator, number.parse().ok()))
}

/// Of a collective as torch names it: `all_reduce`, `_reduce_scatter_base`.
fn of_collective(op: &str) -> Option<CollectiveKind> {
    let known = [
        ("all_reduce", CollectiveKind::AllReduce),
        ("allreduce", CollectiveKind::AllReduce),
        ("reduce_scatter", CollectiveKind::ReduceScatter),
        ("all_gather", CollectiveKind::AllGather),
        ("all_to_all", CollectiveKind::AllToAll),
        ("broadcast", CollectiveKind::Broadcast),
    ];
    let op = op.trim_start_matches('_');
    known.into_iter().find(|(name, _)| op.starts_with(name)).map(|(_, kind)| kind)
}

/// Of a kernel of NCCL: `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, before NCCL 2.19 `ncclKernel_…`.
pub(super) fn of_kernel(name: &str) -> Option<CollectiveKind> {
    let op = name.strip_prefix("ncclDevKernel_").or_else(|| name.strip_prefix("ncclKernel_"))?;
    let known = [
        ("AllReduce", CollectiveKind::AllReduce),
        ("ReduceScatter", CollectiveKind::ReduceScatter),
        ("AllGather", CollectiveKind::AllGather),
        ("Broadcast", CollectiveKind::Broadcast),
    ];
    known.into_iter().find(|(name, _)| op.starts_with(name)).map(|(_, kind)| kind)
}

/// Of a group's description, as Megatron-LM (`TENSOR_MODEL_PARALLEL_GROUP`) and DeviceMesh (`mesh_dp`) give it.
pub(super) fn of_group(description: &str) -> Option<GroupKind> {
    let description = description.to_ascii_lowercase();
    let known = [
        ("embedding", GroupKind::Embedding),
        ("expert_model_parallel", GroupKind::Expert),
        ("data_parallel", GroupKind::Data),
        ("tensor_model_parallel", GroupKind::Tensor),
        ("context_parallel", GroupKind::Context),
    ];
    let found = known.into_iter().find(|(part, _)| description.contains(part)).map(|(_, kind)| kind);
    found.or(match description.trim_start_matches("mesh_") {
        "dp" | "dp_shard" | "dp_replicate" | "dp_shard_cp" | "fsdp" => Some(GroupKind::Data),
        "tp" => Some(GroupKind::Tensor),
        "cp" => Some(GroupKind::Context),
        "ep" => Some(GroupKind::Expert),
        _ => None,
    })
}

/// What autograd calls the operators that run a node of the graph.
pub(super) const EVALUATES: &str = "autograd::engine::evaluate_function";

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as the runtimes write them: torch 2.15, Megatron-LM 0.16, DeepSpeed 0.19.
    #[test]
    fn names_of_each_runtime_are_known() {
        let job = |is_backward, microbatch| Some(Meaning::Job(Job { is_backward, microbatch }));
        assert_eq!(of_range("Forward 3"), job(false, Some(3)));
        assert_eq!(of_range("Backward 12"), job(true, Some(12)));
        assert_eq!(of_range("Forward pass"), None);
        assert_eq!(of_range("forward-compute"), job(false, None));
        assert_eq!(of_range("megatron.core.pipeline_parallel.schedules.backward_step"), job(true, None));
        assert_eq!(
            of_range(
                "megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving.steady"
            ),
            Some(Meaning::Interleaved)
        );
        assert_eq!(of_python("megatron/core/pipeline_parallel/schedules.py(539): backward_step"), job(true, None));
        assert_eq!(of_python("deepspeed/runtime/pipe/engine.py(722): _exec_forward_pass"), job(false, None));
        assert_eq!(of_python("torch/distributed/pipelining/stage.py(1142): forward_one_chunk"), job(false, None));
        // The user's own function of that name is called by Megatron-LM's.
        assert_eq!(of_python("pretrain_gpt.py(212): forward_step"), None);
        assert_eq!(of_python("nn.Module: GPTModel_1"), Some(Meaning::Module));
        assert_eq!(
            of_python("megatron/core/pipeline_parallel/combined_1f1b.py(281): combined_forward_backward_step"),
            Some(Meaning::Pair("combined_forward_backward_step".to_string()))
        );
        assert_eq!(of_nvtx_operator("aten::addmm, op_id = 7, seq = 12"), Some(("aten::addmm", Some(12))));
        assert_eq!(
            of_nvtx_operator("autograd::engine::evaluate_function: AddmmBackward0, seq = 5"),
            Some(("autograd::engine::evaluate_function: AddmmBackward0", Some(5)))
        );
        assert_eq!(of_nvtx_operator("forward_step"), None);
        assert_eq!(of_range("gloo:_reduce_scatter_base"), Some(Meaning::Together(CollectiveKind::ReduceScatter)));
        assert_eq!(of_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)"), Some(CollectiveKind::AllReduce));
        assert_eq!(of_kernel("ncclDevKernel_SendRecv(args)"), None);
        assert_eq!(of_group("DATA_PARALLEL_GROUP_WITH_CP"), Some(GroupKind::Data));
        assert_eq!(of_group("TENSOR_MODEL_PARALLEL_GROUP"), Some(GroupKind::Tensor));
        assert_eq!((of_group("mesh_tp"), of_group("default_pg")), (Some(GroupKind::Tensor), None));
    }
}
