"""Records ScheduleGPipe and Schedule1F1B of torch.distributed.pipelining, which run without `_PipelineScheduleRuntime`.

    python examples/torch_schedules.py 1f1b profiles --ranks 3 --stack
    pipeplan trace profiles/*.json -o trace.json --write-order order.txt

A process for each rank, on this machine's CPU with gloo between them. ScheduleGPipe puts its ops into ranges, `Forward 0`;
Schedule1F1B into none, so that it needs `--stack`: the profiler then records Python's functions.

Needs torch 2.15 (pip; the CPU is enough).
"""

import argparse
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.profiler import ProfilerActivity, profile, schedule

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def train(rank, options, rendezvous):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=options.ranks)
    width = options.width
    layer = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
    stage = PipelineStage(layer, rank, options.ranks, torch.device("cpu"))
    run = SCHEDULES[options.schedule](stage, options.microbatches, loss_fn=torch.nn.functional.mse_loss)
    inputs, targets = torch.randn(2, options.rows * options.microbatches, width)
    steps = schedule(wait=1, warmup=1, active=options.steps)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, with_stack=options.stack) as profiler:
        for _ in range(2 + options.steps):
            given = {"target": targets} if rank + 1 == options.ranks else {}
            run.step(*([inputs] if rank == 0 else []), **given)
            profiler.step()
    profiler.export_chrome_trace(str(options.folder / f"rank{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("schedule", choices=SCHEDULES)
    parser.add_argument("folder", type=pathlib.Path)
    for name, count in [("ranks", 3), ("microbatches", 4), ("steps", 2), ("width", 64), ("rows", 16)]:
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--stack", action="store_true", help="record Python's functions")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (options, f"{folder}/rendezvous"), options.ranks)


if __name__ == "__main__":
    main()
