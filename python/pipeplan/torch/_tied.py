"""Parameters that several stages share: tied embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import nn

#: Of each shared parameter its name in every stage that uses it, by the number of the stage.
Names = Mapping[int, str]


def shared_by(stages: Mapping[int, nn.Module]) -> list[dict[int, str]]:
    """The parameters that more than one of ``stages`` uses."""
    users: dict[int, dict[int, str]] = {}
    for stage, module in sorted(stages.items()):
        for name, parameter in module.named_parameters():
            users.setdefault(id(parameter), {})[stage] = name
    return [names for names in users.values() if len(names) > 1]


class Tied(NamedTuple):
    """A parameter that several stages share."""

    names: dict[int, str]
    #: The ranks that hold one of these stages, in ascending order.
    ranks: list[int]

    @property
    def first(self) -> int:
        """The first stage that uses it."""
        return min(self.names)

    def parameters(self, stages: Mapping[int, nn.Module]) -> list[nn.Parameter]:
        """This rank's copies: one where its stages share one."""
        found = {stage: stages[stage].get_parameter(name) for stage, name in sorted(self.names.items()) if stage in stages}
        return list({id(parameter): parameter for parameter in found.values()}.values())


def tied_of(given: Iterable[Names], stages: Mapping[int, nn.Module], holders: Mapping[int, list[int]]) -> list[Tied]:
    """What the stages of a rank share with others, in an order that all ranks have in common."""
    groups: dict[tuple, dict[int, str]] = {}
    marked = [names for module in stages.values() for names in getattr(module, "tied_parameters", [])]
    for names in (*given, *marked):
        unknown = [stage for stage in names if stage not in holders]
        if unknown or len(names) < 2:
            raise ValueError(f"tied: found {dict(names)}; accepted are the names of one parameter in two or more stages, by the "
                             f"number of the stage, from 0 to {len(holders) - 1}")
        groups[tuple(sorted(names.items()))] = dict(names)
    ties = []
    for _, names in sorted(groups.items()):
        tie = Tied(names, sorted({rank for stage in names for rank in holders[stage]}))
        if any(stage in stages for stage in names):
            shapes = {tuple(parameter.shape) for parameter in tie.parameters(stages)}
            if len(shapes) > 1:
                raise ValueError(f"tied: {names} have shapes {sorted(shapes)}; accepted are equal shapes")
            ties.append(tie)
    return ties


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of this rank, where FSDP2 shards."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
