"""The functions of the package: each answers as the command of the same name does."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

from . import _native
from ._errors import Fault, SpecError, _refused
from ._ops import Row, ScheduleFunction, combinations, name_of, shape_of, texts_of
from ._results import Calibration, Check, Comparison, ImportedRun, Memory, Plan, Proof, Sensitivity, Trace, Tuning
from ._spec import Spec, _plain, _section_of, _spec_text

#: Hears of a search some twenty times a second: work done, cost of the best so far in ns (None before there is one), and the
#: bound in ns. Where it returns False, the best so far is soon the answer.
Progress = Callable[[int, Union[int, None], int], Any]
PlanLike = Union[Plan, str, os.PathLike]


def _options(**options: Any) -> dict:
    return {name: _plain(value) for name, value in options.items() if value is not None}


def _listed(value: Any) -> list | None:
    """A list of what may be one text."""
    return None if value is None else [value] if isinstance(value, str) else list(value)


def _kept(fields: Any) -> list | None:
    """Fields that ``tune`` keeps, with their sections: ``tensor`` is ``parallel.tensor``."""
    listed = _listed(fields)
    return None if listed is None else [f"{_section_of()[name]}.{name}" if name in _section_of() else name for name in listed]


def _number(field: str, value: Any, least: float, most: float) -> float:
    accepted = f"a number from {least} to {most}" if least else f"a number above 0 and up to {most}"
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise _refused(field, value, accepted) from error
    if not (least <= number <= most and number > 0):
        raise _refused(field, value, accepted)
    return number


def _profile(profile: str | os.PathLike | None) -> str | None:
    """The text of a profile, which may be given by its path."""
    return None if profile is None else _text_of(profile)


def _text_of(file: Any) -> str:
    """The text of a file, which may be given as text."""
    if isinstance(file, (Plan, Trace)):
        return file.text
    if isinstance(file, dict):
        return json.dumps(file)
    if isinstance(file, (bytes, bytearray)) and bytes(file).lstrip().startswith((b"{", b"[")):
        return bytes(file).decode("utf-8", "replace")
    if isinstance(file, str) and file.lstrip().startswith(("{", "[")):
        return file
    with open(file, "rb") as opened:
        content = opened.read()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    return content.decode("utf-8")


def _custom(schedule: Any, spec: Any, name: str | None) -> dict:
    """The options of a schedule: its name, a function over ops, or rows of ops."""
    if schedule is None or isinstance(schedule, str):
        return _options(schedule=schedule)
    if callable(schedule):
        spec = spec.spec if isinstance(spec, Plan) else spec if isinstance(spec, Spec) else Spec(spec)
        return {"order": _rows(schedule(shape_of(spec))), "name": name or name_of(schedule)}
    return {"order": _rows(schedule), "name": name or "own-order"}


def _rows(rows: Any) -> list[str]:
    """The rows of a custom schedule as text."""
    accepted = "a schedule's name; rows of ops, one for each rank; or a function that answers these"
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise _refused("schedule", rows, accepted)
    # A function of the user's runs while its rows are taken: what it raises is its own.
    kept = list(rows)
    for row in kept:
        if isinstance(row, bytes) or not isinstance(row, Iterable):
            raise _refused("schedule", row, accepted)
    return texts_of(kept)


def plan(
    spec: Any,
    schedule: str | ScheduleFunction | Sequence[Row] | None = None,
    *,
    name: str | None = None,
    effort: int | None = None,
    profile: str | os.PathLike | None = None,
    on_progress: Progress | None = None,
) -> Plan:
    """Plans a spec.

    Parameters
    ----------
    spec
        A :class:`Spec`, or whatever that takes.
    schedule
        A published schedule, ``best``, or what the spec says where not given. Or a custom schedule: a function that takes a
        :class:`Shape` and answers one row of ops for each rank, or these rows; it is checked and judged like any other.
    name
        What a custom schedule is called.
    effort
        Work of the search for ``best`` on each placement, in simulated ops of some 20 to 100 ns; 2 million where not given.
    profile
        Measured times of operators, in the place of estimates: the path or the text of a file of ``pipeplan profile``.
    on_progress
        Hears of the search, and may end it.

    Raises
    ------
    SpecError
        Where the spec is refused, or there is no plan for it.
    KeyboardInterrupt
        Where Ctrl-C ends the search.

    Examples
    --------
    >>> import pipeplan
    >>> plan = pipeplan.plan({"ranks": 2, "microbatches": 4, "stages": {"forward_ns": 10, "backward_input_ns": 10, "backward_weight_ns": 10}}, "1f1b")
    >>> plan.makespan_ns
    150
    """
    given = {**_custom(schedule, spec, name), **_options(effort=effort, profile=_profile(profile))}
    return Plan(_native.plan(_spec_text(spec), json.dumps(given), on_progress))


def compare(
    spec: Any,
    schedule: ScheduleFunction | Sequence[Row] | None = None,
    *,
    name: str | None = None,
    effort: int | None = None,
    profile: str | os.PathLike | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Compares every published schedule, a custom one where it is given, and the best that a search finds.

    Parameters are those of :func:`plan`.
    """
    if isinstance(schedule, str):
        raise SpecError(f"schedule: found {schedule!r}", [
            Fault("schedule", schedule, "a custom schedule: published ones are compared in any case"),
        ])
    given = {**_custom(schedule, spec, name), **_options(effort=effort, profile=_profile(profile))}
    return Comparison(json.loads(_native.compare(_spec_text(spec), json.dumps(given), on_progress)))


def search(
    spec: Any,
    function: Callable[..., Iterable[Row]],
    *,
    on_progress: Callable[[dict, Plan | None], Any] | None = None,
    **choices: Sequence[Any],
) -> tuple[Plan, list[dict]]:
    """Tries a custom schedule with every combination of ``choices``, and answers the plan that costs least.

    Parameters
    ----------
    spec
        A :class:`Spec`, or whatever that takes.
    function
        Takes a :class:`Shape`, and each of ``choices`` by its name.
    on_progress
        Hears of each combination and its plan, None where it is not valid; where it returns False, the search ends.

    Returns
    -------
    plan, tries
        The best plan, and for each combination a dict of its choices with ``cost_ns`` (None where it is not valid) and
        ``error``.

    Raises
    ------
    SpecError
        Where no combination is valid.
    """
    spec = spec if isinstance(spec, Spec) else Spec(spec)
    best: Plan | None = None
    tries: list[dict] = []
    for field, values in choices.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise _refused(field, values, "a list of values to try")
    for chosen in combinations(dict(choices)):
        tried: Plan | None = None
        error = None
        try:
            tried = plan(spec, lambda shape, chosen=chosen: function(shape, **chosen), name=name_of(function))
        except SpecError as refused:
            error = str(refused)
        tries.append({**chosen, "cost_ns": tried.cost_ns if tried else None, "error": error})
        if tried is not None and (best is None or tried.cost_ns < best.cost_ns):
            best = tried
        if on_progress is not None and on_progress(chosen, tried) is False:
            break
    if best is None:
        raise SpecError(f"no combination is valid: the last one says {tries[-1]['error'] if tries else 'nothing'}")
    return best, tries


def memory(
    spec: Any,
    schedule: str | None = None,
    *,
    effort: int | None = None,
    profile: str | os.PathLike | None = None,
    on_progress: Progress | None = None,
) -> Memory:
    """What each rank of a model holds, by kind, and what to change where it does not fit.

    Parameters are those of :func:`plan`. Costs that are typed have no kinds: these are refused.
    """
    given = _options(schedule=schedule, effort=effort, profile=_profile(profile))
    return Memory(json.loads(_native.memory(_spec_text(spec), json.dumps(given), on_progress)))


def tune(
    spec: Any,
    devices: int | None = None,
    *,
    keep: Sequence[str] | None = None,
    schedules: Sequence[str] | None = None,
    most: int | None = None,
    effort: int | None = None,
    profile: str | os.PathLike | None = None,
    on_progress: Progress | None = None,
) -> Tuning:
    """The fastest layouts of a model: degrees of parallelism, micro-batch size, recomputation and schedule together.

    Parameters
    ----------
    spec
        A :class:`Spec` of a model, or whatever that takes.
    devices
        GPUs to be used; as many as the spec has where not given.
    keep
        Fields that stay as they are, such as ``tensor``.
    schedules
        Schedules that may be used; all where not given.
    most
        Layouts to answer at most.
    """
    given = _options(devices=devices, keep=_kept(keep), schedules=_listed(schedules), most=most, effort=effort,
                     profile=_profile(profile))
    return Tuning(json.loads(_native.tune(_spec_text(spec), json.dumps(given), on_progress)))


def sensitivity(
    plan: PlanLike,
    *,
    percent: float = 10.0,
    anew: int = 0,
    effort: int | None = None,
    on_progress: Progress | None = None,
) -> Sensitivity:
    """What a plan's time hangs on: its cost where a rank, a stage, a job or transfers take ``percent`` longer or less.

    For the first ``anew`` of these changes the best schedule is searched for, too.
    """
    given = _options(permille=round(10 * _number("percent", percent, 0.1, 900)), anew=anew or None, effort=effort)
    return Sensitivity(json.loads(_native.sensitivity(_text_of(plan), json.dumps(given), on_progress)))


def check(plan: PlanLike) -> Check:
    """Checks a plan file: its digest, every op and transfer, memory, the prediction, and which transports complete it.

    A plan that is not valid is an answer, with all that is wrong, and nothing is raised.
    """
    return Check(json.loads(_native.check(_text_of(plan))))


def prove(plan: PlanLike, seconds: float = 60.0, on_progress: Progress | None = None) -> Proof:
    """Searches exactly for a better plan of the same problem and placement, or proves that there is none.

    ``on_progress`` hears of the steps of the solver, the best cost and the bound in ns.
    """
    text = _text_of(plan)
    proof, better = _native.prove(text, _number("seconds", seconds, 0, 86400), on_progress)
    return Proof(json.loads(proof), Plan(better or text))


def import_run(
    run: Any,
    device: str,
    devices: int | None = None,
    *,
    variables: Mapping[str, object] | None = None,
    command: int | None = None,
    on_progress: Progress | None = None,
) -> ImportedRun:
    """Makes a spec of a run of Megatron-LM, and puts its measured steps and memory against the plan.

    Parameters
    ----------
    run
        The path of a log or a launch script, or its text, or a command line.
    device
        What it ran on: a device of the catalog, such as ``h100``.
    devices
        On how many, where the text does not say so.
    variables
        Values of a script's variables, whatever it assigns to them, such as ``{"MODEL_SIZE": "7B"}``; ``"1"`` is the
        first thing that the script is called with.
    command
        Which training command of several, from 1.
    """
    given = {str(name): str(value) for name, value in (variables or {}).items()}
    if not isinstance(run, (str, os.PathLike)):
        raise _refused("run", run, "the path of a log or a launch script of Megatron-LM, its text, or a command line")
    if isinstance(run, os.PathLike) or "\n" not in run and os.path.exists(run):
        with open(run, encoding="utf-8", errors="replace") as file:
            run = file.read()
    return ImportedRun(json.loads(_native.import_run(run, device, devices, given, command, on_progress)))


def trace(plan: PlanLike, profiles: Sequence[str | os.PathLike]) -> Trace:
    """Makes a trace of what ``torch.profiler`` recorded of each rank while it ran the plan's order.

    ``profiles`` are the paths, or the texts, of the files of all ranks; also with gzip.
    """
    if isinstance(profiles, (str, os.PathLike)):
        profiles = [profiles]
    named = [(f"profiles[{at}]" if isinstance(file, str) and "\n" in file else str(file), _text_of(file))
             for at, file in enumerate(profiles)]
    return Trace(_native.trace(_text_of(plan), named))


def calibrate(plan: PlanLike, trace: Trace | str | os.PathLike) -> Calibration:
    """Says where a run lost time against its plan, and gives the plan's problem with the times that were measured."""
    return Calibration(json.loads(_native.calibrate(_text_of(plan), _text_of(trace))))


def schedules() -> list[dict]:
    """The published schedules: ``name``, ``title``, ``idea`` and ``source``."""
    return json.loads(_native.schedules())
