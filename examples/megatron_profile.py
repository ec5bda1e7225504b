"""Records the schedules of Megatron-LM (megatron-core), for `pipeplan trace`.

    python examples/megatron_profile.py profiles --ranks 2 --chunks 2
    pipeplan trace profiles/*.json -o trace.json --write-order order.txt

A process for each rank, on this machine's CPU with gloo between them: what megatron-core asks of a GPU is answered by the CPU.
Each stage is a small feed-forward network. Megatron-LM puts no ranges around its forwards and backwards, so the profiler records
Python's functions, as `--use-pytorch-profiler --pytorch-profiler-collect-callstack` does.

Needs torch 2.15 and megatron-core 0.16 (pip; the CPU is enough).
"""

import argparse
import os
import pathlib

import torch
import torch.multiprocessing as multiprocessing
from torch.profiler import ProfilerActivity, profile, schedule


from megatron.core.enums import ModelType


class Chunk(torch.nn.Module):
    """A model chunk as megatron-core calls it."""

    def __init__(self, width, config):
        super().__init__()
        self.config, self.input, self.vp_stage = config, None, None
        self.model_type = ModelType.encoder_or_decoder
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def set_input_tensor(self, tensor):
        self.input = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, batch):
        return self.layers(batch if self.input is None else self.input)


def step_of(batch, model):
    output = model(batch if isinstance(batch, torch.Tensor) else next(batch))
    return output, lambda result: (result.square().mean(), {})


def train(rank, options):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    zeros = torch.zeros
    torch.zeros = lambda *sizes, **options: zeros(*sizes, **options | ({"device": "cpu"} if options.get("device") == "cuda" else {}))
    from megatron.core import ModelParallelConfig, parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    torch.distributed.init_process_group("gloo", rank=rank, world_size=options.ranks)
    chunks = options.chunks if options.chunks > 1 else None
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=options.ranks, virtual_pipeline_model_parallel_size=chunks)
    config = ModelParallelConfig(
        pipeline_model_parallel_size=options.ranks, virtual_pipeline_model_parallel_size=chunks,
        pipeline_dtype=torch.float32, batch_p2p_comm=False, batch_p2p_sync=False, deallocate_pipeline_outputs=False,
    )
    config.hidden_size, config.fine_grained_activation_offloading = options.width, False
    models = [Chunk(options.width, config) for _ in range(options.chunks)]

    def batches():
        while True:
            yield torch.randn(options.length, options.rows, options.width)

    data = [batches() for _ in models]
    run = get_forward_backward_func()
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=options.steps), with_stack=True) as profiler:
        for _ in range(2 + options.steps):
            run(
                forward_step_func=step_of, data_iterator=data if chunks else data[0], model=models if chunks else models[0],
                num_microbatches=options.microbatches, seq_length=options.length, micro_batch_size=options.rows, forward_only=False,
            )
            profiler.step()
    profiler.export_chrome_trace(str(options.folder / f"rank{rank}.json"))
    torch.distributed.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    for name, count in [("ranks", 2), ("chunks", 1), ("microbatches", 4), ("steps", 2), ("width", 64), ("rows", 4), ("length", 8), ("port", 29612)]:
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(train, (options,), options.ranks)


if __name__ == "__main__":
    main()
