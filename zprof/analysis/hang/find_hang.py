"""Say what a stuck job waits for: its class, the ranks that hold it up, and who waits in which operation."""

import statistics
import sys
from collections.abc import Iterable

from msgspec.structs import replace

from zprof.analysis.group_roles import find_role
from zprof.analysis.hang.flight import Group, RankFlight, Signatures, find_user_line, read_flight, trim_stack
from zprof.analysis.hang.operations import Job, PendingOperation, is_symmetric, list_ranks
from zprof.analysis.hang.order import Divergence, find_divergences, leaves_usual_order
from zprof.analysis.hang.stalls import Stall, find_stall
from zprof.analysis.hang.waits import Root, find_roots
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.hang import Hang, HangClass, HangStatus, RankAtHang, StuckOperation, Wait
from zprof.run.reader import Run

#: A rank that did something so shortly before its dump was written does not wait: timeouts are longer.
_MIN_IDLE_NS = 3_000_000_000
#: Operations that are listed, the causes first.
_MAX_OPERATIONS = 64
#: The class that is reported if several causes are independent of each other.
_PRECEDENCE = (
    HangClass.MISMATCHED,
    HangClass.DIFFERENT_COLLECTIVES,
    HangClass.NEVER_ENTERED,
    HangClass.DEVICE_STOPPED,
    HangClass.HOST_STUCK,
    HangClass.CIRCULAR_WAIT,
    HangClass.NOT_FINISHED,
    HangClass.RANK_MISSING,
)


def find_hang(run: Run) -> Hang | None:
    """Return what the ranks of a job wait for; None if the run has no flight recorder.

    Raises:
        BadInput: a table of the run is damaged.
    """
    job = read_job(run)
    if not job.flights:
        return None
    stall = find_stall(run)
    if stall is not None and stall.status is not HangStatus.STUCK:
        hang = Hang(status=stall.status)
    else:
        hang = _judge(job, run.manifest.folder, stall)
    return replace(
        hang,
        ranks_seen=len(job.flights),
        ranks_missing=tuple(sorted(job.missing)),
        stall_ns=stall.duration_ns if stall is not None else None,
    )


def read_job(run: Run) -> Job:
    """Return the flight recorders of all ranks that have one.

    Raises:
        BadInput: a table of the run is damaged.
    """
    signatures = Signatures()
    flights = {rank: read_flight(run, rank, signatures) for rank in run.ranks}
    known = {rank: flight for rank, flight in flights.items() if flight is not None}
    missing = frozenset(range(run.manifest.world_size)) - set(known)
    return Job(flights=known, missing=missing, signatures=signatures)


def _judge(job: Job, folder: str, stall: Stall | None) -> Hang:
    if not job.operations:
        return _judge_hosts(job, folder, stall)
    if stall is None and (_is_moving(job) or _is_active(job)):
        return Hang(status=HangStatus.RUNNING)
    stopped = _find_stopped(job)
    divergence = _find_blocking_divergence(job)
    if divergence is not None:
        return _describe_divergence(job, folder, divergence)
    roots = find_roots(job, stopped)
    by_class: dict[HangClass, list[Root]] = {}
    for root in roots:
        by_class.setdefault(_classify(job, root, stopped), []).append(root)
    if len(by_class) > 1:
        unfinished = by_class.get(HangClass.NOT_FINISHED, [])
        by_class[HangClass.NOT_FINISHED] = [root for root in unfinished if not _is_passed(root)]
    kind = next((each for each in _PRECEDENCE if by_class.get(each)), HangClass.NOT_FINISHED)
    return _describe_roots(job, folder, kind, by_class.get(kind, []))


def _judge_hosts(job: Job, folder: str, stall: Stall | None) -> Hang:
    """Judge a job without a pending operation: it has finished, unless a watch saw ranks that do nothing."""
    standing = [
        flight
        for rank, flight in job.flights.items()
        if stall is not None and rank in stall.ranks and flight.is_in_operation is False
    ]
    has_begun = any(flight.last is not None or _has_progress(flight) for flight in job.flights.values())
    if not standing or not has_begun:  # nobody waits for a rank that starts, or compiles, before all others
        return Hang(status=HangStatus.FINISHED)
    culprits = tuple(_describe_rank(job, flight, folder, operation=0) for flight in standing)
    is_sure = len(standing) < len(job.flights)
    return Hang(
        status=HangStatus.STUCK,
        kind=HangClass.HOST_STUCK,
        confidence=Confidence.MEDIUM if is_sure else Confidence.LOW,
        culprits=culprits,
    )


def _has_progress(flight: RankFlight) -> bool:
    """Return True if the counts of a rank's groups show that it has entered a collective."""
    return any(enqueued is not None and enqueued > 0 for enqueued, _ in flight.status.values())


def _is_moving(job: Job) -> bool:
    """Return True if the dumps contradict each other, since the job went on while they were taken.

    No rank can finish a symmetric collective that another has not entered.
    """
    entered: dict[str, int] = {}
    finished: dict[str, int] = {}
    groups: dict[str, Group] = {}
    for flight in job.flights.values():
        for name, progress in job.progress[flight.rank].items():
            groups[name] = flight.groups[name]
            finished[name] = max(progress.finished, finished.get(name, 0))
            if progress.is_exact:
                entered[name] = min(progress.entered, entered.get(name, progress.entered))
    return any(
        finished[name] > least and is_symmetric(job.name_operation(groups[name], least + 1))
        for name, least in entered.items()
    )


def _is_active(job: Job) -> bool:
    """Return True if most ranks did something right before their dump was written: then they do not wait."""
    idle_ns = [
        flight.saved_ns - flight.newest_ns
        for flight in job.flights.values()
        if flight.saved_ns is not None and flight.newest_ns is not None
    ]
    return bool(idle_ns) and abs(statistics.median(idle_ns)) < _MIN_IDLE_NS


def _find_stopped(job: Job) -> frozenset[int]:
    """Return the ranks that have not finished a symmetric collective that a peer has."""
    return frozenset(
        rank
        for operation in job.operations
        if operation.finished and not operation.key.is_p2p and _proves_stop(operation)
        for rank in operation.entries
    )


def _proves_stop(operation: PendingOperation) -> bool:
    """Return True if an operation that a peer has finished should have finished everywhere."""
    has_left = len(operation.entries) == 1 and not (operation.late or operation.behind or operation.unknown)
    return has_left or is_symmetric(operation.entry.operation)


def _find_blocking_divergence(job: Job) -> Divergence | None:
    """Return the place at which ranks entered different operations, if that is what the job waits in.

    Sizes that differ count only if nothing of the group has finished since, and operations that finished with
    different sizes before are meant to.
    """
    pending = {
        operation.key.group: operation.key.sequence
        for operation in job.operations
        if not operation.key.is_p2p and not operation.late
    }
    waiting = {operation.key.group for operation in job.operations if not operation.key.is_p2p}
    found = [
        divergence
        for divergence in find_divergences(job)
        if (divergence.by_line and divergence.group in waiting)
        or pending.get(divergence.group) == divergence.sequence
        or (divergence.group in waiting and _is_other_operation(job, divergence))
    ]
    # What is known to be odd says more than what only differs.
    return min(found, key=lambda each: (each.by_line, each.expected is None), default=None)


def _is_other_operation(job: Job, divergence: Divergence) -> bool:
    return len({job.signatures.get(number)[0] for number in divergence.entered.values()}) > 1


def _classify(job: Job, root: Root, stopped: frozenset[int]) -> HangClass:
    if not root.ranks:
        if any(_differs(operation) for operation in root.operations):
            return HangClass.MISMATCHED
        is_unknown = any(operation.unknown for operation in root.operations)
        return HangClass.RANK_MISSING if is_unknown else HangClass.NOT_FINISHED
    if stopped.intersection(root.ranks):
        return HangClass.DEVICE_STOPPED
    if not set(root.ranks) <= set(job.flights):
        return HangClass.RANK_MISSING
    if len(root.ranks) > 1:
        return HangClass.NEVER_ENTERED if _find_skipping(job, root) else HangClass.CIRCULAR_WAIT
    went_on = any(_went_past(job, root.ranks[0], operation) for operation in root.held_up)
    return HangClass.NEVER_ENTERED if went_on else HangClass.HOST_STUCK


def _differs(operation: PendingOperation) -> bool:
    """Return True if a send and its receive have other sizes or dtypes."""
    sides = {(entry.sizes, entry.dtypes) for entry in operation.entries.values()}
    return operation.key.is_p2p and len(sides) > 1


def _is_passed(root: Root) -> bool:
    """Return True if no rank stands in the operations of a root: they may be left over in the buffer."""
    return all(entry.is_passed for operation in root.operations for entry in operation.entries.values())


def _went_past(job: Job, rank: int, held_up: PendingOperation) -> bool:
    """Return True if a rank has entered collectives that ranks which wait for it have not reached."""
    own = job.progress[rank]
    return any(
        name in own and other.is_exact and own[name].entered > other.entered
        for waiting in held_up.entries
        for name, other in job.progress[waiting].items()
    )


def _find_skipping(job: Job, root: Root) -> tuple[int, ...]:
    """Return the ranks of a circle that left the order of the others; none if all did, or nothing tells.

    If some are late for operations that all others have entered, they skipped them. If each is late for what
    the other stands in, earlier rounds tell.
    """
    late = {rank for operation in root.operations for rank in operation.late}.intersection(root.ranks)
    few = {
        rank
        for operation in root.operations
        if len(operation.entries) > 2 * len(operation.late)
        for rank in operation.late
    }.intersection(root.ranks)
    for odd in (late, few if len(few) == 1 else set[int]()):
        if odd and len(odd) < len(root.ranks):
            return tuple(sorted(odd))
    skipping = {
        rank
        for entered in root.operations
        for skipped in root.operations
        for rank in entered.entries.keys() & skipped.late
        if not entered.key.is_p2p
        and leaves_usual_order(job, rank, entered.key.group, entered.key.sequence, skipped.key.group)
    }
    return tuple(sorted(skipping)) if len(skipping) < len(root.ranks) else ()


def _describe_roots(job: Job, folder: str, kind: HangClass, roots: list[Root]) -> Hang:
    causes = [operation for root in roots for operation in root.held_up]
    if (
        kind is HangClass.NEVER_ENTERED
    ):  # of a circle, what was skipped is the cause, not what was entered then
        skipping = {rank for root in roots if len(root.ranks) > 1 for rank in _find_skipping(job, root)}
        skipped = [operation for operation in causes if skipping & set(operation.late)]
        causes = [each for each in causes if not skipping & each.entries.keys() or each in skipped]
    if kind is HangClass.DEVICE_STOPPED:
        stopped = {rank for root in roots for rank in root.ranks}
        causes += [each for each in job.operations if each.finished and stopped & each.entries.keys()]
    operations = _order_operations(job, causes)
    culprits = []
    for root in roots:
        ranks = root.ranks
        if kind is HangClass.NEVER_ENTERED and len(ranks) > 1:
            ranks = _find_skipping(job, root)
        if kind is HangClass.MISMATCHED and not ranks:
            ranks = tuple(
                sorted({rank for each in root.operations if _differs(each) for rank in each.entries})
            )
        if kind is HangClass.RANK_MISSING and not ranks:
            ranks = tuple(sorted({rank for operation in root.operations for rank in operation.unknown}))
        for rank in ranks:
            places = [each for each, held_up in enumerate(operations) if rank in held_up.members]
            late = [each for each in places if rank in operations[each].late]
            place = next(iter([*late, *places]), 0)
            flight = job.flights.get(rank)
            culprits.append(
                RankAtHang(rank=rank, operation=place)
                if flight is None
                else _describe_rank(job, flight, folder, operation=place, held_up=operations[place])
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


def _rate(job: Job, kind: HangClass, roots: list[Root]) -> Confidence:
    """Rate how sure the culprits are: nobody is accused for a dump that is missing."""
    if kind is HangClass.RANK_MISSING or not roots:
        return Confidence.LOW
    if kind is HangClass.CIRCULAR_WAIT and any(len(root.ranks) > 2 for root in roots):
        return Confidence.LOW  # most ranks of a large circle did what they should
    if kind in (HangClass.NOT_FINISHED, HangClass.CIRCULAR_WAIT):
        return Confidence.MEDIUM
    # With dumps missing, what holds the culprit up may be in them.
    is_complete = not any(operation.unknown for root in roots for operation in root.held_up)
    return Confidence.HIGH if is_complete else Confidence.MEDIUM


def _describe_divergence(job: Job, folder: str, divergence: Divergence) -> Hang:
    """Describe ranks that entered different operations at one place of a group."""
    entered = {rank: job.signatures.get(number) for rank, number in divergence.entered.items()}
    is_other = len({signature[0] for signature in entered.values()}) > 1
    if divergence.by_line or divergence.is_skip:
        kind = HangClass.NEVER_ENTERED
    else:
        kind = HangClass.DIFFERENT_COLLECTIVES if is_other else HangClass.MISMATCHED
    held_up = [
        operation
        for operation in job.operations
        if operation.key.group == divergence.group and not operation.key.is_p2p
    ]
    operations = _order_operations(job, held_up)
    odd = divergence.odd if divergence.expected is not None else tuple(sorted(entered))
    culprits = tuple(
        replace(
            _describe_rank(job, job.flights[rank], folder, operation=0),
            entered_instead=_format_signature(job, divergence, rank),
            location=_locate_place(job, rank, divergence, folder),
        )
        for rank in odd
    )
    return Hang(
        status=HangStatus.STUCK,
        kind=kind,
        confidence=Confidence.HIGH if divergence.expected is not None else Confidence.MEDIUM,
        operations=tuple(
            _describe_operation(job, folder, operation, frozenset(divergence.odd)) for operation in operations
        ),
        culprits=culprits,
        victims=_list_victims(operations, odd),
        waits=_list_waits(operations),
    )


def _format_signature(job: Job, divergence: Divergence, rank: int) -> str:
    if divergence.by_line:
        return ""
    operation, sizes, dtypes = job.signatures.get(divergence.entered[rank])
    return " ".join(part for part in (operation, sizes, dtypes) if part)


def _locate_place(job: Job, rank: int, divergence: Divergence, folder: str) -> SourceLocation | None:
    """Return the line at which a rank entered what it entered at the place of a divergence."""
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
    """Return the operations that cannot finish, the causes first, then those that most ranks wait in."""
    first = {operation.key: operation for operation in sorted(causes, key=_rank_cause)}
    rest = [operation for operation in job.operations if operation.key not in first]
    rest.sort(key=lambda each: (-len(each.entries), each.key))
    return [*first.values(), *rest][:_MAX_OPERATIONS]


def _rank_cause(operation: PendingOperation) -> tuple[bool, bool, int, int]:
    """Return the order of causes: what a peer has finished, what ranks stand in, how many, and since when."""
    entries = operation.entries.values()
    times = [entry.created_ns for entry in entries if entry.created_ns is not None]
    is_passed = all(entry.is_passed for entry in entries)
    return not operation.finished, is_passed, -len(entries), min(times, default=sys.maxsize)


def _describe_operation(
    job: Job, folder: str, operation: PendingOperation, odd: frozenset[int] = frozenset()
) -> StuckOperation:
    """Describe an operation as a rank that is not odd entered it."""
    entry = operation.entries[min(operation.entries.keys() - odd or operation.entries.keys())]
    flight = job.flights[entry.rank]
    role = find_role(entry.group.description)
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
    )


def _describe_rank(
    job: Job, flight: RankFlight, folder: str, *, operation: int, held_up: PendingOperation | None = None
) -> RankAtHang:
    last = flight.last
    if last is None and held_up is not None:
        group, progress = held_up.entry.group, job.progress[flight.rank].get(held_up.key.group)
        return RankAtHang(
            rank=flight.rank,
            operation=operation,
            last_group=group.description or group.name,
            last_sequence=None if progress is None else progress.entered,
            location=find_user_line(flight.main_stack, folder),
            stack=trim_stack(flight.main_stack, folder),
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
    )


def _list_victims(operations: Iterable[PendingOperation], culprits: Iterable[int]) -> tuple[int, ...]:
    accused = set(culprits)
    return tuple(rank for rank in list_ranks(operations) if rank not in accused)


def _list_waits(operations: list[PendingOperation]) -> tuple[Wait, ...]:
    """Return who waits for whom, in the order of the operations; one that all are in has no entry."""
    waits = []
    for place, operation in enumerate(operations):
        holding = operation.late | operation.behind or operation.unknown
        waiting = tuple(sorted(operation.entries.keys() - operation.behind))
        if holding and waiting:
            waits.append(Wait(operation=place, ranks=waiting, for_ranks=tuple(sorted(holding))))
    return tuple(waits)
