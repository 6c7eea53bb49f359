"""Select rows of an ``events`` table, and assign roles: compute, communication, copy or wait.

Rows are selected by category first, because traces with Python stacks have many times more rows for functions
than for work. On a device, compute is every kernel that is not a collective; copies and fills are neither. On
a CPU, the main thread (the one with the most operators) computes while it runs an operator such as
``aten::mm`` or a ``::compute`` range.
"""

import re
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.model.kernels import is_collective_kernel
from zprof.run.ranges import RangeVerb, parse_range

#: Placeholder for the stream of a row without one.
NO_STREAM = np.iinfo(np.int64).min
_Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
#: Categories of the host's calls into a device's driver, and of what a device runs.
CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
COPY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset"})
WORK_CATEGORIES = frozenset({"kernel"}) | COPY_CATEGORIES
_OPERATOR = re.compile(r"(?!_?c10d|autograd::|torch::|profiler::|record_function)\w+::\w", re.ASCII)


class EventView:
    """Rows of some categories; predicates run once per distinct name among the requested rows.

    ``rows``: their indexes in the table.
    """

    def __init__(self, events: pa.Table, categories: Collection[str]) -> None:
        texts, codes = _encode_column(events, "category")
        selected = _look_up([text in categories for text in texts], codes)
        self.rows: Int64s = np.flatnonzero(selected)
        rows = events.drop_columns(["category"]).filter(pa.array(selected))
        start = rows.column("start_ns").to_numpy()
        self.spans = intervals(start, start + rows.column("duration_ns").to_numpy())
        self.thread: Int64s = rows.column("thread").to_numpy()
        self.stream: Int64s = pc.fill_null(rows.column("stream"), NO_STREAM).to_numpy()
        self.correlation: Int64s = pc.fill_null(rows.column("correlation"), 0).to_numpy()
        self._categories, self._category = texts, codes[selected]
        self._names, self._name = _encode_column(rows, "name")

    def match_categories(self, *categories: str) -> Mask:
        """Mark the rows of these categories."""
        return _look_up([text in categories for text in self._categories], self._category)

    def match_names(self, rows: Mask, predicate: Callable[[str], object]) -> Mask:
        """Mark the ``rows`` for whose name the predicate returns something true."""
        used = np.flatnonzero(np.bincount(self._name[rows], minlength=len(self._names)))
        is_match = np.zeros(len(self._names), dtype=np.bool_)
        is_match[used] = [
            bool(answer) for answer in map(predicate, map(self._names.__getitem__, used.tolist()))
        ]
        return rows & (is_match[self._name] if len(is_match) else False)

    def names(self, rows: Mask) -> list[str]:
        """Return the name of each of ``rows``."""
        return [self._names[code] for code in self._name[rows].tolist()]

    def coded(self, rows: Int64s) -> tuple[tuple[str, ...], Int64s]:
        """Return the distinct names of ``rows`` (row numbers), and each row's index into them."""
        used, codes = np.unique(self._name[rows], return_inverse=True)
        return tuple(self._names[code] for code in used.tolist()), codes.astype(np.int64)


def list_categories(events: pa.Table) -> frozenset[str]:
    """Return the categories that have a row."""
    texts, codes = _encode_column(events, "category")
    return frozenset(texts[code] for code in np.flatnonzero(np.bincount(codes, minlength=len(texts))))


def find_coverage(events: pa.Table) -> Intervals:
    """Return the span from the first to the last event with a duration, as one interval or none."""
    start, duration = (events.column(name).to_numpy() for name in ("start_ns", "duration_ns"))
    has_duration = duration > 0
    if not has_duration.any():
        return EMPTY
    return intervals([start[has_duration].min()], [(start + duration)[has_duration].max()])


def _encode_column(table: pa.Table, column: str) -> tuple[list[str], _Codes]:
    combined = table.column(column).unify_dictionaries().combine_chunks()
    return combined.dictionary.to_pylist(), combined.indices.to_numpy(zero_copy_only=False)


def _look_up(is_match: list[bool], codes: _Codes) -> Mask:
    table = np.array(is_match or [False], dtype=np.bool_)
    selected: Mask = table[codes] if len(codes) else np.zeros(0, dtype=np.bool_)
    return selected


class DeviceRoles(Struct, frozen=True, kw_only=True):
    """Masks over the rows of a view: all ``work`` of a device, and its roles.

    ``described``: work with a row in the collectives table. ``nameless``: communication kernels without such
    a row.
    """

    work: Mask
    compute: Mask
    copies: Mask
    described: Mask
    nameless: Mask


class HostRoles(Struct, frozen=True, kw_only=True):
    """Masks over the rows of a view: rows of the ``main`` thread, and their roles.

    ``ranges`` are its annotations. Waits are ``named`` if they record their collective, else ``anonymous``.
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
        collectives: start_ns, end_ns and stream of the collectives of this rank. Those that a device ran are
            identified among the events by these three.
    """
    work = view.match_categories(*WORK_CATEGORIES) & (view.spans[:, 1] > view.spans[:, 0])
    kernels = work & view.match_categories("kernel")
    described = _find_described(view, work, collectives)
    is_communication = view.match_names(kernels, is_collective_kernel)
    return DeviceRoles(
        work=work,
        compute=kernels & ~is_communication & ~described,
        copies=work & view.match_categories(*COPY_CATEGORIES) & ~described,
        described=described,
        nameless=is_communication & ~described,
    )


def assign_host_roles(view: EventView) -> HostRoles:
    """Return the roles on the main thread of a CPU rank; the view has operators and annotations."""
    operators = view.match_categories("cpu_op")
    main = view.thread == find_busiest(view.thread[operators])
    ranges = main & view.match_categories("user_annotation")
    return HostRoles(
        main=main,
        ranges=ranges,
        compute=view.match_names(operators & main, _is_operator) | view.match_names(ranges, _is_compute),
        copies=view.match_names(ranges, _is_copy),
        named=view.match_names(ranges, _is_named_wait),
        anonymous=view.match_names(ranges, _is_anonymous_wait),
    )


def find_busiest(threads: Int64s) -> int:
    """Return the most frequent number; -1 for none."""
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _find_described(view: EventView, work: Mask, collectives: pa.Table) -> Mask:
    """Mark the rows of ``work`` with the same start, end and stream as a collective."""
    rows = _select_on_streams(collectives)
    candidates = np.flatnonzero(work & np.isin(view.spans[:, 0], rows["start_ns"]))
    keys = pd.MultiIndex.from_arrays(
        [view.spans[candidates, 0], view.spans[candidates, 1], view.stream[candidates]]
    )
    is_described = np.zeros(len(work), dtype=np.bool_)
    if len(candidates):
        is_described[candidates] = keys.isin(pd.MultiIndex.from_frame(rows))
    return is_described


def _select_on_streams(collectives: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = collectives.select(["start_ns", "end_ns", "stream"]).drop_null().to_pandas()
    return frame


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def _is_compute(name: str) -> bool:
    parsed = parse_range(name)
    return parsed is not None and parsed.verb is RangeVerb.COMPUTE


def _is_copy(name: str) -> bool:
    parsed = parse_range(name)
    return parsed is not None and parsed.verb is RangeVerb.COPY


def _is_named_wait(name: str) -> bool:
    parsed = parse_range(name)
    return parsed is not None and parsed.verb is RangeVerb.WAIT and parsed.kind is not None


def _is_anonymous_wait(name: str) -> bool:
    parsed = parse_range(name)
    return parsed is not None and parsed.verb is RangeVerb.WAIT and parsed.kind is None
