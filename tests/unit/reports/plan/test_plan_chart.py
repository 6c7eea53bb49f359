"""Places of lines in a chart: axes that are linear or logarithmic, and what is drawn of a series."""

from dataclasses import replace

import pytest

from tests.support import plans
from zprof.reports.html.lines import line_chart
from zprof.reports.html.plan_bars import memory_bars
from zprof.reports.plan.grid import Chart, ChartAxis, ChartLine, ChartPoint
from zprof.reports.plan.sensitivity_chart import sensitivity_charts


def chart(*, logarithmic: bool, points: list[tuple[float, float]]) -> Chart:
    marks = tuple((x, f"{x:g}") for x, _ in points)
    return Chart(
        title="t",
        x=ChartAxis(title="x", low=1, high=100, marks=marks, logarithmic=logarithmic),
        y=ChartAxis(title="y", low=0, high=100, marks=((0, "0"), (100, "100"))),
        lines=(ChartLine(name="l", points=tuple(ChartPoint(x=x, y=y, text="") for x, y in points)),),
    )


@pytest.mark.parametrize(("logarithmic", "middle"), [(True, 10.0), (False, 50.5)])
def test_the_middle_of_an_axis_is_in_the_middle(logarithmic: bool, middle: float) -> None:
    drawn = line_chart(chart(logarithmic=logarithmic, points=[(1, 0), (middle, 50), (100, 100)]))
    spots = drawn.lines[0].spots
    assert [spot.x for spot in spots] == pytest.approx([6, 50, 94], abs=0.01)
    assert [spot.y for spot in spots] == pytest.approx([94, 50, 6], abs=0.01)
    assert [mark.at for mark in drawn.marks] == [spot.x for spot in spots]
    assert [mark.at for mark in drawn.heights] == pytest.approx([94, 6])


def test_a_line_joins_its_points_in_their_order() -> None:
    drawn = line_chart(chart(logarithmic=False, points=[(1, 1), (2, 2), (3, 3)]))
    assert [(one.x, other.x) for one, other in drawn.lines[0].pieces] == [
        (drawn.lines[0].spots[0].x, drawn.lines[0].spots[1].x),
        (drawn.lines[0].spots[1].x, drawn.lines[0].spots[2].x),
    ]


def test_a_series_with_two_batches_has_two_lines_by_their_names() -> None:
    bandwidth, latency, tokens, world = sensitivity_charts(plans.sensitivity())
    assert [line.name for line in bandwidth.lines] == ["512 tokens", "4,096 tokens"]
    assert [point.y for point in bandwidth.lines[0].points] == pytest.approx([45, 67.5, 90])
    assert [len(other.lines) for other in (latency, tokens, world)] == [1, 1, 1]
    assert tokens.x.logarithmic
    assert not bandwidth.x.logarithmic
    assert [text for _, text in world.x.marks] == ["64", "256", "1,024"]


def test_points_are_in_the_order_of_the_axis_whatever_theirs_is() -> None:
    found = plans.sensitivity()
    turned = replace(found, tokens=tuple(reversed(found.tokens)))
    assert sensitivity_charts(turned)[2] == sensitivity_charts(found)[2]


def test_one_point_is_no_line() -> None:
    found = plans.sensitivity()
    assert len(sensitivity_charts(replace(found, latency=found.latency[:1]))) == 3


def test_marks_that_have_no_room_are_left_out() -> None:
    found = plans.sensitivity()
    near = tuple(replace(found.tokens[0], tokens=1000 + at) for at in range(50))
    (*_, crowded, _) = sensitivity_charts(replace(found, tokens=near))
    assert 2 <= len(crowded.x.marks) <= 11
    assert len(crowded.lines[0].points) == 50


def test_bars_stack_the_tenants_and_the_widest_is_the_largest() -> None:
    plan = plans.full()
    drawn = memory_bars(plan)
    most = max(row.least_bytes for row in plan.rows)
    for bar, row in zip(drawn.bars, plan.rows, strict=True):
        ends = [segment.begin + segment.width for segment in bar.segments]
        assert [segment.begin for segment in bar.segments] == pytest.approx([0, *ends[:-1]], abs=0.02)
        assert ends[-1] == pytest.approx(100 * row.least_bytes / most, abs=0.02)
    assert max(bar.segments[-1].begin + bar.segments[-1].width for bar in drawn.bars) == pytest.approx(100)
    assert len(drawn.legend) == 5, "nobody holds communication buffers here"
    assert not drawn.notes
    assert memory_bars(plans.bare()).notes
