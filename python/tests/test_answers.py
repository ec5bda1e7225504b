"""Answers are those of the command."""

from __future__ import annotations

import json

import pipeplan
import pytest
from conftest import EXAMPLES, TOP

PLANNED = [("tiny-llama.toml", "1f1b"), ("tiny-llama.toml", "best"), ("llama-2-70b.toml", "v-half"),
           ("zero-bubble-1.5b.toml", "zb-h1"), ("two-ranks.toml", "best"), ("problem.json", "v-min")]


@pytest.mark.parametrize("example, schedule", PLANNED)
def test_plans_are_those_of_the_command_byte_for_byte(command, example, schedule):
    said = command("plan", f"examples/{example}", "--schedule", schedule, "-o", "-")
    plan = pipeplan.plan(EXAMPLES / example, schedule)
    assert plan.text == said
    # Once more from the spec with every default written out.
    assert pipeplan.plan(plan.spec, schedule).digest == plan.digest


@pytest.mark.parametrize("example", ["tiny-llama.toml", "two-ranks.toml", "problem.json"])
def test_comparisons(command_json, example):
    comparison = pipeplan.compare(EXAMPLES / example, effort=100_000)
    assert comparison.to_dict() == command_json("compare", f"examples/{example}", "--effort", "100000")
    assert comparison.best.status == "ok"
    assert comparison["1f1b"].schedule == "1f1b"
    assert len(comparison.to_pandas()) == len(comparison)


def test_memory(command_json):
    memory = pipeplan.memory(EXAMPLES / "llama-2-70b.toml", "1f1b")
    assert memory.to_dict() == command_json("memory", "examples/llama-2-70b.toml", "--schedule", "1f1b")
    assert len(memory.ranks) == len(memory.to_pandas())


def test_layouts(command_json):
    tuning = pipeplan.tune(EXAMPLES / "tiny-llama.toml", schedules=["1f1b", "zb-h1"], most=3)
    said = command_json("tune", "examples/tiny-llama.toml", "--schedule", "1f1b", "--schedule", "zb-h1", "--most", "3")
    assert tuning.to_dict() == said
    assert pipeplan.plan(tuning.spec(0)).step_ns == tuning.rows[0].step_ns


def test_sensitivity_check_and_proof(command_json, command, tmp_path):
    plan = pipeplan.plan(EXAMPLES / "two-ranks.toml", "1f1b")
    path = tmp_path / "plan.json"
    plan.save(path)
    assert plan.sensitivity(percent=10, anew=2).to_dict() == command_json("sensitivity", str(path), "--anew", "2")
    assert plan.check().to_dict() == command_json("check", str(path))
    proof = plan.prove(60)
    assert proof.optimal and proof.lower_ns == proof.cost_ns
    said = tmp_path / "proof.json"
    command("plan", str(path), "--schedule", "1f1b", "--prove", "60", "--proof", str(said), "-o", str(tmp_path / "better.json"))
    assert json.loads(said.read_text())["lower_ns"] == proof.lower_ns


def test_what_is_shown_of_a_plan(command_json, tmp_path):
    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "zb-v")
    path = tmp_path / "plan.json"
    plan.save(path)
    shown = command_json("show", str(path))
    assert [[(str(s.op), s.start_ns, s.end_ns) for s in plan.timeline if s.rank == rank] for rank in range(plan.ranks)] == [
        [(span["op"], span["start_ns"], span["end_ns"]) for span in row] for row in shown["rows"]
    ]
    assert pipeplan.Plan.load(path) == plan


def test_runs_of_megatron(command_json):
    launch = ("torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
              "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
              "--global-batch-size 64 --pipeline-model-parallel-size 4 --tensor-model-parallel-size 4 --vocab-size 32000 --bf16")
    path = TOP / "tests" / "output"
    path.mkdir(exist_ok=True)
    (path / "launch.sh").write_text(launch + "\n")
    imported = pipeplan.import_run(launch, "h100")
    assert imported.to_dict() == command_json("import", str(path / "launch.sh"), "--device", "h100")
    assert imported.spec.ranks == 4
    open_script = launch.replace("--num-layers 32", "--num-layers $1")
    with pytest.raises(pipeplan.SpecError, match="--set 1=VALUE"):
        pipeplan.import_run(open_script, "h100")
    assert pipeplan.import_run(open_script, "h100", variables={"1": 32}).spec == imported.spec


def test_links(command):
    spec = pipeplan.Spec(EXAMPLES / "llama-2-70b.toml")
    assert spec.link() in command("link", "examples/llama-2-70b.toml")
    assert pipeplan.Spec(spec.link()) == spec


def test_exports(command, tmp_path):
    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "1f1b")
    path = tmp_path / "plan.json"
    plan.save(path)
    for format in ("chrome-trace", "torch-csv", "svg", "text", "megatron", "megatron-args"):
        assert plan.export(format) == command("export", str(path), "--format", format, "-o", "-")


def test_traces_and_calibration(command, command_json, tmp_path):
    plan = pipeplan.plan(EXAMPLES / "tiny-llama.toml", "1f1b")
    path, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    plan.save(path)
    command("run", str(path), "--steps", "2", "--trace", str(trace))
    calibration = pipeplan.calibrate(plan, trace)
    assert calibration.to_dict() == command_json("calibrate", str(path), str(trace))
    assert pipeplan.plan(calibration.spec).ranks == plan.ranks
    measured = pipeplan.Trace.load(trace)
    assert len(measured.timeline()) == len(plan.timeline)
    assert len(measured.to_pandas()) == 2 * len(plan.timeline)


def test_schedules_have_names():
    names = [schedule["name"] for schedule in pipeplan.schedules()]
    assert "1f1b" in names and "dualpipe" in names
