"""Runs a plan: each rank executes its row of the plan's program, op by op, with modules of PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .._results import Plan, Trace
from ._clock import Clock
from ._replicas import is_sharded, replicas_of, sync_in_backward, unwrapped
from ._links import Links
from ._program import Message, Step, read_row
from ._split_backward import Splitter, Store
from ._tied import Names, local, tied_of

#: What a stage passes on for one microbatch: shape and type of each tensor.
_Meta = list[tuple[tuple[int, ...], torch.dtype]]
_Key = tuple[int, int]
#: Tags of copies and sums between the two ranks that hold a stage: above those of all transfers.
_COPY_TAG = 1 << 30


class PlanSchedule:
    """Runs any plan with stages of the user's own modules.

    Every rank of ``group`` makes one, with the same plan. A step runs the rank's row of the plan's program as it stands: each
    op and each transfer at its place. It works for every placement: uneven stages, several stages a rank, V, wave, looped
    and bidirectional; for split and whole backward; and for pairs, whose forward and backward run one after the other.

    Parameters
    ----------
    plan : Plan, or the text or path of its file
        What to run.
    stages : dict of int to Module, list of Module, or list of PipelineStage
        This rank's stages: by their number, or in ascending order of it; or the stages of
        ``torch.distributed.pipelining``. A stage takes what the stage before it returns: one tensor or a tuple of them.
    loss_fn : callable
        Takes the output of the last stage and the target of one microbatch, and returns a scalar: the mean over the
        microbatch. Needed on ranks that hold the last stage.
    group : ProcessGroup, optional
        The ranks of the pipeline: rank r of it runs row r of the plan. All ranks where not given.
    device : torch.device, optional
        Where stages are: that of the first parameter where not given.
    data_parallel_group : ProcessGroup, optional
        Replicas of this rank's stages: gradients are averaged over it at the end of a step. Not needed for stages that are
        wrapped in ``DistributedDataParallel``, whose group is taken, or sharded by ``fully_shard`` (FSDP2), which reduces
        gradients itself in the last backward of a step.
    tied : list of dict of int to str, optional
        Parameters that several stages share, such as tied embeddings: for each its name in every stage that uses it, by the
        number of the stage: ``[{0: "wte.weight", 3: "lm_head.weight"}]``. Every rank gives the same list. Not needed for
        stages of :func:`split`, which know theirs.
    record : bool
        Whether the times of each op and transfer are kept, for :meth:`trace`: with CUDA events on GPUs.

    Notes
    -----
    Gradients are those of the mean of the losses of all microbatches; they are added to what ``.grad`` holds. All
    microbatches have equal shapes. The first step runs each stage once more, without gradients, to learn these shapes.
    With a bidirectional placement, two ranks hold each stage: the first one's parameters are copied to the other when this is
    made, and their gradients are summed at the end of a step. So it is with a parameter that several stages share: that of the
    first of them is copied to the others, and all have the sum of their gradients. A stage that FSDP2 shards has its whole backward in B, and
    nothing in W: its gradients are reduced as soon as a backward ends.
    """

    def __init__(
        self,
        plan: Plan | str,
        stages: Mapping[int, nn.Module] | Sequence[Any],
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
        data_parallel_group: dist.ProcessGroup | None = None,
        tied: Iterable[Names] = (),
        record: bool = False,
    ) -> None:
        if not isinstance(plan, Plan):
            plan = Plan(plan) if plan.lstrip().startswith("{") else Plan.load(plan)
        if plan.slices > 1:
            raise ValueError(f"the plan cuts sequences into {plan.slices} slices (parallel.sequence_slices), which is planned and not run")
        if any(plan.copies):
            raise ValueError("the schedule copies activations to the host (training.offload = \"scheduled\"), which PyTorch is not told: plan without")
        self.plan = plan
        self.rank = dist.get_rank(group)
        if dist.get_world_size(group) != plan.ranks:
            raise ValueError(f"the plan has {plan.ranks} ranks; the group has {dist.get_world_size(group)}")
        self._group = group
        self._loss_fn = loss_fn
        #: The rank of each op's stage and microbatch.
        owner = {(op.stage, op.microbatch): rank for rank, row in enumerate(plan.ops) for op in row if op.kind == "F"}
        self._owner = owner
        self._last = len(plan.stages) - 1
        named = self._named(stages, sorted({op.stage for op in plan.ops[self.rank]}))
        #: The group over which the gradients of each stage are averaged.
        self._replicas = {stage: replicas_of(module, data_parallel_group) for stage, module in named.items()}
        #: This rank's stages, by their number.
        self.stages = {stage: unwrapped(module) for stage, module in named.items()}
        parameter = next((p for stage in self.stages.values() for p in stage.parameters()), None)
        self.device = device or (parameter.device if parameter is not None else torch.device("cpu"))
        if self._last in self.stages and loss_fn is None:
            raise ValueError(f"rank {self.rank} holds the last stage: it needs loss_fn")
        self._program = read_row(plan.program[self.rank])
        #: The steps of the program that ran in the last step, as the plan writes them.
        self.ran: list[str] = []
        self._sharded = {stage for stage, module in self.stages.items() if is_sharded(module)}
        self._splits = {op[:3:2] for op in plan.ops[self.rank] if op.kind == "W" and op.stage not in self._sharded}
        splitting = {stage for stage, _ in self._splits}
        backwards = [op for op in plan.ops[self.rank] if op.kind in ("B", "BW")]
        #: The last backward of each stage, in which a sharded one reduces its gradients.
        self._last_backward = {op.stage: op.microbatch for op in backwards}
        self._splitters = {stage: Splitter(self.stages[stage]) for stage in splitting}
        self._links = Links(group, owner, len(plan.stages))
        self._holders = self._holders_of_stages()
        self._tied = tied_of(tied, self.stages, self._holders)
        self._copy_to_second_holders()
        self._copy_tied()
        self._metas: dict[int, _Meta] | None = None
        self._clock = Clock(self.device) if record else None
        self._recorded: list[dict] = []

    @property
    def is_first(self) -> bool:
        """Whether this rank holds the first stage, and so takes the inputs."""
        return 0 in self.stages

    @property
    def is_last(self) -> bool:
        """Whether this rank holds the last stage, and so takes the targets."""
        return self._last in self.stages

    def step(
        self,
        *args: torch.Tensor,
        target: Any = None,
        losses: list[torch.Tensor] | None = None,
        return_outputs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Runs one training step: forwards, backwards, and the sync of gradients. The optimizer is the caller's.

        Parameters
        ----------
        *args : Tensor
            The batch, shape (microbatches * microbatch size, ...), on ranks that hold the first stage.
        target : Tensor, or a tuple or dict of Tensors
            The targets of the batch, on ranks that hold the last stage.
        losses : list, optional
            The losses of the microbatches that this rank computes are appended, in their order.
        return_outputs : bool
            Whether the outputs of the last stage are kept and returned, in the order of the microbatches.
        **kwargs
            Further arguments of every stage of this rank; tensors are cut into microbatches.

        Returns
        -------
        The mean of this rank's losses, detached; with ``return_outputs`` the outputs in the place of it. None on ranks without
        the last stage.
        """
        count = self.plan.microbatches
        run = _Run(self, [_cut(arg, count) for arg in args], _cut(target, count), _cut(kwargs, count), return_outputs)
        if self._metas is None:
            self._metas = self._infer(run)
        self._set_aside()
        if self._clock is not None:
            dist.barrier(self._group)
            self._clock.begin()
        self.ran = []
        for step in self._program:
            if self._clock is not None:
                self._clock.start()
            run.execute(step)
            if self._clock is not None:
                self._clock.end()
            self.ran.append(step.text)
        if self._clock is not None:
            mean = float(run.mean_loss() or 0.0) if self.is_last else None
            self._recorded.append({"times": self._clock.finish(), "loss": mean})
        if losses is not None:
            losses.extend(run.losses[k] for k in sorted(run.losses))
        if not self.is_last:
            return None
        return run.merged_outputs() if return_outputs else run.mean_loss()

    def trace(self, *, tokens: int = 0) -> Trace | None:
        """The trace of all steps that were recorded, on rank 0 of the group; None on the others. Every rank calls it.

        ``tokens`` are those of one step. :func:`pipeplan.calibrate` says from it where the run lost time.
        """
        if self._clock is None:
            raise ValueError("nothing was recorded: give record=True")
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        mine = {"steps": self._recorded, "row": " ".join(step.text for step in self._program), "peak": peak}
        gathered: list[Any] = [None] * self.plan.ranks
        dist.all_gather_object(gathered, mine, self._group)
        if self.rank != 0:
            return None
        steps = []
        for at in range(len(self._recorded)):
            rows = []
            for rank in gathered:
                times = rank["steps"][at]["times"]
                rows.append({"steps": rank["row"], "start_ns": [t[0] for t in times], "end_ns": [t[1] for t in times]})
            losses = [rank["steps"][at]["loss"] for rank in gathered if rank["steps"][at]["loss"] is not None]
            loss = sum(losses) / max(1, len(losses))
            steps.append({"step": at, "loss": loss, "tokens": tokens, "rows": rows})
        return Trace(json.dumps({
            "format": "pipeplan-trace", "version": 1, "plan_digest": self.plan.digest,
            "backend": f"torch-{self.device.type}", "transport": dist.get_backend(self._group),
            "peak_bytes": [rank["peak"] for rank in gathered], "steps": steps,
        }))

    def close(self) -> None:
        """Gives the modules back as they were."""
        for splitter in self._splitters.values():
            splitter.undo()

    def _named(self, stages: Mapping[int, nn.Module] | Sequence[Any], numbers: list[int]) -> dict[int, nn.Module]:
        if isinstance(stages, Mapping):
            named = dict(stages)
        else:
            # A stage of torch's knows its number.
            given = [(getattr(stage, "stage_index", None), getattr(stage, "submod", stage)) for stage in stages]
            if len(given) != len(numbers):
                raise ValueError(f"the plan puts stages {numbers} on rank {self.rank}; {len(given)} were given")
            named = {(number if index is None else index): module for (index, module), number in zip(given, numbers)}
        missing = [number for number in numbers if number not in named]
        if missing:
            raise ValueError(f"the plan puts stages {numbers} on rank {self.rank}; missing are {missing}")
        return {number: named[number] for number in numbers}

    def _holders_of_stages(self) -> dict[int, list[int]]:
        holders: dict[int, list[int]] = {}
        for (stage, _), rank in sorted(self._owner.items(), key=lambda item: item[0][::-1]):
            if rank not in holders.setdefault(stage, []):
                holders[stage].append(rank)
        return holders

    def _second_holder(self, stage: int) -> int | None:
        """The other rank that holds ``stage``, where a bidirectional placement has one."""
        return next((rank for rank in self._holders[stage] if rank != self.rank), None)

    def _copy_to_second_holders(self) -> None:
        # In an order that both ends share: each rank meets one other.
        for stage, module in sorted(self.stages.items()):
            if self._second_holder(stage) is not None:
                first, second = self._holders[stage]
                tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
                self._links.copy(first, second, tensors, _COPY_TAG + stage)

    def _infer(self, run: _Run) -> dict[int, _Meta]:
        """Shape and type of what each stage but the last passes on, told to all ranks."""
        metas: dict[int, _Meta] = {}
        for stage in range(self._last):
            holder = self._owner[stage, 0]
            told: list[Any] = [None]
            if self.rank == holder:
                module = self.stages[stage]
                kept = [buffer.clone() for buffer in module.buffers()]
                devices = [self.device] if self.device.type == "cuda" else []
                with torch.no_grad(), torch.random.fork_rng(devices):
                    inputs = run.args_of(0) if stage == 0 else _empty(metas[stage - 1], self.device, zeros=True)
                    outputs = _tensors(module(*inputs, **run.kwargs_of(0)))
                for buffer, was in zip(module.buffers(), kept):
                    buffer.copy_(was)
                told = [[(tuple(tensor.shape), tensor.dtype) for tensor in outputs]]
            dist.broadcast_object_list(told, self._links.global_rank(holder), self._group, self.device)
            metas[stage] = told[0]
        return metas

    def _copy_tied(self) -> None:
        # In an order that all ranks share, as is that of their pairs.
        for tie in self._tied:
            copies = [local(parameter.detach()) for parameter in tie.parameters(self.stages)]
            first = self._holders[tie.first][0]
            for rank in tie.ranks:
                if rank != first and self.rank in (first, rank):
                    self._links.copy(first, rank, copies[:1], self._tag_of(tie.first))
            for other in copies[1:]:
                other.copy_(copies[0])

    def _tag_of(self, first_stage: int) -> int:
        """The tag for parameters that stages share, of which this is the first one."""
        return _COPY_TAG + len(self.plan.stages) + first_stage

    def _own_parameters(self) -> dict[int, list[nn.Parameter]]:
        """The parameters of each stage of this rank, but for those that it shares with other stages."""
        seen = {id(parameter) for tie in self._tied for parameter in tie.parameters(self.stages)}
        own: dict[int, list[nn.Parameter]] = {}
        for stage, module in sorted(self.stages.items()):
            own[stage] = [parameter for parameter in module.parameters() if id(parameter) not in seen]
            seen.update(id(parameter) for parameter in own[stage])
        return own

    def _set_aside(self) -> None:
        """Puts away the gradients of earlier steps: only those of this step are synced."""
        synced = [
            parameter for stage, parameters in self._own_parameters().items()
            if self._replicas[stage] is not None or len(self._holders[stage]) > 1 for parameter in parameters
        ]
        synced += [parameter for tie in self._tied for parameter in tie.parameters(self.stages)]
        self._earlier = [(parameter, parameter.grad) for parameter in synced if parameter.grad is not None]
        for parameter, _ in self._earlier:
            parameter.grad = None

    def _sync_gradients(self) -> None:
        """Sums gradients of stages that two ranks hold and of parameters that stages share, and averages those of replicas."""
        own = self._own_parameters()
        for stage, parameters in own.items():
            peer = self._second_holder(stage)
            if peer is not None:
                _reduce(parameters, partial(self._links.sum_with, [peer], tag=_COPY_TAG + stage), 1)
        for tie in self._tied:
            self._sum_tied(tie.parameters(self.stages), [rank for rank in tie.ranks if rank != self.rank], self._tag_of(tie.first))
        replicated = [(self._replicas[stage], parameters) for stage, parameters in own.items()]
        for tie in self._tied:
            stage = next(stage for stage in sorted(tie.names) if stage in self.stages)
            replicated.append((self._replicas[stage], tie.parameters(self.stages)))
        for group, parameters in replicated:
            if group is not None:
                _reduce(parameters, partial(dist.all_reduce, group=group), dist.get_world_size(group))
        for parameter, gradient in self._earlier:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _sum_tied(self, copies: list[nn.Parameter], peers: list[int], tag: int) -> None:
        """Gives all copies of a parameter, on this rank and on ``peers``, the sum of their gradients."""
        if not copies[0].requires_grad:
            return
        for parameter in copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[Any] = [local(parameter.grad) for parameter in copies if parameter.grad is not None]
        total = torch.stack(gradients).sum(0) if len(gradients) > 1 else gradients[0].contiguous().clone()
        self._links.sum_with(peers, total, tag)
        for gradient in gradients:
            gradient.copy_(total)


class _Run:
    """The state of one step."""

    def __init__(self, schedule: PlanSchedule, args: list, target: Any, kwargs: Any, keep_outputs: bool) -> None:
        self._schedule = schedule
        self._args, self._target, self._kwargs = args, target, kwargs
        self._keep_outputs = keep_outputs
        self._share = 1.0 / schedule.plan.microbatches
        self.losses: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, Any] = {}
        #: Inputs and outputs of a microbatch of a stage, from F to the backward.
        self._graphs: dict[_Key, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._stores: dict[_Key, Store] = {}
        #: What was received, or handed over on this rank, by the stage that takes it.
        self._inbox: dict[tuple[int, str, int], list[torch.Tensor]] = {}
        #: What is to be sent, by the stage that made it.
        self._outbox: dict[tuple[int, str, int], list[torch.Tensor]] = {}
        self._works: dict[Message, tuple[list[dist.Work], list[torch.Tensor]]] = {}

    def args_of(self, microbatch: int) -> list[torch.Tensor]:
        if not self._args:
            raise ValueError(f"rank {self._schedule.rank} holds the first stage: step() needs the inputs")
        return [arg[microbatch] for arg in self._args]

    def kwargs_of(self, microbatch: int) -> dict:
        return self._kwargs[microbatch]

    def execute(self, step: Step) -> None:
        if step.op is not None:
            stage, kind, microbatch = step.op
            if kind == "F":
                self._forward(stage, microbatch)
            elif kind == "W":
                if (stage, microbatch) in self._stores:
                    self._stores.pop((stage, microbatch)).run()
            else:
                self._backward(stage, microbatch)
        elif step.kind == "start":
            self._start(step.messages)
        elif step.kind == "wait":
            self._wait(step.messages)
        elif step.kind == "transfer":
            self._start(step.messages)
            self._wait(step.messages)
        else:
            self._schedule._sync_gradients()

    def _forward(self, stage: int, k: int) -> None:
        schedule = self._schedule
        if stage == 0:
            inputs = self.args_of(k)
        else:
            inputs = [tensor.detach().requires_grad_(_has_gradient(tensor.dtype)) for tensor in self._inbox.pop((stage, "F", k))]
        key = (stage, k)
        scope: Any = nullcontext()
        if key in schedule._splits:
            self._stores[key] = Store()
            scope = schedule._splitters[stage].into(self._stores[key])
        with scope:
            output = schedule.stages[stage](*inputs, **self.kwargs_of(k))
        if stage == schedule._last:
            if self._target is None:
                raise ValueError(f"rank {schedule.rank} holds the last stage: step() needs target")
            assert schedule._loss_fn is not None
            loss = schedule._loss_fn(output, self._target[k])
            self.losses[k] = loss.detach()
            if self._keep_outputs:
                self._outputs[k] = _detached(output)
            self._graphs[key] = (inputs, [loss])
            return
        outputs = _tensors(output)
        self._graphs[key] = (inputs, outputs)
        self._hand_over(stage, "F", k, stage + 1, [tensor.detach() for tensor in outputs])

    def _backward(self, stage: int, k: int) -> None:
        schedule = self._schedule
        key = (stage, k)
        inputs, outputs = self._graphs.pop(key)
        gradients: list[torch.Tensor | None]
        if stage == schedule._last:
            gradients = [torch.full_like(outputs[0], self._share)]
        else:
            gradients = list(self._inbox.pop((stage, "B", k)))
            outputs = [tensor for tensor in outputs if _has_gradient(tensor.dtype)]
        alive = [(tensor, gradient) for tensor, gradient in zip(outputs, gradients) if tensor.requires_grad]
        if stage in schedule._sharded:
            sync_in_backward(schedule.stages[stage], k == schedule._last_backward[stage])
        if alive:
            splitter = schedule._splitters.get(stage)
            # A forward that is repeated within leaves its weight gradients to the same store.
            with splitter.into(self._stores.get(key)) if splitter is not None else nullcontext():
                torch.autograd.backward([tensor for tensor, _ in alive], [gradient for _, gradient in alive])
        if stage > 0:
            made = [tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
                    for tensor in inputs if _has_gradient(tensor.dtype)]
            self._hand_over(stage, "B", k, stage - 1, made)

    def _hand_over(self, stage: int, payload: str, k: int, to: int, tensors: list[torch.Tensor]) -> None:
        if self._schedule._owner[to, k] == self._schedule.rank:
            self._inbox[to, payload, k] = tensors
        else:
            self._outbox[stage, payload, k] = [tensor.contiguous() for tensor in tensors]

    def _start(self, messages: tuple[Message, ...]) -> None:
        with_tensors = []
        for message in messages:
            if message.is_send:
                tensors = self._outbox.pop((message.stage, message.payload, message.microbatch))
            else:
                # An activation has the shape of what the stage before makes; a gradient that of what this stage made.
                assert self._schedule._metas is not None
                at = message.stage - 1 if message.payload == "F" else message.stage
                meta = self._schedule._metas[at]
                if message.payload == "B":
                    meta = [(shape, dtype) for shape, dtype in meta if _has_gradient(dtype)]
                tensors = _empty(meta, self._schedule.device)
            with_tensors.append((message, tensors))
        works = self._schedule._links.start(with_tensors)
        for (message, tensors), work in zip(with_tensors, works):
            self._works[message] = (work, tensors)

    def _wait(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            works, tensors = self._works.pop(message)
            for work in works:
                work.wait()
            if not message.is_send:
                self._inbox[message.stage, message.payload, message.microbatch] = tensors

    def mean_loss(self) -> torch.Tensor | None:
        if not self.losses:
            return None
        return torch.stack([self.losses[k] for k in sorted(self.losses)]).mean()

    def merged_outputs(self) -> Any:
        outputs = [self._outputs[k] for k in sorted(self._outputs)]
        if not outputs:
            return None
        if isinstance(outputs[0], torch.Tensor):
            return torch.cat(outputs)
        return tuple(torch.cat(parts) for parts in zip(*outputs))


def _has_gradient(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _tensors(output: Any) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else list(output)


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, torch.Tensor) else tuple(tensor.detach() for tensor in output)


def _empty(meta: _Meta, device: torch.device, zeros: bool = False) -> list[torch.Tensor]:
    make = torch.zeros if zeros else torch.empty
    return [make(shape, dtype=dtype, device=device) for shape, dtype in meta]


def _cut(value: Any, count: int) -> Any:
    """``value`` by microbatch; what is no tensor is the same for all."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return [value] * count
        if value.shape[0] % count != 0:
            raise ValueError(f"a batch of {value.shape[0]} cannot be cut into {count} microbatches of equal size")
        return list(value.chunk(count))
    if isinstance(value, Mapping):
        parts = {name: _cut(inner, count) for name, inner in value.items()}
        return [{name: None if part is None else part[k] for name, part in parts.items()} for k in range(count)]
    if isinstance(value, tuple):
        return list(zip(*(_cut(inner, count) for inner in value)))
    return [value] * count


def _reduce(parameters: Iterable[nn.Parameter], add_up: Callable[[torch.Tensor], Any], divisor: int) -> None:
    """Adds gradients up, all of one type in one message, and divides them."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:  # a replica may have one
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for gradients in by_type.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        add_up(flat)
        if divisor > 1:
            flat /= divisor
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at:at + gradient.numel()].view_as(gradient))
            at += gradient.numel()
