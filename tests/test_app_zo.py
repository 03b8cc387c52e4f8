"""The C app's Philox, probe, update, loss and CRC against their numpy references, bit for bit."""

import ctypes as ct
import math
import zlib

import numpy as np
import pytest
from app_library import DeviceWeights, LossTable, library
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.zo import loss as zo_loss
from pipeline.zo import philox, update

SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def device_weights(draw, largest=700):
    """Weights at and around the rails, in one to four segments at any alignment."""
    counts = draw(st.lists(st.integers(1, largest), min_size=1, max_size=4))
    gaps = draw(st.lists(st.integers(0, 9), min_size=len(counts), max_size=len(counts)))
    mu_max = draw(st.integers(1, 16))
    rail = 127 - mu_max
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.integers(-rail, rail + 1, sum(counts)).astype(np.int8)
    at_rail = rng.random(weights.size) < 0.3
    weights[at_rail] = rng.choice(np.array([-rail, rail], np.int8), at_rail.sum())
    return DeviceWeights(weights, counts, gaps, mu_max), weights, mu_max


# Random123's known answers (kat_vectors) have counters and keys that the app never forms: its counters end in two
# zeros. Those are checked on the numpy reference (test_zo_philox.py); here C must equal it on the counters in use.
@given(SEEDS, st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_philox_equals_reference(seed, block, stream):
    words = (ct.c_uint32 * 4)()
    library().philox4x32(seed, block, stream, words)
    expected = philox.philox4x32(np.array([block, stream, 0, 0], np.uint32), seed)
    assert list(words) == expected.tolist()


def test_philox_known_answer():
    words = (ct.c_uint32 * 4)()
    library().philox4x32(0, 0, 0, words)
    assert list(words) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@given(device_weights(), SEEDS, st.data())
def test_probe_equals_reference_and_restores_every_byte(case, seed, data):
    device, weights, mu_max = case
    mu = data.draw(st.integers(1, mu_max))
    before = device.memory.copy()
    device.perturb(seed, mu)
    np.testing.assert_array_equal(device.read(), update.perturb(weights, seed, mu))
    device.perturb(seed, -2 * mu)
    np.testing.assert_array_equal(device.read(), update.perturb(weights, seed, -mu))
    device.perturb(seed, mu)
    np.testing.assert_array_equal(device.memory, before)


def assert_update_equals_reference(case, stochastic, rounding_seed, seeds, coefficients):
    device, weights, mu_max = case
    result = device.update(stochastic, rounding_seed, seeds, coefficients)
    rounding = update.STOCHASTIC if stochastic else update.NEAREST
    expected, changed, at_rail = update.apply_update(weights, mu_max, rounding, rounding_seed, seeds, coefficients)
    np.testing.assert_array_equal(device.read(), expected)
    assert (result.changed, result.at_rail) == (changed, at_rail)
    assert device.crc() == zlib.crc32(expected.tobytes())


@given(device_weights(), st.booleans(), SEEDS, st.data())
def test_update_equals_reference(case, stochastic, rounding_seed, data):
    limit = 2**24
    some = st.one_of(st.sampled_from([0, 1, -1, limit, -limit]), st.integers(-(2**18), 2**18))
    pairs = data.draw(st.lists(st.tuples(SEEDS, some), min_size=1, max_size=64))
    assert_update_equals_reference(case, stochastic, rounding_seed, *map(list, zip(*pairs, strict=True)))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("q", range(1, 65))
@settings(max_examples=2)
@given(case=device_weights(largest=300), seed=SEEDS)
def test_update_at_every_q_with_extreme_coefficients(case, seed, q, stochastic):
    """The same direction q times at the largest coefficient: the sum that has to fit int32."""
    sign = -1 if q % 2 else 1
    assert_update_equals_reference(case, stochastic, seed ^ 1, [seed] * q, [sign * 2**24] * q)


def float_loss(logits, label, scale):
    x = logits.astype(np.float64) * scale
    return math.log(np.exp(x - x.max()).sum()) + x.max() - x[label]


@given(
    st.integers(2, 200),
    st.floats(1e-4, 15.99),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 10, 60]),
)
@settings(max_examples=300)
def test_loss_equals_reference_and_float64(classes, scale, seed, spread):
    rng = np.random.default_rng(seed)
    logits = np.clip(rng.normal(0, spread, classes), -128, 127).astype(np.int8)
    label = int(rng.integers(classes))
    exp, scale_q24 = zo_loss.make_table(scale)
    table = LossTable(classes, scale_q24, (0, 0), tuple(int(e) for e in exp))
    got = library().zo_sample_loss(table, logits.ctypes.data, label)
    assert got == zo_loss.sample_losses(logits[None], np.array([label]), exp, scale_q24)[0]
    # 1e-4 nats for the logarithm; half a unit of Q24 in the scale, times up to 255 steps, for the margin
    assert abs(got / 65536 - float_loss(logits, label, scale)) < 1e-4
    assert library().zo_argmax(logits.ctypes.data, classes) == int(np.argmax(logits))


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_crc_is_zlibs(data, start):
    assert library().crc32_update(start, data, len(data)) == zlib.crc32(data, start)
