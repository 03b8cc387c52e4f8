"""What happens to the weights: probing one direction, and applying one step. numpy, one screen, exact.

Directions are Rademacher (z in {-1, +1}), as in Spall's simultaneous perturbation (IEEE TAC 37, 1992), and are made
again from their seed whenever they are needed, as in MeZO (Malladi et al., NeurIPS 2023, arXiv 2305.17333), so there is
no gradient, no direction and no copy of the weights in memory. Unlike both, everything is an integer: weights are int8
and move in units of their own LSB, coefficients are Q16 fractions of an LSB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.zo import philox

NEAREST = "nearest"
STOCHASTIC = "stochastic"
MAX_COEFFICIENT = 1 << 24
MAX_DIRECTIONS = 64  # so that |sum of c_j z_j| <= 2**30 fits an int32


def perturb(weights: np.ndarray, seed: int, k: int) -> np.ndarray:
    """w + k z for the direction z of the seed, int8 [d].

    The caller keeps |w| <= 127 - |k| (headroom): then nothing saturates, and perturb(., seed, -k) undoes it exactly.
    """
    return weights + np.int8(k) * philox.signs(seed, 0, weights.size)


def combine(seeds: Sequence[int], coefficients: Sequence[int], count: int) -> np.ndarray:
    """a_i = sum over j of c_j z_ji, int32 [count], in Q16 LSB.

    z = 2 bit - 1, hence a = 2 (sum of c_j over set bits) - sum of c_j; the partial sums stay below 2**30 either way.
    """
    a = np.zeros(count, dtype=np.int32)
    for seed, c in zip(seeds, coefficients, strict=True):
        a += np.array([-c, c], dtype=np.int32)[philox.sign_bits(seed, 0, count)]
    return a


def apply_update(
    weights: np.ndarray,
    mu_max: int,
    rounding: str,
    rounding_seed: int,
    seeds: Sequence[int],
    coefficients: Sequence[int],
) -> tuple[np.ndarray, int, int]:
    """One step: w <- clamp(w - round(a)), with all directions at once.

    Args:
        weights: int8 [d], |w| <= 127 - mu_max.
        mu_max: the largest probe that must stay possible; weights stay within +-(127 - mu_max).
        rounding: NEAREST, (a + 2^15) >> 16, or STOCHASTIC, (a + r) >> 16 with 16 random bits r a weight.
        rounding_seed: the seed of r; ignored by NEAREST.
        seeds: one 64-bit seed a direction, 1 to 64 of them.
        coefficients: one int32 a direction in Q16 LSB, |c| <= 2^24.

    Returns:
        The new weights int8 [d], how many changed, and how many are at +-(127 - mu_max) now.

    Raises:
        ValueError: for arguments outside of these limits.
    """
    if not 1 <= len(seeds) <= MAX_DIRECTIONS or len(seeds) != len(coefficients):
        raise ValueError(f"{len(seeds)} seeds and {len(coefficients)} coefficients; 1 to {MAX_DIRECTIONS} pairs needed")
    if any(abs(c) > MAX_COEFFICIENT for c in coefficients):
        raise ValueError(f"a coefficient is above {MAX_COEFFICIENT}: {list(coefficients)}")
    a = combine(seeds, coefficients, weights.size)
    if rounding == NEAREST:
        a += np.int32(1 << 15)
    elif rounding == STOCHASTIC:
        a += philox.rounding_bits(rounding_seed, 0, weights.size)
    else:
        raise ValueError(f"rounding is {rounding!r}, not {NEAREST!r} or {STOCHASTIC!r}")
    rail = 127 - mu_max
    new = np.clip(weights - (a >> np.int32(16)), -rail, rail).astype(np.int8)
    return new, int(np.count_nonzero(new != weights)), int(np.count_nonzero(np.abs(new) == rail))
