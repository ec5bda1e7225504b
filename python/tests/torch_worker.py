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
from pipeplan.torch import PlanSchedule, split

WIDTH, VOCAB, LENGTH = 12, 32, 6


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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def tied_model(layers: int, seed: int = 0) -> nn.Sequential:
    """Embedding, layers and head, which has the weight of the embedding."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *(Block() for _ in range(layers)), nn.Linear(WIDTH, VOCAB, bias=False))
    model[-1].weight = model[0].weight
    return model.double()


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def run_tied(case: dict, rank: int, groups: dict) -> dict:
    """A model with tied embeddings, cut by ``split``: two steps of an optimizer, after which all copies are still the same."""
    plan = pipeplan.Plan(case["plan"])
    if case["tied"] == "given":
        return run_tied_by_name(plan, rank, groups)
    # With replicas: two pipelines of two ranks.
    replicas = case["tied"] == "replicas"
    pipeline, place = divmod(rank, plan.ranks) if replicas else (0, rank)
    if place >= plan.ranks or pipeline > 1:
        return {}
    group, others = groups[plan.ranks], None
    if replicas:
        pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group, others = pipelines[pipeline], [dist.new_group([0, 2]), dist.new_group([1, 3])][place]
    count = 2 if replicas else 1
    layers = plan.stages[-1].layers[1]
    whole, model = tied_model(layers), tied_model(layers)
    stages = split(model, plan, place)
    # A rank of another start: the weights of the first stage are copied to it.
    shared = [stage for stage in stages.values() if stage.tied_parameters]
    if shared and 0 not in stages and not any(len(stage.ranks) > 1 for stage in plan.stages):
        with torch.no_grad():
            model[0].weight.mul_(3)
    schedule = PlanSchedule(plan, stages, cross_entropy, group=group, data_parallel_group=others)
    mine = {id(parameter): parameter for stage in stages.values() for parameter in stage.parameters()}
    optimizer = torch.optim.SGD(list(mine.values()), lr=0.1)
    whole_optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for _ in range(2):
        tokens = torch.randint(VOCAB, (2 * count * plan.microbatches, LENGTH + 1), generator=generator)
        whole_optimizer.zero_grad()
        cross_entropy(whole(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.zero_grad()
        part = tokens.chunk(count)[pipeline]
        for repeat in range(2):  # the second adds to the gradients of the first
            schedule.step(part[:, :-1], target=part[:, 1:])
        for parameter, expected in zip(model.parameters(), whole.parameters()):
            if id(parameter) in mine:
                parameter.grad /= 2
                scale = expected.grad.abs().max().item() or 1.0
                worst = max(worst, (parameter.grad - expected.grad).abs().max().item() / scale)
        optimizer.step()
        whole_optimizer.step()
    for parameter, expected in zip(model.parameters(), whole.parameters()):
        if id(parameter) in mine:
            worst = max(worst, (parameter - expected).abs().max().item())
    return {"order": " ".join(schedule.ran) == plan.program[place], "gradient_error": worst, "steps": len(schedule.ran),
            "shared": len(shared)}


def run_tied_by_name(plan: pipeplan.Plan, rank: int, groups: dict) -> dict:
    """Modules of the user's own: every second stage has the first weight of all of these, each a copy that begins otherwise."""
    if rank >= plan.ranks:
        return {}
    stages, microbatches = len(plan.stages), plan.microbatches
    whole = nn.Sequential(*parts_of(stages, 0))
    users = range(1, stages, 2)
    for stage in users:
        whole[stage][0].weight = whole[1][0].weight
    torch.manual_seed(1)
    x, y = torch.randn(2 * microbatches, WIDTH).double(), torch.randn(2 * microbatches, WIDTH).double()
    loss_of(whole(x), y).backward()
    modules = {s: parts_of(stages, 0)[s] for s in sorted({op.stage for op in plan.ops[rank]})}
    names = [{stage: "0.weight" for stage in users}]
    schedule = PlanSchedule(plan, modules, loss_of, group=groups[plan.ranks], tied=names)
    schedule.step(x, target=y)
    worst = 0.0
    for stage, module in modules.items():
        for name, parameter in module.named_parameters():
            expected = whole[stage].get_parameter(name)
            scale = expected.grad.abs().max().item() or 1.0
            worst = max(worst, (parameter.grad - expected.grad).abs().max().item() / scale)
    return {"order": " ".join(schedule.ran) == plan.program[rank], "gradient_error": worst, "steps": len(schedule.ran),
            "shared": sum(stage in modules for stage in users)}


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
            work = run_replicas if "replicas" in case else run_tied if "tied" in case else run
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
