"""What a spec is made of, and what is raised where it is refused."""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import threading
import time

import pipeplan
import pytest
from conftest import EXAMPLES, TOP


class Config:
    """As the configurations of transformers are: with ``model_type`` and ``to_dict``."""

    model_type = "llama"

    def to_dict(self):
        return {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 176, "vocab_size": 256, "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}


RUN = {"device": "cpu", "pipeline": 4, "microbatches": 8, "sequence": 64}


def test_a_spec_is_made_of_all_that_people_have(tmp_path):
    path = EXAMPLES / "tiny-llama.toml"
    spec = pipeplan.Spec(path)
    assert pipeplan.Spec(str(path)) == spec
    assert pipeplan.Spec(path.read_text()) == spec
    assert pipeplan.Spec(spec) == spec
    assert pipeplan.Spec(spec.to_dict()) == spec
    assert pipeplan.Spec(spec.to_json()) == spec
    assert pipeplan.Spec(spec.link()) == spec
    assert pipeplan.Spec(pipeplan.plan(spec, "1f1b").text) == spec
    assert pipeplan.Spec(name="Tiny Llama on this CPU", schedule="zb-v", model="tiny-llama", device="cpu", pipeline=4,
                         chunks=2, microbatches=8, microbatch_size=4, sequence=64) == spec
    assert pipeplan.Spec(name="Tiny Llama on this CPU", schedule="zb-v", model={"name": "tiny-llama"},
                         cluster={"device": "cpu"}, parallel={"pipeline": 4, "chunks": 2},
                         training={"microbatches": 8, "microbatch_size": 4, "sequence": 64}) == spec
    assert (spec.ranks, spec.chunks, spec.microbatches, spec.schedule) == (4, 2, 8, "zb-v")
    assert hash(spec) == hash(pipeplan.Spec(path))


def test_a_config_of_transformers(tmp_path):
    of_config = pipeplan.Spec(Config(), **RUN)
    assert of_config["model"]["layers"] == 8
    assert pipeplan.Spec(model=Config(), **RUN) == of_config
    assert pipeplan.Spec(model={"config": Config().to_dict()}, **RUN) == of_config
    assert pipeplan.Spec(Config().to_dict(), **RUN) == of_config
    (tmp_path / "config.json").write_text(json.dumps(Config().to_dict()))
    spec = tmp_path / "spec.toml"
    spec.write_text('[model]\nconfig = "config.json"\n[cluster]\ndevice = "cpu"\n[parallel]\npipeline = 4\n'
                    "[training]\nmicrobatches = 8\nsequence = 64\n")
    assert pipeplan.Spec(spec) == of_config


def test_arguments_of_megatron():
    arguments = argparse.Namespace(
        num_layers=32, hidden_size=4096, num_attention_heads=32, seq_length=4096, max_position_embeddings=4096,
        micro_batch_size=1, global_batch_size=64, pipeline_model_parallel_size=4, tensor_model_parallel_size=4,
        world_size=16, padded_vocab_size=32000, vocab_size=32000, bf16=True, fp16=False, ffn_hidden_size=16384,
    )
    spec = pipeplan.Spec(arguments, device="h100")
    assert (spec.ranks, spec["parallel"]["tensor"], spec.microbatches) == (4, 4, 64)
    assert pipeplan.Spec(arguments, device="h100", pipeline=2).ranks == 2
    with pytest.raises(pipeplan.SpecError) as raised:
        pipeplan.Spec(arguments)
    assert raised.value.faults[0].field == "device"


def test_typed_costs():
    stages = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    bare = pipeplan.Spec({"ranks": 4, "microbatches": 8, "stages": stages})
    assert pipeplan.Spec(problem={"ranks": 4, "microbatches": 8, "stages": stages}) == bare
    assert bare.is_typed and bare.ranks == 4
    assert bare.bound()["bound_ns"] == 8 * 3000 + 3 * 1000


def test_faults_are_told_by_field():
    with pytest.raises(pipeplan.SpecError) as raised:
        pipeplan.Spec(model="llama-9", device="h100", pipeline=0, microbatches=8)
    fields = {fault.field: fault for fault in raised.value.faults}
    assert set(fields) == {"model.name", "parallel.pipeline"}
    assert fields["parallel.pipeline"].found == "0" and "whole number" in fields["parallel.pipeline"].accepted
    assert isinstance(raised.value, ValueError)
    with pytest.raises(pipeplan.SpecError, match="pipelines"):
        pipeplan.Spec(model="tiny-llama", device="cpu", pipelines=4)
    with pytest.raises(pipeplan.SpecError) as raised:
        pipeplan.Spec("[model\nname = 1\n")
    assert raised.value.place["line"] == 1 and not raised.value.faults
    with pytest.raises(pipeplan.SpecError):
        pipeplan.Spec(model="tiny-llama", device="cpu", pipeline=math.nan, microbatches=8)
    with pytest.raises(pipeplan.SpecError):
        pipeplan.Spec(42)
    with pytest.raises(pipeplan.SpecError) as raised:
        pipeplan.plan(EXAMPLES / "tiny-llama.toml", effort=0)
    assert raised.value.faults[0].field == "options.effort"
    with pytest.raises(pipeplan.SpecError, match="2f2b"):
        pipeplan.plan(EXAMPLES / "tiny-llama.toml", "2f2b")
    with pytest.raises(pipeplan.SpecError):
        pipeplan.memory(EXAMPLES / "two-ranks.toml")
    assert not pipeplan.check("{}")


def test_whatever_is_wrong_is_told_by_field(tmp_path):
    spec = pipeplan.Spec(EXAMPLES / "tiny-llama.toml")
    plan = pipeplan.plan(spec, "1f1b")
    itself: dict = {}
    itself["model"] = itself
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    wrong = {
        "pipelin": lambda: spec.replace(pipelin=4),
        "training.microbatches": lambda: spec.replace(microbatches=10**30),
        "training.sequence": lambda: spec.replace(sequence=b"long"),
        "parallel.pipeline": lambda: spec.replace(pipeline={4}),
        "the whole input": [lambda: pipeplan.Spec("no-such-file.toml"), lambda: pipeplan.Spec(itself), lambda: pipeplan.Spec(b"\xff"),
                            lambda: pipeplan.Spec(tmp_path), lambda: pipeplan.Spec(tmp_path / "binary")],
        "schedule": [lambda: pipeplan.plan(spec, 5), lambda: pipeplan.plan(spec, b"1f1b"), lambda: pipeplan.plan(spec, [1, 2, 3, 4]),
                     lambda: pipeplan.plan(spec, lambda shape: None), lambda: pipeplan.plan(spec, "2f2b")],
        "options.effort": lambda: pipeplan.plan(spec, effort=math.nan),
        "options.keep[0]": lambda: pipeplan.tune(spec, keep=["tensorr"]),
        "percent": [lambda: pipeplan.sensitivity(plan, percent=math.nan), lambda: plan.sensitivity(percent=-1)],
        "seconds": [lambda: plan.prove("a while"), lambda: plan.prove(math.inf)],
        "run": lambda: pipeplan.import_run(5, "h100"),
        "warmup": lambda: pipeplan.search(spec, lambda shape, warmup: [], warmup=4),
    }
    for field, work in wrong.items():
        for one in work if isinstance(work, list) else [work]:
            with pytest.raises(pipeplan.SpecError) as raised:
                one()
            assert raised.value.faults[0].field == field and raised.value.faults[0].accepted, raised.value
    with pytest.raises(pipeplan.SpecError, match="perhaps pipeline"):
        spec.replace(pipelin=4)
    # What is read from a file as bytes is as good as its text.
    assert pipeplan.Spec((EXAMPLES / "tiny-llama.toml").read_bytes()) == spec
    assert pipeplan.Plan(plan.text.encode()) == plan and pipeplan.check(plan.text.encode())
    assert pipeplan.tune(spec, keep="pipeline", most=1).spec(0).ranks == 4

    def own(shape):
        yield [1 + None]

    with pytest.raises(TypeError, match="NoneType"):  # the user's own fault
        pipeplan.plan(spec, own)


def test_a_damaged_plan_is_an_answer():
    plan = pipeplan.plan(EXAMPLES / "two-ranks.toml", "1f1b")
    assert plan.check()
    assert not pipeplan.check(plan.text.replace("0F0 ", "0F1 ", 1))


SEARCH = "import pipeplan; print('searching', flush=True); pipeplan.plan('examples/llama-2-70b.toml', 'best', effort=10**12)"


def test_ctrl_c_ends_a_search():
    child = subprocess.Popen([sys.executable, "-c", SEARCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TOP)
    assert child.stdout.readline().strip() == "searching"
    time.sleep(2.0)
    child.send_signal(signal.SIGINT)
    try:
        _, said = child.communicate(timeout=60)
    finally:
        # A search that does not end would take a core from all tests that follow.
        child.kill()
    assert "KeyboardInterrupt" in said and child.returncode != 0


def test_a_search_tells_how_it_goes_and_can_be_ended():
    heard = []

    def hear(done, cost_ns, bound_ns):
        heard.append((done, cost_ns, bound_ns))
        return len(heard) < 3

    spec = pipeplan.Spec(EXAMPLES / "llama-2-70b.toml")
    plan = pipeplan.plan(spec, "best", effort=10**12, on_progress=hear)
    assert len(heard) == 3 and plan.cost_ns >= plan.bound_ns

    def fail(*_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        pipeplan.plan(spec, "best", effort=10**12, on_progress=fail)


def test_other_threads_run_while_the_planner_works():
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(None)
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    pipeplan.plan(EXAMPLES / "llama-2-70b.toml", "best", effort=2_000_000)
    done.set()
    thread.join()
    assert len(ticks) > 5
