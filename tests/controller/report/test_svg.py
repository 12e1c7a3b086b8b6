import pytest

from controller.report.svg import Scale, box, line, nice_ticks, steps, tag


def test_text_and_attributes_are_escaped() -> None:
    assert str(tag("text", "<a & b>", class_='x" onload="y')) == (
        '<text class="x&#34; onload=&#34;y">&lt;a &amp; b&gt;</text>'
    )


def test_elements_nest() -> None:
    assert str(tag("g", box(1, 2, 3.25, 4, "fill", "t<"), x=1.04)) == (
        '<g x="1"><rect x="1" y="2" width="3.2" height="4" class="fill"><title>t&lt;</title></rect></g>'
    )


def test_a_scale_is_linear_and_may_be_upside_down() -> None:
    scale = Scale(0.0, 10.0, 100.0, 50.0)
    assert [scale(value) for value in (0.0, 5.0, 10.0)] == [100.0, 75.0, 50.0]


@pytest.mark.parametrize(
    ("high", "ticks"),
    [
        (8, [0, 2, 4, 6, 8]),
        (9, [0, 5, 10]),
        (0.9, [0, 0.5, 1.0]),
        (38, [0, 10, 20, 30, 40]),
    ],
)
def test_ticks_are_round_and_reach_the_highest_value(high: float, ticks: list[float]) -> None:
    assert nice_ticks(high, 4) == pytest.approx(ticks)


def test_counts_have_whole_ticks() -> None:
    assert nice_ticks(1, 4, whole=True) == [0, 1]


def test_lines_and_steps_break_where_a_value_is_missing() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 4.0)]
    assert 'd="M0 1L1 2M3 4"' in line(points, "stroke")
    assert 'd="M-0.5 1H0.5V2H1.5M2.5 4H3.5"' in steps(points, "stroke", 1.0)


def test_a_line_through_nothing_is_empty() -> None:
    assert 'd=""' in steps([(0.0, None)], "stroke", 1.0)
