"""How many directions q a step takes: QScheduler and its baselines behind one interface, as pure state in, state out.

The signal is the mean training loss over a *window*, taken from the losses that the estimator measures anyway, and q
changes at the end of a window only. A window covers every sample of the on-device set equally often: over shorter ones
the noise of minibatches looks like a plateau, and q runs away to its maximum.

QScheduler is named after arXiv 2607.18802, of which only the abstract is known to us: q is adapted to training
progress, because few directions make noisy gradients that plateau early and many cost compute. The rule here is OURS,
measured by us (docs/method.md), not a reproduction of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from pipeline.zo.update import MAX_DIRECTIONS

MIN_WINDOW = 16


@dataclass(frozen=True)
class QState:
    """The q of the next step, and the loss of the last window for the rules that look at it."""

    q: int
    previous: float | None = None


class QSchedule(Protocol):
    """A rule for q."""

    def start(self) -> QState:
        """The state before the first step."""

    def window_end(self, state: QState, loss: float, progress: float) -> QState:
        """The state after a window with this mean loss (nats a sample), at this part (0 to 1) of the budget."""


@dataclass(frozen=True)
class QScheduler:
    """Doubles q whenever the loss of a window is no lower than that of the window before."""

    initial: int = 4
    maximum: int = 32
    factor: int = 2

    def __post_init__(self) -> None:
        _check(self.initial, self.maximum)

    def start(self) -> QState:
        return QState(self.initial)

    def window_end(self, state: QState, loss: float, progress: float) -> QState:
        falling = state.previous is None or loss < state.previous
        return QState(state.q if falling else min(state.q * self.factor, self.maximum), previous=loss)


@dataclass(frozen=True)
class FixedQ:
    """The same q throughout."""

    q: int = 8

    def __post_init__(self) -> None:
        _check(self.q, self.q)

    def start(self) -> QState:
        return QState(self.q)

    def window_end(self, state: QState, loss: float, progress: float) -> QState:
        return state


@dataclass(frozen=True)
class LinearQ:
    """From initial to maximum in proportion to the budget used (MeZO's `linear` schedule, with a start of its own)."""

    initial: int = 4
    maximum: int = 16

    def __post_init__(self) -> None:
        _check(self.initial, self.maximum)

    def start(self) -> QState:
        return QState(self.initial)

    def window_end(self, state: QState, loss: float, progress: float) -> QState:
        return replace(state, q=self.initial + math.floor(progress * (self.maximum - self.initial)))


@dataclass(frozen=True)
class AdaZetaQ:
    """q = floor(a e^b), at least 1 and at most maximum, after AdaZeta (Yang et al., EMNLP 2024, arXiv 2406.18060).

    There e counts epochs and b = ln(n / a) / ln(E) for E epochs in all. A budget of forward passes does not say how
    many epochs it buys, so e runs from 1 to `stages` in proportion to the budget used.
    """

    maximum: int = 32
    a: float = 0.85
    n: int = 20
    stages: int = 21

    def __post_init__(self) -> None:
        _check(1, self.maximum)

    def start(self) -> QState:
        return QState(self._q(0.0))

    def window_end(self, state: QState, loss: float, progress: float) -> QState:
        return replace(state, q=self._q(progress))

    def _q(self, progress: float) -> int:
        stage = 1.0 + progress * (self.stages - 1)
        exponent = math.log(self.n / self.a) / math.log(self.stages)
        return min(max(math.floor(self.a * stage**exponent), 1), self.maximum)


def _check(initial: int, maximum: int) -> None:
    if not 1 <= initial <= maximum <= MAX_DIRECTIONS:
        raise ValueError(f"q must go from at least 1 to at most {MAX_DIRECTIONS}, not from {initial} to {maximum}")


def window_length(samples: int, batch: int) -> int:
    """Steps in a window: one epoch, or as many whole epochs as make at least 16 steps."""
    epoch = -(-samples // batch)
    return epoch * -(-MIN_WINDOW // epoch)


@dataclass(frozen=True)
class Window:
    """The losses of the steps since the last window ended: Q16 nats and the samples they were summed over."""

    length: int
    steps: int = 0
    loss: int = 0
    samples: int = 0

    def add(self, loss: int, samples: int) -> tuple[Window, float | None]:
        """The window after one more step, and its mean loss in nats a sample where that step ends it."""
        full = replace(self, steps=self.steps + 1, loss=self.loss + loss, samples=self.samples + samples)
        if full.steps < self.length:
            return full, None
        return Window(self.length), full.loss / full.samples / 65536.0
