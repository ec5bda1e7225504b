"""Judges training on the CPU by transformers and torch's AdamW: the losses of 20 steps, from the same weights and tokens.

    python native/tests/families/train.py target/debug/pipeplan [FAMILY ...]

transformers makes a small model of each family with random weights and saves it. `pipeplan run --weights` trains from that
folder: on one rank, and on two for each way to split the work. torch's AdamW trains the model of transformers on the same
sequences. The table says to how many digits the losses agree: the least -log10 of |ours - theirs| / theirs of all steps.
`chats` is a fine-tuning: of conversations only what the assistant says is predicted, and both sides make tokens and labels
of the same messages. `clipped` has gradients clipped, as torch's `clip_grad_norm_` does, warm-up, and a cosine.

The order of the data is made plain: each sequence is a file of its own, and a run takes one from each file in turn.

Where both sides are not told the same by themselves:

- transformers works out norms, softmax, rotary positions and routers in 32-bit floats even where the model has 64 bits, so
  its own digits end before 9. `Wide` lets its classes work these out in 64 bits; nothing else of them changes.
- In f32 transformers takes the mean of the losses of tokens in f32. Here it gets the logits in f64, since a mean in f32 is
  right to 7 digits at best.
- Rounding grows from step to step. The last column says how far f32 of transformers is from its own f64; two that round
  otherwise agree to about as many digits.
- In bf16 transformers has a model in bf16, and torch's AdamW the same weights in f32, from which the model is rounded anew
  before each step. Both sides round after each operator, but have other operators, so they agree to some three digits.
- The first step of a warm-up over n steps has 1/n of the rate. That of transformers' own schedules has none.

Needs torch, transformers and safetensors; the CPU is enough.
"""

import contextlib
import copy
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from families import FAMILIES
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

STEPS, SEQUENCES, SEQUENCE = 20, 8, 32
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
# Of conversations, with tokens that begin and end messages.
CONVERSATIONS = {**FAMILIES["llama"], "vocab_size": 264}
OF_OTHER_NORMS = ("phi", "cohere, with QK-norm", "nemotron, with biases", "nanochat")
JUDGED = {**{kind: FAMILIES[kind] for kind in ("llama", "qwen3", "gemma2", "gemma3_text", "mixtral", "deepseek_v3", "gpt2", *OF_OTHER_NORMS)},
          "llama, chats": CONVERSATIONS, "qwen3, clipped": FAMILIES["qwen3"]}
# Where gradients are clipped, and the rate rises and falls.
CLIP_NORM, WARM_UP, LEAST_RATE = 0.5, 4, 1e-4
IGNORED = -100
WORDS = "a pipeline of stages, each with its own layers; what one has done the next one takes. Then it waits: 1 2 3!".split()
TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{%- else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"""
LAYOUTS = {"one rank": {}, "PP 2": {"pipeline": 2}, "TP 2": {"tensor": 2}, "DP 2": {"data": 2}, "CP 2": {"context": 2},
           "EP 2": {"data": 2, "expert": 2}}
# Digits that each type has to agree to.
LEAST = {"f32": 7.0, "f64": 12.0, "bf16": 2.0}
TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


class Wide(TorchFunctionMode):
    """What is asked for in 32-bit floats is in 64 bits."""

    def __torch_function__(self, function, types, words=(), named=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wide, words), **{name: wide(value) for name, value in (named or {}).items()})


def exactly(precision):
    return Wide() if precision == "f64" else contextlib.nullcontext()


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words[:3]))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def texts():
    """As many texts as there are sequences, apart from each other: words by chance."""
    length = STEPS * SEQUENCES * (SEQUENCE + 1)
    whole = " ".join(random.Random(7).choices(WORDS, k=length))
    return [whole[start:start + SEQUENCE + 1] for start in range(0, length, SEQUENCE + 1)]


def bytes_of(folder):
    """What a run gets, and of each sequence its tokens with the one behind it, and which of these are to be predicted."""
    data, windows = [], []
    for number, text in enumerate(texts()):
        file = folder / f"sequence-{number:03}"
        file.write_bytes(text.encode())
        data += ["--data", file]
        windows.append(list(text.encode()))
    windows = torch.tensor(windows)
    return data, windows, windows


def chats_of(folder):
    """The same of conversations, of which only what the assistant says is to be predicted."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|end|>", extra_special_tokens={
        "user": "<|user|>", "assistant": "<|assistant|>"})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "tokenizer")
    data, windows, labels = ["--tokenizer", folder / "tokenizer"], [], []
    for number, text in enumerate(texts()):
        # Questions and answers of other lengths in each.
        first, second = 5 + number % 4, 14 + number % 7
        said = [text[:first], text[first:second], text[second:second + 4], text[second + 4:]]
        messages = [{"role": role, "content": content} for role, content in zip(["user", "assistant"] * 2, said)]
        file = folder / f"chat-{number:03}.jsonl"
        file.write_text(json.dumps({"messages": messages}) + "\n")
        data += ["--data", file]
        tokens = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        pairs = list(zip(tokens["input_ids"], tokens["assistant_masks"], strict=True))[:SEQUENCE + 1]
        windows.append([token for token, _ in pairs])
        labels.append([token if is_said else IGNORED for token, is_said in pairs])
    return data, torch.tensor(windows), torch.tensor(labels)


def model_of(config, precision):
    """The family's class with random weights, which are the same in both types."""
    described = {**config, "attn_implementation": "eager", "experts_implementation": "eager"}

    def made(precision):
        torch.manual_seed(3)
        with exactly(precision):
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(**described), dtype=TYPES[precision]).eval()

    # The weights that are trained are in f32 where the model is in bf16.
    first, model = made("f32"), made("f32" if precision == "bf16" else precision)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight, value in zip(model.parameters(), first.parameters(), strict=True):
            weight.copy_(value + 0.1 * torch.randn_like(value))
    return model


def rate(step):
    """The share of the rate that a step has."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    least, done = LEAST_RATE / LEARNING_RATE, (step - WARM_UP) / (STEPS - WARM_UP)
    return least + (1 - least) * (1 + math.cos(math.pi * done)) / 2


def theirs(model, windows, labels, precision, clips):
    """The losses of transformers, with decay of matrices alone."""
    computes = copy.deepcopy(model).to(TYPES[precision]) if precision == "bf16" else model
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    trained = [weight for _, weight in named]
    rounded = [weight for weight in computes.parameters() if weight.requires_grad]
    # Norms of all heads may be one tensor of two sizes.
    matrices = [weight for name, weight in named if weight.ndim > 1 and "norm" not in name]
    others = [weight for name, weight in named if weight.ndim < 2 or "norm" in name]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate if clips else lambda step: 1.0)
    losses = []
    for tokens, wanted in zip(windows.split(SEQUENCES), labels.split(SEQUENCES), strict=True):
        with exactly(precision):
            logits = computes(tokens[:, :-1], use_cache=False).logits
            if logits.dtype != TYPES[precision]:
                sys.exit(f"logits are in {logits.dtype}")
        loss = cross_entropy(logits.double().flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=IGNORED)
        computes.zero_grad()
        loss.backward()
        if computes is not model:
            for weight, copied in zip(trained, rounded, strict=True):
                weight.grad = copied.grad.float()
        if clips and torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM) < CLIP_NORM:
            sys.exit("no gradient is clipped")
        optimizer.step()
        schedule.step()
        if computes is not model:
            with torch.no_grad():
                for weight, copied in zip(trained, rounded, strict=True):
                    copied.copy_(weight)
        losses.append(loss.item())
    return losses


def judge(binary, kind, precision, folder):
    """By layout, to how many digits the losses agree; then those of transformers."""
    config, clips = JUDGED[kind], kind.endswith("clipped")
    data, windows, labels = chats_of(folder) if config is CONVERSATIONS else bytes_of(folder)
    model = model_of(config, precision)
    model.save_pretrained(folder / "saved")
    counts = [config.get(key) for key in ("num_local_experts", "n_routed_experts")]
    # Whichever experts the router chooses have room.
    experts = next((count for count in counts if count), None)
    found = {}
    for layout, parallel in LAYOUTS.items():
        if "expert" in parallel and not experts:
            continue
        training = {"microbatches": SEQUENCES // 2 // parallel.get("data", 1), "microbatch_size": 2, "sequence": SEQUENCE,
                    "expert_imbalance": float(experts or 1), "dtype": precision}
        spec = folder / f"{layout}.json"
        spec.write_text(json.dumps({
            "schedule": "1f1b", "model": {"config": "saved", "multi_token": 0}, "cluster": {"device": "cpu"},
            "parallel": {"pipeline": 1, **parallel}, "training": training}))
        settings = ["--learning-rate", LEARNING_RATE, "--beta1", BETAS[0], "--beta2", BETAS[1], "--eps", EPSILON,
                    "--weight-decay", WEIGHT_DECAY]
        if clips:
            settings += ["--clip-norm", CLIP_NORM, "--warm-up", WARM_UP, "--decay-until", STEPS, "--min-lr", LEAST_RATE]
        done = run(binary, "run", spec, "--weights", folder / "saved", "--steps", STEPS, "--json", *settings, *data)
        found[layout] = json.loads(done)["losses"]
    return found, theirs(model, windows, labels, precision, clips)


def digits(ours, theirs):
    worst = max(abs(own - other) / abs(other) for own, other in zip(ours, theirs, strict=True))
    return 16.0 if worst == 0 else -math.log10(worst)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    binary, kinds = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(JUDGED)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"Digits to which losses of {STEPS} steps agree with {versions}")
    print(f"{'':20}" + "".join(f"{layout:>10}" for layout in LAYOUTS) + f"{'f32 of torch':>14}  losses", flush=True)
    few = []
    for kind in kinds:
        known = {}
        for precision in ("f64", "f32", "bf16"):
            with tempfile.TemporaryDirectory() as folder:
                found, known[precision] = judge(binary, kind, precision, pathlib.Path(folder))
            agree = {layout: digits(losses, known[precision]) for layout, losses in found.items()}
            few += [f"{kind} {precision} {layout}" for layout, count in agree.items() if count < LEAST[precision]]
            row = "".join(f"{agree[layout]:10.1f}" if layout in agree else f"{'':10}" for layout in LAYOUTS)
            own = f"{digits(known['f32'], known['f64']):14.1f}" if precision == "f32" else f"{'':14}"
            ends = f"{known[precision][0]:.6f} to {known[precision][-1]:.6f}"
            print(f"{kind:14} {precision:5}{row}{own}  {ends}", flush=True)
    if few:
        sys.exit(f"they agree to fewer digits than {LEAST}: {', '.join(few)}")


if __name__ == "__main__":
    main()
