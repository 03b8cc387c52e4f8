"""Probe and update against a definition in Python integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.zo import philox, update

SEEDS = st.integers(0, 2**64 - 1)
COEFFICIENTS = st.one_of(
    st.integers(-(1 << 24), 1 << 24), st.integers(-70_000, 70_000), st.sampled_from([0, 1 << 15, -(1 << 15), 1 << 24])
)


def weights_within(limit, count, seed=0):
    """Random weights that include both rails."""
    w = np.random.default_rng(seed).integers(-limit, limit + 1, count).astype(np.int8)
    w[:2] = limit, -limit
    return w


@given(SEEDS, st.integers(1, 4))
def test_probe_is_undone_in_place(seed, mu):
    w = weights_within(127 - 4, 300)
    plus = update.perturb(w, seed, mu)
    assert np.array_equal(plus.astype(int), w + mu * philox.signs(seed, 0, 300).astype(int))
    minus = update.perturb(plus, seed, -2 * mu)
    assert np.array_equal(minus.astype(int), w - mu * philox.signs(seed, 0, 300).astype(int))
    assert np.array_equal(update.perturb(minus, seed, mu), w)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SEEDS, COEFFICIENTS), min_size=1, max_size=64),
    st.sampled_from([update.NEAREST, update.STOCHASTIC]),
    SEEDS,
    st.integers(1, 8),
)
def test_update_by_definition(directions, rounding, rounding_seed, mu_max):
    w = weights_within(127 - mu_max, 150)
    seeds, coefficients = zip(*directions, strict=True)
    new, changed, at_rail = update.apply_update(w, mu_max, rounding, rounding_seed, seeds, coefficients)
    z = [philox.signs(seed, 0, w.size).tolist() for seed in seeds]
    r = philox.rounding_bits(rounding_seed, 0, w.size).tolist()
    limit = 127 - mu_max
    expected = []
    for i in range(w.size):
        a = sum(c * zj[i] for c, zj in zip(coefficients, z, strict=True))
        u = (a + (1 << 15 if rounding == update.NEAREST else r[i])) >> 16
        expected.append(max(-limit, min(limit, int(w[i]) - u)))
    assert new.tolist() == expected
    assert changed == sum(a != b for a, b in zip(expected, w.tolist(), strict=True))
    assert at_rail == sum(abs(a) == limit for a in expected)


def test_zero_coefficients_change_nothing():
    w = weights_within(123, 1000)
    for rounding in (update.NEAREST, update.STOCHASTIC):
        new, changed, _ = update.apply_update(w, 4, rounding, 5, (1, 2), (0, 0))
        assert changed == 0 and np.array_equal(new, w)


def test_stochastic_rounding_is_unbiased():
    w = np.zeros(200_000, dtype=np.int8)
    new, *_ = update.apply_update(w, 4, update.STOCHASTIC, 11, (3,), (65536 // 4,))
    moved = -new.astype(float) * philox.signs(3, 0, w.size)
    assert abs(moved.mean() - 0.25) < 0.005  # 5 standard deviations


@pytest.mark.parametrize(
    ("seeds", "coefficients", "rounding"),
    [
        ((), (), "nearest"),
        ((1,) * 65, (1,) * 65, "nearest"),
        ((1,), (1, 2), "nearest"),
        ((1,), ((1 << 24) + 1,), "nearest"),
        ((1,), (1,), "up"),
    ],
)
def test_limits(seeds, coefficients, rounding):
    with pytest.raises(ValueError):
        update.apply_update(np.zeros(8, np.int8), 4, rounding, 0, seeds, coefficients)
