"""What the host did that holds a device up: the allocator's calls, waits for the device, the data loader.

Only threads that feed the device count for the first two: a thread that pins memory for the loader may
allocate as long as it likes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import Intervals, intervals, union
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.run.reader import Run

_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread")
_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "user_annotation", "cpu_op"})
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostFree)\w*|(cu|hip)Mem(Create|Map|Unmap|Release)"
)
_SYNC = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize\w*|cu(Stream|Ctx|Event)Synchronize\w*|aten::(item|_local_scalar_dense)"
)
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """When the host of one rank was in such calls, each a disjoint set."""

    allocator: Intervals
    sync: Intervals
    loader: Intervals

    def on(self, clock: RankClock) -> "HostCalls":
        """The same on the common clock."""
        return HostCalls(
            allocator=clock.common(self.allocator),
            sync=clock.common(self.sync),
            loader=clock.common(self.loader),
        )


def read_host_calls(run: Run, rank: int) -> HostCalls:
    """Read them from a rank's events."""
    return host_calls(run.table(rank, "events", _COLUMNS))


def host_calls(events: pa.Table) -> HostCalls:
    """Choose them from an ``events`` table by category and name, each distinct text looked at once."""
    rows = _with(events, "category", _CATEGORIES.__contains__)
    feeds = np.unique(_with(rows, "name", _is(_LAUNCH)).column("thread").to_numpy())
    fed = rows.filter(pc.is_in(rows.column("thread"), pa.array(feeds)))
    return HostCalls(
        allocator=_spans(_with(fed, "name", _is(_ALLOCATOR))),
        sync=_spans(_with(fed, "name", _is(_SYNC))),
        loader=_spans(_with(rows, "name", _is(_LOADER))),
    )


def _is(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _with(rows: pa.Table, column: str, predicate: Callable[[str], bool]) -> pa.Table:
    """The rows whose text answers yes."""
    encoded = rows.column(column).unify_dictionaries().combine_chunks()
    words = encoded.dictionary.to_pylist()
    answers = np.array([predicate(word) for word in words] or [False], dtype=np.bool_)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(answers[codes] if len(codes) else np.zeros(0, dtype=np.bool_)))


def _spans(rows: pa.Table) -> Intervals:
    start = rows.column("start_ns").to_numpy()
    return union(intervals(start, start + rows.column("duration_ns").to_numpy()))
