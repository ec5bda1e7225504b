"""The examples run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import EXAMPLES


def test_the_notebook_runs():
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    notebook = json.loads((EXAMPLES / "python" / "planning.ipynb").read_text())
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["best"].cost_ns == min(tried["cost_ns"] for tried in names["tries"] if tried["cost_ns"])
    assert names["proof"].lower_ns <= names["proof"].cost_ns


def test_the_page_of_the_book_runs():
    page = (EXAMPLES.parent / "docs" / "src" / "tutorials" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 4 and names["best"].ranks == 4


def launched(ranks: int, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def needs(*packages: str):
    """Skips a test where one of ``packages`` is not here."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not here: pip install {' '.join(missing)}")


@needs("torch")
def test_a_plan_trains():
    assert launched(4, str(EXAMPLES / "python" / "train.py")).count("loss") == 5


@needs("torch", "transformers")
def test_a_model_of_transformers_trains_to_a_checkpoint(tmp_path):
    said = launched(2, str(EXAMPLES / "python" / "transformers_train.py"), str(tmp_path))
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", said)]
    read = float(re.search(r"the checkpoint has a loss of ([\d.]+)", said)[1])
    assert len(losses) == 4 and losses[-1] < 0.7 * losses[0]
    # It has the weights of all ranks: those after the last update.
    assert losses[-1] - 0.1 < read < losses[-1]


@needs("torch", "lightning")
def test_a_plan_trains_in_a_trainer_of_lightning():
    assert launched(2, str(EXAMPLES / "python" / "lightning_train.py")).count("in one piece") == 5


@needs("torch", "torchtitan")
def test_the_llama_of_torchtitan_trains():
    assert launched(2, str(EXAMPLES / "python" / "torchtitan_train.py")).count("in one piece") == 3


@needs("torch", "transformers")
def test_models_of_transformers_are_cut_by_plans():
    # With these embeddings: not tied; tied over two ranks; tied on one rank; tied, and every stage held twice.
    asked = ["llama:zb-v", "gpt2:1f1b", "qwen3:interleaved-1f1b", "qwen3:zb-v", "gpt2:dualpipe"]
    said = launched(2, str(EXAMPLES / "python" / "transformers_llama.py"), *asked)
    assert said.count("gradients differ by") == 2 * len(asked)
    assert said.count(", tied") == 2 * 3 + 1
