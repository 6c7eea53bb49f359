"""Ranges that an engine wrote (``zprof.run.ranges``), with their place in time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from zprof.collectors.kineto.collectives.finding import rows_of
from zprof.collectors.kineto.columns import Trace
from zprof.run.ranges import EngineRange, RangeVerb, parse_range


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpan:
    """A range of an engine with its place in time; ``row`` is that of the trace."""

    range: EngineRange
    start_ns: int
    end_ns: int
    thread: int
    row: int


def range_spans(trace: Trace) -> list[RangeSpan]:
    """All ranges of engines in a trace, by start.  Names are parsed once each."""
    parsed: dict[str, EngineRange] = {}
    rows = rows_of(trace, ("user_annotation",), partial(_parse_into, parsed))
    ends = (trace.start_ns + trace.duration_ns)[rows]
    columns = (rows, trace.start_ns[rows], ends, trace.thread[rows])
    return [
        RangeSpan(range=parsed[trace.name[row]], start_ns=start, end_ns=end, thread=thread, row=row)
        for row, start, end, thread in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _parse_into(parsed: dict[str, EngineRange], name: str) -> bool:
    found = parse_range(name) if "::" in name else None
    if found is not None:
        parsed[name] = found
    return found is not None


#: Identity of a collective within a rank: group, sequence, kind.
Identity = tuple[str, int, str]


def identity(found: EngineRange) -> Identity | None:
    """What a launch, wait or comm range is about; None where the text leaves it open."""
    if found.group is None or found.sequence is None or found.kind is None:
        return None
    return found.group, found.sequence, found.kind


def by_identity(spans: Sequence[RangeSpan], verb: RangeVerb) -> Mapping[Identity, RangeSpan]:
    """Spans of one verb; of several waits for one collective the longest is the one that blocked."""
    found: dict[Identity, RangeSpan] = {}
    for span in spans:
        key = identity(span.range) if span.range.verb is verb else None
        if key is None:
            continue
        earlier = found.get(key)
        if earlier is None or span.end_ns - span.start_ns > earlier.end_ns - earlier.start_ns:
            found[key] = span
    return found
