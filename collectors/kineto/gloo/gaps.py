"""What a trace does not say of gloo's collectives."""

from collections.abc import Sequence

from zprof.collectors.kineto.collectives.groups import UNKNOWN_GROUP
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.gloo.operators import GlooKey
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap


def gaps_of_rows(rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Groups and sizes that are not known."""
    gaps = []
    groups = sum(row.group == UNKNOWN_GROUP for row in rows)
    if groups:
        gaps.append(_unknown_group(groups, len(rows)))
    sizes = sum(row.bytes == 0 and row.kind != CollectiveKind.BARRIER for row in rows)
    if sizes:
        gaps.append(_unknown_bytes(sizes, len(rows)))
    return gaps


def unmatched(key: GlooKey, launched: int, executed: int) -> Gap:
    """Launches and executions of one kind that are not equally many, or in an impossible order."""
    operator, count = key
    of = "" if count is None else f" of {count} elements"
    return Gap(
        what="collectives of gloo",
        reason=f"{launched} launches and {executed} executions of {operator}{of} do not pair up; "
        "none of them is counted",
        remedy="record again; a ::launch range per collective (docs/recording.md) makes them unambiguous",
    )


def without_launches(executions: int) -> Gap:
    """Executions that nobody is seen to launch."""
    return Gap(
        what="launches of collectives",
        reason=f"the trace has {executions} executions of gloo and none of the operators that launched them: "
        "their order is that of their starts, and a reduce-scatter is not told from an all-reduce",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def unwaited(posts: int) -> Gap:
    """Return the gap for messages that were posted and not waited for within the window."""
    return Gap(
        what="point-to-point messages",
        reason=f"{posts} sends or receives were posted and not waited for within the window: "
        "when they ended is unknown, and they are not counted",
        remedy="wait for every isend and irecv before the step ends",
    )


def unposted(messages: int, rows: int) -> Gap:
    """Return the gap for messages whose operators the trace lacks."""
    return Gap(
        what="point-to-point messages",
        reason=f"the operators that posted {messages} of {rows} messages are not in the trace: their other "
        "side is unknown, and they are not compared with it",
        remedy="profile with CPU operators and all threads (profile_all_threads=True)",
    )


def unknown_peers(messages: int, rows: int) -> Gap:
    """Return the gap for messages that do not say, or not unambiguously, to or from which rank they go."""
    return Gap(
        what="point-to-point messages",
        reason=f"the other side of {messages} of {rows} messages is unknown (any source, shapes not "
        "recorded, or several process groups that it can be of): they are not compared with it",
        remedy="record shapes, name the source of each receive, and write a ::launch range with pg=… around "
        "each message (docs/recording.md) where groups differ",
    )


def _unknown_bytes(unknown: int, rows: int) -> Gap:
    return Gap(
        what="bytes of collectives",
        reason=f"{unknown} of {rows} collectives of gloo show no tensor: shapes were not recorded",
        remedy="profile with record_shapes=True",
    )


def _unknown_group(unknown: int, rows: int) -> Gap:
    return Gap(
        what="process group of collectives",
        reason="this program has several process groups over different ranks, and gloo's events name none: "
        f"that of {unknown} of {rows} collectives is unknown",
        remedy="write a ::launch range with pg=… around each collective (docs/recording.md)",
    )
