"""Cuts a model into the stages of a plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .._results import Plan, Stage
from ._tied import shared_by


def split(model: nn.Module, plan: Plan, rank: int | None = None) -> dict[int, nn.Module]:
    """Cuts ``model`` into the stages of ``plan``, by the layers that the plan gives each of them.

    Parameters
    ----------
    model : Module
        An ``nn.Sequential``, or a causal language model of ``transformers`` of the kinds Llama (also Mistral, Qwen2, Qwen3,
        and others that hold ``model.embed_tokens``, ``.layers`` and ``.norm``) and GPT-2, or a decoder of torchtitan. Stages share the modules of the
        model; these are not copied. A parameter that several stages use (tied embeddings) stays one: each stage says in its
        ``tied_parameters`` which others use it, and :class:`PlanSchedule` sums its gradients over them.
    plan : Plan
        Its stages say the layers. Where costs are typed, an ``nn.Sequential`` is cut evenly. A model's plan takes an
        ``nn.Sequential`` of its layers, or of embedding, layers and head.
    rank : int, optional
        Only the stages of this rank; all where not given.

    Returns
    -------
    dict of int to Module
        By the number of the stage. A stage takes tokens (the first), or hidden states of shape (batch, sequence, hidden), and
        returns hidden states, or logits of shape (batch, sequence, vocabulary) (the last).
    """
    stages: dict[int, Any]
    if isinstance(model, nn.Sequential):
        stages = {stage.index: nn.Sequential(*_children(model, plan, stage)) for stage in plan.stages}
    else:
        make = _of_transformers(model)
        _expect_layers(plan, len(make.layers))
        stages = {stage.index: make.stage(stage, len(plan.stages)) for stage in plan.stages}
    shared = shared_by(stages)
    for index, module in stages.items():
        module.tied_parameters = [names for names in shared if index in names]
    return {stage.index: stages[stage.index] for stage in plan.stages if rank is None or rank in stage.ranks}


def _expect_layers(plan: Plan, layers: int) -> None:
    planned = plan.stages[-1].layers
    if planned is not None and planned[1] != layers:
        raise ValueError(f"the plan is of a model with {planned[1]} layers; this one has {layers}")


def _range(plan: Plan, stage: Stage, layers: int) -> tuple[int, int]:
    """The layers of a stage; even shares where the plan says none."""
    if stage.layers is not None:
        return stage.layers
    count = len(plan.stages)
    return layers * stage.index // count, layers * (stage.index + 1) // count


def _children(model: nn.Sequential, plan: Plan, stage: Stage) -> list[nn.Module]:
    children = list(model)
    planned = plan.stages[-1].layers
    if planned is None or len(children) == planned[1]:
        begin, end = _range(plan, stage, len(children))
        return children[begin:end]
    if len(children) != planned[1] + 2:
        raise ValueError(f"the plan is of {planned[1]} layers: accepted is an nn.Sequential of them, or of embedding, layers "
                         f"and head, and this one has {len(children)} parts")
    begin, end = _range(plan, stage, planned[1])
    ends = (children[:1] if stage.embedding else [], children[-1:] if stage.head else [])
    return [*ends[0], *children[1 + begin:1 + end], *ends[1]]


def _of_transformers(model: nn.Module) -> Any:
    inner = getattr(model, "model", None)
    if inner is not None and all(hasattr(inner, name) for name in ("embed_tokens", "layers", "norm")):
        return _Llama(model)
    inner = getattr(model, "transformer", None)
    if inner is not None and all(hasattr(inner, name) for name in ("wte", "wpe", "h", "ln_f")):
        return _Gpt2(model)
    if all(hasattr(model, name) for name in ("tok_embeddings", "layers", "norm", "lm_head")):
        return _Titan(model)
    raise TypeError(f"{type(model).__name__}: accepted is an nn.Sequential, or a causal language model of transformers of the "
                    "kinds Llama and GPT-2, or a decoder of torchtitan. Give stages of your own to PlanSchedule for others.")


class _Llama:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.model.layers

    def stage(self, stage: Stage, stages: int) -> nn.Module:
        begin, end = stage.layers or (len(self.layers) * stage.index // stages, len(self.layers) * (stage.index + 1) // stages)
        embeds = stage.embedding if stage.embedding is not None else stage.index == 0
        ends = stage.head if stage.head is not None else stage.index == stages - 1
        return _LlamaStage(self.model, begin, end, embeds, ends)


class _LlamaStage(nn.Module):
    def __init__(self, model: Any, begin: int, end: int, embeds: bool, ends: bool) -> None:
        super().__init__()
        self.embed_tokens = model.model.embed_tokens if embeds else None
        self.layers = nn.ModuleList(model.model.layers[begin:end])
        self.rotary_emb = model.model.rotary_emb
        self.norm = model.model.norm if ends else None
        self.lm_head = model.lm_head if ends else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed_tokens(x) if self.embed_tokens is not None else x
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        embeddings = self.rotary_emb(hidden, positions)
        for layer in self.layers:
            # Without a mask attention is causal.
            out = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=embeddings)
            hidden = out if isinstance(out, torch.Tensor) else out[0]
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.lm_head(hidden) if self.lm_head is not None else hidden


class _Gpt2:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.transformer.h

    def stage(self, stage: Stage, stages: int) -> nn.Module:
        begin, end = stage.layers or (len(self.layers) * stage.index // stages, len(self.layers) * (stage.index + 1) // stages)
        embeds = stage.embedding if stage.embedding is not None else stage.index == 0
        ends = stage.head if stage.head is not None else stage.index == stages - 1
        return _Gpt2Stage(self.model, begin, end, embeds, ends)


class _Gpt2Stage(nn.Module):
    def __init__(self, model: Any, begin: int, end: int, embeds: bool, ends: bool) -> None:
        super().__init__()
        inner = model.transformer
        self.wte, self.wpe = (inner.wte, inner.wpe) if embeds else (None, None)
        self.drop = inner.drop if embeds else None
        self.h = nn.ModuleList(inner.h[begin:end])
        self.ln_f = inner.ln_f if ends else None
        self.lm_head = model.lm_head if ends else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x
        if self.wte is not None:
            hidden = self.drop(self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device)))
        for layer in self.h:
            out = layer(hidden)
            hidden = out if isinstance(out, torch.Tensor) else out[0]
        if self.ln_f is not None:
            hidden = self.ln_f(hidden)
        return self.lm_head(hidden) if self.lm_head is not None else hidden


class _Titan:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers = model.layers

    def stage(self, stage: Stage, stages: int) -> nn.Module:
        begin, end = stage.layers or (len(self.layers) * stage.index // stages, len(self.layers) * (stage.index + 1) // stages)
        embeds = stage.embedding if stage.embedding is not None else stage.index == 0
        ends = stage.head if stage.head is not None else stage.index == stages - 1
        return _TitanStage(self.model, begin, end, embeds, ends)


class _TitanStage(nn.Module):
    """Its parameters have the names that they have in the model, as those of torchtitan's own stages."""

    def __init__(self, model: Any, begin: int, end: int, embeds: bool, ends: bool) -> None:
        super().__init__()
        self.tok_embeddings = model.tok_embeddings if embeds else None
        self.layers = nn.ModuleDict(list(model.layers.items())[begin:end])
        self.norm, self.lm_head = (model.norm, model.lm_head) if ends else (None, None)

    def forward(self, x: torch.Tensor, positions: Any = None, attention_masks: Any = None) -> torch.Tensor:
        hidden = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values():
            hidden = layer(hidden, attention_masks, positions)
        return self.lm_head(self.norm(hidden)) if self.lm_head is not None else hidden
