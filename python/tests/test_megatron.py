"""``pipeplan.megatron`` runs plans on a tiny GPT of Megatron-Core, to the gradients of the model in one piece."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pipeplan
import pytest
from conftest import EXAMPLES

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None:
    pytest.skip("PyTorch or Megatron-Core is not here: pip install torch megatron-core", allow_module_level=True)

WORKER = Path(__file__).with_name("megatron_worker.py")


def run_workers(folder: Path, ranks: int, names: tuple) -> list[dict]:
    """What each of ``ranks`` processes found of plans of two ranks."""
    plans = {name: pipeplan.plan(pipeplan.Spec(EXAMPLES / "tiny-llama.toml", pipeline=2), name).text for name in names}
    (folder / "plans.json").write_text(json.dumps(plans))
    children = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), str(ranks), str(folder / "rendezvous"),
                          str(folder / "plans.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        said = [child.communicate(timeout=180) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, err) in zip(children, said):
        assert child.returncode == 0, err[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def test_a_tiny_gpt_by_plans_of_several_orders(tmp_path):
    for rank in run_workers(tmp_path, 2, ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "wave")):
        for name, found in rank.items():
            assert found["order"], name
            assert found["gradient_error"] < 1e-4, (name, found)  # single precision
            assert found.get("loss_error", 0.0) < 1e-4, (name, found)
    with pytest.raises(ValueError, match="bidirectional"):
        from pipeplan.megatron import forward_backward_func

        forward_backward_func(pipeplan.plan(EXAMPLES / "tiny-llama.toml", "dualpipe"))


def test_gradient_sync_and_optimizers_of_megatron_core(tmp_path):
    for rank in run_workers(tmp_path, 4, ("1f1b", "interleaved-1f1b", "zb-v")):
        assert len(rank) == 3 * 4
        for name, found in rank.items():
            assert found["order"], name
            assert found["gradient_error"] < 1e-4, (name, found)  # single precision
            assert found["weight_error"] < 1e-6 < 1e-4 < found["moved"], (name, found)
