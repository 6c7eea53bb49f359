"""Find the host's waits for its device: runtime calls that return only when the device has done something.

An operator by itself proves no wait, because ``aten::item`` of a CPU tensor looks like that of a device
tensor. A wait has a blocking runtime call in it:

* ``cuda/hip…Synchronize``;
* a copy to pageable host memory, or from it if the copy had started when the call returned (small ones are
  staged, and the call returns); CUDA toolkit, "API synchronization behavior";
* a copy between host and device whose call has no ``Async`` in its name; where the trace does not say if the
  memory is pinned, also a call that returned after its copy had ended;
* such a call without ``Async`` of any copy (ROCm names some reads of a scalar copies within the device);
* a copy call of 1 ms or more whose copy is not in the trace.

The calls of one operator are one wait, from the start of the first to the end of the last.
"""

import re
from enum import StrEnum

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.event_roles import CALL_CATEGORIES, EventView

#: A copy call without a copy in the trace that took this long did not only enqueue it.
_MIN_BLOCKED_NS = 1_000_000
_TO_HOST, _TO_DEVICE = "DtoH", "HtoD"
_PAGEABLE, _PINNED = "Pageable", "Pinned"
_COPY_CALL = re.compile(r"(cuda|hip|cu)Memcpy\w*")
_ASYNC = "Async"
_OPERATOR = "aten::"


class WaitKind(StrEnum):
    """What a wait is for; of a copy, its direction and the host's memory if the trace says."""

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


#: In this order: an operator with calls of several kinds is named by the first.
_KINDS = tuple(WaitKind)
_SYNC_KINDS = (
    (re.compile(r"((cuda|hip)Stream|cuStream)Synchronize\w*"), WaitKind.STREAM),
    (re.compile(r"((cuda|hip)Event|cuEvent)Synchronize\w*"), WaitKind.EVENT),
    (re.compile(r"((cuda|hip)Device|(cu|hip)Ctx)Synchronize\w*"), WaitKind.DEVICE),
)
_NO_KIND = len(_KINDS)


def _empty_codes() -> Int64s:
    return np.empty(0, dtype=np.int64)


class DeviceWaits(Struct, frozen=True, kw_only=True):
    """Waits of a rank's host, one row each, by start.

    ``kind``: index into the members of ``WaitKind``. ``operator``: index into ``names``, the operator around
    the calls, else the last of these calls.
    """

    spans: Intervals = field(default_factory=lambda: EMPTY)
    kind: Int64s = field(default_factory=_empty_codes)
    operator: Int64s = field(default_factory=_empty_codes)
    names: tuple[str, ...] = ()

    def on(self, clock: RankClock) -> "DeviceWaits":
        """Return the same waits on the common clock."""
        return replace(self, spans=clock.common(self.spans))


def select_device_waits(view: EventView, threads: Int64s) -> DeviceWaits:
    """Select the waits on these threads; the view has operators, the host's calls and the device's copies."""
    rows, kinds, is_blocking = _find_calls(view, threads)
    if not is_blocking.any():
        return DeviceWaits()
    operators = _find_outermost_operators(view, rows)
    # calls of one operator are one wait; a call outside of operators is one by itself
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
    """Return the calls that copy or synchronize, the kind of each, and which of them block their caller."""
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
    """Return the last copy that each call requested, as a row of the view; -1 if it is not in the trace."""
    copies = np.flatnonzero(view.match_categories("gpu_memcpy") & (view.correlation > 0))
    if not len(copies):
        return np.full(len(calls), -1, dtype=np.int64)
    copies = copies[np.argsort(view.correlation[copies], kind="stable")]
    ids = view.correlation[copies]
    place = np.maximum(np.searchsorted(ids, view.correlation[calls], side="right") - 1, 0)
    return np.where(ids[place] == view.correlation[calls], copies[place], -1)


def _judge_copies(view: EventView, calls: Int64s, copies: Int64s) -> tuple[Int64s, Mask]:
    """Return the kind of each copy call, ``_NO_KIND`` between devices, and if it blocks its caller."""
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
    """Return the row of the outermost operator that contains each call on its thread, -1 without one."""
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
