"""The integer loss against float64 cross-entropy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.device_image import loss_table
from pipeline.zo import loss


def float_losses(logits, labels, scale):
    x = logits.astype(np.float64) * scale
    top = x.max(axis=1)
    return np.log(np.exp(x - top[:, None]).sum(axis=1)) + top - x[np.arange(len(x)), labels]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 1000),
    st.one_of(st.floats(0.001, 1.0), st.floats(1.0, 15.99)),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_within_1e_4_nats(classes, scale, seed, ties):
    rng = np.random.default_rng(seed)
    logits = rng.integers(*((0, 2) if ties else (-128, 128)), (20, classes)).astype(np.int8)
    labels = rng.integers(0, classes, 20)
    exact = float_losses(logits, labels, scale)
    got = loss.sample_losses(logits, labels, *loss.make_table(scale))
    assert got.dtype == np.uint32
    assert np.abs(got / 65536.0 - exact).max() < 1e-4


def test_equal_logits_give_ln_classes():
    exp, scale_q24 = loss.make_table(0.1)
    for classes in (2, 10, 200):
        got = loss.sample_losses(np.full((1, classes), 7, np.int8), np.array([0]), exp, scale_q24)[0]
        assert got == pytest.approx(65536 * np.log(classes), abs=1)


def test_table_ends():
    exp, scale_q24 = loss.make_table(0.125)
    assert exp[0] == 1 << 24 and scale_q24 == 1 << 21 and np.all(np.diff(exp.astype(np.int64)) <= 0)


def test_widest_loss_fits():
    exp, scale_q24 = loss.make_table(15.999)
    logits = np.array([[127, -128]], np.int8)
    assert loss.sample_losses(logits, np.array([1]), exp, scale_q24)[0] == round(255 * scale_q24 / 256)


@pytest.mark.parametrize("scale", [0.0, -1.0, 16.0, float("nan")])
def test_scale_out_of_range(scale):
    with pytest.raises(ValueError):
        loss.make_table(scale)


def test_correct_takes_the_lowest_index_of_a_tie():
    logits = np.array([[3, 3, 1], [1, 3, 3], [0, 0, 0]], np.int8)
    assert loss.count_correct(logits, np.array([0, 1, 0])) == 3
    assert loss.count_correct(logits, np.array([1, 2, 1])) == 0


@given(st.floats(1e-4, 15.99))
def test_the_image_has_the_same_table(scale):
    """Two places, since converters import nothing of the pipeline and zo nothing at all."""
    exp, scale_q24 = loss.make_table(scale)
    table = loss_table(scale)
    np.testing.assert_array_equal(table.exp, exp)
    assert table.scale_q24 == scale_q24
