"""Replicas of a stage: who averages its gradients, and when."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # before 2.6
    FSDPModule = ()  # type: ignore[assignment,misc]


def unwrapped(stage: nn.Module) -> nn.Module:
    """The stage itself. Its gradients are averaged at the end of a step, so the hooks of DDP have no work."""
    return stage.module if isinstance(stage, DistributedDataParallel) else stage


def replicas_of(stage: nn.Module, given: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group over which the gradients of ``stage`` are averaged at the end of a step."""
    if is_sharded(stage):
        return None
    return stage.process_group if isinstance(stage, DistributedDataParallel) else given


def is_sharded(stage: nn.Module) -> bool:
    """Whether FSDP2 shards parameters of ``stage``."""
    return any(isinstance(module, FSDPModule) for module in stage.modules())


def sync_in_backward(stage: nn.Module, is_last: bool) -> None:
    """Lets FSDP2 reduce gradients in the backward that comes: only in the last one of a step."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            sharded: Any = module
            sharded.set_is_last_backward(is_last)
            sharded.set_requires_gradient_sync(is_last, recurse=False)
