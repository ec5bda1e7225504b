"""One process of the test of ``pipeplan.megatron``: a tiny GPT of Megatron-Core by plans, over gloo on a CPU.

    python megatron_worker.py RANK RANKS RENDEZVOUS PLANS
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch
import torch.distributed as dist

from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

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
    labels = tokens[:, 1:] if getattr(model, "post_process", False) else None
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


def main() -> None:
    rank, ranks, rendezvous, plans = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    with open(plans) as file:
        given = json.load(file)
    print(json.dumps({name: run(text, int(rank)) for name, text in given.items()}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
