"""Decode the ``events`` table of one rank to numpy columns, once, and select rows of them.

The readers of steps, host calls and phases share these columns. Predicates on names run once per distinct
name, because a trace has thousands of times more rows than names.
"""

from collections.abc import Callable, Collection
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import Int64s, Intervals
from zprof.run.arrow_arrays import join_chunks, read_known, read_numbers

#: Placeholder for the stream of a row without one.
NO_STREAM = np.iinfo(np.int64).min
Codes = npt.NDArray[np.int32]


class EventColumns:
    """Columns of an ``events`` table; each is decoded when it is first used.

    ``category`` and ``name`` are codes: indexes into ``categories`` and ``names``.
    """

    def __init__(self, events: pa.Table) -> None:
        self._events = events
        self.categories, self.category = _encode_column(events, "category")

    @cached_property
    def _coded_names(self) -> tuple[list[str], Codes]:
        return _encode_column(self._events, "name")

    @property
    def names(self) -> list[str]:
        """The texts of the names; some may be of no row."""
        return self._coded_names[0]

    @property
    def name(self) -> Codes:
        """The name of each row, as an index into ``names``."""
        return self._coded_names[1]

    @cached_property
    def spans(self) -> Intervals:
        """Start and end of each row."""
        start = self._read("start_ns")
        spans = np.empty((len(start), 2), dtype=np.int64)
        spans[:, 0] = start
        np.add(start, self._read("duration_ns"), out=spans[:, 1])
        return spans

    @cached_property
    def thread(self) -> Int64s:
        """The thread of each row."""
        return self._read("thread")

    @cached_property
    def stream(self) -> Int64s:
        """The stream of each row, ``NO_STREAM`` without one."""
        return self._read("stream", NO_STREAM)

    @cached_property
    def correlation(self) -> Int64s:
        """The correlation of each row, 0 without one."""
        return self._read("correlation", 0)

    @cached_property
    def size_bytes(self) -> Int64s:
        """The size of the copy of each row, 0 without one."""
        return self._read("bytes", 0)

    def match_categories(self, categories: Collection[str]) -> Mask:
        """Mark the rows of these categories."""
        return look_up([text in categories for text in self.categories], self.category)

    def list_categories(self) -> frozenset[str]:
        """Return the categories that have a row."""
        counts = np.bincount(self.category, minlength=len(self.categories))
        return frozenset(self.categories[code] for code in np.flatnonzero(counts).tolist())

    def find_names(self, codes: Codes, predicate: Callable[[str], object]) -> Mask:
        """Mark the names that are among ``codes`` and for which the predicate returns something true."""
        used = find_used(codes, len(self.names))
        is_match = np.zeros(max(1, len(self.names)), dtype=np.bool_)
        for code in used:
            if predicate(self.names[code]):
                is_match[code] = True
        return is_match

    def _read(self, column: str, missing: int | None = None) -> Int64s:
        values = join_chunks(self._events.column(column))
        decoded: Int64s = read_numbers(values)
        if missing is not None and values.null_count:
            return np.where(read_known(values), decoded, missing)
        return decoded


def decode_events(events: "pa.Table | EventColumns") -> EventColumns:
    """Return the columns of an ``events`` table that may be decoded already."""
    return events if isinstance(events, EventColumns) else EventColumns(events)


def list_names(events: pa.Table) -> list[str]:
    """Return the distinct names of the rows."""
    names, codes = _encode_column(events, "name")
    return [str(names[code]) for code in find_used(codes, len(names))]


def find_used(codes: Codes, count: int) -> list[int]:
    """Return the distinct codes, in ascending order; they are below ``count``."""
    used: list[int] = np.flatnonzero(np.bincount(codes, minlength=count)).tolist()
    return used


def look_up(is_match: list[bool], codes: Codes) -> Mask:
    """Return the entry of ``is_match`` for each code."""
    selected: Mask = np.array(is_match or [False], dtype=np.bool_)[codes]
    return selected


def _encode_column(table: pa.Table, column: str) -> tuple[list[str], Codes]:
    encoded = join_chunks(table.column(column))
    return encoded.dictionary.to_pylist(), read_numbers(encoded.indices)
