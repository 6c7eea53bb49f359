"""What a rank computed by name, and which of it only copies around collectives.

FSDP2 copies shards into one buffer before an all_gather and out of it after (``FSDP::all_gather_copy_in``,
``FSDP::all_gather_copy_out``, its kernels ``split_with_sizes_copy``), and gradients into one before a
reduce_scatter (``chunk_cat``).  A kernel is such a copy by its name, or because the host launched it within
one of these ranges: their foreach and concatenating copies have names that others have too.
"""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from zprof.analysis.intervals import Int64s, union
from zprof.analysis.time.activity.view import EventView, Mask
from zprof.analysis.time.clocks.offsets import RankClock

_COPIES = re.compile(r"split_with_sizes_copy|chunk_cat|(?:fsdp::)?all_gather_copy_in\b", re.ASCII)
_COPY_RANGE = re.compile(r"FSDP::all_gather_copy_(?:in|out)\b", re.ASCII)
_PASS = re.compile(
    r"FSDP::(?:pre_forward|pre_backward|all_gather_copy_out)\b"
    r"|FullyShardedDataParallel\._pre_(?:forward|backward_hook)\b",
    re.ASCII,
)
_LONGEST = 2_000


def _no_codes() -> Int64s:
    return np.empty(0, dtype=np.int64)


def _no_times() -> Int64s:
    return np.empty((0, 3), dtype=np.int64)


def _no_mask() -> Mask:
    return np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWork:
    """Kernels of a device, or operators of a main thread, in the order of their launches.

    ``times``: launch, start and end of each; ``stream``: where.  ``code``: its place in ``names``.
    ``copies``: those that copy around collectives; ``memcpy``: those of them that no kernel carries out.
    ``passes``: when the host began a pass of a wrapped unit, or copied what was gathered for it.
    """

    names: tuple[str, ...] = ()
    code: Int64s = field(default_factory=_no_codes)
    times: Int64s = field(default_factory=_no_times)
    stream: Int64s = field(default_factory=_no_codes)
    copies: Mask = field(default_factory=_no_mask)
    memcpy: Mask = field(default_factory=_no_mask)
    passes: Int64s = field(default_factory=_no_codes)

    def __len__(self) -> int:
        return len(self.code)

    def on(self, clock: RankClock) -> "NamedWork":
        """The same on the common clock."""
        return replace(self, times=clock.common(self.times), passes=clock.common(self.passes))


def named_work(view: EventView, compute: Mask, launch_ns: Int64s, ranges: Mask, memcpys: Mask) -> NamedWork:
    """Name the work of a rank.

    Args:
        view: The events.
        compute: Those of them that compute.
        launch_ns: When each event was launched; its start where that is not known.
        ranges: Annotations of the host.
        memcpys: Copies of the device: those within a copy range are part of it.
    """
    found = union(view.spans[view.name_is(ranges, lambda name: _matches(_COPY_RANGE, name))])
    within = _within(found, launch_ns)
    memcpys = memcpys & within
    rows = np.flatnonzero(compute | memcpys)
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    copies = (
        within | memcpys | view.name_is(compute, lambda name: _COPIES.search(name[:_LONGEST]) is not None)
    )
    names, code = view.coded(rows)
    passes = view.spans[view.name_is(ranges, lambda name: _matches(_PASS, name)), 0]
    return NamedWork(
        names=names,
        code=code,
        times=np.column_stack((launch_ns[rows], view.spans[rows])),
        stream=view.stream[rows],
        copies=copies[rows],
        memcpy=memcpys[rows],
        passes=np.sort(passes),
    )


def outermost(view: EventView, rows: Mask) -> Mask:
    """Of properly nested rows those that lie in no other."""
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.lexsort((-view.spans[chosen, 1], view.spans[chosen, 0]))]
    reach = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], view.spans[chosen, 1])))
    found = np.zeros(len(rows), dtype=np.bool_)
    found[chosen[view.spans[chosen, 1] > reach[:-1]]] = True
    return found


def _within(spans: Int64s, times: Int64s) -> Mask:
    if not len(spans):
        return np.zeros(len(times), dtype=np.bool_)
    place = np.searchsorted(spans[:, 0], times, side="right") - 1
    inside: Mask = (place >= 0) & (times < spans[np.maximum(place, 0), 1])
    return inside


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name[:_LONGEST]) is not None
