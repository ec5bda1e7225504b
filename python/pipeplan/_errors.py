"""What is raised where input is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing wrong with an input."""

    #: The field's path, such as ``training.microbatches`` or ``stages[3].forward_ns``.
    field: str
    #: What stood there, shortened; ``nothing`` where the field is missing.
    found: str
    #: What is accepted: ``a whole number from 1 to 1024``.
    accepted: str


class SpecError(ValueError):
    """The input is refused, or there is no plan for it. The message says all that is wrong.

    Attributes
    ----------
    faults : list of Fault
        All faults, in the order of the fields; empty where no field is to blame.
    place : dict or None
        Where a text stops being TOML or JSON: ``line`` and ``column`` from 1, ``offset`` in bytes from 0.
    """

    def __init__(self, message: str, faults: list[Fault] | None = None, place: dict | None = None) -> None:
        super().__init__(message)
        self.faults = list(faults or [])
        self.place = place


def _refused(field: str, found: object, accepted: str) -> SpecError:
    """A refusal of one field."""
    shown = found if isinstance(found, str) else repr(found)
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return SpecError(f"{field}: found {shown}, accepted is {accepted}", [Fault(field, shown, accepted)])


def _refusal(text: str) -> SpecError:
    """A refusal of the planner's, from its JSON."""
    said = json.loads(text)
    return SpecError(said["message"], [Fault(**fault) for fault in said["faults"]], said.get("place"))
