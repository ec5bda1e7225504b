"""Drawings and tables of results: HTML for notebooks, Matplotlib for papers."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._results import Span

#: Colours of kinds of ops; later stages of a rank are lighter.
_COLOURS = {"F": (0.16, 0.47, 0.71), "B": (0.18, 0.55, 0.34), "W": (0.80, 0.52, 0.15), "BW": (0.18, 0.55, 0.34)}


def duration(ns: float) -> str:
    """A time for people."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def bytes_text(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def table(figures: dict[str, str]) -> str:
    """Figures by name, as an HTML table."""
    body = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
                   for name, text in figures.items())
    return f"<table>{body}</table>"


def rows(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Rows of cells, which are HTML, as an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _axis(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs Matplotlib: pip install matplotlib") from error
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def timeline(spans: list[Span], ranks: int, ax: Axes | None, labels: bool, title: str) -> Axes:
    """One bar for each op, one track for each rank."""
    ax = _axis(ax, (12, 0.5 * ranks + 1.5))
    chunks: dict[int, list[int]] = {}
    for span in spans:
        chunks.setdefault(span.rank, [])
        if span.op.stage not in chunks[span.rank]:
            chunks[span.rank].append(span.op.stage)
    end = max((span.end_ns for span in spans), default=1)
    for rank in range(ranks):
        stages = sorted(chunks.get(rank, []))
        of_rank = [span for span in spans if span.rank == rank]
        colours = []
        for span in of_rank:
            light = 0.45 * stages.index(span.op.stage) / max(1, len(stages))
            colours.append(tuple(part + (1 - part) * light for part in _COLOURS[span.op.kind]))
        ax.broken_barh([(span.start_ns / 1e6, (span.end_ns - span.start_ns) / 1e6) for span in of_rank], (rank - 0.4, 0.8),
                       facecolors=colours, edgecolor="white", linewidth=0.5)
        for span in of_rank if labels else []:
            if (span.end_ns - span.start_ns) * 60 > end:
                ax.text((span.start_ns + span.end_ns) / 2e6, rank, str(span.op), ha="center", va="center",
                        color="white", fontsize=7)
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.set_xlim(0, end / 1e6)
    ax.set_xlabel("ms")
    ax.set_title(title)
    return ax


def bars(values: list[tuple[str, float]], ax: Axes | None, label: str, scale: float) -> Axes:
    """One bar for each name."""
    ax = _axis(ax, (8, 0.3 * len(values) + 1))
    ax.barh([name for name, _ in values], [value * scale for _, value in values])
    ax.invert_yaxis()
    ax.set_xlabel(label)
    return ax


def stacks(ranks: list[dict[str, int]], limits: list[int | None], ax: Axes | None) -> Axes:
    """One bar of bytes by kind for each rank, with its limit as a line."""
    ax = _axis(ax, (8, 4))
    below: list[float] = [0.0] * len(ranks)
    for kind in ranks[0]:
        sizes = [rank[kind] / 2**30 for rank in ranks]
        if any(sizes):
            ax.bar(range(len(ranks)), sizes, bottom=below, label=kind.replace("_", " "))
            below = [one + other for one, other in zip(below, sizes)]
    known: list[Any] = [limit for limit in limits if limit is not None]
    if known and max(known) / 2**30 < 4 * max(below):
        ax.axhline(min(known) / 2**30, color="black", linestyle="--", label="limit")
    ax.set_xlabel("rank")
    ax.set_ylabel("GiB")
    ax.legend()
    return ax
