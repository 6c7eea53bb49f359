"""What is true of the dumps of a job with a planted fault, from what its hosts and devices did.

A fault whose traces do not show in the schedule (nobody waits, or a culprit waits too) gives no finding:
the caller draws again.
"""

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hang_jobs.engine import Entry, Key, Meeting, Schedule
from benchmarks.hang_jobs.mesh import Mesh
from benchmarks.hang_jobs.plans import Plan
from zprof.model.hang import HangClass


class Finding(Struct, frozen=True, kw_only=True):
    """What the dumps must lead to: the first of ``kinds`` and of ``culprits``; the others are as defensible.

    ``operations``: any of which is the first stuck one. ``evidence``: entries that must be in the dumps.
    """

    kinds: tuple[HangClass, ...]
    culprits: tuple[tuple[int, ...], ...]
    operations: tuple[Key, ...]
    evidence: tuple[Entry, ...] = ()
    note: str = ""


class Outcome(Struct, frozen=True):
    """A schedule with the fault that shaped it."""

    plan: Plan
    mesh: Mesh
    schedule: Schedule

    def is_pending(self, entry: Entry) -> bool:
        """Tell whether the recorder of the entry's rank has not seen it finish."""
        return entry.completed_ns is None or entry.index >= self.plan.watchdog.get(
            entry.rank, entry.index + 1
        )

    def list_pending(self, rank: int) -> list[Entry]:
        """Return what a rank has entered and not finished."""
        return [entry for entry in self.schedule.entries[rank] if self.is_pending(entry)]

    def list_members(self, key: Key) -> tuple[int, ...]:
        """Return the ranks that take part in an operation."""
        entered = self.schedule.meetings[key].entered[0]
        assert entered.op.group is not None
        return entered.op.group.ranks if len(key) == 2 else (key[1], key[2])

    def list_late(self, key: Key) -> set[int]:
        """Return the ranks that never entered an operation."""
        entered = {entry.rank for entry in self.schedule.meetings[key].entered}
        return set(self.list_members(key)) - entered

    def list_held(self, culprits: tuple[int, ...]) -> list[Key]:
        """Return the first operation of each group (or pair) that only culprits have not entered."""
        held = [
            (meeting.entered[0].created_ns, str(key), key)
            for key, meeting in self.schedule.meetings.items()
            if meeting.entered[0].completed_ns is None
            and (late := self.list_late(key))
            and late <= set(culprits)
        ]
        firsts: dict[Key, Key] = {}
        for _, _, key in sorted(held):
            firsts.setdefault(key[:-1], key)
        return list(firsts.values())


def read_host_stuck(outcome: Outcome) -> Finding | None:
    culprits = outcome.plan.culprits
    if any(outcome.list_pending(rank) for rank in culprits):
        return None
    if any(outcome.schedule.is_ended[rank] for rank in culprits):
        return None
    held = outcome.list_held(culprits)
    if {rank for key in held for rank in outcome.list_late(key)} != set(culprits):
        return None
    return Finding(kinds=(HangClass.HOST_STUCK,), culprits=(culprits,), operations=tuple(held))


def read_never_entered(outcome: Outcome) -> Finding | None:
    (rank,), ((_, index),) = outcome.plan.culprits, outcome.plan.places
    if read_disagreement(outcome) is not None:
        return None
    pending = outcome.list_pending(rank)
    held = outcome.list_held((rank,))
    if held:
        went_on = any(entry.index >= index for entry in outcome.schedule.entries[rank])
        if not pending and not outcome.schedule.is_ended[rank]:
            return None if went_on else _find_host_like(outcome, held, "nothing entered since")
        kinds: tuple[HangClass, ...] = (HangClass.NEVER_ENTERED,)
        note = ""
        if not pending:
            kinds, note = (
                (*kinds, HangClass.HOST_STUCK),
                "ended, with nothing pending: as a host that is stuck",
            )
        elif len(pending) == 1:
            kinds, note = (
                (*kinds, HangClass.CIRCULAR_WAIT),
                "one operation on: as two groups in another order",
            )
        peers = {entry.rank for entry in outcome.schedule.meetings[held[0]].entered}
        culprits = ((rank,), *(tuple(sorted({rank, peer})) for peer in peers if len(pending) == 1))
        return Finding(kinds=kinds, culprits=culprits, operations=tuple(held), note=note)
    return None


def read_shifted(outcome: Outcome) -> Finding | None:
    """Read a rank that skipped an operation and entered the next one of the group in its place."""
    finding = read_disagreement(outcome)
    if finding is None:
        return None
    note = "its next operation took the number of the skipped one"
    return replace(finding, kinds=(*finding.kinds, HangClass.NEVER_ENTERED), note=note)


def _find_host_like(outcome: Outcome, held: list[Key], note: str) -> Finding:
    return Finding(
        kinds=(HangClass.HOST_STUCK, HangClass.NEVER_ENTERED),
        culprits=(outcome.plan.culprits,),
        operations=tuple(held),
        note=note,
    )


def _list_broken(outcome: Outcome) -> list[tuple[Key, Meeting]]:
    """Return the operations that ranks entered differently, and that nobody waits elsewhere to enter."""
    broken = [
        (meeting.entered[0].created_ns, key, meeting)
        for key, meeting in outcome.schedule.meetings.items()
        if meeting.is_broken and not outcome.list_late(key)
    ]
    return [(key, meeting) for _, key, meeting in sorted(broken, key=lambda each: (each[0], str(each[1])))]


def read_disagreement(outcome: Outcome) -> Finding | None:
    """Read the first operation that ranks entered differently; of two ranks, either may be the odd one."""
    culprits = outcome.plan.culprits
    broken = [
        (key, meeting)
        for key, meeting in _list_broken(outcome)
        if meeting.reached
        and {entry.rank for entry in meeting.reached} >= set(outcome.list_members(key)) - set(culprits)
    ]
    if len(broken) != 1:
        return None
    key, meeting = broken[0]
    kinds = {entry.op.kind for entry in meeting.entered} if len(key) == 2 else {""}
    kind = HangClass.DIFFERENT_COLLECTIVES if len(kinds) > 1 else HangClass.MISMATCHED
    members = tuple(sorted(outcome.list_members(key)))
    if not set(culprits) <= set(members):
        return None
    is_tie = len(members) == 2
    return Finding(
        kinds=(kind,),
        culprits=(members, culprits) if is_tie else (culprits,),
        operations=(key,),
        evidence=tuple(meeting.entered)
        if is_tie
        else tuple(e for e in meeting.entered if e.rank in culprits),
        note="of two ranks either is the odd one" if is_tie else "",
    )


def read_circular(outcome: Outcome) -> Finding | None:
    (rank,), ((_, first), *_) = outcome.plan.culprits, outcome.plan.places
    mine = [entry for entry in outcome.list_pending(rank) if entry.index == first]
    if not mine or len(mine[0].keys[0]) != 2:
        return None
    later = mine[0]  # the operation that this rank entered first, and its peers second
    held = {
        entry.rank: entry
        for peer in outcome.list_members(later.keys[0])
        if peer != rank
        for entry in outcome.list_pending(peer)[:1]
        if len(entry.keys[0]) == 2
        and rank in outcome.list_members(entry.keys[0])
        and entry.keys != later.keys
    }
    earlier = {entry.keys[0] for entry in held.values()}
    if len(earlier) != 1:
        return None
    kinds: tuple[HangClass, ...] = (HangClass.CIRCULAR_WAIT,)
    note = ""
    cycle = tuple(sorted({rank, *held}))
    culprits = (cycle, (rank,), *(tuple(sorted({rank, peer})) for peer in held))
    if outcome.list_late(next(iter(earlier))):
        kinds, note = (*kinds, HangClass.NEVER_ENTERED), "as a rank that skipped the earlier operation"
    return Finding(
        kinds=kinds,
        culprits=culprits,
        operations=(next(iter(earlier)), later.keys[0]),
        evidence=(later, *held.values()),
        note=note,
    )


def read_recv_cycle(outcome: Outcome) -> Finding | None:
    firsts = [outcome.list_pending(rank)[:1] for rank in outcome.plan.culprits]
    if not all(firsts):
        return None
    (one,), (other,) = firsts
    if (
        one.op.kind != "recv"
        or other.op.kind != "recv"
        or (one.op.peer, other.op.peer) != (other.rank, one.rank)
    ):
        return None
    pair = tuple(sorted((one.rank, other.rank)))
    return Finding(
        kinds=(HangClass.CIRCULAR_WAIT, HangClass.NEVER_ENTERED),
        culprits=(pair, outcome.plan.culprits[:1]),
        note="as a rank that skipped its send; its earlier steps may tell which",
        operations=(one.keys[0], other.keys[0]),
        evidence=(one, other),
    )


def read_device_stopped(outcome: Outcome) -> Finding | None:
    culprits = outcome.plan.culprits
    operations: list[Key] = []
    evidence: list[Entry] = []
    for rank in culprits:
        pending = outcome.list_pending(rank)
        passed = [
            entry
            for entry in pending
            if entry.completed_ns is not None
            and any(
                other.rank not in culprits
                for key in entry.keys
                for other in outcome.schedule.meetings[key].entered
            )
        ]
        left = [entry for entry in pending if entry.completed_ns is None]
        if not passed or not left:
            return None
        evidence.append(passed[0])
        operations += [pending[0].keys[0], passed[0].keys[0], left[0].keys[0]]
    waiting = [
        entry
        for key in operations
        for entry in outcome.schedule.meetings[key].entered
        if entry.rank not in culprits and entry.completed_ns is None
    ]
    if not waiting:
        return None
    return Finding(
        kinds=(HangClass.DEVICE_STOPPED,),
        culprits=(culprits,),
        operations=tuple(operations),
        evidence=tuple(evidence),
    )


def read_dead_network(outcome: Outcome) -> Finding | None:
    ((rank, index),) = outcome.plan.places
    entry = next((each for each in outcome.schedule.entries[rank] if each.index == index), None)
    if entry is None or outcome.list_late(entry.keys[0]):
        return None
    meeting = outcome.schedule.meetings[entry.keys[0]]
    if len(meeting.reached) != meeting.members:
        return None
    return Finding(
        kinds=(HangClass.NOT_FINISHED,),
        culprits=((),),
        operations=entry.keys,
        evidence=tuple(meeting.entered),
    )


def read_dead_rank(outcome: Outcome) -> Finding | None:
    culprits = outcome.plan.culprits
    held = tuple(outcome.list_held(culprits))
    return (
        Finding(kinds=(HangClass.RANK_MISSING,), culprits=((), culprits), operations=held) if held else None
    )
