"""What functions answer: objects with properties, drawings and tables."""

from __future__ import annotations

import copy
import functools
import html
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _draw, _native
from ._ops import Op
from ._spec import Spec

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from ._functions import Progress


class _Result:
    """The value that the command prints with ``--json``."""

    def __init__(self, value: dict) -> None:
        self._value = value

    def to_dict(self) -> dict:
        """All of it, as the command prints it with ``--json``."""
        return copy.deepcopy(self._value)

    def __getitem__(self, field: str) -> Any:
        return copy.deepcopy(self._value[field])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._value == other._value  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class Record(_Result):
    """One row of a result; its fields are attributes."""

    def __getattr__(self, field: str) -> Any:
        try:
            return self.__dict__["_value"][field]
        except KeyError:
            raise AttributeError(field) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._value]

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{key}={value!r}' for key, value in self._value.items())})"


def _frame(rows: list[dict]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)


class Span(NamedTuple):
    """When an op runs."""

    rank: int
    op: Op
    #: Start and end in ns, from the start of the step.
    start_ns: int
    end_ns: int


class Stage(NamedTuple):
    """One stage of a plan."""

    #: In the order of the model, from 0.
    index: int
    #: The ranks that hold it: one; two with a bidirectional placement, the first one for the first half of the microbatches.
    ranks: tuple[int, ...]
    #: Decoder layers, from the first to before the second; None where costs are typed.
    layers: tuple[int, int] | None
    #: Whether it holds the embedding; None where costs are typed.
    embedding: bool | None
    #: Whether it holds the final norm, the head and the loss; None where costs are typed.
    head: bool | None


class Plan:
    """A plan of one training step: the order of work of each rank, its transfers, and what it costs.

    The text of its file is that of ``pipeplan plan``, byte for byte. Times are in ns and memory in bytes.
    """

    def __init__(self, text: str) -> None:
        if isinstance(text, (bytes, bytearray)):
            text = bytes(text).decode("utf-8", "replace")
        #: The text of the plan file.
        self.text = text
        self._details: dict = json.loads(_native.details(text))
        self._value: dict = json.loads(text)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Plan:
        """Reads a plan file."""
        with open(path, encoding="utf-8") as file:
            return cls(file.read())

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan file, which the command and the page read."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(self.text)

    @functools.cached_property
    def spec(self) -> Spec:
        """What was asked for."""
        return Spec(self._value["spec"])

    @property
    def digest(self) -> str:
        """The hash that names this plan."""
        return self._details["digest"]

    @property
    def schedule(self) -> str:
        """The schedule; for ``best`` the one that won."""
        return self._details["schedule"]

    @property
    def ranks(self) -> int:
        """Pipeline ranks, P."""
        return len(self._value["schedule"]["rows"])

    @property
    def chunks(self) -> int:
        """Virtual stages per rank, V."""
        return self._details["chunks"]

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, M; with slices, each is one slice."""
        return self._details["microbatches"]

    @property
    def slices(self) -> int:
        """Sequence slices: so many microbatches in a row are the slices of the same sequences. 1: sequences are whole."""
        return self._value["problem"].get("slices", 1)

    @property
    def placement(self) -> str:
        """Where stages are: ``linear``, ``looped``, ``v``, ``wave``, ``two-way`` (bidirectional) or ``list``."""
        return self._details["placement"]

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """The stages, in the order of the model."""
        stages = []
        for index, stage in enumerate(self._details["stages"]):
            ranks = tuple(dict.fromkeys((stage["rank"], stage["rank_of_last_microbatch"])))
            layers = tuple(stage["layers"]) if stage["layers"] is not None else None
            stages.append(Stage(index, ranks, layers, stage["embedding"], stage["head"]))
        return stages

    @property
    def rows(self) -> list[str]:
        """The order of compute: one text for each rank, such as ``0F0 0F1 0BW0 0BW1``."""
        return list(self._value["schedule"]["rows"])

    @property
    def copies(self) -> list[str]:
        """Copies of activations to the host and back: one text for each rank, such as ``0OFFLOAD3:4-9``; empty without any.

        A copy starts before the op at the first position of the rank's row, and the op at the second waits for it.
        """
        return list(self._value["schedule"].get("copies", []))

    @functools.cached_property
    def ops(self) -> list[list[Op]]:
        """The order of compute by rank, as :class:`Op`."""
        return [[Op.parse(op) for op in row.split()] for row in self._value["schedule"]["rows"]]

    @property
    def program(self) -> list[str]:
        """What each rank executes, transfers included: ``(1RECV_F0) 1F0 (1SEND_F0) OPTIMIZER``."""
        return list(self._value["program"]["rows"])

    @functools.cached_property
    def timeline(self) -> list[Span]:
        """When each op runs, rank after rank."""
        rows = enumerate(self._details["rows"])
        return [Span(rank, Op.parse(s["op"]), s["start_ns"], s["end_ns"]) for rank, row in rows for s in row]

    @property
    def makespan_ns(self) -> int:
        """End of the last op minus start of the first."""
        return self._value["prediction"]["makespan_ns"]

    @property
    def longest_span_ns(self) -> int:
        """The largest span of a rank."""
        return self._value["prediction"]["longest_span_ns"]

    @property
    def cost_ns(self) -> int:
        """What the plan is judged by: ``makespan_ns``, or ``longest_span_ns`` where the spec's objective is that."""
        return self._value["prediction"][f"{self._details['objective']}_ns"]

    @property
    def bound_ns(self) -> int:
        """No valid schedule of this problem costs less."""
        return self._value["prediction"]["bound_ns"]

    @property
    def gap(self) -> float | None:
        """Cost over bound, minus 1: 0.05 is at most 5 % from the best possible."""
        return self._details["gap"]

    @property
    def bubble_ratio(self) -> float:
        """Idle share of the ranks, 0 to 1."""
        return self._details["bubble_ratio"]

    @property
    def busy_ns(self) -> list[int]:
        """Time in which each rank computes; shape (ranks,)."""
        return list(self._value["prediction"]["busy_ns"])

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes that each rank holds at once; shape (ranks,)."""
        return list(self._value["prediction"]["peak_bytes"])

    @property
    def step_ns(self) -> int | None:
        """The whole step, gradient sync and optimizer included; None where costs are typed."""
        return self._details["step_ns"]

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of all replicas a second; None where costs are typed."""
        return self._details["tokens_per_s"]

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, 0 to 1; None where costs are typed."""
        return self._details["mfu"]

    def check(self) -> Check:
        """Checks every op and transfer, memory, and which transports complete the plan."""
        return Check(json.loads(_native.check(self.text)))

    def prove(self, seconds: float = 60.0, on_progress: Progress | None = None) -> Proof:
        """Searches exactly for a better plan, for ``seconds`` at most. See :func:`pipeplan.prove`."""
        from ._functions import prove

        return prove(self, seconds, on_progress)

    def sensitivity(self, **options: Any) -> Sensitivity:
        """What the plan's time hangs on. See :func:`pipeplan.sensitivity`."""
        from ._functions import sensitivity

        return sensitivity(self, **options)

    def export(self, format: str) -> str:
        """The plan in another program's format: ``chrome-trace``, ``torch-csv``, ``megatron``, ``megatron-args``, ``csv``,
        ``svg`` or ``text``."""
        return _native.export(self.text, format)

    def export_bytes(self, format: str) -> bytes:
        """As :meth:`export`, for formats that are no text, too: ``perfetto``."""
        return _native.export_bytes(self.text, format)

    def svg(self) -> str:
        """The timeline as an SVG drawing."""
        return self.export("svg")

    def to_dict(self) -> dict:
        """The content of the plan file."""
        return copy.deepcopy(self._value)

    def to_json(self) -> str:
        """The text of the plan file."""
        return self.text

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each op: ``rank``, ``stage``, ``kind``, ``microbatch``, ``start_ns``, ``end_ns``."""
        return _frame([
            {"rank": span.rank, **span.op._asdict(), "start_ns": span.start_ns, "end_ns": span.end_ns}
            for span in self.timeline
        ])

    def figures(self) -> dict[str, str]:
        """The figures for people, by name."""
        figures = {
            "Schedule": self.schedule,
            "Makespan": _draw.duration(self.makespan_ns),
            "Lower bound": f"{_draw.duration(self.bound_ns)} (at most {100 * (self.gap or 0):.2f} % above it)",
            "Bubble": f"{100 * self.bubble_ratio:.2f} %",
            "Peak memory": ", ".join(_draw.bytes_text(peak) for peak in self.peak_bytes[:16]),
        }
        if self.step_ns is not None:
            figures["Step time"] = _draw.duration(self.step_ns)
            figures["Tokens per second"] = f"{self.tokens_per_s:,.0f}"
            figures["MFU"] = f"{100 * (self.mfu or 0):.1f} %"
        return figures

    def plot(self, ax: Axes | None = None, *, labels: bool = True) -> Axes:
        """Draws the timeline with Matplotlib: one bar for each op, one track for each rank. Returns the axis."""
        return _draw.timeline(self.timeline, self.ranks, ax, labels, f"{self.schedule}: {_draw.duration(self.makespan_ns)}")

    def _repr_html_(self) -> str:
        return self.svg() + _draw.table(self.figures())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return (f"Plan({self.schedule}, {self.ranks} ranks, {self.microbatches} microbatches, "
                f"makespan {_draw.duration(self.makespan_ns)}, bubble {100 * self.bubble_ratio:.2f} %)")


class _Rows(_Result):
    """A result that is mainly a list of rows."""

    _list = "rows"

    @property
    def rows(self) -> list[Record]:
        """The rows, in their order."""
        return [Record(row) for row in self._value[self._list]]

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a frame."""
        return _frame(self._value[self._list])

    def __len__(self) -> int:
        return len(self._value[self._list])

    def __iter__(self):
        return iter(self.rows)


class Comparison(_Rows):
    """Every published schedule and the best that a search finds, for one spec."""

    @property
    def objective(self) -> str:
        """What ``best``, ``gap`` and ``bubble_ratio`` are judged by: ``makespan`` or ``longest_span``."""
        return self._value["objective"]

    @property
    def best(self) -> Record:
        """The row of ``best``."""
        return Record(self._value["rows"][-1])

    def __getitem__(self, name: str) -> Any:
        for row in self._value["rows"]:
            if row["schedule"] == name:
                return Record(row)
        return super().__getitem__(name)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the cost of each schedule with Matplotlib. Returns the axis."""
        return _draw.bars([(row["schedule"], row[f"{self.objective}_ns"]) for row in self._value["rows"]
                           if row[f"{self.objective}_ns"] is not None], ax, f"{self.objective} (ms)", 1e-6)

    def _repr_html_(self) -> str:
        shown = []
        for row in self._value["rows"]:
            if row["status"] == "ok":
                peak = max(row["peak_bytes"] or [0])
                shown.append([row["schedule"], _draw.duration(row[f"{self.objective}_ns"]),
                              f"{100 * row['bubble_ratio']:.2f} %", _draw.bytes_text(peak),
                              "" if row["gap"] is None else f"{100 * row['gap']:.2f} %"])
            else:
                shown.append([row["schedule"], html.escape(row["reason"] or ""), "", "", ""])
        return _draw.rows(["Schedule", self.objective, "Bubble", "Peak memory", "Above bound"], shown)

    def __repr__(self) -> str:
        best = self.best
        return f"Comparison({len(self)} schedules, best {best[f'{self.objective}_ns']} ns)"


class Memory(_Result):
    """What each rank holds, by kind, and what to change where it does not fit. Bytes."""

    @property
    def schedule(self) -> str:
        """The schedule."""
        return self._value["schedule"]

    @property
    def ranks(self) -> list[Record]:
        """By rank: ``static_bytes`` by kind, ``activation_bytes``, ``host_bytes``, ``peak_bytes``, ``limit_bytes``, ``fits``."""
        return [Record(rank) for rank in self._value["ranks"]]

    @property
    def fits(self) -> bool:
        """Whether every rank fits its limit."""
        return all(rank["fits"] for rank in self._value["ranks"])

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each rank; a column for each kind of bytes."""
        return _frame([
            {**{key: value for key, value in rank.items() if key != "static_bytes"}, **rank["static_bytes"]}
            for rank in self._value["ranks"]
        ])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the bytes of each rank by kind with Matplotlib. Returns the axis."""
        return _draw.stacks([{**rank["static_bytes"], "activations": rank["activation_bytes"]}
                             for rank in self._value["ranks"]], [rank["limit_bytes"] for rank in self._value["ranks"]], ax)

    def _repr_html_(self) -> str:
        kinds = [kind for kind in self._value["ranks"][0]["static_bytes"]
                 if any(rank["static_bytes"][kind] for rank in self._value["ranks"])]
        shown = [[str(rank["rank"]), *(_draw.bytes_text(rank["static_bytes"][kind]) for kind in kinds),
                  _draw.bytes_text(rank["activation_bytes"]), _draw.bytes_text(rank["peak_bytes"]),
                  "yes" if rank["fits"] else "no"] for rank in self._value["ranks"]]
        return _draw.rows(["Rank", *(kind.replace("_", " ") for kind in kinds), "activations", "peak", "fits"], shown)

    def __repr__(self) -> str:
        peak = max(rank["peak_bytes"] for rank in self._value["ranks"])
        return f"Memory({self.schedule}, {len(self._value['ranks'])} ranks, peak {_draw.bytes_text(peak)}, fits={self.fits})"


class Tuning(_Rows):
    """The fastest layouts of a model on its devices."""

    _list = "layouts"

    def spec(self, index: int = 0) -> Spec:
        """The spec of a layout: that of the fastest where no other index is given."""
        return Spec(self._value[self._list][index]["spec"])

    def _repr_html_(self) -> str:
        rows = self._value[self._list]
        keys = [key for key, value in (rows or [{}])[0].items() if not isinstance(value, (dict, list))]
        return _draw.rows(keys, [[html.escape(str(row[key])) for key in keys] for row in rows])

    def __repr__(self) -> str:
        return f"Tuning({len(self)} layouts)"


class Sensitivity(_Result):
    """What a plan's time hangs on."""

    def _repr_html_(self) -> str:
        keys = list(dict.fromkeys(key for effect in self._value["effects"] for key in effect))
        return _draw.rows(keys, [[html.escape(str(effect.get(key, ""))) for key in keys] for effect in self._value["effects"]])

    @property
    def effects(self) -> list[Record]:
        """Each change: ``what`` takes longer or less, and the cost of the plan's order then in ns."""
        return [Record(effect) for effect in self._value["effects"]]

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each change."""
        return _frame(self._value["effects"])

    def __repr__(self) -> str:
        return f"Sensitivity({len(self._value['effects'])} changes, cost {self._value['cost_ns']} ns)"


class Check(_Result):
    """Whether a plan is valid, and which transports complete it."""

    @property
    def valid(self) -> bool:
        """Whether it is."""
        return self._value["valid"]

    @property
    def error(self) -> str | None:
        """What is wrong, where it is not valid."""
        return self._value.get("error")

    @property
    def violations(self) -> list[str]:
        """All that is wrong with ops and transfers."""
        return list(self._value.get("violations", []))

    @property
    def transports(self) -> dict[str, bool]:
        """By transport, whether it completes the plan."""
        return dict(self._value.get("transports", {}))

    def __bool__(self) -> bool:
        return self.valid

    def __repr__(self) -> str:
        return f"Check(valid, {self.transports})" if self.valid else f"Check(not valid: {self.error})"


class Proof(_Result):
    """What an exact search says of a plan. Costs in ns."""

    def __init__(self, value: dict, plan: Plan) -> None:
        super().__init__(value)
        #: The plan that this is of: the one that was given, or a better one that was found.
        self.plan = plan

    @property
    def optimal(self) -> bool:
        """Whether no schedule of the placement costs less than the plan."""
        return self._value["optimal"]

    @property
    def cost_ns(self) -> int:
        """What the plan costs."""
        return self._value["cost_ns"]

    @property
    def lower_ns(self) -> int:
        """No schedule of the placement costs less."""
        return self._value["lower_ns"]

    def __repr__(self) -> str:
        return f"Proof(cost {self.cost_ns} ns, lower bound {self.lower_ns} ns, optimal={self.optimal})"


class ImportedRun(_Result):
    """A run of Megatron-LM as a spec, and its measured figures against the planned ones."""

    @functools.cached_property
    def spec(self) -> Spec:
        """The spec."""
        return Spec(self._value["spec"])

    @property
    def notes(self) -> list[str]:
        """What the run says otherwise than a spec can."""
        return list(self._value["notes"])

    @property
    def measured(self) -> Record:
        """``step_ns`` and ``peaks`` as the log tells them, and ``planned_step_ns``."""
        return Record(self._value["measured"])

    def __repr__(self) -> str:
        return f"ImportedRun({self.spec!r})"


class Trace:
    """What a run measured: start and end of each op and transfer of each rank."""

    def __init__(self, text: str) -> None:
        #: The text of the trace file.
        self.text = text
        self._value: dict = json.loads(text)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Trace:
        """Reads a trace file."""
        with open(path, encoding="utf-8") as file:
            return cls(file.read())

    def save(self, path: str | os.PathLike) -> None:
        """Writes the trace file, which the command and the page read."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(self.text)

    @property
    def steps(self) -> int:
        """Training steps."""
        return len(self._value["steps"])

    def timeline(self, step: int = -1) -> list[Span]:
        """When each op of a training step ran, rank after rank."""
        spans = []
        for rank, row in enumerate(self._value["steps"][step]["rows"]):
            words = _words(row["steps"])
            for word, start, end in zip(words, row["start_ns"], row["end_ns"]):
                if word[0].isdigit():
                    spans.append(Span(rank, Op.parse(word), start, end))
        return spans

    def export(self, format: str) -> str:
        """The trace in another program's format: ``chrome-trace``, ``csv``, ``paddle-log``, ``svg`` or ``text``."""
        return _native.export(self.text, format)

    def export_bytes(self, format: str) -> bytes:
        """As :meth:`export`, for formats that are no text, too: ``perfetto``."""
        return _native.export_bytes(self.text, format)

    def to_dict(self) -> dict:
        """The content of the trace file."""
        return copy.deepcopy(self._value)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each op: ``step``, ``rank``, ``stage``, ``kind``, ``microbatch``, ``start_ns``, ``end_ns``."""
        return _frame([
            {"step": self._value["steps"][at]["step"], "rank": span.rank, **span.op._asdict(),
             "start_ns": span.start_ns, "end_ns": span.end_ns}
            for at in range(self.steps) for span in self.timeline(at)
        ])

    def plot(self, ax: Axes | None = None, *, step: int = -1, labels: bool = True) -> Axes:
        """Draws one training step with Matplotlib. Returns the axis."""
        spans = self.timeline(step)
        return _draw.timeline(spans, len(self._value["steps"][step]["rows"]), ax, labels, "measured")

    def _repr_html_(self) -> str:
        return self.export("svg")

    def __repr__(self) -> str:
        return f"Trace({self.steps} steps on {self._value['backend']} over {self._value['transport']})"


def _words(row: str) -> list[str]:
    """The steps of a row: a group of transfers, from its bracket to the closing one, is one."""
    words: list[str] = []
    is_open = False
    for word in row.split():
        if is_open:
            words[-1] += " " + word
        else:
            words.append(word)
        is_open = (is_open or "(" in word) and not word.endswith(")")
    return words


class Calibration(_Result):
    """Where a run lost time against its plan."""

    @functools.cached_property
    def spec(self) -> Spec:
        """The plan's problem with the times that were measured, to be planned again."""
        return Spec(self._value["problem"])

    @property
    def makespan(self) -> Record:
        """``planned_ns``, ``measured_ns``, and what lies between: ``ops_ns``, ``hops_ns``, ``spread_ns``, ``rest_ns``."""
        return Record(self._value["makespan"])

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each job of a stage: planned and measured times in ns."""
        return _frame(self._value["jobs"])

    def __repr__(self) -> str:
        makespan = self._value["makespan"]
        return f"Calibration(planned {makespan['planned_ns']} ns, measured {makespan['measured_ns']} ns)"
