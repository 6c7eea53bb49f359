"""Define the activity of a rank for the ledger: compute, waits, copies, launches, and work by name.

FSDP2 copies shards around collectives (``FSDP::all_gather_copy_in``, ``split_with_sizes_copy``,
``chunk_cat``). A kernel counts as such a copy by its name, or because the host launched it within one of
these ranges.
"""

import re

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, NO_INTS, Int64s, Intervals, union
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import EventView

_COPY_NAMES = re.compile(r"split_with_sizes_copy|chunk_cat|(?:fsdp::)?all_gather_copy_in\b", re.ASCII)
_COPY_RANGE = re.compile(r"FSDP::all_gather_copy_(?:in|out)\b", re.ASCII)
_PASS = re.compile(
    r"FSDP::(?:pre_forward|pre_backward|all_gather_copy_out)\b"
    r"|FullyShardedDataParallel\._pre_(?:forward|backward_hook)\b",
    re.ASCII,
)
_MAX_NAME = 2_000
_NO_KERNELS = np.empty((0, 3), dtype=np.int64)
_NO_MASK = np.empty(0, dtype=np.bool_)


class NamedWork(Struct, frozen=True, kw_only=True):
    """Kernels of a device, or operators of a main thread, sorted by launch.

    ``times``: launch, start and end of each; ``stream``: its stream. ``code``: its index in ``names``.
    ``copies``: copies around collectives; ``memcpy``: the copies among them that are not kernels. ``passes``:
    when the host started a pass of a wrapped unit, or copied out its gathered parameters.
    """

    names: tuple[str, ...] = ()
    code: Int64s = NO_INTS
    times: Int64s = _NO_KERNELS
    stream: Int64s = NO_INTS
    copies: Mask = _NO_MASK
    memcpy: Mask = _NO_MASK
    passes: Int64s = NO_INTS

    def __len__(self) -> int:
        return len(self.code)

    def on(self, clock: RankClock) -> "NamedWork":
        """Return the same work on the common clock."""
        return replace(self, times=clock.common(self.times), passes=clock.common(self.passes))


def collect_named_work(
    view: EventView, compute: Mask, launch_ns: Int64s, ranges: Mask, memcpys: Mask
) -> NamedWork:
    """Return the work of a rank by name.

    Args:
        view: The events.
        compute: Mask of the events that compute.
        launch_ns: Launch time of each event; its start if unknown.
        ranges: Mask of the host's annotations.
        memcpys: Mask of the device's copies; only those within a copy range are included.
    """
    copy_ranges = union(view.spans[view.match_names(ranges, lambda name: _matches(_COPY_RANGE, name))])
    position = np.searchsorted(copy_ranges[:, 0], launch_ns, side="right")
    in_copy_range = launch_ns < np.concatenate(([np.iinfo(np.int64).min], copy_ranges[:, 1]))[position]
    memcpys = memcpys & in_copy_range
    rows = np.flatnonzero(compute | memcpys)
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    copies = (
        in_copy_range
        | memcpys
        | view.match_names(compute, lambda name: _COPY_NAMES.search(name[:_MAX_NAME]) is not None)
    )
    names, code = view.coded(rows)
    passes = view.spans[view.match_names(ranges, lambda name: _matches(_PASS, name)), 0]
    return NamedWork(
        names=names,
        code=code,
        times=np.column_stack((launch_ns[rows], view.spans[rows])),
        stream=view.stream[rows],
        copies=copies[rows],
        memcpy=memcpys[rows],
        passes=np.sort(passes),
    )


def find_outermost(view: EventView, rows: Mask) -> Mask:
    """Mark the rows that are not inside another row; the rows must be properly nested."""
    candidates = np.flatnonzero(rows)
    candidates = candidates[np.lexsort((-view.spans[candidates, 1], view.spans[candidates, 0]))]
    max_end = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], view.spans[candidates, 1])))
    is_outermost = np.zeros(len(rows), dtype=np.bool_)
    is_outermost[candidates[view.spans[candidates, 1] > max_end[:-1]]] = True
    return is_outermost


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name[:_MAX_NAME]) is not None


class DeviceSteps(Struct, frozen=True, kw_only=True):
    """Device ranges of steps, one row per stream and step: from the first to the last work of that step."""

    number: Int64s = NO_INTS
    spans: Intervals = EMPTY
    stream: Int64s = NO_INTS


class RankActivity(Struct, frozen=True, kw_only=True):
    """Activity of a rank over time. ``coverage`` spans its first to its last event.

    On a CPU: ``waits`` is when the main thread was blocked on a collective; ``anonymous_waits`` are waits,
    outside all others, that do not name their collective.

    On a device: ``work`` is all device work, ``nameless`` the communication kernels without a row in the
    collectives table. ``launched`` is launch and end of all work whose call is in the trace; for other work,
    ``unlaunched`` is when it ran and ``unlaunched_stream`` its stream. ``steps`` are the device's own ranges
    of steps. ``lost_launches``: launch times of kernels that are missing because the trace ends before them.
    ``first_call``: the first call of the host into the device's driver, if any. ``awaits_until``, for each
    interval of ``compute``: it can only have waited for collectives launched before this time. ``kernels``:
    launch, start and end of each compute kernel, with the start in place of an unknown launch;
    ``kernel_stream`` its stream. ``named``: the same by name, or the operators on a CPU.
    """

    on_device: bool
    compute: Intervals
    waits: Intervals
    anonymous_waits: Intervals
    copies: Intervals
    coverage: Intervals
    launched: Intervals
    work: Intervals = EMPTY
    nameless: Intervals = EMPTY
    unlaunched: Intervals = EMPTY
    unlaunched_stream: Int64s = NO_INTS
    lost_launches: Int64s = NO_INTS
    first_call: Intervals = EMPTY
    steps: DeviceSteps = field(default_factory=DeviceSteps)
    awaits_until: Int64s = NO_INTS
    kernels: Int64s = _NO_KERNELS
    kernel_stream: Int64s = NO_INTS
    named: NamedWork = field(default_factory=NamedWork)

    def on(self, clock: RankClock) -> "RankActivity":
        """Return the same activity on the common clock."""
        return replace(
            self,
            compute=clock.common(self.compute),
            waits=clock.common(self.waits),
            anonymous_waits=clock.common(self.anonymous_waits),
            copies=clock.common(self.copies),
            coverage=clock.common(self.coverage),
            launched=clock.common(self.launched),
            work=clock.common(self.work),
            nameless=clock.common(self.nameless),
            unlaunched=clock.common(self.unlaunched),
            lost_launches=clock.common(self.lost_launches),
            first_call=clock.common(self.first_call),
            steps=replace(self.steps, spans=clock.common(self.steps.spans)),
            awaits_until=clock.common(self.awaits_until),
            kernels=clock.common(self.kernels),
            named=self.named.on(clock),
        )
