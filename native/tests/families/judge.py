"""Judges the CPU runner by transformers: logits, loss and every gradient of each family, on tiny sizes.

    python native/tests/families/judge.py target/debug/pipeplan [FAMILY ...]

`pipeplan run` makes a step by SGD, and random numbers take the place of its weights. `pipeplan evaluate` computes the logits
of these; one more step tells the gradients. transformers gets the same weights under its own names (`families.py`) and
computes both; where the checkpoint is in the words of the family's own class, that loads it as it is. transformers works out
some sums in 32-bit floats, so the two differ by about 1e-6.

Needs torch, transformers and safetensors; the CPU is enough.
"""

import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import warnings

import torch
import transformers
from families import FAMILIES, ZERO_NORM, theirs_of
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCE, MICROBATCHES, MICROBATCH_SIZE = 24, 2, 2
# What the runner's SGD takes off each matrix beside its gradient.
WEIGHT_DECAY = 0.1
# Classes whose checkpoints hold several weights as one: they load the models of others with the same layers, too.
FUSED = {"glm", "glm4", "gpt_oss", "gptj", "granitemoe", "phi3", "qwen3_5_text", "qwen3_next"}
# Of logits and gradients, by their size. Two tenths of this are seen where sums in 32 bits are long.
MOST = 1e-4


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def randomised(name, value, config, generator):
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    if "correction" in name:
        return value
    if name.endswith("norm.weight"):
        offset = config["model_type"] in ZERO_NORM and "linear_attn" not in name
        return (0.0 if offset else 1.0) + 0.2 * noise
    if value.ndim < 2 or value.numel() == max(value.shape) or "conv1d" in name:
        return 0.5 * noise
    return noise if "embed_tokens" in name else noise / value.shape[-1] ** 0.5


def of_the_runner(binary, kind, config, folder):
    """The random weights, what an evaluation says of them, and their gradients; all under the checkpoint's names."""
    counts = [config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")]
    training = {"microbatches": MICROBATCHES, "microbatch_size": MICROBATCH_SIZE, "sequence": SEQUENCE, "optimizer": "sgd",
                # Whichever experts the router chooses have room.
                "expert_imbalance": next((float(count) for count in counts if count), 1.0)}
    spec, text, checkpoints = folder / "spec.json", folder / "text", folder / "run"
    spec.write_text(json.dumps({"name": kind, "schedule": "1f1b", "model": {"config": config}, "cluster": {"device": "cpu"},
                                "parallel": {"pipeline": 1}, "training": training}))
    generator = torch.Generator().manual_seed(7)
    # As many sequences as a step takes, so that each step sees all.
    tokens = torch.randint(256, (SEQUENCE * MICROBATCHES * MICROBATCH_SIZE + 1,), generator=generator)
    text.write_bytes(bytes(tokens.tolist()))
    common = ["--data", text, "--checkpoint-dir", checkpoints, "--precision", "f64", "--learning-rate", "1"]
    run(binary, "run", spec, "--steps", "1", *common)

    first = checkpoints / "step-000001"
    manifest = json.loads((first / "manifest.json").read_text())
    # Its sums are those of the weights that are replaced; a manifest without any is read, too.
    del manifest["files"], manifest["manifest_crc32"]
    (first / "manifest.json").write_text(json.dumps(manifest))
    trained = load_file(first / "model.safetensors")
    weights = {name: randomised(name, value, config, generator) for name, value in trained.items()}
    save_file(weights, first / "model.safetensors", metadata={"format": "pt"})
    logits = folder / "logits.safetensors"
    run(binary, "evaluate", checkpoints, "--data", text, "--logits", logits, "--precision", "f64")
    run(binary, "run", spec, "--steps", "2", "--resume", checkpoints, *common)
    after = load_file(checkpoints / "step-000002" / "model.safetensors")
    # Norms of all heads are one tensor of two sizes in checkpoints of Command R.
    decays = {name for name, value in weights.items() if value.ndim > 1 and not name.endswith(("bias", "norm.weight"))}
    slopes = {name: value - after[name] - (WEIGHT_DECAY * value if name in decays else 0)
              for name, value in weights.items()}
    return first, weights, slopes, load_file(logits)


def loaded(folder):
    """The model that transformers makes of a checkpoint."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float64, attn_implementation="eager"
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[key]:
            sys.exit(f"{folder}: transformers finds {key}: {sorted(report[key])}")
    return model


def as_checkpoint(folder, slopes):
    """The model of the class that wrote the checkpoint, and the slopes under that model's names."""
    model = loaded(folder)
    save_file(slopes, folder / "model.safetensors", metadata={"format": "pt"})
    wanted = {name: value.detach().clone() for name, value in loaded(folder).named_parameters()}
    return model, wanted


class OfText(torch.nn.Module):
    """The decoder of text of a class that takes images, too, with an output layer."""

    def __init__(self, config):
        super().__init__()
        module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
        classes = [value for name, value in vars(module).items() if name.endswith("Model") and not name.endswith("PreTrainedModel")]
        [model] = [value for value in classes if getattr(value, "config_class", None) is type(config)]
        self.model = model(config)
        self.set_experts_implementation = self.model.set_experts_implementation
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens, use_cache):
        hidden = self.model(input_ids=tokens, use_cache=use_cache).last_hidden_state
        return types.SimpleNamespace(logits=self.lm_head(hidden))


def config_of(config):
    sizes = dict(config)
    theirs = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    theirs._attn_implementation = "eager"
    return theirs


def has_class(config):
    """Whether the family has a class for the next token, and not only one that takes images."""
    return type(config_of(config)) in AutoModelForCausalLM._model_mapping.keys()


def as_class(kind, config, written, weights, slopes):
    """A model of the family's class with these weights, and the slopes under its names."""
    theirs = config_of(config)
    model = (AutoModelForCausalLM.from_config(theirs) if has_class(config) else OfText(theirs)).double()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    given, wanted = theirs_of(config, weights, written), theirs_of(config, slopes, written)
    if set(given) != set(trained):
        sys.exit(f"{kind}: missing {sorted(set(trained) - set(given))}, unexpected {sorted(set(given) - set(trained))}")
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(given[name].reshape(weight.shape))
        # What corrects the choice of experts is 0 here: no gradient trains it.
        for name, value in [*model.named_buffers(), *model.named_parameters()]:
            if name not in trained and "bias" in name:
                value.zero_()
    return model, {name: wanted[name].reshape(weight.shape) for name, weight in trained.items()}


def judge(binary, kind, folder):
    config = FAMILIES[kind]
    checkpoint, weights, slopes, ours = of_the_runner(binary, kind, config, folder)
    written = json.loads((checkpoint / "config.json").read_text())["model_type"]
    if written == config["model_type"] or written in FUSED and has_class(config):
        model, wanted = as_checkpoint(checkpoint, slopes)
    else:
        model, wanted = as_class(kind, config, written, weights, slopes)
    model.eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    windows = ours["windows"].long()
    logits = model(windows[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    of_logits = (logits.detach() - ours["logits"]).abs().max().item() / max(logits.abs().max().item(), 1)
    of_loss = abs(loss.item() - ours["loss"].item())
    of_gradients, worst = 0, ""
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        apart = (wanted[name] - weight.grad).abs().max().item()
        apart /= weight.grad.abs().max().item() + 1e-6
        of_gradients, worst = max((of_gradients, worst), (apart, name))
    print(f"{kind} ({written}): logits differ by {of_logits:.1e}, the loss by {of_loss:.1e}, gradients by {of_gradients:.1e} ({worst})",
          flush=True)
    return max(of_logits, of_loss, of_gradients) < MOST


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    far = []
    for kind in sys.argv[2:] or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            if not judge(sys.argv[1], kind, pathlib.Path(folder)):
                far.append(kind)
    if far:
        sys.exit(f"they differ by more than rounding: {', '.join(far)}")


if __name__ == "__main__":
    main()
