"""Plans of any order in Megatron-Core, in the place of its own schedules.

    from pipeplan.megatron import forward_backward_func
    train_step = forward_backward_func(plan)
    losses = train_step(forward_step_func=forward_step, data_iterator=iterators, model=chunks, num_microbatches=8,
                        seq_length=4096, micro_batch_size=1)

The function takes what ``megatron.core.pipeline_parallel.get_forward_backward_func()`` returns takes, and uses the process
groups, ``no_sync_func`` and ``finalize_model_grads_func`` of Megatron-Core. ``model`` is the list of this rank's chunks: in
ascending order of the plan's stages, built with ``pre_process`` for the first stage and ``post_process`` for the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

try:
    import torch
    from megatron.core import parallel_state
    from megatron.core.utils import get_attr_wrapped_model, get_model_config
except ImportError as error:  # pragma: no cover
    raise ImportError("pipeplan.megatron needs Megatron-Core: pip install megatron-core") from error

from ._results import Plan
from .torch._program import Step
from .torch._schedule import PlanSchedule, _Run

__all__ = ["forward_backward_func"]


def forward_backward_func(plan: Plan | str) -> Callable[..., list]:
    """The function that runs one training step by ``plan``.

    A bidirectional placement is refused: two ranks would hold each stage, which Megatron-Core's gradient sync does not know.
    The layers of Megatron-Core compute both gradients of a backward at once: where the plan splits it, B computes both, and W
    nothing. Outputs are not deallocated after they are sent.
    """
    if not isinstance(plan, Plan):
        plan = Plan(plan) if plan.lstrip().startswith("{") else Plan.load(plan)
    if plan.slices > 1:
        raise ValueError(f"the plan cuts sequences into {plan.slices} slices (parallel.sequence_slices), which is planned and not run")
    if any(plan.copies):
        raise ValueError("the schedule copies activations to the host (training.offload = \"scheduled\"), which PyTorch is not told: plan without")
    if any(len(stage.ranks) > 1 for stage in plan.stages):
        raise ValueError(f"{plan.schedule}: a bidirectional placement holds each stage twice, which Megatron-Core does not know")
    return _TrainStep(plan)


class _TrainStep:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._schedule: _Schedule | None = None
        #: The steps of the program that ran in the last call, as the plan writes them.
        self.ran: list[str] = []

    def __call__(
        self,
        *,
        forward_step_func: Callable[..., Any],
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        **others: Any,
    ) -> list:
        plan = self._plan
        if num_microbatches != plan.microbatches:
            raise ValueError(f"the plan has {plan.microbatches} microbatches; num_microbatches is {num_microbatches}")
        chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        if self._schedule is None or list(self._schedule.stages.values()) != chunks:
            self._schedule = _Schedule(plan, chunks)
        config = get_model_config(chunks[0])
        length = seq_length // parallel_state.get_context_parallel_world_size()
        if config.sequence_parallel:
            length //= parallel_state.get_tensor_model_parallel_world_size()
        meta = [((length, micro_batch_size, config.hidden_size), config.pipeline_dtype or config.params_dtype)]
        self._schedule._metas = {stage: meta for stage in range(len(plan.stages))}
        iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator] * len(chunks)
        run = _MegatronRun(self._schedule, config, forward_step_func, iterators, forward_only, collect_non_loss_data)
        self.ran = run.run()
        if not forward_only and config.finalize_model_grads_func is not None:
            tokens = run.tokens if config.calculate_per_token_loss else None
            config.finalize_model_grads_func(chunks, tokens)
        return run.store


class _Schedule(PlanSchedule):
    """A rank's chunks on the pipeline group of Megatron-Core."""

    def __init__(self, plan: Plan, chunks: list[torch.nn.Module]) -> None:
        super().__init__(plan, chunks, _no_loss, group=parallel_state.get_pipeline_model_parallel_group())
        #: The ops after which each chunk's gradients are whole: the last B or BW, and the last W.
        self.last_ops = {}
        for op in plan.ops[self.rank]:
            if op.kind != "F":
                self.last_ops[op.stage, op.kind == "W"] = op

    def _named(self, stages: Any, numbers: list[int]) -> dict[int, torch.nn.Module]:
        if len(stages) != len(numbers):
            raise ValueError(f"the plan puts stages {numbers} on rank {self.rank}; the model has {len(stages)} chunks")
        return dict(zip(numbers, stages))


def _no_loss(output: Any, target: Any) -> torch.Tensor:
    raise AssertionError("Megatron's forward step brings its loss")


class _MegatronRun(_Run):
    def __init__(self, schedule: _Schedule, config: Any, forward_step: Any, iterators: list, forward_only: bool,
                 collect: bool) -> None:
        super().__init__(schedule, [], None, None, False)
        self._config, self._forward_step = config, forward_step
        self._forward_only, self._collect = forward_only, collect
        self._share = 1.0  # the loss is divided as Megatron does
        self.store: list = []
        self.tokens: Any = torch.zeros([], dtype=torch.int, device=schedule.device)
        # A plan may run microbatches in any order: each stage's batches are taken by their number.
        count = schedule.plan.microbatches
        self._batches: dict[int, list | None] = {}
        for stage, iterator in zip(schedule.stages, iterators):
            shared = [s for s, other in zip(schedule.stages, iterators) if other is iterator and s in self._batches]
            if iterator is None or shared:
                self._batches[stage] = None if iterator is None else self._batches[shared[0]]
            else:
                self._batches[stage] = [next(iterator) for _ in range(count)]
        no_sync = config.no_sync_func
        chunks = no_sync if isinstance(no_sync, list) else [no_sync] * len(schedule.stages)
        self._no_sync = dict(zip(schedule.stages, chunks))

    def run(self) -> list[str]:
        ran = []
        schedule: Any = self._schedule
        if self._forward_only:
            with torch.no_grad():
                for step in schedule._program:
                    if self._is_forward(step):
                        self.execute(step)
                        ran.append(step.text)
            return ran
        for step in schedule._program:
            with ExitStack() as scope:
                op = step.op
                if op is not None and op.kind != "F" and op != schedule.last_ops[op.stage, op.kind == "W"]:
                    no_sync = self._no_sync[op.stage]
                    scope.enter_context(no_sync() if no_sync is not None else nullcontext())
                if step.kind != "optimizer":
                    self.execute(step)
            ran.append(step.text)
        return ran

    @staticmethod
    def _is_forward(step: Step) -> bool:
        if step.op is not None:
            return step.op.kind == "F"
        return step.kind != "optimizer"

    def _start(self, messages: tuple) -> None:
        super()._start(self._passed(messages))

    def _wait(self, messages: tuple) -> None:
        super()._wait(self._passed(messages))

    def _passed(self, messages: tuple) -> tuple:
        return tuple(m for m in messages if m.payload == "F") if self._forward_only else messages

    def _forward(self, stage: int, k: int) -> None:
        schedule, config = self._schedule, self._config
        model = schedule.stages[stage]
        inputs = []
        if stage > 0:
            inputs = [tensor.detach().requires_grad_(not self._forward_only) for tensor in self._inbox.pop((stage, "F", k))]
        get_attr_wrapped_model(model, "set_input_tensor")([inputs[0] if inputs else None])
        batches = self._batches[stage]
        output, loss_func = self._forward_step(None if batches is None else iter([batches[k]]), model)
        if config.num_moe_experts is not None:
            self._scale_aux_loss(output.device)
        if stage == schedule._last:
            if self._collect:
                self.store.append(loss_func(output, non_loss_data=True))
                return
            output = self._loss(loss_func(output))
        if not self._forward_only:
            self._graphs[stage, k] = (inputs, [output])
        if stage < schedule._last:
            self._hand_over(stage, "F", k, stage + 1, [output.detach()])

    def _loss(self, said: tuple) -> torch.Tensor:
        """The loss as it is differentiated: over the microbatches, and scaled."""
        config, count = self._config, self._schedule.plan.microbatches
        loss, *tokens, reported = said
        self.store.append(reported)
        if tokens:
            self.tokens = self.tokens + tokens[0].detach().to(torch.int)
            if not config.calculate_per_token_loss:
                loss = loss / torch.clamp(tokens[0], min=1) / count
        else:
            loss = loss * parallel_state.get_context_parallel_world_size() / count
        return config.grad_scale_func(loss) if config.grad_scale_func is not None else loss

    def _scale_aux_loss(self, device: torch.device) -> None:
        from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

        scale = torch.ones(1, device=device)
        if self._config.grad_scale_func is not None:
            scale = self._config.grad_scale_func(scale)
        per_token = self._config.calculate_per_token_loss
        MoEAuxLossAutoScaler.set_loss_scale(scale if per_token else scale / self._schedule.plan.microbatches)
