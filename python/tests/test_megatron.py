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


def test_a_tiny_gpt_by_plans_of_several_orders(tmp_path):
    plans = {name: pipeplan.plan(pipeplan.Spec(EXAMPLES / "tiny-llama.toml", pipeline=2), name)
             for name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "wave")}
    (tmp_path / "plans.json").write_text(json.dumps({name: plan.text for name, plan in plans.items()}))
    children = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), "2", str(tmp_path / "rendezvous"), str(tmp_path / "plans.json")],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for child in children:
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0, err[-4000:]
        for name, found in json.loads(out.splitlines()[-1]).items():
            assert found["order"], name
            assert found["gradient_error"] < 1e-4, (name, found)  # single precision
            assert found.get("loss_error", 0.0) < 1e-4, (name, found)
    with pytest.raises(ValueError, match="bidirectional"):
        from pipeplan.megatron import forward_backward_func

        forward_backward_func(pipeplan.plan(EXAMPLES / "tiny-llama.toml", "dualpipe"))
