"""Make gaps for the facts about collectives (on a device, or run by gloo) that a trace does not contain."""

from collections.abc import Sequence

from zprof.collectors.read.kineto.annotations import find_rows
from zprof.collectors.read.kineto.collectives import CollectiveRow
from zprof.collectors.read.kineto.device.metadata import describe_arguments, is_nccl_annotation
from zprof.collectors.read.kineto.gloo.launches import GlooKey
from zprof.collectors.read.kineto.trace import Trace
from zprof.model.collectives import UNKNOWN_GROUP, CollectiveKind
from zprof.model.gaps import Gap, GapKind

_RECORD_AGAIN = "record with ProfilerActivity.CPU too, on torch 2.4 or newer"


def list_device_gaps(rows: Sequence[CollectiveRow], name_method: str) -> list[Gap]:
    """Return gaps for unknown metadata, groups, sizes and launches, each with a count."""
    described = [row for row in rows if not row.method.startswith(name_method)]
    total, by_kernel_name = len(rows), len(rows) - len(described)
    without_group = sum(row.group.startswith(("pg:", "stream:")) for row in described)
    without_size = sum(not row.bytes and row.kind != CollectiveKind.BARRIER for row in described)
    without_launch = sum(row.launch_start_ns is None for row in rows)
    found = (
        (
            by_kernel_name,
            "metadata of collectives",
            f"{by_kernel_name} of {total} collectives on the device and their launches carry no metadata: "
            "the kind comes from the kernel name; group, size and type are unknown",
            _RECORD_AGAIN,
        ),
        (
            without_group,
            "process group of collectives",
            f"the ranks of the process group of {without_group} of {total} collectives are not in the trace",
            _RECORD_AGAIN,
        ),
        (
            without_size,
            "bytes of collectives",
            f"the size of {without_size} of {total} collectives is not in the trace",
            "record with record_shapes=True, on torch 2.4 or newer",
        ),
        (
            without_launch,
            "launches of collectives",
            f"the calls that launched {without_launch} of {total} collectives are not in the trace: "
            "they happened before the window, or host calls were not recorded",
            "start the window at the start of a step, with the device idle, and with ProfilerActivity.CPU",
        ),
    )
    return [
        Gap(kind=GapKind.COLLECTIVES, what=what, reason=reason, remedy=remedy)
        for count, what, reason, remedy in found
        if count
    ]


def list_missing_device_work(trace: Trace, rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Return a gap if the host launched collectives but the trace has no device work for any of them."""
    if rows:
        return []
    # The collectives that the host launched, excluding single-rank groups.
    records = find_rows(trace, ("cpu_op",), "record_param_comms".__eq__).tolist()
    parsed = [describe_arguments(trace.arguments[row]) for row in records if row in trace.arguments]
    descriptions = [entry for entry in parsed if entry is not None]
    if descriptions:
        calls = sum(entry.group_size != 1 and len(entry.ranks) != 1 for entry in descriptions)
    else:
        calls = len(find_rows(trace, ("user_annotation", "cpu_op"), is_nccl_annotation))
    if not calls:
        return []
    has_device_work = bool(trace.category.where(lambda name: name in ("kernel", "gpu_memcpy")).any())
    missing_text = "no kernel or copy that belongs to one" if has_device_work else "no GPU work"
    return [
        Gap(
            kind=GapKind.COLLECTIVES,
            what="collectives on the device",
            reason=f"the host launched {calls} NCCL collectives, but the trace has {missing_text}",
            remedy="record with ProfilerActivity.CUDA, and let the last step finish before the window ends",
        )
    ]


def list_gloo_gaps(rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Return gaps for unknown groups and sizes."""
    gaps, total = [], len(rows)
    groups = sum(row.group == UNKNOWN_GROUP for row in rows)
    if groups:
        gaps.append(
            Gap(
                kind=GapKind.COLLECTIVES,
                what="process group of collectives",
                reason="the program has several process groups with different ranks, and gloo events do not "
                f"identify the group: it is unknown for {groups} of {total} collectives",
                remedy="write a ::launch range with pg=… around each collective (docs/recording.md)",
            )
        )
    sizes = sum(row.bytes == 0 and row.kind != CollectiveKind.BARRIER for row in rows)
    if sizes:
        gaps.append(
            Gap(
                kind=GapKind.COLLECTIVES,
                what="bytes of collectives",
                reason=f"{sizes} of {total} gloo collectives have no tensor shape: shapes were not recorded",
                remedy="profile with record_shapes=True",
            )
        )
    return gaps


def make_unmatched_gap(key: GlooKey, launched: int, executed: int, matched: int) -> Gap:
    """Return the gap for launches and executions of one key of which only ``matched`` belong together."""
    operator, count = key
    size_text = "" if count is None else f" of {count} elements"
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="collectives of gloo",
        reason=f"{launched} launches and {executed} executions of {operator}{size_text} do not match; "
        + (f"the {matched} that belong together are counted" if matched else "none of them is counted"),
        remedy="record again; one ::launch range per collective (docs/recording.md) makes them unambiguous",
    )


def make_no_launches_gap(executions: int) -> Gap:
    """Return the gap for executions whose launches are not in the trace."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="launches of collectives",
        reason=f"the trace has {executions} gloo executions but no operators that launched them: "
        "they are ordered by start, and a reduce-scatter cannot be distinguished from an all-reduce",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def make_missing_wait_gap(posts: int) -> Gap:
    """Return the gap for messages that were posted but not waited for within the window."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"{posts} sends or receives were posted but not waited for within the window: "
        "their end is unknown, and they are not counted",
        remedy="wait for every isend and irecv before the step ends",
    )


def make_missing_post_gap(messages: int, rows: int) -> Gap:
    """Return the gap for messages whose operators are not in the trace."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"the operators that posted {messages} of {rows} messages are not in the trace: the peer "
        "is unknown, and they are not compared with its side",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def make_unknown_peers_gap(messages: int, rows: int) -> Gap:
    """Return the gap for messages whose peer is missing or ambiguous."""
    return Gap(
        kind=GapKind.COLLECTIVES,
        what="point-to-point messages",
        reason=f"the peer of {messages} of {rows} messages is unknown (any source, shapes not "
        "recorded, or several possible process groups): they are not compared with its side",
        remedy="record shapes, pass the source of each receive, and write a ::launch range with pg=… around "
        "each message (docs/recording.md) where groups differ",
    )
