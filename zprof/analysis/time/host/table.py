"""The table ``host``: what the host did while its device had nothing to run, a row a rank and step.

``idle_ns`` is the ledger's, and the columns ``<part>_ns`` sum to it (see :mod:`parts`).  Beside each part:
``<part>_largest_ns`` is what its longest occurrence lost alone; ``<part>_exposed_ns`` is exposed transfer
with an empty queue meanwhile; ``<part>_under_ns`` the part of it under which a collective ran (on a CPU rank,
where a collective in the background holds nothing up).

``syncs`` are waits for the device, ``dry_syncs`` those that left it idle; ``takes`` and ``gives`` calls that
take memory from the device and give it back; ``loads`` batches asked of the loader.  ``read_exposed_ns``:
exposed transfer that a CPU rank waited for right after it read a scalar, as it did ``held_reads`` times.
``host_copy_ns``: exposed copies between host and device of 1 MiB or more, ``to_host_bytes`` and
``to_device_bytes`` what those moved.  ``launches_seen``: whether the recording shows when the host launched;
without that the queue is not known, and nothing is LAUNCH.  ``is_inference``: the recording has operators,
and neither a backward nor an optimizer.  ``is_compiled``: whether torch.compile made some of the code.
"""

import numpy as np
import pandas as pd

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.activity.steps import StepWindows
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.host.calls import HostCalls
from zprof.analysis.time.host.parts import Part, Shares, of_cpu, of_device
from zprof.analysis.time.rank import RankResult

#: Copies from this size on are parameters, gradients or a batch; below are scalars and indices.
_LARGE_BYTES = 1 << 20
#: A wait that begins so soon after a scalar was read, or after such a wait, belongs to the reading.
_SOON = np.array([0, 200_000], dtype=np.int64)
_COUNTED = ("syncs", "dry_syncs", "held_reads", "takes", "gives", "loads", "read_exposed_ns")
_COPIED = ("host_copy_ns", "to_host_bytes", "to_device_bytes")
Columns = dict[str, Int64s | list[int] | int]
HOST_COLUMNS = (
    "rank",
    "step",
    "on_device",
    "launches_seen",
    "is_inference",
    "is_compiled",
    "idle_ns",
    *(f"{part}{suffix}" for part in Part for suffix in ("_ns", "_largest_ns", "_exposed_ns", "_under_ns")),
    *_COUNTED,
    *_COPIED,
)


def host_rows(timeline: RankTimeline, result: RankResult, calls: HostCalls) -> pd.DataFrame:
    """The rows of one rank; all on the common clock; columns are ``HOST_COLUMNS``."""
    activity, steps = timeline.activity, timeline.steps
    pending = _pending(activity.kernels, result.collectives, calls)
    shares = (
        of_device(result.idle, result.exposure.moving, pending, calls)
        if activity.on_device
        else of_cpu(result.idle, activity.copies, calls)
    )
    rows: Columns = {
        "rank": timeline.rank,
        "step": steps.number,
        "on_device": activity.on_device,
        "launches_seen": not activity.on_device or len(pending) > 0,
        "is_inference": calls.is_inference,
        "is_compiled": len(calls.compiled) > 0,
        "idle_ns": covered(result.idle, steps.begin_ns, steps.end_ns),
        **_parts(shares, result.ran, steps),
        **_calls(shares, calls, timeline),
        **_reads(result.exposure.moving, activity.waits, calls.read, steps),
        **_copies(subtract(activity.copies, union(activity.compute, result.ran)), calls, timeline),
    }
    return pd.DataFrame({name: rows[name] for name in HOST_COLUMNS})


def _pending(kernels: Int64s, collectives: pd.DataFrame, calls: HostCalls) -> Intervals:
    launch, start = (
        collectives[name].fillna(0).to_numpy(np.int64) for name in ("launch_start_ns", "start_ns")
    )
    seen = (launch > 0) & collectives["stream"].notna().to_numpy()
    return union(kernels[:, :2], intervals(launch[seen], start[seen]), calls.copies.pending)


def _parts(shares: Shares, ran: Intervals, steps: StepWindows) -> Columns:
    columns: Columns = {}
    for part in Part:
        spans = shares.idle.get(part, EMPTY)
        behind = shares.exposed.get(part, EMPTY)
        columns[f"{part}_ns"] = covered(spans, steps.begin_ns, steps.end_ns)
        columns[f"{part}_largest_ns"] = shares.largest_ns(part, steps.begin_ns)
        columns[f"{part}_exposed_ns"] = covered(behind, steps.begin_ns, steps.end_ns)
        columns[f"{part}_under_ns"] = covered(intersect(spans, ran), steps.begin_ns, steps.end_ns)
    return columns


def _calls(shares: Shares, calls: HostCalls, timeline: RankTimeline) -> Columns:
    sync = calls.sync if timeline.activity.on_device else calls.read
    idle = shares.idle.get(Part.SYNC, EMPTY)
    dry = covered(union(idle), sync[:, 0], sync[:, 1] + 1) > 0
    starts = {
        "syncs": sync[:, 0],
        "dry_syncs": sync[dry, 0],
        "takes": calls.takes,
        "gives": calls.gives,
        "loads": calls.loader[:, 0],
    }
    return {name: _counts(times, timeline.host_steps) for name, times in starts.items()}


def _copies(exposed: Intervals, calls: HostCalls, timeline: RankTimeline) -> Columns:
    steps, copies = timeline.steps, calls.copies
    if not timeline.activity.on_device:
        host_copy = covered(exposed, steps.begin_ns, steps.end_ns)
        return {"host_copy_ns": host_copy, "to_host_bytes": 0, "to_device_bytes": 0}
    large = copies.size_bytes >= _LARGE_BYTES
    spans = intersect(union(copies.spans[large]), exposed)
    sides = {"to_host_bytes": large & copies.to_host, "to_device_bytes": large & ~copies.to_host}
    return {
        "host_copy_ns": covered(spans, steps.begin_ns, steps.end_ns),
        **{
            name: _sums(copies.spans[mine, 0], copies.size_bytes[mine], steps) for name, mine in sides.items()
        },
    }


def _counts(times_ns: Int64s, steps: StepWindows) -> list[int]:
    """How many fall into each step."""
    return _sums(times_ns, np.ones(len(times_ns), dtype=np.int64), steps)


def _sums(times_ns: Int64s, amounts: Int64s, steps: StepWindows) -> list[int]:
    """What falls into each step, in the order of the steps."""
    step = steps.step_at(times_ns)
    return [int(amounts[step == number].sum()) for number in steps.number.tolist()]


def _reads(moving: Intervals, waits: Intervals, read: Intervals, steps: StepWindows) -> Columns:
    """Exposed transfer of waits that follow a read of a scalar, one wait close behind the other."""
    runs = union(waits + _SOON, read + _SOON)
    if not len(read) or not len(runs):
        return {"read_exposed_ns": 0, "held_reads": 0}
    begin = runs[np.maximum(np.searchsorted(runs[:, 0], waits[:, 0], side="right") - 1, 0), 0]
    last = np.searchsorted(read[:, 0], waits[:, 0], side="right") - 1
    behind = (last >= 0) & (read[np.maximum(last, 0), 0] >= begin)
    held_up = intersect(moving, waits[behind])
    holding = read[np.unique(last[behind & (covered(moving, waits[:, 0], waits[:, 1]) > 0)]), 0]
    return {
        "read_exposed_ns": covered(held_up, steps.begin_ns, steps.end_ns),
        "held_reads": _counts(holding, steps),
    }
