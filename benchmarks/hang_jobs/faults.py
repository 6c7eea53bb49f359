"""Faults that make a job hang: what changes in the programs, and what is then true of the dumps.

A fault whose traces do not show in the schedule (nobody waits, or a culprit waits too) gives no truth:
the caller draws again.
"""

import random
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hang_jobs.engine import Entry, Key, Meeting, Schedule, Stops
from benchmarks.hang_jobs.mesh import Mesh
from benchmarks.hang_jobs.program import SYNC, Op, Program
from zprof.model.hang import HangClass

#: Operations of the same data that are mistaken for one another.
SWAPPED_KINDS = {
    "all_reduce": "reduce",
    "_all_gather_base": "all_reduce",
    "_reduce_scatter_base": "all_reduce",
    "broadcast": "all_reduce",
    "all_to_all": "_all_gather_base",
}


class Plan(Struct, frozen=True, kw_only=True):
    """A fault in the programs of a job.

    ``places``: the rank and the index in its program of each fault. ``watchdog``: from which index on a
    rank's recorder sees nothing finish. ``needs_sync``: hosts must wait for each operation.
    """

    programs: list[Program]
    culprits: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    stops: Stops = Stops()
    watchdog: dict[int, int] = {}
    is_sync: bool | None = None


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
        """Return the operations that only culprits have not entered, first entered first."""
        held = [
            (meeting.entered[0].created_ns, key)
            for key, meeting in self.schedule.meetings.items()
            if meeting.entered[0].completed_ns is None
            and (late := self.list_late(key))
            and late <= set(culprits)
        ]
        return [key for _, key in sorted(held, key=str)]


Planner = Callable[[random.Random, Mesh, list[Program]], Plan | None]
Reader = Callable[[Outcome], Finding | None]


def _draw_place(
    rng: random.Random, programs: list[Program], wanted: Callable[[Op], bool], rank: int | None = None
) -> tuple[int, int] | None:
    """Return a rank and the index of an operation in the later part of its program."""
    rank = rng.randrange(len(programs)) if rank is None else rank
    program = programs[rank]
    places = [
        index
        for index, op in enumerate(program)
        if index > len(program) // 3 and op.group is not None and wanted(op)
    ]
    return (rank, rng.choice(places)) if places else None


def _is_shared(op: Op) -> bool:
    assert op.group is not None
    return op.is_collective and len(op.group.ranks) > 1


def _edit(programs: list[Program], rank: int, edit: Callable[[Program], None]) -> list[Program]:
    edited = list(programs)
    edited[rank] = list(programs[rank])
    edit(edited[rank])
    return edited


def _plan_host_stuck(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    count = min(rng.choice((1, 1, 2, 3)), mesh.world - 1)
    ranks = rng.sample(range(mesh.world), count)
    first = _draw_place(rng, programs, lambda op: True, ranks[0])
    if first is None:
        return None
    # Two faults show only if they come at about the same moment: otherwise one rank waits for the other.
    places = [(rank, max(1, first[1] + rng.randint(-2, 2))) for rank in ranks]
    return Plan(
        programs=programs, culprits=tuple(sorted(ranks)), places=tuple(places), stops=Stops(host=dict(places))
    )


def _read_host_stuck(outcome: Outcome) -> Finding | None:
    culprits = outcome.plan.culprits
    if any(outcome.list_pending(rank) for rank in culprits):
        return None
    if any(outcome.schedule.is_ended[rank] for rank in culprits):
        return None
    held = outcome.list_held(culprits)
    if {rank for key in held for rank in outcome.list_late(key)} != set(culprits):
        return None
    return Finding(kinds=(HangClass.HOST_STUCK,), culprits=(culprits,), operations=tuple(held))


def _plan_never_entered(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, _is_shared)
    if place is None:
        return None
    rank, index = place
    edited = _edit(programs, rank, lambda program: program.__delitem__(index))
    return Plan(programs=edited, culprits=(rank,), places=(place,))


def _read_never_entered(outcome: Outcome) -> Finding | None:
    (rank,), ((_, index),) = outcome.plan.culprits, outcome.plan.places
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
    broken = _list_broken(outcome)
    if not broken:
        return None
    finding = _read_disagreement(outcome)
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


def _plan_other_operation(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    return _plan_change(rng, programs, lambda op: replace(op, kind=SWAPPED_KINDS[op.kind]), _is_shared)


def _plan_mismatch(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    def change(op: Op) -> Op:
        if op.kind == "all_to_all" or rng.random() < 0.3:
            return replace(op, dtype="Half" if op.dtype != "Half" else "Float")
        first = [op.in_sizes[0][0] + op.in_sizes[0][0] // 2 + 1, *op.in_sizes[0][1:]]
        sizes = [first] if rng.random() < 0.7 else [*op.in_sizes, op.in_sizes[0]]
        return replace(op, in_sizes=sizes, out_sizes=sizes)

    return _plan_change(rng, programs, change, lambda op: not op.parts and (_is_shared(op) or op.peer >= 0))


def _plan_change(
    rng: random.Random, programs: list[Program], change: Callable[[Op], Op], wanted: Callable[[Op], bool]
) -> Plan | None:
    place = _draw_place(rng, programs, wanted)
    if place is None:
        return None
    rank, index = place
    changed = change(programs[rank][index])
    edited = _edit(programs, rank, lambda program: program.__setitem__(index, changed))
    return Plan(programs=edited, culprits=(rank,), places=(place,))


def _list_broken(outcome: Outcome) -> list[tuple[Key, Meeting]]:
    """Return the operations that ranks entered differently, and that nobody waits elsewhere to enter."""
    broken = [
        (meeting.entered[0].created_ns, key, meeting)
        for key, meeting in outcome.schedule.meetings.items()
        if meeting.is_broken and not outcome.list_late(key)
    ]
    return [(key, meeting) for _, key, meeting in sorted(broken, key=lambda each: (each[0], str(each[1])))]


def _read_disagreement(outcome: Outcome) -> Finding | None:
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


def _plan_circular(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, lambda op: _is_shared(op) and op.waits)
    if place is None:
        return None
    rank, first = place
    program = programs[rank]
    one = program[first].group
    for second in range(first + 1, min(first + 4, len(program))):
        op = program[second]
        if op.kind == SYNC or not op.waits:
            return None
        if op.group is not None and op.group is not one:
            break
    else:
        return None
    if op.group is None or not _is_shared(op) or one is None or len(set(one.ranks) & set(op.group.ranks)) < 2:
        return None

    def swap(edited: Program) -> None:
        edited.insert(first, edited.pop(second))

    edited = _edit(programs, rank, swap)
    return Plan(
        programs=edited, culprits=(rank,), places=((rank, first), (rank, second)), is_sync=rng.random() < 0.7
    )


def _read_circular(outcome: Outcome) -> Finding | None:
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


def _plan_recv_cycle(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, lambda op: op.kind == "send")
    if place is None:
        return None
    rank, index = place
    program, peer = programs[rank], programs[rank][index].peer
    later = next((at for at in range(index + 1, len(program)) if program[at].kind == "recv"), None)
    if later is None or program[later].peer != peer:
        return None

    def swap(edited: Program) -> None:
        edited.insert(index, edited.pop(later))

    return Plan(
        programs=_edit(programs, rank, swap), culprits=(rank, peer), places=((rank, index),), is_sync=True
    )


def _read_recv_cycle(outcome: Outcome) -> Finding | None:
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
        kinds=(HangClass.CIRCULAR_WAIT,),
        culprits=(pair,),
        operations=(one.keys[0], other.keys[0]),
        evidence=(one, other),
    )


def _plan_device_stopped(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    ranks = rng.sample(range(mesh.world), min(rng.choice((1, 1, 2)), mesh.world - 1))
    first = _draw_place(rng, programs, lambda op: True, ranks[0])
    if first is None:
        return None
    watchdog = {rank: max(1, first[1] + rng.randint(-2, 2)) for rank in ranks}
    device = {rank: index + rng.randint(3, 20) for rank, index in watchdog.items()}
    return Plan(
        programs=programs,
        culprits=tuple(sorted(ranks)),
        places=tuple(watchdog.items()),
        stops=Stops(device=device),
        watchdog=watchdog,
    )


def _read_device_stopped(outcome: Outcome) -> Finding | None:
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


def _plan_dead_network(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    plan = _plan_change(
        rng,
        programs,
        lambda op: replace(op, is_dead=True),
        lambda op: not op.parts and (_is_shared(op) or op.peer >= 0),
    )
    return None if plan is None else replace(plan, culprits=())


def _read_dead_network(outcome: Outcome) -> Finding | None:
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


def _plan_dead_rank(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, lambda op: True)
    if place is None:
        return None
    stop = dict([place])
    return Plan(programs=programs, culprits=(place[0],), places=(place,), stops=Stops(host=stop, device=stop))


def _read_dead_rank(outcome: Outcome) -> Finding | None:
    culprits = outcome.plan.culprits
    held = tuple(outcome.list_held(culprits))
    return (
        Finding(kinds=(HangClass.RANK_MISSING,), culprits=((), culprits), operations=held) if held else None
    )


#: Each fault: how it is planted, and what is then true.
FAULTS: dict[str, tuple[Planner, Reader]] = {
    "host_stuck": (_plan_host_stuck, _read_host_stuck),
    "never_entered": (_plan_never_entered, _read_never_entered),
    "different_collectives": (_plan_other_operation, _read_disagreement),
    "mismatched": (_plan_mismatch, _read_disagreement),
    "circular_wait": (_plan_circular, _read_circular),
    "receive_cycle": (_plan_recv_cycle, _read_recv_cycle),
    "device_stopped": (_plan_device_stopped, _read_device_stopped),
    "not_finished": (_plan_dead_network, _read_dead_network),
    "rank_died": (_plan_dead_rank, _read_dead_rank),
}
#: Jobs in which nothing is wrong.
HEALTHY = ("shut_down", "running")
