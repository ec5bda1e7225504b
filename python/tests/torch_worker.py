"""One process of the tests of ``pipeplan.torch``: runs every case over gloo, and writes what it saw.

    python torch_worker.py RANK RANKS RENDEZVOUS CASES OUT
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

import pipeplan
from pipeplan.torch import PlanSchedule

WIDTH = 12


def parts_of(stages: int, seed: int) -> list[nn.Module]:
    """A tiny model of as many parts, in double precision: equal in all processes."""
    torch.manual_seed(seed)
    make = [lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)),
            lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH, bias=False))]
    return [make[stage % 2]().double() for stage in range(stages)]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def run(case: dict, rank: int, groups: dict) -> dict:
    plan = pipeplan.Plan(case["plan"])
    if rank >= plan.ranks:
        return {}
    group = groups[plan.ranks]
    microbatches, stages = plan.microbatches, len(plan.stages)
    torch.manual_seed(1)
    x, y = torch.randn(2 * microbatches, WIDTH).double(), torch.randn(2 * microbatches, WIDTH).double()

    # The unsplit model, on the same batch.
    whole = nn.Sequential(*parts_of(stages, 0))
    expected_losses = []
    for _ in range(2):
        for k in range(microbatches):
            loss = loss_of(whole(x[2 * k:2 * k + 2]), y[2 * k:2 * k + 2])
            (loss / microbatches).backward()
            expected_losses.append(loss.detach())

    mine = sorted({op.stage for op in plan.ops[rank]})
    # A second holder of a stage begins with other weights: they are copied to it.
    second = [stage for stage in mine if plan.stages[stage].ranks[0] != rank]
    parts, other = parts_of(stages, 0), parts_of(stages, 7)
    modules = {stage: (other if stage in second else parts)[stage] for stage in mine}
    schedule = PlanSchedule(plan, modules, loss_of, group=group, record=case.get("record", False))
    losses: list = []
    ran = []
    started = time.perf_counter()
    for _ in range(2):
        schedule.step(x, target=y, losses=losses)
        ran.append(" ".join(schedule.ran))
    seconds = time.perf_counter() - started
    worst = 0.0
    for stage, module in modules.items():
        for parameter, expected in zip(module.parameters(), whole[stage].parameters()):
            scale = expected.grad.abs().max().item() or 1.0
            worst = max(worst, (parameter.grad - expected.grad).abs().max().item() / scale)
    found = {"order": all(row == plan.program[rank] for row in ran), "gradient_error": worst,
             "steps": len(schedule.ran), "seconds": seconds}
    if schedule.is_last:
        per_step = len(losses) // 2
        owned = [k for k in range(microbatches) if schedule._owner[stages - 1, k] == rank]
        assert per_step == len(owned)
        expected = [expected_losses[k].item() for k in owned] * 2
        found["loss_error"] = max(abs(one.item() - other) for one, other in zip(losses, expected))
    if case.get("record"):
        trace = schedule.trace(tokens=2 * microbatches)
        if trace is not None:
            found["trace"] = trace.text
    schedule.close()
    return found


def run_replicas(case: dict, rank: int, groups: dict) -> dict:
    """Two pipelines of two ranks, each with half of the batch."""
    plan = pipeplan.Plan(case["plan"])
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    pipeline, place = divmod(rank, 2)
    microbatches, stages = plan.microbatches, len(plan.stages)
    torch.manual_seed(1)
    x, y = torch.randn(4 * microbatches, WIDTH).double(), torch.randn(4 * microbatches, WIDTH).double()
    whole = nn.Sequential(*parts_of(stages, 0))
    half = 2 * microbatches
    for batch in range(2):
        for k in range(2 * microbatches):
            loss = loss_of(whole(x[2 * k:2 * k + 2]), y[2 * k:2 * k + 2])
            (loss / (2 * microbatches)).backward()
    modules = {stage.index: parts_of(stages, 0)[stage.index] for stage in plan.stages if place in stage.ranks}
    given: object = modules
    group = None
    if case["replicas"] == "group":
        group = replicas[place]
    elif case["replicas"] == "ddp":
        given = {s: nn.parallel.DistributedDataParallel(module, process_group=replicas[place]) for s, module in modules.items()}
    elif case["replicas"] == "torch":
        from torch.distributed.pipelining import PipelineStage

        group = replicas[place]
        given = [PipelineStage(module, s, stages, torch.device("cpu"), group=pipelines[pipeline])
                 for s, module in modules.items()]
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(replicas[place], "cpu")
        for module in modules.values():
            fully_shard(module, mesh=mesh)
    schedule = PlanSchedule(plan, given, loss_of, group=pipelines[pipeline], data_parallel_group=group)  # type: ignore[arg-type]
    mine = slice(pipeline * half, (pipeline + 1) * half)
    for _ in range(2):
        schedule.step(x[mine], target=y[mine])
    worst = 0.0
    for stage, module in modules.items():
        for parameter, expected in zip(module.parameters(), whole[stage].parameters()):
            gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
            worst = max(worst, (gradient - expected.grad).abs().max().item() / (expected.grad.abs().max().item() or 1.0))
    return {"order": " ".join(schedule.ran) == plan.program[place], "gradient_error": worst, "steps": len(schedule.ran)}


def main() -> None:
    rank, ranks, rendezvous, cases, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    groups = {size: dist.new_group(list(range(size))) for size in range(2, int(ranks) + 1)}
    with open(cases) as file:
        given = json.load(file)
    found = {}
    for case in given:
        try:
            work = run_replicas if "replicas" in case else run
            found[case["name"]] = work(case, int(rank), groups)
        except Exception:
            # The others wait for this one: whoever started all of them ends these.
            print(case["name"], traceback.format_exc(), file=sys.stderr, flush=True)
            os._exit(1)
        with open(out, "w") as file:
            json.dump({"torch": torch.__version__, "cases": found}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
