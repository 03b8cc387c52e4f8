"""The step: exact, normalised, saturated; and the step size over the budget."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.zo import estimator, schedule

DIFFERENCES = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=64)


def test_first_step_has_the_asked_rms():
    step = estimator.coefficients([3, -4, 12, 5], 0.0, 1.5)
    assert step.ema == (9 + 16 + 144 + 25) / 4
    assert math.sqrt(sum(c * c for c in step.coefficients)) == pytest.approx(1.5 * 65536, rel=1e-4)
    assert [c > 0 for c in step.coefficients] == [True, False, True, True]


def test_average_is_updated_before_use():
    step = estimator.coefficients([100], 2500.0, 1.0)
    assert step.ema == 0.9 * 2500.0 + (1.0 - 0.9) * 10000.0
    assert step.coefficients == (round(65536.0 * 100 / math.sqrt(step.ema)),)


def test_all_zero_leaves_the_average_alone():
    for ema in (0.0, 7.25):
        assert estimator.coefficients([0, 0], ema, 1.0) == estimator.Step((0, 0), ema, 0)


@given(DIFFERENCES, st.floats(0.0, 1e20))
def test_learning_rate_zero_is_a_valid_step(differences, ema):
    assert set(estimator.coefficients(differences, ema, 0.0).coefficients) == {0}


@given(DIFFERENCES, st.floats(0.0, 1e20), st.floats(0.0, 1000.0))
def test_within_the_wire_format(differences, ema, lr):
    step = estimator.coefficients(differences, ema, lr)
    assert all(isinstance(c, int) and abs(c) <= 1 << 24 for c in step.coefficients)
    assert step.ema >= 0.0


def test_saturation_is_counted():
    step = estimator.coefficients([1 << 30, 1], 1.0, 1e6)
    assert step.coefficients[0] == 1 << 24 and step.saturated >= 1


def test_one_sided_has_the_scale_of_two_sided():
    base, slope = 1000, 30
    assert estimator.one_sided(base + slope, base) == estimator.two_sided(base + slope, base - slope)


def test_passes():
    assert estimator.passes(estimator.TWO_SIDED, 8, 64) == 1024
    assert estimator.passes(estimator.ONE_SIDED, 8, 64) == 576


@pytest.mark.parametrize(
    ("name", "start", "middle", "end"), [("constant", 2, 2, 2), ("half", 2, 1.5, 1), ("cosine", 2, 1.25, 0.5)]
)
def test_step_size_over_the_budget(name, start, middle, end):
    sizes = [schedule.step_size(2.0, name, "none", progress, 4) for progress in (0.0, 0.5, 1.0)]
    assert sizes == pytest.approx([start, middle, end])


def test_coupling():
    assert schedule.step_size(1.4, "constant", "sqrt", 0.3, 8) == 1.4
    assert schedule.step_size(1.4, "constant", "sqrt", 0.3, 32) == 2.8
    with pytest.raises(ValueError):
        schedule.step_size(1.0, "constant", "log", 0.0, 8)
    with pytest.raises(ValueError):
        schedule.step_size(1.0, "step", "none", 0.0, 8)
