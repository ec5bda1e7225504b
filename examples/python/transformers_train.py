"""Trains a Llama of transformers by a plan, with transformers' learning rate schedule, and saves it as a checkpoint.

    torchrun --nproc-per-node 2 examples/python/transformers_train.py [FOLDER]

`Trainer` wraps the whole model for each process; here each rank has the stages of its row, and the loop is its own. The
checkpoint is one of the whole model: `AutoModelForCausalLM.from_pretrained` reads it.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, get_cosine_schedule_with_warmup

import pipeplan
from pipeplan.torch import PlanSchedule, split

CONFIG = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
                     vocab_size=128, max_position_embeddings=64, tie_word_embeddings=True)
SEQUENCE, MICROBATCHES, STEPS = 16, 4, 20


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan = pipeplan.plan(pipeplan.Spec(CONFIG, device="cpu", pipeline=ranks, microbatches=MICROBATCHES, sequence=SEQUENCE), "1f1b")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG)
    stages = split(model, plan, rank)
    schedule = PlanSchedule(plan, stages, loss_of)
    mine = {id(parameter) for stage in stages.values() for parameter in stage.parameters()}
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) in mine]
    optimizer = torch.optim.AdamW([parameter for _, parameter in named], lr=1e-2)
    rate = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    # A text that repeats: each token is the one before, plus one.
    starts = torch.randint(CONFIG.vocab_size, (2 * MICROBATCHES, 1), generator=torch.Generator().manual_seed(1))
    tokens = (starts + torch.arange(SEQUENCE + 1)) % CONFIG.vocab_size
    loss = None
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = schedule.step(tokens[:, :-1], target=tokens[:, 1:])
        optimizer.step()
        rate.step()
        if loss is not None and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

    # The stages of all ranks as one checkpoint.
    parts = [None] * ranks if rank == 0 else None
    dist.gather_object({name: parameter.detach() for name, parameter in named}, parts)
    if parts is not None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = sys.argv[1] if len(sys.argv) > 1 else scratch
            model.load_state_dict({name: value for part in parts for name, value in part.items()}, strict=False)
            model.save_pretrained(folder)
            read = AutoModelForCausalLM.from_pretrained(folder)
            loss = loss_of(read(tokens[:, :-1], use_cache=False).logits, tokens[:, 1:])
        print(f"the checkpoint has a loss of {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
