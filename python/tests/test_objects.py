"""Custom schedules, drawings and tables."""

from __future__ import annotations

import functools

import pipeplan
import pytest
from conftest import EXAMPLES
from pipeplan import BW, F

COSTS = {"ranks": 4, "microbatches": 8, "stages": {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}}


def one_f_one_b(shape, warmup=0):
    """1F1B with ``warmup`` more forwards at the start of each rank."""
    for rank in range(shape.ranks):
        ahead = min(shape.microbatches, shape.ranks - 1 - rank + warmup)
        row = [F(rank, k) for k in range(ahead)]
        for k in range(shape.microbatches):
            if ahead + k < shape.microbatches:
                row.append(F(rank, ahead + k))
            row.append(BW(rank, k))
        yield row


def test_a_custom_schedule_is_a_function():
    plan = pipeplan.plan(COSTS, one_f_one_b)
    assert plan.schedule == "one_f_one_b"
    assert plan.rows == pipeplan.plan(COSTS, "1f1b").rows
    assert plan.check()
    assert pipeplan.plan(COSTS, plan.rows, name="copy").schedule == "copy"
    assert pipeplan.plan(COSTS, plan.ops).rows == plan.rows
    comparison = pipeplan.compare(COSTS, functools.partial(one_f_one_b, warmup=1), effort=10_000)
    assert "one_f_one_b" in [row.schedule for row in comparison]


def test_a_wrong_schedule_is_refused_with_its_faults():
    # Rank 1 runs its backward before its forward.
    with pytest.raises(pipeplan.SpecError, match="wait"):
        pipeplan.plan(COSTS, lambda shape: [[BW(r, k) for k in range(8)] + [F(r, k) for k in range(8)] for r in range(4)])
    with pytest.raises(pipeplan.SpecError) as raised:
        pipeplan.plan(COSTS, ["0X0"])
    assert raised.value.faults[0].field == "options.order"


def test_searching_over_a_custom_schedule():
    best, tries = pipeplan.search(COSTS, one_f_one_b, warmup=[0, 1, 2])
    assert len(tries) == 3 and best.cost_ns == min(tried["cost_ns"] for tried in tries)


def test_a_plan_has_its_copies():
    """In room for two of the four microbatches that rank 0 holds, activations go to the host; a limit that needs none has none."""
    stages = COSTS["stages"] | {
        "forward_bytes": 4, "backward_input_bytes": -2, "backward_weight_bytes": -2, "offload_bytes": 4, "offload_ns": 100,
    }
    copied = pipeplan.plan(COSTS | {"stages": stages, "limit_bytes": 8}, "1f1b")
    assert copied.check() and copied.makespan_ns == pipeplan.plan(COSTS, "1f1b").makespan_ns
    assert len(copied.copies) == 4 and copied.copies[0].startswith("0OFFLOAD") and copied.copies[3] == ""
    assert pipeplan.plan(COSTS | {"stages": stages}, "1f1b").copies == []


def test_a_plan_has_its_figures():
    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "zb-v")
    assert (plan.ranks, plan.chunks, plan.microbatches, plan.placement) == (4, 2, 8, "v")
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,)]
    assert plan.stages[0].embedding and plan.stages[-1].head and plan.stages[-1].layers[1] == 8
    assert 0 < plan.bubble_ratio < 1 and plan.gap >= 0
    assert plan.makespan_ns == max(span.end_ns for span in plan.timeline)
    assert plan.step_ns > plan.makespan_ns and 0 < plan.mfu < 1
    frame = plan.to_pandas()
    assert list(frame.columns) == ["rank", "stage", "kind", "microbatch", "start_ns", "end_ns"]
    assert len(frame) == sum(len(row) for row in plan.ops)
    both = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "dualpipe")
    assert both.stages[0].ranks == (0, 3)


def test_notebooks_show_a_drawing_and_figures():
    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "zb-v")
    page = plan._repr_html_()
    assert "<svg" in page and "Lower bound" in page
    assert "zb-v" in pipeplan.compare(COSTS, effort=1000)._repr_html_()
    assert "<table" in pipeplan.memory(EXAMPLES / "tiny-llama.toml", "1f1b")._repr_html_()
    assert "<table" in plan.sensitivity()._repr_html_()
    assert "rank" in repr(plan)


def test_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "zb-v")
    ax = plan.plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    figure, axes = pyplot.subplots(1, 2)
    assert plan.plot(axes[0], labels=False) is axes[0]
    pipeplan.compare(COSTS, effort=1000).plot(axes[1])
    pipeplan.memory(EXAMPLES / "tiny-llama.toml", "1f1b").plot()
    pyplot.close("all")


def test_doctests():
    import doctest

    from pipeplan import _functions, _spec

    for module in (pipeplan, _spec, _functions):
        assert doctest.testmod(module).failed == 0
