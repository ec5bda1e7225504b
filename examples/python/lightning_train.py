"""Trains by a plan in a Trainer of Lightning: one process for each rank of the plan.

    torchrun --nproc-per-node 2 examples/python/lightning_train.py [SCHEDULE]

The module optimizes by hand: a plan's step has all forwards and backwards of a batch in it. The losses are
held against those of the same model in one piece.
"""

from __future__ import annotations

import copy
import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipeplan
from pipeplan.torch import PlanSchedule, split

LAYERS, WIDTH, BATCH = 4, 16, 16


class PipelineStrategy(DDPStrategy):
    """Starts processes as DDP does. Ranks hold other stages each, so that nothing is wrapped or synced over all of them."""

    def configure_ddp(self) -> None:
        pass


class Pipeline(lightning.LightningModule):
    def __init__(self, schedule: str, ranks: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        whole = nn.Sequential(*copy.deepcopy(self.parts))
        # Within a tuple, so that Lightning does not take it for a part of this module.
        self.alone = (whole, torch.optim.AdamW(whole.parameters(), lr=1e-2))
        costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
        self.plan = pipeplan.plan({"problem": {"ranks": ranks, "chunks": 2, "microbatches": 8, "stages": costs}}, schedule)

    def configure_model(self) -> None:
        if not hasattr(self, "schedule"):
            stages = split(nn.Sequential(*self.parts), self.plan, self.global_rank)
            self.stages = nn.ModuleList(stages.values())
            self.schedule = PlanSchedule(self.plan, stages, nn.functional.mse_loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.stages.parameters(), lr=1e-2)

    def training_step(self, batch: list[torch.Tensor], at: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.schedule.step(batch[0], target=batch[1])
        optimizer.step()
        whole, whole_optimizer = self.alone
        whole_optimizer.zero_grad()
        expected = nn.functional.mse_loss(whole(batch[0]), batch[1])
        expected.backward()
        whole_optimizer.step()
        if loss is not None:
            print(f"batch {at}: loss {loss.item():.6f}, in one piece {expected.item():.6f}", flush=True)
            assert abs(loss.item() - expected.item()) < 1e-5


def main() -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    x = torch.randn(5 * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy=PipelineStrategy(process_group_backend="gloo"), max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,  # all ranks of a pipeline take the same batch
    )
    trainer.fit(Pipeline(sys.argv[1] if len(sys.argv) > 1 else "zb-v", ranks), DataLoader(TensorDataset(x, x.sin()), BATCH))


if __name__ == "__main__":
    main()
