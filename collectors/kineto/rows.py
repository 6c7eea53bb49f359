"""One row of the ``collectives`` table, and the spans that are joined to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from zprof.collectors.kineto.trace import TraceColumns
from zprof.run.ranges import EngineRange, RangeVerb, parse_range


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """A collective as one rank ran it; the fields are the columns of ``zprof.run.schema``."""

    kind: str
    group: str
    group_size: int
    sequence: int
    dtype: str
    bytes: int
    start_ns: int
    end_ns: int
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    unit: str | None = None
    stream: int | None = None
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpan:
    """A range of an engine with its place in time."""

    range: EngineRange
    start_ns: int
    end_ns: int
    thread: int


def collective_columns(rows: Sequence[CollectiveRow]) -> dict[str, list[Any]]:
    """The ``collectives`` table, by start."""
    rows = sorted(rows, key=lambda row: (row.start_ns, row.end_ns))
    return {field.name: [getattr(row, field.name) for row in rows] for field in fields(CollectiveRow)}


def range_spans(trace: TraceColumns) -> list[RangeSpan]:
    """All ranges of engines in a trace, by start.  Names are parsed once each."""
    parsed: dict[str, EngineRange | None] = {}
    spans: list[RangeSpan] = []
    for row, (category, name) in enumerate(zip(trace.category, trace.name, strict=True)):
        if category != "user_annotation" or "::" not in name:
            continue
        if name not in parsed:
            parsed[name] = parse_range(name)
        found = parsed[name]
        if found is not None:
            start, duration = int(trace.start_ns[row]), int(trace.duration_ns[row])
            spans.append(
                RangeSpan(range=found, start_ns=start, end_ns=start + duration, thread=int(trace.thread[row]))
            )
    return sorted(spans, key=lambda span: span.start_ns)


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
