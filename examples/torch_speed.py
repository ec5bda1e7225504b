"""Trains the model of a plan with PyTorch on this CPU, to set its speed beside that of `pipeplan run`.

    pipeplan plan tiny-llama.toml -o plan.json
    pipeplan run plan.json --steps 20
    python examples/torch_speed.py plan.json --steps 20 --threads 1

The same Llama in 32-bit floats, the same text in the same order, gradients of as many microbatches added up before each
step of AdamW with the same settings; attention and everything else by PyTorch's own functions, without `torch.compile`.
First weights are drawn anew, so losses are near those of `pipeplan run` and not the same. With `--checkpoint FOLDER` they
and the place in the text are those of a checkpoint: then the first loss is the one with which `pipeplan run --resume` goes
on, to rounding.

Prints tokens a second of wall-clock time, and microseconds of processor time for each token, which on a busy machine says
more. The first steps are not counted (`--warm-up`).

Needs torch (pip; the CPU is enough), and safetensors for checkpoints.
"""

import argparse
import json
import pathlib
import time

import torch
import torch.nn.functional as F

from transformers_check import TEXT, order


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

    def initialise(self):
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    spec = json.loads(options.plan.read_text())["spec"]
    model, training = spec["model"], spec["training"]
    if model["family"] != "llama":
        raise SystemExit("only Llama models are written here")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    microbatches, rows, sequence = (training[key] for key in ("microbatches", "microbatch_size", "sequence"))

    llama = Llama(model, sequence)
    llama.load(options.checkpoint) if options.checkpoint else llama.initialise()
    matrices = [parameter for parameter in llama.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in llama.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    first_step = json.loads((options.checkpoint / "manifest.json").read_text())["step"] if options.checkpoint else 0
    data = batches(TEXT.read_bytes(), sequence, microbatches * rows, options.seed, first_step)

    losses, wall, processor = [], 0.0, 0.0
    for step in range(options.steps):
        before = time.perf_counter(), time.process_time()
        loss = 0.0
        for part in next(data).split(rows):
            logits = llama(part[:, :-1])
            share = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / microbatches
            share.backward()
            loss += share.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        if step >= min(options.warm_up, options.steps - 1):
            wall += time.perf_counter() - before[0]
            processor += time.process_time() - before[1]
    counted = options.steps - min(options.warm_up, options.steps - 1)
    tokens = counted * microbatches * rows * sequence
    figures = {
        "threads": options.threads,
        "tokens_per_s": tokens / wall,
        "processor_us_per_token": 1e6 * processor / tokens,
        "losses": losses,
    }
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"loss          {losses[0]:.4f} to {losses[-1]:.4f}")
        print(f"speed         {figures['tokens_per_s']:.0f} tokens/s on {options.threads} threads")
        print(f"processor     {figures['processor_us_per_token']:.1f} us a token")


if __name__ == "__main__":
    main()
