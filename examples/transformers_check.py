"""Compares a checkpoint of `pipeplan run` with Hugging Face's transformers: the same weights must give the same logits.

    pipeplan run tiny-llama.toml --steps 20 --checkpoint-dir run
    pipeplan evaluate run --logits logits.safetensors
    python examples/transformers_check.py run/step-000020 logits.safetensors

Here transformers loads the weights, by their own names and shapes, and computes the logits of the same sequences, in 32-bit
floats and in 64-bit. The latter say how much of the difference is rounding on either side.

Needs torch, transformers and safetensors (pip; the CPU is enough).
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, ours = pathlib.Path(sys.argv[1]), load_file(sys.argv[2])
    windows, logits = ours["windows"].long(), ours["logits"]
    far = False
    for dtype in (torch.float32, torch.float64):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, dtype=dtype, attn_implementation="eager"
        )
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[key]:
                sys.exit(f"transformers finds {key}: {sorted(report[key])}")
        # The kernels for experts know no 64-bit floats.
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        with torch.no_grad():
            theirs = model(windows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), windows[:, 1:].flatten()).item()
        difference = (theirs.double() - logits.double()).abs().max().item()
        size = theirs.abs().max().item()
        print(
            f"{str(dtype).removeprefix('torch.')}: {theirs.numel()} logits up to {size:.3f}, largest difference "
            f"{difference:.1e}; loss {loss:.8f}, pipeplan's {ours['loss'].item():.8f}"
        )
        far |= not difference < 2e-5 * max(size, 1) or not abs(loss - ours["loss"].item()) < 1e-5
    if far:
        sys.exit("they differ by more than rounding")


if __name__ == "__main__":
    main()
