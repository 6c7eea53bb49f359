"""Copies between host and device, and which of them block the thread that asked for them.

A call that returns only after its copy is done has waited for the device, whatever it is called: pageable
memory does that to ``cudaMemcpyAsync``.  A CPU rank has the copies that an engine's ranges name.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, union
from zprof.analysis.time.clocks.offsets import RankClock

COPY_CATEGORIES = frozenset({"gpu_memcpy"})
_CALLS = ("cuda_runtime", "cuda_driver")
_TO_HOST = "DtoH"
_TO_DEVICE = "HtoD"


def _none() -> Intervals:
    return EMPTY


def _no_numbers() -> Int64s:
    return np.empty(0, dtype=np.int64)


def _no_answers() -> npt.NDArray[np.bool_]:
    return np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """A row a copy: ``spans``, ``size_bytes``, and whether it goes to the host.

    ``blocking``: the calls that returned when their copy was done.  ``pending``: when a copy had been asked
    for and had not started.
    """

    spans: Intervals = field(default_factory=_none)
    size_bytes: Int64s = field(default_factory=_no_numbers)
    to_host: npt.NDArray[np.bool_] = field(default_factory=_no_answers)
    blocking: Intervals = field(default_factory=_none)
    pending: Intervals = field(default_factory=_none)

    def on(self, clock: RankClock) -> "HostCopies":
        """The same on the common clock."""
        return replace(
            self,
            spans=clock.common(self.spans),
            blocking=clock.common(self.blocking),
            pending=clock.common(self.pending),
        )


def host_copies(copies: pa.Table, events: pa.Table) -> HostCopies:
    """Choose those between host and device.

    Args:
        copies: Copies of a device, as rows of an ``events`` table.
        events: Rows of it with the host's calls.
    """
    names = [str(name) for name in copies.column("name").to_pylist()]
    to_host = np.array([_TO_HOST in name for name in names], dtype=np.bool_)
    chosen = to_host | np.array([_TO_DEVICE in name for name in names], dtype=np.bool_)
    if not chosen.any():
        return HostCopies()
    start = copies.column("start_ns").to_numpy()
    spans = intervals(start, start + copies.column("duration_ns").to_numpy())[chosen]
    numbers = pc.fill_null(copies.column("correlation"), 0).to_numpy()[chosen]
    calls, copied = _calls(spans, numbers, events)
    return HostCopies(
        spans=spans,
        size_bytes=pc.fill_null(copies.column("bytes"), 0).to_numpy()[chosen],
        to_host=to_host[chosen],
        blocking=union(calls[calls[:, 1] >= copied[:, 1]]),
        pending=union(intervals(calls[:, 0], copied[:, 0])),
    )


def _calls(spans: Intervals, numbers: Int64s, events: pa.Table) -> tuple[Intervals, Intervals]:
    """The host's calls for these copies, and the copy of each."""
    asked = pa.array(np.unique(numbers[numbers > 0]))
    category = events.column("category").cast(pa.string())
    same = pc.is_in(events.column("correlation"), asked)
    calls = events.filter(pc.and_(same, pc.is_in(category, pa.array(_CALLS))))
    place = {number: row for row, number in enumerate(numbers.tolist())}
    rows = [place[number] for number in calls.column("correlation").to_pylist()]
    start = calls.column("start_ns").to_numpy()
    return intervals(start, start + calls.column("duration_ns").to_numpy()), spans[rows]
