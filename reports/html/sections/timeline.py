"""Live memory over time: a picture of stacked areas, and its points for the script that lets a reader zoom.

A point holds until the next one.  Of more points than a chart may have, the highest of each stretch is kept.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from zprof.model.report import Report
from zprof.model.units import format_bytes, format_ns
from zprof.reports.html import words
from zprof.reports.html.blocks import AreaShape, AxisMark, Block, Series, Timeline, TimelineData
from zprof.reports.shown.memory_names import tenant_name
from zprof.reports.shown.memory_presenter import Areas, stacked_areas

#: Values in all series of a chart at most.
MOST_POINTS = 5_000
_SIDE = 1_000
_TICKS = 4
#: Percent of the width that a word needs.
_LEAST_PHASE, _LEAST_STEP = 9.0, 6.0
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def timeline(report: Report) -> Sequence[Block]:
    """Of the rank whose recorded timeline has the highest point; nothing where none was recorded."""
    areas = stacked_areas(report.memory, words.ORDER)
    if areas is None:
        return ()
    line = areas.timeline
    kept = _thinned(areas, MOST_POINTS // len(areas.bands))
    return (
        Timeline(
            title=words.name(f"Live memory of rank {line.rank}, {line.device}"),
            caption=_caption(areas, len(kept), len(report.memory.timelines)),
            areas=tuple(
                AreaShape(kind=words.tenant_kind(name), path=_path(areas, upper, kept))
                for name, _, upper in reversed(areas.bands)
            ),
            heights=tuple(
                AxisMark(at=round(100 - 100 * part / areas.top_bytes, 2), text=format_bytes(part))
                for part in (areas.top_bytes * tick / _TICKS for tick in range(_TICKS + 1))
            ),
            steps=tuple(_steps(areas)),
            phases=tuple(_phases(areas)),
            peak=AxisMark(
                at=_percent(areas, line.time_ns[areas.peak]), text=f"peak {format_bytes(areas.peak_bytes)}"
            ),
            end=format_ns(areas.end_ns),
            legend=tuple(reversed(words.LEGEND)),
            data=_data(areas, kept),
        ),
    )


def _caption(areas: Areas, kept: int, timelines: int) -> str:
    known, series = len(areas.timeline.time_ns), len(areas.bands)
    points = f"{kept * series:,} of {known * series:,} recorded points, the highest of each stretch"
    said = points if kept < known else f"all {known * series:,} recorded points"
    one = "that of one rank" if timelines == 2 else f"those of {timelines - 1} ranks"
    return f"{said}; {one} more: zprof report RUN -f json" if timelines > 1 else said


def _thinned(areas: Areas, most: int) -> list[int]:
    """Places of the points that are kept: of each of ``most`` stretches the highest; the first always."""
    heights = areas.bands[-1][2]
    count = len(heights)
    if count <= most:
        return list(range(count))
    edges = [count * part // (most - 1) for part in range(most)]
    highest = (max(range(begin, end), key=heights.__getitem__) for begin, end in pairwise(edges))
    return sorted({0, *highest})


def _path(areas: Areas, upper: Sequence[int], kept: Sequence[int]) -> str:
    """The rim of an area, and down to the ground: areas above are painted first, those below over them."""
    times = areas.timeline.time_ns
    parts = [f"M{_x(areas, times[kept[0]])} {_SIDE}V{_y(areas, upper[kept[0]])}"]
    last = upper[kept[0]]
    for place in kept[1:]:
        if upper[place] != last:
            last = upper[place]
            parts.append(f"H{_x(areas, times[place])}V{_y(areas, last)}")
    return "".join([*parts, f"H{_SIDE}V{_SIDE}Z"])


def _x(areas: Areas, time_ns: int) -> str:
    return f"{10 * _percent(areas, time_ns):.1f}"


def _y(areas: Areas, size: float) -> str:
    return f"{_SIDE * (1 - size / max(1, areas.top_bytes)):.1f}"


def _percent(areas: Areas, time_ns: int) -> float:
    return round(100 * min(1.0, max(0.0, time_ns / max(1, areas.end_ns))), 2)


def _steps(areas: Areas) -> Iterator[AxisMark]:
    """Where steps begin; only as many are named as there is room for."""
    free = 0.0
    for begin_ns, step in areas.timeline.steps:
        at = _percent(areas, begin_ns)
        named = at >= free and at <= 100 - _LEAST_STEP
        free = at + _LEAST_STEP if named else free
        yield AxisMark(at=at, text=f"step {step}" if named else "")


def _phases(areas: Areas) -> Iterator[AxisMark]:
    """Stretches of phases; those too narrow to see are left out, those too narrow for a word have none."""
    phases = areas.timeline.phases
    ends = [begin for begin, _ in phases[1:]] + [areas.end_ns] * bool(phases)
    for (begin_ns, phase), end_ns in zip(phases, ends, strict=True):
        begin, end = _percent(areas, begin_ns), _percent(areas, end_ns)
        if end - begin >= 0.3 and phase != "other":
            text = words.name(phase, 24) if end - begin >= _LEAST_PHASE else ""
            yield AxisMark(at=begin, text=text, width=round(end - begin, 2))


def _data(areas: Areas, kept: Sequence[int]) -> TimelineData:
    size, unit = next(entry for entry in _UNITS if areas.peak_bytes >= entry[0] or entry[0] == 1)
    times = areas.timeline.time_ns
    return TimelineData(
        time_ms=tuple(round(times[place] / 1e6, 6) for place in kept),
        unit=unit,
        series=tuple(
            Series(
                kind=words.tenant_kind(name),
                name=tenant_name(name),
                values=tuple(round((upper[place] - lower[place]) / size, 4) for place in kept),
            )
            for name, lower, upper in areas.bands
        ),
        steps=tuple((begin_ns / 1e6, f"step {step}") for begin_ns, step in areas.timeline.steps),
    )
