"""Tell the class of a hang from what is left at the end of all waits."""

from zprof.analysis.hang.operations import Job, PendingOperation
from zprof.analysis.hang.order import enters_at_new_line, leaves_own_order
from zprof.analysis.hang.waits import Root
from zprof.model.hang import HangClass


def classify(job: Job, root: Root, stopped: frozenset[int]) -> HangClass:
    """Return the class of one root of the waits."""
    if not root.ranks:
        if any(differs(operation) for operation in root.operations):
            return HangClass.MISMATCHED
        is_unknown = any(operation.unknown for operation in root.operations)
        return HangClass.RANK_MISSING if is_unknown else HangClass.NOT_FINISHED
    if stopped.intersection(root.ranks):
        return HangClass.DEVICE_STOPPED
    if not set(root.ranks) <= set(job.flights) - job.unread:
        return HangClass.RANK_MISSING
    if len(root.ranks) > 1:
        late = {rank for operation in root.operations for rank in operation.late}
        # The ranks of a circle that stand in an operation at a line at which they never entered it.
        is_skip = late.intersection(find_skipping(job, root)) - {
            rank
            for operation in root.operations
            if not operation.key.is_p2p
            for rank in operation.entries
            if enters_at_new_line(job, rank, operation.key.group, operation.key.sequence)
        }
        return HangClass.NEVER_ENTERED if is_skip else HangClass.CIRCULAR_WAIT
    went_on = any(_went_past(job, root.ranks[0], operation) for operation in root.held_up)
    return HangClass.NEVER_ENTERED if went_on else HangClass.HOST_STUCK


def _went_past(job: Job, rank: int, held_up: PendingOperation) -> bool:
    """Return True if a rank has entered collectives that ranks which wait for it have not reached."""
    own = job.progress[rank]
    return any(
        name in own and other.is_exact and own[name].entered > other.entered
        for waiting in held_up.entries
        for name, other in job.progress[waiting].items()
    )


def find_skipping(job: Job, root: Root) -> tuple[int, ...]:
    """Return the ranks of a circle that left the usual order; none if all did, or nothing tells.

    Each rank's own earlier rounds tell first. Without them, ranks that are late for what all others of the
    circle have entered are those. How many ranks stand in an operation says nothing: the victims' group may
    be the larger one.
    """
    return find_leaving(job, root) or _find_late(root)


def find_leaving(job: Job, root: Root) -> tuple[int, ...]:
    """Return the ranks of a circle that left the order of their own earlier rounds, if not all did."""
    leaving = {
        rank
        for entered in root.operations
        for skipped in root.operations
        if skipped is not entered
        for rank in entered.entries.keys() & (skipped.late | skipped.behind)
        if leaves_own_order(job, rank, entered.entries[rank].order, skipped.key.group)
    }
    return tuple(sorted(leaving)) if len(leaving) < len(root.ranks) else ()


def _find_late(root: Root) -> tuple[int, ...]:
    late = {rank for operation in root.operations for rank in operation.late}.intersection(root.ranks)
    return tuple(sorted(late)) if len(late) < len(root.ranks) else ()


def differs(operation: PendingOperation) -> bool:
    """Return True if a send and its receive have other sizes or dtypes."""
    sides = {(entry.sizes, entry.dtypes) for entry in operation.entries.values()}
    return operation.key.is_p2p and len(sides) > 1


def is_passed(root: Root) -> bool:
    """Return True if no rank stands in the operations of a root: they may be left over in the buffer."""
    return all(entry.is_passed for operation in root.operations for entry in operation.entries.values())
