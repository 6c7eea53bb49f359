"""Find rows of a trace by name, the innermost interval around an instant, the ranges that an engine wrote
(``zprof.run.ranges``), and the unit (module or phase) in an annotation.

Units are defined by one table, ``UNIT_PATTERNS``; to support another engine, add a row. Engines that write
zprof's own ranges give the unit there.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from zprof.collectors.read.kineto.trace import Int64s, Trace
from zprof.run.ranges import EngineRange, RangeVerb, parse_range

_MAX_ANNOTATION_LENGTH = 2000


class RangeSpan(Struct, frozen=True, kw_only=True):
    """A range written by an engine, with its start, end and thread; ``row`` is its row in the trace."""

    range: EngineRange
    start_ns: int
    end_ns: int
    thread: int
    row: int


def find_engine_ranges(trace: Trace) -> list[RangeSpan]:
    """Return all engine ranges in a trace, by start. Each distinct name is parsed once."""
    parsed: dict[str, EngineRange] = {}
    rows = find_rows(trace, ("user_annotation",), partial(_parse_into, parsed))
    ends = (trace.start_ns + trace.duration_ns)[rows]
    columns = (rows, trace.start_ns[rows], ends, trace.thread[rows])
    return [
        RangeSpan(range=parsed[trace.name[row]], start_ns=start, end_ns=end, thread=thread, row=row)
        for row, start, end, thread in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _parse_into(parsed: dict[str, EngineRange], name: str) -> bool:
    match = parse_range(name) if "::" in name else None
    if match is not None:
        parsed[name] = match
    return match is not None


#: Key of a collective within a rank: group, sequence, kind.
Identity = tuple[str, int, str]


def get_collective_key(engine_range: EngineRange) -> Identity | None:
    """Return the key of the collective in a launch, wait or comm range; None if the range has none."""
    if engine_range.group is None or engine_range.sequence is None or engine_range.kind is None:
        return None
    return engine_range.group, engine_range.sequence, engine_range.kind


def index_by_collective(spans: Sequence[RangeSpan], verb: RangeVerb) -> Mapping[Identity, RangeSpan]:
    """Return the spans with one verb, by collective; for several waits, keep the longest."""
    spans_by_key: dict[Identity, RangeSpan] = {}
    for span in spans:
        key = get_collective_key(span.range) if span.range.verb is verb else None
        if key is None:
            continue
        earlier = spans_by_key.get(key)
        if earlier is None or span.end_ns - span.start_ns > earlier.end_ns - earlier.start_ns:
            spans_by_key[key] = span
    return spans_by_key


#: Patterns of engines' unit names, each with a template over its groups.
#: FSDP2 writes ``FSDP::all_gather (blocks.0) [pg=8]``; the root module has no name and therefore no
#: parentheses.
UNIT_PATTERNS = (
    (r"FSDP::\w+ \((.+)\)( \[pg=\d+\])?", r"\1\2"),
    (r"FSDP::\w+_prefetch for (.+)", r"\1"),
    (r"FSDP::(?:(?:all_gather|pre|post)\w*|\w+_prefetch for )(?: \(\))?( \[pg=\d+\])?", r"root\1"),
    (r"FSDP::(\w+)", r"FSDP.\1"),
    (r"FullyShardedDataParallel\._?(\w+)", r"FSDP.\1"),
    (r"DistributedDataParallel\._?(\w+)", r"DDP.\1"),
)
#: Every annotation with a unit contains one of these; traces have hundreds of thousands of other names.
_UNIT_PARTS = ("::", "DataParallel.")
_COMPILED_UNITS = tuple((re.compile(pattern, re.ASCII), unit) for pattern, unit in UNIT_PATTERNS)


def parse_unit(annotation: str) -> str | None:
    """Return the unit in an annotation, or None."""
    if len(annotation) > _MAX_ANNOTATION_LENGTH or not any(part in annotation for part in _UNIT_PARTS):
        return None
    for pattern, unit in _COMPILED_UNITS:
        match = pattern.fullmatch(annotation)
        if match is not None:
            return match.expand(unit)
    engine_range = parse_range(annotation)
    return engine_range.unit if engine_range is not None else None


def find_units(trace: Trace, threads: Int64s, times_ns: Int64s) -> list[str | None]:
    """Return the unit around each instant on its thread, or None."""
    rows = find_rows(trace, ("user_annotation", "cpu_op"), lambda name: parse_unit(name) is not None)
    rows = (
        IntervalIndex(trace, rows).find_innermost(threads, times_ns)
        if len(rows)
        else np.full(len(threads), -1)
    )
    return [parse_unit(trace.name[row]) if row >= 0 else None for row in rows.tolist()]


def find_rows(trace: Trace, categories: Collection[str], matches_name: Callable[[str], bool]) -> Int64s:
    """Return the rows of some categories whose name matches, by start; ``matches_name`` is called once per
    name.
    """
    rows = np.flatnonzero(trace.category.where(lambda category: category in categories))
    codes = trace.name.codes[rows].astype(np.int64)
    if len(rows):
        answers = np.zeros(len(trace.name.texts), dtype=np.bool_)
        used = np.flatnonzero(np.bincount(codes, minlength=len(answers)))
        answers[used] = [matches_name(trace.name.texts[code]) for code in used.tolist()]
        rows = rows[answers[codes]]
    order = np.argsort(trace.start_ns[rows], kind="stable")
    return rows[order].astype(np.int64)


class IntervalIndex:
    """Index intervals by thread, to find the innermost one around an instant."""

    def __init__(self, trace: Trace, rows: Int64s) -> None:
        start, duration, thread = trace.start_ns[rows], trace.duration_ns[rows], trace.thread[rows]
        order = np.lexsort((-duration, start, thread))
        self._rows = rows[order]
        self._thread, self._start = thread[order], start[order]
        self._end = self._start + duration[order]
        # For each interval, the innermost one of its thread that is open at its start, or -1.
        outer, stack = [], list[tuple[int, int, int]]()
        for index, span in enumerate(
            zip(self._thread.tolist(), self._start.tolist(), self._end.tolist(), strict=True)
        ):
            while stack and (stack[-1][1] != span[0] or stack[-1][2] <= span[1]):
                stack.pop()
            outer.append(stack[-1][0] if stack else -1)
            stack.append((index, span[0], span[2]))
        self._outer = np.array(outer, dtype=np.int64)

    def find_innermost(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """Return the row of the innermost interval around each instant, or -1."""
        index = self._find_last_started(threads, times_ns)
        while (ended := (index >= 0) & (self._end[index] < times_ns)).any() if len(self._rows) else False:
            index[ended] = self._outer[index[ended]]
        return np.where(index >= 0, self._rows[index], -1) if len(self._rows) else index

    def _find_last_started(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """Return the last interval of the thread that starts at or before each instant; intervals
        sort first.
        """
        count, query_count = len(self._rows), len(times_ns)
        thread = np.concatenate((self._thread, threads))
        time = np.concatenate((self._start, times_ns))
        order = np.lexsort((np.arange(count + query_count), time, thread))
        last_started = np.maximum.accumulate(np.where(order < count, order, -1))
        index = np.empty(count + query_count, dtype=np.int64)
        index[order] = last_started
        index = index[count:]
        is_same_thread = (
            (index >= 0) & (self._thread[index] == threads)
            if count
            else np.zeros(query_count, dtype=np.bool_)
        )
        return np.where(is_same_thread, index, -1)
