"""What PlanSchedule takes for an op, beside torch's own runtime and a bare loop, on the same order in one run.

    python torch_speed.py

One process holds all stages, so that nothing is waited for: what is measured is Python. Prints µs an op.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

import pipeplan
from pipeplan.torch import PlanSchedule

STAGES, MICROBATCHES, WIDTH, STEPS = 4, 32, 8, 20


def plan_of() -> pipeplan.Plan:
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    problem = {"ranks": 1, "chunks": STAGES, "microbatches": MICROBATCHES, "placement": [0] * STAGES, "stages": costs}
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


def main() -> None:
    torch.set_num_threads(1)
    file = tempfile.mktemp()
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    x, y = torch.randn(MICROBATCHES, WIDTH), torch.randn(MICROBATCHES, WIDTH)
    plan = plan_of()
    modules = parts()
    schedule = PlanSchedule(plan, modules, loss_of)
    figures = {"bare loop": best_of(lambda: bare(modules, x, y)), "PlanSchedule": best_of(lambda: schedule.step(x, target=y))}
    try:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        stages = [PipelineStage(module, at, STAGES, torch.device("cpu")) for at, module in enumerate(parts())]
        runtime = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_of, scale_grads=True)
        csv = tempfile.mktemp()
        with open(csv, "w") as opened:
            opened.write(plan.export("torch-csv"))
        runtime._load_csv(csv)
        figures["torch's runtime"] = best_of(lambda: runtime.step(x, target=y))
        os.unlink(csv)
    except Exception as error:  # another version of torch
        print(f"torch's runtime does not run here: {error!r}", file=sys.stderr)
    for name, us in figures.items():
        print(f"{name:<16} {us:7.1f} µs an op")
    print(f"{'overhead':<16} {figures['PlanSchedule'] - figures['bare loop']:7.1f} µs an op")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
