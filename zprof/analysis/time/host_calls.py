"""Extract host activity that can stall the device: allocator calls, synchronization, data loader, copies.

Allocator calls and synchronization count only on threads that launch device work. A call that returns only
after its copy has finished waited for the device (``cudaMemcpyAsync`` does so for pageable memory). Host pace
is the time between two launches of collectives, without waits for other ranks.
"""

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intersect, intervals, union
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.run.reader import Run

DEVICE_COPY_CATEGORIES = frozenset({"gpu_memcpy"})
_CALL_CATEGORIES = ("cuda_runtime", "cuda_driver")
PYTHON_CATEGORY = "python_function"
_THREAD_CATEGORIES = frozenset({*_CALL_CATEGORIES, "user_annotation", "cpu_op", PYTHON_CATEGORY})
#: Maximum time between two events of a thread that is still between them; a launch takes far less.
MAX_QUIET_NS = 1_000_000
_TO_HOST = "DtoH"
_TO_DEVICE = "HtoD"
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "correlation", "bytes")
_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "user_annotation", "cpu_op"}) | DEVICE_COPY_CATEGORIES
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostFree)\w*|(cu|hip)Mem(Create|Map|Unmap|Release)"
)
#: Calls that allocate or free device memory; stream-ordered pool calls are left out because they are cheap.
_DEVICE_ALLOC = re.compile(r"(cuda|hip)Malloc(Pitch|Managed)?|(cu|hip)Mem(Create|Map)|cuMemAlloc(_v2)?")
_DEVICE_FREE = re.compile(r"(cuda|hip)Free|(cu|hip)Mem(Unmap|Release)|cuMemFree(_v2)?")
_SYNC = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize\w*|cu(Stream|Ctx|Event)Synchronize\w*|aten::(item|_local_scalar_dense)"
)
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
#: Matches every name that one of the patterns for calls matches, and perhaps others.
_ANY_CALL = re.compile(
    "|".join(
        f"(?:{pattern.pattern})"
        for pattern in (
            *(_ALLOCATOR, _DEVICE_ALLOC, _DEVICE_FREE, _SYNC, _SCALAR_READ, _LOADER, _LIMITER),
            *(_OPTIMIZER, _LAUNCH, _COMPILED, _COLLECTIVE),
        )
    ),
    re.DOTALL,
)
#: Column added to the collectives table.
HOST_NS = "host_ns"


def _empty_spans() -> Intervals:
    return EMPTY


def _empty_int64s() -> Int64s:
    return np.empty(0, dtype=np.int64)


def _empty_mask() -> npt.NDArray[np.bool_]:
    return np.empty(0, dtype=np.bool_)


class HostCopies(Struct, frozen=True, kw_only=True):
    """Copies between host and device, one row per copy: ``spans``, ``size_bytes``, and ``to_host``.

    ``blocking``: calls that returned only after their copy had finished. ``pending``: intervals in which a
    copy was requested but had not started.
    """

    spans: Intervals = field(default_factory=_empty_spans)
    size_bytes: Int64s = field(default_factory=_empty_int64s)
    to_host: npt.NDArray[np.bool_] = field(default_factory=_empty_mask)
    blocking: Intervals = field(default_factory=_empty_spans)
    pending: Intervals = field(default_factory=_empty_spans)

    def on(self, clock: RankClock) -> "HostCopies":
        """Return the same copies on the common clock."""
        return replace(
            self,
            spans=clock.common(self.spans),
            blocking=clock.common(self.blocking),
            pending=clock.common(self.pending),
        )


def select_host_copies(copies: pa.Table, events: pa.Table) -> HostCopies:
    """Select the copies between host and device.

    Args:
        copies: Copies of a device, as rows of an ``events`` table.
        events: Rows of the same table with the host's calls.
    """
    names = [str(name) for name in copies.column("name").to_pylist()]
    to_host = np.array([_TO_HOST in name for name in names], dtype=np.bool_)
    is_host_copy = to_host | np.array([_TO_DEVICE in name for name in names], dtype=np.bool_)
    if not is_host_copy.any():
        return HostCopies()
    start = copies.column("start_ns").to_numpy()
    spans = intervals(start, start + copies.column("duration_ns").to_numpy())[is_host_copy]
    correlation = pc.fill_null(copies.column("correlation"), 0).to_numpy()[is_host_copy]
    calls, copied = _find_copy_calls(spans, correlation, events)
    return HostCopies(
        spans=spans,
        size_bytes=pc.fill_null(copies.column("bytes"), 0).to_numpy()[is_host_copy],
        to_host=to_host[is_host_copy],
        blocking=union(calls[calls[:, 1] >= copied[:, 1]]),
        pending=union(intervals(calls[:, 0], copied[:, 0])),
    )


def _find_copy_calls(spans: Intervals, correlation: Int64s, events: pa.Table) -> tuple[Intervals, Intervals]:
    """Return the host calls that requested these copies, and the span of each call's copy."""
    known_ids = pa.array(np.unique(correlation[correlation > 0]))
    category = events.column("category").cast(pa.string())
    matches = pc.is_in(events.column("correlation"), known_ids)
    calls = events.filter(pc.and_(matches, pc.is_in(category, pa.array(_CALL_CATEGORIES))))
    row_by_correlation = {correlation_id: row for row, correlation_id in enumerate(correlation.tolist())}
    rows = [row_by_correlation[correlation_id] for correlation_id in calls.column("correlation").to_pylist()]
    start = calls.column("start_ns").to_numpy()
    return intervals(start, start + calls.column("duration_ns").to_numpy()), spans[rows]


class HostCalls(Struct, frozen=True, kw_only=True):
    """Intervals of one rank's host calls by kind; the intervals of each field are disjoint.

    ``limiter``: FSDP1's rate limiter. ``optimizer``: optimizer steps. ``collective``: launches of
    collectives. ``read``: reading back a scalar. ``compiled``: code generated by torch.compile.
    ``alloc_times``, ``free_times``: start times of calls that allocate or free device memory. ``copies``:
    between host and device. ``is_inference``: operators were recorded, but no backward and no optimizer step.
    ``active``: a thread that launches device work did something that the recording shows. ``has_stacks``: the
    recording has more Python calls than operators (``with_stack=True``), each of which slowed the host.
    """

    allocator: Intervals
    sync: Intervals
    loader: Intervals
    limiter: Intervals = field(default_factory=_empty_spans)
    optimizer: Intervals = field(default_factory=_empty_spans)
    collective: Intervals = field(default_factory=_empty_spans)
    read: Intervals = field(default_factory=_empty_spans)
    compiled: Intervals = field(default_factory=_empty_spans)
    alloc_times: Int64s = field(default_factory=_empty_int64s)
    free_times: Int64s = field(default_factory=_empty_int64s)
    copies: HostCopies = field(default_factory=HostCopies)
    active: Intervals = field(default_factory=_empty_spans)
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
            active=clock.common(self.active),
            is_inference=self.is_inference,
            has_stacks=self.has_stacks,
        )


def read_host_calls(run: Run, rank: int) -> HostCalls:
    """Read the host calls from a rank's events."""
    return select_host_calls(run.table(rank, "events", _COLUMNS))


def read_loader_spans(run: Run, rank: int) -> Intervals:
    """Read when a rank's host fetched batches: ``HostCalls.loader``, without the other calls."""
    events = run.table(rank, "events", _COLUMNS)
    rows = filter_by_text(events, "category", (_CATEGORIES - DEVICE_COPY_CATEGORIES).__contains__)
    return _union_spans(filter_by_text(rows, "name", _LOADER.fullmatch))


def select_host_calls(events: pa.Table) -> HostCalls:
    """Select the host calls from an ``events`` table by category and name; test each distinct text once."""
    rows = filter_by_text(events, "category", _CATEGORIES.__contains__)
    copies = select_host_copies(filter_by_text(rows, "category", DEVICE_COPY_CATEGORIES.__contains__), rows)
    rows = filter_by_text(rows, "category", lambda text: text not in DEVICE_COPY_CATEGORIES)
    is_inference = _is_inference(rows)
    has_stacks = _count_rows(events, PYTHON_CATEGORY) > _count_rows(rows, "cpu_op")
    rows = filter_by_text(rows, "name", _ANY_CALL.fullmatch)  # one test per name, not one per pattern
    launch_threads = np.unique(filter_by_text(rows, "name", _LAUNCH.fullmatch).column("thread").to_numpy())
    launch_thread_rows = rows.filter(pc.is_in(rows.column("thread"), pa.array(launch_threads)))
    return HostCalls(
        allocator=_union_spans(filter_by_text(launch_thread_rows, "name", _ALLOCATOR.fullmatch)),
        sync=union(
            _union_spans(filter_by_text(launch_thread_rows, "name", _SYNC.fullmatch)), copies.blocking
        ),
        loader=_union_spans(filter_by_text(rows, "name", _LOADER.fullmatch)),
        limiter=_union_spans(filter_by_text(rows, "name", _LIMITER.fullmatch)),
        optimizer=_union_spans(filter_by_text(rows, "name", _OPTIMIZER.fullmatch)),
        collective=_union_spans(filter_by_text(rows, "name", _COLLECTIVE.fullmatch)),
        read=_union_spans(filter_by_text(rows, "name", _SCALAR_READ.fullmatch)),
        compiled=_union_spans(filter_by_text(rows, "name", _COMPILED.fullmatch)),
        alloc_times=filter_by_text(launch_thread_rows, "name", _DEVICE_ALLOC.fullmatch)
        .column("start_ns")
        .to_numpy(),
        free_times=filter_by_text(launch_thread_rows, "name", _DEVICE_FREE.fullmatch)
        .column("start_ns")
        .to_numpy(),
        copies=copies,
        active=find_active_spans(_select_threads(events, launch_threads)),
        is_inference=is_inference,
        has_stacks=has_stacks,
    )


def find_active_spans(rows: pa.Table) -> Intervals:
    """Return when threads did something: between two of a thread's starts or ends at most 1 ms apart.

    What lies between two events further apart may be Python, sleep, a lock or a file: nobody can tell.

    Args:
        rows: start_ns, duration_ns and thread of the threads' events.
    """
    start = rows.column("start_ns").to_numpy()
    times = np.concatenate((start, start + rows.column("duration_ns").to_numpy()))
    thread = np.tile(rows.column("thread").to_numpy(), 2)
    order = np.lexsort((times, thread))
    times, thread = times[order], thread[order]
    is_active = (np.diff(thread) == 0) & (np.diff(times) <= MAX_QUIET_NS)
    return union(intervals(times[:-1][is_active], times[1:][is_active]))


def _select_threads(events: pa.Table, threads: Int64s) -> pa.Table:
    """Return what the recording shows of these threads."""
    rows = events.filter(pc.is_in(events.column("thread"), pa.array(threads)))
    return filter_by_text(rows, "category", _THREAD_CATEGORIES.__contains__)


def _count_rows(rows: pa.Table, category: str) -> int:
    return int(filter_by_text(rows, "category", category.__eq__).num_rows)


def _is_inference(rows: pa.Table) -> bool:
    if not _count_rows(rows, "cpu_op"):
        return False
    return not any(filter_by_text(rows, "name", each.fullmatch).num_rows for each in (_OPTIMIZER, _BACKWARD))


def filter_by_text(rows: pa.Table, column: str, predicate: Callable[[str], object]) -> pa.Table:
    """Return the rows whose text in ``column`` satisfies the predicate."""
    encoded = rows.column(column).unify_dictionaries().combine_chunks()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    used = np.unique(codes)  # of a dictionary shared by all rows of the table
    is_match = np.zeros(len(encoded.dictionary), dtype=np.bool_)
    texts = encoded.dictionary.take(pa.array(used)).to_pylist()
    is_match[used] = [bool(answer) for answer in map(predicate, texts)]
    return rows.filter(pa.array(is_match[codes]))


def _union_spans(rows: pa.Table) -> Intervals:
    start = rows.column("start_ns").to_numpy()
    return union(intervals(start, start + rows.column("duration_ns").to_numpy()))


def add_host_pace(
    rows: pd.DataFrame, calls: HostCalls, blocked: Intervals, window_begin_ns: int
) -> pd.DataFrame:
    """Add ``host_ns``, the host time before each launch without waits; null if the launch is unknown.

    Args:
        rows: Collectives of one rank in the steps of its window.
        calls: Its host calls.
        blocked: Intervals in which a collective blocked the device.
        window_begin_ns: Start of the interval that ends with the first launch.
    """
    launch = rows["launch_start_ns"].astype("Int64")
    known = np.flatnonzero(launch.notna().to_numpy(bool))
    times = launch.iloc[known].to_numpy(np.int64)
    order = np.argsort(times, kind="stable")
    end = times[order]
    start = np.concatenate(([window_begin_ns], end))[:-1]
    waits = intersect(union(calls.sync, calls.allocator), blocked)
    pace_ns = np.maximum(0, end - start) - covered(waits, start, np.maximum(start, end))
    values = np.zeros(len(rows), dtype=np.int64)
    values[known[order]] = pace_ns
    return rows.assign(**{HOST_NS: pd.arrays.IntegerArray(values, launch.isna().to_numpy(bool))})
