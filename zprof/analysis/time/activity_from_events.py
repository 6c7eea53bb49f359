"""Build the :class:`RankActivity` of a rank from its events, on a device or on the CPU.

Ranges, synchronisation and profiler overhead also appear as stream rows, but are not work.
"""

import re

import numpy as np
import pyarrow as pa

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, subtract, union
from zprof.analysis.time.activity import (
    DeviceSteps,
    RankActivity,
    collect_named_work,
    find_outermost,
)
from zprof.analysis.time.blocking import find_awaited_launches
from zprof.analysis.time.events import (
    CALL_CATEGORIES,
    NO_STREAM,
    WORK_CATEGORIES,
    EventColumns,
    EventView,
    assign_device_roles,
    assign_host_roles,
    decode_events,
    find_coverage,
)
from zprof.analysis.time.steps import UNKNOWN_NS, Launches, find_launches

_RANGES = "gpu_user_annotation"
_HOST_RANGES = "user_annotation"
_SYNCHRONISATION = "cuda_sync"
_STEP = re.compile(r"(?:ProfilerStep|Iteration)[ #:_-]{0,3}(\d{1,15})\s*", re.ASCII)
_LAUNCHES_WORK = re.compile(r"(cuda|hip|cu)\w*(Launch|Memcpy|Memset)", re.ASCII)
_CATEGORIES = ("cpu_op", "user_annotation")


def has_device_work(events: pa.Table | EventColumns) -> bool:
    """Return True if the trace has device work."""
    return bool(decode_events(events).match_categories(WORK_CATEGORIES).any())


def launches_device_work(events: pa.Table | EventColumns) -> bool:
    """Return True if the host launches device work, even if the trace does not contain that work."""
    view = EventView(events, CALL_CATEGORIES | {"user_annotation", "cpu_op"})
    calls = view.match_categories(*CALL_CATEGORIES)
    launches = view.match_names(calls, lambda name: _LAUNCHES_WORK.match(name) is not None)
    return bool((launches | view.match_names(~calls, lambda name: name.startswith("nccl:"))).any())


def read_device_activity(events: pa.Table | EventColumns, collectives: pa.Table) -> RankActivity:
    """Return the activity of a rank that computes on a device.

    Args:
        events: Table ``events`` of the rank.
        collectives: start_ns, end_ns and stream of the collectives of this rank. Those that a device ran are
            identified among the events by these three.
    """
    events = decode_events(events)
    view = EventView(events, WORK_CATEGORIES | CALL_CATEGORIES | {_RANGES, _HOST_RANGES, _SYNCHRONISATION})
    roles = assign_device_roles(view, collectives)
    work, compute = roles.work, roles.compute
    launches = find_launches(view, work, view.match_categories(*CALL_CATEGORIES))
    merged = union(view.spans[compute])
    calls = view.spans[view.match_categories(*CALL_CATEGORIES)]
    call_ns = launches.call_ns[compute[work]]
    spans = view.spans[compute]
    launch_ns = view.spans[:, 0].copy()
    launch_ns[work] = np.where(launches.call_ns == UNKNOWN_NS, launch_ns[work], launches.call_ns)
    return RankActivity(
        on_device=True,
        compute=merged,
        waits=EMPTY,
        anonymous_waits=EMPTY,
        copies=union(view.spans[roles.copies]),
        coverage=find_coverage(events),
        launched=launches.known,
        work=union(view.spans[work]),
        nameless=union(view.spans[roles.nameless]),
        unlaunched=launches.unknown,
        unlaunched_stream=launches.unknown_stream,
        lost_launches=launches.lost_ns,
        first_call=calls[np.argsort(calls[:, 0], kind="stable")[:1]],
        steps=_read_device_steps(view),
        awaits_until=_find_awaited_launches(view, merged, compute, work, launches),
        kernels=np.column_stack((np.where(call_ns == UNKNOWN_NS, spans[:, 0], call_ns), spans)),
        kernel_stream=view.stream[compute],
        named=collect_named_work(
            view,
            compute,
            launch_ns,
            view.match_categories(_HOST_RANGES),
            roles.copies & view.match_categories("gpu_memcpy"),
        ),
    )


def _read_device_steps(view: EventView) -> DeviceSteps:
    rows = view.match_names(view.match_categories(_RANGES), lambda name: _STEP.fullmatch(name) is not None)
    numbers = [int(found[1]) for name in view.names(rows) if (found := _STEP.fullmatch(name))]
    stream = np.where(view.stream[rows] == NO_STREAM, view.thread[rows], view.stream[rows])
    return DeviceSteps(number=np.array(numbers, dtype=np.int64), spans=view.spans[rows], stream=stream)


def _find_awaited_launches(
    view: EventView, merged: Intervals, compute: Mask, work: Mask, launches: Launches
) -> Int64s:
    waits = view.match_names(
        view.match_categories(_SYNCHRONISATION), lambda name: name == "Stream Wait Event"
    )
    return find_awaited_launches(
        merged,
        starts=view.spans[work, 0],
        streams=view.stream[work],
        launched=launches.call_ns,
        computes=compute[work],
        wait_calls=intervals(view.stream[waits], view.spans[waits, 0]),
    )


def read_host_activity(events: pa.Table | EventColumns) -> RankActivity:
    """Return the activity of a rank that computes on its CPU, from an ``events`` table."""
    events = decode_events(events)
    view = EventView(events, _CATEGORIES)
    roles = assign_host_roles(view)
    named, anonymous = view.spans[roles.named], view.spans[roles.anonymous]
    waits = union(named, anonymous)
    copies = union(view.spans[roles.copies])
    return RankActivity(
        on_device=False,
        compute=subtract(view.spans[roles.compute], union(waits, copies)),
        waits=waits,
        anonymous_waits=subtract(anonymous, named),
        copies=subtract(copies, waits),
        coverage=find_coverage(events),
        launched=EMPTY,
        named=collect_named_work(
            view,
            find_outermost(view, roles.compute),
            view.spans[:, 0],
            roles.ranges,
            roles.main & ~roles.main,
        ),
    )
