"""Trains a Llama-like model with PyTorch on a GPU, to set its speed beside that of `pipeplan selftest --device cuda`,
which runs this where python3 has torch.

    python3 examples/torch_gpu.py '{"layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128,
        "ffn": 5632, "vocab": 32000, "sequence": 1024, "microbatch_size": 2, "microbatches": 8, "gpu": 0}'

Weights and AdamW in 32-bit floats, everything else in bf16 by autocast, as the runner has it; attention by PyTorch's own
function. Prints tokens a second of a training step, as PyTorch runs it, the same with weights, gradients and AdamW in bf16
too (which moves less, and learns less), and compiled: a line of JSON each, the last with all. Tokens are random: they do
not change the time.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F


class Norm(torch.nn.Module):
    """In bf16 whatever autocast would do: before 2.12 it has no kernel for a weight in 32 bits, and takes eight."""

    def __init__(self, hidden):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)


class Layer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, width = model["hidden"], model["head_dim"]
        self.heads, self.kv_heads, self.width = model["heads"], model["kv_heads"], width
        linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.before, self.between = Norm(hidden), Norm(hidden)
        self.q, self.o = linear(hidden, self.heads * width), linear(self.heads * width, hidden)
        self.k, self.v = linear(hidden, self.kv_heads * width), linear(hidden, self.kv_heads * width)
        self.gate, self.up = linear(hidden, model["ffn"]), linear(hidden, model["ffn"])
        self.down = linear(model["ffn"], hidden)

    def forward(self, x, cosine, sine):
        rows, tokens, _ = x.shape
        split = lambda y, heads: y.view(rows, tokens, heads, self.width).transpose(1, 2)

        def rotated(y):
            low, high = y.chunk(2, dim=-1)
            return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)

        h = self.before(x)
        q, k = rotated(split(self.q(h), self.heads)), rotated(split(self.k(h), self.kv_heads))
        v = split(self.v(h), self.kv_heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(attended.transpose(1, 2).reshape(rows, tokens, -1))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.table = torch.nn.Embedding(model["vocab"], model["hidden"])
        self.layers = torch.nn.ModuleList(Layer(model) for _ in range(model["layers"]))
        self.norm = Norm(model["hidden"])
        self.head = torch.nn.Linear(model["hidden"], model["vocab"], bias=False)
        rates = 10000.0 ** (-torch.arange(0, model["head_dim"], 2) / model["head_dim"])
        angles = torch.arange(model["sequence"])[:, None] * rates
        self.register_buffer("cosine", angles.cos().bfloat16())
        self.register_buffer("sine", angles.sin().bfloat16())

    def forward(self, tokens, targets):
        x = self.table(tokens).bfloat16()
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def tokens_per_second(model, device, compiled=False, all_bf16=False):
    torch.manual_seed(0)
    llama = Llama(model).to(device)
    if all_bf16:
        llama = llama.bfloat16()
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_of = torch.compile(llama) if compiled else llama
    shape = (model["microbatches"], model["microbatch_size"], model["sequence"] + 1)
    data = torch.randint(0, model["vocab"], shape, device=device)
    times = []
    for _ in range(8):
        torch.cuda.synchronize(device)
        before = time.perf_counter()
        for part in data:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = step_of(part[:, :-1], part[:, 1:]) / model["microbatches"]
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - before)
    counted = sorted(times[3:])
    return model["microbatches"] * model["microbatch_size"] * model["sequence"] / counted[len(counted) // 2]


def main():
    model = json.loads(sys.argv[1])
    device = torch.device("cuda", model["gpu"])
    figures = {"torch": torch.__version__, "eager": tokens_per_second(model, device)}
    print(json.dumps(figures), flush=True)
    figures["all_bf16"] = tokens_per_second(model, device, all_bf16=True)
    # Compiling may take longer than whoever waits for this.
    print(json.dumps(figures | {"compiled_error": "it did not end in time"}), flush=True)
    try:
        figures["compiled"] = tokens_per_second(model, device, compiled=True)
    except Exception as error:  # no compiler on this machine
        figures["compiled_error"] = str(error).splitlines()[0] if str(error) else type(error).__name__
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
