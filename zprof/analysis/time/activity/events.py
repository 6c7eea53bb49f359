"""Sorts the events of one rank into what its ledger needs: compute, waits, copies.

On a CPU rank the main thread (the one with most operators) computes while it runs an operator such as
``aten::mm``, or a ``::compute`` range.  Wrappers are no compute: ``autograd::…`` encloses hooks and the
waits in them, ``c10d::…`` is the launch of a collective.  On a device compute is every kernel that is no
collective.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, subtract, union
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.model.kernels import is_collective_kernel
from zprof.run.ranges import RangeVerb, parse_range

_OPERATOR = re.compile(r"(?!_?c10d|autograd::|torch::|profiler::|record_function)\w+::\w", re.ASCII)
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_Mask = npt.NDArray[np.bool_]


def _no_kernels() -> Int64s:
    return np.empty((0, 3), dtype=np.int64)


def _no_streams() -> Int64s:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a rank did when.  ``coverage`` spans its first to its last event.

    ``waits``: the main thread blocked for a collective.  ``anonymous_waits``: those of them, outside all
    others, that do not say which.  ``launched``: launch and end of each kernel and copy of a device.
    ``kernels``: launch, start and end of each compute kernel, ``kernel_stream`` its stream beside it.
    """

    on_device: bool
    compute: Intervals
    waits: Intervals
    anonymous_waits: Intervals
    copies: Intervals
    coverage: Intervals
    launched: Intervals
    kernels: Int64s = field(default_factory=_no_kernels)
    kernel_stream: Int64s = field(default_factory=_no_streams)

    def on(self, clock: RankClock) -> "Activity":
        """The same on the common clock."""
        return replace(
            self,
            compute=clock.common(self.compute),
            waits=clock.common(self.waits),
            anonymous_waits=clock.common(self.anonymous_waits),
            copies=clock.common(self.copies),
            coverage=clock.common(self.coverage),
            launched=clock.common(self.launched),
            kernels=clock.common(self.kernels),
        )


def read_activity(events: pa.Table) -> Activity:
    """Sort the rows of an ``events`` table."""
    view = _Events(events)
    if view.category_is("kernel").any():
        return _device_activity(view)
    return _cpu_activity(view)


class _Events:
    """Columns of the table; predicates run once for each distinct name, not once a row."""

    def __init__(self, events: pa.Table) -> None:
        start = events.column("start_ns").to_numpy()
        self.spans = intervals(start, start + events.column("duration_ns").to_numpy())
        self.thread: Int64s = events.column("thread").to_numpy()
        self.correlation: Int64s = pc.fill_null(events.column("correlation"), 0).to_numpy()
        self.stream: Int64s = pc.fill_null(events.column("stream"), -1).to_numpy()
        self._categories, self._category = _encoded(events, "category")
        self._names, self._name = _encoded(events, "name")

    def category_is(self, *wanted: str) -> _Mask:
        return _look_up([word in wanted for word in self._categories], self._category)

    def name_is(self, predicate: Callable[[str], bool]) -> _Mask:
        return _look_up([predicate(word) for word in self._names], self._name)

    def launches(self, work: _Mask, calls: _Mask) -> Intervals:
        """Start of the call and end of the work, for work whose call is in the trace."""
        starts, found = self._calls_of(work, calls)
        return intervals(starts[found], self.spans[work, 1][found])

    def kernels(self, work: _Mask, calls: _Mask) -> Int64s:
        """Launch, start and end; where the call is not in the trace the start stands for the launch."""
        starts, found = self._calls_of(work, calls)
        spans = self.spans[work]
        return np.column_stack((np.where(found, starts, spans[:, 0]), spans))

    def _calls_of(self, work: _Mask, calls: _Mask) -> tuple[Int64s, _Mask]:
        """For each row of work the start of its call, and whether that is in the trace."""
        calls = calls & (self.correlation > 0)
        order = np.argsort(self.correlation[calls], kind="stable")
        ids, starts = self.correlation[calls][order], self.spans[calls, 0][order]
        wanted = self.correlation[work]
        if not len(ids):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
        index = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return starts[index], ids[index] == wanted

    @property
    def coverage(self) -> Intervals:
        if not len(self.spans):
            return EMPTY
        return intervals([self.spans[:, 0].min()], [self.spans[:, 1].max()])


def _cpu_activity(view: _Events) -> Activity:
    operators = view.category_is("cpu_op")
    main = view.thread == _busiest(view.thread[operators])
    ranges = main & view.category_is("user_annotation")
    compute = (operators & main & view.name_is(_is_operator)) | (ranges & view.name_is(_is_compute))
    named = view.spans[ranges & view.name_is(_is_named_wait)]
    anonymous = view.spans[ranges & view.name_is(_is_anonymous_wait)]
    waits = union(named, anonymous)
    copies = union(view.spans[ranges & view.name_is(_is_copy)])
    return Activity(
        on_device=False,
        compute=subtract(view.spans[compute], union(waits, copies)),
        waits=waits,
        anonymous_waits=subtract(anonymous, named),
        copies=subtract(copies, waits),
        coverage=view.coverage,
        launched=EMPTY,
    )


def _device_activity(view: _Events) -> Activity:
    kernels = view.category_is("kernel") & ~view.name_is(is_collective_kernel)
    return Activity(
        on_device=True,
        compute=union(view.spans[kernels]),
        waits=EMPTY,
        anonymous_waits=EMPTY,
        copies=union(view.spans[view.category_is(*_COPIES)]),
        coverage=view.coverage,
        launched=view.launches(view.category_is("kernel", *_COPIES), view.category_is(*_CALLS)),
        kernels=view.kernels(kernels, view.category_is(*_CALLS)),
        kernel_stream=view.stream[kernels],
    )


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def _is_compute(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COMPUTE


def _is_copy(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COPY


def _is_named_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is not None


def _is_anonymous_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is None


def _busiest(threads: Int64s) -> int:
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _encoded(table: pa.Table, column: str) -> tuple[list[str], npt.NDArray[np.int32]]:
    combined = table.column(column).unify_dictionaries().combine_chunks()
    return combined.dictionary.to_pylist(), combined.indices.to_numpy(zero_copy_only=False)


def _look_up(answers: list[bool], codes: npt.NDArray[np.int32]) -> _Mask:
    table = np.array(answers or [False], dtype=np.bool_)
    found: _Mask = table[codes] if len(codes) else np.zeros(0, dtype=np.bool_)
    return found
