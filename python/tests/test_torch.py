"""``pipeplan.torch`` runs every published schedule and random orders over gloo, to the gradients of the unsplit model.

With ``PIPEPLAN_WIDE=1`` in the environment also those of 5 to 8 ranks all: minutes, where it takes some seconds else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pipeplan
import pytest
from conftest import EXAMPLES
from pipeplan import Op

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not here: pip install torch", allow_module_level=True)

WORKER = Path(__file__).with_name("torch_worker.py")
RANKS = 4
#: Ranks of what runs in more processes.
MANY = range(5, 9)
IS_WIDE = bool(os.environ.get("PIPEPLAN_WIDE"))
#: Every process has to come to its end in this many seconds.
PATIENCE = 1200 if IS_WIDE else 180
RANDOM_ORDERS = 100


def model(**fields):
    return pipeplan.Spec(EXAMPLES / "tiny-llama.toml", **fields)


def random_order(seed: int, counts=(2, 3, 4)) -> pipeplan.Plan:
    """A valid order that nobody would plan: any placement, and for each microbatch of a stage a whole or a split backward."""
    rng = random.Random(seed)
    ranks, microbatches = rng.choice(counts), rng.randint(2, 6)
    chunks = rng.choice([1, 2, 3])
    stages = ranks * chunks
    placement = [rank for rank in range(ranks) for _ in range(chunks)]
    rng.shuffle(placement)
    done: set[Op] = set()
    rows: list[list[Op]] = [[] for _ in range(ranks)]
    splits = {(s, k): rng.random() < 0.5 for s in range(stages) for k in range(microbatches)}

    def back(stage, k):
        return Op(stage, "B" if splits[stage, k] else "BW", k)

    while True:
        ready = []
        for s in range(stages):
            for k in range(microbatches):
                forward = Op(s, "F", k)
                if forward not in done:
                    if s == 0 or Op(s - 1, "F", k) in done:
                        ready.append(forward)
                elif back(s, k) not in done:
                    if s == stages - 1 or back(s + 1, k) in done:
                        ready.append(back(s, k))
                elif splits[s, k] and Op(s, "W", k) not in done:
                    ready.append(Op(s, "W", k))
        if not ready:
            break
        op = rng.choice(ready)
        done.add(op)
        rows[placement[op.stage]].append(op)
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    problem = {"ranks": ranks, "chunks": chunks, "microbatches": microbatches, "placement": placement, "backward": "split",
               "stages": costs}
    lowering = rng.choice(["grouped", "overlapped", "overlapped:2"])
    spec = pipeplan.Spec(problem=problem, messages={"lowering": lowering, "transport": "grouped"})
    return pipeplan.plan(spec, rows, name=f"random {seed}")


def cases() -> list[dict]:
    found = []
    for schedule in pipeplan.schedules():
        for microbatches in (8, 12):
            try:
                plan = pipeplan.plan(model(microbatches=microbatches), schedule["name"])
            except pipeplan.SpecError:
                continue
            found.append({"name": f"{schedule['name']}-{microbatches}", "plan": plan.text})
    grouped = model(messages={"lowering": "grouped", "transport": "pair-ordered"})
    for name in ("1f1b", "interleaved-1f1b", "dualpipe", "zb-v"):
        found.append({"name": f"{name}-grouped", "plan": pipeplan.plan(grouped, name).text})
    found.append({"name": "recorded", "plan": pipeplan.plan(model(), "zb-v").text, "record": True})
    found += [{"name": f"random-{seed}", "plan": random_order(seed).text} for seed in range(RANDOM_ORDERS)]
    # Two pipelines of two ranks.
    ways = [("1f1b", "group"), ("zb-v", "group"), ("zb-h1", "ddp"), ("interleaved-1f1b", "torch")]
    # FSDP2 of 2.6 asks the CPU for streams, which it has not.
    version = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
    if version >= (2, 7):
        ways += [("1f1b", "fsdp"), ("zb-v", "fsdp")]
    for name, how in ways:
        found.append({"name": f"{name}-replicas-{how}", "plan": pipeplan.plan(model(pipeline=2), name).text, "replicas": how})
    # Tied embeddings over two ranks, over stages of one rank, and in stages that two ranks hold.
    for name in ("1f1b", "interleaved-1f1b", "zb-v", "zb-h1", "dualpipe"):
        found.append({"name": f"{name}-tied", "plan": pipeplan.plan(model(), name).text, "tied": "split"})
    for name in ("1f1b", "zb-v"):
        found.append({"name": f"{name}-tied-replicas", "plan": pipeplan.plan(model(pipeline=2), name).text, "tied": "replicas"})
    for name in ("1f1b", "zb-v", "chimera", "wave"):
        found.append({"name": f"{name}-tied-by-name", "plan": pipeplan.plan(model(), name).text, "tied": "given"})
    return found


def cases_of_many() -> list[dict]:
    """Cases of 5 to 8 ranks: all published schedules and 40 random orders, or one of each kind."""
    found = []
    few = {"1f1b": 5, "zb-h2": 6, "interleaved-1f1b": 7, "zb-v": 8, "dualpipe": 8, "dualpipe-v": 6, "chimera": 6}
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    for ranks in MANY:
        for schedule in (schedule["name"] for schedule in pipeplan.schedules()):
            if not IS_WIDE and few.get(schedule) != ranks:
                continue
            for microbatches in (2 * ranks, 2 * ranks + 4) if IS_WIDE else (2 * ranks,):
                typed = {"ranks": ranks, "chunks": 2, "microbatches": microbatches, "stages": costs}
                try:
                    plan = pipeplan.plan(pipeplan.Spec(problem=typed), schedule)
                except pipeplan.SpecError:
                    continue
                found.append({"name": f"{schedule}-{ranks}-{microbatches}", "plan": plan.text})
    found += [{"name": f"random-{seed}-of-many", "plan": random_order(1000 + seed, list(MANY)).text}
              for seed in range(40 if IS_WIDE else 4)]
    found.append({"name": "tied-of-many", "plan": pipeplan.plan(model(pipeline=8, chunks=1, microbatches=8), "1f1b").text, "tied": "split"})
    found.append({"name": "tied-by-name-of-many", "plan": pipeplan.plan(model(pipeline=6, chunks=1, microbatches=12), "dualpipe").text,
                  "tied": "given"})
    return found


CASES = cases()
CASES_OF_MANY = cases_of_many()


def run_cases(folder: Path, cases: list[dict], ranks: int) -> list[dict]:
    """What each of ``ranks`` processes saw of each case."""
    (folder / "cases.json").write_text(json.dumps(cases))
    outs = [folder / f"rank{rank}.json" for rank in range(ranks)]
    errors = [open(folder / f"rank{rank}.err", "w+") for rank in range(ranks)]
    children = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), str(ranks), str(folder / "rendezvous"),
                          str(folder / "cases.json"), str(outs[rank])], stderr=errors[rank])
        for rank in range(ranks)
    ]
    until = time.monotonic() + PATIENCE
    try:
        while any(child.poll() is None for child in children):
            if time.monotonic() > until or any(child.poll() not in (None, 0) for child in children):
                break
            time.sleep(0.1)
    finally:
        for child in children:
            child.kill()
            child.wait()
    told = []
    for rank, (out, error) in enumerate(zip(outs, errors)):
        error.seek(0)
        said = json.loads(out.read_text()) if out.exists() else {"cases": {}, "torch": "none"}
        said["error"] = f"rank {rank} ends with {children[rank].returncode}: {error.read()[-3000:]}"
        told.append(said)
    print("torch", told[0]["torch"])
    return told


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return run_cases(tmp_path_factory.mktemp("torch"), CASES, RANKS)


@pytest.fixture(scope="module")
def seen_by_many(tmp_path_factory):
    return run_cases(tmp_path_factory.mktemp("torch"), CASES_OF_MANY, max(MANY))


def expect_right(case: dict, seen: list[dict]) -> None:
    name = case["name"]
    plan = pipeplan.Plan(case["plan"])
    for rank in range(plan.ranks):
        assert name in seen[rank]["cases"], "\n".join(rank["error"] for rank in seen)
        found = seen[rank]["cases"][name]
        assert found["order"]
        assert found["gradient_error"] < 1e-12
        assert found.get("loss_error", 0.0) < 1e-12
    if "tied" in case:
        assert sum(seen[rank]["cases"][name]["shared"] for rank in range(plan.ranks)) >= 2


@pytest.mark.parametrize("name", [case["name"] for case in CASES])
def test_gradients_are_those_of_the_unsplit_model_and_the_order_is_the_plan_s(seen, name):
    expect_right(next(case for case in CASES if case["name"] == name), seen)


@pytest.mark.parametrize("name", [case["name"] for case in CASES_OF_MANY])
def test_it_is_so_on_5_to_8_ranks(seen_by_many, name):
    expect_right(next(case for case in CASES_OF_MANY if case["name"] == name), seen_by_many)


def test_every_published_schedule_ran():
    names = {case["name"].rsplit("-", 1)[0] for case in CASES}
    assert {schedule["name"] for schedule in pipeplan.schedules()} <= names


def test_what_was_recorded_is_a_trace_of_the_plan(seen):
    plan = pipeplan.Plan(next(case["plan"] for case in CASES if case["name"] == "recorded"))
    trace = pipeplan.Trace(seen[0]["cases"]["recorded"]["trace"])
    assert trace.steps == 2
    assert sorted((span.rank, span.op) for span in trace.timeline()) == sorted((span.rank, span.op) for span in plan.timeline)
    calibration = pipeplan.calibrate(plan, trace)
    assert calibration.makespan.measured_ns > 0
