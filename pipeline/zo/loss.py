"""Cross-entropy from int8 logits, in integers, so that a microcontroller and the host get the same number.

The logits are l_c * s real units. With k_c = max(l) - l_c >= 0 the loss of a sample of class y is
    ln S + k_y s,   S = sum over c of exp(-k_c s),
where exp comes from a table of 256 entries and the logarithm from repeated squaring (squaring doubles a logarithm, so
its integer part yields one more bit). Error against float64: below 1e-4 nats.
"""

from __future__ import annotations

import math

import numpy as np

LN2_Q30 = round(math.log(2) * (1 << 30))
FRACTION_BITS = 20


def make_table(scale: float) -> tuple[np.ndarray, int]:
    """The constants of an output scale.

    Args:
        scale: real units of one logit step, 0 < scale < 16 (so that 255 steps in Q50 fit 64 bits).

    Returns:
        exp, uint32 [256], exp[k] = round(2^24 exp(-k scale)), and the scale in Q24.

    Raises:
        ValueError: when the scale is out of range.
    """
    if not 0.0 < scale < 16.0:
        raise ValueError(f"the scale of the logits is {scale}; the integer loss needs 0 < scale < 16")
    exp = [round((1 << 24) * math.exp(-k * float(scale))) for k in range(256)]
    return np.array(exp, dtype=np.uint32), round(float(scale) * (1 << 24))


def log2_q20(s: np.ndarray) -> np.ndarray:
    """floor-like log2 of s / 2^24 in Q20 (int64) for uint64 s with 2^24 <= s < 2^53."""
    exponent = np.frexp(s.astype(np.float64))[1].astype(np.int64) - 1  # exact below 2^53
    right = np.maximum(exponent - 31, 0).astype(np.uint64)
    left = np.maximum(31 - exponent, 0).astype(np.uint64)
    m = (s >> right) << left  # Q31 in [1, 2)
    fraction = np.zeros_like(exponent)
    for _ in range(FRACTION_BITS):
        m = (m * m) >> np.uint64(31)
        bit = m >> np.uint64(32)
        m >>= bit
        fraction = fraction << 1 | bit.astype(np.int64)
    return ((exponent - 24) << FRACTION_BITS) | fraction


def sample_losses(logits: np.ndarray, labels: np.ndarray, exp: np.ndarray, scale_q24: int) -> np.ndarray:
    """The loss of every sample, uint32 [n], in Q16 nats.

    Args:
        logits: int8 [n, classes].
        labels: integers [n], 0 <= label < classes.
        exp: uint32 [256] from make_table.
        scale_q24: from make_table.
    """
    logits = np.asarray(logits, dtype=np.int64)
    k = logits.max(axis=1, keepdims=True) - logits
    total = log2_q20(exp[k].astype(np.uint64).sum(axis=1)) * LN2_Q30  # Q50
    k_label = k[np.arange(len(k)), np.asarray(labels, dtype=np.int64)]
    total += (k_label * scale_q24) << 26  # Q24 -> Q50
    return ((total + (1 << 33)) >> 34).astype(np.uint32)


def count_correct(logits: np.ndarray, labels: np.ndarray) -> int:
    """Samples whose label is the lowest index of the largest logit."""
    return int(np.count_nonzero(np.argmax(logits, axis=1) == labels))
