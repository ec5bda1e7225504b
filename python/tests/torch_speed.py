"""What PlanSchedule takes for an op, beside torch's own runtime and a bare loop, on the same order in one run.

    python torch_speed.py [--ranks 1,2,4] [--schedules 1f1b,interleaved-1f1b,zb-v] [--steps 40] [--width 8]

With one rank, one process holds all stages, so that nothing is waited for: what is measured is Python. With several, each is
a process over gloo, and the two runtimes take turns step by step. Prints µs for each op of a rank: of time, and of the CPU with
gloo's threads, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

import pipeplan
from pipeplan.torch import PlanSchedule

STAGES, MICROBATCHES, WIDTH, STEPS = 4, 32, 8, 20
COSTS = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}

ONE_CHUNK = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")


def plan_of() -> pipeplan.Plan:
    problem = {"ranks": 1, "chunks": STAGES, "microbatches": MICROBATCHES, "placement": [0] * STAGES, "stages": COSTS}
    row = [op for k in range(MICROBATCHES) for op in (
        [pipeplan.F(s, k) for s in range(STAGES)] + [pipeplan.BW(s, k) for s in reversed(range(STAGES))])]
    return pipeplan.plan({"problem": problem}, [row])


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(STAGES)]


def bare(modules: list[nn.Module], x: torch.Tensor, y: torch.Tensor) -> None:
    """The same graph for each stage and microbatch, without a schedule."""
    for part, goal in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
        kept = []
        hidden = part
        for at, module in enumerate(modules):
            given = hidden.detach().requires_grad_(at > 0)
            out = module(given)
            kept.append((given, out))
            hidden = out
        gradient = None
        loss = loss_of(kept[-1][1], goal)
        for at, (given, out) in reversed(list(enumerate(kept))):
            if at == STAGES - 1:
                loss.backward(torch.full_like(loss, 1 / MICROBATCHES))
            else:
                torch.autograd.backward([out], [gradient])
            gradient = given.grad


def best_of(work) -> float:
    """µs an op: the best of some steps."""
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) / (2 * STAGES * MICROBATCHES) * 1e6


def one_rank() -> None:
    torch.set_num_threads(1)
    file = tempfile.mktemp()
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    x, y = torch.randn(MICROBATCHES, WIDTH), torch.randn(MICROBATCHES, WIDTH)
    plan = plan_of()
    modules = parts()
    schedule = PlanSchedule(plan, modules, loss_of)
    figures = {"bare loop": best_of(lambda: bare(modules, x, y)), "PlanSchedule": best_of(lambda: schedule.step(x, target=y))}
    runtime = torch_runtime(plan, dict(enumerate(parts())))
    if runtime is not None:
        figures["torch's runtime"] = best_of(lambda: runtime.step(x, target=y))
    print("1 rank, 4 stages")
    for name, us in figures.items():
        print(f"  {name:<16} {us:7.1f} µs an op")
    print(f"  {'overhead':<16} {figures['PlanSchedule'] - figures['bare loop']:7.1f} µs an op")
    dist.destroy_process_group()


def torch_runtime(plan: pipeplan.Plan, modules: dict[int, nn.Module]):
    """torch's own runtime on the order of ``plan``, or None where this version of torch does not run it."""
    try:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        count = len(plan.stages)
        stages = [PipelineStage(module, at, count, torch.device("cpu")) for at, module in sorted(modules.items())]
        runtime = _PipelineScheduleRuntime(stages, plan.microbatches, loss_fn=loss_of, scale_grads=True)
        csv = tempfile.mktemp()
        with open(csv, "w") as opened:
            opened.write(plan.export("torch-csv"))
        runtime._load_csv(csv)
        os.unlink(csv)
        return runtime
    except Exception as error:  # another version of torch
        print(f"torch's runtime does not run here: {error!r}", file=sys.stderr)
        return None


def a_rank(rank: int, ranks: int, rendezvous: str, plans: dict[str, str], steps: int, width: int) -> None:
    """One process of several: measures each plan, and rank 0 prints the figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    for name, text in plans.items():
        plan = pipeplan.Plan(text)
        torch.manual_seed(0)
        whole = [nn.Linear(width, width) for _ in plan.stages]
        modules = {stage.index: whole[stage.index] for stage in plan.stages if rank in stage.ranks}
        x, y = torch.randn(plan.microbatches, width), torch.randn(plan.microbatches, width)
        schedule = PlanSchedule(plan, modules, loss_of)
        # The same order with two transfers of each link received ahead, and so nearer to what torch's runtime does.
        ahead = PlanSchedule(pipeplan.plan(plan.spec.replace(messages={"lowering": "overlapped:2"}), plan.schedule), modules, loss_of)
        assert ahead.plan.rows == plan.rows
        runtime = torch_runtime(plan, modules)
        given = {"args": [x] if 0 in modules else [], "target": y if len(whole) - 1 in modules else None}
        works = {"PlanSchedule": lambda: schedule.step(*given["args"], target=given["target"]),
                 "  received ahead": lambda: ahead.step(*given["args"], target=given["target"])}
        if runtime is not None:
            told = {} if given["target"] is None else {"target": y, "losses": []}
            works["torch's runtime"] = lambda: runtime.step(*given["args"], **told)
        times: dict[str, list[float]] = {name: [] for name in works}
        cpu: dict[str, list[float]] = {name: [] for name in works}
        for step in range(steps + 3):
            for label, work in works.items():
                dist.barrier()
                started, began = time.perf_counter(), time.process_time()
                work()
                took, used = torch.tensor(time.perf_counter() - started), torch.tensor(time.process_time() - began)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                dist.all_reduce(used)
                if step >= 3:
                    times[label].append(took.item())
                    cpu[label].append(used.item() / ranks)
        ahead.close()
        schedule.close()
        if rank == 0:
            ops = max(len(row) for row in plan.ops)
            print(f"{ranks} ranks, {name}, {ops} ops a rank")
            for label, seconds in times.items():
                best, middle, used = (1e6 / ops * value for value in (min(seconds), statistics.median(seconds),
                                                                      statistics.median(cpu[label])))
                print(f"  {label:<16} {best:7.1f} µs an op at best, {middle:7.1f} in the middle; CPU {used:7.1f}", flush=True)
    dist.destroy_process_group()


def several(ranks: int, schedules: list[str], steps: int, width: int) -> None:
    plans = {}
    for name in schedules:
        chunks = 1 if name in ONE_CHUNK else 2
        problem = {"ranks": ranks, "chunks": chunks, "microbatches": MICROBATCHES, "stages": COSTS}
        plans[name] = pipeplan.plan({"problem": problem}, name).text
    rendezvous = tempfile.mktemp()
    children = []
    for rank in range(ranks):
        given = json.dumps([rank, ranks, rendezvous, plans, steps, width])
        children.append(subprocess.Popen([sys.executable, __file__, "--rank-of", "-"], stdin=subprocess.PIPE, text=True))
        children[-1].stdin.write(given)  # type: ignore[union-attr]
        children[-1].stdin.close()  # type: ignore[union-attr]
    if any([child.wait() for child in children]):
        sys.exit("a rank failed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--schedules", default="1f1b,interleaved-1f1b,zb-v")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank_of:
        a_rank(*json.load(sys.stdin))
        return
    for ranks in map(int, asked.ranks.split(",")):
        if ranks == 1:
            one_rank()
        else:
            several(ranks, asked.schedules.split(","), asked.steps, asked.width)


if __name__ == "__main__":
    main()
