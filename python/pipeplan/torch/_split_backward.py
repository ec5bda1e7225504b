"""Backward for weights apart from backward for inputs.

The backward of a matrix product makes two gradients. While a stage runs for a microbatch whose plan has W as an op, its
linear layers leave the gradient of their weights to that op: B computes the gradients of inputs, and of the few parameters
that are no matrices; W computes the rest from what B kept. This is the weight-gradient store of zero-bubble pipelines
(arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

#: A weight gradient that is due: the weight, its bias if there is one, input, gradient of the output, and whether the
#: weight lies as (in, out).
_Due = tuple[torch.Tensor, Any, torch.Tensor, torch.Tensor, bool]


class Store:
    """The weight gradients that one microbatch of one stage owes."""

    def __init__(self) -> None:
        self.due: list[_Due] = []

    def run(self) -> None:
        """Computes them, and adds them to the gradients of the parameters."""
        due, self.due = self.due, []
        for weight, bias, x, dy, transposed in due:
            flat_x = x.reshape(-1, x.shape[-1]).to(dy.dtype)
            flat_dy = dy.reshape(-1, dy.shape[-1])
            gradient = flat_x.t().mm(flat_dy) if transposed else flat_dy.t().mm(flat_x)
            tensors, gradients = [weight], [gradient.to(weight.dtype)]
            if bias is not None and bias.requires_grad:
                tensors.append(bias)
                gradients.append(flat_dy.sum(0).to(bias.dtype))
            # Through autograd: hooks of the parameters hear of it.
            torch.autograd.backward(tensors, gradients)


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, store, transposed):
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.store, ctx.transposed = bias, store, transposed
        matrix = weight.t() if transposed else weight
        return nn.functional.linear(x, matrix, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        ctx.store.due.append((weight, ctx.bias, x.detach(), dy, ctx.transposed))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        matrix = weight.t() if ctx.transposed else weight
        return dy.matmul(matrix.to(dy.dtype)).to(x.dtype), None, None, None, None


class Splitter:
    """Makes the linear layers of a stage leave their weight gradients to a store, while there is one."""

    def __init__(self, stage: nn.Module) -> None:
        self._store: Store | None = None
        self._changed: list[nn.Module] = []
        for module in stage.modules():
            is_linear = type(module).forward is nn.Linear.forward
            # Of transformers' GPT-2: its weight lies as (in, out).
            is_conv = type(module).__name__ == "Conv1D" and hasattr(module, "nf")
            if (is_linear or is_conv) and "forward" not in vars(module):
                module.forward = self._forward_of(module, is_conv)  # type: ignore[method-assign]
                self._changed.append(module)

    def _forward_of(self, module: nn.Module, transposed: bool):
        usual = type(module).forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            weight, bias = module.weight, module.bias
            splits = self._store is not None and torch.is_grad_enabled() and weight.requires_grad and weight.is_leaf
            if not splits:
                return usual(module, x)
            return _SplitLinear.apply(x, weight, bias, self._store, transposed)

        return forward

    @contextmanager
    def into(self, store: Store | None) -> Iterator[None]:
        """Weight gradients of what runs within go to ``store``; also of a forward that activation checkpointing repeats."""
        before, self._store = self._store, store
        try:
            yield
        finally:
            self._store = before

    def undo(self) -> None:
        """Gives the layers back their own forward."""
        for module in self._changed:
            del module.forward
        self._changed.clear()
