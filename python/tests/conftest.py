"""What the tests share: the repository, its examples, and the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples"


@pytest.fixture(scope="session")
def command():
    """Runs the command, and answers what it prints: ``PIPEPLAN_BIN``, or the one that the wheel installed."""
    binary = os.environ.get("PIPEPLAN_BIN") or shutil.which("pipeplan")
    if binary is None:
        pytest.skip("there is no command: set PIPEPLAN_BIN, or install the wheel")

    def run(*arguments: str, check: bool = True) -> str:
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, cwd=TOP, timeout=300)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def command_json(command):
    """As ``command``, for what it prints with ``--json``."""
    return lambda *arguments, **options: json.loads(command(*arguments, "--json", **options))
