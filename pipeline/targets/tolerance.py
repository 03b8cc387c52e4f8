"""How far the forward passes of a network compiled for an NPU may be from TFLite's; those of others are equal.

An NPU rounds in its own way: op by op by at most 1, but through a deep network such differences spread. The bounds are
one and a half to four times what a simulation of the rounding shows (docs/neural_art.md). Weights, their checksums and
what an update reports are integers that no forward pass enters: always equal.
"""

from __future__ import annotations

import math

MEAN_LSB, MOST_LSB = 3.0, 24  # of logits: on average, and of each
LOSS_BIAS, LOSS_SPREAD = 0.02, 1.5  # nats: of the mean of many samples, and of one


def of_logits(mean: float, largest: int) -> bool:
    """Whether logits that are so far apart (LSB), on average and at most, may be."""
    return mean <= MEAN_LSB and largest <= MOST_LSB


def of_loss(samples: int) -> float:
    """Nats a sample that the mean loss of so many samples may differ: single differences cancel in part."""
    return LOSS_BIAS + LOSS_SPREAD / math.sqrt(samples)


def of_right(samples: int) -> int:
    """By how many the number that is right may differ."""
    return math.ceil(math.sqrt(samples))
