"""One process of the test of ``pipeplan.megatron``: a tiny GPT of Megatron-Core by plans, over gloo on a CPU.

    python megatron_worker.py RANK RANKS RENDEZVOUS PLANS

With four ranks there are two pipelines of two: their gradients are synced by Megatron-Core's DistributedDataParallel, and
parameters are updated by its optimizer, distributed or not.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model

import pipeplan
from pipeplan.megatron import forward_backward_func

VOCAB, LENGTH, SIZE = 32, 8, 2


class Attention(torch.nn.Module):
    """Core attention on a CPU: Megatron-Core's own asks for a GPU's random states."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__()

    def forward(self, query, key, value, *args, **kwargs):
        """Shapes (sequence, batch, heads, head dim) to (sequence, batch, hidden)."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)


def layers():
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = Attention
    return spec


def chunks_of(plan: pipeplan.Plan) -> list[torch.nn.Module]:
    """All stages, equal in all processes."""
    config = TransformerConfig(
        num_layers=len(plan.stages), hidden_size=16, num_attention_heads=2, use_cpu_initialization=True,
        pipeline_model_parallel_size=plan.ranks, pipeline_dtype=torch.float32, attention_dropout=0.0, hidden_dropout=0.0,
        virtual_pipeline_model_parallel_size=plan.chunks if plan.chunks > 1 else None,
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
    )
    chunks = []
    for stage in range(len(plan.stages)):
        torch.manual_seed(stage)
        chunks.append(GPTModel(config, layers(), vocab_size=VOCAB, max_sequence_length=LENGTH,
                               pre_process=stage == 0, post_process=stage == len(plan.stages) - 1,
                               share_embeddings_and_output_weights=False,
                               vp_stage=0 if plan.chunks > 1 else None))
    return chunks


def loss_func(output: torch.Tensor):
    loss = output.mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(iterator, model):
    tokens = next(iterator)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    labels = tokens[:, 1:] if get_attr_wrapped_model(model, "post_process") else None
    return model(tokens[:, :-1], torch.arange(LENGTH)[None], mask, labels=labels), partial(loss_func)


def run(text: str, rank: int) -> dict:
    plan = pipeplan.Plan(text)
    parallel_state.initialize_model_parallel(
        1, plan.ranks, virtual_pipeline_model_parallel_size=plan.chunks if plan.chunks > 1 else None)
    batches = torch.randint(VOCAB, (plan.microbatches, SIZE, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    whole, expected = chunks_of(plan), []
    for k in range(plan.microbatches):
        hidden = None
        for chunk in whole:
            chunk.set_input_tensor([hidden])
            hidden, loss = forward_step(iter([batches[k]]), chunk)
        value, said = loss(hidden)
        (value / plan.microbatches).backward()
        expected.append(said["lm loss"].item())
    mine = [stage.index for stage in plan.stages if rank in stage.ranks]
    chunks = [chunks_of(plan)[stage] for stage in mine]
    step = forward_backward_func(plan)
    losses = step(forward_step_func=forward_step, data_iterator=[iter(batches) for _ in chunks], model=chunks,
                  num_microbatches=plan.microbatches, seq_length=LENGTH, micro_batch_size=SIZE)
    worst = 0.0
    for stage, chunk in zip(mine, chunks):
        for parameter, other in zip(chunk.parameters(), whole[stage].parameters()):
            worst = max(worst, (parameter.grad - other.grad).abs().max().item() / (other.grad.abs().max().item() or 1.0))
    found = {"gradient_error": worst, "order": " ".join(step.ran) == plan.program[rank], "losses": len(losses)}
    if losses:
        found["loss_error"] = abs(sum(said["lm loss"].item() for said in losses) - sum(expected))
        only = step(forward_step_func=forward_step, data_iterator=[iter(batches) for _ in chunks], model=chunks,
                    num_microbatches=plan.microbatches, seq_length=LENGTH, micro_batch_size=SIZE, forward_only=True)
        assert [said["lm loss"].item() for said in only] == [said["lm loss"].item() for said in losses]
    else:
        step(forward_step_func=forward_step, data_iterator=[iter(batches) for _ in chunks], model=chunks,
             num_microbatches=plan.microbatches, seq_length=LENGTH, micro_batch_size=SIZE, forward_only=True)
    parallel_state.destroy_model_parallel()
    return found


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what Megatron-Core makes on the GPU without asking: buffers of gradients, and flags."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1:  # the distributed optimizer looks for torch.cuda.FloatTensor
            return function(*args).replace("torch.", "torch.cuda.")
        return function(*args, **kwargs)


def run_replicas(text: str, rank: int, distributed: bool, overlap: bool) -> dict:
    """Two steps of two pipelines, each with half of the batch."""
    plan = pipeplan.Plan(text)
    parallel_state.initialize_model_parallel(
        1, plan.ranks, virtual_pipeline_model_parallel_size=plan.chunks if plan.chunks > 1 else None)
    place, replica = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_data_parallel_rank()
    count = plan.microbatches
    # A large epsilon: updates are then nearly proportional to gradients.
    rate, eps = 0.1, 1.0
    whole = chunks_of(plan)
    adam = torch.optim.AdamW([p for chunk in whole for p in chunk.parameters()], lr=rate, eps=eps, weight_decay=0.0)
    mine = [stage.index for stage in plan.stages if place in stage.ranks]
    parts = [chunks_of(plan)[stage] for stage in mine]
    settings = DistributedDataParallelConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=overlap)
    chunks = [DistributedDataParallel(part.config, settings, part) for part in parts]
    for chunk in chunks:
        chunk.config.no_sync_func = [c.no_sync for c in chunks] if len(chunks) > 1 else chunks[0].no_sync
        chunk.config.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=rate, adam_eps=eps, weight_decay=0.0, clip_grad=0.0, use_distributed_optimizer=distributed), chunks)
    step = forward_backward_func(plan)
    gradient_error = weight_error = moved = 0.0
    for turn in range(2):
        batches = torch.randint(VOCAB, (2 * count, SIZE, LENGTH + 1), generator=torch.Generator().manual_seed(turn))
        adam.zero_grad()
        for k in range(2 * count):
            hidden = None
            for chunk in whole:
                chunk.set_input_tensor([hidden])
                hidden, loss = forward_step(iter([batches[k]]), chunk)
            (loss(hidden)[0] / (2 * count)).backward()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        own = batches[replica * count:(replica + 1) * count]
        step(forward_step_func=forward_step, data_iterator=[iter(own) for _ in chunks], model=chunks,
             num_microbatches=count, seq_length=LENGTH, micro_batch_size=SIZE)
        if not distributed:  # where it is, each rank has the sum of a part alone
            for stage, part in zip(mine, parts):
                for parameter, other in zip(part.parameters(), whole[stage].parameters()):
                    scale = other.grad.abs().max().item() or 1.0
                    gradient_error = max(gradient_error, (parameter.main_grad - other.grad).abs().max().item() / scale)
        before = [parameter.detach().clone() for part in parts for parameter in part.parameters()]
        adam.step()
        updated, _, _ = optimizer.step()
        assert updated
        at = 0
        for stage, part in zip(mine, parts):
            for parameter, other in zip(part.parameters(), whole[stage].parameters()):
                weight_error = max(weight_error, (parameter - other).abs().max().item())
                moved = max(moved, (parameter - before[at]).abs().max().item())
                at += 1
    found = {"gradient_error": gradient_error, "weight_error": weight_error, "moved": moved,
             "order": " ".join(step.ran) == plan.program[place]}
    parallel_state.destroy_model_parallel()
    return found


def main() -> None:
    rank, ranks, rendezvous, plans = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    with open(plans) as file:
        given = json.load(file)
    if int(ranks) == 2:
        found = {name: run(text, int(rank)) for name, text in given.items()}
    else:
        torch.cuda.current_device = lambda: "cpu"
        with OnCpu():
            found = {f"{name} {'distributed ' * distributed}{'overlapped' * overlap}": run_replicas(text, int(rank), distributed, overlap)
                     for name, text in given.items() for distributed in (False, True) for overlap in (False, True)}
    print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
