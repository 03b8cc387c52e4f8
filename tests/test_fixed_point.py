"""The converter's tables against TFLM itself: all 256 values, for scales from 1e-9 to 1e4."""

import numpy as np
import pytest
from op_numerics import Value, every_value, one_op, run_tflm

from converters import fixed_point

CASES = 150


def draw(seed):
    rng = np.random.default_rng(seed)
    low, high = ((-9, 4), (-3, 0))[seed % 2]  # whatever fits, and what networks have
    scale, ratio = np.float32(10 ** rng.uniform(low, high)), np.float32(10 ** rng.uniform(-3, 1))
    x, out = (Value((1, 256), float(s), int(rng.integers(-128, 128))) for s in (scale, scale * ratio))
    return rng, x, out


def from_tflm(kind, version, x, out, options="", **fields):
    return run_tflm(one_op(kind, version, [x], out, options, **fields), [every_value()]).ravel()


@pytest.mark.parametrize(
    ("kind", "table", "out"),
    [
        ("LOGISTIC", fixed_point.logistic_table, Value((1, 256), 1 / 256, -128)),
        ("TANH", fixed_point.tanh_table, Value((1, 256), 1 / 128, 0)),
    ],
)
def test_sigmoids(kind, table, out):
    for seed in range(CASES):
        _, x, _ = draw(seed)
        try:
            values = table(float(np.float32(x.scale)), x.zero_point)
        except ValueError:
            assert x.scale < 1e-8
        else:
            np.testing.assert_array_equal(values, from_tflm(kind, 2, x, out), str(x))


def test_hard_swish():
    refused = 0
    for seed in range(CASES):
        _, x, out = draw(seed)
        try:
            values = fixed_point.hard_swish_table(
                np.float32(x.scale), x.zero_point, np.float32(out.scale), out.zero_point
            )
        except ValueError:
            refused += 1
        else:
            np.testing.assert_array_equal(values, from_tflm("HARD_SWISH", 1, x, out, "HardSwish"), str((x, out)))
    assert refused < CASES / 4


def test_leaky_relu():
    for seed in range(CASES):
        rng, x, out = draw(seed)
        alpha = float(np.float32(rng.uniform(0, 2)))
        scales = np.float32(x.scale), x.zero_point, np.float32(out.scale), out.zero_point
        values = fixed_point.leaky_relu_table(*scales, alpha)
        expected = from_tflm("LEAKY_RELU", 2, x, out, "LeakyRelu", alpha=alpha)
        np.testing.assert_array_equal(values, expected, str((x, out, alpha)))
