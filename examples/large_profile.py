"""Writes a profile of one rank as torch.profiler does for Megatron-LM with stacks, of so many bytes, for the reader of `pipeplan trace`.

    python examples/large_profile.py rank0.json --bytes 1000000000
"""

import argparse

OPERATOR = '  {\n    "ph": "X", "cat": "cpu_op", "name": "aten::%s", "pid": 4030, "tid": %d,\n    "ts": %.3f, "dur": %.3f,\n    "args": {\n      "External id": %d,"Sequence number": %d, "Fwd thread id": %d, "Record function id": 0, "Input Dims": [[2048, 1, 4096], [12288, 4096], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""], "Ev Idx": %d\n    }\n  },\n'
NODE = '  {\n    "ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddmmBackward0", "pid": 4030, "tid": 4100,\n    "ts": %.3f, "dur": %.3f,\n    "args": {\n      "External id": %d,"Sequence number": %d, "Fwd thread id": 1, "Ev Idx": %d\n    }\n  },\n'
PYTHON = '  {\n    "ph": "X", "cat": "python_function", "name": "%s", "pid": 4030, "tid": 4030,\n    "ts": %.3f, "dur": %.3f,\n    "args": {\n      "Python parent id": %d, "Python id": %d, "Ev Idx": %d\n    }\n  },\n'
RUNTIME = '  {\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4030, "tid": 4030,\n    "ts": %.3f, "dur": %.3f,\n    "args": {\n      "External id": %d, "cbid": 211, "correlation": %d\n    }\n  },\n  {\n    "ph": "s", "id": %d, "pid": 4030, "tid": 4030, "ts": %.3f,\n    "cat": "ac2g", "name": "ac2g"\n  },\n'
KERNEL = '  {\n    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)", "pid": 0, "tid": 7,\n    "ts": %.3f, "dur": %.3f,\n    "args": {\n      "External id": %d, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": %d, "registers per thread": 24, "shared memory": 0, "blocks per SM": 15.5, "warps per SM": 62.0, "grid": [2048, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %%": 97\n    }\n  },\n'

MICROBATCHES = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    number = written = 0
    at = 1_000_000.0
    with open(options.file, "w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": 1, "pg_count": 1, "pg_config": [{"pg_name": "0", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 1, "ranks": [0]}]},\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n' % options.rank)
        step = node = 0
        while written < options.bytes:
            parts = ['  {\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 4030, "tid": 4030,\n    "ts": %.3f, "dur": %.3f\n  },\n' % (step, at, 2 * MICROBATCHES * 20_000.0)]
            step += 1
            at += 10
            first = {}
            for place in range(2 * MICROBATCHES):
                is_backward, microbatch = place >= MICROBATCHES, place % MICROBATCHES
                began = at
                first.setdefault(microbatch, node + 1)
                for inner in range(200):
                    number += 1
                    node += not is_backward
                    parts.append(PYTHON % (f"megatron/core/transformer/attention.py({400 + inner}): forward", at, 90.0, number, number + 1, number))
                    parts.append(PYTHON % (f"torch/nn/modules/module.py({1700 + inner}): _call_impl", at + 1, 80.0, number, number + 1, number))
                    parts.append(OPERATOR % ("addmm", 4030, at + 2, 60.0, number, node, 0, number) if not is_backward else NODE % (at + 2, 60.0, number, first[microbatch] + 199 - inner, number))
                    parts.append(OPERATOR % ("empty", 4030, at + 3, 5.0, number, node, 0, number))
                    parts.append(RUNTIME % (at + 10, 6.0, number, number, number, at + 10))
                    parts.append(KERNEL % (at + 2000, 90.0, number, number))
                    at += 100
                function = "backward_step" if is_backward else "forward_step"
                parts.append(PYTHON % (f"megatron/core/pipeline_parallel/schedules.py(311): {function}", began, at - began - 1, number, number, number))
            text = "".join(parts)
            file.write(text)
            written += len(text)
        file.write('  {\n    "name": "process_name", "ph": "M", "ts": 1.0, "pid": 4030, "tid": 0, "args": {"name": "python"}\n  }\n  ]\n}\n')


if __name__ == "__main__":
    main()
