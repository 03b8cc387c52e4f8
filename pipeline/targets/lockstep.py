"""Two targets side by side: every command goes to both, and the first reply that differs ends the run, by name.

Losses may differ by a tolerance where the first target has a compiled network. Its replies are what the run sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace

import numpy as np

from converters.errors import UserError
from pipeline.cli import count
from pipeline.targets import tolerance
from pipeline.targets.target import NPU, BatchLoss, Probe, Target, TargetInfo, Update, UpdateResult, board_title


class Lockstep:
    """A target that is `first`, checked against `second` until `steps` updates have passed."""

    def __init__(self, first: Target, second: Target, steps: int) -> None:
        self._first, self._second = first, second
        self._steps, self._done, self._finished = steps, 0, False
        self._tolerant, self._selected, self._furthest = first.info.runner == NPU, 0, 0.0
        for quantity in ("image_crc", "weights_crc", "weights", "mu_max", "classes", "sample_bytes"):
            self._same(quantity, getattr(first.info, quantity), getattr(second.info, quantity))

    @property
    def info(self) -> TargetInfo:
        a, b = self._first.info, self._second.info
        return replace(a, capacity=min(a.capacity, b.capacity), max_batch=min(a.max_batch, b.max_batch))

    def write_samples(self, first: int, pixels: np.ndarray, labels: np.ndarray) -> None:
        self._both("write_samples", first, pixels, labels)

    def select(self, slots: Sequence[int]) -> None:
        self._selected = len(slots)
        self._both("select", slots)

    def loss(self) -> BatchLoss:
        return self._both("loss")

    def probe(self, seed: int, mu: int) -> Probe:
        return self._both("probe", seed, mu)

    def probe_plus(self, seed: int, mu: int) -> BatchLoss:
        return self._both("probe_plus", seed, mu)

    def update(self, update: Update) -> UpdateResult:
        result = self._both("update", update)
        self._done += 1
        self._finished = self._finished or self._done == self._steps
        return result

    def weights_crc(self) -> int:
        return self._both("weights_crc")

    def refresh(self) -> TargetInfo:
        self._first.refresh()
        return self.info

    def read_tflite(self) -> bytes:
        return self._both("read_tflite")

    def reset_weights(self) -> int:
        crc = self._both("reset_weights")
        self._done = 0
        return crc

    def close(self) -> None:
        try:
            self._first.close()
        finally:
            self._second.close()

    def verdict(self, steps: int) -> str:
        """What came of so many steps that were compared, in a sentence."""
        board, twin = board_title(self._first.info.board), board_title(self._second.info.board)
        if not self._tolerant:
            return f"{board} and {twin} gave equal replies for {count(steps, 'step')}"
        return (
            f"{board} and {twin} had equal weights for {count(steps, 'step')}, and losses within the tolerance for an "
            f"NPU's rounding (the furthest apart used {100 * self._furthest:.0f} % of it; for 64 samples it is "
            f"{tolerance.of_loss(64):.3f} nats a sample)"
        )

    def _both(self, command: str, *arguments: object) -> object:
        reply = getattr(self._first, command)(*arguments)
        if not self._finished:
            self._same(command, reply, getattr(self._second, command)(*arguments))
        return reply

    def _is_close(self, quantity: str, a: object, b: object) -> bool:
        """Whether losses are within the tolerance; raises UserError where they are not. False for anything else."""
        if isinstance(a, Probe) and isinstance(b, Probe):
            return self._is_close(f"{quantity}.plus", a.plus, b.plus) and self._is_close(
                f"{quantity}.minus", a.minus, b.minus
            )
        if not (isinstance(a, BatchLoss) and isinstance(b, BatchLoss)):
            return False
        n = self._selected
        by, allowed = abs(a.loss - b.loss) / 65536 / n, tolerance.of_loss(n)
        right, right_allowed = abs(a.correct - b.correct), tolerance.of_right(n)
        self._furthest = max(self._furthest, by / allowed)
        if by <= allowed and right <= right_allowed:
            return True
        one, other = self._first.info.board, self._second.info.board
        raise UserError(
            f"lockstep: in step {self._done + 1}, {quantity} of {count(n, 'sample')} differs by {by:.3f} nats a sample "
            f"and {right} right ones between {one} and {other}, where an NPU's rounding explains {allowed:.3f} and "
            f"{right_allowed}: the NPU sees other weights or inputs (layouts, caches; docs/neural_art.md)."
        )

    def _same(self, quantity: str, a: object, b: object) -> None:
        if a == b or (self._tolerant and self._is_close(quantity, a, b)):
            return
        while is_dataclass(a):  # down to the field that differs
            name = next(f.name for f in fields(a) if getattr(a, f.name) != getattr(b, f.name))
            quantity, a, b = f"{quantity}.{name}", getattr(a, name), getattr(b, name)
        if isinstance(a, bytes) and isinstance(b, bytes):
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            quantity, a, b = f"{quantity} at byte {at}", a[at : at + 4].hex(), b[at : at + 4].hex()
        one, other = self._first.info.board, self._second.info.board
        raise UserError(
            f"lockstep: first difference in step {self._done + 1}, {quantity}: {one} has {a}, {other} has {b}."
        )
