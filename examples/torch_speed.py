"""Sets the speed of `pipeplan run` on this CPU beside that of PyTorch: the same model, threads and data.

    pipeplan plan tiny-llama.toml -o plan.json
    python examples/torch_speed.py plan.json --pipeplan target/release/pipeplan

The same Llama in 32-bit floats, gradients of as many microbatches added up before each step of AdamW with the same settings;
attention and everything else by PyTorch's own functions, without `torch.compile`. Both go on from one checkpoint, written
here first, with the same text in the same order, so that their first losses are the same to rounding: that is checked.
PyTorch gets as many threads as the plan has ranks.

The two run in turn, each as a process of its own, `--repeats` times. Each is started with `--warm-up` steps and with
`--steps` more, and what the longer one takes more is counted: starting takes no part in it. Printed are medians, in
microseconds a token, of wall-clock time and of processor time, which on a busy machine says more; and the ratios of the
medians, below 1 where pipeplan takes less.

Needs torch and safetensors (pip; the CPU is enough).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

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
    """The windows of one pass over the text, shuffled as `native/src/runner/data.rs` documents."""
    named = SplitMix64(fnv1a(b"data order")).draw()
    random = SplitMix64(SplitMix64((seed + epoch) & MASK).draw() ^ named)
    items = list(range(windows))
    for last in range(windows - 1, 0, -1):
        other = (random.draw() * (last + 1)) >> 64
        items[last], items[other] = items[other], items[last]
    return items


def rotated(x, cosine, sine):
    """Rotary positions on the two halves of each head, as Hugging Face's Llama has them."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class Layer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, width = model["hidden"], model["head_dim"]
        self.heads, self.kv_heads, self.width = model["heads"], model["kv_heads"], width
        linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.input_layernorm = torch.nn.RMSNorm(hidden, eps=model["norm_eps"])
        self.q_proj = linear(hidden, self.heads * width)
        self.k_proj = linear(hidden, self.kv_heads * width)
        self.v_proj = linear(hidden, self.kv_heads * width)
        self.o_proj = linear(self.heads * width, hidden)
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden, eps=model["norm_eps"])
        self.gate_proj = linear(hidden, model["ffn"])
        self.up_proj = linear(hidden, model["ffn"])
        self.down_proj = linear(model["ffn"], hidden)

    def forward(self, x, cosine, sine):
        rows, tokens, _ = x.shape
        split = lambda y, heads: y.view(rows, tokens, heads, self.width).transpose(1, 2)
        h = self.input_layernorm(x)
        q = rotated(split(self.q_proj(h), self.heads), cosine, sine)
        k = rotated(split(self.k_proj(h), self.kv_heads), cosine, sine)
        v = split(self.v_proj(h), self.kv_heads)
        grouped = self.heads != self.kv_heads
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.o_proj(o.transpose(1, 2).reshape(rows, tokens, -1))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(torch.nn.Module):
    def __init__(self, model, sequence):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(model["vocab"], model["hidden"])
        self.layers = torch.nn.ModuleList(Layer(model) for _ in range(model["layers"]))
        self.norm = torch.nn.RMSNorm(model["hidden"], eps=model["norm_eps"])
        self.lm_head = torch.nn.Linear(model["hidden"], model["vocab"], bias=False)
        if model["tied"]:
            self.lm_head.weight = self.embed_tokens.weight
        width = model["head_dim"]
        rates = model["rope_base"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(sequence, dtype=torch.float64)[:, None] * rates
        self.cosine, self.sine = angles.cos().float(), angles.sin().float()

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return self.lm_head(self.norm(x))

    def load(self, folder):
        """Weights under the names of Hugging Face's Llama, which has attention and feed-forward in blocks of their own."""
        from safetensors.torch import load_file

        held = {}
        for file in sorted(pathlib.Path(folder).glob("model*.safetensors")):
            held.update(load_file(file))
        for name, parameter in self.named_parameters():
            words = name.split(".")
            if words[-2] in ("q_proj", "k_proj", "v_proj", "o_proj"):
                words.insert(2, "self_attn")
            if words[-2] in ("gate_proj", "up_proj", "down_proj"):
                words.insert(2, "mlp")
            key = ".".join(words if words[0] == "lm_head" else ["model", *words])
            if key not in held:
                raise SystemExit(f"{folder} holds no {key}")
            parameter.data.copy_(held[key])


def batches(text, sequence, rows, seed, first_step):
    """Windows of the text, `rows` at a time, in the order of `native/src/runner/data.rs`, from training step `first_step`."""
    windows = (len(text) - 1) // sequence
    data = torch.tensor(list(text), dtype=torch.long)
    numbers, epoch = [], 0
    while True:
        while len(numbers) < rows:
            numbers += order(windows, seed, epoch)
            epoch += 1
        starts, numbers = [number * sequence for number in numbers[:rows]], numbers[rows:]
        if first_step > 0:
            first_step -= 1
            continue
        yield torch.stack([data[start : start + sequence + 1] for start in starts])


def train(options, spec, steps):
    """PyTorch's part, on from the checkpoint: the losses of `steps` steps."""
    model, training = spec["model"], spec["training"]
    torch.set_num_threads(options.threads)
    microbatches, rows, sequence = (training[key] for key in ("microbatches", "microbatch_size", "sequence"))
    llama = Llama(model, sequence)
    llama.load(options.checkpoint)
    manifest = json.loads((options.checkpoint / "manifest.json").read_text())
    matrices = [parameter for parameter in llama.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in llama.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    data = batches(TEXT.read_bytes(), sequence, microbatches * rows, manifest["seed"], manifest["step"])
    losses = []
    for _ in range(steps):
        loss = 0.0
        for part in next(data).split(rows):
            logits = llama(part[:, :-1])
            share = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / microbatches
            share.backward()
            loss += share.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses


def measured(command):
    """What a process prints as JSON, and its wall-clock and processor time in seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        if process.returncode != 0:
            raise SystemExit(f"{command[0]} has ended with {process.returncode}")
        output.seek(0)
        return json.load(output), (wall, usage.ru_utime + usage.ru_stime)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--pipeplan", default="pipeplan", help="the command, best of a release build")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="PyTorch's, where not as many as the plan has ranks")
    parser.add_argument("--checkpoint", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan = json.loads(options.plan.read_text())
    spec = plan["spec"]
    if spec["model"]["family"] != "llama" or spec["parallel"].get("data", 1) > 1:
        raise SystemExit("only Llama models without replicas are written here")
    if options.checkpoint:
        return print(json.dumps({"losses": train(options, spec, options.steps)}))

    ranks = plan["problem"]["ranks"] * spec["parallel"].get("tensor", 1)
    options.threads = options.threads or ranks
    training = spec["training"]
    tokens = options.steps * training["microbatches"] * training["microbatch_size"] * training["sequence"]
    with tempfile.TemporaryDirectory() as folder:
        run = [options.pipeplan, "run", str(options.plan), "--json"]
        measured([*run, "--steps", "1", "--checkpoint-dir", folder])
        checkpoint = pathlib.Path(folder) / "step-000001"
        script = [sys.executable, __file__, str(options.plan), "--threads", str(options.threads)]
        commands = {
            "pipeplan": lambda steps: [*run, "--resume", str(checkpoint), "--steps", str(1 + steps)],
            "torch": lambda steps: [*script, "--checkpoint", str(checkpoint), "--steps", str(steps)],
        }
        times, first = {name: [] for name in commands}, {}
        for _ in range(options.repeats):
            for name, command in commands.items():
                _, short = measured(command(options.warm_up))
                said, long = measured(command(options.warm_up + options.steps))
                times[name].append([1e6 * (b - a) / tokens for a, b in zip(short, long)])
                first[name] = said["losses"][0]
    if abs(first["pipeplan"] - first["torch"]) > 1e-4:
        raise SystemExit(f"the first losses differ, so this compares two different things: {first}")
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
    ratios = [ours / theirs for ours, theirs in zip(medians["pipeplan"], medians["torch"])]
    if options.json:
        figures = {"ranks": ranks, "threads": options.threads, "us_per_token": times, "medians": medians}
        return print(json.dumps({**figures, "ratios": ratios}, indent=2))
    print(f"first loss    {first['pipeplan']:.6f} with pipeplan, {first['torch']:.6f} with PyTorch")
    for at, what in enumerate(("wall clock", "processor")):
        ours, theirs = medians["pipeplan"][at], medians["torch"][at]
        print(f"{what:<13} {ours:.1f} us a token on {ranks} ranks, PyTorch {theirs:.1f} on {options.threads} threads: "
              f"ratio {ratios[at]:.2f}")


if __name__ == "__main__":
    main()
