"""Records the pipeline engine of DeepSpeed, for `pipeplan trace`.

    DS_ACCELERATOR=cpu python examples/deepspeed_profile.py profiles --ranks 2
    pipeplan trace profiles/*.json -o trace.json --write-order order.txt

A process for each rank, on this machine's CPU with gloo between them. DeepSpeed puts no ranges around its instructions, so the
profiler records Python's functions (`with_stack=True`): `_exec_forward_pass` and `_exec_backward_pass`.

Needs torch 2.15 and deepspeed 0.19 (pip; the CPU is enough).
"""

import argparse
import os
import pathlib

import torch
import torch.multiprocessing as multiprocessing
from torch.profiler import ProfilerActivity, profile, schedule


def train(rank, options):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    width = options.width
    layers = [torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)) for _ in range(options.ranks)]
    model = PipelineModule(layers=layers, num_stages=options.ranks, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": options.rows,
        "gradient_accumulation_steps": options.microbatches,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)

    def batches():
        while True:
            yield torch.randn(options.rows, width), torch.randn(options.rows, width)

    data = batches()
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=options.steps), with_stack=True) as profiler:
        for _ in range(2 + options.steps):
            engine.train_batch(data_iter=data)
            profiler.step()
    profiler.export_chrome_trace(str(options.folder / f"rank{rank}.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    for name, count in [("ranks", 2), ("microbatches", 4), ("steps", 2), ("width", 64), ("rows", 16)]:
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(train, (options,), options.ranks)


if __name__ == "__main__":
    main()
