"""The step size over the budget, and its coupling to q. Both are written into a run's config, because comparisons of q
that do not state them mostly measure the learning rate: a step makes progress ~ lr sqrt(q) and noise ~ lr^2, and there
are ~ 1/q steps, so at constant lr raising q *is* lowering the learning rate.
"""

from __future__ import annotations

import math

CONSTANT, HALF, COSINE = LR_SCHEDULES = ("constant", "half", "cosine")
NONE, SQRT = COUPLINGS = ("none", "sqrt")
COSINE_FLOOR = 0.25
REFERENCE_Q = 8


def step_size(lr: float, schedule: str, coupling: str, progress: float, q: int) -> float:
    """RMS of a step in LSB.

    Args:
        lr: the initial step size, as it is for q = 8.
        schedule: "constant"; "half", linear down to lr / 2; "cosine", half a cosine from lr down to lr / 4.
        coupling: "none", or "sqrt": times sqrt(q / 8).
        progress: the part of the budget that is used, 0 to 1.
        q: directions of this step.
    """
    if schedule == HALF:
        lr *= 1.0 - 0.5 * progress
    elif schedule == COSINE:
        lr *= COSINE_FLOOR + (1.0 - COSINE_FLOOR) * 0.5 * (1.0 + math.cos(math.pi * progress))
    elif schedule != CONSTANT:
        raise ValueError(f"no step-size schedule {schedule!r}; there are {', '.join(LR_SCHEDULES)}")
    if coupling == SQRT:
        lr *= math.sqrt(q / REFERENCE_Q)
    elif coupling != NONE:
        raise ValueError(f"no coupling {coupling!r}; there are {', '.join(COUPLINGS)}")
    return lr
