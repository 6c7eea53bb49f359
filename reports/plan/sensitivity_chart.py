"""Sensitivity of a plan as lines: efficiency over bandwidth, latency, tokens and world size."""

from collections.abc import Iterator, Sequence
from math import log2

from zprof.model.planning.sensitivity import Point, Sensitivity
from zprof.model.units import format_percent
from zprof.reports.plan.conditions import CONDITIONS, Condition, fixed_words, points_of, varies
from zprof.reports.plan.grid import Chart, ChartAxis, ChartLine, ChartPoint
from zprof.reports.plan.words import time_words

_MOST_LINES = 4
_SAID = {"bandwidth": "bandwidth", "latency": "a hop", "tokens": "tokens", "world": "devices"}


def sensitivity_charts(found: Sensitivity) -> tuple[Chart, ...]:
    """Efficiency over each condition that has two values or more."""
    return tuple(
        chart
        for condition in CONDITIONS
        if (chart := _chart(condition, points_of(found, condition))) is not None
    )


def _chart(condition: Condition, points: Sequence[Point]) -> Chart | None:
    field = condition.field
    places = sorted({_place(point, field) for point in points})
    if len(places) < 2 or places[0] <= 0:
        return None
    marks = {_place(point, field): condition.words(point) for point in points}
    return Chart(
        title=": ".join(
            said
            for said in (
                f"Efficiency over {condition.axis.partition(',')[0]}",
                fixed_words(condition, points),
            )
            if said
        ),
        x=ChartAxis(
            title=condition.axis,
            low=places[0],
            high=places[-1],
            marks=tuple((place, marks[place]) for place in _apart(places, condition.logarithmic)),
            logarithmic=condition.logarithmic,
        ),
        y=ChartAxis(
            title="efficiency: compute / step, %",
            low=0,
            high=100,
            marks=tuple((at, f"{at} %") for at in (0, 25, 50, 75, 100)),
        ),
        lines=tuple(_lines(condition, points)),
    )


def _place(point: Point, field: str) -> float:
    return float(getattr(point, field))


def _apart(places: Sequence[float], logarithmic: bool) -> Iterator[float]:
    """Places whose words have room: at least a tenth of the axis between two."""
    along = [log2(place) if logarithmic else place for place in places]
    free = along[0]
    for place, at in zip(places, along, strict=True):
        if at >= free:
            yield place
            free = at + 0.1 * (along[-1] - along[0])


def _lines(condition: Condition, points: Sequence[Point]) -> Iterator[ChartLine]:
    """One line for each combination of the other conditions."""
    others = [other for other in CONDITIONS if other is not condition and varies(other, points)]
    lines: dict[str, list[Point]] = {}
    for point in points:
        name = ", ".join(f"{other.words(point)} {_SAID[other.leaf]}".strip() for other in others)
        lines.setdefault(name, []).append(point)
    field = condition.field
    for name, held in list(lines.items())[:_MOST_LINES]:
        ordered = sorted(held, key=lambda point: _place(point, field))
        yield ChartLine(
            name=name or "ZeRO-3",
            points=tuple(
                ChartPoint(
                    x=_place(point, field),
                    y=point.efficiency_ratio * 100,
                    text=f"{condition.words(point)}: {format_percent(point.efficiency_ratio)}, "
                    f"step {time_words(point.wall_ns)}",
                )
                for point in ordered
            ),
        )
