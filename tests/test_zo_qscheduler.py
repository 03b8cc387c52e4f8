"""Schedules of q, driven window by window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.zo.qscheduler import AdaZetaQ, FixedQ, LinearQ, QScheduler, QState, Window, window_length

SCHEDULES = [QScheduler(), FixedQ(), LinearQ(), AdaZetaQ()]


def drive(schedule, losses):
    state, qs = schedule.start(), []
    for i, loss in enumerate(losses):
        state = schedule.window_end(state, loss, (i + 1) / len(losses))
        qs.append(state.q)
    return qs


def test_qscheduler_doubles_where_the_loss_stops_falling():
    assert drive(QScheduler(), [2.0, 1.5, 1.6, 1.55, 1.4, 1.4, 1.5]) == [4, 4, 8, 8, 8, 16, 32]


def test_qscheduler_stops_at_its_maximum():
    assert drive(QScheduler(3, 10), [1.0] * 6) == [3, 6, 10, 10, 10, 10]


def test_fixed():
    assert drive(FixedQ(6), [1.0, 2.0, 3.0]) == [6, 6, 6]


def test_linear_reaches_its_end():
    assert drive(LinearQ(4, 16), [1.0] * 4) == [7, 10, 13, 16]


def test_adazeta_is_the_published_curve():
    assert AdaZetaQ().start().q == 1
    assert drive(AdaZetaQ(), [1.0] * 4)[:3] == [5, 10, 15]
    assert drive(AdaZetaQ(maximum=12), [1.0] * 4) == [5, 10, 12, 12]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
@given(losses=st.lists(st.floats(0.0, 10.0), max_size=30))
def test_q_stays_within_the_wire_format_and_state_is_pure(schedule, losses):
    state = schedule.start()
    for i, loss in enumerate(losses):
        before = QState(state.q, state.previous)
        after = schedule.window_end(state, loss, i / 30)
        assert state == before and after == schedule.window_end(state, loss, i / 30)
        assert 1 <= after.q <= 64
        state = after


@pytest.mark.parametrize(("first", "last"), [(0, 4), (8, 4), (4, 65)])
def test_limits(first, last):
    with pytest.raises(ValueError):
        QScheduler(first, last)


@pytest.mark.parametrize(
    ("samples", "batch", "steps"), [(1000, 64, 16), (5000, 64, 79), (100, 64, 16), (600, 64, 20), (1, 64, 16)]
)
def test_a_window_is_whole_epochs_and_at_least_16_steps(samples, batch, steps):
    assert window_length(samples, batch) == steps


def test_window_weighs_samples_equally():
    window, mean = Window(2).add(3 * 65536, 3)
    assert mean is None
    window, mean = window.add(5 * 65536, 1)
    assert mean == 2.0 and window == Window(2)
