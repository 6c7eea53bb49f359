"""Classify a hang, and build the values of its report: culprits, victims, operations, waits."""

import sys
from collections.abc import Iterable

from msgspec.structs import replace

from zprof.analysis.hang.flight import RankFlight, find_user_line, trim_stack
from zprof.analysis.hang.operations import Job, PendingOperation, list_ranks
from zprof.analysis.hang.order import Divergence, enters_at_new_line, leaves_own_order
from zprof.analysis.hang.waits import Root
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.group_roles import read_role
from zprof.model.hang import (
    EnteredSide,
    Hang,
    HangClass,
    HangStatus,
    RankAtHang,
    StuckOperation,
    Wait,
    name_entered,
)

#: Maximum number of listed operations, causes first.
_MAX_OPERATIONS = 64
#: Separates input sizes from output sizes in a signature.
_TO_OUTPUT = " -> "


def classify(job: Job, root: Root, stopped: frozenset[int]) -> HangClass:
    """Return the hang class of one root of the waits."""
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
        # The ranks of a cycle that entered an operation at a new line of the program.
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
    """Return True if a rank has entered collectives not yet reached by ranks that wait for it."""
    own = job.progress[rank]
    return any(
        name in own and other.is_exact and own[name].entered > other.entered
        for waiting in held_up.entries
        for name, other in job.progress[waiting].items()
    )


def find_skipping(job: Job, root: Root) -> tuple[int, ...]:
    """Return the ranks of a cycle that left the usual order; empty if all did, or if unknown.

    Each rank's own earlier rounds are the best evidence. Without them, a rank has left the order if it is
    late for an operation that the rest of the cycle has entered. The number of ranks in an operation proves
    nothing: the victims' group may be the larger one.
    """
    return find_leaving(job, root) or _find_late(root)


def find_leaving(job: Job, root: Root) -> tuple[int, ...]:
    """Return the ranks of a cycle that left the order of their own earlier rounds; empty if all did."""
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
    """Return True if a send and its receive differ in size or dtype."""
    sides = {(entry.sizes, entry.dtypes) for entry in operation.entries.values()}
    return operation.key.is_p2p and len(sides) > 1


def is_passed(root: Root) -> bool:
    """Return True if no rank is in a root's operations, which may then be left over in the buffer."""
    return all(entry.is_passed for operation in root.operations for entry in operation.entries.values())


def describe_roots(job: Job, folder: str, kind: HangClass, roots: list[Root]) -> Hang:
    """Describe the roots of one hang class, and who waits for them."""
    causes = [operation for root in roots for operation in root.held_up]
    if (
        kind is HangClass.NEVER_ENTERED
    ):  # of a circle, what was skipped is the cause, not what was entered then
        skipping = {rank for root in roots if len(root.ranks) > 1 for rank in find_skipping(job, root)}
        skipped = [operation for operation in causes if skipping & set(operation.late)]
        causes = [each for each in causes if not skipping & each.entries.keys() or each in skipped]
    if kind in (HangClass.NEVER_ENTERED, HangClass.HOST_STUCK):
        accused = {rank for root in roots for rank in _list_accused(job, kind, root)}
        causes = [each for each in causes if accused & set(each.late)] or causes
    if kind is HangClass.DEVICE_STOPPED:
        stopped = {rank for root in roots for rank in root.ranks}
        causes += [each for each in job.operations if each.finished and stopped & each.entries.keys()]
    operations = _order_operations(job, causes)
    culprits = []
    for root in roots:
        for rank in _list_accused(job, kind, root):
            places = [each for each, held_up in enumerate(operations) if rank in held_up.members]
            late = [each for each in places if rank in operations[each].late]
            place = next(iter([*late, *places]), 0)
            flight = job.flights.get(rank)
            culprits.append(
                RankAtHang(rank=rank, operation=place)
                if flight is None
                else describe_rank(job, flight, folder, operation=place, held_up=operations[place])
            )
    return Hang(
        status=HangStatus.STUCK,
        kind=kind,
        confidence=_rate(job, kind, roots),
        operations=tuple(_describe_operation(job, folder, operation) for operation in operations),
        culprits=tuple(sorted(culprits, key=lambda each: each.rank)),
        victims=_list_victims(operations, [culprit.rank for culprit in culprits]),
        waits=_list_waits(operations),
    )


def _list_accused(job: Job, kind: HangClass, root: Root) -> tuple[int, ...]:
    """Return the ranks to blame at one root of the waits."""
    if kind in (HangClass.NEVER_ENTERED, HangClass.CIRCULAR_WAIT) and len(root.ranks) > 1:
        return find_skipping(job, root) or root.ranks
    if kind is HangClass.MISMATCHED and not root.ranks:
        return tuple(sorted({rank for each in root.operations if differs(each) for rank in each.entries}))
    if kind is HangClass.RANK_MISSING and not root.ranks:
        return tuple(sorted({rank for operation in root.operations for rank in operation.unknown}))
    return root.ranks


def _rate(job: Job, kind: HangClass, roots: list[Root]) -> Confidence:
    """Rate the confidence in the culprits: a missing dump accuses nobody."""
    if kind is HangClass.RANK_MISSING or not roots:
        return Confidence.LOW
    circles = [root for root in roots if len(root.ranks) > 1]
    if kind is HangClass.CIRCULAR_WAIT and any(
        len(root.ranks) > 2 and not find_skipping(job, root) for root in circles
    ):
        return Confidence.LOW  # most ranks of a large circle did what they should
    is_in_order = any(not find_leaving(job, root) for root in circles)
    if kind is HangClass.NOT_FINISHED or is_in_order:
        return Confidence.MEDIUM
    # Missing dumps may show what holds the culprit up.
    is_complete = not any(operation.unknown for root in roots for operation in root.held_up)
    return Confidence.HIGH if is_complete else Confidence.MEDIUM


def describe_divergence(job: Job, folder: str, divergence: Divergence) -> Hang:
    """Describe ranks that entered different operations at the same position in a group."""
    entered = {rank: job.signatures.get(number) for rank, number in divergence.entered.items()}
    is_other = len({signature[0] for signature in entered.values()}) > 1
    if divergence.by_line or divergence.is_skip:
        kind = HangClass.NEVER_ENTERED
    else:
        is_other = is_other or divergence.is_swapped
        kind = HangClass.DIFFERENT_COLLECTIVES if is_other else HangClass.MISMATCHED
    held_up = [
        operation
        for operation in job.operations
        if operation.key.group == divergence.group and not operation.key.is_p2p
    ]
    operations = _order_operations(job, held_up)
    odd = divergence.odd if divergence.expected is not None else tuple(sorted(entered))
    sides = _list_sides(job, folder, divergence)
    instead = {rank: side for side in sides for rank in side.ranks}
    culprits = tuple(
        replace(
            describe_rank(job, job.flights[rank], folder, operation=0),
            entered_instead=name_entered(instead[rank]) if instead else "",
            location=_locate_place(job, rank, divergence, folder),
        )
        for rank in odd
    )
    return Hang(
        status=HangStatus.STUCK,
        kind=kind,
        confidence=Confidence.HIGH
        if divergence.expected is not None and divergence.is_sure
        else Confidence.MEDIUM,
        operations=tuple(
            _describe_operation(job, folder, operation, frozenset(divergence.odd)) for operation in operations
        ),
        culprits=culprits,
        victims=_list_victims(operations, odd),
        sides=sides,
        is_swapped=divergence.is_swapped,
        waits=_list_waits(operations),
    )


def _list_sides(job: Job, folder: str, divergence: Divergence) -> tuple[EnteredSide, ...]:
    """Return what the ranks entered at a divergence, usual operation first; empty if only lines differ."""
    if divergence.by_line:
        return ()
    ranks: dict[int, list[int]] = {}
    for rank, number in sorted(divergence.entered.items()):
        ranks.setdefault(number, []).append(rank)
    pending = {
        rank: entry.sizes
        for operation in job.operations
        if operation.key.group == divergence.group and not operation.key.is_p2p
        for rank, entry in operation.entries.items()
        if entry.sequence == divergence.sequence
    }
    sides = []
    for number in sorted(ranks, key=lambda number: number != divergence.expected):
        operation, sizes, dtypes = job.signatures.get(number)
        first = ranks[number][0]
        sides.append(
            EnteredSide(
                ranks=tuple(ranks[number]),
                operation=operation,
                sequence=divergence.sequence,
                sizes=sizes or pending.get(first, ""),  # those that may differ are not part of a signature
                dtypes=dtypes,
                location=_locate_place(job, first, divergence, folder),
            )
        )
    inputs = [replace(side, sizes=side.sizes.partition(_TO_OUTPUT)[0]) for side in sides]
    have_equal_inputs = len({(side.operation, side.sizes, side.dtypes) for side in inputs}) < len(sides)
    return tuple(sides if have_equal_inputs else inputs)


def _locate_place(job: Job, rank: int, divergence: Divergence, folder: str) -> SourceLocation | None:
    """Return the program line at which a rank entered its operation at a divergence."""
    history = job.flights[rank].history
    names = [group.name for group in history.groups]
    rows = (history.group == names.index(divergence.group)) & (history.sequence == divergence.sequence)
    numbers = history.location[rows]
    if not len(numbers) or numbers[0] < 0:
        return None
    file, line = job.signatures.get(int(numbers[0]))
    for frames in job.flights[rank].stacks.values():
        located = find_user_line(frames)
        if located is not None and (located.file, str(located.line)) == (file, line):
            return find_user_line(frames, folder)
    return None


def _order_operations(job: Job, causes: Iterable[PendingOperation]) -> list[PendingOperation]:
    """Return the operations that cannot finish, causes first, then those with the most waiting ranks."""
    first = {operation.key: operation for operation in sorted(causes, key=_rank_cause)}
    rest = [operation for operation in job.operations if operation.key not in first]
    rest.sort(key=lambda each: (-len(each.entries), each.key))
    return [*first.values(), *rest][:_MAX_OPERATIONS]


def _rank_cause(operation: PendingOperation) -> tuple[bool, bool, int, int]:
    """Return the sort key of causes: finished by a peer, ranks inside, how many, and since when."""
    entries = operation.entries.values()
    times = [entry.created_ns for entry in entries if entry.created_ns is not None]
    is_passed = all(entry.is_passed for entry in entries)
    return not operation.finished, is_passed, -len(entries), min(times, default=sys.maxsize)


def _describe_operation(
    job: Job, folder: str, operation: PendingOperation, odd: frozenset[int] = frozenset()
) -> StuckOperation:
    """Describe an operation as entered by a rank that did not diverge."""
    entry = operation.entries[min(operation.entries.keys() - odd or operation.entries.keys())]
    flight = job.flights[entry.rank]
    role = read_role(entry.group.description)
    name = f"{entry.operation} {operation.key.sender}->{operation.key.receiver}"
    return StuckOperation(
        operation=name if operation.key.is_p2p else entry.operation,
        group=entry.group.name,
        description=entry.group.description,
        role="" if role is None else role.value,
        ranks=operation.members,
        sequence=entry.sequence,
        sizes=entry.sizes,
        dtypes=entry.dtypes,
        entered=tuple(sorted(set(operation.entries) | operation.behind)),
        late=tuple(sorted(operation.late)),
        finished=tuple(sorted(operation.finished)),
        unknown=tuple(sorted(operation.unknown)),
        location=flight.locate(entry, folder),
        size=len(operation.members) if operation.key.is_p2p or entry.group.ranks else None,
    )


def describe_rank(
    job: Job, flight: RankFlight, folder: str, *, operation: int, held_up: PendingOperation | None = None
) -> RankAtHang:
    """Describe where a rank is and what it entered last; ``held_up``: the operations that wait for it."""
    last = flight.last
    if last is None and held_up is not None:
        group, progress = held_up.entry.group, job.progress[flight.rank].get(held_up.key.group)
        return RankAtHang(
            rank=flight.rank,
            operation=operation,
            last_group=group.description or group.name,
            last_sequence=None if progress is None or not progress.entered else progress.entered,
            location=find_user_line(flight.main_stack, folder),
            stack=trim_stack(flight.main_stack, folder),
            process=flight.process,
        )
    return RankAtHang(
        rank=flight.rank,
        operation=operation,
        last_operation="" if last is None else last.operation,
        last_group="" if last is None else (last.group.description or last.group.name),
        last_sequence=None if last is None else last.sequence,
        last_location=flight.locate(last, folder),
        location=find_user_line(flight.main_stack, folder),
        stack=trim_stack(flight.main_stack, folder),
        process=flight.process,
    )


def _list_victims(operations: Iterable[PendingOperation], culprits: Iterable[int]) -> tuple[int, ...]:
    accused = set(culprits)
    return tuple(rank for rank in list_ranks(operations) if rank not in accused)


def _list_waits(operations: list[PendingOperation]) -> tuple[Wait, ...]:
    """Return who waits for whom, in operation order; an operation that all ranks are in has no entry."""
    waits = []
    for place, operation in enumerate(operations):
        holding = operation.late | operation.behind or operation.unknown
        waiting = tuple(sorted(operation.entries.keys() - operation.behind))
        if holding and waiting:
            waits.append(Wait(operation=place, ranks=waiting, for_ranks=tuple(sorted(holding))))
    return tuple(waits)
