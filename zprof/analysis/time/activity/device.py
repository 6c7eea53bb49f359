"""Sorts the events of a rank that computes on a device, by what :mod:`roles` says of them.

Ranges, synchronisation and the profiler's own overhead stand on the rows of streams too, but are no work.
"""

import re

import numpy as np
import pyarrow as pa

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals, union
from zprof.analysis.time.activity.events import Activity, DeviceSteps
from zprof.analysis.time.activity.launches import UNKNOWN_NS, Launches, find_launches
from zprof.analysis.time.activity.named import NamedWork, named_work
from zprof.analysis.time.activity.roles import CALLS, WORK, DeviceRoles, device_roles
from zprof.analysis.time.activity.view import NO_STREAM, EventView, Mask, categories_of, coverage_of
from zprof.analysis.time.activity.waits import awaits_until

_RANGES = "gpu_user_annotation"
_HOST_RANGES = "user_annotation"
_SYNCHRONISATION = "cuda_sync"
_STEP = re.compile(r"(?:ProfilerStep|Iteration)[ #:_-]{0,3}(\d{1,15})\s*", re.ASCII)
_GIVES_WORK = re.compile(r"(cuda|hip|cu)\w*(Launch|Memcpy|Memset)", re.ASCII)


def has_device_work(events: pa.Table) -> bool:
    """Whether a device ran anything in this trace."""
    return not WORK.isdisjoint(categories_of(events))


def feeds_a_device(events: pa.Table) -> bool:
    """Whether the host gives work to a device, which then should have run some."""
    view = EventView(events, CALLS | {"user_annotation", "cpu_op"})
    calls = view.category_is(*CALLS)
    gives = view.name_is(calls, lambda name: _GIVES_WORK.match(name) is not None)
    return bool((gives | view.name_is(~calls, lambda name: name.startswith("nccl:"))).any())


def device_activity(events: pa.Table, collectives: pa.Table) -> Activity:
    """Sort the rows of an ``events`` table.

    Args:
        events: The table.
        collectives: start_ns, end_ns and stream of the collectives of this rank.  Those that a device ran
            are known among the events by these three.
    """
    view = EventView(events, WORK | CALLS | {_RANGES, _HOST_RANGES, _SYNCHRONISATION})
    roles = device_roles(view, collectives)
    work, compute = roles.work, roles.compute
    launches = find_launches(view, work, view.category_is(*CALLS))
    merged = union(view.spans[compute])
    return Activity(
        on_device=True,
        compute=merged,
        waits=EMPTY,
        anonymous_waits=EMPTY,
        copies=union(view.spans[roles.copies]),
        coverage=coverage_of(events),
        launched=launches.known,
        work=union(view.spans[work]),
        nameless=union(view.spans[roles.nameless]),
        unlaunched=launches.unknown,
        unlaunched_stream=launches.unknown_stream,
        lost_launches=launches.lost_ns,
        first_call=_first(view.spans[view.category_is(*CALLS)]),
        steps=_steps(view),
        awaits_until=_awaits_until(view, merged, compute, work, launches),
        kernels=_kernels(view, compute, launches.call_ns[compute[work]]),
        kernel_stream=view.stream[compute],
        named=_named(view, roles, launches),
    )


def _first(spans: Intervals) -> Intervals:
    return spans[np.argsort(spans[:, 0], kind="stable")[:1]]


def _kernels(view: EventView, compute: Mask, call_ns: Int64s) -> Int64s:
    spans = view.spans[compute]
    return np.column_stack((np.where(call_ns == UNKNOWN_NS, spans[:, 0], call_ns), spans))


def _named(view: EventView, roles: DeviceRoles, launches: Launches) -> NamedWork:
    launch = view.spans[:, 0].copy()
    launch[roles.work] = np.where(launches.call_ns == UNKNOWN_NS, launch[roles.work], launches.call_ns)
    copies = roles.copies & view.category_is("gpu_memcpy")
    return named_work(view, roles.compute, launch, view.category_is(_HOST_RANGES), copies)


def _steps(view: EventView) -> DeviceSteps:
    rows = view.name_is(view.category_is(_RANGES), lambda name: _STEP.fullmatch(name) is not None)
    numbers = [int(found[1]) for name in view.names(rows) if (found := _STEP.fullmatch(name))]
    stream = np.where(view.stream[rows] == NO_STREAM, view.thread[rows], view.stream[rows])
    return DeviceSteps(number=np.array(numbers, dtype=np.int64), spans=view.spans[rows], stream=stream)


def _awaits_until(
    view: EventView, merged: Intervals, compute: Mask, work: Mask, launches: Launches
) -> Int64s:
    waits = view.name_is(view.category_is(_SYNCHRONISATION), lambda name: name == "Stream Wait Event")
    return awaits_until(
        merged,
        starts=view.spans[work, 0],
        streams=view.stream[work],
        launched=launches.call_ns,
        computes=compute[work],
        wait_calls=intervals(view.stream[waits], view.spans[waits, 0]),
    )
