"""Make gaps for what a trace does not contain about its collectives, on a device or of gloo."""

from collections.abc import Sequence

from zprof.collectors.kineto.annotations import find_rows
from zprof.collectors.kineto.collectives import CollectiveRow
from zprof.collectors.kineto.device.metadata import describe_arguments, is_nccl_annotation
from zprof.collectors.kineto.gloo.launches import GlooKey
from zprof.collectors.kineto.process_groups import UNKNOWN_GROUP
from zprof.collectors.kineto.trace import Trace
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap, GapKind

_RECORD_AGAIN = "record with ProfilerActivity.CPU too, on torch 2.4 or newer"


def list_device_gaps(rows: Sequence[CollectiveRow], by_name: str) -> list[Gap]:
    """Return gaps for unknown metadata, groups, sizes and launches, with the number of each."""
    named = [row for row in rows if row.method.startswith(by_name)]
    rest = [row for row in rows if not row.method.startswith(by_name)]
    ungrouped = [row for row in rest if row.group.startswith(("pg:", "stream:"))]
    unsized = [row for row in rest if not row.bytes and row.kind != CollectiveKind.BARRIER]
    unlaunched = [row for row in rows if row.launch_start_ns is None]
    gaps = (
        _make_no_metadata_gap(len(named), len(rows)),
        _make_no_group_gap(len(ungrouped), len(rows)),
        _make_no_bytes_gap(len(unsized), len(rows)),
        _make_no_launch_gap(len(unlaunched), len(rows)),
    )
    return [gap for gap in gaps if gap is not None]


def list_missing_device_work(trace: Trace, rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Return a gap if the host launched collectives and the trace has no device work of any of them."""
    if rows:
        return []
    calls = _count_launched(trace)
    if not calls:
        return []
    device = bool(trace.category.where(lambda name: name in ("kernel", "gpu_memcpy")).any())
    where = "none of its kernels or copies belongs to one" if device else "no work of a GPU"
    return [
        Gap(
            kind=GapKind.COLLECTIVES,
            what="collectives on the device",
            reason=f"the host launched {calls} collectives of NCCL, and the trace holds {where}",
            remedy="record with ProfilerActivity.CUDA, and let the last step finish before the window closes",
        )
    ]


def _count_launched(trace: Trace) -> int:
    """Return the number of collectives that the host launched, without those of single-rank groups."""
    records = find_rows(trace, ("cpu_op",), "record_param_comms".__eq__).tolist()
    found = [describe_arguments(trace.arguments[row]) for row in records if row in trace.arguments]
    known = [entry for entry in found if entry is not None]
    if known:
        return sum(entry.group_size != 1 and len(entry.ranks) != 1 for entry in known)
    return len(find_rows(trace, ("user_annotation", "cpu_op"), is_nccl_annotation))


def _make_no_metadata_gap(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="metadata of collectives",
        reason=f"{count} of {rows} collectives on the device carry no metadata, nor does their launch: "
        "their kind is that of the kernel's name; group, size and type are unknown",
        remedy=_RECORD_AGAIN,
    )


def _make_no_group_gap(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="process group of collectives",
        reason=f"the ranks of the process group of {count} of {rows} collectives are not in the trace",
        remedy=_RECORD_AGAIN,
    )


def _make_no_bytes_gap(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="bytes of collectives",
        reason=f"the size of {count} of {rows} collectives is not in the trace",
        remedy="record with record_shapes=True, on torch 2.4 or newer",
    )


def _make_no_launch_gap(count: int, rows: int) -> Gap | None:
    if not count:
        return None
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="launches of collectives",
        reason=f"the calls that launched {count} of {rows} collectives are not in the trace: "
        "they came before the window, or the host's calls were not recorded",
        remedy="begin the window at a step's start, after the device is idle, with ProfilerActivity.CPU",
    )


def list_gloo_gaps(rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Return gaps for unknown groups and sizes."""
    gaps = []
    groups = sum(row.group == UNKNOWN_GROUP for row in rows)
    if groups:
        gaps.append(_make_unknown_group_gap(groups, len(rows)))
    sizes = sum(row.bytes == 0 and row.kind != CollectiveKind.BARRIER for row in rows)
    if sizes:
        gaps.append(_make_unknown_bytes_gap(sizes, len(rows)))
    return gaps


def make_unmatched_gap(key: GlooKey, launched: int, executed: int) -> Gap:
    """Return the gap for launches and executions of one key that differ in number or order."""
    operator, count = key
    of = "" if count is None else f" of {count} elements"
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="collectives of gloo",
        reason=f"{launched} launches and {executed} executions of {operator}{of} do not pair up; "
        "none of them is counted",
        remedy="record again; a ::launch range per collective (docs/recording.md) makes them unambiguous",
    )


def make_no_launches_gap(executions: int) -> Gap:
    """Return the gap for executions whose launches the trace lacks."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="launches of collectives",
        reason=f"the trace has {executions} executions of gloo and none of the operators that launched them: "
        "their order is that of their starts, and a reduce-scatter is not told from an all-reduce",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def make_unwaited_gap(posts: int) -> Gap:
    """Return the gap for messages that were posted and not waited for within the window."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"{posts} sends or receives were posted and not waited for within the window: "
        "when they ended is unknown, and they are not counted",
        remedy="wait for every isend and irecv before the step ends",
    )


def make_unposted_gap(messages: int, rows: int) -> Gap:
    """Return the gap for messages whose operators the trace lacks."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"the operators that posted {messages} of {rows} messages are not in the trace: their other "
        "side is unknown, and they are not compared with it",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def make_unknown_peers_gap(messages: int, rows: int) -> Gap:
    """Return the gap for messages whose other rank is missing or ambiguous."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"the other side of {messages} of {rows} messages is unknown (any source, shapes not "
        "recorded, or several process groups that it can be of): they are not compared with it",
        remedy="record shapes, name the source of each receive, and write a ::launch range with pg=… around "
        "each message (docs/recording.md) where groups differ",
    )


def _make_unknown_bytes_gap(unknown: int, rows: int) -> Gap:
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="bytes of collectives",
        reason=f"{unknown} of {rows} collectives of gloo show no tensor: shapes were not recorded",
        remedy="profile with record_shapes=True",
    )


def _make_unknown_group_gap(unknown: int, rows: int) -> Gap:
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="process group of collectives",
        reason="this program has several process groups over different ranks, and gloo's events name none: "
        f"that of {unknown} of {rows} collectives is unknown",
        remedy="write a ::launch range with pg=… around each collective (docs/recording.md)",
    )
