"""What each series of a sensitivity varies, and how a value of it reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zprof.model.planning.sensitivity import Point, Sensitivity
from zprof.reports.plan.words import time_words, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What one series varies, and how a value of it reads.

    ``leaf``: the series in a sensitivity; ``field``: of its points, what varies.
    """

    leaf: str
    field: str
    title: str
    head: str
    axis: str
    words: Callable[[Point], str]
    logarithmic: bool = True


def bandwidth_words(point: Point) -> str:
    """As a share of what the group gets: of the lesser of the bus in a node and the node's cards."""
    return f"{point.bandwidth_ratio * 100:g} %"


BANDWIDTH = Condition(
    leaf="bandwidth",
    field="bandwidth_ratio",
    title="Bandwidth between nodes",
    head="bandwidth",
    axis="bandwidth, % of what the group gets",
    words=bandwidth_words,
    logarithmic=False,
)
CONDITIONS = (
    BANDWIDTH,
    Condition(
        leaf="latency",
        field="latency_ns",
        title="Latency of a hop",
        head="a hop",
        axis="latency of a hop between nodes",
        words=lambda point: time_words(point.latency_ns),
    ),
    Condition(
        leaf="tokens",
        field="tokens",
        title="Tokens of a device",
        head="tokens",
        axis="tokens of a device in a micro-batch",
        words=lambda point: whole(point.tokens),
    ),
    Condition(
        leaf="world",
        field="devices",
        title="World size",
        head="devices",
        axis="devices",
        words=lambda point: whole(point.devices),
    ),
)


def points_of(found: Sensitivity, condition: Condition) -> Sequence[Point]:
    """The series over a condition."""
    points: Sequence[Point] = getattr(found, condition.leaf)
    return points


def varies(condition: Condition, points: Sequence[Point]) -> bool:
    """Whether a condition has more than one value in a series."""
    return len({getattr(point, condition.field) for point in points}) > 1


def fixed_words(condition: Condition, points: Sequence[Point]) -> str:
    """What all of the series have in common, so that a table can be read alone."""
    first = points[0]
    said = {
        "bandwidth": f"{bandwidth_words(first)} bandwidth",
        "latency": f"{time_words(first.latency_ns)} a hop",
        "tokens": f"{whole(first.tokens)} tokens",
        "world": f"{whole(first.devices)} devices",
    }
    kept = [said[other.leaf] for other in CONDITIONS if other is not condition and not varies(other, points)]
    return ", ".join(kept)
