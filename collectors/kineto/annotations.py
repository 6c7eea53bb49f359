"""Find rows of a trace by name, the innermost interval around an instant, the ranges that an engine wrote
(``zprof.run.ranges``), and the module or phase (unit) that an annotation names.

Units are defined by one table, ``UNIT_PATTERNS``; support for another engine is another row. Engines that
write zprof's own ranges name the unit there.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from zprof.collectors.kineto.trace import Int64s, Mask, Trace
from zprof.run.ranges import EngineRange, RangeVerb, parse_range


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpan:
    """A range of an engine with its start, end and thread; ``row`` is its row of the trace."""

    range: EngineRange
    start_ns: int
    end_ns: int
    thread: int
    row: int


def find_engine_ranges(trace: Trace) -> list[RangeSpan]:
    """Return all ranges of engines in a trace, by start. Each distinct name is parsed once."""
    parsed: dict[str, EngineRange] = {}
    rows = find_rows(trace, ("user_annotation",), partial(_parse_into, parsed))
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


def collective_identity(found: EngineRange) -> Identity | None:
    """Return the collective of a launch, wait or comm range; None if the range does not identify one."""
    if found.group is None or found.sequence is None or found.kind is None:
        return None
    return found.group, found.sequence, found.kind


def index_by_identity(spans: Sequence[RangeSpan], verb: RangeVerb) -> Mapping[Identity, RangeSpan]:
    """Return the spans of one verb by collective. Of several waits for one, the longest is kept."""
    found: dict[Identity, RangeSpan] = {}
    for span in spans:
        key = collective_identity(span.range) if span.range.verb is verb else None
        if key is None:
            continue
        earlier = found.get(key)
        if earlier is None or span.end_ns - span.start_ns > earlier.end_ns - earlier.start_ns:
            found[key] = span
    return found


_MAX_ANNOTATION_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPattern:
    """Pattern of one engine's names of units: ``unit`` is a template over the groups of ``pattern``."""

    pattern: str
    unit: str


#: FSDP2 writes ``FSDP::all_gather (blocks.0) [pg=8]``; the root module has no name, and so no parentheses.
UNIT_PATTERNS = (
    UnitPattern(pattern=r"FSDP::\w+ \((.+)\)( \[pg=\d+\])?", unit=r"\1\2"),
    UnitPattern(pattern=r"FSDP::\w+_prefetch for (.+)", unit=r"\1"),
    UnitPattern(
        pattern=r"FSDP::(?:(?:all_gather|pre|post)\w*|\w+_prefetch for )(?: \(\))?( \[pg=\d+\])?",
        unit=r"root\1",
    ),
    UnitPattern(pattern=r"FSDP::(\w+)", unit=r"FSDP.\1"),
    UnitPattern(pattern=r"FullyShardedDataParallel\._?(\w+)", unit=r"FSDP.\1"),
    UnitPattern(pattern=r"DistributedDataParallel\._?(\w+)", unit=r"DDP.\1"),
)
_COMPILED_UNITS = tuple((re.compile(row.pattern, re.ASCII), row.unit) for row in UNIT_PATTERNS)


def parse_unit(annotation: str) -> str | None:
    """Return the unit that an annotation names, or None."""
    if len(annotation) > _MAX_ANNOTATION_LENGTH:
        return None
    for pattern, unit in _COMPILED_UNITS:
        found = pattern.fullmatch(annotation)
        if found is not None:
            return found.expand(unit)
    stated = parse_range(annotation)
    return stated.unit if stated is not None else None


def find_units(trace: Trace, threads: Int64s, times_ns: Int64s) -> list[str | None]:
    """Return the unit around each instant on its thread, or None."""
    found = find_rows(trace, ("user_annotation", "cpu_op"), lambda name: parse_unit(name) is not None)
    rows = IntervalIndex(trace, found).at(threads, times_ns) if len(found) else np.full(len(threads), -1)
    return [parse_unit(trace.name[row]) if row >= 0 else None for row in rows.tolist()]


def find_rows(trace: Trace, categories: Collection[str], named: Callable[[str], bool]) -> Int64s:
    """Return the rows of some categories whose name matches, by start; ``named`` is called once per name."""
    rows = np.flatnonzero(trace.category.where(lambda category: category in categories))
    codes = trace.name.codes[rows].astype(np.int64)
    found = rows[_match_names(trace, codes, named)[codes]] if len(rows) else rows
    order = np.argsort(trace.start_ns[found], kind="stable")
    return found[order].astype(np.int64)


def _match_names(trace: Trace, codes: Int64s, named: Callable[[str], bool]) -> Mask:
    answers = np.zeros(len(trace.name.texts), dtype=np.bool_)
    used = np.flatnonzero(np.bincount(codes, minlength=len(answers)))
    answers[used] = [named(trace.name.texts[code]) for code in used.tolist()]
    return answers


class IntervalIndex:
    """Index of intervals by thread, to find the innermost one around an instant."""

    def __init__(self, trace: Trace, rows: Int64s) -> None:
        start, duration, thread = trace.start_ns[rows], trace.duration_ns[rows], trace.thread[rows]
        order = np.lexsort((-duration, start, thread))
        self._rows = rows[order]
        self._thread, self._start = thread[order], start[order]
        self._end = self._start + duration[order]
        self._outer = _find_outer_intervals(self._thread, self._start, self._end)

    def at(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """Return the row of the innermost interval around each instant, or -1."""
        index = self._last_begun(threads, times_ns)
        while (closed := (index >= 0) & (self._end[index] < times_ns)).any() if len(self._rows) else False:
            index[closed] = self._outer[index[closed]]
        return np.where(index >= 0, self._rows[index], -1) if len(self._rows) else index

    def _last_begun(self, threads: Int64s, times_ns: Int64s) -> Int64s:
        """Return the last interval of the thread that starts no later; intervals sort before instants."""
        count, asked = len(self._rows), len(times_ns)
        thread = np.concatenate((self._thread, threads))
        time = np.concatenate((self._start, times_ns))
        order = np.lexsort((np.arange(count + asked), time, thread))
        begun = np.maximum.accumulate(np.where(order < count, order, -1))
        index = np.empty(count + asked, dtype=np.int64)
        index[order] = begun
        index = index[count:]
        same = (index >= 0) & (self._thread[index] == threads) if count else np.zeros(asked, dtype=np.bool_)
        return np.where(same, index, -1)


def _find_outer_intervals(thread: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Return, for each interval, the innermost one of its thread that is open at its start, or -1."""
    outer, stack = [], list[tuple[int, int, int]]()
    for index, span in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        while stack and (stack[-1][1] != span[0] or stack[-1][2] <= span[1]):
            stack.pop()
        outer.append(stack[-1][0] if stack else -1)
        stack.append((index, span[0], span[2]))
    return np.array(outer, dtype=np.int64)
