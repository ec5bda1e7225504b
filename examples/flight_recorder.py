"""Makes a run that hangs, and the dumps of torch's flight recorder, for `pipeplan trace`.

    python examples/flight_recorder.py dumps
    pipeplan trace dumps/*

Three ranks on this machine's CPU with gloo between them: all reduce twice, and the last one leaves out the all-gather behind that.
Over NCCL, `TORCH_NCCL_TRACE_BUFFER_SIZE` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` make torch write such dumps by itself, to
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` with the number of the rank behind it.

Needs torch 2.15 (pip; the CPU is enough).
"""

import argparse
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

RANKS = 3


def hang(rank, folder, rendezvous):
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    values = torch.ones(8)
    dist.all_reduce(values)
    dist.all_reduce(values)
    if rank + 1 < RANKS:
        dist.all_gather_into_tensor(torch.zeros(8 * RANKS), values, async_op=True)
    time.sleep(1)
    from torch._C import _distributed_c10d as recorder

    (folder / f"fr_trace_rank_{rank}").write_bytes(recorder._dump_fr_trace(includeStackTraces=False))
    (folder / f"fr_trace_rank_{rank}.json").write_bytes(recorder._dump_fr_trace_json())
    # Those that wait would never end.
    time.sleep(1)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(hang, (options.folder, f"{folder}/rendezvous"), RANKS)


if __name__ == "__main__":
    main()
