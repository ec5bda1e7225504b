"""Trains the Llama 3 of torchtitan by a plan, over gloo on CPUs.

    torchrun --nproc-per-node 2 examples/python/torchtitan_train.py [SCHEDULE]

Model and configuration are torchtitan's; the stages and the order are the plan's. The losses are held against those of
the model in one piece.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry

import pipeplan
from pipeplan.torch import PlanSchedule, split

SEQUENCE, MICROBATCHES, STEPS = 16, 4, 3


def titan() -> torch.nn.Module:
    """torchtitan's debug model, equal in all processes, with an attention that CPUs have."""
    config = model_registry("debugmodel").model
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    return model


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, whole = titan(), titan()
    sizes = {"family": "llama", "layers": len(model.layers), "hidden": 256, "heads": 16, "ffn": 768, "vocab": 2048}
    plan = pipeplan.plan(pipeplan.Spec(model=sizes, device="cpu", pipeline=ranks, microbatches=MICROBATCHES, sequence=SEQUENCE),
                         sys.argv[1] if len(sys.argv) > 1 else "zb-v")
    stages = split(model, plan, rank)
    schedule = PlanSchedule(plan, stages, loss_of)
    optimizer = torch.optim.AdamW([p for stage in stages.values() for p in stage.parameters()], lr=1e-3)
    whole_optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(2048, (MICROBATCHES, SEQUENCE + 1), generator=generator)
        optimizer.zero_grad()
        loss = schedule.step(tokens[:, :-1], target=tokens[:, 1:])
        optimizer.step()
        whole_optimizer.zero_grad()
        expected = loss_of(whole(tokens[:, :-1]), tokens[:, 1:])
        expected.backward()
        whole_optimizer.step()
        if loss is not None:
            print(f"step {step}: loss {loss.item():.6f}, in one piece {expected.item():.6f}", flush=True)
            assert abs(loss.item() - expected.item()) < 1e-4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
