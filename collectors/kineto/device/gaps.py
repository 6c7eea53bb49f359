"""What a trace does not say of a device's collectives."""

from collections.abc import Sequence

from zprof.collectors.kineto.collectives.finding import rows_of
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.columns import Trace
from zprof.collectors.kineto.device.metadata import described
from zprof.collectors.kineto.device.operators import is_annotation
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap

_RECORD_AGAIN = "record with ProfilerActivity.CPU too, on torch 2.4 or newer"


def gaps_of(rows: Sequence[CollectiveRow], by_name: str) -> list[Gap]:
    """Metadata, groups, sizes and launches that are not known, each with how many of how many."""
    named = [row for row in rows if row.method.startswith(by_name)]
    rest = [row for row in rows if not row.method.startswith(by_name)]
    ungrouped = [row for row in rest if row.group.startswith(("pg:", "stream:"))]
    unsized = [row for row in rest if not row.bytes and row.kind != CollectiveKind.BARRIER]
    unlaunched = [row for row in rows if row.launch_start_ns is None]
    gaps = (
        _without_metadata(len(named), len(rows)),
        _without_group(len(ungrouped), len(rows)),
        _without_bytes(len(unsized), len(rows)),
        _without_launch(len(unlaunched), len(rows)),
    )
    return [gap for gap in gaps if gap is not None]


def without_device_work(trace: Trace, rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Collectives that the host launched and no work of a device belongs to."""
    if rows:
        return []
    calls = _calls(trace)
    if not calls:
        return []
    device = bool(trace.category.where(lambda name: name in ("kernel", "gpu_memcpy")).any())
    where = "none of its kernels or copies belongs to one" if device else "no work of a GPU"
    return [
        Gap(
            what="collectives on the device",
            reason=f"the host launched {calls} collectives of NCCL, and the trace holds {where}",
            remedy="record with ProfilerActivity.CUDA, and let the last step finish before the window closes",
        )
    ]


def _calls(trace: Trace) -> int:
    """Collectives that the host launched; those of one rank alone have nobody to talk to."""
    records = rows_of(trace, ("cpu_op",), "record_param_comms".__eq__).tolist()
    found = [described(trace.arguments[row]) for row in records if row in trace.arguments]
    known = [entry for entry in found if entry is not None]
    if known:
        return sum(entry.group_size != 1 and len(entry.ranks) != 1 for entry in known)
    return len(rows_of(trace, ("user_annotation", "cpu_op"), is_annotation))


def _without_metadata(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        what="metadata of collectives",
        reason=f"{count} of {rows} collectives on the device carry no metadata, nor does their launch: "
        "their kind is that of the kernel's name; group, size and type are unknown",
        remedy=_RECORD_AGAIN,
    )


def _without_group(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        what="process group of collectives",
        reason=f"the ranks of the process group of {count} of {rows} collectives are not in the trace",
        remedy=_RECORD_AGAIN,
    )


def _without_bytes(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        what="bytes of collectives",
        reason=f"the size of {count} of {rows} collectives is not in the trace",
        remedy="record with record_shapes=True, on torch 2.4 or newer",
    )


def _without_launch(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        what="launches of collectives",
        reason=f"the calls that launched {count} of {rows} collectives are not in the trace: "
        "they came before the window, or the host's calls were not recorded",
        remedy="begin the window at a step's start, after the device is idle, with ProfilerActivity.CPU",
    )
