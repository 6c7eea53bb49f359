"""The columns of an ``events`` table that the ledger reads, cut to the rows that it needs.

Traces with Python stacks have many times more rows for functions than for work: rows are chosen by their
category, a look-up in a short dictionary, before anything else is done with them.
"""

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals

#: In place of the stream of a row that has none.
NO_STREAM = np.iinfo(np.int64).min
_Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class EventView:
    """Rows of some categories; predicates run once for each distinct name among the rows asked for.

    ``rows``: which rows of the table they are.
    """

    def __init__(self, events: pa.Table, categories: Collection[str]) -> None:
        words, codes = _encoded(events, "category")
        chosen = _look_up([word in categories for word in words], codes)
        self.rows: Int64s = np.flatnonzero(chosen)
        rows = events.drop_columns(["category"]).filter(pa.array(chosen))
        start = rows.column("start_ns").to_numpy()
        self.spans = intervals(start, start + rows.column("duration_ns").to_numpy())
        self.thread: Int64s = rows.column("thread").to_numpy()
        self.stream: Int64s = pc.fill_null(rows.column("stream"), NO_STREAM).to_numpy()
        self.correlation: Int64s = pc.fill_null(rows.column("correlation"), 0).to_numpy()
        self._categories, self._category = words, codes[chosen]
        self._names, self._name = _encoded(rows, "name")

    def category_is(self, *wanted: str) -> Mask:
        """Rows of these categories."""
        return _look_up([word in wanted for word in self._categories], self._category)

    def name_is(self, rows: Mask, predicate: Callable[[str], bool]) -> Mask:
        """Those of ``rows`` whose name answers yes."""
        used = np.flatnonzero(np.bincount(self._name[rows], minlength=len(self._names)))
        answers = np.zeros(len(self._names), dtype=np.bool_)
        for code in used.tolist():
            answers[code] = predicate(self._names[code])
        return rows & (answers[self._name] if len(answers) else False)

    def names(self, rows: Mask) -> list[str]:
        """The name of each of ``rows``."""
        return [self._names[code] for code in self._name[rows].tolist()]

    def coded(self, rows: Int64s) -> tuple[tuple[str, ...], Int64s]:
        """The distinct names of ``rows`` (numbers of rows), and the place of each row's among them."""
        used, codes = np.unique(self._name[rows], return_inverse=True)
        return tuple(self._names[code] for code in used.tolist()), codes.astype(np.int64)


def categories_of(events: pa.Table) -> frozenset[str]:
    """The categories that have a row."""
    words, codes = _encoded(events, "category")
    return frozenset(words[code] for code in np.flatnonzero(np.bincount(codes, minlength=len(words))))


def coverage_of(events: pa.Table) -> Intervals:
    """From the first to the last event that lasted; one interval, or none."""
    start, duration = (events.column(name).to_numpy() for name in ("start_ns", "duration_ns"))
    lasted = duration > 0
    if not lasted.any():
        return EMPTY
    return intervals([start[lasted].min()], [(start + duration)[lasted].max()])


def _encoded(table: pa.Table, column: str) -> tuple[list[str], _Codes]:
    combined = table.column(column).unify_dictionaries().combine_chunks()
    return combined.dictionary.to_pylist(), combined.indices.to_numpy(zero_copy_only=False)


def _look_up(answers: list[bool], codes: _Codes) -> Mask:
    table = np.array(answers or [False], dtype=np.bool_)
    found: Mask = table[codes] if len(codes) else np.zeros(0, dtype=np.bool_)
    return found
