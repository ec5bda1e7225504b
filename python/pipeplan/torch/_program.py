"""The program of a rank, read from a plan: ops, groups of transfers, and the end of the step."""

from __future__ import annotations

import re
from typing import NamedTuple

from .._ops import Op
from .._results import _words

_MESSAGE = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")


class Message(NamedTuple):
    """One end of a transfer: ``1SEND_F0`` is sent by stage 1."""

    #: The stage of this rank that sends or receives.
    stage: int
    is_send: bool
    #: ``F`` an activation, to the next stage; ``B`` a gradient, to the stage before.
    payload: str
    microbatch: int

    @property
    def peer_stage(self) -> int:
        """The stage at the other end."""
        return self.stage + 1 if self.is_send == (self.payload == "F") else self.stage - 1

    @property
    def source_stage(self) -> int:
        """The stage that sends."""
        return self.stage if self.is_send else self.peer_stage


class Step(NamedTuple):
    """One step of a rank's program."""

    #: ``compute``, ``transfer`` (start and wait), ``start``, ``wait`` or ``optimizer``.
    kind: str
    #: As the plan writes it.
    text: str
    op: Op | None = None
    messages: tuple[Message, ...] = ()


def _message(text: str) -> Message:
    found = _MESSAGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no transfer of a plan")
    return Message(int(found[1]), found[2] == "SEND", found[3], int(found[4]))


def read_row(row: str) -> list[Step]:
    """The steps of one rank's program."""
    steps = []
    for word in _words(row):
        head, bracket, inner = word.partition("(")
        if bracket:
            messages = tuple(_message(text) for text in inner.removesuffix(")").split())
            steps.append(Step({"": "transfer", "start": "start", "wait": "wait"}[head], word, messages=messages))
        elif word == "OPTIMIZER":
            steps.append(Step("optimizer", word))
        else:
            steps.append(Step("compute", word, op=Op.parse(word)))
    return steps
