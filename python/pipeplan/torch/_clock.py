"""The times of the steps of a program: of the host, or of a GPU's stream by CUDA events."""

from __future__ import annotations

import time

import torch


class Clock:
    """Start and end of each step of a program, in ns from the start of the training step."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._times: list = []

    def _now(self):
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.monotonic_ns()

    def begin(self) -> None:
        """The training step starts."""
        self._times = []
        self._zero = self._now()

    def start(self) -> None:
        """A step of the program starts."""
        self._started = self._now()

    def end(self) -> None:
        """It ends."""
        self._times.append((self._started, self._now()))

    def finish(self) -> list[tuple[int, int]]:
        """The times of all steps."""
        if not self._on_gpu:
            return [(start - self._zero, end - self._zero) for start, end in self._times]
        torch.cuda.synchronize()
        # Events tell milliseconds.
        ns = [tuple(max(0, round(1e6 * self._zero.elapsed_time(event))) for event in pair) for pair in self._times]
        return [(start, max(start, end)) for start, end in ns]
