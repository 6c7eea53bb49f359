"""Decode one rank's ``events`` table to numpy columns, once, and assign roles to its rows.

Steps, host calls and phases are read from these columns. Predicates on names run once per distinct name,
because a trace has thousands of times more rows than names.

Rows are selected by category first, because traces with Python stacks have many times more function rows than
work rows. On a device, compute is every kernel that is not a collective; copies and fills are neither. On a
CPU, the main thread (the one with the most operators) computes while it runs an operator such as ``aten::mm``
or a ``::compute`` range.
"""

import re
from collections.abc import Callable, Collection
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zprof.analysis.columns import Columns, Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.model.communication_kernels import is_collective_kernel
from zprof.run.ranges import RangeVerb, parse_range
from zprof.run.table_reader import join_chunks, read_known, read_numbers

#: Placeholder for a missing stream.
NO_STREAM = np.iinfo(np.int64).min
Codes = npt.NDArray[np.int32]
#: Categories of host calls into a device driver, and of device work.
CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset"})
WORK_CATEGORIES = frozenset({"kernel"}) | COPY_CATEGORIES
_OPERATOR = re.compile(r"(?!_?c10d|autograd::|torch::|profiler::|record_function)\w+::\w", re.ASCII)


class EventColumns:
    """Columns of an ``events`` table; each is decoded when it is first used.

    ``category`` and ``name`` are codes: indices into ``categories`` and ``names``.
    """

    def __init__(self, events: pa.Table) -> None:
        self._events = events
        self.categories, self.category = _encode_column(events, "category")

    @cached_property
    def _coded_names(self) -> tuple[list[str], Codes]:
        return _encode_column(self._events, "name")

    @property
    def names(self) -> list[str]:
        """The name strings; some may occur in no row."""
        return self._coded_names[0]

    @property
    def name(self) -> Codes:
        """Each row's name, as an index into ``names``."""
        return self._coded_names[1]

    @cached_property
    def spans(self) -> Intervals:
        """Each row's start and end."""
        start = self._read("start_ns")
        spans = np.empty((len(start), 2), dtype=np.int64)
        spans[:, 0] = start
        np.add(start, self._read("duration_ns"), out=spans[:, 1])
        return spans

    @cached_property
    def thread(self) -> Int64s:
        """Each row's thread."""
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

    def _read(self, column: str, missing: int | None = None) -> Int64s:
        values = join_chunks(self._events.column(column))
        decoded: Int64s = read_numbers(values)
        if missing is not None and values.null_count:
            return np.where(read_known(values), decoded, missing)
        return decoded


def decode_events(events: "pa.Table | EventColumns") -> EventColumns:
    """Return the columns of an ``events`` table, which may be decoded already."""
    return events if isinstance(events, EventColumns) else EventColumns(events)


def list_names(events: pa.Table) -> list[str]:
    """Return the rows' distinct names."""
    names, codes = _encode_column(events, "name")
    return [str(names[code]) for code in find_used(codes, len(names))]


def find_used(codes: Codes, count: int) -> list[int]:
    """Return the distinct codes, in ascending order; all are below ``count``."""
    return np.flatnonzero(np.bincount(codes, minlength=count)).tolist()


def look_up(is_match: list[bool], codes: Codes) -> Mask:
    """Return the entry of ``is_match`` for each code."""
    return np.array(is_match or [False], dtype=np.bool_)[codes]


def _encode_column(table: pa.Table, column: str) -> tuple[list[str], Codes]:
    encoded = join_chunks(table.column(column))
    return encoded.dictionary.to_pylist(), read_numbers(encoded.indices)


class EventView:
    """Rows of some categories; predicates run once per distinct name among the requested rows.

    ``rows``: indices of the rows in the table.
    """

    def __init__(self, events: pa.Table | EventColumns, categories: Collection[str]) -> None:
        columns = decode_events(events)
        self.rows: Int64s = np.flatnonzero(columns.match_categories(categories))
        self.spans: Intervals = columns.spans[self.rows]
        self.thread: Int64s = columns.thread[self.rows]
        self._columns = columns
        self._category, self._name = columns.category[self.rows], columns.name[self.rows]

    @cached_property
    def stream(self) -> Int64s:
        """The stream of each row, ``NO_STREAM`` without one."""
        return self._columns.stream[self.rows]

    @cached_property
    def correlation(self) -> Int64s:
        """The correlation of each row, 0 without one."""
        return self._columns.correlation[self.rows]

    @cached_property
    def size_bytes(self) -> Int64s:
        """The size of the copy of each row, 0 without one."""
        return self._columns.size_bytes[self.rows]

    def match_categories(self, *categories: str) -> Mask:
        """Mark the rows of these categories."""
        return look_up([text in categories for text in self._columns.categories], self._category)

    def match_names(self, rows: Mask, predicate: Callable[[str], object]) -> Mask:
        """Mark the ``rows`` whose name satisfies the predicate."""
        names = self._columns.names
        is_match = np.zeros(max(1, len(names)), dtype=np.bool_)
        for code in find_used(self._name[rows], len(names)):
            is_match[code] = bool(predicate(names[code]))
        return rows & is_match[self._name]

    def names(self, rows: Mask) -> list[str]:
        """Return the names of ``rows``."""
        names = self._columns.names
        return [names[code] for code in self._name[rows].tolist()]

    def coded(self, rows: Int64s) -> tuple[tuple[str, ...], Int64s]:
        """Return the distinct names of ``rows`` (row numbers), and each row's index into the names."""
        names, codes = self._columns.names, self._name[rows]
        used = find_used(codes, len(names))
        position = np.zeros(max(1, len(names)), dtype=np.int64)
        position[used] = np.arange(len(used))
        return tuple(names[code] for code in used), position[codes]


def find_coverage(events: EventColumns) -> Intervals:
    """Return the span from the first to the last event with a duration, as at most one interval."""
    start, end = events.spans.T
    has_duration = end > start
    if not has_duration.any():
        return EMPTY
    return intervals([start[has_duration].min()], [end[has_duration].max()])


class DeviceRoles(Struct, frozen=True, kw_only=True):
    """Masks over a view's rows: all ``work`` of a device, and its roles.

    ``described``: work with a row in the collectives table. ``nameless``: communication kernels without one.
    """

    work: Mask
    compute: Mask
    copies: Mask
    described: Mask
    nameless: Mask


class HostRoles(Struct, frozen=True, kw_only=True):
    """Masks over a view's rows: rows of the ``main`` thread, and their roles.

    ``ranges``: its annotations. Waits are ``named`` if they record their collective, else ``anonymous``.
    """

    main: Mask
    ranges: Mask
    compute: Mask
    copies: Mask
    named: Mask
    anonymous: Mask


def assign_device_roles(view: EventView, collectives: pa.Table) -> DeviceRoles:
    """Return the roles of device work.

    Args:
        view: The events, including ``WORK_CATEGORIES``.
        collectives: start_ns, end_ns and stream of the rank's collectives, which identify device collectives
            among the events.
    """
    work = view.match_categories(*WORK_CATEGORIES) & (view.spans[:, 1] > view.spans[:, 0])
    kernels = work & view.match_categories("kernel")
    # Mark the rows of ``work`` with the same start, end and stream as a collective.
    stated = Columns.from_arrow(collectives.select(["start_ns", "end_ns", "stream"]))
    stated = stated.at(np.logical_and.reduce([stated.known(name) for name in stated.names]))
    starts, ends, streams = (stated.ints(name) for name in stated.names)
    keys = set(zip(starts.tolist(), ends.tolist(), streams.tolist(), strict=True))
    rows = np.flatnonzero(work)
    rows = rows[np.isin(view.spans[rows, 0], starts)]
    is_described = np.zeros(len(work), dtype=np.bool_)
    is_described[rows] = [
        key in keys for key in zip(*view.spans[rows].T.tolist(), view.stream[rows].tolist(), strict=True)
    ]
    described = is_described
    is_communication = view.match_names(kernels, is_collective_kernel)
    return DeviceRoles(
        work=work,
        compute=kernels & ~is_communication & ~described,
        copies=work & view.match_categories(*COPY_CATEGORIES) & ~described,
        described=described,
        nameless=is_communication & ~described,
    )


def assign_host_roles(view: EventView) -> HostRoles:
    """Return the roles on a CPU rank's main thread; the view has operators and annotations."""
    operators = view.match_categories("cpu_op")
    main = view.thread == find_busiest(view.thread[operators])
    ranges = main & view.match_categories("user_annotation")
    return HostRoles(
        main=main,
        ranges=ranges,
        compute=view.match_names(operators & main, is_operator)
        | view.match_names(ranges, lambda name: _is_range(name, RangeVerb.COMPUTE)),
        copies=view.match_names(ranges, lambda name: _is_range(name, RangeVerb.COPY)),
        named=view.match_names(ranges, lambda name: _is_range(name, RangeVerb.WAIT, has_kind=True)),
        anonymous=view.match_names(ranges, lambda name: _is_range(name, RangeVerb.WAIT, has_kind=False)),
    )


def find_busiest(threads: Int64s) -> int:
    """Return the most frequent number; -1 for empty input."""
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])


def is_operator(name: str) -> bool:
    """Return True for an operator such as ``aten::mm``, not for an autograd node or a range."""
    return _OPERATOR.match(name) is not None


def _is_range(name: str, verb: RangeVerb, *, has_kind: bool | None = None) -> bool:
    """Return True for an engine range with this verb, and with or without a kind if ``has_kind`` is given."""
    parsed = parse_range(name)
    return parsed is not None and parsed.verb is verb and has_kind in (None, parsed.kind is not None)
