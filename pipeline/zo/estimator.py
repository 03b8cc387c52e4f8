"""From measured losses to the coefficients of one step.

Two-sided (SPSA: Spall, IEEE TAC 37, 1992):   D_j = L(w + mu z_j) - L(w - mu z_j)
One-sided (the same with L(w) in place of one side):   D_j = 2 (L(w + mu z_j) - L(w))

The step in LSB is u = lr * sum_j D_j z_j / sqrt(q * EMA(mean of D^2)): lr is the RMS of u, whatever the network, the
loss or mu. The losses are sums over the batch and exact integers; the rest is a handful of float64 scalars in a fixed
order, evaluated on the host alone and logged, so nothing depends on another machine's rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.zo.update import MAX_COEFFICIENT

TWO_SIDED = "two-sided"
ONE_SIDED = "one-sided"
DECAY = 0.9


def two_sided(plus: int, minus: int) -> int:
    """D of one direction from the losses at w + mu z and w - mu z."""
    return plus - minus


def one_sided(plus: int, base: int) -> int:
    """D of one direction from the losses at w + mu z and w; on the same scale as two_sided."""
    return 2 * (plus - base)


def passes(estimator: str, q: int, batch: int) -> int:
    """Forward passes of a step: two a direction and sample, or one, plus one a sample for L(w)."""
    return (2 * q if estimator == TWO_SIDED else q + 1) * batch


@dataclass(frozen=True)
class Step:
    """The coefficients of a step (int32, Q16 LSB), the new moving average, and how many coefficients were saturated."""

    coefficients: tuple[int, ...]
    ema: float
    saturated: int


def coefficients(differences: Sequence[int], ema: float, lr: float) -> Step:
    """c_j = round(2^16 lr D_j / sqrt(q EMA)), ties to even, saturated at +-2^24.

    Args:
        differences: D_j of the q directions.
        ema: the moving average of D^2 before this step; 0.0 where there is none yet.
        lr: RMS of the step in LSB.

    The average starts at the first m = sum D^2 / q, is updated before it is used, and is left alone when m = 0 (then
    all coefficients are 0, which is a valid step).
    """
    q = len(differences)
    m = sum(d * d for d in differences) / q  # Python integers: exact up to this one division
    if m == 0.0:
        return Step((0,) * q, ema, 0)
    ema = DECAY * ema + (1.0 - DECAY) * m if ema else m
    raw = [round(65536.0 * lr * d / math.sqrt(q * ema)) for d in differences]
    clipped = tuple(max(-MAX_COEFFICIENT, min(c, MAX_COEFFICIENT)) for c in raw)
    return Step(clipped, ema, sum(a != b for a, b in zip(raw, clipped, strict=True)))
