"""Where in the program a device's collective was launched: its unit, and what a ``::launch`` range states."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.collectives.finding import Enclosing
from zprof.collectors.kineto.collectives.spans import RangeSpan, identity
from zprof.collectors.kineto.collectives.units import units_at
from zprof.collectors.kineto.columns import ABSENT, Int64s, Trace
from zprof.collectors.kineto.device.kernels import Found
from zprof.run.ranges import RangeVerb


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``group`` and ``sequence`` are those of a launch range that holds this collective alone."""

    unit: str | None = None
    group: str | None = None
    sequence: int | None = None


def places_of(trace: Trace, found: Sequence[Found], spans: Sequence[RangeSpan]) -> list[Place]:
    """The place of each collective."""
    calls = np.array([collective.calls[0] if collective.calls else -1 for collective in found], np.int64)
    threads = np.where(calls >= 0, trace.thread[calls], ABSENT) if len(calls) else calls
    times = np.where(calls >= 0, trace.start_ns[calls], ABSENT) if len(calls) else calls
    units = units_at(trace, threads, times)
    stated = _launch_ranges(trace, spans, threads, times)
    counts = Counter(id(span) for span in stated if span is not None)
    return [
        _place(unit, span if span is not None and counts[id(span)] == 1 else None)
        for unit, span in zip(units, stated, strict=True)
    ]


def _place(unit: str | None, span: RangeSpan | None) -> Place:
    if span is None:
        return Place(unit=unit)
    return Place(unit=span.range.unit or unit, group=span.range.group, sequence=span.range.sequence)


def _launch_ranges(
    trace: Trace, spans: Sequence[RangeSpan], threads: Int64s, times_ns: Int64s
) -> list[RangeSpan | None]:
    launches = {
        span.row: span
        for span in spans
        if span.range.verb is RangeVerb.LAUNCH and identity(span.range) is not None
    }
    rows = Enclosing(trace, np.array(sorted(launches), dtype=np.int64)).at(threads, times_ns)
    return [launches.get(row) for row in rows.tolist()]
