"""Build a rank's activity from its events: compute, waits, copies, launches, and work by name.

Ranges, synchronisation and profiler overhead also appear on streams, but are not work.

FSDP2 copies shards around collectives (``FSDP::all_gather_copy_in``, ``split_with_sizes_copy``,
``chunk_cat``). A kernel counts as such a copy by its name, or because the host launched it within one of
these ranges.
"""

import re

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, NO_INTS, Int64s, Intervals, intervals, subtract, union
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.events import (
    CALL_CATEGORIES,
    NO_STREAM,
    WORK_CATEGORIES,
    DeviceRoles,
    EventColumns,
    EventView,
    assign_device_roles,
    assign_host_roles,
    decode_events,
    find_coverage,
)

_COPY_NAMES = re.compile(r"split_with_sizes_copy|chunk_cat|(?:fsdp::)?all_gather_copy_in\b", re.ASCII)
_COPY_RANGE = re.compile(r"FSDP::all_gather_copy_(?:in|out)\b", re.ASCII)
_PASS = re.compile(
    r"FSDP::(?:pre_forward|pre_backward|all_gather_copy_out)\b"
    r"|FullyShardedDataParallel\._pre_(?:forward|backward_hook)\b",
    re.ASCII,
)
_MAX_NAME = 2_000
#: Placeholder for a launch missing from the trace; as a time, it precedes all steps.
UNKNOWN_NS = -(1 << 62)
#: Times before and after everything, with enough margin to add a clock offset.
BEFORE_ALL_NS = -(1 << 62)
AFTER_ALL_NS = 1 << 62
_NO_KERNELS = np.empty((0, 3), dtype=np.int64)
_NO_MASK = np.empty(0, dtype=np.bool_)
_RANGES = "gpu_user_annotation"
_HOST_RANGES = "user_annotation"
_SYNCHRONISATION = "cuda_sync"
#: Calls that launch kernels; zero-byte copies and fills launch no work.
_LAUNCH = re.compile(r"(cuda|hip|cu)\w*Launch", re.ASCII)
_STEP = re.compile(r"(?:ProfilerStep|Iteration)[ #:_-]{0,3}(\d{1,15})\s*", re.ASCII)
_LAUNCHES_WORK = re.compile(r"(cuda|hip|cu)\w*(Launch|Memcpy|Memset)", re.ASCII)
_CATEGORIES = ("cpu_op", "user_annotation")


class NamedWork(Struct, frozen=True, kw_only=True):
    """A device's kernels, or a main thread's operators, sorted by launch.

    ``times``: launch, start and end; ``stream``: the stream; ``code``: index into ``names``. ``copies``:
    copies around collectives; ``memcpy``: the copies among them that are not kernels. ``passes``: when the
    host started a pass of a wrapped unit, or copied out its gathered parameters.
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
    """Return a rank's work by name.

    Args:
        view: The events.
        compute: Mask of the events that compute.
        launch_ns: Each event's launch time; its start if unknown.
        ranges: Mask of host annotations.
        memcpys: Mask of device copies; only copies within a copy range are included.
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
    """Mark the rows that are not inside another row; rows must be properly nested."""
    candidates = np.flatnonzero(rows)
    candidates = candidates[np.lexsort((-view.spans[candidates, 1], view.spans[candidates, 0]))]
    max_end = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], view.spans[candidates, 1])))
    is_outermost = np.zeros(len(rows), dtype=np.bool_)
    is_outermost[candidates[view.spans[candidates, 1] > max_end[:-1]]] = True
    return is_outermost


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name[:_MAX_NAME]) is not None


class DeviceSteps(Struct, frozen=True, kw_only=True):
    """Device ranges of steps, one row per stream and step: from the step's first to its last work."""

    number: Int64s = NO_INTS
    spans: Intervals = EMPTY
    stream: Int64s = NO_INTS


class RankActivity(Struct, frozen=True, kw_only=True):
    """A rank's activity over time. ``coverage`` spans its first to its last event.

    On a CPU: ``waits``: when the main thread was blocked on a collective; ``anonymous_waits``: further waits
    that do not identify their collective.

    On a device: ``work``: all device work; ``nameless``: communication kernels without a row in the
    collectives table. ``launched``: launch and end of all work whose call is in the trace; for other work,
    ``unlaunched`` is when it ran and ``unlaunched_stream`` its stream. ``steps``: the device's own step
    ranges. ``lost_launches``: launch times of kernels missing because the trace ends before them.
    ``first_call``: the host's first call into the device driver, if any. ``awaits_until``: for each interval
    of ``compute``, the time before which any awaited collective was launched. ``kernels``: each compute
    kernel's launch (its start if unknown), start and end; ``kernel_stream``: its stream. ``named``: the same
    by name, or the operators on a CPU.
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


def has_device_work(events: pa.Table | EventColumns) -> bool:
    """Return True if the trace has device work."""
    return bool(decode_events(events).match_categories(WORK_CATEGORIES).any())


def launches_device_work(events: pa.Table | EventColumns) -> bool:
    """Return True if the host launches device work, even if the trace lacks that work."""
    view = EventView(events, CALL_CATEGORIES | {"user_annotation", "cpu_op"})
    calls = view.match_categories(*CALL_CATEGORIES)
    launches = view.match_names(calls, lambda name: _LAUNCHES_WORK.match(name) is not None)
    return bool((launches | view.match_names(~calls, lambda name: name.startswith("nccl:"))).any())


def read_device_activity(events: pa.Table | EventColumns, collectives: pa.Table) -> RankActivity:
    """Return the activity of a rank that computes on an accelerator.

    Args:
        events: The rank's ``events`` table.
        collectives: start_ns, end_ns and stream of the rank's collectives, which identify device collectives
            among the events.
    """
    events = decode_events(events)
    view = EventView(events, WORK_CATEGORIES | CALL_CATEGORIES | {_RANGES, _HOST_RANGES, _SYNCHRONISATION})
    roles = assign_device_roles(view, collectives)
    work, compute = roles.work, roles.compute
    launches = find_launches(view, work, view.match_categories(*CALL_CATEGORIES))
    merged = union(view.spans[compute])
    calls = view.spans[view.match_categories(*CALL_CATEGORIES)]
    spans = view.spans[compute]
    launch_ns = view.spans[:, 0].copy()
    ranges = view.match_categories(_HOST_RANGES)
    memcpys = roles.copies & view.match_categories("gpu_memcpy")
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
        awaits_until=_find_awaited_launches(view, roles, launches.call_ns),
        kernels=np.column_stack((launch_ns[compute], spans)),
        kernel_stream=view.stream[compute],
        named=collect_named_work(view, compute, launch_ns, ranges, memcpys),
    )


def _read_device_steps(view: EventView) -> DeviceSteps:
    rows = view.match_names(view.match_categories(_RANGES), lambda name: _STEP.fullmatch(name) is not None)
    numbers = [int(found[1]) for name in view.names(rows) if (found := _STEP.fullmatch(name))]
    stream = np.where(view.stream[rows] == NO_STREAM, view.thread[rows], view.stream[rows])
    return DeviceSteps(number=np.array(numbers, dtype=np.int64), spans=view.spans[rows], stream=stream)


def _find_awaited_launches(view: EventView, roles: DeviceRoles, launched: Int64s) -> Int64s:
    """Return, per merged compute interval, the time before which any awaited collective was launched.

    Compute awaits the last call that makes its stream wait for an event, between its predecessor's launch and
    its own. Work with an unknown launch, or launched by the same call as its predecessor, gets
    ``AFTER_ALL_NS``, because its waits are unknown.

    Args:
        view: The events.
        roles: Their roles.
        launched: Each work row's launch, ``UNKNOWN_NS`` if unknown.
    """
    waits = view.match_names(
        view.match_categories(_SYNCHRONISATION), lambda name: name == "Stream Wait Event"
    )
    compute = union(view.spans[roles.compute])
    if not waits.any():
        return np.full(len(compute), AFTER_ALL_NS, dtype=np.int64)
    starts, streams = view.spans[roles.work, 0], view.stream[roles.work]
    order = np.lexsort((starts, streams))
    last_wait = np.empty(len(starts), dtype=np.int64)
    for stream in np.unique(streams).tolist():
        stream_rows = order[streams[order] == stream]
        own, calls = launched[stream_rows], np.sort(view.spans[waits & (view.stream == stream), 0])
        before = np.concatenate(([BEFORE_ALL_NS], own[:-1]))
        last = np.concatenate(([BEFORE_ALL_NS], calls))[np.searchsorted(calls, own, side="right")]
        last = np.where(last > before, last, BEFORE_ALL_NS)
        last_wait[stream_rows] = np.where((own == UNKNOWN_NS) | (own == before), AFTER_ALL_NS, last)
    awaited_launch = np.full(len(compute), BEFORE_ALL_NS, dtype=np.int64)
    computes = roles.compute[roles.work]
    index = np.searchsorted(compute[:, 0], starts[computes])
    first = compute[np.minimum(index, len(compute) - 1), 0] == starts[computes]
    np.maximum.at(awaited_launch, index[first], last_wait[computes][first])
    return awaited_launch


class Launches(Struct, frozen=True, kw_only=True):
    """Launch times of a device's work.

    ``call_ns``: each work row's launch, ``UNKNOWN_NS`` if it is not in the trace. ``known``: launch and end
    of work with a known launch. ``unknown`` and ``unknown_stream``: interval and stream of other work.
    ``lost_ns``: launches after the last one whose work is in the trace.
    """

    call_ns: Int64s
    known: Intervals
    unknown: Intervals
    unknown_stream: Int64s
    lost_ns: Int64s


def find_launches(view: EventView, work: Mask, calls: Mask) -> Launches:
    """Find the host call that launched each row of ``work`` by correlation id."""
    calls = calls & (view.correlation > 0)
    order = np.argsort(view.correlation[calls], kind="stable")
    ids, starts = view.correlation[calls][order], view.spans[calls, 0][order]
    place = np.searchsorted(ids, view.correlation[work])
    is_found = np.append(ids, 0)[place] == view.correlation[work]
    call_ns = np.where(is_found & (place < len(ids)), np.append(starts, 0)[place], UNKNOWN_NS)
    is_known = call_ns != UNKNOWN_NS
    spans, streams = view.spans[work], view.stream[work]
    return Launches(
        call_ns=call_ns,
        known=intervals(call_ns[is_known], spans[is_known, 1]),
        unknown=spans[~is_known],
        unknown_stream=streams[~is_known],
        lost_ns=_find_lost_launches(
            view, work, view.match_names(calls, lambda name: _LAUNCH.match(name) is not None)
        ),
    )


def _find_lost_launches(view: EventView, work: Mask, launches: Mask) -> Int64s:
    """Return the launches whose kernels are missing because the recording or its file ended first.

    A launch in the middle of a trace may lack a kernel because it was captured into a graph. Calls that never
    have a kernel, such as launches of host functions, are ignored.
    """
    rows = np.flatnonzero(launches)
    has_work = np.isin(view.correlation[rows], view.correlation[work])
    if not has_work.any():
        return np.empty(0, dtype=np.int64)
    _, code = view.coded(rows)
    start = view.spans[rows, 0]
    after_last = start > start[has_work].max()
    return np.sort(start[after_last & np.isin(code, code[has_work])])


def read_host_activity(events: pa.Table | EventColumns) -> RankActivity:
    """Return the activity of a rank that computes on a CPU, from an ``events`` table."""
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
