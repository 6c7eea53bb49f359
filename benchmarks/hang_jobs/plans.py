"""Plant a fault: what changes in the programs of a job, or where a host or a device stops."""

import random
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hang_jobs.engine import Stops
from benchmarks.hang_jobs.mesh import Mesh
from benchmarks.hang_jobs.program import SYNC, Op, Program

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
    rank's recorder sees nothing finish. ``is_sync``: whether hosts wait for each operation (None: either).
    """

    programs: list[Program]
    culprits: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    stops: Stops = Stops()
    watchdog: dict[int, int] = {}
    is_sync: bool | None = None


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


def plan_host_stuck(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
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


def plan_never_entered(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, _is_shared)
    if place is None:
        return None
    rank, index = place
    edited = _edit(programs, rank, lambda program: program.__delitem__(index))
    return Plan(programs=edited, culprits=(rank,), places=(place,))


def plan_other_operation(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    return _plan_change(rng, programs, lambda op: replace(op, kind=SWAPPED_KINDS[op.kind]), _is_shared)


def plan_mismatch(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
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


def plan_circular(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
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


def plan_recv_cycle(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
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


def plan_device_stopped(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
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


def plan_dead_network(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    plan = _plan_change(
        rng,
        programs,
        lambda op: replace(op, is_dead=True),
        lambda op: not op.parts and (_is_shared(op) or op.peer >= 0),
    )
    return None if plan is None else replace(plan, culprits=())


def plan_dead_rank(rng: random.Random, mesh: Mesh, programs: list[Program]) -> Plan | None:
    place = _draw_place(rng, programs, lambda op: True)
    if place is None:
        return None
    stop = dict([place])
    return Plan(programs=programs, culprits=(place[0],), places=(place,), stops=Stops(host=stop, device=stop))
