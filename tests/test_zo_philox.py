"""Philox against Random123's known answers and against the scalar definition; the streams drawn from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.zo import philox

SEEDS = st.integers(0, 2**64 - 1)

# "philox4x32 10" of Random123's tests/kat_vectors: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def scalar_philox(counter, key):
    """Section 3.3 of the paper, word by word in Python integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, (key & 0xFFFFFFFF, key >> 32)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter, key, answer):
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, answer)]
    result = philox.philox4x32(np.array(words[0], dtype=np.uint32), words[1][1] << 32 | words[1][0])
    assert result.dtype == np.uint32
    assert result.tolist() == words[2]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), SEEDS)
def test_vectorised_equals_scalar(counter, key):
    assert philox.philox4x32(np.array([counter, counter[::-1]], dtype=np.uint32), key).tolist() == [
        scalar_philox(counter, key),
        scalar_philox(counter[::-1], key),
    ]


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 5000), st.integers(1, 600))
def test_bits_of_a_weight_by_definition(seed, first, count):
    signs = philox.signs(seed, first, count)
    rounding = philox.rounding_bits(seed, first, count)
    assert signs.dtype == np.int8 and signs.shape == (count,)
    assert rounding.dtype == np.uint16 and rounding.shape == (count,)
    for i in {first, first + count // 2, first + count - 1}:
        word = scalar_philox((i // 128, 0, 0, 0), seed)[i // 32 % 4]
        assert signs[i - first] == (1 if word >> (i % 32) & 1 else -1)
        half = i % 8
        assert rounding[i - first] == scalar_philox((i // 8, 1, 0, 0), seed)[half // 2] >> 16 * (half % 2) & 0xFFFF


def test_signs_are_balanced_and_directions_unrelated():
    a, b = (philox.signs(seed, 0, 100_000).astype(int) for seed in philox.direction_seeds(7, 3, 2))
    assert abs(a.sum()) < 1500 and abs((a * b).sum()) < 1500  # under 5 standard deviations


@given(SEEDS, st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_derived_seeds(run_seed, step, direction):
    low, high, *_ = scalar_philox((step, direction, 2, 0), run_seed)
    assert philox.derive_seed(run_seed, step, direction, philox.DIRECTION_SEEDS) == high << 32 | low
    low, high, *_ = scalar_philox((step, 0, 3, 0), run_seed)
    assert philox.rounding_seed(run_seed, step) == high << 32 | low


def test_direction_seeds_do_not_depend_on_q():
    assert philox.direction_seeds(1, 2, 8)[:3] == philox.direction_seeds(1, 2, 3)
    assert len(set(philox.direction_seeds(1, 2, 64))) == 64


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 1000), st.integers(1, 300))
def test_epoch_order(run_seed, epoch, n):
    words = [scalar_philox((i // 4, epoch, 4, 0), run_seed)[i % 4] for i in range(n)]
    assert philox.epoch_order(run_seed, epoch, n).tolist() == sorted(range(n), key=words.__getitem__)
