"""Ops, and custom schedules as Python functions over them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from ._spec import Spec


class Op(NamedTuple):
    """One piece of compute. Its text is stage, kind, microbatch: ``3BW12``."""

    #: Stage, from 0 in the order of the model.
    stage: int
    #: ``F`` forward; ``B`` backward for inputs; ``W`` backward for weights; ``BW`` both at once.
    kind: str
    #: Microbatch, from 0.
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Reads the text form."""
        found = re.fullmatch(r"(\d+)(F|BW|B|W)(\d+)", text)
        if found is None:
            raise ValueError(f"{text!r} is not an op: write stage, kind and microbatch, such as 0F3, with kind F, B, W or BW")
        return cls(int(found[1]), found[2], int(found[3]))


def F(stage: int, microbatch: int) -> Op:
    """Forward of ``stage`` for ``microbatch``."""
    return Op(stage, "F", microbatch)


def B(stage: int, microbatch: int) -> Op:
    """Backward for the inputs of ``stage``."""
    return Op(stage, "B", microbatch)


def W(stage: int, microbatch: int) -> Op:
    """Backward for the weights of ``stage``."""
    return Op(stage, "W", microbatch)


def BW(stage: int, microbatch: int) -> Op:
    """Both backwards of ``stage`` at once."""
    return Op(stage, "BW", microbatch)


@dataclass(frozen=True)
class Shape:
    """What a custom schedule is made for."""

    #: Pipeline ranks, P.
    ranks: int
    #: Virtual stages per rank, V.
    chunks: int
    #: Microbatches of a step, M.
    microbatches: int

    @property
    def stages(self) -> int:
        """All stages: ranks times chunks."""
        return self.ranks * self.chunks


Row = Union[str, Iterable[Union[Op, str]]]
#: A custom schedule: from the shape to one row of ops for each rank.
ScheduleFunction = Callable[[Shape], Iterable[Row]]


def shape_of(spec: Spec) -> Shape:
    """What a custom schedule for ``spec`` is made for."""
    return Shape(spec.ranks, spec.chunks, spec.microbatches)


def texts_of(rows: Iterable[Row]) -> list[str]:
    """Rows of ops, one text for each rank."""
    return [row if isinstance(row, str) else " ".join(str(op) for op in row) for row in rows]


def name_of(function: Any) -> str:
    """What a custom schedule is called."""
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__)).replace("<lambda>", "own-order")


def combinations(choices: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value for each name."""
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
