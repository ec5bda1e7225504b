"""Leaves out of files of torch.profiler what a pipeline's order and times do not follow from, and packs them.

    python tests/reference/trim_profile.py profiles tests/reference/profile_megatron

Kept are ranges, operators, the functions of the runtimes and calls of modules; of their arguments, what the reader may look at.
"""

import gzip
import json
import pathlib
import sys

RUNTIMES = ("megatron/core/pipeline_parallel/", "deepspeed/runtime/pipe/", "torch/distributed/pipelining/", "nn.Module: ")
ARGUMENTS = ("Sequence number", "Fwd thread id", "Collective name", "Src Rank", "Dst Rank")


def trimmed(event):
    kept = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur") if key in event}
    arguments = {key: value for key, value in event.get("args", {}).items() if key in ARGUMENTS}
    return kept | ({"args": arguments} if arguments else {})


def main(folder, into):
    into.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.json")):
        profile = json.loads(path.read_text())
        wanted = lambda event: event.get("cat") in ("user_annotation", "cpu_op") or event.get("cat") == "python_function" and event["name"].startswith(RUNTIMES)
        profile["traceEvents"] = [trimmed(event) for event in profile["traceEvents"] if wanted(event)]
        profile.pop("host_name", None)
        groups = profile["distributedInfo"].get("pg_config", [])
        profile["distributedInfo"]["pg_config"] = [group for group in groups if group["pg_size"] > 1]
        with open(into / f"{path.name}.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
            packed.write(json.dumps(profile, separators=(",", ":")).encode())


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
