"""Plan pipeline-parallel training, prove how good the plan is, and run it with PyTorch.

>>> import pipeplan
>>> spec = pipeplan.Spec(model="llama-2-7b", device="h100", pipeline=4, microbatches=8)
>>> plan = pipeplan.plan(spec, "1f1b")
>>> plan.ranks
4

Times are whole nanoseconds, memory is whole bytes. :mod:`pipeplan.torch` runs a plan with modules of PyTorch.
"""

from __future__ import annotations

from ._errors import Fault, SpecError
from ._functions import (
    Progress,
    calibrate,
    check,
    compare,
    import_run,
    memory,
    plan,
    prove,
    schedules,
    search,
    sensitivity,
    trace,
    tune,
)
from ._native import VERSION as __version__
from ._ops import BW, B, F, Op, Shape, W
from ._results import (
    Calibration,
    Check,
    Comparison,
    ImportedRun,
    Memory,
    Plan,
    Proof,
    Record,
    Sensitivity,
    Span,
    Stage,
    Trace,
    Tuning,
)
from ._spec import Spec

__all__ = [
    "B", "BW", "Calibration", "Check", "Comparison", "F", "Fault", "ImportedRun", "Memory", "Op", "Plan", "Progress",
    "Proof", "Record", "Sensitivity", "Shape", "Span", "Spec", "SpecError", "Stage", "Trace", "Tuning", "W",
    "__version__", "calibrate", "check", "compare", "import_run", "memory", "plan", "prove", "schedules", "search",
    "sensitivity", "trace", "tune",
]
