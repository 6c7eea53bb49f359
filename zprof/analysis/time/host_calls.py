"""Extract host activity that can stall the device: allocator calls, synchronization, data loader, copies.

Allocator calls and synchronization count only on threads that launch device work. Host pace is the time
between two collective launches, without waits for other ranks. A device wait is a runtime call that returns
only after the device has reached some point.

An operator alone does not prove a wait, because ``aten::item`` looks the same for CPU and device tensors. A
wait contains a blocking runtime call:

* ``cuda/hip…Synchronize``;
* a copy to pageable host memory, or from it if the copy had started when the call returned (small ones are
  staged, and the call returns); CUDA toolkit, "API synchronization behavior";
* a copy between host and device whose call has no ``Async`` in its name; if the trace does not say whether
  the memory is pinned, also a call that returned after its copy had ended;
* any copy call without ``Async`` (ROCm labels some scalar reads as copies within the device);
* a copy call of at least 1 ms whose copy is not in the trace.

All calls of one operator form one wait, from the start of the first to the end of the last.
"""

import re
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, NO_INTS, Int64s, Intervals, covered, intersect, intervals, union
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import CALL_CATEGORIES, EventColumns, EventView, decode_events
from zprof.run.reader import Run
from zprof.run.table_reader import join_chunks, make_array, read_numbers

#: A copy call without a copy in the trace that took at least this long did more than enqueue it.
_MIN_BLOCKED_NS = 1_000_000
_TO_HOST, _TO_DEVICE = "DtoH", "HtoD"
_PAGEABLE, _PINNED = "Pageable", "Pinned"
_COPY_CALL = re.compile(r"(cuda|hip|cu)Memcpy\w*")
_ASYNC = "Async"
_OPERATOR = "aten::"
_NO_MASK = np.empty(0, dtype=np.bool_)
DEVICE_COPY_CATEGORIES = frozenset({"gpu_memcpy"})
_CALL_CATEGORIES = ("cuda_runtime", "cuda_driver")
PYTHON_CATEGORY = "python_function"
_THREAD_CATEGORIES = frozenset({*_CALL_CATEGORIES, "user_annotation", "cpu_op", PYTHON_CATEGORY})
#: A thread counts as active between two events at most this far apart; a launch takes far less.
MAX_QUIET_NS = 1_000_000
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "correlation", "bytes")
_HOST_CATEGORIES = frozenset({*_CALL_CATEGORIES, "user_annotation", "cpu_op"})
_CATEGORIES = _HOST_CATEGORIES | DEVICE_COPY_CATEGORIES
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostFree)\w*|(cu|hip)Mem(Create|Map|Unmap|Release)"
)
#: Calls that allocate or free device memory, without stream-ordered pool calls, which are cheap.
_DEVICE_ALLOC = re.compile(r"(cuda|hip)Malloc(Pitch|Managed)?|(cu|hip)Mem(Create|Map)|cuMemAlloc(_v2)?")
_DEVICE_FREE = re.compile(r"(cuda|hip)Free|(cu|hip)Mem(Unmap|Release)|cuMemFree(_v2)?")
_SCALAR_READ = re.compile(r"aten::(item|_local_scalar_dense)")
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
_LIMITER = re.compile(r"(FullyShardedDataParallel|FSDP\w*)\.rate_limiter")
_OPTIMIZER = re.compile(r"Optimizer\.step#.*")
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch\w*")
_BACKWARD = re.compile(
    r"autograd::engine::evaluate_function\b.*|\w+Backward\d*|FSDP::(root_)?(pre|post)_backward.*"
    r"|FullyShardedDataParallel\._?(pre|post)_backward_hook\w*"
)
_COMPILED = re.compile(
    r"Torch-Compiled Region.*|CompiledFunction(Backward)?|#* ?Call CompiledFxGraph.*|(\w+::)?triton_\w+"
)
_COLLECTIVE = re.compile(r"_?c10d(_functional)?::\w+|\w{1,64}::launch\b.*", re.ASCII | re.DOTALL)
#: Matches at least every name matched by one of the call patterns.
_ANY_CALL = re.compile(
    "|".join(
        f"(?:{pattern.pattern})"
        for pattern in (
            *(_ALLOCATOR, _DEVICE_ALLOC, _DEVICE_FREE, _SCALAR_READ, _LOADER, _LIMITER),
            *(_OPTIMIZER, _LAUNCH, _COMPILED, _COLLECTIVE),
        )
    ),
    re.DOTALL,
)

#: Column of the collectives table with the host time before each launch.
HOST_NS = "host_ns"


class WaitKind(StrEnum):
    """What a wait is for; for a copy, its direction and the kind of host memory if known."""

    TO_HOST_PAGEABLE = "copy to pageable host memory"
    TO_HOST_PINNED = "copy to pinned host memory"
    TO_HOST = "copy to the host"
    TO_DEVICE_PAGEABLE = "copy from pageable host memory"
    TO_DEVICE_PINNED = "copy from pinned host memory"
    TO_DEVICE = "copy from the host"
    COPY = "copy"
    STREAM = "synchronization of a stream"
    EVENT = "synchronization of an event"
    DEVICE = "synchronization of the device"


#: By precedence: an operator with calls of several kinds takes the first kind.
_KINDS = tuple(WaitKind)
_SYNC_KINDS = (
    (re.compile(r"((cuda|hip)Stream|cuStream)Synchronize\w*"), WaitKind.STREAM),
    (re.compile(r"((cuda|hip)Event|cuEvent)Synchronize\w*"), WaitKind.EVENT),
    (re.compile(r"((cuda|hip)Device|(cu|hip)Ctx)Synchronize\w*"), WaitKind.DEVICE),
)
_NO_KIND = len(_KINDS)


class DeviceWaits(Struct, frozen=True, kw_only=True):
    """A host's device waits, one row each, sorted by start.

    ``kind``: index into the members of ``WaitKind``. ``operator``: index into ``names``, of the operator
    around the calls, else of the last call.
    """

    spans: Intervals = EMPTY
    kind: Int64s = NO_INTS
    operator: Int64s = NO_INTS
    names: tuple[str, ...] = ()

    def on(self, clock: RankClock) -> "DeviceWaits":
        """Return the same waits on the common clock."""
        return replace(self, spans=clock.common(self.spans))


def select_device_waits(view: EventView, threads: Int64s) -> DeviceWaits:
    """Select the waits on these threads; the view has operators, host calls and device copies."""
    rows, kinds, is_blocking = _find_calls(view, threads)
    if not is_blocking.any():
        return DeviceWaits()
    operators = _find_outermost_operators(view, rows)
    # calls of one operator form one wait; a call outside operators is a wait by itself
    groups = np.where(operators >= 0, operators, -1 - rows)
    _, group = np.unique(groups, return_inverse=True)
    count = int(group.max()) + 1
    kind = np.full(count, _NO_KIND, dtype=np.int64)
    np.minimum.at(kind, group, kinds)
    blocking = rows[is_blocking]
    begin = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    end = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)
    named = np.full(count, -1, dtype=np.int64)
    np.minimum.at(begin, group[is_blocking], view.spans[blocking, 0])
    np.maximum.at(end, group[is_blocking], view.spans[blocking, 1])
    named[group] = np.where(operators >= 0, operators, rows)
    waited = np.flatnonzero(end >= begin)
    waited = waited[np.argsort(begin[waited], kind="stable")]
    names, operator = view.coded(named[waited])
    return DeviceWaits(
        spans=intervals(begin[waited], end[waited]), kind=kind[waited], operator=operator, names=names
    )


def _find_calls(view: EventView, threads: Int64s) -> tuple[Int64s, Int64s, Mask]:
    """Return the calls that copy or synchronize, their kinds, and which of them block their caller."""
    on_threads = view.match_categories(*CALL_CATEGORIES) & np.isin(view.thread, threads)
    kind = np.full(len(view.thread), _NO_KIND, dtype=np.int64)
    blocks = np.zeros(len(view.thread), dtype=np.bool_)
    for pattern, sync_kind in _SYNC_KINDS:
        is_sync = view.match_names(on_threads, pattern.fullmatch)
        kind[is_sync], blocks[is_sync] = _KINDS.index(sync_kind), True
    calls = np.flatnonzero(view.match_names(on_threads, _COPY_CALL.fullmatch))
    copies = find_copies_of_calls(view, calls)
    kind[calls], blocks[calls] = _judge_copies(view, calls, copies)
    rows = np.flatnonzero(kind != _NO_KIND)
    return rows, kind[rows], blocks[rows]


def find_copies_of_calls(view: EventView, calls: Int64s) -> Int64s:
    """Return the last copy requested by each call, as a row of the view; -1 if it is not in the trace."""
    copies = np.flatnonzero(view.match_categories("gpu_memcpy") & (view.correlation > 0))
    if not len(copies):
        return np.full(len(calls), -1, dtype=np.int64)
    copies = copies[np.argsort(view.correlation[copies], kind="stable")]
    ids = view.correlation[copies]
    place = np.maximum(np.searchsorted(ids, view.correlation[calls], side="right") - 1, 0)
    return np.where(ids[place] == view.correlation[calls], copies[place], -1)


def _judge_copies(view: EventView, calls: Int64s, copies: Int64s) -> tuple[Int64s, Mask]:
    """Return each copy call's kind, ``_NO_KIND`` between devices, and whether it blocks its caller."""
    is_known = copies >= 0
    end = view.spans[calls, 1]
    copied = view.spans[np.maximum(copies, 0)]

    def has(word: str) -> Mask:
        marked = view.match_names(view.match_categories("gpu_memcpy"), lambda name: word in name)
        return is_known & marked[np.maximum(copies, 0)]

    to_host, to_device, pageable, pinned = (has(w) for w in (_TO_HOST, _TO_DEVICE, _PAGEABLE, _PINNED))
    is_async = view.match_names(np.ones(len(view.thread), np.bool_), lambda name: _ASYNC in name)[calls]
    lasts = view.spans[calls, 1] - view.spans[calls, 0] >= _MIN_BLOCKED_NS
    kinds = (
        (to_host & pageable, WaitKind.TO_HOST_PAGEABLE, np.ones(len(calls), np.bool_)),
        (to_host & pinned, WaitKind.TO_HOST_PINNED, ~is_async),
        (to_host, WaitKind.TO_HOST, ~is_async | (end >= copied[:, 1])),
        (to_device & pageable, WaitKind.TO_DEVICE_PAGEABLE, ~is_async | (end >= copied[:, 0])),
        (to_device & pinned, WaitKind.TO_DEVICE_PINNED, ~is_async),
        (to_device, WaitKind.TO_DEVICE, ~is_async | (end >= copied[:, 1])),
        (is_known & ~is_async & (end >= copied[:, 1]), WaitKind.COPY, is_known),
        (~is_known & lasts, WaitKind.COPY, lasts),
    )
    kind = np.full(len(calls), _NO_KIND, dtype=np.int64)
    blocks = np.zeros(len(calls), dtype=np.bool_)
    for is_kind, name, is_blocking in kinds:
        new = is_kind & (kind == _NO_KIND)
        kind[new] = _KINDS.index(name)
        blocks[new] = is_blocking[new]
    return kind, blocks


def _find_outermost_operators(view: EventView, calls: Int64s) -> Int64s:
    """Return the row of the outermost operator around each call on its thread, -1 without one."""
    found = np.full(len(calls), -1, dtype=np.int64)
    operators = view.match_names(view.match_categories("cpu_op"), lambda name: name.startswith(_OPERATOR))
    for thread in np.unique(view.thread[calls]).tolist():
        rows = np.flatnonzero(operators & (view.thread == thread))
        if not len(rows):
            continue
        rows = rows[np.lexsort((-view.spans[rows, 1], view.spans[rows, 0]))]
        ends = np.maximum.accumulate(view.spans[rows, 1])
        is_outermost = view.spans[rows, 1] > np.concatenate(([np.iinfo(np.int64).min], ends[:-1]))
        rows = rows[is_outermost]
        own = np.flatnonzero(view.thread[calls] == thread)
        place = np.searchsorted(view.spans[rows, 0], view.spans[calls[own], 0], side="right") - 1
        around = rows[np.maximum(place, 0)]
        is_inside = (place >= 0) & (view.spans[around, 1] >= view.spans[calls[own], 1])
        found[own[is_inside]] = around[is_inside]
    return found


class HostCopies(Struct, frozen=True, kw_only=True):
    """Copies between host and device, one row each: ``spans``, ``size_bytes``, and ``to_host``.

    ``pending``: intervals with a requested copy that had not started.
    """

    spans: Intervals = EMPTY
    size_bytes: Int64s = NO_INTS
    to_host: npt.NDArray[np.bool_] = _NO_MASK
    pending: Intervals = EMPTY

    def on(self, clock: RankClock) -> "HostCopies":
        """Return the same copies on the common clock."""
        return replace(self, spans=clock.common(self.spans), pending=clock.common(self.pending))


def select_host_copies(view: EventView) -> HostCopies:
    """Select the copies between host and device; the view has host calls and device copies."""
    copies = view.match_categories(*DEVICE_COPY_CATEGORIES)
    to_host = view.match_names(copies, lambda name: _TO_HOST in name)
    rows = np.flatnonzero(to_host | view.match_names(copies, lambda name: _TO_DEVICE in name))
    if not len(rows):
        return HostCopies()
    calls = np.flatnonzero(view.match_categories(*_CALL_CATEGORIES) & (view.correlation > 0))
    copied = find_copies_of_calls(view, calls)
    is_listed = np.isin(copied, rows)
    return HostCopies(
        spans=view.spans[rows],
        size_bytes=view.size_bytes[rows],
        to_host=to_host[rows],
        pending=union(intervals(view.spans[calls[is_listed], 0], view.spans[copied[is_listed], 0])),
    )


class HostCalls(Struct, frozen=True, kw_only=True):
    """One rank's host calls by kind; each field's intervals are disjoint.

    ``sync``: waits for the device; ``waits``: what each wait is for. ``limiter``: FSDP1's rate limiter.
    ``optimizer``: optimizer steps. ``collective``: collective launches. ``read``: scalar reads, from any
    device. ``compiled``: code generated by torch.compile. ``alloc_times``, ``free_times``: start times of
    calls that allocate or free device memory. ``copies``: copies between host and device. ``is_inference``:
    operators were recorded, but no backward pass and no optimizer step. ``active``: recorded activity of
    threads that launch device work. ``has_stacks``: the recording has more Python calls than operators
    (``with_stack=True``), each of which slowed the host.
    """

    allocator: Intervals
    sync: Intervals
    loader: Intervals
    limiter: Intervals = EMPTY
    optimizer: Intervals = EMPTY
    collective: Intervals = EMPTY
    read: Intervals = EMPTY
    compiled: Intervals = EMPTY
    alloc_times: Int64s = NO_INTS
    free_times: Int64s = NO_INTS
    copies: HostCopies = field(default_factory=HostCopies)
    waits: DeviceWaits = field(default_factory=DeviceWaits)
    active: Intervals = EMPTY
    is_inference: bool = False
    has_stacks: bool = False

    def on(self, clock: RankClock) -> "HostCalls":
        """Return the same calls on the common clock."""
        return HostCalls(
            allocator=clock.common(self.allocator),
            sync=clock.common(self.sync),
            loader=clock.common(self.loader),
            limiter=clock.common(self.limiter),
            optimizer=clock.common(self.optimizer),
            collective=clock.common(self.collective),
            read=clock.common(self.read),
            compiled=clock.common(self.compiled),
            alloc_times=clock.common(self.alloc_times),
            free_times=clock.common(self.free_times),
            copies=self.copies.on(clock),
            waits=self.waits.on(clock),
            active=clock.common(self.active),
            is_inference=self.is_inference,
            has_stacks=self.has_stacks,
        )


def read_host_calls(run: Run, rank: int) -> HostCalls:
    """Read the host calls from a rank's events."""
    return select_host_calls(run.table(rank, "events", _COLUMNS))


def read_loader_spans(run: Run, rank: int) -> Intervals:
    """Read when a rank's host fetched batches (``HostCalls.loader`` alone)."""
    view = EventView(run.table(rank, "events", _COLUMNS), _HOST_CATEGORIES)
    return union(view.spans[view.match_names(view.match_categories(*_HOST_CATEGORIES), _LOADER.fullmatch)])


def select_host_calls(events: pa.Table | EventColumns) -> HostCalls:
    """Select the host calls from an ``events`` table by category and name, testing each string once."""
    events = decode_events(events)
    view = EventView(events, _CATEGORIES)
    on_host = ~view.match_categories(*DEVICE_COPY_CATEGORIES)
    calls = view.match_names(on_host, _ANY_CALL.fullmatch)  # one test per name, not one per pattern
    launch_threads = np.unique(view.thread[view.match_names(calls, _LAUNCH.fullmatch)])
    on_launch_thread = calls & np.isin(view.thread, launch_threads)
    waits = select_device_waits(view, launch_threads)

    is_training = any(view.match_names(on_host, each.fullmatch).any() for each in (_OPTIMIZER, _BACKWARD))

    def select(rows: Mask, pattern: re.Pattern[str]) -> Intervals:
        return view.spans[view.match_names(rows, pattern.fullmatch)]

    return HostCalls(
        allocator=union(select(on_launch_thread, _ALLOCATOR)),
        sync=union(waits.spans),
        loader=union(select(calls, _LOADER)),
        limiter=union(select(calls, _LIMITER)),
        optimizer=union(select(calls, _OPTIMIZER)),
        collective=union(select(calls, _COLLECTIVE)),
        read=union(select(calls, _SCALAR_READ)),
        compiled=union(select(calls, _COMPILED)),
        alloc_times=select(on_launch_thread, _DEVICE_ALLOC)[:, 0],
        free_times=select(on_launch_thread, _DEVICE_FREE)[:, 0],
        copies=select_host_copies(view),
        waits=waits,
        active=_find_active_spans(events, launch_threads),
        is_inference=bool(view.match_categories("cpu_op").any()) and not is_training,
        has_stacks=_count_rows(events, PYTHON_CATEGORY) > _count_rows(events, "cpu_op"),
    )


def _find_active_spans(events: EventColumns, threads: Int64s) -> Intervals:
    """Return when any of these threads was active: its event starts and ends are at most 1 ms apart.

    A longer time between two events may be Python, sleep, a lock or file access, which is not recorded.
    """
    in_category = events.match_categories(_THREAD_CATEGORIES)
    active = []
    for thread in threads.tolist():
        times = events.spans[in_category & (events.thread == thread)].ravel()
        times.sort(kind="stable")  # starts, which are nearly sorted, between ends
        is_active = np.diff(times) <= MAX_QUIET_NS
        # Runs of sorted times with an active step between all neighbours, without empty runs.
        edges = np.flatnonzero(np.diff(np.concatenate(([False], is_active, [False])).astype(np.int8)))
        active.append(union(intervals(times[edges[::2]], times[edges[1::2]])))
    return union(*active)


def _count_rows(events: EventColumns, category: str) -> int:
    return int(np.count_nonzero(events.match_categories((category,))))


def filter_by_text(rows: pa.Table, column: str, predicate: Callable[[str], object]) -> pa.Table:
    """Return the rows whose string in ``column`` satisfies the predicate."""
    encoded = join_chunks(rows.column(column))
    codes = read_numbers(encoded.indices)
    used = np.unique(codes)  # of a dictionary shared by all rows of the table
    is_match = np.zeros(len(encoded.dictionary), dtype=np.bool_)
    texts = encoded.dictionary.take(make_array(used, pa.int32())).to_pylist()
    is_match[used] = [bool(answer) for answer in map(predicate, texts)]
    return rows.filter(make_array(is_match[codes], pa.bool_()))


def measure_host_pace(
    launch_ns: Int64s, known: Mask, calls: HostCalls, blocked: Intervals, window_begin_ns: int
) -> Int64s:
    """Return the host time before each known launch, without waits; 0 for other rows.

    Args:
        launch_ns: Launch times of one rank's collectives in its window's steps.
        known: Mask of known launches.
        calls: Its host calls.
        blocked: Intervals in which a collective blocked the device.
        window_begin_ns: Start of the interval before the first launch.
    """
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    end = launch_ns[rows]
    start = np.concatenate(([window_begin_ns], end))[:-1]
    waits = intersect(union(calls.sync, calls.allocator), blocked)
    pace_ns = np.zeros(len(launch_ns), dtype=np.int64)
    pace_ns[rows] = np.maximum(0, end - start) - covered(waits, start, np.maximum(start, end))
    return pace_ns
