"""Runs the order of a plan with torch.distributed.pipelining, and records it for `pipeplan trace`.

    pipeplan plan spec.toml --schedule zb-v -o plan.json
    pipeplan export plan.json --format torch-csv -o order.csv
    python examples/torch_profile.py order.csv profiles
    pipeplan trace plan.json profiles/*.json -o trace.json
    pipeplan calibrate plan.json trace.json

A process for each rank, on this machine's CPU with gloo between them, or with `--device cuda` on its GPUs with NCCL; each
stage is a small feed-forward network, so that times are those of this model and not of the plan's. What matters is how an
order is loaded and recorded, which is the same for a real model. Ranks share a GPU where there are fewer of these, which
NCCL 2.30.3 and later take with `NCCL_MULTI_RANK_GPU_ENABLE=1`.

Needs torch 2.15 (pip; the CPU is enough).
"""

import argparse
import csv
import pathlib
import re
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.profiler import ProfilerActivity, profile, schedule


def actions(path):
    """By rank, stage and microbatch of each action."""
    with open(path, newline="") as file:
        cells = [[cell for cell in row if cell.strip()] for row in csv.reader(file)]
    # Of a pair, `(0F7;7B3)OVERLAP_F_B`, both.
    return [[(int(stage), int(microbatch)) for cell in row for stage, microbatch in re.findall(r"(\d+)[FBIW](\d+)", cell)] for row in cells]


def stage_of(width):
    return torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))


def train(rank, options, rendezvous):
    torch.set_num_threads(1)
    rows = actions(options.order)
    stages = 1 + max(stage for row in rows for stage, _ in row)
    microbatches = 1 + max(microbatch for row in rows for _, microbatch in row)
    on_gpu = options.device == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(rows))
    mine = sorted({stage for stage, _ in rows[rank]})
    local = [PipelineStage(stage_of(options.width).to(device), stage, stages, device) for stage in mine]
    runtime = _PipelineScheduleRuntime(local, microbatches, loss_fn=torch.nn.functional.mse_loss)
    runtime._load_csv(options.order)
    inputs, targets = torch.randn(2, options.rows * microbatches, options.width, device=device)
    has_first, has_last = 0 in mine, stages - 1 in mine
    # The first steps take longer than those that follow.
    steps = schedule(wait=1, warmup=1, active=options.steps)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    # What each rank held is in the profile of a GPU alone.
    with profile(activities=activities, schedule=steps, profile_memory=on_gpu) as profiler:
        for _ in range(2 + options.steps):
            losses = []
            runtime.step(*([inputs] if has_first else []), **({"target": targets, "losses": losses} if has_last else {}))
            dist.barrier()
            profiler.step()
    profiler.export_chrome_trace(str(options.profiles / f"rank{rank}.json"))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("order", help="what `pipeplan export --format torch-csv` wrote")
    parser.add_argument("profiles", type=pathlib.Path, help="a folder for a file of each rank")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=3, help="steps that are recorded")
    parser.add_argument("--width", type=int, default=256, help="of each stage's network")
    parser.add_argument("--rows", type=int, default=64, help="of each microbatch")
    options = parser.parse_args()
    options.profiles.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (options, f"{folder}/rendezvous"), nprocs=len(actions(options.order)))


if __name__ == "__main__":
    main()
