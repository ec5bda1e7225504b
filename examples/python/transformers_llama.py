"""Cuts a model of transformers into the stages of a plan, and trains it over gloo.

    torchrun --nproc-per-node 2 examples/python/transformers_llama.py [llama|gpt2|qwen3[:SCHEDULE] ...]

Gradients are held against those of the model in one piece. The embeddings of GPT-2 and Qwen3 are tied: the first and the last
stage share a weight, and both have the sum of its gradients.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3Config

import pipeplan
from pipeplan.torch import PlanSchedule, split

CONFIGS = {
    "llama": LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=128, max_position_embeddings=64, tie_word_embeddings=False),
    "gpt2": GPT2Config(n_embd=32, n_layer=6, n_head=4, n_inner=128, vocab_size=128, n_positions=64, tie_word_embeddings=True,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "qwen3": Qwen3Config(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, head_dim=8,
                         num_key_value_heads=2, vocab_size=128, max_position_embeddings=64, tie_word_embeddings=True),
}


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def check(kind: str, schedule: str) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = CONFIGS[kind]
    spec = pipeplan.Spec(config, device="cpu", pipeline=ranks, microbatches=4, sequence=16, chunks=2)
    plan = pipeplan.plan(spec, schedule)

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).double()
    tokens = torch.randint(config.vocab_size, (4, 17), generator=torch.Generator().manual_seed(1))
    # The mean of the microbatches is that of the batch: all have as many tokens.
    expected = loss_of(model(tokens[:, :-1], use_cache=False).logits, tokens[:, 1:])
    expected.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    stages = split(model, plan, rank)
    losses: list = []
    PlanSchedule(plan, stages, loss_of).step(tokens[:, :-1], target=tokens[:, 1:], losses=losses)
    mine = {id(parameter) for stage in stages.values() for parameter in stage.parameters()}
    worst = max((parameter.grad - wanted[name]).abs().max().item()
                for name, parameter in model.named_parameters() if id(parameter) in mine)
    tied = any(stage.tied_parameters for stage in stages.values())
    print(f"rank {rank}: {kind} by {schedule}, stages {sorted(stages)}{', tied' if tied else ''}, "
          f"gradients differ by {worst:.1e} at most", flush=True)
    assert worst < 1e-10
    if len(losses) == plan.microbatches:
        assert abs(torch.stack(losses).mean().item() - expected.item()) < 1e-10


def main() -> None:
    dist.init_process_group("gloo")
    for asked in sys.argv[1:] or ["llama"]:
        kind, _, schedule = asked.partition(":")
        check(kind, schedule or "zb-v")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
