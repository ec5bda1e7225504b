"""Judges `pipeplan run --weights`: models that transformers makes and saves start a run.

    python native/tests/families/start.py target/debug/pipeplan [FAMILY ...]

transformers saves a model of each family with random weights. `pipeplan run` starts from that folder on two stages and trains
one step with a learning rate of 1e-300, which changes no weight: its loss has to be that of transformers on the same tokens,
and tensors of the checkpoint that it writes have to be those of the folder of the same name. Where transformers has a class for
what is written, it reads that with the same loss.

Needs torch, transformers and safetensors; the CPU is enough.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
from families import FAMILIES, SCALED
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCE, MICROBATCHES, MICROBATCH_SIZE = 24, 2, 2
MOST = 1e-5


def stored(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def judge(binary, config, folder):
    """The loss of transformers and that of the run, the tensors that have other values, and those that have other names."""
    config = dict(config)
    older = config.pop("older", None)
    counts = [config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")]
    torch.manual_seed(3)
    described = AutoConfig.for_model(**{**config, "attn_implementation": "eager", "experts_implementation": "eager"})
    if type(described) not in AutoModelForCausalLM._model_mapping:
        return None, None, ["weights are not read: the library has no class that predicts tokens"], []
    model = AutoModelForCausalLM.from_config(described).double().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += 0.1 * torch.randn_like(value)
    model.save_pretrained(folder / "saved")
    if older:
        # Rotary positions in the words of transformers 4.
        saved = folder / "saved" / "config.json"
        words = {key: value for key, value in json.loads(saved.read_text()).items() if key != "rope_parameters"}
        saved.write_text(json.dumps({**words, **older}))
    spec, text = folder / "spec.json", folder / "text"
    training = {"microbatches": MICROBATCHES, "microbatch_size": MICROBATCH_SIZE, "sequence": SEQUENCE,
                "expert_imbalance": next((float(count) for count in counts if count), 1.0)}
    spec.write_text(json.dumps({"schedule": "1f1b", "model": {"config": "saved", "multi_token": 0}, "cluster": {"device": "cpu"},
                                "parallel": {"pipeline": 2}, "training": training}))
    # As many sequences as a step takes, so that the step sees all.
    tokens = torch.randint(256, (SEQUENCE * MICROBATCHES * MICROBATCH_SIZE + 1,))
    text.write_bytes(bytes(tokens.tolist()))
    command = [binary, "run", spec, "--weights", folder / "saved", "--steps", "1", "--learning-rate", "1e-300", "--data", text,
               "--precision", "f64", "--checkpoint-dir", folder / "run", "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        return None, None, done.stderr.strip().splitlines(), []
    loss = json.loads(done.stdout)["losses"][0]
    windows = torch.stack([tokens[at:at + SEQUENCE + 1] for at in range(0, len(tokens) - 1, SEQUENCE)])
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    written = folder / "run" / "step-000001"
    # What the run writes, the library reads: with the same angles and all else that is in no tensor.
    if not json.loads((written / "config.json").read_text())["model_type"].startswith("pipeplan"):
        again = AutoModelForCausalLM.from_pretrained(written, dtype=torch.float64, attn_implementation="eager",
                                                     experts_implementation="eager").eval()
        with torch.no_grad():
            found = torch.nn.functional.cross_entropy(again(windows[:, :-1]).logits.flatten(0, 1), windows[:, 1:].flatten()).item()
        if abs(found - theirs) > MOST * theirs:
            return theirs, None, [f"its checkpoint has the loss {found} in transformers, and the model {theirs}"], []
    was, now = stored(folder / "saved"), stored(written)
    changed = [name for name, value in was.items() if name in now and not torch.equal(value.double(), now[name].double())]
    return theirs, loss, changed, [name for name in was if name not in now]


def main():
    families = {**FAMILIES, **SCALED}
    binary, kinds = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(families)
    warnings.filterwarnings("ignore")
    failed = False
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            theirs, loss, changed, renamed = judge(binary, families[kind], pathlib.Path(folder))
        if loss is None:
            print(f"{kind:40} refused: {' '.join(changed)[:200]}", flush=True)
            failed |= "are not read" not in " ".join(changed) and "it has no weight" not in " ".join(changed)
            continue
        far = abs(loss - theirs) / theirs
        failed |= far > MOST or bool(changed)
        print(f"{kind:40} loss {loss:.9f}  differs by {far:.1e}  {len(changed)} tensors differ, {len(renamed)} have other names", flush=True)
    sys.exit(failed)


main()
