"""Find which rank of a job ended first, in which operation, and when in its recording."""

import re

from msgspec.structs import replace

from zprof.model.endings import EndMoment, RankEnd
from zprof.run.manifest import read_endings
from zprof.run.reader import Run
from zprof.run.user_code import make_user_location

#: Messages of gloo and NCCL about a peer that exited or never arrived.
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|Timed out waiting|remote process exited|Socket Timeout"
)
#: Signals that launchers send to the other ranks.
_FROM_LAUNCHER = frozenset({"SIGTERM"})
#: The sockets of a killed process may be closed this long before the process is gone.
_MAX_DELAY_NS = 5 * 10**9
_COLLECTIVES = re.compile(
    r"all_reduce\w*|all_gather\w*|all_to_all\w*|reduce_scatter\w*|reduce|broadcast\w*|gather\w*|scatter\w*"
    r"|barrier|monitored_barrier|i?send|i?recv|_all_gather_base|_reduce_scatter_base|batch_isend_irecv"
)


def find_endings(run: Run) -> tuple[RankEnd, ...]:
    """Return how the ranks of a job ended, the first end first; nothing if no rank failed.

    Raises:
        BadInput: The run's files about it are damaged.
    """
    ends = [_describe_end(run, end) for end in read_endings(run.path, run.manifest)]
    if not any(end.has_failed for end in ends):
        return ()
    # One end caused the others. A rank that lost a peer, or that the launcher ended, follows from the end of
    # another rank, which may have been noticed slightly later. If nothing else failed, a rank that
    # exited normally is the peer. Without times, the cause is unknown unless only one rank failed.
    failed = [end for end in ends if end.has_failed]
    followers = [
        end
        for end in failed
        if bool(_LOST_PEER.search(end.error)) or (end.signal in _FROM_LAUNCHER and not end.error)
    ]
    latest_ns = min(map(_get_time, followers), default=_get_time(None)) + _MAX_DELAY_NS
    causes = [end for end in failed if end not in followers and _get_time(end) <= latest_ns]
    if not causes and followers:
        earliest = min(map(_get_time, followers))
        causes = [end for end in ends if end.exit_code == 0 and _get_time(end) < earliest]
    known = [end for end in causes or failed if end.time_ns is not None]
    first = min(known, key=_get_time, default=None) or (failed[0] if len(failed) == 1 else None)
    ordered = sorted(ends, key=lambda end: (end is not first, _get_time(end), end.rank))
    return tuple(replace(end, is_first=end is first) for end in ordered)


def _get_time(end: RankEnd | None) -> int:
    return 1 << 62 if end is None or end.time_ns is None else end.time_ns


def _describe_end(run: Run, end: RankEnd) -> RankEnd:
    """Return the end with the operation, program line, and step."""
    manifest, last = run.rank_manifests.get(end.rank), run.last_step(end.rank)
    moment, step = EndMoment.BEFORE_STEPS, None
    if manifest is not None and manifest.status == "complete":
        moment = EndMoment.AFTER_STEPS
    elif last is not None:
        moment, step = EndMoment.IN_STEP, last + 1
    after_ns = None if end.time_ns is None else max(0, end.time_ns - run.manifest.created_ns)
    found = (
        make_user_location(each.file, each.line, each.function, run.manifest.folder) for each in end.stack
    )
    location = next((each for each in found if each is not None), None)
    # The outermost collective of torch.distributed in the stack.
    calls = [
        frame.function
        for frame in end.stack
        if "distributed_c10d" in frame.file and _COLLECTIVES.fullmatch(frame.function)
    ]
    operation = calls[-1] if calls and not end.has_left else ""
    return replace(end, moment=moment, step=step, after_ns=after_ns, location=location, operation=operation)
