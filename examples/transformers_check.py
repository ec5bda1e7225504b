"""Compares a checkpoint of `pipeplan run` with Hugging Face's transformers: the same weights must give the same loss.

    pipeplan run tiny-llama.toml --steps 20 --checkpoint-dir run
    pipeplan run tiny-llama.toml --steps 21 --resume run --json > next.json
    python examples/transformers_check.py run/step-000020 next.json

The first loss of next.json is that of the checkpoint's weights on the data of the next training step. Here
transformers loads those weights, and this script works out the data by itself: the text cut into windows, in the order
that `native/src/runner/data.rs` documents.

Needs torch, transformers and safetensors (pip; the CPU is enough). Only checkpoints of Llama models.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

MASK = (1 << 64) - 1
TEXT = pathlib.Path(__file__).parent / "data" / "pipeline.txt"


class SplitMix64:
    """Steele, Lea, Flood, OOPSLA 2014."""

    def __init__(self, seed):
        self.state = seed & MASK

    def draw(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return mixed ^ (mixed >> 31)


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001B3) & MASK
    return digest


def order(windows, seed, epoch):
    """The windows of one pass over the text, shuffled."""
    named = SplitMix64(fnv1a(b"data order")).draw()
    random = SplitMix64(SplitMix64((seed + epoch) & MASK).draw() ^ named)
    items = list(range(windows))
    for last in range(windows - 1, 0, -1):
        other = (random.draw() * (last + 1)) >> 64
        items[last], items[other] = items[other], items[last]
    return items


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    run = json.loads(pathlib.Path(sys.argv[2]).read_text())
    text = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else TEXT).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest["text_digest"] != f"fnv1a64:{fnv1a(text):016x}":
        sys.exit("the run was trained on another text: name it as the third argument")

    sequence, count = manifest["sequence"], manifest["step_sequences"]
    windows = (len(text) - 1) // sequence
    first = manifest["step"] * count
    rows, orders = [], {}
    for number in range(first, first + count):
        epoch, position = divmod(number, windows)
        if epoch not in orders:
            orders[epoch] = order(windows, manifest["seed"], epoch)
        start = orders[epoch][position] * sequence
        rows.append(list(text[start : start + sequence + 1]))
    rows = torch.tensor(rows)

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float64, attn_implementation="eager"
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[key]:
            sys.exit(f"transformers finds {key}: {sorted(report[key])}")
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()

    expected = run["losses"][0]
    difference = abs(loss - expected) / abs(expected)
    print(f"loss of the next step: transformers {loss:.8f}, pipeplan {expected:.8f}, difference {difference:.1e}")
    if difference > 1e-5:
        sys.exit("they differ by more than rounding")


if __name__ == "__main__":
    main()
