"""What the host did that can hold a device up: the allocator's calls, waits for the device, the data loader.

Only threads that feed the device count for the first two: a thread that pins memory for the loader may
allocate as long as it likes.  A rank without a device has no such threads; there the ranges of the loader and
launches of collectives remain.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, union
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.analysis.time.host.copies import COPY_CATEGORIES, HostCopies, host_copies
from zprof.run.reader import Run

_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "correlation", "bytes")
_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "user_annotation", "cpu_op"}) | COPY_CATEGORIES
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostFree)\w*|(cu|hip)Mem(Create|Map|Unmap|Release)"
)
#: Of these the ones that take memory from the device, and give it back; those of a stream's pool are cheap.
_TAKES = re.compile(r"(cuda|hip)Malloc(Pitch|Managed)?|(cu|hip)Mem(Create|Map)|cuMemAlloc(_v2)?")
_GIVES = re.compile(r"(cuda|hip)Free|(cu|hip)Mem(Unmap|Release)|cuMemFree(_v2)?")
_SYNC = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize\w*|cu(Stream|Ctx|Event)Synchronize\w*|aten::(item|_local_scalar_dense)"
)
_READ = re.compile(r"aten::(item|_local_scalar_dense)")
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


def _none() -> Intervals:
    return EMPTY


def _never() -> Int64s:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """When the host of one rank was in such calls, each a disjoint set.

    ``limiter``: FSDP1's rate limiter.  ``optimizer``: an optimizer's step.  ``collective``: the launch of a
    collective.  ``read``: a scalar was read back.  ``compiled``: in code that torch.compile made.  ``takes``,
    ``gives``: when calls began that take memory from the device, or give it back.  ``copies``: between host
    and device.  ``is_inference``: operators were recorded, and neither a backward nor an optimizer's step is
    among them.
    """

    allocator: Intervals
    sync: Intervals
    loader: Intervals
    limiter: Intervals = field(default_factory=_none)
    optimizer: Intervals = field(default_factory=_none)
    collective: Intervals = field(default_factory=_none)
    read: Intervals = field(default_factory=_none)
    compiled: Intervals = field(default_factory=_none)
    takes: Int64s = field(default_factory=_never)
    gives: Int64s = field(default_factory=_never)
    copies: HostCopies = field(default_factory=HostCopies)
    is_inference: bool = False

    def on(self, clock: RankClock) -> "HostCalls":
        """The same on the common clock."""
        return HostCalls(
            allocator=clock.common(self.allocator),
            sync=clock.common(self.sync),
            loader=clock.common(self.loader),
            limiter=clock.common(self.limiter),
            optimizer=clock.common(self.optimizer),
            collective=clock.common(self.collective),
            read=clock.common(self.read),
            compiled=clock.common(self.compiled),
            takes=clock.common(self.takes),
            gives=clock.common(self.gives),
            copies=self.copies.on(clock),
            is_inference=self.is_inference,
        )


def read_host_calls(run: Run, rank: int) -> HostCalls:
    """Read them from a rank's events."""
    return host_calls(run.table(rank, "events", _COLUMNS))


def host_calls(events: pa.Table) -> HostCalls:
    """Choose them from an ``events`` table by category and name, each distinct text looked at once."""
    rows = _with(events, "category", _CATEGORIES.__contains__)
    copies = host_copies(_with(rows, "category", COPY_CATEGORIES.__contains__), rows)
    rows = _with(rows, "category", lambda text: text not in COPY_CATEGORIES)
    feeds = np.unique(_with(rows, "name", _is(_LAUNCH)).column("thread").to_numpy())
    fed = rows.filter(pc.is_in(rows.column("thread"), pa.array(feeds)))
    return HostCalls(
        allocator=_spans(_with(fed, "name", _is(_ALLOCATOR))),
        sync=union(_spans(_with(fed, "name", _is(_SYNC))), copies.blocking),
        loader=_spans(_with(rows, "name", _is(_LOADER))),
        limiter=_spans(_with(rows, "name", _is(_LIMITER))),
        optimizer=_spans(_with(rows, "name", _is(_OPTIMIZER))),
        collective=_spans(_with(rows, "name", _is(_COLLECTIVE))),
        read=_spans(_with(rows, "name", _is(_READ))),
        compiled=_spans(_with(rows, "name", _is(_COMPILED))),
        takes=_with(fed, "name", _is(_TAKES)).column("start_ns").to_numpy(),
        gives=_with(fed, "name", _is(_GIVES)).column("start_ns").to_numpy(),
        copies=copies,
        is_inference=_is_inference(rows),
    )


def _is_inference(rows: pa.Table) -> bool:
    operators = _with(rows, "category", lambda text: text == "cpu_op").num_rows
    trains = _with(rows, "name", lambda text: bool(_BACKWARD.fullmatch(text) or _OPTIMIZER.fullmatch(text)))
    return operators > 0 and not trains.num_rows


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
