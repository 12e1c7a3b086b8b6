import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policies.estimates import RisingCurve, RisingLine, RunningMean


def test_running_mean_is_plain_then_exponential() -> None:
    mean = RunningMean(window=2)
    assert not mean.known
    for value in (1.0, 3.0):
        mean.add(value)
    assert (mean.mean, mean.known) == (2.0, True)
    mean.add(6.0)
    assert mean.mean == 4.0  # 2 + (6 - 2) / 2


def test_values_of_less_weight_move_the_mean_less() -> None:
    mean = RunningMean(window=2)
    for value in (4.0, 0.0, 0.0):
        mean.add(value, weight=0.5)
    assert mean.mean == pytest.approx(4 / 3)


def test_line_through_one_abscissa_is_proportional() -> None:
    line = RisingLine(fading=1.0)
    assert line.value(3.0) == 0.0
    line.add(4.0, 8.0)
    assert line.value(2.0) == pytest.approx(4.0)


def test_line_finds_intercept_and_slope() -> None:
    line = RisingLine(fading=1.0)
    for _ in range(200):
        for x in (1.0, 5.0, 9.0):
            line.add(x, 3.0 + 2.0 * x)
    # The pseudo-point at the origin is one of 601.
    assert line.value(1.0) == pytest.approx(5.0, rel=0.01)
    assert line.value(20.0) == pytest.approx(43.0, rel=0.01)


def test_line_never_falls_and_never_starts_below_zero() -> None:
    falling = RisingLine(fading=1.0)
    for _ in range(100):
        falling.add(1.0, 9.0)
        falling.add(9.0, 1.0)
    assert falling.value(1.0) == pytest.approx(falling.value(9.0)) == pytest.approx(5.0)
    steep = RisingLine(fading=1.0)
    for _ in range(100):
        steep.add(4.0, 1.0)
        steep.add(8.0, 9.0)
    assert steep.value(0.0) == 0.0


def test_line_follows_a_change() -> None:
    line = RisingLine(fading=0.9)
    for value in [2.0] * 50 + [6.0] * 50:
        line.add(2.0, value)
    assert line.value(2.0) == pytest.approx(6.0, rel=0.05)


def test_curve_is_straight_between_cells_flat_before_and_goes_on_behind() -> None:
    curve = RisingCurve(window=16)
    assert (curve.known, curve.value(3.0)) == (False, 0.0)
    curve.add(2.0, 10.0)
    assert curve.value(1.0) == curve.value(9.0) == 10.0
    curve.add(6.0, 18.0)
    assert curve.value(1.0) == 10.0
    assert curve.value(4.0) == pytest.approx(14.0)
    assert curve.value(8.0) == pytest.approx(22.0)


def test_curve_pools_neighbours_that_would_fall() -> None:
    curve = RisingCurve(window=16)
    for x, y in [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0), (4.0, 40.0)]:
        curve.add(x, y)
    assert [curve.value(x) for x in (1.0, 2.0, 3.0, 4.0)] == [10.0, 25.0, 25.0, 40.0]


def test_curve_shrugs_off_a_hiccup_and_follows_a_change_at_once() -> None:
    curve = RisingCurve(window=16)
    for _ in range(20):
        curve.add(3.0, 10.0)
    curve.add(3.0, 10_000.0)
    assert curve.value(3.0) == pytest.approx(10.0 + 30.0 / 16)  # cut to 40
    curve.add(3.0, 10.0)
    assert curve.value(3.0) < 12.0
    for _ in range(3):
        curve.add(3.0, 200.0)
    assert curve.value(3.0) == pytest.approx(200.0)
    for _ in range(3):
        curve.add(3.0, 20.0)
    assert curve.value(3.0) == pytest.approx(20.0)


def test_noise_on_both_sides_is_no_change() -> None:
    curve = RisingCurve(window=16)
    for _ in range(40):
        curve.add(3.0, 5.0)
        curve.add(3.0, 15.0)
    assert curve.value(3.0) == pytest.approx(10.0, rel=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 2000.0), st.floats(0.0, 1e10)), min_size=1, max_size=40))
def test_curve_never_falls(points: list[tuple[float, float]]) -> None:
    curve = RisingCurve(window=16)
    for x, y in points:
        curve.add(x, y)
    values = [curve.value(float(x)) for x in range(1, 2100, 7)]
    assert all(left <= right * (1 + 1e-9) + 1e-6 for left, right in itertools.pairwise(values))
