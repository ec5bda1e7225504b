"""Trains a tiny model by a plan over gloo: one process for each rank of the plan.

    torchrun --nproc-per-node 4 examples/python/train.py [SCHEDULE]

The losses are those of the same model in one piece, which rank 0 trains beside it.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

import pipeplan
from pipeplan.torch import PlanSchedule, split

LAYERS, WIDTH, VOCAB, SEQUENCE, BATCH, STEPS = 8, 32, 64, 16, 16, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model() -> nn.Sequential:
    """Embedding, layers and head; equal in all processes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, VOCAB)).double()


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name = sys.argv[1] if len(sys.argv) > 1 else "zb-v"
    # The sizes of the layers matter for costs and memory alone: every order trains to the same gradients.
    sizes = {"layers": LAYERS, "hidden": WIDTH, "heads": 4, "ffn": 4 * WIDTH, "vocab": VOCAB, "family": "gpt"}
    plan = pipeplan.plan(pipeplan.Spec(model=sizes, device="cpu", pipeline=ranks, microbatches=8, microbatch_size=2,
                                       sequence=SEQUENCE), name)
    stages = split(model(), plan, rank)
    schedule = PlanSchedule(plan, stages, loss_of)
    optimizer = torch.optim.SGD([p for stage in stages.values() for p in stage.parameters()], lr=0.5)
    whole = model()
    whole_optimizer = torch.optim.SGD(whole.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(VOCAB, (BATCH, SEQUENCE + 1), generator=generator)
        optimizer.zero_grad()
        loss = schedule.step(tokens[:, :-1], target=tokens[:, 1:])
        optimizer.step()
        whole_optimizer.zero_grad()
        expected = loss_of(whole(tokens[:, :-1]), tokens[:, 1:])
        expected.backward()
        whole_optimizer.step()
        # With a bidirectional placement two ranks have the losses of half of the microbatches each.
        if schedule.is_last and len(plan.stages[-1].ranks) == 1:
            print(f"step {step}: loss {loss.item():.12f}, in one piece {expected.item():.12f}", flush=True)
            assert abs(loss.item() - expected.item()) < 1e-9
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
