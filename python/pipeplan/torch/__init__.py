"""Run any plan with modules of PyTorch over ``torch.distributed``.

>>> stages = pipeplan.torch.split(model, plan, rank=rank)                          # doctest: +SKIP
>>> schedule = pipeplan.torch.PlanSchedule(plan, stages, loss_fn)                  # doctest: +SKIP
>>> loss = schedule.step(tokens, target=labels)                                    # doctest: +SKIP
>>> optimizer.step()                                                               # doctest: +SKIP
"""

from __future__ import annotations

try:
    import torch.distributed  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("pipeplan.torch needs PyTorch: pip install torch") from error

from ._program import Step, read_row
from ._schedule import PlanSchedule
from ._split import split

__all__ = ["PlanSchedule", "Step", "read_row", "split"]
